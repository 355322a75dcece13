"""`load_table`: a table of the user's own, as numbers."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate.errors import InputError, require
from energate.tables.cells import listed
from energate.tables.reading import SEPARATORS, check_widths

#: X (n, d), y (n,) or (n, L), and the names of the columns of X.
Table = tuple[NDArray[np.float64], NDArray[Any], list[str]]


def load_table(path: str | os.PathLike[str], target: str) -> Table:
    """The columns of a table but for ``target`` as X, ``target`` as y, and the names of the columns of X.

    CSV and TSV files have the names in their first line; these and Parquet files need the extra `tables`.  NPZ files
    hold X as a 2-dimensional array ``X``, y as an array named ``target``, and, if they like, ``feature_names``.
    Empty cells become NaN in X; y must have none.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (*SEPARATORS, ".parquet", ".npz"):
        raise InputError(f"A table must be a .csv, .tsv, .parquet or .npz file; got {path.name!r}.")
    if not path.is_file():
        raise InputError(f"There is no file {path.name!r} in the folder {str(path.parent)!r}.")
    X, y, names = _read_npz(path, target) if kind == ".npz" else _read_frame(path, kind, target)
    if not len(X) or not X.shape[1]:
        raise InputError(f"{path.name} must have rows, and columns beside {target!r}; X has shape {X.shape}.")
    if len(y) != len(X):
        raise InputError(f"{path.name} must have one {target!r} for each of its {len(X)} rows; it has {len(y)}.")
    return X, y, names


def _read_frame(path: Path, kind: str, target: str) -> Table:
    pandas = require("pandas", "tables")
    if kind == ".parquet":
        require("pyarrow", "tables")
        try:
            frame = pandas.read_parquet(path)
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise InputError(f"{path.name} must be a Parquet file; it cannot be read ({error}).") from error
    else:
        check_widths(path, SEPARATORS[kind])  # pandas would fill short rows, and take long ones for row names
        frame = pandas.read_csv(path, sep=SEPARATORS[kind], encoding="utf-8-sig")
    names = [str(name) for name in frame.columns]
    if target not in names:
        raise InputError(f"{path.name} must have a column {target!r}; its columns are {listed(names)}.")
    column = frame.iloc[:, names.index(target)]
    if column.isna().any():
        raise InputError(f"{path.name}: {int(column.isna().sum())} rows have no {target!r}. Leave these rows out.")
    rest = frame.iloc[:, [i for i, name in enumerate(names) if name != target]]
    text = [str(name) for name, dtype in rest.dtypes.items() if not pandas.api.types.is_numeric_dtype(dtype)]
    if text and len(frame):  # without rows pandas knows no types
        raise InputError(
            f"{path.name} must have numbers only, but for {target!r}; {listed(text)}: turn text into numbers."
        )
    number = pandas.api.types.is_numeric_dtype(column.dtype)
    y = column.to_numpy() if number else np.array(column.astype(str).tolist(), dtype=np.str_)
    X = rest.to_numpy(dtype=np.float64, na_value=np.nan)
    return X, y, [name for name in names if name != target]


def _read_npz(path: Path, target: str) -> Table:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files if key in ("X", target, "feature_names")}
            others = list(content.files)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise InputError(f"{path.name} must be an NPZ file of plain arrays; it cannot be read ({error}).") from error
    for key in ("X", target):
        if key not in arrays:
            raise InputError(f"{path.name} must have an array {key!r}; its arrays are {listed(others)}.")
    X, y = arrays["X"], arrays[target]
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise InputError(f"`X` of {path.name} must be a table of numbers; it has shape {X.shape} and type {X.dtype}.")
    if not y.ndim:
        raise InputError(f"{target!r} of {path.name} must have one value for each row; it is a single value.")
    names = [str(name) for name in arrays.get("feature_names", [f"x{i}" for i in range(X.shape[1])])]
    if len(names) != X.shape[1]:
        raise InputError(
            f"{path.name} must have {X.shape[1]} `feature_names`, one for each column; it has {len(names)}."
        )
    return X.astype(np.float64), y, names
