"""Requests that wait at the same time are computed together.

A batch is whatever has arrived while the last one was computed, up to a number of rows; where nothing waits, a request
starts at once.  Work that takes long has a thread beside the event loop, which goes on reading and writing meanwhile;
work that took less than `QUICK` seconds before is done in the loop itself, since the way to a thread and back costs as
much.  PyTorch does its own work in parallel, so that a second thread would only share the same cores.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energate.tables.room import lacks_memory

QUICK = 0.002  # seconds that nobody waits for in vain
Inputs = dict[str, Any]
Outputs = dict[str, Any]


class OverloadedError(Exception):
    """Too much is waiting already."""


def told(error: Exception) -> Exception:
    """What a request is told: the error, or a fresh `MemoryError`, which holds on to nothing, where memory is short."""
    return MemoryError() if lacks_memory(error) else error


@dataclass(frozen=True)
class Work:
    """A computation on lists that have one entry for each row, and give arrays that do; or, if alone, on anything."""

    name: str
    compute: Callable[..., Outputs]
    alone: bool = False


@dataclass
class Job:
    """A request's part of the work."""

    work: Work
    inputs: Inputs
    n_rows: int
    done: "asyncio.Future[Outputs]"


@dataclass
class Counts:
    """What a batcher has done so far."""

    batches: int = 0
    requests: int = 0
    rows: int = 0


@dataclass
class Batcher:
    """Takes requests, and answers them in batches of at most ``max_rows`` rows; ``max_waiting`` rows may wait.

    ``prepare`` is called in the thread before anything is computed there.
    """

    max_rows: int
    max_waiting: int
    prepare: Callable[[], object] | None = None
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._n_waiting = 0
        self._thread = ThreadPoolExecutor(1, "energate-batch", self.prepare)
        self._seconds: dict[str, float] = {}  # by work, that a row took the last time
        self._busy = self._due = self._prepared = False
        self._idle = asyncio.Event()

    @property
    def n_waiting(self) -> int:
        """Rows that wait."""
        return self._n_waiting

    def start(self) -> None:
        """Have the thread ready, which needs memory of its own, before there is anything to compute."""
        self._thread.submit(int)

    async def stop(self) -> None:
        """Finish what waits, then end."""
        while self._busy or self._waiting:
            self._idle.clear()
            await self._idle.wait()
        self._thread.shutdown(wait=True)

    async def submit(self, work: Work, inputs: Inputs, n_rows: int) -> Outputs:
        """The outputs for these rows; whatever else they are computed with."""
        if self._n_waiting and self._n_waiting + n_rows > self.max_waiting:
            raise OverloadedError
        job = Job(work, inputs, n_rows, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._n_waiting += n_rows
        self._plan()
        return await job.done

    def _plan(self) -> None:
        """Begin once the loop has read all that has arrived by now."""
        if not self._busy and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        jobs = self._take()
        if not jobs:
            self._idle.set()
        elif self._are_quick(jobs):
            if self.prepare is not None and not self._prepared:
                self.prepare()
            self._prepared = True
            self._finish(self._timed(jobs))
        else:
            self._busy = True
            try:
                running = asyncio.get_running_loop().run_in_executor(self._thread, self._timed, jobs)
            except (MemoryError, RuntimeError) as error:  # no thread
                self._finish([(job, told(error)) for job in jobs])
            else:
                running.add_done_callback(lambda done: self._finish(done.result()))

    def _are_quick(self, jobs: Sequence[Job]) -> bool:
        if any(job.work.alone for job in jobs):
            return False
        return sum(self._seconds.get(job.work.name, QUICK) * job.n_rows for job in jobs) < QUICK

    def _timed(self, jobs: Sequence[Job]) -> "list[tuple[Job, Outputs | Exception]]":
        began = time.perf_counter()
        try:
            results = computed(jobs)
        except Exception as error:  # memory may be short anywhere, and whoever waits must hear of it
            results = [(job, told(error)) for job in jobs]
        each = (time.perf_counter() - began) / max(1, sum(job.n_rows for job in jobs))
        self._seconds |= {job.work.name: each for job in jobs}
        return results

    def _finish(self, results: "list[tuple[Job, Outputs | Exception]]") -> None:
        self._busy = False
        for job, result in results:
            if job.done.done():  # the request was given up
                continue
            if isinstance(result, Exception):
                job.done.set_exception(result)
            else:
                job.done.set_result(result)
        if self._waiting:
            self._plan()
        else:
            self._idle.set()

    def _take(self) -> list[Job]:
        """The first that wait, up to the number of rows; at least one."""
        jobs: list[Job] = []
        n_rows = 0
        while self._waiting and (not jobs or n_rows + self._waiting[0].n_rows <= self.max_rows):
            job = self._waiting.popleft()
            self._n_waiting -= job.n_rows
            if not job.done.cancelled():
                jobs.append(job)
                n_rows += job.n_rows
        self.counts.batches += bool(jobs)
        self.counts.requests += len(jobs)
        self.counts.rows += n_rows
        return jobs


def computed(jobs: Sequence[Job]) -> list[tuple[Job, Outputs | Exception]]:
    """Each job with its outputs, or with what went wrong; jobs of one kind are computed together."""
    kinds: dict[Any, list[Job]] = {}
    for number, job in enumerate(jobs):
        key = number if job.work.alone else (job.work.name, *sorted(job.inputs))
        kinds.setdefault(key, []).append(job)
    results: list[tuple[Job, Outputs | Exception]] = []
    for group in kinds.values():
        together = _attempt(group)
        if isinstance(together, Exception) and len(group) > 1:
            # One request's mistake must not become another's: each alone shows whose it was.
            for job in group:
                alone = _attempt([job])
                results.append((job, alone if isinstance(alone, Exception) else alone[0]))
        elif isinstance(together, Exception):
            results.append((group[0], together))
        else:
            results += zip(group, together, strict=True)
    return results


def _attempt(jobs: list[Job]) -> list[Outputs] | Exception:
    try:
        return _together(jobs)
    except Exception as error:
        return told(error)


def _together(jobs: list[Job]) -> list[Outputs]:
    first = jobs[0]
    if len(jobs) == 1:
        return [first.work.compute(**first.inputs)]
    joined = {name: _joined([job.inputs[name] for job in jobs]) for name in first.inputs}
    outputs = first.work.compute(**joined)
    parts, start = [], 0
    for job in jobs:
        stop = start + job.n_rows
        parts.append({name: values[start:stop] for name, values in outputs.items()})
        start = stop
    return parts


def _joined(parts: list[Any]) -> Any:
    """Lists, or arrays where all are, one after the other."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [entry for part in parts for entry in part]
