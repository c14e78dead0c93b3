"""Zones, pixel sizes and edges through the whole job, on real Spark."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import tifffile

from data_prep import TileSpec, TilingSettings, update_tiles
from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet

pytestmark = pytest.mark.spark

BAR = 12


@pytest.fixture
def settings(tmp_path):
    """Four images of 12 bits in 16, with a white bar below, at two magnifications."""
    for label in "ab":
        (tmp_path / "raw" / label).mkdir(parents=True)
        for i in range(2):
            size = (80 * (i + 1), 100 * (i + 1))
            rng = np.random.default_rng(i + 7 * (label == "b"))
            pixels = cv2.GaussianBlur(rng.integers(0, 3000, size, dtype=np.uint16), (0, 0), 2)
            pixels[-BAR * (i + 1) :] = 4095
            tifffile.imwrite(
                tmp_path / "raw" / label / f"{i}.ome.tif",
                pixels,
                ome=True,
                metadata={"axes": "YX", "PhysicalSizeX": 1 / (i + 1), "PhysicalSizeY": 1 / (i + 1)},
            )
    return TilingSettings(
        *(str(tmp_path / "raw"), str(tmp_path / "tiles")),
        TileSpec(32, 8, [0, 30], edge="shift"),
        split="1",
        pixel_size="1um",
        update=True,
    )


@pytest.mark.full
def test_zones_are_kept_off_and_followed(spark, settings, tmp_path):
    table = tmp_path / "zones.csv"
    head = "file,left,top,right,bottom\n"
    table.write_text(head + "a/0.ome.tif,0,68,100,80\na/1.ome.tif,0,136,200,160\n")
    zoned = replace(settings, zones=str(table))
    first = update_tiles(zoned, spark=spark)
    assert first.new == 4
    assert first.manifest["significant_bits"] == 12
    entries = {each["source"]: each for each in first.manifest["sources"]}
    assert {each["width"] for each in entries.values()} == {100, 200}
    assert {each["pixel_size"] for each in entries.values()} == {1.0}
    assert [bool(entries[path].get("zones")) for path in sorted(entries)] == [
        True,
        True,
        False,
        False,
    ]

    def brightest():
        frame = read_parquet(spark, settings.output)
        field = Field.from_metadata("image", frame.schema["image"].metadata)
        assert round(1 / field.scale) == 4095
        found = {}
        for row in frame.select("source", "image", "scale", "pixel_size", "saturated").collect():
            assert row.pixel_size == 1.0
            assert row.scale == (1.0 if "/0" in row.source else 0.5)
            highest = int(np.frombuffer(row.image, "<u2").max())
            assert (row.saturated > 0) == (highest >= 4095)
            found[row.source] = max(highest, found.get(row.source, 0))
        return {source for source, highest in found.items() if highest > 3500}

    assert brightest() == {"b/0.ome.tif", "b/1.ome.tif"}
    again = update_tiles(zoned, spark=spark)
    assert (again.new, again.changed, again.tiles) == (0, 0, 0)
    with table.open("a") as file:
        file.write("b/0.ome.tif,0,68,100,80\n")
    second = update_tiles(zoned, spark=spark)
    assert (second.new, second.changed, second.unchanged) == (0, 1, 3)
    assert brightest() == {"b/1.ome.tif"}
    with pytest.raises(ConfigurationError):
        update_tiles(settings, spark=spark)
    with table.open("a") as file:
        file.write("b/7.ome.tif,0,68,100,80\n")
    with pytest.raises(SchemaError, match=r"b/7\.ome\.tif"):
        update_tiles(zoned, spark=spark)
