"""Captured steps: when, how, and that they are the eager ones; the graphs themselves need a GPU."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import D, K, M, random_model, random_rows
from torch import Tensor

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.autoencoder import Autoencoder
from energate.training import History, captured, corrupt, minimise, row_batches
from energate.training.captured import (
    LEAST_STEPS,
    MOST_GRAPHS,
    REGISTERS_ITSELF,
    SWITCH,
    WARM_UP,
    CaptureError,
    Steps,
    Take,
    why_eager,
)
from energate.units import CovarianceUnits, MeanUnits

RATES = torch.tensor([0.02, 0.005, 0.01], dtype=torch.float64)
DECAYS = torch.tensor([0.0, 0.3, 0.1], dtype=torch.float64)
OPTIMIZERS = ["adam", "adamw", "sgd"]


class OnCuda(Tensor):
    """What says that it is on a GPU, without one."""

    device = torch.device("cuda:0")


class OnAnother(Tensor):
    device = torch.device("cuda:1")


HERE, THERE, ROWS = torch.ones(2).as_subclass(OnCuda), torch.ones(2).as_subclass(OnAnother), torch.arange(2)


# --- when ---------------------------------------------------------------------------------------------------------

DRAWS = SimpleNamespace(device=torch.device("cuda:0"))
CPU_DRAWS = torch.Generator()
GOOD = {"capture": None, "generators": [DRAWS], "tensors": [HERE], "batches": [HERE], "n_steps": LEAST_STEPS}


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("", {}),
        ("", {"generators": []}),
        ("", {"capture": True, "n_steps": 1}),
        ("switched off", {"capture": False}),
        ("`generators` was not given", {"generators": None, "capture": True}),
        ("not on one CUDA device", {"tensors": [ROWS], "capture": True}),
        ("not on one CUDA device", {"tensors": [HERE, THERE]}),
        ("not on one CUDA device", {"tensors": [HERE, ROWS]}),
        ("batches are not tensors on the device", {"batches": [HERE, ROWS]}),
        ("batches are not tensors on the device", {"batches": [0]}),
        ("draws on another device", {"generators": [DRAWS, CPU_DRAWS]}),
        ("too few", {"n_steps": LEAST_STEPS - 1}),
    ],
)
def test_steps_are_captured_where_that_is_possible_and_pays(what: str, change: dict, monkeypatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    why = why_eager(**GOOD | change)
    assert what in why
    assert bool(what) == bool(why)


def test_a_variable_of_the_environment_switches(monkeypatch) -> None:
    few = GOOD | {"n_steps": 2}
    monkeypatch.setenv(SWITCH, "0")
    assert "switched off" in why_eager(**GOOD)
    assert not why_eager(**GOOD | {"capture": True})  # who asks is heard
    monkeypatch.setenv(SWITCH, "1")
    assert not why_eager(**few)
    monkeypatch.setenv(SWITCH, "")
    assert "too few" in why_eager(**few)


def test_history_says_why_steps_are_eager(monkeypatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)

    def history(**options: object) -> History:
        w = torch.ones(2, requires_grad=True)
        return minimise(lambda _: w.square(), [w], lambda _: [torch.zeros(1)], epochs=LEAST_STEPS, **options)

    assert "`generators` was not given" in history().why_eager
    assert "not on one CUDA device" in history(generators=[], capture=True).why_eager
    assert "switched off" in history(generators=[], capture=False).why_eager
    assert history().n_replayed == 0


def test_the_losses_of_the_package_say_what_they_draw_from(monkeypatch) -> None:
    """On a CPU all that is missing is the GPU."""
    monkeypatch.delenv(SWITCH, raising=False)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y, Y = (X[:, 0] > 0).astype(int), (X > 0).astype(int)
    quick = {"max_epochs": 1, "random_state": 0, "device": "cpu"}
    trunk = EnergyClassifier(**quick).fit(X, y)
    mean = EnergyClassifier("mean", pretrain_epochs=1, n_hidden=4, **quick).fit(X, y)
    labels = LabelMLP(n_hidden=4, **quick).fit(X, Y)
    refiners = [EnergyRefiner(labels, relation=relation, **quick).fit(X, Y) for relation in ("xy", "yy")]
    others = [labels, *refiners, EnergyScorer("mean", **quick).fit(X), PairScorer(**quick).fit(X, X)]
    histories = [*trunk.history_.values(), *mean.history_.values(), *(other.history_ for other in others)]
    assert len(histories) == 8
    assert {history.why_eager for history in histories} == {"the parameters are not on one CUDA device"}


# --- how, with a recorder in the place of a GPU's -------------------------------------------------------------------


class StandIn:
    """Records as a GPU does: every step is computed from the same memory, into the same memory."""

    def __init__(self, *_: object, fails: str = "") -> None:
        self.log: list[str] = []
        self.fails = fails

    def warm_up(self, take: Take, batch: Tensor, factor: float) -> Tensor:
        self.log.append(f"eager {len(batch)}")
        return take(batch, torch.tensor(factor, dtype=torch.float64))

    def record(self, take: Take, batch: Tensor) -> Take:
        if self.fails:
            raise CaptureError(self.fails)
        self.log.append(f"record {len(batch)}")
        where, number, losses = batch.clone(), torch.ones((), dtype=torch.float64), []

        def replay(batch: Tensor, factor: float | Tensor) -> Tensor:
            self.log.append(f"replay {len(batch)}")
            where.copy_(batch)
            number.fill_(factor)
            found = take(where, number)
            losses[:] = losses or [found.clone()]
            return losses[0].copy_(found)

        return replay


def test_every_shape_is_captured_after_some_eager_steps_and_not_too_many_shapes() -> None:
    recorder, sizes = StandIn(), [8] * (WARM_UP + 2) + [5] * (WARM_UP + 1) + [3] * (WARM_UP + 1) + [8, 5]
    steps = Steps(lambda batch, _: batch.sum(), recorder)
    for size in sizes:
        assert float(steps(torch.ones(size), 1.0)) == size
    expected = [*["eager 8"] * WARM_UP, "record 8", "replay 8", "replay 8"]
    expected += [*["eager 5"] * WARM_UP, "record 5", "replay 5"]
    expected += ["eager 3"] * (WARM_UP + 1) + ["replay 8", "replay 5"]
    assert MOST_GRAPHS == 2
    assert recorder.log == expected
    assert (steps.n_replayed, steps.why_eager) == (5, "")


def test_a_step_that_cannot_be_captured_stays_eager() -> None:
    recorder, taken = StandIn(fails="it waits"), []
    steps = Steps(lambda batch, factor: taken.append(factor) or batch.sum(), recorder)
    for i in range(WARM_UP + 4):
        assert float(steps(torch.ones(2), float(i))) == 2
    assert recorder.log == ["eager 2"] * WARM_UP
    assert [float(factor) for factor in taken] == list(range(WARM_UP + 4))  # none twice, none left out
    assert (steps.n_replayed, steps.why_eager) == (0, "it waits")


class Problem:
    """Denoising by K models, with noise that is drawn in the loss, and a shorter last batch."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        units = [MeanUnits(K, D, M), CovarianceUnits(K, D, 5, M)]
        self.start = random_model(units, scale=0.3)
        self.v, self.held_out = random_rows(n_rows=22).to(device), random_rows(n_rows=11, seed=9).to(device)

    def train(
        self, reads: Callable[[Tensor], object] | None = None, told: bool = True, **options: object
    ) -> tuple[Autoencoder, History]:
        model = self.start.select(range(K)).to(self.device)
        generator = torch.Generator(self.device).manual_seed(3)

        def loss(rows: Tensor) -> Tensor:
            v = self.v[rows]
            losses = model.loss(v, seen=corrupt(v, "gaussian", 0.3, generator)).mean(1)
            if reads is not None:
                reads(losses)
            return losses

        options = {"epochs": 8, "schedule": "cosine", "learning_rate": 0.01} | options
        options |= {"validate": lambda: model.loss(self.held_out).mean(1), "generators": [generator] if told else []}
        batches = row_batches(len(self.v), 8, seed=3, device=self.device)  # 8, 8 and 6 rows
        return model, minimise(loss, model.parameters(), batches, **options)


