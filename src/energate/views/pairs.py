"""The view of `PairScorer`: the energy of a pair of rows."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from energate.errors import InputError
from energate.estimators import PairScorer
from energate.estimators.edge import Array
from energate.estimators.pairs import PAIR_RELATIONS
from energate.views.graphs import Graph, Scaling, no_ties
from energate.views.view import Command, Course, Field, View, drawn, in_double, register


@register
class PairScorerView(View):
    """One gated auto-encoder of y given x, or of both."""

    estimator, task, labels = PairScorer, "pairs", ()

    def about(self) -> dict[str, Any]:
        return {"relation": self.model.relation, "n_targets": int(self.model.n_targets_in_)}

    def commands(self) -> dict[str, Command]:
        return {}  # a table has rows, not pairs of them

    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        model = self.model
        return drawn(n_rows, seed, model.scaling == "unit", X=model.scaler_x_, Y=model.scaler_y_)

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        if "Y" not in rows:
            raise InputError("A PairScorer is checked on pairs that are drawn; leave the rows out.")
        x, y = torch.as_tensor(self.model.scaler_x_(rows["X"])), torch.as_tensor(self.model.scaler_y_(rows["Y"]))
        name = "y given x" if self.model.relation == "conditional" else "x and y"
        yield Field(name, in_double(self.model.model_), *PAIR_RELATIONS[self.model.relation].arrange(x, y))

    def checked(self) -> str:
        of = "y, given x" if self.model.relation == "conditional" else "x and y"
        return f"the auto-encoder of {of}"

    def course(self, X: Array, of: int | None) -> Course:
        raise InputError("A trajectory needs a field over rows; a PairScorer has one over pairs.")

    def graph(self) -> Graph:
        inputs = {"X": self.n_features, "Y": int(self.model.n_targets_in_)}

        def reference(X: Array, Y: Array) -> dict[str, Any]:
            return {"energy": self.model.score_pairs(X, Y)}

        return Graph(PairGraph(self.model), inputs, ("energy",), reference, no_ties)


class PairGraph(nn.Module):
    """Pairs of rows to energies."""

    def __init__(self, model: PairScorer) -> None:
        super().__init__()
        unit = model.scaling == "unit"
        self.of_x, self.of_y = Scaling(model.scaler_x_, unit), Scaling(model.scaler_y_, unit)
        self.arrange, self.model = PAIR_RELATIONS[model.relation].arrange, copy.deepcopy(model.model_)

    def forward(self, X: Tensor, Y: Tensor) -> tuple[Tensor, ...]:
        return (self.model.energy(*self.arrange(self.of_x(X), self.of_y(Y)))[0],)
