"""How much training would be: what would take hours of a processor, though nobody asked for it, is refused in seconds.

It is counted, in multiplications of rows with weights, and not timed: the same table is refused on every machine.  Who
says with ``max_epochs`` how long to train, or has a GPU, is not asked.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from energate.errors import InputError
from energate.tables.room import check_room
from energate.training.classes import LabelledRows

#: Multiplications of a fit that nobody is asked about; a table of many rows may take so many for each of them.  They
#: are those of the way forth, with the way back three times as many: MOST is five to fifteen minutes of a core.
MOST, PER_ROW = 5e12, 1e9
PER_PICTURE = 1e11  # a network goes over every pixel, and pictures are known to take long
PER_UNIT = 128  # what an activation and its gradient take, in multiplications
PER_STEP = 64  # a step of a weight takes as long as so many rows


def work_of(model: nn.Module) -> int:
    """Multiplications for a row that goes through all weights: each is met once, and each unit is bent."""
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    units = sum(math.prod(weight.shape[:2]) for weight in weights if weight.ndim > 2)
    return sum(weight.numel() for weight in weights) + PER_UNIT * units


def check_work(
    estimator: Any,
    device: torch.device,
    shape: tuple[float, int],
    n_steps: int,
    n_seen: int,
    per_row: float,
    pictures: bool = False,
) -> None:
    """Refuse ``n_steps`` steps, of ``n_seen`` rows and ``per_row`` multiplications for each, where they are too much.

    ``shape`` is that of the rows in all: more of them may take longer, and ``pictures`` much longer.
    """
    asked_for = not (isinstance(estimator.max_epochs, str) and estimator.max_epochs == "auto")
    work = float(n_steps) * (n_seen + PER_STEP) * per_row
    if asked_for or device.type != "cpu" or work <= max(MOST, (PER_PICTURE if pictures else PER_ROW) * shape[0]):
        return
    raise InputError(
        f"With max_epochs='auto' training on {shape[0]:,.0f} rows of {shape[1]:,} columns would take very long: "
        f"{n_steps:,} steps of {n_seen:,} rows, {per_row:,.0f} multiplications for each. Take fewer columns, classes "
        "or hidden units, units='trunk' or units='memory', another base, or device='cuda'; or say with `max_epochs` "
        "how long to train."
    )


def check_network(estimator: Any, network: Any, rows: LabelledRows, n_steps: int, batch_size: int) -> None:
    """The same of a network, and refuse batches that memory has no room for: by what a few rows take."""
    if rows.v.device.type != "cpu":
        return
    few = slice(0, min(network.denoised, len(rows.v)))
    kept: dict[int, int] = {}  # bytes by where they lie: some are kept twice
    there = {each.untyped_storage().data_ptr() for each in (*network.parameters(), *network.buffers(), rows.v)}
    work = 0.0

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in there:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    def count(layer: Any, _: Any, out: Tensor) -> None:
        nonlocal work
        work += out.numel() * math.prod(layer.weight.shape[1:])

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = network.loss(rows.v[few], rows.labels[few], *network.noises(0))
    for hook in hooks:
        hook.remove()
    del found
    n_few, n_seen = few.stop, min(batch_size, len(rows.v))
    check_work(estimator, rows.v.device, (len(rows.v), rows.v.shape[1]), n_steps, n_seen, work / n_few, pictures=True)
    check_room(
        2 * sum(kept.values()) * n_seen / n_few,  # what is kept for the way back, and what that makes
        f"Steps of {n_seen:,} images of {rows.v.shape[1]:,} pixels",
        "A smaller `batch_size` or fewer `channels` take less, and so do smaller images; for columns that are no image "
        "use EnergyClassifier.",
    )
