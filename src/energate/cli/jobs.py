"""`energate jobs`: how far a job over many files is."""

import json
from pathlib import Path
from typing import Annotated

import typer

from energate.cli._shell import Json, output, plainly, show, table

app = typer.Typer(help="Jobs over many files: how far they are.", no_args_is_help=True)


@app.callback()
def _jobs() -> None:
    pass


@app.command()
@plainly("Nothing was changed.")
def status(
    folder: Annotated[Path, typer.Argument(metavar="OUT_FOLDER", help="What -o named.")], as_json: Json = False
) -> None:
    """Show which parts of a job are there, and how many rows they have.

    Example: energate jobs status scored
    """
    from energate.jobs import job_status

    found = job_status(folder)
    if as_json:
        typer.echo(json.dumps(vars(found), indent=2))
        return
    filled = table("", "")
    filled.add_row("command", found.job["command"])
    filled.add_row("model", found.job["model"][:12])
    filled.add_row("input files", f"{len(found.job['inputs']):,}")
    filled.add_row("parts", f"{found.n_done:,} of {found.n_tasks:,}")
    filled.add_row("rows", f"{found.n_rows:,}")
    filled.add_row("rows left out", f"{found.n_skipped:,}")
    if found.damaged:
        filled.add_row("to be made again", ", ".join(found.damaged[:5]) + (" ..." if len(found.damaged) > 5 else ""))
    show(filled)
    output().print("complete" if found.closed else "not complete: run the same command again to go on")
