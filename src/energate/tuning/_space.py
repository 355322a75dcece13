"""What a search may try: for every parameter a list of choices or a range, checked once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from energate.errors import InputError
from energate.estimators.classifier import PER_MEMBER

Space = Mapping[str, Any]
Dimensions = dict[str, "Choices | Range"]
#: what is tried when no space is given; hidden units only where the estimator builds its own
DEFAULT_SPACE: dict[str, Any] = {
    "noise_level": (0.05, 0.8),
    "generative_weight": (0.003, 3.0, "log"),
    "learning_rate": (1e-3, 1e-2, "log"),
    "fine_tune_learning_rate": (1e-3, 3e-2, "log"),
    "weight_decay": (1e-6, 1e-2, "log"),
    "n_hidden": [50, 100, 200],
}
#: the same for a trunk
TRUNK_SPACE: dict[str, Any] = {
    "noise_level": (0.1, 0.5),
    "generative_weight": (1.0, 100.0, "log"),
    "learning_rate": (1e-3, 1e-2, "log"),
    "weight_decay": (1e-3, 0.1, "log"),
    "breadth": [64, 128, 256],
    "depth": [1, 2, 3],
}
#: what decides how trials are measured and compared, and is therefore the same for all
FIXED = (
    "class_weight",
    "device",
    "early_stopping",
    "random_state",
    "validation_fraction",
    "verbose",
    "warm_start",
)
SIMPLE = (bool, int, float, str, type(None))


def plain(value: Any) -> Any:
    """A value that JSON and a study can hold; a function is known by its name."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, SIMPLE):
        return value
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)


@dataclass(frozen=True)
class Choices:
    """One of some values; ``labels`` stand for them in a study."""

    values: tuple[Any, ...]
    labels: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        return self.value(trial.suggest_categorical(name, self.labels))

    def value(self, label: Any) -> Any:
        return self.values[self.labels.index(label)]

    def holds(self, value: Any) -> bool:
        return plain(value) in self.labels

    def describe(self) -> list[Any]:
        return list(self.labels)


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both among them."""

    low: float
    high: float
    log: bool
    whole: bool

    def suggest(self, trial: Any, name: str) -> float:
        suggest = trial.suggest_int if self.whole else trial.suggest_float
        return suggest(name, self.low, self.high, log=self.log)

    def value(self, label: float) -> float:
        return label

    def holds(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high and (not self.whole or int(value) == value)

    def describe(self) -> list[Any]:
        return [self.low, self.high, "log" if self.log else "linear"]


def read_space(space: Space, known: Mapping[str, Any]) -> Dimensions:
    """The dimensions of a space for an estimator with the ``known`` parameters."""
    if not isinstance(space, Mapping) or not space:
        raise InputError(f"`space` must be a dictionary from parameters to choices or ranges; got {space!r}.")
    allowed = [name for name in known if name not in FIXED]
    unknown = [name for name in space if name not in allowed]
    if unknown:
        fixed = [name for name in unknown if name in FIXED]
        hint = f" {', '.join(fixed)}: the same for all trials, so set it on the estimator." if fixed else ""
        raise InputError(f"`space` may hold {', '.join(allowed)}; got also {', '.join(map(str, unknown))}.{hint}")
    return {name: _read(name, given) for name, given in space.items()}


def _read(name: str, given: Any) -> "Choices | Range":
    where = f"`space[{name!r}]`"
    if isinstance(given, list):
        simple = [value.item() if isinstance(value, np.generic) else value for value in given]
        if not simple:
            raise InputError(f"{where} is an empty list. Give at least one choice.")
        if name in PER_MEMBER and not all(_is_number(value) and math.isfinite(value) for value in simple):
            raise InputError(f"{where} must hold numbers, one for each configuration that takes it; got {given!r}.")
        shown = [plain(value) for value in simple]
        labels = tuple(
            label if isinstance(value, SIMPLE) else f"{i}: {label}"
            for i, (label, value) in enumerate(zip(shown, simple, strict=True))
        )
        if len(set(map(repr, labels))) < len(labels):
            raise InputError(f"{where} holds a choice twice: {given!r}. Leave one out.")
        return Choices(tuple(simple), labels)
    form = "a list of choices, (low, high) or (low, high, 'log')"
    if not isinstance(given, tuple) or len(given) not in (2, 3) or not all(map(_is_number, given[:2])):
        raise InputError(f"{where} must be {form}; got {given!r}.")
    if len(given) == 3 and given[2] != "log":
        raise InputError(f"{where} must be {form}; got {given[2]!r} as its third value.")
    low, high = (end.item() if isinstance(end, np.generic) else end for end in given[:2])
    whole, log = isinstance(low, int) and isinstance(high, int), len(given) == 3
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{where} must go from a lower to a higher number; got {given!r}. For one value, give a list.")
    if log and low <= 0:
        raise InputError(f"{where} is on a log scale and must begin above 0; got {low}. Begin higher, or drop 'log'.")
    return Range(low, high, log, whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
