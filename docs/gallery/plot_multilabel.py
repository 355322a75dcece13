"""
Labels that go together
=======================

A classifier that decides label by label may predict a combination that never occurs. `EnergyRefiner` puts any such
classifier together with an energy over whole label vectors. These data are made so that it matters: of 256
combinations of 8 labels only 12 occur.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from energate import EnergyRefiner
from energate.datasets import make_correlated_labels

data = make_correlated_labels(3000, seed=0, sharpness=4.0)
train, test = slice(0, 1500), slice(1500, None)
base = MultiOutputClassifier(LogisticRegression())
model = EnergyRefiner(base, objective="subset", random_state=0).fit(data.X[train], data.Y[train])
print(model.verdict_)

# %%
# On rows that neither has seen:

alone, refined, truth = model.base_.predict(data.X[test]), model.predict(data.X[test]), data.Y[test]
known = {row.tobytes() for row in data.Y[train].astype(np.int8)}
names, bars = ["all labels right", "single labels right", "combination exists"], []
for predicted in (alone, refined):
    exists = np.mean([row.tobytes() in known for row in predicted.astype(np.int8)])
    bars.append([(predicted == truth).all(1).mean(), (predicted == truth).mean(), exists])

figure, ax = plt.subplots(figsize=(7, 3.6))
for i, (label, values) in enumerate(zip(("logistic regression alone", "refined"), bars, strict=True)):
    places = np.arange(3) + 0.38 * i
    ax.bar(places, values, width=0.36, label=label)
    for place, value in zip(places, values, strict=True):
        ax.text(place, value, f"{100 * value:.0f} %", ha="center", va="bottom")
ax.set(xticks=np.arange(3) + 0.19, xticklabels=names, ylim=(0, 1.15), ylabel="share of test rows, or of labels")
ax.legend(loc="upper left")
figure.tight_layout()

# %%
# Some rows that the base got wrong and the refiner right. Black is on.

fixed = np.flatnonzero((alone != truth).any(1) & (refined == truth).all(1))[:6]
figure, axes = plt.subplots(2, 3, figsize=(9, 3.6))
for ax, row in zip(axes.flat, fixed, strict=True):
    ax.imshow(np.stack([truth[row], alone[row], refined[row]]), cmap="Greys", vmin=0, vmax=1, aspect="auto")
    ax.set(yticks=[0, 1, 2], yticklabels=["truth", "base", "refined"], xticks=range(8))
    ax.hlines([0.5, 1.5], -0.5, 7.5, color="tab:orange", linewidth=2)
figure.supxlabel("label")
figure.tight_layout()

# %%
# This is the easy case. With labels that are independent once the row is known there is nothing to gain, and
# ``verdict_`` says so:

rng = np.random.default_rng(0)
X = rng.normal(size=(1500, 10))
Y = (X[:, :8] + 0.7 * rng.normal(size=(1500, 8)) > 0).astype(int)
print(EnergyRefiner(base, objective="subset", random_state=0).fit(X, Y).verdict_)
