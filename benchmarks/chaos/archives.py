"""Saved models that are damaged, forged, or being written when the process is killed.

*Files.*  A good model of every estimator is changed at random: bits, pieces and members of its files, tricks of zip
files, and, with checksums that fit, other values in its configuration and other bytes in its weights.  A process of its
own loads each.  It must end as a model or in one `InputError`; damage without a fitting checksum must end as the very
model that was saved, or be refused.  Each takes at most `SECONDS` and `ROOM`, and nothing is run, opened to write,
removed or looked up elsewhere meanwhile: `sys.addaudithook` hears of it.

*Saves.*  Processes that save one model and another in its place, alone or two at once, as a folder and as a zip file,
are killed at random moments; disks are full or read-only.  Afterwards the old or the new model loads, and the next save
leaves the model and nothing else.

    python benchmarks/chaos/archives.py [--count 10000] [--kills 300] [--seed 0]
"""

import argparse
import copy
import encodings.cp437  # noqa: F401  of old names in zip files, which Python imports when it meets one
import io
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _breaking import RESULTS, scarred, tell
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline

from energate import (
    EnergyClassifier,
    EnergyRefiner,
    EnergyScorer,
    ImageEnergyClassifier,
    InputError,
    LabelMLP,
    PairScorer,
    load,
    save,
)
from energate.estimators import TableEncoder
from energate.persistence.config import checksum, seal
from energate.persistence.values import dump, parse
from energate.tables import CategoryColumn, Columns, ImageColumn, NumberColumn

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SECONDS = 1.0  # of the processor, for a file that is refused
ROOM = 200 * 2**20  # bytes of address space that it may take
AT_ONCE = 250  # files for one process: what ends it takes no others with it
Members = dict[str, bytes]

X = np.random.default_rng(0).normal(size=(90, 4))
Y = np.arange(90) % 3
LABELS = np.stack([Y == 0, Y == 1, X[:, 0] > 0], 1).astype(int)


# --- good models -------------------------------------------------------------------------------------------------


