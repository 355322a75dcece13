"""What goes over the wire: answers as JSON or npz, and rows in bulk, as npy or Arrow, beside those in JSON."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
from fastapi.responses import Response
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from energate.errors import InputError, require
from energate.serving.schemas import BodyError

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
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, SyntaxError, TypeError) as error:
        raise BodyError(400, "The body must be a matrix in numpy's format npy, with no objects in it.") from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        raise BodyError(422, "The body must be one matrix of numbers.")
    if found.ndim != 2 or found.shape[1] != n_features:
        raise BodyError(422, f"The matrix must have shape (n, {n_features}); got {found.shape}.")
    return _finite(found.astype(np.float64, order="C"))


def from_arrow(content: bytes) -> Any:
    """A table of Arrow's streaming format."""
    arrow = require("pyarrow", "tables")
    try:
        with arrow.ipc.open_stream(content) as stream:
            table = stream.read_all()
            table.validate(full=True)  # what a client claims of lengths and offsets may be anything
    except (arrow.ArrowException, OSError, ValueError) as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BodyError(400, f"The body must be a stream of Arrow; it is not. {why}") from error
    return table


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
