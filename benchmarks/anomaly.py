"""EnergyScorer beside other anomaly detectors on 22 sets of ADBench, in two settings: JSON lines, a table, a picture.

python benchmarks/anomaly.py [--data FOLDER] [--half development] [--seeds 5] [--sets 45_wine] [--systems kNN] [--quick]
python benchmarks/anomaly.py --published ../shared/published/anomaly_oneclass_auroc.csv

*clean*: half of the normal rows are for `fit`; the others and all anomalies are the test.  *mixed*: 70 % of all rows,
anomalies among them, are for `fit`; the others are the test.  Every system has its defaults and the same rows; those
that do not scale columns by themselves get them standardised.  ``--data``, or else the environment variable
ENERGATE_DATA, is the folder with anomaly/*.npz (X, and y with 1 for anomalies).  Lines that the file already holds are
not computed again.  The peers of PyOD take ``pip install -r benchmarks/peers.txt``.

The defaults of EnergyScorer were chosen on one half of the sets, every second of their sorted names (``--half
development``), and on ``--half tables``.  The other half, ``--half held-out``, played no part.  34_smtp has one
anomaly, and is for speed only.

``--half tables``: classification tables (tables/*.arff of the same folder) in which rare classes are the anomalies, one
or two for each, of all rows at most 2,500 normal ones; the anomalies are a twelfth of these at most.

``--published`` ranks it among the 26 detectors of a published table, on the sets that both have whole (1,000 to 9,999
rows): with the first half of the normal rows for `fit`, as there, and with a random half.
"""

import argparse
import csv
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detectors import OURS, PEERS, Array, Build, Line, Lines, installed, measure, scorer
from scipy.stats import rankdata, studentized_range

from energate.tables import learn_columns, open_table
from energate.tables.values import is_text

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "anomaly.jsonl"
PICTURE = HERE.parent / "docs" / "images" / "anomaly-ranks.png"
SETTINGS = ("clean", "mixed")
SYSTEMS: dict[str, Build] = {
    OURS: scorer(),
    f"{OURS} mean-covariance": scorer(units="mean-covariance"),
    **PEERS,
}
NAMES = (
    "11_donors", "14_glass", "16_http", "18_Ionosphere", "1_ALOI", "20_letter", "22_magic.gamma", "24_mnist",
    "26_optdigits", "28_pendigits", "30_satellite", "32_shuttle", "37_Stamps", "39_vertebral", "41_Waveform", "43_WDBC",
    "45_wine", "47_yeast", "4_breastw", "6_cardio", "8_celeba",
)  # fmt: skip
HALVES = {"development": NAMES[::2], "held-out": NAMES[1::2], "both": NAMES}


