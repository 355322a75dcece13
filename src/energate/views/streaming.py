"""`fit_stream`: a model of a table that is larger than memory, measured on rows that were held out.

The estimator itself takes the stream: here is what `fit_table` has beside that, a choice of task and a measurement.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from energate.errors import InputError
from energate.estimators import EnergyClassifier
from energate.estimators.edge import resolve_device
from energate.tables import CellError, classes_of
from energate.tables.reading import Batch
from energate.tables.streams import MEMORY, Sample, Stream, Wanted, open_tables
from energate.views.fitting import FittedTable, Order, measured, rows_with

MOST_TEST = 100_000


def fit_stream(
    data: str | Path | Sequence[str | Path] | Stream,
    target: str | None = None,
    *,
    task: str | None = None,
    targets: Sequence[str] = (),
    targets_prefix: str | None = None,
    memory: int | str = MEMORY,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    part: str = "train",
    test_fraction: float = 0.2,
    epochs: int | None = None,
    device: str = "auto",
    random_state: int = 0,
    **options: Any,
) -> FittedTable:
    """Fit a model to files that memory need not hold; as `energate.fit_table` for all else.

    Parameters
    ----------
    data : names and patterns (``"parts/*.parquet"``), or what `energate.tables.open` gave, whose targets, memory, hash
        and columns then count.
    task : ``"classify"``, ``"multilabel"`` or ``"anomaly"``.
    memory : bytes, or as ``"1GB"``: of all that the fit takes.  What fits into it is trained on as in `fit_table`.
    epochs : of each stage, over as many rows as memory holds; by default as many passes through all rows as in memory
        (of the energy of labels, 24 fillings of memory).
    options : of the task: ``units``, or for multilabel ``relation``, ``method`` and ``objective``.
    """
    began = time.monotonic()
    resolve_device(device)
    if isinstance(data, Stream):
        stream, target, targets = data, data.wanted.target, data.wanted.targets
    else:
        stream = open_tables(data, part=part, memory=memory, random_state=random_state)
    order = Order(target, targets, targets_prefix, task, options)
    if order.task == "images":
        raise InputError("Pictures are no table that can be streamed. Give their folder, without `memory`.")
    order.find_targets(stream.names, stream.groups)
    if not isinstance(data, Stream):
        others = (tuple(each) for each in (order.targets, drop, keep, categories))
        stream = stream.wanting(Wanted(order.target, *others))
    train, test = stream.split(test_fraction)
    held_out = test.sample(min(MOST_TEST, test.size)) if test_fraction else Sample(0)
    rows, y, notes = _held_out(held_out.rows(), order)  # what is wrong with the target is told before training
    model = order.trained.build(device, random_state, epochs, **options).fit(train)
    about, found = model.streamed_, dict[str, Any]()
    if rows:
        try:
            found = measured(model, model.columns_.matrix(rows), _like(y, model))
        except CellError as error:
            raise InputError(error.told("in a sample of the rows held out")) from error
    n_rows, seconds = about.n_rows + held_out.n_offered, time.monotonic() - began
    return FittedTable(model, model.columns_, [*about.notes, *notes], n_rows, about.n_rows, found, seconds)


def _held_out(rows: Batch, order: Order) -> tuple[Batch, Any, list[str]]:
    """The rows that have what is to be predicted, that, and notes on both."""
    if not rows:
        return rows, None, []
    rows, _, notes = rows_with(rows, order.wanted, ())
    try:
        if order.task == "classify":  # a sample of few rows may lack classes
            return rows, classes_of(rows, order.wanted[0], to_learn=False), notes
        y, said = order.read_target(rows)
    except CellError as error:
        raise InputError(error.told("in a sample of the rows held out")) from error
    return rows, y, [*notes, *said]


def _like(y: Any, model: Any) -> Any:
    """Classes as text where the model has them so: those of a sample may all be numbers."""
    is_text = isinstance(model, EnergyClassifier) and model.classes_.dtype.kind == "U"
    return y.astype(np.str_) if is_text else y
