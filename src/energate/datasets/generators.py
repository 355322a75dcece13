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
    lengths = np.arange(4, side + 1)
    pairs = np.stack(np.meshgrid(lengths, lengths, indexing="ij"), -1).reshape(-1, 2)
    pairs = pairs[np.abs(pairs[:, 0] - pairs[:, 1]) >= 3]
    extent = pairs[rng.integers(len(pairs), size=n_rows)]  # (n, 2): height, width
    start = (rng.random((n_rows, 2)) * (side - extent + 1)).astype(np.int64)  # uniform where it fits
    position = np.arange(side)
    outer = (position >= start[..., None]) & (position < (start + extent)[..., None])  # (n, 2, side)
    inner = (position > start[..., None]) & (position < (start + extent - 1)[..., None])
    inside_outer = outer[:, 0, :, None] & outer[:, 1, None, :]  # (n, side, side)
    inside_inner = inner[:, 0, :, None] & inner[:, 1, None, :]
    X = (inside_outer & ~inside_inner).reshape(n_rows, side * side).astype(np.float32)
    return X, (extent[:, 0] > extent[:, 1]).astype(np.int64)
