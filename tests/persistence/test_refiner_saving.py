"""Refiners on disk: with a base of ours, one that is given again, one that skops wrote, and none."""

import functools
import importlib
import io
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from cases import QUICK_REFINER as QUICK
from cases import labelled_rows as rows
from cases import logistic
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from test_persistence import FORGED, NAMES, change, load_or_one_line, read

from energate import EnergyRefiner, EnergyScorer, InputError, LabelMLP, load, save
from energate.errors import MissingExtraError
from energate.paper.baselines import svm_labels
from energate.persistence import _moved
from energate.persistence.config import checksum, seal
from energate.persistence.values import dump, parse

X, Y = rows(200)
SUBSET: dict[str, Any] = {**QUICK, "objective": "subset", "cv": 2}
SMALL: dict[str, Any] = {"n_hidden": 4, "n_layers": 1, "n_members": 2, "max_epochs": 3, "device": "cpu"}
TREE = "sklearn.tree._tree.Tree"


@functools.cache
def refiner(kind: str, relation: str = "yy", method: str = "sets") -> EnergyRefiner:
    """A fitted refiner, over a base of a kind, that does refine."""
    bases = {"ours": LabelMLP(**SMALL), "logistic": logistic(), "forest": RandomForestClassifier(5, random_state=0)}
    model = EnergyRefiner(bases[kind], relation, method=method, **SUBSET).fit(X, Y)
    model._set(0.75 if method == "sets" else 3)  # whatever these few rows say
    return model


def assert_same(model: EnergyRefiner, other: EnergyRefiner, rows: Any = X, labels: Any = Y) -> None:
    """The same parameters, fitted values and, bit for bit, results."""
    assert type(other) is EnergyRefiner
    mine, its = ({**each.get_params(deep=False), "base": repr(each.base)} for each in (model, other))
    assert mine == its
    assert (model.gain_, model.verdict_, model.multilabel_) == (other.gain_, other.verdict_, other.multilabel_)
    assert (model.gate_, model.n_steps_, model.n_sets_) == (other.gate_, other.n_steps_, other.n_sets_)
    assert type(model.classes_) is type(other.classes_)
    np.testing.assert_array_equal(model.classes_, other.classes_)
    for method, arguments in {"predict": [rows], "predict_proba": [rows], "label_energy": [rows, labels]}.items():
        np.testing.assert_array_equal(getattr(model, method)(*arguments), getattr(other, method)(*arguments))


def reforge(place: Path, **entries: Any) -> None:
    """Other entries in the base's part of a saved folder, under a checksum that fits."""
    config = parse((place / "config.json").read_bytes())
    change(place, base={**config["base"], **entries})


# --- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["sets", "ascent"])
@pytest.mark.parametrize("relation", ["yy", "xy"])
@pytest.mark.parametrize("kind", ["ours", "logistic"])
def test_a_loaded_refiner_is_the_saved_one(kind: str, relation: str, method: str, name: str, tmp_path: Path) -> None:
    model = refiner(kind, relation, method)
    save(model, tmp_path / name)
    loaded = load(tmp_path / name) if kind == "ours" else load(tmp_path / name, base=model.base_)
    assert_same(model, loaded)
    assert sorted(read(tmp_path / name)) == ["config.json", "model.safetensors"]
    save(loaded, tmp_path / f"again-{name}")
    assert read(tmp_path / f"again-{name}") == read(tmp_path / name)


def test_the_default_base_goes_with_it(tmp_path: Path) -> None:
    model = EnergyRefiner(**SUBSET).fit(X[:60], Y[:60])
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.base is None
    assert type(loaded.base_) is LabelMLP
    assert loaded.base_.device == "cpu"
    assert_same(model, loaded)


def test_a_base_that_was_fitted_before_stays_the_parameter(tmp_path: Path) -> None:
    base = LabelMLP(**SMALL, random_state=0).fit(X[:100], Y[:100])
    model = EnergyRefiner(base, prefit=True, **SUBSET).fit(X[100:], Y[100:])
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.base is loaded.base_
    assert_same(model, loaded)
    assert_same(loaded.fit(X[100:], Y[100:]), model)  # it can be used as before


def test_a_loaded_refiner_is_fitted_again_as_the_saved_one(tmp_path: Path) -> None:
    model = refiner("ours")
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.base is not loaded.base_
    assert "model_" not in vars(loaded.base)
    again = EnergyRefiner(LabelMLP(**SMALL, random_state=0), **SUBSET)
    loaded.base.random_state = 0
    np.testing.assert_allclose(
        loaded.fit(X, Y).predict_proba(X), again.fit(X, Y).predict_proba(X), rtol=1e-6, atol=1e-8
    )


