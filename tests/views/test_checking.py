import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from torch import Tensor
from typer.testing import CliRunner

from energate import save
from energate.cli import app
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.units import HiddenUnits, MeanUnits, project
from energate.views import view_of
from energate.views.checking import Checked, Finding, check

N, D = 60, 5
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(N, D)) * [1, 10, 0.1, 1, 3] + [0, 100, 0, -5, 0]
CLASSES = np.array(["a", "b", "c"])[np.arange(N) % 3]
LABELS = np.stack([X[:, 0] > 0, X[:, 1] > 100, X[:, 0] * X[:, 2] > 0], 1).astype(int)
SMALL: dict[str, Any] = {"n_hidden": 7, "n_factors": 6, "random_state": 0, "max_epochs": 2, "device": "cpu"}


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def refused(*arguments: object) -> str:
    result = call(*arguments, code=2)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert result.stderr.startswith("Error: ")
    return str(result.stderr)


class UntiedUnits(HiddenUnits):
    """Not exact: the decoder has weights of its own."""

    def __init__(self, n_models: int, n_visible: int, generator: torch.Generator) -> None:
        super().__init__(n_models, n_visible, 6, generator=generator)
        self.W, self.R, self.b = self.weight(6, n_visible), self.weight(6, n_visible), self.bias(6)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        return project(v, self.W, self.b), None

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return h @ self.R


class DoubledUnits(MeanUnits):
    """Conservative, but with the energy of another field."""

    repeats = 2


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    base = LabelMLP(n_hidden=6, n_members=1, max_epochs=1)
    return {
        "classes": EnergyClassifier("mean-covariance", **SMALL, pretrain_epochs=2, generative_weight=[0, 0.1]).fit(
            X, CLASSES
        ),
        "unit": EnergyClassifier("mean", **SMALL, pretrain_epochs=2, scaling="unit", generative_weight=0).fit(
            X, CLASSES
        ),
        "scorer": EnergyScorer(**SMALL, activation="relu").fit(X),
        "yy": EnergyRefiner(base, **SMALL).fit(X, LABELS),
        "xy": EnergyRefiner(base, "xy", method="ascent", **SMALL).fit(X, LABELS),
        "pairs": PairScorer(**SMALL).fit(X, X[:, :2]),
        "both": PairScorer("symmetric", **SMALL).fit(X, X[:, :2]),
    }


def test_models_as_they_come_are_conservative(models: dict[str, Any]) -> None:
    counts = {"classes": 2 * 2 * 3, "unit": 3}  # parts, members, classes
    for name, model in models.items():
        report = check(model)
        assert report.conservative, report
        assert len(report.findings) == counts.get(name, 1)
        assert len({finding.name for finding in report.findings}) == len(report.findings)
        assert report.worst.asymmetry < 1e-20
        assert report.worst.gradient_error < 1e-10
        assert report.worst.path_error < 1e-7
        assert report.n_rows == 32
    assert "given the columns" in check(models["xy"]).what
    assert "given x" in check(models["pairs"]).what


def test_rows_of_the_user_and_how_many(models: dict[str, Any]) -> None:
    for name in ("classes", "unit", "scorer", "xy"):
        report = check(models[name], X, n_rows=5)
        assert (report.conservative, report.n_rows) == (True, 5)
    far = check(models["scorer"], X + 1000 * models["scorer"].scaler_.size)
    assert far.conservative
    assert check(models["yy"], seed=1).worst != check(models["yy"], seed=2).worst


@pytest.mark.parametrize("scaling", ["standard", "unit"])
def test_an_untied_decoder_fails(scaling: str) -> None:
    """The negative control: without it every number above could be 0 by construction."""
    options: dict[str, Any] = {**SMALL, "scaling": scaling}
    untied = EnergyScorer(UntiedUnits, **options).fit(X)
    report = check(untied)
    assert not report.conservative
    assert report.worst.asymmetry > 1e-4
    assert report.worst.gradient_error > 1e-3
    assert report.worst.path_error > 1e-4
    assert len(report.findings[0].failures) == 3
    many = EnergyClassifier(UntiedUnits, **options, pretrain_epochs=1).fit(X, CLASSES)
    assert [bool(finding.failures) for finding in check(many).findings] == [True] * 3


def test_the_energy_of_another_field_fails() -> None:
    model = EnergyScorer(lambda k, d, g: DoubledUnits(k, d, 6, generator=g), **SMALL).fit(X)
    (finding,) = check(model).findings
    assert finding.asymmetry < 1e-20  # there is a potential, but not this one
    assert finding.gradient_error > 1e-2
    assert any("gradient of the energy" in failure for failure in finding.failures)
    assert not any("Jacobian" in failure for failure in finding.failures)


