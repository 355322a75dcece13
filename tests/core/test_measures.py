"""The numbers of a reliability diagram, computed again row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energate.measures import reliability

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
