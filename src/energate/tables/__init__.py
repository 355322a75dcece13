"""Tables of the user's own: read and written in record batches, and turned into the numbers that models take."""

from energate.tables.columns import (
    CategoryColumn,
    CodedRows,
    Columns,
    ImageColumn,
    NumberColumn,
    classes_of,
    labels_of,
    learn_columns,
    pictures_of,
    size_in_words,
    white_of,
)
from energate.tables.reading import load_arff, load_table, open_table
from energate.tables.streams import Stream, open_tables
from energate.tables.values import CellError

open = open_tables  # noqa: A001  as in `energate.tables.open("parts/*.parquet")`

__all__ = [
    "CategoryColumn",
    "CellError",
    "CodedRows",
    "Columns",
    "ImageColumn",
    "NumberColumn",
    "Stream",
    "classes_of",
    "labels_of",
    "learn_columns",
    "load_arff",
    "load_table",
    "open",
    "open_table",
    "open_tables",
    "pictures_of",
    "size_in_words",
    "white_of",
]
