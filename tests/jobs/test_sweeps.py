"""Tables and searches that several workers share: on Ray, and by one folder or one file that all see."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standin
from standin import Centre, Plain, counts, strict

from energate import EnergyClassifier, search
from energate.errors import InputError
from energate.paper import running
from energate.paper.work import Settings, Task

ALL = ("centre", "plain", "other")


def dying(tests: str) -> type:
    """A worker with the small table; one system ends its process the first time, another always."""

    class Dying:  # inside a function, so that Ray pickles all of it: its workers do not know this file
        def do(self, task: Task, settings: Settings) -> str:
            sys.path.insert(0, tests)
            import standin

            from energate.paper.running import _TableActor

            def once(what: str, seed: int) -> None:
                flag = settings.results / "died"
                if what == "fit" and seed == 0 and not flag.exists():
                    flag.write_text("")
                    os._exit(9)

            always = standin.Centre(standin.die_at_seed_0)
            standin.install({"centre": standin.Centre(once), "plain": standin.Plain(), "other": always})
            return _TableActor().do(task, settings)

    return Dying


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    made: dict[str, Any] = {"centre": Centre(), "plain": Plain(), "other": Centre()}
    standin.install(made, monkeypatch.setitem, monkeypatch.setattr)
    return made


@pytest.mark.slow  # workers import torch, and die
def test_a_killed_workers_cell_is_run_again_once_on_ray(
    ray_here: Any, systems: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_TableActor", dying(str(Path(standin.__file__).parent)))
    summary = standin.run(tmp_path, data=["one"], jobs=2, engine="ray")
    assert (tmp_path / "died").exists()
    assert counts(summary) == (4, 0, 1, 0)
    assert len(summary.failed) == 1
    assert summary.failed[0].startswith("one other seed 0: ")
    found = {path.parent.name + path.stem: strict(path)["status"] for path in tmp_path.rglob("seed*.json")}
    assert found == {name + f"seed{k}": "ok" for name in ALL for k in (0, 1) if (name, k) != ("plain", 1)} | {
        "otherseed0": "failed"
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["died", "small"]
    assert not (tmp_path / "small" / ".claims").exists()


def test_two_that_run_the_same_table_share_its_cells(
    systems: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "WAIT", 0.01)
    both, found = threading.Barrier(2, timeout=30), list[Any]()

    def meet(what: str, seed: int) -> None:
        if what == "search":  # each driver is at one of the two searches, or waits for the other
            both.wait()

    systems["centre"].before = systems["other"].before = meet
    chosen: dict[str, Any] = {"profile": "search", "data": ["one"], "systems": ["centre", "other"]}
    threads = [threading.Thread(target=lambda: found.append(standin.run(tmp_path, **chosen))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sorted(systems[name].calls) for name in ("centre", "other")] == [["search", "seed 0", "seed 1"]] * 2
    assert sum(each.n_done for each in found) == 4
    assert all(each.n_done + each.n_skipped == 4 for each in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "slurm"}, "serial, processes, ray; got 'slurm'"),
        ({"engine": "serial", "jobs": 2}, "does one task at a time; got jobs=2"),
        ({"address": "auto"}, "are for `engine` 'ray'"),
    ],
)
def test_engines_that_cannot_be_are_refused(
    systems: dict[str, Any], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        standin.run(tmp_path, **options)


@pytest.mark.slow  # workers import torch
def test_a_search_on_ray_finds_what_one_process_finds(ray_here: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(120, 3))
    y = (X[:, 0] > 0).astype(int)
    model = EnergyClassifier(units="mean", n_hidden=4, pretrain_epochs=2, max_epochs=2, random_state=0)
    how: dict[str, Any] = {"space": {"learning_rate": (1e-3, 1e-2, "log")}, "sampler": "random", "n_together": 1}
    alone = search(model, X, y, n_trials=4, **how)
    shared = tmp_path / "search.journal"
    found = search(model, X, y, n_trials=4, storage=shared, engine="ray", workers=2, **how)
    assert [trial.params for trial in found.trials] == [trial.params for trial in alone.trials]
    assert [trial.value for trial in found.trials] == pytest.approx([trial.value for trial in alone.trials], rel=1e-4)
    assert found.best_params == alone.best_params
    np.testing.assert_allclose(found.best_estimator.predict_proba(X), alone.best_estimator.predict_proba(X), rtol=1e-3)
    assert len(search(model, X, y, n_trials=4, storage=shared, **how).trials) == 4
