"""Real single-label data sets for the benchmarks: bundled with scikit-learn, or in the folder ENERGATE_DATA.

The multi-label sets become single-label ones by a fixed rule: the classes are the label sets that at least 40 rows have
(`label_sets`), or one tag against its absence.  Large sets are cut to their first rows.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


def _file(name: str) -> Any:
    folder = os.environ.get("ENERGATE_DATA")
    if not folder:
        raise FileNotFoundError("ENERGATE_DATA is not set")
    return np.load(Path(folder) / f"{name}.npz", allow_pickle=False)


def label_sets(name: str, at_least: int = 40) -> Rows:
    data = _file(f"multi/{name}")
    _, kind, counts = np.unique(data["Y"], axis=0, return_inverse=True, return_counts=True)
    kept = counts[kind] >= at_least
    return data["X"][kept].astype(np.float64), np.unique(kind[kept], return_inverse=True)[1]


def most_even_tag(name: str) -> Rows:
    data = _file(f"multi/{name}")
    Y = data["Y"].astype(np.int64)
    return data["X"].astype(np.float64), Y[:, np.abs(Y.mean(axis=0) - 0.5).argmin()]


def pixels(name: str, n_rows: int) -> Rows:
    data = _file(f"single/{name}")
    X = data["x_train"][:n_rows].reshape(-1, 784)
    return X / max(1.0, float(X.max())), data["y_train"][:n_rows].astype(np.int64)


@dataclass(frozen=True)
class Source:
    """How to load a set, and whether the library's defaults were chosen with a look at it."""

    load: Callable[[], Rows]
    development: bool = False


SOURCES = {
    "iris": Source(lambda: datasets.load_iris(return_X_y=True), development=True),
    "wine": Source(lambda: datasets.load_wine(return_X_y=True), development=True),
    "breast-cancer": Source(lambda: datasets.load_breast_cancer(return_X_y=True), development=True),
    "digits": Source(lambda: datasets.load_digits(return_X_y=True), development=True),
    "mnist": Source(lambda: pixels("mnist", 3000), development=True),
    "mnist-random": Source(lambda: pixels("mnist_random_trainvalid", 3000)),
    "convex": Source(lambda: pixels("convex", 3000)),
    "scene": Source(lambda: label_sets("scene")),
    "yeast": Source(lambda: label_sets("yeast")),
    "medical": Source(lambda: label_sets("medical")),
    "enron": Source(lambda: label_sets("enron")),
    "majorminer": Source(lambda: most_even_tag("majorminer")),
}
