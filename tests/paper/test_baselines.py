"""The baselines: the mathematics of each by enumeration, and their manners as scikit-learn classifiers."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.paper.baselines import DropoutMLP, GatedSoftmax, RBMClassifier, StackedAutoencoderClassifier
from energate.paper.baselines.networks import GatedNetwork, Perceptron
from energate.paper.baselines.rbm import centred, contrast, gibbs, with_gradients
from energate.rbm import RBM, binary_states
from energate.units import MeanUnits

#: every classifier, small and quick, and the error on 397 digits that it must stay below after 800 rows
SYSTEMS: dict[str, tuple[Any, float]] = {
    "rbm": (RBMClassifier(n_hidden=100, pretrain_epochs=20, max_epochs=60, learning_rate=5e-3), 0.06),
    "stacked": (StackedAutoencoderClassifier(n_hidden=64, pretrain_epochs=20, max_epochs=60, learning_rate=5e-3), 0.11),
    "gated": (GatedSoftmax(n_hidden=30, n_factors=30, max_epochs=40, learning_rate=3e-3), 0.06),
    "dropout": (DropoutMLP(n_hidden=100, max_epochs=60), 0.06),
}
each_system = pytest.mark.parametrize("name", SYSTEMS)


def quick(name: str, **parameters: Any) -> Any:
    """A small classifier that takes a few steps, for tests that do not ask how well it learns."""
    short = {key: 3 for key in ("max_epochs", "pretrain_epochs") if key in SYSTEMS[name][0].get_params()}
    return clone(SYSTEMS[name][0]).set_params(**{"random_state": 0, "n_hidden": 12, **short, **parameters})


def digits(n_rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Digits in random order: the file has them sorted by writer."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:n_rows]
    return X[order], y[order]


def tiny_rbm(n_visible: int = 4, n_hidden: int = 3, visible: str = "bernoulli") -> RBM:
    units = MeanUnits(1, n_visible, n_hidden)
    rbm = RBM([units], torch.zeros(1, n_visible), visible=visible).double()
    with torch.no_grad():
        for parameter in rbm.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
    return rbm


# --- the restricted Boltzmann machine ------------------------------------------------------------------------


def joint_table(rbm: RBM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All visible states, all hidden states, and the probability of each pair (V, H), by enumeration."""
    v, h = binary_states(rbm.model.width, rbm.model.a), binary_states(rbm.groups[0].n_hidden, rbm.model.a)
    pairs_v, pairs_h = v.repeat_interleave(len(h), 0), h.repeat(len(v), 1)
    weights = -rbm.joint_energy(pairs_v, pairs_h.unsqueeze(0))[0]
    return v, h, torch.softmax(weights, 0).reshape(len(v), len(h)).detach()


def test_conditionals_of_the_machine_are_those_of_the_enumerated_joint() -> None:
    rbm = tiny_rbm()
    v, h, joint = joint_table(rbm)
    hidden_given_visible = joint @ h / joint.sum(1, keepdim=True)
    visible_given_hidden = joint.T @ v / joint.sum(0).unsqueeze(1)
    torch.testing.assert_close(rbm.groups[0].encode(v, None)[0], hidden_given_visible, rtol=1e-12, atol=1e-12)
    mean = torch.sigmoid(rbm.groups[0].decode(h.unsqueeze(0), None) + rbm.model.a.unsqueeze(1))[0]
    torch.testing.assert_close(mean, visible_given_hidden, rtol=1e-12, atol=1e-12)


def test_one_step_of_gibbs_sampling_has_the_enumerated_distribution_given_its_start() -> None:
    rbm, n_chains = tiny_rbm(), 40_000
    v, _, joint = joint_table(rbm)
    start = 5
    hidden = joint[start] / joint[start].sum()  # p(h | start)
    expected = hidden @ (joint / joint.sum(0)).T  # (V,): sum_h p(h | start) p(v | h)
    rows = gibbs(rbm, v[start].expand(n_chains, -1), 1, True, torch.Generator().manual_seed(1))
    seen = (rows.unsqueeze(1) == v).all(-1).double().mean(0)
    assert float(((seen - expected).abs() / (expected * (1 - expected) / n_chains).sqrt()).max()) < 4.5
    mean_field = gibbs(rbm, v[start].expand(n_chains, -1), 1, False, torch.Generator().manual_seed(1))
    torch.testing.assert_close(mean_field.mean(0), expected @ v, rtol=0.02, atol=0.01)
    assert ((mean_field > 0) & (mean_field < 1)).all()


