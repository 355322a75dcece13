"""Kernels and lower precisions against the plain formulas in float64; without Triton or a GPU, what is left of them."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cases import ESTIMATORS
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_iris

from energate import Autoencoder, CovarianceUnits, EnergyClassifier, InputError, MeanUnits, load, save, set_precision
from energate.autoencoder import PLAIN, potentials_by
from energate.kernels import PRECISIONS, computing, fused, scoring
from energate.memory import MemoryUnits
from energate.units import HiddenUnits

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def groups() -> list[HiddenUnits]:
    """Sizes that fill no tile."""
    draw = torch.Generator().manual_seed(0)
    memory = MemoryUnits(2, 21, 300, 3, draw)
    with torch.no_grad():
        memory.remember(torch.randn(2, 300, 21, generator=draw), torch.rand(2, 300, generator=draw) + 1)
        memory.log_T.fill_(0.3)
        memory.log_share.uniform_(-2, 0, generator=draw)
    return [MeanUnits(3, 21, 70, generator=draw), CovarianceUnits(3, 21, 40, 70, generator=draw), memory]


def rows_of(group: HiddenUnits, n_rows: int = 45) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    shapes = (n_rows, group.width), (group.n_models, n_rows, group.width)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def plain(group: HiddenUnits, v: torch.Tensor) -> torch.Tensor:
    exact = group.double()
    found = exact.activation.potential(exact.preactivation(v.double(), None)[0])
    group.float()
    return found


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).abs().max() / expected.std())


def interpreted(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What kernels find that Triton interprets, as tests/conftest.py asks it to where there is no GPU."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here")
    try:
        return call()
    except Exception as error:
        if "only 0-dimensional arrays" not in str(error):
            raise
        pytest.skip("Triton up to 3.6 cannot interpret loops with numpy from 2.4 on")


@torch.no_grad()
@pytest.mark.parametrize("group", groups(), ids=lambda group: type(group).__name__)
@pytest.mark.parametrize("units", [32, 128, 256], ids=["several tiles", "one tile", "two halves"])
def test_kernels_equal_the_formulas_in_the_interpreter(group: HiddenUnits, units: int) -> None:
    tiles = dict.fromkeys(fused.TILES, fused.Tiles(32, units, 16, 4, 2, 3))
    for v in rows_of(group, 35):
        found = interpreted(partial(fused.FUSED[type(group)], fused.Fused("ieee", tiles), group, v))
        assert fused.can_fuse(group, v)
        assert off(found, plain(group, v)) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("precision", ["ieee", "bf16"])
@pytest.mark.parametrize("with_shared", [False, True])
@pytest.mark.parametrize("n_models", [1, 3])
def test_terms_of_rows_equal_the_formulas_in_the_interpreter(n_models: int, precision: str, with_shared: bool) -> None:
    group, v = MeanUnits(n_models, 21, 5), torch.randn(45, 21)
    model = Autoencoder([group])
    model.a.normal_()
    compute = fused.Fused(precision)
    terms = interpreted(partial(compute.through_rows, v, model.a, with_shared))
    assert_allclose(terms, PLAIN.of_rows(model, v, with_shared), rtol=1e-4, atol=1e-4)
    ready = compute._product(v, group.W).A  # its rows begin where descriptors may
    assert ready.dtype == compute._dtype
    assert ready.stride(0) * ready.element_size() % fused.ALIGNED == 0
    assert_allclose(ready.float(), v, rtol=1e-2 if precision == "bf16" else 1e-6)


@needs_gpu
@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("group", groups(), ids=lambda group: type(group).__name__)
@pytest.mark.parametrize(("precision", "most"), [("ieee", 1e-4), ("tf32", 3e-2), ("bf16", 1e-1)])
def test_kernels_equal_the_formulas_on_a_gpu(group: HiddenUnits, precision: str, most: float) -> None:
    pytest.importorskip("triton")
    for n_rows in (45, 1000):
        for v in rows_of(group, n_rows):
            found = fused.FUSED[type(group)](fused.Fused(precision), group.cuda(), v.cuda())
            assert off(found.cpu(), plain(group.cpu(), v)) < most


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "most"), [("fast", 3e-2), ("lowest", 1e-1)])
def test_scoring_on_a_gpu_takes_kernels_and_leaves_torch_as_it_was(precision: str, most: float) -> None:
    group, v = MeanUnits(4, 64, 512), torch.randn(20_000, 64)
    model = Autoencoder([group])
    expected = model.double().energy(v.double()).detach()
    before = torch.backends.cuda.matmul.allow_tf32
    with scoring(precision, torch.device("cuda")):
        assert fused.Fused("tf32").is_lean(group.float().cuda(), v.cuda())
        found = model.float().cuda().energy(v.cuda())
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert off(found.cpu(), expected) < most


def test_units_without_a_kernel_are_left_to_their_formula() -> None:
    group, v = MeanUnits(2, 5, 3, "relu"), torch.randn(7, 5)
    model = Autoencoder([group])
    with potentials_by(fused.Fused("tf32")):
        found = model.energy(v)
    assert_allclose(found.detach(), model.energy(v).detach(), rtol=1e-6)
    assert not fused.can_fuse(group, v)
    assert not fused.can_fuse(MeanUnits(2, 5, 3), v.double())


def test_bfloat16_rounds_factors_of_this_thread_alone() -> None:
    a, b = torch.randn(8, 50, requires_grad=True), torch.randn(50, 6)
    rounded = (a.bfloat16() @ b.bfloat16()).float()
    found: list[torch.Tensor] = []
    with computing("lowest", CPU):
        inside = a @ b
        other = threading.Thread(target=lambda: found.append(a @ b))
        other.start()
        other.join()
        assert (a.double() @ b.double()).dtype == torch.float64
    assert torch.equal(inside, rounded)
    assert_allclose(found[0].detach(), (a @ b).detach(), rtol=1e-5, atol=1e-5)
    inside.sum().backward()
    assert_allclose(a.grad, b.bfloat16().float().sum(1).expand(8, -1), rtol=2e-2, atol=2e-1)


def test_an_unknown_precision_is_refused() -> None:
    X, y = np.random.RandomState(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InputError, match="`precision` must be one of exact, fast, lowest; got 'quick'"):
        EnergyClassifier("mean", precision="quick", pretrain_epochs=1, max_epochs=1).fit(X, y)


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda case: case.name)
def test_lower_precisions_say_nearly_the_same(case: Any, tmp_path: Any) -> None:
    X, y = load_iris(return_X_y=True)
    model = case.fit(X, y)
    exact = case.scores(model, X)
    save(model, tmp_path / "model.zip")
    spread = float(np.std(exact))
    for precision, most in (("fast", 1e-4), ("lowest", 0.3)):
        other = load(tmp_path / "model.zip", "cpu")
        set_precision(other, precision)
        assert np.abs(case.scores(other, X) - exact).max() < most * spread, precision


def test_a_model_is_fitted_saved_and_loaded_in_its_precision(tmp_path: Any) -> None:
    X, y = np.random.RandomState(0).normal(size=(60, 4)), np.arange(60) % 2
    options: dict[str, Any] = {"n_hidden": 6, "pretrain_epochs": 2, "max_epochs": 3, "random_state": 0}
    model = EnergyClassifier("mean", precision="fast", device="cpu", **options).fit(X, y)
    assert model.model_.B.dtype == torch.float32
    save(model, tmp_path / "model.zip")
    other = load(tmp_path / "model.zip", "cpu")
    assert (other.precision, other.model_.B.dtype) == ("fast", torch.float32)
    assert_allclose(other.decision_function(X), model.decision_function(X), rtol=1e-5, atol=1e-6)
    assert clone(model).precision == "fast"
    assert set(PRECISIONS) == {"exact", "fast", "lowest"}
