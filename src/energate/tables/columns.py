"""`Columns`: which columns of a table a model takes, and how their cells become numbers.  Saved with the model.

`learn_columns` makes them of a table; `classes_of` and `labels_of` read what is to be predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.values import (
    CellError,
    categories_of,
    doubts,
    is_category,
    keyed,
    listed,
    names_of,
    numbers,
    refuse_mixed,
    words,
)

TASKS = ("classify", "multilabel", "anomaly")
VERSION = 2
_ON_OFF = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers; ``fill`` stands where a cell is missing, None refuses such cells."""

    name: str
    fill: float | None

    @property
    def feature_names(self) -> list[str]:
        """One column of the matrix."""
        return [self.name]

    def coded(self, values: Any) -> Array:
        """The numbers of the cells, NaN where one is missing and may be: (n,)."""
        found = numbers(values, self.name)
        missing = np.isnan(found)
        if self.fill is None and missing.any():
            raise CellError(self.name, int(missing.argmax()), None, "a number")
        return found

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write the numbers of the cells into (n, 1)."""
        found = self.coded(values)
        matrix[:, 0] = found if self.fill is None else np.where(np.isnan(found), self.fill, found)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of text; each category is a column of 0 and 1, others leave all at 0.  None is a missing cell."""

    name: str
    categories: tuple[str | None, ...]

    @property
    def feature_names(self) -> list[str]:
        """A column of the matrix for each category."""
        return [f"{self.name}={'(missing)' if category is None else category}" for category in self.categories]

    @property
    def words(self) -> tuple[str, ...]:
        """The categories that are no missing cell."""
        return tuple(category for category in self.categories if category is not None)

    def coded(self, values: Any) -> Array:
        """The keys of the cells, NaN where one is missing: (n,); see `energate.tables.values.keys_of`."""
        return keyed(values, self.words)

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
    several labels; ``image`` is (height, width) where the numbers of a row are a picture.  ``coded`` columns are for a
    model that takes missing cells and categories as they are: one number for each column, NaN where a cell is missing,
    and for a category its key.  Otherwise missing cells are filled, and categories are columns of 0 and 1.
    """

    inputs: tuple[NumberColumn | CategoryColumn, ...]
    task: str = "classify"
    targets: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    image: tuple[int, int] | None = None
    coded: bool = False

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
        return self.names if self.coded else [name for column in self.inputs for name in column.feature_names]

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
        if self.coded:
            return np.stack([column.coded(frame[column.name]) for column in self.inputs], 1)  # (n, d)
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
                _flag(content.get("coded", False)),
            )
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"These are no columns that energate wrote: {error}.") from error


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_keys(content: dict[str, Any]) -> None:
    if type(content.get("version")) is not int or not 1 <= content["version"] <= VERSION:
        raise ValueError(f"version {content.get('version')!r}, expected 1 to {VERSION}")
    later = set() if content["version"] == 1 else {"coded"}
    if content.keys() != {"version", "task", "targets", "labels", "image", "inputs"} | later:
        raise ValueError(f"unexpected keys {sorted(content)}")


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


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("`coded` must be true or false")
    return value


def _size(values: Any) -> tuple[int, int]:
    if type(values) is not list or len(values) != 2 or any(type(value) is not int or value < 1 for value in values):
        raise ValueError("an image must have a height and a width")
    return values[0], values[1]


@dataclass(frozen=True)
class CodedRows:
    """Rows (n, d) that coded `Columns` made, with the columns: a model learns names and categories from them."""

    matrix: Array
    columns: Columns


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
    coded: bool = False,
    declared: Sequence[str] = (),
) -> tuple[Columns, list[str]]:
    """The columns that a model can take, with fill values and categories from ``rows``, and what was left out and why.

    Columns in ``drop`` are left out, those in ``keep`` never are.  Those in ``categories`` count as text.  ``coded``
    columns are for a model that takes missing cells and categories as they are.  ``declared`` are columns that the
    table itself calls categories: text, if they are no ids or dates.
    """
    _check_names(table, targets=targets, drop=drop, keep=keep, category=categories)
    inputs, notes = list[NumberColumn | CategoryColumn](), list[str]()
    for name in table:
        if name in targets or name in drop:
            continue
        typed = name in declared or is_category(table[name])
        made = _learn(name, table[name], name in categories, name in keep, typed, rows, notes)
        if isinstance(made, str):
            notes.append(f"{name!r} is left out: {made}")
        else:
            inputs.append(made)
    if not inputs:
        raise InputError(f"There is no column left to learn from. {' '.join(notes)}".rstrip())
    found = None if labels is None else tuple(labels)
    return Columns(tuple(inputs), task, tuple(targets), found, image, coded), notes


def _check_names(table: Mapping[str, Any], **given: Sequence[str]) -> None:
    for option, names in given.items():
        missing = [name for name in names if name not in table]
        if missing:
            raise InputError(
                f"`{option}` must name columns; there is no {listed(missing)}. There are {listed([*table])}."
            )


def _learn(
    name: str, values: Any, category: bool, keep: bool, typed: bool, rows: NDArray[np.int64] | None, notes: list[str]
) -> NumberColumn | CategoryColumn | str:
    """A column as a model takes it, or why it is left out; ``notes`` gets what else there is to say.

    The user says that it is a ``category``, or its type does (``typed``).
    """
    try:
        found = None if category or typed else numbers(values, name)
    except CellError as error:
        if isinstance(error.value, float):  # infinite
            raise
        found = None
    if found is not None:
        return _learn_numbers(name, found, keep, rows)
    codes, different = words(values)
    if not category and not typed:
        refuse_mixed(name, codes, different)
    why = "" if keep or category else doubts(len(codes), different)
    if why == "names":
        n_different = sum(text is not None for text in different)
        return f"text with {n_different:,} values in {len(codes):,} rows, which names the rows."
    if why == "dates":
        return "it holds dates, and a new row has a new one (--keep takes them as categories)."
    looked_at = slice(None) if rows is None else rows
    chosen, note = categories_of(name, codes, different, looked_at)
    if note:
        notes.append(note)
    absent = (None,) if None in {different[i] for i in np.unique(codes[looked_at])} else ()
    return CategoryColumn(name, (*chosen, *absent))


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
