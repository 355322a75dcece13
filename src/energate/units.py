"""Hidden units: a pre-activation ``u(v, c)`` and the decoder that is its transposed Jacobian.

Shapes, here and everywhere: K models, N rows, D visible columns, M hidden units, F factors.  Data ``v`` is (N, D), the
same for all models, or (K, N, D), its own for each; a context ``c`` likewise.  Parameters have a leading axis K; ``u``
and ``h`` are (K, N, M).

A kind of units is exact when ``decode`` is the transposed Jacobian of ``preactivation`` in v, divided by ``repeats``.
`energate.check_conservative` measures that for units that you write yourself.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from energate.activations import Activation, as_activation
from energate.errors import InputError


def project(v: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """W v (+ b) for every model; data that all models share takes one GEMM on the flattened weights."""
    if v.ndim == 3 and v.is_cuda:
        # Gradients of W then lie as W does, and as those of decoding: adding them up takes half as long.
        u = W @ v.mT if b is None else torch.baddbmm(b.unsqueeze(2), W, v.mT)  # (K, M, D) (K, D, N) -> (K, M, N)
        return u.mT
    if v.ndim == 3:
        return v @ W.mT if b is None else torch.baddbmm(b.unsqueeze(1), v, W.mT)  # (K, N, D) (K, D, M) -> (K, N, M)
    flat_W = W.flatten(0, 1)  # (K * M, D)
    flat = v @ flat_W.T if b is None else torch.addmm(b.flatten(), v, flat_W.T)  # (N, K * M)
    return flat.unflatten(1, W.shape[:2]).transpose(0, 1)  # (K, N, M)


MOST_LAYERS = 1000


def positive(**sizes: Any) -> None:
    """Refuse sizes that are not whole numbers of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise InputError(f"`{name}` must be a whole number of at least 1; got {size!r}.")


def few(**layers: Any) -> None:
    """Refuse numbers of layers that nobody trains: those of a forged file would be built one after the other."""
    for name, number in layers.items():
        if isinstance(number, bool) or not isinstance(number, Integral) or not -1 < int(number) <= MOST_LAYERS:
            raise InputError(f"`{name}` must be a whole number from 0 to {MOST_LAYERS}; got {number!r}.")


class HiddenUnits(nn.Module, ABC):
    """One group of hidden units, for K models at once.

    A subclass calls ``super().__init__``, makes its parameters with `weight` and `bias`, and writes
    `preactivation` and `decode`; ``repeats`` is how often v enters its pre-activation through the
    same weights.  docs/adding-units.md has a skeleton to copy.
    """

    #: the decoder is the transposed Jacobian of the pre-activation, divided by this
    repeats: float = 1
    #: whether float32 is too coarse, on a GPU too: energies that are small differences of large squares
    needs_double: bool = False

    def __init__(
        self,
        n_models: int,
        width: int,
        n_hidden: int,
        activation: str | Activation = "sigmoid",
        context_width: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        positive(n_models=n_models, n_visible=width, n_hidden=n_hidden)
        self.n_models = n_models
        self.n_members = n_models  # fewer where models share parts: `energate.trunk.TrunkUnits`
        self.n_hidden = n_hidden
        self.width = width  # columns of v
        self.context_width = context_width  # columns of c; 0 = takes no context
        self.activation = as_activation(activation)
        self._generator = generator

    def weight(self, n_out: int, n_in: int) -> nn.Parameter:
        """A (K, n_out, n_in) parameter of small random numbers, of standard deviation 0.3 / sqrt(n_in).

        Not smaller: where all weights are 0 the training loss of gated units is stationary.
        """
        draw = torch.randn(self.n_models, n_out, n_in, generator=self._generator)
        return nn.Parameter(draw * (0.3 / n_in**0.5))

    def bias(self, n_out: int) -> nn.Parameter:
        """A (K, n_out) parameter of zeros."""
        return nn.Parameter(torch.zeros(self.n_models, n_out))

    @abstractmethod
    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Any]:
        """The pre-activation u (K, N, M), and whatever `decode` needs to know of v and c."""

    @abstractmethod
    def decode(self, h: Tensor, carry: Any) -> Tensor:
        """The transposed Jacobian of u in v, divided by ``repeats``, applied to h: (K, N, D)."""

    def encode(self, v: Tensor, c: Tensor | None) -> Tensor:
        """The hidden activations h = f(u): (K, N, M)."""
        return self.activation.f(self.preactivation(v, c)[0])

    def select(self, index: Tensor) -> None:
        """Keep only the models of these numbers, in this order."""
        for parameter in self.parameters():
            parameter.data = parameter.data[index.to(parameter.device)]
        self.n_models = self.n_members = len(index)

    def extra_repr(self) -> str:
        context = f", context_width={self.context_width}" if self.context_width else ""
        return (
            f"n_models={self.n_models}, width={self.width}, n_hidden={self.n_hidden}, "
            f"activation={self.activation.name!r}{context}"
        )


