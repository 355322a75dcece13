"""RBMs as views over hidden units: free energies against enumeration of the energies that the papers print.

Every energy here is written from the raw weights of one model, for rows x (N, D) and one hidden state h
(M,), and is low where the machine likes the state.
"""

import math
from collections.abc import Callable

import pytest
import torch
from cases import random_model
from torch import Tensor, nn

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.rbm import RBM, Twin, binary_states, mcrbm_from_sum, to_rbm
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, NetworkUnits, SymmetricGatedUnits

K, N, D, C, F, M, M_MEAN = 2, 9, 4, 3, 5, 6, 3
TOLERANCE = 1e-11
SIGMA = torch.tensor([[0.6, 0.9, 1.3, 2.0], [1.1, 0.7, 0.5, 1.7]], dtype=torch.float64)

Energy = Callable[[Tensor], Tensor]  # a hidden state (M,) to the energies (N,) of all rows


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = normal(N, D), normal(N, C, seed=2)
BINARY = (X > 0).double()


def enumerated(energy: Energy, n_hidden: int) -> Tensor:
    """-F = log sum_h exp(-Eng), all 2^M hidden states one by one: (N,)."""
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * n_hidden)
    assert states.shape == (2**n_hidden, n_hidden)
    return torch.logsumexp(torch.stack([-energy(h) for h in states]), 0)


def raw(model: Autoencoder, k: int) -> dict[str, Tensor]:
    """The weights of model k by their names, those of a second group of units with a 2 behind them."""
    weights = {"a": model.a[k].detach()}
    for suffix, units in zip(["", "2"], model.groups, strict=False):
        weights |= {name + suffix: p[k].detach() for name, p in units.named_parameters()}
    return weights


def agree(first: Tensor, second: Tensor) -> bool:
    return bool(((first - second).abs() <= TOLERANCE * (1 + second.abs())).all())


def mean() -> MeanUnits:
    return MeanUnits(K, D, M)


def gated() -> GatedUnits:
    return GatedUnits(K, D, C, F, M)


def covariance(repeats: int = 2) -> CovarianceUnits:
    return CovarianceUnits(K, D, F, M, repeats=repeats)


def model_of(*units: HiddenUnits, visible: str = "linear") -> Autoencoder:
    return random_model(list(units), visible, seed=4)


# --- free energies against enumeration: theory item 14 ------------------------------------------------------


def gaussian_rbm(w: dict[str, Tensor], sigma: Tensor | float = 1.0) -> Energy:
    return lambda h: ((X - w["a"]) ** 2 / (2 * sigma**2)).sum(1) - w["b"] @ h - X @ w["W"].T @ h


def fcrbm(w: dict[str, Tensor], sigma: Tensor | float = 1.0) -> Energy:
    def energy(h: Tensor) -> Tensor:
        factors = (X @ w["W_y"].T) * (Y @ w["W_x"].T) * (w["W_h"].T @ h)
        return ((X - w["a"]) ** 2 / (2 * sigma**2)).sum(1) - w["b"] @ h - factors.sum(1)

    return energy


def printed_crbm(w: dict[str, Tensor], x: Tensor = X) -> Energy:
    """(a - x)^2 / sigma^2 with sigma = 1, and no 1/2 on the covariance term."""
    return lambda h: ((w["a"] - x) ** 2).sum(1) - (x @ w["W"].T) ** 2 @ w["W_h"].T @ h - w["b"] @ h


def standard_crbm(w: dict[str, Tensor], sigma: Tensor | float = 1.0) -> Energy:
    """The same covariance term beside a Gaussian of variance sigma^2."""
    return lambda h: ((X - w["a"]) ** 2 / (2 * sigma**2)).sum(1) - (X @ w["W"].T) ** 2 @ w["W_h"].T @ h - w["b"] @ h


def ranzato_hinton_crbm(w: dict[str, Tensor]) -> Energy:
    """|x|^2 / 2 - a.x - 1/2 h^T P^T (C x)^2 - b.h."""
    return lambda h: (X**2).sum(1) / 2 - X @ w["a"] - (X @ w["W"].T) ** 2 @ w["W_h"].T @ h / 2 - w["b"] @ h


