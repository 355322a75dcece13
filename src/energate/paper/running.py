"""`run`: the cells of a table, each into a file of its own, several at a time, going on where it stopped."""

import multiprocessing
import os
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

from energate.claims import Claims
from energate.engines import Actors, Crew, reaching_ray
from energate.errors import InputError
from energate.estimators.edge import resolve_device
from energate.paper import spaces, work
from energate.paper.cell import Cell, Run, find_cell, note_run, place_of
from energate.paper.plan import PROFILES, TABLES, Profile, Table
from energate.paper.systems import FAMILIES, SYSTEMS
from energate.paper.work import Event, Task, device_name, today

ENGINES = ("serial", "processes", "ray")
WAIT = 1.0  # seconds until it is asked again whether others are done with what is left


@dataclass
class Summary:
    """How a run ended."""

    n_done: int = 0
    n_skipped: int = 0
    n_failed: int = 0
    n_left: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)


def run(
    table: str,
    *,
    profile: str = "quick",
    data: Sequence[str] | None = None,
    systems: Sequence[str] | None = None,
    seeds: int | None = None,
    results: str | os.PathLike[str] = "results",
    device: str = "auto",
    jobs: int = 1,
    engine: str | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    limit: float | None = None,
    source: str = "auto",
    folder: str | os.PathLike[str] | None = None,
    show: Callable[[Event], None] | None = None,
) -> Summary:
    """Run a table of `TABLES`: for every data set and system choose hyper-parameters, then fit and test every seed.

    Parameters
    ----------
    profile : a name in `PROFILES`.
    data, systems : only these; all that the profile and the table have by default.
    seeds : how many; the profile's number by default.  Systems that are not random get one.
    results : the folder under which ``<table>/<data set>/<system>/seed<k>.json`` and ``search.json`` are written.
        What is there already, with the same configuration, is not run again.
    device : ``"auto"``, ``"cpu"``, ``"cuda"``.
    jobs : tasks at the same time, each in a process of its own; 1 stays in this one.
    engine : ``"serial"``, ``"processes"`` or ``"ray"``; by ``jobs`` if left out.  Whatever it is, others that run the
        same table into the same folder, on this machine or on one that sees it, share the cells with this one.
    address, gpus_per_worker : of Ray: that of a cluster, such as ``"auto"``, and the GPUs of each of the ``jobs``
        workers; without an address Ray is started here.
    limit : minutes after which no further task is started.
    source, folder : where the data sets come from, as in `energate.datasets.load`.
    show : called with every `Event`; the terminal shows them by default.
    """
    if jobs < 1 or (limit is not None and limit <= 0) or (seeds is not None and seeds < 1):
        raise InputError(f"`jobs`, `seeds` and `limit` must be above 0; got {jobs}, {seeds} and {limit}.")
    resolve_device(device)  # refused here rather than by every cell
    engine = _engine(engine, jobs, address, gpus_per_worker)
    place = Path(results).absolute()
    plan = Agenda(_known(table, TABLES, "table"), _known(profile, PROFILES, "profile"), place, seeds)
    plan.choose(data, systems)
    with (
        _scratch(place if engine == "ray" and plan.ready else None) as scratch,
        showing(plan.n_cells, plan.summary.n_skipped, show) as tell,
        Claims(place / plan.table.name / ".claims") as claims,
    ):
        where = None if folder is None else Path(folder).absolute()
        settings = work.Settings(plan.table, plan.profile, place, scratch, device, source, where)
        began = time.monotonic()
        try:
            with _runner(engine, tell, Crew(jobs, address, gpus_per_worker)) as runner:
                return _loop(plan, settings, runner, claims, tell, began, limit)
        finally:
            if plan.summary.n_done:
                _note_run(plan, device, jobs, time.monotonic() - began)


def _engine(engine: str | None, jobs: int, address: str | None, gpus_per_worker: float) -> str:
    if engine is None:
        engine = "serial" if jobs == 1 else "processes"
    if engine not in ENGINES:
        raise InputError(f"`engine` must be one of {', '.join(ENGINES)}; got {engine!r}.")
    if engine == "serial" and jobs > 1:
        raise InputError(f"`engine` 'serial' does one task at a time; got jobs={jobs}. Choose 'processes' or 'ray'.")
    if engine != "ray" and (address is not None or gpus_per_worker):
        raise InputError("`address` and `gpus_per_worker` are for `engine` 'ray'.")
    return engine


def _scratch(shared: Path | None) -> "tempfile.TemporaryDirectory[str]":
    """Where data sets are put, once read: with the results, if workers may be on other machines."""
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="energate-" if shared is None else ".scratch-", dir=shared)


