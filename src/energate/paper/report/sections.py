"""The sections of the report, one for each data set: differences, pictures, hyper-parameters, provenance."""

from energate.paper.cell import Attempt, Cell, Search
from energate.paper.report.comparing import Comparison, Row, error_mean, origin_words
from energate.paper.report.pictures import confusions, covariances, curves, energies, filters, mistakes, reliabilities
from energate.paper.report.results import Results
from energate.paper.report.statistics import ERROR, Entry, Paired, mean_spread, paired
from energate.paper.report.words import (
    ABSENT,
    config_shown,
    config_words,
    count,
    differing,
    duration,
    escape,
    fold,
    mean_words,
    number,
    p_value,
    signed,
    table,
    thousands,
    warning,
    with_spread,
)

_MOST_TRIALS = 60

_BY_ROW = (
    "Differences are over the seeds that both systems have, and the rows that only one of the two gets wrong are "
    "counted over these seeds. p is how likely a difference at least as large would be if, on every test row, "
    "the two were as likely to be swapped: with one seed, McNemar's exact test; with more, a row counts once for "
    "all seeds. It speaks of other rows for these trained systems, not of other seeds."
)
_BY_SPLIT = (
    "Differences are over the splits that both systems have; better, equal and worse count these splits. p is that of "
    "a t-test on the differences. Splits share rows and are not independent, so their variance is multiplied by "
    "1/k + n_test/n_train instead of 1/k, for k splits (Nadeau and Bengio, 2003)."
)


def differences_words(comparison: Comparison) -> str:
    """How the tables of differences are to be read."""
    texts = {"seed": _BY_ROW, "split": _BY_SPLIT}
    return texts.get(comparison.repeat) or " ".join(texts.values())


def data_section(comparison: Comparison, row: Row, results: Results, anchor: str) -> str:
    """All there is to show of one data set."""
    words = origin_words(row.cells)
    parts = [
        f'<section><h3 id="{anchor}">{escape(row.label)}{f" <small>{escape(words)}</small>" if words else ""}</h3>',
        _facts(row),
        warning(row.warnings),
        _failures(row),
        _differences(comparison, row),
        fold("Confusion", confusions(comparison, row), "the best system of this project and the best other"),
        fold("Reliability", reliabilities(comparison, row), "is a confidence of 90 % right 9 times in 10?"),
        fold("Label covariances", covariances(comparison, row), "true labels and predicted probabilities"),
        fold("Energies", energies(comparison, row), "under the own class and under the others"),
        fold("Filters", filters(comparison, row)),
        fold("Training curves", curves(comparison, row)),
        fold("Mistakes", mistakes(comparison, row), "true → predicted"),
        fold("Parts and stages", _extra(comparison, row), "single members, before fine-tuning ..."),
        fold("Verdicts of the refiners", _verdicts(comparison, row)),
        fold("Hyper-parameters", _parameters(comparison, row, results)),
        fold("Log-loss, time and memory", _costs(comparison, row)),
        fold("Provenance and versions", _provenance(row)),
        "</section>",
    ]
    return "".join(parts)


def _facts(row: Row) -> str:
    cell = next(iter(row.cells), None)
    if cell is None:
        return ""
    facts = []
    for key, name in (("n_train", "training"), ("n_valid", "validation"), ("n_test", "test")):
        found = [n for other in row.cells if (n := getattr(other, key)) is not None]
        if found:  # splits need not be of the same size
            facts.append(f"{' to '.join(dict.fromkeys(map(thousands, (min(found), max(found)))))} {name} rows")
    facts += [cell.test_slice] if cell.test_slice else []
    kind = "labels" if cell.has_labels else "classes"
    facts += [f"{len(cell.classes)} {kind}"] if cell.classes else []
    return f'<p class="muted">{escape(" · ".join(facts))}</p>'


def _failures(row: Row) -> str:
    items = [
        f"<li>{escape(cell.system_label)}, {cell.repeat} {cell.seed}: <code>{escape(cell.error)}</code></li>"
        for entry in row.entries.values()
        for cell in entry.failed
    ]
    return f'<div class="warn" role="note">Failed:<ul>{"".join(items)}</ul></div>' if items else ""


def _differences(comparison: Comparison, row: Row) -> str:
    if not row.reference:
        return '<p class="muted">No results yet.</p>'
    label = comparison.systems[row.reference]
    reference = row.entries[row.reference]
    by_split = comparison.repeat == "split"
    n_columns = 4 if by_split else 3
    rows = []
    for system, entry in row.entries.items():
        if system == row.reference or not entry.cells:
            continue
        found = paired(entry, reference)
        name = f'<th scope="row">{escape(comparison.systems[system])}</th>'
        if found.difference is None:
            rows.append(f'<tr>{name}<td class="muted text" colspan="{n_columns + 2}">{escape(found.why_not)}</td></tr>')
            continue
        shown = signed(found.difference) + (f" ± {number(found.spread)}" if found.spread is not None else "")
        columns = _by_split(found) if by_split else _by_row(found)
        rest = "".join(f"<td>{value}</td>" for value in columns)
        if not columns:
            rest = f'<td class="muted text" colspan="{n_columns}">{escape(found.why_not)}</td>'
        rows.append(f"<tr>{name}<td>{shown}</td><td>{found.n_seeds}</td>{rest}</tr>")
    if not rows:
        return ""
    caption = f"Each system minus {label} ({row.why}), in points of {comparison.metric}."
    counted = ["better", "equal", "worse"] if by_split else ["only it wrong", f"only {label} wrong"]
    return table(["system", "difference", f"{comparison.repeat}s", *counted, "p"], rows, caption)


