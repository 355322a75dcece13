"""Data of many shapes for `shapes.py`: generated, but for the 0/1 word columns, which are in the folder ENERGATE_DATA.

A repeat is another draw of the generator, from its own seed, and another seed of the model; of real data, another fold.
All parameters are here; ``about`` says them in words, and is what the summary prints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from real_data import Rows, label_sets
from sklearn.datasets import make_classification, make_moons
from sklearn.model_selection import StratifiedKFold

FOLDS = 5
Generator = Callable[[int, int], Rows]  # of a number of rows, and a seed


class Split(NamedTuple):
    """Rows to train on, and rows to test on."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """One shape of data: how a repeat is drawn, who is measured on it, and what it is."""

    part: str
    split: Callable[[int], Split]
    systems: tuple[str, ...]
    repeats: int
    about: str


# --- generators --------------------------------------------------------------------------------------------------


def clusters(n_rows: int, seed: int, **parameters: Any) -> Rows:
    """Gaussian clusters on the corners of a cube, mixed linearly: scikit-learn's `make_classification`."""
    X, y = make_classification(n_rows, random_state=seed, **parameters)
    return X, y


def decision_table(n_rows: int, seed: int, n_columns: int, n_used: int, n_classes: int, noise: float) -> Rows:
    """Uniform columns, some of them cut once; every combination of sides has a class of its own drawing.

    The cuts are within the middle 40 % of their columns; a share ``noise`` of the labels is drawn anew.
    """
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n_rows, n_columns))
    used = random.choice(n_columns, n_used, replace=False)
    side = X[:, used] > random.uniform(0.3, 0.7, n_used)
    classes = random.integers(n_classes, size=2**n_used)
    return X, _noisy(classes[side @ (1 << np.arange(n_used))], n_classes, noise, random)


def decision_tree(n_rows: int, seed: int, n_columns: int, depth: int, n_classes: int, noise: float) -> Rows:
    """Uniform columns, and a tree that cuts any of them at every node; a leaf has a class of its own drawing.

    A cut is within the middle 40 % of what the node has of its column; a share ``noise`` of the labels is drawn anew.
    """
    random = np.random.default_rng(seed)
    X, y = random.uniform(size=(n_rows, n_columns)), np.zeros(n_rows, dtype=np.int64)
    nodes = [(np.arange(n_rows), np.zeros(n_columns), np.ones(n_columns))]  # rows, and the box that they are in
    for _ in range(depth):
        below = []
        for rows, low, high in nodes:
            column = random.integers(n_columns)
            cut = low[column] + random.uniform(0.3, 0.7) * (high[column] - low[column])
            left = X[rows, column] <= cut
            lower, upper = high.copy(), low.copy()
            lower[column] = upper[column] = cut
            below += [(rows[left], low, lower), (rows[~left], upper, high)]
        nodes = below
    for rows, _, _ in nodes:
        y[rows] = random.integers(n_classes)
    return X, _noisy(y, n_classes, noise, random)


def _noisy(y: NDArray[np.int64], n_classes: int, noise: float, random: np.random.Generator) -> NDArray[np.int64]:
    return np.where(random.uniform(size=len(y)) < noise, random.integers(n_classes, size=len(y)), y)


def moons(n_rows: int, seed: int, n_noise: int) -> Rows:
    """Two moons, and columns that say nothing beside them."""
    X, y = make_moons(n_rows, noise=0.1, random_state=seed)
    return _with_noise(X, n_noise, seed), y


def spirals(n_rows: int, seed: int, n_noise: int, turns: float) -> Rows:
    """Two arms r = angle, half a turn apart; noise of a fifteenth of the distance between them; columns of noise."""
    random = np.random.default_rng(seed)
    y = random.integers(2, size=n_rows)
    r = 2 * np.pi * turns * np.sqrt(random.uniform(0.02, 1, n_rows))  # evenly along an arm
    X = np.stack([r * np.cos(r + np.pi * y), r * np.sin(r + np.pi * y)], 1)
    return _with_noise(X + random.normal(0, np.pi / 15, X.shape), n_noise, seed), y


def _with_noise(X: NDArray[np.float64], n_noise: int, seed: int) -> NDArray[np.float64]:
    """Columns of the standard normal beside those of X, which are brought to the same variance."""
    noise = np.random.default_rng([seed, n_noise]).normal(size=(len(X), n_noise))
    return np.concatenate([X / X.std(0), noise], 1)


# --- splits ------------------------------------------------------------------------------------------------------


def drawn(n_train: int, n_test: int, generate: Generator, of: int | None = None) -> Callable[[int], Split]:
    """A split of generated rows; with ``of``, so many are drawn for every size, and the test rows are the same."""

    def split(repeat: int) -> Split:
        most = of or n_train
        X, y = generate(most + n_test, repeat)
        return Split(X[:n_train], y[:n_train], X[most:], y[most:])

    return split


def folded(load: Callable[[], Rows]) -> Callable[[int], Split]:
    """A fold of real rows, stratified."""

    def split(repeat: int) -> Split:
        X, y = load()
        train, test = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y))[repeat]
        return Split(X[train], y[train], X[test], y[test])

    return split


