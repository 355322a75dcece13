"""The cells of one column as numbers, words or categories, whatever holds them: pyarrow, pandas, NumPy, a list..."""

import datetime
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.tables.forms import MISSING, PLAIN, Form, look_like_dates

MOST_CATEGORIES = 100
ID_SHARE = 0.9  # a column of text with more different values than this share of the rows names the rows
MIXED_SHARE = 0.5  # text among more numbers than this share is a mistake, not a category
#: the tables of packages that need not be installed
FRAMES = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
Array = NDArray[np.float64]


class CellError(InputError):
    """One cell is not what its column must hold; ``row`` counts from 0 in the rows that were looked at."""

    def __init__(self, column: str, row: int, value: Any, expected: str, hint: str = "") -> None:
        self.column, self.row, self.value, self.expected, self.hint = column, row, value, expected, hint
        super().__init__(self.told(f"row {row + 1}"))

    def told(self, where: str) -> str:
        """The message, with a place that the user knows: a line of a file, say."""
        return f"{where}: {self.column!r} must be {self.expected}; got {self.value!r}.{self.hint}"


def numbers(values: Any, name: str, form: Form = PLAIN) -> Array:
    """A column as floats, NaN where a cell is missing; a `CellError` at the first that is neither, or is infinite."""
    found = _arrow_numbers(values, name, form) if is_arrow(values) else _plain_numbers(_held(values), name, form)
    for gone in form.missing:  # also where cells are no text: --na -99
        if is_number(gone):
            found = np.where(found == float(gone), np.nan, found)
    infinite = np.flatnonzero(np.isinf(found))
    if len(infinite):
        raise CellError(name, int(infinite[0]), float(found[infinite[0]]), "a finite number")
    return found


def words(values: Any, missing: Sequence[str] = ()) -> tuple[NDArray[np.int64], list[str | None]]:
    """A column as text: the number of each cell's text in the list of all different ones; None is a missing cell.

    ``missing`` are words that are missing cells beside those that always are.
    """
    codes, different = _words(values)
    return (codes, different) if not missing else _merged(codes, [None if w in missing else w for w in different])


def _words(values: Any) -> tuple[NDArray[np.int64], list[str | None]]:
    if is_arrow(values):
        pa, pc = require("pyarrow", "tables"), require("pyarrow.compute", "tables")
        values = _whole(values)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        whole = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
        if not _is_text(values.type) and not whole:
            try:
                return _coded(values.to_pylist())
            except (OverflowError, ValueError):  # dates that Python has no objects for
                values = values.cast(pa.string())
        coded = pc.dictionary_encode(values, null_encoding="encode")
        indices = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return _merged(indices, coded.dictionary.to_pylist())
    if is_from_pandas(values):
        indices, different = values.factorize()
        absent = indices < 0
        last = [None] if absent.any() else []
        return _merged(np.where(absent, len(different), indices), [*different.tolist(), *last])
    held = _held(values)
    if held.dtype.kind in "iuf":  # a word for each number, not for each cell
        found, indices = np.unique(held, return_inverse=True)
        return _merged(indices, found.tolist())
    return _coded(held.tolist())


def is_text(values: Any) -> bool:
    """Whether the cells are text."""
    return _is_text(values.type) if is_arrow(values) else _held(values).dtype.kind in "OU"


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


# --- categories --------------------------------------------------------------------------------------------------


def is_number(text: str) -> bool:
    """Whether a word is a finite number."""
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def ordered(categories: Iterable[str]) -> list[str]:
    """Words in the order that categories have: by size where all are numbers, else as text."""
    found = sorted(categories)
    return sorted(found, key=float) if all(map(is_number, found)) else found


def keys_of(categories: Sequence[str]) -> Array:
    """The numbers that stand for categories: their own if all are numbers and different, else 0, 1, 2, ...

    So an array whose categories are numbers already means what it says.
    """
    return np.array([float(each) for each in (categories if _are_numbers(categories) else range(len(categories)))])


