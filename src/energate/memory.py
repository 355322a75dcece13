"""Memory units: rows of the data as hidden units, an auto-encoder that needs no training.

Softmax units at the rows w_i, with biases -|w_i|^2 / 2, have with linear outputs the energy and the reconstruction

    E(v) = T log sum_i n_i exp((w_i.v - |w_i|^2 / 2) / T) - |v|^2 / 2 = T log sum_i n_i exp(-|v - w_i|^2 / (2 T))
    r(v) = sum_i p_i w_i,    p_i proportional to n_i exp(-|v - w_i|^2 / (2 T))

so the energy is T times the log of a Parzen density of variance T (up to a constant), and the reconstruction is the
mean of the rows given one of them seen through Gaussian noise of variance T: no denoiser of these rows is better, and
one step along the field is a step of mean shift.  n_i is how many rows unit i stands for.

Energies of several temperatures, and of rows and of columns alone, are averaged: with shares that add up to 1 the terms
-|v|^2 / 2 do, too, and the average is the exact energy of one auto-encoder whose reconstruction is the same average.
Shares that do not add up to 1 leave an energy that is exact and no average of densities.

Energies of *soft* columns, z / sqrt(1 + (z / 3)^2) of columns z in robust units, bring their own quadratic term, and
are added whatever their shares: one far value of a row has a bounded say in them.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from energate.activations import Activation
from energate.errors import InputError
from energate.units import HiddenUnits, positive, project

#: each temperature is so many times the one before it: the powers of one exponential serve them all
RATIO = 4
#: Smaller exponents, at the highest temperature, count as this one: 10^4 such terms beside one of 1 are below rounding.
#: Their powers at three temperatures are still no numbers so small that processors are slow with them.
LEAST_EXPONENT = -43.0


class MemoryUnits(HiddenUnits):
    """Rows as hidden units, under a softmax at temperatures T, 4 T, 16 T...: ``u = W v + b`` with ``b = -|w|^2 / 2``.

    ``n_temperatures`` energies are weighed by shares of their own and added.  Parameters: ``W`` (K, M, D), the rows;
    ``b`` (K, M); ``log_counts`` (K, M), of the rows that each stands for; ``log_T`` (K,), of the lowest temperature;
    ``log_share`` (K, J), of each temperature.  `remember` fills the first three.  Whatever they are, the field is the
    gradient of the energy: they may be fine-tuned.
    """

    needs_double = True

    def __init__(
        self,
        n_models: int,
        n_visible: int,
        n_hidden: int,
        n_temperatures: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        positive(n_temperatures=n_temperatures)
        activation = Activation("softmax", self._activate, self._potential, slope_min=0.0)
        super().__init__(n_models, n_visible, n_hidden, activation, generator=generator)
        self.n_temperatures = n_temperatures
        self.W = self.weight(n_hidden, n_visible)
        self.b = self.bias(n_hidden)
        self.log_counts = self.bias(n_hidden)
        self.log_T = nn.Parameter(torch.zeros(n_models))
        self.log_share = nn.Parameter(torch.full((n_models, n_temperatures), -math.log(n_temperatures)))
        self.remember(self.W.detach())

    @torch.no_grad()
    def remember(self, rows: Tensor, counts: Tensor | None = None) -> None:
        """Take rows (K, M, D) as units, each of which stands for one row, or for ``counts`` (K, M)."""
        if rows.shape != self.W.shape or (counts is not None and counts.shape != self.b.shape):
            raise InputError(
                f"`rows` must have shape {tuple(self.W.shape)}, and `counts` {tuple(self.b.shape)}; got "
                f"{tuple(rows.shape)} and {None if counts is None else tuple(counts.shape)}."
            )
        self.W.copy_(rows)
        self.b.copy_(-self.W.square().sum(-1) / 2)
        self.log_counts.copy_(torch.zeros_like(self.b) if counts is None else counts.log())

    @property
    def temperatures(self) -> Tensor:
        """All temperatures: (K, J)."""
        steps = torch.arange(self.n_temperatures, dtype=self.log_T.dtype, device=self.log_T.device)
        return torch.exp(self.log_T.unsqueeze(1) + math.log(RATIO) * steps)  # (K, J)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        return project(v, self.W, self.b), None

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return h @ self.W  # (K, N, D)

    def _potential(self, u: Tensor) -> Tensor:
        """The sum over temperatures of share * T log sum_i n_i exp(u_i / T): (K, N)."""
        top = _largest(u)
        share, T = self.log_share.exp(), self.temperatures  # (K, J)
        counts = self.log_counts.exp().unsqueeze(-1)  # (K, M, 1)
        found = share.sum(1, keepdim=True) * top.squeeze(-1)  # (K, N)
        for j, term in self._terms(u - top):
            total = (term @ counts).squeeze(-1)  # (K, N, M) (K, M, 1) -> (K, N)
            found = found + share[:, [j]] * T[:, [j]] * torch.log(total)
        return found

    def _activate(self, u: Tensor) -> Tensor:
        """The gradient of the potential: the sum over temperatures of share * softmax."""
        share, counts = self.log_share.exp(), self.log_counts.exp().unsqueeze(1)  # (K, J), (K, 1, M)
        found = torch.zeros_like(u)
        for j, term in self._terms(u - _largest(u)):
            weighed = counts * term
            found = found + share[:, j, None, None] * (weighed / weighed.sum(-1, keepdim=True))
        return found

    def _terms(self, below: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The number of each temperature, from the highest, and exp(below / T).

        Without gradients a term takes the place of the one before, and the first that of ``below``: these are as wide
        as the memory, and all that counts for speed.
        """
        inverse = 1 / self.temperatures[:, -1, None, None]  # (K, 1, 1)
        if torch.is_grad_enabled():
            term = torch.exp((below * inverse).clamp(min=LEAST_EXPONENT))
        else:
            term = below.mul_(inverse).clamp_(min=LEAST_EXPONENT).exp_()
        yield self.n_temperatures - 1, term
        for j in reversed(range(self.n_temperatures - 1)):  # to the power of RATIO
            if torch.is_grad_enabled():
                term = (term * term).square()
            else:
                term.mul_(term).mul_(term)
            yield j, term


