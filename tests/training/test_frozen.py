"""Trunks that are frozen, against the plain formulas."""

import pytest
import torch
from test_trunk_gradient import WAYS, C, K, classes

from energate.training.classes import ClassEnergies
from energate.training.frozen import FrozenTrunk, can_freeze


@pytest.mark.parametrize("n_rows", [1, 7])
@pytest.mark.parametrize("way", sorted(set(WAYS) - {"sigmoid"}))
def test_a_frozen_trunk_says_what_the_model_says(way: str, n_rows: int) -> None:
    model = classes(**WAYS[way])  # type: ignore[arg-type]
    model.share.copy_(torch.linspace(1, 2, model.n_members) / torch.linspace(1, 2, model.n_members).sum())
    v = torch.randn(n_rows, model.autoencoders[0].width, generator=torch.Generator().manual_seed(3)).double()
    assert can_freeze(model)
    for found, expected in zip(FrozenTrunk(model).scores(v), model.scores(v), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-11, atol=1e-11)
        assert found.shape == (n_rows, K)


def test_any_activation_of_units_is_frozen() -> None:
    model, v = classes(activation="tanh"), torch.linspace(-1, 1, 3 * classes().autoencoders[0].width).double()
    found, expected = FrozenTrunk(model).scores(v.view(3, -1))[1], model.logits(v.view(3, -1))
    torch.testing.assert_close(found, expected.detach(), rtol=1e-11, atol=1e-11)


def test_what_is_frozen_stays_and_other_models_cannot_be() -> None:
    model = classes()
    frozen, v = FrozenTrunk(model), torch.ones(2, model.autoencoders[0].width).double()
    before = frozen.scores(v)[1]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    torch.testing.assert_close(frozen.scores(v)[1], before, rtol=0, atol=0)
    assert not can_freeze(classes(visible="sigmoid"))
    assert not can_freeze(ClassEnergies(classes().autoencoders * 2, K))
    assert C > 1  # members are told apart above
