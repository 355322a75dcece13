"""Training of a trunk: the auto-encoder of all classes together, folds, batches, and the temperature."""

import numpy as np
import pytest
import torch
from cases import D, M, random_model, random_rows
from scipy.optimize import minimize_scalar

from energate.training.calibration import find_temperature, negative_log_likelihood
from energate.training.classes import ClassEnergies, LabelledRows
from energate.training.trunk import TrunkTraining, fold_of, reconstruct_together, train_trunk
from energate.trunk import TrunkUnits

C, K = 2, 3


def classes(visible: str = "linear", seed: int = 0) -> ClassEnergies:
    units = TrunkUnits(C * K, D, M, n_members=C, breadth=9, depth=2, waves=[1, 4], n_waves=2)
    model = ClassEnergies([random_model([units], visible, seed)], K).double()
    with torch.no_grad():
        model.B.copy_(torch.randn(C, K, generator=torch.Generator().manual_seed(seed)))
        model.beta.copy_(torch.tensor([[0.4], [0.7]]))
    return model


def labelled(n_rows: int = 90, seed: int = 0) -> LabelledRows:
    random = np.random.RandomState(seed)
    labels = random.randint(0, K, n_rows)
    X = random.normal(size=(n_rows, D)) + 2 * np.eye(K, D)[labels]
    ones = torch.ones(n_rows)
    return LabelledRows(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(labels), ones)


def test_the_field_of_all_classes_together_is_the_gradient_of_their_energy() -> None:
    """F = (1/s) log sum exp(s E_k + B_k), whose reconstruction is the mean of the classes' by their probabilities."""
    model = classes()
    v = torch.stack([random_rows(seed=seed) for seed in range(C)]).requires_grad_()
    energies = model.calibrated(model.part_energies(v, relative=False))  # (C, N, K)
    together = torch.logsumexp(energies, -1) / model.beta  # (C, N)
    (gradient,) = torch.autograd.grad(together.sum(), v)
    torch.testing.assert_close(reconstruct_together(model, v) - v, gradient, rtol=1e-11, atol=1e-11)


def test_the_energy_of_one_class_is_not_that_of_all() -> None:
    """A negative control: the classes' fields, weighted alike, are no gradient of it."""
    model = classes()
    v = torch.stack([random_rows(seed=seed) for seed in range(C)])
    (part,) = model.autoencoders
    alike = part.energies_and_mixture(v, lambda energies: torch.full_like(energies, 1 / K))[1]
    gap = (alike - reconstruct_together(model, v)).norm() / (reconstruct_together(model, v) - v).norm()
    assert gap > 1e-2


def test_every_fold_has_its_share_of_every_class() -> None:
    labels = torch.as_tensor(np.random.RandomState(0).choice(4, 200, p=[0.6, 0.25, 0.1, 0.05]))
    fold = fold_of(labels, 8, 0)
    counts = np.zeros((8, 4), dtype=int)
    np.add.at(counts, (fold.numpy(), labels.numpy()), 1)
    assert (counts.max(0) - counts.min(0) <= 1).all()
    assert counts.sum() == 200
    assert not torch.equal(fold, fold_of(labels, 8, 1))


def test_members_never_train_on_what_they_hold_out() -> None:
    """Rows that a member holds out are poisoned for its training: no weight may notice."""
    rows = labelled()
    fold = fold_of(rows.labels, 2, 7)
    how = TrunkTraining(2, 16, n_folds=2, seed=7, generative_weight=0.1)
    seen = []
    for poison in (0.0, 50.0):
        v = rows.v.clone()
        v[fold == 0] += poison
        torch.manual_seed(0)
        model = ClassEnergies([random_model([TrunkUnits(C * K, D, 4, n_members=C, breadth=5, depth=1)])], K).float()
        train_trunk(model, LabelledRows(v, rows.labels, rows.weight), TrunkTraining(**{**vars(how), "patience": None}))
        seen.append(model.autoencoders[0].groups[0].trunk[0].W.detach().clone())
    held_out, trained = (seen[0][member] - seen[1][member] for member in range(C))
    assert held_out.abs().max() == 0 or held_out.abs().max() < 1e-6
    assert trained.abs().max() > 1e-3


def test_members_together_equal_members_alone() -> None:
    """Each alone on its rows: given the same weights, batches and noise."""
    rows, how = labelled(), TrunkTraining(2, 200, generative_weight=0.0, n_folds=0)
    rows = LabelledRows(rows.v.double(), rows.labels, rows.weight.double())
    both = classes()
    alone = [both.member(c) for c in range(C)]
    train_trunk(both, rows, how)
    for c, model in enumerate(alone):
        train_trunk(model, rows, how)
        for name, parameter in model.named_parameters():
            together = dict(both.named_parameters())[name].unflatten(0, (C, -1))[c]
            torch.testing.assert_close(parameter.flatten(), together.flatten(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_the_temperature_is_the_most_likely_one(scale: float) -> None:
    random = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(200, 4, generator=random, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(logits / scale, -1), 1, generator=random).squeeze(1)
    weight = torch.rand(200, generator=random, dtype=torch.float64)

    def cost(factor: float) -> float:
        return float(negative_log_likelihood(torch.zeros(4), factor * logits, labels, weight) + 2 * (factor - 1) ** 2)

    best = minimize_scalar(cost, bounds=(1e-6, 60), method="bounded", options={"xatol": 1e-10})
    assert find_temperature(logits, labels, weight) == pytest.approx(best.x, rel=1e-5)


def test_a_temperature_is_finite_where_rows_are_separable_or_few() -> None:
    logits = torch.tensor([[5.0, -5.0], [-5.0, 5.0]])
    assert 1 <= find_temperature(logits, torch.tensor([0, 1])) < 2
    assert 0 <= find_temperature(logits, torch.tensor([1, 0])) < 0.5
