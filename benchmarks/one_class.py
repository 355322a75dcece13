"""EnergyScorer beside other anomaly detectors, one class against the rest: JSON lines and a table.

python benchmarks/one_class.py [--data FOLDER] [--seeds 5] [--sets wine iris] [--development] [--quick] [--out FILE]

One class (or label) is normal.  Half of its rows, at most 400, are for `fit`; the other half, and at most 1,000 rows of
the rest, are for the test.  Every system has its defaults and the same rows.  ``--data``, or else the environment
variable ENERGATE_DATA, is the folder with single/mnist.npz and multi/scene.npz; sets that are not there are skipped.
Lines that the file already holds are not computed again.  The peer AutoEncoder, of PyOD, takes
``pip install -r benchmarks/peers.txt``.

The defaults of EnergyScorer were chosen on the sets and classes of ``--development``; none of these classes is in the
headline.
"""

import argparse
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detectors import OURS, PEERS, Array, Build, Line, Lines, installed, measure, scorer
from numpy.typing import NDArray
from sklearn import datasets

RESULTS = Path(__file__).parent / "results" / "one-class.jsonl"
TRAIN_ROWS, TEST_ROWS, OTHER_ROWS = 400, 400, 1000
SYSTEMS: dict[str, Build] = {
    f"{OURS} mean": scorer(units="mean"),
    f"{OURS} covariance": scorer(units="covariance"),
    f"{OURS} mean-covariance": scorer(units="mean-covariance"),
    **{name: PEERS[name] for name in ("AutoEncoder", "IForest", "LOF", "OneClassSVM", "GaussianMixture")},
}

# --- data: columns, and which classes or labels every row has ------------------------------------------------------


def bundled(name: str, largest: float = 1.0) -> Callable[[Path], tuple[Array, Array]]:
    def load(_: Path) -> tuple[Array, Array]:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        return X / largest, np.eye(y.max() + 1, dtype=bool)[y]

    return load


def mnist(folder: Path) -> tuple[Array, Array]:
    with np.load(folder / "single" / "mnist.npz", allow_pickle=False) as file:
        return file["x_test"].reshape(-1, 784) / 255.0, np.eye(10, dtype=bool)[file["y_test"]]


def single(name: str) -> Callable[[Path], tuple[Array, Array]]:
    def load(folder: Path) -> tuple[Array, Array]:
        with np.load(folder / "single" / f"{name}.npz", allow_pickle=False) as file:
            return file["x_train"].astype(float), np.eye(2, dtype=bool)[file["y_train"].astype(int)]

    return load


def majorminer(folder: Path) -> tuple[Array, Array]:
    X, Y = labelled("majorminer")(folder)
    return np.sign(X) * np.log1p(np.abs(X)), Y  # its columns have very long tails


def labelled(name: str) -> Callable[[Path], tuple[Array, Array]]:
    def load(folder: Path) -> tuple[Array, Array]:
        with np.load(folder / "multi" / f"{name}.npz", allow_pickle=False) as file:
            return file["X"].astype(float), file["Y"].astype(bool)

    return load


#: set -> how to load it, and the classes (or labels) that are normal in turn
HEADLINE = {
    "iris": (bundled("iris"), (0, 1, 2)),
    "wine": (bundled("wine"), (0, 1, 2)),
    "breast cancer": (bundled("breast_cancer"), (0, 1)),
    "digits": (bundled("digits", 16.0), (1, 5, 8)),
    "mnist": (mnist, (2, 8)),
    "convex": (single("convex"), (1,)),
    "scene": (labelled("scene"), (0, 4)),
    "yeast": (labelled("yeast"), (0, 4)),
    "medical": (labelled("medical"), (4,)),
    "majorminer": (majorminer, (0, 1)),
}

#: sets whose other classes are among DEVELOPMENT, and two of which one split was seen while choosing defaults
LOOKED_AT = ("digits", "mnist", "iris", "wine")


