"""Results beside each other: tables with the best of each row, what makes a row hard to compare, refined and base."""

from collections.abc import Callable
from dataclasses import dataclass, field

from energate.paper.cell import Cell
from energate.paper.report.results import Results
from energate.paper.report.statistics import EQUAL, ERROR, Entry, Paired, lower_is_better, mean_spread, paired, values

#: A difference with a smaller p-value is called significant.
LEVEL = 0.05
#: Better by more than so many standard errors, or worse by more than so many, is marked.
BETTER, WORSE = 2.0, 1.0


@dataclass(frozen=True)
class Standing:
    """Who is the best of a row in one measure, and who is not significantly worse (with the p-value)."""

    best: list[str] = field(default_factory=list)
    close: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One data set: an entry for each system that was tried, warnings, who is best in each measure."""

    data: str
    label: str
    entries: dict[str, Entry]
    warnings: list[str]
    standings: dict[str, Standing]
    reference: str
    why: str

    @property
    def cells(self) -> list[Cell]:
        return [cell for entry in self.entries.values() for cell in entry.cells]

    def standing(self, measure: str = ERROR) -> Standing:
        """Who is best in a measure: nobody, where there is none of it."""
        return self.standings.get(measure, Standing())


@dataclass(frozen=True)
class Comparison:
    """A table of results: data sets down, systems across.

    ``repeat`` is the word for what is repeated, ``metric`` the name of the error; ``measures`` are the others.
    """

    name: str
    title: str
    systems: dict[str, str]
    ours: set[str]
    apart: dict[str, str]
    rows: list[Row]
    seeds: list[int]
    repeat: str
    metric: str
    measures: list[str]


def compare(results: Results) -> list[Comparison]:
    """Sort cells into tables, each in its own order."""
    tables = []
    for name in sorted({cell.table for cell in results.cells}):
        cells = [cell for cell in results.cells if cell.table == name]
        systems: dict[str, str] = {}
        for cell in sorted(cells, key=lambda cell: (cell.order[1], cell.system)):
            systems.setdefault(cell.system, cell.system_label)
        rows = []
        for data in dict.fromkeys(c.data for c in sorted(cells, key=lambda c: (c.order[0], c.data))):
            rows.append(_row(data, [cell for cell in cells if cell.data == data], list(systems)))
        ours = {cell.system for cell in cells if cell.ours}
        apart = {cell.system: cell.apart for cell in cells if cell.apart}
        seeds = sorted({cell.seed for cell in cells})
        repeats = {cell.repeat for cell in cells}
        repeat = repeats.pop() if len(repeats) == 1 else "repeat"
        metric = " or ".join(sorted({cell.metric for cell in cells}))
        measures = list(dict.fromkeys(key for row in rows for key in row.standings if key != ERROR))
        tables.append(
            Comparison(name, cells[0].title, systems, ours, apart, rows, seeds, repeat, metric, _in_order(measures))
        )
    return tables


def _row(data: str, cells: list[Cell], systems: list[str]) -> Row:
    cells = sorted(cells, key=lambda cell: cell.seed)
    entries = {}
    for system in systems:
        own = [cell for cell in cells if cell.system == system]
        if own:
            good = [cell for cell in own if not cell.failed]
            entries[system] = Entry(good, [cell for cell in own if cell.failed])
    warnings = _warnings([cell for cell in cells if not cell.failed])
    measures = [ERROR, *sorted({key for cell in cells for key in cell.measures})]
    standings = {measure: Standing() if warnings else _standing(entries, measure) for measure in measures}
    reference, why = _reference(entries)
    return Row(data, cells[0].data_label, entries, warnings, standings, reference, why)


def _in_order(measures: list[str]) -> list[str]:
    """Exact match first: it is the one that is shown beside the error."""
    return sorted(measures, key=lambda measure: (measure != "exact_match", measure))


def _standing(entries: dict[str, Entry], measure: str) -> Standing:
    sign = 1 if lower_is_better(measure) else -1
    means = {}
    for system, entry in entries.items():
        found = values(entry, measure)
        if found and not entry.cells[0].apart:
            means[system] = sign * mean_spread(found)[0]
    lowest = min(means.values(), default=0.0)
    best = [system for system, mean in means.items() if mean <= lowest + EQUAL]
    close = {}
    for system in sorted(means.keys() - set(best)):
        p = paired(entries[system], entries[best[0]], measure).p
        if p is not None and p >= LEVEL:
            close[system] = p
    return Standing(best, close)


def error_mean(entry: Entry) -> float:
    """Mean test error in percent."""
    return mean_spread(values(entry))[0]


def _reference(entries: dict[str, Entry]) -> tuple[str, str]:
    """The system that the others are measured against, chosen without the test rows; and why it is this one."""
    done = {system: entry for system, entry in entries.items() if entry.cells}
    done = {system: entry for system, entry in done.items() if not entry.cells[0].apart} or done
    ours = {system: entry for system, entry in done.items() if entry.cells[0].ours}
    pool, of = (ours, "of this project's systems") if ours else (done, "of all systems")
    valid = {}
    for system, entry in pool.items():
        values = [cell.valid_error for cell in entry.cells if cell.valid_error is not None]
        if len(values) == len(entry.cells):
            valid[system] = mean_spread(values)[0]
    if valid:
        return min(valid, key=lambda system: valid[system]), f"the lowest mean validation error {of}"
    return next(iter(pool), ""), f"the first {of}, none of which has a validation error"


def _warnings(cells: list[Cell]) -> list[str]:
    """What differs between the cells of a row and makes their means hard to compare."""
    kinds: dict[str, Callable[[Cell], str]] = {
        "profiles": lambda cell: cell.profile,
        "things repeated": lambda cell: cell.repeat,
        "kinds of error": lambda cell: cell.metric,
        "origins of the rows": _origin,
    }
    of_rows: dict[str, Callable[[Cell], str]] = {
        "numbers of training rows": lambda cell: _or_unknown(cell.n_train),
        "numbers of validation rows": lambda cell: _or_unknown(cell.n_valid),
        "numbers of test rows": lambda cell: _or_unknown(cell.n_test),
        "parts of the test rows": lambda cell: cell.test_slice or "all",
        "rows (by their hashes)": lambda cell: str(sorted(cell.provenance.hashes.items())),
    }
    found = [_differs(kind, cells, read) for kind, read in kinds.items()]
    # Splits differ in their rows by intent; within each, all systems must have the same.
    batches = [cells]
    if cells and all(cell.repeat == "split" for cell in cells):
        batches = [[cell for cell in cells if cell.seed == seed] for seed in sorted({cell.seed for cell in cells})]
    for kind, read in of_rows.items():
        found.append(next(filter(None, (_differs(kind, batch, read) for batch in batches)), ""))
    return [text for text in found if text]


def _or_unknown(n: int | None) -> str:
    return "unknown" if n is None else str(n)


def _differs(kind: str, cells: list[Cell], read: Callable[[Cell], str]) -> str:
    groups: dict[str, list[str]] = {}
    for cell in cells:
        groups.setdefault(read(cell), []).append(f"{cell.system_label} {cell.repeat} {cell.seed}")
    if len(groups) < 2:
        return ""
    shown = [
        f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}"
        + ("" if "hashes" in kind else f": {value or 'none'}")
        for value, names in groups.items()
    ]
    return f"different {kind} ({' | '.join(shown)})"


def _origin(cell: Cell) -> str:
    return ", ".join(f"{part} {word}" for part, word in cell.provenance.words.items()) or "unknown"


def origin_words(cells: list[Cell]) -> str:
    """What the rows of a data set are, in a word or two: *original*, *surrogate*, *test generated, train original*."""
    words = {word for cell in cells for word in cell.provenance.words.values()}
    if len(words) <= 1:
        return "".join(words)
    return next(_origin(cell) for cell in cells if cell.provenance.words)


# --- refined against base --------------------------------------------------------------------------------------


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
