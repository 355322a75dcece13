"""Damaged and strange tables through a real command: it answers, or refuses in one line; never a trace."""

import gzip
import io
import json
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import readers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from energate.cli import app
from energate.errors import InputError
from energate.tables import open_table
from energate.tables.room import room

pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")


CONTENTS = readers.good_tables()
changes = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 3), st.binary(max_size=4) | st.sampled_from([b'"', b"\n", b"\xff", b"\0"])
    ),
    max_size=4,
)


def mutated(content: bytes, how: list[tuple[float, int, bytes]]) -> bytes:
    for place, n_cut, put in how:
        i = round(place * len(content))
        content = content[:i] + put + content[i + n_cut :]
    return content


def answers(name: str, content: bytes, folder: Path) -> None:
    path = folder / name
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["data", "show", str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 2)
    if result.exit_code:
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("Error: ")


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(how=changes, cut=st.floats(0, 1))
@example(how=[], cut=1.0)
@pytest.mark.parametrize("suffix", CONTENTS)
def test_damage_is_told_in_one_line(
    suffix: str, how: list[tuple[float, int, bytes]], cut: float, tmp_path: Path
) -> None:
    content = mutated(CONTENTS[suffix], how)
    answers(f"t{suffix}", content[: max(1, round(cut * len(content)))] if cut > 0.3 else content, tmp_path)


CELL = st.sampled_from([cell for cell in readers.CELLS if len(cell) < 500])


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=12), raw=st.booleans())
def test_strange_cells_are_read_or_told(rows: list[list[str]], raw: bool, tmp_path: Path) -> None:
    table = pandas.DataFrame(rows, columns=["a", "b", "c"])
    text = "\n".join(",".join(row) for row in [["a", "b", "c"], *rows]) if raw else table.to_csv(index=False)
    answers("t.csv", text.encode(), tmp_path)
    answers("t.jsonl", "\n".join(json.dumps(dict(zip("abc", row, strict=True))) for row in rows).encode(), tmp_path)


def test_a_bomb_of_one_line_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    """100 MB that are 100 kB compressed, and no line ends: a few blocks are read."""
    for name, first in (("t.csv.gz", b"a,b\n1,"), ("u.csv.gz", b""), ("t.jsonl.gz", b'{"a": "')):
        content = gzip.compress(first + b"x" * 100_000_000, 1)
        tracemalloc.start()
        answers(name, content, tmp_path)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 60_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are set, and read, as Linux has them")
def test_strange_tables_are_read_or_refused_in_bounded_memory_and_time() -> None:
    """The short form of benchmarks/chaos/readers.py: other tables than those of its default seed."""
    found = readers.trial(120, seed=7, bombs=0.0)
    assert found["broken"] == []
    assert found["ended"]["read"] > 5
    assert found["ended"]["refused"] > 50


def arrays(header: str, data: bytes = b"", member: str = "X.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, readers.array_header(header) + data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ((12, 10**12), "<f8", "its bytes are too few"),
        ((10**12, 2), "<f8", "its bytes are too few"),
        ((-1, 2), "<f8", "its bytes are too few"),
        ((10**12, 0), "<f8", "it has none"),
        ((10**12,), "<U0", "must be a table of numbers"),
        ((1, 2_000_000), "|i1", "may have 1,048,576 columns; it has 2,000,000"),
    ],
)
def test_arrays_that_say_what_is_not_so_are_refused_at_once(shape: Any, kind: str, message: str, tmp_path) -> None:
    path = tmp_path / "t.npz"
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}"
    path.write_bytes(arrays(header, bytes(2_000_000 if kind == "|i1" else 192)))
    with pytest.raises(InputError, match=message):
        open_table(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npz", ".parquet", ".arff"])
def test_a_table_larger_than_memory_is_refused_before_it_is_read_to_its_end(suffix, tmp_path, monkeypatch) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes(CONTENTS[suffix])
    assert open_table(path).read()
    monkeypatch.setattr("energate.tables.reading.room", lambda: 64.0)
    with pytest.raises(InputError, match=r"more memory than there is|room for 32"):
        open_table(path).read()


def test_a_list_of_json_that_memory_does_not_hold_is_refused(tmp_path, monkeypatch) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(CONTENTS[".json"])
    monkeypatch.setattr("energate.tables.text.room", lambda: 640.0)
    with pytest.raises(InputError, match=r"larger than 20 bytes\. Write an object in each line"):
        open_table(path)


def test_there_is_room_and_a_limit_makes_it_smaller() -> None:
    assert room() > 2**20
    code = "import resource; from energate.tables.room import room; n = 2**33; "
    code += "resource.setrlimit(resource.RLIMIT_AS, (n, n)); assert room() < n, room()"
    subprocess.run([sys.executable, "-c", code], check=True)
