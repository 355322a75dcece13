"""Tables on disk, a batch of rows at a time, so that a file may be larger than memory.

CSV, TSV and Parquet need the extra `tables`.  The cells of text files stay the text they are: what is carried along to
another file is not changed, and `energate.tables.cells` makes numbers of the rest.
"""

import csv
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from energate.errors import InputError, require
from energate.tables.arff import ArffFile, Attribute
from energate.tables.cells import CellError, listed, n_cells, numbers
from energate.tables.npz import NpzTable

#: columns of equal length, by name, in their order
Batch = dict[str, Any]

BLOCK = 2**22  # bytes of a text file at once
CELLS = 2**20  # numbers at once
SEPARATORS = {".csv": ",", ".tsv": "\t"}


def n_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return n_cells(next(iter(batch.values()))) if batch else 0


class Source(ABC):
    """A table on disk: the names of its columns, and its rows in batches."""

    def __init__(
        self,
        path: Path,
        names: list[str],
        groups: dict[str, list[str]] | None = None,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        self.path, self.names = path, names
        self.groups = groups or {}  # arrays that hold several columns: of NPZ files
        self.attributes = attributes or {}  # how columns were declared: of ARFF files
        if len(set(names)) < len(names):
            twice = [name for name, count in Counter(names).items() if count > 1]
            raise InputError(f"{path.name} must give every column its own name; {listed(twice)} occur more than once.")

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """The rows, in their order."""

    @abstractmethod
    def where(self, row: int) -> str:
        """The place of a row, which counts from 0, in words."""

    def told(self, error: CellError, first_row: int = 0) -> InputError:
        """The error of a cell with its place in this file; its batch began at ``first_row``."""
        return InputError(error.told(self.where(first_row + error.row)))

    def read(self) -> Batch:
        """All rows at once."""
        parts = list(self.batches())
        if not any(map(n_rows, parts)):
            raise InputError(f"{self.path.name} has no rows.")
        return {name: _joined([part[name] for part in parts]) for name in self.names}


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return require("pyarrow", "tables").chunked_array(parts)


def open_table(path: str | os.PathLike[str], part: str = "train") -> Source:
    """A table of a kind that its suffix says; ``part`` is for NPZ files that hold several (train, valid, test)."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (*SEPARATORS, ".parquet", ".npz", ".arff"):
        raise InputError(f"A table must be a .csv, .tsv, .parquet, .npz or .arff file; got {path.name!r}.")
    if not path.is_file():
        raise InputError(f"There is no file {path.name!r} in the folder {str(path.parent)!r}.")
    try:
        if kind in SEPARATORS:
            return TextSource(path)
        if kind == ".parquet":
            return ParquetSource(path)
        return ArffSource(path) if kind == ".arff" else NpzSource(path, part)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error


# --- CSV and TSV -------------------------------------------------------------------------------------------------


class TextSource(Source):
    """A CSV or TSV file with the names of its columns in the first line."""

    def __init__(self, path: Path) -> None:
        self.separator = SEPARATORS[path.suffix.lower()]
        _, names = next(_lines(path, self.separator), (0, []))
        if not names:
            raise InputError(f"{path.name} is empty; a table has the names of its columns in the first line.")
        if not all(names):
            raise InputError(f"{path.name} must name every column in its first line; a name is empty there.")
        super().__init__(path, names)

    def where(self, row: int) -> str:
        """File and line; cells with line breaks, and empty lines, make it worth counting."""
        for number, (line, _) in enumerate(_lines(self.path, self.separator)):
            if number == row + 1:
                return f"{self.path.name}, line {line}"
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        """Cells as text, None where one is empty."""
        pa, reader = require("pyarrow", "tables"), require("pyarrow.csv", "tables")
        try:
            batches = reader.open_csv(
                self.path,
                read_options=reader.ReadOptions(block_size=BLOCK, column_names=self.names),
                parse_options=reader.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                convert_options=reader.ConvertOptions(
                    column_types=dict.fromkeys(self.names, pa.string()), strings_can_be_null=True, null_values=[""]
                ),
            )
            first = True
            for batch in batches:
                # The first row are the names, which pyarrow would not count in its messages otherwise.
                found = batch.slice(1) if first and len(batch) else batch
                first = first and not len(batch)
                yield {name: found.column(i) for i, name in enumerate(self.names)}
        except pa.ArrowInvalid as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> InputError:
        """What pyarrow stumbled over, with its line."""
        try:
            check_widths(self.path, self.separator)
        except InputError as found:
            return found
        return InputError(f"{self.path.name} cannot be read ({error}).")


def check_widths(path: Path, separator: str) -> None:
    """Refuse an empty text file, and rows that are shorter or longer than the first line."""
    width = 0
    for line, cells in _lines(path, separator):
        width = width or len(cells)
        if len(cells) != width:
            raise InputError(
                f"{path.name} must have {width} values in each row, as its first line has names; line {line} has "
                f"{len(cells)}."
            )
    if not width:
        raise InputError(f"{path.name} is empty; a table has the names of its columns in the first line.")


def _lines(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each line that has any; slow, for the first one and for messages."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=separator)
            yield from ((lines.line_num, line) for line in lines if line)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name} must be text in UTF-8; it cannot be read ({error}).") from error


# --- Parquet -----------------------------------------------------------------------------------------------------


class ParquetSource(Source):
    """A Parquet file; its columns keep their types."""

    def __init__(self, path: Path) -> None:
        pa, parquet = require("pyarrow", "tables"), require("pyarrow.parquet", "tables")
        try:
            self._file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path.name} must be a Parquet file; it cannot be read ({error}).") from error
        super().__init__(path, list(self._file.schema_arrow.names))

    def where(self, row: int) -> str:
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        pa = require("pyarrow", "tables")
        size = max(1, min(2**16, CELLS // len(self.names)))
        try:
            for batch in self._file.iter_batches(batch_size=size):
                yield {name: batch.column(i) for i, name in enumerate(self.names)}
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.path.name} is damaged ({error}).") from error


# --- NPZ and ARFF ------------------------------------------------------------------------------------------------


class NpzSource(Source):
    """An NPZ file with an array X, or with one array for each column."""

    def __init__(self, path: Path, part: str) -> None:
        self._table = NpzTable.open(path, part)
        super().__init__(path, self._table.names, groups=self._table.groups)

    def where(self, row: int) -> str:
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        yield from self._table.blocks(max(1, min(2**16, CELLS // len(self.names))))


class ArffSource(Source):
    """An ARFF file: numbers, and the words of nominal and text attributes."""

    def __init__(self, path: Path) -> None:
        self._file = ArffFile.open(path)
        self._file.check(any_rows=True)
        attributes = {attribute.name: attribute for attribute in self._file.attributes}
        super().__init__(path, list(attributes), attributes=attributes)

    def where(self, row: int) -> str:
        for number, (line, _, _) in enumerate(self._file.rows()):
            if number == row:
                return f"{self.path.name}, line {line}"
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        """Numbers, and the words of the other attributes."""
        first = 0
        for rows in self._blocks():
            cells = np.stack(rows)  # (n, d) of text
            try:
                yield {
                    name: numbers(cells[:, place], name) if attribute.is_number else cells[:, place]
                    for place, (name, attribute) in enumerate(self.attributes.items())
                }
            except CellError as error:
                raise self.told(error, first) from error
            first += len(rows)

    def _blocks(self) -> Iterator[list[Any]]:
        size = max(1, min(2**16, CELLS // len(self.names)))
        omitted = np.array([attribute.omitted for attribute in self._file.attributes], dtype=object)
        rows = []
        for _, places, words in self._file.rows():
            row = omitted.copy()
            row[list(places)] = words
            rows.append(row)
            if len(rows) == size:
                yield rows
                rows = []
        if rows:
            yield rows
