"""Where the data sets come from: a folder of the user's, and the original archives on the web."""

import difflib
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.files import sha256_of

#: The environment variable that names the folder of the data sets.
VARIABLE = "ENERGATE_DATA"
#: Where the original archives are.
ADDRESS = "http://www.iro.umontreal.ca/~lisa/icml2007data/"
#: The published sums of archives; the others are recorded when they are first fetched.
KNOWN_HASHES = {"rectangles.zip": "sha1:b8d456b1f83bea5efebe76a47a9535adc4b72586"}

_T = TypeVar("_T")
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, ValueError)


class NotHereError(InputError):
    """One source does not have the data set; the next one may."""


def named(name: str, sets: Mapping[str, _T], kind: str = "data set") -> _T:
    """The set of this name."""
    if name not in sets:
        near = difflib.get_close_matches(str(name), sets, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(f"There is no {kind} {name!r}. {hint}The names are: {', '.join(sets)}.")
    return sets[name]


def first_of(sources: Sequence[str], source: str, find: Callable[[str], _T]) -> tuple[str, _T | None, str]:
    """The first of the sources that has something, what it has, and why those before have not; or ``source`` alone."""
    if source not in ("auto", *sources):
        *words, last = [repr(each) for each in ("auto", *sources)]
        raise InputError(f"`source` must be {', '.join(words)} or {last}; got {source!r}.")
    reasons: list[str] = []
    for each in sources if source == "auto" else (source,):
        try:
            return each, find(each), "; ".join(reasons)
        except NotHereError as error:
            reasons.append(f"{each}: {error}")
    return "", None, "; ".join(reasons)


@dataclass(frozen=True)
class Folder:
    """A folder of data files, the sums it has of them, and a record of those that were read."""

    path: Path
    sums: dict[str, str]
    read: dict[str, str] = field(default_factory=dict)  # file name -> sha256

    @classmethod
    def find(cls, folder: str | os.PathLike[str] | None, part: str = "single") -> "Folder":
        """The folder that the caller or the environment names; its part of this name, if it has one."""
        named = os.fspath(folder) if folder is not None else os.environ.get(VARIABLE, "")
        if not named:
            raise NotHereError(f"no folder is named: set {VARIABLE} or pass `folder`")
        path = Path(named).expanduser()
        if not path.is_dir():
            origin = "`folder`" if folder is not None else f"The environment variable {VARIABLE}"
            raise InputError(f"{origin} must name a folder of data sets; {named!r} is not a folder.")
        sums = {}
        if (path / "SHA256SUMS").is_file():
            lines = (path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
            sums = {Path(parts[-1]).name: parts[0] for line in lines if len(parts := line.split()) == 2}
        return cls(path / part if (path / part).is_dir() else path, sums)

    def file(self, name: str) -> Path:
        """The path of a file, checked against the folder's list of sums where that has it."""
        path = self.path / name
        if not path.is_file():
            raise NotHereError(f"the folder has no {name}")
        if name not in self.read:
            self.read[name] = sha256_of(path)
        if self.read[name] != self.sums.get(name, self.read[name]):
            raise InputError(f"{name} is damaged: its sha256 is not the one in SHA256SUMS. Fetch the file again.")
        return path

    def arrays(self, name: str, keys: tuple[str, ...] | None = None) -> dict[str, NDArray[Any]]:
        """The arrays of an NPZ file, all of them or those of these names."""
        path = self.file(name)
        try:
            # Opened here, as NumPy leaves a damaged file open.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
                return {key: content[key] for key in (keys if keys is not None else content.files)}
        except _DAMAGE as error:
            wanted = f" with the arrays {', '.join(keys)}" if keys else ""
            raise InputError(
                f"{name} must be an NPZ file{wanted}; it is not ({error}). Fetch the file again."
            ) from error


def download(name: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """The path of an original archive, fetched on first use and checked on every use."""
    try:
        pooch = require("pooch", "data")
    except ImportError as error:
        raise NotHereError(str(error)) from error
    path = Path(cache) if cache is not None else Path(pooch.os_cache("energate"))
    try:
        fetched = Path(
            pooch.retrieve(
                url=ADDRESS + name,
                known_hash=KNOWN_HASHES.get(name),
                fname=name,
                path=path,
                downloader=pooch.HTTPDownloader(timeout=30),
            )
        )
    except OSError as error:  # requests' errors are OSErrors
        raise NotHereError(f"{ADDRESS}{name} cannot be fetched ({type(error).__name__})") from error
    except ValueError as error:  # the sum is not the known one
        raise InputError(f"{name} is not the published archive: {error}") from error
    _check_record(fetched)
    return fetched


def _check_record(path: Path) -> None:
    """Write down the sum of an archive when it is new; refuse the archive when it has changed since."""
    record, now = path.with_name(path.name + ".sha256"), sha256_of(path)
    if not record.exists():
        record.write_text(now + "\n", encoding="ascii")
    elif record.read_text(encoding="ascii").strip() != now:
        raise InputError(
            f"{path.name} has changed since it was fetched. Delete it and {record.name} to fetch it again."
        )


def read_archive(path: str | os.PathLike[str], n_columns: int = 785) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """The two tables of an original archive, ``"train"`` (which the valid rows end) and ``"test"``, as X and y."""
    path = Path(path)
    tables = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for part, name in _members(path.name, archive.namelist()).items():
                with archive.open(name) as file:
                    tables[part] = read_amat(file, n_columns)
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{path.name} must be a ZIP archive; it cannot be read ({error}). Fetch it again.") from error
    return tables


def _members(archive: str, names: list[str]) -> dict[str, str]:
    tables = [name for name in names if name.endswith(".amat")]
    tests = [name for name in tables if "test" in Path(name).name]
    if len(tables) != 2 or len(tests) != 1:
        raise InputError(f"{archive} must hold two .amat files, one with `test` in its name; it has {names}.")
    tables.remove(tests[0])
    return {"train": tables[0], "test": tests[0]}


def read_amat(
    file: str | os.PathLike[str] | IO[bytes], n_columns: int = 785
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """X and y of a table in the original text format: numbers between spaces, the label in the last column."""
    name = getattr(file, "name", file)
    try:
        table = np.loadtxt(file, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise InputError(f"{name} must hold rows of {n_columns} numbers; it cannot be read ({error}).") from error
    if not len(table) or table.shape[1] != n_columns:
        raise InputError(f"{name} must hold rows of {n_columns} numbers, the label last; got shape {table.shape}.")
    labels = table[:, -1].astype(np.int64)
    if (labels != table[:, -1]).any():
        raise InputError(f"{name} must have whole numbers, the labels, in its last column.")
    return np.ascontiguousarray(table[:, :-1]), labels
