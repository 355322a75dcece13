"""The server among clients that are killed, slow or wrong, without memory, and told to stop.

*Traffic.*  Many clients at once send rows as JSON, npy and Arrow to several paths, things that are wrong, and parts of
requests before they hang up.  Every row is another one: each answer is compared with what the model says of just these
rows offline.  Afterwards nothing runs or waits, and the server takes no more memory than after the first quarter.

*Memory.*  Requests while the server may take only a little more address space than it has: each ends in 200, with the
right rows, or in 503 with Retry-After and one line in the log; then the next one is answered.

*Slow clients.*  Heads and bodies that are never finished are cut off, with 408 where they have been read.

*SIGTERM.*  All clients wait for an answer when the server is told to stop: each gets it, and the exit code is 0.

Everything goes over 127.0.0.1, to a process that is started here.

    python benchmarks/chaos/server.py [--count 20000] [--clients 64] [--seed 0]
"""

import argparse
import asyncio
import io
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _breaking import RESULTS, tell

from energate import EnergyClassifier, save
from energate.errors import require

pa = require("pyarrow", "tables")

N_COLUMNS = 16
GROWTH = 40 * 2**20  # bytes that the server may take more at the end than after a quarter of the requests
PATIENCE = 120.0  # seconds for an answer, on a machine that does other things, too
JSON, NPY, ARROW = "application/json", "application/x-npy", "application/vnd.apache.arrow.stream"
KILLED = "client killed"


# --- a model, and what it says offline ---------------------------------------------------------------------------


class Offline:
    """Distinct rows, and what a model says of each."""

    def __init__(self, n_rows: int = 4096) -> None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, N_COLUMNS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training is short
            self.model = EnergyClassifier("mean", n_hidden=64, pretrain_epochs=2, max_epochs=2, random_state=0)
            self.model.fit(X, np.array(["a", "b", "c"])[np.arange(300) % 3])
        self.rows = rng.normal(size=(n_rows, N_COLUMNS)).round(6)
        self.probabilities = self.model.predict_proba(self.rows)
        self.energies = self.model.energies(self.rows)

    def agrees(self, path: str, some: list[int], said: dict[str, Any]) -> bool:
        """Whether an answer is that of these rows, in this order."""
        name, expected = ("probabilities", self.probabilities) if path == "/predict" else ("energies", self.energies)
        found = np.array(said[name], dtype=float)
        return found.shape == expected[some].shape and bool(np.allclose(found, expected[some], rtol=1e-9, atol=1e-9))


# --- a server ----------------------------------------------------------------------------------------------------


class Server:
    """A process that serves, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes, as Linux counts them."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(text.partition(f"{what}:")[2].split()[0])

    def limit(self, more: int | None) -> None:
        """Let it take so many bytes of address space more than now; None ends the limit."""
        soft = resource.RLIM_INFINITY if more is None else self.memory("VmSize") + more
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))

    def lines(self) -> list[str]:
        """What it has logged."""
        return self.log.read_text().splitlines()


@contextmanager
def server(offline: Offline, *options: str) -> Iterator[Server]:
    """`energate serve` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        save(offline.model, f"{folder}/model.zip")
        command = [sys.executable, "-m", "energate", "serve", f"{folder}/model.zip", "--port", "0", "--json", *options]
        log = Path(folder, "log")
        with log.open("w") as errors:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            found = Server(process, int(json.loads(line)["url"].rpartition(":")[2]), log)
            asyncio.run(_metric(found.port, "requests_running"))  # it answers
            yield found
        finally:
            process.kill()
            process.communicate()


# --- requests ----------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """Bytes to send; what must come back: a status, and for some rows an answer."""

    content: bytes
    statuses: tuple[int, ...] = (200,)
    path: str = ""
    some: list[int] = field(default_factory=list)


def post(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def body_of(rows: Any, kind: str, rng: random.Random) -> bytes:
    """Rows in one of the forms that the server takes."""
    if kind == JSON:
        return json.dumps({"rows": rows.tolist()}).encode()
    file: Any = io.BytesIO()
    if kind == NPY:
        np.save(file, rows)
        return bytes(file.getvalue())
    table = pa.table({f"c{number}": column for number, column in enumerate(rows.T)})
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, "lz4", "zstd")))
    with pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)
    return bytes(file.getvalue())


