"""Pictures: vector fields with their energy, and filters (extra ``plot``)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import trajectory
from energate.errors import InputError, require


def plot_vector_field(
    model: Autoencoder,
    limits: tuple[float, float, float, float],
    *,
    c: Tensor | None = None,
    k: int = 0,
    points: Tensor | None = None,
    starts: Tensor | None = None,
    max_steps: int = 200,
    n_arrows: int = 21,
    n_levels: int = 30,
    ax: Any = None,
) -> Any:
    """Draw a 2-D model's vector field over contours of its energy (bright is liked more).

    Parameters
    ----------
    limits : left, right, bottom and top of the picture.
    c : one context row (1, C) for a model that takes one.
    k : which of the models.
    points : (N, 2) data to scatter.
    starts : (N, 2) points from which to draw trajectories, each ending in a dot.
    ax : matplotlib axes; the current ones by default.

    Returns the axes.
    """
    if model.width != 2:
        raise InputError(f"`plot_vector_field` needs a model of 2 visible columns; this one has {model.width}.")
    plt = require("matplotlib.pyplot", "plot")
    ax = plt.gca() if ax is None else ax
    xs, ys, rows = _grid(limits, 120, model.a)
    with torch.no_grad():
        energy = model.energy(rows, _repeat(c, rows))[k].view(len(ys), len(xs)).cpu().numpy()
        # Levels at quantiles: the corners, where the energy falls like a square, would take all the contrast.
        levels = np.unique(np.quantile(energy, np.linspace(0, 1, n_levels)))
        if len(levels) > 1:
            norm = require("matplotlib.colors", "plot").BoundaryNorm(levels, 256)
            ax.contourf(xs, ys, energy, levels=levels, cmap="viridis", norm=norm)
            ax.contour(xs, ys, energy, levels=levels, colors="white", linewidths=0.3, alpha=0.5)
        xs, ys, rows = _grid(limits, n_arrows, model.a)
        field = model.vector_field(rows, _repeat(c, rows))[k].cpu()
    ax.quiver(*rows.cpu().T, *field.T, color="white", alpha=0.85, angles="xy", width=0.003)
    if points is not None:
        ax.scatter(*points.detach().cpu().T, s=4, color="black", alpha=0.4, linewidths=0)
    if starts is not None:
        walk = trajectory(model, starts, _repeat(c, starts), max_steps=max_steps, keep_path=True)
        assert walk.path is not None
        path = walk.path[:, k].cpu().numpy()  # (T + 1, N, 2)
        ax.plot(path[..., 0], path[..., 1], color="crimson", linewidth=1.0, alpha=0.9)
        ax.scatter(*path[-1].T, s=22, color="crimson", edgecolors="white", linewidths=0.7, zorder=3)
    ax.set_xlim(limits[0], limits[1])
    ax.set_ylim(limits[2], limits[3])
    return ax


def plot_filters(weights: Tensor, shape: tuple[int, int], *, n_columns: int = 10, ax: Any = None) -> Any:
    """Draw rows of a weight matrix (n, height * width) as images, side by side; returns the axes."""
    height, width = shape
    if weights.ndim != 2 or weights.shape[1] != height * width:
        raise InputError(
            f"`weights` must have shape (n, {height * width}) for filters of {height} x {width}; "
            f"got {tuple(weights.shape)}."
        )
    plt = require("matplotlib.pyplot", "plot")
    ax = plt.gca() if ax is None else ax
    images = weights.detach().cpu().double().numpy()
    images = images / np.abs(images).max(axis=1, keepdims=True).clip(min=np.finfo(float).tiny)
    n_rows = -(-len(images) // n_columns)
    sheet = np.full((n_rows * (height + 1) + 1, n_columns * (width + 1) + 1), np.nan)
    for i, image in enumerate(images):
        top, left = (i // n_columns) * (height + 1) + 1, (i % n_columns) * (width + 1) + 1
        sheet[top : top + height, left : left + width] = image.reshape(height, width)
    ax.imshow(sheet, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    ax.set_axis_off()
    return ax


def _grid(limits: tuple[float, float, float, float], n: int, like: Tensor) -> tuple[Any, Any, Tensor]:
    left, right, bottom, top = limits
    xs, ys = np.linspace(left, right, n), np.linspace(bottom, top, n)
    rows = np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)
    return xs, ys, torch.as_tensor(rows, dtype=like.dtype, device=like.device)


def _repeat(c: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if c is None else c.expand(len(rows), -1)
