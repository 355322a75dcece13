"""A model as the server sees it: limits, rows that become numbers, what it says of itself, what it can do."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.persistence.loaded import load_with_columns
from energate.serving import bodies, schemas
from energate.serving.operations import Operation, RowsOf, operations
from energate.serving.questions import questions
from energate.tables import CellError, Columns, ImageColumn
from energate.views import View, describe, view_of
from energate.views.applying import TableModel

MOST_EXAMPLES = 20
LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Settings:
    """Limits of a server, and its key: None lets everybody in."""

    max_rows: int = 10_000
    max_bytes: int = 16 * 2**20
    api_key: str | None = None
    seconds_to_send: float = 30.0  # for a client to send the head of its request, and again for the body

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if not 0 < self.seconds_to_send < math.inf:
            raise InputError(f"`seconds_to_send` must be a number above 0; got {self.seconds_to_send}.")
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable() and key == key.strip()):
            raise InputError("The API key must be one or more printable ASCII characters, without blanks at its ends.")


@dataclass(frozen=True)
class Served:
    """What the server offers: ``about`` is the answer of ``/model``, ``example`` a row to show."""

    about: dict[str, Any]
    operations: dict[str, Operation]
    example: Any


# --- rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowReader:
    """Rows as requests have them, of a model that takes ``n_features`` numbers or the columns of a table."""

    n_features: int
    columns: Columns | None = None
    limits: Settings = field(default_factory=Settings)

    @property
    def kind(self) -> Any:
        """The type of a row."""
        return schemas.numbers(self.n_features) if self.columns is None else schemas.table_row(self.columns)

    def matrix(self, rows: Sequence[Any]) -> NDArray[np.float64]:
        """The rows as numbers, (n, d)."""
        if self.columns is None:
            return np.asarray(rows, dtype=np.float64)
        names = self.columns.names
        records = [_record(row, names, number) for number, row in enumerate(rows)]
        try:
            return self.columns.matrix_of(records)
        except CellError as error:
            raise InputError(error.told(f"rows[{error.row}]")) from None

    def carried(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What rows have beside the model's columns, such as ids: ``carried``, an object each; nothing if none has."""
        names = set() if self.columns is None else set(self.columns.names)
        found = [
            {name: cell for name, cell in row.items() if name not in names} if isinstance(row, dict) else {}
            for row in rows
        ]
        return {"carried": found} if any(found) else {}

    @property
    def bulk(self) -> bodies.Bulk:
        """What reads many rows at once: a matrix, of a model that takes numbers alone, or a table."""
        npy = {bodies.NPY: partial(bodies.from_npy, n_features=self.n_features)} if self.columns is None else {}
        return {**npy, bodies.ARROW: self._of_arrow}

    def _of_arrow(self, content: bytes) -> NDArray[np.float64]:
        table = bodies.from_arrow(content, self.limits.max_bytes, self.limits.max_rows)
        if self.columns is None:
            return bodies.numbers_of(table, self.n_features)
        try:
            return self.columns.matrix(table)
        except CellError as error:
            raise InputError(error.told(f"rows[{error.row}]")) from None

    @property
    def ordinary(self) -> Any:
        """A row to show how a request looks."""
        if self.columns is None:
            return [0.0] * self.n_features
        return {column.name: column.ordinary for column in self.columns.inputs}


def _record(row: Any, names: Sequence[str], number: int) -> dict[str, Any]:
    """A row of a table by the names of its columns, after a look at every cell."""
    if isinstance(row, list):
        if len(row) != len(names):
            raise InputError(f"rows[{number}] must have {len(names)} values, one for each column; got {len(row)}.")
        row = dict(zip(names, row, strict=True))
    if not isinstance(row, dict):
        raise InputError(f"rows[{number}] must be an object, or a list of values; got {schemas.shown(row)}.")
    absent = [name for name in names if name not in row]
    if absent:
        unknown = [name for name in row if name not in names]
        parts = {"lacks columns (null stands for a missing value)": absent, "has others": unknown}
        words = [f"{word}: {', '.join(map(schemas.shown, found[:5]))}" for word, found in parts.items() if found]
        raise InputError(f"rows[{number}] {'; '.join(words)}.")
    for name, cell in row.items():
        if not _is_cell(cell):
            raise InputError(
                f"rows[{number}]: {schemas.shown(name)} must be a finite number, a text of at most {schemas.LONGEST} "
                f"characters, true, false or null; got {schemas.shown(cell)}."
            )
    return row


