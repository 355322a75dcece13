"""How people write numbers and dates: "12,345", "1.234,5", "45%", "$3", "unknown", 31.12.2024.

A `Form` is guessed once, when a model is fitted, and saved with its columns: whoever reads a column later reads it so.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from energate.errors import require

#: what an empty cell may look like in any text
MISSING = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
#: what else people write among numbers where they have none; in a column of words it is a word
PLACEHOLDERS = frozenset(
    (
        *("unknown", "unk", "none", "missing", "not available", "not applicable", "not known", "no data", "no answer"),
        *("n.a.", "n.a", "na", "n/a", "n/k", "nan", "<na>", "null", "nil", "tbd", "tba", "undefined", "blank", "empty"),
        *("-", "--", "---", ".", "(missing)", "(blank)"),
        *("#n/a", "#na", "#value!", "#ref!", "#div/0!", "#num!", "#name?", "#null!"),  # of a spreadsheet
    )
)
_SIGNS = "$€£¥"
_GROUPED = {
    ".": re.compile(r"([-+]?\d{1,3})(?:([,'\u2019\s])\d{3})(?:\2\d{3})*(\.\d*)?"),
    ",": re.compile(r"([-+]?\d{1,3})(?:([.'\u2019\s])\d{3})(?:\2\d{3})*(,\d*)?"),
}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
SAMPLE = 1000  # different cells by which a column is judged before all are


@dataclass(frozen=True)
class Form:
    """How the cells of a column are read.

    ``missing`` are words that are missing cells beside `MISSING`; ``decimal`` is the mark before fractions; ``dressed``
    numbers may have groups of thousands, a sign of percent (45% is 0.45) or of a currency.
    """

    missing: tuple[str, ...] = ()
    decimal: str = "."
    dressed: bool = False

    @property
    def plain(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.decimal == "." and not self.dressed

    def number(self, text: str) -> float | None:
        """The number that a cell holds, NaN if it is missing; None if it is neither."""
        text = text.strip()
        if text in MISSING or text in self.missing:
            return math.nan
        found = _undressed(text, self.decimal) if not self.plain else (text, 1.0)
        try:
            # An underscore is Python's own way to write numbers, and nobody else's.
            return float(found[0].replace("_", "x")) / found[1]
        except (ValueError, OverflowError):
            return None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"missing": list(self.missing), "decimal": self.decimal, "dressed": self.dressed}

    @classmethod
    def from_json(cls, content: Any) -> "Form":
        """What `to_json` wrote; a ValueError for anything else."""
        words = content["missing"]
        if content.keys() != {"missing", "decimal", "dressed"} or type(words) is not list:
            raise ValueError("a form must have missing words, a decimal mark, and say if numbers are dressed")
        right = all(type(word) is str for word in words) and type(content["dressed"]) is bool
        if not right or content["decimal"] not in (".", ","):
            raise ValueError("a form must hold words, a point or a comma, and true or false")
        return cls(tuple(words), content["decimal"], content["dressed"])


PLAIN = Form()


def _undressed(text: str, decimal: str) -> tuple[str, float]:
    """A number without groups, signs of currencies and percent, with a point; and what it is to be divided by."""
    per = 100.0 if text.endswith("%") else 1.0
    text = text.removesuffix("%").strip()
    sign = text[:1] if text[:1] in ("-", "+") and text[1:2] in set(_SIGNS) else ""
    text = sign + text[len(sign) :].strip(_SIGNS + " \u00a0\u202f") if text.strip(_SIGNS) else "x"
    grouped = _GROUPED[decimal].fullmatch(text)
    if grouped is not None:
        text = text.replace(grouped[2], "")
    if decimal == ",":
        text = "x" if "." in text else text.replace(",", ".")
    return text, per


# --- guesses -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guess:
    """A form for a column, the share of its cells that are numbers in it, and the first word that is none."""

    form: Form
    share: float
    wrong: str | None
    placeholders: tuple[str, ...] = ()
    dressed: str | None = None  # a number as it stands there, if it is not a plain one


def guess_form(words: Sequence[str], counts: Sequence[int], missing: Sequence[str], decimal: str | None) -> Guess:
    """The form in which most cells of a column are numbers; ``words`` are the different ones, with how often each is.

    ``decimal`` is the mark that is known, or likelier: the other is taken only where it reads more.
    """
    base = Form(tuple(missing))
    comma, point = (replace(base, decimal=mark, dressed=True) for mark in (",", "."))
    forms = [base, comma, point] if decimal == "," else [base, point, comma]
    if len(words) > 2 * SAMPLE:  # text that is nothing but text is not read three times
        first = max((_tried(form, words[:SAMPLE], counts) for form in forms), key=lambda guess: guess.share)
        if first.share < 0.1:
            return first
    best: Guess | None = None
    for form in forms:
        guess = _tried(form, words, counts)
        if guess.wrong is None and guess.share:
            return guess
        best = guess if best is None or guess.share > best.share else best
    assert best is not None
    return best


def _tried(form: Form, words: Sequence[str], counts: Sequence[int]) -> Guess:
    right = total = 0
    wrong, dressed, placeholders = None, None, list[str]()
    for word, count in zip(words, counts, strict=False):
        found = form.number(word)
        if found is not None and math.isnan(found):
            continue
        if found is None and word.lower() in PLACEHOLDERS:
            placeholders.append(word)
            continue
        total += count
        if found is None:
            wrong = word if wrong is None else wrong
        else:
            right += count
            if dressed is None and not form.plain and _NUMBER.fullmatch(word) is None:
                dressed = word
    form = replace(form, missing=(*form.missing, *placeholders))
    return Guess(form, right / total if total else 0.0, wrong, tuple(placeholders), dressed)


# --- dates -------------------------------------------------------------------------------------------------------

_DATE = re.compile(
    r"(\d{4}-\d\d?-\d\d?|\d\d?[./-]\d\d?[./-](\d{4}|\d\d)|\d{4}/\d\d?/\d\d?"
    r"|\d\d?[ -][A-Za-z]{3,9}[ -]\d{4}|[A-Za-z]{3,9} \d\d?, ?\d{4})([ T]\d\d?:\d\d.*)?"
)
_DAYS = (
    *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%Y-%m-%d"),
)
ISO = "ISO8601"
FORMATS = (ISO, *(day + time for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p") for day in _DAYS))
_SWAPPED = {"%m/%d": "%d/%m", "%d/%m": "%m/%d", "%d-%m": "%m-%d", "%m-%d": "%d-%m"}


def look_like_dates(words: Sequence[str]) -> bool:
    """Whether all words might be dates."""
    return bool(words) and all(map(_DATE.fullmatch, words))


def parsed_dates(words: Sequence[str], form: str) -> Any:
    """Words as pandas' times, in UTC where they say a zone; NaT where one is no such date."""
    pandas = require("pandas", "tables")
    return pandas.to_datetime(pandas.Series(list(words), dtype=str), format=form, errors="coerce", utc=True)


def date_format(words: Sequence[str]) -> tuple[str | None, bool]:
    """How all of these words are written as dates, None if no way fits; and whether the other order fits as well."""
    few = words[:SAMPLE]
    for form in FORMATS:
        if form != ISO or few[0][:4].isdigit():
            if parsed_dates(few, form).isna().any() or parsed_dates(words, form).isna().any():
                continue
            other = next((form.replace(a, b) for a, b in _SWAPPED.items() if a in form and "%Y-%m-%d" not in form), "")
            return form, bool(other) and not parsed_dates(words, other).isna().any()
    return None, False
