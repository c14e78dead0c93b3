"""Photos end to end, on files that are made here."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep import TilingSettings, tile_images, update_tiles
from data_prep.images.file_access import FileOpener
from data_prep.images.open_image import decode_image
from data_prep.ingest import IngestSettings, ingest_images
from data_prep.ingest.job import COLUMNS, read_task, resized
from data_prep.ingest.plan import PlannedImage
from distkeras_grid import read_tiles
from distkeras_grid.errors import (
    EmptyDataError,
    ImageError,
    NoSpaceError,
    OutputExistsError,
    PathNotFoundError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.inference.evaluator import default_units
from distkeras_grid.spark.storage import Storage

pytestmark = pytest.mark.spark


@pytest.fixture
def photo_settings(tmp_path):
    """Photos of two classes, of different sizes, gray and colour, in folders of two splits."""
    rng = np.random.default_rng(2)
    for split, count in (("train", 5), ("test", 2)):
        for label in ("boot", "hat"):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                shape = (20 + i, 30, 3) if i else (20, 30)
                pixels = rng.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return IngestSettings(str(tmp_path / "photos"), str(tmp_path / "data"), 16, split="folder")


def left_behind(settings):
    return sorted(path.name for path in Path(settings.output).parent.iterdir())


def arrays(frame):
    """Return images and labels in the order of the files."""
    field = Field.from_metadata("image", frame.schema["image"].metadata)
    rows = frame.orderBy("source").collect()
    images = np.stack([np.frombuffer(row.image, field.dtype).reshape(field.shape) for row in rows])
    return images, [row.label for row in rows]


def test_photos(spark, photo_settings):
    said = []
    folder = Path(photo_settings.input)
    (folder / "train/boot/gone.png").symlink_to("nowhere")
    shutil.copy(folder / "train/boot/1.png", folder / "train/boot/same.png")
    done = ingest_images(photo_settings, spark=spark, say=said.append)
    manifest = done.manifest
    assert (manifest["rows"], list(done.left_out)) == (14, ["train/boot/gone.png"])
    for name in ("same.png", "gone.png"):
        assert sum(f"left out: train/boot/{name}:" in line for line in said) == 1
    origin = json.loads((Path(photo_settings.output) / "_ingest.json").read_text())
    assert sorted(origin["left_out"]) == ["train/boot/gone.png", "train/boot/same.png"]
    assert left_behind(photo_settings) == ["data", "photos"]
    train, test = read_tiles(photo_settings.output)
    images, labels = arrays(train)
    assert (images.shape, images.dtype) == ((10, 16, 16, 3), np.uint8)
    assert labels == [0] * 5 + [1] * 5
    assert (images[0, ..., 0] == images[0, ..., 1]).all()  # a gray one
    original = decode_image((folder / "train/boot/1.png").read_bytes(), "")
    assert images[1].mean() == pytest.approx(original.mean(), abs=1)
    assert manifest["classes"] == ["boot", "hat"]
    assert manifest["counts"] == {"train": {"boot": 5, "hat": 5}, "test": {"boot": 2, "hat": 2}}
    assert test.count() == 4
    for file in Path(photo_settings.output).glob("split=*/*.parquet"):
        sources = pq.read_table(file, columns=["source"])["source"].to_pylist()
        assert sources == sorted(sources)
    # What cuts tiles takes this for no data set of its own.
    for change in ({"overwrite": True}, {"update": True}):
        tiling = TilingSettings(photo_settings.input, photo_settings.output, **change)
        with pytest.raises(OutputExistsError):
            (update_tiles if "update" in change else tile_images)(tiling, spark=spark)


def test_groups_are_a_column_of_the_rows(spark, photo_settings, tmp_path):
    table = tmp_path / "list.csv"
    paths = sorted(Path(photo_settings.input).glob("*/*/*.png"))
    lines = [
        f"{path.relative_to(photo_settings.input)},{path.parent.name},"
        f"{path.parts[-3] + path.stem if path.stem < '2' else ''}\n"
        for path in paths
    ]
    table.write_text("file,label,group\n" + "".join(lines))
    settings = replace(photo_settings, labels=str(table), gray=True)
    ingest_images(settings, spark=spark)
    (train,) = read_tiles(settings.output, splits=("train",))
    assert arrays(train)[0].shape == (10, 16, 16, 1)
    found = {row.source: row.group for row in train.collect()}
    assert found["train/boot/1.png"] == found["train/hat/1.png"] == "train1"
    assert found["train/boot/4.png"] is None
    assert default_units(train.columns) == ["source", "group"]


def test_a_damaged_file_is_one_error_and_leaves_nothing(spark, photo_settings):
    broken = Path(photo_settings.input) / "train" / "hat" / "3.png"
    # Spark has no row of a file of no bytes.
    for content, says in ((b"", "is empty"), (broken.read_bytes()[:300], "cannot be decoded")):
        broken.write_bytes(content)
        with pytest.raises(ImageError, match=rf"train/hat/3\.png {says}"):
            ingest_images(photo_settings, spark=spark)
    assert left_behind(photo_settings) == ["photos"]


def test_what_is_not_there_or_would_be_lost(spark, photo_settings, tmp_path, monkeypatch):
    with pytest.raises(PathNotFoundError, match="no input folder"):
        ingest_images(replace(photo_settings, input=str(tmp_path / "none")), spark=spark)
    (tmp_path / "none").mkdir()
    with pytest.raises(EmptyDataError, match="No file below"):
        ingest_images(replace(photo_settings, input=str(tmp_path / "none")), spark=spark)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("x")
    with pytest.raises(OutputExistsError, match="not a data set of images"):
        ingest_images(photo_settings, spark=spark)
    shutil.rmtree(tmp_path / "data")
    monkeypatch.setattr(Storage, "free_space", lambda *_: 1000)
    with pytest.raises(NoSpaceError, match=r"14 images .* 11 kB, and .* 1\.0 kB free"):
        ingest_images(photo_settings, spark=spark)
    assert left_behind(photo_settings) == ["none", "photos"]


def test_a_file_that_has_changed_since_its_split_was_chosen_is_refused(tmp_path):
    """Its rows came with the label and the split of the former picture."""
    path = tmp_path / "a.png"
    Image.new("RGB", (50, 20), (10, 20, 30)).save(path)
    field = Field("image", (8, 8, 3), classes=("a", "b"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    kinds = [(name, kind) for name, kind, _ in COLUMNS]
    read = read_task(FileOpener("file"), field, kinds)

    def rows_of(sha256):
        image = PlannedImage(f"file:{path}", "a.png", "test", 1, 0, sha256)
        row = {"path": image.uri, "image": msgspec.json.encode(image).decode()}
        return [b.to_pylist() for b in read(iter([pa.RecordBatch.from_pylist([row])]))]

    (((row,)),) = rows_of(digest)
    assert row["image"] == bytes([10, 20, 30]) * 64
    assert (row["label"], row["label_name"], row["split"]) == (1, "b", "test")
    with pytest.raises(ImageError, match=r"a\.png has changed"):
        rows_of("0" * 64)


def test_shrinking_averages_areas_and_growing_keeps_flat_areas_flat():
    image = np.zeros((4, 8, 1), np.uint8)
    image[:2, :2] = 200
    image[2:, 4:6] = 100
    image[2, 4] = 20
    small = resized(image, (2, 4, 1), "")
    assert small[..., 0].tolist() == [[200, 0, 0, 0], [0, 0, 80, 0]]
    grown = resized(np.full((3, 3, 3), 77, np.uint8), (8, 8, 3), "")
    assert grown.shape == (8, 8, 3)
    assert (grown == 77).all()
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 100
    assert resized(red, (2, 2, 1), "").ravel().tolist() == [30] * 4
    with pytest.raises(ImageError, match=r"deep\.png has 16 bits"):
        resized(np.zeros((2, 2, 1), np.uint16), (2, 2, 1), "deep.png")
