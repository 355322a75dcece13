"""Class biases B by maximum likelihood: ``P(z = i | x) = softmax_i(E_i(x) + B_i)`` (`eqn:gae:classification`).

The negative log-likelihood is convex in B, and strictly so once the gauge sum B = 0 is fixed.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from energate.errors import InputError

GIS_STEPS = 30
NEWTON_STEPS = 100
SCALE_SPREAD, LEAST_SCALE = 0.5, 1e-3  # the prior on a scale; the least scale, as a share of the first
FLAT = 1e-9  # added to curvatures of `calibrate_labels`: scores that say nothing have none
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


def calibrate_scales(energies: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scales beta (P,) and biases B (K,) for ``P(z = i | x) = softmax_i(sum_p beta_p E_pi(x) + B_i)``, in float64.

    ``energies`` is (P, N, K): P models of each class, whose energies add.  By maximum likelihood, jointly convex, with
    a normal prior on each beta, around 1 with spread 0.5: it decides where there are few rows, or where they are
    separable and the likelihood would send beta to infinity.  No beta is negative.
    """
    energies = energies.detach().to(torch.float64)
    total = energies.sum(0)  # (N, K)
    n_rows, _ = _check(total, labels)
    spread = float((total.amax(1) - total.amin(1)).mean())
    beta = torch.full((len(energies),), min(1.0, SOFT / max(spread, 1e-300))).to(total)
    B = calibrate(beta[0] * total, labels, weight)  # checks, and brings far-off biases near
    w = torch.ones(n_rows).to(total) if weight is None else weight.detach().to(total)
    chosen = torch.nn.functional.one_hot(labels.long(), len(B)).to(total)
    n_scales = len(beta)

    def cost(theta: Tensor) -> Tensor:
        logits = torch.tensordot(theta[:n_scales], energies, 1)
        prior = ((theta[:n_scales] - 1) ** 2).sum() / (2 * SCALE_SPREAD**2)
        return negative_log_likelihood(theta[n_scales:], logits, labels.long(), w) + prior

    theta = torch.cat([beta, B])
    floor = torch.cat([LEAST_SCALE * beta, torch.full_like(B, -math.inf)])
    value, damping = cost(theta), 1e-6
    rounding = 16 * torch.finfo(torch.float64).eps
    for _ in range(NEWTON_STEPS):
        gradient, hessian = _derivatives(theta, energies, chosen, w)
        free = (theta > floor) | (gradient < 0)
        # Lengths of the Newton step: a scale of energies of 1e4 and a bias differ by as much.
        size = hessian.diagonal().clamp(min=1e-12).sqrt()
        if ((gradient / size)[free].abs() <= 1e-9 * float(w.sum()) ** 0.5).all():
            break
        both = free.unsqueeze(1) & free
        scaled = torch.where(both, hessian / (size.unsqueeze(1) * size), 0.0)
        scaled = scaled + torch.diag(torch.where(free, damping, 1.0))
        direction = torch.linalg.solve(scaled, torch.where(free, -gradient / size, 0.0)) / size
        candidate = torch.maximum(theta + direction, floor)
        new_value = cost(candidate)
        if new_value <= value + rounding * value.abs():
            converged = bool(value - new_value <= 1e-13 * value.abs())
            theta, value, damping = candidate, new_value, max(damping * 0.1, 1e-12)
            if converged:
                break
        elif damping > 1e8:
            break
        else:
            damping *= 10
    B = theta[n_scales:]
    return theta[:n_scales], B - B.mean()


