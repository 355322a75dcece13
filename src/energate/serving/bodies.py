"""What goes over the wire: answers as JSON or npz, and rows in bulk, as npy or Arrow, beside those in JSON."""

import io
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from energate.errors import InputError, require
from energate.serving.schemas import LONGEST, BodyError, make_sure, shown

JSON, NPY, ARROW, NPZ = (
    "application/json",
    "application/x-npy",
    "application/vnd.apache.arrow.stream",
    "application/x-npz",
)
#: what makes rows (n, d) of the bytes of a request, by the kind of its content
Bulk = Mapping[str, Callable[[bytes], NDArray[np.float64]]]


# --- answers -----------------------------------------------------------------------------------------------------


class Answer(Response):
    """JSON, of arrays too; a number that is not finite is null."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        if n_values := sum(each.size for each in content.values() if isinstance(each, np.ndarray)):
            make_sure(n_values)
        return orjson.dumps(content, default=_listed, option=orjson.OPT_SERIALIZE_NUMPY)


def _listed(value: Any) -> Any:
    """Arrays that are not numbers, or not in one piece."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON.")


class Archive(Response):
    """Arrays by name, as numpy's npz; what is no array is one of a single entry, and null is left out."""

    media_type = NPZ

    def render(self, content: Any) -> bytes:
        file = io.BytesIO()
        arrays = {name: _unpickled(np.asarray(each)) for name, each in content.items() if each is not None}
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()


def _unpickled(values: NDArray[Any]) -> NDArray[Any]:
    """Objects would be pickled, which nobody should load from a server."""
    return values.astype(str) if values.dtype.kind == "O" else values


def answer(content: dict[str, Any], headers: Headers) -> Response:
    """The answer in the form that the client asks for: npz, or else JSON."""
    return Archive(content) if headers.get("accept", "").partition(";")[0].strip().lower() == NPZ else Answer(content)


# --- rows --------------------------------------------------------------------------------------------------------


def bulk_rows(bulk: Bulk, kind: str, content: bytes, most: int) -> dict[str, NDArray[np.float64]]:
    """Rows that came as ``kind``; an error that says what the operation takes, if not that."""
    if kind not in bulk:  # also keeps pages of other sites from sending forms here
        others = "".join(f", or {each}" for each in bulk)
        raise HTTPException(
            415, f"Send JSON, with the header Content-Type: application/json{others}; got {kind or 'none'!r}."
        )
    rows = bulk[kind](content)
    if not 1 <= len(rows) <= most:
        word = "at least 1 entry" if not len(rows) else f"at most {most} entries"
        raise BodyError(422, f"rows must have {word}; got {len(rows)}.")
    return {"rows": rows}


def from_npy(content: bytes, n_features: int) -> NDArray[np.float64]:
    """A matrix of finite numbers, (n, d), of numpy's format npy; nothing is unpickled."""
    file = io.BytesIO(content)
    try:
        shape, transposed, kind = NPY_HEADERS[np.lib.format.read_magic(file)](file)
    except (KeyError, ValueError, EOFError, SyntaxError, TypeError, RecursionError) as error:
        raise BodyError(400, "The body must be a matrix in numpy's format npy, with no objects in it.") from error
    if kind.hasobject:
        raise BodyError(400, "The body must be a matrix in numpy's format npy, with no objects in it.")
    if kind.kind not in "biuf":
        raise BodyError(422, "The body must be one matrix of numbers.")
    # What a head claims is looked at before anything is made of it.
    if len(shape) != 2 or shape[1] != n_features:
        raise BodyError(422, f"The matrix must have shape (n, {n_features}); got {str(shape)[:60]}.")
    if math.prod(shape) * kind.itemsize != len(content) - file.tell():
        raise BodyError(400, "The body must be a matrix in numpy's format npy; it has another size than its head says.")
    found = np.frombuffer(content, kind, offset=file.tell()).reshape(shape, order="F" if transposed else "C")
    return _finite(found.astype(np.float64, order="C"))


#: what reads the head of an npy file, by version; the third is for names of fields alone
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def from_arrow(content: bytes, max_bytes: int, max_rows: int) -> Any:
    """A table of Arrow's streaming format, of so many rows, that takes no more than so many bytes when unpacked."""
    arrow = require("pyarrow", "tables")
    try:
        _check_unpacked(arrow, content, max_bytes)
        with arrow.ipc.open_stream(content) as stream:
            _check_types(arrow, stream.schema)
            table = stream.read_all()
            table.validate(full=True)  # what a client claims of lengths and offsets may be anything
    except MemoryError:  # of Arrow's, too
        raise
    except (arrow.ArrowException, OSError, ValueError, struct.error) as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        if "alloc" in why:  # the libraries that unpack
            raise MemoryError(why) from error
        raise BodyError(400, f"The body must be a stream of Arrow; it is not. {why}") from error
    if table.num_rows > max_rows:  # columns of nulls may have any number of them
        raise BodyError(422, f"rows must have at most {max_rows} entries; got {table.num_rows}.")
    _check_texts(arrow, table)
    return table


