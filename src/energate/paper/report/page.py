"""The report's page: tables of means, what refining is worth, where the time went, each data set, what is not shown."""

from collections.abc import Sequence
from importlib.resources import files

from energate.paper.cell import Cell
from energate.paper.report.comparing import BETTER, WORSE, Comparison, Refined, Row, mark, origin_words, refinements
from energate.paper.report.results import Results
from energate.paper.report.sections import data_section, differences_words
from energate.paper.report.statistics import ERROR, Entry, Paired, lower_is_better, mean_spread, values
from energate.paper.report.words import (
    ABSENT,
    count,
    duration,
    escape,
    explanation,
    fold,
    measure_digits,
    measure_name,
    number,
    p_value,
    plural,
    quick_words,
    sentence,
    signed,
    table,
    warning,
    with_spread,
)

_MOST_NOTES = 100


def page(results: Results, tables: Sequence[Comparison]) -> str:
    """The whole page as HTML, complete in itself."""
    style = files("energate.paper.report").joinpath("style.css").read_text("utf-8")
    title = " · ".join(dict.fromkeys(comparison.title for comparison in tables))
    body = [f"<header><h1>{escape(title)}</h1>{_facts(results.cells)}{_contents(tables)}</header><main>"]
    for t, comparison in enumerate(tables):
        said = comparison.metric in comparison.title  # then it need not be said twice
        heading = comparison.title if said else f"{comparison.title}: {plural(comparison.metric)}"
        body.append(f'<section id="table-{t}"><h2>{escape(heading)}</h2>')
        refined = _refined(comparison, refinements(comparison), t)
        body.append(_means(comparison, t) + _other_measures(comparison, t) + refined)
        body.append(_times(comparison, results, t))
        body.append(f"<h3>Data sets one by one</h3><p>{escape(differences_words(comparison))}</p>")
        body += [data_section(comparison, row, results, f"data-{t}-{r}") for r, row in enumerate(comparison.rows)]
        body.append("</section>")
    body.append(_notes(results.notes))
    body.append("</main><footer>Everything on this page comes from the files of the results; nothing is loaded from ")
    body.append("elsewhere.</footer>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>{chr(10).join(body)}</body></html>\n"
    )


def _facts(cells: Sequence[Cell]) -> str:
    done = sum(not cell.failed for cell in cells)
    facts = [f"{done} results" + (f", {len(cells) - done} failed" if done < len(cells) else "")]
    for name, found in (
        ("profile", {cell.profile for cell in cells}),
        ("device", {cell.device for cell in cells}),
        ("energate", {cell.versions.get("energate", "") for cell in cells}),
        ("run", {cell.date for cell in cells}),
    ):
        shown = sorted(found - {""})
        if shown:
            between = f"{shown[0]} to {shown[-1]}" if name == "run" and len(shown) > 1 else ", ".join(shown)
            facts.append(f"{name} {between}")
    said = quick_words(cell.profile for cell in cells)
    above = f'<p class="warn" role="note">{escape(said)}</p>' if said else ""
    return f'<p class="muted">{escape(" · ".join(facts))}</p>{above}'


def _contents(tables: Sequence[Comparison]) -> str:
    links = []
    for t, comparison in enumerate(tables):
        links.append((f"table-{t}", comparison.title if len(tables) > 1 else sentence(plural(comparison.metric))))
        links += [(f"refined-{t}", "Refined against base")] if refinements(comparison) else []
        links.append((f"time-{t}", "Time"))
        links += [(f"data-{t}-{r}", row.label) for r, row in enumerate(comparison.rows)]
    shown = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name in links)
    return f'<nav aria-label="Contents">{shown}</nav>'


# --- means -------------------------------------------------------------------------------------------------------


def _means(comparison: Comparison, t: int, measure: str = ERROR) -> str:
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


def _other_measures(comparison: Comparison, t: int) -> str:
    """A table for each other measure: exact match in full view, the rest at a click."""
    shown = {measure: _means(comparison, t, measure) for measure in comparison.measures}
    exact = shown.pop("exact_match", "")
    names = ", ".join(measure_name(measure).removesuffix(", %") for measure in shown)
    return exact + fold("Other measures", "".join(shown.values()), names)


def _ours(comparison: Comparison, system: str) -> str:
    return ' class="ours" title="a system of this project"' if system in comparison.ours else ""


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
    standing = row.standing(measure)
    if system in standing.best:
        first = "lowest" if lower_is_better(measure) else "highest"
        below = f"{paper}{short}{failed}"
        return f'<td class="best" title="{first} mean of the row; {title}"><strong>{shown}</strong>{below}</td>'
    if system in standing.close:
        title = f"not significantly worse than the best: p = {standing.close[system]:.2g}; {title}"
        shown = f'<span class="sign">≈</span>{shown}'
    return f'<td title="{title}">{shown}{paper}{short}{failed}</td>'