def test_classes_of_a_single_column_and_labels_that_never_change(tmp_path: Path) -> None:
    names = np.array(["low", "middle", "high \u2603"])[Y[:, 0] + Y[:, 1]]
    model = EnergyRefiner(LabelMLP(**SMALL), **SUBSET).fit(X, names)
    save(model, tmp_path / "classes")
    assert_same(model, load(tmp_path / "classes"), labels=names)
    some = np.hstack([Y, np.ones((200, 1), int)])
    model = EnergyRefiner(LabelMLP(**SMALL), **SUBSET).fit(X, some)
    save(model, tmp_path / "some")
    assert_same(model, load(tmp_path / "some"), labels=some)
    nothing = EnergyRefiner(logistic(), **SUBSET).fit(X, some[:, 5:])
    save(nothing, tmp_path / "nothing", with_base=True)
    loaded = load(tmp_path / "nothing")
    assert loaded.base_ is None
    np.testing.assert_allclose(loaded.predict_proba(X), nothing.predict_proba(X), rtol=1e-6, atol=1e-8)
    with pytest.raises(InputError, match="without its base, a MultiOutputClassifier"):
        loaded.fit(X, Y)
    with pytest.raises(InputError, match="needs no `base`: it has no base"):
        load(tmp_path / "nothing", base=logistic())


# --- a base that is not ours -------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    save(refiner("logistic"), tmp_path / "model")
    return tmp_path / "model"


def test_a_base_that_is_not_in_the_files_is_asked_for(foreign: Path) -> None:
    with pytest.raises(InputError, match=r"a MultiOutputClassifier, which is not in the files\. Give it: load\("):
        load(foreign)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (LogisticRegression(), "must be the MultiOutputClassifier that .* was fitted on; got a LogisticRegression"),
        (logistic(), "cannot be the MultiOutputClassifier .*not fitted"),
        (
            logistic().fit(X, Y[:, :4]),
            r"cannot be .*must give one finite score per row and label, \(n, 5\); ",
        ),
        (logistic().fit(X[:, :3], Y), "cannot be the MultiOutputClassifier .*3 features"),
    ],
)
def test_another_base_is_refused(base: Any, message: str, foreign: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(foreign, base=base)
    assert "\n" not in str(caught.value)


def test_a_base_that_is_not_needed_is_refused(tmp_path: Path) -> None:
    save(refiner("ours"), tmp_path / "ours")
    save(EnergyScorer(max_epochs=1).fit(X), tmp_path / "scorer")
    for name, message in {"ours": "its base is in the files", "scorer": "it has no base"}.items():
        for base in (logistic(), None):
            with pytest.raises(InputError, match=f"needs no `base`: {message}"):
                load(tmp_path / name, base=base)
        with pytest.raises(InputError, match=r"has no base\.skops, so there is nothing to trust"):
            load(tmp_path / name, trusted=[])
    with pytest.raises(InputError, match="not with a function"):
        load(tmp_path / "ours", units=lambda *_: None)
    with pytest.raises(InputError, match="`with_base` is for a model over a base; got a EnergyScorer"):
        save(load(tmp_path / "scorer"), tmp_path / "scorer", with_base=True)


def test_without_its_base_a_refiner_refines_scores(foreign: Path) -> None:
    model, loaded = refiner("logistic"), load(foreign, base=None)
    scores = model._scores(X)
    for mine, its in zip(model.refine(scores, X), loaded.refine(scores, X), strict=True):
        np.testing.assert_array_equal(mine, its)
    missing = r"loaded without its base, a MultiOutputClassifier\. Load it with load\(path, base="
    for method, arguments in {"predict": [X], "predict_proba": [X], "label_energy": [X, Y], "fit": [X, Y]}.items():
        with pytest.raises(InputError, match=missing):
            getattr(load(foreign, base=None), method)(*arguments)
    save(loaded, foreign)  # still knows what it lacks
    assert_same(model, load(foreign, base=model.base_))
    with pytest.raises(InputError, match="with_base=True needs the base, a MultiOutputClassifier"):
        save(loaded, foreign, with_base=True)


# --- a base that skops wrote -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "types"), [("logistic", []), ("forest", [TREE])])
def test_a_base_in_the_files_is_read_on_trust(kind: str, types: list[str], name: str, tmp_path: Path) -> None:
    pytest.importorskip("skops")
    model = refiner(kind)
    save(model, tmp_path / name, with_base=True)
    assert sorted(read(tmp_path / name)) == ["base.skops", "config.json", "model.safetensors"]
    with pytest.raises(InputError, match=r"trusted=\[.*\]") as told:
        load(tmp_path / name)
    asked = [each for each in types if each in str(told.value)]  # some versions of skops trust trees by themselves
    assert f"trusted={asked}" in str(told.value)
    if asked:
        with pytest.raises(InputError, match=re.escape(f"trusted={asked}")):
            load(tmp_path / name, trusted=["os.system"])
    assert_same(model, load(tmp_path / name, trusted=asked))
    assert_same(model, load(tmp_path / name, base=model.base_))
    assert load(tmp_path / name, base=None).n_sets_ == model.n_sets_
    with pytest.raises(InputError, match="`trusted` must be a list of names of types"):
        load(tmp_path / name, trusted="all")
    save(refiner("ours"), tmp_path / name)  # the third file goes with the model that had it
    assert sorted(read(tmp_path / name)) == ["config.json", "model.safetensors"]
    assert os.listdir(tmp_path) == [name]


def test_a_damaged_base_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("skops")
    save(refiner("logistic"), tmp_path / "model", with_base=True)
    file = tmp_path / "model" / "base.skops"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match=r"base\.skops is not what was saved"):
        load(tmp_path / "model", trusted=[])
    file.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"base\.skops has \d+ bytes and should have"):
        load(tmp_path / "model", trusted=[])
    file.write_bytes(b"junk")
    reforge(tmp_path / "model", file=seal(b"junk"))
    with pytest.raises(InputError, match=r"base\.skops cannot be read"):
        load(tmp_path / "model", trusted=[])
    file.unlink()
    with pytest.raises(InputError, match=r"has no base\.skops"):
        load(tmp_path / "model", trusted=[])


