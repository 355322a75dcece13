"""`Columns`: which columns of a table a model takes, and how their cells become numbers.  Saved with the model.

`learn_columns` makes them of a table; `classes_of` and `labels_of` read what is to be predicted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require

TASKS = ("classify", "multilabel", "anomaly")
VERSION = 1
MOST_CATEGORIES = 100
ID_SHARE = 0.9  # a column of text with more different values than this share of the rows names the rows
MIXED_SHARE = 0.5  # text among more numbers than this share is a mistake, not a category
_DATE = re.compile(r"(\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}|\d{4}/\d\d?/\d\d?)([ T]\d\d?:\d\d.*)?")
_ON_OFF = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
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


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers; ``fill`` stands where a cell is missing, None refuses such cells."""

    name: str
    fill: float | None

    @property
    def feature_names(self) -> list[str]:
        """One column of the matrix."""
        return [self.name]

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write the numbers of the cells into (n, 1)."""
        found = numbers(values, self.name)
        missing = np.isnan(found)
        if missing.any():
            if self.fill is None:
                raise CellError(self.name, int(missing.argmax()), None, "a number")
            found = np.where(missing, self.fill, found)
        matrix[:, 0] = found


@dataclass(frozen=True)
class CategoryColumn:
    """A column of text; each category is a column of 0 and 1, others leave all at 0.  None is a missing cell."""

    name: str
    categories: tuple[str | None, ...]

    @property
    def feature_names(self) -> list[str]:
        """A column of the matrix for each category."""
        return [f"{self.name}={'(missing)' if category is None else category}" for category in self.categories]

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write 0 and 1 into (n, number of categories)."""
        codes, different = words(values)
        places = {category: place for place, category in enumerate(self.categories)}
        # A last column, cut off again, takes what is no category.
        table = np.eye(len(places) + 1)[[places.get(each, len(places)) for each in different], :-1]
        matrix[:] = table[codes] if different else 0.0


