"""The columns that a saved model adds to the rows of a table."""

from collections.abc import Callable
from functools import partial
from typing import Any

from energate.cli._loading import Loaded
from energate.errors import InputError

Adds = Callable[[Any, dict[str, Any]], dict[str, Any]]


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
    if loaded.kind == "EnergyRefiner":
        loaded.need_base("predict", "refine")
        return _labels(loaded, "p_" if with_probabilities else None, None, None)
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

    from energate.estimators.edge import any_class

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


def refined(loaded: Loaded, base_prefix: str | None, base_scores: str, with_base: bool) -> Adds:
    """Refined probabilities and labels, from the model's own base or from columns of the table."""
    if loaded.kind != "EnergyRefiner":
        raise _refuse(loaded, "refine", "a refiner of several labels")
    if base_prefix is None:
        loaded.need_base("refine", "refine")
    scores = None if base_prefix is None else partial(scores_in, loaded, base_prefix, base_scores)
    return _labels(loaded, "refined_", "base_" if with_base else None, scores)


def _labels(loaded: Loaded, refined: str | None, base: str | None, scores: Callable[[Any], Any] | None) -> Adds:
    """What a refiner says, its probabilities under names that begin so; ``scores`` finds the base's in the table."""
    from energate.views import refine

    model, names = loaded.model, loaded.labels()

    def add(X: Any, batch: dict[str, Any]) -> dict[str, Any]:
        found = refine(model, X, scores=None if scores is None else scores(batch))
        chosen = found["predictions"]
        new = _named("predicted_", names, chosen) if model.multilabel_ else {"prediction": chosen}
        for before, kind in ((base, "base"), (refined, "refined")):
            new |= {} if before is None else _named(before, names, found[kind])
        return new

    return add


def scores_in(loaded: Loaded, prefix: str, kind: str, batch: dict[str, Any]) -> Any:
    """What a table says of every label, in columns whose names begin so, as logits: (n, L)."""
    import numpy as np

    from energate.estimators.bases import MOST
    from energate.tables.cells import CellError, listed, numbers

    names = loaded.labels()
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
