"""Training: one loop for everything, calibration, and the energies of classes and of labels that it trains."""

from energate.training.batches import NOISE, Batches, class_batches, contractive_penalty, corrupt, row_batches
from energate.training.loop import SCHEDULES, History, Listener, Progress, Stage, minimise

__all__ = [
    "NOISE",
    "SCHEDULES",
    "Batches",
    "History",
    "Listener",
    "Progress",
    "Stage",
    "class_batches",
    "contractive_penalty",
    "corrupt",
    "minimise",
    "row_batches",
]
