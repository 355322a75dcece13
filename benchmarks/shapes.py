"""EnergyClassifier with its defaults on other shapes of data: many rows, many classes, few columns, 0/1 words.

Beside it, what is usual for such data, with its defaults.  One JSON line per shape, repeat and system; finished lines
are skipped, so that a run that was stopped goes on.  The summary is made from the lines alone.  `shape_data` has the
generators with their parameters; the words are real data, in the folder that ENERGATE_DATA names.

    python benchmarks/shapes.py [--parts large,words] [--shapes medical,enron] [--systems RandomForest] [--repeats 3]
                                [--threads 2] [--device cpu] [--minutes 9] [--again] [--out FILE]
    python benchmarks/shapes.py --summary [--picture FILE]       # of the lines that are there; accuracy over rows

Seconds are wall and, beside them, CPU seconds of all threads, which other work on the machine stretches less; with
several threads on a busy machine they hold waiting, too.  Every line has the threads, and the load of the machine when
it began: seconds are claimed of lines with a load below 1.  RandomForest has one job, as is its default.
--again measures what is there anew; the summary takes the last line.
"""

import argparse
import json
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shape_data import BOOSTING, EIGHT, FOREST, MEAN, MLP, OURS, SHAPES
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabular import read
from threadpoolctl import threadpool_limits

from energate import EnergyClassifier, __version__

OUT = Path(__file__).parent / "results" / "shapes.jsonl"
Line = dict[str, Any]

#: every system with its defaults, of a seed and a device
SYSTEMS: dict[str, Callable[[int, str], Any]] = {
    OURS: lambda seed, device: EnergyClassifier(random_state=seed, device=device),
    EIGHT: lambda seed, device: EnergyClassifier(n_hidden=8, random_state=seed, device=device),
    MEAN: lambda seed, device: EnergyClassifier("mean", random_state=seed, device=device),
    BOOSTING: lambda seed, _: HistGradientBoostingClassifier(random_state=seed),
    FOREST: lambda seed, _: RandomForestClassifier(random_state=seed),
    MLP: lambda seed, _: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
}
PARTS = list(dict.fromkeys(shape.part for shape in SHAPES.values()))
MOST_REPEATS = max(shape.repeats for shape in SHAPES.values())


