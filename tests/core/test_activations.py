"""Every activation is the derivative of its potential, also where floating point is unkind (theory items 1-4)."""

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import ALL_ACTIVATIONS
from scipy.special import ndtr, spence
from torch import Tensor
from torch.nn import functional as F

from energate.activations import (
    ACTIVATIONS,
    LINEAR,
    SIGMOID,
    Activation,
    OutputActivation,
    as_activation,
    as_output,
    elu,
    leaky,
    softmax,
    softshrink,
    weighted,
)
from energate.errors import InputError

POINTS = torch.cat(
    [torch.linspace(-30, 30, 1205, dtype=torch.float64), torch.tensor([0, 1, -1, 3, -3, 20.01], dtype=torch.float64)]
)
KINKS = (-3, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 3)
ELEMENTWISE = {name: f for name, f in ALL_ACTIVATIONS.items() if f.name != "softmax"}

# H(0), and h'(0) where h is smooth there
CONSTANTS = {
    "sigmoid": (math.log(2), 1 / 4),
    "tanh": (0, 1),
    "linear": (0, 1),
    "relu": (0, None),
    "leaky": (0, None),
    "leaky(0.3)": (0, None),
    "modulus": (0, None),
    "square": (0, 0),
    "softplus": (math.pi**2 / 12, 1 / 2),
    "elu": (0, 1),
    "elu(0.7)": (0, None),
    "silu": (-(math.pi**2) / 12, 1 / 2),
    "gelu": (-1 / 4, 1 / 2),
    "hardtanh": (0, 1),
    "hardsigmoid": (3 / 4, 1 / 6),
    "erf": (1 / math.sqrt(math.pi), 2 / math.sqrt(math.pi)),
    "probit": (1 / math.sqrt(2 * math.pi), 1 / math.sqrt(2 * math.pi)),
    "softsign": (0, 1),
    "arctan": (0, 1),
    "softshrink": (0, 0),
    "softshrink(1.5)": (0, 0),
    "sin": (0, 1),
}
SOFTMAX_CONSTANTS = {
    "softmax": math.log(8),
    "softmax(2.5)": 2.5 * math.log(8),
    "softmax(groups)": 2 * math.log(4),
}

each_activation = pytest.mark.parametrize("activation", ALL_ACTIVATIONS.values(), ids=ALL_ACTIVATIONS)
each_elementwise = pytest.mark.parametrize("name", ELEMENTWISE)
each_output = pytest.mark.parametrize("output", [LINEAR, SIGMOID], ids=["linear", "sigmoid"])


def in_rows(points: Tensor) -> Tensor:
    """Eight different columns, of which the first holds the points themselves: softmax needs neighbours."""
    return points.unsqueeze(-1) + torch.tensor([0, 1, -2, 0.3, -0.7, 2.2, -1.1, 0.05], dtype=points.dtype)


