"""Training of a classifier with a trunk: its members, each on folds of its own, by one loss for everything.

The loss is the cross-entropy of the classes, and the denoising loss of all classes together.  With class energies E_k,
scale s and biases B_k, log p(k|v) = s E_k(v) + B_k - s F(v), where

    F(v) = (1/s) log sum_k exp(s E_k(v) + B_k)        grad F = sum_k p(k|v) r_k(v) - v

is itself the energy of an auto-encoder, whose reconstruction is the mean of the classes' by their probabilities.  It
needs no labels, ties the field to the rows, and regularises: with it the trunk needs no dropout.

Noise of standard deviation t makes of a density p a smooth one, whose best reconstruction is v + t^2 grad log p.  So at
s = 1 / t^2 one energy is right for both: s E_k + B_k is the logarithm of the density of class k, by which rows are told
apart, and v + grad F the reconstruction.  Scales far below that ask for energies that are too steep to denoise.

Every row is held out by at most one member.  What a member says of its held-out rows chooses its epoch, and what all
of them say of theirs the one temperature of the classifier: no row is lost, and no energy is judged by rows that it
was trained on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from energate.training.calibration import find_temperature
from energate.training.classes import ClassEnergies, LabelledRows
from energate.training.loop import Batches, History, Listener, Stage, corrupt, epoch_generator
from energate.training.trunk_gradient import Batch, is_written_out, written_out

WARM_UP = 0.1  # share of the steps in which the learning rate grows
SMOOTHING = 0.05  # of the labels: logits stay finite where classes are separable
FASTER = 6.0  # the scales of the columns learn so many times faster: a trunk chooses columns early
DENOISED = 4  # one batch in so many is also denoised
FEW_COLUMNS = 25  # of fewer the denoising loss is divided by so many: it would blur what is finer than the noise
MOST_JUDGES = 20_000  # held-out rows that choose the epoch, at most


@dataclass(frozen=True)
class TrunkTraining:
    """How training goes: what `minimise` and `corrupt` take, and the weight of the denoising loss per column."""

    epochs: int
    batch_size: int = 256
    learning_rate: float = 4e-3
    weight_decay: float = 0.02
    generative_weight: float | Tensor = 0.05
    noise: str = "gaussian"
    noise_level: float = 0.2
    patience: int | None = None
    validate_every: int = 1
    n_folds: int = 0  # without folds, or other rows to stop early on, all members train on all rows
    passes: int = 1  # through the rows, in an epoch
    seed: int = 0


@dataclass(frozen=True)
class HeldOut:
    """Rows that choose the epoch and the temperature: numbers (C, V) of rows, and their weights, 0 to fill up."""

    rows: LabelledRows
    index: Tensor
    weight: Tensor

    def logits(self, model: ClassEnergies) -> Tensor:
        """What each member says of its rows: (C, V, K)."""
        return model.calibrated(model.part_energies(self.rows.v[self.index]))

    def energies(self, model: ClassEnergies) -> Tensor:
        """How much each class likes each row, with no term left out: (rows, K), by the member that held it out."""
        found = model.calibrated(model.part_energies(self.rows.v[self.index], relative=False))  # (C, V, K)
        return found[self.weight > 0]

    def losses(self, model: ClassEnergies) -> Tensor:
        """The log-loss of every member: (C,)."""
        logits = self.logits(model)
        each = F.cross_entropy(logits.flatten(0, 1), self.rows.labels[self.index].flatten(), reduction="none")
        return (each.unflatten(0, self.index.shape) * self.weight).sum(1) / self.weight.sum(1)


def train_trunk(
    model: ClassEnergies,
    rows: LabelledRows,
    how: TrunkTraining,
    valid: LabelledRows | None = None,
    listener: Listener | None = None,
) -> tuple[History, HeldOut | None]:
    """Train all members as one program, then set the temperature; the rows that chose both, if there are any.

    With ``valid`` all members train on all rows, and those decide.
    """
    fold = fold_of(rows.labels, how.n_folds, how.seed) if valid is None and how.n_folds else None
    held_out = _held_out(model.n_members, rows, valid, fold)
    batches = rows.fresh(_batches(model.n_members, fold, len(rows.v), how, rows.v.device))
    patience = None if held_out is None else how.patience
    stage = Stage("fine-tune", how.epochs, how.learning_rate, 0.0, "adamw", _warm_cosine, patience, how.validate_every)

    def validate() -> Tensor:
        assert held_out is not None
        return _of_members(held_out.losses(model))

    check = None if held_out is None else validate
    draws = torch.Generator(rows.v.device).manual_seed(how.seed)
    loss = _loss(model, rows, how, draws)
    history = stage.run(loss, _groups(model, how), batches, check, listener, generators=[draws], by_rows=True)
    if held_out is not None:
        _set_temperature(model, held_out)
    return history, held_out


def reconstruct_together(model: ClassEnergies, v: Tensor) -> Tensor:
    """What the auto-encoder of all classes together makes of rows of each member's own, before the output: (C, N, D).

    For models of one part.
    """
    (part,) = model.autoencoders

    def posterior(energies: Tensor) -> Tensor:  # (C * K, N)
        of_members = energies.unflatten(0, (model.n_members, -1))
        return torch.softmax(model.beta.unsqueeze(-1) * of_members + model.B.unsqueeze(-1), 1).flatten(0, 1)

    return part.energies_and_mixture(v, posterior)[1]


def plain_losses(model: ClassEnergies, batch: Batch) -> Tensor:
    """The loss of every member: (C,)."""
    v, weight = batch.v, batch.weight
    logits = model.calibrated(model.part_energies(v)).flatten(0, 1)  # (C * B, K)
    each = F.cross_entropy(logits, batch.labels.flatten(), reduction="none", label_smoothing=batch.smoothing)
    total = (weight * each.view_as(weight)).mean(1)
    if batch.seen is not None:
        missed = model.autoencoders[0].visible.divergence(reconstruct_together(model, batch.seen), v)  # (C, B)
        total = total + batch.price * (weight * missed).mean(1)
    return total


def _loss(
    model: ClassEnergies, rows: LabelledRows, how: TrunkTraining, generator: torch.Generator
) -> Callable[[Tensor], Tensor]:
    mix = torch.as_tensor(how.generative_weight, dtype=rows.v.dtype, device=rows.v.device)
    price = (DENOISED * mix / max(rows.v.shape[1], FEW_COLUMNS)).expand(model.n_members)
    generative, losses = bool((mix > 0).any()), written_out if is_written_out(model) else plain_losses

    def loss(batch: Tensor) -> Tensor:  # (C, B), or (C, B, 1) to be denoised, too -> (C,)
        denoised, batch = batch.ndim == 3, batch.flatten(1)
        v = rows.v[batch]  # (C, B, D)
        seen = corrupt(v, how.noise, how.noise_level, generator) if generative and denoised else None
        return _of_members(losses(model, Batch(v, rows.labels[batch], rows.weight[batch], SMOOTHING, seen, price)))

    return loss


def _of_members(values: Tensor) -> Tensor:
    """One value for each member, () where there is one, for `minimise`."""
    return values[0] if len(values) == 1 else values


def _groups(model: ClassEnergies, how: TrunkTraining) -> list[dict[str, object]]:
    """Matrices decay, scales of columns learn faster, and visible biases as much slower as they count for more."""
    (part,) = model.autoencoders
    scales = [group.s for group in part.groups]
    matrices = [parameter for group in part.groups for parameter in group.parameters() if parameter.ndim == 3]
    known = {id(parameter) for parameter in [*scales, *matrices, part.a]}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return [
        {"params": matrices, "weight_decay": how.weight_decay},
        {"params": others},
        {"params": [part.a], "learning_rate": how.learning_rate / part.groups[0].repeats},
        {"params": scales, "learning_rate": FASTER * how.learning_rate},
    ]


def _warm_cosine(progress: float) -> float:
    return min(1.0, progress / WARM_UP + 1e-3) * (1 + math.cos(math.pi * progress)) / 2


# --- folds -------------------------------------------------------------------------------------------------------


def fold_of(labels: Tensor, n_folds: int, seed: int) -> Tensor:
    """The fold of every row: (N,); each fold has its share of every class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels.cpu()[order].argsort(stable=True)]
    fold = torch.empty(len(labels), dtype=torch.long)
    fold[order] = torch.arange(len(labels)) % n_folds
    return fold


