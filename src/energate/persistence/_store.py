"""Two members, or three, in a folder or in a zip file: written whole or not at all, and read without trust.

Everything is written beside the target, brought to the disk, and only then moved into place:

    .NAME.<16 hex digits>.energate-tmp   what is being written, or the old model on its way out
    .NAME.energate-old                   the old folder, set aside, where two folders cannot swap their names at once

A save that is killed may leave one of these behind.  The next save of the same target removes it; if the target
itself is missing, `read` and `write` take the folder that was set aside.
"""

import contextlib
import ctypes
import errno
import io
import os
import re
import secrets
import stat
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from energate.errors import InputError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
BASE = "base.skops"  # only in some
MEMBERS = (CONFIG, WEIGHTS, BASE)
LARGEST_CONFIG = 2**26  # bytes; it is read before anything is known of the file
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same model gives the same zip file
_TRIES = 10  # reads of a folder that is being replaced
_UNUSABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


def resolve(path: Any) -> Path:
    """The absolute place that a path names; links are followed, so that a save goes to where they point."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = path
    if not isinstance(text, str) or not text:
        raise InputError(f"`path` must be the name of a folder or of a zip file; got {path!r}.")
    try:
        place = Path(os.path.realpath(text))
    except (OSError, ValueError) as error:
        raise InputError(f"`path` cannot be used: {path!r} ({error}).") from error
    if not place.name:
        raise InputError(f"`path` must be the name of a folder or of a zip file; got {path!r}.")
    return place


# --- writing -----------------------------------------------------------------------------------------------------


def write(path: Any, members: dict[str, bytes], is_model: Callable[[dict[str, bytes]], bool]) -> None:
    """Put the members in a folder, or in one file if the path ends in ``.zip``, in place of a model that is there.

    ``is_model`` says whether what is in the way is a model that may be replaced.
    """
    target, zipped = _checked(path)
    if len(members[CONFIG]) > LARGEST_CONFIG:
        raise InputError(
            f"What is to be saved beside the weights takes {len(members[CONFIG])} bytes as JSON, and may take "
            f"{LARGEST_CONFIG}. Categories, names or examples are too many."
        )
    try:
        with _alone_in(target.parent):
            _clean(target)
            _check_replaceable(path, target, zipped, is_model)
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.energate-tmp")
            try:
                if zipped:
                    _write_file(temporary, _zip(members))
                else:
                    _write_folder(temporary, members)
                if target.exists():  # who may read it stays the same
                    temporary.chmod(stat.S_IMODE(target.stat().st_mode))
                if zipped:
                    os.replace(temporary, target)
                else:
                    _put_folder(temporary, target)
                _sync_folder(target.parent)
            finally:
                _remove(temporary)
    except OSError as error:  # a full disk stays what it is
        if error.errno not in _UNUSABLE:
            raise
        raise InputError(f"{path!s} cannot be written: {error.strerror}. Choose another path.") from error


def check(path: Any, is_model: Callable[[dict[str, bytes]], bool]) -> None:
    """Raise what `write` would raise because of the path: to be told before hours of training, not after."""
    target, zipped = _checked(path)
    _check_replaceable(path, target, zipped, is_model)
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{path!s} cannot be written: the folder is read-only. Choose another path.")


def _checked(path: Any) -> tuple[Path, bool]:
    """The place that a path names, and whether it is to be a zip file."""
    target = resolve(path)
    zipped = Path(path).name.lower().endswith(".zip")
    if not os.path.isdir(target.parent):
        home = " A `~` is not expanded; use os.path.expanduser." if str(path).startswith("~") else ""
        raise InputError(f"{path!s} cannot be written: there is no folder {target.parent}. Make it first.{home}")
    if target == Path(os.path.realpath(os.curdir)):
        raise InputError(f"{path!s} is the current folder, which cannot be replaced. Leave it, or choose another path.")
    return target, zipped


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let saves into one folder wait for each other, so that what one finds half-done is of a killed one."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _set_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.energate-old")


def _clean(target: Path) -> None:
    """Undo what killed saves of this target have left."""
    aside = _set_aside(target)
    if aside.is_dir() and not target.exists():
        os.rename(aside, target)
    _remove(aside)
    leftover = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.energate-tmp")
    for name in os.listdir(target.parent):
        if leftover.fullmatch(name):
            _remove(target.with_name(name))


def _remove(place: Path) -> None:
    # Never more than what energate writes, and never at the price of a save that has succeeded.
    with contextlib.suppress(OSError):
        if not place.is_dir():
            place.unlink()
            return
        for name in MEMBERS:
            (place / name).unlink(missing_ok=True)
        place.rmdir()


def _check_replaceable(path: Any, target: Path, zipped: bool, is_model: Callable[[dict[str, bytes]], bool]) -> None:
    if not target.exists() or (not zipped and target.is_dir() and not os.listdir(target)):
        return
    why = "it is not an energate model"
    if zipped == target.is_dir():
        why = "it is a folder, not a zip file" if zipped else "it is a file, not a folder"
    elif target.is_dir() and (others := set(os.listdir(target)) - set(MEMBERS)):
        why = f"the folder also holds {min(others)!r}"
    else:
        with contextlib.suppress(InputError):
            if is_model(_read_once(target, path, {CONFIG: None})):
                return
    raise InputError(f"{path!s} is not overwritten: {why}. Choose another path, or remove it first.")


def _write_file(place: Path, data: bytes) -> None:
    with open(place, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_folder(place: Path, members: dict[str, bytes]) -> None:
    place.mkdir()
    for name, data in members.items():
        _write_file(place / name, data)
    _sync_folder(place)


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _put_folder(new: Path, target: Path) -> None:
    """Give ``new`` the name of ``target``; what had that name is then called ``new``, or is gone."""
    if not target.exists():
        os.rename(new, target)
        return
    if _exchange(new, target):
        return
    aside = _set_aside(target)
    os.rename(target, aside)
    try:
        os.rename(new, target)
    except BaseException:
        os.rename(aside, target)
        raise
    _remove(aside)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step, where the system and the file system can: Linux, renameat2(RENAME_EXCHANGE)."""
    at_working_folder, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    names = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(at_working_folder, names[0], at_working_folder, names[1], exchange) == 0)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading -----------------------------------------------------------------------------------------------------


