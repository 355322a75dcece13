"""The energy is the potential of the vector field, and the paper's misprints are not (theory items 5-13, 20, 23-25).

Sizes all differ and no bias is 0 (item 25, see cases.py), except where a misprint only has the right shapes for
equal sizes.  Errors are |grad E - F| / |F|; those of the misprints are the sizes that the errata list states.
"""

from collections.abc import Callable
from typing import Any

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
    UnitsCase,
    gradient_error,
    random_context,
    random_model,
    random_rows,
)
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from energate.activations import ACTIVATIONS, Activation
from energate.autoencoder import Autoencoder
from energate.conservative import affine_asymmetry, jacobian_asymmetry
from energate.dynamics import curvature_bound, trajectory
from energate.errors import InputError
from energate.rbm import to_rbm
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, SymmetricGatedUnits, project

GATED = UNITS[1]
SYMMETRIC = UNITS[2]

each_units = pytest.mark.parametrize("case", UNITS, ids=lambda case: case.name)
each_closed_form = pytest.mark.parametrize("case", UNITS[:5], ids=lambda case: case.name)
each_visible = pytest.mark.parametrize("visible", VISIBLE)


def softplus(u: Tensor) -> Tensor:
    return torch.log1p(torch.exp(u))  # plain float64 is accurate enough for |u| < 30


def entropy(v: Tensor) -> Tensor:
    return -(v * v.log() + (1 - v) * torch.log1p(-v)).sum(-1)


def half_square(v: Tensor) -> Tensor:
    return v.square().sum(-1) / 2


def single(units: HiddenUnits | list[HiddenUnits], visible: str = "linear", seed: int = 0) -> Any:
    """One model, its field, and its parameters without the axis of models."""
    model = random_model(units if isinstance(units, list) else [units], visible, seed)
    return model, *({name: p.detach()[0] for name, p in group.named_parameters()} for group in model.groups)


def field_error(energy: Callable[[Tensor], Tensor], model: Autoencoder, v: Tensor, c: Tensor | None = None) -> float:
    return gradient_error(energy, lambda v: model.vector_field(v, c)[0], v)


def jacobians(model: Autoencoder, v: Tensor, c: Tensor | None = None) -> Tensor:
    """Of the pre-output: (K, N, D, D)."""

    def of_row(v: Tensor, c: Tensor | None) -> Tensor:
        return torch.func.jacrev(lambda v: model.preoutput(v[None], None if c is None else c[None])[:, 0])(v)

    return torch.func.vmap(of_row, in_dims=(0, None if c is None else 0), out_dims=1)(v, c)


# --- the energy is exact: items 5, 7, 10, 11, 12, 13, 25 ------------------------------------------------------


def test_no_two_sizes_are_equal() -> None:
    """Item 25: with equal sizes half of the misprints are invisible."""
    assert len({K, N, D, C, F, M, D - C}) == 6  # only K = D - C, which never meet
    assert all((p != 0).all() for case in UNITS for p in case.model().parameters())


@each_visible
@pytest.mark.parametrize("activation", ALL_ACTIVATIONS.values(), ids=ALL_ACTIVATIONS)
@each_units
def test_the_gradient_of_the_energy_is_the_vector_field(case: UnitsCase, activation: Activation, visible: str) -> None:
    """Items 5, 7, 10, 11, 12: rows that all models share, and rows of each model's own."""
    model, c = case.model(activation, visible), random_context(case)
    v = random_rows(visible)
    assert gradient_error(lambda v: model.energy(v, c), lambda v: model.vector_field(v, c).sum(0), v) <= 1e-12
    own = random_rows(visible, n_rows=K * N, seed=3).view(K, N, D)
    assert gradient_error(lambda v: model.energy(v, c), lambda v: model.vector_field(v, c), own) <= 1e-12
    own_c = None if c is None else torch.randn(K, N, C, dtype=torch.float64)
    assert gradient_error(lambda v: model.energy(v, own_c), lambda v: model.vector_field(v, own_c), own) <= 1e-12


@each_visible
@pytest.mark.parametrize(
    ("units", "context"),
    [
        (lambda: [MeanUnits(K, D, 5, "tanh"), CovarianceUnits(K, D, F, M)], False),
        (lambda: [GatedUnits(K, D, C, F, M), MeanUnits(K, D, 5, "relu")], True),
        (lambda: [MeanUnits(K, D, 2), MeanUnits(K, D, 5, "softmax"), GatedUnits(K, D, C, F, M, "sin")], True),
    ],
    ids=["mean-covariance", "gated-mean", "three"],
)
def test_groups_of_units_add_up(units: Callable[[], list[HiddenUnits]], context: bool, visible: str) -> None:
    """Item 13, first version: one auto-encoder with a shared reconstruction."""
    model, c = random_model(units(), visible), random_context(GATED) if context else None
    own = random_rows(visible, n_rows=K * N).view(K, N, D)
    assert gradient_error(lambda v: model.energy(v, c), lambda v: model.vector_field(v, c), own) <= 1e-12


