"""Has the data changed: the energies of a batch of rows beside those of rows held out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from sklearn.utils.validation import _num_samples

from energate.conformal import check_level
from energate.errors import InputError
from energate.estimators.edge import Array
from energate.estimators.frames import take
from energate.estimators.liking import HeldOutMixin
from energate.questions.attribution import attribute

LEAST_ROWS, MOST_ATTRIBUTED = 2, 500


@dataclass(frozen=True)
class Drift:
    """What `drift` found.

    ``statistic`` is Kolmogorov and Smirnov's, the largest distance between the distributions of energies, ``p_value``
    its exact probability if nothing has changed; ``drifted`` says whether that is at most alpha.  ``columns`` (d,) are
    numbers of columns, those first that have moved the mean energy of the batch most, and ``moved`` (d,) by how much.
    """

    statistic: float
    p_value: float
    drifted: bool
    columns: NDArray[np.int64]
    moved: Array
    n_rows: int
    n_held_out: int


def drift(model: Any, X: Any, *, alpha: float = 0.05, rows: Any = None) -> Drift:
    """Whether a batch of rows comes from elsewhere than the rows of `fit`, by the energies that the model gives them.

    The energies are compared with those of the rows given to `conformalize`, and then false alarms are at most the
    share alpha, whatever the model; or else with those that `fit` held out, which have chosen epochs and temperatures.

    ``rows`` are some rows as they should be; the columns' parts are then taken from the mean of those, and not from the
    middle of the columns.  A change that no energy sees, such as rows that are all more ordinary, is still seen: both
    sides of the distribution count.
    """
    check_level("alpha", alpha)
    if not isinstance(model, HeldOutMixin):
        raise InputError(f"Drift is seen by energies of rows; a {type(model).__name__} has none.")
    energies = model.score_samples(X)
    if len(energies) < LEAST_ROWS or not len(model.held_out_):
        raise InputError(
            f"Drift takes at least {LEAST_ROWS} rows, and energies of rows held out; there are {len(energies)} and "
            f"{len(model.held_out_)}. Give more rows, or call `conformalize`."
        )
    found = ks_2samp(energies, model.held_out_)
    moved = _moved(model, X, rows)
    order = np.argsort(-np.abs(moved), kind="stable")
    p = float(found.pvalue)
    return Drift(float(found.statistic), p, p <= alpha, order, moved, len(energies), len(model.held_out_))


def _moved(model: Any, X: Any, rows: Any) -> Array:
    """The mean part of every column in the energies of the batch, less that of rows as they should be."""
    usual = 0.0 if rows is None else attribute(model, _some(rows)).parts.mean(0)
    found: Array = attribute(model, _some(X)).parts.mean(0) - usual
    return found


def _some(X: Any) -> Any:
    """At most so many rows, spread over all."""
    n_rows = _num_samples(X)
    return take(X, np.arange(0, n_rows, max(1, -(-n_rows // MOST_ATTRIBUTED))))
