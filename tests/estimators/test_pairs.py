"""PairScorer and its pairs of images: scikit-learn's rules, exactness, analogies, and errors that say what to do."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.estimator_checks import check_estimator

from energate.conservative import check_conservative
from energate.datasets import make_image_pairs, transform_images
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.pairs import PAIR_RELATIONS, PairScorer

both_relations = pytest.mark.parametrize("relation", PAIR_RELATIONS)
both_kinds = pytest.mark.parametrize("kind", ["shift", "rotate"])


def quick(relation: str = "conditional", **parameters: Any) -> PairScorer:
    return PairScorer(relation, **{"n_hidden": 8, "n_factors": 16, "max_epochs": 5, "random_state": 0} | parameters)


def rows(n: int = 60, n_x: int = 4, n_y: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(2, 3, (n, n_x)), rng.normal(-1, 0.5, (n, n_y))


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).mean())


def y_part(result: Any) -> np.ndarray:
    return result[1] if isinstance(result, tuple) else result


# --- the pairs of images ----------------------------------------------------------------------------------------


@both_kinds
def test_images_are_normalised_and_follow_their_number(kind: str) -> None:
    X, Y, t = make_image_pairs(600, kind, side=9, seed=3)
    assert X.shape == Y.shape == (600, 81)
    assert X.dtype == Y.dtype == np.float32
    seen = X.any(0)
    for images in (X, Y):
        np.testing.assert_allclose(images[:, seen].mean(1), 0, atol=1e-5)
        np.testing.assert_allclose(images[:, seen].std(1), 1, atol=1e-5)
    np.testing.assert_allclose(transform_images(X, t, kind), Y, atol=1e-5)
    assert set(t) == set(range(49 if kind == "shift" else 12))


def test_shifts_move_pixels_around_the_edges() -> None:
    X, Y, t = make_image_pairs(100, "shift", side=7, max_shift=2, seed=0)
    for x, y, number in zip(X.reshape(-1, 7, 7), Y.reshape(-1, 7, 7), t, strict=True):
        np.testing.assert_allclose(y, np.roll(x, (number // 5 - 2, number % 5 - 2), axis=(0, 1)), atol=1e-5)


def test_rotations_by_right_angles_are_exact() -> None:
    X, Y, t = make_image_pairs(100, "rotate", side=8, n_angles=4, seed=0)
    for x, y, number in zip(X.reshape(-1, 8, 8), Y.reshape(-1, 8, 8), t, strict=True):
        np.testing.assert_allclose(y, np.rot90(x, number), atol=1e-5)


def test_rotations_add_up() -> None:
    X, _, _ = make_image_pairs(50, "rotate", side=15, smoothness=1.5, seed=0)
    third = np.full(50, 4)
    twice = transform_images(transform_images(X, third, "rotate"), third, "rotate")
    assert likeness(twice, transform_images(X, 2 * third, "rotate")) > 0.95
    assert likeness(twice, transform_images(X, third, "rotate")) < 0.5


def test_images_may_be_given() -> None:
    digits = load_digits().data
    X, _, _ = make_image_pairs(300, "shift", images=digits, max_shift=1, seed=0)
    assert X.shape == (300, 64)
    known = transform_images(digits, np.full(len(digits), 4), max_shift=1)
    assert NearestNeighbors(n_neighbors=1).fit(known).kneighbors(X)[0].max() < 1e-3  # distances
    assert not make_image_pairs(3, images=np.ones((1, 49)))[0].any()  # a blank image stays blank


@both_kinds
def test_pairs_are_deterministic_under_a_seed(kind: str) -> None:
    first, again, other = (make_image_pairs(20, kind, seed=seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()


def test_smoothness_makes_neighbours_alike() -> None:
    def neighbours(smoothness: float) -> float:
        X = make_image_pairs(300, side=9, smoothness=smoothness)[0].reshape(-1, 9, 9)
        return float((X[:, :, 1:] * X[:, :, :-1]).mean())

    assert abs(neighbours(0)) < 0.05
    assert 0.3 < neighbours(0.7) < neighbours(1.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_rows": 0}, "n_rows.*at least 1; got 0"),
        ({"kind": "flip"}, "kind.*'shift' or 'rotate'; got 'flip'"),
        ({"side": 2}, "side.*at least 3"),
        ({"side": 5}, "max_shift.*from 0 to 2 for a side of 5; got 3"),
        ({"kind": "rotate", "n_angles": 0}, "n_angles"),
        ({"smoothness": -1.0}, "smoothness"),
        ({"images": np.ones((4, 50))}, r"square images as rows; got shape \(4, 50\)"),
        ({"images": np.ones((4, 7, 7))}, "Flatten"),
    ],
)
def test_pairs_refuse_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_image_pairs(**{"n_rows": 5} | arguments)


@pytest.mark.parametrize("t", [[0], [0, 49], [0, -1], [0.0, 1.0]])
def test_unknown_transformations_are_refused(t: list[Any]) -> None:
    with pytest.raises(InputError, match="from 0 to 48 for each of the 2 images"):
        transform_images(np.ones((2, 81)), t)


# --- scikit-learn's rules -----------------------------------------------------------------------------------------


def test_scikit_learn_checks() -> None:
    results = check_estimator(quick(max_epochs=2), on_fail=None, on_skip=None)
    assert not [result for result in results if result["status"] == "failed"]
    assert sum(result["status"] == "passed" for result in results) > 35


@both_relations
def test_copies_and_pickles_score_alike(relation: str) -> None:
    X, Y = rows()
    model = quick(relation).fit(X, Y)
    scores = model.score_pairs(X, Y)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).score_pairs(X, Y), scores, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(clone(model).fit(X, Y).score_pairs(X, Y), scores, rtol=1e-6, atol=1e-8)
    assert (quick(relation, random_state=1).fit(X, Y).score_pairs(X, Y) != scores).any()


@both_relations
def test_an_untrained_model_takes_the_trained_weights(relation: str) -> None:
    X, Y = rows()
    model = quick(relation, n_hidden="auto", n_factors="auto").fit(X, Y)
    fresh = PairScorer(**model.get_params())
    for name in ("n_features_in_", *PairScorer._FITTED):
        setattr(fresh, name, getattr(model, name))
    fresh.model_ = fresh._untrained().double()
    assert (fresh.score_pairs(X, Y) != model.score_pairs(X, Y)).all()
    fresh.model_.load_state_dict(model.model_.state_dict())
    np.testing.assert_allclose(fresh.score_pairs(X, Y), model.score_pairs(X, Y), rtol=1e-6, atol=1e-8)


def test_data_frames_keep_their_columns() -> None:
    X, Y = rows()
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = quick().fit(frame, pd.DataFrame(Y))
    assert list(model.feature_names_in_) == list("abcd")
    expected = quick().fit(X, Y).score_pairs(X, Y)
    np.testing.assert_allclose(model.score_pairs(frame, pd.DataFrame(Y)), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="feature names"):
        model.score_pairs(frame[list("badc")], Y)


@both_relations
def test_one_column_may_be_flat(relation: str) -> None:
    X, Y = rows(n_y=1)
    model = quick(relation).fit(X, Y[:, 0])
    np.testing.assert_allclose(
        model.score_pairs(X, Y[:, 0]), quick(relation).fit(X, Y).score_pairs(X, Y), rtol=1e-9, atol=1e-9
    )
    assert model.apply(X, Y[:, 0], X).shape == (60, 1)


# --- the energy ---------------------------------------------------------------------------------------------------


@both_relations
@pytest.mark.parametrize("scaling", ["standard", "unit", "none"])
def test_the_score_is_the_exact_energy(relation: str, scaling: str) -> None:
    X, Y = rows()
    model = quick(relation, scaling=scaling).fit(X, Y)
    x, y = torch.tensor(model.scaler_x_(X)), torch.tensor(model.scaler_y_(Y))
    x, y = (x.clamp(0.05, 0.95), y.clamp(0.05, 0.95)) if scaling == "unit" else (x, y)
    v, c = (y, x) if relation == "conditional" else (torch.cat([x, y], 1), None)
    assert model.model_.a.dtype == torch.float64
    report = check_conservative(model.model_, v, c)
    assert report.gradient_error < 1e-10
    original = [s.offset + s.size * part.numpy() for s, part in ((model.scaler_x_, x), (model.scaler_y_, y))]
    np.testing.assert_allclose(
        model.score_pairs(*original), model.model_.energy(v, c)[0].detach().numpy(), rtol=1e-10, atol=1e-10
    )


@both_relations
def test_the_score_rises_along_the_reconstruction(relation: str) -> None:
    """In standard columns the reconstruction less the pair is the gradient of the score."""
    X, Y = rows()
    model = quick(relation).fit(X, Y)
    towards = model.reconstruct(X, Y)
    x_step = towards[0] - X if relation == "symmetric" else np.zeros_like(X)
    y_step = y_part(towards) - Y
    square = ((x_step / model.scaler_x_.size) ** 2).sum(1) + ((y_step / model.scaler_y_.size) ** 2).sum(1)
    step = 1e-5
    ahead, behind = (model.score_pairs(X + s * x_step, Y + s * y_step) for s in (step, -step))
    np.testing.assert_allclose((ahead - behind) / (2 * step), square, rtol=1e-5)


@both_relations
@settings(max_examples=5, deadline=None)
@given(scale=st.floats(0.01, 100), offset=st.floats(-100, 100))
def test_scores_do_not_depend_on_units_of_measurement(relation: str, scale: float, offset: float) -> None:
    X, Y = rows()
    plain = quick(relation).fit(X, Y)
    other = quick(relation).fit(X * scale + offset, Y / scale - offset)
    arguments = X * scale + offset, Y / scale - offset
    # Training runs in float32, so rounding of the scaled columns is not quite lost.
    np.testing.assert_allclose(other.score_pairs(*arguments), plain.score_pairs(X, Y), rtol=1e-2, atol=1e-2)
    applied = (other.apply(*arguments, arguments[0]) + offset) * scale
    np.testing.assert_allclose(applied, plain.apply(X, Y, X), rtol=1e-2, atol=1e-2)


def test_with_unit_scaling_what_lies_beyond_counts_as_the_end() -> None:
    X, Y = rows()
    model = quick("symmetric", scaling="unit").fit(X, Y)
    far, end = model.score_pairs(X[:1] + 1e3, Y[:1] + 1e3), model.score_pairs(X.max(0)[None], Y.max(0)[None])
    np.testing.assert_allclose(far, end)
    x, y = model.reconstruct(X, Y)
    assert ((x >= X.min(0) - 1e-9) & (x <= X.max(0) + 1e-9)).all()
    assert ((y >= Y.min(0) - 1e-9) & (y <= Y.max(0) + 1e-9)).all()


@both_relations
def test_chunks_do_not_change_results(relation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = rows(150)
    whole = quick(relation).fit(X, Y)
    expected = whole.score_pairs(X, Y), whole.transform(X, Y), whole.apply(X[:1], Y[:1], X)
    monkeypatch.setattr(edge, "ROWS_PER_CHUNK", 7)
    for result, wanted in zip(
        (whole.score_pairs(X, Y), whole.transform(X, Y), whole.apply(X[:1], Y[:1], X)), expected, strict=True
    ):
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)


# --- transformations -------------------------------------------------------------------------------------------


@both_relations
@pytest.mark.parametrize("scaling", ["standard", "unit"])
def test_a_transformation_applied_to_its_own_x_is_the_reconstruction(relation: str, scaling: str) -> None:
    X, Y = rows()
    model = quick(relation, scaling=scaling).fit(X, Y)
    np.testing.assert_allclose(model.apply(X, Y, X), y_part(model.reconstruct(X, Y)), rtol=1e-12, atol=1e-12)


@both_relations
def test_one_pair_goes_for_all_rows(relation: str) -> None:
    X, Y = rows()
    model = quick(relation).fit(X, Y)
    each = np.vstack([model.apply(X[:1], Y[:1], x[None]) for x in X])
    np.testing.assert_allclose(model.apply(X[:1], Y[:1], X), each, rtol=1e-12)
    np.testing.assert_allclose(model.apply(np.repeat(X[:1], 60, 0), np.repeat(Y[:1], 60, 0), X), each, rtol=1e-12)


@pytest.fixture(scope="module", params=PAIR_RELATIONS)
def shifts(request: pytest.FixtureRequest) -> PairScorer:
    X, Y, _ = make_image_pairs(3000, side=6, max_shift=1, seed=0)
    return PairScorer(request.param, max_epochs=40, random_state=0).fit(X, Y)


def test_shifts_are_recognised_and_applied(shifts: PairScorer) -> None:
    X, Y, t = make_image_pairs(300, side=6, max_shift=1, seed=1)
    X_new = make_image_pairs(300, side=6, max_shift=1, seed=2)[0]
    truth = transform_images(X_new, t, max_shift=1)
    applied = shifts.apply(X, Y, X_new)
    assert likeness(applied, truth) > 0.85
    assert likeness(X_new, truth) < 0.5  # to copy is no way
    assert likeness(Y, truth) < 0.2
    h = shifts.transform(X, Y)
    centres = np.stack([h[:150][t[:150] == number].mean(0) for number in range(9)])
    nearest = ((h[150:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == t[150:]).mean() > 0.9


def test_true_pairs_score_above_wrong_ones(shifts: PairScorer) -> None:
    X, Y, t = make_image_pairs(300, side=6, max_shift=1, seed=1)
    right = shifts.score_pairs(X, Y)
    mirrored = transform_images(X.reshape(-1, 6, 6)[:, :, ::-1].reshape(X.shape), t, max_shift=1)
    assert (right > shifts.score_pairs(X, np.roll(Y, 1, axis=0))).mean() > 0.95
    assert (right > shifts.score_pairs(X, mirrored)).mean() > 0.9
    other = transform_images(X, (t + 1 + np.arange(300) % 8) % 9, max_shift=1)  # another shift is as good a pair
    assert 0.3 < (right > shifts.score_pairs(X, other)).mean() < 0.7


def test_early_stopping_keeps_the_best_epoch() -> None:
    X, Y = rows(200)
    model = quick(max_epochs=100, n_iter_no_change=2, learning_rate=0.05).fit(X, Y)
    assert len(model.history_.loss) < 100
    assert float(model.history_.best) == min(float(value) for value in model.history_.validation)
    assert not quick(early_stopping=False).fit(X, Y).history_.validation


def test_verbose_prints_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    quick(verbose=1).fit(*rows(200))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("[denoise] epoch 5/5, loss ")
    assert "best validation loss" in lines[-1]


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"relation": "joint"}, "`relation` must be one of conditional, symmetric; got 'joint'"),
        ({"scaling": "log"}, "`scaling` must be one of"),
        ({"noise": "pink"}, "`noise` must be one of"),
        ({"validation_fraction": 1.5}, "`validation_fraction`"),
        ({"max_epochs": "many"}, "`max_epochs` must be a whole number or 'auto'"),
        ({"n_hidden": "many"}, "must be a whole number or 'auto'; got 'many'"),
        ({"n_factors": 0}, "`n_factors` must be a whole number of at least 1"),
        ({"device": "abacus"}, "`device`"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick(**parameters).fit(*rows())


def test_bad_pairs_are_refused() -> None:
    X, Y = rows()
    with pytest.raises(InputError, match="`X` and `y` must have as many rows each; got 60 and 59"):
        quick().fit(X, Y[:-1])
    with pytest.raises(InputError, match="requires y to be passed"):
        quick().fit(X, None)
    with pytest.raises(InputError, match=r"\(n, columns\), or \(n,\) for one column; got shape \(60, 3, 1\)"):
        quick().fit(X, Y[..., None])
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        quick().fit(X[:1], Y[:1])
    for bad in ((np.where(X > 5, np.nan, X), Y), (X, np.where(Y < -2, np.nan, Y))):
        with pytest.raises(ValueError, match="NaN"):
            quick().fit(*bad)


def test_a_fitted_model_refuses_other_columns_and_rows() -> None:
    X, Y = rows()
    model = quick().fit(X, Y)
    with pytest.raises(InputError, match=r"`Y` must have 3 columns, as in fit; got shape \(60, 2\)"):
        model.score_pairs(X, Y[:, :2])
    with pytest.raises(ValueError, match="4 features"):
        model.transform(X[:, :2], Y)
    with pytest.raises(InputError, match="`X` and `Y` must have as many rows each; got 60 and 1"):
        model.reconstruct(X, Y[:1])
    with pytest.raises(InputError, match=r"`X_new` must have as many rows as `X` and `Y`, 2; got 60\. Give one pair"):
        model.apply(X[:2], Y[:2], X)
    with pytest.raises(ValueError, match="4 features"):
        model.apply(X, Y, Y)
    with pytest.raises(NotFittedError):
        quick().score_pairs(X, Y)


def test_units_without_y_take_its_mean_and_need_a_fitted_model() -> None:
    X, Y = rows(60)
    model = quick()
    assert not hasattr(model, "transform")  # so that scikit-learn does not take it for a function of X
    with pytest.raises(AttributeError, match="transform"):
        model.transform(X, Y)
    model.fit(X, Y)
    mean = np.broadcast_to(Y.mean(axis=0), Y.shape)
    np.testing.assert_allclose(model.transform(X), model.transform(X, mean), rtol=1e-9)
    assert not np.allclose(model.transform(X), model.transform(X, Y))
