"""Several systems on several data sets: average ranks, the Friedman test, Nemenyi's critical difference, its picture.

After Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006.  Everywhere a table is
(sets, systems), and less is better.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range

Array = NDArray[np.float64]


def average_ranks(table: Array) -> Array:
    """(systems,): 1 is best; ties share."""
    return np.asarray(rankdata(table.round(9), axis=1).mean(axis=0))


def friedman(table: Array) -> float:
    """The probability of ranks that differ so much if all systems were alike; 3 systems at least."""
    return float(friedmanchisquare(*table.round(9).T).pvalue)


def critical_difference(n_systems: int, n_sets: int, level: float = 0.05) -> float:
    """Nemenyi's: average ranks that differ by less are not told apart."""
    quantile = studentized_range.ppf(1 - level, n_systems, np.inf) / 2**0.5
    return float(quantile * (n_systems * (n_systems + 1) / (6 * n_sets)) ** 0.5)


def cliques(ranks: Array, difference: float) -> list[tuple[float, float]]:
    """The longest stretches of sorted ranks that are not told apart."""
    order = np.sort(ranks)
    ends = [order[order <= start + difference][-1] for start in order]
    found: list[tuple[float, float]] = []
    for start, end in zip(order, ends, strict=True):
        if end > start and (not found or end > found[-1][1]):
            found.append((float(start), float(end)))
    return found


def draw(axis: Any, title: str, systems: list[str], ranks: Array, difference: float, marked: tuple[str, ...]) -> None:
    """Systems along a line of ranks, the best at the left; bars join those that are not told apart."""
    order = np.argsort(ranks)
    n, half = len(systems), (len(systems) + 1) // 2
    low, high = 1, n
    bars = cliques(ranks, difference)
    depth = 0.28 * len(bars)
    axis.set_xlim(low - 0.32 * (high - low), high + 0.32 * (high - low))
    axis.set_ylim(-(depth + 0.5 * half + 0.6), 1.5)
    axis.axis("off")
    axis.set_title(title, loc="left", fontsize=10)
    axis.plot([low, high], [0, 0], color="black", linewidth=1)
    for tick in range(low, high + 1):
        axis.plot([tick, tick], [0, 0.12], color="black", linewidth=1)
        axis.text(tick, 0.2, str(tick), ha="center", va="bottom", fontsize=8)
    axis.plot([low, low + difference], [0.95, 0.95], color="black", linewidth=2)
    axis.text(low + difference + 0.1, 0.95, f"critical difference {difference:.2f}", va="center", fontsize=8)
    for place, i in enumerate(order):
        left = place < half
        level = -(depth + 0.5 * ((place if left else n - 1 - place) + 1))
        edge, side = (low - 0.1, "right") if left else (high + 0.1, "left")
        colour = "tab:red" if systems[i] in marked else "black"
        axis.plot([ranks[i], ranks[i], edge], [0, level, level], color=colour, linewidth=0.8)
        name = f"{systems[i]}  {ranks[i]:.2f}" if left else f"{ranks[i]:.2f}  {systems[i]}"
        axis.text(edge - 0.05 if left else edge + 0.05, level, name, ha=side, va="center", fontsize=8, color=colour)
    for row, (start, end) in enumerate(bars):
        axis.plot([start - 0.04, end + 0.04], [-0.22 - 0.28 * row] * 2, color="grey", linewidth=3)


def picture(path: Path, panels: dict[str, Array], systems: list[str], marked: tuple[str, ...] = ()) -> None:
    """Critical-difference diagrams under each other: title -> table."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    height = 1.6 + 0.28 * len(systems)
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, height * len(panels)), squeeze=False)
    for axis, (title, table) in zip(axes[:, 0], panels.items(), strict=True):
        difference = critical_difference(len(systems), len(table))
        draw(axis, title, systems, average_ranks(table), difference, marked)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
