"""What baselines share: scaling, checks of parameters and of label tables, and the classifier of several labels."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import KFold
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators.edge import Array, whole_number

SCALERS = {"unit": MinMaxScaler, "standard": StandardScaler, "none": FunctionTransformer}
OBJECTIVES = ("hamming", "subset")


def scaler_of(scaling: str) -> Any:
    """A transformer that is not fitted yet."""
    if scaling not in SCALERS:
        raise InputError(f"`scaling` must be one of {', '.join(SCALERS)}; got {scaling!r}.")
    return SCALERS[scaling]()


def above_0(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    number = not isinstance(value, bool) and isinstance(value, Real)
    return number and 0 < float(value) < math.inf


def check_above_0(name: str, value: Any) -> None:
    """Refuse a value that is no number above 0."""
    if not above_0(value):
        raise InputError(f"`{name}` must be a number above 0; got {value!r}.")


def check_objective(objective: Any) -> None:
    """Refuse an objective that means nothing."""
    if objective not in OBJECTIVES:
        raise InputError(f"`objective` must be one of {', '.join(OBJECTIVES)}; got {objective!r}.")


# --- several labels --------------------------------------------------------------------------------------------


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


def folds_of(estimator: Any, n_rows: int, seed: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The rows to learn from and the rows left out, ``estimator.cv`` times, in random order."""
    n_folds = whole_number(estimator, "cv", 2)
    if n_folds > n_rows:
        raise InputError(f"`cv` must be at most the number of rows, {n_rows}; got {n_folds}.")
    return KFold(n_folds, shuffle=True, random_state=seed).split(np.zeros(n_rows))
