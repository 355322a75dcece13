"""Damaged, forged and strange tables through the code that reads them.

Each is a good table changed at random: bytes, cells, lines, headers of arrays, sizes, compression.  A process of its
own, whose memory is limited, reads it as `fit_table` does and, one in ten, as a command; the one that watches it has a
clock.  It must end as a good table, or in one `InputError`; a line of counts says how often it did.

    python benchmarks/chaos/readers.py [--count 5000] [--seed 0] [--keep FOLDER]
"""

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import random
import resource
import select
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _breaking import RESULTS, scarred, tell

ROOM = 512 * 2**20  # bytes of address space that a table may take, beside what the libraries have
SECONDS = 60.0  # of processor time for one table; a hang is one that takes more, or that waits
WAITING = 300.0
BY_COMMAND = 10  # one of so many is also read by `energate data show`

CELLS = [
    *("", "1", "2.5", "1,5", "1.234,5", "12,345", "45%", "$3", "1e999", "-inf", "nan", "NA", "unknown", "-", "0x1"),
    *("2024-01-31", "31.1.2024", "9999-12-31", "0000-00-00", "12:30", "a b c d", "grün", '"', "'", "\n", "\r", "\0"),
    *(";", ",", "\t", " x ", "9" * 400, "1" * 5000, "-" * 3000, "\u202f", "\ud7ff", "=1+1", "True", "1e-320", "٣", "½"),
    *("9" * 30, "1e308", "-1e308", "2024-02-30T99:99", "1970-01-01T00:00:00Z", "{", "}", "?", "%", "@data", "\u2028"),
    *("1e5000", "1_000", "+-1", "NaT", "None", "null", "\ufeff", "a" * 70_000),
]
JUNK = [b'"', b"\n", b"\xff", b"\0", b",", b"\r\n", b"{", b"}", b"[", b"9" * 5000, b"PK\x03\x04", b"\x1f\x8b", b"\\"]


def good_tables() -> dict[str, bytes]:
    """A small table in every format, by suffix."""
    import pandas as pd

    table = pd.DataFrame(
        {
            "size": [f"{1000 + 7 * i:,}" for i in range(12)],
            "colour": ["grün", "rot", None] * 4,
            "day": [f"2024-0{i % 9 + 1}-11" for i in range(12)],
            "n": np.arange(12) / 4,
            "kind": ["a", "b"] * 6,
        }
    )
    text, parquet = table.to_csv().encode(), io.BytesIO()
    table.to_parquet(parquet)
    arff = b"@relation r\n@attribute a numeric\n@attribute kind {x,y}\n@data\n1,x\n2,y\n{0 3}\n?,x\n"
    return {
        ".csv": text,
        ".tsv": table.to_csv(sep="\t", encoding="utf-8").encode("utf-16"),
        ".csv.gz": gzip.compress(text, mtime=0),
        ".jsonl": table.to_json(orient="records", lines=True).encode(),
        ".json": table.to_json(orient="records").encode(),
        ".parquet": parquet.getvalue(),
        ".npz": arrays(X=np.arange(24.0).reshape(12, 2), kind=np.arange(12) % 2, name=np.array([*"abcdefghijkl"])),
        ".arff": arff,
    }


def arrays(**given: Any) -> bytes:
    """An NPZ file."""
    file = io.BytesIO()
    np.savez(file, **given)
    return file.getvalue()


# --- changes -----------------------------------------------------------------------------------------------------


def bytes_changed(content: bytes, rng: random.Random) -> bytes:
    """Damage, also by what means something in a table."""
    return scarred(content, rng, (1, 1, 2, 4, 30), (1, 1, 2, 4, 16, 200), lambda rng, _: rng.choice(JUNK))


def cells_changed(content: bytes, rng: random.Random, suffix: str) -> bytes:
    """Some cells are others, and some lines longer, shorter, doubled or gone; of text."""
    text = content.decode("utf-16" if suffix == ".tsv" else "utf-8")
    mark = {".tsv": "\t", ".jsonl": ":", ".json": ":"}.get(suffix, ",")
    lines = text.splitlines()
    for _ in range(rng.choice((1, 2, 6))):
        i = rng.randrange(len(lines))
        cells = lines[i].split(mark)
        cell, kind = rng.choice(CELLS), rng.randrange(8)
        if kind == 0:
            cells.append(cell)
        elif kind == 1:
            cells.pop()
        elif kind == 2:
            lines.insert(i, lines[i])
        elif kind == 3 and suffix in (".jsonl", ".json"):
            cells[rng.randrange(len(cells))] = rng.choice(
                ["NaN", "1" * 400, "-Infinity", "[" * 2000, '{"a":' * 200, "1e400", '"\\ud800"', "9" * 30, "true"]
            )
        elif kind == 4:
            cells *= rng.choice((2, 200))
        else:
            cells[rng.randrange(len(cells))] = json.dumps(cell) if suffix.startswith(".json") else cell
        lines[i] = mark.join(cells)
    text = rng.choice(("\n", "\n", "\r\n", "\r")).join(lines)
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig", "utf-32", "cp1252")), "replace")


