"""The energy of a fitted model over the columns that it sees, scaled, and its field: what questions are asked of."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate.errors import InputError
from energate.estimators.completing import field_of
from energate.estimators.edge import Array, furthest
from energate.estimators.liking import together
from energate.views import View, view_of


@dataclass(frozen=True)
class Potential:
    """An energy over scaled rows (N, D), in float64 on the CPU, and its gradient; higher is better.

    ``of`` are the numbers of no class (all together, or of a scorer its one), of one, or of two: their difference.
    """

    view: View
    of: tuple[int, ...]

    @classmethod
    def of_model(cls, model: Any, target: Any = None) -> "Potential":
        """That of a fitted estimator; ``target`` is None, a class, or two classes."""
        view = view_of(model)
        alone = copy.copy(view)
        alone.model = copy.copy(view.model)
        alone.model.model_ = copy.deepcopy(view.model.model_).cpu().double()
        return cls(alone, classes_of(view, target))

    def energy(self, v: Tensor) -> Tensor:
        """(N,), with gradients."""
        energies = self.view.likings(v)  # (N, K)
        if not self.of:
            return together(energies) if energies.shape[1] > 1 else energies[:, 0]
        first, *others = (energies[:, k] for k in self.of)
        return first - others[0] if others else first

    def field(self, v: Tensor) -> Tensor:
        """The gradient of the energy: (N, D)."""
        return field_of(self.energy, v)[1]

    def scaled(self, X: Array) -> Tensor:
        """Rows as `View.rows` gives them, on the scale of the energy: (N, D)."""
        most = furthest(torch.float64)
        v = torch.as_tensor(self.view.scaled(X)).clamp(-most, most)
        return v.clamp(0, 1) if self.view.clamped else v

    def gathered(self, parts: Array) -> Array:
        """Parts of the columns that the energy sees, (n, D), by the user's columns, (n, d)."""
        if self.view.cells is None:
            return parts
        found = np.zeros((len(parts), self.view.n_features))
        np.add.at(found.T, self.view.cells.layout.source, parts.T)
        return found


def classes_of(view: View, target: Any) -> tuple[int, ...]:
    """The numbers of the classes that a target names."""
    if target is None:
        return ()
    named = list(target) if isinstance(target, Sequence | np.ndarray) and not isinstance(target, str) else [target]
    labels = list(view.labels)
    absent = [each for each in named if each not in labels]
    if absent or len(named) > 2:
        there = f"classes from {labels}" if labels else "None: the model has no classes"
        raise InputError(f"`target` must be one class or two, {there}; got {target!r}.")
    return tuple(labels.index(each) for each in named)
