"""The edge between scikit-learn and torch: what estimators are given, checked, and rows that go through in chunks."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from energate.errors import InputError
from energate.estimators.progress import CallbackSupportMixin
from energate.estimators.streamed import as_learned
from energate.kernels import kind_of_products, scoring
from energate.tables.room import check_room
from energate.training import NOISE
from energate.training.classes import LabelledRows
from energate.training.processor import keep_memory
from energate.units import CovarianceUnits, HiddenUnits, MeanUnits

Array = NDArray[np.float64]
UnitsBuilder = Callable[[int, int, torch.Generator], HiddenUnits | Sequence[HiddenUnits]]
ROWS_PER_CHUNK = 8192
LEAST_SPREAD, DISTANCE_SPREAD = 0.125, 0.2  # of the range of a column
#: Soft columns end at this many spreads; values beyond FURTHEST count as that, and INNERMOST of the limit is undone.
SOFT_LIMIT, FURTHEST, INNERMOST = 3.0, 1e100, 0.99
UNIT_KINDS = ("mean", "covariance", "mean-covariance")
MOST_A_ROW = 16_000_000  # multiplications with the weights that "auto" makes: of more columns there are fewer units
MIN_VALID_ROWS, MIN_CLASS_ROWS = 10, 5  # with fewer, in all or of a class, there is no validation split


def resolve_device(device: str) -> torch.device:
    """The torch device of a name; ``"auto"`` is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"`device` must be 'auto', 'cpu', 'cuda' or 'cuda:N'; got {device!r}.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"`device` is {device!r}, but no CUDA device is available. Use device='auto' or 'cpu'.")
    return found


def draw_seed(random_state: Any) -> int:
    """A seed for torch from scikit-learn's ``random_state``."""
    return int(check_random_state(random_state).randint(2**31 - 1))


class FittedMixin:
    """An estimator is fitted once all that is saved is there: not if training was interrupted."""

    _FITTED: tuple[str, ...]

    def __sklearn_is_fitted__(self) -> bool:
        return {"model_", *self._FITTED} <= vars(self).keys()


@dataclass(eq=False, repr=False, kw_only=True)
class Estimator(CallbackSupportMixin, FittedMixin, BaseEstimator):  # type: ignore[misc]
    """What all estimators share; their parameters are the fields of a dataclass, whose ``__init__`` scikit-learn reads.

    Parameters
    ----------
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    precision : of products of matrices: ``"exact"``, ``"fast"`` (float32 on a CPU, TF32 on a GPU) or ``"lowest"``
        (bfloat16, with sums in float32); `energate.set_precision` changes it of a fitted model.
    random_state : an integer makes results repeatable.
    verbose : 1 prints a line per epoch.
    """

    _ADDED: ClassVar[dict[int, tuple[str, ...]]] = {6: ("precision",)}  # by schema

    device: str = "auto"
    precision: str = "exact"
    random_state: Any = None
    verbose: int = 0

    def _checked(self, X: Any) -> Array:
        """Rows to score, of as many columns as `fit` saw."""
        check_is_fitted(self)
        return validate_data(self, as_learned(self, X), dtype=np.float64, reset=False)


class LabelsMixin(ClassifierMixin):  # type: ignore[misc]
    """A classifier of rows that carry several labels at once."""

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def log_softmax(logits: Array) -> Array:
    """Log-probabilities of classes, (n, K); scipy's asks many questions first, which single rows notice."""
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def logsumexp(values: Array) -> Array:
    """The logarithm of the sum of exponentials of each row, (n,); likewise."""
    found: Array = np.logaddexp.reduce(values, axis=1)
    return found


@dataclass(frozen=True)
class Scaler:
    """Columns as ``z = (x - offset) / size``, those that are ``soft`` as z / sqrt(1 + (z / 3)^2), which stays within 3.

    It is saved with the model.
    """

    offset: Array
    size: Array
    soft: NDArray[np.bool_] | None = None

    def __call__(self, X: Array) -> Array:
        with np.errstate(over="ignore"):  # rows far from those of `fit`; `in_chunks` brings them back
            z = (X - self.offset) / self.size
        if self.soft is None:
            return z
        near = np.minimum(np.maximum(z, -FURTHEST), FURTHEST)  # np.clip asks more questions, which single rows notice
        return np.where(self.soft, near / np.sqrt(1 + (near / SOFT_LIMIT) ** 2), z)

    def undo(self, v: Array) -> Array:
        """Scaled rows (..., D) in the user's units; what a soft column cannot reach is brought back to just before."""
        if self.soft is not None:
            inside = np.clip(v / SOFT_LIMIT, -INNERMOST, INNERMOST)
            v = np.where(self.soft, SOFT_LIMIT * inside / np.sqrt(1 - inside**2), v)
        return v * self.size + self.offset


