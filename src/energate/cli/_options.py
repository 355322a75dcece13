"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="What `energate fit` or `energate.save` wrote.")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="A .csv, .tsv, .parquet, .npz or .arff file.")]
Part = Annotated[str, typer.Option(help="Of an NPZ file with several: train, valid or test.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")]
BasePrefix = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Columns TEXT + label hold what another program says of each label.")
]
BaseScores = Annotated[Literal["probabilities", "logits"], typer.Option(help="What those columns hold.")]
