"""Whether what a model shows of rows means something: reconstructions and trajectories, measured on rows.

Training by cross-entropy alone makes energies that tell classes apart and auto-encoders that reconstruct nothing.  So
this is measured: whether the class that is predicted changes a row least of all, whether what it makes of the row lies
within the data, and whether rows that follow its field come to rest there.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from energate import dynamics
from energate.errors import InputError
from energate.estimators.edge import Array
from energate.views.view import View, view_of

MOST_ROWS, MOST_WALKS = 200, 10
ROOM = 1.0  # spreads of a column beyond the rows that still count as within
MOST_STEPS, AT_REST = 200, 1e-5  # of a trajectory; the relative change of its energy
LEAST_INSIDE, LEAST_ENDED = 0.5, 0.5  # shares below which nothing should be explained
FEWEST_ROWS = 10  # of fewer nothing is said


class MeaningWarning(UserWarning):
    """What reconstructions show of a model means little."""


@dataclass(frozen=True)
class Meaning:
    """Shares of rows, in percent: what a model shows of them means something where these are high.

    ``least_changed``: the class that is predicted changes the row least; by chance that would be ``chance``, and both
    are None for a model without classes.  ``inside``: the reconstruction by that class lies within the range of the
    rows, and a spread of the column beyond it.  ``ended``: the trajectory of that class comes to rest there; None if
    that was not measured.
    """

    n_rows: int
    least_changed: float | None
    chance: float | None
    inside: float
    ended: float | None

    @property
    def warning(self) -> str | None:
        """What to say to whoever looks at explanations of this model, in a line; None if they mean something."""
        faults = []
        blind = self.least_changed is not None and self.chance is not None and self.least_changed < self.chance
        least = f"the predicted class changes {self.least_changed:.0f} % of rows least" if blind else ""
        if self.inside < 100 * LEAST_INSIDE:
            faults.append(f"{self.inside:.0f} % of its reconstructions are within the data")
        if self.ended is not None and self.ended < 100 * LEAST_ENDED:
            faults.append(f"{self.ended:.0f} % of trajectories end there")
        if not faults:
            told = "How much each class of this model changes a row does not tell which it is"
            return f"{told} ({least}): go by energies and probabilities." if blind else None
        faults = [least, *faults] if blind else faults
        others = "units='memory', or a kind of the paper with explainable=True, can be explained."
        if self.least_changed is None:
            others = "other units may do better."
        return (
            f"What reconstructions show of this model means little: {', '.join(faults)}. Its predictions are not in "
            f"question; {others}"
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON; shares in percent."""
        return {**asdict(self), "warning": self.warning}


def measure_meaning(model: Any, X: Any, *, seed: int = 0) -> Meaning:
    """Measure on rows X (n, d), of which some are drawn if there are many, whether explanations mean something.

    Best are rows that the model was not trained on.  Of a refiner, and of pairs, there is nothing to measure.
    """
    view = view_of(model)
    X = view.rows(X)
    if not measurable(view, len(X)):
        raise InputError(
            f"A model with reconstructions of rows, and {FEWEST_ROWS} rows or more, can be measured; got "
            f"{type(model).__name__} and {len(X)} rows."
        )
    bounds = _bounds(view, X)
    X = X[np.sort(np.random.default_rng(seed).permutation(len(X))[:MOST_ROWS])]
    said = view.commands()["explain"].compute(X)
    own = _own(said)[:MOST_WALKS]
    walked = X[:MOST_WALKS]
    ended = np.concatenate([_ends(view, walked[own == k], int(k), bounds) for k in np.unique(own)])
    return replace(meaning_of(view, X, said, bounds), ended=100 * float(ended.mean()))


def measurable(view: View, n_rows: int) -> bool:
    """Whether a model has reconstructions of rows, and there are enough of them to measure on.

    Not of a network over pictures: every step of a trajectory is a pass through it for each class.
    """
    return view.moves and view.shape is None and n_rows >= FEWEST_ROWS


def meaning_of(view: View, X: Array, said: dict[str, Any], bounds: tuple[Array, Array] | None = None) -> Meaning:
    """The same of what `explain` has said of rows (n, d) already, without trajectories."""
    own, made = _own(said), said["reconstructions"]  # (n,), (n, K, D)
    changes = (((made - view.seen(X)[:, None]) / view.model.scaler_.size) ** 2).sum(2)  # (n, K)
    n_classes = changes.shape[1]
    least = None if n_classes < 2 else 100 * float((changes.argmin(1) == own).mean())
    inside = _inside(made[np.arange(len(X)), own], bounds or _bounds(view, X))
    return Meaning(len(X), least, None if least is None else 100 / n_classes, 100 * float(inside.mean()), None)


def _own(said: dict[str, Any]) -> NDArray[np.int64]:
    """The number of the model that speaks for each row: the class that is predicted, or the only one."""
    if "decision" in said:
        return np.asarray(said["decision"].argmax(1))
    return np.zeros(len(said["energies"]), dtype=np.int64)


def _bounds(view: View, X: Array) -> tuple[Array, Array]:
    seen, room = view.seen(X), ROOM * view.model.scaler_.size
    return seen.min(axis=0) - room, seen.max(axis=0) + room


def _inside(points: Array, bounds: tuple[Array, Array]) -> NDArray[np.bool_]:
    low, high = bounds
    return np.asarray(((points >= low) & (points <= high)).all(axis=1))


def _ends(view: View, X: Array, k: int, bounds: tuple[Array, Array]) -> NDArray[np.bool_]:
    """Which rows come to rest within the bounds when they follow the field of class k."""
    course = view.course(X[:1], k if len(view.labels) else None)
    autoencoder, index = course.autoencoder, course.index
    start = torch.as_tensor(view.scaled(X)).to(autoencoder.a).clamp(*autoencoder.visible.bounds)
    walk = dynamics.trajectory(autoencoder, start, max_steps=MOST_STEPS, tolerance=AT_REST)
    points = view.model.scaler_.undo(walk.points[index].double().cpu().numpy())
    return walk.converged[index].cpu().numpy() & _inside(points, bounds)
