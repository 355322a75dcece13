"""Systems that refine what another one says, each against that other one: what refining is worth."""

from collections.abc import Sequence
from dataclasses import dataclass

from energate.paper.report._compare import Comparison, Row
from energate.paper.report._pictures import escape
from energate.paper.report._statistics import ERROR, Paired, lower_is_better, paired
from energate.paper.report._words import (
    ABSENT,
    fold,
    measure_digits,
    measure_name,
    number,
    p_value,
    signed,
    table,
)

#: Better by more than so many standard errors, or worse by more than so many, is marked.
BETTER, WORSE = 2.0, 1.0


@dataclass(frozen=True)
class Refined:
    """A system, the one that it refines, and their differences by measure; ``why_not`` where there are none."""

    row: Row
    system: str
    base: str
    gaps: dict[str, Paired]
    why_not: str = ""


def refinements(comparison: Comparison) -> list[Refined]:
    """Every system with a base, data set by data set."""
    found = []
    for row in comparison.rows:
        for system, entry in row.entries.items():
            base = next((cell.base for cell in [*entry.cells, *entry.failed] if cell.base), "")
            if not base or base == system:
                continue
            other = row.entries.get(base)
            if not entry.cells or other is None or not other.cells:
                who = system if not entry.cells else base
                found.append(Refined(row, system, base, {}, f"no results of {comparison.systems.get(who, who)}"))
                continue
            gaps = {measure: paired(entry, other, measure) for measure in [ERROR, *comparison.measures]}
            gaps = {measure: gap for measure, gap in gaps.items() if gap.gaps or measure == ERROR}
            found.append(Refined(row, system, base, gaps, gaps[ERROR].why_not if not gaps[ERROR].gaps else ""))
    return found


def mark(gap: Paired, measure: str) -> str:
    """``"better"``, ``"worse"``, or nothing where the difference is within its standard errors."""
    if gap.difference is None or gap.standard_error is None:
        return ""
    gain = -gap.difference if lower_is_better(measure) else gap.difference
    if gain > BETTER * gap.standard_error:
        return "better"
    return "worse" if -gain > WORSE * gap.standard_error else ""


def refined_section(comparison: Comparison, found: Sequence[Refined], t: int) -> str:
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
        values = "".join(f"<td>{value}</td>" for value in (len(own), *columns))
        rows.append(f'<tr><th scope="row">{names[0]}</th><td class="text">{names[1]}</td>{values}</tr>')
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
