"""What the commands share: where they print, and how they fail."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import IO

import typer
from rich.console import Console
from rich.table import Table

from energate.errors import InputError, MissingExtraError

# Wide enough that nothing is cut or wrapped where no terminal sets a width: a line for each thing, for grep.
_NO_TERMINAL = 10_000


def output() -> Console:
    """Results: plain text without colours where it does not go to a terminal."""
    return _console(sys.stdout)


def messages() -> Console:
    """Everything else, so that a pipe gets results only."""
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _NO_TERMINAL
    return console


@contextlib.contextmanager
def plainly(how_to_go_on: str) -> Iterator[None]:
    """Of errors that a user can mend, and of Ctrl-C, say one line; also works as a decorator of a command."""
    try:
        yield
    except (InputError, MissingExtraError) as error:
        say(f"Error: {' '.join(str(error).split())}", "bold red")
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        say(f"Stopped. {how_to_go_on}", "yellow")
        raise typer.Exit(130) from error


def say(text: str, style: str = "") -> None:
    """One line on stderr."""
    messages().print(text, style=style, soft_wrap=True)


def table(*headers: str, right: Iterable[str] = ()) -> Table:
    """An empty table; on a narrow terminal long texts go on in the next line, and nothing is cut."""
    made = Table(box=None, show_header=any(headers), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        made.add_column(header, justify="right" if header in set(right) else "left", overflow="fold")
    return made


def show(filled: Table) -> None:
    """Print a table; without the blanks that end its lines where no terminal shows it."""
    console = output()
    if console.is_terminal:
        console.print(filled)
        return
    with console.capture() as capture:
        console.print(filled)
    for line in capture.get().splitlines():
        console.print(line.rstrip(), soft_wrap=True)


def split(values: list[str] | None) -> list[str] | None:
    """The values of an option that may be repeated or hold several names between commas; None if it was not given."""
    if values is None:
        return None
    names = [name.strip() for value in values for name in value.split(",")]
    return [name for name in dict.fromkeys(names) if name]
