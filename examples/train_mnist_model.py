"""Train the model of 28 x 28 digits that comes with the package: it classifies, rejects, denoises and fills in.

python examples/train_mnist_model.py --data FOLDER --out MODEL

FOLDER, or else ENERGATE_DATA, has single/mnist.npz.  All of its 60,000 training digits train, but for 10,000 by which
the epoch is chosen; error and sizes printed are of the saved file and the test digits, which take no part.  Twenty of
these, the first two of every digit, are saved beside the model, as examples to show.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss

from energate import ImageEnergyClassifier, load, save
from energate.tables import Columns
from energate.tables.columns import NumberColumn

SIDE, VALID = 28, 10_000


def train(data: Path, out: Path, *, epochs: int = 12, n_rows: int | None = None, device: str = "auto") -> float:
    """Train and save the model and its examples; the error in % of the test digits."""
    began = time.perf_counter()
    with np.load(data / "single" / "mnist.npz", allow_pickle=False) as file:
        X, y, X_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    X, X_test, y, y_test = X / 255, X_test / 255, y.astype(int), y_test.astype(int)
    n_valid = VALID if n_rows is None else n_rows // 5
    X_valid, y_valid, X, y = X[-n_valid:], y[-n_valid:], X[:-n_valid][:n_rows], y[:-n_valid][:n_rows]
    model = ImageEnergyClassifier(
        n_hidden=8,
        channels=16,
        shared_channels=16,
        augment="affine",
        max_epochs=epochs,
        n_iter_no_change=epochs,
        scaling="none",
        device=device,
        random_state=0,
    ).fit(X, y, X_valid=X_valid, y_valid=y_valid)
    model.model_.float()  # half the size on the disk; `load` makes doubles of them again
    pixels = tuple(NumberColumn(f"pixel_{i}_{j}", 0.0) for i in range(SIDE) for j in range(SIDE))
    out.parent.mkdir(parents=True, exist_ok=True)
    save(model, out, columns=Columns(pixels, "classify", ("digit",), image=(SIDE, SIDE), range=(0.0, 1.0)))
    shown = [i for k in np.unique(y_test) for i in np.flatnonzero(y_test == k)[:2]]
    write(out.with_name(f"{out.stem}-examples.json"), X_test[shown])

    saved = load(out, device=device)
    error = 100 * float((saved.predict(X_test) != y_test).mean())
    loss = float(log_loss(y_test, saved.predict_proba(X_test)))
    files = out.iterdir() if out.is_dir() else [out]
    size = sum(file.stat().st_size for file in files)
    rejected = saved.rejects(X_test).mean()
    print(f"test: {len(X_test)} digits, error {error:.2f} %, log-loss {loss:.4f}, rejected: {rejected:.4f}")
    print(f"{out}: {size / 1e6:.2f} MB, trained in {time.perf_counter() - began:.0f} s on {len(X):,} digits")
    return error


def write(path: Path, rows: np.ndarray) -> None:
    """One image to a line, as the model takes it."""
    lines = ",\n".join(json.dumps(row) for row in rows.reshape(len(rows), -1).round(3).tolist())
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ENERGATE_DATA", "data")))
    parser.add_argument("--out", type=Path, required=True, help="the folder or .zip file of the model")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, help="train on the first of the digits only")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    train(options.data, options.out, epochs=options.epochs, n_rows=options.rows, device=options.device)
