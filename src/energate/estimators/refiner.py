"""`EnergyRefiner`: any multi-label classifier, and an energy that knows which labels go together (GAES_XY, GAES_Y2)."""

from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import Tags, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators._gains import Gain, log_loss, sigmoid, standard_error
from energate.estimators.bases import all_scores, calibrated, fit_with_unseen_scores, label_scores, varying
from energate.estimators.edge import SCALINGS, Array, FittedMixin, default_size, draw_seed, resolve_device
from energate.estimators.mlp import LabelMLP
from energate.estimators.progress import CallbackSupportMixin, Reporter, with_callbacks
from energate.training import History
from energate.training.labels import (
    OBJECTIVES,
    RELATIONS,
    LabelRows,
    LabelSets,
    SetModel,
    ascend,
    label_autoencoder,
    neighbours,
    train_denoising,
    train_sets,
)

METHODS = ("sets", "ascent")
GATES = (0.0, 0.25, 0.5, 0.75, 1.0)
STEPS = (0, 1, 2, 3, 5, 10, 20)
CHUNK = 2**20  # scores of candidates at once: 4 MiB, near what a processor's cache holds
T_LIMIT = 12.0
FLAT = 1e-3  # the slope of scores that say nothing


class EnergyRefiner(ClassifierMixin, CallbackSupportMixin, FittedMixin, BaseEstimator):  # type: ignore[misc]
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
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    _INNER = "base"  # the parameter that holds another estimator, which is saved inside this one
    _FITTED = (  # what is saved beside the model and the base
        "classes_", "multilabel_", "varying_", "constant_", "slope_", "offset_", "scaler_", "n_sets_", "gate_",
        "n_steps_", "threshold_", "gain_", "verdict_",
    )  # fmt: skip

    def __init__(
        self,
        base: Any = None,
        relation: str = "yy",
        *,
        method: str = "sets",
        objective: str = "hamming",
        prefit: bool = False,
        cv: int = 5,
        n_hidden: int | str = "auto",
        n_factors: int | str = "auto",
        n_neighbours: int = 16,
        noise_level: float = 0.4,
        max_epochs: int = 24,
        learning_rate: float = 6e-3,
        weight_decay: float = 0.1,
        batch_size: int = 256,
        validation_fraction: float = 0.2,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.base = base
        self.relation = relation
        self.method = method
        self.objective = objective
        self.prefit = prefit
        self.cv = cv
        self.n_hidden = n_hidden
        self.n_factors = n_factors
        self.n_neighbours = n_neighbours
        self.noise_level = noise_level
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    # --- fitting -----------------------------------------------------------------------------------

    @with_callbacks
    def fit(self, X: Any, Y: Any) -> Self:
        """Fit the base, and on what it says of rows that it has not seen, the energy of the label vectors."""
        self._check_parameters()
        Y = Y.toarray() if issparse(Y) else Y
        X, Y = validate_data(self, X, Y, dtype=np.float64, multi_output=True)
        self.__dict__.pop("verdict_", None)  # it comes last: not fitted until then
        Y = self._encode(Y)
        seed, n_folds = draw_seed(self.random_state), min(self.cv, len(X))
        report = Reporter(self, (0 if self.prefit else n_folds) + self.max_epochs, X, Y)

        def said(fold: int) -> None:
            report.task("base fold", f"[base] fold {fold}/{n_folds}")

        if self.prefit:
            self.base_ = self.base
            self.varying_, self.constant_ = np.ones(Y.shape[1], dtype=np.bool_), Y[0]
            scores = self._scores(X)
        else:
            base = LabelMLP(device=self.device, random_state=seed) if self.base is None else self.base
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
        self.history_ = self._train(train, valid, seed, report)
        self._choose(valid)
        report.end()
        return self

    def _check_parameters(self) -> None:
        choices = {"relation": RELATIONS, "method": METHODS, "objective": OBJECTIVES}
        for name, names in choices.items():
            if getattr(self, name) not in names:
                raise InputError(f"`{name}` must be one of {', '.join(names)}; got {getattr(self, name)!r}.")
        if self.prefit and self.base is None:
            raise InputError("prefit=True needs a fitted `base`; got None.")
        for name, least in {"cv": 2, "n_neighbours": 0, "max_epochs": 0, "batch_size": 1}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise InputError(f"`{name}` must be at least {least}, and a whole number; got {value!r}.")
        share: Any = self.validation_fraction
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) < 1:
            raise InputError(f"`validation_fraction` must be between 0 and 1; got {share!r}.")

    def _encode(self, Y: Any) -> NDArray[np.float64]:
        """Labels as 0 and 1, (n, L); a single column of labels of any kind becomes one column for each of them."""
        self.classes_: Any
        binary = np.isin(Y, (0, 1)).all()
        if Y.ndim == 1 or (Y.shape[1] == 1 and not binary):
            Y = column_or_1d(Y, warn=True)
            check_classification_targets(Y)
            self.classes_ = np.unique(Y)
            if len(self.classes_) < 2:
                raise InputError(f"A classifier needs rows of at least 2 classes; got one class, {self.classes_}.")
            binarizer = LabelBinarizer().fit(Y)
            one = binarizer.transform(Y).astype(np.float64)
            self.multilabel_ = False
            return np.hstack([1 - one, one]) if len(self.classes_) == 2 else one
        if not binary:
            raise InputError("`Y` must hold only 0 and 1, one column for each label; binarise it first.")
        self.classes_ = [np.array([0, 1])] * Y.shape[1]
        self.multilabel_ = True
        return Y.astype(np.float64)

    def _label_rows(self, scores: Array, X: Array, Y: Array | None = None) -> LabelRows:
        device = resolve_device(self.device)
        t = np.clip(self.slope_ * scores + self.offset_, -T_LIMIT, T_LIMIT)
        x = self.scaler_(X)
        arrays = (t, np.zeros_like(t) if Y is None else Y, x)
        return LabelRows(*(torch.as_tensor(array, dtype=torch.float32).to(device) for array in arrays))

    def _train(self, train: LabelRows, valid: LabelRows, seed: int, report: Reporter) -> History:
        options: dict[str, Any] = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        options |= {"batch_size": self.batch_size, "seed": seed, "callback": partial(report, "energy")}
        sets = LabelSets.of(train.Y)
        self.n_sets_ = len(sets.Y)
        self.model_: Any = self._network(sets, torch.Generator().manual_seed(seed)).to(train.t.device)
        if self.method == "ascent":
            return train_denoising(self.model_, train, self.max_epochs, valid, self.noise_level, **options)
        options |= {"n_neighbours": self.n_neighbours, "objective": self.objective}
        return train_sets(self.model_, train, sets, self.max_epochs, valid, **options)

    def _network(self, sets: LabelSets, generator: torch.Generator) -> Any:
        sizes = default_size(self.n_factors, 32), default_size(self.n_hidden, 32)
        autoencoder = label_autoencoder(self.relation, sets.Y.shape[1], self.n_features_in_, *sizes, generator)
        return autoencoder if self.method == "ascent" else SetModel(autoencoder, sets)

    def _untrained(self) -> torch.nn.Module:
        n_sets = self.n_sets_
        empty = LabelSets(torch.zeros(n_sets, len(self.slope_)), torch.zeros(n_sets), torch.zeros(0, dtype=torch.long))
        found: torch.nn.Module = self._network(empty, torch.Generator())
        return found

    def _choose(self, valid: LabelRows) -> None:
        """How much to refine: what does best on the rows held out, where not refining comes first."""
        truth = valid.Y.cpu().numpy()
        kept = self._base_thresholds(valid, truth)
        found: list[tuple[float, Array, tuple[float, ...]]] = []
        for amount in GATES if self.method == "sets" else STEPS:
            self._set(amount, kept)
            p, best = self._refine(valid)
            right = self._right(self._decide(p, best), truth)
            share, loss = float(right.mean()), log_loss(p, truth)
            if self.method == "ascent":
                worth: tuple[float, ...] = (share,)
            elif self.objective == "hamming":  # few events, so that the log-loss tells more of a gate than the error
                worth = (-loss,)
            else:  # the best vector is the same under every gate but 0; their probabilities are not
                worth = (share, -loss)
            found.append((amount, right, worth))
        amount, right, _ = max(found, key=lambda each: each[2])  # of equals the first
        gain = 100 * (right - found[0][1])
        if gain.mean() <= 0:
            amount, gain = 0.0, np.zeros_like(gain)
        self._set(amount, kept)
        self.gain_ = Gain(float(gain.mean()), standard_error(gain), self.objective)
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
        own = np.where(self.slope_ > FLAT, sigmoid(np.clip(self.offset_, -T_LIMIT, T_LIMIT)), half)
        p = sigmoid(valid.t.double().cpu().numpy())
        gain = self._right(p > half, truth) - self._right(p > own, truth)
        return half if gain.mean() > standard_error(gain) else own

    def _set(self, amount: float, kept: Array | float = 0.5) -> None:
        """Refine this much: a share for ``"sets"``, steps for ``"ascent"``; at 0 the thresholds ``kept`` decide."""
        self.gate_, self.n_steps_ = (float(amount), 0) if self.method == "sets" else (float(amount > 0), int(amount))
        self.threshold_ = np.full(len(self.slope_), 0.5 if amount else kept)

    def _right(self, decided: NDArray[Any], truth: Array) -> Array:
        """The share of labels that are right in each row, or whether all are."""
        equal = decided == truth
        return equal.mean(1) if self.objective == "hamming" else equal.all(1).astype(np.float64)

    # --- predicting --------------------------------------------------------------------------------

    @torch.no_grad()
    def _refine(self, rows: LabelRows) -> tuple[Array, Array]:
        """Probabilities of the labels, and the best label vector: (n, L) each."""
        amount = self.gate_ if self.method == "sets" else float(self.n_steps_)
        plain = sigmoid(rows.t.double().cpu().numpy())
        if not amount:
            return plain, (plain > self.threshold_).astype(np.float64)
        size = self._rows_at_once(rows.t.shape[1])
        parts = [self._refine_some(rows.take(part)) for part in torch.arange(len(rows.t)).split(size)]
        refined, best = (np.concatenate(each) for each in zip(*parts, strict=True))
        return (1 - self.gate_) * plain + self.gate_ * refined, best

    def _rows_at_once(self, n_labels: int) -> int:
        """An ascent keeps a few values for each label, the sets one for each label vector."""
        return max(1, CHUNK // (len(self.model_.Y) if self.method == "sets" else 4 * n_labels))

    def _refine_some(self, rows: LabelRows) -> tuple[Array, Array]:
        if self.method == "ascent":
            p = torch.sigmoid(ascend(self.model_, rows.t, rows.x, [self.n_steps_])[0].double()).cpu().numpy()
            return p, (p > 0.5).astype(np.float64)
        near = neighbours(rows.t, self.n_neighbours) if self.n_neighbours else None
        beliefs = self.model_.beliefs(rows.t, rows.x, near)
        marginals, best = self.model_.marginals(beliefs, near), self.model_.best(beliefs, near)
        return marginals.double().cpu().numpy(), best.double().cpu().numpy()

    def _decide(self, p: Array, best: Array) -> Array:
        if self.objective == "subset" and self.method == "sets" and self.gate_:
            return best
        return (p > self.threshold_).astype(np.float64)

    def _outputs(self, X: Any) -> tuple[Array, Array]:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self._refine(self._label_rows(self._scores(X), X))

    def _scores(self, X: Array) -> Array:
        return all_scores(self.base_, X, self.varying_, self.constant_)

    def _check_base(self, base: Any) -> None:
        """Let a fitted base score an ordinary row: the mean; whatever it raises is raised."""
        label_scores(base, np.asarray(self.scaler_.offset, dtype=np.float64).reshape(1, -1), int(self.varying_.sum()))

    def refine(self, scores: Any, X: Any) -> tuple[Array, Array]:
        """Refine scores (n, L) of the base that were computed elsewhere: probabilities, and best label vectors."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        scores = np.asarray(scores, dtype=np.float64)
        if scores.shape != (len(X), len(self.slope_)) or not np.isfinite(scores).all():
            raise InputError(f"`scores` must be finite, ({len(X)}, {len(self.slope_)}); got {scores.shape}.")
        return self._refine(self._label_rows(scores, X))

    def predict_proba(self, X: Any) -> Array:
        """The probability of every label, calibrated: (n, L); of every class, adding up to 1, for a single column."""
        p = self._outputs(X)[0]
        return p if self.multilabel_ else p / np.maximum(p.sum(1, keepdims=True), 1e-300)

    def predict(self, X: Any) -> NDArray[Any]:
        """The labels of each row as 0 and 1, (n, L); or its class, for a single column."""
        p, best = self._outputs(X)
        if self.multilabel_:
            return self._decide(p, best).astype(np.int64)
        return self.classes_[p.argmax(1)]

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
            X, Y = validate_data(self, X, Y, dtype=np.float64, multi_output=True, reset=False)
            Y = self._known_labels(Y)
            rows = self._label_rows(self._scores(X), X, Y)
        size = self._rows_at_once(rows.Y.shape[1])
        with torch.no_grad():
            parts = [self._liking(rows.take(part)) for part in torch.arange(len(rows.Y)).split(size)]
        return torch.cat(parts).double().cpu().numpy()

    def _rows_of_labels(self, Y: Any) -> LabelRows:
        """Rows of which only the labels are known: the base has no opinion of them."""
        if self.relation == "xy":
            raise InputError('With relation="xy" energies belong to rows: use label_energy(X, Y).')
        Y = self._known_labels(Y.toarray() if issparse(Y) else np.asarray(Y))
        labels = torch.as_tensor(Y, dtype=torch.float32).to(resolve_device(self.device))
        return LabelRows(torch.zeros_like(labels), labels, labels.new_zeros(len(labels), 0))

    def _liking(self, rows: LabelRows) -> torch.Tensor:
        if self.method == "sets":
            return self.model_.log_probability(rows.t, rows.x, rows.Y)
        energy: torch.Tensor = self.model_.energy(rows.Y, rows.x if self.model_.context_width else None)[0]
        return energy

    def _known_labels(self, Y: Any) -> NDArray[np.float64]:
        """Labels as `fit` takes them, as 0 and 1."""
        if not self.multilabel_:
            Y = Y[:, 0] if Y.shape[1:] == (1,) else Y
            if Y.ndim != 1 or not np.isin(Y, self.classes_).all():
                raise InputError(f"`Y` must be (n,), with classes from {self.classes_}; got {Y.shape}.")
            return (Y[:, None] == self.classes_).astype(np.float64)
        if Y.shape[1:] != self.slope_.shape or not np.isin(Y, (0, 1)).all():
            raise InputError(f"`Y` must be (n, {len(self.slope_)}) of 0 and 1; got {Y.shape}.")
        return np.asarray(Y, dtype=np.float64)
