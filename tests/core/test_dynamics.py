"""The auto-encoder as a dynamical system: conservativeness, line integrals, and ascent along trajectories."""

import math
import re

import pytest
import torch
from cases import (
    ALL_ACTIVATIONS,
    UNITS,
    VISIBLE,
    C,
    D,
    F,
    K,
    M,
    N,
    TrunkWithHeads,
    gradient_error,
    random_context,
    random_model,
    random_rows,
)
from torch import Tensor

from energate.activations import leaky
from energate.autoencoder import Autoencoder
from energate.conservative import (
    EXACT_WIDTH,
    affine_asymmetry,
    check_conservative,
    jacobian_asymmetry,
    line_integral,
)
from energate.dynamics import DIVERGED, curvature_bound, trajectory
from energate.errors import InputError
from energate.rbm import to_rbm
from energate.units import (
    CovarianceUnits,
    GatedUnits,
    HiddenUnits,
    MeanUnits,
    NetworkUnits,
    SymmetricGatedUnits,
    project,
)

MONOTONE = [name for name, activation in ALL_ACTIVATIONS.items() if activation.monotone]
SMOOTH = ["sigmoid", "tanh", "softplus", "silu", "gelu", "sin", "square", "softmax"]
N_LABELS = 9

each_units = pytest.mark.parametrize("case", UNITS, ids=lambda case: case.name)
each_visible = pytest.mark.parametrize("visible", VISIBLE)
each_monotone = pytest.mark.parametrize("name", MONOTONE)


