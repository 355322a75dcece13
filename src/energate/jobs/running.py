"""`apply_files`: a model over many files, on an engine, into a folder; killed and run again, it goes on."""

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from energate.engines import Crew
from energate.errors import InputError
from energate.estimators.edge import resolve_device
from energate.jobs.engines import ENGINES
from energate.jobs.folder import Done, Folder, Status
from energate.jobs.inputs import find, look
from energate.jobs.plan import TASK_ROWS, Job, Task, to_work
from energate.persistence import read_about
from energate.views.applying import BaseColumns, Question

Tell = Callable[[int, int, int], object]


@dataclass(frozen=True)
class Finished:
    """How `apply_files` ended: parts of the job, those made now, rows of all that are there, and rows left out."""

    path: Path
    n_tasks: int
    n_made: int
    n_there: int
    n_rows: int
    n_skipped: int
    closed: bool
    seconds: float


def apply_files(
    model: str | os.PathLike[str],
    data: str | Sequence[str],
    output: str | os.PathLike[str],
    *,
    command: str = "predict",
    engine: str = "serial",
    workers: int | None = None,
    shard: tuple[int, int] | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    on_error: str = "fail",
    task_rows: int = TASK_ROWS,
    leave_out: Sequence[str] = (),
    levels: Mapping[str, float] | None = None,
    base: BaseColumns | None = None,
    prefix: str = "",
    part: str = "test",
    device: str = "auto",
    tell: Tell | None = None,
) -> Finished:
    """What a saved model says of each row of many files, as Parquet files in a folder.

    Run again, it makes the parts that are missing, on any engine: the folder is then the same, byte for byte, on
    machines of one kind.  A folder of another model, other files or another question is refused.

    Parameters
    ----------
    model : what `energate.save` wrote; every worker reads it there.
    data : names, folders and patterns (``"parts/*.parquet"``), here or at addresses that fsspec knows.
    output : the folder; workers on other machines must see it under the same name.
    engine : ``"serial"``, ``"processes"`` on this machine, or ``"ray"``.
    workers : how many; as many as processors by default.
    shard : ``(3, 16)`` makes the third of sixteen shares of the parts; the last to finish closes the job.
    address : of a Ray cluster, such as ``"auto"``; without it Ray is started here.
    on_error : ``"fail"`` at a row that cannot be used, or ``"skip"`` and list it in ``skipped-*.csv``.
    task_rows : row groups of a Parquet file are put together up to so many rows.
    command, leave_out, levels, base, prefix, part : as in `energate.apply_table`.
    tell : is told the parts that are there, the parts in all, and the rows in them.
    """
    began = time.monotonic()
    if engine not in ENGINES:
        raise InputError(f"`engine` must be one of {', '.join(ENGINES)}; got {engine!r}.")
    crew = Crew(workers if workers is not None else os.cpu_count() or 1, address, gpus_per_worker)
    source = Path(model).absolute()
    where = "cuda" if gpus_per_worker else resolve_device(device).type
    question = Question(command, tuple(leave_out), base, prefix, dict(levels or {}))
    folder = Folder(Path(output).absolute() if "://" not in str(output) else output, run=uuid.uuid4().hex[:12])
    folder.check()
    addresses = find([data] if isinstance(data, str) else data)
    with ThreadPoolExecutor(8) as pool:
        inputs = tuple(pool.map(look, addresses))
    job = Job(read_about(source).sha256, question, inputs, part, on_error, where, task_rows)
    mine = of_shard(job.tasks, shard)
    folder.take(job)
    done = folder.done(job, mine)
    n_there = len(done)
    left = [task for task in mine if task.number not in done]

    def say() -> None:
        if tell is not None:
            tell(len(done), len(mine), sum(each.n_rows for each in done.values()))

    say()
    if left:
        work = to_work(job, str(source), str(folder.path), folder.run)
        try:
            with contextlib.closing(ENGINES[engine](work, left, crew)) as engaged:
                for each in engaged:
                    done[each.task] = each
                    say()
        finally:
            folder.tidy()
    if len(mine) < len(job.tasks):
        done = folder.done(job, job.tasks)
    closed = len(done) == len(job.tasks)
    if closed:
        folder.close(job, done)
    rows, skipped = _sums(done)
    return Finished(folder.path, len(job.tasks), len(left), n_there, rows, skipped, closed, time.monotonic() - began)


def job_status(output: str | os.PathLike[str]) -> Status:
    """How far the job of a folder is."""
    return Folder(output).status()


def of_shard(tasks: Sequence[Task], shard: tuple[int, int] | None) -> list[Task]:
    """The tasks of one share: shards count from 1."""
    if shard is None:
        return list(tasks)
    number, of = shard
    if not 1 <= number <= of:
        raise InputError(f"`shard` must be from 1/{of} to {of}/{of}; got {number}/{of}. Shards count from 1.")
    return list(tasks[number - 1 :: of])


def _sums(done: dict[int, Done]) -> tuple[int, int]:
    return sum(each.n_rows for each in done.values()), sum(each.n_skipped for each in done.values())
