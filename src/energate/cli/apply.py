"""`energate predict`, `score` and `refine`: what a saved model says of each row of a table."""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energate.cli._console import messages, output, plainly, say
from energate.cli._options import BasePrefix, BaseScores, Data, Device, Model, Part
from energate.errors import InputError

if TYPE_CHECKING:
    from energate.tables.reading import Batch, Source

_GO_ON = "Nothing was written; a file that was there is as it was."
#: the columns that a model adds to rows: from the matrix (n, d) and the batch that it was made of
Adds = Callable[[Any, "Batch"], dict[str, Any]]

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
    from energate.cli import _columns, _loading

    loaded = _loading.Loaded.of(model, device)
    adds = _columns.predictions(loaded, probabilities)
    _apply(loaded, adds, data, out, "predicted", prefix, part, as_json)


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
    from energate.cli import _columns, _loading

    loaded = _loading.Loaded.of(model, device)
    _apply(loaded, _columns.scores(loaded), data, out, "scored", prefix, part, as_json)


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
    from energate.cli import _columns, _loading

    loaded = _loading.Loaded.of(model, device)
    adds = _columns.refined(loaded, base_prefix, base_scores, with_base)
    _apply(loaded, adds, data, out, "refined", prefix, part, as_json)


# --- batch by batch ----------------------------------------------------------------------------------------------


def _apply(
    loaded: Any, adds: Adds, data: Path, out: str | None, word: str, prefix: str, part: str, as_json: bool
) -> None:
    from energate.tables.reading import open_table
    from energate.tables.writing import check_kind

    began = time.monotonic()
    source = open_table(data, part)
    columns = loaded.match(source)
    target = None if out == "-" else Path(out) if out else data.with_name(f"{data.stem}-{word}{data.suffix}")
    if target is None and as_json:
        raise InputError("-o - and --json both write to stdout. Name a file, or leave --json out.")
    if target is not None:
        check_kind(target)
        if target.exists() and target.samefile(data):
            raise InputError(f"{target} is DATA itself, which is not overwritten. Choose another --output.")
    with _ended_by_terminate(), _file(target) as file, _progress(data.name) as tell:
        n_rows, names = _write(source, columns, adds, file, ".csv" if target is None else target.suffix, prefix, tell)
    seconds = time.monotonic() - began
    if as_json:
        found = {"output": str(target), "rows": n_rows, "columns": names, "seconds": round(seconds, 3)}
        typer.echo(json.dumps(found, indent=2))
    elif target is None:
        say(f"{n_rows:,} rows in {seconds:.1f} s")
    else:
        output().print(f"wrote {target}: {n_rows:,} rows in {seconds:.1f} s; new: {_some(names)}", soft_wrap=True)


def _write(
    source: "Source", columns: Any, adds: Adds, file: Any, kind: str, prefix: str, tell: Callable[[int], None]
) -> tuple[int, list[str]]:
    """Write every batch with its new columns: the number of rows, and the names of the new columns."""
    from energate.tables import CellError
    from energate.tables.reading import n_rows
    from energate.tables.writing import as_printed, open_writer

    done, names = 0, list[str]()
    with open_writer(kind.lower(), file, source) as writer:
        for batch in source.batches():
            if not n_rows(batch):
                continue
            try:
                X = columns.matrix(batch)
                new = {f"{prefix}{name}": values for name, values in adds(X, batch).items()}
            except CellError as error:
                raise source.told(error, done) from error
            if not names:
                names = list(new)
                _check_clash(names, source.names, prefix)
            writer.write({**_carried(batch, columns, kind.lower()), **as_printed(new, kind.lower())})
            done += len(X)
            tell(done)
        if not done:
            raise InputError(f"{source.path.name} has no rows.")
    return done, names


def _carried(batch: "Batch", columns: Any, kind: str) -> "Batch":
    """The columns of the table as they are; but text that was read as numbers is numbers where a format has types."""
    from energate.tables import NumberColumn
    from energate.tables.cells import is_text, numbers
    from energate.tables.reading import SEPARATORS

    if kind in SEPARATORS:
        return batch
    taken = [column.name for column in columns.inputs if isinstance(column, NumberColumn)]
    return {**batch, **{name: numbers(batch[name], name) for name in taken if is_text(batch[name])}}


def _check_clash(new: list[str], old: list[str], prefix: str) -> None:
    from energate.tables.cells import listed

    twice = [name for name in new if name in set(old)]
    if twice:
        raise InputError(
            f"DATA has the columns {listed(twice)} already, which would be new. Give the new ones another prefix: "
            f"--prefix {prefix}new_."
        )


# --- the output --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _file(target: Path | None) -> Iterator[Any]:
    """A file that gets its name when it is complete; or stdout, whose reader may leave when it has enough."""
    if target is not None:
        from energate.datasets._store import written_whole

        with written_whole(target) as file:
            yield file
        return
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        sys.stdout = None  # or Python tries once more to write the rest
        raise typer.Exit(1) from error


@contextlib.contextmanager
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


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[int], None]]:
    console = messages()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"{name}: reading") as status:
        yield lambda n_rows: status.update(f"{name}: {n_rows:,} rows")


def _some(names: list[str], n_most: int = 6) -> str:
    return ", ".join(names[:n_most]) + (f" and {len(names) - n_most:,} more" if len(names) > n_most else "")
