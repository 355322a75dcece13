"""What is measured of a fitted system, as plain numbers for a file: errors, confusion, calibration, pictures."""

import base64
import datetime
import importlib
import importlib.metadata
import json
import math
import os
import platform
import resource
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energate.datasets import Dataset
from energate.measures import reliability
from energate.paper.systems import Array, Labels, System
from energate.training import History

SCHEMA = 1
MISTAKES, POINTS, ENERGY_BINS = 12, 50, 40
HISTOGRAM_ROWS = 5000


def measure(system: System, model: Any, data: Dataset, pictures: bool) -> dict[str, Any]:
    """Everything that the test rows and the validation rows say of a fitted system."""
    classes = np.unique(data.y_train)
    log_proba, predicted = _predict(system, model, data.X_test)
    valid_log_proba, valid_predicted = _predict(system, model, data.X_valid)
    wrong = predicted != data.y_test
    found: dict[str, Any] = {
        "classes": classes.tolist(),
        "test_error": _percent(wrong),
        "valid_error": _percent(valid_predicted != data.y_valid),
        "test_log_loss": _log_loss(log_proba, data.y_test),
        "valid_log_loss": _log_loss(valid_log_proba, data.y_valid),
        "confusion": _confusion(data.y_test, predicted, len(classes)),
        "wrong": base64.b64encode(np.packbits(wrong).tobytes()).decode(),
        "reliability": None if log_proba is None else reliability(np.exp(log_proba.max(1)), ~wrong),
        "energies": _energies(system.energies(model, data.X_test[:: _step(data)]), data.y_test[:: _step(data)]),
        "curves": {stage: _curve(history) for stage, history in system.curves(model).items()},
        "extra": {},
    }
    members = system.members(model, data.X_test)
    if members:
        found["extra"]["members"] = [_percent(member != data.y_test) for member in members]
    if pictures:
        found["mistakes"] = _mistakes(data, predicted, log_proba)
        found["filters"] = {kind: _filters(*given, data.shape) for kind, given in system.filters(model).items()}
    return found


def _step(data: Dataset) -> int:
    return max(1, len(data.y_test) // HISTOGRAM_ROWS)


def _predict(system: System, model: Any, X: NDArray[np.float32]) -> tuple[Array | None, Labels]:
    log_proba = system.log_proba(model, X)
    if log_proba is None:
        return None, np.asarray(model.predict(X))
    return log_proba, model.classes_[log_proba.argmax(1)]


def _percent(wrong: NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(wrong)), 4)


def _log_loss(log_proba: Array | None, labels: Labels) -> float | None:
    return None if log_proba is None else round(float(-log_proba[np.arange(len(labels)), labels].mean()), 6)


def _confusion(true: Labels, predicted: Labels, n_classes: int) -> list[list[int]]:
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(counts, (true, predicted), 1)
    rows: list[list[int]] = counts.tolist()
    return rows


def _energies(energies: Array | None, labels: Labels) -> dict[str, Any] | None:
    """Histograms of the energies of rows under their own class and under the others."""
    if energies is None:
        return None
    own = energies[np.arange(len(labels)), labels]
    others = energies[np.arange(energies.shape[1]) != labels[:, None]]
    low, high = np.quantile(np.concatenate([own, others]), [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-6), ENERGY_BINS + 1)
    return {
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "own": np.histogram(np.clip(own, edges[0], edges[-1]), edges)[0].tolist(),
        "others": np.histogram(np.clip(others, edges[0], edges[-1]), edges)[0].tolist(),
    }


def _curve(history: History) -> dict[str, list[Any]]:
    """Loss and validation at some epochs, the mean over members; None where an epoch was not validated."""
    n_epochs, n_checks = len(history.loss), len(history.validation)
    checked = {epoch: _rounded(value) for epoch, value in zip(history.validated, history.validation, strict=True)}
    # At most twice POINTS, however the epochs and the validations fall.
    step, check_step = max(1, math.ceil(n_epochs / POINTS)), max(1, math.ceil(n_checks / POINTS))
    epochs = sorted({*range(1, n_epochs + 1, step), *list(checked)[::check_step]})
    return {
        "epoch": epochs,
        "loss": [_rounded(history.loss[epoch - 1]) for epoch in epochs],
        "validation": [checked.get(epoch) for epoch in epochs],
    }


def _rounded(values: torch.Tensor) -> float:
    return float(f"{float(values.double().mean()):.5g}")


def _mistakes(data: Dataset, predicted: Labels, log_proba: Array | None) -> list[dict[str, Any]]:
    """Some rows that were taken for another class, the surest first where the system says how sure it is."""
    rows = np.flatnonzero(predicted != data.y_test)
    if log_proba is not None:
        rows = rows[np.argsort(-log_proba[rows].max(1), kind="stable")]
    return [
        {
            "row": int(row),
            "true": int(data.y_test[row]),
            "predicted": int(predicted[row]),
            "confidence": None if log_proba is None else round(float(np.exp(log_proba[row].max())), 4),
            "pixels": _bytes(255 * data.X_test[row]),
        }
        for row in rows[:MISTAKES]
    ]


def _filters(weights: Array, classes: Labels, shape: tuple[int, int]) -> dict[str, Any]:
    """Each filter scaled so that 0 is mid-grey."""
    top = np.abs(weights).max(1, keepdims=True)
    pixels = 128 + 127 * weights / np.where(top > 0, top, 1)
    return {"shape": list(shape), "n": len(weights), "pixels": _bytes(pixels), "classes": classes.tolist()}


def _bytes(pixels: NDArray[Any]) -> str:
    return base64.b64encode(np.clip(np.rint(pixels), 0, 255).astype(np.uint8).tobytes()).decode()


# --- circumstances and files ------------------------------------------------------------------------------------


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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON so that the file is the old one or the new one, whatever happens."""
    text = json.dumps(content, indent=None, separators=(",", ":"), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds; None where there is none that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
