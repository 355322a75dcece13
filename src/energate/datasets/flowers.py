"""A table to begin with: the irises of scikit-learn, as the two CSV files that the first commands of the docs take."""

import csv
import io
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris

from energate.errors import InputError
from energate.files import written_whole

NAME, TARGET = "flowers", "kind"
EVERY = 5  # the rows at every fifth place are new ones, without their kind


def write_flowers(folder: Path, overwrite: bool = False) -> list[Path]:
    """Write flowers.csv, 120 rows with their kind, and new.csv, 30 others without; those that are there stay."""
    data = load_iris()
    names = [name.replace(" (cm)", "").replace(" ", "_") for name in data.feature_names]
    kinds = data.target_names[data.target]
    is_new = np.arange(len(kinds)) % EVERY == EVERY - 1
    known = [[*map(str, row), kind] for row, kind in zip(data.data[~is_new], kinds[~is_new], strict=True)]
    new = [[*map(str, row)] for row in data.data[is_new]]
    files = {folder / "flowers.csv": [[*names, TARGET], *known], folder / "new.csv": [names, *new]}
    for path, rows in files.items():
        if path.exists() and not overwrite and path.read_bytes() != _bytes(rows):
            raise InputError(f"{path} is there already, with other rows. Choose another folder, or give --overwrite.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, rows in files.items():
        with written_whole(path) as file:
            file.write(_bytes(rows))
    return list(files)


def _bytes(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
