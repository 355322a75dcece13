"""NPZ files as tables: arrays of equal length side by side, read a block of rows at a time."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.cells import listed

PARTS = ("train", "valid", "test")
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, SyntaxError)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class _Stored:
    """An array in the file: where, and of which shape."""

    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool


@dataclass(frozen=True)
class NpzTable:
    """The arrays of an NPZ file that have a row for each row of the table."""

    path: Path
    arrays: dict[str, _Stored]  # what they are called in the table
    columns: dict[str, list[str]]  # array -> its columns

    @classmethod
    def open(cls, path: Path, part: str) -> "NpzTable":
        """Look at the arrays.

        ``X`` holds the columns that ``feature_names`` names, or x0, x1 and so on; a table ``Y`` likewise, with
        ``label_names``.  Without an ``X`` every array in one dimension is a column.  Of files with ``x_train`` and the
        like, ``part`` says which rows.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                stored = {name.removesuffix(".npy"): _look(archive, name) for name in archive.namelist()}
                stored = _of_part(stored, part, path)
                n_rows = _n_rows(stored, path)
                arrays = {name: each for name, each in stored.items() if each.shape[:1] == (n_rows,)}
                columns = {}
                for name, each in arrays.items():
                    names = _texts(archive, {"X": "feature_names", "Y": "label_names"}.get(name))
                    columns[name] = _column_names(name, each, names, path)
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(
                f"{path.name} must be an NPZ file of plain arrays; it cannot be read ({error})."
            ) from error
        chosen = {name: found for name, found in columns.items() if found}
        return cls(path, {name: arrays[name] for name in chosen}, chosen)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return [name for names in self.columns.values() for name in names]

    @property
    def groups(self) -> dict[str, list[str]]:
        """The arrays that hold several columns."""
        return {name: columns for name, columns in self.columns.items() if len(self.arrays[name].shape) == 2}

    def blocks(self, size: int) -> Iterator[dict[str, NDArray[Any]]]:
        """The columns of ``size`` rows at a time."""
        n_rows = next(iter(self.arrays.values())).shape[0]
        try:
            with ExitStack() as stack:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                readers = {name: _Reader(archive, each, stack) for name, each in self.arrays.items()}
                for start in range(0, n_rows, size):
                    rows = {name: reader.take(min(size, n_rows - start)) for name, reader in readers.items()}
                    yield {
                        column: block[:, place] if block.ndim == 2 else block
                        for name, block in rows.items()
                        for place, column in enumerate(self.columns[name])
                    }
        except _DAMAGE as error:
            raise InputError(f"{self.path.name} is damaged ({error}).") from error


class _Reader:
    """Reads an array from its beginning, some rows at a time."""

    def __init__(self, archive: zipfile.ZipFile, stored: _Stored, stack: ExitStack) -> None:
        self.stored, self.whole, self.start = stored, None, 0
        self.file: IO[bytes] = stack.enter_context(archive.open(stored.member))
        if stored.by_columns:  # the first rows are all over the file
            self.whole = np.lib.format.read_array(self.file, allow_pickle=False)
        else:
            _read_header(self.file)

    def take(self, n_rows: int) -> NDArray[Any]:
        self.start += n_rows
        if self.whole is not None:
            return self.whole[self.start - n_rows : self.start]
        shape = (n_rows, *self.stored.shape[1:])
        n_bytes = self.stored.dtype.itemsize * int(np.prod(shape))
        data = self.file.read(n_bytes)
        if len(data) != n_bytes:
            raise EOFError("an array ends too soon")
        return np.frombuffer(data, self.stored.dtype).reshape(shape)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return _HEADERS[np.lib.format.read_magic(file)](file)


def _look(archive: zipfile.ZipFile, member: str) -> _Stored:
    with archive.open(member) as file:
        shape, by_columns, dtype = _read_header(file)
    return _Stored(member, shape, dtype, by_columns and len(shape) > 1)


def _of_part(stored: dict[str, _Stored], part: str, path: Path) -> dict[str, _Stored]:
    """The arrays of one part, without the part in their names."""
    if "X" in stored or "x_train" not in stored:
        return stored
    found = {name.removesuffix(f"_{part}"): each for name, each in stored.items() if name.endswith(f"_{part}")}
    if "x" not in found:
        there = [name for name in PARTS if f"x_{name}" in stored]
        raise InputError(f"{path.name} must have the part {part!r}; it has {listed(there)}.")
    return {"X": found.pop("x"), **found}


def _n_rows(stored: dict[str, _Stored], path: Path) -> int:
    if "X" in stored:
        each = stored["X"]
        if len(each.shape) != 2 or each.dtype.kind not in "biuf":
            raise InputError(
                f"`X` of {path.name} must be a table of numbers; it has shape {each.shape} and type {each.dtype}."
            )
        return each.shape[0]
    lengths = {each.shape[0] for each in stored.values() if len(each.shape) == 1}
    if len(lengths) != 1:
        raise InputError(
            f"{path.name} must have a table X, or arrays of one length, one for each column; its arrays are "
            f"{listed([f'{name} {each.shape}' for name, each in stored.items()])}."
        )
    return lengths.pop()


def _column_names(name: str, stored: _Stored, given: list[str] | None, path: Path) -> list[str]:
    if stored.dtype.kind not in "biufU" or len(stored.shape) > 2 or name in ("feature_names", "label_names"):
        return []
    if len(stored.shape) == 1:
        return [name]
    names = given or [f"{'x' if name == 'X' else name}{i}" for i in range(stored.shape[1])]
    if len(names) != stored.shape[1]:
        raise InputError(
            f"{path.name} must have a name for each of the {stored.shape[1]} columns of {name}; it has {len(names)}."
        )
    return names


def _texts(archive: zipfile.ZipFile, name: str | None) -> list[str] | None:
    if name is None or f"{name}.npy" not in archive.namelist():
        return None
    with archive.open(f"{name}.npy") as file:
        return [str(each) for each in np.lib.format.read_array(file, allow_pickle=False)]
