import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from cases import mixed_columns
from cases import trunk_units as networks
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB

from energate.conservative import check_conservative
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.views import account_of, check, check_explainable, describe, explain, trajectory, view_of
from energate.views.classes import class_autoencoder, part_weights, reconstruct_classes

# Models that saw few epochs show what means little, and explain says so; test_meaning.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::energate.views.MeaningWarning")

N, D = 90, 5
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(N, D)) * [1, 10, 0.1, 1, 3] + [0, 100, 0, -5, 0]
Y_CLASSES = np.array(["left", "right", "up"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 106)]
LABELS = np.stack([X[:, 0] > 0, X[:, 1] > 100, (X[:, 0] > 0) & (X[:, 1] > 100), X[:, 2] > 0], 1).astype(int)
SMALL: dict[str, Any] = {"n_hidden": 7, "n_factors": 6, "random_state": 0, "device": "cpu"}
SETTINGS: list[dict[str, Any]] = [
    {"units": "mean"},
    {"scaling": "unit", "units": "covariance", "generative_weight": 0.1},
    {"generative_weight": [0.0, 0.1]},
    {"reading": "shared", "scaling": "none", "activation": "relu"},
    {"units": "trunk", "n_members": 2, "breadth": 9},
    {"units": "memory"},
]


def classifier(**options: Any) -> EnergyClassifier:
    return EnergyClassifier(
        **{"units": "mean-covariance", **SMALL, "pretrain_epochs": 2, "max_epochs": 2, **options}
    ).fit(X / X.std(0), Y_CLASSES)


def refiner(relation: str = "yy", method: str = "sets", base: Any = None, Y: Any = LABELS, **options: Any) -> Any:
    base = base or LabelMLP(n_hidden=8, n_members=2, max_epochs=2)
    made = EnergyRefiner(base, relation, method=method, max_epochs=2, **{**SMALL, **options}).fit(X, Y)
    made._set(0.75 if method == "sets" else 3)  # `fit` may find that refining gains nothing
    return made


@pytest.fixture(scope="module")
def classifiers() -> list[EnergyClassifier]:
    return [classifier(**options) for options in SETTINGS]


@pytest.fixture(scope="module")
def scorer() -> EnergyScorer:
    return EnergyScorer(**SMALL, max_epochs=5).fit(X)


ROWS = X[:11] / X.std(0)


# --- classifiers -------------------------------------------------------------------------------------------------


