"""`load_multilabel`: data sets whose rows carry several labels at once, by name; and a rule that makes some."""

import hashlib
import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import fetch_openml

from energate.datasets.sources import Folder, NotHereError, first_of, named
from energate.errors import InputError

_SOURCES = ("folder", "openml")


@dataclass(frozen=True)
class MultiLabelDescription:
    """What a multi-label data set is: its size, what its rows are, and whether it stands for another set."""

    name: str
    n_rows: int
    n_features: int
    n_labels: int
    rule: str
    stands_for: str = ""  # the data set that this one is a substitute for
    openml: int = 0  # the number of the data set there; 0 where it is not


@dataclass(frozen=True)
class MultiLabelDataset:
    """Rows X (n, D) in float32, labels Y (n, L) of 0 and 1 in uint8, and where they come from.

    ``groups`` are the artists of music clips, (n,), for splits that keep the clips of one artist together; None for
    other sets.  ``split`` are the numbers of the rows that the publishers train and test on, where they say so.

    ``provenance`` has the ``"word"``, *original* (the published values) or *substitute* (another real data set, which
    ``"stands_for"`` the one named), the ``"source"``, the ``"files"`` that were read with their sha256, the
    ``"preparation"`` of X in a line, and the ``"sha256"`` of X and Y.
    """

    name: str
    X: NDArray[np.float32]
    Y: NDArray[np.uint8]
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    groups: NDArray[np.str_] | None
    split: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    provenance: dict[str, Any]


_SETS = {
    about.name: about
    for about in (
        MultiLabelDescription("yeast", 2_417, 103, 14, "genes and their functions", openml=40597),
        MultiLabelDescription("scene", 2_407, 294, 6, "photographs and what they show", openml=40595),
        MultiLabelDescription("majorminer", 2_359, 391, 40, "music clips and the tags of a game's players", "MajMin"),
        MultiLabelDescription("cal500", 502, 68, 174, "songs and tags from a survey", "MTurk"),
        MultiLabelDescription("medical", 978, 1_449, 45, "words of radiology reports and diagnoses"),
        MultiLabelDescription("enron", 1_702, 1_001, 53, "words of e-mails and their topics"),
        MultiLabelDescription("corel5k", 5_000, 499, 374, "regions of photographs and keywords"),
        MultiLabelDescription("bibtex", 7_395, 1_836, 159, "words of bibliography entries and tags"),
        MultiLabelDescription("delicious", 16_105, 500, 983, "words of web pages and tags"),
    )
}

#: The names that `load_multilabel` knows.
MULTILABEL_NAMES = tuple(_SETS)


def describe_multilabel(name: str) -> MultiLabelDescription:
    """What the multi-label data set of this name is."""
    return named(name, _SETS, "multi-label data set")


def load_multilabel(
    name: str,
    *,
    source: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    raw: bool = False,
) -> MultiLabelDataset:
    """A multi-label data set by its name; `MULTILABEL_NAMES` lists them, `describe_multilabel` tells about one.

    Parameters
    ----------
    source : ``"folder"``, ``"openml"`` (yeast and scene only), or ``"auto"``, the first of these that has the set.
    folder : a folder with files ``<name>.npz``, or with a part ``multi`` that has them; otherwise the environment
        variable ENERGATE_DATA names it.
    cache : where downloads are kept; otherwise scikit-learn's data folder.
    raw : leave majorminer's columns as they are in the file, instead of `prepare_audio` of them.
    """
    about = describe_multilabel(name)
    origin, found, why_not = first_of(
        _SOURCES, source, lambda each: _from_folder(about, folder) if each == "folder" else _from_openml(about, cache)
    )
    if found is None:
        raise InputError(
            f"{name} was not found ({why_not}). Name a folder that has {name}.npz"
            f"{', or use a machine with a network' if about.openml else ''}."
        )
    return _dataset(about, *found, origin, raw)


def labels_folder(folder: str | os.PathLike[str] | None) -> Folder:
    """The folder that the caller or the environment names; its part `multi`, if it has one."""
    return Folder.find(folder, part="multi")


