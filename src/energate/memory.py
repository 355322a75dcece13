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
"""

import math

import torch
from torch import Tensor, nn

from energate.activations import Activation
from energate.units import HiddenUnits, positive, project

#: each temperature is so many times the one before it: the powers of one exponential serve them all
RATIO = 4
#: Smaller exponents, at the highest temperature, count as this one: 10^4 such terms beside one of 1 are below rounding.
#: Their powers at three temperatures are still no numbers so small that processors are slow with them.
LEAST_EXPONENT = -43.0


class MemoryUnits(HiddenUnits):
    """Rows as hidden units, under a softmax at temperatures T, 4 T, 16 T...: ``u = W v - |w|^2 / 2``.

    ``n_temperatures`` energies are weighed by shares of their own and added.  Parameters: ``W`` (K, M, D), the rows;
    ``log_counts`` (K, M), of the rows that each stands for; ``log_T`` (K,), of the lowest temperature; ``log_share``
    (K, J), of each temperature.  Whatever they are, the field is the gradient of the energy: rows may be fine-tuned.
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
        self.log_counts = self.bias(n_hidden)
        self.log_T = nn.Parameter(torch.zeros(n_models))
        self.log_share = nn.Parameter(torch.full((n_models, n_temperatures), -math.log(n_temperatures)))

    @property
    def temperatures(self) -> Tensor:
        """All temperatures: (K, J)."""
        steps = torch.arange(self.n_temperatures, dtype=self.log_T.dtype, device=self.log_T.device)
        return torch.exp(self.log_T.unsqueeze(1) + math.log(RATIO) * steps)  # (K, J)

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        return project(v, self.W, -self.W.square().sum(-1) / 2), None

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return h @ self.W  # (K, N, D)

    def _potential(self, u: Tensor) -> Tensor:
        """The sum over temperatures of share * T log sum_i n_i exp(u_i / T): (K, N)."""
        top, terms = self._terms(u)
        found = self.log_share.exp().sum(1, keepdim=True) * top.squeeze(-1)  # (K, N)
        counts = self.log_counts.exp().unsqueeze(-1)  # (K, M, 1)
        for (scale, _), term in zip(self._scales(), terms, strict=True):
            found = found + scale * torch.log((term @ counts).squeeze(-1))  # (K, N, M) (K, M, 1) -> (K, N)
        return found

    def _activate(self, u: Tensor) -> Tensor:
        """The gradient of the potential: the sum over temperatures of share * softmax."""
        found = torch.zeros_like(u)
        counts = self.log_counts.exp().unsqueeze(1)  # (K, 1, M)
        for (_, share), term in zip(self._scales(), self._terms(u)[1], strict=True):
            weighed = counts * term
            found = found + share.unsqueeze(-1) * (weighed / weighed.sum(-1, keepdim=True))
        return found

    def _scales(self) -> list[tuple[Tensor, Tensor]]:
        """share * T and share of every temperature, from the highest to the lowest: (K, 1) each."""
        share, T = self.log_share.exp(), self.temperatures
        return [(share[:, [j]] * T[:, [j]], share[:, [j]]) for j in reversed(range(self.n_temperatures))]

    def _terms(self, u: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The largest u, and exp((u - largest) / T) of every temperature, from the highest to the lowest."""
        top = u.detach().amax(-1, keepdim=True)  # (K, N, 1); a constant, which no derivative sees
        T = self.log_T.exp()[:, None, None] * RATIO ** (self.n_temperatures - 1)  # (K, 1, 1), the highest
        terms = [torch.exp(((u - top) / T).clamp(min=LEAST_EXPONENT))]
        for _ in range(self.n_temperatures - 1):
            squared = terms[-1] * terms[-1]
            terms.append(squared * squared)  # to the power of RATIO
        return top, terms


class ColumnMemoryUnits(HiddenUnits):
    """A memory of every column alone, of B values each: the energy of a product of one-dimensional densities.

    ``E(v) = share sum_d T log sum_b n_db exp(-(v_d - w_db)^2 / (2 T))``, less what linear outputs add to it.  Parameters:
    ``W`` (K, D, B), the values; ``log_counts`` (K, D, B); ``log_T`` (K,) and ``log_share`` (K,).
    """

    def __init__(
        self, n_models: int, n_visible: int, n_values: int, generator: torch.Generator | None = None
    ) -> None:
        positive(n_values=n_values)
        activation = Activation("softmax", self._activate, self._potential, slope_min=0.0)
        super().__init__(n_models, n_visible, n_visible * n_values, activation, generator=generator)
        self.n_values = n_values
        self.W = self.weight(n_visible, n_values)
        self.log_counts = nn.Parameter(torch.zeros(n_models, n_visible, n_values))
        self.log_T = nn.Parameter(torch.zeros(n_models))
        self.log_share = nn.Parameter(torch.zeros(n_models))

    def preactivation(self, v: Tensor, c: Tensor | None) -> tuple[Tensor, None]:
        v = v.unsqueeze(0) if v.ndim == 2 else v  # (1, N, D), or (K, N, D)
        W = self.W.unsqueeze(1)  # (K, 1, D, B)
        return (W * (v.unsqueeze(-1) - W / 2)).flatten(2), None  # (K, N, D * B)

    def decode(self, h: Tensor, carry: None) -> Tensor:
        return (h.unflatten(2, self.W.shape[1:]) * self.W.unsqueeze(1)).sum(-1)  # (K, N, D)

    def _scaled(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """u / T + log n by column, (K, N, D, B), and T (K, 1, 1)."""
        T = self.log_T.exp()[:, None, None]
        columns = (u / T).unflatten(2, self.W.shape[1:])
        return columns + self.log_counts.unsqueeze(1), T

    def _potential(self, u: Tensor) -> Tensor:
        scaled, T = self._scaled(u)
        return (self.log_share.exp()[:, None, None] * T * torch.logsumexp(scaled, -1)).sum(-1)  # (K, N)

    def _activate(self, u: Tensor) -> Tensor:
        return self.log_share.exp()[:, None, None] * torch.softmax(self._scaled(u)[0], -1).flatten(2)
