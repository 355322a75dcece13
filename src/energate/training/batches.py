"""What training sees: shuffled batches of row numbers, noise, and a penalty on how fast codes change."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from energate.errors import InputError

Batches = Callable[[int], Sequence[Tensor]]


def check_counts(**counts: int) -> None:
    """Refuse numbers below 1, by name."""
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"`{name}` must be at least 1; got {count}.")


def _generator(seed: int, epoch: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def row_batches(n_rows: int, batch_size: int, seed: int = 0, device: torch.device | str = "cpu") -> Batches:
    """Shuffled row numbers: a function from the epoch to batches (B,), the last one perhaps shorter."""
    check_counts(n_rows=n_rows, batch_size=batch_size)

    def batches(epoch: int) -> Sequence[Tensor]:
        return torch.randperm(n_rows, generator=_generator(seed, epoch)).to(device).split(batch_size)

    return batches


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
        keys = torch.rand(n_classes, largest, generator=_generator(seed, epoch)).masked_fill(~inside, 2.0)
        shuffled = table.gather(1, keys.argsort(1))  # each class's rows in random order, masked ones last
        rows = shuffled.gather(1, wrapped).unflatten(1, (n_steps, size))  # (K, steps, B)
        return rows.movedim(1, 0).to(device).unbind(0)  # steps x (K, B)

    return batches


def _per_model(level: float | Tensor, v: Tensor) -> Tensor:
    level = torch.as_tensor(level, dtype=v.dtype, device=v.device)
    return level.view(-1, 1, 1) if level.ndim else level


def _masking(v: Tensor, level: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    return v * (torch.rand(shape, generator=generator, dtype=v.dtype, device=v.device) >= level)


def _gaussian(v: Tensor, level: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    return v + level * torch.randn(shape, generator=generator, dtype=v.dtype, device=v.device)


def _salt_and_pepper(v: Tensor, level: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    draw = torch.rand(shape, generator=generator, dtype=v.dtype, device=v.device)
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
    levels = _per_model(level, v)
    if levels.ndim and v.ndim == 3 and len(levels) != len(v):
        raise InputError(f"`level` must be a number or hold one per model, {len(v)}; got {len(levels)}.")
    shape = torch.broadcast_shapes(v.shape, levels.shape)
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
