"""Images without Python: `energate fit` of a folder, `predict`, `score`, `denoise` and `inpaint`."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from energate import load
from energate.cli import app
from energate.persistence import read_columns
from energate.tables import open_table
from energate.tables.pictures import Pictures

image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
csv = pytest.importorskip("pyarrow.csv", reason="the extra `tables` is not installed")

QUICK = ("--epochs", "4", "--channels", "8", "--device", "cpu")


def call(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


def refused(*arguments: Any) -> str:
    result = call(*arguments, code=2)
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("Error: "), result.stderr
    return str(lines[-1])


def bars(n: int, colour: bool = False) -> dict[str, np.ndarray]:
    """Pictures of 12 x 12: an upright or a level bar on dark ground."""
    random = np.random.default_rng(0)
    found = {}
    for name in ("level", "upright"):
        pixels = random.integers(0, 30, (n, 12, 12, 3 if colour else 1), dtype=np.uint8)
        for each, place in zip(pixels, random.integers(3, 8, n), strict=True):
            each[place : place + 2, 2:10, 0] = 220
            if name == "upright":
                each[:] = each.transpose(1, 0, 2)
        found[name] = pixels
    return found


def write(pixels: np.ndarray, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path, **options)
    return path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of pictures and a model of them."""
    folder = tmp_path_factory.mktemp("shelf")
    for name, pixels in bars(40).items():
        for i, each in enumerate(pixels):
            write(each, folder / "bars" / name / f"{i:02d}.png")
    call("fit", folder / "bars", "--task", "images", "-o", folder / "bars.zip", *QUICK, "--epochs", 12)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pixels_of(path: Any) -> np.ndarray:
    with image.open(path) as opened:
        return np.asarray(opened)


def cells(path: Path) -> dict[str, list[Any]]:
    return csv.read_csv(path).to_pydict()


# --- fit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("symmetry", "augment"), [("circle", "none"), ("turns and mirrors", "affine")])
def test_turned_pictures_have_the_same_energies_if_asked_for(shelf: Path, symmetry: str, augment: str) -> None:
    how = ("--symmetry", symmetry, "--augment", augment, "--denoising-weight", 0)
    call("fit", shelf / "bars", "-o", "m.zip", *QUICK, *how, "--epochs", 1)
    model = load("m.zip")
    assert (model.symmetry, model.augment) == (symmetry, augment)
    X = open_table(shelf / "bars").read()["image"].reshape(-1, 12, 12)[:4]
    np.testing.assert_allclose(model.energies(np.rot90(X, axes=(1, 2))), model.energies(X), rtol=1e-5, atol=1e-5)
    call("fit", shelf / "bars", "-o", "m.zip", "--symmetry", "mirrors", code=2)


def test_a_folder_becomes_a_model_with_range_and_examples(shelf: Path) -> None:
    result = call("fit", shelf / "bars", "-o", "m.zip", *QUICK, "--json")
    found = json.loads(result.stdout)
    assert (found["estimator"], found["rows"], found["held_out"]["rows"]) == ("ImageEnergyClassifier", 80, 16)
    columns = read_columns("m.zip")
    assert columns is not None
    assert (columns.image, columns.targets, columns.task) == ((12, 12), ("class",), "classify")
    assert columns.range is not None
    assert columns.range[0] == 0
    assert columns.range[1] == 220
    assert len(columns.examples) == 16  # the rows held out
    model = load("m.zip")
    assert model.classes_.tolist() == ["level", "upright"]
    assert model.given_shape_ == (12, 12)
    rows = open_table(shelf / "bars").read()["image"].reshape(80, -1)
    assert {tuple(row) for row in columns.examples} <= {tuple(map(float, row)) for row in rows}


