"""The folder of a job: ``job.json``, which says what it is, its parts, and ``manifest.json``, which closes it.

A part is written beside its place, flushed to the disk and then renamed: under its name it is whole.  What its footer
says of job, task and rows decides whether it has to be made again.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from energate.errors import InputError, require
from energate.files import written_whole
from energate.jobs.plan import FORMAT, Job, Task, differences

JOB, MANIFEST = "job.json", "manifest.json"
KEY = b"energate"
_REST = ".unfinished"


@dataclass(frozen=True)
class Done:
    """A part that is there."""

    task: int
    n_rows: int
    n_skipped: int


@dataclass(frozen=True)
class Status:
    """How far a job is: ``damaged`` parts cannot be read and will be made again; ``closed`` when it is complete."""

    job: dict[str, Any]
    n_tasks: int
    n_done: int
    n_rows: int
    n_skipped: int
    damaged: list[str] = field(default_factory=list)
    closed: bool = False


class Folder:
    """Where the parts of a job are; ``run`` names the run whose files that are not whole yet are told by."""

    def __init__(self, path: str | os.PathLike[str], run: str = "") -> None:
        if "://" in str(path):
            raise InputError(f"The output must be a folder of this machine, or a mounted one; got {str(path)!r}.")
        self.path, self.run = Path(path), run

    # --- the job -----------------------------------------------------------------------------------------------

    def take(self, job: Job) -> None:
        """Make the folder that of this job; refuses one that is another's, or has other files in it."""
        wanted = {**job.to_json(), "sha256": job.sha256}
        if (self.path / JOB).exists():
            there = self.job()
            if there != wanted:
                raise InputError(
                    f"{self.path} holds the parts of a job with {', '.join(differences(there, wanted))}; they are not "
                    "mixed. Choose another --output, or remove that folder."
                )
            return
        self.check()
        with written_whole(self.path / JOB) as file:
            file.write(_json(wanted))

    def check(self) -> None:
        """Refuse, before work begins, what is no place for parts: a file, or a folder of something else."""
        is_job = (self.path / JOB).exists()
        if self.path.exists() and not is_job and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InputError(f"{self.path} is there already and is no folder of a job. Choose another --output.")

    def job(self) -> dict[str, Any]:
        """What ``job.json`` says."""
        path = self.path / JOB
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} is no folder of a job: {JOB} cannot be read.") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError(f"{path} is no description of a job.")
        return found

    # --- parts -------------------------------------------------------------------------------------------------

    def done(self, job: Job, tasks: Sequence[Task]) -> dict[int, Done]:
        """The parts of these tasks that are there and whole."""
        there = set(os.listdir(self.path))
        found = (self.part_of(job, task) for task in tasks if task.part in there)
        return {each.task: each for each in found if each is not None}

    def part_of(self, job: Job, task: Task) -> Done | None:
        """The part of a task if it is there, whole, and this job's."""
        about = footer(self.path / task.part)
        if about is None:
            return None
        if about.get("job") != job.sha256:
            raise InputError(f"{self.path / task.part} is of another job; parts are not mixed. Remove it.")
        expected = job.in_footer(task)
        if {name: about.get(name) for name in expected} != expected:
            return None
        if about["skipped"] and not (self.path / task.skipped).exists():
            return None
        return Done(task.number, about["rows"], about["skipped"])

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[IO[bytes]]:
        """A file that takes its name when all of it is on the disk; an error, and Ctrl-C, leave nothing."""
        path = self.path / name
        rest = self.path / f".{name}.{self.run}.{socket.gethostname()}.{os.getpid()}{_REST}"
        try:
            with rest.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            rest.replace(path)
            self._flush()
        except FileNotFoundError as error:  # another driver closed the job meanwhile, and tidied up
            if not path.exists():
                raise _unwritable(path, error) from error
        except OSError as error:
            raise _unwritable(path, error) from error
        finally:
            with contextlib.suppress(OSError):
                rest.unlink()

    def tidy(self) -> None:
        """Remove what workers of this run had not finished when they were ended."""
        for rest in self.path.glob(f".*.{self.run}.*{_REST}"):
            with contextlib.suppress(OSError):
                rest.unlink()

    def _flush(self) -> None:
        """Put the new name on the disk, too."""
        with contextlib.suppress(OSError):  # some file systems do not let folders be opened
            handle = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self, job: Job, done: dict[int, Done]) -> None:
        """Say that all parts are there, and remove what killed workers left."""
        parts = [
            {
                "part": task.part,
                "file": job.inputs[task.file].name,
                "row_groups": list(task.row_groups),
                "rows": done[task.number].n_rows,
                "skipped": done[task.number].n_skipped,
                "bytes": (self.path / task.part).stat().st_size,
            }
            for task in job.tasks
        ]
        totals = {
            "rows": sum(each.n_rows for each in done.values()),
            "skipped": sum(each.n_skipped for each in done.values()),
        }
        for rest in self.path.glob(f".*{_REST}"):
            rest.unlink(missing_ok=True)
        for rest in self.path.glob(f".{JOB}.*.part"):
            rest.unlink(missing_ok=True)
        for each in (task for task in job.tasks if not done[task.number].n_skipped):
            (self.path / each.skipped).unlink(missing_ok=True)  # of a worker that was killed before its part was there
        with self.written(MANIFEST) as file:
            file.write(_json({**job.to_json(), "sha256": job.sha256, **totals, "parts": parts}))

    def status(self) -> Status:
        """How far the job is, by the footers of its parts."""
        job = self.job()
        names = sorted(name for name in os.listdir(self.path) if name.startswith("part-"))
        abouts = {name: footer(self.path / name) for name in names}
        good = [about for about in abouts.values() if about is not None and about.get("job") == job["sha256"]]
        bad = [name for name, about in abouts.items() if about is None or about.get("job") != job["sha256"]]
        rows, skipped = (sum(about[what] for about in good) for what in ("rows", "skipped"))
        closed = (self.path / MANIFEST).exists()
        return Status(job, job["tasks"], len(good), rows, skipped, bad, closed)


def footer(path: Path) -> dict[str, Any] | None:
    """What a part says of itself; None if it is no whole part."""
    pa, parquet = require("pyarrow", "tables"), require("pyarrow.parquet", "tables")
    try:
        about = parquet.read_metadata(path)
        found: dict[str, Any] = json.loads((about.metadata or {}).get(KEY, b"null"))
    except (pa.ArrowException, OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("rows") == about.num_rows else None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot be written ({error.strerror or error}). Name a place where you may write, with enough room; "
        "parts that are there are not made again."
    )


def _json(found: dict[str, Any]) -> bytes:
    return (json.dumps(found, indent=1) + "\n").encode()
