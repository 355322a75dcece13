"""The columns that a saved model adds to the rows of a table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energate.errors import InputError

if TYPE_CHECKING:
    from energate.tables import Columns
    from energate.tables.reading import Source

Adds = Callable[[Any, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Loaded:
    """A model, and the columns that it was saved with, if any."""

    path: Path
    model: Any
    columns: "Columns | None"

    @classmethod
    def of(cls, path: Path, device: str, *, without_base: bool = False) -> "Loaded":
        """Load a model; a refiner may go without its base if what that says is in the table."""
        from energate.persistence import load, read_columns

        columns = read_columns(path)
        try:
            model = load(path, device)
        except InputError:
            if not without_base:
                raise
            model = load(path, device, base=None)
        return cls(path, model, columns)

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


def _named(before: str, names: list[str], values: Any) -> dict[str, Any]:
    return {f"{before}{name}": values[:, i] for i, name in enumerate(names)}


def _refuse(loaded: Loaded, command: str, right: str) -> InputError:
    return InputError(
        f"`energate {command}` is for {right}; the model in {loaded.path.name} is of the kind {loaded.kind}."
    )


# --- predict -----------------------------------------------------------------------------------------------------


def predictions(loaded: Loaded, with_probabilities: bool) -> Adds:
    """The class or the labels, and the probabilities."""
    model = loaded.model
    if loaded.kind == "EnergyScorer":
        return lambda X, _: {"prediction": model.predict(X)}
    if loaded.kind == "PairScorer":
        raise _refuse(loaded, "predict", "a classifier, a refiner or an anomaly model")
    names = loaded.labels()
    several = loaded.kind != "EnergyClassifier" and model.multilabel_

    def add(X: Any, _: Any) -> dict[str, Any]:
        if several:
            found = _named("predicted_", names, model.predict(X))
            return found | (_named("p_", names, model.predict_proba(X)) if with_probabilities else {})
        p = model.predict_proba(X)
        found = {"prediction": model.classes_[p.argmax(1)]}
        return found | (_named("p_", names, p) if with_probabilities else {})

    return add


# --- score -------------------------------------------------------------------------------------------------------


def scores(loaded: Loaded) -> Adds:
    """Energies of the classes and the liking, or the anomaly score and whether the row is normal."""
    import numpy as np

    from energate.estimators._scoring import any_class

    model = loaded.model
    if loaded.kind == "EnergyScorer":

        def anomaly(X: Any, _: Any) -> dict[str, Any]:
            found = model.decision_function(X)
            return {"score": found, "is_inlier": (found >= 0).astype(np.int64)}

        return anomaly
    if loaded.kind != "EnergyClassifier":
        raise _refuse(loaded, "score", "a classifier or an anomaly model")
    names = loaded.labels()

    def classes(X: Any, _: Any) -> dict[str, Any]:
        import torch

        energies = model.energies(X)
        return {**_named("energy_", names, energies), "liking": any_class(torch.as_tensor(energies))}

    return classes


# --- refine ------------------------------------------------------------------------------------------------------


def refined(loaded: Loaded, base_prefix: str | None, base_scores: str) -> Adds:
    """Refined probabilities and labels, from the model's own base or from columns of the table."""
    if loaded.kind != "EnergyRefiner":
        raise _refuse(loaded, "refine", "a refiner of several labels")
    model, names = loaded.model, loaded.labels()

    def add(X: Any, batch: dict[str, Any]) -> dict[str, Any]:
        if base_prefix is None:
            p, best = model._outputs(X)
        else:
            p, best = model.refine(_base_scores(batch, base_prefix, names, base_scores), X)
        return _named("refined_", names, p) | _named("predicted_", names, model._decide(p, best).astype("int64"))

    return add


def _base_scores(batch: dict[str, Any], prefix: str, names: list[str], kind: str) -> Any:
    """What the table says of every label, as logits: (n, L)."""
    import numpy as np

    from energate.estimators._outputs import MOST
    from energate.tables.cells import CellError, listed, numbers

    missing = [f"{prefix}{name}" for name in names if f"{prefix}{name}" not in batch]
    if missing:
        raise InputError(f"DATA must have a column {prefix + 'LABEL'!r} for each label; it lacks {listed(missing)}.")
    found = np.stack([numbers(batch[f"{prefix}{name}"], f"{prefix}{name}") for name in names], 1)
    wrong = ~np.isfinite(found)
    if kind == "probabilities":
        wrong |= (found < 0) | (found > 1)
    if wrong.any():
        row, place = (int(each[0]) for each in np.nonzero(wrong))
        expected = "a number" if kind == "logits" else "a probability, from 0 to 1 (--base-scores logits takes others)"
        raise CellError(f"{prefix}{names[place]}", row, float(found[row, place]), expected)
    if kind == "logits":
        return found
    with np.errstate(divide="ignore"):
        return np.clip(np.log(found) - np.log1p(-found), -MOST, MOST)
