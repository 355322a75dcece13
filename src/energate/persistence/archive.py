"""`save` and `load`: fitted estimators as a folder, or a zip file, of JSON and safetensors; nothing is unpickled.

``config.json`` holds what is small and worth reading, ``model.safetensors`` the weights and long arrays.  The first
records size and sha256 of the second, and a sha256 of itself, so that damage is noticed before anything is used.
A base, the estimator inside another, is an entry like that of the whole model if it is one of ours.  Any other is
``{"class": name, "file": None}``, or with the size and sha256 of ``base.skops`` in place of None; the parameter
``base`` is ``{"$class": name}``, or None.

A change of what an estimator saves (its parameters, its ``_FITTED``, the names of its weights) takes a new ``SCHEMA``
and code that reads the old one; parameters that came later are in ``_ADDED`` of the estimator, values that `fit` finds
in ``_FITTED_LATER``, with functions that find them for a model of an older file.
"""

import hashlib
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.torch
import sklearn
import torch
from safetensors import SafetensorError
from sklearn.base import clone
from torch import Tensor, nn

import energate
from energate.errors import InputError, require
from energate.estimators.bases import MissingBase
from energate.estimators.edge import resolve_device
from energate.estimators.streamed import StreamMixin
from energate.persistence import _store, imputers, pipelines
from energate.persistence._moved import new_names, renamed
from energate.persistence._store import BASE, CONFIG, WEIGHTS
from energate.persistence.config import (
    DTYPES,
    FORMAT,
    SCHEMA,
    added_after,
    checksum,
    columns_of,
    estimators,
    found_after,
    inner_of,
    is_foreign,
    is_model,
    read_config,
    seal,
    seals,
    without_gone,
)
from energate.persistence.values import brief, cut, decode, dump, encode, line
from energate.tables import Columns
from energate.units import HiddenUnits
from energate.views import KINDS, view_of

LONG = 1000  # longer arrays of floats go beside the weights
SAVED = "saved"  # the default of `load`: the base that is in the files


def save(model: Any, path: str | os.PathLike[str], *, with_base: bool = False, columns: Columns | None = None) -> None:
    """Save a fitted estimator to a folder, or to one file if ``path`` ends in ``.zip``.

    A saved model that is already there is replaced in one step: whatever happens, the path holds the old model or the
    new one.  Anything else that is there is left alone, with an error.  ``history_`` is not saved, and a
    ``random_state`` that is a generator is saved as None.

    The base of an `EnergyRefiner` is saved if it is a `LabelMLP`.  Of another only the class is recorded, unless
    ``with_base`` is True: skops then writes it.  ``columns`` say how the rows of a table become what the model takes;
    a model that was fitted to a stream has its own, and `read_columns` gives them back.  A Pipeline of scikit-learn may
    end in one of our estimators: a `TableEncoder` before it is saved as JSON, steps of other packages as skops writes
    them, which `load` reads with ``trusted``.
    """
    steps, model = pipelines.split(model)
    imputer, model = imputers.split(model)
    entry, tensors = _pack(model)
    members = {WEIGHTS: safetensors.torch.save(tensors)}
    if with_base and "base" not in entry:
        raise InputError(f"`with_base` is for a model over a base; got a {type(model).__name__}. Leave it out.")
    if with_base and is_foreign(entry["base"]):
        members[BASE] = _dump_base(model.base_)
        entry["base"]["file"] = seal(members[BASE])
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
        **entry,
        "weights": seal(members[WEIGHTS]),
    }
    if steps:
        if columns is not None or BASE in members:
            raise InputError("A Pipeline is saved without `columns` and `with_base`: its steps know the columns.")
        config["steps"], foreign = pipelines.pack(steps, encode)
        if foreign is not None:
            members[BASE] = foreign
            config["steps_file"] = seal(foreign)
    elif columns is None and isinstance(model, StreamMixin):
        columns = vars(model).get("columns_")
    if imputer is not None:
        config["imputer"] = imputers.pack(imputer, _parameter, encode)
    if columns is not None:
        taken = view_of(model).suited(columns) if imputer is None else columns.for_width(imputer.n_features_in_)
        config["columns"] = taken.to_json()
    config["sha256"] = checksum(config)
    _store.write(path, {CONFIG: dump(config, indent=1), **members}, is_model)


