"""What the commands share: arguments, where they print, how they fail, and the model that they load."""

import contextlib
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from energate.errors import InputError, MissingExtraError
from energate.files import check_output

if TYPE_CHECKING:
    from energate.persistence.loaded import Loaded
    from energate.tables.reading import Source

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="What `energate fit` or `energate.save` wrote.")]
FILES = "A .csv, .tsv, .jsonl, .parquet, .npz or .arff file, text also with .gz, or - for standard input"
Data = Annotated[Path, typer.Argument(metavar="DATA", help=f"{FILES}; or a folder of pictures.")]
OnError = Annotated[
    Literal["fail", "skip"], typer.Option(help="A file that is no picture: refuse everything, or go on without it.")
]
Delimiter = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="What stands between the cells of a text file; guessed if left out."),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="That of a text file, such as latin-1 or utf-16; guessed if left out."),
]
Na = Annotated[
    list[str] | None, typer.Option(metavar="A,B", help="What else means a missing cell, such as unknown or -99.")
]
Index = Annotated[
    list[str] | None, typer.Option(metavar="A,B", help="Columns that number or name the rows: they are left out.")
]
Decimal = Annotated[
    Literal[".", ","] | None, typer.Option(help="The mark before fractions in text; guessed if left out.")
]
Part = Annotated[str, typer.Option(help="Of an NPZ file with several: train, valid or test.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[
    str | None, typer.Option(help="exact, fast (float32, on a GPU TF32) or lowest (bfloat16); as fitted if left out.")
]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")]
BasePrefix = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Columns TEXT + label hold what another program says of each label.")
]
BaseScores = Annotated[Literal["probabilities", "logits"], typer.Option(help="What those columns hold.")]

SILENCE = 10.0  # seconds between two lines of progress in a pipe
# Wide enough that nothing is cut or wrapped where no terminal sets a width: a line for each thing, for grep.
_NO_TERMINAL = 10_000


class PlainCommand(TyperCommand):
    """A command whose help does not say <bool> beside a switch; typer has no setting for it."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """The same of several commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


_SILENT = False


def silence(wanted: bool) -> None:
    """Print nothing from now on, or print again: of several processes that do the same, one speaks."""
    global _SILENT  # noqa: PLW0603
    _SILENT = wanted


def output() -> Console:
    """Results: plain text without colours where it does not go to a terminal."""
    return _console(sys.stdout)


def messages() -> Console:
    """Everything else, so that a pipe gets results only."""
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False, quiet=_SILENT)
    if not console.is_terminal:
        console.width = _NO_TERMINAL
    return console


@contextlib.contextmanager
def plainly(how_to_go_on: str) -> Iterator[None]:
    """Of errors that a user can mend, and of Ctrl-C, say one line; also works as a decorator of a command."""
    try:
        yield
    except (InputError, MissingExtraError) as error:
        say(f"Error: {_line(error)}", "bold red")
        raise typer.Exit(2) from error
    except (MemoryError, RuntimeError) as error:
        from energate.tables.room import lacks_memory  # not before: help is told without numpy

        if not lacks_memory(error):
            raise
        said = f" ({_line(error)[:200]})" if str(error) else ""
        say(f"Error: memory ran out{said}. Take fewer rows or columns.", "bold red")
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        say(f"Stopped. {how_to_go_on}", "yellow")
        raise typer.Exit(130) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


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


def is_model(path: Path) -> None:
    """Refuse a path at which there is no model, before torch is imported."""
    from energate.persistence import look

    look(path)


def opened(data: Path, part: str, delimiter: str | None = None, encoding: str | None = None) -> "Source":
    """A table, or what is wrong with it, before torch is imported."""
    from energate.tables import open_table

    with in_flags():
        return open_table(data, part, delimiter=_character(delimiter), encoding=encoding)


def _character(delimiter: str | None) -> str | None:
    return {"\\t": "\t", "tab": "\t", "space": " "}.get(delimiter, delimiter) if delimiter else delimiter


@contextlib.contextmanager
def in_flags() -> Iterator[None]:
    """Say of parameters what they are called here: `targets_prefix` is --targets-prefix."""
    try:
        yield
    except InputError as error:
        text = re.sub(r"`([a-z_]+)`", lambda match: f"--{match[1].replace('_', '-')}", str(error))
        raise InputError(text) from error


def note(notes: Iterable[str]) -> None:
    """Things worth knowing, a line on stderr for each."""
    for each in notes:
        say(f"Note: {each}", "yellow")


def split(values: list[str] | None) -> list[str] | None:
    """The values of an option that may be repeated or hold several names between commas; None if it was not given."""
    if values is None:
        return None
    names = [name.strip() for value in values for name in value.split(",")]
    return [name for name in dict.fromkeys(names) if name]


@contextlib.contextmanager
def ended_by_terminate() -> Iterator[None]:
    """Let `kill` end the work as Ctrl-C does, so that nothing half-written stays behind."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: whoever runs this handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def progress(name: str) -> Iterator[Callable[[int], None]]:
    """Says how many rows of a file are done: in a line that changes in a terminal, else in one every ten seconds."""
    console = messages()
    if not console.is_terminal:
        last = time.monotonic()

        def say_sometimes(n_rows: int) -> None:
            nonlocal last
            if time.monotonic() - last >= SILENCE:
                last = time.monotonic()
                say(f"{name}: {n_rows:,} rows so far")

        yield say_sometimes
        return
    with console.status(f"{name}: reading") as status:
        yield lambda n_rows: status.update(f"{name}: {n_rows:,} rows")


# --- models ------------------------------------------------------------------------------------------------------


def loaded(path: Path, device: str, precision: str | None = None) -> "Loaded":
    """A saved model for tables, in its own precision or in another."""
    with messages().status(f"{path.name}: loading"):
        from energate.persistence.loaded import Loaded

        found = Loaded.of(path, device)
        if precision is not None:
            from energate.views import set_precision

            set_precision(found.model, precision)
        return found


# --- pictures ----------------------------------------------------------------------------------------------------

_PICTURES = (".png", ".pdf", ".svg")


def check_picture(path: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Refuse a name that is not that of a picture, or that of what is read, before work begins."""
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise InputError(f"A picture must be a {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]} file; got {str(path)!r}.")
    check_output(path, inputs)


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib, whole or not at all."""
    from energate.files import written_whole

    with written_whole(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())
