"""`energate bench` and `energate report`: run the experiments of the tables, and write up what came out."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from energate.cli._shell import output, plainly, say, show, split, table

if TYPE_CHECKING:
    from energate.paper import Summary

_GO_ON = "Finished cells are kept: the same command goes on where it stopped."


@plainly(_GO_ON)
def bench(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="The table to run; --list shows them.")] = "table1",
    profile: Annotated[str, typer.Option(help="How much to run; --list shows the profiles.")] = "quick",
    data: Annotated[list[str] | None, typer.Option(help="Only these data sets: a,b or repeated.")] = None,
    system: Annotated[list[str] | None, typer.Option(help="Only these systems: x,y or repeated.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each cell; the profile's number if left out.")
    ] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where the results are kept.")] = Path("results"),
    source: Annotated[str, typer.Option(help="Where data come from: auto, folder, download or generate.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Cells run at the same time.")] = 1,
    engine: Annotated[
        Literal["serial", "processes", "ray"] | None, typer.Option(help="Who runs them; by --jobs if left out.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of --engine ray: a cluster; auto finds one.")
    ] = None,
    gpus_per_worker: Annotated[float, typer.Option(min=0.0, help="Of --engine ray: GPUs of each worker.")] = 0.0,
    limit: Annotated[float | None, typer.Option(metavar="MINUTES", help="Start no cell after this long.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Show tables and profiles, and run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say how it ended as JSON, for other programs.")] = False,
) -> None:
    """Run the experiments of a table: data sets x systems x seeds, one file of results each.

    Cells that are finished are not run again, and the same command on another machine that sees the folder of results
    shares the work.  The exit code is 1 if cells failed, 2 if the input was wrong.

    Example: energate bench table1 --profile quick --jobs 2
    """
    if listing:
        _show_tables()
        return
    from energate.paper import run

    summary = run(
        name,
        profile=profile,
        data=split(data),
        systems=split(system),
        seeds=seeds,
        results=results,
        source=source,
        device=device,
        jobs=jobs,
        engine=engine,
        address=address,
        gpus_per_worker=gpus_per_worker,
        limit=limit,
    )
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(summary), "results": str(results)}))
    else:
        _show_summary(summary, results)
    if summary.n_failed:
        raise typer.Exit(1)


def _show_tables() -> None:
    from energate.paper import PROFILES, TABLES

    console = output()
    for each in TABLES.values():
        console.print(f"{each.name}: {each.title}", style="bold")
        console.print(f"  data:    {', '.join(each.data)}")
        console.print(f"  systems: {', '.join(each.systems)}")
    rows = table("profile", "what it runs")
    for key, profile in PROFILES.items():
        rows.add_row(key, profile.about)
    console.print()
    show(rows)


def _show_summary(summary: "Summary", results: Path) -> None:
    counts = {
        "done": summary.n_done,
        "there already": summary.n_skipped,
        "failed": summary.n_failed,
        "left": summary.n_left,
    }
    console = output()
    console.print(
        f"Cells: {', '.join(f'{count} {word}' for word, count in counts.items())}; {duration(summary.seconds)}."
    )
    for line in summary.failed:
        say(f"failed: {line}", "red")
    if summary.n_left:
        console.print("The time limit came first: the same command goes on where it stopped.")
    if summary.n_done or summary.n_skipped:
        console.print(f"Write the report with: energate report {shlex.quote(str(results))}", soft_wrap=True)


def duration(seconds: float) -> str:
    """A time in words, to the second: "3 min 2 s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    words = [f"{hours} h" if hours else "", f"{minutes} min" if minutes or hours else "", f"{rest} s"]
    return " ".join(word for word in words[: 2 if hours else 3] if word)


@plainly("Nothing is half-written: the same command writes the report anew.")
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder that `energate bench` filled.")],
    output_: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page; Markdown and CSV go beside it.")
    ] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Say what was written as JSON, for other programs.")] = False,
) -> None:
    """Write a report of all results in a folder: one page in HTML, tables in Markdown and CSV.

    Example: energate report results --output report.html
    """
    from energate.paper import write_report

    written = write_report(results, output_)
    if as_json:
        typer.echo(json.dumps({kind: str(path) for kind, path in written.items()}))
        return
    for kind, path in written.items():
        output().print(f"{kind}: {path}", soft_wrap=True)
