"""Pictures of what a model of digits makes of images: `python examples/draw_images.py MODEL FOLDER [--data FOLDER]`.

MODEL is one of `train_mnist_model.py`; the digits are test digits of single/mnist.npz under ``--data``, or else
ENERGATE_DATA, and the images that are no digits come from single/notmnist.npz and convex.npz.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from energate import load
from energate.views import trajectory

Images = NDArray[np.float64]
SIDE = 28


def grid(path: Path, rows: Sequence[tuple[str, Images]], titles: Sequence[str] = ()) -> None:
    """Images in rows with names, perhaps with words above those of the last row."""
    n = max(len(images) for _, images in rows)
    figure, axes = plt.subplots(len(rows), n, figsize=(0.75 * n + 1.2, 0.85 * len(rows)), squeeze=False)
    for line, (name, images) in zip(axes, rows, strict=True):
        for ax in line:
            ax.axis("off")
        for ax, image in zip(line, images, strict=False):
            ax.imshow(image.reshape(SIDE, SIDE), cmap="gray_r", vmin=0, vmax=1)
        line[0].text(-0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=8)
    for ax, title in zip(axes[-1], titles, strict=False):
        ax.set_title(title, fontsize=7)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def draw(model_path: Path, out: Path, data: Path) -> None:
    model = load(model_path)

    def file(name: str, key: str) -> Images:
        with np.load(data / "single" / f"{name}.npz", allow_pickle=False) as found:
            images = found[key].reshape(len(found[key]), -1).astype(np.float64)
        return images / images.max()

    digits, random = file("mnist", "x_test")[:12], np.random.default_rng(0)
    out.mkdir(parents=True, exist_ok=True)
    rows = [("clean", digits)]
    for level in (0.3, 0.6):
        noisy = digits + level * random.normal(size=digits.shape)
        rows += [(f"noise {level}", noisy), ("denoised", model.denoise(noisy))]
    grid(out / "images-denoised.png", rows)

    half = np.zeros((SIDE, SIDE), dtype=bool)
    half[:, SIDE // 2 :] = True
    hidden = half.ravel()
    rows = [("known", np.where(hidden, 0.5, digits)), ("filled in", model.inpaint(digits, hidden[None]))]
    rows += [(f"draw {n + 1}", model.inpaint(digits, hidden[None], draw=True, random_state=n)) for n in range(2)]
    grid(out / "images-filled.png", [*rows, ("truth", digits)])

    shown = np.concatenate([digits[:6], file("notmnist", "X")[:3], file("convex", "x_test")[:3]])
    likings, rejected = model.score_samples(shown), model.rejects(shown)
    words = [f"{liking:.0f}{chr(10) + 'rejected' if no else ''}" for liking, no in zip(likings, rejected, strict=True)]
    grid(out / "images-rejected.png", [("liking", shown)], words)

    rows = []
    for digit in (digits[1], digits[4]):
        start = digit + 0.5 * random.normal(size=digit.shape)
        of = int(model.predict(start[None])[0])
        path = np.asarray(trajectory(model, start, n_steps=11, of=of)["points"])
        rows.append((f"as {of}", path[:12]))
    grid(out / "images-trajectory.png", rows)
    grid(out / "images-drawn.png", [("drawn", model.sample(12).reshape(12, -1))])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ENERGATE_DATA", "data")))
    options = parser.parse_args()
    draw(options.model, options.out, options.data)
