"""Memories from rows: which rows or centres become units, at which temperatures, and how much each energy counts.

Nothing is trained.  The likelihood of a row under a memory that leaves it out is known in closed form, so temperatures
and thresholds need no rows held out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.memory import RATIO, ColumnMemoryUnits, MemoryUnits, SoftColumnUnits, SoftGaussianUnits
from energate.training.columns import fill_columns, fill_gaussian, near_middle, soften
from energate.units import HiddenUnits

N_TEMPERATURES = 3
N_VALUES = 32  # of every column
GAUSSIAN = 1 / 2  # how much the Gaussian of the columns counts, beside each of them alone
MOST_COLUMNS = 2_000  # of which there is a Gaussian: it has a number for every two of them
N_ASKED = 2000  # rows that are left out in turn; the likelihood takes half of them
LADDER = range(-16, 9)  # log2 of the temperatures that are tried, by the mean variance of the columns
SEEN_FOR_CENTRES, CENTRE_STEPS = 3, 3  # rows for each centre that k-means moves it by, and how often
LEAST_EXPONENT = -80.0  # smaller ones count as this one: their powers are no numbers that processors are slow with
TINY = 1e-300  # what counts for nothing, and has a logarithm
NOTHING = 1e-30  # the same of units that only fill a memory up, in single precision, too
BLOCK_VALUES = 2**18  # distances at once: 2 MiB of float64, on a GPU 64 times that


@dataclass(frozen=True)
class Rows:
    """Units W (M, D), and for how many rows each stands, (M,); the rows (N, D) themselves, and what each counts.

    ``own`` (N,) says which unit a row went into.
    """

    W: Tensor
    counts: Tensor
    given: Tensor
    weight: Tensor
    own: Tensor


@dataclass(frozen=True)
class Remembered:
    """An auto-encoder of one model, and the energies of rows (n,) under it when each is left out in turn."""

    model: Autoencoder
    left_out: Tensor


def gather(rows: Tensor, weight: Tensor, most: int, generator: torch.Generator) -> Rows:
    """The rows (N, D) as units, or where there are more than ``most``, so many centres of them by k-means."""
    if len(rows) <= most:
        return Rows(rows, weight, rows, weight, torch.arange(len(rows), device=rows.device))
    order = torch.randperm(len(rows), generator=generator).to(rows.device)
    seen = order[: SEEN_FOR_CENTRES * most]
    centres = rows[order[:most]].clone()
    for _ in range(CENTRE_STEPS):
        centres, _ = _means(rows[seen], weight[seen], centres, nearest(rows[seen], centres))
    own = nearest(rows, centres)
    centres, counts = _means(rows, weight, centres, own)
    used = counts > 0
    number = used.cumsum(0) - 1  # of each centre among those that have rows
    return Rows(centres[used], counts[used], rows, weight, number[own])


def _means(rows: Tensor, counts: Tensor, centres: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Every centre in the middle of its rows, and the sum of their counts."""
    # Not `index_add_`, which on a GPU adds in another order every time.
    sizes = torch.zeros_like(centres[:, 0]).index_put_((own,), counts, accumulate=True)
    sums = torch.zeros_like(centres).index_put_((own,), rows * counts.unsqueeze(1), accumulate=True)
    return torch.where(sizes.unsqueeze(1) > 0, sums / sizes.clamp(min=TINY).unsqueeze(1), centres), sizes


def nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """The number of the centre that is nearest to each row."""
    half, size = centres.square().sum(1) / 2, _block(centres)
    found = torch.empty(len(rows), dtype=torch.long, device=rows.device)
    # One block for all distances: new ones, and what is found between them, leave holes in the heap that add up.
    block = rows.new_empty(min(size, len(rows)), len(centres))
    for some, own in zip(rows.split(size), found.split(size), strict=True):
        near = torch.mm(some, centres.T, out=block[: len(some)])
        torch.argmax(near.sub_(half), 1, out=own)
    return found


