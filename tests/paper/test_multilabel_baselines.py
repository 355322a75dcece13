"""Baselines for several labels: every formula against a literal version, or against enumeration."""

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import ComplementNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

from energate.errors import InputError
from energate.estimators.bases import calibrated, label_scores
from energate.estimators.edge import draw_seed
from energate.paper.baselines import (
    ConditionalRBM,
    EachLabel,
    HashCRBM,
    HashTable,
    LabelChains,
    LogCountProjection,
    MeanLabels,
    MLkNN,
    SVMLabels,
    boosted_labels,
    chain_labels,
    hashcrbm,
    logistic_labels,
    svm_labels,
)
from energate.paper.baselines import over as logcount
from energate.paper.baselines.shared import distinct
from energate.rbm import binary_states


def table(n_rows: int, seed: int = 0, n_columns: int = 6, n_labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels that depend on them; the last two labels never change."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns))
    Y = (X @ rng.normal(size=(n_columns, n_labels)) + 0.5 * rng.normal(size=(n_rows, n_labels)) > 0.3).astype(int)
    return X, np.column_stack([Y, np.zeros(n_rows, int), np.ones(n_rows, int)])


MODELS = {
    "logistic": logistic_labels(),
    "svm": svm_labels(random_state=0),
    "knn": MLkNN(k=5),
    "chains": chain_labels(n_chains=3, random_state=0),
    "boosted": boosted_labels(max_iter=15, random_state=0),
    "counts": LogCountProjection(logistic_labels(), cv=3, random_state=0),
    "counts, subset": LogCountProjection(logistic_labels(), objective="subset", cv=3, random_state=0),
    "mean": MeanLabels([("line", logistic_labels()), ("near", MLkNN(k=5))], cv=3, random_state=0),
    "crbm": HashCRBM(n_hidden=8, max_epochs=30, learning_rate=1e-2, random_state=0),
    "crbm, subset": HashCRBM(n_hidden=8, max_epochs=30, learning_rate=1e-2, objective="subset", random_state=0),
    "crbm, few": HashCRBM(n_hidden=8, n_candidates=4, max_epochs=30, learning_rate=1e-2, random_state=0),
}


# --- what all of them do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_labels_are_learned_also_where_some_never_change(name) -> None:
    X, Y = table(500)
    model = clone(MODELS[name]).fit(X[:300], Y[:300])
    p, predicted = model.predict_proba(X[300:]), model.predict(X[300:])
    assert p.shape == predicted.shape == (200, 6)
    assert p.min() >= 0
    assert p.max() <= 1
    assert set(np.unique(predicted)) == {0, 1}
    np.testing.assert_array_equal(predicted[:, 4:], Y[300:, 4:])
    chance = np.minimum(Y.mean(0), 1 - Y.mean(0)).mean()
    assert (predicted != Y[300:]).mean() < 0.55 * chance
    if "subset" not in name:
        np.testing.assert_array_equal(predicted, p > 0.5)
    assert model.score(X[300:], Y[300:]) == (predicted == Y[300:]).all(1).mean()


@pytest.mark.parametrize("name", MODELS)
def test_sparse_labels_and_the_same_seed_give_the_same_model(name) -> None:
    X, Y = table(90)
    first = clone(MODELS[name]).fit(X, Y).predict_proba(X)
    again = clone(MODELS[name]).fit(X, sparse.csr_matrix(Y)).predict_proba(X)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", MODELS)
def test_labels_that_are_no_table_of_0_and_1_are_refused(name) -> None:
    X, Y = table(40)
    model = clone(MODELS[name])
    for wrong, message in [
        (Y[:, 0], r"`Y` must be \(n, L\), a column of 0 and 1 for each label; got shape \(40,\)"),
        (2 * Y, r"`Y` must hold only 0 \(label off\) and 1 \(label on\); got also \[2.0, 2.0, 2.0\]"),
        (Y[:30], "`Y` must have a row for each of the 40 rows of `X`; got 30"),
    ]:
        with pytest.raises(InputError, match=message):
            model.fit(X, wrong)
    with pytest.raises(ValueError, match=r"NaN"):
        model.fit(X, np.where(Y > 0, np.nan, 0.0))
    model.fit(X, Y)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :3])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("value", [0, 1])
