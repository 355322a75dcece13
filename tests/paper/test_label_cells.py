"""Cells of the second table: measures computed again by scikit-learn, fits shared, splits resumed, failures told."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, hamming_loss
from standin import counts, strict

from energate.datasets import make_correlated_labels, split_rows
from energate.paper import TABLES, run, work
from energate.paper.cell import find_cell, read_covariance, write_cell, written
from energate.paper.plan import PROFILES
from energate.paper.running import Agenda
from energate.paper.spaces import label_space
from energate.paper.systems import FAMILIES, LABEL_SYSTEMS, System
from energate.paper.work import LabelData, Remembered, Split, covariance, load_labels, measure_labels

FAST = ("logreg", "mlknn")


def small(n: int = 200) -> LabelData:
    made = make_correlated_labels(n, n_features=6, n_labels=5, seed=1)
    return LabelData(made.X, made.Y, tuple("abcde"), {"train": "generated", "sha256": {}})


def run_table(results: Path, **options: Any) -> Any:
    given: dict[str, Any] = {"profile": "quick", "results": results, "device": "cpu", "show": lambda event: None}
    return run("table2", **(given | {"systems": list(FAST)} | options))


# --- what the table is ----------------------------------------------------------------------------------------------


def test_every_column_is_a_system_in_one_family() -> None:
    assert list(TABLES["table2"].systems) == list(LABEL_SYSTEMS)
    assert sorted(name for members in FAMILIES.values() for name in members) == sorted(LABEL_SYSTEMS)
    assert {name for _, name in TABLES["table2"].left_out} < set(LABEL_SYSTEMS)
    for name, system in LABEL_SYSTEMS.items():
        family = next(members for members in FAMILIES.values() if name in members)
        assert system.base in ("", *system.on)
        for below in system.on:  # fits are shared, and the base comes first
            assert family.index(below) < family.index(name)


@pytest.mark.parametrize("data", TABLES["table2"].data)
def test_every_configuration_makes_an_estimator(data: str) -> None:
    for name, system in LABEL_SYSTEMS.items():
        for search in (True, False):
            configs = label_space(name, data, search)
            assert configs
            assert search or len(configs) == 1
            for config in configs:
                system.make(config, "cpu", 0, *system.on)


# --- measures -------------------------------------------------------------------------------------------------------


def test_measures_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    Y = (rng.random((60, 4)) < 0.3).astype(float)
    Y[:, 3] = 0  # a label that is never on, nor predicted
    p = np.clip(0.5 * Y + 0.4 * rng.random(Y.shape) * [1, 1, 1, 0], 0, 1)
    predicted = (p > 0.5).astype(float)
    assert predicted[:, 3].sum() == 0
    found = measure_labels(p, predicted, Y)
    said = {**found["measures"], "error": found["test_error"]}
    assert said["error"] == pytest.approx(100 * hamming_loss(Y, predicted), abs=1e-3)
    assert said["exact_match"] == pytest.approx(100 * accuracy_score(Y, predicted), abs=1e-3)
    for name in ("macro", "micro"):
        expected = 100 * f1_score(Y, predicted, average=name, zero_division=1.0)
        assert said[f"{name}_f1"] == pytest.approx(expected, abs=1e-3)
    expected = 100 * f1_score(Y, predicted, average="samples", zero_division=1.0)
    assert said["example_f1"] == pytest.approx(expected, abs=1e-3)
    assert said["brier"] == pytest.approx(brier_score_loss(Y.ravel(), p.ravel()), abs=1e-5)
    assert sum(found["reliability"].count) == Y.size
    assert 0 <= found["reliability"].ece <= 100


def test_covariances_come_back_from_bytes() -> None:
    data = small()
    Y, p = data.Y.astype(float), np.random.default_rng(0).random(data.Y.shape)
    found = covariance(p, Y, data.names)
    file = written(found)
    again = read_covariance(file, "covariance")
    for key, values in (("true", Y), ("predicted", p)):
        read = np.frombuffer(base64.b64decode(file[key]), np.uint8).reshape(5, 5).astype(float)
        np.testing.assert_allclose((read - 128) / 127 * file["scale"], np.cov(values.T), atol=file["scale"] / 127)
        np.testing.assert_allclose(getattr(again, key), np.cov(values.T), atol=file["scale"] / 127)


# --- fits -----------------------------------------------------------------------------------------------------------


class Counted:
    n_fits = 0

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        return {}

    def fit(self, X: Any, Y: Any) -> "Counted":
        Counted.n_fits += 1
        self.mean = Y.mean(0)
        return self

    def predict_proba(self, X: Any) -> Any:
        return np.tile(self.mean, (len(X), 1))


def test_a_base_is_fitted_once_to_the_same_rows() -> None:
    data = small(40)
    X, Y = data.X.astype(float), data.Y.astype(float)
    Counted.n_fits, first = 0, Remembered(Counted(), {})
    again = clone(first.fit(X, Y))
    np.testing.assert_array_equal(again.fit(X, Y).predict_proba(X), first.predict_proba(X))
    assert Counted.n_fits == 1
    assert not np.array_equal(clone(first).fit(X[:20], Y[:20]).predict_proba(X), first.predict_proba(X))
    clone(first).fit(X, 1 - Y)
    assert Counted.n_fits == 3


def test_refiners_share_the_fits_of_their_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LABEL_SYSTEMS, "mlp", System(lambda config, device, seed: Counted()))
    split, Counted.n_fits = Split(small(), "correlated", 0, "cpu", search=False), 0
    for name in ("mlp", "sets-y2", "sets-y2-subset", "projection"):
        split.cell(name)
    assert Counted.n_fits == 6  # five folds, and all rows


def test_the_test_rows_are_seen_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = Counted.fit
    monkeypatch.setattr(Counted, "fit", lambda self, X, Y: (seen.append(X), real(self, X, Y))[1])
    monkeypatch.setitem(LABEL_SYSTEMS, "mlp", System(lambda config, device, seed: Counted()))
    monkeypatch.setattr("energate.paper.spaces.label_space", lambda name, data, search: [{}, {}])  # a search
    data = small()
    split = Split(data, "correlated", 3, "cpu", search=True)
    split.cell("mlp")
    test = {row.tobytes() for row in data.X[split_rows(len(data.X), 3)[2]].astype(float)}
    assert len(seen) == 3  # two tries on the training rows, then both parts
    assert [len(X) for X in seen] == [160, 160, 180]
    assert not any(row.tobytes() in test for X in seen for row in X)


def test_a_configuration_that_cannot_be_fitted_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [{"k": 100_000}, {"k": 5}]
    monkeypatch.setattr("energate.paper.spaces.label_space", lambda name, data, search: configs)
    split = Split(small(), "correlated", 0, "cpu", search=True)
    cell = split.cell("mlknn")
    assert (cell["config"], cell["chosen"]) == ({"k": 5}, 1)
    assert [trial.failed for trial in cell["trials"]] == [True, False]


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_writes_a_file_for_every_split_and_goes_on(tmp_path: Path) -> None:
    assert counts(run_table(tmp_path)) == (4, 0, 0, 0)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("split*.json")}
    assert names == {f"table2/correlated/{name}/split{k}.json" for name in FAST for k in (0, 1)}
    cell = strict(tmp_path / "table2/correlated/mlknn/split1.json")
    assert (cell["repeat"], cell["seed"], cell["system_label"]) == ("split", 1, "ML-kNN")
    assert cell["n_train"] + cell["n_valid"] + cell["n_test"] == work.N_CORRELATED
    for name in names:  # read and written again it is the same file
        found = find_cell(tmp_path / name)
        assert found is not None
        write_cell(tmp_path / "again.json", found)
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / name).read_bytes()
    (tmp_path / "table2/correlated/mlknn/split1.json").unlink()
    assert counts(run_table(tmp_path)) == (1, 3, 0, 0)
    assert counts(run_table(tmp_path, jobs=2, seeds=3)) == (2, 4, 0, 0)


def test_a_system_that_fails_does_not_stop_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Any, device: str, seed: int) -> Any:
        raise RuntimeError("no such machine")

    monkeypatch.setitem(LABEL_SYSTEMS, "svm", System(broken))
    monkeypatch.setitem(LABEL_SYSTEMS, "mlp", System(lambda config, device, seed: Counted()))
    summary = run_table(tmp_path, systems=["svm", "mlp", "sets-y2"], seeds=1)
    assert counts(summary) == (2, 0, 1, 0)
    assert "svm: RuntimeError: no such machine" in summary.failed[0]
    cell = strict(tmp_path / "table2/correlated/svm/split0.json")
    assert cell["status"] == "failed"
    assert "no such machine" in cell["error"]
    refined = strict(tmp_path / "table2/correlated/sets-y2/split0.json")
    assert refined["base"] == "mlp"
    assert refined["verdict"].startswith("Refining gains")
    assert 0 <= refined["extra"]["gate"] <= 1


def test_what_takes_hours_is_left_out(tmp_path: Path) -> None:
    plan = Agenda(TABLES["table2"], PROFILES["full"], tmp_path, seeds=1)
    plan.choose(["yeast", "corel5k"], None)
    parts = {data: {part for task in plan.first[data] for part in task.parts} for data in ("yeast", "corel5k")}
    assert parts["yeast"] == set(LABEL_SYSTEMS)
    assert parts["yeast"] - parts["corel5k"] == {name for data, name in TABLES["table2"].left_out if data == "corel5k"}
    assert plan.n_cells == sum(map(len, parts.values()))


@pytest.mark.data
@pytest.mark.parametrize("name", TABLES["table2"].data)
def test_data_sets_of_the_table(name: str) -> None:
    data = load_labels(name, "auto", None)
    assert len(data.X) == len(data.Y)
    assert data.Y.shape[1] == len(data.names)
    assert set(data.provenance) >= {"train", "valid", "test", "source", "files", "sha256"}
