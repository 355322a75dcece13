"""The support vector machine is scikit-learn's, only quicker; and searching its grid gives what single fits give."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import check_estimator

from energate.errors import InputError
from energate.paper.baselines import SVM_GRID, GaussianSVC, search_svm, svm


def digits(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits in random order: the file has them sorted by writer."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:n_rows]
    return X[order], y[order]


def test_the_support_vector_machine_learns_and_its_grid_can_be_searched() -> None:
    X, y = digits(1797)
    assert svm().fit(X[:800], y[:800]).score(X[1400:], y[1400:]) > 0.96
    search = GridSearchCV(svm(random_state=0), SVM_GRID, cv=2).fit(X[:200], y[:200])
    assert search.best_score_ > 0.8
    assert svm(scaling="standard", C=3.0)[-1].C == 3.0
    with pytest.raises(InputError, match="`scaling` must be one of unit, standard, none; got 'odd'"):
        svm(scaling="odd")


@settings(max_examples=25, deadline=None)
@given(
    n_classes=st.integers(2, 6),
    n_columns=st.integers(1, 5),
    C=st.sampled_from([0.01, 1.0, 100.0]),
    gamma=st.sampled_from(["scale", 0.1, 3.0]),
    seed=st.integers(0, 999),
)
def test_gaussian_svc_is_scikit_learn_s_svc(n_classes, n_columns, C, gamma, seed) -> None:
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=40)])  # every class is there
    X = rng.normal(size=(len(y), n_columns)) + 0.5 * y[:, None]
    names = np.array(list("fedcba"))[y]
    expected, found = SVC(C=C, gamma=gamma).fit(X, names), GaussianSVC(C=C, gamma=gamma).fit(X, names)
    # The kernels differ by rounding: a row whose coefficient is as good as 0 may be a support vector of one only.
    assert len(np.setxor1d(found.support_, expected.support_)) <= 1
    rows = rng.normal(size=(60, n_columns)) * 3
    np.testing.assert_allclose(found.decision_function(rows), expected.decision_function(rows), atol=1e-5)
    clear = np.abs(found._pairs(rows)).min(1) > 1e-5  # rounding may turn a vote that is as good as 0
    assert clear.sum() > 50 or C < 1
    np.testing.assert_array_equal(found.predict(rows)[clear], expected.predict(rows)[clear])


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_gaussian_svc_predicts_digits_as_svc_does_in_chunks_of_any_size(n_classes, monkeypatch) -> None:
    X, y = digits(1797)
    y = y % n_classes
    expected, found = SVC(C=10.0).fit(X[:600], y[:600]), GaussianSVC(C=10.0).fit(X[:600], y[:600])
    together = found.decision_function(X)
    np.testing.assert_allclose(together, expected.decision_function(X), rtol=0, atol=1e-5)
    clear = np.abs(found._pairs(X)).min(1) > 1e-5
    assert clear.mean() > 0.98
    np.testing.assert_array_equal(found.predict(X)[clear], expected.predict(X)[clear])
    monkeypatch.setattr("energate.paper.baselines.svms.KERNEL_VALUES", 7 * len(found.support_))
    np.testing.assert_allclose(found.decision_function(X), together, rtol=0, atol=1e-12)


def test_of_classes_with_equally_many_votes_the_first_is_taken() -> None:
    model = GaussianSVC().fit(np.eye(3), [0, 1, 2])
    said = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]])  # 0 or 1, 0 or 2, 1 or 2
    np.testing.assert_array_equal(model._most_votes(said), [0, 0, 2])
    np.testing.assert_array_equal(model._most_votes(-said), [0, 0, 0])


def test_scikit_learn_finds_no_fault_with_gaussian_svc() -> None:
    results = check_estimator(GaussianSVC(), on_fail=None, on_skip=None)
    assert [result["check_name"] for result in results if result["status"] == "failed"] == []
    assert len(results) > 40


@pytest.mark.parametrize("scaling", ["unit", "none"])
def test_a_search_gives_what_single_fits_give(scaling) -> None:
    X, y = digits(900)
    X = X / 16
    rows = (X[:400], y[:400], X[400:600], y[400:600])
    grid = {"svc__C": [0.1, 10.0], "svc__gamma": ["scale", 0.03, 1.0]}
    shown: list[Any] = []
    found = search_svm(*rows, grid, scaling=scaling, n_jobs=2, show=shown.append)
    assert shown == found.trials
    points = [(C, gamma) for gamma in grid["svc__gamma"] for C in grid["svc__C"]]
    assert [(trial.C, trial.gamma) for trial in found.trials] == points
    single = [svm(C, gamma, scaling).fit(*rows[:2]) for C, gamma in points]
    errors = [1 - model.score(*rows[2:]) for model in single]
    np.testing.assert_allclose([trial.valid_error for trial in found.trials], errors, atol=1e-12)
    assert found.chosen == int(np.argmin(np.round(errors, 9)))
    assert len(set(np.round(errors, 9))) > 2
    assert found.best.get_params()["svc__C"] == found.trials[found.chosen].C
    np.testing.assert_array_equal(found.best.predict(X[600:]), single[found.chosen].predict(X[600:]))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"C": 0}, "`C` must be a number above 0; got 0"),
        ({"C": "much"}, "`C` must be a number above 0; got 'much'"),
        ({"gamma": -1.0}, "`gamma` must be 'scale' or a number above 0; got -1.0"),
        ({"gamma": "auto"}, "`gamma` must be 'scale' or a number above 0; got 'auto'"),
        ({"gamma": True}, "`gamma` must be .*; got True"),
        ({"C": float("inf")}, "`C` must be a number above 0; got inf"),
    ],
)
def test_parameters_of_the_support_vector_machine_that_mean_nothing_are_refused(parameters, message) -> None:
    X, y = digits(50)
    with pytest.raises(InputError, match=message):
        svm(**parameters).fit(X, y)
    grid = {"svc__C": [parameters.get("C", 1.0)], "svc__gamma": [parameters.get("gamma", 0.1)]}
    with pytest.raises(InputError, match=message):
        search_svm(X, y, X, y, grid)


def test_grids_that_cannot_be_searched_are_refused() -> None:
    X, y = digits(50)
    for grid in ({"C": [1.0]}, {**SVM_GRID, "svc__C": []}, {**SVM_GRID, "scaler": ["unit"]}):
        with pytest.raises(InputError, match="`grid` must have values for svc__C and svc__gamma, and no other keys"):
            search_svm(X, y, X, y, grid)
