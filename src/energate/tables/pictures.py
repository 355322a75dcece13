"""Pictures as a table: a folder of PNG or JPEG files, or single ones, with a column of names and one of pixels.

A folder of folders also has a column ``class``, the folder that a file is in.  Pixels are whole numbers from 0 to 255,
(n, height, width, channels) with 1 channel or 3.  Needs the extra `images`.
"""

import os
import struct
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.tables.columns import BRIGHTEST
from energate.tables.reading import CELLS, PICTURE, SEPARATORS, Batch, Source
from energate.tables.values import listed

#: the kinds of files that are read
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FILE, CLASS = "file", "class"
WHITE = 255
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Warning)
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Pictures:
    """How files become pixels: ``size`` (height, width) and ``colour``, None where the files themselves say it.

    ``on_error`` says what becomes of a file that cannot be read: "fail" refuses the folder, "skip" leaves it out.
    ``white`` is the number that the brightest pixel becomes.
    """

    size: tuple[int, int] | None = None
    colour: bool | None = None
    on_error: str = "fail"
    white: float = BRIGHTEST

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "skip"):
            raise InputError(f"`on_error` must be fail or skip; got {self.on_error!r}.")


def is_picture(path: Path) -> bool:
    """Whether a path is a folder, or a file with the name of a picture."""
    return path.is_dir() or path.suffix.lower() in SUFFIXES


def are_pictures(paths: Sequence[Path]) -> bool:
    """Whether these are files of pictures, or a folder that has some, below it or in it, and no table."""
    if len(paths) > 1 or not paths[0].is_dir():
        return all(path.suffix.lower() in SUFFIXES for path in paths)
    kinds = {path.suffix.lower() for path in paths[0].rglob("*")}
    return bool(kinds & set(SUFFIXES)) and not kinds & {*SEPARATORS, ".parquet"}


@dataclass
class Skipped:
    """Files that are left out, and why."""

    files: dict[str, str] = field(default_factory=dict)

    def told(self) -> list[str]:
        """A line for each reason, which names the files."""
        reasons: dict[str, list[str]] = {}
        for file, why in self.files.items():
            reasons.setdefault(why, []).append(file)
        return [f"{listed(files)} left out: {why}." for why, files in reasons.items()]


