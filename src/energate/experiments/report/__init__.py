"""Results of experiments as one page, as Markdown and as CSV: functions of the files, and of nothing else.

Neither torch nor scikit-learn is needed, nor a network; the same files give the same bytes.
"""

import csv
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from energate.errors import InputError
from energate.experiments.report._cells import Cell, Results
from energate.experiments.report._compare import Comparison, Row, compare, origin_words
from energate.experiments.report._page import explanation, page
from energate.experiments.report._reading import read_results
from energate.experiments.report._words import number, with_spread


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


def markdown_table(results: str | os.PathLike[str]) -> str:
    """The headline table of each table of results, as Markdown."""
    return _markdown(compare(_read(results)))


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
        labels = [_plain(label) for label in comparison.systems.values()]
        lines.append(f"| data set | {' | '.join(labels)} |")
        lines.append("|---|" + "---|" * len(labels))
        for row in comparison.rows:
            words = origin_words(row.cells)
            name = _plain(row.label) + (f" ({_plain(words)})" if words else "") + (" ⚠" if row.warnings else "")
            entries = [_markdown_entry(row, system, len(comparison.seeds)) for system in comparison.systems]
            lines.append(f"| {name} | {' | '.join(entries)} |")
        has_paper = any(entry.published is not None for row in comparison.rows for entry in row.entries.values())
        lines += ["", explanation(comparison) + (" In brackets: the paper." if has_paper else "")]
        lines += [
            f"\n⚠ {_plain(row.label)}: not comparable as they stand: {_plain('; '.join(row.warnings))}."
            for row in comparison.rows
            if row.warnings
        ]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _markdown_entry(row: Row, system: str, n_seeds: int) -> str:
    entry = row.entries.get(system)
    if entry is None:
        return "not run"
    paper = f" ({number(entry.published)})" if entry.published is not None else ""
    if not entry.cells:
        return f"failed{paper}"
    shown = with_spread([cell.test_error for cell in entry.cells if cell.test_error is not None])
    shown = f"**{shown}**" if system in row.best else f"≈ {shown}" if system in row.close else shown
    wanted = entry.n_wanted(n_seeds)
    short = f", {len(entry.cells)} of {wanted} seeds" if len(entry.cells) < wanted else ""
    return f"{shown}{paper}{short}"


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


def _csv(cells: Sequence[Cell]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for cell in sorted(cells, key=lambda c: (c.table, c.order[0], c.data, c.order[1], c.system, c.seed)):
        values = {
            **{key: vars(cell)[key] for key in vars(cell).keys() & set(_COLUMNS)},
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
        writer.writerow([values.get(column) for column in _COLUMNS])
    return text.getvalue()
