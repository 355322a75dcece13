"""Searches that are killed at random moments and go on, and study files that are damaged.

A search in a process of its own writes which trials it has told; kill -9 ends it at a random moment, early ones among
them, while the file is made.  What was told must be in the file after every kill, as it was, and is not trained again.
Then good files are cut, flipped, or are something else: they are refused in one line, or nothing in them is changed.

    python benchmarks/chaos/studies.py [--count 30] [--damages 200] [--seed 0]
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _breaking import RESULTS, forked, tell

SPACE: dict[str, Any] = {"learning_rate": (1e-3, 1e-1, "log"), "n_hidden": [2, 3]}
X = np.random.default_rng(0).normal(size=(200, 3))
Y = (X[:, 0] > 0).astype(int)


def look(storage: Path, n_trials: int) -> Any:
    """A search that takes a moment for each trial."""
    from energate import EnergyClassifier, search

    estimator = EnergyClassifier("mean", pretrain_epochs=1, max_epochs=1, random_state=0, device="cpu")
    return search(estimator, X, Y, SPACE, n_trials=n_trials, n_together=3, storage=storage, progress=False)


def by_command(storage: Path, n_trials: int) -> None:
    """The same, as people type it."""
    from energate.cli import app

    table = storage.with_suffix(".csv")
    if not table.exists():
        rows = [f"{a},{b},{c},{'ab'[k]}" for (a, b, c), k in zip(X.tolist(), Y.tolist(), strict=True)]
        table.write_text("\n".join(["a,b,c,y", *rows]))
    given = ["search", table, "--target", "y", "--storage", storage, "-n", n_trials, "--units", "mean", "--epochs", 1]
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        code = app([*map(str, given), "-o", str(storage.with_suffix(".zip"))], standalone_mode=False)
    if code:
        raise RuntimeError(f"energate search ended with {code}")


def told_to(log: Path) -> None:
    """Let trials that are trained, and told, be written down, each at once."""
    from energate.tuning._study import Study, Trainer

    tell, train = Study.tell, Trainer.train

    def write(word: str, numbers: list[int]) -> None:
        with log.open("a") as file:
            file.write("".join(f"{word} {number}\n" for number in numbers))

    def telling(study: Any, trials: Any) -> None:
        tell(study, trials)
        write("told", [trial.number for trial in trials])

    def training(trainer: Any, configs: Any, keep: int | None = None) -> Any:
        if keep is None:  # the best of all is trained once more, to be given back
            write("began", [number for number, _ in configs])
        return train(trainer, configs, keep)

    Study.tell = telling  # type: ignore[method-assign,assignment]
    Trainer.train = training  # type: ignore[method-assign,assignment]


def finished(storage: Path) -> dict[int, Any]:
    """The trials in a file that have a result: parameters and value, by number."""
    import optuna

    from energate.tuning._study import open_storage

    with open_storage(optuna, storage) as store:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        found = optuna.get_all_study_summaries(store)
        trials = [] if not found else optuna.load_study(study_name=found[0].study_name, storage=store).trials
        return {each.number: [each.params, each.values] for each in trials if each.state.name == "COMPLETE"}


def killed(work: Callable[[], object], after: float, log: Path, n_lines: int) -> str:
    """Run something in a process of its own and kill it, so long after its log has these lines; how that ended."""
    process = forked(work)
    while log.read_text().count("\n") < n_lines and not os.waitid(
        os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.002)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return "killed" if os.WIFSIGNALED(status) else "finished" if os.WEXITSTATUS(status) == 0 else "BROKEN"


def kills(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Searches, killed ``count`` times in all and then left to finish."""
    rng, ended, broken = random.Random(seed), Counter[str](), list[str]()
    n_kills = n_told = file = 0
    while n_kills < count and not broken:
        file += 1
        storage, log = folder / f"{file}.db", folder / f"{file}.log"
        log.touch()
        work = by_command if file % 4 == 0 else look
        before: dict[int, Any] = {}
        moments = [rng.uniform(0, 0.4), *(rng.uniform(0, 0.5) for _ in range(rng.randrange(1, 5))), 600.0]
        for after in moments:
            n_before = len(log.read_text().splitlines())
            wanted = len(before) + (3 if after > 100 else 300)

            def search(storage: Path = storage, log: Path = log, work: Any = work, wanted: int = wanted) -> None:
                told_to(log)
                work(storage, wanted)

            if after > 100:
                how = _to_its_end(search)
            else:
                n_more = 0 if after is moments[0] else rng.randrange(12)
                how = killed(search, after, log, n_before + n_more)
                n_kills += how == "killed"
            ended[how] += 1
            lines = [line.split() for line in log.read_text().splitlines()]
            told = [int(number) for word, number in lines if word == "told"]
            now = finished(storage) if storage.exists() else {}
            lost = [number for number in {*told, *before} if number not in now]
            changed = [number for number in before if number in now and now[number] != before[number]]
            again = [int(number) for word, number in lines[n_before:] if word == "began" and int(number) in before]
            if how == "BROKEN" or lost or changed or again or len(told) != len(set(told)):
                broken.append(f"file {file}, {how}: lost {lost}, changed {changed}, trained again {again}")
            before, n_told = now, n_told + len(set(now) - set(before))
        if rest := [each.name for each in folder.iterdir() if each.name.endswith(("-journal", "-wal", ".part"))]:
            broken.append(f"file {file}: {rest} stay behind")
    return {"kills": n_kills, "searches": file, "ended": dict(ended), "trials": n_told, "broken": broken}


