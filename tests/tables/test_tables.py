"""Tables: cells, columns, what is learned of a table, and files in five formats, in and out."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from energate import EnergyScorer, load, save
from energate.errors import InputError
from energate.persistence import check_path, read_columns
from energate.tables import CategoryColumn, CellError, Columns, NumberColumn, classes_of, labels_of, learn_columns
from energate.tables.arff import quoted, unquoted
from energate.tables.made import DateColumn
from energate.tables.reading import n_rows, open_table
from energate.tables.values import keyed, keys_of, numbers, words
from energate.tables.writing import as_printed, open_writer

pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = Columns(
    (NumberColumn("size", 2.5), CategoryColumn("colour", ("blue", "red", None))),
    targets=("kind",),
)
TABLE = {"id": ["a", "b", "c"], "size": [1.0, None, 3], "colour": ["red", "green", None], "kind": [0, 1, 1]}
EXPECTED = [[1, 0, 1, 0], [2.5, 0, 0, 0], [3, 0, 0, 1]]
FORMATS = (".csv", ".tsv", ".parquet", ".npz", ".arff")


# --- cells -----------------------------------------------------------------------------------------------------


def forms(cells: list[Any]) -> dict[str, Any]:
    text = [None if cell is None else str(cell) for cell in cells]
    return {
        "list": cells,
        "object": np.array(cells, dtype=object),
        "arrow": pa.array(cells),
        "chunks": pa.chunked_array([pa.array(text[:1], pa.string()), pa.array(text[1:], pa.string())]),
        "text": pa.array(text, pa.string()),
        "dictionary": pa.array(text, pa.string()).dictionary_encode(),
        "pandas": pandas.Series(cells),
        "pandas text": pandas.Series(text),
    }


@pytest.mark.parametrize("form", forms([1.5, None, 3.0]))
def test_numbers_are_the_same_in_every_form(form: str) -> None:
    np.testing.assert_array_equal(numbers(forms([1.5, None, 3.0])[form], "a"), [1.5, np.nan, 3])


@pytest.mark.parametrize("form", forms(["b", None, "a", "b"]))
def test_words_are_the_same_in_every_form(form: str) -> None:
    codes, different = words(forms(["b", None, "a", "b"])[form])
    assert [different[code] for code in codes] == ["b", None, "a", "b"]


def test_whole_numbers_are_one_category_in_every_form() -> None:
    for values in ([1, 2], [1.0, 2.0], ["1", " 2 "], pa.array([1, 2]), pa.array([1.0, 2.0]), np.array([1, 2])):
        codes, different = words(values)
        assert [different[code] for code in codes] == ["1", "2"]


@pytest.mark.parametrize("missing", ["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "  "])
def test_cells_that_are_missing(missing: str) -> None:
    for values in ([missing, "1"], pa.array([missing, "1"])):
        np.testing.assert_array_equal(numbers(values, "a"), [np.nan, 1])
        assert words(values)[1] == [None, "1"]


@pytest.mark.parametrize("wrong", ["x", "1_0", "1,5", "0x1", "-"])
def test_the_first_cell_that_is_no_number_is_named(wrong: str) -> None:
    cells = ["1", "", "2", wrong, "3", wrong]
    for values in (cells, pa.array(cells), np.array(cells)):
        with pytest.raises(CellError, match=re.escape(f"row 4: 'a' must be a number; got {wrong!r}.")) as caught:
            numbers(values, "a")
        assert caught.value.row == 3


def test_infinite_numbers_and_times_are_refused() -> None:
    for values in ([1.0, math.inf], pa.array(["1", "inf"]), np.array([1, -np.inf])):
        with pytest.raises(CellError, match="row 2: 'a' must be a finite number"):
            numbers(values, "a")
    with pytest.raises(CellError, match="must be a number"):
        numbers(pa.array([0], pa.timestamp("s")), "a")
    with pytest.raises(CellError, match="must be a number"):
        numbers(np.array(["2020-01-01"], dtype="datetime64[D]"), "a")


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=20))
def test_numbers_survive_text(values: list[float | None]) -> None:
    expected = np.array([np.nan if value is None else value for value in values])
    text = [None if value is None else repr(value) for value in values]
    np.testing.assert_array_equal(numbers(text, "a"), expected)
    np.testing.assert_array_equal(numbers(pa.array(text, pa.string()), "a"), expected)


@given(st.lists(st.one_of(st.none(), st.text(max_size=5), st.integers(), st.booleans()), max_size=20))
def test_words_give_back_every_cell(cells: list[Any]) -> None:
    codes, different = words(cells)
    assert len(set(different)) == len(different)
    for code, cell in zip(codes, cells, strict=True):
        assert different[code] == (None if cell is None else str(cell).strip()) or different[code] is None


# --- columns ---------------------------------------------------------------------------------------------------


def test_a_matrix_from_every_kind_of_table() -> None:
    frame = pandas.DataFrame(TABLE)
    for table in (TABLE, frame, pa.table(TABLE), pa.RecordBatch.from_pydict(TABLE)):
        np.testing.assert_array_equal(COLUMNS.matrix(table), EXPECTED)
    rows = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]
    np.testing.assert_array_equal(COLUMNS.matrix_of(rows), EXPECTED)
    assert COLUMNS.names == ["size", "colour"]
    assert COLUMNS.feature_names == ["size", "colour=blue", "colour=red", "colour=(missing)"]


def test_a_missing_cell_is_a_category_only_if_it_was_one() -> None:
    columns = Columns((CategoryColumn("colour", ("red",)),))
    np.testing.assert_array_equal(columns.matrix({"colour": ["red", None, "", "Red"]}), [[1], [0], [0], [0]])


def test_columns_that_are_missing_are_named() -> None:
    with pytest.raises(InputError, match="it lacks 'size', 'colour'"):
        COLUMNS.matrix({"kind": [1]})
    with pytest.raises(InputError, match=r"row 2 must have a value, or null, .* it lacks 'colour'"):
        COLUMNS.matrix_of([{"size": 1, "colour": "red"}, {"size": 1}])
    with pytest.raises(CellError, match="row 1: 'size' must be a number; got 'big'"):
        COLUMNS.matrix_of([{"size": "big", "colour": "red"}])
    with pytest.raises(CellError, match="row 2: 'x0' must be a number; got None"):
        Columns.plain(["x0"]).matrix({"x0": [1.0, None]})


def test_columns_that_make_no_sense_are_refused() -> None:
    for inputs in ((), (NumberColumn("a", 0), NumberColumn("a", 0)), (NumberColumn("kind", 0),)):
        with pytest.raises(InputError, match="`inputs` must be columns"):
            Columns(inputs, targets=("kind",))
    with pytest.raises(InputError, match="`task` must be one of"):
        Columns((NumberColumn("a", 0),), "guess")
    with pytest.raises(InputError, match="An image of 2x2 has 4 pixels; the table has 1 columns"):
        Columns((NumberColumn("a", 0),), image=(2, 2))


names = st.text(min_size=1, max_size=6)
made = st.one_of(
    st.builds(NumberColumn, names, st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))),
    st.builds(
        CategoryColumn, names, st.lists(st.one_of(st.none(), names), min_size=1, max_size=4, unique=True).map(tuple)
    ),
)


@given(st.lists(made, min_size=1, max_size=5, unique_by=lambda column: column.name))
def test_columns_survive_json(inputs: list[Any]) -> None:
    columns = Columns(tuple(inputs), "anomaly", labels=("a",))
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns


@pytest.mark.parametrize(
    "change",
    [
        {"version": 5},
        {"version": 1},
        {"coded": 1},
        {"task": "guess"},
        {"task": ["classify"]},
        {"targets": "kind"},
        {"targets": [1]},
        {"labels": [None]},
        {"image": [2]},
        {"image": [2.0, 2]},
        {"image": [-1, 4]},
        {"inputs": []},
        {"inputs": None},
        {"inputs": [{"name": "a"}]},
        {"inputs": [{"name": "a", "fill": "1"}]},
        {"inputs": [{"name": "a", "fill": True}]},
        {"inputs": [{"name": "a", "categories": []}]},
        {"inputs": [{"name": "a", "categories": ["b", "b"]}]},
        {"inputs": [{"name": "a", "categories": [1]}]},
        {"inputs": [{"name": 1, "fill": 0.0}]},
        {"more": 1},
    ],
    ids=str,
)
def test_json_that_energate_did_not_write_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Columns.from_json({**COLUMNS.to_json(), **change})


# --- coded columns ---------------------------------------------------------------------------------------------


WORD = st.sampled_from(["a", "b", "red", "1", "1.0", "-2", "7.5", "1e300", "-1.7e308", "0", "inf"])


@given(st.lists(WORD, unique=True, max_size=6), st.lists(st.none() | WORD | st.just("new"), max_size=8))
def test_keys_tell_categories_apart(categories: list[str], cells: list[str | None]) -> None:
    """Every category has a key of its own, and what is none of them, in words or as a number, has none of these."""
    keys = keys_of(categories)
    assert len(set(keys.tolist())) == len(categories)
    if not {"a", "b", "red", "inf"} & set(categories) and not {"1", "1.0"} <= set(categories):
        assert keys.tolist() == [float(each) for each in categories]
    else:
        assert keys.tolist() == list(range(len(categories)))
    found = keyed(cells, categories)
    own = dict(zip(categories, keys.tolist(), strict=True))
    for cell, key in zip(cells, found.tolist(), strict=True):
        if cell is None:
            assert math.isnan(key)
        elif cell in own:
            assert key == own[cell]
        elif cell not in ("1", "1.0"):  # the same number
            assert key not in own.values()
            assert math.isfinite(key)


def test_coded_columns_hand_on_what_is_there() -> None:
    inputs = (
        NumberColumn("size", 2.5),
        CategoryColumn("colour", ("blue", "red", None)),
        CategoryColumn("n", ("2", "10")),
    )
    columns = Columns(inputs, targets=("kind",), coded=True)
    expected = [[1, 1, 10], [np.nan, -1, np.nan], [3, np.nan, 5]]
    table = {**TABLE, "n": ["10", None, 5]}
    for form in (table, pandas.DataFrame(table), pa.table({**table, "n": ["10", None, "5"]})):
        np.testing.assert_array_equal(columns.matrix(form), expected)
    assert columns.feature_names == ["size", "colour", "n"]
    assert columns.for_width(3) is columns
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    with pytest.raises(CellError, match="row 2: 'size' must be a number; got None"):
        Columns((NumberColumn("size", None),), coded=True).matrix(TABLE)
    assert learn_columns(TABLE, coded=True, drop=["id"])[0].coded


def test_columns_of_an_older_version_are_read() -> None:
    second = {name: value for name, value in COLUMNS.to_json().items() if name not in ("range", "examples")}
    assert Columns.from_json({**second, "version": 2}) == COLUMNS
    first = {name: value for name, value in second.items() if name != "coded"}
    assert Columns.from_json({**first, "version": 1}) == COLUMNS


# --- learning --------------------------------------------------------------------------------------------------


def test_a_table_is_understood() -> None:
    table = {
        "id": [f"n{i}" for i in range(20)],
        "row": np.arange(5, 25),
        "size": pa.array(["1", "2", "", "9"] * 5),
        "colour": ["red", "blue", None, "red"] * 5,
        "empty": [None] * 20,
        "code": np.array([3, 3, 4, 4] * 5),
        "kind": [0, 1] * 10,
    }
    columns, notes = learn_columns(table, targets=["kind"], categories=["code"], drop=["row"])
    assert columns.inputs == (
        NumberColumn("size", 2.0),
        CategoryColumn("colour", ("blue", "red", None)),
        CategoryColumn("code", ("3", "4")),
    )
    assert [note.split("'")[1] for note in notes] == ["id", "empty"]
    columns, notes = learn_columns(table, targets=["kind"], keep=["id"])
    assert columns.names == ["id", "size", "colour", "code"]
    assert any("'row' is left out: it counts the rows" in note for note in notes)
    assert learn_columns(table, keep=["row"])[0].names == ["row", "size", "colour", "code", "kind"]


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        ("2024-01-{:02d}", ("day", "weekday")),
        ("2024-01-{:02d} {:02d}:30:00", ("day", "weekday", "hour")),
        ("{}.1.2024", ("day", "weekday")),
        ("{:02d}/1/24", ("day", "weekday")),
        ("2024/{:02d}/1", ("month", "weekday")),
        ("{:02d} Jan 2024", ("day", "weekday")),
    ],
)
def test_dates_become_numbers(form: str, parts: tuple[str, ...]) -> None:
    places = [i % (12 if "/1" in form and "2024/" in form else 28) + 1 for i in range(200)]
    table = {"day": [form.format(i, i % 24) for i in places], "size": [1.5, 2.5] * 100}
    columns, notes = learn_columns(table, task="anomaly", coded=True)
    date = columns.inputs[0]
    assert isinstance(date, DateColumn)
    assert date.parts == parts
    assert columns.feature_names == [*(f"day ({part})" for part in parts), "size"]
    assert any(note.startswith("'day' holds dates; they become numbers") for note in notes)
    found = columns.matrix({"day": [table["day"][4], None], "size": [1, 2]})
    first = form.format(5, 5)
    expected = {"day": 5, "month": 5, "weekday": 3 if "month" in parts else 5, "hour": 5}  # 2024-05-01 and 2024-01-05
    assert first == table["day"][4]
    assert found[0, :-1].tolist() == [expected[part] for part in parts]
    assert np.isnan(found[1, :-1]).all()
    with pytest.raises(CellError, match=r"row 2: 'day' must be a date such as .*; got 'soon'"):
        columns.matrix({"day": [first, "soon"], "size": [1, 2]})
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    table["day"][7] = "1-2"  # a code that only looks like one here and there
    assert isinstance(learn_columns(table, task="anomaly")[0].inputs[0], CategoryColumn)


def test_dates_that_pandas_and_pyarrow_know_are_the_same_as_their_text() -> None:
    days = np.arange("2023-11-28", "2024-02-28", dtype="datetime64[D]")
    forms = [days.astype(str).tolist(), pa.array(days), pandas.Series(days), pandas.Series(days).dt.tz_localize("UTC")]
    columns, _ = learn_columns({"day": forms[0]}, task="anomaly")
    expected = columns.matrix({"day": forms[0]})
    for form in forms:
        assert learn_columns({"day": form}, task="anomaly")[0] == columns
        np.testing.assert_array_equal(columns.matrix({"day": form}), expected)
    assert expected[3].tolist() == [2023, 12, 1, 5]


def test_dates_that_can_be_read_in_two_ways_are_read_as_pandas_does_and_told() -> None:
    _, notes = learn_columns({"day": [f"{i:02d}/{i + 1:02d}/2024" for i in range(1, 12)] * 3}, task="anomaly")
    assert any("read as %m/%d/%Y; no row says whether the day or the month comes first" in note for note in notes)
    _, notes = learn_columns({"day": [f"{i}/2/2024" for i in range(1, 29)]}, task="anomaly")
    assert len(notes) == 1
    columns, notes = learn_columns({"day": [f"2024-{i}-45" for i in range(1, 9)] * 3, "a": [1.5, 2] * 12})
    assert columns.names == ["a"]
    assert "it holds dates of which some cannot be read" in notes[0]


def test_fill_values_and_categories_come_from_the_training_rows_alone() -> None:
    table = {"size": [1.0, 3.0, 100.0, 7.0], "colour": ["red", "red", "blue", None]}
    columns, _ = learn_columns(table, rows=np.array([0, 1]), task="anomaly")
    assert columns.inputs == (NumberColumn("size", 2.0), CategoryColumn("colour", ("red",)))


def test_a_column_may_say_by_its_type_that_it_holds_categories() -> None:
    cells = ["1", "2", "1", None] * 5
    for column in (pandas.Series(cells, dtype="category"), pa.array(cells).dictionary_encode()):
        columns, _ = learn_columns({"code": column}, task="anomaly")
        assert columns.inputs == (CategoryColumn("code", ("1", "2", None)),)


def test_of_too_many_categories_the_most_frequent_are_taken() -> None:
    city = [f"c{i % 150}" for i in range(1000)]  # the first 100 occur seven times, the others six times
    (column,), notes = (found := learn_columns({"city": city}, task="anomaly"))[0].inputs, found[1]
    assert isinstance(column, CategoryColumn)
    assert sorted(column.categories) == sorted({f"c{i}" for i in range(100)})
    (note,) = notes
    assert note.startswith("'city' has 150 different values; the 100 most frequent are taken, the others, 30.0 % of")


def test_tables_that_cannot_be_used() -> None:
    with pytest.raises(CellError, match="row 3: 'age' must be a number, as in most rows; got 'old'"):
        learn_columns({"age": ["1", "2", "old", "4"]})
    with pytest.raises(InputError, match=r"no column left to learn from. 'id' is left out"):
        learn_columns({"id": ["a", "b", "c"], "kind": [0, 1, 1]}, targets=["kind"])
    with pytest.raises(InputError, match=r"`drop` must name columns; there is no 'x'. There are 'a'"):
        learn_columns({"a": [1]}, drop=["x"])
    with pytest.raises(CellError, match="finite"):
        learn_columns({"a": ["1", "inf"]})


def test_classes() -> None:
    assert classes_of({"y": pa.array(["1", "2", "1"])}, "y").tolist() == [1, 2, 1]
    assert classes_of({"y": ["a", " b", "a"]}, "y").tolist() == ["a", "b", "a"]
    assert classes_of({"y": np.array([1.0, 0.0, 1.0])}, "y").dtype == np.int64
    for cells, message in {
        ("a", None, "b"): "row 2: 'y' must be there in every row",
        ("a", "a"): "at least 2 classes; every row has a",
        (0.5, 1.0, 2.0): "numbers with fractions, from 0.5 to 2",
        tuple("abcdef"): "6 different values in 6 rows",
    }.items():
        with pytest.raises(InputError, match=message):
            classes_of({"y": list(cells)}, "y")


def test_labels() -> None:
    table = {"a": ["0", "1"], "b": [True, False], "c": ["yes", "No"], "d": [1, 2], "e": [1, None]}
    assert labels_of(table, ["a", "b", "c"]).tolist() == [[0, 1, 1], [1, 0, 0]]
    for targets, message in {
        ("a", "d"): "row 2: 'd' must be 0 or 1; got '2'",
        ("a", "e"): "row 2",
        ("a",): "2",
    }.items():
        with pytest.raises(InputError, match=message):
            labels_of(table, list(targets))


# --- saving ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> EnergyScorer:
    return EnergyScorer("mean", n_hidden=2, max_epochs=1, random_state=0).fit(np.random.default_rng(0).random((30, 4)))


@pytest.mark.parametrize("name", ["model", "model.zip"])
def test_columns_travel_with_the_model(model: EnergyScorer, tmp_path: Path, name: str) -> None:
    save(model, tmp_path / name, columns=COLUMNS)
    assert read_columns(tmp_path / name) == COLUMNS
    X = COLUMNS.matrix(TABLE)
    np.testing.assert_allclose(load(tmp_path / name).score_samples(X), model.score_samples(X), rtol=1e-6, atol=1e-8)
    save(model, tmp_path / name)
    assert read_columns(tmp_path / name) is None


def test_a_model_without_columns_is_saved_as_ever(model: EnergyScorer, tmp_path: Path) -> None:
    save(model, tmp_path / "model")
    assert "columns" not in json.loads((tmp_path / "model" / "config.json").read_text())


def test_columns_must_fit_the_model(model: EnergyScorer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must make rows of 4 numbers, as the model takes; they make 1"):
        save(model, tmp_path / "model", columns=Columns.plain(["a"]))
    assert not (tmp_path / "model").exists()


def test_altered_columns_are_noticed(model: EnergyScorer, tmp_path: Path) -> None:
    from energate.persistence.config import checksum

    save(model, tmp_path / "model", columns=COLUMNS)
    place = tmp_path / "model" / "config.json"
    config = json.loads(place.read_text())
    config["columns"]["inputs"][0]["fill"] = 0.0
    place.write_text(json.dumps(config))
    for read in (read_columns, load):
        with pytest.raises(InputError, match=r"damaged: config.json is not what was saved"):
            read(tmp_path / "model")
    config["columns"]["inputs"].pop()
    config["sha256"] = checksum(config)  # somebody who knows how
    place.write_text(json.dumps(config))
    for read in (read_columns, load):
        with pytest.raises(InputError, match=r"the `columns` in config.json cannot be read.*rows of 4 numbers"):
            read(tmp_path / "model")


def test_a_path_is_checked_before_the_work(tmp_path: Path) -> None:
    check_path(tmp_path / "new.zip")
    with pytest.raises(InputError, match="there is no folder"):
        check_path(tmp_path / "no" / "model.zip")
    (tmp_path / "other.zip").write_text("precious")
    with pytest.raises(InputError, match="not overwritten"):
        check_path(tmp_path / "other.zip")


# --- files -----------------------------------------------------------------------------------------------------

CELLS = {
    "id": np.array(["a,1", 'b"2', "line\nbreak", "it's", "ä", "?"], dtype=object),
    "size": np.array([1.5, np.nan, 3, 1e300, -0.25, 7]),
    "n": np.arange(6),
}


def written(path: Path, batches: list[dict[str, Any]], source: Any = None) -> Path:
    origin = source or open_table(_small(path.parent))
    with path.open("wb") as file, open_writer(path.suffix, file, origin) as writer:
        for batch in batches:
            writer.write(batch)
    return path


def _small(folder: Path) -> Path:
    (folder / "small.csv").write_text("a\n1\n")
    return folder / "small.csv"


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_written_is_read_again(tmp_path: Path, suffix: str) -> None:
    first, second = ({name: cells[part] for name, cells in CELLS.items()} for part in (slice(0, 4), slice(4, None)))
    source = open_table(written(tmp_path / f"t{suffix}", [first, second]))
    assert source.names == list(CELLS)
    table = source.read()
    assert n_rows(table) == 6
    codes, different = words(table["id"])
    found = [different[code] for code in codes]
    expected = ["a,1", 'b"2', "line break" if suffix == ".arff" else "line\nbreak", "it's", "ä", None]
    assert found == expected
    np.testing.assert_array_equal(numbers(table["size"], "size"), CELLS["size"])
    np.testing.assert_array_equal(numbers(table["n"], "n"), CELLS["n"])


def test_text_files_keep_their_cells_as_they_are(tmp_path: Path) -> None:
    text = 'id,code,note\n007,1.50,"a, b"\n008,,"say ""so"""\n009,+1e2,plain\n'
    (tmp_path / "in.csv").write_text(text)
    source = open_table(tmp_path / "in.csv")
    assert written(tmp_path / "out.csv", list(source.batches()), source).read_text() == text