def array_header(text: str, version: bytes = b"\x01\x00") -> bytes:
    """What stands before the numbers of an array."""
    n = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text) + 1)
    return b"\x93NUMPY" + version + n + text.encode("latin-1") + b"\n"


def forged_arrays(rng: random.Random) -> bytes:
    """An NPZ file whose arrays say what is not so."""
    huge = rng.choice((10**6, 10**9, 10**12, 2**62, 2**63, 10**30, -1, 0, 3.5))
    shape = rng.choice(
        (f"({huge}, 2)", f"(12, {huge})", f"({huge},)", f"({huge}, {huge})", "()", "(12, 2, 2, 9)", "(12,)")
    )
    shape = rng.choice((shape, shape, "(12, 2)", "'a'", "12", "(None,)", "(" * 150 + ")" * 150))
    kind = rng.choice(
        ("<f8", "<f8", "<f4", "|O", "<U3", "|V8", "<M8[s]", "|S0", "<U999999999", "x", ">i8", "[('a','<f8')]", "<c16")
    )
    kind = kind if kind.startswith("[") else repr(kind)
    order = rng.choice(("False", "False", "True", "7"))
    header = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
    header = rng.choice((header, header, header, header + " " * 9000, "[" * 3000, "-" * 5000 + "1", "{}", header[:-9]))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    data = bytes(rng.choice((0, 192, 191, 8 * 10**6, 400 * 10**6 if rng.random() < 0.05 else 96)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        name = rng.choice(("X", "X", "X", "n", "x_train", "images", "../X", "X" * 300))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name twice
            archive.writestr(f"{name}.npy", array_header(header, version) + data)
            if rng.random() < 0.5:
                member = rng.choice(("feature_names.npy", "kind.npy", "readme.txt", f"{name}.npy", "kind"))
                names = np.array([*"abcdefghijkl"]) if rng.random() < 0.5 else np.array(rng.choice((3, "a", [[1]])))
                inner = io.BytesIO()
                np.save(inner, names)
                archive.writestr(member, inner.getvalue())
    made = bytearray(file.getvalue())
    if rng.random() < 0.2:  # flags and methods that need a password, or that nobody knows
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = made.find(mark)
            made[at + place + 2 * rng.randrange(2)] = rng.choice((1, 9, 12, 14, 99, 64))
    return bytes(made)


def forged_parquet(rng: random.Random) -> bytes:
    """A Parquet file of strange types, or of more rows than its bytes let one think."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    n = rng.choice((0, 1, 12, 10**6, 4 * 10**7 if rng.random() < 0.1 else 300))
    one = pa.array([rng.choice(("x", "y" * 50_000 if rng.random() < 0.05 else "yy"))])
    columns: dict[str, Any] = {
        "same": pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), one),
        "null": pa.nulls(n),
        "when": pa.array(np.zeros(n, dtype="int64"), pa.timestamp(rng.choice(("s", "ns")))),
        "day": pa.array(np.full(n, rng.choice((0, -(2**31), 2**31 - 1)), dtype="int32"), pa.date32()),
        "span": pa.array(np.zeros(n, dtype="int64"), pa.duration("s")),
        "flag": pa.array(np.zeros(n, dtype=bool)),
        "whole": pa.array(np.full(n, 2**64 - 1, dtype=np.uint64)),
        "half": pa.array(np.zeros(n, dtype=np.float16)),
    }
    if n <= 300:
        columns |= {
            "list": pa.array([[1, 2]] * n, pa.list_(pa.int64())),
            "thing": pa.array([{"a": 1}] * n, pa.struct([("a", pa.int64())])),
            "bytes": pa.array([b"\xff\x00"] * n, pa.binary()),
            "money": pa.array([None] * n, pa.decimal128(38, 9)),
            "time": pa.array([0] * n, pa.time32("s")),
            "map": pa.array([[("a", 1)]] * n, pa.map_(pa.string(), pa.int64())),
            "\0": pa.array([None] * n, pa.string()),
        }
    chosen = rng.sample(list(columns), rng.randrange(1, min(5, len(columns) + 1)))
    names = [rng.choice(("same", each)) if rng.random() < 0.1 else each for each in chosen]
    file = io.BytesIO()
    pq.write_table(
        pa.table([columns[each] for each in chosen], names=names),
        file,
        compression=rng.choice(("none", "snappy", "zstd")),
        write_page_checksum=rng.random() < 0.3,
    )
    return file.getvalue()


def footer_changed(content: bytes, rng: random.Random) -> bytes:
    """A Parquet file with a footer that says something else: counts and offsets are in it."""
    (length,) = struct.unpack("<I", content[-8:-4])
    start = len(content) - 8 - length
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(start, len(data) - 4)
        data[place] = rng.choice((rng.randrange(256), 0xFF, 0x7F, 0))
    return bytes(data)


def packed(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Compressed once, or twice; or with something after it; and how its name then ends."""
    kinds: list[tuple[str, Callable[[bytes], bytes]]] = [
        (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress),
    ]  # fmt: skip
    suffix, how = rng.choice(kinds)
    made = how(content)
    if rng.random() < 0.5:
        made = bytes_changed(made, rng)
    return suffix, rng.choice((made, made, made + made, made + b"\0" * 9 + b"junk", how(made)))


def bomb(rng: random.Random) -> tuple[str, bytes]:
    """A small file that becomes a large one: lines without end, lines without number, an array, a list."""
    kind, n = rng.randrange(6), 64 * 2**20
    if kind == 0:
        return ".csv.gz", gzip.compress(b"a,b\n1," + b"x" * n, 1)
    if kind == 1:
        return ".csv.gz", gzip.compress(b"a,b\n" + b"1,x\n" * (n // 4), 1)
    if kind == 2:
        return ".json.gz", gzip.compress(b'[{"a":1}' + b',{"a":1}' * (n // 8) + b"]", 1)  # read at once
    if kind == 3:
        return ".jsonl.gz", gzip.compress(b'{"a":1}\n' * (n // 16), 1)
    if kind == 4:
        return ".arff", b"@relation r\n" + b"".join(b"@attribute a%d numeric\n" % i for i in range(2000)) + (
            b"@data\n" + b"{}\n" * 200_000
        )
    file = io.BytesIO()
    header = array_header("{'descr': '<f8', 'fortran_order': False, 'shape': (80000000, 1), }")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("X.npy", header + bytes(8 * 80_000_000))
    return ".npz", file.getvalue()


def strange_table(tables: dict[str, bytes], rng: random.Random, bombs: float = 0.003) -> tuple[str, str, bytes]:
    """What was done, how the name ends, and the bytes."""
    suffix = rng.choice(list(tables))
    content, draw = tables[suffix], rng.random()
    if rng.random() < bombs:
        return "bomb", *bomb(rng)
    if suffix == ".npz" and draw < 0.7:
        return "forged arrays", suffix, forged_arrays(rng)
    if suffix == ".parquet" and draw < 0.3:
        return "strange types and counts", suffix, forged_parquet(rng)
    if suffix == ".parquet" and draw < 0.7:
        return "another footer", suffix, footer_changed(content, rng)
    if suffix in (".csv", ".tsv", ".jsonl", ".json", ".arff") and draw < 0.55:
        return "other cells", suffix, cells_changed(content, rng, suffix)
    if suffix in (".csv", ".jsonl", ".json") and draw < 0.7:
        more, made = packed(content, rng)
        return "compressed", suffix + more, made
    if draw > 0.97:
        return "another ending", rng.choice(list(tables)), content
    return "other bytes", suffix, bytes_changed(content, rng)


# --- the process that reads --------------------------------------------------------------------------------------


def read(path: Path) -> str:
    """What becomes of a file: how its reading ends."""
    from energate.errors import InputError
    from energate.tables import CellError, learn_columns, open_table

    try:
        source = open_table(path)
        table = source.read()
        try:
            columns, _ = learn_columns(
                table, task="anomaly", drop=source.index, decimal=source.decimal, declared=source.nominal
            )
            columns.matrix(table)
        except CellError as error:
            raise source.told(error) from error
    except InputError as error:
        return "refused" if len(str(error).split("\n")) == 1 else f"BROKEN: a message of several lines: {error}"
    except (Exception, MemoryError) as error:
        return f"BROKEN: {type(error).__name__}: {str(error)[:200]}"
    return "read"


def shown(path: Path) -> str:
    """The same by a command."""
    from typer.testing import CliRunner

    from energate.cli import app

    result = CliRunner().invoke(app, ["data", "show", str(path)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"BROKEN: show: {type(result.exception).__name__}: {str(result.exception)[:200]}"
    told = result.stderr.splitlines()
    if result.exit_code == 2 and len(told) == 1 and told[0].startswith("Error: "):
        return "refused"
    return "read" if result.exit_code == 0 else f"BROKEN: show: exit code {result.exit_code}: {result.stderr[:200]}"


def work() -> None:
    """Read the files that standard input names, one in a line, and say how each ended."""
    warnings.simplefilter("ignore")
    import pandas  # noqa: F401
    import pyarrow.csv  # type: ignore[import-untyped]
    import pyarrow.parquet

    import energate.cli.data
    import energate.tables.learning  # noqa: F401

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    with tempfile.TemporaryDirectory() as folder:  # what is imported and begun on the way belongs to the start
        for suffix, content in good_tables().items():
            path = Path(folder, f"t{suffix}")
            path.write_bytes(content)
            read(path), shown(path)
    own = _status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (own + ROOM, own + ROOM))
    before = _status("VmHWM")
    print("ready", flush=True)
    for line in sys.stdin:
        how, _, name = line.rstrip("\n").partition(" ")
        ended = {"read": read, "show": shown}[how](Path(name))
        print(json.dumps({"ended": ended, "grown": max(0, _status("VmHWM") - before)}), flush=True)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class Reader:
    """The process, and a clock beside it; one that dies or hangs is replaced."""

    def __init__(self) -> None:
        self.process = self._begin()

    def _begin(self) -> Any:
        command = [sys.executable, __file__, "--work"]
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        settings |= {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings)
        assert started.stdout is not None
        if started.stdout.readline() != b"ready\n":
            raise SystemExit("The process that reads did not begin.")
        return started

    def ask(self, how: str, path: Path) -> dict[str, Any]:
        """How the reading of a file ended."""
        self.process.stdin.write(f"{how} {path}\n".encode())
        self.process.stdin.flush()
        began, used, ready = time.monotonic(), self.used(), False
        while not ready and time.monotonic() - began < WAITING and self.used() - used < SECONDS:
            ready = bool(select.select([self.process.stdout], [], [], 1.0)[0])
        answer = self.process.stdout.readline() if ready else b""
        if answer:
            return json.loads(answer)
        self.close()
        code = self.process.returncode
        self.process = self._begin()
        return {"ended": f"BROKEN: {f'died with {code}' if ready else 'hung'}", "grown": 0}

    def used(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        with self.process:  # waits, and closes its pipes
            pass


def trial(count: int, seed: int, keep: Path | None = None, bombs: float = 0.003) -> dict[str, Any]:
    """Read so many strange tables; how they ended, what was done to them, and the most that one took."""
    tables, began = good_tables(), time.monotonic()
    ended, changes, broken = Counter[str](), Counter[str](), list[str]()
    most, slowest = 0, 0.0
    reader = Reader()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(count):
                rng = random.Random(f"{seed} {number}")
                change, suffix, content = strange_table(tables, rng, bombs)
                path = Path(folder, f"t{suffix}")
                path.write_bytes(content)
                changes[f"{suffix} {change}"] += 1
                for how in ("read", "show") if number % BY_COMMAND == 0 else ("read",):
                    start, process = reader.used(), reader.process
                    answer = reader.ask(how, path)
                    slowest = max(slowest, reader.used() - start if reader.process is process else SECONDS)
                    most = max(most, answer["grown"])
                    ended[answer["ended"].partition(":")[0]] += 1
                    if answer["ended"].startswith("BROKEN"):
                        broken.append(f"{number} {suffix} {change}: {answer['ended']}")
                        if keep is not None:
                            keep.mkdir(parents=True, exist_ok=True)
                            (keep / f"{number}{suffix}").write_bytes(content)
                path.unlink()
    finally:
        reader.close()
    return {
        "subject": "readers",
        "count": count,
        "seed": seed,
        "ended": dict(ended),
        "changes": dict(sorted(changes.items())),
        "most_mb": round(most / 2**20),
        "room_mb": ROOM // 2**20,
        "slowest_cpu_s": round(slowest, 2),
        "seconds": round(time.monotonic() - began),
        "broken": broken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where tables that broke something are kept")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    found = trial(options.count, options.seed, options.keep)
    tell(found, RESULTS, found["broken"])


if __name__ == "__main__":
    main()
