"""Running a table: one file for every cell, going on where it stopped, and nothing lost when something dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standin
import torch
from standin import BODY, CONFIGS, HEAD, Centre, Plain, counts, run, strict

from energate.datasets import Dataset
from energate.errors import InputError
from energate.paper import Event, work
from energate.paper import run as run_table
from energate.paper.running import Bars, Lines
from energate.paper.work import Task

ALL = ("centre", "plain", "other")
Systems = dict[str, Any]


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch) -> Systems:
    made: Systems = {"centre": Centre(), "plain": Plain(), "other": Centre()}
    standin.install(made, monkeypatch.setitem, monkeypatch.setattr)
    return made


def calls(systems: Systems) -> dict[str, list[str]]:
    """What was done since the last time."""
    found = {name: system.calls[:] for name, system in systems.items() if system.calls}
    for system in systems.values():
        system.calls.clear()
    return found


def stamps(results: Path) -> dict[str, int]:
    return {str(path.relative_to(results)): path.stat().st_mtime_ns for path in sorted(results.rglob("*.json"))}


# --- going on -----------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(systems: Systems, tmp_path: Path) -> None:
    run(tmp_path, profile="search")
    first = calls(systems)
    both = ["search", "seed 0", "seed 1"] * 2  # of one data set, then of the other
    assert {name: sorted(done) for name, done in first.items()} == {
        "centre": sorted(both),
        "plain": sorted(["search", "seed 0"] * 2),
        "other": sorted(both),
    }
    before = stamps(tmp_path)
    assert counts(run(tmp_path, profile="search")) == (0, 10, 0, 0)
    assert calls(systems) == {}
    assert stamps(tmp_path) == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text(path.read_text()[:200])])
def test_only_what_is_missing_or_broken_is_done_again(
    systems: Systems, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    run(tmp_path, profile="search")
    before = stamps(tmp_path)
    calls(systems)
    path = tmp_path / "small/two/centre/seed1.json"
    content = strict(path)
    damage(path)
    assert counts(run(tmp_path, profile="search")) == (1, 9, 0, 0)
    assert calls(systems) == {"centre": ["seed 1"]}
    changed = {name for name, stamp in stamps(tmp_path).items() if stamp != before[name]}
    assert changed == {"small/two/centre/seed1.json"}
    again = strict(path)
    assert {key: again[key] for key in BODY if key not in ("seconds", "memory")} == {
        key: content[key] for key in BODY if key not in ("seconds", "memory")
    }


def test_more_seeds_leave_the_others(systems: Systems, tmp_path: Path) -> None:
    run(tmp_path, seeds=1, data=["one"])
    calls(systems)
    assert counts(run(tmp_path, seeds=3, data=["one"])) == (4, 3, 0, 0)
    assert calls(systems) == {"centre": ["seed 1", "seed 2"], "other": ["seed 1", "seed 2"]}


def test_what_the_clock_said_is_noted(systems: Systems, tmp_path: Path) -> None:
    run(tmp_path, systems=["plain"])
    run(tmp_path, systems=["plain"])  # nothing to do, nothing to note
    (line,) = (tmp_path / "small" / "runs.jsonl").read_text().splitlines()
    noted = json.loads(line)
    assert (noted["table"], noted["jobs"], noted["cells"]) == ("small", 1, 2)
    assert noted["seconds"] >= 0


def test_another_space_is_run_again_and_another_profile_refused(
    systems: Systems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only: dict[str, Any] = {"data": ["one"], "systems": ["centre"]}
    run(tmp_path, profile="search", **only)
    calls(systems)
    monkeypatch.setattr("energate.paper.spaces.space", lambda system, data, search: [*CONFIGS, {"sharpness": 0.01}])
    # The search is done anew; as it chooses what it chose before, the cells stay.
    assert counts(run(tmp_path, profile="search", **only)) == (0, 2, 0, 0)
    assert calls(systems) == {"centre": ["search"]}
    monkeypatch.setattr(
        "energate.paper.spaces.space", lambda system, data, search: [{"sharpness": 0.3}, {"sharpness": 0.2}]
    )
    assert counts(run(tmp_path, profile="search", **only)) == (2, 0, 0, 0)
    assert calls(systems) == {"centre": ["search", "seed 0", "seed 1"]}
    monkeypatch.setattr("energate.paper.spaces.space", lambda system, data, search: [{"sharpness": 0.3}])
    with pytest.raises(InputError, match=r"seed0\.json is a result of the profile 'search'; 'fixed' would replace it"):
        run(tmp_path, profile="fixed", **only)
    assert calls(systems) == {}


def test_failures_are_noted_and_tried_again(systems: Systems, tmp_path: Path) -> None:
    def fail(what: str, seed: int) -> None:
        if seed == 1:
            raise ValueError("no luck\nat all")

    systems["centre"].before = fail
    summary = run(tmp_path, data=["one"])
    assert counts(summary) == (4, 0, 1, 0)
    assert summary.failed == ["one centre seed 1: ValueError: no luck"]
    cell = strict(tmp_path / "small/one/centre/seed1.json")
    assert sorted(cell) == sorted(HEAD)
    assert cell["status"] == "failed"
    assert cell["error"].startswith("ValueError: no luck\nat all\n")
    assert "in fail" in cell["error"]  # where it came from
    assert str(Path(__file__).parent) not in cell["error"]  # but not where that is kept
    calls(systems)
    systems["centre"].before = lambda what, seed: None
    assert counts(run(tmp_path, data=["one"])) == (1, 4, 0, 0)
    assert calls(systems) == {"centre": ["seed 1"]}
    assert strict(tmp_path / "small/one/centre/seed1.json")["status"] == "ok"


def test_a_search_or_a_set_that_fails_stops_nothing_else(
    systems: Systems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(what: str, seed: int) -> None:
        raise MemoryError(what)

    run(tmp_path, profile="search", data=["two"], systems=["plain"])
    systems["centre"].before = fail

    def load(name: str, folder: Any, source: str) -> Dataset:
        if name == "two":
            raise InputError("There is no such set.")
        return standin.load(name)

    monkeypatch.setattr(work, "load", load)
    summary = run(tmp_path, profile="search")
    # of "one" the two seeds of a search; of "two" all that was not there already
    assert counts(summary) == (3, 1, 2 + 4, 0)
    assert sorted(summary.failed) == [
        "one centre search: MemoryError: search",
        "two: InputError: There is no such set.",
    ]


def test_a_search_in_which_all_failed_is_a_failure(
    systems: Systems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(parts: Any, configs: Any, device: str, seed: int) -> Any:
        return [standin.Attempt(config, np.inf, np.inf, 0.0, "ValueError: diverged") for config in configs]

    monkeypatch.setattr(systems["centre"], "search", search)
    summary = run(tmp_path, profile="search", data=["one"], systems=["centre"])
    assert counts(summary) == (0, 0, 2, 0)
    assert "ValueError: diverged" in summary.failed[0]
    assert stamps(tmp_path) == {}


def test_the_limit_starts_nothing_new(systems: Systems, tmp_path: Path) -> None:
    now = [0.0]

    def tick(what: str, seed: int) -> None:
        now[0] += 50

    for system in systems.values():
        system.before = tick
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        run(tmp_path, data=["two"], systems=["plain"])
        assert counts(run(tmp_path, limit=2.0)) == (3, 1, 0, 6)  # after 150 s
        assert counts(run(tmp_path, limit=60.0)) == (6, 4, 0, 0)


def test_the_choice_sees_only_rows_for_validation(
    systems: Systems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shuffled(name: str, folder: Any, source: str) -> Dataset:
        data = standin.load(name)
        rng = np.random.default_rng(0)
        return Dataset(**(vars(data) | {"y_test": rng.permutation(data.y_test)}))

    run(tmp_path / "a", profile="search")
    monkeypatch.setattr(work, "load", shuffled)
    run(tmp_path / "b", profile="search")
    for path in sorted((tmp_path / "a").rglob("search.json")):
        found, other = strict(path), strict(tmp_path / "b" / path.relative_to(tmp_path / "a"))
        assert set(found) == {
            *("schema", "table", "profile", "data", "system", "space", "trials", "chosen", "chosen_by"),
            *("seconds", "device", "date"),
        }
        assert found["trials"] == other["trials"]
        assert found["chosen"] == other["chosen"]
        places = path.parent, tmp_path / "b" / path.parent.relative_to(tmp_path / "a")
        cells = [strict(place / "seed0.json") for place in places]
        assert cells[0]["config"] == cells[1]["config"] == found["trials"][found["chosen"]]["config"]
        assert cells[0]["test_error"] != cells[1]["test_error"]
        assert cells[0]["search"]["n_trials"] == len(CONFIGS)
    for system in systems.values():
        for parts in system.seen:
            assert set(vars(parts)) == {"X_train", "y_train", "X_valid", "y_valid"}


# --- the question asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "slow"}, "no profile 'slow'.*quick, full"),
        ({"data": ["one", "three"]}, "no data set 'three'.*one, two"),
        ({"systems": ["svm"]}, "no system 'svm'.*centre, plain, other"),
        ({"jobs": 0}, "above 0; got 0"),
        ({"seeds": 0}, "above 0"),
        ({"limit": 0}, "above 0"),
        ({"device": "abacus"}, "`device` must be"),
    ],
)
def test_what_cannot_be_run_is_refused(systems: Systems, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(tmp_path, **options)
    assert calls(systems) == {}
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no table 'table9'.*table1, ablation"):
        run_table("table9", results=tmp_path)


def test_a_run_leaves_the_process_as_it_was(
    systems: Systems, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.set_float32_matmul_precision("highest")  # the default
    before = "highest", torch.get_num_threads()
    run(tmp_path, data=["one"], show=None)
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before
    said = capfd.readouterr()
    assert said.out == ""
    lines = [line.split("s  ")[1] for line in said.err.splitlines()]
    assert lines[0] == "done  one"
    assert sorted(lines[1:]) == sorted(
        f"done  one {system} seed {seed}" for system in ALL for seed in range(1 if system == "plain" else 2)
    )


def test_events_come_in_order(systems: Systems, tmp_path: Path) -> None:
    events: list[Event] = []
    run(tmp_path, profile="search", data=["one"], systems=["plain"], show=events.append)
    kinds = [(event.task.kind, event.kind) for event in events]
    assert kinds == [(task, kind) for task in ("data", "search", "cell") for kind in ("start", "done")]


def test_bars_and_lines() -> None:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=open(os.devnull, "w"), width=100)  # noqa: SIM115
    bars = Progress(console=console)
    show, cell = Bars(bars, 5, 2), Task("cell", "one", "centre", 1)
    show(Event(cell, "start"))
    show(Event(cell, "epoch", "pretrain", 3, 9, 0.25))
    assert (bars.tasks[0].completed, bars.tasks[0].total) == (2, 5)
    assert (bars.tasks[1].description, bars.tasks[1].completed, bars.tasks[1].total) == ("one centre seed 1", 3, 9)
    assert bars.tasks[1].fields["note"] == "pretrain, best validation loss 0.2500"
    show(Event(cell, "failed", text="[why]"))
    assert [task.completed for task in bars.tasks] == [3]
    with console.capture() as caught:
        lines = Lines(console)
        lines(Event(cell, "start"))
        lines(Event(cell, "failed", text="[why]"))
    assert caught.get().strip().endswith("s  failed  one centre seed 1 ([why])")
    console.file.close()


# --- processes ----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import standin
from standin import Centre, Plain
standin.install({systems})
if __name__ == "__main__":
    from energate.paper import run
    options = dict(profile="fixed", results={results!r}, device="cpu", jobs={jobs})
    summary = run("small", **(options | dict({options})))
    print(summary.n_done, summary.n_skipped, summary.n_failed, summary.n_left, *summary.failed, sep="|")
"""