def normal(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def worst_drop(energies: Tensor) -> float:
    """The largest decrease between steps (T + 1, K, N), relative to 1 + |E|; 0 or less where E never falls."""
    return ((energies[:-1] - energies[1:]) / (1 + energies[:-1].abs())).max().item()


def assert_same_way(steps: Tensor, others: Tensor) -> None:
    """Equal numbers of steps; a row whose last gain is the tolerance, to rounding, may take one more."""
    difference = (steps - others).abs()
    assert difference.max() <= 1
    assert difference.sum() <= 1


class UntiedUnits(HiddenUnits):
    """``u = W v + b``, decoded by a matrix R of its own."""

    def __init__(self, n_models: int = K, width: int = D) -> None:
        super().__init__(n_models, width, M)
        self.W, self.R, self.b = self.weight(M, width), self.weight(M, width), self.bias(M)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        return project(v, self.W) + self.b.unsqueeze(1), None

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return h @ self.R


class TwoFilterUnits(HiddenUnits):
    """``u = W_h((W_x v) * (W_y v)) + b``: gated units whose two inputs are the same v, with different weights."""

    repeats = 2

    def __init__(self, symmetrised: bool) -> None:
        super().__init__(K, D, M)
        self.W_x, self.W_y, self.W_h = self.weight(F, D), self.weight(F, D), self.weight(M, F)
        self.b = self.bias(M)
        self.symmetrised = symmetrised

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q_x, q_y = project(v, self.W_x), project(v, self.W_y)
        return project(q_x * q_y, self.W_h) + self.b.unsqueeze(1), (q_x, q_y)

    def decode(self, h: Tensor, carry: tuple[Tensor, Tensor]) -> Tensor:
        q_x, q_y = carry
        g = h @ self.W_h
        y_side = (q_x * g) @ self.W_y
        return (y_side + (q_y * g) @ self.W_x) / 2 if self.symmetrised else y_side


def covariance_model(visible: str = "linear", width: int = D, scale: float = 0.5, seed: int = 0) -> Autoencoder:
    """One covariance auto-encoder with W_h of both signs, more of it negative, so that step 1 overshoots."""
    model = random_model([CovarianceUnits(1, width, F, M)], visible, seed, scale)
    with torch.no_grad():
        model.groups[0].W_h.sub_(scale / 2)
    return model


# --- Poincare's criterion: kappa ----------------------------------------------------------------------------


def untied_affine() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    W, R, b = normal(M, D, seed=10), normal(D, M, seed=11), normal(M, seed=12)
    return W, R, b, random_rows() / 2


def test_affine_asymmetry_equals_that_of_the_explicit_jacobian() -> None:
    """Theory item 9."""
    W, R, b, v = untied_affine()
    slope = 1 - torch.tanh(v @ W.T + b).square()
    J = torch.einsum("im,nm,mj->nij", R, slope, W)
    expected = ((J - J.mT) / 2).square().sum((-1, -2)) / J.square().sum((-1, -2))
    assert (expected > 0.1).all()
    assert (affine_asymmetry(W, R, slope) - expected).abs().max() <= 1e-12
    by_vjp = jacobian_asymmetry(lambda v: torch.tanh(v @ W.T + b) @ R.T, v, method="exact")
    assert (by_vjp - expected).abs().max() <= 1e-12


def test_a_decoder_tied_up_to_a_factor_per_hidden_unit_is_conservative() -> None:
    """Theory item 9: R = W^T diag(l), any real l, has the potential sum l_k H(u_k)."""
    W, _, b, v = untied_affine()
    factors = torch.linspace(-1.5, 2, M, dtype=torch.float64)
    slope = 1 - torch.tanh(v @ W.T + b).square()
    assert affine_asymmetry(W, W.T * factors, slope).abs().max() <= 1e-12

    def energy(v: Tensor) -> Tensor:
        return (factors * torch.log(torch.cosh(v @ W.T + b))).sum(-1) - v.square().sum(-1) / 2

    assert gradient_error(energy, lambda v: torch.tanh(v @ W.T + b) @ (W.T * factors).T - v, v) <= 1e-12


def test_linear_hidden_units_only_need_a_symmetric_product_of_decoder_and_encoder() -> None:
    """Theory item 9: the exception for constant f', which is gone as soon as f' varies."""
    W, _, b, v = untied_affine()
    S = normal(D, D)
    R = (S + S.T) @ torch.linalg.pinv(W)  # R W = S + S^T, and R is no diag(l) times W^T
    assert affine_asymmetry(W, R, torch.ones(N, M, dtype=torch.float64)).abs().max() <= 1e-12
    assert affine_asymmetry(W, R, 1 - torch.tanh(v @ W.T + b).square()).min() >= 1e-3


def test_the_estimate_of_the_asymmetry_approaches_the_exact_value() -> None:
    """Theory item 9: E |Jz - J^T z|^2 = 4 |A|^2 for Rademacher z."""
    model, v = random_model([UntiedUnits()]), random_rows()
    exact = jacobian_asymmetry(model, v, method="exact")
    generator = torch.Generator().manual_seed(0)
    estimate = jacobian_asymmetry(model, v, method="estimate", n_probes=3000, generator=generator)
    assert exact.shape == estimate.shape == (K, N)
    assert (estimate / exact - 1).abs().max() <= 0.1
    assert (estimate / exact - 1).abs().mean() <= 0.02


def test_the_conditional_reconstruction_of_y_is_not_conservative_in_x() -> None:
    """E05: the Jacobian of r(y|x) in x need not be symmetric, and is not."""
    model = random_model([GatedUnits(1, D, D, F, M)])
    y = random_rows()
    kappa = jacobian_asymmetry(lambda x: model.reconstruct(y, x)[0], random_rows(seed=3))
    assert kappa.min() >= 0.1
    assert jacobian_asymmetry(model, y, random_rows(seed=3)).max() <= 1e-24


def test_jacobian_asymmetry_refuses_an_unknown_method() -> None:
    with pytest.raises(InputError, match=r"method.*'guess'"):
        jacobian_asymmetry(UNITS[0].model(), random_rows(), method="guess")


# --- line integrals -----------------------------------------------------------------------------------------


def curved(model: Autoencoder, start: Tensor, end: Tensor, bend: float = 1.0):
    """A C1 path from start to end in the domain of the outputs, curved by two sine waves."""
    wave, ripple = bend * normal(len(start), seed=20), bend * normal(len(start), seed=21) / 3

    def path(s: Tensor) -> Tensor:
        s = s.unsqueeze(-1)
        straight = model.visible.inverse(start) * (1 - s) + model.visible.inverse(end) * s
        return model.visible.f(straight + torch.sin(math.pi * s) * wave + torch.sin(3 * math.pi * s) * ripple)

    return path


@each_visible
@pytest.mark.parametrize("activation", SMOOTH)
@each_units
def test_the_integral_along_curved_paths_is_the_difference_in_energy(case, activation, visible) -> None:
    """Theory item 15."""
    model, v, c = case.model(activation, visible), random_rows(visible), random_context(case)
    c = None if c is None else c[:1]
    with torch.no_grad():
        energy = model.energy(v[:2], None if c is None else c.expand(2, -1))
        for bend in (0.3, 1.0):
            integral = line_integral(model, curved(model, v[0], v[1], bend), c)
            assert integral.shape == (K,)
            difference = energy[:, 1] - energy[:, 0]
            assert ((integral - difference).abs() <= 1e-10 * (1 + difference.abs())).all()


def circle(s: Tensor) -> Tensor:
    s = 2 * math.pi * s.unsqueeze(-1)
    return 0.3 + torch.cos(s) * normal(D, seed=22) + torch.sin(s) * normal(D, seed=23)


@each_units
def test_closed_loops_integrate_to_zero(case) -> None:
    """Theory item 15."""
    c = random_context(case)
    integral = line_integral(case.model(), circle, None if c is None else c[:1])
    assert integral.abs().max() <= 1e-10


def test_the_loop_integral_of_an_untied_decoder_is_not_zero() -> None:
    """Trap of theory item 15."""
    assert line_integral(random_model([UntiedUnits()]), circle).abs().min() >= 1e-2


KINKS = {"relu": [0], "leaky(0.3)": [0], "modulus": [0], "hardtanh": [-1, 1], "hardsigmoid": [-3, 3]}
KINKS |= {"softshrink": [-0.5, 0.5], "softshrink(1.5)": [-1.5, 1.5]}


@pytest.mark.parametrize("name", KINKS)
def test_kinked_activations_integrate_exactly_when_the_path_is_split_at_the_kinks(name) -> None:
    """Theory item 15: the integrand is a polynomial between corners, so few nodes are exact."""
    model = random_model([MeanUnits(1, D, M, ALL_ACTIVATIONS[name])], scale=1.0)
    start, end = random_rows(n_rows=2) * 2
    units = model.groups[0]
    with torch.no_grad():
        u_start, u_end = units.preactivation(torch.stack([start, end]), None)[0][0]
        crossings = torch.cat([(kink - u_start) / (u_end - u_start) for kink in KINKS[name]])
        s = crossings[(crossings > 0) & (crossings < 1)].sort().values
        assert len(s) >= 2
        s = torch.cat([torch.zeros(1).to(s), s, torch.ones(1).to(s)]).unsqueeze(-1)
        energy = model.energy(torch.stack([start, end]))[0]
        expected = energy[1] - energy[0]
        split = line_integral(model, start + s * (end - start), n_nodes=4)
        whole = line_integral(model, torch.stack([start, end]), n_nodes=4)
    assert (split - expected).abs().item() <= 1e-10
    assert (whole - expected).abs().item() > 1e-6


def test_line_integral_takes_functions_and_corners() -> None:
    """The rotation field (-y, x) around the unit square counts twice its area; a gradient field counts 0."""
    square = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]], dtype=torch.float64)
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    assert line_integral(lambda v: v @ rotation, square, n_nodes=3).item() == pytest.approx(2, abs=1e-13)
    assert line_integral(lambda v: v, square, n_nodes=3).item() == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("shape", [(D,), (1, D), (2, 2, D)])
