"""EnergyClassifier with its defaults against its peers with theirs, on real tables with categories and missing cells.

Five stratified folds, the same for every system.  One JSON line per table, fold and system; finished lines are skipped,
so that a run that was stopped goes on.  The summary is made from the lines alone.  ENERGATE_DATA names the folder that
holds tables/*.arff; `table_data` says how they are read and which half is for development, `table_systems` what every
system is given.  Extras take ``pip install -r benchmarks/peers.txt``.

    python benchmarks/tables.py [--half all] [--sets wine,tae] [--systems SVC,CatBoost] [--folds 5]
                                [--jobs 1] [--threads 1] [--device cpu] [--minutes 9] [--out FILE]
    python benchmarks/tables.py --summary [--picture FILE] [--published CSV]      # of the lines that are there

Without --half only the development half is run, so that no one looks at the other by mistake.
Seconds are claimed of runs with one job.  CPU seconds, which other work on the machine does not stretch, are beside
them.  SVC has no probabilities of its own: they come from a calibrated copy, outside the clock.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from table_data import DEVELOPMENT, folder_of_tables, load, names_of_tables
from table_published import beside
from table_summary import drawn, summary
from table_systems import SYSTEMS, Settings
from tabular import calibration_error
from threadpoolctl import threadpool_limits

from energate import EnergyClassifier
from energate.views import view_of
from energate.views.classes import EnergyClassifierView

OUT = Path(__file__).parent / "results" / "tables.jsonl"
HALVES = ("development", "held-out", "all")
NOISE = 0.2  # of `noise_left`, in the units of a robust scaling: the default noise of a trunk
LEAST = 1e-15  # probabilities are clipped here, so that a sure mistake costs 34.5 nats
Line = dict[str, Any]
Task = tuple[Path, int, int, str]


def log_loss(p: NDArray[Any], y: NDArray[np.int64]) -> float:
    """In nats; in float64 whatever comes, for sklearn's clips float32 at 1e-7."""
    found = p[np.arange(len(y)), y].astype(np.float64)
    return float(-np.log(np.clip(found, LEAST, 1.0)).mean())


def noise_left(model: EnergyClassifier, X: Any, seed: int) -> float:
    """What all classes together leave of noise on the scaled cells, as a share of its squares: 1 if they do nothing."""
    view = view_of(model)
    assert isinstance(view, EnergyClassifierView)
    v = torch.as_tensor(view.scaled(view.rows(X))).to(model.model_.B)
    noise = NOISE * torch.randn(v.shape, generator=torch.Generator().manual_seed(seed), dtype=v.dtype).to(v)
    with torch.no_grad():
        p = torch.softmax(model.model_.logits(v + noise), 1)  # (N, K)
        found = (p.T.unsqueeze(2) * view.reconstruct(v + noise)).sum(0)
    return float((found - v).square().sum() / noise.square().sum())


