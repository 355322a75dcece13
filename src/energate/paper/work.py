"""What one process does: prepare a data set, choose hyper-parameters, fit and test the cells of a table."""

import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from energate.datasets import Dataset, load
from energate.errors import InputError
from energate.estimators.edge import resolve_device
from energate.estimators.progress import watching
from energate.paper import measuring
from energate.paper.cell import Cell, Config, Search, find_search, provenance_of, write_cell, write_search
from energate.paper.plan import Profile, Table
from energate.paper.spaces import label_space, space, variant_of
from energate.paper.splits import LabelData, Split, load_labels
from energate.paper.systems import LABEL_SYSTEMS, Parts, System, choose, systems_of
from energate.training import Progress

CHOSEN_BY = "least sum of ranks by validation error and validation log-loss"
SEARCH_SEED = 1000  # of its own, so that no cell profits from the draw that chose its configuration
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

    @property
    def n_cells(self) -> int:
        return len(self.parts) if self.kind == "labels" else int(self.kind == "cell")

    def __str__(self) -> str:
        ends = {"search": " search", "cell": f" seed {self.seed}", "labels": f" split {self.seed}"}
        return f"{self.data} {self.system}".strip() + ends.get(self.kind, "")


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
        return self.results / self.table.name / data / system / f"{self.table.repeat}{number}.json"

    def system(self, name: str) -> System:
        """A column of the table."""
        return systems_of(self.table)[name]

    def device_of(self, name: str) -> str:
        """Where a system is fitted."""
        return str(resolve_device(self.device)) if self.system(name).on_gpu else "cpu"


def recipe(system: str, data: str, profile: Profile) -> Config:
    """All that a cell of a table of labels is made from, beside the rows: where it differs, the cell is made anew."""
    how = LABEL_SYSTEMS[system]
    edition = {} if how.edition == 1 else {"edition": how.edition}
    return as_json({"space": label_space(system, data, profile.search), "base": how.base or None, **edition})


def as_json(config: Config) -> Config:
    """A configuration as it comes back from a file."""
    found: Config = json.loads(json.dumps(config))
    return found


def configuration(results: Path, table: str, data: str, system: str, profile: Profile) -> Config | None:
    """The configuration of a cell: the only one, the one that a search has chosen, or None before that search.

    A variant takes over what the search of the first table has chosen.
    """
    variant = variant_of(system)
    if variant is not None:
        config = configuration(results, "table1", data, variant[0], profile)
        if config is None:
            raise InputError(
                f"{system} on {data} takes the configuration that table1 chose for {variant[0]}, which is not there. "
                f"First run `energate bench table1 --profile {profile.name} --data {data} --system {variant[0]}`."
            )
        return {**config, **variant[1]}
    configs = space(system, data, profile.search)
    if len(configs) == 1:
        return configs[0]
    found = find_search(results / table / data / system / "search.json")
    if found is None or found.space != as_json({"configs": configs})["configs"] or found.profile != profile.name:
        return None
    return None if found.chosen is None else found.trials[found.chosen].config


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
    table, how = settings.table, settings.system(system)
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
        **({"repeat": table.repeat, "metric": "mean per-label error"} if table.labels else {}),
        "base": how.base,
        "versions": measuring.versions(),
        "device": measuring.device_name(settings.device_of(system)),
        "date": measuring.today(),
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
    (data, _), system = _rows(task, settings), settings.system(task.system)
    device = settings.device_of(task.system)
    configs = space(task.system, task.data, settings.profile.search)
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
        device=measuring.device_name(device),
        date=measuring.today(),
    )
    write_search(settings.place(task.data, task.system, 0).with_name("search.json"), found)


def _cell(task: Task, settings: Settings, tell: Tell) -> None:
    """Fit a system with one seed, and test it."""
    (data, test_slice), system, profile = _rows(task, settings), settings.system(task.system), settings.profile
    device, place = settings.device_of(task.system), settings.place(task.data, task.system, task.seed)
    config = configuration(settings.results, settings.table.name, task.data, task.system, profile)
    assert config is not None  # cells come after their search
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with watching(_watcher(task, tell)):
        model = system.fit(parts_of(data), config, device, task.seed)
    fitted = time.perf_counter()
    found = measuring.measure_classes(system, model, data, pictures=task.seed == 0)
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
        memory=measuring.memory(device),
        provenance=provenance_of(data.provenance),
    )
    write_cell(place, done)


# --- rows of several labels: a choice in every split, fits shared within it --------------------------------------


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
                done = Cell(**_head(task, settings, name), **found, recipe=made_from, memory=measuring.memory(device))
                write_cell(settings.place(task.data, name, task.seed), done)
                tell(Event(task, "epoch", name))
            except Exception as error:  # one system must not stop the others
                _note_failure(task, settings, name, error)
                failed.append(f"{name}: {type(error).__name__}: {error}".partition("\n")[0])
    if failed:
        raise RuntimeError("; ".join(failed))


_KINDS: dict[str, Callable[[Task, Settings, Tell], None]] = {
    "data": _prepare,
    "search": _search,
    "cell": _cell,
    "labels": _labels,
}
