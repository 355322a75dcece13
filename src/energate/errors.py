"""The errors that energate raises on purpose, and the way optional dependencies are asked for."""

import importlib
from typing import Any


class InputError(ValueError):
    """Something the caller handed over cannot be used.

    The message says what was expected, what came, and what to do about it.  The command line prints
    it as one line; a server answers it with a 4xx status.
    """


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def require(module: str, extra: str) -> Any:
    """Import an optional ``module``, or say which extra of energate installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"This needs `{module.partition('.')[0]}`, which is not installed. "
            f"Install it with: pip install 'energate[{extra}]'"
        ) from error
