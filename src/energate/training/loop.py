"""One training loop for everything, and the batches and the noise that it sees: closures and tensors, not models.

K models train as one program when every parameter has a leading axis K and the loss has shape (K,):
the gradient of the sum of the losses is each model's own gradient.  Learning rate, weight decay, noise
level and loss weights may then be vectors over the models, so that C configurations of K models train
together.  Given the same initial weights, batches and noise, models trained together equal models trained alone.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from energate.errors import InputError
from energate.training import checkpoints
from energate.training.captured import Steps, plan_steps
from energate.training.processor import keep_memory
from energate.training.ranks import Group, begin_together, drawn, from_first, step_together
from energate.training.steps import OPTIMIZERS, Optimiser

Batches = Callable[[int], Sequence[Tensor]]
Schedule = Callable[[float], float]
GROUP_KEYS = {"params", "learning_rate", "weight_decay"}


def _constant(_: float) -> float:
    return 1.0


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


SCHEDULES: dict[str, Schedule] = {"constant": _constant, "cosine": _cosine}


def _as_schedule(schedule: str | Schedule) -> Schedule:
    if callable(schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise InputError(f"`schedule` must be a function or one of {', '.join(SCHEDULES)}; got {schedule!r}.")
    return SCHEDULES[schedule]


@dataclass
class History:
    """What happened: one entry per epoch; () or (K,) tensors on the CPU.

    Entries of a model that has stopped while others go on describe steps that are undone at the end.
    """

    loss: list[Tensor] = field(default_factory=list)
    validation: list[Tensor] = field(default_factory=list)  # one entry per validation
    validated: list[int] = field(default_factory=list)  # the epoch of each, from 1
    best_epoch: Tensor | None = None  # from 1; 0 = the initial weights; None without validation
    best: Tensor | None = None
    diverged: Tensor | None = None  # which models stopped because a loss or a weight was no longer finite
    n_steps: int = 0
    n_replayed: int = 0  # of the steps, those from a CUDA graph
    why_eager: str = ""  # why the others, but for the first, are not
    seconds: float = 0.0


@dataclass(frozen=True)
class Progress:
    """What `minimise` tells its callback after each epoch."""

    epoch: int  # from 1
    n_epochs: int
    history: History  # up to and including this epoch
    best: Tensor | None  # () or (K,), best validation so far


def minimise(
    loss: Callable[[Tensor], Tensor],
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    batches: Batches,
    *,
    epochs: int,
    optimizer: str = "adam",
    learning_rate: float | Tensor = 1e-3,
    momentum: float = 0.9,
    weight_decay: float | Tensor = 0.0,
    schedule: str | Schedule = "constant",
    validate: Callable[[], Tensor] | None = None,
    validate_every: int = 1,
    patience: int | None = None,
    callback: Callable[[Progress], bool | None] | None = None,
    on_divergence: str = "raise",
    clip_norm: float | None = None,
    generators: Sequence[torch.Generator] | None = None,
    capture: bool | None = None,
    by_rows: bool = False,
) -> History:
    """Minimise a loss over minibatches; the parameters are changed in place.

    Parameters
    ----------
    loss : maps a batch to () or, for K models at once, to (K,).
    parameters : tensors, or groups ``{"params": [...], "learning_rate": ..., "weight_decay": ...}``.
    batches : maps the epoch, from 0, to a sequence of batches: `row_batches`, `class_batches`, or your own.
    optimizer : ``"adam"``, ``"adamw"`` (weight decay apart from the gradient) or ``"sgd"`` (with ``momentum``).
    learning_rate, weight_decay : numbers, or (K,) vectors over models; a vector needs parameters with a
        leading axis K.
    schedule : ``"constant"``, ``"cosine"``, or a function from progress in [0, 1] to a factor.
    validate : called after each epoch, returns () or (K,), lower is better.  The best parameters are restored
        at the end, for (K,) each model's own.
    validate_every : epochs from one validation to the next; the last epoch is always validated.
    patience : stop a model after this many epochs without improvement; a stopped model keeps its best
        while the others go on.
    callback : called with a `Progress` after each epoch; stops training when it returns True.
    on_divergence : ``"raise"``, or ``"keep"`` to let the other models go on: a model whose loss or
        weights are no longer finite keeps its best weights (without ``validate``, its last finite ones) and is
        named in ``History.diverged``.
    clip_norm : a gradient longer than this is shortened to it before a step: each group of parameters' own, and for
        (K,) each model's.
    generators : all that the loss draws from, perhaps none.  Giving them says that the loss is a function of its batch,
        the parameters and these draws alone, so that on a GPU a step may be captured as a CUDA graph and replayed.
    capture : whether to do that, where it is possible; by default, where it pays.
    by_rows : says that the loss is a mean over the rows of its batch, (rows,) or (models, rows), and draws with
        `energate.training.drawn` what it draws for them.  Where torch.distributed is initialised, every process then
        takes its share of each batch (`energate.training.ranks`); otherwise all take all of it.
    """
    _check_options(epochs, validate is not None, validate_every, patience, on_divergence, clip_norm)
    factor = _as_schedule(schedule)
    stepper = Stepper(parameters, optimizer, learning_rate, momentum, weight_decay)
    ranks = begin_together(stepper.tensors, by_rows)
    keeper = Keeper(stepper.tensors) if validate is not None or on_divergence == "keep" else None
    take = _Eager(loss, stepper, clip_norm) if ranks is None else _Shared(loss, stepper, clip_norm, ranks, by_rows)
    step = Steps(take, why_eager="" if ranks is None else "several processes train together")
    history, began = History(), time.perf_counter()
    checkpoint, n_there = checkpoints.begin(stepper, keeper, history, generators, epochs)
    for epoch in range(n_there + 1, epochs + 1):
        steps = batches(epoch - 1)
        if epoch == n_there + 1 and ranks is None:
            step = plan_steps(take, capture, generators, stepper.tensors, steps, epochs * len(steps))
        total: Tensor | None = None
        for i, batch in enumerate(steps):
            losses = step(batch, factor((epoch - 1 + i / len(steps)) / epochs))
            total = losses.clone() if total is None else total + losses
            history.n_steps += 1
        if total is None:
            raise InputError("`batches` gave an epoch without a batch; give it at least one row.")
        history.loss.append((total / len(steps)).cpu())
        # The loss was measured before the last step, so the weights are looked at, too.
        finite = torch.isfinite(total) & finite_models(stepper.tensors, total)
        if keeper is not None:
            finite = finite | keeper.stopped  # a stopped model still takes steps, but they no longer count
        if on_divergence == "raise":
            _check_finite(finite, epoch, "")
        due = validate is None or epoch % validate_every == 0 or epoch == epochs
        if keeper is not None and due:
            # Without validation the newest finite weights are the best.
            values = torch.full_like(total, -float(epoch))
            if validate is not None:
                values = _measured(validate, ranks, total)
                history.validation.append(values.cpu())
                history.validated.append(epoch)
            usable = finite if finite.shape == values.shape else finite.all()
            usable = (usable & torch.isfinite(values)) | keeper.stopped
            if on_divergence == "raise":
                _check_finite(usable, epoch, ": `validate` gave a value that is not finite")
            keeper.offer(values, usable, epoch, patience)
        best = keeper.values if keeper is not None and validate is not None and keeper.offered else None
        stopped = keeper is not None and bool(keeper.stopped.all())
        stop = _asked(callback, Progress(epoch, epochs, history, best), ranks) or stopped
        if checkpoint is not None:
            checkpoint.offer(epoch, stop, time.perf_counter() - began)
        if stop:
            break
    if keeper is not None and keeper.offered:
        _restore_best(keeper, history, validate is not None)
    history.n_replayed, history.why_eager = step.n_replayed, step.why_eager
    if step.n_replayed:
        stepper.zero_grad()  # gradients lie in the memory of a graph, and would keep it
    history.seconds = time.perf_counter() - began + (0.0 if checkpoint is None else checkpoint.seconds)
    return history


def _asked(callback: Callable[[Progress], bool | None] | None, progress: Progress, ranks: Group | None) -> bool:
    return callback is not None and from_first(ranks, lambda: bool(callback(progress)))


@torch.no_grad()
def _measured(validate: Callable[[], Tensor], ranks: Group | None, like: Tensor) -> Tensor:
    """What the first process measures: so all stop in the same epoch, though other machines round differently."""
    return validate() if ranks is None else from_first(ranks, lambda: validate().cpu()).to(like.device)


def _restore_best(keeper: "Keeper", history: History, validates: bool) -> None:
    keeper.restore()
    history.diverged = keeper.diverged.cpu()
    if validates:
        history.best, history.best_epoch = keeper.values.cpu(), keeper.epoch.cpu()


def _check_options(
    epochs: int,
    validates: bool,
    validate_every: int,
    patience: int | None,
    on_divergence: str,
    clip_norm: float | None,
) -> None:
    if epochs < 0 or int(epochs) != epochs:
        raise InputError(f"`epochs` must be a whole number of at least 0; got {epochs!r}.")
    if patience is not None and (patience < 1 or not validates):
        raise InputError(f"`patience` must be at least 1 and needs `validate`; got patience={patience!r}.")
    if on_divergence not in ("raise", "keep"):
        raise InputError(f"`on_divergence` must be 'raise' or 'keep'; got {on_divergence!r}.")
    if clip_norm is not None and not clip_norm > 0:
        raise InputError(f"`clip_norm` must be a number above 0, or None; got {clip_norm!r}.")
    check_counts(validate_every=validate_every)


def _check_first(losses: Tensor) -> None:
    if losses.ndim > 1:
        raise InputError(f"`loss` must return one value, or one per model (K,); got shape {tuple(losses.shape)}.")
    finite = torch.isfinite(losses.detach())
    if not finite.all():
        raise InputError(
            f"The loss is not finite before the first step{_which(~finite)}. Look for NaN or infinity in the data "
            "and in the initial weights."
        )


def _check_finite(finite: Tensor, epoch: int, what: str) -> None:
    if not finite.all():
        raise InputError(
            f"Training diverged in epoch {epoch}{_which(~finite)}{what}. Lower `learning_rate`, or look for NaN and "
            "infinity in the data."
        )


def _which(models: Tensor) -> str:
    return f" (models {models.nonzero().squeeze(1).tolist()})" if models.ndim else ""


# --- stages ---------------------------------------------------------------------------------------------------


#: is told the name of a stage and its progress after each epoch; stops the stage when it returns True
Listener = Callable[[str, Progress], bool | None]


@dataclass(frozen=True)
class Stage:
    """One stage of training by its name, and how `minimise` steps in it."""

    name: str
    epochs: int
    learning_rate: float | Tensor = 1e-3
    weight_decay: float | Tensor = 0.0
    optimizer: str = "adam"
    schedule: str | Schedule = "constant"
    patience: int | None = None  # only where there is something to validate by
    validate_every: int = 1
    clip_norm: float | None = None
    final: bool = True  # whether what it ends with is what is kept: else another stage goes on from it

    def run(
        self,
        loss: Callable[[Tensor], Tensor],
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        batches: Batches,
        validate: Callable[[], Tensor] | None = None,
        listener: Listener | None = None,
        generators: Sequence[torch.Generator] | None = None,
        by_rows: bool = False,
    ) -> History:
        """Minimise the loss, and tell the listener of every epoch; ``generators`` and ``by_rows`` as in `minimise`.

        Warns where training ended while it still got better.
        """
        how = {**vars(self), "patience": None if validate is None else self.patience, "generators": generators}
        del how["name"], how["final"]
        how["by_rows"] = by_rows
        callback = None if listener is None else partial(listener, self.name)
        history = minimise(loss, parameters, batches, validate=validate, callback=callback, **how)
        if self.final and len(history.loss) == self.epochs and is_cut_short(history):
            warnings.warn(
                f"Training ended after {self.epochs} epochs while held-out rows were still predicted better with each. "
                "Give it more: a higher `max_epochs` (--epochs).",
                ConvergenceWarning,
                stacklevel=2,
            )
        return history


#: Of the whole fall of the validation loss, and of the loss: with more in the last quarter, training was cut short.
#: The best epoch alone says nothing: where the rate falls to 0 it is the last one, or near it, in most fits.
STILL_FALLING, WORTH = 0.1, 0.02


def is_cut_short(history: History) -> bool:
    """Whether most models were best in the last epoch, and still falling much in the last quarter."""
    if history.best_epoch is None or len(history.validation) < 3:
        return False
    losses = torch.stack(history.validation).double().reshape(len(history.validation), -1)  # (T, K)
    last = history.best_epoch.reshape(-1) == history.validated[-1]
    first, before, end = losses[0], losses[int(0.75 * (len(losses) - 1))], losses[-1]
    falling = (before - end > STILL_FALLING * (first - end)) & (before - end > WORTH * end.abs())
    return bool((last & falling).double().mean() > 0.5)


# --- what steps, and what is kept -----------------------------------------------------------------------------


class _Group:
    """Parameters with one learning rate and weight decay, each a number or a vector over models."""

    def __init__(
        self,
        params: Iterable[Tensor],
        learning_rate: float | Tensor,
        weight_decay: float | Tensor,
        optimizer: str,
        momentum: float,
    ) -> None:
        tensors = list(params)
        if not tensors:
            raise InputError("A group of parameters is empty: there is nothing to train.")
        rate = _hyper("learning_rate", learning_rate)
        decay = _hyper("weight_decay", weight_decay)
        self.tensors = tensors
        self.top_rate = float(rate.max())
        if self.top_rate == 0:
            raise InputError("`learning_rate` must be above 0 for at least one model.")
        # Everyone steps at the top rate; slower models then take their share of the step.
        self.shares = [spread((rate / rate.max()).to(tensor), tensor) for tensor in tensors] if rate.ndim else []
        # A number is left to the optimiser, a vector over models is applied here.
        self.decays = [spread(decay.to(tensor), tensor) for tensor in tensors] if decay.ndim else []
        self.decoupled = optimizer == "adamw"
        self.optimiser = Optimiser(tensors, optimizer, 0.0 if decay.ndim else float(decay), momentum)

    def step(self, factor: float | Tensor) -> None:
        rate = self.top_rate * factor
        before = [tensor.clone() for tensor in self.tensors] if self.shares else []
        for tensor, decay in zip(self.tensors, self.decays, strict=False):  # no decays: they are the optimiser's
            if tensor.grad is None:  # the optimiser leaves such parameters alone, too
                continue
            if self.decoupled:
                tensor.mul_(1 - rate * decay)
            else:
                tensor.grad.addcmul_(decay, tensor)
        self.optimiser.step(rate)
        for tensor, old, share in zip(self.tensors, before, self.shares, strict=False):  # no shares: whole steps
            tensor.copy_(torch.lerp(old, tensor, share))


class Stepper:
    """Adam, AdamW or SGD with momentum over groups of parameters."""

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        optimizer: str,
        learning_rate: float | Tensor,
        momentum: float,
        weight_decay: float | Tensor,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise InputError(f"`optimizer` must be one of {', '.join(OPTIMIZERS)}; got {optimizer!r}.")
        if not 0 <= momentum < 1:
            raise InputError(f"`momentum` must be at least 0 and below 1; got {momentum!r}.")
        given = list(parameters)
        plain = [group for group in given if isinstance(group, Tensor)]
        dicts = [group for group in given if isinstance(group, dict)]
        if len(plain) + len(dicts) < len(given) or any(not group.keys() <= GROUP_KEYS for group in dicts):
            raise InputError(
                "`parameters` must be tensors, or groups with no other keys than 'params', 'learning_rate' and "
                "'weight_decay'; for a module give module.parameters()."
            )
        if plain:
            dicts.append({"params": plain})
        common: dict[str, Any] = {"learning_rate": learning_rate, "weight_decay": weight_decay}
        common |= {"optimizer": optimizer, "momentum": momentum}
        self.groups = [_Group(**{**common, **group}) for group in dicts]
        self.tensors = [tensor for group in self.groups for tensor in group.tensors]
        if not self.tensors:
            raise InputError("`parameters` is empty: there is nothing to train.")

    def zero_grad(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None

    @torch.no_grad()
    def clip(self, longest: float, like: Tensor) -> None:
        """Shorten the gradients of each group to a length: all together, or those of each model, as ``like``."""
        for group in self.groups:
            gradients = [tensor.grad for tensor in group.tensors if tensor.grad is not None]
            if not gradients:
                continue
            if like.ndim:
                parts = [torch.linalg.vector_norm(each.reshape(len(like), -1), dim=1) for each in gradients]
            else:
                parts = [torch.linalg.vector_norm(each) for each in gradients]
            length = torch.linalg.vector_norm(torch.stack(parts), dim=0)  # () or (K,)
            share = longest / length.clamp(min=longest)
            for each in gradients:
                each.mul_(spread(share, each))

    @torch.no_grad()
    def step(self, factor: float | Tensor) -> None:
        """One step, with all learning rates multiplied by ``factor``."""
        for group in self.groups:
            group.step(factor)


class _Eager:
    """One step after the other: the losses of a batch, their gradients, and what the stepper makes of them."""

    def __init__(self, loss: Callable[[Tensor], Tensor], stepper: Stepper, clip_norm: float | None = None) -> None:
        keep_memory()
        self.loss, self.stepper, self.clip_norm, self.begun = loss, stepper, clip_norm, False

    def __call__(self, batch: Tensor, factor: float | Tensor) -> Tensor:
        losses = self.losses(batch)
        self.begun = True
        if self.clip_norm is not None:
            self.stepper.clip(self.clip_norm, losses)
        self.stepper.step(factor)
        return losses

    def losses(self, batch: Tensor) -> Tensor:
        """The losses of a batch; leaves their gradients with the parameters."""
        losses = self.loss(batch)
        if not self.begun:
            _check_first(losses)
        self.stepper.zero_grad()
        losses.sum().backward()
        return losses.detach()


class _Shared(_Eager):
    """The same steps, taken together with other processes."""

    def __init__(
        self,
        loss: Callable[[Tensor], Tensor],
        stepper: Stepper,
        clip_norm: float | None,
        ranks: Group,
        by_rows: bool,
    ) -> None:
        super().__init__(loss, stepper, clip_norm)
        self.ranks, self.by_rows = ranks, by_rows

    def losses(self, batch: Tensor) -> Tensor:
        losses = step_together(self.ranks, self.loss, batch, self.stepper.tensors, self.by_rows, not self.begun)
        if not self.begun:
            _check_first(losses)
        return losses


class Keeper:
    """The best parameters so far of each model, and which models have stopped."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.saved = [tensor.detach().clone() for tensor in tensors]
        self.values = self.epoch = torch.zeros(())
        self.stopped = self.diverged = torch.zeros((), dtype=torch.bool)
        self.offered = False

    @torch.no_grad()
    def offer(self, values: Tensor, finite: Tensor, epoch: int, patience: int | None) -> None:
        """Keep the parameters of the models whose value is the lowest so far; stop those that are not finite."""
        if not self.offered:
            self.offered = True
            self.values = torch.full_like(values, math.inf)
            self.epoch = torch.zeros_like(values, dtype=torch.long)
            self.stopped = self.diverged = torch.zeros_like(values, dtype=torch.bool)
        better = (values < self.values) & finite & ~self.stopped
        self.values = torch.where(better, values, self.values)
        self.epoch = torch.where(better, epoch, self.epoch)
        for saved, tensor in zip(self.saved, self.tensors, strict=True):
            saved.copy_(torch.where(spread(better, tensor), tensor, saved))
        self.diverged = self.diverged | ~finite
        self.stopped = self.stopped | ~finite
        if patience is not None:
            self.stopped = self.stopped | (epoch - self.epoch >= patience)

    @torch.no_grad()
    def restore(self) -> None:
        for saved, tensor in zip(self.saved, self.tensors, strict=True):
            tensor.copy_(saved)


