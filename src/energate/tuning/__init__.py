"""`search`: hyper-parameters of a classifier by optuna, many configurations trained as one program.

Configurations that differ only in what steps training (`PER_MEMBER`: learning rates, weight decay, noise level,
generative weight) are members of one model; others are grouped, one program for each group.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from energate.engines import Actors, Crew, reaching_ray
from energate.errors import InputError, require
from energate.estimators import EnergyClassifier
from energate.estimators.classifier import PER_MEMBER
from energate.estimators.edge import MIN_CLASS_ROWS, draw_seed
from energate.estimators.kinds import kind_of
from energate.estimators.together import Config
from energate.tuning._space import DEFAULT_SPACE, TRUNK_SPACE, Space, plain, read_space
from energate.tuning._study import (
    KEY,
    SAMPLER,
    SAMPLERS,
    Numbered,
    Plan,
    Study,
    Trainer,
    Trial,
    TrialActor,
    open_storage,
    stored_attributes,
)

__all__ = ["DEFAULT_SPACE", "TRUNK_SPACE", "SearchResult", "Trial", "search"]

OBJECTIVES = ("log_loss", "error")
ENGINES = ("serial", "ray")
WAIT = 1.0  # seconds until it is asked again whether other processes are done with the last trials
GENERATIVE_WEIGHT = 0.1  # in the place of "auto", which asks for several members
NOT_COMPARED = ("device", "random_state", "verbose", "warm_start")  # a search may go on with others


@dataclass(frozen=True)
class SearchResult:
    """What a search found: the best trial, trained, and all trials by number."""

    best_estimator: EnergyClassifier
    best_params: Config
    best_value: float
    trials: list[Trial]

    def to_frame(self) -> Any:
        """The trials as a `pandas.DataFrame`, one row each."""
        pandas = require("pandas", "tune")
        rows = [
            {"number": trial.number, **trial.params, "value": trial.value, "seconds": trial.seconds}
            | {"state": trial.state, "error": trial.error}
            for trial in self.trials
        ]
        return pandas.DataFrame(rows).set_index("number")


def search(
    estimator: EnergyClassifier,
    X: Any,
    y: Any,
    space: Space | None = None,
    *,
    n_trials: int = 32,
    n_together: int = 8,
    objective: str = "log_loss",
    sample_weight: Any = None,
    storage: str | os.PathLike[str] | None = None,
    study_name: str = "energate",
    sampler: str = "auto",
    random_state: Any = None,
    progress: bool = True,
    timeout: float | None = None,
    engine: str = "serial",
    workers: int | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
) -> SearchResult:
    """Look for good parameters of an `EnergyClassifier`, on the rows that it holds out itself.

    Trial 0 is the estimator as it came, with one member: a ``generative_weight`` of ``"auto"`` becomes 0.1.

    Parameters
    ----------
    space : for every parameter a list of choices, ``(low, high)`` (whole numbers if both ends are) or
        ``(low, high, "log")``; None is `TRUNK_SPACE` or `DEFAULT_SPACE` of this module.
        ``n_factors`` of ``"auto"`` follows ``n_hidden`` unless it is in the space.
    n_trials : trials in all, those found in ``storage`` among them.
    n_together : trials that are drawn before the next results are awaited.  Those that differ only in learning rates,
        ``weight_decay``, ``noise_level`` and ``generative_weight`` train as one program.
    objective : ``"log_loss"`` or ``"error"`` of the rows held out, the same rows for every trial.
    storage : an SQLite file, or a journal of optuna, whose name ends with ``.journal``.  A search that was stopped or
        killed goes on from it, and several processes share its trials; on several machines a journal.
    study_name : its name in the file.
    sampler : ``"optuna"``, its tree-structured Parzen estimator; ``"random"``; or ``"auto"``: that of the search in
        ``storage``, otherwise optuna's.
    random_state : of sampling, splitting and training; None is the estimator's.
    progress : show a bar where standard error is a terminal.
    timeout : seconds after which no more trials begin.
    engine : ``"serial"``, or ``"ray"``: ``workers`` of Ray train programs, and ``n_together`` is for each of them.
    address, gpus_per_worker : of a Ray cluster, such as ``"auto"``, without which Ray is started here; and the GPUs of
        each worker.
    """
    crew = _crew(engine, workers, address, gpus_per_worker)
    _check(estimator, n_trials, n_together, objective, sampler, timeout)
    optuna = require("optuna", "tune")
    base = estimator.get_params(deep=False)
    random_state = base["random_state"] if random_state is None else random_state
    path = _path(storage)
    with open_storage(optuna, path) as store:
        known = stored_attributes(optuna, store, study_name)
        sampler = _sampler(sampler, known.get(SAMPLER), storage)
        seed = _seed(random_state, known.get(KEY))
        plan, trainer = _plan(base, seed, space, objective, (X, y, sample_weight))
        study = Study(optuna, store, plan, study_name, sampler)
        began, finished = time.monotonic(), study.finished()
        shared = contextlib.nullcontext() if path is None else study.beating()
        with shared, _bar(progress, n_trials) as show, _training(trainer, crew, n_together, path) as train:
            show(finished)
            while len(finished) < n_trials:
                if finished and timeout is not None and time.monotonic() - began > timeout:
                    break
                n_left = n_trials - len(finished) - study.n_elsewhere()
                if n_left < 1:  # others are at the last ones
                    time.sleep(WAIT)
                    finished = study.finished()
                    continue
                numbers = study.ask(min(n_together * (1 if crew is None else crew.workers), n_left))
                for trials in train([(number, study.config(number)) for number in numbers]):
                    study.tell(trials)
                    finished = study.finished()
                    show(finished)
        return _result(study, trainer)


def _crew(engine: str, workers: int | None, address: str | None, gpus_per_worker: float) -> Crew | None:
    """Who trains, if it is Ray."""
    if engine not in ENGINES:
        raise InputError(f"`engine` must be one of {', '.join(ENGINES)}; got {engine!r}.")
    if engine == "ray":
        return Crew(os.cpu_count() or 1 if workers is None else workers, address, gpus_per_worker)
    if workers is not None or address is not None or gpus_per_worker:
        raise InputError("`workers`, `address` and `gpus_per_worker` are for `engine` 'ray'.")
    return None


@contextlib.contextmanager
def _training(
    trainer: Trainer, crew: Crew | None, n_together: int, storage: Path | None
) -> Iterator[Callable[[Sequence[Numbered]], Iterator[list[Trial]]]]:
    """What trains configurations, program by program."""
    if crew is None:
        yield trainer.run
        return
    # Rows go by a file, where workers on other machines see it, if there are any: beside the storage.
    folder = None if storage is None else storage.parent
    with reaching_ray(crew) as ray, tempfile.TemporaryDirectory(prefix=".energate-", dir=folder) as scratch:
        place = Path(scratch) / "trainer"
        place.write_bytes(ray.cloudpickle.dumps(trainer))  # functions as units, too
        made = Actors(ray, TrialActor, (str(place),), crew.workers, crew.gpus_per_worker, retries=1)
        with contextlib.closing(made) as actors:
            yield lambda configs: trainer.run_on(actors, configs, n_together)


def _plan(
    base: Config, seed: int, space: Space | None, objective: str, data: tuple[Any, Any, Any]
) -> tuple[Plan, Trainer]:
    """What is searched, and what trains it, after a check of everything."""
    settled = kind_of(base["units"]).settled(EnergyClassifier(**base)).get_params(deep=False)
    base = {**base, **{name: settled[name] for name in PER_MEMBER}, "random_state": seed, "warm_start": False}
    base["generative_weight"] = _one_member(base)
    if space is None:
        sized = not callable(base["units"])
        default = TRUNK_SPACE if base["units"] == "trunk" else DEFAULT_SPACE
        space = {name: given for name, given in default.items() if sized or name != "n_hidden"}
    dimensions = read_space(space, base)

    def complete(config: Config) -> Config:
        follows = "n_hidden" in config and "n_factors" not in dimensions and base["n_factors"] == "auto"
        added = {"n_factors": config["n_hidden"]} if follows else {}
        return {"generative_weight": base["generative_weight"], **config, **added}

    _hold_out(EnergyClassifier(**base), *data)
    first = complete({name: base[name] for name in dimensions})
    fixed = {name: plain(base[name]) for name in sorted(base) if name not in NOT_COMPARED}
    fingerprint = {
        "estimator": f"EnergyClassifier {json.dumps(fixed)}",
        "space": json.dumps({name: dimension.describe() for name, dimension in dimensions.items()}),
        "data": _digest(EnergyClassifier(**base), *data),
        "objective": objective,
        "seed": str(seed),
    }
    return Plan(dimensions, first, complete, fingerprint, seed), Trainer(base, *data, objective)


def _result(study: Study, trainer: Trainer) -> SearchResult:
    trials = study.finished()
    best = min(trials, key=lambda trial: (trial.value, trial.number))
    if best.state == "failed":
        raise InputError(f"All {len(trials)} trials failed, the first so: {trials[0].error}")
    if trainer.best is None or trainer.best[0].number != best.number:
        # Found by a process that is gone: the program that held it, run again, gives it back.
        trainer.best = None
        trainer.train([(number, study.config(number)) for number in best.together], keep=best.number)
    assert trainer.best is not None
    return SearchResult(trainer.best[1], best.params, best.value, trials)


# --- what comes in -----------------------------------------------------------------------------------------------


def _check(estimator: Any, n_trials: int, n_together: int, objective: str, sampler: str, timeout: float | None) -> None:
    if type(estimator) is not EnergyClassifier:
        raise InputError(
            "`estimator` must be an EnergyClassifier, the only one that search trains; got "
            f"{type(estimator).__name__}. Take the classifier out of a pipeline, and use scikit-learn's searches for "
            "other estimators."
        )
    if kind_of(estimator.units).remembers:
        raise InputError(
            f"search tries how training goes, and units={estimator.units!r} are not trained: `fit` finds temperature "
            "and scale itself, with rows left out in turn. Use scikit-learn's searches for `n_hidden` and `scaling`."
        )
    for name, count in (("n_trials", n_trials), ("n_together", n_together)):
        if not isinstance(count, int | np.integer) or count < 1:
            raise InputError(f"`{name}` must be a whole number of at least 1; got {count!r}.")
    for name, value, names in (("objective", objective, OBJECTIVES), ("sampler", sampler, ("auto", *SAMPLERS))):
        if value not in names:
            raise InputError(f"`{name}` must be one of {', '.join(names)}; got {value!r}.")
    if timeout is not None and not timeout > 0:
        raise InputError(f"`timeout` must be None or seconds above 0; got {timeout!r}.")


def _path(storage: str | os.PathLike[str] | None) -> Path | None:
    if storage is None:
        return None
    text = os.fspath(storage).removeprefix("sqlite:///")
    path = Path(text).absolute()
    if "://" in text or path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"`storage` must be the path of an SQLite file, or of a .journal, in a folder that is there; got {text!r}."
        )
    return path


def _sampler(sampler: str, stored: str | None, storage: Any) -> str:
    """The sampler to use; a search that is in a file already goes on with its own."""
    if stored is not None and sampler not in ("auto", stored):
        raise InputError(
            f"The search in `storage` {storage} was written by sampler={stored!r}; got {sampler!r}. Give another path."
        )
    return (stored or "optuna") if sampler == "auto" else sampler


def _seed(random_state: Any, stored: dict[str, str] | None) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return draw_seed(random_state) if stored is None or random_state is not None else int(stored["seed"])


def _one_member(base: Config) -> float:
    """The generative weight of the estimator, after a check that it asks for one member."""
    weight = base["generative_weight"]
    if isinstance(weight, str) and weight == "auto":
        kind = kind_of(base["units"])
        by_kind = kind.weights(EnergyClassifier(**base), 1)[0] if kind.whole else GENERATIVE_WEIGHT
        base = {**base, "generative_weight": 0.0 if callable(base["units"]) else by_kind}
    for name in PER_MEMBER:
        if isinstance(base[name], str) or np.ndim(base[name]):
            raise InputError(
                f"`{name}` of the estimator must be one number, as every configuration has one member; got "
                f"{base[name]!r}. Give the numbers to try in `space`."
            )
    return float(base["generative_weight"])


def _hold_out(estimator: EnergyClassifier, X: Any, y: Any, sample_weight: Any) -> None:
    """Check the data, and that there are rows to measure on."""
    if estimator._prepare(X, y, sample_weight)[1] is None:
        raise InputError(
            f"search measures on rows held out, which takes early_stopping=True and a `validation_fraction` that holds "
            f"at least {MIN_CLASS_ROWS} rows of every class; got early_stopping={estimator.early_stopping} and "
            f"validation_fraction={estimator.validation_fraction} with {np.unique(y, return_counts=True)[1].min()} "
            "rows of the smallest class. Raise the fraction, or give more rows."
        )


def _digest(estimator: EnergyClassifier, X: Any, y: Any, sample_weight: Any) -> str:
    """Shape and hash of the data, as a model sees them."""
    classes, labels = np.unique(np.asarray(y), return_inverse=True)
    rows = np.ascontiguousarray(estimator._read(X, y, reset=True, sample_weight=sample_weight)[0])
    found = hashlib.sha256(rows.data)
    found.update(repr(classes.tolist()).encode())
    found.update(labels.astype(np.int64).tobytes())
    if sample_weight is not None:
        found.update(np.ascontiguousarray(sample_weight, dtype=np.float64).data)
    return f"{rows.shape} {found.hexdigest()[:32]}"


# --- progress ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _bar(wanted: bool, n_trials: int) -> Iterator[Callable[[Sequence[Trial]], None]]:
    """A function that draws how far a search is."""
    console, best = Console(stderr=True), TextColumn("{task.fields[best]}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), best, TimeRemainingColumn()
    progress = Progress(*columns, console=console)
    task = progress.add_task("search", total=n_trials, best="")

    def show(finished: Sequence[Trial]) -> None:
        best = f"best {min(trial.value for trial in finished):.4g}" if finished else ""
        progress.update(task, completed=len(finished), best=best)

    with progress if wanted and console.is_terminal else contextlib.nullcontext():  # one that is not begun is silent
        yield show