@dataclass(frozen=True)
class Columns:
    """The columns of a table that a model takes, in their order, and what it says about the table's others.

    ``inputs`` are the columns taken.  ``targets`` are the columns that were to be predicted, ``labels`` their names for
    several labels; ``image`` is (height, width) where the numbers of a row are a picture.
    """

    inputs: tuple[NumberColumn | CategoryColumn, ...]
    task: str = "classify"
    targets: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    image: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        names = self.names
        if self.task not in TASKS:
            raise InputError(f"`task` must be one of {', '.join(TASKS)}; got {self.task!r}.")
        if not names or len(set(names)) < len(names) or set(names) & set(self.targets):
            raise InputError(f"`inputs` must be columns, each once, and no targets; got {listed(names)}.")
        if self.image is not None and math.prod(self.image) != len(self.feature_names):
            height, width = self.image
            raise InputError(
                f"An image of {height}x{width} has {height * width} pixels; the table has {len(self.feature_names)} "
                "columns of numbers. Leave the others out, or give the size that the images have."
            )

    @classmethod
    def plain(cls, names: Sequence[str], task: str = "classify") -> Self:
        """Columns of numbers, without missing cells: for a model that was fitted on an array."""
        return cls(tuple(NumberColumn(name, None) for name in names), task)

    @property
    def names(self) -> list[str]:
        """The columns of the table that the model takes."""
        return [column.name for column in self.inputs]

    @property
    def feature_names(self) -> list[str]:
        """The columns of the matrix."""
        return [name for column in self.inputs for name in column.feature_names]

    def for_width(self, n_features: Any) -> Self:
        """Themselves, unless they make other rows than a model of so many columns takes."""
        if len(self.feature_names) != n_features:
            raise InputError(
                f"`columns` must make rows of {n_features} numbers, as the model takes; they make "
                f"{len(self.feature_names)}."
            )
        return self

    def matrix(self, frame: Any) -> Array:
        """The rows as numbers, (n, d): of a pandas frame, a pyarrow table or record batch, or a mapping of columns."""
        missing = sorted(set(self.names) - set(names_of(frame)), key=self.names.index)
        if missing:
            raise InputError(f"The table must have the columns that the model takes; it lacks {listed(missing)}.")
        widths = [len(column.feature_names) for column in self.inputs]
        found = np.empty((len(frame[self.names[0]]), sum(widths)))
        for column, width, end in zip(self.inputs, widths, np.cumsum(widths).tolist(), strict=True):
            column.fill_in(found[:, end - width : end], frame[column.name])
        return found

    def matrix_of(self, rows: Sequence[Mapping[str, Any]]) -> Array:
        """The same of rows that are mappings from names to values, None where one is missing; other names may be there.

        A row that leaves a column out altogether is refused: more often than not its name is misspelt.
        """
        for number, row in enumerate(rows, 1):
            absent = [name for name in self.names if name not in row]
            if absent:
                raise InputError(
                    f"row {number} must have a value, or null, for each column that the model takes; it lacks "
                    f"{listed(absent)}."
                )
        return self.matrix({name: [row[name] for row in rows] for name in self.names})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; `from_json` reads it."""
        own = {name: _plain(value) for name, value in vars(self).items() if name != "inputs"}
        inputs = [{name: _plain(value) for name, value in vars(column).items()} for column in self.inputs]
        return {"version": VERSION, **own, "inputs": inputs}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """The columns that `to_json` wrote; anything else is refused."""
        try:
            _check_keys(content)
            image, labels = content["image"], content["labels"]
            return cls(
                tuple(map(_column, content["inputs"])),
                content["task"],
                _texts(content["targets"]),
                None if labels is None else _texts(labels),
                None if image is None else _size(image),
            )
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"These are no columns that energate wrote: {error}.") from error


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_keys(content: dict[str, Any]) -> None:
    if content.keys() != {"version", "task", "targets", "labels", "image", "inputs"}:
        raise ValueError(f"unexpected keys {sorted(content)}")
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']!r}, expected {VERSION}")


def _column(content: dict[str, Any]) -> NumberColumn | CategoryColumn:
    (name,) = _texts([content["name"]])
    if content.keys() == {"name", "fill"}:
        fill = content["fill"]
        if fill is not None and (type(fill) not in (int, float) or not math.isfinite(fill)):
            raise ValueError(f"the fill of {name!r} is no number")
        return NumberColumn(name, None if fill is None else float(fill))
    categories = content["categories"]
    if content.keys() != {"name", "categories"} or type(categories) is not list or not categories:
        raise ValueError(f"the column {name!r} has neither a fill nor categories")
    _texts([category for category in categories if category is not None])
    if len(set(categories)) < len(categories):
        raise ValueError(f"a category of {name!r} occurs twice")
    return CategoryColumn(name, tuple(categories))


def _texts(values: Any) -> tuple[str, ...]:
    if type(values) is not list or any(type(value) is not str for value in values):
        raise ValueError("names must be text")
    return tuple(values)


def _size(values: Any) -> tuple[int, int]:
    if type(values) is not list or len(values) != 2 or any(type(value) is not int or value < 1 for value in values):
        raise ValueError("an image must have a height and a width")
    return values[0], values[1]


# --- what to make of a table -------------------------------------------------------------------------------------


def learn_columns(
    table: Mapping[str, Any],
    *,
    task: str = "classify",
    targets: Sequence[str] = (),
    labels: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    image: tuple[int, int] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> tuple[Columns, list[str]]:
    """The columns that a model can take, with fill values and categories from ``rows``, and what was left out and why.

    Columns in ``drop`` are left out, those in ``keep`` never are.  Those in ``categories`` count as text.
    """
    _check_names(table, targets=targets, drop=drop, keep=keep, category=categories)
    inputs, notes = list[NumberColumn | CategoryColumn](), list[str]()
    for name in table:
        if name in targets or name in drop:
            continue
        made = _learn(name, table[name], name in categories, name in keep, rows)
        if isinstance(made, str):
            notes.append(f"{name!r} is left out: {made}")
        else:
            inputs.append(made)
    if not inputs:
        raise InputError(f"There is no column left to learn from. {' '.join(notes)}".rstrip())
    return Columns(tuple(inputs), task, tuple(targets), None if labels is None else tuple(labels), image), notes


def _check_names(table: Mapping[str, Any], **given: Sequence[str]) -> None:
    for option, names in given.items():
        missing = [name for name in names if name not in table]
        if missing:
            raise InputError(
                f"`{option}` must name columns; there is no {listed(missing)}. There are {listed([*table])}."
            )


def _learn(
    name: str, values: Any, category: bool, keep: bool, rows: NDArray[np.int64] | None
) -> NumberColumn | CategoryColumn | str:
    """A column as a model takes it, or why it is left out."""
    try:
        found = None if category else numbers(values, name)
    except CellError as error:
        if isinstance(error.value, float):  # infinite
            raise
        found = None
    if found is not None:
        return _learn_numbers(name, found, keep, rows)
    codes, different = words(values)
    counts = np.bincount(codes, minlength=len(different))
    used = set(range(len(different))) if rows is None else set(np.unique(codes[rows]).tolist())
    chosen = sorted((different[i] for i in used), key=lambda word: (word is None, word or ""))
    n_different = sum(word is not None for word in different)
    if not category:
        _refuse_mixed(name, codes, different, counts)
    doubted = not keep and not category and n_different > 2
    if doubted and n_different > ID_SHARE * len(codes):
        return f"text with {n_different:,} values in {len(codes):,} rows, which names the rows."
    if doubted and all(word is None or _DATE.fullmatch(word) for word in different):
        return "it holds dates, and a new row has a new one (--keep takes them as categories)."
    if n_different > MOST_CATEGORIES:
        raise InputError(
            f"{name!r} is text with {n_different:,} different values; at most {MOST_CATEGORIES} become columns. "
            f"Leave it out (--drop {name}), or group its values."
        )
    return CategoryColumn(name, tuple(chosen))


def _learn_numbers(name: str, found: Array, keep: bool, rows: NDArray[np.int64] | None) -> NumberColumn | str:
    known = found if rows is None else found[rows]
    known = known[~np.isnan(known)]
    if not len(known):
        return "no row has a value."
    with np.errstate(over="ignore"):
        steps = np.diff(found)
    if not keep and len(found) > 2 and (steps == 1).all():
        return "it counts the rows (--keep takes it)."
    return NumberColumn(name, 2 * float(np.median(known / 2)))  # the mean of two huge numbers overflows


def _refuse_mixed(name: str, codes: NDArray[np.int64], different: list[str | None], counts: NDArray[np.int64]) -> None:
    """Numbers in most rows and text in some are a mistake in those rows."""
    text = [word is not None and not _is_number(word) for word in different]
    present = np.array([word is not None for word in different])
    n_text, n_present = int(counts[text].sum()), int(counts[present].sum())
    if n_present and 1 - n_text / n_present > MIXED_SHARE:
        row = int(np.flatnonzero(np.array(text)[codes])[0])
        raise CellError(name, row, different[codes[row]], "a number, as in most rows")


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word)) and "_" not in word
    except ValueError:
        return False


# --- what is to be predicted -------------------------------------------------------------------------------------


def classes_of(table: Mapping[str, Any], target: str) -> NDArray[Any]:
    """The class of every row: whole numbers, or text."""
    _check_names(table, target=[target])
    codes, different = _present(target, table[target])
    n_rows = len(codes)
    try:
        found = numbers(table[target], target)
    except CellError:
        y = np.array(different, dtype=np.str_)[codes]
    else:
        if (found != np.round(found)).any():
            raise InputError(
                f"The target {target!r} must be classes; it has numbers with fractions, from {found.min():g} to "
                f"{found.max():g}. Group them into classes first."
            )
        y = found.astype(np.int64)
    n_classes = len(np.unique(y))
    if n_classes < 2:
        raise InputError(f"The target {target!r} must have at least 2 classes; every row has {y[0]!s}.")
    if n_classes > max(2, n_rows / 2):
        raise InputError(
            f"The target {target!r} must have several rows of each class; it has {n_classes:,} different values in "
            f"{n_rows:,} rows."
        )
    return y


def labels_of(table: Mapping[str, Any], targets: Sequence[str]) -> NDArray[np.int64]:
    """Several labels of every row as 0 and 1, (n, L); true and false, yes and no are read, too."""
    _check_names(table, targets=targets)
    if len(targets) < 2:
        raise InputError(f"Several labels are at least 2 columns; got {listed(targets)}. For one column use --target.")
    return np.stack([flags_of(table, target) for target in targets], 1)


def flags_of(table: Mapping[str, Any], target: str) -> NDArray[np.int64]:
    """One label of every row as 0 and 1, (n,)."""
    codes, different = _present(target, table[target])
    found = np.array([_ON_OFF.get(word.lower(), -1) for word in different])[codes]
    if (found < 0).any():
        row = int(np.argmin(found))
        raise CellError(target, row, different[codes[row]], "0 or 1")
    return found


def _present(target: str, values: Any) -> tuple[NDArray[np.int64], list[str]]:
    """The cells of a target as `words` gives them; every row must have one."""
    codes, different = words(values)
    if None in different:
        missing = np.flatnonzero(codes == different.index(None))
        raise CellError(target, int(missing[0]), None, f"there in every row ({len(missing):,} lack it)")
    return codes, [word for word in different if word is not None]


# --- the cells of one column, whatever holds them: pyarrow, pandas, NumPy, or a plain list ------------------------


def numbers(values: Any, name: str) -> Array:
    """A column as floats, NaN where a cell is missing; a `CellError` at the first that is neither, or is infinite."""
    found = _arrow_numbers(values, name) if _is_arrow(values) else _plain_numbers(_held(values), name)
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
    return _coded(_held(values).tolist())


def is_text(values: Any) -> bool:
    """Whether the cells are text."""
    return _is_text(values.type) if _is_arrow(values) else _held(values).dtype.kind in "OU"


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


def _held(values: Any) -> NDArray[Any]:
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