def _by_split(found: Paired) -> list[str]:
    return [*map(str, found.counts(ERROR)), ABSENT if found.p is None else p_value(found.p)]


def _by_row(found: Paired) -> list[str]:
    if found.p is None or found.only_first is None or found.only_second is None:
        return []
    return [thousands(found.only_first), thousands(found.only_second), p_value(found.p)]


# --- numbers -----------------------------------------------------------------------------------------------------


def _extra(comparison: Comparison, row: Row) -> str:
    rows = []
    for system, entry in row.entries.items():
        for key in dict.fromkeys(key for cell in entry.cells for key in cell.extra):
            values = [cell.extra[key] for cell in entry.cells if key in cell.extra]
            flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
            if not flat:
                continue
            several = max(len(value) if isinstance(value, list) else 1 for value in values)
            each = f"{several} in each of {len(values)}" if several > 1 else str(len(values))
            digits = 2 if max(map(abs, flat)) >= 0.1 else 5  # most are percents, but not all
            rows.append(
                f'<tr><th scope="row">{escape(comparison.systems[system])}</th><td class="text">'
                f"{escape(key.replace('_', ' '))}</td><td>{with_spread(flat, digits)}</td>"
                f"<td>{number(min(flat), digits)}</td><td>{number(max(flat), digits)}</td>"
                f"<td>{each}</td><td>{number(error_mean(entry))}</td></tr>"
            )
    head = ["system", "what", "mean ± spread", "lowest", "highest", f"{comparison.repeat}s"]
    head += [f"{comparison.metric} of the whole, %"]
    return table(head, rows, text=(0, 1)) if rows else ""


def _parameters(comparison: Comparison, row: Row, results: Results) -> str:
    blocks = []
    for system, entry in row.entries.items():
        cell = next((cell for cell in entry.cells if cell.config), None)
        folders = [c.folder for c in [*entry.cells, *entry.failed]]
        search = next((results.searches[folder] for folder in folders if folder in results.searches), None)
        if cell is None and search is None:
            continue
        blocks.append(f"<h4>{escape(comparison.systems[system])}</h4>")
        if cell is not None:
            other = sum(c.config != cell.config for c in entry.cells)
            note = f" ({cell.repeat} {cell.seed}; {other} other {cell.repeat}s have another)" if other else ""
            blocks.append(f'<p class="code">{config_words(config_shown(cell.config))}{note}</p>')
        blocks.append(_choices(entry))
        if search is not None:
            blocks.append(_trials(search))
        elif cell is not None and cell.search:
            chosen = [f"{key.replace('_', ' ')} {value}" for key, value in config_shown(cell.search).items()]
            blocks.append(f'<p class="muted">Search: {escape(", ".join(chosen))}.</p>')
    return "".join(blocks)


def _trials(search: Search) -> str:
    """The trials of a search, best first."""
    configs = differing([config_shown(trial.config) for trial in search.trials])

    def rank(i: int) -> tuple[float, ...]:
        worst, trial = float("inf"), search.trials[i]
        values = (worst if value is None else value for value in (trial.valid_log_loss, trial.valid_error))
        return (trial.failed, *values, i)

    rows = []
    for i in sorted(range(len(configs)), key=rank)[:_MOST_TRIALS]:
        trial, chosen = search.trials[i], " (chosen)" if i == search.chosen else ""
        error = f'<br><span class="bad">{escape(trial.error or "failed")}</span>' if trial.failed else ""
        time = ABSENT if trial.seconds is None else duration(trial.seconds)
        loss, wrong = (ABSENT, ABSENT) if trial.failed else (number(trial.valid_log_loss, 4), number(trial.valid_error))
        rows.append(
            f'<tr><th scope="row">{i}{chosen}</th><td>{loss}</td><td>{wrong}</td><td>{time}</td>'
            f'<td class="code">{config_words(configs[i])}{error}</td></tr>'
        )
    by = f", chosen by {search.chosen_by}" if search.chosen_by else ""
    caption = f"{len(search.trials)} trials{by}; what they have in common is left out."
    head = ["trial", "validation log-loss", "validation error, %", "time", "configuration"]
    return fold(f"Search: {len(search.trials)} trials", table(head, rows, caption, text=(0, 4))) if rows else ""


