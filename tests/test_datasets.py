import os
from pathlib import Path

import numpy as np
import pytest

from energate.datasets import make_rectangles
from energate.errors import InputError


def sides(X: np.ndarray, side: int = 28) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Height, width and corner of each outline, read off the pixels."""
    images = X.reshape(-1, side, side) > 0
    rows, columns = images.any(2), images.any(1)
    top, left = rows.argmax(1), columns.argmax(1)
    return rows.sum(1), columns.sum(1), np.stack([top, left], 1)


def obeys_the_rule(X: np.ndarray, y: np.ndarray) -> None:
    height, width, corner = sides(X)
    images = X.reshape(-1, 28, 28)
    assert set(np.unique(X)) == {0.0, 1.0}
    assert height.min() >= 4
    assert width.min() >= 4
    assert np.abs(height - width).min() >= 3
    np.testing.assert_array_equal(y, height > width)
    # An outline of one pixel has exactly this many ones, and all four edges are full.
    np.testing.assert_array_equal(images.sum((1, 2)), 2 * (height + width) - 4)
    i = np.arange(len(X))
    np.testing.assert_array_equal(images[i, corner[:, 0]].sum(1), width)
    np.testing.assert_array_equal(images[i, :, corner[:, 1]].sum(1), height)


def chi_square_per_cell(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).mean())


def test_rectangles_obey_the_published_rule() -> None:
    X, y = make_rectangles(5000, seed=3)
    assert X.shape == (5000, 784)
    assert X.dtype == np.float32
    obeys_the_rule(X, y)


def test_rectangles_sizes_and_places_are_uniform() -> None:
    X, _ = make_rectangles(50_000, seed=0)
    height, width, corner = sides(X)
    pairs = [(h, w) for h in range(4, 29) for w in range(4, 29) if abs(h - w) >= 3]
    table = np.zeros((29, 29))
    np.add.at(table, (height, width), 1)
    counts = np.array([table[pair] for pair in pairs])
    assert counts.sum() == 50_000
    assert 0.8 < chi_square_per_cell(counts, np.full(len(pairs), 50_000 / len(pairs))) < 1.2
    tops = np.bincount(corner[height == 10, 0], minlength=19)
    assert len(tops) == 19  # 28 - 10 + 1 places
    assert 0.2 < chi_square_per_cell(tops, np.full(19, tops.mean())) < 2.5


def test_rectangles_are_deterministic_under_a_seed() -> None:
    first, again, other = (make_rectangles(100, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_rectangles_refuse_bad_sizes() -> None:
    with pytest.raises(InputError, match="n_rows"):
        make_rectangles(0)
    with pytest.raises(InputError, match="side"):
        make_rectangles(10, side=5)


@pytest.mark.data
def test_the_original_rectangles_obey_the_same_rule() -> None:
    """The generator states the rule of the published file: its rows pass the same checks."""
    path = Path(os.environ["ENERGATE_DATA"]) / "single" / "rectangles.npz"
    with np.load(path, allow_pickle=False) as file:
        for part in ("train", "valid", "test"):
            obeys_the_rule(file[f"x_{part}"].astype(np.float32), file[f"y_{part}"])
        original = sides(file["x_test"])
    generated = sides(make_rectangles(50_000, seed=0)[0])
    for ours, theirs in zip(generated, original, strict=True):
        np.testing.assert_allclose(ours.mean(0), theirs.mean(0), rtol=0.02)
        np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.03)
