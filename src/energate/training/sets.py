"""A distribution over label vectors: candidates, their scores, what follows from them, and its training.

The candidates are the label vectors seen in training, and a base's own with its neighbours:

      P(Y|x) = softmax over candidates of  <Y, beta * t> + tau log(count(Y) + 1/2) + E(Y|x)

Its marginals, or its best vector, are the prediction.

What is large: N rows, L labels, S label vectors seen.  Everything here is at most (N, S), (N, L) or (S, L), so rows
are given in chunks of some millions of scores.  With relation yy the energies are (S,), shared by the rows.  With xy
every pair of a row and a vector has its own: the `EXACT` most promising of each row take the energy, the others its
tangent, a lower bound.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.training.labels import LabelRows, LabelSets, LabelTraining
from energate.training.loop import History
from energate.units import CovarianceUnits, GatedUnits, project

EXACT = 256  # label vectors of a row that take the energy itself, relation xy
PAIR_VALUES = 2**18  # factors of pairs at once: what stays in a processor's cache is several times faster
FACTORS = 64  # sigmoids in a product: 2^-64 is far from the least number of float32
UNSEEN = 0.5  # added to every count, so that a vector never seen has a logarithm
SAMPLED = 4096  # of more label vectors than this, a training step looks at the most frequent and at its rows' own
VALID_VALUES = 2**22  # scores at once in validation
SET_NLL = 0.3  # weight of the likelihood of label vectors, per label, beside that of single labels
OBJECTIVES = ("hamming", "subset")
TINY = 1e-6


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
        units = self.autoencoder.groups[0]
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


# --- training --------------------------------------------------------------------------------------------------


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
    return training.stage.run(loss, groups, training.batches(rows), validate, training.listener)