@dataclass(frozen=True)
class Gain:
    """What refining brings on the rows held out, in points of the objective, and the standard error of that mean."""

    mean: float
    standard_error: float
    objective: str

    def __str__(self) -> str:
        return f"{self.mean:+.2f} +- {self.standard_error:.2f} points ({self.objective})"


def _none(X: Array, _: Array) -> Scaler:
    return Scaler(np.zeros(X.shape[1]), np.ones(X.shape[1]))


def _standard(X: Array, weight: Array, least: float = LEAST_SPREAD) -> Scaler:
    """By the standard deviation, but at least a share of the range: one rare value must not count for tens of it.

    The size of a constant column, of which nothing is known, is the median of the others.
    """
    low, high = _range(X)
    exponent = np.frexp(np.maximum(-low, high))[1]
    X, low, high = (np.ldexp(values, -exponent) for values in (X, low, high))  # squares of huge values overflow
    centre = np.average(X, axis=0, weights=weight)
    centre = np.clip(centre, low, high)  # by rounding, the mean of equal values may be another
    spread = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
    varies = _varies(low, high)
    size = np.ldexp(np.maximum(spread, least * (high - low)), exponent)
    usual = np.median(size[varies]) if varies.any() else 1.0
    size = np.where(varies, size, np.maximum(size, usual))
    return Scaler(np.ldexp(centre, exponent), np.maximum(size, np.finfo(np.float64).tiny))


def _image(X: Array, _: Array) -> Scaler:
    """By the range of all columns together: pixels stay alike, those that never vary in training among them."""
    low, high = _range(X)
    found = _unit(np.array([[low.min()], [high.max()]]), np.ones(2))
    return Scaler(np.repeat(found.offset, X.shape[1]), np.repeat(found.size, X.shape[1]))


def _unit(X: Array, _: Array) -> Scaler:
    low, high = _range(X)
    size = high - low
    return Scaler(low, np.where(_varies(low, high), size, np.maximum(size, 1.0)))


def _robust(X: Array, _: Array) -> Scaler:
    """Numbers by their median and the distance of their quartiles (if that is 0, half the range), softly limited.

    Columns of at most two values become 0 and 1.
    """
    low, high = _range(X)
    exponent = np.frexp(np.maximum(-low, high))[1]
    X, low, high = (np.ldexp(values, -exponent) for values in (X, low, high))  # differences of huge values overflow
    first, median, third = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    middle = np.where(third > first, third - first, (high - low) / 2)
    two = ((low == X) | (high == X)).all(axis=0)
    varies = _varies(low, high)
    size = np.where(varies, np.where(two, high - low, middle), 1.0)
    offset = np.where(two, low, median)
    size = np.maximum(np.ldexp(size, exponent), np.finfo(np.float64).tiny)
    return Scaler(np.ldexp(offset, exponent), size, varies & ~two)


def _range(X: Array) -> tuple[Array, Array]:
    """The least and the largest value of every column."""
    low, high = X.min(axis=0), X.max(axis=0)
    with np.errstate(over="ignore"):
        too_wide = np.flatnonzero(np.isinf(high - low))
    if len(too_wide):
        raise InputError(
            f"A column must span less than {np.finfo(np.float64).max:.1e}; the columns {too_wide[:5]} reach from "
            f"{low[too_wide[0]]:.1e} to {high[too_wide[0]]:.1e}. Divide them by a number, or look for mistakes there."
        )
    return low, high


def _varies(low: Array, high: Array) -> NDArray[np.bool_]:
    """Columns whose range is more than rounding."""
    return high - low > 10 * np.finfo(np.float64).eps * np.maximum(-low, high)