def good_models() -> dict[str, Members]:
    """The files of a small model of every estimator, and of the ways to save more than a model."""
    quick: dict[str, Any] = {"max_epochs": 1, "random_state": 0, "device": "cpu"}
    columns = Columns((NumberColumn("size", 1.0), CategoryColumn("colour", ("blue", "red", None))), "classify", ("y",))
    table = columns.matrix({"size": X[:, 0], "colour": np.array(["blue", "red"])[Y // 2]})
    pictures = Columns((ImageColumn("picture", (2, 2, 1)),), "classify", ("y",), image=(2, 2))
    foreign = MultiOutputClassifier(LogisticRegression()).fit(X, LABELS)
    pipeline = make_pipeline(TableEncoder(), EnergyScorer("mean", n_hidden=2, **quick)).fit(X)
    words = np.array(["a", "b", "c" * 70])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training is too short, which is what training says of it
        named: dict[str, tuple[Any, dict[str, Any]]] = {
            "mean": (EnergyClassifier("mean", n_hidden=2, pretrain_epochs=1, **quick).fit(X, words[Y]), {}),
            "trunk": (EnergyClassifier(n_members=2, breadth=8, **quick).fit(X, Y), {}),
            "memory": (EnergyClassifier("memory", **quick).fit(X, Y), {}),
            "table": (
                EnergyClassifier("covariance", n_hidden=2, n_factors=3, pretrain_epochs=1, **quick).fit(table, Y),
                {"columns": columns},
            ),
            "scorer": (EnergyScorer(n_hidden=2, n_factors=3, **quick).fit(X), {}),
            "pairs": (PairScorer(n_hidden=2, n_factors=3, **quick).fit(X, X[:, :2]), {}),
            "images": (ImageEnergyClassifier(channels=8, n_blocks=1, **quick).fit(X, Y), {"columns": pictures}),
            "labels": (LabelMLP(n_hidden=4, n_members=2, **quick).fit(X, LABELS), {}),
            "refiner": (EnergyRefiner(LabelMLP(n_hidden=4, n_members=2, **quick), cv=2, **quick).fit(X, LABELS), {}),
            "skops": (EnergyRefiner(foreign, prefit=True, **quick).fit(X, LABELS), {"with_base": True}),
            "pipeline": (pipeline, {}),
        }
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, (model, more) in named.items():
            save(model, f"{place}/{name}", **more)
            found[name] = {file.name: file.read_bytes() for file in Path(place, name).iterdir()}
    return found


def zipped(members: Members | list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file, of names that may come twice."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compression) as archive:
        warnings.simplefilter("ignore")  # a name twice
        for name, data in members.items() if isinstance(members, dict) else members:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


# --- changes -----------------------------------------------------------------------------------------------------


class Changed(NamedTuple):
    """A file or a folder to load; if the checksums fit, another model may come of it."""

    kind: str
    content: bytes | Members
    fits: bool = False


#: how often, and how many bytes at once, files are damaged
TIMES, LENGTHS = (1, 1, 1, 2, 8), (1, 1, 4, 64)


def damaged(members: Members, rng: random.Random, _: list[Members]) -> Changed:
    if rng.random() < 0.5:
        return Changed("damage", scarred(zipped(members), rng, TIMES, LENGTHS))
    name = rng.choice(list(members))
    return Changed("damage", {**members, name: scarred(members[name], rng, TIMES, LENGTHS)})


def swapped(members: Members, rng: random.Random, others: list[Members]) -> Changed:
    """A member that is another's, is missing, is there twice, or has its neighbour's name."""
    name, other, found = rng.choice(list(members)), rng.choice(others), dict(members)
    match rng.randrange(4):
        case 0:
            found[name] = other.get(name, b"")
        case 1:
            del found[name]
        case 2:
            found[CONFIG], found[WEIGHTS] = found[WEIGHTS], found[CONFIG]
        case _:
            found["base.skops"] = rng.choice(list(other.values()))
    return Changed("members", zipped(found) if rng.random() < 0.5 else found)


@cache
def bomb(name: str) -> bytes:
    """A zip file of two members, of which one is 300 MB of blanks; compressed it is small."""
    other = WEIGHTS if name == CONFIG else CONFIG
    return zipped({name: b" " * 300_000_000, other: b"{}"}, zipfile.ZIP_DEFLATED)


NAMES = ("../outside", "/tmp/outside", "a/../../outside", "..\\outside", CONFIG, "config.json\0.txt", "./config.json")


def trick(members: Members, rng: random.Random, _: list[Members]) -> Changed:
    """What zip files can do beside holding files."""
    pairs = list(members.items())
    match rng.randrange(6):
        case 0:  # more names, that lead elsewhere or come twice
            pairs.insert(rng.randrange(len(pairs) + 1), (rng.choice(NAMES), rng.choice(pairs)[1]))
            return Changed("zip trick", zipped(pairs))
        case 1:  # other names in place of the right ones
            place = rng.randrange(len(pairs))
            pairs[place] = rng.choice(NAMES), pairs[place][1]
            return Changed("zip trick", zipped(pairs))
        case 2:
            return Changed("zip trick", bomb(rng.choice(tuple(members))))
        case 3:  # compressed, and else right
            return Changed("zip trick", zipped(pairs, rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))))
        case 4:  # the directory says what is not so: sizes, places, flags, methods
            data = bytearray(zipped(pairs))
            mark, fields = rng.choice(
                ((b"PK\x01\x02", (8, 10, 16, 20, 24, 38, 42)), (b"PK\x03\x04", (6, 8, 14, 18, 22)))
            )
            at = data.find(mark) + rng.choice(fields)
            data[at : at + 2] = rng.choice((b"\xff\xff", b"\x00\x00", b"\x01\x00", rng.randbytes(2)))
            return Changed("zip trick", bytes(data))
        case _:  # the end of the file says what is not so
            data = bytearray(zipped(pairs))
            at = data.rfind(b"PK\x05\x06") + rng.choice((8, 10, 12, 16, 20))
            data[at : at + 2] = rng.choice((b"\xff\xff", b"\x00\x00", rng.randbytes(2)))
            return Changed("zip trick", bytes(data) + rng.randbytes(rng.choice((0, 0, 70_000))))


def deep(depth: int, inner: Any = 0, wrap: Callable[[Any], Any] = lambda value: [value]) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def array(dtype: Any, shape: Any, values: Any) -> Any:
    return {"$array": {"dtype": dtype, "shape": shape, "values": values}}


def hostile(rng: random.Random) -> Any:
    """A value that no save would write: absurd sizes, deep nesting, names of other modules, wrong types."""
    size = rng.choice((10**4, 10**6, 10**9, 10**12, 2**31, 2**63, 10**30, -1, -(10**9), 0))
    return rng.choice(
        (
            *(size, size, size, float(abs(size)), 1e308, -0.0, 0.5, str(size), None, True, "", "a" * 100_000, [], {}),
            *(deep(rng.choice((50, 300, 900)), size), deep(400, 0, lambda value: {"$tuple": [value]}), [size] * 3),
            *("os.system", "builtins.eval", "torch.nn.Linear", "subprocess.Popen", "__import__('os').abort()"),
            *("../../etc/passwd", "\0", "<script>", "mean-covariance", "trunk", "memory", "cuda:99", "meta"),
            *({"$function": "os.system"}, {"$class": "subprocess.Popen"}, {"$tensor": "model.W"}, {"$pickle": "gASVA"}),
            *(
                {"$float": rng.choice(("nan", "inf", "-inf", "1e9", 3))},
                {"$dict": [[[], 1]]},
                {"$dict": [[1]]},
                {"$": 0},
            ),
            *({"class": "os.system", "file": None}, {"size": size, "sha256": ""}, {"$scaler": {"offset": size}}),
            array(f"<U{rng.choice((10**6, 2 * 10**8, 5 * 10**8))}", [1], ["a"]),
            array(rng.choice(("<f8", "|O", "object", "O", "<M8[s]", "|V9", "f8,f8", size, None)), [2], [1, 2]),
            array("<f8", rng.choice(([size], [size, 0], [0] * 60, [1] * 70, [-1], "1", size)), []),
            array(
                "<f8", [3], rng.choice(([1, 2], ["a", "b", "c"], [[1], [2, 3], 4], [{}] * 3, [None] * 3, [1e308] * 3))
            ),
            {"$scalar": {"dtype": "<i8", "shape": [], "values": [size]}},
            {"$cells": {"fill": array("<f8", [1], [0]), "missing": size, "categories": {"$dict": [[size, size]]}}},
            {"$gain": [size, size]},
            {"inputs": [{"name": "x", "fill": 0.0}] * 3, "task": "classify", "targets": ["y"]},
        )
    )


def forged(members: Members, rng: random.Random, others: list[Members]) -> Changed:
    """Other values in the configuration, with a checksum that fits."""
    config = parse(members[CONFIG])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        entry: Any = config
        while True:
            key = rng.choice(list(entry) if isinstance(entry, dict) else range(len(entry)))
            if not isinstance(entry[key], dict | list) or not entry[key] or rng.random() < 0.25:
                break
            entry = entry[key]
        match rng.randrange(8):
            case 0 if isinstance(entry, dict):
                del entry[key]
            case 1 if isinstance(entry, dict):
                entry[rng.choice((str(key) + "x", "estimator", "base", "steps", "columns", "$array"))] = hostile(rng)
            case 2:  # what is there at another model
                entry[key] = copy.deepcopy(rng.choice(list(parse(rng.choice(others)[CONFIG]).values())))
            case _:
                entry[key] = hostile(rng)
        if not config:
            break
    return Changed("forged configuration", sealed({**members, CONFIG: dump(config)}, rng), fits=True)


#: entries that only ever mean a size; no file is large enough for these
SIZES = {
    *("n_features_in_", "n_hidden", "n_factors", "n_units_", "n_members", "breadth", "breadth_", "depth", "channels"),
    *("n_layers", "n_blocks", "n_halvings", "n_sets_", "shape_", "shape", "n_outputs_", "shared_channels"),
}


def absurd(members: Members, rng: random.Random, _: list[Members]) -> Changed:
    """A size, wherever one is, that would take more memory than there is."""
    config = parse(members[CONFIG])
    entries = [config, *(each for each in (config.get("base"),) if isinstance(each, dict) and "fitted" in each)]
    places = [(part, key) for entry in entries for part in (entry["parameters"], entry["fitted"]) for key in part]
    wanted = [(part, key) for part, key in places if key in SIZES] or places
    for part, key in rng.sample(wanted, rng.choice((1, 1, 2)) if len(wanted) > 1 else 1):
        size = rng.choice((10**5, 10**7, 10**9, 10**12))
        part[key] = {"$tuple": [size, size]} if "shape" in key else size
    return Changed("absurd size", sealed({**members, CONFIG: dump(config)}, rng), fits=True)


def forged_weights(members: Members, rng: random.Random, _: list[Members]) -> Changed:
    """Other bytes in the weights, or another header of them, with checksums that fit."""
    data = members[WEIGHTS]
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    name = rng.choice([key for key in header if key != "__metadata__"])
    match rng.randrange(5):
        case 0:
            data = scarred(data, rng, TIMES, LENGTHS)
        case 1:
            data = struct.pack("<Q", rng.choice((0, 1, 10**6, 2**40, 2**63, length - 1))) + data[8:]
        case 2:
            header[name]["shape"] = rng.choice(([10**9], [10**6, 10**6], [0], [], [-1], [2**63, 2], "x"))
        case 3:
            header[name]["dtype"] = rng.choice(("F64", "F32", "BF16", "I64", "U8", "BOOL", "F8_E5M2", "O", 3))
        case _:
            header[name]["data_offsets"] = rng.choice(([0, 10**12], [0, 0], [8, 0], [-1, 8], [0]))
    if data is members[WEIGHTS]:
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + data[8 + length :]
    config = parse(members[CONFIG])
    config["weights"] = seal(data)
    return Changed("forged weights", sealed({**members, CONFIG: dump(config), WEIGHTS: data}, rng), fits=True)


def forged_base(members: Members, rng: random.Random, _: list[Members]) -> Changed:
    """A base that skops did not write: a bomb, classes of other modules, deep nesting."""
    if "base.skops" not in members:
        return forged_weights(members, rng, _)
    config, data = parse(members[CONFIG]), members["base.skops"]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        inside = {info.filename: archive.read(info) for info in archive.infolist()}
    schema = json.loads(inside["schema.json"])
    match rng.randrange(4):
        case 0:
            data = bomb(rng.choice(("schema.json", "bomb")))
        case 1:
            schema["__module__"], schema["__class__"] = rng.choice(
                (("os", "system"), ("builtins", "eval"), ("a.b", "c"))
            )
            data = zipped({**inside, "schema.json": json.dumps(schema).encode()})
        case 2:
            text = b'{"content":' * 2000 + b"0" + b"}" * 2000
            data = zipped({**inside, "schema.json": text})
        case _:
            data = scarred(data, rng, TIMES, LENGTHS)
    config["base"]["file"] = seal(data)
    return Changed("forged base", sealed({**members, CONFIG: dump(config), "base.skops": data}, rng), fits=True)


def sealed(members: Members, rng: random.Random) -> bytes | Members:
    """The members with a configuration whose checksum fits, as a zip file or as a folder."""
    try:
        config = parse(members[CONFIG])
        config["sha256"] = checksum(config)
        members = {**members, CONFIG: dump(config, indent=1)}
    except (ValueError, RecursionError):
        pass  # it has none
    return zipped(members) if rng.random() < 0.5 else members


KINDS = (damaged, swapped, trick, forged, forged, forged, absurd, forged_weights, forged_base)


def changes(models: dict[str, Members], count: int, seed: int) -> Iterator[tuple[str, Changed]]:
    """As many changed files, by the model that they were."""
    rng, others = random.Random(seed), list(models.values())
    for number in range(count):
        name = rng.choice(list(models))
        make = KINDS[number % len(KINDS)]
        yield name, make(models[name], rng, others)


# --- loading -----------------------------------------------------------------------------------------------------


def put(content: bytes | Members, place: Path) -> Path:
    """Write a zip file or a folder."""
    if isinstance(content, bytes):
        (place / "model.zip").write_bytes(content)
        return place / "model.zip"
    folder = place / "model"
    folder.mkdir(exist_ok=True)
    for name in {*os.listdir(folder)} - {*content}:
        (folder / name).unlink()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder


def peak() -> int:
    """The most address space that this process has had."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition("VmPeak:")[2].split()[0])


#: what no file may bring about, by the names of Python's audit events
FORBIDDEN = {
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pickle.find_class"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "compile", "exec", "shutil.rmtree"),
}


class Watch:
    """Hears what Python does, while it is on."""

    def __init__(self) -> None:
        self.on, self.heard = False, list[str]()
        sys.addaudithook(self._hear)

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        writes = event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if event in FORBIDDEN or writes:
            self.heard.append(f"{event} {str(arguments)[-160:]}")


def outcome(path: Path, good: Any, fits: bool, watch: Watch) -> str:
    """How loading ends: refused, same, another, or what is wrong with it."""
    try:
        with watch:
            model = load(path)
    except InputError as error:
        text = str(error)
        return "refused" if len(text.splitlines()) == 1 and len(text) < 2000 else f"a long message: {text[:200]!r}"
    except BaseException as error:
        return f"raised {type(error).__name__}: {str(error)[:200]}"
    if fits:
        return "loaded"
    same = repr(model) == repr(good) and all(
        torch.equal(one, two)
        for one, two in zip(model_of(model).state_dict().values(), model_of(good).state_dict().values(), strict=True)
    )
    return "same" if same else "loaded as another model"


def model_of(estimator: Any) -> Any:
    """The module of an estimator, also of one at the end of a pipeline."""
    return (estimator[-1] if hasattr(estimator, "steps") else estimator).model_


def attempt(
    some: list[tuple[str, Changed]], models: dict[str, Members], place: Path, tell: Callable[[Any], None]
) -> None:
    """Load the files in this process, and tell of each what it was and how it ended."""
    good = {}
    for name, members in models.items():  # whatever is imported or opened once is, before anybody listens
        with suppress(InputError):
            good[name] = load(put(members, place))
            good[name] = load(put(zipped(members), place))
    watch = Watch()
    size = peak()
    limit = size + 2**33  # so that a mistake here is no mistake of the machine
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, changed in some:
        path = put(changed.content, place)
        before, began = set(os.listdir(place)), time.process_time()
        end = outcome(path, good.get(name), changed.fits, watch)
        seconds, grown = time.process_time() - began, peak() - size
        if watch.heard:
            end = f"did {watch.heard.pop()}"
            watch.heard.clear()
        elif set(os.listdir(place)) != before:
            end = "wrote a file"
        elif seconds > SECONDS or grown > ROOM:
            end, size = f"took {seconds:.1f} s and {grown / 2**20:.0f} MB", peak()
        tell((changed.kind, name, end, seconds, max(0, grown)))


def tell_to(pipe: int, what: Any) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


def in_child(work: Callable[[Callable[[Any], None]], None]) -> tuple[list[Any], int]:
    """What a forked process tells, as lines of JSON, and how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            work(partial(tell_to, write))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as lines:
        told = [json.loads(line) for line in lines]
    return told, os.waitpid(child, 0)[1]


def try_files(count: int, seed: int = 0, keep: Path | None = None) -> dict[str, Any]:
    """Load so many changed files: how each kind ended, and what was wrong with those that ended otherwise."""
    models = good_models()
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    slowest, largest = 0.0, 0
    made = list[tuple[str, Changed]]()

    def flush() -> None:
        nonlocal slowest, largest
        some = list(made)
        made.clear()
        while some:
            with tempfile.TemporaryDirectory() as place:
                told, status = in_child(partial(attempt, some, models, Path(place)))
            for (_, changed), (kind, name, end, seconds, grown) in zip(some, told, strict=False):
                slowest, largest = max(slowest, seconds), max(largest, grown)
                expected = end in ("refused", "loaded", "same")
                ends[f"{kind}, {end if expected else 'wrong'}"] += 1
                if not expected:
                    wrong.append(f"{kind} of {name}: {end}")
                    kept(changed, len(wrong))
            some = some[len(told) :]
            if some:  # the process ended at the next one
                wrong.append(f"{some[0][1].kind} of {some[0][0]}: ended the process, status {status}")
                ends[f"{some[0][1].kind}, wrong"] += 1
                kept(some[0][1], len(wrong))
                some = some[1:]

    def kept(changed: Changed, number: int) -> None:
        if keep is not None:
            (keep / str(number)).mkdir(parents=True, exist_ok=True)
            put(changed.content, keep / str(number))

    for each in changes(models, count, seed):
        made.append(each)
        if len(made) == AT_ONCE:
            flush()
    flush()
    found = {"files": count, "ends": dict(sorted(ends.items())), "wrong": wrong}
    return found | {"slowest_s": round(slowest, 3), "largest_mb": round(largest / 2**20, 1)}


# --- saving ------------------------------------------------------------------------------------------------------


def two_models() -> tuple[list[Any], list[Any]]:
    """Two models that differ, and what each says of rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [EnergyScorer("mean", n_hidden=200, max_epochs=1, random_state=seed).fit(X) for seed in range(2)]
    return models, [model.score_samples(X[:5]).tolist() for model in models]


def killed(target: Path, models: list[Any], n_writers: int, seconds: float) -> None:
    """Processes that save one model after the other, until they are killed after some seconds."""
    children = []
    for number in range(n_writers):
        child = os.fork()
        if child == 0:
            while True:
                save(models[1 - number % 2], target)
                save(models[number % 2], target)
        children.append(child)
    time.sleep(seconds)
    for child in children:
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "a writer ended by itself"


def try_kills(count: int, seed: int = 0) -> dict[str, Any]:
    """Kill saves at so many moments, of a folder, of a zip file, and of two writers; what was there afterwards."""
    models, expected = two_models()
    rng, ends, wrong = random.Random(seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name, n_writers = ("model", "model.zip")[number % 2], 1 + (number // 2) % 2
            case, target = f"{'zip file' if number % 2 else 'folder'}, writers: {n_writers}", Path(folder, name)
            save(models[0], target)
            killed(target, models, n_writers, rng.uniform(0, 0.04))
            left = len(set(os.listdir(folder)) - {"model", "model.zip"})
            try:
                found = expected.index(load(target).score_samples(X[:5]).tolist())
                save(models[0], target)
                assert load(target).score_samples(X[:5]).tolist() == expected[0], "the next save saved something else"
                assert not set(os.listdir(folder)) - {"model", "model.zip"}, "a temporary file stays"
            except (InputError, ValueError, AssertionError, OSError) as error:
                ends[f"{case}, wrong"] += 1
                wrong.append(f"{case}: {type(error).__name__}: {error}")
            else:
                ends[f"{case}, {('old', 'new')[found]} model"] += 1
                ends["left a temporary file, which the next save removed"] += left > 0
    return {"kills": count, "ends": dict(sorted(ends.items())), "wrong": wrong}


@contextmanager
def disk(size: str) -> Iterator[Path]:
    """A disk of its own, of so many bytes; needs the right to mount one."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        subprocess.run(command, check=True, capture_output=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True, capture_output=True)


def fill(folder: Path, left: int) -> None:
    """Write until there are so many bytes left."""
    found = os.statvfs(folder)
    (folder / "other").write_bytes(bytes(max(0, found.f_bavail * found.f_frsize - left)))


def try_disks(rounds: int) -> dict[str, Any]:
    """Save where there is no room, and where nothing may be written; where nobody may mount, files that cannot grow."""
    models, expected = two_models()
    ends, wrong = Counter[str](), list[str]()

    def attempted(case: str, target: Path) -> None:
        before = set(os.listdir(target.parent))
        try:
            save(models[1], target)
        except (InputError, OSError) as error:
            end = "refused" if isinstance(error, InputError) else str(error.strerror)
        else:
            end = "saved"
        now = load(target).score_samples(X[:5]).tolist()
        if now != expected[end == "saved"] or set(os.listdir(target.parent)) != before:
            wrong.append(f"{case}: {end}, and another model or other files are there")
            end = "wrong"
        ends[f"{case}, {end}"] += 1

    for number in range(rounds):
        name = ("model", "model.zip")[number % 2]
        try:
            with disk("1m") as folder:
                save(models[0], folder / name)
                fill(folder, 4096 * (number // 2))  # from no room at all to enough for a second model
                attempted("full disk", folder / name)
                subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, capture_output=True)
                try:
                    read_only = load(folder / name).score_samples(X[:5]).tolist()
                    with suppress(InputError):
                        save(models[1], folder / name)
                        wrong.append("read-only disk: saved")
                    same = load(folder / name).score_samples(X[:5]).tolist() == read_only
                    ends[f"read-only disk, {'refused' if same else 'wrong'}"] += 1
                finally:
                    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True, capture_output=True)
        except (subprocess.CalledProcessError, FileNotFoundError):
            ends["no disk of its own"] += 1
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        with tempfile.TemporaryDirectory() as place:
            save(models[0], Path(place, name))
            resource.setrlimit(resource.RLIMIT_FSIZE, (500 * (1 + number), limits[1]))
            try:
                attempted("files that cannot grow", Path(place, name))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return {"disks": rounds, "ends": dict(sorted(ends.items())), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="changed files")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--disks", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the files that end otherwise than they should")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where a line of counts is added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    parts = [
        try_files(options.count, options.seed, options.keep),
        try_kills(options.kills, options.seed),
        try_disks(options.disks),
    ]
    wrong = [each for part in parts for each in part.pop("wrong")]
    line = {"subject": "archives", "seed": options.seed, "parts": parts, "wrong": len(wrong)}
    line |= {"seconds": round(time.monotonic() - began)}
    tell(line, options.results, wrong)


if __name__ == "__main__":
    main()
