import os
import re
import tempfile
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import arff as scipy_arff

from energate.datasets import (
    MULTILABEL_NAMES,
    MultiLabelDataset,
    describe_multilabel,
    load_arff,
    load_multilabel,
    make_correlated_labels,
    multilabel,
    prepare_audio,
    sources,
    split_rows,
)
from energate.errors import InputError
from energate.files import sha256_of

#: labels per row
PUBLISHED = {
    "yeast": 4.24,
    "scene": 1.07,
    "majorminer": 3.85,
    "cal500": 26.04,
    "medical": 1.25,
    "enron": 3.38,
    "corel5k": 3.52,
    "bibtex": 2.40,
    "delicious": 19.02,
}


def write(folder: Path, name: str, **changes: np.ndarray) -> None:
    """A file of the shape that the set of this name has, with random content."""
    about, rng = describe_multilabel(name), np.random.default_rng(0)
    arrays = {
        "X": rng.standard_normal((about.n_rows, about.n_features)).astype(np.float32),
        "Y": rng.integers(2, size=(about.n_rows, about.n_labels), dtype=np.uint8),
        "feature_names": np.array([f"x{i}" for i in range(about.n_features)]),
        "label_names": np.array([f"y{i}" for i in range(about.n_labels)]),
    }
    np.savez(folder / f"{name}.npz", **(arrays | changes))


# --- sets by name --------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("name", MULTILABEL_NAMES)
def test_every_set_has_the_published_shape_and_density(name: str) -> None:
    data, about = load_multilabel(name, source="folder"), describe_multilabel(name)
    assert data.X.shape == (about.n_rows, about.n_features)
    assert data.Y.shape == (about.n_rows, about.n_labels)
    assert (data.X.dtype, data.Y.dtype) == (np.float32, np.uint8)
    assert data.Y.max() == 1
    assert data.Y.sum(1).mean() == pytest.approx(PUBLISHED[name], abs=0.006)
    assert len(set(data.label_names)) == about.n_labels
    assert data.provenance["word"] == ("substitute" if name in ("majorminer", "cal500") else "original")
    assert data.provenance["source"] == "folder"
    assert list(data.provenance["files"]) == [f"{name}.npz"]
    assert (data.split is not None) == (name in ("yeast", "scene", "corel5k"))


@pytest.mark.data
def test_the_published_splits_and_the_artists_are_there() -> None:
    yeast, scene = load_multilabel("yeast"), load_multilabel("scene")
    assert yeast.split is not None
    assert scene.split is not None
    assert [len(part) for part in (*yeast.split, *scene.split)] == [1500, 917, 1211, 1196]
    music = load_multilabel("majorminer")
    assert music.groups is not None
    assert 500 < len(set(music.groups)) < 1000
    assert yeast.groups is None


@pytest.mark.data
def test_music_is_prepared_unless_it_is_wanted_raw() -> None:
    raw, ready = load_multilabel("majorminer", raw=True), load_multilabel("majorminer")
    assert np.abs(raw.X).max() > 1e13
    assert raw.provenance["preparation"] == ""
    np.testing.assert_allclose(np.linalg.norm(ready.X, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(ready.X, prepare_audio(raw.X), atol=1e-7)
    assert ready.provenance["preparation"]
    np.testing.assert_array_equal(raw.Y, ready.Y)


@pytest.mark.network
def test_yeast_comes_from_the_network(tmp_path: Path) -> None:
    data = load_multilabel("yeast", source="openml", cache=tmp_path)
    assert data.Y.sum(1).mean() == pytest.approx(4.24, abs=0.006)


@pytest.mark.parametrize("part", ["multi", "."])
def test_files_are_found_in_the_folder_or_in_its_part(tmp_path: Path, part: str, monkeypatch) -> None:
    (tmp_path / "single").mkdir()
    folder = tmp_path / part if part == "multi" else tmp_path / "own"
    folder.mkdir()
    write(folder, "cal500")
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path if part == "multi" else folder))
    data = load_multilabel("cal500")
    assert isinstance(data, MultiLabelDataset)
    assert data.label_names[:2] == ("y0", "y1")
    assert data.feature_names[-1] == "x67"
    assert data.provenance["stands_for"] == "MTurk"
    assert data.provenance["files"]["cal500.npz"] == sha256_of(folder / "cal500.npz")
    with pytest.raises(FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((502, 67))}, r"502 rows of 68 columns and 174 labels.*gave \(502, 67\) and \(502, 174\)"),
        ({"label_names": np.array(["a"])}, r"174 labels, all named"),
        ({"Y": np.full((502, 174), 2)}, r"finite numbers, and labels 0 and 1"),
        ({"X": np.full((502, 68), np.nan)}, r"finite numbers, and labels 0 and 1"),
        (
            {"mulan_train_idx": np.arange(400), "mulan_test_idx": np.arange(399, 502)},
            r"published split of cal500 must hold every row once",
        ),
    ],
)
def test_files_with_other_content_are_refused(tmp_path: Path, changes, message: str) -> None:
    write(tmp_path, "cal500", **changes)
    with pytest.raises(InputError, match=message):
        load_multilabel("cal500", folder=tmp_path)


