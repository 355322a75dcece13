"""`svm_labels`: a support vector machine for each label, all on one kernel, with calibrated probabilities."""

from typing import Any

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from energate.baselines._multilabel import SeparateLabels, check_cost, folds_of, varying
from energate.baselines._svm import KERNEL_VALUES, _gaussian, _scaler, find_gamma
from energate.estimators._base import Array, draw_seed

NEWTON_STEPS, HALVINGS, SMALL_SLOPE = 100, 40, 1e-10


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
        self.slope_, self.offset_ = platt(margins, Y)
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


def platt(scores: Array, Y: Array) -> tuple[Array, Array]:
    """Slopes and offsets (L,) so that sigmoid(slope * score + offset) is the probability of each label.

    Platt (1999): cross-entropy with targets (N_on + 1) / (N_on + 2) and 1 / (N_off + 2) in place of 1 and 0, so that
    slopes are finite; by Newton steps, halved until they help (Lin, Lin & Weng 2007), for all labels at once.  Scores
    that speak against their own label, which happens where few rows have it, get the best slope that is not
    negative: 0.
    """
    n_on = Y.sum(axis=0)
    target = np.where(Y > 0, (n_on + 1) / (n_on + 2), 1 / (len(Y) - n_on + 2))
    centre, size = scores.mean(axis=0), scores.std(axis=0)
    size = np.where(size > 0, size, 1.0)
    z = (scores - centre) / size

    def loss(a: Array, b: Array) -> Array:
        u = a * z + b
        total: Array = (np.logaddexp(0, u) - target * u).sum(axis=0)
        return total

    mean = target.mean(axis=0)
    alone = np.log(mean / (1 - mean))  # the best offset without a slope
    a, b, now = np.zeros_like(alone), alone, loss(np.zeros_like(alone), alone)
    for _ in range(NEWTON_STEPS):
        p = expit(a * z + b)
        g_a, g_b = ((p - target) * z).sum(axis=0), (p - target).sum(axis=0)
        if max(np.abs(g_a).max(), np.abs(g_b).max()) < SMALL_SLOPE * len(Y):
            break
        w = p * (1 - p)
        h_aa, h_ab, h_bb = (w * z * z).sum(axis=0) + 1e-12, (w * z).sum(axis=0), w.sum(axis=0) + 1e-12
        determinant = h_aa * h_bb - h_ab**2
        d_a, d_b = (h_ab * g_b - h_bb * g_a) / determinant, (h_ab * g_a - h_aa * g_b) / determinant
        step = np.ones_like(a)
        for _ in range(HALVINGS):
            enough = loss(a + step * d_a, b + step * d_b) <= now + 1e-4 * step * (g_a * d_a + g_b * d_b)
            if enough.all():
                break
            step = np.where(enough, step, step / 2)
        better = loss(a + step * d_a, b + step * d_b)
        moves = better < now
        if not moves.any():
            break
        a, b, now = np.where(moves, a + step * d_a, a), np.where(moves, b + step * d_b, b), np.minimum(better, now)
    b, a = np.where(a < 0, alone, b), np.maximum(a, 0)
    return a / size, b - a * centre / size
