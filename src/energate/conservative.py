"""Whether a vector field is the gradient of an energy: line integrals, asymmetry, and the proof by measurement."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import to_logits
from energate.errors import InputError

EXACT_WIDTH = 64  # widest v for which `jacobian_asymmetry` forms the whole Jacobian by default
MOST_ROWS = 32  # that `check_conservative` looks at
MOST_ENTRIES, LEAST_ROWS = 2**19, 4  # of Jacobians that are formed: of wide or many models fewer rows are looked at
LOGITS = 4.0  # off the faces of the cube, where the field of sigmoid outputs is infinite
N_PATHS, MOST_PIECES = 4, 64
BEND = 0.1  # so that a path is bent even where rows are equal or lie on a line


# --- line integrals ---------------------------------------------------------------------------------------


Field = Callable[[Tensor], Tensor]
Path = Callable[[Tensor], Tensor]


def line_integral(
    field: Autoencoder | Field, path: Path | Tensor, c: Tensor | None = None, n_nodes: int = 400, n_pieces: int = 1
) -> Tensor:
    """The integral of F.dv along a path, by Gauss-Legendre quadrature: (K,).

    ``field`` is a model, or a function from points (S, D) to vectors (S, D) or (K, S, D).  ``path`` maps
    parameters s in [0, 1], a tensor (S,), to points (S, D) and must be differentiable, or is a tensor
    (P, D) of corners joined by straight lines, each with ``n_nodes`` nodes of its own in each of ``n_pieces`` equal
    pieces.  ``c`` is one context row (1, C).  In a conservative field the result is E(end) - E(start).
    """
    if isinstance(path, Tensor):
        corners = path
        if corners.ndim != 2 or len(corners) < 2:
            raise InputError(f"`path` must have shape (P, D) with at least 2 corners; got {tuple(corners.shape)}.")
        ends = range(len(corners) - 1)
        legs = [line_integral(field, straight(corners[i], corners[i + 1]), c, n_nodes, n_pieces) for i in ends]
        return torch.stack(legs).sum(0)
    nodes, weights = gauss_legendre(n_nodes)
    like = field.a if isinstance(field, Autoencoder) else path(torch.zeros(1, dtype=torch.get_default_dtype()))
    nodes = ((nodes + 1) / 2 + np.arange(n_pieces)[:, None]).ravel() / n_pieces  # (S,)
    s = torch.as_tensor(nodes, dtype=like.dtype, device=like.device)
    w = torch.as_tensor(np.tile(weights / 2, n_pieces) / n_pieces, dtype=like.dtype, device=like.device)
    points, velocity = _jvp(path, s, torch.ones_like(s))  # (S, D) each
    if isinstance(field, Autoencoder):
        vectors = field.vector_field(points, None if c is None else c.expand(len(s), -1))
    else:
        vectors = field(points)
    return (vectors * velocity).sum(-1) @ w  # (K, S) -> (K,)


@cache
def gauss_legendre(n_nodes: int) -> tuple[Any, Any]:
    """Nodes in [-1, 1] and their weights."""
    return np.polynomial.legendre.leggauss(n_nodes)  # an eigenvalue problem of that size


def straight(start: Tensor, end: Tensor) -> Path:
    """The path along a line."""
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
    """What `measure` found, each the worst over models; 0 is exact.

    ``asymmetry`` is kappa, |A|^2 / |J|^2 with both summed over rows; ``gradient_error`` is the worst
    |grad E - F| / |F| of a row, where |F| counts as at least 1% of the sizes it is the difference of (0 for a plain
    function); ``path_error`` is how much integrals along a straight and along a bent path between two rows differ, from
    each other and from the difference in energy, relative to their size plus 1.
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
def measure(field: Autoencoder | Field, v: Tensor, c: Tensor | None = None) -> Conservativeness:
    """How far a model, or any function from points (N, D) to vectors (N, D), is from conservative, on rows v."""
    gradient = 0.0
    if isinstance(field, Autoencoder):
        v = field.visible.f(to_logits(field.visible, v, limit=LOGITS))
        gradient = _gradient_error(field, v, c)
    context = None if c is None else c.flatten(0, -2)[:1]
    path = _path_error(field, v.flatten(0, -2), context)
    return Conservativeness(_pooled_asymmetry(field, v, c), gradient, path, v.shape[-2])


