"""
A vector field and its energy
=============================

An auto-encoder moves every point: from v to its reconstruction r(v). The arrows r(v) - v are a vector field. Here the
auto-encoder has seen noisy points on a spiral, and its arrows point back to it. Since its weights are tied, they also
point uphill in an energy that is known exactly: how much the model likes a point.
"""

import matplotlib.pyplot as plt
import torch

from energate import Autoencoder, MeanUnits, corrupt, minimise, row_batches, trajectory
from energate.plots import plot_vector_field

generator = torch.Generator().manual_seed(0)
angle = 1 + 8.5 * torch.rand(1000, 1, generator=generator).sqrt()
points = 3 * angle * torch.cat([angle.cos(), angle.sin()], 1)
points = points + 0.6 * torch.randn(points.shape, generator=generator)

# %%
# Training: see a noisy copy, restore the point. The units start spread over the plane, so that all of it is covered.

units = MeanUnits(n_models=1, n_visible=2, n_hidden=200, generator=generator)
with torch.no_grad():
    units.W.normal_(0, 0.5, generator=generator)
    units.b.uniform_(-15, 15, generator=generator)
model = Autoencoder([units])


def loss(batch):
    v = points[batch]
    return model.loss(v, seen=corrupt(v, "gaussian", 2.0, generator)).mean(-1)


minimise(loss, model.parameters(), row_batches(1000, 100), epochs=250, learning_rate=1e-2, schedule="cosine")

# %%
# Colour is energy (bright is liked more), white arrows are the field, and red lines start at six places and follow it.
# They climb to the ridge, which is the spiral, and then creep along it to the nearest summit.

starts = torch.tensor([[-27.0, 27.0], [27.0, 27.0], [0.0, -28.0], [29.0, -10.0], [-16.0, 2.0], [10.0, 10.0]])
figure, ax = plt.subplots(figsize=(6.5, 6.5))
plot_vector_field(model, (-33, 33, -33, 33), points=points, starts=starts, ax=ax)
ax.set_title("arrows r(v) - v over the energy E(v)")
figure.tight_layout()

# %%
# Along a way the energy never falls: the step is chosen so that each reconstruction raises it.

walk = trajectory(model, starts, max_steps=200, keep_path=True)
with torch.no_grad():
    climbs = torch.stack([model.energy(step)[0] for step in walk.path[:, 0]])

figure, ax = plt.subplots(figsize=(6.5, 3.4))
ax.plot(climbs - climbs[0])
ax.set(xlabel="step", ylabel="energy gained", xscale="symlog")
figure.tight_layout()
