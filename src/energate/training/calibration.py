"""Class biases B by maximum likelihood: ``P(z = i | x) = softmax_i(E_i(x) + B_i)`` (`eqn:gae:classification`).

The negative log-likelihood is convex in B, and strictly so once the gauge sum B = 0 is fixed; and jointly convex in B
and in scales of the energies.  C such problems, of the members of a classifier, are solved as one program.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from energate.errors import InputError

GIS_STEPS = 30
NEWTON_STEPS = 100
SCALE_SPREAD, LEAST_SCALE = 0.5, 1e-3  # the prior on a scale; the least scale, as a share of the first
FLAT = 1e-9  # added to curvatures of `calibrate_labels`: scores that say nothing have none
SOFT, SHARPEN = 10.0, 4.0  # spread of energies that Newton takes at once, and the factor from stage to stage
PSEUDO_ROWS = 2.0  # of any class, which `calibrate_sureness` adds
EXACT, NEAR, ROUGH = 1e-22, 1e-6, 1e-7  # gains of a step, in nats per row, that end Newton's steps
ROUNDING = 16 * torch.finfo(torch.float64).eps  # near the optimum the values say nothing, the gradient does


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
    _check(energies, labels)
    return calibrate_members(energies[None, None], labels, weight, scale=False).B[0]


def calibrate_scales(energies: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scales beta (P,) and biases B (K,) for ``P(z = i | x) = softmax_i(sum_p beta_p E_pi(x) + B_i)``, in float64.

    ``energies`` is (P, N, K): P models of each class, whose energies add.  By maximum likelihood, jointly convex, with
    a normal prior on each beta, around 1 with spread 0.5: it decides where there are few rows, or where they are
    separable and the likelihood would send beta to infinity.  No beta is negative.
    """
    _check(energies.sum(0), labels)
    found = calibrate_members(energies.unsqueeze(0), labels, weight)
    return found.beta[0], found.B[0]


@dataclass(frozen=True)
class Calibration:
    """Scales (C, P), biases (C, K) and mean log-losses (C,) of C members, in float64."""

    beta: Tensor
    B: Tensor
    losses: Tensor


def calibrate_members(
    energies: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    *,
    scale: bool = True,
    start: Calibration | None = None,
) -> Calibration:
    """`calibrate_scales` of C members at once, or without ``scale`` `calibrate` of the sums over their parts.

    ``energies`` are (C, P, N, K); labels and weights (N,), or (C, N) for members' own.  From ``start``, what was found
    for energies nearly the same, it takes a few steps, the last of which gains less than 1e-7 nats per row; else the
    optimum is exact.
    """
    energies, chosen, w = _checked(energies, labels, weight)
    counts = (w.unsqueeze(2) * chosen).sum(1)  # (C, K)
    if (counts <= 0).any():
        missing = (counts <= 0).any(0).nonzero().squeeze(1).tolist()
        raise InputError(
            f"Every class must occur in the calibration rows; none of the {w.shape[1]} rows is of class {missing}. "
            "Calibrate on rows of all classes, or leave those classes out."
        )
    solve = _scales_and_biases if scale else _biases
    beta, B, log_p = solve(energies, chosen, w, start)
    return Calibration(beta, B - B.mean(1, keepdim=True), _mean_loss(log_p, chosen, w))


