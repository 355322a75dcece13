"""Requests drawn from the server's own schema, and near it: whatever comes, no answer is a 5xx."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")
pytest.importorskip("httpx", reason="needs httpx")
schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance  # noqa: E402
from test_serving import COLUMNS, classifier, of_a_table, refiner, scorer, served  # noqa: E402

from energate import serving  # noqa: E402
from energate.serving import Settings  # noqa: E402

MODELS = {
    "classifier": lambda: serving.serve_model(classifier(), settings=LIMITS),
    "scorer": lambda: serving.serve_model(scorer(), settings=LIMITS),
    "refiner": lambda: serving.serve_model(refiner(), settings=LIMITS),
    "table": lambda: serving.serve_model(of_a_table(), COLUMNS, settings=LIMITS),
}
LIMITS = Settings(max_rows=8, max_bytes=20_000)
CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]
FEW = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fitting", "not fitting"])
@pytest.mark.parametrize("name", list(MODELS))
def test_no_request_breaks_the_server(name: str, mode: Any) -> None:
    seen: Counter[int] = Counter()
    with served(MODELS[name](), LIMITS) as client:
        base = str(client.base_url).rstrip("/")
        schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
        found = [result.ok() for result in schema.get_all_operations()]
        assert len(found) == len(client.get("/openapi.json").json()["paths"])
        for operation in found:
            if mode is GenerationMode.NEGATIVE and operation.method == "get":
                continue  # it takes nothing that could be wrong

            @FEW
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                seen[case.call_and_validate(base_url=base, checks=CHECKS, timeout=20).status_code] += 1

            send()
    assert set(seen) <= {200, 400, 413, 415, 422}
    assert seen[200] if mode is GenerationMode.POSITIVE else seen[422]