def _failed(entry: Entry) -> str:
    if not entry.failed:
        return ""
    errors = " | ".join(f"{cell.repeat} {cell.seed}: {cell.error}" for cell in entry.failed)
    which = "failed" if not entry.cells else f"{len(entry.failed)} failed"
    return f'<small class="bad" title="{escape(errors)}">{which}</small>'


# --- refined against base ----------------------------------------------------------------------------------------


def _refined(comparison: Comparison, found: Sequence[Refined], t: int) -> str:
    """Refined minus base: error and exact match in full view, every measure with its p-value at a click."""
    if not found:
        return ""
    shown = [ERROR, *(measure for measure in comparison.measures if measure == "exact_match")]
    head = ["data set", "system", "refines"]
    for measure in shown:
        head += [_name(comparison, measure), "better / equal / worse", "mark"]
    rows = []
    for each in found:
        start = _start(comparison, each)
        if each.why_not:
            rows.append(
                f'<tr>{start}<td class="muted text" colspan="{3 * len(shown)}">{escape(each.why_not)}</td></tr>'
            )
            continue
        rows.append(f"<tr>{start}{''.join(_columns(comparison, each, measure) for measure in shown)}</tr>")
    repeat = comparison.repeat
    caption = (
        f"Refined minus base, {repeat} by {repeat}: mean difference in points ± its standard error, and the number of "
        f"{repeat}s in which the refined system is better, equal, worse. Marked: better by more than {BETTER:g} "
        f"standard errors, worse by more than {WORSE:g}."
    )
    if repeat == "split":
        caption += (
            " The standard error takes the splits for independent ones; they share rows, so it is on the small side, "
            "and p, at a click, is the sterner judge."
        )
    text = (0, 1, 2, *range(5, 3 + 3 * len(shown), 3))
    return (
        f'<h3 id="refined-{t}">Refined against base</h3>'
        + _summary(comparison, found, shown)
        + table(head, rows, caption, text=text)
        + fold("Every measure, refined against base", _detail(comparison, found))
    )


def _summary(comparison: Comparison, found: Sequence[Refined], measures: Sequence[str]) -> str:
    """On how many data sets each refined system is marked better and worse; nothing where there is one."""
    if len(comparison.rows) < 2:
        return ""
    rows = []
    for system, base in dict.fromkeys((each.system, each.base) for each in found):
        own = [each for each in found if (each.system, each.base) == (system, base) and not each.why_not]
        columns = []
        for measure in measures:
            marks = [_mark(each, each.gaps[measure], measure) for each in own if measure in each.gaps]
            columns += [marks.count("better"), marks.count("worse")]
        names = [escape(comparison.systems.get(name, name)) for name in (system, base)]
        counted = "".join(f"<td>{value}</td>" for value in (len(own), *columns))
        rows.append(f'<tr><th scope="row">{names[0]}</th><td class="text">{names[1]}</td>{counted}</tr>')
    head = ["system", "refines", "data sets"]
    for measure in measures:
        head += [f"{_name(comparison, measure)}: better", "worse"]
    caption = "On how many data sets a refined system is marked, below, as better or worse than its base."
    return table(head, rows, caption, text=(0, 1))


def _name(comparison: Comparison, measure: str) -> str:
    return comparison.metric if measure == ERROR else measure_name(measure).removesuffix(", %")


def _start(comparison: Comparison, each: Refined) -> str:
    names = [comparison.systems.get(system, system) for system in (each.system, each.base)]
    return f'<th scope="row">{escape(each.row.label)}</th>' + "".join(
        f'<td class="text">{escape(n)}</td>' for n in names
    )


def _columns(comparison: Comparison, each: Refined, measure: str) -> str:
    gap = each.gaps.get(measure)
    if gap is None:
        return f'<td>{ABSENT}</td><td>{ABSENT}</td><td class="text"></td>'
    counts = " / ".join(map(str, gap.counts(measure)))
    return f"<td>{_shown(comparison, gap, measure)}</td><td>{counts}</td>{_marked(each, gap, measure)}"


def _shown(comparison: Comparison, gap: Paired, measure: str) -> str:
    digits = measure_digits(comparison, measure)
    error = "" if gap.standard_error is None else f" ± {number(gap.standard_error, digits)}"
    return ABSENT if gap.difference is None else signed(gap.difference, digits) + error


def _marked(each: Refined, gap: Paired, measure: str) -> str:
    marks = {"better": "<strong>better</strong>", "worse": '<span class="bad">worse</span>'}
    return f'<td class="text">{marks.get(_mark(each, gap, measure), "")}</td>'


def _mark(each: Refined, gap: Paired, measure: str) -> str:
    return "" if each.row.warnings else mark(gap, measure)  # where results are not comparable, nothing is marked


