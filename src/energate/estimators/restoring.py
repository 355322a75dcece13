"""The energy that all classes of images share: minus half the square of the noise that a network finds in an image.

    E_0(v; c) = -|e(v; c)|^2 / 2        v + grad E_0(v; c) = v - J_e(v)^T e(v; c)

e is a U-net, an image in and an image out, and c says of every pixel how noisy it is: a level, nothing, that it is
known, or that it is missing.  E_0 has hidden units e with the potential -u^2 / 2, so it is exact like any other, and
v + grad E_0 is trained to be the clean image.  That is the gradient-step form of a denoiser: as good as one that is no
gradient.  Of a known pixel nothing is found, so that with some pixels known E_0 is an energy of the others, given them.

It has no normalisation, which double backward makes slow, and starts near the identity instead.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.activations import LINEAR, Activation
from energate.estimators.convolution import SYMMETRIES, Shape, as_planes, halved, in_rows
from energate.training.ranks import drawn, share_of

UNSAID = -0.5  # in place of a noise level: it is not known
KNOWN = 0.0  # a pixel as it is
MISSING = 2.0  # nothing is known of the pixel, whatever it holds
BRANCH = 0.3  # the first weights of what blocks add, in parts of torch's


def _minus(u: Tensor) -> Tensor:
    return -u


def _minus_half_square(u: Tensor) -> Tensor:
    return -LINEAR.potential(u)


#: f(u) = -u, so that an energy falls with the square of its units
NEGATIVE = Activation("negative", _minus, _minus_half_square, slope_min=-1.0)


class Block(nn.Module):
    """x plus two convolutions of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        with torch.no_grad():
            self.second.weight.mul_(BRANCH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(F.gelu(self.first(F.gelu(x))))
        return out


class NoiseFinder(nn.Module):
    """A U-net: rows (N, D), and what is said of their pixels (N, D), to the noise found in them (N, D).

    What is said is `UNSAID`, `KNOWN`, `MISSING`, or a noise level divided by the largest one.  With a ``symmetry`` of G
    elements the noise is that of the image under each of them, (N, G * D).
    """

    def __init__(self, shape: Shape, channels: int, symmetry: str | None = None) -> None:
        super().__init__()
        self.shape, self.images_of = shape, SYMMETRIES[symmetry]
        self.n_elements = len(self.images_of(torch.zeros(1, 1, 1, 1)))
        colours = shape[2]
        sides, wide = [shape[:2]], [channels, 2 * channels, 4 * channels]
        strides = []
        for _ in wide[1:]:
            stride, side = halved(sides[-1])
            strides.append(stride)
            sides.append(side)
        self.first = nn.Conv2d(2 * colours, channels, 3, padding=1)
        self.before = nn.ModuleList(Block(n) for n in wide[:2])
        self.down = nn.ModuleList(
            nn.Conv2d(n, 2 * n, 3, stride, padding=1) for n, stride in zip(wide[:2], strides, strict=True)
        )
        self.middle = nn.Sequential(Block(wide[2]), Block(wide[2]))
        self.up = nn.ModuleList(nn.Conv2d(2 * n, n, 1) for n in wide[:2])
        self.after = nn.ModuleList(Block(n) for n in wide[:2])
        self.last = nn.Conv2d(channels, colours, 3, padding=1)

    def forward(self, v: Tensor, said: Tensor | None = None) -> Tensor:
        said = torch.full_like(v, UNSAID) if said is None else said
        planes = torch.cat([as_planes(v, self.shape), as_planes(said, self.shape)], 1)
        found = self.found(torch.cat(self.images_of(planes)))  # (G * N, c, h, w)
        return in_rows(found).unflatten(0, (self.n_elements, -1)).movedim(0, 1).flatten(1)

    def found(self, planes: Tensor) -> Tensor:
        """The noise in images beside what is said of them, (N, 2 * c, h, w): (N, c, h, w), none where it is known."""
        if planes.is_cuda and self.shape[0] > 1:
            planes = planes.contiguous(memory_format=torch.channels_last)  # the order that is quick on GPUs
        x, beside = self.first(planes), []
        for block, smaller in zip(self.before, self.down, strict=True):
            beside.append(block(x))
            x = smaller(beside[-1])
        x = self.middle(x)
        for level in (1, 0):
            x = self.after[level](beside[level] + _enlarged(self.up[level](x), beside[level]))
        noise: Tensor = self.last(F.gelu(x))
        said = planes[:, planes.shape[1] // 2 :]
        return torch.where(said == KNOWN, torch.zeros_like(noise), noise)


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    """Planes as large as others, of which they were the half: each pixel twice, or once along a side that was kept."""
    height, width = like.shape[2:]
    down, right = (-(-large // small) for large, small in zip(like.shape[2:], x.shape[2:], strict=True))
    spread = x[:, :, :, None, :, None].expand(-1, -1, -1, down, -1, right)
    return spread.flatten(4, 5).flatten(2, 3)[:, :, :height, :width]


# --- training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Denoising:
    """The weight of the denoising loss, and the least and the largest noise level that it sees."""

    weight: float
    levels: tuple[float, float]


#: of the rows that are denoised, the share of which nothing is said; that are told the level; that also have known
#: pixels; of the others some pixels are missing
UNSAID_SHARE, TOLD_SHARE, HOLES_SHARE = 0.4, 0.1, 0.1
#: what is missed of a row counts as its level to minus this, about as a denoiser's error grows with it
LEVEL_POWER = 1.0
#: the level, as a part of the largest, that rows with missing pixels count as
MISSED = 0.3
#: of the holes, those that are boxes
BOXES = 0.7
#: on a GPU, let convolutions of training be in bfloat16; scores are never computed like that
LOW_PRECISION = True


def denoising_loss(
    finder: NoiseFinder, clean: Tensor, middle: Tensor, levels: tuple[float, float], noise: torch.Generator
) -> Tensor:
    """The squared error, a pixel, of v + grad E_0(v; c) at noisy rows v: the mean over the rows, ().

    ``middle`` (D,) is what missing pixels hold before noise.  Every row has its own level, of which few are large.
    """
    seen, said, level = noisy(clean, middle, levels, finder.shape, noise)
    missed = (restored(finder, seen, said, noise) - clean).square().mean(1)
    each = missed * level[:, 0].pow(-LEVEL_POWER)
    return each.mean() if len(each) else each.sum()  # a process may have no share of them


def noisy(
    clean: Tensor, middle: Tensor, levels: tuple[float, float], shape: Shape, noise: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy rows (N, D), what is said of them (N, D), and their levels (N, 1) as parts of the largest.

    Rows with missing pixels count as of the level `MISSED`, whatever noise they hold.
    """
    low, high = levels
    n_rows = len(clean)
    draws = drawn(torch.rand, (n_rows, 1), 0, generator=noise, device=clean.device, dtype=clean.dtype)
    level = low * (high / low) ** draws
    share = share_of(n_rows)
    number = share.of(torch.arange(share.n_rows, device=clean.device, dtype=clean.dtype))
    place = (number.view(-1, 1) + 0.5) / share.n_rows
    first, second, third = UNSAID_SHARE, UNSAID_SHARE + TOLD_SHARE, UNSAID_SHARE + TOLD_SHARE + HOLES_SHARE
    hidden = (place < second) | holes(n_rows, shape, noise, clean)  # (N, D)
    missing = hidden & (place >= third)
    said = torch.where(hidden, level / high, KNOWN)
    said = torch.where(missing, MISSING, torch.where(place < first, UNSAID, said))
    spread = drawn(torch.randn, clean.shape, 0, generator=noise, device=clean.device, dtype=clean.dtype)
    seen = torch.where(missing, middle, clean) + torch.where(hidden, level, 0.0) * spread
    return seen, said, torch.where(place < third, level / high, MISSED)


def holes(n_rows: int, shape: Shape, noise: torch.Generator, like: Tensor) -> Tensor:
    """Pixels to hide: a box in most rows, which may be cut off at the border, in the others single pixels: (N, D)."""

    def draw(*sizes: int) -> Tensor:
        return drawn(torch.rand, (n_rows, *sizes), 0, generator=noise, device=like.device, dtype=like.dtype)

    height, width, colours = shape
    y, x = (torch.arange(n, device=like.device, dtype=like.dtype) / n for n in (height, width))
    inside = []
    for line in (y.view(-1, 1), x):
        start, length = 1.6 * draw(1, 1) - 0.6, 0.3 + 0.5 * draw(1, 1)
        inside.append((line >= start) & (line < start + length))
    alone = draw(height, width) < 0.3 + 0.6 * draw(1, 1)
    found = torch.where(draw(1, 1) < BOXES, inside[0] & inside[1], alone)  # (N, h, w)
    return found.unsqueeze(-1).expand(-1, -1, -1, colours).flatten(1)


def restored(finder: NoiseFinder, seen: Tensor, said: Tensor, noise: torch.Generator) -> Tensor:
    """Rows v (N, D) plus grad E_0(v; c), as training sees it: it can be differentiated once more.

    Of a symmetry it takes an element at random for each row: the mean over all would cost as many passes.
    """
    seen = seen.detach().requires_grad_()
    planes = torch.cat([as_planes(seen, finder.shape), as_planes(said, finder.shape)], 1)
    if finder.n_elements > 1:
        each = torch.stack(finder.images_of(planes))  # (G, N, 2 * c, h, w)
        which = drawn(partial(torch.randint, finder.n_elements), (len(seen),), 0, generator=noise, device=seen.device)
        planes = each[which, torch.arange(len(seen), device=seen.device)]
    with torch.autocast(seen.device.type, torch.bfloat16, enabled=LOW_PRECISION and seen.is_cuda):
        found = finder.found(planes)
    energy = NEGATIVE.potential(found.to(seen.dtype).flatten(1)).sum()
    gradient = torch.autograd.grad(energy, seen, create_graph=True)[0]
    return seen + torch.where(said == KNOWN, torch.zeros_like(gradient), gradient)
