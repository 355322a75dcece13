"""What a model is to be compared with: the majority, and a plain linear model on the same rows."""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from energate.estimators.edge import Array
from energate.views.view import View

MAJORITY, LINEAR = "majority", "LogisticRegression"
MOST_CELLS = 20_000_000  # of larger data there is no linear model: it would take longer than what it is compared with
Rows = tuple[Array, Any]  # rows (n, d), and what they are


def baselines_of(view: View, train: Rows, test: Rows) -> dict[str, float]:
    """Errors in percent on test rows: of single labels, where there are several; none for anomalies."""
    if view.task == "anomaly":
        return {}
    (X, y), (X_test, y_test) = train, test
    if view.task == "multilabel":
        return {MAJORITY: 100 * float((y_test != (y.mean(axis=0) > 0.5)).mean())}
    classes, counts = np.unique(y, return_counts=True)
    found = {MAJORITY: 100 * float((y_test != classes[counts.argmax()]).mean())}
    if len(X) * view.n_seen <= MOST_CELLS and len(classes) > 1:
        model = linear_model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is to compare with, and good enough
            model.fit(seen(view, X), y)
        found[LINEAR] = 100 * float((model.predict(seen(view, X_test)) != y_test).mean())
    return found


def linear_model() -> Any:
    """Scikit-learn's, on scaled columns."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))


def seen(view: View, X: Array) -> Array:
    """Rows as the model itself sees them: categories and holes as columns of 0 and 1."""
    return np.nan_to_num(view.seen(X), posinf=0, neginf=0)
