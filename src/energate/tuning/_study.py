"""Trials: where they come from and are kept, a study of optuna; and how they are trained, several as one program.

A search may be killed at any time.  What was told is kept; what was only asked for is asked for again.  Several
processes may share a study: each trial says whose it is, and while its process lives, that it does.
"""

import contextlib
import glob
import hashlib
import json
import math
import os
import socket
import sqlite3
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energate.claims import BEAT, STALE, is_alive
from energate.engines import Actors
from energate.errors import InputError
from energate.estimators import EnergyClassifier
from energate.estimators.kinds import kind_of
from energate.estimators.together import Config, member_logits, merged, or_each_alone, programs
from energate.training import History
from energate.training.calibration import negative_log_likelihood
from energate.training.classes import LabelledRows
from energate.tuning._space import Dimensions, plain

Fingerprint = dict[str, str]
Numbered = tuple[int, Config]
ABOUT, KEY, SAMPLER = "energate", "fingerprint", "sampler"
OWNER, BEATS = "owner", "beats"  # of a trial: host and process, and how often that has said that it lives
JOURNAL = ".journal"  # what the names of journals end with; other files are SQLite's
OLD_TABLE, OPTUNA_TABLE = "energate_trials", "studies"


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
    """What a study must know of a search: the space, trial 0, the rest of a configuration, and what must not change."""

    dimensions: Dimensions
    first: Config  # trial 0: the estimator as it came
    complete: Callable[[Config], Config]  # adds what follows from the parameters in the space
    fingerprint: Fingerprint
    seed: int


# --- the study ---------------------------------------------------------------------------------------------------


def _parzen(optuna: Any, seed: int) -> Any:
    """Parameters are modelled one by one: trial 0, the estimator as it came, may lie outside the space in some."""
    return optuna.samplers.TPESampler(seed=seed, multivariate=False, constant_liar=True)


def _random(optuna: Any, seed: int) -> Any:
    return optuna.samplers.RandomSampler(seed=seed)


#: samplers by name
SAMPLERS = {"optuna": _parzen, "random": _random}


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
def open_storage(optuna: Any, path: Path | None) -> Iterator[Any]:
    """Optuna's storage in an SQLite file or a journal, or without a path in memory; files of others are refused."""
    if path is None:
        yield optuna.storages.InMemoryStorage()
        return
    if path.suffix == JOURNAL:
        _check_journal(path)
        with _quiet(optuna):
            journal = optuna.storages.journal.JournalFileBackend(str(path))
            yield optuna.storages.JournalStorage(journal)
        return
    if not path.exists() or not path.stat().st_size:
        # The tables are made one by one: a search that is killed meanwhile must not leave some of them.
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        for rest in path.parent.glob(f".{glob.escape(path.name)}.*.part*"):
            rest.unlink(missing_ok=True)
        try:
            with _connected(optuna, part):
                pass
            if not path.exists() or not path.stat().st_size:  # another process may have been quicker
                part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    _check_tables(path)
    with undamaged(path), _connected(optuna, path) as storage:
        yield storage


