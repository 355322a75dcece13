"""Units over layers that classes share: against autograd, against classes that share nothing, and member by member."""

import math

import pytest
import torch
from cases import D, M, N, random_model, random_rows

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.trunk import TrunkUnits, bent

C, K = 2, 3  # members, classes


def trunk(n_waves: int = 2, depth: int = 2, visible: str = "linear", seed: int = 0) -> Autoencoder:
    sizes = {"breadth": 9, "depth": depth, "n_waves": n_waves}
    units = TrunkUnits(C * K, D, M, n_members=C, waves=[1, 4, 6], repeats=2.5, **sizes)
    return random_model([units], visible, seed, skip=torch.linspace(-1, 1, D))


def test_what_comes_back_through_gelu_is_its_derivative() -> None:
    z = torch.linspace(-9, 9, 1211, dtype=torch.float64, requires_grad=True)
    g = torch.linspace(3, -2, 1211, dtype=torch.float64, requires_grad=True)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    expected = g * (torch.special.ndtr(z) + z * density)
    torch.testing.assert_close(bent(g, z), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bent(g, z), g * torch.autograd.grad(torch.nn.functional.gelu(z).sum(), z)[0])
    for wanted in (g, z):  # training goes through it, too
        both = [torch.autograd.grad(each.sum(), wanted, retain_graph=True)[0] for each in (bent(g, z), expected)]
        torch.testing.assert_close(*both, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_waves", [0, 2])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_field_is_the_gradient_for_rows_of_every_shape(n_waves: int, depth: int) -> None:
    model = trunk(n_waves, depth)
    shared = random_rows()
    own = torch.stack([random_rows(seed=seed) for seed in range(C * K)])
    for v in (shared, own):
        each = v.expand(C * K, -1, -1).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model.energy(each).sum(), each)
        torch.testing.assert_close(model.vector_field(v), gradient, rtol=1e-10, atol=1e-10)


def test_rows_of_members_are_seen_by_all_of_their_classes() -> None:
    model = trunk()
    rows = torch.stack([random_rows(seed=seed) for seed in range(C)])  # (C, N, D)
    repeated = rows.repeat_interleave(K, 0)  # (C * K, N, D)
    for score in (model.energy, model.relative_energy):
        torch.testing.assert_close(score(rows), score(repeated), rtol=1e-12, atol=1e-12)


def test_decoding_rows_of_members_adds_up_their_classes() -> None:
    model = trunk()
    (units,) = model.groups
    rows = torch.stack([random_rows(seed=seed) for seed in range(C)])
    u, carry = units.preactivation(rows, None)
    h = torch.sigmoid(u)
    alone = units.decode(h, units.preactivation(rows.repeat_interleave(K, 0), None)[1])  # (C * K, N, D)
    expected = alone.unflatten(0, (C, K)).sum(1)
    torch.testing.assert_close(units.decode(h, carry), expected, rtol=1e-12, atol=1e-12)


def test_a_mixture_of_models_is_the_weighted_sum_of_their_preoutputs() -> None:
    model = trunk()
    rows = torch.stack([random_rows(seed=seed) for seed in range(C)])
    weights = torch.rand(C * K, N, dtype=torch.float64)
    energies, mixture = model.energies_and_mixture(rows, lambda _: weights)
    repeated = rows.repeat_interleave(K, 0)
    torch.testing.assert_close(energies, model.relative_energy(repeated), rtol=1e-12, atol=1e-12)
    expected = (weights.unsqueeze(-1) * model.preoutput(repeated)).unflatten(0, (C, K)).sum(1)
    torch.testing.assert_close(mixture, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("models", [[4], [0, 1, 2], [3, 4, 5], [5, 0], [2, 1, 0], list(range(6))])
def test_any_models_can_be_taken(models: list[int]) -> None:
    model, v = trunk(), random_rows()
    chosen = model.select(models)
    torch.testing.assert_close(chosen.energy(v), model.energy(v)[models], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chosen.preoutput(v), model.preoutput(v)[models], rtol=1e-12, atol=1e-12)
    whole_members = models in ([0, 1, 2], [3, 4, 5], list(range(6)))
    assert chosen.n_members == (len(models) // K if whole_members else len(models))


def test_models_must_be_classes_of_whole_members() -> None:
    with pytest.raises(InputError, match="5 models are not so many classes of 2 members"):
        TrunkUnits(5, D, M, n_members=2)