#: scaling by name
SCALINGS: dict[str, Callable[[Array, Array], Scaler]] = {"standard": _standard, "unit": _unit, "none": _none}
#: the same for tables of any kind of numbers
TABLE_SCALINGS: dict[str, Callable[[Array, Array], Scaler]] = {**SCALINGS, "robust": _robust}
#: the same for pixels
IMAGE_SCALINGS: dict[str, Callable[[Array, Array], Scaler]] = {"image": _image, **SCALINGS}
#: the same where rows are compared by their distance, in which one far value of a column hides all others
DISTANCE_SCALINGS: dict[str, Callable[[Array, Array], Scaler]] = {
    **SCALINGS,
    "standard": partial(_standard, least=DISTANCE_SPREAD),
}


# --- what `fit` is given ---------------------------------------------------------------------------------------


def check_choices(estimator: Any, **choices: Collection[str]) -> None:
    """Refuse parameters that are none of the names that they may be."""
    for name, names in choices.items():
        if getattr(estimator, name) not in list(names):  # a list in place of a name has no hash
            raise InputError(f"`{name}` must be one of {', '.join(names)}; got {getattr(estimator, name)!r}.")


def check_options(estimator: Any, **choices: Collection[str]) -> None:
    """Refuse parameters that mean nothing; ``choices`` are names of parameters and what they may be."""
    known: dict[str, Collection[str]] = {"scaling": SCALINGS, "noise": NOISE}
    check_choices(estimator, **known | choices)
    fraction, batch_size = estimator.validation_fraction, estimator.batch_size
    if isinstance(fraction, str) or fraction is None or not 0 < fraction < 1:
        raise InputError(f"`validation_fraction` must be between 0 and 1; got {fraction!r}.")
    if isinstance(batch_size, str) or batch_size is None or batch_size < 1:
        raise InputError(f"`batch_size` must be at least 1; got {batch_size!r}.")
    if isinstance(estimator.max_epochs, str) and estimator.max_epochs != "auto":
        raise InputError(f"`max_epochs` must be a whole number or 'auto'; got {estimator.max_epochs!r}.")


def as_numbers(estimator: Any, name: str) -> Tensor:
    """A parameter that is a number or several, as (n,)."""
    try:
        return torch.as_tensor(getattr(estimator, name), dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"`{name}` must be a number, or numbers; got {getattr(estimator, name)!r}.") from error


def per_member(estimator: Any, name: str, n_members: int) -> float | Tensor:
    """A parameter that is a number, or one for every member."""
    values = as_numbers(estimator, name)
    if len(values) not in (1, n_members):
        raise InputError(
            f"`{name}` must be a number, or one for each of the {n_members} members that "
            f"`generative_weight` asks for; got {len(values)}."
        )
    return float(values[0]) if len(values) == 1 else values


def auto_epochs(epochs: int | str, n_steps: int, wanted: int, least: int, most: int = 300) -> int:
    """``"auto"`` is as many epochs of ``n_steps`` as the wanted number of steps takes, within limits."""
    if epochs == "auto":
        return min(most, max(least, math.ceil(wanted / n_steps)))
    if isinstance(epochs, str) or int(epochs) != epochs:
        raise InputError(f"A number of epochs must be a whole number or 'auto'; got {epochs!r}.")
    return int(epochs)


def whole_number(estimator: Any, name: str, least: int, other: str = "") -> int:
    """A parameter that must be a whole number."""
    value = getattr(estimator, name)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"`{name}` must be a whole number of at least {least}{other}; got {value!r}.")
    return int(value)


def epochs_of(estimator: Any, name: str, n_steps: int) -> int:
    """A number of epochs; ``"auto"`` is enough for some thousand steps, within limits."""
    if getattr(estimator, name) == "auto":
        return auto_epochs("auto", n_steps, 2000, 40)
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


def default_size(size: int | str, auto: int) -> int:
    """A number of units or factors, where ``"auto"`` stands for a rule."""
    if size == "auto":
        return auto
    if isinstance(size, str):
        raise InputError(f"The number of units must be a whole number or 'auto'; got {size!r}.")
    return size


