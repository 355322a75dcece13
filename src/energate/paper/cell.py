"""The files of results: the record of a cell, of a search and of a run, each written and read here and nowhere else.

A cell is one system trained once on one data set.  Reading is strict about what makes a cell (its names, its status,
its error) and forgiving about the rest: a part that does not fit is left out, and named in notes.  How a field is
written and read follows from its type.  Nothing here needs torch, so that a report needs none.
"""

import base64
import binascii
import json
import math
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from energate.files import written_whole

CELL_SCHEMA = 1  # the version of the files
_LARGEST_FILE, _LONGEST_TEXT = 64 * 2**20, 2000
_MOST_CLASSES, _MOST_LABELS = 100, 60
_REPEATS = ("seed", "split")
_T = TypeVar("_T")

Config = dict[str, Any]  # plain JSON


class UnfitError(ValueError):
    """What is wrong with a file, or a part of one, in a few words."""


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
_SPARED = {"repeat": "seed", "metric": "test error", "base": "", **dict.fromkeys(("mistakes", "filters", "covariance"))}


def as_json(cell: Cell) -> dict[str, Any]:
    """What the file of a cell holds, its keys in their order."""
    values = {
        **vars(cell),
        "order": {"data": cell.order[0], "system": cell.order[1]},
        "status": "failed" if cell.failed else "ok",
        "test_slice": cell.test_slice or None,
    }
    keys = _HEAD if cell.failed else (*_HEAD, *(_OF_LABELS if cell.repeat == "split" else _OF_CLASSES))
    kept = [key for key in keys if key not in _SPARED or values[key] != _SPARED[key]]
    return {"schema": CELL_SCHEMA, **{key: written(values[key]) for key in kept}}


