"""What a CPU is told before steps are taken."""

import threading

import pytest
import torch

from energate.training import processor
from energate.training.processor import keep_memory, products_are_exact, quick_products


def now() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]


@pytest.fixture
def quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor where the other library is quicker."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(processor, "_has_quicker", lambda: True)


def test_products_are_those_of_float32() -> None:
    """Whatever the processor: where the other library rounds more, it is not asked."""
    left, right = torch.randn(8, 60, 64), torch.randn(8, 64, 70)
    with quick_products():
        found = left @ right
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("quicker")
def test_the_switch_goes_back_when_the_last_one_leaves() -> None:
    before, inside = now(), threading.Event()
    leave = threading.Event()

    def other() -> None:
        with quick_products():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(ZeroDivisionError), quick_products():
        raise ZeroDivisionError
    assert now() == "bf16"  # the other thread has not left
    leave.set()
    thread.join()
    assert now() == before


def test_nothing_is_switched_where_products_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_has_quicker", lambda: False)
    before = now()
    with quick_products():
        assert now() == before


@pytest.mark.usefixtures("quicker")
def test_asking_leaves_the_switch_alone() -> None:
    before = now()
    assert products_are_exact() in (True, False)
    assert now() == before


def test_memory_may_be_kept_any_number_of_times() -> None:
    keep_memory()
    keep_memory()
