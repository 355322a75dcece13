"""`EnergyRefiner`: bases of all forms, what it gains, and what it refuses."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
import test_robustness as contract
import torch
from cases import LABELS, EstimatorCase
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from energate import EnergyRefiner, InputError
from energate.estimators.bases import CrossFitted, calibrated
from energate.paper.baselines import MeanLabels

VECTORS = np.array([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 1]])
QUICK: dict[str, Any] = {"max_epochs": 12, "random_state": 0, "device": "cpu", "n_hidden": 8, "n_factors": 8}


def rows(n_rows: int = 400, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rows with one of five label vectors, and a noisy column for each label."""
    rng = np.random.default_rng(seed)
    Y = VECTORS[rng.integers(0, len(VECTORS), n_rows)]
    return Y + rng.normal(0, 0.7, Y.shape), Y


def logistic() -> Any:
    return MultiOutputClassifier(LogisticRegression())


def exact(predicted: NDArray[Any], Y: NDArray[Any]) -> float:
    return float((predicted == Y).all(1).mean())


@pytest.mark.slow
def test_scikit_learn_finds_no_fault() -> None:
    results = check_estimator(EnergyRefiner(logistic(), max_epochs=2, cv=2), on_fail=None, on_skip=None)
    assert [result["check_name"] for result in results if result["status"] == "failed"] == []
    assert len(results) > 50


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_label_vectors_that_were_seen_make_better_predictions(relation: str) -> None:
    X, Y = rows(600)
    train, test = slice(0, 400), slice(400, 600)
    base = logistic().fit(X[train], Y[train]).predict(X[test])
    whole = EnergyRefiner(logistic(), relation, objective="subset", **QUICK).fit(X[train], Y[train])
    single = EnergyRefiner(logistic(), relation, **QUICK).fit(X[train], Y[train])
    assert exact(whole.predict(X[test]), Y[test]) > exact(base, Y[test]) + 0.15
    assert (single.predict(X[test]) != Y[test]).mean() < (base != Y[test]).mean()
    assert whole.gate_ > 0
    assert single.gate_ in (0, whole.gate_)  # the best vector is the same for all but 0, so probabilities decide
    assert whole.gain_.mean > 2 * whole.gain_.standard_error > 0
    assert re.fullmatch(r"Refining gains \+\d.* points \(subset\) on 80 rows held out\.", whole.verdict_)
    seen = {tuple(vector) for vector in VECTORS}
    assert {tuple(vector) for vector in whole.predict(X[test]).tolist()} <= seen | {tuple(v) for v in base.tolist()}


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_ascent_takes_as_many_steps_as_pay(relation: str) -> None:
    X, Y = rows(600)
    options = QUICK | {"max_epochs": 40, "learning_rate": 2e-2, "weight_decay": 0.0}
    model = EnergyRefiner(logistic(), relation, method="ascent", objective="subset", **options).fit(X, Y)
    assert model.n_steps_ in (0, 1, 2, 3, 5, 10, 20)
    assert (model.n_steps_ > 0) == (model.gain_.mean > 0) == (model.gate_ > 0)
    scores = model._scores(X)
    plain = model._label_rows(scores, X)
    refined = model.refine(scores, X)[0]
    assert (np.abs(refined - 1 / (1 + np.exp(-plain.t.double().numpy()))).max() > 1e-3) == (model.n_steps_ > 0)


def test_independent_labels_keep_the_base() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    Y = (X + rng.normal(0, 0.5, X.shape) > 0).astype(int)
    kept = [EnergyRefiner(logistic(), **QUICK | {"random_state": seed}).fit(X, Y) for seed in range(3)]
    for model in kept:
        assert model.gate_ == 0 or model.gain_.mean > 0
        if model.gate_ == 0:
            assert "the base is kept" in model.verdict_
            calibrated = 1 / (1 + np.exp(-(model.slope_ * _logits(model.base_, X) + model.offset_)))
            np.testing.assert_allclose(model.predict_proba(X), calibrated, atol=1e-5)
    assert any(model.gate_ == 0 for model in kept)


