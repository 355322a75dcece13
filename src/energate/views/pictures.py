"""A row, explained, as a picture (extra ``plot``)."""

from typing import Any

import numpy as np

from energate.errors import require
from energate.estimators.edge import Array
from energate.views.account import Account

MOST_CLASSES = 10  # shown, the most probable ones
MOST_COLUMNS = 15
MOST_LABELS = 25
BLUE, ORANGE, GREY = "#3b6ea5", "#d9822b", "#9aa5b1"


def draw(account: Account, title: str = "") -> Any:
    """A matplotlib figure: energies and probabilities, and what reconstruction changes; or labels before and after."""
    if "steps" in account.said:
        return _labels(account, title)
    return _image(account, title) if account.image is not None else _table(account, title)


def _figure(width: float, height: float, title: str) -> Any:
    figure = require("matplotlib.figure", "plot").Figure(figsize=(width, height), layout="constrained", dpi=120)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _models(account: Account) -> list[int]:
    """The models to show, most probable class first; a scorer has one."""
    if "probabilities" not in account.said:
        return [0]
    return np.argsort(-account.said["probabilities"], kind="stable")[:MOST_CLASSES].tolist()


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


def _with_verdict(account: Account, title: str) -> str:
    """The title of a scorer's picture, which has no bars of classes."""
    return f"{title}: {account.prediction}, {account.said['scores']:+.4g} from the threshold".removeprefix(": ")


def _image(account: Account, title: str) -> Any:
    assert account.image is not None
    models = _models(account)
    classes = "probabilities" in account.said
    width = (2.6 if classes else 2.4) + 1.25 * (1 + len(models))
    figure = _figure(width, 3.4, title if classes else _with_verdict(account, title))
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


def _picture(ax: Any, values: Array, shape: tuple[int, int], name: str, **options: Any) -> Any:
    ax.set_axis_off()
    ax.set_title(name, fontsize=9)
    return ax.imshow(values.reshape(shape), interpolation="nearest", **options)


def _table(account: Account, title: str) -> Any:
    models, classes = _models(account), "probabilities" in account.said
    changes = account.changes(models[0])
    most = np.argsort(-np.abs(changes), kind="stable")[:MOST_COLUMNS]
    height = 1.3 + 0.24 * max(len(most), len(models), 4)
    figure = _figure(9 if classes else 6, height, title if classes else _with_verdict(account, title))
    if classes:
        left, right = figure.subplots(1, 2)
        _probabilities(left, account, models)
    else:
        right = figure.subplots()
    names = [f"{_short(account.feature_names[i])}: {account.x[i]:.4g}" for i in most.tolist()]
    of = f" as {_short(account.labels[models[0]], 12)}" if classes else ""
    _bars(right, changes[most], names, f"change{of}, in spreads of the column", GREY)
    return figure


def _labels(account: Account, title: str) -> Any:
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
