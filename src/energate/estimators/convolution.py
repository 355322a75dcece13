"""The convolutional network of images, with a head of hidden units for each class, and how images vary in training."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from energate.estimators.turning import N_TURNS, from_every_turn, over_turns, turned_first, turned_last, turned_layer
from energate.units import few

GROUP = 8  # channels that are normalised together
LEAST_SIDE = 8  # a smaller side is not halved: of 28 pixels 7 are left, of 8 pixels 4
LEAST_HALVINGS = 2
LAST = 4  # times as many planes are left where a layer that turns sees all positions

Shape = tuple[int, int, int]  # height, width, channels
Moves = tuple[int, int]  # down and right


# --- more rows from those there are ----------------------------------------------------------------------------


def shift_images(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Each of (N, h, w, ...) images moved by its own numbers of pixels; what comes in repeats those at the border."""
    n_rows, height, width = images.shape[:3]
    n = torch.arange(n_rows, device=images.device).view(-1, 1, 1)
    y = torch.arange(height, device=images.device) - down.unsqueeze(1)  # (N, h)
    x = torch.arange(width, device=images.device) - right.unsqueeze(1)  # (N, w)
    return images[n, y.clamp(0, height - 1).unsqueeze(2), x.clamp(0, width - 1).unsqueeze(1)]


def turn_images(images: Tensor, symmetry: Tensor) -> Tensor:
    """Each of (N, n, n, ...) images under one of the 8 symmetries of the square, numbered from 0, which is none."""
    bits = [(symmetry >> bit & 1).bool().view(-1, *[1] * (images.ndim - 1)) for bit in range(3)]
    images = torch.where(bits[0], images.flip(1), images)
    images = torch.where(bits[1], images.flip(2), images)
    return torch.where(bits[2], images.transpose(1, 2), images)


