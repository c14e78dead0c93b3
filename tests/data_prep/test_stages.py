"""Each unit of work in the task that the plan gave it to."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from PIL import Image

from data_prep import TileSpec
from data_prep.picture import Choice
from data_prep.plan import PlannedSource, Unit
from data_prep.stages import Cutting, tile_frame
from distkeras_grid.feeding.schema import Field

SPEC = TileSpec(16, angles=[0, 90])


def planned(path):
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    size = (24, 24, 1)
    return PlannedSource(path.name, f"file:{path}", sha256, "a", "train", None, *size, 8, 256.0)


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
