"""The systems of the tables: how each is made, how its configurations are tried, and what a fitted one has to show."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from energate.estimators import EnergyClassifier, EnergyRefiner, ImageEnergyClassifier, LabelMLP
from energate.estimators.together import FAILURES, member_logits, merged, or_each_alone, programs
from energate.measures import log_loss
from energate.paper.baselines import (
    DropoutMLP,
    GatedSoftmax,
    HashCRBM,
    LogCountProjection,
    MeanLabels,
    MLkNN,
    RBMClassifier,
    StackedAutoencoderClassifier,
    boosted_labels,
    chain_labels,
    logistic_labels,
    search_svm,
    svm,
    svm_labels,
)
from energate.paper.cell import Attempt, Config
from energate.paper.spaces import ENERGY_UNITS, PRINTED_SIZE, VARIANTS
from energate.training.calibration import negative_log_likelihood
from energate.units import CovarianceUnits, HiddenUnits, MeanUnits, project

Array = NDArray[np.float64]
Rows = NDArray[Any]
Labels = NDArray[np.int64]
_FAILURES: tuple[type[Exception], ...] = (ValueError, *FAILURES)
SHOWN_FILTERS = 20


@dataclass(frozen=True)
class Parts:
    """The rows that a system may see before it is tested: X (n, D), and classes (n,) or labels (n, L)."""

    X_train: Rows
    y_train: Rows
    X_valid: Rows
    y_valid: Rows


# --- choosing ----------------------------------------------------------------------------------------------------


def choose(attempts: Sequence[Attempt]) -> int:
    """The attempt with the least sum of ranks by validation error and by log-loss (by error where there is none).

    Either alone is noisy on some thousand rows: the error counts few events, the log-loss is ruled by single rows.
    """
    errors = np.array([each.valid_error for each in attempts], dtype=float)
    losses = np.array([each.valid_error if each.valid_log_loss is None else each.valid_log_loss for each in attempts])
    ranks = [(values[:, None] > values).sum(1) for values in (errors, losses)]
    order = np.lexsort((losses, ranks[0] + ranks[1]))
    return int(order[0])


def _of_labels(config: Config, p: Array, Y: Array, seconds: float) -> Attempt:
    return Attempt(config, 100 * float(((p > 0.5) != Y).mean()), log_loss(p, Y), seconds)


def _of_classes(config: Config, logits: Array, labels: Labels, seconds: float) -> Attempt:
    scores, known = torch.as_tensor(logits), torch.as_tensor(labels)
    wrong = float((scores.argmax(1) != known).double().mean())
    loss = negative_log_likelihood(scores.new_zeros(scores.shape[1]), scores, known) / len(known)
    return Attempt(config, 100 * wrong if torch.isfinite(scores).all() else np.inf, float(loss), seconds)


def _failed(config: Config, error: Exception, seconds: float) -> Attempt:
    return Attempt(config, np.inf, np.inf, seconds, f"{type(error).__name__}: {error}")


# --- what a column of a table is ---------------------------------------------------------------------------------


def one_by_one(system: "System", parts: Parts, configs: Sequence[Config], device: str, seed: int) -> list[Attempt]:
    """Configurations tried one after another."""

    def attempt(config: Sequence[Config]) -> list[Attempt]:
        began = time.perf_counter()
        model = system.fit(parts, config[0], device, seed)
        if parts.y_valid.ndim == 2:
            p = model.predict_proba(parts.X_valid)
            return [_of_labels(config[0], p, parts.y_valid, time.perf_counter() - began)]
        assert system.log_proba is not None
        log_proba = system.log_proba(model, parts.X_valid)
        return [_of_classes(config[0], log_proba, parts.y_valid, time.perf_counter() - began)]

    return [each for config in configs for each in or_each_alone([config], attempt, _failed, _FAILURES)]


def log_of_proba(model: Any, X: Rows) -> Array:
    """Log-probabilities of the classes (n, K)."""
    proba: Array = model.predict_proba(X)
    return np.log(np.maximum(proba, 1e-300))


@dataclass(frozen=True)
class System:
    """One column of a table, whether rows have a class each or several labels.

    ``make`` gives an estimator that is not fitted yet, from a configuration, a device, a seed and the estimators of the
    systems that it stands ``on``; ``attempts`` tries configurations on the validation rows.
    """

    make: Callable[..., Any]
    attempts: Callable[["System", Parts, Sequence[Config], str, int], list[Attempt]] = one_by_one
    on: tuple[str, ...] = ()
    base: str = ""  # the system that this one refines
    edition: int = 1  # raised when the code changes so that finished cells no longer hold
    on_gpu: bool = True
    random: bool = True  # whether another seed gives another result
    stops_early: bool = False  # whether `fit` takes the validation rows, too
    # What a fitted one has to show; None where it has nothing of the kind.
    log_proba: Callable[[Any, Rows], Array] | None = log_of_proba  # of the classes (n, K)
    energies: Callable[[Any, Rows], Array] | None = None  # of the classes (n, K)
    curves: bool = True  # the `history_` of each stage of training
    filters: Callable[[Any], dict[str, tuple[Array, Labels]]] | None = None  # weights (n, D) by kind, and their classes
    members: Callable[[Any, Rows], list[Labels]] | None = None  # what those of an ensemble predict, each alone

    def search(self, parts: Parts, configs: Sequence[Config], device: str, seed: int) -> list[Attempt]:
        """Try the configurations on the validation rows."""
        return self.attempts(self, parts, configs, device, seed)

    def fit(self, parts: Parts, config: Config, device: str, seed: int) -> Any:
        """A fitted estimator."""
        held_out = {"X_valid": parts.X_valid, "y_valid": parts.y_valid} if self.stops_early else {}
        return self.make(config, device, seed).fit(parts.X_train, parts.y_train, **held_out)


# --- classes: networks, energies, support vector machines --------------------------------------------------------


def _on_device(estimator: Callable[..., Any], config: Config, device: str, seed: int, *_: Any) -> Any:
    return estimator(**config, device=device, random_state=seed)


def network(estimator: Callable[..., Any], **more: Any) -> System:
    """A torch network that is fitted with ``X_valid`` and ``y_valid``."""
    return System(partial(_on_device, estimator), stops_early=True, **more)


def _members(units: Any, configs: Sequence[Config], device: str, seed: int) -> EnergyClassifier:
    """A classifier whose members are the configurations; a search tries each once."""
    config = {name: value for name, value in merged(configs).items() if name != "n_members"}
    return EnergyClassifier(units, device=device, random_state=seed, **config)


def energy(units: Any) -> System:
    """AES, cAES, mcAES: configurations train together, as members of one program; so do those of an ensemble."""

    def make(config: Config, device: str, seed: int) -> EnergyClassifier:
        return _members(units, [config] * config["n_members"], device, seed)

    def attempts(
        system: System,  # noqa: ARG001
        parts: Parts,
        configs: Sequence[Config],
        device: str,
        seed: int,
    ) -> list[Attempt]:
        def train(configs: Sequence[Config]) -> list[Attempt]:
            began = time.perf_counter()
            model = _members(units, configs, device, seed)
            model.fit(parts.X_train, parts.y_train, X_valid=parts.X_valid, y_valid=parts.y_valid)
            scores = _by_member(model, parts.X_valid)
            seconds = (time.perf_counter() - began) / len(configs)
            found = zip(configs, scores, strict=True)
            return [_of_classes(config, logits, parts.y_valid, seconds) for config, logits in found]

        found: dict[int, Attempt] = {}
        for numbers in programs(configs):
            tried = or_each_alone([configs[i] for i in numbers], train, _failed, _FAILURES)
            found |= dict(zip(numbers, tried, strict=True))
        return [found[i] for i in range(len(configs))]

    return System(
        make,
        attempts,
        stops_early=True,
        log_proba=EnergyClassifier.predict_log_proba,
        energies=EnergyClassifier.energies,
        filters=_filters,
        members=_each_alone,
    )


def _by_member(model: EnergyClassifier, X: Rows) -> list[Array]:
    """Calibrated energies of every member alone: C times (n, K)."""
    chunks = [torch.as_tensor(model.scaler_(X[i : i + 5000].astype(np.float64))) for i in range(0, len(X), 5000)]
    return list(np.concatenate([member_logits(model, v).double().cpu().numpy() for v in chunks], 1))


def _each_alone(model: Any, X: Rows) -> list[Labels]:
    if model.model_.n_members == 1:
        return []
    return [model.classes_[logits.argmax(1)] for logits in _by_member(model, X)]


def _filters(model: Any) -> dict[str, tuple[Array, Labels]]:
    """Of the first member the largest weights that see the input, as many of each class."""
    n_classes = len(model.classes_)
    found, n = {}, SHOWN_FILTERS // n_classes
    for part in model.model_.autoencoders:
        for group in part.groups:
            if not isinstance(group, MeanUnits | CovarianceUnits):
                continue
            chosen = group.W.detach()[:n_classes].double().cpu().numpy()  # (K, M, D)
            best = np.argsort(-np.abs(chosen).sum(-1), axis=1, kind="stable")[:, :n]  # (K, n)
            taken = np.take_along_axis(chosen, best[..., None], 1).reshape(-1, chosen.shape[-1])
            kind = "mean" if isinstance(group, MeanUnits) else "covariance"
            found[kind] = taken, np.repeat(np.arange(n_classes), n)
    return found


class PrintedCovarianceUnits(HiddenUnits):
    """`energate.CovarianceUnits` with the paper's decoder, scored by the whole sum of potentials instead of half of it.

    A negative control: the score is no potential of the reconstruction (errata, E11); classes can still be told apart
    by it.
    """

    def __init__(self, n_models: int, n_visible: int, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__(n_models, n_visible, size, "sigmoid", generator=generator)
        self.repeats = 1  # and yet v enters twice
        self.W = self.weight(size, n_visible)
        self.W_h = self.weight(size, size)
        self.b = self.bias(size)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        q = project(v, self.W)  # (K, N, F)
        return project(q * q, self.W_h, self.b), q

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        return (carry * (h @ self.W_h)) @ self.W  # (K, N, D)


def printed_units(n_models: int, width: int, generator: torch.Generator) -> HiddenUnits:
    """What `energate.EnergyClassifier` builds its models from."""
    return PrintedCovarianceUnits(n_models, width, PRINTED_SIZE, generator)


def _svm(config: Config, device: str, seed: int) -> Any:  # noqa: ARG001
    return svm(scaling="none", **config)


def _svm_grid(
    system: System,  # noqa: ARG001
    parts: Parts,
    configs: Sequence[Config],
    device: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
) -> list[Attempt]:
    """All at once: they share distances and kernels."""
    grid = {f"svc__{name}": list(dict.fromkeys(config[name] for config in configs)) for name in ("C", "gamma")}
    found = search_svm(parts.X_train, parts.y_train, parts.X_valid, parts.y_valid, grid, scaling="none", n_jobs=2)
    return [
        Attempt({"C": trial.C, "gamma": trial.gamma}, 100 * trial.valid_error, None, trial.seconds)
        for trial in found.trials
    ]


#: the columns of tables whose rows have a class each
CLASS_SYSTEMS: dict[str, System] = {
    "svm": System(_svm, _svm_grid, on_gpu=False, random=False, log_proba=None, curves=False),
    "rbm": network(RBMClassifier),
    "saa3": network(StackedAutoencoderClassifier),
    "gsm": network(GatedSoftmax),
    "mlp": network(DropoutMLP),
    # Trained by cross-entropy alone, as it was when its column was computed.
    "deep": network(
        partial(ImageEnergyClassifier, denoising_weight=0.0, skip=0.0), energies=ImageEnergyClassifier.energies
    ),
    **{name: energy(units) for name, units in ENERGY_UNITS.items()},
    **{f"{name}-{variant}": energy(units) for name, units in ENERGY_UNITS.items() for variant in (*VARIANTS, "paper")},
    "caes-printed": energy(printed_units),
}


# --- several labels: classifiers of their own, and those that stand on others ------------------------------------


def _on_cpu(estimator: Callable[..., Any], config: Config, device: str, seed: int, *_: Any) -> Any:  # noqa: ARG001
    return estimator(**config, random_state=seed)


def _mlknn(config: Config, device: str, seed: int) -> MLkNN:  # noqa: ARG001
    return MLkNN(**config)


def refined(base: str, relation: str, method: str, objective: str) -> System:
    """An `EnergyRefiner` over another system."""

    def make(config: Config, device: str, seed: int, base: Any) -> EnergyRefiner:  # noqa: ARG001
        return EnergyRefiner(base, relation, method=method, objective=objective, device=device, random_state=seed)

    return System(make, on=(base,), base=base, edition=3)


def _projection(objective: str) -> System:
    def make(config: Config, device: str, seed: int, base: Any) -> LogCountProjection:  # noqa: ARG001
        return LogCountProjection(base, objective=objective, random_state=seed)

    return System(make, on=("mlp",), base="mlp")


def _mean(*on: str) -> System:
    def make(config: Config, device: str, seed: int, *bases: Any) -> MeanLabels:  # noqa: ARG001
        return MeanLabels(list(zip(on, bases, strict=True)), random_state=seed)

    return System(make, on=on)


#: the columns of tables whose rows have several labels; what stands on others comes after them
LABEL_SYSTEMS: dict[str, System] = {
    "logreg": System(partial(_on_cpu, logistic_labels)),
    "hashcrbm": System(partial(_on_device, HashCRBM)),
    "mlp": System(partial(_on_device, LabelMLP)),
    "gaes-xy": refined("mlp", "xy", "ascent", "hamming"),
    "gaes-y2": refined("mlp", "yy", "ascent", "hamming"),
    "sets-xy": refined("mlp", "xy", "sets", "hamming"),
    "sets-y2": refined("mlp", "yy", "sets", "hamming"),
    "sets-y2-subset": refined("mlp", "yy", "sets", "subset"),
    "projection": _projection("hamming"),
    "projection-subset": _projection("subset"),
    "svm": System(partial(_on_cpu, svm_labels)),
    "svm-sets-y2": refined("svm", "yy", "sets", "hamming"),
    "svm-sets-y2-subset": refined("svm", "yy", "sets", "subset"),
    "mean": _mean("mlp", "svm"),
    "mean-sets-xy": refined("mean", "xy", "sets", "hamming"),
    "mean-sets-y2": refined("mean", "yy", "sets", "hamming"),
    "mean-sets-y2-subset": refined("mean", "yy", "sets", "subset"),
    "chains": System(partial(_on_cpu, chain_labels)),
    "mlknn": System(_mlknn),
    "boosting": System(partial(_on_cpu, boosted_labels)),
    "logreg-sets-y2": refined("logreg", "yy", "sets", "hamming"),
    "logreg-sets-y2-subset": refined("logreg", "yy", "sets", "subset"),
}

#: systems that share fits, by the first words of their names: one process fits them one after another
_KIN = dict.fromkeys(("mlp", "gaes", "sets", "projection", "svm", "mean"), "refined")
FAMILIES: dict[str, tuple[str, ...]] = {}
for _name in LABEL_SYSTEMS:
    _family = _KIN.get(_name.split("-")[0], _name.split("-")[0])
    FAMILIES[_family] = (*FAMILIES.get(_family, ()), _name)


#: where the columns of a table are, by whether its rows have several labels
SYSTEMS = {False: CLASS_SYSTEMS, True: LABEL_SYSTEMS}
