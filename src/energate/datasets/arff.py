"""`load_arff`: multi-label tables in Weka's ARFF format, dense or sparse, as MULAN and MEKA use it."""

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError

#: X (n, D), Y (n, L) of 0 and 1, the names of the columns of X, and those of the columns of Y.
LabelTable = tuple[NDArray[np.float64], NDArray[np.uint8], list[str], list[str]]

_NUMBERS = ("numeric", "real", "integer")
_WORDS = {"false": 0.0, "true": 1.0}
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_WORD = rf"""(?:{_QUOTED}|[^\s,{{}}'"]+)"""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_WORD})\s+(.+)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_WORD})\s*(,|$)")
_ENTRY = re.compile(rf"\s*(\d+)\s+({_WORD})\s*(,|$)")


@dataclass(frozen=True)
class _Attribute:
    name: str
    values: dict[str, float] | None  # what each word of a nominal attribute counts as; None for numbers
    omitted: float  # what a sparse row means by leaving it out

    def number(self, word: str, where: str) -> float:
        """The number that a word stands for; NaN for the question mark of a missing value."""
        if word == "?":
            return np.nan
        word = _unquoted(word)
        try:
            return float(word) if self.values is None else self.values[word]
        except (KeyError, ValueError):
            known = "a number" if self.values is None else f"one of {', '.join(self.values)}"
            raise InputError(f"{where}: {self.name!r} must be {known}; got {word!r}.") from None


def load_arff(
    path: str | os.PathLike[str], labels: int | Sequence[str] | str | os.PathLike[str] | None = None
) -> LabelTable:
    """X, Y and the names of their columns, of an ARFF file of numbers and 0/1 labels.

    ``labels`` says which attributes are the labels: their names; their number, as MEKA's option ``-C`` counts them,
    where 6 means the first six and -6 the last six; or the path of a MULAN file (XML) that lists the names.  Without
    it the file's first line must hold MEKA's option, as in ``@relation 'scene: -C 6'``.

    Dense and sparse rows are read; what a sparse row leaves out is 0, or the first value of a nominal attribute.
    Missing values become NaN in X; Y must have none.  Text and dates are refused.
    """
    path = Path(path)
    relation, attributes, rows = _read(path)
    names = [attribute.name for attribute in attributes]
    chosen = _chosen(path, names, labels, relation)
    if len(chosen) == len(names):
        raise InputError(f"{path.name} must have attributes beside the {len(chosen)} labels; it has none.")
    label = np.isin(np.arange(len(names)), chosen)
    Y = rows[:, chosen]
    wrong = np.flatnonzero(~np.isin(Y, (0, 1)).all(0))
    if len(wrong):
        raise InputError(
            f"{path.name}: labels must be 0 or 1 in every row; {names[chosen[wrong[0]]]!r} has other values, or "
            "missing ones. Check that `labels` names the labels."
        )
    return rows[:, ~label], Y.astype(np.uint8), [names[i] for i in np.flatnonzero(~label)], [names[i] for i in chosen]


# --- the file ----------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[str, list[_Attribute], NDArray[np.float64]]:
    """The relation, the attributes, and the values (n, number of attributes)."""
    if not path.is_file():
        raise InputError(f"There is no file {path.name!r} in the folder {str(path.parent)!r}.")
    relation, attributes = "", list[_Attribute]()
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = ((number, text) for number, line in enumerate(file, 1) if (text := line.strip()) and text[0] != "%")
            for number, line in lines:
                keyword = line.split(maxsplit=1)[0].lower()
                if keyword == "@relation":
                    relation = _unquoted(line[len(keyword) :].strip())
                elif keyword == "@attribute":
                    attributes.append(_attribute(line, f"{path.name}, line {number}"))
                elif keyword == "@data":
                    break
                else:
                    raise InputError(
                        f"{path.name}, line {number}: expected @relation, @attribute or @data; got {line[:40]!r}."
                    )
            rows = list(_rows(path.name, attributes, lines))
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} must be text in UTF-8; it cannot be read ({error}).") from error
    if not attributes or not rows:
        raise InputError(f"{path.name} must have attributes, and rows after a line @data; it has none.")
    if len({attribute.name for attribute in attributes}) < len(attributes):
        raise InputError(f"{path.name} must give every attribute its own name; some occur twice.")
    return relation, attributes, np.stack(rows)


