import functools
import http.server
import io
import os
import re
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from energate.datasets import (
    NAMES,
    Dataset,
    Description,
    add_noise,
    describe_dataset,
    draw_patches,
    is_convex,
    load_dataset,
    load_table,
    make_convex,
    make_rectangles,
    make_rectangles_images,
    put_on_photographs,
    rotate_mnist,
    sources,
    suite,
)
from energate.errors import InputError, MissingExtraError
from energate.files import sha256_of

DOCS = Path(__file__).parents[2] / "docs" / "datasets.md"


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


# --- convex --------------------------------------------------------------------------------------------------------


def hull_is_lit(image: np.ndarray) -> bool:
    """The slow way: is every pixel within all half-planes through two lit pixels, that hold all lit ones, lit?"""
    lit, grid = np.argwhere(image), np.argwhere(np.ones_like(image))
    inside = np.ones(len(grid), dtype=bool)
    for a in lit:
        for b in lit:
            normal = np.array([b[1] - a[1], a[0] - b[0]])
            if (b != a).any() and ((lit - a) @ normal <= 0).all():
                inside &= (grid - a) @ normal <= 0
    # All lit pixels on one line: between the first and the last of them, in the order of reading.
    key, keys = grid @ [1000, 1], lit @ [1000, 1]
    collinear = np.linalg.matrix_rank(lit - lit[0]) < 2
    inside &= (key >= keys.min()) & (key <= keys.max()) if collinear else True
    return bool(image.astype(bool).ravel()[inside].all())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=2, max_size=25))
def test_is_convex_agrees_with_half_planes(pixels: list[tuple[int, int]]) -> None:
    image = np.zeros((6, 7), dtype=np.uint8)
    image[tuple(np.array(pixels).T)] = 1
    assert is_convex(image[None]).item() == hull_is_lit(image)
    assert is_convex(image.T[None]).item() == hull_is_lit(image)


def test_is_convex_on_cases_drawn_by_hand() -> None:
    images = np.zeros((7, 8, 8))
    images[0, 2:5, 1:7] = 1  # a block
    images[1, 2:5, 1:7] = images[1, 5, 1] = 1  # with a foot: still convex
    images[2, 2:5, 1:7] = images[2, 6, 1] = 1  # with a foot that does not touch
    images[3, [0, 2], [0, 1]] = 1  # no pixel between these two
    images[4, [0, 4], [0, 2]] = 1  # one pixel between them, dark
    images[5, 2, [1, 3]] = 1  # a gap in a row
    np.testing.assert_array_equal(is_convex(images), [True, True, False, True, False, False, True])  # the last is empty
    assert is_convex(np.zeros((0, 8, 8))).shape == (0,)
    with pytest.raises(InputError, match=r"must be \(n, height, width\); got shape \(8, 64\)"):
        is_convex(np.zeros((8, 64)))


def test_convex_sets_are_convex_and_the_others_are_not() -> None:
    X, y = make_convex(6001, seed=5)
    assert (X.shape, X.dtype, y.dtype) == ((6001, 784), np.float32, np.int64)
    assert set(np.unique(X)) == {0.0, 1.0}
    np.testing.assert_array_equal(is_convex(X.reshape(-1, 28, 28)), y == 1)
    assert abs((y == 0).sum() - (y == 1).sum()) == 1
    area = X.sum(1)
    assert area[y == 1].min() >= 19
    assert area[y == 0].min() >= 10
    for label in (0, 1):  # of the original rows the mean is 0.385, the deviation 0.29 and 0.31
        assert area[y == label].mean() / 784 == pytest.approx(0.385, abs=0.025)
        assert 0.25 < area[y == label].std() / 784 < 0.31
    assert 0.4 < y[:3000].mean() < 0.6  # not sorted by class


