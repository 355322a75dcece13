"""`torchrun -m energate fit`: real processes give the model of one; when one dies there is a line, and a way on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from energate import load
from energate.cli import app

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DYING = """
import os, signal, sys
from energate.cli import app
from energate.training import checkpoints
write, n = checkpoints.Checkpoint.offer, 0
def dying(self, *arguments):
    global n
    self.owner.every = 0.0
    write(self, *arguments)
    n += 1
    if n == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.Checkpoint.offer = dying
app(sys.argv[1:])
"""


@pytest.mark.slow  # six processes import torch
def test_a_process_that_dies_is_told_and_the_same_command_goes_on(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    lines = [",".join(f"{value:.4f}" for value in row) + f",{'ab'[int(row[0] > 0)]}" for row in X]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,r,kind", *lines]))
    (tmp_path / "dying.py").write_text(DYING)
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "kind", "--units", "mean", "--epochs", "4", "--device", "cpu"]
    aside = ["--checkpoint", str(tmp_path / "c"), "-o", str(tmp_path / "two.zip")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*start: str) -> subprocess.CompletedProcess[str]:
        line = [*TORCHRUN, *start, *fit, *aside]
        return subprocess.run(line, check=False, capture_output=True, text=True, env=environment)

    ended = run(str(tmp_path / "dying.py"))
    assert ended.returncode != 0
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("Error: "))
    assert "Process 0 of 2" in line  # has lost the other, or was ended by torchrun: whichever came first
    assert "--checkpoint" in line
    assert ended.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["c", "dying.py", "t.csv"]
    again = run("-m", "energate")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("wrote ") == 1
    assert again.stderr.count("3 epochs were there") + again.stderr.count("2 epochs were there") == 1
    assert not os.listdir(tmp_path / "c")
    alone = CliRunner().invoke(app, [*fit, "-o", str(tmp_path / "one.zip"), "--json"])
    assert json.loads(alone.stdout)["trained_on"] == 48
    one, two = (load(tmp_path / f"{name}.zip").model_.state_dict() for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)
