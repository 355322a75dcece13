"""Training of energies over label vectors: by likelihood among the vectors seen, or by restoring noisy ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.training import History, minimise, row_batches
from energate.training.labels._sets import LabelSets, Neighbours, SetModel, neighbours


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
OBJECTIVES = ("hamming", "subset")
TINY = 1e-6


def sampled_sets(sets: LabelSets, own: Tensor) -> tuple[Tensor | None, Tensor]:
    """The label vectors that a step with rows of vectors ``own`` looks at, None for all, and where own are in them."""
    if len(sets.Y) <= SAMPLED:
        return None, own
    frequent = sets.count.topk(SAMPLED).indices
    among, place = torch.unique(torch.cat([frequent, own]), return_inverse=True)
    return among, place[SAMPLED:]


@dataclass(frozen=True)
class Candidates:
    """What rows choose from beside the label vectors seen: flips of the base's own, and where the true vector is."""

    flips: Tensor  # (N, J), as in `Neighbours`
    known: Tensor  # (N, 1 + J), which of the row's own were seen
    truth: Tensor  # (N,), as `SetModel.place` has it

    @classmethod
    def of(cls, model: SetModel, rows: LabelRows, n_neighbours: int, own_set: Tensor | None = None) -> "Candidates":
        """Those of rows; with ``own_set`` (N,), of the training rows that have these vectors."""
        parts = []
        for some in torch.arange(len(rows.t), device=rows.t.device).split(max(1, VALID_VALUES // len(model.Y))):
            own, near = None if own_set is None else own_set[some], neighbours(rows.t[some], n_neighbours)
            place = model.place(rows.Y[some], near if n_neighbours else None, own)
            parts.append((near.flips, model.known(near, own), place))
        return cls(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def take(self, rows: Tensor) -> "Candidates":
        """Those of some rows."""
        return Candidates(self.flips[rows], self.known[rows], self.truth[rows])

    def near(self, t: Tensor) -> Neighbours | None:
        """The row's own candidates, from the base's logits; None without neighbours."""
        return Neighbours((t > 0).to(t), self.flips) if self.flips.shape[1] else None


def train_sets(
    model: SetModel,
    rows: LabelRows,
    sets: LabelSets,
    epochs: int,
    valid: LabelRows,
    *,
    n_neighbours: int = 16,
    objective: str = "hamming",
    **options: Any,
) -> History:
    """Train the distribution over label vectors by likelihood, among the candidates that rows have in prediction.

    ``"hamming"``: by the likelihood of labels, mixed with the base's, and a little by that of whole vectors;
    ``"subset"``: by that of whole vectors alone, in the rows where the true one is a candidate.  The epoch is kept that
    does best on validation rows, in single labels or in whole vectors.

    With more than `SAMPLED` label vectors a step normalises over the most frequent and those of its own rows (a
    sampled softmax), so that its memory does not grow; validation looks at all.  ``options`` are those of `minimise`,
    and a ``batch_size`` and a ``seed``.
    """
    batches = row_batches(len(rows.t), options.pop("batch_size"), options.pop("seed"), rows.t.device)
    mix = nn.Parameter(rows.t.new_zeros(()))  # how much of the marginals, as a logit
    learned = Candidates.of(model, rows, n_neighbours, sets.of_row)
    unseen = Candidates.of(model, valid, n_neighbours)

    def losses(part: LabelRows, of: Candidates, own: Tensor | None, among: Tensor | None) -> tuple[Tensor, Tensor]:
        """Minus the log-likelihood of labels and of label vectors, each per label."""
        near = of.near(part.t)
        beliefs = model.beliefs(part.t, part.x, near, known=of.known, own_set=own, among=among)
        log_p = beliefs.seen if beliefs.own is None else torch.cat([beliefs.seen, beliefs.own], 1)
        truth = of.truth
        if among is not None and own is not None:  # the vectors have other places there
            truth = torch.where(truth < len(model.Y), own, truth - len(model.Y) + len(among))
            truth = torch.where(of.truth < 0, -1, truth)
        of_sets = F.nll_loss(log_p, truth, ignore_index=-1, reduction="sum") / part.Y.numel()
        if objective == "subset":
            return of_sets.new_zeros(()), of_sets
        p = torch.lerp(torch.sigmoid(part.t), model.marginals(beliefs, near, among), torch.sigmoid(mix))
        return F.binary_cross_entropy(p.clamp(TINY, 1 - TINY), part.Y), of_sets

    def loss(batch: Tensor) -> Tensor:
        among, own = sampled_sets(sets, sets.of_row[batch])
        of_labels, of_sets = losses(rows.take(batch), learned.take(batch), own, among)
        return of_sets if objective == "subset" else of_labels + SET_NLL * of_sets

    def validate() -> Tensor:
        total = valid.t.new_zeros(())
        for some in torch.arange(len(valid.t), device=valid.t.device).split(max(1, VALID_VALUES // len(model.Y))):
            of_labels, of_sets = losses(valid.take(some), unseen.take(some), None, None)
            total += len(some) * (of_sets if objective == "subset" else of_labels)
        return total / len(valid.t)

    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 3 and parameter.shape[1] > 1]
    others = [parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in matrices)]
    others += [mix] if objective == "hamming" else []
    decay = options.pop("weight_decay")
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
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
