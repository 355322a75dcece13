"""The picture of the layers is the one that the contracts make."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layers", ROOT / "docs" / "layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_picture_is_drawn_from_the_contracts() -> None:
    script = load_script()
    assert script.PICTURE.read_text(encoding="utf-8") == script.drawn(), "run: python docs/layers.py"


def test_every_room_is_told_in_the_page_and_drawn() -> None:
    script = load_script()
    page, picture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), script.drawn()
    rooms = [room for rooms in script.layers() for room in rooms]
    assert len(rooms) >= 15
    for room in rooms:
        name = f"{room}/" if (ROOT / "src" / "energate" / room).is_dir() else f"{room}.py"
        assert f"`{name}`" in page
        assert f">{name}</text>" in picture


def test_every_file_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:python )?([\w/]+\.py)(?: --files)?`", page))
    assert len(named) > 40
    there = [
        f"/{path.relative_to(ROOT)}"
        for room in ("src", "tests", "docs", "benchmarks")
        for path in (ROOT / room).rglob("*.py")
    ]
    assert not {name for name in named if not any(path.endswith(f"/{name}") for path in there)}
