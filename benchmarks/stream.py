"""Fitting more rows than memory: random numbers of which it is known what they are, in Parquet files.

Each fit is a process of its own, whose peak of memory is measured; one line for each in
benchmarks/results/stream.jsonl.  `--paired` also fits all rows in memory, with the same rows held out, for several
seeds, and says how far the two are apart.

    python benchmarks/stream.py --rows 20000000 --memory 1GB --units mean --epochs 4
    python benchmarks/stream.py --rows 20000000 --memory 1GB --task anomaly
    python benchmarks/stream.py --rows 2000000 --memory 1GB --task multilabel --epochs 2
    python benchmarks/stream.py --rows 20000 --memory 30MB --paired
    python benchmarks/stream.py --rows 60000 --memory 60MB --paired --task anomaly
    python benchmarks/stream.py --rows 400000 --memory 300MB --paired --task anomaly
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results" / "stream.jsonl"
N_COLUMNS, FILE_ROWS, GROUP = 20, 500_000, 50_000
ODD = 0.02  # the share of rows that are anomalies
WHOLE = "100GB"  # enough for all rows
MEASURES = {"classify": ("error", "log_loss"), "anomaly": ("roc_auc",), "multilabel": ("label_error", "log_loss")}


def of_classes(n: int, draw: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Three classes that a quadratic form and a wave tell apart, as well as noise lets them."""
    X = draw.normal(size=(n, N_COLUMNS)).astype(np.float32)
    score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + 0.5 * X[:, 3] + 0.4 * draw.normal(size=n)
    return X, np.digitize(score, (-0.6, 0.6))


def of_anomalies(n: int, draw: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows near one of three planes of four dimensions; half of the columns of those that are odd are of others."""
    mix = np.random.default_rng(7).normal(size=(3, 4, N_COLUMNS))
    z, plane = draw.normal(size=(n, 4)), draw.integers(3, size=n)
    X = 0.4 * draw.normal(size=(n, N_COLUMNS))
    for each in range(3):
        X[plane == each] += z[plane == each] @ mix[each] + 2 * each
    odd = np.flatnonzero(draw.random(n) < ODD)
    half = N_COLUMNS // 2
    X[odd, half:] = X[draw.permutation(odd), half:]
    return X.astype(np.float32), np.isin(np.arange(n), odd).astype(np.int64)


def of_labels(n: int, draw: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Five labels that the rows tell of, through noise that the first ones share, and a sixth that follows from two."""
    X = draw.normal(size=(n, N_COLUMNS)).astype(np.float32)
    said = X[:, :5] + X[:, 5:10] + draw.normal(size=(n, 1)) + 0.3 * draw.normal(size=(n, 5)) > 0
    return X, np.column_stack([said, said[:, 0] ^ said[:, 1]]).astype(np.int64)


MADE = {"classify": of_classes, "anomaly": of_anomalies, "multilabel": of_labels}


def make(folder: Path, n_rows: int, task: str, seed: int) -> Path:
    """The files, one after the other."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    wanted = 5 * n_rows * N_COLUMNS
    if shutil.disk_usage(folder).free < 2 * wanted:
        raise SystemExit(f"{folder} must have {2 * wanted / 1e9:.1f} GB free.")
    for number, start in enumerate(range(0, n_rows, FILE_ROWS)):
        X, y = MADE[task](min(FILE_ROWS, n_rows - start), np.random.default_rng([seed, number]))
        answers = {"kind": y} if y.ndim == 1 else {f"label{i}": each for i, each in enumerate(y.T)}
        rows = pa.table({**{f"x{i}": X[:, i] for i in range(N_COLUMNS)}, **answers})
        group = min(GROUP, max(1000, n_rows // 20))
        pq.write_table(rows, folder / f"{number:04d}.parquet", row_group_size=group, use_dictionary=False)
    return folder / "*.parquet"


def fit(given: argparse.Namespace) -> None:
    from energate.views.streaming import fit_stream

    began = time.process_time()
    how: dict[str, Any] = {"task": given.task, "memory": given.memory, "epochs": given.epochs, "device": "cpu"}
    how |= {} if given.units is None else {"units": given.units}
    how |= {"targets_prefix": "label"} if given.task == "multilabel" else {"target": "kind"}
    found = fit_stream(given.parts, random_state=given.seed, **how)
    about = found.model.streamed_
    told = {
        "task": given.task,
        "units": found.model.get_params().get("units"),
        "rows": found.n_rows,
        "fitted to": found.n_train,
    }
    told |= {"in memory": about.n_memory, "memory": given.memory, "epochs": given.epochs, "seed": given.seed}
    told |= {name: round(found.held_out[name], 4) for name in MEASURES[given.task]}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    told |= {"peak GB": round(peak, 2), "cpu seconds": round(time.process_time() - began, 1)}
    print(json.dumps(told))


def run(given: argparse.Namespace, parts: str, memory: str, seed: int) -> dict[str, Any]:
    """A fit in a process of its own."""
    line = [sys.executable, __file__, "--parts", parts, "--memory", memory, "--task", given.task, "--seed", str(seed)]
    line += [] if given.units is None else ["--units", given.units]
    line += [] if given.epochs is None else ["--epochs", str(given.epochs)]
    ended = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    print(ended.stdout, end="", flush=True)
    said: dict[str, Any] = json.loads(ended.stdout)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"when": datetime.now(UTC).date().isoformat(), **said}) + "\n")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--task", choices=list(MADE), default="classify")
    parser.add_argument("--units", help="the default of the task if left out")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of data and model; the first, where there are several")
    parser.add_argument("--seeds", type=int, default=3, help="how many, of --paired")
    parser.add_argument("--paired", action="store_true", help="also with enough memory for all rows")
    parser.add_argument("--parts", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.parts:
        fit(given)
        return
    differences: list[list[float]] = []
    for seed in range(given.seed, given.seed + (given.seeds if given.paired else 1)):
        with tempfile.TemporaryDirectory() as folder:
            parts = str(make(Path(folder), given.rows, given.task, seed))
            streamed = run(given, parts, given.memory, seed)
            if given.paired:
                whole = run(given, parts, WHOLE, seed)
                differences.append([streamed[name] - whole[name] for name in MEASURES[given.task]])
    for name, each in zip(MEASURES[given.task], np.array(differences).T if differences else (), strict=False):
        error = each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else float("nan")
        print(f"{name}, streamed less in memory: {each.mean():+.4f} +- {error:.4f} of {len(each)} seeds")


if __name__ == "__main__":
    main()
