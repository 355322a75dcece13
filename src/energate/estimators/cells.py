"""Tables as they are: missing cells and categories, between the user's columns and those that a model sees.

Rows go through two steps.  They are *read*: an array, or a frame, becomes numbers (n, d), with NaN where a cell is
missing and a key for every category (`energate.tables.values.keys_of`).  And they are *expanded*: a missing number is
filled, and columns of 0 and 1 say that it was missing, or which category there is.  The result (n, D) has no NaN.  It
is what a scaler brings to the scale of a model, and what its energy is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.estimators.edge import Array
from energate.tables.values import keys_of, listed

ABSENT = "(missing)"
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
