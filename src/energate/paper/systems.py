"""How each system of the tables is searched, on validation rows, and fitted: thin layers over the estimators."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energate.estimators import EnergyClassifier, ImageEnergyClassifier
from energate.estimators.classifier import PER_MEMBER
from energate.paper.baselines import (
    DropoutMLP,
    GatedSoftmax,
    RBMClassifier,
    StackedAutoencoderClassifier,
    search_svm,
    svm,
)
from energate.paper.printed import printed_units
from energate.paper.spaces import ENERGY_UNITS, VARIANTS, Config
from energate.training import History
from energate.training.calibration import negative_log_likelihood
from energate.units import CovarianceUnits, HiddenUnits, MeanUnits

Array = NDArray[np.float64]
Images = NDArray[np.float32]
Labels = NDArray[np.int64]
#: what a configuration may cause, and another be free of
FAILURES = (ValueError, torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
SHOWN_FILTERS = 20


@dataclass(frozen=True)
class Parts:
    """The rows that a system may see before it is tested."""

    X_train: Images
    y_train: Labels
    X_valid: Images
    y_valid: Labels


@dataclass(frozen=True)
class Trial:
    """What a configuration gave on the validation rows; infinite where it failed."""

    config: Config
    valid_error: float  # %
    valid_log_loss: float | None
    seconds: float
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Numbers that are not finite have no place in JSON."""
        failed = not np.isfinite(self.valid_error)
        numbers = {"valid_error": None, "valid_log_loss": None} if failed else {}
        return {**asdict(self), **numbers, "status": "failed" if failed else "ok"}


def choose(trials: Sequence[Trial]) -> int:
    """The trial with the least sum of ranks by validation error and by log-loss (by error where there is none).

    Either alone is noisy on some thousand rows: the error counts few events, the log-loss is ruled by single rows.
    """
    errors = np.array([trial.valid_error for trial in trials])
    losses = np.array([trial.valid_error if trial.valid_log_loss is None else trial.valid_log_loss for trial in trials])
    ranks = [(values[:, None] > values).sum(1) for values in (errors, losses)]
    order = np.lexsort((losses, ranks[0] + ranks[1]))
    return int(order[0])


class System(ABC):
    """One column of a table."""

    on_gpu = True
    random = True  # whether another seed gives another result

    @abstractmethod
    def search(self, parts: Parts, configs: Sequence[Config], device: str, seed: int) -> list[Trial]:
        """Try the configurations on the validation rows."""

    @abstractmethod
    def fit(self, parts: Parts, config: Config, device: str, seed: int) -> Any:
        """A fitted estimator."""

    def log_proba(self, model: Any, X: Images) -> Array | None:
        """Log-probabilities of the classes (n, K), where the system has them."""
        proba: Array = model.predict_proba(X)
        return np.log(np.maximum(proba, 1e-300))

    def energies(self, model: Any, X: Images) -> Array | None:  # noqa: ARG002
        """Energies of the classes (n, K), where the system has them."""
        return None

    def curves(self, model: Any) -> dict[str, History]:
        """What happened in each stage of training."""
        history: dict[str, History] = model.history_
        return history

    def filters(self, model: Any) -> dict[str, tuple[Array, Labels]]:  # noqa: ARG002
        """Some weights of the first layer (n, D) by kind, and the classes they belong to."""
        return {}

    def members(self, model: Any, X: Images) -> list[Labels]:  # noqa: ARG002
        """What the members of an ensemble predict, each alone."""
        return []


class NetworkSystem(System):
    """A baseline that is a torch network: configurations are tried one after another."""

    def __init__(self, estimator: Callable[..., Any], has_energies: bool = False) -> None:
        self.estimator, self.has_energies = estimator, has_energies

    def search(self, parts: Parts, configs: Sequence[Config], device: str, seed: int) -> list[Trial]:
        trials = []
        for config in configs:
            began = time.perf_counter()
            try:
                log_proba = self.log_proba(self.fit(parts, config, device, seed), parts.X_valid)
                assert log_proba is not None
                trials.append(_trial(config, log_proba, parts.y_valid, time.perf_counter() - began))
            except FAILURES as error:
                trials.append(_failed(config, error, time.perf_counter() - began))
        return trials

    def fit(self, parts: Parts, config: Config, device: str, seed: int) -> Any:
        model = self.estimator(device=device, random_state=seed, **config)
        return model.fit(parts.X_train, parts.y_train, X_valid=parts.X_valid, y_valid=parts.y_valid)

    def energies(self, model: Any, X: Images) -> Array | None:
        return model.energies(X) if self.has_energies else None