def test_line_integral_refuses_corners_of_a_wrong_shape(shape) -> None:
    with pytest.raises(InputError, match=re.escape(f"at least 2 corners; got {shape}")):
        line_integral(UNITS[0].model(), torch.zeros(shape, dtype=torch.float64))


# --- monotone ascent, linear outputs ------------------------------------------------------------------------


@each_monotone
def test_monotone_activations_never_lose_energy_below_step_2(name) -> None:
    """Theory item 16, E01: reconstruction raises the energy, for any weights."""
    for case in UNITS[:2]:  # mean and gated: u is affine in v
        v, c = random_rows(), random_context(case)
        for scale in (0.5, 1.0, 3.0):
            model = random_model([case.build(ALL_ACTIVATIONS[name])], scale=scale)
            for step in (0.3, 1.0, 1.9):
                result = trajectory(model, v, c, step=step, max_steps=40, tolerance=0.0)
                assert worst_drop(result.energies) <= 1e-12
                moved = result.n_steps > 0  # linear units with large weights may run off at once
                assert (result.energies[1] > result.energies[0])[moved].all()


@each_monotone
def test_one_reconstruction_gains_at_least_half_its_squared_length(name) -> None:
    """Theory item 17."""
    for case in UNITS[:2]:
        v, c = random_rows(), random_context(case)
        for scale in (0.5, 1.0):
            model = random_model([case.build(ALL_ACTIVATIONS[name])], scale=scale)
            with torch.no_grad():
                r = model.reconstruct(v, c)
                gain = model.energy(r, c) - model.energy(v, c)
            assert (gain - (r - v).square().sum(-1) / 2).min() >= -1e-10


@pytest.mark.parametrize("name", ["square", "sin", "modulus"])
def test_activations_that_are_not_monotone_can_gain_less_than_that(name) -> None:
    """Trap of theory item 17."""
    model, v = random_model([MeanUnits(K, D, M, name)]), random_rows()
    with torch.no_grad():
        model.groups[0].b.sub_(1.5)  # where these activations fall
        r = model.reconstruct(v)
        gain = model.energy(r) - model.energy(v)
    assert (gain - (r - v).square().sum(-1) / 2).min() < -1


def test_steps_beyond_2_lose_energy_even_without_weights() -> None:
    """Trap of theory item 17: step 2.1."""
    model, v = random_model([MeanUnits(K, D, M)], scale=0.0), random_rows()
    for step, sign in ((1.9, 1), (2.1, -1)):
        energies = trajectory(model, v, step=step, max_steps=1).energies
        assert (sign * (energies[1] - energies[0]) > 1e-3).all()
    assert not trajectory(model, v, step=2.1, max_steps=5).converged.any()  # a falling energy has not settled


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softmax", "hardtanh", "erf", "probit", "softsign"])
def test_bounded_activations_keep_iterates_in_a_ball_and_settle(name) -> None:
    """Theory section 8: |r| <= |a| + sum of the lengths of the rows of J_u, and the residual goes to 0."""
    for case in UNITS[:2]:
        model, v, c = case.model(name), 1e3 * random_rows(), random_context(case)
        units = model.groups[0]
        with torch.no_grad():
            if case.context:
                gate = project(c, units.W_x).unsqueeze(-1) * units.W_y.unsqueeze(1)  # (K, N, F, D)
                rows = (units.W_h.unsqueeze(1) @ gate).norm(dim=-1)  # (K, N, M)
            else:
                rows = units.W.norm(dim=-1).unsqueeze(1)  # (K, 1, M)
            radius = model.a.norm(dim=-1).unsqueeze(1) + rows.sum(-1)
            result = trajectory(model, v, c, step=1.0, max_steps=2000, tolerance=0.0, keep_path=True)
            assert (result.path[0].norm(dim=-1) > radius).any()
            assert (result.path[1:].norm(dim=-1) <= radius * (1 + 1e-12)).all()
            assert (model.reconstruct(result.points, c) - result.points).abs().max() <= 1e-6


