"""The server under load: requests per second and latencies over loopback, beside scikit-learn's MLPClassifier.

One JSON line per case: a model, a number of clients that send one request after the other, and rows per request.  Each
server is a process of its own that computes with one thread; the clients are in another process, with one connection
each, and speak plain HTTP/1.1.  Both models are behind the same application, and were fitted to scikit-learn's digits.
They take turns in short rounds, so that whatever else the machine does meets both.  ``batch`` is how many requests were
computed together on average, ``cpu_ms`` the time of all threads of the server for one request (Linux): unlike the
others it says little of what else runs.  Clients and server share the machine, and on few cores the clients take a good
part of it.

    python benchmarks/serve.py [--seconds 6] [--clients 1 8 64] [--rows 1]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
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

WARM_UP = 0.3  # seconds before anything is counted
ROUNDS = 3
Counts = NDArray[np.float64]  # batches, requests in them, seconds of CPU


def data() -> tuple[Any, Any, Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X[:1200], y[:1200], X[1200:], y[1200:]


def energy_classifier(precision: str = "exact") -> tuple[Served, float]:
    X, y, X_test, y_test = data()
    options: dict[str, Any] = {"pretrain_epochs": 10, "max_epochs": 20, "random_state": 0, "device": "cpu"}
    model = EnergyClassifier(precision=precision, **options).fit(X, y)
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
    "EnergyClassifier, fast": partial(energy_classifier, "fast"),
    "MLPClassifier": perceptron,
}


def run_server(name: str, ready: Connection) -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):
        served, error = MODELS[name]()
        listening = open_socket("127.0.0.1", 0)
        ready.send((listening.getsockname()[1], error))
        serve(served, Settings(), listening)


class Server(NamedTuple):
    pid: int
    port: int
    error: float  # of the model, on rows it was not fitted to

    def counts(self) -> Counts:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = dict(re.findall(r"^energate_(batches|batched_requests)_total (\S+)$", text, re.MULTILINE))
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return np.array([float(found["batches"]), float(found["batched_requests"]), seconds])


@contextmanager
def server(name: str) -> Iterator[Server]:
    """A server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_server, args=(name, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(90):
            raise TimeoutError(f"The server of {name} did not start.")
        assert process.pid is not None
        yield Server(process.pid, *ours.recv())
    finally:
        process.terminate()
        process.join(60)


def request(rows: Any) -> bytes:
    body = json.dumps({"rows": rows.tolist()}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def client(port: int, content: bytes, begin: float, end: float) -> list[float]:
    """One request after the other; the times of those that began after the warm-up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    while (start := time.perf_counter()) < end:
        writer.write(content)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"Unexpected answer: {head!r}")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        if start >= begin:
            times.append(time.perf_counter() - start)
    writer.close()
    await writer.wait_closed()
    return times


async def load(port: int, n_clients: int, n_rows: int, seconds: float) -> list[float]:
    X = data()[2]
    begin = time.perf_counter() + WARM_UP
    some = [request(X[number : number + n_rows]) for number in range(n_clients)]
    found = await asyncio.gather(*(client(port, content, begin, begin + seconds) for content in some))
    return [each for times in found for each in times]


def measured(each: Server, n_clients: int, n_rows: int, seconds: float) -> tuple[list[float], Counts]:
    """The times of requests, and what the server counted meanwhile."""
    before = each.counts()
    times = asyncio.run(load(each.port, n_clients, n_rows, seconds))
    return times, each.counts() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6, help="of each case, in all rounds together")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rows", type=int, nargs="+", default=[1], help="in a request")
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server(name)) for name in MODELS}
        for n_rows, n_clients in product(options.rows, options.clients):
            rounds: dict[str, list[Any]] = {name: [] for name in MODELS}
            for _, name in product(range(ROUNDS), MODELS):
                rounds[name].append(measured(servers[name], n_clients, n_rows, options.seconds / ROUNDS))
            for name, found in rounds.items():
                times = np.concatenate([each for each, _ in found])
                batches, requests, cpu = sum(each for _, each in found)
                p50, p95, p99 = (round(1000 * float(value), 2) for value in np.percentile(times, [50, 95, 99]))
                line = {"model": name, "error": round(servers[name].error, 4), "clients": n_clients, "rows": n_rows}
                line |= {"requests": len(times), "requests_per_second": round(len(times) / options.seconds, 1)}
                line |= {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "cpu_ms": round(1000 * cpu / requests, 2)}
                line |= {"batch": round(requests / batches, 2), "machine": platform.machine(), "cores": os.cpu_count()}
                print(json.dumps(line | {"python": platform.python_version()}), flush=True)


if __name__ == "__main__":
    main()
