"""`LabelMLP`: the mean of several dropout networks, for rows that carry several labels at once."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data
from torch import Tensor, nn
from torch.nn import functional as F

from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import SCALINGS, Array, Estimator, LabelsMixin, in_chunks
from energate.estimators.effort import check_work
from energate.estimators.progress import reporting, with_callbacks
from energate.estimators.threads import threads_for
from energate.kernels import computing
from energate.training import Batches, History, Stage, corrupt, row_batches
from energate.units import few

Targets = NDArray[np.float32]  # (n, L) of 0 and 1; for classes one 1 in each row
WANTED_STEPS, LEAST_EPOCHS, MOST_EPOCHS = 1300, 20, 200
UNITS, FEWEST_UNITS = 256, 64  # of a layer, and where there are very many columns


# --- the networks -------------------------------------------------------------------------------------------------


class BatchedLinear(nn.Module):
    """K linear maps of rows (K, N, D) to (K, N, M)."""

    def __init__(self, W: Tensor) -> None:
        super().__init__()
        self.W = nn.Parameter(W)  # (K, D, M)
        self.b = nn.Parameter(torch.zeros(len(W), W.shape[2]))

    def forward(self, h: Tensor) -> Tensor:
        return torch.baddbmm(self.b.unsqueeze(1), h, self.W)


class LabelNetworks(nn.Module):
    """K networks of ReLU layers, from rows to the logits of the labels.

    The weights of the output start at 0: before training every row gets the logits that its biases hold.
    """

    def __init__(self, n_models: int, sizes: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.n_models = n_models
        *hidden, output = itertools.pairwise(sizes)
        starts = [torch.randn(n_models, *shape, generator=generator) * (2 / sum(shape) ** 0.5) for shape in hidden]
        self.hidden = nn.ModuleList(map(BatchedLinear, starts))
        self.output = BatchedLinear(torch.zeros(n_models, *output))

    def forward(
        self, v: Tensor, dropout: tuple[float, float] = (0.0, 0.0), generator: torch.Generator | None = None
    ) -> Tensor:
        """The logits (K, N, L) of rows (N, D) or (K, N, D); ``dropout`` is that of the rows and of hidden units."""
        rate, later = dropout
        h = v.expand(self.n_models, *v.shape[-2:])  # (K, N, D)
        for layer in self.hidden:
            h = layer(_drop(h, rate, generator)).relu()  # (K, N, M)
            rate = later
        return self.output(_drop(h, rate, generator))  # (K, N, L)


def _drop(h: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Values left out at random, the others larger in turn, so that the mean stays."""
    return corrupt(h, "masking", rate, generator) / (1 - rate) if rate else h


def member_batches(n_models: int, n_rows: int, batch_size: int, seed: int, device: torch.device) -> Batches:
    """Every model its own order of the same rows: a function from the epoch to batches (K, B) of row numbers."""
    members = [row_batches(n_rows, batch_size, seed + k, device) for k in range(n_models)]

    def batches(epoch: int) -> Sequence[Tensor]:
        return [torch.stack(parts) for parts in zip(*(member(epoch) for member in members), strict=True)]

    return batches


