"""Damaged and strange tables through a real command: it answers, or refuses in one line; never a trace."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from energate.cli import app

pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")


def _contents() -> dict[str, bytes]:
    table = pandas.DataFrame(
        {
            "size": [f"{1000 + 7 * i:,}" for i in range(12)],
            "colour": ["grün", "rot", None] * 4,
            "day": [f"2024-0{i % 9 + 1}-11" for i in range(12)],
            "n": np.arange(12) / 4,
            "kind": ["a", "b"] * 6,
        }
    )
    text, parquet, arrays = table.to_csv().encode(), io.BytesIO(), io.BytesIO()
    table.to_parquet(parquet)
    np.savez(arrays, X=np.arange(24.0).reshape(12, 2), kind=np.arange(12) % 2, name=list("abcdefghijkl"))
    arff = b"@relation r\n@attribute a numeric\n@attribute kind {x,y}\n@data\n1,x\n2,y\n{0 3}\n?,x\n"
    return {
        ".csv": text,
        ".tsv": table.to_csv(sep="\t", encoding="utf-8").encode("utf-16"),
        ".csv.gz": gzip.compress(text, mtime=0),
        ".jsonl": table.to_json(orient="records", lines=True).encode(),
        ".json": table.to_json(orient="records").encode(),
        ".parquet": parquet.getvalue(),
        ".npz": arrays.getvalue(),
        ".arff": arff,
    }


CONTENTS = _contents()
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


CELL = st.sampled_from(
    [
        *("", "1", "2.5", "1,5", "1.234,5", "12,345", "45%", "$3", "1e999", "-inf", "nan", "NA", "unknown", "-", "0x1"),
        *(
            "2024-01-31",
            "31.1.2024",
            "9999-12-31",
            "0000-00-00",
            "12:30",
            "a b c d",
            "grün",
            '"',
            "'",
            "\n",
            "\r",
            "\0",
        ),
        *("\0", ";", ",", "\t", " x ", "9" * 400, "\u202f", "\ud7ff", "=1+1", "True"),
    ]
)


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
