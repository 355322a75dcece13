"""`EnergyScorer`: density-like scores and anomaly detection by the exact energy of one auto-encoder."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.conformal import discovery_threshold
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.cells import Cells
from energate.estimators.completing import Seen, complete_rows, conditional
from energate.estimators.edge import DISTANCE_SCALINGS, SCALINGS, Array, Estimator, UnitsBuilder, in_chunks
from energate.estimators.effort import check_work, work_of
from energate.estimators.frames import FROM_DTYPE, CellsMixin
from energate.estimators.liking import HeldOutMixin, not_calibrated
from energate.estimators.progress import reporting, with_callbacks
from energate.estimators.streamed import StreamMixin
from energate.estimators.threads import threads_for
from energate.kernels import computing
from energate.memory import MemoryUnits
from energate.tables import Stream
from energate.tables.drawn import Drawn
from energate.training import History, Stage, corrupt, drawn, gated_gradient, row_batches
from energate.training.loop import refilled
from energate.training.memory import blank, draw_asked, gather, remember

MEMORY = "memory"
FORGOTTEN = 1e-3  # the weight below which a row leaves the memory
APART = 0.1  # the share of rows, those furthest from the middle, that the energy of columns leaves out
FAR = 10.0  # standard deviations
WANTED_STEPS = (600, 600)  # of "auto" epochs, and epochs at most
#: rows or pairs as an auto-encoder sees them in training: v, its context, v with noise, and the weight of each (N,)
Denoised = tuple[Tensor, Tensor | None, Tensor, Tensor]


def _remembers(scorer: "EnergyScorer") -> bool:
    return scorer.units == MEMORY


def _no_memory(_: Any) -> None:
    """Of a model that an older version saved."""


def _not_soft(_: "EnergyScorer") -> bool:
    """The columns of a memory that an older version saved."""
    return False


def _cells_of_older(model: "EnergyScorer") -> Cells:
    """Columns of numbers, whose means stand for missing ones, as `complete` had it."""
    return Cells(model.scaler_.offset, np.zeros(model.n_features_in_, dtype=bool), {})


@dataclass(eq=False, repr=False)
class EnergyScorer(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    OutlierMixin,  # type: ignore[misc]
    HeldOutMixin,
    CellsMixin,
    StreamMixin,
    Estimator,
):
    """Scores rows by how much one auto-encoder likes them, and tells outliers from normal rows.

    The energy is a log-density up to a constant and a scale, smoothed by the temperatures of the memory or by the noise
    of training.

    Parameters
    ----------
    units : ``"memory"``: the rows themselves are the hidden units (`energate.MemoryUnits`), and nothing is trained; of
        the parameters below, the next three, ``scaling``, what sets the threshold, and the last ones matter.
        ``"mean"``, ``"covariance"`` or ``"mean-covariance"`` (both kinds): a denoising auto-encoder is trained.  Or a
        function from the number of models, which is 1, the number of columns and a `torch.Generator` to hidden units,
        which are trained.
    max_units : of a memory; of more rows, so many centres with counts are remembered.  Those of a stream are of a
        uniform sample of its rows, as many as memory holds; others set the threshold, and p-values are taken by them.
    column_weight : how much the energy of the columns counts in a memory beside that of whole rows: each of them alone,
        and, half as much, a Gaussian of all.  Columns are in robust units and softly limited, and the tenth of the rows
        furthest from the medians (or the share ``contamination``, where that is more) has no part in it.  It finds what
        is rare also where anomalies among the rows given to `fit` are like each other.  ``"auto"`` is 0.5, and 1 where
        ``contamination`` says that there are anomalies; 0: rows only.
    forgetting : the share of its weight that a remembered row loses with every row that `partial_fit` brings; those
        left with less than a thousandth leave the memory.
    n_hidden, n_factors : units and factors; ``"auto"`` follows the number of columns, within 32 and 300, and falls
        again from 26,000 columns on.
    activation : a name in `energate.ACTIVATIONS`.
    scaling : ``"standard"`` (real values; by the standard deviation, but at least an eighth of the range, and for
        constant columns the median of the others; for a memory at least a fifth of the range), ``"unit"`` (to [0, 1],
        for trained units with sigmoid outputs; what lies beyond the range of the rows given to `fit` then counts as its
        end) or ``"none"``.
    categorical_features : as for `EnergyClassifier`: ``"from_dtype"``, text and categories of a frame; or names,
        numbers or a mask of columns; or None.  A category is a column of 0 and 1 each; where cells were missing in
        `fit`, one such column says so, and the median stands for a missing number.
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
        A memory needs none held out: it leaves each row (at most 2,000 of them) out in turn.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : as in scikit-learn.
    cells_ : what each column holds: the `energate.estimators.cells.Cells`, which make the columns that ``model_`` sees.
    model_ : the `energate.Autoencoder`, with one model.
    scaler_ : what brings those to the scale of ``model_``.
    offset_ : the energy below which a row is an outlier.
    liking_ : sorted energies of the rows that were held out, or left out in turn, or else of all rows.
    calibration_energies_ : sorted energies of the rows given to `conformalize`; empty before.
    columns_, streamed_ : of a fit to a stream: what becomes of the columns of its files, `energate.tables.Columns`, and
        what was found in them.
    history_ : `energate.training.History`; empty for a memory.
    n_units_ : the rows or centres of a memory; None for trained units.
    soft_columns_ : whether the columns of a memory are softly limited; not in models that older versions saved.
    """

    # what is saved beside the model
    _FITTED = ("cells_", "scaler_", "n_units_", "soft_columns_", "liking_", "calibration_energies_", "offset_")
    _ADDED = {3: ("column_weight", "forgetting", "max_units"), 7: ("categorical_features",)}  # noqa: RUF012  by schema
    _FITTED_LATER = {  # noqa: RUF012  by schema
        3: {"n_units_": _no_memory},
        5: {"soft_columns_": _not_soft},
        6: {"liking_": not_calibrated, "calibration_energies_": not_calibrated},
        7: {"cells_": _cells_of_older},
    }

    units: str | UnitsBuilder = MEMORY
    _: KW_ONLY
    max_units: int = 5000
    column_weight: float | str = "auto"
    forgetting: float = 0.0
    n_hidden: int | str = "auto"
    n_factors: int | str = "auto"
    activation: str = "sigmoid"
    scaling: str = "standard"
    categorical_features: Any = FROM_DTYPE
    noise: str = "gaussian"
    noise_level: float = 0.3
    far_share: float = 0.1
    max_epochs: int | str = "auto"
    learning_rate: float = 1e-2
    weight_decay: float = 0.0
    batch_size: int = 100
    early_stopping: bool = True
    validation_fraction: float = 0.1
    n_iter_no_change: int = 50
    contamination: float | str = "auto"
    false_positive_rate: float | None = None

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> "EnergyScorer":  # noqa: ARG002
        """Remember the rows, or train the auto-encoder to restore them from noisy copies; set the threshold; no y.

        ``X`` may be a stream, `energate.tables.open`, of more rows than memory holds.
        """
        self._check_parameters()
        if isinstance(X, Stream):
            share = self.validation_fraction if self._holds_out else 0.0
            some = self._draw(X, "anomaly", share, coded=True)
            return self._learn(some.rows, some)
        self._forget_stream()
        return self._learn(X)

    @property
    def _holds_out(self) -> bool:
        """Whether rows of a stream are held out: a memory does not use most of them anyway."""
        return self.units == MEMORY or self.early_stopping

    def _learn(self, X: Any, some: Drawn | None = None) -> "EnergyScorer":
        """All of the fit, to rows that may be ``some`` of a stream's."""
        X, _ = self._read(X, None, reset=True)
        if len(X) < 2:
            raise InputError("`X` has 1 sample (row), while a minimum of 2 is required. Give `fit` more rows.")
        self.__dict__.pop("offset_", None)  # it comes last: not fitted until then
        seed, device = edge.draw_seed(self.random_state), edge.resolve_device(self.device)
        apart = None if some is None or some.held_out is None else self.cells_.expand(some.held_out[0])  # (n, D)
        if self.units == MEMORY:
            self.scaler_ = DISTANCE_SCALINGS[self.scaling](X, np.ones(len(X)))
            rows = torch.tensor(self.scaler_(X), device=device)  # a copy: where numpy's begins may change last bits
            return self._remember(rows, torch.ones_like(rows[:, 0]), seed, apart)
        self.n_units_: int | None = None
        self.soft_columns_ = False
        self.scaler_ = SCALINGS[self.scaling](X, np.ones(len(X)))
        self.model_ = self._build(torch.Generator().manual_seed(seed)).to(device)
        others = None if apart is None else torch.as_tensor(self.scaler_(apart)).to(self.model_.a)
        rows = torch.as_tensor(self.scaler_(X)).to(self.model_.a)
        held_out = None
        if some is None or some.refill is None:
            train, held_out = edge.hold_out(self, len(X), seed)
            rows, others = rows[train], None if held_out is None else rows[held_out]
        self.history_: History = self._train(rows, others, seed, some)
        seen = self._of_seen(X, self._energy)
        unseen = seen if held_out is None else seen[held_out]
        unseen = unseen if apart is None else self._of_seen(apart, self._energy)
        self._hold(unseen)
        # Training rows are liked more than fresh ones, and those held out are few.
        self.offset_ = self._threshold([seen, unseen], unseen, lambda: (seen, np.ones(len(seen))))
        return self

    @available_if(_remembers)  # type: ignore[untyped-decorator]
    @with_callbacks
    def partial_fit(self, X: Any, y: Any = None) -> "EnergyScorer":
        """Let rows join the memory, and others leave it, as ``forgetting`` says; temperatures and threshold follow.

        The first call is a `fit`; the scale of the columns stays as it was then.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        self._check_parameters()
        X, _ = self._read(X, None, reset=False)
        units = self.model_.groups[0]
        assert isinstance(units, MemoryUnits)
        weight = units.log_counts[0].exp() * (1 - self.forgetting) ** len(X)
        kept = weight > FORGOTTEN
        rows = torch.as_tensor(self.scaler_(X)).to(units.W)
        del self.offset_  # it comes last: not fitted until then
        return self._remember(
            torch.cat([units.W[0, kept], rows]),
            torch.cat([weight[kept], torch.ones_like(rows[:, 0])]),
            edge.draw_seed(self.random_state),
        )

    def _remember(self, rows: Tensor, weight: Tensor, seed: int, held_out: Array | None = None) -> "EnergyScorer":
        """Make a memory of scaled rows (N, D) that count as ``weight`` (N,) says, and set the threshold.

        On rows ``held_out`` (n, D), not scaled, or else on those that are left out in turn.
        """
        generator = torch.Generator().manual_seed(seed)
        if not float(rows.abs().max()) < (furthest := edge.furthest(rows.dtype)):
            raise InputError(
                f"With scaling={self.scaling!r} a memory takes values below {furthest:.0e}; `X` reaches up to "
                f"{float(rows.abs().max()):.1e}. Divide it by a number, or use scaling='standard'."
            )
        with reporting(self, 1, rows) as report:
            gathered = gather(rows, weight, self.max_units, generator)
            apart = APART if self.contamination == "auto" else max(APART, float(self.contamination))
            found = remember(gathered, draw_asked(gathered, generator), self._column_weight(), apart)
            report.tell("remember", f"[remember] {len(rows)} rows as {len(gathered.W)} units")
        self.model_, self.n_units_, self.history_ = found.model, len(gathered.W), History()
        self.soft_columns_ = bool(self._column_weight())
        unseen = found.left_out.cpu().numpy() if held_out is None else self._of_seen(held_out, self._energy)
        self._hold(unseen)

        def seen() -> tuple[Array, Array]:
            with torch.no_grad():
                return self._energy(rows).cpu().numpy(), weight.cpu().numpy()

        self.offset_ = self._threshold([unseen], unseen, seen)
        return self

    def _hold(self, unseen: Array) -> None:
        self.liking_, self.calibration_energies_ = np.sort(unseen), not_calibrated(self)

    def _column_weight(self) -> float:
        if self.column_weight == "auto":
            return 0.5 if self.contamination == "auto" else 1.0
        return float(self.column_weight)

    def _check_parameters(self) -> None:
        if not callable(self.units) and self.units not in (kinds := (MEMORY, *edge.UNIT_KINDS)):
            raise InputError(f"`units` must be one of {', '.join(kinds)}, or a function; got {self.units!r}.")
        edge.check_options(self)
        edge.whole_number(self, "max_units", 2)
        edge.fraction_of(self, "forgetting")
        if self.column_weight != "auto":
            edge.at_least_0(self, "column_weight")
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

    def _build(self, generator: torch.Generator) -> Autoencoder:
        width = self.cells_.width
        kinds = 2 if self.units == "mean-covariance" else 1
        wanted = edge.units_within(2 * kinds * width, 32, int(np.clip(2 * width, 32, 300)))
        units = edge.build_units(self, 1, width, wanted, generator)
        model = Autoencoder(units, "sigmoid" if self.scaling == "unit" else "linear")
        if (model.n_models, model.width) != (1, width):
            raise InputError(
                f"`units` must build units of 1 model for {width} columns; got {model.n_models} for {model.width}."
            )
        return model

    def _untrained(self) -> Autoencoder:
        self.cells_.check(self.n_features_in_)
        if self.units == MEMORY:
            assert self.n_units_ is not None
            return blank(self.cells_.width, self.n_units_, bool(self._column_weight()), self.soft_columns_)
        return self._build(torch.Generator())

    def _train(self, train: Tensor, valid: Tensor | None, seed: int, some: Drawn | None = None) -> History:
        sigmoid = self.model_.visible.name == "sigmoid"
        far = 0.0 if sigmoid else FAR * max(float(train.std(0).max()), self.noise_level)

        def noisy(v: Tensor, generator: torch.Generator) -> Denoised:
            seen = corrupt(v, self.noise, self.noise_level, generator)
            if not far * self.far_share:
                return v, None, seen, torch.ones_like(v[:, 0])
            share, size = drawn(torch.rand, (2, len(v), 1), 1, generator=generator, device=v.device)
            away = corrupt(torch.zeros_like(v), "gaussian", far, generator)
            is_far = share < self.far_share
            # Errors grow with the noise: with equal weights the few far rows would be all that training sees.
            # Much lower weights, and covariance units no longer learn to pull back.
            weight = torch.where(is_far, 1 / (1 + FAR * size), 1.0)
            return v, None, torch.where(is_far, v + size * away, seen), weight[:, 0]

        if some is None or some.refill is None:
            return train_denoising(self, noisy, train, valid, seed, WANTED_STEPS, "cosine")
        refill = some.refill
        others = Others(some.times, lambda epoch: torch.as_tensor(self._scaled(refill(epoch))))
        return train_denoising(self, noisy, train, valid, seed, WANTED_STEPS, "cosine", others)

    def _threshold(self, usual: list[Array], unseen: Array, seen: Callable[[], tuple[Array, Array]]) -> float:
        """The energy below which rows are outliers.

        From energies that show what is ``usual``, from those of rows ``unseen``, or from those of all rows that were
        ``seen`` and what each of them counts.
        """
        rate = self.false_positive_rate
        if rate is not None:
            energies = np.sort(unseen)
            # The k-th lowest of n: another normal row is below it with probability k / (n + 1).
            k = math.floor(rate * (len(energies) + 1) + 1e-9)
            if k == 0:
                more = "" if self.units == MEMORY else " or `validation_fraction`"
                raise InputError(
                    f"A `false_positive_rate` of {rate} takes at least {math.ceil(1 / rate) - 1} rows to be set on; "
                    f"there are {len(energies)}. Give `fit` more rows, or raise the rate{more}."
                )
            offset = energies[k - 1]
        elif self.contamination == "auto":
            offset = min(_three_deviations_below(energies) for energies in usual)
        else:
            energies, weight = seen()
            order = np.argsort(energies, kind="stable")
            below = np.cumsum(weight[order])
            share = float(self.contamination) * below[-1] + 1e-9
            offset = energies[order[min(int(np.searchsorted(below, share, side="right")), len(order) - 1)]]
        # Room for rounding, so that a row as good as the threshold is normal.
        return float(offset - 1000 * torch.finfo(self.model_.a.dtype).eps * (1 + abs(offset)))

    # --- scoring ------------------------------------------------------------------------------------

    def _energy(self, v: Tensor) -> Tensor:
        return self.model_.energy(v)[0]

    def _score(self, X: Any, score: Callable[[Tensor], Tensor]) -> Array:
        rows = self._cells(X)
        return self._of_seen(self.cells_.expand(rows), score)

    def _of_seen(self, X: Array, score: Callable[[Tensor], Tensor]) -> Array:
        """Of rows in the columns that the model sees: (n, D)."""
        # With sigmoid outputs the energy ends at 0 and 1.
        inside = (lambda v: score(v.clamp(0, 1))) if self.model_.visible.name == "sigmoid" else score
        return in_chunks(X, self.scaler_, self.model_.a, inside, self.precision)

    def score_samples(self, X: Any) -> Array:
        """The energy of each row, up to a constant its log-density: (n,), higher is more normal."""
        return self._score(X, self._energy)

    def decision_function(self, X: Any) -> Array:
        """The energy above the threshold ``offset_``: (n,), negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any, *, fdr: float | None = None) -> NDArray[np.int64]:
        """1 for normal rows, -1 for outliers: those below the threshold ``offset_``.

        With ``fdr``, the false discovery rate, those that Benjamini and Hochberg's procedure finds among the p-values
        of X instead: after `conformalize` at most this share of them is normal, in the mean.
        """
        if fdr is None:
            return np.where(self.decision_function(X) >= 0, 1, -1)
        p = self.p_values(X)
        return np.where(p <= discovery_threshold(p, fdr), -1, 1)

    def conformalize(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Take calibration rows, normal ones that had no part in `fit`, for `p_values`; no y.

        `fit` and `partial_fit` make another model, and forget them.
        """
        self._calibrate(X)
        return self

    def transform(self, X: Any) -> Array:
        """The hidden units: (n, M)."""
        return self._score(X, lambda v: self.model_.encode(v)[0])

    def reconstruct(self, X: Any) -> Array:
        """What the auto-encoder makes of each row, in the columns that it sees, unscaled: (n, D)."""
        return self.scaler_.undo(self._score(X, lambda v: self.model_.reconstruct(v)[0]))

    def complete(self, X: Any) -> Array:
        """Rows whose missing cells (NaN) are filled by the energy: (n, d), categories as their keys; others stay.

        By a memory the conditional mean of its rows; by trained units what the field leads to from the means.  The
        energy of the result is never below that of the row with the means (or medians) of the columns in its holes.
        """
        rows = self._cells(X)
        return self._completed(rows, self.cells_, self.scaler_.offset if self.cells_.plain else self.cells_.fill)

    def _completed(
        self, rows: Array, cells: Cells | None, fill: Array, own: bool = False, warmth: float = 1.0
    ) -> Array:
        """The same of rows that ``cells`` expand; with ``own`` they are the units, and each leaves itself out."""
        like, (units, *_) = self.model_.a, self.model_.groups
        seen = Seen(cells, self.scaler_, fill, self.model_.visible.name == "sigmoid")
        holes = np.flatnonzero(np.isnan(rows).any(1))
        itself = torch.as_tensor(holes) if own else None

        def means(v: Tensor, free: Tensor, some: slice) -> Tensor:
            assert isinstance(units, MemoryUnits)
            left_out = None if itself is None else itself[some].to(like.device)
            return conditional(units, v.to(like), free.to(like.device), left_out, warmth)[0][0].double().cpu()

        def energy(v: Tensor) -> Tensor:
            return self._energy(v.to(like)).double().cpu()

        return complete_rows(rows, seen, energy, means if self.units == MEMORY else None)

    @property
    def _n_features_out(self) -> int:
        return sum(group.n_hidden for group in self.model_.groups)


def _three_deviations_below(energies: Array) -> float:
    quartile, median = np.quantile(energies, [0.25, 0.5])
    return float(median - 3 * (1.4826 * (median - quartile) or 1.2533 * np.abs(energies - median).mean()))


@dataclass(frozen=True)
class Others:
    """Rows that memory does not hold, ``times`` as many in all: ``refill(epoch)`` gives as many as it does."""

    times: float
    refill: Callable[[int], Tensor]


def train_denoising(
    estimator: Any,
    noisy: Callable[[Tensor, torch.Generator], Denoised],
    train: Tensor,
    valid: Tensor | None,
    seed: int,
    wanted: tuple[int, int],
    schedule: str = "constant",
    others: Others | None = None,
) -> History:
    """Train ``estimator.model_`` to restore rows from ``noisy`` copies, as the estimator's parameters say.

    ``wanted`` steps are taken by ``max_epochs="auto"``, in so many epochs at most.  Where there are ``others``, every
    epoch is of other rows.
    """
    model, validate = estimator.model_, None
    draws = torch.Generator(train.device).manual_seed(seed)
    if valid is not None:  # always under the same noise
        parts, size = noisy(valid, draws), edge.ROWS_PER_CHUNK
        slices = [slice(start, start + size) for start in range(0, len(valid), size)]
        chunks = [[None if part is None else part[some] for part in parts] for some in slices]

        def validate() -> Tensor:
            return torch.cat([weight * model.loss(v, c, seen=seen) for v, c, seen, weight in chunks], -1).mean()

    is_written_out = gated_gradient.is_written_out(model)

    def loss(batch: Tensor) -> Tensor:
        v, c, seen, weight = noisy(train[batch], draws)
        if is_written_out:
            return gated_gradient.written_out(model, v, c, seen, weight)
        return (weight * model.loss(v, c, seen=seen)).mean()

    n_steps = math.ceil(len(train) / max(1, estimator.batch_size))
    epochs = edge.auto_epochs(estimator.max_epochs, n_steps, wanted[0], 40, wanted[1])
    if others is not None and estimator.max_epochs == "auto":  # as many passes through all rows
        epochs = math.ceil(others.times * epochs)
    shape = (len(train) * (1.0 if others is None else others.times), train.shape[1])
    n_seen = min(len(train), estimator.batch_size)
    check_work(estimator, train.device, shape, epochs * n_steps, n_seen, 2 * work_of(model))  # there and back
    rates, patience = (estimator.learning_rate, estimator.weight_decay), estimator.n_iter_no_change
    stage = Stage("denoise", epochs, *rates, schedule=schedule, patience=patience)
    batches = row_batches(len(train), estimator.batch_size, seed, train.device)
    if others is not None:
        batches = refilled(train, others.refill, batches)
    products = computing(estimator.precision, train.device)
    with threads_for(train.numel()), products, reporting(estimator, epochs, train) as report:
        history = stage.run(loss, model.parameters(), batches, validate, report, [draws], by_rows=True)
    edge.settle(model, estimator.precision)
    return history
