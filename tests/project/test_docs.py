"""The pages: each can be found, links lead somewhere, names are in the reference, the gallery is whole.

These checks take no Sphinx; `make docs` builds the pages, runs the gallery, and takes every warning for an error.
"""

import ast
import re
from pathlib import Path

import pytest

import energate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
GALLERY = sorted((DOCS / "gallery").glob("*.py"))
BUILT = ("auto_gallery/", "generated/")  # what the build makes
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,})(.*?)^\1 *$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.stem


def prose(path: Path) -> str:
    """A page without its code; what stands in MyST's directives is kept."""
    text = FENCE.sub(lambda match: match[2] if match[2].startswith("{") else "", path.read_text(encoding="utf-8"))
    return re.sub(r"(`+)[^`]+?\1", "", text)


def entries(path: Path) -> list[str]:
    """The pages that the toctrees of a page list."""
    found = []
    for match in FENCE.finditer(path.read_text(encoding="utf-8")):
        lines = match[2].splitlines()
        if lines[0].strip() == "{toctree}":
            found += [line.strip() for line in lines[1:] if line.strip() and not line.startswith(":")]
    return found


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule, which MyST follows."""
    headings = re.findall(r"^#{1,3} (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-") for heading in headings}


def python_modules() -> dict[str, set[str]]:
    """The names that each block of the reference lists, by module."""
    found: dict[str, set[str]] = {}
    for match in FENCE.finditer((DOCS / "api.md").read_text(encoding="utf-8")):
        module = re.search(r"^\.\. currentmodule:: (\S+)$", match[2], re.MULTILINE)
        assert module
        found.setdefault(module[1], set()).update(re.findall(r"^   (\w+)$", match[2], re.MULTILINE))
    return found


# --- pages -----------------------------------------------------------------------------------------------------


def test_every_page_is_in_one_toctree() -> None:
    listed = [entry for page in PAGES for entry in entries(page)]
    assert sorted(listed) == sorted({*(page.stem for page in PAGES)} - {"index"} | {"auto_gallery/index"})


def test_every_page_can_be_reached_from_the_first() -> None:
    reached, open_pages = set(), ["index"]
    while open_pages:
        page = open_pages.pop()
        reached.add(page)
        if not page.startswith(BUILT):
            open_pages += [entry for entry in entries(DOCS / f"{page}.md") if entry not in reached]
    assert {page.stem for page in PAGES} <= reached


def test_no_page_takes_the_place_of_one_that_sphinx_makes() -> None:
    assert not {page.stem for page in PAGES} & {"search", "genindex", "py-modindex", "report-of-all-results"}


def test_the_readme_can_be_read_in_some_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target) or target.startswith("auto_gallery/"):
            continue
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        assert place.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(place), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_and_programs_of_the_gallery_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"auto_gallery/(?:images/sphx_glr_)?(plot_\w+?)(?:_\d{3}\.png)?(?=[)\s])", text)
    assert set(named) <= {path.stem for path in GALLERY}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_bring_all_they_show(page: Path) -> None:
    """Pictures and scripts from elsewhere would make a page that is read offline incomplete."""
    text = prose(page)
    assert not re.search(r"!\[[^\]]*\]\(\w+:", text)
    assert not re.search(r"<(script|img|link|iframe)\b", text)
    assert "$$" not in text, "formulas are plain text: a page must not need a script to show them"


@pytest.mark.parametrize("page", ["classifier", "image-classifier", "anomaly", "pairs", "multilabel", "mlp"])
def test_every_estimator_says_when_not_to_use_it(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    reasons = text.partition("## When not to use it")[2].partition("\n## ")[0]
    assert len(re.findall(r"^- ", reasons, re.MULTILINE)) >= 4


# --- the reference ---------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    modules = python_modules()
    homes = {f"energate.{home}" for home in energate._HOME.values()}
    listed = set().union(*(names for module, names in modules.items() if module == "energate" or module in homes))
    assert set(energate.__all__) - {"__version__"} <= listed


@pytest.mark.parametrize("module", python_modules())
def test_every_name_in_the_reference_exists(module: str) -> None:
    home = energate if module == "energate" else pytest.importorskip(module, exc_type=ImportError)
    for name in python_modules()[module]:
        assert getattr(home, name) is not None


# --- the gallery -----------------------------------------------------------------------------------------------


def test_the_gallery_is_in_order() -> None:
    tree = ast.parse((DOCS / "conf.py").read_text(encoding="utf-8"))
    (order,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "ORDER"
    ]
    assert sorted(order) == [path.name for path in GALLERY]
    assert len(order) >= 5


@pytest.mark.parametrize("path", GALLERY, ids=name_of)
def test_programs_of_the_gallery_have_a_title_text_and_pictures(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(text))
    assert doc
    title, line, empty, first = doc.splitlines()[:4]
    assert line == "=" * len(title)
    assert not empty
    assert first
    assert "plt.subplots" in text
    assert "# %%\n# " in text
    imports = re.findall(r"^from energate import (.+)$", text, re.MULTILINE)
    names = {name.strip() for line in imports for name in line.strip("(").split(",")} - {""}
    assert names <= set(energate.__all__)


def test_the_first_pages_answer_what_new_users_ask() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.index("gives you a classifier") < readme.index("Jacobian")
    assert "docs/guide.md" in readme
    questions = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    for asked in ("How many rows", "How long", "a high liking", "Which units", "such a page for my pictures"):
        assert re.search(f"^## .*{asked}", questions, re.MULTILINE), asked
