"""`energate fit`: a model from a table, and how good it is on rows that it has not seen."""

import glob
import json
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energate.cli._shell import (
    SILENCE,
    Data,
    Decimal,
    Delimiter,
    Device,
    Encoding,
    Index,
    Json,
    Na,
    OnError,
    Part,
    in_flags,
    messages,
    note,
    opened,
    output,
    plainly,
    say,
    show,
    split,
    table,
)
from energate.cli.bench import duration
from energate.cli.ranks import fit_by_the_first, together
from energate.errors import InputError
from energate.files import check_output

if TYPE_CHECKING:
    from energate.training import Checkpoints
    from energate.views.fitting import FittedTable


@plainly("No model was written; one that was there is as it was.")
@together
def fit(
    data: Data,
    target: Annotated[
        str | None, typer.Option(metavar="COL", help="The column with the classes; for anomaly: to measure with.")
    ] = None,
    task: Annotated[
        Literal["classify", "multilabel", "anomaly", "images"] | None,
        typer.Option(
            help="classify if left out; multilabel if there are --targets; images for a folder.", show_default=False
        ),
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
    na: Na = None,
    index: Index = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    decimal: Decimal = None,
    image: Annotated[
        str | None, typer.Option(metavar="HxW", help="The rows are images of this size; files are brought to it.")
    ] = None,
    colour: Annotated[
        bool | None,
        typer.Option("--colour/--grey", help="Of files of pictures; as they are if left out.", show_default=False),
    ] = None,
    on_error: OnError = "fail",
    part: Part = "train",
    test_fraction: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="The share of rows held out, to measure on; 0: no measurement.")
    ] = 0.2,
    calibration: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="The share of rows kept apart, for p-values and sets with a guarantee."),
    ] = 0.0,
    refit: Annotated[
        bool, typer.Option("--refit", help="When measured, train the model to keep on all rows: twice the time.")
    ] = False,
    cv: Annotated[
        int | None, typer.Option(min=2, help="Measure on so many folds instead, and keep a model of all rows.")
    ] = None,
    card: Annotated[
        bool, typer.Option("--card/--no-card", help="Also write a model card in Markdown, MODEL-card.md.")
    ] = True,
    units: Annotated[
        Literal["trunk", "memory", "mean", "covariance", "mean-covariance"] | None,
        typer.Option(help="The hidden units: trunk (default of classify), memory (of anomaly), or the paper's kinds."),
    ] = None,
    relation: Annotated[Literal["yy", "xy"] | None, typer.Option(help="Of multilabel: what the energy sees.")] = None,
    method: Annotated[Literal["sets", "ascent"] | None, typer.Option(help="Of multilabel: how to refine.")] = None,
    objective: Annotated[
        Literal["hamming", "subset"] | None, typer.Option(help="Of multilabel: few wrong labels, or rows without any.")
    ] = None,
    augment: Annotated[
        Literal["shifts", "none", "affine", "symmetries", "turns"] | None,
        typer.Option(help="Of images: what does not change the class, tried in training; affine: as hands vary."),
    ] = None,
    symmetry: Annotated[
        Literal["turns", "turns and mirrors", "circle"] | None,
        typer.Option(help="Of square images: what changes no energy: turns by quarters; circle, by nearly any angle."),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(min=8, help="Of images: the width of the network, a multiple of 8; less is quicker.")
    ] = None,
    denoising_weight: Annotated[
        float | None, typer.Option(min=0.0, help="Of images: 0 is quicker, but then nothing is denoised or filled in.")
    ] = None,
    n_hidden: Annotated[int | None, typer.Option(min=1, help="Hidden units of a class, or of the scorer.")] = None,
    generative_weight: Annotated[
        float | None, typer.Option(min=0.0, help="Of classify: how much of the denoising loss per column stays in.")
    ] = None,
    class_weight: Annotated[
        Literal["balanced"] | None, typer.Option(help="Of classify: balanced lets rare classes count as much.")
    ] = None,
    explainable: Annotated[
        bool,
        typer.Option("--explainable", help="Of classify, the paper's kinds: keep reconstructions that mean something."),
    ] = False,
    contamination: Annotated[
        float | None, typer.Option(min=0.0, max=0.5, help="Of anomaly: the share of the rows that are anomalies.")
    ] = None,
    false_positive_rate: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Of anomaly: the share of normal rows to flag.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of each stage of training; by the size of the data if left out.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Take no more than this, as 1GB; DATA may be 'parts/*.parquet'."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            "--resume",
            metavar="FOLDER",
            help="Write how far it is there; the same command goes on after a kill.",
        ),
    ] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit a model to a table or a folder of pictures, measure it on rows held out, and save it.

    Numbers, categories and missing cells are taken as they are; ids are left out, with a note.  The model is trained on
    the rows that are not held out, and the numbers shown are those of the very model that is saved (but see --refit).
    Of a folder, the pictures of each class are in a folder of their own.

    Example: energate fit flowers.csv --target kind -o flowers.zip
    """
    streamed = memory is not None or (glob.has_magic(str(data)) and not data.exists())
    # Pictures are opened with the size that they are brought to.
    source = None if streamed else data if data.is_dir() else opened(data, part, delimiter, encoding)
    with messages().status("starting"):
        from energate.persistence import check_path
        from energate.training.ranks import is_first
        from energate.views.fitting import fit_table

    if model is None and streamed and glob.has_magic(data.name):
        raise InputError("Name the model of several files: -o MODEL.")
    path = model or Path(f"{data.name.split('.')[0].strip('-') or 'table'}-model.zip")
    check_path(path)
    if card:
        check_output(card_of(path), [data])
    chosen: dict[str, Any] = {"units": units, "relation": relation, "method": method, "objective": objective}
    chosen |= {"n_hidden": n_hidden, "generative_weight": generative_weight, "class_weight": class_weight}
    chosen |= {"contamination": contamination, "false_positive_rate": false_positive_rate}
    chosen |= {"explainable": explainable or None, "augment": augment, "channels": channels}
    chosen |= {"denoising_weight": denoising_weight, "symmetry": symmetry}
    names = {"targets": targets, "drop": drop, "keep": keep, "categories": category, "missing": na, "index": index}
    columns = {name: split(values) or () for name, values in names.items()}
    how: dict[str, Any] = {
        "target": target,
        "task": task,
        "targets_prefix": targets_prefix,
        "image": None if image is None else size_of(image),
        **({"colour": colour, "on_error": on_error} if data.is_dir() else {}),
        "part": part,
        "delimiter": delimiter,
        "encoding": encoding,
        "decimal": decimal,
        "test_fraction": test_fraction,
        "calibration": calibration,
        "refit": refit,
        "cv": cv,
        "epochs": epochs,
        "device": device,
        "random_state": seed,
        **columns,
        **{name: value for name, value in chosen.items() if value is not None},
    }
    how |= {"memory": memory} if streamed else {}
    known = data if source is None or isinstance(source, Path) else source.path
    with in_flags(), _noted() as notes, _going_on(checkpoint, known, how) as files, _showing(data.name):
        fitted = _fit_streamed(data, **how) if source is None else fit_table(source, fit=fit_by_the_first(), **how)
    if not is_first():
        return
    keep_model(fitted, path, data.name, card, refit)
    if files is not None:
        files.remove()
    unclear = [] if fitted.meaning is None or fitted.meaning.warning is None else [fitted.meaning.warning]
    note([*notes, *([] if as_json else [*fitted.notes, *unclear])])
    if as_json:
        typer.echo(json.dumps(_summary(fitted, path), indent=2))
    else:
        _show(fitted, data, path, refit)


#: options of a fit that streams do not have
_WHOLE = {
    "image",
    "colour",
    "on_error",
    "delimiter",
    "encoding",
    "decimal",
    "calibration",
    "refit",
    "cv",
    "missing",
    "index",
}


def _fit_streamed(data: Path, **how: Any) -> "FittedTable":
    """A fit to more rows than memory holds, or to several files; of options only those that it has may be given."""
    from energate.tables.streams import MEMORY
    from energate.views.streaming import fit_stream

    for name in sorted(_WHOLE & how.keys()):
        if how.pop(name):
            raise InputError(f"--{name.replace('_', '-')} is not for several files, or for --memory. Leave it out.")
    return fit_stream(str(data), **{**how, "memory": how["memory"] or MEMORY})


@contextmanager
def _going_on(folder: Path | None, data: Path, how: dict[str, Any]) -> Iterator["Checkpoints | None"]:
    """Checkpoints of the fit, if they are asked for; those of other data or options are refused."""
    if folder is None:
        yield None
        return
    from energate.files import sha256_of
    from energate.training import checkpointing

    paths = [data] if data.exists() else [Path(each) for each in sorted(glob.glob(str(data)))]
    if not paths or not all(path.is_file() for path in paths):
        raise InputError(f"There is no file {data.name!r} in the folder {str(data.parent)!r}.")
    about = json.dumps({**how, "data": [sha256_of(path) for path in paths]}, sort_keys=True)
    with checkpointing(folder, about=about) as files:
        yield files
    if files.n_resumed:
        say(f"went on from {folder}: {files.n_resumed} epochs were there", "yellow")


def size_of(text: str) -> tuple[int, int]:
    """Height and width of an image, from words such as 28x28."""
    match = re.fullmatch(r"([1-9]\d*)\s*[xX,]\s*([1-9]\d*)", text.strip())
    if match is None:
        raise InputError(f"--image must be height x width, such as 28x28; got {text!r}.")
    return int(match[1]), int(match[2])


@contextmanager
def _noted() -> Iterator[list[str]]:
    """The warnings of whatever runs inside, each once."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        yield notes
    notes += dict.fromkeys(" ".join(str(each.message).split()) for each in noted)


