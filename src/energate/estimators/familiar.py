"""How familiar the look of an image is: an energy of the features that the trunk has of it, fitted after training.

    M(v) = -|R (f(v) - m)|^2 / 2

f are the means of all layers over the positions, m their mean over the training rows and R R^T the inverse of their
covariance: minus half the squared Mahalanobis distance.  The units R (f - m) have the potential -u^2 / 2, so that M is
exact and its field is the gradient; a positive multiple of it may be added to any other energy.
"""

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor, nn

from energate.estimators.convolution import ImageHeads

LEAST_SPREAD = 1e-6  # of a feature that does not vary
MOST_ROWS = 10_000  # that the covariance is measured of


class Familiarity(nn.Module):
    """Rows (N, D) to the whitened features of a trunk, (N, F); the trunk is another module's."""

    def __init__(self, heads: ImageHeads) -> None:
        super().__init__()
        self._heads = (heads,)  # which is no part of this module
        n_features = heads.n_means
        self.centre = nn.Parameter(torch.zeros(n_features), requires_grad=False)  # by `fit`, not by training
        self.root = nn.Parameter(torch.eye(n_features), requires_grad=False)
        self.weight = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, v: Tensor) -> Tensor:
        return (self._heads[0].means(v) - self.centre) @ self.root

    @torch.no_grad()
    def fit(self, rows: Tensor, held_out: Tensor, spread: float) -> None:
        """Centre and covariance of training rows; M is to vary as much as ``spread`` among rows held out."""
        features = torch.cat([self._heads[0].means(some) for some in rows[:MOST_ROWS].split(500)]).double()
        size = features.std(0).clamp(min=LEAST_SPREAD) if len(features) > 1 else torch.ones_like(features[0])
        centre = features.mean(0)
        covariance = torch.as_tensor(ledoit_wolf(((features - centre) / size).cpu().numpy(), assume_centered=True)[0])
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp(min=LEAST_SPREAD).rsqrt() @ vectors.T
        self.centre.copy_(centre)
        self.root.copy_(root.to(size) / size.unsqueeze(1))
        found = torch.cat([self(some).square().sum(1) / 2 for some in held_out.split(500)])
        if len(found) > 1 and spread > 0:
            self.weight.copy_(spread / found.double().std().clamp(min=LEAST_SPREAD))