def _choices(entry: Entry) -> str:
    """Which configurations were chosen how often, where each repeat chose its own."""
    tried: dict[tuple[tuple[str, str], ...], list[Attempt]] = {}
    times: dict[tuple[tuple[str, str], ...], int] = {}
    for cell in entry.cells:
        for i, trial in enumerate(cell.trials):
            key = tuple(config_shown(trial.config).items())
            tried.setdefault(key, []).append(trial)
            times[key] = times.get(key, 0) + (i == cell.chosen)
    if not tried:
        return ""
    good = {key: [trial for trial in trials if not trial.failed] for key, trials in tried.items()}

    def rank(key: tuple[tuple[str, str], ...]) -> tuple[float, ...]:
        errors = [trial.valid_error for trial in good[key] if trial.valid_error is not None]
        return -times[key], mean_spread(errors)[0] if errors else float("inf")

    shown = dict(zip(tried, differing([dict(key) for key in tried]), strict=True))
    rows = [
        f"<tr><td>{times[key]}</td><td>{len(tried[key])}</td><td>{len(tried[key]) - len(good[key]) or ABSENT}</td>"
        f"<td>{mean_words([trial.valid_error for trial in good[key]], 2)}</td>"
        f"<td>{mean_words([trial.valid_log_loss for trial in good[key]], 4)}</td>"
        f'<td class="code">{config_words(shown[key])}</td></tr>'
        for key in sorted(tried, key=rank)[:_MOST_TRIALS]
    ]
    repeat = entry.cells[0].repeat
    n = sum(bool(cell.trials) for cell in entry.cells)
    more = f" Of {len(tried)} configurations the first {_MOST_TRIALS}." if len(tried) > _MOST_TRIALS else ""
    caption = (
        f"Chosen anew in each {repeat}, on its validation rows; means over the {repeat}s in which a configuration was "
        f"tried. What all have in common is left out.{more}"
    )
    head = ["chosen", "tried", "failed", "validation error, %", "validation log-loss", "configuration"]
    title = f"Chosen in {count(n, repeat)}: {sum(map(bool, times.values()))} of {len(tried)} configurations"
    return fold(title, table(head, rows, caption, text=(5,)))


def _costs(comparison: Comparison, row: Row) -> str:
    rows = []
    for system, entry in row.entries.items():
        if not entry.cells:
            continue
        columns = [
            mean_words([cell.valid_error for cell in entry.cells], 2),
            mean_words([cell.valid_log_loss for cell in entry.cells], 4),
            mean_words([cell.test_log_loss for cell in entry.cells], 4),
            mean_words([cell.seconds.get("fit") for cell in entry.cells], 1),
            mean_words([cell.seconds.get("predict") for cell in entry.cells], 2),
            mean_words([cell.memory.get("device_peak_mib") for cell in entry.cells], 0),
            mean_words([cell.memory.get("host_peak_mib") for cell in entry.cells], 0),
        ]
        values = "".join(f"<td>{value}</td>" for value in columns)
        rows.append(f'<tr><th scope="row">{escape(comparison.systems[system])}</th>{values}</tr>')
    head = ["system", "validation error, %", "validation log-loss", "test log-loss", "fit, s", "predict, s"]
    head += ["device memory, MiB", "host memory, MiB"]
    return table(head, rows, f"Means over {comparison.repeat}s; memory at its peak.") if rows else ""


def _provenance(row: Row) -> str:
    blocks = []
    groups: dict[tuple[tuple[str, str], ...], list[Cell]] = {}
    for cell in row.cells:
        facts = [*cell.provenance.words.items(), *cell.provenance.source.items()]
        facts += [(f"sha256 of {key}", value) for key, value in cell.provenance.hashes.items()]
        facts += [(f"version of {key}", value) for key, value in sorted(cell.versions.items())]
        facts += [("device", cell.device)] if cell.device else []
        groups.setdefault(tuple(facts), []).append(cell)
    for facts_of, cells in groups.items():
        lines = [f'<tr><th scope="row">{escape(k)}</th><td class="code">{escape(v)}</td></tr>' for k, v in facts_of]
        names = ", ".join(f"{cell.system_label} {cell.seed}" for cell in cells)
        who = "All results" if len(groups) == 1 else f"System and {cells[0].repeat}: {names}"
        blocks.append(table(["what", "value"], lines, who, text=(0, 1)) if lines else "")
    return "".join(blocks)


def _verdicts(comparison: Comparison, row: Row) -> str:
    """What refiners said of themselves, each time they were fitted."""
    rows = []
    for system, entry in row.entries.items():
        for cell in entry.cells:
            if not cell.verdict:
                continue
            gate, steps = (cell.extra.get(key) for key in ("gate", "n_steps"))
            rows.append(
                f'<tr><th scope="row">{escape(comparison.systems[system])}</th><td>{cell.seed}</td>'
                f"<td>{number(gate) if isinstance(gate, int | float) else ABSENT}</td>"
                f"<td>{number(steps, 0) if isinstance(steps, int | float) else ABSENT}</td>"
                f'<td class="text">{escape(cell.verdict)}</td></tr>'
            )
    caption = "What a refiner says of itself when it is fitted; the test rows have no part in it."
    return table(["system", comparison.repeat, "gate", "steps", "verdict"], rows, caption, text=(0, 4)) if rows else ""