# --- monotone ascent where step 1 is too long ---------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_covariance_units_climb_with_steps_below_2_over_1_plus_curvature(activation, scale) -> None:
    """Theory item 18."""
    for seed in range(3):
        model, v = covariance_model(scale=scale, seed=seed), random_rows()
        model.groups[0].activation = ALL_ACTIVATIONS[activation]
        L = curvature_bound(model).item()
        assert worst_drop(trajectory(model, v, step=1.9 / (1 + L), max_steps=60, tolerance=0.0).energies) <= 1e-12


def test_covariance_units_with_weights_of_both_signs_fall_with_step_1() -> None:
    """Trap of theory item 18."""
    assert worst_drop(trajectory(covariance_model(), random_rows(), step=1.0).energies) > 0.1


def test_covariance_units_with_positive_weights_climb_with_step_1() -> None:
    """Theory item 18: no negative curvature where W_h >= 0."""
    model, v = covariance_model(scale=0.3), random_rows() / 3
    with torch.no_grad():
        model.groups[0].W_h.abs_()
    assert curvature_bound(model).item() == 0
    for step in (1.0, 1.9):
        energies = trajectory(model, v, step=step, max_steps=60, tolerance=0.0).energies
        assert worst_drop(energies) <= 1e-12
        assert (energies[-1] > energies[0]).all()


@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0])
def test_alternating_updates_of_symmetric_units_climb_with_step_1(scale) -> None:
    """Theory item 18: y <- r(y|x), x <- r(x|y)."""
    model = random_model([SymmetricGatedUnits(K, D - C, C, F, M)], scale=scale)
    v = random_rows().expand(K, N, D)
    with torch.no_grad():
        energies = [model.energy(v)]
        for _ in range(30):
            for half in (slice(C, D), slice(0, C)):
                v = v.clone()
                v[..., half] = model.reconstruct(v)[..., half]
                energies.append(model.energy(v))
            if v.abs().max() > 1e4:
                break
    assert worst_drop(torch.stack(energies)) <= 1e-12
    assert (energies[-1] > energies[0]).all()


def test_simultaneous_updates_of_symmetric_units_fall_with_step_1_but_not_with_the_automatic_step() -> None:
    """Trap of theory item 18."""
    model = random_model([SymmetricGatedUnits(K, D - C, C, F, M)], seed=1)
    assert worst_drop(trajectory(model, random_rows(), step=1.0, tolerance=0.0).energies) > 0.1
    assert worst_drop(trajectory(model, random_rows(), step="auto", tolerance=0.0).energies) <= 1e-12


# --- the curvature bound ------------------------------------------------------------------------------------


def least_eigenvalue(model: Autoencoder, v: Tensor, c: Tensor | None) -> Tensor:
    """The least eigenvalue of the Hessian of G = E + Phi*_out at every row: (K, N)."""

    def G(row: Tensor, context: Tensor | None) -> Tensor:
        return model.relative_energy(row.unsqueeze(0), None if context is None else context.unsqueeze(0))[:, 0]

    hessian = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(G)), in_dims=(0, None if c is None else 0))
    return torch.linalg.eigvalsh(hessian(v, c).detach())[..., 0].T


@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
@pytest.mark.parametrize("case", UNITS[:5], ids=lambda case: case.name)
def test_no_hessian_is_more_negative_than_the_curvature_bound(case, name) -> None:
    """Theory section 8: the constant L of every kind of units that has one."""
    for scale in (0.3, 0.8):
        model = random_model([case.build(ALL_ACTIVATIONS[name])], scale=scale)
        v, c = torch.cat([random_rows(n_rows=30), 0.1 * random_rows(n_rows=30)]), random_context(case, n_rows=60)
        bound = curvature_bound(model, c)
        affine = case.name in ("mean", "gated")
        activation = ALL_ACTIVATIONS[name]
        if affine:
            assert (bound is None) == (name == "square")
        else:
            assert (bound is None) != (activation.monotone and math.isfinite(sum(map(abs, activation.bounds))))
        if bound is not None:
            slack = 1e-9 * (1 + bound)
            assert (least_eigenvalue(model, v, c) >= -bound - slack).all()
            if affine and activation.monotone:
                assert (bound == 0).all()


@pytest.mark.parametrize("name", ["silu", "gelu", "sin", "modulus"])
def test_the_curvature_bound_is_attained_by_a_single_hidden_unit(name) -> None:
    """Theory section 8: L = -inf f' |W|^2 is the best constant."""
    model = random_model([MeanUnits(1, D, 1, name)])
    units = model.groups[0]
    with torch.no_grad():
        W, b = units.W[0, 0], units.b[0]
        u = torch.linspace(-5, 5, 1001, dtype=torch.float64).unsqueeze(1)
        v = (u - b) * W / W.square().sum()
        bound = curvature_bound(model).item()
    least = least_eigenvalue(model, v, None).min().item()
    assert bound > 0
    assert -bound * (1 + 1e-12) <= least <= -0.998 * bound  # attained, to rounding


