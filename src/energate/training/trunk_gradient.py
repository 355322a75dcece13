"""The loss of a trunk with its gradients, written out: what autograd finds, in fewer passes over the numbers.

Small steps on a CPU are bound by what lies around their products: the nodes of autograd, the second derivative of GELU
as ten operations, sines and cosines anew, a copy for every class.  Here rows, and those to be denoised, go through the
trunk side by side; what decoding and its gradient share is found once.  In the words of `energate.trunk`, with g_l and
q_l for what comes back below and above the bend of layer l:

    decoding       g_(l-1) = q_l W_l      q_l = gelu'(y_l) g_l      g_L = w W_u      w_k = p(k|v) h_k / repeats
    its gradient   d q_l = d g_(l-1) W_l^T      d g_l = gelu'(y_l) d q_l      d y_l += gelu''(y_l) g_l d q_l

The plain formulas, in `energate.trunk` and `energate.autoencoder`, are those that count: tests hold this to autograd of
them.  It is for heads of sigmoid units, the default, with any output; other units go by autograd.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from energate.activations import SIGMOID
from energate.autoencoder import Autoencoder
from energate.training.classes import ClassEnergies
from energate.training.processor import quick_products
from energate.training.written import written
from energate.trunk import TrunkUnits, bent


@dataclass(frozen=True)
class Batch:
    """Rows v (C, B, D) of each member's own, their labels and weights (C, B), and what is asked of them.

    With ``seen`` (C, B, D), noisy copies, they are denoised, too; what is missed counts ``price`` (C,).
    """

    v: Tensor
    labels: Tensor
    weight: Tensor
    smoothing: float
    seen: Tensor | None
    price: Tensor


def is_written_out(model: ClassEnergies) -> bool:
    """Whether `written_out` can take steps of this model: on a CPU, where they pay, and of units that it knows."""
    if len(model.autoencoders) > 1 or model.B.device.type != "cpu":
        return False
    groups = model.autoencoders[0].groups
    return len(groups) == 1 and isinstance(groups[0], TrunkUnits) and groups[0].activation.f is SIGMOID.f


def written_out(model: ClassEnergies, batch: Batch) -> Tensor:
    """The loss of every member: (C,), whose gradients are there before they are asked for."""

    def find() -> tuple[Tensor, Sequence[Tensor]]:
        with quick_products():
            return losses_and_gradients(model, batch)

    return written(find, _parameters(model))


def _parameters(model: ClassEnergies) -> list[Tensor]:
    """In the order of `losses_and_gradients`."""
    part, units = _of(model)
    waves = [units.f, units.t] if units.n_waves else []
    layers = [parameter for layer in units.trunk for parameter in (layer.W, layer.b)]
    return [units.s, *waves, *layers, units.W_u, units.b_u, part.a, model.B]


def _of(model: ClassEnergies) -> tuple[Autoencoder, TrunkUnits]:
    (part,) = model.autoencoders
    (units,) = part.groups
    assert isinstance(units, TrunkUnits)
    return part, units


def losses_and_gradients(model: ClassEnergies, batch: Batch) -> tuple[Tensor, Sequence[Tensor]]:
    """The losses (C,), and the gradient of each in the parameters of its member."""
    part, units = _of(model)
    n_rows, width, denoised = batch.v.shape[1], units.width, batch.seen is not None
    rows = batch.v if batch.seen is None else torch.cat([batch.v, batch.seen], 1)  # (C, R, D), R = B or 2 B
    noisy = slice(n_rows, None)
    W_u, b_u = units.heads()
    a = part.a.unflatten(0, (units.n_members, -1))  # (C, K, D)
    beta = model.beta.unsqueeze(-1)  # (C, 1, 1)

    waves = _Waves(units, rows) if units.n_waves else None
    scaled = rows * units.s.unsqueeze(1)
    inputs = [scaled if waves is None else torch.cat([scaled, waves.cos], -1)]  # of every layer, and of the heads
    before, layers = [], [*units.trunk]  # what is before GELU, (C, R, W) each
    for layer in layers:
        before.append(layer(inputs[-1]))
        inputs.append(F.gelu(before[-1]))
    u = torch.baddbmm(b_u, inputs[-1], W_u.mT)  # (C, R, K * M)
    h = SIGMOID.f(u).unflatten(2, (units.n_classes, -1))  # (C, R, K, M)
    energies = SIGMOID.potential(u.view_as(h)) / units.repeats + rows @ a.mT  # (C, R, K)
    logits = torch.addcmul(model.B.unsqueeze(1), beta, energies)

    losses, d_logits = _cross_entropy(logits[:, :n_rows], batch)
    back = None
    if denoised:
        clean = _Decoding(part, units, batch, [each[:, noisy] for each in before], waves, h[:, noisy], logits[:, noisy])
        losses = losses + clean.losses
        back = clean.gradients(W_u, a)
        d_logits = torch.cat([d_logits, back.logits], 1)

    d_B = d_logits.sum(1)
    d_energies = beta * d_logits
    d_a = d_energies.mT @ rows
    d_u = ((d_energies / units.repeats).unsqueeze(-1) * h).flatten(2)  # (C, R, K * M)
    if back is not None:
        d_u[:, noisy] += back.u
        d_a += back.a
    d_heads = [d_u.mT @ inputs[-1], d_u.sum(1)]
    if back is not None:
        d_heads[0] += back.W_u
    d = d_u @ W_u
    d_layers: list[Tensor] = []
    for number in reversed(range(len(before))):
        d = bent(d, before[number])
        if back is not None:
            d[:, noisy] += back.before[number]
        d_W = d.mT @ inputs[number]
        if back is not None:
            d_W += back.W[number]
        d_layers = [d_W, d.sum(1), *d_layers]
        d = d @ layers[number].W
    d_s = (d[..., :width] * rows).sum(1)
    if back is not None:
        d_s += back.s
    d_waves = [] if waves is None else waves.gradients(d[..., width:], back, noisy)
    return losses, [d_s, *d_waves, *d_layers, *d_heads, d_a, d_B]


def _cross_entropy(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The losses (C,), and their gradients in the logits (C, B, K)."""
    n_classes, smoothing = logits.shape[2], batch.smoothing
    log_p, labels = torch.log_softmax(logits, -1), batch.labels.unsqueeze(-1)
    each = (smoothing - 1) * log_p.gather(-1, labels).squeeze(-1) - smoothing / n_classes * log_p.sum(-1)
    d = log_p.exp_() - smoothing / n_classes
    d.scatter_add_(-1, labels, d.new_full((), smoothing - 1).expand(labels.shape))
    return (batch.weight * each).mean(1), d * (batch.weight / batch.weight.shape[1]).unsqueeze(-1)


