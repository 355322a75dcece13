"""What would take hours or more memory than there is: refused before it begins, unless somebody asked for it."""

from typing import Any

import numpy as np
import pytest
import torch
from cases import ESTIMATORS, SCORER, EstimatorCase

from energate import (
    EnergyClassifier,
    EnergyRefiner,
    EnergyScorer,
    ImageEnergyClassifier,
    InputError,
    LabelMLP,
    PairScorer,
)
from energate.estimators import edge
from energate.estimators.effort import check_work, work_of
from energate.estimators.progress import within_memory
from energate.units import MeanUnits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4))
y = (X[:, 0] > 0).astype(int)
Y = np.column_stack([y, 1 - y])
QUICK: dict[str, Any] = {"device": "cpu", "random_state": 0}

#: a fit of each kind of training, by `max_epochs`
FITS = {
    "trunk": lambda epochs: EnergyClassifier(max_epochs=epochs, n_members=2, **QUICK).fit(X, y),
    "mean": lambda epochs: EnergyClassifier("mean", max_epochs=epochs, pretrain_epochs=1, **QUICK).fit(X, y),
    "scorer": lambda epochs: EnergyScorer("mean", max_epochs=epochs, **QUICK).fit(X),
    "pairs": lambda epochs: PairScorer(max_epochs=epochs, **QUICK).fit(X, X),
    "labels": lambda epochs: LabelMLP(max_epochs=epochs, **QUICK).fit(X, Y),
    "refiner": lambda epochs: EnergyRefiner(LabelMLP(max_epochs=epochs, **QUICK), max_epochs=1, cv=2, **QUICK).fit(
        X, Y
    ),
    "images": lambda epochs: ImageEnergyClassifier(max_epochs=epochs, **QUICK).fit(X, y),
}


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_training_that_takes_very_long_is_refused_unless_it_is_asked_for(monkeypatch, fit) -> None:
    for name in ("MOST", "PER_ROW", "PER_PICTURE"):
        monkeypatch.setattr(f"energate.estimators.effort.{name}", 1.0)
    with pytest.raises(InputError, match=r"training on \d+ rows of [48] columns would take very long: .*`max_epochs`"):
        fit("auto")
    fit(1)


def test_work_is_counted_and_grows_with_steps_rows_and_weights() -> None:
    units = MeanUnits(3, 50, 10)
    assert work_of(units) == 3 * 10 * (50 + 1 + 128)  # and a bias
    estimator, cpu = EnergyClassifier(), torch.device("cpu")
    check_work(estimator, cpu, (40, 50_000), 1000, 36, 5e7)
    for n_steps, n_seen, per_row in ((1001, 36, 5e7), (1000, 37, 5e7), (1000, 36, 5.01e7)):
        with pytest.raises(InputError, match="40 rows of 50,000 columns would take very long"):
            check_work(estimator, cpu, (40, 50_000), n_steps, n_seen, per_row)
    check_work(estimator, cpu, (100_000, 50_000), 20_000, 36, 5e7)  # many rows take long, as everybody knows
    check_work(estimator, torch.device("cuda"), (40, 50_000), 100_000, 36, 5e7)


def test_a_thousand_classes_with_a_model_each_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="3,000 rows of 10 columns would take very long"):
        EnergyClassifier("mean", **QUICK).fit(RNG.normal(size=(3000, 10)), np.arange(3000) % 1000)


def test_columns_that_are_no_image_are_refused_before_they_fill_memory(monkeypatch) -> None:
    wide = RNG.normal(size=(12, 50_000))
    with pytest.raises(InputError, match="12 rows of 50,000 columns would take very long"):
        ImageEnergyClassifier(**QUICK).fit(wide, np.arange(12) % 2)
    monkeypatch.setattr("energate.tables.room.room", lambda: 1e7)
    with pytest.raises(InputError, match=r"12 images of 400 pixels take \d+ MB; .*`batch_size`.*EnergyClassifier"):
        ImageEnergyClassifier(max_epochs=1, **QUICK).fit(wide[:, :400], np.arange(12) % 2)


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda case: case.name)
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=type)
def test_memory_that_runs_out_is_told_in_a_line(monkeypatch, case: EstimatorCase, error) -> None:
    def run_out(_: Any) -> int:
        raise error

    monkeypatch.setattr("energate.estimators.edge.draw_seed", run_out)
    with pytest.raises(InputError, match=r"Memory ran out while \w+ was fitted to rows of shape \(40, 4\)\."):
        case.fit(X, y)


def test_other_errors_stay_what_they_are() -> None:
    @within_memory
    def fit(self: Any, X: Any) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fit(SCORER, X)


def test_of_very_many_columns_there_are_fewer_units(monkeypatch) -> None:
    assert [LabelMLP()._sizes(n, 3)[1] for n in (100, 12_500, 25_000, 50_000, 200_000)] == [256, 256, 128, 64, 64]
    assert edge.units_within(2 * 26_000, 32, 300) == 300
    monkeypatch.setattr("energate.estimators.edge.MOST_A_ROW", 1100)
    assert EnergyClassifier(max_epochs=1, **QUICK).fit(X, y).model_.n_members == 2  # a member takes 4 * (128 + 2)
    assert EnergyClassifier(max_epochs=1, n_members=3, **QUICK).fit(X, y).model_.n_members == 3
    wide = RNG.normal(size=(20, 40))
    assert EnergyScorer("mean", max_epochs=1, **QUICK).fit(wide).model_.groups[0].n_hidden == 32
    assert PairScorer(max_epochs=1, **QUICK).fit(wide, wide).model_.groups[0].W_x.shape[1] == 32


def test_images_of_very_many_classes_have_fewer_units_of_each() -> None:
    rows, labels = RNG.normal(size=(300, 16)), np.arange(300) % 150
    model = ImageEnergyClassifier(max_epochs=1, channels=8, shared_channels=4, **QUICK).fit(rows, labels)
    assert model.model_.heads.sizes == (150, 6400 // 150)
