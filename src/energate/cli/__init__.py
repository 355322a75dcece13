"""The command line.  Every command imports what it needs when it runs, so that help comes at once."""

from collections.abc import Callable
from typing import Annotated

import typer

from energate import __version__
from energate.cli import apply, bench, data, evaluate, fit, inspect, jobs, pictures, questions, search, serve
from energate.cli._shell import PlainCommand, PlainGroup

app = typer.Typer(
    name="energate",
    help="Exact energies from auto-encoders: train on a table, predict, score, refine, look inside, serve; "
    "and the paper's experiments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # errors a user can mend are one line; others are bugs, and want a whole trace
    context_settings={"help_option_names": ["-h", "--help"]},
)
_MODELS, _PAPER = "Models", "Data and experiments"
_ABOUT_MODELS: tuple[Callable[..., None], ...] = (
    *(fit.fit, apply.predict, apply.score, apply.refine, pictures.denoise, pictures.inpaint),
    *(questions.impute, questions.audit, questions.drift, questions.importance),
    *(evaluate.evaluate, evaluate.info, search.search),
    *(inspect.check, inspect.explain, inspect.export, serve.serve),
)
for _command in _ABOUT_MODELS:
    app.command(rich_help_panel=_MODELS)(_command)
app.add_typer(jobs.app, name="jobs", rich_help_panel=_MODELS)
app.add_typer(data.app, name="data", rich_help_panel=_PAPER)
app.command(rich_help_panel=_PAPER)(bench.bench)
app.command(rich_help_panel=_PAPER)(bench.report)


for _typer in (app, data.app, jobs.app):
    _typer.info.cls = PlainGroup
    for _registered in _typer.registered_commands:
        _registered.cls = PlainCommand


def _version(wanted: bool) -> None:
    if wanted:
        import platform

        import torch

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        python = platform.python_version()
        typer.echo(f"energate {__version__} (Python {python}, torch {torch.__version__}, device {device})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show versions and the device, and stop."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; it ends the process with 0, 1 (cells failed, or not conservative), 2 (bad input) or 130."""
    app(prog_name="energate")
