"""Saved models: `save`, `load`, and what the files say before anything is loaded."""

from energate.persistence.archive import SCHEMA, About, check_path, load, read_about, read_columns, save

__all__ = ["SCHEMA", "About", "check_path", "load", "read_about", "read_columns", "save"]
