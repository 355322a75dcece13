"""Pictures as text: small SVG charts, and PNG sheets of pixels as data addresses.

The charts take their colours from the page's style sheet, so one drawing serves light, dark and paper; and the same
numbers give the same bytes.
"""

import base64
import html
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from energate.paper.report._cells import Energies, Reliability

_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 8, 8, 30  # margins of a chart, for tick labels and the name of the axis


def escape(text: object) -> str:
    """Text that is safe in HTML, within tags and in quoted attributes; control characters become spaces."""
    shown = "".join(c if c >= " " and c not in "\x7f\ufffe\uffff" else " " for c in str(text))
    return html.escape(shown, quote=True)


# --- charts --------------------------------------------------------------------------------------------------------


def reliability_chart(bins: Reliability, about: str, name: str = "confidence") -> str:
    """Accuracy over confidence, with the diagonal of a calibrated system; dots grow with the number of rows."""
    axes = _Axes(200, 180, (0, 100), (0, 100), f"{name}, %", [0, 50, 100], [0, 50, 100])
    total = max(sum(bins.count), 1)
    points = [
        (c, a, n) for n, c, a in zip(bins.count, bins.confidence, bins.accuracy, strict=True) if n and c is not None
        and a is not None
    ]  # fmt: skip
    parts = [f'<path class="guide" d="{axes.path([(0, 0), (100, 100)])}"/>']
    parts.append(f'<path class="line a" d="{axes.path([(c, a) for c, a, _ in points])}"/>')
    for c, a, n in points:
        x, y = axes.place(c, a)
        parts.append(f'<circle class="dot a" cx="{x:.1f}" cy="{y:.1f}" r="{1.5 + 4 * math.sqrt(n / total):.1f}"/>')
    return axes.svg("".join(parts), about)


def energy_chart(energies: Energies, about: str) -> str:
    """Energies under the own class (filled) and under the others (outline), each as shares of their own number."""
    lines = {}
    widths = np.diff(energies.edges)
    for name, counts in (("own", energies.own), ("others", energies.others)):
        heights = np.array(counts) / max(sum(counts), 1) / widths
        lines[name] = [0.0, *np.repeat(heights, 2).tolist(), 0.0]
    xs = np.repeat(energies.edges, 2).tolist()
    top = max(max(line) for line in lines.values()) or 1.0
    low, high = energies.edges[0], energies.edges[-1]
    axes = _Axes(300, 180, (low, high), (0, top), "relative energy", _ticks(low, high), [])
    own = axes.path(list(zip(xs, lines["own"], strict=True)))
    others = axes.path(list(zip(xs, lines["others"], strict=True)))
    return axes.svg(f'<path class="area a" d="{own}"/><path class="line b" d="{others}"/>', about)


def curve_chart(epoch: Sequence[float], values: Sequence[float | None], about: str) -> str:
    """One quantity over epochs; empty where nothing was measured."""
    points = [(x, y) for x, y in zip(epoch, values, strict=True) if y is not None]
    if not points:
        return ""
    (left, right), (low, high) = (_span([p[i] for p in points]) for i in (0, 1))
    axes = _Axes(240, 150, (left, right), (low, high), "epoch", _ticks(left, right), _ticks(low, high))
    return axes.svg(f'<path class="line a" d="{axes.path(points)}"/>', about)