def spread(values: Tensor, tensor: Tensor) -> Tensor:
    """Values per model, shaped to broadcast over a parameter whose leading axis holds models.

    A single value passes through.  (C,) values serve a leading axis of C * K: K models per configuration.
    """
    if values.ndim == 0:
        return values
    per_value = tensor.shape[0] // len(values) if tensor.ndim else 0
    if per_value * len(values) != (tensor.shape[0] if tensor.ndim else -1):
        raise InputError(
            f"A vector over {len(values)} models needs parameters with a leading axis of that length (or a multiple); "
            f"got shape {tuple(tensor.shape)}. Give shared parameters a group of their own with plain numbers, and "
            "have `validate` return one value for all models."
        )
    return values.repeat_interleave(per_value).view(-1, *[1] * (tensor.ndim - 1))


def finite_models(tensors: list[Tensor], like: Tensor) -> Tensor:
    """Which models have only finite parameters, () or (K,) as ``like``; a shared parameter counts for all."""
    finite = torch.ones_like(like, dtype=torch.bool)
    for tensor in tensors:
        good = torch.isfinite(tensor)
        own = like.ndim and tensor.ndim and len(tensor) % len(like) == 0
        finite = finite & (good.reshape(len(like), -1).all(1) if own else good.all())
    return finite


