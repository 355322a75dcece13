"""Models, tables and a Ray of two processors for the tests of jobs and of the page that tells of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energate import EnergyScorer, save

N_FILES, N_ROWS, GROUP = 3, 120, 20


def rows_of(file: int) -> dict[str, Any]:
    X = np.random.default_rng(file).normal(size=(N_ROWS, 3))
    return {"id": np.arange(file * N_ROWS, (file + 1) * N_ROWS), **{f"x{i}": X[:, i] for i in range(3)}}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X = np.random.default_rng(9).normal(size=(80, 3))
    path = tmp_path_factory.mktemp("model") / "model.zip"
    save(EnergyScorer(units="mean", n_hidden=5, max_epochs=2, random_state=0).fit(X), path)
    return path


@pytest.fixture
def parts(tmp_path: Path) -> str:
    folder = tmp_path / "parts"
    folder.mkdir()
    for file in range(N_FILES):
        pq.write_table(pa.table(rows_of(file)), folder / f"{file}.parquet", row_group_size=GROUP)
    return str(folder / "*.parquet")


@pytest.fixture(scope="session")
def ray_here() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()
