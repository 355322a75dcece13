"""Models and tables: `fit_table` makes a model of a table, `apply_table` writes what a model says of each row."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from energate.conformal import check_level, discovery_threshold
from energate.errors import InputError
from energate.estimators.bases import MOST
from energate.estimators.edge import Array, resolve_device
from energate.estimators.liking import HeldOutMixin, PairedMixin
from energate.files import written_whole
from energate.measures import of_anomalies, of_classes, of_labels, wilson
from energate.tables import (
    CellError,
    CodedRows,
    Columns,
    ImageColumn,
    NumberColumn,
    classes_of,
    labels_of,
    learn_columns,
    pictures_of,
    size_in_words,
    white_of,
)
from energate.tables.pictures import CLASS, FILE, Pictures, PictureSource
from energate.tables.reading import PICTURE, SEPARATORS, AnyPath, Batch, Source, cut, joined, n_rows, open_table
from energate.tables.text import LINES, kind_of
from energate.tables.values import counted, is_text, listed, numbers, words
from energate.tables.writing import as_printed, check_kind, compressed, open_writer
from energate.views.baselines import baselines_of
from energate.views.meaning import MOST_ROWS, Meaning, measurable, measure_meaning
from energate.views.view import KINDS, Command, Output, View, tasks, view_of

MOST_EXAMPLES, MOST_PIXELS = 20, 60_000  # that are kept of pictures with the columns

# --- fitting -----------------------------------------------------------------------------------------------------


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

    The model takes the rows that ``columns`` make of a table; save both: ``save(model, path, columns=columns)``.  One
    that takes missing cells and categories as they are gets them so, unless rows are images.
    """
    began = time.monotonic()
    resolve_device(device)  # refused before the table is read
    if task is None and not isinstance(path, Source) and Path(path).is_dir():
        task = "images"
    order = _Order(target, targets, targets_prefix, task, options)
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
        if not len(test):
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
    meaning = measure_meaning(model, columns.matrix(table)[test]) if measurable(view_of(model), len(test)) else None
    held_out = held_out if cv is None else pooled([each[3] for each in found])
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


class _Order:
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
        return {"rows": len(X), **of_classes(log_softmax(found["decision"], 1), np.asarray(view.labels), y)}
    verdict = view.about().get("verdict")
    of_model = {} if verdict is None else {"verdict": verdict}
    return {"rows": len(X), **of_labels(found["probabilities"], found["predictions"], y), **of_model}


# --- applying ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaseColumns:
    """Columns ``prefix`` + label of a table hold what another program says of each label."""

    prefix: str
    kind: str = "probabilities"  # or "logits"


