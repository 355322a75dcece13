"""The report on systems that give several labels, over random splits: its statistics, tables, pictures and words."""

import base64
import csv
import itertools
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from energate.paper.cell import Cell
from energate.paper.report import markdown_table, write_report
from energate.paper.report.comparing import compare, mark, refinements
from energate.paper.report.results import read_results
from energate.paper.report.statistics import Paired, corrected_t_p, lower_is_better, paired

#: Name, label, whether of this project, what it refines, by how much its error and its exact match are off the base's.
SYSTEMS = [
    ("logreg", "Logistic regression", False, "", 1.2, -4.0),
    ("svm", "SVM, Platt", False, "", 0.0, 0.0),
    ("mlp", "MLP <b>", False, "", 0.4, -1.0),
    ("xy", "GAES XY", True, "mlp", 0.9, 0.5),
    ("y2", "GAES Y2", True, "mlp", 0.41, 4.0),
    ("sets", "Sets, from the SVM", True, "svm", -0.6, 5.0),
]
DATA = [("yeast", "Yeast", 14, 18.5, 21.0), ("scene", "Scene", 6, 7.5, 69.0), ("many", "Many & more", 60, 3.0, 40.0)]
N_SPLITS = 10


def pack(values: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, np.uint8).tobytes()).decode()


def make_covariance(n: int, data: int, system: int) -> dict[str, Any]:
    rng = np.random.default_rng(data)
    true = rng.integers(60, 190, (n, n))
    true = (true + true.T) // 2
    np.fill_diagonal(true, 255)
    predicted = np.clip(128 + (true - 128) * (0.5 + 0.08 * system), 0, 255)
    return {
        "labels": [f"label <{i}>" for i in range(n)], "scale": 0.25, "true": pack(true), "predicted": pack(predicted),
    }  # fmt: skip


def make_cell(data: int, system: int, split: int) -> dict[str, Any]:
    """A cell as an experiment would write it; what is easy about a split is so for all systems."""
    name, label, ours, base, worse, exact = SYSTEMS[system]
    folder, data_label, n_labels, error, match = DATA[data]
    easy = np.random.default_rng([data, split]).normal()
    rng = np.random.default_rng([data, system, split, 5])
    found = error + worse + 0.4 * easy + 0.15 * rng.normal()
    trials = [
        {"config": {"n_hidden": size, "kind": "gated"}, "valid_error": found + 0.1 * i, "seconds": 2.0, "status": "ok",
         "valid_log_loss": 0.3 + 0.01 * i} for i, size in enumerate((100, 300, 1000))
    ]  # fmt: skip
    cell: dict[str, Any] = {
        "schema": 1, "table": "table2", "title": "Table 2", "profile": "full", "data": folder,
        "data_label": data_label, "system": name, "system_label": label, "seed": split, "repeat": "split",
        "metric": "mean per-label error", "order": {"data": data, "system": system}, "published": None,
        "ours": ours, "random": name != "svm", "status": "ok", "error": "",
        "classes": [f"label <{i}>" for i in range(n_labels)], "n_train": 800, "n_valid": 100, "n_test": 100 + split % 2,
        "test_error": found, "valid_error": found + 0.05 * rng.normal(), "test_log_loss": 0.3, "valid_log_loss": 0.29,
        "measures": {
            "exact_match": match + exact - 1.2 * easy + 0.8 * rng.normal(), "example_f1": 60 + exact + rng.normal(),
            "macro_f1": 40 + exact + rng.normal(), "micro_f1": 64 + exact + rng.normal(),
            "brier": 0.05 + 0.01 * worse + 0.001 * rng.normal(),
        },
        "trials": trials, "chosen": int(rng.integers(0, 2)) if ours else 0,
        "config": {"n_hidden": 300}, "seconds": {"fit": 4.0 + system, "predict": 0.1},
        "memory": {"host_peak_mib": 900.0},
        "provenance": {
            **dict.fromkeys(("train", "valid", "test"), "original"),
            "sha256": {"X_test": f"{data}-{split}", "y_test": f"y{data}-{split}"},
        },
        "versions": {"energate": "0.2.0"}, "device": "cpu", "date": "2026-11-15",
    }  # fmt: skip
    if base:
        gain = f"Refining gains {0.1 * split:.2f} points <em>on</em> 90 rows held out."
        cell |= {"base": base, "verdict": gain, "extra": {"gate": 0.1 * split, "n_steps": 3}}
    if split == 0:
        cell["covariance"] = make_covariance(n_labels, data, system)
    return cell


