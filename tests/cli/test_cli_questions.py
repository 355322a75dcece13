"""`energate impute`, `audit`, `drift`, `explain --why`, and levels of `predict` and `score`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from test_cli_models import call, flowers, refused

from energate import load


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of flowers, and models of it with rows kept apart."""
    folder = tmp_path_factory.mktemp("questions")
    (folder / "flowers.csv").write_text(flowers(240))
    table = folder / "flowers.csv"
    quick = ("--units", "memory", "--device", "cpu", "--calibration", "0.4")
    call("fit", table, "--target", "kind", "-o", folder / "classes.zip", *quick)
    call("fit", table, "--task", "anomaly", "--drop", "kind", "-o", folder / "scorer.zip", *quick)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_calibration_rows_are_kept_apart(shelf: Path) -> None:
    result = call(
        "fit", shelf / "flowers.csv", "--target", "kind", "-o", shelf / "again.zip", "--units", "memory",
        "--calibration", "0.25", "--refit", "--json",
    )  # fmt: skip
    found = json.loads(result.stdout)
    assert found["trained_on"] == 180
    assert any("60 rows were kept apart" in note for note in found["notes"])
    assert len(load(shelf / "again.zip").calibration_energies_) == 60


def test_predict_says_sets_strangeness_and_what_to_reject(shelf: Path) -> None:
    out = shelf / "predicted.csv"
    call("predict", shelf / "classes.zip", shelf / "flowers.csv", "-o", out, "--alpha", "0.1", "--reject", "0.02")
    rows = rows_of(out)
    assert {"p_value", "set_iris", "set_rose", "set_tulip", "reject"} <= rows[0].keys()
    assert np.mean([row[f"set_{row['kind']}"] == "1" for row in rows]) > 0.85
    assert all((float(row["p_value"]) <= 0.02) == (row["reject"] == "1") for row in rows)
    text = refused("predict", shelf / "classes.zip", shelf / "flowers.csv", "-o", out, "--alpha", "0.001")
    assert "takes at least 999 calibration rows" in text
    assert "`alpha` is no level" in refused("predict", shelf / "scorer.zip", shelf / "flowers.csv", "--alpha", "0.1")


def test_score_finds_strange_rows_at_a_false_discovery_rate(shelf: Path) -> None:
    lines = flowers(60).splitlines()
    odd = [line.replace(line.split(",")[3], "40") for line in lines[1:9]]
    (shelf / "odd.csv").write_text("\n".join([*lines, *odd]) + "\n")
    out = shelf / "scored.csv"
    call("score", shelf / "scorer.zip", shelf / "odd.csv", "-o", out, "--fdr", "0.2")
    rows = rows_of(out)
    assert [row["discovery"] for row in rows[-8:]] == 8 * ["1"]
    assert sum(row["discovery"] == "1" for row in rows[:-8]) <= 4
    call("score", shelf / "scorer.zip", shelf / "odd.csv", "-o", out, "--no-p-values")
    assert "p_value" not in rows_of(out)[0]


def test_impute_fills_holes_and_nothing_else(shelf: Path) -> None:
    out = shelf / "whole.csv"
    result = call("impute", shelf / "flowers.csv", "-o", out, "--device", "cpu", "--json")
    before, after = rows_of(shelf / "flowers.csv"), rows_of(out)
    assert set(json.loads(result.stdout)["filled"]) == {"size", "colour"}
    for old, new in zip(before, after, strict=True):
        assert all(new.values())
        assert all(new[name] == value for name, value in old.items() if value)
    assert {row["colour"] for row in after} == {"red", "blue", "white"}
    assert "not overwritten" in refused("impute", out, "-o", out)


def test_impute_keeps_what_it_has_learned(shelf: Path) -> None:
    filler, first, again = shelf / "filler.zip", shelf / "first.csv", shelf / "again.csv"
    lines = (shelf / "flowers.csv").read_text().splitlines()  # dates are several numbers, and stay as they are
    dated = [f"2024-01-{1 + i % 28:02}," + line if i else "day," + line for i, line in enumerate(lines)]
    (shelf / "dated.csv").write_text("\n".join(dated) + "\n")
    call("impute", shelf / "dated.csv", "-o", first, "--save", filler, "--device", "cpu")
    call("impute", shelf / "dated.csv", "-o", again, "--model", filler, "--device", "cpu")
    assert rows_of(again) == rows_of(first)
    assert all(all(row.values()) for row in rows_of(first))
    assert {row["colour"] for row in rows_of(first)} == {"red", "blue", "white"}
    assert [row["day"] for row in rows_of(first)] == [row["day"] for row in rows_of(shelf / "dated.csv")]
    assert "leave out --fit-on" in refused("impute", first, "-o", again, "--model", filler, "--fit-on", first)
    assert "is no EnergyImputer" in refused("impute", first, "-o", again, "--model", shelf / "scorer.zip")
    assert "energate impute DATA --model filler.zip" in refused("predict", filler, first, "-o", again)


