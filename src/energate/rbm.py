"""Restricted Boltzmann machines as views over the same hidden units.

    joint energy   Eng(v, h | c) = sum_i (v_i - a_i)^2 / (2 sigma_i^2) - sum over groups of h . u(v, c)
    free energy    F(v | c)      = -log sum_h exp(-Eng(v, h | c)),     low is good

with binary hidden units h and ``u`` the pre-activation, hidden bias included; Bernoulli visibles have
``-a.v`` in place of the quadratic.  By its units the machine is

    [MeanUnits]                      the Gaussian- or Bernoulli-Bernoulli RBM
    [GatedUnits]                     FCRBM, the factored conditional RBM
    [CovarianceUnits]                cRBM
    [MeanUnits, CovarianceUnits]     mcRBM

Free energies live in this module only.  A `Twin` ties one to an auto-encoder's energy E, which is a
goodness: ``-F(v | c) = scale * E(v / sigma | c) + constant``.
"""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from energate.activations import SIGMOID
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, SymmetricGatedUnits

MAX_STATES = 2**20
QUADRATIC = (MeanUnits, GatedUnits, SymmetricGatedUnits, CovarianceUnits)


class RBM(nn.Module):
    """K restricted Boltzmann machines over the given units, which are shared, not copied.

    Parameters
    ----------
    units : hidden units with sigmoid activation.
    a : (K, D) visible biases; Gaussian visibles have their mean there.
    sigma : standard deviation of Gaussian visibles: a number, (D,) or (K, D).
    visible : ``"gaussian"`` or ``"bernoulli"``.
    """

    # NOTE[DIFF] the paper writes (a - x)^2 / sigma^2 for the cRBM: that machine at sigma = 1 is this one
    # at sigma = sqrt(1/2) (erratum E23).
    def __init__(
        self, units: Sequence[HiddenUnits], a: Tensor, sigma: float | Tensor = 1.0, visible: str = "gaussian"
    ) -> None:
        super().__init__()
        if visible not in ("gaussian", "bernoulli"):
            raise InputError(f"`visible` must be 'gaussian' or 'bernoulli'; got {visible!r}.")
        if any(group.activation.name != SIGMOID.name for group in units):
            kinds = sorted({group.activation.name for group in units})
            raise InputError(
                f"An RBM with binary hidden units has sigmoid activations; got {', '.join(kinds)}: "
                "their potential is not the log of a sum over two states."
            )
        self.model = Autoencoder(list(units), "linear" if visible == "gaussian" else "sigmoid")
        if a.shape != self.model.a.shape:
            raise InputError(f"`a` must have shape {tuple(self.model.a.shape)}; got {tuple(a.shape)}.")
        self.model.a = a if isinstance(a, nn.Parameter) else nn.Parameter(a)
        deviation = torch.as_tensor(sigma, dtype=a.dtype, device=a.device).expand_as(a).clone()
        if not (torch.isfinite(deviation) & (deviation > 0)).all():
            raise InputError("`sigma` must be finite and above 0.")
        if visible == "bernoulli" and (deviation != 1).any():
            raise InputError("Bernoulli visibles have no `sigma`; leave it out.")
        self.register_buffer("sigma", deviation)
        self.sigma: Tensor
        self.visible = visible

    @property
    def groups(self) -> list[HiddenUnits]:
        """The groups of hidden units."""
        return self.model.groups

    def joint_energy(self, v: Tensor, h: Tensor, c: Tensor | None = None) -> Tensor:
        """Eng(v, h | c), low is good: (K, N).  ``h`` (K, N, M) holds the states of all groups side by side."""
        states = h.split([group.n_hidden for group in self.groups], -1)
        energy = self._visible_energy(v)
        for group, state in zip(self.groups, states, strict=True):
            energy = energy - (state * group.preactivation(v, c)[0]).sum(-1)
        return energy

    def free_energy(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """F(v | c) = -log sum_h exp(-Eng), low is good: (K, N)."""
        energy = self._visible_energy(v)
        for group in self.groups:
            energy = energy - group.activation.potential(group.preactivation(v, c)[0])
        return energy

    def log_partition(self, c: Tensor | None = None) -> Tensor:
        """Log of the sum (integral) of exp(-F) over all v, by enumeration: (K,); small machines only.

        Gaussian visibles: every hidden state leaves a Gaussian integral, in closed form.  Bernoulli
        visibles: every visible state is visited.  ``c`` is one context row (1, C).
        """
        if self.visible == "bernoulli":
            v = binary_states(self.model.width, self.model.a)
            return torch.logsumexp(-self.free_energy(v, None if c is None else c.expand(len(v), -1)), -1)
        return self._gaussian_log_partition(c)

    def to_autoencoder(self) -> "Twin":
        """The auto-encoder with this free energy; it always exists, in visibles divided by sigma."""
        groups = [_count_once(_rescaled(group, self.sigma)) for group in self.groups]
        model = Autoencoder(groups, self.model.visible)
        model.a = nn.Parameter((self.model.a / self.sigma).detach().clone())
        return Twin(model, self, self.sigma.clone(), 1.0)

    def _visible_energy(self, v: Tensor) -> Tensor:
        if self.visible == "bernoulli":
            return -(v * self.model.a.unsqueeze(1)).sum(-1)
        return ((v - self.model.a.unsqueeze(1)) / self.sigma.unsqueeze(1)).square().sum(-1) / 2

    def _gaussian_log_partition(self, c: Tensor | None) -> Tensor:
        if not all(isinstance(group, QUADRATIC) for group in self.groups):
            raise InputError(
                "The normaliser is known for units whose pre-activation is linear or quadratic in v: "
                f"{', '.join(kind.__name__ for kind in QUADRATIC)}."
            )
        # u is at most quadratic in v, so its value, slope and curvature at 0 say everything.
        zero = torch.zeros_like(self.model.a).unsqueeze(1)  # (K, 1, D)

        def u(v: Tensor) -> Tensor:
            return torch.cat([group.preactivation(v, c)[0] for group in self.groups], -1)[:, 0]  # (K, M)

        def slope(v: Tensor) -> Tensor:
            return torch.func.jacrev(lambda v: u(v).sum(0))(v)[:, :, 0].movedim(1, 0)  # (K, M, D)

        curvature = torch.func.jacrev(lambda v: slope(v).sum(0))(zero)[:, :, :, 0].movedim(2, 0)  # (K, M, D, D)
        h = binary_states(sum(group.n_hidden for group in self.groups), self.model.a)  # (S, M)
        precision = self.sigma.square().reciprocal()  # (K, D)
        eta = (self.model.a * precision).unsqueeze(1) + h @ slope(zero)  # (K, S, D)
        A = torch.diag_embed(precision).unsqueeze(1) - torch.einsum("sm,kmij->ksij", h, curvature)
        factor, info = torch.linalg.cholesky_ex(A)
        if info.any():
            raise InputError(
                "This RBM has no normaliser: for some hidden state its energy falls without bound as v grows. "
                "Covariance weights W_h <= 0, or smaller ones, keep it bounded."
            )
        solved = torch.cholesky_solve(eta.unsqueeze(-1), factor).squeeze(-1)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (K, S)
        mean = (self.model.a.square() * precision).sum(-1, keepdim=True)  # (K, 1)
        exponent = u(zero) @ h.T + ((eta * solved).sum(-1) - log_det - mean) / 2
        return torch.logsumexp(exponent, -1) + self.model.width / 2 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Twin:
    """An auto-encoder and an RBM with ``-F(v | c) = scale * E(v / sigma | c) + constant``, exactly.

    For Bernoulli visibles the equality holds at binary v.
    """

    autoencoder: Autoencoder
    rbm: RBM
    sigma: Tensor  # (K, D)
    scale: float

    @property
    def constant(self) -> Tensor:
        """What completes the square of Gaussian visibles: (K,)."""
        a = self.autoencoder.a.detach()
        return -self.scale / 2 * a.square().sum(-1) if self.rbm.visible == "gaussian" else torch.zeros_like(a[:, 0])

    def negative_free_energy(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """-F(v | c) computed from the auto-encoder's energy, higher is better: (K, N)."""
        return self.scale * self.autoencoder.energy(v / self.sigma.unsqueeze(1), c) + self.constant.unsqueeze(1)


def to_rbm(autoencoder: Autoencoder) -> Twin:
    """The RBM whose free energy is the auto-encoder's energy, where there is one.

    - units that count once (mean, gated, covariance with ``repeats=1``): unit variance, scale 1;
    - covariance units with the paper's decoder alone: variance 1/2, scale 2;
    - mean units beside covariance units with the paper's decoder: refused, their weights are 1 : 1/2.
      Build the covariance units with ``repeats=1``, or see `mcrbm_from_sum`.
    """
    _check_no_skip(autoencoder)
    groups = autoencoder.groups
    repeats = {group.repeats for group in groups}
    if len(repeats) > 1:
        raise InputError(
            "This mean-covariance auto-encoder is no RBM at any temperature: its mean units count once and its "
            "covariance units half. Use CovarianceUnits(repeats=1), or the sum E_M + 2 E_C of two auto-encoders "
            "(mcrbm_from_sum)."
        )
    scale, a = float(repeats.pop()), autoencoder.a
    if autoencoder.visible.name == "sigmoid":
        machine = RBM(groups, a if scale == 1 else scale * a, visible="bernoulli")
    else:
        machine = RBM(groups, a, sigma=scale**-0.5)
    return Twin(autoencoder, machine, torch.ones_like(a), scale)


def mcrbm_from_sum(mean: Autoencoder, covariance: Autoencoder) -> tuple[RBM, Tensor]:
    """The mcRBM with ``-F = E_M + 2 E_C + constant``: visible precision 3; returns it and the constant (K,)."""
    _check_no_skip(mean)
    _check_no_skip(covariance)
    for name, model, kind, repeats in (("mean", mean, MeanUnits, 1), ("covariance", covariance, CovarianceUnits, 2)):
        if model.visible.name != "linear" or not all(
            isinstance(group, kind) and group.repeats == repeats for group in model.groups
        ):
            raise InputError(f"`{name}` must be an Autoencoder of {kind.__name__} with linear outputs; got {model!r}.")
    a = (mean.a + 2 * covariance.a) / 3
    machine = RBM([*mean.groups, *covariance.groups], a, sigma=3**-0.5)
    return machine, (-1.5 * a.square().sum(-1)).detach()


def _check_no_skip(autoencoder: Autoencoder) -> None:
    if autoencoder.skip is not None:
        raise InputError(
            "This auto-encoder has a `skip`, columns that go straight to the output: an RBM has no such term. Build it "
            "without one."
        )


def binary_states(n: int, like: Tensor) -> Tensor:
    """All 2^n binary vectors: (2^n, n)."""
    if 2**n > MAX_STATES:
        raise InputError(f"Enumeration visits 2^{n} states; at most {MAX_STATES} are allowed. Use a smaller model.")
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=like.dtype, device=like.device)


def _rescaled(group: HiddenUnits, sigma: Tensor) -> HiddenUnits:
    """A copy that does for v / sigma what the group does for v."""
    copied = copy.deepcopy(group)
    columns = sigma.unsqueeze(1)  # (K, 1, D)
    with torch.no_grad():
        if isinstance(copied, MeanUnits | CovarianceUnits):
            copied.W.mul_(columns)
        elif isinstance(copied, GatedUnits):
            copied.W_y.mul_(columns)
        elif isinstance(copied, SymmetricGatedUnits):
            copied.W_x.mul_(columns[..., : copied.n_context])
            copied.W_y.mul_(columns[..., copied.n_context :])
        elif (sigma != 1).any():
            raise InputError(f"{type(group).__name__} cannot be rescaled; use sigma = 1.")
    return copied


def _count_once(group: HiddenUnits) -> HiddenUnits:
    if isinstance(group, CovarianceUnits):
        group.repeats = 1
    elif group.repeats != 1:
        raise InputError(f"{type(group).__name__} has no form that counts once, as the hidden units of an RBM do.")
    return group
