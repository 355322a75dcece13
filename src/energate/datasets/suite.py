"""The benchmark of Larochelle et al. (2007), and scikit-learn's digits, by name: what each is, how it is made."""

import hashlib
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from energate.datasets.generators import (
    add_noise,
    make_convex,
    make_rectangles,
    make_rectangles_images,
    put_on_photographs,
    rotate_mnist,
)
from energate.datasets.sources import Folder, download, first_of, named, read_archive
from energate.errors import InputError
from energate.tables.reading import PARTS

_SOURCES = ("folder", "download", "generate")

#: X and y of all rows, in the order train, valid, test, and the provenance word of each of the three parts.
Rows = tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, str, str]]


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


def _large(name: str, archive: str, rule: str, n_classes: int = 10) -> Description:
    return Description(name, (10_000, 2_000, 50_000), n_classes, archive, rule)


_DRAWN = "drawn with replacement"
_SETS = (
    Description("rectangles", (1_000, 200, 50_000), 2, "rectangles.zip", "is an outline taller than wide"),
    _large(
        "rectangles-images",
        "rectangles_images.zip",
        "is a rectangle, cut from one photograph and laid on another, taller than wide",
        n_classes=2,
    ),
    Description("convex", (6_000, 2_000, 50_000), 2, "convex.zip", "is the white set convex"),
    _large("mnist-small", "mnist.zip", "the first 62,000 digits of MNIST"),
    _large(
        "mnist-rotated",
        "mnist_rotation_new.zip",
        f"digits turned by a uniform angle; {_DRAWN}, so some of test are also in train",
    ),
    _large("mnist-random", "mnist_background_random.zip", f"digits on uniform noise; {_DRAWN}"),
    _large(
        "mnist-rotated-images",
        "mnist_rotation_back_image_new.zip",
        f"turned digits on patches of photographs; {_DRAWN}",
    ),
    _large("mnist-images", "mnist_background_images.zip", f"digits on patches of photographs; {_DRAWN}"),
    Description("digits", (1_000, 200, 597), 10, "", "scikit-learn's digits in their own order, 8 x 8 pixels", (8, 8)),
)
_SUITE = {about.name: about for about in _SETS}

#: The names that `load_dataset` knows.
NAMES = tuple(_SUITE)


def describe_dataset(name: str) -> Description:
    """What the data set of this name is."""
    return named(name, _SUITE)


