"""Label refinement: time and memory for many rows, labels and label vectors.

One JSON line per case, each in a process of its own.  ``seconds`` is the time on the clock, ``cpu_seconds`` that of all
threads, ``peak_mib`` by how much memory rose.  On a busy machine the clock says little: threads wait for each other.
(OMP_WAIT_POLICY=passive, which helps there, makes sets/xy three times as slow on an idle one.)
Cases:

- sets, ascent: refine rows through the model's functions, in chunks; ``loop_ratio`` is a Python loop's time per row
  over the chunks' time per row, ``chain_ratio`` that of scikit-learn's ClassifierChain.predict_proba over it (of
  logistic regressions on the same columns; up to 100 labels, as it fits one model for each).
- refiner: `EnergyRefiner.refine` from given scores.
- training: ten steps of 256 rows.

    python benchmarks/refine.py [--threads 2] [--labels 14 100 1000 5000]
"""

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from torch import Tensor

from energate import Autoencoder, EnergyRefiner
from energate.dynamics import trajectory
from energate.training.labels import (
    LABEL_RELATIONS,
    LabelRows,
    LabelSets,
    LabelTraining,
    SetModel,
    ascend,
    label_autoencoder,
    neighbours,
    train_denoising,
    train_sets,
)

UNITS, COLUMNS, FLIPS, STEPS, STRENGTH = 32, 100, 16, 20, 6.0
CHUNK = 2**21  # scores at once
LOOP_VALUES = 2**29  # the loop takes 1,000 rows, or fewer where label vectors have many values
CHAIN_ROWS, CHAIN_LABELS = 1000, 100


class Size(NamedTuple):
    rows: int
    labels: int
    sets: int


SIZES = {size.labels: size for size in (
    Size(100_000, 14, 200), Size(20_000, 100, 2_000), Size(1_000, 1000, 5_000), Size(500, 5000, 15_000)
)}  # fmt: skip


def data(size: Size) -> tuple[LabelRows, LabelSets]:
    """Rows of a base that is mostly right, and the label vectors seen: a few labels on in each."""
    generator = torch.Generator().manual_seed(0)
    share = min(0.3, 10 / size.labels)
    Y = (torch.rand(size.sets, size.labels, generator=generator) < share).float()
    of_row = torch.randint(size.sets, (size.rows,), generator=generator)
    count = torch.bincount(of_row, minlength=size.sets).float() + 1
    noise = torch.randn(size.rows, size.labels, generator=generator)
    x = torch.randn(size.rows, COLUMNS, generator=generator)
    return LabelRows(3 * (2 * Y[of_row] - 1) + 2 * noise, Y[of_row], x), LabelSets(Y, count, of_row)


def set_model(relation: str, sets: LabelSets) -> SetModel:
    generator = torch.Generator().manual_seed(1)
    return SetModel(strong(label_autoencoder(relation, sets.Y.shape[1], COLUMNS, UNITS, UNITS, generator)), sets)


@torch.no_grad()
def strong(autoencoder: Autoencoder) -> Autoencoder:
    """With larger weights: near its first weights an ascent settles after two steps, which would flatter its time."""
    for parameter in autoencoder.parameters():
        if parameter.ndim == 3:
            parameter.mul_(STRENGTH)
    return autoencoder


@torch.no_grad()
def steps_taken(autoencoder: Autoencoder, rows: LabelRows) -> float:
    """Of at most `STEPS`, by the mean row."""
    some = rows.take(torch.arange(min(500, len(rows.t))))
    context = some.x if autoencoder.context_width else None
    return round(
        float(trajectory(autoencoder, torch.sigmoid(some.t), context, max_steps=STEPS).n_steps.float().mean()), 1
    )


@torch.no_grad()
def refine(model: SetModel, method: str, rows: LabelRows, chunk: int) -> Tensor:
    """Probabilities of the labels; the best label vectors are computed too, as the estimator does."""
    found = torch.empty_like(rows.t)
    for part in torch.arange(len(rows.t)).split(chunk):
        t, x = rows.t[part], rows.x[part]
        if method == "ascent":
            found[part] = torch.sigmoid(ascend(model.autoencoder, t, x, [STEPS])[0])
        else:
            near = neighbours(t, FLIPS)
            beliefs = model.beliefs(t, x, near)
            found[part] = model.marginals(beliefs, near)
            model.best(beliefs, near)
    return found


