"""Each unit of work in the task that the plan gave it to."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import cv2
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from data_prep import TileSpec
from data_prep.cutting import Cutting
from data_prep.digests import pixel_digest
from data_prep.images import decode_image
from data_prep.picture import Choice
from data_prep.plan import PlannedSource, Unit
from data_prep.schema import image_field
from data_prep.stages import Inspected, cut_image, inspect_image, inspector, tile_frame
from data_prep.zones import ZoneRules
from distkeras_grid.feeding.schema import Field

SPEC = TileSpec(16, angles=[0, 90])


def planned(path):
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    size = (24, 24, 1)
    return PlannedSource(path.name, f"file:{path}", sha256, "a", "train", None, *size, 8, 256.0)


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


def test_significant_bits_are_measured_and_checked():
    deep = np.random.default_rng(0).integers(0, 4096, (24, 24), dtype=np.uint16)
    cutting = Cutting(SPEC, "raw", 90, None, Choice())
    found = inspect_image("a.png", png(deep), cutting)
    assert (found.error, found.dtype, found.bits) == (None, "uint16", 12)
    assert inspect_image("a.png", png(deep), replace(cutting, bits=14)).bits == 14
    assert inspect_image("a.png", png(deep), replace(cutting, bits=10)).error
    assert inspect_image("a.png", png((deep >> 4).astype(np.uint8)), cutting).bits == 8


def test_a_look_tells_what_a_picture_shows_where_that_is_asked_for(samples):
    content = sorted(samples.glob("*/*.png"))[0].read_bytes()
    cutting = Cutting(SPEC, "raw", 90, None, Choice())
    batch = pa.RecordBatch.from_pydict({"path": ["a.png"], "content": [content]})
    for wanted in (True, False):
        looks = inspector(replace(cutting, fingerprints=wanted))(iter([batch]))
        (row,) = (row for each in looks for row in each.to_pylist())
        found = Inspected(**row)
        assert found.pixel_sha256 == pixel_digest(decode_image(content, "a.png"))
        assert bool(found.fingerprint) is wanted
    bad = inspect_image("a.png", b"no image", replace(cutting, fingerprints=True))
    assert (bad.fingerprint, bad.pixel_sha256) == (b"", "")


def cut(content, cutting, found, source="a.png"):
    """All rows of one image, as the second pass makes them."""
    dtype = found.dtype
    bits = found.bits
    field = image_field(cutting.spec, found.channels, dtype, cutting.encoding, ("a",), bits)
    angles = list(cutting.spec.angles)
    row = {"content": content, "path": f"file:/in/{source}", "source": source, "angles": angles}
    row |= {"sha256": found.sha256, "label": 0, "label_name": "a", "split": "train"}
    return [each for batch in cut_image(row, field, cutting) for each in batch.to_pylist()]


def test_the_paper_specification_writes_6972_rows():
    """One source of the published size; its tiles were counted there, 4,559,688 of 654 images."""
    content = png(np.zeros((1704, 2272), np.uint8))
    cutting = Cutting(TileSpec.paper(), "jpeg", 30, None, Choice(), root="file:/in")
    found = inspect_image("file:/in/a.png", content, cutting)
    assert found.tiles == 6972
    rows = cut(content, cutting, found)
    assert len(rows) == len({row["tile_id"] for row in rows}) == 6972
    assert sum(row["original"] for row in rows) == 192


def test_rows_tell_where_in_the_source_they_lie_whatever_the_pixel_size():
    y, x = np.mgrid[:300, :400]
    content = png(((x + y) // 4).astype(np.uint8))
    cutting = Cutting(
        *(TileSpec(32, 0.5, [0, 20, 90]), "raw", 90, None, Choice()),
        pixel_size=2.0,
        source_pixel_size=1.0,
        zones=ZoneRules({}, bottom_strip=100),
        root="file:/in/",
    )
    found = inspect_image("file:/in/a.png", content, cutting)
    assert (found.width, found.height, found.pixel_size) == (400, 300, 2.0)
    assert found.zones
    rows = cut(content, cutting, found)
    assert len(rows) == found.tiles
    assert found.excluded > 0
    for row in rows:
        pixels = np.frombuffer(row["image"], np.uint8)
        assert pixels.mean() == pytest.approx((row["src_cx"] + row["src_cy"]) / 4, abs=1)
        assert row["src_cy"] < 200
        assert (row["scale"], row["pixel_size"]) == (0.5, 2.0)
    assert max(row["src_cx"] for row in rows) > 300


def test_an_image_that_keeps_no_tile_is_named():
    content = png(np.zeros((40, 40), np.uint8))
    cutting = Cutting(TileSpec(32, angles=[0]), "raw", 90, None, Choice())
    assert inspect_image("a.png", content, cutting).error is None
    for wrong in (
        replace(cutting, zones=ZoneRules({}, bottom_strip=10)),
        replace(cutting, spec=TileSpec(64)),
    ):
        assert "a.png" in inspect_image("a.png", content, wrong).error


@pytest.mark.spark
def test_each_task_cuts_the_units_of_its_partition_in_their_order(spark, tmp_path):
    from pyspark.sql import functions as F

    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((24, 24), number, np.uint8)).save(path)
    # Two units a task, and an image in two tasks.
    steps = [(path, angle) for angle in SPEC.angles for path in paths]
    units = [Unit(planned(path), (angle,), i // 2) for i, (path, angle) in enumerate(steps)]
    images = spark.read.format("binaryFile").load(str(tmp_path))
    cutting = Cutting(SPEC, "raw", 90, 1, Choice())
    tiles = tile_frame(spark, images, units, Field("image", (16, 16, 1), classes=("a",)), cutting)
    rows = tiles.select(F.spark_partition_id().alias("at"), "source", "angle").collect()
    found = list(dict.fromkeys(map(tuple, rows)))
    assert found == [(unit.partition, unit.source.source, unit.angles[0]) for unit in units]
