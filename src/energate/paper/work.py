"""What one process does: prepare a data set, choose hyper-parameters, fit and test one cell."""

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
from energate.paper import measures
from energate.paper.labelcells import LabelData, Split, do_family, load_labels
from energate.paper.labels import base_of, edition_of, label_space
from energate.paper.measures import read_json, write_json
from energate.paper.spaces import Config, space, variant_of
from energate.paper.systems import SYSTEMS, Parts, Trial, choose
from energate.paper.tables import PROFILES, TABLES, Profile, Table
from energate.training import Progress

CHOSEN_BY = "least sum of ranks by validation error and validation log-loss"
_PARTS = ("train", "valid", "test")
_EVENTS: multiprocessing.connection.Connection | None = None  # of a process that does tasks for another


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

    table: str
    profile: str
    results: Path
    scratch: str
    device: str
    source: str
    folder: str | os.PathLike[str] | None


def n_seeds(table: Table, system: str, wanted: int) -> int:
    """A system that is not random has one seed; every system has all splits."""
    return wanted if table.labels or SYSTEMS[system].random else 1


def place_of(settings: "Settings", data: str, system: str, number: int) -> Path:
    """The file of a cell."""
    table = TABLES[settings.table]
    return settings.results / table.name / data / system / f"{table.repeat}{number}.json"


def recipe(system: str, data: str, profile: Profile) -> Config:
    """All that a cell of a table of labels is made from, beside the rows: where it differs, the cell is made anew."""
    edition = {} if edition_of(system) == 1 else {"edition": edition_of(system)}
    return as_json({"space": label_space(system, data, profile.search), "base": base_of(system), **edition})


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
    found = read_json(results / table / data / system / "search.json") or {}
    if found.get("space") != as_json({"configs": configs})["configs"] or found.get("profile") != profile.name:
        return None
    chosen: Config = found["trials"][found["chosen"]]["config"]
    return chosen


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


