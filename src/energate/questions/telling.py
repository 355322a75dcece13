"""One row's answers as plain JSON: which columns did it, and what would change the answer."""

from typing import Any

import numpy as np

from energate.errors import InputError, require
from energate.estimators.edge import Array
from energate.questions.attribution import attribute
from energate.questions.changing import counterfactual
from energate.tables.values import keys_of
from energate.views import View, view_of


def reasons(model: Any, x: Array, names: list[str], top: int = 5, target: Any = None) -> dict[str, Any]:
    """The ``top`` columns of a row x (d,), as `View.rows` gives it, by what they add to its energy."""
    view = view_of(model)
    found = attribute(view.model, x[None], target=target)
    order = np.argsort(-np.abs(found.parts[0]), kind="stable")[:top].tolist()
    columns = [{"column": names[i], "value": _cell(view, i, x[i]), "adds": float(found.parts[0, i])} for i in order]
    return {"total": float(found.total[0]), "columns": columns}


def important(names: list[str], counts: Array, top: int) -> list[dict[str, Any]]:
    """The ``top`` columns by how much they count (`importance`), and the share of each."""
    order = np.argsort(-counts, kind="stable")[:top].tolist()
    total = float(counts.sum()) or 1.0
    return [{"column": names[i], "importance": float(counts[i]), "share": float(counts[i]) / total} for i in order]


def draw_important(columns: list[dict[str, Any]], title: str) -> Any:
    """A bar for each of the columns that `important` names, as a figure of matplotlib."""
    height = 1.2 + 0.28 * len(columns)
    figure = require("matplotlib.figure", "plot").Figure(figsize=(6.5, height), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.barh([each["column"] for each in columns], [each["importance"] for each in columns], color="#3355cc")
    axes.invert_yaxis()
    axes.set(title=title, xlabel="mean size of what the column adds to the energy")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def changes(model: Any, x: Array, names: list[str], to: Any = None) -> dict[str, Any]:
    """What a row x (d,) would have to be to be normal, or of class ``to``, by its name; the second-best if None."""
    view = view_of(model)
    filled = view.model.complete(x[None]) if np.isnan(x).any() else x[None]
    target = _wanted(view, filled, to)
    found = counterfactual(view.model, filled, target=target)
    places = np.flatnonzero(found.changed[0]).tolist()
    columns = [
        {"column": names[i], "from": _cell(view, i, x[i]), "to": _cell(view, i, found.rows[0, i])} for i in places
    ]
    return {"to": "normal" if target is None else str(target), "found": bool(found.found[0]), "columns": columns}


def _wanted(view: View, X: Array, to: Any) -> Any:
    labels = list(view.labels)
    if not labels:
        if to is not None:
            raise InputError(f"The model has no classes: a row can only become normal; got {to!r}. Leave it out.")
        return None
    if to is None:
        return labels[int(np.argsort(-view.commands()["predict"].compute(X)["probabilities"][0])[1])]
    named = {str(label): label for label in labels}
    if str(to) not in named:
        raise InputError(f"The class must be one of {', '.join(named)}; got {to!r}.")
    return named[str(to)]


def _cell(view: View, place: int, value: float) -> str:
    """A cell as the user has it."""
    words = None if view.cells is None else view.cells.categories.get(place)
    if np.isnan(value):
        return "(missing)"
    if words is None:
        return f"{value:.4g}"
    return dict(zip(keys_of(words).tolist(), words, strict=True)).get(float(value), "(another)")
