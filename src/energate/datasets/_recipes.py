"""How the rows of each data set are made from the files of a folder, or from nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.datasets._files import Folder, read_archive
from energate.datasets.convex import make_convex
from energate.datasets.generators import make_rectangles
from energate.datasets.images import add_noise, make_rectangles_images, put_on_photographs, rotate_mnist
from energate.errors import InputError

#: X and y of all rows, in the order train, valid, test, and the provenance word of each of the three parts.
Rows = tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, str, str]]

_N_ROWS = 62_000  # of each set made of digits: 10,000 train, 2,000 valid, 50,000 test


def from_archive(folder: Folder, name: str, n_pixels: int) -> Rows:
    """The rows of an original archive, which has the valid rows after the train rows in one table."""
    tables = read_archive(folder.file(name), n_pixels + 1)
    X, y = (np.concatenate([tables["train"][i], tables["test"][i]]) for i in (0, 1))
    return X, y, _words("original")


def _words(train: str, valid: str | None = None, test: str | None = None) -> tuple[str, str, str]:
    return train, valid or train, test or train


# --- from the files of a folder ----------------------------------------------------------------------------------


def _rectangles(folder: Folder, seed: int) -> Rows:  # noqa: ARG001
    return _stored(folder, "rectangles.npz")


def _convex(folder: Folder, seed: int) -> Rows:  # noqa: ARG001
    return _stored(folder, "convex.npz")


def _stored(folder: Folder, name: str) -> Rows:
    """The rows of a file that holds the published values."""
    parts = ("train", "valid", "test")
    content = folder.arrays(name, tuple(f"{letter}_{part}" for letter in "xy" for part in parts))
    X, y = (np.concatenate([content[f"{letter}_{part}"] for part in parts]) for letter in "xy")
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
    content = folder.arrays("natural_images20.npz")
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


def _images(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = *_mnist(folder), np.random.default_rng(seed)
    index = rng.integers(len(digits), size=_N_ROWS)
    return (
        put_on_photographs(_scaled(digits[index], 256), _photographs(folder), rng),
        labels[index],
        _words("surrogate"),
    )


def _rotated_images(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = *_mnist(folder), np.random.default_rng(seed)
    index, angles = rng.integers(len(digits), size=_N_ROWS), rng.uniform(0, 2 * np.pi, size=_N_ROWS)
    # The ground is not transposed twice: turned digits come transposed, so they are put upright first.
    turned = _turned(digits[index], angles, 255).reshape(-1, 28, 28).transpose(0, 2, 1)
    return put_on_photographs(turned, _photographs(folder), rng), labels[index], _words("surrogate")


def _rectangles_images(folder: Folder, seed: int) -> Rows:
    return *make_rectangles_images(_N_ROWS, _photographs(folder), seed), _words("surrogate")


def _turned(digits: NDArray[np.uint8], angles: NDArray[np.float64], scale: int) -> NDArray[np.float32]:
    X = rotate_mnist(digits, angles)
    X /= scale
    return X


#: Set -> its rows from the files of a folder, the closest to the published ones that these give.
FROM_FOLDER: dict[str, Callable[[Folder, int], Rows]] = {
    "rectangles": _rectangles,
    "rectangles-images": _rectangles_images,
    "convex": _convex,
    "mnist-small": _small,
    "mnist-rotated": _rotated,
    "mnist-random": _random,
    "mnist-rotated-images": _rotated_images,
    "mnist-images": _images,
}

# --- with own randomness -----------------------------------------------------------------------------------------


def _generated_rectangles(seed: int) -> Rows:
    return *make_rectangles(51_200, seed), _words("generated")


def _generated_convex(seed: int) -> Rows:
    return *make_convex(58_000, seed), _words("generated")


def _generated_rotated(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = *_mnist(folder), np.random.default_rng(seed)
    index, angles = rng.integers(len(digits), size=_N_ROWS), rng.uniform(0, 2 * np.pi, size=_N_ROWS)
    return _turned(digits[index], angles, 256), labels[index], _words("generated")


def _generated_random(folder: Folder, seed: int) -> Rows:
    digits, labels, rng = *_mnist(folder), np.random.default_rng(seed)
    index = rng.integers(len(digits), size=_N_ROWS)
    return add_noise(_scaled(digits[index], 256), rng), labels[index], _words("generated")


#: Set -> its rows by rule alone, from nothing but a seed.
FROM_NOTHING: dict[str, Callable[[int], Rows]] = {
    "rectangles": _generated_rectangles,
    "convex": _generated_convex,
}

#: Set -> its rows by rule, from the digits (and photographs) of a folder and a seed.
FROM_DIGITS = FROM_FOLDER | {"mnist-rotated": _generated_rotated, "mnist-random": _generated_random}
