"""`energate data`: list the data sets, fetch or make them as files, and look at them."""

import json
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energate.cli._shell import (
    Delimiter,
    Encoding,
    Na,
    check_picture,
    messages,
    note,
    opened,
    output,
    plainly,
    split,
    table,
)
from energate.cli._shell import show as show_rows
from energate.errors import InputError

if TYPE_CHECKING:
    from energate.datasets import Dataset, Saved
    from energate.tables.reading import Source

app = typer.Typer(help="Data sets: list them, fetch or make them, look at them.", no_args_is_help=True)

_PARTS = ("train", "valid", "test")
_WIDE = 110
_MOST_SHOWN = 40  # columns of a table
_KEPT = "Sets that were finished are kept; the same command does the rest."

_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets; `energate data list` shows them.")]
_Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write to.")]
_Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")]
_Source = Literal["auto", "folder", "download", "generate"]
_Json = Annotated[bool, typer.Option("--json", help="Say what was written as JSON, for other programs.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that have other content.")]

# --- list --------------------------------------------------------------------------------------------------------


@app.command("list")
@plainly("Nothing was written.")
def show_list(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")] = False,
) -> None:
    """List the data sets, and where each can come from on this machine.

    folder: the folder that ENERGATE_DATA names has its files.  cache: it was downloaded before.  generate: its rule
    can make it here.  `energate data get` takes the first of these; without any, the original is downloaded.

    Example: energate data list --json
    """
    from energate.datasets import (
        MULTILABEL_NAMES,
        NAMES,
        at_hand,
        describe_dataset,
        describe_multilabel,
        labels_at_hand,
    )

    sets = [describe_dataset(name) for name in NAMES]
    labelled = [describe_multilabel(name) for name in MULTILABEL_NAMES]
    if as_json:
        first = ("name", "sizes", "n_classes", "shape", "rule")
        second = ("name", "n_rows", "n_features", "n_labels", "rule", "stands_for")
        content = [{key: getattr(each, key) for key in first} | {"at_hand": at_hand(each)} for each in sets]
        for entry in content:
            entry["sizes"] = dict(zip(_PARTS, entry["sizes"], strict=True))
        content += [
            {key: getattr(each, key) for key in second} | {"at_hand": labels_at_hand(each)} for each in labelled
        ]
        typer.echo(json.dumps(content, indent=2))
        return
    # A narrow terminal shows no rules: broken into many short lines they would hide the rest.
    rule = ["rule"] if output().width >= _WIDE else []
    rows = table("name", *_PARTS, "classes", "at hand", *rule, right=(*_PARTS, "classes"))
    for column in rows.columns[:6]:
        column.no_wrap = True
    for each in sets:
        cells = [each.name, *(f"{size:,}" for size in each.sizes), str(each.n_classes), ", ".join(at_hand(each)) or "-"]
        rows.add_row(*cells, *([each.rule] if rule else []))
    show_rows(rows)
    output().print("\nRows with several labels:", style="bold")
    rows = table("name", "rows", "columns", "labels", "at hand", *rule, right=("rows", "columns", "labels"))
    for other in labelled:
        counts = [f"{count:,}" for count in (other.n_rows, other.n_features, other.n_labels)]
        rows.add_row(other.name, *counts, ", ".join(labels_at_hand(other)) or "-", *([other.rule] if rule else []))
    show_rows(rows)


# --- get and make ------------------------------------------------------------------------------------------------


@app.command()
@plainly(_KEPT)
def get(
    names: _Names,
    folder: _Folder = Path(),
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where downloaded archives are kept.")] = None,
    source: Annotated[_Source, typer.Option(help="auto: the first of the others that has the set.")] = "auto",
    seed: _Seed = 0,
    overwrite: _Overwrite = False,
    as_json: _Json = False,
) -> None:
    """Get data sets as NPZ files, and say where their rows come from.

    Example: energate data get rectangles yeast --output sets
    """
    _save(names, folder, seed, source, cache, overwrite, as_json)


