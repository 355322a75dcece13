"""The auto-encoder as a dynamical system: trajectories, line integrals, and the test of conservativeness.

The reconstruction moves a point along the vector field F = grad E, uphill in energy.  THEOREM
(docs/paper-map.md): write E = G - Phi*_out.  Where the Hessian of G is at least -L, a step of
1 / (1 + L) (linear outputs) or 4 / (4 + L) (sigmoid outputs) never lowers the energy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate.activations import OutputActivation
from energate.autoencoder import Autoencoder
from energate.curvature import curvature_bound
from energate.errors import InputError

LOGIT_LIMIT = 15.0  # sigmoid outputs: the field is infinite at 0 and 1, so logits stay inside
DIVERGED = 1e6  # a coordinate beyond this counts as divergence
SUFFICIENT_INCREASE = 1e-4  # Armijo's constant
MAX_HALVINGS = 40
EXACT_WIDTH = 64  # widest v for which `jacobian_asymmetry` forms the whole Jacobian by default


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


def _to_logits(visible: OutputActivation, v: Tensor, limit: float = LOGIT_LIMIT) -> Tensor:
    return _clamp(visible, visible.inverse(v), limit)


def _clamp(visible: OutputActivation, t: Tensor, limit: float = LOGIT_LIMIT) -> Tensor:
    return t.clamp(-limit, limit) if math.isfinite(visible.bounds[0]) else t


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

    A row that runs off (a coordinate beyond 1e6, or an energy that is not finite) stops at its last good
    point and is reported in ``diverged``.
    """
    if max_steps < 0:
        raise InputError(f"`max_steps` must be at least 0; got {max_steps}.")
    visible = model.visible
    energy, p = model.energy_and_preoutput(visible.f(_to_logits(visible, v)), c)  # (K, N), (K, N, D)
    size = _step_size(model, step, c)
    tolerance = _default_tolerance(v.dtype) if tolerance is None else tolerance
    t = _to_logits(visible, v).expand_as(p).clone()
    n_steps = torch.zeros_like(energy, dtype=torch.long)
    converged, diverged = torch.zeros_like(n_steps, dtype=torch.bool), ~torch.isfinite(energy)
    active = ~diverged
    energies, path = [energy.clone()], [visible.f(t).clone()] if keep_path else []
    for _ in range(max_steps):
        rows = active.any(0).nonzero().squeeze(1)  # rows that some model still moves
        if not len(rows):
            break
        c_rows = None if c is None else c[..., rows, :]
        t_old, p_old, e_old, moving = t[:, rows], p[:, rows], energy[:, rows], active[:, rows]
        if size is None:
            t_new, e_new, p_new = _backtrack(model, t_old, p_old, e_old, c_rows)
        else:
            size_rows = size[:, rows] if size.ndim == 3 and size.shape[1] > 1 else size
            t_new, e_new, p_new = _step(model, t_old, p_old, size_rows, c_rows)
        bad = ~torch.isfinite(e_new) | (t_new.abs() > DIVERGED).any(-1)
        moved = moving & ~bad
        settled = (e_new - e_old).abs() <= tolerance * (1 + e_old.abs())
        t[:, rows] = torch.where(moved.unsqueeze(-1), t_new, t_old)
        p[:, rows] = torch.where(moved.unsqueeze(-1), p_new, p_old)
        energy[:, rows] = torch.where(moved, e_new, e_old)
        n_steps[:, rows] += moved
        converged[:, rows] |= moved & settled
        diverged[:, rows] |= moving & bad
        active[:, rows] = moved & ~settled
        energies.append(energy.clone())
        if keep_path:
            path.append(visible.f(t).clone())
    return Trajectory(
        visible.f(t), torch.stack(energies), torch.stack(path) if keep_path else None, n_steps, converged, diverged
    )


def _step(model: Autoencoder, t: Tensor, p: Tensor, size: Tensor | float, c: Tensor | None) -> tuple[Tensor, ...]:
    t = _clamp(model.visible, torch.lerp(t, p, size))
    return t, *model.energy_and_preoutput(model.visible.f(t), c)


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