def run(path: Path, fold: int, n_folds: int, system: str, device: str, threads: int, until: float) -> Line | None:
    """One line; None where it failed, or where time was up before it began."""
    if time.time() > until:
        return None
    table = load(path)
    train, test = table.split(fold, n_folds)
    X, X_test, y, y_test = table.frame.iloc[train], table.frame.iloc[test], table.y[train], table.y[test]
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads), warnings.catch_warnings():
            if not SYSTEMS[system].ours:
                warnings.simplefilter("ignore")  # of peers: steps that are not enough, constant columns
            model = SYSTEMS[system].make(Settings(fold, device, threads, table.categories))
            began, began_cpu = time.perf_counter(), time.process_time()
            model.fit(X, y)
            fitted, fitted_cpu = time.perf_counter(), time.process_time()
            predicted = np.asarray(model.predict(X_test)).ravel()
            ended, ended_cpu = time.perf_counter(), time.process_time()
            scored = CalibratedClassifierCV(model, ensemble=False).fit(X, y) if system == "SVC" else model
            p = np.asarray(scored.predict_proba(X_test))
    except Exception as error:  # one peer that fails on one fold must not end the run
        print(f"{table.name} fold {fold} {system} FAILED: {type(error).__name__}: {error}", flush=True)
        return None
    frequencies = np.tile(np.bincount(y) / len(y), (len(y_test), 1))
    assert p.shape == frequencies.shape
    return {
        "set": table.name,
        "development": table.name in DEVELOPMENT,
        "rows": len(table.y),
        "columns": table.frame.shape[1],
        "categories": len(table.categories),
        "missing": round(float(table.frame.isna().to_numpy().mean()), 4),
        "classes": table.n_classes,
        "fold": fold,
        "folds": n_folds,
        "system": system,
        "version": SYSTEMS[system].version,
        "error": 100 * float((predicted != y_test).mean()),
        "log_loss": log_loss(p, y_test),
        "log_loss_frequencies": log_loss(frequencies, y_test),
        "ece": calibration_error(p, p.argmax(axis=1) == y_test),
        "fit_s": fitted - began,
        "predict_s": ended - fitted,
        "fit_cpu_s": fitted_cpu - began_cpu,
        "predict_cpu_s": ended_cpu - fitted_cpu,
        "noise_left": noise_left(model, X_test, fold) if SYSTEMS[system].ours else None,
        "device": device,
        "threads": threads,
    }


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tasks_of(options: argparse.Namespace, systems: list[str]) -> list[Task]:
    """What the file lacks: the largest tables first, so that several jobs end together."""
    done = {(line["set"], line["fold"], line["folds"], line["system"]) for line in read(options.out)}
    folder = folder_of_tables()
    names = names_of_tables(folder, options.half)
    if options.sets:
        unknown = set(options.sets.split(",")) - set(names)
        if unknown:
            raise SystemExit(f"--sets must be some of {', '.join(names)}; got {', '.join(sorted(unknown))}")
        names = options.sets.split(",")
    if not names:
        raise SystemExit(f"there are no tables in {folder}")
    sizes = {name: load(folder / f"{name}.arff") for name in names}
    names.sort(key=lambda name: -sizes[name].frame.size * sizes[name].n_classes)
    return [
        (folder / f"{name}.arff", fold, options.folds, system)
        for name in names
        for system in systems
        for fold in range(options.folds)
        if (name, fold, options.folds, system) not in done
    ]


def measured(tasks: list[Task], options: argparse.Namespace) -> Iterator[Line]:
    until = time.time() + 60 * options.minutes
    parallel = joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    found = parallel(joblib.delayed(run)(*task, options.device, options.threads, until) for task in tasks)
    return (line | {"jobs": options.jobs} for line in found if line is not None)


def chosen_systems(text: str) -> list[str]:
    """Those that are named, or else all that take part in the ranks; without those that are not installed."""
    names = text.split(",") if text else [name for name, system in SYSTEMS.items() if system.ranked]
    unknown = set(names) - set(SYSTEMS)
    if unknown:
        raise SystemExit(f"--systems must be some of {', '.join(SYSTEMS)}; got {', '.join(sorted(unknown))}")
    for name in names:
        if SYSTEMS[name].version is None:
            print(f"{name} is skipped: pip install -r benchmarks/peers.txt")
    return [name for name in names if SYSTEMS[name].version is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the file of JSON lines")
    parser.add_argument("--half", choices=HALVES, default="development", help="which tables")
    parser.add_argument("--sets", default="", help="names of tables, with commas between")
    parser.add_argument("--systems", default="", help=f"with commas between, of {', '.join(SYSTEMS)}")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes; seconds are comparable with 1 only")
    parser.add_argument("--threads", type=int, default=1, help="of every process")
    parser.add_argument("--device", default="cpu", help="of the systems that use torch")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--summary", action="store_true", help="only summarise; --systems may choose")
    parser.add_argument("--picture", type=Path, help="write the critical-difference picture here")
    parser.add_argument("--published", type=Path, help="a CSV file of published accuracies to put beside ours")
    options = parser.parse_args()
    if not options.summary:
        tasks: list[Task] = []
        try:
            tasks = tasks_of(options, chosen_systems(options.systems))
        except FileNotFoundError as error:
            print(f"nothing is measured: {error}")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as out:
            for i, line in enumerate(measured(tasks, options)):
                out.write(json.dumps(line) + "\n")
                out.flush()
                print(
                    f"[{i + 1}/{len(tasks)}] {line['set']} fold {line['fold']} {line['system']}: "
                    f"error {line['error']:.2f} %, log-loss {line['log_loss']:.3f}, fit {line['fit_s']:.1f} s",
                    flush=True,
                )
    lines = read(options.out)
    if options.systems:
        lines = [line for line in lines if line["system"] in options.systems.split(",")]
    print(summary(lines))
    if options.published:
        print("\n" + beside(lines, options.published))
    if options.picture:
        drawn(lines, options.picture)


if __name__ == "__main__":
    main()
