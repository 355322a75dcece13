"""`EnergyRefiner`: any multi-label classifier, and an energy that knows which labels go together (GAES_XY, GAES_Y2)."""

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.bases import all_scores, calibrated, fit_base, fit_with_unseen_scores, label_scores, varying
from energate.estimators.edge import SCALINGS, Array, Estimator, Gain, LabelsMixin
from energate.estimators.liking import PairedMixin, not_calibrated
from energate.estimators.mlp import LabelMLP
from energate.estimators.progress import Reporter, reporting, with_callbacks
from energate.estimators.streamed import StreamMixin, as_learned
from energate.estimators.threads import threads_for
from energate.kernels import computing
from energate.measures import log_loss, standard_error
from energate.tables import Stream
from energate.tables.drawn import Drawn
from energate.training import History
from energate.training.labels import (
    LABEL_RELATIONS,
    METHODS,
    OBJECTIVES,
    LabelRows,
    LabelSets,
    LabelTraining,
    Refinement,
    label_autoencoder,
)

T_LIMIT = 12.0
FLAT = 1e-3  # the slope of scores that say nothing


@dataclass(frozen=True)
class Refined:
    """What refining makes of rows: calibrated probabilities before and after, and what is predicted."""

    base: Array  # (n, L)
    refined: Array  # (n, L)
    predictions: NDArray[Any]  # (n, L) of 0 and 1; or classes (n,)
    steps: Array  # (T, n, L), the probabilities on the way, from the base's to the refined


