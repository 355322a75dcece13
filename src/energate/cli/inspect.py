"""`energate check`, `explain` and `export`: a look into a saved model, and a way out of it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energate.cli._shell import (
    BasePrefix,
    BaseScores,
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
from energate.files import check_output

if TYPE_CHECKING:
    from energate.views.checking import Checked
    from energate.views.meaning import Meaning

_MOST_SHOWN = 12  # auto-encoders in a table; of more the worst


# --- check -------------------------------------------------------------------------------------------------------


@plainly("Nothing was written.")
def check(
    model: Model,
    rows: Annotated[int, typer.Option(min=2, help="Rows to look at.")] = 32,
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="A table to take them from; else they are drawn.")
    ] = None,
    part: Part = "test",
    seed: Annotated[int, typer.Option(min=0, help="Of the rows that are drawn.")] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Check that a model is conservative: that its vector fields r(v) - v are the gradients of its energies.

    Measures, in float64, how asymmetric the Jacobians are (kappa), how far the gradients of the energies are from the
    fields, and how much integrals along two paths differ.  The exit code is 0 if all is exact to rounding, else 1.

    Example: energate check flowers.zip
    """
    is_model(model)
    source = None if data is None else opened(data, part)
    from energate.views import check as measure

    known = loaded(model, device)
    X = None if source is None else known.table.some_rows(source, part, rows, seed)
    with messages().status(f"{model.name}: measuring") as status:

        def tell(name: str) -> None:
            status.update(f"{model.name}: measuring {name}")

        found = measure(known.model, X, n_rows=rows, seed=seed, tell=tell)
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        _show_check(found)
    if not found.conservative:
        raise typer.Exit(1)


def _as_json(found: "Checked") -> dict[str, Any]:
    def numbers(finding: Any) -> dict[str, float]:
        names = ("asymmetry", "gradient_error", "path_error")
        return {name: getattr(finding, name) for name in names}

    return {
        "conservative": found.conservative,
        "estimator": found.estimator,
        "checked": found.what,
        "rows": found.n_rows,
        "worst": numbers(found.worst),
        "models": [{"name": each.name, **numbers(each), "failures": each.failures} for each in found.findings],
    }


def _show_check(found: "Checked") -> None:
    console, worst = output(), found.worst
    count = len(found.findings)
    models = "1 auto-encoder" if count == 1 else f"{count} auto-encoders"
    console.print(f"{found.estimator}: {found.what}; {models}, {found.n_rows} rows, float64", soft_wrap=True)
    lines = table("", "kappa", "gradient", "path", "", right=("kappa", "gradient", "path"))
    shown = sorted(found.findings, key=lambda each: (bool(each.failures), each.gradient_error), reverse=True)
    shown = shown[:_MOST_SHOWN] if count > _MOST_SHOWN else list(found.findings)
    for each in [*shown, *([worst] if count > 1 else [])]:
        verdict = "failed" if each.failures else "exact"
        errors = (each.asymmetry, each.gradient_error, each.path_error)
        lines.add_row(each.name, *(f"{value:.1e}" for value in errors), verdict)
    if count > _MOST_SHOWN:
        console.print(f"the {_MOST_SHOWN} worst:")
    show(lines)
    if found.conservative:
        console.print("conservative: every vector field is the gradient of its energy, to rounding.")
        return
    failed = next(each for each in found.findings if each.failures)
    n_failed = sum(bool(each.failures) for each in found.findings)
    console.print(
        f"NOT conservative, {n_failed} of {count}. {failed.name}: {'; '.join(failed.failures)}.", soft_wrap=True
    )


# --- explain -----------------------------------------------------------------------------------------------------