# --- the shapes --------------------------------------------------------------------------------------------------

OURS, BOOSTING, FOREST, MLP = "EnergyClassifier", "HistGradientBoosting", "RandomForest", "MLP"
EIGHT = "EnergyClassifier, 8 units a class"  # as many as it has of up to 100 classes
MEAN = "EnergyClassifier, mean"  # a kind of the paper: its members change with the number of rows
#: sizes around which the defaults of a trunk change, and what lies between
CURVE = (1_000, 2_000, 2_200, 3_000, 10_000, 11_000, 20_000, 22_000, 30_000, 50_000, 55_000, 100_000)

Parameters = dict[str, Any]


def _clusters_of(n_columns: int, n_informative: int, n_redundant: int, n_classes: int, n_clusters: int) -> Parameters:
    """Parameters of `make_classification`; the other columns are noise."""
    return {
        "n_features": n_columns,
        "n_informative": n_informative,
        "n_redundant": n_redundant,
        "n_classes": n_classes,
        "n_clusters_per_class": n_clusters,
        "flip_y": 0.01,
    }


LARGE = _clusters_of(50, 15, 10, 4, 3)
MIDDLE = _clusters_of(20, 10, 4, 10, 2)
MANY = _clusters_of(20, 15, 0, 100, 1) | {"class_sep": 2.0}
GROWN = _clusters_of(20, 10, 4, 4, 4)


def _told(parameters: Parameters) -> str:
    return "make_classification(" + ", ".join(f"{name}={value}" for name, value in parameters.items()) + ")"


def _large(about: str, generate: Generator) -> Shape:
    return Shape("large", drawn(100_000, 20_000, generate), (OURS, BOOSTING), 3, f"100,000 rows: {about}")


def _few(about: str, generate: Generator) -> Shape:
    return Shape("few columns", drawn(2_000, 5_000, generate), (OURS, FOREST, BOOSTING, MLP), 5, about)


def _quick(n_rows: int) -> Shape:
    split = drawn(n_rows, 100_000, partial(clusters, **MIDDLE))
    return Shape("predict", split, (OURS, FOREST), 3, f"{n_rows:,} rows to train, 100,000 to predict: {_told(MIDDLE)}")


def _grown(n_rows: int) -> Shape:
    split = drawn(n_rows, 20_000, partial(clusters, **GROWN), max(CURVE))
    return Shape("rows", split, (OURS, MEAN, BOOSTING), 3, f"the first {n_rows:,} rows: {_told(GROWN)}")


SHAPES: dict[str, Shape] = {
    "moons, 2 columns": _few("two moons, noise 0.1", partial(moons, n_noise=0)),
    "moons, 5 columns": _few("two moons, noise 0.1, and 3 columns of noise", partial(moons, n_noise=3)),
    "spirals, 2 columns": _few("two spirals of 1.5 turns", partial(spirals, n_noise=0, turns=1.5)),
    "spirals, 5 columns": _few(
        "two spirals of 1.5 turns, and 3 columns of noise", partial(spirals, n_noise=3, turns=1.5)
    ),
    "long spirals, 2 columns": _few("two spirals of 3 turns", partial(spirals, n_noise=0, turns=3.0)),
    "long spirals, 5 columns": _few(
        "two spirals of 3 turns, and 3 columns of noise", partial(spirals, n_noise=3, turns=3.0)
    ),
    "predict, 2,000 trained on": _quick(2_000),
    "predict, 10,000 trained on": _quick(10_000),
    "medical": Shape("words", folded(lambda: label_sets("medical")), (OURS, FOREST), FOLDS, "0/1 word columns, real"),
    "enron": Shape("words", folded(lambda: label_sets("enron")), (OURS, FOREST), FOLDS, "0/1 word columns, real"),
    "clusters": _large(_told(LARGE), partial(clusters, **LARGE)),
    "decision table": _large(
        "50 uniform columns, of which 6 are cut in two; 64 combinations, 3 classes, 10 % of the labels drawn anew",
        partial(decision_table, n_columns=50, n_used=6, n_classes=3, noise=0.1),
    ),
    "decision tree": _large(
        "50 uniform columns, a tree of depth 6 with 64 leaves, 3 classes, 10 % of the labels drawn anew",
        partial(decision_tree, n_columns=50, depth=6, n_classes=3, noise=0.1),
    ),
    "100 classes": Shape(
        "classes", drawn(10_000, 10_000, partial(clusters, **MANY)), (OURS, FOREST, BOOSTING), 3,
        f"10,000 rows: {_told(MANY)}",
    ),
    "300 classes": Shape(
        "classes", drawn(6_000, 5_000, partial(clusters, **MANY | {"n_classes": 300})), (OURS, EIGHT, FOREST), 3,
        f"6,000 rows: {_told(MANY | {'n_classes': 300})}",
    ),
    **{f"{n_rows:,} rows": _grown(n_rows) for n_rows in CURVE},
}  # fmt: skip
