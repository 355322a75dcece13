import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from cases import mixed_columns
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import energate
import energate.tuning
from energate import EnergyClassifier, EnergyScorer, InputError, MeanUnits
from energate.errors import MissingExtraError
from energate.estimators.edge import draw_seed
from energate.tuning import SearchResult, Trial, search
from energate.tuning._space import DEFAULT_SPACE, read_space
from energate.tuning._study import BEATS, Plan, Study, Trainer, open_storage

QUICK: dict[str, Any] = {
    "units": "mean-covariance",
    "pretrain_epochs": 3,
    "max_epochs": 3,
    "n_hidden": 6,
    "n_factors": 6,
    "random_state": 0,
}
RATES: dict[str, Any] = {"learning_rate": (1e-3, 1e-2, "log"), "noise_level": (0.05, 0.8)}
SAMPLERS = ["optuna", "random"]


def blobs(n_rows: int = 240, n_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(n_rows, centers=n_classes, n_features=4, cluster_std=2.5, random_state=0)


def quick(**changes: Any) -> EnergyClassifier:
    return EnergyClassifier(**{**QUICK, **changes})


def held_out(model: EnergyClassifier, X: Any, y: Any) -> tuple[Any, Any]:
    rows = train_test_split(
        np.arange(len(X)),
        test_size=model.validation_fraction,
        stratify=np.unique(y, return_inverse=True)[1],
        random_state=draw_seed(model.random_state),
    )[1]
    return np.asarray(X)[rows], np.asarray(y)[rows]


def results(found: SearchResult) -> list[Trial]:
    return [replace(trial, seconds=0.0) for trial in found.trials]


# --- what it finds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_best_estimator_has_the_best_value_and_can_be_saved(sampler, tmp_path) -> None:
    X, y = blobs()
    found = search(quick(), X, y, {**RATES, "n_hidden": [4, 8]}, n_trials=9, n_together=4, sampler=sampler)
    assert len(found.trials) == 9
    assert found.best_value == min(trial.value for trial in found.trials)
    assert len({trial.value for trial in found.trials}) == 9
    rows, labels = held_out(found.best_estimator, X, y)
    assert log_loss(labels, found.best_estimator.predict_proba(rows)) == pytest.approx(found.best_value, rel=1e-5)
    assert found.best_params.items() <= found.best_estimator.get_params().items()
    assert len(found.best_estimator.liking_) == len(rows)
    energate.save(found.best_estimator, tmp_path / "best")
    again = energate.load(tmp_path / "best")
    np.testing.assert_allclose(again.predict_proba(X), found.best_estimator.predict_proba(X), rtol=1e-6, atol=1e-8)


def test_a_program_of_one_is_fit() -> None:
    X, y = blobs(400)  # enough for `fit` to hold rows out as the search does
    given = {"generative_weight": 0.2, "weight_decay": 1e-3, "learning_rate": 3e-3, "noise_level": 0.3}
    model = quick(**given).fit(X, y)
    found = search(quick(**given), X, y, RATES, n_trials=1).best_estimator
    np.testing.assert_allclose(found.predict_proba(X), model.predict_proba(X), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.liking_, model.liking_, rtol=1e-7, atol=1e-9)
    assert vars(found).keys() == vars(model).keys()
    assert found.get_params() == model.get_params()


def test_equal_configurations_trained_together_come_out_alike() -> None:
    X, y = blobs()
    estimator = quick(pretrain_epochs=30, max_epochs=30, n_hidden=16, n_factors=16)
    found = search(estimator, X, y, {"learning_rate": [3e-3]}, n_trials=4, n_together=4)
    assert {trial.together for trial in found.trials} == {(0, 1, 2, 3)}
    values = [trial.value for trial in found.trials]
    assert 0 < max(values) - min(values) < 0.05  # each has its own initial weights and noise
    alone = search(estimator, X, y, {"learning_rate": [3e-3]}, n_trials=1).best_value
    assert abs(alone - np.mean(values)) < 0.05


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_every_configuration_gets_its_own_numbers(order) -> None:
    X, y = blobs()
    base = {**EnergyClassifier().get_params(), **QUICK, "generative_weight": 0.1}
    rates = [
        {"learning_rate": rate, "fine_tune_learning_rate": rate, "generative_weight": 0.1} for rate in (1e-9, 1e-2)
    ]
    trainer = Trainer(base, X, y, None, "log_loss")
    trials = trainer.train([(number, rates[number]) for number in order])
    value = {trial.number: trial.value for trial in trials}
    assert value[1] < value[0] - 0.1
    assert trainer.best is not None
    best = trainer.best[1]
    assert best.learning_rate == 1e-2
    assert best.history_["fine-tune"].loss[0].ndim == 0
    assert float(best.history_["fine-tune"].best) < value[0]


def test_programs_are_as_many_as_groups(monkeypatch) -> None:
    X, y = blobs()
    calls = []
    train = EnergyClassifier._train
    monkeypatch.setattr(EnergyClassifier, "_train", lambda self, *rest: calls.append(self) or train(self, *rest))
    space = {**RATES, "n_hidden": [4, 8]}
    found = search(quick(n_factors="auto"), X, y, space, n_trials=8, n_together=8, sampler="random")
    sizes = {trial.params["n_hidden"] for trial in found.trials}
    assert sizes == {4, 6, 8}  # 6 is the estimator's own
    assert len(calls) == len({trial.together for trial in found.trials}) == len(sizes)
    assert sum(call.model_.n_members for call in calls) == 8
    assert all(trial.params["n_factors"] == trial.params["n_hidden"] for trial in found.trials)


def own_units(n_models: int, width: int, generator: torch.Generator) -> MeanUnits:
    return MeanUnits(n_models, width, 4, generator=generator)


def test_functions_for_units_train_alone() -> None:
    X, y = blobs()
    found = search(quick(units=own_units), X, y, n_trials=3, sampler="random")
    assert [trial.together for trial in found.trials] == [(0,), (1,), (2,)]
    assert found.trials[0].params["generative_weight"] == 0
    assert "n_hidden" not in found.best_params
    mixed = search(quick(), X, y, {"units": ["mean", own_units]}, n_trials=6, sampler="optuna")
    by_kind: dict[bool, set[int]] = {True: set(), False: set()}
    for trial in mixed.trials[1:]:
        by_kind[callable(trial.params["units"])].add(len(trial.together))
    assert by_kind[True] == {1}
    assert max(by_kind[False]) > 1


def test_the_estimator_as_it_came_is_trial_0_and_the_default_space_works() -> None:
    X, y = blobs()
    for sampler in SAMPLERS:
        found = search(quick(n_hidden="auto", n_factors="auto"), X, y, n_trials=2, sampler=sampler)
        assert found.trials[0].params == {
            "noise_level": 0.3,
            "generative_weight": 0.1,
            "learning_rate": 3e-3,
            "fine_tune_learning_rate": 1e-2,
            "weight_decay": 0.0,
            "n_hidden": "auto",
            "n_factors": "auto",
        }
        assert found.trials[1].params["n_hidden"] in DEFAULT_SPACE["n_hidden"]


def test_error_weights_strings_and_data_frames() -> None:
    X, y = blobs()
    frame, names = pd.DataFrame(X, columns=list("abcd")), np.array(["u", "v", "w"])[y]
    weight = np.where(y == 0, 5.0, 1.0)
    found = search(quick(), frame, names, RATES, n_trials=3, objective="error", sample_weight=weight)
    best = found.best_estimator
    assert list(best.feature_names_in_) == list("abcd")
    assert set(best.predict(frame)) <= set("uvw")
    rows, labels = held_out(best, X, names)
    wrong = best.predict(pd.DataFrame(rows, columns=list("abcd"))) != labels
    assert found.best_value == pytest.approx(np.average(wrong, weights=np.where(labels == "u", 5.0, 1.0)), rel=1e-6)
    table = found.to_frame()
    assert list(table.index) == [0, 1, 2]
    assert table["value"].min() == found.best_value


def test_a_diverging_configuration_stops_no_other() -> None:
    X, y = blobs()
    for sampler in SAMPLERS:
        space = {"learning_rate": [3e-3, 1e30], "noise_level": (0.1, 0.5)}
        found = search(quick(), X, y, space, n_trials=6, n_together=6, sampler=sampler)
        bad = [trial for trial in found.trials if trial.params["learning_rate"] == 1e30]
        assert 0 < len(bad) < 6
        assert all(trial.value == np.inf and trial.state == "failed" and "diverged" in trial.error for trial in bad)
        assert sum(trial.state == "complete" for trial in found.trials) == 6 - len(bad)
    with pytest.raises(InputError, match="All 2 trials failed, the first so: Training diverged"):
        search(quick(learning_rate=1e30), X, y, {"learning_rate": [1e30]}, n_trials=2)


# --- repeating and going on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_can_be_repeated_and_stopped_in_between(sampler, tmp_path) -> None:
    X, y = blobs()
    options: dict[str, Any] = {"space": RATES, "sampler": sampler, "n_together": 2}
    whole = search(quick(), X, y, n_trials=6, **options)
    assert results(search(quick(), X, y, n_trials=6, **options)) == results(whole)
    assert results(search(quick(random_state=1), X, y, n_trials=6, **options)) != results(whole)

    file = tmp_path / "search.db"
    part = search(quick(), X, y, n_trials=4, storage=file, **options)
    rest = search(quick(), X, y, n_trials=6, storage=f"sqlite:///{file}", **{**options, "sampler": "auto"})
    assert results(rest)[:4] == results(part)
    assert len({str(trial.params) for trial in rest.trials}) == 6
    assert results(rest) == results(whole)  # every trial is drawn by a sampler of its own
    # Nothing left to do: the best comes from before, and is trained again as it was.
    last = search(quick(), X, y, n_trials=6, storage=file, **options)
    assert last.trials == rest.trials
    np.testing.assert_allclose(
        last.best_estimator.predict_proba(X), rest.best_estimator.predict_proba(X), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_without_a_seed_goes_on_with_its_own(sampler, tmp_path) -> None:
    X, y = blobs()
    options: dict[str, Any] = {"space": RATES, "sampler": sampler, "storage": tmp_path / "search.db"}
    first = search(quick(random_state=None), X, y, n_trials=1, **options)
    second = search(quick(random_state=None), X, y, n_trials=2, **options)
    assert second.trials[0] == first.trials[0]
    assert first.best_estimator.random_state == second.best_estimator.random_state
    other = search(quick(random_state=None), X, y, n_trials=1, study_name="other", **options)
    assert other.trials[0].value != first.trials[0].value


KILLED = """
import sys, torch
sys.path[:0] = [sys.argv[3], sys.argv[3] + "/.."]
torch.set_num_threads(1)
from test_search import RATES, blobs, quick, search
space = {**RATES, "n_hidden": [4, 8]}
search(quick(), *blobs(), space, n_trials=1000, n_together=4, sampler=sys.argv[1], storage=sys.argv[2])
"""
FINISHED = "SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'"


def rows_of(file: Path, query: str) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchone()[0]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_killed_search_goes_on(sampler, tmp_path) -> None:
    file = tmp_path / "search.db"
    process = subprocess.Popen([sys.executable, "-c", KILLED, sampler, str(file), str(Path(__file__).parent)])
    try:
        count = 0
        give_up = time.monotonic() + 60
        while count < 5 and process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.02)
            with contextlib.suppress(sqlite3.OperationalError):  # there is no file yet, or no table
                count = rows_of(file, FINISHED)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert count >= 5
    X, y = blobs()
    space = {**RATES, "n_hidden": [4, 8]}
    kept = search(quick(), X, y, space, n_trials=count, storage=file)
    assert len(kept.trials) >= count  # more may have been told before the signal came
    rows, labels = held_out(kept.best_estimator, X, y)
    assert log_loss(labels, kept.best_estimator.predict_proba(rows)) == pytest.approx(kept.best_value, rel=1e-5)
    more = search(quick(), X, y, space, n_trials=len(kept.trials) + 3, storage=file)
    assert all(trial in more.trials for trial in kept.trials)
    assert len(more.trials) == len(kept.trials) + 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_trials_that_were_only_asked_for_are_replaced(sampler, tmp_path) -> None:
    dimensions = read_space(RATES, EnergyClassifier().get_params())
    plan = Plan(dimensions, {"learning_rate": 3e-3, "noise_level": 0.3}, dict, {"seed": "0"}, 0)

    def told(number: int, value: float) -> Trial:
        return Trial(number, {}, value, 0.0, "complete", (0, 1, 2))

    def opened() -> Study:
        return Study(optuna, stack.enter_context(open_storage(optuna, tmp_path / "search.db")), plan, "s", sampler)

    with contextlib.ExitStack() as stack:
        store = opened()
        numbers = store.ask(3)
        assert numbers == [0, 1, 2]
        configs = [store.config(number) for number in numbers]
        store.tell([told(1, 0.5)])
    with contextlib.ExitStack() as stack:
        store = opened()
        assert [trial.number for trial in store.finished()] == [1]
        assert [store.config(number) for number in numbers] == configs  # the program of trial 1 can run again
        again = [store.config(number) for number in store.ask(2)]
        assert again[0] == plan.first  # trial 0 is always tried
        assert again[1] not in configs[:2]


@pytest.mark.parametrize("name", ["search.db", "search.journal"])
def test_processes_share_a_study(name, tmp_path, monkeypatch) -> None:
    dimensions = read_space(RATES, EnergyClassifier().get_params())
    plan = Plan(dimensions, {"learning_rate": 3e-3, "noise_level": 0.3}, dict, {"seed": "0"}, 0)
    with open_storage(optuna, tmp_path / name) as storage, open_storage(optuna, tmp_path / name) as another:
        monkeypatch.setattr("os.getpid", os.getppid)  # somebody else, who lives
        theirs = Study(optuna, storage, plan, "s", "random")
        assert theirs.ask(2) == [0, 1]
        monkeypatch.undo()
        mine = Study(optuna, another, plan, "s", "random")
        assert mine.n_elsewhere() == 2
        assert mine.ask(1) == [2]
        assert mine.config(2) != plan.first  # which they are at
        theirs.tell([Trial(0, {}, 0.5, 0.0, "complete", (0, 1))])
        assert mine.n_elsewhere() == 1
        assert [trial.number for trial in mine.finished()] == [0]
        monkeypatch.setattr("energate.tuning._study.STALE", -1.0)
        monkeypatch.setattr("energate.tuning._study.BEAT", 0.01)
        with theirs.beating():
            while not mine.study.trials[1].user_attrs.get(BEATS):
                time.sleep(0.01)
        assert mine.n_elsewhere() == 1, "it has said that it lives"
        assert mine.n_elsewhere() == 0, "but not since"
        theirs.tell([Trial(1, {}, 0.5, 0.0, "complete", (0, 1))])  # too late: it was given up
        mine.tell([Trial(2, {}, 0.4, 0.0, "complete", (2,))])
        assert [trial.number for trial in theirs.finished()] == [0, 2]


def test_a_journal_of_something_else_is_left_alone(tmp_path) -> None:
    (tmp_path / "diary.journal").write_text("Monday\n")
    with pytest.raises(InputError, match="no journal of optuna"):
        search(quick(), *blobs(), RATES, n_trials=1, storage=tmp_path / "diary.journal")
    assert (tmp_path / "diary.journal").read_text() == "Monday\n"


def test_the_last_trials_of_others_are_awaited(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("energate.tuning.WAIT", 0.0)
    left = iter([2, 1, 1, 0])  # of three trials, as many as others are at
    asked = list[int]()

    def ask(study: Study, n: int) -> list[int]:
        asked.append(n)
        return Study_ask(study, n)

    Study_ask = Study.ask
    monkeypatch.setattr(Study, "ask", ask)
    monkeypatch.setattr(Study, "n_elsewhere", lambda _: next(left, 0))
    found = search(quick(), *blobs(), RATES, n_trials=3, storage=tmp_path / "s.journal")
    assert len(found.trials) == 3
    assert asked == [2, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "processes"}, "serial, ray; got 'processes'"),
        ({"workers": 2}, "are for `engine` 'ray'"),
        ({"engine": "ray", "workers": 0}, "`workers` must be at least 1"),
    ],
)
def test_engines_that_cannot_be_are_refused(options, words) -> None:
    with pytest.raises(InputError, match=words):
        search(quick(), *blobs(), RATES, n_trials=1, **options)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_another_search_is_refused(sampler, tmp_path) -> None:
    X, y = blobs()
    file = tmp_path / "search.db"
    search(quick(), X, y, RATES, n_trials=1, sampler=sampler, storage=file)
    search(quick(verbose=0, device="cpu"), X, y, RATES, n_trials=1, storage=file)
    others: list[tuple[str, EnergyClassifier, Any, Any, dict[str, Any]]] = [
        ("estimator", quick(max_epochs=4), X, RATES, {}),
        ("space", quick(), X, {"learning_rate": (1e-3, 1e-2)}, {}),
        ("data", quick(), X + 1, RATES, {}),
        ("data", quick(), X, RATES, {"sample_weight": np.ones(len(X))}),
        ("objective", quick(), X, RATES, {"objective": "error"}),
        ("seed", quick(), X, RATES, {"random_state": 1}),
    ]
    for what, estimator, rows, space, options in others:
        with pytest.raises(InputError, match=f"another search: its {what} differs"):
            search(estimator, rows, y, space, n_trials=1, storage=file, **options)
    other = "random" if sampler == "optuna" else "optuna"
    with pytest.raises(InputError, match=f"written by sampler='{sampler}'; got '{other}'"):
        search(quick(), X, y, RATES, n_trials=1, sampler=other, storage=file)