def test_gaussian_rbm_by_enumeration() -> None:
    """Theory item 14."""
    twin = to_rbm(model_of(mean()))
    with torch.no_grad():
        for k in range(K):
            w = raw(twin.autoencoder, k)
            brute = enumerated(gaussian_rbm(w), M)
            assert agree(-twin.rbm.free_energy(X)[k], brute)
            assert agree(twin.autoencoder.energy(X)[k] - (w["a"] ** 2).sum() / 2, brute)
            assert agree(twin.negative_free_energy(X)[k], brute)


def test_gaussian_rbm_with_its_own_variance_per_column_by_enumeration() -> None:
    """Theory item 14, E24: the auto-encoder lives in x / sigma."""
    model = model_of(mean())
    machine = RBM(model.groups, model.a, sigma=SIGMA)
    twin = machine.to_autoencoder()
    with torch.no_grad():
        for k in range(K):
            brute = enumerated(gaussian_rbm(raw(model, k), SIGMA[k]), M)
            assert agree(-machine.free_energy(X)[k], brute)
            assert agree(twin.negative_free_energy(X)[k], brute)


def test_fcrbm_by_enumeration() -> None:
    """Theory item 14, E27: sigma = 1, E = -F + |a|^2 / 2."""
    twin = to_rbm(model_of(gated()))
    with torch.no_grad():
        for k in range(K):
            w = raw(twin.autoencoder, k)
            brute = enumerated(fcrbm(w), M)
            assert agree(-twin.rbm.free_energy(X, Y)[k], brute)
            assert agree(twin.autoencoder.energy(X, Y)[k] - (w["a"] ** 2).sum() / 2, brute)
            assert agree(twin.negative_free_energy(X, Y)[k], brute)


@pytest.mark.parametrize("sigma", [0.7, SIGMA[0], SIGMA], ids=["number", "column", "model"])
def test_fcrbm_with_any_variance_by_enumeration(sigma) -> None:
    """Theory item 14, E24: x' = x / sigma, W' = W sigma, a' = a / sigma."""
    model = model_of(gated())
    machine = RBM(model.groups, model.a, sigma=sigma)
    twin = machine.to_autoencoder()
    full = torch.as_tensor(sigma, dtype=torch.float64).expand(K, D)
    with torch.no_grad():
        for k in range(K):
            w = raw(model, k)
            brute = enumerated(fcrbm(w, full[k]), M)
            assert agree(-machine.free_energy(X, Y)[k], brute)
            assert agree(twin.negative_free_energy(X, Y)[k], brute)
            assert torch.allclose(twin.autoencoder.a[k], w["a"] / full[k], rtol=1e-14)
            assert torch.allclose(twin.autoencoder.groups[0].W_y[k], w["W_y"] * full[k], rtol=1e-14)


def test_printed_crbm_at_sigma_1_is_this_one_at_variance_a_half() -> None:
    """Theory item 14, section 7.2: -F = 2 E - |a|^2, with the paper's decoder."""
    twin = to_rbm(model_of(covariance()))
    assert twin.scale == 2.0
    assert torch.allclose(twin.rbm.sigma, torch.full((K, D), 0.5, dtype=torch.float64).sqrt(), rtol=1e-14)
    with torch.no_grad():
        for k in range(K):
            w = raw(twin.autoencoder, k)
            brute = enumerated(printed_crbm(w), M)
            assert agree(-twin.rbm.free_energy(X)[k], brute)
            assert agree(2 * twin.autoencoder.energy(X)[k] - (w["a"] ** 2).sum(), brute)
            assert agree(twin.negative_free_energy(X)[k], brute)


@pytest.mark.parametrize("sigma", [1.0, 0.7, SIGMA], ids=["1", "number", "model"])
def test_standard_crbm_is_the_auto_encoder_with_the_doubled_decoder(sigma) -> None:
    """Theory item 14, section 7.2: covariance units that count once."""
    model = model_of(covariance(repeats=1))
    machine = RBM(model.groups, model.a, sigma=sigma)
    full = torch.as_tensor(sigma, dtype=torch.float64).expand(K, D)
    with torch.no_grad():
        for k in range(K):
            w = raw(model, k)
            brute = enumerated(standard_crbm(w, full[k]), M)
            assert agree(-machine.free_energy(X)[k], brute)
            assert agree(machine.to_autoencoder().negative_free_energy(X)[k], brute)
            if (full == 1).all():
                assert agree(to_rbm(model).negative_free_energy(X)[k], brute)
                q = X @ w["W"].T
                h = torch.sigmoid(q**2 @ w["W_h"].T + w["b"])
                assert agree(model.reconstruct(X)[k], 2 * (q * (h @ w["W_h"])) @ w["W"] + w["a"])


