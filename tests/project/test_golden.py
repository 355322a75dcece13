import json

import golden
import numpy as np
import pytest

BEFORE = json.loads(golden.PLACE.read_text())


def test_every_estimator_has_predictions_on_record() -> None:
    assert BEFORE.keys() == golden.estimators().keys()


# Bit for bit on the machine that wrote them (`python tests/golden.py` shows the differences).  With other kernels they
# are at most 1e-6 apart (`make machines`); the tolerance leaves room for longer ways of rounding errors in float32.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BEFORE)
def test_predictions_are_those_on_record(name: str) -> None:
    said = golden.said_by(*golden.estimators()[name])
    np.testing.assert_allclose(said, BEFORE[name], rtol=1e-3, atol=1e-4)
