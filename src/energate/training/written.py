"""Losses that come with their gradients, found by hand: for `minimise` they are losses as others."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: the losses, () or (C,), and the gradients of their sum in all parameters, in order
Find = Callable[[], tuple[Tensor, Sequence[Tensor]]]


def written(find: Find, parameters: Sequence[Tensor]) -> Tensor:
    """What ``find`` finds, for autograd: the losses, whose gradients are there before they are asked for.

    Where there are losses (C,), the leading axes of parameters hold their models: each loss depends on its own alone.
    """
    found: Tensor = _Written.apply(find, *parameters)
    return found


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, find: Find, *parameters: Tensor) -> Tensor:
        losses, gradients = find()
        ctx.gradients = [each.view_as(like) for each, like in zip(gradients, parameters, strict=True)]
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if not (of_losses == 1).all():
            for each in gradients:
                each.view(of_losses.numel(), -1).mul_(of_losses.view(-1, 1))
        return None, *gradients
