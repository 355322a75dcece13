"""`energate evaluate`, `info`, `search`, the model card, and what `fit` measures: the commands themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.datasets import load_wine
from sklearn.metrics import log_loss, roc_auc_score
from typer.testing import CliRunner

from energate import load
from energate.cli import app
from energate.datasets import make_correlated_labels
from energate.measures import resampled, wilson

FAST = ("--units", "memory")


def call(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result


def said(*arguments: Any) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of a table, a model of it, and the other half."""
    folder = tmp_path_factory.mktemp("wine")
    frame = load_wine(as_frame=True).frame
    frame["kind"] = np.array(["barolo", "grignolino", "barbera"])[frame.pop("target")]
    frame["place"] = np.where(np.arange(len(frame)) % 3, "hill", "valley")
    frame[::2].to_csv(folder / "half.csv", index=False)
    frame[1::2].to_csv(folder / "rest.csv", index=False)
    call("fit", folder / "half.csv", "--target", "kind", "-o", folder / "wine.zip", *FAST)
    return folder


def test_evaluate_says_what_scikit_learn_says(wine: Path) -> None:
    found = said("evaluate", wine / "wine.zip", wine / "rest.csv")
    frame, model = pd.read_csv(wine / "rest.csv"), load(wine / "wine.zip")
    rows = frame.drop(columns="kind").astype({"place": "category"})
    predicted, truth = model.predict(rows), frame["kind"].to_numpy()
    n_wrong = int((predicted != truth).sum())
    assert found["rows"] == len(frame)
    assert found["error"] == pytest.approx(100 * n_wrong / len(frame))
    interval = binomtest(n_wrong, len(frame)).proportion_ci(method="wilson")
    assert found["error_interval"] == pytest.approx([100 * interval.low, 100 * interval.high], rel=1e-5)
    assert found["log_loss"] == pytest.approx(log_loss(truth, model.predict_proba(rows)), rel=1e-6)
    low, high = found["log_loss_interval"]
    assert low < found["log_loss"] < high
    assert np.sum(found["confusion"]) == len(frame)
    assert len(frame) - np.trace(found["confusion"]) == n_wrong
    assert found["baselines"]["majority"] == pytest.approx(100 * (truth != "grignolino").mean())
    assert found["baselines"]["LogisticRegression"] < 10
    assert sum(found["reliability"]["count"]) == len(frame)
    recall = {each["class"]: each["recall"] for each in found["per_class"]}
    assert recall["barolo"] == pytest.approx(100 * (predicted[truth == "barolo"] == "barolo").mean())
    shown = call("evaluate", wine / "wine.zip", wine / "rest.csv").stdout
    assert f"{found['error']:.2f} %  ({found['error_interval'][0]:.2f} to" in shown
    assert "error of LogisticRegression" in shown
    assert "as barolo" in shown


def test_evaluate_refuses_in_one_line(wine: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(wine / "rest.csv")
    frame.assign(kind="merlot").to_csv(tmp_path / "other.csv", index=False)
    error = call("evaluate", wine / "wine.zip", tmp_path / "other.csv", code=2).stderr
    assert "does not know" in error
    assert "merlot" in error
    frame[frame["kind"] == "barolo"].to_csv(tmp_path / "one.csv", index=False)
    assert said("evaluate", wine / "wine.zip", tmp_path / "one.csv")["baselines"] == {"majority": 0}
    error = call("evaluate", wine / "wine.zip", wine / "rest.csv", "--target", "sort", code=2).stderr
    assert "sort" in error
    call("fit", wine / "half.csv", "--task", "anomaly", "--drop", "kind", "-o", tmp_path / "a.zip")
    assert "--target NAME" in call("evaluate", tmp_path / "a.zip", wine / "rest.csv", code=2).stderr


def test_evaluate_an_anomaly_model(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(size=(90, 2)), random.normal(3, 1, size=(10, 2))])
    np.savez(tmp_path / "t.npz", X=X, bad=np.repeat([0, 1], [90, 10]))
    call("fit", tmp_path / "t.npz", "--task", "anomaly", "--target", "bad", "-o", tmp_path / "m.zip")
    found = said("evaluate", tmp_path / "m.zip", tmp_path / "t.npz")
    scores = load(tmp_path / "m.zip").decision_function(pd.DataFrame(X, columns=["x0", "x1"]))
    is_odd = np.arange(100) >= 90
    assert found["roc_auc"] == pytest.approx(roc_auc_score(is_odd, -scores), abs=1e-9)
    low, high = found["roc_auc_interval"]
    assert low <= found["roc_auc"] <= high
    assert found["flagged_anomalies"] == pytest.approx(100 * (scores[is_odd] < 0).mean())
    assert found["flagged_normal"] == pytest.approx(100 * (scores[~is_odd] < 0).mean())
    assert found["anomalies_are"] == 1