def test_curvature_bounds_equal_their_formulas() -> None:
    """Theory section 8, from the raw weights."""
    covariance = random_model([CovarianceUnits(1, D, F, M)])
    W, W_h = covariance.groups[0].W[0].detach(), covariance.groups[0].W_h[0].detach()
    for activation, n in (("sigmoid", (-W_h).clamp(min=0).sum(0)), ("tanh", W_h.abs().sum(0))):
        covariance.groups[0].activation = ALL_ACTIVATIONS[activation]
        largest = torch.linalg.eigvalsh(W.T @ torch.diag(n) @ W)[-1].item()
        assert curvature_bound(covariance).item() == pytest.approx(largest, rel=1e-12)
        covariance.groups[0].repeats = 1  # twice the decoder, twice the curvature
        assert curvature_bound(covariance).item() == pytest.approx(2 * largest, rel=1e-12)
        covariance.groups[0].repeats = 2
    joint = random_model([SymmetricGatedUnits(1, D - C, C, F, M)]).groups[0]
    norms = [torch.linalg.svdvals(W[0].detach())[0].item() for W in (joint.W_x, joint.W_y)]
    expected = norms[0] * norms[1] * joint.W_h[0].abs().sum(0).max().item()
    assert curvature_bound(Autoencoder(joint)).item() == pytest.approx(expected, rel=1e-12)


def test_groups_of_units_add_their_curvatures() -> None:
    mean, covariance, gated = MeanUnits(K, D, M, "sin"), CovarianceUnits(K, D, F, M), GatedUnits(K, D, C, F, M, "silu")
    model, c = random_model([mean, covariance, gated]), normal(N, C)
    parts = [curvature_bound(Autoencoder(units), c) for units in (mean, covariance, gated)]
    assert [tuple(part.shape) for part in parts] == [(K, 1), (K, 1), (K, N)]
    assert torch.allclose(curvature_bound(model, c), sum(parts), rtol=1e-12)
    assert curvature_bound(random_model([mean, MeanUnits(K, D, M, "square")])) is None  # one without a bound spoils it


@pytest.mark.parametrize(
    "units",
    [
        MeanUnits(K, D, M, "square"),
        CovarianceUnits(K, D, F, M, "silu"),
        SymmetricGatedUnits(K, D - C, C, F, M, "relu"),
        NetworkUnits(TrunkWithHeads(), D),
    ],
    ids=["square", "covariance", "symmetric", "network"],
)
@each_visible
def test_units_without_a_bound_are_backtracked_and_climb(units, visible) -> None:
    """Theory section 8: Armijo's rule where no constant L is known."""
    model, v = random_model([units], visible, scale=0.6), random_rows(visible)
    assert curvature_bound(model) is None
    automatic = trajectory(model, v, step="auto", max_steps=50)
    assert worst_drop(automatic.energies) <= 1e-12
    assert (automatic.energies[-1] > automatic.energies[0]).all()
    assert torch.equal(automatic.points, trajectory(model, v, step="backtrack", max_steps=50).points)


def test_backtracking_climbs_where_step_1_falls() -> None:
    """Theory section 8."""
    model, v = covariance_model(), random_rows()
    assert worst_drop(trajectory(model, v, step=1.0).energies) > 0.1
    result = trajectory(model, v, step="backtrack")
    assert worst_drop(result.energies) <= 1e-12
    assert (result.energies[-1] > result.energies[0]).all()


# --- label refinement: sigmoid outputs over y in [0, 1]^L ---------------------------------------------------


def gated_labels(scale: float = 1.0) -> tuple[Autoencoder, Tensor, Tensor]:
    """A model of labels given x, 20 rows of labels and of x."""
    model = random_model([GatedUnits(1, N_LABELS, 5, F, M)], "sigmoid", scale=scale)
    return model, random_rows("sigmoid", N_LABELS, 20), random_rows(width=5, n_rows=20, seed=3)


@pytest.mark.parametrize("step", [1.0, 0.5])
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_refining_labels_given_x_climbs(step, scale) -> None:
    """Theory item 22."""
    model, y, x = gated_labels(scale)
    result = trajectory(model, y, x, step=step, tolerance=0.0)
    assert worst_drop(result.energies) <= 1e-11
    assert (result.energies[-1] > result.energies[0]).all()
    assert ((result.points > 0) & (result.points < 1)).all()


def test_refining_labels_given_x_gains_at_least_the_divergence_of_the_step() -> None:
    """Theory section 8: E(y+) - E(y) >= KL(y || y+) with step 1."""
    model, y, x = gated_labels()
    with torch.no_grad():
        new = model.reconstruct(y, x)
        gain = model.energy(new, x) - model.energy(y, x)
        divergence = (y * (y / new).log() + (1 - y) * ((1 - y) / (1 - new)).log()).sum(-1)
    assert (gain - divergence).min() >= -1e-10


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_refining_labels_with_covariance_units_climbs_with_step_4_over_4_plus_curvature(scale) -> None:
    """Theory item 22; step 1 falls, which is its trap."""
    model, y = covariance_model("sigmoid", N_LABELS, scale, seed=3), random_rows("sigmoid", N_LABELS, 20)
    L = curvature_bound(model).item()
    result = trajectory(model, y, step=4 / (4 + L), tolerance=0.0)
    assert worst_drop(result.energies) <= 1e-11
    assert (result.energies[-1] > result.energies[0]).all()
    automatic = trajectory(model, y, step="auto", max_steps=9, tolerance=0.0)
    assert torch.allclose(automatic.energies, result.energies[:10], rtol=1e-9)
    if scale > 0.5:
        assert worst_drop(trajectory(model, y, step=1.0, tolerance=0.0).energies) > 1e-2


