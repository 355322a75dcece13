"""
One energy per class
====================

`EnergyClassifier` trains one auto-encoder per class, each on its own rows. A row belongs to the class that likes it
most. And since it is known how much a class likes a row, rows that no class likes can be turned away.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_moons

from energate import EnergyClassifier, MeanUnits


def spread(n_models, width, generator):
    """Units with edges all over the plane: without fine-tuning, small weights make smooth energies."""
    units = MeanUnits(n_models, width, 100, generator=generator)
    with torch.no_grad():
        units.W.normal_(0, 0.5, generator=generator)
        units.b.uniform_(-10, 10, generator=generator)
    return units


X, y = make_moons(500, noise=0.12, random_state=0)
fresh, truth = make_moons(2000, noise=0.12, random_state=1)
model = EnergyClassifier(
    spread, scaling="none", noise_level=1.5, pretrain_epochs=200, max_epochs=0, learning_rate=1e-2, random_state=0
)
model.fit(10 * X, y)  # large numbers, so that weights of ordinary size see details
print(f"accuracy on fresh rows: {model.score(10 * fresh, truth):.3f}")
print(f"with the defaults:      {EnergyClassifier(random_state=0).fit(X, y).score(fresh, truth):.3f}")

# %%
# The defaults fine-tune, which is the better classifier where classes overlap. Here ``max_epochs=0`` leaves it out: no
# class has ever seen a row of the other, and only a bias for each was calibrated.
#
# The two energies, and what comes of them; the black line is where both classes are equally probable.

xs, ys = np.linspace(-2.2, 3.2, 160), np.linspace(-1.9, 2.4, 130)
plane = 10 * np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)
energies = model.energies(plane).T.reshape(2, len(ys), len(xs))
probability = model.predict_proba(plane)[:, 1].reshape(len(ys), len(xs))
rejected = model.rejects(plane, rate=0.02).reshape(len(ys), len(xs))

figure, axes = plt.subplots(2, 2, figsize=(9, 7.4), sharex=True, sharey=True)
for k in range(2):
    levels = np.unique(np.quantile(energies[k], np.linspace(0.05, 1, 25)))
    axes[0, k].contourf(xs, ys, energies[k], levels=levels, cmap="viridis", extend="min")
    axes[0, k].scatter(*X[y == k].T, s=6, color="crimson" if k else "black")
    axes[0, k].set_title(f"how much class {k} likes a point")
axes[1, 0].contourf(xs, ys, probability, levels=np.linspace(0, 1, 21), cmap="PiYG")
axes[1, 0].contour(xs, ys, probability, levels=[0.5], colors="black")
axes[1, 0].set_title("probability of class 1")
axes[1, 1].contourf(xs, ys, np.where(rejected, np.nan, probability), levels=np.linspace(0, 1, 21), cmap="PiYG")
axes[1, 1].set_title("the same, without what no class likes")
for ax in axes[1]:
    ax.scatter(*X[y == 0].T, s=6, color="black")
    ax.scatter(*X[y == 1].T, s=6, color="crimson")
figure.tight_layout()

# %%
# Probabilities are calibrated: of the rows given 70 %, about 70 % should be of that class. To see it the classes have
# to overlap, so here are moons with more noise.

X, y = make_moons(1000, noise=0.35, random_state=0)
fresh, truth = make_moons(10_000, noise=0.35, random_state=1)
frequency, confidence = calibration_curve(truth, model.fit(10 * X, y).predict_proba(10 * fresh)[:, 1], n_bins=10)

figure, ax = plt.subplots(figsize=(4.6, 4.4))
ax.plot([0, 1], [0, 1], color="grey", linestyle=":")
ax.plot(confidence, frequency, marker="o")
ax.set(xlabel="probability of class 1", ylabel="share of class 1 among such rows")
figure.tight_layout()
