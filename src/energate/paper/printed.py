"""The covariance score as the paper's theorem prints it: a negative control, whose score is not its potential."""

import torch
from torch import Tensor

from energate.paper.spaces import PRINTED_SIZE
from energate.units import HiddenUnits, project


class PrintedCovarianceUnits(HiddenUnits):
    """`energate.CovarianceUnits` with the paper's decoder, scored by the whole sum of potentials instead of half of it.

    The score is then no potential of the reconstruction (errata, E11); classes can still be told apart by it.
    """

    def __init__(self, n_models: int, n_visible: int, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__(n_models, n_visible, size, "sigmoid", generator=generator)
        self.repeats = 1  # and yet v enters twice
        self.W = self.weight(size, n_visible)
        self.W_h = self.weight(size, size)
        self.b = self.bias(size)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        q = project(v, self.W)  # (K, N, F)
        return project(q * q, self.W_h, self.b), q

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        return (carry * (h @ self.W_h)) @ self.W  # (K, N, D)


def printed_units(n_models: int, width: int, generator: torch.Generator) -> HiddenUnits:
    """What `energate.EnergyClassifier` builds its models from."""
    return PrintedCovarianceUnits(n_models, width, PRINTED_SIZE, generator)
