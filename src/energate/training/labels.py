"""Labels that belong together: energies of label vectors, and predictions that follow them uphill.

A base classifier gives logits t (N, L), one label at a time.  An auto-encoder with sigmoid outputs over label vectors
y, with the row x as context (`GatedUnits`, E(y|x)) or without (`CovarianceUnits`, E(y)), knows which labels go
together.  Two ways to use it: from the base's own y follow the energy uphill (`algo:SOLRG`), which is here; or
normalise it over candidates, which is in `energate.training.sets`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, trajectory
from energate.errors import InputError
from energate.training.batches import Batches, row_batches
from energate.training.loop import History, Listener, Stage
from energate.units import CovarianceUnits, GatedUnits

LABEL_RELATIONS = ("xy", "yy")


def label_autoencoder(
    relation: str, n_labels: int, n_context: int, n_factors: int, n_hidden: int, generator: torch.Generator
) -> Autoencoder:
    """The auto-encoder of label vectors: GAES_XY with the row as context, GAES_Y2 with the labels twice."""
    if relation not in LABEL_RELATIONS:
        raise InputError(f"`relation` must be one of {', '.join(LABEL_RELATIONS)}; got {relation!r}.")
    if relation == "xy":
        return Autoencoder([GatedUnits(1, n_labels, n_context, n_factors, n_hidden, generator=generator)], "sigmoid")
    return Autoencoder([CovarianceUnits(1, n_labels, n_factors, n_hidden, generator=generator)], "sigmoid")


@dataclass(frozen=True)
class LabelRows:
    """Rows with the base's logits t (N, L), labels Y (N, L) of 0 and 1, and columns x (N, D)."""

    t: Tensor
    Y: Tensor
    x: Tensor

    def take(self, rows: Tensor) -> "LabelRows":
        """Some of them."""
        return LabelRows(self.t[rows], self.Y[rows], self.x[rows])


@dataclass(frozen=True)
class LabelSets:
    """The different label vectors of some rows: Y (S, L) of 0 and 1, how often each came, and which each row has."""

    Y: Tensor
    count: Tensor  # (S,)
    of_row: Tensor  # (N,)

    @classmethod
    def of(cls, labels: Tensor) -> "LabelSets":
        """The label vectors of rows (N, L)."""
        Y, of_row, count = torch.unique(labels, dim=0, return_inverse=True, return_counts=True)
        return cls(Y, count.to(labels.dtype), of_row)


@dataclass(frozen=True)
class LabelTraining:
    """How an energy over labels is trained: by AdamW, at a rate that falls to 0 along a cosine."""

    epochs: int
    learning_rate: float = 6e-3
    weight_decay: float = 0.1
    batch_size: int = 256
    seed: int = 0
    listener: Listener | None = None

    @property
    def stage(self) -> Stage:
        """The one stage of this training."""
        return Stage("energy", self.epochs, self.learning_rate, self.weight_decay, "adamw", "cosine")

    def batches(self, rows: LabelRows) -> Batches:
        """Shuffled numbers of the rows."""
        return row_batches(len(rows.t), self.batch_size, self.seed, rows.t.device)


def flipped(Y: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Labels of which a share of level / 2 is the wrong way round."""
    flip = torch.rand(Y.shape, generator=generator, device=Y.device) < level / 2
    return torch.where(flip, 1 - Y, Y)


def blurred(values: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Values with Gaussian noise of this standard deviation."""
    return values + level * torch.randn(values.shape, generator=generator, device=values.device)


def train_denoising(
    model: Autoencoder,
    rows: LabelRows,
    valid: LabelRows,
    training: LabelTraining,
    noise_level: float,
    *,
    noise: Callable[[Tensor, float, torch.Generator], Tensor] = flipped,
    context_noise: float = 0.0,
) -> History:
    """Train an auto-encoder to restore label vectors from noisy ones, by cross-entropy (the paper's loss_2).

    ``noise`` is what labels suffer, of the size ``noise_level``: `flipped` or `blurred`.  Columns are blurred by
    ``context_noise``.  The epoch is kept that does best on validation rows.
    """
    draws = torch.Generator(rows.t.device).manual_seed(training.seed)
    context = model.context_width > 0

    def losses(part: LabelRows, generator: torch.Generator) -> Tensor:
        seen = noise(part.Y, noise_level, generator)
        x = blurred(part.x, context_noise, generator) if context and context_noise else part.x
        return model.loss(part.Y, x if context else None, seen=seen).mean()

    def loss(batch: Tensor) -> Tensor:
        return losses(rows.take(batch), draws)

    def validate() -> Tensor:  # always under the same noise
        return losses(valid, torch.Generator(valid.Y.device).manual_seed(training.seed))

    return training.stage.run(loss, model.parameters(), training.batches(rows), validate, training.listener)


def ascend(model: Autoencoder, t: Tensor, x: Tensor, steps: Sequence[int]) -> list[Tensor]:
    """The logits after each of some numbers of steps uphill in energy, from a base's: each (N, L) (`algo:SOLRG`).

    NOTE[DIFF] the paper prints a minus sign, which goes downhill, and "or" where its loop needs "and" (E17, E18).
    """
    limit = LOGIT_LIMIT
    t = t.clamp(-limit, limit)
    context = x if model.context_width else None
    start = torch.sigmoid(t.double()).to(t)
    # The points on the way take the most memory: one number of steps needs only the last.
    walk = trajectory(model, start, context, max_steps=max(steps), keep_path=len(steps) > 1)
    points = walk.points if walk.path is None else walk.path[:, 0]  # (1 or T + 1, N, L)

    def logits(step: int) -> Tensor:
        point = points[min(step, len(points) - 1)]
        return torch.logit(point.double()).clamp(-limit, limit).to(t) if step else t

    return [logits(step) for step in steps]
