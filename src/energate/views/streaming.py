"""`fit_stream`: a classifier from a table that is larger than memory.

One pass counts rows and classes, and draws samples: rows to learn columns and scales from, rows to choose epochs by and
rows to measure on.  Then every epoch is trained on other rows: some stretches of the files, drawn at random.
"""

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.estimators.edge import resolve_device
from energate.tables import CellError, CodedRows, classes_of, learn_columns
from energate.tables.reading import Batch
from energate.tables.streams import Array, Refill, Sample, Stream, StreamedRows, chances, open_tables, taken
from energate.tables.values import words
from energate.views.fitting import FittedTable, measured
from energate.views.view import tasks

MEMORY = 2**30
AT_LEAST, PYTHON = 2_000, 400 * 2**20  # rows in memory; bytes that Python and torch take
COPIES = 8  # of the rows in memory, at the worst moment, as 8-byte numbers
VALID, MOST_VALID, MOST_TEST = 0.1, 20_000, 100_000
UNITS = ("trunk", "mean", "covariance", "mean-covariance")


def fit_stream(
    data: str | Path | Sequence[str | Path] | Stream,
    target: str,
    *,
    memory: int | str = MEMORY,
    units: str = "trunk",
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    part: str = "train",
    test_fraction: float = 0.2,
    epochs: int | None = None,
    device: str = "auto",
    random_state: int = 0,
) -> FittedTable:
    """Fit a classifier to files that memory need not hold; as `energate.fit_table` for all else.

    Parameters
    ----------
    data : names and patterns (``"parts/*.parquet"``), or what `energate.tables.open_tables` gave.
    memory : bytes, or as ``"1GB"``: of all that the fit takes.  What fits into it is trained on as in `fit_table`.
    units : ``"trunk"``, ``"mean"``, ``"covariance"`` or ``"mean-covariance"``.
    epochs : of each stage, over as many rows as memory holds; by default as many passes through all rows as in memory.

    Classes are counted exactly.  Fill values, scales and categories come from a uniform sample of the rows in memory:
    the rank of a quantile from n rows has a standard error of at most 0.5 / sqrt(n).
    """
    began = time.monotonic()
    resolve_device(device)
    if units not in UNITS:
        raise InputError(f"More rows than memory can train {', '.join(UNITS)}; got {units!r}.")
    stream = data if isinstance(data, Stream) else open_tables(data, part)
    if target not in stream.names:
        raise InputError(f"There is no column {target!r} to be the target; there are {', '.join(stream.names[:10])}.")
    size = rows_in(bytes_of(memory), len(stream.names))
    shares = (test_fraction, test_fraction + VALID * (1 - test_fraction))
    parts = [Sample(min(MOST_TEST, size)), Sample(min(MOST_VALID, size)), Sample(size)]
    counts, counted = Counter[str | None](), list[str]()
    for first, (rows, batch) in enumerate(stream.batches()):
        if not first:
            counted = _counters(batch, target, drop)
        codes, different = words(batch[target])
        for code, n in zip(*np.unique(codes, return_counts=True), strict=True):
            counts[different[code]] += int(n)
        which, keys = np.digitize(chances(rows, random_state), shares), chances(rows, random_state + 1)
        for number, sample in enumerate(parts):
            here = np.flatnonzero(which == number)
            sample.offer(taken(batch, here), keys[here])
    if None in counts:
        raise InputError(f"{target!r} must be there in every row ({counts[None]:,} lack it).")
    test, valid, train = (sample.rows() for sample in parts)
    left_out = [*drop, *(name for name in counted if name not in keep)]
    try:
        columns, notes = learn_columns(
            train,
            targets=[target],
            drop=left_out,
            keep=keep,
            categories=categories,
            coded=True,
            declared=stream.nominal,
        )
        X, y = columns.matrix(train), classes_of(train, target)
        others = [(columns.matrix(rows), classes_of(rows, target)) if rows else None for rows in (valid, test)]
    except CellError as error:
        raise InputError(error.told("in a sample of the rows")) from error
    notes = [*notes, *(f"{name!r} is left out: it counts the rows (--keep takes it)." for name in counted)]
    classes, labels = np.unique(y, return_inverse=True)
    known = dict(zip(map(str, classes.tolist()), range(len(classes)), strict=True))
    _check_classes(known, counts, target)

    def read(rows: NDArray[np.uint64], batch: Batch) -> tuple[Array, NDArray[np.int64]]:
        here = np.flatnonzero(np.digitize(chances(rows, random_state), shares) == len(shares))
        some = taken(batch, here)
        codes, different = words(some[target])
        return columns.matrix(some), np.array([known[str(each)] for each in different], dtype=np.int64)[codes]

    times = parts[2].n_offered / len(X)
    given: CodedRows = CodedRows(X, columns)
    if times > 1:
        given = StreamedRows(X, columns, Refill(stream, read, X, labels, times, random_state), times)
    trained = tasks()["classify"].trained
    assert trained is not None
    model = trained.build(device, random_state, epochs, units=units)
    validation = {} if others[0] is None else {"X_valid": CodedRows(others[0][0], columns), "y_valid": others[0][1]}
    model.fit(given, y, **validation)
    held_out = {} if others[1] is None else measured(model, *others[1])
    n_all = sum(counts.values())
    seconds = time.monotonic() - began
    return FittedTable(model, columns, notes, n_all, parts[2].n_offered, held_out, seconds)


def bytes_of(memory: int | str) -> int:
    """A number of bytes from words such as 1GB or 500 MB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    if found is None:
        raise InputError(f"`memory` must be a number of bytes, or such as 1GB; got {memory!r}.")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def rows_in(memory: int, n_columns: int) -> int:
    """How many rows may be in memory at once."""
    return max(AT_LEAST, int(max(memory - PYTHON, memory // 4) / (8 * COPIES * (n_columns + 2))))


def _counters(batch: Batch, target: str, drop: Sequence[str]) -> list[str]:
    """Columns that count the rows, as the first ones show: a sample of them would not."""
    found = list[str]()
    for name in (name for name in batch if name != target and name not in drop):
        try:
            columns, _ = learn_columns({name: batch[name], target: batch[target]}, targets=[target])
        except InputError as error:
            if "counts the rows" in str(error):
                found.append(name)
            continue
        assert columns.names == [name]
    return found


def _check_classes(known: dict[str, int], counts: Counter[str | None], target: str) -> None:
    names = {_plain(each) for each in counts}
    absent = sorted(names - known.keys())
    if absent:
        raise InputError(
            f"The class {absent[0]!r} of {target!r} has so few rows that a sample of those in memory has none. Give "
            "more --memory, or leave its rows out."
        )


def _plain(name: str | None) -> str:
    """A class as `classes_of` reads it: whole numbers without a point."""
    try:
        number = float(str(name))
    except ValueError:
        return str(name)
    return str(int(number)) if number == int(number) else str(name)
