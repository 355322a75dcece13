"""The report on experiments: its numbers, its statistics, its page, and what it does with files it cannot use."""

import base64
import csv
import html.parser
import io
import itertools
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from energate.errors import InputError, MissingExtraError
from energate.paper.report import markdown_table, write_report
from energate.paper.report.comparing import compare
from energate.paper.report.pictures import curve_chart, png
from energate.paper.report.results import read_results
from energate.paper.report.statistics import paired, sign_flip_p

DIGITS = load_digits()
SYSTEMS = [
    ("svm", "SVM", False, 8.0),
    ("rbm", "RBM <b>", False, 9.5),
    ("aes", "AES", True, 7.0),
    ("caes", "cAES", True, 6.8),
]
DATA = [
    ("mnist-small", "mnist-small", "exact rebuild"),
    ("rechtecke-ü", "Rechtecke ü | 日本", "generated"),
    ("x&y", "x & y", "surrogate"),
]
N_TEST = 1003  # not a multiple of 8


def pack(values: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, np.uint8).tobytes()).decode()


def unpack(text: str) -> np.ndarray:
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:N_TEST]


def make_cell(data: int, system: int, seed: int, n_test: int = N_TEST) -> dict[str, Any]:
    """A cell as an experiment would write it, with wrong rows drawn at the system's rate."""
    rng = np.random.default_rng([data, system, seed, 7])
    name, label, ours, rate = SYSTEMS[system]
    true = np.resize(DIGITS.target, n_test)
    hard = np.random.default_rng(data).random(n_test)  # rows are as hard for one system as for another
    wrong = 0.7 * hard + 0.3 * rng.random(n_test) < (rate + 3 * data) / 100 * 2.5
    predicted = np.where(wrong, (true + rng.integers(1, 10, n_test)) % 10, true)
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (true, predicted), 1)
    count = rng.integers(0, 30, 10)
    count[0] = 0
    middles = np.arange(10) * 10 + 5.0
    edges = np.linspace(-40, 20, 31)
    filters = (128 + 127 * np.clip(rng.normal(0, 0.3, (20, 8, 8)), -1, 1)).astype(np.uint8)
    epochs = list(range(1, 41))
    falling = [float(3 * math.exp(-e / 10) + 0.05 * rng.random()) for e in epochs]
    cell: dict[str, Any] = {
        "schema": 1, "table": "table1", "title": "Table 1", "profile": "full", "data": DATA[data][0],
        "data_label": DATA[data][1], "system": name, "system_label": label, "seed": seed,
        "order": {"data": data, "system": system},
        "published": None if system == 3 and data == 2 else rate + 0.25,
        "ours": ours, "status": "ok", "error": "", "classes": list(range(10)), "shape": [8, 8],
        "n_train": 1000, "n_valid": 200, "n_test": n_test, "test_slice": None,
        "test_error": 100 * float(wrong.mean()),
        "valid_error": rate + 0.1 * seed,
        "test_log_loss": 0.3 if system else None, "valid_log_loss": 0.25 if system else None,
        "confusion": confusion.tolist(),
        "wrong": pack(np.packbits(wrong)),
        "reliability": {
            "count": count.tolist(),
            "confidence": [float(m) if n else None for m, n in zip(middles, count, strict=True)],
            "accuracy": [float(m - rng.random()) if n else None for m, n in zip(middles, count, strict=True)],
            "ece": float(rng.random() * 3),
        } if system else None,
        "energies": {
            "edges": edges.tolist(),
            "own": np.histogram(rng.normal(0, 4, 500), edges)[0].tolist(),
            "others": np.histogram(rng.normal(-14, 6, 4500), edges)[0].tolist(),
        } if ours else None,
        "curves": {
            "pretrain": {"epoch": epochs, "loss": falling, "validation": []},
            "fine-tune": {"epoch": epochs, "loss": falling, "validation": [v + 0.2 for v in falling]},
        } if system else {},
        "extra": {"members": [8.0, 8.5, 9.0, 8.25], "calibrated_only": 11.5} if ours else {},
        "config": {"n_hidden": 300, "noise": "masking", "rates": [0.1, 0.2]},
        "search": {"n_trials": 12, "seconds": 21.0, "chosen_by": "validation log-loss"} if system == 2 else None,
        "seconds": {"fit": 8.0 + seed, "predict": 0.5}, "memory": {"device_peak_mib": None, "host_peak_mib": 2100.0},
        "provenance": {
            **dict.fromkeys(("train", "valid", "test"), DATA[data][2]),
            "source": "folder", "files": {"a.zip": "ab" * 32}, "seed": None,
            "sha256": dict.fromkeys(("X_train", "y_train", "X_test", "y_test"), f"{data:064x}"),
        },
        "versions": {"energate": "0.1.0", "torch": "2.9", "numpy": "2.3", "python": "3.12"},
        "device": "NVIDIA H200", "date": f"2026-11-1{seed}",
    }  # fmt: skip
    if seed == 0:
        cell["mistakes"] = [
            {"row": int(i), "true": int(true[i]), "predicted": int(predicted[i]), "confidence": 0.9,
             "pixels": pack(DIGITS.images[i] * 15.9)} for i in np.flatnonzero(wrong)[:12]
        ]  # fmt: skip
        if ours:
            item = {"shape": [8, 8], "n": 20, "pixels": pack(filters), "classes": [i // 2 for i in range(20)]}
            cell["filters"] = {"mean": item} if system == 2 else {"mean": item, "covariance": item}
    return cell


SEARCH = {
    "schema": 1, "data": "mnist-small", "system": "caes", "chosen": 1, "chosen_by": "validation log-loss",
    "trials": [
        {"config": {"a": 1, "b": 5}, "valid_log_loss": 0.4, "valid_error": 3.0, "seconds": 5.0, "status": "ok"},
        {"config": {"a": 2, "b": 5}, "valid_log_loss": 0.2, "valid_error": 2.0, "seconds": 6.0, "status": "ok"},
        {"config": {"a": 3, "b": 5}, "seconds": 1.0, "status": "failed", "error": "<boom>"},
    ],
    "seconds": 12.0, "device": "NVIDIA H200", "date": "2026-11-15",
}  # fmt: skip


def path_of(folder: Path, cell: dict[str, Any]) -> Path:
    path = folder / cell["table"] / cell["data"] / cell["system"] / f"seed{cell['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def make_results(folder: Path, n_test: int = N_TEST) -> dict[tuple[int, int, int], dict[str, Any]]:
    """Three data sets, four systems, three seeds; one cell failed, one system not run on the last data set."""
    cells = {}
    for d, s, seed in itertools.product(range(3), range(4), range(3)):
        cell = make_cell(d, s, seed, n_test)
        if (d, s) == (2, 1):
            continue
        if (d, s, seed) == (1, 3, 2):
            cell = {key: cell[key] for key in list(cell)[: list(cell).index("status")]} | {
                "status": "failed", "error": "InputError: <script>alert('ü')</script>", "seconds": {"fit": 1.0},
                "versions": cell["versions"], "device": cell["device"],
            }  # fmt: skip
        path_of(folder, cell).write_text(json.dumps(cell), encoding="utf-8")
        cells[d, s, seed] = cell
    (folder / "table1" / "mnist-small" / "caes" / "search.json").write_text(json.dumps(SEARCH))
    return cells


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict[str, Path], str]:
    folder = tmp_path_factory.mktemp("report")
    cells = make_results(folder / "results")
    paths = write_report(folder / "results", folder / "out")
    return folder / "results", cells, paths, paths["html"].read_text(encoding="utf-8")


def errors_of(cells: dict, d: int, s: int) -> list[float]:
    return [cells[d, s, k]["test_error"] for k in range(3) if cells.get((d, s, k), {}).get("status") == "ok"]


def lines_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


class Page(html.parser.HTMLParser):
    """Tags, attributes, text and tables of a page; unbalanced tags are an error."""

    VOID = ("meta", "img", "br", "path", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data + (" " if "small" in self.open else "")


# --- numbers -----------------------------------------------------------------------------------------------------


def test_the_headline_has_mean_spread_and_the_papers_figure(made) -> None:
    _, cells, _, text = made
    rows = Page(text).tables[0]
    assert rows[0] == ["data set", "SVM", "RBM <b>", "AES", "cAES"]
    for d, s in itertools.product(range(3), range(4)):
        errors = errors_of(cells, d, s)
        shown = rows[1 + d][1 + s]
        if not errors:
            assert shown == "not run"
            continue
        assert f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}" in shown
        published = cells[d, s, 0]["published"]
        assert ("paper" in shown) == (published is not None)
        assert published is None or f"paper {published:.2f}" in shown
    assert "2 of 3 seeds" in rows[2][4]
    assert "1 failed" in rows[2][4]
    assert [row[0] for row in rows[1:]] == [f"{label}{word} " for _, label, word in DATA]


def test_the_best_is_marked_and_so_are_those_not_significantly_worse(made) -> None:
    folder, cells, _, text = made
    bold = re.findall(r'class="best".*?<strong>([\d.]+)', text)
    (table,) = compare(read_results(folder))
    assert len(bold) == 3
    for d, row in enumerate(table.rows):
        means = {
            name: statistics.mean(errors_of(cells, d, s))
            for s, (name, *_) in enumerate(SYSTEMS) if (d, s, 0) in cells
        }  # fmt: skip
        best = min(means, key=lambda name: means[name])
        assert row.standing().best == [best]
        assert bold[d] == f"{means[best]:.2f}"
        ps = {name: paired(row.entries[name], row.entries[best]).p for name in means if name != best}
        assert row.standing().close == {name: p for name, p in ps.items() if p >= 0.05}
    assert any(row.standing().close for row in table.rows)
    assert any(len(row.standing().close) < len(row.entries) - 1 for row in table.rows)


def test_equal_means_are_both_the_best(tmp_path: Path) -> None:
    for s, seed in itertools.product((2, 3), range(3)):
        errors = {2: (0.1, 0.2, 0.8), 3: (0.1, 0.3, 0.7)}[s]  # the means differ in the last digit
        cell = make_cell(0, s, seed) | {"test_error": errors[seed], "wrong": None, "confusion": None}
        path_of(tmp_path, cell).write_text(json.dumps(cell))
    (table,) = compare(read_results(tmp_path))
    assert table.rows[0].standing().best == ["aes", "caes"]


def test_systems_that_stand_apart_are_neither_the_best_nor_the_reference(tmp_path: Path) -> None:
    cells = make_results(tmp_path)
    for (_, s, _), cell in cells.items():
        if s == 3:  # the best of ours
            cell["apart"] = "it sees the grid"
            path_of(tmp_path, cell).write_text(json.dumps(cell))
    tables = compare(read_results(tmp_path))
    assert all("caes" not in [*row.standing().best, *row.standing().close, row.reference] for row in tables[0].rows)
    assert {row.reference for row in tables[0].rows} == {"aes"}
    assert "Not among the compared: cAES (it sees the grid)." in markdown_table(tmp_path)


def test_a_system_that_is_not_random_needs_one_seed(tmp_path: Path) -> None:
    for seed in range(3):
        for s in (0, 2, 3):
            cell = make_cell(0, s, seed) | {"random": s != 0}
            if s or seed == 0:
                path_of(tmp_path, cell).parent.mkdir(parents=True, exist_ok=True)
                path_of(tmp_path, cell).write_text(json.dumps(cell))
    assert "seeds |" not in markdown_table(tmp_path)
    path_of(tmp_path, make_cell(0, 2, 1)).unlink()
    assert "2 of 3 seeds |" in markdown_table(tmp_path)


def test_the_reference_is_chosen_by_validation_among_ours(made) -> None:
    (table,) = compare(read_results(made[0]))
    assert {row.reference for row in table.rows} == {"caes"}
    assert "lowest mean validation error of this project" in made[3]


def test_a_validation_error_and_not_a_test_error_makes_the_reference(tmp_path: Path) -> None:
    for s, valid in ((0, 0.5), (2, 1.0), (3, 9.0)):
        cell = make_cell(0, s, 0) | {"valid_error": valid}
        path_of(tmp_path, cell).write_text(json.dumps(cell))
    (table,) = compare(read_results(tmp_path))
    assert table.rows[0].reference == "aes"  # svm is lower, and not ours; caes is lower on test rows


def test_differences_are_paired_by_seed_and_row(made) -> None:
    folder, cells, _, text = made
    (table,) = compare(read_results(folder))
    for d, (name, first, second) in itertools.product(range(2), [("svm", 0, 3), ("aes", 2, 3)]):
        seeds = [k for k in range(3) if cells[d, first, k]["status"] == cells[d, second, k]["status"] == "ok"]
        bits = {s: np.stack([unpack(cells[d, s, k]["wrong"]) for k in seeds]) for s in (first, second)}
        found = paired(table.rows[d].entries[name], table.rows[d].entries["caes"])
        assert found.n_seeds == len(seeds) == (2 if d == 1 else 3)
        assert found.only_first == int(((bits[first] == 1) & (bits[second] == 0)).sum())
        assert found.only_second == int(((bits[first] == 0) & (bits[second] == 1)).sum())
        gaps = [cells[d, first, k]["test_error"] - cells[d, second, k]["test_error"] for k in seeds]
        assert found.difference == pytest.approx(statistics.mean(gaps))
        assert found.spread == pytest.approx(statistics.stdev(gaps))
        assert found.difference == pytest.approx(100 * (found.only_first - found.only_second) / N_TEST / len(seeds))
        assert f"<td>{found.only_first}</td><td>{found.only_second}</td>" in text


@given(st.lists(st.integers(-3, 3), max_size=11))
def test_p_is_the_share_of_sign_flips_with_as_large_a_sum(values: list[int]) -> None:
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(values))
    ]
    expected = sum(s >= abs(sum(values)) for s in sums) / len(sums)
    assert sign_flip_p(np.array(values, np.int64)) == pytest.approx(expected)