@each_units
def test_float32_gradients_are_exact_to_rounding(case: UnitsCase) -> None:
    """Item 5."""
    model, c, v = case.model().float(), random_context(case), random_rows().expand(K, -1, -1).float()
    c = None if c is None else c.float()
    assert gradient_error(lambda v: model.energy(v, c), lambda v: model.vector_field(v, c), v) <= 2e-6


def column_formulas(case: UnitsCase, P: dict[str, Tensor], x: Tensor, c: Tensor | None) -> tuple[Tensor, Any, float]:
    """Pre-activation, decoder and coefficient of the energy for one row, as the theory writes them."""
    if case.name == "mean":
        return P["W"] @ x + P["b"], lambda h: P["W"].T @ h, 1
    if case.name == "gated":
        gate = P["W_x"] @ c
        u = P["W_h"] @ (gate * (P["W_y"] @ x)) + P["b"]
        return u, lambda h: P["W_y"].T @ (gate * (P["W_h"].T @ h)), 1
    if case.name == "symmetric":
        q_x, q_y = P["W_x"] @ x[:C], P["W_y"] @ x[C:]

        def decode(h: Tensor) -> Tensor:
            g = P["W_h"].T @ h
            return torch.cat([P["W_x"].T @ (q_y * g), P["W_y"].T @ (q_x * g)])

        return P["W_h"] @ (q_x * q_y) + P["b"], decode, 1
    q = P["W"] @ x
    factor = {"covariance": 1, "covariance-once": 2}[case.name]
    return P["W_h"] @ q**2 + P["b"], lambda h: factor * P["W"].T @ (q * (P["W_h"].T @ h)), factor / 2


@each_visible
@each_closed_form
def test_energy_and_reconstruction_are_the_printed_formulas(case: UnitsCase, visible: str) -> None:
    """Equations AE, GAE, SYM and cAE for sigmoid units, row by row and model by model."""
    model, v, c = case.model("sigmoid", visible), random_rows(visible), random_context(case)
    energy, reconstruction = model.energy(v, c), model.reconstruct(v, c)
    last = (lambda x: -half_square(x)) if visible == "linear" else entropy
    output = (lambda p: p) if visible == "linear" else (lambda p: 1 / (1 + torch.exp(-p)))
    for k in range(K):
        P = {name: p[k] for name, p in model.groups[0].named_parameters()}
        for n in range(N):
            u, decode, coefficient = column_formulas(case, P, v[n], None if c is None else c[n])
            expected = coefficient * softplus(u).sum() + model.a[k] @ v[n] + last(v[n])
            torch.testing.assert_close(energy[k, n], expected, rtol=1e-12, atol=1e-12)
            expected = output(decode(1 / (1 + torch.exp(-u))) + model.a[k])
            torch.testing.assert_close(reconstruction[k, n], expected, rtol=1e-12, atol=1e-12)


def test_blank_rows_and_zero_biases_have_the_right_gradient() -> None:
    """Item 6: at v = 0, b = 0 the gradient is W^T h(0) + a; softplus by |u| is off by most of it."""
    model, P = single(MeanUnits(1, D, M))
    with torch.no_grad():
        model.groups[0].b.zero_()
        model.a.mul_(0.1)
    zero, expected = torch.zeros(1, D, dtype=torch.float64), P["W"].sum(0) / 2 + model.a[0]
    assert gradient_error(model.energy, lambda v: expected[None], zero) <= 1e-13

    def trap(v: Tensor) -> Tensor:
        u = v @ P["W"].T
        return (u.relu() + torch.log1p(torch.exp(-u.abs()))).sum(-1) + v @ model.a[0]

    assert gradient_error(trap, lambda v: expected[None], zero) >= 0.83


def test_binary_rows_have_no_entropy() -> None:
    """Item 7: at the corners E = sum H(u) + a.v exactly, without NaN."""
    model = UNITS[0].model("sigmoid", "sigmoid")
    v = torch.randint(0, 2, (N, D)).double()
    assert torch.equal(model.energy(v), model.relative_energy(v))
    assert torch.isfinite(model.energy(v)).all()


