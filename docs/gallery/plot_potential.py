"""
The energy is a potential
=========================

An energy in the sense of a potential is more than a score: its difference between two points is the work of the field
along *any* way between them. This holds for an auto-encoder whose decoder is the transpose of its encoder, and fails
for one with a decoder of its own.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons

from energate import Autoencoder, MeanUnits, corrupt, jacobian_asymmetry, minimise, row_batches
from energate.plots import plot_vector_field

points = torch.tensor(make_moons(600, noise=0.06, random_state=0)[0])
points = 2 * (points - points.mean(0))  # float64
generator = torch.Generator().manual_seed(0)
model = Autoencoder([MeanUnits(n_models=1, n_visible=2, n_hidden=60, generator=generator)]).double()
with torch.no_grad():
    model.groups[0].W.mul_(3)


def loss(batch):
    v = points[batch]
    return model.loss(v, seen=corrupt(v, "gaussian", 0.4, generator)).mean(-1)


minimise(loss, model.parameters(), row_batches(600, 100), epochs=300, learning_rate=1e-2, schedule="cosine")

# %%
# Three ways from A to B: straight, and two that bend.

A, B = torch.tensor([[-3.0, -1.2]]).double(), torch.tensor([[3.0, 1.4]]).double()
s = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
bend = torch.sin(torch.pi * s)
ways = {
    "straight": A + s * (B - A),
    "over the top": A + s * (B - A) + bend * torch.tensor([-0.8, 2.0]).double(),
    "a loop below": A + s * (B - A) + torch.cat([1.2 * torch.sin(2 * torch.pi * s), -1.8 * bend], 1),
}

# %%
# Beside it, an auto-encoder with the same encoder, and a decoder that is turned by 10 degrees: nearly the transpose,
# but not quite.

W, b, a = model.groups[0].W[0].detach(), model.groups[0].b[0].detach(), model.a[0].detach()
turn = torch.tensor(np.pi / 18)
R = W @ torch.tensor([[turn.cos(), turn.sin()], [-turn.sin(), turn.cos()]]).double()


def untied(v):
    return torch.sigmoid(v @ W.T + b) @ R + a - v


def tied(v):
    return model.vector_field(v)[0]


def work(field, way):
    """The work of the field along a way, up to each of its points."""
    with torch.no_grad():
        middle = field((way[1:] + way[:-1]) / 2)
    return np.cumsum((middle * way.diff(dim=0)).sum(1).numpy())


figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), width_ratios=[1.2, 1, 1])
plot_vector_field(model, (-4, 4, -3, 3), points=points, ax=left)
left.set_title("three ways from A to B")
with torch.no_grad():
    difference = float(model.energy(B) - model.energy(A))
for name, way in ways.items():
    left.plot(*way.T, linewidth=2)
    middle.plot(s[1:, 0], work(tied, way), label=name)
    right.plot(s[1:, 0], work(untied, way))
middle.axhline(difference, color="black", linestyle=":", label="E(B) - E(A)")
middle.legend(fontsize=8)
middle.set(title="tied weights: all ways end at one value", xlabel="share of the way", ylabel="work of the field")
right.set(title="a decoder of its own: no energy", xlabel="share of the way")
for name, at in (("A", A), ("B", B)):
    left.annotate(name, at[0], color="white", fontsize=14, fontweight="bold")
figure.tight_layout()

# %%
# The same without ways: a field is a gradient if and only if its Jacobian is symmetric.

print(f"tied:   asymmetry {float(jacobian_asymmetry(model, points[:50]).max()):.1e}")
print(f"untied: asymmetry {float(jacobian_asymmetry(untied, points[:50]).max()):.1e}")
