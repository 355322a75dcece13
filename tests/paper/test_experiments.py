"""The tables, the configurations that are searched, the systems, the choice between trials, and the ablation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from energate import Autoencoder, CovarianceUnits, check_conservative
from energate.errors import InputError
from energate.estimators.progress import watching
from energate.estimators.together import merged, or_each_alone, programs
from energate.paper import TABLES, run, work
from energate.paper import systems as columns
from energate.paper.cell import Attempt, write_json, written
from energate.paper.plan import PROFILES
from energate.paper.spaces import PRINTED_SIZE, VARIANTS, configuration, space, variant_of
from energate.paper.systems import CLASS_SYSTEMS, SYSTEMS, Parts, PrintedCovarianceUnits, choose, printed_units

# --- the tables ---------------------------------------------------------------------------------------------------

#: typed from the paper, column by column: SVM, RBM, SAA-3, GSM, AES, cAES, mcAES
PUBLISHED = {
    "svm": "2.15 24.04 19.13 3.03 11.11 14.58 55.18",
    "rbm": "4.71 23.69 19.92 3.94 14.69 9.80 52.21",
    "saa3": "2.14 24.05 18.41 3.46 10.30 11.28 51.93",
    "gsm": "0.56 22.51 17.08 3.70 11.75 10.48 55.16",
    "aes": "0.84 21.45 21.52 2.61 11.25 9.70 47.14",
    "caes": "0.61 22.85 21.6 3.65 16.5 18.65 39.98",
    "mcaes": "0.54 21.41 20.63 3.65 13.42 16.73 35.52",
}
ROWS = [
    "rectangles",
    "rectangles-images",
    "convex",
    "mnist-small",
    "mnist-rotated",
    "mnist-random",
    "mnist-rotated-images",
]
#: the least of each row, which the paper prints in bold
BOLD = dict(zip(ROWS, ["mcaes", "mcaes", "gsm", "aes", "saa3", "aes", "mcaes"], strict=True))
CASES = [
    (table.name, data, system)
    for table in TABLES.values()
    if not table.labels  # those are in test_label_cells.py
    for data in dict.fromkeys((*table.data, *(PROFILES["quick"].data or ())))
    for system in table.systems
]


def test_published_numbers_are_those_of_the_paper() -> None:
    published = TABLES["table1"].published
    assert list(published) == list(TABLES["table1"].data) == ROWS
    typed = {system: dict(zip(ROWS, map(float, line.split()), strict=True)) for system, line in PUBLISHED.items()}
    assert published == {data: {system: typed[system][data] for system in typed} for data in ROWS}
    assert {data: min(row, key=row.__getitem__) for data, row in published.items()} == BOLD


def test_tables_and_systems_fit() -> None:
    for table in TABLES.values():
        assert set(table.systems) <= set(SYSTEMS[table.labels])
        assert len(set(table.systems.values())) == len(table.systems)
        assert set(table.ours) | set(table.apart) <= set(table.systems)
        for row in table.published.values():
            assert set(row) <= set(table.systems)
        named = {system for other in TABLES.values() if other.labels is table.labels for system in other.systems}
        assert set(SYSTEMS[table.labels]) == named


# --- configurations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [False, True])
def test_every_system_has_configurations_for_every_set(search: bool) -> None:
    for _, data, system in CASES:
        taken_over = variant_of(system)
        configs = space(system if taken_over is None else taken_over[0], data, search)
        tried = system == "deep" and data.startswith("mnist")  # before
        alone = not search or tried
        assert len(configs) == 1 if alone else len(configs) > 1, (system, data)
        assert json.loads(json.dumps(configs, allow_nan=False)) == configs, (system, data)
        texts = [json.dumps(config, sort_keys=True) for config in configs]
        assert len(set(texts)) == len(texts), (system, data)
        for config in configs:
            clone(CLASS_SYSTEMS[system].make({**config, **(taken_over[1] if taken_over else {})}, "cpu", 0))


def test_an_unknown_system_has_no_configurations() -> None:
    with pytest.raises(InputError, match="no space for the system 'tree'"):
        space("tree", "digits", True)


def test_the_printed_score_is_tried_with_the_size_that_it_has() -> None:
    for search in (False, True):
        sizes = {(config["n_hidden"], config["n_factors"]) for config in space("caes-printed", "convex", search)}
        assert sizes == {(PRINTED_SIZE, PRINTED_SIZE)}


# --- choosing -----------------------------------------------------------------------------------------------------

MEASURES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=8)


def trials_of(pairs: list[tuple[float, float]], failed: tuple[int, ...] = (), loss: float = np.inf) -> list[Attempt]:
    return [
        Attempt({"i": i}, np.inf, loss, 0.0, "failed") if i in failed else Attempt({"i": i}, error, log_loss, 0.0)
        for i, (error, log_loss) in enumerate(pairs)
    ]


@given(MEASURES)
def test_choice_is_by_ranks_alone(pairs: list[tuple[float, float]]) -> None:
    chosen = choose(trials_of(pairs))
    assert choose(trials_of([(error**3 + 1, loss) for error, loss in pairs])) == chosen
    assert choose(trials_of([(error, np.exp(loss) / 7) for error, loss in pairs])) == chosen
    errors, losses = zip(*pairs, strict=True)
    sums = [sum(e > e2 for e2 in errors) + sum(x > x2 for x2 in losses) for e, x in pairs]
    assert sums[chosen] == min(sums)
    # Nothing is better in one and at least as good in the other.
    error, loss = pairs[chosen]
    assert not any((e <= error and x < loss) or (e < error and x <= loss) for e, x in pairs)


@given(MEASURES, st.data(), st.sampled_from([np.inf, np.nan]))
def test_failed_trials_are_never_chosen(pairs: list[tuple[float, float]], data: Any, loss: float) -> None:
    good = data.draw(st.integers(0, len(pairs) - 1))
    others = [i for i in range(len(pairs)) if i != good]
    failed = data.draw(st.sets(st.sampled_from(others))) if others else set()
    left = [i for i in range(len(pairs)) if i not in failed]
    chosen = choose(trials_of(pairs, tuple(failed), loss))
    assert chosen == left[choose(trials_of([pairs[i] for i in left]))]  # as if they had not been tried


def test_without_log_losses_the_error_decides() -> None:
    assert choose([Attempt({}, error, None, 0.0) for error in (3.0, 2.0, 2.0)]) == 1


def test_trials_are_strict_json() -> None:
    failed = written(Attempt({"a": 1}, np.inf, np.nan, 0.1, "ValueError: no"))
    assert failed == {
        "config": {"a": 1},
        "valid_error": None,
        "valid_log_loss": None,
        "seconds": 0.1,
        "error": "ValueError: no",
        "status": "failed",
    }
    assert written(Attempt({}, 1.0, None, 0.1))["status"] == "ok"


# --- systems ------------------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "n_members": 2,
    "n_hidden": 4,
    "n_factors": 4,
    "scaling": "unit",
    "noise_level": 0.3,
    "learning_rate": 1e-2,
    "pretrain_epochs": 2,
    "max_epochs": 2,
    "fine_tune_learning_rate": 1e-2,
    "generative_weight": 0.1,
}


@pytest.fixture(scope="module")
def parts() -> Parts:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = np.clip(rng.random((3, 12))[y] + 0.15 * rng.standard_normal((90, 12)), 0, 1).astype(np.float32)
    return Parts(X[:60], y[:60], X[60:], y[60:])


def test_configurations_of_one_shape_train_together(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[list[Any]] = []
    together = columns._members

    def noted(units: Any, configs: Any, *rest: Any) -> Any:
        programs.append([(config["n_hidden"], config["noise_level"]) for config in configs])
        return together(units, configs, *rest)

    monkeypatch.setattr(columns, "_members", noted)
    configs = [{**TINY, "n_hidden": n, "noise_level": noise} for noise in (0.1, 0.5) for n in (4, 6)]
    system = CLASS_SYSTEMS["mcaes"]
    trials = system.search(parts, configs, "cpu", 7)
    assert programs == [[(4, 0.1), (4, 0.5)], [(6, 0.1), (6, 0.5)]]
    assert [trial.config for trial in trials] == configs
    assert all(np.isfinite([trial.valid_error, trial.valid_log_loss]).all() for trial in trials)
    # The numbers are those of the members, each alone.
    model = together("mean-covariance", [configs[1], configs[3]], "cpu", 7)
    model.fit(parts.X_train, parts.y_train, X_valid=parts.X_valid, y_valid=parts.y_valid)
    for labels, trial in zip(system.members(model, parts.X_valid), [trials[1], trials[3]], strict=True):
        assert trial.valid_error == pytest.approx(100 * np.mean(labels != parts.y_valid))


def test_programs_differ_in_what_steps_training() -> None:
    configs: list[dict[str, Any]] = [{"n_hidden": n, "learning_rate": rate} for rate in (0.1, 0.2) for n in (4, 6)]
    assert programs(configs) == [[0, 2], [1, 3]]
    assert merged([configs[0], configs[2]]) == {"n_hidden": 4, "learning_rate": [0.1, 0.2]}
    assert programs([{"units": printed_units}] * 2) == [[0], [1]]  # what a function builds may share weights
    assert programs([]) == []


def test_a_program_that_fails_is_tried_one_by_one() -> None:
    def train(configs: Any) -> list[str]:
        if any(config["bad"] for config in configs):
            raise InputError("no")
        return [f"{len(configs)} together" for _ in configs]

    found = or_each_alone([{"bad": bad} for bad in (False, True)], train, lambda config, error, seconds: str(error))
    assert found == ["1 together", "no"]
    assert or_each_alone([{"bad": False}] * 2, train, lambda *_: "") == ["2 together"] * 2
    with pytest.raises(ZeroDivisionError):
        or_each_alone([{}], lambda configs: [1 / 0], lambda *_: 0)  # a mistake in the code is no failure


def test_a_configuration_that_diverges_spoils_no_other(parts: Parts) -> None:
    configs = [TINY, {**TINY, "learning_rate": 1e39}, {**TINY, "noise_level": 0.1}]
    trials = CLASS_SYSTEMS["aes"].search(parts, configs, "cpu", 0)
    assert [trial.config for trial in trials] == configs
    assert [np.isfinite(trial.valid_error) for trial in trials] == [True, False, True]
    assert trials[1].error.startswith("InputError: ")
    assert choose(trials) in (0, 2)


def test_networks_that_fail_are_told(parts: Parts) -> None:
    good = {"n_hidden": 8, "max_epochs": 2}
    trials = CLASS_SYSTEMS["mlp"].search(parts, [{**good, "n_hidden": -1}, good], "cpu", 0)
    assert [np.isfinite(trial.valid_error) for trial in trials] == [False, True]
    assert trials[0].error.startswith("InputError: ")


def test_an_ensemble_has_members_and_filters(parts: Parts) -> None:
    system = CLASS_SYSTEMS["mcaes"]
    model = system.fit(parts, {**TINY, "n_hidden": 8, "n_factors": 8}, "cpu", 0)
    members = system.members(model, parts.X_valid)
    assert [labels.shape for labels in members] == [(30,), (30,)]
    filters = system.filters(model)
    assert set(filters) == {"mean", "covariance"}
    for weights, classes in filters.values():
        assert weights.shape == (18, 12)
        assert classes.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert system.curves
    assert set(model.history_) == {"pretrain", "fine-tune"}
    alone = system.fit(parts, {**TINY, "n_members": 1}, "cpu", 0)
    assert system.members(alone, parts.X_valid) == []


def test_machines_are_searched_over_the_whole_grid(parts: Parts) -> None:
    configs = space("svm", "convex", True)
    trials = CLASS_SYSTEMS["svm"].search(parts, configs, "cpu", 0)
    assert {tuple(trial.config.values()) for trial in trials} == {tuple(config.values()) for config in configs}
    assert len(trials) == len(configs)
    for trial in (trials[0], trials[-1]):
        model = CLASS_SYSTEMS["svm"].fit(parts, trial.config, "cpu", 0)
        wrong = np.mean(model.predict(parts.X_valid) != parts.y_valid)
        assert trial.valid_error == pytest.approx(100 * wrong)


def test_watching_tells_epochs(parts: Parts) -> None:
    events: list[work.Event] = []
    task = work.Task("cell", "digits", "aes", 3)
    with watching(work._watcher(task, events.append)):
        CLASS_SYSTEMS["aes"].fit(parts, TINY, "cpu", 0)
    assert {(event.stage, event.n_epochs) for event in events} == {("pretrain", 2), ("fine-tune", 2)}
    assert all(event.task == task and event.kind == "epoch" for event in events)
    last = [event for event in events if event.epoch == event.n_epochs]  # told even if the one before was just now
    assert [event.stage for event in last] == ["pretrain", "fine-tune"]
    assert last[1].best is not None
    n_events = len(events)
    CLASS_SYSTEMS["aes"].fit(parts, TINY, "cpu", 0)  # no one watches any more
    assert len(events) == n_events


# --- the ablation -------------------------------------------------------------------------------------------------


def test_the_printed_score_is_no_potential() -> None:
    generator = torch.Generator().manual_seed(0)
    printed = Autoencoder(PrintedCovarianceUnits(2, 6, 5, generator)).double()
    exact = Autoencoder(CovarianceUnits(2, 6, 5, 5)).double()
    with torch.no_grad():
        for theirs, own in zip(printed.groups[0].parameters(), exact.groups[0].parameters(), strict=True):
            theirs.mul_(3)
            own.copy_(theirs)
    v = torch.rand(20, 6, dtype=torch.float64)
    assert check_conservative(exact, v).gradient_error < 1e-10
    with pytest.raises(InputError, match="not the potential of the vector field"):
        check_conservative(printed, v)
    # The reconstruction is the same; the score's gradient is not its field.
    torch.testing.assert_close(printed.reconstruct(v), exact.reconstruct(v))
    errors = []
    for model in (printed, exact):
        own = v.expand(2, *v.shape).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model.energy(own).sum(), own)
        field = (model.reconstruct(own) - own).detach()
        errors.append(float((gradient - field).norm() / field.norm()))
    assert errors[0] > 0.05
    assert errors[1] < 1e-12
    assert printed_units(3, 6, generator).n_models == 3


def test_variants_differ_from_their_origin_by_one_thing() -> None:
    assert variant_of("mcaes-calibrated") == ("mcaes", VARIANTS["calibrated"])
    assert VARIANTS["hybrid"] == {"n_members": 1}
    for name in ("calibrated", "discriminative"):
        assert len({**VARIANTS[name]}.items() - VARIANTS["hybrid"].items()) == 1
    for name in ("aes", "caes-paper", "caes-printed", "svm-hybrid", "deep"):
        assert variant_of(name) is None


def test_variants_take_over_what_the_first_table_chose(tmp_path: Path) -> None:
    full = PROFILES["full"]
    with pytest.raises(
        InputError, match=r"aes-hybrid on convex takes .* table1 --profile full --data convex --system aes"
    ):
        run("ablation", profile="full", data=["convex"], systems=["aes-hybrid"], results=tmp_path, device="cpu")
    assert list(tmp_path.iterdir()) == []
    configs = space("aes", "convex", True)
    search: dict[str, Any] = {"schema": 1, "profile": "full", "space": configs, "chosen": 4}
    search["trials"] = [{"config": config} for config in configs]
    write_json(tmp_path / "table1/convex/aes/search.json", search)
    for variant, changes in VARIANTS.items():
        found = configuration(tmp_path, "ablation", "convex", f"aes-{variant}", full)
        assert found == {**configs[4], **changes}
    for other in ({"profile": "quick"}, {"space": configs[:-1]}):
        write_json(tmp_path / "table1/convex/aes/search.json", search | other)
        with pytest.raises(InputError, match="First run"):
            configuration(tmp_path, "ablation", "convex", "aes-hybrid", full)


def test_a_quick_ablation_needs_no_search(tmp_path: Path) -> None:
    quick = PROFILES["quick"]
    for variant, changes in VARIANTS.items():
        found = configuration(tmp_path, "ablation", "digits", f"caes-{variant}", quick)
        assert found == {**space("caes", "digits", False)[0], **changes}


def test_digits_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**TINY, "n_members": 1}
    spaces = {"svm": [{"C": 10.0, "gamma": "scale"}], "gsm": [{"n_hidden": 8, "n_factors": 8, "max_epochs": 2}]}
    monkeypatch.setattr("energate.paper.spaces.space", lambda system, data, search: spaces.get(system, [small]))
    systems = ["svm", "gsm", "mcaes"]
    summary = run("table1", data=["digits"], systems=systems, results=tmp_path, device="cpu", show=lambda event: None)
    assert (summary.n_done, summary.failed) == (3, [])
    cells = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.rglob("seed0.json")}
    assert set(cells) == set(systems)
    for cell in cells.values():
        assert (cell["shape"], cell["n_train"], cell["n_valid"], cell["n_test"]) == ([8, 8], 1000, 200, 597)
        assert np.sum(cell["confusion"]) == 597
        assert cell["test_slice"] is None
    assert cells["svm"]["test_error"] < 6
    assert cells["mcaes"]["energies"] is not None
    assert set(cells["mcaes"]["filters"]) == {"mean", "covariance"}
