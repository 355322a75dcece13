"""Labels that belong together: energies of label vectors, and predictions refined by them.

A base classifier gives logits t (N, L), one label at a time.  An auto-encoder with sigmoid outputs over label vectors
y, with the row x as context (`GatedUnits`, E(y|x)) or without (`CovarianceUnits`, E(y)), knows which labels go
together.  Two ways to use it:

- ascent (`algo:SOLRG`): from the base's own y follow the energy uphill, `energate.trajectory`;
- sets: a distribution over candidates, the label vectors seen in training and the base's own with its neighbours,

      P(Y|x) = softmax over candidates of  <Y, beta * t> + tau log(count(Y) + 1/2) + E(Y|x)

  whose marginals, or whose best vector, are the prediction.

What is large: N rows, L labels, S label vectors seen.  Everything here is at most (N, S), (N, L) or (S, L), so rows
are given in chunks of some millions of scores.  With relation yy the energies are (S,), shared by the rows.  With xy
every pair of a row and a vector has its own: the `EXACT` most promising of each row take the energy, the others its
tangent, a lower bound.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, trajectory
from energate.training.labels._sets import (
    RELATIONS,
    Beliefs,
    LabelSets,
    Neighbours,
    SetModel,
    label_autoencoder,
    neighbours,
)
from energate.training.labels._training import (
    OBJECTIVES,
    LabelRows,
    blurred,
    flipped,
    sampled_sets,
    train_denoising,
    train_sets,
)

__all__ = [
    "OBJECTIVES",
    "RELATIONS",
    "Beliefs",
    "LabelRows",
    "LabelSets",
    "Neighbours",
    "SetModel",
    "ascend",
    "blurred",
    "flipped",
    "label_autoencoder",
    "neighbours",
    "sampled_sets",
    "train_denoising",
    "train_sets",
]


def ascend(model: Autoencoder, t: Tensor, x: Tensor, steps: Sequence[int]) -> list[Tensor]:
    """The logits after each of some numbers of steps uphill in energy, from a base's: each (N, L) (`algo:SOLRG`).

    NOTE[DIFF] the paper prints a minus sign, which goes downhill, and "or" where its loop needs "and" (E17, E18).
    """
    limit = LOGIT_LIMIT
    t = t.clamp(-limit, limit)
    context = x if model.context_width else None
    start = torch.sigmoid(t.double()).to(t)
    # The points on the way take the most memory: one number of steps needs only the last.
    walk = trajectory(model, start, context, max_steps=max(steps), keep_path=len(steps) > 1)
    points = walk.points if walk.path is None else walk.path[:, 0]  # (1 or T + 1, N, L)

    def logits(step: int) -> Tensor:
        point = points[min(step, len(points) - 1)]
        return torch.logit(point.double()).clamp(-limit, limit).to(t) if step else t

    return [logits(step) for step in steps]
