"""Pairs of images: a gated auto-encoder learns the transformation between them, scores pairs, and draws analogies.

Trains `PairScorer` on pairs of random images, the second one shifted or rotated, and measures on fresh pairs
(1) whether the hidden units tell which transformation it was, (2) whether true pairs score above wrong ones, and
(3) whether a transformation seen on one pair can be applied to another image.
Run it with `python examples/pairs.py --out FOLDER`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from energate import PairScorer
from energate.datasets import make_image_pairs, transform_images

mpl.use("Agg")

from matplotlib import pyplot as plt

Images = NDArray[np.float32]

SIDE = 10
KINDS: dict[str, dict[str, Any]] = {"shift": {"max_shift": 2}, "rotate": {"n_angles": 12}}
STILL = {"shift": 12, "rotate": 0}  # the number of the transformation that changes nothing
NOUNS = {"shift": "shift", "rotate": "rotation"}
N_TRAIN, N_TEST, N_LABELLED = 8000, 1000, 1000


def pairs(kind: str, n_rows: int, seed: int) -> tuple[Images, Images, NDArray[np.int64]]:
    return make_image_pairs(n_rows, kind, side=SIDE, seed=seed, **KINDS[kind])


def train(kind: str, relation: str, seed: int) -> PairScorer:
    X, Y, _ = pairs(kind, N_TRAIN, seed)
    return PairScorer(relation, max_epochs=20, random_state=seed).fit(X, Y)


def likeness(a: Images, b: Images) -> float:
    """The mean cosine between images: 1 where they are equal up to contrast."""
    return float(((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))).mean())


def measure(model: PairScorer, kind: str, seed: int) -> dict[str, float]:
    X, Y, t = pairs(kind, N_TEST, 1000 + seed)
    X_new = pairs(kind, N_TEST, 2000 + seed)[0]
    X_known, Y_known, t_known = pairs(kind, N_LABELLED, 3000 + seed)
    other_t = np.random.default_rng(seed).permutation(t)
    mirrored = X.reshape(-1, SIDE, SIDE)[:, :, ::-1].reshape(X.shape)
    wrong = {
        "another image": np.roll(Y, 1, axis=0),
        "mirrored": transform_images(mirrored, t, kind, **KINDS[kind]),
        "another of the kind": transform_images(X, other_t, kind, **KINDS[kind]),
    }
    changed = {name: other_t != t if name == "another of the kind" else np.ones(len(t), bool) for name in wrong}
    nearest = KNeighborsClassifier(5)
    known, fresh = np.hstack([X_known, Y_known]), np.hstack([X, Y])
    numbers = {
        "units": 100 * nearest.fit(model.transform(X_known, Y_known), t_known).score(model.transform(X, Y), t),
        "pixels": 100 * nearest.fit(known, t_known).score(fresh, t),
    }
    right = model.score_pairs(X, Y)
    for name, Y_wrong in wrong.items():
        scores = model.score_pairs(X, Y_wrong)
        if model.relation == "conditional":  # comparable for one x only: how often does the true y win?
            numbers[name] = float((right > scores)[changed[name]].mean())
        else:
            both = np.concatenate([right[changed[name]], scores[changed[name]]])
            numbers[name] = float(roc_auc_score(np.arange(len(both)) < len(both) // 2, both))
    for name, images in (("random", X_new), ("digits", digits(kind)[:N_TEST])):
        truth = transform_images(images, t, kind, **KINDS[kind])
        numbers[f"{name} applied"] = likeness(model.apply(X, Y, images), truth)
        numbers[f"{name} copied"] = likeness(images, truth)
    return numbers


def digits(kind: str) -> Images:
    """scikit-learn's handwritten digits, in a frame of one pixel, normalised as the images of that kind."""
    images = np.pad(load_digits().images, [(0, 0), (1, 1), (1, 1)]).reshape(-1, SIDE * SIDE)
    return transform_images(images, np.full(len(images), STILL[kind]), kind, **KINDS[kind])


