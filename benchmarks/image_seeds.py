"""Does any fit of `ImageEnergyClassifier` run off?  Small fits, 20 seeds, four learning rates: JSON lines.

python benchmarks/image_seeds.py [--seeds 20] [--jobs 1] [--out FILE]

scikit-learn's 8 x 8 digits, 1,000 to train; of the others the error, and what denoising leaves of noise of level 0.3 (a
ratio of mean squares; 1: nothing is gained).  A fit fails that raises, or gets worse than chance or than no denoising.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from energate import ImageEnergyClassifier
from energate.errors import InputError

RATES = (5e-4, 2e-3, 5e-3, 2e-2)
RESULTS = Path(__file__).parent / "results" / "image-seeds.jsonl"


def measure(seed: int, epochs: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rate = RATES[seed % len(RATES)]
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = X[order].reshape(-1, 8, 8) / 16, y[order]
    line: dict[str, Any] = {"seed": seed, "learning_rate": rate, "epochs": epochs}
    model = ImageEnergyClassifier(learning_rate=rate, max_epochs=epochs, device="cpu", random_state=seed)
    try:
        model.fit(X[:1000], y[:1000])
    except InputError as refused:
        return line | {"failed": str(refused)}
    test, noise = X[1000:], 0.3 * np.random.default_rng(seed).normal(size=X[1000:].shape)
    left = np.square(model.denoise(test + noise) - test).mean() / np.square(noise).mean()
    error = float((model.predict(test) != y[1000:]).mean())
    return line | {
        "error": round(100 * error, 2),
        "noise left": round(float(left), 4),
        "failed": bool(error > 0.9 or left > 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool, options.out.open("w") as file:
        for line in pool.map(measure, range(options.seeds), [options.epochs] * options.seeds):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
