"""
Images: classified, denoised, filled in, rejected
=================================================

`ImageEnergyClassifier` has one energy for each class and one that all classes share. The first tell classes apart, the
second knows what images look like. Here it learns from scikit-learn's 8 x 8 digits, which takes a CPU some seconds;
[its page](../image-classifier.md) has pictures of larger ones.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

from energate import ImageEnergyClassifier
from energate.views import trajectory

X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
X = X.reshape(-1, 8, 8) / 16
model = ImageEnergyClassifier(
    n_hidden=16, channels=16, n_blocks=0, max_epochs=20, scaling="none", device="cpu", random_state=0
)
model.fit(X[:1300], y[:1300])
test, labels = X[1300:], y[1300:]
print(f"error {100 * (1 - model.score(test, labels)):.1f} %")


def show(rows, titles=()):
    n = max(len(images) for _, images in rows)
    _, axes = plt.subplots(len(rows), n, figsize=(0.8 * n + 1, 0.9 * len(rows)), squeeze=False)
    for line, (name, images) in zip(axes, rows, strict=True):
        for ax, image in zip(line, images, strict=True):
            ax.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            ax.axis("off")
        line[0].text(-0.2, 0.5, name, transform=line[0].transAxes, ha="right", va="center")
    for ax, title in zip(axes[-1], titles, strict=False):
        ax.set_title(title, fontsize=7)


# %%
# Denoised: one step along the gradient of the energy of all classes together. The model is not told how much noise
# there is.

few, random = test[:8], np.random.default_rng(0)
noisy = few + 0.3 * random.normal(size=few.shape)
show([("clean", few), ("noisy", noisy), ("denoised", model.denoise(noisy))])

# %%
# Filled in: the energy of the missing pixels, given the others, is highest near their mean. Draws are single guesses.

missing = np.zeros((8, 8), dtype=bool)
missing[4:] = True
show(
    [
        ("known", np.where(missing, 0.5, few)),
        ("filled in", model.inpaint(few, missing)),
        ("a draw", model.inpaint(few, missing, draw=True)),
        ("truth", few),
    ]
)

# %%
# Rejected: images that look like none of those it learnt from. Nothing like them was trained on.

mixed = few.reshape(8, -1)[:, random.permutation(64)].reshape(8, 8, 8)
odd = np.concatenate([few[:3], mixed[:2], 1 - few[:2], random.random((2, 8, 8))])
words = [
    f"{liking:.0f}{chr(10) + 'rejected' if no else ''}"
    for liking, no in zip(model.score_samples(odd), model.rejects(odd), strict=True)
]
show([("liking", odd)], words)

# %%
# Along the trajectory: a noisy digit follows the field of the class that likes it best, uphill in its energy.

start = test[3] + 0.4 * random.normal(size=(8, 8))
points = np.asarray(trajectory(model, start.ravel(), n_steps=7)["points"])
show([("steps", points.reshape(-1, 8, 8))])

# %%
# Drawn from noise that falls. It has learnt strokes rather than digits from 1,300 small images.

show([("drawn", model.sample(8))])
