from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep import TileSpec, TilingSettings, iter_tiles, tile_images
from data_prep.images.open_image import decode_image
from distkeras_grid.errors import (
    ConfigurationError,
    EmptyDataError,
    ImageError,
    LabelError,
    NoSpaceError,
    OutputExistsError,
    PathNotFoundError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.storage import Storage
from tests.data_prep.first_night import FirstNight, draw

pytestmark = pytest.mark.spark

SPEC = TileSpec(32, angles=[0, 40, 90, 130])


def conf(spark):
    names = (
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.maxConcurrentOutputFileWriters",
    )
    return [spark.conf.get(name) for name in names]


@pytest.fixture(scope="module")
def conf_before(spark):
    return conf(spark)


@pytest.fixture(scope="module")
def once(spark, conf_before, tmp_path_factory):
    """Twelve small micrographs of two classes, below a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("once")
    root = folder / "raw images"
    for i in range(12):
        draw(root / "ab"[i % 2] / f"{i // 2}.png", i, size=(80, 100))
    settings = TilingSettings(str(root), str(folder / "tiles"), SPEC, split="0.5:0.5")
    return FirstNight.of(settings, spark)


@pytest.fixture
def folder(once, tmp_path):
    return once.copy_images(tmp_path)


@pytest.fixture
def settings(once, folder, tmp_path):
    return replace(once.settings, input=str(folder), output=str(tmp_path / "tiles"))


@pytest.fixture
def manifest(once, settings):
    """The images are tiled: what the data set says."""
    return once.copy_tiles(settings.output).manifest


def left_behind(settings):
    return sorted(path.name for path in Path(settings.output).parent.iterdir())


def names_in(settings):
    return sorted(
        {path.name for path in Path(settings.output).iterdir()}
        - {"_reports", "_likeness", ".huggingface.yaml", "_croissant.json", "_README.md"}
    )


def test_end_to_end(spark, once):
    settings, folder, manifest = once.settings, Path(once.settings.input), once.done.manifest
    assert left_behind(settings) == ["raw images", "tiles"]
    frame = read_parquet(spark, settings.output)
    rows = frame.collect()
    assert len(rows) == manifest["tiles"] > 100
    assert manifest["versions"]["pyspark"]

    field = Field.from_metadata("image", frame.schema["image"].metadata)
    assert field.shape == (32, 32, 1)
    assert field.classes == ("a", "b")
    expected = {
        (f"{path.parent.name}/{path.name}", tile.angle, tile.x, tile.y): tile
        for path in folder.glob("*/*.png")
        for tile in iter_tiles(decode_image(path.read_bytes(), path.name), SPEC)
    }
    assert len(expected) == len(rows)
    for row in rows:
        tile = expected[row.source, row.angle, row.x, row.y]
        assert bytes(row.image) == tile.pixels.tobytes()
        assert (row.src_cx, row.src_cy) == (tile.src_cx, tile.src_cy)
        assert (row.label, row.label_name) == ("ab".index(row.source[0]), row.source[0])
    assert len({row.tile_id for row in rows}) == len(rows)

    splits = {}
    for row in rows:
        assert splits.setdefault(row.source, row.split) == row.split
    for label in "ab":
        assert sorted(s for p, s in splits.items() if p[0] == label) == ["test"] * 3 + ["train"] * 3
    assert any("12 images, 4 angles" in line and "free" in line for line in once.said)


def test_files_are_sorted_compressed_and_without_dictionary(once):
    files = sorted(Path(once.settings.output).glob("shard=0-*/split=*/*.parquet"))
    assert {path.parent.name for path in files} == {"split=train", "split=test"}
    for path in files:
        rows = pq.read_table(path, columns=["source", "angle", "y", "x"]).to_pylist()
        keys = [(r["source"], r["angle"] % 90, r["angle"], r["y"], r["x"]) for r in rows]
        assert keys == sorted(keys)
        image = pq.ParquetFile(path).metadata.row_group(0).column(0)
        assert (image.path_in_schema, image.compression) == ("image", "ZSTD")
        assert not image.has_dictionary_page


@pytest.mark.full
@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_datasets_of_hugging_face_open_the_tiles_as_they_lie(
    spark, settings, tmp_path, monkeypatch, encoding
):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    datasets = pytest.importorskip("datasets")
    settings = replace(settings, encoding=encoding)
    manifest = tile_images(settings, spark=spark)
    found = datasets.load_dataset(settings.output, cache_dir=str(tmp_path / "cache"))
    counts = {split: sum(by_class.values()) for split, by_class in manifest["counts"].items()}
    assert {split: len(rows) for split, rows in found.items()} == counts
    assert found["train"].features["label"].names == manifest["classes"] == ["a", "b"]
    expected = {
        (f"{path.parent.name}/{path.name}", tile.angle, tile.x, tile.y): tile.pixels[:, :, 0]
        for path in Path(settings.input).glob("*/*.png")
        for tile in iter_tiles(decode_image(path.read_bytes(), path.name), SPEC)
    }
    for row in found["test"]:
        assert found["test"].features["label"].int2str(row["label"]) == row["label_name"]
        image = np.asarray(row["image"])
        pixels = expected[row["source"], row["angle"], row["x"], row["y"]]
        assert image.shape == pixels.shape
        assert encoding != "png" or np.array_equal(image, pixels)


@pytest.mark.usefixtures("manifest")
def test_a_data_set_with_a_file_of_the_user_is_never_replaced(spark, settings):
    notes = Path(settings.output) / "thesis.txt"
    with pytest.raises(OutputExistsError, match="--overwrite"):
        tile_images(settings, spark=spark)
    notes.write_text("x")
    with pytest.raises(OutputExistsError, match=r"but holds thesis\.txt, too"):
        tile_images(replace(settings, overwrite=True), spark=spark)
    assert notes.exists()


def test_what_is_no_data_set_is_never_replaced(spark, settings, folder):
    Path(settings.output).mkdir()
    (Path(settings.output) / "thesis.txt").write_text("x")
    with pytest.raises(OutputExistsError, match="not a data set of tiles"):
        tile_images(replace(settings, overwrite=True), spark=spark)
    with pytest.raises(ConfigurationError, match="contains the input"):
        tile_images(replace(settings, output=str(folder), overwrite=True), spark=spark)
    with pytest.raises(ConfigurationError, match="contains the input"):
        tile_images(replace(settings, output=str(folder.parent), overwrite=True), spark=spark)


def test_bad_images_fail_before_anything_is_written(spark, settings, folder):
    (folder / "a" / "cut.png").write_bytes((folder / "a" / "0.png").read_bytes()[:500])
    Image.new("L", (31, 200)).save(folder / "b" / "small.png")
    told = r"(?s)2 of 14.*cut\.png cannot be decoded.*small\.png is 31x200, too small"
    with pytest.raises(ImageError, match=told):
        tile_images(settings, spark=spark)
    assert left_behind(settings) == ["raw images"]


def test_what_does_not_fit_is_refused(spark, settings, monkeypatch):
    monkeypatch.setattr(Storage, "free_space", lambda *_: 1000)
    said = []
    with pytest.raises(NoSpaceError, match=r"1\.0 kB free"):
        tile_images(settings, spark=spark, say=said.append)
    assert any("1.0 kB free" in line for line in said)
    assert left_behind(settings) == ["raw images"]


def test_inputs_that_are_not_there(spark, settings, folder, tmp_path):
    with pytest.raises(PathNotFoundError, match="nowhere"):
        tile_images(replace(settings, input=str(tmp_path / "nowhere")), spark=spark)
    with pytest.raises(EmptyDataError, match=r"\*\.gif"):
        tile_images(replace(settings, glob="*.gif"), spark=spark)
    with pytest.raises(LabelError, match="lies directly"):
        tile_images(replace(settings, input=str(folder / "a")), spark=spark)
    with pytest.raises(PathNotFoundError, match=r"labels\.csv"):
        tile_images(replace(settings, labels=str(tmp_path / "labels.csv")), spark=spark)


@pytest.mark.full
def test_nothing_stays_behind_when_a_task_fails(spark, settings, folder, monkeypatch):
    """A source changes between the two passes."""
    from data_prep.spark import driver

    def change(*arguments):
        Image.new("L", (90, 90)).save(folder / "b" / "3.png")
        return tile_frame(*arguments)

    tile_frame = driver.tile_frame
    monkeypatch.setattr(driver, "tile_frame", change)
    with pytest.raises(ImageError, match=r"3\.png has changed since the job began"):
        tile_images(settings, spark=spark)
    assert left_behind(settings) == ["raw images"]


@pytest.mark.usefixtures("once")
def test_settings_of_the_session_are_restored(spark, conf_before):
    assert conf(spark) == conf_before