def name_of(kind: str, number: int) -> str:
    if kind == "rotate":
        return f"turned\n{360 * number // KINDS[kind]['n_angles']}°"
    size = 2 * KINDS[kind]["max_shift"] + 1
    down, right = number // size - size // 2, number % size - size // 2
    return f"{'down' if down > 0 else 'up'} {abs(down)}\n{'right' if right > 0 else 'left'} {abs(right)}"


def draw(models: dict[str, PairScorer], out: Path) -> Path:
    """Transformations taken from a pair of random images, applied to another one and to a digit; all unseen."""
    chosen = [("shift", 0, 3), ("shift", 9, 4), ("shift", 20, 7), ("rotate", 2, 3), ("rotate", 6, 4), ("rotate", 9, 7)]
    titles = ["x", "y", "new x", "applied", "truth", "digit", "applied", "truth"]
    columns = [0, 1, 3, 4, 5, 7, 8, 9]  # with a gap between the pair, the new image and the digit
    widths = [0.35 if i in (2, 6) else 1 for i in range(10)]
    figure, axes = plt.subplots(
        6, 10, figsize=(8.9, 6.4), gridspec_kw={"wspace": 0.06, "hspace": 0.08, "width_ratios": widths}
    )
    for ax in axes[:, [2, 6]].flat:
        ax.set_axis_off()
    for line, (kind, number, digit) in zip(axes[:, columns], chosen, strict=True):
        X, Y, t = pairs(kind, N_TEST, 1000)
        row = np.flatnonzero(t == number)[:1]
        images = [X[row], Y[row]]
        for other in (pairs(kind, N_TEST, 2000)[0][row], digits(kind)[[digit]]):
            images += [other, models[kind].apply(X[row], Y[row], other)]
            images += [transform_images(other, t[row], kind, **KINDS[kind])]
        for ax, image in zip(line, images, strict=True):
            ax.imshow(image.reshape(SIDE, SIDE), cmap="gray", vmin=-2, vmax=2.5)
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(name_of(kind, number), rotation=0, ha="right", va="center", fontsize=9)
    for ax, title in zip(axes[0, columns], titles, strict=True):
        ax.set_title(title, fontsize=10)
    path = out / "analogies.png"
    figure.savefig(path, dpi=80, bbox_inches="tight")
    plt.close(figure)
    return path


def run(out: Path, n_seeds: int = 3) -> None:
    """Print the table, means over seeds, and draw the analogies."""
    began = time.perf_counter()
    print(f"{N_TRAIN:,} pairs of {SIDE} x {SIDE} random images, {N_TEST:,} fresh ones to test; seeds: {n_seeds}")
    drawn = {}
    for kind in KINDS:
        for relation in ("conditional", "symmetric"):
            models = [train(kind, relation, seed) for seed in range(n_seeds)]
            runs = [measure(model, kind, seed) for seed, model in enumerate(models)]
            mean = {name: float(np.mean([numbers[name] for numbers in runs])) for name in runs[0]}
            score = "true y wins" if relation == "conditional" else "ROC-AUC"
            noun = NOUNS[kind]
            print(f"{noun}, {relation}")
            print(
                f"  which {noun}, by 5 neighbours: {mean['units']:.1f} % from units, {mean['pixels']:.1f} % from pixels"
            )
            print(f"  {score} against another image's y {mean['another image']:.3f}, x mirrored {mean['mirrored']:.3f}")
            print(f"  {score} against another {noun} of x, which is as good a pair: {mean['another of the kind']:.3f}")
            for name in ("random", "digits"):
                applied, copied = mean[f"{name} applied"], mean[f"{name} copied"]
                print(f"  applied to new images ({name}): cosine to the truth {applied:.3f}; if unchanged {copied:.3f}")
            if relation == "conditional":
                drawn[kind] = models[0]
    print(f"wrote {draw(drawn, out)}")
    print(f"{time.perf_counter() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for the picture")
    parser.add_argument("--seeds", type=int, default=3, help="number of training runs of each model")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the models are small: more threads would mostly wait for each other
    run(options.out, options.seeds)


if __name__ == "__main__":
    main()
