import importlib.metadata
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import energate
from energate.cli import app
from energate.cli._shell import split
from energate.cli.bench import duration
from energate.datasets import MULTILABEL_NAMES, NAMES, Dataset, load_dataset, make_rectangles, sheets, store, suite
from energate.datasets.sources import NotHereError
from energate.errors import InputError, MissingExtraError

HEAVY = {"torch", "sklearn", "numpy", "matplotlib", "pandas", "scipy"}
PARTS = ("train", "valid", "test")


def call(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def refused(*arguments: str) -> str:
    """The one line that a command with bad input writes; it must be all that it writes."""
    result = call(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Each test in a folder of its own, without the machine's data and cache."""
    monkeypatch.chdir(tmp_path)
    if not request.node.get_closest_marker("data"):
        monkeypatch.delenv("ENERGATE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """A folder with a file as the published one."""
    folder = tmp_path / "originals"
    folder.mkdir()
    X, y = make_rectangles(51_200, seed=5)
    cuts = {"train": slice(1000), "valid": slice(1000, 1200), "test": slice(1200, None)}
    arrays: dict[str, Any] = {f"x_{part}": X[cut].astype(np.uint8) for part, cut in cuts.items()}
    np.savez_compressed(folder / "rectangles.npz", **arrays, **{f"y_{part}": y[cut] for part, cut in cuts.items()})
    return folder


# --- the whole ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["data", "show", "--help"], ["bench", "-h"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom energate.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit as end: assert not end.code\n"
        f"assert not {HEAVY!r} & set(sys.modules), sys.modules.keys()"
    )
    result = shell("-c", code)
    assert result.returncode == 0, result.stderr
    assert "Usage:" in result.stdout


def test_version_and_both_ways_to_start() -> None:
    said = call("--version").stdout
    assert said.startswith(f"energate {energate.__version__} (Python ")
    assert f"torch {torch.__version__}, device " in said
    assert shell("-m", "energate", "--version").stdout == said
    scripts = importlib.metadata.entry_points(group="console_scripts", name="energate")
    assert [script.value for script in scripts] == ["energate.cli:main"]
    assert scripts["energate"].load() is energate.cli.main


def test_unknown_commands_and_options_exit_with_2() -> None:
    call("nonsense", code=2)
    call("data", "list", "--nonsense", code=2)
    call("data", "get", "digits", "--source", "nowhere", code=2)


@given(st.lists(st.text("abc- "), max_size=4))
def test_names_may_be_repeated_or_between_commas(names: list[str]) -> None:
    expected = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    assert split([",".join(names)]) == expected
    assert split(names) == expected
    assert split(None) is None


@given(st.integers(0, 10**6))
def test_durations_in_words(seconds: int) -> None:
    units = {"h": 3600, "min": 60, "s": 1}
    words = duration(seconds).split()
    total = sum(int(n) * units[unit] for n, unit in zip(words[::2], words[1::2], strict=True))
    assert total == (seconds if seconds < 3600 else seconds // 60 * 60)


def test_durations_of_example() -> None:
    assert [duration(s) for s in (0.2, 182, 3600, 59.9)] == ["0 s", "3 min 2 s", "1 h 0 min", "1 min 0 s"]


def test_progress_in_a_pipe_is_a_line_now_and_then_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from energate.cli import fit
    from energate.estimators import progress
    from energate.training import History, Progress

    clock = [0.0]
    monkeypatch.setattr(fit.time, "monotonic", lambda: clock[0])
    with fit._showing("t.csv"):
        tell = progress._WATCHER.get()
        assert tell is not None
        for epoch in range(1, 41):
            clock[0] += 1.0
            history = History(loss=[torch.tensor([1.0 / epoch])])
            tell("denoise", Progress(epoch, 100, history, torch.tensor([0.5])))
    assert capsys.readouterr().err.splitlines() == [
        "denoise: 100 epochs at most",
        "denoise: epoch 11 of 100, loss 0.0909, best validation loss 0.5000, 1 min 29 s left at most",
        "denoise: epoch 21 of 100, loss 0.0476, best validation loss 0.5000, 1 min 19 s left at most",
        "denoise: epoch 31 of 100, loss 0.0323, best validation loss 0.5000, 1 min 9 s left at most",
    ]


# --- data list ---------------------------------------------------------------------------------------------------


def test_list_shows_every_set_on_one_line_when_piped() -> None:
    result = shell("-m", "energate", "data", "list", env=os.environ | {"COLUMNS": "40"})
    first, second = result.stdout.split("\nRows with several labels:\n")
    header, *others = second.splitlines()
    assert header.split() == ["name", "rows", "columns", "labels", "at", "hand", "rule"]
    assert [line.split()[0] for line in others] == list(MULTILABEL_NAMES)
    header, *lines = first.splitlines()
    assert header.split() == ["name", *PARTS, "classes", "at", "hand", "rule"]
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert "\x1b" not in result.stdout
    assert all(line == line.rstrip() for line in lines)
    assert all(suite.describe_dataset(name).rule in line for name, line in zip(NAMES, lines, strict=True))


def test_list_as_json(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hands() -> dict[str, list[str]]:
        return {each["name"]: each["at_hand"] for each in json.loads(call("data", "list", "--json").stdout)}

    nothing = {name: [] for name in (*NAMES, *MULTILABEL_NAMES)} | {"digits": ["scikit-learn"]}
    assert hands() == nothing | {"rectangles": ["generate"], "convex": ["generate"]}
    monkeypatch.setenv("ENERGATE_DATA", str(originals))
    assert hands() == nothing | {"rectangles": ["folder", "generate"], "convex": ["generate"]}
    (originals / "mnist.npz").touch()
    assert hands()["mnist-rotated"] == ["generate"]
    assert hands()["mnist-small"] == ["folder", "generate"]
    (originals / "mnist_background_images.zip").touch()
    assert hands()["mnist-images"] == ["folder"]
    import pooch

    cache = Path(pooch.os_cache("energate"))
    cache.mkdir(parents=True)
    (cache / "convex.zip").touch()
    assert hands()["convex"] == ["cache", "generate"]
    first = json.loads(call("data", "list", "--json").stdout)[0]
    assert first["sizes"] == {"train": 1000, "valid": 200, "test": 50_000}
    assert first["shape"] == [28, 28]


def test_multi_label_sets_are_listed_and_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    names = {"feature_names": np.array([f"x{i}" for i in range(103)]), "label_names": np.array([*"abcdefghijklmn"])}
    rows = {"X": rng.random((2417, 103)).astype(np.float32), "Y": rng.integers(0, 2, (2417, 14)).astype(np.uint8)}
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "yeast.npz", **rows, **names)
    monkeypatch.setenv("ENERGATE_DATA", str(tmp_path / "in"))
    found = {each["name"]: each for each in json.loads(call("data", "list", "--json").stdout)}
    assert (found["yeast"]["at_hand"], found["scene"]["at_hand"]) == (["folder"], [])
    assert found["yeast"]["n_labels"] == 14
    out = tmp_path / "out"
    assert "wrote" in call("data", "get", "yeast", "--output", str(out)).stdout
    assert "there already" in call("data", "get", "yeast", "--output", str(out)).stdout
    with np.load(out / "yeast.npz") as written:
        np.testing.assert_array_equal(written["X"], rows["X"])
        np.testing.assert_array_equal(written["Y"], rows["Y"])
    (out / "yeast.npz").write_bytes(b"other")
    assert "--overwrite" in call("data", "get", "yeast", "--output", str(out), code=2).stderr
    assert (out / "yeast.npz").read_bytes() == b"other"
    assert "no rule" in call("data", "make", "yeast", "--output", str(out), code=2).stderr
    said = json.loads(call("data", "get", "yeast", "--output", str(out), "--overwrite", "--json").stdout)
    assert [(each["name"], each["new"]) for each in said["files"]] == [("yeast", True)]


def test_bench_and_report_say_how_it_ended_as_json(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page.html"
    options = ("--data", "correlated", "--system", "mlknn", "--seeds", "1", "--results", str(results), "--json")
    said = json.loads(call("bench", "table2", *options).stdout)
    assert (said["n_done"], said["n_failed"], said["results"]) == (1, 0, str(results))
    written = json.loads(call("report", str(results), "--output", str(page), "--json").stdout)
    assert written["html"] == str(page)
    assert all(Path(path).is_file() for path in written.values())


COMMANDS = (
    *("fit", "predict", "score", "refine", "check", "explain", "export", "serve", "bench", "report"),
    *("impute", "audit", "drift", "importance", "evaluate", "info", "search", "denoise", "inpaint"),
    *("data list", "data get", "data make", "data show"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(command: str) -> None:
    assert f"Example: energate {command}" in " ".join(call(*command.split(), "--help").stdout.split())


def test_no_help_speaks_of_types_of_switches() -> None:
    for command in ("", "jobs", "data", *COMMANDS):
        assert "<bool>" not in call(*command.split(), "--help").stdout


def test_list_says_when_the_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGATE_DATA", "/no/such/folder")
    assert "ENERGATE_DATA must name a folder" in refused("data", "list")


def test_the_files_that_list_looks_for_are_those_that_load_reads() -> None:
    def files(recipe: Any) -> set[str]:
        text = inspect.getsource(getattr(recipe, "func", recipe)) + repr(getattr(recipe, "args", "")).replace("'", '"')
        digits, photographs = "mnist.npz", "natural_images20.npz"
        calls = {"_mnist(folder)": digits, "_drawn(folder, seed)": digits, "_photographs(folder)": photographs}
        return set(re.findall(r'"(\w+\.npz)"', text)) | {file for key, file in calls.items() if key in text}

    for recipe in (*suite.FROM_FOLDER.values(), *suite.GENERATED.values()):
        assert set(recipe.files) == files(recipe.make)


# --- data get and make -------------------------------------------------------------------------------------------


def test_files_that_get_wrote_can_be_loaded_as_a_folder(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGATE_DATA", str(originals))
    said = call("data", "get", "rectangles", "--output", "new/[bold]folder").stdout
    assert "wrote new/[bold]folder/rectangles.npz" in said  # brackets are no markup
    assert re.search(r"^train +1,000 +784 +original +[0-9a-f]{16}$", said, re.MULTILINE)
    first, again = load_dataset("rectangles", folder=originals), load_dataset("rectangles", folder="new/[bold]folder")
    assert again.provenance["sha256"] == first.provenance["sha256"]
    assert again.provenance["test"] == "original"
    with np.load("new/[bold]folder/rectangles.npz", allow_pickle=False) as file:
        assert json.loads(str(file["provenance"])) == first.provenance
        assert tuple(file["shape"]) == (28, 28)
        np.testing.assert_array_equal(file["y_test"], first.y_test)
    size, digest = re.search(r"\(([\d.]+) MB, sha256 (\w+)\)", said).groups()  # type: ignore[union-attr]
    path = Path("new/[bold]folder/rectangles.npz")
    assert digest == store.sha256_of(path)
    assert float(size) == pytest.approx(path.stat().st_size / 1e6, abs=0.05)


def test_made_rows_are_never_read_back_as_original() -> None:
    said = call("data", "make", "rectangles", "digits", "-o", "made", "--seed", "3").stdout
    assert "rectangles, source: generate, seed 3" in said
    assert sorted(path.name for path in Path("made").iterdir()) == ["digits.npz", "rectangles-generated.npz"]
    with pytest.raises(InputError, match=r"the folder has no rectangles\.npz"):
        load_dataset("rectangles", source="folder", folder="made")
    with np.load("made/rectangles-generated.npz", allow_pickle=False) as file:
        assert json.loads(str(file["provenance"]))["seed"] == 3
        np.testing.assert_array_equal(file["x_valid"], load_dataset("rectangles", 3, source="generate").X_valid)


def test_a_file_is_replaced_only_on_demand() -> None:
    call("data", "make", "digits")
    before = Path("digits.npz").read_bytes()
    assert "there already, with these rows: digits.npz" in call("data", "get", "digits").stdout
    assert Path("digits.npz").read_bytes() == before
    for other in (b"precious", before[:-100]):
        Path("digits.npz").write_bytes(other)
        assert "with other content. Pass --overwrite" in refused("data", "get", "digits")
        assert Path("digits.npz").read_bytes() == other
    call("data", "get", "digits", "--overwrite")
    assert Path("digits.npz").read_bytes() == before  # the same rows give the same bytes


def test_rows_that_were_changed_are_other_content() -> None:
    call("data", "make", "digits")
    with np.load("digits.npz") as file:
        arrays = dict(file)
    arrays["x_test"][0, 0] += 0.5  # the provenance inside still claims the old rows
    np.savez_compressed("digits.npz", **arrays)
    refused("data", "get", "digits")


def test_get_says_when_rows_are_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any) -> Path:
        raise NotHereError("it cannot be fetched (ConnectionError)")

    monkeypatch.setattr(suite, "download", offline)
    result = call("data", "get", "rectangles")
    assert result.stderr.startswith("Note: rectangles is generated, not original")
    assert result.stderr.count("\n") == 1
    assert Path("rectangles-generated.npz").exists()
    said = refused("data", "get", "mnist-small", "--source", "download")
    assert "cannot be fetched (ConnectionError)" in said
    refused("data", "get", "convex", "--source", "folder")


def test_a_wrong_name_is_told_before_any_work() -> None:
    assert "Did you mean 'rectangles'?" in refused("data", "get", "digits", "rectangle")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), InputError("no")])
@pytest.mark.parametrize("there", [False, True])
def test_errors_leave_no_half_written_file(
    error: BaseException, there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise error

    monkeypatch.setattr(store.np, "savez_compressed", half)
    if there:
        Path("digits.npz").write_bytes(b"old")
    result = call("data", "get", "digits", "--overwrite", code=130 if isinstance(error, KeyboardInterrupt) else 2)
    assert [path.read_bytes() for path in Path().iterdir()] == ([b"old"] if there else [])
    assert result.stderr.count("\n") == 1
    if isinstance(error, KeyboardInterrupt):
        assert result.stderr.startswith("Stopped. ")
    if isinstance(error, OSError):
        assert "digits.npz cannot be written (No space left on device)" in result.stderr


def test_a_file_in_the_way_is_named() -> None:
    Path("taken").touch()
    assert "cannot be written" in refused("data", "get", "digits", "--output", "taken")
    assert "cannot be written" in refused("data", "show", "digits", "--output", "taken/sheet.png")


# --- data show ---------------------------------------------------------------------------------------------------


def test_show_draws_a_sheet_of_every_format() -> None:
    from matplotlib import image

    call("data", "show", "digits", "--columns", "7")
    sizes = [image.imread("digits-train.png").shape[:2]]
    call("data", "show", "digits", "--columns", "8", "--rows", "2", "-o", "deep/sheet.png")
    sizes.append(image.imread("deep/sheet.png").shape[:2])
    assert abs(sizes[1][1] - sizes[0][1] - (72 + 2)) <= 1  # one image more, of 8 x 9 dots, and a line
    assert abs(sizes[1][0] - sizes[0][0] - 10 * (72 + 2)) <= 1  # versions of matplotlib round differently
    for suffix, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        call("data", "show", "digits", "-o", f"sheet.{suffix}")
        assert Path(f"sheet.{suffix}").read_bytes().startswith(start)
    assert "must be a .png, .pdf or .svg file" in refused("data", "show", "digits", "-o", "sheet.xyz")
    assert "--target and --shape" in refused("data", "show", "digits", "--shape", "8x8")
    assert "There is no data set 'digit'" in refused("data", "show", "digit")


def test_a_sheet_has_each_image_pixel_for_pixel() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (5, 12)) / 255, np.array([7, 7, 3, 3, 3])
    figure = sheets.contact_sheet(X, y, (3, 4), n_rows=1, n_columns=3, limits=(0, 1), title="title", caption="about")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
    zoom = 72 // 4

    def places(row: np.ndarray) -> int:
        """How often the image is found in the picture: at its every zoom-th dot."""
        wanted = np.round(row.reshape(3, 4) * 255).astype(int)
        grey = picture[..., 0]
        height, width = grey.shape
        ok = np.ones((height - 3 * zoom, width - 4 * zoom), dtype=bool)
        for i in range(3):
            for j in range(4):
                for di, dj in ((0, 0), (zoom - 1, zoom - 1)):
                    window = grey[i * zoom + di :, j * zoom + dj :][: ok.shape[0], : ok.shape[1]]
                    ok &= np.abs(window - wanted[i, j]) <= 1
        return int(ok.sum())

    assert [places(row) for row in X] == [1] * 5
    assert places(rng.random(12)) == 0
    texts = [text.get_text() for text in figure.texts]
    assert texts == ["title", "about", "3", "3 rows", "7", "2 rows"]


def test_a_sheet_draws_classes_apart_and_under_a_seed() -> None:
    X, y = np.repeat(np.arange(40.0)[:, None], 4, axis=1), np.arange(40) % 2

    def shown(seed: int) -> list[set[float]]:
        figure = sheets.contact_sheet(X, y, (2, 2), n_rows=1, n_columns=5, seed=seed, class_names={1: "odd"})
        return [set(np.unique(axes.images[0].get_array().compressed())) for axes in figure.axes]

    even, odd = shown(0)
    assert len(even) == len(odd) == 5
    assert all(value % 2 == 0 for value in even)
    assert all(value % 2 == 1 for value in odd)
    assert shown(0) == [even, odd]
    assert shown(1) != [even, odd]


def test_a_sheet_can_be_transposed() -> None:
    X = np.arange(6.0)[None]
    straight, turned = (
        sheets.contact_sheet(X, np.zeros(1), (2, 3), n_rows=1, n_columns=1, transpose=flag).axes[0].images[0]
        for flag in (False, True)
    )
    np.testing.assert_array_equal(np.asarray(straight.get_array()).T, np.asarray(turned.get_array()))


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((3, 5)), np.zeros(3), "need rows of 4 pixels"),
        (np.zeros((0, 4)), np.zeros(0), "need rows of 4 pixels"),
        (np.zeros((3, 4)), np.zeros((3, 2)), "one label for each"),
        (np.zeros((50, 4)), np.arange(50), "at most 40 classes; the labels have 50"),
    ],
)
def test_a_sheet_refuses_what_it_cannot_draw(X: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sheets.contact_sheet(X, y, (2, 2))


def test_the_extra_of_pictures_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'energate[plot]'" in refused("data", "show", "digits")
    assert list(Path().iterdir()) == []


def test_show_sums_up_a_table() -> None:
    Path("own.csv").write_text("a,b,kind\n1,,x\n2.5,,y\n,5,x\n")
    said = call("data", "show", "own.csv", "--target", "kind").stdout
    assert [" ".join(line.split()) for line in said.splitlines()] == [
        "own.csv: 3 rows, 3 columns",
        "column taken as missing values",
        "a numbers 1 1 to 2.5, median 1.75",
        "b numbers 2 5 to 5, median 5",
        "kind target 2 different: x (2), y (1)",
        "energate fit would take 2 columns.",
    ]
    assert list(Path().glob("*.png")) == []
    assert "--target NAME" in refused("data", "show", "own.csv", "--shape", "1x2")
    assert "--shape 28x28" in refused("data", "show", "own.csv", "--target", "kind", "-o", "own.png")
    assert "There is no column 'nope' in own.csv" in refused("data", "show", "own.csv", "--target", "nope")
    assert "There is no file 'none.csv'" in refused("data", "show", "none.csv", "--target", "y")


def test_show_of_a_messy_table_says_what_is_in_it() -> None:
    rows = [
        f'{i};{i + 1};"1.{i:03d},5";{"unknown" if i % 9 == 0 else i * 37 % 50};2024-0{i % 9 + 1}-11;'
        f"a {('good', 'bad')[i % 2]} thing, number {i}, of sorts;{'red' if i % 3 else 'grün'};T{i}"
        for i in range(40)
    ]
    Path("own.csv").write_bytes("\n".join([";id;price;age;day;text;colour;ticket", *rows]).encode("latin-1"))
    shown = call("data", "show", "own.csv")
    kinds = {line.split()[0]: line for line in shown.stdout.splitlines()[2:]}
    for name, words in {
        "price": "numbers",
        "age": "numbers 5 ",
        "day": "dates",
        "text": "free text",
        "colour": "categories",
        "ticket": "left out",
    }.items():
        assert words in " ".join(kinds[name].split()) + " "
    for words in (
        "own.csv: its cells are between ';'; --delimiter says another.",
        "own.csv: it is not UTF-8, and is read as Windows-1252 (latin-1); --encoding says another.",
        "own.csv: the first column has no name: it is taken for an index, and left out.",
        "'id' is left out: it counts the rows",
        "'price': numbers such as '1.000,5' are read as 1000.5.",
        "'age': 'unknown' among numbers, in 5 cells, counts as missing.",
        "'day' holds dates; they become numbers: month, weekday.",
        "'text' is free text",
        "'ticket' is left out: text with 40 values in 40 rows, which names the rows.",
    ):
        assert f"Note: {words}" in shown.stderr


def test_show_draws_a_table_of_images() -> None:
    rng = np.random.default_rng(0)
    np.savez("own.npz", X=rng.random((30, 6)), y=np.arange(30) % 12, score=rng.random(30), tags=np.zeros((30, 4)))
    said = call("data", "show", "own.npz", "--target", "y", "--shape", "2x3").stdout
    assert "wrote own.png" in said
    assert "12 different: 0 (3), 1 (3), 2 (3)" in said
    assert Path("own.png").exists()
    assert call("data", "show", "own.npz", "--target", "tags").stdout.count("  target") == 4
    assert "--shape must be height x width" in refused("data", "show", "own.npz", "--target", "y", "--shape", "6")
    result = call("data", "show", "own.npz", "--target", "y", "--shape", "3x3", code=2)
    assert "need rows of 9 pixels; got shape (30, 6)" in result.stderr


@pytest.mark.data
def test_get_and_show_of_a_published_set() -> None:
    call("data", "get", "rectangles", "--output", "got")
    first, again = load_dataset("rectangles"), load_dataset("rectangles", folder="got")
    assert again.provenance["sha256"] == first.provenance["sha256"]
    assert [again.provenance[part] for part in PARTS] == ["original"] * 3
    said = call("data", "show", "rectangles", "--part", "valid").stdout
    assert said == "wrote rectangles-valid.png\n"
    hands = {each["name"]: each["at_hand"] for each in json.loads(call("data", "list", "--json").stdout)}
    assert all(hand[0] in ("folder", "scikit-learn") for hand in hands.values())


# --- bench and report --------------------------------------------------------------------------------------------


@dataclass
class Summary:
    n_done: int = 3
    n_skipped: int = 2
    n_failed: int = 0
    n_left: int = 0
    seconds: float = 182.0
    failed: list[str] = field(default_factory=list)


class StandIn(ModuleType):
    """In place of the package of experiments: notes how it is called."""

    def __init__(self) -> None:
        super().__init__("energate.paper")
        self.calls: list[Any] = []
        self.answer: Any = Summary()
        about = {"name": "table1", "title": "A title", "data": ("a", "b"), "systems": ("x", "y")}
        self.TABLES = {"table1": type("Table", (), about)}
        self.PROFILES = {"quick": type("Profile", (), {"about": "a few minutes"})}

    def run(self, *arguments: Any, **options: Any) -> Any:
        self.calls.append((arguments, options))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    write_report = run


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, "energate.paper", module)
    return module


def test_bench_hands_its_options_over(experiments: StandIn) -> None:
    said = call("bench").stdout
    call(
        *("bench", "table2", "--profile", "full", "--data", "a,b", "--data", "c", "--system", "x", "--seeds", "2"),
        *("--results", "my results", "--source", "generate", "--device", "cpu", "--jobs", "3", "--limit", "1.5"),
        *("--engine", "ray", "--address", "auto", "--gpus-per-worker", "0.5"),
    )
    defaults = {"profile": "quick", "data": None, "systems": None, "seeds": None, "results": Path("results")}
    given = {"profile": "full", "data": ["a", "b", "c"], "systems": ["x"], "seeds": 2, "results": Path("my results")}
    defaults |= {"engine": None, "address": None, "gpus_per_worker": 0.0}
    given |= {"engine": "ray", "address": "auto", "gpus_per_worker": 0.5}
    assert experiments.calls == [
        (("table1",), defaults | {"source": "auto", "device": "auto", "jobs": 1, "limit": None}),
        (("table2",), given | {"source": "generate", "device": "cpu", "jobs": 3, "limit": 1.5}),
    ]
    assert said.splitlines() == [
        "Cells: 3 done, 2 there already, 0 failed, 0 left; 3 min 2 s.",
        "Write the report with: energate report results",
    ]


def test_bench_says_what_failed_and_what_is_left(experiments: StandIn) -> None:
    experiments.answer = Summary(n_failed=1, n_left=4, failed=["a/x/seed0: InputError: [why]"])
    result = call("bench", "--results", "my results", code=1)
    assert "1 failed, 4 left" in result.stdout
    assert "the same command goes on" in result.stdout
    assert "energate report 'my results'" in result.stdout
    assert result.stderr == "failed: a/x/seed0: InputError: [why]\n"
    experiments.answer = Summary(n_left=4)
    assert "time limit" in call("bench").stdout
    experiments.answer = Summary(n_done=0, n_skipped=0, n_left=4)
    assert "report" not in call("bench").stdout


def test_bench_list_runs_nothing(experiments: StandIn) -> None:
    said = call("bench", "--list").stdout
    assert experiments.calls == []
    for words in ("table1: A title", "data:    a, b", "systems: x, y", "quick    a few minutes"):
        assert words in said


@pytest.mark.parametrize("command", ["bench", "report"])
def test_errors_of_the_experiments_are_one_line(experiments: StandIn, command: str) -> None:
    for error in (InputError("There is no table\n 'x'."), MissingExtraError("There is no table 'x'.")):
        experiments.answer = error
        assert refused(command, "x") == "Error: There is no table 'x'.\n"
    experiments.answer = KeyboardInterrupt()
    assert call(command, "x", code=130).stderr.startswith("Stopped. ")
    experiments.answer = ZeroDivisionError("a bug")  # keeps its trace
    assert isinstance(call(command, "x", code=1).exception, ZeroDivisionError)


def test_numbers_out_of_range_are_refused(experiments: StandIn) -> None:
    for option in (["--seeds", "0"], ["--jobs", "0"], ["--limit", "soon"]):
        call("bench", *option, code=2)
    assert experiments.calls == []


def test_report_says_what_was_written(experiments: StandIn) -> None:
    experiments.answer = {"html": Path("out/[x].html"), "csv": Path("out/x.csv")}
    assert call("report", "results", "--output", "out/[x].html").stdout == "html: out/[x].html\ncsv: out/x.csv\n"
    assert experiments.calls == [((Path("results"), Path("out/[x].html")), {})]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT between processes")
def test_ctrl_c_ends_a_real_process_with_130() -> None:
    code = (
        "import sys, time, types\nmodule = types.ModuleType('energate.paper')\n"
        "def run(*_, **__):\n    print('running', flush=True)\n    time.sleep(60)\n"
        "module.run = run\nsys.modules['energate.paper'] = module\n"
        "sys.argv = ['energate', 'bench']\nfrom energate.cli import main\nmain()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "Stopped. Finished cells are kept: the same command goes on where it stopped.\n"


def test_the_provenance_in_a_file_is_that_of_the_set() -> None:
    data = load_dataset("digits")
    saved = store.save_dataset(data, "folder")
    assert isinstance(data, Dataset)
    assert saved.new
    assert not store.save_dataset(data, "folder").new
    assert saved.path == Path("folder/digits.npz")
