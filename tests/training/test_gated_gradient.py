"""The written-out denoising loss of gated units, against the plain formulas and autograd of them."""

import pytest
import torch
from cases import random_model

from energate.autoencoder import Autoencoder
from energate.training.gated_gradient import is_written_out, written_out
from energate.units import GatedUnits, MeanUnits, SymmetricGatedUnits

N, X, Y, F, M = 19, 4, 3, 6, 5


@pytest.mark.parametrize("visible", ["linear", "sigmoid"])
@pytest.mark.parametrize("relation", [GatedUnits, SymmetricGatedUnits])
@pytest.mark.parametrize("count", [1.0, 0.3])
def test_the_loss_and_its_gradients_are_those_of_autograd(relation: type, visible: str, count: float) -> None:
    """Also where the loss counts less, as in a share of a batch."""
    model = random_model([relation(1, Y, X, F, M)], visible)
    random = torch.Generator().manual_seed(3)
    x, y = (torch.rand(N, width, generator=random, dtype=torch.float64) for width in (X, Y))
    v, c = (y, x) if relation is GatedUnits else (torch.cat([x, y], 1), None)
    seen = v + 0.3 * torch.randn(v.shape, generator=random, dtype=torch.float64)
    weight = 0.5 + torch.rand(N, generator=random, dtype=torch.float64)
    assert is_written_out(model)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found, plain = written_out(model, v, c, seen, weight), (weight * model.loss(v, c, seen=seen)).mean()
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
    gradients, expected = (torch.autograd.grad(count * loss, parameters) for loss in (found, plain))
    for name, gradient, other in zip(names, gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-11, atol=1e-12, msg=f"{name}: {{}}".format)


def test_other_models_go_by_autograd() -> None:
    assert not is_written_out(Autoencoder([GatedUnits(2, Y, X, F, M)]))
    assert not is_written_out(Autoencoder([GatedUnits(1, Y, X, F, M, "tanh")]))
    assert not is_written_out(Autoencoder([GatedUnits(1, Y, X, F, M), MeanUnits(1, Y, M)]))
    assert not is_written_out(Autoencoder([MeanUnits(1, Y, M)]))
