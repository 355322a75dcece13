"""`ImageEnergyClassifier`: a convolutional network whose logits are exact energies, one auto-encoder per class."""

import math
import threading
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators.edge import Array, LikingMixin, any_class, check_choices, fraction_of, in_chunks, whole_number
from energate.estimators.network import Network, NetworkClassifier
from energate.estimators.progress import Reporter
from energate.training import corrupt
from energate.units import NetworkUnits

AUGMENTS = ("shifts", "none", "symmetries", "turns")
POOLINGS = ("flatten", "mean")
GROUP = 8  # channels that are normalised together
LEAST_SIDE = 8  # a smaller side is not halved: of 28 pixels 7 are left, of 8 pixels 4
SHIFT_SHARE = 8  # a shift is at most this part of a side

DRAWING = threading.Lock()

Shape = tuple[int, int]


# --- more rows from those there are ----------------------------------------------------------------------------


def shift_images(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Each of (N, h, w) images moved by its own numbers of pixels; what comes in repeats the pixels at the border."""
    n_rows, height, width = images.shape
    n = torch.arange(n_rows, device=images.device).view(-1, 1, 1)
    y = torch.arange(height, device=images.device) - down.unsqueeze(1)  # (N, h)
    x = torch.arange(width, device=images.device) - right.unsqueeze(1)  # (N, w)
    return images[n, y.clamp(0, height - 1).unsqueeze(2), x.clamp(0, width - 1).unsqueeze(1)]


def turn_images(images: Tensor, symmetry: Tensor) -> Tensor:
    """Each of (N, n, n) images under one of the 8 symmetries of the square, numbered from 0, which is none."""
    bits = [(symmetry >> bit & 1).bool().view(-1, 1, 1) for bit in range(3)]
    images = torch.where(bits[0], images.flip(1), images)
    images = torch.where(bits[1], images.flip(2), images)
    return torch.where(bits[2], images.mT, images)


def rotate_images(images: Tensor, angle: Tensor) -> Tensor:
    """Each of (N, h, w) images turned by its own angle about its middle, read between pixels; borders are repeated."""
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
    where = nn.functional.affine_grid(turn, [len(images), 1, *images.shape[1:]], align_corners=False)
    return nn.functional.grid_sample(images.unsqueeze(1), where, padding_mode="border", align_corners=False).squeeze(1)


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


class ImageHeads(nn.Module):
    """One convolutional trunk and K linear heads of M units each: rows (N, D) to (K, N, M).

    Rows must not influence each other, so groups of channels are normalised, within each row.
    """

    def __init__(self, shape: Shape, n_classes: int, n_hidden: int, channels: int, n_blocks: int, pooling: str) -> None:
        super().__init__()
        self.shape, self.sizes, self.pooling = shape, (n_classes, n_hidden), pooling
        self.first = nn.Sequential(*_convolution(1, channels, 5, (1, 1)))
        layers: list[nn.Module] = []
        n_in, side = channels, shape
        for _ in range(2):
            stride = (2 if side[0] >= LEAST_SIDE else 1, 2 if side[1] >= LEAST_SIDE else 1)
            side = (math.ceil(side[0] / stride[0]), math.ceil(side[1] / stride[1]))
            layers += _convolution(n_in, 2 * channels, 3, stride)
            layers += [Residual(2 * channels) for _ in range(n_blocks)]
            n_in = 2 * channels
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.Linear(n_in * (math.prod(side) if pooling == "flatten" else 1), n_classes * n_hidden)

    def forward(self, v: Tensor) -> Tensor:
        h = self.first(v.unflatten(1, (1, *self.shape)))
        if h.is_cuda and self.shape[0] > 1:
            h = h.contiguous(memory_format=torch.channels_last)  # the order that is quick on GPUs
        h = self.trunk(h)
        h = h.flatten(1) if self.pooling == "flatten" else h.mean((2, 3))
        return self.heads(h).unflatten(1, self.sizes).transpose(0, 1)  # (K, N, M)


def _convolution(n_in: int, n_out: int, size: int, stride: Shape) -> list[nn.Module]:
    convolution = nn.Conv2d(n_in, n_out, size, stride, padding=size // 2)
    return [convolution, nn.GroupNorm(n_out // GROUP, n_out), nn.GELU()]


class ImageNetwork(Network):
    """Logits beta E_k(v) + B_k, less a term that all classes share: E_k is the energy of auto-encoder k.

    E_k(v) = sum softplus(u_k(v)) + a_k.v - |v|^2 / 2, with u_k the units of head k.  In training rows are moved by up
    to ``shift`` pixels, perhaps turned and mirrored, and lose a share of their pixels.
    """

    #: on a GPU, let training take convolutions in bfloat16; scores are never computed like that
    low_precision = True

    def __init__(self, heads: ImageHeads, shift: Shape, augment: str, dropout: float) -> None:
        super().__init__()
        n_classes, n_hidden = heads.sizes
        self.autoencoder = Autoencoder([NetworkUnits(heads, math.prod(heads.shape))])
        self.B = nn.Parameter(torch.zeros(n_classes))
        self.log_beta = nn.Parameter(torch.tensor(-math.log(n_hidden) / 2))  # energies are sums over the units
        self.shape, self.shift, self.way, self.dropout = heads.shape, shift, augment, dropout

    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        if noise is None:
            return self._calibrated(self.autoencoder.relative_energy(v))
        v = self.augment(v, noise)
        with torch.autocast(v.device.type, torch.bfloat16, enabled=self.low_precision and v.is_cuda):
            energies = self.autoencoder.relative_energy(v)
        return self._calibrated(energies.to(v.dtype))

    def energies(self, v: Tensor) -> Tensor:
        """How much each class likes each row, calibrated, with no term left out: (N, K), higher is better."""
        return self._calibrated(self.autoencoder.energy(v))

    def augment(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows (N, D) as training sees them."""
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
        v = images.flatten(1)
        return corrupt(v, "masking", self.dropout, noise) / (1 - self.dropout) if self.dropout else v

    def _calibrated(self, energies: Tensor) -> Tensor:
        return self.log_beta.exp() * energies.T + self.B  # (N, K)


# --- the classifier --------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, kw_only=True)
class ImageEnergyClassifier(LikingMixin, NetworkClassifier):
    """An energy classifier over a convolutional network: one trunk for all classes, and for each class a head of hidden
    units that makes it an auto-encoder with an exact energy.

    The rows are images.  The energies are trained by cross-entropy alone; ``autoencoder_`` still reconstructs, and
    its vector field is the gradient of its energy.

    Parameters
    ----------
    n_hidden : hidden units of each class.
    channels : of the first layer, a multiple of 8; the other layers have twice as many.
    n_blocks : residual blocks of two convolutions after each of the two layers that halve the image.
    pooling : what the heads see: ``"flatten"``, all positions of the last layer, or ``"mean"`` over them.
    shape : height and width of the images; ``"auto"`` is a square where the number of columns is one (28 x 28 for
        784), otherwise an image of one line, which is never moved.
    augment : how rows vary in training.  ``"shifts"`` moves them by up to ``shift`` pixels, at most an eighth of a
        side; ``"symmetries"`` also turns them by quarters and mirrors them, which is wrong where that changes the
        class: digits, or which side of a rectangle is longer; ``"turns"`` also turns them by any angle, which is right
        where rows come turned; ``"none"`` is for columns that are no image.
    input_dropout : share of the pixels left out in training.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`, and ``liking_``: sorted
    `score_samples` of the rows held out, or else trained on.  ``"unit"`` scales every pixel by its own range; where
    pixels are in [0, 1] already ``scaling="none"`` keeps them alike.
    """

    _FITTED = ("classes_", "scaler_", "liking_")  # what is saved beside the model
    _OPTIMIZER, _SCHEDULE = "adamw", "cosine"

    n_hidden: int = 64
    channels: int = 48
    n_blocks: int = 1
    pooling: str = "flatten"
    shape: str | Shape = "auto"
    augment: str = "shifts"
    shift: int = 2
    input_dropout: float = 0.0
    learning_rate: float = 2e-3
    weight_decay: float = 2e-2
    batch_size: int = 128
    n_iter_no_change: int = 40

    def _epochs_before(self, n_steps: int) -> int:  # noqa: ARG002
        whole_number(self, "n_hidden", 1)
        whole_number(self, "n_blocks", 0)
        whole_number(self, "shift", 0)
        fraction_of(self, "input_dropout")
        if whole_number(self, "channels", GROUP) % GROUP:
            raise InputError(f"`channels` must be a multiple of {GROUP}; got {self.channels!r}.")
        check_choices(self, augment=AUGMENTS, pooling=POOLINGS)
        height, width = self._shape()
        if self.augment in ("symmetries", "turns") and height != width:
            raise InputError(
                f"augment={self.augment!r} turns images, so they must be square; they are {height} x {width}. Use "
                "augment='shifts', or give the `shape`."
            )
        return 0

    def _shape(self) -> Shape:
        """Height and width of the images."""
        n_columns: int = self.n_features_in_
        if isinstance(self.shape, str) and self.shape == "auto":
            side = math.isqrt(n_columns)
            return (side, side) if side**2 == n_columns else (1, n_columns)
        given: tuple[Any, ...] = tuple(self.shape) if isinstance(self.shape, tuple | list) else ()
        whole = all(isinstance(n, Integral) and int(n) > 0 for n in given)
        if len(given) != 2 or not whole or math.prod(given) != n_columns:
            raise InputError(
                f"`shape` must be 'auto', or height and width of images of {n_columns} pixels; got {self.shape!r}."
            )
        return int(given[0]), int(given[1])

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:  # noqa: ARG002
        # Layers draw their first weights from torch's own generator, of which all threads have the same.
        with DRAWING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._build(n_classes).to(train.device)

    def _build(self, n_classes: int) -> ImageNetwork:
        shape = self._shape()
        heads = ImageHeads(shape, n_classes, self.n_hidden, self.channels, self.n_blocks, self.pooling)
        moves = self.augment != "none" and min(shape) > 1
        down, right = (min(self.shift, side // SHIFT_SHARE) if moves else 0 for side in shape)
        return ImageNetwork(heads, (down, right), self.augment, self.input_dropout)

    def _untrained(self) -> ImageNetwork:
        return self._build(len(self.classes_))

    @torch.no_grad()
    def _keep(self, network: Network, rows: Tensor) -> None:
        assert isinstance(network, ImageNetwork)  # `_start` makes no other
        self.liking_ = np.sort(any_class(network.energies(rows.to(network.B))))

    # --- scoring -----------------------------------------------------------------------------------

    @property
    def autoencoder_(self) -> Autoencoder:
        """The auto-encoders of the classes, over scaled rows: energies, vector fields, reconstructions."""
        return self._network().autoencoder

    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""
        network, X = self._network(), self._checked(X)
        return in_chunks(X, self.scaler_, network.B, network.energies)

    def _network(self) -> ImageNetwork:
        check_is_fitted(self)
        assert isinstance(self.model_, ImageNetwork)  # `_start` makes no other
        return self.model_
