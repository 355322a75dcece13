"""The cells of one column, whatever holds them, as numbers or as text: pyarrow, pandas, NumPy, or a plain list."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require

#: what an empty cell may look like in text
MISSING = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")

Array = NDArray[np.float64]


class CellError(InputError):
    """One cell is not what its column must hold; ``row`` counts from 0 in the rows that were looked at."""

    def __init__(self, column: str, row: int, value: Any, expected: str) -> None:
        self.column, self.row, self.value, self.expected = column, row, value, expected
        super().__init__(self.told(f"row {row + 1}"))

    def told(self, where: str) -> str:
        """The message, with a place that the user knows: a line of a file, say."""
        return f"{where}: {self.column!r} must be {self.expected}; got {self.value!r}."


def numbers(values: Any, name: str) -> Array:
    """A column as floats, NaN where a cell is missing; a `CellError` at the first that is neither, or is infinite."""
    found = _arrow_numbers(values, name) if _is_arrow(values) else _plain_numbers(_plain(values), name)
    infinite = np.flatnonzero(np.isinf(found))
    if len(infinite):
        raise CellError(name, int(infinite[0]), float(found[infinite[0]]), "a finite number")
    return found


def words(values: Any) -> tuple[NDArray[np.int64], list[str | None]]:
    """A column as text: the number of each cell's text in the list of all different ones; None is a missing cell."""
    if _is_arrow(values):
        pa, pc = require("pyarrow", "tables"), require("pyarrow.compute", "tables")
        values = _whole(values)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if not _is_text(values.type):
            return _coded(values.to_pylist())
        coded = pc.dictionary_encode(values, null_encoding="encode")
        indices = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return _merged(indices, coded.dictionary.to_pylist())
    return _coded(_plain(values).tolist())


def is_text(values: Any) -> bool:
    """Whether the cells are text."""
    return _is_text(values.type) if _is_arrow(values) else _plain(values).dtype.kind in "OU"


def word(value: Any) -> str | None:
    """The text of a cell: whole numbers without a point, so that 1, 1.0 and "1" are the same category."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        return None if text in MISSING else text
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    return str(value)


# --- text --------------------------------------------------------------------------------------------------------


def _coded(cells: list[Any]) -> tuple[NDArray[np.int64], list[str | None]]:
    plain = set(map(type, cells)) <= {str, type(None)}  # which need no key of ours
    keys = cells if plain else list(map(_key, cells))
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    indices = np.fromiter(map(places.__getitem__, keys), np.int64, len(keys))
    return _merged(indices, list(places) if plain else [key[1] for key in places])


def _key(cell: Any) -> tuple[type, Any]:
    """A key of a dictionary for any cell: True and 1 are the same key otherwise, and NaN is unlike itself."""
    text = isinstance(cell, str | int)
    return (type(cell), cell) if text else (str, word(cell))


def _merged(indices: NDArray[np.int64], different: list[Any]) -> tuple[NDArray[np.int64], list[str | None]]:
    """The same where " a" and "a", or "" and None, are one."""
    places: dict[str | None, int] = {}
    renumbered = np.array([places.setdefault(word(value), len(places)) for value in different], dtype=np.int64)
    return renumbered[indices] if len(different) else indices, list(places)


# --- NumPy and lists ---------------------------------------------------------------------------------------------


def _plain(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if type(values).__module__.startswith("pandas"):
        kept: NDArray[Any] = values.astype(object).where(values.notna(), None).to_numpy()
        return kept if values.dtype.kind not in "biuf" else values.to_numpy(dtype=np.float64, na_value=np.nan)
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _plain_numbers(values: NDArray[Any], name: str) -> Array:
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind not in "OU":
        raise CellError(name, 0, values[0] if len(values) else values.dtype, "a number")
    found = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        found[row] = _number(value, name, row)
    return found


def _number(value: Any, name: str, row: int) -> float:
    if value is None or (isinstance(value, str) and value.strip() in MISSING):
        return math.nan
    try:
        # An underscore is Python's own way to write numbers, and nobody else's.
        return float(value.replace("_", "x") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        raise CellError(name, row, value, "a number") from None


# --- pyarrow -----------------------------------------------------------------------------------------------------


def _is_arrow(values: Any) -> bool:
    return type(values).__module__.startswith("pyarrow")


def _whole(values: Any) -> Any:
    """One array of a column that may come in chunks."""
    pa = require("pyarrow", "tables")
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _is_text(kind: Any) -> bool:
    pa = require("pyarrow", "tables")
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _arrow_numbers(values: Any, name: str) -> Array:
    pa, pc = require("pyarrow", "tables"), require("pyarrow.compute", "tables")
    values = _whole(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_temporal(values.type) or pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise CellError(name, 0, values[0].as_py() if len(values) else str(values.type), "a number")
    try:
        return _floats(values)
    except pa.ArrowInvalid:
        if not _is_text(values.type):  # a whole number too long for a float
            return np.array(values.to_pylist(), dtype=np.float64)
    values = pc.utf8_trim_whitespace(values)
    empty = pc.is_in(values, value_set=pa.array(MISSING, values.type))
    values = pc.if_else(empty, pa.scalar(None, values.type), values)
    try:
        return _floats(values)
    except pa.ArrowInvalid:
        row = _first_wrong(values)
        raise CellError(name, row, values[row].as_py(), "a number") from None


def _floats(values: Any) -> Array:
    pa, pc = require("pyarrow", "tables"), require("pyarrow.compute", "tables")
    found: Array = pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False)
    return found


def _first_wrong(values: Any) -> int:
    """The first cell that is no number, by halving."""
    pa = require("pyarrow", "tables")
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _floats(values.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def names_of(frame: Any) -> list[str]:
    """The names of the columns of a mapping, of a pyarrow table or record batch, or of a pandas frame."""
    if _is_arrow(frame):
        return list(frame.schema.names)
    return [str(name) for name in frame]  # of a frame, too, these are the columns


def listed(names: Sequence[str]) -> str:
    """Names for a message: all, or the first ten."""
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
