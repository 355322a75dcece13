import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.multioutput import MultiOutputClassifier
from sklearn.utils.estimator_checks import check_estimator
from torch.nn import functional as F

from energate import InputError, LabelMLP, load, minimise, row_batches, save
from energate.datasets import load_multilabel, make_correlated_labels, split_rows
from energate.estimators import edge
from energate.estimators.mlp import LabelNetworks, member_batches

QUICK: dict[str, Any] = {"n_hidden": 16, "n_members": 2, "max_epochs": 20, "learning_rate": 1e-2, "random_state": 0}
DATA = make_correlated_labels(300, 5, 4, n_vectors=5, sharpness=8.0)
X, Y = DATA.X.astype(np.float64), DATA.Y
CLASSES = np.array(["c", "a", "b"])[DATA.probabilities.argmax(1) % 3]
KINDS = {"labels": Y, "classes": CLASSES, "two classes": CLASSES == "a"}

each_kind = pytest.mark.parametrize("y", KINDS.values(), ids=KINDS)


def quick(**options: Any) -> LabelMLP:
    return LabelMLP(**(QUICK | options))


def test_it_is_a_scikit_learn_classifier() -> None:
    results = check_estimator(quick(), on_fail=None, on_skip=None)
    assert [result["check_name"] for result in results if result["status"] == "failed"] == []
    assert len(results) > 50
    names = {result["check_name"] for result in results}
    assert "check_classifiers_multilabel_output_format_predict_proba" in names


# --- the networks ----------------------------------------------------------------------------------------------


def networks(n_models: int = 3, sizes: tuple[int, ...] = (5, 7, 6, 4)) -> LabelNetworks:
    generator = torch.Generator().manual_seed(0)
    built = LabelNetworks(n_models, sizes, generator).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return built


def member(together: LabelNetworks, k: int) -> LabelNetworks:
    """A copy of one of the networks."""
    shapes = [layer.W.shape[1:] for layer in (*together.hidden, together.output)]
    sizes = [shapes[0][0], *(n_out for _, n_out in shapes)]
    alone = LabelNetworks(1, sizes, torch.Generator()).double()
    alone.load_state_dict({name: value[k : k + 1].clone() for name, value in together.state_dict().items()})
    return alone


def test_networks_are_layers_of_relu() -> None:
    built, v = networks(), torch.randn(9, 5, dtype=torch.float64)
    logits = built(v)
    assert logits.shape == (3, 9, 4)
    for k in range(3):
        h = v
        for layer in built.hidden:
            h = (h @ layer.W[k] + layer.b[k]).clamp(min=0)
        torch.testing.assert_close(logits[k], h @ built.output.W[k] + built.output.b[k])
        torch.testing.assert_close(member(built, k)(v)[0], logits[k])
    torch.testing.assert_close(built(v.expand(3, 9, 5)), logits)


def test_dropout_leaves_the_mean_as_it_is_and_differs_between_networks() -> None:
    built, v = networks(sizes=(5, 4)), torch.randn(1, 5, dtype=torch.float64).expand(40_000, 5)
    logits = built(v, (0.3, 0.5), torch.Generator().manual_seed(0))
    torch.testing.assert_close(logits.mean(1), built(v[:1])[:, 0], atol=0.05, rtol=0)
    same = LabelNetworks(2, (5, 4), torch.Generator()).double()
    with torch.no_grad():
        same.output.W.fill_(1.0)
    one, two = same(v[:20], (0.3, 0.5), torch.Generator().manual_seed(0))
    assert (one != two).any()


def test_every_network_has_its_own_order_of_the_same_rows() -> None:
    steps = member_batches(3, 10, 4, 0, torch.device("cpu"))(5)
    assert [tuple(batch.shape) for batch in steps] == [(3, 4), (3, 4), (3, 2)]
    orders = torch.cat(list(steps), 1)
    torch.testing.assert_close(orders.sort(1).values, torch.arange(10).expand(3, 10))
    assert not torch.equal(orders[0], orders[1])


