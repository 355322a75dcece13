"""Tables as they are: missing cells and categories in every container, for every kind of units."""

import copy
import datetime
import pickle
from typing import Any

import numpy as np
import pytest
from cases import CLASSIFIERS, EstimatorCase, mixed_columns
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.compose import make_column_selector
from sklearn.model_selection import cross_val_score

from energate import EnergyClassifier
from energate.errors import InputError
from energate.estimators.cells import ABSENT, Cells
from energate.tables.values import keys_of

pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")

COLUMNS, Y = mixed_columns()
#: `grade` is numbers unless somebody says otherwise
FRAME = pandas.DataFrame(COLUMNS)
CODES = {None: np.nan, "blue": 0, "green": 1, "red": 2}
ARRAY = np.array(
    [COLUMNS["size"], COLUMNS["age"], [CODES[c] for c in COLUMNS["colour"]], COLUMNS["grade"]], dtype=float
).T
SEEN = ["size", "age", f"age={ABSENT}", "colour=blue", "colour=green", "colour=red", f"colour={ABSENT}"]
QUICK: dict[str, Any] = {
    "n_hidden": 6, "n_factors": 6, "pretrain_epochs": 2, "max_epochs": 3, "random_state": 0, "device": "cpu",
}  # fmt: skip


def quick(**options: Any) -> EnergyClassifier:
    return EnergyClassifier("mean", **{**QUICK, **options})


@pytest.fixture(scope="module")
def model() -> EnergyClassifier:
    return quick().fit(FRAME, Y)


# --- cells -----------------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[Cells, np.ndarray]:
    """What a fit may have found in up to five columns, and rows of numbers, keys, others and holes."""
    n_columns, n_rows = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    word = st.sampled_from(["a", "b", "c", "7", "2.5", "-1", "0"])
    kinds = draw(st.lists(st.none() | st.lists(word, unique=True, max_size=4), min_size=n_columns, max_size=n_columns))
    missing = draw(st.lists(st.booleans(), min_size=n_columns, max_size=n_columns))
    missing = [flag or kind == [] for flag, kind in zip(missing, kinds, strict=True)]
    fill = draw(st.lists(st.floats(-9, 9), min_size=n_columns, max_size=n_columns))
    categories = {place: tuple(kind) for place, kind in enumerate(kinds) if kind is not None}
    cell = st.sampled_from([np.nan, -1.0, 0.0, 1.0, 2.0, 2.5, 7.0]) | st.floats(-1e300, 1e300)
    rows = draw(st.lists(st.lists(cell, min_size=n_columns, max_size=n_columns), min_size=n_rows, max_size=n_rows))
    return Cells(np.array(fill), np.array(missing), categories), np.array(rows, dtype=float).reshape(n_rows, n_columns)


def slowly(cells: Cells, row: np.ndarray) -> list[float]:
    """A row as the model sees it, cell by cell."""
    found: list[float] = []
    for place, value in enumerate(row.tolist()):
        gone = value != value
        if place in cells.categories:
            found += [float(value == key) for key in keys_of(cells.categories[place]).tolist()]
        else:
            found.append(float(cells.fill[place]) if gone else value)
        if cells.missing[place]:
            found.append(float(gone))
    return found


@given(tables())
@settings(deadline=None, max_examples=200)
def test_rows_are_seen_as_the_columns_say(table: tuple[Cells, np.ndarray]) -> None:
    cells, X = table
    seen = cells.expand(X)
    expected = np.array([slowly(cells, row) for row in X]).reshape(len(X), cells.width)
    np.testing.assert_array_equal(seen, expected)
    names = [f"c{i}" for i in range(cells.n_columns)]
    assert len(cells.names(names)) == cells.width == len(cells.numeric)
    assert [name for name, number in zip(cells.names(names), cells.numeric, strict=True) if number] == [
        name for place, name in enumerate(names) if place not in cells.categories
    ]
    cells.check(cells.n_columns)
    drawn = cells.drawn(np.zeros((40, cells.width)), np.random.RandomState(0))
    assert not np.isnan(drawn[:, ~cells.missing]).any()
    assert not np.isnan(cells.expand(drawn)).any()