def test_files_without_the_arrays_or_with_other_sums_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "cal500.npz", X=np.zeros((502, 68)))
    with pytest.raises(InputError, match="must have the arrays Y, feature_names, label_names too"):
        load_multilabel("cal500", folder=tmp_path)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  ./multi/cal500.npz\n")
    with pytest.raises(InputError, match=r"cal500.npz is damaged"):
        load_multilabel("cal500", folder=tmp_path)


def test_names_and_sources_that_do_not_exist_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"no multi-label data set 'yeats'. Did you mean 'yeast'\?"):
        load_multilabel("yeats")
    with pytest.raises(InputError, match="`source` must be 'auto', 'folder' or 'openml'; got 'web'"):
        load_multilabel("yeast", source="web")
    with pytest.raises(
        InputError, match=r"medical was not found \(folder: no folder is named.*; openml: medical is not"
    ):
        load_multilabel("medical")
    with pytest.raises(
        InputError, match=r"\(folder: the folder has no bibtex.npz\). Name a folder that has bibtex.npz.$"
    ):
        load_multilabel("bibtex", source="folder", folder=tmp_path)


def openml_yeast(**options: object) -> SimpleNamespace:
    rng = np.random.default_rng(0)
    assert (options["data_id"], options["as_frame"]) == (40597, False)
    return SimpleNamespace(
        data=rng.standard_normal((2417, 103)),
        target=np.where(rng.random((2417, 14)) < 0.3, "TRUE", "FALSE").astype(object),
        feature_names=[f"Att{i}" for i in range(103)],
        target_names=[f"Class{i}" for i in range(14)],
    )


def test_scikit_learn_takes_what_is_asked_of_it(tmp_path: Path, monkeypatch) -> None:
    """Without a stand-in for the whole function: its parameters are checked before it looks for a network."""

    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets._openml.urlopen", offline)
    with pytest.raises(InputError, match=r"openml: data set 40597 cannot be fetched \(URLError\)"):
        load_multilabel("yeast", source="openml", cache=tmp_path)


def test_what_the_network_gives_is_made_a_data_set(monkeypatch) -> None:
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    monkeypatch.setattr(multilabel, "fetch_openml", openml_yeast)
    data = load_multilabel("yeast")
    assert data.provenance["source"] == "openml"
    assert data.split is None
    assert data.Y.mean() == pytest.approx(0.3, abs=0.01)
    assert data.label_names[0] == "Class0"


def test_a_machine_without_a_network_is_told_so(monkeypatch) -> None:
    def offline(**options: object) -> None:
        raise URLError("no network")

    def damaged(**options: object) -> None:
        raise ValueError("md5 checksum")

    def other(**options: object) -> SimpleNamespace:
        bunch = openml_yeast(**options)
        bunch.target[3, 1] = "maybe"
        return bunch

    monkeypatch.delenv(sources.VARIABLE, raising=False)
    monkeypatch.setattr(multilabel, "fetch_openml", offline)
    with pytest.raises(InputError, match=r"data set 40597 cannot be fetched \(URLError\)\).*machine with a network"):
        load_multilabel("yeast")
    monkeypatch.setattr(multilabel, "fetch_openml", damaged)
    with pytest.raises(InputError, match="Data set 40597 of OpenML cannot be used: md5"):
        load_multilabel("yeast")
    monkeypatch.setattr(multilabel, "fetch_openml", other)
    with pytest.raises(InputError, match="must be true or false; got 'maybe'"):
        load_multilabel("yeast")