@example(rows=[("\r", "")])
@given(rows=st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=1, max_size=5))
@settings(max_examples=50)
def test_any_text_survives_csv(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("csv")
    cells = [[cell.replace("\0", "") for cell in (*row, "end")] for row in rows]
    batch = {name: pa.array(column) for name, column in zip("abc", zip(*cells, strict=True), strict=True)}
    path = written(folder / "t.csv", [batch])
    table = open_table(path).read()
    for name, column in batch.items():
        assert table[name].to_pylist() == [cell or None for cell in column.to_pylist()]


@given(st.text(max_size=8))
def test_arff_words_survive_quotes(word: str) -> None:
    assert unquoted(quoted(word)) == " ".join(word.splitlines())


def test_batches_are_joined_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from energate.tables import reading

    monkeypatch.setattr(reading, "BLOCK", 1000)
    monkeypatch.setattr(reading, "CELLS", 60)
    n = 1000
    table = {"id": np.array([f"n{i}" for i in range(n)], dtype=object), "x": np.arange(n) / 8}
    for suffix in FORMATS:
        source = open_table(written(tmp_path / f"t{suffix}", [table]))
        sizes = [n_rows(batch) for batch in source.batches()]
        assert len(sizes) > 5
        assert sum(sizes) == n
        np.testing.assert_array_equal(numbers(source.read()["x"], "x"), table["x"])


@pytest.mark.parametrize("suffix", [".csv", ".arff"])
def test_the_line_of_a_row_is_the_true_one(tmp_path: Path, suffix: str) -> None:
    head = "a,b\n" if suffix == ".csv" else "@relation r\n@attribute a string\n@attribute b string\n@data\n"
    text = head + 'p,1\n\n"two\nlines",2\nq,3\n' if suffix == ".csv" else head + "p,1\n\n% a comment\nx,2\nq,3\n"
    (tmp_path / f"t{suffix}").write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each == "q,3")
    source = open_table(tmp_path / f"t{suffix}")
    assert source.where(2) == f"t{suffix}, line {line}"
    assert source.told(CellError("b", 1, "x", "a number"), 1).args[0].startswith(f"t{suffix}, line {line}: 'b'")