def _largest(u: Tensor) -> Tensor:
    """A constant that is taken from u, so that no exponential overflows; derivatives are right without it."""
    return u.detach().amax(-1, keepdim=True)  # (K, N, 1)


class ColumnUnits(HiddenUnits):
    """What memories of single columns share: a softmax over the B values of each, at one temperature, with counts.

    Parameters: ``W`` (K, D, B), the values; ``log_counts`` (K, D, B); ``log_T`` (K,) and ``log_share`` (K,).
    """

    def __init__(self, n_models: int, n_visible: int, n_values: int, generator: torch.Generator | None = None) -> None:
        positive(n_values=n_values)
        activation = Activation("softmax", self._activate, self._potential, slope_min=0.0)
        super().__init__(n_models, n_visible, n_visible * n_values, activation, generator=generator)
        self.n_values = n_values
        self.W = self.weight(n_visible, n_values)
        self.log_counts = nn.Parameter(torch.zeros(n_models, n_visible, n_values))
        self.log_T = nn.Parameter(torch.zeros(n_models))
        self.log_share = nn.Parameter(torch.zeros(n_models))

    def _scaled(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """By column, u / T + log n, (K, N, D, B), and T (K, 1, 1)."""
        T = self.log_T.exp()[:, None, None]
        columns = (u / T).unflatten(2, self.W.shape[1:])
        return columns + self.log_counts.unsqueeze(1), T

    def _potential(self, u: Tensor) -> Tensor:
        scaled, T = self._scaled(u)
        return (self.log_share.exp()[:, None, None] * T * torch.logsumexp(scaled, -1)).sum(-1)  # (K, N)

    def _activate(self, u: Tensor) -> Tensor:
        return self.log_share.exp()[:, None, None] * torch.softmax(self._scaled(u)[0], -1).flatten(2)


class ColumnMemoryUnits(ColumnUnits):
    """A memory of every column alone, of B values each: the energy of a product of one-dimensional densities.

    ``E(v) = sum_d T log sum_b n_db exp(-(v_d - w_db)^2 / (2 T))`` with linear outputs and a share of 1.
    """

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        W = self.W.unsqueeze(1)  # (K, 1, D, B)
        return (W * (_of_models(v).unsqueeze(-1) - W / 2)).flatten(2), None  # (K, N, D * B)

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return (h.unflatten(2, self.W.shape[1:]) * self.W.unsqueeze(1)).sum(-1)  # (K, N, D)


# --- soft columns ----------------------------------------------------------------------------------------------------


class SoftColumns(nn.Module):
    """Columns as ``z / sqrt(1 + (limit z)^2)`` with ``z = rate (v - middle)``: within 1 / limit; 0 is no limit.

    Parameters: ``middle``, ``rate`` and ``limit``, each (K, D).
    """

    def __init__(self, n_models: int, n_visible: int) -> None:
        super().__init__()
        self.middle = nn.Parameter(torch.zeros(n_models, n_visible))
        self.rate = nn.Parameter(torch.ones(n_models, n_visible))
        self.limit = nn.Parameter(torch.zeros(n_models, n_visible))

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The soft columns, and their derivatives in v: each (K, N, D)."""
        rate = self.rate.unsqueeze(1)  # (K, 1, D)
        z = rate * (_of_models(v) - self.middle.unsqueeze(1))  # (K, N, D)
        root = torch.rsqrt(1 + (self.limit.unsqueeze(1) * z).square())
        return z * root, rate * root**3


class SoftColumnUnits(ColumnUnits):
    """A memory of every soft column s(v) alone: ``E(v) = sum_d T log sum_b n_db exp(-(s_d(v) - w_db)^2 / (2 T))``.

    It has its quadratic term inside, ``u = -(s(v) - w)^2 / 2``, and is added to any other energy.
    """

    def __init__(self, n_models: int, n_visible: int, n_values: int, generator: torch.Generator | None = None) -> None:
        super().__init__(n_models, n_visible, n_values, generator)
        self.columns = SoftColumns(n_models, n_visible)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        s, slope = self.columns(v)
        u = (s.unsqueeze(-1) - self.W.unsqueeze(1)).square() / -2  # (K, N, D, B)
        return u.flatten(2), (s, slope)

    def decode(self, h: Tensor, carry: tuple[Tensor, Tensor]) -> Tensor:
        s, slope = carry
        inward = self.W.unsqueeze(1) - s.unsqueeze(-1)  # (K, N, D, B)
        return slope * (h.unflatten(2, self.W.shape[1:]) * inward).sum(-1)  # (K, N, D)


class SoftGaussianUnits(HiddenUnits):
    """A Gaussian of soft columns s(v): ``E(v) = -|W s(v) + b|^2 / 2`` with a share of 1, added to any other energy.

    Parameters: ``W`` (K, D, D), ``b`` (K, D), and ``log_share`` (K,).
    """

    def __init__(self, n_models: int, n_visible: int, generator: torch.Generator | None = None) -> None:
        activation = Activation("gaussian", self._activate, self._potential, slope_min=-math.inf)
        super().__init__(n_models, n_visible, n_visible, activation, generator=generator)
        self.columns = SoftColumns(n_models, n_visible)
        self.W = self.weight(n_visible, n_visible)
        self.b = self.bias(n_visible)
        self.log_share = nn.Parameter(torch.zeros(n_models))

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor]:
        s, slope = self.columns(v)
        return project(s, self.W, self.b), slope

    def decode(self, h: Tensor, carry: Tensor) -> Tensor:
        return carry * (h @ self.W)  # (K, N, D)

    def _potential(self, u: Tensor) -> Tensor:
        return self.log_share.exp().unsqueeze(1) * u.square().sum(-1) / -2  # (K, N)

    def _activate(self, u: Tensor) -> Tensor:
        return -self.log_share.exp()[:, None, None] * u


def _of_models(v: Tensor) -> Tensor:
    return v.unsqueeze(0) if v.ndim == 2 else v  # (1, N, D), or (K, N, D)
