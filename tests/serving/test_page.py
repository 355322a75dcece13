"""The page in a real browser: what it asks the server for, and what it makes of the answers."""

import csv
import importlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import CHROMIUM, STROKES, as_number, draw, ink, luminance, numbers, settle
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, load, save
from energate.tables import Columns
from energate.tables.columns import CategoryColumn, NumberColumn
from energate.views import explain, trajectory

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")
pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
if CHROMIUM is None:
    pytest.skip("there is no Chromium (Debian: apt-get install chromium)", allow_module_level=True)

serving = importlib.import_module("energate.serving")
LABELS = ("sky", "sea", "sand", "boat")
HTML = "<img src=x onerror=alert({})>"
#: names of columns, categories and classes that would run if they were more than text; the first is a file, too
SCRIPTS = (
    '"><img src=x onerror=window.ran=1>',
    "<svg onload=window.ran=2>",
    "'><script>window.ran=3</script>",
    "<iframe srcdoc='<script>parent.ran=4</script>'>",
    "</title></script><script>window.ran=5</script>",
    "javascript:window.ran=6",
)
WICKED = tuple(f"{script}{number}" for number, script in enumerate(SCRIPTS[1:5]))
RESULTS = "#results"  # what the model says of a row comes before the way along the field
KINDS = ("digits", "table", "anomaly", "multilabel")


# --- servers and pages -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One saved model of every kind."""
    folder, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(0)
    age, plan = rng.integers(18, 80, 200), rng.choice(["basic", "plus"], 200)
    inputs = (NumberColumn("age", 48.0), CategoryColumn("plan", ("basic", "plus")))
    columns = Columns(inputs, "classify", ("outcome",))
    rows = [{"age": int(a), "plan": str(p)} for a, p in zip(age, plan, strict=True)]
    outcome = np.where((age > 45) ^ (plan == "plus"), "stays", "leaves")
    classifier = EnergyClassifier(
        "mean-covariance", max_epochs=20, pretrain_epochs=20, generative_weight=3.0, random_state=0
    )
    save(classifier.fit(columns.matrix_of(rows), outcome), folder / "table", columns=columns)
    (folder / "table-examples.json").write_text(json.dumps(rows[:4]))

    X = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) * [1, 3, 1, 0.3, 1]
    save(EnergyScorer(max_epochs=10, random_state=0).fit(X), folder / "anomaly.zip")  # no columns, no examples

    Y = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 0]])[rng.integers(0, 3, 300)]
    X = Y @ rng.normal(size=(4, 3)) + rng.normal(size=(300, 3))
    refiner = EnergyRefiner(LabelMLP(max_epochs=2, random_state=0), method="ascent", max_epochs=4, cv=2, random_state=0)
    refiner.fit(X, Y)._set(3)  # whatever it gains: the page shows every step
    named = Columns(tuple(NumberColumn(name, 0.0) for name in "abc"), "multilabel", LABELS, LABELS)
    save(refiner, folder / "multilabel.zip", columns=named)
    save(refiner.base_, folder / "network.zip", columns=named)
    foreign = OneVsRestClassifier(LogisticRegression()).fit(X, Y)
    save(
        EnergyRefiner(foreign, prefit=True, max_epochs=2, random_state=0).fit(X, Y),
        folder / "scores.zip",
        columns=named,
    )
    odd = Columns(tuple(NumberColumn(HTML.format(i), 0.0) for i in (1, 2)), "classify", (HTML.format(5),))
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] > 0, HTML.format(3), "<script>alert(6)</script>")
    plain = EnergyClassifier("mean", max_epochs=2, pretrain_epochs=2, random_state=0).fit(X, y)
    save(plain, folder / "html.zip", columns=odd)
    frame = importlib.import_module("pandas").DataFrame(
        {
            SCRIPTS[0]: rng.normal(size=90),
            SCRIPTS[1]: rng.choice([*SCRIPTS[2:4], None], 90),
            "plain": rng.normal(size=90),
        }
    )
    wicked = np.where(frame[SCRIPTS[0]] + frame["plain"] > 0, SCRIPTS[4], SCRIPTS[5])
    cells = EnergyClassifier("mean", max_epochs=5, pretrain_epochs=5, random_state=0).fit(frame, wicked)
    save(cells, folder / f"{SCRIPTS[0]}.zip")
    inputs = tuple(NumberColumn(name, 0.0) for name in SCRIPTS[:3])
    save(refiner, folder / "wicked-labels.zip", columns=Columns(inputs, "multilabel", WICKED, WICKED))
    return {
        "digits": serving.digits_model(),
        "html": folder / "html.zip",
        "scripts": folder / f"{SCRIPTS[0]}.zip",
        "wicked labels": folder / "wicked-labels.zip",
        "table": folder / "table",
        "anomaly": folder / "anomaly.zip",
        "multilabel": folder / "multilabel.zip",
        "network": folder / "network.zip",
        "scores": folder / "scores.zip",
    }


