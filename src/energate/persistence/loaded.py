"""Saved models for the rows of tables, as commands and jobs use them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energate.errors import InputError
from energate.estimators import EnergyImputer
from energate.persistence import pipelines
from energate.persistence.archive import load, read_about
from energate.tables import Columns
from energate.views.applying import BaseColumns, TableModel
from energate.views.view import columns_for


@dataclass(frozen=True)
class Loaded:
    """A model with its columns, and where the base of a refiner is, if not in the model."""

    table: TableModel
    base_is: str | None = None

    @classmethod
    def of(cls, path: Path, device: str) -> "Loaded":
        """Load a model; a refiner goes without a base that is not in its files, or that only Python may read."""
        about = read_about(path)
        if about.function is not None:
            raise InputError(
                f"{path.name} was fitted with a function of Python, {about.function}, as `units`, which is not in "
                "its file: commands cannot use it. Use it from Python, or fit a model with `energate fit --units "
                "mean`, covariance or mean-covariance."
            )
        if about.is_imputer:
            raise InputError(
                f"{path.name} is an EnergyImputer, which fills missing cells: energate impute DATA --model {path.name}."
            )
        if about.foreign_steps:
            raise InputError(
                f"{path.name} is a Pipeline with {', '.join(about.foreign_steps)}, which is read from Python alone: "
                f"energate.load({path.name!r}, trusted=[...]). Commands take a Pipeline of a TableEncoder and a model."
            )
        if about.base is None:
            return cls(TableModel(*load_with_columns(path, device), path.name))
        model = load(path, device, base=None)
        # skops reads types that somebody has looked at; a list of them is no thing to type into a shell.
        where = "in a part of its file that is read from Python alone" if about.has_base else "not in its file"
        return cls(TableModel(model, about.columns, path.name), f"a {about.base}, is {where}")

    @property
    def model(self) -> Any:
        """The estimator."""
        return self.table.model

    def base(self, command: str, prefix: str | None, kind: str) -> BaseColumns | None:
        """Where a table has what the base says; refuses a command that asks a base which is not there."""
        if prefix is not None:
            return BaseColumns(prefix, kind)
        if self.base_is is None:
            return None
        instead = "refine" if command == "predict" else command
        way = f"run `energate {instead}`" if command != instead else "run this again"
        raise InputError(
            f"`energate {command}` asks the base of {self.table.name} first; the base, {self.base_is}. Put what it "
            f"says of each label into columns of DATA, such as p_{self.table.labels()[0]}, and {way} with "
            "--base-prefix p_."
        )


def load_with_columns(path: Path, device: str) -> tuple[Any, Columns | None]:
    """A saved model, or that of a Pipeline behind its encoder, and the columns of a table that it takes."""
    about, model = read_about(path), load(path, device)
    return pipelines.as_table(model) if about.is_pipeline else (model, about.columns)


def load_imputer(path: Path, device: str) -> tuple[EnergyImputer, Columns]:
    """A saved `EnergyImputer`, and the columns of a table that it fills."""
    about = read_about(path)
    if not about.is_imputer or about.is_pipeline:
        raise InputError(f"{path.name} is no EnergyImputer, which `energate impute --save` and `save` write.")
    imputer: EnergyImputer = load(path, device)
    names = vars(imputer).get("feature_names_in_", [f"x{i}" for i in range(imputer.n_features_in_)])
    return imputer, about.columns or columns_for(imputer.cells_, list(map(str, names)), "anomaly")
