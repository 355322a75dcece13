"""One row, explained: what `energate explain` prints, writes as JSON and draws."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import require
from energate.estimators.edge import Array

SHOWN_BESIDE = 3  # columns that are named beside each class
MOST_CLASSES, MOST_COLUMNS, MOST_LABELS = 10, 15, 25  # in a picture
MOST_SHARED = 0.75  # of what classes change; where more is common to all, it tells little of each
BLUE, ORANGE, GREY = "#3b6ea5", "#d9822b", "#9aa5b1"


@dataclass(frozen=True)
class Lines:
    """A table to print; columns in ``right`` stand at their right edge."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str]


@dataclass(frozen=True)
class Account(ABC):
    """What a model says of one row x (d,): the arrays of `explain` without their first axis, and the names."""

    about: dict[str, Any]  # of `describe`
    said: dict[str, NDArray[Any]]
    x: Array
    feature_names: list[str]
    labels: list[str]  # names of classes or labels
    sizes: Array  # of the columns, in which changes are measured
    image: tuple[int, ...] | None  # height and width, perhaps channels

    @property
    @abstractmethod
    def prediction(self) -> Any:
        """The class, the labels that are on, or whether the row is normal."""

    @abstractmethod
    def headline(self) -> str:
        """The prediction and how sure it is, in a line."""

    @abstractmethod
    def lines(self, top: int) -> list[Lines]:
        """Tables to print, with the ``top`` columns that reconstruction changes."""

    def footnote(self) -> str:
        """What is to be known of the model itself."""
        return str(self.about.get("verdict", ""))

    @abstractmethod
    def numbers(self, top: int) -> dict[str, Any]:
        """The same as plain JSON."""

    @abstractmethod
    def draw(self, title: str = "") -> Any:
        """The same as a matplotlib figure (extra ``plot``)."""

    def to_json(self, top: int = 5) -> dict[str, Any]:
        """All of it as plain JSON."""
        head = {"estimator": self.about["estimator"], "task": self.about["task"], "prediction": self.prediction}
        head |= {"p_value": float(self.said["p_value"])} if "p_value" in self.said else {}
        return {**head, **self.numbers(top)}

    def strange(self) -> str:
        """How strange the row is, in words; nothing where that is not known."""
        return f"; p-value {self.said['p_value']:.3g}" if "p_value" in self.said else ""

    # --- what reconstruction changes -------------------------------------------------------------

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

    def changes_as_lines(self, k: int, top: int, word: str) -> Lines:
        """The columns that model k changes most, to print."""
        rows = [
            (each["column"], f"{each['value']:.4g}", f"{each['reconstruction']:.4g}", f"{each['change']:+.2f}")
            for each in self.largest_changes(k, top)
        ]
        return Lines(("column", "value", word, "change"), rows, ("value", word, "change"))


class ClassAccount(Account):
    """Energies and probabilities of classes, and what the auto-encoder of each would change."""

    @property
    def prediction(self) -> Any:
        return self.said["predictions"].item()

    def _order(self) -> list[int]:
        found: list[int] = np.argsort(-self.said["probabilities"], kind="stable").tolist()
        return found

    def headline(self) -> str:
        best = self.said["probabilities"].max()
        return f"{self.prediction}, probability {best:.3f}; liking {self.said['liking']:.4g}{self.strange()}"

    def lines(self, top: int) -> list[Lines]:
        rows = []
        for k in self._order():
            changes = self.largest_changes(k, min(top, SHOWN_BESIDE))
            named = ", ".join(f"{each['column']} {each['change']:+.2f}" for each in changes)
            energy, probability = self.said["energies"][k], self.said["probabilities"][k]
            rows.append((self.labels[k], f"{energy:.4g}", f"{probability:.3f}", named))
        headers = ("class", "energy", "probability", "columns that its auto-encoder changes most")
        best = self._order()[0]
        return [
            Lines(headers, rows, ("energy", "probability")),
            self.changes_as_lines(best, top, f"as {self.labels[best]}"),
        ]

    def shared(self) -> float:
        """The share of what the classes change in the row that is common to all: |mean change|^2 / mean |change|^2."""
        changes = np.stack([self.changes(k) for k in range(len(self.labels))])  # (K, d)
        return float((changes.mean(0) ** 2).sum() / max((changes**2).sum(1).mean(), np.finfo(np.float64).tiny))

    def footnote(self) -> str:
        share = self.shared()
        if len(self.labels) < 2 or share < MOST_SHARED:
            return ""
        told = f"{100 * share:.0f} % of what the classes change in this row is common to all of them"
        return f"{told}, and tells little of each: go by the energies."

    def numbers(self, top: int) -> dict[str, Any]:
        said = self.said
        classes = [
            {
                "class": self.about["classes"][k],
                "energy": float(said["energies"][k]),
                "decision": float(said["decision"][k]),
                "probability": float(said["probabilities"][k]),
                "changes": self.largest_changes(k, top),
            }
            for k in range(len(self.labels))
        ]
        return {"liking": said["liking"].item(), "shared_changes": self.shared(), "classes": classes}

    def draw(self, title: str = "") -> Any:
        return _draw_models(self, self._order()[:MOST_CLASSES], title)


