"""What the file of a cell holds: every number computed again, in another way; and the results that come along."""

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standin
import torch
from standin import BODY, CONFIGS, HEAD, N_CLASSES, N_TEST, Centre, Plain, counts, run, strict

from energate.datasets import Dataset
from energate.paper import work
from energate.paper.cell import (
    as_json,
    find_cell,
    note_run,
    read_cell,
    read_file,
    read_runs,
    read_search,
    write_cell,
    write_json,
    write_search,
)
from energate.paper.plan import PROFILES, TABLES, Profile
from energate.training import History

ALL = ("centre", "plain", "other")
Systems = dict[str, Any]
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch) -> Systems:
    made: Systems = {"centre": Centre(), "plain": Plain(), "other": Centre()}
    standin.install(made, monkeypatch.setitem, monkeypatch.setattr)
    return made


def test_a_run_writes_a_file_for_every_cell(systems: Systems, tmp_path: Path) -> None:
    assert counts(run(tmp_path)) == (10, 0, 0, 0)  # 2 data sets x (2 + 1 + 2 seeds)
    expected = {
        f"small/{data}/{system}/seed{seed}.json"
        for data in ("one", "two")
        for system in ALL
        for seed in range(1 if system == "plain" else 2)
    }
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {*expected, "small/runs.jsonl"}
    for name in expected:
        cell, seed = strict(tmp_path / name), int(name[-6])
        pictures = ("mistakes", "filters") if seed == 0 else ()
        assert sorted(cell) == sorted([*HEAD, *BODY, *pictures])
        assert cell["schema"] == 1
        assert [cell[key] for key in ("table", "data", "system", "seed")] == [*name.split("/")[:3], seed]
        assert cell["order"] == {"data": int(cell["data"] == "two"), "system": ALL.index(cell["system"])}
        assert cell["published"] == (12.5 if name.startswith("small/one/centre") else None)
        assert cell["ours"] is (cell["system"] == "centre")
        assert cell["apart"] == ("it is another" if cell["system"] == "other" else "")
        assert cell["random"] is (cell["system"] != "plain")
        assert (cell["status"], cell["error"], cell["search"]) == ("ok", "", None)
        assert cell["config"] == CONFIGS[1]
        assert set(cell["versions"]) == {"energate", "torch", "scikit-learn", "numpy", "python"}


def test_the_numbers_of_a_cell_are_right(systems: Systems, tmp_path: Path) -> None:
    run(tmp_path, data=["two"])
    data = standin.load("two")
    for system in ("centre", "plain"):
        cell = strict(tmp_path / "small/two" / system / "seed0.json")
        model = standin.Model(work.parts_of(data), CONFIGS[1]["sharpness"], seed=0)
        predicted = model.predict(data.X_test)
        wrong = predicted != data.y_test
        assert 0 < wrong.sum() < N_TEST
        assert cell["test_error"] == pytest.approx(100 * wrong.mean(), abs=1e-3)
        valid_wrong = model.predict(data.X_valid) != data.y_valid
        assert cell["valid_error"] == pytest.approx(100 * valid_wrong.mean(), abs=1e-3)
        for true, row in enumerate(cell["confusion"]):
            assert row == [int(np.sum((data.y_test == true) & (predicted == k))) for k in range(N_CLASSES)]
        bits = np.unpackbits(np.frombuffer(base64.b64decode(cell["wrong"]), np.uint8), count=N_TEST)
        np.testing.assert_array_equal(bits, wrong)
        rows = [mistake["row"] for mistake in cell["mistakes"]]
        assert len(rows) == min(12, wrong.sum())
        for mistake in cell["mistakes"]:
            row = mistake["row"]
            assert (mistake["true"], mistake["predicted"]) == (data.y_test[row], predicted[row])
            pixels = np.frombuffer(base64.b64decode(mistake["pixels"]), np.uint8)
            np.testing.assert_allclose(pixels / 255, data.X_test[row], atol=0.5 / 255 + 1e-6)
    for key in ("test_log_loss", "valid_log_loss", "reliability", "energies"):
        assert cell[key] is None  # plain
    assert {mistake["confidence"] for mistake in cell["mistakes"]} == {None}


