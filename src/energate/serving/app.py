"""The application: routes, and what goes wrong in plain words."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from energate import __version__
from energate.errors import InputError
from energate.serving.batching import Batcher, OverloadedError, Work
from energate.serving.bodies import JSON, Answer, answer, bulk_rows
from energate.serving.guards import Keyed, Limited, Observed
from energate.serving.metrics import Metrics
from energate.serving.openapi import document
from energate.serving.operations import Operation
from energate.serving.reference import reference
from energate.serving.schemas import BodyError, parse_rows
from energate.serving.service import Served, Settings

#: open to all, also where there is a key: files that are the same everywhere
OPEN = ("/", "/health", "/page/")
#: the kinds of files that the page has
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
NAMES = {"predict", "score", "refine", "explain", "trajectory", "denoise", "inpaint"}
NAMES |= {"attribute", "complete", "counterfactual", "drift"}
WAITING = 8  # batches of the largest size that may wait


def make_app(served: Served, settings: Settings | None = None) -> Starlette:
    """The ASGI application that offers a model."""
    settings = settings or Settings()
    metrics, began = Metrics(), round(time.time(), 3)
    # A thread that has not set it computes with all cores, whatever was set elsewhere: they wait for each other then.
    one_number = partial(torch.set_num_threads, torch.get_num_threads())
    batcher = Batcher(settings.max_rows, WAITING * settings.max_rows, one_number)
    keyed = settings.api_key is not None
    schema = document(served, keyed=keyed)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()

    async def health(_: Request) -> Response:
        return Answer({"status": "ok", "energate": __version__, "needs_key": keyed})

    async def model(_: Request) -> Response:
        return Answer(served.about)

    async def numbers(_: Request) -> Response:
        counts = batcher.counts
        text = metrics.text(
            [
                ("batches_total", "counter", "Batches computed.", counts.batches),
                ("batched_requests_total", "counter", "Requests computed in batches.", counts.requests),
                ("batched_rows_total", "counter", "Rows computed in batches.", counts.rows),
                ("rows_waiting", "gauge", "Rows that wait for a batch.", batcher.n_waiting),
                ("start_time_seconds", "gauge", "When the server started, in seconds since 1970.", began),
            ]
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def paths(_: Request) -> Response:
        return Answer(schema)

    async def docs(request: Request) -> Response:
        return HTMLResponse(reference(schema, str(request.base_url), keyed=keyed))

    async def index(_: Request) -> Response:
        return _file("index.html")

    async def page(request: Request) -> Response:
        return _file(request.path_params["path"])

    asked = {f"/{name}": _endpoint(name, each, batcher) for name, each in served.operations.items()}
    told = {"/health": health, "/model": model, "/metrics": numbers, "/openapi.json": paths, "/docs": docs, "/": index}
    absent = sorted(NAMES - served.operations.keys())
    routes = [
        Route(path, endpoint, methods=["POST"]) for path, endpoint in asked.items()
    ]  # in a hurry: these are first
    routes += [Route(path, endpoint) for path, endpoint in told.items()]
    routes += [Route("/page/{path:path}", page)]
    routes += [Route(f"/{name}", _absent(name, served), methods=["POST"]) for name in absent]
    # What is refused is counted, and nobody without the key makes the server read.
    guards = [
        Middleware(Observed, metrics=metrics, paths={*asked, *told}),
        Middleware(Keyed, key=settings.api_key, open_paths=OPEN),
        Middleware(Limited, max_bytes=settings.max_bytes, seconds=settings.seconds_to_send),
    ]
    return Starlette(routes=routes, middleware=guards, exception_handlers=HANDLERS, lifespan=lifespan)


Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def _endpoint(name: str, operation: Operation, batcher: Batcher) -> Endpoint:
    """What answers at the path of an operation."""
    work = Work(name, operation.compute, operation.alone)

    async def endpoint(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        content = await request.body()
        if kind == JSON:
            fields, n_rows = parse_rows(operation.body, content)
            carried = operation.carried(fields.get("rows", []))
        else:
            fields, carried = bulk_rows(operation.bulk, kind, content, operation.most), {}
            n_rows = len(fields["rows"])
        found = await batcher.submit(work, fields, n_rows)
        return answer({**found, **operation.fixed, **carried}, request.headers)

    return endpoint


def _absent(name: str, served: Served) -> Endpoint:
    """What says what there is, where other models have an operation."""
    offered = ", ".join(f"/{each}" for each in served.operations)

    async def absent(_: Request) -> Response:
        raise HTTPException(404, f"{served.about['estimator']} models have no /{name}; this one has {offered}.")

    return absent


def _file(name: str) -> Response:
    """A file of the page, and of nothing else: it is looked up in a list of them, not in the file system."""
    folder = Path(str(files("energate.serving"))) / "page"
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix in MEDIA_TYPES}
    if name not in found:
        raise HTTPException(404, "There is no such page.")
    return FileResponse(found[name], media_type=MEDIA_TYPES[found[name].suffix], headers={"cache-control": "no-cache"})


# --- errors ------------------------------------------------------------------------------------------------------


Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


async def _refused(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404 and error.detail == "Not Found":
        return Answer({"detail": f"There is nothing at {request.url.path}. /docs lists what there is."}, 404)
    return Answer({"detail": str(error.detail)}, error.status_code, headers=error.headers)


async def _wrong_body(_: Request, error: BodyError) -> Response:
    return Answer({"detail": error.detail}, error.status)


async def _wrong_input(_: Request, error: InputError) -> Response:
    return Answer({"detail": " ".join(str(error).split())}, 422)


async def _overloaded(_: Request, __: OverloadedError) -> Response:
    return Answer({"detail": "Too much is waiting already. Try again in a moment."}, 503, headers={"retry-after": "1"})


async def _broken(_: Request, __: Exception) -> Response:
    # uvicorn writes the trace to the log, and closes the connection.
    detail = "Something went wrong in the server; its log says what."
    return Answer({"detail": detail}, 500, headers={"connection": "close"})


HANDLERS: dict[type[Exception], Handler] = {
    HTTPException: _refused,
    BodyError: _wrong_body,
    InputError: _wrong_input,
    OverloadedError: _overloaded,
    Exception: _broken,
}
