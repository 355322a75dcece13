"""How far energate is from what the machine can do: every time as a ratio to plain matrix products, or to a peer.

One JSON line per figure; the two sides of every ratio take turns in the same run.  ``--device cuda`` measures a GPU.

- ``ceiling``: FLOP/s of one large matrix product in each precision, and bytes/s of a large copy.
- ``score``: energies of rows in each precision; ``ratio`` is their time over that of the plain products of the same
  shapes in that precision, ``error`` the largest distance from float64 in standard deviations of the energies,
  ``of_flops`` and ``of_bytes`` the share of the two ceilings: the larger of them says what bounds it.
- ``step``: a training step of models of 100 rows each; on a GPU, ``ratio`` is eager over captured.
- ``fit`` (CPU): a default fit in seconds of CPU time, over that of scikit-learn's MLPClassifier on the same rows.
- ``growth``: slopes of log time over log rows, columns, units, classes and members.

    python benchmarks/floor.py [--device cuda] [--parts score step] [--short]
    python benchmarks/floor.py --draw docs/images/growth.png benchmarks/results/floor-*.jsonl
"""

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from energate import Autoencoder, CovarianceUnits, EnergyClassifier, HiddenUnits, MeanUnits, corrupt, minimise
from energate.kernels import computing, scoring
from energate.memory import MemoryUnits
from energate.training import row_batches

Line = dict[str, Any]
IN_A_ROW = 10  # calls on a GPU, which waits for Python before the first of them, and hardly before the others
PRECISIONS = {"cpu": {"exact": torch.float64, "fast": torch.float32}, "cuda": {"exact": torch.float32}}
LOWER = {"fast": torch.float32, "lowest": torch.bfloat16}  # on a GPU; products of the first in TF32


class Clock:
    """Times actions that take turns: medians, in seconds."""

    def __init__(self, device: str, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def __call__(self, **actions: Callable[[], object]) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in actions}
        for round_ in range(self.repeats + 2):
            for name, action in actions.items():
                seconds = self._once(action)
                if round_ >= 2:  # the first rounds warm up
                    times[name].append(seconds)
        return {name: statistics.median(values) for name, values in times.items()}

    def _once(self, action: Callable[[], object]) -> float:
        if self.device == "cpu":  # of the process: what else the machine does counts less
            began = time.process_time()
            action()
            return time.process_time() - began
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(IN_A_ROW):
            action()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000 / IN_A_ROW


def precisions(device: str) -> dict[str, torch.dtype]:
    return PRECISIONS["cpu"] if device == "cpu" else {**PRECISIONS["cuda"], **LOWER}


