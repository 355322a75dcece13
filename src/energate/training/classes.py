"""Class-specific energy models, and the three stages that train them: pretrain, calibrate, fine-tune.

K classes are K models of one or several auto-encoders, whose energies add (`eqn:gae:classification`, `GAES_eq`):

    P(z = k | v) = softmax_k( sum over parts of beta * E_k(v) + B_k )

The stages work on tensors and can be used without the estimators.  A batch holds rows of every class, (K, B): model
k reconstructs its own rows, and all rows together give the cross-entropy, weighted back to the frequencies of the
classes.

C classifiers, *members*, train as one program of C * K models: configurations of a search, or an ensemble.  What steps
them (learning rate, noise, loss weights) may then differ: a vector (C,) in the place of a number.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.training.calibration import Calibration, calibrate_members, calibrate_sureness
from energate.training.loop import Batches, History, Listener, Stage, class_batches, corrupt, refilled, spread
from energate.units import MeanUnits

#: Logits further apart than this share of their size are in the same order in single precision, whose rounding is a
#: hundredth of it.
CLEAR = 1e-4


class ClassEnergies(nn.Module):
    """C members of K class models each: P auto-encoders with C * K models, whose energies add, and biases.

    Model c * K + k is class k of member c.  ``B`` is (C, K) and the scales ``beta`` are (C, P).  Together the members
    are one classifier, whose energies are the mean of theirs with the weights ``share`` (C,): an exact energy again.
    """

    def __init__(self, parts: Sequence[Autoencoder], n_classes: int | None = None) -> None:
        super().__init__()
        if not parts or len({(part.n_models, part.width) for part in parts}) != 1:
            raise InputError("`parts` must be auto-encoders of the same width, each with one model per class.")
        n_models = parts[0].n_models
        self.n_classes = n_models if n_classes is None else n_classes
        self.n_members = n_models // self.n_classes
        if self.n_members * self.n_classes != n_models:
            raise InputError(f"{n_models} models are not so many members of {self.n_classes} classes each.")
        self.parts = nn.ModuleList(parts)
        self.B = nn.Parameter(parts[0].a.new_zeros(self.n_members, self.n_classes))
        self.register_buffer("beta", parts[0].a.new_ones(self.n_members, len(parts)))
        self.beta: Tensor
        self.register_buffer("share", parts[0].a.new_full((self.n_members,), 1 / self.n_members))
        self.share: Tensor

    @property
    def autoencoders(self) -> list[Autoencoder]:
        """The parts."""
        return list(self.parts)  # type: ignore[arg-type]

    def part_energies(self, v: Tensor, relative: bool = True) -> Tensor:
        """How much each part of each class likes each row: (C, P, N, K), higher is better.

        ``relative`` leaves out a term that all classes share.  LabelledRows are (N, D), or (C, N, D) for members' own.
        """
        scores = []
        for part in self.autoencoders:
            rows = v
            if v.ndim == 3 and part.n_members != self.n_members:  # a member's classes all see the member's rows
                rows = v[0] if self.n_members == 1 else v.repeat_interleave(self.n_classes, 0)
            scores.append(part.relative_energy(rows) if relative else part.energy(rows))
        return torch.stack(scores).unflatten(1, (self.n_members, self.n_classes)).permute(1, 0, 3, 2)

    def calibrated(self, part_energies: Tensor) -> Tensor:
        """Scales and biases applied to energies of the parts: (C, P, N, K) -> (C, N, K)."""
        return (self.beta[..., None, None] * part_energies).sum(1) + self.B.unsqueeze(1)

    def logits(self, v: Tensor) -> Tensor:
        """Calibrated energies whose softmax is P(z | v): (N, K)."""
        weights = self.share.unsqueeze(1) * self.beta  # (C, P)
        return torch.tensordot(weights, self.part_energies(v), 2) + self.share @ self.B

    def energies(self, v: Tensor) -> Tensor:
        """How much each class likes each row, calibrated, with no term left out: (N, K), higher is better."""
        return self.scores(v)[0]

    def scores(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The energies, and the logits, which lack a term that all classes share: (N, K) each, in one pass."""
        logits = self.logits(v)
        shared = torch.stack([part.shared_term(v) for part in self.autoencoders], 1) @ (self.share @ self.beta)  # (N,)
        return logits - shared.unsqueeze(1), logits

    def encode(self, v: Tensor) -> Tensor:
        """Hidden activations of all members, classes and parts, side by side: (N, C * K * M)."""
        h = torch.cat([part.encode(v) for part in self.autoencoders], -1)  # (C * K, N, M)
        return h.movedim(0, 1).flatten(1)

    def member(self, c: int) -> "ClassEnergies":
        """A copy of one member alone."""
        models = range(c * self.n_classes, (c + 1) * self.n_classes)
        alone = self.n_members == 1
        parts = [copy.deepcopy(part) if alone else part.select(models) for part in self.autoencoders]
        model = ClassEnergies(parts)
        with torch.no_grad():
            model.B.copy_(self.B[c : c + 1])
            model.beta.copy_(self.beta[c : c + 1])
        return model

    def per_member(self, values: Tensor) -> Tensor:
        """Values of C * K models added up to (C,); () where there is one member, for `minimise`."""
        values = values.unflatten(0, (self.n_members, self.n_classes)).sum(1)
        return values[0] if self.n_members == 1 else values


