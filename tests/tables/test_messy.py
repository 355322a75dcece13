"""Tables as people have them, through the real commands: fit, predict, data show."""

import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from energate.cli import app
from energate.persistence import read_columns
from energate.tables import CategoryColumn, NumberColumn, open_table
from energate.tables.made import DateColumn, TextColumn

pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")


def call(*arguments: Any, code: int = 0, **options: Any) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments], **options)
    assert result.exit_code == code, result.output
    return result


def fit(table: str | Path, *options: Any, target: str = "kind", **more: Any) -> dict[str, Any]:
    """What `energate fit` says; memory units learn nothing, and are quick."""
    chosen = ("--target", target, "--units", "memory", "-o", "m.zip", "--json", *options)
    return json.loads(call("fit", table, *chosen, **more).stdout)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plants(n_rows: int = 80, seed: int = 0) -> Any:
    """A frame with a number, a category and the class that both tell of."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, n_rows)
    return pandas.DataFrame(
        {
            "size": np.round(rng.normal(3 * kind), 2),
            "colour": np.where(kind == 1, "grün", rng.choice(["rot", "blau"], n_rows)),
            "kind": np.array(["rose", "tulip"])[kind],
        }
    )


def inputs() -> dict[str, Any]:
    columns = read_columns("m.zip")
    assert columns is not None
    return {column.name: column for column in columns.inputs}


def predicted(table: str | Path, *options: Any) -> Any:
    call("predict", "m.zip", table, "-o", "out.csv", *options)
    return pandas.read_csv("out.csv", index_col=None)


def same_model(said: dict[str, Any]) -> None:
    assert said["columns"] == ["size", "colour"]
    assert said["held_out"]["error"] <= 10


# --- files -------------------------------------------------------------------------------------------------------


def test_the_index_that_pandas_writes_is_left_out_and_carried_along() -> None:
    plants().to_csv("t.csv")
    said = fit("t.csv")
    same_model(said)
    assert "t.csv: the first column has no name: it is taken for an index, and left out." in said["notes"]
    out = predicted("t.csv")
    assert out.columns[0] == "Unnamed: 0"  # pandas' own name for one without
    assert out.iloc[:, 0].tolist() == list(range(80))
    pandas.read_csv("t.csv").to_csv("again.csv", index=False)
    same_model(fit("again.csv"))
    for suffix in (".npz", ".parquet", ".arff", ".jsonl"):
        call("predict", "m.zip", "t.csv", "-o", f"out{suffix}")
        assert len(open_table(f"out{suffix}", "test").read()["prediction"]) == 80


def test_an_index_with_a_name_may_be_named() -> None:
    plants().assign(code=np.random.default_rng(0).permutation(80) * 7.0).to_csv("t.csv", index=False)
    assert fit("t.csv")["columns"] == ["size", "colour", "code"]
    same_model(fit("t.csv", "--index", "code"))
    assert predicted("t.csv")["code"].tolist() == pandas.read_csv("t.csv")["code"].tolist()


@pytest.mark.parametrize(
    "suffix", [".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.xz", ".jsonl", ".jsonl.gz", ".json", ".txt"]
)
def test_other_kinds_of_files(suffix: str) -> None:
    table, name = plants(), f"t{suffix}"
    if "json" in suffix:
        table.to_json(name, orient="records", lines=suffix != ".json", force_ascii=False)
    else:
        table.to_csv(name, index=False, sep="\t" if "tsv" in suffix else ",")
    same_model(fit(name))
    said = json.loads(call("predict", "m.zip", name, "--json").stdout)
    kind = {".csv.bz2": ".csv", ".csv.xz": ".csv", ".json": ".csv", ".txt": ".csv"}.get(suffix, suffix)
    assert said["output"].startswith("t")
    assert said["output"].endswith(f"-predicted{kind}")
    out = open_table(said["output"]).read()
    assert [str(each) for each in out["kind"]] == table["kind"].tolist()


def test_standard_input_may_hold_any_kind() -> None:
    table = plants()
    text = table.to_csv(index=False).encode()
    parquet, zipped = io.BytesIO(), gzip.compress(text)
    table.to_parquet(parquet)
    for content in (text, zipped, parquet.getvalue(), table.to_json(orient="records", lines=True).encode()):
        same_model(fit("-", input=content))
        shown = call("predict", "m.zip", "-", input=content).stdout
        assert shown.splitlines()[0] == "size,colour,kind,prediction,p_rose,p_tulip,p_value"
        assert len(shown.splitlines()) == 81


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_found_and_told(separator: str) -> None:
    plants().to_csv("t.csv", index=False, sep=separator)
    said = fit("t.csv")
    same_model(said)
    assert any(note.startswith("t.csv: its cells are between") for note in said["notes"])
    assert predicted("t.csv")["size"].notna().all()
    same_model(fit("t.csv", "--delimiter", separator))
    assert "--delimiter must be one character" in call("fit", "t.csv", "--delimiter", ";;", code=2).stderr


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8-sig", "utf-16-le", "utf-32"])
def test_other_encodings_are_found_and_told(encoding: str) -> None:
    plants().to_csv("t.csv", index=False, encoding=encoding)
    said = fit("t.csv")
    same_model(said)
    assert inputs()["colour"].categories == ("blau", "grün", "rot")
    assert bool(said["notes"]) == (encoding != "utf-8-sig")
    assert set(predicted("t.csv")["colour"]) == {"blau", "grün", "rot"}
    assert fit("t.csv", "--encoding", encoding)["notes"] == []
    assert "must be one that Python knows" in call("fit", "t.csv", "--encoding", "klingon", code=2).stderr


def test_decimal_commas_go_with_semicolons() -> None:
    plants().to_csv("t.csv", index=False, sep=";", decimal=",")
    said = fit("t.csv")
    same_model(said)
    assert any("'size': numbers such as" in note for note in said["notes"])
    assert inputs()["size"].form.decimal == ","
    other = plants().assign(size=lambda table: table["size"].astype(str))  # with points, as the model does not have it
    expected = predicted("t.csv")["prediction"].tolist()
    other.assign(size=other["size"].str.replace(".", ",")).to_csv("u.csv", index=False)
    assert predicted("u.csv")["prediction"].tolist() == expected


def test_blanks_around_names_do_not_count() -> None:
    plants().rename(columns={"size": " size", "kind": "kind "}).to_csv("t.csv", index=False)
    same_model(fit("t.csv"))
    assert list(predicted("t.csv").columns[:3]) == ["size", "colour", "kind"]


# --- cells -------------------------------------------------------------------------------------------------------


def test_rows_without_a_target_are_left_out() -> None:
    table = plants()
    table.loc[[3, 5, 60], "kind"] = [None, "NA", "pending"]
    table.to_csv("t.csv", index=False)
    said = fit("t.csv", "--na", "pending")
    same_model(said)
    assert said["rows"] == 77
    assert "3 rows without a value of 'kind' left out." in said["notes"]
    table["size"] = table["size"].astype(object)
    table.loc[70, "size"] = "big"
    table.to_csv("t.csv", index=False)
    told = call("fit", "t.csv", "--target", "kind", "--na", "pending", code=2).stderr
    assert "t.csv, line 72: 'size' must be a number, as in most rows; got 'big'. --na 'big' takes it" in told


def test_an_id_with_gaps_is_left_out_where_rows_were() -> None:
    table = plants()
    table.insert(0, "number", range(1, 81))
    table.loc[[3, 17, 40], "kind"] = None
    table.to_csv("t.csv", index=False)
    assert "'number' is left out: it counts the rows (--keep takes it)." in fit("t.csv")["notes"]
    table["number"] = 2 * table["number"]  # every second one is not there: some other number, perhaps a size
    table.to_csv("t.csv", index=False)
    assert "number" in (fit("t.csv"), inputs())[1]


@pytest.mark.parametrize("names", [("images", "labels"), ("x_train", "y_train")])
def test_pictures_in_an_npz_file_are_shown_fitted_and_predicted(names: tuple[str, str]) -> None:
    digits = load_digits()
    X, y = names
    np.savez("t.npz", **{X: digits.images[:300].astype(np.uint8), y: digits.target[:300]})
    told = call("data", "show", "t.npz").stdout
    assert "300 rows, 2 columns" in told
    assert "8 x 8, 0 to 16" in told
    target = "y" if y == "y_train" else y
    call("fit", "t.npz", "--target", target, "--units", "memory", "-o", "m.zip", "--device", "cpu")
    call("predict", "m.zip", "t.npz", "--part", "train", "-o", "o.npz")
    assert (np.load("o.npz")["prediction"].astype(int) == digits.target[:300]).mean() > 0.9


def test_words_among_numbers_that_mean_nothing_is_known() -> None:
    table = plants()
    table["size"] = table["size"].astype(object)
    table.loc[[1, 2, 4], "size"] = ["unknown", "Unknown", "-"]
    table["age"] = [-99] * 5 + list(range(75))
    table["age"] = table["age"].sample(frac=1, random_state=0).to_numpy()
    table.to_csv("t.csv", index=False)
    said = fit("t.csv", "--na", "-99")
    assert said["columns"] == ["size", "colour", "age"]
    assert "'size': 'unknown' among numbers, in 1 cell, counts as missing." in said["notes"]
    number = inputs()["size"]
    assert isinstance(number, NumberColumn)
    assert number.form.missing == ("-99", "unknown", "Unknown", "-")
    assert inputs()["age"].fill > 20
    assert predicted("t.csv")["size"].tolist()[1] == "unknown"  # as it was


def test_numbers_as_people_write_them() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 60)
    table = pandas.DataFrame(
        {
            "income": [f"{value:,.0f}" for value in rng.normal(40_000 + 30_000 * kind, 1000)],
            "share": [f"{value:.1f}%" for value in rng.normal(20 + 40 * kind)],
            "price": [f"${value:,.2f}" for value in rng.normal(1500 + 100 * kind)],
            "kind": kind,
        }
    )
    table.to_csv("t.csv", index=False)
    said = fit("t.csv")
    assert said["columns"] == ["income", "share", "price"]
    assert len(said["notes"]) == 3
    found = inputs()
    assert 30_000 < found["income"].fill < 80_000
    assert 0.15 < found["share"].fill < 0.7
    assert 1400 < found["price"].fill < 1700
    plain = table.assign(income=table["income"].str.replace(",", ""), share=table["share"].str[:-1].astype(float) / 100)
    plain.to_csv("plain.csv", index=False)
    one, other = predicted("t.csv"), predicted("plain.csv")
    np.testing.assert_allclose(one[["p_0", "p_1"]], other[["p_0", "p_1"]])


def test_passengers() -> None:
    """A mostly empty column of very many cabins, names that differ in every row, and tickets that only name them."""
    rng = np.random.default_rng(0)
    n = 400
    title = rng.choice(["Mr", "Mrs", "Miss"], n, p=[0.5, 0.25, 0.25])
    alive = np.where(rng.random(n) < 0.9, title != "Mr", title == "Mr").astype(int)
    table = pandas.DataFrame(
        {
            "id": range(1, n + 1),
            "alive": alive,
            "name": [f"Family{i}, {word}. First{i} of the North" for i, word in enumerate(title)],
            "ticket": [f"T{i * 7919 % 100_003}" for i in range(n)],
            "cabin": [f"C{rng.integers(0, 1000)}" if rng.random() < 0.5 else None for _ in range(n)],
            "age": [None if rng.random() < 0.2 else round(rng.normal(30, 9)) for _ in range(n)],
        }
    )
    table.to_csv("passengers.csv", index=False)
    said = fit("passengers.csv", target="alive")
    assert said["columns"] == ["name", "cabin", "age"]
    found, notes = inputs(), "\n".join(said["notes"])
    assert isinstance(found["name"], TextColumn)
    assert set(found["name"].vocabulary) == {"mr", "mrs", "miss"}  # not "of the North", which all have
    assert isinstance(found["cabin"], CategoryColumn)
    assert None in found["cabin"].categories
    assert "'id' is left out: it counts the rows" in notes
    assert "'ticket' is left out: text with" in notes
    assert "'name' is free text; 3 words" in notes
    assert said["held_out"]["error"] < 25
    call("check", "m.zip", "--rows", "2")
    assert "name (mr)" in call("explain", "m.zip", "passengers.csv", "--json", "--top", "100").stdout


def test_dates_become_numbers_in_every_command() -> None:
    rng = np.random.default_rng(0)
    table = plants()
    month = np.where(table["kind"] == "rose", 5, 10)
    days = rng.integers(1, 28, 80)
    table["day"] = [f"{2020 + i % 4}-{month[i]:02d}-{days[i]:02d}" for i in range(80)]
    table.drop(columns=["size", "colour"]).to_csv("t.csv", index=False)
    said = fit("t.csv")
    assert isinstance(inputs()["day"], DateColumn)
    assert "'day' holds dates; they become numbers: year, month, day, weekday." in said["notes"]
    assert said["held_out"]["error"] <= 10
    assert (predicted("t.csv")["prediction"] == table["kind"]).mean() > 0.9
    table["day"] = pandas.to_datetime(table["day"])
    table.to_parquet("t.parquet")
    assert predicted("t.parquet")["prediction"].tolist() == predicted("t.csv")["prediction"].tolist()
    Path("u.csv").write_text("day,kind\nsoon,rose\n")
    told = call("predict", "m.zip", "u.csv", "-o", "o.csv", code=2).stderr
    assert "u.csv, line 2: 'day' must be a date such as 2024-01-31; got 'soon'" in told
    assert not Path("o.csv").exists()


def test_new_categories_are_counted_and_told() -> None:
    plants().to_csv("t.csv", index=False)
    fit("t.csv")
    new = plants()
    new.loc[:9, "colour"] = ["teal"] * 6 + ["mauve", "pink", "grey", "beige"]
    new.to_csv("new.csv", index=False)
    told = call("predict", "m.zip", "new.csv", "-o", "out.csv").stderr
    assert "Note: 'colour': 10 of 80 rows hold what is no category of the model: 'teal', 'mauve', 'pink'" in told
    said = json.loads(call("score", "m.zip", "t.csv", "-o", "out.csv", "--json").stdout)
    assert said["notes"] == []


def test_the_names_of_columns_and_percentages_reach_other_programs() -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    plants().to_csv("t.csv", index=False)
    said = fit("t.csv")
    assert set(said["percent"]) == {"error", "calibration_error"}
    call("export", "m.zip", "--onnx", "m.onnx")
    texts = {each.key: json.loads(each.value) for each in onnx.load("m.onnx").metadata_props}
    assert texts["feature_names"] == ["size", "colour"]
    assert texts["classes"] == ["rose", "tulip"]


# --- quick to say no ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "nowhere.csv", "--target", "a"),
        ("fit", "empty.csv", "--target", "a"),
        ("fit", "table.xlsx", "--target", "a"),
        ("predict", "nowhere.zip", "table.csv"),
        ("predict", "no.zip", "table.csv"),
        ("check", "nowhere.zip"),
        ("serve", "nowhere.zip"),
        ("data", "show", "nowhere.csv"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_told_before_torch_is_imported(arguments: tuple[str, ...]) -> None:
    Path("empty.csv").write_text("")
    Path("table.csv").write_text("a,b\n1,2\n")
    Path("table.xlsx").write_text("no")
    Path("no.zip").write_text("no")
    script = (
        "import sys\nfrom energate.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_progress_in_a_pipe_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energate.cli.fit.SILENCE", 0.0)
    monkeypatch.setattr("energate.cli._shell.SILENCE", 0.0)
    plants().to_csv("t.csv", index=False)
    told = call("fit", "t.csv", "--target", "kind", "--units", "mean", "--epochs", 3, "-o", "m.zip").stderr
    assert "fine-tune: 3 epochs at most" in told
    assert re.search(r"fine-tune: epoch 2 of 3, loss .* s left at most", told)
    assert "t.csv: 80 rows so far" in call("predict", "m.zip", "t.csv", "-o", "out.csv").stderr


def test_one_thing_is_one_thing() -> None:
    plants().to_csv("t.csv", index=False)
    fit("t.csv")
    plants()[:1].to_csv("one.csv", index=False)
    assert "1 row in" in call("predict", "m.zip", "one.csv", "-o", "out.csv").stdout
    assert "one.csv: 1 row, 3 columns" in call("data", "show", "one.csv").stdout
