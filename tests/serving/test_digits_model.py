"""The model of digits that comes with the package, and the example that trains it."""

import importlib.resources
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from energate import load
from energate.persistence import read_columns

MODEL = Path(str(importlib.resources.files("energate"))) / "models" / "digits"


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """The rows that took no part in training."""
    X, y = load_digits(return_X_y=True)
    _, X, _, y = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    return X, y


def test_it_is_small_and_right_on_rows_it_has_not_seen() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 1.5e6
    X, y = held_out()
    assert load(MODEL).score(X, y) >= 0.98
    columns = read_columns(MODEL)
    assert columns is not None
    assert columns.image == (8, 8)


def test_its_examples_are_rows_held_out() -> None:
    X, y = held_out()
    examples = np.array(json.loads(MODEL.with_name("digits-examples.json").read_text()))
    places = [int(np.flatnonzero((row == X).all(1))[0]) for row in examples]
    assert y[places].tolist() == [k for k in range(10) for _ in range(2)]


def test_training_it_gives_the_same_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    monkeypatch.delitem(sys.modules, "train_digits_model", raising=False)
    import train_digits_model

    runs = [train_digits_model.train(tmp_path / name, epochs=1) for name in ("a", "b")]
    assert runs[0] == runs[1]
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