def load(
    path: str | os.PathLike[str],
    device: str = "cpu",
    *,
    units: Callable[..., Any] | None = None,
    base: Any = SAVED,
    trusted: Sequence[str] | None = None,
) -> Any:
    """The estimator that `save` wrote to ``path``, on a device: ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"auto"``.

    A function given as ``units`` when the model was fitted is not in the file and is given again here.  So is the
    fitted ``base`` of an `EnergyRefiner`, unless it is in the files; None goes without it.  A base that skops wrote is
    read only with ``trusted``, the names of the types in it that are not known to be harmless.  Nothing is unpickled;
    a file that is damaged, altered, newer than this version, or no model at all is refused.
    """
    place = resolve_device(device)
    members = _store.read(path, lambda content: {name: its["size"] for name, its in seals(content, path).items()})
    config = read_config(members[CONFIG], path)
    for name, expected in seals(members[CONFIG], path).items():
        if seal(members[name]) != expected:
            raise InputError(f"{path!s} is damaged: {name} is not what was saved. Save or copy the model again.")
    columns = columns_of(config, path)
    _check_unused(config, base, trusted, path)
    try:
        tensors = safetensors.torch.load(members[WEIGHTS])
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"{path!s} is damaged: {WEIGHTS} is no safetensors file ({line(error)}).") from error

    def unpack(entry: dict[str, Any], tensors: dict[str, Tensor], units: Any) -> Any:
        kind = entry["estimator"]
        made = estimators()[kind]
        known = made().get_params(deep=False)
        before: dict[str, Any] = {**known, **getattr(made, "_BEFORE", {})}
        older = {name: encode(before[name], name) for name in added_after(made, config["schema"])}
        given = without_gone(made, entry["parameters"], path)
        _same_names(path, f"parameters of {kind}", {*given, *older}, set(known), config)
        saved = {**older, **given, **({"device": str(device)} if "device" in known else {})}
        inner = inner_of(made)
        origin = None if inner is None else saved.pop(inner, None)
        if "units" in saved or units is not None:
            saved["units"] = _units(saved.get("units"), units, path)
        values = {name: value if callable(value) else _read_value(name, value, path) for name, value in saved.items()}
        model = made(**values)
        _set_fitted(model, entry["fitted"], tensors, path, config)
        if inner is not None:
            found = entry["base"]
            if is_foreign(found):
                found = _foreign_base(model, found["class"], members.get(BASE), base, trusted, path)
            elif found is not None:
                names = [name for name in tensors if name.startswith("base.")]
                found = unpack(found, {name.removeprefix("base."): tensors.pop(name) for name in names}, None)
            _set_base(model, found, origin)
        failure = f"The parameters in {path!s} build no model"
        _check_sketch(model, failure, tensors, entry["dtype"], path)
        module = _build(model, failure)
        _fill(module, tensors, entry["dtype"], path)
        # As after `fit`: double on the CPU, where it costs little, float on other devices.
        double = (place.type == "cpu" and not KINDS[made].single) or _needs_double(module)
        double = double and values.get("precision", "exact") == "exact"
        model.model_ = module.to(place, torch.float64 if double else torch.float32)
        return model

    kinds = ", ".join(_foreign_steps(config))
    foreign = _load_base(members[BASE], f"Pipeline with {kinds}", trusted, path) if "steps_file" in config else {}
    model = unpack(config, tensors, units)
    if columns is not None and isinstance(model, StreamMixin):
        model.columns_ = columns
    return _wrapped(model, config, foreign, str(device), path)


