"""Whether explanations mean something is measured, and said where they do not."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from energate.cli import app
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyScorer, LabelMLP
from energate.views import MeaningWarning, account_of, explain, fit_table, measure_meaning, trajectory, view_of
from energate.views.meaning import AT_REST, MOST_STEPS, Meaning, meaning_of

X, Y = load_wine(return_X_y=True)


@pytest.fixture(scope="module")
def steep() -> EnergyClassifier:
    """Tells classes apart, and reconstructs nothing."""
    return EnergyClassifier("mean", generative_weight=0.0, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def memory() -> EnergyClassifier:
    return EnergyClassifier("memory", random_state=0).fit(X, Y)


def test_it_is_what_explain_and_trajectory_show(steep: EnergyClassifier, memory: EnergyClassifier) -> None:
    for model in (steep, memory):
        found, rows = measure_meaning(model, X[:10]), X[:10]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MeaningWarning)
            said = explain(model, rows)
        size, own = model.scaler_.size, said["decision"].argmax(1)
        low, high = rows.min(0) - size, rows.max(0) + size
        changes = np.linalg.norm((said["reconstructions"] - rows[:, None]) / size, axis=2)
        made = said["reconstructions"][np.arange(10), own]
        assert found.least_changed == pytest.approx(100 * (changes.argmin(1) == own).mean())
        assert found.inside == pytest.approx(100 * ((made >= low) & (made <= high)).all(1).mean())
        ended = []
        for x in rows:
            way = trajectory(model, x, n_steps=MOST_STEPS, rate="auto")
            last, energies = way["points"][-1], way["energies"]
            at_rest = way["converged"] or abs(energies[-1] - energies[-2]) <= 10 * AT_REST * (1 + abs(energies[-1]))
            ended.append(at_rest and bool(((last >= low) & (last <= high)).all()))
        assert found.ended == pytest.approx(100 * np.mean(ended))
        assert found.n_rows == 10
        assert found.chance == pytest.approx(100 / 3)


def test_a_model_that_reconstructs_nothing_is_told_in_a_line(steep: EnergyClassifier) -> None:
    found = measure_meaning(steep, X)
    assert found.warning is not None
    assert "\n" not in found.warning
    assert f"{found.inside:.0f} % of its reconstructions are within the data" in found.warning
    assert found.inside < 50
    with pytest.warns(MeaningWarning, match="means little"):
        explain(steep, X)
    explain(steep, X[:3])  # of a few rows nothing is said, and warnings are errors here


def test_what_classes_share_is_measured_where_it_is_shown(memory: EnergyClassifier) -> None:
    for model, x in ((memory, X[0]), (EnergyClassifier(max_epochs=5, random_state=0).fit(X, Y), X[1])):
        found = account_of(model, x)
        changes = np.stack([found.changes(k) for k in range(3)])
        apart = ((changes - changes.mean(0)) ** 2).sum(1).mean() / (changes**2).sum(1).mean()
        share = found.to_json()["shared_changes"]
        assert share == pytest.approx(1 - apart)
        told = f"{100 * share:.0f} % of what the classes change in this row is common to all of them"
        assert (told in found.footnote()) == (share >= 0.75)


def test_a_model_whose_classes_change_rows_alike_is_told_apart_from_one_that_reconstructs_nothing() -> None:
    blind = Meaning(50, 20.0, 100 / 3, 100.0, 100.0).warning
    assert blind is not None
    assert "the predicted class changes 20 % of rows least): go by energies and probabilities." in blind
    assert "means little" not in blind
    assert "20 % of rows least, 10 % of its reconstructions" in (Meaning(50, 20.0, 100 / 3, 10.0, 100.0).warning or "")
    assert Meaning(50, 40.0, 100 / 3, 100.0, 100.0).warning is None


def test_rows_that_are_units_mean_something(memory: EnergyClassifier) -> None:
    found = measure_meaning(memory, X)
    assert found.warning is None
    assert found.least_changed is not None
    assert found.least_changed > 90
    assert (found.inside, found.ended) == (100, 100)
    explain(memory, X)


@pytest.mark.parametrize("units", ["mean", "covariance", "mean-covariance"])
def test_explainable_keeps_auto_encoders_that_reconstruct(units: str) -> None:
    model = EnergyClassifier(units, explainable=True, random_state=0).fit(X[::2], Y[::2])
    found = measure_meaning(model, X[1::2])
    assert found.warning is None
    assert found.least_changed is not None
    assert found.least_changed > 80
    assert found.inside > 90
    assert model.score(X[1::2], Y[1::2]) > 0.9


def test_what_is_given_is_taken_whatever_explainable_says() -> None:
    model = EnergyClassifier("mean", explainable=True, generative_weight=[0.5, 0.2], max_epochs=2, pretrain_epochs=2)
    np.testing.assert_allclose(model.fit(X, Y).generative_weights_, [0.5, 0.2])


def test_a_scorer_has_no_class_to_compare() -> None:
    found = measure_meaning(EnergyScorer(random_state=0).fit(X), X)
    assert (found.least_changed, found.chance, found.warning) == (None, None, None)
    assert found.to_json()["inside"] == 100


def test_of_rows_that_are_explained_already_it_is_the_same_but_for_trajectories(memory: EnergyClassifier) -> None:
    found, view = measure_meaning(memory, X), view_of(memory)
    some = meaning_of(view, view.rows(X), explain(memory, X))
    assert (some.least_changed, some.inside, some.ended) == (found.least_changed, found.inside, None)


def test_it_refuses_what_has_no_reconstructions_and_few_rows(memory: EnergyClassifier) -> None:
    with pytest.raises(InputError, match="10 rows or more"):
        measure_meaning(memory, X[:9])
    with pytest.raises(InputError, match="LabelMLP"):
        measure_meaning(LabelMLP(max_epochs=1).fit(X, np.stack([Y == 0, Y == 1], 1).astype(int)), X)


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    load_wine(as_frame=True).frame.to_csv(tmp_path / "wine.csv", index=False)
    return tmp_path / "wine.csv"


def call(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_the_commands_say_it_too(table: Path) -> None:
    model = table.with_suffix(".zip")
    fit = ("fit", table, "--target", "target", "--units", "mean", "-o", model)
    assert "means little" in call(*fit).stderr
    assert "means little" in json.loads(call(*fit, "--json").stdout)["explanations"]["warning"]
    shown = call("explain", model, table, "--row", 3)
    assert "means little" in shown.stderr
    assert json.loads(call("explain", model, table, "--row", 3, "--json").stdout)["explanations"]["inside"] < 50
    assert "means little" not in call(*fit, "--explainable").stderr
    assert "means little" not in call("explain", model, table, "--row", 3).stderr


def test_options_of_the_command_line_are_those_of_the_estimator(table: Path) -> None:
    options = {"n_hidden": 5, "generative_weight": 0.5, "class_weight": "balanced"}
    fitted = fit_table(table, "target", units="mean", epochs=1, **options)
    assert {name: fitted.model.get_params()[name] for name in options} == options
    model = table.with_suffix(".zip")
    call("fit", table, "--task", "anomaly", "--drop", "target", "--false-positive-rate", 0.2, "-o", model)
    call("fit", table, "--task", "anomaly", "--drop", "target", "--contamination", 0.1, "-o", model)
    from energate import load

    assert load(model).contamination == 0.1
