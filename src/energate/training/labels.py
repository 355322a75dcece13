"""Labels that belong together: an energy of label vectors, and the two ways to refine a base's predictions by it.

A base classifier gives logits t (N, L), one label at a time.  An auto-encoder with sigmoid outputs over label vectors
y, with the row x as context (`GatedUnits`, E(y|x)) or without (`CovarianceUnits`, E(y)), knows which labels go
together.  Two ways to use it:

Follow the energy uphill from the base's own y (`algo:SOLRG`): `train_denoising` and `ascend`.

Normalise it over candidates, the label vectors seen in training and a base's own with its neighbours (`SetModel`):

      P(Y|x) = softmax over candidates of  <Y, beta * t> + tau log(count(Y) + 1/2) + E(Y|x)

Its marginals, or its best vector, are the prediction.  What is large there: N rows, L labels, S label vectors seen.
Everything is at most (N, S), (N, L) or (S, L), so rows are given in chunks of some millions of scores.  With relation
yy the energies are (S,), shared by the rows.  With xy every pair of a row and a vector has its own: the `EXACT` most
promising of each row take the energy, the others its tangent, a lower bound.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.dynamics import LOGIT_LIMIT, trajectory
from energate.errors import InputError
from energate.training.loop import Batches, History, Listener, Stage, row_batches
from energate.training.ranks import drawn
from energate.units import CovarianceUnits, GatedUnits, project

Array = NDArray[np.float64]
LABEL_RELATIONS = ("xy", "yy")
EXACT = 256  # label vectors of a row that take the energy itself, relation xy
PAIR_VALUES = 2**18  # factors of pairs at once: what stays in a processor's cache is several times faster
FACTORS = 64  # sigmoids in a product: 2^-64 is far from the least number of float32
UNSEEN = 0.5  # added to every count, so that a vector never seen has a logarithm
SAMPLED = 4096  # of more label vectors than this, a training step looks at the most frequent and at its rows' own
VALID_VALUES = 2**22  # scores at once in validation
SET_NLL = 0.3  # weight of the likelihood of label vectors, per label, beside that of single labels
OBJECTIVES = ("hamming", "subset")
TINY = 1e-6
CHUNK = 2**20  # scores of candidates at once: 4 MiB, near what a processor's cache holds
MIXED_STEPS = 6  # points on the way from the base's probabilities to the refined ones, where there are no steps


def label_autoencoder(
    relation: str, n_labels: int, n_context: int, n_factors: int, n_hidden: int, generator: torch.Generator
) -> Autoencoder:
    """The auto-encoder of label vectors: GAES_XY with the row as context, GAES_Y2 with the labels twice."""
    if relation not in LABEL_RELATIONS:
        raise InputError(f"`relation` must be one of {', '.join(LABEL_RELATIONS)}; got {relation!r}.")
    if relation == "xy":
        return Autoencoder([GatedUnits(1, n_labels, n_context, n_factors, n_hidden, generator=generator)], "sigmoid")
    return Autoencoder([CovarianceUnits(1, n_labels, n_factors, n_hidden, generator=generator)], "sigmoid")


@dataclass(frozen=True)
class LabelRows:
    """Rows with the base's logits t (N, L), labels Y (N, L) of 0 and 1, and columns x (N, D).

    Where there are more than are here, ``refill(epoch)`` gives logits and columns of others with the same labels.
    """

    t: Tensor
    Y: Tensor
    x: Tensor
    _: KW_ONLY
    refill: Callable[[int], tuple[Tensor, Tensor]] | None = None

    def take(self, rows: Tensor) -> "LabelRows":
        """Some of them."""
        return LabelRows(self.t[rows], self.Y[rows], self.x[rows])


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


@dataclass(frozen=True)
class LabelTraining:
    """How an energy over labels is trained: by AdamW, at a rate that falls to 0 along a cosine."""

    epochs: int
    learning_rate: float = 6e-3
    weight_decay: float = 0.1
    batch_size: int = 256
    seed: int = 0
    listener: Listener | None = None

    @property
    def stage(self) -> Stage:
        """The one stage of this training."""
        return Stage("energy", self.epochs, self.learning_rate, self.weight_decay, "adamw", "cosine")

    def batches(self, rows: LabelRows, changed: Callable[[], None] | None = None) -> Batches:
        """Shuffled numbers of the rows; ``changed`` is called when there are others in their place."""
        batches = row_batches(len(rows.t), self.batch_size, self.seed, rows.t.device)
        if rows.refill is None:
            return batches
        refill = rows.refill

        def found(epoch: int) -> Sequence[Tensor]:
            for here, others in zip((rows.t, rows.x), refill(epoch), strict=True):
                here.copy_(others)
            if changed is not None:
                changed()
            return batches(epoch)

        return found


# --- uphill from the base's own -----------------------------------------------------------------------------------


def flipped(Y: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Labels of which a share of level / 2 is the wrong way round."""
    flip = drawn(torch.rand, Y.shape, -2, generator=generator, device=Y.device) < level / 2
    return torch.where(flip, 1 - Y, Y)