def test_the_entropy_term_is_the_log_odds_form_without_its_nan() -> None:
    """Item 7: -log(1-v) - v logit(v) is the same inside the cube and NaN at its corners."""
    printed = lambda v: (-torch.log(1 - v) - v * torch.log(v / (1 - v))).sum(-1)  # noqa: E731
    v, corners, conjugate = random_rows("sigmoid"), torch.tensor([[0.0, 1.0]]), ACTIVATIONS["sigmoid"].conjugate
    torch.testing.assert_close(-conjugate(v), printed(v), rtol=1e-12, atol=1e-12)
    assert printed(corners).isnan().all()
    assert (conjugate(corners) == 0).all()


class PowerUnits(HiddenUnits):
    """Units of degree p: u = W_h (W v)^p + b."""

    def __init__(self, n_models: int, n_visible: int, n_factors: int, n_hidden: int, power: int) -> None:
        super().__init__(n_models, n_visible, n_hidden)
        self.repeats = self.power = power
        self.W = self.weight(n_factors, n_visible)
        self.W_h = self.weight(n_hidden, n_factors)
        self.b = self.bias(n_hidden)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        q = project(v, self.W)
        return project(q**self.power, self.W_h) + self.b.unsqueeze(1), q

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        return (carry ** (self.power - 1) * (h @ self.W_h)) @ self.W


@each_visible
@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_units_of_your_own_are_exact_when_repeats_is_right(power: int, visible: str) -> None:
    """Degree-p gating has coefficient 1 / p."""
    model, v = random_model([PowerUnits(K, D, F, M, power)], visible), random_rows(visible).expand(K, -1, -1)
    assert gradient_error(model.energy, model.vector_field, v) <= 1e-12
    model.groups[0].repeats = power + 1  # decoder and coefficient no longer belong together
    assert gradient_error(model.energy, model.vector_field, v) >= 0.1


def test_degree_two_is_the_covariance_auto_encoder() -> None:
    model, twin = (random_model([kind]) for kind in (PowerUnits(K, D, F, M, 2), CovarianceUnits(K, D, F, M)))
    torch.testing.assert_close(model.energy(random_rows()), twin.energy(random_rows()), rtol=1e-13, atol=1e-13)


@each_closed_form
def test_the_parameter_gradients_have_their_closed_forms(case: UnitsCase) -> None:
    """Sections 3 to 5: fine-tuning needs only the encoder."""
    model, v, c = case.model(), random_rows(), random_context(case)
    names, parameters = zip(*model.groups[0].named_parameters(), strict=True)
    gradients = torch.autograd.grad(model.energy(v, c).sum(), [*parameters, model.a])
    torch.testing.assert_close(gradients[-1], v.sum(0).expand(K, -1), rtol=1e-12, atol=1e-12)
    for k in range(K):
        P = {name: p.detach()[k] for name, p in zip(names, parameters, strict=True)}
        h = model.encode(v, c)[k].detach()  # (N, M)
        if case.name == "mean":
            expected = {"W": h.T @ v, "b": h.sum(0)}
        elif case.name.startswith("covariance"):
            q, g = v @ P["W"].T, h @ P["W_h"]
            factor = 2 / model.groups[0].repeats  # printed for repeats = 2
            expected = {"W": (g * q).T @ v, "W_h": h.T @ q**2 / 2, "b": h.sum(0) / 2}
            expected = {name: factor * gradient for name, gradient in expected.items()}
        else:
            x, y = (v[:, :C], v[:, C:]) if case is SYMMETRIC else (c, v)
            q_x, q_y, g = x @ P["W_x"].T, y @ P["W_y"].T, h @ P["W_h"]
            expected = {"W_h": h.T @ (q_x * q_y), "W_y": (q_x * g).T @ y, "W_x": (q_y * g).T @ x, "b": h.sum(0)}
        assert expected.keys() == set(names)
        for name, gradient in zip(names, gradients, strict=False):
            torch.testing.assert_close(gradient[k], expected[name], rtol=1e-12, atol=1e-12)


# --- Jacobians: items 8 and 9 ------------------------------------------------------------------------------------


@each_visible
@each_units
def test_the_jacobian_is_symmetric(case: UnitsCase, visible: str) -> None:
    """Item 8."""
    model, v, c = case.model("tanh", visible), random_rows(visible), random_context(case)
    J = jacobians(model, v, c)
    assert (J - J.mT).norm() <= 1e-12 * J.norm()
    assert jacobian_asymmetry(model, v, c).max() <= 1e-24


