"""Commands on models that lack something: a refiner without its base, units that are a function of Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from typer.testing import CliRunner

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, MeanUnits, load, save
from energate.cli import app
from energate.datasets import make_correlated_labels
from energate.tables import Columns, NumberColumn

pa = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
csv = pytest.importorskip("pyarrow.csv")

DATA = make_correlated_labels(120, seed=0, sharpness=4.0)
NAMES = [f"t{i}" for i in range(DATA.Y.shape[1])]
BASE = MultiOutputClassifier(LogisticRegression()).fit(DATA.X, DATA.Y)
#: what a command of Python, and of no shell, looks like
PYTHON = ("load(", "base=", "units=", "`base`", "refine(scores", "trusted")


def call(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def refused(*arguments: Any) -> str:
    result = call(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert not any(word in result.stderr for word in PYTHON), result.stderr
    return str(result.stderr)


def fitted(**options: Any) -> Any:
    made = EnergyRefiner(BASE, prefit=True, max_epochs=1, random_state=0, device="cpu", **options)
    made.fit(DATA.X, DATA.Y)._set(0.5 if made.method == "sets" else 2)  # `fit` may find that refining gains nothing
    return made


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    inputs = [f"f{i}" for i in range(DATA.X.shape[1])]
    columns = Columns(tuple(NumberColumn(name, 0.0) for name in inputs), "multilabel", tuple(NAMES), tuple(NAMES))
    save(fitted(), folder / "apart.zip", columns=columns)
    save(fitted(method="ascent"), folder / "ascent.zip", columns=columns)
    p = np.stack([each[:, 1] for each in BASE.predict_proba(DATA.X)], 1)
    table = dict(zip(inputs, DATA.X.T, strict=True)) | {f"p_{name}": p[:, i] for i, name in enumerate(NAMES)}
    csv.write_csv(pa.table(table), folder / "t.csv")
    table["p_t1"] = np.where(np.arange(len(p)) == 6, 2.0, table["p_t1"])
    csv.write_csv(pa.table(table), folder / "wrong.csv")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cells(path: str, prefix: str, names: list[str] = NAMES) -> Any:
    found = csv.read_csv(path).to_pydict()
    return np.stack([found[f"{prefix}{name}"] for name in names], 1)


# --- without a base ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "way"), [("predict", "`energate refine`"), ("refine", "this again"), ("explain", "this again")]
)
def test_a_base_that_is_elsewhere_is_asked_for_in_words_of_the_shell(shelf: Path, command: str, way: str) -> None:
    words = refused(command, shelf / "apart.zip", shelf / "t.csv")
    assert f"`energate {command}` asks the base of apart.zip first" in words
    assert "a MultiOutputClassifier, is not in its file" in words
    assert "columns of DATA, such as p_t0" in words
    assert words.endswith(f"and run {way} with --base-prefix p_.\n")


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_a_base_that_skops_wrote_is_not_read_by_commands(shelf: Path, command: str) -> None:
    pytest.importorskip("skops", reason="the extra `skops` is not installed")
    save(fitted(), "inside", with_base=True)
    names = [f"x{i}" for i in range(DATA.X.shape[1])]
    csv.write_csv(pa.table(dict(zip(names, DATA.X.T, strict=True))), "t.csv")
    words = refused(command, "inside", "t.csv")
    assert "the base, a MultiOutputClassifier, is in a part of its file that is read from Python alone" in words
    assert "such as p_0" in words


def test_what_needs_no_base_goes_without(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(call("check", shelf / "apart.zip", "--json").stdout)["conservative"]
    pytest.importorskip("starlette")
    from energate import serving

    def offered(served: Any, _: Any, listening: Any) -> None:
        listening.close()
        print(json.dumps(list(served.operations)))

    monkeypatch.setattr(serving, "serve", offered)
    result = call("serve", shelf / "apart.zip", "--port", 0, "--device", "cpu")
    assert '["refine", "explain"]' in result.stdout
    assert result.stderr == "Note: this refiner is served without its base: requests bring `scores` with their rows.\n"


def test_refine_writes_the_base_beside(shelf: Path) -> None:
    """It is the calibrated base: what the refiner gives where it refines nothing."""
    call("refine", shelf / "apart.zip", shelf / "t.csv", "--base-prefix", "p_", "--with-base", "-o", "out.csv")
    model = load(shelf / "apart.zip", base=BASE)
    np.testing.assert_allclose(cells("out.csv", "refined_"), model.predict_proba(DATA.X), atol=1e-6)
    model._set(0.0)
    np.testing.assert_allclose(cells("out.csv", "base_"), model.predict_proba(DATA.X), atol=1e-6)
    assert np.abs(cells("out.csv", "base_") - cells("out.csv", "refined_")).max() > 1e-3
    assert np.abs(cells("out.csv", "base_") - cells("out.csv", "p_")).max() > 1e-3
    call("refine", shelf / "apart.zip", shelf / "t.csv", "--base-prefix", "p_", "-o", "without.csv")
    assert "base_t0" not in Path("without.csv").read_text()


def test_explain_takes_what_a_base_says_from_the_table(shelf: Path) -> None:
    call("refine", shelf / "ascent.zip", shelf / "t.csv", "--base-prefix", "p_", "--with-base", "-o", "out.csv")
    options = ("--row", 7, "--base-prefix", "p_")
    found = json.loads(call("explain", shelf / "ascent.zip", shelf / "t.csv", *options, "--json").stdout)
    assert [each["label"] for each in found["labels"]] == NAMES
    for kind in ("base", "refined"):
        np.testing.assert_allclose([each[kind] for each in found["labels"]], cells("out.csv", f"{kind}_")[6], atol=1e-6)
    assert found["prediction"] == [
        name for name, on in zip(NAMES, cells("out.csv", "predicted_")[6], strict=True) if on
    ]
    assert "refined" in call("explain", shelf / "ascent.zip", shelf / "t.csv", *options).stdout
    assert "line 8: 'p_t1' must be a probability" in refused(
        "explain", shelf / "apart.zip", shelf / "wrong.csv", *options
    )
    assert "it lacks 'q_t0'" in refused("explain", shelf / "apart.zip", shelf / "t.csv", "--base-prefix", "q_")


def test_a_base_is_for_refiners(shelf: Path) -> None:
    save(EnergyScorer("mean", n_hidden=2, max_epochs=1, device="cpu").fit(DATA.X), "m.zip")
    words = refused("explain", "m.zip", shelf / "t.csv", "--base-prefix", "p_")
    assert "are for a refiner; the model is of the kind EnergyScorer" in words


def test_a_refiner_of_classes_gives_one_class_and_shares_of_all() -> None:
    y = np.array(["low", "mid", "high"])[(DATA.X[:, 0] > 0).astype(int) + (DATA.X[:, 0] > 1)]
    model = EnergyRefiner(clone(BASE), cv=2, max_epochs=1, random_state=0, device="cpu").fit(DATA.X, y)
    model._set(0.5)
    save(model, "m.zip")
    p = np.stack([each[:, 1] for each in model.base_.predict_proba(DATA.X)], 1)
    table = {f"x{i}": column for i, column in enumerate(DATA.X.T)}
    table |= {f"p_{name}": p[:, i] for i, name in enumerate(model.classes_)}
    csv.write_csv(pa.table(table), "t.csv")
    call("refine", "m.zip", "t.csv", "--base-prefix", "p_", "--with-base", "-o", "out.csv")
    for kind in ("refined_", "base_"):
        np.testing.assert_allclose(cells("out.csv", kind, list(model.classes_)).sum(1), 1)
    best = cells("out.csv", "refined_", list(model.classes_)).argmax(1)
    assert csv.read_csv("out.csv").to_pydict()["prediction"] == model.classes_[best].tolist()


# --- units that are a function -----------------------------------------------------------------------------------


def unusual(n_models: int, width: int, generator: Any) -> Any:
    return [MeanUnits(n_models, width, 2, generator=generator)]


@pytest.mark.parametrize("command", ["predict", "score", "explain", "check", "export", "serve"])
def test_a_function_cannot_come_from_a_shell(command: str) -> None:
    X = DATA.X[:, :2]
    model = EnergyClassifier(unusual, pretrain_epochs=1, max_epochs=1, random_state=0, device="cpu")
    save(model.fit(X, X[:, 0] > 0), "m.zip")
    Path("t.csv").write_text("x0,x1\n1,2\n")
    more = {"check": [], "serve": ["--port", 0], "export": ["--onnx", "m.onnx"]}.get(command, ["t.csv"])
    words = refused(command, "m.zip", *more)
    assert "m.zip was fitted with a function of Python, unusual, as `units`" in words
    assert "energate fit --units mean" in words