class Likeliest:
    """The most probable class of rows, by the numbers of classes.

    Which one it is can mostly be seen in single precision, in a third of the time.  Rows where it cannot are scored
    once more with the precision of the model: the answer is always that of its own logits.
    """

    def __init__(self, model: ClassEnergies) -> None:
        self._model, self._single = model, copy.deepcopy(model).float()

    def __call__(self, v: Tensor) -> Tensor:
        """Of rows (N, D) of the model's dtype: (N,)."""
        logits = self._single.logits(v.float())
        first, second = logits.topk(2, 1).values.unbind(1)
        size = 1 + logits.abs().amax(1) + v.abs().amax(1)  # of what adds up to the logits
        best = logits.argmax(1)
        close = ~(first - second > CLEAR * size)  # also where single precision overflows, to NaN
        if close.any():
            best[close] = self._model.logits(v[close]).argmax(1)
        return best


@dataclass(frozen=True)
class LabelledRows:
    """Training or validation rows on the model's device: v (N, D), labels (N,) and weights (N,) of mean 1.

    To train on, rows may have weights of every member's own, (C, N).  Where there are ``times`` as many rows as are
    here, ``refill(epoch)`` gives others of the same classes, (N, D).
    """

    v: Tensor
    labels: Tensor
    weight: Tensor
    refill: Callable[[int], Tensor] | None = None
    times: float = 1.0

    def fresh(self, batches: Batches) -> Batches:
        """Batches whose every epoch is of other rows, where there are more than are here."""
        return batches if self.refill is None else refilled(self.v, self.refill, batches)


#: rows of every class in a batch, at least: a class learns to reconstruct from its own rows only
PRETRAIN_ROWS, FINE_TUNE_ROWS = 32, 8
#: The scale at which fine-tuning starts.  Well below 1, weights move far enough to become sharp features before the
#: energies become sure of the classes; `find_biases` finds the scale anew afterwards.
FINE_TUNE_SCALE = 0.1

MOST_EVIDENCE = 64.0  # rows that may speak for a member, at most
NEGLIGIBLE = 25.0  # exp(-25), times the share of a row, is a gradient that not even Adam makes a step of


