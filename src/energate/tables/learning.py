"""What to make of a column of a table: numbers, however they are written, categories, dates, free text, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.columns import CategoryColumn, Column, Columns, ImageColumn, NumberColumn, size_in_words
from energate.tables.forms import ISO, Form, Guess, date_format, guess_form, look_like_dates
from energate.tables.made import DateColumn, TextColumn, is_free_text, learn_dates, learn_text
from energate.tables.values import (
    ID_SHARE,
    MIXED_SHARE,
    MOST_CATEGORIES,
    CellError,
    categories_of,
    is_temporal,
    is_text,
    numbers,
    words,
)

Array = NDArray[np.float64]
FEW_ROWS, MOST_GAPS = 20, 0.25  # of more rows, this share may be missing from those that a column counts


@dataclass(frozen=True)
class Learner:
    """Looks at ``rows`` for fill values and categories, and at all rows for what a column is; ``notes`` get the rest.

    ``missing`` are words that are missing cells, ``decimal`` the mark before fractions if it is known, or likelier.
    """

    rows: NDArray[np.int64] | None
    missing: tuple[str, ...]
    decimal: str | None
    notes: list[str]

    @property
    def _looked_at(self) -> Any:
        return slice(None) if self.rows is None else self.rows

    def learn(self, name: str, values: Any, category: bool, keep: bool, typed: bool) -> Column | str:
        """A column as a model takes it, or why it is left out.

        The user says that it is a ``category``, or its type does (``typed``); or that it is to be taken (``keep``).
        """
        form = Form(self.missing)
        if not category and is_temporal(values):
            return self._dates(name, values, ISO, form)
        found = None if category or typed else self._numbers(name, values)
        if found is not None:
            return self._of_numbers(name, *found, keep)
        codes, different = words(values, self.missing)
        present = [text for text in different if text is not None]
        if not category and len(present) > 2 and look_like_dates(present):
            style, either = date_format(present)
            if style is not None:
                if either:
                    self.notes.append(
                        f"{name!r}: dates such as {present[0]!r} are read as {style}; no row says whether the day or "
                        "the month comes first. Write them as 2024-01-31 if that is wrong."
                    )
                return self._dates(name, values, style, form)
            if not keep:
                return f"it holds dates of which some cannot be read, such as {present[0]!r}; write them as 2024-01-31."
        names_rows = len(present) > max(2, ID_SHARE * len(codes))
        if not category and not typed and is_free_text(len(codes), different, names_rows, MOST_CATEGORIES):
            text = learn_text(name, codes, different, form, self._looked_at)
            if text is not None:
                n_words = len(text.vocabulary)
                self.notes.append(
                    f"{name!r} is free text; {n_words} {'word' if n_words == 1 else 'words'} that are in at least 2 % "
                    f"of the rows become columns of 0 and 1 (--drop {name} leaves it out)."
                )
                return text
        if names_rows and not (keep or category):
            return f"text with {len(present):,} values in {len(codes):,} rows, which names the rows."
        chosen, note = categories_of(name, codes, different, self._looked_at)
        if note:
            self.notes.append(note)
        absent = (None,) if None in {different[i] for i in np.unique(codes[self._looked_at])} else ()
        if not chosen and not absent:
            return "no value is in more than one row."
        return CategoryColumn(name, (*chosen, *absent), form)

    def _dates(self, name: str, values: Any, style: str, form: Form) -> Column | str:
        try:
            made = learn_dates(name, values, style, form, self._looked_at)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            return "it holds times or durations, which are no dates: make numbers of them first."
        if made is None:
            return "all rows have the same date."
        self.notes.append(f"{name!r} holds dates; they become numbers: {', '.join(made.parts)}.")
        return made

    def _numbers(self, name: str, values: Any) -> tuple[Array, Form] | None:
        """The numbers of a column, and how they are written; None if it is no column of numbers."""
        form = Form(self.missing)
        if self.decimal != "," or not is_text(values):
            try:
                return numbers(values, name, form), form
            except CellError as error:
                if isinstance(error.value, float):  # infinite
                    raise
        codes, different = words(values, self.missing)
        counts = np.bincount(codes, minlength=len(different)).tolist()
        of_words = {text: count for text, count in zip(different, counts, strict=True) if text is not None}
        guess = guess_form([*of_words], [*of_words.values()], self.missing, self.decimal)
        if guess.wrong is not None and guess.share > MIXED_SHARE:
            row = int(np.flatnonzero(codes == different.index(guess.wrong))[0])
            hint = f" --na {guess.wrong!r} takes it as missing, --category {name} takes all cells as categories."
            raise CellError(name, row, guess.wrong, "a number, as in most rows", hint)
        if guess.wrong is not None or not guess.share:
            return None
        self._tell(name, guess, of_words)
        return numbers(values, name, guess.form), guess.form

    def _tell(self, name: str, guess: Guess, counts: dict[str, int]) -> None:
        if guess.dressed is not None:
            number = guess.form.number(guess.dressed)
            self.notes.append(f"{name!r}: numbers such as {guess.dressed!r} are read as {number:.10g}.")
        for word in guess.placeholders[:3]:
            cells = "cell" if counts[word] == 1 else "cells"
            self.notes.append(f"{name!r}: {word!r} among numbers, in {counts[word]:,} {cells}, counts as missing.")

    def _of_numbers(self, name: str, found: Array, form: Form, keep: bool) -> Column | str:
        known = found[self._looked_at]
        known = known[~np.isnan(known)]
        if not len(known):
            return "no row has a value."
        if not keep and _counts_rows(found):
            return "it counts the rows (--keep takes it)."
        return NumberColumn(name, 2 * float(np.median(known / 2)), form)  # the mean of two huge numbers overflows


def _counts_rows(found: Array) -> bool:
    """Whether numbers are those of rows, one after the other; some rows of a long table may have been taken out."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.diff(found)
    if len(found) <= 2 or not found[0].is_integer() or not (steps >= 1).all():
        return False
    gaps = len(found) > FEW_ROWS and (steps % 1 == 0).all() and found[-1] - found[0] < (1 + MOST_GAPS) * len(found)
    return bool((steps == 1).all() or gaps)


