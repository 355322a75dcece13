"""What would make it normal, or another class: few columns of a row, changed along the field."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energate.errors import InputError
from energate.estimators.edge import Array
from energate.estimators.liking import LikingMixin
from energate.questions.potential import Potential, classes_of
from energate.tables.values import keys_of

N_TRIED, N_VALUES, N_HALVINGS = 8, 33, 20  # columns and values that are tried at once; bisections at the end
SPREADS = 3.0  # of a column, where no rows say what its range is


@dataclass(frozen=True)
class Counterfactual:
    """Rows as they would have to be: ``rows`` (n, d) in the user's units, categories as their keys.

    ``changed`` (n, d) says which cells are others, ``found`` (n,) whether the model predicts what was asked; where it
    does not, the row is as it was.  ``distance`` (n,) is the length of the change in spreads of the columns.
    """

    rows: Array
    changed: NDArray[np.bool_]
    found: NDArray[np.bool_]
    distance: Array


def counterfactual(
    model: Any, X: Any, *, target: Any = None, rows: Any = None, max_columns: int | None = None, fixed: Any = ()
) -> Counterfactual:
    """The nearest rows, in few columns, that a model predicts as asked.

    The field of the target's energy against the others says which columns matter, and in which direction; of these the
    one is changed that brings the row furthest, then another, until the prediction is as asked; then every change is
    taken back as far as it may be.  No value leaves the range of ``rows``.

    Parameters
    ----------
    model : a fitted classifier by energy, or an `EnergyScorer`.
    target : the class that is wanted; None for an `EnergyScorer`: normal.
    rows : the rows given to `fit`, whose range is kept; without them, 3 spreads on both sides of the middle.
    max_columns : change at most so many; None: as many as it takes.
    fixed : numbers of columns that must stay as they are.
    """
    search = _Search.of(model, target, rows, fixed)
    given = search.potential.view.rows(X)
    if np.isnan(given).any():
        raise InputError("Cells of `X` are missing. Fill them first: model.complete(X).")
    most = given.shape[1] if max_columns is None else max_columns
    ends = np.stack([search.changed(x, most) for x in given])
    found = search.margins(ends) > 0
    ends = np.where(found[:, None], ends, given)
    moved = (search.potential.scaled(ends) - search.potential.scaled(given)).square().sum(1).sqrt().numpy()
    return Counterfactual(ends, ends != given, found, moved)


@dataclass(frozen=True)
class _Search:
    """How far rows are from a target, and what may be changed about them."""

    potential: Potential
    k: int | None  # the class; None: the energy is to pass the threshold
    values: list[Array]  # of every column, those that may be tried
    free: NDArray[np.bool_]  # (d,)

    @classmethod
    def of(cls, model: Any, target: Any, rows: Any, fixed: Any) -> "_Search":
        potential = Potential.of_model(model)
        view = potential.view
        k = classes_of(view, target)
        if isinstance(model, LikingMixin) and len(k) != 1:
            raise InputError(f"`target` must be a class from {list(view.labels)}; got {target!r}.")
        low, high = _range(potential, rows)
        categories = {} if view.cells is None else {i: keys_of(words) for i, words in view.cells.categories.items()}
        values = [categories.get(i, np.linspace(low[i], high[i], N_VALUES)) for i in range(view.n_features)]
        free = ~np.isin(np.arange(view.n_features), np.asarray(fixed, dtype=np.int64))
        return cls(potential, k[0] if k else None, values, free)

    def margin(self, v: torch.Tensor) -> torch.Tensor:
        """How far scaled rows are past the decision, above 0 where it is as asked: (N,), with gradients."""
        if self.k is None:
            threshold = float(self.potential.view.model.offset_)
            return self.potential.energy(v) - threshold - 1e-9 * (1 + abs(threshold))
        energies = self.potential.view.likings(v)
        others = energies.index_fill(1, torch.tensor(self.k), -torch.inf)
        return energies[:, self.k] - others.amax(1) - 1e-9

    def margins(self, X: Array) -> Array:
        """The same of rows (n, d)."""
        with torch.no_grad():
            return self.margin(self.potential.scaled(X)).numpy()

    def changed(self, x: Array, most: int) -> Array:
        """One row (d,), changed in at most so many columns; also where that is not enough."""
        now, done = x.copy(), list[int]()
        best = float(self.margins(now[None])[0])
        while best <= 0 and len(done) < most:
            place, value, margin = self._best(now, done)
            if margin <= best:
                break
            now[place], best = value, margin
            done.append(place)
        return self._taken_back(x, now, done) if best > 0 else now

    def _best(self, now: Array, done: list[int]) -> tuple[int, float, float]:
        """The column, and its value, that brings the row furthest, of those where the field promises most."""
        v = self.potential.scaled(now[None]).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.margin(v).sum(), v)
        promised = self.potential.gathered(np.nan_to_num(np.abs(slope.numpy())))[0]
        promised[[*done]] = -1.0
        promised[~self.free] = -1.0
        places = [i for i in np.argsort(-promised)[:N_TRIED].tolist() if promised[i] >= 0]
        tried = [(i, value) for i in places for value in self.values[i].tolist()]
        if not tried:
            return 0, float(now[0]), -np.inf
        rows = np.repeat(now[None], len(tried), 0)
        rows[np.arange(len(tried)), [i for i, _ in tried]] = [value for _, value in tried]
        margins = self.margins(rows)
        first = int(margins.argmax())
        return *tried[first], float(margins[first])

    def _taken_back(self, x: Array, end: Array, done: list[int]) -> Array:
        """Every change taken back as far as the prediction stays; categories wholly or not at all."""
        end = end.copy()
        numbers = {} if self.potential.view.cells is None else self.potential.view.cells.categories
        for place in done:
            without = end.copy()
            without[place] = x[place]
            if self.margins(without[None])[0] > 0:
                end = without
                continue
            if place in numbers:
                continue
            least, most = self.values[place][[0, -1]]
            near, far = float(np.clip(x[place], least, most)), float(end[place])  # too little, and enough
            for _ in range(N_HALVINGS):
                without[place] = (near + far) / 2
                near, far = (near, without[place]) if self.margins(without[None])[0] > 0 else (without[place], far)
            end[place] = far
        return end


def _range(potential: Potential, rows: Any) -> tuple[Array, Array]:
    """The least and the largest value of every one of the user's columns: (d,)."""
    view = potential.view
    if rows is not None:
        given = view.rows(rows)
        return np.nanmin(given, 0), np.nanmax(given, 0)
    middle, spread = view.middle(), 0.5 if view.clamped else SPREADS
    ends = view.model.scaler_.undo(np.stack([middle - spread, middle + spread]))  # (2, D)
    if view.cells is None:
        return ends[0], ends[1]
    found = np.zeros((2, view.n_features))
    found[:, view.cells.layout.source[view.cells.numeric]] = ends[:, view.cells.numeric]
    return found[0], found[1]
