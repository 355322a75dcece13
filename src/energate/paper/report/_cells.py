"""What a report is made of: the checked content of results, as plain records."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Reliability:
    """Equal bins of confidence: how many rows, their mean confidence, their accuracy (%; None where empty)."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    ece: float | None


@dataclass(frozen=True)
class Energies:
    """Histogram of relative energies: of rows under their own class and under the others."""

    edges: list[float]
    own: list[int]
    others: list[int]


@dataclass(frozen=True, eq=False)
class Mistake:
    """A test row that was given to the wrong class; ``pixels`` (h, w) where rows are pictures."""

    row: int
    true: str
    predicted: str
    confidence: float | None
    pixels: NDArray[np.uint8] | None


@dataclass(frozen=True)
class Curve:
    """What was measured after some epochs of one phase of training (None: not measured)."""

    epoch: list[float]
    loss: list[float | None]
    validation: list[float | None]


@dataclass(frozen=True)
class Provenance:
    """Of the rows: a word for each part (*original*, *surrogate* ...), where they came from, and their hashes."""

    words: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Covariance:
    """Which labels go together: among the true ones and among the predicted probabilities, (n, n) each."""

    labels: list[str]
    true: NDArray[np.float64]
    predicted: NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """One configuration that a search tried; ``error`` is empty unless it failed."""

    number: int
    config: dict[str, str]
    log_loss: float | None
    error_percent: float | None
    seconds: float | None
    error: str


@dataclass(frozen=True, eq=False)
class Cell:
    """One system trained once on one data set.  A failed one has no numbers (``test_error`` is None).

    ``seed`` numbers the times that a system was tried; ``repeat`` says what differs between them: the *seed*, on the
    same rows, or the *split* into rows to train and to test on.  ``metric`` is the name of ``test_error``.
    """

    file: str
    folder: str
    table: str
    title: str
    profile: str
    data: str
    data_label: str
    system: str
    system_label: str
    seed: int
    order: tuple[int, int]
    published: float | None
    ours: bool
    apart: str
    random: bool
    error: str
    repeat: str = "seed"
    metric: str = "test error"
    base: str = ""
    test_error: float | None = None
    classes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    test_slice: str = ""
    valid_error: float | None = None
    test_log_loss: float | None = None
    valid_log_loss: float | None = None
    confusion: NDArray[np.int64] | None = None
    wrong: NDArray[np.bool_] | None = None
    reliability: Reliability | None = None
    energies: Energies | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    filters: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    extra: dict[str, float | list[float]] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    verdict: str = ""
    covariance: Covariance | None = None
    trials: list[Trial] = field(default_factory=list)
    chosen: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    search: dict[str, str] = field(default_factory=dict)
    search_seconds: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    date: str = ""

    @property
    def has_labels(self) -> bool:
        """Whether a row has several labels; only then is there an exact match."""
        return "exact_match" in self.measures


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


@dataclass(frozen=True)
class Search:
    """How hyper-parameters were chosen; the trials best first."""

    trials: list[Trial]
    chosen: int | None
    chosen_by: str
    seconds: float | None
    device: str


@dataclass(frozen=True)
class Run:
    """One call of the harness: what the clock said."""

    table: str
    device: str
    jobs: int
    seconds: float


@dataclass(frozen=True)
class Results:
    """Cells in the order of their files, searches by folder, and notes on what is not shown."""

    cells: list[Cell]
    searches: dict[str, Search]
    notes: list[str]
    runs: list[Run] = field(default_factory=list)
