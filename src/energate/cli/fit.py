"""`energate fit`: a model from a table, and how good it is on rows that it has not seen."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energate.cli._shell import Data, Device, Json, Part, messages, output, plainly, say, show, split, table
from energate.errors import InputError

if TYPE_CHECKING:
    from energate.views.tabular import FittedTable

_WORDS = {
    "error": ("error", "%"),
    "label_error": ("wrong labels", "%"),
    "row_error": ("rows with a wrong label", "%"),
    "calibration_error": ("expected calibration error", "%"),
    "log_loss": ("log-loss", ""),
    "flagged": ("flagged as anomalies", "%"),
    "roc_auc": ("ROC AUC", ""),
}


@plainly("No model was written; one that was there is as it was.")
def fit(
    data: Data,
    target: Annotated[
        str | None, typer.Option(metavar="COL", help="The column with the classes; for anomaly: to measure with.")
    ] = None,
    task: Annotated[
        Literal["classify", "multilabel", "anomaly"] | None,
        typer.Option(help="classify if left out; multilabel if there are --targets.", show_default=False),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="MODEL", help="A folder, or a .zip; DATA-model.zip.")
    ] = None,
    targets: Annotated[list[str] | None, typer.Option(metavar="A,B,C", help="Columns of 0 and 1: labels.")] = None,
    targets_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Labels are the columns that begin so.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="A,B", help="Columns to leave out.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Columns to take though they look like ids.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Columns of numbers that are categories.")
    ] = None,
    image: Annotated[str | None, typer.Option(metavar="HxW", help="The rows are images of this size.")] = None,
    part: Part = "train",
    test_fraction: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="The share of rows held out, to measure on; 0: no measurement.")
    ] = 0.2,
    refit: Annotated[
        bool, typer.Option("--refit", help="When measured, train the model to keep on all rows: twice the time.")
    ] = False,
    units: Annotated[
        Literal["trunk", "memory", "mean", "covariance", "mean-covariance"] | None,
        typer.Option(help="The hidden units: trunk (default of classify), memory (of anomaly), or the paper's kinds."),
    ] = None,
    relation: Annotated[Literal["yy", "xy"] | None, typer.Option(help="Of multilabel: what the energy sees.")] = None,
    method: Annotated[Literal["sets", "ascent"] | None, typer.Option(help="Of multilabel: how to refine.")] = None,
    objective: Annotated[
        Literal["hamming", "subset"] | None, typer.Option(help="Of multilabel: few wrong labels, or rows without any.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of each stage of training; by the size of the data if left out.")
    ] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit a model to a table, measure it on rows held out, and save it.

    Numbers, categories and missing cells are taken as they are; ids are left out, with a note.  The model is trained on
    the rows that are not held out, and the numbers shown are those of the very model that is saved (but see --refit).

    Example: energate fit flowers.csv --target kind -o flowers.zip
    """
    from energate.persistence import check_path
    from energate.views.tabular import fit_table

    path = model or Path(f"{data.stem}-model.zip")
    check_path(path)
    chosen = {"units": units, "relation": relation, "method": method, "objective": objective}
    names = {"targets": targets, "drop": drop, "keep": keep, "categories": category}
    columns = {name: split(values) or () for name, values in names.items()}
    with _in_flags(), _noted() as notes, _showing(data.name):
        fitted = fit_table(
            data,
            target,
            task=task,
            targets_prefix=targets_prefix,
            image=None if image is None else size_of(image),
            part=part,
            test_fraction=test_fraction,
            refit=refit,
            epochs=epochs,
            device=device,
            random_state=seed,
            **columns,
            **{name: value for name, value in chosen.items() if value is not None},
        )
    _save(fitted, path)
    for note in [*notes, *([] if as_json else fitted.notes)]:
        say(f"Note: {note}", "yellow")
    if as_json:
        typer.echo(json.dumps(_summary(fitted, path, refit), indent=2))
    else:
        _show(fitted, data, path, refit)


