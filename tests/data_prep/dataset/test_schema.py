from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from data_prep.dataset import schema
from data_prep.dataset.schema import (
    COLUMNS,
    encode,
    image_field,
    max_stored_value,
    record_batch,
)
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tiler import Tile, iter_tiles
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.open_image import decode_image
from data_prep.images.plane_selection import PlaneSelector
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.arrays import features_from_arrow

SPEC = TileSpec(32, angles=[0, 30])
RAW = TilingConfig(SPEC, "raw", 90, None, PlaneSelector())
JPEG = replace(RAW, encoding="jpeg")
IMAGE = ImageRecord("a/1.png", TILED, sha256="abc", label="b", split="train", pixel_size=0.5)
WHOLE = (1.0, 1.0)


def some_tiles(channels=1, dtype=np.uint8):
    shape = (80, 90, channels)
    image = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return list(iter_tiles(image, SPEC))


@pytest.mark.parametrize("encoding", ["raw", "difference", "png"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_rows_hold_the_pixels(encoding, channels, dtype):
    tiles, kind = some_tiles(channels, dtype), np.dtype(dtype)
    field = image_field(SPEC, channels, kind.name, encoding, ("a", "b"), kind.itemsize * 8)
    batch = record_batch(tiles, IMAGE, WHOLE, replace(RAW, encoding=encoding), field)
    assert batch.schema.names == ["image", *(name for name, _, _ in COLUMNS)]
    images = batch.column("image")
    stored = images.field("bytes") if field.is_file else images
    np.testing.assert_array_equal(
        features_from_arrow(stored, field), [tile.pixels for tile in tiles]
    )
    for row, tile in zip(batch.to_pylist(), tiles, strict=True):
        if encoding == "png":
            assert row["image"]["path"] == f"{row['tile_id']}.png"
            np.testing.assert_array_equal(decode_image(row["image"]["bytes"], "x"), tile.pixels)
        else:
            assert len(row["image"]) == field.nbytes
        if encoding == "raw":
            assert row["image"] == tile.pixels.astype(kind.newbyteorder("<")).tobytes()
        assert (row["x"], row["y"], row["angle"]) == (tile.x, tile.y, tile.angle)
        assert (row["label"], row["label_name"], row["split"]) == (1, "b", "train")
        assert (row["source"], row["pixel_size"]) == ("a/1.png", 0.5)
        assert (row["height"], row["width"], row["channels"]) == (32, 32, channels)
        assert row["encoding"] == encoding
    assert len(set(batch.column("tile_id").to_pylist())) == len(tiles)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_rows_are_pictures(channels):
    tile = Tile(np.full((32, 32, channels), 77, np.uint8), 0.0, 0, 0, 16.0, 16.0)
    field = image_field(SPEC, channels, "uint8", "jpeg", ("a", "b"), 8)
    row = record_batch([tile], IMAGE, WHOLE, JPEG, field).to_pylist()[0]
    assert row["image"]["path"] == f"{row['tile_id']}.jpeg"
    pixels = np.asarray(Image.open(BytesIO(row["image"]["bytes"])))
    assert pixels.shape == ((32, 32) if channels == 1 else (32, 32, 3))
    assert np.abs(pixels.astype(int) - 77).max() <= 1
    with pytest.raises(ConfigurationError, match="uint16"):
        image_field(SPEC, 1, "uint16", "jpeg", (), 16)


def test_quality_is_used():
    tile = some_tiles()[0].pixels
    assert len(encode(tile, "jpeg", 30)) < len(encode(tile, "jpeg", 95))


def test_the_model_sees_values_from_0_to_1():
    for dtype, bits in (("uint8", 8), ("uint16", 16), ("uint16", 12)):
        field = image_field(SPEC, 1, dtype, "raw", (), bits)
        assert max_stored_value(field) == 2**bits - 1
        assert max_stored_value(field) * field.scale + field.offset == 1


def test_texture_of_12_bits_is_no_background():
    pixels = np.random.default_rng(0).integers(0, 4096, (32, 32, 1), dtype=np.uint16)
    tile = Tile(pixels // 4, 0.0, 0, 0, 16.0, 16.0)
    of_16, of_12 = (
        record_batch(
            [tile], IMAGE, WHOLE, RAW, image_field(SPEC, 1, "uint16", "raw", ("a", "b"), bits)
        ).to_pylist()[0]
        for bits in (16, 12)
    )
    assert (of_16["bg_fraction"], of_12["bg_fraction"]) == (1, 0)


def test_identity_is_of_pixels_and_how_they_were_cut_and_stored():
    tile = some_tiles()[0]
    same = replace(tile, pixels=tile.pixels + 1)
    assert RAW.tile_id("abc", 1, tile) == RAW.tile_id("abc", 1, same)
    others = [
        RAW.tile_id("abd", 1, tile),
        RAW.tile_id("abc", 3, tile),
        JPEG.tile_id("abc", 1, tile),
        replace(JPEG, quality=80).tile_id("abc", 1, tile),
        *(
            replace(RAW, choice=choice).tile_id("abc", 1, tile)
            for choice in (PlaneSelector(page=1), PlaneSelector(channel="1"), PlaneSelector(z="1"))
        ),
        replace(RAW, spec=replace(SPEC, overlap=0.25)).tile_id("abc", 1, tile),
        replace(RAW, spec=replace(SPEC, interpolation="linear")).tile_id("abc", 1, tile),
        RAW.tile_id("abc", 1, replace(tile, x=tile.x + 1)),
        RAW.tile_id("abc", 1, replace(tile, angle=30.0)),
    ]
    assert len({RAW.tile_id("abc", 1, tile), *others}) == 1 + len(others)
    # Of lossless tiles the quality says nothing.
    assert replace(RAW, quality=80).tile_id("abc", 1, tile) == RAW.tile_id("abc", 1, tile)


def test_a_new_column_is_a_line_of_the_table_and_an_attribute_of_a_tile_or_an_image(monkeypatch):
    class Numbered(Tile):
        row_number = 7

    added = ("row_number", "int", "of a tile"), ("low", "double", "of an image")
    monkeypatch.setattr(schema, "COLUMNS", (*COLUMNS, *added))
    tile = Numbered(np.full((32, 32, 1), 77, np.uint8), 0.0, 0, 0, 16.0, 16.0)
    field = image_field(SPEC, 1, "uint8", "raw", ("a", "b"), 8)
    batch = record_batch([tile], replace(IMAGE, low=0.25), WHOLE, RAW, field)
    assert [batch.column(name).to_pylist() for name, *_ in added] == [[7], [0.25]]
