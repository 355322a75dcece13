"""What one pass through a `Stream` brings a model: its columns, rows that memory holds, and the way to all others.

Rows are counted, and classes; columns are learned from a uniform sample of as many rows as memory holds, n: the rank of
a quantile then has a standard error of at most 0.5 / sqrt(n).  Where memory holds all rows, these are all rows.  Else
some are held out, and every epoch of training is of other rows: `Refill`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.columns import CodedRows, Columns, classes_of, labels_of, learn_columns
from energate.tables.reading import Batch
from energate.tables.streams import Array, Ids, Sample, Stream, chances, taken
from energate.tables.values import CellError, counted, listed, words

MOST_HELD_OUT = 20_000
_CHANCE, _KEY = "\0chance", "\0key"  # beside the columns of a sample
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Streamed:
    """What a pass found: what was guessed of columns and left out, and how many rows there are, and to train on."""

    notes: tuple[str, ...]
    n_rows: int
    n_train: int
    n_memory: int  # of these at once in memory


@dataclass(frozen=True)
class Drawn:
    """Rows X (n, d) of a stream, what is to be predicted, y, and the way to the others, if there are any.

    ``held_out`` are rows and what is to be predicted of them, which train nothing; ``apart`` are such rows for another
    model.  There are ``times`` as many rows to train on, and ``refill(epoch)`` gives some of them, (n, d): row i has
    the y of row i here.
    """

    columns: Columns
    about: Streamed
    X: Array
    y: Any
    held_out: tuple[Array, Any] | None = None
    apart: tuple[Array, Any] | None = None
    refill: "Refill | None" = None
    times: float = 1.0

    @property
    def rows(self) -> CodedRows:
        """The rows with their columns, for an estimator that takes missing cells and categories as they are."""
        if self.refill is None:
            return CodedRows(self.X, self.columns)
        return StreamedRows(self.X, self.columns, self.refill, self.times)


@dataclass(frozen=True)
class StreamedRows(CodedRows):
    """Rows that coded columns made, of a table that has ``times`` as many: ``refill(epoch)`` gives others, (n, d).

    Row i of them is of the class of row i here.
    """

    refill: Callable[[int], Array]
    times: float


def draw(stream: Stream, task: str, *, coded: bool, share: float, apart: bool = False) -> Drawn:
    """One pass through a stream, for a ``task`` of classify, multilabel or anomaly.

    ``coded`` columns are for a model that takes missing cells and categories as they are.  ``share`` of the rows is
    held out, but at most `MOST_HELD_OUT`.  With ``apart`` half of the rows in memory are for another model, and no
    other rows are trained on.
    """
    wanted, found = stream.wanted, _pass(stream, task, share)
    try:
        columns, notes = learn_columns(
            found.sample,
            task=task,
            targets=wanted.predicted,
            labels=wanted.targets or None,
            drop=[*wanted.drop, *found.counters],
            keep=wanted.keep,
            categories=wanted.categories,
            coded=coded,
            declared=stream.nominal if coded else (),
        )
        X, y = columns.matrix(found.sample), _answers(found.sample, stream, task)
        held_out = None
        if found.n_held_out:
            held_out = columns.matrix(found.held_out), _answers(found.held_out, stream, task)
    except CellError as error:
        raise InputError(error.told("in a sample of the rows")) from error
    if task == "classify":
        _check_classes(y, None if held_out is None else held_out[1], found.counts, wanted.predicted[0])
    notes += [f"{name!r} is left out: it counts the rows (--keep takes it)." for name in found.counters]
    if found.n_without:
        notes.append(f"{counted(found.n_without, 'row')} without a value of {listed(wanted.predicted)} left out.")
    n_train = found.n_rows - found.n_held_out
    about = Streamed(tuple(notes), found.n_rows, n_train, len(X))
    if found.n_rows <= stream.size:
        return Drawn(columns, about, X, y)
    cut, other = -1.0, None  # rows with keys up to the cut are for the other model
    if apart:
        cut = float(np.quantile(found.keys, 0.5))
        mine = found.keys > cut
        other = X[~mine], None if y is None else y[~mine]
        X, y = X[mine], None if y is None else y[mine]
        n_train -= len(other[0])
    kinds = _kinds(y, len(X), stream, task)

    def read(rows: Ids, batch: Batch) -> tuple[Array, Codes]:
        here, chance = stream.mine(rows)
        here = here[(chance > found.cut) & (chances(rows[here], stream.seed + 1) > cut)]
        some = taken(batch, here)
        there = _there(some, wanted.predicted)
        some = some if there.all() else taken(some, np.flatnonzero(there))
        return columns.matrix(some), kinds.of(some)

    times = n_train / len(X)
    return Drawn(columns, about, X, y, held_out, other, Refill(stream, read, X, kinds.codes, times), times)


@dataclass(frozen=True)
class _Pass:
    """What was counted, and what was drawn: a sample with its keys, and the rows held out, of chances up to ``cut``."""

    n_rows: int
    n_without: int  # what is to be predicted
    counts: Counter[str | None]  # of classes
    counters: list[str]  # columns that count the rows
    sample: Batch
    keys: Array
    held_out: Batch
    n_held_out: int
    cut: float


def _pass(stream: Stream, task: str, share: float) -> _Pass:
    wanted = stream.wanted
    _check_wanted(stream, task)
    train, valid = Sample(stream.size), Sample(min(MOST_HELD_OUT, stream.size))
    counts, n_without, counters = Counter[str | None](), 0, list[str]()
    early = stream.at(share)
    for first, (rows, batch) in enumerate(stream.batches()):
        if not first:
            counters = _counters(batch, [*wanted.predicted, *wanted.drop])
        here, chance = stream.mine(rows)
        some = taken(batch, here)
        there = _there(some, wanted.predicted)
        if not there.all():
            n_without += int((~there).sum())
            here, chance, some = here[there], chance[there], taken(some, np.flatnonzero(there))
        if task == "classify":
            codes, different = words(some[wanted.predicted[0]])
            for code, n in zip(*np.unique(codes, return_counts=True), strict=True):
                counts[different[code]] += int(n)
        key, soon = chances(rows[here], stream.seed + 1), np.flatnonzero(chance < early)
        train.offer({**some, _CHANCE: chance, _KEY: key}, key)
        valid.offer({**taken(some, soon), _CHANCE: chance[soon]}, chance[soon])
    if not train.n_offered:
        why = f"none has a value of {listed(wanted.predicted)}" if n_without else "there are none"
        raise InputError(f"{stream.told} must have rows to learn from; {why}.")
    sample, held_out, cut = train.rows(), Batch(), -1.0
    chance, keys = sample.pop(_CHANCE), sample.pop(_KEY)
    n_held_out = 0
    if train.n_offered > stream.size:  # else memory holds all rows, and a model holds out as it does
        held_out = valid.rows()
        held = held_out.pop(_CHANCE, np.empty(0))
        n_held_out, cut = len(held), float(held.max(initial=-1.0))
        kept = np.flatnonzero(chance > cut)
        sample, keys = taken(sample, kept), keys[kept]
    left_out = [name for name in dict.fromkeys([*counters, *stream.index]) if name not in (*wanted.keep, *wanted.drop)]
    return _Pass(train.n_offered, n_without, counts, left_out, sample, keys, held_out, n_held_out, cut)


def _check_wanted(stream: Stream, task: str) -> None:
    names, wanted = listed(stream.names), stream.wanted
    if task == "classify" and (wanted.target is None or wanted.targets):
        raise InputError(
            f"A classifier needs the column with the classes: open_tables(..., target=NAME), without `targets`. There "
            f"are {names}."
        )
    if task == "multilabel" and (not wanted.targets or wanted.target is not None):
        raise InputError(
            f"Several labels need their columns: open_tables(..., targets=[A, B]), without `target`. There are {names}."
        )


def _there(batch: Batch, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which rows have what is to be predicted."""
    found = np.ones(_length(batch), dtype=bool)
    for name in names:
        codes, different = words(batch[name])
        if None in different:
            found &= np.array([text is not None for text in different], dtype=bool)[codes]
    return found


