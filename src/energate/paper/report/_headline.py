"""The tables of means that open a report: data sets down, systems across, one for the error and for each measure."""

from energate.paper.report._cells import Entry
from energate.paper.report._compare import LEVEL, Comparison, Row, Standing, origin_words
from energate.paper.report._pictures import escape
from energate.paper.report._statistics import ERROR, lower_is_better, values
from energate.paper.report._words import (
    count,
    fold,
    measure_digits,
    measure_name,
    number,
    sentence,
    warning,
    with_spread,
)


def explanation(comparison: Comparison, measure: str = ERROR) -> str:
    """How a table of means is to be read, in plain text without its marks."""
    n, repeat = len(comparison.seeds), comparison.repeat
    spread = f"mean ± sample standard deviation over {count(n, repeat)}" if n > 1 else f"one {repeat}"
    first = "lowest" if lower_is_better(measure) else "highest"
    marks = f"Bold: the {first} mean of the row."
    if measure != ERROR:
        close = " ≈ as above." if any(_standing(row, measure).close for row in comparison.rows) else ""
        return f"{sentence(measure_name(measure))}: {spread}. {marks}{close}"
    entries = [entry for row in comparison.rows for entry in row.entries.values()]
    paper = " The paper's figure stands with it." if any(e.published is not None for e in entries) else ""
    kept = {
        why: [comparison.systems[s] for s in comparison.apart if comparison.apart[s] == why]
        for why in comparison.apart.values()
    }
    apart = "".join(f" Not among the compared: {', '.join(names)} ({why})." for why, names in kept.items())
    by_row = "paired over the same test rows"
    by_split = "in a t-test over splits with the variance of Nadeau and Bengio, which allows for splits that share rows"
    test = {"seed": by_row, "split": by_split}.get(repeat, f"{by_row}, or {by_split}")
    return (
        f"{sentence(comparison.metric)} in percent: {spread}.{paper} {marks} ≈: not significantly worse than it "
        f"(p ≥ {LEVEL:g}, {test}, not corrected for the number of systems).{apart}"
    )


def headline(comparison: Comparison, t: int, measure: str = ERROR) -> str:
    """The table of one measure, with the warnings on its rows below that of the error."""
    head = "".join(
        f'<th scope="col"{_ours(comparison, system)}>{escape(label)}</th>'
        for system, label in comparison.systems.items()
    )
    body = []
    for r, row in enumerate(comparison.rows):
        words = origin_words(row.cells) if measure == ERROR else ""
        sign = '<span class="bad" title="see the warning below">⚠ </span>' if row.warnings else ""
        name = f'{sign}<a href="#data-{t}-{r}">{escape(row.label)}</a>' + (
            f"<small>{escape(words)}</small>" if words else ""
        )
        cells = "".join(_entry(comparison, row, system, measure) for system in comparison.systems)
        body.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    dagger = " †: a system of this project." if comparison.ours and measure == ERROR else ""
    warned = [row for row in comparison.rows if row.warnings and measure == ERROR]
    return (
        f'<div class="scroll" tabindex="0"><table class="headline">'
        f"<caption><span>{escape(explanation(comparison, measure))}{dagger}</span></caption>"
        f'<thead><tr><th scope="col" class="text">data set</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>" + "".join(warning(row.warnings, row.label) for row in warned)
    )


def measure_tables(comparison: Comparison, t: int) -> str:
    """A table for each other measure: exact match in full view, the rest at a click."""
    shown = {measure: headline(comparison, t, measure) for measure in comparison.measures}
    exact = shown.pop("exact_match", "")
    names = ", ".join(measure_name(measure).removesuffix(", %") for measure in shown)
    return exact + fold("Other measures", "".join(shown.values()), names)


def _ours(comparison: Comparison, system: str) -> str:
    return ' class="ours" title="a system of this project"' if system in comparison.ours else ""


def _standing(row: Row, measure: str) -> Standing:
    return row.standings.get(measure, Standing())


def _entry(comparison: Comparison, row: Row, system: str, measure: str) -> str:
    entry, repeat = row.entries.get(system), comparison.repeat
    if entry is None:
        return '<td class="muted" title="no file">not run</td>'
    of_error = measure == ERROR
    paper = f"<small>paper {number(entry.published)}</small>" if of_error and entry.published is not None else ""
    failed = _failed(entry) if of_error else ""
    found = values(entry, measure)
    if not found:
        return f"<td>{failed}{paper}</td>" if of_error else '<td class="muted">not measured</td>'
    shown = with_spread(found, measure_digits(comparison, measure))
    seeds = ", ".join(str(cell.seed) for cell in entry.cells)
    title = f"{count(len(entry.cells), repeat)} ({seeds})"
    wanted = entry.n_wanted(len(comparison.seeds))
    short = "" if len(found) >= wanted else f"<small>{len(found)} of {count(wanted, repeat)}</small>"
    standing = _standing(row, measure)
    if system in standing.best:
        first = "lowest" if lower_is_better(measure) else "highest"
        below = f"{paper}{short}{failed}"
        return f'<td class="best" title="{first} mean of the row; {title}"><strong>{shown}</strong>{below}</td>'
    if system in standing.close:
        title = f"not significantly worse than the best: p = {standing.close[system]:.2g}; {title}"
        shown = f'<span class="sign">≈</span>{shown}'
    return f'<td title="{title}">{shown}{paper}{short}{failed}</td>'


def plain_entry(comparison: Comparison, row: Row, system: str, measure: str = ERROR) -> str:
    """An entry of a table of means as Markdown."""
    entry, repeat = row.entries.get(system), comparison.repeat
    if entry is None:
        return "not run"
    paper = f" ({number(entry.published)})" if measure == ERROR and entry.published is not None else ""
    found = values(entry, measure)
    if not found:
        return f"failed{paper}" if not entry.cells else "not measured"
    shown = with_spread(found, measure_digits(comparison, measure))
    standing = _standing(row, measure)
    shown = f"**{shown}**" if system in standing.best else f"≈ {shown}" if system in standing.close else shown
    wanted = entry.n_wanted(len(comparison.seeds))
    short = f", {len(found)} of {count(wanted, repeat)}" if len(found) < wanted else ""
    return f"{shown}{paper}{short}"


def _failed(entry: Entry) -> str:
    if not entry.failed:
        return ""
    errors = " | ".join(f"{cell.repeat} {cell.seed}: {cell.error}" for cell in entry.failed)
    which = "failed" if not entry.cells else f"{len(entry.failed)} failed"
    return f'<small class="bad" title="{escape(errors)}">{which}</small>'
