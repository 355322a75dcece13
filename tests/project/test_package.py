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

import pytest

import energate
from energate.errors import MissingExtraError, require
from energate.units import HiddenUnits

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "energate"
FILES = sorted(SOURCE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: What each module, or package, may import from energate; errors are open to all.
ALLOWED = {
    "__init__": set(),
    "errors": set(),
    "activations": set(),
    "units": {"activations"},
    "autoencoder": {"activations", "units"},
    "dynamics": {"activations", "units", "autoencoder"},
    "conservative": {"autoencoder", "dynamics"},
    "rbm": {"activations", "units", "autoencoder"},
    "calibration": set(),
    "reliability": set(),
    "optimisers": set(),
    "training": {"optimisers"},
    "plots": {"autoencoder", "dynamics", "units"},
    "refining": {"units", "autoencoder", "dynamics", "training"},
    "stages": {"autoencoder", "calibration", "optimisers", "training"},
    "estimators": {"activations", "units", "autoencoder", "calibration", "refining", "training", "stages"},
    "baselines": {"activations", "units", "autoencoder", "rbm", "training", "estimators"},
    "persistence": {"__init__", "estimators", "tables"},
    "tuning": {"calibration", "training", "stages", "estimators"},
    "tables": set(),
    "datasets": {"tables"},
    "experiments": {"calibration", "reliability", "units", "training", "estimators", "baselines", "datasets"},
    "explaining": {"__init__", "activations", "units", "autoencoder", "dynamics", "refining", "stages", "estimators"},
    "checking": {"units", "autoencoder", "dynamics", "estimators", "explaining"},
    "export": {"autoencoder", "dynamics", "estimators", "explaining", "checking", "refining", "datasets"},
    "serving": {"__init__", "explaining", "estimators", "persistence", "tables"},
    "cli": {
        *("__init__", "datasets", "estimators", "experiments", "tables", "persistence"),
        *("reliability", "explaining", "checking", "export", "serving"),
    },
    "__main__": {"cli"},
}


#: a third is the parameters, once in the docstring and twice in `__init__`
LONG = {"src/energate/estimators/classifier.py": 460}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer(path: Path) -> str:
    """The module, or the package, of energate that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The modules of energate that a file imports, anywhere in it; the package itself counts as ``__init__``."""
    package = ["energate", *path.relative_to(SOURCE).parent.parts]
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*origin, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names] if module == "energate" else [module]
    modules = [name.split(".") for name in names if name.split(".")[0] == "energate"]
    return {parts[1] if len(parts) > 1 and parts[1] in ALLOWED else "__init__" for parts in modules}


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


# --- layers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_modules_import_only_from_the_layers_below(path: Path) -> None:
    name = layer(path)
    assert name in ALLOWED, f"say in ALLOWED what {relative(path)} may import"
    assert imported(path) <= ALLOWED[name] | {"errors", name}


def test_imports_are_seen_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    lines = {
        "import energate.units": {"units"},
        "from energate.rbm import RBM": {"rbm"},
        "from energate import dynamics": {"dynamics"},
        "from energate import RBM": {"__init__"},
        "from .training import minimise": {"training"},
        "from . import plots": {"plots"},
        "def f():\n    from energate.datasets.generators import make": {"datasets"},
        "import torch": set(),
    }
    for line, expected in lines.items():
        (tmp_path / "module.py").write_text(line)
        assert imported(tmp_path / "module.py") == expected, line


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_module_is_documented_and_short(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= LONG.get(relative(path), 400)


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
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")]
    known = set(re.findall(r"^def test_(\w+)\(", "\n".join(sources), re.MULTILINE))
    assert len(named) > 50
    assert not named - known - {"mcrbm_from_sum"}