def _wrapped(model: Any, config: dict[str, Any], foreign: dict[str, Any], device: str, path: Any) -> Any:
    """A model within the imputer and the steps of a pipeline that a configuration has around it, if any."""
    part = "imputer"
    try:
        if part in config:
            model = imputers.unpack(config[part], model, device, decode)
        part = "steps"
        return pipelines.unpack(config[part], model, foreign, decode) if part in config else model
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path!s} is damaged: its {part} cannot be read ({line(error)}).") from error


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work is done, a path that `save` would refuse."""
    _store.check(path, is_model)


@dataclass(frozen=True)
class About:
    """What the files of a model say of it, before anything is loaded."""

    columns: Columns | None  # None: it takes rows of ``n_features_in_`` numbers
    function: str | None  # the name of a function given as ``units``, which is not in the files
    base: str | None  # the class of a refiner's base that is not one of ours
    has_base: bool  # whether skops wrote that base into the files
    sha256: str  # of the configuration, which holds those of the other files: the same in a folder and in a zip file
    is_pipeline: bool = False  # whether steps of a Pipeline come before it
    foreign_steps: tuple[str, ...] = ()  # the classes of those that skops wrote
    is_imputer: bool = False  # whether it fills cells, and answers no questions


def read_about(path: str | os.PathLike[str]) -> About:
    """What there is to know before `load`: which columns, and what has to be given again."""
    content = _store.read(path, lambda _: {})[CONFIG]
    config = read_config(content, path)
    units = config["parameters"].get("units")
    foreign: dict[str, Any] = config["base"] if is_foreign(config.get("base")) else {}
    function = str(units.get("$function")) if isinstance(units, dict) else None
    has_base, digest = foreign.get("file") is not None, hashlib.sha256(content).hexdigest()
    steps = "steps" in config, _foreign_steps(config)
    about = columns_of(config, path), function, foreign.get("class"), has_base, digest, *steps
    return About(*about, "imputer" in config)


def _foreign_steps(config: dict[str, Any]) -> tuple[str, ...]:
    """The classes of a Pipeline's steps that are not ours."""
    found: list[Any] = config.get("steps", [])
    return tuple(str(each.get("class")) for each in found if type(each) is dict and each.get("kind") == "foreign")


def read_columns(path: str | os.PathLike[str]) -> Columns | None:
    """The `Columns` that a model was saved with; None: it takes rows of ``n_features_in_`` numbers."""
    return read_about(path).columns


# --- saving ------------------------------------------------------------------------------------------------------


def _pack(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the configuration says of an estimator, and its tensors; with its base, where that is one of ours."""
    kind = type(model).__name__
    if type(model) not in KINDS:
        hint = " Subclasses cannot be saved." if isinstance(model, tuple(KINDS)) else ""
        raise InputError(f"`model` must be one of {', '.join([*estimators(), 'EnergyImputer'])}; got {kind}.{hint}")
    attributes = vars(model)
    optional = [name for name in ("feature_names_in_",) if name in attributes]
    names = ["n_features_in_", *model._FITTED, *optional]
    if not {"model_", *names} <= attributes.keys():
        raise InputError(f"This {kind} is not fitted. Call `fit` before `save`.")
    weights = _weights(model)
    parameters = {name: _parameter(name, value) for name, value in sorted(model.get_params(deep=False).items())}
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    fitted = {name: _fitted(name, attributes[name], tensors) for name in names}
    entry: dict[str, Any] = {"estimator": kind, "parameters": parameters, "fitted": fitted, "dtype": _dtype(weights)}
    if inner_of(type(model)) is not None:
        entry["base"] = None
        if type(model.base_) in KINDS and inner_of(type(model.base_)) is None:
            entry["base"], more = _pack(model.base_)
            tensors |= {f"base.{name}": tensor for name, tensor in more.items()}
        elif model.base_ is not None:
            entry["base"] = {"class": _class_name(model.base_), "file": None}
    return entry, tensors


def _build(model: Any, failure: str) -> nn.Module:
    """The module of an estimator, before training, with everybody's random numbers left as they are."""
    try:
        with torch.random.fork_rng(devices=[]):
            return model._untrained()
    except Exception as error:  # the function in `units` may raise anything
        raise InputError(f"{failure}: {type(error).__name__}: {line(error)}") from error


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
    """What `load` must rebuild: layers, activations, names, shapes; not the addresses and types that some print."""
    state = {name: getattr(value, "shape", None) for name, value in module.state_dict().items()}
    return re.sub(r"0x[0-9a-fA-F]+|torch\.float\d+", "", repr(module)), state


def _dtype(weights: dict[str, Tensor]) -> str:
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values() if tensor.is_floating_point()}
    if len(found) != 1 or not found <= DTYPES.keys():
        raise InputError(f"The weights of `model_` must all be float32 or all float64; got {', '.join(sorted(found))}.")
    return found.pop()