def test_ranzato_hinton_crbm_is_half_the_covariance_weights_counted_once() -> None:
    """Theory item 14, section 7.2: the 1/2 sits in the encoder, the decoder is the paper's."""
    model = model_of(covariance(repeats=1))
    with torch.no_grad():
        weights = [raw(model, k) for k in range(K)]
        weights = [{name: weight.clone() for name, weight in w.items()} for w in weights]
        model.groups[0].W_h.div_(2)
        for k, w in enumerate(weights):
            assert agree(model.energy(X)[k], enumerated(ranzato_hinton_crbm(w), M))
            q = X @ w["W"].T
            h = torch.sigmoid(q**2 @ w["W_h"].T / 2 + w["b"])
            assert agree(model.reconstruct(X)[k], (q * (h @ w["W_h"])) @ w["W"] + w["a"])


@pytest.mark.parametrize("half", [False, True], ids=["doubled decoder", "half encoder"])
def test_mcrbm_by_enumeration(half) -> None:
    """Theory item 14, section 7.3: both forms, E25: the quadratic counts once."""
    model = model_of(MeanUnits(K, D, M_MEAN), covariance(repeats=1))
    weights = [{name: weight.clone() for name, weight in raw(model, k).items()} for k in range(K)]
    factor = 0.5 if half else 1.0
    with torch.no_grad():
        model.groups[1].W_h.mul_(factor)
        twin = to_rbm(model)
        for k, w in enumerate(weights):

            def energy(state: Tensor, w: dict[str, Tensor] = w) -> Tensor:
                m, h = state[:M_MEAN], state[M_MEAN:]
                covariance_term = factor * (X @ w["W2"].T) ** 2 @ w["W_h2"].T @ h + w["b2"] @ h
                return ((X - w["a"]) ** 2).sum(1) / 2 - (X @ w["W"].T + w["b"]) @ m - covariance_term

            brute = enumerated(energy, M_MEAN + M)
            assert agree(-twin.rbm.free_energy(X)[k], brute)
            assert agree(twin.negative_free_energy(X)[k], brute)


def test_the_sum_of_a_mean_and_twice_a_covariance_energy_is_an_mcrbm_with_precision_3() -> None:
    """Theory item 14, section 7.3: E_M + 2 E_C."""
    mean_model, covariance_model = model_of(MeanUnits(K, D, M_MEAN)), random_model([covariance()], seed=5)
    machine, constant = mcrbm_from_sum(mean_model, covariance_model)
    with torch.no_grad():
        total = mean_model.energy(X) + 2 * covariance_model.energy(X)
        assert agree(-machine.free_energy(X), total + constant.unsqueeze(1))
        for k in range(K):
            m_w, c_w = raw(mean_model, k), raw(covariance_model, k)
            a = (m_w["a"] + 2 * c_w["a"]) / 3

            def energy(state: Tensor, m_w=m_w, c_w=c_w, a=a) -> Tensor:
                m, h = state[:M_MEAN], state[M_MEAN:]
                quadratic = 3 * ((X - a) ** 2).sum(1) / 2
                return (
                    quadratic - (X @ m_w["W"].T + m_w["b"]) @ m - ((X @ c_w["W"].T) ** 2 @ c_w["W_h"].T + c_w["b"]) @ h
                )

            assert agree(-machine.free_energy(X)[k], enumerated(energy, M_MEAN + M))


def test_bernoulli_rbm_by_enumeration() -> None:
    """Theory item 14: at binary x the energy is -F, with no constant."""
    twin = to_rbm(model_of(mean(), visible="sigmoid"))
    assert twin.rbm.visible == "bernoulli"
    with torch.no_grad():
        for k in range(K):
            w = raw(twin.autoencoder, k)
            brute = enumerated(lambda h, w=w: -BINARY @ w["a"] - w["b"] @ h - BINARY @ w["W"].T @ h, M)
            assert agree(-twin.rbm.free_energy(BINARY)[k], brute)
            assert agree(twin.autoencoder.energy(BINARY)[k], brute)
            assert agree(twin.negative_free_energy(BINARY)[k], brute)


