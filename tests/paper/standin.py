"""A small table of experiments for tests: its data take no time to load, its systems no time to fit.

A script of its own that calls `install` at its top has it in its worker processes, too: they import the script anew.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from energate.datasets import Dataset
from energate.paper import Summary, plan, spaces, work
from energate.paper import run as run_table
from energate.paper.cell import Attempt
from energate.paper.plan import Profile, Table
from energate.paper.systems import CLASS_SYSTEMS, Parts, System
from energate.training import History

N_TRAIN, N_VALID, N_TEST, N_CLASSES, SHAPE = 90, 60, 137, 3, (3, 4)
TABLE = Table(
    name="small",
    title="A small table",
    data=("one", "two"),
    systems={"centre": "Centre", "plain": "Plain", "other": "Other"},
    ours=("centre",),
    apart={"other": "it is another"},
    published={"one": {"centre": 12.5}},
)
PROFILES = (
    Profile("fixed", "one configuration", None, seeds=2, search=False, every=1),
    Profile("search", "three configurations", None, seeds=2, search=True, every=1),
)
#: what a cell says even if it failed, and what only one that did not
HEAD = (
    *("schema", "table", "title", "profile", "data", "data_label", "system", "system_label", "seed", "order"),
    *("published", "ours", "apart", "random", "status", "error", "versions", "device", "date"),
)
BODY = (
    *("classes", "shape", "n_train", "n_valid", "n_test", "test_slice", "test_error", "valid_error", "test_log_loss"),
    *("valid_log_loss", "confusion", "wrong", "reliability", "energies", "curves", "extra", "config", "search"),
    *("seconds", "memory", "provenance"),
)
CONFIGS = [{"sharpness": 1.0}, {"sharpness": 8.0}, {"sharpness": 60.0}]


def load(name: str, folder: Any = None, source: str = "auto") -> Dataset:
    """Noisy rows around a few centres; another name is another draw."""
    rng = np.random.default_rng(len(name) + ord(name[0]))
    centres = rng.random((N_CLASSES, SHAPE[0] * SHAPE[1]))
    parts: dict[str, Any] = {}
    for part, n in (("train", N_TRAIN), ("valid", N_VALID), ("test", N_TEST)):
        y = rng.integers(0, N_CLASSES, n)
        noisy = centres[y] + 0.35 * rng.standard_normal((n, centres.shape[1]))
        parts |= {f"X_{part}": np.clip(noisy, 0, 1).astype(np.float32), f"y_{part}": y}
    words = dict.fromkeys(("train", "valid", "test"), "generated")
    provenance = words | {"source": "test", "files": {}, "seed": 0, "sha256": {}}
    return Dataset(name, shape=SHAPE, provenance=provenance, **parts)


class Model:
    """Rows belong to the class whose centre is nearest; the seed moves the centres a little."""

    def __init__(self, parts: Parts, sharpness: float, seed: int) -> None:
        self.classes_, self.sharpness = np.unique(parts.y_train), sharpness
        shift = 0.05 * np.random.default_rng(seed).standard_normal((N_CLASSES, parts.X_train.shape[1]))
        self.centres = np.array([parts.X_train[parts.y_train == k].mean(0) for k in self.classes_]) + shift
        losses = [torch.tensor(1.0 / epoch) for epoch in range(1, 8)]
        self.history_ = {"fit": History(loss=losses, validation=losses, validated=list(range(1, 8)))}

    def energies(self, X: Any) -> Any:
        return -self.sharpness * ((X[:, None] - self.centres) ** 2).sum(-1)

    def predict_proba(self, X: Any) -> Any:
        energies = self.energies(X)
        proba = np.exp(energies - energies.max(1, keepdims=True))
        return proba / proba.sum(1, keepdims=True)

    def predict(self, X: Any) -> Any:
        return self.classes_[self.energies(X).argmax(1)]


class Centre:
    """Notes what is asked of it; ``before`` is called first, with what is to be done, and may raise."""

    random = True
    shown: ClassVar[dict[str, Any]] = {"energies": Model.energies}

    def __init__(self, before: Callable[[str, int], None] = lambda what, seed: None) -> None:
        self.before, self.calls, self.seen = before, [], []  # type: ignore[var-annotated]

    def search(self, parts: Parts, configs: Sequence[Any], device: str, seed: int) -> list[Attempt]:
        self.calls.append("search")
        self.seen.append(parts)
        self.before("search", seed)
        attempts = []
        for config in configs:
            proba = Model(parts, config["sharpness"], seed).predict_proba(parts.X_valid)
            loss = -np.log(proba[np.arange(len(proba)), parts.y_valid] + 1e-12).mean()
            error = 100 * float(np.mean(proba.argmax(1) != parts.y_valid))
            attempts.append(Attempt(config, error, float(loss), 0.0))
        return attempts

    def system(self) -> System:
        def attempts(system: System, *rest: Any) -> list[Attempt]:
            return self.search(*rest)

        def make(config: Any, device: str, seed: int) -> Asked:
            return Asked(self, config["sharpness"], seed)

        return System(make, attempts, on_gpu=False, random=self.random, stops_early=True, **self.shown)


class Plain(Centre):
    """Neither random nor with probabilities or energies."""

    random = False
    shown: ClassVar[dict[str, Any]] = {"log_proba": None, "curves": False}


class Asked:
    """Is fitted: notes that, and is a `Model` then."""

    def __init__(self, centre: Centre, sharpness: float, seed: int) -> None:
        self.centre, self.sharpness, self.seed = centre, sharpness, seed

    def fit(self, X: Any, y: Any, X_valid: Any, y_valid: Any) -> Model:
        parts = Parts(X, y, X_valid, y_valid)
        self.centre.calls.append(f"seed {self.seed}")
        self.centre.seen.append(parts)
        self.centre.before("fit", self.seed)
        return Model(parts, self.sharpness, self.seed)


def space(system: str, data: str, search: bool) -> list[dict[str, float]]:
    return CONFIGS if search else CONFIGS[1:2]


def install(
    systems: dict[str, Centre],
    set_item: Callable[..., None] = dict.__setitem__,
    set_attr: Callable[..., None] = setattr,
) -> None:
    """Put table, profiles, systems, configurations and data in their places."""
    set_item(plan.TABLES, TABLE.name, TABLE)
    for profile in PROFILES:
        set_item(plan.PROFILES, profile.name, profile)
    for name, system in systems.items():
        set_item(CLASS_SYSTEMS, name, system.system())
    set_attr(spaces, "space", space)
    set_attr(work, "load", load)


# --- for tests -------------------------------------------------------------------------------------------------


def run(results: Path, **options: Any) -> Summary:
    given: dict[str, Any] = {"profile": "fixed", "results": results, "device": "cpu", "show": lambda event: None}
    return run_table("small", **(given | options))


def strict(path: Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{path} holds {word}")

    return json.loads(path.read_text(), parse_constant=refuse)


def counts(summary: Summary) -> tuple[int, int, int, int]:
    return summary.n_done, summary.n_skipped, summary.n_failed, summary.n_left


# --- for scripts: what a system may do to the process it is fitted in ------------------------------------------


def die(what: str, seed: int) -> None:
    os._exit(9)


def die_at_seed_0(what: str, seed: int) -> None:
    if what == "fit" and seed == 0:
        os._exit(9)


def wait_for(path: str) -> Callable[[str, int], None]:
    """Say that a fit has begun, in a file, and take until that is gone."""

    def before(what: str, seed: int) -> None:
        if what == "fit" and seed == 1:
            Path(path).write_text(str(os.getpid()))
            while Path(path).exists():
                time.sleep(0.02)

    return before
