"""MAPIE's conformal classifiers work over ours: other scores than ours come from there."""

import numpy as np
import pytest

from energate import EnergyClassifier

mapie = pytest.importorskip("mapie.classification", reason="benchmarks/peers.txt has MAPIE")


def test_sets_of_mapie_and_ours_with_the_same_score_are_the_same() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    X = rng.normal(size=(600, 4)) + np.eye(4)[y]
    model = EnergyClassifier(units="memory", random_state=0, device="cpu").fit(X[:200], y[:200])
    theirs = mapie.SplitConformalClassifier(model, confidence_level=[0.9, 0.8], conformity_score="lac", prefit=True)
    theirs.conformalize(X[200:400], y[200:400])
    found = theirs.predict_set(X[400:])[1]  # (n, K, 2)
    model.conformalize(X[200:400], y[200:400])
    for place, alpha in enumerate((0.1, 0.2)):
        assert (found[..., place] == model.predict_set(X[400:], alpha)).mean() > 0.99  # it counts ties another way
    adaptive = mapie.SplitConformalClassifier(model, confidence_level=0.9, conformity_score="raps", prefit=True)
    chosen = adaptive.conformalize(X[200:400], y[200:400]).predict_set(X[400:])[1][..., 0]
    assert chosen[np.arange(200), y[400:]].mean() > 0.83
