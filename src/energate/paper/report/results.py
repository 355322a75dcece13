"""All results under a folder: checked cells, searches and runs.  What cannot be shown is named, and stops nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energate.errors import InputError
from energate.paper.cell import Cell, Run, Search, UnfitError, read_cell, read_file, read_runs, read_search, text


@dataclass(frozen=True)
class Results:
    """Cells in the order of their files, searches by folder, and notes on what is not shown."""

    cells: list[Cell]
    searches: dict[str, Search]
    notes: list[str]
    runs: list[Run] = field(default_factory=list)


def read_results(results: Any) -> Results:
    """Read every JSON file under a folder: that of all results, of one table, or of one data set."""
    folder = Path(results)
    if not folder.is_dir():
        raise InputError(f"`results` must be a folder with results of experiments; {folder} is none. Check the path.")
    found = Results([], {}, [])
    seen: dict[tuple[str, str, str, int], str] = {}
    for path in sorted(folder.rglob("*.json"), key=lambda path: path.relative_to(folder).as_posix()):
        name = text(path.relative_to(folder).as_posix(), "its name")
        try:
            content = read_file(path)
            if path.name == "search.json":
                found.searches[str(path.parent)] = read_search(content)
                continue
            cell = read_cell(content, found.notes, name, str(path.parent))
        except UnfitError as error:
            found.notes.append(f"{name}: {error}")
            continue
        key = (cell.table, cell.data, cell.system, cell.seed)
        if key in seen:
            found.notes.append(f"{name}: the same table, data set, system and seed as {seen[key]}, which is shown")
        else:
            seen[key] = name
            found.cells.append(cell)
    for path in sorted(folder.rglob("runs.jsonl")):
        try:
            found.runs.extend(read_runs(path))
        except UnfitError as error:
            found.notes.append(f"{text(path.relative_to(folder).as_posix(), 'its name')}: {error}")
    return found
