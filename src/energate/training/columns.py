"""What a memory knows of columns, beside whole rows: each column alone, and a Gaussian of all, of rows near the middle.

Anomalies among the rows given are remembered like any others, and a group of them looks like a cluster of normal rows.
These energies do not take part in that: columns are brought to robust units and softly limited, the rows that are
furthest from the medians are left apart, and values or directions that are rare among the rest count against a row.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from energate.memory import SoftColumns, SoftColumnUnits, SoftGaussianUnits

SOFT_LIMIT = 3.0  # what a soft column stays within, in distances of its quartiles
COLUMN_WIDTH = 1 / 4  # the root of a column memory's temperature, in standard deviations
RIDGE = 0.1  # of the mean variance, added to every variance of the Gaussian: directions without rows are not forbidden
SAME = 1e-9  # a column whose range is that share of the widest is constant
TINY = 1e-300  # what counts for nothing, and has a logarithm
BLOCK_VALUES = 2**18  # values at once


def soften(given: Tensor, weight: Tensor) -> SoftColumns:
    """Soft columns of rows (N, D) that count as ``weight`` (N,) says.

    From medians, by the distance of the quartiles, or half the range where that is 0; columns of two values are 0 and
    1 or -1, and not limited.
    """
    found: list[list[Tensor]] = []
    for part in given.split(max(1, 8 * BLOCK_VALUES // len(given)), 1):  # (N, some)
        ordered, order = part.sort(0)
        below = weight[order].cumsum(0)
        first, median, third = (ordered.gather(0, _first_above(below, share)).squeeze(0) for share in (0.25, 0.5, 0.75))
        low, high = ordered[0], ordered[-1]
        two = ((part == low) | (part == high)).all(0)
        size = torch.where(two, high - low, torch.where(third > first, third - first, (high - low) / 2))
        found.append([low, high, median, size, two.to(part)])
    low, high, median, size, two = (torch.cat(parts) for parts in zip(*found, strict=True))  # (D,)
    rounding = 10 * torch.finfo(low.dtype).eps * torch.maximum(low.abs(), high.abs())
    varies = high - low > torch.maximum(rounding, SAME * (high - low).max())
    columns = SoftColumns(1, len(low)).to(low)
    columns.middle.data = median[None]
    columns.rate.data = torch.where(varies, 1 / size, 1.0)[None]
    columns.limit.data = torch.where(varies & (two == 0), 1 / SOFT_LIMIT, 0.0)[None]
    return columns.requires_grad_(False)


def _first_above(below: Tensor, share: float) -> Tensor:
    """Where, down the columns of sums (N, D), a share of the last one is reached: (1, D)."""
    return (below < share * below[-1]).sum(0, keepdim=True).clamp(max=len(below) - 1)


def near_middle(columns: SoftColumns, given: Tensor, weight: Tensor, apart: float) -> Tensor:
    """Which rows (N,) are not among the share ``apart`` of them that is furthest from the medians."""
    radius = torch.cat([s.square().sum(1) for s, _ in _soft(columns, given, weight)])
    ordered, order = radius.sort()
    at = _first_above(weight[order].cumsum(0).unsqueeze(1), 1 - apart)[0]
    return radius <= ordered[at]


def _soft(columns: SoftColumns, given: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows as soft columns, and what they count, block by block."""
    size = max(1, BLOCK_VALUES // given.shape[1])
    for v, counts in zip(given.split(size), weight.split(size), strict=True):
        yield columns(v)[0][0], counts


def fill_columns(units: SoftColumnUnits, columns: SoftColumns, given: Tensor, weight: Tensor, asked: Tensor) -> Tensor:
    """Fill the memory of soft columns: means of the rows in bins of equal width; a weight of 0 leaves a row apart.

    Returns the energies of ``asked``, numbers of rows, when each is left out of its bins: (n,).
    """
    n_values, far = units.n_values, given.new_tensor(torch.inf)
    low, high = far.expand(given.shape[1]), -far.expand(given.shape[1])
    for s, counts in _soft(columns, given, weight):
        kept = (counts > 0).unsqueeze(1)
        low = torch.minimum(low, torch.where(kept, s, far).amin(0))
        high = torch.maximum(high, torch.where(kept, s, -far).amax(0))
    width = ((high - low) / n_values).clamp(min=1e-12)

    def bins(s: Tensor) -> Tensor:
        return ((s - low) / width).long().clamp(0, n_values - 1)  # (n, D)

    sizes = low.new_zeros(len(low), n_values)  # (D, B)
    sums, squares = torch.zeros_like(sizes), torch.zeros_like(low)
    for s, counts in _soft(columns, given, weight):
        inside, many = bins(s).T, counts.expand(len(low), -1)  # (D, n)
        where = torch.arange(len(low), device=low.device).unsqueeze(1), inside
        # Not `scatter_add_`, which on a GPU adds in another order every time.
        sizes.index_put_(where, many, accumulate=True)
        sums.index_put_(where, many * s.T, accumulate=True)
        squares += counts @ s.square()
    total = weight.sum()
    full = sizes > 0
    # A bin without rows gets the value of the last full one before it, and counts for nothing.
    last = torch.where(full, torch.arange(n_values, device=full.device), 0).cummax(1).values
    values = (sums / sizes.clamp(min=TINY)).gather(1, last)
    variance = float((squares / total - (sums.sum(1) / total).square()).mean())
    T = COLUMN_WIDTH**2 * (variance if variance > TINY else 1.0)
    units.columns.load_state_dict(columns.state_dict())
    units.W.data, units.log_counts.data = values[None], sizes.clamp(min=TINY).log()[None]
    units.log_T.data.fill_(T).log_()
    energies = []
    for some in asked.split(max(1, BLOCK_VALUES // units.n_hidden)):
        s = columns(given[some])[0][0]
        own = bins(s).unsqueeze(-1)  # (n, D, 1)
        counts = sizes.expand(len(s), -1, -1).gather(2, own).clamp(min=TINY)
        left = (counts - weight[some, None, None]).clamp(min=TINY)
        scaled = units.log_counts[0] - (s.unsqueeze(-1) - values).square() / (2 * T)  # (n, D, B)
        energies.append(T * torch.logsumexp(scaled.scatter_add(2, own, torch.log(left / counts)), 2).sum(1))
    return torch.cat(energies)


def fill_gaussian(
    units: SoftGaussianUnits, columns: SoftColumns, given: Tensor, weight: Tensor, asked: Tensor
) -> Tensor:
    """The Gaussian of soft columns with the rows' mean and covariance; a weight of 0 leaves a row apart.

    Returns the energies of ``asked``, numbers of rows, when each is left out: (n,).
    """
    total = weight.sum()
    blocks = partial(_soft, columns, given, weight)
    mean = sum((counts @ s for s, counts in blocks()), torch.zeros_like(given[0])) / total  # (D,)
    moments = given.new_zeros(len(mean), len(mean))
    for s, counts in blocks():
        moments += (s - mean).T @ (counts.unsqueeze(1) * (s - mean))
    variance = float(moments.diagonal().mean() / total)
    ridge = RIDGE * (variance if variance > TINY else 1.0)
    eye = torch.eye(len(mean)).to(moments)
    root = torch.linalg.cholesky(moments / total + ridge * eye)
    units.columns.load_state_dict(columns.state_dict())
    units.W.data = torch.linalg.solve_triangular(root, eye, upper=False)[None]
    units.b.data = -(units.W[0] @ mean)[None]
    length = units.preactivation(given[asked], None)[0][0].square().sum(1)  # (n,)
    # A row that leaves takes its part of mean and covariance with it: in closed form, with the ridge as large as it was
    # beside the covariance.
    mine = weight[asked]
    others = (total / mine.clamp(min=TINY) - 1).clamp(min=1e-6)
    left = (1 + 1 / others) * length / (1 - length / others).clamp(min=1e-6)
    return torch.where(mine > 0, left, length) / -2
