"""Energies of label vectors, candidates and marginals, against enumeration."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from energate import InputError
from energate.training import History
from energate.training import labels as sets_module
from energate.training.calibration import calibrate_labels
from energate.training.labels import (
    LabelRows,
    LabelSets,
    LabelTraining,
    Neighbours,
    SetModel,
    ascend,
    blurred,
    flipped,
    label_autoencoder,
    neighbours,
    sampled_sets,
    train_denoising,
    train_sets,
)

L, D = 5, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(n_rows: int = 12, seed: int = 0) -> Tensor:
    return (drawn(n_rows, L, seed=seed) > 0.4).double()


def set_model(
    relation: str, Y: Tensor | None = None, sizes: tuple[int, int] = (4, 6), strength: float = 0.5
) -> SetModel:
    Y = labels_of() if Y is None else Y
    autoencoder = label_autoencoder(relation, Y.shape[1], D, *sizes, torch.Generator().manual_seed(1))
    model = SetModel(autoencoder.to(Y), LabelSets.of(Y)).to(Y)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(strength * drawn(*parameter.shape, seed=10 + i))
    return model


def every_vector() -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=L)), dtype=torch.float64)


def literal_score(model: SetModel, t: Tensor, x: Tensor, y: Tensor, count: float) -> Tensor:
    """The formula, for one row and one label vector, through the auto-encoder's own energy."""
    c = x.unsqueeze(0) if model.autoencoder.context_width else None
    energy = model.autoencoder.energy(y.unsqueeze(0), c)[0, 0]
    return (model.beta * t * y).sum() + model.tau * np.log(count + 0.5) + energy


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_scores_are_the_formula_and_beliefs_their_softmax(relation: str) -> None:
    model, t, x = set_model(relation), drawn(4, L, seed=2), drawn(4, D, seed=3)
    near = neighbours(t, 3)
    beliefs = model.beliefs(t, x, near)
    seen = {tuple(y.tolist()): float(n) for y, n in zip(model.Y, model.count, strict=True)}
    for i in range(4):
        own = [near.y[i]] + [near.y[i].clone().index_fill_(0, j, 1 - float(near.y[i, j])) for j in near.flips[i]]
        candidates = dict(seen) | {tuple(y.tolist()): 0.0 for y in own if tuple(y.tolist()) not in seen}
        vectors = torch.tensor(list(candidates), dtype=torch.float64)
        scores = torch.stack(
            [literal_score(model, t[i], x[i], y, n) for y, n in zip(vectors, candidates.values(), strict=True)]
        )
        p = torch.softmax(scores, 0)
        torch.testing.assert_close(model.marginals(beliefs, near)[i], p @ vectors, rtol=0, atol=1e-12)
        torch.testing.assert_close(model.best(beliefs, near)[i], vectors[p.argmax()])
        total = beliefs.seen[i].exp().sum() + beliefs.own[i].exp().sum()
        torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_over_all_label_vectors_it_is_the_exact_distribution(relation: str) -> None:
    everything = every_vector()
    model, t, x = set_model(relation, everything), drawn(3, L, seed=2), drawn(3, D, seed=3)
    beliefs = model.beliefs(t, x)
    assert beliefs.own is None
    for i in range(3):
        scores = torch.stack([literal_score(model, t[i], x[i], y, 1.0) for y in everything])
        torch.testing.assert_close(
            model.marginals(beliefs)[i], torch.softmax(scores, 0) @ everything, rtol=0, atol=1e-12
        )
    with_own = model.beliefs(t, x, neighbours(t, L))  # nothing is new
    assert (with_own.own == -torch.inf).all()
    torch.testing.assert_close(with_own.seen, beliefs.seen)


