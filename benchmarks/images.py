"""One model of digits that classifies, rejects, denoises and fills in, beside others: JSON lines, and a table.

python benchmarks/images.py [--data FOLDER] [--device auto] [--judge test] [--seeds 3] [--minutes 60] [--quick]
python benchmarks/images.py --judge development --systems hybrid --options '{"n_blocks": 2}' --name deep

Systems: `ImageEnergyClassifier` trained by cross-entropy alone, and with the energy that all classes share (*hybrid*);
a plain denoiser of as many parameters as the latter, trained on the same images and the noise levels that are measured;
the mean of the 10 nearest neighbours for pixels that are missing.  ``--data``, or else ENERGATE_DATA, is the folder
with single/mnist.npz, notmnist.npz, rectangles.npz and convex.npz; the digits that train are the first ``--rows``.

Measured on digits that were not trained on: error, log-loss, calibration error; how well scores tell them from images
that are no digits (AUROC in percent, of F, of the maximal probability, of the Mahalanobis distance and of the distance
to the 50th neighbour on features; F is `score_samples`); denoising in dB at three noise levels, which the model is told
or not; the mean squared error of pixels filled in, and drawn; the asymmetry of the Jacobian of the field of F.

``--judge development`` measures on other digits (50,000 to 59,999 of those to train on) and other outliers (the first
half of notMNIST, the training parts of rectangles and convex) than ``--judge test``: choices are made there.

Lines that the file already holds are not computed again.  ``--options`` are parameters of the estimator,
``--constants`` attributes of its network (`ImageNetwork`), for lines with a ``--name`` of their own; ``--report`` only
prints.
"""

import argparse
import copy
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from image_peers import (
    by_neighbours,
    decibels,
    features_of,
    in_parts,
    mahalanobis,
    n_parameters,
    neighbours_fill,
    plain_denoiser,
)
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from energate import ImageEnergyClassifier
from energate.conservative import jacobian_asymmetry
from energate.estimators.edge import resolve_device
from energate.estimators.image_network import ImageNetwork
from energate.measures import of_classes

Line = dict[str, Any]
Images = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "images.jsonl"
SIDE, NOISE = 28, (0.1, 0.3, 0.5)
SYSTEMS: dict[str, dict[str, Any]] = {
    "cross-entropy": {"denoising_weight": 0.0},
    "hybrid": {},
}
PLAIN, NEIGHBOURS = "plain denoiser", "nearest neighbours"
OUTLIERS = ("notMNIST", "rectangles", "convex", "noise", "inverted", "shuffled")


# --- images --------------------------------------------------------------------------------------------------------


def digits(folder: Path, n_rows: int, judge: str) -> dict[str, Any]:
    """Digits to train on and to be judged by, from 0 to 1."""
    with np.load(folder / "single" / "mnist.npz", allow_pickle=False) as file:
        X, y = file["x_train"], file["y_train"].astype(np.int64)
        test = (X[50_000:], y[50_000:]) if judge == "development" else (file["x_test"], file["y_test"].astype(np.int64))
    return {"X": X[:n_rows] / 255, "y": y[:n_rows], "X_test": test[0] / 255, "y_test": test[1]}


def outliers(folder: Path, digits: Images, judge: str) -> dict[str, Images]:
    """Images that are no digits, or no longer."""

    def file(name: str, key: str) -> Images:
        with np.load(folder / "single" / f"{name}.npz", allow_pickle=False) as found:
            images = found[key].reshape(-1, SIDE, SIDE).astype(np.float64)
        return images / images.max()

    random, letters = np.random.default_rng(0), file("notmnist", "X")
    half = len(letters) // 2
    part = "x_train" if judge == "development" else "x_test"
    order = random.permutation(SIDE * SIDE)  # the same of every digit
    return {
        "notMNIST": letters[:half] if judge == "development" else letters[half:],
        "rectangles": file("rectangles", part)[:3000],
        "convex": file("convex", part)[::17][:3000] if judge == "test" else file("convex", part)[:3000],
        "noise": random.random((3000, SIDE, SIDE)),
        "inverted": 1 - digits[:3000],
        "shuffled": digits[:3000].reshape(-1, SIDE * SIDE)[:, order].reshape(-1, SIDE, SIDE),
    }


