"""The example of the first pages, over seeds: digits 0 to 8 are learned, and nines are to be turned away.

The split and the model have the seed.  One line for each kind of units: the accuracy on known digits, and the shares of
known digits and of nines that `rejects(rate=0.05)` turns away, as median and range over seeds.

    python benchmarks/nines.py [--seeds 6] [--kinds "memory;mean"]
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from energate import EnergyClassifier

KINDS: dict[str, Callable[..., Any]] = {
    "memory": partial(EnergyClassifier, "memory"),
    "trunk": EnergyClassifier,
    "mean": partial(EnergyClassifier, "mean"),
    "mean, explainable": partial(EnergyClassifier, "mean", explainable=True),
}


def run(kind: str, seed: int) -> dict[str, float]:
    X, y = load_digits(return_X_y=True)
    known, nines = X[y != 9], X[y == 9]
    train, test, y_train, y_test = train_test_split(known, y[y != 9], random_state=seed)
    model = KINDS[kind](random_state=seed).fit(train, y_train)
    turned_away = {"known": model.rejects(test, rate=0.05).mean(), "nines": model.rejects(nines, rate=0.05).mean()}
    return {"accuracy": 100 * model.score(test, y_test), **{name: 100 * share for name, share in turned_away.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--kinds", default=";".join(KINDS), help="with semicolons between")
    options = parser.parse_args()
    for kind in options.kinds.split(";"):
        found = [run(kind, seed) for seed in range(options.seeds)]
        told = {
            name: [round(float(each([line[name] for line in found])), 1) for each in (np.median, min, max)]
            for name in found[0]
        }
        print(json.dumps({"kind": kind, "seeds": options.seeds, "median, lowest, highest, %": told}), flush=True)


if __name__ == "__main__":
    main()
