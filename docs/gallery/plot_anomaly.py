"""
What is unusual
===============

`EnergyScorer` remembers normal rows and scores others by how much it likes them. First in two dimensions, where the
whole energy can be drawn; then on images of digits, where it has seen one digit only.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons
from sklearn.metrics import roc_auc_score

from energate import EnergyScorer

X = 10 * make_moons(800, noise=0.06, random_state=0)[0]
memory = EnergyScorer(column_weight=0, false_positive_rate=0.02, random_state=0).fit(X)
trained = EnergyScorer("mean-covariance", false_positive_rate=0.02, validation_fraction=0.2, random_state=0).fit(X)

# %%
# The black line is the threshold: what lies outside of it is called an anomaly, about 2 % of fresh normal rows. The
# memory, whose hidden units are the rows themselves, sees the two moons; a trained auto-encoder, made for tables with
# more columns, gives an outline only. ``column_weight=0`` leaves out the energy of the columns alone, which in two
# columns draws a cross.

xs, ys = np.linspace(-22, 32, 160), np.linspace(-19, 24, 130)
plane = np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)

figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
for ax, model, name in zip(axes, (memory, trained), ("memory", "trained"), strict=True):
    score = model.decision_function(plane).reshape(len(ys), len(xs))  # energy above the threshold
    levels = np.unique(np.quantile(score, np.linspace(0.05, 1, 25)))
    ax.contourf(xs, ys, score, levels=levels, cmap="viridis", extend="min")
    ax.contour(xs, ys, score, levels=[0], colors="black")
    ax.scatter(*X.T, s=4, color="white", alpha=0.7, linewidths=0)
    ax.set_title(name)
figure.tight_layout()

fresh = 10 * make_moons(5000, noise=0.06, random_state=1)[0]
for name, model in (("memory", memory), ("trained", trained)):
    print(f"{name}: {100 * (model.predict(fresh) == -1).mean():.1f} % of fresh rows are called anomalies")

# %%
# The vector field of the memory is mean shift: an arrow points from a row to the mean of the rows around it, weighed by
# a Gaussian at each of the temperatures. The lowest was chosen by the likelihood of each row when it is left out.

units = memory.model_.groups[0]
print("temperatures, in squared columns of the scaler:", np.round(units.temperatures[0].numpy(), 4))
few = np.stack(np.meshgrid(xs[::9], ys[::9]), -1).reshape(-1, 2)
with torch.no_grad():
    arrows = memory.model_.vector_field(torch.as_tensor(memory.scaler_(few)))[0].numpy() * memory.scaler_.size
figure, ax = plt.subplots(figsize=(6, 4.2))
ax.scatter(*X.T, s=4, color="tab:gray", linewidths=0)
ax.quiver(*few.T, *arrows.T, angles="xy", color="tab:blue", width=0.003)
ax.set_title("the field of a memory is mean shift")
figure.tight_layout()

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

# %%
# A stream that drifts: normal rows move, step by step. A memory that forgets follows them; one that does not, keeps
# liking what was normal once.

rng = np.random.default_rng(0)
follows, keeps = EnergyScorer(forgetting=0.01, random_state=0), EnergyScorer(random_state=0)
share = {"forgetting=0.01": [], "forgetting=0": []}
for step in range(20):
    rows = rng.normal(size=(100, 4)) + 0.4 * step
    for shares, model in zip(share.values(), (follows, keeps), strict=True):
        model.partial_fit(rows)
        shares.append((model.predict(rng.normal(size=(200, 4))) == -1).mean())  # rows of the first step
figure, ax = plt.subplots(figsize=(6, 3))
for name, shares in share.items():
    ax.plot(shares, label=name)
ax.set(xlabel="step", ylabel="share called anomalies", title="rows as in the first step")
ax.legend()
figure.tight_layout()
