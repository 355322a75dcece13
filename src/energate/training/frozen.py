"""Scores of a trunk whose weights no longer change, of rows that come a few at a time, as to a server.

Of few rows the passes around the products take as long as these.  So whatever no row changes is found once: scales of
columns go into the first layer, those of members into the sum over the units, and members are not told apart before
their layers differ.  The plain formulas are those of `energate.trunk` and `energate.training.classes`; tests hold this
to them.
"""

import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from energate.training.classes import ClassEnergies
from energate.trunk import TrunkUnits


def can_freeze(model: ClassEnergies) -> bool:
    """Whether there is a `FrozenTrunk` of it: if it is of trunks, with linear outputs, on a CPU."""
    if len(model.autoencoders) > 1 or model.B.device.type != "cpu":
        return False
    (part,) = model.autoencoders
    return len(part.groups) == 1 and isinstance(part.groups[0], TrunkUnits) and part.visible.name == "linear"


class FrozenTrunk:
    """What `ClassEnergies` says of rows, with its weights as they are now."""

    def __init__(self, model: ClassEnergies) -> None:
        model = copy.deepcopy(model).requires_grad_(False)
        (part,) = model.autoencoders
        (units,) = part.groups
        assert isinstance(units, TrunkUnits)
        weights = model.share * model.beta[:, 0]  # (C,)
        self.sizes = units.n_members, units.n_classes
        (first, *others), (W_u, b_u) = [*units.trunk], units.heads()
        self.b = first.b.flatten()
        self.W = (first.W[..., : units.width] * units.s.unsqueeze(1)).flatten(0, 1).T.contiguous()  # (D, C * H)
        self.waved = units.waved if units.n_waves else None
        if units.n_waves:
            self.f, self.t = (each.flatten(1).unsqueeze(1) for each in (units.f, units.t))  # (C, 1, J * P)
            self.W_waves = _turned(first.W[..., units.width :])
        self.layers = [(each.b.unsqueeze(1), _turned(each.W)) for each in others] + [(b_u, _turned(W_u))]
        self.potential = units.activation.potential
        self.weights = weights / units.repeats
        self.a = torch.tensordot(weights, part.a.unflatten(0, self.sizes), 1).T.contiguous()  # (D, K)
        self.B = model.share @ model.B
        kept = torch.zeros_like(units.s[0]) if part.skip is None else part.skip
        self.squares = (weights.sum() / 2 * (1 - kept)).unsqueeze(1)  # (D, 1)

    def scores(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The energies of rows (N, D), and the logits: (N, K) each."""
        n_members, n_classes = self.sizes
        z = torch.addmm(self.b, v, self.W).view(len(v), n_members, -1).transpose(0, 1)  # (C, N, H)
        if self.waved is not None:
            angles = torch.addcmul(self.t, v.index_select(1, self.waved), self.f)
            z = torch.baddbmm(z, angles.cos_(), self.W_waves)
        for b, W in self.layers:
            z = torch.baddbmm(b, F.gelu(z), W)
        energies = self.potential(z.view(n_members, len(v), n_classes, -1))  # (C, N, K)
        logits = torch.addmm(self.B, v, self.a) + torch.tensordot(self.weights, energies, 1)
        return logits - v.square() @ self.squares, logits


def _turned(W: Tensor) -> Tensor:
    return W.mT.contiguous()
