"""Tables of many files that memory does not hold: `open_tables`, rows that are drawn by hash, and uniform samples.

A row is known by the name of its file and its number there.  A hash of both says whether it is held out, and what its
place in the order of a sample is: the same row meets the same fate however the files are named, ordered and read.
"""

import copy
import glob as _glob
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.tables.reading import Batch, ParquetSource, Source, n_rows, open_table
from energate.tables.values import CellError, counted, listed

Array = NDArray[np.float64]
Ids = NDArray[np.uint64]
T = TypeVar("T")
GROUP_ROWS = 20_000  # row groups are read together up to so many rows
MEMORY = 2**30
AT_LEAST, PYTHON = 2_000, 400 * 2**20  # rows in memory; bytes that Python and torch take
COPIES = 8  # of the rows in memory, at the worst moment, as 8-byte numbers


@dataclass(frozen=True)
class Stretch:
    """Rows that are read together: some row groups of a Parquet file, or a file."""

    file: int
    row_groups: tuple[int, ...]
    first_row: int


@dataclass(frozen=True)
class Wanted:
    """What is made of the columns: those to be predicted, to leave out, to take all the same, and as categories."""

    target: str | None = None
    targets: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def predicted(self) -> list[str]:
        """The columns that a row must have, and a model does not see."""
        return [*self.targets, *([] if self.target is None else [self.target])]

    @property
    def named(self) -> list[str]:
        """All columns that have to be there."""
        return [*self.predicted, *self.drop, *self.keep, *self.categories]


class Stream:
    """The rows of files that have the same columns, to which an estimator is fitted: ``estimator.fit(stream)``.

    ``names`` are the columns.  ``memory`` is in bytes, of all that a fit takes.  Where it is a part of another (see
    `split`), it has the rows whose chance (see `chances`) lies ``between`` two numbers.
    """

    def __init__(self, paths: Sequence[Path], part: str = "train", memory: int | str = MEMORY, seed: int = 0) -> None:
        self.part, self.memory, self.seed = part, bytes_of(memory), seed
        self.wanted, self.between = Wanted(), (0.0, 1.0)
        names = _names(paths)
        if len(set(names)) < len(names):
            raise InputError(f"A file must be given once; {listed([n for n in names if names.count(n) > 1])} is not.")
        order = sorted(range(len(names)), key=names.__getitem__)  # whatever the order that they were given in
        self.paths = [paths[i] for i in order]
        self.path = self.paths[0]
        self._ids = [_number(names[i]) for i in order]
        first = self._source(Stretch(0, (), 0))
        self.names, self.nominal, self.groups, self.index = first.names, first.nominal, first.groups, first.index
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

    @property
    def size(self) -> int:
        """How many rows may be in memory at once."""
        return rows_in(self.memory, len(self.names))

    @property
    def told(self) -> str:
        """Its files, in words."""
        more = len(self.paths) - 1
        return self.path.name + (f" and {counted(more, 'other file')}" if more else "")

    def batches(self, stretches: Sequence[Stretch] | None = None) -> Iterator[tuple[Ids, Batch]]:
        """Rows of the files, those of other parts among them, and what each is known by."""
        for stretch in self.stretches if stretches is None else stretches:
            done = stretch.first_row
            for batch in self._source(stretch).batches():
                if n := n_rows(batch):
                    with np.errstate(over="ignore"):
                        yield self._ids[stretch.file] + np.arange(done, done + n, dtype=np.uint64), batch
                    done += n

    def read(self, read: Callable[[Ids, Batch], T], stretches: Sequence[Stretch]) -> list[T]:
        """What a function makes of the batches of some stretches; a cell that it cannot read is told with its file."""
        found = list[T]()
        for stretch in stretches:
            try:
                found += [read(*each) for each in self.batches([stretch])]
            except CellError as error:
                raise InputError(error.told(f"in {self.paths[stretch.file].name}")) from error
        return found

    def wanting(self, wanted: Wanted) -> Self:
        """The same stream, of whose columns something else is made."""
        for name in wanted.named:
            if name not in self.names:
                what = "to be the target" if name in wanted.predicted else "that could be meant"
                raise InputError(f"There is no column {name!r} {what}; there are {listed(self.names)}.")
        return self._with(wanted=wanted)

    def _with(self, **others: Any) -> Self:
        found = copy.copy(self)
        vars(found).update(others)
        return found

    # --- parts, which are drawn by hash ----------------------------------------------------------------------------

    def split(self, share: float) -> tuple[Self, Self]:
        """Two streams: of the rows but for a share of them, to train on, and of that share, to measure on."""
        if not 0 <= share < 1:
            raise InputError(f"`share` must be at least 0 and below 1; got {share!r}.")
        low, high = self.between
        cut = self.at(share)
        return self._with(between=(cut, high)), self._with(between=(low, cut))

    def at(self, share: float) -> float:
        """The chance below which this share of its rows lies."""
        low, high = self.between
        return low + share * (high - low)

    def mine(self, rows: Ids) -> tuple[NDArray[np.int64], Array]:
        """Which of some rows are of this part, and their chances."""
        found = chances(rows, self.seed)
        here = np.flatnonzero((found >= self.between[0]) & (found < self.between[1]))
        return here, found[here]

    def sample(self, most: int) -> "Sample":
        """A uniform sample of its rows, all if they are no more than ``most``; it also knows how many there are."""
        found = Sample(most)
        for rows, batch in self.batches():
            here, _ = self.mine(rows)
            found.offer(taken(batch, here), chances(rows[here], self.seed + 1))
        return found


