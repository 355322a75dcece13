"""Classifiers of rows that carry any number of labels: each label alone, chains of labels, and nearest neighbours.

All take labels as a table of 0 and 1, a row for each row and a column for each label, and give a table of
probabilities of the same shape.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import Pipeline
from sklearn.utils import check_random_state

from energate.errors import InputError
from energate.estimators.bases import varying
from energate.estimators.edge import Array, whole_number
from energate.paper.baselines.shared import SeparateLabels, check_above_0, scaler_of, shares

MAX_ITER = 2000  # of logistic regressions, which end long before that on scaled columns
SPARSE_BELOW = 0.1  # rows with a smaller share of values other than 0 are quicker as a sparse matrix


@dataclass(eq=False, repr=False)
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

    estimator: Any
    sparse_below: float = 0.0

    def _fit(self, X: Array, Y: Array) -> None:
        rows = self._rows(X)
        self.shares_ = shares(Y)
        self.estimators_ = {
            int(label): clone(self.estimator).fit(rows, Y[:, label]) for label in np.flatnonzero(varying(Y))
        }

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
    check_above_0("C", C)
    each = EachLabel(LogisticRegression(C=C, max_iter=MAX_ITER), sparse_below=SPARSE_BELOW)
    return Pipeline([("scaler", scaler_of(scaling)), ("labels", each)])


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


@dataclass(eq=False, repr=False)
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

    C: float = 1.0
    n_chains: int = 10
    _: KW_ONLY
    random_state: Any = None

    def _fit(self, X: Array, Y: Array) -> None:
        check_above_0("C", self.C)
        random = check_random_state(self.random_state)
        self.shares_, self.varying_ = shares(Y), np.flatnonzero(varying(Y))
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
    return Pipeline([("scaler", scaler_of(scaling)), ("labels", LabelChains(C, n_chains, random_state=random_state))])


@dataclass(eq=False, repr=False)
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

    k: int = 10
    s: float = 1.0

    def _fit(self, X: Array, Y: Array) -> None:
        k = whole_number(self, "k", 1)
        check_above_0("s", self.s)
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
