"""Means, spreads, and differences of two systems: paired by test row, or split by split."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from energate.paper.cell import Cell

#: The name of the error of a cell among its measures.
ERROR = "test_error"
#: Numbers that differ by less are the same, up to rounding.
EQUAL = 1e-9
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
