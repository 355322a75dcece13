"""More rows than memory: the same rows are held out, epochs go through all others, and accuracy is that of memory."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from parts import N, labelled, table, written
from typer.testing import CliRunner

from energate import load
from energate.cli import app
from energate.errors import InputError
from energate.tables import reading, streams
from energate.tables.drawn import Refill, draw
from energate.tables.streams import Sample, bytes_of, chances, open_tables, rows_in
from energate.views.streaming import fit_stream


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(streams, "GROUP_ROWS", 100)
    return written(table(), tmp_path)


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
    refill = Refill(stream, read, np.full((600, 1), -1.0), places, 4.0)
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
        monkeypatch.setattr(streams, "rows_in", lambda *_, rows=rows: rows)
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
        (["--task", "anomaly"], "must have 2 values; 'kind' has 3"),
    ):
        ended = CliRunner().invoke(app, [*line, *wrong])
        assert ended.exit_code == 2
        assert why in ended.stderr


def test_anomalies_and_labels_are_streamed_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "GROUP_ROWS", 100)
    monkeypatch.setattr(streams, "rows_in", lambda *_: 700)
    pattern = written(labelled(), tmp_path)
    out = tmp_path / "m.zip"
    line = ["fit", pattern, "--memory", "1GB", "--json", "--drop", "id"]
    ended = CliRunner().invoke(
        app, [*line, "--task", "anomaly", "--target", "la", "--drop", "lb,lc", "-o", str(out), "--contamination", "0.1"]
    )
    assert ended.exit_code == 0, ended.output
    said = json.loads(ended.stdout)
    assert said["columns"] == ["x0", "x1", "x2", "colour"]
    assert said["rows"] == N
    assert said["held_out"]["rows"] == N - said["trained_on"]
    assert load(out).n_units_ < 700
    labels = ["--targets-prefix", "l", "--relation", "xy", "--epochs", "2", "-o", str(out)]
    ended = CliRunner().invoke(app, [*line, *labels])
    assert ended.exit_code == 0, ended.output
    said = json.loads(ended.stdout)
    assert any(re.match(r"the base is fitted to \d+ rows", note) for note in said["notes"])
    assert said["held_out"]["label_error"] < 25
    assert load(out).model_.autoencoder.width == 3


def test_which_rows_are_held_out_depends_on_the_files_alone(
    parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids() -> list[Any]:
        train, test = open_tables(given, "kind", keep=["id"]).split(0.2)
        drawn = draw(train, "classify", coded=True, share=0.1)
        assert drawn.held_out is not None
        sample = test.sample(10_000).rows()["id"]
        return [drawn.X[:, 0], drawn.held_out[0][:, 0], drawn.held_out[1], np.asarray(sample)]

    monkeypatch.setattr(streams, "rows_in", lambda *_: 1000)
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    given: Any = parts
    found = ids()
    assert 500 < len(found[-1]) < 700
    assert not set(found[0]) & (set(found[1]) | set(found[-1]))
    given = files[::-1]
    monkeypatch.setattr(streams, "GROUP_ROWS", 350)
    monkeypatch.setattr(reading, "CELLS", 7 * 6)  # seven rows at once
    for before, now in zip(found, ids(), strict=True):
        np.testing.assert_array_equal(now, before)
    (tmp_path / "moved").mkdir()
    for path in files:
        path.rename(tmp_path / "moved" / path.name)
    given = tmp_path / "moved" / "*.parquet"
    for before, now in zip(found, ids(), strict=True):
        np.testing.assert_array_equal(now, before)


def test_files_may_disagree_on_the_type_of_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pa.table({"x": pa.array([1, 2, 3] * 20), "kind": ["a", "b", "a"] * 20})
    pq.write_table(whole, tmp_path / "0.parquet")
    pq.write_table(whole.set_column(0, "x", pa.array([1.5, None, 3.0] * 20)), tmp_path / "1.parquet")
    pq.write_table(whole.set_column(1, "kind", pa.array(["a", "b", None] * 20)), tmp_path / "2.parquet")
    found = draw(open_tables(tmp_path / "*.parquet", "kind"), "classify", coded=True, share=0.1)
    assert found.X.shape == (160, 1)
    assert any("20 rows without a value of 'kind' left out" in note for note in found.about.notes)
    monkeypatch.setattr(streams, "rows_in", lambda *_: 50)
    found = draw(open_tables(tmp_path / "*.parquet", "kind"), "classify", coded=True, share=0.1)
    assert found.refill is not None
    assert found.refill(0).shape == found.X.shape
    assert found.times == pytest.approx((160 - len(found.held_out[1])) / len(found.X))


def test_what_cannot_be_streamed_is_told(parts: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can train trunk, mean"):
        fit_stream(parts, "kind", units="memory")
    with pytest.raises(InputError, match="no column 'nothing'"):
        fit_stream(parts, "nothing")
    with pytest.raises(InputError, match="no column 'nothing' that could be meant"):
        fit_stream(parts, "kind", drop=["nothing"])
    with pytest.raises(InputError, match="which column holds the classes"):
        fit_stream(parts)
    with pytest.raises(InputError, match="must be given once"):
        open_tables([parts, tmp_path / "0.parquet"])
    (tmp_path / "none").mkdir()
    pq.write_table(table().slice(0, 0), tmp_path / "none" / "0.parquet")
    with pytest.raises(InputError, match=r"0\.parquet must have rows to learn from; there are none"):
        fit_stream(tmp_path / "none" / "*.parquet", "kind", test_fraction=0)
    pq.write_table(pa.table({"other": [1]}), tmp_path / "9.parquet")
    with pytest.raises(InputError, match=r"9\.parquet has others"):
        fit_stream(parts, "kind")
    assert [bytes_of(each) for each in (10, "1GB", "1.5 kB", "2MiB")] == [10, 2**30, 1536, 2**21]
    assert rows_in(2**30, 20) * 22 * 8 < 2**30