def test_numbers_that_are_all_there_are_seen_as_they_are() -> None:
    X = np.arange(12.0).reshape(4, 3)
    cells = quick().fit(X, [0, 1, 0, 1]).cells_
    assert cells.plain
    assert cells.expand(X) is X
    holes = np.where(X == 4, np.nan, X)
    np.testing.assert_array_equal(cells.expand(holes), np.where(X == 4, np.median(X[:, 1]), X))


def test_what_fit_finds(model: EnergyClassifier) -> None:
    cells = model.cells_
    assert cells.names(model.feature_names_in_) == [*SEEN, "grade"]
    assert cells.categories == {2: ("blue", "green", "red")}
    assert cells.missing.tolist() == [False, True, True, False]
    np.testing.assert_allclose(cells.fill, [np.median(FRAME["size"]), FRAME["age"].median(), 0, 3])
    assert (model.n_features_in_, cells.width) == (4, 8)
    assert {part.width for part in model.model_.autoencoders} == {8}
    tags = model.__sklearn_tags__()
    assert tags.input_tags.allow_nan
    assert tags.input_tags.categorical


# --- containers ------------------------------------------------------------------------------------------------


def forms() -> dict[str, Any]:
    frame = FRAME.assign(colour=FRAME["colour"].astype("category"), grade=FRAME["grade"].astype("Int64"))
    return {
        "category": frame,
        "string": FRAME.assign(colour=FRAME["colour"].astype("string")),
        "object": FRAME.astype(object),
        "arrow": pa.Table.from_pandas(frame),
        "arrow text": pa.Table.from_pandas(FRAME, preserve_index=False),
    }


@pytest.mark.parametrize("form", forms())
def test_every_frame_says_the_same(form: str, model: EnergyClassifier) -> None:
    frame, expected = forms()[form], model.predict_proba(FRAME)
    np.testing.assert_allclose(model.predict_proba(frame), expected, atol=1e-10)
    again = quick().fit(frame, Y)
    np.testing.assert_allclose(again.predict_proba(FRAME), expected, atol=1e-10)
    assert again.feature_names_in_.tolist() == list(FRAME)


def test_polars_frames(model: EnergyClassifier) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(COLUMNS).with_columns(polars.col("colour").cast(polars.Categorical))
    np.testing.assert_allclose(model.predict_proba(frame), model.predict_proba(FRAME), atol=1e-10)
    np.testing.assert_allclose(quick().fit(frame, Y).predict_proba(FRAME), model.predict_proba(FRAME), atol=1e-10)


@pytest.mark.parametrize("case", CLASSIFIERS, ids=lambda case: case.name)
def test_a_frame_and_an_array_of_codes_are_the_same(case: EstimatorCase) -> None:
    frame = FRAME.assign(grade=FRAME["grade"].astype("category"))
    by_frame, by_array = case.fit(frame, Y), case.fit(ARRAY, Y, categorical_features=[2, 3])
    probabilities = case.scores(by_frame, frame)
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(case.scores(by_array, ARRAY), probabilities, atol=1e-10)
    with pytest.warns(UserWarning, match="valid feature names"):  # text is the number of its category in an array
        np.testing.assert_allclose(case.scores(by_frame, ARRAY), probabilities, atol=1e-10)


@pytest.mark.parametrize(
    "asked", [[2, 3], (3, 2), np.array([2, 3]), [False, False, True, True], ["grade", "colour"]], ids=str
)
def test_columns_may_be_numbered_marked_or_named(asked: Any) -> None:
    named = asked[0] == "grade"
    expected = quick(categorical_features=[2, 3]).fit(ARRAY, Y).predict_proba(ARRAY)
    for rows in (FRAME,) if named else (FRAME, FRAME.to_numpy(), FRAME.to_numpy().tolist(), ARRAY):
        found = quick(categorical_features=asked).fit(rows, Y)
        np.testing.assert_allclose(found.predict_proba(rows), expected, atol=1e-10)
    assert found.cells_.categories.keys() == {2, 3}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("grade", "must be None, 'from_dtype', or names"),
        ([4], "from 0 to 3"),
        ([-1], "from 0 to 3"),
        ([True, False], "the mask has 2 entries, and there are 4 columns"),
        ([1.5], r"got \[1.5\]"),
        (["weight"], "there is no 'weight': there are 'size', 'age'"),
        (None, "'colour' holds categories, name it in `categorical_features`"),
        ([3], "'colour' holds categories, name it in `categorical_features`"),
    ],
)
def test_columns_that_cannot_be_meant(asked: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick(categorical_features=asked).fit(FRAME, Y)


def test_an_array_of_text_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"holds text .*Name the columns that are categories"):
        quick().fit(FRAME.to_numpy(), Y)
    with pytest.raises(InputError, match="these columns have no names"):
        quick(categorical_features=["colour"]).fit(ARRAY, Y)


