"""Whether a fitted estimator is what it claims: its vector field r(v) - v is the gradient of its energy.

Three measurements in float64 on every auto-encoder of an estimator, all 0 in exact arithmetic:

- asymmetry: kappa of the Jacobian (Poincare's criterion: symmetric exactly if the field has a potential);
- gradient: that of the energy, by automatic differentiation, against the field;
- path: the integral of the field along a straight and along a bent path between the same rows, against each other and
  against the difference in energy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.conservative import measure
from energate.errors import InputError
from energate.views.view import view_of

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
class Checked:
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


def check(
    model: Any, X: Any = None, *, n_rows: int = 32, seed: int = 0, tell: Callable[[str], object] | None = None
) -> Checked:
    """Measure whether the vector fields of a fitted estimator are the gradients of its energies.

    X are rows as the estimator takes them, of which at most ``n_rows`` are used; without them rows are drawn around the
    scale of training.  An `EnergyClassifier` has one auto-encoder for every part, member and class, an `EnergyScorer`
    one, an `EnergyRefiner` one over its labels (given the columns, for relation "xy"), a `PairScorer` one over y given
    x, or over both.  ``tell`` is told the name of each before it is measured.
    """
    if isinstance(n_rows, bool) or not isinstance(n_rows, int | np.integer) or n_rows < 2:
        raise InputError(f"`n_rows` must be a whole number of at least 2; got {n_rows!r}.")
    view = view_of(model)
    what = view.checked()
    if X is None:
        rows = view.draw(int(n_rows), seed)
    else:
        X = view.rows(X)
        if len(X) < 2:
            raise InputError(f"A check takes at least 2 rows; got {len(X)}.")
        rows = {"X": X[np.random.RandomState(seed).permutation(len(X))[:n_rows]]}
    findings = []
    for field in view.fields(rows, seed):
        if tell is not None:
            tell(field.name)
        findings.append(_measure(*field))
    return Checked(type(model).__name__, what, len(rows["X"]), tuple(findings))


def _measure(name: str, autoencoder: Autoencoder, v: Tensor, c: Tensor | None) -> Finding:
    found = measure(autoencoder, v.to(autoencoder.a), None if c is None else c.to(autoencoder.a))
    return Finding(name, found.asymmetry, found.gradient_error, found.path_error)
