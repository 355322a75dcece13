"""`energate predict`, `score` and `refine`: what a saved model says of each row of a table."""

import glob
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from energate.cli._shell import (
    FILES,
    BasePrefix,
    BaseScores,
    Delimiter,
    Device,
    Encoding,
    Model,
    Part,
    Precision,
    ended_by_terminate,
    is_model,
    loaded,
    messages,
    note,
    opened,
    output,
    plainly,
    progress,
    say,
)
from energate.errors import InputError
from energate.files import check_output

_GO_ON = "Nothing was written; a file that was there is as it was."

_Data = Annotated[
    list[str],
    typer.Argument(metavar="DATA...", help=f"{FILES}; or several, as names or 'parts/*.parquet'."),
]
_Out = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="The file to write, or - for CSV on stdout; beside DATA. Of several files: the folder for parts.",
    ),
]
_Prefix = Annotated[str, typer.Option(metavar="TEXT", help="Put before the names of all new columns.")]
_Reject = Annotated[
    float | None,
    typer.Option(metavar="RATE", help="Also reject: 1 for rows as strange as this share of rows held out."),
]
_Json = Annotated[bool, typer.Option("--json", help="Say what was done as JSON, for other programs.")]
_MANY = "Many files"
_Engine = Annotated[
    Literal["serial", "processes", "ray"] | None,
    typer.Option(help="Who works: this process, several here, or Ray.", rich_help_panel=_MANY),
]
_Workers = Annotated[int | None, typer.Option(help="How many workers; as processors.", rich_help_panel=_MANY)]
_Shard = Annotated[
    str | None,
    typer.Option(metavar="K/N", help="Only share K of N, from 1: one command for each.", rich_help_panel=_MANY),
]
_Address = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Of a Ray cluster: auto, or ray://...", rich_help_panel=_MANY)
]
_Gpus = Annotated[float | None, typer.Option(help="GPUs of each worker of Ray.", rich_help_panel=_MANY)]
_OnError = Annotated[
    Literal["fail", "skip"] | None,
    typer.Option(help="At a row that cannot be used: end, or leave it out and list it.", rich_help_panel=_MANY),
]
_TaskRows = Annotated[
    int | None,
    typer.Option(metavar="N", help="Rows of a part, at most, where row groups allow.", rich_help_panel=_MANY),
]


@plainly(_GO_ON)
def predict(
    model: Model,
    data: _Data,
    out: _Out = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities/--no-probabilities", help="Also a column p_CLASS for each class or label.")
    ] = True,
    alpha: Annotated[
        float | None,
        typer.Option(help="Also set_CLASS: the classes that a row may be of, wrong for at most this share of rows."),
    ] = None,
    reject: _Reject = None,
    prefix: _Prefix = "",
    part: Part = "test",
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    device: Device = "auto",
    precision: Precision = None,
    engine: _Engine = None,
    workers: _Workers = None,
    shard: _Shard = None,
    address: _Address = None,
    gpus_per_worker: _Gpus = None,
    on_error: _OnError = None,
    task_rows: _TaskRows = None,
    as_json: _Json = False,
) -> None:
    """Predict the class, or the labels, of each row of a table.

    Columns are matched by their names; the others, such as ids, are carried along.  A file may be larger than memory.
    Adds prediction, or predicted_LABEL for each label; an anomaly model predicts 1 for normal rows, -1 for others.
    p_value says how strange a row is: the share of rows held out that the model likes no more.  A model of pictures
    also takes a folder of them, or files.

    Example: energate predict flowers.zip new.csv -o predicted.csv
    """
    many = _many(engine, workers, shard, address, gpus_per_worker, on_error, task_rows)
    leave_out = () if probabilities else ("probabilities",)
    read = {"part": part, "delimiter": delimiter, "encoding": encoding, "precision": precision}
    levels = _given(alpha=alpha, reject=reject)
    options: dict[str, Any] = {"prefix": prefix, "leave_out": leave_out, "levels": levels}
    _apply(model, device, data, out, as_json, many, read, command="predict", **options)