def masks() -> dict[str, NDArray[np.bool_]]:
    """Pixels that are missing, by name."""
    half, middle = (np.zeros((SIDE, SIDE), dtype=bool) for _ in range(2))
    half[:, SIDE // 2 :], middle[8:20, 8:20] = True, True
    return {"right half": half, "middle": middle, "3 of 4": np.random.default_rng(0).random((SIDE, SIDE)) < 0.75}


# --- what is measured ------------------------------------------------------------------------------------------------


def of_a_classifier(model: ImageEnergyClassifier, data: dict[str, Any], others: dict[str, Images], few: int) -> Line:
    """All measures of a fitted model; ``few`` images are denoised, half as many filled in."""
    X, y = data["X_test"], data["y_test"]
    found = of_classes(model.predict_log_proba(X), model.classes_, y)
    line: Line = {name: round(float(value), 4) for name, value in found.items() if isinstance(value, float)}
    line["auroc"] = aurocs(model, data, others)
    noise = np.random.default_rng(1).normal(size=(few, SIDE, SIDE))
    for level in NOISE:
        seen, clean = X[:few] + level * noise, torch.as_tensor(X[:few])
        line[f"dB {level}"] = decibels(torch.as_tensor(model.denoise(seen)), clean)
        if model.denoising_weight:
            line[f"dB {level}, told"] = decibels(torch.as_tensor(model.denoise(seen, level)), clean)
    some = X[: few // 2]
    for name, mask in masks().items():
        filled = {name: model.inpaint(some, mask)}
        if model.denoising_weight:
            filled[f"{name}, drawn"] = model.inpaint(some, mask, draw=True)
        for of, images in filled.items():
            line[f"filled {of}"] = round(float(np.square(images - some)[:, mask].mean()), 5)
    return line | {"asymmetry": asymmetry(model, X[:2]), "rejected": round(float(model.rejects(X).mean()), 5)}


def aurocs(
    model: ImageEnergyClassifier, data: dict[str, Any], others: dict[str, Images]
) -> dict[str, dict[str, float]]:
    """Of every score and every kind of outliers, in percent."""
    train = features_of(model, torch.as_tensor(data["X"]))
    distance = mahalanobis(train, torch.as_tensor(data["y"]).to(train.device))
    neighbours = by_neighbours(train)

    def scores(X: Images) -> dict[str, Any]:
        features = features_of(model, torch.as_tensor(X))
        return {
            "F": model.score_samples(X),
            "probability": model.predict_log_proba(X).max(1),
            "Mahalanobis": distance(features).cpu().numpy(),
            "kNN": neighbours(features).cpu().numpy(),
        }

    inside: dict[str, Any] = scores(data["X_test"])
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name, images in others.items():
        for score, values in scores(images).items():
            both = np.r_[inside[score], values]
            is_digit = np.repeat([1, 0], [len(inside[score]), len(values)])
            found[score][name] = round(100 * float(roc_auc_score(is_digit, both)), 3)
    return dict(found)


def asymmetry(model: ImageEnergyClassifier, X: Images) -> float:
    """Of the Jacobian of the field of F, in float64."""
    together = copy.deepcopy(model.together_).cpu().double().requires_grad_(False)
    v = torch.as_tensor(model.scaler_(X.reshape(len(X), -1))).to(together.a)
    return float(jacobian_asymmetry(together, v).max())


# --- systems ------------------------------------------------------------------------------------------------------


def fit(options: dict[str, Any], data: dict[str, Any], seed: int) -> tuple[ImageEnergyClassifier, Line]:
    model = ImageEnergyClassifier(**options, random_state=seed)
    began = time.perf_counter()
    model.fit(data["X"], data["y"])
    seconds = time.perf_counter() - began
    history = model.history_["fine-tune"]
    return model, {
        "parameters": n_parameters(model.model_),
        "fit_s": round(seconds, 2),
        "step_ms": round(1000 * history.seconds / max(1, history.n_steps), 3),
        "replayed": round(history.n_replayed / max(1, history.n_steps), 3),
        "why_eager": history.why_eager,
        "scale": round(float(model.model_.scale().detach()), 3),
        "loss": round(float(history.loss[-1]), 4),
    }


def denoiser_line(data: dict[str, Any], options: dict[str, Any], seed: int, few: int) -> Line:
    """A plain denoiser of the size of the classifier."""
    device = resolve_device(options["device"])
    small = ImageEnergyClassifier(**{**options, "max_epochs": 0, "device": "cpu"}, random_state=seed)
    size = n_parameters(small.fit(data["X"][:200], data["y"][:200]).model_)
    images, began = torch.as_tensor(data["X"], dtype=torch.float32, device=device), time.perf_counter()
    made = plain_denoiser(images, size, (min(NOISE), max(NOISE)), options["max_epochs"], seed)
    line: Line = {"parameters": n_parameters(made), "fit_s": round(time.perf_counter() - began, 2)}
    X = torch.as_tensor(data["X_test"][:few])
    noise = torch.as_tensor(np.random.default_rng(1).normal(size=X.shape))
    for level in NOISE:
        seen = (X + level * noise).to(images)
        line[f"dB {level}"] = decibels(in_parts(made, seen).cpu().double(), X)
        line[f"dB {level}, noisy"] = decibels(seen.cpu().double(), X)
    return line


def neighbours_line(data: dict[str, Any], options: dict[str, Any], _: int, few: int) -> Line:
    device = resolve_device(options["device"])
    among = torch.as_tensor(data["X"], dtype=torch.float32, device=device).flatten(1)
    some = torch.as_tensor(data["X_test"][: few // 2], dtype=torch.float32, device=device).flatten(1)
    line: Line = {}
    for name, mask in masks().items():
        unknown = torch.as_tensor(mask.ravel(), device=device)
        missed = (neighbours_fill(some, unknown, among) - some)[:, unknown]
        line[f"filled {name}"] = round(float(missed.square().mean()), 5)
    return line


PEERS: dict[str, Callable[[dict[str, Any], dict[str, Any], int, int], Line]] = {
    PLAIN: denoiser_line,
    NEIGHBOURS: neighbours_line,
}


def measure(system: str, seed: int, options: argparse.Namespace) -> Line:
    data = digits(options.data, options.rows, options.judge)
    shared: dict[str, Any] = {"device": options.device, "max_epochs": options.epochs, **options.options}
    if options.quick:
        data |= {name: data[name][:500] for name in ("X_test", "y_test")}
        shared |= {"channels": 8, "n_hidden": 8, "n_blocks": 0}
    few = 100 if options.quick else 2000
    if system in PEERS:
        return PEERS[system](data, shared, seed, few)
    model, line = fit({**shared, **SYSTEMS[system]}, data, seed)
    others = outliers(options.data, data["X_test"], options.judge)
    others = {name: images[:500] if options.quick else images for name, images in others.items()}
    return line | of_a_classifier(model, data, others, few)


# --- the run and the table ----------------------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def key_of(line: Line) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("name", "system", "seed", "rows", "epochs", "judge"))


def run(options: argparse.Namespace) -> Iterator[Line]:
    """Lines that the file lacks, one by one, until the time is over."""
    done, until = {key_of(line) for line in read(options.out)}, time.time() + 60 * options.minutes
    for seed in range(options.first, options.first + options.seeds):
        for system in options.systems:
            line: Line = {"name": options.name or system, "system": system, "seed": seed}
            line |= {"rows": options.rows, "epochs": options.epochs, "judge": options.judge}
            if key_of(line) in done or time.time() > until:
                continue
            given = {"options": options.options, "constants": options.constants}
            device = torch.cuda.get_device_name() if resolve_device(options.device).type == "cuda" else "cpu"
            yield line | given | {"device": device} | measure(system, seed, options)


def value_of(path: Sequence[str], line: Line) -> Any:
    """What a line has under names inside names, or None."""
    found: Any = line
    for name in path:
        found = found.get(name) if found is not None else None
    return found


def table(lines: list[Line]) -> str:
    """Means over the seeds, and their spread where there are several."""
    by_name: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_name[line["name"]].append(line)

    def cell(some: list[Line], get: Callable[[Line], Any]) -> str:
        values = [value for line in some if (value := get(line)) is not None]
        if not values:
            return ""
        spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
        return f"{np.mean(values):.4g}{spread}"

    plain = ["error", "log_loss", "calibration_error", *(f"dB {level}{of}" for of in ("", ", told") for level in NOISE)]
    plain += [f"filled {name}{of}" for name in masks() for of in ("", ", drawn")]
    plain += ["asymmetry", "parameters", "fit_s", "step_ms", "replayed"]
    rows = ["| | " + " | ".join(by_name) + " |", "|---" * (len(by_name) + 1) + "|"]
    getters: dict[str, Callable[[Line], Any]] = {name: partial(value_of, (name,)) for name in plain}
    for score in ("F", "probability", "Mahalanobis", "kNN"):
        getters |= {f"AUROC of {score}: {kind}": partial(value_of, ("auroc", score, kind)) for kind in OUTLIERS}
    for name, get in getters.items():
        rows.append(f"| {name} | " + " | ".join(cell(some, get) for some in by_name.values()) + " |")
    return "\n".join(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("ENERGATE_DATA", "data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--judge", choices=("test", "development"), default="test")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS, *PEERS], default=[*SYSTEMS, *PEERS])
    parser.add_argument("--options", type=json.loads, default={}, help="parameters of the estimator, as JSON")
    parser.add_argument("--constants", type=json.loads, default={}, help="attributes of ImageNetwork, as JSON")
    parser.add_argument("--name", help="of the lines, where --options or --constants make them other ones")
    parser.add_argument("--minutes", type=float, default=60.0, help="start nothing new after so many")
    parser.add_argument("--quick", action="store_true", help="a small network, 600 digits, 1 epoch, 1 seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="print the table of the file, compute nothing")
    options = parser.parse_args()
    if (options.options or options.constants) and not options.name:
        parser.error("--options and --constants make other lines: give them a --name")
    if options.quick:
        options.rows, options.epochs, options.seeds = 600, 1, 1
    options.data = Path(options.data)
    if not options.report and not (options.data / "single").is_dir():
        parser.error(f"{options.data / 'single'} is not there; --data or ENERGATE_DATA names its folder")
    return options


def main() -> None:
    options = parsed()
    for name, value in options.constants.items():
        setattr(ImageNetwork, name, value)
    if not options.report:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for line in run(options):
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    asked = [line for line in read(options.out) if line["judge"] == options.judge]
    print("\n" + table(asked))


if __name__ == "__main__":
    main()
