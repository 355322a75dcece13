"""`PairScorer`: how well y goes with x, and the transformation from x to y, by one gated auto-encoder."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_array, check_is_fitted, validate_data
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import SCALINGS, Array, Estimator, Scaler, in_chunks
from energate.estimators.liking import PairedMixin, not_calibrated
from energate.estimators.progress import with_callbacks
from energate.estimators.scorer import Denoised, train_denoising
from energate.training import History, corrupt
from energate.units import GatedUnits, SymmetricGatedUnits

WANTED_STEPS = (3000, 300)  # of "auto" epochs, and epochs at most


def _y_given_x(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    return y, x


def _both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    return torch.cat([x, y], -1), None


@dataclass(frozen=True)
class Relation:
    """The units, and how a pair becomes their visible vector and context; y is the end of the visible vector."""

    units: type[GatedUnits] | type[SymmetricGatedUnits]
    arrange: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


#: relations by name
PAIR_RELATIONS = {
    "conditional": Relation(GatedUnits, _y_given_x),
    "symmetric": Relation(SymmetricGatedUnits, _both),
}


def _is_fitted(estimator: Any) -> bool:
    check_is_fitted(estimator)
    return True


@dataclass(eq=False, repr=False)
class PairScorer(PairedMixin, Estimator):
    """Scores pairs of rows by how well y goes with x, and finds and applies the transformation between them.

    A gated auto-encoder learns to restore noisy pairs; its hidden units see products of x and y only, and so encode
    what turns x into y, not what is in x.

    Parameters
    ----------
    relation : ``"conditional"`` models y when x is given: E(y|x), comparable between several y for one x only.
        ``"symmetric"`` models both: the joint E(x, y), comparable between all pairs.
    n_hidden, n_factors : hidden units and factors; ``"auto"`` follows the wider side: as many units as it has columns,
        within 16 and 100, and twice as many factors, within 32 and 300; fewer again from 26,000 columns of both on.
    activation : a name in `energate.ACTIVATIONS`.
    scaling : ``"standard"`` (real values), ``"unit"`` (to [0, 1], with sigmoid outputs; what lies beyond the range of
        the rows given to `fit` counts as its end) or ``"none"``.
    noise, noise_level : the corruption of `energate.corrupt`, of what is modelled: y, or both x and y.
    max_epochs : ``"auto"`` is as many as 3000 steps take, within 40 and 300.
    learning_rate, weight_decay, batch_size : of the optimiser, Adam.
    early_stopping, validation_fraction, n_iter_no_change : hold pairs out and keep the epoch with the lowest denoising
        loss on them, always under the same noise.  Where fewer than 10 pairs would be held out, all train.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : of X, as in scikit-learn.
    n_targets_in_ : the number of columns of Y.
    model_ : the `energate.Autoencoder`, with one model.
    scaler_x_, scaler_y_ : what brings columns to the scale of ``model_``.
    history_ : `energate.training.History`.
    """

    _FITTED = ("n_targets_in_", "scaler_x_", "scaler_y_", "calibration_energies_")  # what is saved beside the model
    _FITTED_LATER = {6: {"calibration_energies_": not_calibrated}}  # noqa: RUF012  by schema

    relation: str = "conditional"
    _: KW_ONLY
    n_hidden: int | str = "auto"
    n_factors: int | str = "auto"
    activation: str = "sigmoid"
    scaling: str = "standard"
    noise: str = "gaussian"
    noise_level: float = 0.5
    max_epochs: int | str = "auto"
    learning_rate: float = 5e-3
    weight_decay: float = 0.0
    batch_size: int = 100
    early_stopping: bool = True
    validation_fraction: float = 0.1
    n_iter_no_change: int = 15

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.two_d_labels = True
        tags.target_tags.multi_output = True
        return tags

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any) -> "PairScorer":
        """Train the auto-encoder to restore pairs from noisy copies.

        Row i of X (n, columns) and row i of y (n, other columns; or (n,) for one) are a pair.
        """
        edge.check_options(self, relation=PAIR_RELATIONS)
        Y = _rows_of("y", y)
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        _same_rows(X=X, y=Y)
        self.__dict__.pop("model_", None)  # not that of other columns
        seed = edge.draw_seed(self.random_state)
        self.n_targets_in_ = Y.shape[1]
        scaling, even = SCALINGS[self.scaling], np.ones(len(X))
        self.scaler_x_, self.scaler_y_ = scaling(X, even), scaling(Y, even)
        self.model_ = self._build(torch.Generator().manual_seed(seed)).to(edge.resolve_device(self.device))
        rows = torch.as_tensor(np.hstack([self.scaler_x_(X), self.scaler_y_(Y)])).to(self.model_.a)
        train, held_out = edge.hold_out(self, len(X), seed)
        self.calibration_energies_ = not_calibrated(self)
        self.history_: History = self._train(rows[train], None if held_out is None else rows[held_out], seed)
        return self

    def _build(self, generator: torch.Generator) -> Autoencoder:
        n_x, n_y = self.n_features_in_, self.n_targets_in_
        wanted = int(np.clip(2 * max(n_x, n_y), 32, 300))
        units = PAIR_RELATIONS[self.relation].units(
            1,
            n_y,
            n_x,
            edge.default_size(self.n_factors, edge.units_within(2 * (n_x + n_y), 32, wanted)),
            edge.default_size(self.n_hidden, int(np.clip(max(n_x, n_y), 16, 100))),
            self.activation,
            generator,
        )
        return Autoencoder([units], "sigmoid" if self.scaling == "unit" else "linear")

    def _untrained(self) -> Autoencoder:
        return self._build(torch.Generator())

    def _train(self, train: Tensor, valid: Tensor | None, seed: int) -> History:
        arrange, n_x = PAIR_RELATIONS[self.relation].arrange, self.n_features_in_

        def noisy(pairs: Tensor, generator: torch.Generator) -> Denoised:
            v, c = arrange(pairs[:, :n_x], pairs[:, n_x:])
            return v, c, corrupt(v, self.noise, self.noise_level, generator), torch.ones_like(v[:, 0])

        return train_denoising(self, noisy, train, valid, seed, WANTED_STEPS)

    # --- pairs ---------------------------------------------------------------------------------------

    def score_pairs(self, X: Any, Y: Any) -> Array:
        """The energy of each pair: (n,), higher is a better pair.

        Conditional: E(y|x), a log-density of y up to a constant that depends on x, so compare several y for one x
        only.  Symmetric: E(x, y), a log-density of the pair up to one constant.
        """
        return self._of_pairs(X, Y, lambda v, c: self.model_.energy(v, c)[0])

    def _pair_energy(self, X: Any, Y: Any) -> Array:
        return self.score_pairs(X, Y)

    # Only there once fitted, or scikit-learn would take the estimator for a function of X alone.
    @available_if(_is_fitted)  # type: ignore[untyped-decorator]
    def transform(self, X: Any, Y: Any = None) -> Array:
        """The hidden units, which encode the transformation from x to y: (n, M).  Without Y its mean stands in."""
        check_is_fitted(self)
        if Y is None:
            Y = np.broadcast_to(self.scaler_y_.offset, (_num_samples(X), self.n_targets_in_))
        return self._of_pairs(X, Y, lambda v, c: self.model_.encode(v, c)[0])

    def reconstruct(self, X: Any, Y: Any) -> Array | tuple[Array, Array]:
        """What the auto-encoder makes of each pair, in the original columns.

        Conditional: y (n, columns of Y).  Symmetric: x and y.
        """
        both = self._of_pairs(X, Y, lambda v, c: self.model_.reconstruct(v, c)[0])
        x, y = np.split(both, [both.shape[1] - self.n_targets_in_], axis=1)
        y = self.scaler_y_.undo(y)
        return (self.scaler_x_.undo(x), y) if x.shape[1] else y

    def apply(self, X: Any, Y: Any, X_new: Any) -> Array:
        """The transformation from x to y, applied to other rows: (n, columns of Y), in the original columns.

        Row by row, or one pair (X and Y of one row) for all rows of X_new.
        """
        X, Y = self._check(X, Y)
        X_new = validate_data(self, X_new, dtype=np.float64, reset=False)
        if len(X) == 1:
            X, Y = (np.broadcast_to(rows, (len(X_new), rows.shape[1])) for rows in (X, Y))
        if len(X) != len(X_new):
            raise InputError(
                f"`X_new` must have as many rows as `X` and `Y`, {len(X)}; got {len(X_new)}. "
                "Give one pair to apply it to all of `X_new`."
            )
        arrange, (group,) = PAIR_RELATIONS[self.relation].arrange, self.model_.groups

        def decode(x: Tensor, y: Tensor, x_new: Tensor) -> Tensor:
            h = group.encode(*arrange(x, y))
            # Only what x_new gives to the decoder reaches the y half.
            _, carry = group.preactivation(*arrange(x_new, y))
            p = group.decode(h, carry) + self.model_.a.unsqueeze(1)
            return self.model_.visible.f(p)[0, :, -self.n_targets_in_ :]

        return self.scaler_y_.undo(self._score((X, Y, X_new), decode))

    def _of_pairs(self, X: Any, Y: Any, score: Callable[[Tensor, Tensor | None], Tensor]) -> Array:
        arrange = PAIR_RELATIONS[self.relation].arrange
        return self._score(self._check(X, Y), lambda x, y: score(*arrange(x, y)))

    def _score(self, parts: tuple[Array, ...], score: Callable[..., Tensor]) -> Array:
        """Scale X, Y and perhaps more of X, and score them in chunks."""
        scalers = [self.scaler_x_, self.scaler_y_, self.scaler_x_][: len(parts)]
        scaler = Scaler(np.hstack([s.offset for s in scalers]), np.hstack([s.size for s in scalers]))
        widths = [part.shape[1] for part in parts]
        # With sigmoid outputs the energy ends at 0 and 1.
        inside = self.model_.visible.name == "sigmoid"

        def split(rows: Tensor) -> Tensor:
            return score(*(rows.clamp(0, 1) if inside else rows).split(widths, -1))

        return in_chunks(np.hstack(parts), scaler, self.model_.a, split, self.precision)

    def _check(self, X: Any, Y: Any) -> tuple[Array, Array]:
        X, Y = self._checked(X), _rows_of("Y", Y)
        if Y.shape[1] != self.n_targets_in_:
            raise InputError(f"`Y` must have {self.n_targets_in_} columns, as in fit; got shape {Y.shape}.")
        _same_rows(X=X, Y=Y)
        return X, Y


def _rows_of(name: str, Y: Any) -> Array:
    if Y is None:
        raise InputError(
            f"A pair requires {name} to be passed, but the target {name} is None. Give a row of it for each row of X."
        )
    Y = check_array(Y, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name=name)
    if Y.ndim not in (1, 2):
        raise InputError(f"`{name}` must be (n, columns), or (n,) for one column; got shape {Y.shape}.")
    return Y.reshape(len(Y), -1)  # (n,) is one column


def _same_rows(**parts: Array) -> None:
    (first, second), (a, b) = parts, parts.values()
    if len(a) != len(b):
        raise InputError(f"`{first}` and `{second}` must have as many rows each; got {len(a)} and {len(b)}.")
