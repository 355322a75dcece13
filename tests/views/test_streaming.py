"""More rows than memory: the same rows are held out, epochs go through all others, and accuracy is that of memory."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from energate import load
from energate.cli import app
from energate.errors import InputError
from energate.tables import streams
from energate.tables.streams import Refill, Sample, chances, open_tables
from energate.views import streaming
from energate.views.streaming import bytes_of, fit_stream, rows_in

N = 3000


def table() -> pa.Table:
    draw = np.random.default_rng(0)
    X, colour = draw.normal(size=(N, 3)), draw.choice(["red", "blue"], N)
    score = X[:, 0] + (colour == "red") + 0.3 * draw.normal(size=N)
    kind = np.where(score > 1, "a", np.where(score > 0, "b", "c"))
    X[draw.random(X.shape) < 0.02] = np.nan
    columns = {f"x{i}": pa.array(X[:, i], from_pandas=True) for i in range(3)}
    return pa.table({"id": np.arange(N), **columns, "colour": colour, "kind": kind})


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(streams, "GROUP_ROWS", 100)
    for file in range(3):
        pq.write_table(table().slice(file * 1000, 1000), tmp_path / f"{file}.parquet", row_group_size=100)
    return str(tmp_path / "*.parquet")


def test_chances_look_drawn_and_are_a_function_of_the_row() -> None:
    rows = np.arange(100_000, dtype=np.uint64)
    found = chances(rows, 3)
    assert np.array_equal(chances(rows[5:7], 3), found[5:7])
    assert ((found >= 0) & (found < 1)).all()
    np.testing.assert_allclose(np.histogram(found, 10)[0], 10_000, atol=500)
    assert abs(np.corrcoef(found, chances(rows, 4))[0, 1]) < 0.02
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02


def test_a_sample_is_uniform_and_of_its_size() -> None:
    n_seen = np.zeros(500)
    for seed in range(200):
        sample = Sample(50)
        for start in range(0, 500, 70):
            rows = np.arange(start, min(start + 70, 500))
            sample.offer({"row": rows}, chances(rows.astype(np.uint64), seed))
        found = sample.rows()["row"]
        assert len(found) == len(np.unique(found)) == 50
        n_seen[found] += 1
    assert sample.n_offered == 500
    np.testing.assert_allclose(n_seen.reshape(10, 50).sum(1), 1000, atol=160)  # 5 standard deviations


def test_a_pass_goes_through_all_rows_once_and_through_none_held_out(parts: str) -> None:
    stream = open_tables(parts)
    assert len(stream.stretches) == 30

    def read(rows: Any, batch: Any) -> tuple[Any, Any]:
        kept = np.flatnonzero(chances(rows, 0) >= 0.2)
        ids = np.asarray(batch["id"])[kept].astype(float)
        return ids[:, None], (ids % 2).astype(np.int64)

    places = np.arange(600) % 2
    refill = Refill(stream, read, np.full((600, 1), -1.0), places, 4.0, seed=5)
    epochs = [refill(epoch) for epoch in range(4)]
    assert np.array_equal(refill(2), epochs[2]), "a function of the epoch"
    for found in epochs:
        known = found[:, 0] >= 0
        assert np.array_equal(found[known, 0] % 2, places[known])
    seen = Counter(np.concatenate(epochs)[:, 0].astype(int).tolist())
    del seen[-1]
    assert max(seen.values()) == 1
    fate = np.concatenate([chances(rows, 0) for rows, _ in stream.batches()])
    assert not (fate[list(seen)] < 0.2).any()
    assert len(seen) > 0.95 * (fate >= 0.2).sum()
    assert not np.array_equal(refill(4), epochs[0])


@pytest.mark.parametrize("units", ["mean", "trunk"])
def test_as_accurate_as_in_memory(units: str, parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict[int, Any]()
    for rows in (N, 1000):
        monkeypatch.setattr(streaming, "rows_in", lambda *_, rows=rows: rows)
        epochs = 6 if rows == N else 12  # twice as many of half the rows
        found[rows] = fit_stream(parts, "kind", units=units, epochs=epochs)
    whole, streamed = found[N], found[1000]
    assert (whole.n_rows, whole.n_train) == (streamed.n_rows, streamed.n_train)
    assert whole.held_out["rows"] == streamed.held_out["rows"], "the same rows are held out"
    assert streamed.held_out["error"] < whole.held_out["error"] + 4
    assert streamed.held_out["error"] < 25
    assert streamed.columns.names == ["x0", "x1", "x2", "colour"]
    assert any("'id' is left out" in note for note in streamed.notes)


def test_the_command_takes_patterns_and_a_limit(parts: str, tmp_path: Path) -> None:
    pa.csv.write_csv(table().slice(0, 400), tmp_path / "a.csv")
    out = tmp_path / "m.zip"
    line = ["fit", str(tmp_path / "*.csv"), "--target", "kind", "--units", "mean", "--epochs", "2", "-o", str(out)]
    ended = CliRunner().invoke(app, [*line, "--memory", "1GB", "--checkpoint", str(tmp_path / "c")])
    assert ended.exit_code == 0, ended.output
    assert set(load(out).classes_) == {"a", "b", "c"}
    for wrong, why in (
        (["--memory", "much"], "must be a number of bytes"),
        (["--refit"], "--refit is not for several files"),
        (["--task", "anomaly"], "are for classes"),
    ):
        ended = CliRunner().invoke(app, [*line, *wrong])
        assert ended.exit_code == 2
        assert why in ended.stderr


def test_what_cannot_be_streamed_is_told(parts: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can train trunk, mean"):
        fit_stream(parts, "kind", units="memory")
    with pytest.raises(InputError, match="no column 'nothing'"):
        fit_stream(parts, "nothing")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "9.parquet")
    with pytest.raises(InputError, match=r"9\.parquet has others"):
        fit_stream(parts, "kind")
    assert [bytes_of(each) for each in (10, "1GB", "1.5 kB", "2MiB")] == [10, 2**30, 1536, 2**21]
    assert rows_in(2**30, 20) * 22 * 8 < 2**30
