"""Classifiers of rows that carry any number of labels: each label alone, chains of labels, and nearest neighbours.

All take labels as a table of 0 and 1, a row for each row and a column for each label, and give a table of
probabilities of the same shape.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators.edge import Array
from energate.estimators.network import whole_number
from energate.paper.baselines._svm import _above_0, _scaler

MAX_ITER = 2000  # of logistic regressions, which end long before that on scaled columns
SPARSE_BELOW = 0.1  # rows with a smaller share of values other than 0 are quicker as a sparse matrix


def check_labels(Y: Any, n_rows: int) -> Array:
    """Labels as a dense table (n, L) of 0.0 and 1.0."""
    found = check_array(Y, accept_sparse="csr", ensure_2d=False, dtype=np.float64, input_name="Y")
    table: Array = found if isinstance(found, np.ndarray) else found.toarray()
    if table.ndim != 2:
        raise InputError(
            f"`Y` must be (n, L), a column of 0 and 1 for each label; got shape {table.shape}. Use "
            "sklearn.preprocessing.MultiLabelBinarizer for lists of labels, Y.reshape(-1, 1) for a single label."
        )
    if not np.isin(table, (0.0, 1.0)).all():
        odd = table[~np.isin(table, (0.0, 1.0))][:3]
        raise InputError(f"`Y` must hold only 0 (label off) and 1 (label on); got also {odd.tolist()}.")
    if len(table) != n_rows:
        raise InputError(f"`Y` must have a row for each of the {n_rows} rows of `X`; got {len(table)}.")
    return table


class LabelClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """What all classifiers of several labels share: `fit`, `predict_proba` and `predict` on checked tables.

    `score` is the share of rows whose labels are all right.

    Attributes
    ----------
    classes_ : the numbers of the labels, from 0.
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    @abstractmethod
    def _fit(self, X: Array, Y: Array) -> None:
        """Check the parameters and learn from rows (n, D) and labels (n, L)."""

    @abstractmethod
    def _probabilities(self, X: Array) -> Array:
        """The probability of every label: (n, L)."""

    @abstractmethod
    def _choose(self, X: Array) -> NDArray[np.bool_]:
        """The labels to predict: (n, L)."""

    def fit(self, X: Any, Y: Any) -> Self:
        """Learn from rows (n, D) and their labels (n, L), 0 or 1, dense or sparse."""
        self.__dict__.pop("classes_", None)  # it comes last: not fitted until then
        X = validate_data(self, X, dtype=np.float64)
        labels = check_labels(Y, len(X))
        self._fit(X, labels)
        self.classes_ = np.arange(labels.shape[1])
        return self

    def predict_proba(self, X: Any) -> Array:
        """The probability of every label: (n, L)."""
        return self._probabilities(self._checked(X))

    def predict(self, X: Any) -> NDArray[np.int64]:
        """The labels, 0 or 1: (n, L)."""
        return self._choose(self._checked(X)).astype(np.int64)

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self, "classes_")
        checked: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return checked

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.target_tags.two_d_labels = True
        tags.classifier_tags.multi_label = True
        return tags


class SeparateLabels(LabelClassifier, ABC):
    """Classifiers that decide on each label by its own probability: on where it is above one half."""

    def _choose(self, X: Array) -> NDArray[np.bool_]:
        on: NDArray[np.bool_] = self._probabilities(X) > 0.5
        return on


def varying(Y: Array) -> NDArray[np.intp]:
    """The numbers of the labels that are on in some rows and off in others."""
    return np.flatnonzero((Y.min(axis=0) < 1) & (Y.max(axis=0) > 0))


def shares(Y: Array) -> Array:
    """How often each label is on, as if seen once more on and once more off: never 0 nor 1, (L,)."""
    share: Array = (Y.sum(axis=0) + 1) / (len(Y) + 2)
    return share