def test_audit_ranks_wrong_labels_first(shelf: Path) -> None:
    random = np.random.default_rng(0)
    kinds = [("iris", "rose", "tulip")[i % 3] for i in range(120)]
    sizes = random.normal(np.arange(120)[:, None] % 3, 0.2, (120, 2))
    kinds[0] = kinds[30] = kinds[60] = "tulip"
    lines = [f"{a:.3f},{b:.3f},{kind}" for (a, b), kind in zip(sizes, kinds, strict=True)]
    (shelf / "wrong.csv").write_text("\n".join(["size,width,kind", *lines]) + "\n")
    result = call("audit", shelf / "wrong.csv", "--target", "kind", "--top", "6", "--device", "cpu", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert {1, 31, 61} <= {row["row"] for row in rows}
    assert next(row for row in rows if row["row"] == 31)["suggested"] == "iris"
    assert "no column 'nothing'" in refused("audit", shelf / "wrong.csv", "--target", "nothing")
    assert "suggested" in call("audit", shelf / "wrong.csv", "--target", "kind", "--device", "cpu").stdout


def test_drift_has_an_exit_code(shelf: Path) -> None:
    (shelf / "same.csv").write_text(flowers(120, seed=5))
    assert "no drift seen" in call("drift", shelf / "scorer.zip", shelf / "same.csv", "--alpha", "0.001").stdout
    rows = [line.split(",") for line in flowers(60, seed=3).splitlines()]
    moved = [rows[0], *([*row[:3], f"{float(row[3]) + 4}", *row[4:]] for row in rows[1:])]
    (shelf / "moved.csv").write_text("\n".join(map(",".join, moved)).replace('"well, well"', "plain") + "\n")
    result = call("drift", shelf / "scorer.zip", shelf / "moved.csv", "--json", code=3)
    found = json.loads(result.stdout)
    assert found["drifted"]
    assert found["columns"][0]["column"] == "width"


def test_explain_says_why_and_what_to_change(shelf: Path) -> None:
    result = call("explain", shelf / "classes.zip", shelf / "flowers.csv", "--row", "2", "--why", "--change", "--json")
    found = json.loads(result.stdout)
    assert 0 < found["p_value"] <= 1
    assert len(found["why"]["columns"]) >= 2
    assert found["change"]["found"]
    assert found["change"]["columns"]
    text = call("explain", shelf / "classes.zip", shelf / "flowers.csv", "--why", "--change", "--to", "tulip").stdout
    assert "to become tulip" in text
    assert "why: energy" in text
    assert "must be one of iris" in refused(
        "explain", shelf / "classes.zip", shelf / "flowers.csv", "--change", "--to", "oak"
    )
    assert "to become normal" in call("explain", shelf / "scorer.zip", shelf / "flowers.csv", "--change").stdout


def test_importance_names_the_columns_that_count(shelf: Path) -> None:
    picture = shelf / "columns.svg"
    asked = ("importance", shelf / "classes.zip", shelf / "flowers.csv", "--rows", "40")
    said = call(*asked, "-o", picture)
    assert "<svg" in picture.read_text()
    found = json.loads(
        call("importance", shelf / "classes.zip", shelf / "flowers.csv", "--rows", "40", "--json").stdout
    )
    counts = [each["importance"] for each in found["columns"]]
    assert found["rows"] == 40
    assert counts == sorted(counts, reverse=True)
    assert sum(each["share"] for each in found["columns"]) == pytest.approx(1.0)
    assert found["columns"][0]["column"] in said.stdout
    assert call("importance", shelf / "scorer.zip", shelf / "flowers.csv", "--top", "2").exit_code == 0
    assert "must be a .png, .pdf or .svg file" in refused(
        "importance", shelf / "classes.zip", shelf / "flowers.csv", "-o", shelf / "columns.txt"
    )
