"""`View`: what the tools ask of a fitted estimator.

Saving, checking, explaining, exporting, serving and the command line ask views, and name no estimator.  There is one
view for each kind of estimator, in a file of its own, and `KINDS` finds it.  Another package adds its own by an entry
point of the group ``energate.views`` that names a subclass of `View`, or by `register`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators.cells import Cells
from energate.estimators.edge import Array, Scaler, settle
from energate.estimators.frames import read_rows
from energate.kernels import kind_of_products
from energate.tables import CategoryColumn, Columns, NumberColumn

if TYPE_CHECKING:
    from energate.views.accounts import Account
    from energate.views.graphs import Graph

NUMBER, LABEL, FLAG = "number", "label", "flag"


# --- what a model says of rows -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """An array with one entry for each row, and perhaps ``axes``: ``"label"`` (a class or label), ``"column"``...

    ``column`` is the name that it has in a table, or, with an axis, what comes before the names along it.
    """

    name: str
    column: str
    axes: tuple[str, ...] = ()
    kind: str = NUMBER


#: the rows, in the columns that the auto-encoders see
SEEN = Output("seen", "seen_", ("column",))


@dataclass(frozen=True)
class Beside:
    """What may come with the rows, one entry for each: a class, or ``width`` numbers."""

    name: str
    width: int | None
    needed: bool


@dataclass(frozen=True)
class Level:
    """A number above 0 and below 1 that may come with a command, which then has one output more.

    ``compute(said, level)`` makes it from the others; the level is (n,), one for each row.
    """

    name: str
    output: Output
    compute: Callable[[dict[str, Any], Array], NDArray[Any]]


@dataclass(frozen=True)
class Command:
    """Something to ask of rows: ``compute(X)`` gives the outputs by name, all from one pass over X (n, d).

    ``beside`` goes into ``compute`` by name.  What is asked ``alone`` is not computed together with others' rows, and
    ``n_values`` is how many numbers it says of each.
    """

    about: str
    outputs: tuple[Output, ...]
    compute: Callable[..., dict[str, NDArray[Any]]]
    beside: tuple[Beside, ...] = ()
    alone: bool = False
    n_values: int = 0
    levels: tuple[Level, ...] = ()

    def answer(self, X: Array, levels: Mapping[str, Any], **beside: Any) -> dict[str, NDArray[Any]]:
        """The outputs for rows X, those of `outputs_with` these levels among them; a level may be one for each row."""
        said = self.compute(X, **beside)
        for level in self.levels:
            if level.name in levels:
                given = np.broadcast_to(np.asarray(levels[level.name], dtype=np.float64), len(X))
                said = {**said, level.output.name: level.compute(said, given)}
        return said

    def outputs_with(self, levels: Iterable[str]) -> tuple[Output, ...]:
        """What is said where these levels come along."""
        known = {level.name: level.output for level in self.levels}
        absent = [name for name in levels if name not in known]
        if absent:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f"`{absent[0]}` is no level of what is asked of this model; {has}. Leave it out.")
        return (*self.outputs, *(known[name] for name in levels))


class Field(NamedTuple):
    """One auto-encoder in float64, and scaled rows to look at: v (N, D), perhaps with a context (N, C)."""

    name: str
    autoencoder: Autoencoder
    v: Tensor
    c: Tensor | None = None


@dataclass(frozen=True)
class Course:
    """The field that moves rows: model ``index`` of an auto-encoder, whose energy counts as scale * E + constant."""

    autoencoder: Autoencoder
    index: int
    scale: float
    constant: float
    of: int | None  # the number of the class


@dataclass(frozen=True)
class Trained:
    """A task of `energate.fit_table`, the options that it has, and the estimator for it.

    ``build`` takes a device, a ``random_state``, ``epochs`` of every stage, or None, and those options.
    """

    task: str
    options: tuple[str, ...]
    build: Callable[..., Any]


# --- the view ----------------------------------------------------------------------------------------------------


class View(ABC):
    """A fitted estimator, for tools.  ``named`` is the estimator, ``model`` the same without names of columns.

    An estimator that has a view keeps its torch module in ``model_``, names in ``_FITTED`` what else `fit` has found,
    and rebuilds the module with ``_untrained()``: this is all that is saved of it, beside its parameters.
    """

    #: the class of the estimators that it is for
    estimator: ClassVar[type]
    #: how `energate.fit_table` makes it, if it is what a task is done with
    trained: ClassVar[Trained | None] = None
    #: how one row, explained, is told; None for a model without energies of rows
    account: "ClassVar[type[Account] | None]" = None
    #: whether it has a field over rows, which moves them
    moves: ClassVar[bool] = False
    #: whether it computes in float32, also on the CPU
    single: ClassVar[bool] = False
    #: whether its estimator takes missing cells and categories as they are, and keeps `Cells` in ``cells_``
    takes_cells: ClassVar[bool] = False

    def __init__(self, model: Any) -> None:
        check_is_fitted(model)
        self.named, self.model = model, model
        if "feature_names_in_" in vars(model):  # rows without names would make scikit-learn warn on every call
            self.model = copy.copy(model)
            del self.model.feature_names_in_
        self.n_features = int(model.n_features_in_)
        self.cells: Cells | None = model.cells_ if self.takes_cells else None

    @staticmethod
    def trains_by_steps(estimator: Any) -> bool:  # noqa: ARG004
        """Whether an estimator that is not fitted yet has steps of training, which several processes can divide."""
        return True

    def freeze(self) -> None:  # noqa: B027  most gain nothing
        """Prepare for many calls with few rows each, if that makes them quicker; the model may not change any more."""

    def rows(self, X: Any) -> Array:
        """Rows as the estimator takes them, checked: numbers (n, d), with NaN and the keys of categories if it may."""
        X = self.flat(X)
        model = self.model if isinstance(X, np.ndarray | list | tuple) else self.named
        return validate_data(model, X, dtype=np.float64, reset=False) if self.cells is None else read_rows(model, X)

    def flat(self, X: Any) -> Any:
        """What is given in the form of rows; here it has that form."""
        return X

    # --- the columns that its energies are over ---------------------------------------------------

    @property
    def n_seen(self) -> int:
        """The number D of the columns that its auto-encoders see."""
        return self.n_features if self.cells is None else self.cells.width

    def seen(self, X: Array) -> Array:
        """Rows (n, d) in the columns that its auto-encoders see: (n, D)."""
        return X if self.cells is None else self.cells.expand(X)

    def seen_names(self, names: Sequence[str]) -> list[str]:
        """The names of those columns, by the names of the d that it takes."""
        return list(names) if self.cells is None else self.cells.names(names)

    def scaled(self, X: Array) -> Array:
        """Rows (n, d) on the scale of its auto-encoders: (n, D)."""
        found: Array = self.model.scaler_(self.seen(X))
        return found

    #: whether its energy ends at 0 and 1, as with sigmoid outputs
    clamped: Any = False

    def likings(self, v: Tensor) -> Tensor:
        """Energies of scaled rows (N, D), with gradients: (N, K), one for each class; or (N, 1)."""
        raise InputError(f"A {type(self.model).__name__} has no energies of rows, which this question is asked of.")

    def middle(self) -> Array:
        """The middle of every seen column on the scale of the energies: (D,)."""
        return np.full(self.n_seen, 0.5 if self.clamped else 0.0)

    def columns(self, names: Sequence[str]) -> Columns:
        """How cells of a table with columns of these names become rows, by what the estimator itself knows of them."""
        if self.cells is None:
            return Columns.plain(names)
        return columns_for(self.cells, names, self.task)

    def suited(self, columns: Columns) -> Columns:
        """Columns that it was saved with, unless they make other rows than it takes."""
        columns.for_width(self.n_features)
        if columns.coded and (self.cells is None or columns.words != self.columns(columns.feature_names).words):
            raise InputError("`columns` must hold the categories that the model was fitted with; they hold others.")
        return columns

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Height, width and perhaps channels of the pictures that rows are; None if nothing says that they are any."""
        found = self.about().get("shape")
        return None if found is None else tuple(found)

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the largest pixel of training, as far as the estimator itself knows them."""
        found = self.about().get("range")
        return None if found is None else (found[0], found[1])

    def label_names(self, columns: Any = None) -> list[str]:
        """The names of classes or labels; ``columns`` of a table may know those of labels."""
        return [str(name) for name in (columns and columns.labels) or self.labels]

    # --- what each kind says ---------------------------------------------------------------------

    @property
    @abstractmethod
    def task(self) -> str:
        """``"classify"``, ``"multilabel"``, ``"anomaly"`` or ``"pairs"``."""

    @property
    @abstractmethod
    def labels(self) -> Sequence[Any]:
        """The classes or the labels of which it gives probabilities; none if it gives none."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What is worth knowing of this kind alone, as JSON takes it."""

    @abstractmethod
    def commands(self) -> dict[str, Command]:
        """What may be asked of rows, by name: of predict, score, refine and explain those that it has."""

    @abstractmethod
    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        """Its auto-encoders, and rows like those of `draw` on their scale; an `InputError` if it has no energy."""

    @abstractmethod
    def checked(self) -> str:
        """What `fields` are, in words."""

    @abstractmethod
    def course(self, X: Array, of: int | None) -> Course:
        """The field that moves a row X (1, d): that of class ``of``; an `InputError` if rows have none."""

    @abstractmethod
    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        """Rows around the scale of training, in the user's columns, by the name of the input: ``X``, perhaps more."""

    @abstractmethod
    def graph(self) -> "Graph":
        """From the user's columns to named outputs, as a module that can be traced."""


