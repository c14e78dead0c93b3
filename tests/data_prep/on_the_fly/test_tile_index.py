"""Tiles that are indexed and cut later, beside the same tiles as they are written."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_prep import TileSpec, TilingSettings, cut, index_tiles, tile_images
from data_prep.on_the_fly import tile_index as index_module
from distkeras_grid.errors import (
    ConfigurationError,
    ImageError,
    PathNotFoundError,
    SchemaError,
    UnknownArgumentError,
)
from distkeras_grid.feeding.schema import Field
from tests.data_prep.first_night import draw

pytestmark = pytest.mark.spark

SPEC = TileSpec(32, angles=[0, 40, 90, 130], include_original=True)
OPTIONS = {"split": "0.5:0.25:0.25", "seed": 3, "bottom_strip": 12}
POSITION = ("source", "angle", "x", "y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve small micrographs of two classes."""
    root = tmp_path_factory.mktemp("images") / "raw images"
    for i in range(12):
        draw(root / "ab"[i % 2] / f"{i // 2}.png", i, size=(80, 100))
    return root


@pytest.fixture(scope="module")
def index(spark, folder):
    return index_tiles(str(folder), SPEC, spark=spark, **OPTIONS).cache()


@pytest.fixture(scope="module")
def written(spark, folder, tmp_path_factory):
    output = str(tmp_path_factory.mktemp("output") / "tiles")
    tile_images(TilingSettings(str(folder), output, SPEC, **OPTIONS), spark=spark)
    return spark.read.parquet(output).cache()


def tiles_of(frame):
    """Places of tiles, pixels and scaling, as a trainer reads them."""
    from distkeras_grid.spark.columns import resolve_columns
    from distkeras_grid.trainers.validation import collect

    known = ("src_cx", "src_cy", "label", "label_name", "split", "source_sha256")
    ordered = frame.orderBy(*POSITION)
    held = collect(ordered, resolve_columns(frame, "image", "label"))
    places = [tuple(row) for row in ordered.select(*POSITION, *known).collect()]
    return places, held.features[0], [field.scaling for field in held.fields]


def assert_same_tiles(frame, written):
    (places, pixels, scaling), expected = tiles_of(frame), tiles_of(written)
    assert len(places) > 50
    assert (places, scaling) == (expected[0], expected[2])
    np.testing.assert_array_equal(pixels, expected[1])


def test_an_index_has_the_tiles_that_would_be_written(index, written):
    rows = cut(index)
    assert Field.from_metadata("image", rows.schema["image"].metadata).encoding == "tile"
    assert_same_tiles(rows, written)


def test_every_option_is_documented():
    """`near_duplicates` was none: a notebook could not do what the command does."""
    assert "near_duplicates" in index_module.OPTIONS
    assert all(f"``{name}``" in index_tiles.__doc__ for name in index_module.OPTIONS)


def test_tiles_are_not_chosen_by_pixels_that_nobody_has_cut():
    with pytest.raises(ConfigurationError, match=r"index_tiles .*keep.*tile_images"):
        index_tiles("raw", SPEC, spark=object(), keep="bg_fraction<0.9")


def test_an_index_has_the_groups_of_its_images(spark, folder):
    options = {**OPTIONS, "group": "^(?P<group>[ab]/[0-9])"}
    index = index_tiles(str(folder), TileSpec(32, angles=[0]), spark=spark, **options)
    found = {row.source: row.group for row in index.select("source", "group").collect()}
    assert found == {f"{group}.png": group for group in found.values()}
    assert len(found) == 12
    rows = cut(index)
    assert Field.from_metadata("image", rows.schema["image"].metadata).shape == (32, 32, 1)
    assert "group" in rows.columns


def draw_magnified(folder):
    """Images of two magnifications and 12 bits."""
    for seed, (label, side) in enumerate((("a", 0.25), ("b", 0.31))):
        (folder / label).mkdir(parents=True)
        sizes = {"PhysicalSizeX": side, "PhysicalSizeY": side}
        pixels = np.random.default_rng(seed).integers(0, 4096, (200, 260), dtype=np.uint16)
        path = folder / label / "0.tif"
        tifffile.imwrite(path, pixels, ome=True, metadata={"axes": "YX", **sizes}, tile=(64, 64))


