"""Memories from rows: leave-one-out in closed form, temperatures, shares, soft columns, centres."""

import math

import pytest
import torch
from torch import Tensor

from energate.memory import RATIO, MemoryUnits, SoftColumnUnits, SoftGaussianUnits
from energate.training import columns as of_columns
from energate.training import memory as memories
from energate.training.columns import RIDGE, near_middle, soften
from energate.training.memory import Remembered, Rows, draw_asked, gather, remember


def draw(n_rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 0.5]])
    rows = torch.randn(n_rows, 3, generator=generator) @ mix
    return (rows + 4 * torch.randint(0, 2, (n_rows, 1), generator=generator)).double()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def made(rows: Tensor, column_weight: float = 0.5, most: int = 10_000) -> tuple[Rows, Tensor, Remembered]:
    gathered = gather(rows, torch.ones_like(rows[:, 0]), most, generator())
    asked = draw_asked(gathered, generator())
    return gathered, asked, remember(gathered, asked, column_weight)


def parts(found: Remembered) -> tuple[MemoryUnits, SoftColumnUnits, SoftGaussianUnits]:
    units, columns, gaussian = found.model.groups
    assert isinstance(units, MemoryUnits)
    assert isinstance(columns, SoftColumnUnits)
    assert isinstance(gaussian, SoftGaussianUnits)
    return units, columns, gaussian


@pytest.mark.parametrize("column_weight", [0.0, 0.5])
def test_leaving_out_is_what_a_memory_without_the_row_says(column_weight: float) -> None:
    rows = draw(40)
    _, asked, found = made(rows, column_weight)
    units = found.model.groups[0]
    assert isinstance(units, MemoryUnits)
    for place in (0, 7, 39):
        i = int(asked[place])
        rest = torch.cat([rows[:i], rows[i + 1 :]])
        energy = torch.zeros((), dtype=torch.float64)
        for share, T in zip(units.log_share.exp()[0], units.temperatures[0], strict=True):
            energy += share * T * torch.logsumexp(-(rows[i] - rest).square().sum(1) / (2 * T), 0)
        if column_weight:
            energy += _columns_without(found, rows, i) + _gaussian_without(found, rows, i)
        torch.testing.assert_close(found.left_out[place], energy, rtol=1e-9, atol=1e-9)


def _soft(found: Remembered, rows: Tensor) -> tuple[Tensor, Tensor]:
    """All rows as soft columns, and which of them have a part in the energy of columns."""
    soft = soften(rows, torch.ones_like(rows[:, 0]))
    return parts(found)[1].columns(rows)[0][0], near_middle(soft, rows, torch.ones_like(rows[:, 0]), 0.1)


def _columns_without(found: Remembered, rows: Tensor, i: int) -> Tensor:
    columns, (soft, kept) = parts(found)[1], _soft(found, rows)
    counts = columns.log_counts[0].exp().clone()
    low, high = soft[kept].amin(0), soft[kept].amax(0)
    inside = ((soft[i] - low) / ((high - low) / counts.shape[1])).long().clamp(0, counts.shape[1] - 1)
    counts[torch.arange(3), inside] -= float(kept[i])
    T = columns.log_T.exp()[0]
    scaled = counts.clamp(min=1e-300).log() - (soft[i][:, None] - columns.W[0]).square() / (2 * T)
    return columns.log_share.exp()[0] * T * torch.logsumexp(scaled, 1).sum()


def _gaussian_without(found: Remembered, rows: Tensor, i: int) -> Tensor:
    gaussian, (soft, kept) = parts(found)[2], _soft(found, rows)
    n = int(kept.sum())
    variance = soft[kept].var(0, correction=0).mean()
    ridge = RIDGE * variance * (n / (n - 1) if kept[i] else 1)  # as large beside the covariance
    kept[i] = False
    away = soft[i] - soft[kept].mean(0)
    covariance = soft[kept].T.cov(correction=0) + ridge * torch.eye(3).double()
    return gaussian.log_share.exp()[0] * (away @ torch.linalg.solve(covariance, away)) / -2


def test_the_temperature_has_the_largest_likelihood_of_rows_left_out() -> None:
    rows = draw(300)
    _, asked, found = made(rows, 0.0)
    T = float(found.model.groups[0].log_T.exp())
    half = asked[:150]
    distances = (rows[half, None] - rows).square().sum(-1)
    distances[torch.arange(150), half] = math.inf

    def likelihood(T: float) -> float:
        return float(torch.logsumexp(-distances / (2 * T), 1).mean()) - 3 / 2 * math.log(T)

    best = max(likelihood(T * 1.02**step) for step in range(-150, 150))
    assert best - likelihood(T) < 2e-3
    assert likelihood(T) > max(likelihood(T / 2), likelihood(2 * T))


