"""Memory units: the energy is a Parzen density's, the reconstruction the best denoiser's, and the limits are known."""

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from cases import D, K, M, N, gradient_error, random_rows
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import trajectory
from energate.errors import InputError
from energate.memory import RATIO, ColumnMemoryUnits, MemoryUnits, SoftColumnUnits, SoftGaussianUnits
from energate.units import HiddenUnits


def memory(T: float = 0.7, n_temperatures: int = 1, counts: Tensor | None = None) -> Autoencoder:
    units = MemoryUnits(K, D, M, n_temperatures).double()
    units.remember(torch.stack([random_rows(n_rows=M, seed=k) for k in range(K)]), counts)
    units.log_T.data.fill_(math.log(T))
    return Autoencoder(units).double().requires_grad_(False)


def squared_distances(model: Autoencoder, v: Tensor) -> Tensor:
    return (v[None, :, None] - model.groups[0].W[:, None]).square().sum(-1)  # (K, N, M)


@pytest.mark.parametrize("T", [0.01, 0.7, 20.0])
def test_the_energy_is_that_of_a_parzen_density(T: float) -> None:
    model, v = memory(T), random_rows()
    normals = torch.distributions.MultivariateNormal(torch.zeros(D).double(), T * torch.eye(D).double())
    log_density = torch.logsumexp(normals.log_prob(v[None, :, None] - model.groups[0].W[:, None]), -1) - math.log(M)
    constant = T * (math.log(M) + D / 2 * math.log(2 * math.pi * T))
    torch.testing.assert_close(model.energy(v), T * log_density + constant, rtol=1e-10, atol=1e-10)


