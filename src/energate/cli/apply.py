"""`energate predict`, `score` and `refine`: what a saved model says of each row of a table."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from energate.cli._shell import (
    BasePrefix,
    BaseScores,
    Data,
    Device,
    Loaded,
    Model,
    Part,
    messages,
    output,
    plainly,
    say,
)
from energate.errors import InputError

_GO_ON = "Nothing was written; a file that was there is as it was."

_Out = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="OUT", help="The file to write, or - for CSV on stdout; beside DATA."),
]
_Prefix = Annotated[str, typer.Option(metavar="TEXT", help="Put before the names of all new columns.")]
_Json = Annotated[bool, typer.Option("--json", help="Say what was done as JSON, for other programs.")]


@plainly(_GO_ON)
def predict(
    model: Model,
    data: Data,
    out: _Out = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities/--no-probabilities", help="Also a column p_CLASS for each class or label.")
    ] = True,
    prefix: _Prefix = "",
    part: Part = "test",
    device: Device = "auto",
    as_json: _Json = False,
) -> None:
    """Predict the class, or the labels, of each row of a table.

    Columns are matched by their names; the others, such as ids, are carried along.  A file may be larger than memory.
    Adds prediction, or predicted_LABEL for each label; an anomaly model predicts 1 for normal rows, -1 for others.

    Example: energate predict flowers.zip new.csv -o predicted.csv
    """
    leave_out = () if probabilities else ("probabilities",)
    _apply(model, device, data, out, as_json, command="predict", prefix=prefix, part=part, leave_out=leave_out)


@plainly(_GO_ON)
def score(
    model: Model,
    data: Data,
    out: _Out = None,
    prefix: _Prefix = "",
    part: Part = "test",
    device: Device = "auto",
    as_json: _Json = False,
) -> None:
    """Say how much a model likes each row of a table: higher is better.

    A classifier adds energy_CLASS for each class, and liking, how much any class likes the row.  An anomaly model adds
    score, which is below 0 for anomalies, and is_inlier.

    Example: energate score engines.zip today.parquet -o scored.parquet
    """
    _apply(model, device, data, out, as_json, command="score", prefix=prefix, part=part)


@plainly(_GO_ON)
def refine(
    model: Model,
    data: Data,
    out: _Out = None,
    base_prefix: BasePrefix = None,
    base_scores: BaseScores = "probabilities",
    with_base: Annotated[
        bool, typer.Option("--with-base", help="Also base_LABEL: the base's own probabilities, calibrated.")
    ] = False,
    prefix: _Prefix = "",
    part: Part = "test",
    device: Device = "auto",
    as_json: _Json = False,
) -> None:
    """Refine predictions of several labels, so that they make sense together.

    Without --base-prefix the model's own base predicts first.  Adds refined_LABEL, the probability, and
    predicted_LABEL, 0 or 1.

    Example: energate refine labels.zip scored.csv --base-prefix p_ -o refined.csv
    """
    leave_out = () if with_base else ("base",)
    given = (base_prefix, base_scores)
    _apply(model, device, data, out, as_json, given, command="refine", prefix=prefix, part=part, leave_out=leave_out)


# --- the output --------------------------------------------------------------------------------------------------


_ENDINGS = {"predict": "predicted", "score": "scored", "refine": "refined"}


def _apply(
    model: Path,
    device: str,
    data: Path,
    out: str | None,
    as_json: bool,
    base: tuple[str | None, str] = (None, ""),
    *,
    command: str,
    **options: Any,
) -> None:
    from energate.views.tabular import apply_table

    loaded = Loaded.of(model, device)
    columns = loaded.base(command, *base)
    target = (
        None if out == "-" else Path(out) if out else data.with_name(f"{data.stem}-{_ENDINGS[command]}{data.suffix}")
    )
    if target is None and as_json:
        raise InputError("-o - and --json both write to stdout. Name a file, or leave --json out.")
    with (
        _ended_by_terminate(),
        _to_stdout() if target is None else nullcontext(target) as file,
        _progress(data) as tell,
    ):
        done = apply_table(loaded.table, data, file, command=command, base=columns, tell=tell, **options)
    if as_json:
        found = {"output": str(target), "rows": done.n_rows, "columns": done.new, "seconds": round(done.seconds, 3)}
        typer.echo(json.dumps(found, indent=2))
    elif target is None:
        say(f"{done.n_rows:,} rows in {done.seconds:.1f} s")
    else:
        output().print(
            f"wrote {target}: {done.n_rows:,} rows in {done.seconds:.1f} s; new: {_some(done.new)}", soft_wrap=True
        )


@contextmanager
def _to_stdout() -> Iterator[Any]:
    """stdout, whose reader may leave when it has enough."""
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        sys.stdout = None  # or Python tries once more to write the rest
        raise typer.Exit(1) from error


@contextmanager
def _ended_by_terminate() -> Iterator[None]:
    """Let `kill` end the work as Ctrl-C does, so that nothing half-written stays behind."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: whoever runs this handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(data: Path) -> Iterator[Callable[[int], None]]:
    console = messages()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"{data.name}: reading") as status:
        yield lambda n_rows: status.update(f"{data.name}: {n_rows:,} rows")


def _some(names: list[str], n_most: int = 6) -> str:
    return ", ".join(names[:n_most]) + (f" and {len(names) - n_most:,} more" if len(names) > n_most else "")