def run(name: str, repeat: int, system: str, device: str, threads: int) -> Line:
    X, y, X_test, y_test = SHAPES[name].split(repeat)
    torch.set_num_threads(threads)
    load = os.getloadavg()[0]
    model = SYSTEMS[system](repeat, device)
    with threadpool_limits(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier stops at its 200 epochs
        began, began_cpu = time.perf_counter(), time.process_time()
        model.fit(X, y)
        fitted, fitted_cpu = time.perf_counter(), time.process_time()
        predicted = model.predict(X_test)
        ended, ended_cpu = time.perf_counter(), time.process_time()
        p = model.predict_proba(X_test)
    truth = p[np.arange(len(y_test)), np.searchsorted(model.classes_, y_test)]
    return {
        "part": SHAPES[name].part,
        "shape": name,
        "rows": len(X),
        "columns": X.shape[1],
        "classes": len(model.classes_),
        "test_rows": len(X_test),
        "repeat": repeat,
        "system": system,
        "version": __version__,
        "accuracy": 100 * float((predicted == y_test).mean()),
        "log_loss": float(-np.log(np.clip(truth.astype(np.float64), 1e-15, 1)).mean()),
        "fit_s": fitted - began,
        "predict_s": ended - fitted,
        "fit_cpu_s": fitted_cpu - began_cpu,
        "predict_cpu_s": ended_cpu - fitted_cpu,
        "device": device,
        "threads": threads,
        "load": round(load, 1),
    }


# --- what the lines say ------------------------------------------------------------------------------------------

HEAD = ("shape", "system", "accuracy %", "log-loss", "fit s", "fit CPU s", "predict s", "predict CPU s", "repeats",
        "threads", "load")  # fmt: skip


class Results:
    """The last line of every shape, repeat and system."""

    def __init__(self, lines: list[Line]) -> None:
        last = {(line["shape"], line["system"], line["repeat"]): line for line in lines}
        self._lines: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for (shape, system, _), line in last.items():
            self._lines[shape, system].append(line)

    def systems(self, shape: str) -> list[str]:
        """Those that were measured on a shape."""
        return [system for system in SYSTEMS if (shape, system) in self._lines]

    def values(self, shape: str, system: str, measure: str) -> dict[int, float]:
        """One value for each repeat."""
        return {line["repeat"]: line[measure] for line in self._lines[shape, system]}

    def mean(self, shape: str, system: str, measure: str) -> float:
        return float(np.mean(list(self.values(shape, system, measure).values())))


def _spread(values: dict[int, float]) -> str:
    found = list(values.values())
    return f"{np.mean(found):.2f}" + (f" ± {np.std(found, ddof=1):.2f}" if len(found) > 1 else "")


def summary(lines: list[Line]) -> str:
    """Markdown: a table for each part, mean ± standard deviation over repeats, and the differences to ours."""
    results, text = Results(lines), []
    for part in PARTS:
        names = [name for name, shape in SHAPES.items() if shape.part == part and results.systems(name)]
        if not names:
            continue
        text += [f"### {part}", "", "| " + " | ".join(HEAD) + " |", "|---|" + "---|" * (len(HEAD) - 1)]
        for name in names:
            for system in results.systems(name):
                accuracy = results.values(name, system, "accuracy")
                cells = [name, system, _spread(accuracy), f"{results.mean(name, system, 'log_loss'):.3f}"]
                cells += [
                    f"{results.mean(name, system, measure):.3g}"
                    for measure in ("fit_s", "fit_cpu_s", "predict_s", "predict_cpu_s")
                ]
                cells += [f"{len(accuracy)}", f"{results.mean(name, system, 'threads'):.3g}"]
                text.append("| " + " | ".join([*cells, f"{results.mean(name, system, 'load'):.1f}"]) + " |")
        text += ["", *(f"- {name}: {SHAPES[name].about}" for name in names)]
        text += ["", *(told for name in names for told in _differences(results, name)), ""]
    return "\n".join(text)


def _differences(results: Results, name: str) -> list[str]:
    """Ours less the others, by repeats that both have."""
    if OURS not in results.systems(name):
        return []
    ours, text = results.values(name, OURS, "accuracy"), []
    for system in results.systems(name):
        theirs = results.values(name, system, "accuracy")
        both = sorted(ours.keys() & theirs.keys())
        if system != OURS and both:
            gap = _spread({repeat: ours[repeat] - theirs[repeat] for repeat in both})
            times = results.mean(name, OURS, "predict_cpu_s") / results.mean(name, system, "predict_cpu_s")
            text.append(f"- {name}: ours less {system} {gap} points; CPU seconds of predict {times:.2g} times theirs")
    return text


def drawn(lines: list[Line], path: Path) -> None:
    """Accuracy over the number of rows, with a bar of one standard deviation."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    results = Results(lines)
    names = [name for name, shape in SHAPES.items() if shape.part == "rows" and results.systems(name)]
    rows = {line["shape"]: line["rows"] for line in lines}
    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for system in SYSTEMS:
        those = [name for name in names if system in results.systems(name)]
        found = [list(results.values(name, system, "accuracy").values()) for name in those]
        if those:
            spread = [np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in found]
            ax.errorbar(
                [rows[name] for name in those], [np.mean(each) for each in found], np.array(spread), label=system
            )
    ax.set(xscale="log", xlabel="rows to train on", ylabel="accuracy %")
    ax.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


# --- the command -------------------------------------------------------------------------------------------------


def _chosen(text: str, known: list[str], option: str) -> list[str]:
    """Names with commas between, where names may have commas themselves; all if there are none."""
    if not text:
        return known
    found = [name for name in known if f",{name},".replace(", ", ",") in f",{text},".replace(", ", ",")]
    if not found:
        raise SystemExit(f"{option} must be some of {'; '.join(known)}; got {text}")
    return found


def tasks_of(options: argparse.Namespace) -> list[tuple[str, int, str]]:
    """What the file lacks: repeats outermost, so that a run that is stopped has something of everything."""
    parts, systems = _chosen(options.parts, PARTS, "--parts"), _chosen(options.systems, [*SYSTEMS], "--systems")
    names = [name for name in _chosen(options.shapes, [*SHAPES], "--shapes") if SHAPES[name].part in parts]
    done = set() if options.again else {(x["shape"], x["repeat"], x["system"]) for x in read(options.out)}
    most = {name: min(SHAPES[name].repeats, options.repeats) for name in names}
    return [
        (name, repeat, system)
        for repeat in range(max(most.values()))
        for name in names
        for system in SHAPES[name].systems
        if repeat < most[name] and system in systems and (name, repeat, system) not in done
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the file of JSON lines")
    parser.add_argument("--parts", default="", help=f"with commas between, of {', '.join(PARTS)}")
    parser.add_argument("--shapes", default="", help="names of shapes, with commas between")
    parser.add_argument("--systems", default="", help=f"with commas between, of {', '.join(SYSTEMS)}")
    parser.add_argument("--repeats", type=int, default=MOST_REPEATS, help="of each shape, at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="of EnergyClassifier")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--again", action="store_true", help="measure finished lines, too")
    parser.add_argument("--summary", action="store_true", help="only summarise")
    parser.add_argument("--picture", type=Path, help="draw accuracy over rows here")
    options = parser.parse_args()
    if not options.summary:
        tasks, until = tasks_of(options), time.time() + 60 * options.minutes
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for i, task in enumerate(tasks):
            if time.time() > until:
                break
            try:
                line = run(*task, options.device, options.threads)
            except FileNotFoundError as error:
                print(f"skipped {task[0]}: {error}")
                continue
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(
                f"[{i + 1}/{len(tasks)}] {line['shape']} repeat {line['repeat']} {line['system']}: "
                f"accuracy {line['accuracy']:.2f} %, fit {line['fit_s']:.1f} s (CPU {line['fit_cpu_s']:.1f}), "
                f"predict {line['predict_s']:.2f} s (CPU {line['predict_cpu_s']:.2f})",
                flush=True,
            )
    lines = read(options.out)
    print(summary(lines))
    if options.picture:
        drawn(lines, options.picture)


if __name__ == "__main__":
    main()
