"""Images of convex and of non-convex sets, by rule, and the test of which is which."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError

#: Candidates are drawn in batches of this size, whose arrays fit into a processor's cache.
_BATCH = 8192


def make_convex(n_rows: int, seed: int = 0, side: int = 28) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
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
    parts = [_is_convex(images[i : i + _BATCH]) for i in range(0, len(images), _BATCH)]
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
    number = rng.geometric(p, size=_BATCH)
    start, stop = np.zeros((_BATCH, side)), np.full((_BATCH, side), side - 1.0)
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