@contextmanager
def _showing(name: str) -> Iterator[None]:
    """How far training is: one line that changes in a terminal, else a line per stage, and one every ten seconds."""
    from energate.estimators.progress import watching

    console, begun = messages(), Counter[str]()
    since, last = time.monotonic(), time.monotonic()

    def how_far(stage: str, progress: Any) -> str:
        """The stage, the epoch, the loss, and how long it takes at most if epochs go on as they did."""
        nonlocal since
        begun[stage] += progress.epoch == 1
        since = time.monotonic() if progress.epoch == 1 else since
        # A stage that comes again, as a base does for every fold, also says how often it has begun.
        again = "" if begun[stage] < 2 else f", model {begun[stage]}"
        if progress.epoch == 1:
            return f"{stage}{again}: {progress.n_epochs} epochs at most"
        best = "" if progress.best is None else f", best validation loss {float(progress.best.min()):.4f}"
        loss = float(progress.history.loss[-1].mean())
        left = (time.monotonic() - since) / (progress.epoch - 1) * (progress.n_epochs - progress.epoch)
        epoch = f"epoch {progress.epoch} of {progress.n_epochs}, loss {loss:.4f}{best}"
        return f"{stage}{again}: {epoch}, {duration(math.ceil(left))} left at most"

    def say_sometimes(stage: str, progress: Any) -> None:
        nonlocal last
        line = how_far(stage, progress)
        if progress.epoch == 1 or time.monotonic() - last >= SILENCE:
            last = time.monotonic()
            say(line)

    if not console.is_terminal:
        with watching(say_sometimes):
            yield
        return
    with console.status(f"{name}: reading") as status:

        def show_epoch(stage: str, progress: Any) -> None:
            status.update(f"{name}: {how_far(stage, progress)}")

        with watching(show_epoch):
            yield


