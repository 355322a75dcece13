"""Energies of label vectors, candidates and marginals, against enumeration."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from energate import InputError
from energate.calibration import calibrate_labels
from energate.refining import LabelSets, Neighbours, SetModel, ascend, label_autoencoder, neighbours

L, D = 5, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(n_rows: int = 12, seed: int = 0) -> Tensor:
    return (drawn(n_rows, L, seed=seed) > 0.4).double()


def set_model(relation: str, Y: Tensor | None = None) -> SetModel:
    generator = torch.Generator().manual_seed(1)
    autoencoder = label_autoencoder(relation, L, D, 4, 6, generator).double()
    model = SetModel(autoencoder, LabelSets.of(labels_of() if Y is None else Y)).double()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(0.5 * drawn(*parameter.shape, seed=10 + i))
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


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_a_row_does_not_count_for_its_own_label_vector(relation: str) -> None:
    Y, x = labels_of(), drawn(12, D, seed=3)
    sets, model, t = LabelSets.of(Y), set_model(relation), drawn(12, L, seed=2)
    scores = model.seen_scores(t, x, sets.of_row)
    plain = model.seen_scores(t, x)
    for i in range(12):
        k = int(sets.of_row[i])
        torch.testing.assert_close(sets.Y[k], Y[i])
        expected = literal_score(model, t[i], x[i], Y[i], float(sets.count[k]) - 1)
        torch.testing.assert_close(scores[i, k], expected, rtol=0, atol=1e-12)
        others = torch.arange(len(sets.Y)) != k
        torch.testing.assert_close(scores[i, others], plain[i, others])


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


# --- calibration of labels ---------------------------------------------------------------------------------------


def cost(theta: np.ndarray, s: np.ndarray, y: np.ndarray) -> float:
    u = theta[0] * (s - s.mean()) / s.std() + theta[1]
    return float(np.logaddexp(0, u).sum() - (u * y).sum() + 0.005 * ((theta[0] - 1) ** 2 + theta[1] ** 2))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_labels_are_calibrated_by_maximum_likelihood(scale: float) -> None:
    rng = np.random.default_rng(0)
    s = rng.normal(size=(200, 3)) * scale
    y = (rng.random((200, 3)) < 1 / (1 + np.exp(-(2 * s / scale - 1)))).astype(float)
    s = s + 3 * scale
    slope, offset = calibrate_labels(torch.tensor(s), torch.tensor(y))
    for label in range(3):
        found = minimize(cost, [1.0, 0.0], (s[:, label], y[:, label]), tol=1e-12)
        middle = slope[label] * s[:, label].mean() + offset[label]
        ours = cost(np.array([slope[label] * s[:, label].std(), middle]), s[:, label], y[:, label])
        assert ours <= found.fun + 1e-9 * abs(found.fun)


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
