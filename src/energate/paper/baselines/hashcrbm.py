"""`HashCRBM`: a conditional restricted Boltzmann machine over label vectors that a hash table finds for each row."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

from energate.activations import as_activation
from energate.errors import InputError
from energate.estimators.edge import (
    SCALINGS,
    Array,
    at_least_0,
    draw_seed,
    epochs_of,
    fraction_of,
    in_chunks,
    resolve_device,
    whole_number,
)
from energate.estimators.progress import Reporter
from energate.paper.baselines.shared import LabelClassifier, check_objective, distinct, shares
from energate.training import History, minimise, row_batches

SIGMOID = as_activation("sigmoid")
START = 0.1  # the size of the first weights between labels and hidden units
LEAST_VALID = 10  # fewer rows are not worth stopping early on
LEAST_MARGINAL = 1e-3  # in validation: a label that no candidate has must not count as infinitely wrong
VALUES_AT_ONCE = 2**22  # of hidden units, or of labels of candidates, when predicting


class ConditionalRBM(nn.Module):
    """Binary hidden units between a row x and its labels y, and direct weights from x to y.

    -Eng(y, h | x) = y.(W_yx x + b) + h.(W_hx x + W_hy y + c).  Summed over all h this leaves the free energy F(y | x),
    -F = y.(W_yx x + b) + sum softplus(W_hx x + W_hy y + c).
    """

    def __init__(self, n_columns: int, n_hidden: int, share: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        n_labels = len(share)
        self.W_yx = nn.Parameter(torch.zeros(n_labels, n_columns))
        self.b = nn.Parameter(torch.logit(share))  # without x and h: each label as often as in training
        self.W_hx = nn.Parameter(torch.randn(n_hidden, n_columns, generator=generator) / n_columns**0.5)
        self.W_hy = nn.Parameter(torch.randn(n_hidden, n_labels, generator=generator) * START)
        self.c = nn.Parameter(torch.zeros(n_hidden))

    def free_energy(self, x: Tensor, sets: Tensor, candidates: Tensor | None = None) -> Tensor:
        """F(y | x), low is good, of label vectors (S, L): (N, S); with ``candidates`` (N, C) of those: (N, C)."""
        direct = torch.addmm(self.b, x, self.W_yx.T) @ sets.T  # (N, S)
        u_x, u_y = torch.addmm(self.c, x, self.W_hx.T), sets @ self.W_hy.T  # (N, M), (S, M)
        if candidates is None:
            u = u_x.unsqueeze(1) + u_y  # (N, S, M)
        else:
            direct = direct.gather(1, candidates)  # (N, C)
            u = u_x.unsqueeze(1) + u_y[candidates]  # (N, C, M)
        return -direct - SIGMOID.potential(u)

    def log_probabilities(self, x: Tensor, sets: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Logs of P(y | x) among the same label vectors, in the shape of `free_energy`."""
        return torch.log_softmax(-self.free_energy(x, sets, candidates), 1)


