"""The denoising loss of gated units with its gradients, written out: what autograd finds, in half as many operations.

Models of pairs are small, and a step of theirs is bound by the number of its operations.  In the words of
`energate.units`, with d for gradients and o for what decoders take:

    q = q_x * q_y      u = W_h q + b      h = sigmoid(u)      g = W_h^T h
    conditional        p = W_y^T o_y + a                     o_y = q_x * g
    symmetric          p = [W_x^T o_x ; W_y^T o_y] + a       o_x = q_y * g

Tests hold it to autograd of the plain formulas.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from energate.activations import SIGMOID
from energate.autoencoder import Autoencoder
from energate.training.written import written
from energate.units import GatedUnits, SymmetricGatedUnits


def is_written_out(model: Autoencoder) -> bool:
    """Whether `written_out` knows this model: one of gated sigmoid units alone, on a CPU, where it pays."""
    units = model.groups[0]
    known = isinstance(units, GatedUnits | SymmetricGatedUnits) and units.activation.f is SIGMOID.f
    return known and len(model.groups) == model.n_models == 1 and model.skip is None and model.a.device.type == "cpu"


def written_out(model: Autoencoder, v: Tensor, c: Tensor | None, seen: Tensor, weight: Tensor) -> Tensor:
    """The mean over rows v (N, D), by their weights (N,), of the loss of restoring them from what was ``seen``: ()."""
    (units,) = model.groups
    assert isinstance(units, GatedUnits | SymmetricGatedUnits)
    parameters = [units.W_x, units.W_y, units.W_h, units.b, model.a]
    return written(lambda: loss_and_gradients(model, v, c, seen, weight), parameters)


def loss_and_gradients(
    model: Autoencoder, v: Tensor, c: Tensor | None, seen: Tensor, weight: Tensor
) -> tuple[Tensor, Sequence[Tensor]]:
    """The loss (), and its gradients in W_x, W_y, W_h, b and the visible biases."""
    (units,) = model.groups
    assert isinstance(units, GatedUnits | SymmetricGatedUnits)
    W_x, W_y, W_h, b, a = (each.squeeze(0) for each in (units.W_x, units.W_y, units.W_h, units.b, model.a))
    n_x = 0 if isinstance(units, GatedUnits) else units.n_context
    x, y = (c, seen) if c is not None else (seen[:, :n_x], seen[:, n_x:])
    q_x, q_y = x @ W_x.T, y @ W_y.T  # (N, F)
    q = q_x * q_y
    h = torch.addmm(b, q, W_h.T).sigmoid_()  # (N, M)
    g = h @ W_h  # (N, F)
    o_y = q_x * g
    if n_x:
        o_x = q_y * g
        p = torch.cat([o_x @ W_x, o_y @ W_y], 1).add_(a)
    else:
        p = torch.addmm(a, o_y, W_y)
    loss = (weight * model.visible.divergence(p, v)).mean()

    d = (model.visible.f(p) - v).mul_((weight / len(v)).unsqueeze(1))  # (N, D)
    d_a, d_y = d.sum(0), d[:, n_x:]
    d_o = d_y @ W_y.T
    d_g, d_q_x = d_o * q_x, d_o * g
    if n_x:
        d_o = d[:, :n_x] @ W_x.T
        d_g.addcmul_(d_o, q_y)
        d_q_y = d_o * g
    d_u = torch.ops.aten.sigmoid_backward(d_g @ W_h.T, h)  # (N, M)
    d_q = d_u @ W_h  # (N, F)
    d_q_x.addcmul_(d_q, q_y)
    d_q_y = d_q_y.addcmul_(d_q, q_x) if n_x else d_q.mul_(q_x)
    d_W_x, d_W_y = d_q_x.T @ x, torch.addmm(d_q_y.T @ y, o_y.T, d_y)
    if n_x:
        d_W_x = torch.addmm(d_W_x, o_x.T, d[:, :n_x])
    d_W_h = torch.addmm(h.T @ d_g, d_u.T, q)
    return loss, [d_W_x, d_W_y, d_W_h, d_u.sum(0), d_a]
