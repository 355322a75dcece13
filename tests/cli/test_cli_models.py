"""`energate fit`, `predict`, `score` and `refine`: as a user calls them, and as real processes that are killed."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import mixed_columns
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from typer.testing import CliRunner

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer, load, save
from energate.cli import app
from energate.datasets import make_correlated_labels
from energate.errors import InputError
from energate.persistence import read_columns
from energate.tables import Columns, NumberColumn
from energate.tables.reading import open_table
from energate.views.fitting import hold_out

pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
csv = pytest.importorskip("pyarrow.csv")
pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")

FAST = ("--epochs", "2", "--device", "cpu")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
MEGABYTE = 2**20


def call(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def refused(*arguments: Any) -> str:
    """The one line that a command with bad input writes; it must be all that it writes."""
    result = call(*arguments, code=2)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Note: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


def flowers(n_rows: int = 60, seed: int = 0) -> str:
    """A table as people write it: an id, numbers, a category, missing cells, and text with a comma."""
    random = np.random.default_rng(seed)
    lines = ["id,size,colour,width,note,kind"]
    for i in range(n_rows):
        kind = i % 3
        size = "" if i % 11 == 5 else f"{random.normal(3 * kind, 0.3):.3f}"
        colour = "" if i % 13 == 7 else ("red", "blue", "white")[(kind + int(random.random() < 0.1)) % 3]
        note = '"well, well"' if i % 5 else "plain"
        lines.append(f"n{i:03d},{size},{colour},{random.normal():.3f},{note},{('iris', 'rose', 'tulip')[kind]}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, and a model of each kind."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "flowers.csv").write_text(flowers())
    call("fit", folder / "flowers.csv", "--target", "kind", "-o", folder / "classes.zip", "--epochs", "20")
    call("fit", folder / "flowers.csv", "--task", "anomaly", "--drop", "kind", "-o", folder / "anomaly", *FAST)
    data = make_correlated_labels(200, seed=0, sharpness=4.0)
    names = [f"label_{i}" for i in range(data.Y.shape[1])]
    columns = {f"f{i}": data.X[:, i] for i in range(data.X.shape[1])} | dict(zip(names, data.Y.T, strict=True))
    csv.write_csv(pa.table(columns), folder / "labels.csv")
    call("fit", folder / "labels.csv", "--targets-prefix", "label_", "-o", folder / "labels.zip", *FAST)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def frame(path: Path, model: Any) -> Any:
    """The columns of a table that a model takes, as pandas reads them."""
    found: Any = pandas.read_csv(path, na_values="?")[list(model.feature_names_in_)]
    return found


def cells(path: Path) -> dict[str, list[Any]]:
    return csv.read_csv(path).to_pydict()


# --- fit -------------------------------------------------------------------------------------------------------


def test_fit_says_what_it_did(shelf: Path) -> None:
    result = call("fit", shelf / "flowers.csv", "--target", "kind", "-o", "m.zip", *FAST)
    assert "'id' is left out: text with 60 values in 60 rows" in result.stderr
    assert "60 rows, 4 columns, 2 of them categories; EnergyClassifier, classify" in result.stdout
    assert "On 12 rows held out" in result.stdout
    for words in ("error ", "expected calibration error", "log-loss", "wrote m.zip, trained on 48 rows"):
        assert words in result.stdout
    columns = read_columns("m.zip")
    assert columns is not None
    assert columns.names == ["size", "colour", "width", "note"]
    assert (columns.task, columns.targets) == ("classify", ("kind",))


def test_fit_in_json_tells_the_truth_about_the_rows_held_out(shelf: Path) -> None:
    """The numbers are those of the saved model on exactly the rows that it was not trained on."""
    result = call("fit", shelf / "flowers.csv", "--target", "kind", "-o", "m.zip", "--seed", 3, "--json", *FAST)
    found = json.loads(result.stdout)
    table = open_table(shelf / "flowers.csv").read()
    y = np.array(table["kind"].to_pylist())
    train, test = hold_out(60, y, 0.2, 3)
    columns, model = read_columns("m.zip"), load("m.zip")
    assert columns is not None
    X = frame(shelf / "flowers.csv", model).iloc[test]
    assert found["held_out"]["error"] == pytest.approx(100 * (model.predict(X) != y[test]).mean())
    p = model.predict_proba(X)
    place = np.searchsorted(model.classes_, y[test])
    assert found["held_out"]["log_loss"] == pytest.approx(-np.log(p[np.arange(12), place]).mean())
    assert (found["rows"], found["trained_on"], found["held_out"]["rows"]) == (60, 48, 12)
    assert found["fitted_on_all_rows"] is False
    # Fill values and categories are of the training rows, too.
    size = next(column for column in columns.inputs if column.name == "size")
    known = [float(cell) for i, cell in enumerate(table["size"].to_pylist()) if i in set(train) and cell]
    assert isinstance(size, NumberColumn)
    assert size.fill == pytest.approx(np.median(known))


def test_refit_measures_one_model_and_keeps_another(shelf: Path) -> None:
    options = ("fit", shelf / "flowers.csv", "--target", "kind", "--json", *FAST)
    measured = json.loads(call(*options, "-o", "a.zip").stdout)
    kept = json.loads(call(*options, "-o", "b.zip", "--refit").stdout)
    whole = json.loads(call(*options, "-o", "c.zip", "--test-fraction", "0").stdout)
    assert kept["held_out"] == measured["held_out"]
    assert kept["trained_on"] == whole["trained_on"] == 60
    assert whole["held_out"] is None
    models = [load(f"{name}.zip") for name in "bc"]
    energies = [model.energies(frame(shelf / "flowers.csv", model)) for model in models]
    np.testing.assert_allclose(*energies, rtol=1e-9)  # the same rows and the same seed


def test_split_keeps_a_row_of_every_class_for_training() -> None:
    y = np.array([0] * 20 + [1] * 2 + [2])
    train, test = hold_out(23, y, 0.5, 0)
    assert set(y[train]) == {0, 1, 2}
    assert sorted([*train, *test]) == list(range(23))
    assert not len(hold_out(23, y, 0, 0)[1])
    with pytest.raises(InputError, match="4 rows are too few to hold 10 % of them out"):
        hold_out(4, None, 0.1, 0)


def test_fit_anomaly_with_a_target_measures_and_does_not_train_on_it() -> None:
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(size=(180, 2)), random.normal(8, 1, size=(20, 2))])
    np.savez("t.npz", X=X, bad=np.repeat([0, 1], [180, 20]))
    options = ("fit", "t.npz", "--task", "anomaly", "--epochs", "60", "--units", "mean", "--json")
    found = json.loads(call(*options, "--target", "bad", "-o", "a.zip").stdout)
    assert found["columns"] == ["x0", "x1"]
    assert found["held_out"]["roc_auc"] > 0.9
    without = json.loads(call(*options, "--drop", "bad", "-o", "b.zip").stdout)
    assert "roc_auc" not in without["held_out"]
    rows = {"x0": X[:, 0], "x1": X[:, 1]}  # the models know these names
    one, two = (load(name).score_samples(pandas.DataFrame(rows)) for name in ("a.zip", "b.zip"))
    np.testing.assert_allclose(one, two, rtol=1e-7)


def test_fit_several_labels(shelf: Path) -> None:
    result = call("fit", shelf / "labels.csv", "--targets", "label_0,label_1", "--drop", "label_2", "-o", "m", *FAST)
    assert "wrong labels" in result.stdout
    assert [line.partition(":")[0] for line in result.stderr.splitlines()[:2]] == ["train", "train, model 2"]  # folds
    assert "rows with a wrong label" in result.stdout
    columns = read_columns("m")
    assert columns is not None
    assert columns.labels == ("label_0", "label_1")
    assert "label_3" in columns.names
    assert "label_2" not in columns.names


def test_an_array_of_labels_is_named_as_a_whole() -> None:
    data = make_correlated_labels(60, seed=0)
    np.savez("t.npz", X=data.X, Y=data.Y, label_names=[f"t{i}" for i in range(data.Y.shape[1])])
    assert "or the columns of an array: --targets Y. There are" in refused("fit", "t.npz", "--task", "multilabel")
    call("fit", "t.npz", "--targets", "Y", "-o", "m.zip", *FAST)
    columns = read_columns("m.zip")
    assert columns is not None
    assert columns.labels == tuple(f"t{i}" for i in range(data.Y.shape[1]))
    call("predict", "m.zip", "t.npz", "-o", "p.npz", "--no-probabilities")
    with np.load("p.npz") as content:
        np.testing.assert_array_equal(content["Y"], data.Y)
        assert "predicted_t0" in content
        assert "p_t0" not in content


def test_fit_takes_the_options_of_its_task(shelf: Path) -> None:
    call("fit", shelf / "flowers.csv", "--target", "kind", "--units", "mean", "-o", "m.zip", *FAST)
    assert load("m.zip").units == "mean"
    options = ("--relation", "xy", "--method", "ascent", "--objective", "subset")
    call("fit", shelf / "labels.csv", "--targets-prefix", "label_", *options, "-o", "r.zip", *FAST)
    model = load("r.zip")
    assert (model.relation, model.method, model.objective) == ("xy", "ascent", "subset")


def test_fit_images() -> None:
    random = np.random.default_rng(0)
    np.savez("t.npz", x_train=random.random((40, 6)), y_train=np.arange(40) % 2, x_test=random.random((5, 6)))
    call("fit", "t.npz", "--target", "y", "--image", "2x3", "-o", "m.zip", *FAST)
    columns = read_columns("m.zip")
    assert columns is not None
    assert columns.image == (2, 3)
    assert "6 pixels" not in refused("fit", "t.npz", "--target", "y", "--image", "2x", "-o", "m.zip")
    assert "has 16 pixels; the table has 6" in refused("fit", "t.npz", "--target", "y", "--image", "4x4", "-o", "m.zip")
    call("predict", "m.zip", "t.npz", "-o", "p.npz")
    with np.load("p.npz") as content:
        assert content["X"].shape == (5, 6)  # the test part
        assert content["prediction"].shape == (5,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flowers.csv"], "Say which column holds the classes: --target NAME. There are 'id', 'size'"),
        (["flowers.csv", "--target", "sort"], "no column 'sort' to be the target; there are 'id'"),
        (["flowers.csv", "--target", "size"], "The target 'size' must be classes; it has numbers with fractions"),
        (["flowers.csv", "--target", "width"], "numbers with fractions"),
        (["flowers.csv", "--target", "id"], "60 different values in 60 rows"),
        (["flowers.csv", "--target", "kind", "--drop", "nothing"], "--drop must name columns; there is no 'nothing'"),
        (["flowers.csv", "--target", "kind", "--relation", "xy"], "--relation is not for the task classify"),
        (["flowers.csv", "--target", "kind", "--targets", "size"], "--targets and --targets-prefix are for the task"),
        (["flowers.csv", "--targets", "size"], "at least 2 columns"),
        (["flowers.csv", "--targets-prefix", "label_"], "No column begins with 'label_'"),
        (["flowers.csv", "--task", "multilabel"], "Several labels need their columns"),
        (["flowers.csv", "--task", "anomaly", "--target", "kind"], "must have 2 values; 'kind' has 3"),
        (["flowers.csv", "--target", "kind", "--device", "abacus"], "--device must be"),
        (["flowers.csv", "--target", "kind", "-o", "no/such/folder.zip"], "there is no folder"),
        (["flowers.csv", "--target", "kind", "-o", "precious.zip"], "not overwritten"),
        (["nowhere.csv", "--target", "kind"], "There is no file 'nowhere.csv'"),
        (["empty.csv", "--target", "kind"], "empty.csv is empty"),
        (["head.csv", "--target", "kind"], "head.csv has no rows"),
        (
            ["ragged.csv", "--target", "kind"],
            "must have 2 values in each row, as its first line has names; line 3 has 3",
        ),
        (["one.csv", "--target", "kind"], "at least 2 classes; every row has a"),
        (["typo.csv", "--target", "kind"], "typo.csv, line 4: 'a' must be a number, as in most rows; got 'x'"),
        (["few.csv", "--target", "kind", "--test-fraction", "0.1"], "too few to hold 10 % of them out"),
        (["huge.csv", "--target", "kind"], "A column must span less than"),
        (["single.csv", "--task", "anomaly", "--test-fraction", "0"], "needs at least 2 rows to be trained on"),
    ],
)
def test_fit_refuses_in_one_line(arguments: list[str], words: str) -> None:
    contents = {
        "flowers.csv": flowers(),
        "empty.csv": "",
        "head.csv": "a,kind\n",
        "ragged.csv": "a,kind\n1,a\n1,b,c\n",
        "one.csv": "a,kind\n1,a\n2,a\n",
        "typo.csv": "a,kind\n1,a\n2,b\nx,a\n4,b\n" + "5,a\n6,b\n" * 3,
        "few.csv": "a,kind\n1,a\n2,b\n7,a\n4,b\n",
        "huge.csv": "a,kind\n" + "1e308,a\n-1e308,b\n" * 10,
        "single.csv": "a\n1\n",
        "precious.zip": "not a model",
    }
    for name, text in contents.items():
        Path(name).write_text(text)
    assert words in refused("fit", *arguments)
    assert sorted(os.listdir()) == sorted(contents)


# --- predict and score -----------------------------------------------------------------------------------------


def test_predict_keeps_what_is_there_and_adds_to_it(shelf: Path) -> None:
    result = call("predict", shelf / "classes.zip", shelf / "flowers.csv", "-o", "out.csv")
    assert result.stdout.startswith("wrote out.csv: 60 rows in ")
    lines, before = Path("out.csv").read_text().splitlines(), flowers().splitlines()
    assert lines[0] == before[0] + ",prediction,p_iris,p_rose,p_tulip,p_value"
    for new, old in zip(lines[1:], before[1:], strict=True):
        assert new.startswith(old + ",")
    model, found = load(shelf / "classes.zip"), cells(Path("out.csv"))
    X = frame(shelf / "flowers.csv", model)
    assert found["prediction"] == model.predict(X).tolist()
    p = np.stack([found[f"p_{kind}"] for kind in model.classes_], 1)
    np.testing.assert_allclose(p, model.predict_proba(X), rtol=1e-9)  # ten digits
    assert (model.predict(X) == np.array(found["kind"])).mean() > 0.9


def test_columns_are_matched_by_name(shelf: Path) -> None:
    """The order does not matter, other columns do not, and the target need not be there."""
    lines = [line.split(",") for line in flowers().replace("well, well", "well; well").splitlines()]
    Path("a.csv").write_text(flowers())
    Path("b.csv").write_text(
        "".join(f"{row[4]},{row[3]},extra,{row[2]},{row[1]}\n" for row in lines).replace("well;", "well,")
    )
    for name in "ab":
        call("predict", shelf / "classes.zip", f"{name}.csv", "-o", f"{name}-out.csv", "--no-probabilities")
    assert cells(Path("a-out.csv"))["prediction"] == cells(Path("b-out.csv"))["prediction"]
    assert list(cells(Path("b-out.csv"))) == ["note", "width", "extra", "colour", "size", "prediction", "p_value"]


def test_score_of_a_classifier(shelf: Path) -> None:
    call("score", shelf / "classes.zip", shelf / "flowers.csv", "-o", "out.csv")
    found, model = cells(Path("out.csv")), load(shelf / "classes.zip")
    X = frame(shelf / "flowers.csv", model)
    np.testing.assert_allclose(np.stack([found[f"energy_{kind}"] for kind in model.classes_], 1), model.energies(X))
    np.testing.assert_allclose(found["liking"], model.score_samples(X))


def test_score_and_predict_of_an_anomaly_model(shelf: Path) -> None:
    call("score", shelf / "anomaly", shelf / "flowers.csv", "-o", "s.csv")
    call("predict", shelf / "anomaly", shelf / "flowers.csv", "-o", "p.csv")
    scored, predicted = cells(Path("s.csv")), cells(Path("p.csv"))
    assert [1 if score >= 0 else 0 for score in scored["score"]] == scored["is_inlier"]
    assert [1 if inlier else -1 for inlier in scored["is_inlier"]] == predicted["prediction"]


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".npz", ".arff"])
def test_every_format_says_the_same(shelf: Path, suffix: str) -> None:
    call("score", shelf / "classes.zip", shelf / "flowers.csv", "-o", f"one{suffix}")
    call("score", shelf / "classes.zip", f"one{suffix}", "-o", f"two{suffix}", "--prefix", "new_")
    call("score", shelf / "classes.zip", f"two{suffix}", "-o", "three.csv", "--prefix", "newer_")
    found = cells(Path("three.csv"))
    np.testing.assert_allclose(found["new_liking"], found["liking"])
    np.testing.assert_allclose(found["newer_liking"], found["new_liking"], rtol=1e-9)
    assert found["id"] == [f"n{i:03d}" for i in range(60)]


def test_the_default_output_is_beside_the_data(shelf: Path) -> None:
    Path("flowers.csv").write_text(flowers())
    found = json.loads(call("predict", shelf / "classes.zip", "flowers.csv", "--json").stdout)
    assert found["output"] == "flowers-predicted.csv"
    assert found["rows"] == 60
    assert found["columns"] == ["prediction", "p_iris", "p_rose", "p_tulip", "p_value"]
    call("score", shelf / "classes.zip", "flowers.csv")
    assert sorted(os.listdir()) == ["flowers-predicted.csv", "flowers-scored.csv", "flowers.csv"]


def test_batches_make_no_difference(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from energate.tables import reading

    call("predict", shelf / "classes.zip", shelf / "flowers.csv", "-o", "one.csv")
    monkeypatch.setattr(reading, "BLOCK", 500)
    call("predict", shelf / "classes.zip", shelf / "flowers.csv", "-o", "many.csv")
    one, many = cells(Path("one.csv")), cells(Path("many.csv"))
    assert list(one) == list(many)
    for name, values in one.items():
        if name.startswith("p_"):
            np.testing.assert_allclose(many[name], values, rtol=1e-8)  # where rounding turns over, the last digit may
        else:
            assert many[name] == values


@pytest.mark.parametrize("suffix", [".csv", ".arff"])
def test_computed_numbers_are_printed_with_the_digits_that_are_certain(shelf: Path, suffix: str) -> None:
    call("score", shelf / "classes.zip", shelf / "flowers.csv", "-o", f"out{suffix}")
    lines = Path(f"out{suffix}").read_text().splitlines()[-60:]
    numbers = [number for line in lines for number in line.split(",")[-4:]]
    digits = [len(re.sub(r"e.*|[-.]", "", number).lstrip("0")) for number in numbers]
    assert max(digits) == 10
    assert all(float(number) for number in numbers)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["predict", "classes.zip", "lacks.csv"],
            "must have the columns that classes.zip takes; it lacks 'colour', 'width'",
        ),
        (["predict", "classes.zip", "typo.csv"], "typo.csv, line 12: 'size' must be a number; got 'big'"),
        (["predict", "classes.zip", "clash.csv"], "the columns 'prediction' already, which would be new."),
        (["predict", "classes.zip", "flowers.csv", "-o", "flowers.csv"], "is DATA itself"),
        (["predict", "classes.zip", "flowers.csv", "-o", "out.xls"], "The output must be a .csv"),
        (["predict", "classes.zip", "flowers.csv", "-o", "-", "--json"], "both write to stdout"),
        (["predict", "classes.zip", "ragged.csv"], "line 62 has 7"),
        (["predict", "classes.zip", "empty.csv"], "empty.csv is empty"),
        (["predict", "classes.zip", "head.csv"], "head.csv has no rows"),
        (["predict", "no.zip", "flowers.csv"], "There is no model at no.zip"),
        (["predict", "flowers.csv", "flowers.csv"], "is not a zip file of a saved model"),
        (
            ["score", "labels.zip", "labels.csv"],
            "which is of the kind EnergyRefiner, needs labels with the rows",
        ),
        (
            ["refine", "classes.zip", "flowers.csv"],
            "is of the kind EnergyClassifier and has predict, score, explain",
        ),
        (["refine", "labels.zip", "labels.csv", "--base-prefix", "q_"], "it lacks 'q_label_0', 'q_label_1'"),
        (["refine", "labels.zip", "labels.csv", "--base-prefix", "label_"], "it lacks 'label_label_0'"),
    ],
)
def test_apply_refuses_in_one_line(shelf: Path, arguments: list[str], words: str) -> None:
    for name in ("classes.zip", "labels.zip", "labels.csv"):
        shutil.copy(shelf / name, name)
    lines = flowers().splitlines()
    contents = {
        "flowers.csv": lines,
        "lacks.csv": ["size,note", "1,plain"],
        "typo.csv": [*lines[:11], "n,big,red,1,plain,iris"],
        "clash.csv": ["size,colour,width,note,prediction", "1,red,1,plain,iris"],
        "ragged.csv": [*lines, "a,1,red,1,plain,iris,more"],
        "empty.csv": [],
        "head.csv": lines[:1],
    }
    for name, content in contents.items():
        Path(name).write_text("".join(line + "\n" for line in content))
    before = sorted(os.listdir())
    assert words in refused(*arguments)
    assert sorted(os.listdir()) == before
    assert Path("flowers.csv").read_text() == flowers()


def test_a_clash_is_solved_by_a_prefix(shelf: Path) -> None:
    Path("t.csv").write_text("size,colour,width,note,prediction\n1,red,1,plain,iris\n")
    call("predict", shelf / "classes.zip", "t.csv", "-o", "out.csv", "--prefix", "my_")
    assert {"prediction", "my_prediction", "my_p_iris"} <= set(cells(Path("out.csv")))


def test_unseen_categories_and_missing_cells_are_taken(shelf: Path) -> None:
    Path("t.csv").write_text("size,colour,width,note\n,green,?,\n")
    call("predict", shelf / "classes.zip", "t.csv", "-o", "out.csv")
    assert cells(Path("out.csv"))["prediction"][0] in ("iris", "rose", "tulip")


# --- models from Python ----------------------------------------------------------------------------------------


def test_a_model_saved_from_python_takes_columns_by_name_or_number(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X, y = random.normal(size=(40, 2)), np.arange(40) % 2
    model = EnergyClassifier("mean", pretrain_epochs=1, max_epochs=1, random_state=0, device="cpu").fit(X, y)
    save(model, "m.zip")
    expected = model.predict_proba(X)[:, 0].tolist()
    tables = {
        "numbered": {"id": y, "x1": X[:, 1], "x0": X[:, 0]},
        "alone": {"a": X[:, 0], "b": X[:, 1]},
    }
    for name, table in tables.items():
        csv.write_csv(pa.table(table), f"{name}.csv")
        call("predict", "m.zip", f"{name}.csv", "-o", "out.csv")
        assert cells(Path("out.csv"))["p_0"] == pytest.approx(expected, rel=1e-9)
    np.savez("array.npz", X=X, feature_names=["this", "that"], id=y)
    call("predict", "m.zip", "array.npz", "-o", "out.csv")
    assert cells(Path("out.csv"))["p_0"] == pytest.approx(expected, rel=1e-9)
    Path("three.csv").write_text("a,b,c\n1,2,3\n")
    assert "takes 2; three.csv has 3. Name them x0 to x1" in refused("predict", "m.zip", "three.csv")
    Path("missing.csv").write_text("x0,x1\n1,2\n3,\n")
    call("predict", "m.zip", "missing.csv", "-o", "out.csv")
    assert cells(Path("out.csv"))["p_0"] == pytest.approx(model.predict_proba([[1, 2], [3, np.nan]])[:, 0], rel=1e-9)
    scorer = EnergyScorer("mean", max_epochs=1, random_state=0, device="cpu").fit(X)
    save(scorer, "scorer.zip")
    call("score", "scorer.zip", "missing.csv", "-o", "out.csv")
    expected = scorer.decision_function([[1, 2], [3, np.nan]])
    assert cells(Path("out.csv"))["score"] == pytest.approx(expected, rel=1e-9)
    labels = LabelMLP(max_epochs=1, random_state=0, device="cpu").fit(X, np.stack([y, 1 - y], 1))  # takes no holes
    save(labels, "labels.zip")
    assert "missing.csv, line 3: 'x1' must be a number; got None" in refused("predict", "labels.zip", "missing.csv")


def test_a_table_as_it_is_goes_through_every_command(tmp_path: Path) -> None:
    """Holes and categories, in training and new ones later, from a file to the model and back."""
    table, y = mixed_columns(150)
    lines = [
        [*("?" if cell is None else str(cell) for cell in row), f"k{k}"]
        for *row, k in zip(*table.values(), y, strict=True)
    ]
    Path("t.csv").write_text("\n".join(",".join(line) for line in [[*table, "kind"], *lines]) + "\n")
    nominal = "@relation t\n@attribute size numeric\n@attribute age numeric\n@attribute colour {red,green,blue}\n"
    nominal += "@attribute grade {2,3,10}\n@attribute kind {k0,k1}\n@data\n"
    Path("t.arff").write_text(nominal + "\n".join(",".join(line) for line in lines) + "\n")
    call("fit", "t.csv", "--target", "kind", "--category", "grade", "--units", "mean", "-o", "m.zip", "--epochs", 20)
    model, columns = load("m.zip"), read_columns("m.zip")
    assert columns is not None
    assert columns.coded
    assert model.cells_.categories == {2: ("blue", "green", "red"), 3: ("2", "3", "10")}
    assert model.cells_.missing.tolist() == [False, True, True, False]
    Path("new.csv").write_text("id,grade,colour,age,size\n1,2,red,31,0.5\n2,7,violet,?,?\n3,,,,\n")
    for data in ("t.csv", "t.arff", "new.csv"):
        call("predict", "m.zip", data, "-o", "out.csv")
        expected = model.predict_proba(frame(Path("new.csv" if data == "new.csv" else "t.csv"), model))
        assert cells(Path("out.csv"))["p_k1"] == pytest.approx(expected[:, 1], rel=1e-9)
    assert (model.predict(frame(Path("t.csv"), model)) == np.array(["k0", "k1"])[y]).mean() > 0.8
    call("score", "m.zip", "new.csv", "-o", "out.parquet")
    told = call("explain", "m.zip", "new.csv", "--row", 2, "--top", 30, "--json").stdout
    seen = {each["column"]: each["value"] for each in json.loads(told)["classes"][0]["changes"]}
    assert seen["age=(missing)"] == 1
    assert seen["age"] == pytest.approx(float(model.cells_.fill[1]))
    assert not any(value for name, value in seen.items() if name.startswith(("colour=", "grade=")))
    told = call("explain", "m.zip", "new.csv", "--top", 30).stdout
    for name in ("colour=red", "colour=(missing)", "grade=10"):
        assert name in told
    for arguments in (("check", "m.zip"), ("check", "m.zip", "--data", "t.csv")):
        assert "conservative" in call(*arguments).stdout
    call("fit", "t.arff", "--target", "kind", "--units", "mean", "-o", "nominal.zip", *FAST)
    assert load("nominal.zip").cells_.categories == model.cells_.categories
    Path("wrong.csv").write_text("size,age,colour,grade\nlarge,1,red,2\n")
    assert "wrong.csv, line 2: 'size' must be a number; got 'large'" in refused("predict", "m.zip", "wrong.csv")


def test_pairs_are_refused(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 4))
    model = PairScorer(n_hidden=2, n_factors=2, max_epochs=1, random_state=0, device="cpu")
    save(model.fit(X, X), "pairs.zip")
    Path("t.csv").write_text("x0,x1,x2,x3\n1,2,3,4\n")
    assert "is of the kind PairScorer" in refused("predict", "pairs.zip", "t.csv")


# --- refine ----------------------------------------------------------------------------------------------------


def test_refine_with_its_own_base_is_predict(shelf: Path) -> None:
    call("refine", shelf / "labels.zip", shelf / "labels.csv", "-o", "r.csv")
    call("predict", shelf / "labels.zip", shelf / "labels.csv", "-o", "p.csv")
    refined, predicted = cells(Path("r.csv")), cells(Path("p.csv"))
    for i in range(8):
        np.testing.assert_allclose(refined[f"refined_label_{i}"], predicted[f"p_label_{i}"], rtol=1e-6)
        assert refined[f"predicted_label_{i}"] == predicted[f"predicted_label_{i}"]


def test_refine_takes_what_another_program_says() -> None:
    data = make_correlated_labels(200, seed=0, sharpness=4.0)
    base = MultiOutputClassifier(LogisticRegression()).fit(data.X, data.Y)
    model = EnergyRefiner(base, prefit=True, max_epochs=2, random_state=0, device="cpu").fit(data.X, data.Y)
    names = [f"t{i}" for i in range(data.Y.shape[1])]
    inputs = [f"f{i}" for i in range(data.X.shape[1])]
    columns = Columns(tuple(NumberColumn(name, 0.0) for name in inputs), "multilabel", tuple(names), tuple(names))
    save(model, "m.zip", columns=columns)  # without its base
    p = np.stack([each[:, 1] for each in base.predict_proba(data.X)], 1)
    logits = np.log(p) - np.log1p(-p)
    table = dict(zip(inputs, data.X.T, strict=True))
    for name, values in (("p", p), ("logits", logits)):
        csv.write_csv(pa.table(table | {f"p_{t}": values[:, i] for i, t in enumerate(names)}), f"{name}.csv")
    call("refine", "m.zip", "p.csv", "--base-prefix", "p_", "-o", "a.csv")
    call("refine", "m.zip", "logits.csv", "--base-prefix", "p_", "--base-scores", "logits", "-o", "b.csv")
    expected = model.predict_proba(data.X)
    for name in "ab":
        found = cells(Path(f"{name}.csv"))
        np.testing.assert_allclose(np.stack([found[f"refined_{t}"] for t in names], 1), expected, atol=1e-5)
    words = refused("refine", "m.zip", "logits.csv", "--base-prefix", "p_", "-o", "c.csv")
    assert "must be a probability, from 0 to 1 (--base-scores logits takes others)" in words
    assert words.startswith("Error: logits.csv, line ")
    assert "is not in its file. Put what it says" in refused("predict", "m.zip", "p.csv")


# --- real processes --------------------------------------------------------------------------------------------


def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "energate", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options
    )


def wide(path: Path, megabytes: int) -> int:
    """A table of that size: an id, 40 numbers, a note; the number of its rows."""
    X = np.random.default_rng(0).normal(size=(10_000, 40)).round(5)
    table = {"id": np.arange(10_000) + 1000, **{f"x{i}": X[:, i] for i in range(40)}}
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table(table), sink, csv.WriteOptions(include_header=False))
    block = sink.getvalue().to_pybytes()
    n_blocks = -(-megabytes * MEGABYTE // len(block))
    with path.open("wb") as file:
        file.write((",".join(table) + "\n").encode())
        for _ in range(n_blocks):
            file.write(block)
    return 10_000 * n_blocks


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model for such tables."""
    path = tmp_path_factory.mktemp("model") / "scorer.zip"
    X = np.random.default_rng(0).normal(size=(500, 40))
    model = EnergyScorer("mean", n_hidden=8, max_epochs=2, random_state=0, device="cpu").fit(X)
    save(model, path, columns=Columns.plain([f"x{i}" for i in range(40)], "anomaly"))
    return path


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that keeps a command busy for some seconds."""
    path = tmp_path_factory.mktemp("big") / "big.csv"
    wide(path, 60)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_run_leaves_what_was_there(scorer: Path, big: Path, number: int, code: int) -> None:
    Path("out.csv").write_text("precious")
    with start("score", scorer, big, "-o", "out.csv") as process:
        deadline = time.monotonic() + 120
        while not any(part.stat().st_size for part in Path().glob(".out.csv.*.part")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert Path("out.csv").read_text() == "precious"
    if number != signal.SIGKILL:
        assert errors == "Stopped. Nothing was written; a file that was there is as it was.\n"
        assert os.listdir() == ["out.csv"]


@pytest.mark.slow
def test_a_file_that_may_not_grow_leaves_nothing(scorer: Path, big: Path) -> None:

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, MEGABYTE))

    with start("score", scorer, big, "-o", "out.csv", preexec_fn=limit) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert errors.startswith("Error: out.csv cannot be written (File too large)")
    assert errors.count("\n") == 1
    assert os.listdir() == []


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(scorer: Path, big: Path) -> None:
    Path("disk").mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "disk"], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with start("score", scorer, big, "-o", "disk/out.csv") as process:
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 2, errors
        assert "cannot be written (No space left on device)" in errors
        assert os.listdir("disk") == []
    finally:
        subprocess.run(["umount", "disk"], check=True)


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run_quietly(scorer: Path, big: Path) -> None:
    with start("score", scorer, big, "-o", "-") as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(",x39,score,is_inlier,p_value\n")
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 1


@pytest.mark.slow
def test_a_large_file_takes_no_more_memory_than_a_small_one(scorer: Path) -> None:
    megabytes = 300
    watch = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'energate', *sys.argv[1:]], check=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, file=sys.stderr)"
    )
    peaks = []
    for size in (20, megabytes):
        n_rows = wide(Path("t.csv"), size)
        command = [sys.executable, "-c", watch, "score", str(scorer), "t.csv", "-o", "out.csv", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        assert json.loads(result.stdout)["rows"] == n_rows
        peaks.append(float(result.stderr.splitlines()[-1]))  # after lines of progress
    assert Path("out.csv").stat().st_size > megabytes * MEGABYTE
    for name in ("t.csv", "out.csv"):
        Path(name).unlink()  # pytest keeps the folders of the last runs
    assert peaks[1] - peaks[0] < 200, f"{peaks} MB"
    assert peaks[1] < 900, f"{peaks} MB"


def test_help_comes_without_anything_heavy() -> None:
    code = (
        "import sys; from energate.cli import app\n"
        "for command in sys.argv[1:]:\n"
        "    try: app([command, '--help'])\n"
        "    except SystemExit: pass\n"
        "    print(sorted({'torch', 'sklearn', 'numpy', 'pandas', 'pyarrow', 'scipy', 'fastapi'} & sys.modules.keys()))"
    )
    commands = ("fit", "predict", "score", "refine", "check", "explain", "export", "serve")
    result = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)
    helps = result.stdout.split("[]\n")
    assert helps[-1] == ""
    for command, text in zip(commands, helps[:-1], strict=True):
        assert f"Example: energate {command}" in " ".join(text.split())
