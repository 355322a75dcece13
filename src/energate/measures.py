"""Probabilities against what happened: the numbers of a reliability diagram, and the expected calibration error."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 10


def log_loss(p: NDArray[Any], truth: NDArray[Any]) -> float:
    """The mean over rows and labels of -log of the probability of what is; p and truth are (n, L)."""
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return float(-(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean())


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
