"""
What is unusual
===============

`EnergyScorer` learns normal rows and scores others by how much it likes them. First in two dimensions, where the whole
energy can be drawn; then on images of digits, where it has seen one digit only.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons
from sklearn.metrics import roc_auc_score

from energate import EnergyScorer, MeanUnits


def spread(n_models, width, generator):
    """Units with edges all over the plane: with few columns, the small weights of the defaults make smooth energies."""
    units = MeanUnits(n_models, width, 200, generator=generator)
    with torch.no_grad():
        units.W.normal_(0, 0.5, generator=generator)
        units.b.uniform_(-10, 10, generator=generator)
    return units


X = 10 * make_moons(800, noise=0.06, random_state=0)[0]
plain = EnergyScorer(false_positive_rate=0.02, validation_fraction=0.2, random_state=0).fit(X)
scorer = EnergyScorer(
    spread,
    scaling="none",
    noise_level=1.5,
    far_share=0.0,
    learning_rate=1e-2,
    max_epochs=300,
    false_positive_rate=0.02,
    validation_fraction=0.2,
    random_state=0,
).fit(X)

# %%
# The black line is the threshold: what lies outside of it is called an anomaly. It was set on rows held out, so that
# about 2 % of fresh normal rows fall outside. In the plane the defaults, which are made for tables with more columns,
# give an outline only; units spread over the plane see the two moons.

xs, ys = np.linspace(-22, 32, 160), np.linspace(-19, 24, 130)
plane = np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)

figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
for ax, model, name in zip(axes, (plain, scorer), ("the defaults", "units spread over the plane"), strict=True):
    score = model.decision_function(plane).reshape(len(ys), len(xs))  # energy above the threshold
    levels = np.unique(np.quantile(score, np.linspace(0.05, 1, 25)))
    ax.contourf(xs, ys, score, levels=levels, cmap="viridis", extend="min")
    ax.contour(xs, ys, score, levels=[0], colors="black")
    ax.scatter(*X.T, s=4, color="white", alpha=0.7, linewidths=0)
    ax.set_title(name)
figure.tight_layout()

fresh = 10 * make_moons(5000, noise=0.06, random_state=1)[0]
for name, model in (("the defaults", plain), ("spread units", scorer)):
    print(f"{name}: {100 * (model.predict(fresh) == -1).mean():.1f} % of fresh rows are called anomalies")

# %%
# Digits: fitted to half of the sixes, and shown the other half among all other digits.

digits = load_digits()
six = np.flatnonzero(digits.target == 6)
train, rest = six[::2], np.setdiff1d(np.arange(len(digits.target)), six[::2])
scorer = EnergyScorer(random_state=0).fit(digits.data[train])
liking = scorer.score_samples(digits.data[rest])
print(f"ROC-AUC {roc_auc_score(digits.target[rest] == 6, liking):.3f}")

order = rest[np.argsort(-liking)]
sixes = order[digits.target[order] == 6]
others = order[digits.target[order] != 6]
lines = {
    "sixes liked most": sixes[:10],
    "sixes liked least": sixes[-10:],
    "others liked most": others[:10],
    "others liked least": others[-10:],
}
figure, axes = plt.subplots(4, 10, figsize=(9, 4))
for line, (name, rows) in zip(axes, lines.items(), strict=True):
    for ax, row in zip(line, rows, strict=True):
        ax.imshow(digits.images[row], cmap="gray_r")
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name.replace("liked ", "liked\n"), rotation=0, ha="right", va="center")
figure.tight_layout()