def size_of(text: str) -> tuple[int, int]:
    """Height and width of an image, from words such as 28x28."""
    match = re.fullmatch(r"([1-9]\d*)\s*[xX,]\s*([1-9]\d*)", text.strip())
    if match is None:
        raise InputError(f"--image must be height x width, such as 28x28; got {text!r}.")
    return int(match[1]), int(match[2])


@contextmanager
def _in_flags() -> Iterator[None]:
    """Say of parameters what they are called here: `targets_prefix` is --targets-prefix."""
    try:
        yield
    except InputError as error:
        text = re.sub(r"`([a-z_]+)`", lambda match: f"--{match[1].replace('_', '-')}", str(error))
        raise InputError(text) from error


@contextmanager
def _noted() -> Iterator[list[str]]:
    """The warnings of whatever runs inside, each once."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        yield notes
    notes += dict.fromkeys(" ".join(str(note.message).split()) for note in noted)


@contextmanager
def _showing(name: str) -> Iterator[None]:
    """The stage and the epoch of whatever is trained: one line that changes in a terminal, else a line per stage."""
    from energate.estimators.progress import watching

    console, begun = messages(), Counter[str]()

    def named(stage: str, progress: Any) -> str:
        """Of a stage that comes again, as a base does for every fold, also how often it has begun."""
        begun[stage] += progress.epoch == 1
        return stage if begun[stage] < 2 else f"{stage}, model {begun[stage]}"

    def say_stage(stage: str, progress: Any) -> None:
        stage = named(stage, progress)
        if progress.epoch == 1:
            say(f"{stage}: {progress.n_epochs} epochs at most")

    if not console.is_terminal:
        with watching(say_stage):
            yield
        return
    with console.status(f"{name}: reading") as status:

        def show_epoch(stage: str, progress: Any) -> None:
            stage = named(stage, progress)
            best = "" if progress.best is None else f", best validation loss {float(progress.best.min()):.4f}"
            loss = float(progress.history.loss[-1].mean())
            status.update(f"{name}: {stage}, epoch {progress.epoch} of {progress.n_epochs}, loss {loss:.4f}{best}")

        with watching(show_epoch):
            yield


def _save(fitted: "FittedTable", path: Path) -> None:
    from energate.persistence import save

    try:
        save(fitted.model, path, columns=fitted.columns)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}). Choose a place with room.") from error


def _summary(fitted: "FittedTable", path: Path, refit: bool) -> dict[str, Any]:
    return {
        "model": str(path),
        "estimator": type(fitted.model).__name__,
        "task": fitted.columns.task,
        "targets": list(fitted.columns.targets),
        "columns": fitted.columns.names,
        "notes": fitted.notes,
        "rows": fitted.n_rows,
        "trained_on": fitted.n_train,
        "fitted_on_all_rows": refit or not fitted.held_out,
        "held_out": fitted.held_out or None,
        "seconds": round(fitted.seconds, 3),
    }


def _show(fitted: "FittedTable", data: Path, path: Path, refit: bool) -> None:
    from energate.tables import CategoryColumn

    columns, console = fitted.columns, output()
    n_categories = sum(isinstance(column, CategoryColumn) for column in columns.inputs)
    of_categories = f", {n_categories} of them categories" if n_categories else ""
    console.print(
        f"{data.name}: {fitted.n_rows:,} rows, {len(columns.inputs):,} columns{of_categories}; "
        f"{type(fitted.model).__name__}, {columns.task}"
    )
    held_out = fitted.held_out
    if held_out:
        console.print(f"On {held_out['rows']:,} rows held out, which it was not trained on:")
        rows = table("", "", right=())
        for name, (words, unit) in _WORDS.items():
            if name in held_out:
                rows.add_row(f"  {words}", f"{held_out[name]:.2f} %" if unit else f"{held_out[name]:.4f}")
        show(rows)
        if "verdict" in held_out:
            console.print(f"In training: {held_out['verdict']}", soft_wrap=True)
    else:
        console.print("No rows were held out, so nothing is known of its errors.")
    whole = "all rows, after the measurement" if refit and held_out else f"{fitted.n_train:,} rows"
    console.print(f"wrote {path}, trained on {whole}; {fitted.seconds:.1f} s in all", soft_wrap=True)
