"""Convolutions that turn with the image: exactly by quarters, nearly by eighths, and what the trunk makes of that."""

import math

import pytest
import torch
from torch import Tensor

from energate.estimators.convolution import ImageHeads
from energate.estimators.turning import (
    N_TURNS,
    TurnedConvolution,
    TurnedNorm,
    from_every_turn,
    over_turns,
    turned_filters,
)

QUARTER = N_TURNS // 4
EIGHTH = 2 * math.pi / N_TURNS


def blobs(turned_by: float = 0.0, side: int = 16, n_images: int = 4, width: float = 0.14) -> Tensor:
    """Smooth images (N, 1, side, side), seen after a turn by an angle: nothing is read between pixels."""
    draw = torch.Generator().manual_seed(0)
    far, angle = 0.55 * torch.rand(2, n_images, 5, generator=draw, dtype=torch.float64).mul(
        torch.tensor([[[1.0]], [[9.0]]])
    )
    height = torch.randn(n_images, 5, generator=draw, dtype=torch.float64)
    at = torch.linspace(-1, 1, side, dtype=torch.float64)
    y, x = torch.meshgrid(at, at, indexing="ij")
    middle = far * (angle + turned_by).sin(), far * (angle + turned_by).cos()
    away = sum((grid - place[..., None, None]).square() for grid, place in zip((y, x), middle, strict=True))
    return (height[..., None, None] * torch.exp(-0.5 * away / width**2)).sum(1, keepdim=True)


def quarter(planes: Tensor) -> Tensor:
    """Planes turned the way that `blobs` are: from x to y, which is down."""
    return planes.rot90(-1, (2, 3))


def moved(planes: Tensor, n_turns: int) -> Tensor:
    """Planes (N, C * G, h, w) with their orientations moved on."""
    return planes.unflatten(1, (-1, N_TURNS)).roll(n_turns, 2).flatten(1, 2)


def two_layers() -> tuple[TurnedConvolution, TurnedConvolution]:
    torch.manual_seed(0)
    return TurnedConvolution(1, 16, 7, 3, lifts=True).double(), TurnedConvolution(16, 8, 5, 2).double()


def test_blobs_turn_as_planes_do() -> None:
    torch.testing.assert_close(blobs(math.pi / 2), quarter(blobs()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_filters_turn_exactly_by_quarters(size) -> None:
    filters = turned_filters(size)
    for g in range(N_TURNS):
        after = filters[(g + QUARTER) % N_TURNS]
        torch.testing.assert_close(quarter(filters[g][None])[0], after, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [4, 5, 7])
def test_filters_are_different_ones(size) -> None:
    """No filter is a sum of others, and no turn is the same as none."""
    filters = turned_filters(size)
    assert torch.linalg.matrix_rank(filters[0].flatten(1)) == filters.shape[1] <= size**2
    assert torch.isfinite(filters).all()
    for g in range(1, N_TURNS):
        assert float((filters[g] - filters[0]).abs().max()) > 0.1


def test_planes_of_a_turned_image_are_turned_and_moved() -> None:
    first, second = two_layers()
    v = blobs()
    once, twice = first(v), second(first(v))
    torch.testing.assert_close(first(quarter(v)), moved(quarter(once), QUARTER), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(second(first(quarter(v))), moved(quarter(twice), QUARTER), rtol=1e-9, atol=1e-11)
    with pytest.raises(AssertionError):  # not by the same orientations
        torch.testing.assert_close(first(quarter(v)), quarter(once), rtol=1e-3, atol=1e-3)
    with pytest.raises(AssertionError):  # nor the other way round
        torch.testing.assert_close(first(quarter(v)), moved(quarter(once), -QUARTER), rtol=1e-3, atol=1e-3)


def test_eighths_are_as_exact_as_the_grid_has_room_for() -> None:
    """What is found in all orientations and places together changes little when smooth images turn by an eighth."""
    first, second = two_layers()
    with torch.no_grad():
        found, turned = (second(first(blobs(angle, side=32))) for angle in (0.0, EIGHTH))
    size = found.unflatten(1, (-1, N_TURNS)).square().sum((3, 4))  # (N, C, G)
    after = turned.unflatten(1, (-1, N_TURNS)).square().sum((3, 4))
    assert float((size.roll(1, 2) - after).norm() / after.norm()) < 0.08
    assert float((size - after).norm() / after.norm()) > 0.1  # the orientations do move


def test_each_plane_reads_those_below_counted_from_itself() -> None:
    """The filters of plane g are those of plane 0, turned, with the planes below moved by g."""
    layer = two_layers()[1]
    whole = layer.whole().unflatten(0, (-1, N_TURNS)).unflatten(2, (-1, N_TURNS))  # (out, G, in, G, y, x)
    for g in range(0, N_TURNS, QUARTER):
        expected = whole[:, 0].roll(g, 2).rot90(-(g // QUARTER), (3, 4))
        torch.testing.assert_close(whole[:, g], expected, rtol=1e-10, atol=1e-12)


def test_orientations_are_normalised_together() -> None:
    norm = TurnedNorm(48).double()
    with torch.no_grad():
        norm.weight.copy_(torch.rand(6) + 0.5)
        norm.bias.copy_(torch.randn(6))
    x = 3 * torch.randn(2, 48, 5, 5, dtype=torch.float64) + 1
    parts = x.unflatten(1, (3, 16)).flatten(2)  # gcd(6, 4) channels at a time
    even = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
    even = even.view(2, 6, N_TURNS, 5, 5)
    expected = (even * norm.weight.view(6, 1, 1, 1) + norm.bias.view(6, 1, 1, 1)).flatten(1, 2)
    torch.testing.assert_close(norm(x), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(norm(moved(x, 3)), moved(expected, 3), rtol=1e-10, atol=1e-12)


def test_planes_as_they_are_of_every_turn() -> None:
    planes = torch.randn(3, 2 * N_TURNS)
    every = from_every_turn(planes).unflatten(0, (N_TURNS, 3))
    for g in range(N_TURNS):
        torch.testing.assert_close(every[g], moved(planes[:, :, None, None], g)[:, :, 0, 0])
    torch.testing.assert_close(over_turns(planes), every.mean(0)[:, ::N_TURNS])


@pytest.mark.parametrize("pooling", ["flatten", "mean"])
def test_energies_hardly_change_when_an_image_is_turned_by_an_eighth(pooling) -> None:
    torch.manual_seed(0)
    sizes: tuple[int, int, int, int] = (3, 8, 16, 1)
    changes = {}
    for symmetry in ("circle", "turns"):
        heads = ImageHeads((28, 28), *sizes, pooling, symmetry=symmetry).double()
        with torch.no_grad():
            before, after = (
                torch.nn.functional.softplus(heads(blobs(angle, side=28, n_images=16).flatten(1))).mean(2)
                for angle in (0.0, EIGHTH)
            )  # (K, N)
        changes[symmetry] = float((after - before).std() / before.std())
    assert changes["circle"] < 0.35 * changes["turns"], changes