def test_losses_calibration_and_energies_are_right(systems: Systems, tmp_path: Path) -> None:
    run(tmp_path, data=["two"], systems=["centre"])
    cell, data = strict(tmp_path / "small/two/centre/seed1.json"), standin.load("two")
    model = standin.Model(work.parts_of(data), CONFIGS[1]["sharpness"], seed=1)
    proba = model.predict_proba(data.X_test)
    loss = np.mean([-np.log(row[k]) for row, k in zip(proba, data.y_test, strict=True)])
    assert cell["test_log_loss"] == pytest.approx(loss, abs=1e-5)
    sure, right = proba.max(1), proba.argmax(1) == data.y_test
    calibration, gap = cell["reliability"], 0.0
    for i in range(10):
        inside = (sure >= i / 10) & ((sure < (i + 1) / 10) | (i == 9))
        assert calibration["count"][i] == inside.sum()
        for key, values in (("confidence", sure), ("accuracy", right)):
            expected = 100 * values[inside].mean() if inside.any() else None
            assert calibration[key][i] == (None if expected is None else pytest.approx(expected, abs=1e-2))
        gap += abs(sure[inside].sum() - right[inside].sum())
    assert calibration["ece"] == pytest.approx(100 * gap / N_TEST, abs=1e-3)
    histogram = cell["energies"]
    assert np.all(np.diff(histogram["edges"]) > 0)
    assert len(histogram["edges"]) == len(histogram["own"]) + 1 == len(histogram["others"]) + 1
    assert sum(histogram["own"]) == N_TEST
    assert sum(histogram["others"]) == N_TEST * (N_CLASSES - 1)
    own = model.energies(data.X_test)[np.arange(N_TEST), data.y_test]
    middle = (np.array(histogram["edges"][1:]) + histogram["edges"][:-1]) / 2
    assert np.average(middle, weights=histogram["own"]) == pytest.approx(own.mean(), abs=middle[1] - middle[0])
    assert cell["curves"]["fit"]["epoch"] == [1, 2, 3, 4, 5, 6, 7]
    assert cell["curves"]["fit"]["loss"] == cell["curves"]["fit"]["validation"]
    assert cell["curves"]["fit"]["loss"][3] == 0.25


def test_of_large_sets_a_profile_takes_some_rows(
    systems: Systems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "tenth", Profile("tenth", "", ("one",), seeds=1, search=False, every=10))
    whole = standin.load("one")
    repeated = np.arange(5003) % N_TEST
    parts = vars(whole) | {"X_test": whole.X_test[repeated], "y_test": whole.y_test[repeated]}
    monkeypatch.setattr(work, "load", lambda name, folder, source: Dataset(**parts))
    run(tmp_path, profile="tenth", systems=["plain"])
    cell = strict(tmp_path / "small/one/plain/seed0.json")
    assert (cell["n_test"], cell["test_slice"]) == (501, "one test row in 10, from the first on")
    np.testing.assert_array_equal(np.sum(cell["confusion"], 1), np.bincount(whole.y_test[repeated[::10]]))


# --- files and curves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_epochs", "every"), [(0, 1), (1, 1), (7, 1), (12, 3), (50, 4), (119, 1), (150, 2), (1000, 7)]
)
def test_curves_are_thinned_and_stay_in_place(n_epochs: int, every: int) -> None:
    checked = [epoch for epoch in range(1, n_epochs + 1) if epoch % every == 0 or epoch == n_epochs]
    history = History(
        loss=[torch.tensor([float(epoch), epoch + 2.0]) for epoch in range(1, n_epochs + 1)],
        validation=[torch.tensor([epoch / 2, epoch / 2]) for epoch in checked],
        validated=checked,
    )
    curve = vars(work.curve_of(history))
    assert len(curve["epoch"]) <= 100
    assert curve["epoch"] == sorted(set(curve["epoch"]))
    assert curve["loss"] == [epoch + 1 for epoch in curve["epoch"]]  # the mean over members
    validated = [(epoch, value) for epoch, value in zip(curve["epoch"], curve["validation"], strict=True) if value]
    assert bool(validated) == bool(n_epochs)
    if n_epochs < 100:
        assert [epoch for epoch, _ in validated] == checked
    assert all(value == epoch / 2 for epoch, value in validated)


