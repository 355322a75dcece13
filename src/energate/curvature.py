"""How negatively curved an energy can be: the constant L that makes a step of `trajectory` monotone."""

import math
from functools import singledispatch

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, SymmetricGatedUnits


def curvature_bound(model: Autoencoder, c: Tensor | None = None) -> Tensor | None:
    """L with Hess G >= -L for G = E + Phi*_out: (K, N) or (K, 1); None where no bound is known."""
    bounds = [unit_curvature(group, c) for group in model.groups]
    known = [bound for bound in bounds if bound is not None]
    return sum(known, model.a.new_zeros(model.n_models, 1)) if len(known) == len(bounds) else None


@singledispatch
def unit_curvature(units: HiddenUnits, c: Tensor | None) -> Tensor | None:
    """The share of one group of units in L.  Kinds that are not registered here are backtracked."""
    return None


@unit_curvature.register
def _(units: MeanUnits, c: Tensor | None) -> Tensor | None:
    return _affine_curvature(units, torch.linalg.matrix_norm(units.W, 2).square().unsqueeze(1))


@unit_curvature.register
def _(units: GatedUnits, c: Tensor | None) -> Tensor | None:
    assert c is not None
    gate = (c @ units.W_x.mT).abs().amax(-1)  # (K, N)
    norms = torch.linalg.matrix_norm(units.W_h, 2) * torch.linalg.matrix_norm(units.W_y, 2)
    return _affine_curvature(units, (gate * norms.unsqueeze(1)).square())


@unit_curvature.register
def _(units: CovarianceUnits, c: Tensor | None) -> Tensor | None:
    low, high = units.activation.bounds
    if not units.activation.monotone or not math.isfinite(high - low):
        return None
    least = torch.minimum(units.W_h * low, units.W_h * high).sum(1)  # (K, F): the least W_h^T h can be
    root = (-least).clamp(min=0).sqrt().unsqueeze(-1)  # (K, F, 1)
    return torch.linalg.matrix_norm(root * units.W, 2).square().unsqueeze(1) * (2 / units.repeats)


@unit_curvature.register
def _(units: SymmetricGatedUnits, c: Tensor | None) -> Tensor | None:
    largest = max(abs(bound) for bound in units.activation.bounds)
    if not units.activation.monotone or not math.isfinite(largest):
        return None
    g = largest * units.W_h.abs().sum(1).amax(-1)  # (K,): the largest |W_h^T h| can be
    norms = torch.linalg.matrix_norm(units.W_x, 2) * torch.linalg.matrix_norm(units.W_y, 2)
    return (g * norms).unsqueeze(1)


def _affine_curvature(units: HiddenUnits, squared_norm: Tensor) -> Tensor | None:
    slope = units.activation.slope_min
    if slope >= 0:
        return torch.zeros_like(squared_norm)
    return -slope * squared_norm if math.isfinite(slope) else None
