"""Reading results: JSON files to checked cells.  What cannot be shown is named, and never stops the reading.

Everything that later makes text or pictures works on these checked values alone.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from energate.errors import InputError
from energate.paper.report import _parts as parts
from energate.paper.report._cells import Cell, Provenance, Results, Run, Search, Trial
from energate.paper.report._values import (
    UnfitError,
    a_list,
    an_object,
    label,
    maybe,
    number,
    numbers,
    percent,
    text,
    texts,
    whole,
)

#: The version of the files that this module reads.
SCHEMA = 1
_LARGEST_FILE = 64 * 2**20
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
                searches[str(path.parent)] = parts.search(content)
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
        "repeat": part("repeat", parts.repeat, "seed"),
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
    sizes = {key: part(key, whole, -1) for key in ("n_train", "n_valid", "n_test")}
    sizes = {key: value for key, value in sizes.items() if value >= 0}
    n_test = sizes.get("n_test", 0)
    classes: list[str] = part("classes", lambda value, key: a_list(value, key, label), [])
    trials: list[Trial] = part("trials", parts.trials, [])
    return Cell(
        **common,
        test_error=test_error,
        classes=classes,
        sizes=sizes,
        test_slice=part("test_slice", text, ""),
        valid_error=part("valid_error", percent, None),
        test_log_loss=part("test_log_loss", number, None),
        valid_log_loss=part("valid_log_loss", number, None),
        confusion=part("confusion", lambda value, key: parts.confusion(value, key, classes, n_test, test_error), None),
        wrong=part("wrong", lambda value, key: parts.wrong(value, key, n_test, test_error), None),
        reliability=part("reliability", parts.reliability, None),
        energies=part("energies", parts.energies, None),
        mistakes=part("mistakes", lambda value, key: parts.mistakes(value, key, content.get("shape")), []),
        filters=part("filters", parts.filters, {}),
        curves=part("curves", parts.curves, {}),
        extra=part("extra", parts.extra, {}),
        measures=part("measures", numbers, {}),
        verdict=part("verdict", text, ""),
        covariance=part("covariance", parts.covariance, None),
        trials=trials,
        chosen=part("chosen", lambda value, key: parts.chosen(value, key, trials), None),
        config=part("config", texts, {}),
        search=part("search", texts, {}),
        search_seconds=part("search", lambda value, key: maybe(an_object(value, key).get("seconds"), "seconds"), None),
        memory=part("memory", numbers, {}),
        provenance=part("provenance", parts.provenance, Provenance()),
    )
