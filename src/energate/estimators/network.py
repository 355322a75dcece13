"""A torch network, trained by cross-entropy, as a scikit-learn classifier; and numbers that parameters must be."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn import functional as F

from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.classifier import MIN_VALIDATION_ROWS
from energate.estimators.edge import (
    SCALINGS,
    Array,
    FittedMixin,
    auto_epochs,
    draw_seed,
    encode_labels,
    find_classes,
    in_chunks,
    resolve_device,
    settle,
    valid_rows_given,
)
from energate.estimators.progress import CallbackSupportMixin, Reporter, with_callbacks
from energate.training import History, Stage, row_batches

Labelled = tuple[Tensor, Tensor]  # rows (N, D) and their labels (N,), numbers from 0
MONITORS = ("log_loss", "error")
WANTED_STEPS, LEAST_EPOCHS = 2000, 40


class Network(nn.Module, ABC):
    """Maps rows to the logits of the classes."""

    @abstractmethod
    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """The logits (N, K) of rows (N, D); with ``noise`` as in training, if the network is random there."""

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """What training by cross-entropy changes, for `energate.training.minimise`: parameters and their rates."""
        return [{"params": list(self.parameters()), "learning_rate": learning_rate}]


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkClassifier(
    ClassifierMixin,  # type: ignore[misc]
    CallbackSupportMixin,  # type: ignore[misc]
    FittedMixin,
    BaseEstimator,  # type: ignore[misc]
    ABC,
):
    """A network trained by cross-entropy, early stopping on rows held out.

    A subclass is a dataclass, too, whose fields are its further parameters, and says with `_start` which network
    training starts from.

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

    max_epochs: int | str = "auto"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int = 100
    early_stopping: bool = True
    validation_fraction: float = 0.15
    n_iter_no_change: int = 20
    monitor: str = "log_loss"
    scaling: str = "unit"
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    @abstractmethod
    def _epochs_before(self, n_steps: int) -> int:
        """How many epochs of ``n_steps`` `_start` trains, at most; checks the parameters of the subclass."""

    @abstractmethod
    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:
        """The network before training by cross-entropy, pretrained on the rows (N, D) if the system does that."""

    def _keep(self, network: Network, rows: Tensor) -> None:
        """What else a subclass keeps of the trained network, from the rows held out, or else trained on: nothing."""

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any, *, X_valid: Any = None, y_valid: Any = None) -> Self:
        """Train the network; ``X_valid`` and ``y_valid`` are rows to stop early on instead of held-out ones."""
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.__dict__.pop("model_", None)  # it comes last: not fitted until then
        self.classes_ = find_classes(y)
        labels = encode_labels(y, self.classes_)
        seed = draw_seed(self.random_state)
        self.history_: dict[str, History] = {}
        rows, labels, held_out = self._split(X, labels, X_valid, y_valid, seed)
        self.scaler_ = SCALINGS[self.scaling](rows, np.ones(len(rows)))
        train = self._rows(rows, labels)
        valid = None if held_out is None else self._rows(*held_out)
        n_steps = math.ceil(len(rows) / self.batch_size)
        report = Reporter(self, self._epochs_before(n_steps) + epochs_of(self, "max_epochs", n_steps), X, y)
        network = self._start(train[0], len(self.classes_), seed, report)
        self._train(network, train, valid, seed, report)
        report.end()
        settle(network)
        self._keep(network, (train if valid is None else valid)[0])
        self.model_ = network
        return self

    def _check_parameters(self) -> None:
        for name, names in {"scaling": SCALINGS, "monitor": MONITORS}.items():
            if getattr(self, name) not in list(names):
                raise InputError(f"`{name}` must be one of {', '.join(names)}; got {getattr(self, name)!r}.")
        whole_number(self, "batch_size", 1)
        whole_number(self, "n_iter_no_change", 1)
        if not fraction_of(self, "validation_fraction") > 0:
            raise InputError("`validation_fraction` must be above 0; use early_stopping=False to hold no rows out.")

    def _split(
        self, X: Array, labels: NDArray[np.int64], X_valid: Any, y_valid: Any, seed: int
    ) -> tuple[Array, NDArray[np.int64], tuple[Array, NDArray[np.int64]] | None]:
        """Rows and labels to train on, and those to stop early on."""
        if valid_rows_given(self, X_valid, y_valid):
            X_valid, y_valid = validate_data(self, X_valid, y_valid, dtype=np.float64, reset=False)
            return X, labels, (X_valid, encode_labels(y_valid, self.classes_))
        if not self.early_stopping or np.bincount(labels).min() * self.validation_fraction < MIN_VALIDATION_ROWS:
            return X, labels, None
        train, valid = train_test_split(
            np.arange(len(X)), test_size=self.validation_fraction, stratify=labels, random_state=seed
        )
        return X[train], labels[train], (X[valid], labels[valid])

    def _rows(self, X: Array, labels: NDArray[np.int64]) -> Labelled:
        device = resolve_device(self.device)
        rows = torch.as_tensor(self.scaler_(X), dtype=torch.float32)
        return rows.to(device), torch.as_tensor(labels).to(device)

    def _train(self, network: Network, train: Labelled, valid: Labelled | None, seed: int, report: Reporter) -> None:
        rows, labels = train
        noise = torch.Generator(rows.device).manual_seed(seed)

        def loss(batch: Tensor) -> Tensor:
            return F.cross_entropy(network(rows[batch], noise), labels[batch])

        validate = None if valid is None else self._validation(network, *valid)
        self._minimise("fine-tune", loss, network, rows, "max_epochs", self.learning_rate, seed, report, validate)

    def _validation(self, network: Network, rows: Tensor, labels: Tensor) -> Callable[[], Tensor]:
        def validate() -> Tensor:
            logits = torch.cat([network(part).double() for part in rows.split(edge.ROWS_PER_CHUNK)])
            log_loss = F.cross_entropy(logits, labels)
            if self.monitor == "log_loss":
                return log_loss
            wrong = (logits.argmax(1) != labels).double().sum()
            return (wrong + log_loss / (1 + log_loss)) / len(labels)  # less than one error more

        return validate

    def _minimise(
        self,
        stage: str,
        loss: Callable[[Tensor], Tensor],
        module: nn.Module,
        rows: Tensor,
        epochs: str,
        learning_rate: float,
        seed: int,
        report: Reporter,
        validate: Callable[[], Tensor] | None = None,
        optimizer: str | None = None,
        schedule: str = "constant",
    ) -> None:
        """One stage of training on batches of row numbers; ``epochs`` names the parameter that says how many.

        ``optimizer`` and ``schedule`` are those of a stage before fine-tuning, which has its own.
        """
        last = stage == "fine-tune"
        how = Stage(
            stage,
            epochs_of(self, epochs, math.ceil(len(rows) / self.batch_size)),
            learning_rate,
            self.weight_decay if last else 0.0,
            optimizer or self._OPTIMIZER,
            self._SCHEDULE if last else schedule,
            self.n_iter_no_change,
        )
        parameters = module.groups(learning_rate) if isinstance(module, Network) else module.parameters()
        batches = row_batches(len(rows), self.batch_size, seed, rows.device)
        self.history_[stage] = how.run(loss, parameters, batches, validate, report)

    # --- scoring -----------------------------------------------------------------------------------

    def _logits(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return in_chunks(X, self.scaler_, next(self.model_.parameters()), self.model_)

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


def whole_number(estimator: Any, name: str, least: int, other: str = "") -> int:
    """A parameter that must be a whole number."""
    value = getattr(estimator, name)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"`{name}` must be a whole number of at least {least}{other}; got {value!r}.")
    return int(value)


def epochs_of(estimator: Any, name: str, n_steps: int) -> int:
    """A number of epochs; ``"auto"`` is enough for some thousand steps, within limits."""
    if getattr(estimator, name) == "auto":
        return auto_epochs("auto", n_steps, WANTED_STEPS, LEAST_EPOCHS)
    return whole_number(estimator, name, 0, " or 'auto'")


def at_least_0(estimator: Any, name: str) -> float:
    """A parameter that must be a number of at least 0."""
    value = getattr(estimator, name)
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise InputError(f"`{name}` must be a number of at least 0; got {value!r}.")
    return float(value)


def fraction_of(estimator: Any, name: str) -> float:
    """A parameter that must be at least 0 and below 1."""
    value = getattr(estimator, name)
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise InputError(f"`{name}` must be a number of at least 0 and below 1; got {value!r}.")
    return float(value)
