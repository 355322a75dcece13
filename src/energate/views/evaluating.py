"""`evaluate_table`: what a saved model is worth on a table with answers, beside what is simpler."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_fscore_support, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from energate.errors import InputError
from energate.estimators.edge import log_softmax
from energate.measures import f1_scores, of_anomalies, of_classes, of_labels, reliability, resampled
from energate.tables import CellError, classes_of, labels_of
from energate.tables.reading import Source, open_table
from energate.tables.values import listed
from energate.views.applying import TableModel
from energate.views.baselines import LINEAR, MAJORITY, MOST_CELLS, linear_model, seen
from energate.views.view import View

FOLDS = 5


def evaluate_table(
    known: TableModel, path: Path | Source, target: str | None = None, part: str = "test"
) -> dict[str, Any]:
    """Measure a model on a table that has the answers; errors, shares and calibration in percent, intervals of 95 %.

    ``target`` is the column with the answers, if it is not the one that the model was fitted to.  ``baselines`` are
    errors on the same rows: of the class that is most frequent in them, and of LogisticRegression, cross-validated on
    them.
    """
    source = open_table(path, part)
    columns, view = known.match(source), known.view
    table = source.read()
    targets = [target] if target else list(known.columns.targets if known.columns is not None else ())
    if not targets:
        raise InputError(
            f"Say which column of {source.path.name} has the answers: --target NAME. There are {listed(source.names)}."
        )
    try:
        X = columns.matrix(table)
        y = labels_of(table, targets) if view.task == "multilabel" else classes_of(table, targets[0], to_learn=False)
    except CellError as error:
        raise source.told(error) from error
    if not len(X):
        raise InputError(f"{source.path.name} has no rows.")
    return {"task": view.task, "target": targets, "rows": len(X), **_OF[view.task](view, known.labels(), X, y)}


def _of_classes(view: View, labels: list[str], X: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    place = {str(each): k for k, each in enumerate(view.labels)}
    strange = sorted({str(each) for each in y} - place.keys())
    if strange:
        raise InputError(
            f"The answers hold classes that the model does not know: {listed(strange)}. Leave such rows out."
        )
    k = np.array([place[str(each)] for each in y])
    n_classes = len(labels)
    log_p = log_softmax(view.commands()["predict"].compute(X)["decision"])
    predicted, each = log_p.argmax(1), -log_p[np.arange(len(k)), k]
    interval = resampled(lambda rows: float(each[rows].mean()), len(k))
    precision, recall, f1, count = precision_recall_fscore_support(
        k, predicted, labels=np.arange(n_classes), zero_division=0.0
    )
    per_class = [
        {
            "class": labels[i],
            "rows": int(count[i]),
            "precision": 100 * precision[i],
            "recall": 100 * recall[i],
            "f1": 100 * f1[i],
        }
        for i in range(n_classes)
    ]
    return {
        **of_classes(log_p, np.arange(n_classes), k),
        "log_loss_interval": None if interval is None else list(interval),
        "reliability": reliability(np.exp(log_p.max(1)), predicted == k),
        "classes": labels,
        "confusion": confusion_matrix(k, predicted, labels=np.arange(n_classes)).tolist(),
        "per_class": per_class,
        "baselines": _baselines(view, X, k),
    }


def _baselines(view: View, X: NDArray[Any], k: NDArray[Any]) -> dict[str, float]:
    counts = np.bincount(k)
    found = {MAJORITY: 100 * float(1 - counts.max() / len(k))}
    least = int(counts[counts > 0].min())
    if least > 1 and (counts > 0).sum() > 1 and len(X) * view.n_seen <= MOST_CELLS:
        folds = StratifiedKFold(min(FOLDS, least), shuffle=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            predicted = cross_val_predict(linear_model(), seen(view, X), k, cv=folds)
        found[LINEAR] = 100 * float((predicted != k).mean())
    return found


def _of_labels(view: View, labels: list[str], X: NDArray[Any], Y: NDArray[Any]) -> dict[str, Any]:
    said = view.commands()["predict"].compute(X)
    p, predicted = said["probabilities"], np.asarray(said["predictions"]).astype(np.int64)
    if Y.shape[1] != len(labels):
        raise InputError(f"The model has {len(labels)} labels; the answers have {Y.shape[1]}.")
    wrong = predicted != Y
    interval = resampled(lambda rows: 100 * float(wrong[rows].mean()), len(Y))
    precision, recall, f1, count = precision_recall_fscore_support(Y, predicted, zero_division=0.0)
    return {
        **of_labels(p, predicted, Y),
        "label_error_interval": None if interval is None else list(interval),
        **f1_scores(predicted, Y),
        "per_label": [
            {"label": labels[i], "rows": int(count[i]), "error": 100 * float(wrong[:, i].mean()),
             "precision": 100 * precision[i], "recall": 100 * recall[i], "f1": 100 * f1[i]}
            for i in range(len(labels))
        ],
        "baselines": {MAJORITY: 100 * float(np.minimum(Y.mean(0), 1 - Y.mean(0)).mean())},
    }  # fmt: skip


def _of_anomalies(view: View, _: list[str], X: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    values, counts = np.unique(y, return_counts=True)
    if len(values) > 2:
        raise InputError(f"The answers to an anomaly score must have 2 values; there are {len(values)}.")
    rare = values[counts.argmin()]
    is_odd = y == rare
    scores = view.commands()["score"].compute(X)["scores"]
    found = {"anomalies_are": rare.item(), **of_anomalies(scores, is_odd)}
    if len(values) == 1:
        return found

    def area(rows: NDArray[Any]) -> float:
        both = 0 < is_odd[rows].sum() < len(rows)
        return float(roc_auc_score(is_odd[rows], -scores[rows])) if both else float("nan")

    interval = resampled(area, len(y))
    return {
        **found,
        "roc_auc_interval": None if interval is None else list(interval),
        "average_precision": float(average_precision_score(is_odd, -scores)),
        "flagged_anomalies": 100 * float((scores[is_odd] < 0).mean()),
        "flagged_normal": 100 * float((scores[~is_odd] < 0).mean()),
        "baselines": {MAJORITY: 100 * float(is_odd.mean())},
    }


_OF = {"classify": _of_classes, "multilabel": _of_labels, "anomaly": _of_anomalies}