@pytest.mark.parametrize("step", ["auto", "backtrack", 0.5])
@pytest.mark.parametrize("kind", ["gated", "covariance"])
def test_a_batch_is_refined_like_its_rows_one_by_one(kind, step) -> None:
    """Theory item 22: the same points, energies, step counts and flags."""
    if kind == "gated":
        model, y, x = gated_labels()
    else:
        model, y, x = covariance_model("sigmoid", N_LABELS), random_rows("sigmoid", N_LABELS, 20), None
    batch = trajectory(model, y, x, step=step)
    assert batch.n_steps.unique().numel() > 1  # rows stop at different times
    for row in range(len(y)):
        single = trajectory(model, y[row : row + 1], None if x is None else x[row : row + 1], step=step)
        assert_same_way(single.n_steps[0, 0], batch.n_steps[0, row])
        assert single.converged.item() == batch.converged[0, row].item()
        if single.n_steps.item() == batch.n_steps[0, row].item():
            assert (single.points[0, 0] - batch.points[0, row]).abs().max() <= 1e-10
        assert (single.energies[-1, 0, 0] - batch.energies[-1, 0, row]).abs() <= 1e-9


def test_no_refined_label_vector_exceeds_the_log_partition() -> None:
    """Theory item 22: E(y|x) <= log Z(x) of the twin RBM."""
    model, y, x = gated_labels()
    energies = trajectory(model, y, x).energies[-1, 0]
    machine = to_rbm(model).rbm
    with torch.no_grad():
        log_z = torch.cat([machine.log_partition(row.unsqueeze(0)) for row in x])
    assert (energies <= log_z + 1e-10).all()
    assert (energies > log_z - 1).any()  # and some rows come close


def test_the_minus_sign_of_the_printed_algorithm_loses_energy_on_every_row() -> None:
    """E17, trap of theory item 22."""
    model, y, x = gated_labels()
    with torch.no_grad():
        field = model.vector_field(y, x)
        before = model.energy(y, x)
        assert (model.energy(y + 0.005 * field, x) > before).all()
        assert (model.energy(y - 0.005 * field, x) < before).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", ["auto", "backtrack", 0.5])
def test_refinement_starts_from_hard_labels_without_nan(dtype, step) -> None:
    """Theory item 22: the field is infinite at 0 and 1."""
    model, y, x = gated_labels()
    hard = (y > 0.5).to(dtype)
    result = trajectory(model.to(dtype), hard, x.to(dtype), step=step)
    assert torch.isfinite(result.energies).all()
    assert torch.isfinite(result.points).all()
    assert result.converged.all()
    soft = trajectory(model, hard.clamp(1e-6, 1 - 1e-6), x.to(dtype), step=step)
    assert (result.energies[-1] - soft.energies[-1]).abs().max() <= 1e-4


# --- trajectory: bookkeeping --------------------------------------------------------------------------------


def test_every_row_stops_on_its_own() -> None:
    """E18: a row goes on only while its energy changes and steps are left; each row's steps are counted."""
    model, v = UNITS[0].model(), random_rows()
    settled = trajectory(model.select(0), v, max_steps=5000, tolerance=0.0).points[0]
    v[3] = settled[3]
    result = trajectory(model, v, step=0.5, keep_path=True)
    assert result.n_steps[0, 3] == 1
    assert result.converged.all()
    assert result.n_steps.unique().numel() > 3
    n_total = int(result.n_steps.max())
    assert result.energies.shape == (n_total + 1, K, N)
    for t in range(n_total + 1):  # after its last step a row repeats its last energy and point
        stopped = result.n_steps <= t
        assert torch.equal(result.energies[t][stopped], result.energies[-1][stopped])
        assert torch.equal(result.path[t][stopped], result.points[stopped])
    changes = (result.energies[1:] - result.energies[:-1]).abs() / (1 + result.energies[:-1].abs())
    last = changes.gather(0, (result.n_steps - 1).unsqueeze(0))
    assert (last <= 1e-10).all()
    assert ((changes > 1e-10).sum(0) == result.n_steps - 1).all()


def test_steps_run_out_without_convergence() -> None:
    """E18: both conditions stop a row, and neither flag is raised when steps run out."""
    result = trajectory(UNITS[0].model(), random_rows(), step=0.1, max_steps=3)
    assert (result.n_steps == 3).all()
    assert not result.converged.any()
    assert not result.diverged.any()


@each_visible
def test_the_path_holds_every_point_from_the_start_to_the_end(visible) -> None:
    model, v = UNITS[0].model(visible=visible), random_rows(visible)
    result = trajectory(model, v, step=1.0, max_steps=4, tolerance=0.0, keep_path=True)
    assert result.path.shape == (5, K, N, D)
    assert torch.allclose(result.path[0], v.expand(K, N, D), rtol=0, atol=1e-12)
    assert torch.equal(result.path[-1], result.points)
    with torch.no_grad():
        for t in range(4):
            assert (result.path[t + 1] - model.reconstruct(result.path[t])).abs().max() <= 1e-12
            assert (result.energies[t] - model.energy(result.path[t])).abs().max() <= 1e-12
    assert trajectory(model, v, max_steps=2).path is None