def test_every_energy_has_its_say() -> None:
    gathered, asked, found = made(draw(500))
    units, columns, gaussian = parts(found)
    assert float(units.log_share.exp().sum()) == pytest.approx(1)  # these share the term -|v|^2 / 2
    lowest = float(units.log_T.exp())
    assert units.temperatures[0].tolist() == pytest.approx([lowest * RATIO**j for j in range(3)])
    assert len(asked) == 500
    rows_only = memories._spread(made(draw(500), 0.0)[2].left_out)
    for group, weight in ((columns, 0.5), (gaussian, 0.25)):
        energies = group.activation.potential(group.preactivation(gathered.given, None)[0])[0]
        assert float(memories._spread(energies) / rows_only) == pytest.approx(weight, rel=0.05)


def test_soft_columns_are_in_robust_units() -> None:
    rows = draw(400)
    rows[:, 1] = (rows[:, 1] > 1).double()
    rows[:, 2] = 7.0
    weight = torch.ones(400).double()
    columns = soften(rows, weight)
    first, median, third = torch.quantile(rows[:, 0], torch.tensor([0.25, 0.5, 0.75]).double(), interpolation="lower")
    torch.testing.assert_close(columns.middle[0, 0], median)
    assert float(columns.rate[0, 0] * (third - first)) == pytest.approx(1, rel=0.02)
    far = rows[:2].clone()
    far[:, 0] = torch.tensor([1e9, -1e9])
    torch.testing.assert_close(columns(far)[0][0][:, 0], torch.tensor([3.0, -3.0]).double())
    assert set(columns(rows)[0][0][:, 1].abs().tolist()) == {0.0, 1.0}
    assert (columns(rows)[0][0][:, 2] == 0).all()
    # what counts twice is what stands there twice
    weight[:100] = 2
    twice = soften(torch.cat([rows, rows[:100]]), torch.ones(500).double())
    torch.testing.assert_close(soften(rows, weight).middle, twice.middle)
    torch.testing.assert_close(soften(rows, weight).rate, twice.rate)


def test_rows_far_from_the_middle_have_no_part_in_the_columns() -> None:
    rows = torch.cat([draw(90), draw(10) + 100])
    gathered, _, found = made(rows)
    _, columns, gaussian = parts(found)
    kept = near_middle(soften(rows, gathered.weight), rows, gathered.weight, 0.1)
    assert kept.tolist() == [True] * 90 + [False] * 10
    assert float(columns.log_counts.exp().sum()) == pytest.approx(90 * 3)
    mean = columns.columns(rows[:90])[0][0].mean(0)
    torch.testing.assert_close(gaussian.W[0] @ mean, -gaussian.b[0])
    liked = found.model.energy(rows)[0]
    assert float(liked[90:].max()) < float(liked[:90].median())


def test_centres_stand_for_their_rows() -> None:
    rows = draw(3000)
    gathered, asked, found = made(rows, most=200)
    assert len(gathered.W) <= 200
    assert float(gathered.counts.sum()) == pytest.approx(3000)
    unit = int(gathered.own[0])
    mine = gathered.own == unit
    torch.testing.assert_close(gathered.W[unit], rows[mine].mean(0))
    assert float(gathered.counts[unit]) == pytest.approx(int(mine.sum()))
    whole = made(rows)[2]
    fresh = draw(500, seed=1)
    together = torch.stack([found.model.energy(fresh)[0], whole.model.energy(fresh)[0]])
    assert float(torch.corrcoef(together)[0, 1]) > 0.98
    assert len(asked) == memories.N_ASKED


def test_rows_that_stand_for_several_are_not_asked_and_weight_counts() -> None:
    rows, weight = draw(100), torch.full((100,), 0.01).double()
    weight[:5], weight[90:] = 30.0, 1.0
    asked = draw_asked(gather(rows, weight, 1000, generator()), generator())
    assert not (asked < 5).any()
    assert (asked[:10] >= 90).float().mean() > 0.5


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = draw(400)
    whole = made(rows)[2].left_out
    for module in (memories, of_columns):
        monkeypatch.setattr(module, "BLOCK_VALUES", 1)
    torch.testing.assert_close(made(rows)[2].left_out, whole, rtol=1e-9, atol=1e-9)


def test_equal_rows() -> None:
    _, _, found = made(torch.full((5, 3), 0.25).double())
    assert found.left_out.isfinite().all()
    assert float(found.model.energy(torch.full((1, 3), 9.0).double())) < float(found.left_out.min()) - 1
