"""Exports by Spark, read by other programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data_prep.cli.export import main
from data_prep.export.job import ExportSettings, export_tiles
from distkeras_grid.errors import EmptyDataError, OutputExistsError, SchemaError
from distkeras_grid.feeding.schema import Field

pytestmark = pytest.mark.spark

FIELD = Field("image", (4, 5, 3), scale=1 / 255, classes=("dark", "light"))
PIXELS = np.random.default_rng(0).integers(0, 256, (30, 4, 5, 3), np.uint8)


@pytest.fixture(scope="module")
def data(spark, tmp_path_factory):
    """Thirty images of two classes: every third is of the split test."""
    path = str(tmp_path_factory.mktemp("data") / "tiles")
    table = pa.table(
        {
            "image": [pixels.tobytes() for pixels in PIXELS],
            "label": pa.array(np.arange(30) % 2, pa.int32()),
            "label_name": [FIELD.classes[number % 2] for number in range(30)],
            "tile_id": [f"{number:04x}" for number in range(30)],
            "encoding": ["raw"] * 30,
            "split": ["test" if number % 3 == 0 else "train" for number in range(30)],
        }
    )
    frame = spark.createDataFrame(table).withMetadata("image", FIELD.to_metadata())
    frame.repartition(3).write.partitionBy("split").parquet(path)
    return path


def export(data, kind, output, *more):
    flags = ["--data", data, "--format", kind, "--output", str(output), *more]
    assert main(flags) == 0
    told = json.loads((Path(output) / "_export.json").read_text())
    assert (told["format"], told["rows"]) == (kind, {"test": 10, "train": 20})
    return output


def pixels_of(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_image_folders(data, tmp_path):
    out = export(data, "png", tmp_path / "out")
    found = {path.stem: path for path in out.glob("t*/*/*.png")}
    assert len(found) == 30
    for number, pixels in enumerate(PIXELS):
        path = found[f"{number:04x}"]
        split = "test" if number % 3 == 0 else "train"
        assert path.parts[-3:-1] == (split, FIELD.classes[number % 2])
        np.testing.assert_array_equal(pixels_of(path.read_bytes()), pixels)
    columns = pq.read_table(out / "_columns")
    assert columns.num_rows == 30
    # It said "raw", and who follows that makes noise of a PNG.
    assert set(columns["encoding"].to_pylist()) == {"png"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_datasets_of_hugging_face_have_splits_images_and_classes(data, tmp_path, monkeypatch):
    out = export(data, "huggingface", tmp_path / "out")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    assert {name: len(rows) for name, rows in found.items()} == {"train": 20, "test": 10}
    assert found["train"].features["label"].names == list(FIELD.classes)
    for row in found["test"]:
        assert row["encoding"] == "png"
        np.testing.assert_array_equal(np.asarray(row["image"]), PIXELS[int(row["tile_id"], 16)])


def test_what_cannot_be_exported_is_refused_and_nothing_is_left(spark, data, tmp_path):
    rows, out = spark.read.parquet(data), tmp_path / "out"
    settings = ExportSettings("png", str(out))
    with pytest.raises(EmptyDataError):
        export_tiles(rows.where("label > 5"), settings)
    with pytest.raises(SchemaError, match="'label'"):
        export_tiles(rows.drop("label"), settings)
    with pytest.raises(SchemaError, match=r"'\.\./train'"):
        export_tiles(rows.selectExpr("image", "label", "'../train' as split"), settings)
    out.mkdir()
    (out / "thesis.txt").touch()
    with pytest.raises(OutputExistsError):
        export_tiles(rows, settings)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "thesis.txt"]
