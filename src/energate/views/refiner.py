"""The view of `EnergyRefiner`: labels as a base sees them, and refined by the energy of label vectors."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, _default_tolerance, _step, _step_size, _to_logits
from energate.errors import InputError
from energate.estimators import EnergyRefiner, LabelMLP
from energate.estimators.bases import MOST, MissingBase
from energate.estimators.edge import Array
from energate.estimators.refiner import T_LIMIT
from energate.training.labels import SetModel, ascend, neighbours
from energate.views.accounts import LabelAccount
from energate.views.graphs import Graph, Scaling, near, no_ties, two_best
from energate.views.labels import LabelsGraph, labels_of, predicted
from energate.views.view import Beside, Command, Course, Field, Output, Trained, View, drawn, in_double, register

GATE_STEPS = 6  # points on the way from the base's probabilities to the refined ones, method "sets"
BLOCK = 16  # rows of a graph at once
BASE, REFINED = Output("base", "base_", ("label",)), Output("refined", "refined_", ("label",))
STEPS = Output("steps", "step_", ("step", "label"))


def _build(device: str, random_state: int, epochs: int | None, **options: Any) -> EnergyRefiner:
    common: dict[str, Any] = {"device": device, "random_state": random_state}
    common |= {} if epochs is None else {"max_epochs": epochs}
    return EnergyRefiner(LabelMLP(**common), **common, **options)


@register
class EnergyRefinerView(View):
    """A base, and an auto-encoder of label vectors."""

    estimator = EnergyRefiner
    trained = Trained("multilabel", ("relation", "method", "objective"), _build)
    account = LabelAccount
    single = True

    @property
    def task(self) -> str:
        return labels_of(self.model, len(self.model.slope_))[0]

    @property
    def labels(self) -> Sequence[Any]:
        return labels_of(self.model, len(self.model.slope_))[1]

    @property
    def has_base(self) -> bool:
        """Whether the base is there; else its scores must come with the rows."""
        return not isinstance(self.model.base_, MissingBase)

    def about(self) -> dict[str, Any]:
        model: EnergyRefiner = self.model
        name = model.base_.kind if isinstance(model.base_, MissingBase) else type(model.base_).__name__
        return {
            "relation": model.relation,
            "method": model.method,
            "objective": model.objective,
            "gate": float(model.gate_),
            "n_steps": int(model.n_steps_),
            "gain": {"mean": model.gain_.mean, "standard_error": model.gain_.standard_error},
            "verdict": model.verdict_,
            "base": None if model.base_ is None else str(name).rpartition(".")[2],
            "has_base": self.has_base,
            "n_sets": int(model.n_sets_),
        }

    def commands(self) -> dict[str, Command]:
        chosen = predicted(self.model)
        scores = Beside("scores", len(self.model.slope_), needed=not self.has_base)
        found = {
            "refine": Command(
                "Probabilities of labels before and after refinement; `scores` are those of the base, if not its own.",
                (chosen, BASE, REFINED),
                self.said,
                (scores,),
            ),
            "explain": Command(
                "Everything that the model says of each row: labels before, on the way and after.",
                (BASE, REFINED, chosen, STEPS),
                self.explained,
                (scores,),
                alone=True,
                n_values=len(self.model.slope_) * (max(self.model.n_steps_, GATE_STEPS) + 3),
            ),
        }
        if not self.has_base:  # nothing says what a row's labels are, but scores that come with it
            return found
        labels = Beside("labels", len(self.model.slope_) if self.model.multilabel_ else None, needed=True)
        return {
            "predict": Command(
                "What the model says of each row, and the probabilities of `classes`.",
                (chosen, Output("probabilities", "p_", ("label",))),
                self.said,
            ),
            "score": Command(
                "How well the labels given with each row go with it; higher is better, and the lowest look wrong.",
                (Output("label_energy", "label_energy"),),
                lambda X, labels: {"label_energy": self.model.label_energy(X, np.asarray(labels))},
                (labels,),
            ),
            **found,
        }

    def said(self, X: Array, scores: Any = None) -> dict[str, Any]:
        """Probabilities before and after, and the labels or the class; ``scores`` (n, L) are those of the base."""
        model: EnergyRefiner = self.model
        scores = model._scores(X) if scores is None else scores
        refined, best = model.refine(scores, X)  # checks the scores
        base = torch.sigmoid(model._label_rows(np.asarray(scores, dtype=np.float64), X).t.double()).cpu().numpy()
        decided = model._decide(refined, best).astype(np.int64)
        chosen = decided if model.multilabel_ else model.classes_[refined.argmax(1)]
        refined = self._shares(refined)
        return {"predictions": chosen, "base": self._shares(base), "refined": refined, "probabilities": refined}

    def explained(self, X: Array, scores: Any = None) -> dict[str, Any]:
        """The same, and the ``steps`` (T, n, L) on the way."""
        model: EnergyRefiner = self.model
        scores = model._scores(X) if scores is None else scores
        found = self.said(X, scores)
        base, refined = found["base"], found["refined"]
        if model.method == "sets" or not model.n_steps_:
            shares = np.linspace(0, 1, GATE_STEPS if model.gate_ else 2)
            steps = base + shares[:, None, None] * (refined - base)  # the gate mixes the two linearly
        else:
            labels = model._label_rows(np.asarray(scores, dtype=np.float64), X)
            with torch.no_grad():
                logits = ascend(model.model_, labels.t, labels.x, range(model.n_steps_ + 1))
            steps = self._shares(torch.sigmoid(torch.stack(logits).double()).cpu().numpy())
        steps[0], steps[-1] = base, refined  # to the last digit
        return {**found, "steps": steps}

    def _shares(self, p: Array) -> Array:
        """Probabilities of labels as they are; those of classes, of which each row has one, add up to 1."""
        return p if self.model.multilabel_ else p / np.maximum(p.sum(-1, keepdims=True), 1e-300)

    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        model, random = self.model, np.random.RandomState(seed)
        X = drawn(random, model.scaler_, n_rows, unit=False)
        wanted = np.random.RandomState(seed).normal(scale=3, size=(n_rows, len(model.slope_)))
        return {"X": X, "scores": (wanted - model.offset_) / np.where(np.abs(model.slope_) > 1e-3, model.slope_, 1.0)}

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        autoencoder = in_double(self._autoencoder())
        context = torch.as_tensor(self.model.scaler_(rows["X"])) if autoencoder.context_width else None
        generator = torch.Generator().manual_seed(seed)
        labels = torch.rand(len(rows["X"]), autoencoder.width, generator=generator, dtype=torch.float64)
        yield Field("labels given the columns" if autoencoder.context_width else "labels", autoencoder, labels, context)

    def _autoencoder(self) -> Autoencoder:
        found: Autoencoder = self.model.model_.autoencoder if self.model.method == "sets" else self.model.model_
        return found

    def checked(self) -> str:
        given = ", given the columns" if self.model.relation == "xy" else ""
        return f"the auto-encoder of its labels{given}; the base is not part of the energy"

    def course(self, X: Array, of: int | None) -> Course:
        raise InputError(
            "A trajectory needs a field over rows; that of an EnergyRefiner is over labels. Its steps are in `explain`."
        )

    def graph(self) -> Graph:
        model: EnergyRefiner = self.model
        with_base = model.base_ is None or type(model.base_) is LabelMLP
        inputs = {"X": self.n_features} | ({} if with_base else {"scores": len(model.slope_)})
        last = "labels" if model.multilabel_ else "label"

        def reference(X: Array, scores: Array | None = None) -> dict[str, Any]:
            said = self.said(X, scores)
            return {**said, last: said["predictions"] if model.multilabel_ else said["refined"].argmax(1)}

        module = RefinerGraph(model, with_base)
        ties = near(model.threshold_) if model.multilabel_ else two_best
        ties = no_ties if module.whole_vectors and model.multilabel_ else ties
        return Graph(module, inputs, ("base", "probabilities", last), reference, ties, BLOCK if module.sets else None)


# --- the graph ---------------------------------------------------------------------------------------------------


class Ascent(nn.Module):
    """A fixed number of steps of `energate.trajectory` from logits, without branches that depend on the rows."""

    def __init__(self, autoencoder: Autoencoder, n_steps: int) -> None:
        super().__init__()
        self.autoencoder, self.n_steps = autoencoder, n_steps
        self.tolerance = _default_tolerance(torch.float32)  # refiners compute in float32
        # The rule for the step knows no row: two contexts that differ show whether it is the same for all.
        probe = autoencoder.a.new_tensor([[0.0], [10.0]]).expand(2, max(1, autoencoder.context_width))
        size = _step_size(autoencoder, "auto", probe if autoencoder.context_width else None)
        if size is None or not bool((size == size.flatten()[0]).all()):
            raise InputError("A refiner whose steps differ from row to row cannot be exported.")
        self.size = float(size.detach().flatten()[0])

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        model, visible = self.autoencoder, self.autoencoder.visible
        c = x if model.context_width else None
        t = _to_logits(visible, torch.sigmoid(t.clamp(-LOGIT_LIMIT, LOGIT_LIMIT))).unsqueeze(0)  # (1, N, L)
        energy, p = model.energy_and_preoutput(visible.f(t), c)
        active = torch.isfinite(energy)
        for _ in range(self.n_steps):
            t_new, e_new, p_new = _step(model, t, p, self.size, c)
            settled = (e_new - energy).abs() <= self.tolerance * (1 + energy.abs())
            moved = active.unsqueeze(-1)
            t, p = torch.where(moved, t_new, t), torch.where(moved, p_new, p)
            energy = torch.where(active, e_new, energy)
            active = active & ~settled
        return visible.f(t)[0]


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
        self.sets: SetModel | None = refiner if model.method == "sets" and model.gate_ else None
        self.ascent = Ascent(refiner, model.n_steps_) if model.method == "ascent" and model.n_steps_ else None
        self.gate, self.n_neighbours, self.multilabel = model.gate_, model.n_neighbours, model.multilabel_
        self.whole_vectors = model.objective == "subset" and self.sets is not None

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