def put(folder: Path, cell: dict[str, Any]) -> None:
    path = folder / cell["table"] / cell["data"] / cell["system"] / f"split{cell['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cell), encoding="utf-8")


def make_results(folder: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    cells = {key: make_cell(*key) for key in itertools.product(range(3), range(6), range(N_SPLITS))}
    del cells[2, 3, 9]  # one split is still to come
    for cell in cells.values():
        put(folder, cell)
    return cells


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict[str, Path], str]:
    folder = tmp_path_factory.mktemp("labels")
    cells = make_results(folder / "results")
    paths = write_report(folder / "results", folder / "out")
    return folder / "results", cells, paths, paths["html"].read_text(encoding="utf-8")


def column(cells: dict, data: int, system: int, measure: str = "test_error") -> list[float]:
    found = [cells[data, system, k] for k in range(N_SPLITS) if (data, system, k) in cells]
    return [cell[measure] if measure == "test_error" else cell["measures"][measure] for cell in found]


def differences(cells: dict, data: int, first: int, second: int, measure: str = "test_error") -> list[float]:
    both = zip(column(cells, data, first, measure), column(cells, data, second, measure), strict=False)
    return [a - b for a, b in both]  # what is missing is the last one


# --- statistics --------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12).filter(lambda v: statistics.stdev(v) > 1e-3))
def test_without_shared_rows_p_is_that_of_a_plain_t_test(gaps: list[float]) -> None:
    if abs(statistics.mean(gaps)) > 1e-6:
        assert corrected_t_p(gaps, 0.0) == pytest.approx(stats.ttest_1samp(gaps, 0.0).pvalue, rel=1e-6, abs=1e-12)
    assert corrected_t_p(gaps, 0.125) >= corrected_t_p(gaps, 0.0) * (1 - 1e-9)
    assert corrected_t_p(gaps, 0.125) == corrected_t_p([-gap for gap in gaps], 0.125)


def test_shared_rows_make_p_larger_by_the_variance_of_nadeau_and_bengio() -> None:
    gaps = [0.3, -0.1, 0.4, 0.2, 0.1]
    t = statistics.mean(gaps) / math.sqrt(statistics.variance(gaps) * (1 / 5 + 100 / 800))
    assert corrected_t_p(gaps, 100 / 800) == pytest.approx(2 * stats.t.sf(t, 4))


def test_differences_without_spread_are_nothing_or_certain() -> None:
    assert corrected_t_p([0.0, 0.0, 0.0], 0.1) == 1.0
    assert corrected_t_p([1e-14, -1e-15], 0.1) == 1.0
    assert corrected_t_p([0.5, 0.5, 0.5], 0.1) == 0.0


def test_splits_are_paired_and_tested_split_by_split(made) -> None:
    folder, cells, _, _ = made
    (table,) = compare(read_results(folder))
    for data, (first, second) in itertools.product(range(3), [(2, 5), (3, 2)]):
        entries = table.rows[data].entries
        found = paired(entries[SYSTEMS[first][0]], entries[SYSTEMS[second][0]])
        gaps = differences(cells, data, first, second)
        assert found.gaps == pytest.approx(gaps)
        assert found.n_seeds == (9 if (data, first) == (2, 3) else 10)
        assert found.spread == pytest.approx(statistics.stdev(gaps))
        assert found.standard_error == pytest.approx(statistics.stdev(gaps) / math.sqrt(len(gaps)))
        ratio = statistics.mean((100 + k % 2) / 800 for k in range(len(gaps)))
        assert found.p == pytest.approx(corrected_t_p(gaps, ratio))
        assert found.only_first is None


