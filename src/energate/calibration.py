"""Class biases B by maximum likelihood: ``P(z = i | x) = softmax_i(E_i(x) + B_i)`` (`eqn:gae:classification`).

The negative log-likelihood is convex in B, and strictly so once the gauge sum B = 0 is fixed.
"""

import math

import torch
from torch import Tensor

from energate.errors import InputError

GIS_STEPS = 30
NEWTON_STEPS = 100
SOFT, SHARPEN = 10.0, 4.0  # spread of energies that Newton takes at once, and the factor from stage to stage


def negative_log_likelihood(B: Tensor, energies: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum over rows of -log P(label | row), for energies (N, K) that are goodnesses."""
    log_p = torch.log_softmax(energies + B, -1)
    chosen = log_p.gather(1, labels.unsqueeze(1)).squeeze(1)
    return -(chosen if weight is None else weight * chosen).sum()


def calibrate(energies: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """The biases (K,) in float64 that make the labels most likely, with sum 0.

    Parameters
    ----------
    energies : (N, K), how much model k likes row n; any constant per row cancels.
    labels : (N,) whole numbers in 0..K-1; every class must occur, or its bias would run to -infinity.
    weight : (N,) optional weights of the rows.

    At the optimum the expected number of rows of each class equals the number seen.
    """
    energies = energies.detach().to(torch.float64)
    n_rows, n_classes = _check(energies, labels)
    if not torch.isfinite(energies).all():
        raise InputError("`energies` must be finite; got NaN or infinity. Check the data and the models.")
    labels = labels.long()  # the index of `gather`
    w = torch.ones(n_rows).to(energies) if weight is None else weight.detach().to(energies)
    if w.shape != (n_rows,) or not (torch.isfinite(w) & (w >= 0)).all():
        raise InputError(
            f"`weight` must have shape ({n_rows},), all finite and at least 0; got shape {tuple(w.shape)}"
            f"{', and a number that is not' if w.shape == (n_rows,) else ''}."
        )
    counts = torch.zeros(n_classes).to(energies).index_add(0, labels, w)  # (K,)
    if (counts <= 0).any():
        missing = (counts <= 0).nonzero().squeeze(1).tolist()
        raise InputError(
            f"Every class must occur in the calibration rows; none of the {n_rows} rows is of class {missing}. "
            "Calibrate on rows of all classes, or leave those classes out."
        )
    log_w = w.clamp(min=torch.finfo(torch.float64).tiny).log().unsqueeze(1)  # (N, 1)
    energies = energies - energies.amax(1, keepdim=True)
    # Large energies make the likelihood almost piecewise linear.  Soften them first, then sharpen by steps.
    spread = float((energies.amax(1) - energies.amin(1)).mean())
    n_softer = max(0, math.ceil(math.log(max(spread, 1.0) / SOFT) / math.log(SHARPEN)))
    B = torch.zeros_like(counts)
    # Iterative scaling: monotone from anywhere, in the log domain, so that far-off biases come near.
    soft = energies * SHARPEN**-n_softer
    for _ in range(GIS_STEPS):
        log_expected = torch.logsumexp(torch.log_softmax(soft + B, -1) + log_w, 0)  # (K,)
        change = counts.log() - log_expected
        B = B + change
        if change.abs().max() < 1e-3:
            break
    for power in range(n_softer, -1, -1):
        B = _newton(B, energies * SHARPEN**-power, labels, w, counts, 1e-11 if power == 0 else 1e-3)
        B = B * (SHARPEN if power else 1.0)
    return B


def calibrate_scale(energies: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[float, Tensor]:
    """A scale beta and biases B (K,) for ``P(z = i | x) = softmax_i(beta E_i(x) + B_i)``, by maximum likelihood.

    Jointly convex but for a prior on beta, log-normal around 1 with spread 0.5: it decides where there are few rows, or
    where they are separable and the likelihood would send beta to infinity.  beta is searched between 1/100 and 10.
    """

    def cost(log_beta: float) -> float:
        scaled = math.exp(log_beta) * energies.detach().to(torch.float64)
        loss = negative_log_likelihood(calibrate(scaled, labels, weight), scaled, labels, weight)
        return float(loss) + log_beta**2 / (2 * 0.5**2)

    low, high = math.log(0.01), math.log(10.0)
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    cost_left, cost_right = cost(left), cost(right)
    while high - low > 1e-3:
        if cost_left < cost_right:
            high, right, cost_right = right, left, cost_left
            left = high - golden * (high - low)
            cost_left = cost(left)
        else:
            low, left, cost_left = left, right, cost_right
            right = low + golden * (high - low)
            cost_right = cost(right)
    beta = math.exp((low + high) / 2)
    return beta, calibrate(beta * energies.detach().to(torch.float64), labels, weight)


def _newton(B: Tensor, energies: Tensor, labels: Tensor, w: Tensor, counts: Tensor, tolerance: float) -> Tensor:
    """Damped Newton with Armijo's rule; the all-ones direction, along which nothing changes, is filled in."""
    total = float(w.sum())
    eye = torch.eye(len(B)).to(B)
    damping = 1e-8 * total
    rounding = 16 * torch.finfo(torch.float64).eps  # near the optimum the values say nothing, the gradient does
    value = negative_log_likelihood(B, energies, labels, w)
    for _ in range(NEWTON_STEPS):
        p = torch.softmax(energies + B, -1)  # (N, K)
        expected = w @ p
        gradient = expected - counts
        if gradient.abs().max() <= tolerance * total:
            break
        hessian = torch.diag(expected) - (p * w.unsqueeze(1)).T @ p
        direction = torch.linalg.solve(hessian + damping * eye + total / len(B), -gradient)
        decrease = float(gradient @ direction)
        size, accepted = 1.0, False
        while size > 1e-6 and not accepted:
            candidate = negative_log_likelihood(B + size * direction, energies, labels, w)
            accepted = bool(candidate <= value + 1e-4 * size * decrease + rounding * value)
            size = size if accepted else size / 2
        if accepted:
            B, value = B + size * direction, candidate
            damping = max(damping * 0.1, 1e-14 * total)
        elif damping > 1e6 * total:
            break
        else:
            damping *= 10
    return B - B.mean()


def _check(energies: Tensor, labels: Tensor) -> tuple[int, int]:
    if energies.ndim != 2 or labels.shape != energies.shape[:1] or not len(energies):
        raise InputError(
            "`energies` must be (N, K) and `labels` (N,), with N > 0; "
            f"got {tuple(energies.shape)} and {tuple(labels.shape)}."
        )
    n_classes = energies.shape[1]
    if labels.is_floating_point() or labels.min() < 0 or labels.max() >= n_classes:
        raise InputError(f"`labels` must be whole numbers from 0 to {n_classes - 1}; encode them first.")
    return len(energies), n_classes
