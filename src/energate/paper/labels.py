"""The systems of the second table: multi-label classifiers, and refiners over some of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from energate.estimators import EnergyRefiner, LabelMLP
from energate.paper.baselines import (
    HashCRBM,
    LogCountProjection,
    MLkNN,
    boosted_labels,
    chain_labels,
    logistic_labels,
    svm_labels,
)
from energate.paper.spaces import Config

WORDS = ("medical", "enron", "corel5k")  # columns of 0 and 1: whether a word, or a region, is there
MANY_LABELS = ("corel5k",)


class Remembered(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A base that is fitted once to the same rows, however many refiners ask for it."""

    def __init__(self, base: Any, fits: dict[str, Any]) -> None:
        self.base = base
        self.fits = fits

    def __sklearn_clone__(self) -> Self:
        return type(self)(self.base, self.fits)  # the same memory, where `clone` would copy it

    def fit(self, X: Any, Y: Any) -> Self:
        """Fit the base, or take what an earlier fit to these rows has left."""
        parts = (np.ascontiguousarray(X), np.ascontiguousarray(Y, dtype=np.float64))
        key = "".join(hashlib.sha256(part.tobytes()).hexdigest() for part in parts)
        if key not in self.fits:
            self.fits[key] = clone(self.base).fit(X, Y)
        self.model_ = self.fits[key]
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the labels (n, L)."""
        return self.model_.predict_proba(X)


@dataclass(frozen=True)
class Base:
    """A classifier of its own: how it is made from a configuration, a device and a seed."""

    make: Callable[[Config, str, int], Any]


@dataclass(frozen=True)
class Mean:
    """The mean of several bases, each with the configuration chosen for it."""

    of: tuple[str, ...]


@dataclass(frozen=True)
class Refined:
    """A classifier over another system: how it is made from that, a device and a seed."""

    base: str
    make: Callable[[Any, str, int], Any]
    edition: int = 1  # raised when the code changes so that finished cells no longer hold


def _refiner(base: str, relation: str, method: str, objective: str) -> Refined:
    def make(fitted: Any, device: str, seed: int) -> EnergyRefiner:
        return EnergyRefiner(fitted, relation, method=method, objective=objective, device=device, random_state=seed)

    return Refined(base, make, edition=3)


def _projection(objective: str) -> Callable[[Any, str, int], Any]:
    return lambda base, device, seed: LogCountProjection(base, objective=objective, random_state=seed)  # noqa: ARG005


def _on_cpu(make: Callable[..., Any]) -> Base:
    return Base(lambda config, device, seed: make(**config, random_state=seed))  # noqa: ARG005


def _on_device(make: Callable[..., Any]) -> Base:
    return Base(lambda config, device, seed: make(**config, device=device, random_state=seed))


#: the columns of the table; refiners come after what they refine
SYSTEMS: dict[str, Base | Mean | Refined] = {
    "logreg": _on_cpu(logistic_labels),
    "hashcrbm": _on_device(HashCRBM),
    "mlp": _on_device(LabelMLP),
    "gaes-xy": _refiner("mlp", "xy", "ascent", "hamming"),
    "gaes-y2": _refiner("mlp", "yy", "ascent", "hamming"),
    "sets-xy": _refiner("mlp", "xy", "sets", "hamming"),
    "sets-y2": _refiner("mlp", "yy", "sets", "hamming"),
    "sets-y2-subset": _refiner("mlp", "yy", "sets", "subset"),
    "projection": Refined("mlp", _projection("hamming")),
    "projection-subset": Refined("mlp", _projection("subset")),
    "svm": _on_cpu(svm_labels),
    "svm-sets-y2": _refiner("svm", "yy", "sets", "hamming"),
    "svm-sets-y2-subset": _refiner("svm", "yy", "sets", "subset"),
    "mean": Mean(("mlp", "svm")),
    "mean-sets-xy": _refiner("mean", "xy", "sets", "hamming"),
    "mean-sets-y2": _refiner("mean", "yy", "sets", "hamming"),
    "mean-sets-y2-subset": _refiner("mean", "yy", "sets", "subset"),
    "chains": _on_cpu(chain_labels),
    "mlknn": Base(lambda config, device, seed: MLkNN(**config)),  # noqa: ARG005
    "boosting": _on_cpu(boosted_labels),
    "logreg-sets-y2": _refiner("logreg", "yy", "sets", "hamming"),
    "logreg-sets-y2-subset": _refiner("logreg", "yy", "sets", "subset"),
}

#: systems that share fits, by the first words of their names: one process fits them one after another
_KIN = dict.fromkeys(("mlp", "gaes", "sets", "projection", "svm", "mean"), "refined")
FAMILIES: dict[str, tuple[str, ...]] = {}
for _name in SYSTEMS:
    _family = _KIN.get(_name.split("-")[0], _name.split("-")[0])
    FAMILIES[_family] = (*FAMILIES.get(_family, ()), _name)

#: what is left out, as it would take hours
TOO_LONG = {
    (data, name) for data in MANY_LABELS for name in SYSTEMS if name.split("-")[0] in ("svm", "mean", "boosting")
}


def base_of(name: str) -> str | None:
    """What a system refines."""
    system = SYSTEMS[name]
    return system.base if isinstance(system, Refined) else None


def edition_of(name: str) -> int:
    """Which edition of a system's code makes its cells."""
    return getattr(SYSTEMS[name], "edition", 1)


def label_space(name: str, data: str, search: bool) -> list[Config]:
    """The configurations to choose from on validation rows; refiners choose for themselves, by rows left out."""
    if not isinstance(SYSTEMS[name], Base):
        return [{}]
    found = _spaces(data)[name]
    return found if search else [{**found[0], **_QUICK.get(name, {})}]


def _spaces(data: str) -> dict[str, list[Config]]:
    scalings = ("none", "standard") if data in WORDS else ("standard",)
    plain = "none" if data in WORDS else "standard"
    return {
        "logreg": [
            {"C": C, "scaling": scaling}
            for scaling in scalings
            for C in ((0.3, 1.0, 3.0) if scaling == "none" else (0.01, 0.1, 1.0))
        ],
        "hashcrbm": [{"n_hidden": n_hidden, "scaling": plain} for n_hidden in (50, 0)],
        "mlp": [{"scaling": scaling} for scaling in scalings],
        "svm": [
            {"C": C, "gamma": gamma, "scaling": scaling}
            for C, gamma, scaling in (
                ((1.0, "scale", "none"), (3.0, "scale", "none"), (10.0, "scale", "none"))
                if data in WORDS
                else ((1.0, "scale", "standard"), (10.0, "scale", "standard"), (3.0, 0.1, "unit"), (10.0, 0.1, "unit"))
            )
        ],
        "chains": [{"C": C, "n_chains": 1 if data in MANY_LABELS else 5, "scaling": plain} for C in (0.1, 1.0)],
        "mlknn": [{"k": k} for k in (10, 5, 20)],
        "boosting": [{"max_iter": 50, "max_leaf_nodes": 15}],
    }


_QUICK: dict[str, Config] = {"mlp": {"n_members": 2, "n_hidden": 64, "max_epochs": 20}, "chains": {"n_chains": 2}}