def _parameter(name: str, value: Any) -> Any:
    if name == "units" and callable(value):
        return {"$function": getattr(value, "__qualname__", type(value).__qualname__)}
    if name == "base" and value is not None:
        return {"$class": _class_name(value)}
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


# --- loading -----------------------------------------------------------------------------------------------------


def _set_fitted(model: Any, fitted: dict[str, Any], tensors: dict[str, Tensor], path: Any, config: Any) -> None:
    known = {"n_features_in_", *model._FITTED}
    later = {name: find for name, find in found_after(type(model), config["schema"]).items() if name not in fitted}
    _same_names(path, f"values of {type(model).__name__}", {*fitted, *later} - {"feature_names_in_"}, known, config)
    for name, value in fitted.items():
        array = tensors.get(f"fitted.{name}")
        if array is not None and array.dtype in DTYPES.values() and value == {"$tensor": f"fitted.{name}"}:
            setattr(model, name, tensors.pop(f"fitted.{name}").numpy())
        else:
            setattr(model, name, _read_value(name, value, path))
    for name, find in later.items():
        setattr(model, name, find(model))


def _read_value(name: str, value: Any, path: Any) -> Any:
    try:
        return decode(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError, RecursionError) as error:
        raise InputError(f"{path!s} is damaged: `{name}` in {CONFIG} cannot be read ({line(error)}).") from error


def _same_names(path: Any, what: str, found: set[str], known: set[str], config: dict[str, Any]) -> None:
    if found != known:
        parts = {"unknown": found - known, "missing": known - found}
        differences = "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in parts.items() if names)
        raise InputError(
            f"The {what} in {path!s} are not those of energate {energate.__version__} ({cut(differences)}). "
            f"It was written by energate {cut(str(config['versions'].get('energate', '?')))}; use that version."
        )


def _units(saved: Any, given: Any, path: Any) -> Any:
    if isinstance(saved, dict) and saved.keys() == {"$function"}:
        if given is None:
            raise InputError(
                f"{path!s} was fitted with the function {cut(str(saved['$function']))} as `units`, which is not in "
                "the file. Give it: load(path, units=function)."
            )
        if not callable(given):
            raise InputError(f"`units` must be the function that the model was fitted with; got {given!r}.")
        return given
    if given is not None:
        raise InputError(f"{path!s} was fitted with units={brief(saved)}, not with a function. Leave `units` out.")
    return saved


def _needs_double(module: nn.Module) -> bool:
    return any(isinstance(part, HiddenUnits) and part.needs_double for part in module.modules())


def _check_sketch(model: Any, failure: str, tensors: dict[str, Tensor], dtype: str, path: Any) -> None:
    """Refuse parameters that do not go with the weights before they take memory: a forged size is only a number.

    Built on the device "meta" a module has shapes, and no numbers.
    """
    try:
        with torch.device("meta"):
            sketch = _build(model, failure)
    except InputError as error:
        # A function of the user's, or of another package, may look at numbers; ours do not.
        if isinstance(error.__cause__, NotImplementedError | RuntimeError) and "meta" in str(error):
            return
        raise
    _check_weights(sketch, tensors, dtype, path)


def _fill(module: nn.Module, tensors: dict[str, Tensor], dtype: str, path: Any) -> None:
    """Put the weights into a module that must have exactly these names, shapes and dtypes."""
    _check_weights(module, tensors, dtype, path)
    module.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})


def _check_weights(module: nn.Module, tensors: dict[str, Tensor], dtype: str, path: Any) -> None:
    module.to(DTYPES[dtype])
    state = module.state_dict()
    expected = {f"model.{name}": (tuple(value.shape), value.dtype) for name, value in state.items()}
    found = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"The weights in {path!s} do not fit the model that its parameters build: {name!r} is "
                f"{found.get(name, 'missing')}, expected {expected.get(name, 'nothing')}."
            )


