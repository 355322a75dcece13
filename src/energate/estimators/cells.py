"""Tables as they are: missing cells and categories, between the user's columns and those that a model sees.

Rows go through two steps.  They are *read*: an array, or a frame, becomes numbers (n, d), with NaN where a cell is
missing and a key for every category (`energate.tables.values.keys_of`).  And they are *expanded*: a missing number is
filled, and columns of 0 and 1 say that it was missing, or which category there is.  The result (n, D) has no NaN.  It
is what a scaler brings to the scale of a model, and what its energy is over.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags, check_array, check_X_y
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators.edge import Array, Scaler
from energate.tables import CategoryColumn, CellError, CodedRows
from energate.tables.values import (
    categories_of,
    columns_of,
    doubts,
    is_category,
    is_frame,
    is_from_pandas,
    is_temporal,
    keyed,
    keys_of,
    listed,
    names_of,
    numbers,
    refuse_mixed,
    words,
)

FROM_DTYPE = "from_dtype"
ABSENT = "(missing)"
_HOW: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
Flags: TypeAlias = NDArray[np.bool_]


class Layout(NamedTuple):
    """Of each seen column (D,): the user's column that it comes from, what it is, and the numbers that this takes.

    A column that is neither ``numeric`` nor ``absent``, "is it missing?", asks whether a cell is the category ``key``.
    """

    source: NDArray[np.int64]
    numeric: Flags
    absent: Flags
    key: Array
    fill: Array


@dataclass(frozen=True, eq=False)
class Cells:
    """What `fit` has found in each of the user's columns (d,); it is saved with the model.

    ``fill`` is the median of a column of numbers, where a cell is missing; NaN refuses such cells.  ``missing`` says
    whether cells were missing: then a seen column says so.  ``categories`` are those of the columns that hold any.
    """

    fill: Array
    missing: Flags
    categories: Mapping[int, tuple[str, ...]]

    @property
    def n_columns(self) -> int:
        """The number d of the user's columns."""
        return len(self.fill)

    @property
    def width(self) -> int:
        """The number D of the columns that the model sees."""
        return len(self.layout.source)

    @property
    def numeric(self) -> Flags:
        """Which of the seen columns are the user's numbers, not 0 and 1: (D,)."""
        return self.layout.numeric

    @property
    def plain(self) -> bool:
        """Whether the model sees the columns as they are."""
        return not self.categories and not self.missing.any()

    @cached_property
    def layout(self) -> Layout:
        """The seen columns: those of a user's column stand together."""
        rows: list[tuple[int, bool, bool, float, float]] = []
        for place, (fill, missing) in enumerate(zip(self.fill.tolist(), self.missing.tolist(), strict=True)):
            found = self.categories.get(place)
            if found is None:
                rows.append((place, True, False, 0.0, fill))
            else:
                rows += [(place, False, False, key, 0.0) for key in keys_of(found).tolist()]
            if missing:
                rows.append((place, False, True, 0.0, 0.0))
        source, numeric, absent, key, fill = zip(*rows, strict=True)
        flags = np.array(numeric, dtype=bool), np.array(absent, dtype=bool)
        return Layout(np.array(source, dtype=np.int64), *flags, np.array(key), np.array(fill))

    def expand(self, X: Array) -> Array:
        """Rows that were read, (n, d), as the model sees them: (n, D), without NaN."""
        if self.plain:
            return np.where(np.isnan(X), self.fill, X) if np.isnan(X.min(initial=0.0)) else X
        source, numeric, absent, key, fill = self.layout
        cells = X[:, source]  # (n, D)
        gone = np.isnan(cells)
        return np.where(numeric, np.where(gone, fill, cells), np.where(absent, gone, cells == key))

    def names(self, of_columns: Sequence[str]) -> list[str]:
        """The names of the seen columns."""
        found: list[str] = []
        for place, name in enumerate(of_columns):
            found += [name] if place not in self.categories else [f"{name}={each}" for each in self.categories[place]]
            found += [f"{name}={ABSENT}"] if self.missing[place] else []
        return found

    def drawn(self, seen: Array, random: np.random.RandomState) -> Array:
        """Rows (n, d) as they are read: the numbers of ``seen`` (n, D), and categories and missing cells by chance."""
        if self.plain:
            return seen
        X = np.zeros((len(seen), self.n_columns))
        X[:, self.layout.source[self.numeric]] = seen[:, self.numeric]
        for place, categories in self.categories.items():
            keys = keys_of(categories)
            another = [keys.max(initial=0.0) + 1]  # no category
            X[:, place] = random.choice([*keys, *another], len(seen))
        X[(random.uniform(size=X.shape) < 0.2) & self.missing] = np.nan  # of a fifth of the cells, a few in every batch
        return X

    def same_columns(self, other: "Cells") -> bool:
        """Whether a model sees the same columns with both."""
        return np.array_equal(self.missing, other.missing) and dict(self.categories) == dict(other.categories)

    def about(self, of_columns: Sequence[str]) -> list[dict[str, Any]]:
        """What each of the user's columns holds, as JSON: a ``fill``, or ``categories`` with their keys."""
        found = []
        for place, name in enumerate(of_columns):
            fill, categories = float(self.fill[place]), self.categories.get(place)
            what: dict[str, Any] = {"fill": None if np.isnan(fill) else fill}
            if categories is not None:
                what = {"categories": dict(zip(categories, keys_of(categories).tolist(), strict=True))}
            found.append({"name": name, **what, "missing": bool(self.missing[place])})
        return found

    def check(self, n_columns: int) -> None:
        """Refuse what no `fit` finds, of so many columns: it comes from a file."""
        shapes = {np.shape(self.fill), np.shape(self.missing)} == {(n_columns,)}
        types = shapes and self.fill.dtype == np.float64 and self.missing.dtype == bool
        if not types or np.isinf(self.fill).any() or not all(0 <= place < n_columns for place in self.categories):
            raise InputError(f"`cells_` must be those of {n_columns} columns, with finite numbers.")
        for place, found in self.categories.items():
            if len(set(found)) < len(found) or not all(type(each) is str for each in found):
                raise InputError(f"The categories of column {place} must be different words; got {listed(found)}.")


