"""Data sets: generators for now.  This package imports nothing else from energate but its errors."""

from energate.datasets.generators import make_rectangles

__all__ = ["make_rectangles"]
