"""Predictions against what is: error, log-loss, calibration, F1, and how sure a mean is; without any model.

Errors, calibration errors and shares are in percent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score

BINS = 10
SURE = 1.959964  # standard deviations that hold 95 % of a normal distribution
SAMPLES = 500  # of the bootstrap

# --- single numbers ----------------------------------------------------------------------------------------------


def log_loss(p: NDArray[Any], truth: NDArray[Any]) -> float:
    """The mean over rows and labels of -log of the probability of what is; p and truth are (n, L)."""
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return float(-(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean())


def wilson(n_hits: int, n_all: int) -> tuple[float, float]:
    """Wilson's interval around a share, in percent: in 95 % of samples of n_all it holds the true one."""
    z2, share = SURE**2, n_hits / n_all
    centre = (share + z2 / (2 * n_all)) / (1 + z2 / n_all)
    half = SURE / (1 + z2 / n_all) * np.sqrt(share * (1 - share) / n_all + z2 / (4 * n_all**2))
    return 100 * max(0.0, float(centre - half)), 100 * min(1.0, float(centre + half))


def resampled(measure: Callable[[NDArray[Any]], float], n_rows: int, seed: int = 0) -> tuple[float, float] | None:
    """A 95 % interval of a measure by the bootstrap; it takes numbers of rows, and may give NaN where it has no value.

    None where half of the samples, or more, have none.
    """
    random = np.random.default_rng(seed)
    found = np.array([measure(random.integers(n_rows, size=n_rows)) for _ in range(SAMPLES)])
    found = found[np.isfinite(found)]
    if len(found) <= SAMPLES / 2:
        return None
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def standard_error(values: NDArray[Any]) -> float:
    """Of the mean; 0 of a single number."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def reliability(p: NDArray[Any], happened: NDArray[Any]) -> dict[str, Any]:
    """In ten equal bins of p (n,): how many, their mean p and the share that happened, in percent (None where empty).

    ``"ece"`` is the mean distance of the two over bins, weighted by counts, in percent.
    """
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    sure, right = (np.bincount(bins, weights, BINS) for weights in (p, happened))
    return {
        "count": count.tolist(),
        "confidence": [round(100 * min(1.0, s / n), 3) if n else None for s, n in zip(sure, count, strict=True)],
        "accuracy": [round(100 * r / n, 3) if n else None for r, n in zip(right, count, strict=True)],
        "ece": round(100 * float(np.abs(sure - right).sum() / len(p)), 4),
    }


def calibration_error(p: NDArray[Any], happened: NDArray[Any]) -> float:
    """The expected calibration error of p (n,), in percent."""
    return float(reliability(p, happened)["ece"])


def f1_scores(predicted: NDArray[Any], Y: NDArray[Any]) -> dict[str, float]:
    """F1 of labels (n, L) over rows, over labels and over all cells; 1 where nothing is predicted and nothing is."""
    names = {"example_f1": "samples", "macro_f1": "macro", "micro_f1": "micro"}
    return {
        name: 100 * float(f1_score(Y, predicted, average=average, zero_division=1.0)) for name, average in names.items()
    }


# --- what rows held out say of a model, by its task --------------------------------------------------------------


def of_classes(log_proba: NDArray[Any], classes: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    """Of log-probabilities (n, K) of sorted ``classes`` (K,); y (n,) holds classes."""
    wrong = classes[log_proba.argmax(1)] != y
    return {
        "error": 100 * float(wrong.mean()),
        "error_interval": list(wilson(int(wrong.sum()), len(y))),
        "n_wrong": int(wrong.sum()),
        "log_loss": float(-log_proba[np.arange(len(y)), np.searchsorted(classes, y)].mean()),
        "calibration_error": calibration_error(np.exp(log_proba.max(1)), ~wrong),
    }


def of_labels(p: NDArray[Any], predicted: NDArray[Any], Y: NDArray[Any]) -> dict[str, Any]:
    """Of probabilities and predictions (n, L), which need not be the labels with p above one half."""
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return {
        "label_error": 100 * float((predicted != Y).mean()),
        "row_error": 100 * float((predicted != Y).any(1).mean()),
        "row_error_interval": list(wilson(int((predicted != Y).any(1).sum()), len(Y))),
        "log_loss": log_loss(p, Y),
        "calibration_error": calibration_error(np.maximum(p, 1 - p).ravel(), ((p > 0.5) == Y).ravel()),
    }


def of_anomalies(scores: NDArray[Any], y: NDArray[Any] | None) -> dict[str, Any]:
    """Of scores (n,), below 0 for rows taken for anomalies; y (n,) is 1 for those that are, or None if nobody knows."""
    found: dict[str, Any] = {"flagged": 100 * float((scores < 0).mean())}
    if y is not None and 0 < y.sum() < len(y):
        found["roc_auc"] = float(roc_auc_score(y, -scores))
    return found
