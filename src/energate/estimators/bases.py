"""What a base classifier says of rows, whatever its form: scores (n, L), one for each label."""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import KFold

from energate.errors import InputError
from energate.training.calibration import calibrate_labels

Array = NDArray[np.float64]
MOST = 15.0  # the logit of a probability of 0 or 1
FoldsDone = Callable[[int], object]  # is told how many folds are done


def _silent(n_folds: int) -> None:
    """Tell nobody."""


def label_scores(base: Any, X: Any, n_labels: int) -> Array:
    """Logits, or scores like them, of a fitted multi-label classifier: (n, L).

    From ``decision_function``, or else ``predict_proba``: an array (n, L), or one (n, 2) for each label as
    `sklearn.multioutput.MultiOutputClassifier` gives them.
    """
    decide, proba = getattr(base, "decision_function", None), getattr(base, "predict_proba", None)
    if decide is not None:
        scores = np.asarray(decide(X), dtype=np.float64)
    elif proba is not None:
        p = _of_ones(base, proba(X))
        scores = np.clip(np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(1 - p, 1e-300)), -MOST, MOST)
    else:
        raise InputError(
            f"`base` must have predict_proba or decision_function; {type(base).__name__} has neither. Wrap it, for "
            "example in sklearn.calibration.CalibratedClassifierCV inside a MultiOutputClassifier."
        )
    scores = scores.reshape(-1, 1) if scores.ndim == 1 else scores
    if scores.ndim != 2 or scores.shape[1] != n_labels or not np.isfinite(scores).all():
        what = "numbers that are not finite" if scores.ndim == 2 and scores.shape[1] == n_labels else f"{scores.shape}"
        raise InputError(
            f"`base` must give one finite score per row and label, (n, {n_labels}); {type(base).__name__} gave {what}."
        )
    return scores


class MissingBase(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Stands for a base that was not saved with its refiner: it knows the class, and what to do."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def _refuse(self) -> InputError:
        return InputError(
            f"This refiner was loaded without its base, a {self.kind}. Load it with load(path, base=the fitted "
            f"{self.kind}), or refine scores that you have with `refine(scores, X)`; to fit again, set `base` first."
        )

    def fit(self, X: Any, Y: Any) -> Self:  # noqa: ARG002
        raise self._refuse()

    def decision_function(self, X: Any) -> Array:  # noqa: ARG002
        """The scores that are missing: always an error."""
        raise self._refuse()


def _of_ones(base: Any, given: Any) -> Array:
    """The probability that each label is on."""
    if not isinstance(given, list):
        p = np.asarray(given, dtype=np.float64)
        return p[:, 1:] if p.ndim == 2 and p.shape[1] == 2 and np.allclose(p.sum(1), 1) and _binary(base) else p
    columns = []
    for label, each in enumerate(given):
        p = np.asarray(each, dtype=np.float64)
        if p.shape[1] == 2:
            columns.append(p[:, 1])
        else:  # a label that was always on, or always off
            columns.append(np.full(len(p), float(np.asarray(base.classes_[label])[0] == 1)))
    return np.stack(columns, 1)


def _binary(base: Any) -> bool:
    """Whether two columns are the two classes of one label, not two labels."""
    classes = getattr(base, "classes_", None)
    return isinstance(classes, np.ndarray) and classes.ndim == 1 and classes.tolist() == [0, 1]


def varying(Y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which labels are on in some rows and off in others: many classifiers cannot be fitted to the rest."""
    found: NDArray[np.bool_] = (Y[:1] != Y).any(0)
    return found


def fit_base(base: Any, X: Any, Y: NDArray[Any]) -> Any:
    """A copy of the base, fitted to the labels that vary; None where there are none."""
    labels = varying(Y)
    return clone(base).fit(X, Y[:, labels]) if labels.any() else None


def all_scores(fitted: Any, X: Any, labels: NDArray[np.bool_], constant: NDArray[Any]) -> Array:
    """Scores of the labels that the base was fitted to, and the others as they always were: (n, L)."""
    scores = np.tile(np.where(constant > 0, MOST, -MOST).astype(np.float64), (len(X), 1))
    if labels.any():
        scores[:, labels] = label_scores(fitted, X, int(labels.sum()))
    return scores


class CrossFitted(ABC):
    """A base that keeps, in ``out_of_fold_`` (n, L), what it said of each training row before it had seen it.

    These are scores like those of its ``decision_function``.  They save whoever needs such scores the fits.
    """

    out_of_fold_: Array


def out_of_fold(base: Any, X: Any, Y: NDArray[Any], n_folds: int, seed: int, told: FoldsDone = _silent) -> Array:
    """Scores of every row from a copy of the base that was fitted without it: (n, L)."""
    folds = list(KFold(n_folds, shuffle=True, random_state=seed).split(Y))
    return scores_by_fold(base, X, Y, folds, "`base`", told)


def scores_by_fold(
    base: Any, X: Any, Y: NDArray[Any], folds: Sequence[tuple[Any, Any]], name: str, told: FoldsDone = _silent
) -> Array:
    """Scores of the rows left out of each fold, from a copy of the base fitted to the others: (n, L)."""
    scores = np.empty(Y.shape, dtype=np.float64)
    for k, (train, rest) in enumerate(folds):
        try:
            fitted = fit_base(base, X[train], Y[train])
            scores[rest] = all_scores(fitted, X[rest], varying(Y[train]), Y[train][0])
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{name} could not be fitted in fold {k + 1} of {len(folds)}: {type(error).__name__}: {error} Fit it "
                "alone first to see what it needs; fewer folds (`cv`) leave more rows in each."
            ) from error
        told(k + 1)
    return scores


def fit_with_unseen_scores(
    base: Any, X: Any, Y: NDArray[Any], n_folds: int, seed: int, told: FoldsDone = _silent
) -> tuple[Any, Array]:
    """A base fitted to all rows, and scores (n, L) of each row by one that has not seen it."""
    labels = varying(Y)
    if not isinstance(base, CrossFitted):
        scores = out_of_fold(base, X, Y, n_folds, seed, told)
        return fit_base(base, X, Y), scores
    fitted = fit_base(base, X, Y)
    scores = all_scores(None, X, np.zeros_like(labels), Y[0])
    if labels.any():
        scores[:, labels] = fitted.out_of_fold_
    return fitted, scores


def calibrated(scores: Array, Y: NDArray[Any]) -> tuple[Array, Array]:
    """`calibrate_labels` of arrays: slopes and offsets (L,) that make logits of scores (n, L) of rows not seen."""
    slope, offset = calibrate_labels(torch.as_tensor(scores), torch.as_tensor(Y))
    return slope.numpy(), offset.numpy()
