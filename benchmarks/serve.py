"""The server under load: requests per second and latencies over loopback, beside scikit-learn's MLPClassifier and an
older version of the server.

One JSON line per case: a version, a model, a number of clients that send one request after the other, and rows per
request.  Each server is a process of its own that computes with one thread; the clients are in another process, with
one connection each, and speak plain HTTP/1.1.  All models are behind the same application, and were fitted to
scikit-learn's digits, `EnergyClassifier` with the units that were or are the default, for a few epochs.  The older
version is checked out to a temporary folder, and runs without uvloop and httptools, which it did not ask for; it needs
fastapi, which is in benchmarks/peers.txt.

All servers take turns in short rounds, so that whatever else the machine does meets all of them.  ``batch`` is how many
requests were computed together on average, ``cpu_ms`` the time of all threads of the server for one request (Linux):
unlike the others it says little of what else runs.  Clients and server share the machine, and on few cores the clients
take a good part of it.  At the end come ratios of the rounds: their median, the least and the largest.

    python benchmarks/serve.py [--seconds 6] [--clients 1 8 64] [--rows 1] [--revision f4d2a98] [--out FILE]
"""

import argparse
import asyncio
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from energate import EnergyClassifier
from energate.serving import Operation, Served, Settings, open_socket, serve, serve_model
from energate.serving.operations import RowsOf
from energate.serving.schemas import numbers

HERE = Path(__file__).resolve().parents[1]
BEFORE = "f4d2a98"  # the last version with the server whose numbers were first published
WARM_UP = 0.3  # seconds before anything is counted
ROUNDS = 6
Counts = NDArray[np.float64]  # batches, requests in them, seconds of CPU


# --- servers -----------------------------------------------------------------------------------------------------