def _to_its_end(work: Callable[[], object]) -> str:
    process = forked(work)
    _, status = os.waitpid(process, 0)
    return "finished" if status == 0 else "BROKEN"


# --- damage ------------------------------------------------------------------------------------------------------


def damaged(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A study file that is not as it was, and what was done to it."""
    data = bytearray(content)
    kind = rng.choice(("cut", "flipped bit", "flipped bit", "bytes", "zeros", "text", "nothing in it", "another head"))
    place = rng.randrange(len(data))
    if kind == "cut":
        del data[place:]
    elif kind == "flipped bit":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        data[place : place + 64] = rng.randbytes(64)
    elif kind == "zeros":
        data[place : place + 4096] = bytes(4096)
    elif kind == "text":
        data = bytearray(b"words " * 300)
    elif kind == "nothing in it":
        data = bytearray()
    else:
        data[:100] = rng.randbytes(100)
    return kind, bytes(data)


def damages(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Good files, damaged, and the search that is to go on from them."""
    from energate.errors import InputError

    good = folder / "good.db"
    trials = len(look(good, 6).trials)
    content, there = good.read_bytes(), finished(good)
    ended, broken = Counter[str](), list[str]()
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        kind, data = damaged(content, rng)
        path = folder / f"d{number}.db"
        path.write_bytes(data)
        try:
            found = look(path, trials)
        except InputError as error:
            way_out = any(words in str(error) for words in ("Give another", "give another", "One process"))
            how = "refused" if way_out and "\n" not in str(error) else f"BROKEN: no way out: {error}"
        except Exception as error:
            how = f"BROKEN: {type(error).__name__}: {str(error)[:200]}"
        else:
            same = finished(path) == there
            # An empty file is a search that has not begun, though its seed finds the same; bytes that nobody uses may
            # be any.
            how = "began" if not data else "went on" if same else f"BROKEN: other results: {len(found.trials)} trials"
        ended[how.partition(":")[0]] += 1
        if how.startswith("BROKEN"):
            broken.append(f"{number} {kind}: {how}")
        path.unlink(missing_ok=True)
    return {"damages": count, "ended": dict(ended), "broken": broken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = trial(options.count, options.damages, options.seed)
    tell(found, RESULTS, [*found["killed"]["broken"], *found["damaged"]["broken"]])


def trial(count: int, n_damages: int, seed: int) -> dict[str, Any]:
    """Searches that are killed, files that are damaged; in a process without other threads, which a fork would lose."""
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    import optuna  # noqa: F401
    import torch

    import energate.cli.search
    import energate.tuning
    import energate.views.fitting  # noqa: F401

    torch.set_num_threads(1)  # threads do not live on in a fork
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="studies-"))
    try:
        return {
            "subject": "studies",
            "seed": seed,
            "killed": kills(count, seed, folder),
            "damaged": damages(n_damages, seed, folder),
            "seconds": round(time.monotonic() - began),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