def test_networks_trained_together_are_those_trained_alone() -> None:
    together = networks()
    rows, targets = torch.as_tensor(X), torch.as_tensor(Y, dtype=torch.float64)

    def train(model: LabelNetworks, batches: Any) -> None:
        def loss(batch: torch.Tensor) -> torch.Tensor:
            logits = model(rows[batch])
            known = targets[batch].expand_as(logits)
            return F.binary_cross_entropy_with_logits(logits, known, reduction="none").sum(-1).mean(-1)

        minimise(loss, model.parameters(), batches, epochs=3, optimizer="adamw", weight_decay=0.1, schedule="cosine")

    alone = [member(together, k) for k in range(3)]
    train(together, member_batches(3, len(X), 64, 7, torch.device("cpu")))
    for k, model in enumerate(alone):
        train(model, row_batches(len(X), 64, 7 + k))
        torch.testing.assert_close(model(rows)[0], together(rows)[k], atol=1e-10, rtol=0)


# --- learning --------------------------------------------------------------------------------------------------


def test_it_learns_several_labels() -> None:
    model = quick(max_epochs=60).fit(X[:200], Y[:200])
    error = (model.predict(X[200:]) != Y[200:]).mean()
    usual = np.minimum(Y[200:].mean(0), 1 - Y[200:].mean(0)).mean()  # of the rule that ignores the row
    assert error < 0.6 * usual
    assert model.score(X[200:], Y[200:]) == (model.predict(X[200:]) == Y[200:]).all(1).mean()


def test_it_learns_classes() -> None:
    rows, labels = load_iris(return_X_y=True)
    model = quick(max_epochs=60, dropout=0.2, input_dropout=0.0).fit(rows, labels)
    assert model.score(rows, labels) > 0.95
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])


@each_kind
def test_scores_agree_with_each_other(y) -> None:
    model = quick().fit(X, y)
    logits, probabilities = model.decision_function(X), model.predict_proba(X)
    if model.multilabel_:
        assert logits.shape == probabilities.shape == Y.shape
        np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)))
        np.testing.assert_array_equal(model.predict(X), logits > 0)
        np.testing.assert_array_equal(model.classes_, np.arange(4))
    else:
        np.testing.assert_allclose(probabilities.sum(1), 1)
        np.testing.assert_array_equal(model.predict(X), model.classes_[probabilities.argmax(1)])
    if y.dtype == bool:
        assert logits.shape == (300,)
        np.testing.assert_allclose(logits, np.log(probabilities[:, 1] / probabilities[:, 0]))
    elif not model.multilabel_:
        np.testing.assert_allclose(probabilities, torch.softmax(torch.as_tensor(logits), 1))
    scaled = torch.as_tensor(model.scaler_(X))
    known = model.model_(scaled).mean(0).detach().numpy()
    np.testing.assert_allclose(known[:, 1] - known[:, 0] if logits.ndim == 1 else known, logits)


def test_labels_that_never_change_are_predicted_as_such() -> None:
    always = np.concatenate([Y, np.zeros((300, 1), np.uint8), np.ones((300, 1), np.uint8)], 1)
    model = quick(weight_decay=0.1).fit(X, always)
    far = np.concatenate([X, 1e6 * X])
    np.testing.assert_array_equal(model.predict(far)[:, 4:], [[0, 1]] * 600)
    np.testing.assert_allclose(model.decision_function(far)[:, 4:], [[-np.log(601), np.log(601)]] * 600, rtol=1e-6)
    assert model.predict(X)[:, :4].std() > 0
    # The other labels are learned as if they were alone, with dropout of the same units.
    np.testing.assert_allclose(
        quick(weight_decay=0.1).fit(X, Y).decision_function(X), model.decision_function(X)[:, :4], atol=1e-4
    )
    only = quick().fit(X, always[:, 4:])
    np.testing.assert_array_equal(only.predict(X), [[0, 1]] * 300)


def test_only_matrices_decay() -> None:
    rare = (np.arange(300)[:, None] < [30, 240]).astype(int)
    noise = np.random.default_rng(0).permutation(300)
    model = quick(learning_rate=1e-3, weight_decay=900.0).fit(X[noise], rare)
    np.testing.assert_allclose(model.predict_proba(X), [[0.1, 0.8]] * 300, atol=0.03)