def test_long_chains_forget_their_start_and_reach_the_model() -> None:
    rbm, n_chains = tiny_rbm(), 20_000
    v, _, joint = joint_table(rbm)
    rows = gibbs(rbm, torch.ones(n_chains, 4, dtype=torch.float64), 60, True, torch.Generator().manual_seed(2))
    seen, expected = (rows.unsqueeze(1) == v).all(-1).double().mean(0), joint.sum(1)
    assert float(((seen - expected).abs() / (expected * (1 - expected) / n_chains).sqrt()).max()) < 4.5


def test_contrast_with_rows_of_the_model_has_the_gradient_of_the_likelihood() -> None:
    rbm = tiny_rbm()
    data = torch.randint(0, 2, (7, 4)).double()
    v, _, joint = joint_table(rbm)
    exact = rbm.free_energy(data).mean() + rbm.log_partition()[0]
    expected = torch.autograd.grad(exact, list(rbm.parameters()))
    # The mean over the model's own distribution instead of over its samples.
    of_model = (joint.sum(1) * rbm.free_energy(v)[0]).sum()
    found = torch.autograd.grad(rbm.free_energy(data).mean() - of_model, list(rbm.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    # The same from samples: each in proportion to its probability, up to rounding to whole rows.
    counts = (joint.sum(1) * 200_000).round().long()
    sampled = torch.autograd.grad(contrast(rbm, data, v.repeat_interleave(counts, 0)), list(rbm.parameters()))
    torch.testing.assert_close(sampled, expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(n_visible=st.integers(1, 5), n_hidden=st.integers(1, 5), seed=st.integers(0, 1000))
def test_contrast_is_the_negative_phase_less_the_positive_phase(n_visible, n_hidden, seed) -> None:
    torch.manual_seed(seed)
    rbm = tiny_rbm(n_visible, n_hidden)
    positive, negative = torch.rand(6, n_visible).double(), torch.rand(9, n_visible).double()
    contrast(rbm, positive, negative).backward()
    units: Any = rbm.groups[0]

    def statistics(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = torch.sigmoid(v @ units.W[0].T + units.b[0]).detach()
        return h.T @ v / len(v), h.mean(0), v.mean(0)

    gradients = (units.W.grad[0], units.b.grad[0], rbm.model.a.grad[0])
    for gradient, plus, minus in zip(gradients, statistics(positive), statistics(negative), strict=True):
        torch.testing.assert_close(gradient, minus - plus, rtol=1e-11, atol=1e-12)


def test_centred_gradients_are_those_of_the_same_machine_over_centred_units() -> None:
    rbm, mean_v, mean_h = tiny_rbm(), torch.rand(4).double(), torch.rand(3).double()
    data, model = torch.rand(6, 4).double(), torch.rand(9, 4).double()
    units: Any = rbm.groups[0]
    own = [units.W, units.b, rbm.model.a]
    found = centred([g[0] for g in torch.autograd.grad(contrast(rbm, data, model), own)], mean_v, mean_h)
    # A small step in W, b' = b + W mean_v and a' = a + W^T mean_h, seen in W, b and a.
    W, b, a = (p.detach()[0].clone() for p in own)
    primed = [p.requires_grad_() for p in (W, b + W @ mean_v, a + mean_h @ W)]

    def biases(W: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return b - W @ mean_v, a - mean_h @ W

    def value(*parameters: torch.Tensor) -> torch.Tensor:
        b, a = biases(*parameters)
        free = [-rows @ a - torch.nn.functional.softplus(rows @ parameters[0].T + b).sum(1) for rows in (data, model)]
        return free[0].mean() - free[1].mean()

    steps = torch.autograd.grad(value(*primed), primed)
    moved = biases(*steps)  # they are linear
    torch.testing.assert_close(found, [steps[0], *moved], rtol=1e-11, atol=1e-12)


def test_a_value_can_be_given_other_gradients() -> None:
    p, q = torch.ones(2, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    value = with_gradients((p.sum() * q.sum()), [p, q], [torch.tensor([5.0, 6.0]), torch.zeros(3)])
    assert float(value.detach()) == 12.0
    value.backward()
    assert p.grad is not None
    assert q.grad is not None
    assert (p.grad.tolist(), q.grad.tolist()) == ([5.0, 6.0], [0.0, 0.0, 0.0])


def activities(model: Any, X: np.ndarray) -> torch.Tensor:
    """The mean of each hidden unit over the rows, before fine-tuning."""
    means: torch.Tensor = model.rbm_.groups[0].encode(torch.as_tensor(model.scaler_(X)), None)[0].mean(0).detach()
    return means


def test_hidden_units_start_at_their_activity_and_are_drawn_to_it() -> None:
    X, y = digits(200)
    start = quick("rbm", pretrain_epochs=0, activity=0.2, n_hidden=40).fit(X, y)
    torch.testing.assert_close(activities(start, X), torch.full((40,), 0.2).double(), rtol=0, atol=0.02)
    free, drawn = (
        quick("rbm", pretrain_epochs=60, activity=0.2, n_hidden=40, sparsity=sparsity, batch_size=20).fit(X, y)
        for sparsity in (0.0, 3.0)
    )
    assert float((activities(drawn, X) - 0.2).abs().mean()) < 0.03
    assert float((activities(free, X) - 0.2).abs().mean()) > 0.06


def test_the_l1_penalty_makes_weights_small_that_the_rows_do_not_need() -> None:
    X, y = digits(200)
    plain, penalised = (quick("rbm", pretrain_epochs=60, l1=l1, batch_size=20).fit(X, y) for l1 in (0.0, 3e-3))
    small = [(model.rbm_.groups[0].W.detach().abs() < 0.02).double().mean() for model in (plain, penalised)]
    assert small[1] > 2 * small[0]


def test_the_first_stacked_layer_starts_at_its_activity_and_the_l1_penalty_is_on_its_weights() -> None:
    X, y = digits(200)
    kept: dict[str, Any] = {"early_stopping": False, "max_epochs": 0, "batch_size": 20, "n_hidden": 30}

    def first(**parameters: Any) -> tuple[torch.Tensor, torch.Tensor]:
        model = quick("stacked", **kept, **parameters).fit(X, y)
        W, b = model.model_.W[0].detach(), model.model_.b[0].detach()
        return W, torch.sigmoid(torch.as_tensor(model.scaler_(X)) @ W.T + b).mean(0)

    # Steps of almost no size: layers are pretrained, and stay where they start.
    _, start = first(activity=0.1, pretrain_epochs=1, pretrain_learning_rate=1e-9)
    torch.testing.assert_close(start, torch.full((30,), 0.1).double(), rtol=0, atol=0.02)
    _, usual = first(pretrain_epochs=1, pretrain_learning_rate=1e-9)
    assert float(usual.std()) > 0.1
    plain, penalised = (first(activity=0.1, l1=l1, pretrain_epochs=40)[0] for l1 in (0.0, 1e-2))
    small = [float((W.abs() < 0.02).double().mean()) for W in (plain, penalised)]
    assert small[1] > 2 * small[0]


@pytest.mark.parametrize("name", ["rbm", "stacked"])
def test_pretrained_layers_take_their_share_of_the_rate(name) -> None:
    X, y = digits()
    kept: dict[str, Any] = {"early_stopping": False, "max_epochs": 0, "n_hidden": 20}
    start = quick(name, **kept).fit(X, y).model_

    def moved(share: float) -> list[float]:
        tuned = quick(name, **{**kept, "max_epochs": 3, "pretrained_rate": share}).fit(X, y).model_
        return [float((a - b).detach().abs().mean()) for a, b in zip(tuned.W, start.W, strict=True)]

    none, some, full = moved(0.0), moved(0.1), moved(1.0)
    assert none[:-1] == [0.0] * (len(none) - 1)
    assert none[-1] > 0
    assert all(0 < few < 0.3 * many for few, many in zip(some[:-1], full[:-1], strict=True))


def test_gaussian_visible_units_are_sampled_around_their_mean_with_variance_1() -> None:
    rbm = tiny_rbm(2, 1, "gaussian")
    with torch.no_grad():
        rbm.groups[0].b.fill_(100.0)  # the hidden unit is always on
    rows = gibbs(rbm, torch.zeros(20_000, 2).double(), 1, True, torch.Generator().manual_seed(0))
    mean = (rbm.groups[0].W[0, 0] + rbm.model.a[0]).detach()
    torch.testing.assert_close(rows.mean(0), mean, rtol=0, atol=0.03)
    torch.testing.assert_close(rows.var(0), torch.ones(2).double(), rtol=0, atol=0.04)
    exact = gibbs(rbm, torch.zeros(3, 2).double(), 1, False)
    torch.testing.assert_close(exact, mean.expand(3, -1), rtol=1e-12, atol=1e-12)


def test_contrastive_divergence_raises_the_likelihood_of_its_rows() -> None:
    rng = np.random.default_rng(0)
    X = np.repeat(rng.integers(0, 2, (3, 8)), 40, 0).astype(float)
    X, y = np.abs(X - (rng.random(X.shape) < 0.05)), np.repeat([0, 1, 2], 40)
    kept: dict[str, Any] = {"n_hidden": 6, "pretrain_learning_rate": 0.1, "max_epochs": 1, "random_state": 0}
    kept |= {"sparsity": 0.0, "l1": 0.0, "batch_size": 10}

    def log_likelihood(n_epochs: int) -> float:
        model = RBMClassifier(pretrain_epochs=n_epochs, **kept).fit(X, y)
        rows = torch.as_tensor(model.scaler_(X))
        return float(-(model.rbm_.free_energy(rows).mean() + model.rbm_.log_partition()).detach())

    before, after = log_likelihood(0), log_likelihood(100)
    p = X.mean(0)
    independent = (p * np.log(p) + (1 - p) * np.log(1 - p)).sum()
    assert before == pytest.approx(independent, abs=0.1)  # visible biases start at the means of the columns
    assert after > before + 1.2


# --- the other networks ----------------------------------------------------------------------------------------


def gated_network() -> tuple[GatedNetwork, torch.Tensor]:
    network = GatedNetwork(5, 3, 4, 6, torch.Generator().manual_seed(0), centre=torch.rand(5)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
    return network, torch.randn(8, 5, dtype=torch.float64)


def test_hidden_units_of_the_gated_softmax_are_summed_over() -> None:
    network, x = gated_network()
    centred_x = x - network.centre
    W_x, W_y, W_h, b = (p.detach()[0] for p in network.units.parameters())
    h = binary_states(6, x)  # (2^6, 6)
    scores = torch.empty(8, 3, len(h), dtype=torch.float64)
    for n in range(8):
        for y in range(3):
            for state in range(len(h)):
                three_way = sum(h[state] @ W_h[:, f] * (W_x[f] @ centred_x[n]) * W_y[f, y] for f in range(4))
                scores[n, y, state] = network.a[y].detach() + h[state] @ b + three_way
    joint = torch.softmax(scores.flatten(1), 1).reshape(scores.shape)
    torch.testing.assert_close(torch.softmax(network(x), 1), joint.sum(-1), rtol=1e-11, atol=1e-13)


def test_dropout_in_the_gated_softmax_is_of_rows_and_of_factors_and_only_in_training() -> None:
    network, x = gated_network()
    with torch.no_grad():
        network.units.b.fill_(1000.0)  # all hidden units on: logits are linear in the rows
    noise = torch.Generator().manual_seed(0)
    expected = network(x).detach()
    torch.testing.assert_close(network(x, noise), expected)  # no dropout
    for name in ("dropout", "factor_dropout"):
        setattr(network, name, 0.5)
        torch.testing.assert_close(network(x), expected)
        draws = torch.stack([network(x, noise) for _ in range(4000)]).detach()
        assert float(draws.std(0).max()) > 0.1
        bound = 6 * float(draws.std(0).max()) / 4000**0.5
        torch.testing.assert_close(draws.mean(0), expected, rtol=0, atol=bound)
        setattr(network, name, 0.0)


def test_the_gated_softmax_sees_rows_less_their_mean() -> None:
    X, y = digits()
    model = quick("gated", early_stopping=False, max_epochs=0).fit(X, y)
    mean = model.scaler_(X).mean(0)
    np.testing.assert_allclose(model.model_.centre, mean, atol=1e-6)
    logits = model.model_(torch.as_tensor(mean).unsqueeze(0)).detach()
    np.testing.assert_allclose(logits, np.full((1, 10), float(logits[0, 0])), atol=1e-5)  # all factors are 0


def test_the_gated_softmax_is_the_energy_of_a_gated_auto_encoder_of_labels() -> None:
    network, x = gated_network()
    model = Autoencoder([network.units])
    model.a = torch.nn.Parameter(network.a.detach().unsqueeze(0))
    for y in range(3):
        label = torch.eye(3, dtype=torch.float64)[y].expand(8, -1)
        torch.testing.assert_close(
            network(x)[:, y], model.relative_energy(label, x - network.centre)[0], rtol=1e-12, atol=1e-12
        )


def test_a_perceptron_is_its_layers_and_dropout_keeps_the_mean() -> None:
    network = Perceptron([3, 4, 2], "relu", torch.Generator().manual_seed(0), [0.5, 0.0]).double()
    with torch.no_grad():
        network.W[1].copy_(torch.randn(2, 4))
        network.b[0].copy_(torch.full((4,), 9.0))  # all units on: the network is linear in its input
    v = torch.rand(5, 3, dtype=torch.float64)
    expected = torch.relu(v @ network.W[0].T + network.b[0]) @ network.W[1].T + network.b[1]
    torch.testing.assert_close(network(v), expected)
    noise = torch.Generator().manual_seed(0)
    draws = torch.stack([network(v, noise) for _ in range(4000)]).detach()
    assert float(draws.std(0).min()) > 0.01
    torch.testing.assert_close(draws.mean(0), expected.detach(), rtol=0, atol=6 * float(draws.std(0).max()) / 4000**0.5)


@pytest.mark.parametrize("name", ["rbm", "stacked"])
def test_pretraining_is_where_fine_tuning_starts(name) -> None:
    X, y = digits()
    pretrained = quick(name, pretrain_epochs=5, max_epochs=0, early_stopping=False).fit(X, y)
    plain = quick(name, pretrain_epochs=0, max_epochs=0, early_stopping=False).fit(X, y)
    for layer in range(len(pretrained.model_.W) - 1):
        assert float((pretrained.model_.W[layer] - plain.model_.W[layer]).detach().abs().max()) > 0.01
    np.testing.assert_allclose(pretrained.predict_proba(X), 0.1)  # the output layer has not been trained
    for history in list(pretrained.history_.values())[1:-1]:
        assert history.loss[-1] < history.loss[0]


def test_stacked_layers_are_trained_one_after_the_other() -> None:
    X, y = digits()
    model = quick("stacked", n_layers=3).fit(X, y)
    assert list(model.history_) == ["layer 1", "layer 2", "layer 3", "fine-tune"]
    assert [tuple(W.shape) for W in model.model_.W] == [(12, 64), (12, 12), (12, 12), (10, 12)]


# --- classifiers -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_system
def test_scikit_learn_finds_no_fault(name) -> None:
    small = clone(SYSTEMS[name][0]).set_params(n_hidden=32, max_epochs=40, learning_rate=2e-2)
    if "pretrain_epochs" in small.get_params():
        small.set_params(pretrain_epochs=3)
    results = check_estimator(small, on_fail=None, on_skip=None)
    assert [result["check_name"] for result in results if result["status"] == "failed"] == []
    assert len(results) > 40


@each_system
def test_it_learns(name) -> None:
    model, bound = SYSTEMS[name]
    X, y = digits(1797)
    X_valid, y_valid = X[1200:1400], y[1200:1400]
    fitted = clone(model).set_params(random_state=0).fit(X[:800], y[:800], X_valid=X_valid, y_valid=y_valid)
    assert fitted.score(X[1400:], y[1400:]) > 1 - bound
    p = fitted.predict_proba(X[1400:])
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(fitted.predict(X[1400:]), fitted.classes_[p.argmax(1)])
    log_loss = -np.log(fitted.predict_proba(X_valid)[np.arange(200), y_valid]).mean()
    assert log_loss == pytest.approx(float(fitted.history_["fine-tune"].best), rel=1e-4)  # the best epoch is restored


@each_system
def test_random_state_decides_everything_and_torch_s_own_state_stays(name) -> None:
    X, y = digits()
    state = torch.get_rng_state()
    first = quick(name).fit(X, y).predict_proba(X)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    np.testing.assert_array_equal(quick(name).fit(X, y).predict_proba(X), first)
    assert np.abs(quick(name, random_state=1).fit(X, y).predict_proba(X) - first).max() > 1e-4


@each_system
def test_rows_are_scored_alone_as_together(name) -> None:
    X, y = digits()
    model = quick(name).fit(X, y)
    together = model.decision_function(X)
    alone = np.concatenate([model.decision_function(X[i : i + 1]) for i in range(40)])
    np.testing.assert_allclose(alone, together[:40], rtol=0, atol=1e-9)


@each_system
def test_pickled_copies_are_equal(name) -> None:
    X, y = digits()
    model = quick(name).fit(X, y)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_proba(X), model.predict_proba(X))


@each_system
def test_two_classes_with_names_and_any_scaling(name) -> None:
    X, y = digits(400)
    X, labels = X[y < 2], np.array(["zero", "one"])[y[y < 2]]
    for scaling in ("standard", "none", "unit"):
        rows = X / 16 if scaling == "none" else X
        model = quick(name, scaling=scaling, max_epochs=60, learning_rate=1e-2).fit(rows, labels)
        assert model.classes_.tolist() == ["one", "zero"]
        assert model.score(rows, labels) > 0.95
        margin = model.decision_function(rows)
        assert margin.shape == (len(rows),)
        np.testing.assert_array_equal(model.predict(rows), model.classes_[(margin > 0).astype(int)])
        np.testing.assert_allclose(model.predict_proba(rows)[:, 1], 1 / (1 + np.exp(-margin)), atol=1e-12)


def test_automatic_epochs_are_more_on_small_data() -> None:
    X, y = digits(60)
    few = quick("gated", max_epochs="auto", batch_size=60, early_stopping=False).fit(X, y)
    more = quick("gated", max_epochs="auto", batch_size=1, early_stopping=False).fit(X, y)
    assert len(few.history_["fine-tune"].loss) == 300
    assert len(more.history_["fine-tune"].loss) == 40


def test_early_stopping_keeps_the_best_epoch_by_loss_or_by_error() -> None:
    X, y = digits(500)
    valid = {"X_valid": X[300:500], "y_valid": y[300:500]}
    for monitor in ("log_loss", "error"):
        model = quick("gated", monitor=monitor, max_epochs=200, n_iter_no_change=5, learning_rate=1e-2)
        history = model.fit(X[:300], y[:300], **valid).history_["fine-tune"]
        values = [float(value) for value in history.validation]
        assert len(values) == int(history.best_epoch) + 5 < 200
        assert min(values) == float(history.best) == values[int(history.best_epoch) - 1]
        if monitor == "error":
            errors = (model.predict(X[300:500]) != y[300:500]).sum()
            assert errors / 200 <= min(values) < (errors + 1) / 200


def test_rows_are_held_out_only_where_there_are_enough() -> None:
    X, y = digits(600)
    assert quick("gated").fit(X, y).history_["fine-tune"].validation
    assert not quick("gated").fit(X[:100], y[:100]).history_["fine-tune"].validation
    assert not quick("gated", early_stopping=False).fit(X, y).history_["fine-tune"].validation


def test_verbose_prints_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = digits()
    quick("rbm", verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"[{stage}] epoch {epoch}/3" for stage in ("pretrain", "fine-tune") for epoch in (1, 2, 3)
    ]


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("rbm", {"n_gibbs": 0}, "`n_gibbs` must be a whole number of at least 1; got 0"),
        ("rbm", {"activity": 0.0}, "`activity` must be above 0; use sparsity=0"),
        ("rbm", {"sparsity": -1.0}, "`sparsity` must be a number of at least 0; got -1.0"),
        ("rbm", {"l1": "small"}, "`l1` must be a number of at least 0; got 'small'"),
        ("rbm", {"dropout": 1.5}, "`dropout` must be a number of at least 0 and below 1; got 1.5"),
        ("rbm", {"pretrained_rate": float("nan")}, "`pretrained_rate` must be a number of at least 0; got nan"),
        ("rbm", {"n_hidden": 2.5}, "`n_hidden` must be a whole number of at least 1; got 2.5"),
        ("rbm", {"pretrain_epochs": "many"}, "`pretrain_epochs` must be a whole number of at least 0 or 'auto'"),
        ("stacked", {"n_layers": 0}, "`n_layers` must be a whole number"),
        ("stacked", {"noise_level": 1.0}, "`noise_level` must be a number of at least 0 and below 1; got 1.0"),
        ("gated", {"factor_dropout": 1.0}, "`factor_dropout` must be a number of at least 0 and below 1; got 1.0"),
        ("stacked", {"activity": 0}, "`activity` must be above 0; use activity=None"),
        ("stacked", {"l1": -1}, "`l1` must be a number of at least 0; got -1"),
        ("stacked", {"pretrained_rate": -0.1}, "`pretrained_rate` must be a number of at least 0; got -0.1"),
        ("gated", {"n_factors": -1}, "`n_factors` must be a whole number"),
        ("dropout", {"dropout": 1.0}, "`dropout` must be a number of at least 0 and below 1"),
        (
            "dropout",
            {"input_dropout": "half"},
            "`input_dropout` must be a number .*; got 'half'",
        ),
        ("gated", {"max_epochs": -1}, "`max_epochs` must be a whole number of at least 0 or 'auto'; got -1"),
        ("gated", {"batch_size": 0}, "`batch_size` must be a whole number of at least 1; got 0"),
        ("gated", {"n_iter_no_change": None}, "`n_iter_no_change` must be a whole number"),
        ("gated", {"validation_fraction": 0}, "`validation_fraction` must be above 0; use early_stopping=False"),
        ("gated", {"scaling": "big"}, "`scaling` must be one of standard, unit, none; got 'big'"),
        ("gated", {"monitor": "auc"}, "`monitor` must be one of log_loss, error; got 'auc'"),
        ("gated", {"device": "abacus"}, "`device` must be 'auto', 'cpu', 'cuda'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(name, parameters, message) -> None:
    X, y = digits(100)
    with pytest.raises(InputError, match=message):
        quick(name, **parameters).fit(X, y)


def test_validation_rows_that_cannot_be_used_are_refused() -> None:
    X, y = digits()
    model = quick("gated")
    with pytest.raises(InputError, match="`X_valid` and `y_valid` belong together"):
        model.fit(X, y, X_valid=X)
    with pytest.raises(InputError, match="`y` must hold classes from"):
        model.fit(X, y, X_valid=X[:2], y_valid=[0, 77])
    with pytest.raises(ValueError, match="64 features"):
        model.fit(X, y, X_valid=X[:2, :5], y_valid=y[:2])
    with pytest.raises(InputError, match="only used to stop early"):
        quick("gated", early_stopping=False).fit(X, y, X_valid=X, y_valid=y)
    with pytest.raises(InputError, match="at least 2 classes"):
        model.fit(X, np.zeros(len(X)))
    with pytest.raises(NotFittedError):
        model.predict(X)
