"""
Units of your own
=================

A new kind of hidden units is a pre-activation u(v) and its transposed Jacobian; energy, field, training and estimators
follow. Here are units that see how far a point is from a centre, beside the two kinds that come with energate.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_circles
from torch import Tensor

from energate import (
    Autoencoder,
    CovarianceUnits,
    HiddenUnits,
    MeanUnits,
    check_conservative,
    corrupt,
    minimise,
    row_batches,
)
from energate.plots import plot_vector_field


class DistanceUnits(HiddenUnits):
    """u_j = b_j - s_j |v - m_j|^2 / 2: a unit is on near its centre m_j."""

    def __init__(self, n_models, n_visible, n_hidden, activation="sigmoid", generator=None):
        super().__init__(n_models, n_visible, n_hidden, activation)
        self.m = torch.nn.Parameter(5 * torch.randn(n_models, n_hidden, n_visible, generator=generator))  # (K, M, D)
        self.s = torch.nn.Parameter(torch.full((n_models, n_hidden), 0.5))
        self.b = self.bias(n_hidden)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        away = v.unsqueeze(-2) - self.m.unsqueeze(1)  # (K, N, M, D)
        return self.b.unsqueeze(1) - self.s.unsqueeze(1) * away.square().sum(-1) / 2, away

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        return -((h * self.s.unsqueeze(1)).unsqueeze(-1) * carry).sum(-2)  # the transposed Jacobian of u, times h


# %%
# The decoder is easy to get wrong; the check measures whether field and energy belong together.

generator = torch.Generator().manual_seed(0)
kinds = {
    "mean": MeanUnits(1, 2, 100, generator=generator),
    "covariance": CovarianceUnits(1, 2, 100, 100, generator=generator),
    "distance, the new kind": DistanceUnits(1, 2, 100, generator=generator),
}
with torch.no_grad():  # spread the units of all kinds over the plane
    kinds["mean"].b.uniform_(-6, 6, generator=generator)
    kinds["covariance"].b.uniform_(-6, 6, generator=generator)
for name, units in kinds.items():
    model = Autoencoder([units]).double()
    print(name, "-", check_conservative(model, torch.randn(20, 2, dtype=torch.float64)))

# %%
# The same data and the same training for all three. What differs is the shape that an energy can take: half-planes,
# squares of projections, or bumps. Two rings are made for bumps; see the loss, half the squared error of what is
# restored.

points = 6 * torch.tensor(make_circles(600, factor=0.45, noise=0.05, random_state=0)[0])


def train(model):
    noise = torch.Generator().manual_seed(1)

    def loss(batch):
        v = points[batch]
        return model.loss(v, seen=corrupt(v, "gaussian", 0.8, noise)).mean(-1)

    minimise(loss, model.parameters(), row_batches(600, 100), epochs=300, learning_rate=1e-2, schedule="cosine")
    with torch.no_grad():
        return float(loss(torch.arange(600)))


figure, axes = plt.subplots(1, 3, figsize=(12, 4.2))
for ax, (name, units) in zip(axes, kinds.items(), strict=True):
    model = Autoencoder([units]).double()
    final = train(model)
    plot_vector_field(model, (-9.5, 9.5, -9.5, 9.5), points=points, n_arrows=17, ax=ax)
    ax.set_title(f"{name}: loss {final:.2f}")
figure.tight_layout()
