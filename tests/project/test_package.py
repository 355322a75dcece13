"""The package as a whole: its public names, its layers, its metadata, and the code in its documentation."""

import ast
import importlib
import importlib.metadata
import importlib.resources
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import energate
from energate import views
from energate.errors import MissingExtraError, require
from energate.units import HiddenUnits

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "energate"
FILES = sorted(SOURCE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer(path: Path) -> str:
    """The module, or the package, of energate that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


# --- public names ----------------------------------------------------------------------------------------------


def test_all_is_complete() -> None:
    assert len(energate.__all__) == len(set(energate.__all__))
    assert dir(energate) == sorted(energate.__all__)
    kinds = [kind for kind in HiddenUnits.__subclasses__() if kind.__module__ == "energate.units"]
    assert {kind.__name__ for kind in [HiddenUnits, *kinds]} <= set(energate.__all__)
    assert len(kinds) >= 5


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=relative)
def test_names_that_the_documentation_imports_are_public(path: Path) -> None:
    imports = re.findall(r"^from energate import (.+)$", path.read_text(), re.MULTILINE)
    names = {name.strip() for line in imports for name in line.partition("#")[0].strip(" ()").split(",")} - {""}
    modules = {layer(file) for file in FILES}
    assert names <= {*energate.__all__, *modules}


@pytest.mark.parametrize("name", energate.__all__)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(energate, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}(")  # what a dataclass writes by itself
    elif name != "__version__":
        source = inspect.getsource(importlib.import_module(f"energate.{energate._HOME[name]}"))
        assert re.search(rf"^#: .+\n(#: .+\n)*{name}\b", source, re.MULTILINE)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = energate.NoSuchName


def test_importing_energate_does_not_import_torch() -> None:
    code = "import energate, sys; assert energate.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- layers: `make lint` holds the contracts in pyproject.toml; here is what they cannot say -------------------------


def contracts(kind: str) -> list[dict[str, Any]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [contract for contract in config["contracts"] if contract["type"] == kind]


def test_every_module_has_a_layer() -> None:
    (layers,) = contracts("layers")
    named = {name.strip() for line in layers["layers"] for name in line.split("|")}
    assert named == {f"energate.{layer(path)}" for path in FILES} - {"energate.__init__", "energate.__main__"}


def test_every_private_module_is_protected() -> None:
    listed = [
        (name, *contract["allowed_importers"])
        for contract in contracts("protected")
        for name in contract["protected_modules"]
    ]
    private = [path for path in FILES if path.stem.startswith("_") and not path.stem.startswith("__")]
    parts = [("energate", *path.relative_to(SOURCE).with_suffix("").parts) for path in private]
    assert sorted(listed) == sorted((".".join(names), ".".join(names[:-1])) for names in parts)


TOOLS = ("persistence", "export", "serving", "cli")


@pytest.mark.parametrize("path", [path for path in FILES if layer(path) in TOOLS], ids=relative)
def test_tools_name_no_estimator(path: Path) -> None:
    names = {kind.__name__ for kind in views.KINDS}
    found = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert not names & (found | {text for text in texts if isinstance(text, str)})


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_module_is_documented(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


# --- metadata and extras ---------------------------------------------------------------------------------------


def test_the_version_has_one_source() -> None:
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    assert importlib.metadata.version("energate") == energate.__version__


def test_type_information_is_shipped() -> None:
    assert importlib.resources.files("energate").joinpath("py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"needs `no_such_module`.*pip install 'energate\[plot\]'"):
        require("no_such_module.part", "plot")
    assert issubclass(MissingExtraError, ImportError)
    assert require("json", "plot").loads("1") == 1


def test_every_extra_that_is_asked_for_exists() -> None:
    calls = [node for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    asked = {call.args[1].value for call in calls if isinstance(call.func, ast.Name) and call.func.id == "require"}
    assert asked <= PROJECT["optional-dependencies"].keys()


# --- the code in the documentation -----------------------------------------------------------------------------


def blocks() -> list:
    """Every block fenced as ```python in README.md and docs/*.md; ```python no-run is only read."""
    found = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]:
        text = path.read_text()
        for match in re.finditer(r"^```python *\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start(1))
            # Blank lines in front make tracebacks show the line of the page.
            found.append(pytest.param(path, "\n" * line + match[1], id=f"{relative(path)}:{line + 1}"))
    return found


@pytest.mark.parametrize(("path", "code"), blocks())
def test_code_in_the_documentation_runs(path: Path, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(path), "exec", dont_inherit=True), {"__name__": "__main__"})


def test_every_test_named_in_the_paper_map_exists() -> None:
    """The map from the paper to the proofs names no proof that is not there."""
    text = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`", text))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    known = set(re.findall(r"^def test_(\w+)\(", "\n".join(sources), re.MULTILINE))
    assert len(named) > 50
    assert not named - known - {"mcrbm_from_sum"}
