"""What views say of a model as a graph: modules from the user's columns to named outputs, ready to be traced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from energate.conformal import p_values
from energate.estimators.cells import Cells
from energate.estimators.edge import SOFT_LIMIT, Array, Scaler

Outputs = dict[str, Any]
NEAR = 1e15


@dataclass(frozen=True)
class Graph:
    """A module to export, and what the estimator itself says of the same rows.

    ``block`` is the number of rows that the module takes at once, where it cannot be traced for any number.  ``ties``
    say how far a row is from another label, for outputs that are labels, and ``slack(outputs, room)`` how much outputs
    that count may differ where energies are rounded by ``room``, of their size plus 1.
    """

    module: nn.Module
    inputs: dict[str, int]  # name -> columns
    outputs: tuple[str, ...]
    reference: Callable[..., Outputs]
    ties: Callable[[Outputs], dict[str, Array]]
    block: int | None = None
    slack: Callable[[Outputs, float], dict[str, Array]] | None = None


class Expansion(nn.Module):
    """The user's columns as a model sees them, as `energate.estimators.cells.Cells.expand` makes them."""

    def __init__(self, cells: Cells) -> None:
        super().__init__()
        self.plain = cells.plain
        for name, values in cells.layout._asdict().items():
            self.register_buffer(name, torch.as_tensor(values))
        self.source: Tensor
        self.numeric: Tensor
        self.absent: Tensor
        self.key: Tensor
        self.fill: Tensor

    def forward(self, X: Tensor) -> Tensor:
        cells = X if self.plain else X.index_select(1, self.source)  # (N, D)
        gone = torch.isnan(cells)
        filled = torch.where(gone, self.fill, cells)
        if self.plain:
            return filled
        # onnxruntime has no `where` between truths
        flags = (self.absent & gone) | (~self.absent & (cells == self.key))
        return torch.where(self.numeric, filled, flags.to(X.dtype))


class PValues(nn.Module):
    """`energate.conformal.p_values` by bisection, which can be traced: energies of any shape to p-values."""

    def __init__(self, held_out: Array) -> None:
        super().__init__()
        self.held_out = held_out
        self.n_bits = len(held_out).bit_length()
        padding = np.full(2**self.n_bits - len(held_out), np.inf)  # which no energy reaches
        self.register_buffer("sorted", torch.as_tensor(np.concatenate([held_out, padding])))
        self.sorted: Tensor

    def forward(self, energies: Tensor) -> Tensor:
        count = torch.zeros_like(energies, dtype=torch.int64)
        for bit in reversed(range(self.n_bits)):
            more = count + 2**bit
            lowest_there = self.sorted.index_select(0, (more - 1).flatten()).reshape(more.shape)
            count = torch.where(lowest_there <= energies, more, count)
        return (1 + count).to(energies.dtype) / (len(self.held_out) + 1)

    def slack(self, energies: Array, room: float) -> Array:
        """How far apart the p-values of energies are that differ by rounding."""
        by = room * (1 + np.abs(energies))
        return p_values(energies + by, self.held_out) - p_values(energies - by, self.held_out)


class Scaling(nn.Module):
    """The user's columns on the scale of a model, as `energate.estimators.edge.in_chunks` brings them there."""

    def __init__(self, scaler: Scaler, unit: bool, limited: bool = True) -> None:
        super().__init__()
        self.register_buffer("offset", torch.as_tensor(scaler.offset))
        self.register_buffer("size", torch.as_tensor(scaler.size))
        self.register_buffer("soft", None if scaler.soft is None else torch.as_tensor(scaler.soft))
        self.offset: Tensor
        self.size: Tensor
        self.soft: Tensor | None
        self.unit, self.limited = unit, limited

    def forward(self, X: Tensor) -> Tensor:
        v = (X - self.offset) / self.size
        if self.soft is not None:
            near = v.clamp(-NEAR, NEAR)  # whose square is finite in float32, too
            v = torch.where(self.soft, near / torch.sqrt(1 + (near / SOFT_LIMIT) ** 2), v)
        if self.limited:
            furthest = torch.finfo(v.dtype).max ** 0.2
            v = v.clamp(-furthest, furthest)
        return v.clamp(0, 1) if self.unit else v


def two_best(outputs: Outputs) -> dict[str, Array]:
    """How far the second-best class is from the best."""
    two = np.sort(outputs["probabilities"], 1)[:, -2:]
    return {"label": two[:, 1] - two[:, 0]}


def near(threshold: Array | float) -> Callable[[Outputs], dict[str, Array]]:
    """How far probabilities are from where they decide."""
    return lambda outputs: {"labels": np.abs(outputs["probabilities"] - threshold)}


def no_ties(_: Outputs) -> dict[str, Array]:
    """Nothing can be said."""
    return {}