def _attribute(line: str, where: str) -> _Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise InputError(f"{where}: expected '@attribute name type'; got {line[:40]!r}.")
    name, kind = _unquoted(match[1]), match[2].strip()
    if kind.lower() in _NUMBERS:
        return _Attribute(name, None, 0.0)
    if not (kind.startswith("{") and kind.endswith("}")):
        raise InputError(
            f"{where}: {name!r} must be numeric or nominal, {{a,b}}; got {kind!r}. Turn it into numbers, or drop it."
        )
    words = [_unquoted(word) for word in _split(_VALUE, kind[1:-1], where)]
    try:
        values = {word: _WORDS[word.lower()] if word.lower() in _WORDS else float(word) for word in words}
    except ValueError:
        raise InputError(
            f"{where}: the values of {name!r} must be numbers, or true and false; got {', '.join(words[:5])}. "
            "Turn text into numbers."
        ) from None
    return _Attribute(name, values, values[words[0]])


def _rows(name: str, attributes: list[_Attribute], lines: Iterable[tuple[int, str]]) -> Iterator[NDArray[np.float64]]:
    omitted = np.array([attribute.omitted for attribute in attributes])
    for number, line in lines:
        where = f"{name}, line {number}"
        row = omitted.copy()
        if line.startswith("{"):
            if not line.endswith("}"):
                raise InputError(f"{where}: a sparse row must end with a brace; got {line[-20:]!r}.")
            places = [-1]
            for place, word in _entries(line[1:-1], where):
                if not places[-1] < place < len(attributes):
                    raise InputError(
                        f"{where}: the numbers of attributes must rise, from 0 to {len(attributes) - 1}; got {place}."
                    )
                places.append(place)
                row[place] = attributes[place].number(word, where)
        else:
            words = _split(_VALUE, line, where)
            if len(words) != len(attributes):
                raise InputError(f"{where}: expected {len(attributes)} values; got {len(words)}.")
            row[:] = [attribute.number(word, where) for attribute, word in zip(attributes, words, strict=True)]
        yield row


def _entries(text: str, where: str) -> list[tuple[int, str]]:
    return [(int(match[1]), match[2]) for match in _matches(_ENTRY, text, where)] if text.strip() else []


def _split(pattern: re.Pattern[str], text: str, where: str) -> list[str]:
    return [match[1] for match in _matches(pattern, text, where)]


def _matches(pattern: re.Pattern[str], text: str, where: str) -> Iterator[re.Match[str]]:
    """The values between commas; all of the text must be made of them."""
    place, separator = 0, ","
    while separator:
        match = pattern.match(text, place)
        if match is None:
            raise InputError(f"{where}: expected values between commas; got {text[place : place + 30]!r}.")
        yield match
        place, separator = match.end(), match[match.re.groups]


def _unquoted(word: str) -> str:
    if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0]:
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word


# --- which attributes are labels ---------------------------------------------------------------------------------


def _chosen(
    path: Path, names: list[str], labels: int | Sequence[str] | str | os.PathLike[str] | None, relation: str
) -> NDArray[np.int64]:
    """The numbers of the attributes that are labels."""
    if labels is None:
        found = re.search(r"-C\s+(-?\d+)", relation)
        if found is None:
            raise InputError(
                f"{path.name} does not say which attributes are labels (-C in @relation). Give `labels`: their names, "
                "their number, or a MULAN XML file."
            )
        labels = int(found[1])
    if isinstance(labels, int):
        if not 0 < abs(labels) <= len(names):
            raise InputError(
                f"`labels` must be a number of labels from 1 to {len(names)}, or less than 0 to count from the end; "
                f"got {labels}."
            )
        every = np.arange(len(names))
        return every[:labels] if labels > 0 else every[labels:]
    wanted = _names_in_xml(Path(labels)) if isinstance(labels, str | os.PathLike) else list(labels)
    missing = [name for name in wanted if name not in names]
    if missing or not wanted or len(set(wanted)) < len(wanted):
        raise InputError(
            f"`labels` must name attributes of {path.name}, each once; got {len(wanted)} names, of which "
            f"{len(missing)} are not there{': ' + repr(missing[0]) if missing else ''}."
        )
    return np.array([names.index(name) for name in wanted])


def _names_in_xml(path: Path) -> list[str]:
    """The names of all labels in a MULAN file, in its order; labels may stand within labels."""
    if not path.is_file():
        raise InputError(
            "`labels` must be the path of a MULAN XML file, a list of names, or a number; there is no file "
            f"{path.name!r}."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        if "<!" in text.replace("<!--", ""):  # entities that grow without end are declared so
            raise InputError(f"{path.name} must be a plain XML file of labels, without declarations (<!...).")
        root = ET.fromstring(text)  # noqa: S314
    except (UnicodeDecodeError, ET.ParseError) as error:
        raise InputError(f"{path.name} must be an XML file of labels; it cannot be read ({error}).") from error
    return [
        node.attrib["name"] for node in root.iter() if node.tag.rpartition("}")[2] == "label" and "name" in node.attrib
    ]