def _note_run(plan: "Agenda", device: str, jobs: int, seconds: float) -> None:
    """A line in ``runs.jsonl``: what the clock said, where several tasks share a device."""
    line = Run(
        table=plan.table.name,
        profile=plan.profile.name,
        date=today(),
        device=device_name(str(resolve_device(device))),
        jobs=jobs,
        cells=plan.summary.n_done,
        seconds=round(seconds, 1),
    )
    note_run(plan.results / plan.table.name / "runs.jsonl", line)


def _known(name: str, names: dict[str, Any], what: str) -> Any:
    if name not in names:
        raise InputError(f"There is no {what} {name!r}; there are: {', '.join(names)}.")
    return names[name]


# --- what is to be done ------------------------------------------------------------------------------------------


class Agenda:
    """Which tasks are to be done, and which of them can be done now."""

    def __init__(self, table: Table, profile: Profile, results: Path, seeds: int | None) -> None:
        self.table, self.profile, self.results = table, profile, results
        self.seeds = profile.repeats(table) if seeds is None else seeds
        self.ready: deque[Task] = deque()
        self.first: dict[str, list[Task]] = {}  # of every data set: what can be done once it is loaded
        self.summary = Summary()
        self.n_cells = 0

    def choose(self, data: Sequence[str] | None, systems: Sequence[str] | None) -> None:
        """Take the named rows and columns, and begin with what each of them needs first."""
        all_data = self.profile.data_of(self.table)
        self.data, self.systems = _chosen(data, all_data, "data set"), _chosen(systems, self.table.systems, "system")
        for name in self.data:
            self.n_cells += sum(self._n_seeds(system) for system in self._systems_of(name))
            if self.table.labels:
                self.first[name] = self._label_tasks(name)
            else:
                # Backwards: the slowest systems are the last of a table, and better not begun last.
                self.first[name] = [task for system in reversed(self.systems) for task in self._next(name, system)]
            if self.first[name]:
                self.ready.append(Task("data", name))
        self.summary.n_skipped = self.n_cells - sum(map(self._n_cells_of, self.ready))

    def _n_seeds(self, system: str) -> int:
        """A system that is not random has one seed; every system has all splits."""
        return self.seeds if SYSTEMS[self.table.labels][system].random else 1

    def _systems_of(self, data: str) -> list[str]:
        return [system for system in self.systems if (data, system) not in self.table.left_out]

    def _label_tasks(self, data: str) -> list[Task]:
        """Of every split and family, the systems that are left."""
        wanted, tasks = set(self._systems_of(data)), []
        for split in range(self.seeds):
            for family, members in FAMILIES.items():
                parts = tuple(
                    name for name in members if name in wanted and not self._label_cell_done(data, name, split)
                )
                if parts:
                    tasks.append(Task("labels", data, family, split, parts))
        return tasks

    def _label_cell_done(self, data: str, system: str, split: int) -> bool:
        found = self._finished(data, system, split)
        return found is not None and found.recipe == work.recipe(system, data, self.profile)

    def _next(self, data: str, system: str) -> list[Task]:
        """The search, or the seeds that are left once it is done."""
        config = spaces.configuration(self.results, self.table.name, data, system, self.profile)
        if config is None:
            return [Task("search", data, system)]
        wanted = spaces.as_json(config)
        found = ((seed, self._finished(data, system, seed)) for seed in range(self._n_seeds(system)))
        return [Task("cell", data, system, seed) for seed, cell in found if cell is None or cell.config != wanted]

    def _finished(self, data: str, system: str, number: int) -> Cell | None:
        """The cell that is there already, if it did not fail."""
        path = place_of(self.results, self.table.name, data, system, self.table.repeat, number)
        found = find_cell(path)
        if found is None or found.failed:
            return None
        if found.profile != self.profile.name:
            raise InputError(
                f"{path} is a result of the profile {found.profile!r}; {self.profile.name!r} would replace it. "
                "Name another folder for the results."
            )
        return found

    def after(self, task: Task) -> list[Task]:
        """What can be done now that a task has been."""
        if task.kind == "data":
            return self.first[task.data]
        if task.kind == "search":
            following = self._next(task.data, task.system)
            self.summary.n_skipped += self._n_seeds(task.system) - len(following)
            return following
        self.summary.n_done += n_cells_of(task)
        return []

    def fail(self, task: Task, error: str) -> None:
        """Note what did not work, and all that needed it."""
        done = sum(self._label_cell_done(task.data, part, task.seed) for part in task.parts)
        self.summary.n_done += done
        self.summary.n_failed += self._n_cells_of(task) - done
        self.summary.failed.append(f"{words_of(task)}: {error}")

    def made_by_others(self, task: Task) -> bool:
        """Whether somebody else has done a task since it was planned."""
        if task.kind == "cell":
            return not any(each.seed == task.seed for each in self._next(task.data, task.system))
        if task.kind == "labels":
            return all(self._label_cell_done(task.data, part, task.seed) for part in task.parts)
        return task.kind == "search" and task not in self._next(task.data, task.system)

    def _n_cells_of(self, task: Task) -> int:
        """How many cells cannot be had without a task."""
        if task.kind == "data":
            return sum(map(self._n_cells_of, self.first[task.data]))
        return self._n_seeds(task.system) if task.kind == "search" else n_cells_of(task)


