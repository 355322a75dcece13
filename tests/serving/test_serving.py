import asyncio
import contextlib
import copy
import functools
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import mixed_columns
from clients import served
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer, load, save
from energate.errors import InputError
from energate.tables import CategoryColumn, Columns, NumberColumn
from energate.views import explain, trajectory

httpx = pytest.importorskip("httpx", reason="needs httpx")
pytest.importorskip("starlette", reason="needs the extra `serve`")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from energate import serving  # noqa: E402
from energate.cli import app as cli  # noqa: E402
from energate.serving import app as application  # noqa: E402
from energate.serving import batching, operations, running, service  # noqa: E402
from energate.serving.batching import Batcher, Job, OverloadedError, Work, computed  # noqa: E402
from energate.serving.metrics import BINS, Metrics  # noqa: E402
from energate.serving.service import RowReader, Settings  # noqa: E402

X, Y = load_iris(return_X_y=True)
LABELS = np.stack([Y == 0, Y == 1, Y != 2], 1).astype(int)
COLUMNS = Columns((NumberColumn("length", 5.8), CategoryColumn("colour", ("blue", "red", None))))


# --- models ------------------------------------------------------------------------------------------------------


@functools.cache
def classifier() -> EnergyClassifier:
    names = np.array(["setosa", "versicolor", "virginica"])
    return EnergyClassifier("mean", n_hidden=8, pretrain_epochs=3, max_epochs=10, random_state=0).fit(X, names[Y])


@functools.cache
def scorer() -> EnergyScorer:
    return EnergyScorer("mean", n_hidden=8, max_epochs=5, random_state=0).fit(X)


@functools.cache
def refiner(method: str = "sets", *, classes: bool = False) -> EnergyRefiner:
    options: dict[str, Any] = {"method": method, "max_epochs": 3, "random_state": 0, "n_hidden": 8, "n_factors": 8}
    base = LabelMLP(max_epochs=3, random_state=0)
    return EnergyRefiner(base, **options).fit(X, np.array(["a", "b", "c"])[Y] if classes else LABELS)


@functools.cache
def network() -> LabelMLP:
    return LabelMLP(max_epochs=2, random_state=0).fit(X, LABELS)


@functools.cache
def of_a_table() -> EnergyClassifier:
    colours = np.array(["blue", "red"])[(X[:, 2] > 3).astype(int)]
    matrix = COLUMNS.matrix({"length": X[:, 0], "colour": colours})
    return EnergyClassifier("mean", n_hidden=8, pretrain_epochs=3, max_epochs=5, random_state=0).fit(matrix, Y)


@functools.cache
def with_cells() -> EnergyClassifier:
    """Of a frame with missing cells and categories, saved without columns: it knows them itself."""
    pandas = pytest.importorskip("pandas")
    table, y = mixed_columns()
    options: dict[str, Any] = {"n_hidden": 8, "pretrain_epochs": 3, "max_epochs": 5, "random_state": 0}
    return EnergyClassifier("mean", **options).fit(pandas.DataFrame(table), y)