def test_rows_that_all_have_the_same_labels_can_be_fitted(name, value) -> None:
    X, Y = table(40)
    model = clone(MODELS[name]).fit(X, np.full_like(Y, value))
    np.testing.assert_array_equal(model.predict(X), value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: logistic_labels(C=0), "`C` must be a number above 0; got 0"),
        (lambda: logistic_labels(scaling="odd"), "`scaling` must be one of unit, standard, none; got 'odd'"),
        (lambda: LabelChains(C=-1.0), "`C` must be a number above 0; got -1.0"),
        (lambda: LabelChains(n_chains=0), "`n_chains` must be a whole number of at least 1; got 0"),
        (lambda: SVMLabels(C="much"), "`C` must be a number above 0; got 'much'"),
        (lambda: SVMLabels(gamma=0), "`gamma` must be 'scale' or a number above 0; got 0"),
        (lambda: SVMLabels(cv=1), "`cv` must be a whole number of at least 2; got 1"),
        (lambda: SVMLabels(cv=41), "`cv` must be at most the number of rows, 40; got 41"),
        (lambda: MLkNN(k=0), "`k` must be a whole number of at least 1; got 0"),
        (lambda: MLkNN(k=40), "`k` must be less than the number of rows, 40; got 40"),
        (lambda: MLkNN(s=0), "`s` must be a number above 0; got 0"),
        (lambda: LogCountProjection(MLkNN(), objective="f1"), "`objective` must be one of hamming, subset; got 'f1'"),
        (lambda: LogCountProjection(MLkNN(), cv=0), "`cv` must be a whole number of at least 2; got 0"),
        (
            lambda: LogCountProjection(MultiOutputClassifier(LogisticRegression()), cv=2),
            r"`base` must give probabilities \(n, 2\), one for each label; its predict_proba gave a list",
        ),
        (lambda: MeanLabels([]), "`members` must be a list of pairs of a name and a classifier, at least one; got"),
        (lambda: MeanLabels("svm"), "`members` must be a list of pairs .*; got 'svm'"),
        (lambda: MeanLabels([MLkNN()]), "`members` must be a list of pairs .*; got .MLkNN"),
        (lambda: MeanLabels([("a", MLkNN()), ("a", MLkNN())]), "must be different strings; got .'a', 'a'"),
        (lambda: MeanLabels([("a", MLkNN())], cv=1), "`cv` must be a whole number of at least 2; got 1"),
        (lambda: MeanLabels([("a", MLkNN())], cv=41), "`cv` must be at most the number of rows, 40; got 41"),
        (lambda: MeanLabels([("a", LinearRegression())]), "must have predict_proba or decision_function"),
        (lambda: MeanLabels([("a", ComplementNB())]), "member 'a' could not be fitted in fold 1 of 5: ValueError"),
        (lambda: HashCRBM(objective="f1"), "`objective` must be one of hamming, subset; got 'f1'"),
        (lambda: HashCRBM(n_hidden=-1), "`n_hidden` must be a whole number of at least 0; got -1"),
        (lambda: HashCRBM(n_candidates=0), "`n_candidates` must be a whole number of at least 1; got 0"),
        (lambda: HashCRBM(max_epochs="many"), "`max_epochs` must be .*; got 'many'"),
        (lambda: HashCRBM(learning_rate=-1.0), "`learning_rate` must be a number of at least 0; got -1.0"),
        (lambda: HashCRBM(validation_fraction=0), "`validation_fraction` must be above 0"),
        (lambda: HashCRBM(scaling="odd"), "`scaling` must be one of standard, unit, none; got 'odd'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(model, message) -> None:
    X, Y = table(40)
    with pytest.raises(InputError, match=message):
        model().fit(X, Y[:, :2])


# --- each label alone ------------------------------------------------------------------------------------------


def test_labels_one_by_one_are_scikit_learn_s_and_sparse_rows_change_nothing() -> None:
    X, Y = table(200)
    scaled = StandardScaler().fit(X)
    p = logistic_labels(C=0.3).fit(X, Y).predict_proba(X)
    for label in range(4):
        alone = LogisticRegression(C=0.3, max_iter=2000).fit(scaled.transform(X), Y[:, label])
        np.testing.assert_allclose(p[:, label], alone.predict_proba(scaled.transform(X))[:, 1], atol=1e-12)
    np.testing.assert_allclose(p[:, 4:], np.tile([1 / 202, 201 / 202], (200, 1)))
    rare = X * (np.random.default_rng(1).random(X.shape) < 0.05)
    dense, few = (EachLabel(LogisticRegression(C=0.3), sparse_below=share).fit(rare, Y) for share in (0.0, 0.1))
    assert sparse.issparse(few._rows(rare))
    assert not sparse.issparse(dense._rows(rare))
    np.testing.assert_allclose(dense.predict_proba(rare), few.predict_proba(rare), atol=1e-4)
    trees = boosted_labels(max_iter=5, max_leaf_nodes=7, random_state=0).fit(X, Y)
    alone = HistGradientBoostingClassifier(max_iter=5, max_leaf_nodes=7, random_state=0).fit(X, Y[:, 2])
    np.testing.assert_array_equal(trees.predict_proba(X)[:, 2], alone.predict_proba(X)[:, 1])


def test_chains_are_the_mean_of_scikit_learn_s_chains_in_different_orders() -> None:
    X, Y = table(150)
    model = LabelChains(C=0.5, n_chains=4, random_state=3).fit(X, Y)
    orders = [tuple(chain.order_) for chain in model.chains_]
    assert len(set(orders)) > 1
    expected = [
        ClassifierChain(LogisticRegression(C=0.5, max_iter=2000), order=list(order)).fit(X, Y[:, :4]).predict_proba(X)
        for order in orders
    ]
    np.testing.assert_allclose(model.predict_proba(X)[:, :4], np.mean(expected, axis=0), atol=1e-12)


# --- Platt's sigmoid and support vector machines ---------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(3, 60), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_platt_s_sigmoids_minimise_the_cross_entropy_of_smoothed_targets(seed, n, scale) -> None:
    rng = np.random.default_rng(seed)
    Y = (rng.random((n, 5)) < rng.random(5)).astype(float)
    strength = np.array([0.0, 1.0, 50.0, -1.0, 3.0])  # the third is separable, the fourth speaks against its label
    scores = scale * (strength * (2 * Y - 1) + rng.normal(size=Y.shape) + 2)
    slope, offset = calibrated(scores, Y)
    assert (slope >= 0).all()
    for label in range(5):
        y, s = Y[:, label], scores[:, label] / scale
        on = y.sum()
        target = np.where(y == 1, (on + 1) / (on + 2), 1 / (n - on + 2))

        def loss(ab: np.ndarray, s: np.ndarray = s, target: np.ndarray = target) -> float:
            u = ab[0] * s + ab[1]
            return float(np.sum(np.logaddexp(0, u) - target * u))

        def slopes(ab: np.ndarray, s: np.ndarray = s, target: np.ndarray = target) -> np.ndarray:
            excess = expit(ab[0] * s + ab[1]) - target
            return np.array([excess @ s, excess.sum()])

        best = optimize.minimize(loss, [1.0, 0.0], jac=slopes, bounds=[(0, None), (None, None)], method="L-BFGS-B")
        assert loss(np.array([slope[label] * scale, offset[label]])) <= best.fun + 1e-6 * n


def test_one_kernel_gives_every_label_its_own_support_vector_machine(monkeypatch) -> None:
    X, Y = table(120)
    Y[:, 3] = 0
    Y[[5, 6], 3] = 1  # so rare that it is constant in what some folds leave
    model = SVMLabels(C=2.0, gamma=0.2, cv=3, random_state=1).fit(X, Y)
    seen = np.empty(Y.shape)
    for learn, left_out in KFold(3, shuffle=True, random_state=draw_seed(1)).split(X):
        for label in range(6):
            y = Y[learn, label]
            if y.min() == y.max():
                seen[left_out, label] = 2 * y[0] - 1
            else:
                seen[left_out, label] = SVC(C=2.0, gamma=0.2).fit(X[learn], y).decision_function(X[left_out])
    slope, offset = calibrated(seen, Y.astype(float))
    np.testing.assert_allclose(model.slope_, slope, rtol=1e-3)
    margins = model.decision_function(X)
    for label in range(4):
        alone = SVC(C=2.0, gamma=0.2).fit(X, Y[:, label])
        np.testing.assert_allclose(margins[:, label], alone.decision_function(X), atol=1e-6)
    np.testing.assert_array_equal(margins[:, 4:], np.tile([-1, 1], (120, 1)))
    expected = 1 / (1 + np.exp(-(slope * margins + offset)))
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-4)
    monkeypatch.setattr("energate.paper.baselines.svms.KERNEL_VALUES", 7 * len(model.support_vectors_))
    np.testing.assert_allclose(model.decision_function(X), margins, atol=1e-12)


