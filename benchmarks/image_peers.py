"""What `images.py` compares with: a plain denoiser, the mean of nearest neighbours, and scores of features."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate import ImageEnergyClassifier
from energate.estimators.convolution import PLAIN, Residual, shift_images
from energate.training import minimise, row_batches

AT_ONCE = 500  # rows

Score = Callable[[Tensor], Tensor]


def in_parts(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """The results of rows, some at a time, without gradients."""
    with torch.no_grad():
        return torch.cat([function(*some) for some in zip(*(each.split(AT_ONCE) for each in rows), strict=True)])


# --- a denoiser that is nothing else -------------------------------------------------------------------------------


def _layer(n_in: int, n_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, size, stride, padding=size // 2), nn.GroupNorm(n_out // 8, n_out), nn.GELU()]


class PlainDenoiser(nn.Module):
    """A U-net with the trunk of `ImageEnergyClassifier` on its way down: images (N, h, w) to what is to be added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.first = nn.Sequential(*_layer(1, channels, 5))
        self.down = nn.ModuleList(
            nn.Sequential(*_layer(n_in, wide, 3, 2), Residual(PLAIN, wide)) for n_in in (channels, wide)
        )
        self.up = nn.ModuleList(
            nn.Sequential(*_layer(wide + beside, wide, 3), Residual(PLAIN, wide)) for beside in (wide, channels)
        )
        self.last = nn.Conv2d(wide, 1, 5, padding=2)

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images.unsqueeze(1))
        half = self.down[0](first)
        found = self.down[1](half)
        for layer, beside in zip(self.up, (half, first), strict=True):
            larger = F.interpolate(found, beside.shape[2:])
            found = layer(torch.cat([larger, beside], 1))
        return images + self.last(found).squeeze(1)


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def plain_denoiser(images: Tensor, size: int, levels: tuple[float, float], epochs: int, seed: int) -> PlainDenoiser:
    """A denoiser of about ``size`` parameters, trained as the classifier is: steps, shifts, noise, optimiser."""
    torch.manual_seed(seed)
    channels = min(range(8, 257, 8), key=lambda n: abs(n_parameters(PlainDenoiser(n)) - size))
    made, (low, high) = PlainDenoiser(channels).to(images.device), levels
    draws = torch.Generator(images.device).manual_seed(seed)

    def loss(batch: Tensor) -> Tensor:
        n = len(batch)
        moves = [torch.randint(-2, 3, (n,), generator=draws, device=images.device) for _ in range(2)]
        clean = shift_images(images[batch], *moves)
        level = low + (high - low) * torch.rand(n, 1, 1, generator=draws, device=images.device)
        noise = torch.randn(clean.shape, generator=draws, device=images.device)
        return (made(clean + level * noise) - clean).square().mean()

    how: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 2e-3, "weight_decay": 2e-2, "schedule": "cosine"}
    batches = row_batches(len(images), 128, seed, images.device)
    minimise(loss, made.parameters(), batches, epochs=epochs, clip_norm=5.0, generators=[draws], **how)
    return made


# --- neighbours --------------------------------------------------------------------------------------------------


def nearest(rows: Tensor, among: Tensor, n_most: int) -> tuple[Tensor, Tensor]:
    """The distances to the nearest of other rows, and their numbers: (n, n_most) each."""
    found = [torch.cdist(some, among).topk(n_most, largest=False) for some in rows.split(AT_ONCE)]
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])


def neighbours_fill(rows: Tensor, unknown: Tensor, among: Tensor, n_most: int = 10) -> Tensor:
    """Unknown pixels (D,) as the mean of the rows that are nearest in the known ones."""
    found = nearest(rows[:, ~unknown], among[:, ~unknown], n_most)[1]
    return torch.where(unknown, among[found].mean(1), rows)


# --- scores of features --------------------------------------------------------------------------------------------


def features_of(model: ImageEnergyClassifier, X: Tensor) -> Tensor:
    """What the heads see of images (n, h, w), in the mean over symmetries: (n, F)."""
    network = model.model_
    scaled = torch.as_tensor(model.scaler_(X.flatten(1).double().cpu().numpy())).to(network.B)
    seen: list[Tensor] = []
    hook = network.heads.heads.register_forward_pre_hook(lambda _, given: seen.append(given[0]))

    def of_some(rows: Tensor) -> Tensor:
        network.heads(rows)
        return seen.pop().unflatten(0, (-1, len(rows))).mean(0)

    try:
        return in_parts(of_some, scaled).float()
    finally:
        hook.remove()


def mahalanobis(features: Tensor, labels: Tensor) -> Score:
    """Minus the squared distance to the nearest mean of a class, by the covariance that they share."""
    features = features.double()
    means = torch.stack([features[labels == k].mean(0) for k in labels.unique()])
    centred = features - means[labels]
    covariance = centred.T @ centred / len(features)
    covariance.diagonal().add_(1e-3 * covariance.diagonal().mean())
    root = torch.linalg.cholesky(covariance)
    centres = torch.linalg.solve_triangular(root, means.T, upper=False).T

    def score(found: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(root, found.double().T, upper=False).T
        return -torch.cdist(white, centres).square().min(1).values

    return score


def by_neighbours(features: Tensor, n_most: int = 50) -> Score:
    """Minus the distance to the 50th nearest of features of length 1."""
    among = F.normalize(features, dim=1)

    def score(found: Tensor) -> Tensor:
        return -nearest(F.normalize(found, dim=1), among, min(n_most, len(among)))[0][:, -1]

    return score


def decibels(found: Tensor, truth: Tensor) -> float:
    return round(-10 * math.log10(float((found - truth).square().mean())), 3)
