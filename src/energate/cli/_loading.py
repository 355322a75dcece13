"""A saved model for the commands, and what to do from a shell where it lacks something."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energate.cli._console import messages
from energate.errors import InputError

if TYPE_CHECKING:
    from energate.tables import Columns
    from energate.tables.reading import Source


@dataclass(frozen=True)
class Loaded:
    """A model, and the columns that it was saved with, if any."""

    path: Path
    model: Any
    columns: "Columns | None"

    base_is: str | None = None  # where the base of a refiner is, if not in the model

    @classmethod
    def of(cls, path: Path, device: str) -> "Loaded":
        """Load a model; a refiner goes without a base that is not in its files, or that only Python may read."""
        with messages().status(f"{path.name}: loading"):
            from energate.persistence import load, read_about

            about = read_about(path)
            if about.function is not None:
                raise InputError(
                    f"{path.name} was fitted with a function of Python, {about.function}, as `units`, which is not in "
                    "its file: commands cannot use it. Use it from Python, or fit a model with `energate fit --units "
                    "mean`, covariance or mean-covariance."
                )
            if about.base is None:
                return cls(path, load(path, device), about.columns)
            model = load(path, device, base=None)
        # skops reads types that somebody has looked at; a list of them is no thing to type into a shell.
        where = "in a part of its file that is read from Python alone" if about.has_base else "not in its file"
        return cls(path, model, about.columns, f"a {about.base}, is {where}")

    def need_base(self, command: str, instead: str) -> None:
        """Refuse a command that asks a base which is not there; ``instead`` takes what the base says from DATA."""
        if self.base_is is None:
            return
        way = f"run `energate {instead}`" if command != instead else "run this again"
        raise InputError(
            f"`energate {command}` asks the base of {self.path.name} first; the base, {self.base_is}. Put what it says "
            f"of each label into columns of DATA, such as p_{self.labels()[0]}, and {way} with --base-prefix p_."
        )

    @property
    def kind(self) -> str:
        """The class of the model."""
        return type(self.model).__name__

    def match(self, source: "Source") -> "Columns":
        """The columns of a table that the model takes; one that was fitted on an array takes them by name or number."""
        from energate.tables import Columns
        from energate.tables.cells import listed

        if self.columns is not None:
            missing = [name for name in self.columns.names if name not in set(source.names)]
            if missing:
                raise InputError(
                    f"{source.path.name} must have the columns that {self.path.name} takes; it lacks {listed(missing)}."
                )
            return self.columns
        width, known = self.model.n_features_in_, vars(self.model).get("feature_names_in_")
        numbered = [f"x{i}" for i in range(width)]
        for names in ([] if known is None else [str(name) for name in known], source.groups.get("X", []), numbered):
            if len(names) == width and set(names) <= set(source.names):
                return Columns.plain(names)
        if known is None and len(source.names) == width:
            return Columns.plain(source.names)
        raise InputError(
            f"{self.path.name} was saved without the names of its columns and takes {width}; {source.path.name} has "
            f"{len(source.names)}. Name them x0 to x{width - 1}, or have no others; or fit with `energate fit`."
        )

    def labels(self) -> list[str]:
        """The names of the labels, or of the classes, of which the model gives probabilities."""
        model = self.model
        if self.kind == "EnergyClassifier" or not model.multilabel_:
            return [str(each) for each in model.classes_]
        if self.columns is not None and self.columns.labels is not None:
            return list(self.columns.labels)
        return [str(i) for i in range(len(model.classes_))]
