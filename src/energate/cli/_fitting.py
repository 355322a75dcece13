"""From a table to a fitted model and an honest number: what `energate fit` does, without its printing."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energate.cli._console import messages, say
from energate.errors import InputError

if TYPE_CHECKING:
    from energate.tables import Columns

SMALL = 1_000_000
#: which options a task has, beside those of every task
OPTIONS = {
    "classify": ("units",),
    "anomaly": ("units",),
    "multilabel": ("relation", "method", "objective"),
}


@dataclass
class Order:
    """What the user asked for."""

    task: str
    target: str | None = None
    targets: list[str] = field(default_factory=list)
    prefix: str | None = None
    drop: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    image: tuple[int, int] | None = None
    test_fraction: float = 0.2
    refit: bool = False
    epochs: int | None = None
    options: dict[str, str] = field(default_factory=dict)  # of the task
    device: str = "auto"
    seed: int = 0


@dataclass
class Fitted:
    """What came out."""

    model: Any
    columns: "Columns"
    notes: list[str]
    n_rows: int
    n_train: int
    held_out: dict[str, Any]
    seconds: float


def run(path: Path, part: str, order: Order) -> Fitted:
    """Read a table, hold rows out, train on the others, and measure on those held out."""
    from energate.tables import CellError
    from energate.tables.reading import n_rows, open_table

    began = time.monotonic()
    source = open_table(path, part)
    _find_targets(order, source.names, source.groups)
    with _status(f"{path.name}: reading"):
        table = source.read()
    try:
        y = _target(table, order)
        train, test = split_rows(n_rows(table), y if order.task == "classify" else None, order)
        columns, notes = _columns(table, order, train)
        X = columns.matrix(table)
    except CellError as error:
        raise source.told(error) from error
    model = _train(order, X[train], None if y is None else y[train])
    held_out = measure(order.task, model, X[test], None if y is None else y[test]) if len(test) else {}
    if order.refit and len(test):
        columns, _ = _columns(table, order, None)
        model = _train(order, columns.matrix(table), y)
    seconds = time.monotonic() - began
    return Fitted(model, columns, notes, len(X), len(X) if order.refit else len(train), held_out, seconds)


# --- the table ---------------------------------------------------------------------------------------------------


def _find_targets(order: Order, names: list[str], groups: dict[str, list[str]]) -> None:
    """Settle which columns are to be predicted; a wrong name is told before the file is read."""
    from energate.tables.cells import listed

    order.targets = [column for name in order.targets for column in groups.get(name, [name])]
    if order.prefix is not None:
        found = [name for name in names if name.startswith(order.prefix)]
        if not found:
            raise InputError(f"No column begins with {order.prefix!r}; there are {listed(names)}.")
        order.targets = [*order.targets, *(name for name in found if name not in order.targets)]
    if order.task == "multilabel" and not order.targets:
        whole = [name for name in groups if name != "X"]  # arrays of an NPZ file
        or_whole = f"; or the columns of an array: --targets {whole[0]}" if whole else ""
        raise InputError(
            f"Several labels need their columns: --targets a,b,c or --targets-prefix label_{or_whole}. "
            f"There are {listed(names)}."
        )
    if order.task == "classify" and order.target is None:
        raise InputError(f"Say which column holds the classes: --target NAME. There are {listed(names)}.")
    wanted = [*order.targets, *([order.target] if order.target else [])]
    absent = [name for name in wanted if name not in names]
    if absent:
        raise InputError(f"There is no column {listed(absent)} to be the target; there are {listed(names)}.")


def _target(table: dict[str, Any], order: Order) -> Any:
    """What is to be predicted, or what an anomaly score is compared with; None if there is nothing."""
    import numpy as np

    from energate.tables import classes_of, labels_of

    if order.task == "multilabel":
        return labels_of(table, order.targets)
    if order.target is None:
        return None
    y = classes_of(table, order.target)
    if order.task == "classify":
        return y
    values, counts = np.unique(y, return_counts=True)
    if len(values) > 2:
        raise InputError(f"The target of an anomaly score must have 2 values; {order.target!r} has {len(values)}.")
    rare = values[counts.argmin()]
    say(f"Note: rows with {order.target} {rare} are the rarer ones, and count as anomalies.", "yellow")
    return (y == rare).astype(np.int64)


def _columns(table: dict[str, Any], order: Order, rows: Any) -> tuple["Columns", list[str]]:
    from energate.tables import learn_columns

    return learn_columns(
        table,
        task=order.task,
        targets=order.targets or ([order.target] if order.target else []),
        labels=order.targets or None,
        drop=order.drop,
        keep=order.keep,
        categories=order.categories,
        image=order.image,
        rows=rows,
    )


def split_rows(n_rows: int, classes: Any, order: Order) -> tuple[Any, Any]:
    """Rows to train on, and rows held out: that share of each class, and never all rows of one."""
    import numpy as np

    random = np.random.default_rng(order.seed)
    groups = (
        [np.arange(n_rows)] if classes is None else [np.flatnonzero(classes == each) for each in np.unique(classes)]
    )
    held = [
        random.permutation(group)[: min(len(group) - 1, round(order.test_fraction * len(group)))] for group in groups
    ]
    test = np.sort(np.concatenate(held))
    if order.test_fraction and not len(test):
        raise InputError(
            f"{n_rows} rows are too few to hold {100 * order.test_fraction:g} % of them out. Give more rows, or "
            "--test-fraction 0 to go without a measurement."
        )
    return np.setdiff1d(np.arange(n_rows), test), test


# --- training ----------------------------------------------------------------------------------------------------


def _train(order: Order, X: Any, y: Any) -> Any:
    if len(X) < 2:
        raise InputError(f"A model needs at least 2 rows to be trained on; there is {len(X)}.")
    model = _model(order)
    with warnings.catch_warnings(record=True) as noted, _showing(type(model).__name__), _threads_for(X.size):
        warnings.simplefilter("always")
        fitted = model.fit(X) if order.task == "anomaly" else model.fit(X, y)
    for text in {" ".join(str(note.message).split()) for note in noted}:
        say(f"Note: {text}", "yellow")
    return fitted


def _model(order: Order) -> Any:
    from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP

    common: dict[str, Any] = {"device": order.device, "random_state": order.seed, **order.options}
    epochs: dict[str, Any] = {} if order.epochs is None else {"max_epochs": order.epochs}
    if order.task == "anomaly":
        return EnergyScorer(**common, **epochs)
    if order.task == "classify":
        both: dict[str, Any] = {} if order.epochs is None else {"pretrain_epochs": order.epochs, **epochs}
        return EnergyClassifier(**common, **both)
    base = LabelMLP(device=order.device, random_state=order.seed, **epochs)
    return EnergyRefiner(base, **common, **epochs)


@contextmanager
def _threads_for(n_numbers: int) -> Iterator[None]:
    """One thread for little data: several would wait for each other most of the time, on a busy machine all of it."""
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1 if n_numbers < SMALL else n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


@contextmanager
def _showing(kind: str) -> Iterator[None]:
    """The stage and the epoch of whatever is trained: one line that changes in a terminal, else a line per stage."""
    from energate.estimators.progress import watching

    console, begun = messages(), Counter[str]()

    def named(stage: str, progress: Any) -> str:
        """Of a stage that comes again, as a base does for every fold, also how often it has begun."""
        begun[stage] += progress.epoch == 1
        return stage if begun[stage] < 2 else f"{stage}, model {begun[stage]}"

    def say_stage(stage: str, progress: Any) -> None:
        name = named(stage, progress)
        if progress.epoch == 1:
            say(f"{name}: {progress.n_epochs} epochs at most")

    if not console.is_terminal:
        with watching(say_stage):
            yield
        return
    with console.status(f"{kind}: starting") as status:

        def show(stage: str, progress: Any) -> None:
            stage = named(stage, progress)
            best = "" if progress.best is None else f", best validation loss {float(progress.best.min()):.4f}"
            loss = float(progress.history.loss[-1].mean())
            status.update(f"{kind}: {stage}, epoch {progress.epoch} of {progress.n_epochs}, loss {loss:.4f}{best}")

        with watching(show):
            yield


@contextmanager
def _status(text: str) -> Iterator[None]:
    console = messages()
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


# --- measuring ---------------------------------------------------------------------------------------------------


def measure(task: str, model: Any, X: Any, y: Any) -> dict[str, Any]:
    """What rows that were never trained on say of a model; errors, calibration and shares in percent."""
    return {"rows": len(X), **_MEASURES[task](model, X, y)}


def _of_classes(model: Any, X: Any, y: Any) -> dict[str, Any]:
    import numpy as np

    log_proba = model.predict_log_proba(X)
    wrong = model.classes_[log_proba.argmax(1)] != y
    place = np.searchsorted(model.classes_, y)
    return {
        "error": 100 * float(wrong.mean()),
        "n_wrong": int(wrong.sum()),
        "log_loss": float(-log_proba[np.arange(len(y)), place].mean()),
        "calibration_error": _calibration_error(log_proba, wrong),
    }


def _of_labels(model: Any, X: Any, Y: Any) -> dict[str, Any]:
    import numpy as np

    predicted = model.predict(X)
    p = np.clip(model.predict_proba(X), 1e-9, 1 - 1e-9).ravel()
    log_proba, truth = np.log(np.stack([1 - p, p], 1)), Y.ravel()
    return {
        "label_error": 100 * float((predicted != Y).mean()),
        "row_error": 100 * float((predicted != Y).any(1).mean()),
        "log_loss": float(-log_proba[np.arange(len(truth)), truth].mean()),
        "calibration_error": _calibration_error(log_proba, log_proba.argmax(1) != truth),
        "verdict": model.verdict_,
    }


def _of_anomalies(model: Any, X: Any, y: Any) -> dict[str, Any]:
    from sklearn.metrics import roc_auc_score

    scores = model.decision_function(X)
    found: dict[str, Any] = {"flagged": 100 * float((scores < 0).mean())}
    if y is not None and 0 < y.sum() < len(y):
        found["roc_auc"] = float(roc_auc_score(y, -scores))
    return found


def _calibration_error(log_proba: Any, wrong: Any) -> float:
    import numpy as np

    from energate.measures import reliability

    return float(reliability(np.exp(log_proba.max(1)), ~wrong)["ece"])


_MEASURES: dict[str, Callable[[Any, Any, Any], dict[str, Any]]] = {
    "classify": _of_classes,
    "multilabel": _of_labels,
    "anomaly": _of_anomalies,
}
