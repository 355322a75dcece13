"""Requests that wait at the same time are computed together, in one thread beside the event loop.

A batch is whatever has arrived while the last one was computed, up to a number of rows; where nothing waits, a request
starts at once.  PyTorch does its own work in parallel, so that a second thread would only share the same cores.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

Inputs = dict[str, Any]
Outputs = dict[str, Any]


class OverloadedError(Exception):
    """Too much is waiting already."""


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
        self._arrived = asyncio.Event()
        self._n_waiting = 0
        self._thread = ThreadPoolExecutor(1, "energate-batch", self.prepare)
        self._loop: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def n_waiting(self) -> int:
        """Rows that wait."""
        return self._n_waiting

    def start(self) -> None:
        """Begin to work; call it in the event loop."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Finish what waits, then end."""
        self._stopping = True
        self._arrived.set()
        if self._loop is not None:
            await self._loop
        self._thread.shutdown(wait=True)

    async def submit(self, work: Work, inputs: Inputs, n_rows: int) -> Outputs:
        """The outputs for these rows; whatever else they are computed with."""
        if self._loop is None:  # some servers do not tell an application that they start
            self.start()
        if self._n_waiting and self._n_waiting + n_rows > self.max_waiting:
            raise OverloadedError
        job = Job(work, inputs, n_rows, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._n_waiting += n_rows
        self._arrived.set()
        return await job.done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            jobs = self._take()
            if not jobs and self._stopping:
                return
            for job, result in await loop.run_in_executor(self._thread, computed, jobs):
                if job.done.done():  # the request was given up
                    continue
                if isinstance(result, Exception):
                    job.done.set_exception(result)
                else:
                    job.done.set_result(result)

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
        if not self._waiting and not self._stopping:
            self._arrived.clear()
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
        return error


def _together(jobs: list[Job]) -> list[Outputs]:
    first = jobs[0]
    if len(jobs) == 1:
        return [first.work.compute(**first.inputs)]
    joined = {name: [entry for job in jobs for entry in job.inputs[name]] for name in first.inputs}
    outputs = first.work.compute(**joined)
    parts, start = [], 0
    for job in jobs:
        stop = start + job.n_rows
        parts.append({name: values[start:stop] for name, values in outputs.items()})
        start = stop
    return parts
