"""A table of three classes in Parquet files, for tests of streams."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

N = 3000


def table() -> pa.Table:
    draw = np.random.default_rng(0)
    X, colour = draw.normal(size=(N, 3)), draw.choice(["red", "blue"], N)
    score = X[:, 0] + (colour == "red") + 0.3 * draw.normal(size=N)
    kind = np.where(score > 1, "a", np.where(score > 0, "b", "c"))
    X[draw.random(X.shape) < 0.02] = np.nan
    columns = {f"x{i}": pa.array(X[:, i], from_pandas=True) for i in range(3)}
    return pa.table({"id": np.arange(N), **columns, "colour": colour, "kind": kind})


def labelled() -> pa.Table:
    """The same with three labels in place of the classes, of which the third follows from the others."""
    found, draw = table(), np.random.default_rng(1)
    kind = np.array(found["kind"].to_pylist())
    first, second = kind == "a", (kind != "c") ^ (draw.random(N) < 0.05)
    found = found.drop(["kind"])
    for name, on in {"la": first, "lb": second, "lc": first ^ second}.items():
        found = found.append_column(name, pa.array(on.astype(np.int64)))
    return found


def written(rows: pa.Table, folder: Path, group: int = 100) -> str:
    """Three files of a thousand rows each, as a pattern."""
    for file in range(3):
        pq.write_table(rows.slice(file * 1000, 1000), folder / f"{file}.parquet", row_group_size=group)
    return str(folder / "*.parquet")