# --- preparation and splits ----------------------------------------------------------------------------------------


def test_audio_is_prepared_by_the_formula() -> None:
    X = np.random.default_rng(0).standard_cauchy((50, 4)) * [1, 1e3, 1e12, 0] + [0, 0, 0, 7]
    ready = prepare_audio(X)
    logs = np.sign(X) * np.log1p(np.abs(X))
    scores = (logs - logs.mean(0)) / np.where(np.arange(4) < 3, logs.std(0), 1)
    expected = np.clip(scores, -5, 5)
    np.testing.assert_allclose(ready, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-10)
    np.testing.assert_allclose(prepare_audio(X[:7], X), ready[:7], atol=1e-12)  # known rows set the scale
    far = prepare_audio([[1e30, 0.0]], X[:, :2])
    assert np.abs(far).max() <= 1
    assert not prepare_audio(np.ones((3, 2))).any()  # constant columns say nothing, and nothing is divided by 0


def test_audio_that_cannot_be_prepared_is_refused() -> None:
    with pytest.raises(InputError, match=r"table \(n, D\) of finite numbers; got shape \(3,\)"):
        prepare_audio([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="finite"):
        prepare_audio([[np.inf]])
    with pytest.raises(InputError, match="`reference` must have 2 columns, as X; it has 3"):
        prepare_audio(np.ones((2, 2)), np.ones((2, 3)))


@given(n_rows=st.integers(10, 3000), seed=st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_splits_hold_every_row_once(n_rows: int, seed: int) -> None:
    train, valid, test = split_rows(n_rows, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, valid, test])), np.arange(n_rows))
    assert len(valid) == len(test) == n_rows // 10
    for part, again in zip((train, valid, test), split_rows(n_rows, seed), strict=True):
        np.testing.assert_array_equal(part, again)


def test_splits_differ_between_seeds_and_need_ten_rows() -> None:
    assert set(split_rows(100, 0)[2]) != set(split_rows(100, 1)[2])
    with pytest.raises(InputError, match="`n_rows` must be at least 10"):
        split_rows(9, 0)


# --- labels by rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_labels_depend_on_each_other_given_the_row(seed: int) -> None:
    data = make_correlated_labels(4000, 10, 8, seed)
    assert data.best_exact_match > data.independent_exact_match + 0.1
    # The expectations are those of rules that can be followed.
    best = data.vectors[data.probabilities.argmax(1)]
    independent = data.probabilities @ data.vectors > 0.5
    for rule, expected in ((best, data.best_exact_match), (independent, data.independent_exact_match)):
        assert (rule == data.Y).all(1).mean() == pytest.approx(expected, abs=0.03)
    # Taken one by one the labels cannot be predicted better than by the independent rule.
    assert (independent != data.Y).mean() <= (best != data.Y).mean()


@given(
    n_labels=st.integers(1, 62), n_vectors=st.integers(1, 20), sharpness=st.floats(0, 100), seed=st.integers(0, 1000)
)
@settings(max_examples=50, deadline=None)
def test_only_the_chosen_vectors_occur(n_labels: int, n_vectors: int, sharpness: float, seed: int) -> None:
    n_vectors = min(n_vectors, 2**n_labels)
    data = make_correlated_labels(40, 3, n_labels, seed, n_vectors=n_vectors, sharpness=sharpness)
    assert data.X.shape == (40, 3)
    assert len(np.unique(data.vectors, axis=0)) == n_vectors
    assert (data.Y[:, None] == data.vectors).all(2).any(1).all()
    np.testing.assert_allclose(data.probabilities.sum(1), 1)
    assert 0 <= data.independent_exact_match <= data.best_exact_match + 1e-12 <= 1 + 1e-11
    np.testing.assert_array_equal(
        make_correlated_labels(40, 3, n_labels, seed, n_vectors=n_vectors, sharpness=sharpness).Y, data.Y
    )


def test_rules_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="`n_vectors` must be from 1 to 4, as 2 labels have; got 5"):
        make_correlated_labels(10, n_labels=2, n_vectors=5)
    for options in ({"n_rows": 0}, {"n_features": 0}, {"n_labels": 63}, {"sharpness": float("nan")}):
        with pytest.raises(InputError, match="must be at least 1, `n_labels` from 1 to 62"):
            make_correlated_labels(**({"n_rows": 5} | options))  # type: ignore[arg-type]


