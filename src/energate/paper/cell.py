"""The files of results: the record of a cell, of a search and of a run, each written and read here and nowhere else.

A cell is one system trained once on one data set.  Reading is strict about what makes a cell (its names, its status,
its error) and forgiving about the rest: a part that does not fit is left out, and named in notes.  Nothing here needs
torch, so that a report needs none.
"""

import base64
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from energate.paper._values import (
    UnfitError,
    a_list,
    a_shape,
    an_object,
    label,
    maybe,
    name,
    number,
    numbers,
    packed,
    percent,
    text,
    texts,
    whole,
)

SCHEMA = 1  # the version of the files
_LARGEST_FILE = 64 * 2**20
_MOST_CLASSES = 100
_MOST_LABELS = 60
_REPEATS = ("seed", "split")
_T = TypeVar("_T")

Config = dict[str, Any]  # plain JSON


# --- the records -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reliability:
    """Equal bins of confidence: how many rows, their mean confidence, their accuracy (%; None where empty)."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    ece: float | None


@dataclass(frozen=True)
class Energies:
    """Histogram of relative energies: of rows under their own class and under the others."""

    edges: list[float]
    own: list[int]
    others: list[int]


@dataclass(frozen=True, eq=False)
class Mistake:
    """A test row that was given to the wrong class; ``pixels`` (h, w) where rows are pictures."""

    row: int
    true: int | str
    predicted: int | str
    confidence: float | None
    pixels: NDArray[np.uint8] | None


@dataclass(frozen=True, eq=False)
class Filters:
    """Weights of units as pictures (n, h, w), 128 where they are 0, and the classes that the units belong to."""

    pixels: NDArray[np.uint8]
    classes: list[int]


@dataclass(frozen=True)
class Curve:
    """What was measured after some epochs of one phase of training (None: not measured)."""

    epoch: list[float]
    loss: list[float | None]
    validation: list[float | None]


@dataclass(frozen=True)
class Provenance:
    """Of the rows: a word for each part (*original*, *surrogate* ...), where they came from, and their hashes."""

    content: dict[str, Any] = field(default_factory=dict)  # as the data set tells it
    words: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Covariance:
    """Which labels go together: among the true ones and among the predicted probabilities, (n, n) each."""

    labels: list[str]
    true: NDArray[np.float64]
    predicted: NDArray[np.float64]
    scale: float  # the largest of both


@dataclass(frozen=True)
class Attempt:
    """What a configuration gave on the validation rows; infinite where it failed, None where that is not known."""

    config: Config
    valid_error: float | None  # %
    valid_log_loss: float | None
    seconds: float | None
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether there is no number to choose by."""
        return self.valid_error is not None and not math.isfinite(self.valid_error)

    def as_json(self) -> dict[str, Any]:
        """Numbers that are not finite have no place in JSON."""
        numbers = {"valid_error": None, "valid_log_loss": None} if self.failed else {}
        return {**asdict(self), **numbers, "status": "failed" if self.failed else "ok"}


@dataclass(frozen=True, eq=False)
class Cell:
    """One system trained once on one data set.  A failed one has no numbers (``test_error`` is None).

    ``seed`` numbers the times that a system was tried; ``repeat`` says what differs between them: the *seed*, on the
    same rows, or the *split* into rows to train and to test on.  ``metric`` is the name of ``test_error``.
    """

    table: str
    title: str
    profile: str
    data: str
    data_label: str
    system: str
    system_label: str
    seed: int
    order: tuple[int, int]  # of the data set and of the system in their table
    published: float | None
    ours: bool
    apart: str
    random: bool
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
        "wrong": lambda wrong: pack(np.packbits(wrong)),
        "reliability": asdict,
        "energies": asdict,
        "mistakes": lambda mistakes: [_packed_mistake(mistake) for mistake in mistakes],
        "filters": lambda filters: {kind: _packed_filters(images) for kind, images in filters.items()},
        "covariance": _packed_covariance,
    }
    values |= {key: write(values[key]) for key, write in packers.items() if values[key] is not None}
    keys = _HEAD if cell.failed else (*_HEAD, *(_OF_LABELS if cell.repeat == "split" else _OF_CLASSES))
    left_out = {key for key, value in _LEFT_OUT.items() if getattr(cell, key) == value}
    return {"schema": SCHEMA, **{key: values[key] for key in keys if key not in left_out}}