class MeanUnits(HiddenUnits):
    """The classical auto-encoder: ``u = W v + b``, decoded by W transposed."""

    def __init__(
        self,
        n_models: int,
        n_visible: int,
        n_hidden: int,
        activation: str | Activation = "sigmoid",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(n_models, n_visible, n_hidden, activation, generator=generator)
        self.W = self.weight(n_hidden, n_visible)
        self.b = self.bias(n_hidden)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        return project(v, self.W, self.b), None

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return h @ self.W  # (K, N, D)


class GatedUnits(HiddenUnits):
    """The gated auto-encoder with the context held fixed (`eqn:enc`, `eqn:dec1`).

    ``u = W_h((W_x c) * (W_y v)) + b``: the context c is the paper's x, the visible v its y.
    """

    def __init__(
        self,
        n_models: int,
        n_visible: int,
        n_context: int,
        n_factors: int,
        n_hidden: int,
        activation: str | Activation = "sigmoid",
        generator: torch.Generator | None = None,
    ) -> None:
        positive(n_context=n_context, n_factors=n_factors)
        super().__init__(n_models, n_visible, n_hidden, activation, n_context, generator)
        self.W_x = self.weight(n_factors, n_context)
        self.W_y = self.weight(n_factors, n_visible)
        self.W_h = self.weight(n_hidden, n_factors)
        self.b = self.bias(n_hidden)

    def factors(self, v: Tensor) -> Tensor:
        """What the pre-activation sees of v, linear in it: (K, N, F)."""
        return project(v, self.W_y)

    def gate(self, c: Tensor) -> Tensor:
        """What it sees of the context: (K, N, F)."""
        return project(c, self.W_x)

    def from_factors(self, q: Tensor, gate: Tensor) -> Tensor:
        """The pre-activation from what it sees: (K, N, M)."""
        return project(gate * q, self.W_h, self.b)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        assert c is not None  # Autoencoder refuses a missing context with a message
        q_x = self.gate(c)
        return self.from_factors(self.factors(v), q_x), q_x

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        q_x = carry
        return (q_x * (h @ self.W_h)) @ self.W_y  # (K, N, D)


class SymmetricGatedUnits(HiddenUnits):
    """The gated auto-encoder that reconstructs both sides (`eqn:dec1` and `eqn:dec2`, `symobj`).

    The visible vector is ``v = [x; y]`` of width ``n_context + n_visible``: x has ``n_context`` columns, y has
    ``n_visible``.  The joint field has one potential with coefficient 1.
    """

    # NOTE[DIFF] the paper prints 2 sum softplus(u) here; each half of the field is a full gradient of one sum (E08).
    def __init__(
        self,
        n_models: int,
        n_visible: int,
        n_context: int,
        n_factors: int,
        n_hidden: int,
        activation: str | Activation = "sigmoid",
        generator: torch.Generator | None = None,
    ) -> None:
        positive(n_visible=n_visible, n_context=n_context, n_factors=n_factors)
        super().__init__(n_models, n_context + n_visible, n_hidden, activation, generator=generator)
        self.n_context = n_context
        self.W_x = self.weight(n_factors, n_context)
        self.W_y = self.weight(n_factors, n_visible)
        self.W_h = self.weight(n_hidden, n_factors)
        self.b = self.bias(n_hidden)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q_x = project(v[..., : self.n_context], self.W_x)  # (K, N, F)
        q_y = project(v[..., self.n_context :], self.W_y)  # (K, N, F)
        return project(q_x * q_y, self.W_h, self.b), (q_x, q_y)

    def decode(self, h: Tensor, carry: tuple[Tensor, Tensor]) -> Tensor:
        q_x, q_y = carry
        g = h @ self.W_h  # (K, N, F)
        return torch.cat([(q_y * g) @ self.W_x, (q_x * g) @ self.W_y], -1)  # (K, N, Dx + Dy)


class CovarianceUnits(HiddenUnits):
    """The covariance auto-encoder: both inputs are v and share weights (`covtheorem`).

    ``u = W_h (W v)^2 + b``.  With ``repeats=2``, the paper's decoder ``W^T((W v) * (W_h^T h))``, the energy is half the
    sum of potentials.  ``repeats=1`` doubles both: a free energy of a covariance RBM with unit variance.
    """

    # NOTE[DIFF] the paper's theorem has coefficient 1 with the decoder of coefficient 1/2 (E11).
    def __init__(
        self,
        n_models: int,
        n_visible: int,
        n_factors: int,
        n_hidden: int,
        activation: str | Activation = "sigmoid",
        repeats: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        positive(n_factors=n_factors)
        if repeats not in (1, 2):
            raise InputError(f"`repeats` must be 2 (the paper's decoder) or 1 (twice that); got {repeats!r}.")
        super().__init__(n_models, n_visible, n_hidden, activation, generator=generator)
        self.repeats = repeats
        self.W = self.weight(n_factors, n_visible)
        self.W_h = self.weight(n_hidden, n_factors)
        self.b = self.bias(n_hidden)

    def factors(self, v: Tensor) -> Tensor:
        """What the pre-activation sees of v, linear in it: (K, N, F)."""
        return project(v, self.W)

    def from_factors(self, q: Tensor) -> Tensor:
        """The pre-activation from what it sees: (K, N, M)."""
        return project(q * q, self.W_h, self.b)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        q = self.factors(v)
        return self.from_factors(q), q

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        decoded = (carry * (h @ self.W_h)) @ self.W  # (K, N, D)
        return decoded if self.repeats == 2 else 2 * decoded


class NetworkUnits(HiddenUnits):
    """Units over any differentiable network, decoded by its vector-Jacobian product.

    ``network`` maps (N, D) to (K, N, M), or to (N, M) for one model; with ``n_context`` it is called as
    ``network(v, c)``.  Deep and convolutional auto-encoders get an exact energy this way, and train through double
    backward.  For (K, N, D) data head k sees slice k: a network that maps (K, N, D) to (K, N, M) itself is used as it
    is, any other is run on all slices and the matching head is taken.

    Rows must not influence each other, so batch normalisation in training mode is refused; use GroupNorm or LayerNorm.
    Random layers (dropout) are refused while decoding, since the decoder would see another draw than the encoder.
    Decoding runs the network once more than encoding.
    """

    def __init__(
        self,
        network: nn.Module,
        n_visible: int | None = None,
        n_context: int = 0,
        activation: str | Activation = "sigmoid",
        *,
        n_models: int | None = None,
        n_hidden: int | None = None,
    ) -> None:
        width = _input_width(network) if n_visible is None else n_visible
        positive(n_visible=width)
        batch_norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]
        _refuse_batch_statistics(batch_norms)  # before the probes below could change the running averages
        reference = next(network.parameters(), torch.zeros(()))
        probe = torch.linspace(-1, 1, 3 * width, dtype=reference.dtype, device=reference.device)
        v = probe.view(3, width)
        c = probe.new_ones(3, n_context) if n_context else None
        try:
            with torch.no_grad(), _keep_random_state(v):
                u = _call(network, v[:2], None if c is None else c[:2])
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            context = f" and a context of {n_context}" if n_context else ""
            raise InputError(
                f"`network` failed on rows of {width} columns{context}: {error} "
                "Check `n_visible` and `n_context`; a network with a context is called as network(v, c)."
            ) from error
        if u.ndim not in (2, 3) or u.shape[-2] != 2:
            raise InputError(
                "`network` must map rows (N, D) to (K, N, M), or to (N, M) for one model; "
                f"for {tuple(v[:2].shape)} it returned {tuple(u.shape)}."
            )
        found = {"n_models": u.shape[0] if u.ndim == 3 else 1, "n_hidden": u.shape[-1]}
        for name, asked in (("n_models", n_models), ("n_hidden", n_hidden)):
            if asked not in (None, found[name]):
                raise InputError(
                    f"`{name}` is {asked}, but the network gives {found[name]}. Leave it out, or change it."
                )
        super().__init__(found["n_models"], width, found["n_hidden"], activation, n_context)
        self.network = network
        self._batch_norms = batch_norms
        self._dropouts = [m for m in network.modules() if isinstance(m, _DropoutNd)]
        self._refuse_mixed_rows(v, c)
        self._takes_slices = self._check_slices(v, c)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
        _refuse_batch_statistics(self._batch_norms)
        return self._forward(v, c), (v, c)

    def decode(self, h: Tensor, carry: tuple[Tensor, Tensor | None]) -> Tensor:
        if any(layer.training for layer in self._dropouts):
            raise InputError(
                "A network with dropout in training mode has no fixed decoder. Call `.eval()` on the dropout "
                "layers, or train on `energy` alone."
            )
        v, c = carry
        v = self._per_model(v)  # each model needs a cotangent of its own
        # h is a constant cotangent here: differentiating (u * h).sum() would differentiate h too.
        pullback = torch.func.vjp(lambda v: self._forward(v, c), v)[1]
        return pullback(h)[0]

    def _forward(self, v: Tensor, c: Tensor | None) -> Tensor:
        if v.ndim == 2 and (c is None or c.ndim == 2):
            return _with_models(_call(self.network, v, c))
        v = self._per_model(v)
        c = None if c is None else self._per_model(c)
        return _call(self.network, v, c) if self._takes_slices else self._diagonal(v, c)

    def _per_model(self, rows: Tensor) -> Tensor:
        return rows if rows.ndim == 3 else rows.expand(self.n_models, *rows.shape)  # (K, N, .)

    def _diagonal(self, v: Tensor, c: Tensor | None) -> Tensor:
        n_models, n_rows, _ = v.shape
        u = _with_models(_call(self.network, v.flatten(0, 1), None if c is None else c.flatten(0, 1)))
        u = u.unflatten(1, (n_models, n_rows))  # (K heads, K slices, N, M)
        return u.diagonal(dim1=0, dim2=1).movedim(-1, 0)  # (K, N, M)

    @torch.no_grad()
    def _refuse_mixed_rows(self, v: Tensor, c: Tensor | None) -> None:
        if v.is_meta:  # shapes alone
            return
        # The first row beside two different second rows: its u must not notice.
        c = None if c is None else c[:2]
        with _keep_random_state(v):
            first = self._forward(v[:2], c)
        with _keep_random_state(v):  # the same dropout as before
            second = self._forward(v[[0, 2]], c)
        if not torch.allclose(first[:, 0], second[:, 0], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise InputError(
                "`network` lets rows of a batch influence each other, so no row has an energy of its own. "
                "Remove the layer that mixes rows."
            )

    @torch.no_grad()
    def _check_slices(self, v: Tensor, c: Tensor | None) -> bool:
        if v.is_meta or self.n_models == 1 or any(layer.training for layer in self._dropouts):
            return False
        scale = torch.arange(1, self.n_models + 1, dtype=v.dtype, device=v.device) / self.n_models
        slices = scale.view(-1, 1, 1) * v  # (K, 3, D), all different
        contexts = None if c is None else self._per_model(c)
        try:
            own = _call(self.network, slices, contexts)
        except (RuntimeError, ValueError, IndexError):
            return False
        expected = self._diagonal(slices, contexts)
        return own.shape == expected.shape and torch.allclose(own, expected, rtol=1e-4, atol=1e-5)


def _refuse_batch_statistics(norms: Iterable[_BatchNorm]) -> None:
    if any(norm.training or not norm.track_running_stats for norm in norms):
        raise InputError(
            "Batch normalisation in training mode lets rows influence each other, so no row has an energy of its "
            "own. Use GroupNorm or LayerNorm, or call `.eval()` on the network."
        )


def _keep_random_state(v: Tensor) -> AbstractContextManager[None]:
    return torch.random.fork_rng(devices=[v.device] if v.is_cuda else [])


def _call(network: nn.Module, v: Tensor, c: Tensor | None) -> Tensor:
    return network(v) if c is None else network(v, c)


def _with_models(u: Tensor) -> Tensor:
    return u.unsqueeze(0) if u.ndim == 2 else u  # (N, M) is one model: (1, N, M)


def _input_width(network: nn.Module) -> int:
    first = next((m for m in network.modules() if not list(m.children())), None)
    if isinstance(first, nn.Linear):
        return first.in_features
    if isinstance(first, nn.Unflatten):
        return math.prod(first.unflattened_size)
    raise InputError(
        "`n_visible`, the number of columns the network takes, can only be read off a network that starts with "
        "nn.Linear or nn.Unflatten. Pass NetworkUnits(network, n_visible=...)."
    )