def test_one_split_or_no_sizes_give_no_p(tmp_path: Path) -> None:
    for system in (1, 2):
        put(tmp_path, make_cell(0, system, 0))
    (table,) = compare(read_results(tmp_path))
    found = paired(table.rows[0].entries["svm"], table.rows[0].entries["mlp"])
    assert (found.p, found.why_not, found.n_seeds) == (None, "one split", 1)
    for system, split in itertools.product((1, 2), range(3)):
        put(tmp_path, {key: v for key, v in make_cell(0, system, split).items() if key != "n_train"})
    (table,) = compare(read_results(tmp_path))
    found = paired(table.rows[0].entries["svm"], table.rows[0].entries["mlp"])
    assert (found.p, found.why_not, found.n_seeds) == (None, "no record of the numbers of rows", 3)


@pytest.mark.parametrize(
    ("measure", "lower"),
    [("test_error", True), ("brier", True), ("ranking_loss", True), ("coverage_Error", True), ("exact_match", False),
     ("macro_f1", False), ("lossless", False)],
)  # fmt: skip
def test_errors_losses_and_brier_scores_are_better_when_low(measure: str, lower: bool) -> None:
    assert lower_is_better(measure) is lower


@pytest.mark.parametrize("measure", ["test_error", "exact_match", "brier"])
def test_the_best_of_each_measure_and_those_close_to_it(made, measure: str) -> None:
    folder, cells, _, _ = made
    (table,) = compare(read_results(folder))
    sign = -1 if measure == "exact_match" else 1
    for data, row in enumerate(table.rows):
        means = {s: sign * statistics.mean(column(cells, data, s, measure)) for s in range(6)}
        best = min(means, key=lambda s: means[s])
        assert row.standings[measure].best == [SYSTEMS[best][0]]
        close = {}
        for s in set(range(6)) - {best}:
            p = paired(row.entries[SYSTEMS[s][0]], row.entries[SYSTEMS[best][0]], measure).p
            if p is not None and p >= 0.05:
                close[SYSTEMS[s][0]] = p
        assert row.standings[measure].close == close
    assert table.measures[0] == "exact_match"


# --- refined against base ----------------------------------------------------------------------------------------


def test_refined_systems_are_set_against_their_own_base(made) -> None:
    folder, cells, _, text = made
    (table,) = compare(read_results(folder))
    found = refinements(table)
    assert [(each.row.data, each.system, each.base) for each in found] == [
        (data, system, base)
        for data, *_ in DATA
        for system, base in (("xy", "mlp"), ("y2", "mlp"), ("sets", "svm"))
    ]  # fmt: skip
    for i, each in enumerate(found):
        data, system = divmod(i, 3)
        first, second = ((3, 2), (4, 2), (5, 1))[system]
        for measure, shift in (("test_error", 1), ("exact_match", -1)):
            gaps = differences(cells, data, first, second, measure)
            gap = each.gaps[measure]
            assert gap.difference == pytest.approx(statistics.mean(gaps))
            better, worse = sum(shift * g < 0 for g in gaps), sum(shift * g > 0 for g in gaps)
            assert gap.counts(measure) == (better, len(gaps) - better - worse, worse)
            assert f"<td>{better} / {len(gaps) - better - worse} / {worse}</td>" in text
    assert "Refined against base" in text
    assert 'id="refined-0"' in text


@pytest.mark.parametrize(
    ("gaps", "measure", "word"),
    [
        ([-1.0, -1.2, -0.8], "test_error", "better"),
        ([-1.0, -1.2, -0.8], "exact_match", "worse"),
        ([1.0, 1.2, 0.8], "exact_match", "better"),
        ([0.3, -0.1], "test_error", ""),  # 0.1 ± 0.2
        ([0.5, 0.1], "test_error", "worse"),  # 0.3 ± 0.2: more than one standard error
        ([0.5, 0.1], "exact_match", ""),  # and not more than two
        ([0.0, 0.0], "test_error", ""),
        ([-5.0], "test_error", ""),  # one repeat has no spread
        ([], "test_error", ""),
    ],
)
def test_better_by_two_standard_errors_or_worse_by_one_is_marked(gaps: list[float], measure: str, word: str) -> None:
    assert mark(Paired(gaps), measure) == word


def test_equal_results_are_counted_as_equal() -> None:
    assert Paired([0.0, 1e-13, -0.5, 0.25]).counts("test_error") == (1, 2, 1)
    assert Paired([0.0, 1e-13, -0.5, -0.25]).counts("exact_match") == (0, 2, 2)


