"""Guarantees: p-values, sets and false discoveries, of the formulas and of every estimator with an energy."""

import math

import numpy as np
import pytest
import torch
from cases import CLASSIFIERS, ESTIMATORS, IMAGES, MEMORY, SCORER, labelled_rows, logistic
from scipy.stats import binom, false_discovery_control

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, InputError, conformal, load, save
from energate.estimators.liking import by_class, together

RNG = np.random.default_rng(0)
N = 1600
Y = RNG.integers(0, 3, N)
X = RNG.normal(size=(N, 4)) + 1.2 * np.eye(4)[Y]


@pytest.fixture(scope="module")
def fitted() -> EnergyClassifier:
    return EnergyClassifier(units="memory", random_state=0, device="cpu").fit(X[:200], Y[:200])


def test_a_p_value_counts_the_row_itself() -> None:
    held_out = np.array([1.0, 2.0, 2.0, 3.0])
    np.testing.assert_allclose(conformal.p_values([0.0, 2.0, 2.5, 9.0], held_out), [0.2, 0.8, 0.8, 1.0])


@pytest.mark.parametrize("n_rows", [9, 10, 57])
def test_classes_above_alpha_are_those_within_the_quantile(n_rows: int) -> None:
    rng = np.random.default_rng(n_rows)
    scores, new = rng.normal(size=n_rows), rng.normal(size=(50, 3))
    for alpha in (0.1, 0.15, 0.5):
        k = math.ceil((n_rows + 1) * (1 - alpha) - 1e-9)
        bound = np.sort(scores)[k - 1]
        found = conformal.p_values(-new, np.sort(-scores)) > alpha
        np.testing.assert_array_equal(found, new <= bound)


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    p = np.round(RNG.random(200) ** 3, 3)
    for fdr in (0.05, 0.1, 0.3):
        np.testing.assert_array_equal(p <= conformal.discovery_threshold(p, fdr), false_discovery_control(p) <= fdr)
    assert conformal.discovery_threshold(np.ones(4), 0.1) < 0


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_sets_hold_the_class_as_often_as_they_say(fitted: EnergyClassifier, alpha: float, per_class: bool) -> None:
    """Over splits of fresh rows the share of rows in their sets is in the band of the splits' own binomials."""
    rows, classes = X[200:], Y[200:]
    log_p = fitted.predict_log_proba(rows)
    own, covered = log_p[np.arange(len(rows)), classes], []
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(len(rows))
        some, other = order[:700], order[700:]
        table = by_class(own[some], classes[some], 3)
        reference = table if per_class else np.sort(table[~np.isnan(table)])
        p = conformal.class_p_values(log_p[other], reference)
        covered.append((p[np.arange(len(other)), classes[other]] > alpha).mean())
    low, high = binom.ppf([0.001, 0.999], 700, 1 - alpha) / 700
    assert low <= np.mean(covered) <= high
    fitted.conformalize(rows[:700], classes[:700])
    assert fitted.predict_set(rows[700:], alpha, per_class=per_class).sum(1).mean() < 3


def test_rows_of_each_class_alone_are_covered(fitted: EnergyClassifier) -> None:
    rare = np.flatnonzero(Y[200:] == 0)[40:]
    some = np.setdiff1d(np.arange(N - 200), rare)
    fitted.conformalize(X[200:][some[:700]], Y[200:][some[:700]])
    others = some[700:]
    found = fitted.predict_set(X[200:][others], 0.1, per_class=True)[np.arange(len(others)), Y[200:][others]]
    for k in range(3):
        mine = found[Y[200:][others] == k]
        if len(mine):
            assert binom.cdf(mine.sum(), len(mine), 0.9) > 1e-3


@pytest.mark.parametrize("case", [SCORER, MEMORY, CLASSIFIERS[-1]], ids=lambda case: case.name)
def test_p_values_of_rows_like_the_others_are_super_uniform(case) -> None:
    model = case.fit(X[:200], Y[:200]).conformalize(X[200:600])
    p = model.p_values(X[600:])
    for alpha in (0.01, 0.05, 0.1, 0.3):
        # Both the calibration rows and these are drawn: the spread of a share of each.
        spread = np.sqrt(alpha * (1 - alpha) * (1 / 400 + 1 / 1000))
        assert (p <= alpha).mean() <= alpha + 3.5 * spread
    assert model.p_values(X[:3] + 100).max() == pytest.approx(1 / 401)


