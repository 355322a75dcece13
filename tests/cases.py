"""Every kind of units, every activation and every estimator, once.  Contract tests loop over these lists.

Sizes all differ and biases are never zero: with equal sizes or zero biases half of the known mistakes
are invisible.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from torch import Tensor, nn

from energate.activations import ACTIVATIONS, Activation, elu, leaky, softmax, softshrink
from energate.autoencoder import Autoencoder
from energate.estimators import (
    EnergyClassifier,
    EnergyRefiner,
    EnergyScorer,
    ImageEnergyClassifier,
    LabelMLP,
    PairScorer,
)
from energate.memory import ColumnMemoryUnits, MemoryUnits, SoftColumnUnits, SoftGaussianUnits
from energate.trunk import TrunkUnits
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, NetworkUnits, SymmetricGatedUnits

K = 3  # models
N = 11  # rows
D = 7  # visible columns
C = 4  # context columns
F = 6  # factors
M = 8  # hidden units; divisible by the softmax group size


class TrunkWithHeads(nn.Module):
    """A small network with one trunk and K heads, for (N, D) and for (K, N, D)."""

    def __init__(self, width: int = D, n_heads: int = K) -> None:
        super().__init__()
        self.trunk = nn.Linear(width, 9)
        self.heads = nn.Parameter(torch.randn(n_heads, M, 9))

    def forward(self, v: Tensor) -> Tensor:
        return torch.tanh(self.trunk(v)) @ self.heads.mT


class TrunkWithContext(nn.Module):
    """The same with a context that gates the trunk; takes (N, D) only."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(D, 9)
        self.gate = nn.Linear(C, 9)
        self.heads = nn.Parameter(torch.randn(K, M, 9))

    def forward(self, v: Tensor, c: Tensor) -> Tensor:
        return torch.einsum("nt,kmt->knm", torch.tanh(self.trunk(v)) * self.gate(c), self.heads)


@dataclass(frozen=True)
class UnitsCase:
    """A kind of hidden units: how to build it, and whether it takes a context."""

    name: str
    build: Callable[[str | Activation], HiddenUnits]
    context: bool = False

    def model(self, activation: str | Activation = "sigmoid", visible: str = "linear", seed: int = 0) -> Autoencoder:
        return random_model([self.build(activation)], visible, seed)


UNITS = [
    UnitsCase("mean", lambda f: MeanUnits(K, D, M, f)),
    UnitsCase("gated", lambda f: GatedUnits(K, D, C, F, M, f), context=True),
    UnitsCase("symmetric", lambda f: SymmetricGatedUnits(K, D - C, C, F, M, f)),
    UnitsCase("covariance", lambda f: CovarianceUnits(K, D, F, M, f)),
    UnitsCase("covariance-once", lambda f: CovarianceUnits(K, D, F, M, f, repeats=1)),
    UnitsCase("network", lambda f: NetworkUnits(TrunkWithHeads(), D, activation=f)),
    UnitsCase("network-context", lambda f: NetworkUnits(TrunkWithContext(), D, C, f), context=True),
    UnitsCase("trunk", lambda f: TrunkUnits(K, D, M, f, breadth=9, depth=2, waves=[0, 2, 5], n_waves=2)),
    UnitsCase("trunk-divided", lambda f: TrunkUnits(K, D, M, f, breadth=5, repeats=2.5)),
    UnitsCase("trunk-alone", lambda f: TrunkUnits(K, D, M, f, n_members=K, breadth=5, depth=1)),
    UnitsCase("memory", lambda _: MemoryUnits(K, D, M, 3)),
    UnitsCase("column-memory", lambda _: ColumnMemoryUnits(K, D, 5)),
    UnitsCase("soft-columns", lambda _: SoftColumnUnits(K, D, 5)),
    UnitsCase("soft-gaussian", lambda _: SoftGaussianUnits(K, D)),
]

#: every registered activation, and the options that change the formula
ALL_ACTIVATIONS: dict[str, Activation] = {
    **ACTIVATIONS,
    "leaky(0.3)": leaky(0.3),
    "elu(0.7)": elu(0.7),
    "softshrink(1.5)": softshrink(1.5),
    "softmax(2.5)": softmax(temperature=2.5),
    "softmax(groups)": softmax(group_size=4),
}

VISIBLE = ["linear", "sigmoid"]

#: an estimator in a fraction of a second: few units, few epochs
QUICK = {"n_hidden": 8, "n_factors": 8, "max_epochs": 3, "random_state": 0, "device": "cpu"}


@dataclass(frozen=True)
class EstimatorCase:
    """An estimator with quick parameters, to be fitted to rows and labels, and what it makes of rows.

    Of one that learns pairs, every row is paired with itself; one that needs no labels ignores them.
    """

    name: str
    kind: type
    first: str | None  # units or relation
    scores: Callable[[Any, Any], np.ndarray]
    pairs: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def build(self, **options: Any) -> Any:
        known = inspect.signature(self.kind).parameters
        if unknown := set(options) - set(known):
            pytest.skip(f"{self.kind.__name__} has no {', '.join(unknown)}")
        quick = {name: value for name, value in QUICK.items() if name in known}
        first = () if self.first is None else (self.first,)
        return self.kind(*first, **{**quick, **self.more, **options})

    def fit(self, X: Any, y: Any, **options: Any) -> Any:
        return self.build(**options).fit(X, X if self.pairs else y)


