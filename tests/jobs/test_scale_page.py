"""The page of scale: every command and every program on it runs, in its order, with a Ray of two processors."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from energate import load
from energate.cli import app
from energate.jobs import job_status

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BLOCKS = re.findall(
    r"^```(console|python) ?(?:no-run)?\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def energate(line: list[str]) -> None:
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 0, (line, ended.output)


def torchrun(line: list[str]) -> None:
    whole = [sys.executable, "-m", "torch.distributed.run", *line, "--device", "cpu"]
    ended = subprocess.run(whole, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, (line, ended.stderr)
    assert ended.stdout.count("wrote ") == 1, "one process speaks"


COMMANDS = {"energate": energate, "torchrun": torchrun}


@pytest.mark.slow  # a local Ray, and workers that import torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data warns of itself
def test_every_command_of_the_page_runs(ray_here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "1")
    draw = np.random.default_rng(0)
    Path("parts").mkdir()
    for file in range(3):
        X = draw.normal(size=(60, 2))
        rows = pa.table({"id": np.arange(60) + 60 * file, "x0": X[:, 0], "x1": X[:, 1]})
        pq.write_table(rows, f"parts/{file}.parquet")
    lines = [f"{a},{b},{'ab'[int(a + b > 0)]}" for a, b in draw.normal(size=(150, 2))]
    Path("train.csv").write_text("\n".join(["x0,x1,kind", *lines]))
    Path("train").mkdir()
    X = draw.normal(size=(200, 2))
    rows = pa.table({"x0": X[:, 0], "x1": X[:, 1], "kind": np.where(X.sum(1) > 0, "a", "b")})
    pq.write_table(rows, "train/0.parquet", row_group_size=50)
    Path("labelled").mkdir()
    rows = pa.table({"x0": X[:, 0], "x1": X[:, 1], "a": (X[:, 0] > 0).astype(int), "b": (X.sum(1) > 0).astype(int)})
    pq.write_table(rows, "labelled/0.parquet", row_group_size=50)
    seen: dict[str, Any] = {}
    n_commands = 0
    for kind, text in BLOCKS:
        if kind == "python" and "spark." not in text:  # no Spark here
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                exec(compile(text, PAGE.name, "exec"), seen)
        for command, line in re.findall(r"^\$ (\w+) (.+)$", text, re.MULTILINE) if kind == "console" else []:
            assert command in COMMANDS
            COMMANDS[command](shlex.split(os.path.expandvars(line)))
            n_commands += 1
    assert n_commands >= 12
    folders = [path.parent for path in Path().glob("*/job.json")]
    assert len(folders) == 7
    assert all(job_status(folder).closed for folder in folders)
    same = [Path("scored"), Path("scored-2"), Path("shares"), Path("scored-ray"), Path("scored-cluster")]
    for name in os.listdir("scored"):
        assert len({(folder / name).read_bytes() for folder in same}) == 1, name
    one, two = (load(name).model_.state_dict() for name in ("model.zip", "together.zip"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)
    assert sorted(str(path.parent) for path in Path("sweep").rglob("seed0.json")) == [
        "sweep/table1/digits/mlp",
        "sweep/table1/digits/svm",
    ]