def _hyper(name: str, value: float | Tensor) -> Tensor:
    number = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    if number.ndim > 1 or not number.numel() or not (torch.isfinite(number) & (number >= 0)).all():
        raise InputError(
            f"`{name}` must be a number, or a vector over models, that is finite and not negative; got {value}."
        )
    return number


# --- batches of row numbers, noise, and a penalty on how fast codes change ---------------------------------------


def check_counts(**counts: int) -> None:
    """Refuse numbers below 1, by name."""
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"`{name}` must be at least 1; got {count}.")


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """What draws the batches of an epoch."""
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def row_batches(n_rows: int, batch_size: int, seed: int = 0, device: torch.device | str = "cpu") -> Batches:
    """Shuffled row numbers: a function from the epoch to batches (B,), the last one perhaps shorter."""
    check_counts(n_rows=n_rows, batch_size=batch_size)

    def batches(epoch: int) -> Sequence[Tensor]:
        return torch.randperm(n_rows, generator=epoch_generator(seed, epoch)).to(device).split(batch_size)

    return batches


def refilled(rows: Tensor, refill: Callable[[int], Tensor], batches: Batches) -> Batches:
    """The same batches of other rows in every epoch: ``refill(epoch)`` is written over ``rows``, where steps look."""

    def found(epoch: int) -> Sequence[Tensor]:
        rows.copy_(refill(epoch))
        return batches(epoch)

    return found