def test_files_of_others_are_left_alone(tmp_path) -> None:
    X, y = blobs()
    (tmp_path / "text.db").write_text("words " * 200)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE other (x)")
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("CREATE TABLE energate_trials (x)")
    for name, message in {
        "text.db": "no SQLite file",
        "other.db": "database of something else",
        "old.db": "random search of an older energate",
        "no/such.db": "in a folder that is there",
        "": "path of an SQLite file",
    }.items():
        with pytest.raises(InputError, match=message):
            search(quick(), X, y, n_trials=1, storage=tmp_path / name)
    with pytest.raises(InputError, match="path of an SQLite file"):
        search(quick(), X, y, n_trials=1, storage="postgresql://x/y")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
@pytest.mark.slow
def test_killed_searches_go_on_and_damaged_files_are_refused() -> None:
    """The short form of benchmarks/chaos/studies.py, in a process without other threads."""
    folder = str(Path(__file__).parents[2] / "benchmarks" / "chaos")
    code = "import json, studies; print(json.dumps(studies.trial(2, 8, seed=1)))"
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=settings, check=True, capture_output=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"]["broken"] == []
    assert found["killed"]["kills"] >= 2
    assert found["damaged"]["broken"] == []
    assert found["damaged"]["ended"]["refused"] >= 2


