"""The command line.  Every command imports what it needs when it runs, so that help comes at once."""

from typing import Annotated

import typer

from energate import __version__
from energate.cli import bench, data

app = typer.Typer(
    name="energate",
    help="Exact energies from auto-encoders: data sets, experiments and reports.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # errors a user can mend are one line; others are bugs, and want a whole trace
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.command()(bench.bench)
app.command()(bench.report)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"energate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; it ends the process with 0, 1 (some cells failed), 2 (bad input) or 130 (Ctrl-C)."""
    app(prog_name="energate")