def units_within(per_unit: float, least: int, wanted: int) -> int:
    """As many units as wanted, of which each takes so many multiplications a row; fewer of very wide tables."""
    return int(np.clip(MOST_A_ROW // per_unit, least, wanted))


def build_units(estimator: Any, n_models: int, width: int, auto: int, generator: torch.Generator) -> list[HiddenUnits]:
    """The hidden units that ``units`` asks for: what a function builds, or a group for each word of a name.

    ``auto`` is the number of units, and of factors, where that is left to a rule.
    """
    kind = estimator.units
    if callable(kind):
        built = kind(n_models, width, generator)
        return list(built) if isinstance(built, Iterable) and not isinstance(built, HiddenUnits) else [built]
    if kind not in UNIT_KINDS:
        raise InputError(f"`units` must be one of {', '.join(UNIT_KINDS)}, or a function; got {kind!r}.")
    n_hidden, n_factors = default_size(estimator.n_hidden, auto), default_size(estimator.n_factors, auto)
    per_model = (kind != "covariance") * width * n_hidden + (kind != "mean") * n_factors * (width + n_hidden)
    check_room(
        torch.get_default_dtype().itemsize * n_models * per_model,
        f"{n_models:,} auto-encoders of {width:,} columns with {n_hidden:,} units each",
        "Use units='trunk' or 'memory', smaller `n_hidden` and `n_factors`, or fewer columns.",
    )
    groups: list[HiddenUnits] = []
    if kind != "covariance":
        groups.append(MeanUnits(n_models, width, n_hidden, estimator.activation, generator))
    if kind != "mean":
        groups.append(CovarianceUnits(n_models, width, n_factors, n_hidden, estimator.activation, generator=generator))
    return groups


def find_classes(labels: Any) -> NDArray[Any]:
    """The different labels, sorted."""
    check_classification_targets(labels)
    return np.unique(labels)


def encode_labels(y: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Labels as numbers from 0, in the order of ``classes``."""
    check_classification_targets(y)
    if len(classes) < 2:
        raise InputError(f"A classifier needs rows of at least 2 classes; got the one class {classes}.")
    if not np.isin(y, classes).all():
        raise InputError(f"`y` must hold classes from {classes}; got also {np.setdiff1d(y, classes)}.")
    return np.searchsorted(classes, y)


@dataclass(frozen=True)
class Examples:
    """Rows X (n, D), their labels (n,), numbers from 0, and their weights (n,), of mean 1."""

    X: Array
    labels: NDArray[np.int64]
    weight: Array

    def take(self, rows: Any) -> "Examples":
        """Some of them."""
        return Examples(self.X[rows], self.labels[rows], self.weight[rows])

    def tensors(self, scaler: Scaler, device: torch.device) -> LabelledRows:
        """Scaled and on a device, as training takes them."""
        return LabelledRows(
            torch.as_tensor(scaler(self.X), dtype=torch.float32).to(device),
            torch.as_tensor(self.labels).to(device),
            torch.as_tensor(self.weight / self.weight.mean(), dtype=torch.float32).to(device),
        )


@dataclass(frozen=True)
class Given:
    """What a classifier was given to `fit`: all rows, those to train on, those to stop early on, and a seed."""

    classes: NDArray[Any]
    rows: Examples
    train: Examples
    valid: Examples | None
    seed: int

    def tensors(self, scaler: Scaler, device: torch.device) -> tuple[LabelledRows, LabelledRows | None]:
        """The rows to train on and to stop early on, as training takes them."""
        valid = None if self.valid is None else self.valid.tensors(scaler, device)
        return self.train.tensors(scaler, device), valid


def given_rows(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    class_weight: Any = None,
    *,
    X_valid: Any = None,
    y_valid: Any = None,
    forget: str = "model_",
    read: Callable[..., tuple[Array, Any]] | None = None,
    least_valid: float = 0,
) -> Given:
    """Check what a classifier is given to `fit`.

    ``forget`` is what `fit` sets last: it goes, so that the estimator is not fitted until then.  ``read(X, y,
    reset=...)`` checks rows and classes, where `validate_data` is not all there is to it.  Of less than ``least_valid``
    rows to stop early on there are none, unless the caller brings them.
    """
    read = read or partial(validate_data, estimator, dtype=np.float64)
    X, y = read(X, y, reset=True)
    vars(estimator).pop(forget, None)
    classes = find_classes(y)
    rows = weighted_rows(X, y, classes, sample_weight, class_weight)
    if len(absent := np.setdiff1d(np.arange(len(classes)), rows.labels)):
        raise InputError(f"Every class must have a row of weight above 0; {classes[absent]} have none.")
    seed = draw_seed(estimator.random_state)
    given = valid_rows(estimator, X_valid, y_valid, read)
    if given is not None:
        valid = Examples(given[0], encode_labels(given[1], classes), np.ones(len(given[0])))
        return Given(classes, rows, rows, valid, seed)
    train, held_out = hold_out(estimator, len(rows.X), seed, rows.labels, least_valid)
    return Given(classes, rows, rows.take(train), None if held_out is None else rows.take(held_out), seed)


def weighted_rows(
    X: Array, y: Any, classes: NDArray[Any], sample_weight: Any = None, class_weight: Any = None
) -> Examples:
    """The rows whose weight is not 0, their labels as numbers from 0, and their weights, of mean 1."""
    labels = encode_labels(y, classes)
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if class_weight is not None:
        weight = weight * compute_class_weight(class_weight, classes=classes, y=y)[labels]
    if not (weight >= 0).all() or not weight.max() > 0:
        raise InputError(
            "`sample_weight` times `class_weight` must be 0 or more, and more than 0 for some rows; "
            f"got values from {weight.min():.3g} to {weight.max():.3g}."
        )
    weight = weight / weight.max()  # the sum of huge weights overflows
    used = weight.astype(np.float32) > 0  # what training sees
    return Examples(X[used], labels[used], weight[used] / weight[used].mean())


def check_given(estimator: Any, y: Any) -> None:
    """Refuse rows without classes, in the words of scikit-learn."""
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")


def valid_rows(
    estimator: Any, X_valid: Any, y_valid: Any, read: Callable[..., tuple[Array, Any]]
) -> tuple[Array, NDArray[Any]] | None:
    """Rows to stop early on that the caller of `fit` brings; ``read(X, y, reset=False)`` checks them."""
    if (X_valid is None) != (y_valid is None):
        raise InputError("`X_valid` and `y_valid` belong together; got only one of them. Give both or neither.")
    if X_valid is None:
        return None
    if not estimator.early_stopping:
        raise InputError("`X_valid` is only used to stop early; set early_stopping=True, or leave it out.")
    return read(X_valid, y_valid, reset=False)


def hold_out(
    estimator: Any, n_rows: int, seed: int, labels: NDArray[np.int64] | None = None, least_valid: float = 0
) -> tuple[Any, Any]:
    """Which rows to train on and which to stop early on; None where these would be too few, also of a class."""
    few, least = (n_rows, MIN_VALID_ROWS) if labels is None else (np.bincount(labels).min(), MIN_CLASS_ROWS)
    too_few = few * estimator.validation_fraction < least or n_rows * estimator.validation_fraction < least_valid
    if not estimator.early_stopping or too_few:
        return slice(None), None
    fraction, rows = estimator.validation_fraction, np.arange(n_rows)
    train, valid = train_test_split(rows, test_size=fraction, stratify=labels, random_state=seed)
    return train, valid


# --- rows that are scored --------------------------------------------------------------------------------------


def furthest(dtype: torch.dtype) -> float:
    """The largest scaled value that is told from larger ones: 5e7 for float32, 4e61 for float64."""
    return float(torch.finfo(dtype).max ** 0.2)


def in_one_pass(
    X: Array,
    scaler: Callable[[Array], Array],
    like: Tensor,
    compute: Callable[[Tensor], dict[str, Tensor]],
    precision: str = "exact",
) -> dict[str, Array]:
    """Scale rows, move them to where ``like`` is, compute without gradients, and bring the results (n, ...) back.

    A value beyond ``furthest`` counts as ``furthest``: energies grow with up to the fourth power of it, and two
    that are infinite say nothing about classes.
    """
    keep_memory()
    found, most = [], furthest(like.dtype)
    with scoring(precision, like.device):
        for start in range(0, len(X), ROWS_PER_CHUNK):
            rows = torch.as_tensor(scaler(X[start : start + ROWS_PER_CHUNK])).clamp(-most, most)
            found.append({name: values.double().cpu().numpy() for name, values in compute(rows.to(like)).items()})
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def in_chunks(
    X: Array,
    scaler: Callable[[Array], Array],
    like: Tensor,
    score: Callable[[Tensor], Tensor],
    precision: str = "exact",
) -> Array:
    """The same of a single result."""
    return in_one_pass(X, scaler, like, lambda v: {"": score(v)}, precision)[""]


def settle(module: nn.Module, precision: str = "exact") -> None:
    """Make a trained module ready for scoring: on the CPU in double, so that scores do not depend on other rows.

    In a lower precision it is in float32 everywhere.
    """
    if kind_of_products(precision) is not None:
        module.float()
    elif next(module.parameters()).device.type == "cpu":
        module.double()