# --- ARFF ----------------------------------------------------------------------------------------------------------

DENSE = """% a comment
@relation 'small: -C -2'

@ATTRIBUTE width numeric
@attribute 'the height' REAL
@attribute Beach {0,1}
@attribute "Sun set" {1, 0}

@data
1.5,-2e3,0,1
% another comment
?, 4 , 1, 0
"""
SPARSE = """@relation small
@attribute width numeric
@attribute 'the height' integer
@attribute Beach {0,1}
@attribute "Sun set" {FALSE,TRUE}
@data
{0 1.5,1 -2000,3 TRUE}
{ 0 ?, 1 4, 2 1 }
{}
"""
XML = """<?xml version="1.0"?>
<!-- the labels -->
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="Sun set"></label><label name="Beach"><label name="width"/></label>
</labels>"""


def arff(folder: Path, text: str) -> Path:
    path = folder / "small.arff"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("labels", [None, -2, ["Beach", "Sun set"]])
def test_dense_files_load(tmp_path: Path, labels) -> None:
    X, Y, features, names = load_arff(arff(tmp_path, DENSE), labels)
    np.testing.assert_array_equal(X, [[1.5, -2000], [np.nan, 4]])
    np.testing.assert_array_equal(Y, [[0, 1], [1, 0]])
    assert Y.dtype == np.uint8
    assert features == ["width", "the height"]
    assert names == ["Beach", "Sun set"]


def test_sparse_files_load(tmp_path: Path) -> None:
    X, Y, features, names = load_arff(arff(tmp_path, SPARSE), -2)
    np.testing.assert_array_equal(X, [[1.5, -2000], [np.nan, 4], [0, 0]])
    np.testing.assert_array_equal(Y, [[0, 1], [1, 0], [0, 0]])
    assert (features, names) == (["width", "the height"], ["Beach", "Sun set"])
    # What is left out is the first of the values, whichever that is.
    X, Y, _, _ = load_arff(arff(tmp_path, SPARSE.replace("{FALSE,TRUE}", "{TRUE,FALSE}")), ["Sun set"])
    assert Y.ravel().tolist() == [1, 1, 1]
    assert X.shape == (3, 3)


def test_labels_may_stand_first_or_in_a_file_of_names(tmp_path: Path) -> None:
    text = "@relation 'a: -C 1'\n@attribute y {0,1}\n@attribute x real\n@data\n1,5\n0,6\n"
    assert load_arff(arff(tmp_path, text))[1].ravel().tolist() == [1, 0]
    (tmp_path / "labels.xml").write_text(XML)
    path = arff(tmp_path, DENSE.replace("1.5,", "1,").replace("?,", "0,"))
    X, Y, features, names = load_arff(path, tmp_path / "labels.xml")
    assert names == ["Sun set", "Beach", "width"]  # in the order of the file of names
    np.testing.assert_array_equal(Y, [[1, 0, 1], [0, 1, 0]])
    assert features == ["the height"]
    assert X.ravel().tolist() == [-2000, 4]


@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(-5, 5), st.sampled_from("01")),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=40, deadline=None)
def test_dense_files_are_read_as_scipy_reads_them_and_sparse_ones_the_same(rows: list) -> None:
    head = "@relation r\n@attribute a real\n@attribute b integer\n@attribute c {0,1}\n@data\n"
    dense = head + "".join(f"{a!r},{b},{c}\n" for a, b, c in rows)
    sparse = head + "".join(
        "{" + ",".join(f"{i} {v}" for i, v in enumerate(row) if v not in (0, "0")) + "}\n" for row in rows
    )
    with tempfile.TemporaryDirectory() as folder:
        path = arff(Path(folder), dense)
        X, Y, _, _ = load_arff(path, -1)
        known, _ = scipy_arff.loadarff(path)
        others = load_arff(arff(Path(folder), sparse), -1)
    np.testing.assert_array_equal(X, np.stack([known["a"], known["b"]], 1))
    np.testing.assert_array_equal(Y[:, 0], known["c"].astype(int))
    np.testing.assert_array_equal(others[0], X)
    np.testing.assert_array_equal(others[1], Y)


