"""Ray, as far as it is needed: workers that do one thing at a time and are restarted where they die.

Only its core is used.  Data, models and results go by files, and Ray carries their names.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from energate.errors import InputError, require


@dataclass(frozen=True)
class Crew:
    """How many workers, and for Ray the address of a cluster and the GPUs of each worker."""

    workers: int = 1
    address: str | None = None
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"`workers` must be at least 1; got {self.workers!r}.")


@contextmanager
def reaching_ray(crew: Crew) -> Iterator[Any]:
    """Ray at an address, or on this machine; one that was started here ends here."""
    ray = require("ray", "ray")
    began = not ray.is_initialized()
    if began:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        local = {"include_dashboard": False, "num_cpus": crew.workers} if crew.address is None else {}
        address = crew.address or "local"
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"Ray cannot be reached at {address!r} ({' '.join(str(error).split())}).") from error
    try:
        yield ray
    finally:
        if began:
            ray.shutdown()


class Actors:
    """Some workers of Ray, each an object of ``kind`` that is made from ``given`` and has a method ``do``.

    One that dies is restarted, and what it was at is done again, but no more than ``retries`` times.
    """

    def __init__(self, ray: Any, kind: type, given: tuple[Any, ...], n_workers: int, gpus: float, retries: int) -> None:
        self.ray, self.waiting = ray, dict[Any, tuple[Any, Any]]()
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": retries}
        actor = ray.remote(**options)(kind)
        self.every = [actor.remote(*given) for _ in range(n_workers)]
        self.idle = list(reversed(self.every))

    def give(self, what: Any, *arguments: Any) -> None:
        """Let one that is idle do something; ``what`` it is called by."""
        worker = self.idle.pop()
        self.waiting[worker.do.remote(*arguments)] = worker, what

    def finished(self, seconds: float | None = None) -> list[tuple[Any, Any]]:
        """What has been done, waiting so long for the first, and its answer; an exception if it ended its workers."""
        found = []
        for each in self.ray.wait(list(self.waiting), timeout=seconds)[0] if self.waiting else []:
            worker, what = self.waiting.pop(each)
            self.idle.append(worker)
            try:
                found.append((what, self.ray.get(each)))
            except self.ray.exceptions.RayError as error:
                found.append((what, error))
        return found

    def close(self) -> None:
        """End them all, whatever they are at."""
        for worker in self.every:
            self.ray.kill(worker)
