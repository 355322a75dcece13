"""Which columns did it: parts of the columns that add up to a difference of energies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate import dynamics
from energate.conservative import gauss_legendre
from energate.errors import InputError
from energate.estimators.edge import Array
from energate.questions.potential import Potential
from energate.views import view_of

N_NODES, PIECES = 32, (1, 2, 8, 32, 128, 512, 2048)
ENOUGH = 1e-7  # of the difference of energies, plus rounding: what the parts may miss
AT_ONCE = 2**21  # numbers: rows times nodes times columns
N_STEPS = 200


@dataclass(frozen=True)
class Attribution:
    """What each column adds to the energy of a row above that of its reference.

    ``parts`` (n, d) add up to ``total`` (n,), the difference of energies, but for ``error`` (n,), of the quadrature.
    ``seen`` (n, D) are the same for the columns that the auto-encoders see.
    """

    parts: Array
    total: Array
    error: Array
    seen: Array


def attribute(model: Any, X: Any, *, reference: Any = "mean", target: Any = None, rows: Any = None) -> Attribution:
    """Which columns make a row liked, or not: the line integral of the field from a reference, column by column.

    The part of column j is (x_j - x0_j) times the mean of the j-th component of the vector field between the two rows.
    The field is the exact gradient of the energy, so the parts add up to E(x) - E(x0): quadrature goes on until they
    do, to 1e-7 of it.

    Parameters
    ----------
    model : a fitted classifier by energy, or an `EnergyScorer`.
    reference : what rows are compared with: ``"mean"``, the middle of every column (its mean or median, by the scaling;
        no category); ``"nearest"``, the nearest of ``rows``; ``"end"``, where the field takes the row: what it should
        have been; or rows of your own, one, or one for each.
    target : None: how much the model likes the row.  A class: the energy of that class.  Two classes: why the first
        and not the second, the difference of their energies.
    rows : the rows given to `fit`, for ``reference="nearest"``.
    """
    potential = Potential.of_model(model, target)
    given = potential.view.rows(X)
    v = potential.scaled(given)
    start = _references(potential, given, v, reference, rows)
    parts = torch.zeros_like(v)
    with torch.no_grad():
        total = potential.energy(v) - potential.energy(start)
    left = torch.arange(len(v))
    for pieces in PIECES:
        some = max(1, AT_ONCE // (pieces * N_NODES * v.shape[1]))
        parts[left] = torch.cat([_integrated(potential.field, start[one], v[one], pieces) for one in left.split(some)])
        missed = (parts.sum(1) - total).abs()
        left = (missed > ENOUGH * total.abs() + 1e-12 * (1 + parts.abs().sum(1))).nonzero().squeeze(1)
        if not len(left):
            break
    seen = parts.numpy()
    return Attribution(potential.gathered(seen), total.numpy(), (parts.sum(1) - total).abs().numpy(), seen)


def _integrated(field: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, pieces: int) -> Tensor:
    """The integral of every component of the field along straight lines (n, D), by Gauss-Legendre quadrature."""
    nodes, weights = gauss_legendre(N_NODES)
    t = (torch.arange(pieces)[:, None] + torch.as_tensor((nodes + 1) / 2)).flatten() / pieces
    w = torch.as_tensor(weights / 2).repeat(pieces) / pieces
    # With sigmoid outputs the field is infinite at 0 and 1, as a logarithm: slow steps at both ends make it smooth.
    s, slow = t**4 * (35 - 84 * t + 70 * t**2 - 20 * t**3), 140 * (t * (1 - t)) ** 3
    points = start.unsqueeze(1) + s[None, :, None] * (end - start).unsqueeze(1)  # (n, S, D)
    found = field(points.flatten(0, 1)).unflatten(0, points.shape[:2])
    found = torch.where((end != start).unsqueeze(1), found, 0.0)  # a column that does not change has no part
    return (end - start) * torch.einsum("s,nsd->nd", w * slow, found)


def _references(potential: Potential, X: Array, v: Tensor, reference: Any, rows: Any) -> Tensor:
    if not isinstance(reference, str):
        given = potential.scaled(potential.view.rows(reference))
        if len(given) not in (1, len(v)):
            raise InputError(f"`reference` must be one row, or one for each of the {len(v)}; got {len(given)}.")
        return given.expand_as(v)
    if reference not in REFERENCES:
        raise InputError(f"`reference` must be one of {', '.join(REFERENCES)}, or rows; got {reference!r}.")
    return REFERENCES[reference](potential, X, v, rows)


def _mean(potential: Potential, X: Array, v: Tensor, rows: Any) -> Tensor:  # noqa: ARG001
    return torch.as_tensor(potential.view.middle()).expand_as(v)


def _nearest(potential: Potential, X: Array, v: Tensor, rows: Any) -> Tensor:  # noqa: ARG001
    if rows is None:
        raise InputError('reference="nearest" needs the rows given to `fit`: attribute(model, X, rows=X_train, ...).')
    known = potential.scaled(potential.view.rows(rows))
    far = torch.cdist(v, known)
    far = torch.where(far > 0, far, torch.inf) if len(known) > 1 else far  # a row of the training set is not its own
    return known[far.argmin(1)]


def _end(potential: Potential, X: Array, v: Tensor, rows: Any) -> Tensor:  # noqa: ARG001
    found = v.clone()
    for number in range(len(v)):
        course = potential.view.course(X[number : number + 1], potential.of[0] if potential.of else None)
        walk = dynamics.trajectory(course.autoencoder, v[number : number + 1], max_steps=N_STEPS)
        found[number] = walk.points[course.index, 0]
    return found


#: references by name
REFERENCES: dict[str, Callable[[Potential, Array, Tensor, Any], Tensor]] = {
    "mean": _mean,
    "nearest": _nearest,
    "end": _end,
}


def importance(model: Any, X: Any, *, reference: Any = "mean", rows: Any = None) -> Array:
    """How much every column counts in what a model says of rows X: the mean size of its part, (d,).

    Of a classifier the parts say why the best class of a row and not the next, otherwise how much the row is liked;
    ``reference`` and ``rows`` are those of `attribute`.
    """
    view = view_of(model)
    given, labels = view.rows(X), list(view.labels)
    parts = np.zeros(given.shape)
    pairs = np.zeros((len(given), 2), dtype=int)
    if labels:
        pairs = np.argsort(-view.commands()["predict"].compute(given)["probabilities"], axis=1, kind="stable")[:, :2]
    for best, next_ in np.unique(pairs, axis=0).tolist():
        some = (pairs == (best, next_)).all(1)
        target = (labels[best], labels[next_]) if labels else None
        parts[some] = attribute(view.model, given[some], reference=reference, target=target, rows=rows).parts
    found: Array = np.abs(parts).mean(0)
    return found