def test_marks_are_counted_over_data_sets(made) -> None:
    folder, _, _, text = made
    (table,) = compare(read_results(folder))
    found = refinements(table)
    start = text.index("On how many data sets")
    rows = text[start : text.index("</table>", start)].split("<tr>")[2:]
    assert len(rows) == 3
    for row, system in zip(rows, ("xy", "y2", "sets"), strict=True):
        counts = ["3"]
        for measure in ("test_error", "exact_match"):
            marks = [mark(each.gaps[measure], measure) for each in found if each.system == system]
            counts += [str(marks.count("better")), str(marks.count("worse"))]
        assert row.count("<td>") == 5
        assert "".join(f"<td>{count}</td>" for count in counts) in row
    assert "<td>3</td><td>3</td><td>0</td><td>3</td><td>0</td>" in rows[2]  # the sets were made to be better


def test_a_base_that_was_not_run_is_said(tmp_path: Path) -> None:
    for split in range(2):
        put(tmp_path, make_cell(0, 4, split))
        put(tmp_path, make_cell(0, 5, split) | {"base": "sets"})  # itself: no base
    text = write_report(tmp_path, tmp_path / "out")["html"].read_text("utf-8")
    assert "no results of mlp" in text
    assert text.count("Sets, from the SVM</td>") == 0
    put(tmp_path, make_cell(0, 2, 0) | {"status": "failed", "error": "out of memory"})
    assert "no results of MLP &lt;b&gt;" in write_report(tmp_path, tmp_path / "out")["html"].read_text("utf-8")


def test_nothing_is_marked_where_results_are_not_comparable(tmp_path: Path) -> None:
    for system, split in itertools.product((1, 5), range(4)):
        put(tmp_path, make_cell(0, system, split))
    assert "<strong>better</strong>" in write_report(tmp_path, tmp_path / "out")["html"].read_text("utf-8")
    put(tmp_path, make_cell(0, 5, 0) | {"profile": "quick"})
    assert "<strong>better</strong>" not in write_report(tmp_path, tmp_path / "out")["html"].read_text("utf-8")


# --- words, tables, pictures -------------------------------------------------------------------------------------


def test_the_page_speaks_of_splits_labels_and_its_metric(made) -> None:
    text = made[3]
    assert "Table 2: mean per-label errors" in text
    assert "Mean per-label error in percent: mean ± sample standard deviation over 10 splits." in text
    assert "Nadeau and Bengio" in text
    assert "9 of 10 splits" in text
    assert "14 labels" in text
    assert "100 to 101 test rows" in text
    assert "Not comparable" not in text
    assert "in points of mean per-label error" in text
    for word in ("seed", "test error", "classes"):
        assert word not in text


def test_a_title_that_names_the_metric_says_it_once(tmp_path: Path) -> None:
    put(tmp_path, make_cell(0, 1, 0) | {"title": "Labels: mean per-label error"})
    assert "<h2>Labels: mean per-label error</h2>" in write_report(tmp_path, tmp_path)["html"].read_text("utf-8")


def test_reliability_is_that_of_labels(tmp_path: Path) -> None:
    bins = {"count": [5, 3], "confidence": [10.0, 80.0], "accuracy": [12.0, 70.0], "ece": 4.0}
    put(tmp_path, make_cell(0, 1, 0) | {"reliability": bins})
    text = write_report(tmp_path, tmp_path)["html"].read_text("utf-8")
    assert "how often a label is there, in percent" in text
    assert "All splits together" in text
    assert "probability, %" in text
    assert "confidence" not in text.replace("a confidence of 90 %", "")