def _check_types(arrow: Any, schema: Any) -> None:
    """Refuse columns whose cells are no cells, or that say one thing many times: a few bytes would be many rows."""
    types = arrow.types
    numbers = (types.is_primitive, types.is_boolean, types.is_decimal, types.is_temporal)
    plain = (*numbers, types.is_string, types.is_large_string, types.is_null)
    for field in schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if not any(check(kind) for check in plain):
            raise BodyError(
                422, f"The column {shown(field.name)} must hold numbers, text, dates or nothing; got {kind}."
            )


def _check_texts(arrow: Any, table: Any) -> None:
    """Refuse texts that are longer than in JSON; a dictionary may have one text for all rows."""
    compute = require("pyarrow.compute", "tables")
    for name, column in zip(table.column_names, table.columns, strict=True):
        parts = [part.dictionary for part in column.chunks] if arrow.types.is_dictionary(column.type) else column.chunks
        for part in parts:
            if arrow.types.is_string(part.type) or arrow.types.is_large_string(part.type):
                longest = compute.max(compute.utf8_length(part)).as_py() or 0
                if longest > LONGEST:
                    raise BodyError(422, f"A text of the column {shown(name)} has more than {LONGEST} characters.")


# --- what Arrow does not say -------------------------------------------------------------------------------------

# A compressed buffer begins with its length when unpacked, 8 bytes, or -1 where it is not compressed after all.  Arrow
# makes room for that length before it unpacks, and offers no limit; so the heads of batches are read here.  They are
# tables of flatbuffers: a table begins with the distance back to its list of fields, which has the places of these.
DICTIONARY, BATCH = 2, 3  # kinds of messages


def _check_unpacked(arrow: Any, content: bytes, most: int) -> None:
    total = 0
    for message in arrow.ipc.MessageReader.open_stream(content):
        if message.body is None or message.type == "schema":
            continue
        total += _unpacked(memoryview(message.metadata), memoryview(message.body))
        if total > most:
            raise BodyError(
                413, f"A request may have at most {most} bytes, also when unpacked. Send fewer rows at a time."
            )


def _unpacked(head: memoryview, body: memoryview) -> int:
    """The bytes that the buffers of a message take when they are unpacked."""
    message = struct.unpack_from("<I", head)[0]
    kind_at, table_at = _field(head, message, 1), _field(head, message, 2)
    if kind_at is None or table_at is None or head[kind_at] not in (DICTIONARY, BATCH):
        return len(body)
    batch = _follow(head, table_at)
    if head[kind_at] == DICTIONARY:
        inner = _field(head, batch, 1)
        if inner is None:
            return len(body)
        batch = _follow(head, inner)
    buffers = _field(head, batch, 2)
    if _field(head, batch, 3) is None or buffers is None:  # not compressed
        return len(body)
    start = _follow(head, buffers)
    n_buffers = struct.unpack_from("<I", head, start)[0]
    total = 0
    for number in range(n_buffers):
        place, length = struct.unpack_from("<qq", head, start + 4 + 16 * number)
        unpacked = struct.unpack_from("<q", body, place)[0] if length >= 8 else 0
        total += length if unpacked < 0 else unpacked
    return total


def _field(head: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table is; None if it is left out."""
    fields = table - struct.unpack_from("<i", head, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", head, fields)[0]:
        return None
    distance: int = struct.unpack_from("<H", head, fields + 4 + 2 * number)[0]
    return table + distance if distance else None


def _follow(head: memoryview, place: int) -> int:
    """What the distance at a place leads to."""
    return place + int(struct.unpack_from("<I", head, place)[0])


# --- rows as numbers ---------------------------------------------------------------------------------------------


def numbers_of(table: Any, n_features: int) -> NDArray[np.float64]:
    """The columns of an Arrow table in their order, as finite numbers (n, d)."""
    if table.num_columns != n_features:
        raise BodyError(422, f"The table must have {n_features} columns; got {table.num_columns}.")
    try:
        columns = [column.to_numpy().astype(np.float64) for column in table.columns]
    except (TypeError, ValueError) as error:
        raise BodyError(422, "The table must hold numbers only.") from error
    return _finite(np.stack(columns, 1))


def _finite(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    wrong = np.argwhere(~np.isfinite(rows)) if not np.isfinite(rows.sum()) else np.empty((0, 2))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise InputError(f"rows[{row}][{column}] must be a finite number; got {rows[row, column]}.")
    return rows
