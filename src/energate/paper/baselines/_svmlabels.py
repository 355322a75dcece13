"""`svm_labels`: a support vector machine for each label, all on one kernel, with calibrated probabilities."""

from typing import Any

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from energate.estimators.bases import calibrated
from energate.estimators.edge import Array, draw_seed
from energate.paper.baselines._multilabel import SeparateLabels, check_cost, folds_of, varying
from energate.paper.baselines._svm import KERNEL_VALUES, _gaussian, _scaler, find_gamma


class SVMLabels(SeparateLabels):
    """A support vector machine with a Gaussian kernel for each label, and probabilities by Platt's sigmoid.

    One kernel serves all labels, and its parts serve the folds that the sigmoids are fitted on.  `fit` holds it, 8 n^2
    bytes.  The folds are the same for all labels; a label that is constant outside a fold gets -1 or 1 there, the
    margin that a machine without errors would have.

    Parameters
    ----------
    C, gamma : as in `GaussianSVC`.
    cv : number of folds.
    random_state : of the folds.

    Attributes
    ----------
    support_vectors_ : (S, D), the rows that matter to any label.
    coef_, intercept_ : their weights (S, L) and the offsets (L,).
    slope_, offset_ : of the sigmoids, (L,).
    """

    def __init__(self, C: float = 1.0, gamma: float | str = "scale", *, cv: int = 5, random_state: Any = None) -> None:
        self.C = C
        self.gamma = gamma
        self.cv = cv
        self.random_state = random_state

    def _fit(self, X: Array, Y: Array) -> None:
        check_cost(self.C)
        self.gamma_ = find_gamma(self.gamma, X)
        folds = folds_of(self, len(X), draw_seed(self.random_state))
        squared = euclidean_distances(X, squared=True)
        kernel = _gaussian(squared, self.gamma_, squared)
        margins = np.empty_like(Y)
        for learn, left_out in folds:
            coef, intercept = self._solve(kernel[np.ix_(learn, learn)], Y[learn])
            margins[left_out] = kernel[np.ix_(left_out, learn)] @ coef + intercept
        self.slope_, self.offset_ = calibrated(margins, Y)
        coef, self.intercept_ = self._solve(kernel, Y)
        used = coef.any(axis=1)
        self.support_vectors_, self.coef_ = X[used], coef[used]

    def _solve(self, kernel: Array, Y: Array) -> tuple[Array, Array]:
        """The weights (n, L) of all rows and the offsets (L,)."""
        coef, intercept = np.zeros_like(Y), 2 * Y[0] - 1
        for label in varying(Y):
            svc = SVC(C=self.C, kernel="precomputed").fit(kernel, Y[:, label])
            coef[svc.support_, label], intercept[label] = svc.dual_coef_[0], svc.intercept_[0]
        return coef, intercept

    def _margins(self, X: Array) -> Array:
        size = max(1, KERNEL_VALUES // max(1, len(self.support_vectors_)))
        margins = np.tile(self.intercept_, (len(X), 1))
        for start in range(0, len(X) if len(self.support_vectors_) else 0, size):
            squared = euclidean_distances(X[start : start + size], self.support_vectors_, squared=True)
            margins[start : start + size] += _gaussian(squared, self.gamma_, squared) @ self.coef_
        return margins

    def decision_function(self, X: Any) -> Array:
        """The margin of every label, above 0 where the machine says that it is on: (n, L)."""
        return self._margins(self._checked(X))

    def _probabilities(self, X: Array) -> Array:
        return expit(self.slope_ * self._margins(X) + self.offset_)


def svm_labels(
    C: float = 1.0, gamma: float | str = "scale", scaling: str = "standard", random_state: Any = None
) -> Pipeline:
    """Scaling, then `SVMLabels`: a pipeline of the steps ``"scaler"`` and ``"labels"``."""
    return Pipeline([("scaler", _scaler(scaling)), ("labels", SVMLabels(C, gamma, random_state=random_state))])


def expit(u: Array) -> Array:
    """1 / (1 + exp(-u)), without overflow."""
    small = np.exp(-np.abs(u))
    return np.where(u >= 0, 1.0, small) / (1 + small)