def test_quotes_and_escapes_are_undone(tmp_path: Path) -> None:
    text = "@relation r\n@attribute 'it\\'s, {odd}' real\n@attribute \"y %\" {'0','1'}\n@data\n'1.5','1'\n2,0\n"
    X, Y, features, names = load_arff(arff(tmp_path, text), 1 - 2)
    assert features == ["it's, {odd}"]
    assert names == ["y %"]
    assert X.ravel().tolist() == [1.5, 2]
    assert Y.ravel().tolist() == [1, 0]


HEAD = "@relation r\n@attribute a real\n@attribute b {0,1}\n@data\n"


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("", -1, "must have attributes, and rows after a line @data"),
        (HEAD, -1, "has no rows"),
        ("hello\n", -1, r"line 1: expected @relation, @attribute or @data; got 'hello'"),
        (HEAD.replace("real", "string") + "x,1\n", -1, "numbers only, but for the labels; 'a': turn text into numbers"),
        (HEAD.replace("real", "{red,blue}") + "red,1\n", -1, "numbers only, but for the labels; 'a'"),
        (HEAD.replace("real", "date 'yyyy-MM-dd'") + "2001-01-01,1\n", -1, "numbers only, but for the labels; 'a'"),
        ("@attribute a\n", -1, "expected '@attribute name type'"),
        (HEAD + "1\n", -1, "line 5: expected 2 values; got 1"),
        (HEAD + "1,0,{2}\n", -1, r"line 5: expected values between commas; got '\{2\}'"),
        (HEAD + "1,\n", -1, "expected values between commas; got ''"),
        (HEAD + "x,1\n", -1, "'a' must be a number; got 'x'"),
        (HEAD + "1,2\n", -1, "'b' must be one of 0, 1; got '2'"),
        (HEAD + "1,?\n", -1, "line 5: 'b' must be there in every row .*Check that `labels` names the labels"),
        (HEAD + "2,1\n", 1, "line 5: 'a' must be 0 or 1; got '2'. Check that `labels` names"),
        (HEAD + "{0 1\n", -1, "a sparse row must end with a brace"),
        (HEAD + "{1 1, 0 1}\n", -1, "must rise, from 0 to 1; got 0"),
        (HEAD + "{2 1}\n", -1, "must rise, from 0 to 1; got 2"),
        (HEAD + "{0 1 1 1}\n", -1, "expected values between commas"),
        (HEAD.replace("attribute b", "attribute a") + "1,1\n", -1, "every attribute its own name"),
        (HEAD + "1,1\n", None, "does not say which attributes are labels"),
        (HEAD + "1,1\n", 0, "a number of labels from 1 to 2, or less than 0 to count from the end; got 0"),
        (HEAD + "1,1\n", -3, "from 1 to 2"),
        (HEAD + "1,1\n", 2, "must have attributes beside the 2 labels"),
        (HEAD + "1,1\n", ["c"], "got 1 names, of which 1 are not there: 'c'"),
        (HEAD + "1,1\n", ["b", "b"], "each once"),
        (HEAD + "1,1\n", [], "got 0 names"),
        (HEAD + "1,1\n", "no.xml", "there is no file 'no.xml'"),
    ],
)
def test_arff_files_that_cannot_be_used_are_refused(tmp_path: Path, text: str, labels, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_arff(arff(tmp_path, text), labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<labels>", "must be an XML file of labels; it cannot be read"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><labels/>', "without declarations"),
        ("<labels/>", "got 0 names"),
    ],
)
def test_files_of_names_that_cannot_be_used_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.xml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_arff(arff(tmp_path, DENSE), tmp_path / "labels.xml")


def test_arff_files_that_are_not_there_or_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape("There is no file 'no.arff' in the folder")):
        load_arff(tmp_path / "no.arff", -1)
    (tmp_path / "bytes.arff").write_bytes(b"@relation \xff\n")
    with pytest.raises(InputError, match="must be text in UTF-8"):
        load_arff(tmp_path / "bytes.arff", -1)


@pytest.mark.data
def test_the_genuine_rows_have_unit_norm_as_prepared_ones_do() -> None:
    """The published rows of the set that majorminer stands for are of norm 1, as `prepare_audio` makes them."""
    with np.load(Path(os.environ[sources.VARIABLE], "multi", "majmin_genuine60.npz"), allow_pickle=False) as content:
        np.testing.assert_allclose(np.linalg.norm(content["X"], axis=1), 1, atol=1e-5)
