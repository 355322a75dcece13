"""The view of `LabelMLP`: probabilities of labels, or of classes, without an energy."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor, nn

from energate.errors import InputError
from energate.estimators import LabelMLP
from energate.estimators.edge import Array, in_chunks
from energate.views.graphs import Graph, Scaling, near, two_best
from energate.views.view import LABEL, Command, Course, Field, Output, View, drawn, register


def task_and_labels(model: Any, n_labels: int) -> tuple[str, list[Any]]:
    """The task of an estimator that takes labels or classes, and which it knows."""
    if model.multilabel_:
        return "multilabel", list(range(n_labels))
    return "classify", np.asarray(model.classes_).tolist()


def predicted(model: Any) -> Output:
    """Labels of 0 and 1, or a class."""
    if model.multilabel_:
        return Output("predictions", "predicted_", ("label",), LABEL)
    return Output("predictions", "prediction", kind=LABEL)


PROBABILITIES = Output("probabilities", "p_", ("label",))


@register
class LabelMLPView(View):
    """Networks that are averaged."""

    estimator = LabelMLP

    @property
    def task(self) -> str:
        return task_and_labels(self.model, len(self.model.classes_))[0]

    @property
    def labels(self) -> Sequence[Any]:
        return task_and_labels(self.model, len(self.model.classes_))[1]

    def about(self) -> dict[str, Any]:
        return {}

    def commands(self) -> dict[str, Command]:
        about = "What the model says of each row, and the probabilities of `classes`."
        return {"predict": Command(about, (predicted(self.model), PROBABILITIES), self.said)}

    def said(self, X: Array) -> dict[str, Any]:
        """Logits, probabilities, and labels or classes."""
        model: LabelMLP = self.model
        logits = in_chunks(X, model.scaler_, model.model_.output.b, lambda v: model.model_(v).mean(0), model.precision)
        if model.multilabel_:
            return {"decision": logits, "probabilities": expit(logits), "predictions": (logits > 0).astype(np.int64)}
        return {
            "decision": logits,
            "probabilities": softmax(logits, 1),
            "predictions": model.classes_[logits.argmax(1)],
        }

    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        return drawn(n_rows, seed, self.model.scaling == "unit", X=self.model.scaler_)

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        raise InputError(self.checked())

    def checked(self) -> str:
        raise InputError(
            "A LabelMLP has no energy, and so nothing to check. Refine it with an EnergyRefiner, which has one."
        )

    def course(self, X: Array, of: int | None) -> Course:
        raise InputError("A trajectory needs a field over rows; a LabelMLP has no energy.")

    def graph(self) -> Graph:
        model: LabelMLP = self.model
        last = "labels" if model.multilabel_ else "label"

        def reference(X: Array) -> dict[str, Any]:
            found = self.said(X)
            chosen = found["predictions"] if model.multilabel_ else found["decision"].argmax(1)
            return {**found, last: chosen}

        ties = near(0.5) if model.multilabel_ else two_best
        outputs = ("decision", "probabilities", last)
        return Graph(LabelsGraph(model), {"X": self.n_features}, outputs, reference, ties)


class LabelsGraph(nn.Module):
    """Rows to mean logits, probabilities, and labels or the number of the class."""

    def __init__(self, model: LabelMLP) -> None:
        super().__init__()
        self.scaling = Scaling(model.scaler_, unit=False)
        self.networks, self.multilabel = copy.deepcopy(model.model_), model.multilabel_

    def logits(self, X: Tensor) -> Tensor:
        """Mean logits: (N, L)."""
        return self.networks(self.scaling(X)).mean(0)

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        logits = self.logits(X)
        if self.multilabel:
            return logits, torch.sigmoid(logits), (logits > 0).long()
        return logits, torch.softmax(logits, 1), logits.argmax(1)