def rows_request(offline: Offline, rng: random.Random, most: int = 20) -> Request:
    """Some of the rows, to a path that answers for each."""
    path = rng.choice(("/predict", "/predict", "/score", "/explain"))
    some = rng.sample(range(len(offline.rows)), rng.randint(1, 3 if path == "/explain" else most))
    kind = rng.choice((JSON, JSON, NPY, ARROW))
    return Request(post(path, kind, body_of(offline.rows[some], kind, rng)), (200,), path, some)


def wrong_request(rng: random.Random) -> Request:
    """Something that is refused."""
    return rng.choice(
        (
            Request(post("/predict", JSON, b'{"rows": [[1, 2'), (400,)),
            Request(post("/predict", JSON, rng.randbytes(40)), (400,)),
            Request(post("/predict", JSON, b'{"rows": [[1, 2]]}'), (422,)),
            Request(post("/predict", JSON, b'{"rows": []}'), (422,)),
            Request(post("/predict", NPY, rng.randbytes(200)), (400,)),
            Request(post("/predict", ARROW, rng.randbytes(200)), (400,)),
            Request(post("/predict", ARROW, bomb()), (413,)),
            Request(post("/predict", "text/plain", b"1"), (415,)),
            Request(post("/nothing", JSON, b"{}"), (404,)),
            Request(post("/refine", JSON, b"{}"), (404,)),
            Request(get("/nowhere"), (404,)),
            Request(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", (413,)),
            Request(b"NONSENSE\r\n\r\n", (400,)),
            Request(b"GET /health HTTP/1.1\r\nA: " + b"x" * 600_000, (431,)),
        )
    )


_BOMB = bytearray()


def bomb() -> bytes:
    """A small stream of Arrow that unpacks to 80 MB."""
    if not _BOMB:
        table, sink = pa.table({"a": np.zeros(10_000_000)}), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(table)
        _BOMB.extend(sink.getvalue().to_pybytes())
    return bytes(_BOMB)


class Client:
    """One connection at a time, made again when it is closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, content: bytes) -> None:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        self.streams[1].write(content)
        with suppress(ConnectionError):  # an answer may come before all was sent
            await self.streams[1].drain()

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body."""
        assert self.streams is not None
        reader = self.streams[0]
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines if line)}
        body = await reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"connection") == b"close":
            self.hang_up()
        return int(first.split()[1]), headers, body

    async def ask(self, content: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """Send, and wait for the answer; an idle connection that the server has closed meanwhile is made again."""
        fresh = self.streams is None
        try:
            await self.send(content)
            return await asyncio.wait_for(self.answer(), PATIENCE)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hang_up()
            if fresh:
                raise
            return await self.ask(content)

    def hang_up(self) -> None:
        """At once, as a process does that is killed: what was not read is lost."""
        if self.streams is not None:
            found: socket.socket | None = self.streams[1].get_extra_info("socket")
            with suppress(OSError):
                if found is not None:  # it is gone where the other side was first
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.streams[1].close()
            self.streams = None


def judged(request: Request, offline: Offline, answer: tuple[int, dict[bytes, bytes], bytes]) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    status, _, body = answer
    if status not in request.statuses:
        return f"{status} in place of {request.statuses}, to {request.content[:60]!r}: {body[:200]!r}"
    if status == 200 and request.some and not offline.agrees(request.path, request.some, json.loads(body)):
        return f"rows mixed up at {request.path}"
    return None


# --- traffic -----------------------------------------------------------------------------------------------------


async def _metric(port: int, name: str) -> float:
    client = Client(port)
    _, _, body = await client.ask(get("/metrics"))
    client.hang_up()
    (found,) = re.findall(rf"^energate_{name} (\S+)$", body.decode(), re.MULTILINE)
    return float(found)


async def _traffic(running: Server, offline: Offline, count: int, n_clients: int, seed: int) -> dict[str, Any]:
    ends, wrong, memory = Counter[str](), list[str](), list[int]()
    numbers = iter(range(count))

    async def work(which: int) -> None:
        rng, client = random.Random(f"{seed} {which}"), Client(running.port)
        for number in numbers:
            if number == count // 4:
                memory.append(running.memory())
            draw = rng.random()
            if draw < 0.15:  # killed with a part sent, or all of it
                content = rows_request(offline, rng).content
                with suppress(ConnectionError):
                    await client.send(content if rng.random() < 0.3 else content[: rng.randrange(len(content))])
                client.hang_up()
                ends[KILLED] += 1
                continue
            if draw < 0.25:
                request = wrong_request(rng)
            elif draw < 0.3:
                request = Request(get(rng.choice(("/health", "/model", "/metrics", "/docs", "/"))))
            else:
                request = rows_request(offline, rng)
            try:
                answer = await client.ask(request.content)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                # What is refused before all of it was sent may be lost with the connection.
                lost = request.statuses[0] in (413, 431) and not isinstance(error, TimeoutError)
                ends["refused, the connection closed" if lost else "no answer"] += 1
                if not lost:
                    wrong.append(f"{type(error).__name__} for {request.content[:60]!r}")
                continue
            ends[str(answer[0])] += 1
            if problem := judged(request, offline, answer):
                wrong.append(problem)
        client.hang_up()

    await asyncio.gather(*(work(which) for which in range(n_clients)))
    for _ in range(600):
        if await _metric(running.port, "requests_running") == 1 and not await _metric(running.port, "rows_waiting"):
            break
        await asyncio.sleep(0.1)
    else:
        wrong.append("something still runs or waits")
    memory.append(running.memory())
    if memory[1] - memory[0] > GROWTH:
        wrong.append(f"the server took {memory[0]} bytes after a quarter, and {memory[1]} at the end")
    traces = [line for line in running.lines() if "Traceback" in line]
    wrong += [f"{len(traces)} traces in the log"] if traces else []
    found = {"requests": count, "clients": n_clients, "ends": dict(sorted(ends.items()))}
    return found | {"memory_mb": [round(each / 2**20, 1) for each in memory], "wrong": wrong}


def traffic(running: Server, offline: Offline, count: int, n_clients: int, seed: int = 0) -> dict[str, Any]:
    """Mixed requests from many clients: how they ended, and what was wrong."""
    return asyncio.run(_traffic(running, offline, count, n_clients, seed))


# --- memory ------------------------------------------------------------------------------------------------------


async def _without_memory(running: Server, offline: Offline, count: int, seed: int) -> dict[str, Any]:
    rng, ends, wrong = random.Random(seed), Counter[str](), list[str]()
    client, small = Client(running.port), Request(get("/health"))
    n_lines = len(running.lines())
    for _ in range(count):
        some = [rng.randrange(len(offline.rows)) for _ in range(rng.choice((5_000, 20_000, 60_000)))]
        kind, path = rng.choice((JSON, NPY, ARROW)), rng.choice(("/predict", "/score"))
        request = Request(post(path, kind, body_of(offline.rows[some], kind, rng)), (200, 503), path, some)
        running.limit(int(2**20 * rng.choice((1, 4, 16, 64))))
        try:
            answer = await client.ask(request.content)
            after = await client.ask(small.content)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            client.hang_up()
            if running.process.poll() is not None or isinstance(error, TimeoutError):
                wrong.append(f"{type(error).__name__} for {len(some)} rows as {kind}: {running.process.poll()}")
                break
            ends["the connection closed while it sent"] += 1
            continue
        finally:
            if running.process.poll() is None:
                running.limit(None)
        ends[str(answer[0])] += 1
        if answer[0] == 503 and b"retry-after" not in answer[1]:
            wrong.append("503 without Retry-After")
        wrong += [each for each in (judged(request, offline, answer), judged(small, offline, after)) if each]
    client.hang_up()
    lines = running.lines()[n_lines:]
    known = ("Out of memory at POST ", "WARNING:  Invalid HTTP request received.")  # the second where a head is read
    if len(lines) > count - ends["200"] or not all(line.startswith(known) for line in lines):
        wrong.append(f"{len(lines)} lines in the log for {ends['503']} requests without memory: {lines[:3]}")
    return {"requests_without_memory": count, "ends": dict(sorted(ends.items())), "wrong": wrong}


def without_memory(running: Server, offline: Offline, count: int, seed: int = 0) -> dict[str, Any]:
    """Large requests under a limit on the address space; a small one after each."""
    return asyncio.run(_without_memory(running, offline, count, seed))


# --- slow clients ------------------------------------------------------------------------------------------------


async def _slow(running: Server, offline: Offline, count: int, seed: int) -> dict[str, Any]:
    rng, ends, wrong = random.Random(seed), Counter[str](), list[str]()

    async def work(which: int) -> None:
        content = rows_request(offline, rng).content
        head = content.index(b"\r\n\r\n")
        kind, cut = (
            ("nothing", 0),
            ("half a head", rng.randint(1, head)),
            ("half a body", rng.randint(head + 4, len(content) - 1)),
        )[which % 3]
        client = Client(running.port)
        await client.send(content[:cut])
        try:
            status = str((await asyncio.wait_for(client.answer(), PATIENCE))[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            status = "closed"
        except TimeoutError:
            status = "left waiting"
        client.hang_up()
        ends[f"{kind}: {status}"] += 1
        if status not in ("408", "closed"):  # closed where the server has not come to read what was sent
            wrong.append(f"{kind} was {status}")

    async def meanwhile() -> None:  # others are answered
        request = rows_request(offline, rng)
        client = Client(running.port)
        problem = judged(request, offline, await client.ask(request.content))
        wrong.extend([problem] if problem else [])
        client.hang_up()

    await asyncio.gather(*(work(which) for which in range(count)), *(meanwhile() for _ in range(10)))
    return {"slow_clients": count, "ends": dict(sorted(ends.items())), "wrong": wrong}


def slow(running: Server, offline: Offline, count: int, seed: int = 0) -> dict[str, Any]:
    """Clients that connect and send nothing, half a head or half a body, all at once."""
    return asyncio.run(_slow(running, offline, count, seed))


# --- the end -----------------------------------------------------------------------------------------------------


async def _stopped(running: Server, offline: Offline, n_clients: int, seed: int) -> dict[str, Any]:
    rng, ends, wrong = random.Random(seed), Counter[str](), list[str]()
    answered = 0

    async def work(request: Request) -> None:
        nonlocal answered
        client = Client(running.port)
        try:
            answer = await client.ask(request.content)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            ends["no answer"] += 1
            wrong.append(f"{type(error).__name__}: a request in flight was not answered")
            return
        answered += 1
        ends[str(answer[0])] += 1
        wrong.extend(each for each in [judged(request, offline, answer)] if each)
        client.hang_up()

    async def stop() -> int:
        while answered + await _metric(running.port, "requests_running") - 1 < n_clients:
            await asyncio.sleep(0)
        running.process.send_signal(signal.SIGTERM)
        return n_clients - answered

    some = [[rng.randrange(len(offline.rows)) for _ in range(1000)] for _ in range(n_clients)]
    requests = [
        Request(post("/predict", NPY, body_of(offline.rows[each], NPY, rng)), (200,), "/predict", each) for each in some
    ]
    tasks: list[Awaitable[Any]] = [stop(), *map(work, requests)]
    in_flight = (await asyncio.gather(*tasks))[0]
    code = running.process.wait(PATIENCE)
    if code or running.lines():
        wrong.append(f"exit code {code}, and {running.lines()[:3]} in the log")
    return {"in_flight_at_sigterm": in_flight, "ends": dict(sorted(ends.items())), "wrong": wrong}


def stopped(running: Server, offline: Offline, n_clients: int, seed: int = 0) -> dict[str, Any]:
    """SIGTERM when the requests of all clients have arrived; the server is gone afterwards."""
    return asyncio.run(_stopped(running, offline, n_clients, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="requests")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--without-memory", type=int, default=200, help="requests under a limit on memory")
    parser.add_argument("--slow", type=int, default=300, help="clients that do not finish")
    parser.add_argument("--stops", type=int, default=10, help="times that the server is told to stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where a line of counts is added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, offline = time.monotonic(), Offline()
    parts = []

    def add(run: Callable[..., dict[str, Any]], number: int, *more: int, options: tuple[str, ...] = ()) -> None:
        if not number:
            return
        with server(offline, *options) as running:
            parts.append(run(running, offline, number, *more))

    add(traffic, options.count, options.clients, options.seed)
    add(
        without_memory,
        options.without_memory,
        options.seed,
        options=("--max-rows", "100000", "--max-bytes", "99999999"),
    )
    add(slow, options.slow, options.seed, options=("--seconds-to-send", "2"))
    for number in range(options.stops):
        add(stopped, options.clients, options.seed + number)
    wrong = [each for part in parts for each in part.pop("wrong")]
    line = {"subject": "server", "seed": options.seed, "parts": parts, "wrong": len(wrong)}
    line |= {"seconds": round(time.monotonic() - began)}
    tell(line, options.results, wrong)


if __name__ == "__main__":
    main()
