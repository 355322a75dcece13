"""Results of experiments as one page, as Markdown and as CSV: functions of the files, and of nothing else.

Neither torch nor scikit-learn is needed, nor a network; the same files give the same bytes.
"""

import csv
import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from energate.errors import InputError
from energate.paper.report._cells import Cell, Results
from energate.paper.report._compare import Comparison, compare, origin_words
from energate.paper.report._headline import explanation, plain_entry
from energate.paper.report._page import page
from energate.paper.report._reading import read_results
from energate.paper.report._statistics import ERROR


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
        "markdown": (base.with_suffix(".md"), _markdown(tables) + _markdown_notes(found.notes)),
        "csv": (base.with_suffix(".csv"), _csv(found.cells)),
    }
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.values():
            _write(path, text)
    except OSError as error:
        raise InputError(f"The report cannot be written to {base}: {error.strerror}. Choose another path.") from error
    return {name: path for name, (path, _) in texts.items()}


def markdown_table(results: str | os.PathLike[str], systems: Sequence[str] | None = None) -> str:
    """The headline table of each table of results, as Markdown; of these systems only, where some are named."""
    found = _read(results)
    if systems is not None:
        unknown = set(systems) - {cell.system for cell in found.cells}
        if unknown:
            raise InputError(f"{results!s} has no results of {', '.join(sorted(unknown))}. Name systems that were run.")
        found = replace(found, cells=[cell for cell in found.cells if cell.system in systems])
    return _markdown(compare(found))


def _read(results: str | os.PathLike[str]) -> Results:
    found = read_results(results)
    if not found.cells:
        why = f" {len(found.notes)} files cannot be shown; the first: {found.notes[0]}." if found.notes else ""
        raise InputError(f"There is nothing to report: {results!s} has no results of experiments.{why} Run some first.")
    return found


def _write(path: Path, text: str) -> None:
    """Write all of a file or nothing of it."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        umask = os.umask(0)  # it can only be read by setting it
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp lets nobody else read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


# --- Markdown ------------------------------------------------------------------------------------------------------


def _markdown(tables: Sequence[Comparison]) -> str:
    blocks = []
    for comparison in tables:
        lines = [f"### {_plain(comparison.title)}", ""] if len(tables) > 1 else []
        lines += _markdown_rows(comparison, ERROR)
        has_paper = any(entry.published is not None for row in comparison.rows for entry in row.entries.values())
        lines += ["", explanation(comparison) + (" In brackets: the paper." if has_paper else "")]
        lines += [
            f"\n⚠ {_plain(row.label)}: not comparable as they stand: {_plain('; '.join(row.warnings))}."
            for row in comparison.rows
            if row.warnings
        ]
        if "exact_match" in comparison.measures:
            lines += ["", explanation(comparison, "exact_match"), "", *_markdown_rows(comparison, "exact_match")]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _markdown_rows(comparison: Comparison, measure: str) -> list[str]:
    labels = [_plain(label) for label in comparison.systems.values()]
    lines = [f"| data set | {' | '.join(labels)} |", "|---|" + "---|" * len(labels)]
    for row in comparison.rows:
        words = origin_words(row.cells)
        name = _plain(row.label) + (f" ({_plain(words)})" if words else "") + (" ⚠" if row.warnings else "")
        entries = [plain_entry(comparison, row, system, measure) for system in comparison.systems]
        lines.append(f"| {name} | {' | '.join(entries)} |")
    return lines


def _markdown_notes(notes: Sequence[str]) -> str:
    return "\nNot shown:\n\n" + "".join(f"- {_plain(note)}\n" for note in notes) if notes else ""


def _plain(text: str) -> str:
    """Text that means nothing else in a Markdown table."""
    shown = " ".join(text.split()).replace("\\", "\\\\")
    for sign in "|*_`[]<>":
        shown = shown.replace(sign, f"&#{ord(sign)};" if sign in "<>" else f"\\{sign}")
    return shown


# --- CSV -----------------------------------------------------------------------------------------------------------

_COLUMNS = [
    *(
        "table",
        "profile",
        "data",
        "system",
        "seed",
        "status",
        "error",
        "ours",
        "published",
        "test_error",
        "valid_error",
    ),
    *("test_log_loss", "valid_log_loss", "calibration_error", "n_train", "n_valid", "n_test", "test_slice"),
    *("train", "valid", "test", "fit_seconds", "predict_seconds", "search_seconds", "device_peak_mib", "host_peak_mib"),
    *("device", "date", "energate", "file"),
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
            "status": "failed" if cell.test_error is None else "ok",
            "calibration_error": None if cell.reliability is None else cell.reliability.ece,
            **cell.sizes,
            **cell.provenance.words,
            "fit_seconds": cell.seconds.get("fit"),
            "predict_seconds": cell.seconds.get("predict"),
            "device_peak_mib": cell.memory.get("device_peak_mib"),
            "host_peak_mib": cell.memory.get("host_peak_mib"),
            "energate": cell.versions.get("energate"),
        }
        writer.writerow([values.get(column) for column in columns])
    return text.getvalue()
