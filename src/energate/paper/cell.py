"""The files of results: the record of a cell, of a search and of a run, each written and read here and nowhere else.

A cell is one system trained once on one data set.  Reading is strict about what makes a cell (its names, its status,
its error) and forgiving about the rest: a part that does not fit is left out, and named in notes.  Nothing here needs
torch, so that a report needs none.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.paper import parts
from energate.paper.parts import Attempt, Config, Covariance, Curve, Energies, Filters, Mistake, Provenance, Reliability
from energate.paper.values import (
    UnfitError,
    a_list,
    a_shape,
    an_object,
    label,
    maybe,
    name,
    number,
    numbers,
    percent,
    text,
    texts,
    whole,
)

SCHEMA = 1  # the version of the files
_LARGEST_FILE = 64 * 2**20


# --- the records -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """One system trained once on one data set.  A failed one has no numbers (``test_error`` is None).

    ``seed`` numbers the times that a system was tried; ``repeat`` says what differs between them: the *seed*, on the
    same rows, or the *split* into rows to train and to test on.  ``metric`` is the name of ``test_error``.
    """

    table: str
    title: str
    data: str
    data_label: str
    system: str
    system_label: str
    seed: int
    order: tuple[int, int]  # of the data set and of the system in their table
    ours: bool
    random: bool
    profile: str = ""
    published: float | None = None
    apart: str = ""
    repeat: str = "seed"
    metric: str = "test error"
    base: str = ""  # the system that this one refines
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    date: str = ""
    error: str = ""
    shape: tuple[int, int] | None = None
    n_train: int | None = None
    n_valid: int | None = None
    n_test: int | None = None
    test_slice: str = ""
    classes: list[int | str] = field(default_factory=list)
    test_error: float | None = None
    valid_error: float | None = None
    test_log_loss: float | None = None
    valid_log_loss: float | None = None
    measures: dict[str, float] = field(default_factory=dict)
    confusion: NDArray[np.int64] | None = None
    wrong: NDArray[np.bool_] | None = None
    reliability: Reliability | None = None
    energies: Energies | None = None
    curves: dict[str, Curve] = field(default_factory=dict)
    extra: dict[str, float | list[float]] = field(default_factory=dict)
    mistakes: list[Mistake] | None = None
    filters: dict[str, Filters] | None = None
    covariance: Covariance | None = None
    verdict: str = ""
    config: Config = field(default_factory=dict)
    search: dict[str, Any] | None = None
    trials: list[Attempt] = field(default_factory=list)
    chosen: int | None = None
    recipe: Config | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float | None] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    file: str = ""  # where it was read, and the folder of that: no part of the file
    folder: str = ""

    @property
    def failed(self) -> bool:
        """Whether it has an error in place of numbers."""
        return self.test_error is None

    @property
    def has_labels(self) -> bool:
        """Whether a row has several labels; only then is there an exact match."""
        return "exact_match" in self.measures

    @property
    def search_seconds(self) -> float | None:
        """How long the search for its configuration took, where that was one for all seeds."""
        seconds: float | None = (self.search or {}).get("seconds")
        return seconds


@dataclass(frozen=True)
class Search:
    """How the configuration of a system on a data set was chosen: one choice for all seeds."""

    table: str
    profile: str
    data: str
    system: str
    space: list[Config]
    trials: list[Attempt]
    chosen: int | None
    chosen_by: str
    seconds: float | None
    device: str
    date: str


@dataclass(frozen=True)
class Run:
    """One call of the harness: what the clock said."""

    table: str
    profile: str
    date: str
    device: str
    jobs: int
    cells: int
    seconds: float


# --- writing -----------------------------------------------------------------------------------------------------

_HEAD = (
    *("table", "title", "profile", "data", "data_label", "system", "system_label", "seed", "order", "published"),
    *("ours", "apart", "random", "repeat", "metric", "base", "versions", "device", "date", "status", "error"),
)
_OF_CLASSES = (
    *("shape", "n_train", "n_valid", "n_test", "test_slice", "classes", "test_error", "valid_error", "test_log_loss"),
    *("valid_log_loss", "confusion", "wrong", "reliability", "energies", "curves", "extra", "mistakes", "filters"),
    *("config", "search", "seconds", "memory", "provenance"),
)
_OF_LABELS = (
    *("classes", "n_train", "n_valid", "n_test", "test_error", "test_log_loss", "measures", "reliability"),
    *("valid_error", "valid_log_loss", "config", "trials", "chosen", "verdict", "extra", "covariance", "seconds"),
    *("provenance", "recipe", "memory"),
)
#: what a file does not have where the cell has this; of all else it has null
_LEFT_OUT = {
    "repeat": "seed",
    "metric": "test error",
    "base": "",
    "mistakes": None,
    "filters": None,
    "covariance": None,
}


def as_json(cell: Cell) -> dict[str, Any]:
    """What the file of a cell holds, its keys in their order."""
    values: dict[str, Any] = {
        **{each.name: getattr(cell, each.name) for each in fields(cell)},
        "order": {"data": cell.order[0], "system": cell.order[1]},
        "status": "failed" if cell.failed else "ok",
        "shape": cell.shape and list(cell.shape),
        "test_slice": cell.test_slice or None,
        "trials": [attempt.as_json() for attempt in cell.trials],
        "curves": {phase: asdict(curve) for phase, curve in cell.curves.items()},
        "provenance": cell.provenance.content,
    }
    packers: dict[str, Callable[[Any], Any]] = {
        "confusion": lambda counts: counts.tolist(),
        "wrong": lambda wrong: parts.pack(np.packbits(wrong)),
        "reliability": asdict,
        "energies": asdict,
        "mistakes": lambda mistakes: [parts.pack_mistake(mistake) for mistake in mistakes],
        "filters": lambda filters: {kind: parts.pack_filters(images) for kind, images in filters.items()},
        "covariance": parts.pack_covariance,
    }
    values |= {key: write(values[key]) for key, write in packers.items() if values[key] is not None}
    keys = _HEAD if cell.failed else (*_HEAD, *(_OF_LABELS if cell.repeat == "split" else _OF_CLASSES))
    left_out = {key for key, value in _LEFT_OUT.items() if getattr(cell, key) == value}
    return {"schema": SCHEMA, **{key: values[key] for key in keys if key not in left_out}}


def write_cell(path: Path, cell: Cell) -> None:
    """Write the file of a cell."""
    write_json(path, as_json(cell))


def write_search(path: Path, search: Search) -> None:
    """Write the file of a search."""
    write_json(path, {"schema": SCHEMA, **vars(search), "trials": [trial.as_json() for trial in search.trials]})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON, in one line."""
    text = json.dumps(content, indent=None, separators=(",", ":"), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one, whatever happens."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def note_run(path: Path, run: Run) -> None:
    """Add a line on a run."""
    with path.open("a") as file:
        file.write(json.dumps(vars(run)) + "\n")


# --- reading -----------------------------------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    """The content of a file of results, of this version."""
    try:
        size = path.stat().st_size
        content = json.loads(path.read_bytes(), parse_constant=_no_constant) if size <= _LARGEST_FILE else None
    except UnfitError:
        raise
    except OSError as error:
        raise UnfitError(f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UnfitError("not a JSON file, or cut short") from error
    if size > _LARGEST_FILE:
        raise UnfitError(f"larger than {_LARGEST_FILE // 2**20} MiB")
    if not isinstance(content, dict) or "schema" not in content:
        raise UnfitError("not a result of an experiment (no `schema`)")
    if isinstance(content["schema"], bool) or content["schema"] != SCHEMA:
        raise UnfitError(f"written by another version (`schema` must be {SCHEMA}); run that experiment again")
    return content


def _no_constant(word: str) -> None:
    raise UnfitError(f"not strict JSON (it has {word})")


def find_cell(path: Path) -> Cell | None:
    """The cell in a file; None where there is none that can be read."""
    try:
        return read_cell(load(path), [])
    except UnfitError:
        return None


def find_search(path: Path) -> Search | None:
    """The search in a file; None where there is none that can be read."""
    try:
        return read_search(load(path))
    except UnfitError:
        return None


def read_cell(content: dict[str, Any], notes: list[str], file: str = "", folder: str = "") -> Cell:
    """A cell from the content of its ``file``; what is left out of it is added to ``notes``."""
    order = an_object(content.get("order", {}), "order")
    status = text(content.get("status"), "status")
    if status not in {"ok", "failed"}:
        raise UnfitError("`status` must be ok or failed")
    words = {key: text(content.get(key), key) for key in ("table", "data", "system")}
    if not all(words.values()):
        raise UnfitError("`table`, `data` and `system` must not be empty")
    found: dict[str, Any] = {
        **words,
        "file": file,
        "folder": folder,
        "seed": whole(content.get("seed"), "seed"),
        "order": (whole(order.get("data", 10**6), "order"), whole(order.get("system", 10**6), "order")),
        "ours": content.get("ours") is True,
        "random": content.get("random") is not False,
    }

    def read(readers: Mapping[str, Callable[[Any, str], Any]]) -> None:
        """Parts that can be done without: where one is not there, or does not fit, the cell has its default."""
        for key, reader in readers.items():
            try:
                found.update({} if content.get(key) is None else {key: reader(content[key], key)})
            except UnfitError as error:
                notes.append(f"{file}: shown without `{key}`: {error}")

    read(_PARTS_OF_ALL)
    for key, default in {"title": "table", "data_label": "data", "system_label": "system"}.items():
        found[key] = found.get(key) or found[default]
    found["metric"] = found.get("metric") or "test error"
    if status == "failed":
        return Cell(**found | {"error": found.get("error") or "failed, without a message"})
    error = found["test_error"] = percent(content.get("test_error"), "test_error")
    read(_PARTS_OF_GOOD)
    n_test, n_classes, n_trials = found.get("n_test", 0), len(found.get("classes", ())), len(found.get("trials", ()))
    read(
        {
            "confusion": lambda value, key: parts.read_confusion(value, key, n_classes, n_test, error),
            "wrong": lambda value, key: parts.read_wrong(value, key, n_test, error),
            "mistakes": lambda value, key: parts.read_mistakes(value, key, content.get("shape")),
            "chosen": lambda value, key: parts.read_chosen(value, key, n_trials),
        }
    )
    return Cell(**found)


def read_search(content: dict[str, Any]) -> Search:
    """A search from the content of its file."""
    trials, picked = parts.read_attempts(content.get("trials"), "trials"), content.get("chosen")
    return Search(
        **{key: label(content.get(key) or "", key) for key in ("table", "profile", "data", "system")},
        space=a_list(content.get("space") or [], "space", an_object),
        trials=trials,
        chosen=None if picked is None else parts.read_chosen(picked, "chosen", len(trials)),
        chosen_by=label(content.get("chosen_by") or "", "chosen_by"),
        seconds=maybe(content.get("seconds"), "seconds"),
        device=label(content.get("device") or "", "device"),
        date=label(content.get("date") or "", "date"),
    )


def read_runs(path: Path) -> list[Run]:
    """What the clock said of whole runs, from the lines of ``runs.jsonl``."""
    runs = []
    try:
        for line in path.read_text().splitlines():
            content = an_object(json.loads(line, parse_constant=_no_constant), "the line")
            table, device = text(content.get("table"), "table"), text(content.get("device"), "device")
            jobs, seconds = whole(content.get("jobs"), "jobs"), number(content.get("seconds"), "seconds")
            profile, date = (label(content.get(key) or "", key) for key in ("profile", "date"))
            runs.append(Run(table, profile, date, device, jobs, whole(content.get("cells", 0), "cells"), seconds))
    except UnfitError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UnfitError(str(error)) from error
    return runs


_PARTS_OF_ALL: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("title", "profile", "data_label", "system_label", "apart", "error", "metric", "base"), text),
    **dict.fromkeys(("device", "date"), text),
    "published": percent,
    "repeat": parts.read_repeat,
    "seconds": numbers,
    "versions": texts,
}
_PARTS_OF_GOOD: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("n_train", "n_valid", "n_test"), whole),
    **dict.fromkeys(("test_slice", "verdict"), text),
    **dict.fromkeys(("test_log_loss", "valid_log_loss"), number),
    **dict.fromkeys(("config", "recipe"), an_object),
    "shape": a_shape,
    "classes": lambda value, key: a_list(value, key, name),
    "valid_error": percent,
    "measures": numbers,
    "reliability": parts.read_reliability,
    "energies": parts.read_energies,
    "curves": parts.read_curves,
    "extra": parts.read_extra,
    "filters": parts.read_filters,
    "covariance": parts.read_covariance,
    "search": parts.read_choice,
    "trials": parts.read_attempts,
    "memory": parts.read_memory,
    "provenance": parts.provenance_of,
}