def made(kind: str) -> Callable[[Path], tuple[Array, Array]]:
    """Rows from a generator; the anomalies have the same columns, each shuffled on its own."""

    def load(_: Path) -> tuple[Array, Array]:
        rng = np.random.default_rng(17)
        if kind == "moons":
            X = datasets.make_moons(600, noise=0.05, random_state=1)[0] @ rng.normal(size=(2, 5))
            X = X + 0.05 * rng.normal(size=X.shape)
        elif kind == "roll":
            X = datasets.make_swiss_roll(800, noise=0.3, random_state=2)[0]
        elif kind == "clusters":
            X = 3 * rng.normal(size=(4, 8))[rng.integers(0, 4, 240)] + rng.normal(size=(240, 8))
        elif kind == "tails":
            X = np.exp(0.7 * rng.normal(size=(200, 3)) @ rng.normal(size=(3, 10)) + 0.4 * rng.normal(size=(200, 10)))
        else:
            n, d, inner, noise = {"gauss": (300, 12, 4, 0.3), "tiny": (60, 6, 2, 0.2)}[kind]
            X = rng.normal(size=(n, inner)) @ rng.normal(size=(inner, d)) + noise * rng.normal(size=(n, d))
        others = np.stack([rng.permutation(np.tile(column, 2)) for column in X.T], 1)
        return np.concatenate([X, others]), np.repeat([True, False], [len(X), len(others)])[:, None]

    return load


#: where the defaults of EnergyScorer were chosen
DEVELOPMENT = {
    **{kind: (made(kind), (0,)) for kind in ("moons", "roll", "gauss", "clusters", "tails", "tiny")},
    "digits": (bundled("digits", 16.0), (0, 3, 6)),
    "mnist": (mnist, (4, 7)),
    "cal500": (labelled("cal500"), (5, 79)),
}


def split(X: Array, normal: NDArray[np.bool_], seed: int) -> tuple[Array, Array, Array]:
    """Rows for fit, rows for the test, and which of these are anomalies."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.permutation(np.flatnonzero(normal)), rng.permutation(np.flatnonzero(~normal))
    half = len(inside) // 2
    test, others = inside[half:][:TEST_ROWS], outside[:OTHER_ROWS]
    return X[inside[:half][:TRAIN_ROWS]], X[np.r_[test, others]], np.repeat([0, 1], [len(test), len(others)])


# --- the table ---------------------------------------------------------------------------------------------------


def per_set(lines: Iterable[Line], what: str) -> dict[str, dict[str, Array]]:
    """system -> set -> (seeds,): averages over the classes."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for line in lines:
        found[line["system"], line["set"], line["seed"]].append(line[what])
    table: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for (system, name, _), values in sorted(found.items()):
        table[system][name].append(np.mean(values))
    return {system: {name: np.array(row) for name, row in rows.items()} for system, rows in table.items()}


def ranks(means: Array) -> Array:
    """(systems, sets) -> (systems,): average rank over the sets, 1 is best; ties share."""
    above = (means[:, None] < means[None]).sum(1) + ((means[:, None] == means[None]).sum(1) - 1) / 2
    return np.asarray(1 + above.mean(1))


def report(lines: list[Line]) -> str:
    """The results as markdown: ROC-AUC in percent, mean ± standard deviation over seeds."""
    auc, precision = per_set(lines, "auc"), per_set(lines, "ap")
    systems = [system for system in SYSTEMS if system in auc]
    names = [name for name in dict.fromkeys(line["set"] for line in lines) if all(name in auc[s] for s in systems)]
    means = np.array([[auc[system][name].mean() for name in names] for system in systems])
    best = means.max(0)
    rows = [f"| set | {' | '.join(systems)} |", "|---" * (len(systems) + 1) + "|"]
    for j, name in enumerate(names):
        cells = [f"{100 * means[i, j]:.1f} ± {100 * auc[s][name].std():.1f}" for i, s in enumerate(systems)]
        marked = [f"**{cell}**" if means[i, j] == best[j] else cell for i, cell in enumerate(cells)]
        rows.append(f"| {name} | {' | '.join(marked)} |")
    rows.append(f"| mean | {' | '.join(f'{100 * mean:.1f}' for mean in means.mean(1))} |")
    rows.append(f"| average rank | {' | '.join(f'{rank:.2f}' for rank in ranks(means))} |")
    fresh = [j for j, name in enumerate(names) if name not in LOOKED_AT]
    if fresh:
        title = f"average rank, {len(fresh)} sets not looked at"
        rows.append(f"| {title} | {' | '.join(f'{rank:.2f}' for rank in ranks(means[:, fresh]))} |")
    mean_precision = [100 * np.mean([precision[s][name].mean() for name in names]) for s in systems]
    rows.append(f"| average precision | {' | '.join(f'{value:.1f}' for value in mean_precision)} |")
    for what, title in (("fit_s", "fit, seconds"), ("score_s", "score, seconds")):
        times = [np.mean([line[what] for line in lines if line["system"] == s]) for s in systems]
        rows.append(f"| {title} | {' | '.join(f'{value:.2f}' for value in times)} |")
    return "\n".join([*rows, "", *differences(auc, systems, names)])


