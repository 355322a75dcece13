"""The view of `EnergyScorer`: the energy of a row, and whether it is below the threshold."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from energate.estimators import EnergyScorer
from energate.estimators.edge import Array, in_one_pass
from energate.estimators.scorer import MEMORY
from energate.views.accounts import AnomalyAccount
from energate.views.graphs import Expansion, Graph, PValues, Scaling
from energate.views.levels import rejecting, strange, strangeness
from energate.views.view import (
    FLAG,
    LABEL,
    SEEN,
    Command,
    Course,
    Field,
    Output,
    Trained,
    View,
    drawn,
    in_double,
    kind_of,
    no_class,
    register,
)

PREDICTIONS = Output("predictions", "prediction", kind=LABEL)
SCORES, IS_INLIER = Output("scores", "score"), Output("is_inlier", "is_inlier", kind=FLAG)
ENERGIES, RECONSTRUCTIONS = Output("energies", "energy"), Output("reconstructions", "as_", ("model", "column"))


def _build(device: str, random_state: int, epochs: int | None, **options: Any) -> EnergyScorer:
    more: dict[str, Any] = {} if epochs is None else {"max_epochs": epochs}
    return EnergyScorer(device=device, random_state=random_state, **more, **options)


@register
class EnergyScorerView(View):
    """One auto-encoder of all rows."""

    estimator, task, labels, takes_cells = EnergyScorer, "anomaly", (), True
    trained = Trained("anomaly", ("units", "n_hidden", "contamination", "false_positive_rate"), _build)
    account = AnomalyAccount
    moves = True

    @staticmethod
    def trains_by_steps(estimator: Any) -> bool:
        return bool(estimator.units != MEMORY)

    @property
    def clamped(self) -> bool:
        return bool(self.model.model_.visible.name == "sigmoid")

    def likings(self, v: Tensor) -> Tensor:
        found: Tensor = self.model.model_.energy(v).T  # (1, N) to (N, 1)
        return found

    def about(self) -> dict[str, Any]:
        units = self.model.units if isinstance(self.model.units, str) else "a function"
        remembered = {} if self.model.n_units_ is None else {"remembered": self.model.n_units_}
        return {"units": units, **remembered, "scaling": self.model.scaling, "threshold": float(self.model.offset_)}

    def commands(self) -> dict[str, Command]:
        return {
            "predict": Command(
                "Whether each row is normal, 1, or not, -1; it has no probabilities.",
                (PREDICTIONS, *strangeness(self.model)),
                self.said,
                levels=rejecting(self.model),
            ),
            "score": Command(
                "How far the energy of each row lies above the threshold, and whether it does: the row is normal then.",
                (SCORES, IS_INLIER, *strangeness(self.model)),
                self.said,
                levels=rejecting(self.model),
            ),
            "explain": Command(
                "Everything that the model says of each row: energy, score, reconstruction.",
                (ENERGIES, SCORES, IS_INLIER, SEEN, RECONSTRUCTIONS, *strangeness(self.model)),
                partial(self.said, reconstructions=True),
                alone=True,
                n_values=2 * self.n_seen,
            ),
        }

    def said(self, X: Array, *, reconstructions: bool = False) -> dict[str, Any]:
        """The energies, perhaps the reconstructions, and what follows from them."""
        model: EnergyScorer = self.model
        autoencoder = model.model_

        def one_pass(v: Tensor) -> dict[str, Tensor]:
            v = v.clamp(0, 1) if autoencoder.visible.name == "sigmoid" else v
            found = {"energies": autoencoder.energy(v)[0]}
            # (1, N, D) to (N, 1, D)
            return found | ({"reconstructions": autoencoder.reconstruct(v).movedim(0, 1)} if reconstructions else {})

        found: dict[str, Any] = in_one_pass(X, self.scaled, autoencoder.a, one_pass, model.precision)
        if reconstructions:
            found["seen"] = self.seen(X)
            found["reconstructions"] = model.scaler_.undo(found["reconstructions"])
        scores = found["energies"] - model.offset_
        found |= strange(model, found["energies"])
        return {**found, "scores": scores, "is_inlier": scores >= 0, "predictions": np.where(scores >= 0, 1, -1)}

    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        found = drawn(n_rows, seed, self.model.scaling == "unit", X=self.model.scaler_)["X"]  # (n, D)
        return {"X": self.model.cells_.drawn(found, np.random.RandomState(seed))}

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        autoencoder = in_double(self.model.model_)
        yield Field(kind_of(autoencoder), autoencoder, torch.as_tensor(self.scaled(rows["X"])))

    def checked(self) -> str:
        return "the auto-encoder of its rows"

    def course(self, X: Array, of: int | None) -> Course:
        no_class(self.model, of)
        return Course(self.model.model_, 0, 1.0, 0.0, None)

    def graph(self) -> Graph:
        def reference(X: Array) -> dict[str, Any]:
            found = self.said(X)
            return {**found, "energy": found["energies"], "score": found["scores"]}

        def ties(outputs: dict[str, Any]) -> dict[str, Array]:
            return {"is_inlier": np.abs(outputs["score"]) / (1 + np.abs(outputs["energy"]))}

        module = ScorerGraph(self.model)

        def slack(outputs: dict[str, Any], room: float) -> dict[str, Array]:
            return {} if module.p_value is None else {"p_value": module.p_value.slack(outputs["energy"], room)}

        outputs = ("energy", "score", "is_inlier", *(() if module.p_value is None else ("p_value",)))
        return Graph(module, {"X": self.n_features}, outputs, reference, ties, slack=slack)


class ScorerGraph(nn.Module):
    """Rows to energies, scores above the threshold, whether a row is normal, and p-values if they are known."""

    def __init__(self, model: EnergyScorer) -> None:
        super().__init__()
        self.seeing = Expansion(model.cells_)
        self.scaling = Scaling(model.scaler_, model.model_.visible.name == "sigmoid")
        self.model = copy.deepcopy(model.model_)
        self.register_buffer("threshold", torch.tensor(model.offset_, dtype=torch.float64))
        self.threshold: Tensor
        self.p_value = PValues(model.held_out_) if len(model.held_out_) else None

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        energy = self.model.energy(self.scaling(self.seeing(X)))[0]
        score = energy - self.threshold
        return energy, score, score >= 0, *(() if self.p_value is None else (self.p_value(energy),))