def _counters(batch: Batch, others: Sequence[str]) -> list[str]:
    """Columns that count the rows, as the first ones show: a sample of them would not."""
    found = list[str]()
    for name in (name for name in batch if name not in others):
        try:
            learn_columns({name: batch[name]})
        except InputError as error:
            if "counts the rows" in str(error):
                found.append(name)
    return found


def _answers(batch: Batch, stream: Stream, task: str) -> Any:
    if task == "anomaly":
        return None
    if task == "multilabel":
        return labels_of(batch, stream.wanted.targets)
    assert stream.wanted.target is not None
    return classes_of(batch, stream.wanted.target, to_learn=False)


def _check_classes(y: NDArray[Any], held_out: Any, counts: Counter[str | None], target: str) -> None:
    """Every class must be among the rows in memory, and among those held out."""
    if len(counts) < 2:
        raise InputError(f"The target {target!r} must have at least 2 classes; every row has {next(iter(counts))!s}.")
    known = set(map(str, np.unique(y).tolist()))
    absent = sorted({_plain(each) for each in counts} - known)
    if absent:
        raise InputError(
            f"The class {absent[0]!r} of {target!r} has so few rows that a sample of those in memory has none. Give "
            "more --memory, or leave its rows out."
        )
    absent = [] if held_out is None else sorted(known - set(map(str, np.unique(held_out).tolist())))
    if absent:
        raise InputError(
            f"The class {absent[0]!r} of {target!r} has so few rows that none is held out to choose epochs by. Leave "
            "its rows out, or set early_stopping=False."
        )


