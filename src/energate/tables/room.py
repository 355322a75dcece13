"""How much memory there is, and tables that do not fit: they are refused before they fill it."""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from energate.errors import InputError

#: beside the cells of a table there are the numbers made of them, and what is learned on the way
TIMES = 4
_OBJECT = 64  # bytes of a cell that is a word of Python's, about
_GROUP = Path("/sys/fs/cgroup")  # of a container
#: how torch and threads say that memory is short: their errors have no class of their own
NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc", "can't start new thread", "out of memory")


def room() -> float:
    """Bytes that this process may still take, of the machine, its container and its own limit; inf if unknown."""
    found = [math.inf]
    with contextlib.suppress(OSError, ValueError, IndexError):
        about = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024 * int(about["MemAvailable"].split()[0]))
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        most = int((_GROUP / "memory.max").read_text())
        inactive = [line for line in (_GROUP / "memory.stat").read_text().splitlines() if "inactive_file" in line]
        used = int((_GROUP / "memory.current").read_text()) - sum(int(line.split()[1]) for line in inactive[:1])
        found.append(most - used)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            found.append(limit - own)
    return max(0.0, min(found))


def size_of(values: Any) -> int:
    """Bytes of a column, about: at least those of the numbers that it becomes."""
    cell = _OBJECT if isinstance(values, np.ndarray) and values.dtype.kind == "O" else 8
    return max(int(values.nbytes), cell * len(values))


def check_room(n_bytes: float, what: str, way_out: str) -> None:
    """Refuse what would not fit into memory before it is begun."""
    if n_bytes > (most := room()):
        raise InputError(f"{what} take {_in_words(n_bytes)}; there is room for {_in_words(most)}. {way_out}")


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    told = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return isinstance(error, MemoryError) or told


def too_large(name: str, at_least: float, most: float) -> InputError:
    """A table that would not fit."""
    return InputError(
        f"{name} takes more memory than there is for a table: at least {_in_words(at_least)}, with room for "
        f"{_in_words(most)}. Take fewer rows or columns, or `energate fit --memory 1GB`, which reads it block by block."
    )


def _in_words(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:,.1f} GB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MB"