def test_one_bad_class_among_many_is_named(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    decode = MeanUnits.decode

    def broken(self: MeanUnits, h: Tensor, carry: None) -> Tensor:
        found = decode(self, h, carry)
        if self.n_models == 1 and torch.equal(self.W[0], wanted):
            found = found + 0.1 * found.roll(1, -1)
        return found

    wanted = models["classes"].model_.autoencoders[0].groups[0].W.detach()[4]  # class b of member 1
    monkeypatch.setattr(MeanUnits, "decode", broken)
    report = check(models["classes"])
    assert [finding.name for finding in report.findings if finding.failures] == ["class b, member 1, MeanUnits"]


def test_numbers_that_are_not_finite_fail() -> None:
    nan = float("nan")
    for numbers in ((nan, 0.0, 0.0), (0.0, nan, 0.0), (0.0, 0.0, nan), (0.0, 0.0, float("inf"))):
        assert not Checked("A", "b", 2, (Finding("c", *numbers),)).conservative
    assert Checked("A", "b", 2, (Finding("c", 0.0, 0.0, 0.0),)).conservative


def test_steep_units_are_not_refused_for_the_quadrature() -> None:
    model = EnergyScorer("mean", **SMALL).fit(X)
    with torch.no_grad():
        model.model_.groups[0].W *= 200
    report = check(model)
    assert report.conservative, report


def test_rows_are_drawn_on_the_scale_of_training(models: dict[str, Any]) -> None:
    drawn = view_of(models["scorer"]).draw(4000, 0)["X"]
    np.testing.assert_allclose(drawn.mean(0), X.mean(0), atol=0.1 * X.std(0).max())
    assert (np.abs(drawn.std(0) / models["scorer"].scaler_.size - 1) < 0.1).all()
    inside = view_of(models["unit"]).draw(500, 0)["X"]
    assert (inside >= X.min(0) - 1e-9).all()
    assert (inside <= X.max(0) + 1e-9).all()
    assert view_of(models["pairs"]).draw(3, 0)["Y"].shape == (3, 2)


@settings(max_examples=20, deadline=None)
@given(n_rows=st.one_of(st.integers(-3, 1), st.sampled_from([2.0, "3", None, True])))
def test_bad_numbers_of_rows_are_refused(n_rows: Any) -> None:
    with pytest.raises(InputError, match="at least 2"):
        check(EnergyScorer(), n_rows=n_rows)


def test_what_cannot_be_checked_is_refused(models: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="has no energy"):
        check(models["yy"].base_)
    with pytest.raises(InputError, match="got int"):
        check(3)
    with pytest.raises(InputError, match="leave the rows out"):
        check(models["pairs"], X)
    with pytest.raises(InputError, match="at least 2 rows; got 1"):
        check(models["scorer"], X[:1])


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(models: dict[str, Any], tmp_path: Path) -> dict[str, Path]:
    for name, model in models.items():
        save(model, tmp_path / f"{name}.zip")
    np.savez(tmp_path / "rows.npz", X=X)
    return {path.stem: path for path in tmp_path.iterdir()}


def test_the_command_says_conservative(saved: dict[str, Path]) -> None:
    for name in ("classes", "scorer", "yy", "xy", "pairs"):
        told = call("check", saved[name]).stdout
        assert "conservative: every vector field" in told
        assert "failed" not in told
    found = json.loads(call("check", saved["classes"], "--json", "--rows", 6, "--data", saved["rows"]).stdout)
    assert (found["conservative"], found["rows"], len(found["models"])) == (True, 6, 12)
    assert found["worst"]["gradient_error"] == max(each["gradient_error"] for each in found["models"])


def test_the_command_says_what_failed(saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanUnits, "decode", lambda self, h, _: h @ self.W.roll(1, -1))
    told = call("check", saved["unit"], code=1).stdout
    assert "NOT conservative, 3 of 3. class a, MeanUnits: the Jacobian is not symmetric" in told
    found = json.loads(call("check", saved["unit"], "--json", code=1).stdout)
    assert found["conservative"] is False
    assert len(found["models"][0]["failures"]) == 3


def test_bad_input_is_one_line(saved: dict[str, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "narrow.npz", X=X[:, :3])
    assert "no-such" in refused("check", tmp_path / "no-such.zip")
    assert "takes 5; narrow.npz has 3" in refused("check", saved["scorer"], "--data", tmp_path / "narrow.npz")
    assert "no-such" in refused("check", saved["scorer"], "--data", tmp_path / "no-such.npz")
    assert "leave the rows out" in refused("check", saved["pairs"], "--data", saved["rows"])
    call("check", saved["scorer"], "--rows", 1, code=2)


def test_a_refiner_without_its_base_is_checked_and_not_explained(tmp_path: Path) -> None:
    save(EnergyRefiner(MultiOutputClassifier(GaussianNB()), **SMALL).fit(X, LABELS), tmp_path / "labels.zip")
    np.savez(tmp_path / "rows.npz", X=X)
    assert "the base is not part of the energy" in call("check", tmp_path / "labels.zip").stdout
    told = refused("explain", tmp_path / "labels.zip", tmp_path / "rows.npz")
    assert "the base, a MultiOutputClassifier, is not in its file" in told


def test_a_function_as_units_is_named(tmp_path: Path) -> None:
    save(EnergyScorer(UntiedUnits, **SMALL).fit(X), tmp_path / "own.zip")
    for command in (("check", tmp_path / "own.zip"), ("export", tmp_path / "own.zip", "--onnx", tmp_path / "own.onnx")):
        assert "a function of Python, UntiedUnits, as `units`, which is not in its file" in refused(*command)


@pytest.mark.slow
def test_the_command_as_a_process(saved: dict[str, Path]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "energate", "check", str(saved["scorer"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "conservative" in done.stdout
    slow = subprocess.Popen([*command, "--rows", "2000000"], stderr=subprocess.PIPE, text=True, env=environment)
    time.sleep(4)
    slow.send_signal(signal.SIGINT)
    _, told = slow.communicate(timeout=60)
    assert slow.returncode in (130, -signal.SIGINT)  # the latter if Python was still importing
    assert slow.returncode != 130 or told == "Stopped. Nothing was written.\n"