def cells_of_older(model: Any) -> Cells:
    """Of a model that an older version saved: columns of numbers, none of which may be missing."""
    n_columns = int(model.n_features_in_)
    return Cells(np.full(n_columns, np.nan), np.zeros(n_columns, dtype=bool), {})


# --- what estimators take ----------------------------------------------------------------------------------------


class CellsMixin:
    """An estimator that takes missing cells and categories as they are."""

    categorical_features: Any
    cells_: Cells
    scaler_: Scaler

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    def _read(self, X: Any, y: Any, *, reset: bool, sample_weight: Any = None) -> tuple[Array, Any]:
        """Rows to train on as the model sees them, (n, D), and y, checked; with ``reset`` their columns are learned."""
        if reset:
            X, y, self.cells_ = _learned(self, X, y, sample_weight)
        else:
            X, y = _checked(self, X, y)
        return self.cells_.expand(X), y

    def _cells(self, X: Any) -> Array:
        """Rows to score, read: (n, d)."""
        check_is_fitted(self)
        return read_rows(self, X)

    def _scaled(self, X: Array) -> Array:
        """Rows that were read, on the scale of the model: (n, D)."""
        return self.scaler_(self.cells_.expand(X))


def read_rows(estimator: Any, X: Any) -> Array:
    """Rows as numbers, (n, d), with NaN where a cell is missing, and keys for categories."""
    return _checked(estimator, X, None)[0]


def _checked(estimator: Any, X: Any, y: Any) -> tuple[Array, Any]:
    """Rows, read as the columns that `fit` found want it, and y; None reads the rows alone."""
    cells: Cells = estimator.cells_
    if isinstance(X, CodedRows):
        known = vars(estimator).get("feature_names_in_", ())
        if list(known) != X.columns.names:
            raise InputError(f"The columns must be those of `fit`, {listed(known)}; got {listed(X.columns.names)}.")
        rows, y = _validated(X.matrix, y, estimator)
    else:
        table = _Table.of(X, bool(cells.categories))
        if table is None:
            rows, y = _of_numbers(estimator, X, y, reset=False)
        else:
            validate_data(estimator, X, reset=False, skip_check_array=True)
            rows, y = _validated(table.matrix(cells.categories), y, estimator)
    if np.isnan(cells.fill).any() and np.isnan(rows).any():
        raise InputError(
            "`X` has missing cells (NaN), and the model was saved by a version that took none. Fill them, or fit the "
            "model again."
        )
    return rows, y