def class_batches(
    labels: Tensor, n_classes: int, batch_size: int, seed: int = 0, device: torch.device | str = "cpu"
) -> Batches:
    """Every class its own rows: a function from the epoch to batches (K, B) of row numbers.

    Row k of a batch holds rows of class k.  An epoch goes once through the rows of the largest class; shorter
    classes wrap around, so that all K models take the same number of full batches (the largest class, too,
    wraps to fill its last one).
    """
    check_counts(n_classes=n_classes, batch_size=batch_size)
    labels = torch.as_tensor(labels).cpu()
    if labels.ndim != 1 or labels.is_floating_point() or (labels < 0).any():
        raise InputError(f"`labels` must be (N,) whole numbers from 0 to {n_classes - 1}; encode them first.")
    labels = labels.long()
    counts = torch.bincount(labels, minlength=n_classes)
    if len(counts) > n_classes or (counts == 0).any():
        raise InputError(
            f"`labels` must hold every class from 0 to {n_classes - 1} at least once and no other; "
            f"the counts are {counts.tolist()}."
        )
    largest = int(counts.max())
    size = min(batch_size, largest)
    n_steps = math.ceil(largest / size)
    # (K, n) table of each class's rows, in the sorted order of labels; positions past the class's end are masked.
    start = counts.cumsum(0) - counts
    column = torch.arange(largest)
    inside = column < counts.unsqueeze(1)
    table = labels.argsort(stable=True)[(start.unsqueeze(1) + column).clamp(max=len(labels) - 1)]
    wrapped = torch.arange(n_steps * size) % counts.unsqueeze(1)  # (K, steps * B)

    def batches(epoch: int) -> Sequence[Tensor]:
        keys = torch.rand(n_classes, largest, generator=epoch_generator(seed, epoch)).masked_fill(~inside, 2.0)
        shuffled = table.gather(1, keys.argsort(1))  # each class's rows in random order, masked ones last
        rows = shuffled.gather(1, wrapped).unflatten(1, (n_steps, size))  # (K, steps, B)
        return rows.movedim(1, 0).to(device).unbind(0)  # steps x (K, B)

    return batches


