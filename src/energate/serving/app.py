"""The application: routes, and what goes wrong in plain words."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from energate import __version__
from energate.errors import InputError
from energate.serving.batching import Batcher, OverloadedError, Work
from energate.serving.bodies import JSON, NPZ, Answer, answer, bulk_rows
from energate.serving.guards import Keyed, Limited, Observed
from energate.serving.metrics import Metrics
from energate.serving.operations import Operation
from energate.serving.reference import reference
from energate.serving.schemas import ERROR, BodyError, parse_rows
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


def make_app(served: Served, settings: Settings | None = None) -> FastAPI:
    """The ASGI application that offers a model."""
    settings = settings or Settings()
    metrics, began = Metrics(), round(time.time(), 3)
    # A thread that has not set it computes with all cores, whatever was set elsewhere: they wait for each other then.
    one_number = partial(torch.set_num_threads, torch.get_num_threads())
    batcher = Batcher(settings.max_rows, WAITING * settings.max_rows, one_number)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()

    title = f"energate: {served.about['estimator']}"
    about = "" if settings.api_key is None else "Requests bring the key in the header X-API-Key; /health needs none."
    app = FastAPI(title=title, version=__version__, description=about, docs_url=None, redoc_url=None, lifespan=lifespan)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    for name, operation in served.operations.items():
        _add(app, name, operation, batcher, served, settings)
    for name in sorted(NAMES - served.operations.keys()):
        _add_absent(app, name, served)

    @app.get("/health", summary="Whether the server runs.", responses=_ok({"type": "object"}), response_class=Answer)
    async def health() -> Response:
        return Answer({"status": "ok", "energate": __version__, "needs_key": settings.api_key is not None})

    @app.get(
        "/model", summary="What the model is, and takes.", responses=_ok({"type": "object"}), response_class=Answer
    )
    async def model() -> Response:
        return Answer(served.about)

    @app.get("/metrics", summary="Counts and times, for Prometheus.", response_class=PlainTextResponse)
    async def numbers() -> Response:
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

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(reference(app.openapi(), str(request.base_url), keyed=settings.api_key is not None))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file("index.html")

    @app.get("/page/{path:path}", include_in_schema=False)
    async def page(path: str) -> Response:
        return _file(path)

    paths = {
        "/",
        "/health",
        "/model",
        "/metrics",
        "/docs",
        "/openapi.json",
        *(f"/{name}" for name in served.operations),
    }
    # The last added comes first: what is refused is counted, and nobody without the key makes the server read.
    app.add_middleware(Limited, max_bytes=settings.max_bytes, seconds=settings.seconds_to_send)
    app.add_middleware(Keyed, key=settings.api_key, open_paths=OPEN)
    app.add_middleware(Observed, metrics=metrics, paths=paths)
    return app


#: what is not JSON, for the schema
BINARY = {"type": "string", "format": "binary"}


def _ok(schema: dict[str, Any], *errors: int, archive: bool = False) -> dict[int | str, dict[str, Any]]:
    """The answers of a path, for the schema; ``archive``: also as npz, if the client asks for that."""
    wrong = {"content": {JSON: {"schema": ERROR}}}
    right = {JSON: {"schema": schema}, **({NPZ: {"schema": BINARY}} if archive else {})}
    return {
        200: {"description": "As asked.", "content": right},
        **{status: {"description": ERRORS[status], **wrong} for status in errors},
    }


#: what an error means
ERRORS = {
    400: "The body cannot be read.",
    401: "The key is missing or wrong.",
    408: "The request did not arrive in time.",
    413: "The request is too large.",
    415: "The body is of a kind that is not taken here.",
    422: "The request does not fit the model.",
    503: "Too much is waiting, or there is no memory for it.",
}


def _add(app: FastAPI, name: str, operation: Operation, batcher: Batcher, served: Served, settings: Settings) -> None:
    """Offer an operation at its path."""
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

    row = {"rows": [served.example]} if "rows" in operation.body.model_fields else {"row": served.example}
    example = {**row, **operation.beside}
    content = {JSON: {"schema": operation.body.model_json_schema(), "example": example}}
    content |= {kind: {"schema": BINARY} for kind in operation.bulk}
    errors = [status for status in ERRORS if status != 401 or settings.api_key is not None]
    app.post(
        f"/{name}",
        name=name,
        summary=operation.about,
        response_class=Answer,
        responses=_ok(operation.returns, *errors, archive=True),
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )(endpoint)


def _add_absent(app: FastAPI, name: str, served: Served) -> None:
    """Say what there is, where other models have an operation."""
    offered = ", ".join(f"/{each}" for each in served.operations)

    @app.post(f"/{name}", include_in_schema=False)
    async def absent() -> Response:
        raise HTTPException(404, f"{served.about['estimator']} models have no /{name}; this one has {offered}.")


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
