"""Data sets made by rule, deterministic under a seed."""

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError


def make_rectangles(n_rows: int, seed: int = 0, side: int = 28) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
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
    pairs = pairs_of_sides(4, side)
    extent, start = draw_rectangles(rng, n_rows, pairs[np.abs(pairs[:, 0] - pairs[:, 1]) >= 3], side)
    outline = filled_rectangles(extent, start, side) & ~filled_rectangles(extent - 2, start + 1, side)
    return outline.reshape(n_rows, side * side).astype(np.float32), (extent[:, 0] > extent[:, 1]).astype(np.int64)


def pairs_of_sides(shortest: int, longest: int) -> NDArray[np.int64]:
    """Every pair (height, width) of whole numbers from ``shortest`` to ``longest``."""
    lengths = np.arange(shortest, longest + 1)
    return np.stack(np.meshgrid(lengths, lengths, indexing="ij"), -1).reshape(-1, 2)


def draw_rectangles(
    rng: np.random.Generator, n_rows: int, pairs: NDArray[np.int64], side: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sides (n_rows, 2), uniform over ``pairs``, and top left corners, uniform where the rectangle fits."""
    extent = pairs[rng.integers(len(pairs), size=n_rows)]
    return extent, (rng.random((n_rows, 2)) * (side - extent + 1)).astype(np.int64)


def filled_rectangles(extent: NDArray[np.int64], start: NDArray[np.int64], side: int) -> NDArray[np.bool_]:
    """Masks (n, side, side) of the pixels of rectangles with these sides and top left corners."""
    position = np.arange(side)
    within = (position >= start[..., None]) & (position < (start + extent)[..., None])  # (n, 2, side)
    return within[:, 0, :, None] & within[:, 1, None, :]