def _held_out(n_members: int, rows: LabelledRows, valid: LabelledRows | None, fold: Tensor | None) -> HeldOut | None:
    if valid is not None:
        index = torch.arange(len(valid.v), device=valid.v.device).expand(n_members, -1)
        return HeldOut(valid, index, valid.weight[index])
    if fold is None:
        return None
    most = math.ceil(MOST_JUDGES / n_members)
    chosen = [(fold == c).nonzero().squeeze(1)[:most] for c in range(n_members)]
    index = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1).to(rows.v.device)
    return HeldOut(rows, index.clamp(min=0), rows.weight[index] * (index >= 0))


def _batches(n_members: int, fold: Tensor | None, n_rows: int, how: TrunkTraining, device: torch.device) -> Batches:
    """Every member its own rows: a function from the epoch to batches (C, B) of row numbers.

    Batches to be denoised, too, are (C, B, 1).  Some whole ones, and not some rows of all: small steps take as long.
    """
    trains = torch.ones(n_members, n_rows, dtype=torch.bool)
    if fold is not None:
        trains = fold != torch.arange(n_members).unsqueeze(1)  # (C, N)
    n_train = int(trains.sum(1).min())  # members differ by a row or so
    size = min(how.batch_size, n_train)
    n_steps = n_train // size  # the last rows of a pass wait for another one

    def batches(epoch: int) -> list[Tensor]:
        found: list[Tensor] = []
        for number in range(how.passes):
            keys = torch.rand(n_members, n_rows, generator=epoch_generator(how.seed, epoch * how.passes + number))
            order = keys.masked_fill(~trains, 2.0).argsort(1)[:, : n_steps * size]  # rows held out come last
            found += order.unflatten(1, (n_steps, size)).to(device).unbind(1)
        return [batch if i % DENOISED else batch.unsqueeze(2) for i, batch in enumerate(found)]

    return batches


def _set_temperature(model: ClassEnergies, held_out: HeldOut) -> None:
    with torch.no_grad():
        logits = held_out.logits(model).flatten(0, 1)
        labels = held_out.rows.labels[held_out.index].flatten()
        factor = find_temperature(logits, labels, held_out.weight.flatten())
        model.beta.mul_(factor)
        model.B.mul_(factor)
