"""Fitting more rows than memory: random numbers with known classes, in Parquet files, and the peak of memory.

Each case is a process of its own; one line for each in benchmarks/results/stream.jsonl.  `--whole` also fits all rows
in memory, with the same rows held out.

    python benchmarks/stream.py --rows 20000000 --memory 1.5GB --epochs 20
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "stream.jsonl"
N_COLUMNS, FILE_ROWS, GROUP = 20, 500_000, 50_000


def make(folder: Path, n_rows: int) -> Path:
    """Three classes that a quadratic form and a wave tell apart, as well as noise lets them."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    for number, start in enumerate(range(0, n_rows, FILE_ROWS)):
        draw = np.random.default_rng([0, number])
        n = min(FILE_ROWS, n_rows - start)
        X = draw.normal(size=(n, N_COLUMNS)).astype(np.float32)
        score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + 0.5 * X[:, 3] + 0.4 * draw.normal(size=n)
        columns = {f"x{i}": X[:, i] for i in range(N_COLUMNS)}
        rows = pa.table({**columns, "kind": np.digitize(score, (-0.6, 0.6))})
        pq.write_table(rows, folder / f"{number:04d}.parquet", row_group_size=GROUP, use_dictionary=False)
    return folder / "*.parquet"


def fit(parts: str, memory: str, units: str, epochs: int | None) -> None:
    from energate.views.streaming import fit_stream

    began = time.process_time()
    found = fit_stream(parts, "kind", memory=memory, units=units, epochs=epochs, device="cpu")
    told = {"rows": found.n_rows, "trained on": found.n_train, "units": units, "memory": memory, "epochs": epochs}
    told |= {"error": round(found.held_out["error"], 2), "log-loss": round(found.held_out["log_loss"], 4)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    told |= {"peak GB": round(peak, 2), "cpu seconds": round(time.process_time() - began, 1)}
    print(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--units", default="trunk")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--whole", action="store_true", help="also with enough memory for all rows")
    parser.add_argument("--parts", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.parts:
        fit(given.parts, given.memory, given.units, given.epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        parts = str(make(Path(folder), given.rows))
        for memory in (given.memory, *(["100GB"] if given.whole else [])):
            line = [sys.executable, __file__, "--parts", parts, "--memory", memory, "--units", given.units]
            line += [] if given.epochs is None else ["--epochs", str(given.epochs)]
            ended = subprocess.run(line, check=True, capture_output=True, text=True)
            print(ended.stdout, end="")
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"when": datetime.now(UTC).date().isoformat(), **json.loads(ended.stdout)}) + "\n"
                )


if __name__ == "__main__":
    main()
