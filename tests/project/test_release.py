"""What a release is made of: the wheel and the sdist, the hashes of what it stands on, and their licences."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"


@pytest.fixture(scope="module")
def packages() -> Any:
    """.ci/packages.py as a module."""
    spec = importlib.util.spec_from_file_location("packages", ROOT / ".ci" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the sdist, built without a network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


# --- wheel and sdist -------------------------------------------------------------------------------------------------


def test_the_wheel_holds_what_it_should_and_no_more(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    inside = {name.removeprefix("energate/") for name in names if name.startswith("energate/")}
    source = ROOT / "src" / "energate"
    files = {each.relative_to(source).as_posix() for each in source.rglob("*") if each.is_file()}
    assert inside == {each for each in files if "__pycache__" not in each}
    assert {"py.typed", "models/digits.zip", "serving/page/index.html", "serving/page/app.js"} <= inside
    about = {name.partition("/")[2] for name in names if ".dist-info/" in name}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert len(names) == len(inside) + len(about)


def test_the_sdist_has_its_tests_and_passes_some_away_from_the_repository(dist: Path, tmp_path: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (there,) = tmp_path.iterdir()
    missing = [
        name for name in ("tests/cases.py", "Makefile", "requirements.lock", ".ci/run") if not (there / name).exists()
    ]
    assert not missing
    assert not list(there.rglob("__pycache__"))
    settings = {**os.environ, "PYTHONPATH": str(there / "src")}
    some = ["tests/core/test_activations.py", "tests/project/test_layers.py", "tests/project/test_docker.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *some]
    done = subprocess.run(command, cwd=there, env=settings, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d{2,} passed", done.stdout)


# --- what it stands on -----------------------------------------------------------------------------------------------


def locked() -> dict[str, tuple[str, list[str]]]:
    """Versions and hashes by name."""
    found = {}
    for entry in LOCK.read_text().replace("\\\n", " ").splitlines():
        if entry and not entry.startswith("#"):
            pin, *hashes = entry.split()
            name, _, version = pin.partition("==")
            found[name] = version, hashes
    return found


def test_every_pin_has_hashes_in_the_lock_but_torch(packages: Any) -> None:
    found, pins = locked(), packages.pins()
    assert set(pins) - set(found) == {packages.APART}
    for name, requirement in pins.items():
        if name != packages.APART:
            assert str(requirement.specifier) == f"=={found[name][0]}", f"{name}: run `make lock`"
    for name, (_, hashes) in found.items():
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), name


def test_the_lock_has_all_that_the_pinned_packages_need(packages: Any) -> None:
    """Of what they need on this platform; others may need less."""
    assert set(packages.closure()) <= set(locked())


def test_licences_are_known_and_allowed(packages: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert packages.licences() == []
    assert "numpy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("LGPL-2.1-only", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_what_is_allowed(packages: Any, expression: str, allowed: bool) -> None:
    assert packages.is_allowed(expression) is allowed


def test_an_audit_without_a_network_is_skipped_and_no_failure(
    packages: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(subprocess, "run", offline)
    assert packages.audit() == []
    assert capsys.readouterr().out.startswith("audit: skipped: ")
    told = {"none": "", "skips": '{"dependencies": [{"name": "a", "skip_reason": "?"}]}'}
    for text in told.values():
        monkeypatch.setattr(subprocess, "run", lambda *_, said=text, **__: subprocess.CompletedProcess([], 1, said, ""))
        assert packages.audit() == []
        assert capsys.readouterr().out.startswith("audit: skipped: ")
    bad = '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1"}]}]}'
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, bad, ""))
    assert packages.audit() == ["a 1: X-1"]