@dataclass(frozen=True)
class HashTable:
    """Binary codes of rows, and the label vectors (S, L) that are found under them, the most frequent first.

    The code is semantic: rows that call for the same labels have codes that differ in few bits.  Labels are regressed
    on the rows (ridge regression), and a bit says on which side of the median a random combination of these
    predictions is.
    """

    sets: Array
    own: NDArray[np.int64]  # (n,): which of the sets each row has
    directions: Array  # (D, bits)
    thresholds: Array  # (bits,)
    codes: Array  # (n, bits) of -1 and 1, rows with the same labels together
    starts: NDArray[np.intp]  # (S,): where the rows of each set begin

    @classmethod
    def build(cls, X: Array, Y: Array, n_bits: int, seed: int) -> Self:
        """The table of rows (n, D) with labels (n, L)."""
        sets, own, _ = distinct(Y)
        coef = Ridge(alpha=len(X)).fit(X, Y).coef_.reshape(Y.shape[1], X.shape[1])
        directions = coef.T @ np.random.default_rng(seed).normal(size=(Y.shape[1], n_bits))
        projected = X @ directions
        thresholds = np.median(projected, axis=0)
        by_set = np.argsort(own, kind="stable")
        codes = np.where(projected[by_set] > thresholds, 1.0, -1.0)
        return cls(sets, own, directions, thresholds, codes, np.searchsorted(own[by_set], np.arange(len(sets))))

    def candidates(self, X: Array, n_candidates: int, own: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The sets (N, C) that are found first when codes with more and more other bits are looked up.

        The distance of a set is that of the nearest code it is found under; of equals the more frequent set is
        taken.  ``own`` (N,) names sets that must be among them.
        """
        n_candidates = min(n_candidates, len(self.sets))
        found = []
        size = max(1, VALUES_AT_ONCE // len(self.codes))
        for start in range(0, len(X), size):
            code = np.where(X[start : start + size] @ self.directions > self.thresholds, 1.0, -1.0)
            bits = (code.shape[1] - code @ self.codes.T) / 2  # how many differ: (N, n)
            distance = np.minimum.reduceat(bits, self.starts, axis=1)  # (N, S)
            if own is not None:
                distance[np.arange(len(code)), own[start : start + size]] = -1
            found.append(np.argsort(distance, axis=1, kind="stable")[:, :n_candidates])
        return np.concatenate(found).astype(np.int64)


@dataclass(eq=False, repr=False, kw_only=True)
class HashCRBM(LabelClassifier):
    """A conditional RBM trained by maximum likelihood, normalised over label vectors found by hashing.

    After Mnih, Larochelle & Hinton (2011): where few label vectors are likely, P(y | x) can be normalised over
    candidates in place of all 2^L.  The candidates of a row are label vectors of training rows with similar codes,
    see `HashTable`; of a training row also its own.  Where training has seen no more than ``n_candidates`` of
    them, all are candidates.

    Parameters
    ----------
    n_hidden : hidden units; 0 leaves a model of the label vectors without interactions.
    n_candidates : label vectors that a row is normalised over, at most.
    n_bits : of the codes.
    objective : ``"hamming"`` predicts labels with marginals above one half, ``"subset"`` the likeliest label vector.
    max_epochs, learning_rate, weight_decay, batch_size : of the training; ``"auto"`` epochs are more on small data.
    early_stopping, validation_fraction, n_iter_no_change : keep the epoch whose marginals have the least log-loss on a
        share of the rows, held out; their label vectors are candidates for `predict` all the same.
    scaling : ``"standard"``, ``"unit"`` or ``"none"``.
    device, random_state, verbose : as elsewhere.

    Attributes
    ----------
    model_ : the `ConditionalRBM`, over scaled rows.
    table_ : the `HashTable` of all rows.
    scaler_ : what brings columns to the scale of ``model_``.
    history_ : `energate.training.History`.
    """

    n_hidden: int = 50
    n_candidates: int = 256
    n_bits: int = 64
    objective: str = "hamming"
    max_epochs: int | str = "auto"
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    batch_size: int = 100
    early_stopping: bool = True
    validation_fraction: float = 0.15
    n_iter_no_change: int = 20
    scaling: str = "standard"
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    # --- fitting -----------------------------------------------------------------------------------

    def _fit(self, X: Array, Y: Array) -> None:
        self._check_parameters()
        seed, device = draw_seed(self.random_state), resolve_device(self.device)
        train, valid = self._split(len(X), seed)
        self.scaler_ = SCALINGS[self.scaling](X[train], np.ones(len(train)))
        table = HashTable.build(self.scaler_(X[train]), Y[train], self.n_bits, seed)
        generator = torch.Generator().manual_seed(seed)
        share = torch.as_tensor(shares(Y[train]), dtype=torch.float32)
        model = ConditionalRBM(X.shape[1], self.n_hidden, share, generator).to(device)
        self.history_ = self._train(model, table, X[train], (X[valid], Y[valid]) if len(valid) else None, seed)
        self.table_ = HashTable.build(self.scaler_(X), Y, self.n_bits, seed)
        self.model_ = model.double() if device.type == "cpu" else model

    def _check_parameters(self) -> None:
        check_objective(self.objective)
        whole_number(self, "n_hidden", 0)
        for name in ("n_candidates", "n_bits", "batch_size", "n_iter_no_change"):
            whole_number(self, name, 1)
        at_least_0(self, "learning_rate")
        at_least_0(self, "weight_decay")
        if not fraction_of(self, "validation_fraction") > 0:
            raise InputError("`validation_fraction` must be above 0; use early_stopping=False to hold no rows out.")
        if self.scaling not in SCALINGS:
            raise InputError(f"`scaling` must be one of {', '.join(SCALINGS)}; got {self.scaling!r}.")

    def _split(self, n_rows: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The numbers of the rows to train on, and of those to stop early on."""
        rows = np.arange(n_rows)
        if not self.early_stopping or n_rows * self.validation_fraction < LEAST_VALID:
            return rows, rows[:0]
        train, valid = train_test_split(rows, test_size=self.validation_fraction, random_state=seed)
        return train, valid

    def _train(
        self, model: ConditionalRBM, table: HashTable, X: Array, valid: tuple[Array, Array] | None, seed: int
    ) -> History:
        rows = torch.as_tensor(self.scaler_(X)).to(model.b)
        sets = torch.as_tensor(table.sets).to(rows)
        found = table.candidates(self.scaler_(X), self.n_candidates, table.own)
        own = torch.as_tensor((found == table.own[:, None]).argmax(1)).to(rows.device)
        candidates = torch.as_tensor(found).to(rows.device)

        def loss(batch: Tensor) -> Tensor:
            return F.nll_loss(model.log_probabilities(rows[batch], sets, candidates[batch]), own[batch])

        def validate() -> Tensor:
            assert valid is not None
            p = torch.as_tensor(self._score(model, table, valid[0], "marginals"))
            return F.binary_cross_entropy(p.clamp(LEAST_MARGINAL, 1 - LEAST_MARGINAL), torch.as_tensor(valid[1]))

        epochs = epochs_of(self, "max_epochs", math.ceil(len(rows) / self.batch_size))
        report = Reporter(self, epochs, X)
        return minimise(
            loss,
            model.parameters(),
            row_batches(len(rows), self.batch_size, seed, rows.device),
            epochs=epochs,
            optimizer="adamw",
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule="cosine",
            validate=None if valid is None else validate,
            patience=None if valid is None else self.n_iter_no_change,
            callback=lambda progress: report("likelihood", progress),
        )

    # --- scoring -----------------------------------------------------------------------------------

    def _score(self, model: ConditionalRBM, table: HashTable, X: Array, what: str) -> Array:
        """The ``"marginals"`` of the labels among the candidates of each row, or the ``"likeliest"`` candidate."""
        sets = torch.as_tensor(table.sets).to(model.b)
        n_candidates = min(self.n_candidates, len(sets))
        size = max(1, VALUES_AT_ONCE // (n_candidates * max(1, self.n_hidden, sets.shape[1])))

        def score(rows: Tensor) -> Tensor:
            found = torch.as_tensor(table.candidates(rows.double().cpu().numpy(), n_candidates)).to(rows.device)
            parts = []
            for part, candidates in zip(rows.split(size), found.split(size), strict=True):
                log_p = model.log_probabilities(part, sets, candidates)
                if what == "marginals":
                    parts.append(torch.einsum("nc,ncl->nl", log_p.exp(), sets[candidates]))
                else:
                    parts.append(sets[candidates.gather(1, log_p.argmax(1, keepdim=True)).squeeze(1)])
            return torch.cat(parts)

        return in_chunks(X, self.scaler_, model.b, score)

    def _probabilities(self, X: Array) -> Array:
        # By rounding, probabilities of candidates may add up to a little more than 1.
        return np.clip(self._score(self.model_, self.table_, X, "marginals"), 0, 1)

    def _choose(self, X: Array) -> NDArray[np.bool_]:
        what = "marginals" if self.objective == "hamming" else "likeliest"
        chosen: NDArray[np.bool_] = self._score(self.model_, self.table_, X, what) > 0.5
        return chosen