def load_dataset(
    name: str,
    seed: int = 0,
    *,
    source: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Dataset:
    """A data set by its name; `NAMES` lists them, `describe_dataset` tells about one.

    Parameters
    ----------
    seed : of everything that is drawn; rows that are original or rebuilt exactly do not depend on it.
    source : ``"folder"``, ``"download"`` (the original archives; extra `data`), ``"generate"``, or ``"auto"``, the
        first of these that has the set, with a warning where it comes to generating.
    folder : a folder of data files; otherwise the environment variable ENERGATE_DATA names it.
    cache : where downloads are kept; otherwise the user's cache folder.
    """
    about = describe_dataset(name)
    origin, found, why_not = first_of(_SOURCES, source, lambda each: _rows(each, about, seed, folder, cache))
    if found is None:
        raise InputError(
            f"{name} was not found ({why_not}). Name a folder that has its files, "
            "or fetch the originals with energate[data] on a machine with a network."
        )
    if why_not and origin == "generate":
        warnings.warn(f"{name} is generated, not original ({why_not}).", stacklevel=2)
    rows, files = found
    return _dataset(about, rows, "scikit-learn" if name == "digits" else origin, files, seed)


def _rows(
    source: str,
    about: Description,
    seed: int,
    folder: str | os.PathLike[str] | None,
    cache: str | os.PathLike[str] | None,
) -> tuple[Rows, dict[str, str]]:
    """All rows from one source, and the files that were read, with their sums."""
    if about.name == "digits":
        X, y = load_digits(return_X_y=True)
        return ((X / 16).astype(np.float32), y.astype(np.int64), _words("original")), {}
    if source == "download":
        place = Folder(download(about.archive, cache).parent, {})
        return _from_archive(place, about), place.read
    if source == "generate":
        recipe = GENERATED[about.name]
        place = Folder.find(folder) if recipe.files else Folder(Path(), {})
        return recipe.make(place, seed), place.read
    place = Folder.find(folder)
    if (place.path / about.archive).is_file():  # the original itself
        return _from_archive(place, about), place.read
    return FROM_FOLDER[about.name].make(place, seed), place.read


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
    for part, size, stop in zip(PARTS, about.sizes, stops, strict=True):
        arrays |= {f"X_{part}": X[stop - size : stop], f"y_{part}": y[stop - size : stop]}
    provenance = {
        **dict(zip(PARTS, words, strict=True)),
        "source": source,
        "files": dict(files),
        "seed": seed if {"generated", "surrogate"} & set(words) else None,
        "sha256": {key: hashlib.sha256(value).hexdigest() for key, value in arrays.items()},
    }
    return Dataset(name=about.name, shape=about.shape, provenance=provenance, **arrays)


# --- how the rows are made ---------------------------------------------------------------------------------------

_PHOTOGRAPHS = "natural_images20.npz"
_N_ROWS = 62_000  # of each set made of digits: 10,000 train, 2,000 valid, 50,000 test


def _from_archive(folder: Folder, about: Description) -> Rows:
    """The rows of an original archive, which has the valid rows after the train rows in one table."""
    tables = read_archive(folder.file(about.archive), math.prod(about.shape) + 1)
    X, y = (np.concatenate([tables["train"][i], tables["test"][i]]) for i in (0, 1))
    return X, y, _words("original")


def _words(train: str, valid: str | None = None, test: str | None = None) -> tuple[str, str, str]:
    return train, valid or train, test or train


def _stored(name: str, folder: Folder, seed: int) -> Rows:  # noqa: ARG001
    """The rows of a file that holds the published values."""
    content = folder.arrays(name, tuple(f"{letter}_{part}" for letter in "xy" for part in PARTS))
    X, y = (np.concatenate([content[f"{letter}_{part}"] for part in PARTS]) for letter in "xy")
    return X.astype(np.float32), y.astype(np.int64), _words("original")


def _mnist(folder: Folder) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All 70,000 digits (n, 28, 28) and their labels, train before test."""
    content = folder.arrays("mnist.npz", ("x_train", "x_test", "y_train", "y_test"))
    digits = np.concatenate([content["x_train"], content["x_test"]])
    labels = np.concatenate([content["y_train"], content["y_test"]]).astype(np.int64)
    if digits.dtype != np.uint8 or digits.shape != (70_000, 28, 28) or labels.shape != (70_000,):
        raise InputError(
            f"mnist.npz must hold 70,000 images of 28 x 28 bytes; it has {digits.shape} of type {digits.dtype}."
        )
    return digits, labels


def _photographs(folder: Folder) -> list[NDArray[Any]]:
    content = folder.arrays(_PHOTOGRAPHS)
    return [content[key] for key in sorted(content) if content[key].ndim == 2]


def _scaled(digits: NDArray[np.uint8], scale: int) -> NDArray[np.float32]:
    return np.divide(digits, scale, dtype=np.float32)


def _small(folder: Folder, seed: int) -> Rows:  # noqa: ARG001
    digits, labels = _mnist(folder)
    return _scaled(digits[:_N_ROWS], 256).reshape(_N_ROWS, -1), labels[:_N_ROWS], _words("exact rebuild")


def _rotated(folder: Folder, seed: int) -> Rows:  # noqa: ARG001
    content = folder.arrays("mnist_rotated_index.npz", ("mnist_idx", "angle"))
    digits, labels = _mnist(folder)
    index = _checked_index(content["mnist_idx"], "mnist_rotated_index.npz")
    return _turned(digits[index], content["angle"], 256), labels[index], _words("exact rebuild")


def _random(folder: Folder, seed: int) -> Rows:
    name = "mnist_random_trainvalid.npz"
    content = folder.arrays(name, ("x_train", "x_valid", "y_train", "y_valid", "scale", "mnist_idx"))
    digits, labels = _mnist(folder)
    index = _checked_index(content["mnist_idx"], name)[12_000:]
    stored = [np.divide(content[key], content["scale"], dtype=np.float32) for key in ("x_train", "x_valid")]
    X = np.concatenate([*stored, add_noise(_scaled(digits[index], 256), seed)])
    y = np.concatenate([content["y_train"], content["y_valid"], labels[index]]).astype(np.int64)
    return X, y, _words("original, in 8 bits", test="generated")


def _checked_index(index: NDArray[Any], name: str) -> NDArray[np.int64]:
    if index.shape != (_N_ROWS,) or index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= 70_000:
        raise InputError(f"`mnist_idx` of {name} must hold {_N_ROWS} numbers of digits, 0 to 69,999. Fetch it again.")
    return index.astype(np.int64)


def _drawn(folder: Folder, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], np.random.Generator]:
    """Digits drawn with replacement, their labels, and what draws the rest."""
    digits, labels, rng = *_mnist(folder), np.random.default_rng(seed)
    index = rng.integers(len(digits), size=_N_ROWS)
    return digits[index], labels[index], rng


def _images(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = _drawn(folder, seed)
    return put_on_photographs(_scaled(digits, 256), _photographs(folder), rng), labels, _words("surrogate")


def _rotated_images(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = _drawn(folder, seed)
    # The ground is not transposed twice: turned digits come transposed, so they are put upright first.
    turned = _turned(digits, rng.uniform(0, 2 * np.pi, size=_N_ROWS), 255).reshape(-1, 28, 28).transpose(0, 2, 1)
    return put_on_photographs(turned, _photographs(folder), rng), labels, _words("surrogate")


def _rectangles_images(folder: Folder, seed: int) -> Rows:
    return *make_rectangles_images(_N_ROWS, _photographs(folder), seed), _words("surrogate")


def _turned(digits: NDArray[np.uint8], angles: NDArray[np.float64], scale: int) -> NDArray[np.float32]:
    X = rotate_mnist(digits, angles)
    X /= scale
    return X


def _by_rule(make: Callable[..., Any], n_rows: int, folder: Folder, seed: int) -> Rows:  # noqa: ARG001
    return *make(n_rows, seed), _words("generated")


def _generated_rotated(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = _drawn(folder, seed)
    return _turned(digits, rng.uniform(0, 2 * np.pi, size=_N_ROWS), 256), labels, _words("generated")


def _generated_random(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = _drawn(folder, seed)
    return add_noise(_scaled(digits, 256), rng), labels, _words("generated")


@dataclass(frozen=True)
class Recipe:
    """What makes the rows of a set, from a folder and a seed, and the files of the folder that it reads."""

    make: Callable[[Folder, int], Rows]
    files: tuple[str, ...] = ()


#: Set -> its rows from the files of a folder, the closest to the published ones that these give.
FROM_FOLDER = {
    "rectangles": Recipe(partial(_stored, "rectangles.npz"), ("rectangles.npz",)),
    "rectangles-images": Recipe(_rectangles_images, (_PHOTOGRAPHS,)),
    "convex": Recipe(partial(_stored, "convex.npz"), ("convex.npz",)),
    "mnist-small": Recipe(_small, ("mnist.npz",)),
    "mnist-rotated": Recipe(_rotated, ("mnist_rotated_index.npz", "mnist.npz")),
    "mnist-random": Recipe(_random, ("mnist_random_trainvalid.npz", "mnist.npz")),
    "mnist-rotated-images": Recipe(_rotated_images, ("mnist.npz", _PHOTOGRAPHS)),
    "mnist-images": Recipe(_images, ("mnist.npz", _PHOTOGRAPHS)),
}

#: Set -> its rows by rule, with own randomness: from nothing, or from the digits and photographs of a folder.
GENERATED = FROM_FOLDER | {
    "rectangles": Recipe(partial(_by_rule, make_rectangles, 51_200)),
    "convex": Recipe(partial(_by_rule, make_convex, 58_000)),
    "mnist-rotated": Recipe(_generated_rotated, ("mnist.npz",)),
    "mnist-random": Recipe(_generated_random, ("mnist.npz",)),
}