def test_no_steps_leave_the_points_where_they_are() -> None:
    model, v = UNITS[0].model(), random_rows()
    result = trajectory(model, v, max_steps=0)
    assert torch.equal(result.points, v.expand(K, N, D))
    assert (result.energies - model.energy(v).detach()).abs().max() <= 1e-12
    assert not result.n_steps.any()
    assert not result.converged.any()


@pytest.mark.parametrize(("step", "activation"), [("auto", "sin"), ("backtrack", "sin"), (0.7, "sigmoid")])
@pytest.mark.parametrize("case", UNITS[:2], ids=lambda case: case.name)
def test_rows_of_each_model_own_go_where_that_model_alone_takes_them(case, step, activation) -> None:
    model = case.model(activation)
    v, c = normal(K, N, D), normal(K, N, C) if case.context else None
    together = trajectory(model, v, c, step=step)
    for k in range(K):
        alone = trajectory(model.select(k), v[k], None if c is None else c[k], step=step)
        assert_same_way(alone.n_steps[0], together.n_steps[k])
        same = alone.n_steps[0] == together.n_steps[k]
        assert (alone.points[0] - together.points[k])[same].abs().max() <= 1e-10


@pytest.mark.parametrize("step", ["auto", "backtrack", 0.5])
def test_a_model_that_runs_off_is_reported_and_its_points_stay_finite(step) -> None:
    """Theory section 8: monotone does not mean bounded; linear hidden units with large weights."""
    calm, wild = random_model([MeanUnits(1, D, M, "linear")], scale=0.1), UNITS[0].build("linear").double()
    with torch.no_grad():
        wild.W.copy_(calm.groups[0].W)
        wild.W[1] *= 100
    result = trajectory(Autoencoder(wild), random_rows(), step=step, max_steps=1000)
    assert result.diverged[1].all()
    assert not result.converged[1].any()
    assert result.converged[[0, 2]].all()
    assert not result.diverged[[0, 2]].any()
    assert torch.isfinite(result.energies).all()
    assert result.points.abs().max() <= DIVERGED
    assert result.points[1].abs().amax() > 1e2  # stopped on its way out


def test_a_start_that_is_not_finite_counts_as_diverged_and_leaves_other_rows_alone() -> None:
    model, v = UNITS[0].model(), random_rows()
    broken = v.clone()
    broken[2, 0] = math.nan
    result, expected = trajectory(model, broken), trajectory(model, v)
    others = [row for row in range(N) if row != 2]
    assert result.diverged[:, 2].all()
    assert not result.n_steps[:, 2].any()
    assert (result.points[:, others] - expected.points[:, others]).abs().max() <= 1e-12


@pytest.mark.parametrize("step", [0, -0.5, math.nan, math.inf, "fast"])
def test_a_bad_step_is_refused(step) -> None:
    with pytest.raises(InputError, match=f"`step` must be .*got '?{step}'?"):
        trajectory(UNITS[0].model(), random_rows(), step=step)


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(InputError, match="`max_steps` must be at least 0; got -1"):
        trajectory(UNITS[0].model(), random_rows(), max_steps=-1)


def test_a_missing_context_is_refused_with_the_message_of_the_model() -> None:
    with pytest.raises(InputError, match="takes a context"):
        trajectory(UNITS[1].model(), random_rows())


# --- check_conservative -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["sigmoid", "relu", "square", "softmax"])
@each_visible
@each_units
def test_every_kind_of_units_passes_the_check(case, visible, activation, dtype) -> None:
    """Theory items 8 and 15, as a user runs them."""
    model, v, c = case.model(activation, visible).to(dtype), random_rows(visible).to(dtype), random_context(case)
    report = check_conservative(model, v, None if c is None else c.to(dtype))
    exact = dtype == torch.float64
    assert report.n_rows == N
    assert report.asymmetry <= (1e-24 if exact else 1e-10)
    assert report.gradient_error <= (1e-11 if exact else 1e-4)
    assert report.path_error <= (1e-11 if exact and activation != "relu" else 1e-3)
    assert str(report).startswith("conservative: Jacobian asymmetry ")


def test_the_check_refuses_untied_units_with_the_measured_asymmetry() -> None:
    """Trap of theory items 8 and 15, E22."""
    model, v = random_model([UntiedUnits(1)]), random_rows(n_rows=1)
    with pytest.raises(InputError, match=r"not conservative.*share every weight matrix") as error:
        check_conservative(model, v)
    told = float(re.search(r"kappa = ([\d.e-]+)", str(error.value)).group(1))
    assert told == pytest.approx(jacobian_asymmetry(model, v).item(), rel=1e-2)
    assert told > 1e-3
    units = model.groups[0]
    with torch.no_grad():
        units.R.copy_(units.W)  # ties them
    check_conservative(model, v)


def test_the_check_refuses_one_untied_model_among_tied_ones() -> None:
    model = random_model([UntiedUnits()])
    with torch.no_grad():
        model.groups[0].R[:2] = model.groups[0].W[:2]
    with pytest.raises(InputError, match="not conservative"):
        check_conservative(model, random_rows())


