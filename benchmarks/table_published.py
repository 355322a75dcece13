"""Our lines beside a published table of accuracies: a CSV file with a column Dataset and a column for each method.

The file gives one number per set and method, and neither rows nor splits.  What it lets one see: on the sets below, the
accuracies of its first two methods are whole numbers of hits in a fifth of the rows, those of most others are not.  So
the test part seems to be one fifth, the same for all, and most numbers means of several runs on it.  `HOW` says how
ours differ.
"""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

Line = dict[str, Any]

#: table here -> its name in the file, and the rows that the whole table has.  By name, and only where both of the first
#: two accuracies fit the number of rows (`fits`).  Two of the same name are other data: "wine", whose accuracies are no
#: parts of 36 rows, of 178; and "segment", whose rows fit, but whose forests have 8 % of errors there and 2 % here,
#: so that its columns must be others.
SAME = {
    "cmc": ("cmc", 1473),
    "diabetes": ("Pima_Indians_Diabetes_Database", 768),
    "kr.vs.kp": ("kr-vs-kp", 3196),
    "optdigits": ("optdigits", 5620),
    "pendigits": ("pendigits", 10992),
    "spambase": ("spambase", 4601),
    "vehicle": ("vehicle", 846),
}
HOW = (
    "Here every row is tested once: means over five folds, of at most 4,000 rows, every system with its defaults. "
    "There, as far as the file shows, one test part of a fifth of all rows, and means of several runs; it does not say "
    "whether the methods were tuned."
)


def read_published(path: Path) -> dict[str, dict[str, float]]:
    """Set -> method -> accuracy."""
    with path.open(newline="") as file:
        return {row.pop("Dataset"): {name: float(cell) for name, cell in row.items()} for row in csv.DictReader(file)}


def fits(accuracy: float, n_rows: int) -> bool:
    """Whether four digits of accuracy may be a whole number of hits in a fifth of the rows."""
    n_test = math.ceil(n_rows / 5)
    return abs(accuracy * n_test - round(accuracy * n_test)) <= 5e-5 * n_test + 1e-9


def beside(lines: list[Line], path: Path) -> str:
    """Accuracies in %, ours and those of the peers that were run, then the published ones; Markdown."""
    published = read_published(path)
    systems = list(dict.fromkeys(line["system"] for line in lines))
    methods = list(next(iter(published.values())))
    text = [
        f"Accuracy % on the sets that are also in {path.name}: measured here, and published:",
        "",
        f"| set | {' | '.join(systems)} | | {' | '.join(methods)} |",
        "|---" * (len(systems) + len(methods) + 2) + "|",
    ]
    for name, (there, _) in SAME.items():
        accuracies = []
        for system in systems:
            errors = [line["error"] for line in lines if (line["set"], line["system"]) == (name, system)]
            accuracies.append(f"{100 - np.mean(errors):.1f}" if errors else "-")
        figures = [f"{100 * published[there][method]:.1f}" for method in methods]
        text.append(f"| {name} | {' | '.join(accuracies)} | | {' | '.join(figures)} |")
    return "\n".join([*text, "", HOW])
