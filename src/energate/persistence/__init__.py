"""`save` and `load`: fitted estimators as a folder, or a zip file, of JSON and safetensors; nothing is unpickled.

``config.json`` holds what is small and worth reading, ``model.safetensors`` the weights and long arrays.  The first
records size and sha256 of the second, and a sha256 of itself, so that damage is noticed before anything is used.

A change of what an estimator saves (its parameters, its ``_FITTED``, the names of its weights) takes a new ``SCHEMA``
and code that reads the old one.
"""

import hashlib
import os
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.torch
import sklearn
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import energate
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyScorer, LabelMLP, PairScorer
from energate.estimators._base import resolve_device
from energate.persistence import _store
from energate.persistence._store import CONFIG, WEIGHTS
from energate.persistence._values import decode, dump, encode, parse

__all__ = ["load", "save"]

FORMAT = "energate model"
SCHEMA = 2
#: parameters that a schema added: in older files they are at their defaults
ADDED = {2: {"EnergyClassifier": ("fine_tune_noise_level", "optimizer", "start_scale", "validate_every")}}
#: what can be saved, by name
ESTIMATORS: dict[str, Any] = {kind.__name__: kind for kind in (EnergyClassifier, EnergyScorer, LabelMLP, PairScorer)}
LONG = 1000  # longer arrays of floats go beside the weights
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted estimator to a folder, or to one file if ``path`` ends in ``.zip``.

    A saved model that is already there is replaced in one step: whatever happens, the path holds the old model or the
    new one.  Anything else that is there is left alone, with an error.  ``history_`` is not saved, and a
    ``random_state`` that is a generator is saved as None.
    """
    kind = type(model).__name__
    if ESTIMATORS.get(kind) is not type(model):
        hint = " Subclasses cannot be saved." if isinstance(model, tuple(ESTIMATORS.values())) else ""
        raise InputError(f"`model` must be one of {', '.join(ESTIMATORS)}; got {kind}.{hint}")
    attributes = vars(model)
    optional = [name for name in ("feature_names_in_",) if name in attributes]
    names = ["n_features_in_", *model._FITTED, *optional]
    if not {"model_", *names} <= attributes.keys():
        raise InputError(f"This {kind} is not fitted. Call `fit` before `save`.")
    weights = _weights(model)
    parameters = {name: _parameter(name, value) for name, value in sorted(model.get_params(deep=False).items())}
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    fitted = {name: _fitted(name, attributes[name], tensors) for name in names}
    data = safetensors.torch.save(tensors)
    config: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "versions": {
            "energate": energate.__version__,
            "torch": str(torch.__version__),
            "scikit-learn": sklearn.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "estimator": kind,
        "parameters": parameters,
        "fitted": fitted,
        "dtype": _dtype(weights),
        "weights": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    config["sha256"] = _checksum(config)
    _store.write(path, {CONFIG: dump(config, indent=1), WEIGHTS: data}, _is_model)


def load(path: str | os.PathLike[str], device: str = "cpu", *, units: Callable[..., Any] | None = None) -> Any:
    """The estimator that `save` wrote to ``path``, on a device: ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"auto"``.

    A function given as ``units`` when the model was fitted is not in the file and is given again here.  Nothing is
    unpickled; a file that is damaged, altered, newer than this version, or no model at all is refused.
    """
    place = resolve_device(device)
    members = _store.read(path, lambda data: _config(data, path)["weights"]["size"])
    config, data = _config(members[CONFIG], path), members[WEIGHTS]
    if hashlib.sha256(data).hexdigest() != config["weights"]["sha256"]:
        raise InputError(f"{path!s} is damaged: {WEIGHTS} is not what was saved. Save or copy the model again.")
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"{path!s} is damaged: {WEIGHTS} is no safetensors file ({_line(error)}).") from error
    kind = config["estimator"]
    known = ESTIMATORS[kind]().get_params(deep=False)
    later = [kinds.get(kind, ()) for schema, kinds in ADDED.items() if config["schema"] < schema]
    older = {name: encode(known[name], name) for names in later for name in names}
    _same_names(path, f"parameters of {kind}", {*config["parameters"], *older}, set(known), config)
    saved = {**older, **config["parameters"], "device": str(device)}
    if "units" in saved or units is not None:
        saved["units"] = _units(saved.get("units"), units, path)
    parameters = {name: value if callable(value) else _read_value(name, value, path) for name, value in saved.items()}
    model = ESTIMATORS[kind](**parameters)
    fitted = config["fitted"]
    _same_names(
        path, f"values of {kind}", {*fitted} - {"feature_names_in_"}, {"n_features_in_", *model._FITTED}, config
    )
    for name, value in fitted.items():
        array = tensors.get(f"fitted.{name}")
        if array is not None and array.dtype in DTYPES.values() and value == {"$tensor": f"fitted.{name}"}:
            setattr(model, name, tensors.pop(f"fitted.{name}").numpy())
        else:
            setattr(model, name, _read_value(name, value, path))
    module = _build(model, f"The parameters in {path!s} build no model")
    _fill(module, tensors, config["dtype"], path)
    # As after `fit`: double on the CPU, where it costs little, float on other devices.
    model.model_ = module.to(place, torch.float64 if place.type == "cpu" else torch.float32)
    return model


# --- saving ------------------------------------------------------------------------------------------------------


def _build(model: Any, failure: str) -> nn.Module:
    """The module of an estimator, before training, with everybody's random numbers left as they are."""
    try:
        with torch.random.fork_rng(devices=[]):
            return model._untrained()
    except Exception as error:  # the function in `units` may raise anything
        raise InputError(f"{failure}: {type(error).__name__}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _weights(model: Any) -> dict[str, Tensor]:
    """The weights, on the CPU, after a check that `load` will find a place for each."""
    state = model.model_.state_dict()
    untrained = _build(model, f"The parameters of this {type(model).__name__} do not build its `model_`")
    if _shape(untrained) != _shape(model.model_):
        raise InputError(
            f"The parameters of this {type(model).__name__} do not build its `model_`; they were changed after `fit`. "
            "Set them back, or fit again."
        )
    if not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError("`model_` has a state that is not made of tensors (get_extra_state); it cannot be saved.")
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}