# --- what is in a table ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """A column of a table: what a model takes it for, how many cells it lacks, and what is in it."""

    name: str
    kind: str
    n_missing: int
    values: str


def describe_columns(table: Mapping[str, Any], columns: Columns, missing: Sequence[str] = ()) -> list[Described]:
    """Each column of a table, as the columns that were learned from it say."""
    taken = {column.name: column for column in columns.inputs}
    found = []
    for name, values in table.items():
        column = taken.get(name)
        if isinstance(column, ImageColumn):
            limits = f"{np.min(values):g} to {np.max(values):g}"
            found.append(Described(name, "pictures", 0, f"{size_in_words(column.shape)}, {limits}"))
            continue
        codes, different = words(values, missing if column is None else column.form.missing)
        counts = np.bincount(codes, minlength=len(different)).tolist()
        present = {text: count for text, count in zip(different, counts, strict=True) if text is not None}
        kind = "target" if name in columns.targets else "left out" if column is None else _KIND_WORDS[type(column)]
        if isinstance(column, NumberColumn):
            read = numbers(values, name, column.form)
            known = read[~np.isnan(read)]
            shown = f"{known.min():g} to {known.max():g}, median {np.median(known):g}"
        else:
            often = sorted(present, key=lambda text: -present[text])[:3]
            shown = ", ".join(f"{_cut(text)} ({present[text]:,})" for text in often)
            shown = f"{len(present):,} different" + (f": {shown}" if shown else "")
        found.append(Described(name, kind, len(codes) - sum(present.values()), shown))
    return found


_KIND_WORDS = {NumberColumn: "numbers", CategoryColumn: "categories", DateColumn: "dates", TextColumn: "free text"}


def _cut(text: str, most: int = 24) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
