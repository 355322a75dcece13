"""The view of `EnergyRefiner`: labels as a base sees them, and refined by the energy of label vectors."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, default_tolerance, one_step, set_out, step_size
from energate.errors import InputError
from energate.estimators import EnergyRefiner, LabelMLP
from energate.estimators.bases import MOST, MissingBase
from energate.estimators.edge import Array
from energate.estimators.refiner import T_LIMIT
from energate.training.labels import MIXED_STEPS, SetModel, neighbours
from energate.views.accounts import LabelAccount
from energate.views.graphs import Graph, Scaling, near, no_ties, two_best
from energate.views.labels import LabelsGraph, predicted, task_and_labels
from energate.views.view import Beside, Command, Course, Field, Output, Trained, View, drawn, in_double, register

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
        return task_and_labels(self.model, len(self.model.slope_))[0]

    @property
    def labels(self) -> Sequence[Any]:
        return task_and_labels(self.model, len(self.model.slope_))[1]

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
                partial(self.said, steps=True),
                (scores,),
                alone=True,
                n_values=len(self.model.slope_) * (max(self.model.n_steps_, MIXED_STEPS) + 3),
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

    def said(self, X: Array, scores: Any = None, *, steps: bool = False) -> dict[str, Any]:
        """Probabilities before and after, the labels or the class, and perhaps the ``steps`` (T, n, L) on the way.

        ``scores`` (n, L) are those of the base.
        """
        found = self.model.follow(X, scores, steps=steps)
        said = {"predictions": found.predictions, "base": found.base, "refined": found.refined}
        return {**said, "probabilities": found.refined, "steps": found.steps}

    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        model, random = self.model, np.random.RandomState(seed)
        wanted = random.normal(scale=3, size=(n_rows, len(model.slope_)))
        scores = (wanted - model.offset_) / np.where(np.abs(model.slope_) > 1e-3, model.slope_, 1.0)
        return {**drawn(n_rows, seed, unit=False, X=model.scaler_), "scores": scores}

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        autoencoder = in_double(self.model.refinement.autoencoder(self.model.model_))
        context = torch.as_tensor(self.model.scaler_(rows["X"])) if autoencoder.context_width else None
        generator = torch.Generator().manual_seed(seed)
        labels = torch.rand(len(rows["X"]), autoencoder.width, generator=generator, dtype=torch.float64)
        yield Field("labels given the columns" if autoencoder.context_width else "labels", autoencoder, labels, context)

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


class BaseGraph(nn.Module):
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
        self.base = BaseGraph(model) if with_base else None
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
