"""The schema at ``/openapi.json``: the paths of the server, what they take and what they give."""

from typing import Any

from energate import __version__
from energate.serving.bodies import JSON, NPZ
from energate.serving.operations import Operation
from energate.serving.schemas import ERROR, Schema
from energate.serving.service import Served

#: what is not JSON
BINARY: Schema = {"type": "string", "format": "binary"}
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
#: the paths that every server has beside those of its model
ALWAYS = {
    "/health": ("Whether the server runs.", JSON, {"type": "object"}),
    "/model": ("What the model is, and takes.", JSON, {"type": "object"}),
    "/metrics": ("Counts and times, for Prometheus.", "text/plain", {"type": "string"}),
}


def document(served: Served, *, keyed: bool) -> dict[str, Any]:
    """The schema of a server; ``keyed`` says whether it asks for a key."""
    about = {"description": "Requests bring the key in the header X-API-Key; /health needs none."} if keyed else {}
    paths = {f"/{name}": {"post": _operation(name, each, served, keyed)} for name, each in served.operations.items()}
    paths |= {
        path: {"get": {"summary": summary, "operationId": path[1:], "responses": _right({kind: {"schema": schema}})}}
        for path, (summary, kind, schema) in ALWAYS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"energate: {served.about['estimator']}", "version": __version__, **about},
        "paths": paths,
    }


def _operation(name: str, operation: Operation, served: Served, keyed: bool) -> dict[str, Any]:
    row = {"rows": [served.example]} if "rows" in operation.body.model_fields else {"row": served.example}
    example = {**row, **operation.beside}
    content = {JSON: {"schema": operation.body.model_json_schema(), "example": example}}
    content |= {kind: {"schema": BINARY} for kind in operation.bulk}
    wrong = {"content": {JSON: {"schema": ERROR}}}
    errors = {
        str(status): {"description": words, **wrong} for status, words in ERRORS.items() if status != 401 or keyed
    }
    return {
        "summary": operation.about,
        "operationId": name,
        "requestBody": {"required": True, "content": content},
        "responses": _right({JSON: {"schema": operation.returns}, NPZ: {"schema": BINARY}}) | errors,
    }


def _right(content: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "As asked.", "content": content}}
