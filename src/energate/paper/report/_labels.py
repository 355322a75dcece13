"""What is shown of systems that give rows several labels, and of choices made anew for each split."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from energate.paper.report._cells import Cell, Covariance, Entry, Trial
from energate.paper.report._compare import Comparison, Row
from energate.paper.report._pictures import escape, picture
from energate.paper.report._statistics import mean_spread
from energate.paper.report._words import ABSENT, config_words, count, figure, fold, number, table, tiles

_MOST_CONFIGS = 60
_WIDTH = 240  # of a picture, in pixels


def covariances(comparison: Comparison, row: Row) -> str:
    """Which labels go together: the true ones beside the predicted probabilities of each system, on one scale."""
    groups: dict[tuple[str, ...], list[tuple[Cell, Covariance]]] = {}
    for entry in row.entries.values():
        cell = next((cell for cell in entry.cells if cell.covariance is not None), None)
        if cell is not None and cell.covariance is not None:
            groups.setdefault(tuple(cell.covariance.labels), []).append((cell, cell.covariance))
    blocks = []
    for labels, found in groups.items():
        cell, first = found[0]
        others = ~np.eye(len(labels), dtype=bool)  # the diagonal would outshine every pair
        shown = [first.true, *(covariance.predicted for _, covariance in found)]
        scale = max(float(np.abs(values[others]).max(initial=0.0)) for values in shown) or 1.0
        figures = [_matrix(f"true labels, {cell.repeat} {cell.seed}", first.true, scale)]
        for cell, covariance in found:
            far = np.abs(covariance.true - covariance.predicted)[others]
            name = comparison.systems[cell.system] + (f": {number(float(far.mean()), 3)} away" if len(far) else "")
            figures.append(_matrix(name, covariance.predicted, scale))
        note = (
            f"<p>A square for each pair of labels: red where they go together, blue where they exclude each other, "
            f"white at 0, full colour from ±{scale:.3g} on; all on one scale. Away: the mean distance to the matrix of "
            f"the true labels over pairs of different labels.</p>"
        )
        names = escape(", ".join(labels))
        blocks.append(f'{note}{tiles(figures)}<p class="muted">Labels, in their order: {names}.</p>')
    return "".join(blocks)


def _matrix(name: str, values: NDArray[np.float64], scale: float) -> str:
    # 0 is the colour between pictures, and not that of a value.
    pixels = np.clip(np.rint(values / scale * 127 + 128), 1, 255).astype(np.uint8)
    zoom = max(1, round(_WIDTH / len(values)))
    return figure(name, picture(pixels, f"{name}: which labels go together", zoom=zoom, signed=True))


# --- choices -------------------------------------------------------------------------------------------------------


def choices(entry: Entry) -> str:
    """Which configurations were chosen how often, where each repeat chose its own."""
    tried: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    times: dict[tuple[tuple[str, str], ...], int] = {}
    for cell in entry.cells:
        for trial in cell.trials:
            key = tuple(trial.config.items())
            tried.setdefault(key, []).append(trial)
            times[key] = times.get(key, 0) + (trial.number == cell.chosen)
    if not tried:
        return ""
    configs = [dict(key) for key in tried]
    keys = {key for config in configs for key in config}
    same = {key for key in keys if len(configs) > 1 and len({config.get(key) for config in configs}) == 1}

    def rank(key: tuple[tuple[str, str], ...]) -> tuple[float, ...]:
        errors = [trial.error_percent for trial in tried[key] if trial.error_percent is not None]
        return -times[key], mean_spread(errors)[0] if errors else float("inf")

    rows = []
    for key in sorted(tried, key=rank)[:_MOST_CONFIGS]:
        config = config_words({name: value for name, value in key if name not in same})
        failed = sum(bool(trial.error) for trial in tried[key])
        rows.append(
            f"<tr><td>{times[key]}</td><td>{len(tried[key])}</td><td>{failed or ABSENT}</td>"
            f"<td>{_mean([trial.error_percent for trial in tried[key]], 2)}</td>"
            f"<td>{_mean([trial.log_loss for trial in tried[key]], 4)}</td>"
            f'<td class="code">{config}</td></tr>'
        )
    repeat = entry.cells[0].repeat
    n = sum(bool(cell.trials) for cell in entry.cells)
    more = f" Of {len(tried)} configurations the first {_MOST_CONFIGS}." if len(tried) > _MOST_CONFIGS else ""
    caption = (
        f"Chosen anew in each {repeat}, on its validation rows; means over the {repeat}s in which a configuration was "
        f"tried. What all have in common is left out.{more}"
    )
    head = ["chosen", "tried", "failed", "validation error, %", "validation log-loss", "configuration"]
    title = f"Chosen in {count(n, repeat)}: {sum(map(bool, times.values()))} of {len(tried)} configurations"
    return fold(title, table(head, rows, caption, text=(5,)))


def chosen_seconds(cells: Sequence[Cell]) -> float | None:
    """How long the trials within cells took; None where there were none."""
    found = [trial.seconds for cell in cells for trial in cell.trials if trial.seconds is not None]
    return sum(found) if found else None


def _mean(found: Sequence[float | None], digits: int) -> str:
    values = [value for value in found if value is not None]
    return number(mean_spread(values)[0], digits) if values else ABSENT


def verdicts(comparison: Comparison, row: Row) -> str:
    """What refiners said of themselves, each time they were fitted."""
    rows = []
    for system, entry in row.entries.items():
        for cell in entry.cells:
            if not cell.verdict:
                continue
            gate, steps = (cell.extra.get(key) for key in ("gate", "n_steps"))
            rows.append(
                f'<tr><th scope="row">{escape(comparison.systems[system])}</th><td>{cell.seed}</td>'
                f"<td>{number(gate) if isinstance(gate, float) else ABSENT}</td>"
                f"<td>{number(steps, 0) if isinstance(steps, float) else ABSENT}</td>"
                f'<td class="text">{escape(cell.verdict)}</td></tr>'
            )
    caption = "What a refiner says of itself when it is fitted; the test rows have no part in it."
    return table(["system", comparison.repeat, "gate", "steps", "verdict"], rows, caption, text=(0, 4)) if rows else ""
