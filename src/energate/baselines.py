"""Where the baselines were until 0.1: they are in `energate.paper.baselines`, the one for images in `energate`."""

import warnings
from typing import Any

import energate
from energate.paper import baselines


def __getattr__(name: str) -> Any:
    renamed = {"DeepEnergyClassifier": "ImageEnergyClassifier"}
    home: Any = energate if name in renamed else baselines
    found = getattr(home, renamed.get(name, name))
    warnings.warn(
        f"energate.baselines.{name} has moved: use {home.__name__}.{renamed.get(name, name)}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
