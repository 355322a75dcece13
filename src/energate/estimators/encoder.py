"""`TableEncoder`: frames with text, categories, dates and holes as numbers, for any estimator of scikit-learn."""

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators.edge import Array
from energate.tables import Columns, NumberColumn, learn_columns
from energate.tables.values import columns_of, is_frame, listed, names_of


@dataclass(eq=False, repr=False)
class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Makes numbers of the columns of a table, as `energate fit` does, in a Pipeline of scikit-learn.

    Missing numbers are filled by the median, categories become columns of 0 and 1, dates their parts, free text the
    words that are in several rows; numbers may be written as "12,345" or "45%".  Columns that name or count the rows of
    a frame are left out, with a warning.  Of an array every column is numbers.

    Parameters
    ----------
    drop, keep : columns of a frame to leave out, and to take though they look like ids.
    categories : columns of a frame that are categories, whatever they look like.
    missing : words, or numbers, that mean a missing cell, beside those that always do.

    Attributes
    ----------
    columns_ : the `energate.tables.Columns`: what becomes of each column.
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    _: KW_ONLY
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()
    categories: Sequence[str] = ()
    missing: Sequence[str] = ()

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any = None) -> "TableEncoder":  # noqa: ARG002
        """Learn what becomes of each column; no y."""
        if not is_frame(X):
            rows = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
            names = [f"x{i}" for i in range(rows.shape[1])]
            present = [column[~np.isnan(column)] for column in rows.T]
            fills = [2 * float(np.median(each / 2)) if len(each) else 0.0 for each in present]
            self.columns_ = Columns(tuple(map(NumberColumn, names, fills)), "anomaly")
            return self
        validate_data(self, X, skip_check_array=True)
        table = _table(X)
        if not len(X):
            raise ValueError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
        options: dict[str, Any] = {
            "drop": self.drop,
            "keep": self.keep,
            "categories": self.categories,
            "missing": self.missing,
        }
        self.columns_, notes = learn_columns(table, task="anomaly", **options)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        return self

    def transform(self, X: Any) -> Array:
        """The numbers of the rows: (n, D)."""
        check_is_fitted(self)
        if not is_frame(X):
            rows = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
            if not all(isinstance(column, NumberColumn) for column in self.columns_.inputs):
                raise InputError(f"`X` must be a frame with the columns of `fit`, {listed(self.columns_.names)}.")
            known = vars(self).get("feature_names_in_")
            names = self.columns_.names if known is None else list(known)
            return self.columns_.matrix(dict(zip(names, rows.T, strict=True)))
        if "feature_names_in_" not in vars(self):
            rows = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
            return self.columns_.matrix(dict(zip(self.columns_.names, rows.T, strict=True)))
        validate_data(self, X, reset=False, skip_check_array=True)
        return self.columns_.matrix(_table(X))

    def get_feature_names_out(self, input_features: Any = None) -> Any:  # noqa: ARG002
        """The names of the columns that `transform` gives."""
        check_is_fitted(self)
        return np.array(self.columns_.feature_names, dtype=object)


def _table(X: Any) -> dict[str, Any]:
    return dict(zip(names_of(X), columns_of(X), strict=True))