def test_a_zip_file_holds_what_its_configuration_says(tmp_path: Path) -> None:
    pytest.importorskip("skops")
    save(refiner("logistic"), tmp_path / "with.zip", with_base=True)
    save(refiner("logistic"), tmp_path / "without.zip")
    parts, other = read(tmp_path / "with.zip"), read(tmp_path / "without.zip")
    for members in ({**other, "base.skops": parts.pop("base.skops")}, parts):
        with zipfile.ZipFile(tmp_path / "trick.zip", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        with pytest.raises(InputError, match="nothing else"):
            load(tmp_path / "trick.zip", base=refiner("logistic").base_)


def test_skops_is_an_extra_and_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skops")
    model = refiner("logistic")
    save(model, tmp_path / "model", with_base=True)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "skops.io", None)
        with pytest.raises(MissingExtraError, match=r"energate\[skops\]"):
            load(tmp_path / "model", trusted=[])
        with pytest.raises(MissingExtraError, match=r"energate\[skops\]"):
            save(model, tmp_path / "model", with_base=True)
        assert_same(model, load(tmp_path / "model", base=model.base_))
    monkeypatch.setattr("skops.io.dumps", lambda _: 1 / 0)
    with pytest.raises(InputError, match="skops cannot save the base, a MultiOutputClassifier"):
        save(model, tmp_path / "model", with_base=True)
    assert_same(model, load(tmp_path / "model", trusted=[]))


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refiners") / "model"
    save(refiner("ours"), place)
    return place


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(refiner("ours"), tmp_path / "model")
    return tmp_path / "model"


def nested(place: Path) -> dict[str, Any]:
    base: dict[str, Any] = parse((place / "config.json").read_bytes())["base"]
    return base