class Shifted(ClassifierMixin, BaseEstimator):
    """A base that says the first two columns of X, each with a bias of its own."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift

    def fit(self, X: Any, Y: Any) -> "Shifted":
        self.classes_ = [np.array([0, 1])] * Y.shape[1]
        return self

    def decision_function(self, X: Any) -> Any:
        return X[:, :2] + [self.shift, -self.shift]


@pytest.mark.parametrize("method", ["sets", "ascent"])
@pytest.mark.parametrize("objective", ["hamming", "subset"])
def test_a_base_that_is_kept_decides_for_itself_unless_one_half_is_clearly_better(method: str, objective: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    Y = (rng.random((400, 2)) < 1 / (1 + np.exp(-3 * X))).astype(int)
    for shift, itself in ((0.0, True), (2.0, False)):
        base = Shifted(shift).fit(X, Y)
        model = EnergyRefiner(base, prefit=True, method=method, objective=objective, **QUICK | {"max_epochs": 0})
        model.fit(X, Y)._set(0, model._base_thresholds(model._label_rows(base.decision_function(X), X, Y), Y))
        fresh = rng.normal(size=(1000, 2))
        own, half = base.decision_function(fresh) > 0, model.predict_proba(fresh) > 0.5
        assert (own != half).any()
        np.testing.assert_array_equal(model.predict(fresh), own if itself else half)
        np.testing.assert_allclose(
            model.refine(base.decision_function(fresh), fresh)[1], own if itself else half, rtol=1e-6, atol=1e-8
        )
        assert (model.threshold_ == 0.5).all() == (not itself)


def test_labels_of_which_scores_say_nothing_are_as_most_of_their_rows() -> None:
    """Logits that are all the same but for rounding are no reason to predict a rare label, or never a common one."""
    X, Y = rows(300)
    model = EnergyRefiner(logistic(), **QUICK | {"max_epochs": 0}).fit(X, Y)
    for slope in (0.0, 1e-12, 1e-6):
        for offset in np.linspace(-13, 13, 51):
            model.slope_, model.offset_ = np.full(5, slope), np.full(5, offset)
            model._set(0, model._base_thresholds(model._label_rows(model._scores(X), X, Y), Y))
            if abs(offset) > 1e-3:
                assert (model.predict(X) == (offset > 0)).all()


def _logits(base: Any, X: NDArray[Any]) -> NDArray[np.float64]:
    p = np.stack([each[:, 1] for each in base.predict_proba(X)], 1)
    return np.log(p / (1 - p))


class Bare(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that gives no probabilities."""

    def fit(self, X: Any, Y: Any) -> "Bare":
        self.n_labels_ = Y.shape[1]
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros((len(X), self.n_labels_))


class Wrong(Bare):
    """A classifier whose scores have the wrong shape."""

    def decision_function(self, X: Any) -> Any:
        return np.zeros((len(X), self.n_labels_ + 1))


class Fragile(Bare):
    """A classifier that does not fit every fold."""

    def fit(self, X: Any, Y: Any) -> "Fragile":
        raise RuntimeError("too few rows")


@pytest.mark.parametrize(
    "base",
    [
        logistic(),
        RandomForestClassifier(20, random_state=0),
        OneVsRestClassifier(LogisticRegression()),
        OneVsRestClassifier(LinearSVC()),
        ClassifierChain(LogisticRegression()),
    ],
    ids=lambda base: type(base).__name__ + type(getattr(base, "estimator", base)).__name__,
)
def test_bases_of_all_forms(base: Any) -> None:
    X, Y = rows()
    model = EnergyRefiner(base, **QUICK).fit(X, Y)
    p = model.predict_proba(X)
    assert p.shape == Y.shape
    assert ((p >= 0) & (p <= 1)).all()
    assert (model.predict(X) != Y).mean() < 0.3
    assert model.base is base  # and it was not fitted


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (Bare(), "`base` must have predict_proba or decision_function; Bare has neither"),
        (Wrong(), r"\(n, 5\); Wrong gave \(\d+, 6\)"),
        (Fragile(), "could not be fitted in fold 1 of 5: RuntimeError: too few rows"),
    ],
)
def test_bases_that_cannot_be_used_are_refused(base: Any, message: str) -> None:
    X, Y = rows(60)
    model = EnergyRefiner(base, **QUICK)
    with pytest.raises(InputError, match=message):
        model.fit(X, Y)
    with pytest.raises(Exception, match="not fitted"):
        model.predict(X)