def data() -> tuple[Any, Any, Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X[:1200], y[:1200], X[1200:], y[1200:]


def energy_classifier(**options: Any) -> tuple[Served, float]:
    X, y, X_test, y_test = data()
    model = EnergyClassifier(pretrain_epochs=10, max_epochs=20, random_state=0, device="cpu", **options).fit(X, y)
    return serve_model(model), 1 - float(model.score(X_test, y_test))


def perceptron() -> tuple[Served, float]:
    """scikit-learn's network with 100 hidden units behind the same application."""
    X, y, X_test, y_test = data()
    model = make_pipeline(StandardScaler(), MLPClassifier(max_iter=300, random_state=0)).fit(X, y)

    def predict(rows: list[Any]) -> dict[str, Any]:
        probabilities = model.predict_proba(np.asarray(rows))
        return {"predictions": model.classes_[probabilities.argmax(1)], "probabilities": probabilities}

    body = RowsOf(numbers(X.shape[1]), np.asarray, Settings().max_rows).body("Rows")
    fixed = {"classes": model.classes_.tolist()}
    offered = {"predict": Operation("Classes.", body, predict, {"type": "object"}, fixed=fixed)}
    return Served({"estimator": "MLPClassifier"}, offered, X[0].tolist()), 1 - float(model.score(X_test, y_test))


MODELS: dict[str, Callable[[], tuple[Served, float]]] = {
    "EnergyClassifier": energy_classifier,
    "EnergyClassifier, fast": partial(energy_classifier, precision="fast"),
    "EnergyClassifier, mean": partial(energy_classifier, units="mean"),
    "MLPClassifier": perceptron,
}
#: version, model
CASES = [*product(["now"], MODELS), *product(["before"], ["EnergyClassifier", "MLPClassifier"])]
#: what is compared: how many times as many requests the first answers
RATIOS = [
    (("now", "EnergyClassifier"), ("before", "EnergyClassifier")),
    (("now", "MLPClassifier"), ("before", "MLPClassifier")),
    *((("now", name), ("now", "MLPClassifier")) for name in MODELS if name != "MLPClassifier"),
]


def run_server(version: str, name: str) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    if version == "before":
        sys.modules |= {"uvloop": None, "httptools": None}  # type: ignore[dict-item]
    with threadpool_limits(1):
        served, error = MODELS[name]()
        listening = open_socket("127.0.0.1", 0)
        print(json.dumps([listening.getsockname()[1], error]), flush=True)
        serve(served, Settings(), listening)


class Server(NamedTuple):
    pid: int
    port: int
    error: float  # of the model, on rows it was not fitted to

    def counts(self) -> Counts:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = dict(re.findall(r"^energate_(batches|batched_requests)_total (\S+)$", text, re.MULTILINE))
        # Nanoseconds of every thread: ticks of the clock are too coarse for a short round.
        threads = [each.read_text().split()[0] for each in Path(f"/proc/{self.pid}/task").glob("*/schedstat")]
        return np.array([float(found["batches"]), float(found["batched_requests"]), sum(map(int, threads)) / 1e9])


@contextmanager
def server(source: Path, version: str, name: str) -> Iterator[Server]:
    """A server in a process of its own, by the code in a folder."""
    command = [sys.executable, "-W", "ignore", __file__, "--serve", version, name]
    env = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            started = process.stdout.readline()
            if not started:
                raise SystemExit(f"The server ({version}) did not start; what it needs is in benchmarks/peers.txt.")
            yield Server(process.pid, *json.loads(started))
        finally:
            process.terminate()


def checkout(revision: str, folder: str) -> Path:
    """The code of a revision."""
    found = subprocess.run(["git", "archive", revision], cwd=HERE, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder)


# --- clients -----------------------------------------------------------------------------------------------------


def request(rows: Any) -> bytes:
    body = json.dumps({"rows": rows.tolist()}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client(asyncio.Protocol):
    """Sends one request after the other; the times of those that began after the warm-up."""

    def __init__(self, content: bytes, begin: float, end: float) -> None:
        self.content, self.begin, self.end = content, begin, end
        self.times: list[float] = []
        self.done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.start, self.answer = time.perf_counter(), b""
        self.transport.write(self.content)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        head, _, body = self.answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if length is None or len(body) < int(length[1]):
            return
        now = time.perf_counter()
        if self.start >= self.begin:
            self.times.append(now - self.start)
        if not head.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(RuntimeError(f"Unexpected answer: {self.answer!r}"))
        elif now < self.end:
            self.ask()
        else:
            self.transport.close()
            self.done.set_result(self.times)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or RuntimeError("The server hung up."))


async def load(port: int, n_clients: int, n_rows: int, seconds: float) -> list[float]:
    X, loop = data()[2], asyncio.get_running_loop()
    some = [request(X[number : number + n_rows]) for number in range(n_clients)]
    begin = time.perf_counter() + WARM_UP

    async def one(content: bytes) -> list[float]:
        client = (await loop.create_connection(lambda: Client(content, begin, begin + seconds), "127.0.0.1", port))[1]
        return await client.done

    return [each for times in await asyncio.gather(*map(one, some)) for each in times]


def asked(work: Coroutine[Any, Any, list[float]]) -> list[float]:
    """Clients leave more of the machine to the server with uvloop, which the extra ``serve`` brings."""
    import uvloop

    return list(uvloop.run(work))


def measured(each: Server, n_clients: int, n_rows: int, seconds: float) -> tuple[list[float], Counts]:
    """The times of requests, and what the server counted meanwhile."""
    before = each.counts()
    times = asked(load(each.port, n_clients, n_rows, seconds))
    return times, each.counts() - before


# --- what comes out ----------------------------------------------------------------------------------------------


def line(found: list[tuple[list[float], Counts]], seconds: float) -> dict[str, Any]:
    """All rounds of a case together."""
    times = np.concatenate([times for times, _ in found])
    batches, requests, cpu = np.sum([counts for _, counts in found], axis=0)
    p50, p95, p99 = (round(1000 * float(value), 2) for value in np.percentile(times, [50, 95, 99]))
    said: dict[str, Any] = {"requests": len(times), "requests_per_second": round(len(times) / seconds, 1)}
    said |= {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "cpu_ms": round(1000 * cpu / requests, 3)}
    said |= {"batch": round(requests / batches, 2), "machine": platform.machine(), "cores": os.cpu_count()}
    return said | {"python": platform.python_version()}


def ratio(first: list[tuple[list[float], Counts]], second: list[tuple[list[float], Counts]]) -> dict[str, Any]:
    """Requests per second, and requests per second of CPU, of the first by those of the second, round by round."""
    rates = [[[len(times), counts[1] / counts[2]] for times, counts in found] for found in (first, second)]
    found = np.divide(*map(np.array, rates))  # (rounds, 2)
    kinds = np.median(found, 0), found.min(0), found.max(0)
    names = "requests_per_second", "requests_per_cpu_second"
    return {name: [round(float(values[place]), 2) for values in kinds] for place, name in enumerate(names)}


def main(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        sources = {
            "now": HERE,
            "before": checkout(options.revision, stack.enter_context(tempfile.TemporaryDirectory())),
        }
        servers = {case: stack.enter_context(server(sources[case[0]], *case)) for case in CASES}
        versions, lines = {"now": "now", "before": options.revision}, []
        for n_rows, n_clients in product(options.rows, options.clients):
            rounds: dict[tuple[str, str], list[Any]] = {case: [] for case in CASES}
            for _, case in product(range(ROUNDS), CASES):
                rounds[case].append(measured(servers[case], n_clients, n_rows, options.seconds / ROUNDS))
            what = {"clients": n_clients, "rows": n_rows}
            names = {case: f"{case[1]} ({versions[case[0]]})" for case in CASES}
            for case, found in rounds.items():
                about = {"server": names[case], "error": round(servers[case].error, 4)}
                lines.append(about | what | line(found, options.seconds))
                print(json.dumps(lines[-1]), flush=True)
            for of, to in RATIOS:
                lines.append({"ratio": names[of], "to": names[to]} | what | ratio(rounds[of], rounds[to]))
                print(json.dumps(lines[-1]), flush=True)
        if options.out is not None:
            options.out.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6, help="of each case, in all rounds together")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rows", type=int, nargs="+", default=[1], help="in a request")
    parser.add_argument("--revision", default=BEFORE, help="the older version")
    parser.add_argument("--out", type=Path, help="write the lines to this file, too")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        run_server(*given.serve)
    else:
        main(given)
