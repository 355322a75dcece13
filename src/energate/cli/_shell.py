"""What the commands share: arguments, where they print, how they fail, and the model that they load."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from energate.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from energate.views.tabular import BaseColumns, TableModel

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="What `energate fit` or `energate.save` wrote.")]
Data = Annotated[Path, typer.Argument(metavar="DATA", help="A .csv, .tsv, .parquet, .npz or .arff file.")]
Part = Annotated[str, typer.Option(help="Of an NPZ file with several: train, valid or test.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")]
BasePrefix = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Columns TEXT + label hold what another program says of each label.")
]
BaseScores = Annotated[Literal["probabilities", "logits"], typer.Option(help="What those columns hold.")]

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


# --- models ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """A model with its columns, and where the base of a refiner is, if not in the model."""

    table: "TableModel"
    base_is: str | None = None

    @classmethod
    def of(cls, path: Path, device: str) -> "Loaded":
        """Load a model; a refiner goes without a base that is not in its files, or that only Python may read."""
        with messages().status(f"{path.name}: loading"):
            from energate.persistence import load, read_about
            from energate.views.tabular import TableModel

            about = read_about(path)
            if about.function is not None:
                raise InputError(
                    f"{path.name} was fitted with a function of Python, {about.function}, as `units`, which is not in "
                    "its file: commands cannot use it. Use it from Python, or fit a model with `energate fit --units "
                    "mean`, covariance or mean-covariance."
                )
            if about.base is None:
                return cls(TableModel(load(path, device), about.columns, path.name))
            model = load(path, device, base=None)
        # skops reads types that somebody has looked at; a list of them is no thing to type into a shell.
        where = "in a part of its file that is read from Python alone" if about.has_base else "not in its file"
        return cls(TableModel(model, about.columns, path.name), f"a {about.base}, is {where}")

    @property
    def model(self) -> Any:
        """The estimator."""
        return self.table.model

    def base(self, command: str, prefix: str | None, kind: str) -> "BaseColumns | None":
        """Where a table has what the base says; refuses a command that asks a base which is not there."""
        from energate.views.tabular import BaseColumns

        if prefix is not None:
            return BaseColumns(prefix, kind)
        if self.base_is is None:
            return None
        instead = "refine" if command == "predict" else command
        way = f"run `energate {instead}`" if command != instead else "run this again"
        raise InputError(
            f"`energate {command}` asks the base of {self.table.name} first; the base, {self.base_is}. Put what it "
            f"says of each label into columns of DATA, such as p_{self.table.labels()[0]}, and {way} with "
            "--base-prefix p_."
        )
