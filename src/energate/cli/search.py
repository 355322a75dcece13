"""`energate search`: good parameters of a classifier for a table, and the model that they make."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from energate.cli._shell import Data, Device, Json, Part, output, plainly, say, show, split, table
from energate.cli.evaluate import figures
from energate.cli.fit import card_of, keep_model
from energate.files import check_output

_SHOWN = 5  # of the trials


@plainly("No model was written; with --storage the search goes on where it was.")
def search(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COL", help="The column with the classes.")],
    model: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="MODEL", help="A folder, or a .zip; DATA-model.zip.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Settings to try.")] = 16,
    units: Annotated[
        Literal["trunk", "mean", "covariance", "mean-covariance"], typer.Option(help="The hidden units.")
    ] = "trunk",
    objective: Annotated[Literal["log_loss", "error"], typer.Option(help="What to make small.")] = "log_loss",
    storage: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An SQLite file, or a *.journal: a search goes on from it, or shares it."),
    ] = None,
    engine: Annotated[Literal["serial", "ray"], typer.Option(help="Who trains.")] = "serial",
    workers: Annotated[int | None, typer.Option(min=1, help="Of --engine ray: how many.")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of --engine ray: a cluster; auto finds one.")
    ] = None,
    gpus_per_worker: Annotated[float, typer.Option(min=0.0, help="Of --engine ray: GPUs of each worker.")] = 0.0,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Begin no trial after so many.")] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="A,B", help="Columns to leave out.")] = None,
    part: Part = "train",
    test_fraction: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="The share of rows that the search does not see, to measure on.")
    ] = 0.2,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of each stage of training.")] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Look for good parameters of a classifier, on rows that it holds out itself, and save the best one.

    Rows that no trial has seen measure the result.  Takes `pip install 'energate[tune]'`.

    Example: energate search flowers.csv --target kind -n 32 -o flowers.zip
    """
    from energate.persistence import check_path
    from energate.tuning import search as look
    from energate.views.fitting import fit_table

    path, found = model or Path(f"{data.stem}-model.zip"), list[Any]()
    check_path(path)
    check_output(card_of(path), [data])

    def fit(estimator: Any, rows: Any, y: Any) -> Any:
        timeout = None if minutes is None else 60 * minutes
        options: dict[str, Any] = {"n_trials": trials, "objective": objective, "storage": storage, "timeout": timeout}
        options |= {"engine": engine, "workers": workers, "address": address, "gpus_per_worker": gpus_per_worker}
        found.append(look(estimator, rows, y, **options))
        return found[-1].best_estimator

    how: dict[str, Any] = {"part": part, "test_fraction": test_fraction, "epochs": epochs, "device": device}
    fitted = fit_table(data, target, drop=split(drop) or (), random_state=seed, units=units, fit=fit, **how)
    keep_model(fitted, path, data.name, card=True)
    result = found[0]
    for note in fitted.notes:
        say(f"Note: {note}", "yellow")
    best = sorted((trial for trial in result.trials if trial.value is not None), key=lambda trial: trial.value)
    if as_json:
        told = [{"number": trial.number, "value": trial.value, "parameters": trial.params} for trial in best]
        summary = {"model": str(path), "objective": objective, "best": result.best_params, "value": result.best_value}
        typer.echo(json.dumps({**summary, "trials": told, "held_out": fitted.held_out or None}, indent=2))
        return
    console = output()
    console.print(f"{data.name}: {len(result.trials)} trials; the best by {objective} of rows held out:")
    lines = table("trial", objective, "parameters", right=("trial", objective))
    for trial in best[:_SHOWN]:
        words = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
        lines.add_row(f"{trial.number}", f"{trial.value:.4f}", words)
    show(lines)
    if fitted.held_out:
        console.print(f"On {fitted.held_out['rows']:,} rows that no trial has seen:")
        numbers = table("", "", right=())
        for words, value in figures(fitted.held_out):
            numbers.add_row(f"  {words}", value)
        show(numbers)
    console.print(f"wrote {path}; {fitted.seconds:.1f} s in all", soft_wrap=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
