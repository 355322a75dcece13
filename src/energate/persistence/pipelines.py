"""The steps of a scikit-learn Pipeline before an estimator of ours: encoders of tables as JSON, others by skops.

Steps of other packages are in one member, and are read only with ``trusted``, as the base of a refiner is.
"""

from collections.abc import Callable
from typing import Any

from sklearn.pipeline import Pipeline

from energate.errors import InputError, require
from energate.estimators import TableEncoder
from energate.tables import Columns

_KEYS = ("drop", "keep", "categories", "missing")


def split(model: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The steps of a pipeline, and the estimator that is its last; of anything else no steps."""
    if not isinstance(model, Pipeline):
        return [], model
    return list(model.steps), model.steps[-1][1]


def pack(steps: list[tuple[str, Any]], encode: Callable[[Any, str], Any]) -> tuple[list[dict[str, Any]], bytes | None]:
    """What the configuration says of the steps, and what skops wrote of those that are not ours."""
    found, foreign = [], {}
    for name, step in steps[:-1]:
        entry: dict[str, Any] = {"name": name}
        if step is None or step == "passthrough":
            entry["kind"] = "passthrough"
        elif type(step) is TableEncoder:
            if "columns_" not in vars(step):
                raise InputError(f"The step {name!r} is not fitted. Call `fit` before `save`.")
            fitted = {
                key: encode(vars(step)[key], key)
                for key in ("n_features_in_", "feature_names_in_")
                if key in vars(step)
            }
            parameters = {key: encode(list(getattr(step, key)), key) for key in _KEYS}
            entry |= {"kind": "encoder", "parameters": parameters, "fitted": fitted, "columns": step.columns_.to_json()}
        else:
            entry |= {"kind": "foreign", "class": type(step).__name__}
            foreign[name] = step
        found.append(entry)
    found.append({"name": steps[-1][0], "kind": "last"})
    if not foreign:
        return found, None
    skops = require("skops.io", "skops")
    try:
        return found, bytes(skops.dumps(foreign))
    except Exception as error:  # whatever the steps raise
        raise InputError(
            f"skops cannot save the steps {', '.join(foreign)} ({type(error).__name__}: {error})."
        ) from error


def unpack(entries: Any, last: Any, foreign: dict[str, Any], decode: Callable[[Any], Any]) -> Pipeline:
    """The pipeline that `pack` wrote, around its last step; some exception for what it did not write."""
    steps: list[tuple[str, Any]] = []
    for entry in entries:
        kind, step = entry["kind"], None
        if kind == "encoder":
            step = TableEncoder(**{key: decode(entry["parameters"][key]) for key in _KEYS})
            step.columns_ = Columns.from_json(entry["columns"])
            for key, value in entry["fitted"].items():
                if key not in ("n_features_in_", "feature_names_in_"):
                    raise ValueError(key)
                setattr(step, key, decode(value))
        else:
            step = {"passthrough": "passthrough", "last": last}[kind] if kind != "foreign" else foreign[entry["name"]]
        steps.append((str(entry["name"]), step))
    if not steps or steps[-1][1] is not last:
        raise ValueError("the last step is another")
    return Pipeline(steps)


def as_table(pipeline: Pipeline) -> tuple[Any, Columns | None]:
    """A pipeline of our own steps as its model and the columns of a table; None if it takes rows of numbers."""
    steps = [step for _, step in pipeline.steps if step is not None and step != "passthrough"]
    *encoders, last = steps
    if not encoders:
        return last, None
    if len(encoders) > 1:
        raise InputError("Commands take a Pipeline with one TableEncoder; this one has several. Use it from Python.")
    columns: Columns = encoders[0].columns_
    return last, columns
