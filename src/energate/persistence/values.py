"""Parameters and fitted values as strict JSON, and back, without loss of value or type.

JSON's own null, true, numbers, strings and lists stand for themselves.  Everything else is an object with one key that
says what it is: ``{"$tuple": [...]}``.  A value of any other kind is refused.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from energate.errors import InputError
from energate.estimators.cells import Cells
from energate.estimators.edge import Gain, Scaler

LONGEST_TEXT = 600  # characters of a file, in a message
WIDE = 64  # characters for each text of an array; where all are shorter, a wider array comes back with these


_PLAIN = (type(None), bool, int, str)
_KINDS = "biufUO"  # of numpy arrays: bool, whole numbers, floats, text, and objects that are plain


def encode(value: Any, name: str) -> Any:
    """What stands for ``value`` in JSON; ``name`` is for the message if nothing does."""
    if type(value) in _PLAIN:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if type(value) is list:
        return [encode(item, name) for item in value]
    if type(value) is tuple:
        return {"$tuple": [encode(item, name) for item in value]}
    if type(value) is dict:  # as pairs, since keys need not be text
        return {"$dict": [[encode(key, name), encode(item, name)] for key, item in value.items()]}
    if isinstance(value, Scaler):
        parts = {part: encode(array, name) for part, array in vars(value).items() if array is not None}
        return {"$scaler": parts}
    if isinstance(value, Cells):
        parts = {"fill": value.fill, "missing": value.missing, "categories": dict(value.categories)}
        return {"$cells": {part: encode(content, name) for part, content in parts.items()}}
    if isinstance(value, Gain):
        return {"$gain": [encode(value.mean, name), encode(value.standard_error, name), value.objective]}
    if isinstance(value, np.generic):
        return {"$scalar": _array(np.asarray(value), name)}
    if type(value) is np.ndarray:
        return {"$array": _array(value, name)}
    raise InputError(
        f"`{name}` holds a {type(value).__name__}, which cannot be saved. Numbers, text, None, lists, tuples, "
        "dictionaries and numpy arrays of numbers or text can."
    )


def _array(array: np.ndarray[Any, Any], name: str) -> dict[str, Any]:
    items = array.ravel().tolist()
    objects = array.dtype.kind == "O"
    if (
        array.dtype.kind not in _KINDS
        or (array.dtype.kind == "f" and array.dtype.itemsize > 8)  # JSON numbers are doubles
        or (objects and not all(type(item) in (*_PLAIN, float) for item in items))
    ):
        raise InputError(
            f"`{name}` holds an array of {array.dtype}, which cannot be saved. Use numbers, booleans or text."
        )
    dtype = "object" if objects else array.dtype.str
    return {"dtype": dtype, "shape": list(array.shape), "values": [encode(item, name) for item in items]}


def decode(value: Any) -> Any:
    """The value that ``encode`` wrote; anything that it did not write raises some exception."""
    if type(value) in (*_PLAIN, float):
        return value
    if type(value) is list:
        return [decode(item) for item in value]
    ((kind, content),) = value.items()
    return _DECODERS[kind](content)


def _decode_float(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(text)
    return float(text)


def _decode_array(content: dict[str, Any]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(content["dtype"])
    if dtype.kind not in _KINDS or dtype.hasobject != (content["dtype"] == "object"):
        raise ValueError(dtype)
    items = [decode(item) for item in content["values"]]
    if dtype.kind == "U" and dtype.itemsize > 4 * WIDE:  # a forged width is memory for every item
        dtype = np.dtype(f"U{max(WIDE, *map(len, items), 1)}") if items else np.dtype("U1")
    return np.array(items, dtype=dtype).reshape(content["shape"])


def _decode_scaler(content: dict[str, Any]) -> Scaler:
    return Scaler(**{name: decode(part) for name, part in content.items()})


def _decode_cells(content: dict[str, Any]) -> Cells:
    return Cells(**{name: decode(part) for name, part in content.items()})


def _decode_gain(content: list[Any]) -> Gain:
    mean, error, objective = content
    return Gain(float(decode(mean)), float(decode(error)), str(objective))


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$float": _decode_float,
    "$tuple": lambda content: tuple(map(decode, content)),
    "$dict": lambda content: {decode(key): decode(item) for key, item in content},
    "$scaler": _decode_scaler,
    "$cells": _decode_cells,
    "$gain": _decode_gain,
    "$scalar": lambda content: _decode_array(content)[()],
    "$array": _decode_array,
}


def dump(config: dict[str, Any], indent: int | None = None) -> bytes:
    """A configuration as JSON: without ``indent`` in the one form that checksums are taken of."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(config, allow_nan=False, sort_keys=indent is None, indent=indent, separators=separators)
    return text.encode("ascii")


def parse(data: bytes) -> Any:
    """Strict JSON; a ``ValueError`` or ``RecursionError`` where the bytes are none."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(data.decode("utf-8"), parse_constant=refuse)


def line(error: Exception) -> str:
    """The message of an error, in one line; what it tells of a forged file may be long."""
    return cut(" ".join(str(error).split()))


def brief(value: Any) -> str:
    """A value for a message."""
    return cut(repr(value))


def cut(text: str) -> str:
    """Text that came from a file, for a message."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
