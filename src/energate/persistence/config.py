"""``config.json`` of a saved model: what it must hold, what older versions wrote, and its checksums."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch

import energate
from energate.errors import InputError
from energate.persistence._store import BASE, CONFIG, WEIGHTS
from energate.persistence.values import brief, cut, decode, dump, line, parse
from energate.tables import Columns
from energate.views import KINDS

FORMAT = "energate model"
SCHEMA = 7
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def estimators() -> dict[str, Any]:
    """What can be saved, by name."""
    return {kind.__name__: kind for kind in sorted(KINDS, key=lambda kind: kind.__name__)}


def inner_of(kind: type) -> str | None:
    """The parameter of an estimator that holds another one, whose fitted form is in the attribute ``base_``."""
    found: str | None = getattr(kind, "_INNER", None)
    return found


def without_gone(kind: type, saved: dict[str, Any], path: Any) -> dict[str, Any]:
    """The parameters of a file without those that an estimator had once, ``_GONE``, if they have the value there."""
    gone: dict[str, Any] = getattr(kind, "_GONE", {})
    for name, value in gone.items():
        if name in saved and decode(saved[name]) != value:
            raise InputError(f"{path!s} has {name}={decode(saved[name])!r}, which is no longer there. Fit it again.")
    return {name: value for name, value in saved.items() if name not in gone}


def added_after(kind: type, schema: int) -> list[str]:
    """The parameters that a later schema added: older files have those of ``_BEFORE``, or the defaults."""
    added = [each for base in kind.__mro__ for each in vars(base).get("_ADDED", {}).items()]
    return [name for later, names in added if schema < later for name in names]


def found_after(kind: type, schema: int) -> dict[str, Callable[[Any], Any]]:
    """What the `fit` of an estimator finds since a later schema, and how to find it for a model of an older file."""
    added: dict[int, dict[str, Callable[[Any], Any]]] = getattr(kind, "_FITTED_LATER", {})
    return {name: find for later, found in added.items() if schema < later for name, find in found.items()}


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
        raise InputError(f"{path!s} is damaged: the `schema` in {CONFIG} must be a whole number; got {brief(schema)}.")
    if schema > SCHEMA:
        versions = config.get("versions")
        writer = versions.get("energate", "?") if isinstance(versions, dict) else "?"
        raise InputError(
            f"{path!s} was written by energate {cut(str(writer))}, schema {brief(schema)}; this version, "
            f"{energate.__version__}, reads up to schema {SCHEMA}. Upgrade energate."
        )
    try:
        found = checksum(config)
    except (ValueError, RecursionError):  # a number beyond all floats
        found = ""
    if config.get("sha256") != found:
        raise InputError(f"{path!s} is damaged: {CONFIG} is not what was saved. Save or copy the model again.")
    if type(config.get("estimator")) is str and config["estimator"] not in estimators():
        raise InputError(
            f"{path!s} holds the estimator {brief(config['estimator'])}; this version knows {', '.join(estimators())}."
        )
    if type(config.get("versions")) is not dict or not _is_seal(config.get("weights")) or not _is_entry(config):
        raise InputError(f"{path!s} is damaged: {CONFIG} lacks something, or holds what `save` does not write.")
    return config


def columns_of(config: dict[str, Any], path: Any) -> Columns | None:
    """The columns that a configuration holds, if any, checked."""
    if "columns" not in config:
        return None
    try:
        fitted = config["imputer"]["fitted"] if "imputer" in config else config["fitted"]
        return Columns.from_json(config["columns"]).for_width(fitted.get("n_features_in_"))
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path!s} is damaged: the `columns` in {CONFIG} cannot be read. {line(error)}") from error


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
    if "steps_file" in config:
        if not _is_seal(config["steps_file"]):
            raise InputError(f"{path!s} is damaged: {CONFIG} lacks something, or holds what `save` does not write.")
        third = {BASE: config["steps_file"]}
    return {WEIGHTS: config["weights"], **third}
