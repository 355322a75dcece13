"""`EnergyClassifier`: one auto-encoder per class, classifying by energy plus calibrated bias (AES, cAES, mcAES)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import SCALINGS, Array, Estimator, Examples, LikingMixin, Scaler, UnitsBuilder, in_chunks
from energate.estimators.progress import reporting, with_callbacks
from energate.training import History
from energate.training.classes import (
    FINE_TUNE_ROWS,
    FINE_TUNE_SCALE,
    PRETRAIN_ROWS,
    ClassEnergies,
    LabelledRows,
    Stages,
    Training,
    rows_per_class,
    start_sharp,
    train_classes,
)

Numbers = float | Sequence[float]
#: what may differ between members: each a number, or one for every member
PER_MEMBER = (
    "learning_rate",
    "fine_tune_learning_rate",
    "weight_decay",
    "noise_level",
    "fine_tune_noise_level",
    "generative_weight",
)
#: how much of the denoising loss the members keep: on small data, and on large
AUTO_WEIGHTS, LARGE_WEIGHTS, LARGE, WIDE = (0.0, 0.0, 0.03, 0.1), (0.1,), 2_000_000, 2000
MIN_SPLIT_ROWS = 50  # with fewer to hold out, one split for all members is too small to choose epochs and biases by
FEW_COLUMNS = 8  # up to so many, the second of the default members starts with `start_sharp`


@dataclass(eq=False, repr=False)
class EnergyClassifier(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClassifierMixin,  # type: ignore[misc]
    LikingMixin,
    Estimator,
):
    """A generative classifier: one auto-encoder with an exact energy per class.

    Parameters
    ----------
    units : ``"mean"`` (AES), ``"covariance"`` (cAES) or ``"mean-covariance"`` (mcAES); or a function from the number of
        models, the number of columns and a `torch.Generator` to hidden units.
    reading : for mean-covariance, ``"sum"`` trains two auto-encoders and adds their energies (the paper's classifier),
        ``"shared"`` trains one with both kinds of units.
    n_hidden, n_factors : units and factors per class; ``"auto"`` is the number of columns, within 64 and 200,
        and fewer again from 2,000 columns on (400,000 divided by their number, at least 64).
    activation : a name in `energate.ACTIVATIONS`.
    scaling : ``"standard"`` (real values; by the standard deviation, but at least an eighth of the range), ``"unit"``
        (to [0, 1], with sigmoid outputs) or ``"none"``.
    noise, noise_level : the corruption of `energate.corrupt`; ``fine_tune_noise_level`` is that of fine-tuning, if not
        the same.
    pretrain_epochs, max_epochs : epochs of pretraining and of fine-tuning; ``"auto"`` takes more on small data;
        ``max_epochs=0`` only calibrates.
    generative_weight : how much of the denoising loss per column stays in during fine-tuning.  A sequence trains one
        member for each number, all in one program, and lets them count by the likelihood of the rows held out: an
        ensemble whose energy is exact again.  ``"auto"`` is 0, 0, 0.03 and 0.1, where with up to 8 columns the second
        starts with sharp mean units and learns faster; 0.1 alone for more than 2,000 columns or where rows times
        columns times classes are more than 2 million; 0 alone for a function as ``units``.
    optimizer, learning_rate, fine_tune_learning_rate, weight_decay, batch_size : how `energate.minimise` steps.
        Learning rates, decay and noise levels may be sequences, too, of one number for each member.
    early_stopping, validation_fraction, n_iter_no_change, validate_every : hold rows out (or take those given to
        `fit`), choose the epoch and calibrate on them.  Where the split could not hold 50 rows, and 5 of every class,
        every member holds out other rows, which only say how sure to be of all.
    learn_scale, start_scale : also calibrate a scale for the energies of each part (mean, covariance), on the rows held
        out, and fine-tune from the small scale ``start_scale`` (None: from the calibrated one).  ``learn_scale=False``
        keeps the scale 1; use a lower ``fine_tune_learning_rate`` then.
    class_weight : None, ``"balanced"``, or a dictionary.
    warm_start : let `fit` go on from the weights of the last call.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    model_ : the `energate.training.classes.ClassEnergies`.
    scaler_ : what brings columns to the scale of ``model_``.
    generative_weights_ : ``generative_weight`` of every member.
    liking_ : sorted `score_samples` of the rows that all members held out, or else of all rows.
    n_rounds_ : calls of `partial_fit`.
    history_ : `energate.training.History` of the stages ``"pretrain"`` and ``"fine-tune"``.
    """

    _ADDED = {2: ("fine_tune_noise_level", "optimizer", "start_scale", "validate_every")}  # noqa: RUF012  by schema
    _FITTED = ("classes_", "scaler_", "generative_weights_", "liking_", "n_rounds_")  # what is saved beside the model

    units: str | UnitsBuilder = "mean-covariance"
    _: KW_ONLY
    reading: str = "sum"
    n_hidden: int | str = "auto"
    n_factors: int | str = "auto"
    activation: str = "sigmoid"
    scaling: str = "standard"
    noise: str = "gaussian"
    noise_level: Numbers = 0.3
    fine_tune_noise_level: Numbers | None = None
    pretrain_epochs: int | str = "auto"
    max_epochs: int | str = "auto"
    generative_weight: Numbers | str = "auto"
    learning_rate: Numbers = 3e-3
    fine_tune_learning_rate: Numbers = 1e-2
    weight_decay: Numbers = 0.0
    batch_size: int = 100
    optimizer: str = "adam"
    early_stopping: bool = True
    validation_fraction: float = 0.15
    n_iter_no_change: int = 25
    validate_every: int = 1
    learn_scale: bool = True
    start_scale: float | None = FINE_TUNE_SCALE
    class_weight: Any = None
    warm_start: bool = False

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_valid: Any = None, y_valid: Any = None
    ) -> "EnergyClassifier":
        """Pretrain one model per class, calibrate the biases, fine-tune everything.

        ``X_valid`` and ``y_valid`` are rows to choose epochs and to calibrate on, in place of held-out ones.
        """
        self._train(*self._prepare(X, y, sample_weight, X_valid, y_valid, least_valid=MIN_SPLIT_ROWS))
        return self

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_valid: Any = None,
        y_valid: Any = None,
        least_valid: int = 0,
    ) -> tuple[LabelledRows, LabelledRows | None, int]:
        """Check everything, and build the model: rows to train on, rows held out, and a seed."""
        if self.start_scale is not None and not self.start_scale > 0:
            raise InputError(f"`start_scale` must be None or above 0; got {self.start_scale!r}.")
        edge.check_options(self)
        known = vars(self).get("classes_", [])
        valid_rows = {"X_valid": X_valid, "y_valid": y_valid, "least_valid": least_valid}
        given = edge.given_rows(self, X, y, sample_weight, self.class_weight, **valid_rows, forget="liking_")
        self.classes_: NDArray[Any] = given.classes
        if given.valid is not None and len(absent := np.setdiff1d(np.arange(len(self.classes_)), given.valid.labels)):
            raise InputError(f"`y_valid` must hold every class of `y`; {self.classes_[absent]} are missing.")
        if self.warm_start and np.array_equal(known, self.classes_) and self._fits(len(given.rows.X)):
            return *given.tensors(self.scaler_, self.model_.B.device), given.seed
        self.scaler_: Scaler = SCALINGS[self.scaling](given.rows.X, given.rows.weight)
        train, valid = given.tensors(self.scaler_, edge.resolve_device(self.device))
        self._build(given.rows, given.seed)
        return train, valid, given.seed

    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "EnergyClassifier":
        """One more round of training on some rows; the first call needs all ``classes`` and sets the scaling.

        Runs ``max_epochs`` epochs of pretraining and fine-tuning (1 for ``"auto"``), without a validation split.
        """
        first = "model_" not in vars(self)
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        if first:
            self.classes_ = edge.find_classes(y if classes is None else classes)
        edge.check_options(self)
        rows = edge.weighted_rows(X, y, self.classes_, sample_weight, self.class_weight)
        seed = edge.draw_seed(self.random_state)
        if first:
            self.scaler_ = SCALINGS[self.scaling](rows.X, rows.weight)
            self._build(rows, seed)
        self.n_rounds_ += 1
        # A class without rows here gets one of weight 0: its reconstruction stays, other classes' rows push it away.
        absent = np.setdiff1d(np.arange(len(self.classes_)), rows.labels)
        X = np.concatenate([rows.X, np.repeat(rows.X[:1], len(absent), 0)])
        weight = np.concatenate([rows.weight, np.zeros(len(absent))])
        rows = Examples(X, np.concatenate([rows.labels, absent]), weight)
        epochs = 1 if self.max_epochs == "auto" else int(self.max_epochs)
        self._train(rows.tensors(self.scaler_, self.model_.B.device), None, seed + self.n_rounds_, epochs)
        return self

    def _fits(self, n_rows: int) -> bool:
        """Whether a model from an earlier call can go on with these rows."""
        if "model_" not in vars(self):
            return False
        same_members = len(self._weights(n_rows)) == self.model_.n_members
        return same_members and self.model_.autoencoders[0].width == self.n_features_in_

    def _build(self, rows: Examples, seed: int) -> None:
        self.generative_weights_ = self._weights(len(rows.X))
        sharp, generator = self._has_sharp_member(), torch.Generator().manual_seed(seed)
        self.model_ = self._model(generator)
        if sharp:
            start_sharp(self.model_, self.scaler_(rows.X), rows.weight, generator)
        self.model_.to(edge.resolve_device(self.device))
        self.n_rounds_ = 0

    def _weights(self, n_rows: int) -> Array:
        """The weight of the denoising loss of every member."""
        if isinstance(self.generative_weight, str) and self.generative_weight == "auto":
            if callable(self.units):
                return np.zeros(1)
            small = n_rows * self.n_features_in_ * len(self.classes_) <= LARGE and self.n_features_in_ <= WIDE
            return np.array(AUTO_WEIGHTS if small else LARGE_WEIGHTS)
        found = edge.as_numbers(self, "generative_weight").numpy()
        if not len(found) or not (found >= 0).all():
            raise InputError(f"`generative_weight` must be 'auto', or numbers from 0; got {self.generative_weight!r}.")
        return found

    def _has_sharp_member(self) -> bool:
        """Whether one of the default members starts with `start_sharp`."""
        default = isinstance(self.generative_weight, str) and len(self.generative_weights_) > 1
        return default and self.units != "covariance" and self.n_features_in_ <= FEW_COLUMNS

    def _untrained(self) -> ClassEnergies:
        return self._model(torch.Generator())

    def _model(self, generator: torch.Generator) -> ClassEnergies:
        n_classes, width = len(self.classes_), self.n_features_in_
        if not callable(self.units):
            edge.check_choices(self, reading=("sum", "shared"))
        auto = int(np.clip(min(width, 400_000 // width), 64, 200))
        groups = edge.build_units(self, len(self.generative_weights_) * n_classes, width, auto, generator)
        parts = [groups] if callable(self.units) or self.reading == "shared" else [[group] for group in groups]
        visible = "sigmoid" if self.scaling == "unit" else "linear"
        return ClassEnergies([Autoencoder(part, visible) for part in parts], n_classes)

    def _stages(self, counts: Tensor, seed: int, epochs: int | None = None) -> Stages:
        """How training goes, by the parameters and the numbers of rows of the classes; ``epochs`` as in `_train`."""
        n_members, n_classes = self.model_.n_members, self.model_.n_classes
        sizes = (rows_per_class(self.batch_size, n_classes, least) for least in (PRETRAIN_ROWS, FINE_TUNE_ROWS))
        steps = [math.ceil(int(counts.max()) / size) for size in sizes]
        n_pretrain = edge.auto_epochs(self.pretrain_epochs, steps[0], 200, 10) if epochs is None else epochs
        n_fine_tune = edge.auto_epochs(self.max_epochs, steps[1], 600, 20) if epochs is None else epochs
        noise = "noise_level" if self.fine_tune_noise_level is None else "fine_tune_noise_level"
        training = Training(
            n_pretrain,
            self.batch_size,
            learning_rate=edge.per_member(self, "learning_rate", n_members),
            weight_decay=edge.per_member(self, "weight_decay", n_members),
            noise=self.noise,
            noise_level=edge.per_member(self, "noise_level", n_members),
            patience=self.n_iter_no_change,
            validate_every=self.validate_every,
            optimizer=self.optimizer,
            learn_scale=self.learn_scale,
            seed=seed,
        )
        rate, level = (edge.per_member(self, name, n_members) for name in ("fine_tune_learning_rate", noise))
        held_out = self.early_stopping and self.learn_scale and epochs is None
        return Stages(
            training,
            replace(training, epochs=n_fine_tune, learning_rate=rate, noise_level=level),
            torch.as_tensor(self.generative_weights_),
            # Later rounds of `partial_fit` go on from the scales of the last one: weights would grow without end.
            start_scale=self.start_scale if self.n_rounds_ <= 1 else None,
            calibrate=epochs is None or int(counts.min()) >= edge.MIN_CLASS_ROWS,
            sharp=self._has_sharp_member(),
            own_fraction=self.validation_fraction if held_out else 0.0,
        )

    def _train(self, train: LabelledRows, valid: LabelledRows | None, seed: int, epochs: int | None = None) -> None:
        """The three stages; ``epochs`` come from `partial_fit`, whose rows may lack classes or hold few of them."""
        stages = self._stages(torch.bincount(train.labels), seed, epochs)
        with reporting(self, stages.pretrain.epochs + stages.fine_tune.epochs, train.v, train.labels) as report:
            self.history_: dict[str, History] = train_classes(self.model_.float(), train, stages, valid, report)
            self._settle(valid or train)

    def _settle(self, rows: LabelledRows) -> None:
        """What is done once the weights are final; the rows are those held out, or else trained on."""
        with torch.no_grad():  # without gradients rows are scored in chunks
            self.liking_ = np.sort(edge.any_class(self.model_.energies(rows.v)))
        edge.settle(self.model_)

    # --- scoring -----------------------------------------------------------------------------------

    def _score(self, X: Any, score: Callable[[ClassEnergies, Tensor], Tensor]) -> Array:
        X = self._checked(X)
        model = self.model_
        # With sigmoid outputs the energy ends at 0 and 1.
        inside = (lambda v: score(model, v.clamp(0, 1))) if self.scaling == "unit" else partial(score, model)
        return in_chunks(X, self.scaler_, model.B, inside)

    def _logits(self, X: Any) -> Array:
        return self._score(X, ClassEnergies.logits)

    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""
        return self._score(X, ClassEnergies.energies)

    def scores(self, X: Any) -> tuple[Array, Array]:
        """Energies (n, K), and the same less a term that all classes share, whose softmax is P: both in one pass."""
        both = self._score(X, lambda model, v: torch.stack(model.scores(v), 1))  # (n, 2, K)
        return both[:, 0], both[:, 1]

    def decision_function(self, X: Any) -> Array:
        """Calibrated energies (n, K), less a term that all classes share; for two classes their difference (n,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_log_proba(self, X: Any) -> Array:
        """Log-probabilities of the classes: (n, K)."""
        logits = self._logits(X)
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes: (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        best = self._logits(X).argmax(axis=1)
        return self.classes_[best]

    def transform(self, X: Any) -> Array:
        """Hidden units of all classes, side by side: (n, K * M)."""
        return self._score(X, ClassEnergies.encode)

    @property
    def _n_features_out(self) -> int:
        n_hidden = sum(group.n_hidden for part in self.model_.autoencoders for group in part.groups)
        return self.model_.n_members * len(self.classes_) * n_hidden
