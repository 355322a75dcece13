"""`export_onnx`: a fitted estimator as one ONNX graph, from the user's columns to calibrated outputs.

What is exported are the modules that the estimators use, not copies of their formulas; scaling, calibration, threshold
and refinement are in the graph with them.  Every file was compared with the estimator before it was written.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energate.errors import InputError
from energate.export._onnx import open_session, to_onnx
from energate.files import check_output, written_whole
from energate.views import describe, view_of
from energate.views.graphs import Graph
from energate.views.view import View

__all__ = ["Exported", "export_onnx"]

BATCHES = (1, 7, 64)
#: the largest difference that is taken for rounding
TOLERANCE = {"single": 2e-3, "double": 1e-8}
PROBABILITIES = ("probabilities", "base")


@dataclass(frozen=True)
class Exported:
    """What `export_onnx` wrote.

    ``difference`` is the largest between the file's outputs and the model's, over all rows that were compared: of
    probabilities as it is, of other numbers divided by 1 plus their size.
    """

    path: Path
    n_bytes: int
    inputs: dict[str, int]  # name -> columns
    outputs: list[str]
    difference: float
    n_rows: int


def export_onnx(model: Any, path: str | os.PathLike[str], *, double: bool = False, columns: Any = None) -> Exported:
    """Write a fitted estimator to an ONNX file whose graph takes any number of rows.

    Parameters
    ----------
    model : a fitted estimator of energate.
    path : the file; it takes its name only when it is complete and was compared with the model by onnxruntime, on
        batches of 1, 7 and 64 rows.
    double : float64 in the graph, which else is float32.
    columns : the `energate.tables.Columns` of the model, if it has them; they are noted in the file.

    The graph takes ``X`` as the model does (for a refiner over a base that is not a `LabelMLP`, also the base's
    ``scores``).  Names of classes and columns are in the metadata of the file.  Needs the extra ``onnx``.
    """
    target = Path(path)
    if target.suffix.lower() != ".onnx":
        raise InputError(f"An ONNX file must end in .onnx; got {target.name!r}.")
    check_output(target)
    view = view_of(model)
    graph = view.graph()
    content = to_onnx(graph, describe(model), double, columns)
    difference, n_rows = compare(view, graph, open_session(content), double)
    with written_whole(target) as file:
        file.write(content)
    return Exported(target, len(content), dict(graph.inputs), list(graph.outputs), difference, n_rows)


def compare(view: View, graph: Graph, session: Any, double: bool) -> tuple[float, int]:
    """The largest difference between outputs, and the rows compared; an `InputError` where it is not rounding."""
    tolerance = TOLERANCE["double" if double and not view.single else "single"]
    largest = 0.0
    for seed, n_rows in enumerate(BATCHES):
        drawn = view.draw(n_rows, seed)
        inputs = {name: drawn[name].astype(np.float64 if double else np.float32) for name in graph.inputs}
        try:
            found = dict(zip(graph.outputs, session.run(list(graph.outputs), inputs), strict=True))
        except Exception as error:  # onnxruntime's errors have no common class
            raise InputError(
                f"onnxruntime cannot run the exported graph on {n_rows} rows: {str(error).splitlines()[0][:300]} "
                "Nothing was written."
            ) from error
        expected = graph.reference(*(rows.astype(np.float64) for rows in inputs.values()))
        largest = max(largest, _difference(graph, found, expected, tolerance))
    return largest, sum(BATCHES)


def _difference(graph: Graph, found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> float:
    largest, ties = 0.0, graph.ties(expected)
    slack = {} if graph.slack is None else graph.slack(expected, tolerance)
    for name in graph.outputs:
        a, b = np.asarray(found[name]), np.asarray(expected[name])
        if a.shape != b.shape:
            raise InputError(f"The exported `{name}` has shape {a.shape}, the model's {b.shape}. Nothing was written.")
        if b.dtype.kind != "f":  # a label: it may be another only where two are as good
            close = ties[name] <= tolerance if name in ties else np.zeros(b.shape, dtype=bool)
            wrong = (a != b) & ~close
            if wrong.mean() > (0.0 if name in ties else 0.05):
                raise InputError(
                    f"The exported `{name}` is another than the model's in {int(wrong.sum())} of {wrong.size} values. "
                    "Nothing was written."
                )
            continue
        apart = np.maximum(np.abs(a - b) - slack.get(name, 0.0), 0)
        difference = apart / (1.0 if name in PROBABILITIES else 1 + np.abs(b))
        worst = float(np.nan_to_num(difference, nan=np.inf).max())
        if not worst <= tolerance:
            raise InputError(
                f"The exported `{name}` differs from the model's by {worst:.1e}, more than {tolerance:.0e}, which "
                "rounding explains. Nothing was written. Export in float64 (--double), or scale the columns first."
            )
        largest = max(largest, worst)
    return largest