@given(st.integers(0, 400), st.integers(0, 400))
def test_p_of_one_seed_is_mcnemars(b: int, c: int) -> None:
    n = b + c
    tail = sum(math.comb(n, k) for k in range(min(b, c) + 1))
    expected = min(1.0, 2 * tail / 2**n)
    assert sign_flip_p(np.array([1] * b + [-1] * c + [0] * 5, np.int64)) == pytest.approx(expected, rel=1e-9)


def test_p_of_many_rows_is_close_to_the_exact_one() -> None:
    values = np.array([1] * 530 + [-1] * 470, np.int64)  # the most that is computed exactly
    more = np.array([1] * 531 + [-1] * 470, np.int64)
    assert sign_flip_p(more) == pytest.approx(math.erfc(61 / math.sqrt(2 * 1001)))
    assert sign_flip_p(values) == pytest.approx(sign_flip_p(more), abs=0.01)


def test_the_csv_has_a_line_for_each_cell(made) -> None:
    _, cells, paths, _ = made
    lines = lines_of(paths["csv"])
    assert len(lines) == len(cells)
    for line, ((d, s, seed), cell) in zip(lines, sorted(cells.items()), strict=True):
        assert (line["data"], line["system"], line["seed"]) == (DATA[d][0], SYSTEMS[s][0], str(seed))
        assert line["status"] == cell["status"]
        if cell["status"] == "ok":
            assert float(line["test_error"]) == cell["test_error"]
            assert float(line["fit_seconds"]) == 8 + seed
            assert line["train"] == DATA[d][2]
        else:
            assert line["error"] == cell["error"]
            assert line["test_error"] == ""


