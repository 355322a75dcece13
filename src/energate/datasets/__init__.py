"""Data sets by name, by rule, and from the user's files.  Imports nothing else from energate but its errors."""

from energate.datasets.convex import is_convex, make_convex
from energate.datasets.generators import make_rectangles
from energate.datasets.images import (
    add_noise,
    draw_patches,
    make_rectangles_images,
    put_on_photographs,
    rotate_mnist,
)
from energate.datasets.pairs import make_image_pairs, transform_images
from energate.datasets.suite import NAMES, Dataset, Description, describe, load
from energate.datasets.tables import load_table

__all__ = [
    "NAMES",
    "Dataset",
    "Description",
    "add_noise",
    "describe",
    "draw_patches",
    "is_convex",
    "load",
    "load_table",
    "make_convex",
    "make_image_pairs",
    "make_rectangles",
    "make_rectangles_images",
    "put_on_photographs",
    "rotate_mnist",
    "transform_images",
]
