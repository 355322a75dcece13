"""Small work takes one thread, large work as many as torch is set to, and the setting is the same afterwards."""

from typing import Any

import numpy as np
import pytest
import torch

from energate import EnergyClassifier
from energate.estimators.progress import watching
from energate.estimators.threads import SMALL, threads_for

X = np.random.RandomState(0).normal(size=(40, 3))


@pytest.fixture(autouse=True)
def _several_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_one_thread_for_few_numbers() -> None:
    with threads_for(SMALL - 1):
        assert torch.get_num_threads() == 1
    with threads_for(SMALL):
        assert torch.get_num_threads() == 3


def test_the_setting_comes_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), threads_for(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 3


def test_a_small_fit_trains_on_one_thread() -> None:
    seen = []
    with watching(lambda *_: seen.append(torch.get_num_threads())):
        EnergyClassifier(n_members=2, breadth=8, max_epochs=2, random_state=0, device="cpu").fit(X, X[:, 0] > 0)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3
