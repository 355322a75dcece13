"""Contact sheets: some images of each class of a data set, in one picture (extra ``plot``)."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require

#: What the classes of some sets mean; digits speak for themselves.
CLASS_NAMES: dict[str, dict[Any, str]] = {
    "rectangles": {0: "wide", 1: "tall"},
    "rectangles-images": {0: "wide", 1: "tall"},
    "convex": {0: "not convex", 1: "convex"},
}

_MAX_CLASSES = 40
_DPI = 100
# In dots of the picture:
_IMAGE, _MARGIN, _TITLE, _TEXT, _SMALL, _LINE = 72, 18, 20, 15, 12, 2
# Between images, and for missing values: seen beside white as well as beside black.
_BETWEEN = "#7d93ad"


def contact_sheet(
    X: NDArray[Any],
    y: NDArray[Any],
    shape: tuple[int, int],
    *,
    title: str = "",
    caption: str = "",
    class_names: Mapping[Any, str] | None = None,
    n_rows: int | None = None,
    n_columns: int = 12,
    limits: tuple[float, float] | None = None,
    transpose: bool = False,
    seed: int = 0,
) -> Any:
    """A matplotlib figure with images of each class, drawn at random: black is the least value, white the largest.

    Parameters
    ----------
    X, y : rows of height * width pixels, and one label for each.
    n_rows, n_columns : rows of images for each class (by default one, or four where there are few classes), and
        images in each row.
    limits : the values shown as black and white; by default the least and the largest of those in the picture.
    transpose : swap height and width, for images stored column by column.
    """
    height, width = shape
    if X.ndim != 2 or X.shape[1] != height * width or not len(X):
        raise InputError(f"Images of {height} x {width} need rows of {height * width} pixels; got shape {X.shape}.")
    if y.shape != X.shape[:1]:
        raise InputError(f"A sheet needs one label for each of the {len(X)} rows; got labels of shape {y.shape}.")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) > _MAX_CLASSES:
        raise InputError(f"A sheet shows at most {_MAX_CLASSES} classes; the labels have {len(classes)} values.")
    n_rows = n_rows or (4 if len(classes) < 5 else 1)
    rng = np.random.default_rng(seed)
    zoom = max(1, round(_IMAGE / max(shape)))
    picked = [rng.permutation(np.flatnonzero(y == label))[: n_rows * n_columns] for label in classes]
    blocks = [_block(X[rows].reshape(-1, *shape), n_rows, n_columns, transpose, zoom) for rows in picked]
    names = [str((class_names or {}).get(label, label)) for label in classes.tolist()]
    return _drawn(blocks, names, counts.tolist(), title, caption, limits)


def _block(images: NDArray[Any], n_rows: int, n_columns: int, transpose: bool, zoom: int) -> NDArray[np.float64]:
    """The images of one class side by side, dot for dot, with NaN around them and where there are too few."""
    images = images.transpose(0, 2, 1) if transpose else images
    images = images.repeat(zoom, 1).repeat(zoom, 2)
    height, width = images.shape[1] + _LINE, images.shape[2] + _LINE
    block = np.full((n_rows * height + _LINE, n_columns * width + _LINE), np.nan)
    for i, image in enumerate(images):
        bottom, right = (i // n_columns + 1) * height, (i % n_columns + 1) * width
        block[bottom - height + _LINE : bottom, right - width + _LINE : right] = image
    return block


def _drawn(
    blocks: list[NDArray[np.float64]],
    names: list[str],
    counts: list[int],
    title: str,
    caption: str,
    limits: tuple[float, float] | None,
) -> Any:
    """The figure: one dot for each value of the blocks, so that no pixel is wider than its neighbour."""
    figures = require("matplotlib.figure", "plot")
    grey = require("matplotlib", "plot").colormaps["gray"].with_extremes(bad=_BETWEEN)
    names = [name if len(name) <= 24 else f"{name[:11]}...{name[-10:]}" for name in names]
    numbers = [f"{count:,} rows" for count in counts]
    left = _MARGIN + 10 + int(max(0.66 * _TEXT * max(map(len, names)), 0.62 * _SMALL * max(map(len, numbers))))
    block_height, block_width = blocks[0].shape
    width = left + block_width + _MARGIN
    heading = textwrap.wrap(title, max(10, int((width - 2 * _MARGIN) / (0.66 * _TITLE))))
    lines = textwrap.wrap(caption, max(10, int((width - 2 * _MARGIN) / (0.56 * _TEXT))))
    top = _MARGIN + int(1.4 * _TITLE) * len(heading) + int(1.4 * _TEXT) * len(lines) + (10 if heading or lines else 0)
    gap = 10
    height = top + len(blocks) * (block_height + gap) - gap + _MARGIN
    figure = figures.Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="white")

    def write(x: float, y: float, text: str, size: float, **style: Any) -> None:
        figure.text(x / width, 1 - y / height, text, fontsize=size * 72 / _DPI, parse_math=False, **style)

    y = _MARGIN
    for texts, size, style in ((heading, _TITLE, {"weight": "bold"}), (lines, _TEXT, {"color": "0.35"})):
        for line in texts:
            write(_MARGIN, y, line, size, va="top", **style)
            y += int(1.4 * size)
    low, high = limits or _range(blocks)
    for i, (block, name, number) in enumerate(zip(blocks, names, numbers, strict=True)):
        start = top + i * (block_height + gap)
        place = (left / width, 1 - (start + block_height) / height, block_width / width, block_height / height)
        axes = figure.add_axes(place)
        axes.imshow(block, cmap=grey, vmin=low, vmax=high, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        middle = start + block_height / 2
        write(left - 10, middle - 1, name, _TEXT, weight="bold", ha="right", va="bottom")
        write(left - 10, middle + 2, number, _SMALL, color="0.45", ha="right", va="top")
    return figure


def _range(blocks: list[NDArray[np.float64]]) -> tuple[float, float]:
    values = np.concatenate([block[np.isfinite(block)] for block in blocks])
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
