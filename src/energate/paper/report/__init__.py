"""Results of experiments as one page, as Markdown and as CSV: functions of the files, and of nothing else.

Neither torch nor scikit-learn is needed, nor a network; the same files give the same bytes.  The page has pictures,
which matplotlib draws (the extra ``plot``).
"""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from energate.errors import InputError
from energate.files import written_whole
from energate.paper.cell import Cell
from energate.paper.report.comparing import compare
from energate.paper.report.page import page
from energate.paper.report.results import Results, read_results
from energate.paper.report.words import markdown, markdown_notes, quick_words


def write_report(results: str | os.PathLike[str], output: str | os.PathLike[str]) -> dict[str, Path]:
    """Write a page (HTML, complete in itself), its headline tables (Markdown) and its numbers (CSV).

    Parameters
    ----------
    results : the folder of results, or that of one table or data set in it.
    output : the path of the page, ending in ``.html``, or a folder for ``report.html``; Markdown and CSV go beside it.

    Returns the path of each: ``"html"``, ``"markdown"``, ``"csv"``.
    """
    found = _read(results)
    tables = compare(found)
    place = Path(output)
    one_file = place.suffix.lower() in {".html", ".htm"} and not place.is_dir()
    base = place if one_file else place / "report.html"
    texts = {
        "html": (base, page(found, tables)),
        "markdown": (base.with_suffix(".md"), _above(found) + markdown(tables) + markdown_notes(found.notes)),
        "csv": (base.with_suffix(".csv"), _csv(found.cells)),
    }
    for path, text in texts.values():
        with written_whole(path) as file:
            file.write(text.encode())
    return {name: path for name, (path, _) in texts.items()}


def _above(found: Results) -> str:
    said = quick_words(cell.profile for cell in found.cells)
    return f"**{said}**\n\n" if said else ""


def markdown_table(results: str | os.PathLike[str], systems: Sequence[str] | None = None) -> str:
    """The headline table of each table of results, as Markdown; of these systems only, where some are named."""
    found = _read(results)
    if systems is not None:
        unknown = set(systems) - {cell.system for cell in found.cells}
        if unknown:
            raise InputError(f"{results!s} has no results of {', '.join(sorted(unknown))}. Name systems that were run.")
        found = replace(found, cells=[cell for cell in found.cells if cell.system in systems])
    return markdown(compare(found))


def _read(results: str | os.PathLike[str]) -> Results:
    found = read_results(results)
    if not found.cells:
        why = f" {len(found.notes)} files cannot be shown; the first: {found.notes[0]}." if found.notes else ""
        raise InputError(f"There is nothing to report: {results!s} has no results of experiments.{why} Run some first.")
    return found


# --- CSV -----------------------------------------------------------------------------------------------------------

_COLUMNS = [
    *("table", "profile", "data", "system", "seed", "status", "error", "ours", "published", "test_error"),
    *("valid_error", "test_log_loss", "valid_log_loss", "calibration_error", "n_train", "n_valid", "n_test"),
    *("test_slice", "train", "valid", "test", "fit_seconds", "predict_seconds", "search_seconds", "device_peak_mib"),
    *("host_peak_mib", "device", "date", "energate", "file"),
]
#: Columns that are there if a result has something else in them than this.
_SOME = {"repeat": "seed", "metric": "test error", "base": "", "verdict": ""}


def _columns(cells: Sequence[Cell]) -> list[str]:
    """The columns of every report and, before the name of the file, those that only some results fill."""
    more = [key for key in _SOME if any(vars(cell)[key] != _SOME[key] for cell in cells)]
    more += sorted({key for cell in cells for key in cell.measures} - {*_COLUMNS, *_SOME})
    return [*_COLUMNS[:-1], *more, _COLUMNS[-1]]


def _csv(cells: Sequence[Cell]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = _columns(cells)
    writer.writerow(columns)
    for cell in sorted(cells, key=lambda c: (c.table, c.order[0], c.data, c.order[1], c.system, c.seed)):
        values = {
            **cell.measures,  # first: whatever they are called, they take no other column
            **{key: vars(cell)[key] for key in vars(cell).keys() & set(columns)},
            "status": "failed" if cell.failed else "ok",
            "search_seconds": cell.search_seconds,
            "calibration_error": None if cell.reliability is None else cell.reliability.ece,
            **cell.provenance.words,
            "fit_seconds": cell.seconds.get("fit"),
            "predict_seconds": cell.seconds.get("predict"),
            "device_peak_mib": cell.memory.get("device_peak_mib"),
            "host_peak_mib": cell.memory.get("host_peak_mib"),
            "energate": cell.versions.get("energate"),
        }
        writer.writerow([values.get(column) for column in columns])
    return text.getvalue()
