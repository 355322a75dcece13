"""Weka's ARFF format, dense or sparse: its attributes, and its rows as words, one at a time.

Our own: scipy.io.arff reads neither sparse rows nor text, and files only whole; liac-arff refuses dates, cuts integers'
fractions off, and says no line of a row that is wrong when it reads row by row.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from energate.errors import InputError

_NUMBERS = ("numeric", "real", "integer")
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_WORD = rf"""(?:{_QUOTED}|[^\s,{{}}'"]+)"""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_WORD})\s+(.+)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_WORD})\s*(,|$)")
_ENTRY = re.compile(rf"\s*(\d{{1,9}})\s+({_WORD})\s*(,|$)")

#: a row: its line, the numbers of the attributes that it has, and their words; None is a missing value
Row = tuple[int, Sequence[int], list[str | None]]


@dataclass(frozen=True)
class Attribute:
    """A column: its name, the type it was declared with, and for a nominal one its words."""

    name: str
    kind: str
    words: tuple[str, ...] | None
    where: str  # file and line

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers."""
        return self.kind.lower() in _NUMBERS

    @property
    def omitted(self) -> str:
        """What a sparse row means by leaving it out."""
        return self.words[0] if self.words else "0"


@dataclass(frozen=True)
class ArffFile:
    """An ARFF file whose first part has been read."""

    path: Path
    relation: str
    attributes: tuple[Attribute, ...]
    n_lines: int  # up to and with @data

    @classmethod
    def open(cls, path: Path) -> "ArffFile":
        """Read the relation and the attributes; each has its own name."""
        if not path.is_file():
            raise InputError(f"There is no file {path.name!r} in the folder {str(path.parent)!r}.")
        relation, attributes, number = "", list[Attribute](), 0
        for number, line in _lines(path):
            keyword = line.split(maxsplit=1)[0].lower()
            if keyword == "@relation":
                relation = unquoted(line[len(keyword) :].strip())
            elif keyword == "@attribute":
                attributes.append(_attribute(line, f"{path.name}, line {number}"))
            elif keyword == "@data":
                break
            else:
                raise InputError(
                    f"{path.name}, line {number}: expected @relation, @attribute or @data; got {line[:40]!r}."
                )
        if not attributes:
            raise InputError(f"{path.name} must have attributes, and rows after a line @data; it has none.")
        if len({attribute.name for attribute in attributes}) < len(attributes):
            raise InputError(f"{path.name} must give every attribute its own name; some occur twice.")
        return cls(path, relation, tuple(attributes), number)

    def rows(self) -> Iterator[Row]:
        """The rows; a sparse one has some attributes only."""
        n_attributes = len(self.attributes)
        for number, line in _lines(self.path, self.n_lines):
            where = f"{self.path.name}, line {number}"
            if line.startswith("{"):
                if not line.endswith("}"):
                    raise InputError(f"{where}: a sparse row must end with a brace; got {line[-20:]!r}.")
                entries = list(_matches(_ENTRY, line[1:-1], where)) if line[1:-1].strip() else []
                places, words = [int(entry[1]) for entry in entries], [_word(entry[2]) for entry in entries]
                for last, place in pairwise([-1, *places]):
                    if not last < place < n_attributes:
                        raise InputError(
                            f"{where}: the numbers of attributes must rise, from 0 to {n_attributes - 1}; got {place}."
                        )
                yield number, places, words
            else:
                words = [_word(match[1]) for match in _matches(_VALUE, line, where)]
                if len(words) != n_attributes:
                    raise InputError(f"{where}: expected {n_attributes} values; got {len(words)}.")
                yield number, range(n_attributes), words


def _lines(path: Path, n_read: int = 0) -> Iterator[tuple[int, str]]:
    """The lines after some, with their numbers, without comments and blank ones."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                text = line.strip() if number > n_read else ""
                if text and text[0] != "%":
                    yield number, text
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} must be text in UTF-8; it cannot be read ({error}).") from error


def _attribute(line: str, where: str) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise InputError(f"{where}: expected '@attribute name type'; got {line[:40]!r}.")
    name, kind = unquoted(match[1]), match[2].strip()
    words = None
    if kind.startswith("{") and kind.endswith("}"):
        words = tuple(unquoted(each[1]) for each in _matches(_VALUE, kind[1:-1], where))
    return Attribute(name, kind, words, where)


def _word(word: str) -> str | None:
    return None if word == "?" else unquoted(word)


def _matches(pattern: re.Pattern[str], text: str, where: str) -> Iterator[re.Match[str]]:
    """The values between commas; all of the text must be made of them."""
    place, separator = 0, ","
    while separator:
        match = pattern.match(text, place)
        if match is None:
            raise InputError(f"{where}: expected values between commas; got {text[place : place + 30]!r}.")
        yield match
        place, separator = match.end(), match[match.re.groups]


def unquoted(word: str) -> str:
    """A word without its quotes."""
    if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0]:
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word


def quoted(word: str) -> str:
    """A word as it stands in a file: between quotes where it must be."""
    if re.fullmatch(r"[^\s,{}'\"%\\?@]+", word):
        return word
    return "'" + re.sub(r"(['\\])", r"\\\1", " ".join(word.splitlines())) + "'"