def keyed(values: Any, categories: Sequence[str], missing: Sequence[str] = ()) -> Array:
    """A column as the keys of its categories: NaN where a cell is missing, another number where it is none of them."""
    codes, different = words(values, missing)
    keys = dict(zip(categories, keys_of(categories).tolist(), strict=True))
    lowest, numbered = min(keys.values(), default=0.0), _are_numbers(categories)
    other = lowest - max(1.0, abs(lowest))
    other = other if math.isfinite(other) else math.nextafter(lowest, 0.0)

    def key(text: str | None) -> float:
        if text is None:
            return math.nan
        if numbered and is_number(text):
            return float(text)
        return keys.get(text, other)

    return np.array(list(map(key, different)))[codes] if different else np.empty(0)


def _are_numbers(categories: Sequence[str]) -> bool:
    return all(map(is_number, categories)) and len(set(map(float, categories))) == len(categories)


def categories_of(
    name: str, codes: NDArray[np.int64], different: list[str | None], rows: Any = slice(None)
) -> tuple[tuple[str, ...], str]:
    """The categories of some rows of a column that `words` read, in order, and a note where they are too many.

    Of more than `MOST_CATEGORIES` the most frequent are taken, those that occur at least twice: the others count as new
    ones.
    """
    counts = np.bincount(codes[rows], minlength=len(different))
    found = [text for text, count in zip(different, counts, strict=True) if text is not None and count]
    if len(found) <= MOST_CATEGORIES:
        return tuple(ordered(found)), ""
    often = dict(zip(different, counts.tolist(), strict=True))
    repeated = [text for text in ordered(found) if often[text] > 1]
    kept = sorted(repeated, key=lambda text: -often[text])[:MOST_CATEGORIES]
    n_present = sum(often[text] for text in found)
    share = 1 - sum(often[text] for text in kept) / n_present
    of_all = "rows" if n_present == counts.sum() else f"{n_present:,} rows that have one"
    note = (
        f"{name!r} has {len(found):,} different values; the {len(kept):,} most frequent are taken, the others, "
        f"{100 * share:.1f} % of the {of_all}, count as new ones. Group its values, or leave it out."
    )
    return tuple(ordered(kept)), note


def refuse_mixed(name: str, codes: NDArray[np.int64], different: list[str | None]) -> None:
    """Numbers in most rows and text in some are a mistake in those rows."""
    counts = np.bincount(codes, minlength=len(different))
    text = [each is not None and not is_number(each) for each in different]
    present = np.array([each is not None for each in different], dtype=bool)
    n_text, n_present = int(counts[text].sum()), int(counts[present].sum())
    if n_present and n_text and 1 - n_text / n_present > MIXED_SHARE:
        row = int(np.flatnonzero(np.array(text)[codes])[0])
        raise CellError(name, row, different[codes[row]], "a number, as in most rows")


def doubts(n_rows: int, different: Sequence[str | None]) -> str:
    """Why a column of text may be no category: it names the rows, or holds dates; nothing if it may well be one."""
    present = [text for text in different if text is not None]
    if len(present) <= 2:
        return ""
    if look_like_dates(present):
        return "dates"
    return "names" if len(present) > ID_SHARE * n_rows else ""


def is_category(values: Any) -> bool:
    """Whether a column of a frame says by its type that it holds categories."""
    if is_arrow(values):
        return bool(require("pyarrow", "tables").types.is_dictionary(values.type))
    if _is_from(values, "pandas", "polars"):
        return str(values.dtype).startswith(("category", "Categorical", "Enum"))
    return False


def is_temporal(values: Any) -> bool:
    """Whether the cells are dates, times or durations."""
    if is_arrow(values):
        return bool(require("pyarrow", "tables").types.is_temporal(values.type))
    if _is_from(values, "polars"):
        return bool(values.dtype.is_temporal())
    if _is_from(values, "pandas") and (values.dtype.kind in "mM" or str(values.dtype).startswith("period")):
        return True
    held = _held(values)
    if held.dtype.kind != "O":
        return held.dtype.kind in "mM"
    first = next((cell for cell in held if not (cell is None or (isinstance(cell, float) and math.isnan(cell)))), None)
    return isinstance(first, datetime.date | datetime.time | datetime.timedelta | np.datetime64 | np.timedelta64)


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


