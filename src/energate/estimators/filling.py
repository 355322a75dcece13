"""Images from the energy F of all classes together: pixels filled in, and whole images drawn.

Missing pixels are filled in by ascent: F given the known pixels is largest near their mean.  Draws start from noise and
come near in stages, of levels that fall.  In each the auto-encoder restores the image from noise of that level, as it
has learnt to, and noise of the next level is added.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import trajectory

#: rows (N, D) without their noise, which has the given level where pixels are unknown (N, D)
Restore = Callable[[Tensor, float, Tensor], Tensor]


def falling(low: float, high: float, n_levels: int) -> list[float]:
    """Noise levels from high to low, each the same share of the one before."""
    return torch.logspace(0, 1, n_levels, base=low / high, dtype=torch.float64).mul(high).tolist()


@torch.no_grad()
def anneal(
    restore: Restore,
    v: Tensor,
    unknown: Tensor,
    levels: Sequence[float],
    generator: torch.Generator,
    shared: bool = False,
    tell: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """Rows v (N, D) with pixels anew where ``unknown``, from noise of falling levels.

    With ``shared`` noise no row depends on the others.  ``tell`` is told the rows after each stage.
    """
    shape = (1, v.shape[1]) if shared else v.shape

    def noise(level: float) -> Tensor:
        return level * torch.randn(shape, generator=generator, dtype=v.dtype, device=v.device)

    v = torch.where(unknown, v + noise(levels[0]), v)
    for level, following in pairwise([*levels, 0.0]):
        v = torch.where(unknown, restore(v, level, unknown) + noise(following), v)
        if tell is not None:
            tell(v)
    return v


@torch.no_grad()
def fill_in(
    model: Autoencoder,
    start: Tensor,
    unknown: Tensor,
    said: Tensor | None,
    n_steps: int,
    tell: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """Rows (N, D) after some steps of ascent where ``unknown``: the energy, perhaps of what is said, never falls.

    ``tell`` is told the rows after each step.
    """
    walk = trajectory(model, start, said, step="backtrack", max_steps=n_steps, free=unknown, keep_path=tell is not None)
    if tell is not None and walk.path is not None:
        for points in walk.path[1:]:
            tell(torch.where(unknown, points[0], start))
    return torch.where(unknown, walk.points[0], start)
