"""What makes steps on a CPU quick: memory that is kept, and the quicker of two libraries for products of float32."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

LARGEST = 31 * 2**20  # bytes; glibc counts no larger block than 32 MiB
CPUS = Path("/proc/cpuinfo")
SIZES = (32, 64, 256)  # of products that are tried, since a library may take another way for larger ones
ROUNDING = 2e-4  # of products of normal numbers, 256 at a time: float32 is off by 5e-5, bfloat16 by 1e-1
SINCE = (2, 9)  # torch has the switch


@cache
def keep_memory() -> None:
    """Let the process keep memory that tensors leave, for those of the next step.

    Else the C library gives it back and asks for it anew several times a step, and the kernel clears every page again:
    up to a fifth of a fit.  glibc gives back blocks larger than the largest that was freed so far, and what is free at
    the end of its heap, from twice that on.  A large block, which nobody has touched, raises both.  Up to 62 MiB then
    stay with the process; with another C library nothing happens.
    """
    torch.empty(LARGEST, dtype=torch.uint8)


@contextmanager
def quick_products() -> Iterator[None]:
    """Products of float32 on a CPU meanwhile by the library that is quicker on this processor for all but small ones.

    It is a switch of the whole process: products of other threads are taken by it, too, and are as exact.
    """
    if not _has_quicker():
        yield
        return
    with _SWITCH.on():
        yield


class Switch:
    """A setting of torch for the whole process, on while anybody has asked for it; the last one to go puts it back."""

    def __init__(self, where: Callable[[], Any], name: str, on: Any) -> None:
        self._where, self._name, self._on = where, name, on
        self._lock, self._users, self._before = threading.Lock(), 0, None

    @contextmanager
    def on(self) -> Iterator[None]:
        where = self._where()
        with self._lock:
            if not self._users:
                self._before = getattr(where, self._name)
                setattr(where, self._name, self._on)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    setattr(where, self._name, self._before)


#: What torch calls bfloat16 for oneDNN: "may, where it is quicker".  Without AMX it is not, and float32 stays.
_SWITCH = Switch(lambda: torch.backends.mkldnn.matmul, "fp32_precision", "bf16")  # type: ignore[attr-defined]


@cache
def _has_quicker() -> bool:
    """Whether MKL, which torch asks, leaves half of the processor unused: on AMD's with AVX-512, where oneDNN does not.

    And whether oneDNN's products are those of float32 here, as they should be.
    """
    if torch.__version__ < SINCE or not torch.backends.mkldnn.is_available():  # type: ignore[operator]  # it does compare
        return False
    if "AVX512" not in torch.backends.cpu.get_cpu_capability():
        return False
    try:
        if "AuthenticAMD" not in CPUS.read_text("utf-8"):
            return False
    except OSError:
        return False
    return products_are_exact()


def products_are_exact() -> bool:
    """Whether products inside `quick_products` would be those of float32."""
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        left, right = (torch.randn(4, size, size, generator=generator) for _ in range(2))
        with _SWITCH.on():
            found = left @ right
        if not (found - left.double() @ right.double()).abs().max() < ROUNDING:
            return False
    return True


@cache
def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions of its own for products of bfloat16, which are then the quicker ones."""
    try:
        flags = CPUS.read_text("utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
