"""The rules of Larochelle et al. (2007): rectangles, convex sets, digits turned, on noise and on photographs.

All are deterministic under a seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError

Images = NDArray[np.float32]
Labels = NDArray[np.int64]

_SIDE = 28
_SETS = 8192  # convex candidates at once, so that their arrays fit into a processor's cache
_DIGITS = 256  # digits at once, for the same reason
_SIGMA = 0.3  # of the Gaussian that reads a turned image between pixels
_TAPS = 4  # pixels per axis that it reads: the fifth weighs 2e-10 of the first

# --- rectangles --------------------------------------------------------------------------------------------------


def make_rectangles(n_rows: int, seed: int = 0, side: int = 28) -> tuple[Images, Labels]:
    """Outlines of rectangles, and whether each is taller than wide.

    The rule of the `rectangles` set of Larochelle et al. (2007): height and width uniform over all
    pairs in 4..side that differ by at least 3, place uniform where the rectangle fits, an outline of
    one pixel with value 1 on a ground of 0.

    Returns
    -------
    X : (n_rows, side * side), values 0 and 1.
    y : (n_rows,), 1 where the rectangle is taller than wide, else 0.
    """
    if n_rows < 1 or side < 8:
        raise InputError(f"`n_rows` must be at least 1 and `side` at least 8; got {n_rows} and {side}.")
    rng = np.random.default_rng(seed)
    pairs = _pairs_of_sides(4, side)
    extent, start = _draw_rectangles(rng, n_rows, pairs[np.abs(pairs[:, 0] - pairs[:, 1]) >= 3], side)
    outline = _filled_rectangles(extent, start, side) & ~_filled_rectangles(extent - 2, start + 1, side)
    return outline.reshape(n_rows, side * side).astype(np.float32), (extent[:, 0] > extent[:, 1]).astype(np.int64)


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
    pairs = _pairs_of_sides(10, _SIDE)
    area = pairs.prod(1) / _SIDE**2
    pairs = pairs[(np.abs(pairs[:, 0] - pairs[:, 1]) >= 5) & (area >= 0.25) & (area <= 0.75)]
    extent, start = _draw_rectangles(rng, n_rows, pairs, _SIDE)
    result = draw_patches(photographs, n_rows, rng, min_variance=None)
    inside = draw_patches(photographs, n_rows, rng, min_variance=None)
    np.copyto(result, inside, where=_filled_rectangles(extent, start, _SIDE))
    return result.reshape(n_rows, -1), (extent[:, 0] > extent[:, 1]).astype(np.int64)


def _pairs_of_sides(shortest: int, longest: int) -> NDArray[np.int64]:
    """Every pair (height, width) of whole numbers from ``shortest`` to ``longest``."""
    lengths = np.arange(shortest, longest + 1)
    return np.stack(np.meshgrid(lengths, lengths, indexing="ij"), -1).reshape(-1, 2)


def _draw_rectangles(
    rng: np.random.Generator, n_rows: int, pairs: NDArray[np.int64], side: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sides (n_rows, 2), uniform over ``pairs``, and top left corners, uniform where the rectangle fits."""
    extent = pairs[rng.integers(len(pairs), size=n_rows)]
    return extent, (rng.random((n_rows, 2)) * (side - extent + 1)).astype(np.int64)


def _filled_rectangles(extent: NDArray[np.int64], start: NDArray[np.int64], side: int) -> NDArray[np.bool_]:
    """Masks (n, side, side) of the pixels of rectangles with these sides and top left corners."""
    position = np.arange(side)
    within = (position >= start[..., None]) & (position < (start + extent)[..., None])  # (n, 2, side)
    return within[:, 0, :, None] & within[:, 1, None, :]


# --- convex sets -------------------------------------------------------------------------------------------------


def make_convex(n_rows: int, seed: int = 0, side: int = 28) -> tuple[Images, Labels]:
    """White sets on black, half of them convex.

    After the text of the `convex` set of Larochelle et al. (2007).  A convex set is an intersection of half-planes
    of uniform place and direction, a geometric(0.195) number of them, of at least 19 pixels.  A set that is not
    convex is a union of 2 to 4 intersections of a geometric(0.07) number, at least 10 pixels each, that fails
    `is_convex`.  The text does not say how the areas of the classes were made equal; here some sets are dropped
    at random, by their area, so that the mean area is 0.385 of the image in both classes, as in the published rows.

    Returns
    -------
    X : (n_rows, side * side), values 0 and 1.
    y : (n_rows,), 1 where the set is convex, else 0; as many of each, up to one.
    """
    if n_rows < 1 or side < 8:
        raise InputError(f"`n_rows` must be at least 1 and `side` at least 8; got {n_rows} and {side}.")
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n_rows) % 2)
    X = np.empty((n_rows, side, side), dtype=np.float32)
    for label, draw in ((0, _draw_unions), (1, _draw_convex)):
        images = [np.empty((0, side, side), dtype=np.bool_)]
        while (missing := int((y == label).sum()) - sum(map(len, images))) > 0:
            images.append(draw(rng, side)[:missing])
        X[y == label] = np.concatenate(images)
    return X.reshape(n_rows, side * side), y.astype(np.int64)


