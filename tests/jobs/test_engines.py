"""Engines: processes and Ray make the folder that one process makes, also when workers are killed."""

import importlib.util
import os
import pickle
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import N_FILES, N_ROWS, rows_of
from test_jobs import ASK, contents

from energate import load
from energate.errors import InputError
from energate.jobs import Scorer, apply_files

ROOT = Path(__file__).parents[2]


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("jobs_benchmark", ROOT / "benchmarks" / "jobs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # every process imports torch, and some are killed
def test_killed_workers_and_drivers_leave_the_folder_of_a_calm_run(model: Path, tmp_path: Path) -> None:
    """Three kills; `python benchmarks/jobs.py --chaos` has thirty."""
    script = benchmark()
    own = script.make_model(tmp_path / "m.zip", 8, 64)
    parts = script.make_parts(tmp_path / "parts", 4, 3_000, 8, 500)
    found = script.chaos(own, parts, tmp_path, engine="processes", n_kills=3, task_rows=500, seed=1)
    assert sum(found["killed"].values()) >= 1  # on a quick machine a worker may have ended before its kill
    assert found["same bytes"]
    assert (found["rows"], found["rows twice"], found["parts made again"]) == (12_000, 0, 0)


def test_a_task_that_ends_its_workers_is_given_up(
    model: Path, parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"  # a worker that is ready, and dies of every task
    script.write_text("#!/bin/sh\nread job\necho '{\"ready\": true}'\nread task\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    with pytest.raises(InputError, match=r"part-00000\.parquet ended 5 workers"):
        apply_files(model, parts, tmp_path / "out", engine="processes", workers=1, **ASK)


def test_ray_makes_the_same_folder_though_an_actor_is_killed(
    ray_here: Any, model: Path, parts: str, tmp_path: Path
) -> None:
    apply_files(model, parts, tmp_path / "calm", **ASK)
    killed = list[int]()

    def kill(done: int, *_: int) -> None:
        here = [pid for pid, name in benchmark().descendants(os.getpid()).items() if "ray::_Actor" in name]
        if done >= 2 and here and not killed:
            killed.append(here[0])
            os.kill(here[0], signal.SIGKILL)

    done = apply_files(model, parts, tmp_path / "ray", engine="ray", workers=2, tell=kill, **ASK)
    assert len(killed) == 1
    assert (done.n_rows, done.closed) == (N_FILES * N_ROWS, True)
    assert contents(tmp_path / "ray") == contents(tmp_path / "calm")


def test_the_scorer_is_a_function_of_arrow_batches(model: Path) -> None:
    scorer = Scorer(model)
    table = pa.table(rows_of(0))
    found = scorer(table)
    X = np.stack([table[f"x{i}"].to_numpy() for i in range(3)], 1)
    np.testing.assert_allclose(found["score"].to_numpy(), load(model).decision_function(X), rtol=1e-9)
    again = pickle.loads(pickle.dumps(scorer))
    assert len(pickle.dumps(scorer)) < 1000, "the model goes by its path"
    batches = list(again.over([table.to_batches()[0], table.to_batches()[0].slice(0, 0)]))
    assert pa.Table.from_batches(batches[:1]).equals(found)
    assert batches[1].schema.equals(found.schema)
    assert batches[1].num_rows == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data warns of itself
def test_the_scorer_in_ray_data(ray_here: Any, model: Path, parts: str) -> None:
    data = pytest.importorskip("ray.data").read_parquet(str(Path(parts).parent))
    found = data.map_batches(Scorer(model), batch_format="pyarrow").to_pandas()
    X = np.concatenate([np.stack([rows_of(file)[f"x{i}"] for i in range(3)], 1) for file in range(N_FILES)])
    expected = load(model).decision_function(X)
    np.testing.assert_allclose(found.sort_values("id")["score"].to_numpy(), expected, rtol=1e-9)