def _classifier(units: str, **more: Any) -> EstimatorCase:
    return EstimatorCase(f"classifier-{units}", EnergyClassifier, units, EnergyClassifier.predict_proba, more=more)


def _pairs(relation: str) -> EstimatorCase:
    return EstimatorCase(f"pairs-{relation}", PairScorer, relation, lambda m, X: m.score_pairs(X, X), pairs=True)


CLASSIFIERS = [
    *(_classifier(units, pretrain_epochs=2) for units in ("mean", "covariance", "mean-covariance")),
    _classifier("trunk", n_members=2, breadth=8),
    _classifier("memory"),
]
SCORER = EstimatorCase("scorer", EnergyScorer, "mean-covariance", EnergyScorer.score_samples)
MEMORY = EstimatorCase("scorer-memory", EnergyScorer, "memory", EnergyScorer.score_samples)
#: columns that are no square are an image of one line
IMAGES = EstimatorCase(
    "images", ImageEnergyClassifier, None, ImageEnergyClassifier.predict_proba, more={"channels": 8, "n_blocks": 0}
)
SMALL_BASE = LabelMLP(n_hidden=8, n_members=2, max_epochs=3, random_state=0, device="cpu")
#: test_refiner.py puts them to those contract tests that fit them: some are about callbacks and scalings of others
LABELS = [
    EstimatorCase("labels", LabelMLP, None, LabelMLP.predict_proba, more={"n_members": 2}),
    *(
        EstimatorCase(
            f"refiner-{method}", EnergyRefiner, None, EnergyRefiner.predict_proba,
            more={"base": SMALL_BASE, "relation": relation, "method": method, "cv": 2},
        )
        for method, relation in (("sets", "yy"), ("ascent", "xy"))
    ),
]  # fmt: skip
ESTIMATORS = [*CLASSIFIERS, SCORER, MEMORY, IMAGES, *map(_pairs, ("conditional", "symmetric"))]
#: those that are not trained
MEMORIES = [case for case in ESTIMATORS if case.first == "memory"]


def random_model(
    units: list[HiddenUnits], visible: str = "linear", seed: int = 0, scale: float = 0.5, skip: Tensor | None = None
) -> Autoencoder:
    """A float64 model whose every parameter, biases included, is drawn from N(0, scale^2)."""
    model = Autoencoder(units, visible, skip).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def random_rows(visible: str = "linear", width: int = D, n_rows: int = N, seed: int = 1) -> Tensor:
    """Rows inside the domain of the output: normal, or uniform in (0.05, 0.95)."""
    generator = torch.Generator().manual_seed(seed)
    if visible == "sigmoid":
        return 0.05 + 0.9 * torch.rand(n_rows, width, generator=generator, dtype=torch.float64)
    return torch.randn(n_rows, width, generator=generator, dtype=torch.float64)


def random_context(case: UnitsCase, n_rows: int = N, seed: int = 2) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_rows, C, generator=generator, dtype=torch.float64) if case.context else None


def gradient_error(energy: Callable[[Tensor], Tensor], field: Callable[[Tensor], Tensor], v: Tensor) -> float:
    """|grad E - F| / |F|, the generic test of exactness.  ``energy`` maps (K, N, D) or (N, D) rows to scores."""
    v = v.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(v).sum(), v)
    expected = field(v).detach()
    return float((gradient - expected).norm() / expected.norm())


class Trunk(nn.Module):
    """One layer for all models, and a head for each."""

    def __init__(self, n_models: int, width: int) -> None:
        super().__init__()
        self.first, self.heads = nn.Linear(width, 6), nn.Parameter(torch.randn(n_models, 4, 6))

    def forward(self, v: Tensor) -> Tensor:
        return torch.tanh(self.first(v)) @ self.heads.mT


def trunk_units(n_models: int, width: int, _: torch.Generator) -> NetworkUnits:
    """A function for `EnergyClassifier(units=...)`."""
    return NetworkUnits(Trunk(n_models, width), width)


def mixed_columns(n_rows: int = 120, seed: int = 0) -> tuple[dict[str, list[Any]], np.ndarray]:
    """The columns of a table with missing cells and categories, and two classes that all of them tell something of."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n_rows)
    size, age = rng.normal(np.stack([y, 30 + 2 * y]))
    colour = np.where(rng.random(n_rows) < 0.7, np.array(["red", "blue"])[y], "green")
    grade = np.where(rng.random(n_rows) < 0.6, np.array([2, 10])[y], 3)
    gone = rng.random((2, n_rows)) < 0.2
    return {
        "size": size.tolist(),
        "age": [None if none else value for value, none in zip(age.tolist(), gone[0], strict=True)],
        "colour": [None if none else value for value, none in zip(colour.tolist(), gone[1], strict=True)],
        "grade": grade.tolist(),
    }, y


VECTORS = np.array([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 1]])
QUICK_REFINER: dict[str, Any] = {"max_epochs": 12, "random_state": 0, "device": "cpu", "n_hidden": 8, "n_factors": 8}


def labelled_rows(n_rows: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows with one of five label vectors, and a noisy column for each label."""
    rng = np.random.default_rng(seed)
    Y = VECTORS[rng.integers(0, len(VECTORS), n_rows)]
    return Y + rng.normal(0, 0.7, Y.shape), Y


def logistic() -> Any:
    """A base of scikit-learn's."""
    return MultiOutputClassifier(LogisticRegression())
