"""What belongs in the empty cells of rows, by an energy over them.

With observed columns o and missing ones m, of memory units the weights of the rows depend on o alone,

    p_i proportional to n_i exp(-|x_o - w_io|^2 / (2 T)),        x_m = sum_i p_i w_im

which is the conditional mean.  For other units missing cells climb along the field from where they start, with the
others held, and a missing category is the one that is liked most.  What is found is never liked less than the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from energate.estimators.cells import Cells
from energate.estimators.edge import Array, Scaler
from energate.memory import MemoryUnits
from energate.tables.values import keys_of

Flags = NDArray[np.bool_]
Energy = Callable[[Tensor], Tensor]
Memory = Callable[[Tensor, Tensor, slice], Tensor]
N_STEPS, MOST_HALVINGS = 60, 30
BLOCK = 1024  # rows at once


@dataclass(frozen=True)
class Seen:
    """How rows (n, d) become what an energy is over: cells, scale, and what a number is before anything is known."""

    cells: Cells | None
    scaler: Scaler
    fill: Array  # (d,)
    inside: bool = False  # whether the energy ends at 0 and 1

    def scaled(self, X: Array) -> Array:
        v = self.scaler(X if self.cells is None else self.cells.expand(X))
        return v.clip(0, 1) if self.inside else v

    def source(self) -> NDArray[np.int64]:
        """The user's column that each seen one comes from: (D,)."""
        return np.arange(len(self.fill)) if self.cells is None else self.cells.layout.source

    def numeric(self) -> Flags:
        """Which of the seen columns are the user's numbers."""
        return np.ones(len(self.fill), dtype=bool) if self.cells is None else self.cells.numeric

    def categories(self) -> dict[int, Array]:
        """The keys of every column of categories."""
        if self.cells is None:
            return {}
        return {place: keys_of(words) for place, words in self.cells.categories.items() if words}

    def numbers(self, v: Array, X: Array, missing: Flags) -> Array:
        """Rows X with the numbers that scaled rows v (n, D) have, where they are missing."""
        seen, found = self.scaler.undo(v), X.copy()
        places = self.source()[self.numeric()]
        found[:, places] = np.where(missing[:, places], seen[:, self.numeric()], X[:, places])
        return found


def complete_rows(X: Array, seen: Seen, energy: Energy, memory: Memory | None) -> Array:
    """Rows X (n, d), where NaN is missing, with every cell filled; ``energy`` is over scaled rows (n, D).

    ``memory(v, free, some)`` has the conditional means of the free cells, where units are rows, for ``some`` of the
    rows that have holes.
    """
    missing = np.isnan(X)
    holes = np.flatnonzero(missing.any(1))
    found = X.copy()
    for first in range(0, len(holes), BLOCK):
        some = slice(first, first + BLOCK)
        means = None if memory is None else partial(_of_some, memory, some)
        found[holes[some]] = _complete(X[holes[some]], missing[holes[some]], seen, energy, means)
    return found


def _of_some(memory: Memory, some: slice, v: Tensor, free: Tensor) -> Tensor:
    return memory(v, free, some)


def _complete(
    X: Array, missing: Flags, seen: Seen, energy: Energy, memory: Callable[[Tensor, Tensor], Tensor] | None
) -> Array:
    categories = seen.categories()
    start = np.where(missing, seen.fill, X)
    for place, keys in categories.items():
        start[missing[:, place], place] = keys[0]
    start = _best_categories(start, missing, seen, energy)
    liked = _liked(start, seen, energy)
    source = seen.source()
    free = missing[:, source] & seen.numeric()
    if memory is not None:
        v = torch.as_tensor(seen.scaled(start))
        means = memory(v, torch.as_tensor(missing[:, source])).numpy()  # (n, D), of 0 and 1, too
        found = seen.numbers(means, start, missing)
        for place, keys in categories.items():
            mine = (source == place) & ~(np.zeros_like(free[0]) if seen.cells is None else seen.cells.layout.absent)
            best = keys[means[:, mine].argmax(1)]
            found[missing[:, place], place] = best[missing[:, place]]
    else:
        found = _best_categories(_climbed(start, free, missing, seen, energy), missing, seen, energy)
    worse = ~(_liked(found, seen, energy) >= liked)
    if worse.any():
        found[worse] = _climbed(start[worse], free[worse], missing[worse], seen, energy)
        still = ~(_liked(found, seen, energy) >= liked)  # by the rounding of a scale that is undone
        found[still] = start[still]
    return found


