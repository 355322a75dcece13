"""Whether a fitted estimator is what it claims: its vector field r(v) - v is the gradient of its energy.

Three measurements in float64 on every auto-encoder of an estimator, all 0 in exact arithmetic:

- asymmetry: kappa of the Jacobian (Poincare's criterion: symmetric exactly if the field has a potential);
- gradient: that of the energy, by automatic differentiation, against the field;
- path: the integral of the field along a straight and along a bent path between the same rows, against each other and
  against the difference in energy.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.conservative import measure
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.estimators.edge import Array, Scaler
from energate.estimators.pairs import PAIR_RELATIONS
from energate.units import NetworkUnits
from energate.views import without_names

TOLERANCE = 1e-6  # of sqrt(kappa) and of the gradient; in float64 exact models reach 1e-10 and less
PATH_TOLERANCE = 1e-4  # quadrature errs where units are steep


@dataclass(frozen=True)
class Finding:
    """What was measured of one auto-encoder; each number is 0 in exact arithmetic."""

    name: str
    asymmetry: float
    gradient_error: float
    path_error: float

    @property
    def failures(self) -> list[str]:
        """What is wrong, in words; nothing for a conservative field."""
        found = []
        if not math.sqrt(max(self.asymmetry, 0.0)) <= TOLERANCE:
            found.append(f"the Jacobian is not symmetric (kappa {self.asymmetry:.1e}), so that there is no energy")
        if not self.gradient_error <= TOLERANCE:
            found.append(f"the gradient of the energy is another field (by {self.gradient_error:.1e} of it)")
        if not self.path_error <= PATH_TOLERANCE:
            found.append(f"its integral depends on the path (by {self.path_error:.1e})")
        return found


@dataclass(frozen=True)
class Report:
    """What `check` found."""

    estimator: str
    what: str  # the vector fields that were looked at
    n_rows: int
    findings: tuple[Finding, ...]

    @property
    def conservative(self) -> bool:
        """Whether every auto-encoder has an exact energy."""
        return not any(finding.failures for finding in self.findings)

    @property
    def worst(self) -> Finding:
        """The worst of every number."""
        numbers = [[f.asymmetry, f.gradient_error, f.path_error] for f in self.findings]
        return Finding("worst", *(max(values) for values in zip(*numbers, strict=True)))


def check(model: Any, X: Any = None, *, n_rows: int = 32, seed: int = 0) -> Report:
    """Measure whether the vector fields of a fitted estimator are the gradients of its energies.

    X are rows as the estimator takes them, of which at most ``n_rows`` are used; without them rows are drawn around the
    scale of training.  An `EnergyClassifier` has one auto-encoder for every part, member and class, an `EnergyScorer`
    one, an `EnergyRefiner` one over its labels (given the columns, for relation "xy"), a `PairScorer` one over y given
    x, or over both.
    """
    if isinstance(n_rows, bool) or not isinstance(n_rows, int | np.integer) or n_rows < 2:
        raise InputError(f"`n_rows` must be a whole number of at least 2; got {n_rows!r}.")
    what = _what(model)
    check_is_fitted(model)
    if X is None:
        rows = draw_rows(model, int(n_rows), seed)
    elif isinstance(model, PairScorer):
        raise InputError("A PairScorer is checked on pairs that are drawn; leave the rows out.")
    else:
        X = validate_data(without_names(model, X), X, dtype=np.float64, reset=False)
        if len(X) < 2:
            raise InputError(f"A check takes at least 2 rows; got {len(X)}.")
        chosen = np.random.RandomState(seed).permutation(len(X))[:n_rows]
        rows = {"X": X[chosen]}
    findings = tuple(_measure(*field) for field in _fields(model, rows, seed))
    return Report(type(model).__name__, what, len(rows["X"]), findings)


# --- rows --------------------------------------------------------------------------------------------------------


def draw_rows(model: Any, n_rows: int, seed: int = 0) -> dict[str, Array]:
    """Rows around the scale of training, in the user's columns: ``X``, for pairs also ``Y``."""
    random = np.random.RandomState(seed)
    unit = not isinstance(model, EnergyRefiner) and model.scaling == "unit"

    def draw(scaler: Scaler) -> Array:
        shape = (n_rows, len(scaler.size))
        v = random.uniform(size=shape) if unit else random.normal(size=shape)
        return v * scaler.size + scaler.offset

    if isinstance(model, PairScorer):
        return {"X": draw(model.scaler_x_), "Y": draw(model.scaler_y_)}
    return {"X": draw(model.scaler_)}


