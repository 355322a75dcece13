"""Predictions of every estimator, as they were once: `python tests/golden.py` compares, with `--write` it writes.

The file was made before the package was cut into rooms, so that moving code is seen to change nothing.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

PLACE = Path(__file__).with_name("golden.json")
N_ROWS, N_COLUMNS, N_SHOWN = 60, 9, 4


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X (60, 9), three classes, and five labels that follow from X."""
    random = np.random.RandomState(0)
    X = random.normal(size=(N_ROWS, N_COLUMNS))
    y = np.digitize(X[:, 0] + X[:, 1], (-0.7, 0.7))
    Y = (X[:, :5] + X[:, 4:] > 0).astype(int)
    return X, y, Y


def estimators() -> dict[str, tuple[Any, str]]:
    """Every estimator by name, quick to fit, and what it is fitted to: nothing, classes, labels or itself."""
    from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, ImageEnergyClassifier, LabelMLP, PairScorer
    from energate.paper import baselines as others

    quick: dict[str, Any] = {"max_epochs": 3, "random_state": 0, "device": "cpu"}
    small = {**quick, "n_hidden": 8, "n_factors": 6}
    base = LabelMLP(n_hidden=8, n_members=2, **quick)
    found: dict[str, tuple[Any, str]] = {
        f"classifier {units}": (EnergyClassifier(units, pretrain_epochs=2, **small), "classes")
        for units in ("mean", "covariance", "mean-covariance")
    }
    found |= {
        f"scorer {scaling}": (EnergyScorer("mean-covariance", scaling=scaling, **small), "nothing")
        for scaling in ("standard", "unit")
    }
    found |= {
        f"pairs {relation}": (PairScorer(relation, **small), "itself") for relation in ("conditional", "symmetric")
    }
    found |= {"label mlp": (base, "labels"), "label mlp classes": (base, "classes")}
    found |= {
        f"refiner {method} {relation} {objective}": (
            EnergyRefiner(base, relation, method=method, objective=objective, cv=2, **small), "labels",
        )
        for method, relation, objective in (
            ("sets", "yy", "hamming"), ("sets", "xy", "subset"),
            ("ascent", "xy", "hamming"), ("ascent", "yy", "hamming"),
        )
    }  # fmt: skip
    found |= {
        "deep": (
            ImageEnergyClassifier(n_hidden=4, channels=8, denoising_weight=0.0, skip=0.0, scaling="unit", **quick),
            "classes",
        ),
        "rbm": (others.RBMClassifier(n_hidden=8, pretrain_epochs=2, **quick), "classes"),
        "saa3": (others.StackedAutoencoderClassifier(**quick), "classes"),
        "gsm": (others.GatedSoftmax(n_hidden=8, n_factors=8, **quick), "classes"),
        "mlp": (others.DropoutMLP(**quick), "classes"),
        "hashcrbm": (others.HashCRBM(n_hidden=4, **quick), "labels"),
        "counts": (others.LogCountProjection(base, random_state=0), "labels"),
        "mlknn": (others.MLkNN(), "labels"),
        "logistic": (others.logistic_labels(random_state=0), "labels"),
        "chains": (others.chain_labels(n_chains=2, random_state=0), "labels"),
        "svm": (others.svm_labels(random_state=0), "labels"),
        "mean": (others.MeanLabels([("a", base), ("b", others.MLkNN())], random_state=0), "labels"),
    }
    return found


def said_by(estimator: Any, kind: str) -> list[Any]:
    """What an estimator says of the first rows when it is fitted to all."""
    from energate.estimators.image_network import ImageNetwork

    X, y, Y = rows()
    target = {"nothing": (), "classes": (y,), "labels": (Y,), "itself": (X[:, :3],)}[kind]
    with patch.object(ImageNetwork, "low_precision", False):  # which only some processors have
        model = estimator.fit(X, *target)
    if kind == "nothing":
        said = model.score_samples(X)
    elif kind == "itself":
        said = model.score_pairs(X, X[:, :3])
    else:
        said = model.predict_proba(X)
    found: list[Any] = np.asarray(said)[:N_SHOWN].tolist()
    return found


def predictions() -> dict[str, list[Any]]:
    """What every estimator says of the first rows."""
    return {name: said_by(*case) for name, case in estimators().items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    now = predictions()
    if "--write" in sys.argv:
        PLACE.write_text(json.dumps(now, indent=1) + "\n")
    before = json.loads(PLACE.read_text())
    for name, said in before.items():
        print(f"{name:28} {np.abs(np.asarray(now[name]) - np.asarray(said)).max():.1e}")
