"""`energate check`, `explain` and `export`: a look into a saved model, and a way out of it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energate.cli._console import messages, output, plainly, say, show, table
from energate.cli._options import BasePrefix, BaseScores, Data, Device, Json, Model, Part
from energate.errors import InputError

if TYPE_CHECKING:
    from energate.cli._loading import Loaded
    from energate.tables import Columns
    from energate.tables.reading import Batch, Source
    from energate.views.account import Account
    from energate.views.checking import Checked

_PICTURES = (".png", ".pdf", ".svg")
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
    from energate.cli._loading import Loaded
    from energate.views.checking import check as measure

    loaded = Loaded.of(model, device)
    X = None if data is None else _some_rows(loaded, data, part, rows, seed)
    with messages().status(f"{model.name}: measuring"):
        found = measure(loaded.model, X, n_rows=rows, seed=seed)
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


# --- reading rows ------------------------------------------------------------------------------------------------


def _some_rows(loaded: "Loaded", data: Path, part: str, n_rows: int, seed: int) -> Any:
    """Rows of a table as numbers, drawn at random if it has more than are wanted."""
    import numpy as np

    from energate.tables.reading import open_table

    source = open_table(data, part)
    columns = loaded.match(source)
    random, kept = np.random.default_rng(seed), np.empty((0, len(columns.feature_names)))
    keys = np.empty(0)
    for X, _ in _matrices(source, columns):  # the rows with the largest of random keys, whatever the table's length
        keys, kept = np.concatenate([keys, random.random(len(X))]), np.concatenate([kept, X])
        best = np.sort(np.argsort(-keys, kind="stable")[:n_rows])
        keys, kept = keys[best], kept[best]
    if not len(kept):
        raise InputError(f"{data.name} has no rows.")
    return kept


def _row(
    loaded: "Loaded", data: Path, part: str, number: int, prefix: str | None, kind: str
) -> tuple[Any, Any, "Columns"]:
    """One row of a table as numbers, counted from 1, what a base says of it there, and the columns it was made by."""
    from functools import partial

    from energate.cli._columns import scores_in
    from energate.tables.reading import open_table

    source = open_table(data, part)
    columns = loaded.match(source)
    scores_of = None if prefix is None else partial(scores_in, loaded, prefix, kind)
    done = 0
    for X, scores in _matrices(source, columns, scores_of):
        if done + len(X) >= number:
            here = number - 1 - done
            return X[here], None if scores is None else scores[here], columns
        done += len(X)
    raise InputError(f"{data.name} has {done:,} rows; there is no row {number:,}. Rows count from 1.")


def _matrices(
    source: "Source", columns: "Columns", scores_of: Callable[["Batch"], Any] | None = None
) -> Iterator[tuple[Any, Any]]:
    from energate.tables import CellError
    from energate.tables.reading import n_rows

    done = 0
    for batch in source.batches():
        if not n_rows(batch):
            continue
        try:
            X = columns.matrix(batch)
            scores = None if scores_of is None else scores_of(batch)
        except CellError as error:
            raise source.told(error, done) from error
        yield X, scores
        done += len(X)


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
    base_prefix: BasePrefix = None,
    base_scores: BaseScores = "probabilities",
    part: Part = "test",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Explain what a model says of one row of a table.

    A classifier shows the energy and probability of each class, and which columns the auto-encoder of the class would
    change most, in spreads of the column: far from what the class knows.  An anomaly model shows its score likewise, a
    refiner the labels before and after.  Rows that are images are drawn as such.

    Example: energate explain flowers.zip new.csv --row 3 -o why.png
    """
    from energate.cli._loading import Loaded
    from energate.views.account import Account, check_explainable

    if picture is not None and picture.suffix.lower() not in _PICTURES:
        raise InputError(f"A picture must be a {', '.join(_PICTURES)} file; got {str(picture)!r}.")
    loaded = Loaded.of(model, device)
    check_explainable(loaded.model)
    if base_prefix is None:
        loaded.need_base("explain", "explain")
    elif loaded.kind != "EnergyRefiner":
        raise InputError(f"--base-prefix is for a refiner; {model.name} is of the kind {loaded.kind}. Leave it out.")
    x, scores, taken = _row(loaded, data, part, row, base_prefix, base_scores)
    account = Account.of(loaded.model, x, loaded.columns, taken.feature_names, scores)
    if picture is not None:
        _draw(account, picture, f"{data.name}, row {row}")
    if as_json:
        typer.echo(json.dumps({"data": str(data), "row": row, **account.to_json(top)}, indent=2))
        return
    _show_account(account, f"{data.name}, row {row}", top)
    if picture is not None:
        output().print(f"wrote {picture}", soft_wrap=True)


def _draw(account: "Account", picture: Path, title: str) -> None:
    from energate.files import written_whole
    from energate.views.pictures import draw

    with messages().status("drawing"):
        figure = draw(account, title)
        with written_whole(picture) as file:
            figure.savefig(file, format=picture.suffix[1:].lower())


def _show_account(account: "Account", where: str, top: int) -> None:
    said, console = account.said, output()
    found = account.prediction
    if "steps" in said:
        console.print(f"{where}: {', '.join(found) or 'no label'}" if isinstance(found, list) else f"{where}: {found}")
        lines = table("label", "base", "refined", right=("base", "refined"))
        for name, base, refined in zip(account.labels, said["base"], said["refined"], strict=True):
            lines.add_row(name, f"{base:.3f}", f"{refined:.3f}")
        show(lines)
        console.print(account.about["verdict"], soft_wrap=True)
        return
    if "is_inlier" in said:
        console.print(f"{where}: {found}, energy {said['energies']:.4g}, {said['scores']:+.4g} from the threshold")
        _show_changes(account, 0, top, "reconstruction")
        return
    order = (-said["probabilities"]).argsort(kind="stable").tolist()
    console.print(f"{where}: {found}, probability {said['probabilities'].max():.3f}; liking {said['liking']:.4g}")
    lines = table(
        "class", "energy", "probability", "columns that its auto-encoder changes most", right=("energy", "probability")
    )
    for k in order:
        changes = [f"{each['column']} {each['change']:+.2f}" for each in account.largest_changes(k, min(top, 3))]
        lines.add_row(
            account.labels[k], f"{said['energies'][k]:.4g}", f"{said['probabilities'][k]:.3f}", ", ".join(changes)
        )
    show(lines)
    _show_changes(account, order[0], top, f"as {account.labels[order[0]]}")


def _show_changes(account: "Account", k: int, top: int, word: str) -> None:
    lines = table("column", "value", word, "change", right=("value", word, "change"))
    for each in account.largest_changes(k, top):
        lines.add_row(each["column"], f"{each['value']:.4g}", f"{each['reconstruction']:.4g}", f"{each['change']:+.2f}")
    show(lines)


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
    from energate.cli._loading import Loaded
    from energate.export import export_onnx

    loaded = Loaded.of(model, "cpu")
    with messages().status(f"{model.name}: exporting"):
        made = export_onnx(loaded.model, onnx, double=double, columns=loaded.columns)
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
    if loaded.kind == "EnergyRefiner" and "scores" in made.inputs:
        say("Note: the base is not in the graph; its scores, one for each label, are the input `scores`.", "yellow")
