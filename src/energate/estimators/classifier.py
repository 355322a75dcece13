"""`EnergyClassifier`: classes with exact energies, on a trunk, of rows, or each its own (AES, cAES, mcAES)."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor

from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.cells import Cells, cells_of_older
from energate.estimators.completing import Seen, complete_rows, conditional
from energate.estimators.edge import (
    TABLE_SCALINGS,
    Array,
    Estimator,
    Examples,
    Scaler,
    UnitsBuilder,
    in_chunks,
)
from energate.estimators.frames import FROM_DTYPE, CellsMixin
from energate.estimators.kind import Round
from energate.estimators.kinds import kind_of
from energate.estimators.liking import LikingMixin, any_class, no_class_calibrated, not_calibrated, together
from energate.estimators.progress import reporting, with_callbacks
from energate.estimators.streamed import StreamMixin
from energate.estimators.threads import threads_for
from energate.kernels import computing
from energate.memory import MemoryUnits
from energate.tables import CodedRows, Stream
from energate.tables.drawn import StreamedRows
from energate.training import History
from energate.training.classes import FINE_TUNE_SCALE, ClassEnergies, LabelledRows, Likeliest

Numbers = float | Sequence[float]
QUICK_ROWS = 1000  # from so many on, `predict` looks in single precision first
#: what may differ between members: each a number, or one for every member
PER_MEMBER = (
    "learning_rate",
    "fine_tune_learning_rate",
    "weight_decay",
    "noise_level",
    "fine_tune_noise_level",
    "generative_weight",
)


def _no_breadth(_: Any) -> int:
    """Of a model that an older version saved."""
    return 0


def _no_skip(_: Any) -> Array:
    """Of a model that an older version saved."""
    return np.empty(0)


def _no_memory(_: Any) -> None:
    """Of a model that an older version saved."""


@dataclass(eq=False, repr=False)
class EnergyClassifier(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    CellsMixin,
    ClassifierMixin,  # type: ignore[misc]
    LikingMixin,
    StreamMixin,
    Estimator,
):
    """A generative classifier: every class has an auto-encoder with an exact energy, and the best-liked class wins.

    Parameters
    ----------
    units : ``"trunk"``, the choice for tables: layers that all classes share, with a head of hidden units for each, and
        members on folds of their own.  ``"memory"``: the rows of a class are its hidden units (`energate.MemoryUnits`),
        and nothing is trained; of the parameters below ``n_hidden``, ``scaling``, ``categorical_features``,
        ``class_weight`` and the last ones matter.  Or one auto-encoder per class, as in the paper: ``"mean"`` (AES),
        ``"covariance"`` (cAES), ``"mean-covariance"`` (mcAES), or a function from the number of models, the number of
        columns and a `torch.Generator` to hidden units.
    n_members, breadth, depth : of a trunk: members, whose energies are averaged (``"auto"``: 8, from 20,000 rows on 4;
        of more than some 15,000 columns, or columns times classes of two million, fewer), the width of the layers
        (``"auto"``: 128, 192 or 256 by the number of rows), and how many there are.
    reading : for mean-covariance, ``"sum"`` trains two auto-encoders and adds their energies (the paper's classifier),
        ``"shared"`` trains one with both kinds of units.
    n_hidden, n_factors : units and factors per class; ``"auto"`` is 8 units on a trunk (of more than 100 classes
        fewer, down to 2), else the number of columns, within 64 and 200, and fewer again from 2,000 columns on (400,000
        divided by their number, at least 64). Of a memory, units at most: of more rows of a class, so many centres with
        counts; ``"auto"`` is 20,000 divided by the number of classes, within 100 and 5,000.
    activation : a name in `energate.ACTIVATIONS`.
    scaling : ``"robust"`` (by median and quartiles, softly limited to 3 of their distances; columns of two values to 0
        and 1), ``"standard"`` (by the standard deviation, but at least an eighth of the range), ``"unit"`` (to [0, 1],
        with sigmoid outputs, but for a memory) or ``"none"``; ``"auto"`` is robust for a trunk and a memory, else
        standard.
    categorical_features : the columns that hold categories, as for scikit-learn's HistGradientBoostingClassifier:
        ``"from_dtype"`` (in a frame those of dtype category, and text that is no numbers; in an array none), None, or
        names, numbers or a mask of columns.  Every category is a column of 0 and 1 to the model, and so is "missing"
        where `fit` saw missing cells (NaN, None); a missing number counts as the median.  New categories are 0 in all.
    noise, noise_level : the corruption of `energate.corrupt`, ``"auto"`` of 0.2 for a trunk, else 0.3;
        ``fine_tune_noise_level`` is that of fine-tuning, if not the same.
    pretrain_epochs, max_epochs : epochs of pretraining and of fine-tuning; ``"auto"`` takes more on small data;
        ``max_epochs=0`` only calibrates.  A trunk is not pretrained, and its epoch is at least 12 steps.
    generative_weight : how much of the denoising loss per column stays in.  On a trunk it is that of all classes
        together, ``"auto"`` 1 / ``noise_level`` squared: a row that stays as noisy as it is then costs one half (of
        fewer than 25 columns less).  Of the other kinds, a sequence trains one member for each number, all in one
        program, and lets them count by the likelihood of the rows held out: an ensemble whose energy is exact again;
        ``"auto"`` is 0, 0, 0.03 and 0.1, where with up to 8 columns the second starts with sharp mean units and learns
        faster; 0.1 and 0 where rows times columns times classes are more than 2 million; 0.1 alone for more than 2,000
        columns; 0 alone for a function as ``units``.
    optimizer, learning_rate, fine_tune_learning_rate, weight_decay, batch_size : how `energate.minimise` steps; a trunk
        by AdamW, with ``learning_rate``.  Learning rates, decay and noise levels of the other kinds may be sequences,
        too, of one number for each member.
    early_stopping, validation_fraction, n_iter_no_change, validate_every : hold rows out (or take those given to
        `fit`), choose the epoch and calibrate on them.  Every member of a trunk holds out another fold, of at most
        this share; of the other kinds all hold out the same rows, unless these would be fewer than 50, or than 5 of
        every class: then every member holds out other rows, which only say how sure to be of all.  A memory leaves
        each row (at most 2,000 of them) out of its own class in turn, and needs none held out.
    learn_scale, start_scale : not for a trunk: also calibrate a scale for the energies of each part (mean, covariance),
        on the rows held out, and fine-tune from the small scale ``start_scale`` (None: from the calibrated one).
        ``learn_scale=False`` keeps the scale 1; use a lower ``fine_tune_learning_rate`` then.
    explainable : of the paper's kinds, to keep auto-encoders that reconstruct after fine-tuning, too: where it is left
        to rules, one member with a ``generative_weight`` of 10 and noise of 0.6; and fine-tuning from the calibrated
        scales.  It costs accuracy.  A trunk and a memory denoise anyway.
    class_weight : None, ``"balanced"``, or a dictionary.
    warm_start : let `fit` go on from the weights of the last call; a memory begins anew.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    model_ : the `energate.training.classes.ClassEnergies`.
    cells_ : what each column holds: the `energate.estimators.cells.Cells`, which make the columns that ``model_`` sees.
    scaler_ : what brings those to the scale of ``model_``.
    generative_weights_ : ``generative_weight`` of every member.
    breadth_ : the width of the layers of a trunk; 0 for other kinds.
    skip_ : what of every column of ``model_`` a trunk's reconstructions keep; empty for other kinds.
    n_units_ : the rows or centres of the largest class of a memory; None for other kinds.
    liking_ : sorted `score_samples` of the rows that were held out, or left out in turn, or else of all rows.
    calibration_energies_, calibration_log_p_ : of the rows given to `conformalize`: sorted `score_samples`, and
        log-probabilities of their classes, by class; empty before.
    n_rounds_ : calls of `partial_fit`.
    columns_, streamed_ : of a fit to a stream: what becomes of the columns of its files, `energate.tables.Columns`, and
        what was found in them.
    history_ : `energate.training.History` of the stages ``"pretrain"``, where there is one, and
        ``"fine-tune"``; empty for a memory.
    """

    _ADDED = {  # noqa: RUF012  by schema
        2: ("fine_tune_noise_level", "optimizer", "start_scale", "validate_every"),
        3: ("categorical_features", "n_members", "breadth", "depth"),
        6: ("explainable",),
    }
    # what is saved beside the model, and what of it older files lack
    _FITTED = (
        "classes_", "cells_", "scaler_", "generative_weights_", "breadth_", "skip_", "n_units_", "liking_", "n_rounds_",
        "calibration_energies_", "calibration_log_p_",
    )  # fmt: skip
    _FITTED_LATER = {  # noqa: RUF012  by schema
        3: {"cells_": cells_of_older, "breadth_": _no_breadth},
        4: {"skip_": _no_skip, "n_units_": _no_memory},
        6: {"calibration_energies_": not_calibrated, "calibration_log_p_": no_class_calibrated},
    }

    units: str | UnitsBuilder = "trunk"
    _: KW_ONLY
    n_members: int | str = "auto"
    breadth: int | str = "auto"
    depth: int = 2
    reading: str = "sum"
    n_hidden: int | str = "auto"
    n_factors: int | str = "auto"
    activation: str = "sigmoid"
    scaling: str = "auto"
    categorical_features: Any = FROM_DTYPE
    noise: str = "gaussian"
    noise_level: Numbers | str = "auto"
    fine_tune_noise_level: Numbers | None = None
    pretrain_epochs: int | str = "auto"
    max_epochs: int | str = "auto"
    generative_weight: Numbers | str = "auto"
    learning_rate: Numbers | str = "auto"
    fine_tune_learning_rate: Numbers = 1e-2
    weight_decay: Numbers | str = "auto"
    batch_size: int | str = "auto"
    optimizer: str = "adam"
    early_stopping: bool = True
    validation_fraction: float = 0.15
    n_iter_no_change: int = 25
    validate_every: int = 1
    learn_scale: bool = True
    start_scale: float | None = FINE_TUNE_SCALE
    explainable: bool = False
    class_weight: Any = None
    warm_start: bool = False

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, X_valid: Any = None, y_valid: Any = None
    ) -> "EnergyClassifier":
        """Train the energies of the classes, and calibrate them.

        ``X_valid`` and ``y_valid`` are rows to choose epochs and to calibrate on, in place of held-out ones.  ``X`` may
        be a stream that knows its ``target``, `energate.tables.open`, of more rows than memory holds; no ``y`` then.
        """
        if isinstance(X, Stream):
            X, y, X_valid, y_valid = self._of_stream(X, y, sample_weight, X_valid)
        else:
            self._forget_stream()
            edge.check_given(self, y)
        prepared = self._prepare(X, y, sample_weight, X_valid, y_valid, kind_of(self.units).least_valid)
        self._train(self._streamed(X, prepared[0]), *prepared[1:])
        return self

    def _of_stream(self, stream: Stream, y: Any, sample_weight: Any, X_valid: Any) -> tuple[Any, Any, Any, Any]:
        """Rows of a stream and their classes; the same to stop early on, unless memory holds all rows."""
        if kind_of(self.units).remembers:
            kinds = ", ".join(("trunk", *edge.UNIT_KINDS))
            raise InputError(f"More rows than memory can train {kinds}; got units={self.units!r}.")
        share = self.validation_fraction if self.early_stopping else 0.0
        beside = {"y": y, "sample_weight": sample_weight, "X_valid": X_valid}
        drawn = self._draw(stream, "classify", share, coded=True, **beside)
        if drawn.held_out is None:
            return drawn.rows, drawn.y, None, None
        return drawn.rows, drawn.y, CodedRows(drawn.held_out[0], drawn.columns), drawn.held_out[1]

    def _streamed(self, X: Any, train: LabelledRows) -> LabelledRows:
        """The rows to train on, with the way to others where ``X`` are some of more."""
        if not isinstance(X, StreamedRows):
            return train
        if len(train.v) != len(X.matrix) or kind_of(self.units).remembers:
            raise InputError("Rows of a stream need `X_valid`, no weights of 0, and units that are trained.")
        return replace(train, refill=lambda epoch: torch.as_tensor(self._scaled(X.refill(epoch))), times=X.times)

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_valid: Any = None,
        y_valid: Any = None,
        least_valid: float = 0,
    ) -> tuple[LabelledRows, LabelledRows | None, int]:
        """Check everything, and build the model: rows to train on, rows held out, and a seed."""
        if self.start_scale is not None and not self.start_scale > 0:
            raise InputError(f"`start_scale` must be None or above 0; got {self.start_scale!r}.")
        kind = kind_of(self.units)
        edge.check_options(kind.settled(self), scaling=TABLE_SCALINGS)
        known, cells = vars(self).get("classes_", []), vars(self).get("cells_")
        read = partial(self._read, sample_weight=sample_weight)
        others = {"X_valid": X_valid, "y_valid": y_valid, "least_valid": least_valid}
        given = edge.given_rows(self, X, y, sample_weight, self.class_weight, **others, forget="liking_", read=read)
        self.classes_: NDArray[Any] = given.classes
        if given.valid is not None and len(absent := np.setdiff1d(np.arange(len(self.classes_)), given.valid.labels)):
            raise InputError(f"`y_valid` must hold every class of `y`; {self.classes_[absent]} are missing.")
        if self.warm_start and np.array_equal(known, self.classes_) and self._fits(len(given.rows.X), cells):
            return *given.tensors(self.scaler_, self.model_.B.device), given.seed
        self.scaler_: Scaler = TABLE_SCALINGS[kind.settled(self).scaling](given.rows.X, given.rows.weight)
        train, valid = given.tensors(self.scaler_, edge.resolve_device(self.device))
        self._build(given.rows, given.seed)
        return train, valid, given.seed

    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "EnergyClassifier":
        """One more round of training on some rows; the first call needs all ``classes`` and sets the scaling.

        Runs ``max_epochs`` epochs of pretraining and fine-tuning (1 for ``"auto"``), without a validation split.  Rows
        of a memory join those that are there.
        """
        first = "model_" not in vars(self)
        X, y = self._read(X, y, reset=first, sample_weight=sample_weight)
        if first:
            self.classes_ = edge.find_classes(y if classes is None else classes)
        asked = kind_of(self.units).settled(self)
        edge.check_options(asked, scaling=TABLE_SCALINGS)
        rows = edge.weighted_rows(X, y, self.classes_, sample_weight, self.class_weight)
        seed = edge.draw_seed(self.random_state)
        if first:
            self.scaler_ = TABLE_SCALINGS[asked.scaling](rows.X, rows.weight)
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

    def _fits(self, n_rows: int, cells: Cells | None) -> bool:
        """Whether a model from an earlier call, which saw columns with these cells, can go on with these rows."""
        kind = kind_of(self.units)
        if kind.remembers or "model_" not in vars(self) or cells is None or not cells.same_columns(self.cells_):
            return False
        same_members = len(kind.weights(self, n_rows)) == self.model_.n_members
        return same_members and self.model_.autoencoders[0].width == self.cells_.width

    def _build(self, rows: Examples, seed: int) -> None:
        # Of a stream these are the rows in memory: the larger batches and layers of as many as it has did worse.
        kind, generator = kind_of(self.units), torch.Generator().manual_seed(seed)
        self.generative_weights_ = kind.weights(self, len(rows.X))
        self.breadth_ = kind.breadth(self, len(rows.X))
        self.skip_ = kind.skip(self, rows)
        self.n_units_: int | None = 1 if kind.remembers else None
        self.model_ = kind.build(self, generator)
        kind.start(self, rows, generator)
        self.model_.to(edge.resolve_device(self.device))
        self.n_rounds_ = 0

    def _untrained(self) -> ClassEnergies:
        self.cells_.check(self.n_features_in_)
        return kind_of(self.units).build(self, torch.Generator())

    def _train(self, train: LabelledRows, valid: LabelledRows | None, seed: int, epochs: int | None = None) -> None:
        """All of the training; ``epochs`` come from `partial_fit`."""
        kind = kind_of(self.units)
        n_epochs = kind.n_epochs(self, train, epochs)
        products = computing(self.precision, train.v.device)
        with threads_for(train.v.numel()), products, reporting(self, n_epochs, train.v, train.labels) as report:
            self.model_.float()
            self.history_: dict[str, History]
            self.history_, liked = kind.train(self, Round(train, valid, seed, epochs, report))
            self._settle(liked)

    def _settle(self, liked: Tensor) -> None:
        """What is done once the weights are final; ``liked`` are energies of rows held out, or else trained on."""
        self._forget_calibration()
        self.liking_ = np.sort(any_class(liked))
        edge.settle(self.model_, self.precision)

    # --- scoring -----------------------------------------------------------------------------------

    def _score(self, X: Any, score: Callable[[ClassEnergies, Tensor], Tensor]) -> Array:
        return self._of_rows(self._cells(X), partial(score, self.model_))

    def _of_rows(self, X: Array, score: Callable[[Tensor], Tensor]) -> Array:
        # With sigmoid outputs the energy ends at 0 and 1.
        ends = self.model_.autoencoders[0].visible.name == "sigmoid"
        inside = (lambda v: score(v.clamp(0, 1))) if ends else score
        return in_chunks(X, self._scaled, self.model_.B, inside, self.precision)

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
        return edge.log_softmax(self._logits(X))

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes: (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        X = self._cells(X)
        quick = len(X) >= QUICK_ROWS and self.model_.B.dtype == torch.float64
        score = Likeliest(self.model_) if quick else lambda v: self.model_.logits(v).argmax(1)
        return self.classes_[self._of_rows(X, score).astype(np.int64)]

    def transform(self, X: Any) -> Array:
        """Hidden units of all classes, side by side: (n, K * M)."""
        return self._score(X, ClassEnergies.encode)

    def complete(self, X: Any) -> Array:
        """Rows whose missing cells (NaN) are filled by the energy of all classes: (n, d), categories as their keys.

        By memories the conditional mean of their rows; by other units what the field leads to from the medians, and the
        categories that are liked most.  `score_samples` never falls below that with the medians in the holes.
        """
        rows, model = self._cells(X), self.model_
        ends = model.autoencoders[0].visible.name == "sigmoid"

        def energy(v: Tensor) -> Tensor:
            return together(model.energies(v.to(model.B)).double()).cpu()

        def means(v: Tensor, free: Tensor, some: slice) -> Tensor:  # noqa: ARG001
            units = model.autoencoders[0].groups[0]
            assert isinstance(units, MemoryUnits)
            found, log_sums = conditional(units, v.to(model.B), free.to(model.B.device))
            sure = model.beta[0, 0] * units.temperatures[:, :1] * log_sums  # (K, n)
            p = torch.softmax(sure + model.B[0].unsqueeze(1), 0)  # of the classes, given the cells that are there
            return (p.unsqueeze(2) * found).sum(0).detach().double().cpu()

        seen = Seen(self.cells_, self.scaler_, np.nan_to_num(self.cells_.fill), ends)
        return complete_rows(rows, seen, energy, means if kind_of(self.units).remembers else None)

    @property
    def _n_features_out(self) -> int:
        n_hidden = sum(group.n_hidden for part in self.model_.autoencoders for group in part.groups)
        return self.model_.n_members * len(self.classes_) * n_hidden
