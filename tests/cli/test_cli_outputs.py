"""An output that is the input, a link to it, or a folder is refused before work begins, whatever writes."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from energate import EnergyClassifier, save
from energate.cli import app

pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
pytest.importorskip("PIL", reason="the extra `images` is not installed")

#: what a command is given; IN is its input, in a format that OUT may have, too
COMMANDS = {
    "fit": ("data.csv", "fit IN --target y -o OUT"),
    "search": ("data.csv", "search IN --target y -o OUT"),
    "predict": ("data.csv", "predict model.zip IN -o OUT"),
    "score": ("data.csv", "score model.zip IN -o OUT"),
    "score, read twice": ("data.csv", "score model.zip IN --fdr 0.1 -o OUT"),
    "refine": ("data.csv", "refine model.zip IN -o OUT"),
    "impute": ("data.csv", "impute IN -o OUT"),
    "impute, from another": ("data.csv", "impute other.csv --fit-on IN -o OUT"),
    "denoise": ("data.npz", "denoise model.zip IN -o OUT"),
    "inpaint": ("picture.png", "inpaint model.zip IN -o OUT"),
    "inpaint, mask": ("picture.png", "inpaint model.zip data.npz --mask IN -o OUT"),
    "explain": ("picture.png", "explain model.zip IN -o OUT"),
    "importance": ("picture.png", "importance model.zip IN -o OUT"),
    "data show": ("picture.png", "data show IN -o OUT"),
    "predict, a job": ("data.csv", "predict model.zip IN other.csv -o OUT"),
}
#: what writes into a folder of its own, or another place that holds no input
FOLDERS = ("data get", "data make", "report")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, X = tmp_path_factory.mktemp("model") / "model.zip", np.random.default_rng(0).normal(size=(12, 2))
    save(EnergyClassifier("memory", random_state=0, device="cpu").fit(X, np.arange(12) % 2), path)
    return path


@pytest.fixture
def shelf(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inputs, a model that nobody may load, and a folder for what commands are told to write."""
    from PIL import Image

    from energate.persistence.loaded import Loaded
    from energate.views import fitting

    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{i % 3},{i},{'ab'[i % 2]}" for i in range(12))
    for name in ("data.csv", "other.csv"):
        Path(name).write_text(f"a,b,y\n{rows}\n")
    np.savez("data.npz", X=np.zeros((3, 4)))
    Image.new("L", (4, 4), 255).save("picture.png")
    shutil.copy(model, "model.zip")

    def working(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(Loaded, "of", working)
    monkeypatch.setattr(fitting, "fit_table", working)
    return tmp_path


def refused(command: str, name: str, out: str) -> str:
    result = CliRunner().invoke(app, [{"IN": name, "OUT": out}.get(word, word) for word in command.split()])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.parametrize("kind", ["itself", "another name", "link to a link", "second name"])
def test_an_input_is_not_overwritten(case: str, kind: str, shelf: Path) -> None:
    name, command = COMMANDS[case]
    before, link = Path(name).read_bytes(), f"link{Path(name).suffix}"
    match kind:
        case "itself":
            link = name
        case "another name":
            link = f"{shelf}/../{shelf.name}/{name}"
        case "second name":
            os.link(name, link)
        case _:
            Path("middle").symlink_to(name)
            Path(link).symlink_to("middle")
    line = refused(command, name, link)
    assert any(words in line for words in ("is DATA itself", "not overwritten", "no folder of a job"))
    assert Path(name).read_bytes() == before


@pytest.mark.parametrize("case", COMMANDS)
def test_a_folder_is_no_file(case: str, shelf: Path) -> None:
    name, command = COMMANDS[case]
    out = Path("model2.zip") if case in ("fit", "search") else Path(f"folder{Path(name).suffix}")
    out.mkdir()
    (out / "precious").touch()
    assert "folder" in refused(command, name, str(out))
    assert [each.name for each in out.iterdir()] == ["precious"]


@pytest.mark.parametrize("case", ["fit", "search"])
def test_a_card_that_cannot_be_written_is_told_before_the_fit(case: str, shelf: Path) -> None:
    Path("m-card.md").mkdir()
    assert "m-card.md is a folder" in refused(COMMANDS[case][1], "data.csv", "m.zip")


def test_an_export_over_a_model_is_refused(shelf: Path) -> None:
    Path("here.onnx").mkdir()
    assert "here.onnx is a folder" in refused("export IN --onnx OUT", "model.zip", "here.onnx")
    shutil.copy("model.zip", "model.onnx")  # what is in a file says what it is, not its name
    assert "is MODEL itself" in refused("export IN --onnx OUT", "model.onnx", "model.onnx")


def test_a_job_into_a_folder_of_tables_is_refused(shelf: Path) -> None:
    Path("parts").mkdir()
    shutil.copy("data.csv", "parts/a.csv")
    for out in ("parts", "parts/a.csv"):
        assert "no folder of a job" in refused("predict model.zip IN -o OUT", "parts", out)


def test_every_command_that_writes_is_here() -> None:
    tested = {words.partition(",")[0] for words in COMMANDS} | {*FOLDERS, "export"}

    def writers(command: object, name: str = "") -> set[str]:
        inner = getattr(command, "commands", {})
        found = {each for key, one in inner.items() for each in writers(one, f"{name} {key}".strip())}
        options = {option for each in getattr(command, "params", ()) for option in each.opts}
        return found | ({name} if {"--output", "--onnx"} & options else set())

    assert writers(get_command(app)) == tested
