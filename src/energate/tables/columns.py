"""`Columns`: which columns of a table a model takes, and how their cells become numbers.  Saved with the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from energate.errors import InputError
from energate.tables.cells import Array, CellError, listed, n_cells, names_of, numbers, words

TASKS = ("classify", "multilabel", "anomaly")
VERSION = 1


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

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"name": self.name, "fill": self.fill}


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

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"name": self.name, "categories": list(self.categories)}


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

    def matrix(self, frame: Any) -> Array:
        """The rows as numbers, (n, d): of a pandas frame, a pyarrow table or record batch, or a mapping of columns."""
        missing = sorted(set(self.names) - set(names_of(frame)), key=self.names.index)
        if missing:
            raise InputError(f"The table must have the columns that the model takes; it lacks {listed(missing)}.")
        widths = [len(column.feature_names) for column in self.inputs]
        found = np.empty((n_cells(frame[self.names[0]]), sum(widths)))
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
        return {
            "version": VERSION,
            "task": self.task,
            "targets": list(self.targets),
            "labels": None if self.labels is None else list(self.labels),
            "image": None if self.image is None else list(self.image),
            "inputs": [column.to_json() for column in self.inputs],
        }

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
