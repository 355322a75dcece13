"""Reject curves: the error of those rows that are kept, when the least sure ones are handed to someone else.

EnergyClassifier, MLPClassifier and RandomForest with their defaults on three sets of scikit-learn, five stratified
folds, the same for all.  Rows are ranked by their largest probability; ours also by `score_samples`, how much any class
likes a row.  That is meant for rows of no class, of which these sets have none: it is here to be seen beside the other.

    python benchmarks/reject.py [--sets digits,wine] [--systems MLP] [--threads 2] [--out FILE]
    python benchmarks/reject.py --summary [--picture FILE]          # of the lines that are there

One JSON line per set, fold, system and ranking; finished ones are skipped.  The summary is made from the lines alone.
Rows that are equally sure count with their mean error: no order is made up for them.  The area is the mean error over
all shares kept, from one row to all.
"""

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from real_data import SOURCES
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabular import read
from threadpoolctl import threadpool_limits

from energate import EnergyClassifier, __version__

OUT = Path(__file__).parent / "results" / "reject.jsonl"
SETS, FOLDS = ("digits", "breast-cancer", "wine"), 5
SHARES = np.linspace(0.05, 1, 96)  # of the rows, kept
TOLD = (100, 95, 90, 80, 70)  # per cent of the rows
OURS, PROBABILITY, LIKING = "EnergyClassifier", "probability", "score_samples"
Line = dict[str, Any]
Array = NDArray[np.float64]

#: every system with its defaults, of a seed; what needs it gets standardised columns
SYSTEMS: dict[str, Callable[[int], Any]] = {
    OURS: lambda seed: EnergyClassifier(random_state=seed, device="cpu"),
    "MLP": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
    "RandomForest": lambda seed: RandomForestClassifier(random_state=seed),
}


def errors_kept(sureness: Array, wrong: NDArray[np.bool_]) -> Array:
    """The error in % of the n surest rows, for n = 1, 2, ... all: (n,)."""
    _, group = np.unique(-sureness, return_inverse=True)
    expected = (np.bincount(group, wrong) / np.bincount(group))[group]  # rows that are equally sure are alike
    return 100 * expected[np.argsort(group, kind="stable")].cumsum() / np.arange(1, len(wrong) + 1)


def run(name: str, fold: int, system: str, threads: int) -> Iterator[Line]:
    """A line for each ranking."""
    X, y = SOURCES[name].load()
    train, test = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y))[fold]
    torch.set_num_threads(threads)
    with threadpool_limits(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier stops at its 200 epochs
        model = SYSTEMS[system](fold)
        began = time.process_time()
        model.fit(X[train], y[train])
        seconds = time.process_time() - began
        p = model.predict_proba(X[test])
        rankings = {PROBABILITY: p.max(axis=1)}
        if system == OURS:
            rankings[LIKING] = model.score_samples(X[test])
    wrong = model.classes_[p.argmax(axis=1)] != y[test]
    for ranking, sureness in rankings.items():
        errors = errors_kept(sureness, wrong)
        kept = [errors[math.ceil(round(share * len(errors), 6)) - 1] for share in SHARES]
        yield {
            "set": name,
            "fold": fold,
            "system": system,
            "ranking": ranking,
            "version": __version__,
            "test_rows": len(test),
            "errors": [round(error, 4) for error in kept],  # at SHARES
            "area": float(errors.mean()),
            "fit_cpu_s": seconds,
            "threads": threads,
        }


def at(line: Line, percent: int) -> float:
    """The error of a line where so many per cent of the rows are kept."""
    return line["errors"][int(np.abs(SHARES - percent / 100).argmin())]


def grouped(lines: list[Line]) -> dict[str, dict[tuple[str, str], list[Line]]]:
    """Lines by set, and by system and ranking."""
    found: dict[str, dict[tuple[str, str], list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["set"]][line["system"], line["ranking"]].append(line)
    return {name: dict(found[name]) for name in SETS if name in found}


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def summary(lines: list[Line]) -> str:
    """Markdown: the error in % at some shares kept, mean ± standard deviation over folds."""
    head = ["set", "system", "ranked by", *(f"{percent} % kept" for percent in TOLD), "area", "folds"]
    text = ["| " + " | ".join(head) + " |", "|---|" + "---|" * (len(head) - 1)]
    for name, systems in grouped(lines).items():
        for (system, ranking), found in systems.items():
            cells = [_spread([at(line, percent) for line in found]) for percent in TOLD]
            cells += [_spread([line["area"] for line in found]), f"{len(found)}"]
            text.append("| " + " | ".join([name, system, ranking, *cells]) + " |")
    return "\n".join(text)


def drawn(lines: list[Line], path: Path) -> None:
    """A picture for each set side by side: the mean over folds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    by_set = grouped(lines)
    figure, axes = plt.subplots(1, len(by_set), figsize=(4 * len(by_set), 3.6), layout="constrained", squeeze=False)
    for ax, (name, systems) in zip(axes[0], by_set.items(), strict=True):
        for (system, ranking), found in systems.items():
            mean = np.mean([line["errors"] for line in found], axis=0)
            style = "--" if ranking == LIKING else "-"
            ax.plot(100 * SHARES, mean, style, label=f"{system}, by {ranking}" if system == OURS else system)
        ax.set(title=name, xlabel="rows kept, %", ylim=(0, None))
    axes[0, 0].set_ylabel("error of the rows kept, %")
    axes[0, 0].legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the file of JSON lines")
    parser.add_argument("--sets", default=",".join(SETS), help="with commas between")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="with commas between")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--summary", action="store_true", help="only summarise")
    parser.add_argument("--picture", type=Path, help="draw the curves here")
    options = parser.parse_args()
    sets, systems = options.sets.split(","), options.systems.split(",")
    unknown = [*(set(sets) - set(SETS)), *(set(systems) - set(SYSTEMS))]
    if unknown:
        raise SystemExit(f"--sets are {', '.join(SETS)}, --systems {', '.join(SYSTEMS)}; got {', '.join(unknown)}")
    if not options.summary:
        done = {(line["set"], line["fold"], line["system"]) for line in read(options.out)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for task in ((name, fold, system) for name in sets for fold in range(FOLDS) for system in systems):
            if task in done:
                continue
            found = list(run(*task, options.threads))
            with options.out.open("a") as out:
                out.writelines(json.dumps(line) + "\n" for line in found)
            for line in found:
                told = ", ".join(f"{at(line, percent):.2f} at {percent} %" for percent in TOLD)
                print(f"{task[0]} fold {task[1]} {task[2]} by {line['ranking']}: {told}", flush=True)
    lines = read(options.out)
    print(summary(lines))
    if options.picture:
        drawn(lines, options.picture)


if __name__ == "__main__":
    main()
