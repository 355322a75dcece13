"""Labels that belong together: energies of label vectors, and predictions refined by them.

A base classifier gives logits t (N, L), one label at a time.  An auto-encoder with sigmoid outputs over label vectors
y, with the row x as context (`GatedUnits`, E(y|x)) or without (`CovarianceUnits`, E(y)), knows which labels go
together.  Two ways to use it:

- ascent (`algo:SOLRG`): from the base's own y follow the energy uphill, `energate.trajectory`;
- sets: a distribution over candidates, the label vectors seen in training and the base's own with its neighbours,

      P(Y|x) = softmax over candidates of  <Y, beta * t> + tau log(count(Y) + 1/2) + E(Y|x)

  whose marginals, or whose best vector, are the prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, trajectory
from energate.errors import InputError
from energate.training import History, minimise, row_batches
from energate.units import CovarianceUnits, GatedUnits

RELATIONS = ("xy", "yy")
UNSEEN = 0.5  # added to every count, so that a vector never seen has a logarithm


def label_autoencoder(
    relation: str, n_labels: int, n_context: int, n_factors: int, n_hidden: int, generator: torch.Generator
) -> Autoencoder:
    """The auto-encoder of label vectors: GAES_XY with the row as context, GAES_Y2 with the labels twice."""
    if relation not in RELATIONS:
        raise InputError(f"`relation` must be one of {', '.join(RELATIONS)}; got {relation!r}.")
    if relation == "xy":
        return Autoencoder([GatedUnits(1, n_labels, n_context, n_factors, n_hidden, generator=generator)], "sigmoid")
    return Autoencoder([CovarianceUnits(1, n_labels, n_factors, n_hidden, generator=generator)], "sigmoid")


@dataclass(frozen=True)
class LabelSets:
    """The different label vectors of some rows: Y (S, L) of 0 and 1, how often each came, and which each row has."""

    Y: Tensor
    count: Tensor  # (S,)
    of_row: Tensor  # (N,)

    @classmethod
    def of(cls, labels: Tensor) -> "LabelSets":
        """The label vectors of rows (N, L)."""
        Y, of_row, count = torch.unique(labels, dim=0, return_inverse=True, return_counts=True)
        return cls(Y, count.to(labels.dtype), of_row)


class Neighbours(NamedTuple):
    """For every row a label vector, and the labels of which each one may be flipped."""

    y: Tensor  # (N, L), 0 and 1
    flips: Tensor  # (N, J) numbers of labels


class Beliefs(NamedTuple):
    """Log-probabilities of the candidates: those seen in training, and each row's own."""

    seen: Tensor  # (N, S)
    own: Tensor | None  # (N, 1 + J): the vector itself, then with each label flipped; -inf where it was seen


