from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import cv2
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from data_prep.geometry.grid import RotatedFrame, TileSpec
from data_prep.geometry.rotated_image import BLOCK
from data_prep.geometry.tiler import crop_tile, iter_tiles
from data_prep.images.plane_selection import PlaneSelector
from data_prep.on_the_fly import column
from data_prep.on_the_fly.column import (
    CACHE_BYTES,
    Recipe,
    cut_tiles_of,
    open_content,
)
from distkeras_grid.errors import (
    ConfigurationError,
    ImageError,
    PathNotFoundError,
    SchemaError,
    StorageError,
)
from distkeras_grid.feeding import feature_file
from distkeras_grid.feeding.row_cache import RowCache
from distkeras_grid.feeding.schema import Field
from distkeras_grid.rows import ALIGNMENT
from distkeras_grid.webhdfs import connection, failures
from tests.distkeras_grid.webhdfs.loopback import loopback

SPEC = TileSpec(32, angles=[0, 25, 90, 115, 180])


def tile_field(spec, channels=1, dtype="uint8", classes=(), choice=None, **more):
    recipe = Recipe(spec.interpolation, spec.edge, choice or PlaneSelector(), **more)
    shape, scale = (spec.tile, spec.tile, channels), 1 / np.iinfo(dtype).max
    return Field(
        *("image", shape, dtype, scale),
        encoding="tile",
        classes=tuple(classes),
        recipe=recipe.to_text(),
    )


def read_content(uri):
    with open_content(uri) as content:
        return content.stream.read()


def noise(shape=(90, 120), dtype=np.uint8, seed=0):
    """The hardest image: neighbours differ as much as they can."""
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape, dtype)


@pytest.fixture
def images(tmp_path):
    """Three images: a name with a space and no ASCII, a colour image among gray ones."""
    found = {}
    for number, name in enumerate(("a", "b ü", "c")):
        pixels = noise((90, 120, 3) if name == "c" else (90, 120), seed=number)
        path = tmp_path / f"{name}.png"
        Image.fromarray(pixels).save(path)
        found[f"file:{path}"] = pixels
    return found


def cut_tile(image, spec, angle, x, y):
    (tile,) = crop_tile(image, spec, angle, (np.array([x]), np.array([y])))
    return tile


def contents_of(places):
    return [memoryview(msgspec.json.encode(place)) for place in places]


def places_of(images, spec=SPEC):
    """All tiles of images, as an index tells them."""
    return [
        {"uri": uri, "angle": tile.angle, "x": tile.x, "y": tile.y}
        for uri, pixels in images.items()
        for tile in iter_tiles(pixels, spec)
    ]


# -- one tile -----------------------------------------------------------------------------------


ALONE = {
    "a quarter of all angles": TileSpec(48, angles=range(0, 90, 5), interpolation="cubic"),
    "all quarter turns": TileSpec(40, angles=range(0, 360, 45), interpolation="cubic", edge="pad"),
    "odd angles": TileSpec(50, 0.3, [0.1, 13.7, 89.9, 211.3], interpolation="linear", edge="shift"),
    "large tiles": TileSpec(
        66, angles=[30, 60, 135, 210], interpolation="lanczos4", mode="inscribed"
    ),
    "small tiles": TileSpec(17, -3, [11, 171, 299], interpolation="nearest", edge="pad"),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(131, 170), (170, 131, 1), (131, 170, 3)])