def memory_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measured(action: Callable[[], object], repeats: int = 1) -> dict[str, Any]:
    """The best of some repeats, and by how much memory rose at its peak (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, or that of making the data would hide this one
    before = memory_mib("VmRSS")
    times = []
    for _ in range(repeats):
        began, cpu = time.perf_counter(), time.process_time()
        action()
        times.append((time.perf_counter() - began, time.process_time() - cpu))
    seconds, cpu = min(times)
    grown = memory_mib("VmHWM") - before
    return {"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "peak_mib": round(grown)}


def chain_seconds(rows: LabelRows) -> float | None:
    """Of ClassifierChain.predict_proba, for one row of many."""
    Y, X = rows.Y[:CHAIN_ROWS].numpy().copy(), rows.x[:CHAIN_ROWS].numpy()
    if Y.shape[1] > CHAIN_LABELS:
        return None
    Y[0], Y[1] = 0, 1  # it wants both values of every label
    chain = ClassifierChain(LogisticRegression(tol=0.1)).fit(X, Y)
    return measured(lambda: chain.predict_proba(X), 3)["seconds"] / len(X)


def refining(method: str, relation: str, size: Size) -> dict[str, Any]:
    rows, sets = data(size)
    model = set_model(relation, sets)
    # The path of an ascent has a few values per label, the sets one per label vector.
    chunk = max(1, CHUNK // (size.sets if method == "sets" else 4 * size.labels))
    refine(model, method, rows.take(torch.arange(8)), 8)  # warm up
    line = measured(lambda: refine(model, method, rows, chunk), 2)
    per_row = line["seconds"] / size.rows
    few = rows.take(torch.arange(min(1000, LOOP_VALUES // (size.sets * size.labels))))
    loop = measured(lambda: refine(model, method, few, 1))["seconds"] / len(few.t)
    chain = chain_seconds(rows)
    return line | {
        "chunk": chunk,
        "steps_taken": steps_taken(model.autoencoder, rows) if method == "ascent" else None,
        "us_per_row": round(1e6 * per_row, 1),
        "loop_rows": len(few.t),
        "loop_ratio": round(loop / per_row, 1),
        "chain_ratio": None if chain is None else round(chain / per_row, 2),
    }


def through_refiner(method: str, relation: str, size: Size) -> dict[str, Any]:
    rows, _ = data(size)
    X, Y, t = (each.numpy().astype(np.float64) for each in (rows.x, rows.Y, rows.t))
    base = MultiOutputClassifier(LogisticRegression(tol=0.1)).fit(X[:1000], Y[:1000])
    refiner = EnergyRefiner(base, relation, method=method, prefit=True, max_epochs=1, device="cpu", random_state=0)
    refiner.fit(X[:5000], Y[:5000])
    if method == "ascent":
        strong(refiner.model_)
    refiner.gate_, refiner.n_steps_ = 1.0, STEPS  # random columns say nothing of the labels, so it would refine nothing
    return measured(lambda: refiner.refine(t, X), 3) | {"sets_seen": len(np.unique(Y[:5000], axis=0))}


def training(method: str, relation: str, size: Size) -> dict[str, Any]:
    rows, sets = data(size)
    some = torch.arange(2560) % size.rows
    part, valid = rows.take(some), rows.take(some[:256])
    seen = LabelSets(sets.Y, sets.count, sets.of_row[some])
    model = set_model(relation, sets)
    how = LabelTraining(epochs=1)
    if method == "ascent":
        return measured(lambda: train_denoising(model.autoencoder, part, valid, how, 0.4)) | {"steps": 10}
    return measured(lambda: train_sets(model, seen, part, valid, how)) | {"steps": 10}


CASES = {"refining": refining, "refiner": through_refiner, "training": training}


def run(case: str, method: str, relation: str, size: Size, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    about = {"case": case, "method": method, "relation": relation} | size._asdict()
    machine = {"machine": platform.machine(), "threads": threads, "torch": torch.__version__}
    return about | CASES[case](method, relation, size) | machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--labels", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    options = parser.parse_args()
    jobs: list[tuple[str, str, str, Size]] = []
    for labels in options.labels:
        size = SIZES[labels]
        for relation in LABEL_RELATIONS:
            for case in CASES if labels == min(SIZES) else ("refining", "training"):
                jobs += [(case, method, relation, size) for method in ("sets", "ascent")]
    context = multiprocessing.get_context("spawn")
    # A process of its own for each, or the peak of memory would be that of the cases before.
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for job in jobs:
            print(json.dumps(pool.submit(run, *job, options.threads).result()), flush=True)


if __name__ == "__main__":
    main()
