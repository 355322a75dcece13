"""The pictures of a report, drawn by matplotlib: charts as SVG within the page, pixels as PNG in data addresses.

The colours of charts are those of the page's style sheet, so one drawing serves light, dark and paper; the same numbers
give the same bytes.  Each gallery is empty where the results have nothing to draw.
"""

import base64
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import require
from energate.paper.cell import Cell, Covariance, Energies, Reliability
from energate.paper.report.comparing import Comparison, Row, error_mean
from energate.paper.report.words import escape, figure, number, table, tiles, with_spread

_MOST_FILTERS, _MOST_MISTAKES = 40, 20
_WIDTH = 240  # of a picture of covariances, in pixels
#: what stands for the colours of the style sheet while a chart is drawn
_A, _B, _MUTED, _RULE = "#0000a1", "#0000b1", "#0000c1", "#0000d1"
_COLOURS = {_A: "var(--a)", _B: "var(--b)", _MUTED: "var(--muted)", _RULE: "var(--rule)"}
_STYLE = {
    "svg.hashsalt": "energate",
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": _MUTED,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": _MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.02,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-3, 4),
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
}


# --- charts ------------------------------------------------------------------------------------------------------


def _chart(width: int, height: int, left: int, name: str, about: str, draw: Callable[[Any], None]) -> str:
    """A chart of so many pixels, some of them ``left`` of its axes: what ``draw`` puts there, and the name across."""
    with require("matplotlib", "plot").rc_context(_STYLE):
        drawing = require("matplotlib.figure", "plot").Figure(figsize=(width / 72, height / 72), dpi=72)
        axes = drawing.add_axes((left / width, 32 / height, 1 - (left + 12) / width, 1 - 40 / height))
        for background in (drawing.patch, axes.patch):
            background.set_visible(False)
        draw(axes)
        axes.set_xlabel(name, labelpad=1)
        text = io.StringIO()
        drawing.savefig(text, format="svg")
    return _inline(text.getvalue(), width, height, about)


def _inline(text: str, width: int, height: int, about: str) -> str:
    """A drawing as it can stand in a page: without prolog, names and fonts of its own, in the page's colours."""
    body = text[text.index('<g id="figure_1"') : text.rindex("</svg>")]
    body = re.sub(r' id="[^"]*"| transform="rotate\(-0 [^"]*"|font-[^:"]*: [^;"]*; ', "", body)
    body = re.sub(r"\s*\n\s*", " ", body).replace("> <", "><")
    body = re.sub(r' (?:d|x|y)="[^"]*"', _shorter, body)
    for colour, variable in _COLOURS.items():
        body = body.replace(colour, variable)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(about)}">{body}</svg>'
    )


def _shorter(places: re.Match[str]) -> str:
    """Places to a tenth of a pixel."""
    return re.sub(r"\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", places[0])


def reliability_chart(bins: Reliability, about: str, name: str = "confidence") -> str:
    """Accuracy over confidence, with the diagonal of a calibrated system; dots grow with the number of rows."""
    found = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    points = [(c, a, n) for n, c, a in found if n and c is not None and a is not None]
    total = max(sum(bins.count), 1)

    def draw(axes: Any) -> None:
        axes.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
        axes.grid(axis="y", clip_on=False)
        axes.plot([0, 100], [0, 100], "--", color=_MUTED, linewidth=0.8, clip_on=False)
        axes.plot([c for c, _, _ in points], [a for _, a, _ in points], color=_A, clip_on=False)
        for c, a, n in points:  # a line of no length with round ends is a dot
            size = 3 + 8 * (n / total) ** 0.5
            axes.plot([c, c], [a, a], color=_A, linewidth=size, solid_capstyle="round", clip_on=False)

    return _chart(200, 180, 30, f"{name}, %", about, draw)


def energy_chart(energies: Energies, about: str) -> str:
    """Energies under the own class (filled) and under the others (outline), each as shares of their own number."""
    widths = np.diff(energies.edges)
    own, others = (np.array(counts) / max(sum(counts), 1) / widths for counts in (energies.own, energies.others))

    def draw(axes: Any) -> None:
        axes.stairs(own, energies.edges, fill=True, color=_A, alpha=0.35, linewidth=0, clip_on=False)
        axes.stairs(own, energies.edges, color=_A, linewidth=0.8, clip_on=False)
        axes.stairs(others, energies.edges, color=_B, linewidth=1.6, clip_on=False)
        axes.set(ylim=(0, None), yticks=())
        axes.locator_params(axis="x", nbins=5)

    return _chart(300, 180, 8, "relative energy", about, draw)


def curve_chart(epoch: Sequence[float], values: Sequence[float | None], about: str) -> str:
    """One quantity over epochs; empty where nothing was measured."""
    points = [(x, y) for x, y in zip(epoch, values, strict=True) if y is not None]
    if not points:
        return ""

    def draw(axes: Any) -> None:
        axes.plot(*zip(*points, strict=True), color=_A, clip_on=False)
        axes.grid(axis="y", clip_on=False)
        axes.locator_params(nbins=4)

    return _chart(240, 150, 42, "epoch", about, draw)


# --- pixels ------------------------------------------------------------------------------------------------------


def picture(pixels: NDArray[np.uint8], about: str, *, zoom: int = 2, signed: bool = False) -> str:
    """An image tag with the pixels inside: 0 to 255 as black to white or, ``signed``, blue to white (128) to red."""
    height, width = pixels.shape
    address = base64.b64encode(png(pixels, signed)).decode()
    return (
        f'<img class="pixels" width="{width * zoom}" height="{height * zoom}" alt="{escape(about)}" '
        f'src="data:image/png;base64,{address}">'
    )