# --- the mean of several -----------------------------------------------------------------------------------------


def test_the_mean_is_that_of_logits_calibrated_on_rows_not_seen() -> None:
    X, Y = table(150)
    members = {"line": logistic_labels(C=0.1), "near": MLkNN(k=7), "machine": SVMLabels(random_state=0)}
    model = MeanLabels(list(members.items()), cv=3, random_state=4).fit(X, Y)
    logits, unseen = [], []
    for member in members.values():
        scores = np.empty((150, 4))
        for learn, left_out in KFold(3, shuffle=True, random_state=draw_seed(4)).split(X):
            scores[left_out] = label_scores(clone(member).fit(X[learn], Y[learn, :4]), X[left_out], 4)
        slope, offset = calibrated(scores, Y[:, :4])
        unseen.append(slope * scores + offset)
        logits.append(slope * label_scores(clone(member).fit(X, Y[:, :4]), X, 4) + offset)
    slope, offset = calibrated(np.mean(unseen, axis=0), Y[:, :4])
    expected = slope * np.mean(logits, axis=0) + offset
    np.testing.assert_allclose(model.decision_function(X)[:, :4], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.predict_proba(X)[:, :4], expit(expected), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.out_of_fold_[:, :4], slope * np.mean(unseen, 0) + offset, rtol=1e-6, atol=1e-8)