def test_rows_that_fit_did_not_see(model: EnergyClassifier) -> None:
    row = FRAME.iloc[:1].assign(size=0.5, age=31.0, colour="red", grade=3)
    seen = {name: place for place, name in enumerate(SEEN)}

    def look(**cells: Any) -> np.ndarray:
        return model.cells_.expand(model._cells(row.assign(**cells)))[0]

    assert look()[seen["colour=red"]] == 1
    new = look(colour="violet")
    assert not new[[place for name, place in seen.items() if name.startswith("colour")]].any()
    assert look(colour=None)[seen[f"colour={ABSENT}"]] == 1
    np.testing.assert_array_equal(look(size=np.nan), look(size=FRAME["size"].median()))  # none was missing
    gone = look(age=np.nan)
    assert gone[[seen["age"], seen[f"age={ABSENT}"]]].tolist() == [pytest.approx(FRAME["age"].median()), 1]
    for frame in (row.assign(colour="violet"), row.assign(size=np.nan), row.assign(age=None, colour=None)):
        assert np.isfinite(model.energies(frame)).all()


def test_numbers_are_words_in_a_frame_and_keys_in_an_array() -> None:
    """A frame whose text happens to be numbers this time is no array of codes."""
    kind = pandas.Categorical([["1", "2", "a"][i % 3] for i in range(120)])
    model = quick().fit(FRAME.assign(colour=kind), Y)
    assert model.cells_.categories[2] == ("1", "2", "a")
    rows = FRAME[:6].assign(colour=["1", "2", "2", "1", "2", "5"])
    expected = model.predict_proba(rows)
    np.testing.assert_allclose(model.predict_proba(rows.assign(colour=[1, 2, 2, 1, 2, 5])), expected, atol=1e-10)
    codes = np.array(
        [
            [size, age, code, grade]
            for (size, age, _, grade), code in zip(rows.to_numpy(), [0, 1, 1, 0, 1, 9], strict=True)
        ],
        dtype=float,
    )
    for array in (codes, codes.tolist()):
        with pytest.warns(UserWarning, match="valid feature names"):
            np.testing.assert_allclose(model.predict_proba(array), expected, atol=1e-10)


