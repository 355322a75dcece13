"""Estimators that are fitted to a stream: as to the rows where memory holds them, and to all rows where it does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from parts import N, labelled, table, written
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

import energate
from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, InputError, load, save
from energate.tables import CodedRows, reading, streams
from energate.tables.drawn import draw
from energate.tables.streams import open_tables

LABELS = ["la", "lb", "lc"]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(streams, "GROUP_ROWS", 100)
    return written(table(), tmp_path)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds 600 rows."""
    monkeypatch.setattr(streams, "rows_in", lambda *_: 600)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return table().to_pandas()


@pytest.fixture(scope="module")
def labelled_frame() -> pd.DataFrame:
    return labelled().to_pandas()


def classifier(**more: Any) -> EnergyClassifier:
    return EnergyClassifier(units="mean", pretrain_epochs=2, max_epochs=8, random_state=0, **more)


def refiner(**more: Any) -> EnergyRefiner:
    base = MultiOutputClassifier(LogisticRegression())
    return EnergyRefiner(base, "xy", max_epochs=12, batch_size=32, random_state=0, **more)


# --- as to the rows ----------------------------------------------------------------------------------------------


def test_where_memory_holds_all_rows_a_stream_is_these_rows(parts: str, frame: pd.DataFrame) -> None:
    taken = frame[["x0", "x1", "x2", "colour"]]
    streamed = classifier().fit(energate.tables.open(parts, target="kind"))
    plain = classifier().fit(taken, frame["kind"])
    np.testing.assert_allclose(streamed.predict_proba(frame), plain.predict_proba(taken), atol=1e-9)
    assert streamed.streamed_.n_rows == streamed.streamed_.n_train == N

    source = energate.tables.open(parts, drop=["kind"])
    rows = frame[["x0", "x1", "x2", "colour"]]  # with holes and a category
    for units in ("memory", "mean"):
        how: dict[str, Any] = {"units": units, "max_units": 50, "n_hidden": 8, "max_epochs": 2, "random_state": 0}
        streamed, plain = EnergyScorer(**how).fit(source), EnergyScorer(**how).fit(rows)
        np.testing.assert_allclose(streamed.score_samples(frame), plain.score_samples(rows), atol=1e-9)
        assert streamed.offset_ == pytest.approx(plain.offset_)


def test_the_same_of_labels(tmp_path: Path, labelled_frame: pd.DataFrame) -> None:
    pattern, rows = written(labelled(), tmp_path), labelled_frame
    quick = {"max_epochs": 2, "batch_size": 256}
    streamed = refiner().set_params(**quick).fit(energate.tables.open(pattern, targets=LABELS, drop=["colour"]))
    numbers = rows[["x0", "x1", "x2"]].fillna(rows[["x0", "x1", "x2"]].median()).to_numpy()
    plain = refiner().set_params(**quick).fit(numbers, rows[LABELS].to_numpy())
    np.testing.assert_allclose(streamed.predict_proba(rows), plain.predict_proba(numbers), atol=1e-6)
    np.testing.assert_allclose(
        streamed.label_energy(rows, rows[LABELS]), plain.label_energy(numbers, rows[LABELS]), atol=1e-4
    )


# --- more rows than memory holds ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_a_classifier_of_more_rows_takes_frames_and_is_saved_with_its_columns(
    parts: str, frame: pd.DataFrame, tmp_path: Path
) -> None:
    train, test = energate.tables.open(parts, target="kind").split(0.2)
    model = classifier().fit(train)
    assert model.streamed_.n_memory < 600 < model.streamed_.n_train < model.streamed_.n_rows < N
    rows = pd.DataFrame({name: np.asarray(values) for name, values in test.sample(N).rows().items()})
    assert len(rows) == N - model.streamed_.n_rows
    assert (model.predict(rows) != rows["kind"]).mean() < 0.25
    save(model, tmp_path / "model.zip")
    again = load(tmp_path / "model.zip")
    np.testing.assert_allclose(again.predict_proba(rows), model.predict_proba(rows), atol=1e-9)
    assert again.columns_ == model.columns_
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["x0", "x1"]])
    plain = again.fit(frame[["x0", "x1"]].fillna(0), frame["kind"])
    assert "columns_" not in vars(plain)
    plain.predict(frame[["x0", "x1"]])