# --- bases that are not ours -------------------------------------------------------------------------------------


def _class_name(base: Any) -> str:
    """The class of a base, also of one that is not there."""
    return str(base.kind) if isinstance(base, MissingBase) else type(base).__name__


def _dump_base(base: Any) -> bytes:
    """A fitted base as skops writes it."""
    skops = require("skops.io", "skops")
    if isinstance(base, MissingBase):
        raise InputError(f"with_base=True needs the base, a {base.kind}, which this refiner was loaded without.")
    try:
        return bytes(skops.dumps(base))
    except Exception as error:  # whatever the parts of the base raise
        raise InputError(
            f"skops cannot save the base, a {_class_name(base)} ({type(error).__name__}: {line(error)}). "
            "Leave `with_base` out, save the base yourself, and give it to `load`."
        ) from error


def _check_unused(config: dict[str, Any], given: Any, trusted: Any, path: Any) -> None:
    """Refuse what `load` was given for a base that these files do not need."""
    base = config.get("base")
    if not is_foreign(base) and not _is_default(given):
        why = "its base is in the files" if base else "it has no base"
        raise InputError(f"{path!s} needs no `base`: {why}. Leave `base` out.")
    if trusted is not None and (base is None or not base.get("file")) and "steps_file" not in config:
        raise InputError(f"{path!s} has no {BASE}, so there is nothing to trust. Leave `trusted` out.")
    if trusted is not None and (isinstance(trusted, str) or not all(isinstance(name, str) for name in trusted)):
        raise InputError(f"`trusted` must be a list of names of types; got {trusted!r}.")


def _is_default(given: Any) -> bool:
    return isinstance(given, str) and given == SAVED


def _foreign_base(
    model: Any, kind: str, data: bytes | None, given: Any, trusted: Sequence[str] | None, path: Any
) -> Any:
    """The fitted base that is not ours: the one given, or the one that skops reads, after a look at its scores."""
    if given is None:
        return MissingBase(kind)
    if not _is_default(given):
        base, origin = given, "`base`"
    elif data is not None:
        base, origin = _load_base(data, kind, trusted, path), BASE
    else:
        raise InputError(
            f"{path!s} was fitted on a base, a {kind}, which is not in the files. Give it: load(path, base=the fitted "
            f"{kind}); or load(path, base=None) to use `refine(scores, X)` alone."
        )
    if _class_name(base) != kind:
        raise InputError(f"{origin} must be the {kind} that {path!s} was fitted on; got a {_class_name(base)}.")
    try:
        model._check_base(base)
    except Exception as error:  # whatever the base raises
        raise InputError(
            f"{origin} cannot be the {kind} that {path!s} was fitted on ({type(error).__name__}: {line(error)}) "
            "Give the one that the refiner was fitted with."
        ) from error
    return base


def _load_base(data: bytes, kind: str, trusted: Sequence[str] | None, path: Any) -> Any:
    skops = require("skops.io", "skops")
    try:
        data = renamed(data)
        asked = sorted(set(skops.get_untrusted_types(data=data)))
    except Exception as error:  # skops on bytes that it did not write
        raise InputError(f"{path!s} is damaged: {BASE} cannot be read ({line(error)}).") from error
    missing = asked if trusted is None else sorted({*asked} - {*trusted} - new_names(trusted))
    if trusted is None or missing:
        raise InputError(
            f"{path!s} holds its base, a {kind}, in {BASE}, which is read only if you trust where it comes from, and "
            f"these types in it: load(path, trusted={asked}). Or give the base: load(path, base=the fitted {kind})."
        )
    try:
        return skops.loads(data, trusted=asked)
    except Exception as error:  # likewise
        raise InputError(f"{path!s} is damaged: {BASE} cannot be read ({line(error)}).") from error


def _set_base(model: Any, base: Any, recorded: Any) -> None:
    """Give a loaded refiner its fitted base, and the parameter that it was fitted from."""
    model.base_ = base
    if recorded is None:
        model.base = None
    elif base is None:  # no label varied, and nothing was fitted
        model.base = MissingBase(recorded["$class"])
    else:
        model.base = base if model.prefit else clone(base)