def test_the_markdown_is_a_table(made) -> None:
    folder, cells, paths, _ = made
    text = paths["markdown"].read_text(encoding="utf-8")
    assert text == markdown_table(folder)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    parts = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert {len(part) for part in parts} == {5}
    assert len(lines) == 2 + 3
    assert text.count("**") == 2 * 3
    errors = [cells[0, 0, k]["test_error"] for k in range(3)]
    assert f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f} (8.25)" in parts[2][1]
    assert parts[4][2].strip() == "not run"
    assert "<b>" not in text


def test_time_is_summed_and_a_search_counts_once(made) -> None:
    rows = {row[0]: row for row in Page(made[3]).tables[1]}
    assert rows["AES"][1:7] == ["9", "9.0 s", "81.0 s", "4.5 s", "63.0 s", "2.5 min"]  # 21 s on each data set
    assert rows["cAES"][1:6] == ["8", "8.9 s", "71.0 s", "4.0 s", "12.0 s"]  # by its search.json
    assert rows["SVM"][5] == "\N{EN DASH}"


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_clock_of_whole_runs_is_shown(tmp_path: Path) -> None:
    make_results(tmp_path)
    run = {"table": "table1", "device": "NVIDIA <H200>", "jobs": 10, "seconds": 90.0}
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(run | more) + "\n" for more in ({}, {"jobs": 4})))
    page = write_report(tmp_path, tmp_path / "r.html")["html"].read_text()
    assert "By the clock, up to 10 tasks at a time: NVIDIA &lt;H200&gt;: 3.0 min." in page
    (tmp_path / "runs.jsonl").write_text('{"table": 3}\n')
    page = write_report(tmp_path, tmp_path / "r.html")["html"].read_text()
    assert "By the clock" not in page
    assert "runs.jsonl" in page  # among what is not shown


