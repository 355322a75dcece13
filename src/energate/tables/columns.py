"""`Columns`: which columns of a table a model takes, and how their cells become numbers.  Saved with the model.

`learn_columns` makes them of a table; `classes_of` and `labels_of` read what is to be predicted.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.forms import FORMATS, PLAIN, Form
from energate.tables.made import PARTS, DateColumn, TextColumn
from energate.tables.values import CellError, is_category, keyed, listed, names_of, numbers, words

TASKS = ("classify", "multilabel", "anomaly")
VERSION = 4
BRIGHTEST = 255.0  # a pixel of a file
_LATER = {2: ("coded",), 4: ("range", "examples")}  # what came with which version
_ON_OFF = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers; ``fill`` stands where a cell is missing, None refuses such cells."""

    name: str
    fill: float | None
    form: Form = PLAIN

    @property
    def ordinary(self) -> Any:
        """A cell to show what a row looks like."""
        return self.fill or 0.0

    @property
    def feature_names(self) -> list[str]:
        """One column of the matrix."""
        return [self.name]

    def coded(self, values: Any) -> Array:
        """The numbers of the cells, NaN where one is missing and may be: (n,)."""
        found = numbers(values, self.name, self.form)
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
    form: Form = PLAIN

    @property
    def ordinary(self) -> Any:
        """A cell to show what a row looks like."""
        return self.categories[0]

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
        return keyed(values, self.words, self.form.missing)

    def unseen(self, values: Any) -> Counter[str]:
        """The cells that are none of the categories, and how often each is there."""
        codes, different = words(values, self.form.missing)
        counts = np.bincount(codes, minlength=len(different)).tolist()
        found = zip(different, counts, strict=True)
        return Counter({text: n for text, n in found if text is not None and text not in self.categories})

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write 0 and 1 into (n, number of categories)."""
        codes, different = words(values, self.form.missing)
        places = {category: place for place, category in enumerate(self.categories)}
        # A last column, cut off again, takes what is no category.
        table = np.eye(len(places) + 1)[[places.get(each, len(places)) for each in different], :-1]
        matrix[:] = table[codes] if different else 0.0


@dataclass(frozen=True)
class ImageColumn:
    """A column of pictures, each of this shape: height, width and channels.

    ``white`` is the value that the brightest pixel of a file has here; None where files have no place on the scale.
    """

    name: str
    shape: tuple[int, int, int]
    white: float | None = None
    form: Form = PLAIN

    @property
    def ordinary(self) -> Any:
        """A picture to show what a row looks like: a dark one."""
        return np.zeros(self.shape).tolist()

    @property
    def feature_names(self) -> list[str]:
        """A column of the matrix for each number of a pixel."""
        return [f"{self.name}{i}" for i in range(math.prod(self.shape))]

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write the pixels into (n, height * width * channels)."""
        given = tuple(np.shape(values)[1:])
        if (*given, 1)[:3] != self.shape or len(given) not in (2, 3):
            raise InputError(
                f"{self.name!r} must hold pictures of {size_in_words(self.shape)}; got {size_in_words(given)}."
            )
        matrix[:] = np.reshape(values, matrix.shape)
        if not np.isfinite(matrix).all():
            row = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
            raise CellError(self.name, row, "a pixel that is none", "a picture of finite numbers")

    def coded(self, values: Any) -> Array:
        """The pixels, (n, height * width * channels)."""
        found = np.empty((len(values), math.prod(self.shape)))
        self.fill_in(found, values)
        return found


def size_in_words(shape: Sequence[int]) -> str:
    """The shape of a picture: 28 x 28, or 32 x 32 x 3 in colours."""
    return " x ".join(map(str, shape[:2] if len(shape) == 3 and shape[2] == 1 else shape)) or "single numbers"


#: what a row of a table may be made of
Column = NumberColumn | CategoryColumn | DateColumn | TextColumn | ImageColumn


