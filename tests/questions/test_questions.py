"""Attributions that add up, completions, wrong labels, drift and counterfactuals."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import CLASSIFIERS, IMAGES, LABELS, MEMORY, SCORER, labelled_rows, logistic, mixed_columns
from sklearn.utils.estimator_checks import check_estimator

import energate
from energate import EnergyClassifier, EnergyImputer, EnergyRefiner, EnergyScorer, InputError, load, save
from energate.estimators.completing import conditional
from energate.persistence.loaded import Loaded
from energate.questions.potential import Potential
from energate.views import view_of

pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 150)
X = RNG.normal(size=(150, 4)) + 2 * np.eye(4)[Y]
CASES = [*CLASSIFIERS, IMAGES, SCORER, MEMORY]
FRAME, KIND = pd.DataFrame(mixed_columns()[0]), mixed_columns()[1]


@cache
def fitted(name: str) -> Any:
    (case,) = [each for each in CASES if each.name == name]
    return case.fit(X[:100], Y[:100])


@cache
def mixed() -> EnergyClassifier:
    return EnergyClassifier(units="memory", random_state=0, device="cpu").fit(FRAME, KIND)


# --- attributions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("reference", ["mean", "nearest", "end", "rows"])
def test_parts_add_up_to_the_difference_of_energies(case, reference: str) -> None:
    model = fitted(case.name)
    given = X[:5] if reference == "rows" else reference
    n_rows = 1 if reference == "end" and case is IMAGES else 5  # whole trajectories through a network
    found = energate.attribute(model, X[100 : 100 + n_rows], reference=given, rows=X[:100])
    np.testing.assert_allclose(found.parts.sum(1), found.total, rtol=1e-6, atol=1e-9)
    if reference == "rows":
        np.testing.assert_allclose(
            found.total, model.score_samples(X[100:105]) - model.score_samples(X[:5]), rtol=1e-5, atol=1e-6
        )
        same = energate.attribute(model, X[100:101], reference=X[100:101])
        assert not same.parts.any()


@pytest.mark.parametrize("case", [*CLASSIFIERS, IMAGES], ids=lambda case: case.name)
def test_parts_of_a_class_and_of_two(case) -> None:
    model = fitted(case.name)
    for target, signs in ((1, [(1, 1)]), ((2, 0), [(2, 1), (0, -1)])):
        found = energate.attribute(model, X[100:104], reference=X[:1], target=target)
        energies = model.energies(X[100:104]) - model.energies(X[:1])
        np.testing.assert_allclose(found.total, sum(s * energies[:, k] for k, s in signs), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.parts.sum(1), found.total, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", [*CLASSIFIERS, SCORER, MEMORY], ids=lambda case: case.name)
def test_the_field_is_that_of_the_auto_encoders(case) -> None:
    model = fitted(case.name)
    view = view_of(model)
    k = None if case in (SCORER, MEMORY) else 1
    potential = Potential.of_model(model, k)
    v = potential.scaled(X[:6])
    course = view.course(X[:1], k)
    expected = course.scale * course.autoencoder.vector_field(v)[course.index]
    torch.testing.assert_close(potential.field(v), expected.detach(), rtol=1e-7, atol=1e-8)


def test_sigmoid_outputs_add_up_also_at_the_ends() -> None:
    rows = np.clip(X / 4 + 0.5, 0, 1)
    model = EnergyScorer("mean", scaling="unit", max_epochs=3, random_state=0, device="cpu").fit(rows[:100])
    found = energate.attribute(model, rows[100:], reference=rows[:1])
    np.testing.assert_allclose(found.parts.sum(1), found.total, rtol=1e-6, atol=1e-8)


def test_parts_are_gathered_to_the_columns_of_the_user() -> None:
    found = energate.attribute(mixed(), FRAME[:6], reference=FRAME[6:7])
    assert found.parts.shape == (6, 4)
    assert found.seen.shape[1] > 4
    np.testing.assert_allclose(found.parts.sum(1), found.total, rtol=1e-6, atol=1e-9)


def test_importance_is_the_mean_size_of_why_the_best_class_and_not_the_next() -> None:
    model, rows = mixed(), FRAME[:6]
    found, by_row = energate.importance(model, rows), []
    for i in range(len(rows)):
        best, other = np.argsort(-model.predict_proba(rows[i : i + 1])[0])[:2]
        target = (model.classes_[best], model.classes_[other])
        by_row.append(np.abs(energate.attribute(model, rows[i : i + 1], target=target).parts[0]))
    np.testing.assert_allclose(found, np.mean(by_row, 0), rtol=1e-6)


def test_parts_of_rows_from_nowhere_add_up_too() -> None:
    """Energies of -1e80 are all that is left of the classes: the mixture of their fields must still be a mean."""
    model = energate.EnergyClassifier("mean", pretrain_epochs=2, max_epochs=2, random_state=0).fit(
        X, np.arange(len(X)) % 3
    )
    far = np.random.default_rng(0).normal(size=(5, X.shape[1])) * [[1e3], [1e16], [1e40], [1e100], [1e300]]
    found = energate.attribute(model, far)
    assert np.isfinite(found.parts).all()
    np.testing.assert_allclose(found.parts.sum(1), found.total, rtol=1e-6)


def test_what_cannot_be_attributed_is_said() -> None:
    model = fitted("classifier-memory")
    with pytest.raises(InputError, match="needs the rows given to `fit`"):
        energate.attribute(model, X, reference="nearest")
    with pytest.raises(InputError, match="must be one of mean, nearest, end"):
        energate.attribute(model, X, reference="median")
    with pytest.raises(InputError, match="one class or two"):
        energate.attribute(model, X, target=7)
    with pytest.raises(InputError, match="has no energies of rows"):
        energate.attribute(LABELS[0].fit(*labelled_rows(60)), labelled_rows(5)[0])


# --- missing cells ---------------------------------------------------------------------------------------------------


def test_the_conditional_mean_is_that_of_the_density() -> None:
    """Against the sum over a fine grid of the missing cell."""
    model = EnergyScorer(column_weight=0.0, random_state=0, device="cpu").fit(X[:40])
    units = model.model_.groups[0]
    v, free = torch.as_tensor(model.scaler_(X[50:53])), torch.zeros(3, 4, dtype=torch.bool)
    free[:, 1] = True
    found = conditional(units, v, free)[0][0]
    T, W = float(units.log_T.exp()), units.W[0]
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    for x, mean in zip(v, found[:, 1], strict=True):
        rows = x.repeat(len(grid), 1)
        rows[:, 1] = grid
        density = torch.exp(-(torch.cdist(rows, W) ** 2) / (2 * T)).sum(1)
        torch.testing.assert_close(mean, (grid * density).sum() / density.sum(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_completed_rows_keep_what_is_there_and_are_liked_no_less(case) -> None:
    model = fitted(case.name)
    rows = X[100:130].copy()
    rows[np.random.default_rng(1).random(rows.shape) < 0.3] = np.nan
    found, there = model.complete(rows), ~np.isnan(rows)
    np.testing.assert_array_equal(found[there], rows[there])
    assert np.isfinite(found).all()
    if case is IMAGES:  # it climbs the energy of images of which it is said what is missing, which is another
        return
    fill = model.cells_.fill if case in CLASSIFIERS else model.scaler_.offset
    before = model.score_samples(np.where(there, rows, fill))
    assert (model.score_samples(found) >= before - 1e-6 * (1 + np.abs(before))).all()


@pytest.mark.parametrize("units", ["memory", "mean"])
def test_an_imputer_is_saved_and_loaded(units: str, tmp_path: Path) -> None:
    imputer = EnergyImputer(units, random_state=0, device="cpu").fit(FRAME)
    save(imputer, tmp_path / "filler.zip")
    again = load(tmp_path / "filler.zip")
    assert again.get_params() == imputer.get_params()
    for column, values in imputer.transform(FRAME).items():
        assert again.transform(FRAME)[column].tolist() == pytest.approx(values.tolist())
    with pytest.raises(InputError, match="not fitted"):
        save(EnergyImputer(), tmp_path / "other.zip")
    with pytest.raises(InputError, match="is an EnergyImputer, which fills missing cells"):
        Loaded.of(tmp_path / "filler.zip", "cpu")


def test_categories_come_out_as_categories() -> None:
    found = EnergyImputer(random_state=0, device="cpu").fit(FRAME).transform(FRAME)
    assert not found.isna().any().any()
    there = FRAME["colour"].notna()
    assert (found["colour"][there] == FRAME["colour"][there]).all()
    assert set(found["colour"]) == {"red", "blue", "green"}
    np.testing.assert_array_equal(found["age"][FRAME["age"].notna()], FRAME["age"].dropna())
    filled = mixed().complete(FRAME)
    assert np.isfinite(filled).all()
    assert set(filled[:, 2]) <= {0.0, 1.0, 2.0}


def test_the_imputer_is_an_estimator_that_knows_more_than_the_mean() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(EnergyImputer(random_state=0, device="cpu"))
    rng = np.random.default_rng(0)
    base = rng.normal(size=(300, 1))
    rows = np.hstack([base, 2 * base, -base]) + 0.1 * rng.normal(size=(300, 3))
    gone = rng.random(rows.shape) < 0.2
    given = np.where(gone, np.nan, rows)
    for units in ("memory", "mean"):
        found = EnergyImputer(units, random_state=0, device="cpu").fit(given[:200]).transform(given[200:])
        there = gone[200:] & ~gone[200:].all(1, keepdims=True)
        assert np.abs(found - rows[200:])[there].mean() < 0.6 * np.abs(rows[200:])[there].mean()


# --- labels, drift, changes ------------------------------------------------------------------------------------------


def test_wrong_labels_come_first() -> None:
    wrong = np.arange(0, 150, 15)
    flipped = Y.copy()
    flipped[wrong] = (flipped[wrong] + 1) % 3
    model = EnergyClassifier(units="memory", random_state=0, device="cpu")
    found = energate.label_errors(model, 1.5 * X, flipped)
    assert np.isin(found.order[:10], wrong).mean() >= 0.6
    np.testing.assert_allclose(np.sort(found.p_values)[[0, -1]], [1 / 150, 1.0])
    assert (found.suggested[wrong] == Y[wrong]).mean() > 0.5
    assert len(found.suspicious(0.1)) == 15
    with pytest.raises(InputError, match="a classifier by energy or a refiner"):
        energate.label_errors(logistic(), X, Y)
    with pytest.raises(InputError, match="`cv` must be at least 2"):
        energate.label_errors(model, X, Y, cv=1)


def test_wrong_label_vectors_come_first() -> None:
    rows, labels = labelled_rows(200)
    wrong = np.arange(0, 200, 20)
    labels = labels.copy()
    labels[wrong] = 1 - labels[wrong]
    model = EnergyRefiner(logistic(), cv=2, max_epochs=5, random_state=0, device="cpu")
    found = energate.label_errors(model, rows, labels, cv=2)
    assert np.isin(found.order[:20], wrong).sum() >= 7
    assert found.suggested is None


def test_drift_is_seen_and_false_alarms_are_few() -> None:
    rng = np.random.default_rng(0)
    model = EnergyScorer(random_state=0, device="cpu").fit(rng.normal(size=(100, 3)))
    alarms = []
    for seed in range(60):
        draws = np.random.default_rng(seed)
        model.conformalize(draws.normal(size=(100, 3)))
        alarms.append(energate.drift(model, draws.normal(size=(50, 3)), alpha=0.1).drifted)
    assert np.mean(alarms) <= 0.1 + 3 * np.sqrt(0.09 / 60)
    moved = rng.normal(size=(80, 3)) + np.array([0, 3, 0])
    found = energate.drift(model, moved)
    assert found.drifted
    assert found.columns[0] == 1
    assert energate.drift(model, moved, rows=rng.normal(size=(80, 3))).columns[0] == 1
    with pytest.raises(InputError, match="at least 2 rows"):
        energate.drift(model, moved[:1])
    with pytest.raises(InputError, match="by energies of rows"):
        energate.drift(LABELS[0].fit(*labelled_rows(60)), labelled_rows(5)[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_counterfactual_is_predicted_as_asked_within_the_range(case) -> None:
    model = fitted(case.name)
    if case in (SCORER, MEMORY):
        far = X[100:104] + np.array([0, 30, 0, 0])
        found, wanted = energate.counterfactual(model, far, rows=X), 1
        assert (model.predict(far) == -1).all()
        assert found.found.all()
    else:
        found, wanted = energate.counterfactual(model, X[100:104], target=2, rows=X), 2
    assert (model.predict(found.rows[found.found]) == wanted).all()
    inside = (found.rows >= X.min(0)) & (found.rows <= X.max(0))
    assert inside[found.changed].all()
    assert not found.changed[~found.found].any()
    assert (found.distance[~found.changed.any(1)] == 0).all()


def test_a_counterfactual_changes_few_columns_and_no_fixed_ones() -> None:
    model = mixed()
    rows = FRAME.dropna()[:8]
    found = energate.counterfactual(model, rows, target=1, rows=FRAME, fixed=[0])
    assert not found.changed[:, 0].any()
    assert found.found.mean() > 0.5
    ends = view_of(model).model.predict(found.rows[found.found])  # without names of columns
    assert (ends == 1).all()
    assert set(found.rows[:, 2]) <= {0.0, 1.0, 2.0}
    with pytest.raises(InputError, match="`target` must be a class"):
        energate.counterfactual(model, rows)
    with pytest.raises(InputError, match="Fill them first"):
        energate.counterfactual(model, FRAME, target=1)