@dataclass(frozen=True)
class TableModel:
    """A fitted model, the columns of a table that it takes, if they are known, and what it is called in messages."""

    model: Any
    columns: Columns | None = None
    name: str = "the model"
    view: View = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "view", view_of(self.model))

    def labels(self) -> list[str]:
        """The names of the labels, or of the classes, of which the model gives probabilities."""
        return self.view.label_names(self.columns)

    @property
    def pictures(self) -> ImageColumn | None:
        """What the model takes where its rows are pictures."""
        inputs = () if self.columns is None else self.columns.inputs
        if len(inputs) == 1 and isinstance(inputs[0], ImageColumn):
            return inputs[0]
        shape = self.view.shape if self.columns is None else self.columns.image or self.view.shape
        if shape is None:
            return None
        limits = self.columns.range if self.columns is not None and self.columns.range else self.view.range
        height, width, channels = (*shape, 1)[:3]
        return ImageColumn(PICTURE, (height, width, channels), None if limits is None else white_of(limits[1]))

    def open(self, path: AnyPath | Source, part: str, on_error: str = "fail", **text: Any) -> Source:
        """A table, or pictures brought to the size and the scale that the model takes."""
        column = self.pictures
        how = Pictures(on_error=on_error)
        if column is not None:
            (height, width, channels), white = column.shape, column.white
            how = Pictures((height, width), channels > 1, on_error, white or how.white)
        found = open_table(path, part, pictures=how, **text)
        if isinstance(found, PictureSource) and (
            column is None or column.white is None or column.shape[2] not in (1, 3)
        ):
            kind = (
                "rows of columns" if column is None else f"pictures of {size_in_words(column.shape)} on another scale"
            )
            raise InputError(f"{self.name} takes {kind}, which files of pictures are not. Give it a table.")
        return found

    def match(self, source: Source) -> Columns:
        """The columns of a table that the model takes; one that was fitted on an array takes them by name or number."""
        width, known = self.view.n_features, vars(self.model).get("feature_names_in_")
        if self.pictures is not None and PICTURE in source.names:
            return Columns((replace(self.pictures, name=PICTURE),), "classify", image=self.pictures.shape)
        if self.columns is not None:
            missing = [name for name in self.columns.names if name not in set(source.names)]
            if missing:
                raise InputError(
                    f"{source.path.name} must have the columns that {self.name} takes; it lacks {listed(missing)}."
                )
            return self.view.suited(self.columns)
        numbered = [f"x{i}" for i in range(width)]
        for names in ([] if known is None else [str(name) for name in known], source.groups.get("X", []), numbered):
            if len(names) == width and set(names) <= set(source.names):
                return self.view.columns(names)
        if known is None and len(source.names) == width:
            return self.view.columns(source.names)
        raise InputError(
            f"{self.name} was saved without the names of its columns and takes {width}; {source.path.name} has "
            f"{len(source.names)}. Name them x0 to x{width - 1}, or have no others; or fit with `energate fit`."
        )

    def rows(
        self,
        source: Source,
        columns: Columns,
        base: BaseColumns | None = None,
        skipped: Callable[[int, str], object] | None = None,
    ) -> Iterator[tuple[Batch, Array, dict[str, Any]]]:
        """Batch by batch, the rows of a table as numbers (n, d), and what comes beside them.

        A row that cannot be used is an error; or ``skipped`` is told its number, from 0, and why, and it is left out.
        """
        done = 0

        def taken(batch: Batch) -> tuple[Array, dict[str, Any]]:
            X = columns.matrix(batch)
            return X, {} if base is None else {"scores": self._scores(base, batch)}

        for batch in source.batches():
            if not n_rows(batch):
                continue
            first, kept = done, batch
            done += n_rows(batch)
            if skipped is not None:
                kept = self._usable(batch, taken, lambda row, why, first=first: skipped(first + row, why))  # type: ignore[misc]
                if not n_rows(kept):
                    continue
            try:
                X, beside = taken(kept)
            except CellError as error:
                raise source.told(error, first) from error
            yield kept, X, beside
        if not done:
            raise InputError(f"{source.path.name} has no rows.")

    def _usable(
        self,
        batch: Batch,
        taken: Callable[[Batch], tuple[Array, dict[str, Any]]],
        skipped: Callable[[int, str], object],
    ) -> Batch:
        """The rows of a batch that the model takes; halves with a bad row in them are halved again to find it."""
        good = list[tuple[int, int]]()
        parts = [(0, n_rows(batch))]
        while parts:
            start, stop = parts.pop()
            try:
                self.view.rows(taken(cut(batch, start, stop))[0])
            except ValueError as error:  # of cells, or of scikit-learn's about rows
                if stop - start > 1:
                    middle = (start + stop) // 2
                    parts += [(middle, stop), (start, middle)]
                    continue
                skipped(start, error.told("row") if isinstance(error, CellError) else str(error).partition("\n")[0])
                continue
            good.append((start, stop))
        whole = good == [(0, n_rows(batch))]
        return batch if whole else joined([cut(batch, *each) for each in good]) if good else cut(batch, 0, 0)

    def _scores(self, base: BaseColumns, batch: Batch) -> Array:
        """What a table says of every label, as logits: (n, L)."""
        names, prefix = self.labels(), base.prefix
        missing = [f"{prefix}{name}" for name in names if f"{prefix}{name}" not in batch]
        if missing:
            wanted = f"{prefix}LABEL"
            raise InputError(f"DATA must have a column {wanted!r} for each label; it lacks {listed(missing)}.")
        found = np.stack([numbers(batch[f"{prefix}{name}"], f"{prefix}{name}") for name in names], 1)
        logits = base.kind == "logits"
        wrong = ~np.isfinite(found) | (False if logits else (found < 0) | (found > 1))
        if wrong.any():
            row, place = (int(each[0]) for each in np.nonzero(wrong))
            expected = "a number" if logits else "a probability, from 0 to 1 (--base-scores logits takes others)"
            raise CellError(f"{prefix}{names[place]}", row, float(found[row, place]), expected)
        if logits:
            return found
        with np.errstate(divide="ignore"):
            return np.clip(np.log(found) - np.log1p(-found), -MOST, MOST)

    # --- single rows of a table ------------------------------------------------------------------

    def some_rows(self, path: Path | Source, part: str, n_wanted: int, seed: int) -> Array:
        """Rows of a table, drawn at random if it has more than are wanted."""
        source = self.open(path, part)
        random, keys, kept = np.random.default_rng(seed), np.empty(0), np.empty((0, self.view.n_features))
        for _, X, _ in self.rows(source, self.match(source)):  # those with the largest of random keys
            keys, kept = np.concatenate([keys, random.random(len(X))]), np.concatenate([kept, X])
            best = np.sort(np.argsort(-keys, kind="stable")[:n_wanted])
            keys, kept = keys[best], kept[best]
        return kept

    def meaning(self, path: Path | Source, part: str) -> Meaning | None:
        """Whether explanations of a table's rows mean something; None where that is nothing to ask, or of few rows."""
        rows = self.some_rows(path, part, MOST_ROWS, 0) if self.view.moves else np.empty((0, 0))
        return measure_meaning(self.model, rows) if measurable(self.view, len(rows)) else None

    def one_row(
        self, path: Path | Source, part: str, number: int, base: BaseColumns | None
    ) -> tuple[Array, Any, Columns]:
        """One row of a table, counted from 1, what a base says of it there, and the columns it was made by."""
        source = self.open(path, part)
        columns, done = self.match(source), 0
        for _, X, beside in self.rows(source, columns, base):
            if done + len(X) >= number:
                here = number - 1 - done
                return X[here], beside["scores"][here] if beside else None, columns
            done += len(X)
        raise InputError(f"{source.path.name} has {done:,} rows; there is no row {number:,}. Rows count from 1.")


