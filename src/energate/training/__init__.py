"""Training: one loop for everything, calibration, and the energies of classes and of labels that it trains."""

from energate.training.checkpoints import Checkpoints, checkpointing
from energate.training.loop import (
    NOISE,
    SCHEDULES,
    Batches,
    History,
    Listener,
    Progress,
    Stage,
    class_batches,
    contractive_penalty,
    corrupt,
    minimise,
    row_batches,
)
from energate.training.ranks import alone, drawn

__all__ = [
    "NOISE",
    "SCHEDULES",
    "Batches",
    "Checkpoints",
    "History",
    "Listener",
    "Progress",
    "Stage",
    "alone",
    "checkpointing",
    "class_batches",
    "contractive_penalty",
    "corrupt",
    "drawn",
    "minimise",
    "row_batches",
]
