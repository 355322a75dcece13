"""One row, explained: what `energate explain` prints and draws."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.estimators.edge import Array
from energate.views import describe, explain

LEAST_SIDE = 8  # of rows that are taken for square pictures without being told


@dataclass(frozen=True)
class Account:
    """What a model says of one row x (d,): the arrays of `explain` without their first axis, and the names."""

    about: dict[str, Any]  # of `describe`
    said: dict[str, NDArray[Any]]
    x: Array
    feature_names: list[str]
    labels: list[str]  # names of classes or labels
    sizes: Array  # of the columns, in which changes are measured
    image: tuple[int, int] | None

    @classmethod
    def of(
        cls, model: Any, x: Any, columns: Any = None, names: list[str] | None = None, scores: Any = None
    ) -> "Account":
        """Explain a row; ``columns`` are those that the model was saved with, if any, ``names`` those of x.

        ``scores`` (L,) are what a refiner's base says of the row, if it was computed elsewhere.
        """
        about = describe(model)
        x = np.asarray(x, dtype=np.float64).reshape(1, -1)
        said = explain(model, x, scores=None if scores is None else np.reshape(scores, (1, -1)))
        # Of method "sets" and ascent alike the steps come first, then the rows.
        said = {name: values[:, 0] if name == "steps" else values[0] for name, values in said.items()}
        names = names or about["feature_names"] or [f"x{i}" for i in range(x.shape[1])]
        labels = about["labels"] if about["classes"] is None else about["classes"]
        if columns is not None and about["labels"] is not None:
            labels = columns.labels or labels
        sizes = np.asarray(about["sizes"], dtype=np.float64)
        return cls(about, said, x[0], names, [str(name) for name in labels or []], sizes, _image(about, columns))

    @property
    def prediction(self) -> Any:
        """The class, the labels that are on, or whether the row is normal."""
        if self.about["task"] == "anomaly":
            return "normal" if self.said["is_inlier"] else "anomaly"
        found = self.said["predictions"]
        if self.about["task"] == "classify":
            return found.item()
        return [name for name, on in zip(self.labels, found, strict=True) if on]

    def changes(self, k: int = 0) -> Array:
        """What reconstruction by model k adds to every column, in units of the spread that it had in training: (d,)."""
        return (self.said["reconstructions"][k] - self.x) / self.sizes

    def largest_changes(self, k: int = 0, n_most: int = 5) -> list[dict[str, Any]]:
        """The columns that model k changes most."""
        changes = self.changes(k)
        most = np.argsort(-np.abs(changes), kind="stable")[:n_most]
        return [
            {
                "column": self.feature_names[i],
                "value": float(self.x[i]),
                "reconstruction": float(self.said["reconstructions"][k][i]),
                "change": float(changes[i]),
            }
            for i in most.tolist()
        ]

    def to_json(self, n_changes: int = 5) -> dict[str, Any]:
        """The same as plain JSON."""
        found = {"estimator": self.about["estimator"], "task": self.about["task"], "prediction": self.prediction}
        said = self.said
        if "steps" in said:
            rows = zip(self.labels, said["base"].tolist(), said["refined"].tolist(), strict=True)
            found["labels"] = [{"label": name, "base": base, "refined": refined} for name, base, refined in rows]
            found["steps"] = said["steps"].tolist()
        elif "is_inlier" in said:
            found |= {"score": said["scores"].item(), "energy": said["energies"].item()}
            found |= {"is_inlier": bool(said["is_inlier"]), "threshold": self.about["threshold"]}
            found["changes"] = self.largest_changes(0, n_changes)
        else:
            found["liking"] = said["liking"].item()
            found["classes"] = [
                {
                    "class": name,
                    "energy": float(said["energies"][k]),
                    "decision": float(said["decision"][k]),
                    "probability": float(said["probabilities"][k]),
                    "changes": self.largest_changes(k, n_changes),
                }
                for k, name in enumerate(self.labels)
            ]
        return found


def _image(about: dict[str, Any], columns: Any) -> tuple[int, int] | None:
    """Height and width of the picture that a row is: as saved, or a square if nothing is known of the columns."""
    if columns is not None:
        return columns.image
    side = math.isqrt(about["n_features"])
    square = side * side == about["n_features"] and side >= LEAST_SIDE
    return (side, side) if square and about["feature_names"] is None else None


def check_explainable(model: Any) -> None:
    """Refuse early what `explain` refuses, before a table is read."""
    about = describe(model)
    if about["estimator"] in ("LabelMLP", "PairScorer"):
        raise InputError(
            f"A {about['estimator']} has no energies of single rows to explain; `energate explain` is for a "
            "classifier, an anomaly model or a refiner."
        )