def test_counts_stand_for_repeated_rows() -> None:
    counts = torch.arange(1, M + 1).double()
    counted, v = memory(counts=counts.expand(K, M)), random_rows()
    units = MemoryUnits(K, D, int(counts.sum())).double()
    units.remember(counted.groups[0].W.repeat_interleave(counts.long(), 1))
    units.log_T.data.fill_(math.log(0.7))
    repeated = Autoencoder(units).double()
    torch.testing.assert_close(counted.energy(v), repeated.energy(v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(counted.reconstruct(v), repeated.reconstruct(v), rtol=1e-12, atol=1e-12)


def test_the_reconstruction_is_the_mean_of_the_rows_given_a_noisy_one() -> None:
    T = 0.7
    model, v = memory(T), random_rows()
    posterior = torch.softmax(-squared_distances(model, v) / (2 * T), -1)
    torch.testing.assert_close(model.reconstruct(v), posterior @ model.groups[0].W, rtol=1e-11, atol=1e-11)


def test_no_auto_encoder_denoises_the_rows_better() -> None:
    T, generator = 0.5, torch.Generator().manual_seed(0)
    model = memory(T).select(0)
    W = model.groups[0].W[0]
    rows = W[torch.randint(M, (4000,), generator=generator)]
    seen = rows + T**0.5 * torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    ours = float(model.loss(rows, seen=seen).mean())
    for other in (memory(0.8 * T), memory(1.25 * T)):
        assert ours < float(other.select(0).loss(rows, seen=seen).mean())
    inputs = torch.cat([seen, torch.ones_like(seen[:, :1])], 1)
    linear = inputs @ torch.linalg.lstsq(inputs, rows).solution  # the best linear one, fitted to these very rows
    assert ours < float((linear - rows).square().sum(1).mean() / 2)


def test_a_low_temperature_leaves_the_nearest_row() -> None:
    model, v = memory(1e-5), random_rows()
    near = squared_distances(model, v).amin(-1)
    torch.testing.assert_close(model.energy(v), -near / 2, rtol=1e-6, atol=1e-9)


def test_a_high_temperature_leaves_the_mean_and_one_unit_is_a_gaussian() -> None:
    v = random_rows()
    model = memory(1e7)
    torch.testing.assert_close(
        model.reconstruct(v), model.groups[0].W.mean(1, keepdim=True).expand(K, N, D), atol=1e-5, rtol=0
    )
    one = MemoryUnits(1, D, 1).double()
    centre = random_rows(n_rows=1, seed=5)
    one.remember(centre[None])
    single = Autoencoder(one).double()
    torch.testing.assert_close(single.energy(v)[0], -(v - centre).square().sum(1) / 2, rtol=1e-12, atol=1e-12)


def test_several_temperatures_are_the_average_of_energies_of_one() -> None:
    v, share = random_rows(), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    model = memory(0.3, 3)
    model.groups[0].log_share.data = share.log().expand(K, 3).clone()
    single = [memory(0.3 * RATIO**j) for j in range(3)]
    for what in ("energy", "reconstruct"):
        expected = sum(s * getattr(each, what)(v) for s, each in zip(share, single, strict=True))
        torch.testing.assert_close(getattr(model, what)(v), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(model.groups[0].temperatures[0], 0.3 * RATIO ** torch.arange(3.0).double())


def test_columns_are_a_product_of_densities() -> None:
    units = ColumnMemoryUnits(K, D, 5).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in (units.W, units.log_counts):
        parameter.data.normal_(generator=generator)
    units.log_T.data.fill_(math.log(0.4))
    model, v = Autoencoder(units).double(), random_rows()
    scaled = units.log_counts[:, None] - (v[None, ..., None] - units.W[:, None]).square() / 0.8  # (K, N, D, 5)
    torch.testing.assert_close(model.energy(v), 0.4 * torch.logsumexp(scaled, -1).sum(-1), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(model.reconstruct(v), (torch.softmax(scaled, -1) * units.W[:, None]).sum(-1))


def soft(units: SoftColumnUnits | SoftGaussianUnits) -> tuple[Autoencoder, Tensor, Tensor]:
    """Units with random parameters, rows, and these as soft columns (K, N, D) by the formula."""
    generator, v = torch.Generator().manual_seed(0), 3 * random_rows()
    for parameter in units.double().parameters():
        parameter.data.normal_(generator=generator)
    units.columns.limit.data[:, 0] = 0
    middle, rate, limit = (part.detach().unsqueeze(1) for part in units.columns.parameters())
    z = rate * (v - middle)
    return Autoencoder(units).double().requires_grad_(False), v, z / (1 + (limit * z) ** 2).sqrt()


def test_soft_columns_are_a_product_of_densities() -> None:
    units = SoftColumnUnits(K, D, 5)
    model, v, s = soft(units)
    T = units.log_T.exp()[:, None, None]
    scaled = units.log_counts[:, None] - (s[..., None] - units.W[:, None]).square() / (2 * T[..., None])
    density = units.log_share.exp()[:, None] * (T * torch.logsumexp(scaled, -1)).sum(-1)
    # The term of the outputs stays: a memory of rows beside it takes that up.
    torch.testing.assert_close(model.energy(v), density - v.square().sum(1) / 2, rtol=1e-11, atol=1e-11)
    assert gradient_error(model.energy, model.vector_field, v.expand(K, -1, -1)) < 1e-12


def test_soft_columns_have_a_gaussian() -> None:
    units = SoftGaussianUnits(K, D)
    model, v, s = soft(units)
    length = (torch.einsum("kmd,knd->knm", units.W, s) + units.b[:, None]).square().sum(-1)
    found = units.log_share.exp()[:, None] * length / -2
    torch.testing.assert_close(model.energy(v), found - v.square().sum(1) / 2, rtol=1e-11, atol=1e-11)
    assert gradient_error(model.energy, model.vector_field, v.expand(K, -1, -1)) < 1e-12


@pytest.mark.parametrize(
    "others",
    [lambda: [ColumnMemoryUnits(K, D, 4)], lambda: [SoftColumnUnits(K, D, 4), SoftGaussianUnits(K, D)]],
    ids=["columns", "soft"],
)
def test_rows_and_columns_together_have_one_field(others: Callable[[], list[HiddenUnits]]) -> None:
    both = Autoencoder([memory(0.3, 3).groups[0], *others()]).double()
    assert gradient_error(both.energy, both.vector_field, random_rows().expand(K, -1, -1)) < 1e-12


def test_values_do_not_depend_on_gradients_and_far_rows_are_finite() -> None:
    model = memory(0.01, 3)
    v = torch.cat([random_rows(), 1e8 * random_rows(), 1e60 * random_rows()])
    with torch.no_grad():
        plain, hidden = model.energy(v), model.encode(v)
    with torch.enable_grad():
        torch.testing.assert_close(model.energy(v), plain, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model.encode(v), hidden, rtol=1e-9, atol=1e-15)
    assert plain.isfinite().all()
    torch.testing.assert_close(hidden.sum(-1), torch.ones(K, len(v)).double())


def test_a_step_of_mean_shift_never_lowers_the_energy() -> None:
    path = trajectory(memory(0.3, 2), 2 * random_rows(), max_steps=50)
    assert (path.energies.diff(dim=0) > -1e-12).all()
    assert not path.diverged.any()


def test_copies_hold_rows_of_their_own() -> None:
    model, v = memory(), random_rows()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = model.energy(v)
        copied.groups[0].log_T.data.add_(1)
        assert (copied.energy(v) != before).any()  # its activation reads its own temperature
        torch.testing.assert_close(model.energy(v), before)


def test_what_cannot_be_remembered() -> None:
    with pytest.raises(
        InputError, match=r"`rows` must have shape \(2, 4, 3\), and `counts` \(2, 4\); got \(4, 3\) and None"
    ):
        MemoryUnits(2, 3, 4).remember(torch.zeros(4, 3))
    with pytest.raises(InputError, match="`n_temperatures` must be a whole number of at least 1; got 0"):
        MemoryUnits(2, 3, 4, 0)
