"""What a kind of `EnergyClassifier` is: how the model that ``units`` asks for is built, and how it is trained."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import Array, Examples
from energate.estimators.progress import Reporter
from energate.training import History
from energate.training.classes import ClassEnergies, LabelledRows


@dataclass(frozen=True)
class Round:
    """What one call of `fit` or `partial_fit` trains on, and whom it tells of it.

    ``valid`` are rows to choose epochs and to calibrate on; ``epochs`` come from `partial_fit`, whose rows may lack
    classes or hold few of them.
    """

    train: LabelledRows
    valid: LabelledRows | None
    seed: int
    epochs: int | None
    report: Reporter


class Kind(ABC):
    """How a classifier of some ``units`` is built and trained."""

    #: what "auto" stands for in those parameters that are the same whatever the data
    auto: ClassVar[dict[str, Any]]
    #: rows to hold out for all members at once: for fewer than so many, every member holds out its own
    least_valid: ClassVar[float]
    #: whether members belong together, so that they cannot be the configurations of a search
    whole: ClassVar[bool]
    #: whether rows join what is remembered, and no weight is stepped: `fit` never goes on from weights then
    remembers: ClassVar[bool]

    def settled(self, estimator: Any) -> Any:
        """The estimator with what "auto" stands for in its place: a copy that shares everything else."""
        found = copy.copy(estimator)
        for name, value in self.auto.items():
            if is_auto(getattr(found, name)):
                setattr(found, name, value)
        return found

    @abstractmethod
    def weights(self, estimator: Any, n_rows: int) -> Array:
        """The weight of the denoising loss of every member: (C,)."""

    @abstractmethod
    def breadth(self, estimator: Any, n_rows: int) -> int:
        """The width of the layers of a trunk, 0 where there is none."""

    @abstractmethod
    def skip(self, estimator: Any, rows: Examples) -> Array:
        """What of every column of ``model_`` goes straight to the output: (D,); empty where nothing does."""

    @abstractmethod
    def build(self, estimator: Any, generator: torch.Generator) -> ClassEnergies:
        """The model before training, with a member for each of ``generative_weights_``."""

    @abstractmethod
    def start(self, estimator: Any, rows: Examples, generator: torch.Generator) -> None:
        """What the rows say of where the model is to start."""

    @abstractmethod
    def n_epochs(self, estimator: Any, train: LabelledRows, epochs: int | None) -> int:
        """How many epochs training takes at most; ``epochs`` come from `partial_fit`."""

    @abstractmethod
    def train(self, estimator: Any, given: Round) -> tuple[dict[str, History], Tensor]:
        """Train the model; its history by stages, and energies (N, K) of rows held out, or else of those trained on."""


def given_weights(estimator: Any) -> Array:
    """``generative_weight`` where it is not left to a rule: (C,)."""
    found: Array = edge.as_numbers(estimator, "generative_weight").numpy()
    if not len(found) or not (found >= 0).all():
        raise InputError(f"`generative_weight` must be 'auto', or numbers from 0; got {estimator.generative_weight!r}.")
    return found


def is_auto(value: Any) -> bool:
    """Whether a parameter is left to a rule."""
    return isinstance(value, str) and value == "auto"


def visible_of(estimator: Any) -> str:
    """The output activation: columns scaled to [0, 1] end there."""
    return "sigmoid" if estimator.scaling == "unit" else "linear"
