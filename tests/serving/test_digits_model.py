"""The model of digits that comes with the package, and the example that trains it."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from energate import load, serving
from energate.persistence import read_columns

MODEL = serving.digits_model()


def examples() -> np.ndarray:
    """Two digits of each class, which took no part in training."""
    return np.array(json.loads(MODEL.with_name("digits-examples.json").read_text()))


def test_it_is_small_and_knows_its_examples() -> None:
    assert MODEL.stat().st_size < 2e6
    model, columns = load(MODEL, device="cpu"), read_columns(MODEL)
    assert columns is not None
    assert (columns.image, columns.range) == ((28, 28), (0.0, 1.0))
    rows = examples()
    assert model.predict(rows).tolist() == [k for k in range(10) for _ in range(2)]
    assert not model.rejects(rows, rate=0.01).any()
    assert model.rejects(1 - rows, rate=0.01).all()


def test_it_denoises() -> None:
    rows, model = examples(), load(MODEL, device="cpu")
    noise = 0.3 * np.random.default_rng(0).normal(size=rows.shape)
    left = model.denoise(rows + noise) - rows
    assert (left**2).mean() < 0.2 * (noise**2).mean()


@pytest.mark.data
def test_it_is_right_on_digits_that_it_has_not_seen() -> None:
    with np.load(Path(os.environ["ENERGATE_DATA"]) / "single" / "mnist.npz", allow_pickle=False) as file:
        X, y = file["x_test"][:500] / 255, file["y_test"][:500]
    assert load(MODEL, device="cpu").score(X, y.astype(int)) >= 0.98


def test_training_it_gives_the_same_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    monkeypatch.delitem(sys.modules, "train_mnist_model", raising=False)
    import train_mnist_model

    random = np.random.default_rng(0)
    digits = {name: random.integers(0, 256, (50, 28, 28), dtype=np.uint8) for name in ("x_train", "x_test")}
    classes = {name: np.arange(50, dtype=np.uint8) % 10 for name in ("y_train", "y_test")}
    (tmp_path / "single").mkdir()
    np.savez(tmp_path / "single" / "mnist.npz", **digits, **classes)
    for name in ("a", "b"):
        train_mnist_model.train(tmp_path, tmp_path / name, epochs=1, n_rows=30, device="cpu")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