def test_colours_sizes_and_greys(tmp_path: Path) -> None:
    for name, pixels in bars(8, colour=True).items():
        for i, each in enumerate(pixels):
            kind = ".jpg" if i % 2 else ".png"
            write(np.kron(each, np.ones((1 + i % 2, 1 + i % 2, 1), np.uint8)), tmp_path / "many" / name / f"{i}{kind}")
    assert "2 sizes; 8 of 16 are 12x12" in refused("fit", "many", *QUICK)
    assert "--image 12x12" in refused("fit", "many", *QUICK)
    call("fit", "many", "--image", "10x9", "-o", "c.zip", *QUICK)
    assert load("c.zip").model_.shape == (10, 9, 3)
    call("fit", "many", "--image", "12x12", "--grey", "-o", "g.zip", *QUICK)
    assert load("g.zip").model_.shape == (12, 12, 1)
    call("predict", "c.zip", "many", "-o", "p.csv")
    assert len(cells(Path("p.csv"))["prediction"]) == 16
    call("denoise", "c.zip", "many", "-o", "clean")
    assert pixels_of("clean/level/1.png").shape == (10, 9, 3)  # also of a JPEG file a PNG file comes


@pytest.mark.parametrize("layout", ["X", "images", "keras"])
def test_arrays_of_pictures(layout: str) -> None:
    pixels = bars(20)
    X, y = np.concatenate([*pixels.values()])[..., 0], np.repeat([0, 1], 20)
    names = {"X": ("X", "y"), "images": ("images", "labels"), "keras": ("x_train", "y_train")}[layout]
    arrays: dict[str, Any] = dict(zip(names, (X, y), strict=True))
    if layout == "keras":
        arrays |= {"x_test": X[15:25], "y_test": y[15:25]}
    np.savez("some.npz", **arrays)
    call("fit", "some.npz", "--task", "images", "-o", "m.zip", *QUICK)
    call("predict", "m.zip", "some.npz", "-o", "out.csv")
    found = cells(Path("out.csv"))
    expected = X[15:25] if layout == "keras" else X
    assert found["prediction"] == load("m.zip").predict(expected).tolist()
    assert not [name for name in found if name.startswith("image")]
    call("score", "m.zip", "some.npz", "-o", "out.npz")
    with np.load("out.npz") as kept:
        assert np.array_equal(kept["image"], expected)  # arrays are carried along where there is room for them
        assert kept["energy_0"].shape == (len(expected),)


def test_arrays_of_pictures_for_the_other_estimators() -> None:
    pixels = bars(12)
    X = np.concatenate([*pixels.values()])[..., 0] / 255
    np.savez("some.npz", X=X, y=np.repeat(["a", "b"], 12))
    call("fit", "some.npz", "--target", "y", "-o", "m.zip", "--units", "mean", "--epochs", 2, "--device", "cpu")
    assert load("m.zip").n_features_in_ == 144
    columns = read_columns("m.zip")
    assert columns is not None
    assert columns.image == (12, 12)
    for name, each in pixels.items():
        write(each[0], Path("files") / f"{name}.png")
    call("predict", "m.zip", "files", "-o", "p.csv")  # files are brought to the scale of 0 to 1
    shown = np.stack([pixels["level"][0], pixels["upright"][0]])[..., 0].reshape(2, -1) / 255
    assert cells(Path("p.csv"))["prediction"] == load("m.zip").predict(shown).tolist()


def test_what_cannot_be_fitted() -> None:
    np.savez("wrong.npz", X=np.zeros((6, 3, 12, 12)), y=[0, 1] * 3)
    assert "channels last" in refused("fit", "wrong.npz", "--task", "images")
    write(np.zeros((12, 12, 1), np.uint8), Path("flat/a.png"))
    assert "a folder of its own" in refused("fit", "flat")
    Path("empty").mkdir()
    assert "has no pictures" in refused("fit", "empty")
    Path("rows.csv").write_text("a,b\n1,2\n")
    assert "--units is not for the task images" in refused("fit", "flat", "--units", "mean")


# --- predict and score -----------------------------------------------------------------------------------------


