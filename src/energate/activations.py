r"""Activations as pairs (f, Phi) with ``grad Phi = f``.

Every exact energy in energate rests on one fact: the potential of an activation is known in closed
form.  An activation that can also sit on the output carries its inverse and the convex conjugate
``Phi*``, for which ``grad Phi* = inverse``.

Stability rules, each bought with a failure that the tests keep as a negative control:

- softplus is torch's with a threshold of 40.  ``relu(u) + log1p(exp(-|u|))`` has slope 0 at 0 under autograd,
  the default threshold of 20 is off by 2e-9, ``logaddexp`` has a NaN second derivative.
- the unused branch of ``torch.where`` is clamped first, so that it cannot send NaN gradients.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from energate.errors import InputError

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """A function ``f``, its potential ``Phi`` with ``grad Phi = f``, and what bounds them.

    Attributes
    ----------
    f : maps pre-activations (..., M) to activations (..., M).
    potential : maps (..., M) to (...): it reduces the last axis.
    slope_min : a lower bound on ``f'`` (for softmax, on the eigenvalues of its Jacobian).
    bounds : lower and upper bound on the values of ``f``.
    """

    name: str
    f: Function
    potential: Function
    slope_min: float
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def monotone(self) -> bool:
        """Whether ``f`` never decreases, which makes ``Phi`` convex."""
        return self.slope_min >= 0


@dataclass(frozen=True, kw_only=True)
class OutputActivation(Activation):
    """An activation that can also sit on the output.

    Attributes
    ----------
    inverse : undoes ``f``.
    conjugate : the convex conjugate ``Phi*``, with ``grad Phi* = inverse``; it reduces the last axis.
    divergence : ``divergence(p, v) = Phi(p) + Phi*(v) - v.p >= 0``, the training loss of pre-output
        ``p`` for target ``v``, written so that nothing cancels.
    """

    inverse: Function
    conjugate: Function
    divergence: Callable[[Tensor, Tensor], Tensor]


# --- antiderivatives H(u), element by element --------------------------------------------------


def _softplus(u: Tensor) -> Tensor:
    # Above 40 the identity is exact to rounding, in float64 too; torch's own threshold of 20 is not.  This is
    # -logsigmoid(-u) to rounding in value and derivatives, and on a CPU several times faster.
    return F.softplus(u, threshold=40)


def _log_cosh(u: Tensor) -> Tensor:
    return _softplus(-2 * u) + u - math.log(2)


def _half_square(u: Tensor) -> Tensor:
    return u * u / 2


def _relu_antiderivative(u: Tensor) -> Tensor:
    return F.relu(u).square() / 2


def _leaky_antiderivative(u: Tensor, alpha: float) -> Tensor:
    return u * F.leaky_relu(u, alpha) / 2


def _modulus_antiderivative(u: Tensor) -> Tensor:
    return u * u.abs() / 2


def _square_antiderivative(u: Tensor) -> Tensor:
    return u * u * u / 3


# sum over n of B_n s^(n+1) / (n+1)!, B_n the Bernoulli numbers: -Li2(-e^u) for u <= 0 with s = softplus(u).
# s <= log 2 keeps the error below 1e-15.
_DILOGARITHM = (
    1.0, 1 / 4, 1 / 36, 0.0, -1 / 3600, 0.0, 1 / 211680, 0.0, -1 / 10886400, 0.0,
    5 / (66 * math.factorial(11)), 0.0, -691 / (2730 * math.factorial(13)), 0.0,
    7 / (6 * math.factorial(15)),
)  # fmt: skip


def _dilogarithm_series(s: Tensor) -> Tensor:
    value = torch.zeros_like(s)
    for coefficient in reversed(_DILOGARITHM):
        value = (value + coefficient) * s
    return value


def _softplus_antiderivative(u: Tensor) -> Tensor:
    negative = _dilogarithm_series(_softplus(u.clamp(max=0)))
    u_plus = u.clamp(min=0)
    positive = u_plus.square() / 2 + math.pi**2 / 6 - _dilogarithm_series(_softplus(-u_plus))
    return torch.where(u > 0, positive, negative)


def _elu_antiderivative(u: Tensor, alpha: float) -> Tensor:
    u_minus = u.clamp(max=0)
    return torch.where(u > 0, u.square() / 2, alpha * (torch.expm1(u_minus) - u_minus))


def _silu_antiderivative(u: Tensor) -> Tensor:
    return u * _softplus(u) - _softplus_antiderivative(u)


def _normal_density(u: Tensor) -> Tensor:
    return torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)


def _normal_cdf(u: Tensor) -> Tensor:
    return torch.erfc(-u / math.sqrt(2)) / 2


def _gelu(u: Tensor) -> Tensor:
    return u * _normal_cdf(u)


def _gelu_antiderivative(u: Tensor) -> Tensor:
    return ((u.square() - 1) * _normal_cdf(u) + u * _normal_density(u)) / 2


def _huber(u: Tensor) -> Tensor:
    return torch.where(u.abs() <= 1, u.square() / 2, u.abs() - 0.5)


def _hardsigmoid_antiderivative(u: Tensor) -> Tensor:
    return torch.where(u >= 3, u, F.relu(u + 3).square() / 12)


def _erf_antiderivative(u: Tensor) -> Tensor:
    return u * torch.erf(u) + torch.exp(-u.square()) / math.sqrt(math.pi)


def _probit_antiderivative(u: Tensor) -> Tensor:
    return u * _normal_cdf(u) + _normal_density(u)


def _softsign_antiderivative(u: Tensor) -> Tensor:
    # Two clamped halves instead of |u|: the second derivative of |u| is lost at 0 under autograd.
    right, left = u.clamp(min=0), (-u).clamp(min=0)
    return torch.where(u >= 0, right - torch.log1p(right), left - torch.log1p(left))


def _arctan_antiderivative(u: Tensor) -> Tensor:
    return u * torch.atan(u) - torch.log1p(u.square()) / 2


def _softshrink_antiderivative(u: Tensor, threshold: float) -> Tensor:
    return F.relu(u.abs() - threshold).square() / 2


def _one_minus_cos(u: Tensor) -> Tensor:
    return 2 * torch.sin(u / 2).square()


# --- output side: inverse, conjugate, divergence -------------------------------------------------


def _identity(u: Tensor) -> Tensor:
    return u


def _negative_entropy(v: Tensor) -> Tensor:
    # entr(v) is -inf outside [0, 1]: such a v has energy -inf, which is the truth.
    return -(torch.special.entr(v) + torch.special.entr(1 - v)).sum(-1)


def _half_squared_error(p: Tensor, v: Tensor) -> Tensor:
    return (p - v).square().sum(-1) / 2


def _cross_entropy(p: Tensor, v: Tensor) -> Tensor:
    # Minus the target's own entropy, which is 0 for binary targets.
    return (_softplus(p) - v * p).sum(-1) + _negative_entropy(v)


# --- the registry ----------------------------------------------------------------------------------


def _sum_last(antiderivative: Function, u: Tensor) -> Tensor:
    return antiderivative(u).sum(-1)


def _elementwise(
    name: str,
    f: Function,
    antiderivative: Function,
    slope_min: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Activation:
    return Activation(name, f, partial(_sum_last, antiderivative), slope_min, bounds)


def leaky(alpha: float = 0.01) -> Activation:
    """Leaky rectifier: u above 0, ``alpha * u`` below."""
    if not math.isfinite(alpha):
        raise InputError(f"`alpha` must be a finite number; got {alpha}.")
    return _elementwise(
        "leaky",
        partial(F.leaky_relu, negative_slope=alpha),
        partial(_leaky_antiderivative, alpha=alpha),
        slope_min=min(1.0, alpha),
        bounds=(-math.inf if alpha > 0 else 0.0, math.inf),
    )


def elu(alpha: float = 1.0) -> Activation:
    """Exponential linear unit: u above 0, ``alpha * (exp(u) - 1)`` below."""
    if not (math.isfinite(alpha) and alpha >= 0):
        raise InputError(f"`alpha` must be a finite number of at least 0; got {alpha}.")
    return _elementwise(
        "elu",
        partial(F.elu, alpha=alpha),
        partial(_elu_antiderivative, alpha=alpha),
        slope_min=0.0,
        bounds=(-alpha, math.inf),
    )


def softshrink(threshold: float = 0.5) -> Activation:
    """Soft thresholding: the part of u that exceeds ``threshold`` in size."""
    if not (math.isfinite(threshold) and threshold >= 0):
        raise InputError(f"`threshold` must be a finite number of at least 0; got {threshold}.")
    return _elementwise(
        "softshrink",
        partial(F.softshrink, lambd=threshold),
        partial(_softshrink_antiderivative, threshold=threshold),
        slope_min=0.0,
    )


def _groups(u: Tensor, group_size: int | None) -> Tensor:
    if group_size is None:
        return u.unsqueeze(-2)  # (..., 1, M)
    if u.shape[-1] % group_size:
        raise InputError(
            f"softmax in groups of {group_size} needs a number of hidden units that {group_size} divides; "
            f"got {u.shape[-1]}. Change `n_hidden` or `group_size`."
        )
    return u.unflatten(-1, (-1, group_size))  # (..., G, M / G)


def _softmax(u: Tensor, temperature: float, group_size: int | None) -> Tensor:
    return torch.softmax(_groups(u, group_size) / temperature, -1).flatten(-2)


def _softmax_potential(u: Tensor, temperature: float, group_size: int | None) -> Tensor:
    return temperature * torch.logsumexp(_groups(u, group_size) / temperature, -1).sum(-1)


def softmax(temperature: float = 1.0, group_size: int | None = None) -> Activation:
    """Softmax over all hidden units, or over consecutive groups of ``group_size``."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise InputError(f"`temperature` must be a finite number above 0; got {temperature}.")
    if group_size is not None and (not isinstance(group_size, int) or group_size < 1):
        raise InputError(
            f"`group_size` must be a whole number of at least 1, or None for one group; got {group_size!r}."
        )
    return Activation(
        "softmax",
        partial(_softmax, temperature=temperature, group_size=group_size),
        partial(_softmax_potential, temperature=temperature, group_size=group_size),
        slope_min=0.0,
        bounds=(0.0, 1.0),
    )


