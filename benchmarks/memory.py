"""Fit and score times of EnergyScorer's memory beside scikit-learn's brute-force neighbours, and what centres cost.

python benchmarks/memory.py [--device auto] [--threads 2] [--repeats 5] [--centres] [--large] [--out FILE]

Rows are a mixture of 20 Gaussians in 50 columns, drawn with a fixed seed.  Both score the same 10,000 rows against the
same 10,000; the times of `fit` and `score_samples` are medians of several, taken in turn.  ``--centres``: the mean
log-density of fresh rows, at the lowest temperature, under memories of fewer units than there are rows, and the time of
`fit`.  ``--large``: 1,000,000 rows, and the most memory that the process took.
"""

import argparse
import json
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from energate import EnergyScorer, MemoryUnits

Array = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "memory.jsonl"
WIDTH, N_ROWS = 50, 10_000


def draw(n_rows: int, seed: int) -> Array:
    centres = 3 * np.random.default_rng(0).normal(size=(20, WIDTH))
    rng = np.random.default_rng(seed)
    return np.asarray(centres[rng.integers(0, 20, n_rows)] + rng.normal(size=(n_rows, WIDTH)))


def seconds(what: Callable[[], Any]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def times(device: str, repeats: int) -> dict[str, Any]:
    X, fresh = draw(N_ROWS, 1), draw(N_ROWS, 2)
    scorer, neighbours = EnergyScorer(random_state=0, device=device), NearestNeighbors(n_neighbors=5, algorithm="brute")
    scorer.fit(X[:500]).score_samples(X[:500])  # what is set up on the first call
    neighbours.fit(X[:500]).kneighbors(X[:500])
    found: dict[str, list[float]] = {"fit_s": [], "score_s": [], "knn_fit_s": [], "knn_score_s": []}
    for _ in range(repeats):
        found["fit_s"].append(seconds(lambda: scorer.fit(X)))
        found["knn_fit_s"].append(seconds(lambda: neighbours.fit(X)))
        found["score_s"].append(seconds(lambda: scorer.score_samples(fresh)))
        found["knn_score_s"].append(seconds(lambda: neighbours.kneighbors(fresh)))
    medians = {name: round(float(np.median(values)), 3) for name, values in found.items()}
    ratios = np.array(found["score_s"]) / np.array(found["knn_score_s"])
    return {"what": "times", "rows": N_ROWS, "columns": WIDTH, **medians, "ratio": round(float(np.median(ratios)), 2)}


def log_density(scorer: EnergyScorer, X: Array) -> float:
    """The mean log-density of scaled rows at the lowest temperature of the memory."""
    units = scorer.model_.groups[0]
    assert isinstance(units, MemoryUnits)
    v = torch.as_tensor(scorer.scaler_(X)).to(units.W)
    T, counts = float(units.log_T.exp()), units.log_counts[0]
    sums = [
        torch.logsumexp(counts - torch.cdist(part, units.W[0]).square() / (2 * T), 1).mean() for part in v.split(500)
    ]
    norm = float(torch.logsumexp(counts, 0)) + WIDTH / 2 * math.log(2 * math.pi * T)
    return float(torch.stack(sums).mean()) - norm


def centres(device: str) -> list[dict[str, Any]]:
    X, fresh = draw(2 * N_ROWS, 1), draw(2000, 2)
    lines = []
    for n_units in (500, 1000, 2000, 5000, 10_000, 20_000):
        scorer = EnergyScorer(max_units=n_units, random_state=0, device=device)
        fit_s = seconds(lambda scorer=scorer: scorer.fit(X))  # type: ignore[misc]
        score_s = seconds(lambda scorer=scorer: scorer.score_samples(fresh))  # type: ignore[misc]
        line = {
            "what": "centres",
            "rows": len(X),
            "units": n_units,
            "log_density": round(log_density(scorer, fresh), 3),
        }
        lines.append({**line, "fit_s": round(fit_s, 2), "score_2000_s": round(score_s, 3)})
    return lines


def large(device: str) -> dict[str, Any]:
    X = draw(1_000_000, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scorer = EnergyScorer(random_state=0, device=device)
    fit_s = seconds(lambda: scorer.fit(X))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "what": "large",
        "rows": len(X),
        "columns": WIDTH,
        "units": scorer.n_units_,
        "fit_s": round(fit_s, 1),
        "rows_mib": round(X.nbytes / 2**20),
        "more_mib": round((most - before) / 2**10),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--centres", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        lines = [times(options.device, options.repeats)]
        lines += centres(options.device) if options.centres else []
        lines += [large(options.device)] if options.large else []
    with options.out.open("a") as file:
        for line in lines:
            print(json.dumps(line))
            file.write(json.dumps({"device": options.device, "threads": options.threads, **line}) + "\n")


if __name__ == "__main__":
    main()
