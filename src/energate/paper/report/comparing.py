"""Results beside each other: means over seeds or splits, differences with their p-values, the best of a row."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from energate.paper.cell import Cell
from energate.paper.report.results import Results

#: The name of the error of a cell among its measures.
ERROR = "test_error"
#: Numbers that differ by less are the same, up to rounding.
EQUAL = 1e-9
#: A difference with a smaller p-value is called significant.
LEVEL = 0.05
#: Better by more than so many standard errors, or worse by more than so many, is marked.
BETTER, WORSE = 2.0, 1.0
_EXACT_UP_TO = 1000


@dataclass(frozen=True)
class Entry:
    """The cells of one system on one data set, by seed."""

    cells: list[Cell]
    failed: list[Cell]

    def n_wanted(self, n_seeds: int) -> int:
        """A system that is not random needs one seed, but every split."""
        return n_seeds if all(cell.random or cell.repeat != "seed" for cell in [*self.cells, *self.failed]) else 1

    @property
    def published(self) -> float | None:
        return next((cell.published for cell in [*self.cells, *self.failed] if cell.published is not None), None)


# --- numbers of one system, and of two --------------------------------------------------------------------------


def value_of(cell: Cell, measure: str) -> float | None:
    """The error of a cell, or another of its measures."""
    return cell.test_error if measure == ERROR else cell.measures.get(measure)


def values(entry: Entry, measure: str = ERROR) -> list[float]:
    """A measure of each cell that has it."""
    return [value for cell in entry.cells if (value := value_of(cell, measure)) is not None]


def lower_is_better(measure: str) -> bool:
    """Errors, losses and Brier scores are better the lower they are; every other measure the higher."""
    return measure.lower().endswith(("error", "loss", "brier"))


def mean_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and, of two values or more, the sample standard deviation."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Paired:
    """One system minus another, for each seed or split they share; None where the files do not tell."""

    gaps: list[float] = field(default_factory=list)
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None
    why_not: str = ""

    @property
    def n_seeds(self) -> int:
        return len(self.gaps)

    @property
    def difference(self) -> float | None:
        return mean_spread(self.gaps)[0] if self.gaps else None

    @property
    def spread(self) -> float | None:
        return mean_spread(self.gaps)[1] if self.gaps else None

    @property
    def standard_error(self) -> float | None:
        """Of the mean difference, as if the repeats were independent."""
        return None if self.spread is None else self.spread / math.sqrt(len(self.gaps))

    def counts(self, measure: str) -> tuple[int, int, int]:
        """In how many repeats the first system is better, equal, worse."""
        sign = 1 if lower_is_better(measure) else -1
        better = sum(sign * gap < -EQUAL for gap in self.gaps)
        worse = sum(sign * gap > EQUAL for gap in self.gaps)
        return better, len(self.gaps) - better - worse, worse


def paired(first: Entry, second: Entry, measure: str = ERROR) -> Paired:
    """The first system minus the second, seed by seed or split by split, on the same test rows."""
    others = {cell.seed: cell for cell in second.cells}
    pairs = [(cell, others[cell.seed]) for cell in first.cells if cell.seed in others]
    if not pairs:
        return Paired(why_not=f"no {[*first.cells, *second.cells][0].repeat} in common")
    if not all(_same_rows(a, b) for a, b in pairs):
        return Paired(why_not="different test rows")
    gaps = []
    for a, b in pairs:
        one, other = value_of(a, measure), value_of(b, measure)
        if one is not None and other is not None:
            gaps.append(one - other)
    if not gaps:
        return Paired(why_not="not measured")
    if all(cell.repeat == "split" for pair in pairs for cell in pair):
        return _by_split(gaps, pairs)
    return _by_row(gaps, pairs) if measure == ERROR else Paired(gaps)


def _same_rows(a: Cell, b: Cell) -> bool:
    shared = {"X_test", "y_test"} & a.provenance.hashes.keys() & b.provenance.hashes.keys()
    return (
        a.n_test == b.n_test
        and a.test_slice == b.test_slice
        and all(a.provenance.hashes[key] == b.provenance.hashes[key] for key in shared)
    )


# --- p-values ------------------------------------------------------------------------------------------------------


def _by_split(gaps: list[float], pairs: list[tuple[Cell, Cell]]) -> Paired:
    ratios = []
    for a, _ in pairs:
        if not a.n_train or a.n_test is None:
            return Paired(gaps, why_not="no record of the numbers of rows")
        ratios.append(a.n_test / a.n_train)
    if len(gaps) < 2:
        return Paired(gaps, why_not="one split")
    return Paired(gaps, p=corrected_t_p(gaps, mean_spread(ratios)[0]))


def _by_row(gaps: list[float], pairs: list[tuple[Cell, Cell]]) -> Paired:
    blocks: list[NDArray[np.int64]] = []
    only = [0, 0]
    for a, b in pairs:
        if a.wrong is None or b.wrong is None:
            return Paired(gaps, why_not="no record of the rows that were wrong")
        only[0] += int((a.wrong & ~b.wrong).sum())
        only[1] += int((b.wrong & ~a.wrong).sum())
        block = a.wrong.astype(np.int64) - b.wrong.astype(np.int64)
        if blocks and _same_rows(pairs[0][0], a):
            blocks[0] = blocks[0] + block  # one test row is one observation, however many seeds saw it
        else:
            blocks.append(block)
    return Paired(gaps, only[0], only[1], sign_flip_p(np.concatenate(blocks)))


def corrected_t_p(gaps: Sequence[float], ratio: float) -> float:
    """Two-sided p-value of the mean of two differences or more, one for each random split of the same rows.

    Splits share rows, so they are not independent: the variance of the mean is taken to be that of Nadeau and Bengio
    (2003), var (1/k + n_test/n_train) instead of var/k.  ``ratio`` is n_test/n_train.
    """
    from scipy.special import stdtr  # where it is used: it takes long to import

    mean, spread = mean_spread(gaps)
    if spread is None or abs(mean) <= EQUAL:
        return 1.0
    if spread <= EQUAL:
        return 0.0
    t = mean / (spread * math.sqrt(1 / len(gaps) + ratio))
    return float(2 * stdtr(len(gaps) - 1, -abs(t)))


def sign_flip_p(differences: NDArray[np.int64]) -> float:
    """Two-sided p-value of the sum of whole numbers, were each as likely to have the other sign.

    Numbers of -1, 0 and 1 make this the exact test of McNemar.  With many numbers that are not 0, a normal
    distribution takes the place of the exact one.
    """
    sizes = np.abs(differences[differences != 0])
    total = abs(int(differences.sum()))
    if total == 0:
        return 1.0
    if len(sizes) > _EXACT_UP_TO:
        return math.erfc(total / math.sqrt(2 * float((sizes.astype(float) ** 2).sum())))
    law = np.ones(1)
    for size, n in zip(*np.unique(sizes, return_counts=True), strict=True):
        # n signs: k of them +, so the sum moves in steps of 2 * size from -n * size.
        logs = np.array([math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)])
        spread = np.zeros(int(size) * n + 1)
        spread[:: int(size)] = np.exp(logs - n * math.log(2))
        law = np.convolve(law, spread)
    sums = 2 * np.arange(len(law)) - int(sizes.sum())
    return float(min(1.0, law[np.abs(sums) >= total].sum()))


# --- tables ----------------------------------------------------------------------------------------------------


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

    def standing(self, measure: str) -> Standing:
        """Who is best in a measure: nobody, where there is none of it."""
        return self.standings.get(measure, Standing())

    @property
    def best(self) -> list[str]:
        return self.standings[ERROR].best

    @property
    def close(self) -> dict[str, float]:
        return self.standings[ERROR].close


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
