"""Memory to score many rows under 10 mean-covariance models: peak beyond the input, as one JSON line.

python benchmarks/scoring_memory.py [--rows 1000000]
"""

import argparse
import json
import resource
import time

import torch

from energate import Autoencoder, CovarianceUnits, MeanUnits

K, D, UNITS = 10, 784, 300


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    model = Autoencoder([MeanUnits(K, D, UNITS), CovarianceUnits(K, D, UNITS, UNITS)])
    rows = torch.rand(options.rows, D)
    before = peak_mib()
    began = time.perf_counter()
    with torch.no_grad():
        energies = model.energy(rows)
    elapsed = time.perf_counter() - began
    print(
        json.dumps(
            {
                "case": "scoring memory",
                "rows": options.rows,
                "columns": D,
                "models": K,
                "units": UNITS,
                "energies": list(energies.shape),
                "input_mib": round(rows.numel() * 4 / 2**20),
                "peak_beyond_input_mib": round(peak_mib() - before),
                "all_at_once_would_be_mib": round(options.rows * K * 3 * UNITS * 4 / 2**20),
                "seconds": round(elapsed, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