class _Waves:
    """The cosines of columns, and what their gradients take from the way there."""

    def __init__(self, units: TrunkUnits, rows: Tensor) -> None:
        self.units = units
        self.columns = rows.index_select(-1, units.waved)  # (C, R, J * P)
        self.f = units.f.flatten(1).unsqueeze(1)
        angles = torch.addcmul(units.t.flatten(1).unsqueeze(1), self.columns, self.f)
        self.cos, self.sin = torch.cos(angles), torch.sin(angles)

    def pull(self, g: Tensor, noisy: slice) -> Tensor:
        """What comes back to the columns that have waves: (C, B, J)."""
        return (g * self.sin[:, noisy] * self.f).unflatten(-1, self.units.f.shape[1:]).sum(-1)

    def gradients(self, d_cos: Tensor, back: "_Back | None", noisy: slice) -> list[Tensor]:
        """In f and t."""
        d_angles = (d_cos * self.sin).neg_()
        if back is not None and back.waves is not None:
            d_angles[:, noisy] -= back.waves * self.cos[:, noisy] * self.f
        d_f = (d_angles * self.columns).sum(1)
        if back is not None and back.waves is not None:
            d_f -= (back.waves * self.sin[:, noisy]).sum(1)
        return [d_f, d_angles.sum(1)]


