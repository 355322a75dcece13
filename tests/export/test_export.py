import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import mixed_columns
from cases import trunk_units as networks
from numpy.typing import NDArray
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from typer.testing import CliRunner

from energate import export, load, save
from energate.cli import app
from energate.errors import InputError, MissingExtraError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.estimators.refiner import T_LIMIT
from energate.export import _onnx, export_onnx
from energate.views import describe, view_of
from energate.views.scorer import EnergyScorerView, ScorerGraph

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

N, D = 90, 5
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(N, D)) * [1, 10, 0.1, 1, 3] + [0, 100, 0, -5, 0]
CLASSES = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 106)]
LABELS = np.stack([X[:, 0] > 0, X[:, 1] > 100, (X[:, 0] > 0) & (X[:, 1] > 100), X[:, 2] > 0], 1).astype(int)
SMALL: dict[str, Any] = {"n_hidden": 7, "n_factors": 6, "random_state": 0, "max_epochs": 2, "device": "cpu"}
MLP = LabelMLP(n_hidden=8, n_members=2, max_epochs=2, device="cpu")
FOREIGN = MultiOutputClassifier(GaussianNB())
#: rows unlike those that the exporter compares, and other numbers of them
ROWS = (RANDOM.normal(size=(50, D)) * X.std(0) * 2 + X.mean(0)).astype(np.float32)


