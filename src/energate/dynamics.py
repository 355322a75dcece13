"""The auto-encoder as a dynamical system: trajectories along its vector field, and the step that they take.

The reconstruction moves a point along the vector field F = grad E, uphill in energy.  THEOREM
(docs/paper-map.md): write E = G - Phi*_out.  Where the Hessian of G is at least -L, a step of
1 / (1 + L) (linear outputs) or 4 / (4 + L) (sigmoid outputs) never lowers the energy.
"""

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from energate.activations import OutputActivation
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.memory import ColumnMemoryUnits, MemoryUnits
from energate.units import CovarianceUnits, GatedUnits, HiddenUnits, MeanUnits, SymmetricGatedUnits

LOGIT_LIMIT = 15.0  # sigmoid outputs: the field is infinite at 0 and 1, so logits stay inside
DIVERGED = 1e6  # a coordinate beyond this counts as divergence
SUFFICIENT_INCREASE = 1e-4  # Armijo's constant
MAX_HALVINGS = 40


# --- one step ----------------------------------------------------------------------------------------


class State(NamedTuple):
    """Where K models have taken N rows so far."""

    t: Tensor  # (K, N, D), the points before the output activation
    p: Tensor  # (K, N, D), the pre-outputs there
    energy: Tensor  # (K, N), higher is better
    moving: Tensor  # (K, N) booleans: rows that go on
    converged: Tensor  # (K, N)
    diverged: Tensor  # (K, N)


def to_logits(visible: OutputActivation, v: Tensor, limit: float = LOGIT_LIMIT) -> Tensor:
    """The points t with ``v = f_out(t)``; those of sigmoid outputs within ``limit``, where the field is finite."""
    return _clamp(visible, visible.inverse(v), limit)


def _clamp(visible: OutputActivation, t: Tensor, limit: float = LOGIT_LIMIT) -> Tensor:
    return t.clamp(-limit, limit) if math.isfinite(visible.bounds[0]) else t


def default_tolerance(dtype: torch.dtype) -> float:
    """The relative change in energy below which a row has arrived."""
    return 1e-10 if dtype == torch.float64 else 1e-6


def step_size(model: Autoencoder, step: float | str = "auto", c: Tensor | None = None) -> Tensor | None:
    """The ``step`` of `trajectory` as a tensor that broadcasts over (K, N, D); None means backtracking."""
    if isinstance(step, str):
        if step not in ("auto", "backtrack"):
            raise InputError(f"`step` must be a number, 'auto' or 'backtrack'; got {step!r}.")
        bound = curvature_bound(model, c) if step == "auto" else None
        if bound is None:
            return None
        factor = 4.0 if math.isfinite(model.visible.bounds[0]) else 1.0
        return (factor / (factor + bound)).unsqueeze(-1)  # (K, N or 1, 1)
    if not (math.isfinite(step) and step > 0):
        raise InputError(f"`step` must be a finite number above 0; got {step}.")
    return torch.as_tensor(step, dtype=model.a.dtype, device=model.a.device)


def set_out(model: Autoencoder, v: Tensor, c: Tensor | None = None) -> State:
    """Rows v (N, D) or (K, N, D) before the first step."""
    t = to_logits(model.visible, v)
    energy, p = model.energy_and_preoutput(model.visible.f(t), c)  # (K, N), (K, N, D)
    finite = torch.isfinite(energy)
    return State(t.expand_as(p).clone(), p, energy, finite, torch.zeros_like(finite), ~finite)


def one_step(
    model: Autoencoder,
    state: State,
    size: Tensor | float | None,
    tolerance: float,
    c: Tensor | None = None,
    free: Tensor | None = None,
) -> State:
    """Every row that is still moving goes one step uphill, by `step_size`, or stops where it is.

    ``free`` (K, N, D) or (N, D) says which coordinates move; the others stay.  A row has arrived where its energy
    changes by at most ``tolerance * (1 + |E|)``.  One that runs off stays at its
    last good point.  No branch depends on the rows, so the step can be traced.
    """
    t, p, energy, moving, converged, diverged = state
    if free is not None:
        p = torch.where(free, p, t)
    if size is None:
        t_new, e_new, p_new = _backtrack(model, t, p, energy, c)
    else:
        t_new = _clamp(model.visible, torch.lerp(t, p, size))
        e_new, p_new = model.energy_and_preoutput(model.visible.f(t_new), c)
    bad = ~torch.isfinite(e_new) | (t_new.abs() > DIVERGED).any(-1)
    moved = moving & ~bad
    settled = (e_new - energy).abs() <= tolerance * (1 + energy.abs())
    return State(
        torch.where(moved.unsqueeze(-1), t_new, t),
        torch.where(moved.unsqueeze(-1), p_new, p),
        torch.where(moved, e_new, energy),
        moved & ~settled,
        converged | (moved & settled),
        diverged | (moving & bad),
    )


