"""Who runs the tasks of a job: this process, others on this machine, or Ray.

An engine is a function from the work and its tasks to what was done, in whatever order it is finished.  It owns
nothing: parts and their names are the job's, so that engines may be changed in the middle of it.  A worker that dies is
replaced, and its task given again, but not for ever: `TRIES`.
"""

import json
import os
import selectors
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from energate.engines import Actors, Crew, reaching_ray
from energate.errors import InputError
from energate.jobs.folder import Done
from energate.jobs.plan import Task
from energate.jobs.work import Worker

TRIES = 5  # a task that has ended so many workers will end the next one, too


Engine = Callable[[dict[str, Any], Sequence[Task], Crew], Generator[Done, None, None]]


def serial(work: dict[str, Any], tasks: Sequence[Task], _: Crew) -> Generator[Done, None, None]:
    """One task after the other, here."""
    worker = Worker.of(work)
    for task in tasks:
        yield worker.do(task)


def given_up(task: Task) -> InputError:
    """Of a task that ends its workers."""
    return InputError(
        f"{task.part} ended {TRIES} workers one after the other; perhaps there is not enough memory. Give fewer "
        "--workers, or a smaller --task-rows; parts that are there are not made again."
    )


# --- processes ---------------------------------------------------------------------------------------------------


class _Process:
    """A worker in a process of its own, and the task that it has."""

    def __init__(self, work: dict[str, Any]) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "energate.jobs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads},
            start_new_session=True,  # Ctrl-C is for the driver, which then ends its workers
        )
        self.task: Task | None = None
        self.ready = False
        self.say(work)

    def say(self, found: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(found) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead, which its output tells, too

    def heard(self) -> dict[str, Any] | None:
        """Its next answer; None if it is dead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def end(self) -> None:
        self.process.kill()  # parts have their names when they are whole, so that this harms nothing
        self.process.communicate()


def processes(work: dict[str, Any], tasks: Sequence[Task], crew: Crew) -> Generator[Done, None, None]:
    """So many worker processes on this machine."""
    left, tries, n_dead = deque(tasks), Counter[int](), 0
    here = list[_Process]()
    with selectors.DefaultSelector() as answers:

        def start() -> None:
            worker = _Process(work)
            here.append(worker)
            answers.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

        def drop(worker: _Process) -> None:
            answers.unregister(worker.process.stdout)  # type: ignore[arg-type]
            here.remove(worker)
            worker.end()

        try:
            for _ in range(min(crew.workers, len(tasks))):
                start()
            while here:
                for key, _ in answers.select():
                    worker: _Process = key.data
                    found = worker.heard()
                    if found is None:
                        drop(worker)
                        n_dead = 0 if worker.ready else n_dead + 1
                        if n_dead >= TRIES:
                            raise InputError(f"{TRIES} workers ended before they were ready; see what they said above.")
                        if worker.task is not None:
                            tries[worker.task.number] += 1
                            if tries[worker.task.number] >= TRIES:
                                raise given_up(worker.task)
                            left.appendleft(worker.task)
                        if left:
                            start()
                        continue
                    if "error" in found:
                        raise InputError(found["error"])
                    worker.ready = True
                    if "task" in found:
                        worker.task = None
                        yield Done(**found)
                    if left:
                        worker.task = left.popleft()
                        worker.say(worker.task.number)
                    else:
                        drop(worker)
        finally:
            for worker in list(here):
                drop(worker)


# --- Ray ---------------------------------------------------------------------------------------------------------


class _Actor:
    """A worker that Ray keeps; it answers an error of ours as text, since Ray would print the rest around it."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work, self.worker = work, list[Worker]()

    def do(self, number: int) -> dict[str, Any]:
        try:
            if not self.worker:  # not when it is made: what is wrong with the model is then an answer, too
                self.worker.append(Worker.of(self.work))
            (worker,) = self.worker
            return asdict(worker.do(worker.job.tasks[number]))
        except InputError as error:
            return {"error": str(error)}


def on_ray(work: dict[str, Any], tasks: Sequence[Task], crew: Crew) -> Generator[Done, None, None]:
    """Actors of Ray, on a cluster at an address, or on this machine; rows never pass through its store."""
    with reaching_ray(crew) as ray:
        n_workers, left = min(crew.workers, len(tasks)), deque(tasks)
        with closing(Actors(ray, _Actor, (work,), n_workers, crew.gpus_per_worker, TRIES)) as actors:
            while left or actors.waiting:
                while left and actors.idle:
                    task = left.popleft()
                    actors.give(task, task.number)
                for task, found in actors.finished():
                    if isinstance(found, ray.exceptions.RayActorError):
                        raise given_up(task) from found
                    if isinstance(found, Exception):
                        raise found
                    if "error" in found:
                        raise InputError(found["error"])
                    yield Done(**found)


ENGINES: dict[str, Engine] = {"serial": serial, "processes": processes, "ray": on_ray}