@plainly("No picture was written.")
def explain(
    model: Model,
    data: Data,
    row: Annotated[int, typer.Option(min=1, metavar="N", help="Which row; the first is 1.")] = 1,
    picture: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also draw it: a .png, .pdf or .svg file.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Columns to show of those that reconstruction changes.")] = 5,
    why: Annotated[
        bool, typer.Option("--why", help="Which columns did it: what each adds to the energy, above the middle.")
    ] = False,
    change: Annotated[
        bool, typer.Option("--change", help="What would make the row normal, or of another class: see --to.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(metavar="CLASS", help="The class for --change; the second-best if left out.")
    ] = None,
    base_prefix: BasePrefix = None,
    base_scores: BaseScores = "probabilities",
    part: Part = "test",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Explain what a model says of one row of a table.

    A classifier shows the energy and probability of each class, and which columns the auto-encoder of the class would
    change most, in spreads of the column: far from what the class knows.  An anomaly model shows its score likewise, a
    refiner the labels before and after.  Rows that are images are drawn as such.  Where the rows of DATA show that
    reconstructions of this model mean little, a line says so.

    Example: energate explain flowers.zip new.csv --row 3 -o why.png
    """
    is_model(model)
    source = opened(data, part)
    check_picture(picture, source.inputs)
    from energate.questions.telling import changes, reasons
    from energate.views import account_of, check_explainable

    known = loaded(model, device)
    check_explainable(known.model, scores=base_prefix is not None)
    base = known.base("explain", base_prefix, base_scores)
    x, scores, taken = known.table.one_row(source, part, row, base)
    account = account_of(known.model, x, known.table.columns, taken.feature_names, scores)
    where, meaning = f"{data.name}, row {row}", known.table.meaning(source, part)
    if picture is not None:
        with messages().status("drawing"):
            save_picture(account.draw(where), picture)
    names = list(taken.feature_names)
    more: dict[str, Any] = {"why": reasons(known.model, x, names, top)} if why else {}
    more |= {"change": changes(known.model, x, names, to)} if change else {}
    if as_json:
        told = {**account.to_json(top), **more, **_told(meaning)}
        typer.echo(json.dumps({"data": str(data), "row": row, **told}, indent=2))
        return
    output().print(f"{where}: {account.headline()}")
    for lines in account.lines(top):
        filled = table(*lines.headers, right=lines.right)
        for cells in lines.rows:
            filled.add_row(*cells)
        show(filled)
    _show_more(more)
    if meaning is not None and meaning.warning is not None:
        say(f"Note: {meaning.warning}", "yellow")
    for line in (account.footnote(), "" if picture is None else f"wrote {picture}"):
        if line:
            output().print(line, soft_wrap=True)


def _show_more(more: dict[str, Any]) -> None:
    """The answers of --why and --change."""
    if "why" in more:
        found = more["why"]
        output().print(f"why: energy {found['total']:+.4g} above that of the middle row", soft_wrap=True)
        lines = table("column", "value", "adds", right=("value", "adds"))
        for each in found["columns"]:
            lines.add_row(each["column"], each["value"], f"{each['adds']:+.4g}")
        show(lines)
    if "change" in more:
        found = more["change"]
        output().print(f"to become {found['to']}: {'change' if found['found'] else 'nothing found'}", soft_wrap=True)
        lines = table("column", "from", "to", right=("from", "to"))
        for each in found["columns"]:
            lines.add_row(each["column"], each["from"], each["to"])
        show(lines)


def _told(meaning: "Meaning | None") -> dict[str, Any]:
    return {"explanations": None if meaning is None else meaning.to_json()}


# --- export ------------------------------------------------------------------------------------------------------


@plainly("Nothing was written; a file that was there is as it was.")
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="The file to write; it ends in .onnx.")],
    double: Annotated[bool, typer.Option("--double", help="float64 in the graph, not float32.")] = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX: one graph from the columns to calibrated outputs, which runs without Python.

    The file is compared with the model by onnxruntime on batches of several sizes before it is written; if they differ
    by more than rounding, nothing is written.  A refiner over a foreign base takes the base's scores as an input.

    Example: energate export flowers.zip --onnx flowers.onnx
    """
    is_model(model)
    check_output(onnx, [model], "MODEL")
    from energate.export import export_onnx

    known = loaded(model, "cpu")
    with messages().status(f"{model.name}: exporting"):
        made = export_onnx(known.model, onnx, double=double, columns=known.table.columns)
    if as_json:
        found = {
            "output": str(made.path),
            "bytes": made.n_bytes,
            "inputs": made.inputs,
            "outputs": made.outputs,
            "largest_difference": made.difference,
            "rows_compared": made.n_rows,
        }
        typer.echo(json.dumps(found, indent=2))
        return
    console = output()
    console.print(f"wrote {made.path} ({made.n_bytes / 1e3:.1f} kB)", soft_wrap=True)
    console.print(
        f"inputs:  {', '.join(f'{name} (rows, {width})' for name, width in made.inputs.items())}", soft_wrap=True
    )
    console.print(f"outputs: {', '.join(made.outputs)}", soft_wrap=True)
    console.print(f"largest difference from the model: {made.difference:.1e}, on {made.n_rows} rows")
    if "scores" in made.inputs:
        say("Note: the base is not in the graph; its scores, one for each label, are the input `scores`.", "yellow")
