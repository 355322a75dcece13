"""Digits turned, on noise and on photographs; rectangles on photographs: the rules of Larochelle et al. (2007)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.datasets.generators import draw_rectangles, filled_rectangles, pairs_of_sides
from energate.errors import InputError

Images = NDArray[np.float32]
Labels = NDArray[np.int64]

_SIDE = 28
_SIGMA = 0.3  # of the Gaussian that reads a turned image between pixels
_TAPS = 4  # pixels per axis that it reads: the fifth weighs 2e-10 of the first
_BATCH = 256  # images at once, so that their arrays fit into a processor's cache


def rotate_mnist(digits: Any, angles: Any) -> Images:
    """Digits (n, side, side), each turned by its angle in radians and then transposed, as rows (n, side * side).

    For output pixel (i, j), with y and x counted from the centre, the source point is
    (cos t * y + sin t * x, -sin t * y + cos t * x); its value is the mean of the source pixels weighted by a Gaussian
    of 0.3 pixels around that point, and 0 where all weights underflow.  The values keep their scale: divide the bytes
    of MNIST by 256 for those of `mnist-rotated`.
    """
    digits, angles = _squares(digits, "digits"), np.asarray(angles, dtype=np.float64)
    if angles.shape != digits.shape[:1]:
        raise InputError(f"`angles` must hold one angle for each of the {len(digits)} digits; got {angles.shape}.")
    side = digits.shape[1]
    result = np.empty((len(digits), side, side), dtype=np.float32)
    for i in range(0, len(digits), _BATCH):
        turned = _rotate(digits[i : i + _BATCH].astype(np.float64), angles[i : i + _BATCH])
        result[i : i + _BATCH] = turned.transpose(0, 2, 1)
    return result.reshape(len(digits), side * side)


def _rotate(images: NDArray[np.float64], angles: NDArray[np.float64]) -> NDArray[np.float64]:
    side = images.shape[1]
    place = np.arange(side) - (side - 1) / 2
    sine, cosine = np.sin(angles)[:, None, None], np.cos(angles)[:, None, None]
    row = cosine * place[:, None] + sine * place + (side - 1) / 2  # (n, side, side): the source point
    column = -sine * place[:, None] + cosine * place + (side - 1) / 2
    first_row, row_weights = _taps(row, side)
    first_column, column_weights = _taps(column, side)
    offset = np.arange(len(images))[:, None, None] * side * side + first_row * side + first_column
    flat = images.ravel()
    total = np.zeros_like(row)
    for a in range(_TAPS):
        line = np.zeros_like(row)
        for b in range(_TAPS):
            line += column_weights[b] * flat[offset + (a * side + b)]
        total += row_weights[a] * line
    weight = sum(row_weights) * sum(column_weights)  # the Gaussian is a product, and so is the sum of its weights
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)


def _taps(point: NDArray[np.float64], side: int) -> tuple[NDArray[np.int64], list[NDArray[np.float64]]]:
    """The first of the pixels nearest to each point along one axis, and the weight of each of them."""
    first = np.clip(np.floor(point).astype(np.int64) - 1, 0, side - _TAPS)
    gap = point - first
    return first, [np.exp(-((gap - a) ** 2) / (2 * _SIGMA**2)) for a in range(_TAPS)]


def add_noise(digits: Any, seed: int | np.random.Generator = 0) -> Images:
    """Digits (n, side, side) with values in [0, 1] on uniform noise: the larger of the two, transposed, as rows.

    The rule of `mnist-random`.
    """
    digits = _squares(digits, "digits")
    noise = np.random.default_rng(seed).random(digits.shape, dtype=np.float32)
    return _laid_on(digits, noise)


def draw_patches(
    photographs: Sequence[Any],
    n_rows: int,
    seed: int | np.random.Generator = 0,
    *,
    side: int = _SIDE,
    min_variance: float | None = 1000.0,
) -> Images:
    """Squares (n_rows, side, side), cut from grey photographs (0 to 255) and divided by 255.

    A photograph, then a place in it, is drawn uniformly, and drawn again where the patch has a variance (on the scale
    0 to 255) of ``min_variance`` or less; None takes every patch.
    """
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(photograph) for photograph in photographs]
    for i, array in enumerate(arrays):
        if array.ndim != 2 or min(array.shape) < side or array.dtype != np.uint8:
            raise InputError(
                f"`photographs` must be grey images (height, width) of type uint8, at least {side} pixels a side; "
                f"number {i} has shape {array.shape} and type {array.dtype}."
            )
    # Drawing again is the same as drawing only from the places that pass: photographs weigh by their share of those.
    allowed = [_places(array, side, min_variance) for array in arrays]
    share = np.array([places.mean() for places in allowed])
    if not share.sum() > 0:
        raise InputError(f"`photographs` must have a patch whose variance is above {min_variance}; none has.")
    which = rng.choice(len(arrays), size=n_rows, p=share / share.sum())
    result = np.empty((n_rows, side, side), dtype=np.float32)
    for i, (array, places) in enumerate(zip(arrays, allowed, strict=True)):
        rows = np.flatnonzero(which == i)
        top, left = np.divmod(rng.choice(np.flatnonzero(places), size=len(rows)), places.shape[1])
        result[rows] = np.lib.stride_tricks.sliding_window_view(array, (side, side))[top, left]
    result /= 255
    return result


def _places(photograph: NDArray[np.uint8], side: int, min_variance: float | None) -> NDArray[np.bool_]:
    """Which top left corners have a patch with enough variance, from sums over rectangles."""
    if min_variance is None:
        return np.ones(np.subtract(photograph.shape, side - 1), dtype=np.bool_)
    values = photograph.astype(np.int64)
    total, squares = (_window_sums(array, side) for array in (values, values * values))
    return squares * side**2 - total**2 > min_variance * side**4  # in whole numbers: no rounding


def _window_sums(values: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    table = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return table[side:, side:] - table[:-side, side:] - table[side:, :-side] + table[:-side, :-side]


def put_on_photographs(digits: Any, photographs: Sequence[Any], seed: int | np.random.Generator = 0) -> Images:
    """Digits (n, side, side) with values in [0, 1] on patches: the larger of the two, transposed, as rows.

    The rule of `mnist-images` and, with digits that `rotate_mnist` has turned, of `mnist-rotated-images`.
    """
    digits = _squares(digits, "digits")
    return _laid_on(digits, draw_patches(photographs, len(digits), seed, side=digits.shape[1]))


def make_rectangles_images(
    n_rows: int, photographs: Sequence[Any], seed: int | np.random.Generator = 0
) -> tuple[Images, Labels]:
    """One patch of a photograph inside a rectangle, another outside, and whether the rectangle is taller than wide.

    The rule of `rectangles-images`: sides of 10 to 28 pixels that differ by at least 5, an area of 25 to 75 % of the
    image, place uniform where it fits.  Patches may be flat.
    """
    if n_rows < 1:
        raise InputError(f"`n_rows` must be at least 1; got {n_rows}.")
    rng = np.random.default_rng(seed)
    pairs = pairs_of_sides(10, _SIDE)
    area = pairs.prod(1) / _SIDE**2
    pairs = pairs[(np.abs(pairs[:, 0] - pairs[:, 1]) >= 5) & (area >= 0.25) & (area <= 0.75)]
    extent, start = draw_rectangles(rng, n_rows, pairs, _SIDE)
    result = draw_patches(photographs, n_rows, rng, min_variance=None)
    inside = draw_patches(photographs, n_rows, rng, min_variance=None)
    np.copyto(result, inside, where=filled_rectangles(extent, start, _SIDE))
    return result.reshape(n_rows, -1), (extent[:, 0] > extent[:, 1]).astype(np.int64)


def _laid_on(digits: NDArray[Any], ground: Images) -> Images:
    """The larger of digits and ground, transposed, as rows; written over ``ground``, which may be large."""
    for i in range(0, len(ground), _BATCH):
        batch = slice(i, i + _BATCH)
        ground[batch] = np.maximum(digits[batch], ground[batch]).transpose(0, 2, 1)
    return ground.reshape(len(ground), -1)


def _squares(images: Any, name: str) -> NDArray[Any]:
    images = np.asarray(images)
    if images.ndim != 3 or images.shape[1] != images.shape[2] or images.shape[1] < _TAPS:
        raise InputError(
            f"`{name}` must be (n, side, side), square images of at least {_TAPS} pixels a side; "
            f"got shape {images.shape}. Use X.reshape(-1, 28, 28)."
        )
    return images