def test_the_mean_makes_fewer_mistakes_than_members_that_know_different_columns() -> None:
    X, Y = table(600, seed=3)
    parts = [
        (f"part {k}", make_pipeline(FunctionTransformer(_columns, kw_args={"which": which}), logistic_labels()))
        for k, which in enumerate([(0, 1, 2, 3), (2, 3, 4, 5)])
    ]
    alone = [(part.fit(X[:300], Y[:300]).predict(X[300:]) != Y[300:]).mean() for _, part in parts]
    together = (MeanLabels(parts, random_state=0).fit(X[:300], Y[:300]).predict(X[300:]) != Y[300:]).mean()
    assert together < 0.9 * min(alone)


def _columns(X: np.ndarray, which: tuple[int, ...]) -> np.ndarray:
    return X[:, which]


def test_members_are_reached_by_name_and_copied() -> None:
    model = MeanLabels([("line", logistic_labels(C=0.1)), ("near", MLkNN(k=7))])
    model.set_params(near__k=3, cv=4)
    assert model.get_params()["near__k"] == 3
    assert model.get_params(deep=False).keys() == {"members", "cv", "random_state"}
    copied = clone(model)
    copied.set_params(line=MLkNN(k=2))
    assert [copied.get_params()[f"{name}__k"] for name in ("line", "near")] == [2, 3]
    assert "line__labels__estimator__C" in model.get_params()
    X, Y = table(60)
    found = pickle.loads(pickle.dumps(copied.fit(X, Y)))
    np.testing.assert_array_equal(found.predict_proba(X), copied.predict_proba(X))
    with pytest.raises(NotFittedError):
        clone(copied).decision_function(X)


