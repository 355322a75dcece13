"""What fewer members and units cost on wide tables: what "auto" has of few columns, beside what it has of 50,000.

60 rows of 3,000 columns train, 400 others test: ten factors behind all columns, or digits 3 and 8 (with ENERGATE_DATA)
and products of their pixels.

    python benchmarks/wide.py [--only trunk labels scorer pairs] [--seeds 1]
"""

import argparse
import os
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from energate import EnergyClassifier, EnergyScorer, LabelMLP, PairScorer

Array = NDArray[Any]
N_TRAIN, N_TEST, WIDTH = 60, 400, 3000


def factors(seed: int) -> tuple[Array, Array]:
    """Rows whose columns are mixtures of ten numbers, and noise."""
    rng = np.random.default_rng(seed)
    mixture, z = rng.normal(size=(10, WIDTH)), rng.normal(size=(N_TRAIN + N_TEST, 10))
    return z @ mixture / 3 + rng.normal(size=(len(z), WIDTH)), (z[:, 0] + z[:, 1] > 0).astype(int)


def digits(seed: int) -> tuple[Array, Array]:
    """Threes and eights: their pixels, and products of two of these."""
    with np.load(Path(os.environ["ENERGATE_DATA"]) / "single" / "mnist.npz") as file:
        X, y = file["x_train"].reshape(-1, 784) / 255.0, file["y_train"]
    rows = np.random.default_rng(seed).permutation(np.flatnonzero((y == 3) | (y == 8)))[: N_TRAIN + N_TEST]
    one, other = np.random.default_rng(99).integers(0, 784, (2, WIDTH - 784))
    return np.hstack([X[rows], X[rows][:, one] * X[rows][:, other]]), (y[rows] == 8).astype(int)


def measure(what: str, X: Array, y: Array, seed: int) -> dict[str, tuple[float, ...]]:
    """Errors in percent and log-losses; areas in percent; or how many right pairs are liked more than wrong ones."""
    train, test = slice(N_TRAIN), slice(N_TRAIN, None)
    how: dict[str, Any] = {"device": "cpu", "random_state": seed}
    found: dict[str, tuple[float, ...]] = {}
    if what == "trunk":
        for n in (8, 2):
            p = EnergyClassifier(n_members=n, **how).fit(X[train], y[train]).predict_proba(X[test])
            found[f"{n} members"] = 100 * float((p.argmax(1) != y[test]).mean()), log_loss(y[test], p)
    if what == "labels":
        for n in (256, 64):
            labels = np.column_stack([y, 1 - y])
            on = LabelMLP(n_hidden=n, **how).fit(X[train], labels[train]).predict_proba(X[test])[:, 0]
            found[f"{n} units"] = 100 * float(((on > 0.5) != y[test]).mean()), log_loss(y[test], on)
    if what == "scorer":
        for n in (300, 160):
            scorer = EnergyScorer("mean", n_hidden=n, **how).fit(X[train][y[train] == 0])
            found[f"{n} units"] = (100 * roc_auc_score(y[test], -scorer.score_samples(X[test])),)
    if what == "pairs":
        Y = X[:, np.random.default_rng(5).permutation(WIDTH)]
        for relation in ("conditional", "symmetric"):
            for n in (300, 80):
                pairs = PairScorer(relation, n_factors=n, **how).fit(X[train], Y[train])
                right, wrong = (pairs.score_pairs(X[test], other) for other in (Y[test], np.roll(Y[test], 1, 0)))
                found[f"{relation}, {n} factors"] = (100 * float((right > wrong).mean()),)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=["trunk", "labels", "scorer", "pairs"])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tables = [factors, digits] if "ENERGATE_DATA" in os.environ else [factors]
    for what in options.only:
        for table in tables:
            lines = defaultdict(list)
            for seed in range(options.seeds):
                for name, numbers in measure(what, *table(seed), seed).items():
                    lines[name].append(numbers)
            for name, each in lines.items():
                mean, spread = np.mean(each, 0).round(3), np.std(each, 0).round(3)
                print(f"{what} | {table.__name__} | {name} | {mean} +- {spread}", flush=True)


if __name__ == "__main__":
    main()
