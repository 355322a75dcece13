"""The demo is a program: it is run as one, and its claim is checked on the generated and the original rows."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def load_demo() -> ModuleType:
    sys.path.insert(0, str(DEMO.parent))  # it imports its parts
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_demo_beats_the_paper_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--out", str(tmp_path), "--seeds", "1", "--only", "rectangles"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"cAES, energate: ([\d.]+) %", printed)
    assert found, printed
    assert float(found.group(1)) < 0.61
    assert "conservative" in printed
    for picture in ("filters.png", "vector-field.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_demo_compares_on_bundled_sets_and_draws_analogies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With fewer epochs, members and rows than the demo has: the errors are low with these already."""
    demo = load_demo()
    less = {"generative_weight": 0.1, "pretrain_epochs": 5, "max_epochs": 10, "n_hidden": 16, "n_members": 2}
    monkeypatch.setattr(demo.bundled, "EnergyClassifier", functools.partial(demo.bundled.EnergyClassifier, **less))
    monkeypatch.setattr(demo.bundled.joblib, "cpu_count", lambda: 1)  # in this process
    monkeypatch.delitem(demo.bundled.SETS, "digits")  # the largest
    monkeypatch.setattr(demo.bundled.run, "__defaults__", (demo.bundled.FOLDS, tuple(demo.bundled.SETS)))
    monkeypatch.setattr(demo.pairs, "N_TRAIN", 5000)
    arguments = ["demo.py", "--out", str(tmp_path), "--folds", "1", "--only", "bundled", "pairs"]
    monkeypatch.setattr(sys, "argv", arguments)
    demo.main()
    printed = capsys.readouterr().out
    found = re.findall(r"^    ([\w()' -]+?) +([\d.]+) \+-", printed, re.M)
    assert len(found) == 2 * 7, printed
    assert max(float(error) for name, error in found if name == "EnergyClassifier") < 8
    units, pixels = map(float, re.search(r"([\d.]+) % from units, ([\d.]+) % from pixels", printed).groups())
    assert units > 95
    assert pixels < 50
    assert (tmp_path / "analogies.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.data
def test_demo_recipe_beats_the_paper_on_the_original_rectangles() -> None:
    path = Path(os.environ["ENERGATE_DATA"]) / "single" / "rectangles.npz"
    with np.load(path, allow_pickle=False) as file:
        parts = [
            (torch.tensor(file[f"x_{part}"].astype(np.float32)), torch.tensor(file[f"y_{part}"].astype(np.int64)))
            for part in ("train", "valid", "test")
        ]
    demo = load_demo()
    model, biases, _ = demo.train(parts[0], parts[1], seed=0)
    assert demo.test_error(model, biases, *parts[2]) < 0.61
