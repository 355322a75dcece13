"""`energate evaluate` and `energate info`: what a saved model is worth, and what it is."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from energate.cli._shell import (
    Data,
    Device,
    Json,
    Model,
    Part,
    is_model,
    loaded,
    messages,
    opened,
    output,
    plainly,
    show,
    table,
)

_MOST_CLASSES = 12  # of more the confusion is in the JSON alone
_LINES = {
    "error": ("error", "%"),
    "label_error": ("wrong labels", "%"),
    "row_error": ("rows with a wrong label", "%"),
    "roc_auc": ("ROC AUC", ""),
    "average_precision": ("average precision", ""),
    "flagged": ("flagged as anomalies", "%"),
    "flagged_anomalies": ("flagged of the anomalies", "%"),
    "flagged_normal": ("flagged of the others", "%"),
    "log_loss": ("log-loss", ""),
    "calibration_error": ("expected calibration error", "%"),
}


@plainly("Nothing was written.")
def evaluate(
    model: Model,
    data: Data,
    target: Annotated[
        str | None, typer.Option(metavar="COL", help="The column with the answers, if it has another name than in fit.")
    ] = None,
    part: Part = "test",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure a model on a table that has the answers, which should be rows that it was not trained on.

    Errors come with intervals of 95 % (Wilson's, or by the bootstrap), and beside those of the most frequent class and
    of LogisticRegression, cross-validated on the same rows.  Then calibration, the confusion of classes, and each class
    or label.  Percentages are marked as such; in the JSON errors, shares and calibration are percentages.

    Example: energate evaluate flowers.zip others.csv
    """
    is_model(model)
    source = opened(data, part)
    from energate.views.evaluating import evaluate_table

    known = loaded(model, device)
    known.base("evaluate", None, "")
    with messages().status(f"{data.name}: measuring"):
        found = evaluate_table(known.table, source, target, part)
    if as_json:
        said = {"model": str(model), "data": str(data), **found, "percent": percentages(found)}
        typer.echo(json.dumps(said, indent=2))
    else:
        _show(model, data, found)


def percentages(found: dict[str, Any]) -> list[str]:
    """Which of the numbers that were measured are in percent."""
    return [name for name, (_, unit) in _LINES.items() if unit and name in found]


def figures(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What was measured, in words: names, and values with their intervals."""
    lines = []
    for name, (words, unit) in _LINES.items():
        if name in found:
            digits, sign = (2, " %") if unit else (4, "")
            interval = found.get(f"{name}_interval")
            around = "" if interval is None else f"  ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
            lines.append((words, f"{found[name]:.{digits}f}{sign}{around}"))
    for name, value in found.get("baselines", {}).items():
        of = "always the most frequent" if name == "majority" else name
        lines.append((f"error of {of}", f"{value:.2f} %"))
    return lines


def _show(model: Path, data: Path, found: dict[str, Any]) -> None:
    console = output()
    console.print(f"{model.name} on {data.name}: {found['rows']:,} rows, {found['task']}", soft_wrap=True)
    lines = table("", "", right=())
    for words, value in figures(found):
        lines.add_row(f"  {words}", value)
    show(lines)
    if "confusion" in found:
        _show_classes(found)
    for each in found.get("per_label", []):
        console.print(
            f"  {each['label']}: {each['error']:.1f} % wrong, F1 {each['f1']:.1f} %, on in {each['rows']:,} rows"
        )


def _show_classes(found: dict[str, Any]) -> None:
    numbers = ("rows", "precision %", "recall %", "F1 %")
    lines = table("class", *numbers, right=numbers)
    for each in found["per_class"]:
        lines.add_row(
            each["class"], f"{each['rows']:,}", *(f"{each[name]:.1f}" for name in ("precision", "recall", "f1"))
        )
    show(lines)
    if len(found["classes"]) <= _MOST_CLASSES:
        named = [f"as {name}" for name in found["classes"]]
        confusion = table("is", *named, right=named)
        for name, row in zip(found["classes"], found["confusion"], strict=True):
            confusion.add_row(name, *(f"{count:,}" for count in row))
        show(confusion)
    bins = found["reliability"]
    sure = table("sure", "rows", "right", right=("rows", "right"))
    for i, count in enumerate(bins["count"]):
        if count:
            sure.add_row(f"{bins['confidence'][i]:.1f} %", f"{count:,}", f"{bins['accuracy'][i]:.1f} %")
    show(sure)


@plainly("Nothing was written.")
def info(model: Model, as_json: Json = False) -> None:
    """Say what a saved model is: its kind, its columns and classes, and what wrote it.

    Example: energate info flowers.zip
    """
    from energate.views.cards import about_model

    known = loaded(model, "cpu")
    found = about_model(known.model, known.table.columns)
    if as_json:
        typer.echo(json.dumps({"model": str(model), "bytes": _bytes(model), **found}, indent=2))
        return
    output().print(f"{model.name}: {_bytes(model) / 1e3:,.1f} kB", soft_wrap=True)
    lines = table("", "", right=())
    for name, value in found.items():
        text = ", ".join(map(_told, value)) if isinstance(value, list) else "" if value is None else _told(value)
        if text:
            lines.add_row(f"  {name.replace('_', ' ')}", text)
    show(lines)


def _told(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir()) if path.is_dir() else path.stat().st_size
