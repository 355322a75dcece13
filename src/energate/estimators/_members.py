"""The ensemble that `EnergyClassifier` is by default: what members keep of the denoising loss, and how they start."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energate.estimators.edge import Array
from energate.training.classes import ClassEnergies
from energate.units import MeanUnits

AUTO_WEIGHTS, LARGE_WEIGHTS, LARGE, WIDE = (0.0, 0.0, 0.03, 0.1), (0.1,), 2_000_000, 2000
#: Weights start small, so that units start nearly linear, and alike.  With few columns training stays there for long,
#: and may stop there: so one member starts with steps instead and learns faster.  Held-out rows say how much it counts.
FEW_COLUMNS, SHARP_MEMBER, SHARPNESS, SHARP_RATE = 8, 1, 8.0, 6.0
SMALLEST = 1e-30  # columns that vary less are constant


def auto_weights(n_rows: int, n_columns: int, n_classes: int) -> NDArray[np.float64]:
    """How much of the denoising loss each member keeps in fine-tuning."""
    small = n_rows * n_columns * n_classes <= LARGE and n_columns <= WIDE
    return np.array(AUTO_WEIGHTS if small else LARGE_WEIGHTS)


def has_sharp_member(classifier: Any) -> bool:
    """Whether one of the default members of an `EnergyClassifier` starts with `start_sharp`."""
    default = isinstance(classifier.generative_weight, str) and len(classifier.generative_weights_) > 1
    return default and classifier.units != "covariance" and classifier.n_features_in_ <= FEW_COLUMNS


@torch.no_grad()
def start_sharp(model: ClassEnergies, X: Array, weight: Array, generator: torch.Generator) -> None:
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


def sharp_rates(rate: float | torch.Tensor, n_members: int) -> torch.Tensor:
    """The learning rate of every member, where one is sharp; rates given one by one stay as they are."""
    if isinstance(rate, torch.Tensor):
        return rate
    return torch.tensor([rate * (SHARP_RATE if c == SHARP_MEMBER else 1.0) for c in range(n_members)])
