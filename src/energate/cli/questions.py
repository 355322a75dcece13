"""`energate impute`, `audit`, `drift` and `importance`: questions about tables."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from energate.cli._shell import (
    Data,
    Device,
    Json,
    Model,
    Part,
    check_picture,
    is_model,
    loaded,
    messages,
    opened,
    output,
    plainly,
    save_picture,
    say,
    show,
    table,
)
from energate.errors import InputError

DRIFTED = 3  # the exit code


@plainly("Nothing was written; a file that was there is as it was.")
def impute(
    data: Data,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")],
    fit_on: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A table to learn from, in place of DATA itself.")
    ] = None,
    units: Annotated[
        Literal["memory", "mean", "covariance", "mean-covariance"], typer.Option(help="The hidden units.")
    ] = "memory",
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="A saved EnergyImputer, which has learned already.")
    ] = None,
    save_as: Annotated[
        Path | None, typer.Option("--save", metavar="MODEL", help="Keep what was learned, for --model.")
    ] = None,
    part: Part = "train",
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Fill the missing cells of a table with what belongs there, given the other cells of the row.

    Cells that are there stay as they are, and categories become categories.

    Example: energate impute passengers.csv -o whole.csv
    """
    if model is not None and (fit_on is not None or save_as is not None):
        raise InputError("--model has learned already: leave out --fit-on and --save.")
    from energate.persistence import check_path, save
    from energate.persistence.loaded import load_imputer
    from energate.questions.tabular import impute_table

    if save_as is not None:
        check_path(save_as)
    with messages().status(f"{data.name}: filling"):
        known = None if model is None else load_imputer(model, device)
        options = {"units": units, "device": device, "random_state": seed} if known is None else {}
        done = impute_table(data, out, part=part, fit_on=fit_on, known=known, **options)
    if save_as is not None:
        save(done.imputer, save_as, columns=done.columns)
    for note in [] if as_json else done.notes:
        say(f"Note: {note}", "yellow")
    if as_json:
        found = {"output": str(out), "rows": done.n_rows, "filled": done.filled, "notes": done.notes}
        typer.echo(json.dumps(found, indent=2))
        return
    n_cells = sum(done.filled.values())
    where = ", ".join(f"{name} {count:,}" for name, count in done.filled.items()) or "no cell was missing"
    output().print(f"wrote {out}: {done.n_rows:,} rows, {n_cells:,} cells filled: {where}", soft_wrap=True)


@plainly("Nothing was written.")
def audit(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COL", help="The column with the classes.")],
    top: Annotated[int, typer.Option(min=1, help="How many rows to show, the most suspicious first.")] = 20,
    units: Annotated[
        Literal["memory", "trunk", "mean", "covariance", "mean-covariance"],
        typer.Option(help="The hidden units: memory is quick, trunk takes longer and is sharper."),
    ] = "memory",
    folds: Annotated[int, typer.Option(min=2, help="Every row is judged by a model of the other folds.")] = 5,
    part: Part = "train",
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Rank the rows of a table by how wrong their class looks to models that have not seen them.

    The score is the log-odds of the class that is given against the best other one; rows count from 1.

    Example: energate audit flowers.csv --target kind --top 10
    """
    from energate.questions.tabular import audit_table

    with messages().status(f"{data.name}: fitting {folds} models"):
        found = audit_table(data, target, part=part, units=units, cv=folds, device=device, random_state=seed)
    errors = found.errors
    rows = [
        {
            "row": int(i) + 1,
            "given": str(found.classes[i]),
            "suggested": str(errors.suggested[i]) if errors.suggested is not None else "",
            "score": float(errors.scores[i]),
            "p_value": float(errors.p_values[i]),
        }
        for i in errors.order[:top].tolist()
    ]
    if as_json:
        typer.echo(json.dumps({"data": str(data), "rows": rows, "notes": found.notes}, indent=2))
        return
    lines = table("row", "given", "suggested", "score", "p-value", right=("row", "score", "p-value"))
    for each in rows:
        numbers = (f"{each['score']:.3g}", f"{each['p_value']:.3g}")
        lines.add_row(f"{each['row']:,}", str(each["given"]), str(each["suggested"]), *numbers)
    show(lines)


@plainly("Nothing was written.")
def drift(
    model: Model,
    data: Data,
    alpha: Annotated[float, typer.Option(help="The share of false alarms.")] = 0.05,
    top: Annotated[int, typer.Option(min=1, help="Columns to show, those first that moved the energy most.")] = 5,
    part: Part = "test",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Say whether a table comes from elsewhere than the rows that a model was fitted on.

    The energies of its rows are compared with those of rows held out.  The exit code is 3 if it has drifted, else 0.

    Example: energate drift engines.zip today.csv || mail -s drift me@example.com
    """
    from energate.questions.tabular import drift_table

    known = loaded(model, device)
    with messages().status(f"{data.name}: comparing"):
        found, names = drift_table(known.table, data, part=part, alpha=alpha)
    most = [{"column": names[i], "moved": float(found.moved[i])} for i in found.columns[:top].tolist()]
    if as_json:
        numbers = {"statistic": found.statistic, "p_value": found.p_value, "drifted": found.drifted}
        counts = {"rows": found.n_rows, "held_out": found.n_held_out}
        typer.echo(json.dumps({**numbers, **counts, "columns": most}, indent=2))
    else:
        verdict = "drifted" if found.drifted else "no drift seen"
        compared = f"{found.n_rows:,} rows beside {found.n_held_out:,} held out"
        output().print(f"{data.name}: {verdict}, p-value {found.p_value:.3g}; {compared}")
        lines = table("column", "moves the energy by", right=("moves the energy by",))
        for each in most:
            lines.add_row(str(each["column"]), f"{each['moved']:+.3g}")
        show(lines)
    if found.drifted:
        raise typer.Exit(DRIFTED)


@plainly("No picture was written.")
def importance(
    model: Model,
    data: Data,
    picture: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also draw it: a .png, .pdf or .svg file.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Columns to show, those first that count most.")] = 10,
    rows: Annotated[int, typer.Option(min=1, help="Rows to ask about, drawn at random.")] = 200,
    part: Part = "test",
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Say which columns of a table count in what a model says of its rows.

    A column counts by the mean size of what it adds: of a classifier to the energy of the best class above the next
    one's, otherwise to that of the row, from the middle of all columns.

    Example: energate importance flowers.zip flowers.csv -o columns.png
    """
    is_model(model)
    source = opened(data, part)
    check_picture(picture, source.inputs)
    from energate.questions import importance as counts_of
    from energate.questions.telling import draw_important, important

    known = loaded(model, device)
    with messages().status(f"{data.name}: asking"):
        X = known.table.some_rows(source, part, rows, seed)
        names = list(known.table.match(source).feature_names)
        found = important(names, counts_of(known.model, X), top)
    if picture is not None:
        save_picture(draw_important(found, f"{model.name}, {len(X):,} rows of {data.name}"), picture)
    if as_json:
        typer.echo(json.dumps({"rows": len(X), "columns": found}, indent=2))
        return
    lines = table("column", "counts", "share", right=("counts", "share"))
    for each in found:
        lines.add_row(str(each["column"]), f"{each['importance']:.3g}", f"{100 * each['share']:.0f} %")
    show(lines)
    if picture is not None:
        output().print(f"wrote {picture}", soft_wrap=True)