def test_convex_is_deterministic_and_refuses_bad_sizes() -> None:
    first, again, other = (make_convex(40, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).any()
    X, y = make_convex(1, side=16)
    assert (X.shape, y.tolist()) == ((1, 256), [0])
    for arguments in ({"n_rows": 0}, {"n_rows": 3, "side": 4}):
        with pytest.raises(InputError, match=r"`n_rows` must be at least 1 and `side` at least 8"):
            make_convex(**arguments)


# --- digits turned, on noise, on photographs -----------------------------------------------------------------------


def turned_slowly(image: np.ndarray, t: float) -> np.ndarray:
    """The published rule as it stands: all pixels weigh in."""
    side = len(image)
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    row = np.cos(t) * y + np.sin(t) * x + (side - 1) / 2
    column = -np.sin(t) * y + np.cos(t) * x + (side - 1) / 2
    gaps = [np.subtract.outer(point, np.arange(side)) ** 2 for point in (row, column)]
    weight = np.exp(-(gaps[0][..., :, None] + gaps[1][..., None, :]) / (2 * 0.3**2))
    total = weight.sum((2, 3))
    return np.divide((weight * image).sum((2, 3)), total, out=np.zeros_like(total), where=total > 0).T.ravel()


@given(st.integers(0, 2**32 - 1), st.floats(-10, 10), st.sampled_from([4, 5, 28]))
def test_rotation_equals_the_sum_over_all_pixels(seed: int, angle: float, side: int) -> None:
    image = np.random.default_rng(seed).random((1, side, side))
    np.testing.assert_allclose(rotate_mnist(image, [angle])[0], turned_slowly(image[0], angle), atol=1e-7, rtol=0)


def test_rotation_where_all_weights_underflow_is_zero() -> None:
    image = np.ones((1, 80, 80))  # its corners come from 16 pixels outside
    turned = rotate_mnist(image, [np.pi / 4])[0].reshape(80, 80)
    assert turned[0, 0] == turned[79, 79] == 0
    assert turned[40, 40] == pytest.approx(1)


def test_rotation_of_many_is_each_alone_and_a_quarter_turn_moves_pixels() -> None:
    rng = np.random.default_rng(0)
    images, angles = rng.random((300, 8, 8)), rng.random(300) * 6
    alone = [rotate_mnist(images[i : i + 1], angles[i : i + 1])[0] for i in (0, 255, 256, 299)]
    np.testing.assert_allclose(rotate_mnist(images, angles)[[0, 255, 256, 299]], alone, atol=1e-6)
    dot = np.zeros((1, 9, 9))
    dot[0, 2, 4] = 1  # above the centre
    found = np.unravel_index(rotate_mnist(dot, [np.pi / 2])[0].argmax(), (9, 9))
    assert found == (2, 4)  # turned to (4, 2), then transposed
    assert rotate_mnist(np.zeros((0, 28, 28)), []).shape == (0, 784)


def test_images_and_angles_of_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"`digits` must be \(n, side, side\).*got shape \(3, 784\)"):
        rotate_mnist(np.zeros((3, 784)), np.zeros(3))
    with pytest.raises(InputError, match=r"one angle for each of the 3 digits"):
        rotate_mnist(np.zeros((3, 28, 28)), np.zeros(2))
    with pytest.raises(InputError, match=r"`digits` must be"):
        add_noise(np.zeros((3, 28, 27)))


def test_noise_is_uniform_where_the_digit_is_dark() -> None:
    digits = np.zeros((400, 28, 28), dtype=np.float32)
    digits[:, 3, 20] = 0.75
    X = add_noise(digits, seed=1).reshape(-1, 28, 28)
    lit, dark = X[:, 20, 3], np.delete(X.reshape(400, -1), 20 * 28 + 3, axis=1)  # transposed
    assert lit.min() == 0.75
    assert (lit > 0.75).mean() == pytest.approx(0.25, abs=0.08)
    assert np.histogram(dark, bins=10, range=(0, 1))[0] == pytest.approx(dark.size / 10, rel=0.02)
    np.testing.assert_array_equal(X.reshape(400, -1), add_noise(digits, seed=1))
    assert not digits[:, 0].any()  # the caller's digits are left alone


@pytest.fixture(scope="module")
def photographs() -> list[np.ndarray]:
    """A wild one, and one that is flat but for its left edge."""
    rng = np.random.default_rng(0)
    flat = np.full((60, 90), 100, dtype=np.uint8)
    flat[:, :20] = rng.integers(0, 256, size=(60, 20))
    return [rng.integers(0, 256, size=(40, 50), dtype=np.uint8), flat]


