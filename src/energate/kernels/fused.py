"""Potentials of hidden units in one pass: product, activation and sum, without pre-activations in memory.

What the plain formulas say of mean, covariance and memory units, without gradients.  A tile of units leaves a few
numbers of each row, which are added up here.  For covariance units the factors of some rows are there at a time.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from energate.autoencoder import Plain
from energate.memory import RATIO, MemoryUnits
from energate.units import CovarianceUnits, HiddenUnits, MeanUnits, project

SOFTPLUS = "sigmoid"  # the activation whose potential is a sum of softplus
MOST_TEMPERATURES = 3
LEAST_NUMBERS = 2**24  # products of fewer numbers (rows times units, of all models) are left to the plain formulas
FACTORS = 2**27  # bytes of factors at a time: they pass through the cache soon, and launches are few
ALIGNED = 64  # factors are filled up to a multiple of so many, so that no tile of them is cut
TOGETHER = 8  # tiles of rows whose programs run side by side


@dataclass(frozen=True)
class Tiles:
    """The sizes of tiles, and how many warps and stages a program has."""

    rows: int
    units: int
    columns: int
    warps: int
    stages: int


#: by the precision of a product, as Triton calls it
TILES = {"tf32": Tiles(128, 128, 32, 4, 3), "bf16": Tiles(128, 128, 32, 4, 4), "ieee": Tiles(64, 64, 32, 4, 2)}


@functools.cache
def kernels() -> Any:
    """The module with the kernels; None where there is no Triton."""
    if find_spec("triton") is None:
        return None
    from energate.kernels import _triton

    return _triton


@dataclass(frozen=True)
class Fused:
    """Potentials of groups of units, with products in ``precision``: a key of `TILES`.

    ``tiles`` are for those who tune them.
    """

    precision: str
    tiles: Tiles | None = None

    def __call__(self, group: HiddenUnits, v: Tensor, c: Tensor | None) -> Tensor:
        """What `Autoencoder` asks for: Phi(u) of every row, (K, N)."""
        return FUSED[type(group)](self, group, v) if self.is_lean(group, v) else _PLAIN(group, v, c)

    def is_lean(self, group: HiddenUnits, v: Tensor) -> bool:
        """Whether a kernel takes these rows: there is one, and it pays."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not can_fuse(group, v):
            return False
        return v.is_cuda and v.shape[-2] * group.n_models * group.n_hidden >= LEAST_NUMBERS

    # --- the kinds ---------------------------------------------------------------------------------

    def mean(self, group: MeanUnits, v: Tensor) -> Tensor:
        """The sum over units of softplus(W v + b)."""
        return self._softplus(self._as(v), self._as(group.W), group.b)

    def covariance(self, group: CovarianceUnits, v: Tensor) -> Tensor:
        """The sum over units of softplus(W_h (W v)^2 + b)."""
        more = -group.W.shape[1] % ALIGNED
        W, W_h = F.pad(self._as(group.W), (0, 0, 0, more)), F.pad(self._as(group.W_h), (0, more))
        n_models, n_factors = W.shape[:2]
        rows = max(128, FACTORS // (n_models * n_factors * W.element_size()))
        found = v.new_empty(n_models, v.shape[-2])
        for start in range(0, v.shape[-2], rows):
            q = project(self._as(v[..., start : start + rows, :]), W)  # (K, n, F)
            found[:, start : start + rows] = self._softplus(q.square_(), W_h, group.b)
        return found

    def memory(self, group: MemoryUnits, v: Tensor) -> Tensor:
        """The sum over temperatures of share * T log sum_i n_i exp(u_i / T)."""
        T, share = group.temperatures.float(), group.log_share.exp().float()  # (K, J), from the lowest
        given = group.b.float().contiguous(), group.log_counts.exp().float(), (1 / T[:, -1]).contiguous()
        J = group.n_temperatures
        found = self._launch(kernels().tops_and_sums, self._as(v), self._as(group.W), given, 1 + J, TEMPERATURES=J)
        tops, sums = found[:, :, 0], found[:, :, 1:]  # (K, tiles, N), (K, tiles, J, N), from the highest
        top = tops.amax(1)  # (K, N)
        less = torch.exp((tops - top.unsqueeze(1)) / T[:, -1, None, None])
        total = share.sum(1, keepdim=True) * top
        for j in range(J):
            place = J - 1 - j
            log = torch.log((sums[:, :, j] * less).sum(1))  # (K, N)
            total = total + share[:, [place]] * T[:, [place]] * log
            less = less.square().square()  # the next temperature is a fourth
        return total.to(v.dtype)

    # --- what they share ---------------------------------------------------------------------------

    def _as(self, values: Tensor) -> Tensor:
        return values.to(torch.bfloat16 if self.precision == "bf16" else torch.float32)

    def _softplus(self, A: Tensor, B: Tensor, bias: Tensor) -> Tensor:
        """The sum over units of softplus(A B^T + bias): (K, N), of rows A (N, D) or (K, N, D)."""
        n_models, n_units = B.shape[:2]
        tile = self._tiles.units
        given, sides = (bias.float().contiguous(),), 2
        if A.ndim == 2 and n_units >= tile:  # one product of all units: a tile reaches over two models at most
            found = self._launch(kernels().sum_of_softplus, A, B.flatten(0, 1).unsqueeze(0), given, sides, n_units)[0]
            first = torch.arange(len(found), device=A.device) * tile // n_units
            total = found.new_zeros(n_models + 1, A.shape[-2]).index_add(0, first, found[:, 0])
            return total.index_add(0, first + 1, found[:, 1])[:n_models].to(bias.dtype)
        found = self._launch(kernels().sum_of_softplus, A, B, given, sides, n_units)
        return found[:, :, 0].sum(1).to(bias.dtype)

    @property
    def _tiles(self) -> Tiles:
        return self.tiles or TILES[self.precision]

    def _launch(
        self, kernel: Any, A: Tensor, B: Tensor, tensors: tuple[Tensor, ...], n_sides: int, *sizes: int, **options: int
    ) -> Tensor:
        """What the tiles of a product A (N, D) or (K, N, D) with B (K, M, D) say: (K, tiles, sides, N)."""
        tiles, B = self._tiles, B.contiguous()
        A = A if A.stride(-1) == 1 else A.contiguous()
        (n_models, n_units, n_columns), n_rows = B.shape, A.shape[-2]
        n_tiles = math.ceil(n_units / tiles.units)
        out = B.new_empty(n_models, n_tiles, n_sides, n_rows, dtype=torch.float32)
        kernel[math.ceil(n_rows / tiles.rows) * n_tiles, n_models](
            A, B, *tensors, out, n_rows, n_units, *sizes,
            A.stride(0) if A.ndim == 3 else 0, A.stride(-2), B.stride(0), B.stride(1), *out.stride()[:3],
            N_COLUMNS=n_columns, PRECISION="ieee" if self.precision == "bf16" else self.precision,
            ROWS=tiles.rows, UNITS=tiles.units, COLUMNS=tiles.columns, TOGETHER=TOGETHER,
            num_warps=tiles.warps, num_stages=tiles.stages, **options,
        )  # fmt: skip
        return out


_PLAIN = Plain()
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
