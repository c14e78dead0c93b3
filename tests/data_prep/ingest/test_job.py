"""Each format end to end, on files that are made here."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep import TilingSettings, tile_images, update_tiles
from data_prep.images.open_image import decode_image
from data_prep.ingest import IngestSettings, ingest_images
from distkeras_grid import read_tiles
from distkeras_grid.errors import (
    DataError,
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


def idx_of(array):
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes())


@pytest.fixture(scope="module")
def numbers():
    """Images and labels of two splits, 28x28."""
    rng = np.random.default_rng(1)
    return {
        prefix: (
            rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8),
            (np.arange(rows) % 10).astype(np.uint8),
        )
        for prefix, rows in (("train", 2300), ("t10k", 50))
    }


@pytest.fixture
def idx_settings(numbers, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    for prefix, (images, labels) in numbers.items():
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx_of(images))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx_of(labels))
    (folder / "README.md").write_text("not of the data set")
    return IngestSettings("idx", str(folder), str(tmp_path / "data"))


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
    return IngestSettings(
        "images", str(tmp_path / "photos"), str(tmp_path / "data"), size=16, split="folder"
    )


def left_behind(settings):
    return sorted(path.name for path in Path(settings.output).parent.iterdir())


def arrays(frame):
    """Return images and labels in the order of the files."""
    field = Field.from_metadata("image", frame.schema["image"].metadata)
    rows = frame.orderBy("source", "item").collect()
    images = np.stack([np.frombuffer(row.image, field.dtype).reshape(field.shape) for row in rows])
    return images, [row.label for row in rows]


def test_idx(spark, idx_settings, numbers):
    said = []
    manifest = ingest_images(idx_settings, spark=spark, say=said.append).manifest
    for frame, prefix in zip(read_tiles(idx_settings.output), ("train", "t10k"), strict=True):
        images, labels = arrays(frame)
        np.testing.assert_array_equal(images[..., 0], numbers[prefix][0])
        assert labels == numbers[prefix][1].tolist()
    field = Field.from_metadata("image", frame.schema["image"].metadata)
    assert (field.shape, field.dtype, field.scale) == ((28, 28, 1), "uint8", 1 / 255)
    assert json.loads((Path(idx_settings.output) / "_versions" / "0.json").read_text()) == manifest
    assert manifest["counts"]["train"] == dict.fromkeys(map(str, range(10)), 230)
    assert manifest["rows"] == 2350
    # Several files, so that several workers read at once.
    assert len(list(Path(idx_settings.output).glob("split=train/*.parquet"))) == 3
    assert any("test: 50 images: 0 5," in line for line in said)
    assert left_behind(idx_settings) == ["a folder", "data"]


def test_photos(spark, photo_settings):
    said = []
    hidden = Path(photo_settings.input) / "train/boot/_new.png"
    hidden.write_bytes((hidden.parent / "1.png").read_bytes())
    (hidden.parent / "gone.png").symlink_to("nowhere")
    manifest = ingest_images(photo_settings, spark=spark, say=said.append).manifest
    for name in ("_new.png", "gone.png"):
        assert sum(f"left out: train/boot/{name}:" in line for line in said) == 1
    train, test = read_tiles(photo_settings.output)
    images, labels = arrays(train)
    assert (images.shape, images.dtype) == ((10, 16, 16, 3), np.uint8)
    assert labels == [0] * 5 + [1] * 5
    assert (images[0, ..., 0] == images[0, ..., 1]).all()  # a gray one
    folder = Path(photo_settings.input)
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
    settings = replace(photo_settings, labels=str(table), gray=True, standardise=True)
    ingest_images(settings, spark=spark)
    (train,) = read_tiles(settings.output, splits=("train",))
    found = {row.source: row.group for row in train.collect()}
    assert found["train/boot/1.png"] == found["train/hat/1.png"] == "train1"
    assert found["train/boot/4.png"] is None
    assert default_units(train.columns) == ["source", "group"]


def test_standardised_by_the_training_split(spark, photo_settings):
    settings = replace(photo_settings, gray=True, standardise=True)
    ingest_images(settings, spark=spark)
    train, test = (arrays(frame)[0] for frame in read_tiles(settings.output))
    assert (train.shape, train.dtype) == ((10, 16, 16, 1), np.float32)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-4)
    assert abs(test.mean(axis=0)).max() > 0.1
    raw = replace(photo_settings, gray=True, output=f"{settings.output}-raw")
    ingest_images(raw, spark=spark)
    pixels = arrays(read_tiles(raw.output)[1])[0]
    with np.load(Path(settings.output) / "_transform.npz") as fitted:
        expected = (pixels.reshape(4, -1) - fitted["mean"]) / fitted["deviation"]
    np.testing.assert_allclose(test.reshape(4, -1), expected, rtol=1e-5, atol=1e-5)


def test_a_damaged_file_is_one_error_and_leaves_nothing(spark, photo_settings, idx_settings):
    broken = Path(photo_settings.input) / "train" / "hat" / "3.png"
    # Spark has no row of a file of no bytes.
    for content, says in ((b"", "is empty"), (broken.read_bytes()[:300], "cannot be decoded")):
        broken.write_bytes(content)
        with pytest.raises(ImageError, match=rf"train/hat/3\.png {says}"):
            ingest_images(photo_settings, spark=spark)
    images = Path(idx_settings.input) / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        ingest_images(idx_settings, spark=spark)
    assert left_behind(idx_settings) == ["a folder", "photos"]


def test_what_is_not_there_or_would_be_lost(spark, idx_settings, tmp_path, monkeypatch):
    with pytest.raises(PathNotFoundError, match="no input folder"):
        ingest_images(replace(idx_settings, input=str(tmp_path / "none")), spark=spark)
    with pytest.raises(EmptyDataError, match="data_batch_"):
        ingest_images(replace(idx_settings, format="cifar10"), spark=spark)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("x")
    with pytest.raises(OutputExistsError, match="not a data set of images"):
        ingest_images(idx_settings, spark=spark)
    shutil.rmtree(tmp_path / "data")
    monkeypatch.setattr(Storage, "free_space", lambda *_: 1000)
    with pytest.raises(NoSpaceError, match=r"2,350 images .* 1\.8 MB, and .* 1\.0 kB free"):
        ingest_images(idx_settings, spark=spark)
    assert left_behind(idx_settings) == ["a folder"]


def test_what_spark_does_not_list_makes_the_result_partial(spark, photo_settings):
    hidden = Path(photo_settings.input) / "train/boot/_new.png"
    hidden.write_bytes((hidden.parent / "1.png").read_bytes())
    shutil.copy(hidden.parent / "1.png", hidden.parent / "same.png")
    done = ingest_images(photo_settings, spark=spark)
    assert (done.manifest["rows"], list(done.left_out)) == (14, ["train/boot/_new.png"])
    origin = json.loads((Path(photo_settings.output) / "_ingest.json").read_text())
    assert sorted(origin["left_out"]) == ["train/boot/_new.png", "train/boot/same.png"]