def draw_asked(rows: Rows, generator: torch.Generator) -> Tensor:
    """The numbers of rows to leave out in turn: by their weight, of those that no other row went into a unit before."""
    able = (rows.weight <= 1 + 1e-6).double().cpu()  # others stand for several rows, which cannot leave one by one
    chances = able * rows.weight.double().cpu()
    if bool((chances == chances[0]).all()):
        order = torch.randperm(len(chances), generator=generator)
        return order[:N_ASKED].to(rows.W.device)
    keys = torch.rand(len(chances), generator=generator, dtype=torch.float64).log() / chances.clamp(min=TINY)
    n_asked = min(N_ASKED, int((chances > 0).sum()))
    return keys.topk(n_asked).indices.to(rows.W.device)  # without putting back, by weight


def remember(rows: Rows, asked: Tensor, column_weight: float, apart: float = 0.1) -> Remembered:
    """A memory of one model; ``asked`` are the numbers of the rows that are left out in turn.

    Their likelihood chooses the lowest temperature.  Energies of several temperatures are divided by their
    inter-quartile range over these rows and averaged, so that each has a say.  To that average come, in the same way,
    times ``column_weight``, the energies of the soft columns, each alone and, up to `MOST_COLUMNS`, as a Gaussian, of
    the rows but for the share ``apart`` that is furthest from the middle.
    """
    T = _temperature(_asked_of(rows, asked[: (len(asked) + 1) // 2]), _variance(rows))
    temperatures = [T * RATIO**j for j in range(N_TEMPERATURES)]
    sums = _asked_of(rows, asked).log_sums(temperatures)[..., 0]
    energies = sums * sums.new_tensor(temperatures).unsqueeze(1)  # (J, n)
    shares = torch.stack([1 / _spread(energy) for energy in energies])
    shares = shares / shares.sum()
    whole = shares @ energies  # (n,)
    model = blank(rows.W.shape[1], len(rows.W), bool(column_weight)).to(rows.W)
    units, *others = model.groups
    assert isinstance(units, MemoryUnits)
    units.remember(rows.W[None], rows.counts[None])
    units.log_T.data.fill_(math.log(T))
    units.log_share.data = shares.log()[None]
    if not others:
        return Remembered(model, whole)
    alone, *gaussians = others
    assert isinstance(alone, SoftColumnUnits)
    columns = soften(rows.given, rows.weight)
    weight = torch.where(near_middle(columns, rows.given, rows.weight, apart), rows.weight, 0.0)
    parts: list[tuple[SoftColumnUnits | SoftGaussianUnits, float, Tensor]]
    parts = [(alone, 1.0, fill_columns(alone, columns, rows.given, weight, asked))]
    for gaussian in gaussians:
        assert isinstance(gaussian, SoftGaussianUnits)
        parts.append((gaussian, GAUSSIAN, fill_gaussian(gaussian, columns, rows.given, weight, asked)))
    together = whole
    for part, times, energy in parts:
        share = times * column_weight * _spread(whole) / _spread(energy)
        part.log_share.data.copy_(share.log())
        together = together + share * energy
    return Remembered(model, together)


def blank(width: int, n_units: int, columns: bool, soft: bool = True) -> Autoencoder:
    """The auto-encoder of a memory of so many rows, perhaps with columns, before there is anything in it.

    Those that are not ``soft`` are of older versions.
    """
    generator = torch.Generator()  # what it draws is written over
    groups: list[HiddenUnits] = [MemoryUnits(1, width, n_units, N_TEMPERATURES, generator)]
    if columns and soft:
        groups.append(SoftColumnUnits(1, width, N_VALUES, generator))
        groups += [SoftGaussianUnits(1, width, generator)] if width <= MOST_COLUMNS else []
    elif columns:
        groups.append(ColumnMemoryUnits(1, width, N_VALUES, generator))
    return Autoencoder(groups).requires_grad_(False)


def _variance(rows: Rows) -> float:
    """The mean of the columns' variances."""
    share = (rows.counts / rows.counts.sum()).unsqueeze(1)
    return float((share * (rows.W - (share * rows.W).sum(0)).square()).sum(0).mean()) or 1.0


def _spread(values: Tensor) -> Tensor:
    """The inter-quartile range; where half of the values are equal, the standard deviation; 1 where all are."""
    low, high = torch.quantile(values, values.new_tensor([0.25, 0.75]))
    least = 1e-9 * (1 + values.abs().max())
    if high - low > least:
        return high - low
    deviation = values.std(correction=0)
    return deviation if deviation > least else torch.ones_like(deviation)


# --- rows that are left out ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """Rows v (n, D) to ask K memories W (K, M, D) about, each of which leaves the unit that it is in first.

    ``counts`` (K, M) are those of the units.  A row is in unit ``own`` of the memory ``of``, which counts as ``left``
    without it, and stays where it is, or is at ``moved`` (n, D) then.  What counts `NOTHING` is no row.
    """

    W: Tensor
    counts: Tensor
    v: Tensor
    of: Tensor
    own: Tensor
    left: Tensor
    moved: Tensor | None = None

    def log_sums(self, temperatures: list[float]) -> Tensor:
        """The log of the sum of n_i exp(-|v - w_i|^2 / (2 T)): (T, n, K), of temperatures in rising order."""
        shape, flat = self.W.shape[:2], self.W.flatten(0, 1)
        size, half = _block(flat), flat.square().sum(1) / 2
        filled = self.counts > 2 * NOTHING  # with room for the rounding of logarithms
        padding = ~filled & filled.any(1, keepdim=True)  # (K, M)
        padded, found = bool(padding.any()), []
        for start in range(0, len(self.v), size):
            some = slice(start, start + size)
            v, of, own, left = self.v[some], self.of[some], self.own[some], self.left[some]
            at = torch.arange(len(v), device=v.device)
            u = (v @ flat.T - half).unflatten(1, shape)  # (n, K, M)
            if padded:
                u.masked_fill_(padding, -math.inf)
            if self.moved is not None:
                moved = self.moved[some]
                u[at, of, own] = (moved * (v - moved / 2)).sum(1)
            alone = left == 0
            u[at[alone], of[alone], own[alone]] = -math.inf
            top = u.amax(2, keepdim=True)  # (n, K, 1)
            u -= top
            its = self.counts[of, own]
            near = top.squeeze(2) - v.square().sum(1, keepdim=True) / 2  # -distance^2 / 2 of the nearest: (n, K)
            sums: list[Tensor] = []
            term, last = u, math.inf
            for T in reversed(temperatures):
                # The square of a term of twice the temperature saves an exponential; three in a row lose no digits.
                again = last == 2 * T and len(sums) % 4
                term = term.square_() if again else torch.div(u, T).clamp_(min=LEAST_EXPONENT).exp_()
                last = T
                total = (term.transpose(0, 1) @ self.counts.unsqueeze(2)).squeeze(2).T  # (n, K)
                total[at, of] += (left / its - 1) * term[at, of, own] * its  # what leaves, as a share of what is there
                sums.append(torch.log(total) + near / T)
            found.append(torch.stack(sums[::-1]))
        return torch.cat(found, 1)


def _asked_of(rows: Rows, asked: Tensor) -> Asked:
    """Rows of one memory, by their numbers."""
    own = rows.own[asked]
    return Asked(rows.W[None], rows.counts[None], rows.given[asked], torch.zeros_like(own), own, left_of(rows, asked))


def left_of(rows: Rows, asked: Tensor) -> Tensor:
    """What the unit of each row counts without it; 0 where only rounding is left."""
    its = rows.counts[rows.own[asked]]
    left = its - rows.weight[asked]
    return torch.where(left > 1e-6 * its, left, 0.0)


def _temperature(asked: Asked, variance: float) -> float:
    """The temperature of the largest mean log-likelihood of rows that are left out: (D / 2) log T is its norm."""
    tried = [variance * 2.0**step for step in LADDER]
    log_T = torch.log(torch.tensor(tried, dtype=torch.float64))
    mean = asked.log_sums(tried)[..., 0].mean(1).double().cpu() - asked.v.shape[1] / 2 * log_T
    best = int(mean.argmax())
    if not 0 < best < len(tried) - 1:
        return tried[best]
    # The top of the parabola through the best and its two neighbours.
    before, at, after = (float(mean[best + step]) for step in (-1, 0, 1))
    return tried[best] * 2.0 ** (0.5 * (before - after) / (before - 2 * at + after))


def _block(W: Tensor) -> int:
    """So many rows at once that their distances to W fit into a cache, on a GPU into a part of its memory."""
    return max(16, BLOCK_VALUES * (64 if W.is_cuda else 1) // len(W))
