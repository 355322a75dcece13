"""The configuration of a saved model, ``config.json``: what it must be before anything in it is used.

Parameters and fitted values are strict JSON, and back, without loss of value or type.  JSON's own null, true, numbers,
strings and lists stand for themselves.  Everything else is an object with one key that says what it is: ``{"$tuple":
[...]}``.  A value of any other kind is refused, so that nothing is ever unpickled.
"""

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import energate
from energate.errors import InputError
from energate.estimators.edge import Scaler
from energate.estimators.refiner import Gain
from energate.persistence._store import BASE, CONFIG, WEIGHTS
from energate.tables import Columns
from energate.views import KINDS

FORMAT = "energate model"
SCHEMA = 2
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def estimators() -> dict[str, Any]:
    """What can be saved, by name."""
    return {kind.__name__: kind for kind in sorted(KINDS, key=lambda kind: kind.__name__)}


def inner_of(kind: type) -> str | None:
    """The parameter of an estimator that holds another one, whose fitted form is in the attribute ``base_``."""
    found: str | None = getattr(kind, "_INNER", None)
    return found


def is_foreign(base: Any) -> bool:
    """Whether the entry of a base is that of one that is not ours."""
    return type(base) is dict and "class" in base


def seal(data: bytes) -> dict[str, Any]:
    """Size and sha256 of a member, by which damage is noticed."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def checksum(config: dict[str, Any]) -> str:
    """The sha256 of everything else in a configuration."""
    return hashlib.sha256(dump({key: value for key, value in config.items() if key != "sha256"})).hexdigest()


def is_model(members: dict[str, bytes]) -> bool:
    """Whether the members are those of a saved model, of whatever schema."""
    try:
        config = parse(members[CONFIG])
    except (ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def read_config(data: bytes, path: Any) -> dict[str, Any]:
    """The configuration, checked: after this every entry has the type that `save` gave it."""
    try:
        config = parse(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path!s} is damaged: {CONFIG} is not valid JSON ({line(error)}).") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise InputError(f"{path!s} is not a saved model: the `format` in {CONFIG} must be {FORMAT!r}.")
    schema = config.get("schema")
    if type(schema) is not int or schema < 1:
        raise InputError(f"{path!s} is damaged: the `schema` in {CONFIG} must be a whole number; got {schema!r}.")
    if schema > SCHEMA:
        versions = config.get("versions")
        writer = versions.get("energate", "?") if isinstance(versions, dict) else "?"
        raise InputError(
            f"{path!s} was written by energate {writer}, schema {schema}; this version, {energate.__version__}, reads "
            f"up to schema {SCHEMA}. Upgrade energate."
        )
    try:
        found = checksum(config)
    except (ValueError, RecursionError):  # a number beyond all floats
        found = ""
    if config.get("sha256") != found:
        raise InputError(f"{path!s} is damaged: {CONFIG} is not what was saved. Save or copy the model again.")
    if type(config.get("estimator")) is str and config["estimator"] not in estimators():
        raise InputError(
            f"{path!s} holds the estimator {config['estimator']!r}; this version knows {', '.join(estimators())}."
        )
    if type(config.get("versions")) is not dict or not _is_seal(config.get("weights")) or not _is_entry(config):
        raise InputError(f"{path!s} is damaged: {CONFIG} lacks something, or holds what `save` does not write.")
    return config


def columns_of(config: dict[str, Any], path: Any) -> Columns | None:
    """The columns that a configuration holds, if any, checked."""
    if "columns" not in config:
        return None
    try:
        columns = Columns.from_json(config["columns"])
        check_width(columns, config["fitted"].get("n_features_in_"))
    except InputError as error:
        raise InputError(f"{path!s} is damaged: the `columns` in {CONFIG} cannot be read. {line(error)}") from error
    return columns


def check_width(columns: Columns, n_features: Any) -> None:
    """Refuse columns that make other rows than the model takes."""
    if len(columns.feature_names) != n_features:
        raise InputError(
            f"`columns` must make rows of {n_features} numbers, as the model takes; they make "
            f"{len(columns.feature_names)}."
        )


def _is_seal(value: Any) -> bool:
    return type(value) is dict and type(value.get("size")) is int and type(value.get("sha256")) is str


def _is_entry(entry: Any) -> bool:
    """Whether this is what `save` writes of an estimator; values inside are checked where they are read."""
    types = {"estimator": str, "parameters": dict, "fitted": dict, "dtype": str}
    if type(entry) is not dict or any(type(entry.get(key)) is not wanted for key, wanted in types.items()):
        return False
    kind = estimators().get(entry["estimator"])
    if kind is None or entry["dtype"] not in DTYPES or ("base" in entry) != (inner_of(kind) is not None):
        return False
    base: Any = entry.get("base")
    origin = entry["parameters"].get("base")
    if origin is not None and (type(origin) is not dict or type(origin.get("$class")) is not str):
        return False
    if is_foreign(base):
        return type(base["class"]) is str and (base.get("file") is None or _is_seal(base["file"]))
    return base is None or (_is_entry(base) and "base" not in base)


def seals(data: bytes, path: Any) -> dict[str, dict[str, Any]]:
    """Size and sha256 of the members beside the configuration."""
    config = read_config(data, path)
    base: Any = config.get("base")
    third = {BASE: base["file"]} if is_foreign(base) and base.get("file") else {}
    return {WEIGHTS: config["weights"], **third}


# --- values ------------------------------------------------------------------------------------------------------


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
        return {"$scaler": {"offset": encode(value.offset, name), "size": encode(value.size, name)}}
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
    return np.array(items, dtype=dtype).reshape(content["shape"])


def _decode_scaler(content: dict[str, Any]) -> Scaler:
    return Scaler(**{name: decode(part) for name, part in content.items()})


def _decode_gain(content: list[Any]) -> Gain:
    mean, error, objective = content
    return Gain(float(decode(mean)), float(decode(error)), str(objective))


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$float": _decode_float,
    "$tuple": lambda content: tuple(map(decode, content)),
    "$dict": lambda content: {decode(key): decode(item) for key, item in content},
    "$scaler": _decode_scaler,
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
    """The message of an error, in one line."""
    return " ".join(str(error).split())
