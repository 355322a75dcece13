"""Train the model of digits that comes with the package: `python examples/train_digits_model.py --out FOLDER`.

The rows are scikit-learn's 8x8 digits.  Of every four one is held out, and takes no part in training, in choosing the
epoch or in calibration: the error printed is that of the saved files on them (a first, coarse comparison of settings
had seen it, too).  The others
also train in slightly moved, turned and slanted copies, since the model is for drawings that no scanner has
straightened.  Twenty of the rows held out are saved beside the model, as examples to show.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from energate import EnergyClassifier, load, save
from energate.tables import Columns
from energate.tables.columns import NumberColumn

HERE = Path(__file__).parent.parent / "src" / "energate" / "models" / "digits"
SIDE, DARKEST = 8, 16.0
COPIES = 8  # of every row, each moved in another way

Rows = NDArray[np.float64]


def moved(X: Rows, rng: np.random.Generator) -> Rows:
    """Each picture moved by less than half a pixel, turned by some degrees, slanted and stretched a little."""
    middle = np.full(2, (SIDE - 1) / 2)
    copies = []
    for picture in X.reshape(-1, SIDE, SIDE):
        turn, slant, stretch = rng.normal(0, 0.12), rng.normal(0, 0.1), np.exp(rng.normal(0, 0.06, 2))
        turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        matrix = turned @ np.array([[1, 0], [slant, 1]]) @ np.diag(stretch)
        offset = middle - matrix @ middle + rng.uniform(-0.4, 0.4, 2)
        copies.append(affine_transform(picture, matrix, offset, order=1).ravel())
    return np.clip(np.array(copies), 0, DARKEST)


def with_copies(X: Rows, y: NDArray[np.int64], rng: np.random.Generator) -> tuple[Rows, NDArray[np.int64]]:
    return np.concatenate([X, *(moved(X, rng) for _ in range(COPIES))]), np.tile(y, COPIES + 1)


def train(out: Path, *, epochs: int | str = "auto") -> tuple[float, float]:
    """Train and save the model and its examples; error in % and log-loss of the rows held out."""
    began = time.perf_counter()
    rng = np.random.default_rng(0)
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    X, X_valid, y, y_valid = train_test_split(X, y, test_size=0.15, stratify=y, random_state=0)
    X, y = with_copies(X, y, rng)
    X_valid, y_valid = with_copies(X_valid, y_valid, rng)
    # Found on the validation rows.  Three times the denoising loss, and more noise before fine-tuning than in it, keep
    # the vector field good: a row that follows it becomes a digit, and does not fade.
    model = EnergyClassifier(
        "covariance",
        n_hidden=100,
        n_factors=100,
        scaling="unit",
        noise_level=0.3,
        fine_tune_noise_level=0.2,
        generative_weight=3.0,
        start_scale=None,
        fine_tune_learning_rate=1e-3,
        pretrain_epochs=epochs,
        max_epochs=epochs,
        device="cpu",
        random_state=0,
    ).fit(X, y, X_valid=X_valid, y_valid=y_valid)
    model.model_.float()  # half the size on the disk; `load` makes doubles of them again
    pixels = tuple(NumberColumn(f"pixel_{i}_{j}", 0.0) for i in range(SIDE) for j in range(SIDE))
    out.parent.mkdir(parents=True, exist_ok=True)
    save(model, out, columns=Columns(pixels, "classify", ("digit",), image=(SIDE, SIDE)))
    shown = [i for k in np.unique(y_test) for i in np.flatnonzero(y_test == k)[:2]]  # the first two of every digit
    write(out.with_name(f"{out.name}-examples.json"), X_test[shown])

    saved = load(out)
    error = 100 * float((saved.predict(X_test) != y_test).mean())
    loss = float(log_loss(y_test, saved.predict_proba(X_test)))
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"held out: {len(X_test)} rows, error {error:.2f} %, log-loss {loss:.3f}")
    print(f"{out}: {size / 1e6:.2f} MB, trained in {time.perf_counter() - began:.0f} s on {len(X):,} rows")
    return error, loss


def write(path: Path, rows: Rows) -> None:
    """One row to a line, so that a change shows."""
    lines = ",\n".join(json.dumps(row) for row in rows.astype(int).tolist())
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="the folder of the model (default: %(default)s)")
    torch.set_num_threads(1)  # sums in another order would give other weights
    train(parser.parse_args().out)