def _detail(comparison: Comparison, found: Sequence[Refined]) -> str:
    rows = []
    for each in found:
        for measure, gap in each.gaps.items():
            if not gap.gaps:
                continue
            counts = "".join(f"<td>{n}</td>" for n in gap.counts(measure))
            p = ABSENT if gap.p is None else p_value(gap.p)
            rows.append(
                f'<tr>{_start(comparison, each)}<td class="text">{escape(_name(comparison, measure))}</td>'
                f"<td>{_shown(comparison, gap, measure)}</td><td>{gap.n_seeds}</td>{counts}<td>{p}</td>"
                f"{_marked(each, gap, measure)}</tr>"
            )
    head = ["data set", "system", "refines", "measure", "difference ± standard error", f"{comparison.repeat}s"]
    head += ["better", "equal", "worse", "p", "mark"]
    return table(head, rows, text=(0, 1, 2, 3, 10)) if rows else ""


# --- time and notes ----------------------------------------------------------------------------------------------


def _times(comparison: Comparison, results: Results, t: int) -> str:
    searched: dict[str, float] = {}
    times: list[tuple[str, float]] = []
    for row in comparison.rows:
        for system, entry in row.entries.items():
            seconds, device = _search_seconds(entry, results)
            searched[system] = searched.get(system, 0.0) + seconds
            times += [(device, seconds)]
            times += [(cell.device, sum(cell.seconds.values())) for cell in [*entry.cells, *entry.failed]]
    rows = []
    totals = {}
    for system, label in comparison.systems.items():
        cells = [cell for row in comparison.rows if system in row.entries for cell in row.entries[system].cells]
        fit = [cell.seconds["fit"] for cell in cells if "fit" in cell.seconds]
        predict = [cell.seconds["predict"] for cell in cells if "predict" in cell.seconds]
        totals[system] = sum(fit) + sum(predict) + searched.get(system, 0.0)
        mean = duration(mean_spread(fit)[0]) if fit else ABSENT
        rows.append((system, label, len(cells), mean, sum(fit), sum(predict), searched.get(system, 0.0)))
    longest = max(totals.values(), default=0.0) or 1.0
    body = [
        f'<tr><th scope="row">{escape(label)}</th><td>{n}</td><td>{mean}</td><td>{duration(fit)}</td>'
        f"<td>{duration(predict)}</td><td>{duration(search) if search else ABSENT}</td>"
        f"<td>{duration(totals[system])}</td>"
        f'<td class="text" aria-hidden="true" style="width:12rem">'
        f'<span class="bar" style="width:{100 * totals[system] / longest:.1f}%"></span></td></tr>'
        for system, label, n, mean, fit, predict, search in rows
    ]
    head = ["system", "fits", "mean fit", "all fits", "all predictions", "searches", "together"]
    return (
        f'<h3 id="time-{t}">Where the time goes</h3>'
        + table(head, body, f"Wall-clock time, summed over data sets and {comparison.repeat}s.", empty=1)
        + f"<p>By device, with failed runs: {_by_device(times)}.{_clock(comparison, results)}</p>"
    )


def _clock(comparison: Comparison, results: Results) -> str:
    """What the clock said: tasks that run at the same time share a device, and their times add up to more."""
    runs = [run for run in results.runs if run.table == comparison.name]
    if not runs:
        return ""
    clock = _by_device([(run.device, run.seconds) for run in runs])
    return f" By the clock, up to {max(run.jobs for run in runs)} tasks at a time: {clock}."


def _by_device(times: Sequence[tuple[str, float]]) -> str:
    """Seconds summed over devices, in words."""
    devices: dict[str, float] = {}
    for device, seconds in times:
        devices[device] = devices.get(device, 0.0) + seconds
    return "; ".join(f"{escape(name or 'unknown device')}: {duration(s)}" for name, s in sorted(devices.items()))


def _search_seconds(entry: Entry, results: Results) -> tuple[float, str]:
    """How long the search for an entry's hyper-parameters took, and where it ran.

    A search is either one for all seeds, or one within each cell.
    """
    cells = [*entry.cells, *entry.failed]
    within = [trial.seconds for cell in cells for trial in cell.trials if trial.seconds is not None]
    if within:
        return sum(within), cells[0].device
    found = next((results.searches[cell.folder] for cell in cells if cell.folder in results.searches), None)
    if found is not None and found.seconds is not None:
        return found.seconds, found.device or cells[0].device
    seconds = next((cell.search_seconds for cell in cells if cell.search_seconds is not None), 0.0)
    return seconds, cells[0].device


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes[:_MOST_NOTES])
    more = f"<li>and {len(notes) - _MOST_NOTES} more</li>" if len(notes) > _MOST_NOTES else ""
    return (
        '<section id="not-shown"><h2>Not shown</h2>'
        f'<div class="warn" role="note"><ul>{items}{more}</ul></div></section>'
    )
