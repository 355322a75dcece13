"""Numbers in words, and the few pieces of HTML that every section is made of."""

from collections.abc import Sequence

from energate.paper.report._compare import Comparison
from energate.paper.report._pictures import escape
from energate.paper.report._statistics import ERROR, mean_spread, values

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


def config_words(config: dict[str, str]) -> str:
    """A configuration as HTML."""
    return "; ".join(f"{escape(key)} = {escape(value)}" for key, value in config.items())


def thousands(count: int) -> str:
    """A count with a comma at every thousand."""
    return f"{count:,}"


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
