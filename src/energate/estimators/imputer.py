"""`EnergyImputer`: missing cells filled by the energy of whole rows."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from energate.estimators.cells import Cells
from energate.estimators.completing import conditional
from energate.estimators.edge import Array, Estimator, UnitsBuilder, draw_seed, whole_number
from energate.estimators.frames import FROM_DTYPE, CellsMixin, read_rows
from energate.estimators.progress import within_memory
from energate.estimators.scorer import MEMORY, EnergyScorer
from energate.memory import MemoryUnits
from energate.tables import CodedRows
from energate.tables.values import is_frame, is_from_pandas, keys_of

#: of the density's temperature: those that are tried, on so many rows, with this share of their cells hidden
WARMTHS, N_TRIED, HIDDEN = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 500, 0.2


@dataclass(eq=False, repr=False)
class EnergyImputer(OneToOneFeatureMixin, TransformerMixin, CellsMixin, Estimator):  # type: ignore[misc]
    """Fills missing cells (NaN, None) with what belongs there, given the cells of the row that are there.

    Parameters
    ----------
    units : ``"memory"``: the mean of the rows given to `fit`, each by how near it is in the columns that are there
        (the conditional mean of a Parzen density).  Otherwise those of `EnergyScorer`, which are trained, and missing
        cells climb along the field from the medians.
    max_units : of a memory; of more rows, so many centres.
    n_rounds : rows given to `fit` have missing cells themselves: they are filled and remembered anew so often.
    categorical_features : as for `EnergyClassifier`; a missing category becomes a category.
    device, random_state, verbose : as for all estimators.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : as in scikit-learn.
    cells_ : what each column holds.
    model_ : the `EnergyScorer` of whole rows; its energy never falls where a cell is filled, and cells that are there
        stay as they are.
    warmth_ : the temperature of a memory's conditional means, by that of its density.
    """

    _FITTED = ("cells_", "warmth_")

    units: str | UnitsBuilder = MEMORY
    _: KW_ONLY
    max_units: int = 5000
    n_rounds: int = 2
    categorical_features: Any = FROM_DTYPE

    @within_memory
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn what rows look like, from rows that may have missing cells; no y."""
        whole_number(self, "n_rounds", 1)
        rows = self._learned_rows(X)
        seen = self.cells_.expand(rows)
        gone = np.isnan(rows)[:, self.cells_.layout.source]
        for _ in range(self.n_rounds if gone.any() else 1):
            scorer = self._scorer().fit(seen)
            self.warmth_ = self._warmth(scorer, rows)
            seen = self.cells_.expand(self._filled(scorer, rows, own=len(rows) <= self.max_units))
        self.model_ = scorer
        return self

    def _warmth(self, scorer: EnergyScorer, rows: Array) -> float:
        """The temperature that fills cells best which are hidden from rows that leave themselves out, by the density's.

        Fewer columns are there than a density of whole rows knows of.
        """
        if self.units != MEMORY or len(rows) > self.max_units:
            return 1.0
        random = np.random.RandomState(draw_seed(self.random_state))
        some = random.permutation(len(rows))[:N_TRIED]
        gone = np.isnan(rows[some])
        hidden = gone | (random.uniform(size=gone.shape) < HIDDEN)
        source, units = self.cells_.layout.source, scorer.model_.groups[0]
        assert isinstance(units, MemoryUnits)
        v = torch.as_tensor(scorer.scaler_(self.cells_.expand(rows[some]))).to(units.W)
        free, asked = (torch.as_tensor(flags[:, source]).to(v.device) for flags in (hidden, hidden & ~gone))
        own = torch.as_tensor(some).to(v.device)

        def error(warmth: float) -> float:
            found = conditional(units, v, free, own, warmth)[0][0]
            return float((found - v)[asked].square().sum())

        return min(WARMTHS, key=error)

    def _learned_rows(self, X: Any) -> Array:
        """Rows as they are read, and what their columns hold; "missing" is no value of any of them."""
        self.__dict__.pop("model_", None)
        self._read(X, None, reset=True)
        found = self._cells_read(X)
        self.cells_ = Cells(self.cells_.fill, np.zeros(self.cells_.n_columns, dtype=bool), self.cells_.categories)
        return found

    def _cells_read(self, X: Any) -> Array:
        return read_rows(self, X)

    def _scorer(self) -> EnergyScorer:
        own: dict[str, Any] = {"max_units": self.max_units, "column_weight": 0.0} if self.units == MEMORY else {}
        how: dict[str, Any] = {"device": self.device, "random_state": self.random_state, "verbose": self.verbose}
        return EnergyScorer(self.units, **own, **how)

    def _filled(self, scorer: EnergyScorer, rows: Array, own: bool = False, warmth: float | None = None) -> Array:
        return scorer._completed(rows, self.cells_, self.cells_.fill, own, self.warmth_ if warmth is None else warmth)

    def transform(self, X: Any) -> Any:
        """X with every cell filled: numbers as an array (n, d); a table with categories as it came."""
        check_is_fitted(self)
        rows = self._cells_read(X)
        filled = self._filled(self.model_, rows)
        words = self.cells_.categories and not isinstance(X, CodedRows)
        if not words or not (is_frame(X) or np.asarray(X).dtype.kind in "OUS"):
            return filled
        return _written(X, np.isnan(rows), filled, self.cells_)


def _written(X: Any, missing: NDArray[np.bool_], filled: Array, cells: Cells) -> Any:
    """A frame of pandas, or an array of objects, with the cells that were missing: a copy."""
    if not is_frame(X):
        found = np.array(X, dtype=object)
        for place in np.flatnonzero(missing.any(0)).tolist():
            gone = missing[:, place]
            found[gone, place] = _values(found[:, place], gone, filled[:, place], cells, place)
        return found
    frame = X.copy() if is_from_pandas(X) else X.to_pandas()
    for place in np.flatnonzero(missing.any(0)).tolist():
        column, gone = frame.iloc[:, place], missing[:, place]
        cells_of = column.to_numpy(dtype=object, copy=True)
        cells_of[gone] = _values(cells_of, gone, filled[:, place], cells, place)
        ordered = type(column)(cells_of, index=column.index, name=column.name)
        frame.isetitem(place, ordered.astype("category" if column.dtype == "category" else _dtype_of(ordered)))
    return frame


def _dtype_of(column: Any) -> str:
    """The dtype of a column that has been filled."""
    return "object" if any(isinstance(value, str) for value in column) else "float64"


def _values(column: Any, gone: NDArray[np.bool_], filled: Array, cells: Cells, place: int) -> list[Any]:
    """What goes into the missing cells of a column: numbers, or the words of categories as the column has them."""
    words = cells.categories.get(place)
    if words is None:
        return filled[gone].tolist()
    names = dict(zip(keys_of(words).tolist(), words, strict=True))
    given = {str(value): value for value in column[~gone]}
    found = [names[key] for key in filled[gone].tolist()]
    return [given.get(word, word) for word in found]