def test_names_are_checked_as_scikit_learn_does(model: EnergyClassifier) -> None:
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(FRAME[FRAME.columns[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(FRAME[["size", "age", "colour"]])


# --- columns that are neither ----------------------------------------------------------------------------------


def days(n: int) -> list[datetime.date]:
    return [datetime.date(2020, 1, 1) + datetime.timedelta(days=i) for i in range(n)]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            [f"a note, the {i}th" for i in range(120)],
            "'more' is text with 120 different values in 120 rows: .* Leave it out",
        ),
        (pandas.date_range("2020-01-01", periods=120), "'more' holds dates or times.*Make numbers of them first"),
        (pandas.period_range("2020-01", periods=120, freq="M"), "'more' holds dates or times"),
        (pandas.timedelta_range("1h", periods=120), "'more' holds dates or times"),
        (days(120), "'more' holds dates or times"),
        ([str(day) for day in days(40)] * 3, "'more' holds dates as text.*Make numbers of them first"),
        ([1.0, np.inf] * 60, "finite"),
        ([*["1"] * 119, "x"], "row 120: 'more' must be a number, as in most rows; got 'x'"),
    ],
    ids=["text", "datetime", "period", "timedelta", "dates", "dates as text", "infinite", "mixed"],
)
def test_what_is_neither_number_nor_category_gets_its_line(cells: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick().fit(FRAME.assign(more=cells), Y)


def test_infinity_is_refused_in_numbers_too(model: EnergyClassifier) -> None:
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(np.where(ARRAY > 31, np.inf, ARRAY), Y)
    with pytest.raises(InputError, match="row 1: 'age' must be a finite number"):
        model.predict(FRAME.assign(age=np.inf))
    with pytest.raises(InputError, match="row 1: 'age' must be a number; got 'old'"):
        model.predict(FRAME.assign(age="old"))


def test_text_that_is_numbers_is_numbers() -> None:
    cells = quick().fit(FRAME.assign(age=FRAME["age"].astype("string"), grade=FRAME["grade"].astype(str)), Y).cells_
    assert cells.categories.keys() == {2}
    assert cells.missing.tolist() == [False, True, True, False]


def test_of_too_many_categories_the_most_frequent_are_kept_with_a_warning() -> None:
    rng = np.random.default_rng(0)
    city = pandas.Categorical([f"c{i:03}" for i in [*range(150), *rng.integers(0, 100, 450)]])
    frame, y = pandas.DataFrame({"city": city, "size": rng.normal(size=600)}), rng.integers(0, 2, 600)
    with pytest.warns(UserWarning, match="'city' has 150 different values; the 100 most frequent are taken"):
        model = quick(max_epochs=0, pretrain_epochs=0).fit(frame, y)
    assert len(model.cells_.categories[0]) == 100
    assert model.cells_.width == 101


# --- fitting ---------------------------------------------------------------------------------------------------


def test_rows_of_weight_0_say_nothing() -> None:
    rows = FRAME.assign(colour=np.where(np.arange(120) < 20, "violet", FRAME["colour"]))
    rows.loc[:19, "size"] = np.nan
    weight = (np.arange(120) >= 20).astype(float)
    weighted, alone = quick().fit(rows, Y, sample_weight=weight), quick().fit(rows[20:], Y[20:])
    assert weighted.cells_.same_columns(alone.cells_)
    assert weighted.cells_.categories[2] == ("blue", "green", "red")
    np.testing.assert_allclose(weighted.cells_.fill, alone.cells_.fill)
    np.testing.assert_allclose(weighted.predict_proba(rows), alone.predict_proba(rows), atol=1e-10)


def test_more_rows_come_in_the_columns_of_the_first() -> None:
    model = quick(max_epochs=1).partial_fit(FRAME[:60], Y[:60], classes=[0, 1])
    cells = model.cells_
    model.partial_fit(FRAME[60:].assign(colour="violet", size=np.nan), Y[60:])
    assert model.cells_ is cells
    assert np.isfinite(model.predict_proba(FRAME)).all()


def test_rows_to_stop_early_on_are_seen_alike(model: EnergyClassifier) -> None:
    other = FRAME[:40].assign(colour="violet", size=np.nan)
    found = quick().fit(FRAME, Y, X_valid=other, y_valid=Y[:40])
    assert found.cells_.same_columns(model.cells_)
    assert np.isfinite(found.liking_).all()
    with pytest.raises(ValueError, match="feature names"):
        quick().fit(FRAME, Y, X_valid=FRAME[["size", "age"]], y_valid=Y)


def test_training_goes_on_where_the_columns_are_the_same() -> None:
    model = quick(warm_start=True).fit(FRAME, Y)
    first = model.model_
    assert model.fit(FRAME[:100], Y[:100]).model_ is first
    assert model.fit(FRAME.assign(colour=FRAME["colour"].replace("red", "violet")), Y).model_ is not first


def test_scikit_learn_tools_take_it(model: EnergyClassifier) -> None:
    assert make_column_selector(dtype_exclude="number")(FRAME) == ["colour"]
    assert cross_val_score(quick(max_epochs=10), FRAME, Y, cv=2, n_jobs=1).mean() > 0.6
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), clone(model).fit(FRAME, Y)):
        np.testing.assert_allclose(other.predict_proba(FRAME), model.predict_proba(FRAME), atol=1e-10)


def test_missing_cells_and_categories_tell_something() -> None:
    """What only the holes, or only the categories, know is learned."""
    rng, y = np.random.default_rng(0), np.arange(200) % 2
    holes = np.where(y == 1, np.nan, rng.normal(size=200))
    noise = rng.normal(size=200)
    kinds = rng.choice([[0, 3, 5], [1, 2, 4]], 200)
    for column, rows in {"holes": holes, "kinds": np.take_along_axis(kinds, y[:, None], 1)[:, 0]}.items():
        model = quick(max_epochs=30, categorical_features=[1] if column == "kinds" else None)
        X = np.stack([noise, rows], 1)
        assert model.fit(X[:150], y[:150]).score(X[150:], y[150:]) > 0.9