def pack(values: NDArray[Any]) -> str:
    """Whole numbers from 0 to 255, the nearest ones, a byte each, as text."""
    return base64.b64encode(np.clip(np.rint(values), 0, 255).astype(np.uint8).tobytes()).decode()


def _packed_mistake(mistake: Mistake) -> dict[str, Any]:
    return {**vars(mistake), "pixels": None if mistake.pixels is None else pack(mistake.pixels)}


def _packed_filters(filters: Filters) -> dict[str, Any]:
    n, h, w = filters.pixels.shape
    return {"shape": [h, w], "n": n, "pixels": pack(filters.pixels), "classes": filters.classes}


def _packed_covariance(found: Covariance) -> dict[str, Any]:
    true, predicted = (pack(128 + 127 * matrix / found.scale) for matrix in (found.true, found.predicted))
    return {"labels": found.labels, "true": true, "predicted": predicted, "scale": float(f"{found.scale:.6g}")}


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

    def part(key: str, read: Callable[[Any, str], _T], default: _T) -> _T:
        """A part that can be done without."""
        try:
            return default if content.get(key) is None else read(content[key], key)
        except UnfitError as error:
            notes.append(f"{file}: shown without `{key}`: {error}")
            return default

    common: dict[str, Any] = {
        **words,
        "file": file,
        "folder": folder,
        "title": part("title", text, "") or words["table"],
        "profile": part("profile", text, ""),
        "data_label": part("data_label", text, "") or words["data"],
        "system_label": part("system_label", text, "") or words["system"],
        "seed": whole(content.get("seed"), "seed"),
        "order": (whole(order.get("data", 10**6), "order"), whole(order.get("system", 10**6), "order")),
        "published": part("published", percent, None),
        "ours": content.get("ours") is True,
        "apart": part("apart", text, ""),
        "random": content.get("random") is not False,
        "error": part("error", text, ""),
        "repeat": part("repeat", _repeat, "seed"),
        "metric": part("metric", text, "") or "test error",
        "base": part("base", text, ""),
        "seconds": part("seconds", numbers, dict[str, float]()),
        "versions": part("versions", texts, dict[str, str]()),
        "device": part("device", text, ""),
        "date": part("date", text, ""),
    }
    if status == "failed":
        return Cell(**common | {"error": common["error"] or "failed, without a message"})
    test_error = percent(content.get("test_error"), "test_error")
    n_test = part("n_test", whole, None)
    classes: list[int | str] = part("classes", lambda value, key: a_list(value, key, name), [])
    trials: list[Attempt] = part("trials", _attempts, [])
    size = n_test or 0
    return Cell(
        **common,
        shape=part("shape", a_shape, None),
        n_train=part("n_train", whole, None),
        n_valid=part("n_valid", whole, None),
        n_test=n_test,
        test_slice=part("test_slice", text, ""),
        classes=classes,
        test_error=test_error,
        valid_error=part("valid_error", percent, None),
        test_log_loss=part("test_log_loss", number, None),
        valid_log_loss=part("valid_log_loss", number, None),
        measures=part("measures", numbers, {}),
        confusion=part("confusion", lambda value, key: _confusion(value, key, len(classes), size, test_error), None),
        wrong=part("wrong", lambda value, key: _wrong(value, key, size, test_error), None),
        reliability=part("reliability", _reliability, None),
        energies=part("energies", _energies, None),
        curves=part("curves", _curves, {}),
        extra=part("extra", _extra, {}),
        mistakes=part("mistakes", lambda value, key: _mistakes(value, key, content.get("shape")), None),
        filters=part("filters", _filters, None),
        covariance=part("covariance", _covariance, None),
        verdict=part("verdict", text, ""),
        config=part("config", an_object, {}),
        search=part("search", _search_of_cell, None),
        trials=trials,
        chosen=part("chosen", lambda value, key: _chosen(value, key, len(trials)), None),
        recipe=part("recipe", an_object, None),
        memory=part("memory", _memory, {}),
        provenance=part("provenance", provenance, Provenance()),
    )


