"""Files that are written whole or not at all, and their sums."""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from energate.errors import InputError


def check_output(
    path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = (), what: str = "DATA"
) -> None:
    """Refuse, before work begins, to write a file where a folder is, or over a file that is read, or a link to one."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder; the output must be a file. Choose another --output.")
    for each in inputs:
        if target.exists() and Path(each).exists() and target.samefile(each):
            raise InputError(f"{target} is {what} itself, which is not overwritten. Choose another --output.")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name only when all of it is there; an error leaves what was there before."""
    check_output(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}). Name a place where you may write, with enough room."
        ) from error
    finally:  # also on Ctrl-C
        with contextlib.suppress(OSError):
            part.unlink()


def sha256_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
