"""`load`: the benchmark of Larochelle et al. (2007), and scikit-learn's digits, by name."""

import difflib
import hashlib
import math
import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from energate.datasets._files import Folder, NotHereError, download
from energate.datasets._recipes import FROM_DIGITS, FROM_FOLDER, FROM_NOTHING, Rows, from_archive
from energate.errors import InputError

_SOURCES = ("folder", "download", "generate")


@dataclass(frozen=True)
class Description:
    """What a data set is: its sizes, its rule in a line, and the original archive that holds it."""

    name: str
    sizes: tuple[int, int, int]  # rows of train, valid, test
    n_classes: int
    archive: str
    rule: str
    shape: tuple[int, int] = (28, 28)


@dataclass(frozen=True)
class Dataset:
    """Rows in [0, 1] (float32) and labels (int64) in three parts, and where they come from.

    ``provenance`` has a word for each of ``"train"``, ``"valid"`` and ``"test"``: *original* (the published values),
    *exact rebuild* (by the published rule, equal to the published values), *generated* (by the published rule, with
    own randomness) or *surrogate* (the same, on other photographs).  It also has the ``"source"``, the ``"files"``
    that were read with their sha256, the ``"seed"`` (None where nothing was drawn) and the ``"sha256"`` of each array.
    """

    name: str
    X_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    X_valid: NDArray[np.float32]
    y_valid: NDArray[np.int64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    shape: tuple[int, int]
    provenance: dict[str, Any]


_DIGIT_SIZES = (10_000, 2_000, 50_000)
_SUITE = {
    about.name: about
    for about in (
        Description("rectangles", (1_000, 200, 50_000), 2, "rectangles.zip", "is an outline taller than wide"),
        Description(
            "rectangles-images",
            _DIGIT_SIZES,
            2,
            "rectangles_images.zip",
            "is a rectangle, cut from one photograph and laid on another, taller than wide",
        ),
        Description("convex", (6_000, 2_000, 50_000), 2, "convex.zip", "is the white set convex"),
        Description("mnist-small", _DIGIT_SIZES, 10, "mnist.zip", "the first 62,000 digits of MNIST"),
        Description(
            "mnist-rotated",
            _DIGIT_SIZES,
            10,
            "mnist_rotation_new.zip",
            "digits turned by a uniform angle; drawn with replacement, so some of test are also in train",
        ),
        Description(
            "mnist-random",
            _DIGIT_SIZES,
            10,
            "mnist_background_random.zip",
            "digits on uniform noise; drawn with replacement",
        ),
        Description(
            "mnist-rotated-images",
            _DIGIT_SIZES,
            10,
            "mnist_rotation_back_image_new.zip",
            "turned digits on patches of photographs; drawn with replacement",
        ),
        Description(
            "mnist-images",
            _DIGIT_SIZES,
            10,
            "mnist_background_images.zip",
            "digits on patches of photographs; drawn with replacement",
        ),
        Description(
            "digits", (1_000, 200, 597), 10, "", "scikit-learn's digits in their own order, 8 x 8 pixels", (8, 8)
        ),
    )
}

#: The names that `load` knows.
NAMES = tuple(_SUITE)


def describe(name: str) -> Description:
    """What the data set of this name is."""
    if name not in _SUITE:
        near = difflib.get_close_matches(str(name), _SUITE, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(f"There is no data set {name!r}. {hint}The names are: {', '.join(_SUITE)}.")
    return _SUITE[name]


def load(
    name: str,
    seed: int = 0,
    *,
    source: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Dataset:
    """A data set by its name; `NAMES` lists them, `describe` tells about one.

    Parameters
    ----------
    seed : of everything that is drawn; rows that are original or rebuilt exactly do not depend on it.
    source : ``"folder"``, ``"download"`` (the original archives; extra `data`), ``"generate"``, or ``"auto"``, the
        first of these that has the set, with a warning where it comes to generating.
    folder : a folder of data files; otherwise the environment variable ENERGATE_DATA names it.
    cache : where downloads are kept; otherwise the user's cache folder.
    """
    about = describe(name)
    if source not in ("auto", *_SOURCES):
        raise InputError(f"`source` must be 'auto', 'folder', 'download' or 'generate'; got {source!r}.")
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        rows = (X / 16).astype(np.float32), y.astype(np.int64), ("original", "original", "original")
        return _dataset(about, rows, "scikit-learn", {}, seed)
    reasons: list[str] = []
    for each in _SOURCES if source == "auto" else (source,):
        try:
            rows, files = _rows(each, about, seed, folder, cache)
        except NotHereError as error:
            reasons.append(f"{each}: {error}")
            continue
        if reasons and each == "generate":
            warnings.warn(f"{name} is generated, not original ({'; '.join(reasons)}).", stacklevel=2)
        return _dataset(about, rows, each, files, seed)
    raise InputError(
        f"{name} was not found ({'; '.join(reasons)}). Name a folder that has its files, "
        "or fetch the originals with energate[data] on a machine with a network."
    )


def _rows(
    source: str,
    about: Description,
    seed: int,
    folder: str | os.PathLike[str] | None,
    cache: str | os.PathLike[str] | None,
) -> tuple[Rows, dict[str, str]]:
    """All rows from one source, and the files that were read, with their sums."""
    if source == "download":
        path = download(about.archive, cache)
        place = Folder(path.parent, {})
        return from_archive(place, about.archive, math.prod(about.shape)), place.read
    if source == "generate" and about.name in FROM_NOTHING:
        return FROM_NOTHING[about.name](seed), {}
    place = Folder.find(folder)
    if source == "generate":
        return FROM_DIGITS[about.name](place, seed), place.read
    if (place.path / about.archive).is_file():  # the original itself
        return from_archive(place, about.archive, math.prod(about.shape)), place.read
    return FROM_FOLDER[about.name](place, seed), place.read


def _dataset(about: Description, rows: Rows, source: str, files: dict[str, str], seed: int) -> Dataset:
    X, y, words = np.ascontiguousarray(rows[0]), rows[1], rows[2]
    expected = (sum(about.sizes), math.prod(about.shape))
    if X.shape != expected or y.shape != expected[:1]:
        raise InputError(
            f"{about.name} must have {expected[0]} rows of {expected[1]} pixels; "
            f"{', '.join(files)} gave {X.shape} and {len(y)} labels. Fetch the file again."
        )
    if not (X.min() >= 0 and X.max() <= 1 and y.min() >= 0 and y.max() < about.n_classes):  # false for NaN too
        raise InputError(
            f"{about.name} must have pixels in [0, 1] and labels from 0 to {about.n_classes - 1}; "
            f"{', '.join(files)} has others. Fetch the file again."
        )
    arrays: dict[str, Any] = {}
    stops = np.cumsum(about.sizes)
    for part, size, stop in zip(("train", "valid", "test"), about.sizes, stops, strict=True):
        arrays |= {f"X_{part}": X[stop - size : stop], f"y_{part}": y[stop - size : stop]}
    provenance = {
        **dict(zip(("train", "valid", "test"), words, strict=True)),
        "source": source,
        "files": dict(files),
        "seed": seed if {"generated", "surrogate"} & set(words) else None,
        "sha256": {key: hashlib.sha256(value).hexdigest() for key, value in arrays.items()},
    }
    return Dataset(name=about.name, shape=about.shape, provenance=provenance, **arrays)
