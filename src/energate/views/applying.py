"""`apply_table`: a table written again, with what a model says of each row."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from energate.conformal import check_level, discovery_threshold
from energate.errors import InputError
from energate.estimators.bases import MOST
from energate.estimators.edge import Array
from energate.files import check_output, written_whole
from energate.tables import (
    CellError,
    Columns,
    ImageColumn,
    NumberColumn,
    size_in_words,
    white_of,
)
from energate.tables.pictures import Pictures, PictureSource
from energate.tables.reading import PICTURE, SEPARATORS, AnyPath, Batch, Source, cut, joined, n_rows, open_table
from energate.tables.text import LINES, kind_of
from energate.tables.values import counted, is_text, listed, numbers
from energate.tables.writing import as_printed, check_kind, compressed, open_writer
from energate.views.meaning import MOST_ROWS, Meaning, measurable, measure_meaning
from energate.views.view import Command, Output, View, view_of


@dataclass(frozen=True)
class BaseColumns:
    """Columns ``prefix`` + label of a table hold what another program says of each label."""

    prefix: str
    kind: str = "probabilities"  # or "logits"


@dataclass(frozen=True)
class TableModel:
    """A fitted model, the columns of a table that it takes, if they are known, and what it is called in messages."""

    model: Any
    columns: Columns | None = None
    name: str = "the model"
    view: View = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "view", view_of(self.model))

    def labels(self) -> list[str]:
        """The names of the labels, or of the classes, of which the model gives probabilities."""
        return self.view.label_names(self.columns)

    @property
    def pictures(self) -> ImageColumn | None:
        """What the model takes where its rows are pictures."""
        inputs = () if self.columns is None else self.columns.inputs
        if len(inputs) == 1 and isinstance(inputs[0], ImageColumn):
            return inputs[0]
        shape = self.view.shape if self.columns is None else self.columns.image or self.view.shape
        if shape is None:
            return None
        limits = self.columns.range if self.columns is not None and self.columns.range else self.view.range
        height, width, channels = (*shape, 1)[:3]
        return ImageColumn(PICTURE, (height, width, channels), None if limits is None else white_of(limits[1]))

    def open(self, path: AnyPath | Source, part: str, on_error: str = "fail", **text: Any) -> Source:
        """A table, or pictures brought to the size and the scale that the model takes."""
        column = self.pictures
        how = Pictures(on_error=on_error)
        if column is not None:
            (height, width, channels), white = column.shape, column.white
            how = Pictures((height, width), channels > 1, on_error, white or how.white)
        found = open_table(path, part, pictures=how, **text)
        if isinstance(found, PictureSource) and (
            column is None or column.white is None or column.shape[2] not in (1, 3)
        ):
            kind = (
                "rows of columns" if column is None else f"pictures of {size_in_words(column.shape)} on another scale"
            )
            raise InputError(f"{self.name} takes {kind}, which files of pictures are not. Give it a table.")
        return found

    def match(self, source: Source) -> Columns:
        """The columns of a table that the model takes; one that was fitted on an array takes them by name or number."""
        width, known = self.view.n_features, vars(self.model).get("feature_names_in_")
        if self.pictures is not None and PICTURE in source.names:
            return Columns((replace(self.pictures, name=PICTURE),), "classify", image=self.pictures.shape)
        if self.columns is not None:
            missing = [name for name in self.columns.names if name not in set(source.names)]
            if missing:
                raise InputError(
                    f"{source.path.name} must have the columns that {self.name} takes; it lacks {listed(missing)}."
                )
            return self.view.suited(self.columns)
        numbered = [f"x{i}" for i in range(width)]
        for names in ([] if known is None else [str(name) for name in known], source.groups.get("X", []), numbered):
            if len(names) == width and set(names) <= set(source.names):
                return self.view.columns(names)
        if known is None and len(source.names) == width:
            return self.view.columns(source.names)
        raise InputError(
            f"{self.name} was saved without the names of its columns and takes {width}; {source.path.name} has "
            f"{len(source.names)}. Name them x0 to x{width - 1}, or have no others; or fit with `energate fit`."
        )

    def rows(
        self,
        source: Source,
        columns: Columns,
        base: BaseColumns | None = None,
        skipped: Callable[[int, str], object] | None = None,
    ) -> Iterator[tuple[Batch, Array, dict[str, Any]]]:
        """Batch by batch, the rows of a table as numbers (n, d), and what comes beside them.

        A row that cannot be used is an error; or ``skipped`` is told its number, from 0, and why, and it is left out.
        """
        done = 0

        def taken(batch: Batch) -> tuple[Array, dict[str, Any]]:
            X = columns.matrix(batch)
            return X, {} if base is None else {"scores": self._scores(base, batch)}

        for batch in source.batches():
            if not n_rows(batch):
                continue
            first, kept = done, batch
            done += n_rows(batch)
            if skipped is not None:
                kept = self._usable(batch, taken, lambda row, why, first=first: skipped(first + row, why))  # type: ignore[misc]
                if not n_rows(kept):
                    continue
            try:
                X, beside = taken(kept)
            except CellError as error:
                raise source.told(error, first) from error
            yield kept, X, beside
        if not done:
            raise InputError(f"{source.path.name} has no rows.")

    def _usable(
        self,
        batch: Batch,
        taken: Callable[[Batch], tuple[Array, dict[str, Any]]],
        skipped: Callable[[int, str], object],
    ) -> Batch:
        """The rows of a batch that the model takes; halves with a bad row in them are halved again to find it."""
        good = list[tuple[int, int]]()
        parts = [(0, n_rows(batch))]
        while parts:
            start, stop = parts.pop()
            try:
                self.view.rows(taken(cut(batch, start, stop))[0])
            except ValueError as error:  # of cells, or of scikit-learn's about rows
                if stop - start > 1:
                    middle = (start + stop) // 2
                    parts += [(middle, stop), (start, middle)]
                    continue
                skipped(start, error.told("row") if isinstance(error, CellError) else str(error).partition("\n")[0])
                continue
            good.append((start, stop))
        whole = good == [(0, n_rows(batch))]
        return batch if whole else joined([cut(batch, *each) for each in good]) if good else cut(batch, 0, 0)

    def _scores(self, base: BaseColumns, batch: Batch) -> Array:
        """What a table says of every label, as logits: (n, L)."""
        names, prefix = self.labels(), base.prefix
        missing = [f"{prefix}{name}" for name in names if f"{prefix}{name}" not in batch]
        if missing:
            wanted = f"{prefix}LABEL"
            raise InputError(f"DATA must have a column {wanted!r} for each label; it lacks {listed(missing)}.")
        found = np.stack([numbers(batch[f"{prefix}{name}"], f"{prefix}{name}") for name in names], 1)
        logits = base.kind == "logits"
        wrong = ~np.isfinite(found) | (False if logits else (found < 0) | (found > 1))
        if wrong.any():
            row, place = (int(each[0]) for each in np.nonzero(wrong))
            expected = "a number" if logits else "a probability, from 0 to 1 (--base-scores logits takes others)"
            raise CellError(f"{prefix}{names[place]}", row, float(found[row, place]), expected)
        if logits:
            return found
        with np.errstate(divide="ignore"):
            return np.clip(np.log(found) - np.log1p(-found), -MOST, MOST)

    # --- single rows of a table ------------------------------------------------------------------

    def some_rows(self, path: Path | Source, part: str, n_wanted: int, seed: int) -> Array:
        """Rows of a table, drawn at random if it has more than are wanted."""
        source = self.open(path, part)
        random, keys, kept = np.random.default_rng(seed), np.empty(0), np.empty((0, self.view.n_features))
        for _, X, _ in self.rows(source, self.match(source)):  # those with the largest of random keys
            keys, kept = np.concatenate([keys, random.random(len(X))]), np.concatenate([kept, X])
            best = np.sort(np.argsort(-keys, kind="stable")[:n_wanted])
            keys, kept = keys[best], kept[best]
        return kept

    def meaning(self, path: Path | Source, part: str) -> Meaning | None:
        """Whether explanations of a table's rows mean something; None where that is nothing to ask, or of few rows."""
        rows = self.some_rows(path, part, MOST_ROWS, 0) if self.view.moves else np.empty((0, 0))
        return measure_meaning(self.model, rows) if measurable(self.view, len(rows)) else None

    def one_row(
        self, path: Path | Source, part: str, number: int, base: BaseColumns | None
    ) -> tuple[Array, Any, Columns]:
        """One row of a table, counted from 1, what a base says of it there, and the columns it was made by."""
        source = self.open(path, part)
        columns, done = self.match(source), 0
        for _, X, beside in self.rows(source, columns, base):
            if done + len(X) >= number:
                here = number - 1 - done
                return X[here], beside["scores"][here] if beside else None, columns
            done += len(X)
        raise InputError(f"{source.path.name} has {done:,} rows; there is no row {number:,}. Rows count from 1.")


