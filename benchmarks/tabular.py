"""The energy classifiers with their defaults against five classifiers of scikit-learn, on real data sets.

Five stratified folds, the same for every system.  One JSON line per set, fold and system; finished lines are skipped,
so that a run that was stopped goes on.  The summary is made from the lines alone.

    python benchmarks/tabular.py [--out FILE] [--sets iris,wine] [--systems svc,mean] [--folds 5] [--jobs 2]
    python benchmarks/tabular.py --summary          # of the lines that are there
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from real_data import SOURCES
from scipy.stats import rankdata
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from energate import EnergyClassifier

OUT = Path(__file__).parent / "results" / "tabular.jsonl"
DEVICE = "cpu"

#: every system with its defaults; those that need it get standardised columns
SYSTEMS: dict[str, Callable[[int], Any]] = {
    "trunk": lambda seed: EnergyClassifier(random_state=seed, device=DEVICE),
    "mean (AES)": lambda seed: EnergyClassifier("mean", random_state=seed, device=DEVICE),
    "covariance (cAES)": lambda seed: EnergyClassifier("covariance", random_state=seed, device=DEVICE),
    "mean-covariance (mcAES)": lambda seed: EnergyClassifier("mean-covariance", random_state=seed, device=DEVICE),
    "SVC": lambda seed: make_pipeline(StandardScaler(), SVC(random_state=seed)),
    "RandomForest": lambda seed: RandomForestClassifier(random_state=seed),
    "MLP": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
    "GaussianNB": lambda seed: GaussianNB(),  # noqa: ARG005
    "KNN": lambda seed: make_pipeline(StandardScaler(), KNeighborsClassifier()),  # noqa: ARG005
}
OURS = "trunk"
MEASURES = {"error": "error %", "log_loss": "log-loss", "ece": "ECE %", "fit_s": "fit s", "predict_s": "predict s"}


def calibration_error(p: NDArray[np.float64], hit: NDArray[np.bool_], n_bins: int = 15) -> float:
    """Expected calibration error in %: mean distance of confidence and accuracy over bins of equal width."""
    confidence = p.max(axis=1)
    which = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = np.bincount(which, confidence - hit, n_bins)
    return float(100 * np.abs(gaps).sum() / len(p))


def run(name: str, fold: int, n_folds: int, system: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    X, y = SOURCES[name].load()
    splits = StratifiedKFold(n_folds, shuffle=True, random_state=0).split(X, y)
    train, test = list(splits)[fold]
    model = SYSTEMS[system](fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier stops at its 200 epochs
        began = time.perf_counter()
        model.fit(X[train], y[train])
        fitted = time.perf_counter()
        predicted = model.predict(X[test])
        ended = time.perf_counter()
        # A plain SVC has no probabilities: they come from a calibrated copy, outside the clock.
        scored = CalibratedClassifierCV(model, ensemble=False).fit(X[train], y[train]) if system == "SVC" else model
    p = scored.predict_proba(X[test])
    return {
        "set": name,
        "development": SOURCES[name].development,
        "rows": len(X),
        "columns": X.shape[1],
        "classes": len(np.unique(y)),
        "fold": fold,
        "folds": n_folds,
        "system": system,
        "error": 100 * float((predicted != y[test]).mean()),
        "log_loss": float(log_loss(y[test], np.clip(p, 1e-12, 1))),
        "ece": calibration_error(p, scored.classes_[p.argmax(axis=1)] == y[test]),
        "fit_s": fitted - began,
        "predict_s": ended - fitted,
    }


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(lines: list[dict[str, Any]]) -> str:
    """Markdown: error per set; mean and average rank of every measure over the sets that all systems finished."""
    values: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        values[line["set"], line["system"]].append(line)
    systems = [system for system in SYSTEMS if any(line["system"] == system for line in lines)]
    names = [name for name in SOURCES if all((name, system) in values for system in systems)]
    development = {line["set"] for line in lines if line["development"]}

    def table(measure: str, sets: list[str]) -> NDArray[np.float64]:
        return np.array([[np.mean([line[measure] for line in values[s, m]]) for m in systems] for s in sets])

    text = ["Error %, mean ± standard deviation over folds (* looked at while choosing defaults):", ""]
    text += ["| set | " + " | ".join(systems) + " |", "|---|" + "---|" * len(systems)]
    for name in names:
        errors = [np.array([line["error"] for line in values[name, system]]) for system in systems]
        best = min(error.mean() for error in errors)
        cells = [
            f"**{error.mean():.2f}** ± {error.std(ddof=1):.2f}"
            if error.mean() == best
            else f"{error.mean():.2f} ± {error.std(ddof=1):.2f}"
            for error in errors
        ]
        text.append(f"| {name}{'*' if name in development else ''} | " + " | ".join(cells) + " |")
    held_out = [name for name in names if name not in development]
    for title, sets in (("all sets", names), ("sets not looked at", held_out)):
        if not sets:
            continue
        text += ["", f"Mean and (average rank) over {len(sets)} sets, {title}:", ""]
        text += ["| measure | " + " | ".join(systems) + " |", "|---|" + "---|" * len(systems)]
        for measure, label in MEASURES.items():
            means = table(measure, sets)
            ranks = rankdata(means.round(9), axis=1).mean(axis=0)
            cells = [f"{mean:.3g} ({rank:.2f})" for mean, rank in zip(means.mean(axis=0), ranks, strict=True)]
            text.append(f"| {label} | " + " | ".join(cells) + " |")
        if len(sets) > 1 and OURS in systems:
            by_set = table("error", sets)
            text.append("")
            for i, system in enumerate(systems):
                if system != OURS:
                    gap = by_set[:, systems.index(OURS)] - by_set[:, i]
                    wins, spread = int((gap < 0).sum()), gap.std(ddof=1) / len(gap) ** 0.5
                    text.append(
                        f"- {OURS} less {system}, same folds: {gap.mean():+.2f} points of error "
                        f"(standard error over sets {spread:.2f}), lower on {wins} of {len(gap)} sets"
                    )
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--sets", default=",".join(SOURCES))
    parser.add_argument("--systems", default="", help="parts of names, with commas between; all by default")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes; times are comparable with 1 only")
    parser.add_argument("--summary", action="store_true", help="only summarise")
    options = parser.parse_args()
    if options.summary:
        print(summary(read(options.out)))
        return
    done = {(line["set"], line["fold"], line["folds"], line["system"]) for line in read(options.out)}
    tasks, size = [], {}
    for name in options.sets.split(","):
        try:
            X, y = SOURCES[name].load()
            size[name] = X.size * len(np.unique(y))
        except FileNotFoundError as error:
            print(f"skipped {name}: {error}")
            continue
        for fold in range(options.folds):
            for system in SYSTEMS:
                wanted = any(part in system for part in options.systems.split(","))
                if wanted and (name, fold, options.folds, system) not in done:
                    tasks.append((name, fold, options.folds, system))
    tasks.sort(key=lambda task: -size[task[0]])  # the longest first, so that the jobs end together
    if tasks:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        parallel = joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered")
        with options.out.open("a") as out:
            for i, line in enumerate(parallel(joblib.delayed(run)(*task) for task in tasks)):
                out.write(json.dumps(line) + "\n")
                out.flush()
                print(
                    f"[{i + 1}/{len(tasks)}] {line['set']} fold {line['fold']} {line['system']}: "
                    f"error {line['error']:.2f} %, log-loss {line['log_loss']:.3f}, fit {line['fit_s']:.1f} s",
                    flush=True,
                )
    print(summary(read(options.out)))


if __name__ == "__main__":
    main()