def test_predict_and_score_write_tables_of_files(shelf: Path) -> None:
    model = load(shelf / "bars.zip")
    rows = open_table(shelf / "bars").read()
    call("predict", shelf / "bars.zip", shelf / "bars", "-o", "p.csv")
    found = cells(Path("p.csv"))
    assert found["file"] == rows["file"].tolist()
    assert found["file"][0] == "level/00.png"
    assert found["prediction"] == model.predict(rows["image"]).tolist()
    assert np.mean(np.equal(found["prediction"], found["class"])) > 0.9
    expected = model.predict_proba(rows["image"])
    assert np.stack([found["p_level"], found["p_upright"]], 1) == pytest.approx(expected, abs=1e-6)
    assert found["p_value"] == pytest.approx(model.p_values(rows["image"]), abs=1e-9)
    call("score", shelf / "bars.zip", shelf / "bars", "-o", "s.parquet")
    call("score", shelf / "bars.zip", shelf / "bars", "-o", "s.npz")
    with np.load("s.npz") as kept:
        assert kept["file"].tolist() == found["file"]
    energies = open_table("s.parquet").read()
    assert energies["energy_level"].to_numpy() == pytest.approx(model.energies(rows["image"])[:, 0], rel=1e-5)


def test_some_files_and_single_ones(shelf: Path) -> None:
    files = [shelf / "bars" / "upright" / "00.png", shelf / "bars" / "level" / "03.png"]
    call("predict", shelf / "bars.zip", *files, "-o", "p.csv")
    assert cells(Path("p.csv"))["file"] == ["upright/00.png", "level/03.png"]
    shutil.copy(files[0], "one.png")
    result = call("predict", shelf / "bars.zip", "one.png", "-o", "-")
    assert result.stdout.splitlines()[1].startswith("one.png,upright,")
    call("predict", shelf / "bars.zip", "one.png")
    assert Path("one-predicted.csv").is_file()
    refused("predict", shelf / "bars.zip", "one.png", "p.csv", "-o", "mixed")
    assert "--task-rows is for jobs" in refused("predict", shelf / "bars.zip", "one.png", "--task-rows", 2)
    shown = json.loads(call("explain", shelf / "bars.zip", "one.png", "--json").stdout)
    assert shown["prediction"] == "upright"