def _default_tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-6


def _step_size(model: Autoencoder, step: float | str, c: Tensor | None) -> Tensor | None:
    """The step as a tensor that broadcasts over (K, N, D); None means backtracking."""
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


# --- line integrals ---------------------------------------------------------------------------------------


Field = Callable[[Tensor], Tensor]
Path = Callable[[Tensor], Tensor]


def line_integral(
    field: Autoencoder | Field, path: Path | Tensor, c: Tensor | None = None, n_nodes: int = 400
) -> Tensor:
    """The integral of F.dv along a path, by Gauss-Legendre quadrature: (K,).

    ``field`` is a model, or a function from points (S, D) to vectors (S, D) or (K, S, D).  ``path`` maps
    parameters s in [0, 1], a tensor (S,), to points (S, D) and must be differentiable, or is a tensor
    (P, D) of corners joined by straight lines, each with ``n_nodes`` nodes of its own.  ``c`` is one
    context row (1, C).  In a conservative field the result is E(end) - E(start).
    """
    if isinstance(path, Tensor):
        corners = path
        if corners.ndim != 2 or len(corners) < 2:
            raise InputError(f"`path` must have shape (P, D) with at least 2 corners; got {tuple(corners.shape)}.")
        legs = [
            line_integral(field, _straight(corners[i], corners[i + 1]), c, n_nodes) for i in range(len(corners) - 1)
        ]
        return torch.stack(legs).sum(0)
    nodes, weights = _gauss_legendre(n_nodes)
    like = field.a if isinstance(field, Autoencoder) else path(torch.zeros(1, dtype=torch.get_default_dtype()))
    s = torch.as_tensor((nodes + 1) / 2, dtype=like.dtype, device=like.device)
    w = torch.as_tensor(weights / 2, dtype=like.dtype, device=like.device)
    points, velocity = _jvp(path, s, torch.ones_like(s))  # (S, D) each
    if isinstance(field, Autoencoder):
        vectors = field.vector_field(points, None if c is None else c.expand(n_nodes, -1))
    else:
        vectors = field(points)
    return (vectors * velocity).sum(-1) @ w  # (K, S) -> (K,)


@cache
def _gauss_legendre(n_nodes: int) -> tuple[Any, Any]:
    return np.polynomial.legendre.leggauss(n_nodes)  # an eigenvalue problem of that size


def _straight(start: Tensor, end: Tensor) -> Path:
    return lambda s: start + s.unsqueeze(-1) * (end - start)


