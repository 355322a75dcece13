"""What an Autoencoder promises beyond exactness: shapes, transforms, networks, devices, memory, and its refusals."""

import copy
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import (
    UNITS,
    VISIBLE,
    C,
    D,
    F,
    K,
    M,
    N,
    TrunkWithHeads,
    UnitsCase,
    gradient_error,
    random_context,
    random_model,
    random_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import energate.autoencoder
from energate.activations import ACTIVATIONS
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, NetworkUnits, SymmetricGatedUnits

CLOSED_FORM = UNITS[:5]

each_units = pytest.mark.parametrize("case", UNITS, ids=lambda case: case.name)
each_closed_form = pytest.mark.parametrize("case", CLOSED_FORM, ids=lambda case: case.name)
each_visible = pytest.mark.parametrize("visible", VISIBLE)
# torch calls deprecated parts of itself when it compiles and on its first forward-mode derivative
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}:torch") for kind in ("DeprecationWarning", "FutureWarning")]


def assert_equal(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def mean_covariance(visible: str = "linear") -> Autoencoder:
    return random_model([MeanUnits(K, D, 5), CovarianceUnits(K, D, F, M)], visible)


# --- losses and energies -------------------------------------------------------------------------------------------


@each_units
def test_the_linear_loss_is_half_the_squared_error(case: UnitsCase) -> None:
    model, v, c = case.model(), random_rows(), random_context(case)
    assert_equal(model.loss(v, c), (model.reconstruct(v, c) - v).square().sum(-1) / 2)


@each_units
def test_the_sigmoid_loss_is_the_cross_entropy_above_its_least_value(case: UnitsCase) -> None:
    """The Kullback-Leibler divergence from target to reconstruction; for binary targets the cross-entropy."""
    model, v, c = case.model("sigmoid", "sigmoid"), random_rows("sigmoid"), random_context(case)

    def cross_entropy(logits: Tensor, v: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(logits, v.expand_as(logits), reduction="none").sum(-1)

    assert_equal(model.loss(v, c), cross_entropy(model.preoutput(v, c), v) - cross_entropy(v.logit(), v))
    binary = v.round()
    assert_equal(model.loss(binary, c), cross_entropy(model.preoutput(binary, c), binary))


@each_visible
@each_units
def test_seen_is_what_the_encoder_gets_and_v_what_is_compared(case: UnitsCase, visible: str) -> None:
    model, v, c = case.model("tanh", visible), random_rows(visible), random_context(case)
    seen = random_rows(visible, seed=7)
    expected = model.visible.divergence(model.preoutput(seen, c), v)
    assert_equal(model.loss(v, c, seen=seen), expected)
    assert_equal(model.loss(v, c, seen=seen.expand(K, -1, -1)), expected)  # each model its own corruption
    assert_equal(model.loss(v, c, seen=v), model.loss(v, c))
    assert (model.loss(v, c) - expected).abs().min() > 1e-6


@each_visible
@each_units
def test_relative_energy_lacks_the_same_term_for_all_models(case: UnitsCase, visible: str) -> None:
    model, v, c = case.model("sigmoid", visible), random_rows(visible), random_context(case)
    assert_equal(model.relative_energy(v, c) - model.energy(v, c), model.visible.conjugate(v).expand(K, -1))


@each_visible
@each_units
def test_one_pass_gives_the_same_as_two(case: UnitsCase, visible: str) -> None:
    model, v, c = case.model("tanh", visible), random_rows(visible), random_context(case)
    energy, preoutput = model.energy_and_preoutput(v, c)
    assert_equal(energy, model.energy(v, c))
    assert_equal(preoutput, model.preoutput(v, c))


@each_units
def test_shapes(case: UnitsCase) -> None:
    model, c = case.model(), random_context(case)
    for v in (random_rows(), random_rows().expand(K, -1, -1)):
        assert model.encode(v, c).shape == (K, N, model.groups[0].n_hidden)
        assert model.energy(v, c).shape == model.loss(v, c).shape == model.relative_energy(v, c).shape == (K, N)
        assert model.reconstruct(v, c).shape == model.vector_field(v, c).shape == (K, N, D)


def test_encode_puts_the_groups_side_by_side() -> None:
    model, v = mean_covariance(), random_rows()
    assert_equal(model.encode(v), torch.cat([group.encode(v, None) for group in model.groups], -1))
    assert model.encode(v).shape == (K, N, 5 + M)


@each_units
def test_calling_the_model_gives_its_energy(case: UnitsCase) -> None:
    model, v, c = case.model(), random_rows(), random_context(case)
    assert torch.equal(model(v, c), model.energy(v, c))


@each_units
def test_shared_rows_are_the_same_rows_for_each_model(case: UnitsCase) -> None:
    model, v, c = case.model(), random_rows(), random_context(case)
    own, own_c = v.expand(K, -1, -1), None if c is None else c.expand(K, -1, -1)
    for method in ("energy", "relative_energy", "reconstruct", "encode", "loss"):
        score = getattr(model, method)
        assert_equal(score(own, c), score(v, c))
        if c is not None:
            assert_equal(score(v, own_c), score(v, c))
            assert_equal(score(own, own_c), score(v, c))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@each_units
def test_scoring_in_chunks_changes_nothing(case: UnitsCase, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, v, c = case.model(), random_rows(n_rows=600), random_context(case, n_rows=600)
    if own:
        v, c = torch.stack([v, -v, v / 2]), None if c is None else torch.stack([c, c / 2, -c])
    whole = model.energy(v, c), model.relative_energy(v, c)
    monkeypatch.setattr(energate.autoencoder, "CHUNK_VALUES", 1)
    monkeypatch.setattr(energate.autoencoder, "NETWORK_ROWS", 256)
    n_hidden = sum(group.n_hidden for group in model.groups)
    monkeypatch.setattr(energate.autoencoder, "MEMORY_VALUES", 256 * K * n_hidden)
    scored = []
    formula = model._energy
    monkeypatch.setattr(model, "_energy", lambda v, *given: scored.append(v.shape[-2]) or formula(v, *given))
    with torch.no_grad():
        assert_equal((model.energy(v, c), model.relative_energy(v, c)), whole, 1e-13)
    assert scored == [256, 256, 88] * 2
    scored.clear()
    model.energy(v, c)  # gradients want everything at once anyway
    assert scored == [600]


def test_chunks_and_vmap_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over stacked parameters, with rows that are the same for all."""
    models, v = [UNITS[0].model(seed=seed) for seed in (0, 9)], random_rows(n_rows=600)
    parameters, _ = torch.func.stack_module_state(models)
    expected = torch.stack([model.energy(v) for model in models])
    monkeypatch.setattr(energate.autoencoder, "CHUNK_VALUES", 1)
    monkeypatch.setattr(energate.autoencoder, "NETWORK_ROWS", 256)
    with torch.no_grad():
        assert_equal(torch.func.vmap(lambda p: torch.func.functional_call(models[0], p, (v,)))(parameters), expected)


@each_closed_form
def test_select_keeps_the_given_models_in_order(case: UnitsCase) -> None:
    model, v, c = case.model(), random_rows(), random_context(case)
    energy = model.energy(v, c)
    assert_equal(model.select(1).energy(v, c), energy[[1]])
    assert_equal(model.select([2, 0]).energy(v, c), energy[[2, 0]])
    assert_equal(model.select(-1).energy(v[None], c), energy[[2]])
    assert model.select([2, 0]).n_models == model.select([2, 0]).groups[0].n_models == 2
    with torch.no_grad():
        model.select(0).a.add_(1)
    assert torch.equal(model.energy(v, c), energy)  # a copy


@pytest.mark.parametrize("models", [[], 3, -4, [0, 3]])
def test_select_refuses_models_that_are_not_there(models: Any) -> None:
    with pytest.raises(InputError, match="some of the 3 models"):
        CLOSED_FORM[0].model().select(models)


def test_select_refuses_networks() -> None:
    with pytest.raises(InputError, match="shares its parts"):
        UNITS[5].model().select(0)


@given(
    kind=st.sampled_from(["mean", "gated", "symmetric", "covariance", "covariance-once"]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    visible=st.sampled_from(VISIBLE),
    sizes=st.tuples(*[st.integers(1, 6)] * 6),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=50)
def test_energies_of_any_size_are_exact(
    kind: str, activation: str, visible: str, sizes: tuple[int, ...], seed: int
) -> None:
    """Items 5, 7, 10, 11, 12, down to sizes of 1."""
    n_models, n_rows, n_visible, n_context, n_factors, n_hidden = sizes
    units: HiddenUnits = {
        "mean": lambda: MeanUnits(n_models, n_visible, n_hidden, activation),
        "gated": lambda: GatedUnits(n_models, n_visible, n_context, n_factors, n_hidden, activation),
        "symmetric": lambda: SymmetricGatedUnits(n_models, n_visible, n_context, n_factors, n_hidden, activation),
        "covariance": lambda: CovarianceUnits(n_models, n_visible, n_factors, n_hidden, activation),
        "covariance-once": lambda: CovarianceUnits(n_models, n_visible, n_factors, n_hidden, activation, repeats=1),
    }[kind]()
    model = random_model([units], visible, seed)
    c = random_rows(width=n_context, n_rows=n_rows, seed=seed + 1) if kind == "gated" else None
    v = random_rows(visible, model.width, n_models * n_rows, seed + 2).view(n_models, n_rows, -1)
    assert gradient_error(lambda v: model.energy(v, c), lambda v: model.vector_field(v, c), v) <= 1e-10


# --- torch's transforms ------------------------------------------------------------------------------------------


def energy_loss_field(model: Autoencoder) -> Callable[..., tuple[Tensor, ...]]:
    return lambda v, c: (model.energy(v, c), model.loss(v, c), model.vector_field(v, c))


def check_compiled(model: Autoencoder, v: Tensor, c: Tensor | None, backend: str) -> None:
    """One graph without breaks, with the values and the parameter gradients of the plain model."""
    torch.compiler.reset()
    plain = energy_loss_field(model)
    compiled = torch.compile(plain, fullgraph=True, backend=backend)
    tolerance = 1e-10 if v.dtype == torch.float64 else 1e-4
    assert_equal(compiled(v, c), plain(v, c), tolerance)
    parameters = list(model.parameters())
    total = lambda outputs: outputs[0].sum() + outputs[1].sum()  # noqa: E731
    gradients = torch.autograd.grad(total(compiled(v, c)), parameters)
    assert_equal(gradients, torch.autograd.grad(total(plain(v, c)), parameters), tolerance)


@each_visible
@each_units
def test_models_compile_to_one_graph(case: UnitsCase, visible: str) -> None:
    check_compiled(case.model("tanh", visible), random_rows(visible), random_context(case), "aot_eager")


@pytest.mark.slow
def test_models_compile_to_machine_code() -> None:
    check_compiled(UNITS[0].model(visible="sigmoid"), random_rows("sigmoid"), None, "inductor")


@each_units
def test_scoring_without_gradients_compiles(case: UnitsCase) -> None:
    torch.compiler.reset()
    model, v, c = case.model(), random_rows(), random_context(case)
    with torch.no_grad():
        assert_equal(torch.compile(model, fullgraph=True, backend="aot_eager")(v, c), model(v, c))


@each_units
def test_vmap_over_an_extra_axis(case: UnitsCase) -> None:
    model, c = case.model(), random_context(case)
    batches = torch.stack([random_rows(seed=seed) for seed in range(4)])
    for plain in (lambda v: model.energy(v, c), lambda v: model.vector_field(v, c)):
        assert_equal(torch.func.vmap(plain)(batches), torch.stack([plain(v) for v in batches]))


@each_visible
@each_units
def test_the_hessian_of_the_energy_is_the_jacobian_of_the_field(case: UnitsCase, visible: str) -> None:
    model, c, v = case.model("tanh", visible), random_context(case, 1), random_rows(visible, n_rows=1)
    J = torch.func.jacrev(lambda v: model.vector_field(v, c))(v)  # (K, 1, D, 1, D)
    assert_equal(torch.func.jacrev(lambda v: model.energy(v, c))(v)[:, 0, 0], model.vector_field(v, c)[:, 0])
    hessian = torch.func.hessian(lambda v: model.energy(v, c))(v)  # (K, 1, 1, D, 1, D)
    assert_equal(hessian[:, 0], J)


@each_units
def test_functional_call_runs_on_other_parameters(case: UnitsCase) -> None:
    model, other, v, c = case.model(), case.model(seed=9), random_rows(), random_context(case)
    parameters = dict(other.named_parameters())
    assert_equal(torch.func.functional_call(model, parameters, (v, c)), other.energy(v, c))
    gradients = torch.func.grad(lambda p: torch.func.functional_call(model, p, (v, c)).sum())(parameters)
    expected = torch.autograd.grad(other.energy(v, c).sum(), list(parameters.values()))
    assert_equal(tuple(gradients.values()), expected)


@each_visible
@each_units
def test_float32_and_float64_agree(case: UnitsCase, visible: str) -> None:
    model, v, c = case.model("tanh", visible), random_rows(visible), random_context(case)
    double = energy_loss_field(model)(v, c)
    single = energy_loss_field(model.float())(v.float(), None if c is None else c.float())
    assert all(part.dtype == torch.float32 for part in single)
    assert_equal(tuple(part.double() for part in single), double, 1e-4)


@each_units
def test_copies_score_the_same(case: UnitsCase) -> None:
    model, v, c = case.model("softplus"), random_rows(), random_context(case)
    restored = case.model("softplus", seed=9)
    assert (restored.energy(v, c) - model.energy(v, c)).abs().min() > 1e-6
    restored.load_state_dict(model.state_dict())
    for twin in (restored, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin.energy(v, c), model.energy(v, c))
        assert torch.equal(twin.reconstruct(v, c), model.reconstruct(v, c))


def test_a_generator_makes_models_repeatable_and_does_not_hinder_copies() -> None:
    build = lambda seed: Autoencoder(CovarianceUnits(2, 5, 4, 3, generator=torch.Generator().manual_seed(seed)))  # noqa: E731
    first, second, v = build(1), build(1), torch.randn(6, 5)
    assert torch.equal(first.energy(v), second.energy(v))
    assert not torch.equal(first.energy(v), build(2).energy(v))
    for twin in (copy.deepcopy(first), pickle.loads(pickle.dumps(first)), first.select([0, 1])):
        assert torch.equal(twin.energy(v), first.energy(v))


def test_what_a_model_prints() -> None:
    text = repr(Autoencoder([GatedUnits(2, 5, 4, 3, 6, "tanh")], "sigmoid"))
    assert "n_models=2, width=5, n_hidden=6, activation='tanh', context_width=4" in text
    assert "visible='sigmoid'" in text


# --- GPU ----------------------------------------------------------------------------------------------------------


def on_gpu(case: UnitsCase, visible: str) -> tuple[Autoencoder, Tensor, Tensor | None]:
    c = random_context(case)
    return case.model("tanh", visible).cuda(), random_rows(visible).cuda(), None if c is None else c.cuda()


@pytest.mark.gpu
@each_visible
@each_units
def test_the_gpu_agrees_with_the_cpu(case: UnitsCase, visible: str) -> None:
    expected = energy_loss_field(case.model("tanh", visible))(random_rows(visible), random_context(case))
    model, v, c = on_gpu(case, visible)
    assert_equal(tuple(part.cpu() for part in energy_loss_field(model)(v, c)), expected, 1e-10)
    gradients = torch.autograd.grad(model.loss(v, c).sum(), list(model.parameters()))
    assert all(gradient.is_cuda and torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.gpu
@each_units
def test_models_compile_on_the_gpu(case: UnitsCase) -> None:
    check_compiled(*on_gpu(case, "sigmoid"), "inductor")


@pytest.mark.gpu
def test_a_network_with_dropout_can_be_wrapped_on_the_gpu() -> None:
    """The same draw for both probes, or dropout looks like rows that influence each other."""
    network = nn.Sequential(nn.Linear(D, 40), nn.Dropout(), nn.Linear(40, M)).cuda()
    assert NetworkUnits(network).n_hidden == M


# --- networks -------------------------------------------------------------------------------------------------------


def test_a_network_of_rows_is_one_model() -> None:
    model = random_model([NetworkUnits(nn.Sequential(nn.Linear(D, 9), nn.Tanh(), nn.Linear(9, M)))])
    v = random_rows()
    assert (model.n_models, model.width) == (1, D)
    assert gradient_error(model.energy, lambda v: model.vector_field(v)[0], v) <= 1e-12
    assert_equal(model.energy(v[None]), model.energy(v))


class RowsOnly(nn.Module):
    """The same function as the network it holds, for (N, D) alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, v: Tensor) -> Tensor:
        if v.ndim != 2:
            raise ValueError("rows only")
        return self.network(v)


def test_networks_for_slices_and_for_rows_agree() -> None:
    slices = NetworkUnits(TrunkWithHeads(), D)
    rows = NetworkUnits(RowsOnly(slices.network), D)
    assert slices._takes_slices
    assert not rows._takes_slices
    models = [random_model([slices]), random_model([rows])]
    for v in (random_rows(), random_rows(n_rows=K * N).view(K, N, D)):
        for method in ("energy", "vector_field", "loss"):
            assert_equal(getattr(models[0], method)(v), getattr(models[1], method)(v))


class MeanHeads(nn.Module):
    """Runs on (K, N, D), but head k does not see slice k alone."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = TrunkWithHeads()

    def forward(self, v: Tensor) -> Tensor:
        return self.heads(v if v.ndim == 2 else v.mean(0))


def test_a_network_that_misreads_slices_is_not_trusted_with_them() -> None:
    units = NetworkUnits(MeanHeads(), D)
    assert not units._takes_slices
    model = random_model([units])
    own = random_rows(n_rows=K * N).view(K, N, D)
    assert_equal(model.energy(own), torch.stack([model.energy(own[k])[k] for k in range(K)]))


def test_batch_normalisation_is_refused_in_training_and_exact_in_evaluation() -> None:
    network = nn.Sequential(nn.Linear(D, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, M))
    with pytest.raises(InputError, match="Batch normalisation in training mode"):
        NetworkUnits(network)
    assert network[1].num_batches_tracked == 0  # refused before anything was changed
    network[1].running_mean.normal_()
    model = Autoencoder(NetworkUnits(network.eval())).double()
    assert gradient_error(model.energy, lambda v: model.vector_field(v)[0], random_rows()) <= 1e-12
    model.train()
    for score in (model.energy, model.reconstruct):
        with pytest.raises(InputError, match="Batch normalisation in training mode"):
            score(random_rows())


def test_batch_normalisation_without_statistics_is_refused() -> None:
    network = nn.Sequential(nn.Linear(D, 9), nn.BatchNorm1d(9, track_running_stats=False)).eval()
    with pytest.raises(InputError, match="Batch normalisation"):
        NetworkUnits(network)


class Centred(nn.Module):
    """A row-mixing layer that is no batch normalisation."""

    def forward(self, v: Tensor) -> Tensor:
        return v - v.mean(0)


def test_a_layer_that_mixes_rows_is_refused() -> None:
    with pytest.raises(InputError, match="lets rows of a batch influence each other"):
        NetworkUnits(nn.Sequential(nn.Linear(D, 9), Centred(), nn.Linear(9, M)))


def test_dropout_has_an_energy_but_no_decoder() -> None:
    model = Autoencoder(NetworkUnits(nn.Sequential(nn.Linear(D, 40), nn.Dropout(), nn.Linear(40, M)))).double()
    v = random_rows()
    assert not torch.equal(model.energy(v), model.energy(v))  # another draw each time
    model.energy(v).sum().backward()
    for score in (model.reconstruct, model.loss, model.vector_field):
        with pytest.raises(InputError, match="dropout in training mode has no fixed decoder"):
            score(v)
    model.eval()
    assert gradient_error(model.energy, lambda v: model.vector_field(v)[0], v) <= 1e-12


def test_wrapping_a_network_draws_no_random_numbers() -> None:
    network = nn.Sequential(nn.Linear(D, 40), nn.Dropout(), nn.Linear(40, M))
    state = torch.get_rng_state()
    NetworkUnits(network)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def convolutional() -> Autoencoder:
    network = nn.Sequential(
        nn.Unflatten(-1, (1, 4, 6)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.Flatten(-3),
        nn.Linear(96, M),
    )
    return random_model([NetworkUnits(network, n_visible=24, activation="softplus")], scale=0.3)


def test_a_convolutional_auto_encoder_is_exact(convolutional: Autoencoder) -> None:
    v = random_rows(width=24)
    assert gradient_error(convolutional.energy, lambda v: convolutional.vector_field(v)[0], v) <= 1e-12


def test_a_convolutional_auto_encoder_trains_through_double_backward(convolutional: Autoencoder) -> None:
    """The loss holds a derivative of the network; its parameter gradient against central differences."""
    model, v = convolutional, random_rows(width=24)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(model.loss(v).sum(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn_like(parameter)
        step = 1e-5 * direction
        with torch.no_grad():
            above = (parameter.add_(step), model.loss(v).sum())[1]
            below = (parameter.sub_(2 * step), model.loss(v).sum())[1]
            parameter.add_(step)
        assert float((gradient * direction).sum()) == pytest.approx(float(above - below) / 2e-5, rel=1e-6, abs=1e-6)


def test_a_network_can_take_a_context() -> None:
    model = UNITS[6].model()
    assert (model.width, model.context_width) == (D, C)
    c = random_context(UNITS[6])
    assert (model.energy(random_rows(), c) - model.energy(random_rows(), -c)).abs().min() > 1e-6


def test_the_width_of_a_network_must_be_known() -> None:
    with pytest.raises(InputError, match=r"`n_visible`.*Pass NetworkUnits\(network, n_visible=...\)"):
        NetworkUnits(nn.Sequential(nn.Tanh(), nn.Linear(4, 6)))


def test_a_network_must_keep_its_rows() -> None:
    with pytest.raises(InputError, match=r"\(N, M\) for one model; for \(2, 7\) it returned \(14,\)"):
        NetworkUnits(nn.Flatten(0), n_visible=D)


# --- what is refused ------------------------------------------------------------------------------------------------


MEAN = CLOSED_FORM[0]
GATED = CLOSED_FORM[1]
v, c = random_rows(), random_context(GATED)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((v[:, :-1],), r"`v` must have shape \(N, 7\), or \(3, N, 7\).*; got \(11, 6\)\.$"),
        ((v[0],), r"got \(7,\)\. Give one row as v\[None\]"),
        ((v.view(N, D, 1),), r"got \(11, 7, 1\)\. Flatten images with .flatten\(1\)"),
        ((v.view(N, 1, D, 1),), r"Flatten images with .flatten\(1\)"),
        ((v.expand(2, N, D),), "has rows for 2 models, this is an Autoencoder of 3"),
        ((v[:0],), r"at least one row; got shape \(0, 7\)"),
        ((v.numpy(),), "must be a torch tensor; got ndarray. Use torch.as_tensor"),
        ((v.float(),), r"the model's dtype torch.float64; got torch.float32. Convert .* v.to\(torch.float64\)"),
        ((v.round().long(),), "dtype torch.float64; got torch.int64"),
        ((v.to("meta"),), r"on the model's device cpu; it is on meta. Move .* v.to\('cpu'\)"),
        ((v, c), r"takes no context; got `c` of shape \(11, 4\). Leave it out"),
    ],
)
@pytest.mark.parametrize("method", ["energy", "relative_energy", "reconstruct", "encode", "loss", "vector_field"])
def test_rows_that_do_not_fit_are_refused(method: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        getattr(MEAN.model(), method)(*arguments)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (None, "takes a context `c` with 4 columns; none was given. Pass it as the second argument"),
        (c[:, :-1], r"`c` must have shape \(N, 4\)"),
        (c[:-1], "`v` and `c` must have as many rows each; got 11 and 10"),
        (c.expand(2, N, C), "`c` .* has rows for 2 models"),
        (c.float(), "`c` must have the model's dtype"),
        (c.to("meta"), "`c` must be on the model's device"),
        (c.numpy(), "`c` must be a torch tensor"),
    ],
)
def test_contexts_that_do_not_fit_are_refused(context: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GATED.model().energy(v, context)


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (v[:-1], "`seen` must have as many rows as `v`, 11; got 10"),
        (v[:, :-1], r"`seen` must have shape \(N, 7\)"),
        (v.float(), "`seen` must have the model's dtype"),
    ],
)
def test_a_corrupted_copy_must_fit_its_rows(seen: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MEAN.model().loss(v, seen=seen)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "3", None, math.nan])
@pytest.mark.parametrize(
    ("build", "names"),
    [
        (MeanUnits, ["n_models", "n_visible", "n_hidden"]),
        (GatedUnits, ["n_models", "n_visible", "n_context", "n_factors", "n_hidden"]),
        (SymmetricGatedUnits, ["n_models", "n_visible", "n_context", "n_factors", "n_hidden"]),
        (CovarianceUnits, ["n_models", "n_visible", "n_factors", "n_hidden"]),
    ],
)
def test_sizes_must_be_whole_and_positive(build: Callable[..., HiddenUnits], names: list[str], size: Any) -> None:
    for wrong in names:
        with pytest.raises(InputError, match=f"`{wrong}` must be a whole number of at least 1; got {size!r}"):
            build(**{name: size if name == wrong else 3 for name in names})


@pytest.mark.parametrize("n_visible", [0, -1, True, 2.0])
def test_the_width_of_a_network_must_be_whole_and_positive(n_visible: Any) -> None:
    with pytest.raises(InputError, match="`n_visible` must be a whole number of at least 1"):
        NetworkUnits(nn.Linear(D, M), n_visible)


@pytest.mark.parametrize("repeats", [0, 3, "2"])
def test_covariance_units_repeat_once_or_twice(repeats: Any) -> None:
    with pytest.raises(InputError, match="`repeats` must be 2"):
        CovarianceUnits(1, D, F, M, repeats=repeats)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MeanUnits(1, D, M, "sigmoyd"), "Did you mean 'sigmoid'?"),
        (lambda: Autoencoder([]), r"non-empty list of them; got \[\]. For example Autoencoder\("),
        (lambda: Autoencoder([nn.Linear(3, 3)]), "`units` must be HiddenUnits or a non-empty list"),
        (lambda: Autoencoder([MeanUnits(1, D, M)], "sigmoyd"), "Did you mean 'sigmoid'?"),
        (lambda: Autoencoder([MeanUnits(1, D, M)], "tanh"), "`visible` must be .* sigmoid or linear; got 'tanh'"),
        (lambda: Autoencoder([MeanUnits(1, D, M), MeanUnits(2, D, M)]), r"agree on n_models; got \[1, 2\]"),
        (lambda: Autoencoder([MeanUnits(1, D, M), MeanUnits(1, 5, M)]), r"agree on the width of v; got \[5, 7\]"),
        (
            lambda: Autoencoder([GatedUnits(1, D, 2, F, M), GatedUnits(1, D, 3, F, M)]),
            r"agree on `n_context`; got \[2, 3\]",
        ),
    ],
)
def test_models_that_cannot_be_built_are_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


# --- memory ----------------------------------------------------------------------------------------------------------


SCORE_MANY_ROWS = """
import resource, torch
from energate import Autoencoder, CovarianceUnits, MeanUnits
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
model = Autoencoder([MeanUnits(10, 100, 300), CovarianceUnits(10, 100, 100, 300)])
v = torch.rand(30_000, 100)
before = peak()
with torch.no_grad():
    energy = model.energy(v)
assert energy.shape == (10, 30_000)
print(peak() - before)
"""


@pytest.mark.slow
def test_scoring_takes_bounded_memory() -> None:
    """All at once each intermediate would take 360 MB; results kept chunk by chunk pinned as much."""
    run = subprocess.run([sys.executable, "-c", SCORE_MANY_ROWS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2**27


# --- what a network says of itself -----------------------------------------------------------------------------------


def test_the_width_of_an_image_network_is_read_off_its_first_layer() -> None:
    network = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(4, 5))
    units = NetworkUnits(network, n_models=1, n_hidden=5)
    assert (units.width, units.n_models, units.n_hidden) == (6, 1, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_models": 2}, "`n_models` is 2, but the network gives 1"),
        ({"n_hidden": 4}, f"`n_hidden` is 4, but the network gives {M}"),
        ({"n_visible": D + 1}, f"failed on rows of {D + 1} columns"),
        ({"n_context": 3}, "and a context of 3"),
    ],
)
def test_a_network_that_is_not_as_described_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NetworkUnits(nn.Linear(D, M), **options)
