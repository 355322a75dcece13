"""`energate serve`: a saved model behind HTTP, with a page to try it."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from energate.cli._shell import Device, Precision, is_model, loaded, messages, output, plainly, say
from energate.errors import require

if TYPE_CHECKING:
    from energate.serving import Served, Settings


@plainly("The server had not started yet.")
def serve(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="A saved model; the digits model of energate if left out.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ENERGATE_API_KEY", help="Requests must bring it in the header X-API-Key."),
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows in a request, and in a batch.")] = 10_000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes in a request.")] = 16 * 2**20,
    seconds_to_send: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a client to send its request; slower ones are cut off.")
    ] = 30.0,
    device: Device = "auto",
    precision: Precision = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads that compute, in each process.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Processes that answer; each loads the model.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens as JSON, for other programs.")] = False,
) -> None:
    """Serve a saved model over HTTP: a page at /, JSON at /predict, /score, /explain, ..., a reference at /docs.

    Without MODEL it is a model of handwritten digits, to draw on.  Ctrl-C, or SIGTERM, finishes the requests that run,
    and ends with exit code 0.

    Example: energate serve flowers.zip --port 8080
    """
    if model is not None:
        is_model(model)
    require("uvicorn", "serve")
    with messages().status("loading"):
        from energate import serving

        path = serving.digits_model() if model is None else model
        settings = serving.Settings(max_rows, max_bytes, api_key, seconds_to_send)
    load = partial(_load, path, device, precision, threads, settings)
    served = load()
    listening = serving.open_socket(host, port)
    if api_key is None and not serving.is_local(listening):
        say("Warning: whoever reaches this machine can use the model. ENERGATE_API_KEY=... asks for a key.", "yellow")
    if not served.about.get("has_base", True):
        say("Note: this refiner is served without its base: requests bring `scores` with their rows.", "yellow")
    where = serving.url(listening)
    kind = served.about["estimator"]
    if as_json:
        typer.echo(json.dumps({"url": where, "model": str(path), "estimator": kind}))
    else:
        output().print(f"{path} ({kind}) at {where}, until Ctrl-C", soft_wrap=True)
    if workers == 1:
        serving.serve(served, settings, listening)
    else:
        serving.serve_in_processes(load, settings, listening, workers)


def _load(path: Path, device: str, precision: str | None, threads: int, settings: "Settings") -> "Served":
    """What is served, in this process or in one of its own."""
    import torch

    from energate import serving

    torch.set_num_threads(threads)
    known, examples = loaded(path, device, precision), serving.examples_beside(path)
    return serving.serve_model(known.model, known.table.columns, examples, settings, path.name)