def _times(weight: float, function: Function, u: Tensor) -> Tensor:
    return weight * function(u)


def weighted(activation: Activation, weight: float) -> Activation:
    """An activation whose values and potential count with a weight above 0; it sits on no output."""
    return Activation(
        activation.name,
        partial(_times, weight, activation.f),
        partial(_times, weight, activation.potential),
        weight * activation.slope_min,
        (weight * activation.bounds[0], weight * activation.bounds[1]),
    )


LINEAR = OutputActivation(
    "linear",
    _identity,
    partial(_sum_last, _half_square),
    slope_min=1.0,
    inverse=_identity,
    conjugate=partial(_sum_last, _half_square),
    divergence=_half_squared_error,
)

SIGMOID = OutputActivation(
    "sigmoid",
    torch.sigmoid,
    partial(_sum_last, _softplus),
    slope_min=0.0,
    bounds=(0.0, 1.0),
    inverse=torch.logit,
    conjugate=_negative_entropy,
    divergence=_cross_entropy,
)

_ALL = (
    SIGMOID,
    _elementwise("tanh", torch.tanh, _log_cosh, 0.0, (-1.0, 1.0)),
    LINEAR,
    _elementwise("relu", F.relu, _relu_antiderivative, 0.0, (0.0, math.inf)),
    leaky(),
    _elementwise("modulus", torch.abs, _modulus_antiderivative, -1.0, (0.0, math.inf)),
    _elementwise("square", torch.square, _square_antiderivative, -math.inf, (0.0, math.inf)),
    _elementwise("softplus", _softplus, _softplus_antiderivative, 0.0, (0.0, math.inf)),
    elu(),
    _elementwise("silu", F.silu, _silu_antiderivative, -0.0999, (-0.2785, math.inf)),
    _elementwise("gelu", _gelu, _gelu_antiderivative, -0.1290, (-0.17, math.inf)),
    _elementwise("hardtanh", F.hardtanh, _huber, 0.0, (-1.0, 1.0)),
    _elementwise("hardsigmoid", F.hardsigmoid, _hardsigmoid_antiderivative, 0.0, (0.0, 1.0)),
    _elementwise("erf", torch.erf, _erf_antiderivative, 0.0, (-1.0, 1.0)),
    _elementwise("probit", _normal_cdf, _probit_antiderivative, 0.0, (0.0, 1.0)),
    _elementwise("softsign", F.softsign, _softsign_antiderivative, 0.0, (-1.0, 1.0)),
    _elementwise("arctan", torch.atan, _arctan_antiderivative, 0.0, (-math.pi / 2, math.pi / 2)),
    softshrink(),
    _elementwise("sin", torch.sin, _one_minus_cos, -1.0, (-1.0, 1.0)),
    softmax(),
)

#: Every activation by its name.  ``leaky``, ``elu``, ``softshrink`` and ``softmax`` of this module
#: build them with other options.
ACTIVATIONS: dict[str, Activation] = {activation.name: activation for activation in _ALL}


def as_activation(activation: str | Activation) -> Activation:
    """Look an activation up by its name; an `Activation` passes through."""
    if isinstance(activation, Activation):
        return activation
    if activation in ACTIVATIONS:
        return ACTIVATIONS[activation]
    near = difflib.get_close_matches(str(activation), ACTIVATIONS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"`activation` must be an Activation or one of {', '.join(ACTIVATIONS)}; got {activation!r}.{hint}"
    )


def as_output(activation: str | Activation) -> OutputActivation:
    """Look an output activation up: one that has an inverse and a conjugate."""
    found = as_activation(activation)
    if isinstance(found, OutputActivation):
        return found
    able = [name for name, known in ACTIVATIONS.items() if isinstance(known, OutputActivation)]
    raise InputError(
        f"`visible` must be an activation with an inverse and a conjugate: {' or '.join(able)}; got {found.name!r}."
    )
