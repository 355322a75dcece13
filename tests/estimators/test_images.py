"""The deep energy classifier: its logits are exact energies, its images vary as said, and it learns."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor

from energate import ImageEnergyClassifier
from energate.conservative import check_conservative, jacobian_asymmetry
from energate.errors import InputError
from energate.estimators.images import ImageHeads, ImageNetwork, shift_images, turn_images


def small(**parameters: Any) -> ImageEnergyClassifier:
    """A network that takes a few steps, for tests that do not ask how well it learns."""
    kept: dict[str, Any] = {"n_hidden": 6, "channels": 8, "max_epochs": 2, "random_state": 0, "device": "cpu"}
    return ImageEnergyClassifier(**{**kept, **parameters})


def digits(n_rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Digits in random order, from 0 to 1: the file has them sorted by writer."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:n_rows]
    return X[order] / 16, y[order]


def network(shape: tuple[int, int] = (8, 8), pooling: str = "flatten", **options: Any) -> ImageNetwork:
    """A network of float64 whose parameters are all random."""
    heads = ImageHeads(shape, 3, 5, 8, 1, pooling)
    made = ImageNetwork(heads, **{"shift": (1, 1), "augment": "shifts", "dropout": 0.0, **options}).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, dtype=torch.float64))
    return made


# --- exact energies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["flatten", "mean"])
@pytest.mark.parametrize("shape", [(8, 8), (3, 4), (1, 9), (1, 1)])
def test_the_field_is_the_gradient_of_the_energy(shape, pooling) -> None:
    autoencoder = network(shape, pooling).autoencoder
    v = torch.randn(4, shape[0] * shape[1], dtype=torch.float64, requires_grad=True)
    field = autoencoder.vector_field(v)
    assert float(field.detach().abs().max()) > 0.1
    for k in range(3):
        (gradient,) = torch.autograd.grad(autoencoder.energy(v)[k].sum(), v)
        torch.testing.assert_close(field[k], gradient, rtol=1e-10, atol=1e-11)
    assert float(jacobian_asymmetry(autoencoder, v.detach()).max()) < 1e-12
    check_conservative(autoencoder, v.detach())


def test_the_energy_is_written_out() -> None:
    made = network()
    autoencoder, v = made.autoencoder, torch.rand(6, 64, dtype=torch.float64)
    u = autoencoder.groups[0].preactivation(v, None)[0]
    assert u.shape == (3, 6, 5)
    energy = torch.log1p(u.exp()).sum(-1) + autoencoder.a @ v.T - v.square().sum(1) / 2
    torch.testing.assert_close(autoencoder.energy(v), energy, rtol=1e-12, atol=1e-12)
    logits, full = made(v), made.energies(v)
    torch.testing.assert_close(full, made.log_beta.exp() * energy.T + made.B, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.log_softmax(logits, 1), torch.log_softmax(full, 1), rtol=1e-10, atol=1e-11)


def test_one_trunk_serves_all_classes() -> None:
    made = network()
    v = torch.rand(2, 64, dtype=torch.float64)
    before = made.autoencoder.energy(v).detach()
    with torch.no_grad():
        made.autoencoder.groups[0].network.heads.bias[:5] += 1.0  # the units of the first class
    change = (made.autoencoder.energy(v) - before).detach().abs()
    assert float(change[0].min()) > 0.1
    assert float(change[1:].max()) == 0


def test_probabilities_and_scores_come_from_the_energies() -> None:
    X, y = digits()
    model = small(scaling="none").fit(X, y)
    with torch.no_grad():
        E = model.autoencoder_.energy(torch.as_tensor(X)).numpy()
        scale, B = float(model.model_.scale()), model.model_.B.numpy()
        familiar = model.model_.familiar(torch.as_tensor(X)).numpy()
    energies = scale * E.T + B + familiar[:, None]
    np.testing.assert_allclose(model.energies(X), energies, rtol=1e-10)
    np.testing.assert_allclose(model.score_samples(X), logsumexp(energies, axis=1), rtol=1e-10)
    expected = np.exp(energies - logsumexp(energies, axis=1, keepdims=True))
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-8)
    assert expected.std(0).max() > 0.01
    shared = model.decision_function(X) - energies
    np.testing.assert_allclose(shared, shared[:, :1] + 0 * shared, rtol=1e-8)  # E_0, which all classes have


# --- images that vary ------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 6), width=st.integers(1, 6), reach=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_shift_moves_every_pixel_and_repeats_the_border(height, width, reach, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(5, height, width, generator=random)
    down, right = torch.randint(-reach, reach + 1, (2, 5), generator=random)
    moved = shift_images(images, down, right)
    for n in range(5):
        for y in range(height):
            for x in range(width):
                y_from = min(max(y - int(down[n]), 0), height - 1)
                x_from = min(max(x - int(right[n]), 0), width - 1)
                assert moved[n, y, x] == images[n, y_from, x_from]


def test_the_symmetries_are_the_8_of_the_square() -> None:
    image = torch.arange(9.0).view(1, 3, 3)
    found = turn_images(image.repeat(8, 1, 1), torch.arange(8))
    turns = [torch.rot90(side, k, (0, 1)) for side in (image[0], image[0].T) for k in range(4)]
    as_rows = {tuple(turn.flatten().tolist()) for turn in turns}
    assert {tuple(one.flatten().tolist()) for one in found} == as_rows
    assert len(as_rows) == 8
    assert torch.equal(found[0], image[0])


def drawn(made: ImageNetwork, v: Tensor, n_draws: int = 200) -> set[tuple[float, ...]]:
    noise = torch.Generator().manual_seed(0)
    rows = torch.cat([made.augment(v, noise) for _ in range(n_draws)])
    return {tuple(row.tolist()) for row in rows}


def test_training_sees_all_shifts_and_scoring_sees_none() -> None:
    v = torch.rand(1, 64, dtype=torch.float64)
    made = network(shift=(1, 2))
    images = v.unflatten(1, (8, 8))
    moves = [(down, right) for down in (-1, 0, 1) for right in range(-2, 3)]
    expected = {tuple(shift_images(images, torch.tensor([d]), torch.tensor([r])).flatten().tolist()) for d, r in moves}
    assert len(expected) == 15
    assert drawn(made, v) == expected
    assert len(drawn(network(shift=(0, 0), augment="symmetries"), v)) == 8
    assert drawn(network(shift=(0, 0)), v) == {tuple(v[0].tolist())}
    assert torch.equal(made(v), made(v))
    draws = [made(v, torch.Generator().manual_seed(seed)) for seed in range(6)]
    assert max(float((draw - draws[0]).detach().abs().max()) for draw in draws) > 1e-3


def test_dropout_leaves_pixels_out_and_keeps_their_mean() -> None:
    made, v = network(shift=(0, 0), dropout=0.25), torch.ones(3000, 64, dtype=torch.float64)
    rows = made.augment(v, torch.Generator().manual_seed(0))
    assert set(rows.unique().tolist()) == {0.0, 1 / 0.75}
    assert float(rows.mean()) == pytest.approx(1, abs=0.01)


def test_how_far_images_move_and_that_rows_of_columns_stay() -> None:
    X, y = digits(30)

    def shift(columns: int, **parameters: Any) -> tuple[int, int]:
        rows = np.tile(X, (1, 13))[:, :columns]
        found: tuple[int, int] = small(max_epochs=0, **parameters).fit(rows, y).model_.shift
        return found

    assert shift(784) == (2, 2)
    assert shift(784, shift=9) == (3, 3)  # an eighth of the side
    assert shift(784, augment="symmetries") == (2, 2)
    assert shift(784, augment="none") == (0, 0)
    assert shift(64) == (1, 1)
    assert shift(64, shape=(4, 16)) == (0, 2)
    assert shift(60) == (0, 0)


# --- the classifier --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scikit_learn_finds_no_fault() -> None:
    model = small(n_hidden=16, n_blocks=0, max_epochs=12, learning_rate=5e-3, random_state=None)
    results = check_estimator(model, on_fail=None, on_skip=None)
    assert [result["check_name"] for result in results if result["status"] == "failed"] == []
    assert len(results) > 40


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "parameters"), [(0.04, {}), (0.08, {"pooling": "mean"})])
def test_it_learns_digits(bound, parameters) -> None:
    X, y = digits(1797)
    model = small(**{"n_hidden": 32, "channels": 16, "max_epochs": 25, "scaling": "none", **parameters})
    model.fit(X[:1000], y[:1000], X_valid=X[1000:1198], y_valid=y[1000:1198])
    assert model.score(X[1198:], y[1198:]) > 1 - bound
    losses = model.history_["fine-tune"].loss
    assert float(losses[-1]) < float(losses[0]) / 2  # most of it is what denoising misses
    noise = np.random.default_rng(0).random((200, 64))
    assert np.median(model.score_samples(noise)) < np.median(model.score_samples(X[1198:]))


def test_random_state_decides_everything_and_torch_s_own_state_stays() -> None:
    X, y = digits()
    options: dict[str, Any] = {"augment": "symmetries", "input_dropout": 0.1}
    state = torch.get_rng_state()
    first = small(**options).fit(X, y).predict_proba(X)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    np.testing.assert_allclose(small(**options).fit(X, y).predict_proba(X), first, rtol=1e-6, atol=1e-8)
    assert np.abs(small(random_state=1, **options).fit(X, y).predict_proba(X) - first).max() > 1e-4


def test_rows_are_scored_alone_as_together_and_copies_are_equal() -> None:
    X, y = digits()
    model = small().fit(X, y)
    together = model.energies(X)
    alone = np.concatenate([model.energies(X[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(alone, together[:20], rtol=0, atol=1e-9)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(copied.energies(X), together, rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
def test_a_gpu_gives_the_energies_of_the_cpu() -> None:
    X, y = digits()
    model = small(device="cuda", scaling="none").fit(X, y)
    rows = torch.as_tensor(X)
    with torch.no_grad():
        on_gpu = model.energies(X)
        on_cpu = model.model_.cpu().double().energies(rows).numpy()
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)
    field = model.autoencoder_.vector_field(rows[:3])
    v = rows[:3].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.autoencoder_.energy(v).sum(), v)
    torch.testing.assert_close(field.sum(0), gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_hidden": 0}, "`n_hidden` must be a whole number of at least 1 or 'auto'; got 0"),
        ({"n_blocks": -1}, "`n_blocks` must be a whole number of at least 0; got -1"),
        ({"shift": 1.5}, "`shift` must be a whole number of at least 0; got 1.5"),
        ({"channels": 12}, "`channels` must be a multiple of 8; got 12"),
        ({"channels": 4}, "`channels` must be a whole number of at least 8; got 4"),
        ({"input_dropout": 1}, "`input_dropout` must be a number of at least 0 and below 1; got 1"),
        ({"augment": "flips"}, "`augment` must be one of shifts, none, affine, symmetries, turns; got 'flips'"),
        ({"pooling": "max"}, "`pooling` must be one of flatten, mean; got 'max'"),
        ({"shape": "square"}, "`shape` must be 'auto', or height and width .* of images of 64 pixels; got 'square'"),
        ({"shape": (8, 9)}, r"`shape` must be .*; got \(8, 9\)"),
        ({"shape": (-8, -8)}, r"`shape` must be .*; got \(-8, -8\)"),
        ({"shape": 64}, "`shape` must be .*; got 64"),
        ({"shape": None}, "`shape` must be .*; got None"),
        ({"shape": (2.0, 32.0)}, "`shape` must be .*; got"),
        ({"shape": (4, 16), "augment": "symmetries"}, "must be square; they are 4 x 16"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, message) -> None:
    with pytest.raises(InputError, match=message):
        small(**parameters).fit(*digits())


def test_there_are_no_energies_before_fit() -> None:
    model = small()
    for ask in (lambda: model.autoencoder_, lambda: model.energies(digits()[0])):
        with pytest.raises(NotFittedError):
            ask()


def test_rows_that_no_class_likes_are_rejected() -> None:
    X, y = digits()
    model = small().fit(X, y)
    assert (np.diff(model.liking_) >= 0).all()
    assert np.mean(model.rejects(X, 0.05)) < 0.3
    noise = np.random.default_rng(0).uniform(-300, 300, size=X.shape)
    assert model.rejects(noise).mean() > 0.9
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), rtol=1e-12)
    with pytest.raises(InputError, match="`rate` must be above 0 and below 1; got 2"):
        model.rejects(X, 2)


def test_the_network_before_training_has_the_names_and_shapes_of_the_trained_one() -> None:
    model = small(n_blocks=1).fit(*digits())
    untrained = model._untrained()
    assert repr(untrained) == repr(model.model_)
    shapes = [{name: value.shape for name, value in each.state_dict().items()} for each in (untrained, model.model_)]
    assert shapes[0] == shapes[1]