def _plain(name: str | None) -> str:
    """A class as `classes_of` reads it: whole numbers without a point."""
    try:
        number = float(str(name))
    except ValueError:
        return str(name)
    return str(int(number)) if number.is_integer() else str(name)


# --- rows of later epochs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kinds:
    """Which rows may stand in each other's place, by numbers: those of one class, or with the same labels."""

    codes: Codes  # of the rows in memory
    of: Callable[[Batch], Codes]  # of others; -1 where no row in memory is of the kind


def _kinds(y: Any, n_rows: int, stream: Stream, task: str) -> _Kinds:
    if task == "anomaly":
        return _Kinds(np.zeros(n_rows, dtype=np.int64), lambda batch: np.zeros(_length(batch), dtype=np.int64))
    different, codes = np.unique(y, axis=0, return_inverse=True)
    if task == "multilabel":
        known: dict[Any, int] = {row.tobytes(): number for number, row in enumerate(different)}

        def of_labels(batch: Batch) -> Codes:
            found, inverse = np.unique(labels_of(batch, stream.wanted.targets), axis=0, return_inverse=True)
            numbers = np.array([known.get(row.astype(different.dtype).tobytes(), -1) for row in found], dtype=np.int64)
            return numbers[inverse.reshape(-1)]

        return _Kinds(codes.reshape(-1), of_labels)
    target, classes = stream.wanted.predicted[0], {str(each): n for n, each in enumerate(different.tolist())}

    def of_classes(batch: Batch) -> Codes:
        found, names = words(batch[target])
        return np.array([classes.get(_plain(name), -1) for name in names], dtype=np.int64)[found]

    return _Kinds(codes, of_classes)


class Refill:
    """Rows for an epoch: stretches in an order drawn anew for every pass, as many as fill the places; then shuffled.

    ``read`` gives the rows of a batch, and the numbers of their kinds; those in memory are a ``matrix`` of these
    ``kinds``.  A function of the epoch alone, so that a training that was interrupted goes on with the same rows.
    """

    def __init__(
        self,
        stream: Stream,
        read: Callable[[Ids, Batch], tuple[Array, Codes]],
        matrix: Array,
        kinds: Codes,
        times: float,
    ) -> None:
        self.stream, self.read, self.matrix, self.kinds = stream, read, matrix, kinds
        self.n_chunks = max(1, min(len(stream.stretches), round(times)))

    def __call__(self, epoch: int) -> Array:
        number, chunk = divmod(epoch, self.n_chunks)
        order = np.random.default_rng([self.stream.seed, number]).permutation(len(self.stream.stretches))
        mine = [self.stream.stretches[i] for i in np.array_split(order, self.n_chunks)[chunk]]
        parts = self.stream.read(self.read, mine)
        draw = np.random.default_rng([self.stream.seed, number, chunk])
        found = self.matrix.copy()  # places of a kind that has no rows here keep those of the sample
        if not parts:
            return found
        X, kinds = np.concatenate([X for X, _ in parts]), np.concatenate([kinds for _, kinds in parts])
        n_kinds = int(self.kinds.max()) + 1
        for rows, places in zip(_grouped(kinds, n_kinds, draw), _grouped(self.kinds, n_kinds, draw), strict=True):
            n = min(len(rows), len(places))
            found[places[:n]] = X[rows[:n]]
        return found


def _grouped(kinds: Codes, n_kinds: int, draw: np.random.Generator) -> list[Codes]:
    """The numbers of the rows of each kind, in an order that is drawn."""
    order = draw.permutation(len(kinds))
    order = order[np.argsort(kinds[order], kind="stable")]
    ends = np.searchsorted(kinds[order], np.arange(n_kinds + 1))
    return np.split(order, ends)[1:-1]


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())))
