"""Anomaly detectors with one interface, how they are measured, and files of lines that a run goes on with.

`anomaly.py` and `one_class.py` are built on it.  The peers of PyOD take ``pip install -r benchmarks/peers.txt``.
"""

import importlib
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from energate import EnergyScorer

Array = NDArray[Any]
Line = dict[str, Any]
#: from a seed, the number of rows and that of columns to an estimator
Build = Callable[[int, int, int], Any]
OURS = "EnergyScorer"


class FifthNeighbour(BaseEstimator):  # type: ignore[misc]
    """The distance to the fifth nearest row, as PyOD's and the published kNN."""

    def fit(self, X: Array, y: None = None) -> "FifthNeighbour":  # noqa: ARG002
        self.found_ = NearestNeighbors(n_neighbors=5).fit(X)
        return self

    def score_samples(self, X: Array) -> Array:
        return -np.asarray(self.found_.kneighbors(X)[0][:, -1])


def of_pyod(module: str, kind: str, **options: Any) -> Build:
    def build(seed: int, n_rows: int, width: int) -> Any:
        made = getattr(importlib.import_module(f"pyod.models.{module}"), kind)
        more = {name: value({"seed": seed, "rows": n_rows, "width": width}) for name, value in options.items()}
        return made(**more)

    return build


def standardised(estimator: Any) -> Any:
    return make_pipeline(StandardScaler(), estimator)


def scorer(**options: Any) -> Build:
    return lambda seed, *_: EnergyScorer(**options, random_state=seed, device="cpu")


#: PyOD's networks fail on a last batch of one row, or on fewer rows than fill a batch
PYOD_BATCH: Callable[[dict[str, int]], int] = lambda at: min(32, at["rows"])  # noqa: E731
PEERS: dict[str, Build] = {
    "IForest": lambda seed, *_: IsolationForest(random_state=seed),
    "LOF": lambda *_: standardised(LocalOutlierFactor(novelty=True)),
    "OneClassSVM": lambda *_: standardised(OneClassSVM()),
    "kNN": lambda *_: standardised(FifthNeighbour()),
    "GaussianMixture": lambda seed, *_: standardised(GaussianMixture(5, reg_covar=1e-2, random_state=seed)),
    "ECOD": of_pyod("ecod", "ECOD"),
    "COPOD": of_pyod("copod", "COPOD"),
    "PCA": of_pyod("pca", "PCA", random_state=lambda at: at["seed"]),
    "HBOS": of_pyod("hbos", "HBOS"),
    "AutoEncoder": of_pyod(
        "auto_encoder",
        "AutoEncoder",
        random_state=lambda at: at["seed"],
        verbose=lambda _: 0,
        device=lambda _: "cpu",
        batch_size=PYOD_BATCH,
    ),
    "DeepSVDD": of_pyod(
        "deep_svdd",
        "DeepSVDD",
        n_features=lambda at: at["width"],
        random_state=lambda at: at["seed"],
        verbose=lambda _: 0,
        batch_size=PYOD_BATCH,
    ),
}
OF_PYOD = ("ECOD", "COPOD", "PCA", "HBOS", "AutoEncoder", "DeepSVDD")
SCALED_FIRST = ("PCA", "DeepSVDD")  # of PyOD; the others scale, or need none


def installed(systems: list[str]) -> list[str]:
    """The systems that can be run here; a line says what the others take."""
    if importlib.util.find_spec("pyod") is None and set(systems) & set(OF_PYOD):
        print("the peers of PyOD are skipped: pip install -r benchmarks/peers.txt")
        return [system for system in systems if system not in OF_PYOD]
    return systems


def measure(system: str, build: Build, seed: int, train: Array, test: Array, anomaly: Array) -> Line:
    """Ranking of the test by one system, and the seconds that it took."""
    if system in SCALED_FIRST:
        varies = train.std(0) > 0  # PCA divides by it
        scaling = StandardScaler().fit(train[:, varies])
        train, test = scaling.transform(train[:, varies]), scaling.transform(test[:, varies])
    estimator = build(seed, *train.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peers: few rows, EM that stops early
        began = time.perf_counter()
        estimator.fit(train)
        fitted = time.perf_counter()
        # PyOD's scores are high for anomalies, all others' for normal rows.
        badness = estimator.decision_function(test) if system in OF_PYOD else -estimator.score_samples(test)
        scored = time.perf_counter()
    badness = np.nan_to_num(np.asarray(badness, np.float64), nan=np.finfo(np.float64).max)
    return {
        "auc": round(float(roc_auc_score(anomaly, badness)), 5),
        "ap": round(float(average_precision_score(anomaly, badness)), 5),
        "fit_s": round(fitted - began, 3),
        "score_s": round(scored - fitted, 3),
    }


class Lines:
    """A file of JSON lines by the values of some of their names; what it lacks is computed and written at once."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self.path, self.names = path, names
        done = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        self.have = {tuple(line[name] for name in names): line for line in done}

    def get(self, key: tuple[Any, ...], compute: Callable[[], Line]) -> Line:
        if key not in self.have:
            line = dict(zip(self.names, key, strict=True)) | compute()
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            self.have[key] = line
        return self.have[key]