@contextlib.contextmanager
def _connected(optuna: Any, path: Path) -> Iterator[Any]:
    with _quiet(optuna):
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _check_journal(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        first = file.readline()
        if first and not first.startswith(b'{"op_code"'):
            raise InputError(f"`storage` {path} is no journal of optuna. Give another path.")


_WAY_OUT = (
    "Put a copy of it in its place; or see what `sqlite3 FILE .recover` saves; or give another path, and the search "
    "begins anew."
)


class _UnreadableError(Exception):
    """What is in a study is not what was written there."""


def _damaged(path: Path, why: object) -> InputError:
    return InputError(f"`storage` {path} is damaged ({' '.join(str(why).split())[:200]}). {_WAY_OUT}")


@contextlib.contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Of errors of the database, and of what is in it, say which file it is, and what to do."""
    import sqlalchemy.exc

    try:
        yield
    except sqlalchemy.exc.OperationalError as error:
        if "malformed" in str(error) or "no such" in str(error):
            raise _damaged(path, error.orig) from error
        raise InputError(
            f"`storage` {path} cannot be used ({error.orig}). One process at a time, in a folder with room."
        ) from error
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, _UnreadableError) as error:
        raise _damaged(path, error) from error


def _check_tables(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            told = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    except sqlite3.OperationalError as error:
        raise InputError(f"`storage` {path} cannot be opened ({error}). One process at a time.") from error
    except sqlite3.DatabaseError as error:
        with path.open("rb") as file:
            head = file.read(16)
        if head == b"SQLite format 3\0":
            raise _damaged(path, error) from error
        raise InputError(f"`storage` {path} is no SQLite file ({error}). Give another path.") from error
    if told != ["ok"]:
        raise _damaged(path, told[0])
    if OLD_TABLE in tables:
        raise InputError(
            f"`storage` {path} was written by the random search of an older energate, which this one cannot go on "
            "with. Give another path."
        )
    if tables and OPTUNA_TABLE not in tables:
        raise InputError(f"`storage` {path} is a database of something else. Give another path.")


def stored_attributes(optuna: Any, storage: Any, study_name: str) -> dict[str, Any]:
    """What a study that is already in a storage says of itself; nothing for one that is not."""
    with _quiet(optuna), _readable(study_name):
        found = [study for study in optuna.get_all_study_summaries(storage) if study.study_name == study_name]
        return dict(found[0].user_attrs) if found else {}


@contextlib.contextmanager
def _readable(study_name: str) -> Iterator[None]:
    """What is in a study must be what was written there."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError) as error:
        raise _UnreadableError(f"the study {study_name!r} cannot be read: {type(error).__name__}: {error}") from error


class Study:
    """A source of configurations that remembers results."""

    def __init__(self, optuna: Any, storage: Any, plan: Plan, study_name: str, sampler: str) -> None:
        self.optuna, self.plan, self.sampler = optuna, plan, sampler
        self.asked: dict[int, Any] = {}
        self.lock = threading.Lock()
        self.seen: dict[int, tuple[Any, float]] = {}  # of others' trials: how often they beat, and since when
        states = optuna.trial.TrialState
        with _quiet(optuna), _readable(study_name):
            self.study = optuna.create_study(storage=storage, study_name=study_name, load_if_exists=True)
            trials, found = self.study.get_trials(deepcopy=False), self.study.user_attrs.get(KEY)
            if found is None and trials:
                raise InputError(f"The study {study_name!r} in `storage` is not from here. Give another `study_name`.")
            if found is not None:
                _check_same(found, plan, study_name)
            self.study.set_user_attr(KEY, plan.fingerprint)
            self.study.set_user_attr(SAMPLER, sampler)
            self.n_elsewhere()  # gives up what killed processes were at
            alive = self.study.get_trials(deepcopy=False, states=(states.COMPLETE, states.WAITING, states.RUNNING))
            if not any(trial.user_attrs.get("first") for trial in alive):
                inside = {name: plain(plan.first[name]) for name in plan.dimensions if self._inside(name)}
                self.study.enqueue_trial(inside, user_attrs={"first": True})

    def n_elsewhere(self) -> int:
        """How many trials other processes are at; those of processes that were killed are given up."""
        states, count = self.optuna.trial.TrialState, 0
        with _quiet(self.optuna):
            for trial in self.study.get_trials(deepcopy=False, states=[states.RUNNING]):
                if trial.number in self.asked:
                    continue
                if self._is_left(trial):
                    with contextlib.suppress(ValueError):  # it was told in this moment
                        self.study.tell(trial.number, state=states.FAIL)
                else:
                    count += 1
        return count

    def _is_left(self, trial: Any) -> bool:
        """Whether nobody is at a trial any more."""
        owner, beats = trial.user_attrs.get(OWNER), trial.user_attrs.get(BEATS)
        if owner is None:
            return time.time() - trial.datetime_start.timestamp() > BEAT  # it says so at once
        if owner["host"] == socket.gethostname() and (owner["pid"] == os.getpid() or not is_alive(owner["pid"])):
            return True
        before, since = self.seen.setdefault(trial.number, (beats, time.monotonic()))
        if before != beats:
            self.seen[trial.number] = beats, time.monotonic()
            return False
        return time.monotonic() - since > STALE

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Let others see that the trials that were asked for are worked at."""
        ended, failures = threading.Event(), (self.optuna.exceptions.OptunaError, RuntimeError)

        def beat() -> None:
            count = 0
            while not ended.wait(BEAT):
                count += 1
                with self.lock, contextlib.suppress(*failures):
                    for trial in self.asked.values():
                        trial.set_user_attr(BEATS, count)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _inside(self, name: str) -> bool:
        return self.plan.dimensions[name].holds(self.plan.first[name])

    def _config(self, trial: Any) -> Config:
        if trial.user_attrs.get("first"):
            return self.plan.first
        return self.plan.complete(
            {name: dimension.value(trial.params[name]) for name, dimension in self.plan.dimensions.items()}
        )

    def finished(self) -> list[Trial]:
        """What was told, by number."""
        states = [self.optuna.trial.TrialState.COMPLETE]
        with _readable(self.study.study_name):
            return [self._told(trial) for trial in self.study.get_trials(deepcopy=False, states=states)]

    def _told(self, trial: Any) -> Trial:
        about = trial.user_attrs[ABOUT]
        if about.get("sum", found := _sum(trial.params, trial.value)) != found:
            raise ValueError(f"trial {trial.number} is not as it was written")
        state = "complete" if math.isfinite(trial.value) else "failed"
        together = tuple(about["together"])
        return Trial(trial.number, self._config(trial), trial.value, about["seconds"], state, together, about["error"])

    def config(self, number: int) -> Config:
        """The configuration of a trial that was asked for."""
        return self._config(self.study.get_trials(deepcopy=False)[number])

    def ask(self, n: int) -> list[int]:
        """Numbers of ``n`` new trials."""
        numbers = []
        with _quiet(self.optuna):
            for _ in range(n):
                # A sampler of its own for every trial: a search that was stopped goes on as if it had not been.
                n_before = len(self.study.get_trials(deepcopy=False))
                seed = int(np.random.SeedSequence([self.plan.seed, n_before]).generate_state(1)[0])
                self.study.sampler = SAMPLERS[self.sampler](self.optuna, seed)
                trial = self.study.ask()
                trial.set_user_attr(OWNER, {"host": socket.gethostname(), "pid": os.getpid()})
                first = trial.user_attrs.get("first", False)
                for name, dimension in self.plan.dimensions.items():
                    if not first or self._inside(name):
                        dimension.suggest(trial, name)
                with self.lock:
                    self.asked[trial.number] = trial
                numbers.append(trial.number)
        return numbers

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep results; returns when they are on the disk."""
        with self.lock, _quiet(self.optuna):
            for trial in trials:
                about = {"seconds": trial.seconds, "together": trial.together, "error": trial.error}
                asked = self.asked.pop(trial.number)
                if self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                    continue  # another process had given it up
                asked.set_user_attr(ABOUT, {**about, "sum": _sum(asked.params, trial.value)})
                self.study.tell(asked, trial.value)


def _sum(params: Config, value: float) -> str:
    """Tells whether the parameters and the result of a trial are still those that were written."""
    return hashlib.sha256(json.dumps([sorted(params.items()), float(value)]).encode()).hexdigest()[:16]


def _check_same(found: Fingerprint, plan: Plan, study_name: str) -> None:
    changed = [name for name, value in plan.fingerprint.items() if found.get(name) != value]
    if changed:
        details = "; ".join(f"{name}: stored {found.get(name)}, now {plan.fingerprint[name]}" for name in changed)
        raise InputError(
            f"The study {study_name!r} in `storage` belongs to another search: its {', '.join(changed)} differs. "
            f"Go on with what it was made with, or give another `storage` or `study_name`. {details[:1500]}"
        )


# --- training ----------------------------------------------------------------------------------------------------


class Trainer:
    """Trains configurations, several as the members of one classifier, and keeps the best estimator."""

    def __init__(self, base: Config, X: Any, y: Any, sample_weight: Any, objective: str) -> None:
        self.base, self.data, self.objective = base, (X, y, sample_weight), objective
        self.best: tuple[Trial, EnergyClassifier] | None = None

    def run(self, configs: Sequence[Numbered]) -> Iterator[list[Trial]]:
        """Train configurations, program by program; one that fails spoils no other."""
        for program in programs([{"units": self.base["units"], **config} for _, config in configs]):
            yield or_each_alone([configs[i] for i in program], self.train, _failed)

    def run_on(self, actors: Actors, configs: Sequence[Numbered], n_together: int) -> Iterator[list[Trial]]:
        """The same by workers of Ray, in whatever order programs of no more than some configurations end."""
        left = deque(
            [configs[i] for i in program[first : first + n_together]]
            for program in programs([{"units": self.base["units"], **config} for _, config in configs])
            for first in range(0, len(program), n_together)
        )
        while left or actors.waiting:
            while left and actors.idle:
                actors.give(left[0], left.popleft())
            for program, trials in actors.finished():
                if isinstance(trials, actors.ray.exceptions.RayActorError):
                    error = InputError("Its training ended two workers; perhaps there is not enough memory.")
                    yield [_failed(config, error, 0.0) for config in program]
                elif isinstance(trials, Exception):
                    raise trials
                else:
                    yield trials

    def train(self, configs: Sequence[Numbered], keep: int | None = None) -> list[Trial]:
        """Train configurations as one program; ``keep`` is the number of the one to keep, else it is the best."""
        began = time.perf_counter()
        lead = EnergyClassifier(**self.base).set_params(**merged([config for _, config in configs]))
        train, valid, seed = lead._prepare(*self.data)
        assert valid is not None  # the split depends on nothing that a space may hold
        lead._train(train, valid, seed)
        values = _measure(lead, valid, self.objective)
        seconds, together = (time.perf_counter() - began) / len(configs), tuple(number for number, _ in configs)
        trials = []
        for c, (number, config) in enumerate(configs):
            trial = Trial(number, config, values[c], seconds, "complete", together)
            if not math.isfinite(values[c]):
                error = f"The {self.objective} of the rows held out is not finite."
                trial = replace(trial, value=math.inf, state="failed", error=error)
            trials.append(trial)
            better = self.best is None or (trial.value, number) < (self.best[0].value, self.best[0].number)
            if number == keep or (keep is None and trial.state == "complete" and better):
                self.best = trial, self._alone(lead, c, config, valid)
        return trials

    def _alone(self, lead: EnergyClassifier, c: int, config: Config, valid: LabelledRows) -> EnergyClassifier:
        """Member c as an estimator of its own, as `fit` would leave it."""
        if kind_of(lead.units).whole:
            return lead.set_params(**config)
        alone = EnergyClassifier(**self.base).set_params(**config)
        names = ("classes_", "cells_", "scaler_", "n_features_in_", "feature_names_in_")
        for name in (*names, "breadth_", "skip_", "n_units_", "n_rounds_"):
            if name in vars(lead):
                setattr(alone, name, getattr(lead, name))
        alone.generative_weights_ = lead.generative_weights_[c : c + 1]
        alone.history_ = {stage: _one(history, c) for stage, history in lead.history_.items()}
        alone.model_ = lead.model_.member(c).float()  # as `_settle` finds it after training
        with torch.no_grad():
            alone._settle(alone.model_.energies(valid.v))
        return alone


class TrialActor:
    """A worker of Ray that trains programs."""

    def __init__(self, place: str) -> None:
        from ray import cloudpickle

        self.trainer: Trainer = cloudpickle.loads(Path(place).read_bytes())

    def do(self, program: Sequence[Numbered]) -> list[Trial]:
        return or_each_alone(program, self.trainer.train, _failed)


def _failed(config: Numbered, error: Exception, seconds: float) -> Trial:
    number, params = config
    return Trial(number, params, math.inf, seconds, "failed", (number,), str(error))


def _measure(lead: EnergyClassifier, valid: LabelledRows, objective: str) -> list[float]:
    """The objective of every member, as it is calibrated, on the rows held out."""
    logits = member_logits(lead, valid.v).double().cpu()  # (C, N, K)
    labels, weight = valid.labels.cpu(), valid.weight.double().cpu()
    if objective == "error":
        wrong = (logits.argmax(-1) != labels).double().masked_fill(~torch.isfinite(logits).all(-1), torch.nan)
        return [float(member @ weight / weight.sum()) for member in wrong]
    zero = logits.new_zeros(logits.shape[-1])
    return [float(negative_log_likelihood(zero, member, labels, weight) / weight.sum()) for member in logits]


def _one(history: History, c: int) -> History:
    """What happened to one of several members."""
    if history.loss and not history.loss[0].ndim:
        return history
    return replace(
        history,
        loss=[losses[c] for losses in history.loss],
        validation=[losses[c] for losses in history.validation],
        best=None if history.best is None else history.best[c],
        best_epoch=None if history.best_epoch is None else history.best_epoch[c],
        diverged=None if history.diverged is None else history.diverged[c],
    )