# --- the estimator ------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, kw_only=True)
class LabelMLP(LabelsMixin, Estimator):
    """Predicts several labels of a row by the mean of several dropout networks, trained as one program.

    The labels are independent of each other given the hidden units; `predict_proba` says how probable each one is.
    Labels in one dimension are taken as classes, of which each row has one: the outputs are then a softmax.

    Parameters
    ----------
    n_hidden, n_layers : ReLU units of each hidden layer, and the number of these layers.  ``"auto"`` is 256, and less,
        down to 64, of more than 12,500 columns.
    n_members : networks; each has its own start, batches and dropout, and their logits are averaged.
    dropout, input_dropout : the share of hidden units, and of columns, left out at random in training.
    max_epochs : ``"auto"`` takes more on small data.
    learning_rate, weight_decay, batch_size : of the optimiser, AdamW; the rate falls to 0 along a cosine, and only
        matrices decay.
    early_stopping, validation_fraction, n_iter_no_change : keep, for each network, the epoch with the lowest log-loss
        on the rows held out: those given to `fit`, or else a share of the training rows.  Where that share is fewer
        than 10 rows, all rows train.
    scaling : ``"standard"``, ``"unit"`` (columns to [0, 1]) or ``"none"``.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    classes_ : the classes; for several labels their numbers, from 0.
    multilabel_ : whether `fit` saw several labels, as a table of 0 and 1, and not classes.
    n_features_in_, feature_names_in_ : as in scikit-learn.
    model_ : the networks, from scaled rows to logits.
    scaler_ : what brings columns to the scale of ``model_``.
    history_ : `energate.training.History`.
    """

    _FITTED = ("classes_", "multilabel_", "scaler_")  # what is saved beside the model

    n_hidden: int | str = "auto"
    n_layers: int = 2
    n_members: int = 5
    dropout: float = 0.5
    input_dropout: float = 0.2
    max_epochs: int | str = "auto"
    learning_rate: float = 4e-3
    weight_decay: float = 0.3
    batch_size: int = 64
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 20
    scaling: str = "standard"

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any, *, X_valid: Any = None, y_valid: Any = None) -> Self:
        """Train the networks on rows X (n, D) and labels y, (n, L) of 0 and 1, or (n,) for classes.

        ``X_valid`` and ``y_valid`` are rows to stop early on, in place of held-out ones.
        """
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True)
        self.__dict__.pop("model_", None)  # it comes last: not fitted until then
        y = _one_column(y)
        self.multilabel_: bool = y.ndim == 2
        self.classes_: NDArray[Any] = np.arange(y.shape[1]) if self.multilabel_ else edge.find_classes(y)
        targets = self._encode(y)
        seed = edge.draw_seed(self.random_state)
        held_out = self._given(X_valid, y_valid)
        counts, n_rows = targets.sum(0, dtype=np.float64), len(X)
        if held_out is None:
            train, valid = edge.hold_out(self, n_rows, seed)
            held_out = None if valid is None else (X[valid], targets[valid])
            X, targets = X[train], targets[train]
        self.check_effort(len(X), X.shape[1], len(self.classes_))
        self.scaler_ = SCALINGS[self.scaling](X, np.ones(len(X)))
        networks = self._networks(torch.Generator().manual_seed(seed))
        with torch.no_grad():  # The start: the share of the rows with each label, which is never 0 nor 1.
            networks.output.b.copy_(torch.as_tensor(np.log((counts + 0.5) / (n_rows - counts + 0.5))))
        networks.to(edge.resolve_device(self.device))
        self._train(networks, (X, targets), held_out, (counts > 0) & (counts < n_rows), seed)
        self.model_ = networks
        return self

    def _check_parameters(self) -> None:
        if self.n_hidden != "auto":
            edge.whole_number(self, "n_hidden", 1, " or 'auto'")
        for name in ("n_layers", "n_members", "batch_size", "n_iter_no_change"):
            edge.whole_number(self, name, 0 if name == "n_layers" else 1)
        for name in ("dropout", "input_dropout", "validation_fraction"):
            edge.fraction_of(self, name)
        if self.early_stopping and not self.validation_fraction:
            raise InputError("`validation_fraction` must be above 0; use early_stopping=False to hold no rows out.")
        edge.check_choices(self, scaling=SCALINGS)
        edge.auto_epochs(self.max_epochs, 1, WANTED_STEPS, LEAST_EPOCHS)  # refuses what is no number of epochs

    def _encode(self, y: NDArray[Any]) -> Targets:
        if not self.multilabel_:
            return np.eye(len(self.classes_), dtype=np.float32)[edge.encode_labels(y, self.classes_)]
        if y.shape[1:] != self.classes_.shape:
            raise InputError(f"`y_valid` must have {len(self.classes_)} columns, as `y`; got {y.shape}.")
        if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
            raise InputError(
                f"Several labels must be a table (n, L) of 0 and 1; got one of {y.dtype}, {y.shape}, with other "
                "values. Give classes in one dimension, (n,)."
            )
        return y.astype(np.float32)

    def _given(self, X_valid: Any, y_valid: Any) -> tuple[Array, Targets] | None:
        """Validation rows that the caller brings."""
        read = partial(validate_data, self, dtype=np.float64, multi_output=True)
        given = edge.valid_rows(self, X_valid, y_valid, read)
        if given is None:
            return None
        X_valid, y_valid = given[0], _one_column(given[1])
        if (y_valid.ndim == 2) != self.multilabel_:
            raise InputError(f"`y_valid` must have as many dimensions as `y`; got {y_valid.ndim}.")
        return X_valid, self._encode(y_valid)

    def check_effort(self, n_rows: int, n_columns: int, n_labels: int, n_fits: int = 1) -> None:
        """Refuse what would take very long: so many fits to so many rows, columns and labels."""
        n_steps = math.ceil(n_rows / self.batch_size)
        n_steps *= n_fits * edge.auto_epochs(self.max_epochs, n_steps, WANTED_STEPS, LEAST_EPOCHS, MOST_EPOCHS)
        per_row = self.n_members * sum(map(math.prod, itertools.pairwise(self._sizes(n_columns, n_labels))))
        device, n_seen = edge.resolve_device(self.device), min(n_rows, self.batch_size)
        check_work(self, device, (n_rows, n_columns), n_steps, n_seen, per_row)

    def _sizes(self, n_columns: int, n_labels: int) -> list[int]:
        """Of the layers, from the columns to the labels."""
        few(n_layers=self.n_layers)
        wanted = edge.units_within(self.n_members * n_columns, FEWEST_UNITS, UNITS)
        return [n_columns, *[edge.default_size(self.n_hidden, wanted)] * self.n_layers, n_labels]

    def _networks(self, generator: torch.Generator) -> LabelNetworks:
        return LabelNetworks(self.n_members, self._sizes(self.n_features_in_, len(self.classes_)), generator)

    def _untrained(self) -> LabelNetworks:
        return self._networks(torch.Generator())

    def _train(
        self,
        networks: LabelNetworks,
        train: tuple[Array, Targets],
        valid: tuple[Array, Targets] | None,
        varies: NDArray[np.bool_],
        seed: int,
    ) -> None:
        device = networks.output.b.device
        counted = torch.as_tensor(varies).to(device)

        def on_device(X: Array, targets: Targets) -> tuple[Tensor, Tensor]:
            return torch.as_tensor(self.scaler_(X), dtype=torch.float32).to(device), torch.as_tensor(targets).to(device)

        def log_loss(logits: Tensor, targets: Tensor) -> Tensor:
            """Minus the log-likelihood of each row: (K, N)."""
            if not self.multilabel_:
                return -(logits.log_softmax(-1) * targets).sum(-1)
            # A label that never changes teaches nothing: it keeps the logit that it started from.
            losses = F.binary_cross_entropy_with_logits(logits, targets.expand_as(logits), reduction="none")
            return (losses * counted).sum(-1)

        rows, targets = on_device(*train)
        noise = torch.Generator(device).manual_seed(seed)
        rates = (float(self.input_dropout), float(self.dropout))

        def loss(batch: Tensor) -> Tensor:
            return log_loss(networks(rows[batch], rates, noise), targets[batch]).mean(-1)

        validate = None
        if valid is not None:
            chunks = list(zip(*(part.split(edge.ROWS_PER_CHUNK) for part in on_device(*valid)), strict=True))

            def validate() -> Tensor:
                return torch.cat([log_loss(networks(v), known) for v, known in chunks], -1).double().mean(-1)

        n_steps = math.ceil(len(rows) / self.batch_size)
        epochs = edge.auto_epochs(self.max_epochs, n_steps, WANTED_STEPS, LEAST_EPOCHS, MOST_EPOCHS)
        layers = [module for module in networks.modules() if isinstance(module, BatchedLinear)]
        groups: list[dict[str, Any]] = [
            {"params": [layer.W for layer in layers]},
            {"params": [layer.b for layer in layers], "weight_decay": 0.0},
        ]
        how = self.learning_rate, self.weight_decay, "adamw", "cosine", self.n_iter_no_change
        stage = Stage("train", epochs, *how)
        batches = member_batches(self.n_members, len(rows), self.batch_size, seed, device)
        products = computing(self.precision, device)
        with threads_for(train[0].size), products, reporting(self, epochs, *train) as report:
            self.history_: History = stage.run(loss, groups, batches, validate, report, [noise], by_rows=True)
        edge.settle(networks, self.precision)

    # --- scoring -----------------------------------------------------------------------------------

    def _logits(self, X: Any) -> Array:
        X = self._checked(X)
        return in_chunks(X, self.scaler_, self.model_.output.b, lambda v: self.model_(v).mean(0), self.precision)

    def decision_function(self, X: Any) -> Array:
        """The mean logits: (n, L).  For two classes that of the second less that of the first, (n,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if not self.multilabel_ and len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        """The probability of every label, (n, L), each on its own; those of classes add up to 1."""
        logits = torch.as_tensor(self._logits(X))
        return (logits.sigmoid() if self.multilabel_ else logits.softmax(1)).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The labels that are more probable than not, (n, L) of 0 and 1; of classes the most probable, (n,)."""
        logits = self._logits(X)
        return (logits > 0).astype(np.int64) if self.multilabel_ else self.classes_[logits.argmax(1)]


def _one_column(y: NDArray[Any]) -> NDArray[Any]:
    """A table of one column is taken as classes, with scikit-learn's warning."""
    return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