@dataclass(frozen=True)
class AppliedTable:
    """What `apply_table` wrote: where, how many rows, the names of the new columns, and what there is to say of it."""

    path: Path | None
    n_rows: int
    new: list[str]
    seconds: float
    notes: list[str] = field(default_factory=list)


def apply_table(
    model: Any,
    path: AnyPath | Source,
    output: str | os.PathLike[str] | IO[bytes],
    *,
    command: str = "predict",
    columns: Columns | None = None,
    leave_out: Sequence[str] = (),
    base: BaseColumns | None = None,
    levels: Mapping[str, float] | None = None,
    fdr: float | None = None,
    prefix: str = "",
    part: str = "test",
    on_error: str = "fail",
    delimiter: str | None = None,
    encoding: str | None = None,
    tell: Callable[[int], object] | None = None,
) -> AppliedTable:
    """Write a table again, with what a fitted model says of each row in new columns; it may be larger than memory.

    Parameters
    ----------
    model : a fitted estimator, or a `TableModel`.
    path : a table; or, for a model of pictures, a folder of them, a file, or several.
    output : the file to write, which takes its name when it is complete; or an open file, which gets CSV.
    command : what to say: ``"predict"``, ``"score"`` or ``"refine"``.
    columns : which columns the model takes, as `fit_table` and `energate.persistence.read_columns` say it.
    leave_out : outputs that are not wanted: ``"probabilities"``, ``"base"``.
    base : where the table has what a refiner's base says.
    levels : ``reject``: a column of that name says which rows are stranger than this share of rows held out;
        ``alpha``: columns ``set_CLASS`` say which classes each row may be of, at this error.
    fdr : a column ``discovery`` says which rows are strange, all rows of the table considered, at this false discovery
        rate; the table is read twice.
    prefix : put before the names of all new columns.
    on_error : of a file that is no picture: ``"fail"``, or ``"skip"`` to go on without it.
    delimiter, encoding : how a text file is written; guessed if left out.
    tell : is told the number of rows that are done.
    """
    began = time.monotonic()
    known = model if isinstance(model, TableModel) else TableModel(model, columns)
    levels = {name: check_level(name, level) for name, level in (levels or {}).items()}
    question = Question(command, tuple(leave_out), base, prefix, levels)
    source = known.open(path, part, on_error, delimiter=delimiter, encoding=encoding)
    target = Path(output) if isinstance(output, str | os.PathLike) else None
    if target is not None:
        check_kind(target)
        check_output(target, source.inputs)
    if fdr is not None:
        once = known.open(path, part, on_error, delimiter=delimiter, encoding=encoding)
        question = replace(question, discovered=question.of(known).threshold(once, fdr))
    asking = question.of(known)
    kind = ".csv" if target is None else kind_of(target)
    done, new, unseen = 0, list[str](), dict[str, Counter[str]]()
    answers = asking.answers(source, kind)
    with (
        contextlib.nullcontext(output) if target is None else written_whole(target) as file,
        compressed(target, file) as packed,  # type: ignore[arg-type]
        open_writer(kind, packed, source) as writer,
    ):
        for answer in answers:
            writer.write({**answer.carried, **answer.said})
            new, done = list(answer.said), done + answer.n_rows
            for name, found in answer.unseen.items():
                unseen[name] = _most(unseen.get(name, Counter()) + found)
            if tell is not None:
                tell(done)
    notes = [*source.told_notes(), *_told(unseen, done)]
    return AppliedTable(target, done, new, time.monotonic() - began, notes)


