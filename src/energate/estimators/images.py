"""`ImageEnergyClassifier`: a convolutional network whose logits are exact energies, one auto-encoder per class."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators.convolution import (
    GROUP,
    LEAST_HALVINGS,
    SYMMETRIES,
    Denoising,
    ImageHeads,
    ImageNetwork,
    Shape,
    halvings_of,
    rotate_images,
    shift_images,
    turn_images,
)
from energate.estimators.edge import (
    IMAGE_SCALINGS,
    Array,
    LikingMixin,
    any_class,
    at_least_0,
    check_choices,
    draw_seed,
    fraction_of,
    furthest,
    in_chunks,
    whole_number,
)
from energate.estimators.filling import anneal, falling, fill_in
from energate.estimators.network import Network, NetworkClassifier
from energate.estimators.progress import Reporter

__all__ = ["ImageEnergyClassifier", "ImageHeads", "ImageNetwork", "rotate_images", "shift_images", "turn_images"]

AUGMENTS = ("shifts", "none", "symmetries", "turns")
POOLINGS = ("flatten", "mean")
SHIFT_SHARE = 8  # a shift is at most this part of a side
ROWS_AT_ONCE = 512  # that are denoised, filled in or drawn: what lies between the layers is kept for the field

DRAWING = threading.Lock()


def _rows_of_older(_: Any) -> tuple[int, ...]:
    return ()


def _middle_of_older(model: Any) -> Array:
    """Files of older versions do not say what the mean image was."""
    found: Array = model.scaler_.undo(np.full(model.n_features_in_, 0.5))
    return found


@dataclass(eq=False, repr=False, kw_only=True)
class ImageEnergyClassifier(LikingMixin, NetworkClassifier):
    """One model that classifies images, rejects strange ones, denoises, and fills in what is missing.

    One convolutional trunk serves all classes; for each class a head of hidden units over it makes an auto-encoder with
    an exact energy E_k, and all classes together are one, with the energy F of `score_samples`.  Training minimises the
    cross-entropy of the classes and the denoising loss of F: its gradient is to lead from noisy images to clean ones.

    X is (n, height, width), (n, height, width, channels), or rows (n, D) of images that are flattened, channels last;
    whole numbers or floats.  Images come back as they were given.

    Parameters
    ----------
    n_hidden : hidden units of each class.
    channels : of the first layer, a multiple of 8; the other layers have twice as many.
    n_blocks : residual blocks of two convolutions after each layer that halves the image.
    n_halvings : how often the image is halved; ``"auto"``: until its longer side has about 8 pixels, at least twice.
    pooling : what the heads see: ``"flatten"``, all positions of the last layer, or ``"mean"`` over them.
    shape : height and width, perhaps channels, of images that come as rows; ``"auto"`` is a square where the number of
        columns is one (28 x 28 for 784), otherwise an image of one line, which is never moved.
    augment : how rows vary in training.  ``"shifts"`` moves them by up to ``shift`` pixels, at most an eighth of a
        side; ``"symmetries"`` also turns them by quarters and mirrors them, which is wrong where that changes the
        class: digits, or which side of a rectangle is longer; ``"turns"`` also turns them by any angle, which is right
        where rows come turned; ``"none"`` is for columns that are no image.
    input_dropout : share of the pixels left out in training.
    symmetry : a group under which no energy changes, for square images: ``"turns"`` by quarters, ``"turns and
        mirrors"``, or None.  Energies are the mean over the group, so that every pass costs 4 or 8 times as much.
    skip : the share of an image that its reconstruction carries over, so that the network has to say only what
        changes: E_k has -(1 - skip) |x|^2 / 2 in place of -|x|^2 / 2.
    denoising_weight : of the denoising loss, the squared error of a pixel; 0 leaves it out, and with it what `denoise`,
        `inpaint` and `sample` need, and most of what `rejects` knows.
    noise_levels : the least and the largest standard deviation of the noise that training adds, each row its own, on
        the scale of ``scaling``: for ``"image"``, shares of the range of the pixels.
    level_told : whether the energy is told the noise level, so that there is one energy for each.  Images are then
        scored by that of the lowest level, and `denoise` has to be told theirs.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`, and

    liking_ : sorted `score_samples` of the rows held out, or else trained on.
    mean_ : the mean of the same rows.
    given_shape_ : the shape of an image as `fit` was given it; () for rows.

    ``scaling="image"`` scales all pixels by their common range, ``"unit"`` every pixel by its own; where pixels are in
    [0, 1] already ``"none"`` keeps them.
    """

    # what is saved beside the model
    _FITTED = ("classes_", "scaler_", "liking_", "mean_", "given_shape_")  # type: ignore[assignment]
    # what older files lack: by schema, and what parameters were then where that is not their default
    _ADDED = {4: ("n_halvings", "symmetry", "skip", "denoising_weight", "noise_levels", "level_told")}  # noqa: RUF012
    _BEFORE: ClassVar = {"n_halvings": LEAST_HALVINGS, "skip": 0.0, "denoising_weight": 0.0}
    _FITTED_LATER = {4: {"mean_": _middle_of_older, "given_shape_": _rows_of_older}}  # noqa: RUF012
    _OPTIMIZER, _SCHEDULE = "adamw", "cosine"
    _SCALINGS: ClassVar = IMAGE_SCALINGS
    _CAPTURES: ClassVar = True
    #: the longest gradient of a step with the denoising loss, which without a limit may run off
    CLIP_NORM: ClassVar[float] = 5.0
    #: stages of falling noise, and steps of ascent after them, at most
    N_LEVELS: ClassVar[int] = 30
    N_STEPS: ClassVar[int] = 30

    n_hidden: int = 64
    channels: int = 48
    n_blocks: int = 1
    n_halvings: int | str = "auto"
    pooling: str = "flatten"
    shape: str | tuple[int, ...] = "auto"
    augment: str = "shifts"
    shift: int = 2
    input_dropout: float = 0.0
    symmetry: str | None = None
    skip: float = 0.9
    denoising_weight: float = 30.0
    noise_levels: tuple[float, float] = (0.1, 0.5)
    level_told: bool = False
    learning_rate: float = 2e-3
    weight_decay: float = 2e-2
    batch_size: int = 128
    n_iter_no_change: int = 40
    scaling: str = "image"

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    # --- what it is given ---------------------------------------------------------------------------

    def _read(self, X: Any, X_valid: Any) -> tuple[Any, Any]:
        self.given_shape_: tuple[int, ...] = tuple(map(int, X.shape[1:])) if _are_images(X) else ()
        return _flattened(X), _flattened(X_valid)

    def _flat(self, X: Any) -> Any:
        if _are_images(X):
            shape = self._network().shape
            if _with_channels(X.shape[1:]) != shape:
                size = " x ".join(map(str, shape if shape[2] > 1 else shape[:2]))
                raise InputError(f"`X` must hold images of {size}, as in fit; got shape {tuple(X.shape)}.")
        return _flattened(X)

    def _shape(self) -> Shape:
        """Height, width and channels of the images."""
        n_columns: int = self.n_features_in_
        known = self.given_shape_
        if isinstance(self.shape, str) and self.shape == "auto":
            if known:
                return _with_channels(known)
            side = math.isqrt(n_columns)
            return (side, side, 1) if side**2 == n_columns else (1, n_columns, 1)
        given: tuple[Any, ...] = tuple(self.shape) if isinstance(self.shape, tuple | list) else ()
        whole = all(isinstance(n, Integral) and int(n) > 0 for n in given)
        if len(given) not in (2, 3) or not whole or math.prod(given) != n_columns:
            raise InputError(
                f"`shape` must be 'auto', or height and width (and channels) of images of {n_columns} pixels; got "
                f"{self.shape!r}."
            )
        found = _with_channels(given)
        if known and _with_channels(known) != found:
            raise InputError(f"`shape` is {self.shape!r}, but the images in `X` are {known}. Leave `shape` out.")
        return found

    def _epochs_before(self, n_steps: int) -> int:  # noqa: ARG002
        whole_number(self, "n_hidden", 1)
        whole_number(self, "n_blocks", 0)
        whole_number(self, "shift", 0)
        if self.n_halvings != "auto":
            whole_number(self, "n_halvings", 0, " or 'auto'")
        fraction_of(self, "input_dropout")
        fraction_of(self, "skip")
        at_least_0(self, "denoising_weight")
        at_least_0(self, "learning_rate")
        if whole_number(self, "channels", GROUP) % GROUP:
            raise InputError(f"`channels` must be a multiple of {GROUP}; got {self.channels!r}.")
        check_choices(self, augment=AUGMENTS, pooling=POOLINGS)
        if self.symmetry is not None:
            check_choices(self, symmetry=[name for name in SYMMETRIES if name])
        _check_levels(self.noise_levels)
        if not isinstance(self.level_told, bool | np.bool_):
            raise InputError(f"`level_told` must be True or False; got {self.level_told!r}.")
        if self.level_told and not self.denoising_weight:
            raise InputError("level_told=True takes a `denoising_weight` above 0: without noise there is no level.")
        height, width, _ = self._shape()
        for name in ("augment", "symmetry"):
            if getattr(self, name) not in ("shifts", "none", None) and height != width:
                raise InputError(
                    f"{name}={getattr(self, name)!r} turns images, so they must be square; they are {height} x "
                    f"{width}. Leave `{name}` out, or give the `shape`."
                )
        return 0

    # --- fitting ------------------------------------------------------------------------------------

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:  # noqa: ARG002
        # Layers draw their first weights from torch's own generator, of which all threads have the same.
        with DRAWING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._build(n_classes).to(train.device)

    def _build(self, n_classes: int) -> ImageNetwork:
        shape = self._shape()
        low, high = self.noise_levels
        heads = ImageHeads(
            shape,
            n_classes,
            self.n_hidden,
            self.channels,
            self.n_blocks,
            self.pooling,
            n_halvings=halvings_of(shape) if isinstance(self.n_halvings, str) else self.n_halvings,
            symmetry=self.symmetry,
            levels=(float(low), float(high)) if self.level_told else None,
        )
        moves = self.augment != "none" and min(shape[:2]) > 1
        down, right = (min(self.shift, side // SHIFT_SHARE) if moves else 0 for side in shape[:2])
        denoising = Denoising(self.denoising_weight, (float(low), float(high))) if self.denoising_weight else None
        return ImageNetwork(heads, (down, right), self.augment, self.input_dropout, denoising, float(self.skip))

    def _untrained(self) -> ImageNetwork:
        return self._build(len(self.classes_))

    def _clip_norm(self) -> float | None:
        return self.CLIP_NORM if self.denoising_weight else None

    @torch.no_grad()
    def _keep(self, network: Network, rows: Tensor) -> None:
        assert isinstance(network, ImageNetwork)  # `_start` makes no other
        self.liking_ = np.sort(any_class(network.energies(rows.to(network.B))))
        self.mean_: Array = self.scaler_.undo(rows.double().mean(0).cpu().numpy())

    # --- scoring ------------------------------------------------------------------------------------

    @property
    def autoencoder_(self) -> Autoencoder:
        """The auto-encoders of the classes, over scaled rows: energies, vector fields, reconstructions."""
        return self._network().autoencoder

    @property
    def together_(self) -> Autoencoder:
        """All classes as one auto-encoder, over scaled rows; its energy, times the scale, is `score_samples`."""
        return self._network().together()

    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""
        network, X = self._network(), self._checked(self._flat(X))
        return in_chunks(X, self.scaler_, network.B, network.energies)

    def _network(self) -> ImageNetwork:
        check_is_fitted(self)
        assert isinstance(self.model_, ImageNetwork)  # `_start` makes no other
        return self.model_

    # --- images from the energy ---------------------------------------------------------------------

    def denoise(self, X: Any, level: Any = None) -> Array:
        """Images without their noise: one step x + grad F(x) of each.

        ``level``, the standard deviation of the noise on the scale of ``noise_levels``, is for ``level_told=True``; the
        lowest if it is not given.
        """
        told = self._told(level)

        def restore(v: Tensor) -> Tensor:
            return told.preoutput(v)[0]

        rows = self._checked(self._flat(X))
        return self._images(self._in_parts(rows, restore), X)

    def inpaint(self, X: Any, mask: Any, *, random_state: Any = 0) -> Array:
        """Images with the pixels filled in that are unknown: those where ``mask`` is True, whatever X holds there.

        ``mask`` has the shape of X, or of one image, with channels or without.  The known pixels stay as they are.  The
        energy F (`score_samples`) of the result is never below that of the image whose unknown pixels are those of
        ``mean_``; ``random_state`` decides the noise of the stages that come before the ascent.
        """
        network = self._network()
        rows, unknown = self._masked(X, mask)
        levels, seed, at = self._levels(), draw_seed(random_state), self._at()
        start = np.where(unknown, self.mean_, rows)

        def fill(v: Tensor, hidden: Tensor) -> Tensor:
            draws = torch.Generator(v.device).manual_seed(seed)  # the same whatever part a row is in
            return fill_in(at, v, hidden, levels, self.N_STEPS, draws)

        found = self._in_parts(start, fill, torch.tensor(unknown, device=network.B.device))
        return self._images(np.where(unknown, found, rows), X)

    def sample(self, n_samples: Any = 1, *, random_state: Any = 0) -> Array:
        """Images drawn from the energy of all classes, by noise that falls: (n, ...), of the shape that `fit` saw.

        What the energy has learnt of its images shows here, and what it has not.
        """
        self._network()
        if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 1:
            raise InputError(f"`n_samples` must be a whole number of at least 1; got {n_samples!r}.")
        levels, at = self._levels(), self._at()
        if not levels:
            raise InputError("Images are drawn from noise: fit with a `denoising_weight` above 0.")
        draws = torch.Generator(self._network().B.device).manual_seed(draw_seed(random_state))

        def draw(v: Tensor) -> Tensor:
            return anneal(at, v, torch.ones_like(v, dtype=torch.bool), levels, draws)

        found = self._in_parts(np.repeat(self.mean_[None], int(n_samples), 0), draw)
        return found.reshape(int(n_samples), *(self.given_shape_ or (-1,)))

    def _told(self, level: Any) -> Autoencoder:
        network = self._network()
        if level is None:
            return network.together()
        if not self.level_told:
            raise InputError("`level` is for a model that is told the noise level: fit with level_told=True.")
        if isinstance(level, bool) or not isinstance(level, Real) or not 0 < float(level) < math.inf:
            raise InputError(f"`level` must be a number above 0; got {level!r}.")
        return network.together(float(level))

    def _at(self) -> Callable[[float | None], Autoencoder]:
        """The auto-encoder of all classes, told a noise level if the network is."""
        network = self._network()
        blind = network.together()

        def at(level: float | None) -> Autoencoder:
            return blind if level is None or not self.level_told else network.together(level)

        return at

    def _levels(self) -> list[float]:
        """The stages of noise; none without the denoising loss, which nothing else makes the field ready for."""
        low, high = self.noise_levels
        return falling(float(low), float(high), self.N_LEVELS) if self.denoising_weight else []

    def _in_parts(self, rows: Array, restore: Callable[..., Tensor], *beside: Tensor) -> Array:
        """What becomes of rows (n, D), and of what stands beside them, a part at a time, in the user's units."""
        like, found = self._network().B, []
        most = furthest(like.dtype)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            v = torch.as_tensor(self.scaler_(rows[some])).clamp(-most, most).to(like)
            with torch.no_grad():
                found.append(restore(v, *(each[some] for each in beside)).double().cpu().numpy())
        return self.scaler_.undo(np.concatenate(found))

    def _masked(self, X: Any, mask: Any) -> tuple[Array, NDArray[np.bool_]]:
        """Rows with 0 where pixels are unknown, which may be no numbers, and where that is: (n, D) each."""
        given = np.asarray(X, dtype=np.float64)
        hidden = np.asarray(mask)
        height, width, channels = self._network().shape
        if hidden.dtype != bool:
            raise InputError(f"`mask` must hold booleans, True where pixels are unknown; got {hidden.dtype}.")
        pixels = given.size // max(1, height * width * channels)
        for shape in ((pixels, height, width, channels), (pixels, height, width, 1), (1, height, width, channels),
                      (1, height, width, 1)):  # fmt: skip
            if hidden.size == math.prod(shape):
                spread = np.broadcast_to(hidden.reshape(shape), (pixels, height, width, channels))
                unknown = spread.reshape(pixels, -1)
                break
        else:
            raise InputError(
                f"`mask` must have the shape of `X`, {given.shape}, or of one image, {height} x {width}; got "
                f"{hidden.shape}."
            )
        if given.size != unknown.size:
            return self._checked(self._flat(given)), unknown  # which refuses it
        rows = self._checked(self._flat(np.where(unknown.reshape(given.shape), 0.0, given)))
        return rows, unknown

    def _images(self, rows: Array, X: Any) -> Array:
        """Rows in the shape that images came in."""
        return rows.reshape(X.shape) if isinstance(X, np.ndarray | Tensor) else rows


def _are_images(X: Any) -> bool:
    return isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4)


def _flattened(X: Any) -> Any:
    return np.asarray(X).reshape(len(X), -1) if _are_images(X) else X


def _with_channels(shape: tuple[Any, ...]) -> Shape:
    height, width, channels = map(int, (*shape, 1)[:3])
    return height, width, channels


def _check_levels(levels: Any) -> None:
    numbers = tuple(levels) if isinstance(levels, tuple | list | np.ndarray) else ()
    real = len(numbers) == 2 and all(isinstance(n, Real) and not isinstance(n, bool) for n in numbers)
    if not real or not 0 < numbers[0] <= numbers[1] < math.inf:
        raise InputError(
            f"`noise_levels` must be two numbers above 0, the least and the largest noise level; got {levels!r}."
        )