@pytest.mark.usefixtures("few")
def test_a_memory_is_of_a_uniform_sample_and_its_threshold_of_other_rows(
    parts: str, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = energate.tables.open(parts, drop=["kind"])
    drawn = draw(source, "anomaly", coded=True, share=0.1)
    assert drawn.held_out is not None
    model = EnergyScorer(false_positive_rate=0.1, random_state=0).fit(source)
    units = model.scaler_.undo(model.model_.groups[0].W[0].double().numpy())
    np.testing.assert_allclose(units, model.cells_.expand(drawn.X), atol=1e-9)
    held_out = CodedRows(drawn.held_out[0], drawn.columns)
    np.testing.assert_allclose(model.liking_, np.sort(model.score_samples(held_out)), atol=1e-9)
    flagged = model.predict(frame) == -1
    assert 0.05 < flagged.mean() < 0.16
    monkeypatch.setattr(reading, "CELLS", 11 * 6)  # eleven rows at once
    again = EnergyScorer(false_positive_rate=0.1, random_state=0).fit(source)
    np.testing.assert_allclose(again.score_samples(frame), model.score_samples(frame), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("few")
def test_every_row_is_as_likely_in_memory(parts: str) -> None:
    seen, held = np.zeros(N), np.zeros(N)
    for seed in range(20):
        found = draw(open_tables(parts, keep=["id"], random_state=seed), "anomaly", coded=False, share=0.1)
        assert found.held_out is not None
        mine, apart = found.X[:, 0].astype(int), found.held_out[0][:, 0].astype(int)
        assert not set(mine) & set(apart)
        seen[mine] += 1
        held[apart] += 1
    # of 300 rows in 20 draws 1,080 and 600: five standard deviations
    np.testing.assert_allclose(seen.reshape(10, 300).sum(1), 1080, atol=150)
    np.testing.assert_allclose(held.reshape(10, 300).sum(1), 600, atol=120)


@pytest.mark.usefixtures("few")
def test_trained_units_see_rows_that_memory_does_not_hold(parts: str, frame: pd.DataFrame) -> None:
    source = energate.tables.open(parts, drop=["colour", "kind"])
    how: dict[str, Any] = {"units": "mean", "n_hidden": 8, "max_epochs": 8, "learning_rate": 0.02, "random_state": 0}
    model = EnergyScorer(**how).fit(source)
    held_out = draw(source, "anomaly", coded=True, share=0.1).held_out
    assert held_out is not None
    assert len(model.liking_) == len(held_out[0])
    whole = frame.dropna()  # a hole is strange, too
    far = whole.assign(x0=8.0)
    assert (model.score_samples(far) < np.quantile(model.score_samples(whole), 0.01)).mean() > 0.95


@pytest.mark.usefixtures("few")
def test_the_base_of_a_refiner_has_not_seen_what_the_energy_is_trained_on(
    tmp_path: Path, labelled_frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "GROUP_ROWS", 100)
    source = energate.tables.open(written(labelled(), tmp_path), targets=LABELS, keep=["id"])
    drawn = draw(source, "multilabel", coded=False, share=0.2, apart=True)
    assert drawn.apart is not None
    assert drawn.held_out is not None
    assert drawn.refill is not None
    n_epochs = round(drawn.times)
    trained_on = {int(each) for epoch in range(n_epochs) for each in drawn.refill(epoch)[:, 0]}
    base, valid = ({int(each) for each in part[0][:, 0]} for part in (drawn.apart, drawn.held_out))
    assert not trained_on & base
    assert not trained_on & valid
    assert not base & valid
    assert len(trained_on) > 0.8 * (N - len(base) - len(valid))
    truth = labelled_frame[LABELS].to_numpy()
    for row, labels in zip(drawn.refill(1)[:, 0].astype(int), drawn.y, strict=True):
        assert truth[row].tolist() == labels.tolist()

    source = energate.tables.open(str(tmp_path / "*.parquet"), targets=LABELS)
    model = refiner().fit(source)
    assert (model.predict(labelled_frame) != truth).mean() < 0.165  # 0.185 of the base alone
    assert "which memory holds" in model.streamed_.notes[-1]
    own = refiner(prefit=True).set_params(base=model.base_).fit(source)
    assert own.streamed_.n_memory > 400
    assert (own.predict(labelled_frame) != truth).mean() < 0.165


# --- what is refused ---------------------------------------------------------------------------------------------


def test_what_a_stream_lacks_is_told(parts: str, frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="needs the column with the classes"):
        classifier().fit(open_tables(parts))
    with pytest.raises(InputError, match="Several labels need their columns"):
        refiner().fit(open_tables(parts, "kind"))
    with pytest.raises(InputError, match="no column 'sort' to be the target"):
        open_tables(parts, "sort")
    with pytest.raises(InputError, match="`y` must be left out"):
        classifier().fit(open_tables(parts, "kind"), frame["kind"])
    with pytest.raises(InputError, match="can train trunk, mean"):
        EnergyClassifier(units="memory").fit(open_tables(parts, "kind"))
    with pytest.raises(InputError, match="needs files"):
        open_tables([])
    with pytest.raises(InputError, match="below 1"):
        open_tables(parts).split(1.0)


@pytest.mark.usefixtures("few")
def test_a_class_that_no_sample_has_is_told(tmp_path: Path) -> None:
    rows = table().to_pandas()
    rows.loc[7, "kind"] = "rare"
    rows.loc[8:12, "kind"] = "seldom"
    pattern = written(pa.Table.from_pandas(rows), tmp_path)
    with pytest.raises(InputError, match="has so few rows that"):
        classifier().fit(open_tables(pattern, "kind"))