def turns_by(angle: Tensor) -> Tensor:
    """The linear maps (N, 2, 2) that turn by angles (N,)."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], 1).view(-1, 2, 2)


def bend_images(images: Tensor, matrix: Tensor) -> Tensor:
    """Each of (N, h, w) or (N, h, w, c) images under its own linear map (N, 2, 2) about its middle.

    What lies between pixels is read by cubics, which blur less than lines; borders are repeated.
    """
    turn = torch.cat([matrix, torch.zeros_like(matrix[:, :, :1])], 2)
    planes = images.unsqueeze(1) if images.ndim == 3 else images.movedim(3, 1)  # (N, c, h, w)
    where = nn.functional.affine_grid(turn, list(planes.shape), align_corners=False)
    turned = nn.functional.grid_sample(planes, where, mode="bicubic", padding_mode="border", align_corners=False)
    return turned.squeeze(1) if images.ndim == 3 else turned.movedim(1, 3)


def as_planes(v: Tensor, shape: Shape) -> Tensor:
    """Rows (N, D) of images with their channels last: (N, c, h, w)."""
    height, width, channels = shape
    # Of one channel without a turn of the axes: vmap asks convolutions for the order of channels, and finds none.
    planes = v.unflatten(1, (1, height, width) if channels == 1 else shape)
    return planes if channels == 1 else planes.movedim(3, 1).contiguous()


def in_rows(planes: Tensor) -> Tensor:
    """What `as_planes` was made of."""
    return planes.flatten(1) if planes.shape[1] == 1 else planes.movedim(1, 3).flatten(1)


def halved(side: Moves) -> tuple[Moves, Moves]:
    """The strides that halve an image, and its sides then; a short side is kept."""
    stride = (2 if side[0] >= LEAST_SIDE else 1, 2 if side[1] >= LEAST_SIDE else 1)
    return stride, (math.ceil(side[0] / stride[0]), math.ceil(side[1] / stride[1]))


# --- groups under which the energy may stay the same -------------------------------------------------------------


def _turns(planes: Tensor) -> list[Tensor]:
    """Images (N, c, n, n) turned by 0 to 3 quarters."""
    return [torch.rot90(planes, quarters, (2, 3)) for quarters in range(4)]


def _turns_and_mirrors(planes: Tensor) -> list[Tensor]:
    return _turns(planes) + _turns(planes.flip(3))


def _nothing(planes: Tensor) -> list[Tensor]:
    return [planes]


#: by name, all that the elements of a group make of images
SYMMETRIES: dict[str | None, Callable[[Tensor], list[Tensor]]] = {
    None: _nothing,
    "turns": _turns,
    "turns and mirrors": _turns_and_mirrors,
}
#: eighths of a turn: the layers turn with the image
CIRCLE = "circle"
#: what the network of the noise takes of them, one at random for each row
OF_NOISE: dict[str | None, str | None] = {CIRCLE: "turns"}


# --- the network -----------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """x plus two normalised convolutions of it, which start at 0."""

    def __init__(self, layers: "Layers", channels: int) -> None:
        super().__init__()
        body = [*layers.next(channels, channels, (1, 1)), *layers.next(channels, channels, (1, 1))[:2]]
        self.body = nn.Sequential(*body)
        nn.init.zeros_(cast(Tensor, body[-1].weight))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


class ImageHeads(nn.Module):
    """One convolutional trunk and K linear heads of M units each: rows (N, D) to (K, N, M).

    Rows are images with their channels last, flattened.  They must not influence each other, so groups of channels are
    normalised, within each row.  With a ``symmetry`` of G elements the units are those of the image under each of them:
    (K, N, G * M).
    """

    def __init__(
        self,
        shape: Shape | tuple[int, int],
        n_classes: int,
        n_hidden: int,
        channels: int,
        n_blocks: int,
        pooling: str,
        *,
        n_halvings: int = LEAST_HALVINGS,
        symmetry: str | None = None,
    ) -> None:
        super().__init__()
        few(n_blocks=n_blocks, n_halvings=n_halvings)
        few(**{"n_blocks times n_halvings": n_blocks * n_halvings})
        self.shape: Shape = (*shape, 1) if len(shape) == 2 else shape
        self.sizes, self.pooling, self.symmetry = (n_classes, n_hidden), pooling, symmetry
        self.turns = symmetry == CIRCLE
        self.images_of = SYMMETRIES[None if self.turns else symmetry]
        self.n_elements = N_TURNS if self.turns else len(self.images_of(torch.zeros(1, 1, 1, 1)))
        kind = TURNED if self.turns else PLAIN
        self.first = nn.Sequential(*kind.first(self.shape[2], channels))
        layers: list[nn.Module] = []
        n_in, side, seen = channels, self.shape[:2], channels
        for _ in range(n_halvings):
            stride, side = halved(side)
            layers += kind.next(n_in, 2 * channels, stride)
            layers += [Residual(kind, 2 * channels) for _ in range(n_blocks)]
            n_in, seen = 2 * channels, seen + 2 * channels * (1 + n_blocks)
        if self.turns and pooling == "flatten":
            layers += turned_last(n_in, LAST * n_in, side)
            n_in, seen = LAST * n_in, seen + LAST * n_in
        self.trunk = nn.Sequential(*layers)
        flat = pooling == "flatten" and not self.turns
        self.heads = nn.Linear(n_in * (math.prod(side) if flat else 1), n_classes * n_hidden)
        #: the number of `means`
        self.n_means = seen // N_TURNS if self.turns else seen

    def forward(self, v: Tensor) -> Tensor:
        """The units of rows (N, D)."""
        h = self.trunk(self._first(v))
        h = h.flatten(1) if self.pooling == "flatten" else h.mean((2, 3))  # (N, F), or (G * N, F)
        u = self.heads(from_every_turn(h) if self.turns else h).unflatten(0, (-1, len(v)))  # (G, N, K * M)
        return u.unflatten(2, self.sizes).permute(2, 1, 0, 3).flatten(2)  # (K, N, G * M)

    def means(self, v: Tensor) -> Tensor:
        """Of every layer, what it has of rows in the mean over the positions, and over the symmetries: (N, n_means)."""
        h = self._first(v)
        found = [h.mean((2, 3))]
        for layer in self.trunk:
            h = layer(h)
            if isinstance(layer, WHOLE):
                found.append(h.mean((2, 3)))
        if self.turns:
            found = [over_turns(each) for each in found]
        return torch.cat(found, 1).unflatten(0, (-1, len(v))).mean(0)

    def _first(self, v: Tensor) -> Tensor:
        h: Tensor = self.first(torch.cat(self.images_of(as_planes(v, self.shape))))
        return h.contiguous(memory_format=torch.channels_last) if h.is_cuda and self.shape[0] > 1 else h  # quick there


#: layers of which the means are taken
WHOLE = (nn.GELU, Residual)


class Layers(NamedTuple):
    """What a trunk is made of, by numbers of channels: what sees the image, and what comes next, with strides."""

    first: Callable[[int, int], list[nn.Module]]
    next: Callable[[int, int, Moves], list[nn.Module]]


def _convolution(n_in: int, n_out: int, stride: Moves, size: int = 3) -> list[nn.Module]:
    convolution = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2)
    return [convolution, nn.GroupNorm(n_out // GROUP, n_out), nn.GELU()]


PLAIN = Layers(partial(_convolution, stride=(1, 1), size=5), _convolution)
TURNED = Layers(turned_first, turned_layer)


def halvings_of(shape: Shape) -> int:
    """How often an image is halved, so that its longer side has about 8 pixels left; at least twice."""
    return max(LEAST_HALVINGS, math.ceil(math.log2(max(shape[:2]) / LEAST_SIDE)))
