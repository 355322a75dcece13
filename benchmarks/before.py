"""Default fits of this version beside those of an older one, in turn: seconds of the processor, and how good they are.

Every fit is a process of its own, with one thread, after everything is imported; the older version is checked out to a
temporary folder.  One JSON line a fit, and those that are there already are not run again; at the end the ratios, with
the range over the seeds.  Scores are accuracy of classes and labels, ROC AUC of anomalies, and the share of pairs that
are liked more than wrong ones.

    python benchmarks/before.py [--revision f4d2a98] [--seeds 3] [--out benchmarks/results/before.jsonl]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.multioutput import MultiOutputClassifier

HERE = Path(__file__).resolve().parents[1]
BEFORE = "f4d2a98"  # the last version without trunks and memories
SETS = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}
Fit = tuple[Callable[[], Any], Callable[[Any], float]]


def classifier(source: str, seed: int) -> Fit:
    from energate import EnergyClassifier

    X, y = SETS[source](return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, random_state=seed, stratify=y)
    return lambda: EnergyClassifier(random_state=seed, device="cpu").fit(X, y), lambda model: model.score(
        X_test, y_test
    )


def scorer(source: str, seed: int) -> Fit:
    """Fitted to one class; the others are the anomalies."""
    from energate import EnergyScorer

    X, y = SETS[source](return_X_y=True)
    normal, odd = X[y == 0], X[y != 0]
    normal, fresh = train_test_split(normal, random_state=seed)
    is_odd = np.arange(len(fresh) + len(odd)) >= len(fresh)

    def score(model: Any) -> float:
        return float(roc_auc_score(is_odd, -model.score_samples(np.concatenate([fresh, odd]))))

    return lambda: EnergyScorer(random_state=seed, device="cpu").fit(normal), score


def refiner(relation: str, seed: int) -> Fit:
    from energate import EnergyRefiner

    X, Y = make_multilabel_classification(1200, 40, n_classes=12, n_labels=3, random_state=seed)
    X, X_test, Y, Y_test = train_test_split(X, Y, random_state=seed)
    base = MultiOutputClassifier(LogisticRegression(max_iter=500))

    def fit() -> Any:
        return EnergyRefiner(base=base, relation=relation, random_state=seed, device="cpu").fit(X, Y)

    return fit, lambda model: float((model.predict(X_test) == Y_test).mean())


def pairs(relation: str, seed: int) -> Fit:
    from energate import PairScorer

    draw = np.random.default_rng(seed)
    X = draw.normal(size=(1500, 10))
    Y = np.tanh(X @ draw.normal(size=(10, 6))) + 0.1 * draw.normal(size=(1500, 6))

    def score(model: Any) -> float:
        return float((model.score_pairs(X[1200:], Y[1200:]) > model.score_pairs(X[1200:], Y[:1199:-1])).mean())

    return lambda: PairScorer(relation=relation, random_state=seed, device="cpu").fit(X[:1200], Y[:1200]), score


CASES: dict[str, tuple[Callable[[str, int], Fit], tuple[str, ...]]] = {
    "EnergyClassifier": (classifier, tuple(SETS)),
    "EnergyScorer": (scorer, ("wine", "digits")),
    "EnergyRefiner": (refiner, ("yy", "xy")),
    "PairScorer": (pairs, ("conditional", "symmetric")),
}


def one(name: str, what: str, seed: int) -> dict[str, Any]:
    """In a process of its own."""
    fit, score = CASES[name][0](what, seed)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit()
    return {"cpu_s": round(time.process_time() - began, 3), "score": round(score(model), 4)}


def measured(source: Path, name: str, what: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, what, str(seed)]
    env = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(found.splitlines()[-1]))


def compare(revision: str, n_seeds: int, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(before), revision], cwd=HERE, check=True)
        try:
            lines = run({"before": before, "now": HERE}, revision, n_seeds, out)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=HERE, check=True)
    summary(lines)


def run(versions: dict[str, Path], revision: str, n_seeds: int, out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.exists() else []
    lines = [line for line in lines if line["revision"] == revision]
    done = {(line["estimator"], line["what"], line["seed"]) for line in lines}
    for name, (_, sources) in CASES.items():
        for what in sources:
            for seed in range(n_seeds):
                if (name, what, seed) in done:
                    continue
                found = {version: measured(source, name, what, seed) for version, source in versions.items()}
                lines.append({"estimator": name, "what": what, "seed": seed, "revision": revision, **found})
                print(json.dumps(lines[-1]), flush=True)
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    return lines


def summary(lines: list[dict[str, Any]]) -> None:
    groups = defaultdict(list)
    for line in lines:
        groups[line["estimator"], line["what"]].append(line)
    print("estimator, data: seconds before and now, ratio (range over seeds), score before and now")
    for (name, what), found in groups.items():
        ratios = [line["before"]["cpu_s"] / line["now"]["cpu_s"] for line in found]
        seconds, scores = (
            [np.mean([line[version][key] for line in found]) for version in ("before", "now")]
            for key in ("cpu_s", "score")
        )
        print(
            f"{name}, {what}: {seconds[0]:.2f} {seconds[1]:.2f} s, {np.mean(ratios):.1f} ({min(ratios):.1f} to "
            f"{max(ratios):.1f}), {scores[0]:.3f} {scores[1]:.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default=BEFORE)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks" / "results" / "before.jsonl")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], options.one[1], int(options.one[2]))))
    else:
        compare(options.revision, options.seeds, options.out)
