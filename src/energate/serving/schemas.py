"""What requests may hold: rows as this model takes them, checked before anything is computed, and mistakes in words."""

import json
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, create_model
from pydantic_core import PydanticCustomError

from energate.errors import InputError
from energate.tables import Columns, ImageColumn, NumberColumn
from energate.tables.columns import Column

Schema = dict[str, Any]
SPARE, VALUE = 2**22, 100  # bytes for a request with one row, and for each number of others
LONGEST = 1000  # characters of a word in a cell
SHOWN = 60  # characters of a wrong value
BESIDE = ("labels", "scores", "mask", "level")  # what comes with rows, an entry for each
LEVELS = ("alpha", "reject")  # one number for all rows of a request
FIELDS = ("rows", "row", "n_steps", "of", "target", "against", "max_columns", *BESIDE, *LEVELS)

#: a number as JSON has it: no text, no true or false, nothing infinite
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: above 0 and below 1
Level = Annotated[Number, Field(gt=0, lt=1)]
#: a class
Label = Annotated[bool, Field(strict=True)] | Number | Annotated[str, Field(strict=True, max_length=LONGEST)]


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("int_type", "no number")
    return value


#: a whole number as JSON has it: 2 and 2.0, but no text
Whole = Annotated[int, BeforeValidator(_number)]


class BodyError(Exception):
    """A body that is no JSON at all, or not what the operation takes; ``status`` says which."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def numbers(n: int) -> Any:
    """The type of a row of n numbers."""
    # Without `fail_fast` a body of nothing but mistakes would make a report much larger than itself.
    return Annotated[list[Number], Field(min_length=n, max_length=n, fail_fast=True)]


def several(of: Any, most: int) -> Any:
    """The type of a list of at least one, and at most so many."""
    return Annotated[list[of], Field(min_length=1, max_length=most, fail_fast=True)]


def table_row(columns: Columns) -> Any:
    """The type of a row of a table: an object with these columns, or their values in order."""
    cells = {column.name: _cell(column) for column in columns.inputs if not isinstance(column, ImageColumn)}
    record = {"type": "object", "properties": cells, "required": list(cells)}
    in_order = {"type": "array", "prefixItems": list(cells.values()), "minItems": len(cells), "maxItems": len(cells)}
    # `RowReader` checks what is in it: pydantic's errors of a union would speak of both forms at once.
    return Annotated[Any, WithJsonSchema({"anyOf": [record, in_order]})]


def _cell(column: Column) -> Schema:
    if not isinstance(column, NumberColumn) or not column.form.plain:
        return {"type": ["string", "number", "boolean", "null"], "maxLength": LONGEST}
    return {"type": "number"} if column.fill is None else {"type": ["number", "null"]}


def body(name: str, **fields: Any) -> type[BaseModel]:
    """A request body: fields, each a type and its default (... if it must be there); others are refused."""
    made: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return made


def make_sure(n_values: int, n_bytes: int = 0) -> None:
    """Raise `MemoryError` where there is no room for so many numbers of JSON, of so many bytes.

    Rust, in which pydantic and orjson are written, ends the process, or waits for ever, where it finds none.
    """
    np.empty(SPARE + VALUE * n_values + 4 * n_bytes, np.uint8)  # asked for, and given back untouched


def parse(kind: type[BaseModel], content: bytes) -> dict[str, Any]:
    """The fields of a body, those that were left out as their defaults."""
    make_sure(content.count(b",") + content.count(b"["), len(content))
    try:
        found = kind.model_validate_json(content)
    except ValidationError as error:
        raise _in_words(error) from None
    return {name: getattr(found, name) for name in kind.model_fields}


def parse_rows(kind: type[BaseModel], content: bytes) -> tuple[dict[str, Any], int]:
    """The fields of a body that are not null, and how many rows they are of; what comes with rows has one for each."""
    fields = {name: value for name, value in parse(kind, content).items() if value is not None}
    n_rows = len(fields["rows"]) if "rows" in fields else 1
    fields |= {name: [fields[name]] * n_rows for name in LEVELS if name in fields}
    for name in BESIDE:
        if name in fields and len(fields[name]) != n_rows:
            raise InputError(f"`{name}` must have one entry for each of the {n_rows} rows; got {len(fields[name])}.")
    return fields, n_rows


def _in_words(error: ValidationError) -> BodyError:
    """The first mistake of a body, and where it is."""
    first = error.errors(include_url=False)[0]
    kind, given, context = first["type"], first["input"], first.get("ctx", {})
    if kind == "json_invalid":
        return BodyError(400, f"The body must be JSON; it is not. {first['msg'].removeprefix('Invalid JSON: ')}.")
    if kind == "extra_forbidden":
        return BodyError(422, f"The body must not have a field {shown(first['loc'][-1])}. Leave it out.")
    # Of a value in several forms pydantic also names the form, which no client knows.
    place = [part for part in first["loc"] if isinstance(part, int) or part in FIELDS]
    where = "".join(f"[{part}]" if isinstance(part, int) else part for part in place) or "The body"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        exactly = "" if len(place) > 1 or place == ["row"] else "at least " if kind == "too_short" else "at most "
        entries = "entry" if limit == 1 else "entries"
        return BodyError(422, f"{where} must have {exactly}{limit} {entries}; got {context.get('actual_length')}.")
    expected = {
        "model_type": "must be an object with fields",
        "float_type": "must be a number",
        "list_type": "must be a list",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "int_parsing_size": "must be a whole number of a usual size",
        "finite_number": "must be a finite number, at most 1.8e308",
        "none_required": "must be null, or left out",
        "less_than": f"must be below {context.get('lt')}",
        "greater_than": f"must be above {context.get('gt')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "greater_than_equal": f"must be at least {context.get('ge')}",
    }
    if kind == "missing":
        return BodyError(422, f"{where} is missing.")
    return BodyError(422, f"{where} {expected.get(kind, 'is wrong: ' + first['msg'])}; got {shown(given)}.")


def shown(value: Any) -> str:
    """A wrong value for a message, cut if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


# --- what comes back ---------------------------------------------------------------------------------------------

NUMBER: Schema = {"type": ["number", "null"]}  # null stands for one that is not finite
LABEL: Schema = {"type": ["string", "number", "boolean"]}
ERROR: Schema = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}


def array(of: Schema, depth: int = 1) -> Schema:
    """The schema of a list, or of lists in lists."""
    for _ in range(depth):
        of = {"type": "array", "items": of}
    return of


def answer(**fields: Schema) -> Schema:
    """The schema of an answer that has all these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}