def test_the_page_loads_nothing_and_runs_nothing(made) -> None:
    text = made[3]
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    ids = {attributes.get("id") for _, attributes in page.tags}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name == "src":
                assert str(value).startswith("data:image/png;base64,")
            if name == "href":
                assert str(value).removeprefix("#") in ids
    assert not re.search(r"https?:|url\(|@import|//[a-z]", re.sub(r"base64,[^\"]*", "", text))


def test_text_is_escaped(made) -> None:
    text = made[3]
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#x27;ü&#x27;)&lt;/script&gt;" in text
    assert "RBM &lt;b&gt;" in text
    assert "x &amp; y" in text
    assert "日本" in text
    assert "&lt;boom&gt;" in text


def test_pictures_and_tables_can_be_read_without_eyes(made) -> None:
    page = Page(made[3])
    for tag, attributes in page.tags:
        assert tag != "img" or attributes.get("alt")
        assert tag != "svg" or (attributes.get("role") == "img" and attributes.get("aria-label"))
        assert tag != "th" or attributes.get("scope") in {"row", "col"}
    tags = [tag for tag, _ in page.tags]
    n_shown = 3 + 3 + 2  # systems with probabilities: on the last data set one was not run
    assert tags.count("svg") == n_shown + 3 * n_shown + 3 * 2  # reliability, three curves each; energies of ours
    assert tags.count("img") == 3 * 3 + sum(len(cell.get("mistakes", [])) for cell in made[1].values())
    assert ("html", {"lang": "en"}) in page.tags


