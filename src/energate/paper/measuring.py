"""What is measured of a fitted system on the test rows, as parts of a `Cell`; and on what machine that was."""

import datetime
import importlib
import importlib.metadata
import math
import os
import platform
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, f1_score

from energate.datasets import Dataset
from energate.measures import reliability
from energate.paper.cell import Covariance, Curve, Energies, Filters, Mistake, Reliability
from energate.paper.systems import Array, Labels, System, label_log_loss
from energate.training import History

MISTAKES, POINTS, ENERGY_BINS = 12, 50, 40
HISTOGRAM_ROWS = 5000
SHOWN_LABELS = 60


# --- rows of one class each --------------------------------------------------------------------------------------


def measure_classes(system: System, model: Any, data: Dataset, pictures: bool) -> dict[str, Any]:
    """Everything that the test rows and the validation rows say of a fitted system."""
    classes = np.unique(data.y_train)
    log_proba, predicted = _predict(system, model, data.X_test)
    valid_log_proba, valid_predicted = _predict(system, model, data.X_valid)
    wrong = predicted != data.y_test
    step = max(1, len(data.y_test) // HISTOGRAM_ROWS)
    calibration = None if log_proba is None else reliability(np.exp(log_proba.max(1)), ~wrong)
    energies = system.energies and system.energies(model, data.X_test[::step])
    members = system.members and system.members(model, data.X_test)
    found: dict[str, Any] = {
        "classes": classes.tolist(),
        "test_error": _percent(wrong),
        "valid_error": _percent(valid_predicted != data.y_valid),
        "test_log_loss": _log_loss(log_proba, data.y_test),
        "valid_log_loss": _log_loss(valid_log_proba, data.y_valid),
        "confusion": confusion_matrix(data.y_test, predicted, labels=classes),
        "wrong": wrong,
        "reliability": None if calibration is None else Reliability(**calibration),
        "energies": None if energies is None else histograms(energies, data.y_test[::step]),
        "curves": {stage: curve_of(each) for stage, each in (system.curves(model) if system.curves else {}).items()},
        "extra": {"members": [_percent(member != data.y_test) for member in members]} if members else {},
    }
    if pictures:
        found["mistakes"] = _mistakes(data, predicted, log_proba)
        filters = system.filters(model) if system.filters else {}
        found["filters"] = {kind: as_filters(*given, data.shape) for kind, given in filters.items()}
    return found


def _predict(system: System, model: Any, X: NDArray[np.float32]) -> tuple[Array | None, Labels]:
    if system.log_proba is None:
        return None, np.asarray(model.predict(X))
    log_proba = system.log_proba(model, X)
    return log_proba, model.classes_[log_proba.argmax(1)]


def _percent(wrong: NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(wrong)), 4)


def _log_loss(log_proba: Array | None, labels: Labels) -> float | None:
    return None if log_proba is None else round(float(-log_proba[np.arange(len(labels)), labels].mean()), 6)


def histograms(energies: Array, labels: Labels) -> Energies:
    """Histograms of the energies (n, K) of rows under their own class and under the others."""
    own = energies[np.arange(len(labels)), labels]
    others = energies[np.arange(energies.shape[1]) != labels[:, None]]
    low, high = np.quantile(np.concatenate([own, others]), [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-6), ENERGY_BINS + 1)
    counts = [np.histogram(np.clip(part, edges[0], edges[-1]), edges)[0].tolist() for part in (own, others)]
    return Energies([float(f"{edge:.6g}") for edge in edges], *counts)


def curve_of(history: History) -> Curve:
    """Loss and validation at some epochs, the mean over members; None where an epoch was not validated."""
    n_epochs, n_checks = len(history.loss), len(history.validation)
    checked = {epoch: _rounded(value) for epoch, value in zip(history.validated, history.validation, strict=True)}
    # At most twice POINTS, however the epochs and the validations fall.
    step, check_step = max(1, math.ceil(n_epochs / POINTS)), max(1, math.ceil(n_checks / POINTS))
    epochs = sorted({*range(1, n_epochs + 1, step), *list(checked)[::check_step]})
    return Curve(list(epochs), [_rounded(history.loss[e - 1]) for e in epochs], [checked.get(e) for e in epochs])