# --- which view an estimator has ---------------------------------------------------------------------------------

KINDS: dict[type, type[View]] = {}
_Kind = TypeVar("_Kind", bound=type[View])


def register(view: _Kind) -> _Kind:
    """Let the tools know a kind of estimator by its view; may stand above the class as a decorator."""
    KINDS[view.estimator] = view
    return view


def register_installed() -> None:
    """Register the views of other packages."""
    for entry in entry_points(group="energate.views"):
        register(entry.load())


def view_of(model: Any) -> View:
    """The view of a fitted estimator."""
    found = KINDS.get(type(model))
    if found is None:
        hint = " Subclasses have no view of their own." if isinstance(model, tuple(KINDS)) else ""
        names = sorted(kind.__name__ for kind in KINDS)
        raise InputError(
            f"`model` must be a fitted {', '.join(names[:-1])} or {names[-1]}; got {type(model).__name__}.{hint}"
        )
    return found(model)


def set_precision(model: Any, precision: str) -> None:
    """Let a fitted estimator score in another ``precision``, "exact", "fast" or "lowest", and its base, too.

    Weights that were rounded to float32 once stay so.
    """
    view = view_of(model)
    kind_of_products(precision)
    for each in (view.named, view.model):
        each.precision = precision
    if not view.single:
        settle(model.model_, precision)
    base = vars(model).get("base_")
    if type(base) in KINDS:
        set_precision(base, precision)


