"""`LogCountProjection`: any multi-label classifier, restricted to the label vectors that training has seen."""

import itertools
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from energate.errors import InputError
from energate.estimators.bases import calibrated
from energate.estimators.edge import Array, draw_seed
from energate.paper.baselines._multilabel import LabelClassifier, distinct, folds_of

OBJECTIVES = ("hamming", "subset")
#: what the powers of the counts and the scales of the logits are chosen from; of equals the first is taken
TAUS, BETAS = (1.0, 0.75, 0.5, 0.25, 0.0), (1.0, 0.75, 1.25, 0.5, 1.5, 2.0)
VALUES_AT_ONCE = 2**22  # probabilities of label vectors: 32 MiB
SURE = 1e-6  # a base's probability is at least so far from 0 and 1


def check_objective(objective: Any) -> None:
    """Refuse an objective that means nothing."""
    if objective not in OBJECTIVES:
        raise InputError(f"`objective` must be one of {', '.join(OBJECTIVES)}; got {objective!r}.")


@dataclass(frozen=True)
class LabelSets:
    """The different label vectors (S, L) of some rows, the most frequent first, and the logs of their counts (S,)."""

    sets: Array
    log_count: Array

    @classmethod
    def seen_in(cls, Y: Array) -> Self:
        """Those of the rows (n, L)."""
        sets, _, count = distinct(Y)
        return cls(sets, np.log(count))

    def scores(self, t: Array) -> Array:
        """The logits of the labels that each vector has, summed: <Y, t>, (n, S)."""
        return t @ self.sets.T

    def probabilities(self, scores: Array, tau: float, beta: float) -> Array:
        """P(Y|x), in proportion to count(Y)^tau exp(beta <Y, t>): (n, S)."""
        u = beta * scores + tau * self.log_count
        u = np.exp(u - u.max(axis=1, keepdims=True))
        return u / u.sum(axis=1, keepdims=True)

    def marginals(self, probabilities: Array) -> Array:
        """The probability of each label: (n, L)."""
        # By rounding, probabilities of label vectors may add up to a little more than 1.
        return np.minimum(probabilities @ self.sets, 1.0)

    def chosen(self, probabilities: Array, objective: str) -> NDArray[np.bool_]:
        """The labels (n, L) to predict: those with marginals above one half, or those of the likeliest vector."""
        if objective == "hamming":
            return self.marginals(probabilities) > 0.5
        return self.sets[probabilities.argmax(axis=1)] > 0.5

    def chunks(self, n_rows: int) -> list[slice]:
        """Rows to take at once so that tables (n, S) stay small."""
        size = max(1, VALUES_AT_ONCE // len(self.sets))
        return [slice(start, start + size) for start in range(0, n_rows, size)]


class LogCountProjection(LabelClassifier):
    """P(Y|x) in proportion to count(Y)^tau exp(beta <Y, t(x)>), over the label vectors Y seen in training.

    t are the logits of a base classifier, calibrated label by label with Platt's sigmoid.  The counts are all that is
    learned of how labels go together: a control for models that learn more.  Sigmoids, tau and beta are fitted on
    rows that the base has not seen, fold by fold, with the label vectors and counts of the other folds; then the base
    is fitted on all rows.

    Parameters
    ----------
    base : a multi-label classifier whose `predict_proba` is (n, L).
    cv : number of folds.
    objective : ``"hamming"`` makes few errors in single labels: marginals above one half.  ``"subset"`` gets many rows
        right as a whole: the likeliest label vector.
    random_state : of the folds.

    Attributes
    ----------
    base_ : fitted on all rows.
    sets_ : `LabelSets` of all rows.
    slope_, offset_ : of the sigmoids, (L,).
    tau_, beta_ : as chosen.
    errors_ : by (tau, beta) the share of labels, or of rows, that are wrong on rows left out.
    """

    def __init__(self, base: Any, *, cv: int = 5, objective: str = "hamming", random_state: Any = None) -> None:
        self.base = base
        self.cv = cv
        self.objective = objective
        self.random_state = random_state

    def _fit(self, X: Array, Y: Array) -> None:
        check_objective(self.objective)
        folds = list(folds_of(self, len(X), draw_seed(self.random_state)))
        logits = np.empty_like(Y)
        for learn, left_out in folds:
            logits[left_out] = _logits(clone(self.base).fit(X[learn], Y[learn]), X[left_out], Y.shape[1])
        self.slope_, self.offset_ = calibrated(logits, Y)
        t = self.slope_ * logits + self.offset_
        wrong = dict.fromkeys(itertools.product(TAUS, BETAS), 0.0)
        for learn, left_out in folds:
            self._count_errors(LabelSets.seen_in(Y[learn]), t[left_out], Y[left_out] > 0.5, wrong)
        size = Y.size if self.objective == "hamming" else len(Y)
        self.errors_ = {point: count / size for point, count in wrong.items()}
        self.tau_, self.beta_ = min(self.errors_, key=lambda point: self.errors_[point])
        self.sets_ = LabelSets.seen_in(Y)
        self.base_ = clone(self.base).fit(X, Y)
        _logits(self.base_, X[:1], Y.shape[1])

    def _count_errors(
        self, sets: LabelSets, t: Array, Y: NDArray[np.bool_], wrong: dict[tuple[float, float], float]
    ) -> None:
        """Add the errors at every point of the grid."""
        for rows in sets.chunks(len(t)):
            scores = sets.scores(t[rows])
            for tau, beta in wrong:
                errors = sets.chosen(sets.probabilities(scores, tau, beta), self.objective) != Y[rows]
                wrong[tau, beta] += float(errors.sum() if self.objective == "hamming" else errors.any(axis=1).sum())

    def _set_probabilities(self, t: Array) -> Array:
        return self.sets_.probabilities(self.sets_.scores(t), self.tau_, self.beta_)

    def _calibrated(self, X: Array) -> Array:
        """The logits of the base, calibrated: (n, L)."""
        t: Array = self.slope_ * _logits(self.base_, X, len(self.slope_)) + self.offset_
        return t

    def _probabilities(self, X: Array) -> Array:
        t = self._calibrated(X)
        return np.concatenate(
            [self.sets_.marginals(self._set_probabilities(t[rows])) for rows in self.sets_.chunks(len(t))]
        )

    def _choose(self, X: Array) -> NDArray[np.bool_]:
        t = self._calibrated(X)
        return np.concatenate(
            [self.sets_.chosen(self._set_probabilities(t[rows]), self.objective) for rows in self.sets_.chunks(len(t))]
        )


def _logits(base: Any, X: Array, n_labels: int) -> Array:
    """What a fitted base says of each label: (n, L)."""
    p = base.predict_proba(X)
    if not isinstance(p, np.ndarray) or p.shape != (len(X), n_labels):
        came = f"shape {p.shape}" if isinstance(p, np.ndarray) else f"a {type(p).__name__}"
        raise InputError(
            f"`base` must give probabilities (n, {n_labels}), one for each label; its predict_proba gave {came}. "
            "Use a classifier of energate.paper.baselines, or sklearn.multiclass.OneVsRestClassifier."
        )
    p = np.clip(p, SURE, 1 - SURE)
    return np.log(p) - np.log1p(-p)
