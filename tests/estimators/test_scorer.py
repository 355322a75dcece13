"""EnergyScorer: scikit-learn's rules, outliers, thresholds, scales, and errors that say what to do."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import check_estimator

from energate.conservative import check_conservative
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.scorer import EnergyScorer
from energate.units import MeanUnits

KINDS = ("mean", "covariance", "mean-covariance")


def quick(units: Any = "mean-covariance", **parameters: Any) -> EnergyScorer:
    return EnergyScorer(units, **{"n_hidden": 16, "n_factors": 16, "max_epochs": 20, "random_state": 0} | parameters)


def normal_rows(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)) @ np.array([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 0.5]]) + [1.0, -2.0, 5.0]


def auc(scorer: EnergyScorer, normal: np.ndarray, outliers: np.ndarray) -> float:
    truth = np.repeat([1, 0], [len(normal), len(outliers)])
    return float(roc_auc_score(truth, scorer.score_samples(np.concatenate([normal, outliers]))))


# --- scikit-learn's rules --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_scikit_learns_checks() -> None:
    results = check_estimator(quick(max_epochs=10), on_fail=None, on_skip=None)
    assert len(results) > 40
    assert not [(r["check_name"], r["exception"]) for r in results if r["status"] not in ("passed", "skipped")]


def test_clone_and_pickle() -> None:
    X = normal_rows(50)
    scorer = quick(contamination=0.1).fit(X)
    again = pickle.loads(pickle.dumps(scorer))
    np.testing.assert_allclose(again.score_samples(X), scorer.score_samples(X), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(again.predict(X), scorer.predict(X))
    np.testing.assert_allclose(clone(scorer).fit(X).score_samples(X), scorer.score_samples(X), rtol=1e-6, atol=1e-8)


def test_random_state_repeats_and_none_does_not() -> None:
    X = normal_rows(150)
    first, second = (quick(random_state=7).fit(X) for _ in range(2))
    np.testing.assert_allclose(first.score_samples(X), second.score_samples(X), rtol=1e-6, atol=1e-8)
    assert first.offset_ == second.offset_
    assert (quick(random_state=8).fit(X).score_samples(X) != first.score_samples(X)).any()


def test_feature_names_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(normal_rows(30), columns=["a", "b", "c"])
    scorer = quick().set_output(transform="pandas").fit(frame)
    assert list(scorer.feature_names_in_) == ["a", "b", "c"]
    assert list(scorer.transform(frame).columns) == list(scorer.get_feature_names_out())
    with pytest.raises(ValueError, match="feature names"):
        scorer.predict(frame[["b", "a", "c"]])


# --- scores ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", KINDS)
def test_scores_are_the_exact_energy_of_the_scaled_rows(units: str) -> None:
    X = normal_rows(60)
    scorer = quick(units).fit(X)
    v = torch.as_tensor((X - X.mean(0)) / X.std(0))
    expected = scorer.model_.energy(v)[0].detach().numpy()
    np.testing.assert_allclose(scorer.score_samples(X), expected, rtol=1e-9)
    np.testing.assert_allclose(
        scorer.decision_function(X), scorer.score_samples(X) - scorer.offset_, rtol=1e-6, atol=1e-8
    )
    np.testing.assert_array_equal(scorer.predict(X) == -1, scorer.decision_function(X) < 0)
    check_conservative(scorer.model_, v)


@pytest.mark.parametrize("units", KINDS)
@pytest.mark.parametrize("n_rows", [60, 500])
def test_outliers_score_lower_however_far_away(units: str, n_rows: int) -> None:
    scorer = EnergyScorer(units, random_state=0).fit(normal_rows(n_rows))
    directions = np.random.default_rng(2).normal(size=(500, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for distance in (10, 30, 1000, 1e6):
        outliers = scorer.scaler_.offset + scorer.scaler_.size * distance * directions
        assert auc(scorer, normal_rows(500, seed=1), outliers) > 0.99
        assert (scorer.predict(outliers) == -1).mean() > 0.99


def test_without_far_noise_covariance_units_may_like_what_is_far_away() -> None:
    # The reason for `far_share`: nothing else stops the quadratic term.
    X = np.random.default_rng(0).normal(size=(500, 2)) @ np.array([[1.0, 1.0], [0.0, 0.5]])
    directions = np.random.default_rng(2).normal(size=(500, 2))
    outliers = 100 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    without = EnergyScorer("covariance", far_share=0, random_state=0).fit(X)
    assert auc(without, X, outliers) < 0.9
    assert auc(EnergyScorer("covariance", random_state=0).fit(X), X, outliers) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("units", KINDS)
def test_one_digit_against_the_others(units: str) -> None:
    X, y = load_digits(return_X_y=True)
    for digit in (0, 3):
        normal = X[y == digit]
        scorer = EnergyScorer(units, random_state=0).fit(normal[::2])
        assert auc(scorer, normal[1::2], X[y != digit]) > 0.93


def test_digits_with_sigmoid_outputs() -> None:
    X, y = load_digits(return_X_y=True)
    normal = X[y == 3]
    scorer = EnergyScorer("mean", scaling="unit", noise="masking", random_state=0).fit(normal[::2])
    assert auc(scorer, normal[1::2], X[y != 3]) > 0.9
    beyond = 2 * X.max(axis=0, keepdims=True)
    np.testing.assert_allclose(
        scorer.score_samples(beyond),
        scorer.score_samples(normal[::2].max(axis=0, keepdims=True).clip(beyond / 2)),
        rtol=1e-9,
    )
    assert np.isfinite(scorer.score_samples(beyond)).all()


@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_the_scale_of_the_data_does_not_matter(scale: float) -> None:
    X = normal_rows(120)
    plain, scaled = quick().fit(X), quick().fit(X * scale)
    np.testing.assert_allclose(scaled.score_samples(X * scale), plain.score_samples(X), rtol=1e-3, atol=1e-3)
    clear = np.abs(plain.decision_function(X)) > 1e-2
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(scaled.predict(X * scale)[clear], plain.predict(X)[clear])


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X = normal_rows(300)
    whole = quick().fit(X)
    monkeypatch.setattr(edge, "ROWS_PER_CHUNK", 7)
    parts = quick().fit(X)  # the held-out rows go through in chunks, too
    for name in ("score_samples", "transform", "reconstruct"):
        np.testing.assert_allclose(getattr(whole, name)(X), getattr(parts, name)(X), rtol=1e-3, atol=1e-4)
    scores = parts.score_samples(X)
    monkeypatch.undo()
    np.testing.assert_allclose(parts.score_samples(X), scores, rtol=1e-11)


def test_transform_and_reconstruct() -> None:
    X = normal_rows(400)
    scorer = EnergyScorer("mean-covariance", n_hidden=20, noise_level=0.1, far_share=0, random_state=0).fit(X)
    assert scorer.transform(X).shape == (400, 40)
    assert scorer.get_feature_names_out()[0] == "energyscorer0"
    assert len(scorer.get_feature_names_out()) == 40
    errors = ((scorer.reconstruct(X) - X) ** 2).mean(axis=0)
    assert (errors < 0.1 * X.var(axis=0)).all()


# --- training --------------------------------------------------------------------------------------------------


def test_rows_are_held_out_only_where_there_are_enough() -> None:
    assert quick().fit(normal_rows(99)).history_.best_epoch is None
    assert quick(early_stopping=False).fit(normal_rows(200)).history_.best_epoch is None
    history = quick(max_epochs=200, n_iter_no_change=3).fit(normal_rows(100)).history_
    validation = torch.stack(history.validation)
    assert history.best == validation.min()
    assert history.best_epoch == validation.argmin() + 1
    assert len(validation) in (200, int(history.best_epoch) + 3)


def test_units_of_your_own(capsys: pytest.CaptureFixture[str]) -> None:
    scorer = quick(lambda k, d, generator: MeanUnits(k, d, 5, "tanh", generator), verbose=1, max_epochs=2)
    assert scorer.fit(normal_rows(100)).transform(normal_rows(4)).shape == (4, 5)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[denoise] epoch 1/2, loss ")
    assert "best validation loss" in lines[0]
    with pytest.raises(InputError, match="units of 1 model for 3 columns; got 2 for 3"):
        quick(lambda k, d, generator: MeanUnits(2, d, 5, "tanh", generator)).fit(normal_rows(20))


def test_few_far_rows_do_not_keep_the_model_from_learning() -> None:
    # With equal weights the errors of far rows drown those that tell a row from one with shuffled columns.
    rng = np.random.default_rng(17)
    X = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 12)) + 0.3 * rng.normal(size=(300, 12))
    shuffled = np.stack([rng.permutation(column) for column in X.T], 1)
    for units in KINDS:
        scorer = EnergyScorer(units, random_state=0).fit(X[::2])
        assert auc(scorer, X[1::2], shuffled) > (0.9 if units == "covariance" else 0.98)


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_rare_values_and_constant_columns_have_the_scale_of_the_others(scale: float) -> None:
    X = np.random.default_rng(0).normal(size=(400, 4)) * scale
    X[:, 2] = 0
    X[7, 2] = scale  # one row of 400 has a value
    X[:, 3] = 5 * scale
    scaler = quick().fit(X).scaler_
    np.testing.assert_allclose(scaler.size[:2], X[:, :2].std(axis=0))
    assert scaler.size[2] == scale / 8
    assert scaler.size[3] == np.median(scaler.size[:3])
    unit = quick(scaling="unit", noise="masking").fit(X).scaler_
    assert unit.size[2] == scale  # only "standard" has a least size


# --- thresholds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contamination", [0.01, 0.1, 0.25, 0.5])
def test_contamination_is_the_share_of_outliers_in_the_training_rows(contamination: float) -> None:
    X = normal_rows(200)
    assert (quick(contamination=contamination).fit_predict(X) == -1).sum() == 200 * contamination


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_false_positive_rate_is_met_on_fresh_rows(rate: float) -> None:
    scorer = quick(false_positive_rate=rate, validation_fraction=0.4).fit(normal_rows(2500))
    found = (scorer.predict(normal_rows(4000, seed=1)) == -1).mean()
    assert abs(found - rate) < 3.5 * np.sqrt(rate * (1 - rate) * (1 / 1000 + 1 / 4000))


def test_without_held_out_rows_the_false_positive_rate_is_that_of_the_training_rows() -> None:
    X = normal_rows(99)
    assert (quick(false_positive_rate=0.1).fit_predict(X) == -1).sum() == 9  # the 10th is on the threshold
    with pytest.raises(InputError, match=r"takes at least 999 rows to be set on; there are 20.*`validation_fraction`"):
        quick(false_positive_rate=0.001).fit(normal_rows(200))


def test_the_automatic_threshold_calls_few_fresh_rows_outliers() -> None:
    scorer = EnergyScorer(random_state=0).fit(normal_rows(1000))
    assert (scorer.predict(normal_rows(2000, seed=1)) == -1).mean() < 0.07


# --- edges -----------------------------------------------------------------------------------------------------


def test_constant_columns_and_identical_rows() -> None:
    X = normal_rows(60)
    X[:, 1] = 3.0
    scorer = quick().fit(X)
    assert np.isfinite(scorer.score_samples(X)).all()
    changed = X.copy()
    changed[:, 1] += 100
    assert (scorer.score_samples(changed) < scorer.score_samples(X)).all()
    same = np.full((2, 3), 0.1)
    scorer = quick().fit(same)
    np.testing.assert_array_equal(scorer.predict(np.repeat(same, 50, axis=0)), 1)
    assert scorer.predict([[50.0, 50.0, 50.0]]) == -1


def test_one_row() -> None:
    with pytest.raises(ValueError, match=r"1 sample.*minimum of 2"):
        quick().fit(normal_rows(1))
    scorer = quick().fit(normal_rows(40))
    one_by_one = [scorer.score_samples(row[None])[0] for row in normal_rows(40)]
    np.testing.assert_allclose(scorer.score_samples(normal_rows(40)), one_by_one, rtol=1e-11)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"units": "median"},
            "`units` must be one of memory, mean, covariance, mean-covariance, or a function; got 'median'",
        ),
        ({"scaling": "robust"}, "`scaling` must be one of standard, unit, none; got 'robust'"),
        ({"noise": "pink"}, "`noise` must be one of masking, gaussian, salt-and-pepper; got 'pink'"),
        ({"activation": "sigmoyd"}, "sigmoyd"),
        ({"device": "gpu!"}, "`device` must be"),
        ({"n_hidden": "many"}, "whole number or 'auto'; got 'many'"),
        ({"n_hidden": 0}, "`n_hidden` must be a whole number of at least 1"),
        ({"contamination": 0.0}, r"`contamination` must be 'auto' or a fraction in \(0, 0.5\]; got 0.0"),
        ({"contamination": 0.6}, "`contamination` must be"),
        ({"contamination": "lots"}, "`contamination` must be"),
        ({"false_positive_rate": 1.5}, r"`false_positive_rate` must be None or a fraction in \(0, 1\); got 1.5"),
        ({"false_positive_rate": 0.1, "contamination": 0.1}, "both set the threshold.*Leave one"),
        ({"validation_fraction": 1.0}, "`validation_fraction` must be between 0 and 1; got 1.0"),
        ({"far_share": -1}, "`far_share` must be between 0 and 1; got -1"),
        ({"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
        ({"max_epochs": "some"}, "`max_epochs` must be a whole number or 'auto'; got 'some'"),
    ],
)
def test_parameters_that_cannot_be_used(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick(**parameters).fit(normal_rows(30))


def test_rows_that_cannot_be_used() -> None:
    X = normal_rows(30)
    broken = X.copy()
    broken[3, 1] = np.inf
    with pytest.raises(ValueError, match="contains infinity"):
        quick().fit(broken)
    with pytest.raises(ValueError, match="Expected 2D array, got 1D"):
        quick().fit(X[:, 0])
    scorer = quick().fit(X)
    with pytest.raises(ValueError, match="contains infinity"):
        scorer.score_samples(broken)
    with pytest.raises(ValueError, match="X has 2 features, but EnergyScorer is expecting 3"):
        scorer.predict(X[:, :2])
