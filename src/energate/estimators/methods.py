"""The two ways in which `EnergyRefiner` uses an energy over labels: over sets of labels, or by ascent."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.estimators.edge import Array
from energate.training import History
from energate.training.labels import LabelRows, LabelSets, LabelTraining, ascend, train_denoising
from energate.training.sets import SetModel, neighbours, train_sets

CHUNK = 2**20  # scores of candidates at once: 4 MiB, near what a processor's cache holds
MIXED_STEPS = 6  # points on the way from the base's probabilities to the refined ones, where there are no steps


@dataclass(frozen=True)
class Refinement(ABC):
    """One way to refine; the fields are parameters of the `EnergyRefiner`, and ``model`` is its ``model_``.

    How much is refined is a share of the refined probabilities, ``gate``, and a number of steps; both 0 is not at all.
    """

    objective: str
    n_neighbours: int
    noise_level: float

    @property
    @abstractmethod
    def amounts(self) -> dict[float, tuple[float, int]]:
        """What may be chosen: by name the gate and the number of steps, the first of them nothing."""

    @property
    @abstractmethod
    def best_vectors(self) -> bool:
        """Whether `predict` decides for the best vector of `refine`, and not by thresholds."""

    @abstractmethod
    def build(self, autoencoder: Autoencoder, sets: LabelSets) -> torch.nn.Module:
        """The model before training."""

    @abstractmethod
    def autoencoder(self, model: Any) -> Autoencoder:
        """The auto-encoder over labels whose energy a model uses."""

    @abstractmethod
    def train(self, model: Any, sets: LabelSets, rows: LabelRows, valid: LabelRows, training: LabelTraining) -> History:
        """Train the model; the epoch is kept that does best on validation rows."""

    @abstractmethod
    def worth(self, right: float, log_loss: float) -> tuple[float, ...]:
        """What an amount is chosen by, higher is better, from the share that is right and the log-loss."""

    @abstractmethod
    def refine(self, model: Any, rows: LabelRows, n_steps: int) -> tuple[Tensor, Tensor]:
        """Probabilities of the labels, and the best label vector: (n, L) each."""

    @abstractmethod
    def steps(self, model: Any, rows: LabelRows, ends: tuple[Array, Array], n_steps: int) -> Array:
        """Probabilities on the way from the base's to the refined, which are its ``ends``: (T, n, L)."""

    @abstractmethod
    def liking(self, model: Any, rows: LabelRows) -> Tensor:
        """How well the labels of each row go with it: (n,), higher is better."""

    @abstractmethod
    def rows_at_once(self, model: Any, n_labels: int) -> int:
        """How many rows are refined together."""


class SetRefinement(Refinement):
    """``"sets"``: the energy normalised over the label vectors seen in training, the base's own and its neighbours."""

    @property
    def amounts(self) -> dict[float, tuple[float, int]]:
        return {gate: (gate, 0) for gate in (0.0, 0.25, 0.5, 0.75, 1.0)}

    @property
    def best_vectors(self) -> bool:
        return self.objective == "subset"

    def build(self, autoencoder: Autoencoder, sets: LabelSets) -> SetModel:
        return SetModel(autoencoder, sets)

    def autoencoder(self, model: SetModel) -> Autoencoder:
        return model.autoencoder

    def train(
        self, model: SetModel, sets: LabelSets, rows: LabelRows, valid: LabelRows, training: LabelTraining
    ) -> History:
        return train_sets(model, sets, rows, valid, training, n_neighbours=self.n_neighbours, objective=self.objective)

    def worth(self, right: float, log_loss: float) -> tuple[float, ...]:
        if self.objective == "hamming":  # few events, so that the log-loss tells more of a gate than the error
            return (-log_loss,)
        return (right, -log_loss)  # the best vector is the same under every gate but 0; their probabilities are not

    def refine(self, model: SetModel, rows: LabelRows, n_steps: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        near = neighbours(rows.t, self.n_neighbours) if self.n_neighbours else None
        beliefs = model.beliefs(rows.t, rows.x, near)
        return model.marginals(beliefs, near), model.best(beliefs, near)

    def steps(self, model: SetModel, rows: LabelRows, ends: tuple[Array, Array], n_steps: int) -> Array:  # noqa: ARG002
        base, refined = ends
        return base + np.linspace(0, 1, MIXED_STEPS)[:, None, None] * (refined - base)  # the gate mixes linearly

    def liking(self, model: SetModel, rows: LabelRows) -> Tensor:
        return model.log_probability(rows.t, rows.x, rows.Y)

    def rows_at_once(self, model: SetModel, n_labels: int) -> int:  # noqa: ARG002
        return max(1, CHUNK // len(model.Y))  # a score for each label vector


class AscentRefinement(Refinement):
    """``"ascent"``: some steps uphill in energy from the base's prediction."""

    @property
    def amounts(self) -> dict[float, tuple[float, int]]:
        return {steps: (float(steps > 0), steps) for steps in (0, 1, 2, 3, 5, 10, 20)}

    @property
    def best_vectors(self) -> bool:
        return False

    def build(self, autoencoder: Autoencoder, sets: LabelSets) -> Autoencoder:  # noqa: ARG002
        return autoencoder

    def autoencoder(self, model: Autoencoder) -> Autoencoder:
        return model

    def train(
        self,
        model: Autoencoder,
        sets: LabelSets,  # noqa: ARG002
        rows: LabelRows,
        valid: LabelRows,
        training: LabelTraining,
    ) -> History:
        return train_denoising(model, rows, valid, training, self.noise_level)

    def worth(self, right: float, log_loss: float) -> tuple[float, ...]:  # noqa: ARG002
        return (right,)

    def refine(self, model: Autoencoder, rows: LabelRows, n_steps: int) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(ascend(model, rows.t, rows.x, [n_steps])[0].double())
        return p, (p > 0.5).double()

    def steps(self, model: Autoencoder, rows: LabelRows, ends: tuple[Array, Array], n_steps: int) -> Array:  # noqa: ARG002
        logits = ascend(model, rows.t, rows.x, range(n_steps + 1))
        return torch.sigmoid(torch.stack(logits).double()).cpu().numpy()

    def liking(self, model: Autoencoder, rows: LabelRows) -> Tensor:
        return model.energy(rows.Y, rows.x if model.context_width else None)[0]

    def rows_at_once(self, model: Autoencoder, n_labels: int) -> int:  # noqa: ARG002
        return max(1, CHUNK // (4 * n_labels))  # a few values for each label


#: ways to refine by name
METHODS: dict[str, type[Refinement]] = {"sets": SetRefinement, "ascent": AscentRefinement}