@dataclass(frozen=True)
class Columns:
    """The columns of a table that a model takes, in their order, and what it says about the table's others.

    ``inputs`` are the columns taken.  ``targets`` are the columns that were to be predicted, ``labels`` their names for
    several labels; ``image`` is (height, width), perhaps with channels, where the numbers of a row are a picture.
    ``coded`` columns are for a model that takes missing cells and categories as they are: one number for each column,
    NaN where a cell is missing, and for a category its key.  Otherwise missing cells are filled, and categories are
    columns of 0 and 1.  Of pictures ``range`` is that of the pixels, from least to largest, and ``examples`` are some.
    """

    inputs: tuple[Column, ...]
    task: str = "classify"
    targets: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    image: tuple[int, ...] | None = None
    coded: bool = False
    range: tuple[float, float] | None = None
    examples: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        if self.task not in TASKS:
            raise InputError(f"`task` must be one of {', '.join(TASKS)}; got {self.task!r}.")
        if not names or len(set(names)) < len(names) or set(names) & set(self.targets):
            raise InputError(f"`inputs` must be columns, each once, and no targets; got {listed(names)}.")
        if self.image is not None and math.prod(self.image) != self.width:
            size = "x".join(map(str, self.image))
            raise InputError(
                f"An image of {size} has {math.prod(self.image)} pixels; the table has {self.width} "
                "columns of numbers. Leave the others out, or give the size that the images have."
            )
        if any(len(row) != self.width for row in self.examples):
            raise InputError(f"`examples` must be rows of {self.width} numbers.")

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
        whole = (NumberColumn, CategoryColumn) if self.coded else ()
        return [
            name
            for column in self.inputs
            for name in ([column.name] if isinstance(column, whole) else column.feature_names)
        ]

    @property
    def width(self) -> int:
        """How many columns the matrix has; without names of pixels, of which a forged file may claim any number."""
        whole = (NumberColumn, CategoryColumn) if self.coded else ()
        return sum(
            math.prod(column.shape)
            if isinstance(column, ImageColumn)
            else 1
            if isinstance(column, whole)
            else len(column.feature_names)
            for column in self.inputs
        )

    @property
    def words(self) -> list[tuple[str, ...] | None]:
        """The categories of each column of a coded matrix, without missing cells; None for numbers."""
        found: list[tuple[str, ...] | None] = []
        for column in self.inputs:
            wide = len(column.feature_names) if isinstance(column, DateColumn | TextColumn) else 1
            found += [column.words] if isinstance(column, CategoryColumn) else [None] * wide
        return found

    def unseen(self, frame: Any) -> dict[str, Counter[str]]:
        """Of every column of categories, the cells that are none of them, and how often each is there."""
        return {
            column.name: column.unseen(frame[column.name])
            for column in self.inputs
            if isinstance(column, CategoryColumn)
        }

    def for_width(self, n_features: Any) -> Self:
        """Themselves, unless they make other rows than a model of so many columns takes."""
        if self.width != n_features:
            raise InputError(
                f"`columns` must make rows of {n_features} numbers, as the model takes; they make {self.width}."
            )
        return self

    def matrix(self, frame: Any) -> Array:
        """The rows as numbers, (n, d): of a pandas frame, a pyarrow table or record batch, or a mapping of columns."""
        missing = sorted(set(self.names) - set(names_of(frame)), key=self.names.index)
        if missing:
            raise InputError(f"The table must have the columns that the model takes; it lacks {listed(missing)}.")
        if self.coded:
            return np.column_stack([column.coded(frame[column.name]) for column in self.inputs])  # (n, d)
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
        own = {name: _plain(value) for name, value in vars(self).items() if name not in ("inputs", "examples")}
        own["examples"] = [[int(value) if value.is_integer() else value for value in row] for row in self.examples]
        inputs = [_as_json(column) for column in self.inputs]
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
                *_shown(content),
            )
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"These are no columns that energate wrote: {error}.") from error