@dataclass(frozen=True)
class AppliedTable:
    """What `apply_table` wrote: where, how many rows, the names of the new columns, and what there is to say of it."""

    path: Path | None
    n_rows: int
    new: list[str]
    seconds: float
    notes: list[str] = field(default_factory=list)


def apply_table(
    model: Any,
    path: AnyPath | Source,
    output: str | os.PathLike[str] | IO[bytes],
    *,
    command: str = "predict",
    columns: Columns | None = None,
    leave_out: Sequence[str] = (),
    base: BaseColumns | None = None,
    levels: Mapping[str, float] | None = None,
    fdr: float | None = None,
    prefix: str = "",
    part: str = "test",
    on_error: str = "fail",
    delimiter: str | None = None,
    encoding: str | None = None,
    tell: Callable[[int], object] | None = None,
) -> AppliedTable:
    """Write a table again, with what a fitted model says of each row in new columns; it may be larger than memory.

    Parameters
    ----------
    model : a fitted estimator, or a `TableModel`.
    path : a table; or, for a model of pictures, a folder of them, a file, or several.
    output : the file to write, which takes its name when it is complete; or an open file, which gets CSV.
    command : what to say: ``"predict"``, ``"score"`` or ``"refine"``.
    columns : which columns the model takes, as `fit_table` and `energate.persistence.read_columns` say it.
    leave_out : outputs that are not wanted: ``"probabilities"``, ``"base"``.
    base : where the table has what a refiner's base says.
    levels : ``reject``: a column of that name says which rows are stranger than this share of rows held out;
        ``alpha``: columns ``set_CLASS`` say which classes each row may be of, at this error.
    fdr : a column ``discovery`` says which rows are strange, all rows of the table considered, at this false discovery
        rate; the table is read twice.
    prefix : put before the names of all new columns.
    on_error : of a file that is no picture: ``"fail"``, or ``"skip"`` to go on without it.
    delimiter, encoding : how a text file is written; guessed if left out.
    tell : is told the number of rows that are done.
    """
    began = time.monotonic()
    known = model if isinstance(model, TableModel) else TableModel(model, columns)
    levels = {name: check_level(name, level) for name, level in (levels or {}).items()}
    question = Question(command, tuple(leave_out), base, prefix, levels)
    if fdr is not None:
        once = known.open(path, part, on_error, delimiter=delimiter, encoding=encoding)
        question = replace(question, discovered=question.of(known).threshold(once, fdr))
    asking = question.of(known)
    source = known.open(path, part, on_error, delimiter=delimiter, encoding=encoding)
    target = Path(output) if isinstance(output, str | os.PathLike) else None
    if target is not None:
        check_kind(target)
        if target.exists() and target.samefile(source.path):
            raise InputError(f"{target} is DATA itself, which is not overwritten. Choose another --output.")
    kind = ".csv" if target is None else kind_of(target)
    done, new, unseen = 0, list[str](), dict[str, Counter[str]]()
    answers = asking.answers(source, kind)
    with (
        contextlib.nullcontext(output) if target is None else written_whole(target) as file,
        compressed(target, file) as packed,  # type: ignore[arg-type]
        open_writer(kind, packed, source) as writer,
    ):
        for answer in answers:
            writer.write({**answer.carried, **answer.said})
            new, done = list(answer.said), done + answer.n_rows
            for name, found in answer.unseen.items():
                unseen[name] = _most(unseen.get(name, Counter()) + found)
            if tell is not None:
                tell(done)
    notes = [*source.told_notes(), *_told(unseen, done)]
    return AppliedTable(target, done, new, time.monotonic() - began, notes)


