"""The report as a phone shows it, and what it says of results that are none."""

import json
import shutil
from pathlib import Path

import pytest
from test_report import make_cell

from energate.paper.report import write_report

SAID = "This is no result"


def report(tmp_path: Path, profile: str) -> dict[str, Path]:
    folder = tmp_path / profile
    for number, seed in enumerate((0, 1)):
        cell = {
            **make_cell(0, 2, seed),
            "profile": profile,
            "data_label": "a set with quite a long name",
            "title": "T" * 90,
        }
        path = folder / "table1" / f"cell-{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cell))
    return write_report(folder, tmp_path / f"{profile}.html")


def test_a_quick_profile_is_said_to_be_no_result_above_the_tables(tmp_path: Path) -> None:
    found = report(tmp_path, "quick")
    for kind, table in (("html", "<table"), ("markdown", "\n|")):
        text = found[kind].read_text()
        assert 0 <= text.index(SAID) < text.index(table)
    for path in report(tmp_path, "full").values():
        assert SAID not in path.read_text()


def test_the_page_is_no_wider_than_a_phone(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    path = report(tmp_path, "quick")["html"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