def test_a_system_that_is_not_random_still_needs_every_split(tmp_path: Path) -> None:
    for system, split in itertools.product((1, 2), range(3)):
        put(tmp_path, make_cell(0, system, split))
    assert "of 3 splits" not in markdown_table(tmp_path)
    (tmp_path / "table2" / "yeast" / "svm" / "split1.json").unlink()
    assert "2 of 3 splits" in markdown_table(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_train": 799}, "different numbers of training rows"),
        ({"provenance": {"sha256": {"X_test": "other"}}}, "different rows (by their hashes)"),
        ({"repeat": "seed"}, "different things repeated"),
        ({"metric": "test error"}, "different kinds of error"),
    ],
)
def test_within_a_split_all_systems_must_have_the_same_rows(tmp_path: Path, changes: dict, words: str) -> None:
    for system, split in itertools.product((1, 2), range(3)):
        put(tmp_path, make_cell(0, system, split))
    assert "⚠" not in markdown_table(tmp_path)  # though the splits have other rows
    put(tmp_path, make_cell(0, 2, 1) | changes)
    shown = markdown_table(tmp_path)
    assert "⚠" in shown
    assert words in shown
    assert "**" not in shown


def test_every_measure_has_a_table(made) -> None:
    _, cells, _, text = made
    for measure, name, digits in (("exact_match", "Exact match, %", 2), ("macro_f1", "Macro F1, %", 2),
                                  ("brier", "Brier score", 4)):  # fmt: skip
        start = text.index(f"<span>{name}: mean")
        table = text[start : text.index("</table>", start)]
        assert ("highest" if measure != "brier" else "lowest") in table
        assert table.count("<strong>") == 3
        for data, system in itertools.product(range(3), range(6)):
            found = column(cells, data, system, measure)
            assert f"{statistics.mean(found):.{digits}f} ± {statistics.stdev(found):.{digits}f}" in table


def test_a_measure_that_a_system_lacks_is_said(tmp_path: Path) -> None:
    for system, split in itertools.product((1, 2), range(3)):
        put(tmp_path, make_cell(0, system, split) | ({"measures": {}} if system == 2 else {}))
    assert markdown_table(tmp_path).count("not measured") == 1


def test_markdown_has_the_error_and_exact_match(made) -> None:
    folder, cells, paths, _ = made
    text = markdown_table(folder)
    assert text == paths["markdown"].read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 * 4
    errors, matches = column(cells, 1, 5), column(cells, 1, 5, "exact_match")
    assert f"**{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}** |" in lines[2]
    assert f"**{statistics.mean(matches):.2f} ± {statistics.stdev(matches):.2f}** |" in lines[6]
    assert text.index("Exact match, %") < text.index(lines[5])  # a table stands below its name


def test_the_csv_has_a_column_for_each_measure(made) -> None:
    _, cells, paths, _ = made
    with open(paths["csv"], encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, strict=True))
    assert len(lines) == len(cells)
    for line, (_, cell) in zip(lines, sorted(cells.items()), strict=True):
        assert (line["system"], line["repeat"], line["metric"]) == (cell["system"], "split", "mean per-label error")
        assert line["base"] == cell.get("base", "")
        assert {key: float(line[key]) for key in cell["measures"]} == cell["measures"]