def _rounded(values: torch.Tensor) -> float:
    return float(f"{float(values.double().mean()):.5g}")


def _mistakes(data: Dataset, predicted: Labels, log_proba: Array | None) -> list[Mistake]:
    """Some rows that were taken for another class, the surest first where the system says how sure it is."""
    rows = np.flatnonzero(predicted != data.y_test)
    if log_proba is not None:
        rows = rows[np.argsort(-log_proba[rows].max(1), kind="stable")]
    return [
        Mistake(
            int(row),
            int(data.y_test[row]),
            int(predicted[row]),
            None if log_proba is None else round(float(np.exp(log_proba[row].max())), 4),
            _bytes(255 * data.X_test[row]).reshape(data.shape),
        )
        for row in rows[:MISTAKES]
    ]


def as_filters(weights: Array, classes: Labels, shape: tuple[int, int]) -> Filters:
    """Weights (n, D) as pictures, each scaled so that 0 is mid-grey."""
    top = np.abs(weights).max(1, keepdims=True)
    pixels = 128 + 127 * weights / np.where(top > 0, top, 1)
    return Filters(_bytes(pixels).reshape(-1, *shape), classes.tolist())


def _bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


# --- rows of several labels --------------------------------------------------------------------------------------


def measure_labels(p: Array, predicted: Array, Y: Array) -> dict[str, Any]:
    """All that the table says of probabilities and predictions (n, L).

    F1 is 1 where nothing is predicted and nothing is true.
    """
    percents = {"exact_match": (predicted == Y).all(1).mean()}
    for name, average in (("example_f1", "samples"), ("macro_f1", "macro"), ("micro_f1", "micro")):
        percents[name] = f1_score(Y, predicted, average=average, zero_division=1.0)
    brier = round(float(((p - Y) ** 2).mean()), 6)
    return {
        "test_error": _percent(predicted != Y),
        "test_log_loss": round(label_log_loss(p, Y), 6),
        "measures": {**{name: round(100 * float(value), 4) for name, value in percents.items()}, "brier": brier},
        "reliability": Reliability(**reliability(p.ravel(), Y.ravel())),
    }


def covariance(p: Array, Y: Array, names: Sequence[str]) -> Covariance:
    """Covariances of the most frequent labels and of their predicted probabilities."""
    often = np.sort(np.argsort(-Y.sum(0), kind="stable")[:SHOWN_LABELS])
    true, said = (np.atleast_2d(np.cov(values[:, often], rowvar=False)) for values in (Y, p))
    scale = max(float(np.abs(matrix).max()) for matrix in (true, said)) or 1.0
    return Covariance([names[i] for i in often], true, said, scale)


def about_refining(model: Any) -> dict[str, Any]:
    """What a fitted refiner says of itself; of another model nothing."""
    fitted = vars(model)
    numbers = {"gate": fitted.get("gate_"), "n_steps": fitted.get("n_steps_")}
    gain = fitted.get("gain_")
    if gain is not None:
        numbers |= {"gain": gain.mean, "gain_standard_error": gain.standard_error}
    return {"verdict": fitted.get("verdict_", ""), "extra": {k: v for k, v in numbers.items() if v is not None}}


# --- circumstances -----------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """What ran."""
    names = ("energate", "torch", "scikit-learn", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # from a source tree that is not installed
            found[name] = importlib.import_module(name).__version__
    return found


def device_name(device: str) -> str:
    """The machine's part that did the work."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"


def memory(device: str) -> dict[str, float | None]:
    """The most memory so far, in MiB: of the device since the last reset, and of this process."""
    on_device = torch.cuda.max_memory_allocated() / 2**20 if device.startswith("cuda") else None
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if platform.system() == "Darwin" else 2**10)
    return {"device_peak_mib": None if on_device is None else round(on_device, 1), "host_peak_mib": round(own, 1)}


def today() -> str:
    """The date, in words of ISO 8601."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