class SetModel(nn.Module):
    """P(Y|x) over candidate label vectors, from a base's logits and the energy of an auto-encoder over labels."""

    def __init__(self, autoencoder: Autoencoder, sets: LabelSets) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        self.register_buffer("Y", sets.Y)
        self.Y: Tensor
        self.register_buffer("count", sets.count)
        self.count: Tensor
        self.beta = nn.Parameter(torch.ones_like(autoencoder.a[0]))
        self.tau = nn.Parameter(autoencoder.a.new_tensor(0.5))

    @property
    def units(self) -> GatedUnits | CovarianceUnits:
        """The hidden units over the labels."""
        units = self.autoencoder.groups[0]
        assert isinstance(units, GatedUnits | CovarianceUnits)
        return units

    def prior(self, count: Tensor) -> Tensor:
        """The share of the counts in the score."""
        return self.tau * torch.log(count + UNSEEN)

    def pair_energies(self, q: Tensor, gate: Tensor | None) -> Tensor:
        """Sum of potentials for factors (N, S, F), or (1, S, F) for the same candidates of all rows: (N, S)."""
        units = self.units
        if isinstance(units, CovarianceUnits):
            u = units.from_factors(q.flatten(0, 1))  # (1, N * S, M)
        else:
            assert gate is not None
            q = q.expand(len(gate), -1, -1)
            u = units.from_factors(q.flatten(0, 1), gate.unsqueeze(1).expand_as(q).flatten(0, 1))
        return (units.activation.potential(u) / units.repeats)[0].unflatten(0, q.shape[:2])

    def _gate(self, x: Tensor | None) -> Tensor | None:
        if isinstance(self.units, CovarianceUnits):
            return None
        assert x is not None
        return self.units.gate(x)[0]  # (N, F)

    def seen_scores(self, t: Tensor, x: Tensor | None, own_set: Tensor | None = None) -> Tensor:
        """Scores of the label vectors seen in training: (N, S).

        ``own_set`` (N,) says which vector a training row has itself: the row does not count for it.
        """
        linear = (self.beta * t + self.autoencoder.a[0]) @ self.Y.mT  # (N, S)
        energies = self.pair_energies(self.units.factors(self.Y), self._gate(x))  # (1 or N, S)
        scores = linear + energies + self.prior(self.count)
        if own_set is None:
            return scores
        without = self.prior(self.count[own_set] - 1) - self.prior(self.count[own_set])
        return scores.scatter_add(1, own_set.unsqueeze(1), without.unsqueeze(1))

    def own_scores(self, t: Tensor, x: Tensor | None, near: Neighbours) -> Tensor:
        """Scores of a vector for each row, and of the vectors that differ from it in one label: (N, 1 + J).

        Factors are linear in the labels, so that a flip adds one column to them.
        """
        y, flips = near
        sign = 1 - 2 * y.gather(1, flips)  # (N, J): +1 switches a label on
        q = self.units.factors(y)[0]  # (N, F)
        columns = (self.units.W if isinstance(self.units, CovarianceUnits) else self.units.W_y)[0].mT  # (L, F)
        moved = q.unsqueeze(1) + sign.unsqueeze(-1) * columns[flips]  # (N, J, F)
        energies = self.pair_energies(torch.cat([q.unsqueeze(1), moved], 1), self._gate(x))  # (N, 1 + J)
        weight = self.beta * t + self.autoencoder.a[0]  # (N, L)
        linear = (weight * y).sum(1, keepdim=True)
        linear = torch.cat([linear, linear + sign * weight.gather(1, flips)], 1)
        return linear + energies + self.prior(self.count.new_zeros(()))

    def log_probability(self, t: Tensor, x: Tensor | None, y: Tensor) -> Tensor:
        """Of a label vector (N, L) for each row, among the vectors seen in training and itself: (N,)."""
        near = Neighbours(y, torch.zeros(len(y), 0, dtype=torch.long, device=y.device))
        count = (self._distance(y) < 0.5).to(t) @ self.count  # (N,)
        score = self.own_scores(t, x, near)[:, 0] + self.prior(count) - self.prior(torch.zeros_like(count))
        others = torch.logsumexp(self.seen_scores(t, x), 1)
        everything = torch.where(count > 0, others, torch.logaddexp(others, score))
        return score - everything

    def _distance(self, y: Tensor) -> Tensor:
        """In how many labels vectors differ from those seen in training: (N, S)."""
        return y.sum(1, keepdim=True) + self.Y.sum(1) - 2 * y @ self.Y.mT

    def beliefs(self, t: Tensor, x: Tensor | None, near: Neighbours | None = None) -> Beliefs:
        """Log-probabilities of all candidates."""
        seen = self.seen_scores(t, x)
        if near is None:
            return Beliefs(torch.log_softmax(seen, 1), None)
        own = self.own_scores(t, x, near).masked_fill(self.known(near), -torch.inf)
        together = torch.log_softmax(torch.cat([seen, own], 1), 1)
        return Beliefs(together[:, : seen.shape[1]], together[:, seen.shape[1] :])

    def known(self, near: Neighbours) -> Tensor:
        """Which of a row's own candidates were seen in training, and so are candidates already: (N, 1 + J)."""
        y, flips = near
        # Two vectors of 0 and 1 differ by a flip exactly if their distance is 1, at that label.
        distance = self._distance(y)  # (N, S)
        itself = (distance < 0.5).any(1, keepdim=True)
        row, which = ((distance - 1).abs() < 0.5).nonzero(as_tuple=True)
        differs = (y[row] - self.Y[which]).abs().argmax(1)  # the label
        flipped = torch.zeros_like(y, dtype=torch.bool)
        flipped[row, differs] = True
        return torch.cat([itself, flipped.gather(1, flips)], 1)

    def marginals(self, beliefs: Beliefs, near: Neighbours | None = None) -> Tensor:
        """The probability of every label: (N, L)."""
        found = beliefs.seen.exp() @ self.Y
        if near is None or beliefs.own is None:
            return found
        p = beliefs.own.exp()  # (N, 1 + J)
        sign = 1 - 2 * near.y.gather(1, near.flips)
        return (found + p.sum(1, keepdim=True) * near.y).scatter_add(1, near.flips, sign * p[:, 1:])

    def best(self, beliefs: Beliefs, near: Neighbours | None = None) -> Tensor:
        """The most probable label vector of every row: (N, L)."""
        n_seen = beliefs.seen.shape[1]
        if near is None or beliefs.own is None:
            return self.Y[beliefs.seen.argmax(1)]
        which = torch.cat([beliefs.seen, beliefs.own], 1).argmax(1)
        flip = (which - n_seen - 1).clamp(min=0).unsqueeze(1)
        label = near.flips.gather(1, flip)
        flipped = near.y.scatter(1, label, 1 - near.y.gather(1, label))
        own = torch.where((which == n_seen).unsqueeze(1), near.y, flipped)
        return torch.where((which < n_seen).unsqueeze(1), self.Y[which.clamp(max=n_seen - 1)], own)


