"""Members: C classifiers of K classes as one program of C * K models."""

import numpy as np
import pytest
import torch
from cases import gradient_error
from sklearn.datasets import load_iris, make_blobs
from torch import Tensor

from energate import (
    Autoencoder,
    CovarianceUnits,
    EnergyClassifier,
    HiddenUnits,
    InputError,
    MeanUnits,
    check_conservative,
)
from energate.estimators.kinds import kind_of
from energate.training.classes import (
    FINE_TUNE_SCALE,
    ClassEnergies,
    LabelledRows,
    Likeliest,
    Stages,
    Training,
    find_biases,
    fine_tune,
    hold_out_own,
    pretrain,
    set_biases,
    set_sureness,
    train_classes,
    weigh_members,
)

K, D = 3, 4


def rows(n_rows: int = 120, seed: int = 0, spread: float = 1.5, dtype: torch.dtype = torch.float64) -> LabelledRows:
    X, y = make_blobs(n_rows, centers=K, n_features=D, cluster_std=spread, random_state=seed)
    v = torch.as_tensor((X - X.mean(0)) / X.std(0), dtype=dtype)
    return LabelledRows(v, torch.as_tensor(y), torch.ones(n_rows, dtype=dtype))


def energies(n_members: int = 1, seed: int = 0) -> ClassEnergies:
    generator = torch.Generator().manual_seed(seed)
    units: list[HiddenUnits] = [
        MeanUnits(n_members * K, D, 6, generator=generator),
        CovarianceUnits(n_members * K, D, 5, 6, generator=generator),
    ]
    return ClassEnergies([Autoencoder([group]) for group in units], K).double()


def perturbed(model: ClassEnergies, seed: int = 1) -> ClassEnergies:
    """Every number drawn anew, biases, scales and shares included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        model.beta.copy_(torch.rand(model.beta.shape, generator=generator, dtype=torch.float64))
        model.share.copy_(torch.softmax(torch.randn(model.n_members, generator=generator), 0))
    return model


def test_a_member_alone_gives_what_it_gives_among_others() -> None:
    model, v = perturbed(energies(4)), rows().v
    together = model.calibrated(model.part_energies(v))
    for c in range(4):
        torch.testing.assert_close(model.member(c).logits(v), together[c])
    torch.testing.assert_close(model.logits(v), (model.share.view(-1, 1, 1) * together).sum(0))
    own = torch.stack([v + c for c in range(4)])  # rows of each member's own
    apart = torch.stack([model.member(c).logits(own[c]) for c in range(4)])
    torch.testing.assert_close(model.calibrated(model.part_energies(own)), apart)


def test_the_likeliest_class_is_that_of_double_precision() -> None:
    """Also where single precision cannot tell two classes apart, and where it overflows."""
    model, v = perturbed(energies(2)), rows().v
    v = torch.cat([v, 1e8 * v[:20], 1e20 * v[:20]])
    with torch.no_grad():
        for parameter in (parameter for part in model.autoencoders for parameter in part.parameters()):
            parameter[1::K] = parameter[0::K]  # class 1 is class 0, but for a little
        model.B[:, 1] = model.B[:, 0] + 1e-9
        wanted = model.logits(v).argmax(1)
        single = model.logits(v[:120]).float().argmax(1)
        assert (wanted[:120] == 1).any()
        assert (single != wanted[:120]).any()  # a negative control
        assert torch.equal(Likeliest(model)(v), wanted)


def test_the_energy_of_an_ensemble_is_exact_again() -> None:
    """Its gradient in v is the weighted sum of the members' scaled fields."""
    model, v = perturbed(energies(3)), rows(11).v
    for k in range(K):

        def field(v: Tensor, k: int = k) -> Tensor:
            fields = torch.stack([part.vector_field(v).unflatten(0, (3, K))[:, k] for part in model.autoencoders], 1)
            return torch.einsum("c,cp,cpnd->nd", model.share, model.beta, fields)

        assert gradient_error(lambda v, k=k: model.energies(v)[:, k], field, v) < 1e-12


