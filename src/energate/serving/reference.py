"""The page at ``/docs``: the paths of the server, from its own schema, without anything from elsewhere."""

import html
import json
from typing import Any

LONGEST = 400  # characters of an example


def reference(schema: dict[str, Any], address: str, *, keyed: bool = False) -> str:
    """The page, as HTML; ``address`` is that of the server, and ``keyed`` says whether it asks for a key."""
    title = html.escape(schema["info"]["title"])
    # A browser that follows a link brings no key.
    there = "<code>/openapi.json</code>" if keyed else "<a href=openapi.json>/openapi.json</a>"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
        "<meta name=viewport content='width=device-width'><link rel=icon href=page/icon.svg>",
        f"<link rel=stylesheet href=page/docs.css><main><h1>{title}</h1>",
        f'<p>energate {html.escape(schema["info"]["version"])}. Errors are <code>{{"detail": text}}</code>. ',
        html.escape(schema["info"].get("description", "")),
        f" The schema is at {there}, a page to try the model at <a href='./'>/</a>.</p>",
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts += _operation(address.rstrip("/") + path, path, method.upper(), operation, keyed)
    return "\n".join([*parts, "</main></html>"])


def _operation(address: str, path: str, method: str, operation: dict[str, Any], keyed: bool) -> list[str]:
    parts = [f"<h2 id='{html.escape(path.strip('/'))}'>{method} <code>{html.escape(path)}</code></h2>"]
    parts.append(f"<p>{html.escape(operation.get('summary', ''))}</p>")
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        body = json.dumps(content["example"])
        # A quote ends the text of a shell; '\\'' is one inside it.
        shown = body.replace("'", "'\\''") if len(body) <= LONGEST else body[:LONGEST] + " ..."
        key = '-H "X-API-Key: $ENERGATE_API_KEY" ' if keyed else ""
        command = f"curl {key}-H 'Content-Type: application/json' -d '{shown}' {address}"
        parts.append(f"<pre>{html.escape(command)}</pre>")
        parts.append(_details("what it takes", content["schema"]))
    answers = operation.get("responses", {})
    given = answers.get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    if given is not None:
        parts.append(_details("what it gives", given))
    errors = [f"<tr><td>{code}<td>{html.escape(each['description'])}" for code, each in answers.items() if code >= "4"]
    if errors:
        parts.append(f"<details><summary>errors</summary><table>{''.join(errors)}</table></details>")
    return parts


def _details(title: str, schema: dict[str, Any]) -> str:
    return f"<details><summary>{title}</summary><pre>{html.escape(json.dumps(schema, indent=1))}</pre></details>"