def read_search(content: dict[str, Any]) -> Search:
    """A search from the content of its file."""
    trials, picked = _attempts(content.get("trials"), "trials"), content.get("chosen")
    return Search(
        **{key: label(content.get(key) or "", key) for key in ("table", "profile", "data", "system")},
        space=a_list(content.get("space") or [], "space", an_object),
        trials=trials,
        chosen=None if picked is None else _chosen(picked, "chosen", len(trials)),
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


# --- parts of a cell: each function gives one, or says in `UnfitError` why it cannot ------------------------------


def _repeat(value: Any, key: str) -> str:
    if value not in _REPEATS:
        raise UnfitError(f"`{key}` must be {' or '.join(_REPEATS)}")
    return text(value, key)


def _confusion(value: Any, key: str, n_classes: int, n_test: int, error: float) -> NDArray[np.int64]:
    rows = a_list(value, key, lambda row, key: a_list(row, key, whole))
    if not 0 < len(rows) <= _MOST_CLASSES or any(len(row) != len(rows) for row in rows) or len(rows) != n_classes:
        raise UnfitError(f"it must be square, one row for each of the `classes`, at most {_MOST_CLASSES}")
    counts = np.array(rows, np.int64)
    _agree(int(counts.sum() - counts.trace()), int(counts.sum()), n_test, error)
    return counts


def _wrong(value: Any, key: str, n_test: int, error: float) -> NDArray[np.bool_]:
    bits = np.unpackbits(packed(value, key, -(-n_test // 8)))[:n_test].astype(bool)
    _agree(int(bits.sum()), len(bits), n_test, error)
    return bits


def _agree(n_wrong: int, n_rows: int, n_test: int, error: float) -> None:
    if n_rows != n_test or n_test == 0 or abs(100 * n_wrong / n_test - error) > 0.006:  # percent may be rounded
        raise UnfitError(f"it has {n_wrong} of {n_rows} rows wrong; `n_test` is {n_test} and `test_error` {error:g} %")


def _reliability(value: Any, key: str) -> Reliability:
    value = an_object(value, key)
    found = Reliability(
        a_list(value.get("count"), "count", whole),
        a_list(value.get("confidence"), "confidence", maybe),
        a_list(value.get("accuracy"), "accuracy", maybe),
        maybe(value.get("ece"), "ece"),
    )
    if not 0 < len(found.count) == len(found.confidence) == len(found.accuracy) <= 100:
        raise UnfitError("`count`, `confidence` and `accuracy` must be as long as each other")
    for count, *percents in zip(found.count, found.confidence, found.accuracy, strict=True):
        if count and not all(percent is not None and 0 <= percent <= 100 for percent in percents):
            raise UnfitError("a bin with rows needs a confidence and an accuracy between 0 and 100")
    return found


def _energies(value: Any, key: str) -> Energies:
    value = an_object(value, key)
    found = Energies(
        a_list(value.get("edges"), "edges", number),
        a_list(value.get("own"), "own", whole),
        a_list(value.get("others"), "others", whole),
    )
    if not 0 < len(found.own) == len(found.others) == len(found.edges) - 1 <= 1000:
        raise UnfitError("n counts of `own` and `others` need n + 1 `edges`")
    if not all(low < high for low, high in zip(found.edges, found.edges[1:], strict=False)):
        raise UnfitError("`edges` must increase")
    return found


def _mistakes(value: Any, key: str, shape: Any) -> list[Mistake]:
    size = None if shape is None else a_shape(shape)

    def read(item: Any, key: str) -> Mistake:
        item = an_object(item, key)
        has_pixels = size is not None and item.get("pixels") is not None
        return Mistake(
            whole(item.get("row"), "row"),
            name(item.get("true"), "true"),
            name(item.get("predicted"), "predicted"),
            maybe(item.get("confidence"), "confidence"),
            packed(item["pixels"], "pixels", size[0] * size[1]).reshape(size) if size and has_pixels else None,
        )

    return a_list(value, key, read)


def _filters(value: Any, key: str) -> dict[str, Filters]:
    found = {}
    for kind, content in an_object(value, key).items():
        item = an_object(content, kind)
        (h, w), n = a_shape(item.get("shape")), whole(item.get("n"), "n", 1, 1000)
        pixels = packed(item.get("pixels"), "pixels", n * h * w).reshape(n, h, w)
        found[text(kind, key)] = Filters(pixels, a_list(item.get("classes") or [], "classes", whole))
    return found


def _curves(value: Any, key: str) -> dict[str, Curve]:
    found = {}
    for phase, content in an_object(value, key).items():
        item = an_object(content, phase)
        lines = [a_list(item.get(k) or [], k, maybe)[:1000] for k in ("loss", "validation")]
        length = max(map(len, lines))
        epoch = a_list(item["epoch"], "epoch", number) if item.get("epoch") else [float(i + 1) for i in range(length)]
        if any(len(line) not in {0, len(epoch)} for line in lines):
            raise UnfitError("`loss` and `validation` must be as long as `epoch`")
        found[text(phase, key)] = Curve(epoch, lines[0], lines[1])
    return found


def provenance(value: Any, key: str = "provenance") -> Provenance:
    """What a data set tells of its rows."""
    value = an_object(value, key)
    source = {part: label(value[part], part) for part in ("source", "seed") if value.get(part) is not None}
    source |= {f"file {name}": digest for name, digest in sorted(texts(value.get("files") or {}, "files").items())}
    words = {part: label(value[part], part) for part in ("train", "valid", "test") if value.get(part)}
    hashes = sorted(texts(value.get("sha256") or {}, "sha256").items())
    return Provenance(value, words, source, dict(hashes))


def _extra(value: Any, key: str) -> dict[str, float | list[float]]:
    return {
        text(k, key): a_list(v, k, number) if isinstance(v, list) else number(v, k)
        for k, v in an_object(value, key).items()
        if v is not None
    }


def _memory(value: Any, key: str) -> dict[str, float | None]:
    return {text(k, key): maybe(v, key) for k, v in an_object(value, key).items()}


def _covariance(value: Any, key: str) -> Covariance:
    value = an_object(value, key)
    labels, scale = a_list(value.get("labels"), "labels", label), number(value.get("scale"), "scale")
    if not 0 < len(labels) <= _MOST_LABELS or scale <= 0:
        raise UnfitError(f"it must have 1 to {_MOST_LABELS} `labels` and a `scale` above 0")
    shape = (len(labels), len(labels))
    true, predicted = (
        (packed(value.get(part), part, len(labels) ** 2).reshape(shape).astype(float) - 128) / 127 * scale
        for part in ("true", "predicted")
    )
    return Covariance(labels, true, predicted, scale)


def _attempts(value: Any, key: str) -> list[Attempt]:
    """What was tried, in the order of the file."""
    return a_list(value, key, _attempt)


def _attempt(value: Any, key: str) -> Attempt:
    trial = an_object(value, key)
    ok = trial.get("status", "ok") == "ok"
    return Attempt(
        config=an_object(trial.get("config") or {}, "config"),
        valid_error=maybe(trial.get("valid_error"), "valid_error") if ok else math.inf,
        valid_log_loss=maybe(trial.get("valid_log_loss"), "valid_log_loss") if ok else math.inf,
        seconds=maybe(trial.get("seconds"), "seconds"),
        error="" if ok else label(trial.get("error") or "", "error"),
    )


def _chosen(value: Any, key: str, n_trials: int) -> int:
    if whole(value, key) >= n_trials:
        raise UnfitError(f"`{key}` must be one of {n_trials} trials, counted from 0; it is {value}")
    return whole(value, key)


def _search_of_cell(value: Any, key: str) -> dict[str, Any]:
    maybe(an_object(value, key).get("seconds"), "seconds")
    found: dict[str, Any] = value
    return found