def _shape(module: nn.Module) -> tuple[str, dict[str, Any]]:
    """What `load` must rebuild: layers, activations, names, shapes; without the addresses that some objects print."""
    state = {name: getattr(value, "shape", None) for name, value in module.state_dict().items()}
    return re.sub(r"0x[0-9a-fA-F]+", "", repr(module)), state


def _dtype(weights: dict[str, Tensor]) -> str:
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values() if tensor.is_floating_point()}
    if len(found) != 1 or not found <= DTYPES.keys():
        raise InputError(f"The weights of `model_` must all be float32 or all float64; got {', '.join(sorted(found))}.")
    return found.pop()


def _parameter(name: str, value: Any) -> Any:
    if name == "units" and callable(value):
        return {"$function": getattr(value, "__qualname__", type(value).__qualname__)}
    if name == "random_state" and (
        value is np.random or isinstance(value, np.random.RandomState | np.random.Generator)
    ):
        return None
    return encode(value, name)


def _fitted(name: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64) and value.size > LONG:
        tensors[f"fitted.{name}"] = torch.tensor(value)
        return {"$tensor": f"fitted.{name}"}
    return encode(value, name)


def _checksum(config: dict[str, Any]) -> str:
    return hashlib.sha256(dump({key: value for key, value in config.items() if key != "sha256"})).hexdigest()


def _is_model(members: dict[str, bytes]) -> bool:
    try:
        config = parse(members[CONFIG])
    except (ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


# --- loading -----------------------------------------------------------------------------------------------------


def _config(data: bytes, path: Any) -> dict[str, Any]:
    """The configuration, checked: after this every entry has the type that `save` gave it."""
    try:
        config = parse(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path!s} is damaged: {CONFIG} is not valid JSON ({_line(error)}).") from error
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
        checksum = _checksum(config)
    except (ValueError, RecursionError):  # a number beyond all floats
        checksum = ""
    if config.get("sha256") != checksum:
        raise InputError(f"{path!s} is damaged: {CONFIG} is not what was saved. Save or copy the model again.")
    types = {"versions": dict, "estimator": str, "parameters": dict, "fitted": dict, "dtype": str, "weights": dict}
    weights = config.get("weights")
    if (
        any(type(config.get(key)) is not wanted for key, wanted in types.items())
        or not isinstance(weights, dict)
        or type(weights.get("size")) is not int
        or config["dtype"] not in DTYPES
    ):
        raise InputError(f"{path!s} is damaged: {CONFIG} lacks something, or holds what `save` does not write.")
    if config["estimator"] not in ESTIMATORS:
        raise InputError(
            f"{path!s} holds the estimator {config['estimator']!r}; this version knows {', '.join(ESTIMATORS)}."
        )
    return config


def _read_value(name: str, value: Any, path: Any) -> Any:
    try:
        return decode(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError, RecursionError) as error:
        raise InputError(f"{path!s} is damaged: `{name}` in {CONFIG} cannot be read ({_line(error)}).") from error


def _same_names(path: Any, what: str, found: set[str], known: set[str], config: dict[str, Any]) -> None:
    if found != known:
        parts = {"unknown": found - known, "missing": known - found}
        differences = "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in parts.items() if names)
        raise InputError(
            f"The {what} in {path!s} are not those of energate {energate.__version__} ({differences}). "
            f"It was written by energate {config['versions'].get('energate', '?')}; use that version."
        )


def _units(saved: Any, given: Any, path: Any) -> Any:
    if isinstance(saved, dict) and saved.keys() == {"$function"}:
        if given is None:
            raise InputError(
                f"{path!s} was fitted with the function {saved['$function']} as `units`, which is not in the file. "
                "Give it: load(path, units=function)."
            )
        if not callable(given):
            raise InputError(f"`units` must be the function that the model was fitted with; got {given!r}.")
        return given
    if given is not None:
        raise InputError(f"{path!s} was fitted with units={saved!r}, not with a function. Leave `units` out.")
    return saved


def _fill(module: nn.Module, tensors: dict[str, Tensor], dtype: str, path: Any) -> None:
    """Put the weights into a module that must have exactly these names, shapes and dtypes."""
    module.to(DTYPES[dtype])
    state = module.state_dict()
    expected = {f"model.{name}": (tuple(value.shape), value.dtype) for name, value in state.items()}
    found = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"The weights in {path!s} do not fit the model that its parameters build: {name} is "
                f"{found.get(name, 'missing')}, expected {expected.get(name, 'nothing')}."
            )
    module.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
