"""Training: models together equal models alone, and everything `minimise` promises about its one loop."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from cases import UNITS, C, D, F, K, M, N, random_context, random_model, random_rows
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from energate.autoencoder import Autoencoder
from energate.conservative import check_conservative
from energate.errors import InputError
from energate.training import (
    NOISE,
    History,
    class_batches,
    contractive_penalty,
    corrupt,
    minimise,
    row_batches,
)
from energate.training.loop import Stage, Stepper, is_cut_short, spread
from energate.units import CovarianceUnits, GatedUnits, MeanUnits, NetworkUnits

MODELS = {
    "mean": lambda: [MeanUnits(K, D, M)],
    "covariance": lambda: [CovarianceUnits(K, D, F, M)],
    "gated": lambda: [GatedUnits(K, D, C, F, M)],
    "mean-covariance": lambda: [MeanUnits(K, D, M), CovarianceUnits(K, D, F, M)],
}
OPTIMIZERS = ["adam", "adamw", "sgd"]
RATES = torch.tensor([0.02, 0.005, 0.01], dtype=torch.float64)
DECAYS = torch.tensor([0.0, 0.3, 0.1], dtype=torch.float64)
LEVELS = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)


def assert_equal(actual: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def assert_same_weights(actual: nn.Module, expected: nn.Module, atol: float = 1e-10) -> None:
    for (name, mine), theirs in zip(actual.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def one_step(_: int) -> list[int]:
    """Batches of an epoch with a single step, for losses that ignore the batch."""
    return [0]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def parameter(*values: float) -> Tensor:
    return numbers(*values).requires_grad_()


# --- models together equal models alone ------------------------------------------------------------------------


class Problem:
    """Denoising with a penalty on the codes; every model has its own noise and its own weight of the penalty."""

    def __init__(self, kind: str, n_rows: int = 3 * N) -> None:
        generator = torch.Generator().manual_seed(5)
        self.model = random_model(MODELS[kind](), scale=0.3)
        self.v = random_rows(n_rows=n_rows)
        self.c = random_context(UNITS[1], n_rows) if kind == "gated" else None
        self.seen = corrupt(self.v, "gaussian", LEVELS, generator)  # (K, N, D)
        self.held_out = random_rows(n_rows=n_rows, seed=9)

    def train(self, models: list[int], **options: object) -> tuple[Autoencoder, History]:
        """Train these models, from the same start and with the same batches and noise whoever else takes part."""
        model, seen, weights = self.model.select(models), self.seen[models], WEIGHTS[models]

        def context(rows: Tensor) -> Tensor | None:
            return None if self.c is None else self.c[rows]

        def loss(rows: Tensor) -> Tensor:
            v, c = self.v[rows], context(rows)
            codes = model.encode(v, c).square().mean((1, 2))
            return model.loss(v, c, seen=seen[:, rows]).mean(1) + weights * codes

        if options.pop("validated", False):
            options["validate"] = lambda: model.loss(self.held_out, self.c).mean(1)
        # Vectors over all models: these take their own numbers, a single model as a plain number.
        vectors = {name: value[models] for name, value in options.items() if isinstance(value, Tensor)}
        alone = {name: float(value) for name, value in vectors.items() if len(models) == 1}
        options |= vectors | alone
        return model, minimise(loss, model.parameters(), row_batches(len(self.v), 8, seed=3), **options)

    def assert_together_equals_alone(self, **options: object) -> tuple[History, list[History]]:
        together, history = self.train([0, 1, 2], **options)
        alone = [self.train([k], **options) for k in range(K)]
        for k, (model, own) in enumerate(alone):
            assert_same_weights(together.select(k), model)
            assert not torch.equal(model.a, self.model.select(k).a)  # it did train
            for mine, theirs in zip(own.loss, history.loss, strict=False):
                assert_equal(mine, theirs[k : k + 1])
        return history, [own for _, own in alone]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", MODELS)
def test_models_together_equal_models_alone(kind: str, optimizer: str) -> None:
    history, _ = Problem(kind).assert_together_equals_alone(
        epochs=3, optimizer=optimizer, learning_rate=RATES, weight_decay=DECAYS, schedule="cosine"
    )
    assert history.loss[0].shape == (K,)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("rate", "decay"), [(0.01, 0.2), (0.01, DECAYS), (RATES, 0.2), (RATES, 0.0)])
def test_numbers_and_vectors_mix(optimizer: str, rate: float | Tensor, decay: float | Tensor) -> None:
    Problem("mean").assert_together_equals_alone(
        epochs=3, optimizer=optimizer, learning_rate=rate, weight_decay=decay, schedule="cosine"
    )


@pytest.mark.parametrize("kind", MODELS)
def test_each_model_stops_and_keeps_its_best_as_it_would_alone(kind: str) -> None:
    epochs = 60
    history, alone = Problem(kind, n_rows=N).assert_together_equals_alone(
        epochs=epochs, learning_rate=numbers(0.1, 0.01, 0.03), validated=True, patience=3
    )
    lengths = [len(own.loss) for own in alone]
    assert len(set(lengths)) == K  # each stops at an epoch of its own
    assert max(lengths) < epochs
    assert len(history.loss) == max(lengths)
    assert history.best_epoch.tolist() == [length - 3 for length in lengths]
    assert_equal(history.best, torch.cat([own.best for own in alone]))
    assert_equal(history.best_epoch, torch.cat([own.best_epoch for own in alone]))


def test_class_models_trained_together_equal_each_trained_on_its_class() -> None:
    labels = torch.tensor([0] * 9 + [1] * 4 + [2] * 6)
    v, start = random_rows(n_rows=len(labels)), random_model(MODELS["covariance"]())
    batches = class_batches(labels, K, 4, seed=1)

    def train(models: list[int]) -> Autoencoder:
        model = start.select(models)
        own = lambda epoch: [rows[models] for rows in batches(epoch)]  # noqa: E731
        minimise(lambda rows: model.loss(v[rows]).mean(1), model.parameters(), own, epochs=4, learning_rate=0.02)
        return model

    together = train([0, 1, 2])
    for k in range(K):
        assert_same_weights(together.select(k), train([k]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_configurations_of_several_models_equal_each_configuration_alone(optimizer: str) -> None:
    n_configurations, patience = 2, 2
    start, v = random_model([MeanUnits(n_configurations * K, D, M)], scale=0.3), random_rows()
    held_out = random_rows(seed=9)
    rates, decays = numbers(0.3, 0.05), numbers(0.0, 0.2)

    def train(configurations: list[int], rate: Tensor | float, decay: Tensor | float) -> tuple[Autoencoder, History]:
        model = start.select([c * K + k for c in configurations for k in range(K)])

        def per_configuration(rows: Tensor) -> Tensor:
            return model.loss(rows).mean(1).view(-1, K).mean(1)  # (C * K,) -> (C,)

        return model, minimise(
            lambda rows: per_configuration(v[rows]),
            model.parameters(),
            row_batches(N, 4),
            epochs=30,
            optimizer=optimizer,
            learning_rate=rate,
            weight_decay=decay,
            validate=lambda: per_configuration(held_out),
            patience=patience,
        )

    together, history = train([0, 1], rates, decays)
    assert history.best_epoch.shape == (n_configurations,)
    for c in range(n_configurations):
        alone, own = train([c], float(rates[c]), float(decays[c]))
        assert own.best_epoch == history.best_epoch[c]
        assert_same_weights(together.select([c * K + k for k in range(K)]), alone)


def test_spread_gives_each_configuration_to_its_models() -> None:
    values = numbers(1, 2)
    assert spread(values, torch.zeros(6, 5, 4)).flatten().tolist() == [1, 1, 1, 2, 2, 2]
    assert spread(values, torch.zeros(6, 5, 4)).shape == (6, 1, 1)
    assert spread(values, torch.zeros(2)).tolist() == [1, 2]
    assert spread(numbers(3)[0], torch.zeros(6, 5)).shape == ()


def test_groups_have_hyper_parameters_of_their_own() -> None:
    fast, slow, plain = parameter(1, 1), parameter(1), parameter(1)
    groups = [{"params": [fast], "learning_rate": numbers(0.1, 0.2), "weight_decay": 1.0}, {"params": [slow]}, plain]
    options = {"optimizer": "sgd", "momentum": 0, "learning_rate": 0.01}
    minimise(lambda _: fast.sum() + slow.sum() + plain.sum(), groups, one_step, epochs=1, **options)
    assert_equal(torch.cat([fast, slow, plain]).detach(), numbers(1 - 0.1 * 2, 1 - 0.2 * 2, 0.99, 0.99))


# --- the optimisers are torch's --------------------------------------------------------------------------------

TORCH = {
    "adam": lambda p, rate, decay: torch.optim.Adam(p, lr=rate, weight_decay=decay),
    "adamw": lambda p, rate, decay: torch.optim.AdamW(p, lr=rate, weight_decay=decay),
    "sgd": lambda p, rate, decay: torch.optim.SGD(p, lr=rate, weight_decay=decay, momentum=0.8),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, 0.5, DECAYS], ids=["none", "number", "vector"])
@pytest.mark.parametrize("rate", [0.05, RATES], ids=["one-rate", "rates"])
def test_every_step_is_the_step_of_torch(optimizer: str, rate: float | Tensor, decay: float | Tensor) -> None:
    start, target = random_rows(n_rows=K), random_rows(n_rows=K, seed=7)
    w, steps = start.clone().requires_grad_(), []
    minimise(
        lambda _: (w - target).cosh().log().sum(1),
        [w],
        one_step,
        epochs=12,
        optimizer=optimizer,
        learning_rate=rate,
        momentum=0.8,
        weight_decay=decay,
        schedule=lambda progress: 1 - progress,
        callback=lambda _: steps.append(w.detach().clone()),
    )
    rates, decays = (torch.as_tensor(x, dtype=torch.float64).expand(K).tolist() for x in (rate, decay))
    for k in range(K):
        own = start[k].clone().requires_grad_()
        reference = TORCH[optimizer]([own], rates[k], decays[k])
        for i, step in enumerate(steps):
            reference.zero_grad()
            (own - target[k]).cosh().log().sum().backward()
            reference.param_groups[0]["lr"] = rates[k] * (1 - i / 12)
            reference.step()
            assert_equal(step[k], own.detach(), atol=1e-12)


@pytest.mark.parametrize("decay", [0.5, DECAYS], ids=["number", "vector"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_without_a_gradient_stay_as_they_are(optimizer: str, decay: float | Tensor) -> None:
    w, unused = parameter(1, 2, 3), parameter(1, 2, 3)
    minimise(lambda _: w.square(), [w, unused], one_step, epochs=3, optimizer=optimizer, weight_decay=decay)
    assert unused.tolist() == [1, 2, 3]
    assert w.tolist() != [1, 2, 3]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_factor_of_a_step_may_be_a_tensor(optimizer: str) -> None:
    def steps(factor: float | Tensor) -> Tensor:
        w = parameter(1, 2, 3)
        stepper = Stepper([w], optimizer, RATES, 0.9, DECAYS)
        for _ in range(3):
            stepper.zero_grad()
            w.square().sum().backward()
            stepper.step(factor)
        return w.detach()

    assert_equal(steps(torch.tensor(0.5, dtype=torch.float64)), steps(0.5))
    assert not torch.equal(steps(0.5), steps(1.0))


def test_training_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from energate.training import minimise
for optimizer in ("adam", "adamw", "sgd"):
    w = torch.ones(3, requires_grad=True)
    minimise(lambda _: w.square(), [w], lambda _: [0], epochs=1, optimizer=optimizer)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_schedules_scale_the_learning_rate() -> None:
    def path(schedule: str) -> Tensor:
        w, seen = parameter(0), []
        options = {"optimizer": "sgd", "momentum": 0, "learning_rate": 1.0, "schedule": schedule}
        callback = lambda _: seen.append(w.item())  # noqa: E731
        minimise(lambda _: w.sum(), [w], lambda _: [0, 0], epochs=4, callback=callback, **options)
        return numbers(0, *seen).diff()

    cosine = numbers(*[-(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)])
    assert_equal(path("cosine"), cosine.view(4, 2).sum(1))  # two steps in each of four epochs
    assert_equal(path("constant"), numbers(-2, -2, -2, -2))


# --- epochs, validation, early stopping, callback ------------------------------------------------------------------


def descend(epochs: int, best: Tensor, **options: object) -> tuple[Tensor, History]:
    """Walk from 0 by 1 in each epoch; validation is lowest at ``best``."""
    w = torch.zeros_like(best).requires_grad_()

    def validate() -> Tensor:
        return (w - best).abs()

    options = {"optimizer": "sgd", "momentum": 0, "learning_rate": 1.0, "validate": validate} | options
    return w, minimise(lambda _: -w, [w], one_step, epochs=epochs, **options)


def test_early_stopping_restores_the_best_weights_of_each_model() -> None:
    w, history = descend(100, numbers(3, 7, 5), patience=4)
    assert w.tolist() == [3, 7, 5]
    assert history.best.tolist() == [0, 0, 0]
    assert history.best_epoch.tolist() == [3, 7, 5]
    assert len(history.loss) == len(history.validation) == history.n_steps == 7 + 4
    assert torch.stack(history.validation)[:, 0].tolist() == [2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert history.diverged.tolist() == [False] * 3


def test_validation_without_patience_restores_the_best_weights_after_all_epochs() -> None:
    w, history = descend(20, numbers(3, 7))
    assert w.tolist() == [3, 7]
    assert history.best_epoch.tolist() == [3, 7]
    assert len(history.loss) == 20


def test_one_validation_value_keeps_all_models_together() -> None:
    w, shared = parameter(0, 0, 0), parameter(0)  # the second has no axis of models

    def validate() -> Tensor:
        return (w.sum() - 12).abs()

    options = {"optimizer": "sgd", "momentum": 0, "learning_rate": 1.0}
    history = minimise(lambda _: -w - shared, [w, shared], one_step, epochs=9, validate=validate, **options)
    assert w.tolist() == [4, 4, 4]
    assert shared.tolist() == [12]
    assert history.best_epoch.shape == ()
    assert history.best_epoch == 4


def test_one_model_may_have_a_loss_and_a_validation_without_an_axis() -> None:
    w, history = descend(100, numbers(6)[0], patience=2)
    assert w.item() == 6
    assert history.best_epoch == 6
    assert len(history.loss) == 8


def test_an_equal_validation_value_is_no_improvement() -> None:
    w, history = descend(100, numbers(9, 9), patience=3, validate=lambda: numbers(5, 5))
    assert history.best_epoch.tolist() == [1, 1]
    assert len(history.loss) == 4
    assert w.tolist() == [1, 1]


@pytest.mark.parametrize(("epochs", "every"), [(9, 2), (10, 5), (4, 7), (6, 1)])
def test_validation_may_be_rarer_than_epochs(epochs: int, every: int) -> None:
    w, history = descend(epochs, numbers(3, 50), validate_every=every)
    checked = sorted({*range(every, epochs + 1, every), epochs})
    assert torch.stack(history.validation)[:, 0].tolist() == [abs(3 - epoch) for epoch in checked]
    assert history.validated == checked
    assert history.best_epoch.tolist() == [min(checked, key=lambda epoch: abs(3 - epoch)), epochs]
    assert w.tolist() == history.best_epoch.tolist()
    assert len(history.loss) == epochs


def test_patience_counts_epochs_however_rare_validation_is() -> None:
    _, history = descend(100, numbers(4)[0], validate_every=2, patience=5)
    assert history.best_epoch == 4
    assert len(history.loss) == 10  # the first validation at least 5 epochs after the best


def test_stopping_before_the_first_validation_keeps_the_newest_weights() -> None:
    w, history = descend(100, numbers(4, 4), validate_every=10, callback=lambda progress: progress.epoch == 3)
    assert w.tolist() == [3, 3]
    assert history.best is None
    assert history.validation == []


def test_the_callback_gets_the_progress_of_every_epoch_and_can_stop() -> None:
    seen = []

    def callback(progress: object) -> bool:
        seen.append((progress.epoch, progress.n_epochs, len(progress.history.loss), progress.best.tolist()))
        return progress.epoch == 3

    w, history = descend(10, numbers(2, 50), callback=callback)
    assert seen == [(1, 10, 1, [1, 49]), (2, 10, 2, [0, 48]), (3, 10, 3, [0, 47])]
    assert len(history.loss) == 3
    assert w.tolist() == [2, 3]  # the best, here as well


def test_the_history_holds_the_mean_loss_of_each_epoch_and_counts_steps() -> None:
    w, losses = parameter(3, 4), []

    def loss(_: Tensor) -> Tensor:
        losses.append(w.square())
        return losses[-1]

    history = minimise(loss, [w], row_batches(10, 4), epochs=2, learning_rate=0.1)
    assert history.n_steps == len(losses) == 6
    assert_equal(torch.stack(history.loss), torch.stack(losses).detach().view(2, 3, 2).mean(1))
    assert history.best is history.best_epoch is None
    assert history.validation == []
    assert history.seconds > 0


def test_no_epochs_leave_the_parameters_alone() -> None:
    w, history = descend(0, numbers(3, 7))
    assert w.tolist() == [0, 0]
    assert history.loss == history.validation == []
    assert history.n_steps == 0


# --- batches ---------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_weights_to_the_bit() -> None:
    problem = Problem("mean-covariance")
    (one, first), (two, second) = (problem.train([0, 1, 2], epochs=3) for _ in range(2))
    assert_same_weights(one, two, atol=0)
    assert torch.equal(torch.stack(first.loss), torch.stack(second.loss))


@pytest.mark.parametrize(
    "make",
    [lambda seed: row_batches(50, 7, seed), lambda seed: class_batches(torch.arange(50) % 3, 3, 7, seed)],
    ids=["rows", "classes"],
)
def test_batches_depend_on_seed_and_epoch_only(make: Callable) -> None:
    def drawn(seed: int, epoch: int) -> list[Tensor]:
        torch.rand(1)  # other random numbers change nothing
        return torch.cat([batch.flatten() for batch in make(seed)(epoch)]).tolist()

    batches = make(4)
    batches(0), batches(1)  # nor do earlier epochs
    assert torch.cat([batch.flatten() for batch in batches(2)]).tolist() == drawn(4, 2) == drawn(4, 2)
    assert len({tuple(drawn(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


@given(n_rows=st.integers(1, 40), batch_size=st.integers(1, 45), epoch=st.integers(0, 3))
def test_row_batches_hold_every_row_once(n_rows: int, batch_size: int, epoch: int) -> None:
    batches = row_batches(n_rows, batch_size)(epoch)
    assert sorted(torch.cat(batches).tolist()) == list(range(n_rows))
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    batch_size=st.integers(1, 15),
    seed=st.integers(0, 99),
)
def test_class_batches_hold_each_class_evenly(counts: list[int], batch_size: int, seed: int) -> None:
    n_classes, largest = len(counts), max(counts)
    labels = torch.repeat_interleave(torch.arange(n_classes), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    batches = class_batches(labels, n_classes, batch_size, seed)(0)
    size = min(batch_size, largest)
    assert [batch.shape for batch in batches] == [(n_classes, size)] * math.ceil(largest / size)
    rows = torch.cat(batches, 1)  # (K, steps * B)
    for k, row in enumerate(rows):
        times = torch.bincount(row, minlength=len(labels))
        assert (labels[row] == k).all()
        own = times[labels == k]
        assert own.min() >= 1  # as many places as the largest class has rows
        assert own.max() - own.min() <= 1


@pytest.mark.parametrize(
    "labels",
    [[0, 0, 2], [0, 1, 3], [0, -1, 1, 2], [], [0.0, 1.0, 2.0], [[0, 1, 2]]],
    ids=["missing", "beyond", "negative", "empty", "fractions", "matrix"],
)
def test_class_batches_refuse_labels_that_are_not_all_classes(labels: list) -> None:
    with pytest.raises(InputError, match="labels"):
        class_batches(torch.tensor(labels), 3, 2)


@pytest.mark.parametrize(("n_rows", "batch_size"), [(0, 2), (3, 0), (3, -1)])
def test_row_batches_refuse_counts_below_one(n_rows: int, batch_size: int) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        row_batches(n_rows, batch_size)


# --- noise -----------------------------------------------------------------------------------------------------


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_rate(hits: Tensor, rate: float) -> None:
    """The share of hits is within five standard errors of the rate."""
    assert abs(hits.double().mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / hits.numel())


def assert_noise_of_level(kind: str, noisy: Tensor, v: Tensor, level: float) -> None:
    changed = noisy != v
    if kind == "gaussian":
        difference = noisy - v
        assert abs(difference.mean()) < 5 * level / math.sqrt(v.numel())
        assert abs(difference.std() / level - 1) < 5 / math.sqrt(2 * v.numel())
    elif kind == "masking":
        assert (noisy[changed] == 0).all()
        assert_rate(changed, level)
    else:
        assert ((noisy[changed] == 0) | (noisy[changed] == 1)).all()
        assert_rate(noisy == 0, level / 2)
        assert_rate(noisy == 1, level / 2)


ROWS = 0.05 + 0.9 * torch.rand(200, 50, generator=seeded(8), dtype=torch.float64)


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("level", [0.1, 0.4])
def test_noise_has_its_kind_and_level(kind: str, level: float) -> None:
    assert_noise_of_level(kind, corrupt(ROWS, kind, level, seeded()), ROWS, level)


@pytest.mark.parametrize("kind", NOISE)
def test_levels_per_model_give_every_model_its_own_noise(kind: str) -> None:
    noisy = corrupt(ROWS, kind, LEVELS, seeded())
    assert noisy.shape == (K, *ROWS.shape)
    for own, level in zip(noisy, LEVELS.tolist(), strict=True):
        assert_noise_of_level(kind, own, ROWS, level)
    assert torch.equal(noisy, corrupt(ROWS.expand(K, -1, -1), kind, LEVELS, seeded()))


@pytest.mark.parametrize("kind", NOISE)
def test_level_zero_returns_the_data(kind: str) -> None:
    assert torch.equal(corrupt(ROWS, kind, 0.0), ROWS)
    noisy = corrupt(ROWS, kind, numbers(0, 0.5))
    assert torch.equal(noisy[0], ROWS)
    assert not torch.equal(noisy[1], ROWS)


@pytest.mark.parametrize("kind", NOISE)
def test_noise_follows_its_generator(kind: str) -> None:
    first = corrupt(ROWS, kind, 0.3, seeded(1))
    assert torch.equal(first, corrupt(ROWS, kind, 0.3, seeded(1)))
    assert not torch.equal(first, corrupt(ROWS, kind, 0.3, seeded(2)))


def test_corrupt_refuses_an_unknown_kind_and_levels_for_other_models() -> None:
    with pytest.raises(InputError, match="masking, gaussian, salt-and-pepper; got 'dropout'"):
        corrupt(ROWS, "dropout", 0.1)
    with pytest.raises(InputError, match="one per model, 2; got 3"):
        corrupt(ROWS.expand(2, -1, -1), "masking", LEVELS)


# --- the contractive penalty -----------------------------------------------------------------------------------


def squared_jacobian(encode: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """|dh/dv|^2 of every row from the whole Jacobian: (K, N)."""
    return torch.func.jacrev(encode)(v).square().sum((2, 3, 4, 5))  # (K, N, M, K, N, D); other rows add 0


EIGHT = [case for case in UNITS if case.build("sigmoid").n_hidden == M]  # as many as there are orthogonal probes


@pytest.mark.parametrize("case", EIGHT, ids=lambda case: case.name)
def test_contractive_penalty_and_its_gradient_are_exact_over_orthogonal_probes(
    case, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, c = case.model(), random_context(case, 4)
    v = random_rows(n_rows=4).expand(K, -1, -1).contiguous()
    encode = lambda v: model.encode(v, c)  # noqa: E731
    pair = torch.tensor([[1, 1], [1, 0]])
    signs = 2 * pair - 1
    hadamard = torch.kron(torch.kron(signs, signs), signs)  # (M, M), rows orthogonal: the z z^T average to 1
    bits = iter((hadamard + 1) // 2)
    monkeypatch.setattr(torch, "randint", lambda low, high, shape, **_: next(bits).expand(shape))
    penalty, exact = contractive_penalty(encode, v, n_probes=M), squared_jacobian(encode, v)
    assert_equal(penalty, exact)
    weights = list(model.units.parameters())
    gradients = [torch.autograd.grad(value.sum(), weights) for value in (penalty, exact)]
    for mine, theirs in zip(*gradients, strict=True):
        assert_equal(mine, theirs)
    assert any(gradient.abs().max() > 0.01 for gradient in gradients[0])


def test_contractive_penalty_is_right_on_average() -> None:
    model = UNITS[0].model()
    v = random_rows(n_rows=1).expand(K, -1, -1)
    draws = torch.stack([contractive_penalty(model.encode, v, generator=seeded(i)).detach() for i in range(2000)])
    error = draws.mean(0) - squared_jacobian(model.encode, v).detach()
    assert (draws.std(0) > 0).all()
    assert (error.abs() < 5 * draws.std(0) / math.sqrt(len(draws))).all()


def test_contractive_penalty_averages_its_probes() -> None:
    model, v = UNITS[0].model(), random_rows(n_rows=3).expand(K, -1, -1)
    generator = seeded()
    single = torch.stack([contractive_penalty(model.encode, v, generator=generator) for _ in range(5)])
    assert_equal(contractive_penalty(model.encode, v, 5, seeded()), single.mean(0))


def test_contractive_penalty_refuses_shared_rows_and_no_probes() -> None:
    model = UNITS[0].model()
    with pytest.raises(InputError, match="rows of each model's own"):
        contractive_penalty(model.encode, random_rows())
    with pytest.raises(InputError, match="n_probes"):
        contractive_penalty(model.encode, random_rows().expand(K, -1, -1), n_probes=0)


# --- divergence and refusals -------------------------------------------------------------------------------------


def test_nan_in_the_data_is_refused_before_any_parameter_changes() -> None:
    model, v = random_model(MODELS["mean"]()), random_rows()
    before = model.select(range(K))
    v[2, 3] = math.nan
    with pytest.raises(InputError, match=r"not finite before the first step.*NaN"):
        minimise(lambda rows: model.loss(v[rows]).mean(1), model.parameters(), row_batches(N, N), epochs=2)
    assert_same_weights(model, before, atol=0)


def test_divergence_names_the_epoch_and_the_models() -> None:
    w = parameter(1, 1, 1)
    options = {"optimizer": "sgd", "momentum": 0, "learning_rate": numbers(0.1, 1e90, 0.1)}
    with pytest.raises(InputError, match=r"diverged in epoch 3 \(models \[1\]\)\. Lower `learning_rate`"):
        minimise(lambda _: w.square(), [w], one_step, epochs=9, **options)


def test_weights_that_the_last_step_spoils_are_noticed() -> None:
    w = parameter(1, 1)
    loss = lambda _: w * numbers(1, 1e300)  # noqa: E731
    options = {"epochs": 1, "optimizer": "sgd", "learning_rate": 1e10}
    with pytest.raises(InputError, match=r"epoch 1 \(models \[1\]\)"):
        minimise(loss, [w], one_step, **options)
    w = parameter(1, 1)
    history = minimise(loss, [w], one_step, on_divergence="keep", **options)
    assert w.tolist() == [1 - 1e10, 1]
    assert history.diverged.tolist() == [False, True]


def test_validation_that_is_not_finite_is_refused() -> None:
    w = parameter(1, 1)
    for value in (math.nan, math.inf):
        with pytest.raises(InputError, match=r"\(models \[1\]\): `validate` gave a value that is not finite"):
            minimise(lambda _: w.square(), [w], one_step, epochs=3, validate=lambda value=value: numbers(1, value))


@pytest.mark.parametrize("validated", [False, True])
def test_a_diverging_model_keeps_finite_weights_and_the_others_equal_runs_alone(validated: bool) -> None:
    problem, rates = Problem("covariance"), numbers(0.01, 1e3, 0.02)
    options = {"epochs": 6, "optimizer": "sgd", "learning_rate": rates, "on_divergence": "keep"}
    together, history = problem.train([0, 1, 2], validated=validated, **options)
    assert history.diverged.tolist() == [False, True, False]
    assert len(history.loss) == 6
    assert not torch.isfinite(history.loss[-1][1])
    assert all(torch.isfinite(weights).all() for weights in together.parameters())
    for k in range(K):
        alone, own = problem.train([k], validated=validated, **options)
        assert own.diverged.tolist() == [k == 1]
        assert_same_weights(together.select(k), alone)
    if validated:
        assert history.best_epoch[1] == 0
        assert_same_weights(together.select(1), problem.model.select(1))  # it never was better than at the start


def test_a_diverging_model_keeps_the_weights_of_its_last_finite_epoch() -> None:
    w = parameter(1, 1)
    path = []
    options = {"epochs": 9, "optimizer": "sgd", "momentum": 0, "learning_rate": numbers(0.1, 1e60)}
    callback = lambda _: path.append(w[1].item())  # noqa: E731
    minimise(lambda _: w.square(), [w], one_step, on_divergence="keep", callback=callback, **options)
    assert w[1] == path[2]  # about -8e180: the loss of the fourth epoch, its square, is infinite
    assert not math.isfinite(path[-1])
    assert_equal(w[0].detach(), numbers(0.8)[0] ** 9)


def test_training_ends_when_every_model_has_diverged() -> None:
    w = parameter(1, 1)
    options = {"optimizer": "sgd", "momentum": 0, "learning_rate": numbers(1e90, 1e60)}
    history = minimise(lambda _: w.square(), [w], one_step, epochs=50, on_divergence="keep", **options)
    assert history.diverged.tolist() == [True, True]
    assert len(history.loss) == 4  # the slower one lasts for three epochs


def test_a_model_that_has_stopped_may_diverge_unnoticed() -> None:
    w, epochs = parameter(1, 1), iter(range(1000))

    def validate() -> Tensor:
        epoch = next(epochs)
        return numbers(epoch, -epoch) + 0 * w  # the first gets worse, the second better; NaN after divergence

    options = {"optimizer": "sgd", "momentum": 0, "learning_rate": numbers(1e40, 0.1), "patience": 2}
    history = minimise(lambda _: w.square(), [w], one_step, epochs=12, validate=validate, **options)
    assert not torch.isfinite(history.loss[-1][0])
    assert not torch.isfinite(history.validation[-1][0])
    assert history.best_epoch.tolist() == [1, 12]
    assert history.diverged.tolist() == [False, False]
    assert_equal(w.detach() / numbers(1e40, 1), numbers(-2, 0.8**12))


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("optimizer", {"optimizer": "rmsprop"}),
        ("schedule", {"schedule": "linear"}),
        ("epochs", {"epochs": -1}),
        ("epochs", {"epochs": 1.5}),
        ("patience", {"patience": 3}),
        ("patience", {"patience": 0, "validate": lambda: numbers(1)}),
        ("validate_every", {"validate_every": 0, "validate": lambda: numbers(1)}),
        ("on_divergence", {"on_divergence": "ignore"}),
        ("learning_rate", {"learning_rate": -0.1}),
        ("learning_rate", {"learning_rate": math.nan}),
        ("learning_rate", {"learning_rate": 0.0}),
        ("learning_rate", {"learning_rate": torch.ones(2, 1)}),
        ("learning_rate", {"learning_rate": torch.ones(0)}),
        ("weight_decay", {"weight_decay": numbers(0.1, -0.1)}),
        ("momentum", {"momentum": 1.0}),
        ("vector over 3 models", {"learning_rate": torch.ones(3)}),
        ("vector over 4 models", {"weight_decay": torch.ones(4)}),
        ("vector over 3 models", {"validate": lambda: numbers(1, 2, 3)}),
        ("`parameters` is empty", {"parameters": []}),
        ("group of parameters is empty", {"parameters": [{"params": []}]}),
        ("no other keys", {"parameters": [{"params": [parameter(1)], "lr": 0.1}]}),
        ("no other keys", {"parameters": [("w", parameter(1))]}),
        (r"one per model \(K,\); got shape \(2, 1\)", {"loss": lambda w: w.unsqueeze(1)}),
        ("without a batch", {"batches": lambda _: []}),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(message: str, options: dict) -> None:
    w = parameter(1, 2)
    loss = options.pop("loss", torch.square)
    defaults = {"parameters": [w], "batches": one_step, "epochs": 2}
    with pytest.raises(InputError, match=message):
        minimise(lambda _: loss(w), **defaults | options)


# --- training learns ---------------------------------------------------------------------------------------------


def plane(n_rows: int, seed: int) -> Tensor:
    """Rows near a plane in D dimensions, of about unit variance."""
    directions = torch.linalg.qr(torch.randn(D, 2, generator=seeded(1), dtype=torch.float64)).Q
    codes = torch.randn(n_rows, 2, generator=seeded(seed), dtype=torch.float64)
    return codes @ directions.T * (D / 2) ** 0.5


@pytest.mark.parametrize(
    "units",
    [
        lambda: CovarianceUnits(1, D, 12, 10, generator=seeded(3)),
        lambda: NetworkUnits(nn.Sequential(nn.Linear(D, 24), nn.Tanh(), nn.Linear(24, 16)), activation="softplus"),
    ],
    ids=["covariance", "network"],
)
def test_training_learns_to_denoise_and_stays_conservative(units: Callable) -> None:
    model, v, held_out = Autoencoder([units()]).double(), plane(256, 2), plane(256, 3)
    generator, seen = seeded(4), corrupt(held_out, "gaussian", 0.5, seeded(5))

    def held_out_loss() -> float:
        with torch.no_grad():
            return float(model.loss(held_out, seen=seen).mean())

    def loss(rows: Tensor) -> Tensor:
        return model.loss(v[rows], seen=corrupt(v[rows], "gaussian", 0.5, generator)).mean()

    before, noise = held_out_loss(), float((seen - held_out).square().sum(1).mean()) / 2
    minimise(loss, model.parameters(), row_batches(256, 32), epochs=20, learning_rate=0.01)
    assert held_out_loss() < before / 5
    assert held_out_loss() < noise / 2  # better than leaving the noise in
    check_conservative(model, held_out)


# --- on a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_cuda_runs_equal_each_other_and_the_cpu(optimizer: str) -> None:
    start, v = random_model(MODELS["mean-covariance"](), scale=0.3), random_rows(n_rows=64)
    seen, held_out = corrupt(v, "masking", LEVELS, seeded()), random_rows(n_rows=64, seed=9)

    def train(device: str) -> tuple[Autoencoder, History]:
        model = start.select(range(K)).to(device)
        data, noisy, other = v.to(device), seen.to(device), held_out.to(device)
        history = minimise(
            lambda rows: model.loss(data[rows], seen=noisy[:, rows]).mean(1),
            model.parameters(),
            row_batches(64, 16, device=device),
            epochs=5,
            optimizer=optimizer,
            learning_rate=RATES,
            weight_decay=DECAYS,
            schedule="cosine",
            validate=lambda: model.loss(other).mean(1),
            patience=2,
        )
        return model.cpu(), history

    (cpu, expected), (cuda, history), (again, _) = train("cpu"), train("cuda"), train("cuda")
    assert_same_weights(cuda, cpu, atol=1e-8)
    assert_same_weights(cuda, again, atol=0)
    assert_equal(history.best_epoch, expected.best_epoch)
    assert_equal(history.best, expected.best, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_on_cuda_do_not_wait_for_the_device(optimizer: str) -> None:
    model, v = random_model(MODELS["mean-covariance"](), scale=0.3).cuda(), random_rows(n_rows=64).cuda()
    steps, per_epoch = [], 4

    def loss(rows: Tensor) -> Tensor:
        steps.append(rows)
        # Between the first and the last step of an epoch, whatever waits is an error.
        torch.cuda.set_sync_debug_mode("error" if len(steps) % per_epoch > 1 else "default")
        return model.loss(v[rows]).mean(1)

    batches = row_batches(64, 64 // per_epoch, device="cuda")
    options = {"optimizer": optimizer, "learning_rate": RATES, "weight_decay": DECAYS, "schedule": "cosine"}
    try:
        minimise(loss, model.parameters(), batches, epochs=3, on_divergence="keep", **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(steps) == 3 * per_epoch


# --- gradients that are too long -----------------------------------------------------------------------------------


def test_a_long_gradient_is_shortened_and_a_short_one_is_not() -> None:
    target = torch.tensor([30.0, 40.0], dtype=torch.float64)
    for clip, expected in ((1.0, [0.06, 0.08]), (100.0, [3.0, 4.0]), (None, [3.0, 4.0])):
        x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        how = {"epochs": 1, "optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.0, "clip_norm": clip}
        minimise(lambda _, x=x: (x - target).square().sum() / 2, [x], lambda _: [torch.zeros(1)], **how)
        assert_equal(x.detach(), torch.tensor(expected, dtype=torch.float64))
    x, z = (torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    how = {"epochs": 1, "optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.0, "clip_norm": 1.0}
    groups = [{"params": [x]}, {"params": [z]}]
    minimise(lambda _: (x @ target) + (z @ target) / 100, groups, lambda _: [torch.zeros(1)], **how)
    assert_equal(x.detach(), torch.tensor([-0.06, -0.08], dtype=torch.float64))
    assert_equal(z.detach(), torch.tensor([-0.03, -0.04], dtype=torch.float64))  # not shortened for the other's sake
    with pytest.raises(InputError, match="`clip_norm` must be a number above 0, or None; got 0"):
        minimise(lambda _: x.sum(), [x], lambda _: [torch.zeros(1)], epochs=1, clip_norm=0)


def test_gradients_of_models_together_are_shortened_as_those_of_each_alone() -> None:
    scale = torch.tensor([0.1, 1.0, 100.0], dtype=torch.float64)
    first, second = (torch.randn(3, n, dtype=torch.float64) for n in (4, 2))

    def run(models: slice) -> list[Tensor]:
        x, z = (start[models].clone().requires_grad_() for start in (first, second))

        def loss(_: Tensor) -> Tensor:
            return scale[models] * (x.square().sum(1) + z.sin().sum(1))

        how = {"epochs": 5, "optimizer": "sgd", "learning_rate": 0.05, "clip_norm": 0.7}
        minimise(loss, [x, z], lambda _: [torch.zeros(1)] * 2, **how)
        return [x.detach(), z.detach()]

    together = run(slice(None))
    for k in range(3):
        for mine, alone in zip(together, run(slice(k, k + 1)), strict=True):
            assert_equal(mine[k], alone[0])


# --- training that was cut short --------------------------------------------------------------------------------


def _told(values: list[list[float]]) -> History:
    losses = [torch.tensor(each) for each in values]
    best = torch.stack(losses).argmin(0) + 1
    return History(losses, losses, list(range(1, len(losses) + 1)), best_epoch=best)


def test_training_that_still_gets_better_was_cut_short() -> None:
    falling, flat, late = [1.0, 0.8, 0.6, 0.4], [1.0, 0.3, 0.25, 0.249], [1.0, 0.2, 0.25, 0.3]
    assert is_cut_short(_told([[each] for each in falling]))
    assert not is_cut_short(_told([[each] for each in flat]))  # best in the last epoch, as with most cosines
    assert not is_cut_short(_told([[each] for each in late]))
    both = list(zip(falling, falling, flat, strict=True))
    assert is_cut_short(_told([list(each) for each in both]))  # most models
    assert not is_cut_short(_told([list(each[1:]) for each in both]))
    assert not is_cut_short(History([], []))


def test_a_stage_that_was_cut_short_warns_unless_another_follows() -> None:
    def run(final: bool, epochs: int) -> None:
        w = torch.ones(1, requires_grad=True)

        def loss(_: Tensor) -> Tensor:
            return (w**2).sum()

        stage = Stage("fine-tune", epochs, 0.02, final=final)
        stage.run(loss, [w], lambda _: [torch.zeros(1)], lambda: loss(w).detach())

    with pytest.warns(ConvergenceWarning, match=r"Training ended after 4 epochs.*max_epochs"):
        run(final=True, epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(final=False, epochs=4)
        run(final=True, epochs=200)