@pytest.mark.parametrize("n_flips", [0, 1, L])
@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_a_training_row_sees_what_the_other_rows_leave(relation: str, n_flips: int) -> None:
    """The distribution of a training row is the one of a model that has counted the other rows only."""
    Y, t, x = labels_of(), drawn(12, L, seed=2), drawn(12, D, seed=3)
    sets, model = LabelSets.of(Y), set_model(relation)
    assert (sets.count == 1).any()
    assert (sets.count > 1).any()
    near = neighbours(t, n_flips) if n_flips else None
    known = None if near is None else model.known(near, sets.of_row)
    beliefs = model.beliefs(t, x, near, known=known, own_set=sets.of_row)
    marginals, place = model.marginals(beliefs, near), model.place(Y, near, sets.of_row)
    for i in range(12):
        others = torch.arange(12) != i
        model_i = SetModel(model.autoencoder, LabelSets.of(Y[others]))
        model_i.beta, model_i.tau = model.beta, model.tau
        near_i = None if near is None else Neighbours(near.y[i : i + 1], near.flips[i : i + 1])
        expected = model_i.beliefs(t[i : i + 1], x[i : i + 1], near_i)
        torch.testing.assert_close(marginals[i], model_i.marginals(expected, near_i)[0], rtol=0, atol=1e-12)
        at, at_i = int(place[i]), int(model_i.place(Y[i : i + 1], near_i)[0])
        assert (at < 0) == (at_i < 0)
        if at >= 0:
            log_p, log_p_i = ((b.seen if b.own is None else torch.cat([b.seen, b.own], 1)) for b in (beliefs, expected))
            torch.testing.assert_close(log_p[i, at], log_p_i[0, at_i], rtol=0, atol=1e-12)


def test_the_place_of_a_vector_is_the_candidate_that_equals_it() -> None:
    model, Y, t = set_model("yy", labels_of(6)), every_vector().repeat(8, 1), drawn(256, L, seed=2)
    near = neighbours(t, 3)
    flipped_by_one = [near.y.scatter(1, j.unsqueeze(1), 1 - near.y.gather(1, j.unsqueeze(1))) for j in near.flips.T]
    own = torch.stack([near.y, *flipped_by_one], 1)  # (N, 4, L)
    found = model.place(Y, near)
    assert {int(at) - len(model.Y) for at in found if at >= len(model.Y)} == {0, 1, 2, 3}
    for i, y in enumerate(Y):
        candidates = torch.cat([model.Y, own[i]])
        same = (candidates == y).all(1).nonzero()
        assert int(found[i]) == (int(same[0]) if len(same) else -1)
    assert torch.equal(model.place(Y), torch.where(found < len(model.Y), found, -1))


def test_a_training_row_alone_keeps_its_label_vector() -> None:
    Y = labels_of(1)
    model = set_model("yy", Y)
    beliefs = model.beliefs(drawn(1, L), None, own_set=torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(beliefs.seen.exp(), torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_the_log_probability_of_a_vector_is_its_share_of_all_candidates(relation: str) -> None:
    model, t, x = set_model(relation), drawn(32, L, seed=2), drawn(32, D, seed=3)
    seen = {tuple(y.tolist()): float(n) for y, n in zip(model.Y, model.count, strict=True)}
    found = model.log_probability(t, x, every_vector())
    for i, y in enumerate(every_vector()):
        candidates = seen | {tuple(y.tolist()): seen.get(tuple(y.tolist()), 0.0)}
        vectors = torch.tensor(list(candidates), dtype=torch.float64)
        scores = [literal_score(model, t[i], x[i], v, n) for v, n in zip(vectors, candidates.values(), strict=True)]
        expected = scores[list(candidates).index(tuple(y.tolist()))] - torch.logsumexp(torch.stack(scores), 0)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-11)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, L))
def test_known_candidates_are_those_that_were_seen(seed: int, n_flips: int) -> None:
    model, t = set_model("yy", labels_of(6, seed)), drawn(7, L, seed=seed + 1)
    y, flips = neighbours(t, n_flips)
    known = model.known(Neighbours(y, flips))
    seen = {tuple(row.tolist()) for row in model.Y}
    for i in range(7):
        own = [y[i], *[y[i].clone().index_fill_(0, j, 1 - float(y[i, j])) for j in flips[i]]]
        assert known[i].tolist() == [tuple(vector.tolist()) in seen for vector in own]


def test_neighbours_are_the_base_s_own_vector_and_its_least_certain_labels() -> None:
    t = torch.tensor([[3.0, -0.1, 0.2, -5.0]])
    y, flips = neighbours(t, 2)
    assert y.tolist() == [[1, 0, 1, 0]]
    assert flips.tolist() == [[1, 2]]
    assert neighbours(t, 99).flips.shape == (1, 4)


