"""Data sets by name, by rule, and from the user's files; imports no torch."""

from energate.datasets.generators import (
    add_noise,
    draw_patches,
    is_convex,
    make_convex,
    make_rectangles,
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
from energate.datasets.sheets import contact_sheet
from energate.datasets.store import Saved, at_hand, labels_at_hand, save_dataset, save_labels
from energate.datasets.suite import NAMES, Dataset, Description, describe_dataset, load_dataset
from energate.tables import load_arff, load_table

#: What `load_dataset` and `describe_dataset` were called; `energate.load` loads models.
load, describe = load_dataset, describe_dataset

__all__ = [
    "MULTILABEL_NAMES",
    "NAMES",
    "CorrelatedLabels",
    "Dataset",
    "Description",
    "MultiLabelDataset",
    "MultiLabelDescription",
    "Saved",
    "add_noise",
    "at_hand",
    "contact_sheet",
    "describe",
    "describe_dataset",
    "describe_multilabel",
    "draw_patches",
    "is_convex",
    "labels_at_hand",
    "load",
    "load_arff",
    "load_dataset",
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
    "save_dataset",
    "save_labels",
    "split_rows",
    "transform_images",
]
