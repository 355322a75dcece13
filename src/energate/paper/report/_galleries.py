"""The pictures in the sections of the report; each is empty where the results have nothing to draw."""

import numpy as np
from numpy.typing import NDArray

from energate.paper.report._cells import Cell, Reliability
from energate.paper.report._compare import Comparison, Row, error_mean
from energate.paper.report._pictures import curve_chart, energy_chart, escape, picture, reliability_chart, sheet
from energate.paper.report._words import figure, table, tiles, with_spread

_MOST_FILTERS, _MOST_MISTAKES = 40, 20


def confusions(comparison: Comparison, row: Row) -> str:
    """Counts of true against predicted classes, for the best of this project's systems and the best other."""
    done = [system for system, entry in row.entries.items() if any(c.confusion is not None for c in entry.cells)]
    chosen = []
    for group in ([s for s in done if s in comparison.ours], [s for s in done if s not in comparison.ours]):
        chosen += sorted(group, key=lambda system: error_mean(row.entries[system]))[:1]
    figures = []
    for system in chosen:
        cells = [cell for cell in row.entries[system].cells if cell.confusion is not None]
        cells = [cell for cell in cells if cell.classes == cells[0].classes]
        counts = np.sum([cell.confusion for cell in cells if cell.confusion is not None], 0)
        figures.append(figure(f"{comparison.systems[system]}, {_seeds(cells)}", _confusion(counts, cells[0].classes)))
    return tiles(figures)


def _confusion(counts: NDArray[np.int64], classes: list[str]) -> str:
    errors = counts - np.diag(np.diag(counts))
    worst = max(int(errors.max()), 1)
    totals = counts.sum(1).clip(min=1)
    rows = []
    for i, name in enumerate(classes):
        cells = []
        for j, count in enumerate(counts[i]):
            if i == j:
                cells.append(f'<td class="hit" style="--s:{count / totals[i]:.2f}">{count}</td>')
            elif count:
                cells.append(f'<td class="miss" style="--s:{count / worst:.2f}">{count}</td>')
            else:
                cells.append("<td></td>")
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    return table(["true \\ predicted", *classes], rows, name="confusion")


def reliabilities(comparison: Comparison, row: Row) -> str:
    """A reliability diagram for each system that has probabilities: of the predicted class, or of every label."""
    has_labels = any(cell.has_labels for cell in row.cells)
    figures = []
    for system, entry in row.entries.items():
        found = [cell.reliability for cell in entry.cells if cell.reliability is not None]
        found = [bins for bins in found if len(bins.count) == len(found[0].count)]
        if not found:
            continue
        ece = [bins.ece for bins in found if bins.ece is not None]
        name = comparison.systems[system] + (f": calibration error {with_spread(ece)} %" if ece else "")
        if has_labels:
            about = f"{name}. How often labels are there, over their predicted probability."
            figures.append(figure(name, reliability_chart(_pool(found), about, "probability")))
        else:
            about = f"{name}. Accuracy over confidence of the predicted class."
            figures.append(figure(name, reliability_chart(_pool(found), about)))
    what, over, of = "the prediction is right", "confidence", "rows"
    if has_labels:
        what, over, of = "a label is there", "probability", "labels"
    note = (
        f"<p>Upwards: how often {what}, in percent; on the dashed line it is so as often as the system "
        f"says. All {comparison.repeat}s together; a dot for every tenth of {over}, larger where there are more "
        f"{of}.</p>"
    )
    return note + tiles(figures) if figures else ""


def _pool(found: list[Reliability]) -> Reliability:
    """Bins of several seeds together, each weighed by its rows."""
    count = np.sum([bins.count for bins in found], 0)

    def mean(values: list[list[float | None]]) -> list[float | None]:
        sums = np.zeros(len(count))
        for bins, line in zip(found, values, strict=True):
            sums += [n * v if n and v is not None else 0.0 for n, v in zip(bins.count, line, strict=True)]
        return [float(s / n) if n else None for s, n in zip(sums, count, strict=True)]

    confidence, accuracy = mean([b.confidence for b in found]), mean([b.accuracy for b in found])
    return Reliability([int(n) for n in count], confidence, accuracy, None)


