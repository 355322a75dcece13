"""The operations of each kind of model: what `predict`, `score`, `refine`, `explain` and `trajectory` take and give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from energate import views
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP
from energate.estimators._scoring import any_class
from energate.serving.schemas import LABEL, NUMBER, Label, Schema, Whole, answer, array, body, numbers, several

Rows = list[Any]
Matrix = Callable[[Rows], NDArray[np.float64]]
MOST_VALUES = 1_000_000  # numbers in one answer of `explain` or `trajectory`: about 20 MB
MOST_STEPS = 1000


@dataclass(frozen=True)
class Operation:
    """Something that a model does with a request.

    ``compute`` takes the fields of ``body`` that are not None by name.  Unless it works ``alone`` these are lists with
    one entry for each row, requests are computed together, and its outputs are arrays with one entry for each row.
    ``fixed`` is what goes into every answer, ``beside`` what an example of a request has beside its row.
    """

    about: str
    body: type[BaseModel]
    compute: Callable[..., dict[str, Any]]
    returns: Schema
    alone: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowsOf:
    """How rows come: the type of one, what makes numbers of them, and how many may come at once."""

    kind: Any
    matrix: Matrix
    most: int

    def body(self, name: str, values_per_row: int = 0, **fields: Any) -> type[BaseModel]:
        """A request with rows, fewer of them where the answer has many values for each."""
        most = min(self.most, max(1, MOST_VALUES // values_per_row)) if values_per_row else self.most
        return body(name, rows=(several(self.kind, most), ...), **fields)


@singledispatch
def operations(model: Any, about: dict[str, Any], form: RowsOf) -> dict[str, Operation]:
    """The operations that a server offers of a model, by name; ``about`` is what `energate.views` says of it."""
    del about, form
    raise InputError(
        f"A {type(model).__name__} cannot be served; an EnergyClassifier, EnergyScorer, EnergyRefiner or LabelMLP can."
    )


# --- classifiers and scorers -------------------------------------------------------------------------------------


@operations.register
def _(model: EnergyClassifier, about: dict[str, Any], form: RowsOf) -> dict[str, Operation]:
    classes = about["classes"]

    def predict(rows: Rows) -> dict[str, Any]:
        probabilities = model.predict_proba(form.matrix(rows))
        return {"predictions": model.classes_[probabilities.argmax(1)], "probabilities": probabilities}

    def score(rows: Rows) -> dict[str, Any]:
        energies = model.energies(form.matrix(rows))
        return {"energies": energies, "liking": any_class(torch.as_tensor(energies))}

    return {
        "predict": _predict(predict, form, array(NUMBER, 2), classes),
        "score": Operation(
            "How much each class likes each row, and how much any class does; higher is better.",
            form.body("Rows"),
            score,
            answer(energies=array(NUMBER, 2), liking=array(NUMBER)),
        ),
        "explain": _explain(
            model,
            form,
            len(classes) * about["n_features"],
            answer(
                energies=array(NUMBER, 2),
                decision=array(NUMBER, 2),
                probabilities=array(NUMBER, 2),
                predictions=array(LABEL),
                reconstructions=array(NUMBER, 3),
                liking=array(NUMBER),
            ),
        ),
        "trajectory": _trajectory(model, form, about["n_features"], len(classes)),
    }


@operations.register
def _(model: EnergyScorer, about: dict[str, Any], form: RowsOf) -> dict[str, Operation]:
    def predict(rows: Rows) -> dict[str, Any]:
        return {"predictions": model.predict(form.matrix(rows))}

    def score(rows: Rows) -> dict[str, Any]:
        above = model.decision_function(form.matrix(rows))
        return {"scores": above, "is_inlier": above >= 0}

    inlier = {"scores": array(NUMBER), "is_inlier": array({"type": "boolean"})}
    return {
        "predict": _predict(predict, form, {"type": "null"}, [-1, 1], probabilities=None),
        "score": Operation(
            "How far the energy of each row lies above the threshold, and whether it does: the row is normal then.",
            form.body("Rows"),
            score,
            answer(**inlier),
        ),
        "explain": _explain(
            model,
            form,
            about["n_features"],
            answer(energies=array(NUMBER), reconstructions=array(NUMBER, 3), **inlier),
        ),
        "trajectory": _trajectory(model, form, about["n_features"], 0),
    }


# --- several labels ----------------------------------------------------------------------------------------------


@operations.register
def _(model: EnergyRefiner, about: dict[str, Any], form: RowsOf) -> dict[str, Operation]:
    n_labels, names = len(model.slope_), about["labels"] or about["classes"]

    def refine(rows: Rows, scores: Any = None) -> dict[str, Any]:
        return views.refine(model, form.matrix(rows), scores=scores)

    def predict(rows: Rows) -> dict[str, Any]:
        found = refine(rows)
        return {"predictions": found["predictions"], "probabilities": found["refined"]}

    def score(rows: Rows, labels: list[Any]) -> dict[str, Any]:
        return {"label_energy": model.label_energy(form.matrix(rows), np.asarray(labels))}

    given = several(numbers(n_labels), form.most)
    scores: dict[str, Any] = {"scores": (given | None, None) if about["has_base"] else (given, ...)}
    beside = {} if about["has_base"] else {"scores": [[0.0] * n_labels]}
    predictions = array(LABEL, 2 if model.multilabel_ else 1)
    refined = {"base": array(NUMBER, 2), "refined": array(NUMBER, 2), "predictions": predictions}
    n_values = n_labels * (max(model.n_steps_, views.GATE_STEPS) + 3)
    found = {
        "refine": Operation(
            "Probabilities of the labels before and after refinement; `scores` are those of the base, if not its own.",
            form.body("ScoredRows", **scores),
            refine,
            answer(**refined),
            beside=beside,
        ),
        "explain": _explain(model, form, n_values, answer(steps=array(NUMBER, 3), **refined), beside, **scores),
    }
    if not about["has_base"]:  # nothing says what a row's labels are, but scores that come with it
        return found
    one = numbers(n_labels) if model.multilabel_ else Label
    return {
        "predict": _predict(predict, form, array(NUMBER, 2), names, predictions=predictions),
        "score": Operation(
            "How well the labels given with each row go with it; higher is better, and the lowest look wrong.",
            form.body("LabelledRows", labels=(several(one, form.most), ...)),
            score,
            answer(label_energy=array(NUMBER)),
            beside={"labels": [[0] * n_labels] if model.multilabel_ else names[:1]},
        ),
        **found,
    }


@operations.register
def _(model: LabelMLP, about: dict[str, Any], form: RowsOf) -> dict[str, Operation]:
    def predict(rows: Rows) -> dict[str, Any]:
        X = form.matrix(rows)
        return {"predictions": model.predict(X), "probabilities": model.predict_proba(X)}

    predictions = array(LABEL, 2 if model.multilabel_ else 1)
    names = about["labels"] or about["classes"]
    return {"predict": _predict(predict, form, array(NUMBER, 2), names, predictions=predictions)}


# --- what they share ---------------------------------------------------------------------------------------------


def _predict(
    compute: Callable[..., dict[str, Any]],
    form: RowsOf,
    probabilities_are: Schema,
    classes: list[Any],
    *,
    predictions: Schema | None = None,
    **fixed: Any,
) -> Operation:
    returns = answer(predictions=predictions or array(LABEL), probabilities=probabilities_are, classes=array(LABEL))
    about = "What the model says of each row, and the probabilities of `classes`, where it has any."
    return Operation(about, form.body("Rows"), compute, returns, fixed={"classes": classes, **fixed})


def _explain(
    model: Any, form: RowsOf, n_values: int, returns: Schema, beside: Mapping[str, Any] | None = None, **fields: Any
) -> Operation:
    def explain(rows: Rows, scores: Any = None) -> dict[str, Any]:
        return views.explain(model, form.matrix(rows), scores=scores)

    about = "Everything that the model says of each row: energies, probabilities, reconstructions, steps."
    body_ = form.body("FewRows", n_values, **fields)
    return Operation(about, body_, explain, returns, alone=True, beside=beside or {})


def _trajectory(model: Any, form: RowsOf, n_features: int, n_classes: int) -> Operation:
    def trajectory(row: Any, n_steps: int, of: int | None = None) -> dict[str, Any]:
        return views.trajectory(model, form.matrix([row])[0], n_steps=n_steps, of=of)

    most = max(1, min(MOST_STEPS, MOST_VALUES // n_features))
    number: Any = Annotated[Whole, Field(ge=0, le=n_classes - 1)] | None if n_classes else type(None)
    start = body(
        "Start",
        row=(form.kind, ...),
        n_steps=(Annotated[Whole, Field(ge=1, le=most)], min(50, most)),
        of=(number, None),
    )
    returns = answer(
        points=array(NUMBER, 2),
        energies=array(NUMBER),
        of={"type": ["integer", "null"]},
        converged={"type": "boolean"},
    )
    about = "Where the vector field takes a row: points, and the energy along the way; `of` is the number of a class."
    return Operation(about, start, trajectory, returns, alone=True)
