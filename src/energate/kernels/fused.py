"""Potentials of hidden units in one pass: product, activation and sum, without pre-activations in memory.

What the plain formulas say of mean, covariance and memory units, without gradients.  A tile of units leaves a few
numbers of each row, which are added up here.  For covariance units the factors of some rows are there at a time.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from energate.autoencoder import PLAIN
from energate.memory import RATIO, MemoryUnits
from energate.units import CovarianceUnits, HiddenUnits, MeanUnits, project

if TYPE_CHECKING:
    from energate.autoencoder import Autoencoder

SOFTPLUS = "sigmoid"  # the activation whose potential is a sum of softplus
MOST_TEMPERATURES = 3
MOST_MODELS = 64  # whose terms a.v one pass through the rows leaves
LEAST_NUMBERS = 2**24  # products of fewer numbers (rows times units, of all models) are left to the plain formulas
FACTORS = 2**30  # bytes of factors at a time, as much as plain formulas take on a GPU
ALIGNED = 16  # bytes: where rows begin, as descriptors want it
TOGETHER = 8  # tiles of rows whose programs run side by side


@dataclass(frozen=True)
class Tiles:
    """The sizes of tiles, how many warps and stages a program has, and how many of them a multiprocessor runs."""

    rows: int
    units: int
    columns: int
    warps: int
    stages: int
    programs: int


#: by what is computed and the precision of its product, as Triton calls it: units of models that share rows, of models
#: with rows of their own, of a memory, factors, and what needs no units
TILES: dict[str, dict[str, Tiles]] = {
    "shared": {"tf32": Tiles(128, 256, 32, 8, 4, 1), "bf16": Tiles(128, 256, 64, 8, 3, 1)},
    "own": {"tf32": Tiles(128, 64, 32, 4, 3, 2), "bf16": Tiles(128, 64, 64, 4, 3, 2)},
    "memory": {"tf32": Tiles(128, 256, 32, 8, 3, 1), "bf16": Tiles(128, 256, 64, 8, 4, 1)},
    "squares": {"tf32": Tiles(128, 256, 32, 8, 3, 1), "bf16": Tiles(128, 256, 64, 8, 3, 1)},
    "rows": {"tf32": Tiles(128, 1, 64, 8, 3, 1), "bf16": Tiles(128, 1, 64, 8, 3, 1)},
}
EXACT = Tiles(64, 64, 32, 4, 2, 2)


@functools.cache
def kernels() -> Any:
    """The module with the kernels; None where there is no Triton."""
    if find_spec("triton") is None:
        return None
    from energate.kernels import _triton

    return _triton


@dataclass(frozen=True)
class Product:
    """What is multiplied: for each of K models its rows, and its units.

    ``A`` (rows, columns) has the rows of the models below each other, ``a_rows`` apart, or beside each other,
    ``a_columns`` apart; or both are 0, and models share them.  ``B`` (K * M, D) has the units.
    """

    A: Tensor
    B: Tensor
    n_models: int
    n_rows: int
    a_rows: int = 0
    a_columns: int = 0

    @property
    def n_units(self) -> int:
        """Units of each model."""
        return len(self.B) // self.n_models


@dataclass
class Fused:
    """Potentials of groups of units, with products in ``precision``: a key of `TILES`' entries, or "ieee".

    ``tiles`` are for those who tune them.
    """

    precision: str
    tiles: dict[str, Tiles] = field(default_factory=dict)
    _last: tuple[Tensor, Tensor] | None = None  # rows, and the same as products take them

    def __call__(self, group: HiddenUnits, v: Tensor, c: Tensor | None) -> Tensor:
        """What `Autoencoder` asks for: Phi(u) of every row, (K, N)."""
        with torch._C.DisableTorchFunction():  # a mode that rounds factors looks at all calls, for longer than kernels
            if self.is_lean(group, v):
                return FUSED[type(group)](self, group, v)
        return PLAIN(group, v, c)

    def is_lean(self, group: HiddenUnits, v: Tensor) -> bool:
        """Whether a kernel takes these rows: there is one, and it pays."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not can_fuse(group, v):
            return False
        return v.is_cuda and v.shape[-2] * group.n_models * group.n_hidden >= LEAST_NUMBERS

    def of_rows(self, model: "Autoencoder", v: Tensor, with_shared: bool) -> Tensor:
        """The terms without hidden units: (K, N)."""
        with torch._C.DisableTorchFunction():
            linear = model.visible.name == "linear" and model.skip is None and v.ndim == 2
            if linear and model.n_models <= MOST_MODELS and all(self.is_lean(group, v) for group in model.groups):
                return self.through_rows(v, model.a, with_shared)
        return PLAIN.of_rows(model, v, with_shared)

    def through_rows(self, v: Tensor, a: Tensor, with_shared: bool) -> Tensor:
        """a.v of every model, less |v|^2 / 2 if asked for; on its way, what products take of the rows."""
        v = v if v.stride(-1) == 1 else v.contiguous()
        copy = v
        if not self._is_ready(v):
            copy = self._room(v)
            self._last = v, copy
        terms, tiles = v.new_empty(len(a), len(v)), self._tiles("rows")
        models = 1 if len(a) == 1 else max(16, 1 << (len(a) - 1).bit_length())  # as products of matrices take them
        kernels().through_rows[(math.ceil(len(v) / tiles.rows),)](
            v, a.contiguous(), terms, copy, len(v), len(a), v.stride(0), copy.stride(0), 0.5 * with_shared,
            N_COLUMNS=v.shape[1], COPIED=copy is not v, PRECISION=self._of_float32, MODELS=models,
            ROWS=tiles.rows, COLUMNS=tiles.columns, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        return terms

    # --- the kinds ---------------------------------------------------------------------------------

    def mean(self, group: MeanUnits, v: Tensor) -> Tensor:
        """The sum over units of softplus(W v + b)."""
        return self._softplus(self._product(v, group.W), group.b)

    def covariance(self, group: CovarianceUnits, v: Tensor) -> Tensor:
        """The sum over units of softplus(W_h (W v)^2 + b)."""
        if v.ndim == 3:
            return self._softplus(self._product(project(v, group.W).square(), group.W_h), group.b)
        # Factors of a model begin where descriptors may.  A tile may reach into those of the next one: weights of 0
        # take them away again.
        more = -group.W.shape[1] % (ALIGNED // self._dtype.itemsize)
        W, W_h = F.pad(group.W, (0, 0, 0, more)), F.pad(group.W_h, (0, -group.W.shape[1] % self._tiles("own").columns))
        n_models, n_factors = W.shape[:2]
        tiles, whole, W_h = self._tiles("squares"), self._product(v, W), self._ready(W_h.flatten(0, 1))
        n_rows = max(128, FACTORS // (n_models * n_factors * whole.B.element_size()))
        found = v.new_empty(n_models, len(v))
        for start in range(0, len(v), n_rows):
            part = Product(whole.A[start : start + n_rows], whole.B, 1, min(n_rows, len(v) - start))
            q = self._room(part.A.new_empty(part.n_rows, 0), part.n_units)  # (n, K * F)
            self._launch(kernels().squares, part, tiles, out=_descriptor(q, tiles.rows, tiles.units // 2))
            own = Product(q, W_h, n_models, part.n_rows, a_columns=n_factors)
            found[:, start : start + n_rows] = self._softplus(own, group.b)
        return found

    def memory(self, group: MemoryUnits, v: Tensor) -> Tensor:
        """The sum over temperatures of share * T log sum_i n_i exp(u_i / T)."""
        T, share = group.temperatures.float(), group.log_share.exp().float()  # (K, J), from the lowest
        J, tiles, product = group.n_temperatures, self._tiles("memory"), self._product(v, group.W)
        n_tiles = math.ceil(product.n_units / tiles.units)
        found = torch.empty(product.n_models, n_tiles, 1 + J, product.n_rows, device=v.device)
        self._launch(
            kernels().tops_and_sums, product, tiles, bias=group.b.float().contiguous(),
            counts=group.log_counts.exp().float(), inverse=(1 / T[:, -1]).contiguous(), TEMPERATURES=J,
            **_into(found), out_side=found.stride(2),
        )  # fmt: skip
        tops, sums = found[:, :, 0], found[:, :, 1:]  # (K, tiles, N), (K, tiles, J, N), from the highest
        top = tops.amax(1)  # (K, N)
        less = torch.exp((tops - top.unsqueeze(1)) / T[:, -1, None, None])
        total = share.sum(1, keepdim=True) * top
        for j, place in enumerate(reversed(range(J))):
            log = torch.log((sums[:, :, j] * less).sum(1))  # (K, N)
            total = total + (share * T)[:, place, None] * log
            less = less.square().square()  # the next temperature is a fourth
        return total.to(v.dtype)

    # --- what they share ---------------------------------------------------------------------------

    def _softplus(self, product: Product, bias: Tensor) -> Tensor:
        """The sum over units of softplus(A B^T + bias): (K, N)."""
        n_models, per_model = bias.shape
        shared = not (product.a_rows or product.a_columns)
        tiles = self._tiles("shared" if shared else "own")
        if shared and per_model >= tiles.units:  # one product of all units: a tile reaches over two models at most
            product = Product(product.A, product.B, 1, product.n_rows)
        n_parts = math.ceil(per_model / tiles.units) + (product.n_models < n_models)
        found = torch.zeros(n_models, n_parts, product.n_rows, device=bias.device)
        self._launch(
            kernels().sum_of_softplus, product, tiles, bias=bias.float().contiguous(), per_model=per_model,
            **_into(found), a_columns=product.a_columns,
        )  # fmt: skip
        return found.sum(1).to(bias.dtype)

    def _product(self, v: Tensor, W: Tensor) -> Product:
        """Rows (N, D) or (K, N, D) with units (K, M, D)."""
        known = self._last is not None and self._last[0] is v
        A = self._last[1] if known else self._ready(v.flatten(0, -2))  # type: ignore[index]
        return Product(A, self._ready(W.flatten(0, 1)), len(W), v.shape[-2], v.shape[-2] if v.ndim == 3 else 0)

    def _tiles(self, what: str) -> Tiles:
        return self.tiles.get(what) or TILES[what].get(self.precision, EXACT)

    def _launch(self, kernel: Any, product: Product, tiles: Tiles, **given: Any) -> None:
        per_model = math.ceil(product.n_rows / tiles.rows) * math.ceil(product.n_units / tiles.units)
        n_tiles = per_model * product.n_models
        kernel[(min(n_tiles, tiles.programs * _processors(product.B.device)),)](
            _descriptor(product.A, tiles.rows, tiles.columns), _descriptor(product.B, tiles.units, tiles.columns),
            n_rows=product.n_rows, n_units=product.n_units, n_tiles=n_tiles, a_rows=product.a_rows, **given,
            N_COLUMNS=product.B.shape[1], PRECISION=self._of_float32,
            ROWS=tiles.rows, UNITS=tiles.units, COLUMNS=tiles.columns, TOGETHER=TOGETHER,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip

    # --- numbers as descriptors want them: of the precision, in rows that begin at multiples of 16 bytes ------------

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def _of_float32(self) -> str:
        """What Triton makes of factors in float32, if it is left with any."""
        return "tf32" if self.precision == "bf16" else self.precision

    def _is_ready(self, x: Tensor) -> bool:
        placed = x.stride(-1) == 1 and not x.stride(0) * x.element_size() % ALIGNED and not x.data_ptr() % ALIGNED
        return x.dtype == self._dtype and placed

    def _room(self, x: Tensor, n_columns: int | None = None) -> Tensor:
        """For as many rows as x has, and as many columns, or so many."""
        n_columns = x.shape[1] if n_columns is None else n_columns
        per_row = n_columns + -n_columns % (ALIGNED // self._dtype.itemsize)
        return torch.empty(len(x), per_row, dtype=self._dtype, device=x.device)[:, :n_columns]

    def _ready(self, x: Tensor) -> Tensor:
        return x if self._is_ready(x) else self._room(x).copy_(x)


def _descriptor(x: Tensor, rows: int, columns: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


def _into(results: Tensor) -> dict[str, Any]:
    """Where a kernel leaves what it finds: (K, parts, ..., N)."""
    out_model, out_part = results.stride()[:2]
    return {"out": results, "out_model": out_model, "out_part": out_part}


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


#: by the kind of units
FUSED: dict[type[HiddenUnits], Callable[[Fused, Any, Tensor], Tensor]] = {
    MeanUnits: Fused.mean,
    CovarianceUnits: Fused.covariance,
    MemoryUnits: Fused.memory,
}


def can_fuse(group: HiddenUnits, v: Tensor) -> bool:
    """Whether there is a kernel for these units and rows."""
    own = v.ndim == 2 or len(v) == group.n_models
    if kernels() is None or type(group) not in FUSED or v.dtype != torch.float32 or not own:
        return False
    if isinstance(group, MemoryUnits):
        return group.n_temperatures <= MOST_TEMPERATURES and RATIO == 4
    return group.activation.name == SOFTPLUS
