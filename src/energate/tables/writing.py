"""Tables to disk, a batch of rows at a time, in the format that the file's suffix says."""

import contextlib
import gzip
import json
import math
import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from energate.errors import InputError, require
from energate.tables.arff import Attribute, quoted
from energate.tables.reading import SEPARATORS, Batch, Source
from energate.tables.text import INDEX, LINES, kind_of
from energate.tables.values import word

ENDINGS = (*SEPARATORS, ".jsonl", ".ndjson", ".parquet", ".npz", ".arff")
#: of a number that a model computes, these digits are the same whatever the batch and the machine
DIGITS = 10


class Writer(ABC):
    """Writes batches that all have the same columns; leave it as a context when all are there."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Add rows."""

    @abstractmethod
    def finish(self) -> None:
        """Write what can only be written at the end."""


def check_kind(path: Path) -> None:
    """Refuse a file that no writer is for."""
    packed = path.suffix.lower() == ".gz"
    if (path.suffix.lower() if not packed else kind_of(path)) not in (ENDINGS[:4] if packed else ENDINGS):
        raise InputError(
            f"The output must be a .csv, .tsv, .jsonl, .parquet, .npz or .arff file, text also with .gz, or -; got "
            f"{path.name!r}."
        )


@contextlib.contextmanager
def compressed(path: Path | None, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file to write to, which compresses if its name says so; the same rows give the same bytes."""
    if path is None or path.suffix.lower() != ".gz":
        yield file
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        yield packed  # type: ignore[misc]


def open_writer(kind: str, file: IO[bytes], source: Source) -> Writer:
    """A writer for a suffix; ``source`` is the table that the columns carried along come from."""
    if kind in SEPARATORS:
        return TextWriter(file, SEPARATORS[kind])
    if kind in LINES:
        return JsonWriter(file)
    if kind == ".parquet":
        return ParquetWriter(file)
    return ArffWriter(file, source.path.stem, source.attributes) if kind == ".arff" else NpzWriter(file, source.groups)


def as_printed(computed: Batch, kind: str) -> Batch:
    """Columns that a model computed, for a file of text: numbers of `DIGITS` digits, and no sign before 0."""
    if kind not in SEPARATORS and kind not in LINES and kind != ".arff":
        return computed
    return {name: _rounded(values) for name, values in computed.items()}


def _rounded(values: Any) -> Any:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return values
    values = values.astype(np.float64)
    size = np.abs(values)
    usual = (size > 1e-10) & (size < 1e10)  # powers of ten up to 22 are exact: the quotient is the number that is meant
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(size, where=usual, out=np.zeros_like(size))))
    rounded = np.where(usual, np.round(np.where(usual, values, 0.0) * scale) / scale, values)
    others = np.flatnonzero(~usual)
    rounded[others] = [_short(value) for value in values[others].tolist()]
    return rounded + 0.0  # -0.0 becomes 0.0


def _short(value: float) -> float:
    found = float(f"{value:.{DIGITS}g}")
    return value if math.isinf(found) else found  # the largest numbers would be rounded up to infinity


def _arrow(values: Any) -> Any:
    """A column for pyarrow; text stays text also where a batch has none."""
    pa = require("pyarrow", "tables")
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind in "OU":
        return pa.array([word(each) for each in values.tolist()], pa.string())
    return pa.array(np.ascontiguousarray(values), from_pandas=True)  # NaN is a missing cell


class TextWriter(Writer):
    """CSV or TSV; quotes only where they must be."""

    def __init__(self, file: IO[bytes], separator: str) -> None:
        super().__init__(file)
        self.separator, self.begun = separator, False
        self.special = re.compile(f'["\r\n{separator}]')

    def write(self, batch: Batch) -> None:
        pa, writer = require("pyarrow", "tables"), require("pyarrow.csv", "tables")
        if not self.begun:
            self._write_slowly([list(batch)])
            self.begun = True
        table = pa.table([_arrow(values) for values in batch.values()], names=list(batch))
        options = writer.WriteOptions(include_header=False, delimiter=self.separator, quoting_style="none")
        try:
            sink = pa.BufferOutputStream()
            writer.write_csv(table, sink, options)
            self.file.write(sink.getvalue())
        except pa.ArrowException:  # some cell must be between quotes, or is no plain value
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            self._write_slowly(rows)

    def _write_slowly(self, rows: Iterable[Iterable[Any]]) -> None:
        lines = (self.separator.join(map(self._quoted, row)) + "\n" for row in rows)
        self.file.write("".join(lines).encode())

    def _quoted(self, cell: Any) -> str:
        # The csv module of older Pythons leaves a carriage return without quotes, and readers end the row there.
        text = "" if cell is None else str(cell)
        return '"' + text.replace('"', '""') + '"' if self.special.search(text) else text

    def finish(self) -> None:
        """All rows are written already."""


class JsonWriter(Writer):
    """A JSON object in each line; missing cells are null."""

    def write(self, batch: Batch) -> None:
        cells = [_plain_cells(values) for values in batch.values()]
        rows = (dict(zip(batch, row, strict=True)) for row in zip(*cells, strict=True))
        self.file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())

    def finish(self) -> None:
        """All rows are written already."""


def _plain_cells(values: Any) -> list[Any]:
    cells = values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()
    known = (str, int, bool, type(None))
    return [
        each if isinstance(each, known) else None if isinstance(each, float) and not math.isfinite(each)
        else each if isinstance(each, float) else str(each)
        for each in cells
    ]  # fmt: skip


class ParquetWriter(Writer):
    """Parquet; the first batch says the types.  ``checked``: with a check sum for every page."""

    def __init__(self, file: IO[bytes], *, checked: bool = False) -> None:
        super().__init__(file)
        self.writer: Any = None
        self.checked = checked

    def write(self, batch: Batch) -> None:
        pa, parquet = require("pyarrow", "tables"), require("pyarrow.parquet", "tables")
        table = pa.table([_arrow(values) for values in batch.values()], names=list(batch))
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.file, table.schema, write_page_checksum=self.checked)
        self.writer.write_table(table)

    def note(self, name: bytes, found: dict[str, Any]) -> None:
        """Put something into the footer, as JSON."""
        self.writer.add_key_value_metadata({name: json.dumps(found, sort_keys=True).encode()})

    def finish(self) -> None:
        if self.writer is not None:
            self.writer.close()


class NpzWriter(Writer):
    """NPZ: an array for each column, or for each group of them; sizes come first in the file, so all rows are kept."""

    def __init__(self, file: IO[bytes], groups: dict[str, list[str]]) -> None:
        super().__init__(file)
        self.groups, self.parts = groups, dict[str, list[Any]]()

    def write(self, batch: Batch) -> None:
        rest = dict(batch)
        for group, names in self.groups.items():
            self.parts.setdefault(group, []).append(np.stack([rest.pop(name) for name in names], 1))
        for name, values in rest.items():
            found = _array(values)
            name = name or INDEX  # noqa: PLW2901
            if found.dtype.kind == "O":
                found = np.array([word(each) or "" for each in found.tolist()], dtype=np.str_)
            self.parts.setdefault(name, []).append(found)

    def finish(self) -> None:
        found: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self.parts.items()}
        names = {"X": "feature_names", "Y": "label_names"}
        found |= {names[group]: np.array(columns) for group, columns in self.groups.items() if group in names}
        save_arrays(self.file, found)


def save_arrays(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write an NPZ file; `numpy.savez` would take an array that is called "file" for the file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(values), allow_pickle=False)


def _array(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else values.to_numpy(zero_copy_only=False)


class ArffWriter(Writer):
    """ARFF, dense; columns that come from an ARFF file are declared as there."""

    def __init__(self, file: IO[bytes], relation: str, attributes: dict[str, Attribute]) -> None:
        super().__init__(file)
        self.relation, self.attributes, self.begun = relation, attributes, False

    def write(self, batch: Batch) -> None:
        columns = {name: _array(values) for name, values in batch.items()}
        lines = []
        if not self.begun:
            lines = [
                f"@relation {quoted(self.relation)}",
                *(self._declared(*item) for item in columns.items()),
                "@data",
            ]
            self.begun = True
        words = [[_arff_word(each) for each in values.tolist()] for values in columns.values()]
        lines += [",".join(row) for row in zip(*words, strict=True)]
        self.file.write(("\n".join(lines) + "\n").encode())

    def _declared(self, name: str, values: Any) -> str:
        known = self.attributes.get(name)
        kind = known.kind if known else "numeric" if values.dtype.kind in "biuf" else "string"
        return f"@attribute {quoted(name)} {kind}"

    def finish(self) -> None:
        """All rows are written already."""


def _arff_word(value: Any) -> str:
    text = word(value)
    if text is None:
        return "?"
    return text if isinstance(value, float | int) else quoted(text)
