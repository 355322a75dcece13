"""Questions over HTTP and on the page: the same answers as in Python, in the words of the table."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients import served
from numpy.testing import assert_allclose

from energate import EnergyClassifier, EnergyScorer, fit_table, load, save, serving
from energate.persistence import read_columns
from energate.questions import attribute, counterfactual, drift
from energate.views import view_of

ROWS = 240


def table(seed: int = 0, shift: float = 0.0) -> str:
    random = np.random.default_rng(seed)
    size, colour = random.normal(shift, 1, ROWS), random.choice(["red", "blue"], ROWS)
    kind = np.where(size + (colour == "red") > 0.5, "big", "small")
    cells = ["" if i % 20 == 7 else f"{value:.3f}" for i, value in enumerate(size)]
    lines = [f"r{i},{cells[i]},{colour[i]},{random.normal():.3f},{kind[i]}" for i in range(ROWS)]
    return "\n".join(["id,size,colour,width,kind", *lines]) + "\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
    folder = tmp_path_factory.mktemp("models")
    (folder / "rows.csv").write_text(table())
    fitted = fit_table(folder / "rows.csv", "kind", calibration=0.3, epochs=8, units="mean", device="cpu", drop=["id"])
    save(fitted.model, folder / "kinds.zip", columns=fitted.columns)
    return {"kinds": folder / "kinds.zip"}


@cache
def plain() -> Any:
    X = np.random.default_rng(0).normal(size=(80, 3))
    return EnergyScorer(max_epochs=2, random_state=0).fit(X)


def test_answers_are_those_of_python(models: dict[str, Path]) -> None:
    model, columns = load(models["kinds"]), read_columns(models["kinds"])
    assert columns is not None
    rows = [[0.2, "red", 0.1], [-1.0, "blue", 0.4]]
    X = columns.matrix_of([dict(zip(columns.names, row, strict=True)) for row in rows])
    with served(serving.serve_model(model, columns)) as client:

        def ask(path: str, **body: Any) -> Any:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        found, expected = ask("/attribute", rows=rows), attribute(model, X)
        assert_allclose(found["parts"], expected.parts, rtol=1e-6, atol=1e-9)
        assert_allclose(np.sum(found["parts"], 1), found["total"], rtol=1e-5, atol=1e-9)
        found = ask("/attribute", rows=rows, target="big", against="small")
        assert_allclose(found["total"], attribute(model, X, target=("big", "small")).total, rtol=1e-6)
        filled = ask("/complete", rows=[[None, "red", 0.1], [0.3, None, 0.2]])["rows"]
        assert filled[0][1:] == ["red", 0.1]
        assert isinstance(filled[0][0], float)
        assert filled[1][1] in ("red", "blue")
        found, expected = ask("/counterfactual", row=rows[1], target="big"), counterfactual(model, X[1:], target="big")
        assert found["found"] == bool(expected.found[0])
        assert found["changed"] == expected.changed[0].tolist()
        assert found["from"] == rows[1]
        if found["found"]:
            assert ask("/predict", rows=[found["row"]])["predictions"] == ["big"]
        assert ask("/counterfactual", row=[None, "red", 0.1], target="small")["from"][0] is not None
        batch = [[5 + 0.1 * i, "red", 4.0] for i in range(30)]
        found = ask("/drift", rows=batch)
        records = [dict(zip(columns.names, row, strict=True)) for row in batch]
        expected = drift(view_of(model).model, columns.matrix_of(records))
        assert found["drifted"] is True
        assert found["p_value"] == pytest.approx(expected.p_value)
        assert found["columns"] == expected.columns.tolist()
        sets = ask("/predict", rows=rows, alpha=0.2)["sets"]
        assert sets == view_of(model).model.predict_set(X, 0.2).tolist()
        assert {"attribute", "complete", "counterfactual", "drift"} <= set(client.get("/model").json()["operations"])


def test_what_is_refused(models: dict[str, Path]) -> None:
    with served(serving.serve_model(load(models["kinds"]), read_columns(models["kinds"]))) as client:
        row = [0.2, "red", 0.1]
        wrong = [
            ("/counterfactual", {"row": row}, "target is missing"),
            ("/counterfactual", {"row": row, "target": "huge"}, "big"),
            ("/attribute", {"rows": [row], "target": "huge"}, "big"),
            ("/attribute", {"rows": [row] * 101}, "at most 100"),
            ("/drift", {"rows": [row]}, "at least 2 rows"),
            ("/drift", {"rows": [row] * 3, "alpha": 1.5}, "below 1"),
        ]
        for path, body, words in wrong:
            answer = client.post(path, json=body)
            assert answer.status_code == 422, (path, answer.text)
            assert words in answer.json()["detail"]


def test_models_without_categories_or_classes() -> None:
    with served(serving.serve_model(plain())) as client:
        offered = set(client.get("/model").json()["operations"])
        assert {"attribute", "counterfactual", "drift"} <= offered
        far = [9.0, -9.0, 0.0]
        found = client.post("/counterfactual", json={"row": far}).json()
        assert found["found"]
        assert client.post("/predict", json={"rows": [found["row"]]}).json()["predictions"] == [1]
    old = EnergyClassifier("mean", pretrain_epochs=1, max_epochs=1, random_state=0)
    old.fit(np.random.default_rng(0).normal(size=(40, 60)), np.arange(40) % 2)
    assert "counterfactual" not in serving.serve_model(old).operations  # a search over 60 columns is long


def test_on_the_page(request: pytest.FixtureRequest, models: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    from browsing import CHROMIUM, settle

    if CHROMIUM is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    visit: Callable[..., Any] = request.getfixturevalue("visit")
    page, model = visit("kinds"), load(models["kinds"])
    panel = page.locator("#questions")
    page.get_by_label("size").fill("-2")
    page.get_by_label("To be").select_option("big")
    settle(page)
    panel.get_by_text("They add up to").wait_for()
    panel.get_by_text("No cell is empty.").wait_for()
    panel.locator("caption", has_text="Cells that would change").wait_for(state="attached")
    assert panel.locator(".said").inner_text() in ("small", "big", "big or small", "small or big")
    page.get_by_label("size").fill("")
    panel.locator("caption", has_text="Cells that were empty").wait_for(state="attached")
    (tmp_path / "new.csv").write_text(table(seed=1, shift=4.0))
    page.get_by_label("CSV file").set_input_files(tmp_path / "new.csv")
    page.get_by_text("Has the data changed?").wait_for()
    page.get_by_text("Which kind looks wrong?").wait_for()
    shown = page.inner_text("#file")
    assert "Yes, p =" in shown
    assert f"of {ROWS} rows. Rows that it was trained on look better" in shown
    assert model.classes_.tolist() == ["big", "small"]
