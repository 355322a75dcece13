"""Models and tables: `fit_table` makes a model of a table, `apply_table` writes what a model says of each row."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.base import clone

from energate.errors import InputError
from energate.estimators.bases import MOST
from energate.estimators.edge import Array, resolve_device
from energate.files import written_whole
from energate.measures import of_anomalies, of_classes, of_labels
from energate.tables import CellError, CodedRows, Columns, NumberColumn, classes_of, labels_of, learn_columns
from energate.tables.reading import SEPARATORS, Batch, Source, n_rows, open_table
from energate.tables.values import is_text, listed, numbers
from energate.tables.writing import as_printed, check_kind, open_writer
from energate.views.view import KINDS, Command, View, tasks, view_of

# --- fitting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedTable:
    """What `fit_table` made: ``held_out`` is what was measured on ``n_rows - n_train`` rows, errors in percent."""

    model: Any
    columns: Columns
    notes: list[str]  # what was left out, and why
    n_rows: int
    n_train: int
    held_out: dict[str, Any]
    seconds: float


def fit_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    task: str | None = None,
    estimator: Any = None,
    targets: Sequence[str] = (),
    targets_prefix: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    image: tuple[int, int] | None = None,
    part: str = "train",
    test_fraction: float = 0.2,
    refit: bool = False,
    epochs: int | None = None,
    device: str = "auto",
    random_state: int = 0,
    **options: Any,
) -> FittedTable:
    """Read a table, hold rows out, train on the others, and measure on those held out.

    Parameters
    ----------
    path : a .csv, .tsv, .parquet, .npz or .arff file.
    target : the column with the classes; of an anomaly score, a column of two values to measure with.
    task : ``"classify"``, ``"multilabel"`` or ``"anomaly"``; classify if left out, multilabel if there are ``targets``.
    estimator : what to fit, in place of the estimator of the task; ``epochs`` and ``options`` are then its own affair.
    targets, targets_prefix : columns of 0 and 1, the labels; by their names, or by what their names begin with.
    drop, keep, categories : columns to leave out, to take though they look like ids, and to take as categories.
    image : height and width, where rows are images.
    part : of an NPZ file with several: train, valid or test.
    test_fraction : the share of rows held out; 0 measures nothing.
    refit : when measured, train the model to keep on all rows.
    epochs : of each stage of training.
    options : of the task: ``units``, or for multilabel ``relation``, ``method`` and ``objective``.

    The model takes the rows that ``columns`` make of a table; save both: ``save(model, path, columns=columns)``.  One
    that takes missing cells and categories as they are gets them so, unless rows are images.
    """
    began = time.monotonic()
    resolve_device(device)  # refused before the table is read
    order = _Order(target, targets, targets_prefix, task, options)
    if estimator is not None and (options or epochs is not None):
        raise InputError("`epochs` and options of a task are not for an `estimator` of your own: set its parameters.")
    kind = KINDS.get(type(estimator)) if estimator is not None else order.view
    coded = kind is not None and kind.takes_cells and image is None
    source = open_table(path, part)
    order.find_targets(source.names, source.groups)
    table = source.read()

    def learned(rows: NDArray[np.int64] | None) -> tuple[Columns, list[str]]:
        return learn_columns(
            table,
            task=order.task,
            targets=order.targets or ([target] if target else []),
            labels=order.targets or None,
            drop=drop,
            keep=keep,
            categories=categories,
            image=image,
            rows=rows,
            coded=coded,
            declared=source.nominal if coded else (),
        )

    def trained(columns: Columns, X: Array, y: Any) -> Any:
        if len(X) < 2:
            raise InputError(f"A model needs at least 2 rows to be trained on; there is {len(X)}.")
        build = order.trained.build
        model = build(device, random_state, epochs, **options) if estimator is None else clone(estimator)
        rows = CodedRows(X, columns) if coded else X
        return model.fit(rows) if order.task == "anomaly" else model.fit(rows, y)

    try:
        y, said = order.read_target(table)
        classes = y if order.task == "classify" else None
        train, test = hold_out(n_rows(table), classes, test_fraction, random_state)
        columns, notes = learned(train)
        X = columns.matrix(table)
    except CellError as error:
        raise source.told(error) from error
    model = trained(columns, X[train], None if y is None else y[train])
    held_out = measured(model, X[test], None if y is None else y[test]) if len(test) else {}
    if refit and len(test):
        columns, _ = learned(None)
        model = trained(columns, columns.matrix(table), y)
    n_train = len(X) if refit else len(train)
    return FittedTable(model, columns, [*said, *notes], len(X), n_train, held_out, time.monotonic() - began)


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

    def find_targets(self, names: list[str], groups: dict[str, list[str]]) -> None:
        """Settle which columns are meant; a wrong name is told before the file is read."""
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
        if self.task == "classify" and self.target is None:
            raise InputError(f"Say which column holds the classes: `target` NAME. There are {listed(names)}.")
        wanted = [*self.targets, *([self.target] if self.target else [])]
        absent = [name for name in wanted if name not in names]
        if absent:
            raise InputError(f"There is no column {listed(absent)} to be the target; there are {listed(names)}.")

    def read_target(self, table: dict[str, Any]) -> tuple[Any, list[str]]:
        """What is to be predicted, or what an anomaly score is compared with; None if there is nothing; and a note."""
        if self.task == "multilabel":
            return labels_of(table, self.targets), []
        if self.target is None:
            return None, []
        y = classes_of(table, self.target)
        if self.task == "classify":
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

    def match(self, source: Source) -> Columns:
        """The columns of a table that the model takes; one that was fitted on an array takes them by name or number."""
        width, known = self.view.n_features, vars(self.model).get("feature_names_in_")
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
        self, source: Source, columns: Columns, base: BaseColumns | None = None
    ) -> Iterator[tuple[Batch, Array, dict[str, Any]]]:
        """Batch by batch, the rows of a table as numbers (n, d), and what comes beside them."""
        done = 0
        for batch in source.batches():
            if not n_rows(batch):
                continue
            try:
                X = columns.matrix(batch)
                beside = {} if base is None else {"scores": self._scores(base, batch)}
            except CellError as error:
                raise source.told(error, done) from error
            yield batch, X, beside
            done += len(X)
        if not done:
            raise InputError(f"{source.path.name} has no rows.")

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

    def some_rows(self, path: Path, part: str, n_wanted: int, seed: int) -> Array:
        """Rows of a table, drawn at random if it has more than are wanted."""
        source = open_table(path, part)
        random, keys, kept = np.random.default_rng(seed), np.empty(0), np.empty((0, self.view.n_features))
        for _, X, _ in self.rows(source, self.match(source)):  # those with the largest of random keys
            keys, kept = np.concatenate([keys, random.random(len(X))]), np.concatenate([kept, X])
            best = np.sort(np.argsort(-keys, kind="stable")[:n_wanted])
            keys, kept = keys[best], kept[best]
        return kept

    def one_row(self, path: Path, part: str, number: int, base: BaseColumns | None) -> tuple[Array, Any, Columns]:
        """One row of a table, counted from 1, what a base says of it there, and the columns it was made by."""
        source = open_table(path, part)
        columns, done = self.match(source), 0
        for _, X, beside in self.rows(source, columns, base):
            if done + len(X) >= number:
                here = number - 1 - done
                return X[here], beside["scores"][here] if beside else None, columns
            done += len(X)
        raise InputError(f"{path.name} has {done:,} rows; there is no row {number:,}. Rows count from 1.")


@dataclass(frozen=True)
class AppliedTable:
    """What `apply_table` wrote: where, how many rows, and the names of the new columns."""

    path: Path | None
    n_rows: int
    new: list[str]
    seconds: float


def apply_table(
    model: Any,
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | IO[bytes],
    *,
    command: str = "predict",
    columns: Columns | None = None,
    leave_out: Sequence[str] = (),
    base: BaseColumns | None = None,
    prefix: str = "",
    part: str = "test",
    tell: Callable[[int], object] | None = None,
) -> AppliedTable:
    """Write a table again, with what a fitted model says of each row in new columns; it may be larger than memory.

    Parameters
    ----------
    model : a fitted estimator, or a `TableModel`.
    output : the file to write, which takes its name when it is complete; or an open file, which gets CSV.
    command : what to say: ``"predict"``, ``"score"`` or ``"refine"``.
    columns : which columns the model takes, as `fit_table` and `energate.persistence.read_columns` say it.
    leave_out : outputs that are not wanted: ``"probabilities"``, ``"base"``.
    base : where the table has what a refiner's base says.
    prefix : put before the names of all new columns.
    tell : is told the number of rows that are done.
    """
    began = time.monotonic()
    known = model if isinstance(model, TableModel) else TableModel(model, columns)
    asked, labels = _command(known, command, base), known.labels()
    source = open_table(path, part)
    taken = known.match(source)
    target = Path(output) if isinstance(output, str | os.PathLike) else None
    if target is not None:
        check_kind(target)
        if target.exists() and target.samefile(path):
            raise InputError(f"{target} is DATA itself, which is not overwritten. Choose another --output.")
    kind = ".csv" if target is None else target.suffix.lower()
    done, new = 0, list[str]()
    with (
        contextlib.nullcontext(output) if target is None else written_whole(target) as file,
        open_writer(kind, file, source) as writer,  # type: ignore[arg-type]
    ):
        for batch, X, beside in known.rows(source, taken, base):
            said = _as_columns(asked, asked.compute(X, **beside), labels, leave_out, prefix)
            if not new:
                new = list(said)
                _check_clash(new, source.names, prefix)
            writer.write({**_carried(batch, taken, kind), **as_printed(said, kind)})
            done += len(X)
            if tell is not None:
                tell(done)
    return AppliedTable(target, done, new, time.monotonic() - began)


def _command(known: TableModel, name: str, base: BaseColumns | None) -> Command:
    commands = known.view.commands()
    kind = type(known.model).__name__
    if name not in commands:
        offered = ", ".join(commands) or "nothing of single rows"
        raise InputError(f"`{name}` is nothing for {known.name}, which is of the kind {kind} and has {offered}.")
    command = commands[name]
    given = {"scores"} if base is not None else set()
    lacking = [each.name for each in command.beside if each.needed and each.name not in given]
    if lacking:
        raise InputError(f"`{name}` of {known.name}, which is of the kind {kind}, needs {lacking[0]} with the rows.")
    if base is not None and "scores" not in {each.name for each in command.beside}:
        raise InputError(f"`{name}` of {known.name}, of the kind {kind}, takes no scores of a base. Leave them out.")
    return command


def _as_columns(
    command: Command, said: dict[str, Any], labels: list[str], leave_out: Sequence[str], prefix: str
) -> dict[str, Any]:
    """The outputs of a command as columns of a table."""
    found: dict[str, Any] = {}
    for output in command.outputs:
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
    if kind in SEPARATORS:
        return batch
    taken = [column.name for column in columns.inputs if isinstance(column, NumberColumn)]
    return {**batch, **{name: numbers(batch[name], name) for name in taken if is_text(batch[name])}}


def _check_clash(new: list[str], old: list[str], prefix: str) -> None:
    twice = [name for name in new if name in set(old)]
    if twice:
        raise InputError(
            f"DATA has the columns {listed(twice)} already, which would be new. Give the new ones another prefix: "
            f"--prefix {prefix}new_."
        )
