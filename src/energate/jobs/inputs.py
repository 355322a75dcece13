"""The files that a job reads, here or at any address that fsspec knows, and what each of its tasks sees of them.

A file is known by its name, its size and a sum: of the footer of a Parquet file and the directory of an NPZ file, which
hold offsets, statistics and check sums of all rows, and of all bytes of a text file.  Where it lies does not count.
"""

import glob
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from energate.errors import InputError, require
from energate.tables.reading import Batch, ParquetSource, Source, open_table
from energate.tables.writing import ENDINGS

_CHUNK = 2**20


@dataclass(frozen=True)
class Input:
    """A file: where it is, what it is known by, and the rows of each of its row groups, if it has them."""

    address: str
    name: str
    size: int
    sha256: str
    row_groups: tuple[int, ...] = ()

    def known_by(self) -> dict[str, Any]:
        """What makes it this file, wherever it is."""
        return {"name": self.name, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class Piece:
    """Some row groups of a Parquet file, of which the first row has the number ``first_row``; or, without, a file."""

    address: str
    row_groups: tuple[int, ...] = ()
    first_row: int = 0


# --- which files -------------------------------------------------------------------------------------------------


def find(patterns: Iterable[str]) -> list[str]:
    """The addresses that names, patterns with * and folders stand for; those of one pattern in the order of names."""
    found = [address for pattern in patterns for address in _of_pattern(pattern)]
    return list(dict.fromkeys(found))


def is_remote(address: str) -> bool:
    """Whether this is an address for fsspec."""
    return "://" in address


def _of_pattern(pattern: str) -> list[str]:
    if is_remote(pattern):
        with _understood(pattern):
            system, path = require("fsspec", "jobs").core.url_to_fs(pattern)
            special = glob.has_magic(pattern)
            paths = system.glob(path) if special else system.ls(path, detail=False) if system.isdir(path) else [path]
            found = [system.unstrip_protocol(each) for each in paths if PurePosixPath(each).suffix.lower() in ENDINGS]
    elif Path(pattern).is_dir():
        found = [str(each.absolute()) for each in Path(pattern).iterdir() if each.suffix.lower() in ENDINGS]
    elif glob.has_magic(pattern) and not Path(pattern).exists():
        found = [str(Path(each).absolute()) for each in glob.glob(pattern, recursive=True)]
    else:
        found = [str(Path(pattern).absolute())]
    if not found:
        raise InputError(f"No table is found at {pattern!r}: no {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file.")
    return sorted(found)


@contextmanager
def _understood(address: str) -> Iterator[None]:
    """Errors of file systems, which are of many kinds, as ours."""
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"{address} needs a package that is not installed ({error}).") from error
    except Exception as error:  # every file system has errors of its own
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{address} cannot be read ({said}).") from error


@contextmanager
def _open(address: str) -> Iterator[IO[bytes]]:
    if not is_remote(address) and not Path(address).is_file():
        path = Path(address)
        raise InputError(f"There is no file {path.name!r} in the folder {str(path.parent)!r}.")
    with ExitStack() as stack:
        with _understood(address):  # but not what is done with the file, whose errors tell more
            way = require("fsspec", "jobs").open if is_remote(address) else open
            file = stack.enter_context(way(address, "rb"))
        yield file


# --- what a file is known by -------------------------------------------------------------------------------------


def look(address: str) -> Input:
    """A file as it is now."""
    name = PurePosixPath(address).name
    kind = PurePosixPath(address).suffix.lower()
    if kind not in ENDINGS:
        raise InputError(f"A table must be a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file; got {name!r}.")
    with _open(address) as file:
        size = file.seek(0, 2)
        file.seek(0)
        if kind == ".parquet":
            digest, groups = _parquet(file, size, name)
        else:
            digest, groups = (_npz(file, name) if kind == ".npz" else _all_of(file)), ()
    return Input(address, name, size, digest, groups)


def _parquet(file: IO[bytes], size: int, name: str) -> tuple[str, tuple[int, ...]]:
    pa, parquet = require("pyarrow", "tables"), require("pyarrow.parquet", "tables")
    try:
        about = parquet.ParquetFile(file).metadata
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name} must be a Parquet file; it cannot be read ({error}).") from error
    file.seek(max(0, size - 8 - about.serialized_size))
    footer = file.read()
    return hashlib.sha256(footer).hexdigest(), tuple(about.row_group(i).num_rows for i in range(about.num_row_groups))


def _npz(file: IO[bytes], name: str) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            members = [(each.filename, each.file_size, each.CRC) for each in archive.infolist()]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{name} must be an NPZ file; it cannot be read ({error}).") from error
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()


def _all_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


# --- rows --------------------------------------------------------------------------------------------------------


@contextmanager
def opened(piece: Piece, part: str) -> Iterator[Source]:
    """The rows of a task; a file elsewhere that can only be read as a whole is copied here first."""
    name = PurePosixPath(piece.address).name
    if piece.row_groups:
        with _open(piece.address) as file:
            yield ParquetSource(Path(name), file, piece.row_groups, piece.first_row)
    elif not is_remote(piece.address):
        yield open_table(piece.address, part)
    else:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / name
            with _open(piece.address) as file, copy.open("wb") as here:
                while chunk := file.read(_CHUNK):
                    here.write(chunk)
            yield open_table(copy, part)


class Batches(Source):
    """Record batches, or tables, of pyarrow that are here already."""

    def __init__(self, name: str, names: Sequence[str], batches: Iterable[Any]) -> None:
        super().__init__(Path(name), list(names))
        self._batches = batches

    def where(self, row: int) -> str:
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        for batch in self._batches:
            yield {name: batch.column(i) for i, name in enumerate(self.names)}