def blurred(values: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Values with Gaussian noise of this standard deviation."""
    return values + level * drawn(torch.randn, values.shape, -2, generator=generator, device=values.device)


def train_denoising(
    model: Autoencoder,
    rows: LabelRows,
    valid: LabelRows,
    training: LabelTraining,
    noise_level: float,
    *,
    noise: Callable[[Tensor, float, torch.Generator], Tensor] = flipped,
    context_noise: float = 0.0,
) -> History:
    """Train an auto-encoder to restore label vectors from noisy ones, by cross-entropy (the paper's loss_2).

    ``noise`` is what labels suffer, of the size ``noise_level``: `flipped` or `blurred`.  Columns are blurred by
    ``context_noise``.  The epoch is kept that does best on validation rows.
    """
    draws = torch.Generator(rows.t.device).manual_seed(training.seed)
    context = model.context_width > 0

    def losses(part: LabelRows, generator: torch.Generator) -> Tensor:
        seen = noise(part.Y, noise_level, generator)
        x = blurred(part.x, context_noise, generator) if context and context_noise else part.x
        return model.loss(part.Y, x if context else None, seen=seen).mean()

    def loss(batch: Tensor) -> Tensor:
        return losses(rows.take(batch), draws)

    def validate() -> Tensor:  # always under the same noise
        return losses(valid, torch.Generator(valid.Y.device).manual_seed(training.seed))

    how = training.batches(rows), validate, training.listener
    return training.stage.run(loss, model.parameters(), *how, generators=[draws], by_rows=True)


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


# --- a distribution over candidates -------------------------------------------------------------------------------


class Neighbours(NamedTuple):
    """For every row a label vector, and the labels of which each one may be flipped."""

    y: Tensor  # (N, L), 0 and 1
    flips: Tensor  # (N, J) numbers of labels


class Beliefs(NamedTuple):
    """Log-probabilities of the candidates: those seen in training, and each row's own."""

    seen: Tensor  # (N, S)
    own: Tensor | None  # (N, 1 + J): the vector itself, then with each label flipped; -inf where it was seen


def sum_of_softplus(u: Tensor) -> Tensor:
    """The potential of sigmoid units, values only and with u used up: (..., M) to (...), in half the time.

    softplus(u) = relu(u) - log sigmoid(|u|), and a product of `FACTORS` sigmoids, each at least 1/2, needs one log.
    """
    total = u.sum(-1)
    u.abs_()
    total.add_(u.sum(-1)).div_(2)
    for part in u.sigmoid_().split(FACTORS, -1):
        total.sub_(part.prod(-1).log_())
    return total


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
        units = self.autoencoder.units[0]
        assert isinstance(units, GatedUnits | CovarianceUnits)
        return units

    def prior(self, count: Tensor) -> Tensor:
        """The share of the counts in the score."""
        return self.tau * torch.log(count + UNSEEN)

    def pair_energies(self, q: Tensor, gate: Tensor | None) -> Tensor:
        """Sum of potentials for factors (N, S, F), each row its own candidates: (N, S)."""
        size = self._rows_at_once(q)
        gates = [None] * -(-len(q) // size) if gate is None else gate.split(size)
        return torch.cat([self._potentials(*parts) for parts in zip(q.split(size), gates, strict=True)])

    def shared_energies(self, q: Tensor, gate: Tensor) -> Tensor:
        """Sum of potentials for factors (S, F), the same candidates for all rows: (N, S)."""
        size = self._rows_at_once(q.unsqueeze(0))
        # The gate goes into the weights, which are smaller than gated factors: one product makes all of u.  A factor
        # that is always 1 carries the bias.
        one = torch.ones_like
        q, gate = torch.cat([q, one(q[:, :1])], 1), torch.cat([gate, one(gate[:, :1])], 1)  # (S, F + 1), (N, F + 1)
        W = torch.cat([self.units.W_h[0].mT, self.units.b])  # (F + 1, M)
        found = []
        for part in gate.split(size):
            weights = (part.mT.unsqueeze(2) * W.unsqueeze(1)).flatten(1)  # (F + 1, n * M)
            found.append(self._potential((q @ weights).unflatten(1, (len(part), -1))).mT)  # (n, S)
        return torch.cat(found)

    def _rows_at_once(self, q: Tensor) -> int:
        return max(1, PAIR_VALUES // (q.shape[1] * max(q.shape[2], self.units.n_hidden)))

    def _potentials(self, q: Tensor, gate: Tensor | None) -> Tensor:
        units = self.units
        if isinstance(units, CovarianceUnits):
            u = units.from_factors(q.flatten(0, 1))  # (1, N * S, M)
        else:
            assert gate is not None
            q = gate.unsqueeze(1) * q  # (N, S, F)
            u = project(q.flatten(0, 1), units.W_h, units.b)  # `from_factors` without two copies of that size
        return self._potential(u)[0].unflatten(0, q.shape[:2])

    def _potential(self, u: Tensor) -> Tensor:
        values_only = not torch.is_grad_enabled() and self.units.activation.name == "sigmoid"
        return (sum_of_softplus(u) if values_only else self.units.activation.potential(u)) / self.units.repeats

    def _gate(self, x: Tensor | None) -> Tensor | None:
        if isinstance(self.units, CovarianceUnits):
            return None
        assert x is not None
        return self.units.gate(x)[0]  # (N, F)

    def seen_scores(
        self, t: Tensor, x: Tensor | None, own_set: Tensor | None = None, among: Tensor | None = None
    ) -> Tensor:
        """Scores of the label vectors seen in training, or of some ``among`` them: (N, S).

        ``own_set`` (N,) says which of these vectors a training row has itself: the row does not count for it, and a
        vector that no other row has is no candidate.  If it were, the true vectors would be those that nobody else has,
        and training would learn to prefer what it has never seen.
        """
        Y, count = (self.Y, self.count) if among is None else (self.Y[among], self.count[among])
        q, gate = self.units.factors(Y), self._gate(x)  # (1, S, F), (N, F)
        alike = self.prior(count)  # (S,), what all rows share
        if gate is None:
            alike = alike + self.pair_energies(q, None)[0]
        scores = torch.addmm(alike, self.beta * t + self.autoencoder.a[0], Y.mT)  # (N, S)
        if gate is not None:
            scores = self._add_energies(scores, q[0], gate, t)
        if own_set is None:
            return scores
        others = count[own_set] - 1
        change = self.prior(others) - self.prior(others + 1)
        if len(count) > 1:  # else there would be no candidate at all
            change = change.masked_fill(others < 0.5, -torch.inf)
        return scores.scatter_add(1, own_set.unsqueeze(1), change.unsqueeze(1))

    def _add_energies(self, scores: Tensor, q: Tensor, gate: Tensor, t: Tensor) -> Tensor:
        """Add the energies of all pairs, for factors q (S, F): exact for the `EXACT` best of each row.

        The others take the tangent at the base's probabilities, which also says which are best.  Potentials are convex
        and u is linear in the labels, so that the tangent lies below: no vector gets too much.  The best hold 99.9 % of
        the probability where energies differ by about 1 and the base's logits are about 3; less if it knows little.
        """
        if scores.shape[1] <= EXACT:
            return scores + self.shared_energies(q, gate)
        units = self.units
        assert isinstance(units, GatedUnits)  # only they have a gate
        q_0 = units.factors(torch.sigmoid(t))[0]  # (N, F)
        h_0 = units.activation.f(units.from_factors(q_0, gate))[0]  # (N, M)
        slope = gate * (h_0 @ units.W_h[0])  # (N, F), of the energy in the factors
        start = self.pair_energies(q_0.unsqueeze(1), gate) - (slope * q_0).sum(1, keepdim=True)  # (N, 1)
        rough = torch.addmm(scores + start, slope, q.mT)  # (N, S)
        best = rough.detach().topk(EXACT, dim=1, sorted=False).indices
        size = self._rows_at_once(q[:EXACT].unsqueeze(0))
        parts = zip(best.split(size), gate.split(size), strict=True)
        exact = torch.cat([self._potentials(q[each], some) for each, some in parts])  # (N, EXACT)
        return rough.scatter(1, best, scores.gather(1, best) + exact)

    def own_scores(self, t: Tensor, x: Tensor | None, near: Neighbours) -> Tensor:
        """Scores of a vector for each row, and of the vectors that differ from it in one label: (N, 1 + J).

        Factors are linear in the labels, so that a flip adds one column to them.
        """
        y, flips = near
        sign = 1 - 2 * y.gather(1, flips)  # (N, J): +1 switches a label on
        q = self.units.factors(y)[0].unsqueeze(1)  # (N, 1, F)
        columns = (self.units.W if isinstance(self.units, CovarianceUnits) else self.units.W_y)[0].mT  # (L, F)
        columns = columns.contiguous()  # its rows are gathered
        gate = self._gate(x)
        size = self._rows_at_once(q.expand(-1, 1 + flips.shape[1], -1))
        found = []
        for start in range(0, len(y), size):
            part = slice(start, start + size)
            moved = torch.addcmul(q[part], sign[part].unsqueeze(-1), columns[flips[part]])  # (n, J, F)
            found.append(self._potentials(torch.cat([q[part], moved], 1), None if gate is None else gate[part]))
        weight = self.beta * t + self.autoencoder.a[0]  # (N, L)
        linear = (weight * y).sum(1, keepdim=True)
        linear = torch.cat([linear, linear + sign * weight.gather(1, flips)], 1)
        return linear + torch.cat(found) + self.prior(self.count.new_zeros(()))

    def log_probability(self, t: Tensor, x: Tensor | None, y: Tensor) -> Tensor:
        """Of a label vector (N, L) for each row, among the vectors seen in training and itself: (N,)."""
        near = Neighbours(y, torch.zeros(len(y), 0, dtype=torch.long, device=y.device))
        same = self._distance(y) < 0.5  # (N, S)
        count = same.to(t) @ self.count  # (N,)
        score = self.own_scores(t, x, near)[:, 0] + self.prior(count) - self.prior(torch.zeros_like(count))
        seen = torch.where(same, score.unsqueeze(1), self.seen_scores(t, x))  # never a lower bound for itself
        others = torch.logsumexp(seen, 1)
        everything = torch.where(count > 0, others, torch.logaddexp(others, score))
        return score - everything

    def _distance(self, y: Tensor, own_set: Tensor | None = None) -> Tensor:
        """In how many labels vectors differ from those seen in training: (N, S).

        With ``own_set`` (N,), seen in another row than the one with this vector; infinite where there is none.
        """
        distance = y.sum(1, keepdim=True) + self.Y.sum(1) - 2 * y @ self.Y.mT
        if own_set is None:
            return distance
        alone = torch.zeros_like(distance[:, 0]).masked_fill(self.count[own_set] < 1.5, torch.inf)
        return distance.scatter_add(1, own_set.unsqueeze(1), alone.unsqueeze(1))

    def beliefs(
        self,
        t: Tensor,
        x: Tensor | None,
        near: Neighbours | None = None,
        *,
        known: Tensor | None = None,
        own_set: Tensor | None = None,
        among: Tensor | None = None,
    ) -> Beliefs:
        """Log-probabilities of all candidates; ``known`` are those of the row's own that are `known`."""
        seen = self.seen_scores(t, x, own_set, among)
        if near is None:
            return Beliefs(torch.log_softmax(seen, 1), None)
        known = self.known(near) if known is None else known
        own = self.own_scores(t, x, near).masked_fill(known, -torch.inf)
        everything = torch.logaddexp(torch.logsumexp(seen, 1, True), torch.logsumexp(own, 1, True))  # (N, 1)
        return Beliefs(seen - everything, own - everything)

    def known(self, near: Neighbours, own_set: Tensor | None = None) -> Tensor:
        """Which of a row's own candidates were seen in training, and so are candidates already: (N, 1 + J).

        With ``own_set`` (N,), seen in another row than this.
        """
        y, flips = near
        # Two vectors of 0 and 1 differ by a flip exactly if their distance is 1, at that label.
        distance = self._distance(y, own_set)  # (N, S)
        itself = (distance < 0.5).any(1, keepdim=True)
        row, which = ((distance - 1).abs() < 0.5).nonzero(as_tuple=True)
        # Then the numbers of their labels, added up, differ by that label's; two digits keep the sums exact in float32.
        number = torch.arange(y.shape[1], device=y.device)
        digits = torch.stack([number // 256, number % 256], 1).to(y)  # (L, 2)
        difference = ((y @ digits)[row] - (self.Y @ digits)[which]).abs().round().long()
        flipped = torch.zeros_like(y, dtype=torch.bool)
        flipped[row, 256 * difference[:, 0] + difference[:, 1]] = True
        return torch.cat([itself, flipped.gather(1, flips)], 1)

    def place(self, Y: Tensor, near: Neighbours | None = None, own_set: Tensor | None = None) -> Tensor:
        """Which candidate each vector (N, L) is: a number below S, S + j for the row's own, -1 for none: (N,).

        With ``own_set`` (N,), the vectors are those of training rows, and candidates what other rows have.
        """
        same = self._distance(Y, own_set) < 0.5
        seen, at = same.any(1), same.byte().argmax(1)
        if near is None:
            return torch.where(seen, at, -1)
        wrong = near.y != Y
        flip = wrong.gather(1, near.flips)  # (N, J)
        one_flip = (wrong.sum(1) == 1) & flip.any(1)
        own = torch.where(one_flip, len(self.Y) + 1 + flip.byte().argmax(1), -1)
        return torch.where(seen, at, torch.where(wrong.any(1), own, len(self.Y)))

    def marginals(self, beliefs: Beliefs, near: Neighbours | None = None, among: Tensor | None = None) -> Tensor:
        """The probability of every label: (N, L)."""
        found = beliefs.seen.exp() @ (self.Y if among is None else self.Y[among])
        if near is None or beliefs.own is None:
            return found
        p = beliefs.own.exp()  # (N, 1 + J)
        sign = 1 - 2 * near.y.gather(1, near.flips)
        return (found + p.sum(1, keepdim=True) * near.y).scatter_add(1, near.flips, sign * p[:, 1:])

    def best(self, beliefs: Beliefs, near: Neighbours | None = None) -> Tensor:
        """The most probable label vector of every row: (N, L)."""
        if near is None or beliefs.own is None:
            return self.Y[beliefs.seen.argmax(1)]
        (p_seen, seen), (p_own, own) = beliefs.seen.max(1), beliefs.own.max(1)
        label = near.flips.gather(1, (own - 1).clamp(min=0).unsqueeze(1))
        flipped = near.y.scatter(1, label, 1 - near.y.gather(1, label))
        best_own = torch.where((own == 0).unsqueeze(1), near.y, flipped)
        return torch.where((p_seen >= p_own).unsqueeze(1), self.Y[seen], best_own)


def neighbours(t: Tensor, n_flips: int) -> Neighbours:
    """The base's own label vector, and its least certain labels."""
    flips = t.abs().topk(min(n_flips, t.shape[1]), dim=1, largest=False).indices
    return Neighbours((t > 0).to(t.dtype), flips)


# --- its training --------------------------------------------------------------------------------------------------


def sampled_sets(sets: LabelSets, own: Tensor) -> tuple[Tensor | None, Tensor]:
    """The label vectors that a step with rows of vectors ``own`` looks at, None for all, and where own are in them."""
    if len(sets.Y) <= SAMPLED:
        return None, own
    frequent = sets.count.topk(SAMPLED).indices
    among, place = torch.unique(torch.cat([frequent, own]), return_inverse=True)
    return among, place[SAMPLED:]


@dataclass(frozen=True)
class Candidates:
    """What rows choose from beside the label vectors seen: flips of the base's own, and where the true vector is."""

    flips: Tensor  # (N, J), as in `Neighbours`
    known: Tensor  # (N, 1 + J), which of the row's own were seen
    truth: Tensor  # (N,), as `SetModel.place` has it

    @classmethod
    def of(cls, model: SetModel, rows: LabelRows, n_neighbours: int, own_set: Tensor | None = None) -> "Candidates":
        """Those of rows; with ``own_set`` (N,), of the training rows that have these vectors."""
        parts = []
        for some in torch.arange(len(rows.t), device=rows.t.device).split(max(1, VALID_VALUES // len(model.Y))):
            own, near = None if own_set is None else own_set[some], neighbours(rows.t[some], n_neighbours)
            place = model.place(rows.Y[some], near if n_neighbours else None, own)
            parts.append((near.flips, model.known(near, own), place))
        return cls(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def take(self, rows: Tensor) -> "Candidates":
        """Those of some rows."""
        return Candidates(self.flips[rows], self.known[rows], self.truth[rows])

    def copy_(self, others: "Candidates") -> None:
        """Write others in their place."""
        for here, other in zip(vars(self).values(), vars(others).values(), strict=True):
            here.copy_(other)

    def near(self, t: Tensor) -> Neighbours | None:
        """The row's own candidates, from the base's logits; None without neighbours."""
        return Neighbours((t > 0).to(t), self.flips) if self.flips.shape[1] else None


def train_sets(
    model: SetModel,
    sets: LabelSets,
    rows: LabelRows,
    valid: LabelRows,
    training: LabelTraining,
    *,
    n_neighbours: int = 16,
    objective: str = "hamming",
) -> History:
    """Train the distribution over label vectors by likelihood, among the candidates that rows have in prediction.

    ``"hamming"``: by the likelihood of labels, mixed with the base's, and a little by that of whole vectors;
    ``"subset"``: by that of whole vectors alone, in the rows where the true one is a candidate.  The epoch is kept that
    does best on validation rows, in single labels or in whole vectors.

    With more than `SAMPLED` label vectors a step normalises over the most frequent and those of its own rows (a
    sampled softmax), so that its memory does not grow; validation looks at all.
    """
    mix = nn.Parameter(rows.t.new_zeros(()))  # how much of the marginals, as a logit
    learned = Candidates.of(model, rows, n_neighbours, sets.of_row)
    unseen = Candidates.of(model, valid, n_neighbours)

    def changed() -> None:
        learned.copy_(Candidates.of(model, rows, n_neighbours, sets.of_row))

    def losses(part: LabelRows, of: Candidates, own: Tensor | None, among: Tensor | None) -> tuple[Tensor, Tensor]:
        """Minus the log-likelihood of labels and of label vectors, each per label."""
        near = of.near(part.t)
        beliefs = model.beliefs(part.t, part.x, near, known=of.known, own_set=own, among=among)
        log_p = beliefs.seen if beliefs.own is None else torch.cat([beliefs.seen, beliefs.own], 1)
        truth = of.truth
        if among is not None and own is not None:  # the vectors have other places there
            truth = torch.where(truth < len(model.Y), own, truth - len(model.Y) + len(among))
            truth = torch.where(of.truth < 0, -1, truth)
        of_sets = F.nll_loss(log_p, truth, ignore_index=-1, reduction="sum") / part.Y.numel()
        if objective == "subset":
            return of_sets.new_zeros(()), of_sets
        p = torch.lerp(torch.sigmoid(part.t), model.marginals(beliefs, near, among), torch.sigmoid(mix))
        return F.binary_cross_entropy(p.clamp(TINY, 1 - TINY), part.Y), of_sets

    def loss(batch: Tensor) -> Tensor:
        among, own = sampled_sets(sets, sets.of_row[batch])
        of_labels, of_sets = losses(rows.take(batch), learned.take(batch), own, among)
        return of_sets if objective == "subset" else of_labels + SET_NLL * of_sets

    def validate() -> Tensor:
        total = valid.t.new_zeros(())
        for some in torch.arange(len(valid.t), device=valid.t.device).split(max(1, VALID_VALUES // len(model.Y))):
            of_labels, of_sets = losses(valid.take(some), unseen.take(some), None, None)
            total += len(some) * (of_sets if objective == "subset" else of_labels)
        return total / len(valid.t)

    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 3 and parameter.shape[1] > 1]
    others = [parameter for parameter in model.parameters() if all(parameter is not matrix for matrix in matrices)]
    others += [mix] if objective == "hamming" else []
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    # Nothing is drawn; but sampled label vectors are as many as they are, which no captured step can know, and those
    # of all rows of a batch, which no share of it knows.
    draws = None if len(sets.Y) > SAMPLED else ()
    batches = training.batches(rows, changed)
    return training.stage.run(loss, groups, batches, validate, training.listener, draws, draws is not None)


# --- the two ways to refine ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refinement(ABC):
    """One way to refine; the fields are parameters of the `EnergyRefiner`, and ``model`` is its ``model_``.

    How much is refined is a share of the refined probabilities, ``gate``, and a number of steps; both 0 is not at all.
    """

    #: what may be chosen: by name the gate and the number of steps, the first of them nothing
    amounts: ClassVar[dict[float, tuple[float, int]]]

    objective: str
    n_neighbours: int
    noise_level: float

    @property
    @abstractmethod
    def best_vectors(self) -> bool:
        """Whether `predict` decides for the best vector of `refine`, and not by thresholds."""

    @abstractmethod
    def build(self, autoencoder: Autoencoder, sets: LabelSets) -> nn.Module:
        """The model before training."""

    @abstractmethod
    def autoencoder(self, model: Any) -> Autoencoder:
        """The auto-encoder over labels whose energy a model uses."""

    @abstractmethod
    def train(self, model: Any, sets: LabelSets, rows: LabelRows, valid: LabelRows, training: LabelTraining) -> History:
        """Train the model; the epoch is kept that does best on validation rows."""

    @abstractmethod
    def worth(self, right: float, log_loss: float) -> tuple[float, ...]:
        """What an amount is chosen by, higher is better, from the share that is right and the log-loss."""

    @abstractmethod
    def refine(self, model: Any, rows: LabelRows, n_steps: int) -> tuple[Tensor, Tensor]:
        """Probabilities of the labels, and the best label vector: (n, L) each."""

    @abstractmethod
    def steps(self, model: Any, rows: LabelRows, ends: tuple[Array, Array], n_steps: int) -> Array:
        """Probabilities on the way from the base's to the refined, which are its ``ends``: (T, n, L)."""

    @abstractmethod
    def liking(self, model: Any, rows: LabelRows) -> Tensor:
        """How well the labels of each row go with it: (n,), higher is better."""

    @abstractmethod
    def values_per_row(self, model: Any, n_labels: int) -> int:
        """How many values `refine` holds for each row."""

    def chunks(self, model: Any, rows: LabelRows) -> list[LabelRows]:
        """The rows, as many together as a processor's cache holds the values of."""
        size = max(1, CHUNK // self.values_per_row(model, rows.Y.shape[1]))
        return [rows.take(part) for part in torch.arange(len(rows.Y)).split(size)]


class SetRefinement(Refinement):
    """``"sets"``: the energy normalised over the label vectors seen in training, the base's own and its neighbours."""

    amounts: ClassVar = {gate: (gate, 0) for gate in (0.0, 0.25, 0.5, 0.75, 1.0)}

    @property
    def best_vectors(self) -> bool:
        return self.objective == "subset"

    def build(self, autoencoder: Autoencoder, sets: LabelSets) -> SetModel:
        return SetModel(autoencoder, sets)

    def autoencoder(self, model: SetModel) -> Autoencoder:
        return model.autoencoder

    def train(
        self, model: SetModel, sets: LabelSets, rows: LabelRows, valid: LabelRows, training: LabelTraining
    ) -> History:
        return train_sets(model, sets, rows, valid, training, n_neighbours=self.n_neighbours, objective=self.objective)

    def worth(self, right: float, log_loss: float) -> tuple[float, ...]:
        if self.objective == "hamming":  # few events, so that the log-loss tells more of a gate than the error
            return (-log_loss,)
        return (right, -log_loss)  # the best vector is the same under every gate but 0; their probabilities are not

    def refine(self, model: SetModel, rows: LabelRows, n_steps: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        near = neighbours(rows.t, self.n_neighbours) if self.n_neighbours else None
        beliefs = model.beliefs(rows.t, rows.x, near)
        return model.marginals(beliefs, near), model.best(beliefs, near)

    def steps(self, model: SetModel, rows: LabelRows, ends: tuple[Array, Array], n_steps: int) -> Array:  # noqa: ARG002
        base, refined = ends
        return base + np.linspace(0, 1, MIXED_STEPS)[:, None, None] * (refined - base)  # the gate mixes linearly

    def liking(self, model: SetModel, rows: LabelRows) -> Tensor:
        return model.log_probability(rows.t, rows.x, rows.Y)

    def values_per_row(self, model: SetModel, n_labels: int) -> int:  # noqa: ARG002
        return len(model.Y)  # a score for each label vector


class AscentRefinement(Refinement):
    """``"ascent"``: some steps uphill in energy from the base's prediction."""

    amounts: ClassVar = {steps: (float(steps > 0), steps) for steps in (0, 1, 2, 3, 5, 10, 20)}

    @property
    def best_vectors(self) -> bool:
        return False

    def build(self, autoencoder: Autoencoder, sets: LabelSets) -> Autoencoder:  # noqa: ARG002
        return autoencoder

    def autoencoder(self, model: Autoencoder) -> Autoencoder:
        return model

    def train(
        self,
        model: Autoencoder,
        sets: LabelSets,  # noqa: ARG002
        rows: LabelRows,
        valid: LabelRows,
        training: LabelTraining,
    ) -> History:
        return train_denoising(model, rows, valid, training, self.noise_level)

    def worth(self, right: float, log_loss: float) -> tuple[float, ...]:  # noqa: ARG002
        return (right,)

    def refine(self, model: Autoencoder, rows: LabelRows, n_steps: int) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(ascend(model, rows.t, rows.x, [n_steps])[0].double())
        return p, (p > 0.5).double()

    def steps(self, model: Autoencoder, rows: LabelRows, ends: tuple[Array, Array], n_steps: int) -> Array:  # noqa: ARG002
        logits = ascend(model, rows.t, rows.x, range(n_steps + 1))
        return torch.sigmoid(torch.stack(logits).double()).cpu().numpy()

    def liking(self, model: Autoencoder, rows: LabelRows) -> Tensor:
        return model.energy(rows.Y, rows.x if model.context_width else None)[0]

    def values_per_row(self, model: Autoencoder, n_labels: int) -> int:  # noqa: ARG002
        return 4 * n_labels  # a few values for each label


#: ways to refine by name
METHODS: dict[str, type[Refinement]] = {"sets": SetRefinement, "ascent": AscentRefinement}
