import ast
import errno
import functools
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import zipfile
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from cases import mixed_columns
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import make_blobs
from torch import nn

import energate.estimators
import energate.persistence
import energate.views
from energate import (
    Autoencoder,
    ColumnMemoryUnits,
    EnergyClassifier,
    EnergyScorer,
    ImageEnergyClassifier,
    InputError,
    MeanUnits,
    NetworkUnits,
    load,
    save,
)
from energate.estimators import PairScorer
from energate.persistence import SCHEMA, _store, read_columns
from energate.persistence.config import checksum as _checksum
from energate.persistence.values import decode, dump, encode, parse
from energate.tables import CodedRows, learn_columns

QUICK: dict[str, Any] = {"max_epochs": 2, "n_hidden": 6, "n_factors": 5, "random_state": 0}
X, Y = make_blobs(200, centers=3, n_features=4, cluster_std=2.0, random_state=0)
LABELS = {
    "text": np.array(["bad", "good", "\u00fcnicode \u2603"])[Y],
    "objects": np.array(["bad", "good", "better"], dtype=object)[Y],
    "whole": np.array([-5, 3, 10**12])[Y],
    "small": np.array([1, 2, 3], dtype=np.uint8)[Y],
    "floats": np.array([-1.0, 0.0, 2.0])[Y],
    "booleans": Y > 0,
}
METHODS = {
    EnergyClassifier: [
        "predict", "predict_proba", "predict_log_proba", "decision_function", "energies", "score_samples", "rejects",
        "transform", "get_feature_names_out",
    ],
    EnergyScorer: ["predict", "decision_function", "score_samples", "transform", "reconstruct"],
}  # fmt: skip
NAMES = ["folder", "file.zip"]


@functools.cache
def classifier(seed: int = 0, **parameters: Any) -> EnergyClassifier:
    return EnergyClassifier(
        **{"units": "mean-covariance", "pretrain_epochs": 2, **QUICK, "random_state": seed, **parameters}
    ).fit(X, Y)


@functools.cache
def scorer(seed: int = 0, **parameters: Any) -> EnergyScorer:
    return EnergyScorer(**{"units": "mean-covariance", **QUICK, "random_state": seed, **parameters}).fit(X)


def outputs(model: Any, rows: Any = X) -> list[np.ndarray]:
    return [getattr(model, method)(*([] if "names" in method else [rows])) for method in METHODS[type(model)]]