_REST = ""  # no category is an empty word


def _most(found: Counter[str], n_most: int = 1000) -> Counter[str]:
    """The most frequent; the others are counted as one, so that memory stays as it is."""
    if len(found) <= n_most:
        return found
    kept = Counter(dict(found.most_common(n_most)))
    kept[_REST] += found.total() - kept.total()
    return kept


def _told(unseen: dict[str, Counter[str]], n_all: int) -> list[str]:
    """Which cells were no category of the model."""
    notes = []
    for name, found in unseen.items():
        if found:
            shown = [text for text, _ in found.most_common(4) if text != _REST][:3]
            others = " and others" if len(found) > len(shown) else ""
            notes.append(
                f"{name!r}: {found.total():,} of {counted(n_all, 'row')} hold what is no category of the model: "
                f"{listed(shown)}{others}."
            )
    return notes


@dataclass(frozen=True)
class Question:
    """What is asked of the rows of tables, as in `apply_table`."""

    command: str = "predict"
    leave_out: tuple[str, ...] = ()
    base: BaseColumns | None = None
    prefix: str = ""
    levels: dict[str, float] = field(default_factory=dict)
    discovered: float | None = None  # the p-value up to which rows are discoveries, if they are asked for

    def of(self, known: TableModel) -> "Asking":
        """The question to a model, which is refused here if it has no answer."""
        command = command_of(known, self.command, {"scores"} if self.base is not None else set())
        return Asking(self, known, command, known.labels(), command.outputs_with(self.levels))


@dataclass(frozen=True)
class Answer:
    """Rows of a table: their columns, those that the model adds, and cells that are no category of it."""

    carried: Batch
    said: Batch
    n_rows: int
    unseen: dict[str, Counter[str]]


