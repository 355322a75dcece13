"""Several processes that train together give the model of one, to rounding; here they are threads."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energate import EnergyClassifier, EnergyRefiner, EnergyScorer, ImageEnergyClassifier, LabelMLP, PairScorer
from energate.errors import InputError
from energate.estimators.image_network import ImageNetwork
from energate.training import Progress, alone, checkpointing, drawn, minimise, row_batches
from energate.training.ranks import Group, Share, among, group, is_first, share_of, sharing


class Threads:
    """What the threads that stand for processes share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.boxes = size, threading.Barrier(size, timeout=60), [None] * size

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """The results of all; an error of any of them."""
        found: list[Any] = [None] * self.size
        errors = list[BaseException]()

        def one(rank: int) -> None:
            try:
                with among(Thread(self, rank)):
                    found[rank] = work(rank)
            except threading.BrokenBarrierError:
                pass  # another's error
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return found


class Thread(Group):
    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank, self.size = threads, rank, threads.size

    def _all(self, mine: Any) -> list[Any]:
        self.threads.boxes[self.rank] = mine
        self.threads.barrier.wait()
        found = list(self.threads.boxes)
        self.threads.barrier.wait()
        return found

    def add_up(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self._all(tensor.clone())).sum(0))

    def send(self, found: Any) -> Any:
        return self._all(found)[0]


# --- shares of a batch -------------------------------------------------------------------------------------------


def test_shares_are_all_rows_once_and_draw_what_the_batch_draws() -> None:
    batch = torch.arange(14).view(2, 7)
    shares = [Share(rank, 3, 7) for rank in range(3)]
    assert [share.n_own for share in shares] == [3, 2, 2]
    assert sum(share.part for share in shares) == pytest.approx(1)
    assert torch.equal(torch.cat([share.of(batch, 1) for share in shares], 1).sort(1)[0], batch)

    def noise(n_rows: int) -> torch.Tensor:
        return drawn(torch.rand, (2, n_rows, 4), -2, generator=torch.Generator().manual_seed(0))

    whole = noise(7)
    for share in shares:
        with sharing(share):
            assert torch.equal(noise(share.n_own), whole[:, share.rank :: 3])
            with pytest.raises(AssertionError, match="for the rows of its batch"):
                share_of(7)


def test_one_process_is_alone() -> None:
    assert group() is None
    assert is_first()

    def work(rank: int) -> tuple[Any, ...]:
        with alone():
            inside = group()
        return inside, is_first()

    assert Threads(2).run(work) == [(None, True), (None, False)]


# --- models ------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(61, 4))
y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
Y = np.stack([y, X[:, 1] > 0, X[:, 0] + X[:, 1] > 0], 1).astype(int)
IMAGES = np.random.default_rng(1).uniform(size=(40, 8, 8))
LABELS = np.arange(40) % 2
FITS: dict[str, Callable[[], Any]] = {
    "trunk": lambda: EnergyClassifier(n_members=2, breadth=8, depth=1, max_epochs=4, random_state=0).fit(X, y),
    "mean-covariance": lambda: EnergyClassifier(
        units="mean-covariance", n_hidden=4, generative_weight=[0.1, 0.5], max_epochs=3, batch_size=20, random_state=0
    ).fit(X, y),
    "scorer": lambda: EnergyScorer(units="mean", n_hidden=4, batch_size=13, max_epochs=3, random_state=0).fit(X),
    "pairs": lambda: PairScorer(n_hidden=4, n_factors=8, batch_size=16, max_epochs=3, random_state=0).fit(X, Y),
    "sets": lambda: EnergyRefiner(LabelMLP(max_epochs=2, random_state=0), max_epochs=3, random_state=0).fit(X, Y),
    "ascent": lambda: EnergyRefiner(
        LabelMLP(max_epochs=2, random_state=0), method="ascent", relation="yy", max_epochs=3, random_state=0
    ).fit(X, Y),
    "images": lambda: ImageEnergyClassifier(
        channels=8, augment="symmetries", input_dropout=0.1, batch_size=9, max_epochs=2, random_state=0, device="cpu"
    ).fit(IMAGES, LABELS),
}


