"""Several processes that train one model, each on its share of the rows of every batch.

All of them run the same fit: they have the same rows, begin with the same weights, and draw the same batches and the
same noise.  Of a batch process r of n takes every n-th row, from the r-th.  The gradients of the shares, weighted by
how many rows they have, add up to the gradient of the batch, and every process takes the step that one alone would
take, up to rounding.  What is not a step is the first one's affair: it measures, decides and writes, and tells the
others.

This is what torch's DistributedDataParallel does for a module whose `forward` gives a loss.  Here losses are functions,
of K models at once, and some are gradients of energies themselves: one sum of all gradients after the backward pass is
simpler than to make modules of them.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from energate.errors import InputError

T = TypeVar("T")
SAME = 1e-2  # processes that see the same batch find losses that differ by a smaller share: machines round differently


class LostError(InputError):
    """One of the processes that train together is gone."""


class Group(ABC):
    """Some processes that train together, of which this one has the number ``rank``."""

    rank: int
    size: int

    @abstractmethod
    def add_up(self, tensor: Tensor) -> None:
        """Let a tensor, in place, be the sum over all processes."""

    @abstractmethod
    def send(self, found: Any) -> Any:
        """What the first process has found."""


class Processes(Group):
    """The processes of torch.distributed, where somebody has initialised it: `energate fit`, or the user."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def add_up(self, tensor: Tensor) -> None:
        with self._telling():
            distributed.all_reduce(tensor)

    def send(self, found: Any) -> Any:
        box = [found]
        with self._telling():
            distributed.broadcast_object_list(box, src=0)
        return box[0]

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of gloo and nccl alike
            raise LostError(
                f"Process {self.rank} of {self.size} has lost the others: one of them has ended. See what it said, and "
                "start all of them again; with `checkpoint` they go on from the last one."
            ) from error


class _Alone(Group):
    rank, size = 0, 1

    def add_up(self, tensor: Tensor) -> None:
        pass

    def send(self, found: Any) -> Any:
        return found


_GROUP: ContextVar[Group | None] = ContextVar("group", default=None)


@contextmanager
def among(group: Group) -> Iterator[None]:
    """Let whatever is fitted inside be trained by these processes."""
    token = _GROUP.set(group)
    try:
        yield
    finally:
        _GROUP.reset(token)


def alone() -> Any:
    """Let this process train by itself what is fitted inside, although torch.distributed is initialised."""
    return among(_Alone())


def group() -> Group | None:
    """The processes that this one trains with; None where there are no others."""
    found = _GROUP.get()
    if found is None and distributed.is_available() and distributed.is_initialized():
        found = Processes()
    return found if found is not None and found.size > 1 else None


def is_first() -> bool:
    """Whether this process measures and writes: there are no others, or it is the first of them."""
    found = group()
    return found is None or found.rank == 0


def from_first(found: Group | None, make: Callable[[], T]) -> T:
    """What the first process makes, or the error that it meets; the others do not try."""
    if found is None:
        return make()
    made: T | None = None
    error: InputError | None = None
    if found.rank == 0:
        try:
            made = make()
        except InputError as caught:
            error = caught
    answer, told = found.send((made, error))
    if told is not None:
        raise told
    return answer


def begin_together(tensors: Sequence[Tensor], divided: bool) -> Group | None:
    """The processes that train these tensors with this one, all from the weights of the first; None if it is alone."""
    found = group()
    if found is None:
        return None
    if not divided and found.rank == 0:
        warnings.warn(
            f"This training cannot be divided: each of the {found.size} processes takes whole batches, and one would "
            "be as fast.",
            stacklevel=3,
        )
    _begin_alike(found, tensors)
    return found


@torch.no_grad()
def _begin_alike(found: Group, tensors: Sequence[Tensor]) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    theirs, weights = found.send((shapes, [tensor.detach().cpu() for tensor in tensors] if found.rank == 0 else []))
    if shapes != theirs:
        raise InputError(
            f"Process {found.rank} of {found.size} trains a model of other shapes than the first: {shapes[:3]} and "
            f"{theirs[:3]}. Give all of them the same rows and parameters; for models of their own, fit inside "
            "`energate.training.alone()`."
        )
    for tensor, value in zip(tensors, weights, strict=True):
        tensor.copy_(value)


# --- shares of a batch -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """Every ``size``-th of ``n_rows`` rows of a batch, from the one with the number ``rank``."""

    rank: int
    size: int
    n_rows: int

    @property
    def n_own(self) -> int:
        """How many that are."""
        return len(range(self.rank, self.n_rows, self.size))

    @property
    def part(self) -> float:
        """How much of the rows that is."""
        return self.n_own / self.n_rows

    def of(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """The share of a tensor with an axis of rows."""
        return tensor[(slice(None),) * (axis % tensor.ndim) + (slice(self.rank, None, self.size),)]


_SHARE: ContextVar[Share | None] = ContextVar("share", default=None)


def share_of(n_own: int) -> Share:
    """The share of the batch of which a loss sees ``n_own`` rows; all of it, where it is not divided."""
    found = _SHARE.get() or Share(0, 1, n_own)
    assert found.n_own == n_own, "a loss that is divided draws for the rows of its batch"
    return found


@contextmanager
def sharing(share: Share | None) -> Iterator[None]:
    """Let losses know inside that their batch is the share of another."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def drawn(draw: Callable[..., Tensor], shape: Sequence[int], axis: int, **how: Any) -> Tensor:
    """``draw(shape, **how)``, random numbers for rows along an axis: of a share, those that the whole batch gets.

    Every process draws all of them: it is cheap beside a step, and their generators stay alike.
    """
    share = _SHARE.get()
    if share is None:
        return draw(shape, **how)
    share, whole = share_of(shape[axis]), list(shape)
    whole[axis] = share.n_rows
    return share.of(draw(whole, **how), axis)


def step_together(
    found: Group, loss: Callable[[Tensor], Tensor], batch: Tensor, tensors: Sequence[Tensor], divided: bool, first: bool
) -> Tensor:
    """The losses of a batch, () or (K,), and their gradients, as if this process had seen all of it.

    The ``first`` batch is taken whole by every process, and so tells whether all have the same rows.  Batches with
    fewer rows than there are processes are, too, and all where the loss cannot be ``divided``.
    """
    axis = min(1, batch.ndim - 1)  # batches are (rows,), or (models, rows), or (models, rows, 1)
    n_rows = batch.shape[axis]
    share = Share(found.rank, found.size, n_rows) if divided and not first and n_rows >= found.size else None
    with sharing(share):
        losses = loss(batch if share is None else share.of(batch, axis))
    weight = 1 / found.size if share is None else share.part
    for tensor in tensors:
        tensor.grad = None
    (weight * losses).sum().backward()
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    own = losses.detach()
    together = torch.cat([each.reshape(-1) for each in (weight * own, *gradients)])
    found.add_up(together)
    total, *sums = together.split([own.numel(), *(each.numel() for each in gradients)])
    for gradient, value in zip(gradients, sums, strict=True):
        gradient.copy_(value.view_as(gradient))
    losses = total.view_as(own).to(own)
    if first and not torch.allclose(losses, own, rtol=SAME, atol=SAME, equal_nan=True):
        raise InputError(
            f"Process {found.rank} of {found.size} finds other losses in the first batch than the others: "
            f"{own.tolist()}, and on average {losses.tolist()}. Give all of them the same rows, parameters and "
            "`random_state`: each takes its share of them itself."
        )
    return losses
