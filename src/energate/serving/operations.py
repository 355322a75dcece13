"""What a model says of rows, over HTTP: `predict`, `score`, `refine`, `explain` and `trajectory`, from its view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from energate.errors import InputError
from energate.serving.schemas import LABEL, NUMBER, Label, Schema, Whole, answer, array, body, numbers, several
from energate.views import Command, View, trajectory

Matrix = Callable[[list[Any]], NDArray[np.float64]]
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


SCHEMAS: dict[str, Schema] = {"number": NUMBER, "label": LABEL, "flag": {"type": "boolean"}}


def operations(view: View, about: dict[str, Any], form: RowsOf) -> dict[str, Operation]:
    """The operations that a server offers of a model, by name; ``about`` is what `energate.views.describe` says."""
    found = {name: _operation(name, command, view, about, form) for name, command in view.commands().items()}
    if view.moves:
        found["trajectory"] = _trajectory(view, form)
    if not found:
        raise InputError(f"A {about['estimator']} cannot be served: it says nothing of single rows.")
    return found


def _operation(name: str, command: Command, view: View, about: dict[str, Any], form: RowsOf) -> Operation:
    """A command of a model over HTTP; the answer of `predict` also names the classes."""
    outputs = {output.name: array(SCHEMAS[output.kind], 1 + len(output.axes)) for output in command.outputs}
    fixed: dict[str, Any] = {}
    if name == "predict":
        fixed["classes"] = about["labels"] or about["classes"] or [-1, 1]  # what is normal is 1
        outputs["classes"] = array(LABEL)
        if "probabilities" not in outputs:
            fixed["probabilities"], outputs["probabilities"] = None, {"type": "null"}

    def compute(rows: list[Any], **beside: Any) -> dict[str, Any]:
        said = command.compute(form.matrix(rows), **beside)
        return {output.name: said[output.name] for output in command.outputs}

    fields, example = {}, {}
    for each in command.beside:
        several_of = several(Label if each.width is None else numbers(each.width), form.most)
        fields[each.name] = (several_of, ...) if each.needed else (several_of | None, None)
        if each.needed:
            example[each.name] = [view.labels[0] if each.width is None else [0] * each.width]
    body_ = form.body(name.capitalize(), command.n_values, **fields)
    return Operation(command.about, body_, compute, answer(**outputs), command.alone, fixed, example)


def _trajectory(view: View, form: RowsOf) -> Operation:
    def compute(row: Any, n_steps: int, of: int | None = None) -> dict[str, Any]:
        return trajectory(view.named, form.matrix([row])[0], n_steps=n_steps, of=of)

    n_classes = len(view.labels)
    most = max(1, min(MOST_STEPS, MOST_VALUES // view.n_seen))
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
    return Operation(about, start, compute, returns, alone=True)
