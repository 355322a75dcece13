"""K feed-forward networks as one batched program: what `LabelMLP` trains, and their batches."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from energate.training import Batches, corrupt, row_batches


class BatchedLinear(nn.Module):
    """K linear maps of rows (K, N, D) to (K, N, M)."""

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        self.W = nn.Parameter(W)  # (K, D, M)
        self.b = nn.Parameter(torch.zeros(len(W), W.shape[2]))

    def forward(self, h: Tensor) -> Tensor:
        return torch.baddbmm(self.b.unsqueeze(1), h, self.W)


class LabelNetworks(nn.Module):
    """K networks of ReLU layers, from rows to the logits of the labels.

    The weights of the output start at 0: before training every row gets the logits that its biases hold.
    """

    def __init__(self, n_models: int, sizes: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.n_models = n_models
        *hidden, output = itertools.pairwise(sizes)
        starts = [torch.randn(n_models, *shape, generator=generator) * (2 / sum(shape) ** 0.5) for shape in hidden]
        self.hidden = nn.ModuleList(map(BatchedLinear, starts))
        self.output = BatchedLinear(torch.zeros(n_models, *output))

    def forward(
        self, v: Tensor, dropout: tuple[float, float] = (0.0, 0.0), generator: torch.Generator | None = None
    ) -> Tensor:
        """The logits (K, N, L) of rows (N, D) or (K, N, D); ``dropout`` is that of the rows and of hidden units."""
        rate, later = dropout
        h = v.expand(self.n_models, *v.shape[-2:])  # (K, N, D)
        for layer in self.hidden:
            h = layer(_drop(h, rate, generator)).relu()  # (K, N, M)
            rate = later
        return self.output(_drop(h, rate, generator))  # (K, N, L)


def _drop(h: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Values left out at random, the others larger in turn, so that the mean stays."""
    return corrupt(h, "masking", rate, generator) / (1 - rate) if rate else h


def member_batches(n_models: int, n_rows: int, batch_size: int, seed: int, device: torch.device) -> Batches:
    """Every model its own order of the same rows: a function from the epoch to batches (K, B) of row numbers."""
    members = [row_batches(n_rows, batch_size, seed + k, device) for k in range(n_models)]

    def batches(epoch: int) -> Sequence[Tensor]:
        return [torch.stack(parts) for parts in zip(*(member(epoch) for member in members), strict=True)]

    return batches
