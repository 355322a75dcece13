"""A short run of benchmarks/chaos/server.py, which says what is promised; `make chaos` has the long one."""

import contextlib
import importlib.util
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_serving import ARROW, npy_of

pytest.importorskip("starlette", reason="needs the extra `serve`")
pa = pytest.importorskip("pyarrow", reason="needs the extra `tables`")

from energate.errors import InputError  # noqa: E402
from energate.serving import bodies  # noqa: E402
from energate.serving.batching import told  # noqa: E402
from energate.serving.schemas import BodyError  # noqa: E402
from energate.serving.service import Settings  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos" / "server.py"


@pytest.fixture(scope="module")
def chaos() -> Any:
    if sys.platform != "linux":
        pytest.skip("needs limits of other processes, and /proc")
    spec = importlib.util.spec_from_file_location("chaos_server", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos_server"] = module  # its dataclasses ask for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def offline(chaos: Any) -> Any:
    return chaos.Offline()


@pytest.fixture(scope="module")
def running(chaos: Any, offline: Any) -> Iterator[Any]:
    """One process for all of these; the last test ends it."""
    limits = "--max-rows", "100000", "--max-bytes", "16000000", "--seconds-to-send", "2"
    with chaos.server(offline, *limits) as found:
        yield found


def test_no_row_is_mixed_up_among_clients_that_are_killed(chaos: Any, offline: Any, running: Any) -> None:
    found = chaos.traffic(running, offline, 300, 16)
    assert found["wrong"] == []
    assert sum(found["ends"].values()) == 300
    assert found["ends"]["200"] > 100
    assert found["ends"][chaos.KILLED] > 10


def test_without_memory_the_answer_is_503_and_the_server_lives_on(chaos: Any, offline: Any, running: Any) -> None:
    found = chaos.without_memory(running, offline, 8)
    assert found["wrong"] == []
    assert found["ends"]["503"] >= 1


def test_clients_that_never_finish_are_cut_off(chaos: Any, offline: Any, running: Any) -> None:
    found = chaos.slow(running, offline, 6)
    assert found["wrong"] == []
    assert sum(found["ends"].values()) == 6
    assert {"half a body: 408", "half a head: 408", "nothing: closed"} <= found["ends"].keys()


def test_at_sigterm_every_request_in_flight_is_answered(chaos: Any, offline: Any) -> None:
    with chaos.server(offline) as fresh:
        found = chaos.stopped(fresh, offline, 12)
    assert found["wrong"] == []
    assert found["ends"] == {"200": 12}
    assert found["in_flight_at_sigterm"] >= 1


# --- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (MemoryError(), True),
        (np.exceptions.AxisError("other"), False),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            True,
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (pa.ArrowMemoryError("malloc of size 8 failed"), True),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, lacking: bool) -> None:
    assert isinstance(told(error), MemoryError) == lacking
    assert (told(error) is error) != lacking


def packed(table: Any, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_arrow_unpacks_to_is_known_before(compression: str | None) -> None:
    text = pa.array(["a" * 300, "b"] * 500).dictionary_encode()
    table = pa.table({"x": np.zeros(1000), "word": text, "half": pa.array([1.0, None] * 500)})
    content = packed(table, compression)
    bodies.from_arrow(content, 40_000, 1000)
    with pytest.raises(BodyError, match="also when unpacked") as caught:
        bodies.from_arrow(content, 15_000, 1000)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.nulls(10**9), "at most 1000 entries; got 1000000000"),
        (pa.RunEndEncodedArray.from_arrays([10**6], [1.0]), "must hold numbers"),
        (pa.array([[1.0]]), "must hold numbers"),
        (pa.array(["a"], pa.string_view()), "must hold numbers"),
        (pa.DictionaryArray.from_arrays([0] * 1000, ["a" * 1001]), "more than 1000 characters"),
        (pa.array(["a" * 1001]), "more than 1000 characters"),
    ],
    ids=["nulls", "runs", "lists", "views", "dictionary", "text"],
)
def test_a_few_bytes_of_arrow_are_not_many_rows(column: Any, words: str) -> None:
    with pytest.raises(BodyError, match=words):
        bodies.from_arrow(packed(pa.table({"a": column}), None), 10**6, 1000)


def test_damaged_arrow_is_refused_in_words() -> None:
    content = packed(pa.table({"x": np.zeros(50), "w": pa.array(["a", "b"] * 25).dictionary_encode()}), "lz4")
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 3).tolist():
            damaged[place] = int(rng.integers(256))
        with contextlib.suppress(BodyError):  # and nothing else
            bodies.from_arrow(bytes(damaged), 10**6, 1000)


def test_a_head_of_npy_that_claims_another_size_is_refused() -> None:
    content = npy_of(np.zeros((3, 2)))
    assert bodies.from_npy(content, 2).tolist() == [[0.0, 0.0]] * 3
    assert bodies.from_npy(npy_of(np.asfortranarray([[1, 2], [3, 4]])), 2).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    for wrong in (content.replace(b"(3, 2)", b"(9, 2)"), content[:-1], content + b"0"):
        with pytest.raises(BodyError, match="another size than its head says"):
            bodies.from_npy(wrong, 2)


def test_compressed_arrow_is_answered(chaos: Any, offline: Any, running: Any) -> None:
    content = chaos.post("/predict", ARROW, chaos.bomb())
    with socket.create_connection(("127.0.0.1", running.port), 60) as raw:
        raw.sendall(content)
        assert raw.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_limit_on_time_is_a_number_above_0() -> None:
    for seconds in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="`seconds_to_send` must be"):
            Settings(seconds_to_send=seconds)