@dataclass(eq=False, repr=False)
class EnergyRefiner(LabelsMixin, PairedMixin, StreamMixin, Estimator):
    """A multi-label classifier: a base's predictions, refined by the energy of the label vectors.

    Parameters
    ----------
    base : any multi-label classifier with ``decision_function`` or ``predict_proba``; None is `LabelMLP`.
    relation : what the energy looks at: ``"yy"`` the labels (GAES_Y2), ``"xy"`` labels and columns (GAES_XY).
    method : ``"sets"`` normalises the energy over label vectors, those seen in training, the base's own and
        ``n_neighbours`` that differ from it in one of its least certain labels (0: only those seen).  ``"ascent"``
        follows the energy uphill from the base's prediction (the paper's algorithm, with its sign put right).
    objective : what `fit` trains for and `predict` decides for: ``"hamming"`` single labels, ``"subset"`` whole label
        vectors.
    prefit : the base is fitted already, on other rows than those given to `fit`.
    cv : folds for the base's predictions on rows that it has not seen, on which everything else is trained.
    n_hidden, n_factors : of the auto-encoder over labels; ``"auto"`` is 32.
    noise_level : for ``"ascent"``: twice the share of labels flipped in training.
    max_epochs, learning_rate, weight_decay, batch_size : of its training, by AdamW.
    validation_fraction : rows on which the epoch, and how much to refine, are chosen.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per fold of the base and per epoch.

    Attributes
    ----------
    base_ : the fitted base.  Labels that are always or never on are kept from it: ``varying_`` says which it knows.
    gain_ : a `Gain` of the refined over the base's predictions, on the rows held out.
    gate_, n_steps_ : how much of the refined prediction is taken (``"sets"``), or how many steps (``"ascent"``); 0 is
        the base alone.
    threshold_ : the probabilities from which labels are predicted, (L,): one half, or if the base is kept where it
        decides itself, unless one half is better there by more than a standard error.
    verdict_ : what came out, in a sentence.
    n_sets_ : different label vectors in the rows trained on.
    model_ : the `energate.training.labels.SetModel`, or the `energate.Autoencoder`.
    columns_, streamed_ : of a fit to a stream: what becomes of the columns of its files, `energate.tables.Columns`, and
        what was found in them.
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    _INNER = "base"  # the parameter that holds another estimator, which is saved inside this one
    _FITTED = (  # what is saved beside the model and the base
        "classes_", "multilabel_", "varying_", "constant_", "slope_", "offset_", "scaler_", "n_sets_", "gate_",
        "n_steps_", "threshold_", "gain_", "verdict_", "calibration_energies_",
    )  # fmt: skip
    _FITTED_LATER = {6: {"calibration_energies_": not_calibrated}}  # noqa: RUF012  by schema

    base: Any = None
    relation: str = "yy"
    _: KW_ONLY
    method: str = "sets"
    objective: str = "hamming"
    prefit: bool = False
    cv: int = 5
    n_hidden: int | str = "auto"
    n_factors: int | str = "auto"
    n_neighbours: int = 16
    noise_level: float = 0.4
    max_epochs: int = 24
    learning_rate: float = 6e-3
    weight_decay: float = 0.1
    batch_size: int = 256
    validation_fraction: float = 0.2

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, Y: Any = None) -> Self:
        """Fit the base, and on what it says of rows that it has not seen, the energy of the label vectors.

        ``X`` may be a stream that knows its ``targets``, `energate.tables.open`, of more rows than memory holds; no
        ``Y`` then.  The base is fitted to half of the rows that memory holds, and the energy is trained on all others,
        which the base has not seen; a base that was fitted elsewhere (``prefit``) leaves all rows to the energy.
        """
        self._check_parameters()
        drawn = None
        if isinstance(X, Stream):
            drawn = self._draw(X, "multilabel", self.validation_fraction, apart=not self.prefit, Y=Y)
            X, Y = drawn.X, drawn.y
        else:
            self._forget_stream()
        Y = Y.toarray() if issparse(Y) else Y
        X, Y = validate_data(self, X, Y, dtype=np.float64, multi_output=True)
        self.__dict__.pop("verdict_", None)  # it comes last: not fitted until then
        Y = self._encode(Y)
        streamed = drawn is not None and drawn.refill is not None
        n_folds = min(self.cv, len(X))
        n_tasks = (0 if self.prefit or streamed else n_folds) + self.max_epochs
        products = computing(self.precision, edge.resolve_device(self.device))
        with threads_for(X.size), products, reporting(self, n_tasks, X, Y) as report:
            if drawn is None or drawn.refill is None:
                self._learn(X, Y, n_folds, report)
            else:
                self._learn_streamed(X, Y, drawn, report)
        return self

    def _learn(self, X: Array, Y: Array, n_folds: int, report: Reporter) -> None:
        seed = edge.draw_seed(self.random_state)

        def said(fold: int) -> None:
            report.tell("base fold", f"[base] fold {fold}/{n_folds}")

        if self.prefit:
            self._take_base(Y)
            scores = self._scores(X)
        else:
            base = self._base(seed)
            if isinstance(base, LabelMLP):
                base.check_effort(len(X), X.shape[1], Y.shape[1], n_folds + 1)
            self.base_, scores = fit_with_unseen_scores(base, X, Y, n_folds, seed, said)
            self.varying_, self.constant_ = varying(Y), Y[0]
        self.slope_, self.offset_ = calibrated(scores, Y)
        self.scaler_ = SCALINGS["standard"](X, np.ones(len(X)))
        rows = self._label_rows(scores, X, Y)
        order = np.random.RandomState(seed).permutation(len(X))
        n_valid = max(1, round(self.validation_fraction * len(X)))
        train, valid = (rows.take(torch.as_tensor(part)) for part in (order[n_valid:], order[:n_valid]))
        if len(train.t) == 0:
            raise InputError(f"`X` must have at least 2 rows; got {len(X)}.")
        self._train(train, valid, seed, report)

    def _base(self, seed: int) -> Any:
        return LabelMLP(device=self.device, random_state=seed) if self.base is None else self.base

    def _take_base(self, Y: Array) -> None:
        """Take a base that was fitted elsewhere."""
        self.base_ = self.base
        self.varying_, self.constant_ = np.ones(Y.shape[1], dtype=np.bool_), Y[0]

    def _learn_streamed(self, X: Array, Y: Array, drawn: Drawn, report: Reporter) -> None:
        """The same of a stream: the base has not seen the rows that the energy is trained on, which change."""
        assert drawn.held_out is not None
        assert drawn.refill is not None
        seed, others = edge.draw_seed(self.random_state), drawn.refill
        if drawn.apart is None:
            self._take_base(Y)
        else:
            X_base, Y_base = drawn.apart
            self.base_ = fit_base(self._base(seed), X_base, Y_base)
            self.varying_, self.constant_ = varying(Y_base), Y_base[0]
            note = f"the base is fitted to {len(X_base):,} rows, which memory holds, and the energy to all others."
            self.streamed_ = replace(self.streamed_, notes=(*self.streamed_.notes, note))
        scores = self._scores(X)
        self.slope_, self.offset_ = calibrated(scores, Y)
        self.scaler_ = SCALINGS["standard"](X, np.ones(len(X)))

        def refill(epoch: int) -> tuple[Tensor, Tensor]:
            X = others(epoch)
            found = self._label_rows(self._scores(X), X)
            return found.t, found.x

        X_valid, Y_valid = drawn.held_out
        valid = self._label_rows(self._scores(X_valid), X_valid, Y_valid)
        self._train(replace(self._label_rows(scores, X, Y), refill=refill), valid, seed, report)

    def _train(self, train: LabelRows, valid: LabelRows, seed: int, report: Reporter) -> None:
        """Train the energy, and choose how much to refine."""
        training = LabelTraining(self.max_epochs, self.learning_rate, self.weight_decay, self.batch_size, seed, report)
        sets = LabelSets.of(train.Y)
        self.n_sets_ = len(sets.Y)
        self.model_: Any = self._network(sets, torch.Generator().manual_seed(seed)).to(train.t.device)
        self.history_: History = self.refinement.train(self.model_, sets, train, valid, training)
        self._choose(valid)

    def _check_parameters(self) -> None:
        edge.check_choices(self, relation=LABEL_RELATIONS, method=METHODS, objective=OBJECTIVES)
        if self.prefit and self.base is None:
            raise InputError("prefit=True needs a fitted `base`; got None.")
        for name, least in {"cv": 2, "n_neighbours": 0, "max_epochs": 0, "batch_size": 1}.items():
            edge.whole_number(self, name, least)
        share: Any = self.validation_fraction
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
            raise InputError(f"`validation_fraction` must be between 0 and 1; got {share!r}.")

    def _encode(self, Y: Any) -> Array:
        """Labels as 0 and 1, (n, L); a single column of labels of any kind becomes one column for each of them."""
        self.classes_: Any
        binary = np.isin(Y, (0, 1)).all()
        self.multilabel_ = not (Y.ndim == 1 or (Y.shape[1] == 1 and not binary))
        if self.multilabel_:
            if not binary:
                raise InputError("`Y` must hold only 0 and 1, one column for each label; binarise it first.")
            self.classes_ = [np.array([0, 1])] * Y.shape[1]
            return Y.astype(np.float64)
        Y = column_or_1d(Y, warn=True)
        self.classes_ = edge.find_classes(Y)
        if len(self.classes_) < 2:
            raise InputError(f"A classifier needs rows of at least 2 classes; got one class, {self.classes_}.")
        return (Y[:, None] == self.classes_).astype(np.float64)

    def _label_rows(self, scores: Array, X: Array, Y: Array | None = None) -> LabelRows:
        device = edge.resolve_device(self.device)
        t = np.clip(self.slope_ * scores + self.offset_, -T_LIMIT, T_LIMIT)
        x = self.scaler_(X)
        arrays = (t, np.zeros_like(t) if Y is None else Y, x)
        return LabelRows(*(torch.as_tensor(array, dtype=torch.float32).to(device) for array in arrays))

    @property
    def refinement(self) -> Refinement:
        """The way to refine that ``method`` names."""
        return METHODS[self.method](self.objective, self.n_neighbours, self.noise_level)

    def _network(self, sets: LabelSets, generator: torch.Generator) -> torch.nn.Module:
        sizes = edge.default_size(self.n_factors, 32), edge.default_size(self.n_hidden, 32)
        autoencoder = label_autoencoder(self.relation, sets.Y.shape[1], self.n_features_in_, *sizes, generator)
        return self.refinement.build(autoencoder, sets)

    def _untrained(self) -> torch.nn.Module:
        n_sets = self.n_sets_
        empty = LabelSets(torch.zeros(n_sets, len(self.slope_)), torch.zeros(n_sets), torch.zeros(0, dtype=torch.long))
        return self._network(empty, torch.Generator())

    def _choose(self, valid: LabelRows) -> None:
        """How much to refine: what does best on the rows held out, where not refining comes first."""
        truth = valid.Y.cpu().numpy()
        kept = self._base_thresholds(valid, truth)
        found: list[tuple[float, Array, tuple[float, ...]]] = []
        way = self.refinement
        for amount in way.amounts:
            self._set(amount, kept)
            p, best = self._refine(valid)
            right = self._right(self._decide(p, best), truth)
            found.append((amount, right, way.worth(float(right.mean()), log_loss(p, truth))))
        amount, right, _ = max(found, key=lambda each: each[2])  # of equals the first
        gain = 100 * (right - found[0][1])
        if gain.mean() <= 0:
            amount, gain = 0.0, np.zeros_like(gain)
        self._set(amount, kept)
        self.gain_ = Gain(float(gain.mean()), standard_error(gain), self.objective)
        self.calibration_energies_ = not_calibrated(self)
        self.verdict_ = (
            f"Refining gains {self.gain_} on {len(gain)} rows held out."
            if amount
            else f"Refining gains nothing on {len(gain)} rows held out: the base is kept."
        )

    def _base_thresholds(self, valid: LabelRows, truth: Array) -> Array:
        """Where probabilities decide if nothing is refined: where the base does, or one half if that is clearly better.

        The base decides where its score is 0, but for labels of which its scores say nothing (slope near 0).  One half
        must be clearly better, as it was calibrated on copies of the base that were fitted to fewer rows.
        """
        half = np.full(len(self.slope_), 0.5)
        own = np.where(self.slope_ > FLAT, expit(np.clip(self.offset_, -T_LIMIT, T_LIMIT)), half)
        p = expit(valid.t.double().cpu().numpy())
        gain = self._right(p > half, truth) - self._right(p > own, truth)
        return half if gain.mean() > standard_error(gain) else own

    def _set(self, amount: float, kept: Array | float = 0.5) -> None:
        """Refine this much; at 0 the thresholds ``kept`` decide."""
        self.gate_, self.n_steps_ = self.refinement.amounts[amount]
        self.threshold_ = np.full(len(self.slope_), 0.5 if amount else kept)

    def _right(self, decided: NDArray[Any], truth: Array) -> Array:
        """The share of labels that are right in each row, or whether all are."""
        equal = decided == truth
        return equal.mean(1) if self.objective == "hamming" else equal.all(1).astype(np.float64)

    # --- predicting --------------------------------------------------------------------------------

    @torch.no_grad()
    def _refine(self, rows: LabelRows) -> tuple[Array, Array]:
        """Probabilities of the labels, and the best label vector: (n, L) each."""
        plain = expit(rows.t.double().cpu().numpy())
        if not self.gate_:
            return plain, (plain > self.threshold_).astype(np.float64)
        way = self.refinement
        parts = [way.refine(self.model_, part, self.n_steps_) for part in way.chunks(self.model_, rows)]
        refined, best = (torch.cat(each).double().cpu().numpy() for each in zip(*parts, strict=True))
        return (1 - self.gate_) * plain + self.gate_ * refined, best

    def _decide(self, p: Array, best: Array) -> Array:
        if self.refinement.best_vectors and self.gate_:
            return best
        return (p > self.threshold_).astype(np.float64)

    def _scores(self, X: Array) -> Array:
        return all_scores(self.base_, X, self.varying_, self.constant_)

    def _check_base(self, base: Any) -> None:
        """Let a fitted base score an ordinary row, the mean; whatever it raises is raised."""
        label_scores(base, np.asarray(self.scaler_.offset, dtype=np.float64).reshape(1, -1), int(self.varying_.sum()))

    def _rows_of_scores(self, X: Any, scores: Any = None) -> LabelRows:
        """Rows with the scores of the base, or with given ones."""
        X = self._checked(X)
        scores = self._scores(X) if scores is None else np.asarray(scores, dtype=np.float64)
        if scores.shape != (len(X), len(self.slope_)) or not np.isfinite(scores).all():
            raise InputError(f"`scores` must be finite, ({len(X)}, {len(self.slope_)}); got {scores.shape}.")
        return self._label_rows(scores, X)

    def refine(self, scores: Any, X: Any) -> tuple[Array, Array]:
        """Refine scores (n, L) of the base that were computed elsewhere: probabilities, and best label vectors."""
        return self._refine(self._rows_of_scores(X, scores))

    def follow(self, X: Any, scores: Any = None, *, steps: bool = True) -> Refined:
        """What becomes of the predictions of rows, from the base's to the refined; without ``steps``, only the ends.

        ``scores`` (n, L) are those of the base, if they were computed elsewhere.
        """
        rows = self._rows_of_scores(X, scores)
        refined, best = self._refine(rows)
        base = self._shares(expit(rows.t.double().cpu().numpy()))
        predictions = self._chosen(refined, best)
        refined = self._shares(refined)
        found = np.stack([base, refined])
        if steps and self.gate_:
            with torch.no_grad():
                found = self._shares(self.refinement.steps(self.model_, rows, (base, refined), self.n_steps_))
            found[0], found[-1] = base, refined  # to the last digit
        return Refined(base, refined, predictions, found)

    def _shares(self, p: Array) -> Array:
        """Probabilities of labels as they are; those of classes, of which each row has one, add up to 1."""
        return p if self.multilabel_ else p / np.maximum(p.sum(-1, keepdims=True), 1e-300)

    def _chosen(self, p: Array, best: Array) -> NDArray[Any]:
        return self._decide(p, best).astype(np.int64) if self.multilabel_ else self.classes_[p.argmax(1)]

    def predict_proba(self, X: Any) -> Array:
        """The probability of every label, calibrated: (n, L); of every class, adding up to 1, for a single column."""
        return self._shares(self._refine(self._rows_of_scores(X))[0])

    def predict(self, X: Any) -> NDArray[Any]:
        """The labels of each row as 0 and 1, (n, L); or its class, for a single column."""
        return self._chosen(*self._refine(self._rows_of_scores(X)))

    def label_energy(self, X: Any, Y: Any = None) -> Array:
        """How well each label vector goes with its row, higher is better: (n,); the lowest look wrong.

        With ``method="sets"`` its log-probability among the label vectors seen in training; otherwise its energy, which
        for ``relation="xy"`` compares label vectors of one row only.  ``label_energy(Y)``, for ``relation="yy"``, asks
        how well labels go together, whatever the row.
        """
        check_is_fitted(self)
        if Y is None:
            rows = self._rows_of_labels(X)
        else:
            Y = Y.toarray() if issparse(Y) else Y
            X = as_learned(self, X)
            X, Y = validate_data(self, X, Y, dtype=np.float64, multi_output=True, reset=False)
            Y = self._known_labels(Y)
            rows = self._label_rows(self._scores(X), X, Y)
        way = self.refinement
        with torch.no_grad():
            parts = [way.liking(self.model_, part) for part in way.chunks(self.model_, rows)]
        return torch.cat(parts).double().cpu().numpy()

    def _pair_energy(self, X: Any, Y: Any) -> Array:
        return self.label_energy(X, Y)

    def _rows_of_labels(self, Y: Any) -> LabelRows:
        """Rows of which only the labels are known: the base has no opinion of them."""
        if self.relation == "xy":
            raise InputError('With relation="xy" energies belong to rows: use label_energy(X, Y).')
        Y = self._known_labels(Y.toarray() if issparse(Y) else np.asarray(Y))
        labels = torch.as_tensor(Y, dtype=torch.float32).to(edge.resolve_device(self.device))
        return LabelRows(torch.zeros_like(labels), labels, labels.new_zeros(len(labels), 0))

    def _known_labels(self, Y: Any) -> Array:
        """Labels as `fit` takes them, as 0 and 1."""
        if not self.multilabel_:
            Y = Y[:, 0] if Y.shape[1:] == (1,) else Y
            if Y.ndim != 1 or not np.isin(Y, self.classes_).all():
                raise InputError(f"`Y` must be (n,), with classes from {self.classes_}; got {Y.shape}.")
            return (Y[:, None] == self.classes_).astype(np.float64)
        if Y.shape[1:] != self.slope_.shape or not np.isin(Y, (0, 1)).all():
            raise InputError(f"`Y` must be (n, {len(self.slope_)}) of 0 and 1; got {Y.shape}.")
        return np.asarray(Y, dtype=np.float64)