def _liked(X: Array, seen: Seen, energy: Energy) -> Array:
    with torch.no_grad():
        return energy(torch.as_tensor(seen.scaled(X))).numpy()


def _best_categories(X: Array, missing: Flags, seen: Seen, energy: Energy) -> Array:
    """Every missing category as the one that is liked most, one column after the other."""
    X = X.copy()
    for place, keys in seen.categories().items():
        rows = np.flatnonzero(missing[:, place])
        if not len(rows):
            continue
        tried = np.repeat(X[rows], len(keys), 0)
        tried[:, place] = np.tile(keys, len(rows))
        X[rows, place] = keys[_liked(tried, seen, energy).reshape(len(rows), -1).argmax(1)]
    return X


def _climbed(X: Array, free: Flags, missing: Flags, seen: Seen, energy: Energy) -> Array:
    v = climb(energy, torch.as_tensor(seen.scaled(X)), torch.as_tensor(free), seen.inside)
    return seen.numbers(v.numpy(), X, missing)


def climb(energy: Energy, v: Tensor, free: Tensor, inside: bool = False) -> Tensor:
    """Rows (n, D) uphill along the gradient of the energy, in the free cells: a step is halved until it raises it."""
    size = v.new_ones(len(v), 1)
    for _ in range(N_STEPS):
        liked, slope = field_of(energy, v)
        slope = torch.where(free & torch.isfinite(slope), slope, 0.0)
        done = torch.zeros(len(v), 1, dtype=torch.bool)
        for _ in range(MOST_HALVINGS):
            tried = v + size * slope
            tried = tried.clamp(0, 1) if inside else tried
            with torch.no_grad():
                rises = (energy(tried) > liked).unsqueeze(1)
            v, done = torch.where(rises & ~done, tried, v), done | rises
            if bool(done.all()):
                break
            size = torch.where(done, size, size / 2)
        if not bool(done.any()):
            break
        size = torch.where(done, 2 * size, 1.0)
    return v


def field_of(energy: Energy, v: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (n,) and their gradients (n, D)."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        found = energy(v)
        (slope,) = torch.autograd.grad(found.sum(), v)
    return found.detach(), slope


# --- memories ------------------------------------------------------------------------------------------------------


def conditional(
    units: MemoryUnits, v: Tensor, free: Tensor, own: Tensor | None = None, warmth: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Means of the free cells given the others, (K, n, D), and log sum_i n_i exp(-|x_o - w_io|^2 / (2 T)), (K, n).

    At the lowest temperature, that of the largest likelihood, times ``warmth``.  Row j leaves unit ``own[j]`` out, if
    that is given.
    """
    o = (~free).to(v)
    W, T = units.W.detach().to(v), warmth * units.log_T.detach().exp().to(v)[:, None, None]
    x = torch.where(free, 0.0, v)
    far = (x * x).sum(1)[:, None] - 2 * (x @ W.mT) + o @ (W * W).mT  # (K, n, M)
    u = units.log_counts.detach().to(v).unsqueeze(1) - far.clamp(min=0) / (2 * T)
    if own is not None:
        u[:, torch.arange(len(v)), own] = -torch.inf
    means = torch.softmax(u, -1) @ W  # (K, n, D)
    return torch.where(free, means, v), torch.logsumexp(u, -1)
