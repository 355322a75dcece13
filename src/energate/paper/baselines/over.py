"""Classifiers over other multi-label classifiers: `MeanLabels` of several, and `LogCountProjection` of one.

The first takes the mean of what they say, the second restricts one to the label vectors that training has seen.
"""

import itertools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.utils.metaestimators import _BaseComposition

from energate.errors import InputError
from energate.estimators.bases import CrossFitted, all_scores, calibrated, fit_base, scores_by_fold, varying
from energate.estimators.edge import Array, draw_seed
from energate.paper.baselines.shared import LabelClassifier, SeparateLabels, check_objective, distinct, folds_of

#: what the powers of the counts and the scales of the logits are chosen from; of equals the first is taken
TAUS, BETAS = (1.0, 0.75, 0.5, 0.25, 0.0), (1.0, 0.75, 1.25, 0.5, 1.5, 2.0)
VALUES_AT_ONCE = 2**22  # probabilities of label vectors: 32 MiB
SURE = 1e-6  # a base's probability is at least so far from 0 and 1


@dataclass(eq=False, repr=False)
class MeanLabels(SeparateLabels, CrossFitted, _BaseComposition):  # type: ignore[misc]
    """The mean of several classifiers' calibrated logits, label by label.

    Classifiers of different kinds make different mistakes, so that their mean makes fewer.  Each is fitted to ``cv``
    parts of the rows in turn; on rows that it has not seen its scores become logits by Platt's sigmoid, so that all
    count alike whatever their scale.  The mean of logits is too cautious where the members agree and is calibrated once
    more.  At the end every member is fitted to all rows: ``cv`` + 1 fits of each in all.

    Parameters
    ----------
    members : pairs of a name and a multi-label classifier with ``decision_function`` or ``predict_proba``.
    cv : number of folds.
    random_state : of the folds.

    Attributes
    ----------
    members_ : the fitted classifiers, in the order given; of labels that change, ``varying_``.
    slopes_, offsets_ : of their sigmoids, (K, L) for K members.
    slope_, offset_ : of the mean, (L,).
    out_of_fold_ : the mean logits of the training rows, each by members that have not seen it, (n, L).
    """

    members: Sequence[tuple[str, Any]]
    _: KW_ONLY
    cv: int = 5
    random_state: Any = None

    def _fit(self, X: Array, Y: Array) -> None:
        members = self._checked_members()
        folds = list(folds_of(self, len(X), draw_seed(self.random_state)))
        unseen = [scores_by_fold(member, X, Y, folds, f"member {name!r}") for name, member in members]
        fits = [calibrated(scores, Y) for scores in unseen]
        self.slopes_, self.offsets_ = (np.stack(each) for each in zip(*fits, strict=True))
        mean = self._mean(unseen)
        self.slope_, self.offset_ = calibrated(mean, Y)
        self.out_of_fold_ = self.slope_ * mean + self.offset_
        self.varying_, self.constant_ = varying(Y), Y[0]
        self.members_ = [fit_base(member, X, Y) for _, member in members]

    def _checked_members(self) -> list[tuple[str, Any]]:
        pairs = isinstance(self.members, Sequence) and not isinstance(self.members, str)
        if not pairs or not self.members or any(not isinstance(m, tuple) or len(m) != 2 for m in self.members):
            raise InputError(
                f"`members` must be a list of pairs of a name and a classifier, at least one; got {self.members!r}."
            )
        names = [name for name, _ in self.members]
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InputError(f"The names of `members` must be different strings; got {names!r}.")
        return list(self.members)

    def _mean(self, scores: Sequence[Array]) -> Array:
        """The mean of the members' calibrated logits: (n, L)."""
        fits = zip(self.slopes_, scores, self.offsets_, strict=True)
        mean: Array = np.mean([slope * each + offset for slope, each, offset in fits], axis=0)
        return mean

    def _logits(self, X: Array) -> Array:
        scores = [all_scores(member, X, self.varying_, self.constant_) for member in self.members_]
        return self.slope_ * self._mean(scores) + self.offset_

    def decision_function(self, X: Any) -> Array:
        """The calibrated logit of every label: (n, L)."""
        return self._logits(self._checked(X))

    def _probabilities(self, X: Array) -> Array:
        return expit(self._logits(X))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, and with ``deep`` those of the members, by names like ``svm__labels__C``."""
        found: dict[str, Any] = self._get_params("members", deep=deep)
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters, of members too; a member's own name replaces it."""
        self._set_params("members", **params)
        return self


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
        p: Array = softmax(beta * scores + tau * self.log_count, axis=1)
        return p

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


@dataclass(eq=False, repr=False)
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

    base: Any
    _: KW_ONLY
    cv: int = 5
    objective: str = "hamming"
    random_state: Any = None

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
