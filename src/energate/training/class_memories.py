"""Memories of classes: the rows of every class as its hidden units, and how sure to be of what they say.

All classes have one temperature T, so that energies divided by T are, up to a constant that they share, the logs of

    S_k(v) = sum over the rows w_i of class k of n_i exp(-|v - w_i|^2 / (2 T))        P(z = k | v) ~ S_k(v)^s exp(B_k)

Of s = 1 and equal biases this is Bayes' rule with Parzen densities, whose prior is in the counts n_i.  T, s and B are
those of the largest likelihood of the labels when every row is left out of its own class: nothing is trained, no row is
held out, and no row speaks for itself.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.memory import MemoryUnits
from energate.training.calibration import calibrate_members, calibrate_sureness
from energate.training.classes import ClassEnergies, LabelledRows
from energate.training.memory import NOTHING, Asked, Rows, gather, left_of

N_ASKED, N_FIRST = 2000, 1000  # rows that are left out in turn; those that choose the temperature
LADDER = range(-9, 6)  # log2 of the temperatures that are tried, by the mean variance of columns within classes
ENOUGH = 5  # rows left out of every class, from which on each class has a bias of its own
LIGHTEST = 1e-12  # the least that a row counts: far more than `NOTHING`
SINGLE = 1 + 1e-6  # what counts for more, of the units of an earlier round, may be several rows


@dataclass(frozen=True)
class Remembered:
    """The classes' energies, and those of rows (n, K) under them when each is left out, with no term left out."""

    model: ClassEnergies
    left_out: Tensor


def blank(n_classes: int, width: int, n_units: int) -> ClassEnergies:
    """Memories of so many rows of each class, before there are any."""
    units = MemoryUnits(n_classes, width, n_units, generator=torch.Generator())  # what it draws is written over
    with torch.no_grad():
        units.remember(torch.zeros_like(units.W), torch.full_like(units.b, NOTHING))
    return ClassEnergies([Autoencoder([units])]).double().requires_grad_(False)


def remember_classes(
    before: ClassEnergies, rows: LabelledRows, most: int, seed: int, valid: LabelledRows | None = None
) -> Remembered:
    """Let rows join the memories of ``before``: as units, or where a class has more than ``most`` as so many centres.

    Rows left out in turn say how sure to be, or ``valid``, rows of others.
    """
    generator = torch.Generator().manual_seed(seed)
    pool = _Pool.of(before, rows)
    n_classes, width = before.n_classes, rows.v.shape[1]
    # One class after the other: each is a program of its own, of as many rows as there are.
    members = [(pool.labels == k).nonzero().squeeze(1) for k in range(n_classes)]
    gathered = [gather(pool.v[some], pool.weight[some], most, generator) for some in members]
    model = blank(n_classes, width, max(1, *(len(each.W) for each in gathered))).to(rows.v.device)
    units = _units_of(model)
    with torch.no_grad():
        units.remember(*_padded(gathered, units))
    judges = _left_out(units, gathered, members, pool, generator) if valid is None else _fresh(units, valid)
    _settle(model, judges, _variance(gathered))
    return Remembered(model, _energies(model, judges.asked, judges.correction))


def _units_of(model: ClassEnergies) -> MemoryUnits:
    (units,) = model.autoencoders[0].groups
    assert isinstance(units, MemoryUnits)  # `blank` makes no others
    return units


@dataclass(frozen=True)
class _Pool:
    """What is to be remembered: rows v (N, D), their labels and weights (N,), and which are single rows (N,)."""

    v: Tensor
    labels: Tensor
    weight: Tensor
    single: Tensor

    @staticmethod
    def of(before: ClassEnergies, rows: LabelledRows) -> "_Pool":
        """The units of earlier rounds, and rows that count 1 on average."""
        units = _units_of(before)
        counts = units.log_counts.detach().double().exp().to(rows.v.device)  # (K, M)
        labels, number = (counts > LIGHTEST / 2).nonzero(as_tuple=True)
        known, its = units.W.detach()[labels, number].double(), counts[labels, number]
        used = rows.weight > 0
        weight = rows.weight[used].double()
        return _Pool(
            torch.cat([known, rows.v[used].double()]),
            torch.cat([labels, rows.labels[used]]),
            torch.cat([its, (weight / weight.mean()).clamp(min=LIGHTEST)]),
            torch.cat([its <= SINGLE, torch.ones_like(used[used])]),
        )


def _padded(gathered: list[Rows], units: MemoryUnits) -> tuple[Tensor, Tensor]:
    """The units of all classes (K, M, D) and what each counts (K, M), filled up with a row that counts nothing.

    It is one of the class, so that no unit is nearer to anything than a row is.
    """
    W, counts = torch.zeros_like(units.W), torch.full_like(units.b, NOTHING)
    for k, each in enumerate(gathered):
        if len(each.W):
            W[k], W[k, : len(each.W)], counts[k, : len(each.W)] = each.W[0], each.W, each.counts
    return W, counts


def _variance(gathered: list[Rows]) -> float:
    """The mean of the columns' variances within classes; where that is 0, among all."""
    W, counts = (torch.cat([getattr(each, part) for each in gathered]) for part in ("W", "counts"))
    share = counts / counts.sum()
    means = [each.counts @ each.W / each.counts.sum() for each in gathered]  # of an empty class, of no rows
    centred = torch.cat([each.W - mean for each, mean in zip(gathered, means, strict=True)])
    within = float(share @ centred.square().mean(1))
    return within or float(share @ (W - share @ W).square().mean(1)) or 1.0


