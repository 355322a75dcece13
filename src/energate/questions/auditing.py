"""Which labels are wrong: how well the label of each row goes with it, by models that have not seen the row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from energate import conformal
from energate.errors import InputError
from energate.estimators.edge import Array
from energate.estimators.frames import take
from energate.estimators.liking import LikingMixin, PairedMixin


@dataclass(frozen=True)
class LabelErrors:
    """What `label_errors` found of n rows.

    ``order`` (n,) are the numbers of rows, the most suspicious first.  ``scores`` (n,) say how well the label goes with
    the row, higher is better: its log-probability less that of the best other class, out of fold.  ``p_values`` (n,)
    are the shares of rows, the row among them, whose labels go no better: with few errors among many labels a small
    one is suspicious.  ``suggested`` (n,) are the most probable classes; None for several labels.
    """

    order: NDArray[np.int64]
    scores: Array
    p_values: Array
    suggested: NDArray[Any] | None

    def suspicious(self, share: float) -> NDArray[np.int64]:
        """The numbers of that share of the rows, the most suspicious first."""
        return self.order[: round(share * len(self.order))]


def label_errors(model: Any, X: Any, y: Any, *, cv: int = 5, random_state: int = 0) -> LabelErrors:
    """Rank rows by how wrong their labels look to models that were fitted without them.

    ``model`` is a classifier by energy, or an `EnergyRefiner` for several labels, with the parameters to use; it is
    cloned and fitted ``cv`` times, each time on the other folds.
    """
    if not isinstance(model, LikingMixin | PairedMixin):
        raise InputError(f"Labels are audited by a classifier by energy or a refiner; got a {type(model).__name__}.")
    y = np.asarray(y)
    several = y.ndim == 2
    folds = KFold if several else StratifiedKFold
    if cv < 2 or len(y) < cv:
        raise InputError(f"`cv` must be at least 2, and at most the number of rows, {len(y)}; got {cv!r}.")
    scores, suggested = np.zeros(len(y)), np.empty(len(y), dtype=y.dtype)
    for train, test in folds(cv, shuffle=True, random_state=random_state).split(np.zeros(len(y)), y):
        fitted = clone(model).fit(take(X, train), y[train])
        rows = take(X, test)
        if isinstance(fitted, LikingMixin):
            log_p = fitted.predict_log_proba(rows)
            own = y[test][:, None] == fitted.classes_  # (n, K)
            others = np.where(own, -np.inf, log_p).max(1)
            scores[test] = np.where(own, log_p, -np.inf).max(1) - others
            suggested[test] = fitted.classes_[log_p.argmax(1)]
        else:
            scores[test] = fitted.label_energy(rows, y[test])
    order = np.argsort(scores, kind="stable")
    p = conformal.p_values(scores, np.sort(scores)) - 1 / (len(scores) + 1)  # each is among those it is compared with
    return LabelErrors(order, scores, p * (len(scores) + 1) / len(scores), None if several else suggested)