def _learned(estimator: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Any, Cells]:
    """Rows, read, y, and what the rows of weight above 0 say of the columns."""
    if isinstance(X, CodedRows):
        rows, y = validate_data(estimator, X.matrix, y, **_HOW)
        estimator.feature_names_in_ = np.array(X.columns.names, dtype=object)
        given = {i: column.words for i, column in enumerate(X.columns.inputs) if isinstance(column, CategoryColumn)}
        return rows, y, _found(rows, given, _used(sample_weight, rows))
    asked = estimator.categorical_features
    table = _Table.of(X, asked is not None and not _is_from_dtype(asked))
    if table is None:
        rows, y = _of_numbers(estimator, X, y, reset=True)
        names = vars(estimator).get("feature_names_in_")
        chosen = np.flatnonzero(_mask(asked, names, rows.shape[1])).tolist()
        used = _used(sample_weight, rows)
        shown = [f"x{i}" for i in range(rows.shape[1])] if names is None else names
        return rows, y, _found(rows, {i: _categories(shown[i], rows[:, i], used) for i in chosen}, used)
    validate_data(estimator, X, y, skip_check_array=True)
    used = _used(sample_weight, X)
    categories = table.categories(asked, used)
    rows, y = _validated(table.matrix(categories), y, estimator)
    return rows, y, _found(rows, categories, used)


def _of_numbers(estimator: Any, X: Any, y: Any, reset: bool) -> tuple[Array, Any]:
    """Rows of numbers, as scikit-learn checks them, and y."""
    try:
        if y is None and not reset:
            return validate_data(estimator, X, reset=False, **_HOW), None
        rows, y = validate_data(estimator, X, y, reset=reset, **_HOW)
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            raise
        raise InputError(
            f"`X` must be numbers; it holds text ({error}). Name the columns that are categories in "
            "`categorical_features`, or give a DataFrame, in which text is a category."
        ) from error
    return rows, y


def _validated(rows: Array, y: Any, estimator: Any) -> tuple[Array, Any]:
    if y is None:
        return check_array(rows, estimator=estimator, input_name="X", **_HOW), None
    found: tuple[Array, Any] = check_X_y(rows, y, estimator=estimator, **_HOW)
    return found


def _used(sample_weight: Any, X: Any) -> Any:
    """Which rows count."""
    if sample_weight is None:
        return slice(None)
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
    return weight > 0 if (weight > 0).any() else slice(None)


def _found(rows: Array, categories: Mapping[int, tuple[str, ...]], used: Any) -> Cells:
    looked_at = rows[used]
    holes = np.isnan(looked_at.min(initial=0.0))
    missing = np.isnan(looked_at).any(0) if holes else np.zeros(rows.shape[1], dtype=bool)
    fill = [0.0 if place in categories else _median(column) for place, column in enumerate(looked_at.T)]
    return Cells(np.array(fill), missing, categories)


def _median(column: Array) -> float:
    """That of the cells that are there; 0 if there is none."""
    present = column[~np.isnan(column)]
    return 2 * float(np.median(present / 2)) if len(present) else 0.0  # the mean of two huge numbers overflows


