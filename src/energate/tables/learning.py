"""What to make of a table: which columns a model can take, and the classes or labels in the others."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError
from energate.tables.cells import Array, CellError, listed, n_cells, numbers, words
from energate.tables.columns import CategoryColumn, Columns, NumberColumn

MOST_CATEGORIES = 100
ID_SHARE = 0.9  # a column of text with more different values than this share of the rows names the rows
MIXED_SHARE = 0.5  # text among more numbers than this share is a mistake, not a category
_DATE = re.compile(r"(\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}|\d{4}/\d\d?/\d\d?)([ T]\d\d?:\d\d.*)?")
_ON_OFF = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}


def learn_columns(
    table: Mapping[str, Any],
    *,
    task: str = "classify",
    targets: Sequence[str] = (),
    labels: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    categories: Sequence[str] = (),
    image: tuple[int, int] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> tuple[Columns, list[str]]:
    """The columns that a model can take, with fill values and categories from ``rows``, and what was left out and why.

    Columns in ``drop`` are left out, those in ``keep`` never are.  Those in ``categories`` count as text.
    """
    _check_names(table, targets=targets, drop=drop, keep=keep, category=categories)
    inputs, notes = list[NumberColumn | CategoryColumn](), list[str]()
    for name in table:
        if name in targets or name in drop:
            continue
        made = _learn(name, table[name], name in categories, name in keep, rows)
        if isinstance(made, str):
            notes.append(f"{name!r} is left out: {made}")
        else:
            inputs.append(made)
    if not inputs:
        raise InputError(f"There is no column left to learn from. {' '.join(notes)}".rstrip())
    return Columns(tuple(inputs), task, tuple(targets), None if labels is None else tuple(labels), image), notes


def _check_names(table: Mapping[str, Any], **given: Sequence[str]) -> None:
    for option, names in given.items():
        missing = [name for name in names if name not in table]
        if missing:
            raise InputError(
                f"`{option}` must name columns; there is no {listed(missing)}. There are {listed([*table])}."
            )


def _learn(
    name: str, values: Any, category: bool, keep: bool, rows: NDArray[np.int64] | None
) -> NumberColumn | CategoryColumn | str:
    """A column as a model takes it, or why it is left out."""
    try:
        found = None if category else numbers(values, name)
    except CellError as error:
        if isinstance(error.value, float):  # infinite
            raise
        found = None
    if found is not None:
        return _learn_numbers(name, found, keep, rows)
    codes, different = words(values)
    counts = np.bincount(codes, minlength=len(different))
    used = set(range(len(different))) if rows is None else set(np.unique(codes[rows]).tolist())
    chosen = sorted((different[i] for i in used), key=lambda word: (word is None, word or ""))
    n_different = sum(word is not None for word in different)
    if not category:
        _refuse_mixed(name, codes, different, counts)
    doubted = not keep and not category and n_different > 2
    if doubted and n_different > ID_SHARE * len(codes):
        return f"text with {n_different:,} values in {len(codes):,} rows, which names the rows."
    if doubted and all(word is None or _DATE.fullmatch(word) for word in different):
        return "it holds dates, and a new row has a new one (--keep takes them as categories)."
    if n_different > MOST_CATEGORIES:
        raise InputError(
            f"{name!r} is text with {n_different:,} different values; at most {MOST_CATEGORIES} become columns. "
            f"Leave it out (--drop {name}), or group its values."
        )
    return CategoryColumn(name, tuple(chosen))


def _learn_numbers(name: str, found: Array, keep: bool, rows: NDArray[np.int64] | None) -> NumberColumn | str:
    known = found if rows is None else found[rows]
    known = known[~np.isnan(known)]
    if not len(known):
        return "no row has a value."
    with np.errstate(over="ignore"):
        steps = np.diff(found)
    if not keep and len(found) > 2 and (steps == 1).all():
        return "it counts the rows (--keep takes it)."
    return NumberColumn(name, 2 * float(np.median(known / 2)))  # the mean of two huge numbers overflows


def _refuse_mixed(name: str, codes: NDArray[np.int64], different: list[str | None], counts: NDArray[np.int64]) -> None:
    """Numbers in most rows and text in some are a mistake in those rows."""
    text = [word is not None and not _is_number(word) for word in different]
    present = np.array([word is not None for word in different])
    n_text, n_present = int(counts[text].sum()), int(counts[present].sum())
    if n_present and 1 - n_text / n_present > MIXED_SHARE:
        row = int(np.flatnonzero(np.array(text)[codes])[0])
        raise CellError(name, row, different[codes[row]], "a number, as in most rows")


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word)) and "_" not in word
    except ValueError:
        return False


# --- what is to be predicted -------------------------------------------------------------------------------------


def classes_of(table: Mapping[str, Any], target: str) -> NDArray[Any]:
    """The class of every row: whole numbers, or text."""
    _check_names(table, target=[target])
    _refuse_missing(target, table[target])
    n_rows = n_cells(table[target])
    try:
        found = numbers(table[target], target)
    except CellError:
        codes, different = words(table[target])
        y = np.array(different, dtype=np.str_)[codes]
    else:
        if (found != np.round(found)).any():
            raise InputError(
                f"The target {target!r} must be classes; it has numbers with fractions, from {found.min():g} to "
                f"{found.max():g}. Group them into classes first."
            )
        y = found.astype(np.int64)
    n_classes = len(np.unique(y))
    if n_classes < 2:
        raise InputError(f"The target {target!r} must have at least 2 classes; every row has {y[0]!s}.")
    if n_classes > max(2, n_rows / 2):
        raise InputError(
            f"The target {target!r} must have several rows of each class; it has {n_classes:,} different values in "
            f"{n_rows:,} rows."
        )
    return y


def labels_of(table: Mapping[str, Any], targets: Sequence[str]) -> NDArray[np.int64]:
    """Several labels of every row as 0 and 1, (n, L); true and false, yes and no are read, too."""
    _check_names(table, targets=targets)
    if len(targets) < 2:
        raise InputError(f"Several labels are at least 2 columns; got {listed(targets)}. For one column use --target.")
    found = []
    for target in targets:
        _refuse_missing(target, table[target])
        codes, different = words(table[target])
        values = [_ON_OFF.get(str(word).lower(), -1) for word in different]
        wrong = np.flatnonzero(np.array(values)[codes] < 0)
        if len(wrong):
            raise CellError(target, int(wrong[0]), different[codes[wrong[0]]], "0 or 1")
        found.append(np.array(values)[codes])
    return np.stack(found, 1)


def _refuse_missing(target: str, values: Any) -> None:
    codes, different = words(values)
    if None in different:
        missing = np.flatnonzero(codes == different.index(None))
        raise CellError(target, int(missing[0]), None, f"there in every row ({len(missing):,} lack it)")