def distinct(Y: Array) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """The different label vectors (S, L), the most frequent first, which one each row has (n,), and counts (S,)."""
    sets, own, count = np.unique(Y, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return sets[order], place[own.reshape(-1)], count[order]


# --- each label alone ------------------------------------------------------------------------------------------


class EachLabel(SeparateLabels):
    """A classifier of two classes for each label; what never changes keeps its share, (count + 1) / (n + 2).

    Parameters
    ----------
    estimator : is cloned for every label, and needs `predict_proba`.
    sparse_below : rows go to it as a sparse matrix where the share of values other than 0 is less than this.

    Attributes
    ----------
    estimators_ : by the number of the label, for labels that change.
    shares_ : how often each label is on, (L,).
    """

    def __init__(self, estimator: Any, sparse_below: float = 0.0) -> None:
        self.estimator = estimator
        self.sparse_below = sparse_below

    def _fit(self, X: Array, Y: Array) -> None:
        rows = self._rows(X)
        self.shares_ = shares(Y)
        self.estimators_ = {int(label): clone(self.estimator).fit(rows, Y[:, label]) for label in varying(Y)}

    def _rows(self, X: Array) -> Any:
        return sparse.csr_matrix(X) if np.count_nonzero(X) < self.sparse_below * X.size else X

    def _probabilities(self, X: Array) -> Array:
        probabilities = np.tile(self.shares_, (len(X), 1))
        rows = self._rows(X)
        for label, estimator in self.estimators_.items():
            probabilities[:, label] = estimator.predict_proba(rows)[:, 1]
        return probabilities


def logistic_labels(C: float = 1.0, scaling: str = "standard", random_state: Any = None) -> Pipeline:  # noqa: ARG001
    """Scaling, then a logistic regression for each label: a pipeline of the steps ``"scaler"`` and ``"labels"``.

    Nothing in it is random; ``random_state`` is taken so that it can be made as the others are.
    """
    check_cost(C)
    each = EachLabel(LogisticRegression(C=C, max_iter=MAX_ITER), sparse_below=SPARSE_BELOW)
    return Pipeline([("scaler", _scaler(scaling)), ("labels", each)])


def boosted_labels(
    max_iter: int = 100,
    learning_rate: float = 0.1,
    max_leaf_nodes: int = 31,
    l2_regularization: float = 0.0,
    random_state: Any = None,
) -> EachLabel:
    """Boosted trees for each label, `sklearn.ensemble.HistGradientBoostingClassifier`; trees need no scaling."""
    trees = HistGradientBoostingClassifier(
        max_iter=max_iter,
        learning_rate=learning_rate,
        max_leaf_nodes=max_leaf_nodes,
        l2_regularization=l2_regularization,
        random_state=random_state,
    )
    return EachLabel(trees)


def check_cost(C: Any) -> None:
    """Refuse a `C` that means nothing."""
    if not _above_0(C):
        raise InputError(f"`C` must be a number above 0; got {C!r}.")


def folds_of(estimator: Any, n_rows: int, seed: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The rows to learn from and the rows left out, ``estimator.cv`` times, in random order."""
    n_folds = whole_number(estimator, "cv", 2)
    if n_folds > n_rows:
        raise InputError(f"`cv` must be at most the number of rows, {n_rows}; got {n_folds}.")
    return KFold(n_folds, shuffle=True, random_state=seed).split(np.zeros(n_rows))


# --- labels together -------------------------------------------------------------------------------------------


class LabelChains(SeparateLabels):
    """Classifier chains of logistic regressions, each in a random order of the labels; probabilities are averaged.

    Parameters
    ----------
    C : of the logistic regressions.
    n_chains : how many.
    random_state : of the orders.

    Attributes
    ----------
    chains_ : `sklearn.multioutput.ClassifierChain`, over the labels ``varying_`` that change.
    shares_ : how often each label is on, (L,).
    """

    def __init__(self, C: float = 1.0, n_chains: int = 10, *, random_state: Any = None) -> None:
        self.C = C
        self.n_chains = n_chains
        self.random_state = random_state

    def _fit(self, X: Array, Y: Array) -> None:
        check_cost(self.C)
        random = check_random_state(self.random_state)
        self.shares_, self.varying_ = shares(Y), varying(Y)
        seeds = random.randint(2**31 - 1, size=whole_number(self, "n_chains", 1) if len(self.varying_) else 0)
        logistic = LogisticRegression(C=self.C, max_iter=MAX_ITER)
        self.chains_ = [
            ClassifierChain(logistic, order="random", random_state=int(seed)).fit(X, Y[:, self.varying_])
            for seed in seeds
        ]

    def _probabilities(self, X: Array) -> Array:
        probabilities = np.tile(self.shares_, (len(X), 1))
        if self.chains_:
            probabilities[:, self.varying_] = np.mean([chain.predict_proba(X) for chain in self.chains_], axis=0)
        return probabilities


def chain_labels(C: float = 1.0, n_chains: int = 10, scaling: str = "standard", random_state: Any = None) -> Pipeline:
    """Scaling, then `LabelChains`: a pipeline of the steps ``"scaler"`` and ``"labels"``."""
    return Pipeline([("scaler", _scaler(scaling)), ("labels", LabelChains(C, n_chains, random_state=random_state))])


class MLkNN(SeparateLabels):
    """Nearest neighbours for several labels (Zhang & Zhou 2007).

    With c the number of a row's k neighbours that have a label, its probability is that of Bayes' rule from
    P(on) = (s + n_on) / (2 s + n) and P(c | on) = (s + rows that have it, c of their neighbours, too) / (s (k + 1) +
    n_on), and likewise for off.  A training row is no neighbour of itself.

    Parameters
    ----------
    k : neighbours.
    s : how many rows of each kind are taken to be seen before any, above 0.

    Attributes
    ----------
    share_ : P(on), (L,).
    likelihood_ : P(c | off) and P(c | on), (2, k + 1, L).
    """

    def __init__(self, k: int = 10, s: float = 1.0) -> None:
        self.k = k
        self.s = s

    def _fit(self, X: Array, Y: Array) -> None:
        k = whole_number(self, "k", 1)
        if not _above_0(self.s):
            raise InputError(f"`s` must be a number above 0; got {self.s!r}.")
        if k >= len(X):
            raise InputError(f"`k` must be less than the number of rows, {len(X)}; got {k}.")
        self.neighbours_, self.Y_ = NearestNeighbors(n_neighbors=k).fit(X), Y
        count = self._counts(self.neighbours_.kneighbors(return_distance=False))  # without X: others than the row
        seen = np.zeros((2, k + 1, Y.shape[1]))
        np.add.at(seen, (Y.astype(np.intp), count, np.arange(Y.shape[1])), 1)
        self.likelihood_ = (self.s + seen) / (self.s * (k + 1) + seen.sum(axis=1, keepdims=True))
        self.share_ = (self.s + Y.sum(axis=0)) / (2 * self.s + len(Y))

    def _counts(self, neighbours: NDArray[np.intp]) -> NDArray[np.intp]:
        """How many of the neighbours (n, k) have each label: (n, L)."""
        count = np.zeros((len(neighbours), self.Y_.shape[1]))
        for column in neighbours.T:  # one neighbour of all rows at a time, so that nothing is (n, k, L)
            count += self.Y_[column]
        return count.astype(np.intp)

    def _probabilities(self, X: Array) -> Array:
        count = self._counts(self.neighbours_.kneighbors(X, return_distance=False))
        label = np.arange(count.shape[1])
        on = self.share_ * self.likelihood_[1, count, label]
        off = (1 - self.share_) * self.likelihood_[0, count, label]
        probability: Array = on / (on + off)
        return probability