# --- servers -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """The server as a process of its own, and a client."""
    command = [sys.executable, "-m", "energate", "serve", *arguments, "--port", "0", "--json"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert line, started.communicate()[1]
        with httpx.Client(base_url=json.loads(line)["url"], timeout=30, trust_env=False) as client:
            yield started, client
    finally:
        if started.poll() is None:
            started.terminate()
        started.communicate(timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved models."""
    folder = tmp_path_factory.mktemp("models")
    save(classifier(), folder / "classifier")
    (folder / "classifier-examples.json").write_text(json.dumps(X[:30].tolist()))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """One process for the tests that leave it as it is."""
    with process(str(folder / "classifier"), "--max-rows", "5000", "--max-bytes", "1000000") as found:
        yield found


@pytest.fixture
def client(server: tuple[subprocess.Popen[str], Any]) -> Any:
    return server[1]


def rows_of(values: Any) -> dict[str, Any]:
    return {"rows": np.asarray(values).tolist()}


def metric(client: Any, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found)


# --- the process -------------------------------------------------------------------------------------------------


def test_a_saved_model_answers_over_http_as_in_python(client: Any) -> None:
    model = classifier()
    assert client.get("/health").json()["status"] == "ok"
    about = client.get("/model").json()
    assert (about["estimator"], about["task"], about["n_features"]) == ("EnergyClassifier", "classify", 4)
    assert about["classes"] == ["setosa", "versicolor", "virginica"]
    assert (about["columns"], about["image"]) == (None, None)
    assert about["examples"] == X[:20].tolist()
    found = client.post("/predict", json=rows_of(X)).json()
    assert found["predictions"] == model.predict(X).tolist()
    assert_allclose(found["probabilities"], model.predict_proba(X), rtol=1e-12)
    assert found["classes"] == about["classes"]
    found = client.post("/score", json=rows_of(X)).json()
    assert_allclose(found["energies"], model.energies(X), rtol=1e-12)
    assert_allclose(found["liking"], model.score_samples(X), rtol=1e-12)
    found, expected = client.post("/explain", json=rows_of(X[:3])).json(), explain(model, X[:3])
    assert found.keys() == expected.keys()
    assert_allclose(found["reconstructions"], expected["reconstructions"], rtol=1e-12)
    start = {"row": X[0].tolist(), "n_steps": 4, "of": 1}
    found, expected = client.post("/trajectory", json=start).json(), trajectory(model, X[0], n_steps=4, of=1)
    assert_allclose(found["points"], expected["points"], rtol=1e-12)
    assert (found["of"], found["converged"]) == (1, expected["converged"])
    assert client.post("/trajectory", json={"row": X[0].tolist()}).json()["of"] == 0


def test_requests_at_the_same_time_get_what_each_gets_alone(client: Any) -> None:
    draw = np.random.default_rng(0)
    paths = ["/predict", "/score"] * 60
    parts = [X[draw.integers(0, 150, draw.integers(1, 5))] for _ in paths]
    alone = [client.post(path, json=rows_of(part)).json() for path, part in zip(paths, parts, strict=True)]
    before = metric(client, "energate_batches_total"), metric(client, "energate_batched_requests_total")
    with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False) as many, ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda path, part: many.post(path, json=rows_of(part)), paths, parts))
    assert {answer.status_code for answer in answers} == {200}
    for answer, expected in zip(answers, alone, strict=True):
        found = answer.json()
        assert found.keys() == expected.keys()
        for name in found:
            if name in ("predictions", "classes"):
                assert found[name] == expected[name]
            else:
                assert_allclose(found[name], expected[name], rtol=1e-9)
    assert metric(client, "energate_batched_requests_total") == before[1] + len(paths)
    assert metric(client, "energate_batches_total") <= before[0] + len(paths)


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b'{"rows": [[1, 2, 3, 4]', 400, "must be JSON"),
        (b"", 400, "must be JSON"),
        (b"\xff\xfe\x00", 400, "must be JSON"),
        (b'{"rows":' + b"[" * 100_000, 400, "recursion limit"),
        (b'{"rows":' + b"[" * 150 + b"]" * 150 + b"}", 422, r"rows\[0\]\[0\] must be a number"),
        (b'{"rows": [[1, 2, 3, NaN]]}', 422, r"rows\[0\]\[3\] must be a finite number"),
        (b'{"rows": [[1, 2, 3, 4], [1, 2, -Infinity, 3]]}', 422, r"rows\[1\]\[2\] must be a finite number"),
        (b'{"rows": [[1, 2, 3, 1e999]]}', 422, "must be a finite number"),
        (b'{"rows": [[1, 2, 3, 1' + b"0" * 400 + b"]]}", 422, "must be a (finite )?number"),
        (b'{"rows": [[1, 2, 3, 1' + b"0" * 5000 + b"]]}", 400, "number out of range"),
        (b'{"rows": [[1, 2, 3]]}', 422, r"rows\[0\] must have 4 entries; got 3"),
        (b'{"rows": [[1, 2, 3, 4, 5]]}', 422, r"rows\[0\] must have 4 entries; got 5"),
        (b'{"rows": [[1, 2, 3, "4"]]}', 422, r'must be a number; got "4"'),
        (b'{"rows": [[1, 2, 3, true]]}', 422, "must be a number; got true"),
        (b'{"rows": [[1, 2, 3, null]]}', 422, "must be a number; got null"),
        (b'{"rows": [{"length": 3}]}', 422, "must be a list"),
        (b'{"rows": []}', 422, "rows must have at least 1 entry; got 0"),
        (b'{"rows": 3}', 422, "rows must be a list; got 3"),
        (b'{"row": [1, 2, 3, 4]}', 422, "rows is missing"),
        (b'{"rows": [[1, 2, 3, 4]], "x": 1}', 422, 'must not have a field "x"'),
        (b"[[1, 2, 3, 4]]", 422, "must be an object"),
        (b"null", 422, "must be an object"),
        (json.dumps(rows_of(np.zeros((5001, 4)))).encode(), 422, "rows must have at most 5000 entries; got 5001"),
        (json.dumps(rows_of(np.zeros((200_000, 4)))).encode(), 413, "at most 1000000 bytes"),
    ],
    ids=lambda value: value[:30].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_bad_bodies_get_a_plain_line(client: Any, content: bytes, status: int, words: str) -> None:
    answer = client.post("/predict", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.json().keys() == {"detail"}
    assert re.search(words, answer.json()["detail"])
    assert "\n" not in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 300


def test_other_methods_paths_and_kinds_of_content_are_refused(client: Any) -> None:
    body = json.dumps(rows_of(X[:1]))
    assert client.get("/predict").status_code == 405
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/predict", content=body, headers={"content-type": kind})
        assert answer.status_code == 415
        assert "application/json" in answer.json()["detail"]
    assert client.post("/predict", content=body, headers={"content-type": "Application/JSON; charset=utf-8"}).is_success
    answer = client.post("/refine", json=rows_of(X[:1]))
    assert answer.status_code == 404
    assert "EnergyClassifier models have no /refine; this one has /predict, /score" in answer.json()["detail"]
    assert client.get("/none").json()["detail"] == "There is nothing at /none. /docs lists what there is."
    for body_, words in (
        ({"row": X[0].tolist(), "of": 3}, "of must be at most 2; got 3"),
        ({"row": X[0].tolist(), "of": -1}, "of must be at least 0"),
        ({"row": X[0].tolist(), "n_steps": 0}, "n_steps must be at least 1"),
        ({"row": X[0].tolist(), "n_steps": 10**9}, "n_steps must be at most 1000"),
        ({"row": X[0].tolist(), "n_steps": 1.5}, "n_steps must be a whole number; got 1.5"),
        ({"row": X[0].tolist(), "n_steps": "2"}, 'n_steps must be a whole number; got "2"'),
        ({"row": X[0].tolist(), "of": True}, "of must be a whole number; got true"),
        ({"row": X[0].tolist(), "n_steps": 1e300}, "n_steps must be"),
        ({"row": [1, 2]}, "row must have 4 entries; got 2"),
    ):
        answer = client.post("/trajectory", json=body_)
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text


def test_too_much_without_a_length_is_refused_too(client: Any) -> None:
    def stream() -> Iterator[bytes]:
        yield b'{"rows": ['
        for _ in range(40):
            yield b"[1, 2, 3, 4]," * 5000

    answer = client.post("/predict", content=stream(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "Send fewer rows" in answer.json()["detail"]


def test_clients_that_hang_up_disturb_nobody(client: Any) -> None:
    body = json.dumps(rows_of(X)).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    address = client.base_url.host, client.base_url.port
    for sent in (head.encode(), head.encode() + body[:100], head.encode() + body, b"POST / HT", b"\x00\xff\r\n\r\n"):
        for _ in range(5):
            with socket.create_connection(address, 10) as raw:
                raw.sendall(sent)
    assert client.post("/predict", json=rows_of(X[:2])).json()["predictions"] == classifier().predict(X[:2]).tolist()
    end = time.monotonic() + 20
    while metric(client, "energate_requests_running") > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert metric(client, "energate_requests_running") == 1  # the question itself
    assert metric(client, "energate_rows_waiting") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_finishes_what_runs_and_ends_with_0(folder: Path, number: signal.Signals) -> None:
    many = rows_of(np.tile(X, (60, 1)))
    with process(str(folder / "classifier")) as (started, client), ThreadPoolExecutor(8) as pool:
        with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False) as others:
            answers = [pool.submit(others.post, "/predict", json=many) for _ in range(6)]
            while metric(client, "energate_requests_running") < 2 and not all(each.done() for each in answers):
                pass
            started.send_signal(number)
            codes = []
            for each in answers:
                try:
                    codes.append(each.result(60).status_code)
                except httpx.TransportError:
                    codes.append(0)  # it had not arrived
        assert set(codes) <= {200, 0}
        assert 200 in codes
        out, errors = started.communicate(timeout=60)
        assert (started.returncode, out, errors) == (0, "", "")
        with pytest.raises(httpx.TransportError):
            client.get("/health")


def test_the_key_is_asked_for() -> None:
    with served(serving.serve_model(classifier()), Settings(api_key="open sesame")) as client:
        body = rows_of(X[:1])
        assert client.get("/health").json()["needs_key"] is True
        assert client.get("/").status_code == client.get("/page/docs.html").status_code == 200
        for path in ("/model", "/metrics", "/docs", "/openapi.json", "/none", "/page", "/health/x"):
            assert client.get(path).status_code == 401, path
        for headers in ({}, {"X-API-Key": "open"}, {"X-API-Key": ""}, {"X-API-Key": "ÿ".encode("latin-1")}):
            answer = client.post("/predict", json=body, headers=headers)
            assert answer.status_code == 401
            assert "X-API-Key" in answer.json()["detail"]
            assert "sesame" not in answer.text
        answer = client.post("/predict", json=body, headers={"X-API-Key": "open sesame"})
        assert answer.json()["predictions"] == classifier().predict(X[:1]).tolist()
        assert client.get("/openapi.json", headers={"x-api-key": "open sesame"}).is_success
        page = client.get("/docs", headers={"x-api-key": "open sesame"}).text
        assert "curl -H &quot;X-API-Key: $ENERGATE_API_KEY&quot;" in page
        assert "sesame" not in page
        assert "href=openapi.json" not in page  # a link would bring no key


# --- the command -------------------------------------------------------------------------------------------------


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Any:
    from typer.testing import CliRunner

    monkeypatch.setattr(serving, "serve", lambda _, __, listening: listening.close())
    monkeypatch.delenv("ENERGATE_API_KEY", raising=False)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    result = CliRunner().invoke(cli, ["serve", *arguments])
    assert result.exit_code == code, result.output
    if code:
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
    return result


def test_the_key_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    given = []

    def serve(_: Any, settings: Settings, listening: socket.socket) -> None:
        listening.close()
        given.append(settings.api_key)

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    arguments, key = ["serve", str(folder / "classifier"), "--port", "0"], {"ENERGATE_API_KEY": "open sesame"}
    for more in ([], ["--api-key", "other"]):
        result = CliRunner().invoke(cli, [*arguments, *more], env=key)
        assert result.exit_code == 0, result.output
        assert "sesame" not in result.output
    assert given == ["open sesame", "other"]


def test_the_command_says_where_the_model_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(folder / "classifier")
    assert "(EnergyClassifier) at http://127.0.0.1:" in call(path, "--port", "0", monkeypatch=monkeypatch).stdout
    found = json.loads(call(path, "--port", "0", "--json", monkeypatch=monkeypatch).stdout)
    assert found == {"url": found["url"], "model": path, "estimator": "EnergyClassifier"}
    assert "energate serve flowers.zip" in call("--help", monkeypatch=monkeypatch).stdout


def test_an_open_server_is_warned_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(folder / "classifier")
    result = call(path, "--port", "0", "--host", "0.0.0.0", monkeypatch=monkeypatch)
    assert "Warning: whoever reaches this machine" in result.stderr
    assert "http://127.0.0.1:" in result.stdout
    for options in (["--host", "0.0.0.0", "--api-key", "k"], ["--host", "localhost"]):
        assert not call(path, "--port", "0", *options, monkeypatch=monkeypatch).stderr


def test_what_cannot_be_served_is_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(folder / "classifier")
    assert "none" in call(str(tmp_path / "none"), monkeypatch=monkeypatch, code=2).stderr
    with serving.open_socket("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert "Choose another --port" in call(path, "--port", port, monkeypatch=monkeypatch, code=2).stderr
    assert "--host" in call(path, "--host", "192.0.2.1", monkeypatch=monkeypatch, code=2).stderr
    assert "`host` must be an address" in call(path, "--host", "no such host", monkeypatch=monkeypatch, code=2).stderr
    for key in ("", " k", "k\n", "ключ"):
        assert "API key must be" in call(path, "--api-key", key, monkeypatch=monkeypatch, code=2).stderr
    pairs = PairScorer(max_epochs=1, random_state=0).fit(X, X)
    save(pairs, tmp_path / "pairs")
    assert "PairScorer cannot be served" in call(str(tmp_path / "pairs"), monkeypatch=monkeypatch, code=2).stderr
    monkeypatch.setattr(running, "files", lambda _: tmp_path)
    assert "without its digits model" in call(monkeypatch=monkeypatch, code=2).stderr


@pytest.mark.parametrize("content", ["[[1, 2]]", "{}", "[", '[{"a": 1}]', "[[1, 2, 3, NaN]]"])
def test_examples_that_are_no_rows_are_refused(tmp_path: Path, content: str) -> None:
    save(classifier(), tmp_path / "model.zip")
    (tmp_path / "model-examples.json").write_text(content)
    with pytest.raises(InputError, match=r"Example 0 is no row|must be a JSON list of rows"):
        serving.load_served(tmp_path / "model.zip")


def test_without_the_extra_the_command_names_it() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = sys.modules['starlette'] = None\n"
        "from energate.cli import app\n"
        "try: app(['serve'])\nexcept SystemExit as end: assert end.code == 2\n"
        "assert 'torch' not in sys.modules\n"
        "try: import energate.serving\nexcept ImportError as error: assert 'energate[serve]' in str(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "pip install 'energate[serve]'" in found.stderr


# --- other kinds of models ---------------------------------------------------------------------------------------


def test_sets_of_a_calibrated_classifier() -> None:
    model = copy.copy(classifier())
    model.conformalize(X, model.classes_[Y])
    with served(serving.serve_model(model)) as client:
        found = client.post("/predict", json={**rows_of(X[:5]), "alpha": 0.2}).json()
        assert found["sets"] == model.predict_set(X[:5], 0.2).tolist()
        assert "sets" not in client.post("/predict", json=rows_of(X[:5])).json()
        answer = client.post("/predict", json={**rows_of(X[:5]), "alpha": 1e-4})
        assert answer.status_code == 422
        assert "takes at least 9999 calibration rows" in answer.json()["detail"]


def test_a_scorer() -> None:
    model, far = scorer(), np.vstack([X[:3], [[100.0] * 4]])
    with served(serving.serve_model(model)) as client:
        found = client.post("/predict", json=rows_of(far)).json()
        assert_allclose(found.pop("p_value"), model.p_values(far))
        assert found == {"predictions": model.predict(far).tolist(), "probabilities": None, "classes": [-1, 1]}
        found = client.post("/predict", json={**rows_of(far), "reject": 0.1}).json()
        assert found["reject"] == (model.p_values(far) <= 0.1).tolist()
        answer = client.post("/predict", json={**rows_of(far), "reject": 2})
        assert (answer.status_code, answer.json()["detail"]) == (422, "reject must be below 1.0; got 2.")
        found = client.post("/score", json=rows_of(far)).json()
        assert_allclose(found["scores"], model.decision_function(far), rtol=1e-9)
        assert found["is_inlier"] == (model.predict(far) == 1).tolist()
        found = client.post("/explain", json=rows_of(far)).json()
        assert_allclose(np.array(found["reconstructions"])[:, 0], model.reconstruct(far), rtol=1e-9)
        found = client.post("/trajectory", json={"row": X[0].tolist(), "n_steps": 3}).json()
        assert (np.shape(found["points"]), found["of"]) == ((4, 4), None)
        answer = client.post("/trajectory", json={"row": X[0].tolist(), "of": 0})
        assert (answer.status_code, answer.json()["detail"]) == (422, "of must be null, or left out; got 0.")


@pytest.mark.parametrize("method", ["sets", "ascent"])
def test_a_refiner(method: str) -> None:
    model, some = refiner(method), X[::10]
    base = np.random.default_rng(0).normal(size=(15, 3))
    with served(serving.serve_model(model)) as client:
        assert client.get("/model").json()["verdict"] == model.verdict_
        found = client.post("/predict", json=rows_of(some)).json()
        assert_array_equal(found["predictions"], model.predict(some))
        assert_allclose(found["probabilities"], model.predict_proba(some), rtol=1e-5)
        assert found["classes"] == [0, 1, 2]
        found = client.post("/refine", json=rows_of(some)).json()
        assert_allclose(found["refined"], model.predict_proba(some), rtol=1e-5)
        assert_array_equal(found["predictions"], model.predict(some))
        found = client.post("/refine", json={**rows_of(some), "scores": base.tolist()}).json()
        assert_allclose(found["refined"], model.refine(base, some)[0], rtol=1e-5)
        found = client.post("/score", json={**rows_of(some), "labels": LABELS[::10].tolist()}).json()
        assert_allclose(found["label_energy"], model.label_energy(some, LABELS[::10]), rtol=1e-4)
        found = client.post("/explain", json={**rows_of(some), "scores": base.tolist()}).json()
        assert np.shape(found["steps"])[1:] == (15, 3)
        assert_allclose(found["steps"][-1], found["refined"])
        for extra, words in (
            ({}, "labels is missing"),
            ({"labels": [[1, 0, 1]]}, "`labels` must have one entry for each of the 15 rows; got 1"),
            ({"labels": [[1, 0, 2]] * 15}, "`Y` must be"),
            ({"labels": [[1, 0]] * 15}, r"labels[0] must have 3 entries"),
        ):
            answer = client.post("/score", json={**rows_of(some), **extra})
            assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text
        assert client.post("/refine", json={**rows_of(some), "scores": [[0, 0, 0]]}).status_code == 422
        assert client.post("/trajectory", json={"row": X[0].tolist()}).status_code == 404


def test_a_refiner_of_classes() -> None:
    model, some = refiner(classes=True), X[::30]
    with served(serving.serve_model(model)) as client:
        found = client.post("/predict", json=rows_of(some)).json()
        assert (found["predictions"], found["classes"]) == (model.predict(some).tolist(), ["a", "b", "c"])
        assert_allclose(found["probabilities"], model.predict_proba(some), rtol=1e-5)
        found = client.post("/score", json={**rows_of(some), "labels": ["a"] * 5}).json()
        assert_allclose(found["label_energy"], model.label_energy(some, np.array(["a"] * 5)), rtol=1e-4)
        for labels in (["a", "a", "a", "a", "z"], [1, 2, 3, "a", True]):
            assert client.post("/score", json={**rows_of(some), "labels": labels}).status_code == 422


def test_a_refiner_without_its_base_takes_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = MultiOutputClassifier(LogisticRegression()).fit(X, LABELS)
    save(EnergyRefiner(base, prefit=True, max_epochs=1, random_state=0).fit(X, LABELS), tmp_path / "model")
    assert "without its base" in call(str(tmp_path / "model"), "--port", "0", monkeypatch=monkeypatch).stderr
    expected = load(tmp_path / "model", base=None).refine(np.ones((1, 3)), X[:1])[0]
    with served(serving.serve_model(load(tmp_path / "model", base=None))) as client:
        assert client.get("/model").json()["operations"] == ["refine", "explain"]
        assert client.post("/predict", json=rows_of(X[:1])).status_code == 404
        assert client.post("/refine", json=rows_of(X[:1])).json()["detail"] == "scores is missing."
        found = client.post("/refine", json={**rows_of(X[:1]), "scores": [[1, 1, 1]]}).json()
        assert_allclose(found["refined"], expected, rtol=1e-5)
        for path in ("/refine", "/explain"):
            shown = client.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]
            assert client.post(path, json=shown["application/json"]["example"]).status_code == 200


def test_a_network_predicts_only() -> None:
    with served(serving.serve_model(network())) as client:
        found = client.post("/predict", json=rows_of(X[:3])).json()
        assert_array_equal(found["predictions"], network().predict(X[:3]))
        assert list(client.get("/openapi.json").json()["paths"]) == ["/predict", "/health", "/model", "/metrics"]


# --- tables ------------------------------------------------------------------------------------------------------


def test_rows_of_a_table_by_name_or_in_order(tmp_path: Path) -> None:
    save(of_a_table(), tmp_path / "model", columns=COLUMNS)
    rows = [{"length": 6, "colour": "red"}, {"length": None, "colour": None}, {"length": 5.5, "colour": "green"}]
    matrix = [[6, 0, 1, 0], [5.8, 0, 0, 1], [5.5, 0, 0, 0]]
    expected = of_a_table().predict_proba(matrix)
    with served(serving.load_served(tmp_path / "model")) as client:
        about = client.get("/model").json()
        known = COLUMNS.to_json()
        assert about["columns"] == {name: value for name, value in known.items() if name != "examples"}
        assert about["feature_names"] == COLUMNS.feature_names
        lists = [list(row.values()) for row in rows]
        backwards = [dict(reversed(row.items())) for row in rows]
        for body in (rows, lists, backwards, [rows[0], *lists[1:]]):
            found = client.post("/predict", json={"rows": body}).json()
            assert_allclose(found["probabilities"], expected, rtol=1e-9)
        found = client.post("/trajectory", json={"row": rows[0], "n_steps": 2}).json()
        assert_allclose(found["points"][0], matrix[0], rtol=1e-9)


def test_other_columns_are_carried_along() -> None:
    rows = [{"id": "a1", "length": 6, "colour": "red"}, {"length": 5, "note": None, "colour": "red"}, [5, "red"]]
    with served(serving.serve_model(of_a_table(), COLUMNS)) as client:
        found = client.post("/predict", json={"rows": rows}).json()
        assert found["carried"] == [{"id": "a1"}, {"note": None}, {}]
        plain = client.post("/predict", json={"rows": [[6, "red"], [5, "red"], [5, "red"]]}).json()
        assert "carried" not in plain
        assert_allclose(found["probabilities"], plain["probabilities"], rtol=1e-9)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"length": 1}, r'rows\[1\] lacks columns \(null stands for a missing value\): "colour"'),
        ({"length": 1, "color": "red"}, r'rows\[1\] lacks columns .*: "colour"; has others: "color"'),
        ({"length": 1, "colour": "red", "size": [3]}, '"size" must be a finite number'),
        ({"length": "long", "colour": "red"}, r"rows\[1\]: 'length' must be a number; got 'long'"),
        ({"length": [1], "colour": "red"}, r'"length" must be a finite number, a text .* got \[1\]'),
        ({"length": 1, "colour": {"a": []}}, r'"colour" must be'),
        ({"length": 1, "colour": "x" * 2000}, "at most 1000 characters"),
        ({"length": 10**400, "colour": "red"}, '"length" must be a finite number'),
        ({"length": float("nan"), "colour": "red"}, '"length" must be a finite number'),
        ({"length": float("inf"), "colour": "red"}, '"length" must be a finite number'),
        ([1], r"rows\[1\] must have 2 values, one for each column; got 1"),
        ([], "must have 2 values"),
        (3, "must be an object, or a list of values; got 3"),
        (None, "must be an object, or a list of values; got null"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_rows_of_a_table_are_refused(row: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RowReader(4, COLUMNS).matrix([{"length": 1, "colour": "red"}, row])
    with served(serving.serve_model(of_a_table(), COLUMNS)) as client:
        body = json.dumps({"rows": [[1, "red"], row]})
        answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert re.search(words, answer.json()["detail"])


def test_an_example_is_a_row_that_the_model_takes() -> None:
    models = (classifier(), scorer(), refiner(), refiner(classes=True), network())
    for offered in (serving.serve_model(of_a_table(), COLUMNS), *map(serving.serve_model, models)):
        with served(offered) as client:
            for path, methods in client.get("/openapi.json").json()["paths"].items():
                if "post" in methods:
                    example = methods["post"]["requestBody"]["content"]["application/json"]["example"]
                    assert client.post(path, json=example).status_code == 200, path


# --- pages -------------------------------------------------------------------------------------------------------


def test_files_come_from_the_folder_of_the_page_only(client: Any) -> None:
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert client.get("/page/api.js").headers["content-type"].startswith("text/javascript")
    for path in (
        "../app.py",
        "%2e%2e/app.py",
        "..%2fapp.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "none.js",
        "",
        "%00.js",
    ):
        answer = client.get(f"/page/{path}")
        assert answer.status_code == 404, path
        assert "import" not in answer.text
    policy = client.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    for allowed in ("http", "unsafe", "data:", "blob:", "*"):
        assert allowed not in policy


def test_the_reference_lists_the_schema_and_takes_nothing_from_elsewhere(client: Any) -> None:
    page, paths = client.get("/docs").text, client.get("/openapi.json").json()["paths"]
    asked = {"/predict", "/score", "/explain", "/trajectory", "/attribute", "/complete", "/counterfactual", "/drift"}
    assert set(paths) == {*asked, "/health", "/model", "/metrics"}
    for path in paths:
        assert f"<code>{path}</code>" in page
    assert not re.search(r"(src|href)=['\"]?(https?:)?//", page)
    assert "<script" not in page
    assert "style>" not in page
    assert f"{client.base_url}/predict".replace("//predict", "/predict") in page
    assert "<b>" not in client.get("/docs", headers={"host": "<b>x"}).text


def test_metrics_count_what_was_asked() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.02, 99.0):
        metrics.add("/predict", 200, seconds)
    metrics.add("/predict", 422, BINS[0])
    lines = metrics.text([("rows_waiting", "gauge", "Rows.", 3)]).splitlines()
    assert 'energate_requests_total{path="/predict",status="200"} 3' in lines
    assert 'energate_requests_total{path="/predict",status="422"} 1' in lines
    assert 'energate_request_seconds_bucket{path="/predict",le="0.001"} 2' in lines
    assert 'energate_request_seconds_bucket{path="/predict",le="10.0"} 3' in lines
    assert 'energate_request_seconds_bucket{path="/predict",le="+Inf"} 4' in lines
    assert 'energate_request_seconds_sum{path="/predict"} 99.021500' in lines
    assert 'energate_request_seconds_count{path="/predict"} 4' in lines
    assert "energate_rows_waiting 3" in lines
    assert all(
        re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.e+]+', line) for line in lines
    )


def test_unknown_paths_share_one_line_of_metrics(client: Any) -> None:
    for number in range(5):
        client.get(f"/x{number}")
    text = client.get("/metrics").text
    assert "/x1" not in text
    assert 'path="other",status="404"' in text


# --- things that go wrong ----------------------------------------------------------------------------------------


def broken(*_: Any, **__: Any) -> dict[str, Any]:
    raise RuntimeError("secret")


def a_served(compute: Any, *, alone: bool = False) -> serving.Served:
    form = operations.RowsOf(service.schemas.numbers(1), np.asarray, 100)
    offered = serving.Operation("Anything.", form.body("Rows"), compute, {"type": "object"}, alone)
    return serving.Served({"estimator": "Test"}, {"predict": offered}, [0.0])


def test_a_bug_is_a_plain_line_for_the_client_and_a_trace_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), served(a_served(broken)) as client:
        answer = client.post("/predict", json={"rows": [[1]]})
        assert answer.status_code == 500
        assert answer.json() == {"detail": "Something went wrong in the server; its log says what."}
        assert client.get("/health").status_code == 200
        assert metric(client, 'energate_requests_total{path="/predict",status="500"}') == 1
    assert any("secret" in str(record.exc_info) for record in caplog.records)


def test_numbers_that_are_not_finite_are_null() -> None:
    with served(a_served(lambda rows: {"a": np.array([np.nan, 1.0, np.inf])[: len(rows)]})) as client:
        assert client.post("/predict", json={"rows": [[1], [2], [3]]}).json() == {"a": [None, 1.0, None]}


def test_a_request_that_does_not_arrive_is_given_up() -> None:
    with served(a_served(lambda rows: {"a": np.zeros(len(rows))}), Settings(seconds_to_send=0.3)) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port), 10) as raw:
            raw.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            answer = raw.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")
        assert client.get("/health").status_code == 200


def test_where_too_much_waits_a_request_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "WAITING", 1)
    going = threading.Event()

    def slow(rows: list[Any]) -> dict[str, Any]:
        going.wait(20)
        return {"a": np.array(rows)[:, 0]}

    with served(a_served(slow), Settings(max_rows=10)) as client, ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.post, "/predict", json={"rows": [[1]]})
        while metric(client, "energate_batches_total") < 1:
            time.sleep(0.01)
        second = pool.submit(client.post, "/predict", json={"rows": [[2]] * 10})
        while metric(client, "energate_rows_waiting") < 10:
            time.sleep(0.01)
        third = client.post("/predict", json={"rows": [[3]]})
        assert (third.status_code, third.headers["retry-after"]) == (503, "1")
        going.set()
        assert first.result(20).json() == {"a": [1.0]}
        assert second.result(20).json() == {"a": [2.0] * 10}


# --- batches -----------------------------------------------------------------------------------------------------


class Recorded:
    """Doubles numbers, refuses those below 0, and keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = []
        self.going = threading.Event()

    def __call__(self, rows: list[float]) -> dict[str, Any]:
        self.going.wait(20)
        self.calls.append(rows)
        if min(rows) < 0:
            raise InputError(f"{min(rows)} is below 0.")
        return {"a": 2 * np.array(rows)}


async def _batched(
    requests: list[list[float]], *, max_rows: int = 100, alone: bool = False
) -> tuple[list[Any], Recorded]:
    """The first request keeps the thread busy until the others have arrived."""
    compute = Recorded()
    batcher, work = Batcher(max_rows, 1000), Work("double", compute, alone)
    tasks = []
    for rows in requests:
        tasks.append(asyncio.ensure_future(batcher.submit(work, {"rows": rows}, len(rows))))
        await asyncio.sleep(0.01)
    compute.going.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await batcher.stop()
    assert (batcher.counts.requests, batcher.counts.rows) == (len(requests), sum(map(len, requests)))
    assert batcher.n_waiting == 0
    return [each if isinstance(each, Exception) else each["a"].tolist() for each in results], compute


def test_what_waits_is_computed_together() -> None:
    results, compute = asyncio.run(_batched([[1], [2, 3], [4], [5]]))
    assert results == [[2], [4, 6], [8], [10]]
    assert compute.calls == [[1], [2, 3, 4, 5]]


def test_a_batch_has_at_most_so_many_rows_but_a_request_is_never_cut() -> None:
    results, compute = asyncio.run(_batched([[1], [2, 3], [4], [5], [6, 7, 8, 9], [10]], max_rows=3))
    assert results == [[2], [4, 6], [8], [10], [12, 14, 16, 18], [20]]
    assert compute.calls == [[1], [2, 3, 4], [5], [6, 7, 8, 9], [10]]


def test_one_mistake_is_told_to_the_one_who_made_it() -> None:
    results, compute = asyncio.run(_batched([[1], [2], [-3], [4]]))
    assert results[:2] + results[3:] == [[2], [4], [8]]
    assert isinstance(results[2], InputError)
    assert str(results[2]) == "-3 is below 0."
    assert compute.calls == [[1], [2, -3, 4], [2], [-3], [4]]


def test_the_thread_is_prepared_before_it_computes() -> None:
    async def run() -> dict[str, Any]:
        batcher = Batcher(10, 10, lambda: names.append(threading.current_thread().name))
        work = Work("name", lambda rows: {"a": np.array([threading.current_thread().name] * len(rows))})
        found = await batcher.submit(work, {"rows": [1]}, 1)
        await batcher.stop()
        return found

    names: list[str] = []
    found = asyncio.run(run())
    assert found["a"].tolist() == names
    assert names != [threading.current_thread().name]


def test_the_model_computes_with_as_many_threads_as_were_set() -> None:
    import torch

    def compute(rows: list[Any]) -> dict[str, Any]:
        set_here.append(torch.get_num_threads())
        return {"a": np.zeros(len(rows))}

    set_here: list[int] = []
    with served(a_served(compute)) as client:
        client.post("/predict", json={"rows": [[1]]})
    assert set_here == [torch.get_num_threads()]


def test_work_alone_is_not_joined() -> None:
    results, compute = asyncio.run(_batched([[1], [2], [3]], alone=True))
    assert (results, compute.calls) == ([[2], [4], [6]], [[1], [2], [3]])


def test_requests_with_other_fields_are_not_joined() -> None:
    calls: list[Any] = []

    def compute(rows: list[int], scores: Any = None) -> dict[str, Any]:
        calls.append((rows, scores))
        return {"a": np.array(rows)}

    async def jobs() -> list[Any]:
        work, future = Work("w", compute), asyncio.get_running_loop().create_future
        fields: list[dict[str, Any]] = [{"rows": [1]}, {"rows": [2], "scores": [20]}, {"rows": [3]}]
        return [Job(work, each, 1, future()) for each in fields]

    results = computed(asyncio.run(jobs()))
    assert sorted(calls, key=str) == [([1, 3], None), ([2], [20])]
    assert {job.inputs["rows"][0]: result["a"].tolist() for job, result in results if isinstance(result, dict)} == {
        1: [1],
        2: [2],
        3: [3],
    }


def test_a_request_that_was_given_up_is_not_computed() -> None:
    async def run() -> Recorded:
        compute = Recorded()
        batcher, work = Batcher(10, 10), Work("double", compute)
        tasks = [asyncio.ensure_future(batcher.submit(work, {"rows": [number]}, 1)) for number in (1, 2, 3)]
        await asyncio.sleep(0.01)
        late = asyncio.ensure_future(batcher.submit(work, {"rows": [4]}, 1))
        await asyncio.sleep(0.01)
        tasks[0].cancel()  # it runs already
        late.cancel()
        with pytest.raises(OverloadedError):
            await batcher.submit(work, {"rows": [0] * 20}, 20)
        compute.going.set()
        assert (await tasks[2])["a"].tolist() == [6]
        await batcher.stop()
        return compute

    assert asyncio.run(run()).calls == [[1, 2, 3]]


def test_missing_cells_and_categories_come_as_they_are() -> None:
    pandas = pytest.importorskip("pandas")
    model = with_cells()
    rows = [
        {"size": 0.5, "age": None, "colour": "red", "grade": 3},
        {"size": None, "age": 31, "colour": "violet", "grade": 10.0},
        [1.5, 30, None, 2],
    ]
    columns = ["size", "age", "colour", "grade"]
    frame = pandas.DataFrame([row if isinstance(row, list) else list(row.values()) for row in rows], columns=columns)
    with served(serving.serve_model(model, examples=rows)) as client:
        about = client.get("/model").json()
        assert about["columns"]["inputs"][2] == {"name": "colour", "categories": ["blue", "green", "red", None]}
        assert about["feature_names"] == columns
        assert about["seen_names"] == model.cells_.names(columns)
        said = client.post("/predict", json={"rows": rows}).json()
        assert_allclose(said["probabilities"], model.predict_proba(frame), rtol=1e-9)
        said = client.post("/explain", json={"rows": rows}).json()
        assert_allclose(said["seen"], explain(model, frame)["seen"], rtol=1e-9)
        assert np.shape(said["reconstructions"]) == (3, 2, len(about["seen_names"]))
        said = client.post("/trajectory", json={"row": rows[0], "n_steps": 3}).json()
        assert_allclose(said["points"][0], explain(model, frame[:1])["seen"][0], rtol=1e-9)
        wrong = client.post("/predict", json={"rows": [{**rows[0], "size": "large"}]})  # type: ignore[dict-item]
        assert (wrong.status_code, wrong.json()["detail"]) == (422, "rows[0]: 'size' must be a number; got 'large'.")


# --- rows in bulk, several processes -----------------------------------------------------------------------------

NPY, ARROW, NPZ = "application/x-npy", "application/vnd.apache.arrow.stream", "application/x-npz"


def npy_of(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def arrow_of(columns: dict[str, Any]) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    table, sink = arrow.table(columns), arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def posted(client: Any, kind: str, content: bytes, accept: str = "*/*") -> Any:
    return client.post("/predict", content=content, headers={"content-type": kind, "accept": accept})


def test_a_matrix_comes_and_goes_in_numpys_own_form(client: Any) -> None:
    expected = client.post("/predict", json=rows_of(X)).json()
    for values in (X, np.asfortranarray(X), X.astype(">f8")):
        assert posted(client, NPY, npy_of(values)).json() == expected
    with np.load(io.BytesIO(posted(client, NPY, npy_of(X), NPZ).content), allow_pickle=False) as found:
        assert set(found.files) == set(expected)
        assert found["predictions"].tolist() == expected["predictions"]
        assert_allclose(found["probabilities"], expected["probabilities"], rtol=1e-12)
    columns = {f"c{i}": X[:, i] for i in range(4)}
    assert posted(client, ARROW, arrow_of(columns)).json() == expected


@pytest.mark.parametrize(
    ("kind", "content", "status", "words"),
    [
        (NPY, b"", 400, "format npy"),
        (NPY, b"\x93NUMPY" + b"\xff" * 100, 400, "format npy"),
        (NPY, npy_of(X)[:-8], 400, "format npy"),
        (NPY, npy_of(np.array([[1, "a"]], dtype=object)), 400, "no objects"),
        (NPY, npy_of(np.array([["a"] * 4])), 422, "matrix of numbers"),
        (NPY, npy_of(X[0]), 422, r"shape \(n, 4\); got \(4,\)"),
        (NPY, npy_of(X[:, :3]), 422, r"shape \(n, 4\); got \(150, 3\)"),
        (NPY, npy_of(np.where(X[1] == X, np.nan, X)), 422, r"rows\[\d+\]\[\d+\] must be a finite number; got nan"),
        (NPY, npy_of(X[:0]), 422, "at least 1 entry; got 0"),
        (NPY, npy_of(np.zeros((5001, 4))), 422, "at most 5000 entries; got 5001"),
        (ARROW, b"ARROW1", 400, "stream of Arrow"),
        (ARROW, b"", 400, "stream of Arrow"),
        ("application/x-npz", b"", 415, "or application/x-npy, or application/vnd.apache"),
    ],
)
def test_bad_bytes_get_a_plain_line(client: Any, kind: str, content: bytes, status: int, words: str) -> None:
    answer = posted(client, kind, content)
    assert (answer.status_code, bool(re.search(words, answer.json()["detail"]))) == (status, True), answer.text


def test_tables_of_arrow_have_the_columns_of_the_model() -> None:
    lengths, colours = [5.0, None, 7.0], ["red", "blue", None]
    rows = [{"length": a, "colour": b} for a, b in zip(lengths, colours, strict=True)]
    with served(serving.serve_model(of_a_table(), COLUMNS)) as client:
        expected = client.post("/predict", json={"rows": rows}).json()
        assert posted(client, ARROW, arrow_of({"colour": colours, "length": lengths})).json() == expected
        assert "lacks 'colour'" in posted(client, ARROW, arrow_of({"length": lengths})).json()["detail"]
        assert posted(client, NPY, npy_of(X)).status_code == 415  # a matrix has no categories
    with served(serving.serve_model(classifier())) as client:
        text = posted(client, ARROW, arrow_of({f"c{i}": ["a"] for i in range(4)}))
        assert (text.status_code, text.json()["detail"]) == (422, "The table must hold numbers only.")
        assert "must have 4 columns; got 1" in posted(client, ARROW, arrow_of({"c": [1.0]})).json()["detail"]


def test_what_was_quick_is_computed_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "QUICK", 1000.0)

    async def run() -> list[str]:
        names: list[str] = []

        def compute(rows: list[int]) -> dict[str, Any]:
            names.append(threading.current_thread().name)
            return {"a": np.array(rows)}

        batcher, work = Batcher(10, 10), Work("quick", compute)
        for _ in range(3):
            assert (await batcher.submit(work, {"rows": [1]}, 1))["a"].tolist() == [1]
        await batcher.submit(Work("other", compute, alone=True), {"rows": [1]}, 1)
        await batcher.stop()
        return names

    names = asyncio.run(run())
    here = threading.current_thread().name
    assert [name == here for name in names] == [False, True, True, False]


def test_several_processes_answer_and_end_together(folder: Path) -> None:
    with process(str(folder / "classifier"), "--workers", "2") as (started, client):
        expected = classifier().predict(X[:3]).tolist()
        for _ in range(6):  # each on a connection of its own
            answer = httpx.post(f"{client.base_url}/predict", json=rows_of(X[:3]), timeout=60, trust_env=False)
            assert answer.json()["predictions"] == expected
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0


def test_processes_that_die_at_once_are_not_started_for_ever() -> None:
    with serving.open_socket("127.0.0.1", 0) as listening, pytest.raises(InputError, match="ended by itself"):
        serving.serve_in_processes(functools.partial(os._exit, 3), Settings(), listening, 1)
