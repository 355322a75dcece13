"""Checkpoints: a fit that was killed and run again gives the model of one that was not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP
from energate.cli import app
from energate.errors import InputError
from energate.training import Progress, checkpointing, corrupt, minimise, row_batches

OPTIONS: list[dict[str, Any]] = [
    {"optimizer": "adam", "learning_rate": torch.tensor([0.01, 0.02]), "patience": 3},
    {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine", "validate_every": 2},
    {"optimizer": "sgd", "on_divergence": "keep", "clip_norm": 0.5},
]


class Killed(BaseException):
    """In place of a signal."""


def train(stop_at: int | None, options: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    """Two models of a line, with noise from a generator."""
    draws = torch.Generator().manual_seed(3)
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    W = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        v = corrupt(X[batch], "gaussian", 0.1, draws)
        return (v @ W.T - X[batch].sum(1, keepdim=True)).square().mean(0)

    def validate() -> torch.Tensor:
        return (X @ W.T - X.sum(1, keepdim=True)).square().mean(0)

    def callback(progress: Progress) -> None:
        if progress.epoch == stop_at:
            raise Killed

    check = None if options.get("on_divergence") else validate
    batches = row_batches(40, 8, seed=2)
    how = {"epochs": 9, "validate": check, "callback": callback, "generators": [draws]}
    history = minimise(loss, [W], batches, **how, **options)
    return W.detach(), history


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["optimizer"])
@pytest.mark.parametrize("stop_at", [2, 9])
def test_the_loop_goes_on_as_if_nothing_had_happened(options: dict[str, Any], stop_at: int, tmp_path: Path) -> None:
    expected, history = train(None, options)
    with checkpointing(tmp_path, every=0.0), pytest.raises(Killed):
        train(stop_at, options)
    with checkpointing(tmp_path, every=0.0) as files:
        found, resumed = train(None, options)
    assert files.n_resumed == stop_at - 1
    assert torch.equal(found, expected)
    assert torch.equal(torch.stack(resumed.loss), torch.stack(history.loss))
    assert (resumed.n_steps, resumed.validated) == (history.n_steps, history.validated)
    with checkpointing(tmp_path, every=0.0) as files:  # and once more, from the end
        again, _ = train(1, options)
    assert files.n_resumed == len(history.loss)
    assert torch.equal(again, expected)
    assert (history.best is None) == (resumed.best is None)


def test_other_fits_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with checkpointing(tmp_path, about="first"):
        train(None, OPTIONS[0])
    with checkpointing(tmp_path, about="second"), pytest.raises(InputError, match="the checkpoint of another fit"):
        train(None, OPTIONS[0])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:50])
    with checkpointing(tmp_path, about="first") as files:
        with pytest.raises(InputError, match="damaged"):
            train(None, OPTIONS[0])
        files.remove()
    assert not list(tmp_path.iterdir())


X = np.random.default_rng(0).normal(size=(60, 4))
y = (X[:, 0] > 0).astype(int)
Y = np.stack([y, X[:, 1] > 0, X[:, 0] + X[:, 1] > 0], 1).astype(int)
FITS: dict[str, Any] = {
    "trunk": lambda: EnergyClassifier(n_members=2, breadth=8, depth=1, max_epochs=4, random_state=0).fit(X, y),
    "mean": lambda: EnergyClassifier(units="mean", n_hidden=4, max_epochs=3, random_state=0).fit(X, y),
    "scorer": lambda: EnergyScorer(units="mean", n_hidden=4, max_epochs=3, random_state=0).fit(X),
    "refiner": lambda: EnergyRefiner(LabelMLP(max_epochs=2, random_state=0), max_epochs=2, random_state=0).fit(X, Y),
}


@pytest.mark.parametrize("kind", FITS)
def test_estimators_give_the_same_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = FITS[kind]()
    from energate.training import checkpoints

    write, n_written = checkpoints.Checkpoint.offer, 0

    def dying(self: Any, *arguments: Any) -> None:
        nonlocal n_written
        write(self, *arguments)
        n_written += 1
        if n_written == 2:
            raise Killed

    monkeypatch.setattr(checkpoints.Checkpoint, "offer", dying)
    with checkpointing(tmp_path, every=0.0), pytest.raises(Killed):
        FITS[kind]()
    monkeypatch.setattr(checkpoints.Checkpoint, "offer", write)
    with checkpointing(tmp_path, every=0.0) as files:
        found = FITS[kind]()
    assert files.n_resumed >= 1
    for name, tensor in expected.model_.state_dict().items():
        assert torch.equal(found.model_.state_dict()[name], tensor), name


def test_the_command_goes_on_after_kill_9(tmp_path: Path) -> None:
    lines = [",".join(f"{value:.4f}" for value in row) + f",{'ab'[label]}" for row, label in zip(X, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,r,s,kind", *lines]))
    options = ["--target", "kind", "--units", "mean", "--epochs", "4"]
    fit = ["fit", str(tmp_path / "t.csv"), *options]
    code = (
        "import os, signal, sys\nfrom energate.cli import app\nfrom energate.training import checkpoints\n"
        "write = checkpoints.Checkpoint.offer\nn = 0\n"
        "def dying(self, *arguments):\n    global n\n    self.owner.every = 0.0\n    write(self, *arguments)\n"
        "    n += 1\n"
        "    n == 3 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoints.Checkpoint.offer = dying\napp(sys.argv[1:])"
    )
    aside = ["--checkpoint", str(tmp_path / "c"), "-o", str(tmp_path / "resumed.zip")]
    ended = subprocess.run([sys.executable, "-c", code, *fit, *aside], check=False, capture_output=True)
    assert ended.returncode == -9, ended.stderr
    assert os.listdir(tmp_path / "c")
    again = CliRunner().invoke(app, [*fit, *aside])
    assert again.exit_code == 0, again.output
    assert "3 epochs were there" in again.stderr
    assert not os.listdir(tmp_path / "c")
    assert CliRunner().invoke(app, [*fit, "-o", str(tmp_path / "calm.zip")]).exit_code == 0
    from energate import load

    calm, resumed = (load(tmp_path / f"{name}.zip").model_.state_dict() for name in ("calm", "resumed"))
    for name, tensor in calm.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=1e-6, atol=1e-7)
