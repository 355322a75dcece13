"""Cells of tables whose rows have several labels: choose on the validation rows, refit, test on rows of a split."""

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.datasets import load_multilabel, make_correlated_labels, split_rows
from energate.measures import log_loss, reliability
from energate.paper.baselines import MeanLabels
from energate.paper.labels import SYSTEMS, Base, Mean, Refined, Remembered, label_space
from energate.paper.spaces import Config
from energate.paper.systems import FAILURES, Array, Trial, choose

SHOWN_LABELS = 60
N_CORRELATED = 2000  # rows of the set that is made by rule


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


class Split:
    """One split of a data set, and what was chosen and fitted for it so far."""

    def __init__(self, data: LabelData, name: str, seed: int, device: str, search: bool) -> None:
        self.data, self.name, self.seed, self.device, self.search = data, name, seed, device, search
        self.train, self.valid, self.test = split_rows(len(data.X), seed)
        self.trials: dict[str, list[Trial]] = {}
        self.fits: dict[str, dict[str, Any]] = {}  # of every base, by the rows that it was fitted to

    @cached_property
    def known(self) -> NDArray[np.int64]:
        """The rows that may be seen before the test."""
        return np.concatenate([self.train, self.valid])

    def rows(self, which: NDArray[np.int64]) -> tuple[Array, Array]:
        """Rows and labels as most classifiers want them."""
        return self.data.X[which].astype(np.float64), self.data.Y[which].astype(np.float64)

    def config(self, name: str) -> Config:
        """The configuration that does best on the validation rows after a fit to the training rows."""
        configs = label_space(name, self.name, self.search)
        if len(configs) > 1 and name not in self.trials:
            self.trials[name] = [self._try(name, config) for config in configs]
        return configs[choose(self.trials[name])] if name in self.trials else configs[0]

    def _try(self, name: str, config: Config) -> Trial:
        system, began = SYSTEMS[name], time.perf_counter()
        assert isinstance(system, Base)
        try:
            model = system.make(config, self.device, self.seed).fit(*self.rows(self.train))
            X, Y = self.rows(self.valid)
            p = model.predict_proba(X)
            error, loss, said = 100 * float(((p > 0.5) != Y).mean()), log_loss(p, Y), ""
        except FAILURES as problem:
            error, loss, said = np.inf, np.inf, f"{type(problem).__name__}: {problem}"
        return Trial(config, error, loss, time.perf_counter() - began, said)

    def estimator(self, name: str) -> Any:
        """A system that is not fitted yet; what it stands on is fitted once for all."""
        system = SYSTEMS[name]
        if isinstance(system, Refined):
            return system.make(self.estimator(system.base), self.device, self.seed)
        if isinstance(system, Mean):
            return MeanLabels([(each, self.estimator(each)) for each in system.of], random_state=self.seed)
        made = system.make(self.config(name), self.device, self.seed)
        return Remembered(made, self.fits.setdefault(name, {}))

    def cell(self, name: str) -> dict[str, Any]:
        """Fit a system to all rows that may be seen, and test it."""
        made = self.estimator(name)  # chooses first
        began = time.perf_counter()
        model = made.fit(*self.rows(self.known))
        fitted = time.perf_counter()
        X, Y = self.rows(self.test)
        p = model.predict_proba(X)
        found = measure(p, self._predicted(name, model, X, p), Y)
        trials = self.trials.get(name, [])
        chosen = choose(trials) if trials else None
        return {
            "classes": list(self.data.names),
            "n_train": len(self.train),
            "n_valid": len(self.valid),
            "n_test": len(self.test),
            **found,
            "valid_error": None if chosen is None else round(trials[chosen].valid_error, 4),
            "valid_log_loss": None if chosen is None else trials[chosen].valid_log_loss,
            "config": self.config(name) if isinstance(SYSTEMS[name], Base) else {},
            "trials": [trial.as_json() for trial in trials],
            "chosen": chosen,
            **_about_refining(model),
            **({"covariance": covariance(p, Y, self.data.names)} if self.seed == 0 else {}),
            "seconds": {"fit": round(fitted - began, 3), "predict": round(time.perf_counter() - fitted, 3)},
            "provenance": self.data.provenance,
        }

    @staticmethod
    def _predicted(name: str, model: Any, X: Array, p: Array) -> Array:
        """What a system predicts; all bases take what is more probable than not."""
        on = p > 0.5 if isinstance(SYSTEMS[name], Base) else model.predict(X)
        return np.asarray(on, dtype=np.float64)


def _about_refining(model: Any) -> dict[str, Any]:
    fitted = vars(model)
    numbers = {"gate": fitted.get("gate_"), "n_steps": fitted.get("n_steps_")}
    gain = fitted.get("gain_")
    if gain is not None:
        numbers |= {"gain": gain.mean, "gain_standard_error": gain.standard_error}
    return {"verdict": fitted.get("verdict_", ""), "extra": {k: v for k, v in numbers.items() if v is not None}}


# --- measures ----------------------------------------------------------------------------------------------------


def f1(both: Array, predicted: Array, true: Array) -> Array:
    """2 TP / (predicted + true), and 1 where nothing is predicted and nothing is true."""
    total = predicted + true
    return np.where(total > 0, 2 * both / np.maximum(total, 1), 1.0)


def measure(p: Array, predicted: Array, Y: Array) -> dict[str, Any]:
    """All that the table says of probabilities and predictions (n, L)."""
    both = predicted * Y
    micro = f1(both.sum(keepdims=True), predicted.sum(keepdims=True), Y.sum(keepdims=True))
    percents = {
        "exact_match": (predicted == Y).all(1).mean(),
        "example_f1": f1(both.sum(1), predicted.sum(1), Y.sum(1)).mean(),
        "macro_f1": f1(both.sum(0), predicted.sum(0), Y.sum(0)).mean(),
        "micro_f1": micro[0, 0],
    }
    brier = round(float(((p - Y) ** 2).mean()), 6)
    return {
        "test_error": round(100 * float((predicted != Y).mean()), 4),
        "test_log_loss": round(log_loss(p, Y), 6),
        "measures": {**{name: round(100 * float(value), 4) for name, value in percents.items()}, "brier": brier},
        "reliability": reliability(p.ravel(), Y.ravel()),
    }


def covariance(p: Array, Y: Array, names: Sequence[str]) -> dict[str, Any]:
    """Covariances of the most frequent labels and of their predicted probabilities, in bytes."""
    often = np.sort(np.argsort(-Y.sum(0), kind="stable")[:SHOWN_LABELS])
    true, said = (np.atleast_2d(np.cov(values[:, often], rowvar=False)) for values in (Y, p))
    scale = max(float(np.abs(matrix).max()) for matrix in (true, said)) or 1.0

    def packed(matrix: Array) -> str:
        return base64.b64encode(np.rint(128 + 127 * matrix / scale).astype(np.uint8).tobytes()).decode()

    return {
        "labels": [names[i] for i in often],
        "true": packed(true),
        "predicted": packed(said),
        "scale": float(f"{scale:.6g}"),
    }


Save = Callable[[str, dict[str, Any]], None]


def do_family(split: Split, names: Sequence[str], save: Save, fail: Callable[[str, Exception], None]) -> list[str]:
    """The cells of several systems, each saved when it is there; what went wrong with the others."""
    failed = []
    for name in names:
        try:
            save(name, split.cell(name))
        except Exception as error:  # one system must not stop the others
            fail(name, error)
            failed.append(f"{name}: {type(error).__name__}: {error}".partition("\n")[0])
    return failed
