"""A short run of benchmarks/chaos/archives.py, which says what is promised; `make chaos` has the long one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energate import EnergyClassifier, InputError, LabelMLP, load, save
from energate.persistence import _store
from energate.persistence.config import checksum
from energate.persistence.values import decode, dump, encode, parse

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos" / "archives.py"
X = np.random.default_rng(0).normal(size=(60, 4))
Y = np.arange(60) % 3
QUICK: dict[str, Any] = {"max_epochs": 1, "random_state": 0}


@pytest.mark.slow  # it imports torch
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, SIGKILL and /proc")
def test_damaged_forged_and_interrupted_files(tmp_path: Path) -> None:
    few = ["--count", "180", "--kills", "12", "--disks", "4", "--results", str(tmp_path / "found.jsonl")]
    ended = subprocess.run([sys.executable, SCRIPT, *few], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    line = json.loads((tmp_path / "found.jsonl").read_text())
    files, kills, disks = (part["ends"] for part in line["parts"])
    assert line["wrong"] == 0
    assert sum(files.values()) == 180
    assert all(f"{kind}, refused" in files for kind in ("damage", "zip trick", "absurd size", "forged configuration"))
    assert sum(count for name, count in kills.items() if name.endswith(" model")) == 12
    assert any(name.startswith("files that cannot grow, ") for name in disks)


# --- sizes that are only claimed ---------------------------------------------------------------------------------


def forge(place: Path, part: str, name: str, value: Any) -> None:
    config = parse((place / "config.json").read_bytes())
    assert name in config[part]
    config[part][name] = value
    config["sha256"] = checksum(config)
    (place / "config.json").write_bytes(dump(config))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("parameters", "n_hidden", 10**12),
        ("parameters", "depth", 10**12),
        ("fitted", "breadth_", 10**9),
        ("fitted", "n_features_in_", 10**9),
    ],
)
def test_a_size_that_the_weights_do_not_have_takes_no_memory(
    part: str, name: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(EnergyClassifier(n_members=2, breadth=8, **QUICK).fit(X, Y), tmp_path / "model")
    forge(tmp_path / "model", part, name, value)
    built = []
    real = EnergyClassifier._untrained

    def sketched(self: Any) -> Any:
        module = real(self)
        built.append({tensor.device.type for tensor in module.state_dict().values()})
        return module

    monkeypatch.setattr(EnergyClassifier, "_untrained", sketched)
    with pytest.raises(InputError, match=r"build no model|do not fit"):
        load(tmp_path / "model")
    assert built in ([], [{"meta"}])  # shapes, and no numbers


def test_more_layers_than_anybody_trains_are_refused(tmp_path: Path) -> None:
    model = LabelMLP(n_hidden=4, n_members=2, **QUICK).fit(X, Y)
    save(model, tmp_path / "model")
    forge(tmp_path / "model", "parameters", "n_layers", 10**12)
    with pytest.raises(InputError, match="`n_layers` must be a whole number from 0 to 1000"):
        load(tmp_path / "model")


def test_texts_take_as_much_as_the_longest() -> None:
    for texts in (["a", "b"], ["a" * 200, "b"], []):
        array = np.array(texts, dtype="<U300")
        back = decode(encode(array, "x"))
        assert back.tolist() == texts
        assert back.dtype.itemsize <= 4 * 200
    forged = {"$array": {"dtype": "<U500000000", "shape": [1], "values": ["a"]}}
    assert decode(forged).nbytes < 1000


def test_a_configuration_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = EnergyClassifier("memory", **QUICK).fit(X, Y)
    save(model, tmp_path / "model")
    monkeypatch.setattr(_store, "LARGEST_CONFIG", 1000)
    with pytest.raises(InputError, match="and at most 1000"):
        load(tmp_path / "model")
    with pytest.raises(InputError, match="may take 1000"):
        save(model, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_a_file_says_is_cut_in_messages(tmp_path: Path) -> None:
    save(EnergyClassifier("memory", **QUICK).fit(X, Y), tmp_path / "model")
    config = parse((tmp_path / "model" / "config.json").read_bytes())
    for entry in (
        {"schema": [0] * 5000},
        {"estimator": "x\n" * 5000},
        {"schema": 99, "versions": {"energate": "y" * 5000}},
    ):
        forged = {**config, **entry}
        forged["sha256"] = checksum(forged)
        (tmp_path / "model" / "config.json").write_bytes(dump(forged))
        with pytest.raises(InputError) as caught:
            load(tmp_path / "model")
        assert len(str(caught.value)) < 1000
        assert "\n" not in str(caught.value)
