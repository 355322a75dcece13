"""Jobs over many files: the folder is the same whatever happened on the way, and bad input is one line."""

import csv
import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import N_FILES, N_ROWS, rows_of
from typer.testing import CliRunner

from energate import EnergyScorer, apply_table, load, save
from energate.cli import app
from energate.errors import InputError
from energate.jobs import apply_files, job_status
from energate.jobs.folder import footer
from energate.jobs.plan import cut

ASK: dict[str, Any] = {"command": "score", "task_rows": 40, "device": "cpu"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def marks(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("part-*")}


@pytest.fixture
def calm(model: Path, parts: str, tmp_path: Path) -> Path:
    done = apply_files(model, parts, tmp_path / "calm", **ASK)
    assert (done.n_tasks, done.n_made, done.n_rows, done.closed) == (9, 9, N_FILES * N_ROWS, True)
    return tmp_path / "calm"


# --- what is written ---------------------------------------------------------------------------------------------


def test_parts_hold_what_one_file_gets(model: Path, calm: Path, tmp_path: Path) -> None:
    found = pa.concat_tables([pq.read_table(path) for path in sorted(calm.glob("part-*"))])
    each = [tmp_path / f"{file}-scored.parquet" for file in range(N_FILES)]
    for file, path in enumerate(each):
        apply_table(load(model), tmp_path / "parts" / f"{file}.parquet", path, command="score")
    expected = pa.concat_tables([pq.read_table(path) for path in each])
    assert found.column_names == expected.column_names == ["id", "x0", "x1", "x2", "score", "is_inlier", "p_value"]
    for name in found.column_names:
        np.testing.assert_allclose(found[name].to_numpy(), expected[name].to_numpy(), rtol=1e-9, atol=1e-9)
    manifest = json.loads((calm / "manifest.json").read_text())
    assert manifest["rows"] == len(found)
    assert [part["row_groups"] for part in manifest["parts"]] == [[0, 1], [2, 3], [4, 5]] * N_FILES
    about = footer(calm / "part-00004.parquet")
    assert about is not None
    assert about["task"] == {"number": 4, "file": "1.parquet", "row_groups": [2, 3], "first_row": 40}
    assert (about["rows"], about["skipped"], about["model"]) == (40, 0, manifest["model"])


def test_row_groups_are_put_together_up_to_a_size() -> None:
    assert cut([5, 5, 5], 10) == [((0, 1), 0), ((2,), 10)]
    assert cut([50, 1, 1], 10) == [((0,), 0), ((1, 2), 50)]
    assert cut([], 10) == []


def test_threads_of_the_process_do_not_matter(model: Path, parts: str, calm: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        apply_files(model, parts, tmp_path / "threads", **ASK)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert contents(tmp_path / "threads") == contents(calm)


def test_shares_make_the_same_folder(model: Path, parts: str, calm: Path, tmp_path: Path) -> None:
    closed = [apply_files(model, parts, tmp_path / "s", shard=(k, 4), **ASK).closed for k in (3, 1, 4, 2)]
    assert closed == [False, False, False, True]
    assert contents(tmp_path / "s") == contents(calm)
    with pytest.raises(InputError, match="count from 1"):
        apply_files(model, parts, tmp_path / "s", shard=(0, 4), **ASK)


def test_text_arrays_and_other_file_systems(model: Path, tmp_path: Path) -> None:
    rows = rows_of(0)
    lines = [
        ",".join(rows),
        *(",".join(map(repr, each)) for each in zip(*(rows[n].tolist() for n in rows), strict=True)),
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    np.savez(tmp_path / "b.npz", **rows)
    memory = fsspec.filesystem("memory")
    for name in ("a.csv", "b.npz"):
        memory.pipe_file(f"/jobs/{name}", (tmp_path / name).read_bytes())
    with memory.open("/jobs/c.parquet", "wb") as file:
        pq.write_table(pa.table(rows), file, row_group_size=50)
    apply_files(model, "memory://jobs/*", tmp_path / "out", **{**ASK, "task_rows": 100})
    found = [pq.read_table(path)["score"].to_numpy() for path in sorted((tmp_path / "out").glob("part-*"))]
    assert list(map(len, found)) == [120, 120, 100, 20]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
    np.testing.assert_allclose(np.concatenate(found[2:]), found[1], rtol=1e-9)
    here = apply_files(model, [str(tmp_path / "a.csv"), str(tmp_path / "b.npz")], tmp_path / "here", **ASK)
    assert here.n_tasks == 2
    assert (tmp_path / "here" / "part-00000.parquet").stat().st_size > 0


# --- going on ----------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_stopped(model: Path, parts: str, calm: Path) -> None:
    expected, before = contents(calm), marks(calm)
    (calm / "part-00003.parquet").unlink()
    damaged = calm / "part-00005.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    (calm / "manifest.json").unlink()
    (calm / ".part-00003.parquet.host.1.unfinished").write_bytes(b"left by a killed worker")
    status = job_status(calm)
    assert (status.n_done, status.n_tasks, status.damaged, status.closed) == (7, 9, ["part-00005.parquet"], False)
    done = apply_files(model, parts, calm, **ASK)
    assert (done.n_made, done.n_there) == (2, 7)
    assert contents(calm) == expected
    after = marks(calm)
    assert {name for name in before if before[name] != after[name]} == {"part-00003.parquet", "part-00005.parquet"}


def test_other_models_inputs_and_questions_are_not_mixed(model: Path, parts: str, calm: Path, tmp_path: Path) -> None:
    expected = contents(calm)
    other = tmp_path / "other.zip"
    save(EnergyScorer(units="mean", n_hidden=4, max_epochs=1, random_state=1).fit(np.eye(6, 3)), other)
    with pytest.raises(InputError, match="with another model; they are not mixed"):
        apply_files(other, parts, calm, **ASK)
    with pytest.raises(InputError, match="another command"):
        apply_files(model, parts, calm, **{**ASK, "command": "predict"})
    pq.write_table(pa.table(rows_of(7)), tmp_path / "parts" / "1.parquet", row_group_size=20)
    with pytest.raises(InputError, match="other input files"):
        apply_files(model, parts, calm, **ASK)
    assert contents(calm) == expected
    with pytest.raises(InputError, match="no folder of a job"):
        apply_files(model, parts, tmp_path / "parts", **ASK)


def test_moved_inputs_are_the_same_inputs(model: Path, parts: str, calm: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").rename(tmp_path / "moved")
    done = apply_files(model, str(tmp_path / "moved"), calm, **ASK)
    assert (done.n_made, done.n_there, done.closed) == (0, 9, True)


# --- rows that cannot be used ------------------------------------------------------------------------------------


def test_bad_rows_end_the_job_or_are_listed(model: Path, tmp_path: Path) -> None:
    rows = rows_of(0)
    rows["x1"][[7, 55]] = np.inf
    rows["x1"][100:] = np.inf
    pq.write_table(pa.table(rows), tmp_path / "bad.parquet", row_group_size=20)
    with pytest.raises(InputError, match=r"bad\.parquet, row 8: 'x1' must be a finite number; got inf"):
        apply_files(model, str(tmp_path / "bad.parquet"), tmp_path / "fail", **{**ASK, "task_rows": 20})
    assert sorted(os.listdir(tmp_path / "fail")) == ["job.json"]
    done = apply_files(
        model, str(tmp_path / "bad.parquet"), tmp_path / "skip", **{**ASK, "task_rows": 20}, on_error="skip"
    )
    assert (done.n_rows, done.n_skipped, done.n_tasks) == (98, 22, 6)
    found = [pq.read_table(path) for path in sorted((tmp_path / "skip").glob("part-*"))]
    assert found[5].num_rows == 0
    assert all(each.schema.equals(found[0].schema) for each in found)
    ids = np.concatenate([each["id"].to_numpy() for each in found])
    assert ids.tolist() == [i for i in range(100) if i not in (7, 55)]
    lists = sorted((tmp_path / "skip").glob("skipped-*.csv"))
    lines = [line for path in lists for line in csv.DictReader(path.read_text().splitlines())]
    assert [int(line["row"]) for line in lines] == [8, 56, *range(101, 121)]
    assert lines[0]["file"] == "bad.parquet"
    assert "must be a finite number" in lines[0]["why"]


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_damaged_page_is_one_line_and_leaves_nothing(engine: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.parquet"
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table(rows_of(0)), path, row_group_size=40, **plain)
    data, column = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(1).column(2)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"page\.parquet is damaged"):
        apply_files(model, str(path), tmp_path / "out", **ASK, engine=engine)
    assert {name for name in os.listdir(tmp_path / "out") if not name.startswith("part-")} == {"job.json"}
    assert "part-00001.parquet" not in os.listdir(tmp_path / "out")


def test_inputs_that_vanish_and_folders_that_cannot_be_written(
    model: Path, parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="No table is found"):
        apply_files(model, str(tmp_path / "none" / "*.parquet"), tmp_path / "out", **ASK)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        apply_files(model, parts, tmp_path / "file" / "out", **ASK)
    with pytest.raises(InputError, match="folder of this machine"):
        apply_files(model, parts, "s3://bucket/out", **ASK)
    with pytest.raises(InputError, match="cannot be read"):
        apply_files(model, "nonsense://a.parquet", tmp_path / "out", **ASK)

    def vanish(done: int, *_: int) -> None:
        if done == 1:
            (tmp_path / "parts" / "1.parquet").unlink()

    with pytest.raises(InputError, match=r"There is no file '1\.parquet'"):
        apply_files(model, parts, tmp_path / "out", tell=vanish, **ASK)
    assert sorted(os.listdir(tmp_path / "out")) == ["job.json", *(f"part-0000{i}.parquet" for i in range(3))]


def test_a_folder_that_became_read_only_is_one_line_and_leaves_nothing(
    model: Path, parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.open

    def read_only(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if path.name.startswith(".part-00001"):  # permissions say nothing to root
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return plain(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(InputError, match=r"part-00001\.parquet cannot be written \(Read-only file system\)"):
        apply_files(model, parts, tmp_path / "out", **ASK)
    assert sorted(os.listdir(tmp_path / "out")) == ["job.json", "part-00000.parquet"]


def test_a_full_disk_is_one_line_and_leaves_nothing(model: Path, parts: str, calm: Path, tmp_path: Path) -> None:
    room = max(len(content) for name, content in contents(calm).items() if name.startswith("part-")) - 500
    line = [
        sys.executable,
        "-m",
        "energate",
        "score",
        str(model),
        parts,
        "-o",
        str(tmp_path / "full"),
        "--task-rows",
        "40",
    ]
    ended = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: ")
    assert ended.stderr.count("\n") == 1
    assert "cannot be written (File too large)" in ended.stderr
    assert sorted(os.listdir(tmp_path / "full")) == ["job.json"]


def test_workers_that_never_start_are_told(
    model: Path, parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InputError, match="5 workers ended before they were ready"):
        apply_files(model, parts, tmp_path / "out", engine="processes", workers=1, **ASK)


# --- the command line --------------------------------------------------------------------------------------------


def test_commands_and_status(model: Path, parts: str, calm: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    out = str(tmp_path / "out")
    ended = run(app, ["score", str(model), parts, "-o", out, "--task-rows", "40", "--shard", "1/2", "--device", "cpu"])
    assert ended.exit_code == 0, ended.output
    assert "5 of 9 parts made" in ended.stdout
    assert "not complete yet" in ended.stdout
    assert "parts          5 of 9" in run(app, ["jobs", "status", out]).stdout
    ended = run(app, ["score", str(model), parts, "-o", out, "--task-rows", "40", "--device", "cpu", "--json"])
    assert json.loads(ended.stdout)["n_made"] == 4
    assert contents(Path(out)) == contents(calm)
    assert json.loads(run(app, ["jobs", "status", out, "--json"]).stdout)["closed"] is True
    for wrong, why in (
        (["--workers", "2"], "--workers are for"),
        (["--address", "auto"], "are for --engine ray"),
        (["--shard", "3"], "--shard must be K/N"),
    ):
        ended = run(app, ["score", str(model), parts, "-o", out, *wrong])
        assert ended.exit_code == 2
        assert why in ended.stderr
    assert "name it with -o" in run(app, ["score", str(model), parts]).stderr
    assert "no folder of a job" in run(app, ["jobs", "status", str(tmp_path)]).stderr