def _from_folder(
    about: MultiLabelDescription, folder: str | os.PathLike[str] | None
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    place = labels_folder(folder)
    file = f"{about.name}.npz"
    content = place.arrays(file)
    if missing := {"X", "Y", "feature_names", "label_names"} - content.keys():
        raise InputError(f"{file} must have the arrays {', '.join(sorted(missing))} too. Fetch the file again.")
    return content, place.read


def _from_openml(
    about: MultiLabelDescription, cache: str | os.PathLike[str] | None
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    if not about.openml:
        raise NotHereError(f"{about.name} is not taken from there")
    home = None if cache is None else os.fspath(cache)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it tries again
            bunch = fetch_openml(
                data_id=about.openml, data_home=home, as_frame=False, parser="liac-arff", n_retries=1, delay=0.1
            )
    except OSError as error:  # urllib's errors are OSErrors
        raise NotHereError(f"data set {about.openml} cannot be fetched ({type(error).__name__})") from error
    except ValueError as error:  # a wrong sum, or a data set that was taken back
        raise InputError(f"Data set {about.openml} of OpenML cannot be used: {error}") from error
    Y = np.char.lower(np.asarray(bunch.target, dtype=np.str_))
    known = np.isin(Y, ("true", "1", "false", "0"))
    if not known.all():
        raise InputError(
            f"The labels of data set {about.openml} must be true or false; got {str(Y[~known][0])!r}. Delete it from "
            "scikit-learn's data folder to fetch it again."
        )
    names = {"feature_names": np.array(bunch.feature_names), "label_names": np.array(bunch.target_names)}
    return {"X": np.asarray(bunch.data), "Y": np.isin(Y, ("true", "1")), **names}, {}


def _dataset(
    about: MultiLabelDescription, content: dict[str, NDArray[Any]], files: dict[str, str], source: str, raw: bool
) -> MultiLabelDataset:
    X, Y = content["X"], content["Y"]
    features, labels = (tuple(str(name) for name in content[key]) for key in ("feature_names", "label_names"))
    expected = ((about.n_rows, about.n_features), (about.n_rows, about.n_labels))
    if (X.shape, Y.shape) != expected or (len(features), len(labels)) != (about.n_features, about.n_labels):
        raise InputError(
            f"{about.name} must have {about.n_rows} rows of {about.n_features} columns and {about.n_labels} labels, "
            f"all named; {source} gave {X.shape} and {Y.shape}. Fetch it again."
        )
    if X.dtype.kind not in "biuf" or not np.isfinite(X).all() or not np.isin(Y, (0, 1)).all():
        raise InputError(f"{about.name} must have finite numbers, and labels 0 and 1; {source} gave others.")
    split = None
    if {"mulan_train_idx", "mulan_test_idx"} <= content.keys():
        split = content["mulan_train_idx"].astype(np.int64), content["mulan_test_idx"].astype(np.int64)
        if not np.array_equal(np.sort(np.concatenate(split)), np.arange(about.n_rows)):
            raise InputError(f"The published split of {about.name} must hold every row once. Fetch the file again.")
    heavy = about.name == "majorminer" and not raw
    arrays: dict[str, Any] = {
        "X": np.ascontiguousarray(prepare_audio(X) if heavy else X, dtype=np.float32),
        "Y": np.ascontiguousarray(Y, dtype=np.uint8),
    }
    provenance = {
        "word": "substitute" if about.stands_for else "original",
        "stands_for": about.stands_for,
        "source": source,
        "files": dict(files),
        "preparation": "prepare_audio of all rows" if heavy else "",
        "sha256": {key: hashlib.sha256(array).hexdigest() for key, array in arrays.items()},
    }
    groups = content["artist"].astype(np.str_) if "artist" in content else None
    return MultiLabelDataset(
        name=about.name,
        feature_names=features,
        label_names=labels,
        groups=groups,
        split=split,
        provenance=provenance,
        **arrays,
    )


def prepare_audio(X: Any, reference: Any = None) -> NDArray[np.float64]:
    """Columns with heavy tails, which sums of squares cannot be taken of, made usable: (n, D), rows of norm 1.

    Values become sign(x) log(1 + |x|), then columns are centred and divided by their standard deviation, values beyond
    5 are cut off, and rows are divided by their norm.  Means and deviations are those of ``reference``, or of X itself.
    """
    rows, known = (_logarithm(part) for part in (X, X if reference is None else reference))
    if rows.shape[1] != known.shape[1]:
        raise InputError(f"`reference` must have {rows.shape[1]} columns, as X; it has {known.shape[1]}.")
    centre, spread = known.mean(0), known.std(0)
    constant = spread <= 1e-12 * (1 + np.abs(centre))  # nothing but rounding
    scaled = np.clip((rows - centre) / np.where(constant, 1.0, spread), -5, 5)
    norm = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(norm > 0, norm, 1.0)


def _logarithm(X: Any) -> NDArray[np.float64]:
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2 or not len(X) or not np.isfinite(X).all():
        raise InputError(f"Audio features must be a table (n, D) of finite numbers; got shape {X.shape}.")
    return np.sign(X) * np.log1p(np.abs(X))


def split_rows(n_rows: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of rows to train, validate and test on: 80, 10 and 10 % at random, the same for the same seed."""
    if n_rows < 10:
        raise InputError(f"`n_rows` must be at least 10, for one row in each part; got {n_rows}.")
    order, tenth = np.random.default_rng(seed).permutation(n_rows), n_rows // 10
    train, valid, test = np.split(order, [n_rows - 2 * tenth, n_rows - tenth])
    return train, valid, test


# --- by rule -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorrelatedLabels:
    """Rows X (n, D), labels Y (n, L), and the truth behind them.

    Y of a row is one of ``vectors`` (M, L); ``probabilities`` (n, M) says which, given the row.
    """

    X: NDArray[np.float32]
    Y: NDArray[np.uint8]
    vectors: NDArray[np.uint8]
    probabilities: NDArray[np.float64]

    @property
    def best_exact_match(self) -> float:
        """The share of rows of which the best rule there is gets all labels right, in expectation."""
        return float(self.probabilities.max(1).mean())

    @property
    def independent_exact_match(self) -> float:
        """The same for the rule that takes every label that is more probable than not, each on its own."""
        taken = self.probabilities @ self.vectors > 0.5
        return float((self.probabilities * (taken[:, None] == self.vectors).all(2)).sum(1).mean())


def make_correlated_labels(
    n_rows: int, n_features: int = 10, n_labels: int = 8, seed: int = 0, *, n_vectors: int = 12, sharpness: float = 1.5
) -> CorrelatedLabels:
    """Labels that depend on each other even when the row is known.

    Only ``n_vectors`` label vectors occur, drawn at random.  A row is drawn from N(0, 1), and its vector from the
    softmax of linear scores of the row, of standard deviation ``sharpness``.  Where several vectors are about as
    probable, the labels that are each the more probable ones often make a vector that never occurs.
    """
    if n_rows < 1 or n_features < 1 or not 1 <= n_labels <= 62 or not sharpness >= 0:
        raise InputError(
            "`n_rows` and `n_features` must be at least 1, `n_labels` from 1 to 62, and `sharpness` at least 0; "
            f"got {n_rows}, {n_features}, {n_labels} and {sharpness}."
        )
    if not 1 <= n_vectors <= 2**n_labels:
        raise InputError(f"`n_vectors` must be from 1 to {2**n_labels}, as {n_labels} labels have; got {n_vectors}.")
    rng = np.random.default_rng(seed)
    numbers = rng.choice(2**n_labels, n_vectors, replace=False)
    vectors = (numbers[:, None] >> np.arange(n_labels) & 1).astype(np.uint8)
    X = rng.standard_normal((n_rows, n_features))
    scores = sharpness * X @ rng.standard_normal((n_features, n_vectors)) / n_features**0.5
    odds = np.exp(scores - scores.max(1, keepdims=True))
    probabilities = odds / odds.sum(1, keepdims=True)
    drawn = (probabilities.cumsum(1)[:, :-1] < rng.random((n_rows, 1))).sum(1)
    return CorrelatedLabels(X.astype(np.float32), vectors[drawn], vectors, probabilities)