def energies(comparison: Comparison, row: Row) -> str:
    """Histograms of energies, for each system that has them."""
    figures = []
    for system, entry in row.entries.items():
        cell = next((cell for cell in entry.cells if cell.energies is not None), None)
        if cell is not None and cell.energies is not None:
            name = f"{comparison.systems[system]}, {cell.repeat} {cell.seed}"
            about = f"{name}: histogram of relative energies of test rows under their own class and under the others."
            figures.append(figure(name, energy_chart(cell.energies, about)))
    note = (
        "<p>Filled: under the own class. Outline: under the other classes. Each with an area of one; "
        "the less they overlap, the better.</p>"
    )
    return note + tiles(figures) if figures else ""


def filters(comparison: Comparison, row: Row) -> str:
    """The weights of units as pictures."""
    figures = []
    for system, entry in row.entries.items():
        cell = next((cell for cell in entry.cells if cell.filters), None)
        for kind, images in cell.filters.items() if cell else ():
            name = f"{comparison.systems[system]}: {kind} filters"
            drawn = sheet(images[:_MOST_FILTERS])
            zoom = max(1, min(4, round(380 / drawn.shape[1])))
            figures.append(figure(name, picture(drawn, f"{name}, as pictures", zoom=zoom, signed=True)))
    note = "<p>Each filter on its own scale: blue is negative, white zero, red positive.</p>"
    return note + tiles(figures) if figures else ""


def curves(comparison: Comparison, row: Row) -> str:
    """What was measured during training, of the first seed that has it."""
    blocks = []
    for system, entry in row.entries.items():
        cell = next((cell for cell in entry.cells if cell.curves), None)
        figures = []
        for phase, curve in cell.curves.items() if cell else ():
            for kind, values in (("loss", curve.loss), ("validation", curve.validation)):
                about = f"{comparison.systems[system]}, {phase}: {kind} by epoch."
                chart = curve_chart(curve.epoch, values, about) if values else ""
                figures += [figure(f"{phase}: {kind}", chart)] if chart else []
        if figures and cell:
            blocks.append(f"<h4>{escape(comparison.systems[system])}, seed {cell.seed}</h4>{tiles(figures)}")
    return "".join(blocks)


def mistakes(comparison: Comparison, row: Row) -> str:
    """Test rows that were given to the wrong class."""
    blocks = []
    for system, entry in row.entries.items():
        cell = next((cell for cell in entry.cells if cell.mistakes), None)
        if cell is None:
            continue
        figures = []
        for mistake in cell.mistakes[:_MOST_MISTAKES]:
            sure = "" if mistake.confidence is None else f" ({100 * mistake.confidence:.0f} %)"
            name = f"{mistake.true} → {mistake.predicted}{sure}"
            about = f"test row {mistake.row}: {mistake.true}, taken for {mistake.predicted}"
            image = "" if mistake.pixels is None else picture(mistake.pixels, about, zoom=_zoom(mistake.pixels.shape))
            figures.append(figure(name if image else f"row {mistake.row}: {name}", image, below=True))
        title = f"{comparison.systems[system]}, {cell.repeat} {cell.seed}"
        blocks.append(f"<h4>{escape(title)}</h4>{tiles(figures, small=True)}")
    return "".join(blocks)


def _zoom(shape: tuple[int, ...]) -> int:
    return max(1, round(60 / max(shape)))


def _seeds(cells: list[Cell]) -> str:
    repeat = cells[0].repeat
    return f"{repeat} {cells[0].seed}" if len(cells) == 1 else f"{len(cells)} {repeat}s together"
