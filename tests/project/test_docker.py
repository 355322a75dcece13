"""The Dockerfile, as far as it can be looked at without Docker: its files, its extras, its command."""

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import typer.main

from energate.cli import app

ROOT = Path(__file__).parents[2]


def lines() -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_what_it_copies_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [name for line in lines() if line.startswith("COPY ") for name in shlex.split(line)[1:-1]]
    assert {"pyproject.toml", "src"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists()
        assert not any(fnmatch(name, pattern) for pattern in ignored)
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {metadata["project"]["readme"], *metadata["project"]["license-files"]} <= set(copied)  # the build reads them


def test_its_extras_and_its_python_are_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(lines()))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert "serve" in extras
    (version,) = re.findall(r"^FROM python:(3\.\d+)-slim$", "\n".join(lines()), re.M)
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_its_command_is_one_of_ours() -> None:
    (entry,) = [line for line in lines() if line.startswith("ENTRYPOINT ")]
    name, command, *options = re.findall(r'"([^"]+)"', entry)
    assert name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    known = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    flags = {flag for each in known.params for flag in each.opts}
    assert set(options[::2]) <= flags
    assert f"EXPOSE {options[options.index('--port') + 1]}" in lines()
