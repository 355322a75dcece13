"""An exported graph against its estimator, on rows drawn around the scale of training."""

from typing import Any

import numpy as np

from energate.errors import InputError
from energate.estimators import EnergyRefiner
from energate.estimators.edge import Array
from energate.export._graphs import Graph
from energate.views.checking import draw_rows

BATCHES = (1, 7, 64)
#: the largest difference that is taken for rounding
TOLERANCE = {"single": 2e-3, "double": 1e-8}
PROBABILITIES = ("probabilities", "base")


def compare(graph: Graph, session: Any, double: bool) -> tuple[float, int]:
    """The largest difference between outputs, and the rows compared; an `InputError` where it is not rounding."""
    # Refiners compute in float32 themselves.
    exact = double and not isinstance(graph.estimator, EnergyRefiner)
    tolerance = TOLERANCE["double" if exact else "single"]
    largest = 0.0
    for seed, n_rows in enumerate(BATCHES):
        inputs = {name: rows.astype(np.float64 if double else np.float32) for name, rows in _draw(graph, n_rows, seed)}
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


def _draw(graph: Graph, n_rows: int, seed: int) -> list[tuple[str, Array]]:
    model = graph.estimator
    drawn = draw_rows(model, n_rows, seed)
    if "scores" in graph.inputs:
        wanted = np.random.RandomState(seed).normal(scale=3, size=(n_rows, graph.inputs["scores"]))
        drawn["scores"] = (wanted - model.offset_) / np.where(np.abs(model.slope_) > 1e-3, model.slope_, 1.0)
    return [(name, drawn[name]) for name in graph.inputs]


def _difference(graph: Graph, found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> float:
    largest, ties = 0.0, graph.ties(expected)
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
        difference = np.abs(a - b) / (1.0 if name in PROBABILITIES else 1 + np.abs(b))
        worst = float(np.nan_to_num(difference, nan=np.inf).max())
        if not worst <= tolerance:
            raise InputError(
                f"The exported `{name}` differs from the model's by {worst:.1e}, more than {tolerance:.0e}, which "
                "rounding explains. Nothing was written. Export in float64 (--double), or scale the columns first."
            )
        largest = max(largest, worst)
    return largest
