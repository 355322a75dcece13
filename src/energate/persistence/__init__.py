"""Saved models: `save`, `load`, and what the files say before anything is loaded.

They are imported on first use: `look` refuses a path at which there is no model before torch is there.
"""

import importlib
from typing import TYPE_CHECKING, Any

from energate.persistence._store import look

if TYPE_CHECKING:
    from energate.persistence.archive import About, check_path, load, read_about, read_columns, save
    from energate.persistence.config import SCHEMA

__all__ = ["SCHEMA", "About", "check_path", "load", "look", "read_about", "read_columns", "save"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("energate.persistence.archive"), name)
