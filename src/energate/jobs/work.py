"""What a worker does, on whatever engine: it loads the model once, and makes the parts of tasks."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from energate.errors import InputError
from energate.jobs.folder import KEY, Done, Folder
from energate.jobs.inputs import opened
from energate.jobs.plan import Job, Task, job_of
from energate.persistence import read_about
from energate.persistence.loaded import Loaded
from energate.tables.writing import ParquetWriter


@contextmanager
def one_thread() -> Iterator[None]:
    """The last bits of a product depend on the number of threads that it is cut over: parts are made by one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """A loaded model that makes parts."""

    def __init__(self, job: Job, model: Path, folder: Folder) -> None:
        if not model.exists():
            raise InputError(f"There is no model at {str(model)!r}, which every worker reads it from.")
        if read_about(model).sha256 != job.model:
            raise InputError(f"{model} is not the model that the job began with.")
        self.job, self.folder = job, folder
        loaded = Loaded.of(model, job.device)
        loaded.base(job.question.command, *_base(job))
        self.asking = job.question.of(loaded.table)

    @classmethod
    def of(cls, work: dict[str, Any]) -> "Worker":
        """A worker for what `energate.jobs.plan.to_work` made."""
        return cls(job_of(work["job"]), Path(work["model"]), Folder(work["folder"], work["run"]))

    def do(self, task: Task) -> Done:
        """Make a part, unless it is there."""
        there = self.folder.part_of(self.job, task)
        if there is not None:
            return there
        with one_thread(), opened(self.job.piece(task), self.job.part) as source:
            skipped = list[tuple[int, str]]()
            skip = None if self.job.on_error == "fail" else lambda row, why: skipped.append((row, why))
            n_rows = 0
            with self.folder.written(task.part) as file:
                with ParquetWriter(file, checked=True) as writer:
                    for answer in self.asking.answers(source, skipped=skip):
                        writer.write({**answer.carried, **answer.said})
                        n_rows += answer.n_rows
                    if not n_rows:
                        writer.write(self.asking.nothing(source))
                    writer.note(KEY, {**self.job.in_footer(task), "rows": n_rows, "skipped": len(skipped)})
                self._list(task, skipped)  # before the part has its name: a part that is there has its list
        return Done(task.number, n_rows, len(skipped))

    def _list(self, task: Task, skipped: list[tuple[int, str]]) -> None:
        if not skipped:
            return
        name = self.job.inputs[task.file].name
        with self.folder.written(task.skipped) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
            lines = csv.writer(text, lineterminator="\n")
            lines.writerow(["file", "row", "why"])
            lines.writerows((name, task.first_row + row + 1, why) for row, why in skipped)
            text.detach()


def _base(job: Job) -> tuple[str | None, str]:
    base = job.question.base
    return (None, "") if base is None else (base.prefix, base.kind)