def neighbours(t: Tensor, n_flips: int) -> Neighbours:
    """The base's own label vector, and its least certain labels."""
    flips = t.abs().topk(min(n_flips, t.shape[1]), dim=1, largest=False).indices
    return Neighbours((t > 0).to(t.dtype), flips)


# --- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelRows:
    """Rows with the base's logits t (N, L), labels Y (N, L) of 0 and 1, and columns x (N, D)."""

    t: Tensor
    Y: Tensor
    x: Tensor

    def take(self, rows: Tensor) -> "LabelRows":
        """Some of them."""
        return LabelRows(self.t[rows], self.Y[rows], self.x[rows])


SET_NLL = 0.3  # weight of the likelihood of label vectors, per label, beside that of single labels
TINY = 1e-6


def train_sets(
    model: SetModel, rows: LabelRows, sets: LabelSets, epochs: int, valid: LabelRows, **options: Any
) -> History:
    """Train the distribution over label vectors by likelihood: of labels, mixed with the base's, and of whole vectors.

    The epoch with the best log-loss of validation labels is kept.  ``options`` are those of `minimise`, and a
    ``batch_size`` and a ``seed``.
    """
    batches = row_batches(len(rows.t), options.pop("batch_size"), options.pop("seed"), rows.t.device)
    mix = nn.Parameter(rows.t.new_zeros(()))  # how much of the marginals, as a logit

    def mixture(t: Tensor, log_p: Tensor) -> Tensor:
        return torch.lerp(torch.sigmoid(t), log_p.exp() @ model.Y, torch.sigmoid(mix)).clamp(TINY, 1 - TINY)

    def loss(batch: Tensor) -> Tensor:
        part, own = rows.take(batch), sets.of_row[batch]
        log_p = torch.log_softmax(model.seen_scores(part.t, part.x, own), 1)
        of_labels = F.binary_cross_entropy(mixture(part.t, log_p), part.Y)
        return of_labels + SET_NLL / part.Y.shape[1] * F.nll_loss(log_p, own)

    def validate() -> Tensor:
        log_p = torch.log_softmax(model.seen_scores(valid.t, valid.x), 1)
        return F.binary_cross_entropy(mixture(valid.t, log_p), valid.Y)

    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 3 and parameter.shape[1] > 1]
    others = [parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in matrices)]
    decay = options.pop("weight_decay")
    groups = [{"params": matrices, "weight_decay": decay}, {"params": [*others, mix], "weight_decay": 0.0}]
    return minimise(
        loss, groups, batches, epochs=epochs, optimizer="adamw", schedule="cosine", validate=validate, **options
    )


def train_denoising(
    model: Autoencoder, rows: LabelRows, epochs: int, valid: LabelRows, noise_level: float, **options: Any
) -> History:
    """Train an auto-encoder to restore label vectors with flipped labels, by cross-entropy (the paper's loss_2)."""
    seed = options.pop("seed")
    batches = row_batches(len(rows.t), options.pop("batch_size"), seed, rows.t.device)
    draws = torch.Generator(rows.t.device).manual_seed(seed)
    context = model.context_width > 0

    def losses(part: LabelRows, generator: torch.Generator) -> Tensor:
        flip = torch.rand(part.Y.shape, generator=generator, device=part.Y.device) < noise_level / 2
        seen = torch.where(flip, 1 - part.Y, part.Y)
        return model.loss(part.Y, part.x if context else None, seen=seen).mean()

    def validate() -> Tensor:  # always under the same noise
        return losses(valid, torch.Generator(valid.Y.device).manual_seed(seed))

    return minimise(
        lambda batch: losses(rows.take(batch), draws),
        model.parameters(),
        batches,
        epochs=epochs,
        optimizer="adamw",
        schedule="cosine",
        validate=validate,
        **options,
    )


def ascend(model: Autoencoder, t: Tensor, x: Tensor, steps: Sequence[int]) -> list[Tensor]:
    """The logits after each of some numbers of steps uphill in energy, from a base's: each (N, L) (`algo:SOLRG`).

    NOTE[DIFF] the paper prints a minus sign, which goes downhill, and "or" where its loop needs "and" (E17, E18).
    """
    limit = LOGIT_LIMIT
    t = t.clamp(-limit, limit)
    context = x if model.context_width else None
    walk = trajectory(model, torch.sigmoid(t.double()).to(t), context, max_steps=max(steps), keep_path=True)
    assert walk.path is not None
    path = torch.logit(walk.path[:, 0].double()).clamp(-limit, limit).to(t)  # (T + 1, N, L)
    path[0] = t
    return [path[min(step, len(path) - 1)] for step in steps]
