"""`EnergyClassifier` with a trunk, its default: scikit-learn's checks, tables, what energies say, and every tool."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris, make_moons
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator
from test_classifier import NOT_REPEATED_ROWS, over_sure

from energate import EnergyClassifier, load, save
from energate.errors import InputError
from energate.estimators.edge import TABLE_SCALINGS
from energate.export import export_onnx
from energate.training.trunk import reconstruct_together
from energate.tuning import search
from energate.views import check, explain, trajectory

QUICK: dict[str, Any] = {"n_members": 3, "breadth": 16, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def iris() -> tuple[EnergyClassifier, np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return EnergyClassifier(**QUICK).fit(X, y), X, y


def test_it_is_the_default() -> None:
    assert EnergyClassifier().units == "trunk"


@pytest.mark.slow
def test_scikit_learn_s_checks_pass() -> None:
    quick = EnergyClassifier(n_members=2, breadth=16, max_epochs=25)
    results = check_estimator(quick, expected_failed_checks=NOT_REPEATED_ROWS, on_fail=None, on_skip=None)
    failed = [(each["check_name"], each["exception"]) for each in results if each["status"] == "failed"]
    assert not failed
    assert len(results) > 50


def test_the_same_seed_gives_the_same_twice() -> None:
    X, y = load_iris(return_X_y=True)
    first, again, other = (
        EnergyClassifier(**{**QUICK, "random_state": seed}, max_epochs=3).fit(X, y).predict_proba(X)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6


def test_curved_classes_in_the_plane() -> None:
    X, y = make_moons(400, noise=0.1, random_state=0)
    fresh, truth = make_moons(2000, noise=0.1, random_state=1)
    assert EnergyClassifier(n_members=4, random_state=0, device="cpu").fit(X, y).score(fresh, truth) > 0.98


@pytest.mark.parametrize("n_signal", [0, 3], ids=["noise", "signal"])
@pytest.mark.parametrize("n_classes", [5, 20])
def test_small_classes_do_not_make_it_over_sure(n_classes: int, n_signal: int) -> None:
    assert over_sure(EnergyClassifier(**QUICK), n_classes, n_signal, seed=n_classes) < 0.1


def test_rows_that_are_like_none_are_liked_less(iris: Any) -> None:
    model, X, _ = iris
    strange = X[np.random.RandomState(0).permutation(len(X))][:, [2, 0, 3, 1]]  # columns in each other's place
    assert np.median(model.score_samples(strange)) < np.quantile(model.score_samples(X), 0.05)
    assert model.rejects(strange, 0.05).mean() > 0.5
    assert model.rejects(X, 0.05).mean() < 0.1


def test_the_denoising_loss_ties_reconstructions_to_the_rows() -> None:
    """What the classes together make of noisy rows is the nearer to the rows, the more that loss counts: less noise."""
    X, y = load_breast_cancer(return_X_y=True)
    X, X_new, y, _ = train_test_split(X, y, random_state=0)
    missed = []
    for weight in (0.0, 1.0, "auto"):
        model = EnergyClassifier(**{**QUICK, "breadth": 64}, generative_weight=weight).fit(X, y)
        v = torch.as_tensor(model.scaler_(X_new))
        noisy = v + 0.2 * torch.as_tensor(np.random.RandomState(0).normal(size=v.shape))
        with torch.no_grad():
            found = reconstruct_together(model.model_, noisy.expand(3, -1, -1).contiguous())  # (C, N, D)
        missed.append(float((found - v).square().mean() / (noisy - v).square().mean()))
    assert missed[2] < missed[0] - 0.03
    assert max(missed) < 1


def test_frames_with_categories_and_missing_cells_through_every_tool(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    colour = random.choice(["red", "green", "blue"], 120)
    size = random.normal(size=120) + 2 * (colour == "red")
    y = np.where((colour == "green") | (size > 1), "yes", "no")
    size[::7] = np.nan
    frame = pandas.DataFrame({"size": size, "colour": pandas.Categorical(colour), "flag": random.randint(0, 2, 120)})
    model = EnergyClassifier(**QUICK, max_epochs=15).fit(frame, y)
    assert model.score(frame, y) > 0.85
    assert model.cells_.names(frame.columns) == [
        "size", "size=(missing)", "colour=blue", "colour=green", "colour=red", "flag",
    ]  # fmt: skip
    assert model.scaler_.soft is not None
    assert model.scaler_.soft.tolist() == [True, False, False, False, False, False]
    save(model, tmp_path / "model.zip")
    again = load(tmp_path / "model.zip")
    np.testing.assert_allclose(again.predict_proba(frame), model.predict_proba(frame), rtol=1e-12)
    assert check(again, frame).conservative
    said = explain(again, frame.head(3))
    assert said["reconstructions"].shape == (3, 2, 6)
    assert np.isfinite(said["reconstructions"]).all()
    path = trajectory(again, frame.head(1))
    energies = np.asarray(path["energies"])
    assert (np.diff(energies) >= -1e-9 * (1 + np.abs(energies[1:]))).all()
    exported = export_onnx(again, tmp_path / "model.onnx")
    assert exported.difference < 1e-4


def test_parts_that_are_left_to_rules_can_be_given() -> None:
    X, y = load_iris(return_X_y=True)
    model = EnergyClassifier(
        n_members=2, breadth=7, depth=3, n_hidden=5, batch_size=20, learning_rate=1e-3, weight_decay=0.1,
        noise_level=0.5, scaling="standard", generative_weight=[0.0, 0.2], max_epochs=2, random_state=0, device="cpu",
    ).fit(X, y)  # fmt: skip
    (units,) = model.model_.autoencoders[0].groups
    assert (units.n_members, units.n_hidden, len(list(units.trunk)), model.breadth_) == (2, 5, 3, 7)
    assert units.n_waves == 0  # of columns that are not softly limited there are none
    assert model.generative_weights_.tolist() == [0.0, 0.2]
    assert EnergyClassifier(scaling="unit", max_epochs=1, **QUICK).fit(X, y).score(X, y) > 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_members": 0}, "`n_members` must be a whole number of at least 1 or 'auto'; got 0"),
        ({"breadth": "wide"}, "`breadth` must be a whole number"),
        ({"depth": 0}, "`depth` must be a whole number of at least 1"),
        ({"learning_rate": [1e-3, 1e-2]}, "`learning_rate` must be a number"),
        ({"units": "trunks"}, "`units` must be one of trunk, memory, mean"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match=message):
        EnergyClassifier(**{**QUICK, "max_epochs": 1, **options}).fit(X, y)


def test_rows_to_stop_on_can_be_given_and_rounds_go_on() -> None:
    X, y = load_iris(return_X_y=True)
    model = EnergyClassifier(**QUICK, max_epochs=10).fit(X[::2], y[::2], X_valid=X[1::2], y_valid=y[1::2])
    assert len(model.liking_) == 75
    assert model.score(X, y) > 0.9
    rounds = EnergyClassifier(**QUICK, max_epochs=15)
    for part in (X[:75], X[75:]):  # each lacks a class
        rounds.partial_fit(part, y[:75] if part is X[:75] else y[75:], classes=[0, 1, 2])
    assert rounds.n_rounds_ == 2
    warm = EnergyClassifier(**QUICK, max_epochs=2, warm_start=True).fit(X, y)
    before = warm.model_.autoencoders[0].groups[0].W_u.detach().clone()
    warm.fit(X, y)
    assert warm.model_.autoencoders[0].groups[0].W_u.shape == before.shape


def test_search_trains_every_configuration_alone() -> None:
    X, y = load_iris(return_X_y=True)
    base = EnergyClassifier(**QUICK, max_epochs=3)
    found = search(base, X, y, {"learning_rate": (1e-4, 1e-2, "log")}, n_trials=3, progress=False, random_state=0)
    assert found.best_estimator.model_.n_members == 3
    assert all(len(trial.together) == 1 for trial in found.trials)


@pytest.mark.parametrize("factor", [1.0, 1e-200, 1e200])
def test_robust_columns_come_back(factor: float) -> None:
    random = np.random.RandomState(0)
    X = factor * np.stack(
        [random.standard_cauchy(50), random.randint(0, 2, 50), np.full(50, 3.0), [0.0] * 40 + [1.0, 2.0] * 5], 1
    )
    scaler = TABLE_SCALINGS["robust"](X, np.ones(50))
    v = scaler(X)
    assert scaler.soft is not None
    assert scaler.soft.tolist() == [True, False, False, True]
    assert np.abs(v[:, scaler.soft]).max() < 3
    assert set(v[:, 1]) == {0.0, 1.0}
    near = np.abs(v[:, 0]) < 2.9  # further out values are brought back
    np.testing.assert_allclose(scaler.undo(v)[near], X[near], rtol=1e-9, atol=1e-12 * factor)
    assert np.isfinite(scaler(X * 1e60)).all()