def _held(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if _is_from(values, "pandas"):
        if values.dtype.kind in "biuf":
            return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
        kept: NDArray[Any] = values.astype(object).where(values.notna(), None).to_numpy()
        return kept
    if _is_from(values, "polars"):
        values = values.to_list()
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _plain_numbers(values: NDArray[Any], name: str, form: Form) -> Array:
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind not in "OU":
        raise CellError(name, 0, values[0] if len(values) else values.dtype, "a number")
    found = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        number = _number(value, form)
        if number is None:
            raise CellError(name, row, value, "a number")
        found[row] = number
    return found


def _number(value: Any, form: Form) -> float | None:
    if value is None or isinstance(value, str):
        return math.nan if value is None else form.number(value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


# --- pyarrow -----------------------------------------------------------------------------------------------------


def _is_from(values: Any, *packages: str) -> bool:
    """Whether one of these packages made it; none of them need be installed."""
    return type(values).__module__.partition(".")[0] in packages


def is_arrow(values: Any) -> bool:
    """Whether this is a column or a table of pyarrow."""
    return _is_from(values, "pyarrow")


def _whole(values: Any) -> Any:
    """One array of a column that may come in chunks."""
    pa = require("pyarrow", "tables")
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _is_text(kind: Any) -> bool:
    pa = require("pyarrow", "tables")
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _arrow_numbers(values: Any, name: str, form: Form) -> Array:
    pa, pc = require("pyarrow", "tables"), require("pyarrow.compute", "tables")
    values = _whole(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_temporal(values.type) or pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise CellError(name, 0, values[0].as_py() if len(values) else str(values.type), "a number")
    if form.decimal == ",":  # a point is not what it seems
        return _numbers_of_words(values, name, form) if _is_text(values.type) else _floats(values)
    try:
        return _floats(values)
    except pa.ArrowInvalid:
        if not _is_text(values.type):  # a whole number too long for a float
            return np.array(values.to_pylist(), dtype=np.float64)
    values = pc.utf8_trim_whitespace(values)
    empty = pc.is_in(values, value_set=pa.array([*MISSING, *form.missing], values.type))
    values = pc.if_else(empty, pa.scalar(None, values.type), values)
    try:
        return _floats(values)
    except pa.ArrowInvalid:
        return _numbers_of_words(values, name, form)


def _numbers_of_words(values: Any, name: str, form: Form) -> Array:
    """Each different word is read once."""
    codes, different = words(values, form.missing)
    read = [math.nan if text is None else form.number(text) for text in different]
    wrong = np.array([number is None for number in read], dtype=bool)
    if wrong.any():
        row = int(np.flatnonzero(wrong[codes])[0])
        raise CellError(name, row, different[codes[row]], "a number")
    return np.array(read, dtype=np.float64)[codes] if different else np.empty(0)


def _floats(values: Any) -> Array:
    pa, pc = require("pyarrow", "tables"), require("pyarrow.compute", "tables")
    found: Array = pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False)
    return found


def names_of(frame: Any) -> list[str]:
    """The names of the columns of a mapping, of a pyarrow table or record batch, or of a pandas frame."""
    if is_arrow(frame):
        return list(frame.schema.names)
    return [str(name) for name in frame]  # of a frame, too, these are the columns


def is_frame(X: Any) -> bool:
    """Whether this is a table of pandas, polars or pyarrow."""
    return _is_from(X, *FRAMES) and type(X).__name__ in FRAMES[type(X).__module__.partition(".")[0]]


def columns_of(frame: Any) -> list[Any]:
    """The columns of such a table, in order: names may occur twice."""
    if is_from_pandas(frame):
        return [frame.iloc[:, place] for place in range(frame.shape[1])]
    return list(frame.columns) if is_arrow(frame) else list(frame.get_columns())


def is_from_pandas(values: Any) -> bool:
    """Whether this is a frame or a column of pandas."""
    return _is_from(values, "pandas")


def listed(names: Sequence[str]) -> str:
    """Names for a message: all, or the first ten."""
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def counted(n: int, word: str) -> str:
    """A number of things, in words: 1 row, 2 rows."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"