def test_a_base_that_is_fitted_already_is_taken_as_it_is() -> None:
    X, Y = rows(700)
    base = logistic().fit(X[:300], Y[:300])
    coefficients = [each.coef_.copy() for each in base.estimators_]
    model = EnergyRefiner(base, prefit=True, **QUICK).fit(X[300:], Y[300:])
    assert model.base_ is base
    for each, before in zip(base.estimators_, coefficients, strict=True):
        np.testing.assert_array_equal(each.coef_, before)
    with pytest.raises(InputError, match="prefit=True needs a fitted `base`"):
        EnergyRefiner(prefit=True).fit(X, Y)


def test_scores_from_elsewhere_can_be_refined() -> None:
    X, Y = rows()
    model = EnergyRefiner(logistic(), **QUICK).fit(X, Y)
    p, best = model.refine(_logits(model.base_, X), X)
    np.testing.assert_allclose(p, model.predict_proba(X), atol=1e-6)
    assert set(np.unique(best)) <= {0, 1}
    with pytest.raises(InputError, match=r"`scores` must be finite, \(400, 5\); got \(400, 4\)"):
        model.refine(np.zeros((400, 4)), X)


@pytest.mark.parametrize("relation", ["xy", "yy"])
def test_wrong_labels_are_found(relation: str) -> None:
    X, Y = rows(500)
    rng = np.random.default_rng(1)
    spoiled = rng.choice(500, 40, replace=False)
    noisy = Y.copy()
    noisy[spoiled, rng.integers(0, 5, 40)] ^= 1
    model = EnergyRefiner(logistic(), relation, **QUICK).fit(X, noisy)
    worst = np.argsort(model.label_energy(X, noisy))[:40]
    assert len(np.intersect1d(worst, spoiled)) >= 20  # by chance about 3
    np.testing.assert_allclose(
        model.label_energy(X, sparse.csr_matrix(noisy)), model.label_energy(X, noisy), rtol=1e-6, atol=1e-8
    )
    with pytest.raises(InputError, match=r"`Y` must be \(n, 5\) of 0 and 1; got \(500, 4\)"):
        model.label_energy(X, noisy[:, :4])


def test_wrong_classes_are_found() -> None:
    X, Y = rows(500)
    names = np.array(["none", "one", "two"])[Y[:, 0] + Y[:, 1]]
    model = EnergyRefiner(logistic(), **QUICK).fit(X, names)
    wrong = np.roll(names, 1)
    changed = wrong != names
    assert (model.label_energy(X, names) > model.label_energy(X, wrong))[changed].mean() > 0.65  # by chance one half
    np.testing.assert_allclose(
        model.label_energy(X, names[:, None]), model.label_energy(X, names), rtol=1e-6, atol=1e-8
    )
    with pytest.raises(InputError, match=r"`Y` must be \(n,\), with classes from .*none"):
        model.label_energy(X, np.full(500, "three"))


def test_labels_that_never_change_one_label_and_sparse_labels() -> None:
    X, Y = rows()
    Y = np.hstack([Y, np.zeros((400, 1), int), np.ones((400, 1), int)])
    for base in (RandomForestClassifier(10, random_state=0), logistic()):
        model = EnergyRefiner(base, **QUICK).fit(X, Y)
        assert model.varying_.tolist() == [True] * 5 + [False] * 2
        assert (model.predict(X)[:, 5:] == [0, 1]).all()
    nothing = EnergyRefiner(logistic(), **QUICK).fit(X, Y[:, 5:])
    assert nothing.base_ is None
    assert (nothing.predict(X) == [0, 1]).all()
    rare = np.zeros((400, 2), int)
    rare[:3, 0], rare[::2, 1] = 1, 1  # a label that some folds do not see
    assert EnergyRefiner(logistic(), **QUICK).fit(X, rare).predict(X).shape == (400, 2)
    one = EnergyRefiner(logistic(), **QUICK).fit(X, Y[:, :1])
    assert one.predict(X).shape == (400, 1)
    dense = EnergyRefiner(logistic(), **QUICK).fit(X, Y[:, :5])
    thin = EnergyRefiner(logistic(), **QUICK).fit(X, sparse.csr_matrix(Y[:, :5]))
    np.testing.assert_allclose(dense.predict_proba(X), thin.predict_proba(X), rtol=1e-5, atol=1e-6)