def png(pixels: NDArray[np.uint8], signed: bool) -> bytes:
    """A PNG file of pixels (h, w), a byte each: grey or, ``signed``, in colours where 0, which is no value, is grey."""
    image = require("PIL.Image", "plot").fromarray(pixels)
    if signed:
        palette = require("matplotlib", "plot").colormaps["RdBu_r"](np.arange(256), bytes=True)[:, :3]
        palette[0] = 140
        image.putpalette(palette.tobytes())
    file = io.BytesIO()
    image.save(file, format="png", optimize=True)
    return file.getvalue()


def sheet(images: NDArray[np.uint8], columns: int = 10) -> NDArray[np.uint8]:
    """Images (n, h, w) side by side in rows, a pixel of 0 between them; their own 0 becomes 1."""
    n, h, w = images.shape
    columns = min(columns, n)
    found = np.zeros((-(-n // columns) * (h + 1) - 1, columns * (w + 1) - 1), np.uint8)
    for i, image in enumerate(images.clip(min=1)):
        top, left = (i // columns) * (h + 1), (i % columns) * (w + 1)
        found[top : top + h, left : left + w] = image
    return found


# --- galleries ---------------------------------------------------------------------------------------------------


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
        figures.append(
            figure(
                f"{comparison.systems[system]}, {_seeds(cells)}", _confusion(counts, list(map(str, cells[0].classes)))
            )
        )
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


def _firsts(comparison: Comparison, row: Row, part: str) -> Iterator[tuple[str, Cell]]:
    """The name of each system that has a part, and its first cell with that."""
    for system, entry in row.entries.items():
        yield from ((comparison.systems[system], cell) for cell in [c for c in entry.cells if getattr(c, part)][:1])


def reliabilities(comparison: Comparison, row: Row) -> str:
    """A reliability diagram for each system that has probabilities: of the predicted class, or of every label."""
    what, over, of = "the prediction is right", "confidence", "rows"
    drawn = "Accuracy over confidence of the predicted class."
    if any(cell.has_labels for cell in row.cells):
        what, over, of = "a label is there", "probability", "labels"
        drawn = "How often labels are there, over their predicted probability."
    figures = []
    for system, entry in row.entries.items():
        found = [cell.reliability for cell in entry.cells if cell.reliability is not None]
        found = [bins for bins in found if len(bins.count) == len(found[0].count)]
        if not found:
            continue
        ece = [bins.ece for bins in found if bins.ece is not None]
        name = comparison.systems[system] + (f": calibration error {with_spread(ece)} %" if ece else "")
        figures.append(figure(name, reliability_chart(_pool(found), f"{name}. {drawn}", over)))
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
    for system, cell in _firsts(comparison, row, "energies"):
        assert cell.energies is not None
        name = f"{system}, {cell.repeat} {cell.seed}"
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
    for system, cell in _firsts(comparison, row, "filters"):
        for kind, images in (cell.filters or {}).items():
            name = f"{system}: {kind} filters"
            drawn = sheet(images.pixels[:_MOST_FILTERS])
            zoom = max(1, min(4, round(380 / drawn.shape[1])))
            figures.append(figure(name, picture(drawn, f"{name}, as pictures", zoom=zoom, signed=True)))
    note = "<p>Each filter on its own scale: blue is negative, white zero, red positive.</p>"
    return note + tiles(figures) if figures else ""


def curves(comparison: Comparison, row: Row) -> str:
    """What was measured during training, of the first seed that has it."""
    blocks = []
    for system, cell in _firsts(comparison, row, "curves"):
        figures = []
        for phase, curve in cell.curves.items():
            for kind, values in (("loss", curve.loss), ("validation", curve.validation)):
                about = f"{system}, {phase}: {kind} by epoch."
                chart = curve_chart(curve.epoch, values, about) if values else ""
                figures += [figure(f"{phase}: {kind}", chart)] if chart else []
        if figures:
            blocks.append(f"<h4>{escape(system)}, seed {cell.seed}</h4>{tiles(figures)}")
    return "".join(blocks)


def mistakes(comparison: Comparison, row: Row) -> str:
    """Test rows that were given to the wrong class."""
    blocks = []
    for system, cell in _firsts(comparison, row, "mistakes"):
        figures = []
        for mistake in (cell.mistakes or [])[:_MOST_MISTAKES]:
            sure = "" if mistake.confidence is None else f" ({100 * mistake.confidence:.0f} %)"
            name = f"{mistake.true} → {mistake.predicted}{sure}"
            about = f"test row {mistake.row}: {mistake.true}, taken for {mistake.predicted}"
            image = "" if mistake.pixels is None else picture(mistake.pixels, about, zoom=_zoom(mistake.pixels.shape))
            figures.append(figure(name if image else f"row {mistake.row}: {name}", image, below=True))
        title = f"{system}, {cell.repeat} {cell.seed}"
        blocks.append(f"<h4>{escape(title)}</h4>{tiles(figures, small=True)}")
    return "".join(blocks)


def _zoom(shape: tuple[int, ...]) -> int:
    return max(1, round(60 / max(shape)))


def _seeds(cells: list[Cell]) -> str:
    repeat = cells[0].repeat
    return f"{repeat} {cells[0].seed}" if len(cells) == 1 else f"{len(cells)} {repeat}s together"


def covariances(comparison: Comparison, row: Row) -> str:
    """Which labels go together: the true ones beside the predicted probabilities of each system, on one scale."""
    groups: dict[tuple[str, ...], list[tuple[Cell, Covariance]]] = {}
    for _, cell in _firsts(comparison, row, "covariance"):
        assert cell.covariance is not None
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
