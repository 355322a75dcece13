"""Estimators that are fitted to a `Stream` in place of rows, and frames like its files afterwards."""

from typing import Any

from energate.errors import InputError
from energate.tables import CodedRows, Columns
from energate.tables.drawn import Drawn, Streamed, draw
from energate.tables.streams import Stream
from energate.tables.values import is_frame, names_of


class StreamMixin:
    """An estimator whose `fit` takes a stream: ``fit(energate.tables.open("parts/*.parquet", target="kind"))``.

    ``columns_`` say what becomes of the columns of the files, and ``streamed_`` what the pass through them found.  Both
    are there after such a fit only; saved models keep ``columns_``.
    """

    columns_: Columns
    streamed_: Streamed

    def _draw(
        self, stream: Stream, task: str, share: float, *, coded: bool = False, apart: bool = False, **others: Any
    ) -> Drawn:
        """What a pass through a stream brings; ``others`` are what may not come beside it."""
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise InputError(f"A stream brings all rows, and what is to be predicted; `{given[0]}` must be left out.")
        found = draw(stream, task, coded=coded, share=share, apart=apart)
        self.columns_, self.streamed_ = found.columns, found.about
        return found

    def _forget_stream(self) -> None:
        """Rows that are given to `fit` have no files."""
        for name in ("columns_", "streamed_"):
            vars(self).pop(name, None)


def as_learned(estimator: Any, X: Any) -> Any:
    """Rows of a frame with the columns of the files that `fit` was given, as it learned them; all else as it is."""
    columns: Columns | None = vars(estimator).get("columns_")
    if columns is None or not is_frame(X) or not set(columns.names) <= set(names_of(X)):
        return X
    if columns.coded:
        return CodedRows(columns.matrix(X), columns)
    # A model that knows the names of what it takes was fitted to such rows, and saved with these columns.
    return X if "feature_names_in_" in vars(estimator) else columns.matrix(X)