_REST = ""  # no category is an empty word


def _most(found: Counter[str], n_most: int = 1000) -> Counter[str]:
    """The most frequent; the others are counted as one, so that memory stays as it is."""
    if len(found) <= n_most:
        return found
    kept = Counter(dict(found.most_common(n_most)))
    kept[_REST] += found.total() - kept.total()
    return kept


def _told(unseen: dict[str, Counter[str]], n_all: int) -> list[str]:
    """Which cells were no category of the model."""
    notes = []
    for name, found in unseen.items():
        if found:
            shown = [text for text, _ in found.most_common(4) if text != _REST][:3]
            others = " and others" if len(found) > len(shown) else ""
            notes.append(
                f"{name!r}: {found.total():,} of {counted(n_all, 'row')} hold what is no category of the model: "
                f"{listed(shown)}{others}."
            )
    return notes


@dataclass(frozen=True)
class Question:
    """What is asked of the rows of tables, as in `apply_table`."""

    command: str = "predict"
    leave_out: tuple[str, ...] = ()
    base: BaseColumns | None = None
    prefix: str = ""
    levels: dict[str, float] = field(default_factory=dict)
    discovered: float | None = None  # the p-value up to which rows are discoveries, if they are asked for

    def of(self, known: TableModel) -> "Asking":
        """The question to a model, which is refused here if it has no answer."""
        command = command_of(known, self.command, {"scores"} if self.base is not None else set())
        return Asking(self, known, command, known.labels(), command.outputs_with(self.levels))


@dataclass(frozen=True)
class Answer:
    """Rows of a table: their columns, those that the model adds, and cells that are no category of it."""

    carried: Batch
    said: Batch
    n_rows: int
    unseen: dict[str, Counter[str]]