def test_files_that_cannot_be_read(shelf: Path) -> None:
    shutil.copytree(shelf / "bars", "torn")
    whole = Path("torn/level/00.png").read_bytes()
    Path("torn/level/00.png").write_bytes(whole[: len(whole) // 2])
    Path("torn/upright/07.png").write_text("no picture")
    Path("torn/level/notes.txt").write_text("x")
    message = refused("predict", shelf / "bars.zip", "torn", "-o", "p.csv")
    assert "level/00.png cannot be read as a picture" in message
    assert "--on-error skip" in message
    assert not Path("p.csv").exists()
    result = call("predict", shelf / "bars.zip", "torn", "-o", "p.csv", "--on-error", "skip")
    assert len(cells(Path("p.csv"))["file"]) == 78
    for name in ("level/00.png", "upright/07.png", "level/notes.txt"):
        assert name in result.stderr
    assert "cannot be read" in refused("fit", "torn", "-o", "m.zip", *QUICK)
    assert not Path("m.zip").exists()
    result = call("fit", "torn", "-o", "m.zip", *QUICK, "--on-error", "skip", "--json")
    assert json.loads(result.stdout)["rows"] == 78
    assert any("level/00.png" in note for note in json.loads(result.stdout)["notes"])


# --- denoise and inpaint -----------------------------------------------------------------------------------------


def test_denoise_writes_files_or_arrays(shelf: Path) -> None:
    model, rows = load(shelf / "bars.zip"), open_table(shelf / "bars").read()["image"]
    call("denoise", shelf / "bars.zip", shelf / "bars", "-o", "clean")
    expected = model.denoise(rows[..., 0]).clip(0, 255).round()
    found = np.stack([pixels_of(path) for path in sorted(Path("clean").rglob("*.png"))])
    assert np.abs(found - expected).max() <= 1
    call("denoise", shelf / "bars.zip", shelf / "bars", "-o", "clean.npz")
    with np.load("clean.npz") as kept:
        assert kept["image"][..., 0] == pytest.approx(model.denoise(rows[..., 0]), abs=1e-2)
        assert kept["file"][0] == "level/00.png"
    assert "not an empty folder" in refused("denoise", shelf / "bars.zip", shelf / "bars", "-o", "clean")
    assert "do not fit into the file" in refused("denoise", shelf / "bars.zip", shelf / "bars", "-o", "one.png")
    call("denoise", shelf / "bars.zip", shelf / "bars", "-o", "x", "--level", 0.3)
    assert not np.array_equal(pixels_of("x/level/00.png"), pixels_of("clean/level/00.png"))


def test_inpaint_by_box_mask_and_transparency(shelf: Path) -> None:
    whole = pixels_of(shelf / "bars" / "level" / "05.png")
    unknown = np.zeros((12, 12), bool)
    unknown[2:7, 4:12] = True
    write(whole[..., None], Path("torn.png"))
    write((255 * unknown[..., None]).astype(np.uint8), Path("mask.png"))
    with_alpha = np.dstack([whole] * 3 + [np.where(unknown, 0, 255).astype(np.uint8)])
    write(with_alpha, Path("clear.png"))
    model = shelf / "bars.zip"
    ways = {
        "box": ("torn.png", "--box", "2,4,5,8"),
        "mask": ("torn.png", "--mask", "mask.png"),
        "clear": ("clear.png",),
    }
    found = {}
    for name, arguments in ways.items():
        call("inpaint", model, *arguments, "-o", f"{name}.out.png")
        found[name] = pixels_of(f"{name}.out.png")
        assert np.array_equal(found[name][~unknown], whole[~unknown])
        assert not np.array_equal(found[name][unknown], whole[unknown])
    assert np.abs(found["box"].astype(int) - found["mask"]).max() <= 1
    assert np.abs(found["box"].astype(int) - found["clear"]).max() <= 1  # whatever stood there
    assert "no transparent pixels" in refused("inpaint", model, "torn.png", "-o", "x.png")
    assert "must lie in pictures of 12 x 12" in refused("inpaint", model, "torn.png", "-o", "x.png", "--box", "0,9,5,5")
    assert "top,left,height,width" in refused("inpaint", model, "torn.png", "-o", "x.png", "--box", "1,2,3")
    assert "not both" in refused("inpaint", model, "torn.png", "-o", "x.png", "--box", "0,0,5,5", "--mask", "mask.png")
    assert not list(Path().glob("*x.png*"))


def test_nothing_is_half_written(shelf: Path) -> None:
    shutil.copytree(shelf / "bars", "torn")
    Path("torn/upright/39.png").write_text("no picture")  # the last
    refused("denoise", shelf / "bars.zip", "torn", "-o", "clean")
    refused("denoise", shelf / "bars.zip", "torn", "-o", "clean.npz")
    assert sorted(path.name for path in Path().iterdir()) == ["torn"]


def test_models_without_pictures_say_so(shelf: Path) -> None:
    Path("rows.csv").write_text("a,b,c\n" + "\n".join(f"{i},{i % 3},{'x' if i % 2 else 'y'}" for i in range(30)))
    call("fit", "rows.csv", "--target", "c", "-o", "m.zip", "--units", "mean", "--epochs", 1, "--device", "cpu")
    assert "which files of pictures are not" in refused("predict", "m.zip", shelf / "bars", "-o", "p.csv")
    assert "`denoise` is nothing for m.zip" in refused("denoise", "m.zip", "rows.csv", "-o", "x")


# --- reading -----------------------------------------------------------------------------------------------------


def test_pixels_as_they_are_meant_to_be_seen(tmp_path: Path) -> None:
    deep = (np.arange(144).reshape(12, 12) * 400).astype(np.uint16)
    image.fromarray(deep).save(tmp_path / "deep.png")
    found = open_table(tmp_path / "deep.png").read()["image"][0, ..., 0]
    assert np.abs(found - deep / 257).max() <= 1  # 16 bits are not cut to 8
    turned = np.zeros((12, 16, 3), np.uint8)
    turned[:3] = 250
    exif = image.Exif()
    exif[0x0112] = 6  # stands on its side
    write(turned, tmp_path / "side.jpg", exif=exif, quality=100, subsampling=0)
    found = open_table(tmp_path / "side.jpg").read()["image"][0]
    assert found.shape == (16, 12, 1)
    assert found[:, -3:].mean() > 240
    clear = np.zeros((8, 8, 4), np.uint8)
    write(clear, tmp_path / "clear.png")
    assert (open_table(tmp_path / "clear.png").read()["image"] == 255).all()  # on white
    assert open_table(tmp_path / "clear.png", pictures=Pictures((4, 4), True, white=1.0)).read()["image"].max() == 1
