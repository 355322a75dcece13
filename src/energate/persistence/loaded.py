"""Saved models for the rows of tables, as commands and jobs use them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energate.errors import InputError
from energate.persistence.archive import load, read_about
from energate.views.applying import BaseColumns, TableModel


@dataclass(frozen=True)
class Loaded:
    """A model with its columns, and where the base of a refiner is, if not in the model."""

    table: TableModel
    base_is: str | None = None

    @classmethod
    def of(cls, path: Path, device: str) -> "Loaded":
        """Load a model; a refiner goes without a base that is not in its files, or that only Python may read."""
        about = read_about(path)
        if about.is_pipeline:
            raise InputError(f"{path.name} is a Pipeline, which is used from Python: energate.load({path.name!r}).")
        if about.function is not None:
            raise InputError(
                f"{path.name} was fitted with a function of Python, {about.function}, as `units`, which is not in "
                "its file: commands cannot use it. Use it from Python, or fit a model with `energate fit --units "
                "mean`, covariance or mean-covariance."
            )
        if about.base is None:
            return cls(TableModel(load(path, device), about.columns, path.name))
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