def keep_model(fitted: "FittedTable", path: Path, data: str, card: bool, refit: bool = False) -> None:
    """Save a model, and its card beside it."""
    from energate.cli.evaluate import figures
    from energate.files import written_whole
    from energate.persistence import save
    from energate.views.cards import model_card

    try:
        save(fitted.model, path, columns=fitted.columns)
        if card:
            with written_whole(card_of(path)) as file:
                file.write(model_card(fitted, data, figures(fitted.held_out), refit).encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}). Choose a place with room.") from error


def card_of(path: Path) -> Path:
    """Where the card of a model is."""
    return path.with_name(f"{path.stem if path.suffix == '.zip' else path.name}-card.md")


def _summary(fitted: "FittedTable", path: Path) -> dict[str, Any]:
    from energate.cli.evaluate import percentages

    return {
        "model": str(path),
        "estimator": type(fitted.model).__name__,
        "task": fitted.columns.task,
        "targets": list(fitted.columns.targets),
        "columns": fitted.columns.names,
        "notes": fitted.notes,
        "rows": fitted.n_rows,
        "trained_on": fitted.n_train,
        "fitted_on_all_rows": fitted.n_train == fitted.n_rows,
        "held_out": fitted.held_out or None,
        "percent": percentages(fitted.held_out),
        "explanations": None if fitted.meaning is None else fitted.meaning.to_json(),
        "seconds": round(fitted.seconds, 3),
    }


def _show(fitted: "FittedTable", data: Path, path: Path, refit: bool) -> None:
    from energate.cli.evaluate import figures
    from energate.tables import CategoryColumn, ImageColumn, size_in_words
    from energate.tables.values import counted

    columns, console = fitted.columns, output()
    n_categories = sum(isinstance(column, CategoryColumn) for column in columns.inputs)
    of_categories = f", {n_categories} of them categories" if n_categories else ""
    what = f"{counted(len(columns.inputs), 'column')}{of_categories}"
    if isinstance(columns.inputs[0], ImageColumn):
        what = f"pictures of {size_in_words(columns.inputs[0].shape)}"
    console.print(
        f"{data.name}: {counted(fitted.n_rows, 'row')}, {what}; {type(fitted.model).__name__}, {columns.task}"
    )
    held_out = fitted.held_out
    if held_out:
        folds = f" in {held_out['folds']} folds, each by a model that had not seen it" if "folds" in held_out else ""
        held = counted(held_out["rows"], "row")
        console.print(f"On {held} held out{folds or ', which it was not trained on'}:")
        rows = table("", "", right=())
        for words, value in figures(held_out):
            rows.add_row(f"  {words}", value)
        show(rows)
        if "verdict" in held_out:
            console.print(f"In training: {held_out['verdict']}", soft_wrap=True)
    else:
        console.print("No rows were held out, so nothing is known of its errors.")
    measured = held_out and (refit or "folds" in held_out)
    whole = "all rows, after the measurement" if measured else counted(fitted.n_train, "row")
    console.print(f"wrote {path}, trained on {whole}; {fitted.seconds:.1f} s in all", soft_wrap=True)
