"""`ImageEnergyClassifier`: a convolutional network whose logits are exact energies, one auto-encoder per class."""

import copy
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
    CIRCLE,
    GROUP,
    LEAST_HALVINGS,
    OF_NOISE,
    SYMMETRIES,
    ImageHeads,
    Shape,
    halvings_of,
    shift_images,
    turn_images,
)
from energate.estimators.edge import (
    IMAGE_SCALINGS,
    Array,
    at_least_0,
    check_choices,
    default_size,
    draw_seed,
    epochs_of,
    fraction_of,
    furthest,
    in_chunks,
    whole_number,
)
from energate.estimators.effort import check_network
from energate.estimators.filling import anneal, falling, fill_in
from energate.estimators.image_network import ImageNetwork
from energate.estimators.liking import LikingMixin, any_class, no_class_calibrated, not_calibrated
from energate.estimators.network import Network, NetworkClassifier
from energate.estimators.progress import Reporter
from energate.estimators.restoring import KNOWN, MISSING, UNSAID, Denoising, NoiseFinder
from energate.training.classes import LabelledRows

__all__ = ["ImageEnergyClassifier", "ImageHeads", "ImageNetwork", "shift_images", "turn_images"]

AUGMENTS = ("shifts", "none", "affine", "symmetries", "turns")
POOLINGS = ("flatten", "mean")
UNITS, FEWEST_UNITS, UNITS_OF_ALL = 64, 4, 6400  # of a class, and of all together where there are many
SHIFT_SHARE = 8  # a shift is at most this part of a side
SHARED_CHANNELS, SMALL = (16, 32), 16  # of images of less than so many pixels squared, and of others
ROWS_AT_ONCE = 512  # that are denoised, filled in or drawn: what lies between the layers is kept for the field

DRAWING = threading.Lock()


def _rows_of_older(_: Any) -> tuple[int, ...]:
    return ()


def _middle_of_older(model: Any) -> Array:
    """Files of older versions do not say what the mean image was."""
    found: Array = model.scaler_.undo(np.full(model.n_features_in_, 0.5))
    return found


