"""`EnergyScorer`: density-like scores and anomaly detection by the exact energy of one denoising auto-encoder."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import (
    SCALINGS,
    Array,
    FittedMixin,
    build_units,
    check_options,
    default_size,
    draw_seed,
    in_chunks,
    resolve_device,
)
from energate.estimators.progress import CallbackSupportMixin, train_autoencoder, with_callbacks
from energate.training import History, corrupt
from energate.units import HiddenUnits

UnitsBuilder = Callable[[int, int, torch.Generator], HiddenUnits | Sequence[HiddenUnits]]
MIN_VALIDATION_ROWS = 10  # with fewer there is no validation split
FAR = 10.0  # standard deviations
WANTED_STEPS = (600, 600)  # of "auto" epochs, and epochs at most


class EnergyScorer(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    OutlierMixin,  # type: ignore[misc]
    CallbackSupportMixin,  # type: ignore[misc]
    FittedMixin,
    BaseEstimator,  # type: ignore[misc]
):
    """Scores rows by how much one denoising auto-encoder likes them, and tells outliers from normal rows.

    The energy is a log-density up to a constant, smoothed by the noise of training.

    Parameters
    ----------
    units : ``"mean"``, ``"covariance"`` or ``"mean-covariance"`` (one auto-encoder with both kinds of units); or a
        function from the number of models, which is 1, the number of columns and a `torch.Generator` to hidden units.
    n_hidden, n_factors : units and factors; ``"auto"`` follows the number of columns.
    activation : a name in `energate.ACTIVATIONS`.
    scaling : ``"standard"`` (real values; by the standard deviation, but at least an eighth of the range, and for
        constant columns the median of the others), ``"unit"`` (to [0, 1], with sigmoid outputs; what lies beyond the
        range of the rows given to `fit` counts as its end) or ``"none"``.
    noise, noise_level : the corruption of `energate.corrupt`.
    far_share : the share of training rows that get far more noise, up to 10 standard deviations of the data, and count
        for less in turn: it makes the model pull back what is far away.  Without it the energy of covariance units may
        rise there without bound.
    max_epochs : ``"auto"`` takes more on small data.
    learning_rate, weight_decay, batch_size : of the optimiser, Adam; the rate falls to 0 along a cosine.
    early_stopping, validation_fraction, n_iter_no_change : hold rows out and keep the epoch with the lowest denoising
        loss on them, always under the same noise.  Where fewer than 10 rows would be held out, all rows train.
    contamination : which rows are outliers.  ``"auto"``: those whose energy is more than 3 s below the median m, where
        s = 1.4826 (m - lower quartile), or 1.2533 times the mean distance to m if that is 0, of the rows given to `fit`
        or of those held out, whichever is lower.  A fraction in (0, 0.5]: that share of the rows given to `fit`.
    false_positive_rate : instead of ``contamination``, a fraction in (0, 1): the share of normal rows to be called
        outliers, at most.  It is set on the held-out rows; without them on the training rows, which is optimistic.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : as in scikit-learn.
    model_ : the `energate.Autoencoder`, with one model.
    scaler_ : what brings columns to the scale of ``model_``.
    offset_ : the energy below which a row is an outlier.
    history_ : `energate.training.History`.
    """

    _FITTED = ("scaler_", "offset_")  # what is saved beside the model

    def __init__(
        self,
        units: str | UnitsBuilder = "mean-covariance",
        *,
        n_hidden: int | str = "auto",
        n_factors: int | str = "auto",
        activation: str = "sigmoid",
        scaling: str = "standard",
        noise: str = "gaussian",
        noise_level: float = 0.3,
        far_share: float = 0.1,
        max_epochs: int | str = "auto",
        learning_rate: float = 1e-2,
        weight_decay: float = 0.0,
        batch_size: int = 100,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 50,
        contamination: float | str = "auto",
        false_positive_rate: float | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.units = units
        self.n_hidden = n_hidden
        self.n_factors = n_factors
        self.activation = activation
        self.scaling = scaling
        self.noise = noise
        self.noise_level = noise_level
        self.far_share = far_share
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.contamination = contamination
        self.false_positive_rate = false_positive_rate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> "EnergyScorer":  # noqa: ARG002
        """Train the auto-encoder to reconstruct rows from noisy copies, and set the threshold; y is not used."""
        self._check_parameters()
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self.__dict__.pop("offset_", None)  # it comes last: not fitted until then
        seed = draw_seed(self.random_state)
        self.scaler_ = SCALINGS[self.scaling](X, np.ones(len(X)))
        self.model_ = self._build(X.shape[1], torch.Generator().manual_seed(seed)).to(resolve_device(self.device))
        train, held_out = X, None
        if self.early_stopping and len(X) * self.validation_fraction >= MIN_VALIDATION_ROWS:
            train, held_out = train_test_split(X, test_size=self.validation_fraction, random_state=seed)
        self._train(self._rows(train), None if held_out is None else self._rows(held_out), seed)
        self.offset_ = self._threshold(X, X if held_out is None else held_out)
        return self

    def _check_parameters(self) -> None:
        check_options(self)
        if not 0 <= self.far_share <= 1:
            raise InputError(f"`far_share` must be between 0 and 1; got {self.far_share!r}.")
        share, rate = self.contamination, self.false_positive_rate
        if share != "auto" and (share is None or isinstance(share, str) or not 0 < share <= 0.5):
            raise InputError(f"`contamination` must be 'auto' or a fraction in (0, 0.5]; got {share!r}.")
        if rate is not None and share != "auto":
            raise InputError(
                f"`contamination` and `false_positive_rate` both set the threshold; got {share!r} and {rate!r}. "
                "Leave one of them at its default."
            )
        if rate is not None and not 0 < rate < 1:
            raise InputError(f"`false_positive_rate` must be None or a fraction in (0, 1); got {rate!r}.")

    def _build(self, width: int, generator: torch.Generator) -> Autoencoder:
        units: HiddenUnits | Sequence[HiddenUnits]
        if callable(self.units):
            units = self.units(1, width, generator)
        else:
            auto = int(np.clip(2 * width, 32, 300))
            n_hidden, n_factors = default_size(self.n_hidden, auto), default_size(self.n_factors, auto)
            units = build_units(self.units, 1, width, n_hidden, n_factors, self.activation, generator)
        model = Autoencoder(units, "sigmoid" if self.scaling == "unit" else "linear")
        if (model.n_models, model.width) != (1, width):
            raise InputError(
                f"`units` must build units of 1 model for {width} columns; got {model.n_models} for {model.width}."
            )
        return model

    def _untrained(self) -> Autoencoder:
        return self._build(self.n_features_in_, torch.Generator())

    def _rows(self, X: Array) -> Tensor:
        return torch.as_tensor(self.scaler_(X)).to(self.model_.a)

    def _train(self, train: Tensor, valid: Tensor | None, seed: int) -> None:
        model = self.model_
        generator = torch.Generator(train.device).manual_seed(seed)
        far = 0.0 if model.visible.name == "sigmoid" else FAR * max(float(train.std(0).max()), self.noise_level)

        def noisy_copy(v: Tensor) -> tuple[Tensor, Tensor]:
            """The rows as the encoder sees them, (N, D), and the weight of each in the loss, (N,)."""
            seen = corrupt(v, self.noise, self.noise_level, generator)
            if not far * self.far_share:
                return seen, torch.ones_like(v[:, 0])
            share, size = torch.rand(2, len(v), 1, generator=generator, device=v.device)
            away = corrupt(torch.zeros_like(v), "gaussian", far, generator)
            is_far = share < self.far_share
            # Errors grow with the noise: with equal weights the few far rows would be all that training sees.
            # Much lower weights, and covariance units no longer learn to pull back.
            weight = torch.where(is_far, 1 / (1 + FAR * size), 1.0)
            return torch.where(is_far, v + size * away, seen), weight[:, 0]

        validate = None
        if valid is not None:
            parts = [part.split(edge.ROWS_PER_CHUNK) for part in (valid, *noisy_copy(valid))]
            chunks = list(zip(*parts, strict=True))

            def validate() -> Tensor:
                return torch.cat([weight * model.loss(v, seen=seen) for v, seen, weight in chunks], -1).mean()

        def loss(batch: Tensor) -> Tensor:
            v = train[batch]
            seen, weight = noisy_copy(v)
            return (weight * model.loss(v, seen=seen)).mean()

        self.history_: History = train_autoencoder(self, loss, validate, train, seed, WANTED_STEPS, "cosine")

    def _threshold(self, X: Array, normal: Array) -> float:
        """The energy below which rows are outliers, from the rows given to `fit` and those of them held out."""
        rate = self.false_positive_rate
        if rate is not None:
            energies = np.sort(self._score(normal, self._energy))
            # The k-th lowest of n: another normal row is below it with probability k / (n + 1).
            k = math.floor(rate * (len(energies) + 1) + 1e-9)
            if k == 0:
                raise InputError(
                    f"A `false_positive_rate` of {rate} takes at least {math.ceil(1 / rate) - 1} rows to be set on; "
                    f"there are {len(energies)}. Give `fit` more rows, or raise the rate or `validation_fraction`."
                )
            offset = energies[k - 1]
        elif self.contamination == "auto":
            # Training rows are liked more than fresh ones, and those held out are few.
            offset = min(_three_deviations_below(self._score(rows, self._energy)) for rows in (X, normal))
        else:
            energies = np.sort(self._score(X, self._energy))
            offset = energies[math.floor(float(self.contamination) * len(energies) + 1e-9)]
        # Room for rounding, so that a row as good as the threshold is normal.
        return float(offset - 1000 * torch.finfo(self.model_.a.dtype).eps * (1 + abs(offset)))

    # --- scoring ------------------------------------------------------------------------------------

    def _energy(self, v: Tensor) -> Tensor:
        return self.model_.energy(v)[0]

    def _score(self, X: Array, score: Callable[[Tensor], Tensor]) -> Array:
        # With sigmoid outputs the energy ends at 0 and 1.
        inside = (lambda v: score(v.clamp(0, 1))) if self.model_.visible.name == "sigmoid" else score
        return in_chunks(X, self.scaler_, self.model_.a, inside)

    def _check(self, X: Any) -> Array:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def score_samples(self, X: Any) -> Array:
        """The energy of each row, up to a constant its log-density: (n,), higher is more normal."""
        return self._score(self._check(X), self._energy)

    def decision_function(self, X: Any) -> Array:
        """The energy above the threshold ``offset_``: (n,), negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 for normal rows, -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def transform(self, X: Any) -> Array:
        """The hidden units: (n, M)."""
        return self._score(self._check(X), lambda v: self.model_.encode(v)[0])

    def reconstruct(self, X: Any) -> Array:
        """What the auto-encoder makes of each row, in the original columns: (n, D)."""
        rows = self._score(self._check(X), lambda v: self.model_.reconstruct(v)[0])
        return rows * self.scaler_.size + self.scaler_.offset

    @property
    def _n_features_out(self) -> int:
        return sum(group.n_hidden for group in self.model_.groups)


def _three_deviations_below(energies: Array) -> float:
    quartile, median = np.quantile(energies, [0.25, 0.5])
    return float(median - 3 * (1.4826 * (median - quartile) or 1.2533 * np.abs(energies - median).mean()))