def tasks() -> dict[str, type[View]]:
    """The tasks of `energate.fit_table` by name, and the views of the estimators that do them."""
    return {view.trained.task: view for view in KINDS.values() if view.trained is not None}


# --- what views share --------------------------------------------------------------------------------------------


def columns_for(cells: Cells, names: Sequence[str], task: str) -> Columns:
    """How cells of a table with columns of these names become the rows that an estimator takes as they are."""
    return Columns(tuple(map(_column, cells.about(names))), task, coded=True)


def _column(about: dict[str, Any]) -> NumberColumn | CategoryColumn:
    if "fill" in about:
        return NumberColumn(about["name"], about["fill"])
    return CategoryColumn(about["name"], (*about["categories"], *([None] if about["missing"] else [])))


def drawn(n_rows: int, seed: int, unit: bool, **scalers: Scaler) -> dict[str, Array]:
    """Rows around the scale of training, (n, d), for each input by its name."""
    random = np.random.RandomState(seed)
    draw = random.uniform if unit else random.normal
    return {name: scaler.undo(draw(size=(n_rows, len(scaler.size)))) for name, scaler in scalers.items()}


def in_double(autoencoder: Autoencoder) -> Autoencoder:
    """A copy in float64."""
    return copy.deepcopy(autoencoder).double().requires_grad_(False)


def kind_of(autoencoder: Autoencoder) -> str:
    """The kinds of its units, in words."""
    return " + ".join(type(group).__name__ for group in autoencoder.groups)


def no_class(model: Any, of: int | None) -> None:
    """Refuse the number of a class where there is none."""
    if of is not None:
        raise InputError(f"`of` names a class, and an {type(model).__name__} has none; got {of!r}. Leave it out.")