def written(value: Any) -> Any:
    """Any part of a record as plain JSON; bytes, and whether rows are wrong, as base64."""
    if isinstance(value, Mapping):
        return {key: written(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [written(each) for each in value]
    if isinstance(value, np.ndarray):
        bits = value.dtype == np.bool_
        return pack(np.packbits(value) if bits else value) if bits or value.dtype == np.uint8 else value.tolist()
    return _FORMS.get(type(value), lambda plain: plain)(value)


def pack(values: NDArray[Any]) -> str:
    """Whole numbers from 0 to 255, the nearest ones, a byte each, as text."""
    return base64.b64encode(np.clip(np.rint(values), 0, 255).astype(np.uint8).tobytes()).decode()


def _fields(record: Any) -> dict[str, Any]:
    return {each.name: written(getattr(record, each.name)) for each in fields(record)}


def _attempt_form(attempt: Attempt) -> dict[str, Any]:
    """Numbers that are not finite have no place in JSON."""
    numbers = {"valid_error": None, "valid_log_loss": None} if attempt.failed else {}
    return {**_fields(attempt), **numbers, "status": "failed" if attempt.failed else "ok"}


def _filters_form(filters: Filters) -> dict[str, Any]:
    n, h, w = filters.pixels.shape
    return {"shape": [h, w], "n": n, **_fields(filters)}


def _covariance_form(found: Covariance) -> dict[str, Any]:
    """A byte for each covariance."""
    true, predicted = (pack(128 + 127 * matrix / found.scale) for matrix in (found.true, found.predicted))
    return {"labels": found.labels, "true": true, "predicted": predicted, "scale": float(f"{found.scale:.6g}")}


_FORMS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((Reliability, Energies, Curve, Mistake, Search, Run), _fields),
    Attempt: _attempt_form,
    Filters: _filters_form,
    Covariance: _covariance_form,
    Provenance: lambda provenance: provenance.content,
}


def place_of(results: Path, table: str, data: str, system: str, repeat: str, number: int) -> Path:
    """Where the file of a cell is."""
    return results / table / data / system / f"{repeat}{number}.json"


def write_cell(path: Path, cell: Cell) -> None:
    """Write the file of a cell."""
    write_json(path, as_json(cell))


def write_search(path: Path, search: Search) -> None:
    """Write the file of a search."""
    write_json(path, {"schema": CELL_SCHEMA, **written(search)})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write strict JSON, in one line."""
    text = json.dumps(content, indent=None, separators=(",", ":"), allow_nan=False)
    with written_whole(path) as file:
        file.write(f"{text}\n".encode())


def note_run(path: Path, run: Run) -> None:
    """Add a line on a run."""
    with path.open("a") as file:
        file.write(json.dumps(written(run)) + "\n")


# --- reading: values out of JSON, each as the function is named, or an `UnfitError` ------------------------------


def an_object(value: Any, key: str) -> dict[str, Any]:
    """A dictionary."""
    if not isinstance(value, dict):
        raise UnfitError(f"`{key}` must be an object")
    return value


def a_list(value: Any, key: str, read: Callable[[Any, str], _T]) -> list[_T]:
    """A list, each of its items read."""
    if not isinstance(value, list):
        raise UnfitError(f"`{key}` must be a list")
    return [read(item, key) for item in value]


def text(value: Any, key: str) -> str:
    """Text that can be written as UTF-8, not too long."""
    if not isinstance(value, str):
        raise UnfitError(f"`{key}` must be text")
    # Half a surrogate pair is valid in JSON and cannot be written as UTF-8.
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def label(value: Any, key: str) -> str:
    """Text, or anything else as JSON."""
    return text(value if isinstance(value, str) else json.dumps(value, sort_keys=True), key)


def texts(value: Any, key: str) -> dict[str, str]:
    """A dictionary of `label`."""
    return {text(k, key): label(v, key) for k, v in an_object(value, key).items()}


def _name(value: Any, key: str) -> int | str:
    """A whole number, or anything else as `label` has it."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**12
    return value if is_whole else label(value, key)


def _number(value: Any, key: str) -> float:
    """A number that is not huge, as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise UnfitError(f"`{key}` must be a number")
    return value


def _percent(value: Any, key: str) -> float:
    """A number from 0 to 100."""
    if not 0 <= _number(value, key) <= 100:
        raise UnfitError(f"`{key}` must be between 0 and 100")
    return _number(value, key)


def _whole(value: Any, key: str, low: int = 0, high: int = 10**12) -> int:
    """A whole number within limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnfitError(f"`{key}` must be a whole number from {low}")
    return value


def _numbers(value: Any, key: str) -> dict[str, float]:
    """A dictionary of numbers; what is null is left out."""
    return {text(k, key): _number(v, key) for k, v in an_object(value, key).items() if v is not None}


def _extra(value: Any, key: str) -> dict[str, float | list[float]]:
    """The same, or lists of numbers."""
    items = {k: v for k, v in an_object(value, key).items() if v is not None}
    return {text(k, key): (reader(list[float]) if isinstance(v, list) else _number)(v, k) for k, v in items.items()}


def _shape(value: Any, key: str = "shape") -> tuple[int, int]:
    """Height and width."""
    sides = a_list(value, key, lambda side, key: _whole(side, key, 1, 1024))
    if len(sides) != 2:
        raise UnfitError("`shape` must be height and width")
    return sides[0], sides[1]


def _packed(value: Any, key: str, *shape: int) -> NDArray[np.uint8]:
    """As many bytes as the shape has, from base64."""
    if not isinstance(value, str):
        raise UnfitError(f"`{key}` must be text")
    try:
        found = np.frombuffer(base64.b64decode(value, validate=True), np.uint8)
    except (binascii.Error, ValueError) as error:
        raise UnfitError(f"`{key}` must be base64") from error
    if len(found) != math.prod(shape):
        raise UnfitError(f"`{key}` must have {math.prod(shape)} bytes; it has {len(found)}")
    return found.reshape(shape)


@cache
def reader(kind: Any) -> Callable[[Any, str], Any]:
    """What reads a value of a type: a record field by field, a list or a dictionary item by item, all else by table."""
    if kind in _READERS:
        return _READERS[kind]
    inner = [reader(each) for each in get_args(kind) if each is not types.NoneType]
    if get_origin(kind) in (types.UnionType, Union):  # with None
        return lambda value, key: None if value is None else inner[0](value, key)
    if get_origin(kind) is list:
        return partial(a_list, read=inner[0])
    if get_origin(kind) is dict:
        return lambda value, key: {text(k, key): inner[1](v, k) for k, v in an_object(value, key).items()}
    return partial(_record, kind)


def _record(kind: type[_T], value: Any, key: str, **readers: Callable[[Any, str], Any]) -> _T:
    """A record, its fields read by their types where no other reader is given."""
    content = an_object(value, key)
    hints = get_type_hints(kind)
    found = kind(**{name: (readers.get(name) or reader(hints[name]))(content.get(name), name) for name in hints})
    _CHECKS.get(kind, lambda _: None)(found)
    return found


# --- reading: the parts of a cell --------------------------------------------------------------------------------


def _check_bins(found: Reliability) -> None:
    if not 0 < len(found.count) == len(found.confidence) == len(found.accuracy) <= 100:
        raise UnfitError("`count`, `confidence` and `accuracy` must be as long as each other")
    for count, *percents in zip(found.count, found.confidence, found.accuracy, strict=True):
        if count and not all(percent is not None and 0 <= percent <= 100 for percent in percents):
            raise UnfitError("a bin with rows needs a confidence and an accuracy between 0 and 100")


def _check_edges(found: Energies) -> None:
    if not 0 < len(found.own) == len(found.others) == len(found.edges) - 1 <= 1000:
        raise UnfitError("n counts of `own` and `others` need n + 1 `edges`")
    if not all(low < high for low, high in pairwise(found.edges)):
        raise UnfitError("`edges` must increase")


def _repeat(value: Any, key: str) -> str:
    if value not in _REPEATS:
        raise UnfitError(f"`{key}` must be {' or '.join(_REPEATS)}")
    return text(value, key)


def _confusion(value: Any, key: str, n_classes: int, n_test: int, error: float) -> NDArray[np.int64]:
    """Counts of true against predicted classes (K, K), which agree with the error."""
    rows = a_list(value, key, partial(a_list, read=_whole))
    if not 0 < len(rows) <= _MOST_CLASSES or any(len(row) != len(rows) for row in rows) or len(rows) != n_classes:
        raise UnfitError(f"it must be square, one row for each of the `classes`, at most {_MOST_CLASSES}")
    counts = np.array(rows, np.int64)
    _agree(int(counts.sum() - counts.trace()), int(counts.sum()), n_test, error)
    return counts


def _wrong(value: Any, key: str, n_test: int, error: float) -> NDArray[np.bool_]:
    """Which test rows were wrong (n,), as many as the error says."""
    bits = np.unpackbits(_packed(value, key, -(-n_test // 8)))[:n_test].astype(bool)
    _agree(int(bits.sum()), len(bits), n_test, error)
    return bits


def _agree(n_wrong: int, n_rows: int, n_test: int, error: float) -> None:
    if n_rows != n_test or n_test == 0 or abs(100 * n_wrong / n_test - error) > 0.006:  # percent may be rounded
        raise UnfitError(f"it has {n_wrong} of {n_rows} rows wrong; `n_test` is {n_test} and `test_error` {error:g} %")


def _mistakes(value: Any, key: str, shape: Any) -> list[Mistake]:
    """Rows that were given to the wrong class; their pixels where rows have a shape."""
    size = None if shape is None else _shape(shape)

    def pixels(given: Any, key: str) -> NDArray[np.uint8] | None:
        return None if size is None or given is None else _packed(given, key, *size)

    return a_list(value, key, partial(_record, Mistake, pixels=pixels))


def _filters(value: Any, key: str) -> Filters:
    item = an_object(value, key)
    (h, w), n = _shape(item.get("shape")), _whole(item.get("n"), "n", 1, 1000)
    pixels = _packed(item.get("pixels"), "pixels", n, h, w)
    return Filters(pixels, a_list(item.get("classes") or [], "classes", _whole))


def _curve(value: Any, key: str) -> Curve:
    item = an_object(value, key)
    loss, validation = (reader(list[float | None])(item.get(k) or [], k)[:1000] for k in ("loss", "validation"))
    length = max(len(loss), len(validation))
    epoch = a_list(item.get("epoch") or [float(i + 1) for i in range(length)], "epoch", _number)
    if not {len(loss), len(validation)} <= {0, len(epoch)}:
        raise UnfitError("`loss` and `validation` must be as long as `epoch`")
    return Curve(epoch, loss, validation)


def read_covariance(value: Any, key: str) -> Covariance:
    """Which labels go together."""
    value = an_object(value, key)
    labels, scale = a_list(value.get("labels"), "labels", label), _number(value.get("scale"), "scale")
    if not 0 < len(labels) <= _MOST_LABELS or scale <= 0:
        raise UnfitError(f"it must have 1 to {_MOST_LABELS} `labels` and a `scale` above 0")
    bytes_of = [_packed(value.get(part), part, len(labels), len(labels)) for part in ("true", "predicted")]
    true, predicted = ((matrix.astype(float) - 128) / 127 * scale for matrix in bytes_of)
    return Covariance(labels, true, predicted, scale)


def provenance_of(value: Any, key: str = "provenance") -> Provenance:
    """What a data set tells of its rows."""
    value = an_object(value, key)
    source = {part: label(value[part], part) for part in ("source", "seed") if value.get(part) is not None}
    source |= {f"file {name}": digest for name, digest in sorted(texts(value.get("files") or {}, "files").items())}
    words = {part: label(value[part], part) for part in ("train", "valid", "test") if value.get(part)}
    hashes = sorted(texts(value.get("sha256") or {}, "sha256").items())
    return Provenance(value, words, source, dict(hashes))


def _attempt(value: Any, key: str) -> Attempt:
    trial = {"config": {}} | {name: each for name, each in an_object(value, key).items() if each is not None}
    if trial.get("status", "ok") == "ok":
        return _record(Attempt, trial | {"error": ""}, key)
    error = label(trial.get("error") or "", "error")
    found: Attempt = _record(Attempt, trial | {"error": error, "valid_error": None, "valid_log_loss": None}, key)
    return replace(found, valid_error=math.inf, valid_log_loss=math.inf)


def _chosen(value: Any, key: str, n_trials: int) -> int:
    """The number of one of so many trials."""
    if _whole(value, key) >= n_trials:
        raise UnfitError(f"`{key}` must be one of {n_trials} trials, counted from 0; it is {value}")
    return _whole(value, key)


def _choice(value: Any, key: str) -> dict[str, Any]:
    """How the configuration was chosen, in a few words."""
    reader(float | None)(an_object(value, key).get("seconds"), "seconds")
    return an_object(value, key)


_READERS: dict[Any, Callable[[Any, str], Any]] = {
    str: text,
    int: _whole,
    float: _number,
    int | str: _name,
    tuple[int, int]: _shape,
    Config: an_object,
    dict[str, str]: texts,
    dict[str, float]: _numbers,
    dict[str, float | list[float]]: _extra,
    Filters: _filters,
    Curve: _curve,
    Covariance: read_covariance,
    Attempt: _attempt,
    Provenance: provenance_of,
}
_CHECKS: dict[type, Callable[[Any], None]] = {Reliability: _check_bins, Energies: _check_edges}
#: fields of a cell whose type does not say all
_BY_NAME: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("published", "valid_error"), _percent),
    "repeat": _repeat,
    "search": _choice,
}


# --- reading: whole files ----------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Any]:
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
    if isinstance(content["schema"], bool) or content["schema"] != CELL_SCHEMA:
        raise UnfitError(f"written by another version (`schema` must be {CELL_SCHEMA}); run that experiment again")
    return content


def _no_constant(word: str) -> None:
    raise UnfitError(f"not strict JSON (it has {word})")


def find_cell(path: Path) -> Cell | None:
    """The cell in a file; None where there is none that can be read."""
    with suppress(UnfitError):
        return read_cell(read_file(path), [])
    return None


def find_search(path: Path) -> Search | None:
    """The search in a file; None where there is none that can be read."""
    with suppress(UnfitError):
        return read_search(read_file(path))
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
        "seed": _whole(content.get("seed"), "seed"),
        "order": (_whole(order.get("data", 10**6), "order"), _whole(order.get("system", 10**6), "order")),
        "ours": content.get("ours") is True,
        "random": content.get("random") is not False,
    }

    def read(key: str, reader: Callable[[Any, str], Any]) -> None:
        """A part that can be done without: where it is not there, or does not fit, the cell has its default."""
        try:
            found.update({} if content.get(key) is None else {key: reader(content[key], key)})
        except UnfitError as error:
            notes.append(f"{file}: shown without `{key}`: {error}")

    of_fields = {key: kind for key, kind in get_type_hints(Cell).items() if key not in found}
    head = [key for key in of_fields if key in (*_HEAD, "seconds")]
    for key in head:
        read(key, _BY_NAME.get(key) or reader(of_fields[key]))
    for key, default in {"title": "table", "data_label": "data", "system_label": "system"}.items():
        found[key] = found.get(key) or found[default]
    found["metric"] = found.get("metric") or "test error"
    if status == "failed":
        return Cell(**found | {"error": found.get("error") or "failed, without a message"})
    error = found["test_error"] = _percent(content.get("test_error"), "test_error")
    checked = ("test_error", "confusion", "wrong", "mistakes", "chosen")
    for key in [key for key in of_fields if key not in (*head, *checked)]:
        read(key, _BY_NAME.get(key) or reader(of_fields[key]))
    n_test = found.get("n_test", 0)
    read("confusion", partial(_confusion, n_classes=len(found.get("classes", ())), n_test=n_test, error=error))
    read("wrong", partial(_wrong, n_test=n_test, error=error))
    read("mistakes", partial(_mistakes, shape=content.get("shape")))
    read("chosen", partial(_chosen, n_trials=len(found.get("trials", ()))))
    return Cell(**found)


def read_search(content: dict[str, Any]) -> Search:
    """A search from the content of its file."""
    trials, picked = a_list(content.get("trials"), "trials", _attempt), content.get("chosen")
    return Search(
        **{key: label(content.get(key) or "", key) for key, kind in get_type_hints(Search).items() if kind is str},
        space=a_list(content.get("space") or [], "space", an_object),
        trials=trials,
        chosen=None if picked is None else _chosen(picked, "chosen", len(trials)),
        seconds=reader(float | None)(content.get("seconds"), "seconds"),
    )


def read_runs(path: Path) -> list[Run]:
    """What the clock said of whole runs, from the lines of ``runs.jsonl``."""
    try:
        lines = [json.loads(line, parse_constant=_no_constant) for line in path.read_text().splitlines()]
        given = [{"cells": 0, **an_object(line, "the line")} for line in lines]
        spare = [{key: label(line.get(key) or "", key) for key in ("profile", "date")} for line in given]
        return [_record(Run, line | words, "the line") for line, words in zip(given, spare, strict=True)]
    except UnfitError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UnfitError(str(error)) from error