@app.command()
@plainly(_KEPT)
def make(
    names: _Names, folder: _Folder = Path(), seed: _Seed = 0, overwrite: _Overwrite = False, as_json: _Json = False
) -> None:
    """Make data sets by their published rules, with a seed of your own, as NPZ files.

    Sets of digits and of photographs take mnist.npz and natural_images20.npz from the folder ENERGATE_DATA names.
    flowers is a table to begin with: flowers.csv, and new.csv, rows of which the kind is not told.

    Example: energate data make rectangles convex --seed 7 --output sets
    """
    from energate.datasets.flowers import NAME, write_flowers

    others = [name for name in split(names) or [] if name != NAME]
    paths = write_flowers(folder, overwrite) if NAME in (split(names) or []) else []
    for path in [] if as_json else paths:
        output().print(f"wrote {path}", soft_wrap=True)
    if others or not paths:
        _save(others, folder, seed, "generate", None, overwrite, as_json)
    elif as_json:
        typer.echo(json.dumps({"files": [{"name": NAME, "path": str(path)} for path in paths]}))


def _save(
    names: list[str], folder: Path, seed: int, source: str, cache: Path | None, overwrite: bool, as_json: bool
) -> None:
    from energate.datasets import MULTILABEL_NAMES, describe_dataset, save_dataset

    wanted = split(names) or []
    for name in wanted:
        if name not in MULTILABEL_NAMES:
            describe_dataset(name)  # a wrong name is told before any work is done
        elif source == "generate":
            raise InputError(f"{name} is real data: there is no rule to make it by. Use `energate data get {name}`.")
    written = []
    for name in wanted:
        if name in MULTILABEL_NAMES:
            saved = _save_labels(name, folder, source, cache, overwrite, as_json)
        else:
            data = _load(name, seed, source, cache)
            with messages().status(f"{name}: writing"):
                saved = save_dataset(data, folder, overwrite=overwrite)
            if not as_json:
                _show_parts(data)
        written.append({"name": name, **vars(saved), "path": str(saved.path)})
        if not as_json:
            state = "wrote" if saved.new else "there already, with these rows:"
            output().print(f"{state} {saved.path} ({_size(saved.n_bytes)}, sha256 {saved.sha256})\n", soft_wrap=True)
    if as_json:
        typer.echo(json.dumps({"files": written}))


def _save_labels(name: str, folder: Path, source: str, cache: Path | None, overwrite: bool, quiet: bool) -> "Saved":
    from energate.datasets import load_multilabel, save_labels

    with messages().status(f"{name}: loading"):
        data = load_multilabel(name, source="openml" if source == "download" else source, cache=cache)
        saved = save_labels(data, folder, overwrite=overwrite)
    if not quiet:
        counts = f"{data.X.shape[0]:,} rows, {data.X.shape[1]:,} columns, {data.Y.shape[1]:,} labels"
        words = f"{data.provenance['source']}, {data.provenance['word']}"
        output().print(f"{name}, source: {words}: {counts}", style="bold")
    return saved


def _load(name: str, seed: int, source: str, cache: Path | None = None) -> "Dataset":
    """A data set; warnings, such as that rows are generated, become lines."""
    from energate.datasets import load_dataset

    with messages().status(f"{name}: loading"), warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        data = load_dataset(name, seed, source=source, cache=cache)
    note(str(each.message) for each in notes)
    return data


def _show_parts(data: "Dataset") -> None:
    origin, drawn = data.provenance["source"], data.provenance["seed"]
    title = f"{data.name}, source: {origin}" + (f", seed {drawn}" if drawn is not None else "")
    rows = table("part", "rows", "pixels", "provenance", "sha256 of x", right=("rows", "pixels"))
    for part in _PARTS:
        n_rows, n_pixels = getattr(data, f"X_{part}").shape
        words, digest = data.provenance[part], data.provenance["sha256"][f"X_{part}"]
        rows.add_row(part, f"{n_rows:,}", str(n_pixels), words, digest[:16])
    output().print(title, style="bold")
    show_rows(rows)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e5 else f"{n_bytes / 1e3:.1f} kB"


# --- show --------------------------------------------------------------------------------------------------------