def derivatives(potential: Callable[[Tensor], Tensor], u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The potential, its gradient, and its Hessian times fixed weights, by double backward."""
    u = u.detach().clone().requires_grad_()
    value = potential(u)
    (first,) = torch.autograd.grad(value.sum(), u, create_graph=True)
    weights = torch.linspace(0.5, 1.5, u.shape[-1], dtype=u.dtype)
    if not first.requires_grad:  # locally constant
        return value.detach(), first, torch.zeros_like(u)
    (second,) = torch.autograd.grad((first * weights).sum(), u)
    return value.detach(), first.detach(), second


def summed(antiderivative: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda u: antiderivative(u).sum(-1)


def slope_is_right(potential: Callable[[Tensor], Tensor], f: Callable[[Tensor], Tensor]) -> bool:
    """Item 1: H' = h at 1211 points, kinks included."""
    u = in_rows(POINTS)
    return torch.allclose(derivatives(potential, u)[1], f(u), rtol=1e-12, atol=1e-12)


def survives_float32(potential: Callable[[Tensor], Tensor]) -> bool:
    """Item 3: finite H, H', H'' at |u| = 1e4, and close to float64."""
    u = 1e4 * torch.tensor([1, -1, 0.5, -0.5, 0.25, -0.25, 0.125, -0.125])
    return all(
        bool(torch.isfinite(low).all()) and torch.allclose(low.double(), high, rtol=2e-6, atol=1e-30)
        for low, high in zip(derivatives(potential, u), derivatives(potential, u.double()), strict=True)
    )


def curvature_at_0(potential: Callable[[Tensor], Tensor]) -> float:
    """Item 4: H''(0) by double backward."""
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(potential(zero), zero, create_graph=True)
    return float(torch.autograd.grad(first, zero)[0])


# --- items 1 to 4 --------------------------------------------------------------------------------------


@each_activation
def test_the_gradient_of_the_potential_is_the_activation(activation: Activation) -> None:
    """Item 1."""
    assert len(POINTS) == 1211
    assert slope_is_right(activation.potential, activation.f)


def test_every_activation_has_its_constants_in_the_tables() -> None:
    assert {**CONSTANTS, **SOFTMAX_CONSTANTS}.keys() == ALL_ACTIVATIONS.keys()


@each_elementwise
def test_the_potential_at_0_is_the_tabulated_constant(name: str) -> None:
    """Item 2."""
    potential = ALL_ACTIVATIONS[name].potential(torch.zeros(1, dtype=torch.float64))
    assert abs(float(potential) - CONSTANTS[name][0]) <= 1e-14


@pytest.mark.parametrize("name", SOFTMAX_CONSTANTS)
def test_softmax_has_one_potential_per_group(name: str) -> None:
    """Item 2: tau log M for each group of M."""
    potential = ALL_ACTIVATIONS[name].potential(torch.zeros(8, dtype=torch.float64))
    assert float(potential) == pytest.approx(SOFTMAX_CONSTANTS[name], rel=1e-14)


@each_activation
def test_the_potential_is_the_integral_of_the_activation(activation: Activation) -> None:
    """Item 2: quadrature along a ray from 0, split at the kinks."""
    ray = in_rows(torch.zeros(1, dtype=torch.float64))[0] / 2 if activation.name == "softmax" else torch.ones(1)
    for sign in (-1, 1):
        corners = torch.tensor(sorted({*range(-12, 13), *KINKS}), dtype=torch.float64)
        corners = corners[sign * corners >= 0]
        nodes, weights = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(40))
        middle, half = (corners[1:] + corners[:-1]) / 2, (corners[1:] - corners[:-1]) / 2
        t = middle.unsqueeze(-1) + half.unsqueeze(-1) * nodes  # (cells, nodes)
        cells = ((activation.f(t.unsqueeze(-1) * ray) * ray).sum(-1) @ weights) * half
        potential = activation.potential(corners.unsqueeze(-1) * ray)
        torch.testing.assert_close(potential.diff(), cells, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(potential[-1] - potential[0], cells.sum(), rtol=1e-11, atol=1e-11)


def test_the_potential_of_softplus_is_the_dilogarithm() -> None:
    """Item 2."""
    u = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    expected = torch.as_tensor(-spence(1 + np.exp(u.numpy())))
    torch.testing.assert_close(ACTIVATIONS["softplus"].potential(u.unsqueeze(-1)), expected, rtol=1e-14, atol=1e-14)


def test_tails_and_small_values_keep_their_digits() -> None:
    """(1 + erf) / 2 is 0 at -10, and 1 - cos is 0 at 1e-9."""
    u = torch.linspace(-30, 0, 200, dtype=torch.float64)
    tail = torch.as_tensor(ndtr(u.numpy()))
    torch.testing.assert_close(ACTIVATIONS["probit"].f(u), tail, rtol=1e-11, atol=0)
    torch.testing.assert_close(ACTIVATIONS["gelu"].f(u), u * tail, rtol=1e-11, atol=0)
    small = torch.tensor([1e-9], dtype=torch.float64)
    assert float(ACTIVATIONS["sin"].potential(small)) == pytest.approx(5e-19, rel=1e-9)


@each_activation
def test_float32_is_finite_and_accurate_at_10000(activation: Activation) -> None:
    """Item 3."""
    assert survives_float32(activation.potential)


@pytest.mark.parametrize("name", [name for name, (_, slope) in CONSTANTS.items() if slope is not None])
def test_double_backward_at_0_gives_the_slope_of_the_activation(name: str) -> None:
    """Item 4."""
    assert abs(curvature_at_0(ALL_ACTIVATIONS[name].potential) - CONSTANTS[name][1]) <= 1e-12


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its first forward-mode derivative scripts code
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_hessian_of_softmax_at_0_is_its_jacobian(temperature: float) -> None:
    """Item 4: (diag p - p p^T) / tau."""
    hessian = torch.func.hessian(softmax(temperature).potential)(torch.zeros(8, dtype=torch.float64))
    expected = (torch.eye(8, dtype=torch.float64) / 8 - 1 / 64) / temperature
    torch.testing.assert_close(hessian, expected, rtol=0, atol=1e-12)


# --- negative controls: what one would write first fails what ours passes -----------------------------------


def test_softplus_by_log1p_and_abs_has_no_slope_at_0() -> None:
    """Trap of item 1: blank rows and fresh biases make u = 0 common."""
    trap = summed(lambda u: F.relu(u) + torch.log1p(torch.exp(-u.abs())))
    assert not slope_is_right(trap, torch.sigmoid)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert derivatives(trap, zero)[1] == 0
    assert derivatives(SIGMOID.potential, zero)[1].item() == pytest.approx(0.5, rel=1e-14)


def test_torch_softplus_is_off_above_its_threshold() -> None:
    """Trap of item 1: the identity from 20 on."""
    assert not slope_is_right(summed(F.softplus), torch.sigmoid)
    u = torch.tensor([20.01], dtype=torch.float64)
    assert F.softplus(u) - SIGMOID.potential(u) < -1e-9


def test_logaddexp_has_no_second_derivative_far_out() -> None:
    """Trap of items 3 and 4."""
    trap = summed(lambda u: torch.logaddexp(u, torch.zeros_like(u)))
    assert slope_is_right(trap, torch.sigmoid)  # nothing to see at first order
    assert not survives_float32(trap)
    assert survives_float32(SIGMOID.potential)


def test_log_of_1_plus_exp_overflows() -> None:
    """Trap of item 3."""
    assert torch.log(1 + torch.exp(torch.tensor(89.0))).isinf()
    assert not survives_float32(summed(lambda u: torch.log(1 + torch.exp(u))))


def test_where_without_clamp_sends_nan_gradients() -> None:
    """Trap of item 3: the branch that is not taken overflows, and 0 * inf is NaN."""
    trap = summed(lambda u: torch.where(u > 0, u.square() / 2, torch.expm1(u) - u))
    u = torch.full((1, 1), 1e4)
    assert torch.isfinite(trap(u)).all()
    assert derivatives(trap, u)[1].isnan().all()
    assert not survives_float32(trap)
    assert survives_float32(ACTIVATIONS["elu"].potential)


def test_softsign_by_abs_loses_its_curvature_at_0() -> None:
    """Trap of item 4."""
    trap = summed(lambda u: u.abs() - torch.log1p(u.abs()))
    assert slope_is_right(trap, F.softsign)
    assert curvature_at_0(trap) == 0
    assert curvature_at_0(ACTIVATIONS["softsign"].potential) == pytest.approx(1, rel=1e-14)


# --- the attributes ----------------------------------------------------------------------------------------


@each_activation
def test_bounds_hold_the_values(activation: Activation) -> None:
    values = activation.f(in_rows(POINTS))
    assert values.min() >= activation.bounds[0] - 1e-12  # some are attained
    assert values.max() <= activation.bounds[1] + 1e-12


@each_elementwise
def test_slope_min_is_the_least_slope(name: str) -> None:
    """Column inf h' of the table; a bound that is far too low would make steps needlessly small."""
    activation = ELEMENTWISE[name]
    u = POINTS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(activation.f(u).sum(), u)
    assert slope.min() >= activation.slope_min - 1e-12
    if math.isfinite(activation.slope_min):
        assert slope.min() <= activation.slope_min + 2e-3


@pytest.mark.parametrize("name", SOFTMAX_CONSTANTS)
def test_the_jacobian_of_softmax_is_symmetric_and_positive(name: str) -> None:
    activation = ALL_ACTIVATIONS[name]
    u = in_rows(torch.linspace(-3, 3, 20, dtype=torch.float64)) * 2
    J = torch.func.vmap(torch.func.jacrev(activation.f))(u)
    torch.testing.assert_close(J, J.mT, rtol=0, atol=1e-14)
    assert torch.linalg.eigvalsh(J).min() >= activation.slope_min - 1e-12


@each_activation
def test_the_potential_is_convex_exactly_when_the_activation_is_monotone(activation: Activation) -> None:
    generator = torch.Generator().manual_seed(0)
    u, w = 4 * torch.randn(2, 2000, 8, generator=generator, dtype=torch.float64)
    gap = (activation.potential(u) + activation.potential(w)) / 2 - activation.potential((u + w) / 2)
    assert bool((gap >= -1e-12).all()) == activation.monotone


@each_activation
def test_activations_pickle(activation: Activation) -> None:
    """Models travel between processes: no lambdas anywhere."""
    copy = pickle.loads(pickle.dumps(activation))
    assert copy.name == activation.name
    u = in_rows(POINTS)
    assert torch.equal(copy.f(u), activation.f(u))
    assert torch.equal(copy.potential(u), activation.potential(u))


# --- output activations ---------------------------------------------------------------------------------------


@pytest.fixture
def p() -> Tensor:
    return 3 * torch.randn(200, 5, dtype=torch.float64)


@pytest.fixture
def v() -> Tensor:
    return 0.001 + 0.998 * torch.rand(200, 5, dtype=torch.float64)


@each_output
def test_the_inverse_undoes_the_activation(output: OutputActivation, p: Tensor) -> None:
    torch.testing.assert_close(output.inverse(output.f(p)), p, rtol=1e-10, atol=1e-12)


@each_output
def test_the_gradient_of_the_conjugate_is_the_inverse(output: OutputActivation, v: Tensor) -> None:
    gradient = torch.func.grad(lambda v: output.conjugate(v).sum())(v)
    torch.testing.assert_close(gradient, output.inverse(v), rtol=1e-12, atol=1e-12)


@each_output
def test_the_conjugate_is_convex(output: OutputActivation, v: Tensor) -> None:
    w = v.flip(0)
    assert ((output.conjugate(v) + output.conjugate(w)) / 2 >= output.conjugate((v + w) / 2) - 1e-12).all()


@each_output
def test_the_divergence_is_fenchel_young(output: OutputActivation, p: Tensor, v: Tensor) -> None:
    expected = output.potential(p) + output.conjugate(v) - (v * p).sum(-1)
    torch.testing.assert_close(output.divergence(p, v), expected, rtol=1e-12, atol=1e-12)


@each_output
def test_the_divergence_is_0_only_where_the_target_is_met(output: OutputActivation, p: Tensor, v: Tensor) -> None:
    """At least |v - f(p)|^2 / (2 Lipschitz constant of f), and 0 at v = f(p)."""
    lipschitz = {"linear": 1, "sigmoid": 1 / 4}[output.name]
    least = (v - output.f(p)).square().sum(-1) / (2 * lipschitz)
    assert least.min() > 1e-3
    assert (output.divergence(p, v) >= least - 1e-12).all()
    assert output.divergence(p, output.f(p)).abs().max() <= 1e-12


def test_cross_entropy_is_finite_at_binary_targets_and_huge_logits() -> None:
    p, v = torch.tensor([[1e4, -1e4, 30.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    assert float(SIGMOID.divergence(p, v)) == pytest.approx(30 + math.log(2), rel=1e-6)


def test_the_entropy_is_0_at_the_corners_and_excludes_what_lies_outside() -> None:
    """Item 7: entr has no NaN at 0 and 1; a value outside [0, 1] has energy minus infinity."""
    assert SIGMOID.conjugate(torch.tensor([0.0, 1.0])) == 0
    assert SIGMOID.conjugate(torch.tensor([0.5, 1.5])) == math.inf


# --- what is refused -----------------------------------------------------------------------------------------


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"one of sigmoid, tanh.*got 'sigmod'. Did you mean 'sigmoid'\?"):
        as_activation("sigmod")
    with pytest.raises(InputError, match=r"got 'zzz'\.$"):
        as_activation("zzz")


def test_an_activation_passes_through_the_lookup() -> None:
    assert as_activation("tanh") is ACTIVATIONS["tanh"]
    assert as_activation(ACTIVATIONS["tanh"]) is ACTIVATIONS["tanh"]
    assert as_output("sigmoid") is SIGMOID


def test_an_activation_without_inverse_cannot_be_the_output() -> None:
    with pytest.raises(InputError, match="sigmoid or linear; got 'tanh'"):
        as_output("tanh")


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (leaky, {"alpha": math.nan}, "`alpha` must be a finite number"),
        (leaky, {"alpha": math.inf}, "`alpha` must be a finite number"),
        (elu, {"alpha": -0.1}, "`alpha` .* at least 0; got -0.1"),
        (elu, {"alpha": math.inf}, "`alpha` .* at least 0; got inf"),
        (softshrink, {"threshold": -1.0}, "`threshold` .* at least 0; got -1.0"),
        (softmax, {"temperature": 0.0}, "`temperature` .* above 0; got 0.0"),
        (softmax, {"temperature": math.nan}, "`temperature` .* above 0; got nan"),
        (softmax, {"group_size": 0}, "`group_size` must be"),
        (softmax, {"group_size": 2.0}, "`group_size` must be"),
    ],
)
def test_bad_options_are_refused(build: Callable[..., Activation], options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**options)


def test_groups_must_divide_the_hidden_units() -> None:
    with pytest.raises(InputError, match="that 3 divides; got 8"):
        softmax(group_size=3).f(torch.zeros(2, 8))


@pytest.mark.parametrize("name", ["tanh", "silu", "softmax"])
def test_a_weight_counts_in_values_and_potential_alike(name: str) -> None:
    plain, heavy = ACTIVATIONS[name], weighted(ACTIVATIONS[name], 0.4)
    u = torch.linspace(-3, 3, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    torch.testing.assert_close(heavy.potential(u), 0.4 * plain.potential(u))
    (slope,) = torch.autograd.grad(heavy.potential(u).sum(), u)
    torch.testing.assert_close(heavy.f(u), slope)
    assert heavy.bounds == (0.4 * plain.bounds[0], 0.4 * plain.bounds[1])