# --- nearest neighbours ----------------------------------------------------------------------------------------


def literal_mlknn(X: np.ndarray, Y: np.ndarray, rows: np.ndarray, k: int, s: float) -> np.ndarray:
    """Step by step as published, one label of one row at a time."""
    n, n_labels = Y.shape

    def count(x: np.ndarray, label: int, without: int | None = None) -> int:
        others = sorted((float(((x - X[i]) ** 2).sum()), i) for i in range(n) if i != without)
        return sum(int(Y[i, label]) for _, i in others[:k])

    result = np.empty((len(rows), n_labels))
    for label in range(n_labels):
        on, off = [0] * (k + 1), [0] * (k + 1)
        for i in range(n):
            (on if Y[i, label] else off)[count(X[i], label, i)] += 1
        prior = (s + sum(Y[:, label])) / (2 * s + n)
        for r, x in enumerate(rows):
            c = count(x, label)
            p_on = prior * (s + on[c]) / (s * (k + 1) + sum(on))
            p_off = (1 - prior) * (s + off[c]) / (s * (k + 1) + sum(off))
            result[r, label] = p_on / (p_on + p_off)
    return result


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9999), k=st.integers(1, 7), s=st.sampled_from([0.1, 1.0, 3.0]))
def test_mlknn_is_the_published_formula(seed, k, s) -> None:
    X, Y = table(25, seed)
    rows = np.random.default_rng(seed + 1).normal(size=(6, 6))
    np.testing.assert_allclose(
        MLkNN(k=k, s=s).fit(X, Y).predict_proba(rows), literal_mlknn(X, Y, rows, k, s), rtol=1e-12
    )


# --- counts of label vectors -----------------------------------------------------------------------------------


def test_distinct_label_vectors_come_with_rows_and_counts() -> None:
    Y = np.array([[1, 0], [0, 1], [0, 1], [1, 1], [0, 1], [1, 1]], float)
    sets, own, count = distinct(Y)
    np.testing.assert_array_equal(sets, [[0, 1], [1, 1], [1, 0]])
    np.testing.assert_array_equal(sets[own], Y)
    np.testing.assert_array_equal(count, [3, 2, 1])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), tau=st.sampled_from([0.0, 0.5, 1.0]), beta=st.sampled_from([0.5, 1.0, 2.0]))
def test_the_projection_is_its_formula(seed, tau, beta) -> None:
    rng = np.random.default_rng(seed)
    Y, t = (rng.random((30, 3)) < 0.4).astype(float), 3 * rng.normal(size=(5, 3))
    sets = logcount.LabelSets.seen_in(Y)
    p = sets.probabilities(sets.scores(t), tau, beta)
    marginals, subset = sets.chosen(p, "hamming"), sets.chosen(p, "subset")
    vectors = sorted({tuple(row) for row in Y})
    for row in range(5):
        weight = [
            sum(tuple(y) == vector for y in Y) ** tau * math.exp(sum(beta * np.array(vector) * t[row]))
            for vector in vectors
        ]
        likely = np.array(weight) / sum(weight)
        np.testing.assert_allclose(p[row] @ sets.sets, likely @ np.array(vectors), rtol=1e-10)
        np.testing.assert_array_equal(marginals[row], likely @ np.array(vectors) > 0.5)
        np.testing.assert_array_equal(subset[row], np.array(vectors[likely.argmax()]) == 1)


