"""Support vector machines with a Gaussian kernel: of classes (`svm`), and one for each label (`svm_labels`).

scikit-learn's SVC computes a kernel one pair of rows at a time.  Here libsvm still solves the problem, but is handed
the kernel, which is a matrix product and an exponential.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from energate.errors import InputError
from energate.estimators.bases import calibrated, varying
from energate.estimators.edge import Array, draw_seed, encode_labels, find_classes
from energate.paper.baselines.shared import SeparateLabels, above_0, check_above_0, folds_of, scaler_of

#: what to search over, with `search_svm` or `sklearn.model_selection.GridSearchCV`
SVM_GRID: dict[str, list[Any]] = {"svc__C": [1.0, 10.0, 100.0], "svc__gamma": ["scale", 0.003, 0.01, 0.03, 0.1]}
KERNEL_VALUES = 2**24  # of the kernel at once when predicting: 128 MiB


@dataclass(eq=False, repr=False)
class GaussianSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """`sklearn.svm.SVC` with the kernel exp(-gamma |x - x'|^2), computed by matrix products.

    The solution and the votes between pairs of classes are those of SVC; there are no probabilities.  `fit` holds the
    kernel of all pairs of rows, 800 MB for 10,000 rows; `predict` takes rows in chunks.

    Parameters
    ----------
    C : how much errors cost, above 0.
    gamma : of the kernel, above 0; ``"scale"`` is 1 / (number of columns * variance of all values).

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    gamma_ : ``gamma`` as a number.
    support_, support_vectors_ : the rows that matter, by number and as they are.
    coef_of_pairs_, intercept_ : the weights (S, P) of these rows and the offsets (P,) for each pair of classes, the
        first with the second, with the third, ...; above 0 the pair votes for the first of the two.
    """

    C: float = 10.0
    gamma: float | str = "scale"

    def fit(self, X: Any, y: Any) -> Self:
        """Solve for the support vectors."""
        check_above_0("C", self.C)
        X, y = validate_data(self, X, y, dtype=np.float64)
        classes = find_classes(y)
        labels = encode_labels(y, classes)
        gamma = find_gamma(self.gamma, X)
        squared = euclidean_distances(X, squared=True)
        return self._solve(X, labels, classes, gamma, _gaussian(squared, gamma, squared))

    def _solve(self, X: Array, labels: NDArray[np.int64], classes: NDArray[Any], gamma: float, kernel: Array) -> Self:
        """Fit to rows whose kernel is known."""
        svc = SVC(C=self.C, kernel="precomputed").fit(kernel, labels)
        sign = -1.0 if len(classes) == 2 else 1.0  # for two classes SVC votes the other way round
        self.classes_, self.gamma_, self.n_features_in_ = classes, gamma, X.shape[1]
        self.support_, self.support_vectors_ = svc.support_, X[svc.support_]
        self.intercept_ = sign * svc.intercept_
        self.coef_of_pairs_ = sign * _of_pairs(svc.dual_coef_, labels[svc.support_], len(classes))
        return self

    def _pairs(self, X: Any) -> Array:
        """What each pair of classes says of each row: (n, P)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        size = max(1, KERNEL_VALUES // len(self.support_))
        parts = [X[start : start + size] for start in range(0, len(X), size)]
        return np.concatenate(
            [self._pairs_of(euclidean_distances(part, self.support_vectors_, squared=True)) for part in parts]
        )

    def _pairs_of(self, squared: Array) -> Array:
        """The same from squared distances to the support vectors, which are overwritten."""
        said: Array = _gaussian(squared, self.gamma_, squared) @ self.coef_of_pairs_ + self.intercept_
        return said

    def _most_votes(self, said: Array) -> NDArray[Any]:
        return self.classes_[_votes(said, len(self.classes_)).argmax(1)]  # of equals the first

    def decision_function(self, X: Any) -> Array:
        """Votes (n, K), with less than half a vote for how clear they are; for two classes the margin of the second."""
        said = self._pairs(X)
        if len(self.classes_) == 2:
            return -said[:, 0]
        clear = said @ _signs(len(self.classes_))
        decision: Array = _votes(said, len(self.classes_)) + clear / (3 * (np.abs(clear) + 1))
        return decision

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row that most pairs vote for: (n,)."""
        return self._most_votes(self._pairs(X))


def find_gamma(gamma: Any, X: Array) -> float:
    """``gamma`` as a number."""
    if isinstance(gamma, str) and gamma == "scale":
        variance = float(X.var())
        return 1 / (X.shape[1] * variance) if variance > 0 else 1.0
    if not above_0(gamma):
        raise InputError(f"`gamma` must be 'scale' or a number above 0; got {gamma!r}.")
    return float(gamma)


def _gaussian(squared: Array, gamma: float, out: Array) -> Array:
    """exp(-gamma d^2), written to ``out``: kernels are large."""
    np.multiply(squared, -gamma, out=out)
    return np.exp(out, out=out)


def _signs(n_classes: int) -> Array:
    """1 for the first and -1 for the second class of each pair: (P, K)."""
    first, second = np.triu_indices(n_classes, 1)
    eye = np.eye(n_classes)
    return eye[first] - eye[second]


def _votes(said: Array, n_classes: int) -> Array:
    """How many pairs vote for each class: (n, K)."""
    signs = _signs(n_classes)
    votes: Array = np.where(said > 0, 1.0, 0.0) @ (signs > 0) + np.where(said > 0, 0.0, 1.0) @ (signs < 0)
    return votes


def _of_pairs(dual_coef: Array, labels: NDArray[np.int64], n_classes: int) -> Array:
    """The weights (K - 1, S) of support vectors, each against the classes that are not its own, as (S, P)."""
    coef = np.zeros((len(labels), n_classes * (n_classes - 1) // 2))
    for pair, (first, second) in enumerate(zip(*np.triu_indices(n_classes, 1), strict=True)):
        # Own classes are left out, so the number of a class that comes after one's own is less by 1.
        coef[labels == first, pair] = dual_coef[second - 1, labels == first]
        coef[labels == second, pair] = dual_coef[first, labels == second]
    return coef


def svm(C: float = 10.0, gamma: float | str = "scale", scaling: str = "unit", random_state: Any = None) -> Pipeline:  # noqa: ARG001
    """Scaling, then `GaussianSVC`: a pipeline of the steps ``"scaler"`` and ``"svc"``.

    Nothing in it is random; ``random_state`` is taken so that it can be made as the others are.
    """
    return Pipeline([("scaler", scaler_of(scaling)), ("svc", GaussianSVC(C=C, gamma=gamma))])


# --- search ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SVMTrial:
    """One point of the grid; ``valid_error`` is a share of the validation rows, ``seconds`` those of its fit."""

    C: float
    gamma: float | str
    valid_error: float
    seconds: float


@dataclass(frozen=True)
class SVMSearch:
    """All trials in the order of the grid, the number of the best, and the best as a fitted pipeline."""

    trials: list[SVMTrial]
    chosen: int
    best: Pipeline


def search_svm(
    X: Any,
    y: Any,
    X_valid: Any,
    y_valid: Any,
    grid: Mapping[str, Sequence[Any]] = SVM_GRID,
    *,
    scaling: str = "unit",
    n_jobs: int = 1,
    show: Callable[[SVMTrial], None] | None = None,
) -> SVMSearch:
    """Fit `svm` with every ``gamma`` and ``C`` of the grid, and keep the one with the fewest errors on ``X_valid``.

    Distances are computed once, the kernel once for each gamma; ``n_jobs`` values of C are fitted at a time.  Of equals
    the first in the grid is kept.  Memory is that of two kernels: 1.6 GB for 10,000 rows.  ``show`` gets each trial
    when its gamma is done.
    """
    if grid.keys() != SVM_GRID.keys() or not all(len(values) for values in grid.values()):
        raise InputError(f"`grid` must have values for {' and '.join(SVM_GRID)}, and no other keys; got {grid!r}.")
    X, y = check_X_y(X, y, dtype=np.float64)
    X_valid, y_valid = check_X_y(X_valid, y_valid, dtype=np.float64)
    scaler = scaler_of(scaling).fit(X)
    X, X_valid = scaler.transform(X), scaler.transform(X_valid)
    classes = find_classes(y)
    labels = encode_labels(y, classes)
    squared, squared_valid = euclidean_distances(X, squared=True), euclidean_distances(X_valid, X, squared=True)
    kernel = np.empty_like(squared)
    trials: list[SVMTrial] = []
    best, chosen = GaussianSVC(), -1
    for gamma in grid["svc__gamma"]:
        number = find_gamma(gamma, X)
        _gaussian(squared, number, kernel)

        def fit(C: float, gamma: Any = gamma, number: float = number) -> tuple[GaussianSVC, SVMTrial]:
            began = time.perf_counter()
            model = GaussianSVC(C=C, gamma=gamma)
            check_above_0("C", C)
            model._solve(X, labels, classes, number, kernel)
            predicted = model._most_votes(model._pairs_of(squared_valid[:, model.support_]))
            error = float(np.mean(predicted != y_valid))
            return model, SVMTrial(float(C), gamma, error, time.perf_counter() - began)

        with ThreadPoolExecutor(n_jobs) as pool:  # libsvm lets other threads run
            for model, trial in pool.map(fit, grid["svc__C"]):
                if chosen < 0 or trial.valid_error < trials[chosen].valid_error:
                    best, chosen = model, len(trials)
                trials.append(trial)
                if show is not None:
                    show(trial)
    return SVMSearch(trials, chosen, Pipeline([("scaler", scaler), ("svc", best)]))


# --- several labels --------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
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

    C: float = 1.0
    gamma: float | str = "scale"
    _: KW_ONLY
    cv: int = 5
    random_state: Any = None

    def _fit(self, X: Array, Y: Array) -> None:
        check_above_0("C", self.C)
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
        for label in np.flatnonzero(varying(Y)):
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
    return Pipeline([("scaler", scaler_of(scaling)), ("labels", SVMLabels(C, gamma, random_state=random_state))])
