"""Draws docs/images/layers.svg from the contract of layers in pyproject.toml: `python docs/layers.py`."""

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "layers.svg"
WIDTH, HEIGHT, GAP, MARGIN, NOTE = 760, 34, 8, 20, 46  # of the picture, a box, between boxes, around, below
STYLE = (
    "text { font: 15px sans-serif; fill: #1f2933; text-anchor: middle }"
    " .note { font-size: 13px; fill: #52606d }"
    " .room { fill: #e3ecf7; stroke: #3b6ea5 } .file { fill: #f7f4ec; stroke: #b08d3c }"
    " .light { fill: #eef5ea; stroke: #5b8c4a }"
)


def layers() -> list[list[str]]:
    """The rooms of each layer, the uppermost first, without the name of the package."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [each for each in config["contracts"] if each["type"] == "layers"]
    return [[name.strip().removeprefix("energate.") for name in line.split("|")] for line in contract["layers"]]


def without_torch() -> set[str]:
    """The rooms that never import torch."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    forbidden = [each for each in config["contracts"] if each["type"] == "forbidden"]
    return {name.removeprefix("energate.") for each in forbidden for name in each["source_modules"]}


def box(name: str, kind: str, x: float, y: float, width: float) -> str:
    """A rectangle with a name in it."""
    middle = f'x="{x + width / 2:g}" y="{y + HEIGHT / 2 + 5:g}"'
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}"'
    return f'<rect class="{kind}" rx="5" {place}/><text {middle}>{escape(name)}</text>'


def drawn() -> str:
    """The picture: a line for each layer, siblings beside each other."""
    found, light, inner = layers(), without_torch(), WIDTH - 2 * MARGIN
    height = 2 * MARGIN + len(found) * (HEIGHT + GAP) + NOTE
    parts = [f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for number, rooms in enumerate(found):
        width = (inner - GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            package = (ROOT / "src" / "energate" / room).is_dir()
            kind = "light" if room in light else "room" if package else "file"
            x, y = MARGIN + place * (width + GAP), MARGIN + number * (HEIGHT + GAP)
            parts.append(box(f"{room}/" if package else f"{room}.py", kind, x, y, width))
    notes = ("A layer may import those below it; siblings do not know each other.", "Green: works without torch.")
    for number, note in enumerate(notes):
        y = height - MARGIN - 22 + 20 * number
        parts.append(f'<text class="note" x="{WIDTH / 2:g}" y="{y}">{note}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