def draw_stained(folder):
    rng = np.random.default_rng(3)
    for name in "ab":
        (folder / name).mkdir(parents=True)
        for number in range(4):
            amounts = rng.uniform(0, 1.5, (80, 90, 2)) * rng.integers(0, 2, (80, 90, 1))
            density = amounts @ np.array([[0.6, 0.7, 0.3], [0.1, 0.9, 0.2]])
            pixels = (255 * np.exp(-density)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.mark.parametrize(
    ("draw_images", "options"),
    [
        (draw_magnified, {"bottom_strip": 30, "pixel_size": "0.5um", "normalise": "min-max"}),
        (draw_stained, {"normalise": "macenko"}),
    ],
)
def test_sizes_ranges_and_stains_of_images_travel_with_the_index(
    spark, tmp_path, draw_images, options
):
    draw_images(tmp_path / "raw")
    settings = TilingSettings(
        *(str(tmp_path / "raw"), str(tmp_path / "tiles"), SPEC), split="1", **options
    )
    tile_images(settings, spark=spark)
    index = index_tiles(settings.input, SPEC, spark=spark, split="1", **options)
    assert_same_tiles(cut(index), spark.read.parquet(settings.output))


def test_a_row_is_small_and_holds_no_pixel(index):
    sizes = [len(row.image) for row in cut(index).select("image").collect()]
    assert max(sizes) < 300 < 32 * 32


def test_local_sets_of_an_index_have_the_tiles_that_would_be_written(
    spark, index, written, tmp_path
):
    from distkeras_grid.spark.columns import resolve_columns
    from distkeras_grid.stores.dataset_index import catalogue

    path = str(tmp_path / "index")
    cut(index).write.parquet(path)
    found = []
    for frame, root in ((spark.read.parquet(path), path), (written, "")):
        indexed = catalogue(frame, resolve_columns(frame, "image", "label"), root)
        pool, reader = indexed.store.pool, indexed.store.open(0)
        assert pool.class_sizes.tolist() == [len(indexed.store.pool) // 2] * 2
        held = reader.read(indexed.pool_of("train").of_class(1))
        found.append(sorted(tile.tobytes() for _, tiles in held for tile in tiles))
    assert len(found[0]) > 50
    assert found[0] == found[1]


def test_a_table_of_ones_own_can_be_cut(spark, index, folder):
    rows = [(str(folder / "a" / "0.png"), 0, 3, 5, "a note")]
    table = spark.createDataFrame(rows, "uri string, angle int, x int, y int, note string")
    with pytest.raises(SchemaError, match="index_tiles"):
        cut(table)
    table = table.withMetadata("uri", index.schema["uri"].metadata)
    frame = cut(table)
    assert frame.columns == ["uri", "angle", "x", "y", "note", "image"]
    with pytest.raises(SchemaError, match="'y'"):
        cut(table.drop("y"))


def test_a_setting_that_an_index_does_not_follow_is_refused(spark, folder):
    with pytest.raises(UnknownArgumentError):
        index_tiles(str(folder), SPEC, spark=spark, encoding="jpeg")


def test_what_is_left_out_of_an_index_is_told(spark, tmp_path):
    """88 images were there, 87 were indexed, and nothing said which was missing."""
    for seed, name in enumerate(("Benign/0", "Benign/1", "benign/2")):
        draw(tmp_path / f"{name}.png", seed, size=(64, 64))
    (tmp_path / "benign" / "3.png").write_bytes(b"<html>")
    (tmp_path / "Benign" / "copy.png").write_bytes((tmp_path / "Benign" / "0.png").read_bytes())
    said = []
    options = {"on_error": "skip", "channels": 1, "allow_empty": True}
    index_tiles(str(tmp_path), TileSpec(32, angles=[0]), spark=spark, say=said.append, **options)
    told = [line.strip() for line in said if line.startswith("  ")]
    assert "copy: Benign/copy.png: the same bytes as Benign/0.png" in told
    assert any(line.startswith("left out: benign/3.png: ") for line in told)
    classes = "the classes 'Benign' and 'benign' differ by case alone, and count as different"
    assert classes in told


def test_images_that_are_not_there_are_refused(spark, tmp_path):
    with pytest.raises(PathNotFoundError):
        index_tiles(str(tmp_path / "gone"), spark=spark)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ImageError):
        index_tiles(str(tmp_path), SPEC, spark=spark)


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_model_predicts_the_same_of_tiles_that_nobody_wrote(index, written):
    import keras

    from distkeras_grid import ModelPredictor

    layers = [keras.Input((32, 32, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    predictor = ModelPredictor(keras.Sequential(layers), features_col="image")
    found, expected = (
        [row.prediction for row in predictor.predict(frame).orderBy(*POSITION).collect()]
        for frame in (cut(index), written)
    )
    assert len(found) > 50
    np.testing.assert_allclose(found, expected, rtol=1e-5)