@dataclass(frozen=True)
class _Back:
    """What the denoising loss adds to gradients: in parameters, in (C, B, W) before GELU, in what heads find."""

    s: Tensor
    waves: Tensor | None  # what their sines, times f, are multiplied by
    W: list[Tensor]
    before: list[Tensor]
    W_u: Tensor
    u: Tensor
    a: Tensor
    logits: Tensor


class _Decoding:
    """The auto-encoder of all classes together, from what noisy rows have left behind in the trunk."""

    def __init__(
        self,
        part: Autoencoder,
        units: TrunkUnits,
        batch: Batch,
        before: list[Tensor],
        waves: _Waves | None,
        h: Tensor,
        logits: Tensor,
    ) -> None:
        assert batch.seen is not None
        self.units, self.before, self.waves, self.h = units, before, waves, h
        self.noisy = slice(-h.shape[1], None)
        self.posterior = torch.softmax(logits, -1)  # (C, B, K)
        share = self.posterior / units.repeats
        self.mixed = (share.unsqueeze(-1) * h).flatten(2)  # (C, B, K * M)
        self.slopes = [bent(torch.ones_like(each), each) for each in before]
        self.below: list[Tensor] = []  # the bends of all layers, from the last
        self.above: list[Tensor] = []
        g = self.mixed @ units.heads()[0]
        for layer, slope in zip(reversed([*units.trunk]), reversed(self.slopes), strict=True):
            self.below.append(g)
            self.above.append(g * slope)
            g = self.above[-1] @ layer.W
        self.g = g  # (C, B, D + J * P)
        a = part.a.unflatten(0, (units.n_members, -1))
        found = torch.addcmul(self.posterior @ a, g[..., : units.width], units.s.unsqueeze(1))
        if part.skip is not None:
            found.addcmul_(part.skip, batch.seen)
        if waves is not None:
            found.index_add_(-1, units.waves, waves.pull(g[..., units.width :], self.noisy), alpha=-1)
        self.losses = batch.price * (batch.weight * part.visible.divergence(found, batch.v)).mean(1)
        price = batch.price.unsqueeze(1) * batch.weight / batch.weight.shape[1]  # (C, B)
        self.d = (part.visible.f(found) - batch.v).mul_(price.unsqueeze(-1))  # (C, B, D)

    def gradients(self, W_u: Tensor, a: Tensor) -> _Back:
        units, width, d = self.units, self.units.width, self.d
        d_g, of_waves = d * units.s.unsqueeze(1), None
        if self.waves is not None:
            columns = d.index_select(-1, units.waved)
            of_waves = columns * self.g[..., width:]
            d_g = torch.cat([d_g, columns.mul_(self.waves.sin[:, self.noisy]).mul_(self.waves.f).neg_()], -1)
        d_W, d_before = [], []
        ways = zip(units.trunk, self.slopes, self.before, reversed(self.below), reversed(self.above), strict=True)
        for layer, slope, before, below, above in ways:
            d_W.append(above.mT @ d_g)
            d_above = d_g @ layer.W.mT
            d_before.append(_curvature(before).mul_(below).mul_(d_above))
            d_g = d_above.mul_(slope)
        d_mixed = (d_g @ W_u.mT).view_as(self.h)  # (C, B, K, M)
        pulled = d_mixed * self.h
        d_posterior = pulled.sum(-1) / units.repeats + d @ a.mT  # (C, B, K)
        share = (self.posterior / units.repeats).unsqueeze(-1)
        d_logits = self.posterior * (d_posterior - (self.posterior * d_posterior).sum(-1, keepdim=True))
        return _Back(
            s=(d * self.g[..., :width]).sum(1),
            waves=of_waves,
            W=d_W,
            before=d_before,
            W_u=self.mixed.mT @ d_g,
            u=pulled.mul_(1 - self.h).mul_(share).flatten(2),
            a=self.posterior.mT @ d,
            logits=d_logits,
        )


def _curvature(z: Tensor) -> Tensor:
    """The second derivative of GELU: (2 - z^2) times the normal density."""
    square = z * z
    found = (square * -0.5).exp_()
    return found.mul_(square.neg_().add_(2)).mul_(1 / math.sqrt(2 * math.pi))
