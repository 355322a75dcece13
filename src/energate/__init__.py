"""energate: exact energies from auto-encoders, and classifiers built on them."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each public name lives.  They are imported on first use, so that `import energate` is quick.
_HOME = {
    "ACTIVATIONS": "activations",
    "Activation": "activations",
    "Autoencoder": "autoencoder",
    "ColumnMemoryUnits": "memory",
    "CovarianceUnits": "units",
    "EnergyClassifier": "estimators",
    "EnergyImputer": "estimators",
    "EnergyRefiner": "estimators",
    "EnergyScorer": "estimators",
    "GatedUnits": "units",
    "HiddenUnits": "units",
    "ImageEnergyClassifier": "estimators",
    "InputError": "errors",
    "LabelMLP": "estimators",
    "MeanUnits": "units",
    "MemoryUnits": "memory",
    "NetworkUnits": "units",
    "PairScorer": "estimators",
    "RBM": "rbm",
    "SoftColumnUnits": "memory",
    "SoftGaussianUnits": "memory",
    "SymmetricGatedUnits": "units",
    "TableEncoder": "estimators",
    "apply_table": "views",
    "attribute": "questions",
    "calibrate": "training.calibration",
    "check_conservative": "conservative",
    "class_batches": "training",
    "corrupt": "training",
    "counterfactual": "questions",
    "drift": "questions",
    "fit_table": "views",
    "importance": "questions",
    "jacobian_asymmetry": "conservative",
    "label_errors": "questions",
    "line_integral": "conservative",
    "load": "persistence",
    "minimise": "training",
    "row_batches": "training",
    "save": "persistence",
    "search": "tuning",
    "set_precision": "views",
    "trajectory": "dynamics",
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "tables":  # `energate.tables.open`
        return importlib.import_module("energate.tables")
    if name not in _HOME:
        raise AttributeError(f"module 'energate' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"energate.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
