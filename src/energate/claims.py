"""Claims: how processes, of one machine or several, share out what is to be done, by files in a folder that all see.

Whoever makes the file of a piece of work does it.  A claim is touched every few seconds while its process lives.  One
that was left behind by a process that died is taken over: at once on the same machine, elsewhere when it was not
touched for a while.  That two take over the same claim in the same moment cannot be excluded.  Then both do the work,
and the results, which are files that are written whole, are the same.
"""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path

from energate.errors import InputError

BEAT, STALE = 10.0, 60.0  # seconds from touch to touch, and after which a claim that is not touched is void


class Claims:
    """The claims of this process in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder, set[Path]()
        self._seen = dict[Path, tuple[int, float]]()  # when a claim was touched, and since when that is known
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for path in list(self.held):
            self._remove(path)
        with contextlib.suppress(OSError):  # others have claims, or there were none
            self.folder.rmdir()

    def take(self, name: str) -> bool:
        """Claim something by its name; False if a process that lives has it."""
        path = self.folder / f"{name}.claim"
        for _ in range(2):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with path.open("x", encoding="utf-8") as file:
                    json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
            except FileExistsError:
                if not self._is_left(path):
                    return False
                path.unlink(missing_ok=True)
            except OSError as error:
                raise InputError(f"{path} cannot be written ({error.strerror or error}).") from error
            else:
                self.held.add(path)
                self._beat()
                return True
        return False

    def release(self, name: str) -> None:
        """Give up a claim, when what it was for is done."""
        self._remove(self.folder / f"{name}.claim")

    def _remove(self, path: Path) -> None:
        self.held.discard(path)
        path.unlink(missing_ok=True)

    def _is_left(self, path: Path) -> bool:
        """Whether nobody is at it any more."""
        try:
            touched, text = path.stat().st_mtime_ns, path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return True
        with contextlib.suppress(ValueError, KeyError, TypeError):  # it is being written
            found = json.loads(text)
            if found["host"] == socket.gethostname() and not is_alive(found["pid"]):
                return True
        # By the clock of this machine alone: those of others may differ.
        before, since = self._seen.setdefault(path, (touched, time.monotonic()))
        if before != touched:
            self._seen[path] = touched, time.monotonic()
            return False
        return time.monotonic() - since > STALE

    def _beat(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._touch, daemon=True)
            self._thread.start()

    def _touch(self) -> None:
        while not self._ended.wait(BEAT):
            for path in list(self.held):
                with contextlib.suppress(OSError):
                    os.utime(path)


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number on this machine; where that cannot be asked, yes."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