def test_over_all_label_vectors_counted_alike_the_projection_is_the_base() -> None:
    t = np.random.default_rng(0).normal(size=(9, 4))
    sets = logcount.LabelSets.seen_in(np.array(list(itertools.product((0.0, 1.0), repeat=4))))
    np.testing.assert_allclose(sets.probabilities(sets.scores(t), 1.0, 1.0) @ sets.sets, expit(t), rtol=1e-12)


@pytest.mark.parametrize("objective", ["hamming", "subset"])
def test_powers_and_scales_are_chosen_on_rows_that_base_and_counts_have_not_seen(objective, monkeypatch) -> None:
    X, Y = table(160, seed=2)
    base = logistic_labels(C=0.05)
    model = LogCountProjection(base, cv=4, objective=objective, random_state=5).fit(X, Y)
    logits, folds = np.empty(Y.shape), list(KFold(4, shuffle=True, random_state=draw_seed(5)).split(X))
    for learn, left_out in folds:
        p = clone(base).fit(X[learn], Y[learn]).predict_proba(X[left_out])
        logits[left_out] = np.log(p / (1 - p))
    slope, offset = calibrated(logits, Y.astype(float))
    t = slope * logits + offset
    for (tau, beta), error in model.errors_.items():
        wrong = 0
        for learn, left_out in folds:
            vectors, count = np.unique(Y[learn], axis=0, return_counts=True)
            likely = count**tau * np.exp(beta * t[left_out] @ vectors.T)
            marginals = likely @ vectors / likely.sum(1, keepdims=True)
            predicted = marginals > 0.5 if objective == "hamming" else vectors[likely.argmax(1)]
            wrong += (
                (predicted != Y[left_out]).sum()
                if objective == "hamming"
                else ((predicted != Y[left_out]).any(1).sum())
            )
        assert error == pytest.approx(wrong / (Y.size if objective == "hamming" else len(Y)))
    assert len(model.errors_) == 30
    assert len(set(model.errors_.values())) > 1
    assert model.errors_[model.tau_, model.beta_] == min(model.errors_.values())
    together = model.predict_proba(X), model.predict(X)
    monkeypatch.setattr(logcount, "VALUES_AT_ONCE", 3 * len(model.sets_.sets))
    np.testing.assert_allclose(model.predict_proba(X), together[0], rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X), together[1])


def test_the_projection_predicts_only_what_was_seen_and_takes_classifiers_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=300)
    X = np.eye(3)[kind] + 0.6 * rng.normal(size=(300, 3))  # one label each: alone, some rows get none or two
    Y = np.eye(3, dtype=int)[kind]
    base = OneVsRestClassifier(LogisticRegression())
    alone = base.fit(X[:200], Y[:200]).predict(X[200:])
    assert (alone.sum(1) != 1).mean() > 0.1
    model = LogCountProjection(base, objective="subset", random_state=0).fit(X[:200], Y[:200])
    np.testing.assert_array_equal(model.predict(X[200:]).sum(1), 1)
    assert model.score(X[200:], Y[200:]) > (alone == Y[200:]).all(1).mean() + 0.05


# --- the conditional RBM ---------------------------------------------------------------------------------------


def machine(n_columns: int = 3, n_hidden: int = 4, n_labels: int = 3) -> ConditionalRBM:
    generator = torch.Generator().manual_seed(1)
    model = ConditionalRBM(n_columns, n_hidden, torch.full((n_labels,), 0.3), generator).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def enumerated(model: ConditionalRBM, x: torch.Tensor, sets: torch.Tensor) -> torch.Tensor:
    """-Eng(y, h | x) of rows, label vectors and all states of the hidden units: (N, S, 2^M)."""
    h = binary_states(len(model.c), x)
    rows = []
    for row in x:
        rows.append(
            torch.stack(
                [
                    y @ model.W_yx @ row + model.b @ y + h @ model.W_hx @ row + h @ model.W_hy @ y + h @ model.c
                    for y in sets
                ]
            )
        )
    return torch.stack(rows)


