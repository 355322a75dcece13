"""Estimators as they come, on tables of sizes and numbers at the edge: a fit with finite answers, or a clear refusal.

Every fit is a process of its own with one thread, a limit of memory, and a clock that counts its seconds of the
processor.  Then the same fit again, and with two threads and three: are the answers the same bits?  And `predict` from
eight threads at once beside one.  (The file is not called `numbers.py`: beside a script of this folder that would be
the module `numbers` of Python.)

Each fit adds a line to a file.  A run goes on where another one was stopped, unless it is `--fresh`; lines of a chosen
`--only` or `--tables` are made anew if they are taken out of the file.

    python benchmarks/chaos/fits.py [--fresh] [--only NAME ...] [--tables NAME ...] [--seconds 600] [--memory-gb 6]
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _breaking import RESULTS, tell
from numpy.typing import NDArray

Array = NDArray[Any]
N_AT_ONCE, ROUNDING = 8, 1e-6  # threads, and how far apart their answers may be, as a share of the largest
LINES = RESULTS.with_name("fits.jsonl")
PATIENCE = 6.0  # seconds of the day for one of the processor, which other work may have


def _rows(n_rows: int, n_columns: int, n_classes: int = 2) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    y = np.arange(n_rows) % n_classes
    centres = rng.normal(size=(n_classes, n_columns))
    return centres[y] + 0.5 * rng.normal(size=(n_rows, n_columns)), y


def _times(factor: Any) -> tuple[Array, Array]:
    X, y = _rows(80, 4)
    return X * factor, y


def _constant() -> tuple[Array, Array]:
    X, y = _rows(80, 4)
    X[:, 1], X[:, 3] = 7.0, -1e30
    return X, y


#: rows and classes
TABLES: dict[str, Callable[[], tuple[Array, Array]]] = {
    "1,000 classes": lambda: _rows(3000, 10, 1000),
    "50,000 columns": lambda: _rows(60, 50_000),
    "1,000 classes of 1 row, 20,000 columns": lambda: _rows(1000, 20_000, 1000),
    "one row a class": lambda: _rows(40, 4, 40),
    "1e30": lambda: _times(1e30),
    "1e-30": lambda: _times(1e-30),
    "mixed scales": lambda: _times([1e30, 1e-30, 1.0, 1e12]),
    "constant columns": _constant,
}
#: of these fits are as they come; of others, which are about numbers, training is short
LARGE = list(TABLES)[:4]
CLASSIFIERS = ("trunk", "memory", "mean", "covariance", "mean-covariance")
SCORERS = ("memory", "mean", "covariance", "mean-covariance")
ESTIMATORS = [
    *(f"EnergyClassifier {units}" for units in CLASSIFIERS),
    *(f"EnergyScorer {units}" for units in SCORERS),
    "ImageEnergyClassifier",
    *(f"PairScorer {relation}" for relation in ("conditional", "symmetric")),
    "LabelMLP",
    *(f"EnergyRefiner {relation}" for relation in ("yy", "xy")),
    "EnergyImputer",
]


def build(name: str, **options: Any) -> Any:
    """An estimator with its defaults."""
    import energate
    from energate.estimators.imputer import EnergyImputer

    kind, _, first = name.partition(" ")
    given: dict[str, Any] = {"random_state": 0, "device": "cpu", **options}
    if kind == "EnergyRefiner":
        return energate.EnergyRefiner(relation=first, **given)
    found = EnergyImputer if kind == "EnergyImputer" else getattr(energate, kind)
    return found(*([first] if first else []), **given)


def fit(name: str, X: Array, y: Array, **options: Any) -> Any:
    """Fitted to rows: classes as they are, as labels where there are several, or rows paired with themselves."""
    kind = name.partition(" ")[0]
    estimator = build(name, **options)
    if kind in ("LabelMLP", "EnergyRefiner"):
        most = min(int(y.max()) + 1, 1000)
        return estimator.fit(X, (y[:, None] % most == np.arange(most)).astype(int))
    if kind == "PairScorer":
        return estimator.fit(X, X)
    if kind == "EnergyImputer":
        X = X.copy()
        X[::7, 0] = np.nan
    return estimator.fit(X, y) if kind.endswith("Classifier") else estimator.fit(X)


def answers(name: str, fitted: Any, X: Array) -> Array:
    """What a fitted estimator says of rows, as numbers."""
    kind = name.partition(" ")[0]
    if kind == "PairScorer":
        return fitted.score_pairs(X, X)
    if kind == "EnergyImputer":
        holes = X.copy()
        holes[:, 0] = np.nan
        return fitted.transform(holes)
    return fitted.score_samples(X) if kind == "EnergyScorer" else fitted.predict_proba(X)


def work(name: str, table: str, options: dict[str, Any], n_threads: int, memory: int) -> dict[str, Any]:
    """One fit in this process, and how it ends."""
    import torch

    from energate.errors import InputError

    torch.set_num_threads(n_threads)
    warnings.simplefilter("ignore")
    X, y = TABLES[table]() if table in TABLES else _rows(*json.loads(table))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.RLIM_INFINITY))
    began = time.process_time()
    try:
        fitted = fit(name, X, y, **options)
        took = time.process_time() - began
        found = answers(name, fitted, X[:1000])
    except InputError as error:
        return {"ended": "refused", "seconds": time.process_time() - began, "message": str(error)}
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__
        return {"ended": "BROKEN", "seconds": time.process_time() - began, "message": said}
    finite = bool(np.isfinite(found).all())
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        together = list(pool.map(lambda _: answers(name, fitted, X[:1000]), range(N_AT_ONCE)))
    spread = float(np.abs(found).max()) or 1.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    apart = max(float(np.abs(each - found).max()) for each in together) / spread
    return {
        "ended": "fitted" if finite else "BROKEN",
        "seconds": took,
        "message": "" if finite else "answers are not finite",
        "sha256": hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest(),
        "apart": apart,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": used.ru_maxrss // 1024,
    }


def in_a_process(
    name: str, table: str, options: dict[str, Any], n_threads: int, seconds: float, memory: int
) -> dict[str, Any]:
    """The same in another process, which is ended when its time is over."""
    command = [sys.executable, __file__, "--work", name, table, json.dumps(options), str(n_threads), str(memory)]
    settings = {**os.environ, "OMP_NUM_THREADS": str(n_threads), "OMP_WAIT_POLICY": "PASSIVE"}

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))

    how: dict[str, Any] = {"capture_output": True, "env": settings, "timeout": PATIENCE * seconds}
    try:
        done = subprocess.run(command, check=False, preexec_fn=limited, **how)
    except subprocess.TimeoutExpired:
        return {"ended": "BROKEN", "seconds": seconds, "message": "it takes longer"}
    if done.returncode == -signal.SIGXCPU:
        return {"ended": "BROKEN", "seconds": seconds, "message": "it takes longer"}
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {"ended": "BROKEN", "seconds": 0.0, "message": f"exit code {done.returncode}: {said}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


#: enough numbers that torch's threads share them; of large work alone (see estimators/threads.py)
SHARED = json.dumps([2000, 520, 3])
LESS: dict[str, Any] = {"max_epochs": 3}


def less_of(name: str) -> dict[str, Any]:
    """Options that make a fit short."""
    units = name.partition(" ")[2]
    if name.startswith("EnergyRefiner"):
        return {"max_epochs": 3, "cv": 2}
    return {} if units == "memory" or name == "EnergyImputer" else LESS


class Lines:
    """Fits that are done, a line of a file for each: what is there is not done again."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        there = "" if fresh or not path.exists() else path.read_text()
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in there.splitlines()]
        path.write_text(there)

    def __call__(self, name: str, table: str, n_threads: int, run: int, fit: Callable[[], Any]) -> dict[str, Any]:
        """The line of a fit, which is done if it is not there."""
        key = {"estimator": name, "table": table, "threads": n_threads, "run": run}
        found = next((line for line in self.lines if key.items() <= line.items()), None)
        if found is None:
            found = {**key, **fit()}
            found["seconds"] = round(found["seconds"], 1)
            self.lines.append(found)
            with self.path.open("a") as file:
                file.write(json.dumps(found) + "\n")
        print(f"{name} | {table} | {found['ended']} | {found['seconds']} s | {found['message']}", flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="begin anew: forget the lines that are there")
    parser.add_argument("--only", nargs="*", default=ESTIMATORS)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--threads", type=int, nargs="*", default=[2, 3], help="beside one thread, twice")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the processor, for one fit")
    parser.add_argument("--memory-gb", type=float, default=6.0, help="for one fit")
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        name, table, given, n_threads, memory = options.work
        print(json.dumps(work(name, table, json.loads(given), int(n_threads), int(memory))))
        return
    lines, found, repeats, memory = Lines(options.lines, options.fresh), [], [], int(options.memory_gb * 2**30)
    for table, name in itertools.product(options.tables, options.only):
        given = {} if table in LARGE else less_of(name)
        fit = partial(in_a_process, name, table, given, 1, options.seconds, memory)
        found.append(lines(name, table, 1, 0, fit))
    for name in options.only if options.threads else []:
        fits = []
        for n, run in ((1, 0), (1, 1), *((n, 0) for n in options.threads)):
            clock = 2 * n * options.seconds  # which counts what all threads take, also in waiting
            fit = partial(in_a_process, name, SHARED, less_of(name), n, clock, 0)
            fits.append(lines(name, SHARED, n, run, fit))
        same = [each.get("sha256", each["ended"]) for each in fits]
        repeats.append({"estimator": name, "again": same[0] == same[1], "threads": len(set(same)) == 1})
        found += fits
    wrong = [f"{line['estimator']} | {line['table']}" for line in found if line["ended"] == "BROKEN"]
    apart = max((line["apart"] for line in found if "apart" in line), default=0.0)
    total = {
        "subject": "fits",
        "count": len(found),
        "ended": dict(Counter(line["ended"] for line in found)),
        "predict_at_once_apart": apart,
        "slowest_s": {
            ended: max((line["seconds"] for line in found if line["ended"] == ended), default=0.0)
            for ended in ("fitted", "refused")
        },
        "same_bits_again": sum(each["again"] for each in repeats),
        "other_threads_other_bits": [each["estimator"] for each in repeats if not each["threads"]],
        "repeated": len(repeats),
        "broken": wrong,
    }
    if apart > ROUNDING:
        wrong.append(f"predict from {N_AT_ONCE} threads at once is {apart:.1e} apart")
    tell(total, RESULTS, wrong)


if __name__ == "__main__":
    main()
