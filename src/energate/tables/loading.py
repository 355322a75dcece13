"""Whole files as arrays: `load_table`, rows and a target; `load_arff`, multi-label files as MULAN and MEKA use them."""

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.arff import ArffFile, Attribute
from energate.tables.cells import CellError, is_text, listed, numbers, words
from energate.tables.reading import Source, n_rows, open_table

#: X (n, d), y (n,) or (n, L), and the names of the columns of X.
Table = tuple[NDArray[np.float64], NDArray[Any], list[str]]
#: X (n, D), Y (n, L) of 0 and 1, the names of the columns of X, and those of the columns of Y.
LabelTable = tuple[NDArray[np.float64], NDArray[np.uint8], list[str], list[str]]

_WORDS = {"false": 0.0, "true": 1.0}


def load_table(path: str | os.PathLike[str], target: str) -> Table:
    """The columns of a table but for ``target`` as X, ``target`` as y, and the names of the columns of X.

    CSV and TSV files have the names in their first line; these and Parquet files need the extra `tables`.  Of NPZ files
    with a 2-dimensional array ``X`` only that counts, and its ``feature_names`` if there are any; ``target`` is another
    array, of one dimension or two.  Missing cells become NaN in X; y must have none.
    """
    source = open_table(path)
    name, targets = source.path.name, source.groups.get(target, [target])
    if not set(targets) <= set(source.names):
        grouped = {each for group in source.groups.values() for each in group}
        there = [*source.groups, *(each for each in source.names if each not in grouped)]
        raise InputError(f"{name} must have a column {target!r}; its columns are {listed(there)}.")
    chosen = [each for each in source.groups.get("X", source.names) if each not in targets]
    if not chosen:
        raise InputError(f"{name} must have columns beside {target!r}; it has none.")
    table = source.read()
    y = [_target(source, table[each], each) for each in targets]
    X, text = np.empty((n_rows(table), len(chosen))), []
    for place, each in enumerate(chosen):
        try:
            X[:, place] = _numbers(table[each], each)
        except CellError as error:
            if isinstance(error.value, float):  # infinite
                raise source.told(error) from error
            text.append(each)
    if text:
        raise InputError(f"{name} must have numbers only, but for {target!r}; {listed(text)}: turn text into numbers.")
    return X, np.stack(y, 1) if target in source.groups else y[0], chosen


def _numbers(values: Any, name: str) -> NDArray[np.float64]:
    """A column as numbers; true and false are 1 and 0."""
    try:
        return numbers(values, name)
    except CellError:
        codes, different = words(values)
        truth = [np.nan if word is None else _WORDS.get(word.lower(), -1) for word in different]
        if -1 in truth:
            raise
        return np.array(truth)[codes]


def _target(source: Source, values: Any, name: str) -> NDArray[Any]:
    """A column as it is stored; text that is numbers becomes these, whole ones without a point."""
    codes, different = words(values)
    if None in different:
        n_missing = int((codes == different.index(None)).sum())
        raise InputError(f"{source.path.name}: {n_missing:,} rows have no {name!r}. Leave these rows out.")
    try:
        found = numbers(values, name)
    except CellError:
        return np.array(different, dtype=np.str_)[codes]
    if not is_text(values):
        return values if isinstance(values, np.ndarray) else values.to_numpy()
    return found.astype(np.int64) if (found == np.round(found)).all() else found


# --- multi-label files -------------------------------------------------------------------------------------------


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
    relation, names, rows = _read(path)
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


@dataclass(frozen=True)
class _Reader:
    """How the words of one attribute become numbers."""

    name: str
    values: dict[str, float] | None  # what each word of a nominal attribute counts as; None for numbers
    omitted: float  # what a sparse row means by leaving it out

    @classmethod
    def of(cls, attribute: Attribute) -> "_Reader":
        name, where = attribute.name, attribute.where
        if attribute.is_number:
            return cls(name, None, 0.0)
        if attribute.words is None:
            raise InputError(
                f"{where}: {name!r} must be numeric or nominal, {{a,b}}; got {attribute.kind!r}. Turn it into "
                "numbers, or drop it."
            )
        words = attribute.words
        try:
            values = {word: _WORDS[word.lower()] if word.lower() in _WORDS else float(word) for word in words}
        except ValueError:
            raise InputError(
                f"{where}: the values of {name!r} must be numbers, or true and false; got {', '.join(words[:5])}. "
                "Turn text into numbers."
            ) from None
        return cls(name, values, values[attribute.omitted])

    def number(self, word: str | None, where: str) -> float:
        """The number that a word stands for; NaN for a missing value."""
        if word is None:
            return np.nan
        try:
            return float(word) if self.values is None else self.values[word]
        except (KeyError, ValueError):
            known = "a number" if self.values is None else f"one of {', '.join(self.values)}"
            raise InputError(f"{where}: {self.name!r} must be {known}; got {word!r}.") from None


def _read(path: Path) -> tuple[str, list[str], NDArray[np.float64]]:
    """The relation, the names of the attributes, and the values (n, number of attributes)."""
    file = ArffFile.open(path)
    readers = [_Reader.of(attribute) for attribute in file.attributes]
    omitted = np.array([reader.omitted for reader in readers])
    rows = []
    for line, places, found in file.rows():
        row, where = omitted.copy(), f"{path.name}, line {line}"
        for place, word in zip(places, found, strict=True):
            row[place] = readers[place].number(word, where)
        rows.append(row)
    file.check(bool(rows))
    return file.relation, [reader.name for reader in readers], np.stack(rows)


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
