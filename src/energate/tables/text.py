"""Tables as text: CSV and its kin, with any separator and encoding, and JSON with an object in each line.

What a file does not say is guessed from its beginning, and told in ``notes``: the separator, the encoding, and a first
column without a name, which is the index that pandas and R write.
"""

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from energate.errors import InputError, require
from energate.tables import reading
from energate.tables.reading import Batch, Source
from energate.tables.room import TIMES, room
from energate.tables.values import listed

#: files that are compressed, by their last suffix
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SEPARATORS = {**reading.SEPARATORS, ".txt": ",", ".dat": ",", ".data": ","}
LINES = (".jsonl", ".ndjson", ".json")
INDEX = "Unnamed: 0"  # what pandas calls a first column without a name
_OTHERS = (",", ";", "\t", "|")
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LOOKED_AT = 2**26  # bytes in which an encoding is looked for
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)
_GUESSED_BY = 30  # lines
_WHOLE = 2**29  # bytes of a JSON list


def kind_of(path: Path) -> str:
    """The suffix that says what a file holds: that before .gz, where there is one."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in OPENERS else suffix


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, decompressed where it has to be."""
    opener = OPENERS.get(path.suffix.lower())
    try:
        with path.open("rb") if opener is None else opener(path, "rb") as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise InputError(f"{path.name} is damaged: it cannot be decompressed ({error}).") from error


# --- CSV and its kin ---------------------------------------------------------------------------------------------


class TextSource(Source):
    """A CSV or TSV file with the names of its columns in the first line."""

    def __init__(self, path: Path, separator: str | None = None, encoding: str | None = None) -> None:
        notes = list[str]()
        self.encoding = encoding or _encoding(path, notes)
        usual = SEPARATORS.get(kind_of(path), ",")
        if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
            raise InputError(f"`delimiter` must be one character, such as ; or | or a tab; got {separator!r}.")
        self.separator = separator or _separator(path, self.encoding, usual, notes)
        try:
            rows = list(islice(_rows(_sample(path, self.encoding), self.separator), 1))
        except csv.Error as error:
            raise InputError(f"{path.name} cannot be read ({error}).") from error
        if not rows:
            raise InputError(f"{path.name} is empty; a table has the names of its columns in the first line.")
        names = [name.strip() for name in rows[0][1]]
        index = [names[0]] if names[0] in ("", INDEX) and len(names) > 1 else []
        if not any(names):
            raise InputError(f"{path.name} must name its columns in its first line; all names are empty there.")
        names = [name or (f"Unnamed: {place}" if place else "") for place, name in enumerate(names)]
        super().__init__(path, names, notes=notes, index=index)
        if index:
            notes.append("the first column has no name: it is taken for an index, and left out.")
        if self.separator == ";":
            self.decimal = ","

    def where(self, row: int) -> str:
        """File and line; cells with line breaks, and empty lines, make it worth counting."""
        with contextlib.suppress(InputError), self._lines() as lines:
            found = next(islice(lines, row + 1, None), None)
            if found:
                return f"{self.path.name}, line {found[0]}"
        return f"{self.path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        """Cells as text, None where one is empty."""
        pa, reader = require("pyarrow", "tables"), require("pyarrow.csv", "tables")
        encoding = "utf8" if self.encoding == "utf-8-sig" else self.encoding
        try:
            with opened(self.path) as file:
                batches = reader.open_csv(
                    _Lined(file),
                    read_options=reader.ReadOptions(
                        block_size=reading.BLOCK, column_names=self.names, encoding=encoding
                    ),
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
        except (pa.ArrowException, UnicodeError, LookupError, csv.Error) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> InputError:
        """What pyarrow stumbled over, with its line."""
        width = len(self.names)
        try:
            with self._lines() as lines:
                for line, cells in lines:
                    if len(cells) != width:
                        return InputError(
                            f"{self.path.name} must have {width} values in each row, as its first line has names; line "
                            f"{line} has {len(cells)}."
                        )
        except InputError as found:
            return found
        return InputError(f"{self.path.name} cannot be read ({reading.in_a_line(error)}).")

    @contextlib.contextmanager
    def _lines(self) -> Iterator[Iterator[tuple[int, list[str]]]]:
        """Line number and cells of each line that has any; slow, for messages."""
        try:
            with opened(self.path) as file:
                yield _rows(io.TextIOWrapper(file, encoding=_strict(self.encoding), newline=""), self.separator)
        except UnicodeError as error:
            raise _not_decoded(self.path, self.encoding, error) from error
        except csv.Error as error:
            raise InputError(f"{self.path.name} cannot be read ({error}).") from error


def _rows(text: IO[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    lines = csv.reader(_limited(text), delimiter=separator)
    return ((lines.line_num, line) for line in lines if line)


def _limited(text: IO[str]) -> Iterator[str]:
    """The lines of a text, of which none may be so long that it fills the memory."""
    while line := text.readline(reading.BLOCK):
        if len(line) == reading.BLOCK:
            raise csv.Error("a line is too long for a row")
        yield line


class _Lined(io.RawIOBase):
    """A file for pyarrow, which reads many blocks ahead: it ends where a line is too long."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.since = file, 0  # bytes since the last line ended

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        last = max(data.rfind(b"\n"), data.rfind(b"\r"))
        self.since = self.since + len(data) if last < 0 else len(data) - 1 - last
        if self.since > 2 * reading.BLOCK:
            raise csv.Error("a line is too long for a row")
        return data