# --- rows that judge -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judges:
    """Rows with labels and weights (n,); ``correction`` (n, K) makes up for the smaller class that a row has left."""

    asked: Asked
    labels: Tensor
    weight: Tensor
    correction: Tensor

    def first(self, n: int) -> "_Judges":
        """The first of them."""
        parts = {name: getattr(self.asked, name)[:n] for name in ("v", "of", "own", "left")}
        moved = None if self.asked.moved is None else self.asked.moved[:n]
        asked = replace(self.asked, **parts, moved=moved)
        return _Judges(asked, self.labels[:n], self.weight[:n], self.correction[:n])


def _fresh(units: MemoryUnits, rows: LabelledRows) -> _Judges:
    """Rows that are no units: nothing leaves."""
    counts, own = units.log_counts.exp(), torch.zeros_like(rows.labels)
    asked = Asked(units.W, counts, rows.v.double(), rows.labels, own, counts[rows.labels, own])
    return _Judges(asked, rows.labels, rows.weight.double(), asked.v.new_zeros(len(own), len(counts)))


def _left_out(
    units: MemoryUnits, gathered: list[Rows], members: list[Tensor], pool: _Pool, generator: torch.Generator
) -> _Judges:
    """Some rows, each of which leaves its class, where that has others: first `ENOUGH` of each class.

    All classes together weigh as they do among the rows.
    """
    own, left, total, moved = (torch.zeros_like(part) for part in (pool.labels, pool.weight, pool.weight, pool.v))
    for some, each in zip(members, gathered, strict=True):
        numbers = torch.arange(len(some), device=some.device)
        own[some], left[some], total[some] = each.own, left_of(each, numbers), each.counts.sum()
        sums = each.counts[each.own, None] * each.W[each.own] - each.weight.unsqueeze(1) * each.given  # (n, D)
        moved[some] = sums / left[some].unsqueeze(1).clamp(min=LIGHTEST)  # the mean of the others
    able = pool.single & (total - pool.weight > 1e-6 * total)
    order = torch.randperm(len(able), generator=generator).to(able.device)
    order = order[able[order]]
    place = _place_in_class(pool.labels[order])
    order = order[torch.argsort((place >= ENOUGH).long(), stable=True)][:N_ASKED]
    labels, weight = pool.labels[order], pool.weight[order]
    shares = torch.zeros(len(gathered)).to(weight).index_add_(0, labels, weight)
    weight = weight * (total[order] / shares[labels])
    correction = weight.new_zeros(len(order), len(gathered))
    correction[torch.arange(len(order)), labels] = -torch.log1p(-pool.weight[order] / total[order])
    asked = Asked(units.W, units.log_counts.exp(), pool.v[order], labels, own[order], left[order], moved[order])
    return _Judges(asked, labels, weight * (len(order) / weight.sum()), correction)


def _place_in_class(labels: Tensor) -> Tensor:
    """How many rows of the same class come before each: (n,)."""
    by_class = torch.argsort(labels, stable=True)
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    place = torch.empty_like(labels)
    place[by_class] = torch.arange(len(labels), device=labels.device) - starts[labels[by_class]]
    return place


# --- how sure to be ----------------------------------------------------------------------------------------------


def _settle(model: ClassEnergies, judges: _Judges, variance: float) -> None:
    """Set the temperature, the scale and the biases."""
    n_classes, width = model.n_classes, judges.asked.W.shape[2]
    if not len(judges.labels):  # classes of one row: nothing is known, and usual distances make about half a nat
        _set(model, variance * width, 0.5, torch.zeros(n_classes))
        return
    tried = [variance * 2.0**step for step in LADDER]
    losses = _calibrated(judges.first(N_FIRST), tried)[2]
    T = tried[int(losses.argmin())]
    s, B, _ = _calibrated(judges, [T])
    _set(model, T, float(s[0]), B[0])


def _set(model: ClassEnergies, T: float, s: float, B: Tensor) -> None:
    with torch.no_grad():
        _units_of(model).log_T.fill_(math.log(T))
        model.beta.fill_(s / T)
        model.B.copy_((B - B.mean()).unsqueeze(0))


def _calibrated(judges: _Judges, temperatures: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Powers s (T,), biases (T, K) and mean log-losses (T,) that suit the judges best, for each temperature.

    A few rows of a class say nothing of its bias: then the frequencies stay, and s says how much more is known.
    """
    logs = (judges.asked.log_sums(temperatures) + judges.correction).cpu()  # (T, n, K)
    labels, weight, totals = judges.labels.cpu(), judges.weight.cpu(), judges.asked.counts.sum(1).cpu()
    if int(torch.bincount(labels, minlength=len(totals)).min()) >= ENOUGH:
        found = calibrate_members(logs.unsqueeze(1), labels, weight)
        return found.beta[:, 0], found.B, found.losses
    frequencies = totals / totals.sum()
    s, losses = calibrate_sureness(logs - totals.sum().log(), frequencies, labels, weight)
    return s, (1 - s).unsqueeze(1) * frequencies.log(), losses


def _energies(model: ClassEnergies, asked: Asked, correction: Tensor) -> Tensor:
    """The calibrated energies of rows that are asked: (n, K)."""
    if not len(asked.v):
        return model.energies(asked.W.flatten(0, 1))  # of all units
    T = float(_units_of(model).log_T.exp()[0])
    return model.beta[0, 0] * T * (asked.log_sums([T])[0] + correction) + model.B[0]