def read(path: Any, sizes: Callable[[bytes], dict[str, int]]) -> dict[str, bytes]:
    """The members of a saved model; ``sizes`` tells from the configuration which others there are, and how long."""
    target = resolve(path)
    for _ in range(_TRIES):
        before, failure = _identity(target), None
        place = target if before else _set_aside(target)
        try:
            config = _read_once(place, path, {CONFIG: None})[CONFIG]
            members = _read_once(place, path, {CONFIG: len(config), **sizes(config)})
        except InputError as error:
            failure = error
        # A save may have put another model in place between the two members.
        if _identity(target) == before:
            break
    if failure is not None:
        raise failure
    return members


def look(path: Any) -> None:
    """Refuse, before anything is loaded, a path at which no saved model can be read."""
    read(path, lambda _: {})


def _identity(target: Path) -> tuple[int, int, int] | None:
    try:
        found = target.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _read_once(place: Path, path: Any, wanted: Mapping[str, int | None]) -> dict[str, bytes]:
    """Some members, by name; a number is the size that a member must have."""
    if not os.path.exists(place):
        raise InputError(f"There is no model at {path!s}. Check the path; `save` writes a folder or a zip file.")
    try:
        if place.is_dir():
            return {name: _read_file(place / name, path, size) for name, size in wanted.items()}
        return _read_zip(place, path, wanted)
    except FileNotFoundError as error:
        raise InputError(
            f"{path!s} has no {Path(error.filename).name}; a saved model has {CONFIG} and {WEIGHTS}."
        ) from error
    except OSError as error:
        raise InputError(f"{path!s} cannot be read: {error.strerror or error}.") from error


def _read_file(place: Path, path: Any, size: int | None) -> bytes:
    found = place.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path!s} is not a saved model: {place.name} is not a file.")
    _check_size(path, place.name, found.st_size, size)
    return place.read_bytes()


def _check_size(path: Any, name: str, size: int, expected: int | None) -> None:
    if name == CONFIG and size > LARGEST_CONFIG:
        raise InputError(f"{path!s} is not a saved model: {CONFIG} has {size} bytes, and at most {LARGEST_CONFIG}.")
    if expected is not None and size != expected:
        raise InputError(
            f"{path!s} is damaged: {name} has {size} bytes and should have {expected}. Save or copy the model again."
        )


def _read_zip(place: Path, path: Any, wanted: Mapping[str, int | None]) -> dict[str, bytes]:
    if not place.is_file():
        raise InputError(f"{path!s} is neither a folder nor a file.")
    try:
        with zipfile.ZipFile(place) as archive:
            infos = _check_members(archive, path, wanted)
            for name, size in wanted.items():
                _check_size(path, name, infos[name].file_size, size)
            return {name: archive.read(infos[name]) for name in wanted}
    except (InputError, OSError):
        raise
    except Exception as error:  # zipfile raises many kinds on damaged files
        raise InputError(
            f"{path!s} is not a zip file of a saved model, or is damaged ({' '.join(str(error).split())})."
        ) from error


def _check_members(archive: zipfile.ZipFile, path: Any, wanted: Collection[str]) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    names = sorted(info.filename for info in infos)
    # Only the configuration knows whether there is a base.
    right = [sorted(wanted)] if len(wanted) > 1 else [sorted({CONFIG, WEIGHTS}), sorted(MEMBERS)]
    if names not in right:
        raise InputError(f"{path!s} is not a saved model: it must hold {' and '.join(right[0])}, nothing else.")
    # What is only stored cannot grow when it is read: no member is longer than the file.
    if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
        raise InputError(f"{path!s} is not a saved model: its members must be stored, not compressed.")
    return {info.filename: info for info in infos}