@pytest.mark.parametrize("spec", ALONE.values(), ids=ALONE)
def test_a_tile_by_itself_has_the_pixels_of_the_tile_among_all(spec, shape, dtype):
    image = noise(shape, dtype)
    tiles = list(iter_tiles(image, spec))
    assert len(tiles) > 4
    for tile in tiles[:: max(1, len(tiles) // 50)]:
        alone = cut_tile(image, spec, tile.angle, tile.x, tile.y)
        np.testing.assert_array_equal(alone, tile.pixels)


def test_tiles_that_overlap_are_computed_together(monkeypatch):
    """Each pixel once."""
    image, spec = noise((90, 120, 3)), TileSpec(32, overlap=0.75, angles=[115])
    tiles = list(iter_tiles(image, spec))
    positions = tuple(np.array([getattr(tile, name) for tile in tiles]) for name in ("x", "y"))
    calls, warp = [], cv2.warpAffine
    monkeypatch.setattr(cv2, "warpAffine", lambda *args: (calls.append(1), warp(*args))[1])
    together = np.stack(list(crop_tile(image, spec, 115, positions)))
    np.testing.assert_array_equal(together, np.stack([tile.pixels for tile in tiles]))
    width, height = RotatedFrame(120, 90, 115).base_size
    assert len(calls) <= -(-width // BLOCK) * -(-height // BLOCK)


@pytest.mark.parametrize(
    ("edge", "angle", "places"),
    [
        ("drop", 0, [(-2, 0), (0, -2), (90, 0), (0, 60)]),
        # A corner of the frame, which has no pixels of the image.
        ("drop", 45, [(0, 0)]),
        *(("pad", angle, [(-32, 0), (4000, 0), (0, 2**31)]) for angle in (0, 30, 90)),
    ],
)
def test_a_tile_that_does_not_lie_in_its_image_is_refused(edge, angle, places):
    for x, y in places:
        with pytest.raises(ImageError, match="outside"):
            cut_tile(noise(), TileSpec(32, edge=edge), angle, x, y)


@pytest.mark.parametrize("angle", [89.99999999999999, 90.00000000000001])
def test_a_computed_quarter_turn_is_one(angle):
    image = noise()
    np.testing.assert_array_equal(
        cut_tile(image, SPEC, angle, 3, 5), cut_tile(image, SPEC, 90, 3, 5)
    )


# -- tiles of a column --------------------------------------------------------------------------


def test_tiles_are_cut_from_their_images_in_the_order_of_the_rows(images):
    places = places_of(images)
    order = np.random.default_rng(0).permutation(len(places))[:40]
    tiles = cut_tiles_of(contents_of([places[row] for row in order]), tile_field(SPEC, 3))
    assert (tiles.shape, tiles.dtype) == ((40, 32, 32, 3), np.uint8)
    assert tiles.ctypes.data % ALIGNMENT == 0
    for row, tile in zip(order, tiles, strict=True):
        place = places[row]
        image = images[place["uri"]]
        image = image if image.ndim == 3 else np.repeat(image[:, :, np.newaxis], 3, axis=2)
        expected = cut_tile(image, SPEC, place["angle"], place["x"], place["y"])
        np.testing.assert_array_equal(tile, expected)


@pytest.fixture
def opened(monkeypatch):
    """The images that are opened, one after the other."""
    uris = []

    def counted(uri):
        uris.append(uri)
        return open_content(uri)

    monkeypatch.setattr(column, "open_content", counted)
    return uris


def test_an_image_is_read_once_for_all_its_tiles(images, monkeypatch, opened):
    places = places_of(images) * 2
    # Room for a single image at a time.
    monkeypatch.setattr(column, "_images", column._Images(1))
    shuffled = [places[row] for row in np.random.default_rng(1).permutation(len(places))]
    cut_tiles_of(contents_of(shuffled), tile_field(SPEC))
    assert sorted(opened) == sorted(images)
    monkeypatch.setattr(column, "_images", column._Images(CACHE_BYTES))
    opened.clear()
    for _ in range(2):
        cut_tiles_of(contents_of(shuffled), tile_field(SPEC))
    assert sorted(opened) == sorted(images)


def test_an_image_that_has_changed_is_refused(images, tmp_path):
    uri = next(iter(images))
    content = (tmp_path / "a.png").read_bytes()
    place = {"uri": uri, "angle": 0.0, "x": 0, "y": 0}
    same = {**place, "sha256": hashlib.sha256(content).hexdigest()}
    assert cut_tiles_of(contents_of([same]), tile_field(SPEC)).shape == (1, 32, 32, 1)
    with pytest.raises(ImageError, match="changed"):
        cut_tiles_of(contents_of([{**same, "sha256": "0" * 64}]), tile_field(SPEC))


def test_an_image_of_another_type_is_refused(images):
    place = {"uri": next(iter(images)), "angle": 0.0, "x": 0, "y": 0}
    with pytest.raises(SchemaError, match="uint16"):
        cut_tiles_of(contents_of([place]), tile_field(SPEC, dtype="uint16"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"uri": "/a", "angle": 0, "x": 0}',
        b'{"uri": "/a", "angle": 360, "x": 0, "y": 0}',
    ],
)
def test_bytes_that_tell_no_tile_are_refused(content):
    with pytest.raises(SchemaError):
        cut_tiles_of([memoryview(content)], tile_field(SPEC))


@pytest.mark.parametrize(
    "recipe",
    [
        "",
        '{"interpolation": "best", "edge": "drop", "choice": {}}',
        '{"interpolation": "cubic", "edge": "drop", "choice": {}, "more": 1}',
        '{"interpolation": "cubic", "edge": "drop", "choice": {}, "pixel_size": 0}',
    ],
)
def test_a_field_that_tells_no_recipe_is_refused(recipe):
    with pytest.raises(SchemaError):
        cut_tiles_of([], replace(tile_field(SPEC), recipe=recipe))


def test_a_recipe_survives_the_metadata_of_a_column():
    choice = PlaneSelector(page=2, channel="DAPI", z="max")
    field = tile_field(replace(SPEC, interpolation="linear"), 3, "uint16", ("a", "b"), choice)
    again = type(field).from_metadata("image", json.loads(json.dumps(field.to_metadata())))
    assert again == field
    assert Recipe.from_text(again.recipe) == Recipe("linear", "drop", choice)
    assert (field.shape, field.classes, field.scale) == ((32, 32, 3), ("a", "b"), 1 / 65535)
    sized = Recipe.from_text(tile_field(SPEC, pixel_size=0.5, source_pixel_size=1.0).recipe)
    assert (sized.cutting(32, 1).pixel_size, sized.cutting(32, 1).source_pixel_size) == (0.5, 1.0)
    assert "pixel_size" not in field.recipe


# -- where images are -------------------------------------------------------------------------


def test_images_are_read_by_path_and_by_uri(tmp_path):
    (tmp_path / "a%20b c").write_bytes(b"content")
    for uri in (f"{tmp_path}/a%20b c", f"file:{tmp_path}/a%20b c", f"file://{tmp_path}/a%20b c"):
        assert read_content(uri) == b"content"


def test_an_image_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PathNotFoundError, match=r"gone\.png"):
        read_content(f"file:{tmp_path}/gone.png")
    with pytest.raises(StorageError):
        read_content(str(tmp_path))


@pytest.mark.parametrize(
    ("uri", "told"), [("s3a://bucket/a.png", "s3a"), ("hdfs://nowhere/a.png", "WEBHDFS_URL")]
)
def test_what_a_worker_cannot_ask_is_refused(monkeypatch, uri, told):
    for name in ("WEBHDFS_URL", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((StorageError, ConfigurationError), match=told):
        read_content(uri)


@pytest.fixture
def hdfs(monkeypatch):
    """A NameNode and a DataNode on loopback; tries follow at once."""
    monkeypatch.setattr(failures, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(connection, "TIMEOUTS", (2.0, 2.0))
    column._connection.cache_clear()
    with loopback() as state:
        yield state
    column._connection.cache_clear()


@pytest.mark.parametrize("name", ["/raw/a.png", "/raw/a b%20ü#1.png"])
def test_images_are_read_from_hdfs(hdfs, monkeypatch, name):
    content = np.random.default_rng(0).bytes(200_000)
    hdfs.files[name] = content
    at = hdfs.url.removeprefix("http://")
    assert read_content(f"webhdfs://{at}{name}") == content
    monkeypatch.setenv("WEBHDFS_URL", hdfs.url)
    assert read_content(f"hdfs://grid:8020{name}") == content
    assert read_content(f"hdfs://{name}") == content
    assert hdfs.asked.count("OPEN") == 3


# -- as a source of rows ------------------------------------------------------------------------


def batch_of(places, numbers):
    return pa.record_batch(
        {
            "row": pa.array(numbers),
            "hash": pa.array(numbers),
            "features_0": pa.array([msgspec.json.encode(places[n]) for n in numbers], pa.binary()),
            "label_0": pa.array(numbers),
        }
    )


@pytest.mark.parametrize("room", [True, False], ids=["cut once", "cut for each batch"])
def test_a_spool_of_such_rows_gives_tiles(images, tmp_path, monkeypatch, room):
    places, field = places_of(images), tile_field(SPEC)
    order = np.random.default_rng(3).permutation(len(places))
    if not room:
        monkeypatch.setattr(feature_file.LocalFile, "free_bytes", 1 << 17)
    with RowCache((field,), (Field("label", (), "int64"),), tmp_path) as spool:
        for numbers in np.array_split(order, 4):
            spool.append(batch_of(places, numbers))
        spool.seal()
        assert spool._files["features_0"].encoded is not room
        wanted = np.array([[0, 40, 7], [len(places) - 1, 7, 3]])
        (block,) = spool.blocks([wanted])
    np.testing.assert_array_equal(block.y[0], wanted)
    expected = cut_tiles_of(contents_of([places[n] for n in wanted.ravel()]), field)
    np.testing.assert_array_equal(block.x[0], expected.reshape(2, 3, 32, 32, 1))


def test_a_spool_reads_each_image_once_however_the_rows_came(images, tmp_path, monkeypatch, opened):
    monkeypatch.setattr(column, "_images", column._Images(1))
    monkeypatch.setattr(feature_file, "DECODE_ROWS", 5)
    monkeypatch.setattr(feature_file, "DECODE_BYTES", 5000)
    places = places_of(images)
    order = np.random.default_rng(4).permutation(len(places))
    with RowCache((tile_field(SPEC),), (Field("label", (), "int64"),), tmp_path) as spool:
        spool.append(batch_of(places, order))
        spool.seal()
    assert sorted(opened) == sorted(images)