def test_the_jacobian_of_mean_units_has_its_closed_form() -> None:
    """Section 3.1: W^T diag(h') W, and for softmax W^T (diag p - p p^T) W."""
    v = random_rows()
    model, P = single(MeanUnits(1, D, M))
    h = model.encode(v)[0]
    expected = P["W"].T @ torch.diag_embed(h * (1 - h)) @ P["W"]
    torch.testing.assert_close(jacobians(model, v)[0], expected, rtol=1e-12, atol=1e-12)
    model, P = single(MeanUnits(1, D, M, "softmax"))
    p = model.encode(v)[0]
    expected = P["W"].T @ (torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)) @ P["W"]
    torch.testing.assert_close(jacobians(model, v)[0], expected, rtol=1e-12, atol=1e-12)


def test_the_jacobian_of_covariance_units_has_its_closed_form() -> None:
    """Section 5: W^T [diag(W_h^T h) + 2 diag(q) W_h^T diag(h') W_h diag(q)] W."""
    model, P = single(CovarianceUnits(1, D, F, M))
    v = random_rows()
    q, h = v @ P["W"].T, model.encode(v)[0]
    inner = P["W_h"].T @ torch.diag_embed(h * (1 - h)) @ P["W_h"]  # (N, F, F)
    inner = torch.diag_embed(h @ P["W_h"]) + 2 * q.unsqueeze(-1) * inner * q.unsqueeze(-2)
    torch.testing.assert_close(jacobians(model, v)[0], P["W"].T @ inner @ P["W"], rtol=1e-12, atol=1e-12)


