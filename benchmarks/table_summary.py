"""What the lines of `tables.py` say, as Markdown and as a picture."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ranking import average_ranks, critical_difference, friedman, picture
from table_systems import OURS, SYSTEMS

Line = dict[str, Any]
Array = NDArray[np.float64]
#: what is judged: how it is told, and in which unit
JUDGED = {"error": "error %", "log_loss": "log-loss", "ece": "calibration error %"}
SECONDS = {"fit_s": "fit s", "fit_cpu_s": "fit CPU s", "predict_s": "predict s"}
OVER_SURE = 0.1  # nats above the log-loss of the class frequencies


class Results:
    """The lines by table and system; averages over folds where all folds are there."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in lines:
            self._lines[line["set"], line["system"]].append(line)
        there = {system for _, system in self._lines}
        self.systems = [name for name in SYSTEMS if name in there]
        self.ranked = [name for name in self.systems if SYSTEMS[name].ranked]
        self.sets = sorted({name for name, _ in self._lines})
        self._development = {line["set"]: line["development"] for line in lines}

    def finished(self, name: str, system: str) -> bool:
        lines = self._lines.get((name, system), [])
        return bool(lines) and len(lines) == lines[0]["folds"]

    def complete(self, systems: list[str]) -> list[str]:
        """The tables that all of these systems finished."""
        return [name for name in self.sets if all(self.finished(name, system) for system in systems)]

    def is_development(self, name: str) -> bool:
        return self._development[name]

    def folds(self, name: str, system: str, measure: str) -> Array:
        return np.array([line[measure] for line in self._lines[name, system]])

    def table(self, measure: str, sets: list[str], systems: list[str]) -> Array:
        """(sets, systems): means over folds."""
        return np.array([[self.folds(name, system, measure).mean() for system in systems] for name in sets])

    def halves(self, systems: list[str]) -> dict[str, list[str]]:
        """Titles and their tables; those that say nothing new are left out."""
        names = self.complete(systems)
        first = [name for name in names if self.is_development(name)]
        second = [name for name in names if not self.is_development(name)]
        found = {"development half": first, "held-out half": second}
        if first and second:
            found["all"] = names
        return {title: sets for title, sets in found.items() if sets}

    def how(self, system: str) -> str:
        """Devices, threads and jobs that a system was measured with."""
        lines = [line for (_, name), each in self._lines.items() if name == system for line in each]
        ways = sorted({(line["device"], line["threads"], line["jobs"]) for line in lines})
        return "; ".join(f"{device}, threads {threads}, jobs {jobs}" for device, threads, jobs in ways)


