"""`export_onnx`: a fitted estimator as one ONNX graph, from the user's columns to calibrated outputs.

What is exported are the modules that the estimators use, not copies of their formulas; scaling, calibration, threshold
and refinement are in the graph with them.  Every file was compared with the estimator before it was written.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energate.errors import InputError
from energate.export._comparing import compare
from energate.export._graphs import graph_of
from energate.export._onnx import open_session, to_onnx
from energate.files import written_whole

__all__ = ["Exported", "export_onnx"]


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
    model : a fitted EnergyClassifier, EnergyScorer, EnergyRefiner, LabelMLP or PairScorer.
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
    graph = graph_of(model)
    content = to_onnx(graph, double, columns)
    difference, n_rows = compare(graph, open_session(content), double)
    with written_whole(target) as file:
        file.write(content)
    return Exported(target, len(content), dict(graph.inputs), list(graph.outputs), difference, n_rows)
