"""The documentation's first commands, as they stand there."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from energate.cli import app

ROOT = Path(__file__).parents[2]


def call(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_commands_of_the_first_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    lines = re.findall(r"^\$ energate (.*?)(?:\s+#.*)?$", text, flags=re.M)
    assert lines[0] == "data make flowers"
    for line in lines:
        words = shlex.split(line)
        if words[0] not in ("serve", "export"):  # one goes on for ever, the other takes long; both have their tests
            call(*words, *(["--epochs", 2] if words[0] == "fit" else []))


def test_flowers_that_are_there_stay(tmp_path: Path) -> None:
    found = json.loads(call("data", "make", "flowers", "-o", tmp_path, "--json").stdout)
    paths = [Path(each["path"]) for each in found["files"]]
    assert [len(path.read_text().splitlines()) for path in paths] == [121, 31]
    call("data", "make", "flowers", "-o", tmp_path)  # the same again
    paths[1].write_text("mine")
    assert "other rows" in call("data", "make", "flowers", "-o", tmp_path, code=2).stderr
    assert paths[1].read_text() == "mine"
    call("data", "make", "flowers", "-o", tmp_path, "--overwrite")
    assert paths[1].read_text() != "mine"
