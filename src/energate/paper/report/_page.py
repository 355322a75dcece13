"""The report's page: the headline of each table, where the time went, what is not shown."""

from collections.abc import Sequence

from energate.paper.report._cells import Cell, Entry, Results
from energate.paper.report._compare import Comparison
from energate.paper.report._headline import headline, measure_tables
from energate.paper.report._labels import chosen_seconds
from energate.paper.report._pictures import escape
from energate.paper.report._refined import refined_section, refinements
from energate.paper.report._sections import data_section, differences_words
from energate.paper.report._statistics import mean_spread
from energate.paper.report._style import CSS
from energate.paper.report._words import ABSENT, duration, plural, sentence, table

_MOST_NOTES = 100


def page(results: Results, tables: Sequence[Comparison]) -> str:
    """The whole page as HTML, complete in itself."""
    title = " · ".join(dict.fromkeys(comparison.title for comparison in tables))
    body = [f"<header><h1>{escape(title)}</h1>{_facts(results.cells)}{_contents(tables)}</header><main>"]
    for t, comparison in enumerate(tables):
        said = comparison.metric in comparison.title  # then it need not be said twice
        heading = comparison.title if said else f"{comparison.title}: {plural(comparison.metric)}"
        body.append(f'<section id="table-{t}"><h2>{escape(heading)}</h2>')
        refined = refined_section(comparison, refinements(comparison), t)
        body.append(headline(comparison, t) + measure_tables(comparison, t) + refined)
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
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body>{chr(10).join(body)}</body></html>\n"
    )


def _facts(cells: Sequence[Cell]) -> str:
    done = sum(cell.test_error is not None for cell in cells)
    facts = [f"{done} results" + (f", {len(cells) - done} failed" if done < len(cells) else "")]
    for name, values in (
        ("profile", {cell.profile for cell in cells}),
        ("device", {cell.device for cell in cells}),
        ("energate", {cell.versions.get("energate", "") for cell in cells}),
        ("run", {cell.date for cell in cells}),
    ):
        shown = sorted(values - {""})
        if shown:
            between = f"{shown[0]} to {shown[-1]}" if name == "run" and len(shown) > 1 else ", ".join(shown)
            facts.append(f"{name} {between}")
    return f'<p class="muted">{escape(" · ".join(facts))}</p>'


def _contents(tables: Sequence[Comparison]) -> str:
    links = []
    for t, comparison in enumerate(tables):
        links.append((f"table-{t}", comparison.title if len(tables) > 1 else sentence(plural(comparison.metric))))
        links += [(f"refined-{t}", "Refined against base")] if refinements(comparison) else []
        links.append((f"time-{t}", "Time"))
        links += [(f"data-{t}-{r}", row.label) for r, row in enumerate(comparison.rows)]
    shown = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name in links)
    return f'<nav aria-label="Contents">{shown}</nav>'


# --- time and notes ------------------------------------------------------------------------------------------------


def _times(comparison: Comparison, results: Results, t: int) -> str:
    searched: dict[str, float] = {}
    devices: dict[str, float] = {}
    for row in comparison.rows:
        for system, entry in row.entries.items():
            seconds, device = search_seconds(entry, results)
            searched[system] = searched.get(system, 0.0) + seconds
            devices[device] = devices.get(device, 0.0) + seconds
            for cell in [*entry.cells, *entry.failed]:
                devices[cell.device] = devices.get(cell.device, 0.0) + sum(cell.seconds.values())
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
    by_device = "; ".join(f"{escape(name or 'unknown device')}: {duration(s)}" for name, s in sorted(devices.items()))
    return (
        f'<h3 id="time-{t}">Where the time goes</h3>'
        + table(head, body, f"Wall-clock time, summed over data sets and {comparison.repeat}s.", empty=1)
        + f"<p>By device, with failed runs: {by_device}.{_clock(comparison, results)}</p>"
    )


def _clock(comparison: Comparison, results: Results) -> str:
    """What the clock said: tasks that run at the same time share a device, and their times add up to more."""
    runs = [run for run in results.runs if run.table == comparison.name]
    if not runs:
        return ""
    devices: dict[str, float] = {}
    for run in runs:
        devices[run.device] = devices.get(run.device, 0.0) + run.seconds
    clock = "; ".join(f"{escape(name)}: {duration(seconds)}" for name, seconds in sorted(devices.items()))
    most = max(run.jobs for run in runs)
    return f" By the clock, up to {most} tasks at a time: {clock}."


def search_seconds(entry: Entry, results: Results) -> tuple[float, str]:
    """How long the search for an entry's hyper-parameters took, and where it ran.

    A search is either one for all seeds, or one within each cell.
    """
    cells = [*entry.cells, *entry.failed]
    within = chosen_seconds(cells)
    if within is not None:
        return within, cells[0].device
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