def test_bernoulli_fcrbm_by_enumeration() -> None:
    """Theory item 14, section 7.4."""
    twin = to_rbm(model_of(gated(), visible="sigmoid"))
    with torch.no_grad():
        for k in range(K):
            w = raw(twin.autoencoder, k)

            def energy(h: Tensor, w: dict[str, Tensor] = w) -> Tensor:
                factors = (BINARY @ w["W_y"].T) * (Y @ w["W_x"].T) * (w["W_h"].T @ h)
                return -BINARY @ w["a"] - w["b"] @ h - factors.sum(1)

            brute = enumerated(energy, M)
            assert agree(-twin.rbm.free_energy(BINARY, Y)[k], brute)
            assert agree(twin.negative_free_energy(BINARY, Y)[k], brute)


def test_bernoulli_crbm_by_enumeration() -> None:
    """Theory item 14: with the paper's decoder -F = 2 E, and its visible bias is 2 a."""
    twin = to_rbm(model_of(covariance(), visible="sigmoid"))
    with torch.no_grad():
        for k in range(K):
            w = raw(twin.autoencoder, k)
            brute = enumerated(
                lambda h, w=w: -2 * BINARY @ w["a"] - (BINARY @ w["W"].T) ** 2 @ w["W_h"].T @ h - w["b"] @ h, M
            )
            assert agree(-twin.rbm.free_energy(BINARY)[k], brute)
            assert agree(twin.negative_free_energy(BINARY)[k], brute)


@pytest.mark.parametrize("visible", ["gaussian", "bernoulli"])
def test_the_joint_energy_sums_to_the_free_energy(visible) -> None:
    """F = -log sum_h exp(-Eng), for two groups of units side by side."""
    model = model_of(MeanUnits(K, D, M_MEAN), covariance())
    machine = RBM(model.groups, model.a, visible=visible)
    x = BINARY if visible == "bernoulli" else X
    with torch.no_grad():
        joint = torch.stack([machine.joint_energy(x, h.expand(K, N, -1)) for h in binary_states(M_MEAN + M, x)])
        assert agree(torch.logsumexp(-joint, 0), -machine.free_energy(x))


# --- traps: what the paper prints and must not hold ---------------------------------------------------------


def test_the_printed_constant_minus_a_squared_is_wrong() -> None:
    """E16, trap of theory item 14: it is -|a|^2 / 2."""
    model = model_of(gated())
    with torch.no_grad():
        for k in range(K):
            w = raw(model, k)
            error = model.energy(X, Y)[k] - (w["a"] ** 2).sum() - enumerated(fcrbm(w), M)
            assert (error.abs() > 0.1).all()


def test_leaving_the_hidden_bias_out_is_wrong() -> None:
    """E13, trap of theory item 14."""
    model = model_of(covariance())
    with torch.no_grad():
        for k in range(K):
            brute = enumerated(printed_crbm(raw(model, k)), M)
            without = raw(model, k) | {"b": torch.zeros(M, dtype=torch.float64)}
            assert not agree(enumerated(printed_crbm(without), M), brute)
            assert (enumerated(printed_crbm(without), M) - brute).abs().max() > 0.1


def test_counting_the_gaussian_once_per_hidden_unit_is_wrong() -> None:
    """E13: a Gaussian inside the product over hidden units is off by (M - 1) |a - x|^2."""
    model = model_of(covariance())
    with torch.no_grad():
        w = raw(model, 0)
        squared = ((w["a"] - X) ** 2).sum(1)
        u = (X @ w["W"].T) ** 2 @ w["W_h"].T + w["b"]
        inside = (torch.log1p(torch.exp(u)) - squared.unsqueeze(1)).sum(1)
        error = enumerated(printed_crbm(w), M) - inside
        assert agree(error, (M - 1) * squared)
        assert (error > 0.1).all()


def test_the_printed_sigma_is_not_a_standard_deviation() -> None:
    """E23: the printed energy at sigma = 1 is neither the standard machine at sigma = 1 nor E itself."""
    model = model_of(covariance())
    machine = RBM(model.groups, model.a, sigma=1.0)
    with torch.no_grad():
        for k in range(K):
            w = raw(model, k)
            brute = enumerated(printed_crbm(w), M)
            assert (-machine.free_energy(X)[k] - brute).abs().min() > 1e-3
            difference = model.energy(X)[k] - brute
            assert (difference - difference.mean()).abs().max() > 0.1  # not even up to a constant


# --- twins --------------------------------------------------------------------------------------------------


