"""Classifiers that take a table as it is, every one with its defaults.

Those that know categories and missing cells themselves get the frame; the others a pipeline in front, the same for all.
"""

import importlib
import importlib.metadata
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from energate import EnergyClassifier, __version__

MOST_CATEGORIES = 255  # that HistGradientBoosting takes in a column
CATEGORIES, NUMBERS = make_column_selector(dtype_include="category"), make_column_selector(dtype_include="number")


@dataclass(frozen=True)
class Settings:
    """What a system is made for: a seed, a device, a number of threads, and which columns hold categories."""

    seed: int
    device: str
    threads: int
    categories: list[str]


def as_numbers(model: Any) -> Any:
    """For models of numbers: medians with indicators, standardised; 0/1 columns, of which missing cells have one."""
    numbers = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True), StandardScaler()
    )
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((numbers, NUMBERS), (words, CATEGORIES)), model)


def filled(model: Any) -> Any:
    """For models that know categories, but no missing numbers: medians with indicators, still a frame."""
    numbers = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    columns = make_column_transformer(
        (numbers, NUMBERS), ("passthrough", CATEGORIES), verbose_feature_names_out=False
    ).set_output(transform="pandas")
    return make_pipeline(columns, model)


class Capped(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Keeps the most frequent categories of a column that has too many of them; the others become missing."""

    def __init__(self, most: int = MOST_CATEGORIES) -> None:
        self.most = most

    def fit(self, X: Any, y: Any = None) -> "Capped":  # noqa: ARG002
        counts = {name: X[name].value_counts() for name in CATEGORIES(X)}
        self.kept_ = {name: list(each.index[: self.most]) for name, each in counts.items() if len(each) > self.most}
        return self

    def transform(self, X: Any) -> Any:
        return X.assign(**{name: X[name].cat.set_categories(kept) for name, kept in self.kept_.items()})


def with_words(frame: Any) -> Any:
    """Categories as text, with a word for missing cells: CatBoost takes no others."""
    return frame.assign(**{name: frame[name].astype(object).fillna("missing") for name in CATEGORIES(frame)})


def catboost(settings: Settings) -> Any:
    model = importlib.import_module("catboost").CatBoostClassifier(
        cat_features=settings.categories,
        random_seed=settings.seed,
        thread_count=settings.threads,
        verbose=0,
        allow_writing_files=False,
    )
    return make_pipeline(FunctionTransformer(with_words), model)


def lightgbm(settings: Settings) -> Any:
    kind = importlib.import_module("lightgbm").LGBMClassifier
    return kind(random_state=settings.seed, n_jobs=settings.threads, verbose=-1)


def pytabkit(name: str) -> Callable[[Settings], Any]:
    def make(settings: Settings) -> Any:
        kind = getattr(importlib.import_module("pytabkit"), name)
        for logger in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        return filled(kind(device=settings.device, random_state=settings.seed, n_threads=settings.threads))

    return make


def ours(*units: str) -> Callable[[Settings], Any]:
    return lambda settings: EnergyClassifier(*units, random_state=settings.seed, device=settings.device)


@dataclass(frozen=True)
class System:
    """How to make a classifier, and the package that it takes."""

    make: Callable[[Settings], Any]
    package: str = "scikit-learn"
    ranked: bool = True

    @property
    def ours(self) -> bool:
        return self.package == "energate"

    @property
    def version(self) -> str | None:
        """Of the package; None where it is not installed."""
        if self.ours:
            return __version__
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


OURS = "EnergyClassifier"
SYSTEMS: dict[str, System] = {
    OURS: System(ours(), "energate"),
    # The other kinds are run where they are named, and take no part in the ranks.
    "mean-covariance": System(ours("mean-covariance"), "energate", ranked=False),
    "mean": System(ours("mean"), "energate", ranked=False),
    "covariance": System(ours("covariance"), "energate", ranked=False),
    "memory": System(ours("memory"), "energate", ranked=False),
    "LogReg": System(lambda s: as_numbers(LogisticRegression(random_state=s.seed))),
    "SVC": System(lambda s: as_numbers(SVC(random_state=s.seed))),
    "RandomForest": System(lambda s: as_numbers(RandomForestClassifier(random_state=s.seed))),
    "HistGradientBoosting": System(
        lambda s: make_pipeline(
            Capped(), HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=s.seed)
        )
    ),
    "MLP": System(lambda s: as_numbers(MLPClassifier(random_state=s.seed))),
    "CatBoost": System(catboost, "catboost"),
    "LightGBM": System(lightgbm, "lightgbm"),
    "TabM": System(pytabkit("TabM_D_Classifier"), "pytabkit"),
    "RealMLP": System(pytabkit("RealMLP_TD_Classifier"), "pytabkit"),
}
