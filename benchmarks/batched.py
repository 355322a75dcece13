"""K models as one program against a Python loop over K models: one training step, one scoring pass.

One JSON line per case.  ``ratio`` is the loop's time over the batched time, the two measured in turn in
this run; ``gemm_share`` is the batched FLOP/s over those of one plain matrix product of that size on the
same machine.

    python benchmarks/batched.py [--device cuda] [--rows 100] [--score-rows 1000] [--repeats 15]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from energate import Autoencoder, CovarianceUnits, HiddenUnits, MeanUnits
from energate.training.loop import Stepper

K, D, UNITS = 10, 784, 300


def mean(n_models: int) -> list[HiddenUnits]:
    return [MeanUnits(n_models, D, UNITS)]


def covariance(n_models: int) -> list[HiddenUnits]:
    return [CovarianceUnits(n_models, D, UNITS, UNITS)]


def mean_covariance(n_models: int) -> list[HiddenUnits]:
    return [*mean(n_models), *covariance(n_models)]


KINDS = {"mean": mean, "covariance": covariance, "mean-covariance": mean_covariance}


def seconds(actions: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Median time of each action, the actions taking turns."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    times: dict[str, list[float]] = {name: [] for name in actions}
    for round_ in range(repeats + 3):
        for name, action in actions.items():
            wait()
            began = time.perf_counter()
            action()
            wait()
            if round_ >= 3:  # the first rounds warm up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def flops(action: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        action()
    return int(counter.get_total_flops())


def training_step(model: Autoencoder, v: Tensor) -> Callable[[], None]:
    stepper = Stepper(model.parameters(), "adam", 1e-4, 0.9, 0.0)

    def step() -> None:
        stepper.zero_grad()
        model.loss(v).mean(-1).sum().backward()
        stepper.step(1.0)

    return step


def report(case: dict[str, object], actions: dict[str, Callable[[], object]], repeats: int, gemm: float) -> None:
    device = str(case["device"])
    work = flops(actions["batched"])
    measured = seconds(actions, repeats, device)
    rate = work / measured["batched"]
    print(
        json.dumps(
            case
            | {
                "batched_ms": round(1e3 * measured["batched"], 3),
                "loop_ms": round(1e3 * measured["loop"], 3),
                "ratio": round(measured["loop"] / measured["batched"], 3),
                "gflops": round(rate / 1e9, 1),
                "gemm_gflops": round(gemm / 1e9, 1),
                "gemm_share": round(rate / gemm, 3),
            }
        ),
        flush=True,
    )


def _cpu() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=100, help="rows per model in a training step")
    parser.add_argument("--score-rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    device = options.device
    where = torch.cuda.get_device_name() if device == "cuda" else _cpu()
    about = {"device": device, "machine": where, "torch": torch.__version__, "models": K, "columns": D, "units": UNITS}

    own = torch.rand(K, options.rows, D, device=device)
    shared = torch.rand(options.score_rows, D, device=device)
    weights = torch.rand(K, UNITS, D, device=device)
    flat = weights.flatten(0, 1)
    plain = {"step": lambda: own @ weights.mT, "score": lambda: shared @ flat.T}
    timed = seconds(plain, 10 * options.repeats, device)
    gemm = {name: flops(action) / timed[name] for name, action in plain.items()}

    for kind, build in KINDS.items():
        model = Autoencoder(build(K)).to(device)
        singles = [model.select(k) for k in range(K)]
        together = training_step(model, own)
        alone = [training_step(single, own[k]) for k, single in enumerate(singles)]

        def loop_steps(alone: list[Callable[[], None]] = alone) -> None:
            for step in alone:
                step()

        case = about | {"case": "training step", "kind": kind, "rows": options.rows}
        report(case, {"batched": together, "loop": loop_steps}, options.repeats, gemm["step"])

        @torch.no_grad()
        def score(model: Autoencoder = model) -> Tensor:
            return model.energy(shared)

        @torch.no_grad()
        def loop_scores(singles: list[Autoencoder] = singles) -> Tensor:
            return torch.cat([single.energy(shared) for single in singles])

        case = about | {"case": "scoring", "kind": kind, "rows": options.score_rows}
        report(case, {"batched": score, "loop": loop_scores}, options.repeats, gemm["score"])


if __name__ == "__main__":
    main()