@app.command()
@plainly("No picture was written.")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A data set, or a table of your own.")],
    picture: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The picture; NAME-PART.png if left out.")
    ] = None,
    part: Annotated[Literal["train", "valid", "test"], typer.Option(help="Which rows.")] = "train",
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of images for each class.")] = None,
    columns: Annotated[int, typer.Option(min=1, help="Images in each row.")] = 12,
    transpose: Annotated[bool, typer.Option("--transpose", help="Swap height and width: digits stand up.")] = False,
    source: Annotated[_Source, typer.Option(help="As for `get`.")] = "auto",
    seed: _Seed = 0,
    target: Annotated[str | None, typer.Option(help="Of your own table: the column with the classes.")] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="HxW", help="Of your own table: its rows are images of this size.")
    ] = None,
    na: Na = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
) -> None:
    """Draw a contact sheet: images of each class of a data set, drawn at random under the seed.

    Of a table of your own (.csv, .tsv, .jsonl, .parquet, .npz, .arff, or - for standard input) it prints what is in
    each column, what of it is guessed, and what `energate fit` would take; with --shape it draws, too.

    Example: energate data show convex --output convex.png
    """
    check_picture(picture)
    options = {"n_rows": rows, "n_columns": columns, "transpose": transpose, "seed": seed}
    from energate.tables.text import kind_of

    if name == "-" or kind_of(Path(name)):  # no data set has a point in its name
        own = opened(Path(name), part, delimiter, encoding)
        check_picture(picture, own.inputs)
        _show_table(own, split(na) or [], target, shape, picture, options)
        return
    from energate.datasets import describe_dataset
    from energate.datasets.sheets import CLASS_NAMES

    about = describe_dataset(name)
    if target is not None or shape is not None:
        raise InputError("--target and --shape are for a table of your own, such as pixels.csv; leave them out.")
    data = _load(name, seed, source)
    X, y = getattr(data, f"X_{part}"), getattr(data, f"y_{part}")
    _draw(
        picture or Path(f"{name}-{part}.png"),
        X,
        y,
        data.shape,
        title=f"{name}, {part}: {data.provenance[part]}",
        caption=f"{len(X):,} rows: {about.rule}",
        class_names=CLASS_NAMES.get(name),
        limits=(0, 1),
        **options,
    )


def _show_table(
    source: "Source",
    missing: list[str],
    target: str | None,
    shape: str | None,
    picture: Path | None,
    options: dict[str, Any],
) -> None:
    from energate.datasets import load_table
    from energate.tables import CellError, learn_columns
    from energate.tables.learning import describe_columns
    from energate.tables.values import counted, listed

    path = source.path
    if picture is not None and shape is None:
        raise InputError("A picture of a table needs the size of its images: --shape 28x28, say.")
    if shape is not None and target is None:
        raise InputError(f"Say which column of {path.name} holds the classes: --target NAME.")
    size = _parsed(shape) if shape is not None else None
    targets = [] if target is None else source.groups.get(target, [target])
    absent = [name for name in targets if name not in source.names]
    if absent:
        raise InputError(f"There is no column {listed(absent)} in {path.name}; there are {listed(source.names)}.")
    table_ = source.read()
    try:
        columns, notes = learn_columns(
            table_,
            task="classify" if targets else "anomaly",
            targets=targets,
            drop=source.index,
            missing=missing,
            decimal=source.decimal,
            declared=source.nominal,
        )
    except CellError as error:
        raise source.told(error) from error
    described = describe_columns(table_, columns, missing)
    n_all = len(next(iter(table_.values())))
    output().print(f"{path.name}: {counted(n_all, 'row')}, {counted(len(described), 'column')}", style="bold")
    rows = table("column", "taken as", "missing", "values", right=("missing",))
    for each in described[:_MOST_SHOWN]:
        rows.add_row(each.name, each.kind, f"{each.n_missing:,}" if each.n_missing else "", each.values)
    show_rows(rows)
    if len(described) > _MOST_SHOWN:
        output().print(f"and {counted(len(described) - _MOST_SHOWN, 'column')} more")
    if columns.inputs:
        output().print(f"energate fit would take {counted(len(columns.inputs), 'column')}.")
    note([*source.told_notes(), *notes])
    if size is not None:
        assert target is not None
        X, y, _ = load_table(path, target)
        caption = f"{size[0]} x {size[1]} pixels"
        _draw(picture or Path(f"{path.stem}.png"), X, y, size, title=path.name, caption=caption, **options)


def _parsed(shape: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)\s*[xX,]\s*([1-9]\d*)", shape.strip())
    if match is None:
        raise InputError(f"--shape must be height x width, such as 28x28; got {shape!r}.")
    return int(match[1]), int(match[2])


def _draw(picture: Path, X: Any, y: Any, shape: tuple[int, int], **options: Any) -> None:
    from energate.datasets import contact_sheet
    from energate.files import written_whole

    with messages().status("drawing"):
        figure = contact_sheet(X, y, shape, **options)
        with written_whole(picture) as file:
            figure.savefig(file, format=picture.suffix[1:].lower())
    output().print(f"wrote {picture}", soft_wrap=True)
