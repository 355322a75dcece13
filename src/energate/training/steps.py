"""What `minimise` steps with: torch's optimisers, with hyper-parameters that may differ between models."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from energate.errors import InputError

OPTIMIZERS = ("adam", "adamw", "sgd")
GROUP_KEYS = {"params", "learning_rate", "weight_decay"}


class _Group:
    """Parameters with one learning rate and weight decay, each a number or a vector over models."""

    def __init__(self, tensors: list[Tensor], learning_rate: float | Tensor, weight_decay: float | Tensor) -> None:
        if not tensors:
            raise InputError("A group of parameters is empty: there is nothing to train.")
        rate = _hyper("learning_rate", learning_rate)
        decay = _hyper("weight_decay", weight_decay)
        self.tensors = tensors
        self.top_rate = float(rate.max())
        if self.top_rate == 0:
            raise InputError("`learning_rate` must be above 0 for at least one model.")
        # torch steps everyone at the top rate; slower models then take their share of the step.
        self.shares = [spread((rate / rate.max()).to(tensor), tensor) for tensor in tensors] if rate.ndim else []
        # A number is left to torch, a vector over models is applied here.
        self.decay = 0.0 if decay.ndim else float(decay)
        self.decays = [spread(decay.to(tensor), tensor) for tensor in tensors] if decay.ndim else []

    def before_step(self, factor: float, decoupled: bool) -> list[Tensor]:
        """Decay the weights where torch does not; the weights from which shares of the step are taken."""
        before = [tensor.clone() for tensor in self.tensors] if self.shares else []
        for tensor, decay in zip(self.tensors, self.decays, strict=False):  # no decays: torch does it
            if tensor.grad is None:  # torch leaves such parameters alone, too
                continue
            if decoupled:
                tensor.addcmul_(decay, tensor, value=-factor * self.top_rate)
            else:
                tensor.grad.addcmul_(decay, tensor)
        return before

    def take_share(self, before: list[Tensor]) -> None:
        for tensor, old, share in zip(self.tensors, before, self.shares, strict=True):
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
        self.groups = [
            _Group(
                list(group["params"]),
                group.get("learning_rate", learning_rate),
                group.get("weight_decay", weight_decay),
            )
            for group in dicts
        ]
        self.tensors = [tensor for group in self.groups for tensor in group.tensors]
        if not self.tensors:
            raise InputError("`parameters` is empty: there is nothing to train.")
        self._decoupled = optimizer == "adamw"
        groups = [{"params": group.tensors, "lr": group.top_rate, "weight_decay": group.decay} for group in self.groups]
        fused = all(tensor.device.type in ("cpu", "cuda") for tensor in self.tensors)
        self._torch: torch.optim.Optimizer
        if optimizer == "sgd":
            self._torch = torch.optim.SGD(groups, momentum=momentum, fused=fused)
        elif optimizer == "adamw":
            self._torch = torch.optim.AdamW(groups, fused=fused)
        else:
            self._torch = torch.optim.Adam(groups, fused=fused)

    def zero_grad(self) -> None:
        self._torch.zero_grad()

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One step, with all learning rates multiplied by ``factor``."""
        before = []
        for group, torch_group in zip(self.groups, self._torch.param_groups, strict=True):
            torch_group["lr"] = group.top_rate * factor
            before.append(group.before_step(factor, self._decoupled))
        self._torch.step()
        for group, old in zip(self.groups, before, strict=True):
            if group.shares:
                group.take_share(old)


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
