"""What the benchmarks compute beside fits: how tables are read, ranks, and the words of the summary."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Any:
    """The modules of the folder, which is no package."""
    sys.path.insert(0, str(FOLDER))
    try:
        import image_peers
        import nines
        import ranking
        import table_data
        import table_published
        import table_summary
        import table_systems
        import tables
    finally:
        sys.path.remove(str(FOLDER))

    class Bench:
        pass

    for module in (image_peers, nines, ranking, table_data, table_published, table_summary, table_systems, tables):
        assert isinstance(module, ModuleType)
        setattr(Bench, module.__name__, module)
    return Bench


@pytest.mark.parametrize(("n_systems", "quantile"), [(2, 1.960), (4, 2.569), (7, 2.949), (10, 3.164)])
def test_critical_difference_is_that_of_the_published_quantiles(bench: Any, n_systems: int, quantile: float) -> None:
    expected = quantile * np.sqrt(n_systems * (n_systems + 1) / (6 * 14))
    assert bench.ranking.critical_difference(n_systems, 14) == pytest.approx(expected, rel=1e-3)


def test_ranks_share_ties_and_bars_join_what_is_not_told_apart(bench: Any) -> None:
    table = np.array([[0.1, 0.1, 0.3], [0.2, 0.1, 0.3]])
    np.testing.assert_allclose(bench.ranking.average_ranks(table), [1.75, 1.25, 3.0])
    assert bench.ranking.cliques(np.array([1.0, 1.5, 3.0, 3.9]), 1.0) == [(1.0, 1.5), (3.0, 3.9)]
    assert bench.ranking.cliques(np.array([1.0, 2.0, 2.9]), 1.0) == [(1.0, 2.0), (2.0, 2.9)]


@pytest.fixture
def table(bench: Any, tmp_path: Path) -> Any:
    """Classes of 12, 12 and 3 rows; a class in the middle, a range, a gap, a word that only one row has."""
    rows = [f"{i % 7},{'?' if i % 5 == 0 else 'red'},{'ab'[i % 2]},{i}" for i in range(24)]
    rows += ["9,blue,c,?"] * 3
    head = ["@relation t", "@attribute n integer [1,10]", "@attribute w {red,blue}", "@attribute CLASS {a,b,c}"]
    path = tmp_path / "t.arff"
    path.write_text("\n".join([*head, "@attribute m real", "@data", *rows]))
    return bench.table_data.load(path)


def test_tables_keep_categories_and_gaps_and_lose_small_classes(table: Any) -> None:
    assert table.frame.shape == (24, 3)
    assert (table.numbers, table.categories) == (["x0", "x2"], ["x1"])
    assert table.frame["x1"].isna().sum() == 5
    np.testing.assert_array_equal(np.bincount(table.y), [12, 12])
    train, test = table.split(0, 3)
    assert len(test) == 8
    assert not set(train) & set(test)


def test_development_half_is_every_second_name(bench: Any, tmp_path: Path) -> None:
    others = [f"{name}0" for name in bench.table_data.DEVELOPMENT]
    for name in (*bench.table_data.DEVELOPMENT, *others):
        (tmp_path / f"{name}.arff").touch()
    assert bench.table_data.names_of_tables(tmp_path, "development") == sorted(bench.table_data.DEVELOPMENT)
    assert bench.table_data.names_of_tables(tmp_path, "held-out") == sorted(others)


def test_capped_keeps_the_frequent_categories(bench: Any, table: Any) -> None:
    import pandas as pd

    frame = pd.DataFrame({"w": pd.Categorical(["a", "a", "b", "b", "c", None])})
    capped = bench.table_systems.Capped(2).fit(frame).transform(frame)
    assert capped["w"].isna().tolist() == [False] * 4 + [True] * 2
    assert bench.table_systems.Capped(2).fit_transform(table.frame).equals(table.frame)


def test_log_loss_is_clipped_and_of_float64(bench: Any) -> None:
    p = np.array([[1.0, 0.0], [0.25, 0.75]], dtype=np.float32)
    expected = (-np.log(1e-15) - np.log(0.25)) / 2
    assert bench.tables.log_loss(p, np.array([1, 0])) == pytest.approx(expected)


def test_summary_says_who_is_best_and_who_is_over_sure(bench: Any) -> None:
    lines = [
        {
            "set": name,
            "development": name == "tae",
            "fold": fold,
            "folds": 2,
            "system": system,
            "error": 10.0 + place + fold,
            "log_loss": 0.3 + 0.4 * place,
            "log_loss_frequencies": 0.65,
            "ece": 5.0 + place,
            "fit_s": 1.0,
            "fit_cpu_s": 1.0,
            "predict_s": 0.1,
            "device": "cpu",
            "threads": 1,
            "jobs": 1,
        }
        for name in ("tae", "wine", "flags")
        for fold in range(2)
        for place, system in enumerate(("EnergyClassifier", "SVC", "MLP"))
    ]
    text = bench.table_summary.summary(lines)
    assert "over 1 tables, development half" in text
    assert "over 2 tables, held-out half" in text
    assert "best EnergyClassifier (1.00)" in text
    assert "| SVC | -1.000 ± 0.000, 3/0/0" in text
    assert "| MLP | 3 of 3 | +0.45" in text
    assert "| SVC | 0 of 3 | +0.05" in text
    assert "without a rank" not in text
    more = [line | {"system": "memory"} for line in lines if line["system"] == "SVC"]
    assert "| memory | held-out half, 2 tables | 11.5 | 0.7 | 6 |" in bench.table_summary.summary(lines + more)
    assert "average rank" not in bench.table_summary.summary(more)
    unfinished = [line for line in lines if line["set"] != "flags" or line["fold"] == 0]
    assert "over 1 tables, held-out half" in bench.table_summary.summary(unfinished)


def test_published_figures_stand_beside_ours(bench: Any, tmp_path: Path) -> None:
    names = [there for there, _ in bench.table_published.SAME.values()]
    path = tmp_path / "published.csv"
    path.write_text("\n".join(["Dataset,one,two", *(f"{name},0.75,0.5" for name in names)]))
    lines = [{"set": "cmc", "system": "SVC", "error": error} for error in (10.0, 20.0)]
    text = bench.table_published.beside(lines, path)
    assert "| set | SVC | | one | two |" in text
    assert "| cmc | 85.0 | | 75.0 | 50.0 |" in text
    assert "| vehicle | - | | 75.0 | 50.0 |" in text
    assert bench.table_published.fits(0.7597, 768)  # 117 of 154
    assert not bench.table_published.fits(0.7045, 178)  # 25.4 of 36


def test_the_first_example_turns_nines_away_whatever_the_seed(bench: Any) -> None:
    for found in (bench.nines.run("memory", seed) for seed in (1, 2)):
        assert found["accuracy"] > 96
        assert found["known"] < 8  # of 5 that were asked for
        assert found["nines"] > 45


@pytest.mark.parametrize("symmetry", [None, "turns", "circle"])
def test_features_of_images_are_what_the_heads_see(bench: Any, symmetry: str | None) -> None:
    import torch

    from energate import ImageEnergyClassifier

    X, y = np.random.default_rng(0).random((12, 8, 8)), np.arange(12) % 2
    small: Any = {"n_hidden": 4, "channels": 8, "denoising_weight": 0, "max_epochs": 1, "random_state": 0}
    model = ImageEnergyClassifier(symmetry=symmetry, **small).fit(X, y)
    found = bench.image_peers.features_of(model, torch.as_tensor(X))
    assert found.shape == (12, model.model_.heads.heads.in_features)
    turned = bench.image_peers.features_of(model, torch.as_tensor(np.rot90(X, axes=(1, 2)).copy()))
    assert np.allclose(found, turned, atol=1e-4) == (symmetry is not None)