def test_the_same_random_state_gives_the_same_result_twice() -> None:
    X, Y = rows()
    first, second = (clone(EnergyRefiner(logistic(), **QUICK)).fit(X, Y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_the_default_base_is_a_network_of_our_own() -> None:
    X, Y = rows(100)
    model = EnergyRefiner(**QUICK, cv=2).fit(X, Y)
    assert type(model.base_).__name__ == "LabelMLP"
    assert exact(model.predict(X), Y) > 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relation": "xx"}, "`relation` must be one of xy, yy"),
        ({"method": "descent"}, "`method` must be one of sets, ascent"),
        ({"objective": "f1"}, "`objective` must be one of hamming, subset"),
        ({"cv": 1}, "`cv` must be a whole number of at least 2"),
        ({"validation_fraction": 1.0}, "`validation_fraction` must be between 0 and 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    X, Y = rows(60)
    with pytest.raises(InputError, match=message):
        EnergyRefiner(logistic(), **QUICK | options).fit(X, Y)


def test_labels_and_rows_that_cannot_be_used_are_refused() -> None:
    X, Y = rows(60)
    model = EnergyRefiner(logistic(), **QUICK)
    with pytest.raises(InputError, match="`Y` must hold only 0 and 1"):
        model.fit(X, Y + 1)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, Y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 1, np.nan, X), Y)


class Remembering(Bare, CrossFitted):
    """A base that has cross-fitted scores, and counts its fits."""

    fits = 0

    def fit(self, X: Any, Y: Any) -> "Remembering":
        type(self).fits += 1
        self.model_ = logistic().fit(X, Y)
        self.out_of_fold_ = self.decision_function(X) + 1.0
        return self

    def decision_function(self, X: Any) -> Any:
        return _logits(self.model_, X)


def test_scores_that_a_base_has_cross_fitted_itself_save_the_fits() -> None:
    X, Y = rows(200)
    Y[:, 2] = 0  # kept from the base
    Remembering.fits = 0
    refiner = EnergyRefiner(Remembering(), max_epochs=2, random_state=0, device="cpu").fit(X, Y)
    assert Remembering.fits == 1
    known = np.arange(Y.shape[1]) != 2
    slope, offset = calibrated(refiner.base_.out_of_fold_, Y[:, known])
    np.testing.assert_allclose(refiner.slope_[known], slope, rtol=1e-6)
    np.testing.assert_allclose(refiner.offset_[known], offset, rtol=1e-6)
    assert (refiner.predict(X)[:, 2] == 0).all()


def test_a_mean_of_bases_is_refined_as_any_base() -> None:
    X, Y = rows(600)
    base = MeanLabels([("line", logistic()), ("forest", RandomForestClassifier(20, random_state=0))], cv=3)
    model = EnergyRefiner(base, objective="subset", random_state=0, device="cpu").fit(X[:400], Y[:400])
    alone = clone(base).set_params(random_state=0).fit(X[:400], Y[:400])
    assert exact(model.predict(X[400:]), Y[400:]) > exact(alone.predict(X[400:]), Y[400:])


# --- the contract of all estimators ----------------------------------------------------------------------------------

each_case = pytest.mark.parametrize("case", LABELS, ids=lambda case: case.name)


@each_case
@pytest.mark.parametrize(
    "promise",
    [
        contract.test_one_row_is_refused,
        contract.test_ten_thousand_columns,
        contract.test_outliers_of_any_size_do_no_harm,
        contract.test_columns_too_wide_for_floating_point_are_named,
        contract.test_no_rows_to_score_are_refused,
        contract.test_frames_are_read_by_column_names,
        contract.test_fit_leaves_the_world_as_it_was,
        contract.test_fits_repeat_alone_twice_and_in_threads,
        contract.test_predict_from_eight_threads_at_once_is_right,
    ],
    ids=lambda promise: promise.__name__,
)
def test_estimators_of_labels_keep_what_all_estimators_promise(case: EstimatorCase, promise: Any) -> None:
    promise(case)


@each_case
def test_copies_of_estimators_of_labels_give_the_same(case: EstimatorCase, tmp_path: Any) -> None:
    contract.test_copies_give_the_same(case, tmp_path)
    contract.test_the_layout_and_container_of_rows_do_not_matter(case, tmp_path)


@each_case
@pytest.mark.parametrize("scale", [1e150, 1e-300, (1e12, 1e-12, 1.0, 1e300)], ids=str)
def test_the_scale_of_columns_does_not_matter_to_labels(case: EstimatorCase, scale: Any) -> None:
    contract.test_the_scale_of_columns_does_not_matter(case, scale)


@each_case
@pytest.mark.parametrize(
    ("option", "value"),
    [("batch_size", 0), ("batch_size", None), ("validation_fraction", -0.5), ("validation_fraction", None),
     ("max_epochs", 1.5), ("max_epochs", "many"), ("learning_rate", "fast")],
)  # fmt: skip
def test_parameters_of_labels_that_mean_nothing_are_refused(case: EstimatorCase, option: str, value: Any) -> None:
    contract.test_parameters_that_mean_nothing_are_refused_by_name(case, option, value)


@pytest.mark.parametrize("method", ["sets", "ascent"])
def test_labels_alone_have_an_energy_too(method: str) -> None:
    X, Y = rows(200)
    model = EnergyRefiner(logistic(), method=method, **QUICK).fit(X, Y)
    every = np.array(list(itertools.product([0, 1], repeat=Y.shape[1])))
    found = model.label_energy(every)
    autoencoder = model.model_ if method == "ascent" else model.model_.autoencoder
    energy = autoencoder.energy(torch.as_tensor(every, dtype=torch.float32))[0].detach().numpy()
    if method == "ascent":
        np.testing.assert_allclose(found, energy, rtol=1e-5, atol=1e-5)
    else:  # its share among the vectors seen and itself
        seen = {tuple(y.tolist()): n for y, n in zip(model.model_.Y, model.model_.count, strict=True)}
        count = np.array([float(seen.get(tuple(map(float, y)), 0)) for y in every])
        score = energy + model.model_.tau.item() * np.log(count + 0.5)
        others = np.exp(score[count > 0]).sum()
        total = np.where(count > 0, others, others + np.exp(score))
        np.testing.assert_allclose(found, score - np.log(total), rtol=1e-4, atol=1e-4)
        known = (every[:, None] == VECTORS).all(2).any(1)
        assert found[known].min() > found[~known].max()  # what goes together was seen together
    np.testing.assert_allclose(model.label_energy(sparse.csr_matrix(every)), found, rtol=1e-6, atol=1e-8)
    with pytest.raises(InputError, match=r"must be \(n, 5\) of 0 and 1"):
        model.label_energy(X[:, :4])
    with pytest.raises(InputError, match=r"label_energy\(X, Y\)"):
        EnergyRefiner(logistic(), "xy", method=method, **QUICK).fit(X, Y).label_energy(Y)


# --- progress ------------------------------------------------------------------------------------------------------

TASKS = ["base fold"] * 2 + ["energy epoch"] * 3


@contract.with_callbacks
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("method", ["sets", "ascent"])
def test_a_callback_sees_folds_and_epochs_and_can_stop_the_energy(method: str, stop: bool) -> None:
    X, Y = rows(60)
    callback = contract.Recorder(stop)
    options = QUICK | {"max_epochs": 3, "cv": 2, "method": method}
    EnergyRefiner(logistic(), **options).set_callbacks(callback).fit(X, Y)
    assert callback.seen == ["setup", *TASKS[: 3 if stop else 5], "fit", "teardown"]
    callback = contract.Recorder(stop)
    prefit = EnergyRefiner(logistic().fit(X, Y), prefit=True, **options).set_callbacks(callback)
    prefit.fit(X, Y)
    assert callback.seen == ["setup", *TASKS[2 : 3 if stop else 5], "fit", "teardown"]


@contract.with_callbacks
def test_an_interrupted_fit_is_no_fit() -> None:
    X, Y = rows(60)
    model = EnergyRefiner(logistic(), **QUICK | {"max_epochs": 3, "cv": 2}).fit(X, Y)
    with pytest.raises(KeyboardInterrupt):
        model.set_callbacks(contract.Recorder(interrupt_after=3)).fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert model.set_callbacks().fit(X, Y).predict(X).shape == Y.shape


def test_verbose_prints_a_line_for_every_fold_and_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    X, Y = rows(60)
    EnergyRefiner(logistic(), **QUICK | {"max_epochs": 3, "cv": 2}).fit(X, Y)
    assert capsys.readouterr().out == ""
    EnergyRefiner(logistic(), verbose=1, **QUICK | {"max_epochs": 3, "cv": 2}).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[base] fold 1/2", "[base] fold 2/2"]
    assert [line.split(",")[0] for line in lines[2:]] == [f"[energy] epoch {k}/3" for k in (1, 2, 3)]