def gradient(function: Callable[[Tensor], Tensor], x: Tensor = X) -> Tensor:
    """Gradients for all models: (K, N, D)."""
    x = x.expand(K, *x.shape).clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def test_the_field_of_the_free_energy_is_a_multiple_of_the_vector_field() -> None:
    """Section 7.2: grad(-F) = scale (r - x), with 2 for the paper's covariance decoder."""
    for units, c, scale in ((mean(), None, 1), (gated(), Y, 1), (covariance(), None, 2), (covariance(1), None, 1)):
        model = model_of(units)
        twin = to_rbm(model)
        assert twin.scale == scale
        field = gradient(lambda x, twin=twin, c=c: -twin.rbm.free_energy(x, c))
        assert agree(field, scale * (model.reconstruct(X, c) - X).detach())


def test_a_scalar_variance_scales_the_decoder() -> None:
    """Section 7.1: sigma^2 grad(-F) = r_s(x) - x with the decoder times sigma^2."""
    sigma, model = 0.7, model_of(gated())
    machine = RBM(model.groups, model.a, sigma=sigma)
    field = gradient(lambda x: -machine.free_energy(x, Y))
    with torch.no_grad():
        decoded = model.reconstruct(X, Y) - model.a.unsqueeze(1)
        assert agree(sigma**2 * field, sigma**2 * decoded + model.a.unsqueeze(1) - X)


@pytest.mark.parametrize(
    ("units", "visible", "sigma"),
    [
        ([mean()], "gaussian", SIGMA),
        ([mean()], "bernoulli", 1.0),
        ([gated()], "gaussian", SIGMA),
        ([gated()], "bernoulli", 1.0),
        ([covariance()], "gaussian", SIGMA),
        ([covariance()], "bernoulli", 1.0),
        ([SymmetricGatedUnits(K, D - 1, 1, F, M)], "gaussian", SIGMA),
        ([MeanUnits(K, D, M_MEAN), covariance()], "gaussian", SIGMA),
    ],
    ids=["mean", "mean-b", "gated", "gated-b", "covariance", "covariance-b", "symmetric", "mean-covariance"],
)
def test_every_machine_has_an_auto_encoder_and_that_one_leads_back(units, visible, sigma) -> None:
    """Section 7: -F(x) = E(x / sigma) + constant, whatever `repeats` the units had."""
    model = model_of(*units)
    c, x = Y if model.context_width else None, BINARY if visible == "bernoulli" else X
    machine = RBM(units, model.a, sigma=sigma, visible=visible)
    twin = machine.to_autoencoder()
    assert isinstance(twin, Twin)
    assert twin.scale == 1.0
    back = to_rbm(twin.autoencoder)
    with torch.no_grad():
        free_energy = machine.free_energy(x, c)
        assert agree(twin.negative_free_energy(x, c), -free_energy)
        assert agree(twin.autoencoder.energy(x / twin.sigma.unsqueeze(1), c) + twin.constant.unsqueeze(1), -free_energy)
        assert agree(back.rbm.free_energy(x / twin.sigma.unsqueeze(1), c), free_energy)
        assert agree(back.constant, twin.constant)


def test_a_machine_made_an_auto_encoder_keeps_its_own_units() -> None:
    model = model_of(covariance())
    machine = RBM(model.groups, model.a, sigma=SIGMA)
    before = machine.free_energy(X).detach()
    twin = machine.to_autoencoder()
    with torch.no_grad():
        for parameter in twin.autoencoder.parameters():
            parameter.add_(1)
    assert model.groups[0].repeats == 2
    assert torch.equal(machine.free_energy(X).detach(), before)


@pytest.mark.parametrize("visible", ["linear", "sigmoid"])
@pytest.mark.parametrize("kind", [mean, covariance])
def test_a_twin_shares_its_weights_with_the_auto_encoder(kind, visible) -> None:
    model, x = model_of(kind(), visible=visible), BINARY
    twin = to_rbm(model)
    with torch.no_grad():
        before = twin.rbm.free_energy(x)
        for parameter in model.groups[0].parameters():
            parameter.add_(0.3)
        assert (twin.rbm.free_energy(x) - before).abs().min() > 1e-3
        assert agree(-twin.rbm.free_energy(x), twin.negative_free_energy(x))


