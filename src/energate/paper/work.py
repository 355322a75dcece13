"""What one process does: prepare a data set, choose hyper-parameters, fit the cells of a table and measure them."""

import datetime
import hashlib
import importlib
import importlib.metadata
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import platform
import resource
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.metrics import confusion_matrix
from threadpoolctl import threadpool_limits

from energate import measures
from energate.datasets import Dataset, load, load_multilabel, make_correlated_labels, split_rows
from energate.estimators.edge import resolve_device
from energate.estimators.progress import watching
from energate.paper import spaces
from energate.paper.cell import (
    Attempt,
    Cell,
    Config,
    Covariance,
    Curve,
    Energies,
    Filters,
    Mistake,
    Reliability,
    Search,
    find_search,
    place_of,
    provenance_of,
    write_cell,
    write_search,
)
from energate.paper.plan import Profile, Table
from energate.paper.systems import LABEL_SYSTEMS, SYSTEMS, Array, Labels, Parts, System, choose
from energate.training import History, Progress

CHOSEN_BY = "least sum of ranks by validation error and validation log-loss"
SEARCH_SEED = 1000  # of its own, so that no cell profits from the draw that chose its configuration
N_CORRELATED = 2000  # rows of the set that is made by rule
MISTAKES, POINTS, ENERGY_BINS = 12, 50, 40
HISTOGRAM_ROWS = 5000
SHOWN_LABELS = 60
_PARTS = ("train", "valid", "test")
_EVENTS: multiprocessing.connection.Connection | None = None  # of a process that does tasks for another
Tell = Callable[["Event"], None]


@dataclass(frozen=True)
class Task:
    """Something to do: ``"data"`` for a set, ``"search"`` for a system on it, or a ``"cell"``.

    Or the ``"labels"`` of a split: the cells of ``parts``, systems of the family ``system`` that share fits.
    """

    kind: str
    data: str
    system: str = ""
    seed: int = 0
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """What happened to a task: ``"start"``, ``"epoch"``, ``"done"`` or ``"failed"``."""

    task: Task
    kind: str
    stage: str = ""
    epoch: int = 0
    n_epochs: int = 0
    best: float | None = None  # best validation loss so far
    text: str = ""


@dataclass(frozen=True)
class Settings:
    """What all tasks of a run share."""

    table: Table
    profile: Profile
    results: Path
    scratch: str
    device: str
    source: str
    folder: str | os.PathLike[str] | None

    def place(self, data: str, system: str, number: int) -> Path:
        """The file of a cell."""
        return place_of(self.results, self.table.name, data, system, self.table.repeat, number)

    def device_of(self, system: System) -> str:
        """Where a system is fitted."""
        return str(resolve_device(self.device)) if system.on_gpu else "cpu"


def recipe(system: str, data: str, profile: Profile) -> Config:
    """All that a cell of a table of labels is made from, beside the rows: where it differs, the cell is made anew."""
    how = LABEL_SYSTEMS[system]
    edition = {} if how.edition == 1 else {"edition": how.edition}
    return spaces.as_json(
        {"space": spaces.label_space(system, data, profile.search), "base": how.base or None, **edition}
    )


# --- a process and its tasks -------------------------------------------------------------------------------------


def prepare_worker(threads: int, events: multiprocessing.connection.Connection) -> None:
    """Settings of a process that does tasks, and tells its events through a pipe."""
    global _EVENTS  # noqa: PLW0603
    _EVENTS = events
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process that started this one, and it decides
    _end_with_parent()


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def do_and_tell(task: Task, settings: Settings) -> str:
    """`do`, in a process that was prepared."""
    assert _EVENTS is not None
    return do(task, settings, _EVENTS.send)