def test_early_stopping_keeps_the_best_epoch_of_every_network() -> None:
    options = {"early_stopping": True, "max_epochs": 60, "n_iter_no_change": 5, "dropout": 0.0, "input_dropout": 0.0}
    model = quick(n_members=3, n_hidden=64, **options).fit(X[:150], Y[:150], X_valid=X[150:], y_valid=Y[150:])
    history = model.history_
    assert history.best_epoch is not None
    assert history.best is not None
    assert history.best_epoch.shape == (3,)
    assert len(history.loss) < 60
    with torch.no_grad():
        logits = model.model_(torch.as_tensor(model.scaler_(X[150:])))
    known = torch.as_tensor(Y[150:], dtype=torch.float64).expand_as(logits)
    losses = F.binary_cross_entropy_with_logits(logits, known, reduction="none").sum(-1).mean(-1)
    torch.testing.assert_close(losses, history.best, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.stack(history.validation).min(0).values, history.best)


def test_rows_are_held_out_where_there_are_enough() -> None:
    assert quick(early_stopping=True).fit(X, Y).history_.best is not None
    assert quick(early_stopping=True).fit(X[:60], Y[:60]).history_.best is None
    assert quick().fit(X, Y).history_.best is None
    held = quick(early_stopping=True, validation_fraction=0.2).fit(X, CLASSES)
    np.testing.assert_array_equal(held.classes_, ["a", "b", "c"])


def test_the_networks_differ_and_their_mean_is_taken() -> None:
    model = quick(n_members=3).fit(X, Y)
    logits = model.model_(torch.as_tensor(model.scaler_(X))).detach()
    assert (logits[0] - logits[1]).abs().max() > 0.01
    np.testing.assert_allclose(logits.mean(0).numpy(), model.decision_function(X))


def test_no_hidden_layer_is_logistic_regression() -> None:
    model = quick(n_layers=0, dropout=0.0, input_dropout=0.0).fit(X, Y)
    logits = model.decision_function(X)
    slopes = np.linalg.lstsq(np.column_stack([X, np.ones(300)]), logits, rcond=None)
    assert slopes[1].max() < 1e-12
    assert len(model.model_.hidden) == 0


@each_kind
def test_results_are_repeatable(y) -> None:
    one, two, other = quick().fit(X, y), clone(quick()).fit(X, y), quick(random_state=1).fit(X, y)
    np.testing.assert_allclose(one.decision_function(X), two.decision_function(X), rtol=1e-6, atol=1e-8)
    assert (one.decision_function(X) != other.decision_function(X)).any()
    again = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(again.predict(X), one.predict(X))


def test_rows_go_through_in_chunks(monkeypatch) -> None:
    whole = quick(early_stopping=True).fit(X, Y)
    monkeypatch.setattr(edge, "ROWS_PER_CHUNK", 7)
    parts = quick(early_stopping=True).fit(X, Y)
    np.testing.assert_allclose(parts.decision_function(X), whole.decision_function(X), atol=1e-3)
    np.testing.assert_allclose(whole.decision_function(X[:20])[3:4], whole.decision_function(X[3:4]), atol=1e-12)


def test_labels_may_be_numbers_of_any_type_and_lists() -> None:
    expected = quick().fit(X, Y).decision_function(X)
    for same in (Y.astype(float), Y.astype(bool), Y.tolist(), Y.astype(np.int32)):
        np.testing.assert_allclose(quick().fit(X, same).decision_function(X), expected, rtol=1e-6, atol=1e-8)


def test_one_column_of_labels_is_taken_as_classes() -> None:
    with pytest.warns(DataConversionWarning):
        model = quick().fit(X, Y[:, :1])
    assert not model.multilabel_
    assert model.predict(X).shape == (300,)


def test_progress_is_printed(capsys) -> None:
    quick(max_epochs=2, verbose=1).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"\[train\] epoch 2/2, loss \d+\.\d+", lines[1])


