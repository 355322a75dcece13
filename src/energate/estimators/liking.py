"""How much a model likes rows, beside rows held out: p-values, prediction sets, and rows that are rejected.

`fit` holds rows out, or leaves them out in turn; but they have chosen epochs and temperatures, and what follows from
them is a percentile.  `conformalize` takes rows that had no part in `fit`, and then p-values and sets have the
guarantee of `energate.conformal`.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from energate import conformal
from energate.errors import InputError
from energate.estimators.edge import Array, encode_labels

CALIBRATED = "calibration_energies_"


def together(energies: Tensor) -> Tensor:
    """How much any class likes each row, log sum_k exp E_k: (N, K) -> (N,), with gradients.

    The weights in the gradient of torch's own are exp(E_k - result), which no longer add up to 1 where energies are so
    large that the result is rounded to the largest of them.
    """
    best = energies.argmax(1, keepdim=True)
    return (energies - torch.log_softmax(energies, 1)).gather(1, best).squeeze(1)


def any_class(energies: Tensor) -> Array:
    """The same in float64, without gradients."""
    return together(energies.detach().double()).cpu().numpy()


def not_calibrated(_: Any) -> Array:
    """Energies of calibration rows before there are any, as in models that older versions saved."""
    return np.empty(0)


def no_class_calibrated(model: Any) -> Array:
    """The same of the log-probabilities of their classes."""
    return np.empty((len(model.classes_), 0))


class HeldOutMixin(ABC):
    """An estimator with an energy of rows, and energies of rows that it was not trained on."""

    liking_: Array
    calibration_energies_: Array

    @abstractmethod
    def score_samples(self, X: Any) -> Array:
        """How much the model likes each row: (n,), higher is better."""

    @property
    def held_out_(self) -> Array:
        """Sorted energies (n,) that p-values are taken by: of calibration rows, or else of those `fit` held out."""
        return self.calibration_energies_ if len(self.calibration_energies_) else self.liking_

    def p_values(self, X: Any) -> Array:
        """How strange each row is: the share of rows held out, itself among them, that are liked no more: (n,).

        After `conformalize` a row like those has a p-value of at most alpha with probability at most alpha, for every
        alpha.  Before, it is a percentile of the rows that `fit` held out (or left out in turn, or else was trained
        on): as readable, and without the guarantee, since these have chosen epochs and temperatures.
        """
        energies = self.score_samples(X)
        if not len(self.held_out_):
            raise InputError(
                "p-values are taken by the energies of rows held out, of which this model, of an older version, has "
                "none. Call `conformalize` with rows that it was not fitted on."
            )
        return conformal.p_values(energies, self.held_out_)

    @abstractmethod
    def conformalize(self, X: Any, y: Any = None) -> Self:
        """Take calibration rows, which had no part in `fit`."""

    def _calibrate(self, X: Any) -> None:
        check_is_fitted(self)
        self.calibration_energies_ = np.sort(self.score_samples(X))


class LikingMixin(HeldOutMixin):
    """A classifier whose classes have energies: how much any of them likes a row, which may it be, and which rows none.

    ``calibration_log_p_`` (K, m) are sorted log-probabilities of the class of each calibration row, by that class, with
    NaN at the end where a class has fewer.
    """

    classes_: NDArray[Any]
    calibration_log_p_: Array

    @abstractmethod
    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""

    @abstractmethod
    def predict_log_proba(self, X: Any) -> Array:
        """Log-probabilities of the classes: (n, K)."""

    def score_samples(self, X: Any) -> Array:
        """How much any class likes each row: log-sum-exp over classes of the calibrated energies, higher is better."""
        return any_class(torch.as_tensor(self.energies(X)))

    def rejects(self, X: Any, rate: float = 0.01) -> NDArray[np.bool_]:
        """Rows that no class likes: those whose p-value (see `p_values`) is at most ``rate``.

        Of n rows held out no p-value is below 1 / (n + 1): at a lower rate, rows that are stranger than all of them.
        """
        rate = conformal.check_level("rate", rate)
        return self.p_values(X) <= max(rate, 1 / (len(self.held_out_) + 1))

    def conformalize(self, X: Any, y: Any = None) -> Self:
        """Take calibration rows, which had no part in `fit`, and the class of each; without classes for p-values alone.

        `fit` and `partial_fit` make another model, and forget them.
        """
        self._calibrate(X)
        self.calibration_log_p_ = no_class_calibrated(self)
        if y is not None:
            labels = encode_labels(np.asarray(y), self.classes_)
            log_p = self.predict_log_proba(X)
            if len(labels) != len(log_p):
                raise InputError(f"`y` must have a class for each of the {len(log_p)} rows; got {len(labels)}.")
            self.calibration_log_p_ = by_class(log_p[np.arange(len(labels)), labels], labels, len(self.classes_))
        return self

    def predict_set(self, X: Any, alpha: float = 0.1, *, per_class: bool = False) -> NDArray[np.bool_]:
        """The classes that each row may be of: (n, K) booleans, split conformal with scores -log P(class | row).

        Of rows like the calibration rows, the set holds the class with probability at least 1 - alpha; with
        ``per_class`` (Mondrian) also among the rows of each class alone.  A set may be empty: no class fits the row.
        MAPIE's classifiers offer other scores over this estimator, too.
        """
        return self.class_p_values(X, alpha, per_class=per_class) > alpha

    def class_p_values(self, X: Any, alpha: float | None = None, *, per_class: bool = False) -> Array:
        """The p-value of each class of each row, (n, K): sets are the classes above alpha, which may be told before."""
        return conformal.class_p_values(self.predict_log_proba(X), self.class_reference(alpha, per_class))

    def class_reference(self, alpha: Any = None, per_class: bool = False) -> Array:
        """Log-probabilities that classes are compared with: (m,), or (K, m); refused where alpha takes more of them."""
        table = self.calibration_log_p_
        if not table.size:
            raise InputError(
                "Prediction sets take calibration rows, and their classes, that had no part in `fit`: call "
                "`conformalize(X, y)` first, or `energate fit --calibration 0.2`."
            )
        counts = (~np.isnan(table)).sum(1)
        if alpha is not None and per_class:
            least = int(counts.argmin())
            conformal.check_enough(
                "alpha", alpha, int(counts[least]), f" of each class, also of {self.classes_[least]}"
            )
        elif alpha is not None:
            conformal.check_enough("alpha", alpha, int(counts.sum()))
        return table if per_class else np.sort(table[~np.isnan(table)])

    def _forget_calibration(self) -> None:
        self.calibration_energies_, self.calibration_log_p_ = not_calibrated(self), no_class_calibrated(self)


class PairedMixin(ABC):
    """An estimator with an energy of a row and what comes with it, and p-values of such pairs."""

    calibration_energies_: Array

    @abstractmethod
    def _pair_energy(self, X: Any, Y: Any) -> Array:
        """The energy of each pair: (n,), higher is better."""

    def conformalize(self, X: Any, Y: Any) -> Self:
        """Take calibration pairs, which had no part in `fit`; `fit` makes another model, and forgets them."""
        self.calibration_energies_ = np.sort(self._pair_energy(X, Y))
        return self

    def p_values(self, X: Any, Y: Any) -> Array:
        """How strange each pair is: the share of calibration pairs, itself among them, that are liked no more: (n,).

        A pair like those has a p-value of at most alpha with probability at most alpha, for every alpha.
        """
        energies = self._pair_energy(X, Y)
        if not len(self.calibration_energies_):
            raise InputError("p-values take calibration pairs that had no part in `fit`: call `conformalize(X, Y)`.")
        return conformal.p_values(energies, self.calibration_energies_)


def by_class(values: Array, labels: NDArray[np.int64], n_classes: int) -> Array:
    """Values (n,) in a line for each class, sorted, with NaN at the end of those that have fewer: (K, m)."""
    groups = [np.sort(values[labels == k]) for k in range(n_classes)]
    table = np.full((n_classes, max(map(len, groups))), np.nan)
    for line, group in zip(table, groups, strict=True):
        line[: len(group)] = group
    return table
