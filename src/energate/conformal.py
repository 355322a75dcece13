"""From energies to guarantees: p-values, prediction sets and false discoveries, from energies of rows held out.

One formula carries all of it.  Held-out energies e_1..e_n of rows like a new one, whose energy is e, give its p-value

    p = (1 + #{e_i <= e}) / (n + 1)

which is at most alpha with probability at most alpha, whatever the model: the new row is as likely to be the lowest as
any other.  With e = log P(k | x), and for rows held out that of their own class, the classes whose p-value is above
alpha are those with -e at most the ceil((n + 1)(1 - alpha))-th lowest of the scores -e_i: the split-conformal set,
which holds the class of the row with probability at least 1 - alpha.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError

Array = NDArray[np.float64]


def p_values(energies: Any, held_out: Array) -> Array:
    """The p-value of each energy, of any shape; ``held_out`` are sorted energies (n,)."""
    return (1 + np.searchsorted(held_out, energies, side="right")) / (len(held_out) + 1)


def class_p_values(log_p: Array, held_out: Array) -> Array:
    """The p-values of log-probabilities (n, K); ``held_out`` (m,), or of each class alone (K, m), NaN at the end."""
    if held_out.ndim == 1:
        return p_values(log_p, held_out)
    columns = [p_values(log_p[:, k], own[~np.isnan(own)]) for k, own in enumerate(held_out)]
    return np.stack(columns, 1)


def n_needed(alpha: float) -> int:
    """How many rows held out it takes for a p-value of at most alpha: below, nothing can be told at that level."""
    return math.ceil(1 / alpha - 1 - 1e-9)


def check_level(name: str, level: Any) -> float:
    """A parameter that must be above 0 and below 1."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < float(level) < 1:
        raise InputError(f"`{name}` must be above 0 and below 1; got {level!r}.")
    return float(level)


def check_enough(name: str, level: Any, n_rows: int, of: str = "") -> float:
    """A level that so many rows held out can tell anything at."""
    found = check_level(name, level)
    if n_rows < n_needed(found):
        raise InputError(
            f"`{name}` of {found:g} takes at least {n_needed(found)} calibration rows{of}; there are {n_rows}. Give "
            f"`conformalize` more, or raise `{name}` to {math.ceil(1e4 / (n_rows + 1)) / 1e4:g}."
        )
    return found


def discovery_threshold(p: Array, fdr: float) -> float:
    """Benjamini and Hochberg's: p-values up to this are discoveries, of which at most the share ``fdr`` is false.

    It is below 0 where there is none.
    """
    check_level("fdr", fdr)
    ordered = np.sort(p)
    below = np.flatnonzero(ordered <= fdr * np.arange(1, len(p) + 1) / len(p) * (1 + 1e-12))
    return float(ordered[below[-1]]) if len(below) else -1.0
