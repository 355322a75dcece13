"""The page of a model of pictures, in a real browser: drawing in its range, denoising, erasing and filling in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import CHROMIUM, draw, ink, settle
from sklearn.datasets import load_digits

from energate import ImageEnergyClassifier, fit_table, load, save

for package in ("starlette", "uvicorn", "playwright.sync_api"):
    pytest.importorskip(package, reason="the page needs a server and a browser")
image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
if CHROMIUM is None:
    pytest.skip("there is no Chromium (Debian: apt-get install chromium)", allow_module_level=True)

QUICK: dict[str, Any] = {"n_hidden": 4, "channels": 8, "n_blocks": 0, "device": "cpu", "random_state": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pixels from 0 to 16, as `fit` has them; a model that is told the noise; one of colours; one of dark on white."""
    folder, (X, y) = tmp_path_factory.mktemp("models"), load_digits(return_X_y=True)
    X, y = X[:400].reshape(-1, 8, 8), y[:400]
    np.savez(folder / "digits.npz", X=X, digit=y)
    fitted = fit_table(
        folder / "digits.npz", "digit", task="images", epochs=8, channels=8, device="cpu", test_fraction=0.1
    )
    save(fitted.model, folder / "ink", columns=fitted.columns)
    told = ImageEnergyClassifier(**QUICK, max_epochs=2).fit(X, y)
    save(told, folder / "told.zip", columns=fitted.columns)
    colours = np.random.default_rng(0).uniform(0, 255, (40, 8, 9, 3))
    np.savez(folder / "colours.npz", X=colours.round(), kind=np.arange(40) % 2)
    made = fit_table(folder / "colours.npz", "kind", task="images", epochs=1, channels=8, device="cpu")
    save(made.model, folder / "colours.zip", columns=made.columns)
    np.savez(folder / "white.npz", X=255 - 255 * X / 16, digit=y)
    white = fit_table(folder / "white.npz", "digit", task="images", epochs=1, channels=8, device="cpu")
    save(white.model, folder / "white.zip", columns=white.columns)
    return {
        "ink": folder / "ink",
        "told": folder / "told.zip",
        "colours": folder / "colours.zip",
        "white": folder / "white.zip",
    }


def asked(page: Any, path: str) -> list[Any]:
    """What the page asks at a path, from now on."""
    found: list[Any] = []
    page.on("request", lambda request: request.url.endswith(path) and found.append(request.post_data_json))
    return found


def test_a_drawing_has_the_range_of_the_model(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    """Pixels of 0 to 1 would be nearly blank to a model of 0 to 16."""
    page = visit("ink")
    row = draw(page, 0, wait_for="#results")
    assert min(row) == 0
    assert 12 <= max(row) <= 16
    assert all(value == int(value) for value in row)
    page.wait_for_timeout(100)
    assert page.inner_text("#about").startswith("Predicts digit, 10 classes, from pictures of 8 ")
    model = load(models["ink"])
    assert f"p = {float(f'{model.p_values([row])[0]:.2g}'):g}" in page.inner_text("#strange")
    assert page.inner_text("#verdict").count(f"digit {model.predict([row])[0]}") == 1


def test_ink_may_be_dark(visit: Callable[..., Any]) -> None:
    page = visit("white")
    row = np.array(draw(page, 0, wait_for="#results"))
    assert row.max() == 255
    assert row.min() < 60
    assert np.median(row) > 200  # the paper
    assert ink(page, "canvas.seen") == pytest.approx((255 - row) / 255, abs=0.01)


def test_noise_is_taken_out(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    for name in ("ink", "told"):
        page = visit(name)
        bodies = asked(page, "/denoise")
        page.get_by_label("Noise", exact=True).fill("0.2")
        settle(page)
        with page.expect_response(lambda response: response.url.endswith("/denoise")) as answer:
            page.get_by_label("Noise", exact=True).fill("0.4")
        body, shown = bodies[-1], answer.value.json()["images"][0]
        assert body["level"] == [[0.4]]
        model = load(models[name])
        expected = model.denoise([body["rows"][0]], level=0.4)[0]
        assert shown == pytest.approx(expected, abs=1e-3)
        settle(page)
        page.wait_for_timeout(100)
        canvas = '#restore canvas[aria-label^="The picture without noise"]'
        assert ink(page, canvas) == pytest.approx(np.clip(expected, 0, 16) / 16, abs=0.01)


def test_what_is_erased_is_filled_in(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    page = visit("ink")
    model, bodies = load(models["ink"]), asked(page, "/inpaint")
    page.get_by_role("button", name="Erase the lower half").click()
    page.get_by_text("32 pixels filled in.").wait_for()
    (row,), (mask,) = bodies[-1]["rows"], bodies[-1]["mask"]
    assert np.array_equal(np.reshape(mask, (8, 8)), np.repeat([[0], [1]], 4, 0) * np.ones(8))
    page.wait_for_timeout(2500)  # the film
    expected = model.inpaint(np.reshape(row, (1, 8, 8)), np.reshape(mask, (8, 8)) > 0).ravel()
    canvas = '#restore canvas[aria-label^="The picture with the erased part"]'
    assert ink(page, canvas) == pytest.approx(np.clip(expected, 0, 16) / 16, abs=0.01)
    page.get_by_role("button", name="Undo").last.click()
    pad = page.locator("canvas.torn").bounding_box()
    page.mouse.move(pad["x"] + 0.1 * pad["width"], pad["y"] + 0.1 * pad["height"])
    page.mouse.down()
    page.mouse.move(pad["x"] + 0.9 * pad["width"], pad["y"] + 0.1 * pad["height"], steps=12)
    page.mouse.up()
    page.get_by_text("8 pixels filled in.", exact=False).wait_for()
    assert np.flatnonzero(bodies[-1]["mask"][0]).tolist() == list(range(8))  # the line that was wiped


def test_colours_are_shown_and_files_taken(visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit("colours")
    assert not page.locator("canvas.pad").count()
    code = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    about = json.loads(page.evaluate("fetch('model').then(answer => answer.text())"))
    shown = np.array(page.locator("canvas.seen").evaluate(code)).reshape(-1, 4)[:, :3]
    low, high = about["range"]
    expected = (np.reshape(about["examples"][0], (-1, 3)) - low) / (high - low) * 255
    assert np.abs(shown - expected).max() <= 1
    pixels = np.zeros((16, 18, 3), np.uint8)
    pixels[..., 1] = 200
    image.fromarray(pixels).save(tmp_path / "green.png")
    bodies = asked(page, "/explain")
    page.get_by_label("A picture of your own").set_input_files(tmp_path / "green.png")
    page.wait_for_function("() => document.querySelector('#results')")
    page.wait_for_timeout(300)
    settle(page)
    assert np.reshape(bodies[-1]["rows"][0], (-1, 3)) == pytest.approx(np.tile([0.0, 200, 0], (72, 1)), abs=1)
    (tmp_path / "text.png").write_text("no picture")
    page.get_by_label("A picture of your own").set_input_files(tmp_path / "text.png")
    page.get_by_text("text.png is no picture that this browser can read.").wait_for()
