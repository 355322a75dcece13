"""Class biases by maximum likelihood: convexity, moments, extreme energies, and exact mixtures end to end."""

import math

import numpy as np
import pytest
import torch
from cases import random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

from energate.errors import InputError
from energate.rbm import RBM, to_rbm
from energate.training.calibration import (
    calibrate,
    calibrate_members,
    calibrate_scales,
    calibrate_sureness,
    negative_log_likelihood,
)
from energate.units import MeanUnits


def problem(n_rows: int = 300, n_classes: int = 4, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Energies (N, K) with an offset per class, and labels that they say something about; every class occurs."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n_rows,), generator=generator)
    labels[:n_classes] = torch.arange(n_classes)
    energies = torch.randn(n_rows, n_classes, generator=generator, dtype=torch.float64)
    energies[torch.arange(n_rows), labels] += 1
    return scale * (energies + torch.linspace(-3, 3, n_classes, dtype=torch.float64)), labels


def counts(labels: Tensor, n_classes: int) -> Tensor:
    return torch.bincount(labels, minlength=n_classes).double()


def moment_error(B: Tensor, energies: Tensor, labels: Tensor) -> float:
    """How far the expected class counts are from the observed ones, per row."""
    expected = torch.softmax(energies.double() + B, -1).sum(0)
    return ((expected - counts(labels, energies.shape[1])).abs().max() / len(labels)).item()


# --- the likelihood -----------------------------------------------------------------------------------------


def test_the_gradient_is_expected_minus_observed_counts() -> None:
    """Theory item 19."""
    energies, labels = problem()
    B = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(negative_log_likelihood(B, energies, labels), B)
    expected = torch.softmax(energies + B.detach(), -1).sum(0) - counts(labels, 4)
    assert (gradient - expected).abs().max() <= 1e-10
    step = 1e-5 * torch.eye(4, dtype=torch.float64)
    by_differences = [
        negative_log_likelihood(B.detach() + e, energies, labels)
        - negative_log_likelihood(B.detach() - e, energies, labels)
        for e in step
    ]
    assert (torch.stack(by_differences) / 2e-5 - gradient).abs().max() <= 1e-5


def test_the_likelihood_is_convex_and_flat_along_the_all_ones_direction_only() -> None:
    """Theory item 19: Hessian sum_n diag(p) - p p^T, its null space is span(1)."""
    energies, labels = problem()
    for seed in range(5):
        B = 2 * torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(lambda B: negative_log_likelihood(B, energies, labels), B)
        p = torch.softmax(energies + B, -1)
        assert (hessian - (torch.diag(p.sum(0)) - p.T @ p)).abs().max() <= 1e-10
        assert hessian.sum(1).abs().max() <= 1e-10
        eigenvalues = torch.linalg.eigvalsh(hessian)
        assert eigenvalues[0] >= -1e-10
        assert eigenvalues[1] > 1e-6


# --- the optimum --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [1, 2, 4, 7])
def test_at_the_optimum_every_class_is_expected_as_often_as_it_was_seen(n_classes) -> None:
    """Theory item 19: the moment condition, in the gauge sum B = 0."""
    energies, labels = problem(n_classes=n_classes)
    B = calibrate(energies, labels)
    assert B.shape == (n_classes,)
    assert B.dtype == torch.float64
    assert moment_error(B, energies, labels) <= 1e-9
    assert abs(B.sum().item()) <= 1e-10
    if n_classes > 1:  # which no bias at all would not do
        assert moment_error(torch.zeros(n_classes), energies, labels) > 1e-2


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS-B"])
def test_the_biases_are_those_of_a_general_optimiser(method) -> None:
    """Theory item 19."""
    energies, labels = problem()
    E, z = energies.numpy(), labels.numpy()

    def loss(B: np.ndarray) -> tuple[float, np.ndarray]:
        logits = E + B
        top = logits.max(1, keepdims=True)
        log_p = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
        return -log_p[np.arange(len(z)), z].sum(), np.exp(log_p).sum(0) - np.bincount(z, minlength=4)

    options = {"gtol": 1e-9, "ftol": 1e-15} if method == "L-BFGS-B" else {"gtol": 1e-7}
    found = optimize.minimize(loss, np.zeros(4), jac=True, method=method, options=options)
    assert np.abs(calibrate(energies, labels).numpy() - (found.x - found.x.mean())).max() <= 1e-6


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_biases_are_finite_and_match_the_counts_for_energies_of_any_size(scale) -> None:
    """Theory item 19: energies times 1e4."""
    for seed in range(5):
        energies, labels = problem(scale=scale, seed=seed)
        B = calibrate(energies, labels)
        assert torch.isfinite(B).all()
        assert moment_error(B, energies, labels) <= 1e-9


@settings(max_examples=150, deadline=None)
@given(
    n_classes=st.integers(2, 6),
    n_more=st.integers(0, 80),
    exponent=st.floats(-3, 4),
    ties=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_moment_condition_holds_for_any_energies(n_classes, n_more, exponent, ties, seed) -> None:
    """Theory item 19, as a property: any scale from 1e-3 to 1e4, rare classes, rows that tie."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(n_classes), torch.randint(n_classes, (n_more,), generator=generator)])
    energies = torch.randn(len(labels), n_classes, generator=generator, dtype=torch.float64)
    energies = 10**exponent * (energies.round() if ties else energies)
    B = calibrate(energies, labels)
    assert moment_error(B, energies, labels) <= 1e-9
    assert abs(B.sum().item()) <= 1e-12 * (1 + B.abs().max().item()) * n_classes


def test_no_other_biases_are_more_likely() -> None:
    energies, labels = problem(seed=3)
    B = calibrate(energies, labels)
    best = negative_log_likelihood(B, energies, labels)
    for seed in range(20):
        shift = 0.1 * torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert negative_log_likelihood(B + shift, energies, labels) > best


def test_energies_that_say_nothing_leave_the_log_of_the_class_frequencies() -> None:
    labels = torch.tensor([0] * 10 + [1] * 30 + [2] * 60)
    expected = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64).log()
    assert (calibrate(torch.zeros(100, 3), labels) - (expected - expected.mean())).abs().max() <= 1e-9


def test_a_constant_per_row_changes_neither_biases_nor_posteriors() -> None:
    """Theory item 20: whatever is common to all classes cancels."""
    energies, labels = problem()
    shift = 1e3 * torch.randn(len(labels), 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    B, shifted = calibrate(energies, labels), calibrate(energies + shift, labels)
    assert (B - shifted).abs().max() <= 1e-9
    P = torch.softmax(energies + B, -1)
    assert (torch.softmax(energies + shift + B, -1) - P).abs().max() <= 1e-12


def test_weights_count_like_repeated_rows() -> None:
    energies, labels = problem(n_rows=60)
    times = torch.arange(60) % 4
    times[:4] = 1  # every class keeps a row
    repeated = calibrate(energies.repeat_interleave(times, 0), labels.repeat_interleave(times))
    assert (calibrate(energies, labels, times.double()) - repeated).abs().max() <= 1e-9
    assert (calibrate(energies, labels) - repeated).abs().max() > 1e-3
    assert (calibrate(energies, labels, 1e-3 * times.double()) - repeated).abs().max() <= 1e-9


def test_float32_energies_that_need_gradients_are_taken_as_numbers() -> None:
    energies, labels = problem()
    B = calibrate(energies.float().requires_grad_(), labels)
    assert not B.requires_grad
    assert (B - calibrate(energies, labels)).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_number_type_do(dtype) -> None:
    energies, labels = problem()
    assert torch.equal(calibrate(energies, labels.to(dtype)), calibrate(energies, labels))


# --- refusals -----------------------------------------------------------------------------------------------


def test_a_missing_class_is_named() -> None:
    """Theory item 19: its bias would run to -infinity."""
    energies, labels = problem(n_classes=5)
    kept = (labels != 1) & (labels != 3)
    with pytest.raises(InputError, match=r"none of the \d+ rows is of class \[1, 3\]"):
        calibrate(energies[kept], labels[kept])
    with pytest.raises(InputError, match=r"rows is of class \[2\]"):
        calibrate(energies, labels, (labels != 2).double())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_energies_that_are_not_finite_are_refused(value) -> None:
    energies, labels = problem()
    energies[5, 1] = value
    with pytest.raises(InputError, match="`energies` must be finite"):
        calibrate(energies, labels)


@pytest.mark.parametrize(
    ("energies", "labels"),
    [((5, 3), (4,)), ((5, 3), (5, 1)), ((5,), (5,)), ((2, 5, 3), (5,)), ((0, 3), (0,))],
)
def test_shapes_that_do_not_fit_are_refused(energies, labels) -> None:
    with pytest.raises(InputError, match=r"must be \(N, K\) and `labels` \(N,\)"):
        calibrate(torch.zeros(energies), torch.zeros(labels, dtype=torch.long))


@pytest.mark.parametrize("labels", [[0.0, 1.0, 2.0], [0, 1, 3], [-1, 1, 2]], ids=["float", "large", "negative"])
def test_labels_that_are_no_class_numbers_are_refused(labels) -> None:
    with pytest.raises(InputError, match="`labels` must be whole numbers from 0 to 2"):
        calibrate(torch.zeros(3, 3), torch.tensor(labels))


@pytest.mark.parametrize(
    "weight", [[1.0, 1.0], [[1.0], [1.0], [1.0]], [1.0, -1.0, 1.0], [1.0, math.nan, 1.0], [1.0, math.inf, 1.0]]
)
def test_weights_that_are_no_weights_are_refused(weight) -> None:
    with pytest.raises(InputError, match=r"`weight` must have shape \(3,\), all finite and at least 0"):
        calibrate(torch.zeros(3, 3), torch.arange(3), torch.tensor(weight))


# --- end to end ---------------------------------------------------------------------------------------------


def exact_samples(machine: RBM, k: int, n: int, generator: torch.Generator) -> Tensor:
    """Draws from the Gaussian RBM k: a mixture with one Gaussian of variance 1 per hidden state."""
    units, a = machine.groups[0], machine.model.a[k]
    h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * units.n_hidden)
    means = a + h @ units.W[k]
    log_weight = h @ units.b[k] + (means.square().sum(1) - a.square().sum()) / 2
    component = torch.multinomial(torch.softmax(log_weight, 0), n, replacement=True, generator=generator)
    return means[component] + torch.randn(n, len(a), generator=generator, dtype=torch.float64)


@torch.no_grad()
def test_biases_of_exact_mixtures_are_log_prior_minus_log_partition() -> None:
    """Theory item 21: 60 000 rows drawn from known RBMs, scored by their auto-encoders."""
    n_rows, prior = 60_000, torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    twin = to_rbm(random_model([MeanUnits(3, 3, 4)], seed=8, scale=0.8))
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(prior, n_rows, replacement=True, generator=generator)
    rows = torch.empty(n_rows, 3, dtype=torch.float64)
    for k in range(3):
        rows[labels == k] = exact_samples(twin.rbm, k, int((labels == k).sum()), generator)
    energies = twin.autoencoder.energy(rows).T  # (N, K)
    log_z = twin.rbm.log_partition() - twin.constant  # of exp E
    expected = prior.log() - log_z
    expected -= expected.mean()
    assert expected.abs().max() > 0.5
    assert (calibrate(energies, labels) - expected).abs().max() <= 5e-2
    posterior = torch.softmax(energies + calibrate(energies, labels), -1)
    truth = torch.softmax(prior.log() - twin.rbm.free_energy(rows).T - twin.rbm.log_partition(), -1)
    assert (posterior - truth).abs().max() <= 2e-2


def mixed_energies(scales: list[float], n_rows: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Energies of several parts, and labels drawn from the softmax of their sum with the given scales and biases."""
    generator = torch.Generator().manual_seed(seed)
    energies = 2 * torch.randn(len(scales), n_rows, 4, generator=generator, dtype=torch.float64)
    logits = torch.tensordot(torch.tensor(scales, dtype=torch.float64), energies, 1) + torch.tensor([0.0, 1.0, -1.0, 0])
    return energies, torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)


def scales_gradient(energies: Tensor, labels: Tensor, beta: Tensor, B: Tensor) -> Tensor:
    theta = torch.cat([beta, B]).requires_grad_()
    n = len(beta)
    cost = negative_log_likelihood(theta[n:], torch.tensordot(theta[:n], energies, 1), labels)
    cost = cost + ((theta[:n] - 1) ** 2).sum() / (2 * 0.5**2)  # the prior
    return torch.autograd.grad(cost, theta)[0]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("scales", [[1.0], [0.7, 0.2], [0.5, 0.1, 0.3]])
def test_scales_and_biases_are_the_optimum_by_autograd(size, scales) -> None:
    energies, labels = mixed_energies(scales)
    beta, B = calibrate_scales(size * energies, labels)
    gradient = scales_gradient(size * energies, labels, beta, B)
    assert gradient[: len(scales)].abs().max() < 1e-6 * size * len(labels)
    assert gradient[len(scales) :].abs().max() < 1e-6 * len(labels)
    assert abs(float(B.sum())) < 1e-9


def test_scales_and_biases_of_a_sample_are_found_again() -> None:
    energies, labels = mixed_energies([0.7, 0.2], 20_000)
    beta, B = calibrate_scales(energies * torch.tensor([10.0, 1.0]).view(2, 1, 1), labels)
    torch.testing.assert_close(beta, torch.tensor([0.07, 0.2], dtype=torch.float64), rtol=0.08, atol=0)
    torch.testing.assert_close(B, torch.tensor([0.0, 1.0, -1.0, 0.0], dtype=torch.float64), rtol=0, atol=0.12)


def test_a_part_that_misleads_is_scaled_away_but_never_turned_around() -> None:
    energies, labels = mixed_energies([1.0, -0.5], 5000)
    beta, _ = calibrate_scales(energies, labels)
    assert float(beta[0]) > 0.5
    assert 0 < float(beta[1]) < 1e-2


def test_the_scale_of_separable_rows_stays_finite() -> None:
    labels = torch.arange(40) % 2
    energies = 5.0 * torch.nn.functional.one_hot(labels, 2).double()
    beta, B = calibrate_scales(energies.unsqueeze(0), labels)
    assert 0.5 < float(beta[0]) < 3
    assert torch.isfinite(B).all()


def test_one_scale_on_a_row_weighted_twice_is_that_of_the_row_repeated() -> None:
    energies, labels = mixed_energies([0.5], 50)
    weight = torch.ones(50, dtype=torch.float64)
    weight[:10] = 2
    beta, B = calibrate_scales(energies, labels, weight)
    again = torch.cat([torch.arange(50), torch.arange(10)])
    beta_again, B_again = calibrate_scales(energies[:, again], labels[again])
    torch.testing.assert_close(beta, beta_again)
    torch.testing.assert_close(B, B_again, rtol=1e-5, atol=1e-7)


# --- several members at once ----------------------------------------------------------------------------------


def members() -> tuple[Tensor, Tensor]:
    """Energies (C, P, N, K) of three members, of sizes that are far apart, of the same rows."""
    (energies, labels), others = (
        mixed_energies([0.7, 0.2], 200),
        (mixed_energies([0.7, 0.2], 200, s)[0] for s in (1, 2)),
    )
    return torch.stack(
        [energies, *(size * (energies + noise) for size, noise in zip((1e-2, 1e3), others, strict=True))]
    ), labels


@pytest.mark.parametrize("scale", [False, True])
def test_members_together_are_calibrated_as_each_alone(scale: bool) -> None:
    energies, labels = members()
    weight = torch.linspace(0.5, 1.5, len(labels), dtype=torch.float64)
    found = calibrate_members(energies, labels, weight, scale=scale)
    for c, own in enumerate(energies):
        beta, B = torch.ones(2, dtype=torch.float64), calibrate(own.sum(0), labels, weight)
        if scale:
            beta, B = calibrate_scales(own, labels, weight)
        loss = negative_log_likelihood(B, torch.tensordot(beta, own, 1), labels, weight) / weight.sum()
        torch.testing.assert_close(found.beta[c], beta, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(found.B[c], B, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.losses[c], loss)


@pytest.mark.parametrize("scale", [False, True])
def test_what_was_found_before_leads_to_the_same_optimum(scale: bool) -> None:
    energies, labels = members()
    start = calibrate_members(energies, labels, scale=scale)
    moved = energies * 1.1 + 0.1 * energies.std((2, 3), keepdim=True) * torch.randn(
        energies.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    exact, near = (calibrate_members(moved, labels, scale=scale, start=s) for s in (None, start))
    torch.testing.assert_close(near.losses, exact.losses, rtol=0, atol=1e-6)
    assert (start.losses - exact.losses).abs().min() > 1e-3  # they did move


# --- how sure to be -------------------------------------------------------------------------------------------


def between(logits: Tensor, frequencies: Tensor, sureness: Tensor | float) -> Tensor:
    """Log-probabilities between the frequencies, at 0, and the softmax of the logits, at 1."""
    return torch.log_softmax((1 - sureness) * frequencies.log() + sureness * logits, -1)


FREQUENCIES = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
def test_the_sureness_is_the_optimum_by_autograd(size: float) -> None:
    energies, labels = problem(40)
    logits = size * energies
    found, losses = calibrate_sureness(torch.stack([logits, logits.flip(0)]), FREQUENCIES, labels)
    sureness = found[0].clone().requires_grad_()
    log_p = between(logits, FREQUENCIES, sureness)
    # Two rows more, of any class, in equal parts among the 40.
    cost = -log_p[torch.arange(40), labels].sum() - 2 * (log_p @ FREQUENCIES).mean()
    (gradient,) = torch.autograd.grad(cost, sureness)
    assert abs(float(gradient)) < 1e-7 * size * 40
    loss = -between(logits, FREQUENCIES, found[0])[torch.arange(40), labels].mean()
    torch.testing.assert_close(losses[0], loss)
    assert float(found[1] * size) < 1e-1  # logits of other rows say nothing


def test_no_sureness_is_the_frequencies_and_few_right_rows_do_not_make_sure_of_all() -> None:
    labels = torch.tensor([1, 1, 3])  # two of the four classes are not there
    noise = 100 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise[torch.arange(3), labels] -= 1000
    right = torch.nn.functional.one_hot(labels, 4) * 1e3
    (none, some), _ = calibrate_sureness(torch.stack([noise, right.double()]), FREQUENCIES, labels)
    assert (between(noise, FREQUENCIES, none).exp() - FREQUENCIES).abs().max() < 1e-2
    p = between(right, FREQUENCIES, some).exp()
    assert (p > 1e-2).all()  # of three rows, none is beyond doubt
    assert (p.argmax(1) == labels).all()


def test_rows_of_weight_0_do_not_count_for_the_sureness() -> None:
    energies, labels = problem(60)
    weight = (torch.arange(60) % 3 > 0).double()
    some, few = calibrate_sureness(energies.unsqueeze(0), FREQUENCIES, labels, weight), weight.bool()
    torch.testing.assert_close(some, calibrate_sureness(energies[few].unsqueeze(0), FREQUENCIES, labels[few]))