def test_a_measure_takes_no_other_column(tmp_path: Path) -> None:
    put(tmp_path, make_cell(0, 0, 0) | {"measures": {"system": 3.0, "file": 2.0, "base": 1.0, "hits": 7.0}})
    with open(write_report(tmp_path, tmp_path / "out")["csv"], encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        (line,) = reader
    assert (line["system"], line["file"], line["hits"]) == ("logreg", "table2/yeast/logreg/split0.json", "7.0")
    assert len(set(reader.fieldnames or [])) == len(reader.fieldnames or [])


def read_cell(folder: Path, **changes: Any) -> tuple[Cell, list[str]]:
    put(folder, make_cell(0, 5, 0) | changes)
    found = read_results(folder)
    return found.cells[0], found.notes


def test_covariances_are_decoded_and_drawn_on_one_scale(made, tmp_path: Path) -> None:
    cell, notes = read_cell(
        tmp_path, covariance={"labels": ["a", "b"], "scale": 0.5, "true": pack([1, 128, 128, 255]),
                              "predicted": pack([128, 255, 64, 0])},
    )  # fmt: skip
    assert notes == []
    assert cell.covariance is not None
    np.testing.assert_allclose(cell.covariance.true, [[-0.5, 0], [0, 0.5]])
    np.testing.assert_allclose(cell.covariance.predicted, [[0, 0.5], [-0.5 * 64 / 127, -0.5 * 128 / 127]])
    page = write_report(tmp_path, tmp_path / "out")["html"].read_text("utf-8")
    assert f"Sets, from the SVM: {(0.5 + 0.5 * 64 / 127) / 2:.3f} away" in page
    assert "full colour from ±0.5 on" in page
    text = made[3]
    assert text.count("<img ") == 3 * (1 + 6)
    assert text.count("true labels, split 0: which labels go together") == 3
    assert "Labels, in their order: label &lt;0&gt;, label &lt;1&gt;" in text


def test_configurations_are_counted(made) -> None:
    _, cells, _, text = made
    picked = [cells[0, 5, k]["chosen"] for k in range(N_SPLITS)]
    assert set(picked) == {0, 1}
    assert "Chosen in 10 splits: 2 of 3 configurations" in text
    assert "Chosen in 10 splits: 1 of 3 configurations" in text
    section = text[text.index("<h4>Sets, from the SVM</h4>") :]
    rows = section[section.index("<tbody>") : section.index("</tbody>")].split("<tr>")[1:]
    shown = {
        row.partition("n_hidden = ")[2].partition("<")[0]: row.partition("<td>")[2].partition("<")[0] for row in rows
    }
    assert shown == {"100": str(picked.count(0)), "300": str(picked.count(1)), "1000": "0"}
    assert "kind = gated" not in section  # all have it in common


def test_time_of_trials_counts_in_every_split(made) -> None:
    start = made[3].index("Where the time goes")
    assert made[3][start:].count("<td>3.0 min</td>") >= 5  # 3 trials of 2 s, 10 splits, 3 data sets


def test_verdicts_stand_with_gate_and_steps(made) -> None:
    text = made[3]
    assert text.count("points &lt;em&gt;on&lt;/em&gt; 90 rows held out.") == 3 * 3 * N_SPLITS - 1
    assert "<td>4</td><td>0.40</td><td>3</td>" in text


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("repeat", "day"), ("repeat", ["split"]), ("metric", 3), ("base", 1), ("measures", {"f1": "high"}),
        ("measures", [1]), ("verdict", {}), ("trials", {"config": {}}), ("trials", [{"config": 3}]), ("chosen", 3),
        ("chosen", -1), ("covariance", {"labels": ["a"], "scale": 0, "true": pack([1]), "predicted": pack([1])}),
        ("covariance", {"labels": ["a"], "scale": 1, "true": pack([1, 2]), "predicted": pack([1])}),
        ("covariance", {"labels": [], "scale": 1, "true": "", "predicted": ""}),
        ("covariance", make_covariance(61, 0, 0)),
    ],
)  # fmt: skip
def test_a_part_that_does_not_fit_is_left_out_and_named(tmp_path: Path, part: str, value: Any) -> None:
    _, notes = read_cell(tmp_path, **{part: value})
    assert any(note.startswith(f"table2/yeast/sets/split0.json: shown without `{part}`") for note in notes)
    write_report(tmp_path, tmp_path / "out")


NEW = ("repeat", "metric", "base", "measures", "verdict", "covariance", "trials", "chosen", "extra")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.sampled_from(["AAAA", "split", "seed", "svm", 10**400, -1]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["exact_match", "brier", "config", "labels", "scale"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(NEW), JSON, max_size=4))
def test_no_content_stops_the_report(tmp_path: Path, changes: dict[str, Any]) -> None:
    put(tmp_path, make_cell(0, 5, 0) | changes)
    for system, split in itertools.product((1, 4), range(2)):
        put(tmp_path, make_cell(0, system, split))
    paths = write_report(tmp_path, tmp_path / "out")
    assert "</html>" in paths["html"].read_text("utf-8")


def test_neither_torch_nor_sklearn_is_imported_and_bytes_are_the_same(made, tmp_path: Path) -> None:
    code = (
        "import sys; from energate.paper.report import write_report; "
        "write_report(sys.argv[1], sys.argv[2]); assert not {'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(made[0]), str(tmp_path)], check=True)
    for path in made[2].values():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


if __name__ == "__main__":  # a page to look at: python tests/test_report_labels.py FOLDER
    make_results(Path(sys.argv[1]) / "results")
    print(write_report(Path(sys.argv[1]) / "results", sys.argv[1]))
