"""Images from the energy of all classes together: pixels filled in, and whole images drawn.

Both start far from any image and come near in stages, of noise levels that fall.  In each the auto-encoder restores the
image from noise of that level, as it has learnt to, and noise of the next level is added; known pixels have the noise
of the stage while the field is asked, and their own values again afterwards.  What is filled in then goes uphill in
energy, by steps that never lower it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import trajectory

#: the auto-encoder of all classes, told a noise level if the network is; None: as rows are scored
Together = Callable[[float | None], Autoencoder]


def falling(low: float, high: float, n_levels: int) -> list[float]:
    """Noise levels from high to low, each the same share of the one before."""
    return torch.logspace(0, 1, n_levels, base=low / high, dtype=torch.float64).mul(high).tolist()


@torch.no_grad()
def anneal(
    together: Together,
    v: Tensor,
    unknown: Tensor,
    levels: Sequence[float],
    generator: torch.Generator,
    shared: bool = False,
) -> Tensor:
    """Rows v (N, D) with pixels anew where ``unknown``, from noise of falling levels; without levels as they are.

    With ``shared`` noise no row depends on the others.
    """
    if not levels:
        return v
    shape = (1, v.shape[1]) if shared else v.shape

    def noise(level: float) -> Tensor:
        return level * torch.randn(shape, generator=generator, dtype=v.dtype, device=v.device)

    v = torch.where(unknown, v + noise(levels[0]), v)
    for level, following in pairwise([*levels, 0.0]):
        restored = together(level).preoutput(torch.where(unknown, v, v + noise(level)))[0]  # (N, D)
        v = torch.where(unknown, restored + noise(following), v)
    return v


@torch.no_grad()
def fill_in(
    together: Together,
    start: Tensor,
    unknown: Tensor,
    levels: Sequence[float],
    n_steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Rows (N, D) with other values where ``unknown``, which the energy likes: never less than those of ``start``.

    ``n_steps`` of ascent, at most, follow the stages of `anneal`.
    """
    energy = together(None)

    def climb(v: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        walk = trajectory(energy, v, step="backtrack", max_steps=n_steps, free=free)
        return walk.points[0], walk.energies[-1, 0]

    found, liked = climb(anneal(together, start, unknown, levels, generator, shared=True), unknown)
    worse = (~(liked >= energy.energy(start)[0])).nonzero().squeeze(1)
    if len(worse):
        found[worse] = climb(start[worse], unknown[worse])[0]
    return torch.where(unknown, found, start)
