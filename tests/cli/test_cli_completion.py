"""Shell completion: commands and options by name, tables and models as paths."""

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from energate.cli import app


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What the shell is told when a user presses the tabulator key after these words."""
    environment = {"_ENERGATE_COMPLETE": f"complete_{shell}", "COMP_CWORD": str(len(words))}
    environment |= {"COMP_WORDS": " ".join(["energate", *words])}
    result = CliRunner().invoke(app, [], prog_name="energate", env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> str:
    """What `energate --show-completion` prints in bash, in which this process need not run."""
    shellingham = pytest.importorskip("shellingham")
    monkeypatch.setattr(shellingham, "detect_shell", lambda *_: ("bash", "/bin/bash"))
    result = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="energate")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands_and_options_complete() -> None:
    assert completed("pre") == ["predict"]
    assert completed("re") == ["refine", "report"]
    assert completed("refine", "--base") == ["--base-prefix", "--base-scores"]
    assert completed("refine", "--base-scores", "") == ["probabilities", "logits"]
    assert completed("data", "l") == ["list"]


@pytest.mark.parametrize(
    "words",
    [("predict", ""), ("predict", "m.zip", "fl"), ("fit", "fl"), ("serve", "m"), ("export", "m.zip", "--onnx", "")],
)
def test_paths_are_left_to_the_shell(words: tuple[str, ...], script: str) -> None:
    """No words of ours, and `-o default`: then bash completes names of files."""
    assert completed(*words) == []
    assert "complete -o default -F" in script


def test_bash_takes_the_script(script: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    (tmp_path / "completion.sh").write_text(script)
    (tmp_path / "energate").write_text("#!/bin/sh\necho predict\n")  # stands for the command: bash asks it for words
    (tmp_path / "energate").chmod(0o755)
    call = "COMP_WORDS=(energate pre); COMP_CWORD=1; _energate_completion ./energate; echo $COMPREPLY"
    code = f"source completion.sh; {call}"
    found = subprocess.run([bash, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("predict\n", "")