# --- frames, and arrays of objects -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """Columns of which some may be no numbers."""

    names: list[str]
    columns: list[Any]

    @classmethod
    def of(cls, X: Any, categories: bool) -> "_Table | None":
        """None for what scikit-learn can take, or refuse, as it is; ``categories``: whether an array may have some."""
        if is_frame(X):
            columns = columns_of(X)
            return None if all(map(_has_numbers, columns)) else cls(names_of(X), columns)
        array = np.asarray(X, dtype=object) if categories and isinstance(X, list | tuple) else X
        if not categories or not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "OUS":
            return None
        return cls([f"x{i}" for i in range(array.shape[1])], list(array.T))

    def matrix(self, categories: Mapping[int, tuple[str, ...]]) -> Array:
        """The cells as numbers, (n, d)."""
        found = [
            keyed(values, categories[place]) if place in categories else numbers(values, name)
            for place, (name, values) in enumerate(zip(self.names, self.columns, strict=True))
        ]
        return np.stack(found, 1) if found else np.empty((0, 0))

    def categories(self, asked: Any, used: Any) -> dict[int, tuple[str, ...]]:
        """The categories of those columns that hold any; text that is none is refused."""
        by_type, found = _is_from_dtype(asked), dict[int, tuple[str, ...]]()
        mask = _mask(asked, self.names, len(self.names))
        for place, (name, values) in enumerate(zip(self.names, self.columns, strict=True)):
            chosen = is_category(values) if by_type else bool(mask[place])
            if chosen or not _is_number_column(name, values, by_type):
                found[place] = _categories(name, values, used)
        return found


def _has_numbers(values: Any) -> bool:
    return is_from_pandas(values) and values.dtype.kind in "biufc"


def _is_number_column(name: str, values: Any, by_type: bool) -> bool:
    """Whether a column that nobody called a category is numbers; an `InputError` where it is neither."""
    if is_temporal(values):
        raise InputError(
            f"{name!r} holds dates or times, which are neither numbers nor categories. Make numbers of them first, "
            "such as the year, the month, the day of the week or the days since something, or leave the column out."
        )
    try:
        numbers(values, name)
    except CellError as error:
        if isinstance(error.value, float):  # infinite
            raise
        if not by_type:
            raise InputError(f"{error} If {name!r} holds categories, name it in `categorical_features`.") from error
    else:
        return True
    codes, different = words(values)
    refuse_mixed(name, codes, different)
    why = doubts(len(codes), different)
    if why == "dates":
        raise InputError(
            f"{name!r} holds dates as text. Make numbers of them first, such as the year, the month, the day of the "
            "week or the days since something, or leave the column out."
        )
    if why == "names":
        raise InputError(
            f"{name!r} is text with {len(different):,} different values in {len(codes):,} rows: it names the rows, or "
            "is free text. Leave it out, or make numbers of it first; if it holds categories, give it the dtype "
            "category."
        )
    return False


def _categories(name: str, values: Any, used: Any) -> tuple[str, ...]:
    found, note = categories_of(name, *words(values), used)
    if note:
        warnings.warn(note, UserWarning, stacklevel=2)
    return found


def _is_from_dtype(asked: Any) -> bool:
    return isinstance(asked, str) and asked == FROM_DTYPE


def _mask(asked: Any, names: Any, n_columns: int) -> Flags:
    """The columns that ``categorical_features`` names, numbers, or marks: (d,)."""
    mask = np.zeros(n_columns, dtype=bool)
    if asked is None or _is_from_dtype(asked):
        return mask
    given = np.asarray(asked)
    wanted = f"`categorical_features` must be None, {FROM_DTYPE!r}, or names, numbers or a mask of columns"
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biuUO"):
        raise InputError(f"{wanted}; got {asked!r}.")
    if given.dtype.kind == "b":
        if len(given) != n_columns:
            raise InputError(f"{wanted}; the mask has {len(given)} entries, and there are {n_columns} columns.")
        return given
    if given.dtype.kind in "iu":
        if given.min() < 0 or given.max() >= n_columns:
            raise InputError(f"{wanted}, from 0 to {n_columns - 1}; got {asked!r}.")
        mask[given] = True
        return mask
    places = {str(name): place for place, name in enumerate(() if names is None else names)}
    absent = [str(name) for name in given.tolist() if name not in places]
    if absent:
        there = f"there are {listed(list(places))}" if places else "these columns have no names"
        raise InputError(f"{wanted}; there is no {listed(absent)}: {there}.")
    mask[[places[name] for name in given.tolist()]] = True
    return mask
