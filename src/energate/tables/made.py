"""Columns of a table that become several numbers each: dates, and free text."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import require
from energate.tables.forms import ISO, PLAIN, Form, parsed_dates
from energate.tables.values import CellError, is_arrow, is_temporal, words

Array = NDArray[np.float64]
PARTS = ("year", "month", "day", "weekday", "hour")  # Monday is 1
MOST_WORDS = 50
LEAST_SHARE = 0.02  # of the training rows that have a word, for it to be a column
MOST_SHARE = 0.9
LEAST_ROWS = 5


@dataclass(frozen=True)
class DateColumn:
    """A column of dates, written as ``style`` says; each of ``parts`` is a number, ``fill`` where a cell is missing."""

    name: str
    style: str
    parts: tuple[str, ...]
    fill: tuple[float, ...]
    form: Form = PLAIN

    @property
    def ordinary(self) -> Any:
        """A cell to show what a row looks like."""
        return shown(self.style)

    @property
    def feature_names(self) -> list[str]:
        """A column for each part."""
        return [f"{self.name} ({part})" for part in self.parts]

    def coded(self, values: Any) -> Array:
        """The parts of the dates, NaN where a cell is missing: (n, parts)."""
        return parts_of(times(values, self.name, self.style, self.form.missing), self.parts)

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write the parts into (n, parts)."""
        found = self.coded(values)
        matrix[:] = np.where(np.isnan(found), self.fill, found)


@dataclass(frozen=True)
class TextColumn:
    """A column of free text: for each of ``vocabulary`` a column of 0 and 1 that says whether the word is there."""

    name: str
    vocabulary: tuple[str, ...]
    form: Form = PLAIN

    @property
    def ordinary(self) -> Any:
        """A cell to show what a row looks like."""
        return " ".join(self.vocabulary[:3])

    @property
    def feature_names(self) -> list[str]:
        """A column for each word."""
        return [f"{self.name} ({word})" for word in self.vocabulary]

    def coded(self, values: Any) -> Array:
        """0 and 1: (n, words)."""
        codes, different = words(values, self.form.missing)
        text = require("sklearn.feature_extraction.text", "tables")
        reader = text.CountVectorizer(binary=True, vocabulary=list(self.vocabulary))
        if not different:
            return np.empty((0, len(self.vocabulary)))
        found: Array = reader.transform([each or "" for each in different]).toarray().astype(np.float64)
        return found[codes]

    def fill_in(self, matrix: Array, values: Any) -> None:
        """Write 0 and 1 into (n, words)."""
        matrix[:] = self.coded(values)


def times(values: Any, name: str, style: str, missing: Sequence[str] = ()) -> Any:
    """A column as pandas' times, in UTC where they have a zone; a `CellError` at the first that is none."""
    pandas = require("pandas", "tables")
    if is_temporal(values):
        held = values.to_pandas() if is_arrow(values) else pandas.Series(values)
        return pandas.to_datetime(held, utc=True, errors="coerce").reset_index(drop=True)
    codes, different = words(values, missing)
    found = parsed_dates([each or "" for each in different], style)
    wrong = np.array([each is not None for each in different], dtype=bool) & found.isna().to_numpy()
    if wrong.any():
        row = int(np.flatnonzero(wrong[codes])[0])
        raise CellError(name, row, different[codes[row]], f"a date such as {shown(style)}")
    return found.iloc[codes].reset_index(drop=True)


def shown(style: str) -> str:
    """A date in this style."""
    return datetime.datetime(2024, 1, 31, 13, 30).strftime("%Y-%m-%d" if style == ISO else style)


def parts_of(found: Any, parts: Sequence[str]) -> Array:
    """Parts of times as numbers, NaN where one is missing: (n, parts)."""
    read = {**{part: part for part in parts}, "weekday": "day_of_week"}
    columns = [getattr(found.dt, read[part]).to_numpy(dtype=np.float64) + (part == "weekday") for part in parts]
    return np.stack(columns, 1)  # (n, parts)


def learn_dates(name: str, values: Any, style: str, form: Form, rows: Any) -> DateColumn | None:
    """The parts that differ in some rows; None if all rows have the same date."""
    found = parts_of(times(values, name, style, form.missing), PARTS)[rows]
    chosen, fill = [], []
    for place, part in enumerate(PARTS):
        present = found[:, place][~np.isnan(found[:, place])]
        if len(np.unique(present)) > 1:
            chosen.append(part)
            fill.append(float(np.median(present)))
    return DateColumn(name, style, tuple(chosen), tuple(fill), form) if chosen else None


def learn_text(name: str, codes: Any, different: Sequence[str | None], form: Form, rows: Any) -> TextColumn | None:
    """The words that some of the rows have, but not nearly all; None if no word is in several."""
    text = require("sklearn.feature_extraction.text", "tables")
    seen = [different[code] or "" for code in codes[rows].tolist()]
    least = max(LEAST_ROWS, round(LEAST_SHARE * len(seen)))
    if least > MOST_SHARE * len(seen):
        return None
    reader = text.CountVectorizer(binary=True, max_features=MOST_WORDS, min_df=least, max_df=MOST_SHARE)
    try:
        reader.fit(seen)
    except ValueError:  # no word is in so many
        return None
    return TextColumn(name, tuple(sorted(reader.vocabulary_)), form)


def is_free_text(n_rows: int, different: Sequence[str | None], names_rows: bool, most_categories: int) -> bool:
    """Whether cells are sentences, or at least several words, rather than names of something."""
    present = [text for text in different if text is not None]
    if not present or not (names_rows or len(present) > most_categories) or n_rows < LEAST_ROWS:
        return False
    return float(np.mean([len(text.split()) for text in present[:1000]])) >= 3
