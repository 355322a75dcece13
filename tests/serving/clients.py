"""What tests of the server share: a client of one that runs in a thread."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
httpx = pytest.importorskip("httpx", reason="httpx asks the server")
uvicorn = pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")

from energate import serving  # noqa: E402
from energate.serving.service import Settings  # noqa: E402


@contextlib.contextmanager
def served(offered: serving.Served, settings: Settings | None = None) -> Iterator[Any]:
    """A client of a server in a thread, over loopback."""
    listening = serving.open_socket("127.0.0.1", 0)
    config = uvicorn.Config(serving.make_app(offered, settings), log_config=None, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=serving.url(listening), timeout=30, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
    assert not thread.is_alive()