def n_cells_of(task: Task) -> int:
    """How many cells a task makes."""
    return len(task.parts) if task.kind == "labels" else int(task.kind == "cell")


def words_of(task: Task) -> str:
    """A task in a few words."""
    ends = {"search": " search", "cell": f" seed {task.seed}", "labels": f" split {task.seed}"}
    return f"{task.data} {task.system}".strip() + ends.get(task.kind, "")


def _chosen(wanted: Sequence[str] | None, names: Sequence[str] | dict[str, str], what: str) -> list[str]:
    unknown = [name for name in wanted or [] if name not in names]
    if unknown:
        raise InputError(f"There is no {what} {unknown[0]!r} here; there are: {', '.join(names)}.")
    return [name for name in names if wanted is None or name in wanted]


# --- doing it ----------------------------------------------------------------------------------------------------


def _loop(
    plan: Agenda,
    settings: work.Settings,
    runner: "_Here | _Processes | _Ray",
    claims: Claims,
    tell: Callable[[Event], None],
    began: float,
    limit: float | None,
) -> Summary:
    while plan.ready or runner.busy:
        late = limit is not None and time.monotonic() - began > 60 * limit
        while runner.free() and not late and (task := _claimed(plan, claims)) is not None:
            tell(Event(task, "start"))
            if plan.made_by_others(task):
                claims.release(name_of(task))
                tell(Event(task, "done", text="by others"))
                plan.summary.n_skipped += n_cells_of(task)
                plan.ready.extendleft(reversed(plan.after(task) if task.kind == "search" else []))
                continue
            runner.start(task, settings)
        if not runner.busy:
            if late:
                break
            if plan.ready:  # others are at all that is left
                time.sleep(WAIT)
            continue
        for task, error in runner.finished():
            claims.release(name_of(task))
            tell(Event(task, "failed" if error else "done", text=error))
            if error:
                plan.fail(task, error)
            else:
                following = plan.after(task)
                # Seeds of a search that is done come before other searches, so that cells get finished.
                if task.kind == "search":
                    plan.ready.extendleft(reversed(following))
                else:
                    plan.ready.extend(following)
    summary = plan.summary
    summary.n_left = plan.n_cells - summary.n_done - summary.n_skipped - summary.n_failed
    summary.seconds = time.monotonic() - began
    return summary


def _claimed(plan: Agenda, claims: Claims) -> Task | None:
    """The next task that nobody else is at, if there is one; data sets are read by everybody."""
    for _ in range(len(plan.ready)):
        task = plan.ready.popleft()
        if task.kind == "data" or claims.take(name_of(task)):
            return task
        plan.ready.append(task)
    return None


def name_of(task: Task) -> str:
    """The name of a task's claim."""
    return f"{task.kind}-{task.data}-{task.system}-{task.seed}"


def _runner(engine: str, tell: Callable[[Event], None], crew: Crew) -> "_Here | _Processes | _Ray":
    if engine == "ray":
        return _Ray(crew)
    return _Here(tell) if engine == "serial" else _Processes(tell, crew.workers)


