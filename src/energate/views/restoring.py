"""Pictures in, pictures out: `restore_pictures` writes what a model makes of files or arrays of them."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.estimators.edge import Array
from energate.files import check_output, written_whole
from energate.tables.columns import BRIGHTEST, ImageColumn
from energate.tables.pictures import SUFFIXES, PictureSource, read_mask, read_picture, unknown_in, write_picture
from energate.tables.reading import PICTURE, AnyPath, Batch, Source
from energate.tables.writing import save_arrays
from energate.views.applying import AppliedTable, TableModel, command_of

Mask = NDArray[np.bool_]
ROWS = 64  # at once: pictures are filled in by many passes


@dataclass(frozen=True)
class Hole:
    """Which pixels are unknown: a box (top, left, height, width), those of a file that are bright, or transparent ones.

    The box counts pixels of the size that the model takes.
    """

    box: tuple[int, int, int, int] | None = None
    file: Path | None = None

    def of_all(self, size: tuple[int, int]) -> Mask | None:
        """Where every picture lacks its pixels: (height, width); None if each file says it itself."""
        if self.box is not None and self.file is not None:
            raise InputError("Give `mask` or `box`, not both.")
        if self.file is not None:
            found = read_mask(self.file, size)
            if not found.any():
                raise InputError(f"{self.file} must be bright where pixels are unknown; it is dark all over.")
            return found
        if self.box is None:
            return None
        top, left, height, width = self.box
        if min(top, left) < 0 or min(height, width) < 1 or top + height > size[0] or left + width > size[1]:
            raise InputError(
                f"`box` must lie in pictures of {size[0]} x {size[1]}, as top,left,height,width; got "
                f"{','.join(map(str, self.box))}."
            )
        hidden = np.zeros(size, dtype=bool)
        hidden[top : top + height, left : left + width] = True
        return hidden


def restore_pictures(
    model: Any,
    path: AnyPath,
    output: str | os.PathLike[str],
    *,
    command: str = "denoise",
    columns: Any = None,
    hole: Hole | None = None,
    level: float | None = None,
    part: str = "test",
    on_error: str = "fail",
    tell: Callable[[int], object] | None = None,
) -> AppliedTable:
    """Write pictures as a fitted model makes them: without their noise, or with unknown pixels filled in.

    Parameters
    ----------
    model : a fitted estimator, or a `TableModel`.
    path : a folder of pictures, a file, several of them, or an .npz or other table of such rows.
    output : a new or empty folder, which gets PNG files of the same names; a .png file for a single picture; or an .npz
        file, ``image`` (n, height, width, channels) in it.  They take their names when all are there.
    command : ``"denoise"`` or ``"inpaint"``.
    hole : what to fill in; transparent pixels if left out.
    level : of the noise, for a model that is told it.
    """
    began = time.monotonic()
    known = model if isinstance(model, TableModel) else TableModel(model, columns)
    given = {name for name, value in (("level", level), ("mask", command == "inpaint" or None)) if value is not None}
    asked = command_of(known, command, given)
    column = known.pictures
    if column is None:
        raise InputError(f"{known.name} takes no pictures.")
    hidden = (hole or Hole()).of_all(column.shape[:2]) if command == "inpaint" else None
    source = known.open(path, part, on_error)
    if Path(output).suffix.lower() in (".npz", *SUFFIXES):
        masks = [] if hole is None or hole.file is None else [hole.file]
        check_output(output, [*source.inputs, *masks])
    taken, done = known.match(source), 0
    with _sink(Path(output), source, column) as write:
        for batch, X, _ in known.rows(source, taken):
            for start in range(0, len(X), ROWS):
                rows = slice(start, start + ROWS)
                beside: dict[str, Any] = {} if level is None else {"level": np.full((len(X[rows]), 1), level)}
                some = {name: values[rows] for name, values in batch.items()}
                if command == "inpaint":
                    beside["mask"] = _masks(hidden, some, source, column).reshape(len(X[rows]), -1)
                write(some, asked.compute(X[rows], **beside)["images"])
                done += len(X[rows])
                if tell is not None:
                    tell(done)
    return AppliedTable(Path(output), done, [PICTURE], time.monotonic() - began, source.told_notes())


def _masks(hidden: Mask | None, batch: Batch, source: Source, column: ImageColumn) -> Mask:
    """Where each picture of a batch lacks its pixels: (n, height, width)."""
    size = column.shape[:2]
    if hidden is not None:
        return np.broadcast_to(hidden, (len(next(iter(batch.values()))), *size))
    if not isinstance(source, PictureSource):
        raise InputError("Rows of a table do not say which pixels are unknown: give `mask` FILE or `box` Y,X,H,W.")
    found = []
    for name in batch["file"]:
        transparent = unknown_in(read_picture(source.folder / name), size)
        if not transparent.any():
            raise InputError(
                f"{name} has no transparent pixels to fill in. Say which are unknown: `mask` FILE or `box` Y,X,H,W."
            )
        found.append(transparent)
    return np.stack(found)


# --- where they go -----------------------------------------------------------------------------------------------

Write = Callable[[Batch, Array], None]


@contextmanager
def _sink(target: Path, source: Source, column: ImageColumn) -> Iterator[Write]:
    """Takes batches of pictures; what it writes has its name when all of them are there."""
    kind = target.suffix.lower()
    if kind == ".npz":
        yield from _to_npz(target, column)
    elif kind in SUFFIXES:
        yield from _to_file(target, source, column)
    else:
        yield from _to_folder(target, source, column)


def _levels(images: Array, column: ImageColumn) -> Array:
    """Pictures as files have them: (n, height, width, channels), from 0 to 255."""
    if column.white is None or column.shape[2] not in (1, 3):
        raise InputError("Pictures on this scale are no files of pictures: write an .npz file.")
    return images.reshape(-1, *column.shape) * (BRIGHTEST / column.white)


def _to_npz(target: Path, column: ImageColumn) -> Iterator[Write]:
    parts: list[Batch] = []

    def write(batch: Batch, images: Array) -> None:
        carried = {name: np.asarray(values) for name, values in batch.items() if np.ndim(values) == 1}
        carried = {name: each.astype(np.str_) if each.dtype.kind == "O" else each for name, each in carried.items()}
        parts.append({**carried, PICTURE: images.reshape(-1, *column.shape)})

    with written_whole(target) as file:
        yield write
        save_arrays(file, {name: np.concatenate([each[name] for each in parts]) for name in parts[0]})


def _to_file(target: Path, source: Source, column: ImageColumn) -> Iterator[Write]:
    if target.suffix.lower() != ".png":
        raise InputError(f"Pictures are written as .png, which loses nothing; got {target.name!r}.")
    if not isinstance(source, PictureSource) or len(source.files) != 1:
        raise InputError(f"Several pictures do not fit into the file {target.name!r}: name a folder, or an .npz file.")
    with written_whole(target) as file:
        yield lambda _, images: write_picture(file, _levels(images, column)[0])


def _to_folder(target: Path, source: Source, column: ImageColumn) -> Iterator[Write]:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already, and not an empty folder. Name a new one, an .npz or a .png file.")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    count = 0

    def write(batch: Batch, images: Array) -> None:
        nonlocal count
        levels = _levels(images, column)
        names = batch["file"] if isinstance(source, PictureSource) else range(count + 1, count + 1 + len(levels))
        for name, pixels in zip(names, levels, strict=True):
            place = (part / str(name)).with_suffix(".png")
            if place.exists():  # two files that differ by their endings alone
                place = part / f"{name}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                write_picture(file, pixels)
        count += len(levels)

    try:
        part.mkdir(parents=True)
        yield write
        if target.exists():
            target.rmdir()
        part.rename(target)
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror or error}). Name another folder.") from error
    finally:  # also on Ctrl-C
        shutil.rmtree(part, ignore_errors=True)