def _is_cell(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= schemas.LONGEST
    return value is None or isinstance(value, bool) or (isinstance(value, int | float) and abs(value) <= LARGEST)


# --- models ------------------------------------------------------------------------------------------------------


def serve_model(
    model: Any,
    columns: Columns | None = None,
    examples: Sequence[Any] = (),
    settings: Settings | None = None,
    name: str | None = None,
) -> Served:
    """What a server offers of a fitted estimator, whose rows are those of a table if it has ``columns``.

    ``name`` is what people call it.
    """
    view, about = view_of(model), describe(model)
    view.freeze()
    if columns is None and about["cells"] is not None:  # its rows are not all numbers
        columns = view.columns([each["name"] for each in about["cells"]])
    if columns is not None:
        about["feature_names"] = list(columns.feature_names)
        about["seen_names"] = view.seen_names(columns.feature_names)
        if about["labels"] is not None and columns.labels:
            about["labels"] = list(columns.labels)
    pictures = columns is not None and any(isinstance(column, ImageColumn) for column in columns.inputs)
    settings = settings or Settings()
    reader = RowReader(int(model.n_features_in_), None if pictures else columns, settings)  # pixels have no names
    rows_of = RowsOf(reader.kind, reader.matrix, settings.max_rows, reader.bulk, reader.carried)
    shown = list(examples or (columns.examples if columns is not None else ()))[:MOST_EXAMPLES]
    example = shown[0] if shown else reader.ordinary
    offered = {**operations(view, about, rows_of), **questions(view, reader.columns, rows_of, example)}
    for number, row in enumerate(shown):
        _check_example(number, row, reader)
    about |= _pictures(view, columns, shown)
    about |= {
        "target": columns.targets[0] if columns is not None and len(columns.targets) == 1 else None,
        "columns": None if columns is None or pictures else _without(columns.to_json(), "examples"),
        "examples": shown,
        "operations": list(offered),
        "limits": {"rows": settings.max_rows, "bytes": settings.max_bytes},
    }
    if name is not None:
        about["name"] = name
    return Served(about, offered, example)


def _pictures(view: View, columns: Columns | None, examples: Sequence[Any]) -> dict[str, Any]:
    """``image``, the shape of the pictures that rows are, and ``range`` of their pixels; without a range neither.

    ``white`` is where the brightest pixel of a file stands, None where files have no place on the scale.

    A page that does not know which numbers are dark and bright had better not draw.
    """
    shape = view.shape if columns is None else columns.image or view.shape
    limits = view.range if columns is None else columns.range or view.range
    rows = [row for row in examples if isinstance(row, list | tuple)]
    if shape is not None and limits is None and rows:
        limits = min(map(min, rows)), max(map(max, rows))
    known = shape is not None and limits is not None
    column = TableModel(view.named, columns).pictures if known else None
    return {
        "image": list(shape) if known and shape else None,
        "range": list(limits) if known and limits else None,
        "white": None if column is None else column.white,
    }


def _without(content: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != name}


def _check_example(number: int, row: Any, reader: RowReader) -> None:
    one = schemas.body("Example", row=(reader.kind, ...))
    try:
        reader.matrix([schemas.parse(one, json.dumps({"row": row}).encode())["row"]])
    except (schemas.BodyError, InputError) as error:
        raise InputError(f"Example {number} is no row of this model: {error}") from error


def load_served(path: Path, device: str = "cpu", settings: Settings | None = None) -> Served:
    """What a server offers of a saved model; example rows may lie beside it, in ``NAME-examples.json``."""
    model, columns = load_with_columns(path, device)
    return serve_model(model, columns, examples_beside(path), settings, path.name)


def examples_beside(path: Path) -> list[Any]:
    """The rows in ``NAME-examples.json`` beside a saved model; none if there is no such file."""
    beside = path.with_name(f"{path.name.removesuffix('.zip')}-examples.json")
    if not beside.is_file():
        return []
    try:
        found = json.loads(beside.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{beside} must be a JSON list of rows; it cannot be read ({error}).") from error
    if not isinstance(found, list):
        raise InputError(f"{beside} must be a JSON list of rows; got {type(found).__name__}.")
    return found
