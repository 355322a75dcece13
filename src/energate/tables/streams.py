"""Tables of many files that memory does not hold: samples by one pass, and rows in another order for every epoch.

A row is known by its file and its number there.  A hash of both says whether it is held out, and what its place in the
order of a sample is: the same row meets the same fate however the files are read.
"""

import glob as _glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.tables.columns import CodedRows
from energate.tables.reading import Batch, ParquetSource, Source, n_rows, open_table
from energate.tables.values import listed

Array = NDArray[np.float64]
_FILE = np.uint64(40)  # bits for the number of a row in its file
GROUP_ROWS = 20_000  # row groups are read together up to so many rows


@dataclass(frozen=True)
class Stretch:
    """Rows that are read together: some row groups of a Parquet file, or a file."""

    file: int
    row_groups: tuple[int, ...]
    first_row: int


class Stream:
    """The rows of files that have the same columns."""

    def __init__(self, paths: Sequence[Path], part: str = "train") -> None:
        self.paths, self.part = list(paths), part
        first = self._source(Stretch(0, (), 0))
        self.names, self.path = first.names, self.paths[0]
        self.nominal, self.groups = first.nominal, first.groups
        self.stretches = [each for file in range(len(self.paths)) for each in self._stretches(file)]

    def _source(self, stretch: Stretch) -> Source:
        path = self.paths[stretch.file]
        if stretch.row_groups:
            return ParquetSource(path, row_groups=stretch.row_groups, first_row=stretch.first_row)
        return open_table(path, self.part)

    def _stretches(self, file: int) -> Iterator[Stretch]:
        source = self._source(Stretch(file, (), 0))
        if source.names != self.names:
            other = self.paths[file].name
            raise InputError(
                f"All files must have the columns of {self.path.name}, {listed(self.names)}; {other} has others."
            )
        if not isinstance(source, ParquetSource):
            yield Stretch(file, (), 0)
            return
        groups, first, here = list[int](), 0, 0
        for number, rows in enumerate(source.group_rows()):
            if groups and here + rows > GROUP_ROWS:
                yield Stretch(file, tuple(groups), first)
                groups, first, here = [], first + here, 0
            groups.append(number)
            here += rows
        if groups:
            yield Stretch(file, tuple(groups), first)

    def batches(self, stretches: Sequence[Stretch] | None = None) -> Iterator[tuple[NDArray[np.uint64], Batch]]:
        """Rows, and what each is known by."""
        for stretch in self.stretches if stretches is None else stretches:
            done = stretch.first_row
            for batch in self._source(stretch).batches():
                if n := n_rows(batch):
                    yield (np.uint64(stretch.file) << _FILE) + np.arange(done, done + n, dtype=np.uint64), batch
                    done += n


def open_tables(patterns: str | Path | Sequence[str | Path], part: str = "train") -> Stream:
    """The files that names and patterns with * stand for, as one table that may be larger than memory."""
    given = [patterns] if isinstance(patterns, str | Path) else list(patterns)
    paths = [Path(each) for pattern in given for each in sorted(_glob.glob(str(pattern))) or [str(pattern)]]
    return Stream(paths, part)


def chances(rows: NDArray[np.uint64], seed: int) -> Array:
    """A number in [0, 1) for each row by a hash (splitmix64): it looks drawn, and is always the same."""
    with np.errstate(over="ignore"):
        z = rows + np.uint64(0x9E3779B97F4A7C15) * np.uint64(2 * seed + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


# --- samples -----------------------------------------------------------------------------------------------------


class Sample:
    """A uniform sample of the rows that it is offered, ``size`` of them: those with the smallest keys."""

    def __init__(self, size: int) -> None:
        self.size, self.n_offered, self.worst = size, 0, 1.0
        self.keys, self.parts = list[Array](), list[Batch]()

    def offer(self, batch: Batch, keys: Array) -> None:
        """Rows, and a key in [0, 1) for each."""
        self.n_offered += len(keys)
        good = np.flatnonzero(keys < self.worst)
        if len(good):
            self.keys.append(keys[good])
            self.parts.append(taken(batch, good))
        if sum(map(len, self.keys)) > 2 * self.size:
            self._cut()

    def _cut(self) -> None:
        keys, rows = np.concatenate(self.keys), joined(self.parts)
        if len(keys) > self.size:
            best = np.sort(np.argpartition(keys, self.size)[: self.size])
            keys, rows = keys[best], taken(rows, best)
            self.worst = float(keys.max())
        self.keys, self.parts = [keys], [rows]

    def rows(self) -> Batch:
        """The sample, in the order of the files."""
        if not self.parts:
            return {}
        self._cut()
        return self.parts[0]


def taken(batch: Batch, index: NDArray[np.int64]) -> Batch:
    """Some rows of a batch."""
    return {
        name: values[index] if isinstance(values, np.ndarray) else values.take(_arrow(index))
        for name, values in batch.items()
    }


def _arrow(index: NDArray[np.int64]) -> Any:
    return require("pyarrow", "tables").array(index)


def joined(parts: Sequence[Batch]) -> Batch:
    """Batches, of which there is at least one, as one whose columns are arrays in one piece."""
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: list[Any]) -> Any:
    return (
        np.concatenate(parts) if isinstance(parts[0], np.ndarray) else require("pyarrow", "tables").concat_arrays(parts)
    )


# --- rows to train on --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamedRows(CodedRows):
    """Rows that coded columns made, of a table that has ``times`` as many: ``refill(epoch)`` gives others, (n, d).

    Row i of them is of the class of row i here.
    """

    refill: Callable[[int], Array]
    times: float


class Refill:
    """Rows for an epoch: stretches in an order drawn anew for every pass, as many as fill the places; then shuffled.

    A function of the epoch alone, so that a training that was interrupted goes on with the same rows.
    """

    def __init__(
        self,
        stream: Stream,
        read: Callable[[NDArray[np.uint64], Batch], tuple[Array, NDArray[np.int64]]],
        matrix: Array,
        labels: NDArray[np.int64],
        times: float,
        seed: int,
    ) -> None:
        self.stream, self.read, self.matrix, self.labels, self.seed = stream, read, matrix, labels, seed
        self.n_chunks = max(1, min(len(stream.stretches), round(times)))

    def __call__(self, epoch: int) -> Array:
        number, chunk = divmod(epoch, self.n_chunks)
        order = np.random.default_rng([self.seed, number]).permutation(len(self.stream.stretches))
        mine = [self.stream.stretches[i] for i in np.array_split(order, self.n_chunks)[chunk]]
        parts = [self.read(*each) for each in self.stream.batches(mine)]
        draw = np.random.default_rng([self.seed, number, chunk])
        found = self.matrix.copy()  # places of a class that has no rows here keep those of the sample
        X, labels = np.concatenate([X for X, _ in parts]), np.concatenate([labels for _, labels in parts])
        for label in np.unique(labels):
            places, rows = np.flatnonzero(self.labels == label), np.flatnonzero(labels == label)
            rows = draw.permutation(rows)[: len(places)]
            found[draw.permutation(places)[: len(rows)]] = X[rows]
        return found
