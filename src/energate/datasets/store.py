"""Data sets as files, written whole or not at all; and which sets are at hand on this machine."""

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energate.datasets.multilabel import MultiLabelDataset, MultiLabelDescription, labels_folder
from energate.datasets.sources import Folder, NotHereError
from energate.datasets.suite import FROM_FOLDER, GENERATED, Dataset, Description
from energate.errors import InputError, require
from energate.files import sha256_of, written_whole
from energate.tables.reading import PARTS

#: Sets whose own file `load_dataset` reads as the published rows.
_READ_AS_ORIGINAL = ("rectangles", "convex")

# --- which sets are at hand --------------------------------------------------------------------------------------


def at_hand(about: Description) -> tuple[str, ...]:
    """The sources that can give a set here and now, in the order in which `load_dataset` asks them; no file is opened.

    ``"cache"`` is an archive that was downloaded before.
    """
    if about.name not in FROM_FOLDER:
        return ("scikit-learn",)
    found = {
        "folder": _has(about.archive) or _has(*FROM_FOLDER[about.name].files),
        "cache": _is_cached(about.archive),
        "generate": _has(*GENERATED[about.name].files),
    }
    return tuple(source for source, here in found.items() if here)


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
    # Rows of our own get another name where `load_dataset` would take them for the published ones.
    ours = data.name in _READ_AS_ORIGINAL and {data.provenance[part] for part in PARTS} != {"original"}
    arrays = {f"{letter.lower()}_{part}": getattr(data, f"{letter}_{part}") for part in PARTS for letter in "Xy"}

    def same(content: Any) -> bool:
        """Whether its rows have the same words and sums, wherever they were read."""
        there = json.loads(str(content["provenance"]))
        words = all(there[part] == data.provenance[part] for part in PARTS)
        sums = data.provenance["sha256"]
        rows = {name: np.ascontiguousarray(content[name.lower()]).data for name in sums}
        return words and {name: hashlib.sha256(each).hexdigest() for name, each in rows.items()} == sums

    path = Path(folder).expanduser() / f"{data.name}{'-generated' if ours else ''}.npz"
    return _save(path, arrays | {"shape": np.array(data.shape)}, data.provenance, same, overwrite)


def save_labels(data: MultiLabelDataset, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Saved:
    """Write a multi-label set as NPZ: ``X``, ``Y``, ``feature_names``, ``label_names``, ``provenance`` as JSON text."""
    names = {"feature_names": np.array(data.feature_names), "label_names": np.array(data.label_names)}

    def same(content: Any) -> bool:
        return np.array_equal(content["X"], data.X) and np.array_equal(content["Y"], data.Y)

    path = Path(folder).expanduser() / f"{data.name}.npz"
    return _save(path, {"X": data.X, "Y": data.Y, **names}, data.provenance, same, overwrite)


def _save(
    path: Path, arrays: dict[str, Any], provenance: dict[str, Any], same: Callable[[Any], bool], overwrite: bool
) -> Saved:
    new = overwrite or not path.exists()
    if new:
        with written_whole(path) as file:
            np.savez_compressed(file, **arrays, provenance=np.array(json.dumps(provenance)))
    elif not _holds(path, same):
        raise InputError(f"{path} is there already, with other content. Pass --overwrite, or name another folder.")
    return Saved(path, path.stat().st_size, sha256_of(path), new=new)


def _holds(path: Path, same: Callable[[Any], bool]) -> bool:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            return same(content)
    except Exception:  # whatever is wrong with it, it is not such a file
        return False
