"""The server as a process: which address, which model, and how it ends."""

import gc
import ipaddress
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

from energate.errors import InputError, require
from energate.serving.app import make_app
from energate.serving.heads import impatient
from energate.serving.service import Served, Settings

BACKLOG = 2048
SECONDS_TO_FINISH = 30  # for requests that run when the server is told to stop
SECONDS_TO_LIVE = 10  # a worker that ends sooner would end again


def digits_model() -> Path:
    """Where the model lies that comes with energate."""
    path = Path(str(files("energate"))) / "models" / "digits.zip"
    if not path.exists():
        raise InputError(
            "This copy of energate comes without its digits model. Name a saved model: energate serve MODEL."
        )
    return path


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(
            f"`host` must be an address of this machine, such as 127.0.0.1; got {host!r} ({error})."
        ) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        raise InputError(
            f"Cannot listen at {host}, port {port}: {why}. Choose another --port (0 takes a free one) or --host."
        ) from error
    return listening


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can reach a socket."""
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def url(listening: socket.socket) -> str:
    """The address for a browser on this machine."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(served: Served, settings: Settings) -> Any:
    """The server of uvicorn, before it runs."""
    uvicorn, auto = require("uvicorn", "serve"), require("uvicorn.protocols.http.auto", "serve")
    config = uvicorn.Config(
        make_app(served, settings),
        http=impatient(auto.AutoHTTPProtocol, settings.seconds_to_send),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        lifespan="on",
    )
    return uvicorn.Server(config)


def serve(served: Served, settings: Settings, listening: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM; those that run then are finished first."""
    server = make_server(served, settings)

    def stop() -> None:
        server.should_exit = True

    # What is loaded by now stays: to look through all of it for garbage would stop everybody for a tenth of a second.
    gc.collect()
    gc.freeze()
    # uvicorn puts its own handlers over these, and hands the signal on when it is done: to end by a signal would look
    # like a failure to whoever started the server.
    with _told_to_stop(stop):
        server.run(sockets=[listening])


def serve_in_processes(
    load: Callable[[], Served], settings: Settings, listening: socket.socket, n_processes: int
) -> None:
    """The same in several processes, each of which loads the model and takes requests from the same socket.

    ``load`` must be picklable.  A process that dies is replaced, unless it dies at once: then all end, with an error.
    """
    spawn = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    stopping = False

    def start() -> tuple[SpawnProcess, float]:
        process = spawn.Process(target=_work, args=(load, settings, listening))
        process.start()
        return process, time.monotonic()

    def stop() -> None:
        nonlocal stopping
        stopping = True

    with _told_to_stop(stop):
        running = [start() for _ in range(n_processes)]
        try:
            while not stopping:
                wait([process.sentinel for process, _ in running], timeout=0.2)
                for place, (process, began) in enumerate(running):
                    if stopping or process.is_alive():
                        continue
                    if time.monotonic() - began < SECONDS_TO_LIVE:
                        raise InputError(
                            f"A process of the server ended by itself, with exit code {process.exitcode}; what it "
                            "wrote says why. With fewer --workers there is more memory for each."
                        )
                    running[place] = start()
        finally:
            for process, _ in running:
                process.terminate()
            for process, _ in running:
                process.join(SECONDS_TO_FINISH)


def _work(load: Callable[[], Served], settings: Settings, listening: socket.socket) -> None:
    with _told_to_stop(_exit):  # uvicorn takes over once it runs
        served = load()
    serve(served, settings, listening)


def _exit() -> None:
    raise SystemExit(0)


@contextmanager
def _told_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at SIGINT and SIGTERM meanwhile."""

    def handler(_: int, __: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)
