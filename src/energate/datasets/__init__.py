"""Data sets by name, by rule, and from the user's files.  Imports nothing else from energate but its errors."""

from energate.datasets.arff import load_arff
from energate.datasets.convex import is_convex, make_convex
from energate.datasets.generators import make_rectangles
from energate.datasets.images import (
    add_noise,
    draw_patches,
    make_rectangles_images,
    put_on_photographs,
    rotate_mnist,
)
from energate.datasets.multilabel import (
    MULTILABEL_NAMES,
    CorrelatedLabels,
    MultiLabelDataset,
    MultiLabelDescription,
    describe_multilabel,
    load_multilabel,
    make_correlated_labels,
    prepare_audio,
    split_rows,
)
from energate.datasets.pairs import make_image_pairs, transform_images
from energate.datasets.suite import NAMES, Dataset, Description, describe, load
from energate.datasets.tables import load_table

__all__ = [
    "MULTILABEL_NAMES",
    "NAMES",
    "CorrelatedLabels",
    "Dataset",
    "Description",
    "MultiLabelDataset",
    "MultiLabelDescription",
    "add_noise",
    "describe",
    "describe_multilabel",
    "draw_patches",
    "is_convex",
    "load",
    "load_arff",
    "load_multilabel",
    "load_table",
    "make_convex",
    "make_correlated_labels",
    "make_image_pairs",
    "make_rectangles",
    "make_rectangles_images",
    "prepare_audio",
    "put_on_photographs",
    "rotate_mnist",
    "split_rows",
    "transform_images",
]