def test_filters_are_grey_where_they_are_zero() -> None:
    found = work.as_filters(np.array([[0.0, 2.0, -2.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), np.array([0, 1]), (2, 2))
    assert found.pixels.shape == (2, 2, 2)
    assert found.pixels.ravel().tolist() == [128, 255, 1, 192, 128, 128, 128, 128]
    assert found.classes == [0, 1]


def test_energies_beyond_the_edges_are_counted() -> None:
    energies = np.concatenate([np.linspace(0, 1, 5000), [1e9, -1e9]])[:, None] + np.array([0.0, 3.0])
    found = work.histograms(energies, np.zeros(5002, dtype=int))
    assert found is not None
    assert sum(found.own) == sum(found.others) == 5002
    assert max(found.edges) < 5  # and do not stretch them
    same = work.histograms(np.full((4, 2), 7.0), np.zeros(4, dtype=int))
    assert same is not None
    assert sum(same.own) == 4


def test_files_are_strict_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"a": 1})
    assert path.read_text() == '{"a":1}\n'
    for content in ({"a": math.nan}, {"a": math.inf}, {"a": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, content)
    assert path.read_text() == '{"a":1}\n'
    assert [each.name for each in path.parent.iterdir()] == ["a.json"]
    for text in ("", "[1]", '{"a": 1', "null", '{"schema": 1}', '{"schema": 2}'):
        path.write_text(text)
        assert find_cell(path) is None
    path.write_bytes(b"\xff\xfe{}")
    assert find_cell(path) is None
    assert find_cell(tmp_path / "none.json") is None


def test_a_cell_read_and_written_again_is_the_same_file(systems: Systems, tmp_path: Path) -> None:
    systems["other"].before = lambda what, seed: 1 / seed if what == "fit" else 0  # one fails
    run(tmp_path, profile="search", data=["two"])
    written = sorted(tmp_path.rglob("seed*.json"))
    assert {strict(path)["status"] for path in written} == {"ok", "failed"}
    for path in written:
        cell = find_cell(path)
        assert cell is not None
        write_cell(tmp_path / "again.json", cell)
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    for path in tmp_path.rglob("search.json"):
        write_search(tmp_path / "again.json", read_search(read_file(path)))
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    for path in (tmp_path / "small").rglob("runs.jsonl"):
        for line in read_runs(path):
            note_run(tmp_path / "again.jsonl", line)
        assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


# --- the results that come along ----------------------------------------------------------------------------------

FILES = sorted(RESULTS.rglob("seed*.json"))


@pytest.mark.skipif(not FILES, reason="no results in this tree")
def test_the_results_that_come_along_are_consistent() -> None:
    for path in FILES:
        cell = strict(path)
        assert cell["schema"] == 1, path
        place = f"{cell['table']}/{cell['data']}/{cell['system']}/seed{cell['seed']}.json"
        assert str(path.relative_to(RESULTS)) == place
        assert cell["system"] in TABLES[cell["table"]].systems, path
        assert cell["published"] == TABLES[cell["table"]].published.get(cell["data"], {}).get(cell["system"]), path
        if cell["status"] != "ok":
            assert cell["error"], path
            continue
        confusion, n = np.array(cell["confusion"]), cell["n_test"]
        n_wrong = n - confusion.trace()
        assert confusion.sum() == n, path
        assert cell["test_error"] == pytest.approx(100 * n_wrong / n, abs=1e-3), path
        bits = np.unpackbits(np.frombuffer(base64.b64decode(cell["wrong"]), np.uint8))
        assert len(bits) == 8 * math.ceil(n / 8), path
        assert bits.sum() == n_wrong, path
        if cell["reliability"] is not None:
            assert sum(cell["reliability"]["count"]) == n, path
        if cell["search"] is not None:
            search = strict(path.parent / "search.json")
            assert cell["config"] == search["trials"][search["chosen"]]["config"], path
            assert cell["search"]["n_trials"] == len(search["trials"]) == len(search["space"]), path


@pytest.mark.skipif(not FILES, reason="no results in this tree")
def test_rows_that_come_along_are_the_same_for_all_systems() -> None:
    for data in {path.parent.parent for path in FILES}:
        cells = [cell for cell in map(strict, sorted(data.rglob("seed*.json"))) if cell["status"] == "ok"]
        keys = ("profile", "n_train", "n_valid", "n_test", "test_slice", "provenance")
        for key in keys:
            assert all(cell[key] == cells[0][key] for cell in cells), f"{data.name}: {key} differs"


@pytest.mark.skipif(not FILES, reason="no results in this tree")
def test_results_that_come_along_read_and_written_again_are_the_same_bytes() -> None:
    for path in sorted(RESULTS.rglob("*.json"))[::7]:
        if path.name != "search.json":
            notes: list[str] = []
            again = as_json(read_cell(read_file(path), notes))
            assert notes == []
            assert json.dumps(again, separators=(",", ":")) + "\n" == path.read_text(), path
