"""The network of images: a convolutional trunk with a head of hidden units for each class, and what trains it.

Class k is an auto-encoder with the energy E_k(v) = sum softplus(u_k(v)) + a_k.v - |v|^2 / 2, and all classes together
are one, too (`ImageNetwork.together`): with a scale s and biases B_k

    F(v) = (1/s) log sum_k exp(s E_k(v) + B_k)        v + grad F(v) = sum_k p(k|v) r_k(v)

Training adds the denoising loss of F to the cross-entropy of the classes: v + grad F(v) of a noisy image is to be the
clean one.  It needs no labels, and makes the field a denoiser and F a judgement of images.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.activations import SIGMOID, softmax, weighted
from energate.autoencoder import Autoencoder
from energate.estimators.network import Network
from energate.training import corrupt
from energate.units import HiddenUnits, NetworkUnits

GROUP = 8  # channels that are normalised together
LEAST_SIDE = 8  # a smaller side is not halved: of 28 pixels 7 are left, of 8 pixels 4
LEAST_HALVINGS = 2

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


def rotate_images(images: Tensor, angle: Tensor) -> Tensor:
    """Each of (N, h, w) or (N, h, w, c) images turned by its own angle about its middle, read between pixels.

    Borders are repeated.
    """
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
    planes = images.unsqueeze(1) if images.ndim == 3 else images.movedim(3, 1)  # (N, c, h, w)
    where = nn.functional.affine_grid(turn, list(planes.shape), align_corners=False)
    turned = nn.functional.grid_sample(planes, where, padding_mode="border", align_corners=False)
    return turned.squeeze(1) if images.ndim == 3 else turned.movedim(1, 3)


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


# --- the network -----------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """x plus two normalised convolutions of it, which start at 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, channels, 3, (1, 1)), *_convolution(channels, channels, 3, (1, 1))[:2]
        )
        norm = self.body[-1]
        assert isinstance(norm, nn.GroupNorm)
        nn.init.zeros_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


class SkipUnits(HiddenUnits):
    """Units that carry a share of v past all others: u = sqrt(share) v, the same for all models, with no parameters.

    Their energy is share |v|^2 / 2, and what they decode is share * v, so that the others have to say only what changes
    about an image.
    """

    def __init__(self, n_models: int, width: int, share: float) -> None:
        super().__init__(n_models, width, width, "linear")
        self.share = share

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:  # noqa: ARG002
        u = math.sqrt(self.share) * v
        return u if v.ndim == 3 else u.expand(self.n_models, *v.shape), None  # (K, N, D)

    def decode(self, h: Tensor, carry: None) -> Tensor:  # noqa: ARG002
        return math.sqrt(self.share) * h  # (K, N, D)