@pytest.mark.parametrize("visible", ["linear", "sigmoid"])
def test_a_twin_shares_its_visible_bias_with_the_auto_encoder(visible) -> None:
    model = model_of(gated(), visible=visible)
    twin = to_rbm(model)
    with torch.no_grad():
        model.a.add_(0.3)
        assert agree(-twin.rbm.free_energy(BINARY, Y), twin.negative_free_energy(BINARY, Y))
        assert agree(twin.constant, -(model.a**2).sum(1) / 2 if visible == "linear" else torch.zeros(K).double())


def test_a_machine_trains_the_units_it_was_given() -> None:
    units = mean().double()
    machine = RBM([units], normal(K, D))
    machine.free_energy(X).sum().backward()
    assert units.W.grad.abs().max() > 0
    assert machine.model.a.grad.abs().max() > 0


# --- refusals -----------------------------------------------------------------------------------------------


def test_mean_units_beside_the_papers_covariance_decoder_are_no_rbm() -> None:
    """Section 7.3, E25: their weights are 1 : 1/2."""
    with pytest.raises(InputError, match=r"no RBM at any temperature.*count once.*half.*mcrbm_from_sum"):
        to_rbm(model_of(mean(), covariance()))


@pytest.mark.parametrize("activation", ["tanh", "relu", "softmax"])
def test_units_that_are_not_sigmoid_are_no_rbm(activation) -> None:
    with pytest.raises(InputError, match=f"sigmoid activations; got {activation}: their potential is not the log"):
        to_rbm(Autoencoder(MeanUnits(K, D, M, activation)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"visible": "poisson"}, "'gaussian' or 'bernoulli'; got 'poisson'"),
        ({"sigma": 0.0}, "`sigma` must be finite and above 0"),
        ({"sigma": -1.0}, "`sigma` must be finite and above 0"),
        ({"sigma": math.nan}, "`sigma` must be finite and above 0"),
        ({"sigma": 2.0, "visible": "bernoulli"}, "Bernoulli visibles have no `sigma`"),
        ({"a": normal(D)}, "`a` must have shape"),
    ],
)
def test_bad_options_of_a_machine_are_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        RBM([mean().double()], **{"a": normal(K, D)} | options)


def test_mcrbm_from_sum_refuses_models_of_the_wrong_kind() -> None:
    right_mean, right_covariance = model_of(mean()), model_of(covariance())
    with pytest.raises(InputError, match="`mean` must be an Autoencoder of MeanUnits"):
        mcrbm_from_sum(right_covariance, right_covariance)
    with pytest.raises(InputError, match="`covariance` must be an Autoencoder of CovarianceUnits"):
        mcrbm_from_sum(right_mean, model_of(covariance(repeats=1)))
    with pytest.raises(InputError, match="with linear outputs"):
        mcrbm_from_sum(model_of(mean(), visible="sigmoid"), right_covariance)


def test_units_of_an_unknown_shape_are_refused_where_their_form_matters() -> None:
    units = NetworkUnits(nn.Linear(D, M))
    a = torch.zeros(1, D)
    with pytest.raises(InputError, match="linear or quadratic in v"):
        RBM([units], a).log_partition()
    with pytest.raises(InputError, match="NetworkUnits cannot be rescaled; use sigma = 1"):
        RBM([units], a, sigma=2.0).to_autoencoder()
    RBM([units], a).to_autoencoder()


def test_enumerations_that_would_not_end_are_refused() -> None:
    with pytest.raises(InputError, match=r"visits 2\^21 states"):
        RBM([MeanUnits(1, 2, 21)], torch.zeros(1, 2)).log_partition()


# --- normalisers --------------------------------------------------------------------------------------------


def test_log_partition_of_an_fcrbm_is_the_closed_formula() -> None:
    """E21: log int exp E dx = log sum_h exp(b.h + |a + m_h|^2 / 2) + D/2 log 2 pi, and Z depends on y."""
    twin = to_rbm(model_of(gated()))
    values = []
    with torch.no_grad():
        for y in Y[:4]:
            log_z = twin.rbm.log_partition(y.unsqueeze(0)) - twin.constant  # of exp E
            for k in range(K):
                w = raw(twin.autoencoder, k)
                h = binary_states(M, X)
                m = ((w["W_x"] @ y) * (h @ w["W_h"])) @ w["W_y"]
                terms = h @ w["b"] + ((w["a"] + m) ** 2).sum(1) / 2
                expected = torch.logsumexp(terms, 0) + D / 2 * math.log(2 * math.pi)
                assert agree(log_z[k], expected)
            values.append(log_z)
    assert torch.stack(values).std(0).min() > 0.1