def run(path: Path, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    kinds = {each.name: np.float64 if each.type == "tensor(double)" else np.float32 for each in session.get_inputs()}
    assert kinds.keys() == inputs.keys()
    outputs = session.run(None, {name: rows.astype(kinds[name]) for name, rows in inputs.items()})
    return dict(zip([each.name for each in session.get_outputs()], outputs, strict=True))


def sure(probabilities: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows whose two likeliest classes are further apart than rounding to float32 may take them."""
    second, first = np.sort(probabilities, 1)[:, -2:].T
    return first - second > 1e-3


def assert_labels(found: NDArray[Any], expected: NDArray[Any], clear: NDArray[np.bool_]) -> None:
    """Equal wherever the decision is a clear one, as nearly all are."""
    assert clear.mean() > 0.8
    np.testing.assert_array_equal(found[clear], expected[clear])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def refiner(relation: str, method: str, objective: str = "hamming", base: Any = MLP, Y: Any = LABELS) -> Any:
    made = EnergyRefiner(base, relation, method=method, objective=objective, cv=2, n_neighbours=3, **SMALL).fit(X, Y)
    made._set(0.75 if method == "sets" else 2)  # `fit` may find that refining gains nothing
    return made


# --- classifiers and scorers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"units": "mean", "scaling": "unit", "generative_weight": 0.0},
        {"units": "covariance", "scaling": "none", "activation": "relu", "generative_weight": [0, 0.1]},
        {"reading": "shared", "activation": "softmax", "generative_weight": 0.0},
    ],
    ids=str,
)
def test_a_classifier(file: Path, options: dict[str, Any]) -> None:
    scale = X.std(0) if options.get("scaling") == "none" else 1.0
    model = EnergyClassifier(**{"units": "mean-covariance", **SMALL, "pretrain_epochs": 2, **options}).fit(
        X / scale, CLASSES
    )
    made = export_onnx(model, file)
    assert made.difference < 1e-4
    assert (made.path, made.n_bytes, made.inputs) == (file, file.stat().st_size, {"X": D})
    rows = (ROWS / scale).astype(np.float32)
    for n_rows in (1, 2, 33, 50):
        found = run(file, X=rows[:n_rows])
        exact = rows[:n_rows].astype(np.float64)
        np.testing.assert_allclose(found["energies"], model.energies(exact), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["decision"], model.decision_function(exact), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(exact), atol=1e-4)
        assert_labels(model.classes_[found["label"]], model.predict(exact), sure(model.predict_proba(exact)))


def test_two_classes_keep_both_decision_values_and_double_is_exact(file: Path) -> None:
    model = EnergyClassifier("mean", **SMALL, pretrain_epochs=2, generative_weight=0.1).fit(X, X[:, 0] > 0)
    assert export_onnx(model, file, double=True).difference < 1e-10
    found = run(file, X=ROWS)
    assert found["decision"].dtype == np.float64
    np.testing.assert_allclose(
        found["decision"][:, 1] - found["decision"][:, 0], model.decision_function(ROWS), atol=1e-9
    )
    np.testing.assert_allclose(found["energies"], model.energies(ROWS), rtol=1e-12)


def test_the_file_knows_names_and_no_folders(file: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["width", "height", "c", "d", "e"])
    export_onnx(EnergyClassifier("mean", **SMALL, pretrain_epochs=1).fit(frame, CLASSES), file)
    proto = onnx.load(file)
    onnx.checker.check_model(proto, full_check=True)
    known = {each.key: json.loads(each.value) for each in proto.metadata_props}
    assert known["classes"] == ["a", "b", "c"]
    assert known["feature_names"] == ["width", "height", "c", "d", "e"]
    assert known["energate"]["estimator"] == "EnergyClassifier"
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    assert not re.search(rb"\.py\b|site-packages|/home|/root|/tmp", file.read_bytes())


@pytest.mark.parametrize("units", ["memory", "mean"])
def test_calibration_is_in_the_graph(file: Path, units: str) -> None:
    labels = np.arange(len(X)) % 3
    model = EnergyClassifier(units, **(SMALL if units == "mean" else {"device": "cpu"})).fit(X[::2], labels[::2])
    model.conformalize(X[1::2], labels[1::2])
    export_onnx(model, file, double=True)
    found = run(file, X=X.astype(np.float64))
    # Calibration rows are among these: where two energies are one, rounding decides which is lower.
    np.testing.assert_allclose(found["p_value"], model.p_values(X), atol=1.5 / len(X[1::2]))
    np.testing.assert_allclose(found["class_p_values"], model.class_p_values(X), atol=1.5 / len(X[1::2]))


@pytest.mark.parametrize("scaling", ["standard", "unit"])
@pytest.mark.parametrize("units", ["memory", "mean-covariance"])
def test_a_scorer(file: Path, units: str, scaling: str) -> None:
    model = EnergyScorer(units, **SMALL, scaling=scaling, contamination=0.2).fit(X)
    export_onnx(model, file)
    rows = np.concatenate([ROWS, X[:20]]).astype(np.float32)
    found = run(file, X=rows)
    np.testing.assert_allclose(found["energy"], model.score_samples(rows), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["score"], model.decision_function(rows), rtol=1e-4, atol=1e-4)
    clear = np.abs(model.decision_function(rows)) > 1e-3  # a row of `fit` is the threshold
    assert_labels(found["is_inlier"], model.predict(rows) == 1, clear)
    assert 0 < found["is_inlier"].sum() < len(rows)
    far = run(file, X=np.full((1, D), 1e30))  # as far away as the estimator lets it be
    assert np.isfinite(far["energy"]).all()


@pytest.mark.parametrize("relation", ["conditional", "symmetric"])
def test_pairs(file: Path, relation: str) -> None:
    model = PairScorer(relation, **SMALL, scaling="unit").fit(X, X[:, :2] ** 2)
    export_onnx(model, file)
    Y = ROWS[:, :2] ** 2
    np.testing.assert_allclose(run(file, X=ROWS, Y=Y)["energy"], model.score_pairs(ROWS, Y), rtol=1e-4, atol=1e-4)


def test_a_function_as_units(file: Path) -> None:
    torch.manual_seed(0)
    model = EnergyClassifier(networks, pretrain_epochs=1, max_epochs=1, random_state=0).fit(X, CLASSES)
    export_onnx(model, file)
    np.testing.assert_allclose(run(file, X=ROWS)["probabilities"], model.predict_proba(ROWS), atol=1e-4)


# --- labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [True, False])
def test_a_label_network(file: Path, several: bool) -> None:
    model = LabelMLP(n_hidden=8, n_members=2, max_epochs=2, scaling="unit").fit(X, LABELS if several else CLASSES)
    export_onnx(model, file)
    found = run(file, X=ROWS)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(ROWS), atol=1e-5)
    told = found["labels"] if several else model.classes_[found["label"]]
    p = model.predict_proba(ROWS)
    assert_labels(told, model.predict(ROWS), np.abs(p - 0.5) > 1e-4 if several else sure(p))


@pytest.mark.parametrize(
    ("relation", "method", "objective", "base"),
    [
        ("yy", "sets", "hamming", MLP),
        ("xy", "sets", "subset", FOREIGN),
        ("yy", "ascent", "subset", FOREIGN),
        ("xy", "ascent", "hamming", MLP),
    ],
)
def test_a_refiner(file: Path, relation: str, method: str, objective: str, base: Any) -> None:
    model = refiner(relation, method, objective, base)
    made = export_onnx(model, file)
    for n_rows in (1, 15, 16, 17, 50):  # around the size of a block
        rows = ROWS[:n_rows]
        scores = model._scores(rows.astype(np.float64)).astype(np.float32)
        extra = {} if base is MLP else {"scores": scores}
        assert made.inputs == ({"X": D} if base is MLP else {"X": D, "scores": 4})
        found = run(file, X=rows, **extra)
        p, best = model.refine(scores, rows)
        np.testing.assert_allclose(found["probabilities"], p, atol=1e-4)
        said = model._decide(p, best)
        assert_labels(
            found["labels"], said, np.abs(p - model.threshold_) > 1e-4 if objective == "hamming" else said >= 0
        )
        t = np.clip(model.slope_ * scores + model.offset_, -T_LIMIT, T_LIMIT)
        np.testing.assert_allclose(found["base"], 1 / (1 + np.exp(-t)), atol=1e-5)
    assert np.abs(found["base"] - found["probabilities"]).max() > 1e-4  # it was refined


def test_a_refiner_that_keeps_its_base_and_labels_that_never_change(file: Path) -> None:
    labels = LABELS.copy()
    labels[:, 1], labels[:, 2] = 1, 0
    model = refiner("yy", "sets", Y=labels)
    model._set(0)
    export_onnx(model, file)
    found = run(file, X=ROWS)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(ROWS), atol=1e-5)
    assert (found["labels"][:, 1:3] == [1, 0]).all()


def test_a_refiner_of_classes_in_double(file: Path) -> None:
    model = refiner("xy", "sets", Y=CLASSES)
    export_onnx(model, file, double=True)
    found = run(file, X=ROWS)
    np.testing.assert_allclose(found["probabilities"].sum(1), 1)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(ROWS), atol=1e-5)
    assert_labels(model.classes_[found["label"]], model.predict(ROWS), sure(model.predict_proba(ROWS)))


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scorer() -> EnergyScorer:
    return EnergyScorer("mean", **SMALL).fit(X)


def test_a_graph_that_differs_is_not_written(file: Path, scorer: EnergyScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two is wrong, they are compared: here the model's own answers are, which saves exporting."""
    graph = view_of(scorer).graph()
    content = _onnx.to_onnx(graph, describe(scorer), double=False)
    monkeypatch.setattr(export, "to_onnx", lambda *_: content)
    file.write_bytes(b"what was there")
    wrong = {
        "energy": (lambda found: found + 0.1, r"exported `energy` differs from the model's by .*Nothing was written"),
        "is_inlier": (np.logical_not, "`is_inlier` is another than the model's in 1 of 1"),
    }
    for name, (change, words) in wrong.items():

        def reference(rows: Any, name: str = name, change: Any = change) -> Any:
            found = graph.reference(rows)
            return {**found, name: change(found[name])}

        changed = replace(graph, reference=reference)
        monkeypatch.setattr(EnergyScorerView, "graph", lambda _, made=changed: made)
        with pytest.raises(InputError, match=words):
            export_onnx(scorer, file)
    assert file.read_bytes() == b"what was there"
    assert list(file.parent.iterdir()) == [file]
    monkeypatch.setattr(EnergyScorerView, "graph", lambda _: graph)
    export_onnx(scorer, file)
    assert file.read_bytes() == content


def test_what_rounding_cannot_explain_names_float64(file: Path) -> None:
    rows = RANDOM.normal(size=(60, 2)) * 1e-3 + 1e6  # float32 knows no thousandths of a million
    model = EnergyScorer("mean", **SMALL).fit(rows)
    with pytest.raises(InputError, match="--double"):
        export_onnx(model, file)
    assert not file.exists()
    assert export_onnx(model, file, double=True).difference < 1e-8


def test_nan_is_a_difference(scorer: EnergyScorer) -> None:
    graph = view_of(scorer).graph()
    expected = graph.reference(X[:2])
    nothing = {name: np.full_like(values, np.nan, dtype=float) for name, values in expected.items()}
    with pytest.raises(InputError, match="differs"):
        export._difference(graph, {**expected, "energy": nothing["energy"]}, expected, 1.0)
    with pytest.raises(InputError, match="shape"):
        export._difference(graph, {**expected, "energy": expected["energy"][:1]}, expected, 1.0)
    assert export._difference(graph, expected, expected, 1e-9) == 0


def test_what_cannot_be_traced_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, scorer: EnergyScorer) -> None:
    monkeypatch.setattr(ScorerGraph, "forward", lambda self, X: (X[X > 0].sum() if X.sum() > 0 else X,))
    with pytest.raises(InputError, match=r"This EnergyScorer cannot be exported: .+\. Nothing was written"):
        export_onnx(scorer, file)
    assert not file.exists()


def test_bad_input(file: Path, scorer: EnergyScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        export_onnx(scorer, file.with_suffix(".zip"))
    with pytest.raises(InputError, match="must be a fitted"):
        export_onnx(GaussianNB(), file)
    with pytest.raises(InputError, match="cannot be written"):
        export_onnx(scorer, "/proc/no/such/folder/model.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"energate\[onnx\]"):
        export_onnx(scorer, file)


# --- the commands ------------------------------------------------------------------------------------------------


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def test_the_command(tmp_path: Path, file: Path, scorer: EnergyScorer) -> None:
    save(scorer, tmp_path / "scorer")
    found = json.loads(call("export", tmp_path / "scorer", "--onnx", file, "--double", "--json").stdout)
    assert found["largest_difference"] < 1e-9
    assert found["outputs"] == ["energy", "score", "is_inlier", "p_value"]
    model = refiner("yy", "sets", base=FOREIGN)
    save(model, tmp_path / "refiner.zip")
    told = call("export", tmp_path / "refiner.zip", "--onnx", file)
    assert re.search(r"wrote .*model\.onnx \(\d+\.\d kB\)", told.stdout)
    assert "inputs:  X (rows, 5), scores (rows, 4)\noutputs: base, probabilities, labels\n" in told.stdout
    assert re.search(r"largest difference from the model: \d\.\de-0\d, on 72 rows", told.stdout)
    assert "Note: the base is not in the graph" in told.stderr
    for arguments in ((tmp_path / "none.zip", "--onnx", file), (tmp_path / "scorer", "--onnx", tmp_path / "a.txt")):
        result = call("export", *arguments, code=2)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def energate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "energate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def test_the_commands_as_processes(tmp_path: Path, file: Path) -> None:
    pytest.importorskip("matplotlib")
    model = EnergyClassifier("mean", **SMALL, pretrain_epochs=2, generative_weight=0.1).fit(X, CLASSES)
    save(model, tmp_path / "model.zip")
    np.savez(tmp_path / "rows.npz", X=X, y=CLASSES)
    done = energate("export", tmp_path / "model.zip", "--onnx", file)
    assert (done.returncode, done.stderr) == (0, "")
    np.testing.assert_allclose(run(file, X=ROWS)["energies"], load(tmp_path / "model.zip").energies(ROWS), rtol=1e-4)
    picture = tmp_path / "why.png"
    told = call("explain", tmp_path / "model.zip", tmp_path / "rows.npz", "--row", 3, "-o", picture)
    assert "does not tell which it is" in told.stderr  # of a model trained for two epochs
    assert f"rows.npz, row 3: {model.predict(X[2:3])[0]}, probability" in told.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    told = call("explain", tmp_path / "model.zip", tmp_path / "rows.npz", "--row", N + 1, code=2)
    assert told.stdout == ""
    assert told.stderr == f"Error: rows.npz has {N} rows; there is no row {N + 1}. Rows count from 1.\n"


@pytest.mark.parametrize("scaling", ["standard", "unit"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("units", ["memory", "mean", "mean-covariance"])
def test_missing_cells_and_categories_are_in_the_graph(file: Path, units: str, double: bool, scaling: str) -> None:
    """Holes where training had none, unseen categories and all others, as the estimator takes them."""
    table, y = mixed_columns()
    codes = {None: np.nan, "blue": 0.0, "green": 1.0, "red": 2.0}
    rows = np.array(
        [*list(table.values())[:2], [codes[each] for each in table["colour"]], table["grade"]], dtype=float
    ).T
    options = {**SMALL, "pretrain_epochs": 2, "scaling": scaling, "categorical_features": [2, 3]}
    model = EnergyClassifier(units, **options).fit(rows, y)
    made = export_onnx(model, file, double=double)
    assert made.inputs == {"X": 4}
    new = rows.astype(np.float32).astype(np.float64)
    new[0], new[1], new[2, 2:], new[3, :2] = np.nan, [0, 30, 7, -1], [1.5, 4], np.nan
    found, tolerance = run(file, X=new), 1e-8 if double else 2e-4
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(new), atol=tolerance)
    np.testing.assert_allclose(found["energies"], model.energies(new), rtol=10 * tolerance, atol=10 * tolerance)
    assert not np.isnan(found["energies"]).any()
    texts = {each.key: json.loads(each.value) for each in onnx.load(file).metadata_props}
    assert texts["cells"][2] == {"name": "x2", "categories": {"0": 0.0, "1": 1.0, "2": 2.0}, "missing": True}
    assert texts["cells"][3]["categories"] == {"2": 2.0, "3": 3.0, "10": 10.0}
    assert texts["cells"][1] == {"name": "x1", "fill": pytest.approx(np.nanmedian(rows[:, 1])), "missing": True}


def test_the_keys_of_text_are_in_the_file(file: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table, y = mixed_columns()
    frame = pandas.DataFrame(table)
    model = EnergyClassifier("mean", **SMALL, pretrain_epochs=1).fit(frame, y)
    export_onnx(model, file)
    texts = {each.key: json.loads(each.value) for each in onnx.load(file).metadata_props}
    keys = {each["name"]: each.get("categories") for each in texts["cells"]}
    assert keys == {"size": None, "age": None, "colour": {"blue": 0, "green": 1, "red": 2}, "grade": None}
    coded = frame.assign(colour=[keys["colour"].get(each, np.nan) for each in table["colour"]]).to_numpy(dtype=float)
    np.testing.assert_allclose(run(file, X=coded)["probabilities"], model.predict_proba(frame), atol=2e-4)


def test_a_hole_in_plain_numbers_counts_as_the_median(file: Path) -> None:
    model = EnergyClassifier("mean", **SMALL, pretrain_epochs=1).fit(X, CLASSES)
    export_onnx(model, file)
    holes = np.where(RANDOM.uniform(size=ROWS.shape) < 0.3, np.nan, ROWS).astype(np.float64)
    np.testing.assert_allclose(run(file, X=holes)["probabilities"], model.predict_proba(holes), atol=2e-4)


def test_an_interrupted_export_leaves_nothing(tmp_path: Path, file: Path) -> None:
    save(refiner("yy", "ascent"), tmp_path / "model.zip")  # takes seconds
    command = [sys.executable, "-m", "energate", "export", str(tmp_path / "model.zip"), "--onnx", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in told or process.returncode == -signal.SIGINT
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]


def test_explain_as_json_and_what_it_refuses(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from energate.tables import CategoryColumn, Columns, NumberColumn

    columns = Columns((NumberColumn("size", 1.0), CategoryColumn("colour", ("blue", "red"))))
    (tmp_path / "rows.csv").write_text("id,colour,size\n1,red,3\n2,,\n3,blue,many\n")
    rows = RANDOM.normal(size=(40, 3))
    save(
        EnergyClassifier("mean", **SMALL, pretrain_epochs=1).fit(rows, [0, 1] * 20), tmp_path / "m.zip", columns=columns
    )
    (tmp_path / "good.csv").write_text("id,colour,size\n1,red,3\n2,,\n")
    found = json.loads(call("explain", tmp_path / "m.zip", tmp_path / "good.csv", "--json", "--top", 3).stdout)
    assert {each["column"]: each["value"] for each in found["classes"][0]["changes"]} == {
        "size": 3.0,
        "colour=blue": 0.0,
        "colour=red": 1.0,
    }
    second = json.loads(
        call("explain", tmp_path / "m.zip", tmp_path / "good.csv", "--json", "--row", 2, "--top", 3).stdout
    )
    assert {each["column"]: each["value"] for each in second["classes"][0]["changes"]}["size"] == 1.0
    for arguments, words in (
        ((tmp_path / "m.zip", tmp_path / "rows.csv", "--row", 3), "line 4"),
        ((tmp_path / "m.zip", tmp_path / "none.csv"), "no file"),
        ((tmp_path / "m.zip", tmp_path / "good.csv", "-o", "why.txt"), "a picture must be"),
    ):
        result = call("explain", *arguments, code=2)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
        assert words in result.stderr.lower()