def test_the_free_energy_sums_over_all_hidden_states() -> None:
    model, x = machine(), torch.randn(5, 3, dtype=torch.float64)
    sets = binary_states(3, x)
    expected = -torch.logsumexp(enumerated(model, x, sets), 2)
    torch.testing.assert_close(model.free_energy(x, sets), expected)
    candidates = torch.tensor([[0, 7, 3], [1, 2, 4], [7, 6, 5], [0, 1, 2], [5, 5, 0]])
    torch.testing.assert_close(model.free_energy(x, sets, candidates), expected.gather(1, candidates))
    everything = torch.arange(8).expand(5, 8)
    torch.testing.assert_close(model.log_probabilities(x, sets, everything), model.log_probabilities(x, sets))


def test_likelihood_and_gradient_are_those_of_the_enumerated_machine() -> None:
    model, x = machine(), torch.randn(5, 3, dtype=torch.float64)
    sets, own = binary_states(3, x), torch.tensor([0, 3, 7, 3, 1])
    joint = enumerated(model, x, sets)
    p = torch.softmax(joint.flatten(1), 1).unflatten(1, joint.shape[1:])  # P(y, h | x)
    log_p = model.log_probabilities(x, sets)
    torch.testing.assert_close(log_p.exp(), p.sum(2))
    likelihood = log_p[torch.arange(5), own].sum()
    found = torch.autograd.grad(likelihood, list(model.parameters()))
    expected = torch.autograd.grad(p.sum(2)[torch.arange(5), own].log().sum(), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    # The rule of Boltzmann machines: <h y^T> given the data less <h y^T> of the model.
    h = binary_states(4, x)
    with torch.no_grad():
        given = torch.softmax(joint[torch.arange(5), own], 1)  # P(h | x, y)
        positive = torch.einsum("ns,sm,nl->ml", given, h, sets[own])
        negative = torch.einsum("nys,sm,yl->ml", p, h, sets)
    torch.testing.assert_close(
        dict(zip(dict(model.named_parameters()), found, strict=True))["W_hy"], positive - negative
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 9999), n_candidates=st.integers(1, 20), n_bits=st.sampled_from([1, 4, 16]))
def test_candidates_are_what_looking_up_ever_more_distant_codes_finds(seed, n_candidates, n_bits) -> None:
    X, Y = table(30, seed)
    hashed = HashTable.build(X, Y.astype(float), n_bits, seed)
    np.testing.assert_array_equal(hashed.sets[hashed.own], Y)
    rows = np.random.default_rng(seed).normal(size=(4, 6))
    found = hashed.candidates(rows, n_candidates)
    assert found.shape == (4, min(n_candidates, len(hashed.sets)))

    def code(x: np.ndarray) -> np.ndarray:
        return x @ hashed.directions > hashed.thresholds

    buckets: dict[tuple[bool, ...], list[int]] = {}
    for row in range(30):
        buckets.setdefault(tuple(code(X[row])), []).append(int(hashed.own[row]))
    for x, sets in zip(rows, found, strict=True):
        expected: list[int] = []
        for radius in range(n_bits + 1):  # frequent sets have small numbers
            near = {s for key, own in buckets.items() if (np.array(key) != code(x)).sum() == radius for s in own}
            expected += sorted(near - set(expected))
        assert sets.tolist() == expected[:n_candidates]


def test_the_own_labels_of_a_training_row_are_always_candidates(monkeypatch) -> None:
    X, Y = table(60)
    hashed = HashTable.build(X, Y.astype(float), 2, 0)
    assert len(hashed.sets) > 5
    found = hashed.candidates(X, 2, hashed.own)
    np.testing.assert_array_equal((found == hashed.own[:, None]).sum(1), 1)
    assert not (hashed.candidates(X, 2) == hashed.own[:, None]).any(1).all()
    monkeypatch.setattr(hashcrbm, "VALUES_AT_ONCE", 60 * 7)
    np.testing.assert_array_equal(hashed.candidates(X, 2, hashed.own), found)