@dataclass(eq=False, repr=False, kw_only=True)
class ImageEnergyClassifier(NetworkClassifier, LikingMixin):
    """One model that classifies images, rejects strange ones, denoises, and fills in what is missing.

    Every class is an auto-encoder with an exact energy E_k = E_0 + its own part.  The own parts are heads of hidden
    units over one convolutional trunk, trained by cross-entropy.  E_0, which all classes share, is trained by the
    denoising loss: its gradient is to lead from noisy images to clean ones, and to what is missing.  `score_samples` is
    the energy F of all classes together and that of the trunk's features, fitted to the training rows.

    X is (n, height, width), (n, height, width, channels), or rows (n, D) of images that are flattened, channels last;
    whole numbers or floats.  Images come back as they were given.

    Parameters
    ----------
    n_hidden : hidden units of each class; ``"auto"`` is 64, and of more than 100 classes 6,400 in all, at least 4 each.
    channels : of the first layer, a multiple of 8; the other layers have twice as many.
    n_blocks : residual blocks of two convolutions after each layer that halves the image.
    n_halvings : how often the image is halved; ``"auto"``: until its longer side has about 8 pixels, at least twice.
    pooling : what the heads see: ``"flatten"``, all positions of the last layer, or ``"mean"`` over them.
    shape : height and width, perhaps channels, of images that come as rows; ``"auto"`` is a square where the number of
        columns is one (28 x 28 for 784), otherwise an image of one line, which is never moved.
    augment : how rows vary in training.  ``"shifts"`` moves them by up to ``shift`` pixels, at most an eighth of a
        side; ``"affine"`` also turns, slants and stretches them a little, as handwriting varies; ``"symmetries"`` turns
        them by quarters and mirrors them, which is wrong where that changes the class: digits, or which side of a
        rectangle is longer; ``"turns"`` is ``"affine"`` and by any angle, for rows that will come turned where
        those of `fit` are not; ``"none"`` is for columns that are no image, and for images as they are.
    input_dropout : share of the pixels left out in training.
    symmetry : a group under which no energy changes, for square images: ``"turns"`` by quarters, ``"turns and
        mirrors"``, ``"circle"``, or None.  Energies are the mean over the group, so that every pass costs 4 or 8 times
        as much.  ``"circle"`` makes the trunk of layers that turn with the image by eighths, 8 planes to a channel:
        on a CPU about as quick as without, and energies hardly change with other turns, either.  Where rows
        come turned as they are, ``augment="none"`` goes best with it.
    skip : for models without the shared energy: E_k then has -(1 - skip) |x|^2 / 2.
    denoising_weight : of the denoising loss; 0 leaves it out, the shared energy with it, and so what `denoise`,
        `inpaint` and `sample` need, and most of what `rejects` knows.
    shared_channels : of the first layer of the network of E_0; it has four times as many where it is widest.
        ``"auto"``: 32, and 16 for images of less than 16 x 16.
    noise_levels : the least and the largest standard deviation of the noise that training adds, each row its own, on
        the scale of ``scaling``: for ``"image"``, shares of the range of the pixels.

    The other parameters and attributes are those of all baselines, see `NetworkClassifier`.  ``scaling="image"`` scales
    all pixels by their common range, ``"unit"`` every pixel by its own; where pixels are in [0, 1] already ``"none"``
    keeps them.

    Attributes
    ----------
    liking_ : sorted `score_samples` of the rows held out, or else trained on.
    mean_ : the mean of the same rows.
    given_shape_ : the shape of an image as `fit` was given it; () for rows.
    """

    # what is saved beside the model
    _FITTED = (  # type: ignore[assignment]
        "classes_", "scaler_", "liking_", "mean_", "given_shape_", "calibration_energies_", "calibration_log_p_",
    )  # fmt: skip
    # what older files lack: by schema, and what parameters were then where that is not their default
    _ADDED = {  # noqa: RUF012
        4: ("n_halvings", "symmetry", "skip", "denoising_weight", "noise_levels"),
        6: ("shared_channels",),
    }
    _BEFORE: ClassVar = {"n_halvings": LEAST_HALVINGS, "denoising_weight": 0.0, "shared_channels": 0}
    _GONE: ClassVar = {"level_told": False}
    _FITTED_LATER = {  # noqa: RUF012
        4: {"mean_": _middle_of_older, "given_shape_": _rows_of_older},
        6: {"calibration_energies_": not_calibrated, "calibration_log_p_": no_class_calibrated},
    }
    _OPTIMIZER, _SCHEDULE = "adamw", "cosine"
    _SCALINGS: ClassVar = IMAGE_SCALINGS
    _CAPTURES: ClassVar = True
    _BY_ROWS: ClassVar = True
    _CLIP_NORM: ClassVar = 5.0  # without a limit the denoising loss may run off
    #: stages of falling noise of a draw
    N_LEVELS: ClassVar[int] = 30
    #: steps of ascent that fill in what is missing, at most
    N_STEPS: ClassVar[int] = 3

    n_hidden: int | str = "auto"
    channels: int = 48
    n_blocks: int = 1
    n_halvings: int | str = "auto"
    pooling: str = "flatten"
    shape: str | tuple[int, ...] = "auto"
    augment: str = "shifts"
    shift: int = 2
    input_dropout: float = 0.0
    symmetry: str | None = None
    skip: float = 0.0
    denoising_weight: float = 100.0
    shared_channels: int | str = "auto"
    noise_levels: tuple[float, float] = (0.05, 1.0)
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
        if self.n_hidden != "auto":
            whole_number(self, "n_hidden", 1, " or 'auto'")
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
            check_choices(self, symmetry=[*filter(None, SYMMETRIES), CIRCLE])
        _check_levels(self.noise_levels)
        if self.shared_channels != "auto" and self.denoising_weight:
            whole_number(self, "shared_channels", 1, " or 'auto'")
        height, width, _ = self._shape()
        for name in ("augment", "symmetry"):
            if getattr(self, name) not in ("shifts", "none", "affine", None) and height != width:
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
            network = self._build(n_classes).to(train.device)
        network.middle.copy_(train.mean(0))
        return network

    def _build(self, n_classes: int) -> ImageNetwork:
        shape = self._shape()
        heads = ImageHeads(
            shape,
            n_classes,
            default_size(self.n_hidden, int(np.clip(UNITS_OF_ALL // n_classes, FEWEST_UNITS, UNITS))),
            self.channels,
            self.n_blocks,
            self.pooling,
            n_halvings=halvings_of(shape) if isinstance(self.n_halvings, str) else self.n_halvings,
            symmetry=self.symmetry,
        )
        moves = self.augment != "none" and min(shape[:2]) > 1
        down, right = (min(self.shift, side // SHIFT_SHARE) if moves else 0 for side in shape[:2])
        how = (down, right), self.augment, self.input_dropout
        channels = self._shared_channels(shape)
        if not channels:
            return ImageNetwork(heads, *how, float(self.skip))
        low, high = self.noise_levels
        denoising = Denoising(self.denoising_weight, (float(low), float(high)))
        finder = NoiseFinder(shape, channels, OF_NOISE.get(self.symmetry, self.symmetry))
        return ImageNetwork(heads, *how, finder=finder, denoising=denoising)

    def _shared_channels(self, shape: Shape) -> int:
        """Of the network of E_0; 0 where there is none."""
        if not self.denoising_weight:
            return 0
        if isinstance(self.shared_channels, str):
            return SHARED_CHANNELS[math.prod(shape[:2]) >= SMALL**2]
        return self.shared_channels

    def _check_effort(self, network: Network, train: LabelledRows, n_steps: int) -> None:
        check_network(self, network, train, n_steps * epochs_of(self, "max_epochs", n_steps), self.batch_size)

    def _untrained(self) -> ImageNetwork:
        return self._build(len(self.classes_))

    @torch.no_grad()
    def _keep(self, network: Network, train: LabelledRows, valid: LabelledRows | None) -> None:
        assert isinstance(network, ImageNetwork)  # `_start` makes no other
        rows, held_out = (part.v.to(network.B) for part in (train, valid or train))
        self._forget_calibration()
        if network.familiarity is not None:
            network.familiarity.weight.zero_()
            network.familiarity.fit(rows, held_out, any_class(in_parts(network.energies, held_out)).std())
        self.liking_ = np.sort(any_class(in_parts(network.energies, held_out)))
        self.mean_: Array = self.scaler_.undo(held_out.double().mean(0).cpu().numpy())

    # --- scoring ------------------------------------------------------------------------------------

    @property
    def autoencoder_(self) -> Autoencoder:
        """The auto-encoders of the classes, over scaled rows: energies, vector fields, reconstructions."""
        return self._network().classes()

    @property
    def together_(self) -> Autoencoder:
        """All classes as one auto-encoder, over scaled rows; its energy, times the scale, is `score_samples`."""
        return self._network().together()

    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""
        network, X = self._network(), self._checked(self._flat(X))
        return in_chunks(X, self.scaler_, network.B, network.energies, self.precision)

    def _network(self) -> ImageNetwork:
        check_is_fitted(self)
        assert isinstance(self.model_, ImageNetwork)  # `_start` makes no other
        return self.model_

    # --- images from the energy ---------------------------------------------------------------------

    def denoise(self, X: Any, level: Any = None) -> Array:
        """Images without their noise: one step x + grad F(x) of each.

        ``level`` is the standard deviation of the noise, on the scale of ``noise_levels``, where it is known.
        """
        network, model = self._network(), self._restoring()
        if level is not None:
            if network.finder is None:
                raise InputError("`level` is for a model with a shared energy: fit with a `denoising_weight` above 0.")
            if isinstance(level, bool) or not isinstance(level, Real) or not 0 < float(level) < math.inf:
                raise InputError(f"`level` must be a number above 0; got {level!r}.")
        says = UNSAID if level is None else float(level) / float(self.noise_levels[1])

        def restore(v: Tensor) -> Tensor:
            return model.preoutput(v, self._said(torch.full_like(v, says)))[0]

        rows = self._checked(self._flat(X))
        return self._images(self._in_parts(rows, restore), X)

    def inpaint(
        self,
        X: Any,
        mask: Any,
        *,
        draw: bool = False,
        random_state: Any = 0,
        tell: Callable[[Array], object] | None = None,
    ) -> Array:
        """Images with the pixels filled in that are missing: those where ``mask`` is True, whatever X holds there.

        ``mask`` has the shape of X, or of one image, with channels or without.  The known pixels stay as they are.  The
        others start at ``mean_`` and go uphill in the energy F of images with missing pixels, to about the mean of all
        that may have been there.  With ``draw`` one of these is drawn instead, sharper and further from the truth;
        ``random_state`` decides which.  ``tell`` is told the rows after each step, or stage of a draw, at most
        `ROWS_AT_ONCE` at a time: (n, D).
        """
        network, model = self._network(), self._restoring()
        rows, unknown = self._masked(X, mask)
        start = np.where(unknown, self.mean_, rows)
        levels, seed = self._levels() if draw else [], draw_seed(random_state)

        def staged(v: Tensor) -> None:
            assert tell is not None
            tell(self.scaler_.undo(v.double().cpu().numpy()))

        def fill(v: Tensor, hidden: Tensor) -> Tensor:
            telling = None if tell is None else staged
            if draw:
                draws = torch.Generator(v.device).manual_seed(seed)  # the same whatever part a row is in
                return anneal(self._restore(model), v, hidden, levels, draws, True, telling)
            said = self._said(torch.where(hidden, MISSING, KNOWN).to(v))
            return fill_in(model, v, hidden, said, self.N_STEPS, telling)

        found = self._in_parts(start, fill, torch.tensor(unknown, device=network.B.device))
        return self._images(np.where(unknown, found, rows), X)

    def complete(self, X: Any) -> Array:
        """Images whose missing pixels (NaN) are filled: `inpaint`, as other estimators call it."""
        return self.inpaint(X, np.isnan(np.asarray(X, dtype=np.float64)))

    def sample(self, n_samples: Any = 1, *, random_state: Any = 0) -> Array:
        """Images drawn from the energy of all classes, by noise that falls: (n, ...), of the shape that `fit` saw.

        What the energy has learnt of its images shows here, and what it has not.
        """
        model = self._restoring()
        if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 1:
            raise InputError(f"`n_samples` must be a whole number of at least 1; got {n_samples!r}.")
        levels = self._levels()
        draws = torch.Generator(self._network().B.device).manual_seed(draw_seed(random_state))

        def one(v: Tensor) -> Tensor:
            return anneal(self._restore(model), v, torch.ones_like(v, dtype=torch.bool), levels, draws)

        found = self._in_parts(np.repeat(self.mean_[None], int(n_samples), 0), one)
        return found.reshape(int(n_samples), *(self.given_shape_ or (-1,)))

    def _restoring(self) -> Autoencoder:
        """The auto-encoder of F in float32: that is enough for images, and on a CPU several times as fast."""
        return copy.deepcopy(self._network().restoring()).float()

    def _said(self, said: Tensor) -> Tensor | None:
        """What is said of pixels, for a model that listens."""
        return None if self._network().finder is None else said

    def _restore(self, model: Autoencoder) -> Callable[[Tensor, float, Tensor], Tensor]:
        high = float(self.noise_levels[1])

        def restore(v: Tensor, level: float, unknown: Tensor) -> Tensor:
            return model.preoutput(v, self._said(torch.where(unknown, level / high, KNOWN).to(v)))[0]

        return restore

    def _levels(self) -> list[float]:
        """The stages of noise; without the denoising loss nothing makes the field ready for them."""
        low, high = self.noise_levels
        if not self.denoising_weight:
            raise InputError("Images are drawn from noise: fit with a `denoising_weight` above 0.")
        return falling(float(low), float(high), self.N_LEVELS)

    def _in_parts(self, rows: Array, restore: Callable[..., Tensor], *beside: Tensor) -> Array:
        """What becomes of rows (n, D), and of what stands beside them, a part at a time, in the user's units."""
        like, found = self._network().B.float(), []
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


def in_parts(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What a function makes of rows, some at a time."""
    return torch.cat([function(some) for some in rows.split(ROWS_AT_ONCE)])


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
