import contextlib
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distkeras_grid.errors import SchemaError, StorageError
from distkeras_grid.stores.parquet_footers import look_at
from distkeras_grid.stores.range_reader import RangeReader
from distkeras_grid.stores.tile_store import leaf_of, part_of
from tests.distkeras_grid.stores.servers import http_server, webhdfs_server
from tests.distkeras_grid.stores.tables import EACH, IMAGES, PIXELS, store_of, write_tiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiles(tmp_path_factory.mktemp("tiles"))


def read(store, places):
    reader = store.open(0)
    found = {}
    for tiles, values in reader.read(np.asarray(places)):
        found |= dict(zip(tiles.tolist(), values, strict=True))
    reader.close()
    return found, reader


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, IMAGES * EACH - 1), max_size=40))
def test_each_tile_comes_once_whatever_row_group_it_is_in(folder, places):
    found, _ = read(store_of(folder), [*places])
    assert set(found) == places
    for place, tile in found.items():
        np.testing.assert_array_equal(tile, PIXELS[place])


def test_only_the_row_groups_of_the_tiles_are_read(folder):
    store = store_of(folder)
    few = store.bytes_of(np.array([0, 1, 6]))
    assert few == store.bytes_of(np.array([3])) < store.bytes_of(np.arange(len(PIXELS))) / 10
    _, reader = read(store, [0, 1, 6])
    footer = store.files[0].footer
    assert reader.bytes_read.total() == few + footer.stop - footer.start


def test_encoded_images_in_a_struct_are_read(tmp_path):
    write_tiles(tmp_path, "png")
    found, _ = read(store_of(tmp_path, encoding="png"), [5, 100])
    np.testing.assert_array_equal(found[100], PIXELS[100])


def test_mirrors_take_the_place_of_the_data_set(folder):
    with contextlib.ExitStack() as stack:
        locations = [stack.enter_context(serve(folder)) for serve in (http_server, webhdfs_server)]
        found, reader = read(store_of(folder, locations), range(len(PIXELS)))
        np.testing.assert_array_equal([found[n] for n in range(len(PIXELS))], PIXELS)
        assert len(reader.bytes_read) == 2


def test_a_data_set_that_has_changed_is_not_trained_on(tmp_path):
    write_tiles(tmp_path)
    store = store_of(tmp_path)
    file = tmp_path / "part 0.parquet"
    content = bytearray(file.read_bytes())
    content[store.files[0].groups[0].start + 20] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError):
        read(store, [0])
    assert set(read(store, [EACH * IMAGES - 1])[0]) == {EACH * IMAGES - 1}


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"no" * 100)
    with pytest.raises(SchemaError):
        look_at(str(tmp_path), "a", 200, "image", hashed=False)


def test_a_footer_longer_than_the_first_read_is_read_whole(tmp_path, monkeypatch):
    write_tiles(tmp_path)
    file = tmp_path / "part 0.parquet"
    expected = look_at(str(tmp_path), file.name, file.stat().st_size, "image", hashed=True)
    monkeypatch.setattr("distkeras_grid.stores.parquet_footers.FOOTER_BYTES", 100)
    found = look_at(str(tmp_path), file.name, file.stat().st_size, "image", hashed=True)
    assert found == expected


def test_the_column_of_a_feature_is_found_or_refused(tmp_path):
    table = pa.table({"a": [[1.0], [2.0]], "b": [{"bytes": b"x"}] * 2, "c": ["x", "y"]})
    pq.write_table(table, tmp_path / "t.parquet")
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    assert [leaf_of(metadata, name) for name in "abc"] == ["a.list.element", "b.bytes", "c"]
    with pytest.raises(SchemaError):
        leaf_of(metadata, "d")


def test_bytes_that_are_not_known_are_refused():
    known = RangeReader(partial(part_of, b"abcdef", 10), 100)
    known.seek(12)
    assert known.read(3) == b"cde"
    assert known.tell() == 15
    with pytest.raises(SchemaError):
        known.read(5)
