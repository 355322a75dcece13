"""The demo: class-specific covariance auto-encoders tell tall rectangles from wide ones, by energy.

Trains one covariance auto-encoder per class (both as one batched program), calibrates a bias per class
on the validation rows, classifies 50,000 test rows by energy plus bias, and draws two pictures.
Run it with `make demo`, or `python examples/demo.py --out FOLDER`.
"""

import argparse
import statistics
import time
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

from energate import (
    Autoencoder,
    CovarianceUnits,
    MeanUnits,
    calibrate,
    check_conservative,
    class_batches,
    corrupt,
    minimise,
    row_batches,
)
from energate.datasets import make_rectangles

mpl.use("Agg")

from matplotlib import pyplot as plt

from energate.plots import plot_filters, plot_vector_field

PAPER = {"cAES": 0.61, "mcAES, the best column": 0.54}


def rectangles(n_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    X, y = make_rectangles(n_rows, seed)
    return torch.as_tensor(X), torch.as_tensor(y)


def train(rows: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], seed: int) -> tuple[Autoencoder, Tensor, int]:
    """One covariance auto-encoder per class; the epoch is chosen by the calibrated validation log-loss."""
    X, y = rows
    X_valid, y_valid = validation
    generator = torch.Generator().manual_seed(seed)
    model = Autoencoder([CovarianceUnits(n_models=2, n_visible=784, n_factors=100, n_hidden=100, generator=generator)])

    def loss(batch: Tensor) -> Tensor:  # batch (K, B): each class its own rows
        v = X[batch]  # (K, B, D)
        return model.loss(v, seen=corrupt(v, "masking", 0.1, generator)).mean(-1)

    def log_loss() -> Tensor:
        logits = model.relative_energy(X_valid).T.double()  # (N, K)
        return torch.nn.functional.cross_entropy(logits + calibrate(logits, y_valid), y_valid)

    history = minimise(
        loss,
        model.parameters(),
        class_batches(y, 2, batch_size=50, seed=seed),
        epochs=60,
        learning_rate=3e-4,
        validate=log_loss,
        patience=10,
    )
    with torch.no_grad():
        biases = calibrate(model.relative_energy(X_valid).T, y_valid)
    assert history.best_epoch is not None
    return model, biases, int(history.best_epoch)


def test_error(model: Autoencoder, biases: Tensor, X: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        predicted = (model.relative_energy(X).T + biases).argmax(1)
    return 100 * float((predicted != y).double().mean())


def two_dimensional_model(seed: int = 0) -> tuple[Autoencoder, Tensor]:
    """A mean auto-encoder of noisy points on a spiral, for the picture of its vector field."""
    generator = torch.Generator().manual_seed(seed)
    angle = 1 + 8.5 * torch.rand(1000, 1, generator=generator).sqrt()
    points = 3 * angle * torch.cat([angle.cos(), angle.sin()], 1)
    points = points + 0.6 * torch.randn(points.shape, generator=generator)
    units = MeanUnits(n_models=1, n_visible=2, n_hidden=200, generator=generator)
    with torch.no_grad():  # spread the units over the plane
        units.W.normal_(0, 0.5, generator=generator)
        units.b.uniform_(-15, 15, generator=generator)
    model = Autoencoder([units])

    def loss(batch: Tensor) -> Tensor:
        v = points[batch]
        return model.loss(v, seen=corrupt(v, "gaussian", 2.0, generator)).mean(-1)

    minimise(loss, model.parameters(), row_batches(1000, 100), epochs=300, learning_rate=1e-2, schedule="cosine")
    return model, points


def draw(model: Autoencoder, out: Path) -> list[Path]:
    units = model.groups[0]
    assert isinstance(units, CovarianceUnits)
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.4))
    for k, (ax, name) in enumerate(zip(axes, ("wide", "tall"), strict=True)):
        plot_filters(units.W[k][:49], (28, 28), n_columns=7, ax=ax)
        ax.set_title(f"covariance filters of the class '{name}'")
    filters = out / "filters.png"
    figure.savefig(filters, dpi=120, bbox_inches="tight")
    plt.close(figure)

    spiral, points = two_dimensional_model()
    figure, ax = plt.subplots(figsize=(7, 7))
    starts = torch.tensor([[-27.0, 27.0], [27.0, 27.0], [0.0, -28.0], [29.0, -10.0], [-16.0, 2.0], [10.0, 10.0]])
    plot_vector_field(spiral, (-33, 33, -33, 33), points=points, starts=starts, ax=ax)
    ax.set_title("an auto-encoder's vector field, its energy, and trajectories")
    field = out / "vector-field.png"
    figure.savefig(field, dpi=120, bbox_inches="tight")
    plt.close(figure)
    return [filters, field]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for the pictures")
    parser.add_argument("--seeds", type=int, default=5, help="number of training runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the models are small: more threads would mostly wait for each other
    began = time.perf_counter()
    print("rectangles (generated by the published rule): 1,000 train, 200 validation, 50,000 test rows")
    rows, validation, test = rectangles(1000, seed=0), rectangles(200, seed=1), rectangles(50_000, seed=2)
    errors = []
    for seed in range(options.seeds):
        model, biases, epoch = train(rows, validation, seed)
        errors.append(test_error(model, biases, *test))
        print(f"  seed {seed}: stopped at epoch {epoch:2d}, test error {errors[-1]:.2f} %", flush=True)
    spread = f" +- {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
    print(f"cAES, energate: {statistics.mean(errors):.2f}{spread} % test error, {len(errors)} seeds")
    for name, error in PAPER.items():
        print(f"the paper, on the original rows: {error:.2f} % ({name})")
    print(check_conservative(model, test[0][:32]))
    for path in draw(model, options.out):
        print(f"wrote {path}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