def test_a_damaged_study_is_told_with_a_way_out(tmp_path) -> None:
    X, y = blobs()
    file = tmp_path / "search.db"
    search(quick(), X, y, RATES, n_trials=2, storage=file)
    assert os.listdir(tmp_path) == ["search.db"]
    good = file.read_bytes()

    def refused() -> str:
        with pytest.raises(InputError, match=r"search\.db is damaged .*begins anew") as told:
            search(quick(), X, y, RATES, n_trials=2, storage=file)
        return str(told.value)

    file.write_bytes(good[: len(good) // 2])
    refused()
    for statement, words in {
        "UPDATE trial_values SET value = value + 1e-9": "trial 0 is not as it was written",
        "UPDATE trial_user_attributes SET value_json = '{'": "cannot be read",
        "DELETE FROM trial_user_attributes": "cannot be read",
        "DROP TABLE trial_values": "cannot be read",
    }.items():
        file.write_bytes(good)
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute(statement)
            connection.commit()
        assert words in refused()
    file.write_bytes(good)
    assert len(search(quick(), X, y, RATES, n_trials=2, storage=file).trials) == 2


# --- the surface -----------------------------------------------------------------------------------------------------


def test_the_name_is_the_function() -> None:
    assert energate.search is energate.tuning.search


def test_without_optuna_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"energate\[tune\]"):
        search(quick(), *blobs(), RATES, n_trials=3)


def test_no_more_trials_begin_after_the_timeout() -> None:
    X, y = blobs()
    assert len(search(quick(), X, y, RATES, n_trials=50, n_together=2, timeout=1e-6).trials) == 2


def test_progress_is_shown_on_a_terminal_only(capsys, monkeypatch) -> None:
    X, y = blobs()
    search(quick(), X, y, RATES, n_trials=2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    search(quick(), X, y, RATES, n_trials=2, progress=False)
    assert capsys.readouterr() == ("", "")
    found = search(quick(), X, y, RATES, n_trials=2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err
    assert f"{found.best_value:.4g}" in shown.err


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "must be a dictionary"),
        ({"thickness": [1]}, "may hold .*n_hidden, .*got also thickness"),
        ({"validation_fraction": [0.1]}, "validation_fraction: the same for all trials"),
        ({"learning_rate": []}, "empty list"),
        ({"learning_rate": [0.1, 0.1]}, "holds a choice twice"),
        ({"generative_weight": ["auto"]}, "must hold numbers"),
        ({"learning_rate": [[0.1, 0.2]]}, "must hold numbers"),
        ({"learning_rate": (0.1,)}, "must be a list of choices"),
        ({"learning_rate": 0.1}, "must be a list of choices"),
        ({"activation": ("relu", "sigmoid")}, "must be a list of choices"),
        ({"learning_rate": (0.2, 0.1)}, "from a lower to a higher"),
        ({"learning_rate": (0.1, 0.1)}, "from a lower to a higher"),
        ({"learning_rate": (0.1, float("inf"))}, "from a lower to a higher"),
        ({"weight_decay": (0, 1.0, "log")}, "must begin above 0; got 0"),
        ({"weight_decay": (0.1, 1.0, "linear")}, "got 'linear' as its third value"),
    ],
)
def test_spaces_that_cannot_be_used_are_refused(space, message) -> None:
    with pytest.raises(InputError, match=message):
        search(quick(), *blobs(), space, n_trials=1)


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (LogisticRegression(), {}, "must be an EnergyClassifier.*got LogisticRegression"),
        (EnergyScorer(), {}, "must be an EnergyClassifier.*got EnergyScorer"),
        (quick(early_stopping=False), {}, "early_stopping=False"),
        (quick(validation_fraction=0.01), {}, "holds at least 5 rows of every class.*with 80 rows"),
        (quick(learning_rate=[1e-3, 1e-2]), {}, "`learning_rate` of the estimator must be one number"),
        (quick(generative_weight=[0.0, 0.1]), {}, "`generative_weight` of the estimator must be one number"),
        (quick(), {"n_trials": 0}, "`n_trials` must be a whole number of at least 1"),
        (quick(), {"n_together": 1.5}, "`n_together` must be a whole number of at least 1"),
        (quick(), {"objective": "accuracy"}, "`objective` must be one of log_loss, error"),
        (quick(), {"sampler": "grid"}, "`sampler` must be one of auto, optuna, random"),
        (quick(), {"timeout": 0}, "`timeout` must be None or seconds above 0"),
    ],
)
def test_what_cannot_be_searched_is_refused(estimator, options, message) -> None:
    with pytest.raises(InputError, match=message):
        search(estimator, *blobs(), **{"n_trials": 1, **options})