@given(rows=st.integers(2, 12), labels=st.integers(2, 5), width=st.integers(1, 4), seed=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_few_rows_with_any_labels_give_probabilities(rows: int, labels: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    v, marks = rng.standard_normal((rows, width)), rng.integers(2, size=(rows, labels))
    probabilities = quick(max_epochs=2).fit(v, marks).predict_proba(v)
    assert probabilities.shape == marks.shape
    assert (probabilities > 0).all()
    assert (probabilities < 1).all()


# --- saving ----------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("name", ["folder", "file.zip"])
def test_a_loaded_model_is_the_saved_one(y, name: str, tmp_path: Path) -> None:
    model = quick(max_epochs=2).fit(X, y)
    save(model, tmp_path / name)
    loaded = load(tmp_path / name)
    assert loaded.get_params() == {**model.get_params(), "device": "cpu"}
    assert loaded.multilabel_ is model.multilabel_
    assert loaded.classes_.dtype == model.classes_.dtype
    for method in ("decision_function", "predict_proba", "predict"):
        np.testing.assert_array_equal(getattr(loaded, method)(X), getattr(model, method)(X))


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_hidden": 0}, "`n_hidden` must be a whole number of at least 1 or 'auto'; got 0"),
        ({"n_layers": -1}, "`n_layers` must be a whole number of at least 0; got -1"),
        ({"n_members": 2.5}, "`n_members` must be a whole number of at least 1; got 2.5"),
        ({"batch_size": True}, "`batch_size` must be a whole number"),
        ({"n_iter_no_change": 0}, "`n_iter_no_change`"),
        ({"dropout": 1.0}, "`dropout` must be a number of at least 0 and below 1; got 1.0"),
        ({"input_dropout": "0.2"}, "`input_dropout` must be a number"),
        ({"early_stopping": True, "validation_fraction": 0}, "`validation_fraction` must be above 0"),
        ({"scaling": "log"}, "`scaling` must be one of standard, unit, none; got 'log'"),
        ({"max_epochs": "many"}, "a whole number or 'auto'; got 'many'"),
        ({"device": "abacus"}, "`device` must be"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        quick(**options).fit(X, Y)


def test_labels_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(InputError, match=r"table \(n, L\) of 0 and 1; got one of .*Give classes in one dimension"):
        quick().fit(X, Y + 1)
    with pytest.raises(InputError, match="of 0 and 1"):
        quick().fit(X, np.full((300, 2), "yes"))
    with pytest.raises(InputError, match="at least 2 classes"):
        quick().fit(X, np.zeros(300))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(X, Y[:10])


def test_validation_rows_that_cannot_be_used_are_refused() -> None:
    early = quick(early_stopping=True)
    with pytest.raises(InputError, match="Give both or neither"):
        early.fit(X, Y, X_valid=X)
    with pytest.raises(InputError, match="set early_stopping=True"):
        quick().fit(X, Y, X_valid=X, y_valid=Y)
    with pytest.raises(InputError, match=r"`y_valid` must have 4 columns, as `y`; got \(300, 3\)"):
        early.fit(X, Y, X_valid=X, y_valid=Y[:, :3])
    with pytest.raises(InputError, match="as many dimensions as `y`; got 1"):
        early.fit(X, Y, X_valid=X, y_valid=CLASSES)


def test_it_is_not_fitted_before_training_ends() -> None:
    model = quick()
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.fit(X, Y)
    with pytest.raises(InputError, match=r"not finite|diverged"):
        model.set_params(learning_rate=1e30).fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


# --- real data -------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "bound"), [("yeast", 0.20), ("scene", 0.088)])
def test_errors_on_published_sets_stay_low(name: str, bound: float) -> None:
    data = load_multilabel(name)
    train, valid, _ = split_rows(len(data.X), 100)
    model = LabelMLP(n_members=2, device="cpu", random_state=100).fit(data.X[train], data.Y[train])
    assert (model.predict(data.X[valid]) != data.Y[valid]).mean() < bound


def test_it_is_a_base_for_others() -> None:
    model = MultiOutputClassifier(quick(max_epochs=3)).fit(X, Y)
    assert model.predict(X).shape == Y.shape
