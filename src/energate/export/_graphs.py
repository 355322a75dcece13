"""The estimators as modules from the user's columns to named outputs, ready to be traced."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, default_tolerance, one_step, set_out, step_size
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.estimators.bases import MOST
from energate.estimators.edge import Array, Scaler
from energate.estimators.pairs import PAIR_RELATIONS
from energate.estimators.refiner import T_LIMIT
from energate.training.sets import SetModel, neighbours
from energate.views import explain, refine, without_names

Outputs = dict[str, Any]


@dataclass(frozen=True)
class Graph:
    """A module to export, and what the estimator itself says of the same rows.

    ``block`` is the number of rows that the module takes at once, where it cannot be traced for any number.
    """

    estimator: Any
    module: nn.Module
    inputs: dict[str, int]  # name -> columns
    outputs: tuple[str, ...]
    reference: Callable[..., Outputs]
    ties: Callable[[Outputs], dict[str, Array]]  # how far a row is from another label, for outputs that are labels
    block: int | None = None


BLOCK = 16  # rows of a refiner at once


# --- parts -------------------------------------------------------------------------------------------------------


class Scaling(nn.Module):
    """The user's columns on the scale of a model, as `energate.estimators.edge.in_chunks` brings them there."""

    def __init__(self, scaler: Scaler, unit: bool, limited: bool = True) -> None:
        super().__init__()
        self.register_buffer("offset", torch.as_tensor(scaler.offset))
        self.register_buffer("size", torch.as_tensor(scaler.size))
        self.offset: Tensor
        self.size: Tensor
        self.unit, self.limited = unit, limited

    def forward(self, X: Tensor) -> Tensor:
        v = (X - self.offset) / self.size
        if self.limited:
            furthest = torch.finfo(v.dtype).max ** 0.2
            v = v.clamp(-furthest, furthest)
        return v.clamp(0, 1) if self.unit else v


class Ascent(nn.Module):
    """A fixed number of steps of `energate.trajectory` from logits, without branches that depend on the rows."""

    def __init__(self, autoencoder: Autoencoder, n_steps: int) -> None:
        super().__init__()
        self.autoencoder, self.n_steps = autoencoder, n_steps
        self.tolerance = default_tolerance(torch.float32)  # refiners compute in float32
        # The rule for the step knows no row: two contexts that differ show whether it is the same for all.
        probe = autoencoder.a.new_tensor([[0.0], [10.0]]).expand(2, max(1, autoencoder.context_width))
        size = step_size(autoencoder, "auto", probe if autoencoder.context_width else None)
        if size is None or not bool((size == size.flatten()[0]).all()):
            raise InputError("A refiner whose steps differ from row to row cannot be exported.")
        self.size = float(size.detach().flatten()[0])

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        model = self.autoencoder
        c = x if model.context_width else None
        state = set_out(model, torch.sigmoid(t.clamp(-LOGIT_LIMIT, LOGIT_LIMIT)), c)
        for _ in range(self.n_steps):
            state = one_step(model, state, self.size, self.tolerance, c)
        return model.visible.f(state.t)[0]


# --- whole graphs ------------------------------------------------------------------------------------------------


class ClassifierGraph(nn.Module):
    """Rows to energies, decision values, probabilities and the number of the class."""

    def __init__(self, model: EnergyClassifier) -> None:
        super().__init__()
        self.scaling = Scaling(model.scaler_, model.scaling == "unit")
        self.model = copy.deepcopy(model.model_)

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        v = self.scaling(X)
        decision = self.model.logits(v)
        return self.model.energies(v), decision, torch.softmax(decision, 1), decision.argmax(1)


class ScorerGraph(nn.Module):
    """Rows to energies, scores above the threshold, and whether a row is normal."""

    def __init__(self, model: EnergyScorer) -> None:
        super().__init__()
        self.scaling = Scaling(model.scaler_, model.scaling == "unit")
        self.model = copy.deepcopy(model.model_)
        self.register_buffer("threshold", torch.tensor(model.offset_, dtype=torch.float64))
        self.threshold: Tensor

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        energy = self.model.energy(self.scaling(X))[0]
        score = energy - self.threshold
        return energy, score, score >= 0


