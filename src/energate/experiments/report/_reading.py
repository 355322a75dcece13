"""Reading results: JSON files to checked cells.  What cannot be shown is named, and never stops the reading.

Everything that later makes text or pictures works on these checked values alone.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.experiments.report._cells import (
    Cell,
    Curve,
    Energies,
    Mistake,
    Provenance,
    Reliability,
    Results,
    Run,
    Search,
    Trial,
)
from energate.experiments.report._values import (
    UnfitError,
    a_list,
    a_shape,
    an_object,
    label,
    maybe,
    number,
    numbers,
    packed,
    percent,
    text,
    texts,
    whole,
)

#: The version of the files that this module reads.
SCHEMA = 1
_LARGEST_FILE = 64 * 2**20
_MOST_CLASSES = 100
_T = TypeVar("_T")


def read_results(results: Any) -> Results:
    """Read every JSON file under a folder: that of all results, of one table, or of one data set."""
    folder = Path(results)
    if not folder.is_dir():
        raise InputError(f"`results` must be a folder with results of experiments; {folder} is none. Check the path.")
    cells: list[Cell] = []
    searches: dict[str, Search] = {}
    notes: list[str] = []
    seen: dict[tuple[str, str, str, int], str] = {}
    for path in sorted(folder.rglob("*.json"), key=lambda path: path.relative_to(folder).as_posix()):
        name = text(path.relative_to(folder).as_posix(), "its name")
        try:
            content = _load(path)
            if path.name == "search.json":
                searches[str(path.parent)] = _search(content)
                continue
            cell = _cell(content, name, str(path.parent), notes)
        except UnfitError as error:
            notes.append(f"{name}: {error}")
            continue
        key = (cell.table, cell.data, cell.system, cell.seed)
        if key in seen:
            notes.append(f"{name}: the same table, data set, system and seed as {seen[key]}, which is shown")
        else:
            seen[key] = name
            cells.append(cell)
    return Results(cells, searches, notes, _runs(folder, notes))


def _runs(folder: Path, notes: list[str]) -> list[Run]:
    """What the clock said of whole runs, from the lines of ``runs.jsonl``."""
    runs = []
    for path in sorted(folder.rglob("runs.jsonl")):
        name = text(path.relative_to(folder).as_posix(), "its name")
        try:
            for line in path.read_text().splitlines():
                content = an_object(json.loads(line, parse_constant=_no_constant), "the line")
                table, device = text(content.get("table"), "table"), text(content.get("device"), "device")
                jobs, seconds = whole(content.get("jobs"), "jobs"), number(content.get("seconds"), "seconds")
                runs.append(Run(table, device, jobs, seconds))
        except (OSError, ValueError, RecursionError, UnfitError) as error:
            notes.append(f"{name}: {error}")
    return runs


# --- files -------------------------------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, Any]:
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


def _cell(content: dict[str, Any], name: str, folder: str, notes: list[str]) -> Cell:
    order = an_object(content.get("order", {}), "order")
    status = text(content.get("status"), "status")
    if status not in {"ok", "failed"}:
        raise UnfitError("`status` must be ok or failed")
    words = {key: text(content.get(key), key) for key in ("table", "data", "system")}
    if not all(words.values()):
        raise UnfitError("`table`, `data` and `system` must not be empty")

    def part(key: str, read: Callable[[Any, str], _T], default: _T) -> _T:
        """A part that the report can do without."""
        try:
            return default if content.get(key) is None else read(content[key], key)
        except UnfitError as error:
            notes.append(f"{name}: shown without `{key}`: {error}")
            return default

    common: dict[str, Any] = {
        **words,
        "file": name,
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
        "seconds": part("seconds", numbers, dict[str, float]()),
        "versions": part("versions", texts, dict[str, str]()),
        "device": part("device", text, ""),
        "date": part("date", text, ""),
    }
    if status == "failed":
        return Cell(**common | {"error": common["error"] or "failed, without a message"})
    test_error = percent(content.get("test_error"), "test_error")
    sizes = {key: part(key, whole, -1) for key in ("n_train", "n_valid", "n_test")}
    sizes = {key: value for key, value in sizes.items() if value >= 0}
    n_test = sizes.get("n_test", 0)
    classes: list[str] = part("classes", lambda value, key: a_list(value, key, label), [])
    return Cell(
        **common,
        test_error=test_error,
        classes=classes,
        sizes=sizes,
        test_slice=part("test_slice", text, ""),
        valid_error=part("valid_error", percent, None),
        test_log_loss=part("test_log_loss", number, None),
        valid_log_loss=part("valid_log_loss", number, None),
        confusion=part("confusion", lambda value, key: _confusion(value, key, classes, n_test, test_error), None),
        wrong=part("wrong", lambda value, key: _wrong(value, key, n_test, test_error), None),
        reliability=part("reliability", _reliability, None),
        energies=part("energies", _energies, None),
        mistakes=part("mistakes", lambda value, key: _mistakes(value, key, content.get("shape")), []),
        filters=part("filters", _filters, {}),
        curves=part("curves", _curves, {}),
        extra=part("extra", _extra, {}),
        config=part("config", texts, {}),
        search=part("search", texts, {}),
        search_seconds=part("search", lambda value, key: maybe(an_object(value, key).get("seconds"), "seconds"), None),
        memory=part("memory", numbers, {}),
        provenance=part("provenance", _provenance, Provenance()),
    )


def _search(content: dict[str, Any]) -> Search:
    trials = []
    for i, trial in enumerate(a_list(content.get("trials"), "trials", an_object)):
        failed = trial.get("status", "ok") != "ok"
        trials.append(
            Trial(
                number=i,
                config=texts(trial.get("config") or {}, "config"),
                log_loss=maybe(trial.get("valid_log_loss"), "valid_log_loss"),
                error_percent=maybe(trial.get("valid_error"), "valid_error"),
                seconds=maybe(trial.get("seconds"), "seconds"),
                error=(label(trial.get("error") or "", "error") or "failed") if failed else "",
            )
        )
    trials.sort(key=_rank)
    chosen = content.get("chosen")
    return Search(
        trials,
        None if chosen is None else whole(chosen, "chosen"),
        label(content.get("chosen_by") or "", "chosen_by"),
        maybe(content.get("seconds"), "seconds"),
        label(content.get("device") or "", "device"),
    )


def _rank(trial: Trial) -> tuple[float, ...]:
    worst = float("inf")
    values = (worst if value is None else value for value in (trial.log_loss, trial.error_percent))
    return (bool(trial.error), *values, trial.number)


# --- parts of a cell -----------------------------------------------------------------------------------------------


def _confusion(value: Any, key: str, classes: list[str], n_test: int, error: float) -> NDArray[np.int64]:
    rows = a_list(value, key, lambda row, key: a_list(row, key, whole))
    if not 0 < len(rows) <= _MOST_CLASSES or any(len(row) != len(rows) for row in rows) or len(rows) != len(classes):
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
            label(item.get("true"), "true"),
            label(item.get("predicted"), "predicted"),
            maybe(item.get("confidence"), "confidence"),
            packed(item["pixels"], "pixels", size[0] * size[1]).reshape(size) if size and has_pixels else None,
        )

    return a_list(value, key, read)


def _filters(value: Any, key: str) -> dict[str, NDArray[np.uint8]]:
    found = {}
    for kind, content in an_object(value, key).items():
        item = an_object(content, kind)
        (h, w), n = a_shape(item.get("shape")), whole(item.get("n"), "n", 1, 1000)
        found[text(kind, key)] = packed(item.get("pixels"), "pixels", n * h * w).reshape(n, h, w)
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


def _provenance(value: Any, key: str) -> Provenance:
    value = an_object(value, key)
    source = {part: label(value[part], part) for part in ("source", "seed") if value.get(part) is not None}
    source |= {f"file {name}": digest for name, digest in texts(value.get("files") or {}, "files").items()}
    words = {part: label(value[part], part) for part in ("train", "valid", "test") if value.get(part)}
    return Provenance(words, source, texts(value.get("sha256") or {}, "sha256"))


def _extra(value: Any, key: str) -> dict[str, float | list[float]]:
    return {
        text(k, key): a_list(v, k, number) if isinstance(v, list) else number(v, k)
        for k, v in an_object(value, key).items()
        if v is not None
    }