def check_conservative(
    field: Autoencoder | Field, v: Tensor, c: Tensor | None = None, *, tolerance: float | None = None
) -> Conservativeness:
    """Measure whether the field is the gradient of the energy; refuse with the numbers where it is not.

    ``field`` is a model, or any function from points (N, D) to vectors (N, D); at most 32 rows of v are used.
    ``tolerance`` bounds the relative errors sqrt(kappa) and |grad E - F| / |F|; the default is 5e-3 in
    float32 and 1e-6 in float64.  Quadrature errs where units are steep, so a model is not refused for its
    ``path_error``.  Raises `InputError` when the field has no energy, or when the energy belongs to another field.
    """
    tolerance = tolerance or (1e-6 if v.dtype == torch.float64 else 5e-3)
    found = measure(field, v[..., :MOST_ROWS, :], None if c is None else c[..., :MOST_ROWS, :])
    if not math.sqrt(found.asymmetry) <= tolerance:
        raise InputError(
            "The vector field is not conservative, so it has no energy: its Jacobian has asymmetry "
            f"kappa = {found.asymmetry:.3g} (0 for tied weights). Decode with the transposed Jacobian of the "
            "pre-activation: share every weight matrix between encoder and decoder."
        )
    if not found.gradient_error <= tolerance:
        raise InputError(
            "The energy is not the potential of the vector field: its gradient differs by "
            f"{found.gradient_error:.3g} of it. Set `repeats` so that `decode` is the transposed Jacobian of "
            "`preactivation`, divided by `repeats`."
        )
    if not (isinstance(field, Autoencoder) or found.path_error <= max(1e-2, tolerance)):
        raise InputError(
            f"The integral of the vector field depends on the path: relative difference {found.path_error:.3g}."
        )
    return found


def _pooled_asymmetry(field: Autoencoder | Field, v: Tensor, c: Tensor | None) -> float:
    n_models = field.n_models if isinstance(field, Autoencoder) else 1
    n_rows = max(LEAST_ROWS, MOST_ENTRIES // (n_models * min(v.shape[-1], EXACT_WIDTH) ** 2))
    v, c = v[..., :n_rows, :], None if c is None else c[..., :n_rows, :]
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
    """The worst over some pairs of rows (N, D), relative to the integrals plus 1; for one context (1, C)."""
    to_t, to_v = (field.visible.inverse, field.visible.f) if isinstance(field, Autoencoder) else (_same, _same)
    worst, n_rows = 0.0, len(rows)
    for i in range(max(1, min(N_PATHS, n_rows // 2))):
        start, end, aside = (rows[(2 * i + j) % n_rows] for j in range(3))
        t_start, t_end = to_t(start), to_t(end)
        bend = to_t(aside) - (t_start + t_end) / 2 + BEND
        paths = [straight(start, end), _bent(to_v, t_start, t_end, bend)]
        found = [_integral(field, path, c) for path in paths]
        if isinstance(field, Autoencoder):
            energy = field.energy(torch.stack([start, end]), None if c is None else c.expand(2, -1))  # (K, 2)
            found.append(energy[:, 1] - energy[:, 0])
        values = torch.stack(found)  # (2 or 3, K)
        apart = values.amax(0) - values.amin(0)
        worst = max(worst, float((apart / (1 + values.abs().amax(0))).max()))
    return worst


def _bent(to_v: Field, start: Tensor, end: Tensor, bend: Tensor) -> Path:
    """A path from one t to another that goes aside, inside the domain of the outputs."""

    def path(s: Tensor) -> Tensor:
        s = s.unsqueeze(-1)
        return to_v(start + s * (end - start) + torch.sin(math.pi * s) * bend)

    return path


def _integral(field: Autoencoder | Field, path: Path, c: Tensor | None) -> Tensor:
    """The integral of the field along a path, in more and more pieces until it no longer changes: (K,)."""
    n_pieces, last = 1, line_integral(field, path, c)
    settled = 1e-9 if last.dtype == torch.float64 else 1e-5
    while n_pieces < MOST_PIECES:
        n_pieces *= 4
        now = line_integral(field, path, c, n_nodes=100, n_pieces=n_pieces)
        done = bool(((now - last).abs() <= settled * (1 + now.abs())).all())
        last = now
        if done:
            break
    return last


def _same(v: Tensor) -> Tensor:
    return v
