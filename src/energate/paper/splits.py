"""One split of a data set of several labels: what is chosen in it, fitted once for all that needs it, and tested."""

import hashlib
import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from energate.datasets import load_multilabel, make_correlated_labels, split_rows
from energate.paper import measuring
from energate.paper.cell import Attempt, Config, provenance_of
from energate.paper.spaces import label_space
from energate.paper.systems import LABEL_SYSTEMS, Array, Parts, choose

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
        configs = label_space(name, self.name, self.search)
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
            **measuring.measure_labels(p, predicted, Y),
            "valid_error": None if best is None or best.valid_error is None else round(best.valid_error, 4),
            "valid_log_loss": None if best is None else best.valid_log_loss,
            "config": self.config(name),
            "trials": trials,
            "chosen": chosen,
            **measuring.about_refining(model),
            **({"covariance": measuring.covariance(p, Y, self.data.names)} if self.seed == 0 else {}),
            "seconds": {"fit": round(fitted - began, 3), "predict": round(time.perf_counter() - fitted, 3)},
            "provenance": provenance_of(self.data.provenance),
        }
