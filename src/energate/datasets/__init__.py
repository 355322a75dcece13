"""Data sets: generators for now.  This package imports nothing else from energate but its errors."""

from energate.datasets.generators import make_rectangles
from energate.datasets.pairs import make_image_pairs, transform_images

__all__ = ["make_image_pairs", "make_rectangles", "transform_images"]
