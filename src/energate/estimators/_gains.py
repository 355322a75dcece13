"""What refining brings on rows held out, and what measures it."""

from dataclasses import dataclass

import numpy as np
import torch

from energate.estimators.edge import Array


@dataclass(frozen=True)
class Gain:
    """What refining brings on the rows held out, in points of the objective, and the standard error of that mean."""

    mean: float
    standard_error: float
    objective: str

    def __str__(self) -> str:
        return f"{self.mean:+.2f} +- {self.standard_error:.2f} points ({self.objective})"


def standard_error(gain: Array) -> float:
    """Of the mean; 0 of a single number."""
    return float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0


def sigmoid(t: Array) -> Array:
    """1 / (1 + exp(-t)), for all t."""
    p: Array = torch.sigmoid(torch.as_tensor(t)).numpy()
    return p


def log_loss(p: Array, truth: Array) -> float:
    """The mean over rows and labels of -log of the probability of what is."""
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return float(-(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean())
