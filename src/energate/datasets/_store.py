"""Data sets as files: written whole or not at all; and which sets are at hand on this machine."""

import contextlib
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from energate.datasets._files import Folder, NotHereError, sha256_of
from energate.datasets._recipes import FROM_NOTHING
from energate.datasets.multilabel import MultiLabelDataset, MultiLabelDescription, labels_folder
from energate.datasets.suite import Dataset, Description
from energate.errors import InputError, require

_PARTS = ("train", "valid", "test")
_PHOTOGRAPHS = "natural_images20.npz"

#: Set -> the files of a folder that `load` makes it from.
FOLDER_FILES = {
    "rectangles": ("rectangles.npz",),
    "rectangles-images": (_PHOTOGRAPHS,),
    "convex": ("convex.npz",),
    "mnist-small": ("mnist.npz",),
    "mnist-rotated": ("mnist_rotated_index.npz", "mnist.npz"),
    "mnist-random": ("mnist_random_trainvalid.npz", "mnist.npz"),
    "mnist-rotated-images": ("mnist.npz", _PHOTOGRAPHS),
    "mnist-images": ("mnist.npz", _PHOTOGRAPHS),
}

#: Set -> the files of a folder that its generator takes.
GENERATOR_FILES = (
    FOLDER_FILES | dict.fromkeys(FROM_NOTHING, ()) | dict.fromkeys(("mnist-rotated", "mnist-random"), ("mnist.npz",))
)

#: Sets whose own file `load` reads as the published rows.
_READ_AS_ORIGINAL = ("rectangles", "convex")

# --- which sets are at hand --------------------------------------------------------------------------------------


def at_hand(about: Description) -> tuple[str, ...]:
    """The sources that can give a set here and now, in the order in which `load` asks them; no file is opened.

    ``"cache"`` is an archive that was downloaded before.
    """
    if about.name in FOLDER_FILES:
        found = {
            "folder": _has(about.archive) or _has(*FOLDER_FILES[about.name]),
            "cache": _is_cached(about.archive),
            "generate": _has(*GENERATOR_FILES[about.name]),
        }
        return tuple(source for source, here in found.items() if here)
    return ("scikit-learn",)


def labels_at_hand(about: MultiLabelDescription) -> tuple[str, ...]:
    """The same for a multi-label set; what OpenML has is not at hand."""
    try:
        return ("folder",) if (labels_folder(None).path / f"{about.name}.npz").is_file() else ()
    except NotHereError:
        return ()


def _has(*names: str) -> bool:
    """Whether the user's folder has all of these files."""
    if not names:
        return True
    try:
        place = Folder.find(None)
    except NotHereError:
        return False
    return all((place.path / name).is_file() for name in names)


def _is_cached(archive: str) -> bool:
    if importlib.util.find_spec("pooch") is None:
        return False
    return (Path(require("pooch", "data").os_cache("energate")) / archive).is_file()


# --- files -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name only when all of it is there; an error leaves what was there before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}). Name a place where you may write, with enough room."
        ) from error
    finally:  # also on Ctrl-C
        with contextlib.suppress(OSError):
            part.unlink()


@dataclass(frozen=True)
class Saved:
    """A data set in a file."""

    path: Path
    n_bytes: int
    sha256: str
    new: bool  # False: the same rows were there already


def save_dataset(data: Dataset, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Saved:
    """Write a data set as NPZ: ``x_train``, ``y_train`` and so on, ``shape``, and ``provenance`` as JSON text.

    A file with the same rows is left as it is; one with other content is replaced only if ``overwrite``.
    """
    path = Path(folder).expanduser() / _file_name(data)
    if path.exists() and not overwrite:
        if _rows_of(path) != _summary(data.provenance):
            raise InputError(f"{path} is there already, with other content. Pass --overwrite, or name another folder.")
        return Saved(path, path.stat().st_size, sha256_of(path), new=False)
    arrays: dict[str, Any] = {f"{kind}_{part}": rows for part in _PARTS for kind, rows in _part(data, part).items()}
    with written_whole(path) as file:
        np.savez_compressed(
            file, **arrays, shape=np.array(data.shape), provenance=np.array(json.dumps(data.provenance))
        )
    return Saved(path, path.stat().st_size, sha256_of(path), new=True)


def save_labels(data: MultiLabelDataset, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Saved:
    """Write a multi-label set as NPZ: ``X``, ``Y``, ``feature_names``, ``label_names``, ``provenance`` as JSON text."""
    path = Path(folder).expanduser() / f"{data.name}.npz"
    if path.exists() and not overwrite:
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
                same = all(np.array_equal(content[key], getattr(data, key)) for key in ("X", "Y"))
        except Exception:  # whatever is wrong with it, it is not such a file
            same = False
        if not same:
            raise InputError(f"{path} is there already, with other content. Pass --overwrite, or name another folder.")
        return Saved(path, path.stat().st_size, sha256_of(path), new=False)
    with written_whole(path) as new:
        np.savez_compressed(
            new,
            X=data.X,
            Y=data.Y,
            feature_names=np.array(data.feature_names),
            label_names=np.array(data.label_names),
            provenance=np.array(json.dumps(data.provenance)),
        )
    return Saved(path, path.stat().st_size, sha256_of(path), new=True)


def _part(data: Dataset, part: str) -> dict[str, Any]:
    return {"x": getattr(data, f"X_{part}"), "y": getattr(data, f"y_{part}")}


def _file_name(data: Dataset) -> str:
    """The name of a set's file; rows of our own get another where `load` would take them for the published ones."""
    ours = data.name in _READ_AS_ORIGINAL and {data.provenance[part] for part in _PARTS} != {"original"}
    return f"{data.name}-generated.npz" if ours else f"{data.name}.npz"


def _summary(provenance: dict[str, Any]) -> dict[str, Any]:
    """What says that rows are the same: their words and sums, wherever they were read."""
    return {key: provenance.get(key) for key in (*_PARTS, "sha256")}


def _rows_of(path: Path) -> dict[str, Any] | None:
    """The summary of the rows of a file that `save_dataset` wrote, checked against the rows; None for others."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            provenance = json.loads(str(content["provenance"]))
            sums = {}
            for part in _PARTS:
                for key, name in (("x", "X"), ("y", "y")):
                    rows = np.ascontiguousarray(content[f"{key}_{part}"])
                    sums[f"{name}_{part}"] = hashlib.sha256(rows.data).hexdigest()
    except Exception:  # whatever is wrong with it, it is not such a file
        return None
    return _summary(provenance | {"sha256": sums}) if isinstance(provenance, dict) else None
