"""Deep hidden units for classifiers: layers that the classes share, and a head of units for each class.

One *member* is a trunk with K heads; C members are C * K models, model c * K + k being class k of member c.  With
columns v, some of them with waves, a member computes

    z_0     = [s * v ; cos(f_j v_j + t_j) for columns j with waves]       s, f and t are learned
    z_l     = gelu(W_l z_(l-1) + b_l)                                     the trunk
    u_k     = W_k z_L + b_k                                               the head of class k

and is decoded by the transposed Jacobian of u in closed form, layer by layer backwards.  So the energy of each class is
exact, and so is that of all classes together, whose decoder runs through the trunk once.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.activations import Activation
from energate.errors import InputError
from energate.units import HiddenUnits, few, positive

TURN = 2 * math.pi
#: standard deviation of the frequencies f at the start: three tenths of a period per unit of a column
FREQUENCY = 0.3 * TURN


def bent(g: Tensor, z: Tensor) -> Tensor:
    """What comes back through GELU, the bend of the trunk: g (Phi(z) + z phi(z))."""
    found: Tensor = torch.ops.aten.gelu_backward(g, z)
    return found


class Passed(NamedTuple):
    """What decoding needs to know of rows that have gone through: their shape, waves, and layers before GELU."""

    shape: torch.Size
    angles: Tensor | None  # (C, N, J * P)
    layers: list[Tensor]  # (C, N, W) each


class Layer(nn.Module):
    """A layer of every member's trunk: W (C, n_out, n_in) and b (C, n_out)."""

    def __init__(self, W: nn.Parameter) -> None:
        super().__init__()
        self.W, self.b = W, nn.Parameter(torch.zeros(W.shape[:2]))

    def forward(self, z: Tensor) -> Tensor:
        """W z + b for every member: (C, N, n_out)."""
        return torch.baddbmm(self.b.unsqueeze(1), z, self.W.mT)


