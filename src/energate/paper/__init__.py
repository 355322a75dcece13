"""The paper's tables as data, run cell by cell into files, and reports of those files."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energate.paper.plan import PROFILES, TABLES, Profile, Table
    from energate.paper.report import markdown_table, write_report
    from energate.paper.running import Summary, run
    from energate.paper.work import Event

# Imported on first use: a report needs no torch, and listing the tables needs nothing.
_HOME = {
    **dict.fromkeys(("PROFILES", "TABLES", "Profile", "Table"), "plan"),
    **dict.fromkeys(("Summary", "run"), "running"),
    **dict.fromkeys(("markdown_table", "write_report"), "report"),
    "Event": "work",
}

__all__ = ["PROFILES", "TABLES", "Event", "Profile", "Summary", "Table", "markdown_table", "run", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'energate.paper' has no attribute {name!r}")
    return getattr(importlib.import_module(f"energate.paper.{_HOME[name]}"), name)