def test_false_discoveries_are_as_few_as_asked() -> None:
    shares = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        model = EnergyScorer(random_state=0, device="cpu").fit(rng.normal(size=(100, 3)))
        model.conformalize(rng.normal(size=(300, 3)))
        rows = np.concatenate([rng.normal(size=(90, 3)), 5 + rng.normal(size=(10, 3))])
        found = model.predict(rows, fdr=0.2) == -1
        shares.append(found[:90].sum() / max(1, found.sum()))
        assert found[90:].mean() > 0.5
    assert np.mean(shares) <= 0.18 + 3 * np.std(shares) / np.sqrt(20)


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda case: case.name)
def test_calibration_is_saved_and_forgotten_by_fit(case, tmp_path) -> None:
    rows, y = X[:60] if case is not IMAGES else X[:60, :4], Y[:60]
    model = case.fit(rows, y)
    model.conformalize(X[60:160], X[60:160] if case.pairs else Y[60:160])
    save(model, tmp_path / "model")
    loaded, second = load(tmp_path / "model"), (X[160:170],) if case.pairs else ()
    np.testing.assert_allclose(loaded.p_values(X[160:170], *second), model.p_values(X[160:170], *second))
    assert len(loaded.calibration_energies_) == 100
    if case in (*CLASSIFIERS, IMAGES):
        np.testing.assert_array_equal(loaded.predict_set(X[160:170], 0.1), model.predict_set(X[160:170], 0.1))
    model.fit(rows, rows if case.pairs else y)
    assert not len(model.calibration_energies_)


@pytest.mark.parametrize("case", [*CLASSIFIERS, SCORER, MEMORY], ids=lambda case: case.name)
def test_before_calibration_a_p_value_is_a_percentile_of_rows_held_out(case) -> None:
    model = case.fit(X[:100], Y[:100])
    np.testing.assert_allclose(model.p_values(X[:5]), conformal.p_values(model.score_samples(X[:5]), model.liking_))


def test_a_refiner_says_how_strange_label_vectors_are() -> None:
    rows, labels = labelled_rows(400)
    model = EnergyRefiner(logistic(), cv=2, max_epochs=5, random_state=0, device="cpu").fit(rows[:200], labels[:200])
    model.conformalize(rows[200:300], labels[200:300])
    right, wrong = (model.p_values(rows[300:], each) for each in (labels[300:], 1 - labels[300:]))
    assert wrong.mean() < 0.1 < right.mean()


def test_errors_say_what_is_missing(fitted: EnergyClassifier) -> None:
    fitted.conformalize(X[200:260])
    with pytest.raises(InputError, match=r"call `conformalize\(X, y\)`"):
        fitted.predict_set(X[:2])
    fitted.conformalize(X[200:212], Y[200:212])
    with pytest.raises(InputError, match=r"takes at least 19 .* rows; there are 12\. .* raise `alpha` to 0.077"):
        fitted.predict_set(X[:2], 0.05)
    with pytest.raises(InputError, match="of each class, also of"):
        fitted.predict_set(X[:2], 0.1, per_class=True)
    with pytest.raises(InputError, match="`alpha` must be above 0 and below 1"):
        fitted.predict_set(X[:2], 1.5)
    with pytest.raises(InputError, match="a class for each of the 5 rows"):
        fitted.conformalize(X[:5], Y[:4])


@pytest.mark.parametrize("size", [1.0, 1e3, 1e16, 1e80])
def test_the_gradient_of_all_classes_together_is_a_mean_however_large_energies_are(size: float) -> None:
    energies = (torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.5, -3.0]], dtype=torch.float64) * size).requires_grad_()
    found = together(energies)
    torch.testing.assert_close(found, torch.logsumexp(energies, 1))
    (weights,) = torch.autograd.grad(found.sum(), energies)
    torch.testing.assert_close(weights, torch.softmax(energies, 1))
