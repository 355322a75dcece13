"""EnergyScorer with a memory, the default: exact, quick, robust, and a stream that it follows."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import check_estimator
from test_scorer import auc, normal_rows

from energate.conservative import check_conservative
from energate.errors import InputError
from energate.estimators.scorer import EnergyScorer
from energate.memory import MemoryUnits, SoftColumnUnits, SoftGaussianUnits
from energate.persistence import load, save


def scorer(**parameters: Any) -> EnergyScorer:
    return EnergyScorer(**{"random_state": 0, "device": "cpu"} | parameters)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("parameters", [{}, {"max_units": 7, "column_weight": 0, "contamination": 0.1}])
def test_scikit_learns_checks(parameters: dict[str, Any]) -> None:
    results = check_estimator(scorer(**parameters), on_fail=None, on_skip=None)
    assert len(results) > 40
    assert not [(r["check_name"], r["exception"]) for r in results if r["status"] not in ("passed", "skipped")]


def test_the_default_remembers_the_rows() -> None:
    X = normal_rows(80)
    model = EnergyScorer(random_state=0).fit(X)
    rows, columns, gaussian = model.model_.groups
    assert isinstance(rows, MemoryUnits)
    assert isinstance(columns, SoftColumnUnits)
    assert isinstance(gaussian, SoftGaussianUnits)
    assert model.n_units_ == 80
    np.testing.assert_allclose(rows.W[0].cpu().numpy() * model.scaler_.size + model.scaler_.offset, X, atol=1e-9)
    v = torch.as_tensor(model.scaler_(X))
    if model.model_.a.device.type == "cpu":
        np.testing.assert_allclose(model.score_samples(X), model.model_.energy(v)[0], rtol=1e-10)
        check_conservative(model.model_, v)


def test_outliers_score_lower_however_far_away() -> None:
    model = scorer().fit(normal_rows(500))
    directions = np.random.default_rng(2).normal(size=(500, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for distance in (10, 1000, 1e6):
        outliers = model.scaler_.offset + model.scaler_.size * distance * directions
        assert auc(model, normal_rows(500, seed=1), outliers) > 0.999
        assert (model.predict(outliers) == -1).all()


@pytest.mark.parametrize("max_units", [10_000, 20])
def test_one_digit_against_the_others(max_units: int) -> None:
    X, y = load_digits(return_X_y=True)
    for digit in (0, 3):
        normal = X[y == digit]
        model = scorer(max_units=max_units).fit(normal[::2])
        assert auc(model, normal[1::2], X[y != digit]) > 0.95


def test_anomalies_that_are_like_each_other_are_found_by_their_columns() -> None:
    rng = np.random.default_rng(0)
    normal, alike = rng.normal(size=(950, 6)), 0.05 * rng.normal(size=(50, 6)) + 3.0
    X, truth = np.concatenate([normal, alike]), np.repeat([1, 0], [950, 50])
    found = {weight: roc_auc_score(truth, scorer(column_weight=weight).fit(X).score_samples(X)) for weight in (0, 1)}
    assert found[1] > 0.97
    assert found[0] < found[1] - 0.05


def test_contamination_is_a_hint_that_columns_count_for_more() -> None:
    def share(**parameters: Any) -> float:
        return float(scorer(**parameters).fit(normal_rows(200)).model_.groups[1].log_share.exp())

    assert share() < share(contamination=0.1)
    assert share(contamination=0.1) == pytest.approx(share(column_weight=1.0))
    assert len(scorer(column_weight=0).fit(normal_rows(50)).model_.groups) == 1


@pytest.mark.parametrize("contamination", [0.01, 0.1, 0.5])
def test_contamination_is_the_share_of_outliers_in_the_training_rows(contamination: float) -> None:
    X = normal_rows(200)
    assert (scorer(contamination=contamination).fit_predict(X) == -1).sum() == 200 * contamination


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_false_positive_rate_is_met_on_fresh_rows_without_any_held_out(rate: float) -> None:
    model = scorer(false_positive_rate=rate).fit(normal_rows(1500))
    found = (model.predict(normal_rows(4000, seed=1)) == -1).mean()
    assert abs(found - rate) < 3.5 * np.sqrt(rate * (1 - rate) * (1 / 1500 + 1 / 4000)) + 0.005
    with pytest.raises(InputError, match=r"takes at least 999 rows to be set on; there are 200.*raise the rate\.$"):
        scorer(false_positive_rate=0.001).fit(normal_rows(200))


def test_the_automatic_threshold_calls_few_fresh_rows_outliers() -> None:
    assert (scorer().fit(normal_rows(1000)).predict(normal_rows(2000, seed=1)) == -1).mean() < 0.07


def test_centres_are_close_to_all_rows() -> None:
    X, fresh = normal_rows(3000), normal_rows(500, seed=1)
    whole, few = scorer().fit(X), scorer(max_units=300).fit(X)
    assert few.n_units_ <= 300
    assert np.corrcoef(whole.score_samples(fresh), few.score_samples(fresh))[0, 1] > 0.98


@pytest.mark.parametrize("scaling", ["standard", "unit", "none"])
def test_outputs_are_linear_whatever_the_scaling(scaling: str) -> None:
    model = scorer(scaling=scaling).fit(normal_rows(100))
    assert model.model_.visible.name == "linear"
    beyond = normal_rows(100).max(0, keepdims=True) + 5
    assert model.score_samples(beyond + 5) < model.score_samples(beyond)  # also beyond the ends of "unit"


@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_the_scale_of_the_data_does_not_matter(scale: float) -> None:
    X = normal_rows(120)
    plain, scaled = scorer().fit(X), scorer().fit(X * scale)
    np.testing.assert_allclose(scaled.score_samples(X * scale), plain.score_samples(X), rtol=1e-5, atol=1e-5)


def test_transform_and_reconstruct() -> None:
    X = normal_rows(60)
    model = scorer().fit(X)
    assert model.transform(X).shape == (60, len(model.get_feature_names_out()))
    assert ((model.reconstruct(X) - X) ** 2).mean() < X.var(0).mean()


# --- streams -----------------------------------------------------------------------------------------------------


def test_rows_join_the_memory_as_if_they_had_been_there() -> None:
    X = normal_rows(300)
    whole, parts = scorer().fit(X), scorer()
    for start in (0, 100, 200):
        parts.partial_fit(X[start : start + 100])
    assert parts.n_units_ == whole.n_units_ == 300
    fresh = normal_rows(200, seed=1)
    assert np.corrcoef(whole.score_samples(fresh), parts.score_samples(fresh))[0, 1] > 0.99


def test_a_stream_that_drifts_is_followed_and_what_was_is_forgotten() -> None:
    follows, keeps = scorer(forgetting=0.02), scorer()
    for step in range(12):
        rows = normal_rows(100, seed=step) + 2.0 * step
        follows.partial_fit(rows)
        keeps.partial_fit(rows)
    before, now = normal_rows(300, seed=50), normal_rows(300, seed=51) + 22.0
    assert follows.n_units_ < keeps.n_units_ == 1200
    assert (follows.predict(now) == 1).mean() > 0.9
    assert (follows.predict(before) == -1).all()
    assert (keeps.predict(before) == 1).mean() > 0.9


@pytest.mark.parametrize("contamination", ["auto", 0.05])
def test_a_memory_of_a_stream_stays_within_its_bounds(contamination: float | str) -> None:
    model = scorer(max_units=150, contamination=contamination)
    for step in range(5):
        model.partial_fit(normal_rows(100, seed=step))
    assert model.n_units_ <= 150
    assert float(model.model_.groups[0].log_counts.exp().sum()) == pytest.approx(500)
    assert (model.predict(normal_rows(500, seed=9)) == 1).mean() > 0.85
    with pytest.raises(ValueError, match="X has 2 features, but EnergyScorer is expecting 3"):
        model.partial_fit(normal_rows(10)[:, :2])


def test_only_a_memory_takes_rows_later() -> None:
    with pytest.raises(AttributeError, match="partial_fit"):
        _ = scorer(units="mean").partial_fit


# --- files and errors --------------------------------------------------------------------------------------------


def test_clone_pickle_and_saving(tmp_path: Any) -> None:
    X = normal_rows(50)
    model = scorer(max_units=30, false_positive_rate=0.1).fit(X)
    save(model, tmp_path / "model")
    for again in (pickle.loads(pickle.dumps(model)), clone(model).fit(X), load(tmp_path / "model")):
        np.testing.assert_allclose(again.score_samples(X), model.score_samples(X), rtol=1e-10)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    again = load(tmp_path / "model").partial_fit(normal_rows(20, seed=1))
    assert np.isfinite(again.score_samples(X)).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_units": 1}, "`max_units` must be a whole number of at least 2; got 1"),
        ({"column_weight": -1}, "`column_weight` must be a number of at least 0; got -1"),
        ({"column_weight": "much"}, "`column_weight` must be a number of at least 0"),
        ({"forgetting": 1.0}, "`forgetting` must be a number of at least 0 and below 1; got 1.0"),
    ],
)
def test_parameters_that_cannot_be_used(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scorer(**parameters).fit(normal_rows(30))
