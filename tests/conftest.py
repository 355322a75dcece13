import os

import pytest
import torch

torch.set_num_threads(1)  # the tensors here are tiny; more threads only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with a reason, what this machine cannot run."""
    missing = {
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
        "data": None if os.environ.get("ENERGATE_DATA") else "ENERGATE_DATA is not set",
        "network": None if os.environ.get("ENERGATE_NETWORK") else "ENERGATE_NETWORK is not set",
    }
    for item in items:
        for mark, reason in missing.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)
