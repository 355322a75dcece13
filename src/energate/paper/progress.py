"""The terminal while a table runs: cells done and left, what is running, its stage, epoch and best validation loss."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from energate.paper.work import Event, Task


@contextmanager
def showing(n_cells: int, n_there: int, show: Callable[[Event], None] | None) -> Iterator[Callable[[Event], None]]:
    """A function that shows events: the given one, bars in a terminal, or a line per task elsewhere."""
    if show is not None:
        yield show
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bars:
        yield Bars(bars, n_cells, n_there)


class Lines:
    """A line when a task ends: for files and logs."""

    def __init__(self, console: Console) -> None:
        self.console, self.began = console, time.monotonic()

    def __call__(self, event: Event) -> None:
        if event.kind in ("done", "failed"):
            text = f" ({event.text})" if event.text else ""
            line = f"{time.monotonic() - self.began:7.1f} s  {event.kind}  {event.task}{text}"
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class Bars:
    """A bar for all cells and one for every task that is running."""

    def __init__(self, bars: Progress, n_cells: int, n_there: int) -> None:
        self.bars = bars
        self.all = bars.add_task("cells", total=n_cells, completed=n_there, note="")
        self.running: dict[Task, TaskID] = {}

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self.running[event.task] = self.bars.add_task(str(event.task), total=None, note="")
            return
        bar = self.running.get(event.task)
        if event.kind == "epoch" and bar is not None:
            best = "" if event.best is None else f", best validation loss {event.best:.4f}"
            self.bars.update(bar, completed=event.epoch, total=event.n_epochs, note=f"{event.stage}{best}")
        elif event.kind in ("done", "failed"):
            if bar is not None:
                self.bars.remove_task(self.running.pop(event.task))
            self.bars.advance(self.all, event.task.n_cells)
            if event.kind == "failed":
                self.bars.console.print(f"failed: {event.task}: {event.text}", markup=False, highlight=False)
