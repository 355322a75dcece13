"""Pairs of images, the second a known transformation of the first; deterministic under a seed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError

Pairs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]


def make_image_pairs(
    n_rows: int,
    kind: str = "shift",
    *,
    side: int = 13,
    max_shift: int = 3,
    n_angles: int = 12,
    smoothness: float = 0.7,
    images: Any = None,
    seed: int = 0,
) -> Pairs:
    """Random images, their transformed copies, and which transformation it was.

    Every image has mean 0 and pixels of standard deviation 1, but for blank ones, which stay 0.

    Parameters
    ----------
    kind, max_shift, n_angles : the transformations of `transform_images`, all equally likely.
    smoothness : standard deviation, in pixels, of the blur that makes images out of white noise; 0 is no blur.
    images : instead of noise, (n, side * side) images to draw from, for instance scikit-learn's digits; ``side``
        is then read off them.

    Returns
    -------
    X, Y : (n_rows, side * side), the images before and after.
    t : (n_rows,), the number of the transformation.
    """
    if n_rows < 1:
        raise InputError(f"`n_rows` must be at least 1; got {n_rows}.")
    if smoothness < 0:
        raise InputError(f"`smoothness` must be at least 0; got {smoothness}.")
    rng = np.random.default_rng(seed)
    if images is None:
        _, maps = _transformations(kind, side, max_shift, n_angles)
        X = rng.standard_normal((n_rows, side * side)) @ _blur(side, smoothness)
    else:
        images, side = _checked(images)
        _, maps = _transformations(kind, side, max_shift, n_angles)
        X = images[rng.integers(len(images), size=n_rows)]
    t = rng.integers(len(maps), size=n_rows)
    identity = np.full(n_rows, len(maps) // 2 if kind == "shift" else 0)
    before = transform_images(X, identity, kind, max_shift=max_shift, n_angles=n_angles)
    return before, transform_images(before, t, kind, max_shift=max_shift, n_angles=n_angles), t


def transform_images(
    images: Any, t: Any, kind: str = "shift", *, max_shift: int = 3, n_angles: int = 12
) -> NDArray[np.float32]:
    """Images (n, side * side), each changed by the transformation of its number in t (n,), then normalised.

    ``kind="shift"`` moves by -max_shift..max_shift pixels along both axes; what leaves on one side comes in on the
    other.  Its numbers are ``(down + max_shift) * (2 * max_shift + 1) + right + max_shift``.  ``kind="rotate"``
    turns counter-clockwise about the centre by t * 360 / n_angles degrees, between pixels by interpolation; outside of
    the largest disc the result is 0.
    """
    images, side = _checked(images)
    window, maps = _transformations(kind, side, max_shift, n_angles)
    t = np.asarray(t)
    if t.shape != images.shape[:1] or t.dtype.kind not in "iu" or t.min() < 0 or t.max() >= len(maps):
        raise InputError(
            f"`t` must hold a whole number from 0 to {len(maps) - 1} for each of the {len(images)} images."
        )
    result = np.empty_like(images)
    for i, matrix in enumerate(maps):
        result[t == i] = images[t == i] @ matrix.T
    result = (result - (result @ window / window.sum())[:, None]) * window
    size = np.sqrt((result * result).sum(1, keepdims=True) / window.sum())
    return (result / np.where(size > 1e-9, size, 1.0)).astype(np.float32)  # a blank image stays blank


def _checked(images: Any) -> tuple[NDArray[np.float64], int]:
    images = np.asarray(images, dtype=np.float64)
    side = int(np.sqrt(images.shape[-1])) if images.ndim else 0
    if images.ndim != 2 or not len(images) or side**2 != images.shape[1]:
        raise InputError(
            f"`images` must be (n, side * side), square images as rows; got shape {images.shape}. "
            "Flatten them with images.reshape(len(images), -1)."
        )
    return images, side


def _transformations(
    kind: str, side: int, max_shift: int, n_angles: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The pixels that are seen (D,), and a matrix (T, D, D) for every transformation."""
    if side < 3:
        raise InputError(f"`side` must be at least 3; got {side}.")
    if kind == "shift":
        if not 0 <= max_shift <= (side - 1) // 2:
            raise InputError(f"`max_shift` must be from 0 to {(side - 1) // 2} for a side of {side}; got {max_shift}.")
        return np.ones(side * side), _shifts(side, max_shift)
    if kind == "rotate":
        if n_angles < 1:
            raise InputError(f"`n_angles` must be at least 1; got {n_angles}.")
        return _disc(side), _rotations(side, n_angles)
    raise InputError(f"`kind` must be 'shift' or 'rotate'; got {kind!r}.")


def _blur(side: int, smoothness: float) -> NDArray[np.float64]:
    if smoothness == 0:
        return np.eye(side * side)
    gap = np.abs(np.subtract.outer(np.arange(side), np.arange(side)))
    line = np.exp(-(np.minimum(gap, side - gap) ** 2) / (2 * smoothness**2))  # around the edges: no seam after a shift
    return np.kron(line, line)


def _shifts(side: int, max_shift: int) -> NDArray[np.float64]:
    line = [np.roll(np.eye(side), step, axis=0) for step in range(-max_shift, max_shift + 1)]
    return np.stack([np.kron(down, right) for down in line for right in line])  # (T, D, D)


def _disc(side: int) -> NDArray[np.float64]:
    place = np.arange(side) - (side - 1) / 2
    return (np.hypot(*np.meshgrid(place, place)) <= side / 2).astype(np.float64).ravel()


def _rotations(side: int, n_angles: int) -> NDArray[np.float64]:
    """Each row of a matrix holds the four weights of bilinear interpolation at where the pixel came from."""
    place = np.arange(side) - (side - 1) / 2
    y, x = (grid.ravel() for grid in np.meshgrid(place, place, indexing="ij"))
    angle = 2 * np.pi * np.arange(n_angles)[:, None] / n_angles
    from_y = np.cos(angle) * y + np.sin(angle) * x + (side - 1) / 2  # (T, D)
    from_x = np.cos(angle) * x - np.sin(angle) * y + (side - 1) / 2
    grid = np.arange(side)
    weight_y = np.maximum(0, 1 - np.abs(from_y[..., None] - grid))  # (T, D, side)
    weight_x = np.maximum(0, 1 - np.abs(from_x[..., None] - grid))
    return (weight_y[..., :, None] * weight_x[..., None, :]).reshape(n_angles, side * side, side * side)