def calibrate_labels(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Slopes and offsets (L,) in float64 for ``P(y_l = 1 | x) = sigmoid(slope_l s_l(x) + offset_l)``, label by label.

    Platt (1999): cross-entropy with targets (N_on + 1) / (N_on + 2) and 1 / (N_off + 2) in place of 1 and 0, so that
    slopes are finite even where scores separate a label, or it never changes.  Scores that speak against their own
    label, which happens where few rows have it, get the best slope that is not negative: 0.

    Parameters
    ----------
    scores : (N, L), of rows that the base was not trained on.
    labels : (N, L) of 0 and 1.
    weight : (N,) optional weights of the rows.
    """
    scores, labels = scores.detach().to(torch.float64), labels.to(torch.float64)
    if scores.ndim != 2 or scores.shape != labels.shape or not len(scores) or not torch.isfinite(scores).all():
        raise InputError(
            "`scores` and `labels` must be (N, L) with N > 0, and scores finite; "
            f"got {tuple(scores.shape)} and {tuple(labels.shape)}."
        )
    w = torch.ones(len(scores), 1).to(scores) if weight is None else weight.detach().to(scores).unsqueeze(1)
    n_on, n_off = (w * labels).sum(0), (w * (1 - labels)).sum(0)
    target = torch.where(labels > 0.5, (n_on + 1) / (n_on + 2), 1 / (n_off + 2))
    middle, unit = scores.mean(0), scores.std(0, correction=0)
    unit = torch.where(unit > 1e-9 * (1 + middle.abs()), unit, 1.0)  # a score that says nothing keeps its scale
    s = (scores - middle) / unit

    def cost(slope: Tensor, offset: Tensor) -> Tensor:
        logits = slope * s + offset
        return (w * binary_cross_entropy_with_logits(logits, target, reduction="none")).sum(0)

    alone = torch.logit((w * target).sum(0) / w.sum())  # the best offset without a slope
    slope, offset, size = torch.zeros_like(alone), alone, torch.ones_like(alone)
    value = cost(slope, offset)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(slope * s + offset)
        miss, curve = w * (p - target), w * p * (1 - p)
        g_slope, g_offset = (miss * s).sum(0), miss.sum(0)
        h_ss, h_so, h_oo = (curve * s * s).sum(0) + FLAT, (curve * s).sum(0), curve.sum(0) + FLAT
        determinant = h_ss * h_oo - h_so**2
        step_slope = (h_oo * g_slope - h_so * g_offset) / determinant
        step_offset = (h_ss * g_offset - h_so * g_slope) / determinant
        new = slope - size * step_slope, offset - size * step_offset
        new_value = cost(*new)
        better = new_value <= value + 16 * torch.finfo(torch.float64).eps * value.abs()
        done = ((value - new_value).abs() <= 1e-13 * (1 + value.abs())) & better
        slope, offset = torch.where(better, new[0], slope), torch.where(better, new[1], offset)
        value, size = torch.where(better, new_value, value), torch.where(better, 1.0, size / 2)
        if (done | (size < 1e-8)).all():
            break
    # The cost is convex: with a best slope below 0, the best that is not negative is 0.
    slope, offset = slope.clamp(min=0), torch.where(slope < 0, alone, offset)
    return slope / unit, offset - slope * middle / unit


def _derivatives(theta: Tensor, energies: Tensor, chosen: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of the cost of `calibrate_scales`; the direction in which B does not matter is filled in."""
    n_scales = len(energies)
    p = torch.softmax(torch.tensordot(theta[:n_scales], energies, 1) + theta[n_scales:], -1)  # (N, K)
    miss = (p - chosen) * w.unsqueeze(1)
    gradient_beta = (energies * miss).sum((1, 2)) + (theta[:n_scales] - 1) / SCALE_SPREAD**2
    gradient = torch.cat([gradient_beta, miss.sum(0)])
    centred = energies - (energies * p).sum(-1, keepdim=True)  # (P, N, K)
    weighted = p * w.unsqueeze(1)
    beta_beta = torch.einsum("pnk,qnk,nk->pq", centred, centred, weighted)
    beta_beta = beta_beta + torch.eye(n_scales).to(p) / SCALE_SPREAD**2
    beta_B = (centred * weighted).sum(1)  # (P, K)
    B_B = torch.diag(weighted.sum(0)) - weighted.T @ p + w.sum() / p.shape[1] ** 2
    return gradient, torch.cat([torch.cat([beta_beta, beta_B], 1), torch.cat([beta_B.T, B_B], 1)])


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
