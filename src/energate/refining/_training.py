"""Training of energies over label vectors: by likelihood among the vectors seen, or by restoring noisy ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.refining._sets import LabelSets, SetModel
from energate.training import History, minimise, row_batches


@dataclass(frozen=True)
class LabelRows:
    """Rows with the base's logits t (N, L), labels Y (N, L) of 0 and 1, and columns x (N, D)."""

    t: Tensor
    Y: Tensor
    x: Tensor

    def take(self, rows: Tensor) -> "LabelRows":
        """Some of them."""
        return LabelRows(self.t[rows], self.Y[rows], self.x[rows])


SAMPLED = 4096  # of more label vectors than this, a training step looks at the most frequent and at its rows' own
VALID_VALUES = 2**22  # scores at once in validation
SET_NLL = 0.3  # weight of the likelihood of label vectors, per label, beside that of single labels
TINY = 1e-6


def sampled_sets(sets: LabelSets, own: Tensor) -> tuple[Tensor | None, Tensor]:
    """The label vectors that a step with rows of vectors ``own`` looks at, None for all, and where own are in them."""
    if len(sets.Y) <= SAMPLED:
        return None, own
    frequent = sets.count.topk(SAMPLED).indices
    among, place = torch.unique(torch.cat([frequent, own]), return_inverse=True)
    return among, place[SAMPLED:]


def train_sets(
    model: SetModel, rows: LabelRows, sets: LabelSets, epochs: int, valid: LabelRows, **options: Any
) -> History:
    """Train the distribution over label vectors by likelihood: of labels, mixed with the base's, and of whole vectors.

    With more than `SAMPLED` label vectors a step normalises over the most frequent and those of its own rows (a
    sampled softmax), so that its memory does not grow; validation looks at all.  The epoch with the best log-loss of
    validation labels is kept.  ``options`` are those of `minimise`, and a ``batch_size`` and a ``seed``.
    """
    batches = row_batches(len(rows.t), options.pop("batch_size"), options.pop("seed"), rows.t.device)
    mix = nn.Parameter(rows.t.new_zeros(()))  # how much of the marginals, as a logit

    def mixture(t: Tensor, log_p: Tensor, Y: Tensor) -> Tensor:
        return torch.lerp(torch.sigmoid(t), log_p.exp() @ Y, torch.sigmoid(mix)).clamp(TINY, 1 - TINY)

    def loss(batch: Tensor) -> Tensor:
        part = rows.take(batch)
        among, own = sampled_sets(sets, sets.of_row[batch])
        log_p = torch.log_softmax(model.seen_scores(part.t, part.x, own, among), 1)
        Y = model.Y if among is None else model.Y[among]
        of_labels = F.binary_cross_entropy(mixture(part.t, log_p, Y), part.Y)
        return of_labels + SET_NLL / part.Y.shape[1] * F.nll_loss(log_p, own)

    def validate() -> Tensor:
        total = valid.t.new_zeros(())
        for some in torch.arange(len(valid.t), device=valid.t.device).split(max(1, VALID_VALUES // len(model.Y))):
            part = valid.take(some)
            log_p = torch.log_softmax(model.seen_scores(part.t, part.x), 1)
            total += F.binary_cross_entropy(mixture(part.t, log_p, model.Y), part.Y, reduction="sum")
        return total / valid.Y.numel()

    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 3 and parameter.shape[1] > 1]
    others = [parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in matrices)]
    decay = options.pop("weight_decay")
    groups = [{"params": matrices, "weight_decay": decay}, {"params": [*others, mix], "weight_decay": 0.0}]
    return minimise(
        loss, groups, batches, epochs=epochs, optimizer="adamw", schedule="cosine", validate=validate, **options
    )


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
    epochs: int,
    valid: LabelRows,
    noise_level: float,
    *,
    noise: Callable[[Tensor, float, torch.Generator], Tensor] = flipped,
    context_noise: float = 0.0,
    **options: Any,
) -> History:
    """Train an auto-encoder to restore label vectors from noisy ones, by cross-entropy (the paper's loss_2).

    ``noise`` is what labels suffer, of the size ``noise_level``: `flipped` or `blurred`.  Columns are blurred by
    ``context_noise``.
    """
    seed = options.pop("seed")
    batches = row_batches(len(rows.t), options.pop("batch_size"), seed, rows.t.device)
    draws = torch.Generator(rows.t.device).manual_seed(seed)
    context = model.context_width > 0

    def losses(part: LabelRows, generator: torch.Generator) -> Tensor:
        seen = noise(part.Y, noise_level, generator)
        x = blurred(part.x, context_noise, generator) if context and context_noise else part.x
        return model.loss(part.Y, x if context else None, seen=seen).mean()

    def validate() -> Tensor:  # always under the same noise
        return losses(valid, torch.Generator(valid.Y.device).manual_seed(seed))

    return minimise(
        lambda batch: losses(rows.take(batch), draws),
        model.parameters(),
        batches,
        epochs=epochs,
        optimizer="adamw",
        schedule="cosine",
        validate=validate,
        **options,
    )
