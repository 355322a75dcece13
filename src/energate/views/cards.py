"""Model cards: what a model is, what it was fitted to, and what was measured, in Markdown."""

import platform
from collections.abc import Sequence
from typing import Any

import sklearn
import torch

import energate
from energate.tables import CategoryColumn, Columns
from energate.views.explaining import describe
from energate.views.fitting import FittedTable

MOST_NAMES = 40


def about_model(model: Any, columns: Columns | None) -> dict[str, Any]:
    """What is worth knowing of a model and its columns, as JSON takes it."""
    found = describe(model)
    names = found["feature_names"] if columns is None else columns.names
    targets = [] if columns is None else list(columns.targets)
    words = [] if columns is None else [each.name for each in columns.inputs if isinstance(each, CategoryColumn)]
    left_out = {"feature_names", "seen_names", "sizes", "cells", "energate", "n_features", "familiarity"}
    about = {name: value for name, value in found.items() if name not in left_out}
    parameters = {name: value for name, value in model.get_params(deep=False).items() if _is_plain(value)}
    set_apart = {
        name: value for name, value in parameters.items() if value != _defaults(model).get(name) and name != "device"
    }
    return {
        **about,
        "n_columns": found["n_features"],
        "columns": names,
        "categories": words,
        "targets": targets,
        "not_default": [f"{name}={value!r}" for name, value in set_apart.items()],
    }


def model_card(fitted: FittedTable, data: str, figures: Sequence[tuple[str, str]], refit: bool) -> str:
    """The card of a model that `fit_table` made of ``data``; ``figures`` are what was measured, in words."""
    about, columns = about_model(fitted.model, fitted.columns), fitted.columns
    rows = f"{fitted.n_rows:,} rows; trained on {fitted.n_train:,}" + (" (all, after the measurement)" if refit else "")
    of_categories = f", {len(about['categories'])} of them categories" if about["categories"] else ""
    units = f", units: {about['units']}" if "units" in about else ""
    lines = [
        f"# {about['estimator']} of {data}",
        "",
        f"- **What**: {about['task']}; {about['estimator']}{units}; {about['n_parameters']:,} parameters.",
        f"- **Data**: {data}, {rows}; {about['n_columns']:,} columns{of_categories}.",
        f"- **Predicts**: {_listed(columns.targets) or 'whether a row is normal'}"
        + (f" ({_listed(about['classes'])})" if about["classes"] else ""),
        f"- **Columns**: {_listed(columns.names)}",
        f"- **Settings**: {_listed(about['not_default']) or 'defaults'}",
        "",
        "## Measured",
        "",
    ]
    if fitted.held_out:
        folds = fitted.held_out.get("folds")
        by = f"in {folds} folds, each by a model that had" if folds else "by a model that had"
        lines += [
            f"On {fitted.held_out['rows']:,} rows, {by} not seen them; intervals of 95 %.",
            "",
            "| | |",
            "|---|---|",
        ]
        lines += [f"| {words} | {value} |" for words, value in figures]
    else:
        lines.append("Nothing: no rows were held out.")
    lines += ["", "## Limits", ""]
    lines += [f"- {note}" for note in fitted.notes]
    if fitted.held_out:
        lines.append(
            "- The numbers hold for rows drawn as these were; of other sources, measure again: `energate evaluate`."
        )
    if fitted.meaning is not None and fitted.meaning.warning is not None:
        lines.append(f"- {fitted.meaning.warning}")
    lines.append(
        "- Rows unlike all of training get an answer all the same: `energate score` says how much it likes them."
    )
    versions = f"energate {energate.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    lines += ["", "## Made by", "", f"{versions}, scikit-learn {sklearn.__version__}; {fitted.seconds:.1f} s.", ""]
    return "\n".join(lines)


def _listed(names: Sequence[Any]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(f"`{name}`" for name in names[:MOST_NAMES]) + more


def _defaults(model: Any) -> dict[str, Any]:
    return {name: field.default for name, field in vars(type(model)).get("__dataclass_fields__", {}).items()}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