class _Here:
    """One task at a time, in this process."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell, self.busy = tell, False
        self.result: tuple[Task, str] | None = None

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def free(self) -> bool:
        return not self.busy

    def start(self, task: Task, settings: work.Settings) -> None:
        self.busy = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.result = task, work.do(task, settings, self.tell)

    def finished(self) -> list[tuple[Task, str]]:
        self.busy, result, self.result = False, self.result, None
        return [] if result is None else [result]


class _Worker:
    """A process that does one task after another, and the pipe through which it tells how far it is.

    A pool of one: if a pool breaks, all its tasks are lost, and nothing says which of them broke it.
    """

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.events, self.sender = context.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(1, context, initializer=work.prepare_worker, initargs=(threads, self.sender))

    def told(self) -> Iterator[Event]:
        while self.events.poll():
            yield self.events.recv()

    def terminate(self) -> None:
        for process in list((self.pool._processes or {}).values()):
            process.terminate()

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.events.close()
        self.sender.close()


class _Processes:
    """Several tasks at the same time, each in a process; what one that dies was at is done again, once."""

    def __init__(self, tell: Callable[[Event], None], jobs: int) -> None:
        self.tell = tell
        self.threads = max(1, (os.cpu_count() or 1) // jobs)
        self.idle = [_Worker(self.threads) for _ in range(jobs)]
        self.running: dict[Future[str], tuple[_Worker, Task, work.Settings]] = {}
        self.tried = set[Task]()

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        workers = [*self.idle, *(worker for worker, _, _ in self.running.values())]
        if kind is not None:  # do not wait for what is running
            for worker in workers:
                worker.terminate()
        for worker in workers:
            worker.close()

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def free(self) -> bool:
        return bool(self.idle)

    def start(self, task: Task, settings: work.Settings) -> None:
        worker = self.idle.pop()
        try:
            future = worker.pool.submit(work.do_and_tell, task, settings)
        except BrokenExecutor:  # its process died while it had nothing to do
            worker = self._replaced(worker)
            future = worker.pool.submit(work.do_and_tell, task, settings)
        self.running[future] = worker, task, settings

    def finished(self) -> list[tuple[Task, str]]:
        done = wait(self.running, timeout=0.2, return_when=FIRST_COMPLETED).done
        for worker, _, _ in self.running.values():
            for event in worker.told():
                self.tell(event)
        ended = []
        for future in done:
            (worker, task, settings), error = self.running.pop(future), future.exception()
            if error is None:
                ended.append((task, future.result()))
                self.idle.append(worker)
                continue
            self.idle.append(self._replaced(worker))
            if task in self.tried:
                ended.append((task, work.note(task, settings, error)))
            else:
                self.tried.add(task)
                self.start(task, settings)
        return ended

    def _replaced(self, worker: _Worker) -> _Worker:
        worker.close()
        return _Worker(self.threads)


class _TableActor:
    """A worker of Ray."""

    def do(self, task: Task, settings: work.Settings) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work.do(task, settings, lambda _: None)


class _Ray:
    """Several tasks at the same time, by workers of Ray; what one that dies was at is done again, once."""

    def __init__(self, crew: Crew) -> None:
        self.crew, self.stack = crew, ExitStack()

    def __enter__(self) -> "_Ray":
        with ExitStack() as stack:
            ray = stack.enter_context(reaching_ray(self.crew))
            self.actors = Actors(ray, _TableActor, (), self.crew.workers, self.crew.gpus_per_worker, retries=1)
            stack.callback(self.actors.close)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    def busy(self) -> bool:
        return bool(self.actors.waiting)

    def free(self) -> bool:
        return bool(self.actors.idle)

    def start(self, task: Task, settings: work.Settings) -> None:
        self.actors.give((task, settings), task, settings)

    def finished(self) -> list[tuple[Task, str]]:
        return [
            (task, work.note(task, settings, found) if isinstance(found, Exception) else found)
            for (task, settings), found in self.actors.finished(0.2)
        ]


# --- the terminal: cells done and left, what is running, its stage, epoch and best validation loss -----------------


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
            line = f"{time.monotonic() - self.began:7.1f} s  {event.kind}  {words_of(event.task)}{text}"
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


class Bars:
    """A bar for all cells and one for every task that is running."""

    def __init__(self, bars: Progress, n_cells: int, n_there: int) -> None:
        self.bars = bars
        self.all = bars.add_task("cells", total=n_cells, completed=n_there, note="")
        self.running: dict[Task, TaskID] = {}

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self.running[event.task] = self.bars.add_task(words_of(event.task), total=None, note="")
            return
        bar = self.running.get(event.task)
        if event.kind == "epoch" and bar is not None:
            best = "" if event.best is None else f", best validation loss {event.best:.4f}"
            self.bars.update(bar, completed=event.epoch, total=event.n_epochs, note=f"{event.stage}{best}")
        elif event.kind in ("done", "failed"):
            if bar is not None:
                self.bars.remove_task(self.running.pop(event.task))
            self.bars.advance(self.all, n_cells_of(event.task))
            if event.kind == "failed":
                self.bars.console.print(f"failed: {words_of(event.task)}: {event.text}", markup=False, highlight=False)
