"""`MeanLabels`: several multi-label classifiers of different kinds, and the mean of what they say."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import _BaseComposition

from energate.errors import InputError
from energate.estimators.bases import CrossFitted, all_scores, calibrated, fit_base, scores_by_fold, varying
from energate.estimators.edge import Array, draw_seed
from energate.paper.baselines._multilabel import SeparateLabels, folds_of
from energate.paper.baselines._svmlabels import expit


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

    def __init__(self, members: Sequence[tuple[str, Any]], *, cv: int = 5, random_state: Any = None) -> None:
        self.members = members
        self.cv = cv
        self.random_state = random_state

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
