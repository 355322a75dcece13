"""Where trials come from and where their results are kept: a random search in SQLite, or a study of optuna.

A store may be killed at any time.  What was told is kept; what was only asked for is asked for again.
"""

import contextlib
import json
import math
import sqlite3
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from energate.errors import InputError, require
from energate.tuning._space import Dimensions, plain

Config = dict[str, Any]
Fingerprint = dict[str, str]
ABOUT, KEY = "energate", "fingerprint"
OWN_TABLE, OPTUNA_TABLE = "energate_trials", "studies"


@dataclass(frozen=True)
class Trial:
    """One configuration that was tried.

    ``value`` is infinite where ``state`` is ``"failed"`` instead of ``"complete"``; ``error`` then says why.
    ``together`` holds the numbers of the trials trained in one program with it, itself among them, in their order,
    and ``seconds`` is its share of the time of that program.
    """

    number: int
    params: Config
    value: float
    seconds: float
    state: str
    together: tuple[int, ...]
    error: str = ""


@dataclass(frozen=True)
class Plan:
    """What a store must know of a search: the space, trial 0, the rest of a configuration, and what must not change."""

    dimensions: Dimensions
    first: Config  # trial 0: the estimator as it came
    complete: Callable[[Config], Config]  # adds what follows from the parameters in the space
    fingerprint: Fingerprint
    seed: int

    def draw(self, number: int) -> Config:
        """Trial ``number`` of a random search: it depends on the seed and the number only."""
        if number == 0:
            return self.first
        rng = np.random.default_rng([self.seed, number])
        return self.complete({name: dimension.draw(rng) for name, dimension in self.dimensions.items()})