def _masking(v: Tensor, level: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    return v * (drawn(torch.rand, shape, -2, generator=generator, dtype=v.dtype, device=v.device) >= level)


def _gaussian(v: Tensor, level: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    return v + level * drawn(torch.randn, shape, -2, generator=generator, dtype=v.dtype, device=v.device)


def _salt_and_pepper(v: Tensor, level: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    draw = drawn(torch.rand, shape, -2, generator=generator, dtype=v.dtype, device=v.device)
    extreme = (draw < level / 2).to(v.dtype)  # half of the hit values become 1, the other half 0
    return torch.where(draw < level, extreme, v)


NOISE = {"masking": _masking, "gaussian": _gaussian, "salt-and-pepper": _salt_and_pepper}


def corrupt(v: Tensor, kind: str, level: float | Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A noisy copy of v.

    ``kind`` is ``"masking"`` (each value becomes 0 with probability ``level``), ``"gaussian"`` (noise of
    standard deviation ``level`` is added) or ``"salt-and-pepper"`` (each value becomes 0 or 1 with
    probability ``level``).  ``level`` is a number, or (K,) for one level per model; the result is then
    (K, N, D) even for data (N, D) that the models share.
    """
    if kind not in NOISE:
        raise InputError(f"`kind` must be one of {', '.join(NOISE)}; got {kind!r}.")
    # A number is written where v is, by a kernel: to copy it there would wait for the device.
    if isinstance(level, int | float):
        levels = v.new_full((), level)
    else:
        levels = torch.as_tensor(level, dtype=v.dtype, device=v.device)
    if levels.ndim:
        levels = levels.view(-1, 1, 1)
        if v.ndim == 3 and len(levels) != len(v):
            raise InputError(f"`level` must be a number or hold one per model, {len(v)}; got {len(levels)}.")
    # numpy's: torch's own imports sympy, which takes longer than many a fit.
    shape = torch.Size(np.broadcast_shapes(v.shape, levels.shape))
    return NOISE[kind](v, levels, shape, generator)


def contractive_penalty(
    encode: Callable[[Tensor], Tensor], v: Tensor, n_probes: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Estimate of the squared Frobenius norm of dh/dv for every row: (K, N).

    ``encode`` maps (K, N, D) to (K, N, M); give v as (K, N, D).  Unbiased for any number of Rademacher
    probes: E |J^T z|^2 = |J|^2.
    """
    check_counts(n_probes=n_probes)
    h, pullback = torch.func.vjp(encode, v)[:2]
    if h.shape[:-1] != v.shape[:-1]:
        raise InputError(
            f"`v` must be (K, N, D), rows of each model's own, for codes (K, N, M); got {tuple(v.shape)} and codes "
            f"{tuple(h.shape)}. Use v.expand(n_models, *v.shape)."
        )
    total = torch.zeros_like(h[..., 0])
    for _ in range(n_probes):
        z = torch.randint(0, 2, h.shape, generator=generator, device=h.device).to(h) * 2 - 1
        total = total + pullback(z)[0].square().sum(-1)
    return total / n_probes