def test_the_blocks_of_the_symmetric_jacobian_have_their_closed_forms() -> None:
    """Section 4.2: the cross block d r(x|y)/dy, and its transpose d r(y|x)/dx."""
    model, P = single(SymmetricGatedUnits(1, D - C, C, F, M))
    v = random_rows()
    q_x, q_y, h = v[:, :C] @ P["W_x"].T, v[:, C:] @ P["W_y"].T, model.encode(v)[0]
    inner = P["W_h"].T @ torch.diag_embed(h * (1 - h)) @ P["W_h"]
    cross = torch.diag_embed(h @ P["W_h"]) + q_y.unsqueeze(-1) * inner * q_x.unsqueeze(-2)
    J = jacobians(model, v)[0]
    torch.testing.assert_close(J[:, :C, C:], P["W_x"].T @ cross @ P["W_y"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(J[:, C:, :C], J[:, :C, C:].mT, rtol=1e-12, atol=1e-12)
    own = q_x.unsqueeze(-1) * inner * q_x.unsqueeze(-2)
    torch.testing.assert_close(J[:, C:, C:], P["W_y"].T @ own @ P["W_y"], rtol=1e-12, atol=1e-12)


def test_the_derivative_in_the_context_is_not_symmetric() -> None:
    """E05: d r(y|x)/dx has no reason to be symmetric; d r(x|y)/dx is."""
    model, P = single(SymmetricGatedUnits(1, D, D, F, M), seed=3)
    x, y = random_rows(), random_rows(seed=5) / 2
    v = torch.cat([x, y], -1)
    both = lambda x: model.preoutput(torch.cat([x, y], -1))[0]  # noqa: E731
    assert jacobian_asymmetry(lambda x: both(x)[:, D:], x).mean() >= 0.46
    assert jacobian_asymmetry(lambda x: both(x)[:, :D], x).max() <= 1e-24

    h = model.encode(v)[0]
    truth = torch.func.vmap(torch.func.jacrev(lambda v: model.encode(v[None])[0, 0]))(v)[..., :D]  # dh/dx
    slope = (h * (1 - h)).unsqueeze(-1)
    right = slope * (P["W_h"] @ ((y @ P["W_y"].T).unsqueeze(-1) * P["W_x"]))
    printed = slope * (P["W_h"] @ ((x @ P["W_x"].T).unsqueeze(-1) * P["W_y"]))
    assert (right - truth).norm() <= 1e-12 * truth.norm()
    assert (printed - truth).norm() >= 2.19 * truth.norm()


def test_the_raw_field_of_sigmoid_outputs_has_no_energy() -> None:
    """Item 7, trap: r(v) - v; only s(v) - logit(v) is a gradient."""
    model = random_model([MeanUnits(1, D, M)], "sigmoid", scale=1.0)
    v = random_rows("sigmoid")
    assert jacobian_asymmetry(lambda v: model.reconstruct(v)[0] - v, v).min() >= 1e-3
    assert jacobian_asymmetry(lambda v: model.vector_field(v)[0], v).max() <= 1e-24


@pytest.fixture
def untied() -> tuple[Tensor, Tensor, Tensor]:
    """Encoder W (M, D), decoder R (D, M), rows."""
    W, R = torch.randn(M, D, dtype=torch.float64) / 2, torch.randn(D, M, dtype=torch.float64) / 2
    return W, R, random_rows()


def test_untied_weights_have_no_energy(untied: tuple[Tensor, Tensor, Tensor]) -> None:
    """Item 8, trap."""
    W, R, v = untied
    assert jacobian_asymmetry(lambda v: torch.sigmoid(v @ W.T) @ R.T - v, v).min() >= 1e-3


def test_the_asymmetry_of_untied_weights_has_a_closed_form(untied: tuple[Tensor, Tensor, Tensor]) -> None:
    """Item 9."""
    W, R, v = untied
    h = torch.sigmoid(v @ W.T + 0.3)
    J = R @ torch.diag_embed(h * (1 - h)) @ W
    expected = (J - J.mT).square().sum((-1, -2)) / 4 / J.square().sum((-1, -2))
    torch.testing.assert_close(affine_asymmetry(W, R, h * (1 - h)), expected, rtol=1e-12, atol=1e-12)
    measured = jacobian_asymmetry(lambda v: torch.sigmoid(v @ W.T + 0.3) @ R.T, v)
    torch.testing.assert_close(measured, expected, rtol=1e-12, atol=1e-12)


def test_diagonally_tied_weights_have_an_energy(untied: tuple[Tensor, Tensor, Tensor]) -> None:
    """Item 9: R = W^T diag(l) gives E = sum l H(u) + a.v - |v|^2/2, for any l."""
    W, _, v = untied
    factors = torch.linspace(-2, 3, M, dtype=torch.float64)
    energy = lambda v: (factors * softplus(v @ W.T)).sum(-1) - half_square(v)  # noqa: E731
    assert gradient_error(energy, lambda v: (factors * torch.sigmoid(v @ W.T)) @ W - v, v) <= 1e-12
    assert affine_asymmetry(W, W.T * factors, torch.ones(N, M, dtype=torch.float64)).max() <= 1e-12


def test_linear_units_only_need_a_symmetric_product(untied: tuple[Tensor, Tensor, Tensor]) -> None:
    """Item 9: R = W^T S with any symmetric S, which other units do not allow."""
    W, _, v = untied
    S = torch.randn(M, M, dtype=torch.float64)
    R = W.T @ (S + S.T)
    assert jacobian_asymmetry(lambda v: v @ W.T @ R.T, v).max() <= 1e-24
    assert jacobian_asymmetry(lambda v: torch.sigmoid(v @ W.T) @ R.T, v).min() >= 1e-3


def test_gated_units_with_a_decoder_of_their_own_have_no_energy() -> None:
    """Section 3.3: public code keeps separate matrices W_h for encoding and decoding."""
    _, P = single(GatedUnits(1, D, C, F, M))
    v, gate, other = random_rows(), random_context(GATED) @ P["W_x"].T, torch.randn(M, F, dtype=torch.float64)
    decode = lambda h, W_h: (gate * (h @ W_h)) @ P["W_y"]  # noqa: E731
    encode = lambda v: torch.sigmoid((gate * (v @ P["W_y"].T)) @ P["W_h"].T + P["b"])  # noqa: E731
    assert jacobian_asymmetry(lambda v: decode(encode(v), other), v).mean() >= 1e-2
    factors = torch.linspace(-2, 3, M, dtype=torch.float64)
    assert jacobian_asymmetry(lambda v: decode(factors * encode(v), P["W_h"]), v).max() <= 1e-24


def test_covariance_units_need_equal_weights_or_a_symmetrised_decoder() -> None:
    """Section 5: y = x with W_x != W_y has no energy; the mean of both decoders has one."""
    W_x, W_y, W_h = (torch.randn(shape, dtype=torch.float64) / 2 for shape in ((F, D), (F, D), (M, F)))
    v = random_rows()
    u = lambda v: ((v @ W_x.T) * (v @ W_y.T)) @ W_h.T  # noqa: E731
    one = lambda v, A, B: ((v @ A.T) * (torch.sigmoid(u(v)) @ W_h)) @ B  # noqa: E731
    assert jacobian_asymmetry(lambda v: one(v, W_x, W_y), v).mean() >= 0.35
    energy = lambda v: softplus(u(v)).sum(-1) / 2 - half_square(v)  # noqa: E731
    assert gradient_error(energy, lambda v: (one(v, W_x, W_y) + one(v, W_y, W_x)) / 2 - v, v) <= 1e-12


# --- the paper's misprints: each fails by the size stated in the errata ------------------------------------------


def test_without_the_visible_bias_the_energy_is_wrong() -> None:
    """Item 5, trap."""
    model, _ = single(MeanUnits(1, D, M))
    assert field_error(lambda v: model.energy(v)[0] - v @ model.a[0], model, random_rows()) >= 0.5


def test_the_same_weights_for_both_inputs_are_wrong() -> None:
    """Item 10, trap (E09): W^X y for W^Y y, which needs both inputs of one width."""
    model, P = single(GatedUnits(1, D, D, F, M), seed=19)
    v, c = random_rows(), random_rows(seed=5)

    def energy(v: Tensor, W: Tensor) -> Tensor:
        u = ((c @ P["W_x"].T) * (v @ W.T)) @ P["W_h"].T + P["b"]
        return softplus(u).sum(-1) + v @ model.a[0] - half_square(v)

    assert field_error(lambda v: energy(v, P["W_y"]), model, v, c) <= 1e-12
    assert field_error(lambda v: energy(v, P["W_x"]), model, v, c) >= 2.0


def test_a_minus_sign_in_the_softplus_is_wrong() -> None:
    """E15: the conditional RBM's energy with log(1 + exp(-u))."""
    model, P = single(GatedUnits(1, D, C, F, M), seed=9)
    v, c = random_rows(), random_context(GATED)

    def energy(v: Tensor, sign: int) -> Tensor:
        u = ((c @ P["W_x"].T) * (v @ P["W_y"].T)) @ P["W_h"].T + P["b"]
        return softplus(sign * u).sum(-1) + v @ model.a[0] - half_square(v)

    assert field_error(lambda v: energy(v, 1), model, v, c) <= 1e-12
    assert field_error(lambda v: energy(v, -1), model, v, c) >= 1.85


def test_coefficient_two_for_the_symmetric_model_is_wrong() -> None:
    """Item 11, trap (E08): each half of the field is already a full partial gradient of one sum."""
    model, P = single(SymmetricGatedUnits(1, D - C, C, F, M), seed=18)

    def energy(v: Tensor, coefficient: int) -> Tensor:
        u = ((v[:, :C] @ P["W_x"].T) * (v[:, C:] @ P["W_y"].T)) @ P["W_h"].T + P["b"]
        return coefficient * softplus(u).sum(-1) + v @ model.a[0] - half_square(v)

    assert field_error(lambda v: energy(v, 1), model, random_rows()) <= 1e-12
    assert field_error(lambda v: energy(v, 2), model, random_rows()) >= 1.09


def test_the_joint_energy_is_the_conditional_one_plus_a_function_of_the_context() -> None:
    """Section 4.2: E_J(x, y) - E(y|x) = a_x.x - |x|^2/2."""
    joint, _ = single(SymmetricGatedUnits(1, D - C, C, F, M))
    conditional, _ = single(GatedUnits(1, D - C, C, F, M))
    conditional.groups[0].load_state_dict(joint.groups[0].state_dict())
    v = random_rows()
    with torch.no_grad():
        conditional.a.copy_(joint.a[:, C:])
    x, y = v[:, :C], v[:, C:]
    expected = x @ joint.a[0, :C] - half_square(x)
    torch.testing.assert_close((joint.energy(v) - conditional.energy(y, x))[0], expected, rtol=1e-12, atol=1e-12)


def test_the_covariance_energies_of_the_paper_are_wrong() -> None:
    """Item 12, traps: coefficient 1 with and without a (E11), and twice the energy with half the bias (E12)."""
    model, P = single(CovarianceUnits(1, D, F, M), seed=11)
    v, a = random_rows(), model.a.detach()[0]
    H = lambda v: softplus((v @ P["W"].T).square() @ P["W_h"].T + P["b"]).sum(-1)  # noqa: E731
    assert field_error(lambda v: H(v) / 2 + v @ a - half_square(v), model, v) <= 1e-12
    assert field_error(lambda v: H(v) - half_square(v), model, v) >= 1.20
    assert field_error(lambda v: H(v) + v @ a - half_square(v), model, v) >= 0.99

    with torch.no_grad():
        model.a.mul_(3)
    a, twice = model.a.detach()[0], lambda v: 2 * model.vector_field(v)[0]
    assert gradient_error(lambda v: H(v) + 2 * v @ a - 2 * half_square(v), twice, v) <= 1e-12
    assert gradient_error(lambda v: H(v) + v @ a - 2 * half_square(v), twice, v) >= 0.31


def test_the_mean_covariance_energy_of_the_paper_is_wrong() -> None:
    """Item 13 and its trap (E14): minus signs inside the exponentials, coefficient 1, no biases."""
    model, mean, cov = single([MeanUnits(1, D, 5), CovarianceUnits(1, D, F, M)], seed=34)
    v = random_rows()

    def energies(v: Tensor, sign: int) -> tuple[Tensor, Tensor]:
        u_mean, u_cov = v @ mean["W"].T + mean["b"], (v @ cov["W"].T).square() @ cov["W_h"].T + cov["b"]
        return softplus(sign * u_mean).sum(-1), softplus(sign * u_cov).sum(-1)

    def once(v: Tensor) -> Tensor:  # one auto-encoder
        m, c = energies(v, 1)
        return m + c / 2 + v @ model.a[0] - half_square(v)

    printed = lambda v: sum(energies(v, -1)) - 2 * half_square(v)  # noqa: E731
    assert field_error(once, model, v) <= 1e-12
    assert field_error(printed, model, v) >= 1.76
    assert gradient_error(printed, lambda v: model.vector_field(v)[0] - v, v) >= 1.57


def test_two_auto_encoders_add_their_energies_and_rank_models_like_one() -> None:
    """Item 13, second version: E_M + E_C; without the quadratic term it is the first with a = a_m + a_c."""
    v = random_rows()
    both = random_model([MeanUnits(K, D, 5), CovarianceUnits(K, D, F, M)])
    parts = [random_model([MeanUnits(K, D, 5)]), random_model([CovarianceUnits(K, D, F, M)])]
    for part, group in zip(parts, both.groups, strict=True):
        part.groups[0].load_state_dict(group.state_dict())
    with torch.no_grad():
        both.a.copy_(parts[0].a + parts[1].a)
    energy = lambda v: sum(part.energy(v) for part in parts)  # noqa: E731
    field = lambda v: sum(part.reconstruct(v) - v for part in parts)  # noqa: E731
    assert gradient_error(energy, field, v.expand(K, -1, -1)) <= 1e-12
    relative = sum(part.relative_energy(v) for part in parts)
    torch.testing.assert_close(both.relative_energy(v), relative, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(energy(v) - both.energy(v), -half_square(v).expand(K, -1), rtol=1e-12, atol=1e-12)


# --- numbers: items 20, 23 and 24 ----------------------------------------------------------------------------------


@each_visible
@each_closed_form
def test_models_together_score_like_each_alone(case: UnitsCase, visible: str) -> None:
    """Item 20, float64."""
    model, v, c = case.model("sigmoid", visible), random_rows(visible), random_context(case)
    alone = torch.cat([model.select(k).energy(v, c) for k in range(K)])
    torch.testing.assert_close(model.energy(v, c), alone, rtol=0, atol=1e-11)
    own = torch.cat([model.select(k).energy(v.flip(0)[None] if k else v[None], c) for k in range(K)])
    stacked = model.energy(torch.stack([v, v.flip(0), v.flip(0)]), c)
    torch.testing.assert_close(stacked, own, rtol=0, atol=1e-11)


def test_models_together_score_like_each_alone_in_float32() -> None:
    """Item 20: 3e-4 at energies of about 300."""
    model = Autoencoder([MeanUnits(5, 100, 300), CovarianceUnits(5, 100, 120, 200)])
    v = torch.randn(50, 100)
    energy = model.energy(v)
    assert 100 <= energy.abs().mean() <= 1000
    alone = torch.cat([model.select(k).energy(v) for k in range(5)])
    torch.testing.assert_close(energy, alone, rtol=0, atol=3e-4)


def flops(work: Callable[[], Any]) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return counter.get_total_flops()


DX, DY = C, D - C
MD, FD, MF = M * D, F * D, M * F
#: kind -> FLOPs of the matrix products per model and row: forward, energy, training step, energy fine-tuning
COST = {
    "mean": (4 * MD, 2 * MD, 10 * MD, 4 * MD),
    "gated": (
        2 * F * C + 4 * FD + 4 * MF,
        2 * F * (C + D) + 2 * MF,
        4 * F * C + 10 * FD + 12 * MF,
        4 * F * (C + D) + 6 * MF,
    ),
    "symmetric": (
        4 * F * (DX + DY) + 4 * MF,
        2 * F * (DX + DY) + 2 * MF,
        10 * F * (DX + DY) + 12 * MF,
        4 * F * (DX + DY) + 6 * MF,
    ),
    "covariance": (4 * FD + 4 * MF, 2 * FD + 2 * MF, 10 * FD + 12 * MF, 4 * FD + 6 * MF),
}
COST["mean-covariance"] = tuple(m + c for m, c in zip(COST["mean"], COST["covariance"], strict=True))


@pytest.mark.parametrize("own_rows", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("kind", COST)
def test_flops_are_the_formulas_exactly(kind: str, own_rows: bool) -> None:
    """Item 23.  The term a.v of the energy is a matrix product too: 2 D forward, and 2 D backward to a."""
    if kind == "mean-covariance":
        model, c = random_model([MeanUnits(K, D, M), CovarianceUnits(K, D, F, M)]), None
    else:
        case = next(case for case in UNITS if case.name == kind)
        model, c = case.model(), random_context(case)
    v = random_rows().expand(K, -1, -1).contiguous() if own_rows else random_rows()
    forward, energy, training, fine_tuning = (K * N * cost for cost in COST[kind])
    bias_term = K * N * 2 * D
    assert flops(lambda: model.reconstruct(v, c)) == forward
    assert flops(lambda: model.vector_field(v, c)) == forward
    assert flops(lambda: model.energy(v, c)) == energy + bias_term
    assert flops(lambda: model.loss(v, c).sum().backward()) == training
    assert flops(lambda: model.energy(v, c).sum().backward()) == fine_tuning + 2 * bias_term


@pytest.mark.parametrize(
    "units",
    [
        lambda: [MeanUnits(2, 784, 300)],
        lambda: [CovarianceUnits(2, 784, 300, 300)],
        lambda: [MeanUnits(2, 784, 300), CovarianceUnits(2, 784, 300, 300)],
        lambda: [SymmetricGatedUnits(2, 384, 400, 300, 300)],
    ],
    ids=["mean", "covariance", "mean-covariance", "symmetric"],
)
def test_float32_energies_are_accurate_at_the_size_of_images(units: Callable[[], list[HiddenUnits]]) -> None:
    """Item 24."""
    model, v = Autoencoder(units()), torch.rand(100, 784)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.split(".")[-1].startswith("W"):
                parameter.normal_(std=0.3)
    low, high = model.energy(v).double(), model.double().energy(v.double())
    assert ((low - high).abs() / high.abs()).max() <= 5e-6


# --- columns that go straight to the output ---------------------------------------------------------------------------


@each_visible
@pytest.mark.parametrize("case", [UNITS[0], UNITS[1], UNITS[-1]], ids=lambda case: case.name)
def test_skipped_columns_leave_the_energy_exact(case: UnitsCase, visible: str) -> None:
    model = random_model([case.build("sigmoid")], visible, skip=torch.linspace(-0.5, 0.9, D))
    v, c = random_rows(visible).requires_grad_(), random_context(case)
    (gradient,) = torch.autograd.grad(model.energy(v, c)[1].sum(), v)
    torch.testing.assert_close(model.vector_field(v, c)[1], gradient, rtol=1e-9, atol=1e-9)
    energy, preoutput = model.energy_and_preoutput(v, c)
    torch.testing.assert_close(energy, model.energy(v, c), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(preoutput, model.preoutput(v, c), rtol=1e-12, atol=1e-12)
    shared = model.relative_energy(v, c) - model.energy(v, c)
    torch.testing.assert_close(shared, model.shared_term(v).expand(K, N), rtol=1e-10, atol=1e-10)


def test_a_skip_is_a_linear_unit_for_each_column() -> None:
    units = MeanUnits(K, D, M)
    model, v = random_model([units], skip=torch.linspace(0.1, 0.9, D)), random_rows()
    assert model.skip is not None
    columns = MeanUnits(K, D, D, "linear")
    both = Autoencoder([units, columns]).double()
    with torch.no_grad():
        both.a.copy_(model.a)
        columns.b.zero_()
        columns.W.copy_(torch.diag(model.skip.sqrt()).expand(K, D, D))
    torch.testing.assert_close(model.energy(v), both.energy(v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.reconstruct(v), both.reconstruct(v), rtol=1e-12, atol=1e-12)


def test_a_skip_has_a_share_in_the_curvature_where_it_is_negative_and_no_rbm() -> None:
    units, v = MeanUnits(K, D, M), random_rows()
    plain, convex, concave = (random_model([units], skip=skip) for skip in (None, torch.ones(D), -torch.ones(D)))
    known = curvature_bound(plain)
    assert known is not None
    torch.testing.assert_close(curvature_bound(convex), known)
    torch.testing.assert_close(curvature_bound(concave), known + 1)
    assert (trajectory(concave, v, max_steps=50).energies.diff(dim=0) >= -1e-9).all()
    with pytest.raises(InputError, match="has a `skip`"):
        to_rbm(convex)


def test_a_skip_has_a_number_for_each_column() -> None:
    with pytest.raises(InputError, match=f"`skip` must have a number for each of {D} columns"):
        Autoencoder([MeanUnits(K, D, M)], skip=torch.zeros(D + 1))