def is_convex(images: Any) -> NDArray[np.bool_]:
    """Whether every pixel within the convex hull of an image's lit pixels is lit too, for (n, side, side) images.

    Of every row only the first and the last lit pixel can be corners of the hull.  So the hull spans, in row k,
    what the straight lines between those of any row above and any row below reach.
    """
    images = np.asarray(images) > 0
    if images.ndim != 3:
        raise InputError(f"`images` must be (n, height, width); got shape {images.shape}. Use X.reshape(-1, 28, 28).")
    parts = [_is_convex(images[i : i + _SETS]) for i in range(0, len(images), _SETS)]
    return np.concatenate([np.empty(0, dtype=np.bool_), *parts])


def _is_convex(images: NDArray[np.bool_]) -> NDArray[np.bool_]:
    height, width = images.shape[1:]
    rows = np.ascontiguousarray(images.transpose(1, 0, 2))  # (height, n, width)
    lit, count = rows.any(2), rows.sum(2)
    # A dark row is no corner: its ends lie so far inside that its lines decide nothing.
    first = np.where(lit, rows.argmax(2), 1e6).astype(np.float32)  # (height, n)
    last = np.where(lit, width - 1 - rows[:, :, ::-1].argmax(2), -1e6).astype(np.float32)
    start, stop = first.copy(), last.copy()
    for i in range(height):
        for j in range(i + 2, height):
            share = (np.arange(1, j - i, dtype=np.float32) / (j - i))[:, None]
            between = slice(i + 1, j)
            np.minimum(start[between], first[i] + share * (first[j] - first[i]), out=start[between])
            np.maximum(stop[between], last[i] + share * (last[j] - last[i]), out=stop[between])
    # Crossings are whole numbers or at least 1 / height away from them: 1e-3 only absorbs rounding.
    needed = np.maximum(0, np.floor(stop + 1e-3) - np.ceil(start - 1e-3) + 1)
    return (needed == count).all(0)


def _draw_convex(rng: np.random.Generator, side: int) -> NDArray[np.bool_]:
    """A batch of convex sets; small ones are dropped a little more often, which lifts the mean area from 0.349."""
    images = _filled(*_intersections(rng, 0.195, 19, side), side)
    return images[rng.random(len(images)) < np.exp(0.457 * (images.mean((1, 2)) - 1))]


def _draw_unions(rng: np.random.Generator, side: int) -> NDArray[np.bool_]:
    """A batch of sets that are not convex; large ones are dropped more often, which lowers the mean area from 0.60."""
    start, stop = _intersections(rng, 0.07, 10, side)
    sizes = rng.integers(2, 5, size=len(start) // 4)
    # A power of the area, not of e: so the areas get the spread of the published ones too.
    limit = 0.1 * rng.random(len(sizes)) ** (-1 / 1.2)
    images = np.zeros((len(sizes), side, side), dtype=np.bool_)
    first = np.cumsum(sizes) - sizes
    for i in range(4):
        rows = np.flatnonzero((sizes > i) & (images.mean((1, 2)) <= limit))
        images[rows] |= _filled(start[first[rows] + i], stop[first[rows] + i], side)
    images = images[images.mean((1, 2)) <= limit]
    return images[~is_convex(images)]


def _intersections(
    rng: np.random.Generator, p: float, least: int, side: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """First and last column (n, side), row by row, of those of a batch of intersections with ``least`` pixels.

    An intersection of half-planes is one stretch in each row, so its pixels need not be held.
    """
    number = rng.geometric(p, size=_SETS)
    start, stop = np.zeros((_SETS, side)), np.full((_SETS, side), side - 1.0)
    done = []
    while len(number):
        angle, x, y = rng.random((3, len(number), 1)) * np.array([2 * np.pi, side, side])[:, None, None]
        edge = x - np.tan(angle) * (np.arange(side) + 0.5 - y) - 0.5  # (n, side): where the border cuts the rows
        to_the_right = np.cos(angle) > 0
        start = np.maximum(start, np.where(to_the_right, np.ceil(edge), 0))
        stop = np.minimum(stop, np.where(to_the_right, side - 1, np.floor(edge)))
        large = np.maximum(0, stop - start + 1).sum(1) >= least  # more half-planes only make it smaller
        number = number - 1
        done.append((start[large & (number == 0)], stop[large & (number == 0)]))
        more = large & (number > 0)
        number, start, stop = number[more], start[more], stop[more]
    found = np.concatenate([np.stack(pair) for pair in done], axis=1)  # (2, n, side), by number of half-planes
    start, stop = found[:, rng.permutation(found.shape[1])]
    return start, stop


def _filled(start: NDArray[np.float64], stop: NDArray[np.float64], side: int) -> NDArray[np.bool_]:
    column = np.arange(side)
    return (column >= start[..., None]) & (column <= stop[..., None])


# --- digits and photographs --------------------------------------------------------------------------------------


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
    for i in range(0, len(digits), _DIGITS):
        turned = _rotate(digits[i : i + _DIGITS].astype(np.float64), angles[i : i + _DIGITS])
        result[i : i + _DIGITS] = turned.transpose(0, 2, 1)
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


def _laid_on(digits: NDArray[Any], ground: Images) -> Images:
    """The larger of digits and ground, transposed, as rows; written over ``ground``, which may be large."""
    for i in range(0, len(ground), _DIGITS):
        batch = slice(i, i + _DIGITS)
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