def test_npz_files_of_several_kinds(tmp_path: Path) -> None:
    X, Y = np.arange(12.0).reshape(4, 3), np.eye(4, 2, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", X=np.asfortranarray(X), Y=Y, label_names=["on", "off"], id=list("abcd"), note=3)
    source = open_table(tmp_path / "a.npz")
    assert source.names == ["x0", "x1", "x2", "on", "off", "id"]
    table = source.read()
    np.testing.assert_array_equal(np.stack([table[f"x{i}"] for i in range(3)], 1), X)
    again = open_table(written(tmp_path / "b.npz", list(source.batches()), source))
    assert again.names == source.names
    with np.load(tmp_path / "b.npz") as content:
        np.testing.assert_array_equal(content["X"], X)
        assert content["Y"].dtype == np.uint8
        assert content["label_names"].tolist() == ["on", "off"]
    np.savez_compressed(tmp_path / "c.npz", x_train=X, y_train=[0, 1, 0, 1], x_test=X[:2], y_test=[1, 1], shape=[1, 3])
    assert n_rows(open_table(tmp_path / "c.npz").read()) == 4
    assert open_table(tmp_path / "c.npz", "test").read()["y"].tolist() == [1, 1]
    with pytest.raises(InputError, match="must have the part 'valid'; it has 'train', 'test'"):
        open_table(tmp_path / "c.npz", "valid")


BAD = {
    "empty.csv": (b"", "is empty"),
    "blank.csv": (b"\n\n", "is empty"),
    "rows.csv": (b"a,b\n", "has no rows"),
    "short.csv": (b"a,b\n1,2\n\n3\n", "must have 2 values in each row, .* line 4 has 1"),
    "long.tsv": (b"a\tb\n1\t2\t3\n", "line 2 has 3"),
    "twice.csv": (b"a,a\n1,2\n", "'a' occur more than once"),
    "noname.csv": (b",\n1,2\n", "all names are empty"),
    "no.parquet": (b"PAR1 no", "must be a Parquet file"),
    "no.npz": (b"PK no", "must be an NPZ file"),
    "no.arff": (b"a,b\n1,2\n", "line 1: expected @relation"),
    "rows.arff": (b"@relation r\n@attribute a numeric\n@data\n", "has no rows"),
    "text.arff": (b"@relation r\n@attribute a numeric\n@data\n1\nx\n", "text.arff, line 5: 'a' must be a number"),
    "table.xls": (b"", "must be a .csv, .tsv, .parquet, .npz or .arff file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_table(tmp_path / name).read()


def test_bad_arrays_are_refused(tmp_path: Path) -> None:
    for arrays, message in (
        ({"X": np.zeros(3)}, "must be a table of numbers"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, "must have a table X, or arrays of one length"),
        ({"X": np.zeros((2, 3)), "feature_names": ["a"]}, "a name for each of the 3 columns of X; it has 1"),
        ({"X": np.zeros((2, 1)), "x0": np.zeros(2)}, "'x0' occur more than once"),
    ):
        np.savez(tmp_path / "t.npz", **arrays)
        with pytest.raises(InputError, match=message):
            open_table(tmp_path / "t.npz")
    with pytest.raises(InputError, match="There is no file"):
        open_table(tmp_path / "nowhere.csv")


def test_a_file_that_ends_too_soon_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.random.default_rng(0).random((100, 10)))
    table = pa.table({"a": np.random.default_rng(0).random(10_000)})
    parquet.write_table(table, tmp_path / "t.parquet")
    for name in ("t.npz", "t.parquet"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(InputError, match="cannot be read"):
            open_table(tmp_path / name).read()


@settings(deadline=None)
@given(st.lists(st.floats(-1e308, 1e308) | st.just(math.nan), min_size=1))
def test_what_a_model_computed_is_written_as_text_with_ten_digits(numbers: list[float]) -> None:
    computed = {"a": np.array(numbers), "b": np.arange(len(numbers)), "c": np.array(["x"] * len(numbers))}
    found = as_printed(computed, ".csv")
    np.testing.assert_allclose(found["a"], numbers, rtol=0.51e-9, atol=1e-323)
    texts = [repr(number) for number in found["a"].tolist()]
    assert "-0.0" not in texts
    assert max(len(re.sub(r"e.*|[-.]|\.0$", "", text).strip("0")) for text in texts) <= 10
    assert found["b"] is computed["b"]
    assert found["c"] is computed["c"]
    assert as_printed(computed, ".parquet") is computed
    extreme = np.array([np.finfo(float).max, np.inf, -np.inf])
    np.testing.assert_array_equal(as_printed({"a": extreme}, ".arff")["a"], extreme)