class PairGraph(nn.Module):
    """Pairs of rows to energies."""

    def __init__(self, model: PairScorer) -> None:
        super().__init__()
        unit = model.scaling == "unit"
        self.of_x, self.of_y = Scaling(model.scaler_x_, unit), Scaling(model.scaler_y_, unit)
        self.arrange, self.model = PAIR_RELATIONS[model.relation].arrange, copy.deepcopy(model.model_)

    def forward(self, X: Tensor, Y: Tensor) -> tuple[Tensor, ...]:
        return (self.model.energy(*self.arrange(self.of_x(X), self.of_y(Y)))[0],)


class LabelsGraph(nn.Module):
    """Rows to mean logits, probabilities, and labels or the number of the class."""

    def __init__(self, model: LabelMLP) -> None:
        super().__init__()
        self.scaling = Scaling(model.scaler_, unit=False)
        self.model, self.multilabel = copy.deepcopy(model.model_), model.multilabel_

    def logits(self, X: Tensor) -> Tensor:
        """The mean logits: (N, L)."""
        return self.model(self.scaling(X)).mean(0)

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        logits = self.logits(X)
        if self.multilabel:
            return logits, torch.sigmoid(logits), (logits > 0).long()
        return logits, torch.softmax(logits, 1), logits.argmax(1)


class BaseScores(nn.Module):
    """What a `LabelMLP` gives its refiner: scores of the labels that it knows, and the others as they always were."""

    def __init__(self, model: EnergyRefiner) -> None:
        super().__init__()
        base = model.base_
        self.base = LabelsGraph(base) if base is not None else None
        self.difference = base is not None and not base.multilabel_ and len(base.classes_) == 2
        constant = np.where(model.constant_ > 0, MOST, -MOST)
        self.register_buffer("constant", torch.as_tensor(np.where(model.varying_, 0.0, constant)))
        self.register_buffer("place", torch.eye(len(model.varying_))[torch.as_tensor(model.varying_)].double())
        self.constant: Tensor
        self.place: Tensor  # (known labels, L)

    def forward(self, X: Tensor) -> Tensor:
        if self.base is None:
            return self.constant + 0 * X[:, :1]
        logits = self.base.logits(X)
        logits = logits[:, 1:] - logits[:, :1] if self.difference else logits
        return logits @ self.place + self.constant


class RefinerGraph(nn.Module):
    """Rows, and perhaps the base's scores, to probabilities before and after, and labels or the number of the class."""

    def __init__(self, model: EnergyRefiner, with_base: bool) -> None:
        super().__init__()
        self.base = BaseScores(model) if with_base else None
        self.scaling = Scaling(model.scaler_, unit=False, limited=False)
        self.register_buffer("slope", torch.as_tensor(model.slope_))
        self.register_buffer("offset", torch.as_tensor(model.offset_))
        self.register_buffer("threshold", torch.as_tensor(model.threshold_))
        self.slope: Tensor
        self.offset: Tensor
        self.threshold: Tensor
        refiner = copy.deepcopy(model.model_)
        self.sets: SetModel | None = refiner if isinstance(refiner, SetModel) and model.gate_ else None
        self.ascent = Ascent(refiner, model.n_steps_) if model.n_steps_ else None
        self.gate, self.n_neighbours, self.multilabel = model.gate_, model.n_neighbours, model.multilabel_
        self.whole_vectors = model.refinement.best_vectors and self.sets is not None

    def forward(self, X: Tensor, scores: Tensor | None = None) -> tuple[Tensor, ...]:
        if self.base is not None:
            scores = self.base(X)
        assert scores is not None
        t = (self.slope * scores + self.offset).clamp(-T_LIMIT, T_LIMIT)
        base, best = torch.sigmoid(t), None
        refined, x = base, self.scaling(X)
        if self.ascent is not None:
            refined = self.ascent(t, x)
        elif self.sets is not None:
            near = neighbours(t, self.n_neighbours) if self.n_neighbours else None
            beliefs = self.sets.beliefs(t, x, near)
            best = self.sets.best(beliefs, near)
            refined = (1 - self.gate) * base + self.gate * self.sets.marginals(beliefs, near)
        if not self.multilabel:
            return _shares(base), _shares(refined), refined.argmax(1)
        return base, refined, (best if self.whole_vectors and best is not None else (refined > self.threshold)).long()


