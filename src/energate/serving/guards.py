"""What stands before the application: counting, the key, and limits on what a client sends."""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from energate.serving.metrics import Metrics
from energate.serving.schemas import shown

#: nothing of the page comes from elsewhere, and nobody guesses types
SAFE = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
NO_MEMORY = "There is not enough memory for this now. Send fewer rows at a time, or try again in a moment."
LOG = logging.getLogger("energate.serving")
_SAFE = [(name.encode(), value.encode()) for name, value in SAFE.items()]


def too_late(seconds: float) -> str:
    """What a client is told that sends too slowly."""
    return f"The request did not arrive within {seconds:g} seconds."


async def refuse(send: Send, status: int, detail: str, *, close: bool = False) -> None:
    """Answer with an error."""
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if close:  # what the client still sends is not read
        headers.append((b"connection", b"close"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b'ApiKey realm="energate", header="X-API-Key"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True)
class Observed:
    """Counts requests with their status and time, adds headers to every answer, and answers where memory is short."""

    app: ASGIApp
    metrics: Metrics
    paths: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, started, lacking = time.perf_counter(), 500, False, False

        async def seen(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                message["headers"] = [*message.get("headers", ()), *_SAFE]
            await send(message)

        self.metrics.running += 1
        try:
            try:
                await self.app(scope, receive, seen)
            except MemoryError:
                lacking = True
            if lacking:  # after the error and all that it held are gone
                LOG.warning("Out of memory at %s %s; the answer was 503.", scope["method"], shown(scope["path"]))
                if not started:
                    await refuse(seen, 503, NO_MEMORY)
        finally:
            self.metrics.running -= 1
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.add(path, status, time.perf_counter() - began)


@dataclass(frozen=True)
class Keyed:
    """Lets in only those who send the key, except to some paths; ``key=None`` lets everybody in."""

    app: ASGIApp
    key: str | None
    open_paths: tuple[str, ...] = ()  # one that ends in a slash stands for all below it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.key is None or self._is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-api-key", "")
        # In constant time: how long a comparison takes must not tell how much of the key was right.
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            word = "wrong" if given else "missing"
            await refuse(send, 401, f"The API key is {word}: send it in the header X-API-Key.", close=True)
            return
        await self.app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return any(
            path == each or (each != "/" and each.endswith("/") and path.startswith(each)) for each in self.open_paths
        )


@dataclass(frozen=True)
class Limited:
    """Reads the whole request, up to a size and within a time, before the application sees it."""

    app: ASGIApp
    max_bytes: int
    seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        too_large = f"A request may have at most {self.max_bytes} bytes. Send fewer rows at a time."
        length = Headers(scope=scope).get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > self.max_bytes:
            await refuse(send, 413, too_large, close=True)
            return
        content, more, full = bytearray(), True, False
        try:
            async with asyncio.timeout(self.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    more = message.get("more_body", False)
                    if not full:  # without memory the rest is read all the same: who still sends hears no answer
                        full = not _add(content, message.get("body", b""))
                    if len(content) > self.max_bytes:
                        await refuse(send, 413, too_large, close=True)
                        return
        except TimeoutError:
            await refuse(send, 408, too_late(self.seconds), close=True)
            return
        if full:
            raise MemoryError
        whole: Message | None = {"type": "http.request", "body": bytes(content), "more_body": False}

        async def replay() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message, whole = whole, None
            return message

        await self.app(scope, replay, send)


def _add(content: bytearray, more: bytes) -> bool:
    """Take in a part of a body; False, and nothing is kept of it, where memory is short."""
    try:
        content += more
    except MemoryError:
        content.clear()
        return False
    return True