@pytest.mark.parametrize("visible", VISIBLE)
@pytest.mark.parametrize(("units", "repeats"), [(MeanUnits(K, D, M), 2), (CovarianceUnits(K, D, F, M), 3)])
def test_the_check_refuses_an_energy_that_counts_units_wrongly(units, repeats, visible) -> None:
    """E11: the field is conservative, but the energy has the wrong coefficient."""
    model = random_model([units], visible)
    units.repeats = repeats
    with pytest.raises(InputError, match=r"gradient differs by [\d.]+ of it.*`repeats`"):
        check_conservative(model, random_rows(visible))


def test_two_filters_on_the_same_input_are_conservative_only_with_the_symmetrised_decoder() -> None:
    """Theory section 5, E05: y = x with W_x and W_y apart."""
    v = random_rows()
    one_sided = random_model([TwoFilterUnits(symmetrised=False)])
    kappa = jacobian_asymmetry(one_sided, v)
    assert 0.2 <= kappa.mean().item() <= 0.5
    with pytest.raises(InputError, match="not conservative"):
        check_conservative(one_sided, v)
    both_sides = random_model([TwoFilterUnits(symmetrised=True)])
    assert check_conservative(both_sides, v).gradient_error <= 1e-11


def test_the_check_judges_plain_functions() -> None:
    A, v = normal(D, D), random_rows()
    report = check_conservative(lambda v: torch.tanh(v @ A) @ A.T, v)
    assert report.gradient_error == 0.0
    assert report.path_error <= 1e-9
    with pytest.raises(InputError, match="not conservative"):
        check_conservative(lambda v: torch.tanh(v @ A), v)


def test_the_check_finds_a_hole_that_symmetric_jacobians_hide() -> None:
    """The vortex (-y, x) / (x^2 + y^2) is locally a gradient, yet integrals depend on the side of the hole."""

    def vortex(v: Tensor) -> Tensor:
        return torch.stack([-v[:, 1], v[:, 0]], -1) / v.square().sum(-1, keepdim=True)

    around = torch.tensor([[-1.0, -0.2], [0.0, 1.5], [1.0, -0.2]], dtype=torch.float64)
    assert jacobian_asymmetry(vortex, around).max() <= 1e-24
    with pytest.raises(InputError, match="depends on the path"):
        check_conservative(vortex, around)
    check_conservative(vortex, around + torch.tensor([0.0, 3.0], dtype=torch.float64))  # the hole lies outside


def test_wide_models_are_checked_by_the_estimate() -> None:
    width = EXACT_WIDTH + 1
    v = random_rows(width=width)
    check_conservative(random_model([MeanUnits(K, width, M)]), v)
    model = random_model([UntiedUnits(1, width)])
    with pytest.raises(InputError, match="not conservative") as error:
        check_conservative(model, v[:1])
    told = float(re.search(r"kappa = ([\d.e-]+)", str(error.value)).group(1))
    estimate = jacobian_asymmetry(model, v[:1], generator=torch.Generator().manual_seed(0)).item()
    exact = jacobian_asymmetry(model, v[:1], method="exact").item()
    assert told == pytest.approx(estimate, rel=5e-3)
    assert told != pytest.approx(exact, rel=5e-3)
    assert told == pytest.approx(exact, rel=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_data_passes_the_check_with_sigmoid_outputs(dtype) -> None:
    """Theory item 7: the field is infinite at 0 and 1, the energy is not."""
    binary = (random_rows() > 0).to(dtype)
    report = check_conservative(UNITS[0].model(visible="sigmoid").to(dtype), binary)
    assert report.gradient_error <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_models_pass_the_check_at_their_own_fixed_points(dtype) -> None:
    """There F is the difference of equals, so |grad E - F| / |F| would be all rounding."""
    model = UNITS[0].model().to(dtype)
    points = trajectory(model, random_rows().to(dtype), step=1.0, max_steps=1000, tolerance=0.0).points
    assert check_conservative(model, points).gradient_error <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["softmax", "tanh"])
def test_exact_models_pass_the_check_where_their_units_saturate(name, dtype) -> None:
    """There the Jacobian is all rounding; in float32 some row must be left that is not saturated."""
    for scale in (3.0, 10.0):
        model, v = random_model([MeanUnits(K, D, M, name)], scale=scale).to(dtype), random_rows().to(dtype)
        check_conservative(model, v)
        for row in v.unsqueeze(1) if dtype == torch.float64 else []:
            check_conservative(model, row)


def test_exact_models_pass_the_check_where_their_units_are_too_steep_to_integrate() -> None:
    """The path error is then one of quadrature: it is reported, and no reason to refuse."""
    model = random_model([GatedUnits(K, D, C, F, M, "tanh")], scale=10.0)
    report = check_conservative(model, random_rows(), random_context(UNITS[1]))
    assert report.path_error > 1e-3
    assert report.gradient_error <= 1e-11


def test_the_tolerance_of_the_check_is_the_callers() -> None:
    model, v = UNITS[3].model(leaky(0.3)), random_rows()
    check_conservative(model, v)
    with pytest.raises(InputError, match="not conservative"):
        check_conservative(model, v, tolerance=1e-18)
