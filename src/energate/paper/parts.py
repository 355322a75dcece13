"""The parts of a cell: records, and for each how it is written to JSON and read from it again.

A function that reads gives its part, or says in `UnfitError` why it cannot.
"""

import base64
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.paper.values import (
    UnfitError,
    a_list,
    a_shape,
    an_object,
    label,
    maybe,
    name,
    number,
    packed,
    text,
    texts,
    whole,
)

_MOST_CLASSES = 100
_MOST_LABELS = 60
_REPEATS = ("seed", "split")

Config = dict[str, Any]  # plain JSON


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


# --- writing -----------------------------------------------------------------------------------------------------


def pack(values: NDArray[Any]) -> str:
    """Whole numbers from 0 to 255, the nearest ones, a byte each, as text."""
    return base64.b64encode(np.clip(np.rint(values), 0, 255).astype(np.uint8).tobytes()).decode()


def pack_mistake(mistake: Mistake) -> dict[str, Any]:
    """A mistake for a file."""
    return {**vars(mistake), "pixels": None if mistake.pixels is None else pack(mistake.pixels)}


def pack_filters(filters: Filters) -> dict[str, Any]:
    """Filters for a file."""
    n, h, w = filters.pixels.shape
    return {"shape": [h, w], "n": n, "pixels": pack(filters.pixels), "classes": filters.classes}


def pack_covariance(found: Covariance) -> dict[str, Any]:
    """Covariances for a file, a byte for each."""
    true, predicted = (pack(128 + 127 * matrix / found.scale) for matrix in (found.true, found.predicted))
    return {"labels": found.labels, "true": true, "predicted": predicted, "scale": float(f"{found.scale:.6g}")}


# --- reading -----------------------------------------------------------------------------------------------------


def read_repeat(value: Any, key: str) -> str:
    """The word for what is repeated."""
    if value not in _REPEATS:
        raise UnfitError(f"`{key}` must be {' or '.join(_REPEATS)}")
    return text(value, key)


def read_confusion(value: Any, key: str, n_classes: int, n_test: int, error: float) -> NDArray[np.int64]:
    """Counts of true against predicted classes (K, K), which agree with the error."""
    rows = a_list(value, key, lambda row, key: a_list(row, key, whole))
    if not 0 < len(rows) <= _MOST_CLASSES or any(len(row) != len(rows) for row in rows) or len(rows) != n_classes:
        raise UnfitError(f"it must be square, one row for each of the `classes`, at most {_MOST_CLASSES}")
    counts = np.array(rows, np.int64)
    _agree(int(counts.sum() - counts.trace()), int(counts.sum()), n_test, error)
    return counts


def read_wrong(value: Any, key: str, n_test: int, error: float) -> NDArray[np.bool_]:
    """Which test rows were wrong (n,), as many as the error says."""
    bits = np.unpackbits(packed(value, key, -(-n_test // 8)))[:n_test].astype(bool)
    _agree(int(bits.sum()), len(bits), n_test, error)
    return bits


def _agree(n_wrong: int, n_rows: int, n_test: int, error: float) -> None:
    if n_rows != n_test or n_test == 0 or abs(100 * n_wrong / n_test - error) > 0.006:  # percent may be rounded
        raise UnfitError(f"it has {n_wrong} of {n_rows} rows wrong; `n_test` is {n_test} and `test_error` {error:g} %")


def read_reliability(value: Any, key: str) -> Reliability:
    """Equal bins of confidence."""
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


def read_energies(value: Any, key: str) -> Energies:
    """Histograms of energies."""
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


def read_mistakes(value: Any, key: str, shape: Any) -> list[Mistake]:
    """Rows that were given to the wrong class."""
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


def read_filters(value: Any, key: str) -> dict[str, Filters]:
    """Weights as pictures, by their kind."""
    found = {}
    for kind, content in an_object(value, key).items():
        item = an_object(content, kind)
        (h, w), n = a_shape(item.get("shape")), whole(item.get("n"), "n", 1, 1000)
        pixels = packed(item.get("pixels"), "pixels", n * h * w).reshape(n, h, w)
        found[text(kind, key)] = Filters(pixels, a_list(item.get("classes") or [], "classes", whole))
    return found


def read_curves(value: Any, key: str) -> dict[str, Curve]:
    """What was measured in each phase of training."""
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


def provenance_of(value: Any, key: str = "provenance") -> Provenance:
    """What a data set tells of its rows."""
    value = an_object(value, key)
    source = {part: label(value[part], part) for part in ("source", "seed") if value.get(part) is not None}
    source |= {f"file {name}": digest for name, digest in sorted(texts(value.get("files") or {}, "files").items())}
    words = {part: label(value[part], part) for part in ("train", "valid", "test") if value.get(part)}
    hashes = sorted(texts(value.get("sha256") or {}, "sha256").items())
    return Provenance(value, words, source, dict(hashes))


def read_extra(value: Any, key: str) -> dict[str, float | list[float]]:
    """Other numbers, or lists of them, by name."""
    return {
        text(k, key): a_list(v, k, number) if isinstance(v, list) else number(v, k)
        for k, v in an_object(value, key).items()
        if v is not None
    }


def read_memory(value: Any, key: str) -> dict[str, float | None]:
    """Numbers by name, or None."""
    return {text(k, key): maybe(v, key) for k, v in an_object(value, key).items()}


def read_covariance(value: Any, key: str) -> Covariance:
    """Which labels go together."""
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


def read_attempts(value: Any, key: str) -> list[Attempt]:
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


def read_chosen(value: Any, key: str, n_trials: int) -> int:
    """The number of one of so many trials."""
    if whole(value, key) >= n_trials:
        raise UnfitError(f"`{key}` must be one of {n_trials} trials, counted from 0; it is {value}")
    return whole(value, key)


def read_choice(value: Any, key: str) -> dict[str, Any]:
    """How the configuration was chosen, in a few words."""
    maybe(an_object(value, key).get("seconds"), "seconds")
    found: dict[str, Any] = value
    return found
