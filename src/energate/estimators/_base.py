"""The edge between scikit-learn and torch: devices, seeds, scaling, and rows that go through in chunks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from energate.errors import InputError
from energate.units import CovarianceUnits, HiddenUnits, MeanUnits

Array = NDArray[np.float64]
ROWS_PER_CHUNK = 8192
LEAST_SPREAD = 0.125  # of the range of a column
KINDS = ("mean", "covariance", "mean-covariance")


def resolve_device(device: str) -> torch.device:
    """The torch device of a name; ``"auto"`` is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"`device` must be 'auto', 'cpu', 'cuda' or 'cuda:N'; got {device!r}.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"`device` is {device!r}, but no CUDA device is available. Use device='auto' or 'cpu'.")
    return found


def draw_seed(random_state: Any) -> int:
    """A seed for torch from scikit-learn's ``random_state``."""
    return int(check_random_state(random_state).randint(2**31 - 1))


@dataclass(frozen=True)
class Scaler:
    """Columns as ``(x - offset) / size``; it is saved with the model."""

    offset: Array
    size: Array

    def __call__(self, X: Array) -> Array:
        return (X - self.offset) / self.size


def _none(X: Array, _: Array) -> Scaler:
    return Scaler(np.zeros(X.shape[1]), np.ones(X.shape[1]))


def _standard(X: Array, weight: Array) -> Scaler:
    """By the standard deviation, but at least an eighth of the range: one rare value must not count for tens of it.

    The size of a constant column, of which nothing is known, is the median of the others.
    """
    centre = np.average(X, axis=0, weights=weight)
    spread = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
    varies = _varies(X)
    size = np.maximum(spread, LEAST_SPREAD * np.ptp(X, axis=0))
    return Scaler(centre, np.where(varies, size, np.median(size[varies]) if varies.any() else 1.0))


def _unit(X: Array, _: Array) -> Scaler:
    low = X.min(axis=0)
    return Scaler(low, np.where(_varies(X), X.max(axis=0) - low, 1.0))


def _varies(X: Array) -> NDArray[np.bool_]:
    """Columns whose range is more than rounding."""
    return np.ptp(X, axis=0) > 10 * np.finfo(np.float64).eps * np.abs(X).max(axis=0)


#: scaling by name
SCALINGS: dict[str, Callable[[Array, Array], Scaler]] = {"standard": _standard, "unit": _unit, "none": _none}


def in_chunks(X: Array, scaler: Scaler, like: Tensor, score: Callable[[Tensor], Tensor]) -> Array:
    """Scale rows, move them to where ``like`` is, score them without gradients, and bring the results back."""
    results = []
    with torch.no_grad():
        for start in range(0, len(X), ROWS_PER_CHUNK):
            rows = scaler(X[start : start + ROWS_PER_CHUNK])
            results.append(score(torch.as_tensor(rows).to(like)).double().cpu().numpy())
    return np.concatenate(results)


def auto_epochs(epochs: int | str, n_steps: int, wanted: int, least: int, most: int = 300) -> int:
    """``"auto"`` is as many epochs of ``n_steps`` as the wanted number of steps takes, within limits."""
    if epochs == "auto":
        return min(most, max(least, math.ceil(wanted / n_steps)))
    if isinstance(epochs, str):
        raise InputError(f"A number of epochs must be a whole number or 'auto'; got {epochs!r}.")
    return int(epochs)


def default_size(size: int | str, auto: int) -> int:
    """A number of units or factors, where ``"auto"`` stands for a rule."""
    if size == "auto":
        return auto
    if isinstance(size, str):
        raise InputError(f"The number of units must be a whole number or 'auto'; got {size!r}.")
    return size


def build_units(
    kind: str, n_models: int, width: int, n_hidden: int, n_factors: int, activation: str, generator: torch.Generator
) -> list[HiddenUnits]:
    """The hidden units of a name: one group for each word in it."""
    if kind not in KINDS:
        raise InputError(f"`units` must be one of {', '.join(KINDS)}, or a function; got {kind!r}.")
    groups: list[HiddenUnits] = []
    if kind != "covariance":
        groups.append(MeanUnits(n_models, width, n_hidden, activation, generator))
    if kind != "mean":
        groups.append(CovarianceUnits(n_models, width, n_factors, n_hidden, activation, generator=generator))
    return groups