def test_the_same_files_give_the_same_bytes(made, tmp_path: Path) -> None:
    folder, _, paths, _ = made
    again = write_report(folder, tmp_path / "page.html")
    assert again == {"html": tmp_path / "page.html", "markdown": tmp_path / "page.md", "csv": tmp_path / "page.csv"}
    assert all(again[name].read_bytes() == paths[name].read_bytes() for name in paths)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.csv", "page.html", "page.md"]  # nothing left over


def test_a_part_of_the_results_can_be_reported(made, tmp_path: Path) -> None:
    folder = made[0]
    assert len(Page(write_report(folder / "table1", tmp_path / "a")["html"].read_text("utf-8")).tables[0]) == 4
    one = Page(write_report(folder / "table1" / "mnist-small", tmp_path / "b")["html"].read_text("utf-8"))
    assert len(one.tables[0]) == 2
    assert one.tables[0][1][0].startswith("mnist-small")


def test_neither_torch_nor_sklearn_is_imported(made, tmp_path: Path) -> None:
    code = (
        "import sys; from energate.paper.report import write_report; "
        "write_report(sys.argv[1], sys.argv[2]); assert not {'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(made[0]), str(tmp_path)], check=True)
    for path in made[2].values():  # another process has another order of sets
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_tables_need_no_matplotlib_and_the_page_says_what_it_needs(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    assert markdown_table(made[0]) == made[2]["markdown"].read_text("utf-8")
    with pytest.raises(MissingExtraError, match=r"pip install 'energate\[plot\]'"):
        write_report(made[0], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_png_is_read_back_as_it_was() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(15 * 17, dtype=np.uint8).reshape(15, 17)
    assert (np.asarray(image.open(io.BytesIO(png(pixels, signed=False)))) == pixels).all()
    shown = np.asarray(image.open(io.BytesIO(png(pixels, signed=True))).convert("RGB")).reshape(-1, 3).astype(int)
    assert len(set(shown[0])) == 1  # grey
    assert shown[1, 2] > shown[1, 0] + 40  # blue
    assert shown[128].min() > 240  # white
    assert shown[250, 0] > shown[250, 2] + 40  # red


def test_a_chart_has_its_numbers_and_the_colours_of_the_page() -> None:
    chart = curve_chart([1, 2, 3], [0.46, None, 0.51], "a <curve>")
    assert 'aria-label="a &lt;curve&gt;"' in chart
    assert ">0.48<" in chart  # a tick
    assert "stroke: var(--a)" in chart
    assert not re.search(r"#|url|http|font|nan| id=", chart)
    assert curve_chart([1.0], [None], "") == ""


# --- what does not fit -------------------------------------------------------------------------------------------


def report_with(folder: Path, **changes: Any) -> str:
    """The page of two systems and two seeds, one cell of which is changed."""
    for s, seed in itertools.product((2, 3), range(2)):
        cell = make_cell(0, s, seed)
        if (s, seed) == (3, 1):
            cell |= changes
        path_of(folder, cell).write_text(json.dumps(cell))
    return write_report(folder, folder / "out")["html"].read_text("utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"profile": "quick"}, "different profiles"),
        ({"n_train": 999}, "different numbers of training rows"),
        ({"test_slice": "first 5,000 rows of test"}, "different parts of the test rows"),
        ({"provenance": {"test": "surrogate"}}, "different origins of the rows"),
        (
            {"provenance": make_cell(0, 3, 1)["provenance"] | {"sha256": {"X_test": "0"}}},
            "different rows (by their hashes)",
        ),
    ],
)
def test_results_on_different_rows_are_not_compared_silently(tmp_path: Path, changes: dict, words: str) -> None:
    assert "Not comparable" not in report_with(tmp_path / "same")
    text = report_with(tmp_path / "changed", **changes)
    assert text.count("Not comparable as they stand") == 2  # below the headline and in the data set's section
    assert words in text
    assert 'class="best"' not in text
    assert "⚠" in markdown_table(tmp_path / "changed")


def test_other_test_rows_are_not_paired(tmp_path: Path) -> None:
    text = report_with(tmp_path, test_slice="first 5,000 rows of test")
    assert "different test rows" in text
    assert "no record of the rows that were wrong" in report_with(tmp_path / "b", wrong=None)


def test_files_that_cannot_be_shown_are_named(tmp_path: Path) -> None:
    report_with(tmp_path)
    good = make_cell(0, 3, 0)
    bad = {
        "cut.json": b'{"schema": 1, "tab',
        "bytes.json": b"\xff\xfe\x00",
        "deep.json": b"[" * 100_000,
        "nan.json": json.dumps(good | {"test_error": math.nan}).encode(),
        "foreign.json": b'{"name": "package"}',
        "older.json": json.dumps(good | {"schema": 0}).encode(),
        "copy.json": json.dumps(good).encode(),
        "percent.json": json.dumps(good | {"test_error": 120.0, "seed": 8}).encode(),
        "huge.json": json.dumps(good | {"seed": 8, "test_error": 10**400}).encode(),
        "a<b>.json": b"3",
        "sub/search.json": b'{"schema": 1, "trials": 5}',
    }
    before = write_report(tmp_path, tmp_path / "out")["csv"].read_bytes()
    for name, content in bad.items():
        path = tmp_path / "table1" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "table1" / "folder.json").mkdir()
    paths = write_report(tmp_path, tmp_path / "out")
    text = paths["html"].read_text("utf-8")
    section = text[text.index("<h2>Not shown") :]
    assert section.count("<li>") == len(bad) + 1
    for name in [*bad, "folder.json"]:
        assert name.replace("<", "&lt;").replace(">", "&gt;") in section
    assert "it has NaN" in section
    assert "the same table, data set, system and seed" in section
    assert (
        paths["csv"].read_bytes() in {before, before.replace(b"caes/seed0.json", b"../copy.json")}
        or b"copy.json" in paths["csv"].read_bytes()
    )
    assert paths["markdown"].read_text("utf-8").count("\n- ") == len(bad) + 1


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("wrong", "AAAA"),
        ("wrong", pack(np.zeros(-(-N_TEST // 8)))),  # no row wrong, against test_error
        ("wrong", "no base64 ü"),
        ("confusion", [[1, 2], [3, 4]]),
        ("confusion", np.eye(10, dtype=int).tolist()),
        ("reliability", {"count": [1], "confidence": [None], "accuracy": [50.0]}),
        ("energies", {"edges": [0, 0], "own": [1], "others": [1]}),
        ("curves", {"fine-tune": {"epoch": [1, 2], "loss": [1.0]}}),
        ("filters", {"mean": {"shape": [8, 8], "n": 2, "pixels": "AAAA"}}),
        ("mistakes", [{"row": -1}]),
        ("extra", {"members": "many"}),
        ("classes", 3),
        ("provenance", "unknown"),
        ("seconds", {"fit": "long"}),
    ],
)
def test_a_part_that_does_not_fit_is_left_out_and_named(tmp_path: Path, part: str, value: Any) -> None:
    text = report_with(tmp_path, **{part: value})
    assert f"table1/mnist-small/caes/seed1.json: shown without `{part}`" in text
    assert len(lines_of(tmp_path / "out" / "report.csv")) == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.sampled_from(["AAAA", "ok", "\ud800", 10**400, -1]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4) | st.sampled_from(["fit", "mean"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, at: tuple = ()) -> list[tuple]:
    """The way to every value within a value; only the first of a list."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*at, key))
    return found


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_content_stops_the_report(tmp_path: Path, data: st.DataObject) -> None:
    cell, search = make_cell(0, 3, 0), json.loads(json.dumps(SEARCH))
    for root in (cell, search):
        for place in data.draw(st.lists(st.sampled_from(places(root)), max_size=3)):
            inner: Any = root
            try:
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = data.draw(JSON)
            except (TypeError, LookupError):  # an earlier change took this place away
                continue
    for name, content in (("seed0", cell), ("search", search)):
        path = tmp_path / "table1" / "mnist-small" / "caes" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    other = make_cell(0, 2, 0) | {"curves": {}, "energies": None, "reliability": None}  # drawing takes time
    path_of(tmp_path, other).write_text(json.dumps(other))
    paths = write_report(tmp_path, tmp_path / "out")
    Page(paths["html"].read_text("utf-8"))
    assert len(lines_of(paths["csv"])) >= 1


@pytest.mark.parametrize("value", [None, [], {}, "", -1, 1e300, [[]], {"a": None}, [None], True], ids=repr)
def test_no_value_in_any_place_stops_the_reading(tmp_path: Path, value: Any) -> None:
    for name, root in (("seed0", make_cell(0, 3, 0)), ("search", SEARCH)):
        for place in places(root):
            changed: Any = json.loads(json.dumps(root))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            (tmp_path / f"{name}.json").write_text(json.dumps(changed))
            found = read_results(tmp_path)
            assert len(found.cells) + len(found.searches) + len(found.notes) >= 1


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must be a folder.*nowhere is none"):
        write_report(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(InputError, match="nothing to report"):
        markdown_table(tmp_path)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match=r"1 files cannot be shown; the first: x.json: not a result"):
        write_report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unusable_output_is_an_error(tmp_path: Path) -> None:
    report_with(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(tmp_path, tmp_path / "file" / "report.html")
    (tmp_path / "folder.html").mkdir()
    assert write_report(tmp_path, tmp_path / "folder.html")["html"] == tmp_path / "folder.html" / "report.html"


def test_all_systems_of_all_tables_failed(tmp_path: Path) -> None:
    for table in ("table1", "table2"):
        cell = make_cell(0, 3, 0) | {"table": table, "title": table, "status": "failed", "error": ""}
        path_of(tmp_path, cell).write_text(json.dumps(cell))
    text = write_report(tmp_path, tmp_path / "out")["html"].read_text("utf-8")
    page = Page(text)
    assert page.tables[0][1][1] == page.tables[2][1][1] == "failed paper 7.05 "
    assert text.count("No results yet") == 2
    assert markdown_table(tmp_path).count("### table") == 2


if __name__ == "__main__":  # a page to look at: python tests/test_report.py FOLDER
    make_results(Path(sys.argv[1]) / "results", 2003)
    print(write_report(Path(sys.argv[1]) / "results", sys.argv[1]))


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_the_pages_show_the_committed_results(table: str) -> None:
    root = Path(__file__).parents[2]
    marked = (root / "docs" / "results.md").read_text().partition(f"<!-- {table}: ")[2]
    head, _, rest = marked.partition("-->")
    systems = head.split() if table == "table2" else None  # which columns of the many
    shown = rest.partition(f"<!-- end of {table}")[0]
    assert shown.strip() == markdown_table(root / "results" / table, systems).strip()