def open_tables(
    patterns: str | Path | Sequence[str | Path],
    target: str | None = None,
    *,
    targets: Sequence[str] = (),
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    memory: int | str = MEMORY,
    part: str = "train",
    random_state: int = 0,
) -> Stream:
    """The files that names and patterns with * stand for, as one table that may be larger than memory.

    Parameters
    ----------
    patterns : ``"parts/*.parquet"``, names, or several of them.
    target : the column with the classes, for an `EnergyClassifier`; an `EnergyScorer` does not see it.
    targets : columns of 0 and 1, the labels, for an `EnergyRefiner`.
    drop, keep, categories : columns to leave out, to take though they look like ids, and to take as categories.
    memory : bytes, or as ``"1GB"``: of all that a fit takes.
    part : of NPZ files with several: train, valid or test.
    random_state : of the hash that draws rows.
    """
    given = [patterns] if isinstance(patterns, str | Path) else list(patterns)
    paths = [Path(each) for pattern in given for each in sorted(_glob.glob(str(pattern))) or [str(pattern)]]
    if not paths:
        raise InputError("A stream needs files: names, or patterns such as 'parts/*.parquet'; got none.")
    wanted = Wanted(target, tuple(targets), tuple(drop), tuple(keep), tuple(categories))
    return Stream(paths, part, memory, random_state).wanting(wanted)


def bytes_of(memory: int | str) -> int:
    """A number of bytes from words such as 1GB or 500 MB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    if found is None:
        raise InputError(f"`memory` must be a number of bytes, or such as 1GB; got {memory!r}.")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def rows_in(memory: int, n_columns: int) -> int:
    """How many rows may be in memory at once."""
    return max(AT_LEAST, int(max(memory - PYTHON, memory // 4) / (8 * COPIES * (n_columns + 2))))


def _names(paths: Sequence[Path]) -> list[str]:
    """The files by what tells them apart: a folder that is moved is the same table."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    above = Path(os.path.commonpath([path.parent for path in whole]))
    return [path.relative_to(above).as_posix() for path in whole]


def _number(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))


def chances(rows: Ids, seed: int) -> Array:
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
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    pa = require("pyarrow", "tables")
    plain = [part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in parts]
    kinds = {part.type for part in plain}
    if len(kinds) > 1:  # of several files: a whole number in one may be a float, or nothing at all, in another
        are_numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds - {pa.null()})
        plain = [part.cast(pa.float64() if are_numbers else pa.string()) for part in plain]
    return pa.concat_arrays(plain)
