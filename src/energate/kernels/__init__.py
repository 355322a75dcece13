"""Fast paths that equal the plain formulas: how exact products are, and potentials of hidden units in one pass."""

from energate.kernels.precision import PRECISIONS, computing, kind_of_products, scoring

__all__ = ["PRECISIONS", "computing", "kind_of_products", "scoring"]
