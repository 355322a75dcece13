"""The auto-encoder whose energy is exact: hidden units, an output activation, and a visible bias.

With pre-activation u, activation f with potential Phi, and output activation f_out with conjugate
Phi*_out (docs/conventions.md):

    pre-output       p(v|c) = sum over groups of decode(f(u)) + a + q v
    reconstruction   r(v|c) = f_out(p)                                  eqn:dec1, eqn:dec2
    energy           E(v|c) = sum over groups of Phi(u) / repeats + a.v + q.v^2 / 2 - Phi*_out(v)    exgy2
    vector field     F(v|c) = grad_v E = p - inverse_out(v)
    training loss    J      = Phi_out(p) + Phi*_out(v) - v.p            symobj

q is what of every column goes straight to the output; the paper has none.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor, nn

from energate.activations import Activation, as_output
from energate.errors import InputError
from energate.memory import MemoryUnits
from energate.units import HiddenUnits, NetworkUnits

#: Intermediate values per chunk when scoring without gradients: 32 MiB of float32, on a GPU 1 GiB.
CHUNK_VALUES = 8 * 2**20
GPU_CHUNKS = 32
MEMORY_VALUES = 2**18  # 2 MiB of float64
NETWORK_ROWS = 512  # what lies between a network's layers is not known
FEWEST_ROWS = 16  # of a chunk


class Potentials(Protocol):
    """What computes potentials for energies."""

    def __call__(self, group: HiddenUnits, v: Tensor, c: Tensor | None) -> Tensor:
        """Phi(u) of the units of a group, for rows v and a context: (K, N)."""

    def is_lean(self, group: HiddenUnits, v: Tensor) -> bool:
        """Whether that takes no memory for rows times units, so that rows need not come in chunks."""

    def of_rows(self, model: "Autoencoder", v: Tensor, with_shared: bool) -> Tensor:
        """What energies have without hidden units, (K, N); ``with_shared`` less `Autoencoder.shared_term`."""


class Plain:
    """Potentials by the formula itself."""

    def __call__(self, group: HiddenUnits, v: Tensor, c: Tensor | None) -> Tensor:
        return group.activation.potential(group.preactivation(v, c)[0])

    def is_lean(self, group: HiddenUnits, v: Tensor) -> bool:  # noqa: ARG002
        return False

    def of_rows(self, model: "Autoencoder", v: Tensor, with_shared: bool) -> Tensor:
        linear = model.bias_term(v)
        if not with_shared:
            return linear
        shared = model.shared_term(v)  # (N,), (K, N), or (C, N) for rows of members
        return linear - (shared.repeat_interleave(model.n_models // len(v), 0) if v.ndim == 3 else shared)


PLAIN = Plain()
_POTENTIALS: ContextVar[Potentials] = ContextVar("potentials", default=PLAIN)


def _potentials() -> Potentials:
    return PLAIN if torch.compiler.is_compiling() else _POTENTIALS.get()  # which a compiler cannot look into


@contextmanager
def potentials_by(compute: Potentials) -> Iterator[None]:
    """Energies ask ``compute`` for potentials meanwhile, in this thread; it must equal the plain formula."""
    token = _POTENTIALS.set(compute)
    try:
        yield
    finally:
        _POTENTIALS.reset(token)


class Autoencoder(nn.Module):
    """K auto-encoders with tied weights, each with an exact energy.

    Parameters
    ----------
    units : one group of `HiddenUnits`, or several whose decoders add up.
    visible : ``"linear"`` for real-valued data (squared error), ``"sigmoid"`` for data in [0, 1]
        (cross-entropy).
    skip : q (D,), as a linear unit for each column would have it: what of a column the reconstruction keeps.  It is the
        same for all models, so it has no say in which of them likes a row best.

    Data ``v`` is (N, D), shared by all models, or (K, N, D); a context ``c`` is (N, C) or (K, N, C).  Where several
    models share parts (`energate.trunk.TrunkUnits`), energies also take rows of each group of models, its *member*:
    (n_members, N, D).
    """

    def __init__(
        self,
        units: HiddenUnits | Sequence[HiddenUnits],
        visible: str | Activation = "linear",
        skip: Tensor | None = None,
    ) -> None:
        super().__init__()
        groups = [units] if isinstance(units, HiddenUnits) else list(units)
        if not groups or not all(isinstance(group, HiddenUnits) for group in groups):
            raise InputError(
                f"`units` must be HiddenUnits or a non-empty list of them; got {units!r}. "
                "For example Autoencoder([MeanUnits(n_models=1, n_visible=784, n_hidden=100)])."
            )
        self.n_models = _common("n_models", (group.n_models for group in groups))
        self.n_members = max(group.n_members for group in groups)
        self.width = _common("the width of v", (group.width for group in groups))
        contexts = [group.context_width for group in groups if group.context_width]
        self.context_width = _common("`n_context`", contexts) if contexts else 0
        self.visible = as_output(visible)
        self.units = nn.ModuleList(groups)
        reference = next(groups[0].parameters(), torch.zeros(()))
        self.a = nn.Parameter(reference.new_zeros(self.n_models, self.width))
        if skip is not None and skip.shape != (self.width,):
            raise InputError(f"`skip` must have a number for each of {self.width} columns; got {tuple(skip.shape)}.")
        self.register_buffer("skip", None if skip is None else skip.to(reference), persistent=False)
        self.skip: Tensor | None

    @property
    def groups(self) -> list[HiddenUnits]:
        """The groups of hidden units."""
        return list(self.units)  # type: ignore[arg-type]

    def encode(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """Hidden activations of all groups, side by side: (K, N, M)."""
        self._check(v, c)
        return torch.cat([group.encode(v, c) for group in self.groups], -1)

    def preoutput(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """The reconstruction before the output activation: (K, N, D)."""
        self._check(v, c)
        return self._preoutput(v, c)

    def reconstruct(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """The reconstruction r(v|c): (K, N, D)."""
        return self.visible.f(self.preoutput(v, c))

    def energy(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """How much each model likes each row, up to a constant per model: (K, N), higher is better.

        For a model with context the constant is a function of the context, so compare values for
        the same context only.  Without gradients, rows are scored in chunks, so that memory does not
        grow with N times the number of units.
        """
        self._check(v, c)
        return self._in_chunks(v, c, with_shared=True)

    def relative_energy(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """The energy without its last terms, `shared_term`: (K, N), higher is better.

        They are the same for all models, so differences between models are those of `energy`,
        with less cancellation; on its own this is not how much a model likes a row.
        """
        self._check(v, c)
        return self._in_chunks(v, c, with_shared=False)

    def shared_term(self, v: Tensor) -> Tensor:
        """What all models take from their energies alike, Phi*_out(v) - q.v^2 / 2: a value per row."""
        conjugate = self.visible.conjugate(v)
        return conjugate if self.skip is None else conjugate - v.square() @ self.skip / 2

    def vector_field(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """The gradient of the energy in v: (K, N, D); r(v) - v for linear outputs.

        With sigmoid outputs it is s(v) - logit(v), infinite where v is 0 or 1.
        """
        return self.preoutput(v, c) - self.visible.inverse(v)

    def energy_and_preoutput(self, v: Tensor, c: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both from one pass through the encoder, for iterations that need both."""
        self._check(v, c)
        energy, preoutput = self.bias_term(v), self._before_units(v)
        for group in self.groups:
            u, carry = group.preactivation(v, c)
            energy = energy + group.activation.potential(u) / group.repeats
            preoutput = preoutput + group.decode(group.activation.f(u), carry)
        return energy - self.shared_term(v), preoutput

    def energies_and_mixture(self, v: Tensor, mix: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Relative energies (K, N), and the pre-outputs of each member's models added up with weights: (C, N, D).

        ``v`` is (C, N, D), rows of each member's own, and ``mix`` makes the weights (K, N) of the energies.  Decoders
        are linear in h, so the weights go in with it, and layers that models share are passed once.
        """
        self._check(v, None)
        energies, hidden = self.bias_term(v), []
        for group in self.groups:
            u, carry = group.preactivation(v, None)
            energies = energies + group.activation.potential(u) / group.repeats
            hidden.append((group, group.activation.f(u), carry))
        weights = mix(energies)
        of_members = weights.unflatten(0, (len(v), -1))  # (C, K, N)
        mixture = of_members.mT @ self.a.unflatten(0, (len(v), -1))  # (C, N, D)
        if self.skip is not None:
            mixture = mixture + self.skip * v * of_members.sum(1).unsqueeze(-1)
        for group, h, carry in hidden:
            mixture = mixture + group.decode(weights.unsqueeze(-1) * h, carry)
        return energies, mixture

    def loss(self, v: Tensor, c: Tensor | None = None, *, seen: Tensor | None = None) -> Tensor:
        """Reconstruction loss of every row: (K, N).

        Half the squared error for linear outputs, cross-entropy (less the target's own entropy) for
        sigmoid outputs.  ``seen`` is what the encoder gets instead of v: a corrupted copy makes this
        the denoising loss.
        """
        self._check(v, c)
        if seen is None:
            seen = v
        else:
            self._check(seen, c, "seen")
            if seen.shape[-2] != v.shape[-2]:
                raise InputError(f"`seen` must have as many rows as `v`, {v.shape[-2]}; got {seen.shape[-2]}.")
        return self.visible.divergence(self._preoutput(seen, c), v)

    def forward(self, v: Tensor, c: Tensor | None = None) -> Tensor:
        """The same as `energy`."""
        return self.energy(v, c)

    def select(self, models: int | Sequence[int]) -> "Autoencoder":
        """A copy that holds only the given models, in the given order."""
        if any(isinstance(group, NetworkUnits) for group in self.groups):
            raise InputError("A network shares its parts between models, so `select` cannot take some of them.")
        index = torch.as_tensor([models] if isinstance(models, int) else list(models), dtype=torch.long)
        if not len(index) or index.min() < -self.n_models or index.max() >= self.n_models:
            raise InputError(f"`models` must name some of the {self.n_models} models, from 0; got {models!r}.")
        chosen = copy.deepcopy(self)
        index = index % self.n_models
        for group in chosen.groups:
            group.select(index)
        chosen.n_models = len(index)
        chosen.n_members = max(group.n_members for group in chosen.groups)
        chosen.a.data = chosen.a.data[index.to(chosen.a.device)]
        return chosen

    def extra_repr(self) -> str:
        return f"visible={self.visible.name!r}"

    # --- the formulas, on checked input --------------------------------------------------------

    def _preoutput(self, v: Tensor, c: Tensor | None) -> Tensor:
        p = self._before_units(v)
        for group in self.groups:
            u, carry = group.preactivation(v, c)
            p = p + group.decode(group.activation.f(u), carry)
        return p

    def _before_units(self, v: Tensor) -> Tensor:
        """What the pre-output has without hidden units: (K, 1, D), or (K, N, D)."""
        a = self.a.unsqueeze(1)
        return a if self.skip is None else a + self.skip * v

    def bias_term(self, v: Tensor) -> Tensor:
        """a.v of every model: (K, N)."""
        if v.ndim == 2:
            return self.a @ v.T  # (K, N)
        a = self.a.unflatten(0, (len(v), -1))  # (K, 1, D), or (C, K / C, D) for rows of members
        return (a @ v.mT).flatten(0, 1)  # (K, N)

    def _energy(self, v: Tensor, c: Tensor | None, with_shared: bool) -> Tensor:
        potential = _potentials()
        energy = potential.of_rows(self, v, with_shared)
        for group in self.groups:
            energy = energy + potential(group, v, c) / group.repeats
        return energy

    def _in_chunks(self, v: Tensor, c: Tensor | None, with_shared: bool) -> Tensor:
        n_rows = v.shape[-2]
        whole = n_rows <= FEWEST_ROWS or torch.is_grad_enabled() or torch.compiler.is_compiling()
        whole = whole or all(_potentials().is_lean(group, v) for group in self.groups)
        size = n_rows if whole else self._chunk_rows()

        def score(start: int) -> Tensor:
            end = start + size
            return self._energy(v[..., start:end, :], None if c is None else c[..., start:end, :], with_shared)

        first = score(0)
        if size >= n_rows:
            return first
        # One result for all chunks: small results, kept one by one, would pin the memory of large intermediates.
        energies = first.new_empty(self.n_models, n_rows)
        energies[:, :size] = first
        for start in range(size, n_rows, size):
            energies[:, start : start + size] = score(start)
        return energies

    def _chunk_rows(self) -> int:
        times = GPU_CHUNKS if self.a.is_cuda else 1
        if any(isinstance(group, NetworkUnits) for group in self.groups):
            return NETWORK_ROWS * times
        if any(isinstance(group, MemoryUnits) for group in self.groups):  # wide, and element by element: in a cache
            n_units = self.n_models * sum(group.n_hidden for group in self.groups)
            return max(FEWEST_ROWS, MEMORY_VALUES * times * times // n_units)
        # A few intermediates of the size of the parameters' rows are alive at once.
        per_row = sum(math.prod(p.shape[:2]) for p in self.parameters() if p.ndim > 2) + self.width
        return max(256, CHUNK_VALUES * times // (4 * per_row))

    # --- checks: shapes, dtype and device only, so that compile and vmap see no data ------------

    def _check(self, v: Tensor, c: Tensor | None, name: str = "v") -> None:
        self._check_rows(name, v, self.width)
        if c is None:
            if self.context_width:
                raise InputError(
                    f"This model takes a context `c` with {self.context_width} columns; none was given. "
                    "Pass it as the second argument."
                )
            return
        if not self.context_width:
            raise InputError(
                f"This model takes no context; got `c` of shape {tuple(c.shape)}. Leave it out, or use GatedUnits."
            )
        self._check_rows("c", c, self.context_width)
        if c.shape[-2] != v.shape[-2]:
            raise InputError(f"`{name}` and `c` must have as many rows each; got {v.shape[-2]} and {c.shape[-2]}.")

    def _check_rows(self, name: str, rows: Tensor, width: int) -> None:
        if not isinstance(rows, Tensor):
            raise InputError(f"`{name}` must be a torch tensor; got {type(rows).__name__}. Use torch.as_tensor.")
        shape = tuple(rows.shape)
        if rows.ndim not in (2, 3) or shape[-1] != width:
            flat = math.prod(shape[1:]) == width or math.prod(shape[2:]) == width
            hint = " Flatten images with .flatten(1)." if rows.ndim > 2 and flat else ""
            hint = f" Give one row as {name}[None]." if shape == (width,) else hint
            raise InputError(
                f"`{name}` must have shape (N, {width}), or ({self.n_models}, N, {width}) for rows of each model's "
                f"own; got {shape}.{hint}"
            )
        if rows.ndim == 3 and shape[0] not in (self.n_models, self.n_members):
            raise InputError(
                f"`{name}` of shape {shape} has rows for {shape[0]} models, this is an Autoencoder of {self.n_models}. "
                f"Give (N, {width}) for rows that all models share."
            )
        if shape[-2] == 0:
            raise InputError(f"`{name}` must have at least one row; got shape {shape}.")
        if rows.dtype != self.a.dtype:
            raise InputError(
                f"`{name}` must have the model's dtype {self.a.dtype}; got {rows.dtype}. "
                f"Convert one of them, for instance {name}.to({self.a.dtype})."
            )
        if rows.device != self.a.device:
            raise InputError(
                f"`{name}` must be on the model's device {self.a.device}; it is on {rows.device}. "
                f"Move one of them, for instance {name}.to({str(self.a.device)!r})."
            )


def _common(what: str, values: Iterable[int]) -> int:
    found = sorted(set(values))
    if len(found) != 1:
        raise InputError(f"All groups of units must agree on {what}; got {found}.")
    return found[0]
