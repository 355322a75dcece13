"""Measures, computed again row by row."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energate.measures import f1_scores, log_loss, of_anomalies, of_classes, of_labels, reliability, standard_error

pairs = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50)


@given(pairs)
def test_bins_hold_what_is_in_them(rows: list[tuple[float, bool]]) -> None:
    p, happened = (np.array(each) for each in zip(*rows, strict=True))
    found = reliability(p, happened)
    assert sum(found["count"]) == len(p)
    distance = 0.0
    for k in range(10):
        inside = [i for i in range(len(p)) if min(int(p[i] * 10), 9) == k]
        assert found["count"][k] == len(inside)
        if not inside:
            assert found["confidence"][k] is found["accuracy"][k] is None
            continue
        mean, share = np.mean(p[inside]), np.mean(happened[inside])
        assert found["confidence"][k] == pytest.approx(100 * mean, abs=1e-3)
        assert found["accuracy"][k] == pytest.approx(100 * share, abs=1e-3)
        distance += len(inside) * abs(mean - share) / len(p)
    assert found["ece"] == pytest.approx(100 * distance, abs=1e-3)


def test_honest_and_boastful_probabilities() -> None:
    p = np.repeat([0.25, 0.75], 400)
    honest = np.concatenate([np.arange(400) % 4 == 0, np.arange(400) % 4 != 0])
    assert reliability(p, honest)["ece"] == 0
    assert reliability(np.where(p > 0.5, 1.0, 0.0), honest)["ece"] == 25


def test_log_loss_and_standard_error() -> None:
    p, truth = np.array([[0.25, 1.0], [0.5, 0.0]]), np.array([[0, 1], [1, 1]])
    expected = -(np.log(0.75) + np.log(1 - 1e-9) + np.log(0.5) + np.log(1e-9)) / 4
    assert log_loss(p, truth) == pytest.approx(expected)
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1)
    assert standard_error(np.array([2.0])) == 0


@given(st.integers(0, 2**32 - 1))
def test_f1_is_that_of_the_counts_and_1_where_there_is_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predicted, Y = (rng.random((2, 6, 3)) < rng.random((2, 1, 1))).astype(int)

    def mean(axis: int | None) -> float:
        both, total = (predicted * Y).sum(axis), (predicted + Y).sum(axis)
        return 100 * np.where(total > 0, 2 * both / np.maximum(total, 1), 1).mean()

    expected = {"example_f1": mean(1), "macro_f1": mean(0), "micro_f1": mean(None)}
    assert f1_scores(predicted, Y) == pytest.approx(expected)


def test_what_rows_say_of_classes() -> None:
    p = np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8]])
    found = of_classes(np.log(p), np.array(["a", "b"]), np.array(["a", "b", "a"]))
    assert found["error"] == pytest.approx(100 / 3)
    assert found["n_wrong"] == 1
    assert found["log_loss"] == pytest.approx(-np.log([0.9, 0.7, 0.2]).mean())
    assert found["calibration_error"] == pytest.approx(100 * (0.1 + 0.3 + 0.8) / 3, abs=1e-3)


def test_what_rows_say_of_labels() -> None:
    p, Y = np.array([[0.9, 0.25], [0.0, 0.75]]), np.array([[1, 0], [0, 0]])
    found = of_labels(p, np.array([[1, 1], [0, 0]]), Y)  # decided otherwise than by one half
    assert (found["label_error"], found["row_error"]) == (25, 50)
    assert found["log_loss"] == pytest.approx(log_loss(p, Y))
    assert found["calibration_error"] == pytest.approx(100 * (0.1 + abs(2 * 0.75 - 1)) / 4, abs=1e-3)


def test_what_rows_say_of_anomalies() -> None:
    scores = np.array([1.0, 0.5, -0.5, -1.0])
    assert of_anomalies(scores, np.array([0, 0, 1, 1])) == {"flagged": 50, "roc_auc": 1}
    for unknown in (None, np.zeros(4, dtype=int), np.ones(4, dtype=int)):
        assert of_anomalies(scores, unknown) == {"flagged": 50}


def test_no_torch_is_needed() -> None:
    code = "import energate.measures, energate.datasets, energate.tables, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