def rare_classes(folder: Path) -> dict[str, tuple[Array, Array]]:
    """Tables whose rarest classes, one at a time, are the anomalies: (X, y) by name."""
    found = {}
    for path in sorted((folder / "tables").glob("*.arff")):
        table = open_table(path).read()
        target = next((name for name in ("class", "binaryClass") if name in table), list(table)[-1])
        labels = np.array([str(label) for label in table[target]])
        kinds, counts = np.unique(labels, return_counts=True)
        kinds = kinds[np.argsort(counts, kind="stable")][np.sort(counts) >= 10]
        names = [name for name in table if len({str(cell) for cell in table[name]}) > 100 and is_text(table[name])]
        X = learn_columns(table, task="anomaly", targets=[target], drop=names)[0].matrix(table)
        for number, kind in enumerate(kinds[: 2 if len(kinds) > 2 else 1]):
            rng = np.random.default_rng(number)
            normal = rng.permutation(np.flatnonzero(np.isin(labels, kinds) & (labels != kind)))[:2500]
            rare = rng.permutation(np.flatnonzero(labels == kind))[: max(10, len(normal) // 12)]
            y = np.repeat([0, 1], [len(normal), len(rare)])
            found[f"{path.stem}, {kind}"] = X[np.r_[normal, rare]], y
    return found


def load(folder: Path, name: str) -> tuple[Array, Array]:
    with np.load(folder / "anomaly" / f"{name}.npz", allow_pickle=False) as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def split(X: Array, y: Array, setting: str, seed: int | None) -> tuple[Array, Array, Array]:
    """Rows for `fit`, rows for the test, and which of these are anomalies; without a seed in the order of the file."""
    rng = np.random.default_rng(seed)
    order = np.arange(len(X)) if seed is None else rng.permutation(len(X))
    if setting == "clean":
        inside, outside = order[y[order] == 0], order[y[order] == 1]
        half = len(inside) // 2
        train, test = inside[:half], np.r_[inside[half:], outside]
    else:
        train, test = np.split(order, [int(0.7 * len(X))])
    return X[train], X[test], y[test]


# --- the table -----------------------------------------------------------------------------------------------------


def means(lines: Iterable[Line], what: str) -> tuple[list[str], list[str], Array]:
    """Systems, sets, and (systems, sets): averages over the seeds, of the sets that every system has."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        found[line["system"], line["set"]].append(line[what])
    systems = [system for system in SYSTEMS if any(key[0] == system for key in found)]
    names = [name for name in dict.fromkeys(key[1] for key in found) if all((s, name) in found for s in systems)]
    return systems, names, np.array([[np.mean(found[system, name]) for name in names] for system in systems])


def average_ranks(values: Array) -> Array:
    """(systems, sets) -> (systems,): 1 is best; ties share."""
    return np.asarray(rankdata(-values, axis=0).mean(1))


def critical_difference(n_systems: int, n_sets: int, alpha: float = 0.05) -> float:
    """Of average ranks, by the test of Nemenyi: two systems that differ by less are not told apart by these sets."""
    q = studentized_range.ppf(1 - alpha, n_systems, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(n_systems * (n_systems + 1) / (6 * n_sets)))


def report(lines: list[Line], setting: str) -> str:
    """One setting as markdown: mean ROC-AUC and average precision in percent, average ranks, seconds."""
    lines = [line for line in lines if line["setting"] == setting]
    systems, names, auc = means(lines, "auc")
    if not names:
        return f"{setting}: there is no set that every system has\n"
    precision = means(lines, "ap")[2]
    times = [means(lines, what)[2].mean(1) for what in ("fit_s", "score_s")]
    ranks = average_ranks(auc), average_ranks(precision)
    n_seeds = len({line["seed"] for line in lines})
    difference = critical_difference(len(systems), len(names))
    rows = [
        f"{setting}, {len(names)} sets, {n_seeds} seeds (critical difference of ranks {difference:.2f}):",
        "",
        "| system | ROC-AUC | average precision | rank, AUC | rank, precision | fit, s | score, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for i in np.argsort(ranks[0], kind="stable"):
        numbers = [100 * auc[i].mean(), 100 * precision[i].mean()]
        cells = [f"{n:.1f}" for n in numbers] + [f"{rank[i]:.2f}" for rank in ranks] + [f"{t[i]:.2f}" for t in times]
        rows.append(f"| {systems[i]} | {' | '.join(cells)} |")
    rows += ["", "| set | " + " | ".join(systems) + " |", "|---" * (len(systems) + 1) + "|"]
    for j, name in enumerate(names):
        rows.append(f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in auc[:, j]) + " |")
    return "\n".join([*rows, ""])


def draw(lines: list[Line], path: Path) -> None:
    """Average ranks on an axis, for each setting; a bar joins systems that the sets do not tell apart."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(SETTINGS), 1, figsize=(9, 6.4))
    for ax, setting in zip(axes, SETTINGS, strict=True):
        systems, names, auc = means((line for line in lines if line["setting"] == setting), "auc")
        ranks = average_ranks(auc)
        order, n = np.argsort(ranks), len(systems)
        difference = critical_difference(n, len(names))
        ax.hlines(0, 1, n, color="black", linewidth=1)
        ax.set(xlim=(0.2, n + 0.8), ylim=(-(n + 1) // 2 - 1.2, 2.2), yticks=[])
        ax.set_title(f"{setting}: average rank of {n} over {len(names)} sets", fontsize=10)
        ax.spines[:].set_visible(False)
        ax.xaxis.tick_top()
        ax.set_xticks(range(1, n + 1))
        for place, i in enumerate(order):
            left = place < (n + 1) // 2
            level, side = (place, 0.9) if left else (n - 1 - place, n + 0.1)
            colour = "tab:red" if systems[i] == OURS else "black"
            ax.plot([ranks[i], ranks[i], side], [0, -1 - level, -1 - level], color=colour, linewidth=0.8)
            ax.text(side, -1 - level, f"{systems[i]} ({ranks[i]:.1f})", ha="right" if left else "left", va="center",
                    fontsize=8, color=colour)  # fmt: skip
        ax.plot([1, 1 + difference], [1.6, 1.6], color="black", linewidth=2)
        ax.text(1 + difference + 0.1, 1.6, f"critical difference {difference:.1f}", va="center", fontsize=8)
        ax.plot([ranks.min(), ranks.min() + difference], [0.5, 0.5], color="tab:red", linewidth=3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


# --- beside a published table ----------------------------------------------------------------------------------------


def beside(table: Path, folder: Path, seeds: int) -> str:
    """The place of the scorer, and of our kNN as a check, among the detectors of a published table of ROC-AUC."""
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    published = {row["Dataset"]: [float(value) for name, value in row.items() if name != "Dataset"] for row in rows}
    knn = {row["Dataset"]: float(row["KNN"]) for row in rows}
    names = []
    for name in NAMES:
        X, _ = load(folder, name)
        if 1000 <= len(X) < 10_000 and name.split("_", 1)[1].lower() in published:
            names.append(name)
    text = [
        "| set | published kNN | kNN, same split | EnergyScorer, same split | place of 27 | shuffled | place of 27 |",
        "|---|---|---|---|---|---|---|",
    ]
    found: dict[str, list[Any]] = {"same": [], "shuffled": []}
    for name in names:
        X, y = load(folder, name)
        key = name.split("_", 1)[1].lower()

        def auc(system: str, seed: int | None, X: Array = X, y: Array = y) -> float:
            return 100 * float(measure(system, SYSTEMS[system], seed or 0, *split(X, y, "clean", seed))["auc"])

        ours = {"same": auc(OURS, None), "shuffled": float(np.mean([auc(OURS, seed) for seed in range(seeds)]))}
        check = auc("kNN", None)
        for how, value in ours.items():
            found[how].append([value, *published[key]])
        places = {how: rankdata(-np.array(values[-1]))[0] for how, values in found.items()}
        text.append(
            f"| {key} | {knn[key]:.1f} | {check:.1f} | {ours['same']:.1f} | {places['same']:g} | "
            f"{ours['shuffled']:.1f} | {places['shuffled']:g} |"
        )
    for how, values in found.items():
        ranks = rankdata(-np.array(values), axis=1).mean(0)
        place = rankdata(ranks)[0]
        text.append(f"\n{how}: average rank {ranks[0]:.2f}, place {place:g} of 27; best other {ranks[1:].min():.2f}")
    return "\n".join(text)


# --- the run ---------------------------------------------------------------------------------------------------------


def run(sets: dict[str, tuple[Array, Array]], seeds: int, systems: list[str], out: Path) -> list[Line]:
    """Compute what the file lacks, and return the lines of these sets, seeds and systems."""
    file, lines = Lines(out, ("set", "setting", "seed", "system")), []
    warm = np.random.default_rng(0).normal(size=(200, 3))
    for system in systems:  # what is compiled or imported on the first call is not the time of a fit
        measure(system, SYSTEMS[system], 0, warm, warm, np.arange(200) % 2)
    for seed, (name, (X, y)) in itertools.product(range(seeds), sets.items()):
        for setting, system in itertools.product(SETTINGS, systems):
            lines.append(file.get((name, setting, seed, system), partial(measured, X, y, setting, seed, system)))
        print(f"seed {seed}, {name}: done", flush=True)
    return lines


def measured(X: Array, y: Array, setting: str, seed: int, system: str) -> Line:
    train, test, anomaly = split(X, y, setting, seed)
    sizes = {"train": train.shape, "test": len(test)}
    return sizes | measure(system, SYSTEMS[system], seed, train, test, anomaly)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("ENERGATE_DATA", "data"))
    parser.add_argument("--half", choices=[*HALVES, "tables"], default="both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=NAMES, metavar="SET")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--quick", action="store_true", help="wine and glass, one seed")
    parser.add_argument("--published", type=Path, help="a table of published ROC-AUC to rank in")
    parser.add_argument("--out", type=Path, help="the file of JSON lines")
    parser.add_argument("--picture", type=Path, nargs="?", const=PICTURE, help="draw the average ranks")
    options = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    folder = Path(options.data)
    if not (folder / "anomaly").is_dir():
        parser.error(f"{folder / 'anomaly'} is not there; --data or ENERGATE_DATA names its folder")
    if options.published:
        print(beside(options.published, folder, options.seeds))
        return
    names = options.sets or (["45_wine", "14_glass"] if options.quick else HALVES.get(options.half, ()))
    systems = installed(options.systems or list(SYSTEMS))
    out = options.out or (RESULTS.with_stem("anomaly-tables") if options.half == "tables" else RESULTS)
    sets = rare_classes(folder) if options.half == "tables" else {name: load(folder, name) for name in names}
    lines = run(sets, 1 if options.quick else options.seeds, systems, out)
    print("\n" + "\n".join(report(lines, setting) for setting in SETTINGS))
    if options.picture:
        draw(lines, options.picture)
        print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
