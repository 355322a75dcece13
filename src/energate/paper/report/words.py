"""Numbers in words, the few pieces of HTML that every section is made of, and the tables of means as Markdown."""

import html
from collections.abc import Iterable, Sequence

from energate.paper.cell import Config, texts
from energate.paper.report.comparing import LEVEL, Comparison, Row, origin_words
from energate.paper.report.statistics import ERROR, lower_is_better, mean_spread, values

#: Measures in percent, by name.
_IN_PERCENT = {
    "exact_match": "exact match, %",
    "example_f1": "example F1, %",
    "macro_f1": "macro F1, %",
    "micro_f1": "micro F1, %",
}
#: What stands where there is no number.
ABSENT = "\N{EN DASH}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals, or a dash."""
    return ABSENT if value is None else f"{value:.{digits}f}"


def with_spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean ± sample standard deviation; the mean alone of a single value."""
    mean, spread = mean_spread(list(values))
    return number(mean, digits) if spread is None else f"{number(mean, digits)} ± {number(spread, digits)}"


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign, and with a true minus."""
    return "0." + "0" * digits if round(value, digits) == 0 else f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def p_value(p: float) -> str:
    """A p-value, where small ones are only called small."""
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.2f}"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def measure_name(measure: str) -> str:
    """A measure in words, with its unit where that is known."""
    return _IN_PERCENT.get(measure) or ("Brier score" if measure == "brier" else measure.replace("_", " "))


def measure_digits(comparison: Comparison, measure: str) -> int:
    """Decimals to show: two of a percentage, four of numbers that are all small."""
    if measure == ERROR or measure in _IN_PERCENT:
        return 2
    found = [abs(v) for row in comparison.rows for entry in row.entries.values() for v in values(entry, measure)]
    return 2 if max(found, default=0.0) > 1.5 else 4


def count(n: int, word: str) -> str:
    """So many of something."""
    return f"{n} {word if n == 1 else plural(word)}"


def plural(word: str) -> str:
    """More than one of something."""
    return f"{word}es" if word.endswith("s") else f"{word}s"


def sentence(words: str) -> str:
    """Words that begin with a capital, and are otherwise left alone."""
    return words[:1].upper() + words[1:]


def config_shown(config: Config) -> dict[str, str]:
    """A configuration, or any other object of a file, as texts, in the order of the alphabet."""
    return dict(sorted(texts(config, "config").items()))


def config_words(config: dict[str, str]) -> str:
    """A configuration as HTML."""
    return "; ".join(f"{escape(key)} = {escape(value)}" for key, value in config.items())