class AnomalyAccount(Account):
    """The energy, how far it is from the threshold, and what reconstruction would change."""

    @property
    def prediction(self) -> Any:
        return "normal" if self.said["is_inlier"] else "anomaly"

    def headline(self) -> str:
        said = self.said
        distance = f"{said['scores']:+.4g} from the threshold"
        return f"{self.prediction}, energy {said['energies']:.4g}, {distance}{self.strange()}"

    def lines(self, top: int) -> list[Lines]:
        return [self.changes_as_lines(0, top, "reconstruction")]

    def numbers(self, top: int) -> dict[str, Any]:
        return {
            "score": self.said["scores"].item(),
            "energy": self.said["energies"].item(),
            "is_inlier": bool(self.said["is_inlier"]),
            "threshold": self.about["threshold"],
            "changes": self.largest_changes(0, top),
        }

    def draw(self, title: str = "") -> Any:
        verdict = f"{self.prediction}, {self.said['scores']:+.4g} from the threshold"
        return _draw_models(self, [0], f"{title}: {verdict}".removeprefix(": "))


class LabelAccount(Account):
    """Labels before and after refinement."""

    @property
    def prediction(self) -> Any:
        found = self.said["predictions"]
        if self.about["task"] == "classify":
            return found.item()
        return [name for name, on in zip(self.labels, found, strict=True) if on]

    def headline(self) -> str:
        found = self.prediction
        return (", ".join(found) or "no label") if isinstance(found, list) else str(found)

    def lines(self, top: int) -> list[Lines]:
        rows = [(name, f"{base:.3f}", f"{refined:.3f}") for name, base, refined in self._both()]
        return [Lines(("label", "base", "refined"), rows, ("base", "refined"))]

    def numbers(self, top: int) -> dict[str, Any]:
        labels = [{"label": name, "base": base, "refined": refined} for name, base, refined in self._both()]
        return {"labels": labels, "steps": self.said["steps"].tolist()}

    def _both(self) -> list[tuple[str, float, float]]:
        return list(zip(self.labels, self.said["base"].tolist(), self.said["refined"].tolist(), strict=True))

    def draw(self, title: str = "") -> Any:
        return _draw_labels(self, title)


# --- pictures ----------------------------------------------------------------------------------------------------


def _draw_models(account: Account, models: list[int], title: str) -> Any:
    """Energies and probabilities, and what reconstruction by these models changes."""
    draw = _draw_columns if account.image is None else _draw_image
    return draw(account, models, title)


def _figure(width: float, height: float, title: str) -> Any:
    figure = require("matplotlib.figure", "plot").Figure(figsize=(width, height), layout="constrained", dpi=120)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _bars(ax: Any, values: Array, names: list[str], label: str, colours: Any = BLUE) -> None:
    places = np.arange(len(values))
    ax.barh(places, values, color=colours)
    ax.set_yticks(places, names, fontsize=8)
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.axvline(0, color="black", linewidth=0.6)
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlabel(label, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)


def _short(name: str, n_most: int = 24) -> str:
    return name if len(name) <= n_most else name[: n_most - 1] + "…"