def do(task: Task, settings: Settings, tell: Callable[[Event], None]) -> str:
    """Do a task; what went wrong, or nothing."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        {"data": _prepare, "search": _search, "cell": _cell, "labels": _labels}[task.kind](task, settings, tell)
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
    write_json(
        place_of(settings, task.data, system, task.seed),
        {
            **_head(task, settings, system),
            "status": "failed",
            "error": f"{type(error).__name__}: {error}\n{where}",
        },
    )


# --- the tasks ----------------------------------------------------------------------------------------------------


def _prepare(task: Task, settings: Settings, tell: Callable[[Event], None]) -> None:  # noqa: ARG001
    """Load a data set once, and leave its arrays where all processes can read them."""
    place = Path(settings.scratch) / task.data
    place.mkdir(exist_ok=True)
    if TABLES[settings.table].labels:
        found = load_labels(task.data, settings.source, settings.folder)
        np.savez(place / "rows.npz", X=found.X, Y=found.Y)
        about = {"names": found.names, "provenance": found.provenance}
        (place / "about.json").write_text(json.dumps(about))
        return
    data = load(task.data, source=settings.source, folder=settings.folder)
    for part in _PARTS:
        np.save(place / f"X_{part}.npy", getattr(data, f"X_{part}"))
        np.save(place / f"y_{part}.npy", getattr(data, f"y_{part}"))
    (place / "about.json").write_text(json.dumps({"shape": data.shape, "provenance": data.provenance}))


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


def _labels(task: Task, settings: Settings, tell: Callable[[Event], None]) -> None:
    """The cells of one split, of systems that share fits."""
    profile = PROFILES[settings.profile]
    device = str(resolve_device(settings.device))
    data = _read_labels(Path(settings.scratch) / task.data)
    split = Split(data, task.data, task.seed, device, profile.search)

    def save(system: str, found: dict[str, Any]) -> None:
        body = {"status": "ok", "error": "", **found, "recipe": recipe(system, task.data, profile)}
        content = {**_head(task, settings, system), **body, "memory": measures.memory(device)}
        write_json(place_of(settings, task.data, system, task.seed), content)
        tell(Event(task, "epoch", system))

    def fail(system: str, error: Exception) -> None:
        _note_failure(task, settings, system, error)

    with watching(_watcher(task, tell)), threadpool_limits(torch.get_num_threads()):
        failed = do_family(split, task.parts, save, fail)
    if failed:
        raise RuntimeError("; ".join(failed))


def _rows(task: Task, settings: Settings) -> Dataset:
    data = _read(Path(settings.scratch) / task.data)
    every = _every(data, settings)
    return replace(data, X_test=data.X_test[::every], y_test=data.y_test[::every])


def _every(data: Dataset, settings: Settings) -> int:
    """One test row in so many is used; sets of some hundred test rows are used whole."""
    return PROFILES[settings.profile].every if len(data.y_test) >= 5000 else 1


def _parts(data: Dataset) -> Parts:
    return Parts(data.X_train, data.y_train, data.X_valid, data.y_valid)


def _search(task: Task, settings: Settings, tell: Callable[[Event], None]) -> None:
    """Try the configurations of a system on the validation rows."""
    data, system = _rows(task, settings), SYSTEMS[task.system]
    device = _device(settings, task)
    configs = space(task.system, task.data, PROFILES[settings.profile].search)
    began = time.perf_counter()
    with watching(_watcher(task, tell)):
        trials = system.search(_parts(data), configs, device, seed=1000)
    if not any(np.isfinite(trial.valid_error) for trial in trials):
        raise RuntimeError(f"no configuration could be trained; the first said: {trials[0].error}")
    _write_search(task, settings, configs, trials, time.perf_counter() - began, device)


def _write_search(
    task: Task, settings: Settings, configs: list[Config], trials: list[Trial], seconds: float, device: str
) -> None:
    write_json(
        settings.results / settings.table / task.data / task.system / "search.json",
        {
            "schema": measures.SCHEMA,
            "table": settings.table,
            "profile": settings.profile,
            "data": task.data,
            "system": task.system,
            "space": configs,
            "trials": [trial.as_json() for trial in trials],
            "chosen": choose(trials),
            "chosen_by": CHOSEN_BY,
            "seconds": round(seconds, 3),
            "device": measures.device_name(device),
            "date": measures.today(),
        },
    )


def _cell(task: Task, settings: Settings, tell: Callable[[Event], None]) -> None:
    """Fit a system with one seed, and test it."""
    data, system, profile = _rows(task, settings), SYSTEMS[task.system], PROFILES[settings.profile]
    device = _device(settings, task)
    place = settings.results / settings.table / task.data / task.system
    config = configuration(settings.results, settings.table, task.data, task.system, profile)
    assert config is not None  # cells come after their search
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with watching(_watcher(task, tell)):
        model = system.fit(_parts(data), config, device, task.seed)
    fitted = time.perf_counter()
    found = measures.measure(system, model, data, pictures=task.seed == 0)
    predicted = time.perf_counter()
    search = read_json(place / "search.json") if profile.search else None
    every = _every(_read(Path(settings.scratch) / task.data), settings)
    write_json(
        place / f"seed{task.seed}.json",
        {
            **_head(task, settings, task.system),
            "status": "ok",
            "error": "",
            "shape": list(data.shape),
            "n_train": len(data.y_train),
            "n_valid": len(data.y_valid),
            "n_test": len(data.y_test),
            "test_slice": None if every == 1 else f"one test row in {every}, from the first on",
            **found,
            "config": config,
            "search": search
            and {
                "n_trials": len(search["trials"]),
                "seconds": search["seconds"],
                "chosen_by": search["chosen_by"],
            },
            "seconds": {"fit": round(fitted - began, 3), "predict": round(predicted - fitted, 3)},
            "memory": measures.memory(device),
            "provenance": data.provenance,
        },
    )


def _head(task: Task, settings: Settings, system: str) -> dict[str, Any]:
    """What a cell says even if it failed."""
    table = TABLES[settings.table]
    order = list(dict.fromkeys([*table.data, *PROFILES[settings.profile].data_of(table)]))
    base = base_of(system) if table.labels else None
    of_labels = {"repeat": table.repeat, "metric": "mean per-label error"} if table.labels else {}
    return {
        "schema": measures.SCHEMA,
        "table": table.name,
        "title": table.title,
        "profile": settings.profile,
        "data": task.data,
        "data_label": task.data,
        "system": system,
        "system_label": table.systems[system],
        "seed": task.seed,
        "order": {"data": order.index(task.data), "system": list(table.systems).index(system)},
        "published": table.published.get(task.data, {}).get(system),
        "ours": system in table.ours,
        "apart": table.apart.get(system, ""),
        "random": table.labels or SYSTEMS[system].random,
        **of_labels,
        **({"base": base} if base else {}),
        "versions": measures.versions(),
        "device": measures.device_name(_device(settings, task)),
        "date": measures.today(),
    }


def _device(settings: Settings, task: Task) -> str:
    on_gpu = task.kind == "labels" or SYSTEMS[task.system].on_gpu
    return str(resolve_device(settings.device)) if on_gpu else "cpu"


def _watcher(task: Task, tell: Callable[[Event], None]) -> Callable[[str, Progress], None]:
    last = [0.0]

    def watch(stage: str, progress: Progress) -> None:
        now = time.monotonic()
        if now - last[0] < 0.5 and progress.epoch < progress.n_epochs:  # a terminal needs no more
            return
        last[0] = now
        best = None if progress.best is None else float(progress.best.min())
        tell(Event(task, "epoch", stage, progress.epoch, progress.n_epochs, best))

    return watch
