"""Parts of a result that a report can do without: each function gives one, or says in `UnfitError` why it cannot."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.paper.report._cells import (
    Covariance,
    Curve,
    Energies,
    Mistake,
    Provenance,
    Reliability,
    Search,
    Trial,
)
from energate.paper.report._values import (
    UnfitError,
    a_list,
    a_shape,
    an_object,
    label,
    maybe,
    number,
    packed,
    text,
    texts,
    whole,
)

_MOST_CLASSES = 100
_MOST_LABELS = 60
_REPEATS = ("seed", "split")


def repeat(value: Any, key: str) -> str:
    """The word for what is repeated."""
    if value not in _REPEATS:
        raise UnfitError(f"`{key}` must be {' or '.join(_REPEATS)}")
    return text(value, key)


def confusion(value: Any, key: str, classes: list[str], n_test: int, error: float) -> NDArray[np.int64]:
    rows = a_list(value, key, lambda row, key: a_list(row, key, whole))
    if not 0 < len(rows) <= _MOST_CLASSES or any(len(row) != len(rows) for row in rows) or len(rows) != len(classes):
        raise UnfitError(f"it must be square, one row for each of the `classes`, at most {_MOST_CLASSES}")
    counts = np.array(rows, np.int64)
    _agree(int(counts.sum() - counts.trace()), int(counts.sum()), n_test, error)
    return counts


def wrong(value: Any, key: str, n_test: int, error: float) -> NDArray[np.bool_]:
    bits = np.unpackbits(packed(value, key, -(-n_test // 8)))[:n_test].astype(bool)
    _agree(int(bits.sum()), len(bits), n_test, error)
    return bits


def _agree(n_wrong: int, n_rows: int, n_test: int, error: float) -> None:
    if n_rows != n_test or n_test == 0 or abs(100 * n_wrong / n_test - error) > 0.006:  # percent may be rounded
        raise UnfitError(f"it has {n_wrong} of {n_rows} rows wrong; `n_test` is {n_test} and `test_error` {error:g} %")


def reliability(value: Any, key: str) -> Reliability:
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


def energies(value: Any, key: str) -> Energies:
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


def mistakes(value: Any, key: str, shape: Any) -> list[Mistake]:
    size = None if shape is None else a_shape(shape)

    def read(item: Any, key: str) -> Mistake:
        item = an_object(item, key)
        has_pixels = size is not None and item.get("pixels") is not None
        return Mistake(
            whole(item.get("row"), "row"),
            label(item.get("true"), "true"),
            label(item.get("predicted"), "predicted"),
            maybe(item.get("confidence"), "confidence"),
            packed(item["pixels"], "pixels", size[0] * size[1]).reshape(size) if size and has_pixels else None,
        )

    return a_list(value, key, read)


def filters(value: Any, key: str) -> dict[str, NDArray[np.uint8]]:
    found = {}
    for kind, content in an_object(value, key).items():
        item = an_object(content, kind)
        (h, w), n = a_shape(item.get("shape")), whole(item.get("n"), "n", 1, 1000)
        found[text(kind, key)] = packed(item.get("pixels"), "pixels", n * h * w).reshape(n, h, w)
    return found


def curves(value: Any, key: str) -> dict[str, Curve]:
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


def provenance(value: Any, key: str) -> Provenance:
    value = an_object(value, key)
    source = {part: label(value[part], part) for part in ("source", "seed") if value.get(part) is not None}
    source |= {f"file {name}": digest for name, digest in texts(value.get("files") or {}, "files").items()}
    words = {part: label(value[part], part) for part in ("train", "valid", "test") if value.get(part)}
    return Provenance(words, source, texts(value.get("sha256") or {}, "sha256"))


def extra(value: Any, key: str) -> dict[str, float | list[float]]:
    return {
        text(k, key): a_list(v, k, number) if isinstance(v, list) else number(v, k)
        for k, v in an_object(value, key).items()
        if v is not None
    }


def covariance(value: Any, key: str) -> Covariance:
    value = an_object(value, key)
    labels, scale = a_list(value.get("labels"), "labels", label), number(value.get("scale"), "scale")
    if not 0 < len(labels) <= _MOST_LABELS or scale <= 0:
        raise UnfitError(f"it must have 1 to {_MOST_LABELS} `labels` and a `scale` above 0")
    shape = (len(labels), len(labels))
    true, predicted = (
        (packed(value.get(part), part, len(labels) ** 2).reshape(shape).astype(float) - 128) / 127 * scale
        for part in ("true", "predicted")
    )
    return Covariance(labels, true, predicted)


# --- searches ------------------------------------------------------------------------------------------------------


def trials(value: Any, key: str) -> list[Trial]:
    """What was tried, in the order of the file."""
    found = []
    for i, trial in enumerate(a_list(value, key, an_object)):
        failed = trial.get("status", "ok") != "ok"
        found.append(
            Trial(
                number=i,
                config=texts(trial.get("config") or {}, "config"),
                log_loss=maybe(trial.get("valid_log_loss"), "valid_log_loss"),
                error_percent=maybe(trial.get("valid_error"), "valid_error"),
                seconds=maybe(trial.get("seconds"), "seconds"),
                error=(label(trial.get("error") or "", "error") or "failed") if failed else "",
            )
        )
    return found


def chosen(value: Any, key: str, tried: list[Trial]) -> int:
    if whole(value, key) >= len(tried):
        raise UnfitError(f"`{key}` must be one of {len(tried)} trials, counted from 0; it is {value}")
    return whole(value, key)


def search(content: dict[str, Any]) -> Search:
    """A whole file on how hyper-parameters were chosen."""
    picked = content.get("chosen")
    return Search(
        sorted(trials(content.get("trials"), "trials"), key=_rank),
        None if picked is None else whole(picked, "chosen"),
        label(content.get("chosen_by") or "", "chosen_by"),
        maybe(content.get("seconds"), "seconds"),
        label(content.get("device") or "", "device"),
    )


def _rank(trial: Trial) -> tuple[float, ...]:
    worst = float("inf")
    values = (worst if value is None else value for value in (trial.log_loss, trial.error_percent))
    return (bool(trial.error), *values, trial.number)
