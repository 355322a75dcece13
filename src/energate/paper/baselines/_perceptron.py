"""Networks from rows to logits: what every baseline trains, and the feed-forward one."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from energate.activations import as_activation
from energate.estimators.network import Network
from energate.training import corrupt
from energate.units import MeanUnits

LEAST_MEAN = 0.02  # and at most 1 less that: the log-odds of columns that are always 0 or 1 are infinite
GAINS = {"relu": 2.0, "sigmoid": 4.0 * 2**0.5}  # over the slope at 0: half the units are on, the slope is 1 / 4


def drop(v: Tensor, rate: float, noise: torch.Generator | None) -> Tensor:
    """Dropout: a share of the values becomes 0, the others grow so that the mean stays; none without ``noise``."""
    return v if noise is None or not rate else corrupt(v, "masking", rate, noise) / (1 - rate)


@torch.no_grad()
def start_at_mean(units: MeanUnits, a: Tensor, rows: Tensor, activity: float, linear: bool) -> None:
    """Let biases start at the mean of the rows: visible units, of bias ``a`` (1, D), linear or sigmoid, have it as
    theirs, and hidden units have that ``activity`` there.
    """
    mean = rows.mean(0)
    a.copy_(mean if linear else torch.logit(mean, eps=LEAST_MEAN))
    units.b.copy_(math.log(activity / (1 - activity)) - units.W @ mean)


class Perceptron(Network):
    """Hidden layers of one activation and a linear output; ``dropout`` gives a rate for the input of every layer.

    Weights start so that values keep about their size from layer to layer; those of the output start at 0.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        generator: torch.Generator,
        dropout: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.activation = as_activation(activation)
        self.dropout = [0.0] * (len(sizes) - 1) if dropout is None else list(dropout)
        shapes = [(n_out, n_in) for n_in, n_out in itertools.pairwise(sizes)]
        self.rates = [1.0] * len(shapes)
        gain = GAINS[activation]
        self.W = nn.ParameterList(
            torch.randn(shape, generator=generator) * (gain / sum(shape) ** 0.5) for shape in shapes[:-1]
        )
        self.W.append(torch.zeros(shapes[-1]))
        self.b = nn.ParameterList(torch.zeros(n_out) for n_out, _ in shapes)

    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        h = v
        for layer, (W, b, rate) in enumerate(zip(self.W, self.b, self.dropout, strict=True)):
            u = torch.addmm(b, drop(h, rate, noise), W.T)
            h = u if layer == len(self.W) - 1 else self.activation.f(u)
        return h

    @torch.no_grad()
    def start_layer(self, layer: int, W: Tensor, b: Tensor, rate: float = 1.0) -> None:
        """Let a hidden layer start from weights that were trained before, and go on with that share of the rate."""
        self.W[layer].copy_(W)
        self.b[layer].copy_(b)
        self.rates[layer] = rate

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The layers, each with its share of the rate; those with none stay as they are."""
        layers = zip(self.W, self.b, self.rates, strict=True)
        return [{"params": [W, b], "learning_rate": learning_rate * rate} for W, b, rate in layers if rate]
