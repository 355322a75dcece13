"""How often a reader changes files along six walks through the code: fit, predict, a batch, refine, a request, a cell.

A walk runs, and every function of energate is noted when it is first called; a change of file is a step from one noted
function to the next that lies in another file.  Bodies of modules and classes, comprehensions and lambdas do not count.
`python benchmarks/walks.py` prints the counts, with `--files` also the files in the order in which they are met.
"""

import contextlib
import io
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import energate

ROOT = str(Path(energate.__file__).parent) + os.sep


def walked(run: Callable[[], object]) -> list[tuple[str, str]]:
    """The functions of energate that a walk calls, each once, with their files."""
    found: dict[Any, tuple[str, str]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code not in found:
            body = code.co_flags & 0x2 == 0  # of a module or a class
            if not (body or code.co_name.startswith("<")):
                found[code] = code.co_filename.removeprefix(ROOT), code.co_name

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found.values())


def called(*words: str) -> Callable[[], object]:
    """A command."""
    from energate.cli import app

    return lambda: app(list(words), standalone_mode=False)


def walks(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """The walks, each in order, as later ones need what earlier ones left; what is imported was imported before."""
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 4))
    rows = [",".join([*(f"{x:.3f}" for x in row), "ab"[int(row[0] > 0)]]) for row in X]
    (folder / "t.csv").write_text("\n".join(["p,q,r,s,kind", *rows]) + "\n")
    table, model = str(folder / "t.csv"), str(folder / "m.zip")
    for _ in range(2):  # the first time, imports would be walked, too
        walk = ("fit", called("fit", table, "--target", "kind", "-o", model, "--epochs", "2"))
        predict = ("predict", called("predict", model, table, "-o", str(folder / "o.csv")))
        if _ == 0:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                walk[1]()
                predict[1]()
    yield walk
    yield predict
    classifier = energate.EnergyClassifier("mean", n_hidden=4, pretrain_epochs=0, max_epochs=1, early_stopping=False)
    yield "batch", lambda: classifier.fit(X, X[:, 0] > 0)
    Y = (X > 0).astype(int)
    base = energate.LabelMLP(n_hidden=4, n_members=1, max_epochs=1, random_state=0)
    refiner = energate.EnergyRefiner(base, max_epochs=1, cv=2, random_state=0).fit(X, Y)
    refiner.gate_ = 0.5
    yield "refine", lambda: refiner.predict_proba(X)
    yield "request", request(model)
    yield "cell", cell(folder)


def request(model: str) -> Callable[[], object]:
    """A row over HTTP."""
    import asyncio

    import httpx

    from energate.serving import load_served, make_app

    app = make_app(load_served(Path(model)))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            row = {"p": 1, "q": 1, "r": 1, "s": 1}
            assert (await client.post("/predict", json={"rows": [row]})).status_code == 200

    return lambda: asyncio.run(ask())


def cell(folder: Path) -> Callable[[], object]:
    """One cell of the first table."""
    try:
        from energate.paper import run
    except ImportError:  # before there was a room for it
        from energate.experiments import run  # type: ignore[import-not-found,no-redef]

    options: dict[str, Any] = {"data": ["digits"], "systems": ["gsm"], "seeds": 1, "source": "generate"}
    run("table1", results=folder / "before", **options)
    return lambda: run("table1", results=folder / "results", **options)


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name, walk in walks(Path(folder)):
            functions = walked(walk)
            files = [file for file, _ in groupby(file for file, _ in functions)]
            print(f"{name:8} {len(files) - 1:4} changes, {len(set(files)):3} files, {len(functions):4} functions")
            if "--files" in sys.argv:
                for file, met in groupby(functions, key=lambda each: each[0]):
                    print(f"    {file}: {' '.join(name for _, name in met)}")


if __name__ == "__main__":
    main()
