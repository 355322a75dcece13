"""Steps, rates and batches of a trunk's training beside those of the default, paired, on the development tables.

Five folds of `table_data` (of the three largest tables two), the same rows and seeds for every way.  One JSON line a
fit; finished ones are skipped.  At the end the differences to `BASE` with their standard errors over folds and seeds,
every table counting alike.  ENERGATE_DATA names the folder that holds tables/*.arff; only the development half is read.

    python benchmarks/steps.py [--seeds 2] [--ways all] [--out benchmarks/results/steps.jsonl] [--summary]
"""

import argparse
import json
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from table_data import DEVELOPMENT, folder_of_tables, load

from energate import EnergyClassifier
from energate.estimators import kinds
from energate.training import steps, trunk

OUT = Path(__file__).parent / "results" / "steps.jsonl"
LARGEST = ("optdigits", "kr.vs.kp", "segment")
BASE = "steps=400,rate=0.004"
#: steps at least, learning rate, beta2 of Adam, one batch in how many is denoised, rows in a batch of small tables
WAYS = (
    BASE, "steps=300,rate=0.004", "steps=200,rate=0.004", "steps=200,rate=0.004,beta2=0.95", "steps=300,rate=0.006",
    "steps=200,rate=0.006", "steps=200,rate=0.008", "steps=200,rate=0.01", "steps=250,rate=0.008",
    "steps=400,rate=0.004,denoised=8", "steps=400,rate=0.004,batch=64", "steps=400,rate=0.004,batch=64,denoised=8",
    "steps=300,rate=0.005,batch=64", "steps=300,rate=0.006,batch=64", "steps=250,rate=0.008,batch=64",
)  # fmt: skip


def set_way(way: str) -> None:
    """In this process: the rules of the default, as a way has them."""
    asked = {name: float(value) for name, value in (each.split("=") for each in way.split(","))}
    kinds.STEPS, kinds.Trunk.auto["learning_rate"] = int(asked["steps"]), asked["rate"]
    steps.ADAM["beta2"] = asked.get("beta2", 0.999)
    trunk.DENOISED = int(asked.get("denoised", 4))
    rows = int(asked.get("batch", 128))
    kinds.BATCHES = ((1_000, rows), (10_000, 2 * rows), *kinds.BATCHES[2:])


def cells_of(column: Any) -> Any:
    """Numbers, or those of categories; NaN where a cell is missing."""
    return column.cat.codes.replace(-1, np.nan) if column.dtype == "category" else column


def one(way: str, name: str, fold: int, seed: int) -> dict[str, Any]:
    table = load(folder_of_tables() / f"{name}.arff")
    train, test = table.split(fold, 5)
    X = np.column_stack([cells_of(table.frame[column]) for column in table.frame])
    categories = np.isin(table.frame.columns, table.categories)
    set_way(way)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = EnergyClassifier(
            random_state=seed, device="cpu", categorical_features=categories if categories.any() else None
        ).fit(X[train], table.y[train])
    p, y = model.predict_proba(X[test]), table.y[test]
    log_loss = -np.log(np.clip(p[np.arange(len(y)), y].astype(float), 1e-15, 1)).mean()
    error = float((p.argmax(1) != y).mean())
    return {"way": way, "set": name, "fold": fold, "seed": seed, "error": error, "log_loss": float(log_loss)}


def summary(lines: list[dict[str, Any]]) -> None:
    by = {(line["way"], line["set"], line["fold"], line["seed"]): (line["error"], line["log_loss"]) for line in lines}
    print("way: fits, error in points and log-loss more than those of the base, with standard errors")
    for way in dict.fromkeys(line["way"] for line in lines):
        sets = defaultdict(list)
        for (other, *rest), values in by.items():
            if other == way and (BASE, *rest) in by:
                sets[rest[0]].append(np.subtract(values, by[BASE, *rest]))
        n_fits, found = sum(map(len, sets.values())), list(sets.values())
        mean = np.mean([np.mean(each, 0) for each in found], 0)
        spread = np.sqrt(np.sum([np.var(each, axis=0, ddof=1) / len(each) for each in found], 0)) / len(found)
        print(
            f"{way}: {n_fits} of {len(sets)} tables, {100 * mean[0]:+.2f} ± {100 * spread[0]:.2f}, "
            f"{mean[1]:+.4f} ± {spread[1]:.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ways", default="all", help="of WAYS, with semicolons between")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--summary", action="store_true", help="only of the lines that are there")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.out.read_text("utf-8").splitlines()] if options.out.exists() else []
    done = {(line["way"], line["set"], line["fold"], line["seed"]) for line in lines}
    ways = WAYS if options.ways == "all" else options.ways.split(";")
    folds = [(name, fold) for name in DEVELOPMENT for fold in range(2 if name in LARGEST else 5)]
    tasks = [(way, *fold, seed) for seed in range(options.seeds) for way in ways for fold in folds]
    for task in [] if options.summary else [task for task in tasks if task not in done]:
        lines.append(one(*task))
        print(json.dumps(lines[-1]), flush=True)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    summary(lines)


if __name__ == "__main__":
    main()