@pytest.mark.parametrize("kind", FITS)
def test_two_processes_give_the_model_of_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # bfloat16, where a processor has it, rounds halves of a batch otherwise than the whole by far more than float32.
    monkeypatch.setattr(ImageNetwork, "low_precision", False)
    expected = FITS[kind]().model_.state_dict()
    found = [model.model_.state_dict() for model in Threads(2).run(lambda _: FITS[kind]())]
    for name, tensor in expected.items():
        torch.testing.assert_close(found[0][name], tensor, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-5, atol=1e-6)


def train(rank: int, rows: torch.Tensor, epochs: int = 6, **options: Any) -> tuple[torch.Tensor, Any, list[int]]:
    """Two models of a line; the epochs that were told of."""
    W, told = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), list[int]()
    draws = torch.Generator().manual_seed(1)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        v = rows[batch] + 0.1 * drawn(torch.randn, rows[batch].shape, 0, generator=draws, dtype=torch.float64)
        return (v @ W.T - rows[batch].sum(1, keepdim=True)).square().mean(0)

    def callback(progress: Progress) -> bool:
        told.append(progress.epoch)
        return bool(options.get("stop_at") == progress.epoch)

    how: dict[str, Any] = {"by_rows": True, "generators": [draws], "callback": callback, "clip_norm": 2.0}
    how |= {name: value for name, value in options.items() if name != "stop_at"}
    batches = row_batches(len(rows), 8, seed=2)
    history = minimise(loss, [W], batches, epochs=epochs, learning_rate=torch.tensor([0.02, 0.1]), **how)
    return W.detach(), history, told


ROWS = torch.randn(41, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)  # the last batch has one


@pytest.mark.parametrize("size", [2, 3])
def test_steps_are_those_of_the_whole_batch(size: int) -> None:
    expected, history, told = train(0, ROWS)
    found = Threads(size).run(lambda rank: train(rank, ROWS))
    for W, other, _ in found:
        torch.testing.assert_close(W, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(torch.stack(other.loss), torch.stack(history.loss), rtol=1e-10, atol=1e-12)
        assert other.n_steps == history.n_steps
    assert [each[2] for each in found] == [told, *[[]] * (size - 1)], "only the first tells how far it is"


def test_the_first_decides_and_writes(tmp_path: Path) -> None:
    expected, history, _ = train(0, ROWS, stop_at=3)

    def work(rank: int, stop_at: int | None = 3) -> Any:
        with checkpointing(tmp_path / str(rank), every=0.0) as files:
            return (*train(rank, ROWS, stop_at=stop_at), files.n_resumed)

    for W, other, _, _ in Threads(2).run(work):
        torch.testing.assert_close(W, expected, rtol=1e-10, atol=1e-12)
        assert len(other.loss) == len(history.loss) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    again = Threads(3).run(lambda rank: work(rank, None))  # the state of the first is that of all, however many
    assert [each[3] for each in again] == [3, 3, 3]
    for W, *_ in again:
        torch.testing.assert_close(W, expected, rtol=1e-10, atol=1e-12)


def test_measurements_and_errors_are_those_of_the_first() -> None:
    asked = list[int]()

    def work(rank: int) -> Any:
        def validate() -> torch.Tensor:
            asked.append(rank)
            if len(asked) == 3:
                raise InputError("nothing to measure")
            return torch.ones(2)

        return train(rank, ROWS, validate=validate)

    with pytest.raises(InputError, match="nothing to measure"):
        Threads(2).run(work)
    assert asked == [0, 0, 0]


def test_other_rows_and_models_are_refused() -> None:
    def shaped(rank: int) -> None:
        W = torch.zeros(rank + 1, requires_grad=True)
        minimise(lambda _: W.square().sum(), [W], lambda _: [torch.arange(4)], epochs=1, by_rows=True)

    with pytest.raises(InputError, match=r"other losses in the first batch.*Give all of them the same rows"):
        Threads(2).run(lambda rank: train(rank, ROWS + rank))
    with pytest.raises(InputError, match=r"trains a model of other shapes.*alone\(\)"):
        Threads(2).run(shaped)
    with pytest.warns(UserWarning, match="each of the 2 processes takes whole batches"):
        found = Threads(2).run(lambda rank: train(rank, ROWS, by_rows=False)[0])
    torch.testing.assert_close(found[0], train(0, ROWS)[0], rtol=1e-10, atol=1e-12)
