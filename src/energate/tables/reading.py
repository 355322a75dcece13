"""Tables on disk: a batch of rows at a time, so that a file may be larger than memory, or whole as arrays.

`open_table` gives batches; `load_table` rows and a target; `load_arff` multi-label files as MULAN and MEKA use them.

CSV, TSV and Parquet need the extra `tables`.  The cells of text files stay the text they are: what is carried along to
another file is not changed, and `energate.tables.columns` makes numbers of the rest.
"""

import atexit
import gzip
import lzma
import math
import os
import re
import shutil
import sys
import tempfile
import tokenize
import xml.etree.ElementTree as ET
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.tables.arff import ArffFile, Attribute
from energate.tables.columns import flags_of
from energate.tables.room import TIMES, room, size_of, too_large
from energate.tables.values import CellError, is_text, listed, numbers, words

if TYPE_CHECKING:
    from energate.tables.pictures import Pictures

#: a table, or pictures that are one together
AnyPath = str | os.PathLike[str] | Sequence[Path]
#: columns of equal length, by name, in their order
Batch = dict[str, Any]
#: X (n, d), y (n,) or (n, L), and the names of the columns of X.
Table = tuple[NDArray[np.float64], NDArray[Any], list[str]]
#: X (n, D), Y (n, L) of 0 and 1, the names of the columns of X, and those of the columns of Y.
LabelTable = tuple[NDArray[np.float64], NDArray[np.uint8], list[str], list[str]]
_TRUTH = {"false": 0.0, "true": 1.0, "none": np.nan}

BLOCK = 2**22  # bytes of a text file at once
CELLS = 2**20  # numbers at once
SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARTS = ("train", "valid", "test")  # of NPZ files
PICTURES = ("images", "image")  # what arrays of pictures are called in NPZ files, beside X and x_train
PICTURE = "image"  # the column of them
MOST_CHANNELS = 4
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, KeyError, SyntaxError),
    *(OverflowError, MemoryError, tokenize.TokenError, RuntimeError),  # the last: passwords, methods nobody knows
)
MOST_COLUMNS = 2**20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def n_rows(batch: Batch) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch.values()))) if batch else 0