def test_a_base_that_was_edited_is_refused(saved: Path) -> None:
    text = (saved / "config.json").read_text()
    assert text.count('"n_members": 2') == 1
    (saved / "config.json").write_text(text.replace('"n_members": 2', '"n_members": 3'))
    with pytest.raises(InputError, match=r"config\.json is not what was saved"):
        load(saved)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"estimator": "EnergyScorer"}, "parameters of EnergyScorer .*unknown: dropout"),
        ({"estimator": "os.system"}, "lacks something"),
        ({"dtype": "float16"}, "lacks something"),
        ({"dtype": "float32"}, "weights .* do not fit"),
        ({"parameters": None}, "lacks something"),
        ({"parameters": {}}, "parameters of LabelMLP .*missing: batch_size"),
        ({"fitted": {}}, "values of LabelMLP .*missing: classes_"),
        ({"base": None}, "lacks something"),
        ({"class": 3}, "lacks something"),
        ({"class": "LabelMLP", "file": {"size": "1"}}, "lacks something"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(entries: dict[str, Any], message: str, saved: Path) -> None:
    reforge(saved, **entries)
    with pytest.raises(InputError, match=message) as caught:
        load(saved)
    assert "\n" not in str(caught.value)


def test_weights_of_the_base_must_fit_it(saved: Path) -> None:
    base = nested(saved)
    reforge(saved, parameters={**base["parameters"], "n_hidden": 5})
    with pytest.raises(InputError, match=r"do not fit the model .*expected"):
        load(saved)
    reforge(saved, parameters=base["parameters"])
    assert_same(refiner("ours"), load(saved))
    whole = safetensors.torch.load_file(saved / "model.safetensors")
    name = next(name for name in whole if name.startswith("base.model."))
    fewer = {key: value for key, value in whole.items() if key != name}
    more = {**whole, "base.model.more": whole[name].clone()}
    for tensors, message in ((fewer, "is missing, expected"), (more, "expected nothing")):
        data = safetensors.torch.save(tensors)
        (saved / "model.safetensors").write_bytes(data)
        change(saved, weights=seal(data))
        with pytest.raises(InputError, match=message):
            load(saved)


@pytest.mark.parametrize("base", [None, {"class": "LabelMLP", "file": None}])
def test_weights_of_a_base_that_is_not_there_are_refused(base: Any, saved: Path) -> None:
    change(saved, base=base)
    with pytest.raises(InputError, match="expected nothing"):
        load(saved, **({} if base is None else {"base": None}))


@settings(deadline=None, max_examples=150)
@given(FORGED, st.data())
def test_a_forged_refiner_raises_no_other_error(folder: Path, value: Any, data: st.DataObject) -> None:
    file = folder / "config.json"
    whole = file.read_bytes()
    config = parse(whole)
    entry: Any = config[data.draw(st.sampled_from(["base", "fitted", "parameters"]))]
    while True:
        keys = list(entry) if isinstance(entry, dict) else list(range(len(entry)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(entry[key], dict | list) or not entry[key] or data.draw(st.booleans()):
            break
        entry = entry[key]
    entry[key] = value
    config["sha256"] = checksum(config)
    file.write_bytes(dump(config))
    load_or_one_line(folder)
    file.write_bytes(whole)


# --- classes that have moved -------------------------------------------------------------------------------------


def under_old_names(data: bytes) -> bytes:
    """What skops wrote, as the version before wrote it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w") as old:
        for info in archive.infolist():
            content = archive.read(info)
            for now, before in (("energate.paper.baselines.svms", "energate.baselines._svmlabels"),):
                content = content.replace(now.encode(), before.encode())
            old.writestr(info, content)
    return buffer.getvalue()


def test_a_base_that_was_saved_under_another_name_still_loads(tmp_path: Path) -> None:
    pytest.importorskip("skops")
    model = EnergyRefiner(svm_labels(random_state=0), **SUBSET).fit(X, Y)
    save(model, tmp_path / "model", with_base=True)
    base = under_old_names((tmp_path / "model" / "base.skops").read_bytes())
    assert b"energate.baselines._svmlabels" in zipfile.ZipFile(io.BytesIO(base)).read("schema.json")
    (tmp_path / "model" / "base.skops").write_bytes(base)
    config = parse((tmp_path / "model" / "config.json").read_bytes())
    change(tmp_path / "model", base={**config["base"], "file": seal(base)})
    with pytest.raises(InputError, match="only if you trust") as caught:
        load(tmp_path / "model")
    asked = re.findall(r"'([^']+)'", str(caught.value).partition("trusted=")[2].partition("]")[0])
    loaded = load(tmp_path / "model", trusted=asked)
    np.testing.assert_allclose(loaded.predict_proba(X), model.predict_proba(X), rtol=1e-9)
    old = [name.replace("paper.baselines.svms", "baselines._svmlabels") for name in asked]
    assert old != asked
    load(tmp_path / "model", trusted=old)  # a list that somebody wrote down before


def test_every_class_that_moved_is_found_under_its_new_name() -> None:
    for module in _moved.MODULES.values():
        importlib.import_module(module)
    for name in _moved.CLASSES.values():
        module, _, last = name.rpartition(".")
        assert getattr(importlib.import_module(module), last).__name__ == last
    assert _moved.new_name("sklearn.svm.SVC") == "sklearn.svm.SVC"