def differing(configs: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Configurations without what all of them have in common; a single one as it is."""
    keys = {key for config in configs for key in config}
    same = {key for key in keys if len(configs) > 1 and len({config.get(key) for config in configs}) == 1}
    return [{key: value for key, value in config.items() if key not in same} for config in configs]


def mean_words(found: Sequence[float | None], digits: int) -> str:
    """The mean of what is there, or a dash."""
    present = [value for value in found if value is not None]
    return number(mean_spread(present)[0], digits) if present else ABSENT


def thousands(count: int) -> str:
    """A count with a comma at every thousand."""
    return f"{count:,}"


# --- HTML ------------------------------------------------------------------------------------------------------


def escape(text: object) -> str:
    """Text that is safe in HTML, within tags and in quoted attributes; control characters become spaces."""
    shown = "".join(c if c >= " " and c not in "\x7f\ufffe\uffff" else " " for c in str(text))
    return html.escape(shown, quote=True)


def table(
    head: Sequence[str],
    rows: Sequence[str],
    caption: str = "",
    *,
    name: str = "",
    text: Sequence[int] = (0,),
    empty: int = 0,
) -> str:
    """A table that scrolls by itself on a narrow screen; rows are HTML, head and caption plain text.

    ``text`` says which columns hold words, not numbers; so many ``empty`` columns, without a title, end it.
    """
    titles = "".join(
        f'<th scope="col"{" class=text" if i in text else ""}>{escape(title)}</th>' for i, title in enumerate(head)
    )
    about = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    kind = f' class="{name}"' if name else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}>{about}<thead><tr>{titles}{"<td></td>" * empty}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def fold(title: str, inside: str, remark: str = "") -> str:
    """A part that opens at a click; nothing if there is nothing inside."""
    note = f"<small>{escape(remark)}</small>" if remark else ""
    return f"<details><summary>{escape(title)}{note}</summary>{inside}</details>" if inside else ""


def tiles(figures: Sequence[str], *, small: bool = False) -> str:
    """Figures side by side; nothing if there are none."""
    return f'<div class="tiles{" small" if small else ""}">{"".join(figures)}</div>' if figures else ""


def figure(caption: str, inside: str, *, below: bool = False) -> str:
    """A picture and its name."""
    name = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<figure>{inside}{name}</figure>" if below else f"<figure>{name}{inside}</figure>"


def quick_words(profiles: Iterable[str]) -> str:
    """What is to be known before a table of results that were not run in full; nothing if all were."""
    short = sorted({name for name in profiles if name and name != "full"})
    if not short:
        return ""
    return (
        f"This is no result: the profile {', '.join(short)} trains on few rows, for few epochs and with few seeds, to "
        "show that everything runs. Numbers to cite come from the profile full."
    )


def warning(problems: Sequence[str], where: str = "") -> str:
    """What makes results hard to compare, where it can be seen."""
    if not problems:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in problems)
    name = f" on {escape(where)}" if where else ""
    return (
        f'<div class="warn" role="note"><strong>Not comparable as they stand{name}</strong>: the results have'
        f"<ul>{items}</ul>No best is marked.</div>"
    )


# --- tables of means in words, and as Markdown -----------------------------------------------------------------


def explanation(comparison: Comparison, measure: str = ERROR) -> str:
    """How a table of means is to be read, in plain text without its marks."""
    n, repeat = len(comparison.seeds), comparison.repeat
    spread = f"mean ± sample standard deviation over {count(n, repeat)}" if n > 1 else f"one {repeat}"
    first = "lowest" if lower_is_better(measure) else "highest"
    marks = f"Bold: the {first} mean of the row."
    if measure != ERROR:
        close = " ≈ as above." if any(row.standing(measure).close for row in comparison.rows) else ""
        return f"{sentence(measure_name(measure))}: {spread}. {marks}{close}"
    entries = [entry for row in comparison.rows for entry in row.entries.values()]
    paper = " The paper's figure stands with it." if any(e.published is not None for e in entries) else ""
    kept = {
        why: [comparison.systems[s] for s in comparison.apart if comparison.apart[s] == why]
        for why in comparison.apart.values()
    }
    apart = "".join(f" Not among the compared: {', '.join(names)} ({why})." for why, names in kept.items())
    by_row = "paired over the same test rows"
    by_split = "in a t-test over splits with the variance of Nadeau and Bengio, which allows for splits that share rows"
    test = {"seed": by_row, "split": by_split}.get(repeat, f"{by_row}, or {by_split}")
    return (
        f"{sentence(comparison.metric)} in percent: {spread}.{paper} {marks} ≈: not significantly worse than it "
        f"(p ≥ {LEVEL:g}, {test}, not corrected for the number of systems).{apart}"
    )


def plain_entry(comparison: Comparison, row: Row, system: str, measure: str = ERROR) -> str:
    """An entry of a table of means as Markdown."""
    entry, repeat = row.entries.get(system), comparison.repeat
    if entry is None:
        return "not run"
    paper = f" ({number(entry.published)})" if measure == ERROR and entry.published is not None else ""
    found = values(entry, measure)
    if not found:
        return f"failed{paper}" if not entry.cells else "not measured"
    shown = with_spread(found, measure_digits(comparison, measure))
    standing = row.standing(measure)
    shown = f"**{shown}**" if system in standing.best else f"≈ {shown}" if system in standing.close else shown
    wanted = entry.n_wanted(len(comparison.seeds))
    short = f", {len(found)} of {count(wanted, repeat)}" if len(found) < wanted else ""
    return f"{shown}{paper}{short}"


def markdown(tables: Sequence[Comparison]) -> str:
    """The table of means of each table of results, and of several labels that of exact match."""
    blocks = []
    for comparison in tables:
        lines = [f"### {_plain(comparison.title)}", ""] if len(tables) > 1 else []
        lines += _markdown_rows(comparison, ERROR)
        has_paper = any(entry.published is not None for row in comparison.rows for entry in row.entries.values())
        lines += ["", explanation(comparison) + (" In brackets: the paper." if has_paper else "")]
        lines += [
            f"\n⚠ {_plain(row.label)}: not comparable as they stand: {_plain('; '.join(row.warnings))}."
            for row in comparison.rows
            if row.warnings
        ]
        if "exact_match" in comparison.measures:
            lines += ["", explanation(comparison, "exact_match"), "", *_markdown_rows(comparison, "exact_match")]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _markdown_rows(comparison: Comparison, measure: str) -> list[str]:
    labels = [_plain(label) for label in comparison.systems.values()]
    lines = [f"| data set | {' | '.join(labels)} |", "|---|" + "---|" * len(labels)]
    for row in comparison.rows:
        words = origin_words(row.cells)
        name = _plain(row.label) + (f" ({_plain(words)})" if words else "") + (" ⚠" if row.warnings else "")
        entries = [plain_entry(comparison, row, system, measure) for system in comparison.systems]
        lines.append(f"| {name} | {' | '.join(entries)} |")
    return lines


def markdown_notes(notes: Sequence[str]) -> str:
    """What is not shown, as a list; nothing if all is."""
    return "\nNot shown:\n\n" + "".join(f"- {_plain(note)}\n" for note in notes) if notes else ""


def _plain(text: str) -> str:
    """Text that means nothing else in a Markdown table."""
    shown = " ".join(text.split()).replace("\\", "\\\\")
    for sign in "|*_`[]<>":
        shown = shown.replace(sign, f"&#{ord(sign)};" if sign in "<>" else f"\\{sign}")
    return shown
