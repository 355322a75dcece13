"""`TableEncoder`: the tables of the command line as a transformer of scikit-learn."""

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

from energate import EnergyScorer, TableEncoder, load, save
from energate.errors import InputError
from energate.persistence.loaded import Loaded
from energate.tables import learn_columns

pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")


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
    with pytest.raises(InputError, match="is a Pipeline, which is used from Python"):
        Loaded.of(tmp_path / name, "cpu")
    pytest.importorskip("skops")
    model = make_pipeline(TableEncoder(), StandardScaler(), "passthrough", EnergyScorer(random_state=0)).fit(frame)
    save(model, tmp_path / name)
    with pytest.raises(InputError, match="is read only if you trust where it comes from"):
        load(tmp_path / name)
    again = load(tmp_path / name, trusted=[])
    np.testing.assert_allclose(again.score_samples(frame), model.score_samples(frame))
    with pytest.raises(InputError, match="`model` must be one of"):
        save(make_pipeline(TableEncoder(), LogisticRegression()).fit(frame, y), tmp_path / name)
