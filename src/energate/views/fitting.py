"""`fit_table`: a model of a table, measured on rows that were held out."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from energate.conformal import check_level
from energate.errors import InputError
from energate.estimators.edge import Array, log_softmax, resolve_device
from energate.estimators.liking import HeldOutMixin, PairedMixin
from energate.measures import of_anomalies, of_classes, of_labels, wilson
from energate.tables import (
    CellError,
    CodedRows,
    Columns,
    classes_of,
    labels_of,
    learn_columns,
    pictures_of,
)
from energate.tables.pictures import CLASS, FILE, Pictures
from energate.tables.reading import Batch, Source, n_rows, open_table
from energate.tables.values import counted, listed, words
from energate.training.ranks import is_first
from energate.views.baselines import baselines_of
from energate.views.meaning import Meaning, measurable, measure_meaning
from energate.views.view import KINDS, tasks, view_of

MOST_EXAMPLES, MOST_PIXELS = 20, 60_000  # that are kept of pictures with the columns


@dataclass(frozen=True)
class FittedTable:
    """What `fit_table` made: ``held_out`` is what was measured on ``n_rows - n_train`` rows, errors in percent."""

    model: Any
    columns: Columns
    notes: list[str]  # what was guessed and left out, and why
    n_rows: int
    n_train: int
    held_out: dict[str, Any]
    seconds: float
    meaning: Meaning | None = None  # of explanations of the rows held out, where there are enough


def fit_table(
    path: str | os.PathLike[str] | Source,
    target: str | None = None,
    *,
    task: str | None = None,
    estimator: Any = None,
    targets: Sequence[str] = (),
    targets_prefix: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    missing: Sequence[str] = (),
    index: Sequence[str] = (),
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    image: tuple[int, int] | None = None,
    colour: bool | None = None,
    on_error: str = "fail",
    part: str = "train",
    test_fraction: float = 0.2,
    calibration: float = 0.0,
    refit: bool = False,
    cv: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    random_state: int = 0,
    fit: Callable[[Any, Any, Any], Any] | None = None,
    **options: Any,
) -> FittedTable:
    """Read a table, hold rows out, train on the others, and measure on those held out.

    Parameters
    ----------
    path : a .csv, .tsv, .jsonl, .parquet, .npz or .arff file, text also with .gz; "-" for standard input; or what
        `energate.tables.open_table` gave; or a folder of pictures, those of each class in a folder.
    target : the column with the classes; of an anomaly score, a column of two values to measure with.
    task : ``"classify"``, ``"multilabel"``, ``"anomaly"`` or ``"images"``; if left out, images for a folder, multilabel
        if there are ``targets``, else classify.
    estimator : what to fit, in place of the estimator of the task; ``epochs`` and ``options`` are then its own affair.
    targets, targets_prefix : columns of 0 and 1, the labels; by their names, or by what their names begin with.
    drop, keep, categories : columns to leave out, to take though they look like ids, and to take as categories.
    missing : words, or numbers, that mean a missing cell, beside those that always do.
    index : columns that number the rows; they are left out, as is a first column without a name.
    delimiter, encoding, decimal : how a text file is written; guessed if left out, and ``notes`` then say so.
    image : height and width, where rows are images; pictures of a folder are brought to this size.
    colour : whether the pictures of a folder are taken in colours; if left out, where they have any.
    on_error : of a file that is no picture: ``"fail"``, or ``"skip"`` to go on without it.
    part : of an NPZ file with several: train, valid or test.
    test_fraction : the share of rows held out; 0 measures nothing.
    calibration : the share of rows kept apart from those that train, choose epochs and measure, for `conformalize`:
        p-values and prediction sets then have their guarantee.  Of an anomaly score with a target, the normal ones.
    refit : when measured, train the model to keep on all rows, but those of ``calibration``.
    cv : measure on so many folds, each held out once, in place of ``test_fraction``, and keep a model of all rows.
    fit : how to fit: from an unfitted estimator, rows and answers to a fitted one; by default ``estimator.fit``.
    epochs : of each stage of training.
    options : of the task: ``units``, or for multilabel ``relation``, ``method`` and ``objective``.

    Where torch.distributed is initialised, its processes train together, and the first measures.

    The model takes the rows that ``columns`` make of a table; save both: ``save(model, path, columns=columns)``.  One
    that takes missing cells and categories as they are gets them so, unless rows are images.
    """
    began = time.monotonic()
    resolve_device(device)  # refused before the table is read
    if task is None and not isinstance(path, Source) and Path(path).is_dir():
        task = "images"
    order = Order(target, targets, targets_prefix, task, options)
    if estimator is not None and (options or epochs is not None):
        raise InputError("`epochs` and options of a task are not for an `estimator` of your own: set its parameters.")
    kind = KINDS.get(type(estimator)) if estimator is not None else order.view
    source = open_table(path, part, delimiter=delimiter, encoding=encoding, pictures=Pictures(image, colour, on_error))
    order.find_targets(source.names, source.groups)
    table, there, without = rows_with(source.read(), order.wanted, missing)
    shape = image if pictures_of(table) is None else None  # pictures know their own
    coded = kind is not None and kind.takes_cells and image is None and pictures_of(table) is None

    def learned(rows: NDArray[np.int64] | None) -> tuple[Columns, list[str]]:
        return learn_columns(
            table,
            task=order.learned,
            targets=order.targets or ([order.target] if order.target else []),
            labels=order.targets or None,
            drop=[*drop, *index, *(name for name in source.index if name not in keep)],
            keep=keep,
            categories=categories,
            image=shape,
            rows=rows,
            coded=coded,
            declared=source.nominal if coded else (),
            missing=missing,
            decimal=decimal or source.decimal,
        )

    def trained(columns: Columns, X: Array, y: Any) -> Any:
        made = order.trained.build(device, random_state, epochs, **options) if estimator is None else clone(estimator)
        return _trained(made, _rows(columns, X, coded, order.task), y, order.task, fit)

    def measured_on(
        train: NDArray[np.int64], test: NDArray[np.int64]
    ) -> tuple[Any, Columns, list[str], dict[str, Any]]:
        """A model of some rows, its columns with notes on them, and what others say of it."""
        try:
            columns, notes = learned(train)
            X = columns.matrix(table)
        except CellError as error:
            raise source.told(error, int(there[error.row]) - error.row) from error
        model = trained(columns, X[train], None if y is None else y[train])
        if not len(test) or not is_first():  # of several processes that train together one measures
            return model, columns, notes, {}
        found = measured(model, X[test], None if y is None else y[test])
        if y is not None and (baselines := baselines_of(view_of(model), (X[train], y[train]), (X[test], y[test]))):
            found["baselines"] = baselines
        return model, columns, notes, found

    try:
        y, said = order.read_target(table)
    except CellError as error:
        raise source.told(error, int(there[error.row]) - error.row) from error
    n_all = n_rows(table)
    rest, apart = _kept_apart(n_all, y, order.learned, calibration, random_state)
    splits = _splits(rest, y[rest] if order.learned == "classify" else None, test_fraction, cv, random_state)
    found = [measured_on(*split) for split in splits]
    model, columns, notes, held_out = found[0]
    test = splits[0][1]
    clear = is_first() and measurable(view_of(model), len(test))
    meaning = measure_meaning(model, columns.matrix(table)[test]) if clear else None
    held_out = held_out if cv is None or not is_first() else pooled([each[3] for each in found])
    whole = bool(len(test)) and (refit or cv is not None)
    if whole:
        columns, _ = learned(rest)
        model = trained(columns, columns.matrix(table)[rest], None if y is None else y[rest])
    if len(apart):
        said = [*said, _conformalize(model, CodedRows(columns.matrix(table)[apart], columns), y, apart, coded)]
    columns = with_examples(columns, table, y, *splits[0])
    notes = [*source.told_notes(), *without, *said, *notes]
    return FittedTable(
        model, columns, notes, n_all, len(rest if whole else splits[0][0]), held_out, time.monotonic() - began, meaning
    )


def rows_with(
    table: dict[str, Any], targets: Sequence[str], missing: Sequence[str]
) -> tuple[dict[str, Any], NDArray[np.int64], list[str]]:
    """The rows of a table that have what is to be predicted, their numbers, and a note on the others."""
    present = np.ones(n_rows(table), dtype=bool)
    for target in targets:
        codes, different = words(table[target], missing)
        present &= np.array([text is not None for text in different], dtype=bool)[codes]
    there, n_absent = np.flatnonzero(present), int((~present).sum())
    if not n_absent:
        return table, there, []
    if not len(there):
        raise InputError(f"No row has a value of {listed(targets)}, which is to be predicted.")
    note = f"{counted(n_absent, 'row')} without a value of {listed(targets)} left out."
    found = {name: each[there] if isinstance(each, np.ndarray) else each.take(there) for name, each in table.items()}
    return found, there, [note]


def _rows(columns: Columns, X: Array, coded: bool, task: str) -> Any:
    """Rows (n, d) as an estimator is fitted on them: with their columns, or as pictures, or as they are."""
    if coded:
        return CodedRows(X, columns)
    return X if columns.image is None or task != "images" else X.reshape(-1, *columns.image)


def _trained(model: Any, rows: Any, y: Any, task: str, fit: Callable[[Any, Any, Any], Any] | None) -> Any:
    n_all = len(rows.matrix) if isinstance(rows, CodedRows) else len(rows)
    if n_all < 2:
        raise InputError(f"A model needs at least 2 rows to be trained on; there is {n_all}.")
    if fit is not None:
        return fit(model, rows, y)
    return model.fit(rows) if task == "anomaly" else model.fit(rows, y)


def with_examples(columns: Columns, table: Batch, y: Any, train: Any, test: Any) -> Columns:
    """Columns of pictures with the range of their pixels and some of the rows held out, if it can be of every class."""
    if columns.image is None:
        return columns
    X = columns.matrix(table)
    most = max(1, min(MOST_EXAMPLES, MOST_PIXELS // X.shape[1]))
    groups = [test if len(test) else train]
    if y is not None and y.ndim == 1:
        groups = [groups[0][y[groups[0]] == each] for each in np.unique(y)[:most]]
    of_each = max(1, most // len(groups))
    rows = X[np.concatenate([group[:of_each] for group in groups])]
    limits = float(X[train].min()), float(X[train].max())
    return replace(columns, range=limits, examples=tuple(tuple(row) for row in rows.tolist()))


class Order:
    """Which columns are to be predicted, for which task."""

    def __init__(
        self, target: str | None, targets: Sequence[str], prefix: str | None, task: str | None, options: dict[str, Any]
    ) -> None:
        several = bool(targets or prefix)
        self.task = task or ("multilabel" if several else "classify")
        self.target, self.targets, self.prefix = target, list(targets), prefix
        known = tasks()
        if self.task not in known:
            raise InputError(f"`task` must be one of {', '.join(known)}; got {self.task!r}.")
        self.view = known[self.task]
        trained = self.view.trained
        assert trained is not None  # `tasks` has no other views
        self.trained = trained
        wrong = [name for name in options if name not in self.trained.options]
        if wrong:
            right = ", ".join(f"`{name}`" for name in self.trained.options)
            raise InputError(f"`{wrong[0]}` is not for the task {self.task}, which has {right}. Leave it out.")
        if several and (self.task != "multilabel" or target):
            raise InputError(
                "`targets` and `targets_prefix` are for the task multilabel, without `target`. Choose one."
            )
        if self.task == "multilabel" and target:
            raise InputError("Several labels need their columns: `targets` a,b,c or `targets_prefix` label_.")

    @property
    def learned(self) -> str:
        """What the model does, whatever it does it with."""
        return "classify" if self.task == "images" else self.task

    @property
    def wanted(self) -> list[str]:
        """The columns to be predicted."""
        return [*self.targets, *([self.target] if self.target else [])]

    def find_targets(self, names: list[str], groups: dict[str, list[str]]) -> None:
        """Settle which columns are meant; a wrong name is told before the file is read."""
        if self.task == "images" and self.target is None:
            self.target = next((name for name in (CLASS, "y", "label", "labels") if name in names), None)
        self.targets = [column for name in self.targets for column in groups.get(name, [name])]
        if self.prefix is not None:
            found = [name for name in names if name.startswith(self.prefix)]
            if not found:
                raise InputError(f"No column begins with {self.prefix!r}; there are {listed(names)}.")
            self.targets = [*self.targets, *(name for name in found if name not in self.targets)]
        if self.task == "multilabel" and not self.targets:
            whole = [name for name in groups if name != "X"]  # arrays of an NPZ file
            or_whole = f"; or the columns of an array: `targets` {whole[0]}" if whole else ""
            raise InputError(
                f"Several labels need their columns: `targets` a,b,c or `targets_prefix` label_{or_whole}. "
                f"There are {listed(names)}."
            )
        if self.learned == "classify" and self.target is None:
            if CLASS not in names and FILE in names:
                raise InputError("The pictures of each class must be in a folder of its own; they are all in one.")
            raise InputError(f"Say which column holds the classes: `target` NAME. There are {listed(names)}.")
        absent = [name for name in self.wanted if name not in names]
        if absent:
            raise InputError(f"There is no column {listed(absent)} to be the target; there are {listed(names)}.")

    def read_target(self, table: dict[str, Any]) -> tuple[Any, list[str]]:
        """What is to be predicted, or what an anomaly score is compared with; None if there is nothing; and a note."""
        if self.task == "multilabel":
            return labels_of(table, self.targets), []
        if self.target is None:
            return None, []
        y = classes_of(table, self.target)
        if self.learned == "classify":
            return y, []
        values, counts = np.unique(y, return_counts=True)
        if len(values) > 2:
            raise InputError(f"The target of an anomaly score must have 2 values; {self.target!r} has {len(values)}.")
        rare = values[counts.argmin()]
        note = f"rows with {self.target} {rare} are the rarer ones, and count as anomalies."
        return (y == rare).astype(np.int64), [note]


def hold_out(n_all: int, classes: Any, test_fraction: float, seed: int) -> tuple[Any, Any]:
    """Rows to train on, and rows held out: that share of each class, and never all rows of one."""
    random = np.random.default_rng(seed)
    groups = [np.arange(n_all)] if classes is None else [np.flatnonzero(classes == each) for each in np.unique(classes)]
    held = [random.permutation(group)[: min(len(group) - 1, round(test_fraction * len(group)))] for group in groups]
    test = np.sort(np.concatenate(held))
    if test_fraction and not len(test):
        raise InputError(
            f"{n_all} rows are too few to hold {100 * test_fraction:g} % of them out. Give more rows, or a "
            "`test_fraction` of 0 to go without a measurement."
        )
    return np.setdiff1d(np.arange(n_all), test), test


def _kept_apart(n_all: int, y: Any, task: str, share: float, seed: int) -> tuple[Any, Any]:
    """Rows to fit and to measure on, and rows for calibration, ``share`` of each class; of anomalies none calibrate."""
    rows = np.arange(n_all)
    if not share:
        return rows, rows[:0]
    check_level("calibration", share)
    rest, apart = hold_out(n_all, y if task == "classify" else None, share, seed + 1)
    return rest, apart[y[apart] == 0] if task == "anomaly" and y is not None else apart


def _splits(rows: Any, classes: Any, test_fraction: float, cv: int | None, seed: int) -> list[tuple[Any, Any]]:
    """Rows to train on and rows to measure on: once, or for each of so many folds."""
    once = cv is None
    found = [hold_out(len(rows), classes, test_fraction, seed)] if once else folds_of(len(rows), classes, cv or 0, seed)
    return [(rows[train], rows[test]) for train, test in found]


def _conformalize(model: Any, rows: CodedRows, y: Any, apart: Any, coded: bool) -> str:
    """Give a model the rows kept apart; and a note that says so."""
    if not isinstance(model, HeldOutMixin | PairedMixin):
        raise InputError(f"`calibration` is for models with energies; a {type(model).__name__} has none.")
    model.conformalize(rows if coded else rows.matrix, None if y is None else y[apart])
    return f"{len(apart):,} rows were kept apart for calibration."


def folds_of(n_all: int, classes: Any, n_folds: int, seed: int) -> list[tuple[Any, Any]]:
    """Rows to train on, and rows held out, for each of so many folds; each has its share of every class."""
    most = n_all if classes is None else int(np.unique(classes, return_counts=True)[1].min())
    if not 2 <= n_folds <= most:
        raise InputError(f"`cv` must be from 2 to {most}, the rows of the rarest class; got {n_folds}.")
    if classes is None:
        return list(KFold(n_folds, shuffle=True, random_state=seed).split(np.arange(n_all)))
    return list(StratifiedKFold(n_folds, shuffle=True, random_state=seed).split(np.arange(n_all), classes))


def pooled(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What `measured` says of folds, as of all their rows together; intervals are of counts, or left out."""
    rows = np.array([each["rows"] for each in found])

    def mean(values: list[Any]) -> float:
        return float(np.average(np.array(values, dtype=np.float64), weights=rows))

    numbers = [name for name, value in found[0].items() if isinstance(value, float) and all(name in x for x in found)]
    told: dict[str, Any] = {"rows": int(rows.sum()), "folds": len(found)}
    told |= {name: mean([each[name] for each in found]) for name in numbers}
    if "n_wrong" in found[0]:
        told["n_wrong"] = sum(each["n_wrong"] for each in found)
        told["error_interval"] = list(wilson(told["n_wrong"], told["rows"]))
    names = [name for name in found[0].get("baselines", {}) if all(name in each["baselines"] for each in found)]
    baselines = {name: mean([each["baselines"][name] for each in found]) for name in names}
    return {**told, "baselines": baselines} if baselines else told


def measured(model: Any, X: Array, y: Any) -> dict[str, Any]:
    """What rows that were never trained on say of a model; errors, calibration and shares in percent."""
    view = view_of(model)
    found = view.commands()["score" if view.task == "anomaly" else "predict"].compute(X)
    if view.task == "anomaly":
        return {"rows": len(X), **of_anomalies(found["scores"], y)}
    if view.task == "classify":
        return {"rows": len(X), **of_classes(log_softmax(found["decision"]), np.asarray(view.labels), y)}
    verdict = view.about().get("verdict")
    of_model = {} if verdict is None else {"verdict": verdict}
    return {"rows": len(X), **of_labels(found["probabilities"], found["predictions"], y), **of_model}
