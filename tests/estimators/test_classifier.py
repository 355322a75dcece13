import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, make_blobs, make_moons
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from energate import Autoencoder, EnergyClassifier, InputError, MeanUnits, NetworkUnits, check_conservative
from energate.estimators.classifier import QUICK_ROWS
from energate.training.classes import (
    SHARP_MEMBER,
    SHARP_RATE,
    SHARPNESS,
    ClassEnergies,
    LabelledRows,
    find_biases,
    set_biases,
    sharp_rates,
    start_sharp,
)

KINDS = ["mean", "covariance", "mean-covariance"]
QUICK: dict[str, Any] = {
    "pretrain_epochs": 20,
    "max_epochs": 20,
    "n_hidden": 16,
    "n_factors": 16,
    "generative_weight": 0.1,
    "random_state": 0,
}
NOT_REPEATED_ROWS = {
    "check_sample_weight_equivalence_on_dense_data": "minibatches and noise are drawn per row, so rows that are "
    "repeated take other draws than rows that are weighted"
}


def blobs(n_rows: int = 300, n_classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(n_rows, centers=n_classes, n_features=4, cluster_std=1.5, random_state=seed)


@pytest.mark.slow
def test_scikit_learn_finds_no_fault() -> None:
    quick = EnergyClassifier("mean", pretrain_epochs=5, max_epochs=40, n_hidden=16, generative_weight=0.1)
    results = check_estimator(quick, expected_failed_checks=NOT_REPEATED_ROWS, on_fail=None, on_skip=None)
    assert [result["check_name"] for result in results if result["status"] == "failed"] == []
    assert len(results) > 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reading", ["sum", "shared"])
def test_every_part_stays_conservative_through_all_stages(kind, reading) -> None:
    X, y = blobs()
    model = EnergyClassifier(kind, reading=reading, **QUICK).fit(X, y)
    rows = torch.as_tensor(model.scaler_(X[:20]))
    for part in model.model_.autoencoders:
        assert check_conservative(part, rows).gradient_error < 1e-10
    assert len(model.model_.autoencoders) == (2 if (kind, reading) == ("mean-covariance", "sum") else 1)


def test_it_learns_and_its_probabilities_agree_with_its_energies() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = EnergyClassifier("mean-covariance", generative_weight=0.1, random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.93
    energies, p = model.energies(X[400:]), model.predict_proba(X[400:])
    expected = np.exp(energies - energies.max(1, keepdims=True))
    np.testing.assert_allclose(p, expected / expected.sum(1, keepdims=True), atol=1e-8)
    np.testing.assert_allclose(model.decision_function(X[400:]), energies[:, 1] - energies[:, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(model.predict(X[400:]), model.classes_[p.argmax(1)])


def test_calibration_alone_and_fine_tuning_are_stages() -> None:
    X, y = blobs(400)
    calibrated = EnergyClassifier("mean-covariance", **QUICK | {"max_epochs": 0}).fit(X, y)
    assert list(calibrated.history_) == ["pretrain"]
    _, valid, _ = calibrated._prepare(X, y)  # the same split again, and a new model
    once = EnergyClassifier("mean-covariance", **QUICK | {"max_epochs": 0}).fit(X, y).model_
    found = once.beta.clone()
    once.beta.fill_(1.0)
    set_biases(once, LabelledRows(valid.v.double(), valid.labels, valid.weight.double()), scale=True)
    torch.testing.assert_close(once.beta, found, rtol=1e-3, atol=0)  # calibrated once, from scales of 1
    tuned = EnergyClassifier("mean-covariance", **QUICK).fit(X, y)
    assert list(tuned.history_) == ["pretrain", "fine-tune"]
    first, last = (float(tuned.history_["fine-tune"].loss[i]) for i in (0, -1))
    assert last < first


def test_biases_are_calibrated_on_the_held_out_rows() -> None:
    X, y = blobs(600)
    model = EnergyClassifier("mean-covariance", **QUICK).fit(X, y)
    _, valid, _ = EnergyClassifier("mean-covariance", **QUICK)._prepare(X, y)  # the same split again
    valid = LabelledRows(valid.v.double(), valid.labels, valid.weight.double())
    p = torch.softmax(model.model_.logits(valid.v), 1)
    torch.testing.assert_close(p.sum(0).detach(), torch.bincount(valid.labels).double(), rtol=1e-4, atol=1e-3)


def over_sure(model: EnergyClassifier, n_classes: int, n_signal: int, seed: int) -> float:
    """Log-loss of unseen rows less that of the class frequencies, after 3 to 6 rows of every class."""
    random = np.random.RandomState(seed)
    centres = random.normal(size=(n_classes, n_signal))

    def draw(n: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = np.concatenate([np.arange(n_classes).repeat(3), random.choice(n_classes, n - 3 * n_classes, p=p)])
        return np.hstack([centres[y] + random.normal(size=(n, n_signal)), random.normal(size=(n, 8))]), y

    X, y = draw(int(4.5 * n_classes), np.full(n_classes, 1 / n_classes))
    frequencies = np.bincount(y) / len(y)
    X_new, y_new = draw(500, frequencies)
    log_p = model.fit(X, y).predict_log_proba(X_new)
    return float(np.mean(np.log(frequencies[y_new]) - log_p[np.arange(500), y_new]))


@pytest.mark.parametrize("n_signal", [0, 3], ids=["noise", "signal"])
@pytest.mark.parametrize(("n_classes", "epochs"), [(5, "auto"), (20, 30)])
@pytest.mark.parametrize("kind", KINDS)
def test_small_classes_do_not_make_it_over_sure(kind: str, n_classes: int, epochs: int | str, n_signal: int) -> None:
    quick = {"n_hidden": 8, "n_factors": 8, "pretrain_epochs": 30, "max_epochs": epochs, "device": "cpu"}
    model = EnergyClassifier(kind, random_state=0, **quick)
    assert over_sure(model, n_classes, n_signal, seed=n_classes) < 0.1


def test_without_rows_held_out_it_is_over_sure() -> None:
    """What the test above would find if the scale came from the rows trained on."""
    model = EnergyClassifier("mean", n_hidden=8, random_state=0, device="cpu", early_stopping=False)
    assert over_sure(model, 5, 0, seed=5) > 1


def test_the_best_biases_do_not_depend_on_the_model_s_own() -> None:
    X, y = blobs()
    model = EnergyClassifier("mean-covariance", **QUICK).fit(X, y).model_
    rows = LabelledRows(torch.as_tensor(X), torch.as_tensor(y), torch.ones(len(X), dtype=torch.float64))
    before = find_biases(model, rows, scale=True)
    with torch.no_grad():
        model.B.add_(torch.tensor([5.0, -3.0, 1.0]))
    torch.testing.assert_close(find_biases(model, rows, scale=True), before)
    set_biases(model, rows, scale=True)
    loss = nn.functional.cross_entropy(model.logits(rows.v), rows.labels)
    torch.testing.assert_close(loss.detach(), before[2][0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "mean-covariance"])
def test_the_defaults_find_curved_classes_in_the_plane(kind) -> None:
    X, y = make_moons(400, noise=0.1, random_state=0)
    fresh, truth = make_moons(2000, noise=0.1, random_state=1)
    model = EnergyClassifier(kind, random_state=0).fit(X, y)
    assert model.score(fresh, truth) > 0.97  # a straight line has 0.87
    assert model.model_.share.argmax() == SHARP_MEMBER
    for part in model.model_.autoencoders:
        assert check_conservative(part, torch.as_tensor(model.scaler_(X[:20]))).gradient_error < 1e-10


@pytest.mark.parametrize("scaling", ["standard", "unit", "none"])
def test_the_sharp_member_starts_with_steps_among_the_rows(scaling) -> None:
    X, y = blobs()
    X = X * [1.0, 10.0, 0.1, 0.0] + 5  # one column is constant
    for options, sharp in (
        ({"units": "mean"}, True),
        ({"units": "covariance"}, False),
        ({"units": "mean", "generative_weight": [0.0, 0.0, 0.03, 0.1]}, False),
        ({"units": "mean", "X": np.tile(X, 3)}, False),  # 12 columns
    ):
        rows = options.pop("X", X)
        started = {"pretrain_epochs": 0, "max_epochs": 0, "n_hidden": 64, "random_state": 0, "scaling": scaling}
        model = EnergyClassifier(**options, **started).fit(rows, y)
        v = torch.as_tensor(model.scaler_(rows)).to(model.model_.B)
        u = model.model_.autoencoders[0].groups[0].preactivation(v, None)[0].detach()  # (4 * 3, N, M)
        deviation = u.std(1).mean(1).unflatten(0, (4, 3)).mean(1)
        if sharp:
            assert 0.5 * SHARPNESS < deviation[SHARP_MEMBER] < 1.5 * SHARPNESS
            turned = (u > 0).any(1) & (u < 0).any(1)  # units with rows on both sides
            assert turned[3:6].double().mean() > 0.8
            assert deviation[[0, 2, 3]].max() < deviation[SHARP_MEMBER] / 3 or scaling == "none"
        else:
            torch.testing.assert_close(deviation, deviation.mean().expand(4), rtol=0.5, atol=0)


@pytest.mark.parametrize("factor", [0.0, 1e-320, 1e-40, 1e300])
def test_sharp_units_are_finite_for_any_rows(factor) -> None:
    X, _ = blobs()
    model = ClassEnergies([Autoencoder([MeanUnits(8, 4, 16)])], n_classes=2)
    start_sharp(model, factor * X / np.abs(X).max(), np.ones(len(X)), torch.Generator())
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_only_the_sharp_member_learns_faster_unless_told_otherwise() -> None:
    assert sharp_rates(0.01, 4).tolist() == pytest.approx([0.01, 0.01 * SHARP_RATE, 0.01, 0.01])
    given = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert sharp_rates(given, 4) is given


@pytest.mark.parametrize("kind", ["trunk", "memory", "mean", "mean-covariance"])
@pytest.mark.parametrize("scaling", ["auto", "unit"])
def test_many_rows_have_the_classes_that_are_most_probable(kind, scaling) -> None:
    """From `QUICK_ROWS` on `predict` looks in single precision first."""
    X, y = blobs()
    model = EnergyClassifier(kind, scaling=scaling, **QUICK).fit(X, y)
    many = np.random.RandomState(0).normal(X.mean(0), 3 * X.std(0), (2 * QUICK_ROWS, X.shape[1]))
    many[:10] *= 1e30
    predicted = model.predict(many)
    np.testing.assert_array_equal(predicted, model.classes_[model.predict_log_proba(many).argmax(1)])
    np.testing.assert_array_equal(predicted[:20], model.predict(many[:20]))


def test_rows_far_from_all_classes_are_rejected() -> None:
    X, y = blobs(600)
    model = EnergyClassifier("mean", **QUICK).fit(X, y)
    assert model.rejects(X, 0.05).mean() < 0.15
    assert model.rejects(X + 1000.0).all()
    with pytest.raises(InputError, match="`rate`"):
        model.rejects(X, 0.0)


def test_partial_fit_takes_batches_without_some_classes_and_learns() -> None:
    X, y = blobs(600)
    model = EnergyClassifier("mean-covariance", n_hidden=16, n_factors=16, max_epochs=5, random_state=0)
    model.partial_fit(X[:100], y[:100], classes=[0, 1, 2])
    some = y[100:300] != 2
    model.partial_fit(X[100:300][some], y[100:300][some])
    assert model.predict_proba(X).shape == (600, 3)
    for start in range(300, 600, 100):
        model.partial_fit(X[start : start + 100], y[start : start + 100])
    assert model.score(X, y) > 0.85
    with pytest.raises(InputError, match="got also"):
        model.partial_fit(X[:10], np.full(10, 7))


def test_warm_start_goes_on_from_the_last_weights() -> None:
    X, y = blobs()
    model = EnergyClassifier("mean-covariance", warm_start=True, **QUICK | {"pretrain_epochs": 3, "max_epochs": 3})
    first = float(model.fit(X, y).history_["pretrain"].loss[0].mean())
    again = float(model.fit(X, y).history_["pretrain"].loss[0].mean())
    cold = float(model.set_params(warm_start=False).fit(X, y).history_["pretrain"].loss[0].mean())
    assert again < first
    assert cold == first
    # Other classes, though as many: nothing to go on from.
    names = np.array(["c", "a", "b"])[y]
    renamed, fresh = model.set_params(warm_start=True).fit(X, names), clone(model).fit(X, names)
    np.testing.assert_allclose(renamed.predict_proba(X), fresh.predict_proba(X), rtol=1e-6, atol=1e-8)


def test_a_network_of_your_own_is_a_class_model() -> None:
    class Heads(nn.Module):
        def __init__(self, n_models: int, width: int) -> None:
            super().__init__()
            self.trunk = nn.Linear(width, 12)
            self.heads = nn.Parameter(torch.randn(n_models, 8, 12) / 4)

        def forward(self, v: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.trunk(v)) @ self.heads.mT

    X, y = blobs()
    model = EnergyClassifier(
        lambda k, d, _: NetworkUnits(Heads(k, d), d), pretrain_epochs=5, max_epochs=60, random_state=0
    )
    assert model.fit(X, y).score(X, y) > 0.9


def test_the_same_random_state_gives_the_same_result_and_others_another() -> None:
    X, y = blobs()
    first, again, other = (
        EnergyClassifier("mean-covariance", **QUICK | {"random_state": s}).fit(X, y) for s in (0, 0, 1)
    )
    np.testing.assert_allclose(first.predict_proba(X), again.predict_proba(X), rtol=1e-6, atol=1e-8)
    assert np.abs(first.predict_proba(X) - other.predict_proba(X)).max() > 1e-6


def test_scales_constant_columns_and_tiny_classes_do_no_harm() -> None:
    X, y = blobs()
    plain = EnergyClassifier("mean-covariance", **QUICK).fit(X, y).predict_proba(X)
    for factor in (1e-6, 1e6):
        np.testing.assert_allclose(
            EnergyClassifier("mean-covariance", **QUICK).fit(X * factor, y).predict_proba(X * factor), plain, atol=1e-3
        )
    constant = np.column_stack([X, np.full(len(X), 3.0)])
    assert EnergyClassifier("mean-covariance", **QUICK).fit(constant, y).score(constant, y) > 0.85
    few = np.concatenate([np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:2]])
    assert EnergyClassifier("mean-covariance", **QUICK).fit(X[few], y[few]).score(X[few], y[few]) > 0.85


def test_pixels_in_the_unit_range_have_sigmoid_outputs_and_finite_scores() -> None:
    X, y = blobs()
    model = EnergyClassifier("mean", scaling="unit", noise="masking", **QUICK).fit(X, y)
    assert model.model_.autoencoders[0].visible.name == "sigmoid"
    assert np.isfinite(model.score_samples(X * 2)).all()  # rows outside the range seen in fit


def test_weights_of_rows_and_classes_count() -> None:
    X, y = blobs(400, 2, seed=3)
    X = X / 4  # overlapping classes
    heavy = np.where(y == 1, 20.0, 1.0)
    plain, weighted = (
        EnergyClassifier("mean-covariance", **QUICK).fit(X, y),
        EnergyClassifier("mean-covariance", **QUICK).fit(X, y, sample_weight=heavy),
    )
    by_class = EnergyClassifier("mean-covariance", class_weight={0: 1.0, 1: 20.0}, **QUICK).fit(X, y)
    assert weighted.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean()
    np.testing.assert_allclose(weighted.predict_proba(X), by_class.predict_proba(X))


def test_labels_of_any_kind_come_back() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = EnergyClassifier("mean-covariance", **QUICK).fit(X, names)
    assert set(model.predict(X)) <= set(names)
    assert set(EnergyClassifier("mean-covariance", **QUICK).fit(X, y + 0.0).predict(X)) <= {0.0, 1.0, 2.0}


def test_it_works_in_scikit_learn_s_tools() -> None:
    X, y = blobs()
    model = EnergyClassifier("mean-covariance", **QUICK)
    pipeline = make_pipeline(StandardScaler(), clone(model))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.85
    search = GridSearchCV(model, {"units": ["mean", "covariance"]}, cv=2).fit(X, y)
    copied = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_allclose(copied.predict_proba(X), search.predict_proba(X), rtol=1e-6, atol=1e-8)
    assert search.best_estimator_.transform(X).shape == (300, 3 * 16)
    assert len(search.best_estimator_.get_feature_names_out()) == 3 * 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": "variance"}, "`units` must be one of trunk, memory, mean"),
        ({"reading": "both"}, "`reading`"),
        ({"scaling": "loud"}, "`scaling`"),
        ({"noise": "pink"}, "`noise`"),
        ({"n_hidden": "many"}, "whole number or 'auto'"),
        ({"n_hidden": 0}, "at least 1"),
        ({"device": "tpu9"}, "`device`"),
        ({"activation": "sigmoyd"}, "Did you mean 'sigmoid'"),
        ({"optimizer": "newton"}, "`optimizer` must be one of adam"),
        ({"start_scale": 0.0}, "`start_scale` must be None or above 0; got 0.0"),
        ({"validate_every": 0}, "`validate_every` must be at least 1"),
        ({"fine_tune_noise_level": [0.1, 0.2]}, "`fine_tune_noise_level` must be a number, or one for each"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message) -> None:
    X, y = blobs(30)
    with pytest.raises(InputError, match=message):
        EnergyClassifier(**{"units": "mean-covariance"} | QUICK | options).fit(X, y)


def test_validation_rows_of_one_s_own_calibrate_and_choose_the_epoch() -> None:
    X, y = blobs(600)
    train, valid = slice(0, 400), slice(400, 600)
    model = EnergyClassifier("mean", **QUICK).fit(X[train], y[train], X_valid=X[valid], y_valid=y[valid])
    assert len(model.liking_) == 200
    losses = [history.validation for history in model.history_.values()]
    assert [len(values) for values in losses] == [20, 20]
    expected = np.bincount(y[valid], minlength=3)
    np.testing.assert_allclose(model.predict_proba(X[valid]).sum(0), expected, atol=1e-3)  # as calibration leaves it
    # The rows train nothing else: other labels among them change calibration, not what was learned without stopping.
    stages = {"pretrain_epochs": 2, "max_epochs": 0}
    weights = []
    for shift in (0, 1):
        other = EnergyClassifier("mean", **QUICK | stages, validate_every=2)
        other.fit(X[train], y[train], X_valid=X[valid], y_valid=(y[valid] + shift) % 3)
        weights.append(next(other.model_.autoencoders[0].groups[0].parameters()))
    torch.testing.assert_close(*weights)


def test_validation_rows_that_cannot_be_used_are_refused() -> None:
    X, y = blobs(90)
    model = EnergyClassifier("mean", **QUICK)
    with pytest.raises(InputError, match="belong together"):
        model.fit(X, y, X_valid=X)
    with pytest.raises(InputError, match="`y_valid` must hold every class"):
        model.fit(X, y, X_valid=X[y < 2], y_valid=y[y < 2])
    with pytest.raises(ValueError, match="features"):
        model.fit(X, y, X_valid=X[:, :2], y_valid=y)
    with pytest.raises(InputError, match="early_stopping=True"):
        EnergyClassifier("mean", early_stopping=False, **QUICK).fit(X, y, X_valid=X, y_valid=y)


def test_stages_have_options_of_their_own() -> None:
    X, y = blobs(400)

    def scores(**options: Any) -> np.ndarray:  # without rows held out, which could put back what pretraining gave
        return EnergyClassifier("mean", early_stopping=False, **QUICK | options).fit(X, y).decision_function(X)

    plain = scores(noise_level=0.2)
    np.testing.assert_allclose(plain, scores(noise_level=0.2, fine_tune_noise_level=0.2), rtol=1e-6, atol=1e-8)
    for other in ({"fine_tune_noise_level": 0.5}, {"start_scale": None}, {"start_scale": 1.0}, {"optimizer": "sgd"}):
        assert np.abs(plain - scores(noise_level=0.2, **other)).max() > 1e-6
    model = EnergyClassifier("mean", **QUICK, validate_every=6).fit(X, y)
    assert [len(history.validation) for history in model.history_.values()] == [4, 4]  # 6, 12, 18 and the last, 20


def test_rows_that_cannot_be_used_are_refused() -> None:
    X, y = blobs(30)
    model = EnergyClassifier("mean-covariance", **QUICK)
    with pytest.raises(InputError, match="at least 2 classes"):
        model.fit(X, np.zeros(30))
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(X > 5, np.inf, X), y)
    with pytest.raises(ValueError, match=r"non-zero|more than 0"):
        model.fit(X, y, sample_weight=np.zeros(30))
    with pytest.raises(ValueError, match="features"):
        model.fit(X, y).predict(X[:, :2])
    with pytest.raises(InputError, match="same width"):
        ClassEnergies([])


@pytest.mark.gpu
def test_gpu_and_cpu_agree_and_gpu_fits_repeat() -> None:
    X, y = blobs()
    cpu, gpu, again = (
        EnergyClassifier("mean-covariance", **QUICK, device=device).fit(X, y) for device in ("cpu", "cuda", "cuda")
    )
    np.testing.assert_array_equal(gpu.predict_proba(X), again.predict_proba(X))
    assert (cpu.predict(X) == gpu.predict(X)).mean() > 0.97
