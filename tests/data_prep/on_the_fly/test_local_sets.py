"""Tiles of local sets that are cut on the worker, beside those that would be written."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep import TileSpec, catalogue_images, cut, index_tiles, iter_tiles
from data_prep.dataset.schema import image_field
from data_prep.geometry.regions import ZoneRules
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.plane_selection import PlaneSelector
from data_prep.images.preprocess import resample
from data_prep.on_the_fly.local_sets import MOST_FETCHED_BYTES, ImageFile, ImageStore, check_lengths
from data_prep.on_the_fly.tile_index import frames_of
from distkeras_grid.errors import ImageError, SchemaError, StorageError, UnknownArgumentError
from distkeras_grid.local_sets.tile_index import TileIndex
from tests.distkeras_grid.stores.servers import http_server, webhdfs_server

SPEC = TileSpec(16, angles=[0, 25, 90, 115], include_original=True)
NAMES = ("a/0 #1.png", "a/b ü.png", "c.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw images")
    (folder / "a").mkdir()
    for number, name in enumerate(NAMES):
        Image.fromarray(noise(number)).save(folder / name)
    return folder


def noise(number):
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (40, 50 + 4 * number), np.uint8)


def store_of(folder, locations=(), strip=0, spec=SPEC):
    zones = ZoneRules(bottom_strip=strip)
    files, tiles = [], []
    for number, name in enumerate(NAMES):
        height, width = noise(number).shape
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        files.append(ImageFile(name, digest, width, height, (width, height)))
        found = frames_of(spec, width, height, zones.of(name, width, height))
        tiles.append(sum(len(x) for _, (x, _) in found))
    numbers = range(len(NAMES))
    return ImageStore(
        TileIndex.of(tiles, numbers, numbers, len(NAMES)),
        image_field(spec, 1, "uint8", "raw", NAMES, 8),
        tuple(locations) or (str(folder),),
        TilingConfig(spec, "raw", 0, None, PlaneSelector(), zones=zones),
        tuple(files),
    )


def read(store, places):
    reader = store.open(0)
    found = {}
    for tiles, pixels in reader.read(np.array(sorted(places), np.int64)):
        found |= dict(zip(tiles.tolist(), pixels, strict=True))
    reader.close()
    return found, reader


def test_the_tiles_are_those_that_would_be_written_in_their_order(folder):
    store = store_of(folder)
    found, reader = read(store, range(len(store.pool)))
    expected = [tile for number in range(3) for tile in iter_tiles(noise(number), SPEC)]
    assert len(expected) == len(found)
    for place, tile in enumerate(expected):
        np.testing.assert_array_equal(found[place][..., 0], tile.pixels.reshape(16, 16))
    assert reader.bytes_read.total() == sum((folder / name).stat().st_size for name in NAMES)


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 300), max_size=12), st.sampled_from([0, 15]))
def test_some_tiles_are_the_same_as_among_all(folder, places, strip):
    store = store_of(folder, strip=strip)
    wanted = {place for place in places if place < len(store.pool)}
    some, _ = read(store, wanted)
    everything, _ = read(store, range(len(store.pool)))
    assert set(some) == wanted
    again, _ = read(store, wanted)
    for place, tile in some.items():
        np.testing.assert_array_equal(tile, again[place])
        np.testing.assert_array_equal(tile, everything[place])


def test_values_are_normalised_as_their_image_says(folder):
    store = store_of(folder)
    files = tuple(replace(file, value_range=(50.0, 150.0)) for file in store.files)
    plain, _ = read(store, [0])
    spread, _ = read(replace(store, files=files), [0])
    expected = np.clip((plain[0].astype(float) - 50) * 2.55, 0, 255)
    np.testing.assert_allclose(spread[0], expected, atol=1)


def test_no_tile_touches_a_zone(folder):
    assert len(store_of(folder, strip=15).pool) < len(store_of(folder).pool)


def test_a_file_that_a_worker_cannot_hold_is_refused_by_name():
    check_lengths({"a.png": MOST_FETCHED_BYTES})
    with pytest.raises(ImageError, match=r"b\.tif has 536,870,913 bytes"):
        check_lengths({"a.png": 10, "b.tif": MOST_FETCHED_BYTES + 1})


def test_images_come_from_mirrors(folder):
    with http_server(folder) as one, webhdfs_server(folder) as other:
        store = store_of(folder, [one, other])
        places = [0, *(store.pool.starts + store.pool.tiles - 1)]
        found, reader = read(store, places)
    plain, _ = read(store_of(folder), places)
    for place, tile in plain.items():
        np.testing.assert_array_equal(found[place], tile)
    assert set(reader.bytes_read) <= {one, other.replace("ada:love%40lace@", "")}


def test_an_image_that_has_changed_is_not_trained_on(folder, tmp_path):
    store = store_of(folder, [str(tmp_path)])
    (tmp_path / "c.png").write_bytes((folder / NAMES[1]).read_bytes())
    with pytest.raises(StorageError):
        read(store, [store.pool.end - 1])


def test_another_geometry_than_the_drivers_is_refused(folder):
    store = store_of(folder)
    less = ImageStore(
        TileIndex.of(store.pool.tiles - 1, range(3), range(3), 3),
        *(store.field, store.locations, store.cutting, store.files),
    )
    with pytest.raises(ImageError):
        read(less, [0])


def test_what_a_set_costs_is_told(folder):
    store = store_of(folder)
    assert store.describe_reading(np.array([0, 1, store.pool.end - 1])) == "2 images"
    assert list(store.images) == list(NAMES)


@pytest.mark.spark
def test_a_folder_is_catalogued_as_it_would_be_tiled(spark, tmp_path):
    for number in range(12):
        path = tmp_path / "raw images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number)).save(path)
    root = str(tmp_path / "raw images")
    options = {"split": "0.5:0.25:0.25", "seed": 3}
    found = catalogue_images(root, SPEC, spark=spark, **options)
    assert {split: len(found.pool_of(split)) > 0 for split in ("train", "validation")}
    assert found.store.pool.classes == 2
    tiles, _ = read(found.store, [0, found.store.pool.end - 1])
    assert {tile.shape for tile in tiles.values()} == {(16, 16, 1)}
    again = catalogue_images(root, SPEC, spark=spark, **options)
    assert (again.digest, again.splits) == (found.digest, found.splits)
    with pytest.raises(UnknownArgumentError):
        catalogue_images(root, SPEC, spark=spark, encoding="jpeg")
    sizes = {"source_pixel_size": "1um", "pixel_size": "1.4um", "bottom_strip": 4}
    small = catalogue_images(root, SPEC, spark=spark, **options, **sizes)
    file = small.store.files[0]
    pixels = np.asarray(Image.open(f"{root}/{file.path}"))[:, :, np.newaxis]
    shrunk = resample(pixels, 1 / 1.4, 1 / 1.4, "x")
    assert file.cut_size == shrunk.shape[1::-1]
    strip = ZoneRules(bottom_strip=4).of("x", file.width, file.height)
    zones = strip.scaled(file.cut_size[0] / file.width, file.cut_size[1] / file.height)
    expected = list(iter_tiles(shrunk, SPEC, zones=zones))
    tiles, _ = read(small.store, range(small.store.pool.tiles[0]))
    assert len(tiles) == len(expected) > 4
    for place, tile in enumerate(expected):
        np.testing.assert_array_equal(tiles[place], tile.pixels)


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.full
def test_a_net_learns_from_tiles_that_nobody_has_written(spark, tmp_path):
    import keras

    from distkeras_grid import AveragingTrainer, LocalSets

    rng = np.random.default_rng(0)
    for number in range(16):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 60, (64, 64)) + 120 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    root, options = str(tmp_path / "raw"), {"split": "0.7:0.3", "seed": 0}
    tiles = catalogue_images(root, SPEC, spark=spark, **options)
    held_out = cut(index_tiles(root, SPEC, spark=spark, **options).where("split = 'test'"))
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((16, 16, 1)),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    trainer = AveragingTrainer(
        model, num_workers=2, batch_size=8, features_col="image", progress=False
    )
    sets = LocalSets(tiles, iterations=4, local_train=64, local_test=16, test_split="test")
    trainer.train(sets, validation_data=held_out, seed=0)
    assert trainer.history.history["val_accuracy"][-1] > 0.95
    tests = trainer.history.local_tests()
    assert tests[tests.iteration == 4].accuracy.min() > 0.9
    noted = held_out.schema["image"].metadata
    other = {"distkeras_grid": {**noted["distkeras_grid"], "scale": 1.0}}
    with pytest.raises(SchemaError):
        trainer.train(sets, validation_data=held_out.withMetadata("image", other))
