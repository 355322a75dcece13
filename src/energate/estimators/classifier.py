"""`EnergyClassifier`: one auto-encoder per class, classifying by energy plus calibrated bias (AES, cAES, mcAES)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators.edge import (
    SCALINGS,
    Array,
    FittedMixin,
    LikingMixin,
    any_class,
    as_numbers,
    auto_epochs,
    build_units,
    check_options,
    default_size,
    draw_seed,
    encode_labels,
    find_classes,
    in_chunks,
    resolve_device,
    settle,
    usable_weights,
    valid_rows_given,
)
from energate.estimators.progress import CallbackSupportMixin, Reporter, with_callbacks
from energate.training import History
from energate.training.classes import (
    FINE_TUNE_ROWS,
    FINE_TUNE_SCALE,
    PRETRAIN_ROWS,
    ClassEnergies,
    LabelledRows,
    Training,
    fine_tune,
    pretrain,
    set_biases,
    sharp_rates,
    start_sharp,
    weigh_members,
)
from energate.units import HiddenUnits

UnitsBuilder = Callable[[int, int, torch.Generator], HiddenUnits | Sequence[HiddenUnits]]
Numbers = float | Sequence[float]
MIN_VALIDATION_ROWS = 5  # of every class; with fewer there is no validation split
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
FEW_COLUMNS = 8  # up to so many, the second of the default members starts with `start_sharp`


class EnergyClassifier(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClassifierMixin,  # type: ignore[misc]
    CallbackSupportMixin,  # type: ignore[misc]
    LikingMixin,
    FittedMixin,
    BaseEstimator,  # type: ignore[misc]
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
        `fit`), choose the epoch and calibrate on them.  Where the split could not hold 5 rows of every class, all rows
        train and calibrate.
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
    liking_ : sorted `score_samples` of the rows that were held out, or else trained on.
    n_rounds_ : calls of `partial_fit`.
    history_ : `energate.training.History` of the stages ``"pretrain"`` and ``"fine-tune"``.
    """

    _ADDED = {2: ("fine_tune_noise_level", "optimizer", "start_scale", "validate_every")}  # noqa: RUF012  by schema
    _FITTED = ("classes_", "scaler_", "generative_weights_", "liking_", "n_rounds_")  # what is saved beside the model

    def __init__(
        self,
        units: str | UnitsBuilder = "mean-covariance",
        *,
        reading: str = "sum",
        n_hidden: int | str = "auto",
        n_factors: int | str = "auto",
        activation: str = "sigmoid",
        scaling: str = "standard",
        noise: str = "gaussian",
        noise_level: Numbers = 0.3,
        fine_tune_noise_level: Numbers | None = None,
        pretrain_epochs: int | str = "auto",
        max_epochs: int | str = "auto",
        generative_weight: Numbers | str = "auto",
        learning_rate: Numbers = 3e-3,
        fine_tune_learning_rate: Numbers = 1e-2,
        weight_decay: Numbers = 0.0,
        batch_size: int = 100,
        optimizer: str = "adam",
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 25,
        validate_every: int = 1,
        learn_scale: bool = True,
        start_scale: float | None = FINE_TUNE_SCALE,
        class_weight: Any = None,
        warm_start: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.units = units
        self.reading = reading
        self.n_hidden = n_hidden
        self.n_factors = n_factors
        self.activation = activation
        self.scaling = scaling
        self.noise = noise
        self.noise_level = noise_level
        self.fine_tune_noise_level = fine_tune_noise_level
        self.pretrain_epochs = pretrain_epochs
        self.max_epochs = max_epochs
        self.generative_weight = generative_weight
        self.learning_rate = learning_rate
        self.fine_tune_learning_rate = fine_tune_learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.validate_every = validate_every
        self.learn_scale = learn_scale
        self.start_scale = start_scale
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_valid: Any = None, y_valid: Any = None
    ) -> "EnergyClassifier":
        """Pretrain one model per class, calibrate the biases, fine-tune everything.

        ``X_valid`` and ``y_valid`` are rows to choose epochs and to calibrate on, in place of held-out ones.
        """
        self._train(*self._prepare(X, y, sample_weight, X_valid, y_valid))
        return self

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any = None, X_valid: Any = None, y_valid: Any = None
    ) -> tuple[LabelledRows, LabelledRows | None, int]:
        """Check everything, and build the model: rows to train on, rows held out, and a seed."""
        if self.start_scale is not None and not self.start_scale > 0:
            raise InputError(f"`start_scale` must be None or above 0; got {self.start_scale!r}.")
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.__dict__.pop("liking_", None)  # it comes last: not fitted until then
        known = vars(self).get("classes_", [])
        self.classes_ = find_classes(y)
        X, labels, weight = self._encode(X, y, sample_weight)
        if len(absent := np.setdiff1d(np.arange(len(self.classes_)), labels)):
            raise InputError(f"Every class must have a row of weight above 0; {self.classes_[absent]} have none.")
        seed = draw_seed(self.random_state)
        if not (self.warm_start and np.array_equal(known, self.classes_) and self._fits(X)):
            self._build(X, weight, seed)
        given = self._given(X_valid, y_valid)
        if given is not None:
            return self._rows(X, labels, weight), given, seed
        return *self._split(X, labels, weight, seed), seed

    def _given(self, X_valid: Any, y_valid: Any) -> LabelledRows | None:
        """Validation rows that the caller brings."""
        if not valid_rows_given(self, X_valid, y_valid):
            return None
        X_valid, y_valid = validate_data(self, X_valid, y_valid, dtype=np.float64, reset=False)
        labels = encode_labels(y_valid, self.classes_)
        if len(absent := np.setdiff1d(np.arange(len(self.classes_)), labels)):
            raise InputError(f"`y_valid` must hold every class of `y`; {self.classes_[absent]} are missing.")
        return self._rows(X_valid, labels, np.ones(len(labels)))

    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "EnergyClassifier":
        """One more round of training on some rows; the first call needs all ``classes`` and sets the scaling.

        Runs ``max_epochs`` epochs of pretraining and fine-tuning (1 for ``"auto"``), without a validation split.
        """
        first = "model_" not in vars(self)
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        if first:
            self.classes_ = find_classes(y if classes is None else classes)
        X, labels, weight = self._encode(X, y, sample_weight)
        seed = draw_seed(self.random_state)
        if first:
            self._build(X, weight, seed)
        self.n_rounds_ += 1
        # A class without rows here gets one of weight 0: its reconstruction stays, other classes' rows push it away.
        absent = np.setdiff1d(np.arange(len(self.classes_)), labels)
        X, labels = np.concatenate([X, np.repeat(X[:1], len(absent), 0)]), np.concatenate([labels, absent])
        weight = np.concatenate([weight, np.zeros(len(absent))])
        epochs = 1 if self.max_epochs == "auto" else int(self.max_epochs)
        self._train(self._rows(X, labels, weight), None, seed + self.n_rounds_, epochs)
        return self

    def _fits(self, X: Array) -> bool:
        """Whether a model from an earlier call can go on with these rows."""
        if "model_" not in vars(self):
            return False
        same_members = len(self._weights(len(X))) == self.model_.n_members
        return same_members and self.model_.autoencoders[0].width == X.shape[1]

    def _encode(self, X: Array, y: Any, sample_weight: Any) -> tuple[Array, NDArray[np.int64], Array]:
        """The rows whose weight is not 0, their labels as numbers from 0, and their weights, of mean 1."""
        check_options(self)
        labels = encode_labels(y, self.classes_)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            weight = weight * compute_class_weight(self.class_weight, classes=self.classes_, y=y)[labels]
        used, weight = usable_weights(weight)
        return X[used], labels[used], weight

    def _build(self, X: Array, weight: Array, seed: int) -> None:
        self.scaler_ = SCALINGS[self.scaling](X, weight)
        self.generative_weights_ = self._weights(len(X))
        generator = torch.Generator().manual_seed(seed)
        self.model_ = self._model(generator)
        if self._has_sharp_member():
            start_sharp(self.model_, self.scaler_(X), weight, generator)
        self.model_.to(resolve_device(self.device))
        self.n_rounds_ = 0

    def _weights(self, n_rows: int) -> Array:
        """The weight of the denoising loss of every member."""
        if isinstance(self.generative_weight, str) and self.generative_weight == "auto":
            if callable(self.units):
                return np.zeros(1)
            small = n_rows * self.n_features_in_ * len(self.classes_) <= LARGE and self.n_features_in_ <= WIDE
            return np.array(AUTO_WEIGHTS if small else LARGE_WEIGHTS)
        found = as_numbers(self, "generative_weight").numpy()
        if not len(found) or not (found >= 0).all():
            raise InputError(f"`generative_weight` must be 'auto', or numbers from 0; got {self.generative_weight!r}.")
        return found

    def _has_sharp_member(self) -> bool:
        """Whether one of the default members starts with `start_sharp`."""
        default = isinstance(self.generative_weight, str) and len(self.generative_weights_) > 1
        return default and self.units != "covariance" and self.n_features_in_ <= FEW_COLUMNS

    def _per_member(self, name: str) -> float | torch.Tensor:
        """A parameter that is a number, or one for every member."""
        values = as_numbers(self, name)
        if len(values) not in (1, self.model_.n_members):
            raise InputError(
                f"`{name}` must be a number, or one for each of the {self.model_.n_members} members that "
                f"`generative_weight` asks for; got {len(values)}."
            )
        return float(values[0]) if len(values) == 1 else values

    def _untrained(self) -> ClassEnergies:
        return self._model(torch.Generator())

    def _model(self, generator: torch.Generator) -> ClassEnergies:
        visible = "sigmoid" if self.scaling == "unit" else "linear"
        n_classes = len(self.classes_)
        units = self._units(len(self.generative_weights_) * n_classes, self.n_features_in_, generator)
        return ClassEnergies([Autoencoder(groups, visible) for groups in units], n_classes)

    def _units(self, n_models: int, width: int, generator: torch.Generator) -> list[list[HiddenUnits]]:
        """The hidden units of each auto-encoder."""
        if callable(self.units):
            built = self.units(n_models, width, generator)
            return [[built] if isinstance(built, HiddenUnits) else list(built)]
        if self.reading not in ("sum", "shared"):
            raise InputError(f"`reading` must be 'sum' or 'shared'; got {self.reading!r}.")
        auto = int(np.clip(min(width, 400_000 // width), 64, 200))
        n_hidden, n_factors = default_size(self.n_hidden, auto), default_size(self.n_factors, auto)
        groups = build_units(self.units, n_models, width, n_hidden, n_factors, self.activation, generator)
        return [groups] if self.reading == "shared" else [[group] for group in groups]

    def _split(
        self, X: Array, labels: NDArray[np.int64], weight: Array, seed: int
    ) -> tuple[LabelledRows, LabelledRows | None]:
        counts = np.bincount(labels, minlength=len(self.classes_))
        if not self.early_stopping or counts.min() * self.validation_fraction < MIN_VALIDATION_ROWS:
            return self._rows(X, labels, weight), None
        train, valid = train_test_split(
            np.arange(len(X)), test_size=self.validation_fraction, stratify=labels, random_state=seed
        )
        return self._rows(X[train], labels[train], weight[train]), self._rows(X[valid], labels[valid], weight[valid])

    def _rows(self, X: Array, labels: NDArray[np.int64], weight: Array) -> LabelledRows:
        device = self.model_.B.device
        return LabelledRows(
            torch.as_tensor(self.scaler_(X), dtype=torch.float32).to(device),
            torch.as_tensor(labels).to(device),
            torch.as_tensor(weight / weight.mean(), dtype=torch.float32).to(device),
        )

    def _train(self, train: LabelledRows, valid: LabelledRows | None, seed: int, epochs: int | None = None) -> None:
        """The three stages; ``epochs`` come from `partial_fit`, whose rows may lack classes or hold few of them."""
        model, scale = self.model_.float(), self.learn_scale
        training = Training(
            batch_size=self.batch_size,
            learning_rate=self._per_member("learning_rate"),
            weight_decay=self._per_member("weight_decay"),
            noise=self.noise,
            noise_level=self._per_member("noise_level"),
            patience=self.n_iter_no_change,
            validate_every=self.validate_every,
            optimizer=self.optimizer,
            learn_scale=scale,
            seed=seed,
        )
        counts = torch.bincount(train.labels)
        steps = [
            math.ceil(int(counts.max()) / training.rows_per_class(model.n_classes, n))
            for n in (PRETRAIN_ROWS, FINE_TUNE_ROWS)
        ]
        n_pretrain = auto_epochs(self.pretrain_epochs, steps[0], 200, 10) if epochs is None else epochs
        n_fine_tune = auto_epochs(self.max_epochs, steps[1], 600, 20) if epochs is None else epochs
        report = Reporter(self, n_pretrain + n_fine_tune, train.v, train.labels)
        first = replace(training, epochs=n_pretrain)
        self.history_: dict[str, History] = {"pretrain": pretrain(model, train, first, valid, report)}
        rows = valid or train
        complete = epochs is None or int(counts.min()) >= MIN_VALIDATION_ROWS
        if n_fine_tune:
            if complete:
                set_biases(model, rows, scale)
            noise = "noise_level" if self.fine_tune_noise_level is None else "fine_tune_noise_level"
            rate = self._per_member("fine_tune_learning_rate")
            rate = sharp_rates(rate, model.n_members) if self._has_sharp_member() else rate
            second = replace(training, epochs=n_fine_tune, learning_rate=rate, noise_level=self._per_member(noise))
            weights = torch.as_tensor(self.generative_weights_)
            # Later rounds of `partial_fit` go on from the scales of the last one: weights would grow without end.
            start = self.start_scale if self.n_rounds_ <= 1 else None
            self.history_["fine-tune"] = fine_tune(model, train, second, weights, valid, report, start_scale=start)
        if complete:  # else the biases were only learned jointly
            losses = set_biases(model, rows, scale)
            if valid is not None:
                weigh_members(model, valid, losses)
        self._settle(rows)
        report.end()

    def _settle(self, rows: LabelledRows) -> None:
        """What is done once the weights are final; the rows are those held out, or else trained on."""
        with torch.no_grad():  # without gradients rows are scored in chunks
            self.liking_ = np.sort(any_class(self.model_.energies(rows.v)))
        settle(self.model_)

    # --- scoring -----------------------------------------------------------------------------------

    def _score(self, X: Any, score: Callable[[torch.Tensor], torch.Tensor]) -> Array:
        X = validate_data(self, X, dtype=np.float64, reset=False)
        # With sigmoid outputs the energy ends at 0 and 1.
        inside = (lambda v: score(v.clamp(0, 1))) if self.scaling == "unit" else score
        return in_chunks(X, self.scaler_, self.model_.B, inside)

    def _logits(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._score(X, self.model_.logits)

    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""
        check_is_fitted(self)
        return self._score(X, self.model_.energies)

    def scores(self, X: Any) -> tuple[Array, Array]:
        """Energies (n, K), and the same less a term that all classes share, whose softmax is P: both in one pass."""
        check_is_fitted(self)
        both = self._score(X, lambda v: torch.stack(self.model_.scores(v), 1))  # (n, 2, K)
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
        check_is_fitted(self)
        return self._score(X, self.model_.encode)

    @property
    def _n_features_out(self) -> int:
        n_hidden = sum(group.n_hidden for part in self.model_.autoencoders for group in part.groups)
        return self.model_.n_members * len(self.classes_) * n_hidden
