"""All classes as one auto-encoder: its field, what it restores, fills in and draws, and the groups it stays under."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from energate import ImageEnergyClassifier
from energate.conservative import check_conservative, jacobian_asymmetry
from energate.errors import InputError
from energate.estimators.convolution import OF_NOISE, SYMMETRIES, ImageHeads, bend_images, halvings_of, turns_by
from energate.estimators.filling import anneal, falling
from energate.estimators.image_network import ImageNetwork
from energate.estimators.restoring import (
    KNOWN,
    MISSING,
    UNSAID,
    Denoising,
    NoiseFinder,
    denoising_loss,
    holes,
    noisy,
    restored,
)

LEVELS = (0.1, 0.5)


def network(
    shape: tuple[int, ...] = (8, 8), symmetry: str | None = None, shared: bool = True, skip: float = 0.0
) -> ImageNetwork:
    """A network of float64 whose parameters are all random."""
    torch.manual_seed(0)
    heads = ImageHeads(shape, 3, 5, 8, 1, "flatten", symmetry=symmetry)  # type: ignore[arg-type]
    finder = NoiseFinder(heads.shape, 4, OF_NOISE.get(symmetry, symmetry)) if shared else None
    denoising = Denoising(2.0, LEVELS) if shared else None
    made = ImageNetwork(heads, (1, 1), "shifts", 0.0, skip, finder, denoising).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter is not made.autoencoder.a or parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
        made.middle.copy_(torch.linspace(0, 1, len(made.middle)))
    return made


def rows(n_rows: int = 4, width: int = 64, seed: int = 0) -> Tensor:
    return torch.rand(n_rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES: dict[str, dict[str, Any]] = {
    "grey": {},
    "colour": {"shape": (5, 4, 3)},
    "older": {"shared": False, "skip": 0.5},
    "turns": {"symmetry": "turns"},
    "all": {"shape": (6, 6, 2), "symmetry": "turns and mirrors"},
    "circle": {"shape": (7, 7), "symmetry": "circle"},
    "odd": {"shape": (9, 11)},
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
    liked = torch.logsumexp(made.energies(v), 1)
    energy = together.energy(v)[0]
    torch.testing.assert_close(energy, liked / made.scale(), rtol=1e-11, atol=1e-11)
    (gradient,) = torch.autograd.grad(energy.sum(), v)
    torch.testing.assert_close(together.vector_field(v)[0], gradient, rtol=1e-9, atol=1e-10)
    assert float(jacobian_asymmetry(together, v.detach()).max()) < 1e-12
    if made.heads.n_elements == 1:  # many points along paths
        check_conservative(together, v.detach())


def test_what_restores_is_the_mean_of_the_classes(made) -> None:
    v = rows(2, width_of(made))
    said = None if made.finder is None else torch.full_like(v, UNSAID)
    posterior = torch.softmax(made(v), 1).T.unsqueeze(-1)  # (K, N, 1)
    mixture = (posterior * made.reconstruct(v)).sum(0)
    torch.testing.assert_close(made.restoring().preoutput(v, said)[0], mixture, rtol=1e-9, atol=1e-10)


def test_every_class_has_its_own_exact_energy(made) -> None:
    v = rows(3, width_of(made)).requires_grad_()
    classes = made.classes()
    energies = classes.energy(v)
    whole = (made.scale() * energies).T + made.B + made.familiar(v).unsqueeze(1)
    torch.testing.assert_close(whole, made.energies(v), rtol=1e-10, atol=1e-9)
    field = classes.vector_field(v)
    torch.testing.assert_close(field + v, made.reconstruct(v), rtol=1e-9, atol=1e-10)
    for k in range(3):
        (gradient,) = torch.autograd.grad(energies[k].sum(), v, retain_graph=True)
        torch.testing.assert_close(field[k], gradient, rtol=1e-9, atol=1e-10)
        alone = made.alone(k)
        torch.testing.assert_close(alone.energy(v)[0], energies[k], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(alone.vector_field(v)[0], field[k], rtol=1e-9, atol=1e-10)


def test_what_classes_share_changes_no_probability(made) -> None:
    v = rows(3, width_of(made))
    expected = torch.softmax(made.energies(v), 1)
    torch.testing.assert_close(torch.softmax(made(v), 1), expected, rtol=1e-8, atol=1e-10)


def test_what_is_said_of_pixels_makes_another_energy() -> None:
    made, v = network(), rows()
    restoring = made.restoring()
    for says in (UNSAID, 0.2, 1.0, MISSING):
        said = torch.full_like(v, says)
        said[:, :20] = KNOWN if says != UNSAID else UNSAID
        x = v.clone().requires_grad_()
        energy = restoring.energy(x, said)[0]
        (gradient,) = torch.autograd.grad(energy.sum(), x)
        torch.testing.assert_close(restoring.vector_field(v, said)[0], gradient, rtol=1e-9, atol=1e-10)
        assert float(jacobian_asymmetry(restoring, v[:2], said[:2]).max()) < 1e-12
    energies = [restoring.energy(v, torch.full_like(v, says))[0].detach() for says in (UNSAID, 0.2, MISSING)]
    assert float((energies[0] - energies[1]).abs().min()) > 1e-5
    assert float((energies[1] - energies[2]).abs().min()) > 1e-5


def test_features_are_whitened_and_vary_as_asked() -> None:
    made, v = network(), rows(400, seed=1)
    assert made.familiarity is not None
    made.familiarity.fit(v[:300], v[300:], torch.tensor(3.0))
    white = made.familiarity(v[:300]).detach()
    torch.testing.assert_close(white.mean(0), torch.zeros_like(white[0]), rtol=0, atol=1e-8)
    assert 0.5 < float(white.square().mean()) < 1.1  # less than 1 by what the covariance is shrunk
    assert float(made.familiar(v[300:]).detach().std()) == pytest.approx(3.0, rel=1e-6)
    assert float(made.familiar(1 - v).detach().mean()) != pytest.approx(float(made.familiar(v).detach().mean()))


# --- the denoising loss -------------------------------------------------------------------------------------------


def test_the_denoising_loss_is_written_out() -> None:
    for name in ("grey", "colour", "odd"):
        made = network(**CASES[name])
        assert made.finder is not None
        clean = rows(10, width_of(made))
        found = denoising_loss(made.finder, clean, made.middle, LEVELS, torch.Generator().manual_seed(3))
        seen, said, level = noisy(clean, made.middle, LEVELS, made.shape, torch.Generator().manual_seed(3))
        known = said == KNOWN
        assert torch.equal(seen[known], clean[known])
        assert {UNSAID, KNOWN, MISSING} < set(said.unique().tolist())
        noise = made.finder(seen.requires_grad_(), said)
        (gradient,) = torch.autograd.grad(-noise.square().sum() / 2, seen)
        missed = (torch.where(known, seen, seen + gradient) - clean).square().mean(1)
        torch.testing.assert_close(found, (missed / level[:, 0]).mean(), rtol=1e-9, atol=1e-11)


def test_training_restores_an_image_under_an_element_of_the_group() -> None:
    made, v = network(symmetry="turns"), rows(3)
    assert made.finder is not None
    said = torch.full_like(v, 0.5)
    found = restored(made.finder, v, said, torch.Generator().manual_seed(0)).detach()
    each = []
    for quarters in range(4):
        x = v.clone().requires_grad_()
        planes = torch.rot90(x.view(-1, 1, 8, 8), quarters, (2, 3))
        noise = made.finder.found(torch.cat([planes, torch.full_like(planes, 0.5)], 1))
        each.append(v + torch.autograd.grad(-noise.square().sum() / 2, x)[0])
    nearest = torch.stack([(found - turned).abs().amax(1) for turned in each]).amin(0)
    assert float(nearest.max()) < 1e-10


def test_holes_leave_something_and_hide_something() -> None:
    hidden = holes(200, (9, 7, 2), torch.Generator().manual_seed(0), rows()).view(200, 9, 7, 2)
    assert torch.equal(hidden[..., 0], hidden[..., 1])  # all colours of a pixel
    share = hidden.double().mean((1, 2, 3))
    assert 0.2 < float(share.mean()) < 0.6
    assert float(share.max()) < 1


def test_training_sees_the_gradient_of_the_whole_loss(made) -> None:
    v, labels = rows(6, width_of(made)), torch.tensor([0, 1, 2, 0, 1, 2])

    def loss() -> Tensor:
        return made.loss(v, labels, *made.noises(1))

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


def test_the_finder_takes_no_larger_steps_than_it_bears() -> None:
    made = network()
    assert [group["learning_rate"] for group in made.groups(1e-4)] == [1e-4, 1e-4]
    assert [group["learning_rate"] for group in made.groups(0.1)] == [0.1, ImageNetwork.finder_rate]


def test_without_the_denoising_loss_training_is_by_cross_entropy_alone() -> None:
    made, v, labels = network(shared=False), rows(6), torch.tensor([0, 1, 2, 0, 1, 2])
    found = made.loss(v, labels, *made.noises(1))
    logits = made(v, made.noises(1)[0])
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, labels))


@pytest.mark.parametrize("how", [{}, {"symmetry": "circle", "learning_rate": 2e-2}])
def test_classes_are_told_apart_as_by_cross_entropy_alone(how) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:200].reshape(-1, 8, 8) / 16, y[:200]
    small = {"channels": 8, "n_hidden": 8, "max_epochs": 2, "early_stopping": False, "random_state": 0, **how}
    alone, hybrid = (
        ImageEnergyClassifier(denoising_weight=weight, device="cpu", **small).fit(X, y) for weight in (0.0, 1.0)
    )
    np.testing.assert_allclose(hybrid.predict_proba(X), alone.predict_proba(X), rtol=1e-4, atol=1e-6)
    assert np.ptp(alone.predict_proba(X), 0).max() > 0.05  # which says something


# --- groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["turns", "turns and mirrors", "circle"])
@pytest.mark.parametrize("shape", [(7, 7), (8, 8, 2)])
def test_no_element_of_the_group_changes_an_energy(symmetry, shape) -> None:
    made, v = network(shape, symmetry), rows(3, int(np.prod(shape)))
    planes = v.unflatten(1, made.shape).movedim(3, 1)
    quarters = "turns" if symmetry == "circle" else symmetry  # exactly so: eighths have a file of tests of their own
    moved = [each.movedim(1, 3).flatten(1) for each in SYMMETRIES[quarters](planes)]
    assert len({tuple(row[0].tolist()) for row in moved}) == len(moved)
    assert made.heads.n_elements == {"turns": 4}.get(symmetry, 8)
    for row in moved:
        torch.testing.assert_close(made.energies(row), made.energies(v), rtol=1e-10, atol=1e-10)
    # the field turns with the image
    field, turned = (made.together().vector_field(each)[0] for each in (v, moved[1]))
    back = torch.rot90(turned.unflatten(1, made.shape).movedim(3, 1), -1, (2, 3)).movedim(1, 3).flatten(1)
    torch.testing.assert_close(back, field, rtol=1e-9, atol=1e-10)
    without = network(shape)
    assert float((without.energies(moved[1]) - without.energies(v)).detach().abs().max()) > 1e-3
    if symmetry != "turns and mirrors":
        mirrored = planes.flip(3).movedim(1, 3).flatten(1)
        assert float((made.energies(mirrored) - made.energies(v)).detach().abs().max()) > 1e-4


def test_the_energy_of_a_group_is_the_mean_of_that_of_its_elements() -> None:
    made, v = network(symmetry="turns", shared=False), rows()
    plain = network(shared=False)
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
    kept: dict[str, Any] = {"n_hidden": 6, "channels": 8, "n_blocks": 0, "shared_channels": 4, "max_epochs": 2}
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
    turned = bend_images(images, turns_by(angle))
    for channel in range(2):
        torch.testing.assert_close(
            turned[..., channel], bend_images(images[..., channel].contiguous(), turns_by(angle))
        )


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
    restoring = fitted.model_.restoring()
    for level, says in ((None, UNSAID), (0.25, 0.25)):
        with torch.no_grad():
            field = restoring.vector_field(v, torch.full_like(v, says))[0].numpy()
        np.testing.assert_allclose(fitted.denoise(X, level), X + field.reshape(X.shape), rtol=0, atol=2e-5)
    scale = float(fitted.model_.scale().detach())
    energies = fitted.together_.energy(v)[0].detach().numpy()
    np.testing.assert_allclose(fitted.score_samples(X), scale * energies, rtol=1e-9)
    assert (np.sort(fitted.liking_) == fitted.liking_).all()


def test_filling_in_leaves_known_pixels_and_never_lowers_the_energy(fitted) -> None:
    X, _ = digits(12)
    mask = np.zeros((12, 8, 8), dtype=bool)
    mask[:6, :, 4:], mask[6:, 2:5, 2:7] = True, True
    found = fitted.inpaint(X, mask)
    np.testing.assert_array_equal(found[~mask], X[~mask])
    assert np.abs(found - X)[mask].max() > 1e-3
    start = np.where(mask, fitted.mean_.reshape(8, 8), X)
    restoring, said = fitted.model_.restoring(), torch.as_tensor(np.where(mask, MISSING, KNOWN).reshape(12, -1))
    before, after = (restoring.energy(torch.as_tensor(x.reshape(12, -1)), said)[0] for x in (start, found))
    assert bool((after >= before - 1e-6).all())
    missing = np.where(mask, np.nan, X)  # whatever is where pixels are unknown
    np.testing.assert_allclose(fitted.inpaint(missing, mask), found, rtol=1e-12)
    alone = fitted.inpaint(X[3:4], mask[3:4])
    np.testing.assert_allclose(alone, found[3:4], rtol=0, atol=1e-5)


def test_a_draw_of_missing_pixels_is_one_of_many(fitted) -> None:
    X, _ = digits(3)
    mask = np.zeros((8, 8), dtype=bool)
    mask[:, 4:] = True
    first = fitted.inpaint(X, mask, draw=True)
    np.testing.assert_array_equal(first[:, ~mask], X[:, ~mask])
    np.testing.assert_allclose(fitted.inpaint(X, mask, draw=True), first, rtol=1e-6, atol=1e-6)
    assert np.abs(fitted.inpaint(X, mask, draw=True, random_state=1) - first).max() > 1e-6
    alone = fitted.inpaint(X[1:2], mask, draw=True)
    np.testing.assert_allclose(alone, first[1:2], rtol=0, atol=1e-4)


def test_filling_in_without_the_denoising_loss_is_ascent_alone() -> None:
    X, y = digits()
    model = small(denoising_weight=0.0).fit(X, y)
    mask = np.zeros((8, 8), dtype=bool)
    mask[3:6] = True
    found = model.inpaint(X[:5], mask)
    start = np.where(mask, model.mean_.reshape(8, 8), X[:5])
    assert (model.score_samples(found) > model.score_samples(start)).all()
    for ask in (lambda: model.sample(2), lambda: model.inpaint(X[:5], mask, draw=True)):
        with pytest.raises(InputError, match="fit with a `denoising_weight` above 0"):
            ask()


def test_masks_of_an_image_or_of_each(fitted) -> None:
    X, y = digits()
    colour = np.stack([X, 1 - X], -1)
    model = small(max_epochs=1).fit(colour, y)
    mask = np.zeros((8, 8), dtype=bool)
    mask[2:4, 1:] = True
    every = np.broadcast_to(mask[None, ..., None], (3, 8, 8, 2))
    expected = model.inpaint(colour[:3], every)
    for form in (mask, mask[..., None], np.repeat(mask[..., None], 2, -1), np.repeat(mask[None], 3, 0)):
        np.testing.assert_allclose(model.inpaint(colour[:3], form), expected, rtol=1e-6, atol=1e-6)
    flat = model.inpaint(colour[:3].reshape(3, -1), every.reshape(3, -1))
    np.testing.assert_allclose(flat, expected.reshape(3, -1), rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match="`mask` must hold booleans, True where pixels are unknown; got int64"):
        fitted.inpaint(X, np.zeros((8, 8), dtype=int))
    with pytest.raises(InputError, match=r"`mask` must have the shape of `X`, \(150, 8, 8\), or of one image, 8 x 8"):
        fitted.inpaint(X, np.zeros((8, 9), dtype=bool))


def test_the_same_random_state_draws_the_same_images(fitted) -> None:
    first = fitted.sample(4, random_state=3)
    np.testing.assert_allclose(fitted.sample(4, random_state=3), first, rtol=1e-6, atol=1e-6)
    assert np.abs(fitted.sample(4, random_state=4) - first).max() > 1e-3
    assert np.abs(first[0] - first[1]).max() > 1e-3
    with pytest.raises(InputError, match="`n_samples` must be a whole number of at least 1; got 0"):
        fitted.sample(0)


def test_the_levels_fall_from_high_to_low() -> None:
    np.testing.assert_allclose(falling(0.1, 0.8, 4), [0.8, 0.4, 0.2, 0.1], rtol=1e-12)
    v, unknown = rows(2), torch.zeros(2, 64, dtype=torch.bool)
    unknown[:, 5:9] = True
    made = network()
    told = []

    def restore(v: Tensor, level: float, _: Tensor) -> Tensor:
        told.append(level)
        return made.restoring().preoutput(v, torch.full_like(v, level))[0]

    found = anneal(restore, v, unknown, [0.5, 0.1], torch.Generator().manual_seed(0))
    assert torch.equal(found[~unknown], v[~unknown])
    assert told == [0.5, 0.1]


def test_a_level_is_told_to_those_that_take_one(fitted) -> None:
    X, y = digits()
    assert np.abs(fitted.denoise(X, 0.5) - fitted.denoise(X)).max() > 1e-5
    with pytest.raises(InputError, match="`level` must be a number above 0; got -1"):
        fitted.denoise(X, -1)
    with pytest.raises(InputError, match="`level` is for a model with a shared energy"):
        small(denoising_weight=0.0, max_epochs=1).fit(X, y).denoise(X, 0.3)


@pytest.mark.slow  # 40 epochs
def test_it_classifies_denoises_and_rejects() -> None:
    X, y = digits(1797)
    model = small(n_hidden=16, channels=16, n_blocks=1, max_epochs=40)
    model.fit(X[:1000], y[:1000], X_valid=X[1000:1198], y_valid=y[1000:1198])
    test, random = X[1198:], np.random.default_rng(0)
    assert model.score(test, y[1198:]) > 0.95
    noisy = test + 0.4 * random.normal(size=test.shape)
    for cleaned in (model.denoise(noisy), model.denoise(noisy, 0.4)):
        assert np.square(cleaned - test).mean() < 0.5 * np.square(noisy - test).mean()
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
        ({"shared_channels": 0}, "`shared_channels` must be a whole number of at least 1 or 'auto'; got 0"),
        ({"symmetry": "mirrors"}, "`symmetry` must be one of turns, turns and mirrors, circle; got 'mirrors'"),
        ({"symmetry": "turns", "shape": (4, 16)}, "symmetry='turns' turns images, so they must be square"),
        ({"n_halvings": -1}, "`n_halvings` must be a whole number of at least 0 or 'auto'; got -1"),
        ({"scaling": "images"}, "`scaling` must be one of image, standard, unit, none; got 'images'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, message) -> None:
    X, y = digits()
    with pytest.raises(InputError, match=message):
        small(**parameters).fit(X.reshape(len(X), -1), y)