def _backtrack(model: Autoencoder, t: Tensor, p: Tensor, energy: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
    """Halve the step of each row until its energy rises by a share of what the gradient promises."""
    v, field = model.visible.f(t), p - t
    size = torch.ones_like(energy)  # (K, N)
    for _ in range(MAX_HALVINGS):
        t_new = _clamp(model.visible, t + size.unsqueeze(-1) * field)
        v_new = model.visible.f(t_new)
        e_new, p_new = model.energy_and_preoutput(v_new, c)
        promised = (field * (v_new - v)).sum(-1)
        rising = e_new - energy >= SUFFICIENT_INCREASE * promised
        # Below the rounding of the energy the test says nothing: such a row has arrived.
        done = rising | (promised <= 4 * torch.finfo(t.dtype).eps * (1 + energy.abs()))
        if done.all():
            break
        size = torch.where(done, size, size / 2)
    return t_new, e_new, p_new


# --- trajectories -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trajectory:
    """Where each row went.

    Attributes
    ----------
    points : (K, N, D), where each row stopped.
    energies : (T + 1, K, N), the energy (higher is better) after each step; a stopped row repeats its last.
    path : (T + 1, K, N, D), or None unless asked for.
    n_steps : (K, N), the steps each row took.
    converged, diverged : (K, N) booleans; a row that is neither ran into ``max_steps``.
    """

    points: Tensor
    energies: Tensor
    path: Tensor | None
    n_steps: Tensor
    converged: Tensor
    diverged: Tensor


@torch.no_grad()
def trajectory(
    model: Autoencoder,
    v: Tensor,
    c: Tensor | None = None,
    *,
    step: float | str = "auto",
    max_steps: int = 100,
    tolerance: float | None = None,
    keep_path: bool = False,
    free: Tensor | None = None,
) -> Trajectory:
    """Follow the vector field from every row, uphill in energy.

    ``t <- (1 - step) t + step p(f_out(t))`` with ``v = f_out(t)``: step 1 applies the reconstruction
    again and again, and the point stays in the domain of the outputs.

    Parameters
    ----------
    step : a number; ``"auto"`` for the monotone step of the theorem above where a bound L is known,
        otherwise ``"backtrack"``: from 1, halved per row until the energy rises enough.
    tolerance : a row stops when its energy changes by at most ``tolerance * (1 + |E|)``.  The default is
        1e-6 in float32 and 1e-10 in float64.
    keep_path : also return every point on the way.
    free : which coordinates move, (N, D) booleans; the others stay as they are.  None: all.

    A row that runs off (a coordinate beyond 1e6, or an energy that is not finite) stops at its last good
    point and is reported in ``diverged``.
    """
    if max_steps < 0:
        raise InputError(f"`max_steps` must be at least 0; got {max_steps}.")
    state = set_out(model, v, c)
    size = step_size(model, step, c)
    tolerance = default_tolerance(v.dtype) if tolerance is None else tolerance
    n_steps = torch.zeros_like(state.energy, dtype=torch.long)
    energies, path = [state.energy.clone()], [model.visible.f(state.t).clone()] if keep_path else []
    for _ in range(max_steps):
        rows = state.moving.any(0).nonzero().squeeze(1)  # rows that some model still moves
        if not len(rows):
            break
        before = State(*(part[:, rows] for part in state))
        c_rows = None if c is None else c[..., rows, :]
        size_rows = size[:, rows] if size is not None and size.ndim == 3 and size.shape[1] > 1 else size
        after = one_step(model, before, size_rows, tolerance, c_rows, None if free is None else free[rows])
        for part, changed in zip(state, after, strict=True):
            part[:, rows] = changed
        n_steps[:, rows] += before.moving & ~after.diverged
        energies.append(state.energy.clone())
        if keep_path:
            path.append(model.visible.f(state.t).clone())
    return Trajectory(
        model.visible.f(state.t),
        torch.stack(energies),
        torch.stack(path) if keep_path else None,
        n_steps,
        state.converged,
        state.diverged,
    )


# --- how negatively curved an energy can be -------------------------------------------------------------


def curvature_bound(model: Autoencoder, c: Tensor | None = None) -> Tensor | None:
    """L with Hess G >= -L for G = E + Phi*_out: (K, N) or (K, 1); None where no bound is known."""
    bounds = [unit_curvature(group, c) for group in model.groups]
    known = [bound for bound in bounds if bound is not None]
    least = model.a.new_zeros(()) if model.skip is None else (-model.skip).clamp(min=0).amax()
    return sum(known, least.expand(model.n_models, 1)) if len(known) == len(bounds) else None


@singledispatch
def unit_curvature(units: HiddenUnits, c: Tensor | None) -> Tensor | None:
    """The share of one group of units in L.  Kinds that are not registered here are backtracked."""
    return None


@unit_curvature.register
def _(units: MeanUnits, c: Tensor | None) -> Tensor | None:
    return _affine_curvature(units, torch.linalg.matrix_norm(units.W, 2).square().unsqueeze(1))


@unit_curvature.register(MemoryUnits)
@unit_curvature.register(ColumnMemoryUnits)
def _(units: HiddenUnits, c: Tensor | None) -> Tensor | None:
    return units.W.new_zeros(units.n_models, 1)  # type: ignore[operator]  # a softmax, of u affine in v


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
