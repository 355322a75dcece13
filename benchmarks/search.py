"""C configurations of a search trained as one program, against the same configurations one by one.

One JSON line per case, on scikit-learn's digits.  ``ratio`` is the time one by one over the time together, the two
measured in turn in this run, the medians of ``--repeats``.  All take the same number of steps: nothing stops early.
``value`` is the mean log-loss of the rows held out, alike for both.

    python benchmarks/search.py [--device cuda] [--configurations 2 8 32] [--epochs 10] [--repeats 3] [--threads 1]
"""

import argparse
import json
import platform
import statistics
import time

import torch
from sklearn.datasets import load_digits

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--configurations", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--kinds", nargs="+", default=["mean", "covariance", "mean-covariance"])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10, help="of pretraining, and of fine-tuning")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    about = {
        "device": options.device,
        "machine": torch.cuda.get_device_name() if options.device == "cuda" else cpu,
        "torch": torch.__version__,
        "data": "digits",
        "units": options.hidden,
        "epochs": options.epochs,
    }
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
