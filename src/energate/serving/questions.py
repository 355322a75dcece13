"""Questions that an energy answers, over HTTP: why, what belongs in empty cells, what would change it, has it moved."""

from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from energate.estimators.edge import Array
from energate.estimators.liking import HeldOutMixin
from energate.questions import attribute, counterfactual, drift
from energate.serving.operations import Operation, RowsOf
from energate.serving.schemas import NUMBER, Label, Level, Schema, Whole, answer, array, body, several
from energate.tables import CategoryColumn, Columns
from energate.tables.values import keys_of
from energate.views import View

MOST_ROWS = 100  # that are told apart by columns in one request: each is many passes
MOST_CHANGED = 50  # columns of a row that is changed: a search over all of them is long
CELL: Schema = {"type": ["string", "number", "null"]}


@runtime_checkable
class Completes(Protocol):
    """A model that fills empty cells."""

    def complete(self, X: Any) -> Array:
        """Rows without holes."""


def questions(view: View, columns: Columns | None, form: RowsOf, example: Any) -> dict[str, Operation]:
    """What may be asked of a model with energies of rows of a table, by name; nothing of other models.

    ``example`` is a row to show.
    """
    if not isinstance(view.named, HeldOutMixin) or view.shape is not None or not len(view.named.held_out_):
        return {}
    found = {"attribute": _attribute(view, form), "drift": _drift(view, form, example)}
    cells = _Cells(columns)
    if cells.readable and view.n_features <= MOST_CHANGED:
        found["counterfactual"] = _counterfactual(view, form, cells)
    if view.cells is not None and isinstance(view.model, Completes):
        found["complete"] = _complete(view, form, cells)
    return found


class _Cells:
    """Rows of numbers as the cells of a table that a user knows."""

    def __init__(self, columns: Columns | None) -> None:
        self.coded = columns is not None and columns.coded
        inputs = () if columns is None else columns.inputs
        self.words = {
            place: dict(zip(keys_of(column.words).tolist(), column.words, strict=True))
            for place, column in enumerate(inputs)
            if isinstance(column, CategoryColumn)
        }
        #: whether every number of a row is a cell: no category is a column of 0 and 1
        self.readable = self.coded or not self.words

    def row(self, x: Array) -> list[Any]:
        """The cells of a row (d,); None where there is nothing."""
        return [
            None if np.isnan(value) else self.words[place].get(value, value) if place in self.words else value
            for place, value in enumerate(x.tolist())
        ]


def _attribute(view: View, form: RowsOf) -> Operation:
    def compute(rows: list[Any], target: Any = None, against: Any = None) -> dict[str, Any]:
        asked = target if against is None else (target, against)
        found = attribute(view.model, form.matrix(rows), target=asked)
        return {"parts": found.parts, "total": found.total, "error": found.error}

    classes = {"target": (Label | None, None), "against": (Label | None, None)} if view.labels else {}
    request = body("Attribute", rows=(several(form.kind, MOST_ROWS), ...), **classes)
    about = (
        "What each column adds to the energy of a row, above that of the middle of all columns: parts that add up to "
        "the total. Of class `target`, or of it against another, if they are named."
    )
    gives = answer(parts=array(NUMBER, 2), total=array(NUMBER), error=array(NUMBER))
    return Operation(about, request, compute, gives, alone=True)


def _complete(view: View, form: RowsOf, cells: _Cells) -> Operation:
    def compute(rows: list[Any]) -> dict[str, Any]:
        assert isinstance(view.model, Completes)
        return {"rows": [cells.row(x) for x in view.model.complete(form.matrix(rows))]}

    request = body("Complete", rows=(several(form.kind, form.most), ...))
    about = "The rows with their empty cells filled by the energy, given the other cells; those stay as they are."
    return Operation(about, request, compute, answer(rows=array(CELL, 2)), alone=True)


def _counterfactual(view: View, form: RowsOf, cells: _Cells) -> Operation:
    def compute(row: Any, target: Any = None, max_columns: int | None = None) -> dict[str, Any]:
        X = form.matrix([row])
        if np.isnan(X).any() and isinstance(view.model, Completes):
            X = view.model.complete(X)  # a change of a cell that is empty would say nothing
        found = counterfactual(view.model, X, target=target, max_columns=max_columns)
        said = {"found": bool(found.found[0]), "distance": float(found.distance[0])}
        return {**said, "row": cells.row(found.rows[0]), "from": cells.row(X[0]), "changed": found.changed[0]}

    most = (Annotated[Whole, Field(ge=1, le=view.n_features)] | None, None)
    classes = {"target": (Label, ...)} if view.labels else {}
    request = body("Change", row=(form.kind, ...), max_columns=most, **classes)
    about = "The nearest row, in few columns, that the model predicts as class `target`, or as normal."
    flags = {"found": {"type": "boolean"}, "changed": array({"type": "boolean"})}
    gives = answer(**flags, distance=NUMBER, row=array(CELL), **{"from": array(CELL)})
    beside = {"target": view.labels[0]} if view.labels else {}
    return Operation(about, request, compute, gives, alone=True, beside=beside)


def _drift(view: View, form: RowsOf, example: Any) -> Operation:
    def compute(rows: list[Any], alpha: Any = 0.05) -> dict[str, Any]:
        found = drift(view.model, form.matrix(rows), alpha=float(np.ravel(alpha)[0]))
        said = {"statistic": found.statistic, "p_value": found.p_value, "drifted": bool(found.drifted)}
        return {**said, "columns": found.columns, "moved": found.moved, "held_out": found.n_held_out}

    request = body("Batch", rows=(several(form.kind, form.most), ...), alpha=(Level | None, None))
    about = (
        "Whether rows come from elsewhere than those that were held out, and the columns that moved the energy most."
    )
    gives = answer(
        statistic=NUMBER,
        p_value=NUMBER,
        drifted={"type": "boolean"},
        columns=array({"type": "integer"}),
        moved=array(NUMBER),
        held_out={"type": "integer"},
    )
    return Operation(about, request, compute, gives, alone=True, beside={"rows": [example, example]})
