"""What a job is, as it stands in its folder: the model, the question, the files, and the tasks that they are cut into.

The plan is a function of these alone, so that every machine and every engine makes the same one.  ``Job.sha256`` names
it; it stands in every part, and parts of different jobs never share a folder.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from energate.errors import InputError
from energate.jobs.inputs import Input, Piece
from energate.views.applying import BaseColumns, Question

FORMAT, VERSION = "energate job", 1
TASK_ROWS = 250_000
ON_ERROR = ("fail", "skip")


@dataclass(frozen=True)
class Task:
    """What one part is made of: a file, or some of its row groups."""

    number: int
    file: int  # of the job's inputs
    row_groups: tuple[int, ...]  # none: the whole file
    first_row: int

    @property
    def part(self) -> str:
        """The file that it becomes."""
        return f"part-{self.number:05d}.parquet"

    @property
    def skipped(self) -> str:
        """The file with the rows that could not be used, if there are any."""
        return f"skipped-{self.number:05d}.csv"


@dataclass(frozen=True)
class Job:
    """A question to a model about the rows of files; ``addresses`` say where those are now, and are no part of it."""

    model: str  # its sha256
    question: Question
    inputs: tuple[Input, ...]
    part: str = "test"
    on_error: str = "fail"
    device: str = "cpu"
    task_rows: int = TASK_ROWS

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise InputError(f"`on_error` must be one of {', '.join(ON_ERROR)}; got {self.on_error!r}.")
        if self.task_rows < 1:
            raise InputError(f"`task_rows` must be at least 1; got {self.task_rows!r}.")

    @cached_property
    def tasks(self) -> list[Task]:
        """Whole files, but a Parquet file by row groups, as many together as do not exceed ``task_rows``."""
        found = list[Task]()
        for number, each in enumerate(self.inputs):
            if not each.row_groups and each.name.lower().endswith(".parquet"):
                continue  # no rows
            for groups, first in cut(each.row_groups, self.task_rows) or [((), 0)]:
                found.append(Task(len(found), number, groups, first))
        if not found:
            raise InputError(f"{self.inputs[0].name if len(self.inputs) == 1 else 'The files'} have no rows.")
        return found

    def piece(self, task: Task) -> Piece:
        """Where the rows of a task are."""
        return Piece(self.inputs[task.file].address, task.row_groups, task.first_row)

    @cached_property
    def sha256(self) -> str:
        """What it is named by."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """All that its parts depend on."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "device": self.device,
            **json.loads(json.dumps(asdict(self.question))),
            "part": self.part,
            "on_error": self.on_error,
            "task_rows": self.task_rows,
            "inputs": [each.known_by() for each in self.inputs],
            "tasks": len(self.tasks),
        }

    def in_footer(self, task: Task) -> dict[str, Any]:
        """What a part says of itself."""
        about = {**asdict(task), "file": self.inputs[task.file].name}
        return {"job": self.sha256, "model": self.model, "task": json.loads(json.dumps(about))}


def cut(rows: Sequence[int], most: int) -> list[tuple[tuple[int, ...], int]]:
    """Row groups that follow each other, together while they have no more rows than this; and their first row."""
    found, group, n_group, start = list[tuple[tuple[int, ...], int]](), list[int](), 0, 0
    for number, n_rows in enumerate(rows):
        if group and n_group + n_rows > most:
            found.append((tuple(group), start))
            start, group, n_group = start + n_group, [], 0
        group.append(number)
        n_group += n_rows
    return [*found, (tuple(group), start)] if group else found


def differences(there: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What two jobs differ in, in words."""
    words = {"model": "another model", "inputs": "other input files", "tasks": "other input files"}
    names = [name for name in wanted if name != "sha256" and there.get(name) != wanted[name]]
    return list(dict.fromkeys(words.get(name, f"another {name}") for name in names))


def to_work(job: Job, model: str, folder: str, run: str) -> dict[str, Any]:
    """A job for a worker elsewhere, as JSON: also where things are."""
    return {"job": json.loads(json.dumps(asdict(job))), "model": model, "folder": folder, "run": run}


def job_of(found: dict[str, Any]) -> Job:
    """A `Job` that went through JSON."""
    base = found["question"]["base"]
    question = {**found["question"], "leave_out": tuple(found["question"]["leave_out"])}
    question["base"] = None if base is None else BaseColumns(**base)
    inputs = tuple(Input(**{**each, "row_groups": tuple(each["row_groups"])}) for each in found["inputs"])
    return Job(**{**found, "question": Question(**question), "inputs": inputs})
