"""Questions about tables: cells that are missing, labels that look wrong, batches that have drifted."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energate.errors import InputError
from energate.estimators import EnergyClassifier
from energate.estimators.imputer import EnergyImputer
from energate.files import check_output, written_whole
from energate.questions.auditing import LabelErrors, label_errors
from energate.questions.drifting import Drift, drift
from energate.tables import CategoryColumn, CodedRows, Columns, NumberColumn, classes_of, learn_columns
from energate.tables.reading import Source, open_table
from energate.tables.values import keys_of
from energate.tables.writing import as_printed, check_kind, open_writer
from energate.views.applying import TableModel

MOST_ROWS = 10_000  # of a batch that is looked at for drift: more say nothing new


@dataclass(frozen=True)
class ImputedTable:
    """What `impute_table` wrote: how many rows, how many cells of each column were filled, and by what."""

    n_rows: int
    filled: dict[str, int]
    notes: list[str]
    imputer: EnergyImputer
    columns: Columns


def impute_table(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    part: str = "train",
    fit_on: str | os.PathLike[str] | None = None,
    known: tuple[EnergyImputer, Columns] | None = None,
    **options: Any,
) -> ImputedTable:
    """Write a table again with its missing cells filled by an `EnergyImputer`; cells that are there stay as they are.

    ``fit_on`` is another table to learn from, ``known`` an imputer that has learned already, with its columns;
    ``options`` are parameters of the imputer.  Columns that no model can take, such as ids, and dates and free text are
    carried along with their holes.
    """
    target = Path(output)
    check_kind(target)
    check_output(target, [path] if fit_on is None else [path, fit_on])
    source = open_table(path, part)
    table, notes = source.read(), list[str]()
    if known is None:
        others = source if fit_on is None else open_table(fit_on, part)
        learned = table if fit_on is None else others.read()
        columns, notes = learn_columns(learned, task="anomaly", coded=True, declared=others.nominal)
        known = EnergyImputer(**options).fit(CodedRows(columns.matrix(learned), columns)), columns
    imputer, columns = known
    X = columns.matrix(table)
    filled = imputer.transform(CodedRows(X, columns))
    new, counts = dict(table), dict[str, int]()
    for place, column in _single(columns):
        gone = np.flatnonzero(np.isnan(X[:, place]))
        if len(gone):
            counts[column.name] = len(gone)
            new[column.name] = _with(table[column.name], gone, _cells(column, filled[gone, place]))
    kind = target.suffix.lower()
    with written_whole(target) as file, open_writer(kind, file, source) as writer:
        writer.write({**new, **as_printed({name: new[name] for name in counts}, kind)})
    return ImputedTable(len(X), counts, notes, *known)


def _single(columns: Columns) -> Iterator[tuple[int, Any]]:
    """The columns that are one column of the matrix each, and where: a date is several numbers, and is not put back."""
    place = 0
    for column in columns.inputs:
        single = isinstance(column, NumberColumn | CategoryColumn)
        if single:
            yield place, column
        place += 1 if single else len(column.feature_names)


def _cells(column: Any, values: Any) -> list[Any]:
    if not isinstance(column, CategoryColumn):
        return values.tolist()
    words = dict(zip(keys_of(column.words).tolist(), column.words, strict=True))
    return [words[key] for key in values.tolist()]


def _with(values: Any, places: Any, cells: list[Any]) -> Any:
    """A column with other cells at some places: text where it was text, else numbers if all are."""
    found = np.array(values, dtype=object)
    text = any(isinstance(value, str) for value in found)
    found[places] = [f"{cell:.10g}" if text and not isinstance(cell, str) else cell for cell in cells]
    return found if text or any(isinstance(cell, str) for cell in cells) else found.astype(np.float64)


@dataclass(frozen=True)
class AuditedTable:
    """What `audit_table` found, the classes as the table has them, and what was left out of it."""

    errors: LabelErrors
    classes: Any
    notes: list[str]


def audit_table(
    path: str | os.PathLike[str],
    target: str,
    *,
    part: str = "train",
    units: str = "memory",
    cv: int = 5,
    device: str = "auto",
    random_state: int = 0,
) -> AuditedTable:
    """Rank the rows of a table by how wrong their class looks, by models that were fitted without them."""
    source = open_table(path, part)
    if target not in source.names:
        raise InputError(f"There is no column {target!r} to audit; there are {', '.join(source.names[:10])}.")
    table = source.read()
    columns, notes = learn_columns(table, targets=[target], coded=True, declared=source.nominal)
    y = classes_of(table, target)
    model = EnergyClassifier(units, device=device, random_state=random_state)
    rows = CodedRows(columns.matrix(table), columns)
    return AuditedTable(label_errors(model, rows, y, cv=cv, random_state=random_state), y, notes)


def drift_table(table: TableModel, path: Path, *, part: str = "test", alpha: float = 0.05) -> tuple[Drift, list[str]]:
    """What `drift` says of a table, and the names of its columns."""
    source: Source = open_table(path, part)
    columns: Columns = table.match(source)
    X = table.some_rows(path, part, MOST_ROWS, 0)
    return drift(table.view.model, X, alpha=alpha), list(columns.feature_names)