def differences(auc: dict[str, dict[str, Array]], systems: list[str], names: list[str]) -> list[str]:
    """Each kind of EnergyScorer against the peer with the best average, on the same splits."""
    peers = [system for system in systems if not system.startswith(OURS)]
    if not peers:
        return []
    peer = max(peers, key=lambda s: np.mean([auc[s][name].mean() for name in names]))
    lines = []
    for ours in (system for system in systems if system.startswith(OURS)):
        by_set = np.array([100 * (auc[ours][name] - auc[peer][name]).mean() for name in names])
        wins = int((by_set > 0).sum())
        lines.append(
            f"- {ours} against {peer}, the best peer: {by_set.mean():+.1f} points of ROC-AUC (standard error over sets "
            f"{by_set.std(ddof=1) / len(names) ** 0.5 if len(names) > 1 else float('nan'):.1f}), better on {wins} "
            f"of {len(names)} sets"
        )
    return lines


# --- the run -----------------------------------------------------------------------------------------------------


def run(sets: dict[str, Any], folder: Path, seeds: int, systems: list[str], out: Path) -> list[Line]:
    """Compute what the file lacks, and return the lines of these sets, seeds and systems."""
    tasks = []
    for name, (load, classes) in sets.items():
        try:
            X, Y = load(folder)
        except FileNotFoundError as error:
            print(f"{name} is skipped: {error.filename} is not there; --data or ENERGATE_DATA names its folder")
        else:
            tasks += [(name, label, X, Y[:, label]) for label in classes]
    file, lines = Lines(out, ("set", "class", "seed", "system")), []
    for seed, (name, label, X, normal) in itertools.product(range(seeds), tasks):
        for system in systems:
            lines.append(file.get((name, label, seed, system), partial(measured, X, normal, seed, system)))
        print(f"seed {seed}, {name}, class {label}: done", flush=True)
    return lines


def measured(X: Array, normal: NDArray[np.bool_], seed: int, system: str) -> Line:
    train, test, anomaly = split(X, normal, seed)
    sizes = {"train": train.shape, "test": len(test)}
    return sizes | measure(system, SYSTEMS[system], seed, train, test, anomaly)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("ENERGATE_DATA", "data"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--development", action="store_true", help="the sets that the defaults were chosen on")
    parser.add_argument("--quick", action="store_true", help="iris and wine, one seed")
    parser.add_argument("--out", type=Path, help="the file of JSON lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = DEVELOPMENT if options.development else HEADLINE
    chosen = options.sets or (["iris", "wine"] if options.quick else list(sets))
    unknown = set(chosen) - set(sets)
    if unknown:
        parser.error(f"--sets must be some of {', '.join(sets)}; got {', '.join(sorted(unknown))}")
    out = options.out or (RESULTS.with_stem("one-class-development") if options.development else RESULTS)
    out.parent.mkdir(parents=True, exist_ok=True)
    systems = installed(list(SYSTEMS))
    chosen_sets = {name: sets[name] for name in sets if name in chosen}
    lines = run(chosen_sets, Path(options.data), 1 if options.quick else options.seeds, systems, out)
    print("\n" + report(lines) if lines else "nothing was measured")


if __name__ == "__main__":
    main()