@dataclass(frozen=True)
class Asking:
    """A question to a model; `answers` may be asked for of one table after the other."""

    question: Question
    known: TableModel
    asked: Command
    labels: list[str]
    outputs: tuple[Output, ...]

    def answers(
        self, source: Source, kind: str = ".parquet", skipped: Callable[[int, str], object] | None = None
    ) -> Iterator[Answer]:
        """What is to be written, batch by batch, into a file whose suffix is ``kind``.

        A row that cannot be used is an error; or ``skipped`` is told its number, from 0, and why, and it is left out.
        The names of columns are looked at before this returns.
        """
        question, taken = self.question, self.known.match(source)
        said: Batch = {}

        def found() -> Iterator[Answer]:
            nonlocal said
            rows = self.known.rows(source, taken, question.base, skipped)
            for batch, X, beside in rows:
                first = not said
                said = self._said(X, beside)
                if first:
                    _check_clash(list(said), source.names, question.prefix)
                yield Answer(_carried(batch, taken, kind), as_printed(said, kind), len(X), taken.unseen(batch))

        return found()

    def _said(self, X: Array, beside: dict[str, Any]) -> Batch:
        """The new columns for rows (n, d)."""
        question, found = self.question, self.asked.answer(X, self.question.levels, **beside)
        said = _as_columns(self.outputs, found, self.labels, question.leave_out, question.prefix)
        if question.discovered is not None:
            said[f"{question.prefix}discovery"] = (found["p_value"] <= question.discovered).astype(np.int64)
        return said

    def threshold(self, source: Source, fdr: float) -> float:
        """The p-value up to which the rows of a table are discoveries, at a false discovery rate."""
        check_level("fdr", fdr)
        if "p_value" not in {output.name for output in self.outputs}:
            raise InputError(f"`fdr` needs p-values, which {self.known.name} does not say of rows. Leave it out.")
        rows = self.known.rows(source, self.known.match(source), self.question.base)
        p = [self.asked.compute(X, **beside)["p_value"] for _, X, beside in rows]
        return discovery_threshold(np.concatenate(p), fdr)

    def nothing(self, source: Source) -> Batch:
        """The columns of `answers` for a table of which no row can be used."""
        X = self.known.view.draw(1, 0)["X"]
        beside = {} if self.question.base is None else {"scores": np.zeros((1, len(self.labels)))}
        said = self._said(X, beside)
        kept = _carried(cut(next(source.batches()), 0, 0), self.known.match(source), ".parquet")
        return {**kept, **cut(said, 0, 0)}


_GIVEN = {"scores": "no scores of a base. Leave them out."}


def command_of(known: TableModel, name: str, given: Collection[str]) -> Command:
    """What a model is asked, if it can be asked that with what is ``given`` beside the rows."""
    commands = known.view.commands()
    kind = type(known.model).__name__
    if name not in commands:
        offered = ", ".join(commands) or "nothing of single rows"
        raise InputError(f"`{name}` is nothing for {known.name}, which is of the kind {kind} and has {offered}.")
    command = commands[name]
    lacking = [each.name for each in command.beside if each.needed and each.name not in given]
    if lacking:
        raise InputError(f"`{name}` of {known.name}, which is of the kind {kind}, needs {lacking[0]} with the rows.")
    needless = [each for each in given if each not in {beside.name for beside in command.beside}]
    if needless:
        words = _GIVEN.get(needless[0], f"no `{needless[0]}`. Leave it out.")
        raise InputError(f"`{name}` of {known.name}, of the kind {kind}, takes {words}")
    return command


def _as_columns(
    outputs: Sequence[Output], said: dict[str, Any], labels: list[str], leave_out: Sequence[str], prefix: str
) -> dict[str, Any]:
    """Outputs as columns of a table."""
    found: dict[str, Any] = {}
    for output in outputs:
        if output.name in leave_out:
            continue
        values = said[output.name]
        values = values.astype(np.int64) if values.dtype.kind == "b" else values
        if output.axes:
            found |= {f"{prefix}{output.column}{name}": values[:, i] for i, name in enumerate(labels)}
        else:
            found[f"{prefix}{output.column}"] = values
    return found


def _carried(batch: Batch, columns: Columns, kind: str) -> Batch:
    """The columns of the table as they are; but text that was read as numbers is numbers where a format has types."""
    if kind != ".npz":  # no cell of a table holds a picture
        batch = {name: values for name, values in batch.items() if np.ndim(values) < 3}
    if kind in SEPARATORS or kind in LINES:
        return batch
    taken = [(column.name, column.form) for column in columns.inputs if isinstance(column, NumberColumn)]
    return {**batch, **{name: numbers(batch[name], name, form) for name, form in taken if is_text(batch[name])}}


def _check_clash(new: list[str], old: list[str], prefix: str) -> None:
    twice = [name for name in new if name in set(old)]
    if twice:
        raise InputError(
            f"DATA has the columns {listed(twice)} already, which would be new. Give the new ones another prefix: "
            f"--prefix {prefix}new_."
        )