class plainly:
    """Products of float32 on a GPU in TF32, if they are to be fast."""

    def __init__(self, precision: str) -> None:
        self.fast, self.before = precision == "fast", torch.backends.cuda.matmul.allow_tf32

    def __enter__(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.fast

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.before


# --- ceilings ----------------------------------------------------------------------------------------------------


def ceilings(clock: Clock, short: bool) -> list[Line]:
    size = (512 if short else 1024) if clock.device == "cpu" else 8192
    found: list[Line] = []
    for name, dtype in precisions(clock.device).items():
        a, b = (torch.randn(size, size, device=clock.device, dtype=torch.float32).to(dtype) for _ in range(2))
        with plainly(name):
            seconds = clock(product=lambda a=a, b=b: a @ b)["product"]  # type: ignore[misc]
        found.append({"precision": name, "flops": 2 * size**3 / seconds})
    source = torch.randn((2**24 if clock.device == "cpu" else 2**30), device=clock.device)
    target = torch.empty_like(source)
    seconds = clock(copy=lambda: target.copy_(source))["copy"]
    return [*found, {"copy_bytes_per_second": 8 * source.numel() / seconds}]


# --- energies ----------------------------------------------------------------------------------------------------


def kinds(sizes: Mapping[str, int], device: str) -> dict[str, list[HiddenUnits]]:
    """Units by name, ten models of mean and covariance units, and a memory of one."""
    draw = torch.Generator().manual_seed(0)
    D, M, K = sizes["columns"], sizes["units"], sizes["models"]
    memory = MemoryUnits(1, D, sizes["memory"], 3, draw)
    with torch.no_grad():
        memory.remember(torch.randn(1, sizes["memory"], D, generator=draw))
        memory.log_T.fill_(float(np.log(D / 10)))
    mean, covariance = MeanUnits(K, D, M, generator=draw), CovarianceUnits(K, D, M, M, generator=draw)
    return {
        name: [group.to(device) for group in groups]
        for name, groups in {
            "mean": [mean], "covariance": [covariance], "mean-covariance": [mean, covariance], "memory": [memory],
        }.items()
    }  # fmt: skip


def products(groups: list[HiddenUnits], v: Tensor, dtype: torch.dtype) -> Callable[[], object]:
    """The matrix products that energies cannot do without, in this dtype."""
    rows, ready = v.to(dtype), list[tuple[Tensor, Tensor]]()
    for group in groups:
        W = group.W.detach().to(dtype)
        ready.append((rows, W.flatten(0, 1).T))
        if isinstance(group, CovarianceUnits):
            factors = torch.randn(len(W), len(v), W.shape[1], device=v.device).to(dtype)
            ready.append((factors, group.W_h.detach().to(dtype).mT))
    return lambda: [a @ b for a, b in ready]


def scores(clock: Clock, short: bool, ceiling: list[Line]) -> list[Line]:
    cpu = clock.device == "cpu"
    sizes = {"columns": 784, "units": 300, "models": 10, "memory": 2_000 if cpu else 10_000}
    n_rows = (500 if short else 2_000) if cpu else 50_000
    v = torch.randn(n_rows, sizes["columns"], generator=torch.Generator().manual_seed(1))
    peaks = {line["precision"]: line["flops"] for line in ceiling if "flops" in line}
    bandwidth = ceiling[-1]["copy_bytes_per_second"]
    found = []
    for name, groups in kinds(sizes, clock.device).items():
        model = Autoencoder(groups)
        with torch.no_grad():
            some = model.double().energy(v[:2000].to(clock.device, torch.float64))
        for precision, dtype in precisions(clock.device).items():
            held = torch.float64 if dtype == torch.float64 else torch.float32
            model, rows = model.to(held), v.to(clock.device, held)

            def energies(model: Autoencoder = model, rows: Tensor = rows, precision: str = precision) -> Tensor:
                with scoring(precision, rows.device):
                    return model.energy(rows)

            plain = products(groups, rows, dtype)

            def floor(plain: Callable[[], object] = plain, precision: str = precision) -> object:
                with plainly(precision), torch.no_grad():
                    return plain()

            seconds = clock(energies=energies, products=floor)
            error = float((energies()[:, :2000].double() - some).abs().max() / some.std())
            flops = sum(2 * n_rows * p.numel() for g in groups for p in g.parameters() if p.ndim == 3)
            n_bytes = rows.numel() * rows.element_size() + 8 * model.n_models * n_rows
            found.append(
                {"kind": name, "rows": n_rows, **sizes, "precision": precision, "ms": 1000 * seconds["energies"]}
                | {"products_ms": 1000 * seconds["products"], "ratio": seconds["energies"] / seconds["products"]}
                | {"error": error, "flop": flops, "bytes": n_bytes}
                | {"of_flops": flops / seconds["energies"] / peaks[precision]}
                | {"of_bytes": n_bytes / seconds["energies"] / bandwidth}
            )
    return found


# --- training ----------------------------------------------------------------------------------------------------


def steps(clock: Clock, short: bool, _: list[Line]) -> list[Line]:
    """Steps of K mean-covariance models with 100 rows each, as `minimise` takes them."""
    found, cuda = [], clock.device == "cuda"
    D, M, n_rows, n_epochs = 784, 300, 1000, (2 if short else 6) if not cuda else 60
    for K in (10,) if not cuda else (10, 40):
        rows = torch.randn(n_rows, D, device=clock.device)

        def run(capture: bool, precision: str, K: int = K, rows: Tensor = rows) -> tuple[float, float, str]:
            """Seconds for each step, the last loss, and why steps were eager."""
            draw = torch.Generator().manual_seed(0)
            noise = torch.Generator(clock.device).manual_seed(0)
            groups: list[HiddenUnits] = [
                MeanUnits(K, D, M, generator=draw),
                CovarianceUnits(K, D, M, M, generator=draw),
            ]
            model = Autoencoder(groups).to(clock.device)

            def loss(batch: Tensor) -> Tensor:
                v = rows[batch].expand(K, -1, -1)
                return model.loss(v, seen=corrupt(v, "gaussian", 0.3, noise)).mean(1)

            batches = row_batches(n_rows, 100, 0, clock.device)
            with computing(precision, rows.device):
                history = minimise(
                    loss, model.parameters(), batches, epochs=n_epochs, generators=[noise], capture=capture
                )
            if cuda:
                torch.cuda.synchronize()
            return history.seconds / history.n_steps, float(history.loss[-1].mean()), history.why_eager

        for precision in precisions(clock.device):
            if not cuda and precision != "exact":
                continue
            eager = run(False, precision)
            line: Line = {"models": K, "rows_each": 100, "precision": precision, "eager_ms": 1000 * eager[0]}
            if cuda:
                captured = run(True, precision)
                line |= {"captured_ms": 1000 * captured[0], "ratio": eager[0] / captured[0], "why": captured[2]}
                line |= {"losses": [eager[1], captured[1]]}
            found.append(line)
    return found


# --- default fits ------------------------------------------------------------------------------------------------


def fits(clock: Clock, short: bool, _: list[Line]) -> list[Line]:
    """CPU seconds of default fits, over those of a default MLPClassifier."""
    if clock.device != "cpu":
        return []
    sets = {"iris": load_iris, "wine": load_wine, "breast-cancer": load_breast_cancer, "digits": load_digits}
    found = []
    for name, load in list(sets.items())[: 2 if short else 4]:
        X, y = load(return_X_y=True)
        peer = make_pipeline(StandardScaler(), MLPClassifier(random_state=0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            began = time.process_time()
            peer.fit(X, y)
            mlp = time.process_time() - began
        for units in ("trunk", "memory", "mean", "covariance", "mean-covariance"):
            began = time.process_time()
            EnergyClassifier(units, random_state=0, device="cpu").fit(X, y)
            seconds = time.process_time() - began
            found.append({"set": name, "units": units, "cpu_s": seconds, "mlp_s": mlp, "ratio": seconds / mlp})
    return found


# --- growth ------------------------------------------------------------------------------------------------------


def growth(clock: Clock, short: bool, _: list[Line]) -> list[Line]:
    """Seconds of energies while one size grows fourfold twice, and of a fit for rows; slopes of their logarithms."""
    cpu = clock.device == "cpu"
    base = {"rows": 1_000, "columns": 64, "units": 64, "classes": 4, "members": 2}
    if not cpu:
        base = {"rows": 50_000, "columns": 256, "units": 256, "classes": 4, "members": 2}
    found = []
    for what in base:
        points = []
        for times in (1, 4) if short else (1, 2, 4, 8):
            size = {**base, what: base[what] * times}
            K = size["classes"] * size["members"]
            model = Autoencoder([MeanUnits(K, size["columns"], size["units"])]).to(clock.device)
            v = torch.randn(size["rows"], size["columns"], device=clock.device)
            with torch.no_grad():
                seconds = clock(energies=lambda model=model, v=v: model.energy(v))["energies"]  # type: ignore[misc]
            points.append((size[what], seconds))
        sizes, seconds_of = np.log(np.array(points)).T
        slope = float(np.polyfit(sizes, seconds_of, 1)[0])
        found.append({"of": what, "points": points, "slope": slope})
    return found


def draw(target: Path, sources: list[Path]) -> None:
    """Time over size, on logarithmic scales, for each machine."""
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for source in sources for line in source.read_text().splitlines()]
    machines = sorted({line["machine"] for line in lines if line["part"] == "growth"})
    figure, axes = plt.subplots(1, len(machines), figsize=(5 * len(machines), 3.6), squeeze=False)
    for axis, machine in zip(axes[0], machines, strict=True):
        for line in lines:
            if line["part"] == "growth" and line["machine"] == machine:
                sizes, seconds = np.array(line["points"]).T
                label = f"{line['of']}: slope {line['slope']:.2f}"
                axis.loglog(sizes / sizes[0], 1000 * seconds, "o-", label=label)
        axis.set(title=machine, xlabel="times as many", ylabel="ms for all energies")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=120)


PARTS: dict[str, Callable[[Clock, bool, list[Line]], list[Line]]] = {
    "score": scores, "step": steps, "fit": fits, "growth": growth,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--short", action="store_true", help="fewer rows and repeats")
    parser.add_argument("--draw", type=Path, help="draw the growth in these results, and measure nothing")
    parser.add_argument("results", nargs="*", type=Path)
    options = parser.parse_args()
    if options.draw is not None:
        draw(options.draw, options.results)
        return
    clock = Clock(options.device, 5 if options.short else 15)
    cores = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    machine = torch.cuda.get_device_name() if options.device == "cuda" else cores

    def say(part: str, line: Line) -> None:
        rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in line.items()}
        print(json.dumps({"part": part, "machine": machine, "torch": torch.__version__, **rounded}), flush=True)

    found = ceilings(clock, options.short)
    for line in found:
        say("ceiling", line)
    for part in options.parts:
        for line in PARTS[part](clock, options.short, found):
            say(part, line)


if __name__ == "__main__":
    main()
