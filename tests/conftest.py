import os
import random

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported

# The tensors here are tiny: more threads only wait for each other.  `make machines` asks for more all the same.
torch.set_num_threads(int(os.environ.get("ENERGATE_TEST_THREADS", "1")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with a reason, what this machine cannot run; take another order if one is asked for."""
    missing = {
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
        "data": None if os.environ.get("ENERGATE_DATA") else "ENERGATE_DATA is not set",
        "network": None if os.environ.get("ENERGATE_NETWORK") else "ENERGATE_NETWORK is not set",
    }
    for item in items:
        for mark, reason in missing.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))
    if seed := os.environ.get("ENERGATE_TEST_ORDER"):
        items[:] = shuffled(items, seed)


def shuffled(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """The files in another order, and the tests of each file; a file stays together, for the sake of its fixtures."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    draw = random.Random(seed)
    files = draw.sample(sorted(by_file), len(by_file))
    return [item for file in files for item in draw.sample(by_file[file], len(by_file[file]))]


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)