def _strict(encoding: str) -> str:
    return "utf-8-sig" if encoding in ("utf8", "utf-8") else encoding


def _sample(path: Path, encoding: str) -> io.StringIO:
    """The beginning of a file, without a last line that may be cut."""
    try:
        with opened(path) as file:
            data = file.read(reading.BLOCK)
            rest = bool(file.read(1))
        text = codecs.getincrementaldecoder(_strict(encoding))().decode(data, final=not rest)
    except UnicodeError as error:
        raise _not_decoded(path, encoding, error) from error
    except LookupError as error:
        raise InputError(f"`encoding` must be one that Python knows, such as latin-1; got {encoding!r}.") from error
    except _DAMAGE as error:
        raise InputError(f"{path.name} cannot be read ({error}).") from error
    return io.StringIO(text[: text.rfind("\n") + 1] if rest and "\n" in text else text, newline="")


def _not_decoded(path: Path, encoding: str, error: Exception) -> InputError:
    return InputError(
        f"{path.name} must be text in {encoding}; it cannot be read ({error}). Say how it is written: `encoding` "
        "latin-1, cp1252 or utf-16, say."
    )


def _encoding(path: Path, notes: list[str]) -> str:
    """That of a file: what its first bytes say, UTF-8 if it can be, else that of Windows, with a note."""
    try:
        with opened(path) as file:
            head = file.read(2**16)
            mark = next((name for bom, name in _BOMS.items() if head.startswith(bom)), None)
            if mark is None and b"\0" in head:  # without a mark: half of the bytes of English are 0
                odd, even = head[1::2].count(0), head[::2].count(0)
                mark = "utf-16-le" if odd > 2 * even else "utf-16-be" if even > 2 * odd else None
            if mark is not None:
                if mark != "utf-8-sig":
                    notes.append(f"it is read as {mark.upper()}.")
                return mark
            decoder, seen = codecs.getincrementaldecoder("utf-8")(), 0
            while head and seen < _LOOKED_AT:
                decoder.decode(head)
                seen += len(head)
                head = file.read(reading.BLOCK)
            decoder.decode(b"", final=not head)
    except UnicodeDecodeError:
        notes.append("it is not UTF-8, and is read as Windows-1252 (latin-1); --encoding says another.")
        return "cp1252" if _is_windows(path) else "latin-1"
    except _DAMAGE as error:
        raise InputError(f"{path.name} cannot be read ({error}).") from error
    return "utf-8-sig"