def test_a_classifier_is_explained_as_it_predicts(classifiers: list[EnergyClassifier]) -> None:
    for model in classifiers:
        said = explain(model, ROWS)
        np.testing.assert_allclose(said["energies"], model.energies(ROWS), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(said["probabilities"], model.predict_proba(ROWS), rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(said["predictions"], model.predict(ROWS))
        np.testing.assert_allclose(said["liking"], model.score_samples(ROWS), rtol=1e-9, atol=1e-12)
        # Decision values differ from energies by a term that all classes share.
        shared = said["energies"] - said["decision"]
        np.testing.assert_allclose(shared, np.broadcast_to(shared[:, :1], shared.shape), atol=1e-9)
        assert said["reconstructions"].shape == (11, 3, D)
        assert all(values.dtype == np.float64 for name, values in said.items() if name != "predictions")


def test_missing_cells_and_categories_are_told_in_the_columns_that_are_seen() -> None:
    pandas = pytest.importorskip("pandas")
    table, y = mixed_columns()
    frame = pandas.DataFrame(table)
    for options in ({"units": "mean"}, {"scaling": "unit"}):
        model = EnergyClassifier(
            **{"units": "mean-covariance", **SMALL, "pretrain_epochs": 2, "max_epochs": 2, **options}
        ).fit(frame, y)
        about, said = describe(model), explain(model, frame[:5])
        names = about["seen_names"]
        assert names[:4] == ["size", "age", "age=(missing)", "colour=blue"]
        assert len(names) == len(about["sizes"]) == said["seen"].shape[1] == said["reconstructions"].shape[2] == 8
        assert about["n_features"] == len(about["feature_names"]) == 4
        np.testing.assert_allclose(said["probabilities"], model.predict_proba(frame[:5]), rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(said["seen"][:, 5], [each == "red" for each in table["colour"][:5]])
        row = next(
            i for i, (age, colour) in enumerate(zip(table["age"], table["colour"], strict=True)) if not age and colour
        )
        account = account_of(model, frame[row : row + 1])
        found = {each["column"]: each["value"] for each in account.largest_changes(0, 8)}
        assert (found["age=(missing)"], found[f"colour={table['colour'][row]}"]) == (1, 1)
        assert found["age"] == pytest.approx(frame["age"].median())
        assert account.prediction == model.predict(frame[row : row + 1])[0]
        walk = trajectory(model, frame[row : row + 1], n_steps=5)
        assert walk["points"].shape[1] == 8
        np.testing.assert_allclose(walk["points"][0], account.x, atol=1e-9)
        assert (np.diff(walk["energies"]) > -1e-9).all()
        assert check(model).conservative
        assert check(model, frame).conservative
        drawn = view_of(model).draw(64, 0)["X"]
        assert drawn.shape == (64, 4)
        assert np.isnan(drawn[:, 1:3]).any(0).all()
        assert set(drawn[~np.isnan(drawn[:, 2]), 2]) == {0, 1, 2, 3}  # the last is no category


def test_a_class_is_one_autoencoder(classifiers: list[EnergyClassifier]) -> None:
    """Its energy is the class's, its reconstruction the one that is shown, and its field has that energy."""
    for model in classifiers:
        v = (
            torch.as_tensor(model.scaler_(ROWS)).clamp(0, 1)
            if model.scaling == "unit"
            else torch.as_tensor(model.scaler_(ROWS))
        )
        for k in range(3):
            merged, scale, constant = class_autoencoder(model.model_, k)
            with torch.no_grad():
                energies = scale * merged.energy(v)[0] + constant
                shown = reconstruct_classes(model.model_, v)[k]
                np.testing.assert_allclose(merged.reconstruct(v)[0], shown, atol=1e-12)
            np.testing.assert_allclose(energies, model.energies(ROWS)[:, k], rtol=1e-10, atol=1e-10)
            check_conservative(merged, v)
        assert (part_weights(model.model_) > 0).all()


def test_reconstructions_are_in_the_units_of_the_user() -> None:
    """Scaled by 1000 and moved, the same model says the same rows, scaled and moved."""
    options: dict[str, Any] = {**SMALL, "pretrain_epochs": 3, "max_epochs": 0, "generative_weight": 0.0}
    plain = EnergyClassifier("mean-covariance", **options).fit(ROWS[:10], [0, 1] * 5)
    moved = EnergyClassifier("mean-covariance", **options).fit(ROWS[:10] * 1000 - 7, [0, 1] * 5)
    a, b = explain(plain, ROWS), explain(moved, ROWS * 1000 - 7)
    np.testing.assert_allclose(b["reconstructions"], a["reconstructions"] * 1000 - 7, rtol=1e-3, atol=1)
    assert b["decision"].shape == (11, 2)  # for two classes, too


def test_a_class_that_is_not_there_is_refused(classifiers: list[EnergyClassifier]) -> None:
    with pytest.raises(InputError, match="a number from 0 to 2; got 3"):
        class_autoencoder(classifiers[0].model_, 3)


# --- scorers and refiners ----------------------------------------------------------------------------------------


def test_a_scorer_is_explained_as_it_predicts(scorer: EnergyScorer) -> None:
    said = explain(scorer, X)
    np.testing.assert_allclose(said["energies"], scorer.score_samples(X), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(said["scores"], scorer.decision_function(X), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(said["is_inlier"], scorer.predict(X) == 1)
    np.testing.assert_allclose(said["reconstructions"][:, 0], scorer.reconstruct(X), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("relation", ["yy", "xy"])
@pytest.mark.parametrize("method", ["sets", "ascent"])
def test_a_refiner_shows_every_step(relation: str, method: str) -> None:
    model = refiner(relation, method)
    said = explain(model, X)
    assert len(said["steps"]) >= 2
    np.testing.assert_allclose(said["steps"][0], said["base"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(said["steps"][-1], said["refined"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(said["refined"], model.predict_proba(X), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(said["predictions"], model.predict(X))
    assert np.abs(said["refined"] - said["base"]).max() > 1e-4
    if method == "sets":  # a step of the path is what a smaller gate would give
        half = copy.copy(model)
        half.gate_ = 0.75 * 2 / 5
        np.testing.assert_allclose(said["steps"][2], half.predict_proba(X), atol=1e-12)
    else:
        assert len(said["steps"]) == 4
        fewer = copy.copy(model)
        fewer._set(2)
        np.testing.assert_allclose(said["steps"][2], fewer.predict_proba(X), atol=1e-6)
    model._set(0)
    said = explain(model, X)
    assert said["steps"].shape == (2, N, 4)
    np.testing.assert_allclose(said["base"], said["refined"], rtol=1e-9, atol=1e-12)


def test_a_refiner_of_classes_gives_shares() -> None:
    model = refiner(Y=Y_CLASSES)
    said = explain(model, X)
    np.testing.assert_allclose(said["steps"].sum(-1), 1)
    np.testing.assert_allclose(said["refined"], model.predict_proba(X))
    np.testing.assert_array_equal(said["predictions"], model.predict(X))
    assert describe(model)["classes"] == ["left", "right", "up"]
    assert describe(model)["task"] == "classify"


def test_scores_from_elsewhere() -> None:
    model = refiner(base=MultiOutputClassifier(GaussianNB()))
    scores = model._scores(X)
    for name, values in explain(model, X, scores=scores).items():
        np.testing.assert_allclose(values, explain(model, X)[name], rtol=1e-9, atol=1e-12)
    assert not np.array_equal(explain(model, X, scores=-scores)["refined"], explain(model, X)["refined"])
    with pytest.raises(InputError, match="`scores` must be finite"):
        explain(model, X, scores=scores[:, :2])
    with pytest.raises(InputError, match="are for a refiner"):
        explain(classifier(units="mean"), ROWS, scores=scores)


# --- describe ----------------------------------------------------------------------------------------------------


def test_descriptions_are_json_and_complete(classifiers: list[EnergyClassifier], scorer: EnergyScorer) -> None:
    names = {"estimator", "task", "n_features", "feature_names", "classes", "labels", "sizes", "energate"}
    names |= {"n_parameters"}
    pairs = PairScorer(**SMALL, max_epochs=1).fit(X, X[:, :2])
    of_labels = refiner()
    found = {}
    for model in (classifiers[0], scorer, of_labels, of_labels.base_, pairs):
        found[type(model).__name__] = describe(model)
        assert names <= found[type(model).__name__].keys()
        json.dumps(describe(model), allow_nan=False)
    assert {name: each["task"] for name, each in found.items()} == {
        "EnergyClassifier": "classify",
        "EnergyScorer": "anomaly",
        "EnergyRefiner": "multilabel",
        "LabelMLP": "multilabel",
        "PairScorer": "pairs",
    }
    assert found["EnergyClassifier"]["classes"] == ["left", "right", "up"]
    assert found["EnergyClassifier"]["n_parameters"] == 4 * 3 * (7 * D + 7 + D) + 12  # 4 members of 3 classes, biases
    assert found["EnergyRefiner"]["labels"] == [0, 1, 2, 3]
    for model in (classifiers[0], scorer, of_labels, of_labels.base_):
        np.testing.assert_array_equal(found[type(model).__name__]["sizes"], model.scaler_.size)
    assert found["PairScorer"]["sizes"] is None
    assert (found["EnergyRefiner"]["base"], found["EnergyRefiner"]["gate"]) == ("LabelMLP", 0.75)
    with pytest.raises(InputError, match="must be a fitted EnergyClassifier"):
        describe(3)


def test_names_of_columns_are_told_and_rows_without_them_taken_quietly() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=list("abcde"))
    model = EnergyScorer(**SMALL, max_epochs=1).fit(frame)
    assert describe(model)["feature_names"] == list("abcde")
    with_names, without = explain(model, frame), explain(model, ROWS)  # no warning
    np.testing.assert_allclose(with_names["energies"], without["energies"], rtol=1e-9, atol=1e-12)
    trajectory(model, ROWS[0], n_steps=1)
    with pytest.raises(ValueError, match="feature names"):
        explain(model, frame.rename(columns={"a": "z"}))


def test_models_without_energies_of_rows_are_refused() -> None:
    pairs = PairScorer(**SMALL, max_epochs=1).fit(X, X[:, :2])
    for model in (LabelMLP(n_hidden=4, n_members=1, max_epochs=1).fit(X, LABELS), pairs):
        with pytest.raises(InputError, match="has no energies of"):
            explain(model, X)
        with pytest.raises(InputError, match="has no energies of"):
            check_explainable(model)
    with pytest.raises(InputError, match="needs a field over rows"):
        trajectory(refiner(), X[0])


# --- trajectories ------------------------------------------------------------------------------------------------


def test_a_trajectory_starts_at_the_row_and_rises(classifiers: list[EnergyClassifier], scorer: EnergyScorer) -> None:
    for model in classifiers:
        best = explain(model, ROWS[:1])["energies"].argmax()
        for of in (None, 0, 1, 2):
            found = trajectory(model, ROWS[0], n_steps=9, of=of, rate=0.05)
            k = best if of is None else of
            assert found["of"] == k
            assert found["points"].shape == (len(found["energies"]), D)
            assert 1 < len(found["energies"]) <= 10
            assert (np.diff(found["energies"]) > -1e-9).all()
            again = explain(model, found["points"])["energies"][:, k]  # the same energy as `explain` says
            np.testing.assert_allclose(
                found["energies"], again, rtol=1e-4, atol=1e-3 if model.scaling == "unit" else 1e-9
            )
            if model.scaling != "unit":
                np.testing.assert_allclose(found["points"][0], ROWS[0], rtol=1e-12)
    found = trajectory(scorer, X[:1], n_steps=4)
    np.testing.assert_allclose(found["energies"], scorer.score_samples(found["points"]), rtol=1e-9)
    assert found["of"] is None


def test_a_trajectory_begins_with_the_energy_of_the_row_itself_even_at_the_edge() -> None:
    """Columns at their least and largest value, where the field of sigmoid outputs is infinite, and beyond."""
    binary = np.round(np.random.RandomState(0).random_sample((60, 6)))
    edge = np.array([[0.0, 1, 0, 1, 1, 0], [0.0, 1, -0.5, 2, 1, 0]])
    options: dict[str, Any] = {**SMALL, "scaling": "unit", "max_epochs": 3}
    classes = EnergyClassifier("mean-covariance", **options, pretrain_epochs=3).fit(binary, binary[:, 0])
    normal = EnergyScorer(**options).fit(binary)
    for row in edge:
        for k in range(2):
            found = trajectory(classes, row, n_steps=20, of=k)
            np.testing.assert_allclose(found["energies"][0], classes.energies(row[None])[0, k], rtol=1e-12)
            np.testing.assert_allclose(found["points"][0], row.clip(0, 1), rtol=1e-9, atol=1e-12)
            assert (np.diff(found["energies"]) > -1e-9).all()
        found = trajectory(normal, row, n_steps=1)
        np.testing.assert_allclose(found["energies"][0], normal.score_samples(row[None])[0], rtol=1e-12)


def test_a_long_trajectory_comes_to_rest(scorer: EnergyScorer) -> None:
    found = trajectory(scorer, X[0], n_steps=2000, rate="auto")
    assert found["converged"]
    assert len(found["points"]) < 2001
    moved = np.abs(scorer.reconstruct(found["points"][-1:])[0] - found["points"][-1]) / scorer.scaler_.size
    assert moved.max() < 1e-3


def test_one_step_goes_towards_the_reconstruction(classifiers: list[EnergyClassifier]) -> None:
    model = classifiers[2]  # several members and parts
    found = trajectory(model, ROWS[3], n_steps=1, of=2, rate=0.3)
    expected = 0.7 * ROWS[3] + 0.3 * explain(model, ROWS[3:4])["reconstructions"][0, 2]
    np.testing.assert_allclose(found["points"][1], expected, rtol=1e-9, atol=1e-9)


def test_networks_are_explained_too() -> None:
    torch.manual_seed(0)
    model = EnergyClassifier(networks, pretrain_epochs=1, max_epochs=1, random_state=0).fit(
        ROWS, [0, 1, 1] + [0, 1] * 4
    )
    found = trajectory(model, ROWS[0], n_steps=3, of=1)
    np.testing.assert_allclose(found["energies"], explain(model, found["points"])["energies"][:, 1], rtol=1e-9)
    assert describe(model)["units"] == "a function"


@settings(max_examples=25, deadline=None)
@given(
    x=st.one_of(st.none(), st.lists(st.floats(-10, 10), max_size=7), st.just(np.zeros((2, D))), st.just([[0.0] * D])),
    n_steps=st.sampled_from([1, 2, 0, -1, 2.5, True, "3"]),
    of=st.sampled_from([None, 0, 2, 3, -1, 1.0, "left", True]),
    rate=st.sampled_from([0.1, "auto", 0.0, -1.0, float("nan"), "fast"]),
)
def test_bad_input_is_an_input_error(x: Any, n_steps: Any, of: Any, rate: Any) -> None:
    row = np.asarray(x, dtype=float) if x is not None else np.zeros(0)
    right = row.size == D and n_steps in (1, 2) and not isinstance(n_steps, bool)
    right = right and of in (None, 0, 2) and not isinstance(of, bool | float) and rate in (0.1, "auto")
    model = _SOME.setdefault("model", classifier(units="mean"))
    if right:
        assert trajectory(model, row, n_steps=n_steps, of=of, rate=rate)["energies"].size
    else:
        with pytest.raises(InputError):
            trajectory(model, row, n_steps=n_steps, of=of, rate=rate)


_SOME: dict[str, EnergyClassifier] = {}


# --- one row -----------------------------------------------------------------------------------------------------


def told_of(model: Any, x: NDArray[Any]) -> dict[str, Any]:
    account = account_of(model, x)
    return json.loads(json.dumps(account.to_json(2), allow_nan=False))


def test_accounts_of_rows(classifiers: list[EnergyClassifier], scorer: EnergyScorer) -> None:
    model = classifiers[0]
    found = told_of(model, ROWS[0])
    said = explain(model, ROWS[:1])
    assert found["prediction"] == said["predictions"][0]
    assert [each["probability"] for each in found["classes"]] == pytest.approx(
        said["probabilities"][0].tolist(), rel=1e-9
    )
    changes = np.abs(said["reconstructions"][0, 1] - ROWS[0]) / model.scaler_.size
    told = found["classes"][1]["changes"]
    assert [each["column"] for each in told] == [f"x{i}" for i in np.argsort(-changes)[:2]]
    assert abs(told[0]["change"]) == pytest.approx(changes.max())
    far = told_of(scorer, X[0] + 50 * scorer.scaler_.size)
    assert (far["prediction"], far["is_inlier"]) == ("anomaly", False)
    assert far["score"] == pytest.approx(far["energy"] - far["threshold"])
    of_labels = told_of(refiner(), X[0])
    assert [each["label"] for each in of_labels["labels"]] == ["0", "1", "2", "3"]
    assert set(of_labels["prediction"]) <= {"0", "1", "2", "3"}


def test_pictures_show_what_the_row_is(classifiers: list[EnergyClassifier], scorer: EnergyScorer) -> None:
    pytest.importorskip("matplotlib")

    wide = EnergyClassifier("mean-covariance", **SMALL, pretrain_epochs=1, max_epochs=0).fit(
        RANDOM.uniform(size=(20, 64)), [0, 1] * 10
    )
    of_images = EnergyScorer(**SMALL, max_epochs=1).fit(RANDOM.uniform(size=(20, 64)))
    images = {}
    for name, model, x in (
        ("classes", classifiers[0], ROWS[0]),
        ("scorer", scorer, X[0]),
        ("labels", refiner(), X[0]),
        ("image", wide, np.zeros(64)),
        ("scorer of images", of_images, np.zeros(64)),
    ):
        figure = account_of(model, x).draw("a row")
        images[name] = sum(len(ax.images) for ax in figure.axes)
        figure.savefig("/dev/null", format="svg")
        assert figure._suptitle.get_text().startswith("a row")
    assert images == {"classes": 0, "scorer": 0, "labels": 0, "image": 1 + 2 * 2, "scorer of images": 1 + 2}