def script(path: Path, systems: str, jobs: int, options: str = "") -> list[str]:
    text = SCRIPT.format(
        tests=str(Path(__file__).parent), systems=systems, results=str(path / "results"), jobs=jobs, options=options
    )
    (path / "script.py").write_text(text)
    return [sys.executable, str(path / "script.py")]


def start(command: list[str]) -> "subprocess.Popen[str]":
    """A process in a group of its own, whose temporary files lie beside its script."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(Path(command[-1]).parent), "OMP_NUM_THREADS": "1"},
    )


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_a_process_that_dies_takes_one_cell_with_it(tmp_path: Path) -> None:
    systems = "{'centre': Centre(standin.die_at_seed_0), 'plain': Plain(), 'other': Centre()}"
    done = start(script(tmp_path, systems, jobs=2, options="data=['one']"))
    said, errors = done.communicate(timeout=120)
    assert said.startswith("4|0|1|0|one centre seed 0: BrokenProcessPool"), errors
    cells = {f"{cell['system']} {cell['seed']}": cell for cell in map(strict, tmp_path.rglob("seed*.json"))}
    assert len(cells) == 5
    assert [name for name, cell in cells.items() if cell["status"] == "failed"] == ["centre 0"]
    assert cells["centre 0"]["error"].startswith("BrokenProcessPool")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_killed_it_leaves_whole_files_no_processes_and_goes_on(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    systems = f"{{'centre': Centre(standin.wait_for({str(flag)!r})), 'plain': Plain(), 'other': Centre()}}"
    with start(script(tmp_path, systems, jobs=2, options="data=['one']")) as process:
        try:
            wait_until(flag.exists)
            wait_until(lambda: len(list(tmp_path.rglob("seed*.json"))) == 4)
            process.kill()
            worker = int(flag.read_text())
            wait_until(lambda: not alive(worker), 10)
        finally:  # whatever is left of it would keep the pipes open
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert len([strict(path) for path in (tmp_path / "results").rglob("seed*.json")]) == 4
    flag.unlink()
    threading.Thread(target=lambda: (wait_until(flag.exists), flag.unlink())).start()
    said, errors = start(script(tmp_path, systems, 1, "data=['one']")).communicate(timeout=120)
    assert said == "1|4|0|0\n", errors


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT between processes")
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_stops_promptly(tmp_path: Path, jobs: int) -> None:
    flag = tmp_path / "flag"
    systems = f"{{'centre': Centre(standin.wait_for({str(flag)!r}))}}"
    process = start(script(tmp_path, systems, jobs, "systems=['centre'], data=['one']"))
    wait_until(flag.exists)
    wait_until(lambda: len(list(tmp_path.rglob("seed*.json"))) == 1)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert said.count("Traceback") == 1, said  # of the run, not of its processes
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert [strict(path)["seed"] for path in tmp_path.rglob("seed*.json")] == [0]
