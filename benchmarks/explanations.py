"""Do explanations mean something?  For every kind of units, on rows held out, with default settings.

Measured by `energate.views.measure_meaning`: the share of rows that their predicted class changes least, the share of
reconstructions within the data's range (and a spread of the column beyond it), and the share of trajectories that come
to rest there.  Beside them the error, which `explainable=True` pays with.  One JSON line per table, seed and kind;
finished lines are skipped.  The summary is made from the lines alone.

    python benchmarks/explanations.py [--tables digits,wine] [--kinds trunk,memory] [--seeds 3] [--minutes 8]
    python benchmarks/explanations.py --summary

digits and wine are scikit-learn's, passengers is generated here (categories, missing cells, a long tail), the others
are in the folder that ENERGATE_DATA names.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split
from table_data import folder_of_tables, load
from tabular import read

from energate import EnergyClassifier, EnergyScorer, __version__
from energate.views import measure_meaning

OUT = Path(__file__).parent / "results" / "explanations.jsonl"
TEST = 0.3
Line = dict[str, Any]


def passengers(n_rows: int = 900, seed: int = 0) -> tuple[Any, Any]:
    """People on a ship: ages with holes, fares with a long tail, categories; who is rescued follows from some of it."""
    random = np.random.default_rng(seed)
    level, female = random.choice([1, 2, 3], n_rows, p=[0.25, 0.2, 0.55]), random.random(n_rows) < 0.35
    age = np.clip(random.normal(38 - 5 * level, 13), 0.5, 80)
    fare = np.exp(random.normal(5.2 - level, 0.6))
    odds = 2.4 * female - 0.9 * (level - 2) - 0.03 * (age - 30) - 0.8
    rescued = random.random(n_rows) < 1 / (1 + np.exp(-odds))
    age[random.random(n_rows) < 0.2] = np.nan
    frame = pd.DataFrame({"age": age, "fare": fare, "relatives": random.poisson(0.8, n_rows).astype(float)})
    frame["level"] = pd.Categorical(level.astype(str))
    frame["sex"] = pd.Categorical(np.where(female, "female", "male"))
    frame["port"] = pd.Categorical(random.choice(["C", "Q", "S"], n_rows, p=[0.2, 0.1, 0.7]))
    return frame, rescued.astype(int)


def _of_folder(name: str) -> tuple[Any, Any]:
    table = load(folder_of_tables() / f"{name}.arff")
    return table.frame, table.y


TABLES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "digits": partial(load_digits, return_X_y=True),
    "wine": partial(load_wine, return_X_y=True),
    "passengers": passengers,
    **{name: partial(_of_folder, name) for name in ("segment", "credit.a", "vehicle", "cmc", "ionosphere")},
}
PAPER = ("mean", "covariance", "mean-covariance")
#: an estimator, which gets its ``random_state``
KINDS: dict[str, Callable[..., Any]] = {
    **{units: partial(EnergyClassifier, units) for units in ("trunk", "memory", *PAPER)},
    **{f"{units}, explainable": partial(EnergyClassifier, units, explainable=True) for units in PAPER},
    "scorer: memory": EnergyScorer,
    "scorer: mean": partial(EnergyScorer, "mean"),
}


def run(table: str, seed: int, kind: str) -> Line:
    X, y = TABLES[table]()
    if kind.startswith("scorer"):  # which takes numbers alone
        X = X if isinstance(X, np.ndarray) else X.select_dtypes("number").dropna(axis=1).to_numpy()
    train, test = train_test_split(np.arange(len(y)), test_size=TEST, random_state=seed, stratify=y)
    rows = X.iloc if isinstance(X, pd.DataFrame) else X
    began = time.process_time()
    model = KINDS[kind](random_state=seed).fit(rows[train], y[train])
    fitted = time.process_time()
    found = measure_meaning(model, rows[test])
    line = {"table": table, "seed": seed, "kind": kind, "version": __version__, **found.to_json()}
    line |= {"fit_cpu_s": fitted - began, "measure_cpu_s": time.process_time() - fitted}
    return line if kind.startswith("scorer") else {**line, "error": 100 * (1 - model.score(rows[test], y[test]))}


def summary(lines: list[Line]) -> str:
    """Markdown: by kind, the mean over tables, and in brackets the lowest and highest line; then a table for each."""
    last = list({(line["table"], line["seed"], line["kind"]): line for line in lines}.values())
    head = ("", "least changed %", "inside %", "ended %", "error %", "warned of", "lines")
    text = ["| " + " | ".join(head) + " |", "|---|" + "---|" * (len(head) - 1)]
    for kind in KINDS:
        those = [line for line in last if line["kind"] == kind]
        if those:
            cells = [_range(those, name) for name in ("least_changed", "inside", "ended", "error")]
            warned = sum(line["warning"] is not None for line in those)
            text.append("| " + " | ".join([kind, *cells, f"{warned}", f"{len(those)}"]) + " |")
    text += ["", "Least changed, by table (chance in brackets):", ""]
    kinds = [kind for kind in KINDS if any(line["kind"] == kind for line in last) and not kind.startswith("scorer")]
    text += ["| | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for table in TABLES:
        those = [line for line in last if line["table"] == table and line["least_changed"] is not None]
        if those:
            cells = [_range([line for line in those if line["kind"] == kind], "least_changed") for kind in kinds]
            text.append(f"| {table} ({those[0]['chance']:.0f}) | " + " | ".join(cells) + " |")
    return "\n".join(text)


def _range(lines: list[Line], name: str) -> str:
    found = [line[name] for line in lines if line.get(name) is not None]
    return f"{np.mean(found):.0f} ({min(found):.0f} to {max(found):.0f})" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--kinds", default=";".join(KINDS), help="with semicolons between")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--summary", action="store_true", help="only summarise")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {(line["table"], line["seed"], line["kind"]) for line in read(options.out)}
    until = 0.0 if options.summary else time.time() + 60 * options.minutes
    tables, kinds = options.tables.split(","), options.kinds.split(";")
    for task in [(table, seed, kind) for seed in range(options.seeds) for table in tables for kind in kinds]:
        if task in done or time.time() > until:
            continue
        try:
            line = run(*task)
        except FileNotFoundError as error:
            print(f"skipped {task[0]}: {error}")
            continue
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(*task, {name: line[name] for name in ("least_changed", "inside", "ended")}, flush=True)
    print(summary(read(options.out)))


if __name__ == "__main__":
    main()