def test_patches_are_parts_of_photographs_with_enough_variance(photographs: list[np.ndarray]) -> None:
    patches = draw_patches(photographs, 500, seed=0)
    assert (patches.shape, patches.dtype) == ((500, 28, 28), np.float32)
    bytes_ = np.round(patches * 255).astype(np.uint8)
    assert bytes_.astype(float).var((1, 2)).min() > 1000
    windows = {
        photograph[i : i + 28, j : j + 28].tobytes()
        for photograph in photographs
        for i in range(photograph.shape[0] - 27)
        for j in range(photograph.shape[1] - 27)
    }
    drawn = [patch.tobytes() for patch in bytes_]
    assert set(drawn) <= windows
    assert len(set(drawn)) > 200
    np.testing.assert_array_equal(patches, draw_patches(photographs, 500, seed=0))
    assert (patches != draw_patches(photographs, 500, seed=1)).any()
    flat = np.zeros((30, 30), dtype=np.uint8)
    assert draw_patches([flat, *photographs], 50).var((1, 2)).min() > 1000 / 255**2  # none comes from the flat one


def test_patches_come_as_often_as_by_drawing_again(photographs: list[np.ndarray]) -> None:
    """The share of the second photograph is what redrawing flat patches gives."""
    windows = np.lib.stride_tricks.sliding_window_view(photographs[1], (28, 28)).astype(float)
    passes = (windows.var((2, 3)) > 1000).mean()
    assert 0 < passes < 0.5
    from_flat = (draw_patches(photographs, 20_000) == np.float32(100 / 255)).mean((1, 2)) > 0.05
    assert from_flat.mean() == pytest.approx(passes / (1 + passes), abs=0.015)
    every = draw_patches(photographs[1:], 300, min_variance=None)
    assert (every.reshape(300, -1).std(1) == 0).any()


def test_photographs_that_cannot_be_used_are_refused(photographs: list[np.ndarray]) -> None:
    for bad in (np.zeros((20, 60), np.uint8), np.zeros((60, 60)), np.zeros((60, 60, 3), np.uint8)):
        with pytest.raises(InputError, match=r"`photographs` must be grey images .* number 1 has shape"):
            draw_patches([photographs[0], bad], 5)
    for flat in ([np.zeros((60, 60), np.uint8)], []):
        with pytest.raises(InputError, match="a patch whose variance is above 1000"):
            draw_patches(flat, 5)


def test_digits_lie_on_patches(photographs: list[np.ndarray]) -> None:
    digits = np.zeros((50, 28, 28), dtype=np.float32)
    digits[:, 4, 9] = 1
    X = put_on_photographs(digits, photographs, seed=3).reshape(-1, 28, 28)
    assert (X[:, 9, 4] == 1).all()
    ground = draw_patches(photographs, 50, seed=3)
    ground[:, 4, 9] = 1
    np.testing.assert_array_equal(X, ground.transpose(0, 2, 1))


def test_rectangles_on_photographs_obey_the_rule() -> None:
    grounds = [np.full((28, 28), value, dtype=np.uint8) for value in (50, 200)]
    X, y = make_rectangles_images(4000, grounds, seed=0)
    images = X.reshape(-1, 28, 28) * 255
    mixed = images.min((1, 2)) < images.max((1, 2))
    assert mixed.mean() == pytest.approx(0.5, abs=0.03)  # inside and outside are drawn on their own
    images, y = images[mixed], y[mixed]
    other = np.abs(images - images[:, :1, :1]) > 1  # than the corner, which is outside, or inside
    assert (is_the_rectangle(other, y) | is_the_rectangle(~other, y)).all()
    assert not (is_the_rectangle(other, 1 - y) & is_the_rectangle(~other, 1 - y)).any()
    assert y.mean() == pytest.approx(0.5, abs=0.04)
    with pytest.raises(InputError, match="`n_rows` must be at least 1"):
        make_rectangles_images(0, grounds)


