"""Fit and predict time of the three energy classifiers on 10,000 x 784 rows in 10 classes, with 300 units.

Side by side in one run: all classes as one program (`EnergyClassifier`), a Python loop over ten single-class models
with the same steps, scikit-learn's MLPClassifier with 300 units, and BernoulliRBM with 300 units + LogisticRegression
(these two on the CPU).  Every system goes through the rows equally often (``--epochs``) and predicts the same rows,
which are random images with a pattern for each class: what counts here is time.  One JSON line per system.

    python benchmarks/fit.py [--device cuda] [--rows 10000] [--epochs 10]
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import BernoulliRBM, MLPClassifier
from sklearn.pipeline import make_pipeline
from torch import Tensor

from energate import Autoencoder, CovarianceUnits, EnergyClassifier, HiddenUnits, MeanUnits, corrupt, minimise
from energate.training import row_batches
from energate.training.classes import PRETRAIN_ROWS, rows_per_class

K, D, UNITS = 10, 784, 300
Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def images(n_rows: int, seed: int = 0) -> Data:
    generator = np.random.default_rng(seed)
    y = np.arange(n_rows) % K
    common = generator.random(D) < 0.3
    own = common ^ (generator.random((K, D)) < 0.1)  # classes differ in a fifth of the pixels
    noise = generator.random((n_rows, D)) < 0.35
    return (own[y] ^ noise).astype(np.float64), y


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(action: Callable[[], Any], device: str) -> tuple[float, Any]:
    wait(device)
    began = time.perf_counter()
    result = action()
    wait(device)
    return time.perf_counter() - began, result


def classifier(kind: str, epochs: int, device: str) -> EnergyClassifier:
    half = epochs // 2  # of the epochs pretrain, the others fine-tune
    return EnergyClassifier(
        kind,
        n_hidden=UNITS,
        n_factors=UNITS,
        pretrain_epochs=half,
        max_epochs=epochs - half,
        generative_weight=0.1,
        early_stopping=False,
        batch_size=1000,
        device=device,
        random_state=0,
    )


def loop(kind: str, data: Data, epochs: int, device: str) -> list[Autoencoder]:
    """Pretraining alone, as a loop over classes: what K together save."""
    X, y = data
    v = torch.as_tensor(X, dtype=torch.float32, device=device)
    models = []
    for k in range(K):
        own = v[torch.as_tensor(y == k, device=device)]
        groups: list[list[HiddenUnits]] = []
        if kind != "covariance":
            groups.append([MeanUnits(1, D, UNITS)])
        if kind != "mean":
            groups.append([CovarianceUnits(1, D, UNITS, UNITS)])
        parts = [Autoencoder(group).to(device) for group in groups]

        def loss(batch: Tensor, own: Tensor = own, parts: list[Autoencoder] = parts) -> Tensor:
            rows = own[batch]
            seen = corrupt(rows, "gaussian", 0.3)
            return torch.stack([part.loss(rows, seen=seen).mean() for part in parts]).sum()

        size = rows_per_class(1000, K, PRETRAIN_ROWS)
        parameters = [parameter for part in parts for parameter in part.parameters()]
        minimise(loss, parameters, row_batches(len(own), size, 0, device), epochs=epochs, learning_rate=3e-3)
        models += parts
    return models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    device = options.device
    machine = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.processor()} x {torch.get_num_threads()}"
    )
    data = X, y = images(options.rows)
    small = images(500)

    def say(**line: Any) -> None:
        common = {"device": device, "machine": machine, "rows": options.rows, "epochs": options.epochs}
        numbers = {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}
        print(json.dumps(common | numbers), flush=True)

    for kind in ("mean", "covariance", "mean-covariance"):
        classifier(kind, 2, device).fit(*small).predict(small[0])  # warm up
        model = classifier(kind, options.epochs, device)
        fit, _ = timed(partial(model.fit, *data), device)
        predict, predicted = timed(partial(model.predict, X), device)
        pretrain_s = model.history_["pretrain"].seconds
        one_by_one, _ = timed(partial(loop, kind, data, options.epochs // 2, device), device)
        say(
            system=f"EnergyClassifier {kind}",
            fit_s=fit,
            predict_s=predict,
            train_error=100 * float((predicted != y).mean()),
            pretrain_s=pretrain_s,
            loop_pretrain_s=one_by_one,
            loop_over_batched=one_by_one / pretrain_s,
        )
    peers = {
        "MLPClassifier": MLPClassifier((UNITS,), max_iter=options.epochs, random_state=0),
        "BernoulliRBM + LogisticRegression": make_pipeline(
            BernoulliRBM(UNITS, n_iter=options.epochs, batch_size=100, random_state=0), LogisticRegression(max_iter=100)
        ),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, peer in peers.items():
            fit, _ = timed(partial(peer.fit, *data), "cpu")
            predict, predicted = timed(partial(peer.predict, X), "cpu")
            say(system=name, fit_s=fit, predict_s=predict, train_error=100 * float((predicted != y).mean()))


if __name__ == "__main__":
    main()