def calibrate_sureness(
    logits: Tensor, frequencies: Tensor, labels: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """How sure (C,) to be of the logits (C, N, K) of C members, and their mean log-losses (C,), in float64.

    At 0 the posterior is the ``frequencies`` (K,) of the classes, at 1 the softmax of the logits, and in between

        P(z = i | x)  proportional to  frequency_i ^ (1 - sureness) * exp(sureness * logit_i(x)).

    One number for every member: so the rows, which no member was trained on, may be few and lack classes.  It is the
    most likely one if two rows more, whose class is drawn from the frequencies whatever their logits, are shared out
    among the rows: without them, few rows that happen to be right would make a member sure of everything.
    """
    logits, chosen, w = _checked(logits.unsqueeze(1), labels, weight)
    fixed = frequencies.detach().to(logits).log().expand_as(logits[:, 0])
    total = w.sum(1, keepdim=True)
    likely = (chosen * total.unsqueeze(2) + PSEUDO_ROWS * fixed.exp()) / (total.unsqueeze(2) + PSEUDO_ROWS)
    likelihood = _Likelihood(fixed, logits - fixed.unsqueeze(1), likely, w * (1 + PSEUDO_ROWS / total), math.inf)
    least = LEAST_SCALE * _first_scale(logits[:, 0]).unsqueeze(1)
    theta, log_p = _newton(likelihood, least, EXACT, least)
    return theta[:, 0], _mean_loss(log_p, chosen, w)


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


Solution = tuple[Tensor, Tensor, Tensor]  # scales (C, P), biases (C, K), log-probabilities (C, N, K)


def _biases(energies: Tensor, chosen: Tensor, w: Tensor, start: Calibration | None) -> Solution:
    total, beta = energies.sum(1), torch.ones(energies.shape[:2]).to(energies)
    total = total - total.amax(-1, keepdim=True)  # (C, N, K)
    if start is not None:
        B, log_p = _newton(_Likelihood(total, energies[:, :0], chosen, w), start.B, ROUGH)
        return beta, B, log_p
    # Large energies make the likelihood almost piecewise linear.  Soften them first, then sharpen by steps.
    n_softer = ((_spread(total).clamp(min=1.0) / SOFT).log() / math.log(SHARPEN)).ceil().clamp(min=0)  # (C,)
    B = _iterative_scaling(total * _column(SHARPEN**-n_softer), chosen, w)
    power = n_softer
    for stage in range(int(n_softer.max()), -1, -1):
        before, power = power, n_softer.clamp(max=stage)
        B = B * (SHARPEN ** (before - power)).unsqueeze(1)
        likelihood = _Likelihood(total * _column(SHARPEN**-power), energies[:, :0], chosen, w)
        B, log_p = _newton(likelihood, B, EXACT if stage == 0 else NEAR)
    return beta, B, log_p


def _scales_and_biases(energies: Tensor, chosen: Tensor, w: Tensor, start: Calibration | None) -> Solution:
    total, n_scales = energies.sum(1), energies.shape[1]
    first = _first_scale(total)
    if start is None:
        B = _iterative_scaling(total * _column(first), chosen, w)  # brings far-off biases near
        theta = torch.cat([first.unsqueeze(1).expand(-1, n_scales), B], 1)
    else:
        theta = torch.cat([start.beta, start.B], 1)
    floor = torch.full_like(theta, -math.inf)
    floor[:, :n_scales] = LEAST_SCALE * first.unsqueeze(1)
    likelihood = _Likelihood(torch.zeros_like(total), energies, chosen, w)
    theta, log_p = _newton(likelihood, theta, EXACT if start is None else ROUGH, floor)
    return theta[:, :n_scales], theta[:, n_scales:], log_p


class _Likelihood:
    """Minus the log-likelihood of C problems, and its derivatives in theta: scales (C, P), then biases, if any.

    The logits are ``fixed`` (C, N, K) + the scaled ``parts`` (C, P, N, K) + biases.  ``chosen`` (C, N, K) are one-hot
    labels, or probabilities of labels; rows weigh w (C, N).  Scales have a normal prior around 1 of some spread.
    """

    def __init__(
        self, fixed: Tensor, parts: Tensor, chosen: Tensor, w: Tensor, scale_spread: float = SCALE_SPREAD
    ) -> None:
        self.fixed, self.parts, self.chosen, self.w = fixed, parts, chosen, w.unsqueeze(2)  # (C, N, 1)
        self.total, self.n_scales, self.precision = w.sum(1), parts.shape[1], scale_spread**-2

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Values (C,) and log-probabilities (C, N, K)."""
        beta, B = theta[:, : self.n_scales], theta[:, self.n_scales :]
        logits = self.fixed + (beta[..., None, None] * self.parts).sum(1)
        log_p = torch.log_softmax(logits + B.unsqueeze(1) if B.shape[1] else logits, -1)
        prior = self.precision / 2 * ((beta - 1) ** 2).sum(1)
        return prior - (self.w * self.chosen * log_p).sum((1, 2)), log_p

    def derivatives(self, theta: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian; the direction in which B does not matter is filled in."""
        p, beta = log_p.exp(), theta[:, : self.n_scales]
        miss, weighted = (p - self.chosen) * self.w, p * self.w  # (C, N, K)
        gradient = (self.parts * miss.unsqueeze(1)).sum((2, 3)) + self.precision * (beta - 1)
        centred = self.parts - (self.parts * p.unsqueeze(1)).sum(-1, keepdim=True)  # (C, P, N, K)
        pulled = centred * weighted.unsqueeze(1)
        beta_beta = pulled.flatten(2) @ centred.flatten(2).mT
        beta_beta = beta_beta + self.precision * torch.eye(self.n_scales).to(p)
        if theta.shape[1] == self.n_scales:
            return gradient, beta_beta
        beta_B = pulled.sum(2)  # (C, P, K)
        B_B = torch.diag_embed(weighted.sum(1)) - weighted.mT @ p + _column(self.total) / p.shape[-1] ** 2
        hessian = torch.cat([torch.cat([beta_beta, beta_B], 2), torch.cat([beta_B.mT, B_B], 2)], 1)
        return torch.cat([gradient, miss.sum(1)], 1), hessian


def _newton(likelihood: _Likelihood, theta: Tensor, gain: float, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Newton's steps from theta, never below a floor, and damped where one does not lower the value; log p, too.

    Each problem ends by itself, with the first step that is to gain no more than ``gain`` per row.
    """
    (value, log_p), total = likelihood(theta), likelihood.total
    floor = torch.full_like(theta, -math.inf) if floor is None else floor
    damping, done = torch.full_like(value, 1e-8), torch.zeros_like(value, dtype=torch.bool)
    for _ in range(NEWTON_STEPS):
        gradient, hessian = likelihood.derivatives(theta, log_p)
        free = (theta > floor) | (gradient < 0)
        # A scale of energies of 1e4 and a bias differ by as much in size.
        size = hessian.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()
        downhill = torch.where(free, -gradient / size, 0.0)
        both = free.unsqueeze(1) & free.unsqueeze(2)
        scaled = torch.where(both, hessian / (size.unsqueeze(1) * size.unsqueeze(2)), 0.0)
        scaled = scaled + torch.diag_embed(torch.where(free, damping.unsqueeze(1), 1.0))
        direction = torch.linalg.solve(scaled, downhill)
        candidate = torch.maximum(theta + direction / size, floor)
        new_value, new_log_p = likelihood(candidate)
        better = (new_value <= value + ROUNDING * value.abs()) & ~done
        theta = torch.where(better.unsqueeze(1), candidate, theta)
        value, log_p = torch.where(better, new_value, value), torch.where(_column(better), new_log_p, log_p)
        damping = torch.where(better, (damping * 0.1).clamp(min=1e-14), damping * 10)
        # To second order; the values themselves end sooner, in rounding.
        done = done | ((direction * downhill).sum(1) / 2 <= gain * total) | (damping > 1e8)
        if done.all():
            break
    return theta, log_p


def _iterative_scaling(energies: Tensor, chosen: Tensor, w: Tensor) -> Tensor:
    """Biases (C, K) near the best: monotone from anywhere, in the log domain."""
    log_w = w.clamp(min=torch.finfo(torch.float64).tiny).log().unsqueeze(2)  # (C, N, 1)
    log_counts = (w.unsqueeze(2) * chosen).sum(1).log()
    B = torch.zeros_like(log_counts)
    going = torch.ones_like(B[:, :1], dtype=torch.bool)
    for _ in range(GIS_STEPS):
        change = log_counts - torch.logsumexp(torch.log_softmax(energies + B.unsqueeze(1), -1) + log_w, 1)  # (C, K)
        B = torch.where(going, B + change, B)
        going = going & (change.abs().amax(1, keepdim=True) >= 1e-3)
        if not going.any():
            break
    return B


def _spread(energies: Tensor) -> Tensor:
    """How far the classes are apart, on average over rows: (C, N, K) -> (C,)."""
    return (energies.amax(-1) - energies.amin(-1)).mean(1)


def _first_scale(energies: Tensor) -> Tensor:
    """The scale (C,), at most 1, at which energies are apart by no more than Newton takes at once."""
    return (SOFT / _spread(energies).clamp(min=1e-300)).clamp(max=1.0)


def _column(values: Tensor) -> Tensor:
    return values[:, None, None]


def _mean_loss(log_p: Tensor, chosen: Tensor, w: Tensor) -> Tensor:
    return -(w * (log_p * chosen).sum(-1)).sum(1) / w.sum(1)


def _checked(energies: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Energies (C, P, N, K), one-hot labels (C, N, K) and weights (C, N), all in float64."""
    energies = energies.detach().to(torch.float64)
    if not torch.isfinite(energies).all():
        raise InputError("`energies` must be finite; got NaN or infinity. Check the data and the models.")
    n_members, _, n_rows, n_classes = energies.shape
    w = torch.ones(n_rows).to(energies) if weight is None else weight.detach().to(energies)
    if w.shape not in ((n_rows,), (n_members, n_rows)) or not (torch.isfinite(w) & (w >= 0)).all():
        raise InputError(
            f"`weight` must have shape ({n_rows},), all finite and at least 0; got shape {tuple(w.shape)}"
            f"{', and a number that is not' if w.shape == (n_rows,) else ''}."
        )
    chosen = one_hot(labels.long(), n_classes).to(energies)
    return energies, chosen.expand(n_members, -1, -1), w.expand(n_members, -1)


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


def find_temperature(logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """The factor for logits (N, K) that makes the labels most likely: one number, not negative, in float64.

    A normal prior around 1 with the spread of a scale decides where there are few rows, or where they are separable.
    """
    logits = logits.detach().to(torch.float64)
    _check(logits, labels)
    w = torch.ones(len(logits)).to(logits) if weight is None else weight.detach().to(logits)
    chosen = one_hot(labels.long(), logits.shape[1]).to(logits)
    factor = torch.ones(()).to(logits)
    for _ in range(NEWTON_STEPS):  # convex in one number: steps that are halved at the border converge
        p = torch.softmax(factor * logits, -1)
        mean = (p * logits).sum(-1)  # (N,)
        gradient = w @ (mean - (chosen * logits).sum(-1)) + (factor - 1) / SCALE_SPREAD**2
        curvature = w @ ((p * logits.square()).sum(-1) - mean.square()) + 1 / SCALE_SPREAD**2
        step = (gradient / curvature).clamp(-factor, factor / 2)  # at most double, at most half
        factor = factor - step
        if step.abs() <= 1e-10 * factor:
            break
    return float(factor)