def _rows(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def summary(lines: list[Line]) -> str:
    """All of it as Markdown."""
    results = Results(lines)
    if not lines:
        return "nothing was measured"
    text = per_set(results) if results.ranked else []
    for title, sets in results.halves(results.ranked).items() if results.ranked else ():
        text += ["", *means(results, title, sets), "", *tests(results, sets), "", *differences(results, sets)]
    return "\n".join(
        [*text, "", *unranked(results), "", *seconds(results), "", *over_sure(results), "", *noise_left(lines)]
    )


def per_set(results: Results) -> list[str]:
    """Errors of every table, mean and standard deviation over folds."""
    systems, rows = results.ranked, []
    for name in results.sets:
        found = {s: results.folds(name, s, "error") for s in systems if results.finished(name, s)}
        best = min((errors.mean() for errors in found.values()), default=0.0)
        cells = []
        for system in systems:
            if system not in found:
                cells.append("-")
                continue
            cell = f"{found[system].mean():.2f} ± {found[system].std(ddof=1):.2f}"
            cells.append(f"**{cell}**" if found[system].mean() < best + 1e-9 else cell)
        rows.append([name + ("*" if results.is_development(name) else ""), *cells])
    title = "Error %, mean ± standard deviation over folds (* development half):"
    return [title, "", *_rows(["table", *systems], rows)]


def means(results: Results, title: str, sets: list[str]) -> list[str]:
    rows = []
    for measure, label in {**JUDGED, **SECONDS}.items():
        table = results.table(measure, sets, results.ranked)
        pairs = zip(table.mean(axis=0), average_ranks(table), strict=True)
        rows.append([label, *(f"{mean:.3g} ({rank:.2f})" for mean, rank in pairs)])
    return [
        f"Mean and (average rank) over {len(sets)} tables, {title}:",
        "",
        *_rows(["measure", *results.ranked], rows),
    ]


def tests(results: Results, sets: list[str]) -> list[str]:
    """Friedman and Nemenyi, where there is enough to test."""
    n = len(results.ranked)
    if n < 3 or len(sets) < 2:
        return ["- too few systems or tables for a test of ranks"]
    difference = critical_difference(n, len(sets))
    text = [f"- Nemenyi's critical difference of {n} average ranks over {len(sets)} tables, at .05: {difference:.2f}"]
    for measure, label in JUDGED.items():
        table = results.table(measure, sets, results.ranked)
        ranks = average_ranks(table)
        best = int(ranks.argmin())
        alike = [results.ranked[i] for i in ranks.argsort() if i != best and ranks[i] - ranks[best] < difference]
        text.append(
            f"- {label}: Friedman p = {friedman(table):.2g}; best {results.ranked[best]} ({ranks[best]:.2f}); "
            f"not told apart from it: {', '.join(alike) or 'none'}"
        )
    return text


def differences(results: Results, sets: list[str]) -> list[str]:
    """Ours less each peer, on the same folds: less than 0 is better for us."""
    if OURS not in results.ranked or len(sets) < 2:
        return []
    rows = []
    for system in results.ranked:
        if system == OURS:
            continue
        cells = []
        for measure in JUDGED:
            ours, theirs = results.table(measure, sets, [OURS, system]).round(9).T
            gap = ours - theirs
            error = gap.std(ddof=1) / len(gap) ** 0.5
            cells.append(f"{gap.mean():+.3f} ± {error:.3f}, {(gap < 0).sum()}/{(gap == 0).sum()}/{(gap > 0).sum()}")
        rows.append([system, *cells])
    title = f"{OURS} less each, mean ± standard error over {len(sets)} tables, and tables better/equal/worse:"
    return [title, "", *_rows(["system", *JUDGED.values()], rows)]


def unranked(results: Results) -> list[str]:
    """Means of the systems that take no part in the ranks, each over the tables that it finished."""
    rows = [
        [system, f"{title}, {len(sets)} tables", *(f"{results.table(m, sets, [system]).mean():.3g}" for m in JUDGED)]
        for system in results.systems
        if system not in results.ranked
        for title, sets in results.halves([system]).items()
    ]
    return ["Means of systems without a rank:", "", *_rows(["system", "over", *JUDGED.values()], rows)] if rows else []


def seconds(results: Results) -> list[str]:
    """Median and longest fit over the tables, a fold on average, with how they were measured."""
    rows = []
    for system in results.systems:
        sets = results.complete([system])
        if sets:
            fit, cpu, predict = (results.table(measure, sets, [system])[:, 0] for measure in SECONDS)
            slowest = sets[int(fit.argmax())]
            rows.append(
                [
                    system,
                    str(len(sets)),
                    f"{np.median(fit):.3g}",
                    f"{fit.max():.3g} ({slowest})",
                    f"{np.median(cpu):.3g}",
                    f"{cpu.max():.3g}",
                    f"{np.median(predict):.2g}",
                    results.how(system),
                ]
            )
    header = ["system", "tables", "median fit s", "longest", "median CPU s", "longest", "median predict s", "how"]
    return ["Seconds of a fit, means over folds:", "", *_rows(header, rows)]


def over_sure(results: Results) -> list[str]:
    """Tables whose log-loss is clearly above that of the class frequencies."""
    rows = []
    for system in results.systems:
        sets = results.complete([system])
        if not sets:
            continue
        loss, frequencies = (results.table(m, sets, [system])[:, 0] for m in ("log_loss", "log_loss_frequencies"))
        excess = loss - frequencies
        above = [f"{sets[i]} ({excess[i]:+.2f})" for i in np.flatnonzero(excess > OVER_SURE)]
        label = f"**{system}**" if SYSTEMS[system].ours else system
        worst = f"{excess.max():+.2f} ({sets[int(excess.argmax())]})"
        rows.append([label, f"{len(above)} of {len(sets)}", worst, ", ".join(above) or "none"])
    title = f"Over-sure: tables whose log-loss exceeds that of the class frequencies by more than {OVER_SURE}:"
    return [title, "", *_rows(["system (ours bold)", "tables", "largest difference", "which"], rows)]


def noise_left(lines: list[Line]) -> list[str]:
    """Of our systems, how much of the noise on the cells their energies leave, by tables."""
    rows = []
    for system in SYSTEMS:
        of_sets = defaultdict(list)
        for line in lines:
            if line["system"] == system and line.get("noise_left") is not None:
                of_sets[line["set"]].append(line["noise_left"])
        left = {name: float(np.mean(values)) for name, values in of_sets.items()}
        if left:
            most = max(left, key=left.__getitem__)
            middle = f"{np.median([*left.values()]):.2f}"
            rows.append([system, str(len(left)), middle, f"{min(left.values()):.2f}", f"{left[most]:.2f} ({most})"])
    title = "Squared noise on the cells of test rows that is left after one step of the field, by tables:"
    return [title, "", *_rows(["system", "tables", "median", "least", "most"], rows)] if rows else []


def drawn(lines: list[Line], path: Path) -> None:
    """The critical-difference picture over the tables that all systems finished."""
    results = Results(lines)
    sets, systems = results.complete(results.ranked), results.ranked
    if len(systems) < 3 or len(sets) < 2:
        print(f"{path.name} is not drawn: it takes 3 systems that finished the same 2 tables")
        return
    panels = {
        f"{label.removesuffix(' %')}, average ranks over {len(sets)} tables": results.table(measure, sets, systems)
        for measure, label in JUDGED.items()
    }
    picture(path, panels, systems, tuple(name for name in systems if SYSTEMS[name].ours))