@pytest.mark.parametrize("stage", ["pretrain", "fine-tune"])
def test_members_trained_together_equal_members_trained_alone(stage) -> None:
    """Each with its own learning rate, decay and generative weight; no noise, which members draw for themselves."""
    train, valid = rows(seed=0), rows(60, seed=0, spread=1.0)
    together = perturbed(energies(3))
    alone = [together.member(c) for c in range(3)]
    rate, decay, mix = [1e-2, 3e-3, 1e-3], [0.0, 1e-3, 1e-2], [0.0, 0.1, 2.0]

    def run(model: ClassEnergies, rate, decay, mix) -> None:
        training = Training(
            learning_rate=rate, weight_decay=decay, noise_level=0.0, patience=3, batch_size=30, seed=1, epochs=6
        )
        if stage == "pretrain":
            pretrain(model, train, training, valid)
        else:
            fine_tune(model, train, training, mix, valid)

    run(together, *(torch.tensor(values, dtype=torch.float64) for values in (rate, decay, mix)))
    for c, model in enumerate(alone):
        run(model, rate[c], decay[c], mix[c])
        for a, b in zip(model.parameters(), together.member(c).parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(model.beta[0], together.beta[c])


def test_every_part_has_its_own_scale_and_they_do_not_hurt() -> None:
    train = rows()
    model = energies()
    pretrain(model, train, Training(seed=3))
    plain, scaled = find_biases(model, train, scale=False), find_biases(model, train, scale=True)
    torch.testing.assert_close(plain[0], torch.ones(1, 2, dtype=torch.float64))
    assert scaled[0].shape == (1, 2)
    assert abs(float(scaled[0][0, 0] - scaled[0][0, 1])) > 1e-3
    assert float(scaled[2]) < float(plain[2])


def test_scales_are_looked_for_around_the_present_ones() -> None:
    """Few separable rows say nothing about the scale, so that it stays where training left it."""
    few = rows(9, spread=0.1)
    model = energies()
    for scale in (0.05, 1.0):
        model.beta.fill_(scale)
        found = find_biases(model, few, scale=True)[0]
        assert ((found > 0.3 * scale) & (found < 4 * scale)).all()


def test_fine_tuning_starts_from_a_small_scale_and_keeps_what_was_better() -> None:
    train, valid = rows(), rows(90)
    model = energies()
    pretrain(model, train, Training(), valid)
    set_biases(model, valid, scale=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = find_biases(model, valid, scale=True)[2]
    # Wrong labels: nothing better than before comes.
    wrong = LabelledRows(train.v, (train.labels + 1) % K, train.weight)
    fine_tune(model, wrong, Training(learning_rate=0.1, patience=None), 0.0, valid)
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(old, new.detach())
    torch.testing.assert_close(find_biases(model, valid, scale=True)[2], loss)
    fine_tune(model, train, Training(epochs=1), 0.0)  # without validation the scale stays
    assert (model.beta == FINE_TUNE_SCALE).all()
    model.beta.fill_(1.0)
    fine_tune(model, train, Training(epochs=1, learning_rate=1e-3, learn_scale=False), 0.0)
    assert (model.beta == 1).all()


def test_members_count_by_the_likelihood_of_held_out_rows() -> None:
    model = energies(3)
    losses = torch.tensor([0.5, 0.5, 5.0])
    weigh_members(model, losses, 100)
    torch.testing.assert_close(model.share, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-6)


# --- rows that every member holds out for itself ---------------------------------------------------------------


def few_rows(counts: list[int]) -> LabelledRows:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    v = torch.randn(len(labels), D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return LabelledRows(v, labels, torch.linspace(0.5, 1.5, len(labels), dtype=torch.float64))


def test_members_hold_out_other_rows_and_keep_some_of_every_class() -> None:
    given = few_rows([1, 2, 3, 7, 12])
    train, own = hold_out_own(given, 4, 5, 0.15, seed=0)
    held = train.weight == 0  # (4, N)
    assert held.sum(0).tolist() == [0] + [1] * 24  # the row of a class that has one is held out by nobody
    for c in range(4):
        assert set(given.labels[~held[c]].tolist()) == {0, 1, 2, 3, 4}
        torch.testing.assert_close(train.weight[c, ~held[c]] / train.weight[c, 0], given.weight[~held[c]] / 0.5)
        there = own.weight[c] > 0
        torch.testing.assert_close(own.v[c, there], given.v[held[c]])
        torch.testing.assert_close(own.labels[c, there], given.labels[held[c]])
        torch.testing.assert_close(own.weight[c, there], given.weight[held[c]])
    torch.testing.assert_close(train.weight.mean(1), torch.ones(4, dtype=torch.float64))
    by_class = torch.zeros(5, dtype=torch.float64).index_add(0, given.labels, given.weight)
    torch.testing.assert_close(own.frequencies, by_class / given.weight.sum())
    alone = hold_out_own(given, 1, 5, 0.25, seed=0)[0]
    assert (alone.weight == 0).sum() == 6  # a quarter of 24
    assert hold_out_own(few_rows([1, 1, 1]), 4, 3, 0.15, seed=0)[1] is None


def test_a_row_held_out_does_not_change_the_member_that_holds_it_out() -> None:
    given = few_rows([3, 4, 6])
    training = Training(epochs=5, learning_rate=1e-2, seed=3)
    stages = Stages(training, training, torch.tensor([0.0, 0.1, 1.0, 0.0]), own_fraction=0.15)
    held = hold_out_own(given, 4, K, 0.15, training.seed)[0].weight == 0
    moved = LabelledRows(given.v.clone(), given.labels, given.weight)
    moved.v[5] += 3.0
    models = [energies(4), energies(4)]
    for model, train in zip(models, (given, moved), strict=True):
        train_classes(model, train, stages)
    for c in range(4):
        one, other = (
            torch.cat([p.flatten() for p in model.member(c).autoencoders[0].parameters()]) for model in models
        )
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12) == bool(held[c, 5])


def test_scales_and_biases_follow_the_sureness() -> None:
    model = perturbed(energies(2))
    _, own = hold_out_own(few_rows([4, 6, 9]), 2, K, 0.25, seed=0)
    before, beta = model.calibrated(model.part_energies(own.v)), model.beta.clone()
    losses = set_sureness(model, own)
    sureness = model.beta / beta
    assert (sureness - sureness[0, 0]).abs().max() < 1e-12  # one for all
    logits = model.calibrated(model.part_energies(own.v))
    log_p = torch.log_softmax(logits, -1)
    expected = torch.log_softmax(torch.lerp(own.frequencies.log(), before, sureness[0, 0]), -1)
    torch.testing.assert_close(log_p, expected)
    chosen = log_p.gather(2, own.labels.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(losses, -(own.weight * chosen).sum(1) / own.weight.sum(1))


def test_models_that_are_not_so_many_members_are_refused() -> None:
    part = Autoencoder([MeanUnits(7, D, 5)])
    with pytest.raises(InputError, match="7 models are not so many members of 3 classes"):
        ClassEnergies([part], 3)


# --- through the classifier --------------------------------------------------------------------------------------


def test_many_rows_leave_more_than_one_member() -> None:
    model = energies(3)
    losses = torch.tensor([0.10, 0.11, 0.5], dtype=torch.float64)
    weigh_members(model, losses, 5000)
    few, many = torch.softmax(-64 * losses, 0), torch.softmax(-1250 * losses, 0)
    torch.testing.assert_close(model.share.double(), few)
    assert many[1] < 1e-4 < 0.3 < float(model.share[1])


def test_a_sequence_of_generative_weights_is_an_ensemble() -> None:
    X, y = load_iris(return_X_y=True)
    quick = {"n_hidden": 8, "n_factors": 8, "pretrain_epochs": 5, "max_epochs": 60, "random_state": 0}
    model = EnergyClassifier(
        "mean-covariance", generative_weight=[0.0, 0.1, 0.0], learning_rate=[1e-3, 3e-3, 1e-2], **quick
    ).fit(X, y)
    assert model.model_.n_members == 3
    assert model.generative_weights_.tolist() == [0.0, 0.1, 0.0]
    assert model.transform(X[:5]).shape == (5, 3 * 3 * 16)
    assert len(model.get_feature_names_out()) == 3 * 3 * 16
    assert model.score(X, y) > 0.9
    single = EnergyClassifier("mean-covariance", generative_weight=0.1, **quick).fit(X, y)
    assert single.model_.n_members == 1
    with pytest.raises(InputError, match="one for each of the 3 members"):
        EnergyClassifier("mean-covariance", generative_weight=[0, 0, 0], noise_level=[0.1, 0.2], **quick).fit(X, y)
    for bad in ([], -1.0, [0.1, -0.1], "some"):
        with pytest.raises(InputError, match="`generative_weight` must be"):
            EnergyClassifier("mean-covariance", generative_weight=bad, **quick).fit(X, y)


def test_the_automatic_members_follow_the_size_of_the_data() -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = np.arange(40) % 2
    quick = {"n_hidden": 4, "n_factors": 4, "pretrain_epochs": 1, "max_epochs": 1}
    assert EnergyClassifier("mean-covariance", **quick).fit(X, y).generative_weights_.tolist() == [0.0, 0.0, 0.03, 0.1]
    wide = np.random.default_rng(0).normal(size=(40, 30_000))
    assert EnergyClassifier("mean", **quick).fit(wide, y).generative_weights_.tolist() == [0.1]
    long = np.repeat(X, 2_000_000 // (X.size * len(np.unique(y))) + 1, 0)
    members = kind_of("mean").weights(EnergyClassifier("mean", **quick).fit(X, y), len(long))
    assert members.tolist() == [0.1, 0.0]  # held-out rows choose between them
    own = EnergyClassifier(lambda k, d, g: MeanUnits(k, d, 4, generator=g), **quick).fit(X, y)
    assert own.generative_weights_.tolist() == [0.0]


@pytest.mark.parametrize("reading", ["sum", "shared"])
def test_members_stay_conservative_through_all_stages(reading) -> None:
    X, y = load_iris(return_X_y=True)
    model = EnergyClassifier(
        "mean-covariance", reading=reading, n_hidden=8, n_factors=8, max_epochs=10, random_state=0
    ).fit(X, y)
    assert model.model_.n_members == 4
    for part in model.model_.autoencoders:
        assert check_conservative(part, torch.as_tensor(model.scaler_(X[:20]))).gradient_error < 1e-10