@plainly(_GO_ON)
def score(
    model: Model,
    data: _Data,
    out: _Out = None,
    p_values: Annotated[
        bool, typer.Option("--p-values/--no-p-values", help="Also p_value: the share of rows held out liked no more.")
    ] = True,
    fdr: Annotated[
        float | None,
        typer.Option(
            help="Also discovery: 1 for strange rows, of which at most this share is normal; reads DATA twice."
        ),
    ] = None,
    reject: _Reject = None,
    prefix: _Prefix = "",
    part: Part = "test",
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    device: Device = "auto",
    precision: Precision = None,
    engine: _Engine = None,
    workers: _Workers = None,
    shard: _Shard = None,
    address: _Address = None,
    gpus_per_worker: _Gpus = None,
    on_error: _OnError = None,
    task_rows: _TaskRows = None,
    as_json: _Json = False,
) -> None:
    """Say how much a model likes each row of a table: higher is better.

    A classifier adds energy_CLASS for each class, and liking, how much any class likes the row.  An anomaly model adds
    score, which is below 0 for anomalies, and is_inlier.

    Example: energate score engines.zip today.parquet -o scored.parquet
    """
    many = _many(engine, workers, shard, address, gpus_per_worker, on_error, task_rows)
    read = {"part": part, "delimiter": delimiter, "encoding": encoding, "precision": precision}
    leave_out = () if p_values else ("p_value",)
    levels = _given(reject=reject)
    options: dict[str, Any] = {"prefix": prefix, "leave_out": leave_out, "levels": levels}
    if fdr is not None:
        if is_job(data, many):
            raise InputError("--fdr looks at all rows of one table at once; many files have p_value, and --reject.")
        options["fdr"] = fdr
    _apply(model, device, data, out, as_json, many, read, command="score", **options)


@plainly(_GO_ON)
def refine(
    model: Model,
    data: _Data,
    out: _Out = None,
    base_prefix: BasePrefix = None,
    base_scores: BaseScores = "probabilities",
    with_base: Annotated[
        bool, typer.Option("--with-base", help="Also base_LABEL: the base's own probabilities, calibrated.")
    ] = False,
    prefix: _Prefix = "",
    part: Part = "test",
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    device: Device = "auto",
    engine: _Engine = None,
    workers: _Workers = None,
    shard: _Shard = None,
    address: _Address = None,
    gpus_per_worker: _Gpus = None,
    on_error: _OnError = None,
    task_rows: _TaskRows = None,
    as_json: _Json = False,
) -> None:
    """Refine predictions of several labels, so that they make sense together.

    Without --base-prefix the model's own base predicts first.  Adds refined_LABEL, the probability, and
    predicted_LABEL, 0 or 1.

    Example: energate refine labels.zip scored.csv --base-prefix p_ -o refined.csv
    """
    leave_out = () if with_base else ("base",)
    many = _many(engine, workers, shard, address, gpus_per_worker, on_error, task_rows)
    read = {"part": part, "delimiter": delimiter, "encoding": encoding, "precision": None}
    options = {"prefix": prefix, "leave_out": leave_out}
    _apply(model, device, data, out, as_json, many, read, (base_prefix, base_scores), command="refine", **options)


# --- the output --------------------------------------------------------------------------------------------------


def _given(**levels: float | None) -> dict[str, float]:
    return {name: level for name, level in levels.items() if level is not None}


_ENDINGS = {"predict": "predicted", "score": "scored", "refine": "refined"}


def _apply(
    model: Path,
    device: str,
    data: list[str],
    out: str | None,
    as_json: bool,
    many: dict[str, Any],
    read: dict[str, Any],
    base: tuple[str | None, str] = (None, ""),
    *,
    command: str,
    **options: Any,
) -> None:
    if is_job(data, many):
        if read["delimiter"] or read["encoding"]:
            raise InputError("--delimiter and --encoding are for one file; those of many are guessed, each for itself.")
        if read["precision"]:
            raise InputError("--precision is for one file; many are scored as the model was fitted. Leave it out.")
        more = {**many, "part": read["part"]}
        _apply_many(model, data, out, as_json, base, command=command, device=device, **more, **options)
        return
    from energate.tables.pictures import is_picture
    from energate.tables.values import counted
    from energate.tables.writing import check_kind

    path = Path(data[0])
    target = None if out == "-" or (not out and data[0] == "-") else Path(out) if out else _beside(path, command)
    is_model(model)
    if target is not None:
        check_kind(target)
        check_output(target, data)
    precision = read.pop("precision")
    # What files of pictures are brought to is the model's affair.
    pictures = is_picture(path)
    source = ([Path(each) for each in data] if len(data) > 1 else path) if pictures else opened(path, **read)
    with messages().status("starting"):
        from energate.views.applying import apply_table
    known = loaded(model, device, precision)
    columns = known.base(command, *base)
    if target is None and as_json:
        raise InputError("-o - and --json both write to stdout. Name a file, or leave --json out.")
    with (
        ended_by_terminate(),
        _to_stdout() if target is None else nullcontext(target) as file,
        progress(path.name) as tell,
    ):
        done = apply_table(known.table, source, file, command=command, base=columns, tell=tell, **many, **options)
    took = f"{counted(done.n_rows, 'row')} in {done.seconds:.1f} s"
    if as_json:
        found = {"output": str(target), "rows": done.n_rows, "columns": done.new, "notes": done.notes}
        typer.echo(json.dumps({**found, "seconds": round(done.seconds, 3)}, indent=2))
        return
    note(done.notes)
    if target is None:
        say(took)
    else:
        output().print(f"wrote {target}: {took}; new: {_some(done.new)}", soft_wrap=True)


