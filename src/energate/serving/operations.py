"""What a model says of rows, over HTTP: `predict`, `score`, `explain`, `trajectory` and so on, from its view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from energate.errors import InputError
from energate.serving.bodies import Bulk
from energate.serving.schemas import LABEL, NUMBER, Label, Level, Schema, Whole, answer, array, body, numbers, several
from energate.views import Command, View, trajectory

Matrix = Callable[[list[Any]], NDArray[np.float64]]
Carried = Callable[[list[Any]], dict[str, Any]]
MOST_VALUES = 1_000_000  # numbers in one answer of `explain` or `trajectory`: about 20 MB
MOST_STEPS = 1000


@dataclass(frozen=True)
class Operation:
    """Something that a model does with a request.

    ``compute`` takes the fields of ``body`` that are not None by name.  Unless it works ``alone`` these are lists with
    one entry for each row, requests are computed together, and its outputs are arrays with one entry for each row.
    ``fixed`` is what goes into every answer, ``beside`` what an example of a request has beside its row.  ``bulk``
    reads rows that do not come as JSON, at most ``most``.  ``carried`` gives what rows have beside the model's columns,
    which goes into the answer as it came.
    """

    about: str
    body: type[BaseModel]
    compute: Callable[..., dict[str, Any]]
    returns: Schema
    alone: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    bulk: Bulk = field(default_factory=dict)
    most: int = 0
    carried: Carried = field(default=lambda _: {})


@dataclass(frozen=True)
class RowsOf:
    """How rows come: the type of one, what makes numbers of them, how many may come at once, and how in bulk."""

    kind: Any
    matrix: Matrix
    most: int
    bulk: Bulk = field(default_factory=dict)
    carried: Carried = field(default=lambda _: {})

    def at_once(self, values_per_row: int = 0) -> int:
        """How many rows may come: fewer where the answer has many values for each."""
        return min(self.most, max(1, MOST_VALUES // values_per_row)) if values_per_row else self.most

    def body(self, name: str, values_per_row: int = 0, **fields: Any) -> type[BaseModel]:
        """A request with rows."""
        return body(name, rows=(several(self.kind, self.at_once(values_per_row)), ...), **fields)


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

    levels = {level.name: level.output for level in command.levels}

    def compute(rows: Any, **beside: Any) -> dict[str, Any]:
        given = {name: beside.pop(name) for name in levels if name in beside}
        said = command.answer(rows if isinstance(rows, np.ndarray) else form.matrix(rows), given, **beside)
        return {output.name: said[output.name] for output in command.outputs_with(given)}

    fields: dict[str, Any] = dict.fromkeys(levels, (Level | None, None))
    example: dict[str, Any] = {}
    more = {output.name: array(SCHEMAS[output.kind], 1 + len(output.axes)) for output in levels.values()}
    for each in command.beside:
        several_of = several(Label if each.width is None else numbers(each.width), form.most)
        fields[each.name] = (several_of, ...) if each.needed else (several_of | None, None)
        if each.needed:
            example[each.name] = [view.labels[0] if each.width is None else [0] * each.width]
    body_ = form.body(name.capitalize(), command.n_values, **fields)
    bulk = {} if any(each.needed for each in command.beside) else form.bulk
    returns = answer(**outputs)
    returns["properties"] = {**returns["properties"], **more}
    most = form.at_once(command.n_values)
    return Operation(command.about, body_, compute, returns, command.alone, fixed, example, bulk, most, form.carried)


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