def do(task: Task, settings: Settings, tell: Tell) -> str:
    """Do a task; what went wrong, or nothing."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        _KINDS[task.kind](task, settings, tell)
    except Exception as error:
        return note(task, settings, error)
    finally:
        torch.set_float32_matmul_precision(precision)  # this may be the caller's own process
    return ""


def note(task: Task, settings: Settings, error: BaseException) -> str:
    """Write down that a cell failed, so that reports show it; the error in one line."""
    if task.kind == "cell":
        _note_failure(task, settings, task.system, error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _note_failure(task: Task, settings: Settings, system: str, error: BaseException) -> None:
    # Without folders: results travel, and where somebody keeps the code is nobody's business.
    steps = traceback.extract_tb(error.__traceback__)[-3:]
    where = "\n".join(f"{Path(step.filename).name}, line {step.lineno}, in {step.name}" for step in steps)
    failed = Cell(**_head(task, settings, system), error=f"{type(error).__name__}: {error}\n{where}")
    write_cell(settings.place(task.data, system, task.seed), failed)


def _head(task: Task, settings: Settings, system: str) -> dict[str, Any]:
    """What a cell says even if it failed."""
    table, how = settings.table, SYSTEMS[settings.table.labels][system]
    order = list(dict.fromkeys([*table.data, *settings.profile.data_of(table)]))
    return {
        "table": table.name,
        "title": table.title,
        "profile": settings.profile.name,
        "data": task.data,
        "data_label": task.data,
        "system": system,
        "system_label": table.systems[system],
        "seed": task.seed,
        "order": (order.index(task.data), list(table.systems).index(system)),
        "published": table.published.get(task.data, {}).get(system),
        "ours": system in table.ours,
        "apart": table.apart.get(system, ""),
        "random": how.random,
        "repeat": table.repeat,
        **({"metric": "mean per-label error"} if table.labels else {}),
        "base": how.base,
        "versions": versions(),
        "device": device_name(settings.device_of(how)),
        "date": today(),
    }


def _watcher(task: Task, tell: Tell) -> Callable[[str, Progress], None]:
    last = [0.0]

    def watch(stage: str, progress: Progress) -> None:
        now = time.monotonic()
        if now - last[0] < 0.5 and progress.epoch < progress.n_epochs:  # a terminal needs no more
            return
        last[0] = now
        best = None if progress.best is None else float(progress.best.min())
        tell(Event(task, "epoch", stage, progress.epoch, progress.n_epochs, best))

    return watch


# --- data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelData:
    """Rows (n, D), labels (n, L), their names, and where they come from."""

    X: NDArray[np.float32]
    Y: NDArray[np.uint8]
    names: tuple[str, ...]
    provenance: dict[str, Any]


def load_labels(name: str, source: str, folder: Any) -> LabelData:
    """A data set of the table; ``"correlated"`` is made by rule."""
    if name == "correlated":
        made = make_correlated_labels(N_CORRELATED, seed=0)
        names, word, files = tuple(f"label {i}" for i in range(made.Y.shape[1])), "generated", {}
        X, Y, origin = made.X, made.Y, "generate"
    else:
        data = load_multilabel(name, source="auto" if source in ("download", "generate") else source, folder=folder)
        X, Y, names, word = data.X, data.Y, data.label_names, data.provenance["word"]
        origin, files = data.provenance["source"], data.provenance["files"]
    sums = {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in (("X", X), ("Y", Y))}
    words = dict.fromkeys(("train", "valid", "test"), word)
    return LabelData(X, Y, names, {**words, "source": origin, "files": files, "sha256": sums})


def _prepare(task: Task, settings: Settings, tell: Tell) -> None:  # noqa: ARG001
    """Load a data set once, and leave its arrays where all processes can read them."""
    place = Path(settings.scratch) / task.data
    place.mkdir(exist_ok=True)
    if settings.table.labels:
        found = load_labels(task.data, settings.source, settings.folder)
        np.savez(place / "rows.npz", X=found.X, Y=found.Y)
        about: dict[str, Any] = {"names": found.names, "provenance": found.provenance}
    else:
        data = load(task.data, source=settings.source, folder=settings.folder)
        for part in _PARTS:
            np.save(place / f"X_{part}.npy", getattr(data, f"X_{part}"))
            np.save(place / f"y_{part}.npy", getattr(data, f"y_{part}"))
        about = {"shape": data.shape, "provenance": data.provenance}
    (place / "about.json").write_text(json.dumps(about))


@cache
def _read(place: Path) -> Dataset:
    about = json.loads((place / "about.json").read_text())
    arrays = {
        f"{kind}_{part}": np.load(place / f"{kind}_{part}.npy", mmap_mode="r") for kind in "Xy" for part in _PARTS
    }
    return Dataset(place.name, shape=tuple(about["shape"]), provenance=about["provenance"], **arrays)


@cache
def _read_labels(place: Path) -> LabelData:
    about = json.loads((place / "about.json").read_text())
    with np.load(place / "rows.npz") as arrays:
        return LabelData(arrays["X"], arrays["Y"], tuple(about["names"]), about["provenance"])


def _rows(task: Task, settings: Settings) -> tuple[Dataset, str]:
    """A data set with the test rows that are used, and which those are in words, if not all."""
    data = _read(Path(settings.scratch) / task.data)
    # Sets of some hundred test rows are used whole.
    every = settings.profile.every if len(data.y_test) >= 5000 else 1
    words = "" if every == 1 else f"one test row in {every}, from the first on"
    return replace(data, X_test=data.X_test[::every], y_test=data.y_test[::every]), words


def parts_of(data: Dataset) -> Parts:
    """All rows but those to test on."""
    return Parts(data.X_train, data.y_train, data.X_valid, data.y_valid)


# --- rows of one class each: a search for all seeds, then the seeds ----------------------------------------------


def _search(task: Task, settings: Settings, tell: Tell) -> None:
    """Try the configurations of a system on the validation rows."""
    (data, _), system = _rows(task, settings), SYSTEMS[settings.table.labels][task.system]
    device = settings.device_of(system)
    configs = spaces.space(task.system, task.data, settings.profile.search)
    began = time.perf_counter()
    with watching(_watcher(task, tell)):
        trials = system.search(parts_of(data), configs, device, SEARCH_SEED)
    if all(trial.failed for trial in trials):
        raise RuntimeError(f"no configuration could be trained; the first said: {trials[0].error}")
    found = Search(
        table=settings.table.name,
        profile=settings.profile.name,
        data=task.data,
        system=task.system,
        space=configs,
        trials=trials,
        chosen=choose(trials),
        chosen_by=CHOSEN_BY,
        seconds=round(time.perf_counter() - began, 3),
        device=device_name(device),
        date=today(),
    )
    write_search(settings.place(task.data, task.system, 0).with_name("search.json"), found)


def _cell(task: Task, settings: Settings, tell: Tell) -> None:
    """Fit a system with one seed, and test it."""
    (data, test_slice), system = _rows(task, settings), SYSTEMS[settings.table.labels][task.system]
    profile, device = settings.profile, settings.device_of(system)
    place = settings.place(task.data, task.system, task.seed)
    config = spaces.configuration(settings.results, settings.table.name, task.data, task.system, profile)
    assert config is not None  # cells come after their search
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    began, parts = time.perf_counter(), parts_of(data)
    with watching(_watcher(task, tell)):
        model = system.fit(parts, config, device, task.seed)
    fitted = time.perf_counter()
    found = measure_classes(system, model, data, pictures=task.seed == 0)
    predicted = time.perf_counter()
    search = find_search(place.with_name("search.json")) if profile.search else None
    about = None
    if search is not None:
        about = {"n_trials": len(search.trials), "seconds": search.seconds, "chosen_by": search.chosen_by}
    done = Cell(
        **_head(task, settings, task.system),
        shape=data.shape,
        n_train=len(data.y_train),
        n_valid=len(data.y_valid),
        n_test=len(data.y_test),
        test_slice=test_slice,
        **found,
        config=config,
        search=about,
        seconds={"fit": round(fitted - began, 3), "predict": round(predicted - fitted, 3)},
        memory=memory(device),
        provenance=provenance_of(data.provenance),
    )
    write_cell(place, done)


# --- rows of several labels: a choice in every split, fits shared within it --------------------------------------


class Remembered(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A base that is fitted once to the same rows, however many refiners ask for it."""

    def __init__(self, base: Any, fits: dict[str, Any]) -> None:
        self.base = base
        self.fits = fits

    def __sklearn_clone__(self) -> Self:
        return type(self)(self.base, self.fits)  # the same memory, where `clone` would copy it

    def fit(self, X: Any, Y: Any) -> Self:
        """Fit the base, or take what an earlier fit to these rows has left."""
        parts = (np.ascontiguousarray(X), np.ascontiguousarray(Y, dtype=np.float64))
        key = "".join(hashlib.sha256(part.tobytes()).hexdigest() for part in parts)
        if key not in self.fits:
            self.fits[key] = clone(self.base).fit(X, Y)
        self.model_ = self.fits[key]
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the labels (n, L)."""
        return self.model_.predict_proba(X)


class Split:
    """One split of a data set, and what was chosen and fitted for it so far."""

    def __init__(self, data: LabelData, name: str, seed: int, device: str, search: bool) -> None:
        self.data, self.name, self.seed, self.device, self.search = data, name, seed, device, search
        self.train, self.valid, self.test = split_rows(len(data.X), seed)
        self.trials: dict[str, list[Attempt]] = {}
        self.fits: dict[str, dict[str, Any]] = {}  # of every base, by the rows that it was fitted to

    def rows(self, which: NDArray[np.int64]) -> tuple[Array, Array]:
        """Rows and labels as most classifiers want them."""
        return self.data.X[which].astype(np.float64), self.data.Y[which].astype(np.float64)

    def config(self, name: str) -> Config:
        """The configuration that does best on the validation rows after a fit to the training rows."""
        configs = spaces.label_space(name, self.name, self.search)
        if len(configs) == 1:
            return configs[0]
        if name not in self.trials:
            parts = Parts(*self.rows(self.train), *self.rows(self.valid))
            self.trials[name] = LABEL_SYSTEMS[name].search(parts, configs, self.device, self.seed)
        return configs[choose(self.trials[name])]

    def estimator(self, name: str) -> Any:
        """A system that is not fitted yet; what it stands on is fitted once for all."""
        system = LABEL_SYSTEMS[name]
        bases = [self.estimator(each) for each in system.on]
        made = system.make(self.config(name), self.device, self.seed, *bases)
        return made if bases else Remembered(made, self.fits.setdefault(name, {}))

    def cell(self, name: str) -> dict[str, Any]:
        """What a `Cell` says of a system fitted to all rows that may be seen, and tested."""
        made = self.estimator(name)  # chooses first
        began = time.perf_counter()
        model = made.fit(*self.rows(np.concatenate([self.train, self.valid])))
        fitted = time.perf_counter()
        X, Y = self.rows(self.test)
        p = model.predict_proba(X)
        # All bases take what is more probable than not.
        predicted = np.asarray(model.predict(X) if LABEL_SYSTEMS[name].on else p > 0.5, dtype=np.float64)
        trials = self.trials.get(name, [])
        chosen = choose(trials) if trials else None
        best = None if chosen is None else trials[chosen]
        return {
            "classes": list(self.data.names),
            "n_train": len(self.train),
            "n_valid": len(self.valid),
            "n_test": len(self.test),
            **measure_labels(p, predicted, Y),
            "valid_error": None if best is None or best.valid_error is None else round(best.valid_error, 4),
            "valid_log_loss": None if best is None else best.valid_log_loss,
            "config": self.config(name),
            "trials": trials,
            "chosen": chosen,
            **about_refining(model),
            **({"covariance": covariance(p, Y, self.data.names)} if self.seed == 0 else {}),
            "seconds": {"fit": round(fitted - began, 3), "predict": round(time.perf_counter() - fitted, 3)},
            "provenance": provenance_of(self.data.provenance),
        }


def _labels(task: Task, settings: Settings, tell: Tell) -> None:
    """The cells of one split, of systems that share fits; one that fails does not stop the others."""
    device = str(resolve_device(settings.device))
    data = _read_labels(Path(settings.scratch) / task.data)
    split = Split(data, task.data, task.seed, device, settings.profile.search)
    failed = []
    with watching(_watcher(task, tell)), threadpool_limits(torch.get_num_threads()):
        for name in task.parts:
            try:
                made_from = recipe(name, task.data, settings.profile)
                found = split.cell(name)
                done = Cell(**_head(task, settings, name), **found, recipe=made_from, memory=memory(device))
                write_cell(settings.place(task.data, name, task.seed), done)
                tell(Event(task, "epoch", name))
            except Exception as error:  # one system must not stop the others
                _note_failure(task, settings, name, error)
                failed.append(f"{name}: {type(error).__name__}: {error}".partition("\n")[0])
    if failed:
        raise RuntimeError("; ".join(failed))


# --- what is measured: rows of one class each --------------------------------------------------------------------


def measure_classes(system: System, model: Any, data: Dataset, pictures: bool) -> dict[str, Any]:
    """Everything that the test rows and the validation rows say of a fitted system."""
    classes = np.unique(data.y_train)
    log_proba, predicted = _predict(system, model, data.X_test)
    valid_log_proba, valid_predicted = _predict(system, model, data.X_valid)
    wrong = predicted != data.y_test
    step = max(1, len(data.y_test) // HISTOGRAM_ROWS)
    calibration = None if log_proba is None else measures.reliability(np.exp(log_proba.max(1)), ~wrong)
    energies = system.energies and system.energies(model, data.X_test[::step])
    members = system.members and system.members(model, data.X_test)
    found: dict[str, Any] = {
        "classes": classes.tolist(),
        "test_error": _percent(wrong),
        "valid_error": _percent(valid_predicted != data.y_valid),
        "test_log_loss": _log_loss(log_proba, data.y_test),
        "valid_log_loss": _log_loss(valid_log_proba, data.y_valid),
        "confusion": confusion_matrix(data.y_test, predicted, labels=classes),
        "wrong": wrong,
        "reliability": None if calibration is None else Reliability(**calibration),
        "energies": None if energies is None else histograms(energies, data.y_test[::step]),
        "curves": {stage: curve_of(each) for stage, each in model.history_.items()} if system.curves else {},
        "extra": {"members": [_percent(member != data.y_test) for member in members]} if members else {},
    }
    if pictures:
        found["mistakes"] = _mistakes(data, predicted, log_proba)
        filters = system.filters(model) if system.filters else {}
        found["filters"] = {kind: as_filters(*given, data.shape) for kind, given in filters.items()}
    return found


def _predict(system: System, model: Any, X: NDArray[np.float32]) -> tuple[Array | None, Labels]:
    if system.log_proba is None:
        return None, np.asarray(model.predict(X))
    log_proba = system.log_proba(model, X)
    return log_proba, model.classes_[log_proba.argmax(1)]


def _percent(wrong: NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(wrong)), 4)


def _log_loss(log_proba: Array | None, labels: Labels) -> float | None:
    return None if log_proba is None else round(float(-log_proba[np.arange(len(labels)), labels].mean()), 6)


def histograms(energies: Array, labels: Labels) -> Energies:
    """Histograms of the energies (n, K) of rows under their own class and under the others."""
    own = energies[np.arange(len(labels)), labels]
    others = energies[np.arange(energies.shape[1]) != labels[:, None]]
    low, high = np.quantile(np.concatenate([own, others]), [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-6), ENERGY_BINS + 1)
    counts = [np.histogram(np.clip(part, edges[0], edges[-1]), edges)[0].tolist() for part in (own, others)]
    return Energies([float(f"{edge:.6g}") for edge in edges], *counts)


def curve_of(history: History) -> Curve:
    """Loss and validation at some epochs, the mean over members; None where an epoch was not validated."""
    n_epochs, n_checks = len(history.loss), len(history.validation)
    checked = {epoch: _rounded(value) for epoch, value in zip(history.validated, history.validation, strict=True)}
    # At most twice POINTS, however the epochs and the validations fall.
    step, check_step = max(1, math.ceil(n_epochs / POINTS)), max(1, math.ceil(n_checks / POINTS))
    epochs = sorted({*range(1, n_epochs + 1, step), *list(checked)[::check_step]})
    return Curve(list(epochs), [_rounded(history.loss[e - 1]) for e in epochs], [checked.get(e) for e in epochs])


def _rounded(values: torch.Tensor) -> float:
    return float(f"{float(values.double().mean()):.5g}")


def _mistakes(data: Dataset, predicted: Labels, log_proba: Array | None) -> list[Mistake]:
    """Some rows that were taken for another class, the surest first where the system says how sure it is."""
    rows = np.flatnonzero(predicted != data.y_test)
    if log_proba is not None:
        rows = rows[np.argsort(-log_proba[rows].max(1), kind="stable")]
    return [
        Mistake(
            int(row),
            int(data.y_test[row]),
            int(predicted[row]),
            None if log_proba is None else round(float(np.exp(log_proba[row].max())), 4),
            _bytes(255 * data.X_test[row]).reshape(data.shape),
        )
        for row in rows[:MISTAKES]
    ]


def as_filters(weights: Array, classes: Labels, shape: tuple[int, int]) -> Filters:
    """Weights (n, D) as pictures, each scaled so that 0 is mid-grey."""
    top = np.abs(weights).max(1, keepdims=True)
    pixels = 128 + 127 * weights / np.where(top > 0, top, 1)
    return Filters(_bytes(pixels).reshape(-1, *shape), classes.tolist())


def _bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


# --- what is measured: rows of several labels --------------------------------------------------------------------


def measure_labels(p: Array, predicted: Array, Y: Array) -> dict[str, Any]:
    """All that the table says of probabilities and predictions (n, L).

    F1 is 1 where nothing is predicted and nothing is true.
    """
    percents = {"exact_match": 100 * (predicted == Y).all(1).mean(), **measures.f1_scores(predicted, Y)}
    brier = round(float(((p - Y) ** 2).mean()), 6)
    return {
        "test_error": _percent(predicted != Y),
        "test_log_loss": round(measures.log_loss(p, Y), 6),
        "measures": {**{name: round(float(value), 4) for name, value in percents.items()}, "brier": brier},
        "reliability": Reliability(**measures.reliability(p.ravel(), Y.ravel())),
    }


def covariance(p: Array, Y: Array, names: Sequence[str]) -> Covariance:
    """Covariances of the most frequent labels and of their predicted probabilities."""
    often = np.sort(np.argsort(-Y.sum(0), kind="stable")[:SHOWN_LABELS])
    true, said = (np.atleast_2d(np.cov(values[:, often], rowvar=False)) for values in (Y, p))
    scale = max(float(np.abs(matrix).max()) for matrix in (true, said)) or 1.0
    return Covariance([names[i] for i in often], true, said, scale)


def about_refining(model: Any) -> dict[str, Any]:
    """What a fitted refiner says of itself; of another model nothing."""
    fitted = vars(model)
    numbers = {"gate": fitted.get("gate_"), "n_steps": fitted.get("n_steps_")}
    gain = fitted.get("gain_")
    if gain is not None:
        numbers |= {"gain": gain.mean, "gain_standard_error": gain.standard_error}
    return {"verdict": fitted.get("verdict_", ""), "extra": {k: v for k, v in numbers.items() if v is not None}}


# --- circumstances -----------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """What ran."""
    names = ("energate", "torch", "scikit-learn", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # from a source tree that is not installed
            found[name] = importlib.import_module(name).__version__
    return found


def device_name(device: str) -> str:
    """The machine's part that did the work."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"


def memory(device: str) -> dict[str, float | None]:
    """The most memory so far, in MiB: of the device since the last reset, and of this process."""
    on_device = torch.cuda.max_memory_allocated() / 2**20 if device.startswith("cuda") else None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if platform.system() == "Darwin" else 2**10)
    return {"device_peak_mib": None if on_device is None else round(on_device, 1), "host_peak_mib": round(own, 1)}


def today() -> str:
    """The date, in words of ISO 8601."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


_KINDS: dict[str, Callable[[Task, Settings, Tell], None]] = {
    "data": _prepare,
    "search": _search,
    "cell": _cell,
    "labels": _labels,
}
