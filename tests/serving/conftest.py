"""Servers and pages, for the tests of the page: modules have a fixture `models`, from names to saved models."""

import importlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, settle

from energate import load
from energate.persistence import read_columns

WAIT = 15_000  # ms, for a machine that does other things, too


@pytest.fixture(scope="module")
def address(models: dict[str, Path]) -> Iterator[Callable[..., str]]:
    """The address of a server of one of the models that a test module has; started when first asked for."""
    serving, uvicorn = importlib.import_module("energate.serving"), importlib.import_module("uvicorn")
    running: dict[Any, tuple[Any, threading.Thread, str]] = {}

    def start(name: str, key: str | None = None) -> str:
        if (name, key) not in running:
            settings = serving.Settings(api_key=key)
            path = models[name]
            model = load(path, base=None) if name == "scores" else load(path)
            examples = serving.examples_beside(path)
            served = serving.serve_model(model, read_columns(path), examples, settings, path.name)
            app = serving.make_app(served, settings)
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.02)
            running[name, key] = server, thread, f"http://127.0.0.1:{listening.getsockname()[1]}/"
        return running[name, key][2]

    yield start
    for server, thread, _ in running.values():
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()


@pytest.fixture
def visit(browser: Any, address: Callable[..., str]) -> Iterator[Callable[..., Any]]:
    """Open the page of a model; at the end nothing may have gone wrong in it, or have been asked of anybody else."""
    opened, wrong, asked = [], [], []

    def open_page(name: str, key: str | None = None, ready: bool = True) -> Any:
        page = browser.new_page(viewport={"width": 1200, "height": 844}, color_scheme="light")
        page.set_default_timeout(WAIT)
        opened.append(page)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: "Security Policy" in line.text and wrong.append(line.text))
        home = address(name, key)
        page.on("request", lambda request: asked.append((request.url, home)))
        page.goto(home)
        if ready:
            settle(page)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert wrong == []
    assert asked
    assert [url for url, home in asked if not url.startswith(home)] == []
