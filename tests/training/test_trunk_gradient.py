"""The written-out loss of a trunk and its gradients, against the plain formulas and autograd of them."""

import copy

import pytest
import torch
from cases import D, M, random_model

from energate.activations import SIGMOID, weighted
from energate.autoencoder import Autoencoder
from energate.training import trunk_gradient
from energate.training.classes import ClassEnergies
from energate.training.trunk import plain_losses
from energate.training.trunk_gradient import Batch, is_written_out, written_out
from energate.trunk import TrunkUnits
from energate.units import MeanUnits

C, K, B = 2, 3, 17
WAYS = {
    "linear": {},
    "sigmoid": {"visible": "sigmoid"},
    "no waves": {"waves": None, "n_waves": 0},
    "one layer": {"depth": 1},
    "three layers": {"depth": 3},
    "repeats": {"repeats": 5.0},
    "skip": {"skip": True, "repeats": 5.0},
    "one member": {"n_members": 1},
}


def classes(
    visible: str = "linear", n_members: int = C, skip: bool = False, activation: str = "sigmoid", **how: object
) -> ClassEnergies:
    shape = {"n_members": n_members, "breadth": 9, "depth": 2, "waves": [1, 4], "n_waves": 2, **how}
    part = random_model([TrunkUnits(n_members * K, D, M, activation, **shape)], visible)  # type: ignore[arg-type]
    part.skip = torch.linspace(0.1, 0.9, D) if skip else None
    model = ClassEnergies([part], K).double()
    with torch.no_grad():
        model.B.copy_(torch.randn(n_members, K, generator=torch.Generator().manual_seed(1)))
        model.beta.copy_(torch.linspace(0.4, 0.7, n_members).unsqueeze(1))
    return model


def batch(n_members: int = C, denoised: bool = True) -> Batch:
    random = torch.Generator().manual_seed(2)
    v = torch.rand(n_members, B, D, generator=random, dtype=torch.float64)
    noise = torch.rand(v.shape, generator=random, dtype=torch.float64)
    labels = torch.randint(K, (n_members, B), generator=random)
    weight = 0.5 + torch.rand(n_members, B, generator=random, dtype=torch.float64)
    price = torch.linspace(0.3, 0.9, n_members, dtype=torch.float64)
    return Batch(v, labels, weight, 0.05, v + 0.2 * noise if denoised else None, price)


@pytest.mark.parametrize("denoised", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_gradients_are_those_of_autograd(way: str, denoised: bool) -> None:
    """Also where the losses of members count differently, as in a share of a batch."""
    model = classes(**WAYS[way])  # type: ignore[arg-type]
    given = batch(model.n_members, denoised)
    assert is_written_out(model)
    names, parameters = zip(*model.named_parameters(), strict=True)
    counts = torch.linspace(0.5, 2.0, model.n_members, dtype=torch.float64)
    for weights in (torch.ones_like(counts), counts):
        found, losses = written_out(model, given), plain_losses(model, given)
        torch.testing.assert_close(found, losses, rtol=1e-11, atol=1e-11)
        expected = torch.autograd.grad((weights * losses).sum(), parameters)
        gradients = torch.autograd.grad((weights * found).sum(), parameters)
        for name, gradient, other in zip(names, gradients, expected, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-11, msg=f"{name}: {{}}".format)


def test_the_second_derivative_of_gelu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: without it gradients differ where rows are denoised, and only there."""
    model = classes()
    W = model.autoencoders[0].groups[0].trunk[0].W
    monkeypatch.setattr(trunk_gradient, "_curvature", torch.zeros_like)
    for given, differs in ((batch(), True), (batch(denoised=False), False)):
        (plain,) = torch.autograd.grad(plain_losses(model, given).sum(), [W])
        (other,) = torch.autograd.grad(written_out(model, given).sum(), [W])
        assert bool((plain - other).norm() > 1e-2 * plain.norm()) is differs


def test_other_units_go_by_autograd() -> None:
    assert not is_written_out(classes(activation="softplus"))
    assert not is_written_out(ClassEnergies([random_model([MeanUnits(C * K, D, M)])], K))
    for model in (classes(), copy.deepcopy(classes())):  # whose activation is another object
        assert is_written_out(model)
    units = classes().autoencoders[0].groups[0]
    units.activation = weighted(SIGMOID, 2.0)
    assert not is_written_out(ClassEnergies([Autoencoder(units)], K))
