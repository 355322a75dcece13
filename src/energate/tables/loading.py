"""Whole files as arrays: `load_table`, rows and a target; `load_arff`, multi-label files as MULAN and MEKA use them."""

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.columns import CellError, flags_of, is_text, listed, numbers, words
from energate.tables.reading import ArffSource, Batch, Source, n_rows, open_table

#: X (n, d), y (n,) or (n, L), and the names of the columns of X.
Table = tuple[NDArray[np.float64], NDArray[Any], list[str]]
#: X (n, D), Y (n, L) of 0 and 1, the names of the columns of X, and those of the columns of Y.
LabelTable = tuple[NDArray[np.float64], NDArray[np.uint8], list[str], list[str]]

_TRUTH = {"false": 0.0, "true": 1.0, "none": np.nan}


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
    X = _matrix(source, table, chosen, repr(target))
    return X, np.stack(y, 1) if target in source.groups else y[0], chosen


def _matrix(source: Source, table: Batch, names: list[str], but_for: str) -> NDArray[np.float64]:
    """The columns of these names, (n, d); all that hold text are named."""
    X, text = np.empty((n_rows(table), len(names))), []
    for place, name in enumerate(names):
        try:
            X[:, place] = _numbers(table[name], name)
        except CellError as error:
            if isinstance(error.value, float):  # infinite
                raise source.told(error) from error
            text.append(name)
    if text:
        raise InputError(
            f"{source.path.name} must have numbers only, but for {but_for}; {listed(text)}: turn text into numbers."
        )
    return X


def _numbers(values: Any, name: str) -> NDArray[np.float64]:
    """A column as numbers; true and false are 1 and 0."""
    try:
        return numbers(values, name)
    except CellError:
        codes, different = words(values)
        if not {str(word).lower() for word in different} <= _TRUTH.keys():
            raise
        return np.array([_TRUTH[str(word).lower()] for word in different])[codes]


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
    source = ArffSource(Path(path))
    chosen = _chosen(source, labels)
    rest = [name for name in source.names if name not in chosen]
    if not rest:
        raise InputError(f"{source.path.name} must have attributes beside the {len(chosen)} labels; it has none.")
    table = source.read()
    for name, attribute in source.attributes.items():
        strange = set(table[name].tolist()) - {*attribute.words, None} if attribute.words else ()
        if strange:
            row = next(i for i, word in enumerate(table[name]) if word in strange)
            expected = f"one of {', '.join(attribute.words or ())}"
            raise source.told(CellError(name, row, table[name][row], expected))
    try:
        Y = np.stack([flags_of(table, name) for name in chosen], 1)
    except CellError as error:
        raise InputError(f"{source.told(error)} Check that `labels` names the labels.") from error
    return _matrix(source, table, rest, "the labels"), Y.astype(np.uint8), rest, list(chosen)


def _chosen(source: ArffSource, labels: int | Sequence[str] | str | os.PathLike[str] | None) -> dict[str, None]:
    """The attributes that are labels, in their order."""
    names = source.names
    if labels is None:
        found = re.search(r"-C\s+(-?\d+)", source.relation)
        if found is None:
            raise InputError(
                f"{source.path.name} does not say which attributes are labels (-C in @relation). Give `labels`: their "
                "names, their number, or a MULAN XML file."
            )
        labels = int(found[1])
    if isinstance(labels, int):
        if not 0 < abs(labels) <= len(names):
            raise InputError(
                f"`labels` must be a number of labels from 1 to {len(names)}, or less than 0 to count from the end; "
                f"got {labels}."
            )
        return dict.fromkeys(names[:labels] if labels > 0 else names[labels:])
    wanted = _names_in_xml(Path(labels)) if isinstance(labels, str | os.PathLike) else list(labels)
    missing = [name for name in wanted if name not in names]
    if missing or not wanted or len(set(wanted)) < len(wanted):
        raise InputError(
            f"`labels` must name attributes of {source.path.name}, each once; got {len(wanted)} names, of which "
            f"{len(missing)} are not there{': ' + repr(missing[0]) if missing else ''}."
        )
    return dict.fromkeys(wanted)


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