def rows_per_class(batch_size: int, n_classes: int, least: int) -> int:
    """A batch holds as many rows of every class: its size divided by the classes, but at least some."""
    return max(least, batch_size // n_classes)


@dataclass(frozen=True)
class Training:
    """How a stage goes: what `minimise` and `corrupt` take, and what stays of the calibration."""

    epochs: int = 20
    batch_size: int = 100
    learning_rate: float | Tensor = 1e-3
    weight_decay: float | Tensor = 0.0
    noise: str = "gaussian"
    noise_level: float | Tensor = 0.3
    patience: int | None = 10
    validate_every: int = 1
    optimizer: str = "adam"
    learn_scale: bool = True  # validation finds the scales beta, too, not only the biases
    seed: int = 0

    def stage(self, name: str, schedule: str, final: bool = True) -> Stage:
        """One stage of this training; ``final`` if no other goes on from it."""
        rates, checks = (self.learning_rate, self.weight_decay), (self.patience, self.validate_every)
        return Stage(name, self.epochs, *rates, self.optimizer, schedule, *checks, final=final)


@dataclass(frozen=True)
class Stages:
    """How all three stages go."""

    pretrain: Training
    fine_tune: Training  # without epochs there is no such stage
    generative_weights: Tensor  # (C,)
    start_scale: float | None = FINE_TUNE_SCALE
    calibrate: bool = True  # else the biases are only learned with the weights
    sharp: bool = False  # `SHARP_MEMBER` learns faster
    own_fraction: float = 0.0  # of the rows, that every member holds out for itself where there are no validation rows


def train_classes(
    model: ClassEnergies,
    rows: LabelledRows,
    stages: Stages,
    valid: LabelledRows | None = None,
    listener: Listener | None = None,
) -> dict[str, History]:
    """Pretrain, calibrate, fine-tune and calibrate again, on validation rows where there are some.

    Where there are none, because classes are too small to be split, every member may hold out rows of its own: too few
    for biases, which then are those of training, and to choose epochs by, but enough to know how sure to be.
    """
    first, second, scale = stages.pretrain, stages.fine_tune, stages.fine_tune.learn_scale
    own = None
    if valid is None and stages.own_fraction:
        rows, own = hold_out_own(rows, model.n_members, model.n_classes, stages.own_fraction, first.seed)
    history = {"pretrain": pretrain(model, rows, first, valid, listener)}
    if stages.calibrate and (second.epochs or own is not None):
        set_biases(model, valid or rows, scale)
    if second.epochs:
        if stages.sharp:
            second = replace(second, learning_rate=sharp_rates(second.learning_rate, model.n_members))
        weights, start = stages.generative_weights, stages.start_scale
        history["fine-tune"] = fine_tune(model, rows, second, weights, valid, listener, start_scale=start)
    if own is not None:
        weigh_members(model, set_sureness(model, own), own.labels.shape[1])
    elif stages.calibrate:
        losses = set_biases(model, valid or rows, scale)
        if valid is not None:
            weigh_members(model, losses, len(valid.labels))
    return history


def find_biases(model: ClassEnergies, rows: LabelledRows, scale: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Scales (C, P), biases (C, K) and mean log-loss (C,) that fit the rows best; without ``scale``, only the biases.

    The prior of `calibrate_scales` is around the model's present scales.
    """
    found = _factors(model, rows, scale)
    return model.beta.double().cpu() * found.beta, found.B, found.losses


@torch.no_grad()
def _factors(model: ClassEnergies, rows: LabelledRows, scale: bool, start: Calibration | None = None) -> Calibration:
    """What `find_biases` finds, with factors of the model's present scales; ``start`` as in `calibrate_members`."""
    # On the CPU: many small steps.
    energies = model.beta[..., None, None].double().cpu() * model.part_energies(rows.v).double().cpu()  # (C, P, N, K)
    return calibrate_members(energies, rows.labels.cpu(), rows.weight.double().cpu(), scale=scale, start=start)


def set_biases(model: ClassEnergies, rows: LabelledRows, scale: bool = False) -> Tensor:
    """Calibrate: the biases B, and with ``scale`` also the scales beta, by maximum likelihood; the log-loss (C,)."""
    beta, B, losses = find_biases(model, rows, scale)
    with torch.no_grad():
        model.beta.copy_(beta)
        model.B.copy_(B)
    return losses


def weigh_members(model: ClassEnergies, losses: Tensor, n_rows: int) -> None:
    """Let members count by the likelihood of held-out rows, to the power 1/4: the rows also chose their epochs.

    Of more than some hundred rows the likelihood would leave a single member, and an average is better.
    """
    with torch.no_grad():
        model.share.copy_(torch.softmax(-min(0.25 * n_rows, MOST_EVIDENCE) * losses, 0))


def pretrain(
    model: ClassEnergies,
    rows: LabelledRows,
    training: Training,
    valid: LabelledRows | None = None,
    listener: Listener | None = None,
) -> History:
    """Train every class's auto-encoders to reconstruct the rows of that class from noisy copies.

    With validation rows the epoch with the best calibrated log-loss is kept: more than the reconstruction, the contrast
    between classes says when to stop.
    """
    draws = torch.Generator(rows.v.device).manual_seed(training.seed)
    noisy = _noise(model, rows, training, draws)

    def loss(batch: Tensor) -> Tensor:  # (K, B) -> (C,)
        v = rows.v[batch].repeat(model.n_members, 1, 1)  # (C * K, B, D)
        seen = noisy(v)
        losses = torch.stack([part.loss(v, seen=seen) for part in model.autoencoders]).sum(0)
        weight = rows.weight[..., batch].expand(model.n_members, -1, -1).flatten(0, 1)  # (C * K, B)
        return model.per_member((weight * losses).mean(-1))

    stage, validate = (
        training.stage("pretrain", "constant", final=False),
        _validation(model, valid, training.learn_scale),
    )
    parameters = [parameter for part in model.autoencoders for parameter in part.parameters()]
    batches = rows.fresh(_batches(model, rows, training, PRETRAIN_ROWS))
    return stage.run(loss, parameters, batches, validate, listener, generators=[draws], by_rows=True)


def fine_tune(
    model: ClassEnergies,
    rows: LabelledRows,
    training: Training,
    generative_weight: float | Tensor,
    valid: LabelledRows | None = None,
    listener: Listener | None = None,
    *,
    start_scale: float | None = FINE_TUNE_SCALE,
) -> History:
    """Train weights and biases by cross-entropy, plus ``generative_weight`` times the denoising loss per column.

    It starts from scales of ``start_scale``, or from the present ones where that is None or scales are not learned.
    With validation rows, a member that was better before is put back.
    """
    scale, tensors = training.learn_scale, [*model.parameters(), model.beta]
    before = [tensor.detach().clone() for tensor in tensors]
    loss_before = None if valid is None else find_biases(model, valid, scale)[2]
    if scale and start_scale is not None:
        with torch.no_grad():
            model.B.mul_((start_scale / model.beta.mean(1, keepdim=True)).clamp(max=1))
            model.beta.fill_(start_scale)
    stage, validate = training.stage("fine-tune", "cosine"), _validation(model, valid, scale)
    draws = torch.Generator(rows.v.device).manual_seed(training.seed + 1)
    loss = _hybrid_loss(model, rows, training, generative_weight, draws)
    batches = rows.fresh(_batches(model, rows, training, FINE_TUNE_ROWS))
    history = stage.run(loss, model.parameters(), batches, validate, listener, generators=[draws], by_rows=True)
    if loss_before is not None and history.best is not None:
        worse = (history.best.reshape(-1) > loss_before).to(model.B.device)
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                back = spread(worse, tensor) if model.n_members > 1 else worse[0]
                tensor.copy_(torch.where(back, old, tensor))
    return history


def _hybrid_loss(
    model: ClassEnergies,
    rows: LabelledRows,
    training: Training,
    generative_weight: float | Tensor,
    generator: torch.Generator,
) -> Callable[[Tensor], Tensor]:
    noisy = _noise(model, rows, training, generator)
    n_members, n_classes, width = model.n_members, model.n_classes, rows.v.shape[1]
    classes = torch.arange(n_classes, device=rows.v.device)
    share = torch.bincount(rows.labels, minlength=n_classes).to(rows.v)
    share = share / share.mean()  # class frequencies: every class has as many rows in a batch
    mix = torch.as_tensor(generative_weight, dtype=rows.v.dtype, device=rows.v.device)
    mix = mix[0] if mix.ndim and n_members == 1 else mix
    generative = bool((mix > 0).any())

    def loss(batch: Tensor) -> Tensor:  # (K, B) -> (C,)
        v = rows.v[batch].repeat(n_members, 1, 1)  # (C * K, B, D)
        seen = noisy(v)
        weight = share.unsqueeze(1) * rows.weight[..., batch]  # (K, B), or (C, K, B)
        together = seen.unflatten(0, (n_members, n_classes)).flatten(1, 2)  # (C, K * B, D)
        logits = model.calibrated(model.part_energies(together))  # (C, K * B, K)
        labels = classes.repeat_interleave(batch.shape[1]).expand(n_members, -1)
        # Gradients of classes far below the true one would be denormal numbers, with which a CPU is many times slower.
        floor = logits.detach().gather(-1, labels.unsqueeze(-1)) - NEGLIGIBLE
        cross_entropy = F.cross_entropy(logits.maximum(floor).mT, labels, reduction="none")  # (C, K * B)
        total = (weight.flatten(-2) * cross_entropy).mean(-1)
        total = total[0] if n_members == 1 else total
        if generative:
            losses = torch.stack([part.loss(v, seen=seen) for part in model.autoencoders]).sum(0)
            losses = (weight.expand(n_members, -1, -1).flatten(0, 1) * losses).mean(-1)  # (C * K,)
            total = total + mix * model.per_member(losses) / (n_classes * width)
        return total

    return loss


def _noise(
    model: ClassEnergies, rows: LabelledRows, training: Training, generator: torch.Generator
) -> Callable[[Tensor], Tensor]:
    level = torch.as_tensor(training.noise_level, dtype=rows.v.dtype, device=rows.v.device)
    if level.ndim:
        level = level.repeat_interleave(model.n_classes)  # (C * K,)
    return lambda v: corrupt(v, training.noise, level, generator)


def _batches(model: ClassEnergies, rows: LabelledRows, training: Training, least: int) -> Batches:
    size = rows_per_class(training.batch_size, model.n_classes, least)
    return class_batches(rows.labels, model.n_classes, size, training.seed, rows.v.device)


def _validation(model: ClassEnergies, valid: LabelledRows | None, scale: bool) -> Callable[[], Tensor] | None:
    if valid is None:
        return None
    last: Calibration | None = None

    def validate() -> Tensor:  # the model's own biases play no part
        nonlocal last
        last = _factors(model, valid, scale, last)
        losses = last.losses.to(model.B)
        return losses[0] if model.n_members == 1 else losses

    return validate


# --- rows that every member holds out for itself ----------------------------------------------------------------

ENOUGH_FOLDS = 4  # so many members, or more, hold out one fold each


@dataclass(frozen=True)
class OwnRows:
    """Rows of every member's own that it is not trained on, and how frequent the classes (K,) are among all rows.

    ``v`` is (C, N, D), labels and weights (C, N); members that have fewer rows are filled up with rows of weight 0.
    """

    v: Tensor
    labels: Tensor
    weight: Tensor
    frequencies: Tensor


def hold_out_own(
    rows: LabelledRows, n_members: int, n_classes: int, fraction: float, seed: int
) -> tuple[LabelledRows, OwnRows | None]:
    """Rows to train on, which weigh nothing for the member that holds them out, and those held out.

    The rows are dealt out class after class, to as many folds as there are members: each holds out another one.  A few
    members hold out ``fraction``, so that enough is left to train on.  A class of a single row keeps it; if all are
    such there is nothing to hold out.
    """
    labels = rows.labels.cpu()
    n_folds = n_members if n_members >= ENOUGH_FOLDS else max(2, round(1 / fraction))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    order = order[torch.bincount(labels)[labels[order]] > 1]
    if len(order) < n_folds:
        return rows, None
    fold = torch.full((len(labels),), -1)
    fold[order] = torch.arange(len(order)) % n_folds
    out = (fold == torch.arange(n_members).unsqueeze(1) % n_folds).to(rows.v.device)  # (C, N)
    which = out.to(torch.int8).sort(dim=1, descending=True, stable=True)[1][:, : int(out.sum(1).max())]  # (C, n)
    weight = (rows.weight * out).gather(1, which)
    frequencies = rows.weight.new_zeros(n_classes).index_add(0, rows.labels, rows.weight) / rows.weight.sum()
    own = OwnRows(rows.v[which], rows.labels[which], weight, frequencies)
    kept = rows.weight * ~out
    return replace(rows, weight=kept / kept.mean(1, keepdim=True)), own


@torch.no_grad()
def set_sureness(model: ClassEnergies, rows: OwnRows) -> Tensor:
    """Be as sure of the members as the rows say that they have held out; scales and biases follow.  The log-loss (C,).

    One sureness for all members, from all their rows: chance would decide by the few rows of one.
    """
    logits = model.calibrated(model.part_energies(rows.v)).double().cpu()  # (C, N, K)
    labels, weight, prior = rows.labels.cpu(), rows.weight.double().cpu(), rows.frequencies.double().cpu().log()
    together = logits.flatten(0, 1).unsqueeze(0), prior.exp(), labels.flatten(), weight.flatten()
    sureness = calibrate_sureness(*together)[0]
    B = torch.lerp(prior.to(model.B), model.B, sureness.to(model.B))
    model.B.copy_(B - B.mean(1, keepdim=True))
    model.beta.mul_(sureness.to(model.B))
    losses = F.cross_entropy(torch.lerp(prior, logits, sureness).mT, labels, reduction="none")  # (C, N)
    return (weight * losses).sum(1) / weight.sum(1)


# --- a member that starts sharp --------------------------------------------------------------------------------

#: Weights start small, so that units start nearly linear, and alike.  With few columns training stays there for long,
#: and may stop there: so one member starts with steps instead and learns faster.  Held-out rows say how much it counts.
SHARP_MEMBER, SHARPNESS, SHARP_RATE = 1, 8.0, 6.0
SMALLEST = 1e-30  # columns that vary less are constant


@torch.no_grad()
def start_sharp(
    model: ClassEnergies, X: NDArray[np.float64], weight: NDArray[np.float64], generator: torch.Generator
) -> None:
    """Start the mean units of `SHARP_MEMBER` as steps, each somewhere else among the rows (n, D).

    Their pre-activations have a standard deviation of about `SHARPNESS` over the rows.
    """
    unit = np.maximum(np.abs(X).max(axis=0), SMALLEST)  # so that no square overflows
    centre = np.average(X / unit, axis=0, weights=weight)
    size = unit * np.sqrt(np.average((X / unit - centre) ** 2, axis=0, weights=weight))
    mean, deviation = torch.as_tensor(unit * centre), torch.as_tensor(np.where(size > SMALLEST, size, 1.0))
    models = slice(SHARP_MEMBER * model.n_classes, (SHARP_MEMBER + 1) * model.n_classes)
    for units in (group for part in model.autoencoders for group in part.groups if isinstance(group, MeanUnits)):
        shape = units.W[models].shape  # (K, M, D)
        W, where = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        W = W * SHARPNESS / (shape[-1] ** 0.5 * deviation)
        units.W[models] = W.to(units.W)
        units.b[models] = -(W * (mean + deviation * where)).sum(-1).to(units.b)


def sharp_rates(rate: float | Tensor, n_members: int) -> Tensor:
    """The learning rate of every member, where one is sharp; rates given one by one stay as they are."""
    if isinstance(rate, Tensor):
        return rate
    return torch.tensor([rate * (SHARP_RATE if c == SHARP_MEMBER else 1.0) for c in range(n_members)])
