"""Convolutions that turn with the image: of an image that is turned they find what they find of it, turned.

A channel has 8 planes, one for each orientation: (N, channels * 8, h, w).  Filters are sums of rings, and of waves
around them, which can be turned by any angle before they are put on the grid.  Plane g has the filter turned by g
eighths, and reads the planes of the layer below counted from g:

    out_g = sum_h k_(h - g)(R_-g .) * in_h

So the planes of an image that is turned by g eighths are moved by g, and turned themselves: exactly so by quarters, by
eighths as exactly as a grid has room for.
"""

import math

import torch
from torch import Tensor, nn

N_TURNS = 8
FIRST_SIZE, SIZE = 7, 3  # of filters
MOST_WAVES = 4  # around a ring: eighths of a turn do not tell more apart
RING = 0.5  # the width of a ring, pixels: wider ones are cut off by the border, of thinner ones the grid misses parts
TOGETHER = 4  # channels that are normalised together


class TurnedConvolution(nn.Module):
    """From planes (N, n_in, h, w), of an image if it ``lifts``, to planes (N, n_out, h', w')."""

    def __init__(self, n_in: int, n_out: int, size: int, padding: int, *, lifts: bool = False) -> None:
        super().__init__()
        filters = turned_filters(size)  # (G, B, size, size)
        below = 1 if lifts else N_TURNS
        shape = n_out // N_TURNS, n_in // below, below, filters.shape[1]
        self.weight = nn.Parameter(torch.randn(shape) / math.sqrt(math.prod(shape[1:])))
        self.padding = padding
        self.register_buffer("filters", filters, persistent=False)
        self.filters: Tensor
        g = torch.arange(N_TURNS)
        self.register_buffer("counted", (g - g.unsqueeze(1)) % below, persistent=False)  # h - g, by g and h
        self.counted: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.whole(), padding=self.padding)

    def whole(self) -> Tensor:
        """The filters of all planes: (n_out, n_in, size, size)."""
        turned = torch.einsum("oidb,gbyx->gdoiyx", self.weight, self.filters.to(self.weight))
        g = torch.arange(N_TURNS, device=turned.device).unsqueeze(1)
        turned = turned[g, self.counted[:, : turned.shape[1]]]  # (G, G or 1, out, in, y, x)
        return turned.permute(2, 0, 3, 1, 4, 5).flatten(2, 3).flatten(0, 1)


class TurnedNorm(nn.Module):
    """Some channels at a time are normalised, over orientations and positions; each has a weight and a bias."""

    def __init__(self, n_planes: int) -> None:
        super().__init__()
        n_channels = n_planes // N_TURNS
        self.n_groups = n_channels // math.gcd(n_channels, TOGETHER)
        self.weight, self.bias = nn.Parameter(torch.ones(n_channels)), nn.Parameter(torch.zeros(n_channels))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (each.repeat_interleave(N_TURNS) for each in (self.weight, self.bias))
        return nn.functional.group_norm(x, self.n_groups, weight, bias)


class Halved(nn.Module):
    """Means over squares of pixels: strides, which begin at a corner, would not turn with the image."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2:
            return nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        return nn.functional.avg_pool2d(x, 2)


def turned_first(n_in: int, n_out: int) -> list[nn.Module]:
    """The layer that makes planes of images, and one more, which sees what is lost when planes are halved."""
    lifting = TurnedConvolution(n_in, n_out, FIRST_SIZE, FIRST_SIZE // 2, lifts=True)
    return [lifting, TurnedNorm(n_out), nn.GELU(), *turned_layer(n_out, n_out, (1, 1))]


def turned_layer(n_in: int, n_out: int, stride: tuple[int, int]) -> list[nn.Module]:
    """A layer over planes, which are halved first if it strides."""
    halved = [] if stride == (1, 1) else [Halved()]
    return [*halved, TurnedConvolution(n_in, n_out, SIZE, SIZE // 2), TurnedNorm(n_out), nn.GELU()]


def turned_last(n_in: int, n_out: int, side: tuple[int, int]) -> list[nn.Module]:
    """The layer that sees all positions, and leaves one."""
    return [TurnedConvolution(n_in, n_out, side[0], 0), TurnedNorm(n_out), nn.GELU()]


def from_every_turn(planes: Tensor) -> Tensor:
    """Planes without positions (N, C * G) as the image has them under every turn, by eighths: (G * N, C * G)."""
    channels = planes.unflatten(1, (-1, N_TURNS))
    return torch.cat([channels.roll(g, 2) for g in range(N_TURNS)]).flatten(1)


def over_turns(planes: Tensor) -> Tensor:
    """The mean over orientations: (N, C * G) to (N, C)."""
    return planes.unflatten(1, (-1, N_TURNS)).mean(2)


def turned_filters(size: int) -> Tensor:
    """What filters are sums of, turned by every number of eighths, in float64: (G, B, size, size)."""
    middle = (size - 1) / 2
    at = torch.arange(size, dtype=torch.float64) - middle
    y, x = torch.meshgrid(at, at, indexing="ij")
    far, angle = torch.hypot(y, x), torch.atan2(y, x)
    turned = angle - torch.arange(N_TURNS, dtype=torch.float64).view(-1, 1, 1) * (2 * math.pi / N_TURNS)  # (G, y, x)
    found = []
    for radius in torch.arange(middle % 1, middle + 0.5, dtype=torch.float64).tolist():
        ring = torch.exp(-0.5 * ((far - radius) / RING).square())
        found.append((ring / ring.norm()).expand_as(turned))
        ring = torch.where(far > 0, ring, 0.0)  # a wave has no height in the middle
        ring = math.sqrt(2) * ring / ring.norm()
        for waves in range(1, _most_waves(radius) + 1):
            found += [ring * (waves * turned).cos(), ring * (waves * turned).sin()]
    return torch.stack(found, 1)


def _most_waves(radius: float) -> int:
    """How many waves the pixels around a ring tell apart, also turned by an eighth."""
    return min(MOST_WAVES, int(radius + 1)) if radius else 0