def test_evaluate_several_labels(tmp_path: Path) -> None:
    data = make_correlated_labels(120, seed=0)
    frame = pd.DataFrame(data.X[:, :4], columns=list("abcd"))
    for i in range(3):
        frame[f"label_{i}"] = data.Y[:, i]
    frame.to_csv(tmp_path / "t.csv", index=False)
    call("fit", tmp_path / "t.csv", "--targets-prefix", "label_", "-o", tmp_path / "m.zip", "--epochs", 2)
    found = said("evaluate", tmp_path / "m.zip", tmp_path / "t.csv")
    predicted = load(tmp_path / "m.zip").predict(frame[list("abcd")].to_numpy())
    wrong = predicted != data.Y[:, :3]
    assert found["label_error"] == pytest.approx(100 * wrong.mean())
    assert found["row_error"] == pytest.approx(100 * wrong.any(1).mean())
    assert [each["error"] for each in found["per_label"]] == pytest.approx((100 * wrong.mean(0)).tolist())
    assert found["label_error_interval"][0] <= found["label_error"] <= found["label_error_interval"][1]
    assert "label_2" in call("evaluate", tmp_path / "m.zip", tmp_path / "t.csv").stdout


def test_fit_prints_an_interval_and_what_is_simpler(wine: Path, tmp_path: Path) -> None:
    shown = call("fit", wine / "half.csv", "--target", "kind", "-o", tmp_path / "m.zip", *FAST).stdout
    assert " to " in next(line for line in shown.splitlines() if line.startswith("  error "))
    assert "error of always the most frequent" in shown
    assert "error of LogisticRegression" in shown


def test_folds_measure_every_row_once_and_keep_a_model_of_all(wine: Path, tmp_path: Path) -> None:
    options = ("fit", wine / "half.csv", "--target", "kind", *FAST)
    found = said(*options, "--cv", 3, "-o", tmp_path / "m.zip")
    assert (found["held_out"]["rows"], found["held_out"]["folds"], found["trained_on"]) == (89, 3, 89)
    assert found["held_out"]["error"] == pytest.approx(100 * found["held_out"]["n_wrong"] / 89)
    assert found["held_out"]["error_interval"] == pytest.approx(list(wilson(found["held_out"]["n_wrong"], 89)))
    assert found["fitted_on_all_rows"]
    whole = said(*options, "--test-fraction", 0, "-o", tmp_path / "w.zip")
    assert whole["held_out"] is None
    models = [load(tmp_path / name) for name in ("m.zip", "w.zip")]
    rows = pd.read_csv(wine / "rest.csv").drop(columns="kind").astype({"place": "category"})
    np.testing.assert_allclose(*(model.predict_proba(rows) for model in models), rtol=1e-7, atol=1e-12)
    assert "--cv must be from 2 to" in call(*options, "--cv", 80, "-o", tmp_path / "x.zip", code=2).stderr


def test_the_card_says_what_was_measured_and_info_what_the_model_is(wine: Path, tmp_path: Path) -> None:
    found = said("fit", wine / "half.csv", "--target", "kind", "-o", tmp_path / "m.zip", *FAST)
    card = (tmp_path / "m-card.md").read_text()
    assert f"{found['held_out']['error']:.2f} %" in card
    for words in (
        "half.csv",
        "`kind`",
        "barolo",
        "units: memory",
        "`alcohol`",
        "torch",
        "LogisticRegression",
        "## Limits",
    ):
        assert words in card
    call("fit", wine / "half.csv", "--target", "kind", "-o", tmp_path / "n.zip", "--no-card", *FAST)
    assert not (tmp_path / "n-card.md").exists()
    about = said("info", tmp_path / "m.zip")
    assert (about["task"], about["targets"], about["categories"]) == ("classify", ["kind"], ["place"])
    assert about["bytes"] == (tmp_path / "m.zip").stat().st_size
    assert "units='memory'" in call("info", tmp_path / "m.zip").stdout


def test_search_measures_on_rows_that_no_trial_has_seen(wine: Path, tmp_path: Path) -> None:
    both = pd.concat([pd.read_csv(wine / name) for name in ("half.csv", "rest.csv")])
    both.to_csv(tmp_path / "both.csv", index=False)
    options = ("search", tmp_path / "both.csv", "--target", "kind", "--units", "mean", "-n", 3, "--epochs", 2)
    found = said(*options, "-o", tmp_path / "m.zip")
    assert len(found["trials"]) == 3
    assert found["value"] == pytest.approx(min(trial["value"] for trial in found["trials"]))
    assert found["held_out"]["rows"] == 36
    again = said("evaluate", tmp_path / "m.zip", wine / "rest.csv")
    assert again["rows"] == 89
    assert "3 trials" in call(*options, "-o", tmp_path / "n.zip").stdout


def test_intervals_hold_what_they_should() -> None:
    assert wilson(0, 10)[0] == pytest.approx(0, abs=1e-9)
    assert wilson(10, 10)[1] == pytest.approx(100)
    values = np.random.default_rng(0).normal(size=400)
    interval = resampled(lambda rows: float(values[rows].mean()), 400)
    assert interval is not None
    half = 1.96 * values.std() / 20
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)
    assert resampled(lambda _: float("nan"), 10) is None