class PictureSource(Source):
    """The pictures of a folder, or some files, as rows in the order of their names."""

    def __init__(self, path: Path | Sequence[Path], how: Pictures | None = None) -> None:
        self.how, self.skipped = how or Pictures(), Skipped()
        whole = isinstance(path, Path) and path.is_dir()
        given = [path] if isinstance(path, Path) else list(path)
        folder = given[0] if whole else Path(os.path.commonpath([each.absolute().parent for each in given]))
        self.folder, self.files = folder, self._within(folder) if whole else [each.absolute() for each in given]
        if not self.files:
            raise InputError(f"The folder {str(folder)!r} has no pictures: files that end in {', '.join(SUFFIXES)}.")
        for file in self.files:
            if not file.is_file():
                raise InputError(f"There is no file {file.name!r} in the folder {str(file.parent)!r}.")
        inner = [file.relative_to(folder).parts[:-1] for file in self.files]
        self._classes = [parts[0] for parts in inner] if whole and all(inner) else None
        self.shape = self._shape()
        strange = [each.name for each in given if not is_picture(each)]
        if strange:
            raise InputError(f"Several files must be pictures, such as .png and .jpg; got {listed(strange)}.")
        super().__init__(given[0], [FILE, *([CLASS] if self._classes else []), PICTURE])
        self.inputs = self.files

    def where(self, row: int) -> str:
        return self.name_of(row)

    def name_of(self, row: int) -> str:
        """The file of a row, as seen from the folder."""
        return self.files[row].relative_to(self.folder).as_posix()

    def batch_rows(self) -> int:
        return max(1, CELLS // int(np.prod(self.shape)))

    def batches(self) -> Iterator[Batch]:
        """Names, classes if there are any, and pixels (n, height, width, channels); without files that were skipped."""
        size, rows = self.batch_rows(), list[int]()
        pixels: list[Pixels] = []
        for row in range(len(self.files)):
            found = self._read(row)
            if found is not None:
                rows.append(row)
                pixels.append(as_shape(found, self.shape))
            if rows and (len(rows) == size or row == len(self.files) - 1):
                yield self._batch(rows, np.stack(pixels))
                rows, pixels = [], []
        if rows:
            yield self._batch(rows, np.stack(pixels))
        self.notes[:] = self.skipped.told()

    def _batch(self, rows: list[int], pixels: Pixels) -> Batch:
        names = np.array([self.name_of(row) for row in rows], dtype=object)
        shown = pixels if self.how.white == BRIGHTEST else pixels * (self.how.white / BRIGHTEST)
        classes = {CLASS: np.array([self._classes[row] for row in rows], dtype=object)} if self._classes else {}
        return {FILE: names, **classes, PICTURE: shown}

    def _within(self, folder: Path) -> list[Path]:
        """The pictures of a folder and those below it; other files are noted, hidden ones are none of our business."""
        found = []
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if not path.is_file() or any(part.startswith(".") for part in inside.parts):
                continue
            if path.suffix.lower() in SUFFIXES:
                found.append(path)
            else:
                self.skipped.files[inside.as_posix()] = "no pictures by their names"
        return found

    def _read(self, row: int) -> Pixels | None:
        """The pixels of a file as they are, or None where it is skipped."""
        name = self.name_of(row)
        if name in self.skipped.files:
            return None
        try:
            return read_picture(self.files[row])
        except InputError as error:
            if self.how.on_error == "fail":
                raise InputError(f"{error} Take it out; or --on-error skip goes on without it.") from error
            self.skipped.files[name] = "cannot be read"
            return None

    def _shape(self) -> tuple[int, int, int]:
        """Height, width and channels that all rows have; what is not asked for is found in the files."""
        size, colour = self.how.size, self.how.colour
        if size is None or colour is None:
            sizes, grey = Counter[tuple[int, int]](), True
            for row in range(len(self.files)):
                found = self._read(row)
                if found is not None:
                    sizes[found.shape[0], found.shape[1]] += 1
                    grey = grey and is_grey(found)
            if not sizes:
                raise InputError(f"No picture in {str(self.folder)!r} can be read: {listed([*self.skipped.files])}.")
            if size is None:
                size = _common(sizes, self.folder)
            colour = not grey if colour is None else colour
        return (*size, 3 if colour else 1)


def _common(sizes: Counter[tuple[int, int]], folder: Path) -> tuple[int, int]:
    if len(sizes) == 1:
        return next(iter(sizes))
    (height, width), count = sizes.most_common(1)[0]
    raise InputError(
        f"{str(folder)!r} has pictures of {len(sizes)} sizes; {count:,} of {sizes.total():,} are {height}x{width}. "
        f"Say to which all are to be brought: `image` {height}x{width}."
    )


# --- single pictures ---------------------------------------------------------------------------------------------


def read_picture(path: Path) -> Pixels:
    """The pixels of a file, as it is meant to be seen: (height, width, 4), how much of each is there comes last."""
    image = require("PIL.Image", "images")
    turned = require("PIL.ImageOps", "images").exif_transpose
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(path) as opened:
                found = turned(opened)
                if found.mode.startswith("I;16") or found.mode in ("I", "F"):  # 16 bits, which Pillow would cut
                    levels = np.asarray(found, dtype=np.float64)
                    found = image.fromarray(
                        np.clip(levels / 257 if levels.max() > WHITE else levels, 0, WHITE).astype(np.uint8)
                    )
                return np.asarray(found.convert("RGBA"))
    except (*_DAMAGE, image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture ({' '.join(str(error).split())}).") from error


def is_grey(pixels: Pixels) -> bool:
    """Whether a picture (height, width, 4) has no colours."""
    return bool((pixels[..., :1] == pixels[..., 1:3]).all())


def as_shape(pixels: Pixels, shape: tuple[int, int, int]) -> Pixels:
    """A picture (height, width, 4) on white, brought to a size, in colours or grey: of this shape."""
    image = require("PIL.Image", "images")
    height, width, channels = shape
    found = image.fromarray(pixels)
    white = image.new("RGBA", found.size, (WHITE,) * 4)
    flat = image.alpha_composite(white, found).convert("RGB" if channels == 3 else "L")
    if flat.size != (width, height):
        flat = flat.resize((width, height), image.Resampling.LANCZOS)
    return np.asarray(flat).reshape(shape)


def unknown_in(pixels: Pixels, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Where a picture (height, width, 4) is transparent, for another size: (height, width)."""
    return _resized(pixels[..., 3], size) < (WHITE + 1) // 2


def read_mask(path: Path, size: tuple[int, int]) -> NDArray[np.bool_]:
    """A picture as a mask: True where it is bright."""
    grey = as_shape(read_picture(path), (*size, 1))[..., 0]
    return grey >= (WHITE + 1) // 2


def _resized(levels: Pixels, size: tuple[int, int]) -> Pixels:
    image = require("PIL.Image", "images")
    height, width = size
    return np.asarray(image.fromarray(levels).resize((width, height), image.Resampling.NEAREST))


def write_picture(file: IO[bytes], pixels: Any) -> None:
    """Write pixels from 0 to 255, (height, width) or (height, width, channels), as PNG."""
    image = require("PIL.Image", "images")
    levels = np.clip(np.round(np.asarray(pixels, dtype=np.float64)), 0, WHITE).astype(np.uint8)
    image.fromarray(levels[..., 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels).save(file, format="PNG")
