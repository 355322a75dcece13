"""`TableEncoder`: the tables of the command line as a transformer of scikit-learn."""

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import mixed_columns
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

from energate import EnergyClassifier, EnergyScorer, TableEncoder, load, save
from energate.cli import app
from energate.errors import InputError
from energate.persistence.loaded import Loaded
from energate.tables import learn_columns

pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
SEEN = ["size", "age", "age=(missing)", "colour=blue", "colour=green", "colour=red", "colour=(missing)"]


@parametrize_with_checks([TableEncoder()])
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_frame_becomes_what_the_command_line_makes_of_it() -> None:
    table, _ = mixed_columns()
    frame = pandas.DataFrame(table)
    encoder = TableEncoder(categories=["grade"]).fit(frame)
    columns, _ = learn_columns(table, task="anomaly", categories=["grade"])
    assert encoder.columns_ == columns
    found = encoder.transform(frame)
    np.testing.assert_array_equal(found, columns.matrix(table))
    assert np.isfinite(found).all()
    assert encoder.get_feature_names_out().tolist() == columns.feature_names
    assert encoder.set_output(transform="pandas").transform(frame).columns.tolist() == columns.feature_names
    names = pytest.warns(UserWarning, match="does not have valid feature names")
    with pytest.raises(InputError, match="must be a frame with the columns of `fit`"), names:
        encoder.set_output(transform="default").transform(np.zeros((2, 4)))


def test_what_is_left_out_is_told() -> None:
    frame = pandas.DataFrame({"id": [f"n{i}" for i in range(30)], "day": pandas.date_range("2024-01-01", periods=30)})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        encoder = TableEncoder().fit(frame)
    first, second = (str(each.message) for each in told)
    assert first.startswith("'id' is left out")
    assert second.startswith("'day' holds dates")
    assert encoder.get_feature_names_out().tolist() == ["day (day)", "day (weekday)"]


def test_it_serves_any_estimator_and_its_clones() -> None:
    table, y = mixed_columns()
    frame = pandas.DataFrame(table)
    for last in (LogisticRegression(), EnergyScorer(random_state=0)):
        model = make_pipeline(TableEncoder(missing=["green"]), last)
        again = clone(model).fit(frame, y)
        assert again[0].missing == ["green"]
        assert len(again.predict(frame[:5])) == 5
    assert make_pipeline(TableEncoder(), LogisticRegression()).fit(frame, y).score(frame, y) > 0.8


@pytest.mark.parametrize("name", ["m", "m.zip"])
def test_a_pipeline_is_saved_and_loaded(tmp_path: Path, name: str) -> None:
    table, y = mixed_columns()
    frame = pandas.DataFrame(table)
    model = make_pipeline(TableEncoder(categories=["grade"]), EnergyScorer(random_state=0)).fit(frame)
    save(model, tmp_path / name)
    again = load(tmp_path / name)
    assert isinstance(again, Pipeline)
    np.testing.assert_allclose(again.score_samples(frame), model.score_samples(frame))
    assert again[0].columns_ == model[0].columns_
    assert [each for each, _ in again.steps] == ["tableencoder", "energyscorer"]
    pytest.importorskip("skops")
    model = make_pipeline(TableEncoder(), StandardScaler(), "passthrough", EnergyScorer(random_state=0)).fit(frame)
    save(model, tmp_path / name)
    with pytest.raises(InputError, match="is read only if you trust where it comes from"):
        load(tmp_path / name)
    with pytest.raises(InputError, match="is a Pipeline with StandardScaler, which is read from Python alone"):
        Loaded.of(tmp_path / name, "cpu")
    again = load(tmp_path / name, trusted=[])
    np.testing.assert_allclose(again.score_samples(frame), model.score_samples(frame))
    with pytest.raises(InputError, match="`model` must be one of"):
        save(make_pipeline(TableEncoder(), LogisticRegression()).fit(frame, y), tmp_path / name)


def test_commands_take_a_saved_pipeline(tmp_path: Path) -> None:
    table, y = mixed_columns()
    frame = pandas.DataFrame(table)
    names = np.array(["no", "yes"])[y]
    last = EnergyClassifier("memory", random_state=0)
    model = make_pipeline("passthrough", TableEncoder(categories=["grade"]), last).fit(frame, names)
    saved, data, out = tmp_path / "pipe.zip", tmp_path / "rows.csv", tmp_path / "out.csv"
    save(model, saved)
    frame.assign(is_it=names).to_csv(data, index=False)

    def call(*arguments: Any) -> str:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    call("predict", saved, data, "-o", out)
    found = pandas.read_csv(out)
    assert found["prediction"].tolist() == model.predict(frame).tolist()
    np.testing.assert_allclose(found["p_yes"], model.predict_proba(frame)[:, 1], atol=1e-9)
    call("score", saved, data, "-o", out)
    assert "colour=red" in call("explain", saved, data, "--row", 2, "--top", 9)
    assert "conservative" in call("check", saved)
    assert json.loads(call("info", saved, "--json"))["estimator"] == "EnergyClassifier"
    told = json.loads(call("evaluate", saved, data, "--target", "is_it", "--json"))
    assert told["error"] == pytest.approx(100 * (model.predict(frame) != names).mean())
    pytest.importorskip("starlette", reason="the server needs the extra `serve`")
    about = importlib.import_module("energate.serving").load_served(saved).about
    assert about["feature_names"] == model[1].get_feature_names_out().tolist()


def test_a_frame_goes_into_the_scorer_as_it_is(tmp_path: Path) -> None:
    table, _ = mixed_columns()
    frame = pandas.DataFrame(table)
    model = EnergyScorer(random_state=0).fit(frame)
    assert model.cells_.names(list(frame)) == [*SEEN, "grade"]
    odd = frame[:4].assign(colour="violet", size=1e4)
    assert model.score_samples(odd).max() < model.score_samples(frame).min()
    np.testing.assert_allclose(
        model.score_samples(frame[["size", "age", "colour", "grade"]]), model.score_samples(frame)
    )
    whole = model.complete(frame)
    np.testing.assert_array_equal(whole[frame["age"].notna(), 1], frame["age"].dropna())
    assert np.isfinite(whole).all()
    save(model, tmp_path / "scorer.zip")
    np.testing.assert_allclose(load(tmp_path / "scorer.zip").score_samples(frame), model.score_samples(frame))
    with pytest.raises(InputError, match="put a TableEncoder before the model"):
        EnergyScorer().fit(frame.assign(day=pandas.date_range("2020-01-01", periods=len(frame))))
