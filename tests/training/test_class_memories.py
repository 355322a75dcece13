"""Memories of classes: what rows left out say, padding, centres, temperature, scale and biases, rounds."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energate.memory import MemoryUnits
from energate.training import class_memories as memories
from energate.training import memory
from energate.training.class_memories import Remembered, blank, remember_classes
from energate.training.classes import ClassEnergies, LabelledRows

K, D = 3, 4


def draw(n_rows: int = 90, seed: int = 0, sizes: tuple[float, ...] = (0.6, 0.3, 0.1)) -> LabelledRows:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(sizes), n_rows, True, generator=generator)
    centres = 1.5 * torch.eye(K, D, dtype=torch.float64)
    v = centres[labels] + torch.randn(n_rows, D, generator=generator, dtype=torch.float64)
    return LabelledRows(v, labels, torch.ones(n_rows, dtype=torch.float64))


def made(rows: LabelledRows, most: int = 1000, valid: LabelledRows | None = None) -> Remembered:
    return remember_classes(blank(K, D, 1), rows, most, 0, valid)


def units_of(model: ClassEnergies) -> MemoryUnits:
    (units,) = model.autoencoders[0].groups
    assert isinstance(units, MemoryUnits)
    return units


def sums(v: Tensor, rows: LabelledRows, T: float) -> Tensor:
    """log S_k of the definition: (n, K)."""
    terms = -(v.unsqueeze(1) - rows.v).square().sum(-1) / (2 * T) + rows.weight.log()  # (n, N)
    return torch.stack([torch.logsumexp(terms[:, rows.labels == k], 1) for k in range(K)], 1)


def without(rows: LabelledRows, i: int) -> LabelledRows:
    rest = torch.arange(len(rows.v)) != i
    return LabelledRows(rows.v[rest], rows.labels[rest], rows.weight[rest])


def test_energies_are_those_of_the_rows_however_classes_are_filled_up() -> None:
    rows, fresh = draw(), draw(20, seed=1).v
    model = made(rows).model
    counts = torch.bincount(rows.labels)
    assert units_of(model).W.shape == (K, int(counts.max()), D)
    assert int(counts.min()) < int(counts.max())  # some are filled up
    T, s = float(units_of(model).log_T.exp()[0]), float(model.beta * units_of(model).log_T.exp()[0])
    torch.testing.assert_close(model.energies(fresh), s * sums(fresh, rows, T) + model.B, rtol=1e-10, atol=1e-10)
    far = fresh * 1e6
    assert model.energies(far).isfinite().all()
    assert units_of(model).log_counts.isfinite().all()
    single = model.float()
    assert single.energies(far.float()).isfinite().all()


def test_the_filling_has_no_gradient_and_no_part_in_reconstructions() -> None:
    rows = draw()
    model = made(rows).model
    units, v = units_of(model), draw(6, seed=1).v.requires_grad_()
    energies = model.energies(v)
    (gradient,) = torch.autograd.grad(energies[:, 2].sum(), v, retain_graph=True)
    of_class = rows.v[rows.labels == 2]
    weights = torch.softmax(-(v[:, None] - of_class).square().sum(-1) / (2 * units.log_T.exp()[2]), 1)
    torch.testing.assert_close(model.autoencoders[0].reconstruct(v)[2], weights @ of_class, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, (model.beta * (weights @ of_class - v)).detach(), rtol=1e-9, atol=1e-9)
    units.requires_grad_(True)
    model.energies(v).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in units.parameters())
    assert float(units.log_counts.grad[2, -1].abs()) < 1e-20


@pytest.mark.parametrize("steps", [range(-9, 6), [-9]], ids=["as chosen", "sharp"])
def test_leaving_out_is_what_memories_without_the_row_say(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "LADDER", steps)
    rows = draw(60)
    found = made(rows)
    T, model = float(units_of(found.model).log_T.exp()[0]), found.model
    s, expected = float(model.beta) * T, []
    for i, k in enumerate(rows.labels.tolist()):
        n = int((rows.labels == k).sum())
        logs = sums(rows.v[i : i + 1], without(rows, i), T)[0]
        logs[k] += math.log(n / (n - 1))  # as dense a class of one row more
        expected.append(s * logs + model.B[0])
    ours = found.left_out[:, 0].sort().values  # rows come in another order
    torch.testing.assert_close(ours, torch.stack(expected)[:, 0].sort().values, rtol=1e-9, atol=1e-9)
    ours = found.left_out.logsumexp(1).sort().values
    torch.testing.assert_close(ours, torch.stack(expected).logsumexp(1).sort().values, rtol=1e-9, atol=1e-9)


def test_a_centre_moves_when_a_row_leaves_it() -> None:
    """One unit per class: without the row it is the mean of the others."""
    rows = draw(40)
    found = made(rows, most=1)
    T, own = float(units_of(found.model).log_T.exp()[0]), []
    for i, k in enumerate(rows.labels.tolist()):
        n = int((rows.labels == k).sum())
        mean = without(rows, i).v[without(rows, i).labels == k].mean(0)
        logs = math.log(n) - float((rows.v[i] - mean).square().sum()) / (2 * T)
        own.append(float(found.model.beta) * T * logs + float(found.model.B[0, k]))
    assert units_of(found.model).n_hidden == 1
    ours = found.left_out.flatten()
    for value in own:  # among the energies of all classes
        assert float((ours - value).abs().min()) < 1e-9 * (1 + abs(value))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(draw()).left_out
    monkeypatch.setattr(memory, "BLOCK_VALUES", 1)
    torch.testing.assert_close(made(draw()).left_out, whole, rtol=1e-9, atol=1e-9)


def test_temperature_scale_and_biases_have_the_largest_likelihood_of_rows_left_out() -> None:
    rows = draw(200, sizes=(0.5, 0.3, 0.2))
    found = made(rows)
    T = float(units_of(found.model).log_T.exp()[0])

    def logits(T: float) -> Tensor:
        logs = torch.stack([sums(rows.v[i : i + 1], without(rows, i), T)[0] for i in range(200)])
        n = torch.bincount(rows.labels)[rows.labels].double()
        return logs.scatter_add(1, rows.labels[:, None], torch.log(n / (n - 1))[:, None])

    s = torch.ones((), dtype=torch.float64, requires_grad=True)
    B = torch.zeros(K, dtype=torch.float64, requires_grad=True)

    def loss(T: float) -> tuple[float, float, Tensor]:
        logs, optimizer = logits(T), torch.optim.LBFGS([s, B], max_iter=100, line_search_fn="strong_wolfe")

        def cost() -> Tensor:
            optimizer.zero_grad()
            total = cross_entropy(s * logs + B, rows.labels, reduction="sum") + (s - 1).square() / (2 * 0.5**2)
            total.backward()
            return total

        optimizer.step(cost)
        with torch.no_grad():
            return float(cross_entropy(s * logs + B, rows.labels)), float(s), B - B.mean()

    at, scale, biases = loss(T)
    assert at <= min(loss(T / 2)[0], loss(2 * T)[0]) + 1e-6
    assert float(found.model.beta) * T == pytest.approx(scale, rel=1e-4)
    torch.testing.assert_close(found.model.B[0], biases, rtol=1e-3, atol=1e-3)


def test_few_rows_of_a_class_keep_the_frequencies() -> None:
    """Where classes are told apart by nothing, the answer is how frequent they are; one row of a class is no error."""
    rows = draw(80)
    labels = torch.where(torch.arange(80) < 3, torch.tensor([1, 2, 2])[torch.arange(80).clamp(max=2)], 0)
    found = made(LabelledRows(rows.v, labels, rows.weight))
    p = torch.softmax(found.model.logits(draw(50, seed=1).v), 1)
    torch.testing.assert_close(p.mean(0), torch.bincount(labels) / 80.0, rtol=0, atol=0.05, check_dtype=False)
    assert len(found.left_out) == 79  # all but the one that would leave nothing


def test_classes_of_one_row_and_none() -> None:
    rows = draw(90)
    one = torch.stack([rows.v[rows.labels == k][0] for k in range(K)])
    found = made(LabelledRows(one, torch.arange(K), torch.ones(K).double()))
    assert (found.model.logits(one).argmax(1) == torch.arange(K)).all()
    assert float(torch.softmax(found.model.logits(one), 1).max()) < 0.95
    some = rows.labels < 2
    found = made(LabelledRows(rows.v[some], rows.labels[some], rows.weight[some]))
    p = torch.softmax(found.model.logits(rows.v), 1)
    assert p.isfinite().all()
    assert float(p[:, 2].max()) < 1e-9  # a class that no row was of
    assert found.left_out.isfinite().all()


def test_weights_count_as_rows_do() -> None:
    rows, generator = draw(60), torch.Generator().manual_seed(0)
    weight = 1.0 + torch.randint(0, 3, (60,), generator=generator).double()
    model = made(LabelledRows(rows.v, rows.labels, weight)).model
    T = float(units_of(model).log_T.exp()[0])
    scaled = LabelledRows(rows.v, rows.labels, weight / weight.mean())
    fresh = draw(10, seed=1).v
    torch.testing.assert_close(model.energies(fresh), model.beta * T * sums(fresh, scaled, T) + model.B)
    tiny = torch.where(torch.arange(60) % 2 == 0, 1.0, 1e-40).double()
    assert made(LabelledRows(rows.v, rows.labels, tiny)).left_out.isfinite().all()


def test_rows_join_in_rounds_and_become_centres() -> None:
    rows = draw(120)
    first, second = (
        LabelledRows(rows.v[part], rows.labels[part], rows.weight[part]) for part in (slice(70), slice(70, 120))
    )
    together = remember_classes(made(first).model, second, 1000, 0).model
    torch.testing.assert_close(together.logits(rows.v), made(rows).model.logits(rows.v), rtol=1e-9, atol=1e-9)
    full = remember_classes(made(first, most=10).model, second, 10, 0)
    assert units_of(full.model).n_hidden <= 10
    counts = units_of(full.model).log_counts.exp()
    torch.testing.assert_close(counts.sum(1), torch.bincount(rows.labels).double(), rtol=1e-6, atol=1e-6)
    assert 50 <= len(full.left_out) < 120  # what centres stand for can no longer leave


def test_rows_of_others_can_judge() -> None:
    rows, judges = draw(80), draw(50, seed=3)
    found = made(rows, valid=judges)
    torch.testing.assert_close(found.left_out, found.model.energies(judges.v), rtol=1e-9, atol=1e-9)


def test_rare_classes_are_asked_and_weigh_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "N_ASKED", 60)
    rows = draw(600, sizes=(0.97, 0.015, 0.015))
    found = made(rows)
    assert len(found.left_out) == 60
    p = torch.softmax(found.model.logits(draw(400, seed=1, sizes=(0.97, 0.015, 0.015)).v), 1)
    assert float(p[:, 0].mean()) > 0.9


def test_equal_rows() -> None:
    found = made(LabelledRows(torch.full((9, D), 0.3).double(), torch.arange(9) % K, torch.ones(9).double()))
    p = torch.softmax(found.model.logits(torch.full((1, D), 0.3).double()), 1)
    torch.testing.assert_close(p, torch.full((1, K), 1 / K).double(), rtol=0, atol=1e-6)
