"""C configurations of a search trained as one program, against the same configurations one by one.

One JSON line per case, on scikit-learn's digits.  ``ratio`` is the time one by one over the time together, the two
measured in turn in this run, the medians of ``--repeats``.  All take the same number of steps: nothing stops early.
``value`` is the mean log-loss of the rows held out, alike for both.

With ``--test N`` it searches instead, with 32 trials of the default space on N splits of digits, and gives log-loss and
error of 719 test rows for the best trial, for trial 0, and for the default estimator, an ensemble of four.

    python benchmarks/search.py [--device cuda] [--configurations 2 8 32] [--epochs 10] [--repeats 3] [--threads 1]
"""

import argparse
import json
import platform
import statistics
import time

import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from energate import EnergyClassifier, search

SPACE = {
    "learning_rate": (1e-3, 1e-2, "log"),
    "fine_tune_learning_rate": (1e-3, 1e-2, "log"),
    "generative_weight": (0.003, 3.0, "log"),
    "noise_level": (0.05, 0.8),
}


def measure(estimator: EnergyClassifier, n_trials: int, n_together: int) -> tuple[float, float]:
    """Seconds of a search, and the mean of its values."""
    X, y = load_digits(return_X_y=True)
    began = time.perf_counter()
    found = search(
        estimator, X, y, SPACE, n_trials=n_trials, n_together=n_together, sampler="random", progress=False
    )  # its values are read back to the CPU, so nothing is left running
    seconds = time.perf_counter() - began
    return seconds, statistics.mean(trial.value for trial in found.trials)


def test_rows(about: dict[str, object], kind: str, seed: int, device: str) -> None:
    """One line: how what a search finds does on rows that it has not seen."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
    estimator = EnergyClassifier(kind, device=device, random_state=seed)
    began = time.perf_counter()
    found = search(estimator, X, y, n_trials=32, progress=False)
    case = about | {"kind": kind, "split": seed, "seconds": round(time.perf_counter() - began, 1)}
    case |= {"best_held_out": round(found.best_value, 4), "first_held_out": round(found.trials[0].value, 4)}
    models = {
        "best": found.best_estimator,
        "first": clone(estimator).set_params(**found.trials[0].params).fit(X, y),
        "default": clone(estimator).fit(X, y),
    }
    for name, model in models.items():
        case[f"{name}_log_loss"] = round(float(log_loss(y_test, model.predict_proba(X_test))), 4)
        case[f"{name}_error"] = round(100 * (1 - float(model.score(X_test, y_test))), 2)
    print(json.dumps(case), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--configurations", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--kinds", nargs="+", default=["mean", "covariance", "mean-covariance"])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10, help="of pretraining, and of fine-tuning")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--test", type=int, default=0, help="splits to search on, instead of the times")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    about = {
        "device": options.device,
        "machine": torch.cuda.get_device_name() if options.device == "cuda" else cpu,
        "torch": torch.__version__,
        "data": "digits",
    }
    if options.test:
        for kind in options.kinds:
            for seed in range(options.test):
                test_rows(about, kind, seed, options.device)
        return
    about |= {"units": options.hidden, "epochs": options.epochs}
    for kind in options.kinds:
        estimator = EnergyClassifier(
            kind,
            n_hidden=options.hidden,
            n_factors=options.hidden,
            pretrain_epochs=options.epochs,
            max_epochs=options.epochs,
            n_iter_no_change=2 * options.epochs,
            device=options.device,
            random_state=0,
        )
        measure(estimator, 1, 1)  # warms up
        for n in options.configurations:
            found: dict[str, list[tuple[float, float]]] = {"together": [], "one_by_one": []}
            for _ in range(options.repeats):
                found["together"].append(measure(estimator, n, n))
                found["one_by_one"].append(measure(estimator, n, 1))
            seconds = {name: statistics.median(run[0] for run in runs) for name, runs in found.items()}
            case: dict[str, object] = {"kind": kind, "configurations": n}
            for name in found:
                case |= {f"{name}_s": round(seconds[name], 3), f"{name}_value": round(found[name][0][1], 4)}
            print(
                json.dumps(about | case | {"ratio": round(seconds["one_by_one"] / seconds["together"], 3)}), flush=True
            )


if __name__ == "__main__":
    main()
