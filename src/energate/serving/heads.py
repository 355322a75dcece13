"""Heads of requests, limited in time and size: the application sees a request only when its head is complete."""

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any

from energate.serving.guards import NO_MEMORY, too_late

MOST = 65_536  # bytes of a request's first line and headers


def impatient(protocol: type, seconds: float) -> type:
    """A protocol of uvicorn that gives a client so many seconds to send a head, from when it connects or begins one.

    uvicorn itself waits for ever, and httptools takes heads of any length.
    """

    class Impatient(protocol):  # type: ignore[misc]
        timer: asyncio.TimerHandle | None = None
        n_bytes = 0  # of a head that is not complete

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # A cycle begins with a complete head, and ends with the answer; a transport that was upgraded is another's.
            inside = self.cycle is not None and not self.cycle.response_complete
            if inside or self.transport.is_closing() or self.transport.get_protocol() is not self:
                self._stop_waiting()
                return
            self.n_bytes += len(data)
            if self.n_bytes > MOST:
                self._end(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The head may have at most {MOST} bytes.")
            elif self.timer is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """What uvicorn answers when its parser fails, which it also does where memory is short."""
            error = sys.exc_info()[1]
            if error is not None and isinstance(error.__cause__ or error.__context__, MemoryError):
                self._end(HTTPStatus.SERVICE_UNAVAILABLE, NO_MEMORY)
            else:
                super().send_400_response(msg)

        def _wait(self) -> None:
            self.timer = asyncio.get_running_loop().call_later(seconds, self._late)

        def _stop_waiting(self) -> None:
            self.n_bytes = 0
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            if self.n_bytes:
                self._end(HTTPStatus.REQUEST_TIMEOUT, too_late(seconds))
            else:  # nobody has asked anything
                self.transport.close()

        def _end(self, status: HTTPStatus, detail: str) -> None:
            if self.transport.is_closing():
                return
            body = json.dumps({"detail": detail}).encode()
            head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\n"
            head += "retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            self.transport.close()

    return Impatient