def _probabilities(ax: Any, account: Account, models: list[int]) -> None:
    said = account.said
    names = [f"{_short(account.labels[k])}  (E {said['energies'][k]:.4g})" for k in models]
    _bars(ax, said["probabilities"][models], names, "probability (E: energy)")
    ax.set_xlim(0, 1)


def _draw_image(account: Account, models: list[int], title: str) -> Any:
    assert account.image is not None
    classes = "probabilities" in account.said
    width = (2.6 if classes else 2.4) + 1.25 * (1 + len(models))
    figure = _figure(width, 3.4, title)
    grid = figure.add_gridspec(2, 2 + len(models), width_ratios=[2.2 if classes else 0.05, *[1.0] * (1 + len(models))])
    if classes:
        _probabilities(figure.add_subplot(grid[:, 0]), account, models)
    pictures = account.said["reconstructions"][models]
    low, high = float(min(account.x.min(), pictures.min())), float(max(account.x.max(), pictures.max()))
    _picture(figure.add_subplot(grid[0, 1]), account.x, account.image, "the row", cmap="gray", vmin=low, vmax=high)
    furthest = float(np.abs(pictures - account.x).max()) or 1.0
    for column, (k, picture) in enumerate(zip(models, pictures, strict=True), 2):
        name = _short(account.labels[k], 12) if account.labels else "reconstruction"
        _picture(figure.add_subplot(grid[0, column]), picture, account.image, name, cmap="gray", vmin=low, vmax=high)
        ax = figure.add_subplot(grid[1, column])
        shown = _picture(ax, picture - account.x, account.image, "", cmap="RdBu_r", vmin=-furthest, vmax=furthest)
    empty = figure.add_subplot(grid[1, 1])
    empty.set_axis_off()
    empty.text(0.5, 0.5, "what it\nchanges", ha="center", va="center", fontsize=9)
    bar = figure.colorbar(shown, ax=empty, location="bottom", fraction=0.08)
    bar.ax.tick_params(labelsize=7)
    return figure


def _picture(ax: Any, values: Array, shape: tuple[int, ...], name: str, **options: Any) -> Any:
    ax.set_axis_off()
    ax.set_title(name, fontsize=9)
    pixels = values.reshape(shape)
    if pixels.ndim == 3:  # colours are shares of the range; what changes is shown as the mean of its channels
        low, high = options["vmin"], options["vmax"]
        pixels = ((pixels - low) / (high - low)).clip(0, 1) if options["cmap"] == "gray" else pixels.mean(2)
    return ax.imshow(pixels, interpolation="nearest", **options)


def _draw_columns(account: Account, models: list[int], title: str) -> Any:
    classes = "probabilities" in account.said
    changes = account.changes(models[0])
    most = np.argsort(-np.abs(changes), kind="stable")[:MOST_COLUMNS]
    height = 1.3 + 0.24 * max(len(most), len(models), 4)
    figure = _figure(9 if classes else 6, height, title)
    if classes:
        left, right = figure.subplots(1, 2)
        _probabilities(left, account, models)
    else:
        right = figure.subplots()
    names = [f"{_short(account.feature_names[i])}: {account.x[i]:.4g}" for i in most.tolist()]
    of = f" as {_short(account.labels[models[0]], 12)}" if classes else ""
    _bars(right, changes[most], names, f"change{of}, in spreads of the column", GREY)
    return figure


def _draw_labels(account: Account, title: str) -> Any:
    said = account.said
    order = np.argsort(-np.maximum(said["base"], said["refined"]), kind="stable")[:MOST_LABELS]
    figure = _figure(7, 1.4 + 0.3 * len(order), title)
    ax = figure.subplots()
    names = [_short(account.labels[i]) for i in order.tolist()]
    _bars(ax, said["refined"][order], names, "probability")
    ax.scatter(said["base"][order], np.arange(len(order)), color=ORANGE, zorder=3, s=28, label="base")
    ax.barh([0], [0], color=BLUE, label="refined")
    ax.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    ax.set_xlim(0, 1)
    ax.legend(fontsize=8, loc="lower right")
    return figure
