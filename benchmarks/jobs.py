"""Jobs over many files: rows per second of each engine, a cluster simulated from their task times, and chaos.

`python benchmarks/jobs.py` compares the engines with a plain loop of pyarrow and onnxruntime; `--chaos` kills workers
and drivers with -9 at random moments, and compares the folder with that of an undisturbed run.  Both add a line to
benchmarks/results/jobs.jsonl.
"""

import argparse
import filecmp
import heapq
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "jobs.jsonl"
HERE = [sys.executable, "-m", "energate"]


# --- data and models ---------------------------------------------------------------------------------------------


def make_parts(folder: Path, n_files: int, n_rows: int, n_columns: int, row_group: int) -> Path:
    """Parquet files of random numbers, with an id for each row; the pattern that finds them is the answer's `*`."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(n_files):
        X = draw.normal(size=(n_rows, n_columns))
        columns = {f"x{i}": X[:, i] for i in range(n_columns)}
        ids = np.arange(file * n_rows, (file + 1) * n_rows)
        pq.write_table(pa.table({"id": ids, **columns}), folder / f"{file:05d}.parquet", row_group_size=row_group)
    return folder / "*.parquet"


def make_model(path: Path, n_columns: int, n_hidden: int) -> Path:
    """A scorer of mean units."""
    from energate import EnergyScorer, save

    X = np.random.default_rng(1).normal(size=(500, n_columns))
    save(EnergyScorer(units="mean", n_hidden=n_hidden, max_epochs=1, random_state=0).fit(X), path)
    return path


def command(model: Path, parts: Path, output: Path, engine: str, workers: int, task_rows: int) -> list[str]:
    found = [*HERE, "score", str(model), str(parts), "-o", str(output), "--engine", engine]
    return [*found, "--task-rows", str(task_rows), *([] if engine == "serial" else ["--workers", str(workers)])]


# --- chaos -------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that these did: number and command."""
    parents, names = dict[int, int](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, open_ones = dict[int, str](), [pid]
    while open_ones:
        last = open_ones.pop()
        for child in (each for each, parent in parents.items() if parent == last):
            found[child] = names[child]
            open_ones.append(child)
    return found


def workers_of(driver: int) -> list[int]:
    return [pid for pid, name in descendants(driver).items() if "energate.jobs.worker" in name or "ray::_Actor" in name]


def parts_in(folder: Path) -> dict[str, tuple[int, int]]:
    """The parts that are there, by what changes when one is written again."""
    found = dict[str, tuple[int, int]]()
    for path in folder.glob("part-*.parquet"):
        stat = path.stat()
        found[path.name] = stat.st_ino, stat.st_mtime_ns
    return found


def chaos(
    model: Path, parts: Path, folder: Path, *, engine: str, n_kills: int, task_rows: int, seed: int = 0
) -> dict[str, Any]:
    """Run a job with kills at random moments, and say what came of it; the calm run is made first."""
    import pyarrow.parquet as pq

    calm, wild = folder / "calm", folder / engine
    if not calm.exists():
        subprocess.run(command(model, parts, calm, "serial", 1, task_rows), check=True, stdout=subprocess.DEVNULL)
    n_parts = len(parts_in(calm))
    draw = random.Random(seed)
    moments = sorted(draw.randrange(n_parts - 2) for _ in range(n_kills))
    seen, again, killed = dict[str, tuple[int, int]](), set[str](), {"driver": 0, "worker": 0}
    began, n_starts = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as said:
        while True:
            driver = subprocess.Popen(
                command(model, parts, wild, engine, 2, task_rows),
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
            n_starts += 1
            while driver.poll() is None:
                time.sleep(0.01 + draw.random() / 20)
                now = parts_in(wild)
                again |= {name for name, mark in seen.items() if now.get(name) != mark}
                seen |= now
                if moments and len(now) >= moments[0]:
                    here = workers_of(driver.pid)
                    if not here:
                        continue  # it is starting
                    moments.pop(0)
                    if draw.random() < 0.34:
                        driver.kill()
                    else:
                        os.kill(draw.choice(here), signal.SIGKILL)
                        killed["worker"] += 1
            if driver.returncode == 0:
                break
            if driver.returncode != -signal.SIGKILL:
                said.seek(0)
                raise RuntimeError(f"the driver ended with {driver.returncode}: {said.read()[-2000:]}")
            killed["driver"] += 1
    again |= {name for name, mark in seen.items() if parts_in(wild).get(name) != mark}
    names = sorted(os.listdir(calm))
    _, different, missing = filecmp.cmpfiles(calm, wild, names, shallow=False)
    ids = np.concatenate([pq.read_table(path, columns=["id"])["id"].to_numpy() for path in wild.glob("part-*.parquet")])
    return {
        "engine": engine,
        "parts": n_parts,
        "killed": killed,
        "starts": n_starts,
        "same bytes": names == sorted(os.listdir(wild)) and not different and not missing,
        "rows": len(ids),
        "rows twice": len(ids) - len(np.unique(ids)),
        "parts made again": len(again),
        "seconds": round(time.monotonic() - began, 1),
    }


# --- speed -------------------------------------------------------------------------------------------------------


def plain_loop(model: Path, parts: Path, output: Path) -> None:
    """What one would write by hand: one process, one thread, pyarrow and onnxruntime, batches as jobs have them."""
    import onnxruntime  # type: ignore[import-untyped]
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.read_bytes(), options, providers=["CPUExecutionProvider"])
    output.mkdir()
    for path in sorted(parts.parent.glob(parts.name)):
        file, writer = pq.ParquetFile(path), None
        for batch in file.iter_batches(batch_size=2**20 // len(file.schema_arrow.names)):
            X = np.stack([batch.column(i).to_numpy() for i in range(1, batch.num_columns)], 1)
            given = session.get_inputs()[0]
            found = session.run(None, {given.name: X.astype(np.float32 if "float)" in given.type else np.float64)})
            for each, values in zip(session.get_outputs(), found, strict=True):
                batch = batch.append_column(each.name, pa.array(np.ravel(values)))  # noqa: PLW2901
            writer = writer or pq.ParquetWriter(output / path.name, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of processors in all processes that have ended."""

    def used() -> float:
        every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in every)

    clock, processors = time.monotonic(), used()
    work()
    return time.monotonic() - clock, used() - processors


def simulated(
    task_seconds: Sequence[float], n_tasks: int, workers: int, start: float, driver: float
) -> dict[str, float]:
    """The time of a job by list scheduling: workers start and take task after task; the driver handles each result."""
    draw = random.Random(0)
    times = [draw.choice(task_seconds) for _ in range(n_tasks)]
    free = [start] * workers
    heapq.heapify(free)
    busy_until, end = 0.0, 0.0
    for each in times:
        begin = max(heapq.heappop(free), busy_until)  # the driver hands out one task at a time
        busy_until = begin + driver
        end = max(end, begin + each)
        heapq.heappush(free, begin + each)
    work = sum(times)
    idle = workers * end - work - workers * start
    return {
        "workers": workers,
        "seconds": round(end, 1),
        "efficiency": round(work / (workers * end), 4),
        "start": round(workers * start / (workers * end), 4),
        "waiting": round(idle / (workers * end), 4),
    }


def speed(folder: Path, n_rows: int, engines: Sequence[str]) -> dict[str, Any]:
    from energate import load
    from energate.export import export_onnx

    n_columns, n_files, per_task = 64, 8, n_rows // 16
    model = make_model(folder / "model.zip", n_columns, 300)
    parts = make_parts(folder / "parts", n_files, n_rows // n_files, n_columns, per_task)
    tiny = make_parts(folder / "tiny", 2, 10, n_columns, 10)
    export_onnx(load(model), folder / "model.onnx")
    found: dict[str, Any] = {"rows": n_rows, "columns": n_columns, "files": n_files, "task rows": per_task}
    loop = timed(lambda: plain_loop(folder / "model.onnx", parts, folder / "loop"))
    found["plain loop"] = {"seconds": loop[0], "cpu": loop[1], "rows per second": n_rows / loop[0]}
    for engine in engines:

        def job(which: Path, name: str, engine: str = engine) -> tuple[float, float]:
            line = command(model, which, folder / f"{engine}-{name}", engine, 2, per_task)
            return timed(lambda: subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        start, whole = job(tiny, "tiny"), job(parts, "whole")
        clock, processors = (max(whole[i] - start[i], 1e-9) for i in (0, 1))
        n_workers = 1 if engine == "serial" else 2
        found[engine] = {
            "start": start[0],
            "seconds": clock,
            "cpu": processors,
            "rows per second": n_rows / clock,
            "efficiency": loop[0] / (clock * n_workers),
            "efficiency by cpu": loop[1] / processors,
        }
        if engine == "ray":  # its workers are no children of the driver: what they used is not known here
            del found[engine]["cpu"], found[engine]["efficiency by cpu"]
    start = max(found[engine]["start"] for engine in engines)
    found["simulated, 10^9 rows"] = simulated_cluster(folder, model, parts, per_task, start)
    return found


def simulated_cluster(folder: Path, model: Path, parts: Path, per_task: int, start: float) -> list[dict[str, float]]:
    """A thousand million rows, from the processor time of tasks and the start as they were; tasks of 250,000 rows."""
    from energate.jobs.folder import Folder
    from energate.jobs.inputs import find, look
    from energate.jobs.plan import Job
    from energate.jobs.work import Worker
    from energate.persistence import read_about
    from energate.views.applying import Question

    began = time.process_time()
    inputs = tuple(look(address) for address in find([str(parts)]))
    looking = (time.process_time() - began) / len(inputs)
    job = Job(read_about(model).sha256, Question("score"), inputs, task_rows=per_task)
    out = Folder(folder / "timed")
    out.take(job)
    worker, times = Worker(job, model, out), list[float]()
    for task in job.tasks:
        began = time.process_time()
        worker.do(task)
        times.append((time.process_time() - began) * 250_000 / per_task)
    began = time.process_time()
    out.done(job, job.tasks)
    handling = (time.process_time() - began) / len(job.tasks) + looking
    return [simulated(times, 4_000, workers, start, handling) for workers in (1, 16, 64, 256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chaos", action="store_true", help="kill workers and drivers at random moments")
    parser.add_argument("--engines", nargs="+", default=["serial", "processes", "ray"])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--parts", type=int, default=200)
    parser.add_argument("--rows", type=int, default=640_000, help="of the comparison of engines")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.chaos:
            model = make_model(folder / "model.zip", 20, 300)
            parts = make_parts(folder / "parts", arguments.parts // 4, 8_000, 20, 2_000)
            found = [
                chaos(model, parts, folder, engine=each, n_kills=arguments.kills, task_rows=2_000, seed=arguments.seed)
                for each in arguments.engines
                if each != "serial"
            ]
            lines = [{"chaos": each} for each in found]
        else:
            lines = [{"speed": speed(folder, arguments.rows, arguments.engines)}]
    with RESULTS.open("a", encoding="utf-8") as file:
        for line in lines:
            print(json.dumps(line, indent=1))
            file.write(json.dumps({"when": datetime.now(UTC).date().isoformat(), **line}) + "\n")


if __name__ == "__main__":
    main()
