"""A torch network, trained by cross-entropy, as a scikit-learn classifier."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from torch import Tensor, nn
from torch.nn import functional as F

from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import SCALINGS, Array, Estimator, in_chunks
from energate.estimators.progress import Reporter, reporting, with_callbacks
from energate.training import History, Stage, row_batches
from energate.training.classes import LabelledRows

MONITORS = ("log_loss", "error")


class Network(nn.Module, ABC):
    """Maps rows to the logits of the classes."""

    @abstractmethod
    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """The logits (N, K) of rows (N, D); with ``noise`` as in training, if the network is random there."""

    #: how many generators `loss` draws from
    n_noises = 1

    def loss(self, v: Tensor, labels: Tensor, *noises: torch.Generator) -> Tensor:
        """What training minimises on rows (N, D) with labels (N,): here the cross-entropy."""
        return F.cross_entropy(self(v, noises[0]), labels)

    def noises(self, seed: int, device: str | torch.device = "cpu") -> list[torch.Generator]:
        """What `loss` draws from."""
        return [torch.Generator(device).manual_seed(seed + i) for i in range(self.n_noises)]

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """What training by cross-entropy changes, for `energate.training.minimise`: parameters and their rates."""
        return [{"params": list(self.parameters()), "learning_rate": learning_rate}]


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkClassifier(ClassifierMixin, Estimator, ABC):  # type: ignore[misc]
    """A network trained by cross-entropy, early stopping on rows held out.

    A subclass, a dataclass as well, adds its own parameters, gives those below other defaults where it wants to, and
    says with `_start` which network training starts from.

    Parameters
    ----------
    max_epochs, learning_rate, weight_decay, batch_size : of the training by cross-entropy; ``"auto"`` epochs are
        more on small data.
    early_stopping, validation_fraction, n_iter_no_change : keep the epoch that is best on the rows held out: those
        given to `fit`, or else a share of the training rows.  Where that could not hold 5 rows of every class, all
        rows train.
    monitor : what is best: ``"log_loss"``, or ``"error"``, where the log-loss decides between equal errors.
    scaling : ``"unit"`` (columns to [0, 1]), ``"standard"`` or ``"none"``.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    model_ : the network, from scaled rows to logits.
    scaler_ : what brings columns to the scale of ``model_``.
    history_ : `energate.training.History` of every stage.
    """

    _FITTED = ("classes_", "scaler_", "history_")
    _OPTIMIZER: ClassVar[str]
    _SCHEDULE: ClassVar[str]
    _SCALINGS: ClassVar[dict[str, Any]] = SCALINGS
    _CAPTURES: ClassVar[bool] = False  # whether steps may be CUDA graphs: the loss reads nothing back
    _CLIP_NORM: ClassVar[float | None] = None  # the longest gradient of a step; None: any
    _BY_ROWS: ClassVar[bool] = False  # whether several processes may divide batches, as in `minimise`

    max_epochs: int | str = "auto"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int = 100
    early_stopping: bool = True
    validation_fraction: float = 0.15
    n_iter_no_change: int = 20
    monitor: str = "log_loss"
    scaling: str = "unit"

    @abstractmethod
    def _epochs_before(self, n_steps: int) -> int:
        """How many epochs of ``n_steps`` `_start` trains, at most; checks the parameters of the subclass."""

    @abstractmethod
    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:
        """The network before training by cross-entropy, pretrained on the rows (N, D) if the system does that."""

    def _flat(self, X: Any) -> Any:
        """What is to be scored in the form of rows; here it has that form."""
        return X

    def _read(self, X: Any, X_valid: Any) -> tuple[Any, Any]:
        """The same of what `fit` is given, before anything is known of it."""
        return X, X_valid

    def _check_effort(self, network: Network, train: LabelledRows, n_steps: int) -> None:
        """Refuse what would not fit into memory, or take too long, with ``n_steps`` in an epoch: here nothing."""

    def _keep(self, network: Network, train: LabelledRows, valid: LabelledRows | None) -> None:
        """What else a subclass finds of the trained network, from the rows trained on and held out: nothing."""

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any, *, X_valid: Any = None, y_valid: Any = None) -> Self:
        """Train the network; ``X_valid`` and ``y_valid`` are rows to stop early on instead of held-out ones."""
        self._check_parameters()
        X, X_valid = self._read(X, X_valid)
        given = edge.given_rows(self, X, y, X_valid=X_valid, y_valid=y_valid)
        self.classes_: NDArray[Any] = given.classes
        self.history_: dict[str, History] = {}
        self.scaler_ = self._SCALINGS[self.scaling](given.train.X, given.train.weight)
        train, valid = given.tensors(self.scaler_, edge.resolve_device(self.device))
        n_steps = math.ceil(len(train.v) / self.batch_size)
        n_epochs = self._epochs_before(n_steps) + edge.epochs_of(self, "max_epochs", n_steps)
        with reporting(self, n_epochs, X, y) as report:
            network = self._start(train.v, len(self.classes_), given.seed, report)
            self._check_effort(network, train, n_steps)
            self._train(network, train, valid, given.seed, report)
        edge.settle(network, self.precision)
        self._keep(network, train, valid)
        self.model_ = network
        return self

    def _check_parameters(self) -> None:
        edge.check_choices(self, scaling=self._SCALINGS, monitor=MONITORS)
        edge.whole_number(self, "batch_size", 1)
        edge.whole_number(self, "n_iter_no_change", 1)
        if not edge.fraction_of(self, "validation_fraction") > 0:
            raise InputError("`validation_fraction` must be above 0; use early_stopping=False to hold no rows out.")

    def _train(
        self, network: Network, train: LabelledRows, valid: LabelledRows | None, seed: int, report: Reporter
    ) -> None:
        noises = network.noises(seed, train.v.device)

        def loss(batch: Tensor) -> Tensor:
            return network.loss(train.v[batch], train.labels[batch], *noises)

        epochs = edge.epochs_of(self, "max_epochs", math.ceil(len(train.v) / self.batch_size))
        how = self.learning_rate, self.weight_decay, self._OPTIMIZER, self._SCHEDULE, self.n_iter_no_change
        validate = None if valid is None else self._validation(network, valid.v, valid.labels)
        batches, groups = row_batches(len(train.v), self.batch_size, seed, train.v.device), network.groups(how[0])
        stage = Stage("fine-tune", epochs, *how, clip_norm=self._CLIP_NORM)
        drawing = noises if self._CAPTURES else None
        self.history_["fine-tune"] = stage.run(loss, groups, batches, validate, report, drawing, self._BY_ROWS)

    def _validation(self, network: Network, rows: Tensor, labels: Tensor) -> Callable[[], Tensor]:
        def validate() -> Tensor:
            logits = torch.cat([network(part).double() for part in rows.split(edge.ROWS_PER_CHUNK)])
            log_loss = F.cross_entropy(logits, labels)
            if self.monitor == "log_loss":
                return log_loss
            wrong = (logits.argmax(1) != labels).double().sum()
            return (wrong + log_loss / (1 + log_loss)) / len(labels)  # less than one error more

        return validate

    # --- scoring -----------------------------------------------------------------------------------

    def _logits(self, X: Any) -> Array:
        X = self._checked(self._flat(X))
        return in_chunks(X, self.scaler_, next(self.model_.parameters()), self.model_, self.precision)

    def decision_function(self, X: Any) -> Array:
        """The logits (n, K); for two classes that of the second less that of the first, (n,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of the probability of every class: (n, K)."""
        return torch.log_softmax(torch.as_tensor(self._logits(X)), 1).numpy()

    def predict_proba(self, X: Any) -> Array:
        """The probability of every class: (n, K)."""
        return torch.softmax(torch.as_tensor(self._logits(X)), 1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row: (n,)."""
        best = self._logits(X).argmax(1)
        return self.classes_[best]