class EnergySystem(System):
    """AES, cAES, mcAES: configurations train together, as members of one program; so do those of an ensemble."""

    def __init__(self, units: Any) -> None:
        self.units = units

    def search(self, parts: Parts, configs: Sequence[Config], device: str, seed: int) -> list[Trial]:
        programs: dict[str, list[int]] = {}
        for i, config in enumerate(configs):
            shared = {name: value for name, value in config.items() if name not in PER_MEMBER}
            programs.setdefault(json.dumps(shared, sort_keys=True), []).append(i)
        trials: dict[int, Trial] = {}
        for numbers in programs.values():
            found = self._program(parts, [configs[i] for i in numbers], device, seed)
            trials |= dict(zip(numbers, found, strict=True))
        return [trials[i] for i in range(len(configs))]

    def _program(self, parts: Parts, configs: list[Config], device: str, seed: int) -> list[Trial]:
        """Configurations of one shape; if the program fails, each alone, so that a bad one spoils no other."""
        began = time.perf_counter()
        try:
            model = self._fit(parts, configs, device, seed)
            scores = _by_member(model, parts.X_valid)
            seconds = (time.perf_counter() - began) / len(configs)
            return [_trial(c, logits, parts.y_valid, seconds) for c, logits in zip(configs, scores, strict=True)]
        except FAILURES as error:
            if len(configs) > 1:
                return [trial for config in configs for trial in self._program(parts, [config], device, seed)]
            return [_failed(configs[0], error, time.perf_counter() - began)]

    def fit(self, parts: Parts, config: Config, device: str, seed: int) -> Any:
        return self._fit(parts, [config] * config["n_members"], device, seed)

    def _fit(self, parts: Parts, configs: list[Config], device: str, seed: int) -> EnergyClassifier:
        merged: dict[str, Any] = {
            name: [config[name] for config in configs] if name in PER_MEMBER else value
            for name, value in configs[0].items()
            if name != "n_members"  # a search tries each configuration once
        }
        model = EnergyClassifier(self.units, device=device, random_state=seed, **merged)
        return model.fit(parts.X_train, parts.y_train, X_valid=parts.X_valid, y_valid=parts.y_valid)

    def log_proba(self, model: Any, X: Images) -> Array | None:
        return model.predict_log_proba(X)

    def energies(self, model: Any, X: Images) -> Array | None:
        return model.energies(X)

    def filters(self, model: Any) -> dict[str, tuple[Array, Labels]]:
        n_classes = len(model.classes_)
        found = {}
        for part in model.model_.autoencoders:
            for group in part.groups:
                weights = _first_layer(group)
                if weights is not None:
                    n = SHOWN_FILTERS // n_classes
                    chosen = weights[:n_classes].double().cpu().numpy()  # of the first member
                    best = np.argsort(-np.abs(chosen).sum(-1), axis=1, kind="stable")[:, :n]  # (K, n)
                    kind = "mean" if isinstance(group, MeanUnits) else "covariance"
                    taken = np.take_along_axis(chosen, best[..., None], 1).reshape(-1, chosen.shape[-1])
                    found[kind] = taken, np.repeat(np.arange(n_classes), n)
        return found

    def members(self, model: Any, X: Images) -> list[Labels]:
        if model.model_.n_members == 1:
            return []
        return [model.classes_[logits.argmax(1)] for logits in _by_member(model, X)]


class SVMSystem(System):
    """A support vector machine; runs on the CPU."""

    on_gpu = False
    random = False

    def search(self, parts: Parts, configs: Sequence[Config], device: str, seed: int) -> list[Trial]:  # noqa: ARG002
        grid = {f"svc__{name}": list(dict.fromkeys(config[name] for config in configs)) for name in ("C", "gamma")}
        found = search_svm(parts.X_train, parts.y_train, parts.X_valid, parts.y_valid, grid, scaling="none", n_jobs=2)
        return [
            Trial({"C": trial.C, "gamma": trial.gamma}, 100 * trial.valid_error, None, trial.seconds)
            for trial in found.trials
        ]

    def fit(self, parts: Parts, config: Config, device: str, seed: int) -> Any:  # noqa: ARG002
        return svm(scaling="none", **config).fit(parts.X_train, parts.y_train)

    def log_proba(self, model: Any, X: Images) -> Array | None:  # noqa: ARG002
        return None

    def curves(self, model: Any) -> dict[str, History]:  # noqa: ARG002
        return {}


def _first_layer(group: HiddenUnits) -> torch.Tensor | None:
    """Weights that see the input: (C * K, M, D)."""
    if isinstance(group, MeanUnits):
        return group.W.detach()
    return group.W.detach() if isinstance(group, CovarianceUnits) else None


@torch.no_grad()
def _by_member(model: EnergyClassifier, X: Images) -> list[Array]:
    """Calibrated energies of every member alone: C times (n, K)."""
    scores = []
    for start in range(0, len(X), 5000):
        rows = model.scaler_(X[start : start + 5000].astype(np.float64))
        v = torch.as_tensor(rows).to(model.model_.B)
        scores.append(model.model_.calibrated(model.model_.part_energies(v)).double().cpu().numpy())
    return list(np.concatenate(scores, 1))


def _trial(config: Config, logits: Array, labels: Labels, seconds: float) -> Trial:
    scores, known = torch.as_tensor(logits), torch.as_tensor(labels)
    wrong = float((scores.argmax(1) != known).double().mean())
    loss = negative_log_likelihood(scores.new_zeros(scores.shape[1]), scores, known) / len(known)
    return Trial(config, 100 * wrong if torch.isfinite(scores).all() else np.inf, float(loss), seconds)


def _failed(config: Config, error: Exception, seconds: float) -> Trial:
    return Trial(config, np.inf, np.inf, seconds, f"{type(error).__name__}: {error}")


SYSTEMS: dict[str, System] = {
    "svm": SVMSystem(),
    "rbm": NetworkSystem(RBMClassifier),
    "saa3": NetworkSystem(StackedAutoencoderClassifier),
    "gsm": NetworkSystem(GatedSoftmax),
    "mlp": NetworkSystem(DropoutMLP),
    "deep": NetworkSystem(ImageEnergyClassifier, has_energies=True),
    **{name: EnergySystem(units) for name, units in ENERGY_UNITS.items()},
    **{
        f"{name}-{variant}": EnergySystem(units)
        for name, units in ENERGY_UNITS.items()
        for variant in (*VARIANTS, "paper")
    },
    "caes-printed": EnergySystem(printed_units),
}