def assert_same(actual: tuple[Autoencoder, History], expected: tuple[Autoencoder, History], tol: float) -> None:
    close = {"rtol": tol, "atol": tol}
    for mine, theirs in zip(actual[0].parameters(), expected[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, **close)
    for what in ("loss", "validation"):
        mine, theirs = (torch.stack(getattr(history, what)) for _, history in (actual, expected))
        torch.testing.assert_close(mine, theirs, **close)
    assert actual[1].n_steps == expected[1].n_steps


HOW = [
    *({"optimizer": optimizer, "weight_decay": 0.1} for optimizer in OPTIMIZERS),
    *({"optimizer": optimizer, "learning_rate": RATES, "weight_decay": DECAYS} for optimizer in OPTIMIZERS),
]


@pytest.mark.parametrize("how", HOW)
def test_training_from_one_memory_equals_training(how: dict, monkeypatch) -> None:
    problem = Problem()
    expected = problem.train(**how)
    monkeypatch.setattr(captured, "why_eager", lambda *_: "")
    monkeypatch.setattr(captured, "CudaRecorder", StandIn)
    actual = problem.train(**how)
    assert_same(actual, expected, 1e-12)
    assert actual[1].n_replayed == actual[1].n_steps - 2 * WARM_UP > 0
    assert expected[1].n_replayed == 0
    assert all(parameter.grad is None for parameter in actual[0].parameters())


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("how", HOW)
def test_captured_steps_are_the_eager_ones(how: dict) -> None:
    """To the rounding of the learning rate, which graphs read in single precision; noise is drawn alike."""
    problem = Problem("cuda")
    expected = problem.train(capture=False, **how)
    actual, again = (problem.train(capture=True, **how) for _ in range(2))
    assert actual[1].why_eager == ""
    assert actual[1].n_replayed == actual[1].n_steps - 2 * WARM_UP > 0
    assert expected[1].n_replayed == 0
    assert_same(actual, expected, 1e-6)
    assert_same(again, actual, 0.0)


@pytest.mark.gpu
def test_replays_draw_new_noise_and_leave_the_generator_where_eager_steps_do() -> None:
    def train(capture: bool) -> tuple[Tensor, Tensor]:
        w = torch.zeros(64, device="cuda", requires_grad=True)
        generator, seen = torch.Generator("cuda").manual_seed(5), torch.zeros(40, 64, device="cuda")

        def loss(rows: Tensor) -> Tensor:
            noise = torch.randn(64, generator=generator, device="cuda")
            with torch.no_grad():
                seen.index_copy_(0, rows, noise.unsqueeze(0))
            return (w - noise).square().sum()

        batches = [torch.tensor([i], device="cuda") for i in range(40)]
        history = minimise(loss, [w], lambda _: batches, epochs=1, generators=[generator], capture=capture)
        assert history.n_replayed == (40 - WARM_UP if capture else 0)
        return seen.cpu(), torch.randn(64, generator=generator, device="cuda").cpu()

    (eager, next_eager), (replayed, next_replayed) = train(False), train(True)
    assert len(replayed.unique(dim=0)) == 40
    torch.testing.assert_close(replayed, eager)
    torch.testing.assert_close(next_replayed, next_eager)


@pytest.mark.gpu
def test_a_loss_that_reads_values_back_stays_eager() -> None:
    problem = Problem("cuda")
    expected = problem.train(capture=False)
    model, history = problem.train(reads=lambda losses: float(losses.detach().sum()), capture=True)
    assert "waits for the device" in history.why_eager
    assert history.n_replayed == 0
    assert_same((model, history), expected, 1e-6)
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.gpu
def test_a_generator_that_was_not_told_of_keeps_steps_eager() -> None:
    problem = Problem("cuda")
    expected, stream = problem.train(capture=False), torch.cuda.current_stream()
    actual = problem.train(told=False, capture=True)
    if torch.__version__ < REGISTERS_ITSELF:
        assert actual[1].why_eager
        assert actual[1].n_replayed == 0
    assert_same(actual, expected, 1e-6)
    assert torch.cuda.current_stream() == stream
    assert problem.train(capture=True)[1].n_replayed > 0  # and the next ones can be captured again


@pytest.mark.gpu
@pytest.mark.parametrize("units", ["trunk", "mean-covariance"])
def test_a_classifier_is_captured_by_itself_and_fits_alike(units: str, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5)

    def fit(switch: str) -> EnergyClassifier:
        monkeypatch.setenv(SWITCH, switch)
        return EnergyClassifier(units, device="cuda", random_state=0).fit(X, y)

    eager, captured, again = fit("0"), fit(""), fit("")
    assert all(history.n_replayed == 0 for history in eager.history_.values())
    for history in captured.history_.values():
        assert (history.why_eager, history.n_replayed > 0) == ("", True)
    np.testing.assert_allclose(captured.predict_proba(X), again.predict_proba(X), rtol=1e-6, atol=1e-8)
    assert np.abs(captured.predict_proba(X) - eager.predict_proba(X)).mean() < 0.05
