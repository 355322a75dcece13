"""An `EnergyImputer` in a file: the scorer of whole rows that it fills by, and what the imputer knows beside it."""

from collections.abc import Callable
from typing import Any

from energate.errors import InputError
from energate.estimators import EnergyImputer

_NAMES = ("feature_names_in_", "n_features_in_")


def split(model: Any) -> tuple[EnergyImputer | None, Any]:
    """An imputer and its scorer; of anything else None and itself."""
    if type(model) is not EnergyImputer:
        return None, model
    if "model_" not in vars(model):
        raise InputError("This EnergyImputer is not fitted. Call `fit` before `save`.")
    return model, model.model_


def pack(imputer: EnergyImputer, parameter: Callable[[str, Any], Any], encode: Callable[[Any, str], Any]) -> Any:
    """What the configuration says of an imputer, beside its scorer."""
    attributes = vars(imputer)
    names = [name for name in (*_NAMES, *imputer._FITTED) if name in attributes]
    return {
        "parameters": {name: parameter(name, value) for name, value in sorted(imputer.get_params(deep=False).items())},
        "fitted": {name: encode(attributes[name], name) for name in names},
    }


def unpack(entry: Any, scorer: Any, device: str, decode: Callable[[Any], Any]) -> EnergyImputer:
    """The imputer that `pack` wrote, around its scorer; some exception for what it did not write."""
    given = {**entry["parameters"], "units": scorer.units, "device": device}
    imputer = EnergyImputer(**{name: value if name == "units" else decode(value) for name, value in given.items()})
    if not {*imputer._FITTED, "n_features_in_"} <= entry["fitted"].keys() <= {*imputer._FITTED, *_NAMES}:
        raise ValueError(f"unexpected values {sorted(entry['fitted'])}")
    for name, value in entry["fitted"].items():
        setattr(imputer, name, decode(value))
    imputer.cells_.check(imputer.n_features_in_)
    if imputer.cells_.width != scorer.n_features_in_:
        raise ValueError("the columns are not those of the scorer")
    imputer.model_ = scorer
    return imputer
