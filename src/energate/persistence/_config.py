"""The configuration of a saved model, ``config.json``: what it must be before anything in it is used."""

import hashlib
from typing import Any

import torch

import energate
from energate import estimators
from energate.errors import InputError
from energate.persistence._bases import is_foreign
from energate.persistence._store import BASE, CONFIG, WEIGHTS
from energate.persistence._values import dump, line, parse
from energate.tables import Columns

FORMAT = "energate model"
SCHEMA = 2
#: what can be saved, by name
ESTIMATORS: dict[str, Any] = {name: getattr(estimators, name) for name in estimators.__all__}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
    if type(config.get("versions")) is not dict or not _is_seal(config.get("weights")) or not _is_entry(config):
        raise InputError(f"{path!s} is damaged: {CONFIG} lacks something, or holds what `save` does not write.")
    if config["estimator"] not in ESTIMATORS:
        raise InputError(
            f"{path!s} holds the estimator {config['estimator']!r}; this version knows {', '.join(ESTIMATORS)}."
        )
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
    if entry["dtype"] not in DTYPES or ("base" in entry) != (entry["estimator"] == "EnergyRefiner"):
        return False
    base: Any = entry.get("base")
    origin = entry["parameters"].get("base")
    if origin is not None and (type(origin) is not dict or type(origin.get("$class")) is not str):
        return False
    if is_foreign(base):
        return type(base["class"]) is str and (base.get("file") is None or _is_seal(base["file"]))
    return base is None or (_is_entry(base) and base["estimator"] == "LabelMLP")


def seals(data: bytes, path: Any) -> dict[str, dict[str, Any]]:
    """Size and sha256 of the members beside the configuration."""
    config = read_config(data, path)
    base: Any = config.get("base")
    third = {BASE: base["file"]} if is_foreign(base) and base.get("file") else {}
    return {WEIGHTS: config["weights"], **third}
