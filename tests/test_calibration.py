import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.calibration import calibrate, negative_log_likelihood
from energate.errors import InputError
from energate.rbm import binary_states, to_rbm
from energate.units import MeanUnits


def problem(n_rows: int = 300, n_classes: int = 4, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Energies with some signal, and labels with every class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_classes, (n_rows,), generator=generator)
    labels[:n_classes] = torch.arange(n_classes)
    energies = torch.randn(n_rows, n_classes, generator=generator, dtype=torch.float64)
    energies += torch.randn(n_classes, generator=generator, dtype=torch.float64)  # offsets to be calibrated away
    energies[torch.arange(n_rows), labels] += 0.7
    return scale * energies, labels


def moment_gap(energies: Tensor, labels: Tensor, B: Tensor) -> float:
    counts = torch.bincount(labels, minlength=len(B)).double()
    return float((torch.softmax(energies + B, -1).sum(0) - counts).abs().max())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_expected_counts_equal_the_counts_seen(scale) -> None:
    """Theory item 19: the moment condition of the optimum, up to energies of 1e4."""
    energies, labels = problem(scale=scale)
    B = calibrate(energies, labels)
    assert torch.isfinite(B).all()
    assert abs(float(B.sum())) <= 1e-9 * (1 + float(B.abs().max()))
    assert moment_gap(energies, labels, B) <= 1e-9 * len(labels)


def test_gradient_and_hessian_are_the_closed_forms() -> None:
    """Theory item 19: g_i = sum p - N_i; the Hessian is sum of (diag p - p p^T), PSD with null vector 1."""
    energies, labels = problem()
    B = torch.linspace(-1, 1, 4, dtype=torch.float64)

    def nll(B: Tensor) -> Tensor:
        return negative_log_likelihood(B, energies, labels)

    p = torch.softmax(energies + B, -1)
    counts = torch.bincount(labels, minlength=4).double()
    gradient, hessian = torch.func.grad(nll)(B), torch.func.jacrev(torch.func.grad(nll))(B)
    torch.testing.assert_close(gradient, p.sum(0) - counts, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(hessian, torch.diag(p.sum(0)) - p.T @ p, rtol=1e-10, atol=1e-10)
    assert float((hessian @ torch.ones(4, dtype=torch.float64)).abs().max()) <= 1e-10
    assert float(torch.linalg.eigvalsh(hessian)[0]) >= -1e-10
    assert float(torch.linalg.eigvalsh(hessian)[1]) > 1  # strictly convex but for the gauge


def test_a_general_optimiser_finds_the_same_biases() -> None:
    energies, labels = problem()

    def objective(free: np.ndarray) -> float:
        B = torch.tensor([*free, -free.sum()])
        return float(negative_log_likelihood(B, energies, labels))

    found = minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-4}).x
    np.testing.assert_allclose(calibrate(energies, labels)[:3].numpy(), found, atol=1e-5)


def test_no_other_biases_are_more_likely() -> None:
    energies, labels = problem(seed=3)
    B = calibrate(energies, labels)
    best = negative_log_likelihood(B, energies, labels)
    for seed in range(20):
        shift = 0.1 * torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert negative_log_likelihood(B + shift - shift.mean(), energies, labels) > best


def test_a_constant_per_row_cancels() -> None:
    """Theory item 20."""
    energies, labels = problem()
    offsets = 1e3 * torch.randn(len(labels), 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    B = calibrate(energies, labels)
    torch.testing.assert_close(calibrate(energies + offsets, labels), B, rtol=0, atol=1e-9)
    p, shifted = torch.softmax(energies + B, -1), torch.softmax(energies + offsets + B, -1)
    assert float((p - shifted).abs().max()) <= 1e-12


def test_weighted_rows_are_repeated_rows() -> None:
    energies, labels = problem(60)
    times = torch.arange(60) % 3
    times[:4] = 1
    weighted = calibrate(energies, labels, times)
    repeated = calibrate(energies.repeat_interleave(times, 0), labels.repeat_interleave(times))
    torch.testing.assert_close(weighted, repeated, rtol=0, atol=1e-9)


def test_other_priors_shift_the_biases_by_their_logarithm() -> None:
    """Weights that change the class frequencies, with energies that say nothing: B = log prior + constant."""
    labels = torch.tensor([0] * 10 + [1] * 30 + [2] * 60)
    B = calibrate(torch.zeros(100, 3), labels)
    expected = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64).log()
    torch.testing.assert_close(B, expected - expected.mean(), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_biases_of_exact_models_are_log_prior_minus_log_normaliser() -> None:
    """Theory item 21: rows drawn from three normalised RBMs with known priors."""
    generator = torch.Generator().manual_seed(0)
    n_classes, width, n_hidden, n_rows = 3, 4, 5, 60_000
    model = Autoencoder([MeanUnits(n_classes, width, n_hidden)]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.8 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    units = model.groups[0]
    prior = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    labels = torch.multinomial(prior, n_rows, replacement=True, generator=generator)
    # Exact samples: a hidden state by its weight, then a Gaussian around a + W^T h.
    states = binary_states(n_hidden, model.a)
    rows = torch.empty(n_rows, width, dtype=torch.float64)
    for k in range(n_classes):
        W, b, a = units.W.detach()[k], units.b.detach()[k], model.a.detach()[k]
        centres = a + states @ W
        log_weight = states @ b + centres.square().sum(-1) / 2
        chosen = (labels == k).nonzero().squeeze(1)
        pick = torch.multinomial(torch.softmax(log_weight, 0), len(chosen), replacement=True, generator=generator)
        rows[chosen] = centres[pick] + torch.randn(len(chosen), width, generator=generator, dtype=torch.float64)
    twin = to_rbm(model)
    log_z = (twin.rbm.log_partition() - twin.constant).detach()  # of exp(E)
    expected = prior.log() - log_z
    B = calibrate(model.energy(rows).T, labels)
    assert float((B - (expected - expected.mean())).abs().max()) <= 5e-2
    assert float((expected - expected.mean()).abs().max()) > 0.3  # there was something to find


@settings(deadline=None, max_examples=60)
@given(
    n_classes=st.integers(2, 6),
    n_rows=st.integers(6, 80),
    exponent=st.floats(-3, 4),
    seed=st.integers(0, 1000),
)
def test_the_moment_condition_holds_for_any_problem(n_classes, n_rows, exponent, seed) -> None:
    energies, labels = problem(n_rows, n_classes, 10**exponent, seed)
    B = calibrate(energies, labels)
    assert torch.isfinite(B).all()
    assert abs(float(B.sum())) <= 1e-9 * (1 + float(B.abs().max()))
    # Separable problems have a whole interval of optimal biases, so the gradient only needs to vanish to rounding.
    assert moment_gap(energies, labels, B) <= 1e-6 * n_rows


def test_a_missing_class_is_named() -> None:
    energies, labels = problem()
    with pytest.raises(InputError, match=r"is of class \[2\]"):
        calibrate(energies[labels != 2], labels[labels != 2])


@pytest.mark.parametrize(
    ("energies", "labels", "message"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), r"\(N, K\)"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), r"\(N, K\)"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "N > 0"),
        (torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0]), "whole numbers from 0 to 1"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), "whole numbers from 0 to 1"),
        (torch.full((3, 2), math.nan), torch.tensor([0, 1, 1]), "finite"),
        (torch.full((3, 2), math.inf), torch.tensor([0, 1, 1]), "finite"),
    ],
)
def test_bad_input_is_refused(energies, labels, message) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(energies, labels)
