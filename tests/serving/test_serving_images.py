"""Models of pictures behind HTTP: what they say of themselves, denoising and filling in."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from clients import served as client_of
from numpy.testing import assert_allclose

from energate import EnergyClassifier, ImageEnergyClassifier, serving
from energate.tables import Columns, ImageColumn, NumberColumn

QUICK = {"n_hidden": 4, "channels": 8, "n_blocks": 0, "max_epochs": 2, "device": "cpu", "random_state": 0}


@cache
def pictures(channels: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = random.integers(0, 60, (40, 10, 9, channels))
    X[y == 1, 2:5] += 150
    return X.astype(float), y


@cache
def fitted(channels: int = 1, **options: Any) -> ImageEnergyClassifier:
    X, y = pictures(channels)
    return ImageEnergyClassifier(**{**QUICK, **options}).fit(X[..., 0] if channels == 1 else X, y)


def served(model: Any, columns: Columns | None = None) -> Any:
    return client_of(serving.serve_model(model, columns, name="bars"))


@pytest.mark.parametrize(("channels", "options"), [(1, {}), (3, {}), (1, {"denoising_weight": 10.0})])
def test_pictures_are_restored(channels: int, options: dict[str, Any]) -> None:
    model, X = fitted(channels, **options), pictures(channels)[0]
    rows, mask = X[:2].reshape(2, -1), np.zeros((10, 9), dtype=bool)
    mask[:, 5:] = True
    with served(model) as client:
        about = client.get("/model").json()
        assert about["name"] == "bars"
        assert about["image"] == [10, 9, 3][: 2 if channels == 1 else 3]
        assert_allclose(about["range"], [model.scaler_.offset.min(), (model.scaler_.offset + model.scaler_.size).max()])
        assert {"denoise", "inpaint", "trajectory"} <= set(about["operations"])
        found = client.post("/denoise", json={"rows": rows.tolist()}).json()
        assert_allclose(found["images"], model.denoise(rows), rtol=1e-5, atol=1e-3)
        assert_allclose(found["p_value"], model.p_values(model.denoise(rows)), atol=0.03)
        if options:
            levels = [[0.2], [0.4]]
            told = client.post("/denoise", json={"rows": rows.tolist(), "level": levels}).json()["images"]
            expected = [model.denoise(rows[i : i + 1], level=levels[i][0])[0] for i in range(2)]
            assert_allclose(told, expected, rtol=1e-5, atol=1e-3)
        body = {"rows": rows.tolist(), "mask": [mask.ravel().astype(int).tolist()] * 2}
        found = client.post("/inpaint", json=body).json()
        filled, known = np.array(found["images"]), np.repeat(~mask.ravel(), channels)
        assert_allclose(filled[:, known], rows[:, known])
        assert not np.allclose(filled[:, ~known], rows[:, ~known])
        frames = np.array(found["frames"])
        assert frames.shape == (2, 16, rows.shape[1])
        assert_allclose(frames[:, -1], filled)
        assert_allclose(frames[:, :, known], np.repeat(rows[:, None, known], 16, 1), rtol=1e-5, atol=1e-3)
        walk = client.post("/trajectory", json={"row": rows[0].tolist(), "n_steps": 3}).json()
        assert walk["of"] is None  # all classes together
        assert np.diff(walk["energies"]).min() > 0
        assert client.post("/trajectory", json={"row": rows[0].tolist(), "n_steps": 2, "of": 1}).json()["of"] == 1


def test_what_is_refused() -> None:
    row = pictures(1)[0][0].ravel().tolist()
    with served(fitted()) as client:
        wrong = [
            ("/inpaint", {"rows": [row]}, "mask is missing"),
            ("/inpaint", {"rows": [row], "mask": [[1, 0]]}, "mask[0] must have 90 entries; got 2"),
            ("/inpaint", {"rows": [row], "mask": [[0] * 90] * 2}, "one entry for each of the 1 rows; got 2"),
            ("/inpaint", {"rows": [row] * 800, "mask": [[0] * 90] * 800}, "rows must have at most"),
        ]
        for path, body, words in wrong:
            answer = client.post(path, json=body)
            assert answer.status_code == 422, answer.text
            assert words in answer.json()["detail"]
    with served(fitted(denoising_weight=0.0)) as client:
        assert "denoise" not in client.get("/model").json()["operations"]
        assert client.post("/denoise", json={"rows": [row]}).status_code == 404


def test_pictures_of_a_saved_table_come_with_range_and_examples() -> None:
    X, _ = pictures(1)
    examples = tuple(tuple(row) for row in X[:3].reshape(3, -1).tolist())
    column = ImageColumn("image", (10, 9, 1), 255.0)
    columns = Columns((column,), "classify", ("kind",), image=(10, 9), range=(0.0, 209.0), examples=examples)
    assert Columns.from_json(columns.to_json()) == columns
    with served(fitted(), columns) as client:
        about = client.get("/model").json()
        assert (about["image"], about["range"], about["white"]) == ([10, 9], [0.0, 209.0], 255.0)
        assert (about["target"], about["columns"]) == ("kind", None)
        assert_allclose(about["examples"], examples)
        assert client.post("/predict", json={"rows": about["examples"]}).status_code == 200


def test_without_a_range_nobody_draws() -> None:
    """An old model of pixels does not say which numbers are dark: 0 to 1 would be a guess."""
    X, y = pictures(1)
    model = EnergyClassifier("mean", pretrain_epochs=1, max_epochs=1, random_state=0).fit(X.reshape(40, -1), y)
    pixels = tuple(NumberColumn(f"p{i}", 0.0) for i in range(90))
    with served(model, Columns(pixels, image=(10, 9))) as client:
        about = client.get("/model").json()
        assert about["image"] is None
    with served(model, Columns(pixels, image=(10, 9), range=(0.0, 16.0))) as client:
        assert client.get("/model").json()["range"] == [0.0, 16.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"range": [3, 1]}, "the least first"),
        ({"range": [0, "1"]}, "finite numbers"),
        ({"examples": [[1, 2]]}, "rows of 90 numbers"),
        ({"examples": 3}, "rows of numbers"),
        ({"image": [10, 9, 1, 1]}, "height and a width"),
    ],
)
def test_damaged_columns_are_refused(change: dict[str, Any], words: str) -> None:
    content = Columns((ImageColumn("image", (10, 9, 1)),), image=(10, 9)).to_json()
    with pytest.raises(ValueError, match=words):
        Columns.from_json({**content, **change})