# --- pictures ----------------------------------------------------------------------------------------------------


def test_drawn_digits_are_recognised(visit: Callable[..., Any]) -> None:
    page, found = visit("digits"), {}
    for digit in STROKES:
        draw(page, digit, wait_for=RESULTS)
        found[digit] = page.inner_text("#verdict").split(",")[0]
    right = [digit for digit, verdict in found.items() if verdict == f"digit {digit}"]
    assert len(right) >= 9, found


def test_a_drawing_takes_the_form_of_the_data(visit: Callable[..., Any]) -> None:
    page = visit("digits")
    drawings = ((1.0, 0.0), (0.4, 0.0), (0.5, 0.2))
    large, small, aside = (draw(page, 3, size, shift, RESULTS) for size, shift in drawings)
    examples = np.array(json.loads(serving.digits_model().with_name("digits-examples.json").read_text()))
    assert len(large) == 784
    assert all(0 <= value <= 1 for value in large)
    assert sum(large) == pytest.approx(np.median(examples.sum(1)), rel=0.5)
    for other in (small, aside):  # where and how large somebody draws makes little difference
        assert np.abs(np.subtract(large, other)).mean() < 0.06
    assert ink(page, "canvas.seen") == pytest.approx(np.array(aside), abs=0.01)


def test_numbers_and_pictures_are_those_of_the_model(visit: Callable[..., Any]) -> None:
    page = visit("digits")
    expected = explain(load(serving.digits_model()), [draw(page, 5, wait_for=RESULTS)])
    assert numbers(page, "#results tbody td:nth-child(2)") == pytest.approx(
        100 * expected["probabilities"][0], abs=0.11
    )
    assert numbers(page, "#results tbody td:nth-child(3)") == pytest.approx(expected["energies"][0], abs=0.51)
    for k in range(10):
        shown = ink(page, f"#results tbody tr:nth-child({k + 1}) canvas")
        assert shown == pytest.approx(expected["reconstructions"][0, k].clip(0, 1), abs=0.01)


def test_the_way_along_the_field(visit: Callable[..., Any]) -> None:
    page = visit("digits")
    row = draw(page, 3)
    page.get_by_label("Field of class").select_option("8")
    settle(page)
    expected = trajectory(load(serving.digits_model()), row, n_steps=30, of=8)
    slider, where = page.get_by_label("Step along the way"), page.locator("#path output")
    assert slider.get_attribute("max") == str(len(expected["points"]) - 1)
    slider.fill("20")
    assert ink(page, "#path canvas.large") == pytest.approx(expected["points"][20].clip(0, 1), abs=0.01)
    assert as_number(where.inner_text().split()[-1]) == pytest.approx(expected["energies"][20], abs=0.51)
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Play").wait_for()  # it stops at the end by itself
    assert slider.input_value() == slider.get_attribute("max")
    assert ink(page, "#path canvas.large") == pytest.approx(expected["points"][-1].clip(0, 1), abs=0.01)
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").click()
    assert int(slider.input_value()) < len(expected["points"]) - 1