class ImageHeads(nn.Module):
    """One convolutional trunk and K linear heads of M units each: rows (N, D) to (K, N, M).

    Rows are images with their channels last, flattened.  They must not influence each other, so groups of channels are
    normalised, within each row.  With a ``symmetry`` of G elements the units are those of the image under each of them:
    (K, N, G * M).  With ``levels``, the range of noise levels, the network is told how noisy each row is, by a constant
    plane beside its channels; it takes a row for one of the lowest level if nothing is said.
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
        levels: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.shape: Shape = (*shape, 1) if len(shape) == 2 else shape
        self.sizes, self.pooling, self.levels = (n_classes, n_hidden), pooling, levels
        self.images_of = SYMMETRIES[symmetry]
        self.n_elements = len(self.images_of(torch.zeros(1, 1, 1, 1)))
        #: the noise level that rows are taken to have if nothing is said
        self.level = levels[0] if levels else 0.0
        self.first = nn.Sequential(*_convolution(self.shape[2] + bool(levels), channels, 5, (1, 1)))
        layers: list[nn.Module] = []
        n_in, side = channels, self.shape[:2]
        for _ in range(n_halvings):
            stride = (2 if side[0] >= LEAST_SIDE else 1, 2 if side[1] >= LEAST_SIDE else 1)
            side = (math.ceil(side[0] / stride[0]), math.ceil(side[1] / stride[1]))
            layers += _convolution(n_in, 2 * channels, 3, stride)
            layers += [Residual(2 * channels) for _ in range(n_blocks)]
            n_in = 2 * channels
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.Linear(n_in * (math.prod(side) if pooling == "flatten" else 1), n_classes * n_hidden)

    def forward(self, v: Tensor, level: Tensor | None = None) -> Tensor:
        """The units of rows (N, D), perhaps of noise levels (N, 1)."""
        u = self.heads(self._last(v, level)).unflatten(0, (self.n_elements, -1))  # (G, N, K * M)
        return u.unflatten(2, self.sizes).permute(2, 1, 0, 3).flatten(2)  # (K, N, G * M)

    def features(self, v: Tensor, level: Tensor | None = None) -> Tensor:
        """What the heads see of rows, the mean over the symmetries: (N, F)."""
        return self._last(v, level).unflatten(0, (self.n_elements, -1)).mean(0)

    def _last(self, v: Tensor, level: Tensor | None) -> Tensor:
        """The last layer of the trunk for all elements of the group: (G * N, F)."""
        height, width, channels = self.shape
        # Of one channel without a turn of the axes: vmap asks convolutions for the order of channels, and finds none.
        planes = v.unflatten(1, (1, height, width) if channels == 1 else self.shape)
        planes = planes if channels == 1 else planes.movedim(3, 1).contiguous()  # (N, c, h, w)
        if self.levels:
            level = v.new_full((len(v), 1), self.level) if level is None else level
            plane = (level / self.levels[1]).view(-1, 1, 1, 1).expand(-1, 1, *planes.shape[2:])
            planes = torch.cat([planes, plane], 1)
        h = self.first(torch.cat(self.images_of(planes)))
        if h.is_cuda and self.shape[0] > 1:
            h = h.contiguous(memory_format=torch.channels_last)  # the order that is quick on GPUs
        h = self.trunk(h)
        return h.flatten(1) if self.pooling == "flatten" else h.mean((2, 3))


def halvings_of(shape: Shape) -> int:
    """How often an image is halved, so that its longer side has about 8 pixels left; at least twice."""
    return max(LEAST_HALVINGS, math.ceil(math.log2(max(shape[:2]) / LEAST_SIDE)))


def _convolution(n_in: int, n_out: int, size: int, stride: Moves) -> list[nn.Module]:
    convolution = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2)
    return [convolution, nn.GroupNorm(n_out // GROUP, n_out), nn.GELU()]


@dataclass(frozen=True)
class Denoising:
    """The weight of the denoising loss, and the least and the largest noise level that it sees."""

    weight: float
    levels: tuple[float, float]


class ImageNetwork(Network):
    """Logits s E_k(v) + B_k, less a term that all classes share: E_k is the energy of auto-encoder k.

    In training rows are moved by up to ``shift`` pixels, perhaps turned and mirrored, and lose a share of their pixels;
    with ``denoising`` some of each batch are also denoised.
    """

    #: on a GPU, let the cross-entropy take convolutions in bfloat16; scores are never computed like that
    low_precision = True
    #: the same of the denoising loss
    low_precision_denoising = False
    #: with the denoising loss the scale s starts at this, divided by the least and by the largest noise level
    first_scale = 0.3
    #: the weights of the heads at so much less, so that the first logits are small all the same
    small_heads = 0.1
    #: and s learns so many times faster: much more, and it may fall to where the cross-entropy says nothing
    faster = 5.0
    #: one row in so many of a batch is also denoised
    denoised = 4
    #: what is missed of a row counts as its level, divided by the mean one, to minus this
    level_power = 0.0

    def __init__(
        self,
        heads: ImageHeads,
        shift: Moves,
        augment: str,
        dropout: float,
        denoising: Denoising | None = None,
        skip: float = 0.0,
    ) -> None:
        super().__init__()
        n_classes, n_hidden = heads.sizes
        # The energy of a class is the mean over the group, of which no element changes |v|^2; `a` stays at 0, since
        # a.v would change.
        activation = SIGMOID if heads.n_elements == 1 else weighted(SIGMOID, 1 / heads.n_elements)
        width = math.prod(heads.shape)
        units: list[HiddenUnits] = [NetworkUnits(heads, width, activation=activation)]
        self.autoencoder = Autoencoder([*units, SkipUnits(n_classes, width, skip)] if skip else units)
        self.autoencoder.a.requires_grad_(heads.n_elements == 1)
        self.B = nn.Parameter(torch.zeros(n_classes))
        self.log_beta = nn.Parameter(torch.tensor(-math.log(n_hidden) / 2))  # energies are sums over the units
        self.shape, self.shift, self.way, self.dropout = heads.shape, shift, augment, dropout
        self.denoising = denoising
        if denoising is not None:  # F is level^2 log-densities: differences of energies are that small
            with torch.no_grad():
                self.log_beta.fill_(math.log(self.first_scale / math.prod(denoising.levels)))
                heads.heads.weight.mul_(self.small_heads)

    @property
    def heads(self) -> ImageHeads:
        """The trunk and the heads."""
        found = self.autoencoder.groups[0].network
        assert isinstance(found, ImageHeads)
        return found

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        own = {id(self.log_beta)} if self.denoising else set()
        trained = [each for each in self.parameters() if each.requires_grad and id(each) not in own]
        groups: list[dict[str, Any]] = [{"params": trained, "learning_rate": learning_rate}]
        if own:
            groups.append(
                {"params": [self.log_beta], "learning_rate": self.faster * learning_rate, "weight_decay": 0.0}
            )
        return groups

    # --- logits and energies ----------------------------------------------------------------------

    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        return self.logits(v) if noise is None else self._quick_logits(self.augment(v, noise))

    def logits(self, v: Tensor, level: Tensor | None = None) -> Tensor:
        """Calibrated energies, less the term that all classes share, perhaps of rows of told levels (N, 1): (N, K)."""
        if level is None:
            return self._calibrated(self.autoencoder.relative_energy(v))
        units, *others = self.autoencoder.groups
        energies = self.autoencoder.a @ v.T + units.activation.potential(self.heads(v, level))  # (K, N)
        for group in others:
            energies = energies + group.activation.potential(group.preactivation(v, None)[0])
        return self._calibrated(energies, level)

    def energies(self, v: Tensor) -> Tensor:
        """How much each class likes each row, calibrated, with no term left out: (N, K), higher is better."""
        return self._calibrated(self.autoencoder.energy(v))

    def together(self, level: float | None = None) -> Autoencoder:
        """All classes as one auto-encoder: its energy is F, higher is better, up to the scale s `score_samples`.

        It shares the weights of this network.  ``level`` is the noise level that a network is told.
        """
        network = _Together(self, level)
        told = None if level is None else self.B.new_full((1, 1), level)
        activation = softmax(temperature=1 / float(self.scale(told).detach()))
        return Autoencoder([NetworkUnits(network, math.prod(self.shape), activation=activation)])

    def scale(self, level: Tensor | None = None) -> Tensor:
        """The scale s of the energies: (), or (N, 1) for told levels.

        Where v + grad F(v) is the mean of the images that v may come from, F is level^2 times their log-density.
        """
        found = self.log_beta.exp()
        return found if level is None else found * (self.heads.level / level).square()

    def _calibrated(self, energies: Tensor, level: Tensor | None = None) -> Tensor:
        return self.scale(level) * energies.T + self.B  # (N, K)

    # --- training ---------------------------------------------------------------------------------

    def loss(self, v: Tensor, labels: Tensor, noise: torch.Generator) -> Tensor:
        """The cross-entropy, and the denoising loss of the first rows."""
        moved = self.move(v, noise)
        total = F.cross_entropy(self._quick_logits(self.drop(moved, noise)), labels)
        if self.denoising is None:
            return total
        few = math.ceil(len(v) / self.denoised)
        return total + self.denoising.weight * self.denoising_loss(moved[:few], noise)

    def denoising_loss(self, clean: Tensor, noise: torch.Generator) -> Tensor:
        """The squared error of v + grad F(v) at noisy copies v of rows, a pixel: the mean over the rows, ()."""
        assert self.denoising is not None
        low, high = self.denoising.levels
        draws = torch.rand(len(clean), 1, generator=noise, device=clean.device, dtype=clean.dtype)
        level = low + (high - low) * draws
        seen = clean + level * torch.randn(clean.shape, generator=noise, device=clean.device, dtype=clean.dtype)
        missed = (self.restore(seen, level) - clean).square().mean(1)
        return (missed * (2 * level[:, 0] / (low + high)) ** -self.level_power).mean()

    def restore(self, seen: Tensor, level: Tensor) -> Tensor:
        """What v + grad F(v) makes of rows (N, D), as training sees it: it can be differentiated once more."""
        seen, told = seen.detach().requires_grad_(), level if self.heads.levels else None
        with torch.autocast(seen.device.type, torch.bfloat16, enabled=self.low_precision_denoising and seen.is_cuda):
            logits = self.logits(seen, told)
        together = torch.logsumexp(logits.to(seen.dtype), 1, keepdim=True) / self.scale(told)  # F + |v|^2 / 2
        return torch.autograd.grad(together.sum(), seen, create_graph=True)[0]

    def augment(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows (N, D) as training sees them."""
        return self.drop(self.move(v, noise), noise)

    def move(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows moved, turned and mirrored."""
        images, n_rows = v.unflatten(1, self.shape), len(v)
        if self.way == "turns":
            angle = torch.rand(n_rows, generator=noise, device=v.device, dtype=v.dtype) * (2 * math.pi)
            images = rotate_images(images, angle)
        if self.way == "symmetries":
            images = turn_images(images, torch.randint(8, (n_rows,), generator=noise, device=v.device))
        if any(self.shift):
            images = shift_images(
                images,
                *(torch.randint(-n, n + 1, (n_rows,), generator=noise, device=noise.device) for n in self.shift),
            )
        return images.flatten(1)

    def drop(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows without a share of their pixels."""
        return corrupt(v, "masking", self.dropout, noise) / (1 - self.dropout) if self.dropout else v

    def _quick_logits(self, v: Tensor) -> Tensor:
        with torch.autocast(v.device.type, torch.bfloat16, enabled=self.low_precision and v.is_cuda):
            energies = self.autoencoder.relative_energy(v)
        return self._calibrated(energies.to(v.dtype))


class _Together(nn.Module):
    """Rows (N, D) to the relative energies of the classes, biases included: (N, K), the units of F."""

    def __init__(self, network: ImageNetwork, level: float | None) -> None:
        super().__init__()
        self.network, self.level = network, level

    def forward(self, v: Tensor) -> Tensor:
        level = None if self.level is None else v.new_full((len(v), 1), self.level)
        return self.network.logits(v, level) / self.network.scale(level)
