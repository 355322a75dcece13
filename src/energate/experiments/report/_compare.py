"""Results beside each other: means over seeds, the best of a row, differences paired by test row."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energate.experiments.report._cells import Cell, Results

#: A difference with a smaller p-value is called significant.
LEVEL = 0.05
_EXACT_UP_TO = 1000


@dataclass(frozen=True)
class Entry:
    """The cells of one system on one data set, by seed."""

    cells: list[Cell]
    failed: list[Cell]

    def n_wanted(self, n_seeds: int) -> int:
        """A system that is not random needs one seed."""
        return n_seeds if all(cell.random for cell in [*self.cells, *self.failed]) else 1

    @property
    def published(self) -> float | None:
        return next((cell.published for cell in [*self.cells, *self.failed] if cell.published is not None), None)


@dataclass(frozen=True)
class Row:
    """One data set: an entry for each system that was tried, warnings, the best systems."""

    data: str
    label: str
    entries: dict[str, Entry]
    warnings: list[str]
    best: list[str]
    close: dict[str, float]
    reference: str
    why: str

    @property
    def cells(self) -> list[Cell]:
        return [cell for entry in self.entries.values() for cell in entry.cells]


@dataclass(frozen=True)
class Comparison:
    """A table of results: data sets down, systems across."""

    name: str
    title: str
    systems: dict[str, str]
    ours: set[str]
    apart: dict[str, str]
    rows: list[Row]
    seeds: list[int]


@dataclass(frozen=True)
class Paired:
    """One system minus another over the seeds they share; None where the files do not tell."""

    n_seeds: int
    difference: float | None
    spread: float | None
    only_first: int | None
    only_second: int | None
    p: float | None
    why_not: str = ""


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
        tables.append(Comparison(name, cells[0].title, systems, ours, apart, rows, seeds))
    return tables


def _row(data: str, cells: list[Cell], systems: list[str]) -> Row:
    cells = sorted(cells, key=lambda cell: cell.seed)
    entries = {}
    for system in systems:
        own = [cell for cell in cells if cell.system == system]
        if own:
            good = [cell for cell in own if cell.test_error is not None]
            entries[system] = Entry(good, [cell for cell in own if cell.test_error is None])
    warnings = _warnings([cell for cell in cells if cell.test_error is not None])
    compared = {system: entry for system, entry in entries.items() if entry.cells and not entry.cells[0].apart}
    means = {system: error_mean(entry) for system, entry in compared.items()}
    best: list[str] = []
    close: dict[str, float] = {}
    if means and not warnings:  # means over different rows have no best
        lowest = min(means.values())
        best = [system for system, value in means.items() if value <= lowest + 1e-9]  # equal, up to rounding
        for system in means.keys() - set(best):
            p = paired(entries[system], entries[best[0]]).p
            if p is not None and p >= LEVEL:
                close[system] = p
    reference, why = _reference(entries)
    return Row(data, cells[0].data_label, entries, warnings, best, dict(sorted(close.items())), reference, why)


def error_mean(entry: Entry) -> float:
    """Mean test error in percent."""
    return mean_spread([cell.test_error for cell in entry.cells if cell.test_error is not None])[0]


def mean_spread(values: list[float]) -> tuple[float, float | None]:
    """The mean and, of two values or more, the sample standard deviation."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


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
    kinds = {
        "profiles": [cell.profile for cell in cells],
        "numbers of training rows": [str(cell.sizes.get("n_train", "unknown")) for cell in cells],
        "numbers of validation rows": [str(cell.sizes.get("n_valid", "unknown")) for cell in cells],
        "numbers of test rows": [str(cell.sizes.get("n_test", "unknown")) for cell in cells],
        "parts of the test rows": [cell.test_slice or "all" for cell in cells],
        "origins of the rows": [_origin(cell) for cell in cells],
        "rows (by their hashes)": [str(sorted(cell.provenance.hashes.items())) for cell in cells],
    }
    found = []
    for kind, values in kinds.items():
        if len(set(values)) > 1:
            groups: dict[str, list[str]] = {}
            for cell, value in zip(cells, values, strict=True):
                groups.setdefault(value, []).append(f"{cell.system_label} seed {cell.seed}")
            shown = [
                f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}"
                + ("" if "hashes" in kind else f": {value or 'none'}")
                for value, names in groups.items()
            ]
            found.append(f"different {kind} ({' | '.join(shown)})")
    return found


def _origin(cell: Cell) -> str:
    return ", ".join(f"{part} {word}" for part, word in cell.provenance.words.items()) or "unknown"


def origin_words(cells: list[Cell]) -> str:
    """What the rows of a data set are, in a word or two: *original*, *surrogate*, *test generated, train original*."""
    words = {word for cell in cells for word in cell.provenance.words.values()}
    if len(words) <= 1:
        return "".join(words)
    return next(_origin(cell) for cell in cells if cell.provenance.words)


# --- paired by row -------------------------------------------------------------------------------------------------


def paired(first: Entry, second: Entry) -> Paired:
    """The first system minus the second, seed by seed on the same test rows."""
    others = {cell.seed: cell for cell in second.cells}
    pairs = [(cell, others[cell.seed]) for cell in first.cells if cell.seed in others]
    if not pairs:
        return Paired(0, None, None, None, None, None, "no seed in common")
    if not all(_same_rows(a, b) for a, b in pairs):
        return Paired(len(pairs), None, None, None, None, None, "different test rows")
    difference, spread = mean_spread([(a.test_error or 0.0) - (b.test_error or 0.0) for a, b in pairs])
    blocks: list[NDArray[np.int64]] = []
    only = [0, 0]
    for a, b in pairs:
        if a.wrong is None or b.wrong is None:
            return Paired(len(pairs), difference, spread, None, None, None, "no record of the rows that were wrong")
        only[0] += int((a.wrong & ~b.wrong).sum())
        only[1] += int((b.wrong & ~a.wrong).sum())
        block = a.wrong.astype(np.int64) - b.wrong.astype(np.int64)
        if blocks and _same_rows(pairs[0][0], a):
            blocks[0] = blocks[0] + block  # one test row is one observation, however many seeds saw it
        else:
            blocks.append(block)
    return Paired(len(pairs), difference, spread, only[0], only[1], sign_flip_p(np.concatenate(blocks)))


def _same_rows(a: Cell, b: Cell) -> bool:
    shared = {"X_test", "y_test"} & a.provenance.hashes.keys() & b.provenance.hashes.keys()
    return (
        a.sizes.get("n_test") == b.sizes.get("n_test")
        and a.test_slice == b.test_slice
        and all(a.provenance.hashes[key] == b.provenance.hashes[key] for key in shared)
    )


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
