"""A saved model behind HTTP: rows in, answers out, requests that arrive together computed together.

`serve` runs until it is told to stop; `make_app` gives the application alone, for any ASGI server.  Takes the extra
``serve``.
"""

from energate.errors import require

for _needed in ("starlette", "orjson"):  # everything below needs them, and this says how to get them
    require(_needed, "serve")

from energate.serving.app import make_app  # noqa: E402
from energate.serving.operations import Operation  # noqa: E402
from energate.serving.running import digits_model, is_local, open_socket, serve, serve_in_processes, url  # noqa: E402
from energate.serving.service import Served, Settings, examples_beside, load_served, serve_model  # noqa: E402

__all__ = [
    "Operation",
    "Served",
    "Settings",
    "digits_model",
    "examples_beside",
    "is_local",
    "load_served",
    "make_app",
    "open_socket",
    "serve",
    "serve_in_processes",
    "serve_model",
    "url",
]