def draw(dimension: Any, n_times: int, seed: int = 0) -> list[Any]:
    """Numbers of a dimension as a random study draws them."""
    sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=sampler, storage=optuna.storages.InMemoryStorage())
    return [dimension.suggest(study.ask(), "x") for _ in range(n_times)]


@given(
    ends=st.tuples(st.integers(1, 1000), st.integers(1, 1000)).filter(lambda ends: ends[0] != ends[1]),
    whole=st.booleans(),
    log=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_numbers_are_drawn_within_their_range(ends, whole, log, seed) -> None:
    low, high = sorted(ends) if whole else sorted(end / 7 for end in ends)
    dimension = read_space({"n_hidden": (low, high, "log") if log else (low, high)}, {"n_hidden": 1})["n_hidden"]
    drawn = draw(dimension, 20, seed)
    assert all(low <= number <= high and type(number) is (int if whole else float) for number in drawn)
    assert all(dimension.holds(number) for number in drawn)
    assert not dimension.holds(high + 1)


def test_a_range_on_a_log_scale_is_drawn_evenly_in_its_logarithm() -> None:
    known = {"weight_decay": 0, "n_hidden": 1}
    dimensions = read_space({"weight_decay": (1e-6, 1e-2, "log"), "n_hidden": (1, 3)}, known)
    logs = np.log10(draw(dimensions["weight_decay"], 500))
    assert logs.mean() == pytest.approx(-4, abs=0.2)
    assert logs.std() == pytest.approx(4 / np.sqrt(12), abs=0.1)
    counts = np.bincount(draw(dimensions["n_hidden"], 600))
    assert counts[1:].min() > 150  # both ends are among them


def test_tables_with_holes_and_categories_are_searched() -> None:
    table, y = mixed_columns()
    frame = pd.DataFrame(table)
    options: dict[str, Any] = {"n_hidden": 4, "pretrain_epochs": 1, "max_epochs": 2, "random_state": 0, "device": "cpu"}
    found = search(
        EnergyClassifier("mean", **options), frame, y, {"weight_decay": [0.0, 1e-3]}, n_trials=2, progress=False
    )
    assert found.best_estimator.cells_.width == 8
    assert np.isfinite(found.best_estimator.predict_proba(frame)).all()
