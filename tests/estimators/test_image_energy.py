"""All classes as one auto-encoder: its field, what it restores, fills in and draws, and the groups it stays under."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from torch import Tensor

from energate import ImageEnergyClassifier
from energate.conservative import check_conservative, jacobian_asymmetry
from energate.errors import InputError
from energate.estimators.convolution import (
    SYMMETRIES,
    Denoising,
    ImageHeads,
    ImageNetwork,
    halvings_of,
    rotate_images,
)
from energate.estimators.filling import anneal, falling

LEVELS = (0.1, 0.5)


def network(
    shape: tuple[int, ...] = (8, 8), symmetry: str | None = None, told: bool = False, skip: float = 0.0
) -> ImageNetwork:
    """A network of float64 whose trained parameters are all random."""
    torch.manual_seed(0)
    levels = LEVELS if told else None
    heads = ImageHeads(shape, 3, 5, 8, 1, "flatten", symmetry=symmetry, levels=levels)  # type: ignore[arg-type]
    made = ImageNetwork(heads, (1, 1), "shifts", 0.0, Denoising(2.0, LEVELS), skip).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, dtype=torch.float64))
    return made


def rows(n_rows: int = 4, width: int = 64, seed: int = 0) -> Tensor:
    return torch.rand(n_rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES: dict[str, dict[str, Any]] = {
    "grey": {},
    "colour": {"shape": (5, 4, 3)},
    "told": {"told": True, "skip": 0.5},
    "turns": {"symmetry": "turns"},
    "all": {"shape": (6, 6, 2), "symmetry": "turns and mirrors", "told": True, "skip": 0.7},
}


@pytest.fixture(params=CASES)
def made(request: pytest.FixtureRequest) -> ImageNetwork:
    return network(**CASES[request.param])


def width_of(made: ImageNetwork) -> int:
    return int(np.prod(made.shape))


# --- the energy F -----------------------------------------------------------------------------------------------


def test_all_classes_are_one_autoencoder(made) -> None:
    v = rows(2, width_of(made)).requires_grad_()
    together = made.together()
    energy, expected = together.energy(v)[0], torch.logsumexp(made.energies(v), 1) / made.scale()
    torch.testing.assert_close(energy, expected, rtol=1e-11, atol=1e-11)
    (gradient,) = torch.autograd.grad(energy.sum(), v)
    torch.testing.assert_close(together.vector_field(v)[0], gradient, rtol=1e-9, atol=1e-10)
    posterior = torch.softmax(made(v), 1).T.unsqueeze(-1)  # (K, N, 1)
    mixture = (posterior * made.autoencoder.reconstruct(v)).sum(0)
    torch.testing.assert_close(together.reconstruct(v)[0], mixture, rtol=1e-9, atol=1e-10)
    assert float(jacobian_asymmetry(together, v.detach()).max()) < 1e-12
    if made.heads.n_elements == 1:  # many points along paths
        check_conservative(together, v.detach())


def test_every_class_has_its_own_exact_energy(made) -> None:
    v = rows(3, width_of(made)).requires_grad_()
    field = made.autoencoder.vector_field(v)
    for k in range(3):
        (gradient,) = torch.autograd.grad(made.autoencoder.energy(v)[k].sum(), v)
        torch.testing.assert_close(field[k], gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("level", [None, 0.1, 0.4])
def test_training_restores_what_scoring_restores(made, level) -> None:
    if level is not None and not made.heads.levels:
        pytest.skip("it is told no level")
    v = rows(width=width_of(made))
    levels = torch.full((len(v), 1), level or LEVELS[0], dtype=v.dtype)
    restored = made.restore(v, levels).detach()
    with torch.no_grad():
        found = made.together(level).preoutput(v)[0]
    torch.testing.assert_close(found, restored, rtol=1e-9, atol=1e-10)


def test_the_level_that_is_told_makes_another_energy() -> None:
    made, v = network(told=True), rows()
    energies = [made.together(level).energy(v)[0].detach() for level in (None, 0.1, 0.3)]
    torch.testing.assert_close(energies[0], energies[1])
    assert float((energies[2] - energies[0]).abs().min()) > 1e-3
    each = torch.tensor([[0.1], [0.3], [0.1], [0.3]], dtype=v.dtype)
    mixed = made.logits(v, each)  # rows of their own levels, side by side
    alone = [made.logits(v[i : i + 1], each[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(mixed, torch.cat(alone), rtol=1e-10, atol=1e-10)


# --- the denoising loss -------------------------------------------------------------------------------------------


def test_the_denoising_loss_is_written_out(made) -> None:
    clean = rows(6, width_of(made))
    found = made.denoising_loss(clean, torch.Generator().manual_seed(3))
    draws = torch.Generator().manual_seed(3)
    level = 0.1 + 0.4 * torch.rand(6, 1, generator=draws, dtype=clean.dtype)
    seen = clean + level * torch.randn(clean.shape, generator=draws, dtype=clean.dtype)
    told = made.heads.levels is not None
    restored = [made.together(float(level[i]) if told else None).preoutput(seen[i : i + 1])[0, 0] for i in range(6)]
    expected = (torch.stack(restored) - clean).square().mean()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_training_sees_the_gradient_of_the_whole_loss(made) -> None:
    v, labels = rows(6, width_of(made)), torch.tensor([0, 1, 2, 0, 1, 2])

    def loss() -> Tensor:
        return made.loss(v, labels, torch.Generator().manual_seed(1))

    loss().backward()
    trained = [parameter for group in made.groups(1.0) for parameter in group["params"]]
    assert len(trained) == len([p for p in made.parameters() if p.requires_grad])
    assert all(parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in trained)
    ways = [torch.randn(p.shape, generator=torch.Generator().manual_seed(5), dtype=p.dtype) for p in trained]
    slope = sum(float((p.grad * way).sum()) for p, way in zip(trained, ways, strict=True))
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for parameter, way in zip(trained, ways, strict=True):
                parameter.add_(step * way)
        values.append(float(loss().detach()))
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-5)


def test_without_the_denoising_loss_training_is_by_cross_entropy_alone() -> None:
    made, v, labels = network(), rows(6), torch.tensor([0, 1, 2, 0, 1, 2])
    made.denoising = None
    found = made.loss(v, labels, torch.Generator().manual_seed(1))
    logits = made(v, torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, labels))


# --- groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["turns", "turns and mirrors"])
@pytest.mark.parametrize("shape", [(7, 7), (8, 8, 2)])
def test_no_element_of_the_group_changes_an_energy(symmetry, shape) -> None:
    made, v = network(shape, symmetry), rows(3, int(np.prod(shape)))
    planes = v.unflatten(1, made.shape).movedim(3, 1)
    moved = [each.movedim(1, 3).flatten(1) for each in SYMMETRIES[symmetry](planes)]
    assert len({tuple(row[0].tolist()) for row in moved}) == len(moved) == made.heads.n_elements
    for row in moved:
        torch.testing.assert_close(made.energies(row), made.energies(v), rtol=1e-10, atol=1e-10)
    # the field turns with the image
    field, turned = (made.together().vector_field(each)[0] for each in (v, moved[1]))
    back = torch.rot90(turned.unflatten(1, made.shape).movedim(3, 1), -1, (2, 3)).movedim(1, 3).flatten(1)
    torch.testing.assert_close(back, field, rtol=1e-9, atol=1e-10)
    without = network(shape)
    assert float((without.energies(moved[1]) - without.energies(v)).detach().abs().max()) > 1e-3
    if symmetry == "turns":
        mirrored = planes.flip(3).movedim(1, 3).flatten(1)
        assert float((made.energies(mirrored) - made.energies(v)).detach().abs().max()) > 1e-4


def test_the_energy_of_a_group_is_the_mean_of_that_of_its_elements() -> None:
    made, v = network(symmetry="turns"), rows()
    plain = network()
    plain.autoencoder.a.data.zero_()
    plain.load_state_dict({**made.state_dict(), "autoencoder.a": plain.autoencoder.a})
    turned = [torch.rot90(v.unflatten(1, (8, 8)), k, (1, 2)).flatten(1) for k in range(4)]
    mean = torch.stack([plain.autoencoder.energy(each) for each in turned]).mean(0)
    torch.testing.assert_close(made.autoencoder.energy(v), mean, rtol=1e-10, atol=1e-10)


# --- images in any shape ------------------------------------------------------------------------------------------


def digits(n_rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Digits (n, 8, 8) in random order, from 0 to 1."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:n_rows]
    return X[order].reshape(-1, 8, 8) / 16, y[order]


def small(**parameters: Any) -> ImageEnergyClassifier:
    kept: dict[str, Any] = {"n_hidden": 6, "channels": 8, "n_blocks": 0, "max_epochs": 2}
    return ImageEnergyClassifier(**{**kept, "random_state": 0, "device": "cpu", **parameters})


@pytest.fixture(scope="module")
def fitted() -> ImageEnergyClassifier:
    return small().fit(*digits())


def test_images_come_in_any_shape_and_go_as_they_came(fitted) -> None:
    X, y = digits()
    forms = [X, X[..., None], X.reshape(len(X), -1), torch.as_tensor(X)]
    for form in forms:
        model = small().fit(form, y)
        np.testing.assert_allclose(model.energies(form), fitted.energies(X), rtol=1e-12)
        assert model.sample(2).shape == (2, *form.shape[1:])
        assert fitted.predict_proba(form).shape == (len(X), 10)
        assert fitted.denoise(form).shape == form.shape
        assert fitted.inpaint(form[:2], np.eye(8, dtype=bool)).shape == form[:2].shape
    assert fitted.denoise(X.reshape(len(X), -1).tolist()).shape == (len(X), 64)


def test_whole_numbers_are_scaled_by_the_range_of_all_pixels(fitted) -> None:
    X, y = digits()
    whole = (X * 16).astype(np.uint8)
    model = small().fit(whole, y)
    assert set(model.scaler_.size) == {16.0}
    np.testing.assert_allclose(model.energies(whole), fitted.energies(X), rtol=1e-6)
    np.testing.assert_allclose(model.denoise(whole), 16 * fitted.denoise(X), rtol=1e-5, atol=1e-5)


def test_colours_have_a_plane_each() -> None:
    X, y = digits()
    colour = np.stack([X, X**2, 1 - X], -1)
    model = small(augment="turns").fit(colour, y, X_valid=colour[:50], y_valid=y[:50])
    assert model.model_.shape == (8, 8, 3)
    np.testing.assert_allclose(model.energies(colour.reshape(len(X), -1)), model.energies(colour), rtol=1e-12)
    assert np.abs(model.energies(colour[..., ::-1].copy()) - model.energies(colour)).max() > 1e-3
    same = small(augment="turns", shape=(8, 8, 3)).fit(
        colour.reshape(len(X), -1), y, X_valid=colour[:50], y_valid=y[:50]
    )
    np.testing.assert_allclose(same.energies(colour), model.energies(colour), rtol=1e-12)
    with pytest.raises(InputError, match=r"`X` must hold images of 8 x 8 x 3, as in fit; got shape \(150, 8, 8\)"):
        model.predict(X)
    with pytest.raises(InputError, match=r"`shape` is \(8, 24\), but the images in `X` are \(8, 8, 3\)"):
        small(shape=(8, 24)).fit(colour, y)


def test_a_colour_image_turns_as_its_planes_do() -> None:
    images, angle = torch.rand(3, 6, 5, 2, dtype=torch.float64), torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    turned = rotate_images(images, angle)
    for channel in range(2):
        torch.testing.assert_close(turned[..., channel], rotate_images(images[..., channel].contiguous(), angle))


def test_larger_images_are_halved_more_often() -> None:
    assert [halvings_of((side, side, 1)) for side in (8, 28, 32, 33, 64, 96, 128)] == [2, 2, 2, 3, 3, 4, 4]
    X = np.random.default_rng(0).random((12, 40, 34, 3))
    model = small(max_epochs=1).fit(X, np.arange(12) % 2)
    assert model.model_.heads.heads.in_features == 16 * 5 * 5
    assert model.denoise(X).shape == X.shape


# --- restoring, filling in, drawing --------------------------------------------------------------------------------


def test_denoising_is_a_step_along_the_field_of_all_classes(fitted) -> None:
    X, _ = digits(20)
    v = torch.as_tensor(X.reshape(20, -1))
    with torch.no_grad():
        field = fitted.together_.vector_field(v)[0].numpy()
    np.testing.assert_allclose(fitted.denoise(X), X + field.reshape(X.shape), rtol=1e-9, atol=1e-10)
    scale = float(fitted.model_.scale().detach())
    energies = fitted.together_.energy(v)[0].detach().numpy()
    np.testing.assert_allclose(fitted.score_samples(X), scale * energies, rtol=1e-9)
    np.testing.assert_allclose(fitted.score_samples(X), logsumexp(fitted.energies(X), 1), rtol=1e-12)


def test_filling_in_leaves_known_pixels_and_never_lowers_the_energy(fitted) -> None:
    X, _ = digits(12)
    mask = np.zeros((12, 8, 8), dtype=bool)
    mask[:6, :, 4:], mask[6:, 2:5, 2:7] = True, True
    found = fitted.inpaint(X, mask)
    np.testing.assert_array_equal(found[~mask], X[~mask])
    assert np.abs(found - X)[mask].max() > 1e-3
    start = np.where(mask, fitted.mean_.reshape(8, 8), X)
    assert (fitted.score_samples(found) >= fitted.score_samples(start) - 1e-9).all()
    holes = np.where(mask, np.nan, X)  # whatever is where pixels are unknown
    np.testing.assert_allclose(fitted.inpaint(holes, mask), found, rtol=1e-12)
    alone = fitted.inpaint(X[3:4], mask[3:4])
    np.testing.assert_allclose(alone, found[3:4], rtol=0, atol=1e-6)
    other = fitted.inpaint(X, mask, random_state=1)
    assert np.abs(other - found).max() > 1e-6


def test_filling_in_without_the_denoising_loss_is_ascent_alone() -> None:
    X, y = digits()
    model = small(denoising_weight=0.0).fit(X, y)
    mask = np.zeros((8, 8), dtype=bool)
    mask[3:6] = True
    found = model.inpaint(X[:5], mask)
    start = np.where(mask, model.mean_.reshape(8, 8), X[:5])
    assert (model.score_samples(found) > model.score_samples(start)).all()
    with pytest.raises(InputError, match="fit with a `denoising_weight` above 0"):
        model.sample(2)


def test_masks_of_an_image_or_of_each(fitted) -> None:
    X, y = digits()
    colour = np.stack([X, 1 - X], -1)
    model = small(max_epochs=1).fit(colour, y)
    mask = np.zeros((8, 8), dtype=bool)
    mask[2:4, 1:] = True
    every = np.broadcast_to(mask[None, ..., None], (3, 8, 8, 2))
    expected = model.inpaint(colour[:3], every)
    for form in (mask, mask[..., None], np.repeat(mask[..., None], 2, -1), np.repeat(mask[None], 3, 0)):
        np.testing.assert_array_equal(model.inpaint(colour[:3], form), expected)
    flat = model.inpaint(colour[:3].reshape(3, -1), every.reshape(3, -1))
    np.testing.assert_array_equal(flat, expected.reshape(3, -1))
    with pytest.raises(InputError, match="`mask` must hold booleans, True where pixels are unknown; got int64"):
        fitted.inpaint(X, np.zeros((8, 8), dtype=int))
    with pytest.raises(InputError, match=r"`mask` must have the shape of `X`, \(150, 8, 8\), or of one image, 8 x 8"):
        fitted.inpaint(X, np.zeros((8, 9), dtype=bool))


def test_the_same_random_state_draws_the_same_images(fitted) -> None:
    first = fitted.sample(4, random_state=3)
    np.testing.assert_array_equal(fitted.sample(4, random_state=3), first)
    assert np.abs(fitted.sample(4, random_state=4) - first).max() > 1e-3
    assert np.abs(first[0] - first[1]).max() > 1e-3
    with pytest.raises(InputError, match="`n_samples` must be a whole number of at least 1; got 0"):
        fitted.sample(0)


def test_the_levels_fall_from_high_to_low() -> None:
    np.testing.assert_allclose(falling(0.1, 0.8, 4), [0.8, 0.4, 0.2, 0.1], rtol=1e-12)
    v, unknown = rows(2), torch.zeros(2, 64, dtype=torch.bool)
    unknown[:, 5:9] = True
    made = network()
    found = anneal(lambda _: made.together(), v, unknown, [0.5, 0.1], torch.Generator().manual_seed(0))
    assert torch.equal(found[~unknown], v[~unknown])
    assert torch.equal(anneal(lambda _: made.together(), v, unknown, [], torch.Generator()), v)


def test_a_level_is_told_to_those_that_take_one(fitted) -> None:
    X, y = digits()
    model = small(level_told=True).fit(X, y)
    np.testing.assert_allclose(model.denoise(X), model.denoise(X, 0.1), rtol=1e-9, atol=1e-9)
    assert np.abs(model.denoise(X, 0.5) - model.denoise(X)).max() > 1e-4
    with pytest.raises(InputError, match="`level` is for a model that is told the noise level"):
        fitted.denoise(X, 0.3)
    with pytest.raises(InputError, match="`level` must be a number above 0; got -1"):
        model.denoise(X, -1)


@pytest.mark.slow
@pytest.mark.parametrize("told", [False, True])
def test_it_classifies_denoises_and_rejects(told) -> None:
    X, y = digits(1797)
    model = small(n_hidden=16, channels=16, n_blocks=1, max_epochs=40, level_told=told)
    model.fit(X[:1000], y[:1000], X_valid=X[1000:1198], y_valid=y[1000:1198])
    test, random = X[1198:], np.random.default_rng(0)
    assert model.score(test, y[1198:]) > 0.95
    noisy = test + 0.4 * random.normal(size=test.shape)
    restored = model.denoise(noisy, 0.4) if told else model.denoise(noisy)
    assert np.square(restored - test).mean() < 0.4 * np.square(noisy - test).mean()
    mixed = test.reshape(len(test), -1)[:, random.permutation(64)].reshape(test.shape)
    assert model.rejects(mixed, 0.05).mean() > 0.7
    assert model.rejects(test, 0.05).mean() < 0.15


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"denoising_weight": -1}, "`denoising_weight` must be a number of at least 0; got -1"),
        ({"noise_levels": 0.3}, "`noise_levels` must be two numbers above 0, .*; got 0.3"),
        ({"noise_levels": (0.5, 0.1)}, r"`noise_levels` must be .*; got \(0.5, 0.1\)"),
        ({"noise_levels": (0, 1)}, r"`noise_levels` must be .*; got \(0, 1\)"),
        ({"level_told": "yes"}, "`level_told` must be True or False; got 'yes'"),
        ({"level_told": True, "denoising_weight": 0}, "level_told=True takes a `denoising_weight` above 0"),
        ({"symmetry": "mirrors"}, "`symmetry` must be one of turns, turns and mirrors; got 'mirrors'"),
        ({"symmetry": "turns", "shape": (4, 16)}, "symmetry='turns' turns images, so they must be square"),
        ({"n_halvings": -1}, "`n_halvings` must be a whole number of at least 0 or 'auto'; got -1"),
        ({"scaling": "images"}, "`scaling` must be one of image, standard, unit, none; got 'images'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, message) -> None:
    X, y = digits()
    with pytest.raises(InputError, match=message):
        small(**parameters).fit(X.reshape(len(X), -1), y)