@dataclass(frozen=True)
class Asking:
    """A question to a model; `answers` may be asked for of one table after the other."""

    question: Question
    known: TableModel
    asked: Command
    labels: list[str]
    outputs: tuple[Output, ...]

    def answers(
        self, source: Source, kind: str = ".parquet", skipped: Callable[[int, str], object] | None = None
    ) -> Iterator[Answer]:
        """What is to be written, batch by batch, into a file whose suffix is ``kind``.

        A row that cannot be used is an error; or ``skipped`` is told its number, from 0, and why, and it is left out.
        The names of columns are looked at before this returns.
        """
        question, taken = self.question, self.known.match(source)
        said: Batch = {}

        def found() -> Iterator[Answer]:
            nonlocal said
            rows = self.known.rows(source, taken, question.base, skipped)
            for batch, X, beside in rows:
                first = not said
                said = self._said(X, beside)
                if first:
                    _check_clash(list(said), source.names, question.prefix)
                yield Answer(_carried(batch, taken, kind), as_printed(said, kind), len(X), taken.unseen(batch))

        return found()

    def _said(self, X: Array, beside: dict[str, Any]) -> Batch:
        """The new columns for rows (n, d)."""
        question, found = self.question, self.asked.answer(X, self.question.levels, **beside)
        said = _as_columns(self.outputs, found, self.labels, question.leave_out, question.prefix)
        if question.discovered is not None:
            said[f"{question.prefix}discovery"] = (found["p_value"] <= question.discovered).astype(np.int64)
        return said

    def threshold(self, source: Source, fdr: float) -> float:
        """The p-value up to which the rows of a table are discoveries, at a false discovery rate."""
        check_level("fdr", fdr)
        if "p_value" not in {output.name for output in self.outputs}:
            raise InputError(f"`fdr` needs p-values, which {self.known.name} does not say of rows. Leave it out.")
        rows = self.known.rows(source, self.known.match(source), self.question.base)
        p = [self.asked.compute(X, **beside)["p_value"] for _, X, beside in rows]
        return discovery_threshold(np.concatenate(p), fdr)

    def nothing(self, source: Source) -> Batch:
        """The columns of `answers` for a table of which no row can be used."""
        X = self.known.view.draw(1, 0)["X"]
        beside = {} if self.question.base is None else {"scores": np.zeros((1, len(self.labels)))}
        said = self._said(X, beside)
        kept = _carried(cut(next(source.batches()), 0, 0), self.known.match(source), ".parquet")
        return {**kept, **cut(said, 0, 0)}


_GIVEN = {"scores": "no scores of a base. Leave them out."}


def command_of(known: TableModel, name: str, given: Collection[str]) -> Command:
    """What a model is asked, if it can be asked that with what is ``given`` beside the rows."""
    commands = known.view.commands()
    kind = type(known.model).__name__
    if name not in commands:
        offered = ", ".join(commands) or "nothing of single rows"
        raise InputError(f"`{name}` is nothing for {known.name}, which is of the kind {kind} and has {offered}.")
    command = commands[name]
    lacking = [each.name for each in command.beside if each.needed and each.name not in given]
    if lacking:
        raise InputError(f"`{name}` of {known.name}, which is of the kind {kind}, needs {lacking[0]} with the rows.")
    needless = [each for each in given if each not in {beside.name for beside in command.beside}]
    if needless:
        words = _GIVEN.get(needless[0], f"no `{needless[0]}`. Leave it out.")
        raise InputError(f"`{name}` of {known.name}, of the kind {kind}, takes {words}")
    return command


def _as_columns(
    outputs: Sequence[Output], said: dict[str, Any], labels: list[str], leave_out: Sequence[str], prefix: str
) -> dict[str, Any]:
    """Outputs as columns of a table."""
    found: dict[str, Any] = {}
    for output in outputs:
        if output.name in leave_out:
            continue
        values = said[output.name]
        values = values.astype(np.int64) if values.dtype.kind == "b" else values
        if output.axes:
            found |= {f"{prefix}{output.column}{name}": values[:, i] for i, name in enumerate(labels)}
        else:
            found[f"{prefix}{output.column}"] = values
    return found


def _carried(batch: Batch, columns: Columns, kind: str) -> Batch:
    """The columns of the table as they are; but text that was read as numbers is numbers where a format has types."""
    if kind != ".npz":  # no cell of a table holds a picture
        batch = {name: values for name, values in batch.items() if np.ndim(values) < 3}
    if kind in SEPARATORS or kind in LINES:
        return batch
    taken = [(column.name, column.form) for column in columns.inputs if isinstance(column, NumberColumn)]
    return {**batch, **{name: numbers(batch[name], name, form) for name, form in taken if is_text(batch[name])}}


def _check_clash(new: list[str], old: list[str], prefix: str) -> None:
    twice = [name for name in new if name in set(old)]
    if twice:
        raise InputError(
            f"DATA has the columns {listed(twice)} already, which would be new. Give the new ones another prefix: "
            f"--prefix {prefix}new_."
        )