# --- which fields an estimator has -------------------------------------------------------------------------------


class Field(NamedTuple):
    """One auto-encoder in float64, and scaled rows to look at: v (N, D), perhaps with a context (N, C)."""

    name: str
    autoencoder: Autoencoder
    v: Tensor
    c: Tensor | None = None


@singledispatch
def _what(model: Any) -> str:
    raise InputError(
        "`model` must be a fitted EnergyClassifier, EnergyScorer, EnergyRefiner or PairScorer; "
        f"got {type(model).__name__}."
    )


@_what.register
def _(_: LabelMLP) -> str:
    raise InputError(
        "A LabelMLP has no energy, and so nothing to check. Refine it with an EnergyRefiner, which has one."
    )


@_what.register
def _(_: EnergyClassifier) -> str:
    return "the auto-encoders of every class, part and member"


@_what.register
def _(_: EnergyScorer) -> str:
    return "the auto-encoder of its rows"


@_what.register
def _(model: EnergyRefiner) -> str:
    given = ", given the columns" if model.relation == "xy" else ""
    return f"the auto-encoder of its labels{given}; the base is not part of the energy"


@_what.register
def _(model: PairScorer) -> str:
    return "the auto-encoder of y, given x" if model.relation == "conditional" else "the auto-encoder of x and y"


def _fields(model: Any, rows: dict[str, Array], seed: int) -> Iterator[Field]:
    return _FIELDS[type(model)](model, rows, seed)


def _of_classifier(model: EnergyClassifier, rows: dict[str, Array], _: int) -> Iterator[Field]:
    energies = model.model_
    v = _scaled(model.scaler_, rows["X"])
    for part in energies.autoencoders:
        kind = " + ".join(_kind(group) for group in part.groups)
        if any(isinstance(group, NetworkUnits) for group in part.groups):  # which cannot be taken apart
            yield Field(f"{kind}, all classes", _double(part), v)
            continue
        for c in range(energies.n_members):
            of_member = f", member {c}" if energies.n_members > 1 else ""
            for k, name in enumerate(model.classes_.tolist()):
                alone = part.select(c * energies.n_classes + k)
                yield Field(f"class {name}{of_member}, {kind}", _double(alone), v)


def _of_scorer(model: EnergyScorer, rows: dict[str, Array], _: int) -> Iterator[Field]:
    kind = " + ".join(_kind(group) for group in model.model_.groups)
    yield Field(kind, _double(model.model_), _scaled(model.scaler_, rows["X"]))


def _of_refiner(model: EnergyRefiner, rows: dict[str, Array], seed: int) -> Iterator[Field]:
    autoencoder = _double(model.refinement.autoencoder(model.model_))
    context = _scaled(model.scaler_, rows["X"]) if autoencoder.context_width else None
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(len(rows["X"]), autoencoder.width, generator=generator, dtype=torch.float64)
    yield Field("labels given the columns" if autoencoder.context_width else "labels", autoencoder, labels, context)


def _of_pairs(model: PairScorer, rows: dict[str, Array], _: int) -> Iterator[Field]:
    x, y = _scaled(model.scaler_x_, rows["X"]), _scaled(model.scaler_y_, rows["Y"])
    name = "y given x" if model.relation == "conditional" else "x and y"
    yield Field(name, _double(model.model_), *PAIR_RELATIONS[model.relation].arrange(x, y))


_FIELDS: dict[type, Callable[[Any, dict[str, Array], int], Iterator[Field]]] = {
    EnergyClassifier: _of_classifier,
    EnergyScorer: _of_scorer,
    EnergyRefiner: _of_refiner,
    PairScorer: _of_pairs,
}


def _kind(units: Any) -> str:
    return type(units).__name__


def _double(autoencoder: Autoencoder) -> Autoencoder:
    """A copy in float64."""
    return copy.deepcopy(autoencoder).double().requires_grad_(False)


def _scaled(scaler: Scaler, X: Array) -> Tensor:
    return torch.as_tensor(scaler(X))


# --- the measurements --------------------------------------------------------------------------------------------


def _measure(name: str, autoencoder: Autoencoder, v: Tensor, c: Tensor | None) -> Finding:
    found = measure(autoencoder, v.to(autoencoder.a), None if c is None else c.to(autoencoder.a))
    return Finding(name, found.asymmetry, found.gradient_error, found.path_error)
