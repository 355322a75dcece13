"""`energate denoise` and `inpaint`: pictures in, pictures out."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from energate.cli._shell import Device, Model, OnError, Part, ended_by_terminate, loaded, output, plainly, progress, say
from energate.errors import InputError
from energate.files import check_output

_GO_ON = "Nothing was written; what was there is as it was."
_Pictures = Annotated[
    list[Path], typer.Argument(metavar="DATA", help="A folder of pictures, some files, or an .npz file.")
]
_Out = Annotated[
    Path, typer.Option("--output", "-o", metavar="OUT", help="A new folder, an .npz file, or a .png file for one.")
]
_Json = Annotated[bool, typer.Option("--json", help="Say what was done as JSON, for other programs.")]


@plainly(_GO_ON)
def denoise(
    model: Model,
    data: _Pictures,
    out: _Out,
    level: Annotated[
        float | None, typer.Option(min=1e-6, help="Of the noise, for a model that is told: a share of the range.")
    ] = None,
    part: Part = "test",
    on_error: OnError = "fail",
    device: Device = "auto",
    as_json: _Json = False,
) -> None:
    """Take the noise out of pictures: one step along the field of all classes together.

    Pictures come out in the size, and the colours, that the model takes.

    Example: energate denoise digits.zip noisy -o clean
    """
    _restore(model, device, data, out, as_json, command="denoise", level=level, part=part, on_error=on_error)


@plainly(_GO_ON)
def inpaint(
    model: Model,
    data: _Pictures,
    out: _Out,
    mask: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A picture that is bright where pixels are unknown.")
    ] = None,
    box: Annotated[
        str | None, typer.Option(metavar="Y,X,H,W", help="The box that is unknown, in pixels of the model.")
    ] = None,
    part: Part = "test",
    on_error: OnError = "fail",
    device: Device = "auto",
    as_json: _Json = False,
) -> None:
    """Fill in pixels that are unknown: transparent ones, or those of --mask or --box.  The others stay as they are.

    Example: energate inpaint digits.zip torn -o whole --box 0,14,28,14
    """
    from energate.views.restoring import Hole

    hole = Hole(None if box is None else _box(box), mask)
    _restore(model, device, data, out, as_json, command="inpaint", hole=hole, part=part, on_error=on_error)


def _box(text: str) -> tuple[int, int, int, int]:
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*", text)
    if found is None:
        raise InputError(f"--box must be top,left,height,width, such as 0,14,28,14; got {text!r}.")
    top, left, height, width = map(int, found.groups())
    return top, left, height, width


def _restore(model: Path, device: str, data: list[Path], out: Path, as_json: bool, **options: Any) -> None:
    from energate.views.restoring import restore_pictures

    if out.suffix:  # a folder is looked at there
        mask = options["hole"].file if "hole" in options else None
        check_output(out, [*data, *([] if mask is None else [mask])])
    known = loaded(model, device)
    with ended_by_terminate(), progress(data[0].name) as tell:
        done = restore_pictures(known.table, data[0] if len(data) == 1 else data, out, tell=tell, **options)
    for note in done.notes:
        say(f"Note: {note}", "yellow")
    if as_json:
        typer.echo(
            json.dumps({"output": str(out), "pictures": done.n_rows, "seconds": round(done.seconds, 3)}, indent=2)
        )
    else:
        output().print(f"wrote {out}: {done.n_rows:,} pictures in {done.seconds:.1f} s", soft_wrap=True)
