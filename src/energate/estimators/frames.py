"""Rows as users have them, arrays and frames, as the numbers that `Cells` expand: with NaN, and keys for categories."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import Tags, _safe_indexing, check_array, check_X_y
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators.cells import Cells, Flags
from energate.estimators.edge import Array, Scaler
from energate.estimators.streamed import as_learned
from energate.tables import CellError, CodedRows
from energate.tables.values import (
    categories_of,
    columns_of,
    doubts,
    is_category,
    is_frame,
    is_from_pandas,
    is_temporal,
    keyed,
    listed,
    names_of,
    numbers,
    refuse_mixed,
    words,
)

FROM_DTYPE = "from_dtype"
_HOW: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}


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


def take(X: Any, rows: Any) -> Any:
    """Some rows of an array, a list, a frame, or `CodedRows`."""
    if isinstance(X, CodedRows):
        return CodedRows(X.matrix[rows], X.columns)
    return _safe_indexing(X, rows)


def read_rows(estimator: Any, X: Any) -> Array:
    """Rows as numbers, (n, d), with NaN where a cell is missing, and keys for categories."""
    return _checked(estimator, X, None)[0]


def _checked(estimator: Any, X: Any, y: Any) -> tuple[Array, Any]:
    """Rows, read as the columns that `fit` found want it, and y; None reads the rows alone."""
    cells: Cells = estimator.cells_
    X = as_learned(estimator, X)
    if isinstance(X, CodedRows):
        known = vars(estimator).get("feature_names_in_", ())
        if list(known) != (names := X.columns.feature_names):
            raise InputError(f"The columns must be those of `fit`, {listed(known)}; got {listed(names)}.")
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
        rows, y = _of_numbers(estimator, X.matrix, y, reset=True)
        estimator.feature_names_in_ = np.array(X.columns.feature_names, dtype=object)
        given = {i: found for i, found in enumerate(X.columns.words) if found is not None}
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
    validate_data(estimator, X, "no_validation" if y is None else y, skip_check_array=True)
    used = _used(sample_weight, X)
    categories = table.categories(asked, used)
    rows, y = _validated(table.matrix(categories), y, estimator)
    return rows, y, _found(rows, categories, used)


def _of_numbers(estimator: Any, X: Any, y: Any, reset: bool) -> tuple[Array, Any]:
    """Rows of numbers, as scikit-learn checks them, and y."""
    try:
        if y is None:
            return validate_data(estimator, X, reset=reset, **_HOW), None
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
        """None for numbers, and for what scikit-learn refuses; ``categories``: whether columns are known to be some."""
        if is_frame(X):
            # A frame's numbers are words where there are categories, those of an array are keys.
            columns = columns_of(X)
            return None if not categories and all(map(_has_numbers, columns)) else cls(names_of(X), columns)
        array = _as_objects(X) if categories and isinstance(X, list | tuple) else X
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


def _as_objects(rows: Any) -> Any:
    """Lists as an array, of numbers if they hold nothing else; what is no array stays as it is."""
    try:
        found = np.asarray(rows)
    except ValueError:
        return rows
    return found if found.dtype.kind in "biufc" else np.asarray(rows, dtype=object)


def _has_numbers(values: Any) -> bool:
    return is_from_pandas(values) and values.dtype.kind in "biufc"


def _is_number_column(name: str, values: Any, by_type: bool) -> bool:
    """Whether a column that nobody called a category is numbers; an `InputError` where it is neither."""
    if is_temporal(values):
        raise InputError(
            f"{name!r} holds dates or times, which are neither numbers nor categories. Make numbers of them first, "
            "such as the year, the month, the day of the week or the days since something, put a TableEncoder before "
            "the model, which does, or leave the column out."
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
    try:
        refuse_mixed(name, codes, different)
    except CellError as error:
        raise InputError(f"{error} If {name!r} holds categories, give it the dtype category.") from error
    why = doubts(len(codes), different)
    if why == "dates":
        raise InputError(
            f"{name!r} holds dates as text. Make numbers of them first, such as the year, the month, the day of the "
            "week or the days since something, put a TableEncoder before the model, which does, or leave the column "
            "out."
        )
    if why == "names":
        raise InputError(
            f"{name!r} is text with {len(different):,} different values in {len(codes):,} rows: it names the rows, or "
            "is free text. Leave it out, or put a TableEncoder before the model, which makes numbers of text; if it "
            "holds categories, give it the dtype category."
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