class TrunkUnits(HiddenUnits):
    """Units over layers that all classes of a member share.

    Parameters
    ----------
    n_models : members times classes.
    n_hidden : units in the head of each class.
    n_members : how many trunks there are.
    breadth, depth : width and number of the layers of a trunk.
    waves, n_waves : the columns that also enter as ``n_waves`` cosines each.
    repeats : by what the energy of the units, and with it their say in the reconstruction, is divided.

    Rows are (N, D), (C * K, N, D), or (C, N, D) for rows of each member's own, which its classes share: decoding then
    gives the transposed Jacobian in those rows, (C, N, D), the sum over the classes.
    """

    def __init__(
        self,
        n_models: int,
        n_visible: int,
        n_hidden: int,
        activation: str | Activation = "sigmoid",
        *,
        n_members: int = 1,
        breadth: int = 128,
        depth: int = 2,
        waves: list[int] | None = None,
        n_waves: int = 0,
        repeats: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        positive(n_members=n_members, breadth=breadth, depth=depth)
        few(depth=depth)
        super().__init__(n_models, n_visible, n_hidden, activation, generator=generator)
        if n_models % n_members:
            raise InputError(f"{n_models} models are not so many classes of {n_members} members each.")
        self.n_members, self.n_waves, self.repeats = n_members, n_waves if waves else 0, repeats
        self.register_buffer("waves", torch.tensor(waves if self.n_waves else [], dtype=torch.long), persistent=False)
        self.waves: Tensor
        self.register_buffer("waved", self.waves.repeat_interleave(self.n_waves), persistent=False)
        self.waved: Tensor  # (J * P,): the column of every wave
        n_inputs = n_visible + len(self.waves) * self.n_waves
        self.s = nn.Parameter(torch.ones(n_members, n_visible))
        if self.n_waves:
            shape = n_members, len(self.waves), self.n_waves
            self.f = nn.Parameter(FREQUENCY * torch.randn(shape, generator=generator))
            self.t = nn.Parameter(TURN * torch.rand(shape, generator=generator))
        widths = [n_inputs, *[breadth] * depth]
        self.trunk: Iterable[Layer] = nn.ModuleList(  # type: ignore[assignment]
            # GELU halves the second moment: all layers but the first start twice as large for it.
            Layer(self._start(n_members, n_out, n_in, 2.0 if layer else 1.0))
            for layer, (n_in, n_out) in enumerate(pairwise(widths))
        )
        self.W_u = self._start(n_models, n_hidden, breadth, 1.0)
        self.b_u = self.bias(n_hidden)

    def _start(self, n_first: int, n_out: int, n_in: int, gain: float) -> nn.Parameter:
        draw = torch.randn(n_first, n_out, n_in, generator=self._generator)
        return nn.Parameter(draw * (gain / n_in) ** 0.5)

    @property
    def n_classes(self) -> int:
        """Heads on each trunk."""
        return self.n_models // self.n_members

    # --- forwards ----------------------------------------------------------------------------------

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Passed]:
        z, angles = self._inputs(v)  # (C, N or K * N, D + J * P)
        layers = []
        for layer in self.trunk:
            layers.append(layer(z))
            z = F.gelu(layers[-1])  # (C, N, W)
        passed = Passed(v.shape, angles, layers)
        if self._is_own(v.shape):  # model k sees slice k
            z = z.unflatten(1, (self.n_classes, -1)).flatten(0, 1)  # (C * K, N, W)
            return torch.baddbmm(self.b_u.unsqueeze(1), z, self.W_u.mT), passed
        W_u, b_u = self.heads()
        u = torch.baddbmm(b_u, z, W_u.mT)  # (C, N, K * M)
        return u.unflatten(2, (self.n_classes, -1)).transpose(1, 2).flatten(0, 1), passed  # (C * K, N, M)

    def _is_own(self, shape: torch.Size) -> bool:
        return len(shape) == 3 and shape[0] == self.n_models

    def _by_member(self, v: Tensor) -> Tensor:
        if v.ndim == 2:
            return v.expand(self.n_members, *v.shape)
        return v.unflatten(0, (self.n_members, -1)).flatten(1, 2)  # (C, N, D) stays, (C * K, N, D) joins classes

    def heads(self) -> tuple[Tensor, Tensor]:
        """The heads of a member as one: (C, K * M, W) and (C, 1, K * M)."""
        return self.W_u.reshape(self.n_members, -1, self.W_u.shape[2]), self.b_u.reshape(self.n_members, 1, -1)

    def _inputs(self, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """What enters the trunk, and the angles of the waves."""
        scaled = self._by_member(v) * self.s.unsqueeze(1)
        if not self.n_waves:
            return scaled, None
        # A column is repeated for its waves while members still share the rows: broadcasting it would be slower.
        columns = self._by_member(v.index_select(-1, self.waved))
        t, f = (each.reshape(self.n_members, 1, -1) for each in (self.t, self.f))
        angles = torch.addcmul(t, columns, f)  # (C, N, J * P)
        return torch.cat([scaled, torch.cos(angles)], -1), angles

    # --- backwards ---------------------------------------------------------------------------------

    def decode(self, h: Tensor, carry: Passed) -> Tensor:
        shape, angles, layers = carry
        if self.repeats != 1:
            h = h / self.repeats
        own = self._is_own(shape)
        if len(shape) == 3 and not own:  # rows of members: the classes add up before they enter the trunk
            h = h.unflatten(0, (self.n_members, -1)).transpose(1, 2).flatten(2)  # (C, N, K * M)
            return self._pull(h @ self.heads()[0], angles, layers, 1).squeeze(1)  # (C, N, D)
        g = (h @ self.W_u).unflatten(0, (self.n_members, -1))  # (C, K, N, W)
        if own:  # rows went through side by side, and so come back
            pulled = self._pull(g.flatten(1, 2), angles, layers, 1).squeeze(1)  # (C, K * N, D)
            return pulled.unflatten(1, (self.n_classes, -1)).flatten(0, 1)
        return self._pull(g.flatten(1, 2), angles, layers, self.n_classes).flatten(0, 1)  # (C * K, N, D)

    def _pull(self, g: Tensor, angles: Tensor | None, layers: list[Tensor], times: int) -> Tensor:
        """Through the trunk backwards: (C, times * N, W), the same rows ``times`` over, to (C, times, N, D)."""
        for layer, before in zip(reversed([*self.trunk]), reversed(layers), strict=True):
            if times == 1:
                g = bent(g, before) @ layer.W
            else:
                slopes = bent(torch.ones_like(before), before)  # once for all
                g = (g.unflatten(1, (times, -1)) * slopes.unsqueeze(1)).flatten(1, 2) @ layer.W
        g = g.unflatten(1, (times, -1))  # (C, times, N, D + J * P)
        direct = g[..., : self.width] * self.s[:, None, None]
        if angles is None:
            return direct
        angles = angles.unflatten(-1, self.f.shape[1:])  # (C, N, J, P)
        sines = (torch.sin(angles) * self.f.unsqueeze(1)).unsqueeze(1)  # (C, 1, N, J, P)
        back = (g[..., self.width :].unflatten(-1, sines.shape[-2:]) * sines).sum(-1)  # (C, times, N, J)
        return direct.index_add(-1, self.waves, back, alpha=-1)

    # --- some of the models ------------------------------------------------------------------------

    def select(self, index: Tensor) -> None:
        """Keep only these models; each then has a trunk of its own, unless they are all classes of whole members."""
        members = index.div(self.n_classes, rounding_mode="floor")
        whole = members[:: self.n_classes]
        same = torch.arange(self.n_classes, device=index.device)
        kept = (whole.unsqueeze(1) * self.n_classes + same).flatten()
        if len(kept) == len(index) and bool((kept == index).all()):
            members = whole
        heads = (self.W_u, self.b_u)
        for parameter in self.parameters():
            chosen = index if any(parameter is head for head in heads) else members
            parameter.data = parameter.data[chosen.to(parameter.device)]
        self.n_models, self.n_members = len(index), len(members)