def is_the_rectangle(masks: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether the pixels of each mask fill a rectangle of the sides that the rule allows, and of label y."""
    height, width = masks.any(2).sum(1), masks.any(1).sum(1)
    area = height * width
    allowed = (np.minimum(height, width) >= 10) & (np.abs(height - width) >= 5) & (area >= 196) & (area <= 588)
    return allowed & (masks.sum((1, 2)) == area) & ((height > width) == y)


# --- load ----------------------------------------------------------------------------------------------------------

TINY = Description("tiny", (3, 2, 4), 2, "tiny.zip", "four pixels", (2, 2))


def amat(X: np.ndarray, y: np.ndarray) -> bytes:
    file = io.StringIO()
    np.savetxt(file, np.column_stack([X, y]), fmt="%.8f")
    return file.getvalue().encode()


def archive(train: bytes, test: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as content:
        content.writestr("tiny_train.amat", train)
        content.writestr("50k/tiny_test.amat", test)
    return file.getvalue()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray, bytes]:
    """A set of nine rows of which only an original archive exists, and that archive."""
    monkeypatch.delenv("ENERGATE_DATA", raising=False)
    monkeypatch.setitem(suite._SUITE, "tiny", TINY)
    rng = np.random.default_rng(0)
    X, y = rng.random((9, 4)).astype(np.float32), np.array([0, 1] * 4 + [1])
    return X, y, archive(amat(X[:5], y[:5]), amat(X[5:], y[5:]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a server on this machine gives out in place of the real site."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(sources, "ADDRESS", f"http://127.0.0.1:{server.server_address[1]}/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield folder
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def check_parts(data: Dataset, X: np.ndarray, y: np.ndarray) -> None:
    stops = np.cumsum(describe_dataset(data.name).sizes)[:2]
    for ours, theirs in ((("X_train", "X_valid", "X_test"), X), (("y_train", "y_valid", "y_test"), y)):
        for name, part in zip(ours, np.split(theirs, stops), strict=True):
            np.testing.assert_allclose(getattr(data, name), part, atol=1e-7, rtol=0)
            assert getattr(data, name).dtype == (np.float32 if name[0] == "X" else np.int64)


def test_an_archive_in_the_folder_is_the_original(tiny: tuple, tmp_path: Path) -> None:
    X, y, content = tiny
    (tmp_path / "tiny.zip").write_bytes(content)
    data = load_dataset("tiny", folder=tmp_path)
    check_parts(data, X, y)
    assert data.shape == (2, 2)
    assert [data.provenance[part] for part in ("train", "valid", "test")] == ["original"] * 3
    assert data.provenance["source"] == "folder"
    assert data.provenance["seed"] is None
    assert data.provenance["files"] == {"tiny.zip": sha256_of(tmp_path / "tiny.zip")}
    with pytest.raises(FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]


def test_archives_are_fetched_once_and_checked_after(tiny: tuple, site: Path, tmp_path: Path) -> None:
    X, y, content = tiny
    (site / "tiny.zip").write_bytes(content)
    cache = tmp_path / "cache"
    data = load_dataset("tiny", source="download", cache=cache)
    check_parts(data, X, y)
    assert data.provenance["source"] == "download"
    assert list(data.provenance["files"]) == ["tiny.zip"]
    (site / "tiny.zip").unlink()
    check_parts(load_dataset("tiny", cache=cache), X, y)  # from the cache; without a folder `auto` comes to downloads
    (cache / "tiny.zip").write_bytes(archive(amat(1 - X[:5], y[:5]), amat(X[5:], y[5:])))
    with pytest.raises(InputError, match=r"tiny.zip has changed since it was fetched. Delete it and tiny.zip.sha256"):
        load_dataset("tiny", cache=cache)


def test_an_archive_with_a_known_sum_must_have_it(
    tiny: tuple, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sources.KNOWN_HASHES, "tiny.zip", "sha1:" + 40 * "0")
    (site / "tiny.zip").write_bytes(tiny[2])
    with pytest.raises(InputError, match=r"tiny.zip is not the published archive"):
        load_dataset("tiny", source="download", cache=tmp_path / "cache")


def test_without_a_network_the_message_says_so(
    tiny: tuple, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"tiny was not found \(download: .*/tiny.zip cannot be fetched \(HTTPError\)"):
        load_dataset("tiny", source="download", cache=tmp_path)
    assert not (tmp_path / "tiny.zip").exists()
    monkeypatch.setattr(sources, "ADDRESS", "http://127.0.0.1:9/")  # nobody answers there
    with pytest.raises(InputError, match=r"cannot be fetched \(ConnectionError\).*on a machine with a network"):
        load_dataset("tiny", source="download", cache=tmp_path)
    with pytest.raises(InputError, match=r"folder: no folder is named: set ENERGATE_DATA or pass `folder`"):
        load_dataset("tiny", source="folder")


def test_without_pooch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENERGATE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(
        InputError, match=r"mnist-small was not found.*pip install 'energate\[data\]'.*generate: no folder"
    ):
        load_dataset("mnist-small", cache=tmp_path)


def test_generating_for_want_of_the_original_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENERGATE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.warns(UserWarning, match=r"rectangles is generated, not original \(folder: no folder .*download: "):
        data = load_dataset("rectangles", seed=3, cache=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_dataset("rectangles", seed=3, source="generate")
    assert data.provenance == again.provenance
    assert {data.provenance[part] for part in ("train", "valid", "test")} == {"generated"}
    assert (data.provenance["source"], data.provenance["seed"]) == ("generate", 3)
    X, y = make_rectangles(51_200, seed=3)
    check_parts(data, X, y)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a zip file", r"tiny.zip must be a ZIP archive"),
        (
            archive(b"1 2 3 4 0\n1 2 3 0\n", b"1 2 3 4 0\n"),
            r"tiny_train.amat must hold rows of 5 numbers; it cannot be read",
        ),
        (archive(b"1 2 3 0\n", b"1 2 3 4 0\n"), r"must hold rows of 5 numbers, the label last; got shape \(1, 4\)"),
        (archive(b"1 2 x 4 0\n", b"1 2 3 4 0\n"), r"tiny_train.amat must hold rows of 5 numbers"),
        (archive(b"1 1 1 1 0.5\n", b"1 2 3 4 0\n"), r"whole numbers, the labels, in its last column"),
        (archive(b"1 1 1 1 0\n" * 5, b"1 1 1 1 0\n" * 3), r"tiny must have 9 rows of 4 pixels; tiny.zip gave \(8, 4\)"),
        (archive(b"1 1 1 1 0\n" * 5, b"1 1 1 2 0\n" * 4), r"pixels in \[0, 1\] and labels from 0 to 1"),
        (archive(b"1 1 1 1 0\n" * 5, b"1 1 nan 1 0\n" * 4), r"pixels in \[0, 1\]"),
        (archive(b"1 1 1 1 0\n" * 5, b"1 1 1 1 2\n" * 4), r"labels from 0 to 1; tiny.zip has others"),
    ],
)
def test_damaged_archives_are_refused(tiny: tuple, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tiny.zip").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_dataset("tiny", folder=tmp_path)


def test_an_archive_must_hold_two_tables(tiny: tuple, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as file:
        file.writestr("tiny_train.amat", "1 1 1 1 0")
    with pytest.raises(InputError, match=r"tiny.zip must hold two .amat files, one with `test`"):
        load_dataset("tiny", folder=tmp_path)


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "single" / "convex.npz"
    path.parent.mkdir()
    X, y = make_convex(10)
    np.savez(path, x_train=X, y_train=y)
    with pytest.raises(InputError, match=r"convex.npz must be an NPZ file with the arrays x_train, x_valid"):
        load_dataset("convex", folder=tmp_path)
    np.savez(
        path,
        **{f"x_{part}": X for part in ("train", "valid", "test")},
        **dict.fromkeys(("y_train", "y_valid", "y_test"), y),
    )
    with pytest.raises(InputError, match=r"convex must have 58000 rows of 784 pixels; convex.npz gave \(30, 784\)"):
        load_dataset("convex", folder=tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"convex.npz must be an NPZ file"):
        load_dataset("convex", folder=tmp_path)
    (tmp_path / "SHA256SUMS").write_text(f"{64 * '0'}  single/convex.npz\n")
    with pytest.raises(InputError, match=r"convex.npz is damaged: its sha256 is not the one in SHA256SUMS"):
        load_dataset("convex", folder=tmp_path)


def test_missing_folders_and_unknown_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"There is no data set 'rectangel'. Did you mean 'rectangles'\? The names are"
    ):
        load_dataset("rectangel")
    with pytest.raises(InputError, match=r"no data set 'xyz'. The names are: rectangles, "):
        describe_dataset("xyz")
    with pytest.raises(InputError, match=r"`source` must be 'auto', .*; got 'web'"):
        load_dataset("convex", source="web")
    with pytest.raises(InputError, match=r"`folder` must name a folder of data sets; .*nowhere' is not a folder"):
        load_dataset("convex", folder=tmp_path / "nowhere")
    monkeypatch.setenv("ENERGATE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"The environment variable ENERGATE_DATA must name a folder"):
        load_dataset("convex")
    with pytest.raises(InputError, match=r"folder: the folder has no mnist.npz"):
        load_dataset("mnist-small", source="folder", folder=tmp_path)


def test_digits_are_scikit_learns() -> None:
    data = load_dataset("digits")
    X, y = load_digits(return_X_y=True)
    check_parts(data, X / 16, y)
    assert data.shape == (8, 8)
    assert data.provenance["source"] == "scikit-learn"
    assert data.X_train.max() == 1


def test_the_page_lists_every_set_with_its_sizes() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in NAMES:
        sizes = " / ".join(f"{size:,}" for size in describe_dataset(name).sizes)
        assert re.search(rf"^\| `{name}` \| {sizes} \|", text, re.MULTILINE), name


# --- load, against the published rows ------------------------------------------------------------------------------

#: Set -> its name in the file of genuine rows, and what `load` says about its parts.
PUBLISHED = {
    "rectangles": ("rectangles", ["original"] * 3),
    "convex": ("convex", ["original"] * 3),
    "mnist-small": ("mnist_basic", ["exact rebuild"] * 3),
    "mnist-rotated": ("mnist_rotated", ["exact rebuild"] * 3),
    "mnist-random": ("mnist_background_random", ["original, in 8 bits", "original, in 8 bits", "generated"]),
    "rectangles-images": ("rectangles_images", ["surrogate"] * 3),
    "mnist-images": ("mnist_background_images", ["surrogate"] * 3),
    "mnist-rotated-images": ("mnist_rotated_background_images", ["surrogate"] * 3),
}


def ends(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The first ten and the last ten rows of each part."""
    parts = [(data.X_train, data.y_train), (data.X_valid, data.y_valid), (data.X_test, data.y_test)]
    X, y = (np.concatenate([array for part in parts for array in (part[i][:10], part[i][-10:])]) for i in (0, 1))
    return X, y


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_set_loads_and_equals_the_published_rows_where_it_claims_to(name: str) -> None:
    data = load_dataset(name)
    about = describe_dataset(name)
    stored, words = PUBLISHED[name]
    assert [data.provenance[part] for part in ("train", "valid", "test")] == words
    assert data.provenance["seed"] == (0 if {"generated", "surrogate"} & set(words) else None)
    assert (len(data.X_train), len(data.X_valid), len(data.X_test)) == about.sizes
    assert data.X_test.min() >= 0
    assert data.X_test.max() <= 1
    share = np.bincount(data.y_test, minlength=about.n_classes) / len(data.y_test)
    assert np.abs(share * about.n_classes - 1).max() < 0.15
    X, y = ends(data)
    with np.load(Path(os.environ["ENERGATE_DATA"]) / "single" / "larochelle_genuine60.npz", allow_pickle=False) as file:
        genuine, labels = file[f"{stored}_X"], file[f"{stored}_y"]
    exact = np.repeat([word not in {"generated", "surrogate"} for word in words], 20)
    tolerance = 0.5 / 255 + 1e-6 if name == "mnist-random" else 1e-6
    np.testing.assert_allclose(X[exact], genuine[exact], atol=tolerance, rtol=0)
    np.testing.assert_array_equal(y[exact], labels[exact])
    if name == "mnist-random":  # of the test rows the digits are the published ones: light where those are light
        np.testing.assert_array_equal(y, labels)
        lit = (genuine[40:] * 256 % 1 == 0) & (genuine[40:] > 0.5)
        assert lit.sum() > 200
        assert (X[40:][lit] >= genuine[40:][lit]).all()


@pytest.mark.data
def test_the_published_labels_of_convex_are_what_is_convex_says() -> None:
    data = load_dataset("convex")
    for X, y in ((data.X_train, data.y_train), (data.X_valid, data.y_valid), (data.X_test, data.y_test)):
        np.testing.assert_array_equal(is_convex(X.reshape(-1, 28, 28)), y == 1)
    generated = make_convex(4000, seed=0)
    for label in (0, 1):
        ours, theirs = (np.sort(X[y == label].mean(1)) for X, y in (generated, (data.X_test, data.y_test)))
        quantiles = np.arange(0.1, 1, 0.1)
        assert np.abs(np.quantile(ours, quantiles) - np.quantile(theirs, quantiles)).max() < 0.08


@pytest.mark.data
@pytest.mark.slow
def test_sets_of_digits_are_generated_where_the_folder_has_only_digits(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").symlink_to(Path(os.environ["ENERGATE_DATA"], "single", "mnist.npz").resolve())
    first, again = (load_dataset("mnist-random", seed=1, source="generate", folder=tmp_path) for _ in range(2))
    assert first.provenance == again.provenance
    assert first.provenance["test"] == "generated"
    turned = load_dataset("mnist-rotated", source="generate", folder=tmp_path)
    assert turned.provenance["train"] == "generated"
    assert turned.X_test.mean() == pytest.approx(0.1303, abs=0.001)  # that of the published rows
    with pytest.raises(InputError, match=r"the folder has no natural_images20.npz"):
        load_dataset("mnist-images", source="generate", folder=tmp_path)


# --- tables --------------------------------------------------------------------------------------------------------

FRAME = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, None, 2.5], "c": [True, False, True], "kind": ["x", "y", "x"]})


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_tables_load(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"table.{kind}"
    if kind == "parquet":
        FRAME.to_parquet(path)
    else:
        FRAME.to_csv(path, sep="," if kind == "csv" else "\t", index=False)
    X, y, names = load_table(path, "kind")
    np.testing.assert_array_equal(X, [[1, 0.5, 1], [2, np.nan, 0], [3, 2.5, 1]])
    assert X.dtype == np.float64
    assert y.tolist() == ["x", "y", "x"]
    assert y.dtype.kind == "U"
    assert names == ["a", "b", "c"]
    with pytest.raises(InputError, match=r"must have a column 'd'; its columns are 'a', 'b', 'c', 'kind'"):
        load_table(path, "d")
    with pytest.raises(InputError, match=r"numbers only, but for 'a'; 'kind': turn text into numbers"):
        load_table(path, "a")
    with pytest.raises(InputError, match=r"1 rows have no 'b'"):
        load_table(path, "b")


def test_npz_tables_load(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    np.savez(path, X=np.eye(3, dtype=np.float32), Y=np.ones((3, 2), dtype=np.uint8), y=np.arange(2), one=np.array(1))
    X, Y, names = load_table(path, "Y")
    assert (X.dtype, X.tolist(), Y.shape, names) == (np.float64, np.eye(3).tolist(), (3, 2), ["x0", "x1", "x2"])
    for other in ("z", "y", "one"):  # arrays without a value for each row are no columns
        with pytest.raises(InputError, match=rf"must have a column '{other}'; its columns are 'X', 'Y'"):
            load_table(path, other)
    np.savez(path, X=np.eye(2), y=np.arange(2), feature_names=np.array(["p", "q"]))
    assert load_table(path, "y")[2] == ["p", "q"]
    np.savez(path, X=np.eye(2), y=np.arange(2), feature_names=np.array(["p"]))
    with pytest.raises(InputError, match=r"a name for each of the 2 columns of X; it has 1"):
        load_table(path, "y")
    np.savez(path, X=np.zeros(2), y=np.arange(2))
    with pytest.raises(InputError, match=r"must be a table of numbers, or pictures; it has shape \(2,\)"):
        load_table(path, "y")
    np.savez(path, X=np.array([[None]]), y=np.arange(1))
    with pytest.raises(
        InputError, match=r"must be a table of numbers, or pictures; .* type object"
    ):  # pickles are not read
        load_table(path, "y")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", r"t.csv is empty"),
        ("t.csv", b"a,b\n", r"t.csv has no rows"),
        ("t.csv", b"b\n1\n", r"t.csv must have columns beside 'b'; it has none"),
        ("t.csv", b"a,b\n1,2\n1,2,3\n", r"2 values in each row, as its first line has names; line 3 has 3"),
        ("t.csv", b"a,b\n1,2,3\n1,2,3\n", r"line 2 has 3"),
        ("t.tsv", b"a\tb\n1\n", r"line 2 has 1"),
        ("t.parquet", b"no parquet", r"t.parquet must be a Parquet file"),
        ("t.npz", b"no archive", r"t.npz must be an NPZ file"),
        ("t.xlsx", b"", r"must be a .csv, .tsv, .parquet, .npz or .arff file, .*; got 't.xlsx'. Save it as CSV there."),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_table(tmp_path / name, "b")


def test_tables_that_are_not_there_and_missing_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"There is no file 'no.csv' in the folder"):
        load_table(tmp_path / "no.csv", "b")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"energate\[tables\]"):
        load_table(tmp_path / "t.csv", "b")