def test_similar_labels_have_similar_codes() -> None:
    X, Y = table(400, n_columns=30)
    X, Y = np.column_stack([X, 3 * np.random.default_rng(1).normal(size=(400, 60))]), Y[:, :4]
    hashed = HashTable.build(X[:300], Y[:300].astype(float), 64, 0)
    first = hashed.sets[hashed.candidates(X[300:], 3)]  # (100, 3, 4)
    near = np.abs(first - Y[300:, None]).mean()
    frequent = np.abs(hashed.sets[:3] - Y[300:, None]).mean()
    assert near < 0.75 * frequent


def test_hidden_units_learn_that_two_labels_exclude_each_other() -> None:
    """Of two labels mostly one is on, at random: alone both have probability one half, whatever x is."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    first = rng.integers(2, size=400)
    second = np.where(rng.random(400) < 0.05, first, 1 - first)
    Y = np.column_stack([first, second, X[:, 0] > 0]).astype(int)
    options: dict[str, Any] = {"max_epochs": 60, "learning_rate": 2e-2, "weight_decay": 0.0, "batch_size": 25}
    with_units, without = (
        HashCRBM(n_hidden=n, random_state=0, early_stopping=False, **options).fit(X, Y) for n in (10, 0)
    )
    entropy = math.log(2) - 0.95 * math.log(0.95) - 0.05 * math.log(0.05)  # the third label is certain
    assert float(with_units.history_.loss[-1]) == pytest.approx(entropy, abs=0.15)
    assert float(without.history_.loss[-1]) > 2 * math.log(2) - 0.05  # two labels, one bit each
    p = with_units.predict_proba(X)
    assert np.abs(p[:, :2] - 0.5).mean() < 0.15
    assert np.mean(with_units.set_params(objective="subset").predict(X)[:, :2].sum(1) == 1) > 0.99
    assert (with_units.predict(X)[:, 2] == Y[:, 2]).mean() > 0.95


@pytest.mark.parametrize("n_hidden", [0, 5])
def test_marginals_and_the_likeliest_vector_are_those_of_the_candidates(n_hidden, monkeypatch) -> None:
    X, Y = table(150)
    model = HashCRBM(n_hidden=n_hidden, n_candidates=6, n_bits=16, max_epochs=3, random_state=0).fit(X, Y)
    assert len(model.table_.sets) > 6
    assert model.history_.best_epoch is not None
    rows = model.scaler_(X)
    found = model.table_.candidates(rows, 6)
    marginals, likeliest = np.empty(Y.shape), np.empty(Y.shape)
    with torch.no_grad():
        sets = torch.as_tensor(model.table_.sets)
        for row in range(150):
            own = sets[torch.as_tensor(found[row])]
            p = torch.softmax(-model.model_.free_energy(torch.as_tensor(rows[row : row + 1]), own)[0], 0).numpy()
            marginals[row], likeliest[row] = p @ own.numpy(), own[p.argmax()]
    np.testing.assert_allclose(model.predict_proba(X), marginals, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), marginals > 0.5)
    monkeypatch.setattr(hashcrbm, "VALUES_AT_ONCE", 400)
    np.testing.assert_allclose(model.predict_proba(X), marginals, atol=1e-12)
    np.testing.assert_array_equal(model.set_params(objective="subset").predict(X), likeliest)


def test_the_conditional_rbm_tells_how_far_it_is(capsys) -> None:
    X, Y = table(60)
    options: dict[str, Any] = {"n_hidden": 2, "max_epochs": 2, "random_state": 0}
    HashCRBM(**options, verbose=1, early_stopping=False).fit(X, Y)
    assert "[likelihood] epoch 2/2, loss" in capsys.readouterr().out
