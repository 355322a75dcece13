"""How exactly products of matrices are computed, as a choice: "exact", "fast" or "lowest".

    exact    float64 on a CPU (training: float32), float32 on a GPU, as IEEE has it
    fast     float32 on a CPU, TF32 on a GPU: factors of 10 bits, sums in float32
    lowest   bfloat16 on both: factors of 7 bits, sums in float32

Everything but products stays in float32.  On a GPU the last two also let kernels take the place of plain formulas where
there are such, and rows enough (`energate.kernels.fused`).  Which dtype a module has is the caller's business.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from energate.autoencoder import potentials_by
from energate.errors import InputError
from energate.kernels.fused import Fused
from energate.training.processor import Switch

#: by name, what Triton calls products of that kind; None leaves everything to the plain formulas
PRECISIONS: dict[str, str | None] = {"exact": None, "fast": "tf32", "lowest": "bf16"}


def kind_of_products(precision: Any) -> str | None:
    """The entry of `PRECISIONS`; an `InputError` where there is none."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise InputError(f"`precision` must be one of {', '.join(PRECISIONS)}; got {precision!r}.")
    return PRECISIONS[precision]


@contextmanager
def computing(precision: str, device: torch.device) -> Iterator[None]:
    """Products of float32 matrices in this precision, on this device, also of gradients; afterwards as before.

    TF32 is a switch of the whole process: another thread that multiplies float32 matrices on a GPU meanwhile gets it,
    too.  bfloat16 is this thread's alone.
    """
    kind = kind_of_products(precision)
    with ExitStack() as stack:
        if kind is not None and device.type == "cuda":
            stack.enter_context(_SWITCH.on())
        if kind == "bf16":
            stack.enter_context(_Rounded())
        yield


def scoring(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The same for what no gradient is asked of, where kernels may take the place of plain formulas."""
    kind = kind_of_products(precision)
    if kind is None or (kind == "tf32" and device.type != "cuda"):
        return torch.no_grad()  # alone: single rows would notice the rest
    return _scoring(precision, kind, device)


@contextmanager
def _scoring(precision: str, kind: str, device: torch.device) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(computing(precision, device))
        if device.type == "cuda":
            stack.enter_context(potentials_by(Fused(kind)))
        yield


#: TF32
_SWITCH = Switch(lambda: torch.backends.cuda.matmul, "allow_tf32", True)


class _Rounded(TorchFunctionMode):
    """Factors of products are rounded to bfloat16, and products are float32 again; gradients likewise."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func not in PRODUCTS or not all(each.dtype == torch.float32 for each in args if isinstance(each, Tensor)):
            return func(*args, **given)
        return func(*(each.bfloat16() if isinstance(each, Tensor) else each for each in args), **given).float()


PRODUCTS = {
    torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.tensordot, F.linear,
    Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.addmm, Tensor.baddbmm, Tensor.__matmul__, Tensor.__rmatmul__,
}  # fmt: skip