def test_a_long_stroke_asks_the_server_few_times(visit: Callable[..., Any]) -> None:
    page, asked = visit("digits"), []
    page.on("request", lambda request: asked.append(request.url))
    draw(page, 8)
    assert 1 <= sum(url.endswith("/explain") for url in asked) <= 8  # of more than 40 movements
    assert sum(url.endswith("/trajectory") for url in asked) <= 4


def test_by_keyboard(visit: Callable[..., Any]) -> None:
    page = visit("digits")
    page.get_by_role("button", name="Example 8", exact=True).focus()
    page.keyboard.press("Enter")
    settle(page)
    assert page.inner_text("#verdict").startswith("digit 3")
    assert page.get_by_role("button", name="Example 8", exact=True).get_attribute("aria-pressed") == "true"
    page.locator("canvas.pad").focus()
    page.keyboard.press(" ")
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    settle(page)
    assert "digit 1" in page.inner_text("#verdict")
    page.locator("#input-body").get_by_role("button", name="Undo").click()
    page.get_by_text("Nothing drawn yet.").wait_for()
    assert not page.locator("#path").is_visible()


# --- tables ------------------------------------------------------------------------------------------------------


def test_a_form_for_the_columns(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    page, model = visit("table"), load(models["table"])
    asked = []
    page.on("request", lambda request: asked.append(request.post_data_json))
    page.get_by_label("age").fill("30,5")
    page.get_by_label("plan").select_option("plus")
    settle(page)
    assert asked[-1] in ({"rows": [[30.5, "plus"]]}, {"row": [30.5, "plus"], "n_steps": 60})
    assert page.get_by_label("Start from").locator("option:checked").inner_text() == "own values"
    expected = explain(model, [[30.5, 0, 1]])
    assert numbers(page, "#results-body > div > table td:nth-child(2)") == pytest.approx(
        100 * expected["probabilities"][0], abs=0.11
    )
    assert page.inner_text("#verdict").startswith(f"outcome {model.predict([[30.5, 0, 1]])[0]}")
    page.get_by_label("Class", exact=True).select_option("leaves")
    k = list(model.classes_).index("leaves")
    rows = page.locator("#results-body div div table tbody tr").all_inner_texts()
    rather = {cells[0]: as_number(cells[2]) for cells in (row.split("\t") for row in rows)}
    assert rather.keys() == {"age", "plan=basic", "plan=plus"}
    assert rather["age"] == pytest.approx(expected["reconstructions"][0, k, 0], rel=0.02)


def test_cells_that_are_missing_or_no_numbers(visit: Callable[..., Any]) -> None:
    page, asked = visit("table"), []
    page.on("request", lambda request: asked.append(request.post_data_json))
    page.get_by_label("age").fill("old")
    page.wait_for_timeout(400)
    assert page.get_by_role("alert").filter(visible=True).inner_text() == "Not a number: age."
    assert page.get_by_label("age").get_attribute("aria-invalid") == "true"
    assert asked == []
    page.get_by_label("age").fill("")
    page.get_by_label("plan").select_option("(another)")
    settle(page)
    assert asked[0]["rows"][0][0] is None
    assert asked[0]["rows"][0][1] not in {"basic", "plus"}
    assert not page.get_by_role("alert").filter(visible=True).count()


def test_a_row_beyond_all_rows_is_called_strange(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    """A probability says nothing where no class likes a row: the page says that first."""
    page = visit("table")
    page.get_by_label("age").fill("40000")
    page.get_by_text("unlike what the model knows").wait_for()
    settle(page)
    assert page.inner_text("#verdict").startswith("unlike what the model knows; if anything, outcome ")
    assert re.match(r"Strange, p = 0\.\d+: ", page.inner_text("#strange"))
    page.get_by_label("age").fill("40")
    page.get_by_text("% probable").wait_for()
    settle(page)
    expected = load(models["table"]).p_values([[40, 1, 0]])[0]
    assert float(re.search(r"p = ([\d.]+)", page.inner_text("#strange"))[1]) == pytest.approx(expected, rel=0.06)


def test_energies_that_differ_little_look_so(visit: Callable[..., Any]) -> None:
    page = visit("table")
    energies = numbers(page, "#results-body > div > table td:nth-child(3)")
    shares = page.locator("#results-body > div > table td:nth-child(3) .fill").evaluate_all(
        "all => all.map(e => parseFloat(e.style.width))"
    )
    assert shares[int(np.argmax(energies))] == 100
    assert max(energies) - min(energies) < 10
    assert min(shares) == pytest.approx(100 - 10 * (max(energies) - min(energies)), abs=1)
    assert "in nats" in page.inner_text("#results")


def test_a_file_of_rows(visit: Callable[..., Any], models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "customers.csv"
    file.write_text('id;plan;age;note\r\nc1;basic;30;"a;b"\r\nc2;plus;;\r\nc3;other;90000;"say ""hi"""\r\n')
    page, model = visit("table"), load(models["table"])
    assert page.inner_text("#name") == "table"
    assert page.inner_text("#about").startswith("Predicts outcome, 2 classes, from rows of 2 columns")
    page.get_by_label("CSV file").set_input_files(file)
    link = page.get_by_role("link", name="Download customers-predicted.csv")
    link.wait_for()
    assert "3 rows of customers.csv; 1 of them strange" in page.inner_text("#file")
    with page.expect_download() as download:
        link.click()
    lines = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert lines[0] == ["id", "plan", "age", "note", "prediction", *(f"p_{name}" for name in model.classes_), "p_value"]
    rows = [[30, 1, 0], [48, 0, 1], [90000, 0, 0]]
    carried = [["c1", "basic", "30", "a;b"], ["c2", "plus", "", ""], ["c3", "other", "90000", 'say "hi"']]
    assert [line[:4] for line in lines[1:]] == carried
    assert [line[4] for line in lines[1:]] == model.predict(rows).tolist()
    found = np.array([line[5:7] for line in lines[1:]], dtype=float)
    assert found == pytest.approx(model.predict_proba(rows), abs=1e-9)
    file.write_text("age\n30\n")
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_text("The file lacks the columns plan.").wait_for()
    assert not link.is_visible()


def test_names_are_text_and_never_run(visit: Callable[..., Any], tmp_path: Path) -> None:
    page = visit("html")
    settle(page)
    file = tmp_path / "<img src=x onerror=alert(4)>.csv"
    file.write_text(f'{HTML.format(1)},{HTML.format(2)}\n1,2\n"<b>3</b>",4\n')
    page.on("dialog", lambda dialog: pytest.fail(f"ran {dialog.message}"))
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_text("must be a number").wait_for()
    file.write_text(f'{HTML.format(1)},{HTML.format(2)},"<u>x</u>"\n1,2,<i>y</i>\n')
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("link", name="Download").wait_for()
    assert page.locator("main :is(img, b, i, u, script)").count() == 0
    shown = page.inner_text("main")
    for text in (HTML.format(1), HTML.format(2), HTML.format(3), "<i>y</i>"):
        assert text in shown


@pytest.mark.parametrize("kind", ["scripts", "wicked labels"])
def test_no_name_of_a_model_runs_anywhere(
    visit: Callable[..., Any], address: Callable[..., str], models: dict[str, Path], kind: str
) -> None:
    page = visit(kind)
    page.wait_for_load_state("networkidle")  # the questions about a row have been answered, too
    shown = page.inner_text("body")
    assert all(name in shown for name in (SCRIPTS[0], SCRIPTS[1], SCRIPTS[4] if kind == "scripts" else WICKED[0]))
    if kind == "scripts":
        assert page.locator(".question").count() == 4
    for path in ("", "docs", "page/docs.html"):
        page.goto(address(kind) + path)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.ran") is None
        assert page.locator("img, iframe, [onload], [onerror], [onclick], [srcdoc], a[href^='javascript']").count() == 0
        assert all(each.get_attribute("src") for each in page.locator("script").all())  # none is written into the page


def test_anomalies(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    page, model = visit("anomaly"), load(models["anomaly"])
    for row, verdict in ([0.0] * 5, "normal"), ([9.0, -9, 9, -9, 9], "an anomaly"):
        for i, value in enumerate(row):
            page.get_by_label(f"column {i + 1}").fill(str(value))
        settle(page)
        expected = explain(model, [row])
        assert page.inner_text("#verdict").startswith(verdict)
        energy, threshold, score = numbers(page, ".facts dd")
        assert energy == pytest.approx(expected["energies"][0], rel=0.01)
        assert threshold == pytest.approx(model.offset_, rel=0.01)
        assert score == pytest.approx(expected["scores"][0], rel=0.01)
    change = expected["reconstructions"][0, 0] - row
    order = np.argsort(-np.abs(change / model.scaler_.size))  # by what each column usually differs
    assert numbers(page, "#results-body td:nth-child(4)") == pytest.approx(change[order], rel=0.01)
    assert list(order) != list(np.argsort(-np.abs(change)))


def test_labels_before_and_after(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    page, model, row = visit("multilabel"), load(models["multilabel"]), [2.0, -1.0, 0.5]
    for name, value in zip("abc", row, strict=True):
        page.get_by_label(name, exact=True).fill(str(value))
    settle(page)
    steps = 100 * explain(model, [row])["steps"][:, 0]
    slider = page.get_by_label("Step", exact=True)
    assert slider.input_value() == slider.get_attribute("max") == str(len(steps) - 1) == "3"
    names = page.locator("#results tbody th").all_inner_texts()
    order = [LABELS.index(name) for name in names]
    assert len(order) == 4
    for step in (3, 1, 0):
        slider.fill(str(step))
        assert numbers(page, "#results tbody td:nth-child(2)") == pytest.approx(steps[0, order], abs=0.11)
        assert numbers(page, "#results tbody td:nth-child(3)") == pytest.approx(steps[step, order], abs=0.11)
    on = [name for name, hit in zip(LABELS, model.predict([row])[0], strict=True) if hit]
    assert page.inner_text("#verdict") == (", ".join(on) or "no label")


def test_a_refiner_without_its_base_asks_for_scores(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    page, model = visit("scores"), load(models["scores"], base=None)
    for name, value in zip((*"abc", *LABELS), (1, 0, -1, 2, -1, -2.5, 0.5), strict=True):
        page.get_by_label(name, exact=True).fill(str(value))
    settle(page)
    expected = explain(model, [[1, 0, -1]], scores=np.array([[2, -1, -2.5, 0.5]]))
    order = [LABELS.index(name) for name in page.locator("#results tbody th").all_inner_texts()]
    assert numbers(page, "#results tbody td:nth-child(3)") == pytest.approx(
        100 * expected["refined"][0, order], abs=0.11
    )


def test_a_network_has_probabilities_only(visit: Callable[..., Any], models: dict[str, Path]) -> None:
    page, model = visit("network"), load(models["network"])
    page.get_by_label("a", exact=True).fill("2")
    settle(page)
    assert numbers(page, "#results tbody td:nth-child(2)") == pytest.approx(
        100 * model.predict_proba([[2, 0, 0]])[0], abs=0.11
    )


# --- troubles ----------------------------------------------------------------------------------------------------


def test_a_server_with_a_key(visit: Callable[..., Any]) -> None:
    page = visit("table", key="sesame", ready=False)
    field = page.get_by_label("This server asks for an API key")
    field.fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("The server does not take this key.").wait_for()
    field.fill("sesame")
    page.get_by_role("button", name="Use it").click()
    settle(page)
    assert not field.is_visible()
    assert page.inner_text("#verdict").startswith("outcome")
    page.get_by_role("link", name="What else it answers").click()  # the key is still known
    page.get_by_role("heading", name="POST /predict").wait_for()
    assert not field.is_visible()
    assert "X-API-Key" in page.locator("pre").first.inner_text()
    page.get_by_role("link", name="/", exact=True).click()
    settle(page)


def test_the_reference_asks_for_the_key_itself(visit: Callable[..., Any], address: Callable[..., str]) -> None:
    page = visit("table", key="sesame", ready=False)
    page.goto(f"{address('table', 'sesame')}page/docs.html")
    field, heading = page.get_by_label("This server asks for an API key"), page.get_by_role("heading")
    for key in ("wrong", "sesame"):
        field.fill(key)
        page.get_by_role("button", name="Use it").click()
        page.wait_for_selector("#key-wrong" if key == "wrong" else "h2")
    assert heading.all_inner_texts()[:2] == ["energate: EnergyClassifier", "POST /predict"]
    assert not field.is_visible()


def test_the_reference_without_a_key(visit: Callable[..., Any]) -> None:
    page = visit("table")
    page.get_by_role("link", name="What else it answers").click()
    page.get_by_role("heading", name="POST /predict").wait_for()
    shown = page.inner_text("main")
    page.goto(page.get_by_role("link", name="/openapi.json").get_attribute("href").replace("openapi.json", "docs"))
    assert page.inner_text("main") == shown
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "832px"  # its style is allowed


def test_what_the_server_refuses_is_shown(visit: Callable[..., Any]) -> None:
    page = visit("table")
    note = page.locator("#trouble")
    page.route("**/explain", lambda route: route.fulfill(status=422, json={"detail": "rows[0] <b>is odd</b>."}))
    page.get_by_label("age").fill("50")
    note.wait_for()
    assert page.locator("#trouble-text").inner_text() == "rows[0] <b>is odd</b>."  # as text, not as a part of the page
    page.unroute("**/explain")
    page.route("**/explain", lambda route: route.abort())
    page.get_by_label("age").fill("51")
    page.get_by_text("The server does not answer. Is it still running?").wait_for()
    page.unroute("**/explain")
    page.get_by_role("button", name="Try again").click()
    note.wait_for(state="hidden")


# --- for everybody -----------------------------------------------------------------------------------------------


def unnamed(page: Any) -> Any:
    return page.evaluate(
        """() => [...document.querySelectorAll('input, select, textarea, button, canvas, svg')].filter(e =>
         !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent.trim() && !e.closest('[aria-hidden=true]')
        ).map(e => e.outerHTML)"""
    )


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_can_use_it(visit: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    """Everything has a name, nothing sticks out, texts can be read; ENERGATE_SCREENSHOTS=FOLDER keeps the pictures."""
    folder = Path(os.environ.get("ENERGATE_SCREENSHOTS", tmp_path))
    page = visit(kind)
    assert unnamed(page) == []
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("#verdict").get_attribute("aria-live") == "polite"
    for name, width in (("desktop", 1200), ("phone", 390)):
        page.set_viewport_size({"width": width, "height": 844})
        if kind == "digits":
            draw(page, 3)
            page.get_by_label("Field of class").select_option("8")
            settle(page)
            page.get_by_label("Step along the way").fill("30")
            page.get_by_role("button", name="Erase the lower half").click()
            settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            picture = folder / f"page-{kind}-{name}-{scheme}.png"
            page.screenshot(path=picture, full_page=True)
            assert 10_000 < picture.stat().st_size < 300_000
            colours = page.evaluate(
                """() => ['--text', '--quiet', '--accent', '--bad', '--up', '--card'].map(name =>
                    getComputedStyle(document.documentElement).getPropertyValue(name).trim())"""
            )
            *texts, card = map(luminance, colours)
            assert (card > 0.5) == (scheme == "light")
            for text in texts:
                assert (max(text, card) + 0.05) / (min(text, card) + 0.05) > 4.5  # WCAG AA