class Source(ABC):
    """A table on disk: the names of its columns, and its rows in batches."""

    def __init__(
        self,
        path: Path,
        names: list[str],
        groups: dict[str, list[str]] | None = None,
        attributes: dict[str, Attribute] | None = None,
        notes: list[str] | None = None,
        index: Sequence[str] = (),
    ) -> None:
        self.path, self.names = path, names
        self.inputs = [path]  # the files that are read
        self.notes = [] if notes is None else notes  # what was guessed of the file
        self.index = list(index)  # columns that number the rows
        self.decimal: str | None = None  # the mark before fractions, if the file lets one guess it
        self.groups = groups or {}  # arrays that hold several columns: of NPZ files
        self.attributes = attributes or {}  # how columns were declared: of ARFF files
        #: those declared with more than two words, which are categories even if the words are numbers
        self.nominal = [name for name, each in self.attributes.items() if each.words and len(each.words) > 2]
        if len(set(names)) < len(names):
            twice = [name for name, count in Counter(names).items() if count > 1]
            raise InputError(f"{path.name} must give every column its own name; {listed(twice)} occur more than once.")

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """The rows, in their order."""

    @abstractmethod
    def where(self, row: int) -> str:
        """The place of a row, which counts from 0, in words."""

    def batch_rows(self) -> int:
        """How many rows a batch has where we choose."""
        return max(1, min(2**16, CELLS // len(self.names)))

    def told(self, error: CellError, first_row: int = 0) -> InputError:
        """The error of a cell with its place in this file; its batch began at ``first_row``."""
        return InputError(error.told(self.where(first_row + error.row)))

    def told_notes(self) -> list[str]:
        """What was guessed, with the name of the file."""
        return [f"{self.path.name}: {note}" for note in self.notes]

    def read(self) -> Batch:
        """All rows at once, if memory has room for them and for what is made of them."""
        parts, size, most = list[Batch](), 0, room() / TIMES
        for batch in self.batches():
            parts.append(batch)
            size += sum(map(size_of, batch.values()))
            if size > most:
                raise too_large(self.path.name, size, most)
        if not any(map(n_rows, parts)):
            raise InputError(f"{self.path.name} has no rows.")
        return joined(parts)


def in_a_line(error: BaseException) -> str:
    """What a library says of a file, which may be many lines, in one."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of several batches, of which there is at least one, as one."""
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Some rows of a batch."""
    return {
        name: values[start:stop] if isinstance(values, np.ndarray) else values.slice(start, stop - start)
        for name, values in batch.items()
    }


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return require("pyarrow", "tables").chunked_array(parts)


def open_table(
    path: "AnyPath | Source",
    part: str = "train",
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    pictures: "Pictures | None" = None,
) -> Source:
    """A table of a kind that its suffix says; "-" is standard input, whose first bytes say it.

    ``part`` is for NPZ files that hold several (train, valid, test); ``delimiter`` and ``encoding`` are those of a text
    file, and are guessed if left out.  A folder of ``pictures``, or files of them, are a table, too: see
    `energate.tables.pictures`.  A table that is open already is given back.
    """
    if isinstance(path, Source):
        return path
    from energate.tables import text  # which needs what is here
    from energate.tables.pictures import PictureSource, is_picture

    if not isinstance(path, str | os.PathLike):
        return PictureSource(path, pictures)
    path = _spooled() if str(path) == "-" else Path(path)
    kind = text.kind_of(path)
    if is_picture(path):
        return PictureSource(path, pictures)
    of_text = kind in text.SEPARATORS
    if kind not in _KINDS and not of_text and kind not in text.LINES:
        hint = " Save it as CSV there." if kind in (".xls", ".xlsx", ".ods") else ""
        raise InputError(
            f"A table must be a .csv, .tsv, .parquet, .npz or .arff file, or .jsonl, perhaps with .gz; got "
            f"{path.name!r}.{hint}"
        )
    if not path.is_file():
        raise InputError(f"There is no file {path.name!r} in the folder {str(path.parent)!r}.")
    if (delimiter or encoding) and not of_text:
        raise InputError(f"`delimiter` and `encoding` are for text such as CSV; {path.name} is none. Leave them out.")
    try:
        if of_text:
            return text.TextSource(path, delimiter, encoding)
        if kind in text.LINES:
            return text.JsonSource(path)
        if path.suffix.lower() in text.OPENERS:
            raise InputError(f"{path.name} must not be compressed once more; decompress it first.")
        if kind == ".parquet":
            return ParquetSource(path)
        return ArffSource(path) if kind == ".arff" else NpzSource(path, part)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error


_KINDS = (".parquet", ".npz", ".arff")
#: the first bytes of files that are no CSV
_FIRST = {b"PAR1": ".parquet", b"PK\x03\x04": ".npz", b"@": ".arff", b"%": ".arff", b"{": ".jsonl", b"[": ".jsonl"}


def _spooled() -> Path:
    """Standard input as a file, since tables are looked at more than once; it is gone when the process ends."""
    folder = tempfile.mkdtemp(prefix="energate-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "standard input"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    with path.open("rb") as file:
        head = file.read(64)
    zipped = head.startswith(b"\x1f\x8b")
    if zipped:
        try:
            with gzip.open(path) as file:
                head = file.read(64)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"Standard input is damaged: it cannot be decompressed ({error}).") from error
    kind = next((kind for first, kind in _FIRST.items() if head.lstrip().startswith(first)), ".csv")
    return path.rename(path.with_name(f"standard input{kind}{'.gz' if zipped else ''}"))


# --- Parquet -----------------------------------------------------------------------------------------------------


class ParquetSource(Source):
    """A Parquet file; its columns keep their types.

    ``file`` is where its bytes are, if not at ``path``.  ``row_groups`` are those to read, if not all; the number of
    their first row is ``first_row``.
    """

    def __init__(
        self, path: Path, file: Any = None, row_groups: Sequence[int] | None = None, first_row: int = 0
    ) -> None:
        pa, parquet = require("pyarrow", "tables"), require("pyarrow.parquet", "tables")
        self._row_groups, self._first_row = row_groups, first_row
        try:
            self._file = parquet.ParquetFile(path if file is None else file, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path.name} must be a Parquet file; it cannot be read ({in_a_line(error)}).") from error
        super().__init__(path, list(self._file.schema_arrow.names))

    def group_rows(self) -> list[int]:
        """How many rows each row group of the file has."""
        about = self._file.metadata
        return [about.row_group(number).num_rows for number in range(about.num_row_groups)]

    def where(self, row: int) -> str:
        return f"{self.path.name}, row {self._first_row + row + 1}"

    def batches(self) -> Iterator[Batch]:
        pa = require("pyarrow", "tables")
        try:
            for batch in self._file.iter_batches(batch_size=self.batch_rows(), row_groups=self._row_groups):
                yield {name: batch.column(i) for i, name in enumerate(self.names)}
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.path.name} is damaged ({in_a_line(error)}).") from error


# --- ARFF --------------------------------------------------------------------------------------------------------


class ArffSource(Source):
    """An ARFF file: numbers, and the words of nominal and text attributes."""

    def __init__(self, path: Path) -> None:
        self._file = ArffFile.open(path)
        attributes = {attribute.name: attribute for attribute in self._file.attributes}
        self.relation = self._file.relation
        super().__init__(path, list(attributes), attributes=attributes)

    def where(self, row: int) -> str:
        found = next(islice(self._file.rows(), row, None), None)
        return f"{self.path.name}, line {found[0]}" if found else f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        """Numbers, and the words of the other attributes."""
        omitted = np.array([attribute.omitted for attribute in self._file.attributes], dtype=object)
        rows, first = self._file.rows(), 0
        while block := list(islice(rows, self.batch_rows())):
            cells = np.tile(omitted, (len(block), 1))  # (n, d) of text
            for row, (_, places, found) in zip(cells, block, strict=True):
                row[list(places)] = found
            try:
                yield {
                    name: numbers(cells[:, place], name) if attribute.is_number else cells[:, place]
                    for place, (name, attribute) in enumerate(self.attributes.items())
                }
            except CellError as error:
                raise self.told(error, first) from error
            first += len(block)


# --- NPZ ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    """An array in the file: where, and of which shape."""

    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool

    @property
    def n_bytes(self) -> int:
        """Of all its numbers."""
        return self.dtype.itemsize * math.prod(self.shape)


class NpzSource(Source):
    """An NPZ file: arrays with a row for each row of the table, side by side.

    ``X`` holds the columns that ``feature_names`` names, or x0, x1 and so on; a table ``Y`` likewise, with
    ``label_names``.  Without an ``X`` every array in one dimension is a column.  Of files with ``x_train`` and the
    like, ``part`` says which rows.  An ``X``, or ``images``, of three dimensions, or four with channels last, holds
    pictures: one column, ``image``.
    """

    def __init__(self, path: Path, part: str) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                stored = {name.removesuffix(".npy"): _look(archive, name) for name in archive.namelist()}
                stored = _of_part(stored, part, path)
                self._n_rows = _n_rows(stored, path)
                arrays = {name: each for name, each in stored.items() if each.shape[:1] == (self._n_rows,)}
                columns = {}
                for name, each in arrays.items():
                    names = _texts(archive, {"X": "feature_names", "Y": "label_names"}.get(name))
                    columns[name] = _column_names(name, each, names, path)
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(
                f"{path.name} must be an NPZ file of plain arrays; it cannot be read ({in_a_line(error)})."
            ) from error
        self._columns = {name: found for name, found in columns.items() if found}  # array -> its columns
        if not self._columns:
            raise InputError(f"{path.name} must have arrays of numbers or text, a row for each row; it has none.")
        self._arrays = {name: arrays[name] for name in self._columns}
        groups = {name: found for name, found in self._columns.items() if len(arrays[name].shape) == 2}
        self._n_cells = sum(math.prod(each.shape[1:]) for each in self._arrays.values())
        super().__init__(path, [name for found in self._columns.values() for name in found], groups=groups)

    def batch_rows(self) -> int:
        return max(1, min(2**16, CELLS // max(1, self._n_cells)))

    def where(self, row: int) -> str:
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        size = self.batch_rows()
        try:
            with ExitStack() as stack:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                readers = {name: _Reader(archive, each, stack) for name, each in self._arrays.items()}
                for start in range(0, self._n_rows, size):
                    rows = {name: reader.take(min(size, self._n_rows - start)) for name, reader in readers.items()}
                    yield {
                        column: block[:, place] if block.ndim == 2 else block
                        for name, block in rows.items()
                        for place, column in enumerate(self._columns[name])
                    }
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(f"{self.path.name} is damaged ({in_a_line(error)}).") from error


class _Reader:
    """Reads an array from its beginning, some rows at a time."""

    def __init__(self, archive: zipfile.ZipFile, stored: _Stored, stack: ExitStack) -> None:
        self.stored, self.whole, self.start = stored, None, 0
        self.file: IO[bytes] = stack.enter_context(archive.open(stored.member))
        if stored.by_columns:  # the first rows are all over the file
            self.whole = _whole(self.file, stored)
        else:
            _read_header(self.file)

    def take(self, n_rows: int) -> NDArray[Any]:
        self.start += n_rows
        if self.whole is not None:
            return self.whole[self.start - n_rows : self.start]
        shape = (n_rows, *self.stored.shape[1:])
        n_bytes = self.stored.dtype.itemsize * math.prod(shape)
        _check_room(n_bytes)
        data = self.file.read(n_bytes)
        if len(data) != n_bytes:
            raise EOFError("an array ends too soon")
        return np.frombuffer(data, self.stored.dtype).reshape(shape)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return _HEADERS[np.lib.format.read_magic(file)](file)


def _look(archive: zipfile.ZipFile, member: str) -> _Stored:
    with archive.open(member) as file:
        shape, by_columns, dtype = _read_header(file)
    stored = _Stored(member, shape, dtype, by_columns and len(shape) > 1)
    if min(shape, default=0) < 0 or stored.n_bytes > archive.getinfo(member).file_size:
        raise EOFError(f"{member} says that it has the shape {shape}, which its bytes are too few for")
    return stored


def _check_room(n_bytes: int) -> None:
    if n_bytes > (most := room() / 2):
        raise MemoryError(f"an array takes {n_bytes:,} bytes at once, and memory has room for {int(most):,}")


def _whole(file: IO[bytes], stored: _Stored) -> NDArray[Any]:
    _check_room(stored.n_bytes)
    return np.lib.format.read_array(file, allow_pickle=False)


def _of_part(stored: dict[str, _Stored], part: str, path: Path) -> dict[str, _Stored]:
    """The arrays of one part, without the part in their names."""
    if "X" in stored or "x_train" not in stored:
        named = next((name for name in PICTURES if name in stored and len(stored[name].shape) > 2), None)
        return stored if named is None or "X" in stored else {"X": stored[named], **_without(stored, named)}
    found = {name.removesuffix(f"_{part}"): each for name, each in stored.items() if name.endswith(f"_{part}")}
    if "x" not in found:
        there = [name for name in PARTS if f"x_{name}" in stored]
        raise InputError(f"{path.name} must have the part {part!r}; it has {listed(there)}.")
    return {"X": found.pop("x"), **found}


def _without(stored: dict[str, _Stored], name: str) -> dict[str, _Stored]:
    return {other: each for other, each in stored.items() if other != name}


def _n_rows(stored: dict[str, _Stored], path: Path) -> int:
    if "X" in stored:
        each = stored["X"]
        if len(each.shape) not in (2, 3, 4) or each.dtype.kind not in "biuf":
            raise InputError(
                f"`X` of {path.name} must be a table of numbers, or pictures; it has shape {each.shape} and type "
                f"{each.dtype}."
            )
        if len(each.shape) == 4 and each.shape[3] > MOST_CHANNELS:
            raise InputError(
                f"The pictures of {path.name} must have their channels last, as (n, height, width, channels); got "
                f"{each.shape}."
            )
        return each.shape[0]
    lengths = {each.shape[0] for each in stored.values() if len(each.shape) == 1}
    if len(lengths) != 1:
        raise InputError(
            f"{path.name} must have a table X, or arrays of one length, one for each column; its arrays are "
            f"{listed([f'{name} {each.shape}' for name, each in stored.items()])}."
        )
    return lengths.pop()


def _column_names(name: str, stored: _Stored, given: list[str] | None, path: Path) -> list[str]:
    if name == "X" and len(stored.shape) > 2:
        return [PICTURE]
    usable = stored.dtype.kind in "biufU" and stored.dtype.itemsize > 0
    if not usable or len(stored.shape) > 2 or name in ("feature_names", "label_names"):
        return []
    if len(stored.shape) == 1:
        return [name]
    if stored.shape[1] > MOST_COLUMNS:
        raise InputError(f"{name} of {path.name} may have {MOST_COLUMNS:,} columns; it has {stored.shape[1]:,}.")
    names = given or [f"{'x' if name == 'X' else name}{i}" for i in range(stored.shape[1])]
    if len(names) != stored.shape[1]:
        raise InputError(
            f"{path.name} must have a name for each of the {stored.shape[1]} columns of {name}; it has {len(names)}."
        )
    return names


def _texts(archive: zipfile.ZipFile, name: str | None) -> list[str] | None:
    if name is None or f"{name}.npy" not in archive.namelist():
        return None
    stored = _look(archive, f"{name}.npy")
    with archive.open(f"{name}.npy") as file:
        return [str(each) for each in np.atleast_1d(_whole(file, stored))]


# --- whole files as arrays ---------------------------------------------------------------------------------------


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