class Store(ABC):
    """A source of configurations that remembers results."""

    @abstractmethod
    def finished(self) -> list[Trial]:
        """What was told, by number."""

    @abstractmethod
    def config(self, number: int) -> Config:
        """The configuration of a trial that was asked for."""

    @abstractmethod
    def ask(self, n: int) -> list[int]:
        """Numbers of ``n`` new trials."""

    @abstractmethod
    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep results; returns when they are on the disk."""


def stored_by(path: Path | None) -> str | None:
    """Which sampler wrote a file, or None for a file that is not there or holds nothing yet."""
    if path is None or not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise InputError(f"`storage` {path} is no SQLite file ({error}). Give another path.") from error
    if tables and not {OWN_TABLE, OPTUNA_TABLE} & tables:
        raise InputError(f"`storage` {path} is a database of something else. Give another path.")
    return ("random" if OWN_TABLE in tables else "optuna") if tables else None


def stored_seed(path: Path | None, study_name: str) -> int | None:
    """The seed of a search that a file holds, for one that goes on without a ``random_state``."""
    kind = stored_by(path)
    if path is None or kind is None:
        return None
    found: Any = None
    if kind == "random":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT fingerprint FROM energate_studies WHERE name = ?", (study_name,))
            found = json.loads((rows.fetchone() or ["{}"])[0])
    else:
        optuna = require("optuna", "tune")
        with _storage(optuna, path) as storage, _quiet(optuna):
            names = [study.study_name for study in optuna.get_all_study_summaries(storage)]
            if study_name in names:
                found = optuna.load_study(study_name=study_name, storage=storage).user_attrs.get(KEY, {})
    return int(found["seed"]) if found else None


def open_store(kind: str, plan: Plan, path: Path | None, study_name: str) -> contextlib.AbstractContextManager[Store]:
    """The store of a sampler, on disk or, without a path, in memory."""
    return _open_random(plan, path, study_name) if kind == "random" else _open_optuna(plan, path, study_name)


def _check_same(found: Fingerprint, plan: Plan, study_name: str) -> None:
    changed = [name for name, value in plan.fingerprint.items() if found.get(name) != value]
    if changed:
        details = "; ".join(f"{name}: stored {found.get(name)}, now {plan.fingerprint[name]}" for name in changed)
        raise InputError(
            f"The study {study_name!r} in `storage` belongs to another search: its {', '.join(changed)} differs. "
            f"Go on with what it was made with, or give another `storage` or `study_name`. {details[:1500]}"
        )


# --- random search --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_random(plan: Plan, path: Path | None, study_name: str) -> Iterator[Store]:
    with contextlib.closing(sqlite3.connect(":memory:" if path is None else path)) as connection:
        yield RandomStore(connection, plan, study_name)


class RandomStore(Store):
    """Random search.  Only finished trials are in the file, those of one program in one transaction."""

    def __init__(self, connection: sqlite3.Connection, plan: Plan, study_name: str) -> None:
        self.connection, self.plan, self.study_name = connection, plan, study_name
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # all tables or none
            connection.execute("CREATE TABLE IF NOT EXISTS energate_studies (name TEXT PRIMARY KEY, fingerprint TEXT)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS energate_trials (study TEXT, number INTEGER, params TEXT, value REAL, "
                "seconds REAL, state TEXT, together TEXT, error TEXT, PRIMARY KEY (study, number))"
            )
            connection.execute(
                "INSERT OR IGNORE INTO energate_studies VALUES (?, ?)", (study_name, json.dumps(plan.fingerprint))
            )
        rows = connection.execute("SELECT fingerprint FROM energate_studies WHERE name = ?", (study_name,))
        _check_same(json.loads(rows.fetchone()[0]), plan, study_name)

    def finished(self) -> list[Trial]:
        rows = self.connection.execute(
            "SELECT number, value, seconds, state, together, error FROM energate_trials WHERE study = ? "
            "ORDER BY number",
            (self.study_name,),
        )
        return [
            Trial(number, self.config(number), value, seconds, state, tuple(json.loads(together)), error)
            for number, value, seconds, state, together, error in rows
        ]

    def config(self, number: int) -> Config:
        return self.plan.draw(number)

    def ask(self, n: int) -> list[int]:
        done = {trial.number for trial in self.finished()}
        return [number for number in range(len(done) + n) if number not in done][:n]

    def tell(self, trials: Sequence[Trial]) -> None:
        rows = [
            (
                self.study_name,
                trial.number,
                json.dumps({name: plain(value) for name, value in trial.params.items()}),
                trial.value,
                trial.seconds,
                trial.state,
                json.dumps(trial.together),
                trial.error,
            )
            for trial in trials
        ]
        with self.connection:
            self.connection.executemany("INSERT INTO energate_trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


# --- optuna -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without optuna's lines per trial and its warnings of arguments that may change."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


@contextlib.contextmanager
def _storage(optuna: Any, path: Path | None) -> Iterator[Any]:
    if path is None:
        yield optuna.storages.InMemoryStorage()
        return
    with _quiet(optuna):
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


@contextlib.contextmanager
def _open_optuna(plan: Plan, path: Path | None, study_name: str) -> Iterator[Store]:
    optuna = require("optuna", "tune")
    with _storage(optuna, path) as storage:
        yield OptunaStore(optuna, storage, plan, study_name)


class OptunaStore(Store):
    """A study with the tree-structured Parzen estimator.

    Parameters are modelled one by one: trial 0, the estimator as it came, may lie outside the space in some of them.
    """

    def __init__(self, optuna: Any, storage: Any, plan: Plan, study_name: str) -> None:
        self.optuna, self.plan = optuna, plan
        self.asked: dict[int, Any] = {}
        states = optuna.trial.TrialState
        with _quiet(optuna):
            self.study = optuna.create_study(storage=storage, study_name=study_name, load_if_exists=True)
            trials, found = self.study.get_trials(deepcopy=False), self.study.user_attrs.get(KEY)
            if found is None and trials:
                raise InputError(f"The study {study_name!r} in `storage` is not from here. Give another `study_name`.")
            if found is not None:
                _check_same(found, plan, study_name)
            self.study.set_user_attr(KEY, plan.fingerprint)
            for trial in trials:
                if trial.state == states.RUNNING:  # its process was killed
                    self.study.tell(trial.number, state=states.FAIL)
            alive = [trial for trial in trials if trial.state in (states.COMPLETE, states.WAITING)]
            if not any(trial.user_attrs.get("first") for trial in alive):
                inside = {name: plain(plan.first[name]) for name in plan.dimensions if self._inside(name)}
                self.study.enqueue_trial(inside, user_attrs={"first": True})
            # After a restart the sampler must not repeat the numbers that it began with.
            seed = int(np.random.SeedSequence([plan.seed, len(trials)]).generate_state(1)[0])
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=False, constant_liar=True)

    def _inside(self, name: str) -> bool:
        return self.plan.dimensions[name].holds(self.plan.first[name])

    def _config(self, trial: Any) -> Config:
        if trial.user_attrs.get("first"):
            return self.plan.first
        return self.plan.complete(
            {name: dimension.value(trial.params[name]) for name, dimension in self.plan.dimensions.items()}
        )

    def finished(self) -> list[Trial]:
        states = [self.optuna.trial.TrialState.COMPLETE]
        return [
            Trial(
                trial.number,
                self._config(trial),
                trial.value,
                about["seconds"],
                "complete" if math.isfinite(trial.value) else "failed",
                tuple(about["together"]),
                about["error"],
            )
            for trial in self.study.get_trials(deepcopy=False, states=states)
            for about in [trial.user_attrs[ABOUT]]
        ]

    def config(self, number: int) -> Config:
        return self._config(self.study.get_trials(deepcopy=False)[number])

    def ask(self, n: int) -> list[int]:
        numbers = []
        with _quiet(self.optuna):
            for _ in range(n):
                trial = self.study.ask()
                first = trial.user_attrs.get("first", False)
                for name, dimension in self.plan.dimensions.items():
                    if not first or self._inside(name):
                        dimension.suggest(trial, name)
                self.asked[trial.number] = trial
                numbers.append(trial.number)
        return numbers

    def tell(self, trials: Sequence[Trial]) -> None:
        with _quiet(self.optuna):
            for trial in trials:
                about = {"seconds": trial.seconds, "together": trial.together, "error": trial.error}
                asked = self.asked.pop(trial.number)
                asked.set_user_attr(ABOUT, about)
                self.study.tell(asked, trial.value)