def test_rows_are_scored_alike_alone_and_together() -> None:
    model, t, x = set_model("xy"), drawn(6, L, seed=2), drawn(6, D, seed=3)
    near = neighbours(t, 3)
    together = model.marginals(model.beliefs(t, x, near), near)
    for i in range(6):
        alone = Neighbours(near.y[i : i + 1], near.flips[i : i + 1])
        one = model.marginals(model.beliefs(t[i : i + 1], x[i : i + 1], alone), alone)
        torch.testing.assert_close(one[0], together[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_every_step_of_the_ascent_raises_the_energy_and_a_step_down_lowers_it(relation: str) -> None:
    model = set_model(relation).autoencoder
    t, x = drawn(20, L, seed=2), drawn(20, D, seed=3)
    context = x if relation == "xy" else None
    path = ascend(model, t, x, [0, 1, 2, 5, 20])
    torch.testing.assert_close(path[0], t)
    energies = torch.stack([model.energy(torch.sigmoid(p), context)[0] for p in path])
    assert (energies.diff(dim=0) >= -1e-9).all()
    assert (energies[-1] > energies[0] + 1e-3).any()
    # The sign that the paper prints (erratum E17) is a step the other way.
    y = torch.sigmoid(t)
    field = model.vector_field(y, context)[0]
    down = model.energy((y - 1e-3 * field).clamp(1e-6, 1 - 1e-6), context)[0]
    assert (down < energies[0]).all()


def test_a_longer_walk_passes_the_points_of_a_shorter_one() -> None:
    model, t, x = set_model("yy").autoencoder, drawn(6, L, seed=2), drawn(6, D, seed=3)
    torch.testing.assert_close(ascend(model, t, x, [2])[0], ascend(model, t, x, [0, 2, 7])[1])


def test_an_unknown_relation_is_refused() -> None:
    with pytest.raises(InputError, match="`relation` must be one of xy, yy; got 'xx'"):
        label_autoencoder("xx", L, D, 2, 2, torch.Generator())


# --- many rows, labels and label vectors ------------------------------------------------------------------------------


def wide_model(relation: str, n_labels: int = 10, n_rows: int = 500, strength: float = 0.4) -> SetModel:
    """Several hundred label vectors, and an energy that matters."""
    return set_model(relation, (drawn(n_rows, n_labels, seed=5) > 0.4).double(), (8, 12), strength)


@pytest.mark.parametrize("relation", ["xy", "yy"])
@pytest.mark.parametrize("exact", [10_000, 20])
def test_chunks_of_pairs_change_nothing(relation: str, exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, t, x = wide_model(relation), drawn(7, 10, seed=2), drawn(7, D, seed=3)
    near = neighbours(t, 4)
    monkeypatch.setattr(sets_module, "EXACT", exact)

    def found(values: int) -> tuple[Any, Tensor]:
        monkeypatch.setattr(sets_module, "PAIR_VALUES", values)
        beliefs = model.beliefs(t, x, near)
        return beliefs, model.best(beliefs, near)

    whole = found(2**40)
    for values in (1, 3 * 20 * 12):  # single rows; three at once, which does not divide seven
        torch.testing.assert_close(found(values), whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize("exact", [10_000, 20])
def test_without_gradients_the_same_beliefs_come_faster(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets_module, "EXACT", exact)
    model, t, x = wide_model("xy"), drawn(7, 10, seed=2), drawn(7, D, seed=3)
    slow = model.beliefs(t, x, neighbours(t, 4))
    assert slow.seen.requires_grad
    used: list[int] = []
    fast = sets_module.sum_of_softplus
    monkeypatch.setattr(sets_module, "sum_of_softplus", lambda u: used.append(1) or fast(u))
    with torch.no_grad():
        torch.testing.assert_close(model.beliefs(t, x, neighbours(t, 4)), slow, rtol=0, atol=1e-11)
    assert used


@pytest.mark.parametrize("n_units", [1, 5, 64, 65, 300])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_a_sum_of_softplus_by_products_is_the_sum(n_units: int, scale: float) -> None:
    u = scale * drawn(3, 4, n_units)
    expected = torch.nn.functional.softplus(u, threshold=40).sum(-1)
    torch.testing.assert_close(
        sets_module.sum_of_softplus(u.float()).double(), expected, rtol=2e-6, atol=2e-6 * n_units
    )
    torch.testing.assert_close(sets_module.sum_of_softplus(u.clone()), expected, rtol=1e-12, atol=1e-13 * n_units)


def test_few_exact_energies_keep_nearly_all_of_the_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = wide_model("xy", 16, 2000, strength=0.25), drawn(60, D, seed=3)
    t = 3 * (2 * model.Y[::30][:60] - 1) + drawn(60, 16, seed=2)  # a base that is right more often than not
    n_sets, n_exact = len(model.Y), sets_module.EXACT
    assert n_sets > 1800
    monkeypatch.setattr(sets_module, "EXACT", n_sets)
    true = model.seen_scores(t, x)
    monkeypatch.setattr(sets_module, "EXACT", n_exact)
    scores = model.seen_scores(t, x)
    assert (scores <= true + 1e-10).all()  # a tangent of a convex function lies below it
    exact = (scores - true).abs() < 1e-10
    assert (exact.sum(1) >= n_exact).all()
    assert (exact.sum(1) < n_sets / 2).all()
    share = (torch.softmax(true, 1) * exact).sum(1)
    assert share.mean() > 0.999
    torch.testing.assert_close(torch.softmax(scores, 1) @ model.Y, torch.softmax(true, 1) @ model.Y, rtol=0, atol=1e-3)


@pytest.mark.parametrize("n_exact", [20, 100])
def test_the_tangent_knows_more_than_base_and_counts_alone(n_exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, t, x = wide_model("xy"), 2 * drawn(60, 10, seed=2), drawn(60, D, seed=3)
    p = torch.softmax(model.seen_scores(t, x), 1)  # few enough to be exact
    monkeypatch.setattr(sets_module, "EXACT", n_exact)
    by_tangent = (torch.softmax(model.seen_scores(t, x), 1) - p).abs().sum(1)
    plain = (model.beta * t + model.autoencoder.a[0]) @ model.Y.mT + model.prior(model.count)
    left_out = 1 - p.gather(1, plain.topk(n_exact, 1).indices).sum(1)
    # Renormalising over those alone is wrong by twice what they leave out.
    assert by_tangent.mean() < 0.5 * (2 * left_out).mean()


def test_a_vector_s_own_probability_is_exact_even_if_it_is_not_among_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = wide_model("xy"), drawn(40, D, seed=3)
    y = model.Y[:40]
    t = -6 * (2 * y - 1) + drawn(40, 10, seed=2)  # the base says the contrary
    true = model.log_probability(t, x, y)
    monkeypatch.setattr(sets_module, "EXACT", 30)
    found = model.log_probability(t, x, y)
    assert (found <= 0).all()
    torch.testing.assert_close(found, true, rtol=0, atol=1e-2)


def test_gradients_reach_all_weights_through_the_chosen_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets_module, "EXACT", 8)
    model, t, x = set_model("xy", every_vector()), drawn(3, L, seed=2), drawn(3, D, seed=3)

    def total(*values: Tensor) -> Tensor:
        state = dict(zip(dict(model.named_parameters()), values, strict=True))
        return torch.func.functional_call(model, state, (t, x)).logsumexp(1)

    monkeypatch.setattr(SetModel, "forward", SetModel.seen_scores)
    assert torch.autograd.gradcheck(total, tuple(p.detach().clone().requires_grad_() for p in model.parameters()))


@pytest.mark.parametrize("n_labels", [20, 255, 257, 700])
def test_known_candidates_are_found_among_many_labels(n_labels: int) -> None:
    generator = torch.Generator().manual_seed(n_labels)
    y = (torch.rand(6, n_labels, generator=generator) < 0.5).float()
    flips = torch.rand(6, n_labels, generator=generator).argsort(1)  # every label
    one_off = y.clone()
    wanted = torch.tensor([0, n_labels - 1, n_labels // 2, 1, 2, n_labels - 2])
    one_off[torch.arange(6), wanted] = 1 - one_off[torch.arange(6), wanted]
    seen = torch.cat([one_off[:5], y[3:4], 1 - y[5:]])
    model = SetModel(label_autoencoder("yy", n_labels, D, 2, 2, generator), LabelSets.of(seen))
    expected = (torch.arange(n_labels) == wanted.unsqueeze(1)) & (torch.arange(6) < 5).unsqueeze(1)
    known = model.known(Neighbours(y, flips))
    assert known[:, 0].tolist() == [i == 3 for i in range(6)]
    assert torch.equal(known[:, 1:], expected.gather(1, flips))


class Largest(TorchDispatchMode):
    """The size of the largest tensor made."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, Tensor):
                self.values = max(self.values, each.untyped_storage().nbytes() // each.element_size())
        return out


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_no_tensor_has_more_than_two_large_sides(relation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets_module, "EXACT", 16)
    monkeypatch.setattr(sets_module, "PAIR_VALUES", 2**10)
    model, t, x = wide_model(relation, 60, 400), drawn(50, 60, seed=2), drawn(50, D, seed=3)
    near = neighbours(t, 5)  # of 400 label vectors
    with torch.no_grad(), Largest() as largest:
        beliefs = model.beliefs(t, x, near)
        model.marginals(beliefs, near)
        model.best(beliefs, near)
        model.log_probability(t, x, near.y)
    assert 50 * 400 <= largest.values <= 400 * 60


# --- training over label vectors ---------------------------------------------------------------------------------


def fitted(
    relation: str, objective: str = "hamming", n_neighbours: int = 3, batch_size: int = 40, epochs: int = 3
) -> tuple[SetModel, History]:
    generator = torch.Generator().manual_seed(0)
    Y, x = labels_of(60, seed=4), drawn(60, D, seed=3)
    rows = LabelRows(2 * Y - 1 + drawn(60, L, seed=6), Y, x)
    train, valid = rows.take(torch.arange(40)), rows.take(torch.arange(40, 60))
    sets = LabelSets.of(train.Y)
    model = SetModel(label_autoencoder(relation, L, D, 4, 6, generator).double(), sets).double()
    training = LabelTraining(epochs, learning_rate=1e-2, weight_decay=0.0, batch_size=batch_size)
    return model, train_sets(model, sets, train, valid, training, objective=objective, n_neighbours=n_neighbours)


TRAININGS = pytest.mark.parametrize(
    ("relation", "objective", "n_neighbours"), [("xy", "hamming", 3), ("yy", "subset", 3), ("yy", "hamming", 0)]
)


def test_a_step_looks_at_the_frequent_vectors_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = LabelSets(torch.eye(6), torch.tensor([1.0, 9.0, 2.0, 8.0, 1.0, 3.0]), torch.arange(6))
    own = torch.tensor([4, 3, 4])
    assert sampled_sets(sets, own)[0] is None
    monkeypatch.setattr(sets_module, "SAMPLED", 2)
    among, place = sampled_sets(sets, own)
    assert among is not None
    assert among.tolist() == [1, 3, 4]
    assert among[place].tolist() == own.tolist()


@TRAININGS
def test_sampling_everything_is_the_whole_softmax(
    relation: str, objective: str, n_neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole = fitted(relation, objective, n_neighbours)
    monkeypatch.setattr(sets_module, "SAMPLED", 3)
    # One batch of all rows: every vector is some row's own.
    again, history = fitted(relation, objective, n_neighbours)
    torch.testing.assert_close(history.loss, whole.loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=1e-10)
    less = fitted(relation, objective, n_neighbours, batch_size=2)[1]
    monkeypatch.undo()
    more = fitted(relation, objective, n_neighbours, batch_size=2)[1]
    assert less.loss[0] < more.loss[0] - 1e-3  # fewer vectors to compete with
    assert min(less.validation) < less.validation[0]


@TRAININGS
def test_validation_in_chunks_changes_nothing(
    relation: str, objective: str, n_neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, whole = fitted(relation, objective, n_neighbours)
    monkeypatch.setattr(sets_module, "VALID_VALUES", 3 * len(model.Y))
    again = fitted(relation, objective, n_neighbours)[1]
    torch.testing.assert_close(again.validation, whole.validation, rtol=0, atol=1e-12)


@pytest.mark.parametrize("objective", ["hamming", "subset"])
def test_vectors_that_came_often_are_preferred_even_where_most_came_once(objective: str) -> None:
    """As a candidate that was never seen, the vector that a row alone has would teach the opposite (tau < 0)."""
    generator = torch.Generator().manual_seed(0)
    often = torch.eye(12)[torch.randint(3, (100,), generator=generator)]
    Y = torch.cat([often, (torch.rand(500, 12, generator=generator) < 0.5).float()])
    Y = Y[torch.randperm(600, generator=generator)]
    rows = LabelRows(torch.randn(600, 12, generator=generator) + 2 * Y - 1, Y, torch.zeros(600, D))
    train, valid = rows.take(torch.arange(400)), rows.take(torch.arange(400, 600))
    sets = LabelSets.of(train.Y)
    assert (sets.count == 1).sum() > len(sets.count) / 2
    model = SetModel(label_autoencoder("yy", 12, D, 4, 4, generator), sets)
    train_sets(model, sets, train, valid, LabelTraining(20, learning_rate=3e-2, batch_size=100), objective=objective)
    assert model.tau > 0.5


def test_an_ascent_of_one_length_keeps_no_path() -> None:
    model, t, x = set_model("yy").autoencoder.float(), drawn(50, L, seed=2).float(), drawn(50, D, seed=3).float()
    with Largest() as largest:
        ascend(model, t, x, [20])
    with Largest() as of_path:
        ascend(model, t, x, [1, 20])
    assert largest.values < of_path.values / 4


# --- noise -----------------------------------------------------------------------------------------------------------


class SeenBy(Exception):
    """Carries what the first loss was asked of."""


@pytest.mark.parametrize("noise", [flipped, blurred])
@pytest.mark.parametrize("context_noise", [0.0, 0.7])
def test_labels_and_columns_suffer_the_noise_that_is_asked_for(
    noise: Any, context_noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    Y, x = labels_of(4000), drawn(4000, D)
    model = label_autoencoder("xy", L, D, 3, 4, torch.Generator().manual_seed(0)).double()

    def loss(v: Tensor, context: Tensor, seen: Tensor) -> Tensor:
        raise SeenBy(v, context, seen)

    monkeypatch.setattr(model, "loss", loss)
    rows = LabelRows(torch.zeros_like(Y), Y, x)
    training = LabelTraining(1, batch_size=4000)
    with pytest.raises(SeenBy) as caught:
        train_denoising(model, rows, rows, training, 0.4, noise=noise, context_noise=context_noise)
    v, context, seen = caught.value.args
    moved = (seen - v).abs()
    if noise is flipped:
        assert set(moved.unique().tolist()) == {0.0, 1.0}
        assert float(moved.mean()) == pytest.approx(0.2, abs=0.02)
    else:
        assert float((seen - v).std()) == pytest.approx(0.4, rel=0.05)
    # The rows come in another order, but they keep their spread, to which that of the noise is added.
    assert float(context.var()) == pytest.approx(float(x.var()) + context_noise**2, rel=0.05)
    assert torch.equal(context.sort(0).values, x.sort(0).values) == (context_noise == 0)


# --- calibration of labels ---------------------------------------------------------------------------------------


def test_weights_of_calibrated_labels_count_like_repeated_rows() -> None:
    s, weight = drawn(30, 2), torch.arange(30) % 3 + 1
    y = (s + drawn(30, 2, seed=5) > 0).double()
    found = calibrate_labels(s, y, weight.double())
    expected = calibrate_labels(s.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found[0], calibrate_labels(s, y)[0], rtol=1e-3)


@pytest.mark.parametrize("kind", ["never", "always", "separable", "constant", "reversed"])
def test_labels_that_say_little_stay_finite(kind: str) -> None:
    s = drawn(50, 1)
    y: Any = {"never": s * 0, "always": s * 0 + 1, "reversed": (s < 0).double()}.get(kind, (s > 0).double())
    s = s * 0 + 2 if kind == "constant" else s
    slope, offset = calibrate_labels(s, y)
    p = torch.sigmoid(slope * s + offset)
    assert torch.isfinite(p).all()
    assert slope >= 0
    assert abs(float(p.mean() - y.mean())) < 0.02


def test_scores_that_cannot_be_calibrated_are_refused() -> None:
    with pytest.raises(InputError, match=r"got \(3, 2\) and \(3, 1\)"):
        calibrate_labels(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(InputError, match="finite"):
        calibrate_labels(torch.full((3, 2), torch.nan), torch.zeros(3, 2))
