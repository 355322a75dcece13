"""`EnergyClassifier` with a memory of rows for each class: scikit-learn's checks, tables, rounds, and every tool."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_moons
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.utils.estimator_checks import check_estimator
from test_classifier import over_sure
from typer.testing import CliRunner

from energate import EnergyClassifier, MemoryUnits, load, save
from energate.cli import app
from energate.errors import InputError
from energate.estimators.classifier import QUICK_ROWS
from energate.export import export_onnx
from energate.tuning import search
from energate.views import check, explain, trajectory

NOT_REPEATED_ROWS = {
    "check_sample_weight_equivalence_on_dense_data": "of rows that are repeated one is left out at a time, a row that "
    "is weighted is left out as a whole"
}


def memory(**options: Any) -> EnergyClassifier:
    return EnergyClassifier("memory", **{"random_state": 0, "device": "cpu", **options})


def units_of(model: EnergyClassifier) -> MemoryUnits:
    (units,) = model.model_.autoencoders[0].groups
    assert isinstance(units, MemoryUnits)
    return units


@pytest.fixture(scope="module")
def iris() -> tuple[EnergyClassifier, np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return memory().fit(X, y), X, y


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"n_hidden": 3}], ids=["rows", "centres"])
def test_scikit_learn_s_checks_pass(options: dict[str, Any]) -> None:
    results = check_estimator(
        EnergyClassifier("memory", **options), expected_failed_checks=NOT_REPEATED_ROWS, on_fail=None, on_skip=None
    )
    assert not [(each["check_name"], each["exception"]) for each in results if each["status"] == "failed"]
    assert len(results) > 50


def test_the_units_of_a_class_are_its_rows(iris: Any) -> None:
    model, X, y = iris
    assert model.n_units_ == 50
    for k in range(3):
        rows = model.scaler_.undo(units_of(model).W[k].numpy())
        np.testing.assert_allclose(rows, X[y == k], rtol=1e-5, atol=1e-5)
    assert model.transform(X).shape == (150, 150) == (150, len(model.get_feature_names_out()))
    assert model.history_ == {}


def test_curved_classes_in_the_plane() -> None:
    X, y = make_moons(400, noise=0.1, random_state=0)
    fresh, truth = make_moons(2000, noise=0.1, random_state=1)
    assert memory().fit(X, y).score(fresh, truth) > 0.99
    assert memory(n_hidden=12).fit(X, y).score(fresh, truth) > 0.97


def test_probabilities_of_new_rows_are_good() -> None:
    X, y = load_digits(return_X_y=True)
    X, X_new, y, y_new = train_test_split(X, y, random_state=0)
    log_p = memory().fit(X, y).predict_log_proba(X_new)
    assert (log_p.argmax(1) == y_new).mean() > 0.97
    assert -log_p[np.arange(len(y_new)), y_new].mean() < 0.1


@pytest.mark.parametrize("n_hidden", ["auto", 2])
@pytest.mark.parametrize("n_signal", [0, 3], ids=["noise", "signal"])
@pytest.mark.parametrize("n_classes", [5, 20])
def test_small_classes_do_not_make_it_over_sure(n_classes: int, n_signal: int, n_hidden: int | str) -> None:
    assert over_sure(memory(n_hidden=n_hidden), n_classes, n_signal, seed=n_classes) < 0.1


@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_classes_of_a_few_rows_of_noise_are_not_told_apart(n_rows: int) -> None:
    random = np.random.RandomState(0)
    y, new = np.repeat(np.arange(4), n_rows), np.repeat(np.arange(4), 100)
    log_p = memory().fit(random.normal(size=(len(y), 6)), y).predict_log_proba(random.normal(size=(400, 6)))
    assert -log_p[np.arange(400), new].mean() < np.log(4) + 0.25


def test_rows_that_are_like_none_are_liked_less(iris: Any) -> None:
    model, X, _ = iris
    strange = X[np.random.RandomState(0).permutation(len(X))][:, [2, 0, 3, 1]]  # columns in each other's place
    assert np.median(model.score_samples(strange)) < np.quantile(model.score_samples(X), 0.05)
    assert model.rejects(strange, 0.05).mean() > 0.9
    assert model.rejects(X, 0.05).mean() < 0.08
    assert len(model.liking_) == 150
    X, y = load_digits(return_X_y=True)
    known = y != 7
    model = memory().fit(X[known][::2], y[known][::2])
    fresh = np.concatenate([X[known][1::2], X[~known]])
    truth = np.repeat([1, 0], [known[known][1::2].sum(), (~known).sum()])
    assert roc_auc_score(truth, model.score_samples(fresh)) > 0.9
    assert model.rejects(X[known][1::2], 0.05).mean() == pytest.approx(0.05, abs=0.04)  # by rows that were left out


def test_the_same_seed_gives_the_same_twice() -> None:
    X, y = load_iris(return_X_y=True)
    first, again, other = (memory(n_hidden=5, random_state=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6


def test_predict_in_single_precision_first_is_the_answer_of_double() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = memory().fit(X, y)
    many = np.tile(X, (2, 1)) * np.random.RandomState(0).uniform(0.8, 1.2, size=(2 * len(X), 1))
    assert len(many) >= QUICK_ROWS
    np.testing.assert_array_equal(model.predict(many), model.classes_[model.predict_proba(many).argmax(1)])


# --- rounds ----------------------------------------------------------------------------------------------------------


def test_rows_join_later_also_of_classes_that_were_not_there() -> None:
    X, y = load_iris(return_X_y=True)
    rounds = memory(scaling="none")
    for some in (slice(0, 75), slice(75, 110), slice(110, 150)):  # each lacks a class
        rounds.partial_fit(X[some], y[some], classes=[0, 1, 2])
        assert np.isfinite(rounds.energies(X)).all()
        assert set(rounds.predict(X)) <= set(y[: some.stop])
    assert (rounds.n_rounds_, rounds.n_units_) == (3, 50)
    np.testing.assert_allclose(
        rounds.predict_proba(X), memory(scaling="none").fit(X, y).predict_proba(X), rtol=1e-4, atol=1e-6
    )
    full = memory(n_hidden=20)
    for start in range(3):
        full.partial_fit(X[start::3], y[start::3], classes=[0, 1, 2])
    assert full.n_units_ <= 20
    np.testing.assert_allclose(units_of(full).log_counts.exp().sum(1).numpy(), 50, rtol=1e-5)
    assert full.score(X, y) > 0.93


def test_fit_begins_anew_whatever_was_there() -> None:
    X, y = load_iris(return_X_y=True)
    warm = memory(warm_start=True).fit(X, y)
    before = warm.predict_proba(X)
    np.testing.assert_allclose(warm.fit(X, y).predict_proba(X), before, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(warm.partial_fit(X[:5], y[:5]).fit(X, y).predict_proba(X), before, rtol=1e-6, atol=1e-8)


def test_rows_to_calibrate_on_can_be_given() -> None:
    X, y = load_iris(return_X_y=True)
    model = memory().fit(X[::2], y[::2], X_valid=X[1::2], y_valid=y[1::2])
    np.testing.assert_allclose(model.liking_, np.sort(model.score_samples(X[1::2])), rtol=1e-6)
    assert model.score(X, y) > 0.93


def test_weights_move_the_classes() -> None:
    random = np.random.RandomState(0)
    y = np.arange(200) % 2
    X = random.normal(size=(200, 2)) + y[:, None]
    plain, heavy = memory().fit(X, y), memory().fit(X, y, sample_weight=np.where(y, 5.0, 1.0))
    balanced = memory(class_weight={0: 1, 1: 5}).fit(X, y)
    assert heavy.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.15
    np.testing.assert_allclose(balanced.predict_proba(X), heavy.predict_proba(X), rtol=1e-6)


# --- tools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_hidden", ["auto", 10])
def test_frames_with_categories_and_missing_cells_through_every_tool(tmp_path: Path, n_hidden: int | str) -> None:
    random = np.random.RandomState(0)
    colour = random.choice(["red", "green", "blue"], 120, p=[0.6, 0.2, 0.2])
    size = random.normal(size=120) + 2 * (colour == "red")
    y = np.where((colour == "green") | (size > 1), "yes", "no")
    size[::7] = np.nan
    frame = pandas.DataFrame({"size": size, "colour": pandas.Categorical(colour), "flag": random.randint(0, 2, 120)})
    model = memory(n_hidden=n_hidden).fit(frame, y)
    assert model.score(frame, y) > 0.85
    save(model, tmp_path / "model.zip")
    again = load(tmp_path / "model.zip")
    np.testing.assert_allclose(again.predict_proba(frame), model.predict_proba(frame), rtol=1e-12)
    assert again.n_units_ == model.n_units_
    assert check(again, frame).conservative
    said = explain(again, frame.head(3))
    assert said["reconstructions"].shape == (3, 2, 6)
    assert np.isfinite(said["reconstructions"]).all()
    energies = np.asarray(trajectory(again, frame.head(1))["energies"])
    assert (np.diff(energies) >= -1e-9 * (1 + np.abs(energies[1:]))).all()
    exported = export_onnx(again, tmp_path / "model.onnx")
    assert exported.difference < 1e-4
    again.partial_fit(frame, y)
    assert again.score(frame, y) > 0.85


@pytest.mark.parametrize("scaling", ["robust", "standard", "unit", "none"])
def test_every_scaling_has_linear_outputs(scaling: str, tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    model = memory(scaling=scaling).fit(X, y)
    assert model.model_.autoencoders[0].visible.name == "linear"
    assert model.score(X, y) > 0.93
    assert check(model, X).conservative
    if scaling != "robust":  # which ends at three quartiles
        beyond = X.max(axis=0, keepdims=True) + 5
        assert model.score_samples(beyond + 5) < model.score_samples(beyond)
    if scaling == "unit":
        assert export_onnx(model, tmp_path / "model.onnx").difference < 1e-4


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = load_iris(return_X_y=True)
    pandas.DataFrame(X, columns=list("abcd")).assign(kind=np.array(["x", "y", "z"])[y]).to_csv("t.csv", index=False)
    options = ["--target", "kind", "--units", "memory", "-o", "m.zip", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, ["fit", "t.csv", *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["held_out"]["error"] < 15
    assert load("m.zip").units == "memory"
    done = CliRunner().invoke(app, ["check", "m.zip"])
    assert done.exit_code == 0, done.output


def test_search_says_that_there_is_nothing_to_search_and_others_search() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match=r"units='memory' are not trained.*Use scikit-learn's searches"):
        search(memory(), X, y, n_trials=2, progress=False)
    found = GridSearchCV(memory(), {"n_hidden": [1, 30], "scaling": ["robust", "standard"]}, cv=3).fit(X, y)
    assert found.best_score_ > 0.93


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_members": 4}, "`n_members` is for a trunk, and a memory has one member; got 4. Leave it at 'auto'"),
        ({"n_hidden": 0}, "`n_hidden` must be a whole number of at least 1 or 'auto'; got 0"),
        ({"n_hidden": "many"}, "`n_hidden` must be a whole number"),
        ({"scaling": "wide"}, "`scaling` must be one of"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match=message):
        memory(**options).fit(X, y)


def test_it_is_in_double_precision(iris: Any) -> None:
    model, X, _ = iris
    assert model.model_.B.dtype == torch.float64
    assert units_of(model).needs_double
    assert (model.n_members, model.model_.n_members) == ("auto", 1)
    assert np.isfinite(model.energies(X * 1e200)).all()