def _beside(data: Path, command: str) -> Path:
    """A file beside the table, of its kind; of kinds that are only read, CSV."""
    from energate.tables.writing import ENDINGS

    packed = data.suffix.lower() == ".gz"
    stem, kind = (Path(data.stem).stem, Path(data.stem).suffix) if packed else (data.stem, data.suffix)
    kind = f"{kind}.gz" if packed else kind if kind.lower() in ENDINGS else ".csv"
    return data.with_name(f"{stem}-{_ENDINGS[command]}{kind}")


# --- many files --------------------------------------------------------------------------------------------------


def is_job(data: list[str], many: dict[str, Any]) -> bool:
    """Whether the work is a job over many files; pictures, though many, are one table, and take --on-error alone."""
    from energate.tables.pictures import are_pictures

    if not are_pictures([Path(each) for each in data]):
        return bool(many) or is_many(data)
    others = [f"--{name.replace('_', '-')}" for name in many if name != "on_error"]
    if others:
        raise InputError(f"{others[0]} is for jobs over many tables, and no folder of pictures. Leave it out.")
    return False


def is_many(data: list[str]) -> bool:
    """Whether this is a job of its own: several files, a pattern, a folder, or an address elsewhere."""
    one = Path(data[0])
    return len(data) > 1 or "://" in data[0] or one.is_dir() or (glob.has_magic(data[0]) and not one.exists())


def _many(
    engine: str | None,
    workers: int | None,
    shard: str | None,
    address: str | None,
    gpus_per_worker: float | None,
    on_error: str | None,
    task_rows: int | None,
) -> dict[str, Any]:
    """The options of jobs that were given."""
    given: dict[str, Any] = {"engine": engine, "workers": workers, "address": address, "on_error": on_error}
    given |= {"gpus_per_worker": gpus_per_worker, "task_rows": task_rows, "shard": shard and _shard(shard)}
    if engine != "ray" and (address or gpus_per_worker):
        raise InputError("--address and --gpus-per-worker are for --engine ray.")
    if workers is not None and engine in (None, "serial"):
        raise InputError("--workers are for --engine processes and --engine ray; serial has one.")
    return {name: value for name, value in given.items() if value is not None}


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None:
        raise InputError(f"--shard must be K/N, as 3/16; got {text!r}.")
    return int(found[1]), int(found[2])


def _apply_many(
    model: Path, data: list[str], out: str | None, as_json: bool, base: tuple[str | None, str], **options: Any
) -> None:
    if out in (None, "-"):
        raise InputError("Many files become a folder of parts: name it with -o OUT_FOLDER.")
    from energate.jobs import apply_files
    from energate.views.applying import BaseColumns

    columns = None if base[0] is None else BaseColumns(base[0], base[1])
    with (
        plainly("Run the same command to go on; parts that are there are not made again."),
        ended_by_terminate(),
        _parts() as tell,
    ):
        done = apply_files(model, data, str(out), base=columns, tell=tell, **options)
    if as_json:
        found = {**vars(done), "path": str(done.path), "seconds": round(done.seconds, 3)}
        typer.echo(json.dumps(found, indent=2))
        return
    parts = f"{done.n_made} of {done.n_tasks} parts made" + (f", {done.n_there} were there" if done.n_there else "")
    left_out = f", {done.n_skipped:,} left out" if done.n_skipped else ""
    state = "complete" if done.closed else "not complete yet"
    output().print(
        f"{done.path}: {parts}; {done.n_rows:,} rows{left_out} in {done.seconds:.1f} s; {state}", soft_wrap=True
    )


@contextmanager
def _parts() -> Iterator[Callable[[int, int, int], None]]:
    console = messages()
    if not console.is_terminal:
        yield lambda *_: None
        return
    with console.status("starting") as status:
        yield lambda done, of, rows: status.update(f"{done} of {of} parts, {rows:,} rows")


@contextmanager
def _to_stdout() -> Iterator[Any]:
    """stdout, whose reader may leave when it has enough."""
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        sys.stdout = None  # or Python tries once more to write the rest
        raise typer.Exit(1) from error


def _some(names: list[str], n_most: int = 6) -> str:
    return ", ".join(names[:n_most]) + (f" and {len(names) - n_most:,} more" if len(names) > n_most else "")