class _Axes:
    """A frame with ticks, and the way from numbers to places in it."""

    def __init__(
        self,
        width: int,
        height: int,
        x: tuple[float, float],
        y: tuple[float, float],
        name: str,
        x_ticks: list[float],
        y_ticks: list[float],
    ) -> None:
        self.width, self.height, self.x, self.y = width, height, x, y
        self.name, self.x_ticks, self.y_ticks = name, x_ticks, y_ticks
        self.left = _LEFT if y_ticks else _RIGHT

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            self.left + across * (self.width - self.left - _RIGHT),
            self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM),
        )

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(self.place(*p) for p in points))

    def svg(self, inside: str, about: str) -> str:
        bottom = self.height - _BOTTOM
        parts = [f'<path class="axis" d="M{self.left} {_TOP}V{bottom}H{self.width - _RIGHT}"/>']
        for tick in self.x_ticks:
            x, _ = self.place(tick, self.y[0])
            # The outer labels lean inwards, so that they are not cut off.
            anchor = "start" if x < self.left + 12 else "end" if x > self.width - _RIGHT - 12 else "middle"
            parts.append(f'<text x="{x:.1f}" y="{bottom + 12}" text-anchor="{anchor}">{_short(tick)}</text>')
        for tick in self.y_ticks:
            _, y = self.place(self.x[0], tick)
            parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.width - _RIGHT}"/>')
            parts.append(f'<text x="{self.left - 4}" y="{y + 3:.1f}" text-anchor="end">{_short(tick)}</text>')
        middle = (self.left + self.width - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{self.height - 5}" text-anchor="middle">{escape(self.name)}</text>')
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{escape(about)}">{"".join(parts)}{inside}</svg>'
        )


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # Where all values are the same, up to rounding, there is no scale: make one around them.
    return (low, high) if high - low > 1e-9 * max(abs(low), abs(high)) else (low - 1, low + 1 + abs(low))


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers within the limits."""
    step = 10.0 ** math.floor(math.log10(high - low))
    for factor in (1.0, 0.5, 0.2):
        if (high - low) / (step * factor) >= 2.5:
            step *= factor
            break
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    every = -(-(last - first + 1) // 6)
    return [i * step for i in range(first, last + 1, every)]


def _short(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}".replace("e+0", "e").replace("e-0", "e-")


# --- pixels --------------------------------------------------------------------------------------------------------


def picture(pixels: NDArray[np.uint8], about: str, *, zoom: int = 2, signed: bool = False) -> str:
    """An image tag with the pixels inside: 0 to 255 as black to white or, ``signed``, blue to white (128) to red."""
    height, width = pixels.shape
    address = base64.b64encode(png(pixels, _DIVERGING if signed else None)).decode()
    return (
        f'<img class="pixels" width="{width * zoom}" height="{height * zoom}" alt="{escape(about)}" '
        f'src="data:image/png;base64,{address}">'
    )


def sheet(images: NDArray[np.uint8], columns: int = 10) -> NDArray[np.uint8]:
    """Images (n, h, w) side by side in rows, a pixel of 0 between them; their own 0 becomes 1."""
    n, h, w = images.shape
    columns = min(columns, n)
    found = np.zeros((-(-n // columns) * (h + 1) - 1, columns * (w + 1) - 1), np.uint8)
    for i, image in enumerate(images.clip(min=1)):
        top, left = (i // columns) * (h + 1), (i % columns) * (w + 1)
        found[top : top + h, left : left + w] = image
    return found


def png(pixels: NDArray[np.uint8], palette: bytes | None = None) -> bytes:
    """A PNG file of one byte per pixel: grey, or a colour of the palette (256 times red, green, blue)."""
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if palette is None else 3, 0, 0, 0)
    lines = np.hstack([np.zeros((height, 1), np.uint8), pixels]).tobytes()  # each line begins with its filter: none
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    if palette is not None:
        chunks.insert(1, (b"PLTE", palette))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _diverging() -> bytes:
    """Blue for less than 128, white at 128, red for more; 0, which stands between pictures, is grey."""
    ends = np.array([[33, 102, 172], [247, 247, 247], [178, 24, 43]], float)
    share = np.linspace(0, 255, 256)
    colours = [np.interp(share, [0, 128, 255], ends[:, channel]) for channel in range(3)]
    palette = np.stack(colours, 1).round().astype(np.uint8)
    palette[0] = 140
    return palette.tobytes()


_DIVERGING = _diverging()