def _shares(p: Tensor) -> Tensor:
    return p / p.sum(1, keepdim=True)


# --- which graph an estimator has --------------------------------------------------------------------------------


def graph_of(model: Any) -> Graph:
    """The graph of a fitted estimator."""
    return replace(_graph(without_names(model, ())), estimator=model)  # rows to compare have no names


@singledispatch
def _graph(model: Any) -> Graph:
    raise InputError(
        "`model` must be a fitted EnergyClassifier, EnergyScorer, EnergyRefiner, LabelMLP or PairScorer; "
        f"got {type(model).__name__}."
    )


@_graph.register
def _(model: EnergyClassifier) -> Graph:
    check_is_fitted(model)

    def reference(X: Array) -> Outputs:
        decision = model._logits(X)
        return {
            "energies": model.energies(X),
            "decision": decision,
            "probabilities": model.predict_proba(X),
            "label": decision.argmax(1),
        }

    names = ("energies", "decision", "probabilities", "label")
    return Graph(model, ClassifierGraph(model), _columns(model), names, reference, _two_best("probabilities"))


@_graph.register
def _(model: EnergyScorer) -> Graph:
    check_is_fitted(model)

    def reference(X: Array) -> Outputs:
        said = explain(model, X)
        return {"energy": said["energies"], "score": said["scores"], "is_inlier": said["is_inlier"]}

    def ties(outputs: Outputs) -> dict[str, Array]:
        return {"is_inlier": np.abs(outputs["score"]) / (1 + np.abs(outputs["energy"]))}

    return Graph(model, ScorerGraph(model), _columns(model), ("energy", "score", "is_inlier"), reference, ties)


@_graph.register
def _(model: PairScorer) -> Graph:
    check_is_fitted(model)
    inputs = {**_columns(model), "Y": int(model.n_targets_in_)}
    return Graph(model, PairGraph(model), inputs, ("energy",), lambda X, Y: {"energy": model.score_pairs(X, Y)}, _none)


@_graph.register
def _(model: LabelMLP) -> Graph:
    check_is_fitted(model)
    last = "labels" if model.multilabel_ else "label"

    def reference(X: Array) -> Outputs:
        logits = model._logits(X)
        found = (logits > 0).astype(np.int64) if model.multilabel_ else logits.argmax(1)
        return {"decision": logits, "probabilities": model.predict_proba(X), last: found}

    ties = _near_threshold("labels") if model.multilabel_ else _two_best("probabilities")
    return Graph(model, LabelsGraph(model), _columns(model), ("decision", "probabilities", last), reference, ties)


@_graph.register
def _(model: EnergyRefiner) -> Graph:
    check_is_fitted(model)
    with_base = model.base_ is None or type(model.base_) is LabelMLP
    inputs = _columns(model) if with_base else {**_columns(model), "scores": len(model.slope_)}
    last = "labels" if model.multilabel_ else "label"

    def reference(X: Array, scores: Array | None = None) -> Outputs:
        said = refine(model, X, scores=scores)
        found = said["predictions"] if model.multilabel_ else said["refined"].argmax(1)
        return {"base": said["base"], "probabilities": said["refined"], last: found}

    graph = RefinerGraph(model, with_base)
    ties = _near_threshold("labels", model.threshold_) if model.multilabel_ else _two_best("probabilities")
    if graph.whole_vectors and model.multilabel_:
        ties = _none
    return Graph(model, graph, inputs, ("base", "probabilities", last), reference, ties, BLOCK if graph.sets else None)


def _columns(model: Any) -> dict[str, int]:
    return {"X": int(model.n_features_in_)}


def _two_best(name: str) -> Callable[[Outputs], dict[str, Array]]:
    """How far the second-best class is from the best."""

    def ties(outputs: Outputs) -> dict[str, Array]:
        two = np.sort(outputs[name], 1)[:, -2:]
        return {"label": two[:, 1] - two[:, 0]}

    return ties


def _near_threshold(name: str, threshold: Array | float = 0.5) -> Callable[[Outputs], dict[str, Array]]:
    return lambda outputs: {name: np.abs(outputs["probabilities"] - threshold)}


def _none(_: Outputs) -> dict[str, Array]:
    return {}