def assert_same(model: Any, other: Any, rows: Any = X) -> None:
    """The same class, parameters, fitted values and, bit for bit, results."""
    assert type(model) is type(other)
    assert {**model.get_params(), "device": "cpu"} == other.get_params()
    for name in {*model._FITTED, "n_features_in_"}:
        mine, its = getattr(model, name), getattr(other, name)
        assert type(mine) is type(its)
        pairs = zip(vars_of(mine), vars_of(its), strict=True) if is_dataclass(mine) else [(mine, its)]
        for one, two in pairs:
            np.testing.assert_array_equal(one, two)
            assert np.asarray(one).dtype == np.asarray(two).dtype
    for one, two in zip(outputs(model, rows), outputs(other, rows), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype


def vars_of(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


def read(place: Path) -> dict[str, bytes]:
    if place.is_dir():
        return {file.name: file.read_bytes() for file in place.iterdir()}
    with zipfile.ZipFile(place) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def change(place: Path, seal: bool = True, **entries: Any) -> None:
    """Write other entries into a saved folder's config.json, with a checksum that fits."""
    config = {**parse((place / "config.json").read_bytes()), **entries}
    if seal:
        config["sha256"] = _checksum(config)
    (place / "config.json").write_bytes(dump(config, indent=1))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(scorer(), tmp_path / "model")
    return tmp_path / "model"


# --- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scaling", ["standard", "unit"])
@pytest.mark.parametrize("reading", ["sum", "shared"])
@pytest.mark.parametrize("units", ["mean", "covariance", "mean-covariance"])
def test_a_loaded_classifier_is_the_saved_one(units, reading, scaling, name, tmp_path: Path) -> None:
    model = classifier(units=units, reading=reading, scaling=scaling)
    save(model, tmp_path / name)
    assert_same(model, load(tmp_path / name))
    assert os.listdir(tmp_path) == [name]
    assert sorted(read(tmp_path / name)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parameters", [{}, {"scaling": "unit"}, {"units": "mean"}, {"contamination": np.float64(0.1)}])
def test_a_loaded_scorer_is_the_saved_one(parameters, name, tmp_path: Path) -> None:
    model = scorer(**parameters)
    save(model, tmp_path / name)
    assert_same(model, load(tmp_path / name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relation", ["conditional", "symmetric"])
def test_a_loaded_pair_scorer_is_the_saved_one(relation, name, tmp_path: Path) -> None:
    pairs = X, X[:, :3] ** 2
    model = PairScorer(relation, **QUICK).fit(*pairs)
    save(model, tmp_path / name)
    loaded = load(tmp_path / name)
    assert loaded.get_params() == {**model.get_params(), "device": "cpu"}
    for method in ("score_pairs", "transform", "reconstruct"):
        one, two = getattr(model, method)(*pairs), getattr(loaded, method)(*pairs)
        for a, b in zip(*([one], [two]) if isinstance(one, np.ndarray) else (one, two), strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(loaded.apply(*pairs, X[::-1]), model.apply(*pairs, X[::-1]))
    with pytest.raises(InputError, match="Leave `units` out"):
        load(tmp_path / name, units=deep_units)


def test_every_estimator_can_be_saved() -> None:
    transformers = {"EnergyImputer", "TableEncoder"}  # saved around its scorer, and as a step of a Pipeline
    assert set(energate.estimators.__all__) - transformers == {kind.__name__ for kind in energate.views.KINDS}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_keep_their_type(kind, tmp_path: Path) -> None:
    weights = {label: 1.0 + i for i, label in enumerate(np.unique(LABELS[kind]).tolist())}
    model = EnergyClassifier("mean", pretrain_epochs=1, class_weight=weights, **QUICK).fit(X, LABELS[kind])
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert_same(model, loaded)
    assert [type(key) for key in loaded.class_weight] == [type(key) for key in weights]


def test_names_of_columns_are_kept(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["a", "b", "c d", "\u00e9"])
    model = EnergyClassifier("mean", pretrain_epochs=1, **QUICK).fit(table, pandas.Series(LABELS["text"]))
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert_same(model, loaded, table)
    assert loaded.feature_names_in_.tolist() == table.columns.tolist()
    assert loaded.feature_names_in_.dtype == model.feature_names_in_.dtype
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(table[["b", "a", "c d", "\u00e9"]])


def test_long_arrays_go_beside_the_weights(tmp_path: Path) -> None:
    rows, labels = make_blobs(1200, centers=2, n_features=2, random_state=0)
    model = EnergyClassifier("mean", pretrain_epochs=1, early_stopping=False, **QUICK).fit(rows, labels)
    assert len(model.liking_) == 1200
    save(model, tmp_path / "model")
    assert parse(read(tmp_path / "model")["config.json"])["fitted"]["liking_"] == {"$tensor": "fitted.liking_"}
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.liking_, model.liking_)
    np.testing.assert_array_equal(loaded.rejects(rows, 0.2), model.rejects(rows, 0.2))


def test_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    model = clone(classifier()).partial_fit(X[:100], Y[:100], classes=[0, 1, 2])
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model").partial_fit(X[100:], Y[100:])
    model.set_params(device="cpu").partial_fit(X[100:], Y[100:])
    assert_same(model, loaded)
    for one in (model, loaded):
        one.set_params(warm_start=True, random_state=1).fit(X, Y)
    assert_same(model, loaded)


def test_a_loaded_model_can_be_saved_again_to_the_same_bytes(tmp_path: Path) -> None:
    save(classifier(device="cpu"), tmp_path / "a.zip")
    save(load(tmp_path / "a.zip"), tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_float_models_become_double_on_the_cpu(tmp_path: Path) -> None:
    model = pickle.loads(pickle.dumps(scorer()))
    model.model_.float()
    save(model, tmp_path / "model")
    assert parse(read(tmp_path / "model")["config.json"])["dtype"] == "float32"
    loaded = load(tmp_path / "model")
    assert loaded.model_.a.dtype == torch.float64
    np.testing.assert_allclose(loaded.score_samples(X), model.score_samples(X), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_a_model_from_the_gpu_loads_on_the_cpu_and_back(tmp_path: Path) -> None:
    model = EnergyClassifier("mean-covariance", pretrain_epochs=2, device="cuda", **QUICK).fit(X, Y)
    save(model, tmp_path / "model")
    on_cpu, on_gpu = load(tmp_path / "model"), load(tmp_path / "model", device="cuda")
    assert (on_cpu.model_.B.dtype, on_cpu.model_.B.device.type, on_cpu.device) == (torch.float64, "cpu", "cpu")
    assert (on_gpu.model_.B.dtype, on_gpu.model_.B.device.type, on_gpu.device) == (torch.float32, "cuda", "cuda")
    np.testing.assert_array_equal(on_gpu.energies(X), model.energies(X))
    np.testing.assert_allclose(on_cpu.energies(X), model.energies(X), rtol=1e-3, atol=1e-3)
    save(on_cpu, tmp_path / "again")
    np.testing.assert_allclose(
        load(tmp_path / "again", device="cuda").energies(X), model.energies(X), rtol=1e-6, atol=1e-8
    )


def test_saving_and_loading_draw_no_random_numbers(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    model = EnergyScorer(deep_units, **QUICK).fit(X)
    torch.set_rng_state(state)
    save(model, tmp_path / "model")
    load(tmp_path / "model", units=deep_units)
    assert torch.equal(torch.get_rng_state(), state)


# --- parameters --------------------------------------------------------------------------------------------------


def deep_units(n_models: int, width: int, generator: torch.Generator) -> NetworkUnits:
    network = nn.Sequential(nn.Linear(width, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 7))
    return NetworkUnits(network)


def test_a_function_as_units_is_given_again(tmp_path: Path) -> None:
    model = EnergyScorer(deep_units, **QUICK).fit(X)
    save(model, tmp_path / "model")
    assert_same(model, load(tmp_path / "model", units=deep_units))
    with pytest.raises(InputError, match=r"function deep_units as `units`.*load\(path, units=function\)"):
        load(tmp_path / "model")
    with pytest.raises(InputError, match="must be the function"):
        load(tmp_path / "model", units="mean")
    with pytest.raises(InputError, match=r"weights .* do not fit"):
        load(tmp_path / "model", units=lambda k, width, generator: MeanUnits(k, width, 7, generator=generator))
    with pytest.raises(InputError, match="build no model: ZeroDivisionError"):
        load(tmp_path / "model", units=lambda k, width, generator: 1 / 0)
    save(scorer(), tmp_path / "model")
    with pytest.raises(InputError, match="units='mean-covariance', not with a function"):
        load(tmp_path / "model", units=deep_units)


@pytest.mark.parametrize("state", [np.random.RandomState(3), np.random])
def test_generators_of_random_numbers_are_saved_as_none(state, tmp_path: Path) -> None:
    model = EnergyScorer("mean", **{**QUICK, "random_state": state}).fit(X)
    save(model, tmp_path / "model")
    assert load(tmp_path / "model").random_state is None


@pytest.mark.parametrize("change", [{"n_hidden": 7}, {"units": "mean"}, {"activation": "relu"}, {"scaling": "unit"}])
def test_parameters_that_no_longer_build_the_model_are_noticed(change, tmp_path: Path) -> None:
    model = pickle.loads(pickle.dumps(scorer())).set_params(**change)
    with pytest.raises(InputError, match="changed after `fit`"):
        save(model, tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_parameters_of_other_kinds_are_refused(tmp_path: Path) -> None:
    model = pickle.loads(pickle.dumps(scorer())).set_params(verbose=object())
    with pytest.raises(InputError, match="`verbose` holds a object, which cannot be saved"):
        save(model, tmp_path / "model")
    assert os.listdir(tmp_path) == []


class Subclass(EnergyScorer):
    pass


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (EnergyScorer(), "not fitted"),
        (EnergyClassifier(), "not fitted"),
        (Subclass(), "Subclasses cannot be saved"),
        (nn.Linear(2, 2), "must be one of EnergyClassifier, EnergyRefiner, EnergyScorer.*got Linear"),
        (None, "got NoneType"),
    ],
)
def test_only_fitted_estimators_are_saved(model, message, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        save(model, tmp_path / "model")
    assert os.listdir(tmp_path) == []


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None))
ARRAYS = st.one_of(
    st.lists(st.floats()).map(lambda items: np.array(items, dtype=np.float64)),
    st.lists(st.floats(width=32)).map(lambda items: np.array(items, dtype=np.float32)),
    st.lists(st.integers(-100, 100)).map(lambda items: np.array(items, dtype=np.int8)),
    st.lists(st.booleans(), min_size=4, max_size=4).map(lambda items: np.array(items).reshape(2, 2)),
    st.lists(st.text("ab\u2603")).map(lambda items: np.array(items, dtype="U5")),
    st.lists(st.text("ab\u2603")).map(lambda items: np.array(items, dtype=object)),
    st.floats().map(np.float64),
    st.integers(-100, 100).map(np.int16),
    st.booleans().map(np.bool_),
    st.text("ab").map(np.str_),
)
KEYS = st.booleans() | st.integers() | st.text() | st.integers(-100, 100).map(np.int64)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(VALUES)
def test_values_come_back_from_json_unchanged(value) -> None:
    same_value(value, decode(parse(dump({"value": encode(value, "value")}, indent=1))["value"]))


def same_value(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert len(one) == len(two)
        one, two = [list(pair) for pair in one.items()], [list(pair) for pair in two.items()]
    if isinstance(one, list | tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same_value(a, b)
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        np.testing.assert_array_equal(one, two)
    else:
        assert repr(one) == repr(two)  # tells -0.0 from 0.0, and lets NaN be itself


@pytest.mark.parametrize("value", [1j, b"", {1}, np.array([1j]), np.array([b"a"]), np.array([{}]), np.longdouble(1)])
def test_values_of_other_kinds_are_refused(value) -> None:
    with pytest.raises(InputError, match=r"`thing` holds .* cannot be saved"):
        encode(value, "thing")


def test_the_configuration_is_strict_json(tmp_path: Path) -> None:
    model = pickle.loads(pickle.dumps(scorer()))
    model.offset_ = float("-inf")
    save(model, tmp_path / "model")
    text = read(tmp_path / "model")["config.json"].decode("ascii")
    json.loads(text, parse_constant=pytest.fail)
    assert load(tmp_path / "model").offset_ == float("-inf")
    assert {"energate", "torch", "scikit-learn", "numpy", "python"} == json.loads(text)["versions"].keys()


# --- what is refused when loading --------------------------------------------------------------------------------


def test_other_versions_of_what_lies_below_are_fine(saved: Path) -> None:
    change(saved, versions={"energate": "0.1.7", "torch": "99.0"})
    assert_same(scorer(), load(saved))


def test_a_model_of_an_older_schema_has_new_parameters_at_their_defaults(tmp_path: Path) -> None:
    model = classifier()
    save(model, tmp_path / "model")
    config = parse((tmp_path / "model" / "config.json").read_bytes())
    added = [name for names in EnergyClassifier._ADDED.values() for name in names]
    older = {name: value for name, value in config["parameters"].items() if name not in added}
    assert len(older) == len(config["parameters"]) - len(added)
    change(tmp_path / "model", parameters=older, schema=1)
    assert_same(model, load(tmp_path / "model"))
    change(tmp_path / "model", schema=2)
    with pytest.raises(InputError, match="missing: fine_tune_noise_level, optimizer, start_scale, validate_every"):
        load(tmp_path / "model")


def test_cells_are_kept(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table, y = mixed_columns()
    frame = pandas.DataFrame(table)
    model = EnergyClassifier("mean", n_hidden=3, pretrain_epochs=1, max_epochs=1, random_state=0, device="cpu")
    model.set_params(categorical_features=["colour", "grade"]).fit(frame, y)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.cells_.categories == model.cells_.categories == {2: ("blue", "green", "red"), 3: ("2", "3", "10")}
    new = frame.assign(colour="violet", size=np.nan)
    for rows in (frame, new):
        np.testing.assert_allclose(again.predict_proba(rows), model.predict_proba(rows), rtol=1e-6, atol=1e-8)
    assert_same(model, again, frame)
    fitted = parse((tmp_path / "model" / "config.json").read_bytes())["fitted"]
    content = fitted["cells_"]["$cells"]
    array = content["fill"]["$array"]
    for wrong in (
        {**content, "more": 1},
        {**content, "fill": {"$array": {**array, "values": array["values"][:3], "shape": [3]}}},
        {**content, "fill": {"$array": {**array, "values": [{"$float": "inf"}, 0, 0, 0]}}},
        {**content, "fill": 1},
        {**content, "categories": {"$dict": [[4, {"$tuple": ["a"]}]]}},
        {
            **content,
            "categories": {"$dict": [[2, {"$tuple": ["blue", "blue", "red"]}], [3, {"$tuple": ["2", "3", "9"]}]]},
        },
        {**content, "categories": {"$dict": [[2, {"$tuple": [1, 2, 3]}], [3, {"$tuple": ["2", "3", "10"]}]]}},
        {**content, "categories": {"$dict": [[2, {"$tuple": ["blue", "red"]}], [3, {"$tuple": ["2", "3", "10"]}]]}},
    ):
        change(tmp_path / "model", fitted={**fitted, "cells_": {"$cells": wrong}})
        with pytest.raises(InputError):
            load(tmp_path / "model")


def test_columns_must_hold_the_categories_of_the_model(tmp_path: Path) -> None:
    table, y = mixed_columns()
    columns, _ = learn_columns(table, coded=True)
    model = EnergyClassifier("mean", n_hidden=3, pretrain_epochs=1, max_epochs=1, random_state=0, device="cpu")
    model.fit(CodedRows(columns.matrix(table), columns), y)
    save(model, tmp_path / "model", columns=columns)
    assert read_columns(tmp_path / "model") == columns
    other, _ = learn_columns({**table, "colour": ["a", "b"] * 60}, coded=True)
    with pytest.raises(InputError, match="the categories that the model was fitted with"):
        save(model, tmp_path / "other", columns=other)
    scorer = EnergyScorer("mean", max_epochs=1, random_state=0, device="cpu").fit(np.zeros((20, 4)))
    with pytest.raises(InputError, match="the categories that the model was fitted with"):
        save(scorer, tmp_path / "other", columns=columns)


def test_a_model_of_an_older_schema_takes_numbers_alone(tmp_path: Path) -> None:
    model = classifier()
    save(model, tmp_path / "model")
    config = parse((tmp_path / "model" / "config.json").read_bytes())
    parameters = {name: value for name, value in config["parameters"].items() if name != "categorical_features"}
    fitted = {name: value for name, value in config["fitted"].items() if name != "cells_"}
    change(tmp_path / "model", parameters=parameters, fitted=fitted, schema=2)
    again = load(tmp_path / "model")
    np.testing.assert_allclose(model.predict_proba(X), again.predict_proba(X), rtol=1e-6, atol=1e-8)
    with pytest.raises(InputError, match="saved by a version that took none"):
        again.predict(np.where(X > 1, np.nan, X))
    save(again, tmp_path / "again")
    with pytest.raises(InputError, match="saved by a version that took none"):
        load(tmp_path / "again").predict(np.where(X > 1, np.nan, X))
    change(tmp_path / "model", schema=SCHEMA)
    with pytest.raises(InputError, match="missing: c"):
        load(tmp_path / "model")


def test_a_scorer_of_an_older_schema_is_one_that_was_trained(tmp_path: Path) -> None:
    model = scorer()
    save(model, tmp_path / "model")
    config = parse((tmp_path / "model" / "config.json").read_bytes())
    later = (name for names in EnergyScorer._FITTED_LATER.values() for name in names)
    added = (*(name for names in EnergyScorer._ADDED.values() for name in names), *later)
    parts = {
        part: {name: value for name, value in config[part].items() if name not in added}
        for part in ("parameters", "fitted")
    }
    assert sum(map(len, parts.values())) == len(config["parameters"]) + len(config["fitted"]) - len(added)
    change(tmp_path / "model", **parts, schema=2)
    older = load(tmp_path / "model")
    assert not len(older.held_out_)
    with pytest.raises(InputError, match="of an older version"):
        older.p_values(X)
    np.testing.assert_array_equal(older.cells_.fill, older.scaler_.offset)  # its means stand for missing cells
    assert older.cells_.plain
    older.liking_, older.cells_ = model.liking_, model.cells_
    assert_same(model, older)
    assert older.n_units_ is None
    save(older, tmp_path / "again")
    assert_same(model, load(tmp_path / "again"))


def test_a_memory_of_an_older_schema_has_plain_columns(tmp_path: Path) -> None:
    model = EnergyScorer(random_state=0, device="cpu").fit(X)
    columns = ColumnMemoryUnits(1, X.shape[1], 32).double()
    columns.log_share.data.fill_(-1.0)
    model.model_ = Autoencoder([model.model_.groups[0], columns]).double().requires_grad_(False)
    model.soft_columns_ = False
    save(model, tmp_path / "model")
    fitted = parse((tmp_path / "model" / "config.json").read_bytes())["fitted"]
    assert fitted.pop("soft_columns_") is False
    change(tmp_path / "model", fitted=fitted, schema=4)
    older = load(tmp_path / "model")
    assert_same(model, older)
    assert older.soft_columns_ is False
    save(older, tmp_path / "again")
    assert_same(model, load(tmp_path / "again"))
    assert load(tmp_path / "again").partial_fit(X).soft_columns_


@pytest.mark.parametrize("seal", [True, False])
def test_a_newer_schema_asks_for_an_upgrade(seal, saved: Path) -> None:
    change(saved, seal, schema=SCHEMA + 1, versions={"energate": "7.8.9"})
    with pytest.raises(InputError, match=rf"energate 7\.8\.9, schema {SCHEMA + 1}; .* up to schema {SCHEMA}\. Upgrade"):
        load(saved)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": "other"}, "`format` in config.json must be"),
        ({"schema": "1"}, "`schema` in config.json must be a whole number"),
        ({"schema": True}, "`schema` in config.json must be a whole number"),
        ({"schema": 0}, "`schema` in config.json must be a whole number"),
        ({"estimator": "Subclass"}, "estimator 'Subclass'; this version knows EnergyClassifier, EnergyRefiner, "),
        ({"estimator": "os.system"}, "estimator 'os.system'"),
        ({"estimator": "EnergyClassifier"}, "unknown: column_weight, contamination, .*; missing: .*class_weight"),
        ({"parameters": None}, "lacks something"),
        ({"weights": {}}, "lacks something"),
        ({"weights": {"size": 3, "sha256": ""}}, "model.safetensors has .* bytes and should have 3"),
        ({"dtype": "float16"}, "lacks something"),
        ({"dtype": "float32"}, "weights .* do not fit"),
        ({"fitted": {}}, "missing: .*, n_features_in_, n_units_, offset_, scaler_"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(entries, message, saved: Path) -> None:
    change(saved, **entries)
    with pytest.raises(InputError, match=message) as caught:
        load(saved)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_was_edited_is_refused(saved: Path) -> None:
    file = saved / "config.json"
    text = file.read_text()
    assert '"batch_size": 100' in text
    file.write_text(text.replace('"batch_size": 100', '"batch_size": 101'))
    with pytest.raises(InputError, match=r"config.json is not what was saved"):
        load(saved)
    file.write_text("\n" + text)  # the same values
    assert_same(scorer(), load(saved))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "NaN", "[" * 100_000, '{"format": "energate model"}', "\udcff"]
)
def test_what_is_no_configuration_is_refused(text, saved: Path) -> None:
    (saved / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"config\.json"):
        load(saved)


@pytest.mark.parametrize("number", ["NaN", "1e999", "9" * 5000])
def test_numbers_that_json_does_not_have_are_refused(number, saved: Path) -> None:
    text = (saved / "config.json").read_text().replace('"batch_size": 100', f'"batch_size": {number}')
    (saved / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        load(saved)


@pytest.mark.parametrize("change", [{"n_hidden": 7}, {"units": "covariance"}, {"units": "no such"}, {"n_hidden": "x"}])
def test_weights_that_do_not_fit_the_parameters_are_refused(change, saved: Path) -> None:
    config = parse((saved / "config.json").read_bytes())
    globals()["change"](saved, parameters={**config["parameters"], **change})
    with pytest.raises(InputError, match=r"weights .* do not fit|build no model"):
        load(saved)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save(scorer(), tmp_path / "a")
    save(scorer(1), tmp_path / "b")
    os.replace(tmp_path / "b" / "model.safetensors", tmp_path / "a" / "model.safetensors")
    with pytest.raises(InputError, match=r"model.safetensors is not what was saved"):
        load(tmp_path / "a")


def test_weights_that_are_no_safetensors_file_are_refused(saved: Path) -> None:
    data = pickle.dumps("anything")
    (saved / "model.safetensors").write_bytes(data)
    change(saved, weights={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    with pytest.raises(InputError, match="no safetensors file"):
        load(saved)


@pytest.mark.parametrize("member", ["config.json", "model.safetensors"])
def test_a_missing_member_is_named(member, saved: Path) -> None:
    (saved / member).unlink()
    with pytest.raises(InputError, match=f"has no {member}"):
        load(saved)
    (saved / member).mkdir()
    with pytest.raises(InputError, match=f"{member} is not a file"):
        load(saved)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no model at .*missing"):
        load(tmp_path / "missing")
    with pytest.raises(InputError, match=r"has no config.json"):
        load(tmp_path)
    (tmp_path / "text.zip").write_text("no zip file")
    with pytest.raises(InputError, match="not a zip file of a saved model"):
        load(tmp_path / "text.zip")
    with pytest.raises(InputError, match="`device` must be"):
        load(tmp_path, device="abacus")


def zip_of(members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_zip_files_with_tricks_are_refused(tmp_path: Path) -> None:
    save(scorer(), tmp_path / "model.zip")
    good = list(read(tmp_path / "model.zip").items())
    tricks = {
        "nothing else": [
            zip_of([*good, ("extra.txt", b"")]),
            zip_of([*good, ("../outside", b"")]),
            zip_of([*good, good[0]]),
            zip_of([("./config.json", good[0][1]), good[1]]),
            zip_of(good[:1]),
            zip_of([]),
        ],
        "stored, not compressed": [
            zip_of([("config.json", b" " * 10**7), good[1]], zipfile.ZIP_DEFLATED),  # a bomb
            zip_of(good, zipfile.ZIP_BZIP2),
        ],
    }
    for message, files in tricks.items():
        for data in files:
            (tmp_path / "trick.zip").write_bytes(data)
            with pytest.raises(InputError, match=message):
                load(tmp_path / "trick.zip")
    assert sorted(os.listdir(tmp_path)) == ["model.zip", "trick.zip"]
    (tmp_path / "trick.zip").write_bytes(zip_of(good))
    assert_same(scorer(), load(tmp_path / "trick.zip"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, saved as "model" and as "file.zip", for tests that damage it many times."""
    place = tmp_path_factory.mktemp("persistence")
    for name in ("model", "file.zip"):
        save(classifier(units="mean", n_hidden=2), place / name)
    return place


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["model/config.json", "model/model.safetensors", "file.zip"]), st.data())
def test_damage_is_noticed_or_harmless(folder: Path, member: str, data: st.DataObject) -> None:
    whole = (folder / member).read_bytes()
    content = bytearray(whole)
    position = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
    if kind == "flip":
        content[position] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del content[position:]
    elif kind == "remove":
        del content[position]
    else:
        content[position:position] = data.draw(st.binary(min_size=1, max_size=5))
    (folder / member).write_bytes(content)
    loaded = load_or_one_line(folder / member.partition("/")[0])
    (folder / member).write_bytes(whole)
    if loaded is not None:
        assert_same(classifier(units="mean", n_hidden=2), loaded)


def load_or_one_line(target: Path) -> Any:
    try:
        return load(target)
    except InputError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return None


LEAVES = st.none() | st.booleans() | st.integers(-3, 50) | st.floats(-1, 50) | st.text(max_size=5)
TAGS = st.sampled_from(["$float", "$tuple", "$dict", "$scaler", "$scalar", "$array", "$tensor", "$function", "offset"])
FORGED = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TAGS, inner, max_size=2))


@settings(deadline=None, max_examples=200)
@given(FORGED, st.data())
def test_a_forged_configuration_raises_no_other_error(folder: Path, value: Any, data: st.DataObject) -> None:
    file = folder / "model" / "config.json"
    whole = file.read_bytes()
    config = parse(whole)
    entry: Any = config
    while True:
        keys = list(entry) if isinstance(entry, dict) else list(range(len(entry)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(entry[key], dict | list) or not entry[key] or data.draw(st.booleans()):
            break
        entry = entry[key]
    entry[key] = value
    if key != "sha256":
        config["sha256"] = _checksum(config)
    file.write_bytes(dump(config))
    load_or_one_line(folder / "model")
    file.write_bytes(whole)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 600), st.binary(min_size=1, max_size=4))
def test_forged_weights_raise_no_other_error(folder: Path, position: int, junk: bytes) -> None:
    files = folder / "model" / "config.json", folder / "model" / "model.safetensors"
    whole = [file.read_bytes() for file in files]
    data = whole[1][:position] + junk + whole[1][position + len(junk) :]
    files[1].write_bytes(data)
    change(folder / "model", weights={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    load_or_one_line(folder / "model")
    for file, content in zip(files, whole, strict=True):
        file.write_bytes(content)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float8_e5m2])
def test_arrays_of_other_dtypes_are_refused(dtype, tmp_path: Path) -> None:
    model = classifier(units="mean", n_hidden=2)
    save(model, tmp_path / "model")
    tensors = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    data = safetensors.torch.save({**tensors, "fitted.liking_": torch.zeros(3).to(dtype)})
    (tmp_path / "model" / "model.safetensors").write_bytes(data)
    fitted = parse((tmp_path / "model" / "config.json").read_bytes())["fitted"]
    change(
        tmp_path / "model",
        weights={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        fitted={**fitted, "liking_": {"$tensor": "fitted.liking_"}},
    )
    with pytest.raises(InputError, match=r"`liking_` in config.json cannot be read"):
        load(tmp_path / "model")


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(classifier(), tmp_path / "model.zip")
    before = outputs(classifier())

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler", "dump", "dumps", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(np, "load", refuse)
    for one, two in zip(before, outputs(load(tmp_path / "model.zip")), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_code_has_no_way_to_unpickle() -> None:
    banned = {"pickle", "joblib", "cloudpickle", "dill", "marshal", "shelve", "eval", "exec", "compile", "__import__"}
    loaders = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("np", "save"), ("torch", "save")}
    names: set[str] = set()
    for path in Path(energate.persistence.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {part for alias in node.names for part in alias.name.split(".")}
                names |= set((getattr(node, "module", "") or "").split("."))
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id != "re":
                names.add(node.attr)
                assert (node.value.id, node.attr) not in loaders
    assert {"safetensors", "hashlib", "zipfile"} <= names
    assert not names & banned


# --- places ------------------------------------------------------------------------------------------------------


def test_paths_may_be_text_relative_and_in_any_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = scorer()
    for name in ("plain", "slash/", "./dot.ZIP", "\u00fcn\u00ef \u2603", "with space.zip", "[a-z]*"):
        for _ in range(2):
            save(model, name)
        assert_same(model, load(name))
    assert sorted(os.listdir()) == sorted(
        ["plain", "slash", "dot.ZIP", "\u00fcn\u00ef \u2603", "with space.zip", "[a-z]*"]
    )
    assert Path("dot.ZIP").is_file()


@pytest.mark.parametrize("path", [None, 3, b"model", "", ".", "/", "a\0b", "n" * 300])
def test_what_names_no_place_is_refused(path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        save(scorer(), path)
    with pytest.raises(InputError):
        load(path)
    assert os.listdir() == []


def test_a_model_can_be_loaded_from_within_its_folder_but_not_replaced(saved: Path, monkeypatch) -> None:
    monkeypatch.chdir(saved)
    assert_same(scorer(), load("."))
    with pytest.raises(InputError, match="current folder"):
        save(scorer(1), ".")
    assert_same(scorer(), load("."))


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
def test_who_may_read_a_model_stays_the_same(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    save(scorer(), tmp_path / "file.zip")
    (tmp_path / "file.zip").chmod(0o640)
    for name, mode in (("folder", 0o700), ("file.zip", 0o640)):
        for _ in range(2):
            save(scorer(), tmp_path / name)
            assert (tmp_path / name).stat().st_mode & 0o777 == mode


def test_the_folder_above_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no folder .*missing. Make it first"):
        save(scorer(), "missing/model")
    with pytest.raises(InputError, match="`~` is not expanded"):
        save(scorer(), "~/model")
    assert os.listdir() == []


def test_a_folder_that_may_not_be_written_to(request: pytest.FixtureRequest) -> None:
    with tempfile.TemporaryDirectory() as place:
        save(scorer(), f"{place}/old")
        os.chmod(place, 0o555)
        root = os.geteuid() == 0
        if root:  # whom no mode stops
            os.seteuid(65534)
        try:
            for name in ("old", "new", "new.zip"):
                with pytest.raises(InputError, match="cannot be written: Permission denied"):
                    save(scorer(1), f"{place}/{name}")
            assert_same(scorer(), load(f"{place}/old"))
        finally:
            if root:
                os.seteuid(0)
            os.chmod(place, 0o755)
        assert os.listdir(place) == ["old"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_replaced_by_one_of_another_type(name, tmp_path: Path) -> None:
    for model in (scorer(), classifier(), scorer(1)):
        save(model, tmp_path / name)
        assert_same(model, load(tmp_path / name))
    assert os.listdir(tmp_path) == [name]


def test_an_empty_folder_is_filled_and_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for model in (scorer(), scorer(1)):
        save(model, tmp_path / "link")
        assert_same(model, load(tmp_path / "real"))
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_what_is_no_model_is_not_overwritten(tmp_path: Path) -> None:
    save(scorer(), tmp_path / "more")
    (tmp_path / "more" / "notes.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"format": "something else"}')
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "text.zip").write_text("mine")
    (tmp_path / "other.zip").write_bytes(zip_of([("a.txt", b"mine")]))
    (tmp_path / "folder.zip").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    messages = {
        "more": "also holds 'notes.txt'",
        "other": "not an energate model",
        "damaged": "not an energate model",
        "file": "it is a file, not a folder",
        "text.zip": "not an energate model",
        "other.zip": "not an energate model",
        "folder.zip": "it is a folder, not a zip file",
    }
    for name, message in messages.items():
        with pytest.raises(InputError, match=f"{name} is not overwritten: .*{message}"):
            save(scorer(1), tmp_path / name)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert (tmp_path / "folder.zip").is_dir()


# --- saves that are interrupted ----------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["one step", "two steps"])  # whether two folders can swap names at once
def _swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(_store, "_exchange", lambda first, second: False)
    elif sys.platform != "linux":
        pytest.skip("no renameat2")


@pytest.mark.usefixtures("_swap")
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_the_old_model(name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(scorer(), tmp_path / name)
    last = "fsync", 1 if name.endswith("zip") else 3  # of the folder above: the new model is in place already
    for function in ("mkdir", "fsync", "rename", "replace"):
        failed, at = True, 0
        while failed:
            with monkeypatch.context() as patch:
                patch.setattr(os, function, fails_once(getattr(os, function), at))
                failed = not saves(scorer(1), tmp_path / name)
            placed = not failed or (function, at) == last
            assert_same(scorer(1) if placed else scorer(), load(tmp_path / name))
            assert os.listdir(tmp_path) == [name]
            save(scorer(), tmp_path / name)
            at += 1


def fails_once(real: Any, at: int) -> Any:
    calls = iter(range(100))

    def fail(*arguments: Any, **keywords: Any) -> Any:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **keywords)

    return fail


def saves(model: Any, place: Path) -> bool:
    try:
        save(model, place)
    except OSError as error:
        found = error.errno
    else:
        return True
    assert found == errno.ENOSPC
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
def test_a_file_that_cannot_grow_leaves_the_old_model(tmp_path: Path) -> None:
    import resource

    model = classifier(n_hidden=300)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in NAMES:
        save(scorer(), tmp_path / name)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                save(model, tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert_same(scorer(), load(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)


@pytest.mark.usefixtures("_swap")
def test_models_can_be_loaded_while_others_are_saved(tmp_path: Path) -> None:
    models, done, errors = [scorer(0), scorer(1)], threading.Event(), []
    expected = [model.score_samples(X[:5]).tolist() for model in models]
    save(models[0], tmp_path / "model")

    def keep_saving() -> None:
        try:
            while not done.is_set():
                for model in reversed(models):
                    save(model, tmp_path / "model")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=keep_saving) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            assert load(tmp_path / "model").score_samples(X[:5]).tolist() in expected
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert os.listdir(tmp_path) == ["model"]


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
import numpy as np
from energate import EnergyScorer, load, save
from energate.persistence import _store

place = sys.argv[1]
X = np.random.RandomState(0).randn(60, 3)
models = [EnergyScorer("mean", n_hidden=200, max_epochs=1, random_state=seed).fit(X) for seed in range(2)]
expected = [model.score_samples(X).tolist() for model in models]
watched = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir"}


def kill_at(moment):
    # At the start of the n-th thing done to the file system.
    def hook(event, arguments):
        nonlocal moment
        if event in watched:
            moment -= 1
            if moment < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)


def killed_save(target, at, after):
    child = os.fork()
    if child == 0:
        if at is not None:
            kill_at(at)
            save(models[1], target)
            os._exit(0)
        while True:
            save(models[1], target)
            save(models[0], target)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def check(target, new):
    found = load(target).score_samples(X).tolist()
    assert found in expected, "another model"
    new.add(expected.index(found))
    save(models[0], target)
    assert load(target).score_samples(X).tolist() == expected[0], "not saved"
    assert os.listdir(place) == [os.path.basename(target)], os.listdir(place)


random.seed(0)
for name in ("model", "model.zip", "two steps"):
    if name == "two steps":
        _store._exchange = lambda first, second: False
    target, new, moment = os.path.join(place, name), set(), 0
    save(models[0], target)
    while killed_save(target, moment, None):
        check(target, new)
        moment += 1
    assert moment > 5, moment
    assert new == {0, 1}, "never killed before, or never after, the step that counts"
    save(models[0], target)
    for _ in range(6):
        assert killed_save(target, None, random.uniform(0, 0.03))
        check(target, new)
    print(name, moment, "moments")
    _store._remove(_store.resolve(target))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and SIGKILL")
def test_a_killed_save_leaves_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("moments") == 3


def test_what_killed_saves_leave_is_cleaned_and_nothing_else(tmp_path: Path) -> None:
    save(scorer(), tmp_path / "a")
    others = [".a.b.0123456789abcdef.energate-tmp", ".a.energate-tmp", ".a.xyz.energate-tmp", ".b.energate-old"]
    for name in [*others, ".a.0123456789abcdef.energate-tmp", ".a.energate-old"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{")
    (tmp_path / ".a.00000000aaaaaaaa.energate-tmp").write_text("half a zip file")
    save(scorer(1), tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "a"])


def test_a_folder_that_was_set_aside_is_found(tmp_path: Path) -> None:
    save(scorer(), tmp_path / "model")
    os.rename(tmp_path / "model", tmp_path / ".model.energate-old")
    assert_same(scorer(), load(tmp_path / "model"))
    model = pickle.loads(pickle.dumps(scorer())).set_params(n_hidden=3)
    with pytest.raises(InputError):
        save(model, tmp_path / "model")
    assert_same(scorer(), load(tmp_path / "model"))
    save(scorer(1), tmp_path / "model")
    assert_same(scorer(1), load(tmp_path / "model"))
    assert os.listdir(tmp_path) == ["model"]


def test_images_of_an_older_schema_were_told_apart_and_no_more(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).random((30, 64)), np.arange(30) % 3
    before: dict[str, Any] = {"denoising_weight": 0.0, "skip": 0.0, "scaling": "unit", "max_epochs": 1}
    model = ImageEnergyClassifier(n_hidden=3, channels=8, n_blocks=0, random_state=0, device="cpu", **before).fit(X, y)
    save(model, tmp_path / "model")
    config = parse((tmp_path / "model" / "config.json").read_bytes())
    later = {
        *(name for added in ImageEnergyClassifier._ADDED.values() for name in added),
        *(name for found in ImageEnergyClassifier._FITTED_LATER.values() for name in found),
    }
    parts = {
        part: {name: value for name, value in config[part].items() if name not in later}
        for part in ("parameters", "fitted")
    }
    assert sum(map(len, parts.values())) == len(config["parameters"]) + len(config["fitted"]) - len(later)
    change(tmp_path / "model", **parts, schema=3)
    older = load(tmp_path / "model")
    assert older.denoising_weight == older.skip == 0
    np.testing.assert_allclose(older.energies(X), model.energies(X), rtol=1e-6, atol=1e-8)
    mask = np.arange(64) < 20
    assert older.inpaint(X, mask.reshape(8, 8)).shape == X.shape  # from the middle of the range
    save(older, tmp_path / "again")
    np.testing.assert_allclose(load(tmp_path / "again").energies(X), model.energies(X), rtol=1e-6, atol=1e-8)


def test_images_of_the_schema_before_have_no_shared_energy(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).random((30, 64)), np.arange(30) % 3
    model = ImageEnergyClassifier(
        n_hidden=3, channels=8, n_blocks=0, denoising_weight=0.0, skip=0.9, max_epochs=1, random_state=0, device="cpu"
    ).fit(X, y)
    save(model, tmp_path / "model")
    parameters = parse((tmp_path / "model" / "config.json").read_bytes())["parameters"]
    del parameters["shared_channels"]
    change(tmp_path / "model", parameters={**parameters, "denoising_weight": 30.0, "level_told": False}, schema=5)
    older = load(tmp_path / "model")
    assert older.shared_channels == 0
    np.testing.assert_allclose(older.energies(X), model.energies(X), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(older.denoise(X), model.denoise(X))
    assert older.sample(2).shape == (2, 64)
    change(tmp_path / "model", parameters={**parameters, "level_told": True}, schema=5)
    with pytest.raises(InputError, match="has level_told=True, which is no longer there"):
        load(tmp_path / "model")


@pytest.mark.parametrize("symmetry", [None, "turns and mirrors", "circle"])
def test_images_come_back_with_all_that_they_can(tmp_path: Path, symmetry: str | None) -> None:
    X, y = np.random.default_rng(0).random((30, 8, 8, 2)), np.arange(30) % 3
    sizes: dict[str, Any] = {"n_hidden": 3, "channels": 8, "n_blocks": 0, "shared_channels": 4}
    model = ImageEnergyClassifier(symmetry=symmetry, max_epochs=1, random_state=0, device="cpu", **sizes)
    save(model.fit(X, y), tmp_path / "model.zip")
    again = load(tmp_path / "model.zip")
    mask = np.eye(8, dtype=bool)
    for ask in (
        lambda m: m.energies(X),
        lambda m: m.denoise(X),
        lambda m: m.inpaint(X[:3], mask),
        lambda m: m.sample(2),
    ):
        np.testing.assert_array_equal(ask(again), ask(model))