def _as_json(column: Column) -> dict[str, Any]:
    own = {name: _plain(value) for name, value in vars(column).items() if name != "form"}
    return own if column.form == PLAIN else {**own, "form": column.form.to_json()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_keys(content: dict[str, Any]) -> None:
    if type(content.get("version")) is not int or not 1 <= content["version"] <= VERSION:
        raise ValueError(f"version {content.get('version')!r}, expected 1 to {VERSION}")
    later = {name for version, names in _LATER.items() if content["version"] >= version for name in names}
    if content.keys() != {"version", "task", "targets", "labels", "image", "inputs"} | later:
        raise ValueError(f"unexpected keys {sorted(content)}")


def _column(content: dict[str, Any]) -> Column:
    form = Form.from_json(content["form"]) if "form" in content else PLAIN
    content = {key: value for key, value in content.items() if key != "form"}
    (name,) = _texts([content["name"]])
    if content.keys() == {"name", "shape", "white"}:
        height, width, channels = _size(content["shape"])
        white = content["white"]
        if white is not None and (type(white) not in (int, float) or not 0 < white < math.inf):
            raise ValueError(f"the white of {name!r} is no number above 0")
        return ImageColumn(name, (height, width, channels), None if white is None else float(white))
    if content.keys() == {"name", "fill"}:
        return NumberColumn(name, None if content["fill"] is None else _finite(content["fill"], name), form)
    if content.keys() == {"name", "style", "parts", "fill"}:
        (style,), parts, fill = _texts([content["style"]]), _texts(content["parts"]), content["fill"]
        if style not in FORMATS or not parts or not set(parts) <= set(PARTS) or len(fill) != len(parts):
            raise ValueError(f"the dates of {name!r} have no known style and parts")
        return DateColumn(name, style, parts, tuple(_finite(each, name) for each in fill), form)
    if content.keys() == {"name", "vocabulary"}:
        vocabulary = _texts(content["vocabulary"])
        if not vocabulary or len(set(vocabulary)) < len(vocabulary):
            raise ValueError(f"the words of {name!r} must be there, each once")
        return TextColumn(name, vocabulary, form)
    categories = content["categories"]
    if content.keys() != {"name", "categories"} or type(categories) is not list or not categories:
        raise ValueError(f"the column {name!r} has neither a fill nor categories")
    _texts([category for category in categories if category is not None])
    if len(set(categories)) < len(categories):
        raise ValueError(f"a category of {name!r} occurs twice")
    return CategoryColumn(name, tuple(categories), form)


def _finite(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"the fill of {name!r} is no number")
    return float(value)


def _texts(values: Any) -> tuple[str, ...]:
    if type(values) is not list or any(type(value) is not str for value in values):
        raise ValueError("names must be text")
    return tuple(values)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("`coded` must be true or false")
    return value


def _size(values: Any) -> tuple[int, ...]:
    whole = type(values) is list and all(type(value) is int and value > 0 for value in values)
    if not whole or len(values) not in (2, 3):
        raise ValueError("an image must have a height and a width, perhaps channels")
    return tuple(values)


def _shown(content: dict[str, Any]) -> tuple[tuple[float, float] | None, tuple[tuple[float, ...], ...]]:
    """The range and the examples of pictures."""
    limits, rows = content.get("range"), content.get("examples", [])
    if type(rows) is not list or any(type(row) is not list for row in rows):
        raise ValueError("`examples` must be rows of numbers")
    found = [] if limits is None else list(limits)
    for value in (*found, *(value for row in rows for value in row)):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError("pixels must be finite numbers")
    if limits is not None and (len(found) != 2 or not found[0] <= found[1]):
        raise ValueError("`range` must be two numbers, the least first")
    limited = None if limits is None else (float(found[0]), float(found[1]))
    return limited, tuple(tuple(map(float, row)) for row in rows)


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
    image: tuple[int, ...] | None = None,
    rows: NDArray[np.int64] | None = None,
    coded: bool = False,
    declared: Sequence[str] = (),
    missing: Sequence[str] = (),
    decimal: str | None = None,
) -> tuple[Columns, list[str]]:
    """The columns that a model can take, with fill values and categories from ``rows``, and what was left out and why.

    Columns in ``drop`` are left out, those in ``keep`` never are.  Those in ``categories`` count as text.  ``coded``
    columns are for a model that takes missing cells and categories as they are.  ``declared`` are columns that the
    table itself calls categories: text, if they are no ids or dates.  ``missing`` are words that are missing cells
    beside the usual ones, ``decimal`` the mark before fractions, where it is known.
    """
    from energate.tables.learning import Learner  # which needs what is here

    _check_names(table, targets=targets, drop=drop, keep=keep, category=categories)
    inputs, notes = list[Column](), list[str]()
    found = None if labels is None else tuple(labels)
    pictures = pictures_of(table)
    if pictures is not None:
        made_of = (*pictures.shape, 1)[: 2 if pictures.shape[2] == 1 else 3]
        return Columns((pictures,), task, tuple(targets), found, made_of), notes
    learner = Learner(rows, tuple(missing), decimal, notes)
    for name in table:
        if name in targets or name in drop:
            continue
        typed = name in declared or is_category(table[name])
        made = learner.learn(name, table[name], name in categories, name in keep, typed)
        if isinstance(made, str):
            notes.append(f"{name!r} is left out: {made}")
        else:
            inputs.append(made)
    if not inputs:
        raise InputError(f"There is no column left to learn from. {' '.join(notes)}".rstrip())
    return Columns(tuple(inputs), task, tuple(targets), found, image, coded), notes


def pictures_of(table: Mapping[str, Any]) -> ImageColumn | None:
    """The column of a table that holds pictures; the others then say something about them."""
    for name, values in table.items():
        if isinstance(values, np.ndarray) and values.ndim > 2:
            height, width, channels = map(int, (*values.shape[1:], 1)[:3])
            return ImageColumn(name, (height, width, channels), white_of(float(values.max()), values.dtype))
    return None


def white_of(largest: float, dtype: Any = None) -> float | None:
    """Where the brightest pixel of a file stands, if pixels go up to ``largest``: at 1 or at 255, or nobody knows."""
    if dtype == np.uint8:
        return BRIGHTEST
    return 1.0 if 0.5 < largest <= 1 else BRIGHTEST if 128 <= largest <= BRIGHTEST else None


def _check_names(table: Mapping[str, Any], **given: Sequence[str]) -> None:
    for option, names in given.items():
        missing = [name for name in names if name not in table]
        if missing:
            raise InputError(
                f"`{option}` must name columns; there is no {listed(missing)}. There are {listed([*table])}."
            )


# --- what is to be predicted -------------------------------------------------------------------------------------


def classes_of(table: Mapping[str, Any], target: str, to_learn: bool = True) -> NDArray[Any]:
    """The class of every row: whole numbers, or text; ``to_learn`` from: several classes, with several rows each."""
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
    if not to_learn:
        return y
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
