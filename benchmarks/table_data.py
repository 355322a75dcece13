"""The tables of ENERGATE_DATA/tables as they are: a frame with categories and missing cells, and a target.

ARFF files of the UCI kind.  The target is the attribute named class or binaryClass, in any case, otherwise the last.
Classes with fewer than 10 rows are left out; of tables over 4,000 rows 4,000 are drawn with seed 0.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from energate.tables import open_table

TARGETS = ("class", "binaryclass")
NUMBERS = ("numeric", "real", "integer")
FEWEST_ROWS, MOST_ROWS = 10, 4000

#: The development half: the names at even places (0, 2, 4 ...) of the sorted list of 26.  Defaults of the library are
#: chosen with a look at these alone; the other 13, and tables of any other name, are run once, on the result.
DEVELOPMENT = (
    "anneal",
    "balance.scale",
    "cmc",
    "credit.a",
    "diabetes",
    "haberman",
    "hepatitis",
    "kr.vs.kp",
    "optdigits",
    "segment",
    "sonar",
    "tae",
    "vowel",
)


@dataclass(frozen=True)
class Table:
    """Rows as a frame: float columns with NaN, and `category` columns; classes as numbers from 0."""

    name: str
    frame: Any
    y: NDArray[np.int64]

    @property
    def categories(self) -> list[str]:
        """The columns that hold categories."""
        return list(self.frame.select_dtypes("category").columns)

    @property
    def numbers(self) -> list[str]:
        """The columns that hold numbers."""
        return list(self.frame.select_dtypes("number").columns)

    @property
    def n_classes(self) -> int:
        return int(self.y.max()) + 1

    def split(self, fold: int, n_folds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places of the rows for training and for the test; the same for every system."""
        folds = StratifiedKFold(n_folds, shuffle=True, random_state=0).split(self.frame, self.y)
        train, test = list(folds)[fold]
        return train, test


def folder_of_tables() -> Path:
    """The folder of the ARFF files, which the environment variable ENERGATE_DATA leads to."""
    root = os.environ.get("ENERGATE_DATA")
    if not root:
        raise FileNotFoundError("ENERGATE_DATA must name the folder that holds tables/*.arff; it is not set")
    return Path(root) / "tables"


def names_of_tables(folder: Path, half: str = "all") -> list[str]:
    """The tables of a folder, sorted: all, those of the development half, or the others."""
    names = sorted(path.stem for path in folder.glob("*.arff"))
    return [name for name in names if half == "all" or (name in DEVELOPMENT) == (half == "development")]


@lru_cache(maxsize=2)
def load(path: Path) -> Table:
    source = open_table(path)
    cells = source.read()
    target = next((name for name in source.names if name.lower() in TARGETS), source.names[-1])
    frame = pd.DataFrame(
        {name: _column(cells[name], attribute) for name, attribute in source.attributes.items() if name != target}
    )
    # Names of their own would do, but LightGBM refuses some characters in them.
    frame.columns = [f"x{place}" for place in range(frame.shape[1])]
    labels = pd.Series(cells[target])
    kept = np.flatnonzero(labels.map(labels.value_counts()).fillna(0) >= FEWEST_ROWS)
    if len(kept) > MOST_ROWS:
        kept = np.sort(np.random.default_rng(0).choice(kept, MOST_ROWS, replace=False))
    y = np.unique(labels.iloc[kept].astype(str), return_inverse=True)[1]
    return Table(path.stem, frame.iloc[kept].reset_index(drop=True), y.astype(np.int64))


def _column(values: Any, attribute: Any) -> Any:
    """Numbers as floats; words as a category, of those that the file declares for a nominal attribute."""
    if attribute.kind.lower().split()[0] in NUMBERS:  # Weka also writes "integer [1,10]"
        return pd.to_numeric(pd.Series(values)).astype(float)
    return pd.Series(pd.Categorical(values, categories=attribute.words))
