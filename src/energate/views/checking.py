"""Whether a fitted estimator is what it claims: its vector field r(v) - v is the gradient of its energy.

Three measurements in float64 on every auto-encoder of an estimator, all 0 in exact arithmetic:

- asymmetry: kappa of the Jacobian (Poincare's criterion: symmetric exactly if the field has a potential);
- gradient: that of the energy, by automatic differentiation, against the field;
- path: the integral of the field along a straight and along a bent path between the same rows, against each other and
  against the difference in energy.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import Path, _gradient_error, _pooled_asymmetry, _straight, _to_logits, line_integral
from energate.errors import InputError
from energate.views.view import view_of

TOLERANCE = 1e-6  # of sqrt(kappa) and of the gradient; in float64 exact models reach 1e-10 and less
PATH_TOLERANCE = 1e-4  # quadrature errs where units are steep
N_PATHS = 4
MOST_PIECES, SETTLED = 64, 1e-9  # pieces of a path, and the change of its integral by more of them that is none
LOGITS = 4.0  # off the faces of the cube, where the field of sigmoid outputs is infinite


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


def check(model: Any, X: Any = None, *, n_rows: int = 32, seed: int = 0) -> Checked:
    """Measure whether the vector fields of a fitted estimator are the gradients of its energies.

    X are rows as the estimator takes them, of which at most ``n_rows`` are used; without them rows are drawn around the
    scale of training.  An `EnergyClassifier` has one auto-encoder for every part, member and class, an `EnergyScorer`
    one, an `EnergyRefiner` one over its labels (given the columns, for relation "xy"), a `PairScorer` one over y given
    x, or over both.
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
    findings = tuple(_measure(*field) for field in view.fields(rows, seed))
    return Checked(type(model).__name__, what, len(rows["X"]), findings)


# --- the measurements --------------------------------------------------------------------------------------------


@torch.no_grad()
def _measure(name: str, autoencoder: Autoencoder, v: Tensor, c: Tensor | None) -> Finding:
    visible = autoencoder.visible
    v, c = v.to(autoencoder.a), None if c is None else c.to(autoencoder.a)
    v = visible.f(_to_logits(visible, v, limit=LOGITS))
    asymmetry = _pooled_asymmetry(autoencoder, v, c)
    return Finding(name, asymmetry, _gradient_error(autoencoder, v, c), _path_error(autoencoder, v, c))


def _path_error(model: Autoencoder, v: Tensor, c: Tensor | None) -> float:
    """The worst over some pairs of rows, relative to the integrals plus 1; for the context of the first row."""
    context = None if c is None else c[:1]
    worst = 0.0
    for i in range(min(N_PATHS, len(v) // 2)):
        start, end, aside = v[2 * i], v[2 * i + 1], v[(2 * i + 2) % len(v)]
        energy = model.energy(torch.stack([start, end]), None if context is None else context.expand(2, -1))
        expected = energy[:, 1] - energy[:, 0]  # (K,)
        straight = _integral(model, _straight(start, end), context)
        bent = _integral(model, _bent(model, start, end, aside), context)
        size = 1 + torch.stack([expected, straight, bent]).abs().amax(0)
        apart = torch.stack([straight - bent, bent - expected, straight - expected]).abs().amax(0)
        worst = max(worst, float((apart / size).max()))
    return worst


def _bent(model: Autoencoder, start: Tensor, end: Tensor, aside: Tensor) -> Path:
    """A path by way of a third row, inside the domain of the outputs."""
    t_start, t_end, t_aside = (model.visible.inverse(row) for row in (start, end, aside))
    bend = t_aside - (t_start + t_end) / 2

    def path(s: Tensor) -> Tensor:
        s = s.unsqueeze(-1)
        return model.visible.f(torch.lerp(t_start, t_end, s) + torch.sin(math.pi * s) * bend)

    return path


def _integral(model: Autoencoder, path: Path, c: Tensor | None) -> Tensor:
    """The integral of the field along a path, in more and more pieces until it no longer changes."""
    n_pieces, last = 1, line_integral(model, path, c)
    while n_pieces < MOST_PIECES:
        n_pieces *= 4
        pieces = [line_integral(model, _piece(path, i, n_pieces), c, n_nodes=100) for i in range(n_pieces)]
        now = torch.stack(pieces).sum(0)
        settled = bool(((now - last).abs() <= SETTLED * (1 + now.abs())).all())
        last = now
        if settled:
            break
    return last


def _piece(path: Path, i: int, n_pieces: int) -> Path:
    return lambda s: path((i + s) / n_pieces)