def on_a_grid(machine: RBM, c: Tensor | None, reach: float = 14.0, n: int = 561) -> Tensor:
    """log int exp(-F) over the plane by the trapezoidal rule: (K,)."""
    s = torch.linspace(-reach, reach, n, dtype=torch.float64)
    v = torch.cartesian_prod(s, s)
    cell = 2 * math.log(2 * reach / (n - 1))
    return torch.logsumexp(-machine.free_energy(v, None if c is None else c.expand(len(v), -1)), -1) + cell


@pytest.mark.parametrize("sigma", [1.0, 0.6])
@pytest.mark.parametrize(
    "units",
    [
        [MeanUnits(K, 2, 4)],
        [GatedUnits(K, 2, C, 3, 4)],
        [CovarianceUnits(K, 2, 3, 4)],
        [MeanUnits(K, 2, 3), CovarianceUnits(K, 2, 3, 4, repeats=1)],
        [SymmetricGatedUnits(K, 1, 1, 3, 2)],
    ],
    ids=["mean", "gated", "covariance", "mean-covariance", "symmetric"],
)
def test_log_partition_equals_the_integral_over_the_plane(units, sigma) -> None:
    model = random_model(units, seed=6)
    with torch.no_grad():
        for group in units:
            if isinstance(group, CovarianceUnits):
                group.W_h.copy_(-group.W_h.abs())  # bounded
            if isinstance(group, SymmetricGatedUnits):
                group.W_h.mul_(0.3)
        machine = RBM(units, model.a, sigma=sigma)
        c = Y[:1] if model.context_width else None
        assert (machine.log_partition(c) - on_a_grid(machine, c)).abs().max() <= 1e-9


@pytest.mark.parametrize("units", [mean(), gated(), covariance()], ids=["mean", "gated", "covariance"])
def test_log_partition_of_bernoulli_machines_equals_the_sum_over_both_layers(units) -> None:
    model = model_of(units)
    machine = RBM(model.groups, model.a, visible="bernoulli")
    c = Y[:1] if model.context_width else None
    v, total = binary_states(D, X), []
    with torch.no_grad():
        for h in binary_states(M, X):
            energy = machine.joint_energy(v, h.expand(K, len(v), M), None if c is None else c.expand(len(v), -1))
            total.append(torch.logsumexp(-energy, -1))
        assert agree(machine.log_partition(c), torch.logsumexp(torch.stack(total), 0))


def test_a_machine_whose_energy_is_not_bounded_has_no_log_partition() -> None:
    """Section 5: large positive covariance weights; the sign of the same weights decides."""
    model = random_model([CovarianceUnits(1, D, F, M)], scale=1.0)
    machine = RBM(model.groups, model.a)
    with torch.no_grad():
        model.groups[0].W_h.copy_(-model.groups[0].W_h.abs())
        assert torch.isfinite(machine.log_partition()).all()
        model.groups[0].W_h.neg_()
        with pytest.raises(InputError, match="no normaliser"):
            machine.log_partition()


# --- mean field ---------------------------------------------------------------------------------------------


def test_the_energy_of_soft_labels_is_the_best_mean_field_bound() -> None:
    """Section 7.4: E(y|x) = max over hidden means of the bound, so E(y|x) <= log Z(x)."""
    model = model_of(gated(), visible="sigmoid")
    machine = to_rbm(model).rbm
    y = torch.sigmoid(X)

    def entropy(p: Tensor) -> Tensor:
        return -(p * p.log() + (1 - p) * (1 - p).log()).sum(-1)

    with torch.no_grad():
        for k in range(K):
            w = raw(model, k)
            u = ((Y @ w["W_x"].T) * (y @ w["W_y"].T)) @ w["W_h"].T + w["b"]

            def bound(mean_h: Tensor, w: dict[str, Tensor] = w, u: Tensor = u) -> Tensor:
                return y @ w["a"] + (mean_h * u).sum(-1) + entropy(y) + entropy(mean_h)

            energy = model.energy(y, Y)[k]
            assert agree(bound(torch.sigmoid(u)), energy)
            for seed in range(5):
                others = torch.sigmoid(u + normal(N, M, seed=seed))
                assert (bound(others) < energy).all()
            log_z = torch.stack([machine.log_partition(row.unsqueeze(0))[k] for row in Y])
            assert (energy < log_z).all()