def _is_windows(path: Path) -> bool:
    """Whether the bytes that are seen have all a letter in Windows-1252: five have none."""
    with opened(path) as file:
        seen = 0
        while (data := file.read(reading.BLOCK)) and seen < _LOOKED_AT:
            if any(byte in data for byte in b"\x81\x8d\x8f\x90\x9d"):
                return False
            seen += len(data)
    return True


def _separator(path: Path, encoding: str, usual: str, notes: list[str]) -> str:
    """The one that cuts all of the first lines into as many cells as there are names, the usual one first."""
    for separator in (usual, *(each for each in _OTHERS if each != usual)):
        try:
            rows = [cells for _, cells in islice(_rows(_sample(path, encoding), separator), _GUESSED_BY)]
        except csv.Error:
            continue
        if rows and len(rows[0]) > 1 and {len(cells) for cells in rows} == {len(rows[0])}:
            if separator != usual:
                shown = "a tab" if separator == "\t" else repr(separator)
                notes.append(f"its cells are between {shown}; --delimiter says another.")
            return separator
    return usual


# --- JSON ---------------------------------------------------------------------------------------------------------


class JsonSource(Source):
    """A file with a JSON object in each line, or one list of them: names and cells."""

    def __init__(self, path: Path) -> None:
        names: dict[str, None] = {}
        self._path = path
        for _, row in self._rows():
            names |= dict.fromkeys(row)
        if not names:
            raise InputError(f"{path.name} has no rows.")
        super().__init__(path, list(names))

    def where(self, row: int) -> str:
        found = next(islice(self._rows(), row, None), None)
        return f"{self._path.name}, line {found[0]}" if found else f"{self._path.name}, row {row + 1}"

    def batches(self) -> Iterator[Batch]:
        """Cells as they are: numbers, text, true and false, None where there is none."""
        rows = self._rows()
        while block := list(_some(rows, self.batch_rows())):
            yield {name: _objects([row.get(name) for row in block]) for name in self.names}

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        name = self._path.name
        with opened(self._path) as file:
            first = file.read(1)
            while first.isspace():
                first = file.read(1)
            whole = first == b"["
        if whole:
            yield from self._whole()
            return
        with opened(self._path) as file:
            number = 0
            while line := file.readline(reading.BLOCK):
                number += 1
                if line.strip():
                    if len(line) == reading.BLOCK:
                        raise InputError(f"{name}, line {number} must be one JSON object; it is too long for one.")
                    yield number, _row(_parsed(line, f"{name}, line {number}"), f"{name}, line {number}")

    def _whole(self) -> Iterator[tuple[int, dict[str, Any]]]:
        with opened(self._path) as file:
            most = int(min(_WHOLE, room() / (2 * TIMES * TIMES)))
            data = file.read(most + 1)
            if len(data) > most:
                raise InputError(
                    f"{self._path.name} is one JSON list, which is read at once, and larger than {most:,} bytes. Write "
                    "an object in each line: .jsonl."
                )
            content = _parsed(data, self._path.name)
        for number, row in enumerate(content, 1):
            yield number, _row(row, f"{self._path.name}, row {number}")


def _some(rows: Iterator[tuple[int, dict[str, Any]]], most: int) -> Iterator[dict[str, Any]]:
    """Rows, as many as make a batch: fewer if their text is long."""
    n_letters = 0
    for _, row in islice(rows, most):
        yield row
        n_letters += sum(len(cell) for cell in row.values() if isinstance(cell, str))
        if n_letters > reading.BLOCK:
            return


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # also text that is no UTF-8
        raise InputError(f"{where} must be JSON, an object in each line or a list of them; {error}.") from error


def _row(content: Any, where: str) -> dict[str, Any]:
    if type(content) is not dict:
        raise InputError(f"{where} must be a JSON object, names and cells; got {str(content)[:40]!r}.")
    nested = [name for name, cell in content.items() if isinstance(cell, dict | list)]
    if nested:
        raise InputError(f"{where}: cells must be numbers, text, true, false or null; {listed(nested)} hold more.")
    return content


def _objects(cells: list[Any]) -> Any:
    made = np.empty(len(cells), dtype=object)
    made[:] = cells
    return made
