"""The default classifier beside five of scikit-learn on its digits, breast cancer and wine, all on the same 5 folds.

Every system has its defaults; those that need it get standardised columns.  The paper's classifier stands beside them.
`make demo` runs this; alone it is `python examples/bundled.py`.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from energate import EnergyClassifier

FOLDS = 5
SYSTEMS: dict[str, Callable[[], Any]] = {
    "EnergyClassifier": lambda: EnergyClassifier(random_state=0),
    "mcAES (the paper's)": lambda: EnergyClassifier("mean-covariance", random_state=0),
    "SVC": lambda: make_pipeline(StandardScaler(), SVC()),
    "RandomForest": lambda: RandomForestClassifier(random_state=0),
    "MLPClassifier": lambda: make_pipeline(StandardScaler(), MLPClassifier(random_state=0)),
    "GaussianNB": GaussianNB,
    "KNN": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier()),
}
SETS: dict[str, Callable[..., Any]] = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}


def measure(source: str, name: str, fold: int) -> tuple[str, float, float, float]:
    """Error in %, log-loss and seconds of one system on one fold of a set."""
    torch.set_num_threads(1)
    X, y = SETS[source](return_X_y=True)
    train, test = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y))[fold]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier stops at its 200 epochs
        model = SYSTEMS[name]().fit(X[train], y[train])
    seconds = time.perf_counter() - began
    error = 100 * float((model.predict(X[test]) != y[test]).mean())
    probable = name != "SVC"  # it has no probabilities
    return name, error, float(log_loss(y[test], model.predict_proba(X[test]))) if probable else np.nan, seconds


def run(n_folds: int = FOLDS, sets: Sequence[str] = tuple(SETS)) -> dict[str, dict[str, float]]:
    """Print a table for each set; the mean error of every system."""
    print(f"sets that scikit-learn brings, {n_folds} of {FOLDS} folds, the same for all")
    return {source: _run(source, n_folds) for source in sets}


def _run(source: str, n_folds: int) -> dict[str, float]:
    X, y = SETS[source](return_X_y=True)
    print(f"  {source}: {len(X):,} rows, {X.shape[1]} columns, {len(np.unique(y))} classes")
    print(f"    {'':22s} {'error %':>14s} {'log-loss':>10s} {'fit s':>7s}")
    tasks = [(source, name, fold) for name in SYSTEMS for fold in range(n_folds)]
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SYSTEMS}
    parallel = joblib.Parallel(n_jobs=min(2, joblib.cpu_count()), return_as="generator")
    for name, *numbers in parallel(joblib.delayed(measure)(*task) for task in tasks):
        results[name].append(tuple(numbers))
        if len(results[name]) == n_folds:
            error, loss, seconds = np.array(results[name]).T
            spread = error.std(ddof=1) if n_folds > 1 else 0.0
            shown = "         -" if np.isnan(loss).any() else f"{loss.mean():10.3f}"
            print(f"    {name:22s} {error.mean():6.2f} +- {spread:4.2f} {shown} {seconds.mean():7.1f}", flush=True)
    return {name: float(np.mean([error for error, _, _ in rows])) for name, rows in results.items()}


if __name__ == "__main__":
    run()