def _jvp(f: Field, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """``f(v)`` and ``J direction``, as the transpose of the transposed product.

    `torch.func.jvp` loads TorchScript, which warns that it is deprecated.
    """
    value, pullback = torch.func.vjp(f, v)[:2]
    transpose = torch.func.vjp(lambda w: pullback(w)[0], torch.zeros_like(value))[1]
    return value, transpose(direction)[0]


# --- Poincare's criterion -----------------------------------------------------------------------------------


@torch.no_grad()
def jacobian_asymmetry(
    field: Autoencoder | Field,
    v: Tensor,
    c: Tensor | None = None,
    *,
    method: str = "auto",
    n_probes: int = 32,
    generator: torch.Generator | None = None,
) -> Tensor:
    """How far the Jacobian J is from symmetric: kappa = |A|^2 / |J|^2 in [0, 1], A = (J - J^T) / 2.

    For a model J is the Jacobian of its pre-output, whose antisymmetric part is that of the vector field;
    the result is (K, N).  For a function from points (N, D) to (N, D) it is (N,).  0 means conservative.

    ``method="exact"`` forms J; ``"estimate"`` needs only products with it (Rademacher probes,
    E|Jz - J^T z|^2 = 4 |A|^2); ``"auto"`` is exact up to 64 columns.  `affine_asymmetry` is the closed
    form for untied auto-encoders.
    """
    if method not in ("auto", "exact", "estimate"):
        raise InputError(f"`method` must be 'auto', 'exact' or 'estimate'; got {method!r}.")
    asymmetric, total = _asymmetric_part(field, v, c, method, n_probes, generator)
    return asymmetric / total.clamp(min=torch.finfo(v.dtype).tiny)


def _asymmetric_part(
    field: Autoencoder | Field,
    v: Tensor,
    c: Tensor | None,
    method: str,
    n_probes: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """|A|^2 and |J|^2 of every row."""
    if isinstance(field, Autoencoder):
        model, field = field, lambda v: model.preoutput(v, c)
        v = v.expand(model.n_models, *v.shape).contiguous() if v.ndim == 2 else v  # (K, N, D)
    if method == "exact" or (method == "auto" and v.shape[-1] <= EXACT_WIDTH):
        # Rows do not influence each other, so one backward pass per column serves all rows at once.
        columns = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        pullback = torch.func.vjp(field, v)[1]
        J = torch.func.vmap(lambda e: pullback(e.expand_as(v))[0])(columns)  # (D, ..., N, D): rows of J
        J = J.movedim(0, -2)  # (..., N, D, D)
        asymmetric = (J - J.mT).square().sum((-1, -2)) / 4
        total = J.square().sum((-1, -2))
    else:
        asymmetric, total = torch.zeros_like(v[..., 0]), torch.zeros_like(v[..., 0])
        pullback = torch.func.vjp(field, v)[1]
        for _ in range(n_probes):
            z = torch.randint(0, 2, v.shape, generator=generator, device=v.device).to(v) * 2 - 1
            Jz = _jvp(field, v, z)[1]
            asymmetric += (Jz - pullback(z)[0]).square().sum(-1) / (4 * n_probes)
            total += Jz.square().sum(-1) / n_probes
    return asymmetric, total


def affine_asymmetry(W: Tensor, R: Tensor, slope: Tensor) -> Tensor:
    """Asymmetry kappa of ``r(v) = R f(W v + b) + a`` in closed form, from M x M products alone.

    ``W`` (M, D) encodes, ``R`` (D, M) decodes, ``slope`` (N, M) holds f'(u).  0 when R is W transposed
    with any factor per hidden unit.  O(M^2) per row after two Gram matrices.
    """
    encoder, decoder, cross = W @ W.T, R.T @ R, W @ R  # (M, M) each
    weights = slope.unsqueeze(-1) * slope.unsqueeze(-2)  # (N, M, M)
    total = (weights * encoder * decoder).sum((-1, -2))  # |J|^2
    trace = (weights * cross * cross.T).sum((-1, -2))  # tr J^2
    return (total - trace) / (2 * total.clamp(min=torch.finfo(total.dtype).tiny))


@dataclass(frozen=True)
class Conservativeness:
    """What `check_conservative` measured, each the worst over models; 0 is exact.

    ``asymmetry`` is kappa, |A|^2 / |J|^2 with both summed over rows; ``gradient_error`` is the worst
    |grad E - F| / |F| of a row, where |F| counts as at least 1% of the sizes it is the difference of;
    ``path_error`` is how much the integral along a curved path differs from the difference in energy
    (for a plain function: from the integral along the straight line), relative to their size plus 1.
    Quadrature errs where units are steep, so a model is not refused for its ``path_error``.
    """

    asymmetry: float
    gradient_error: float
    path_error: float
    n_rows: int

    def __str__(self) -> str:
        return (
            f"conservative: Jacobian asymmetry {self.asymmetry:.1e}, gradient error {self.gradient_error:.1e}, "
            f"path error {self.path_error:.1e} over {self.n_rows} rows"
        )


@torch.no_grad()
def check_conservative(
    field: Autoencoder | Field, v: Tensor, c: Tensor | None = None, *, tolerance: float | None = None
) -> Conservativeness:
    """Measure whether the field is the gradient of the energy; refuse with the numbers where it is not.

    ``field`` is a model, or any function from points (N, D) to vectors (N, D); at most 32 rows of v are used.
    ``tolerance`` bounds the relative errors sqrt(kappa) and |grad E - F| / |F|; the default is 5e-3 in
    float32 and 1e-6 in float64.  Raises `InputError` when the field has no energy, or when the energy
    belongs to another field.
    """
    tolerance = tolerance or (1e-6 if v.dtype == torch.float64 else 5e-3)
    v, c = v[..., :32, :], None if c is None else c[..., :32, :]
    gradient = 0.0
    if isinstance(field, Autoencoder):
        # Off the faces of the cube, where the field of sigmoid outputs is infinite.
        v = field.visible.f(_to_logits(field.visible, v, limit=4.0))
        gradient = _gradient_error(field, v, c)
    kappa = _pooled_asymmetry(field, v, c)
    path = _path_error(field, v.flatten(0, -2), None if c is None else c.flatten(0, -2)[:1])
    report = Conservativeness(kappa, gradient, path, v.shape[-2])
    if not math.sqrt(kappa) <= tolerance:
        raise InputError(
            "The vector field is not conservative, so it has no energy: its Jacobian has asymmetry "
            f"kappa = {kappa:.3g} (0 for tied weights). Decode with the transposed Jacobian of the pre-activation: "
            "share every weight matrix between encoder and decoder."
        )
    if not gradient <= tolerance:
        raise InputError(
            f"The energy is not the potential of the vector field: its gradient differs by {gradient:.3g} of it. "
            "Set `repeats` so that `decode` is the transposed Jacobian of `preactivation`, divided by `repeats`."
        )
    if not (isinstance(field, Autoencoder) or path <= max(1e-2, tolerance)):
        raise InputError(f"The integral of the vector field depends on the path: relative difference {path:.3g}.")
    return report


def _pooled_asymmetry(field: Autoencoder | Field, v: Tensor, c: Tensor | None) -> float:
    generator = torch.Generator(v.device).manual_seed(0)
    asymmetric, total = _asymmetric_part(field, v, c, "auto", 32, generator)
    # Where saturated units make J vanish, what is left of it is rounding, which is not symmetric.  Hence the sum over
    # rows, and a floor: a thousandth of the Jacobian of the other term of F, which is at least the identity.
    floor = 1e-6 * v.shape[-2] * v.shape[-1] if isinstance(field, Autoencoder) else torch.finfo(v.dtype).tiny
    return float((asymmetric.sum(-1) / total.sum(-1).clamp(min=floor)).max())


def _gradient_error(model: Autoencoder, v: Tensor, c: Tensor | None) -> float:
    own = v.expand(model.n_models, *v.shape) if v.ndim == 2 else v  # (K, N, D)
    gradient = torch.func.grad(lambda v: model.energy(v, c).sum())(own)
    p, t = model.preoutput(own, c), model.visible.inverse(own)
    # At a fixed point F = p - t is all rounding.
    scale = torch.maximum((p - t).norm(dim=-1), 0.01 * (p.norm(dim=-1) + t.norm(dim=-1)))
    error = (gradient - (p - t)).norm(dim=-1) / scale.clamp(min=torch.finfo(v.dtype).tiny)
    return float(error.max())


def _path_error(field: Autoencoder | Field, rows: Tensor, c: Tensor | None) -> float:
    """Between the first and the last row, along a bent path, for the context of the first row."""
    to_t, to_v = (field.visible.inverse, field.visible.f) if isinstance(field, Autoencoder) else (_same, _same)
    start, end = to_t(rows[0]), to_t(rows[-1])
    bend = to_t(rows[len(rows) // 2]) - (start + end) / 2 + 0.1

    def bent(s: Tensor) -> Tensor:
        s = s.unsqueeze(-1)
        return to_v(start + s * (end - start) + torch.sin(math.pi * s) * bend)

    ends = torch.stack([rows[0], rows[-1]])
    along = line_integral(field, bent, c)
    if isinstance(field, Autoencoder):
        energy = field.energy(ends, None if c is None else c.expand(2, -1))  # (K, 2)
        expected = energy[:, 1] - energy[:, 0]
    else:
        expected = line_integral(field, ends)
    return float(((along - expected).abs() / (1 + along.abs() + expected.abs())).max())


def _same(v: Tensor) -> Tensor:
    return v
