from __future__ import annotations

from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from data_prep.export.samples import (
    check_exportable,
    files_of,
    folder_name,
    folders_of,
    names_of,
)
from data_prep.images.open_image import decode_image
from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.delta_encoding import as_differences
from distkeras_grid.feeding.schema import Field


def batch(images, **columns):
    return pa.RecordBatch.from_pydict({"image": images, **columns})


def test_rows_of_raw_pixels_become_files_with_names():
    field = Field("image", (2, 3, 1))
    rows = batch(
        [bytes(range(6)), bytes(6)], label=[1, 0], label_name=["a/b", None], tile_id=["k", None]
    )
    assert names_of(rows, field, iter(["0-0"])) == ["k.png", "0-0.png"]
    assert folders_of(rows) == ["a%2Fb", "0"]
    first, _ = files_of(rows, field)
    assert np.asarray(Image.open(BytesIO(first))).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_differences_become_pictures():
    field = Field("image", (3, 2, 1), encoding="difference")
    image = np.array([[7, 9], [3, 250], [200, 1]], np.uint8)[:, :, np.newaxis]
    check_exportable(field)
    (file,) = files_of(batch([as_differences(image).tobytes()], label=[0]), field)
    np.testing.assert_array_equal(decode_image(file, "tile.png"), image)


def test_files_stay_what_they_are():
    field = Field("image", (2, 2, 3), encoding="jpeg")
    rows = batch(pa.array([{"bytes": b"a file", "path": "x.jpeg"}]), label=[0])
    assert files_of(rows, field) == [b"a file"]
    assert names_of(rows, field, iter("7")) == ["7.jpeg"]
    assert folders_of(rows) == ["0"]


@pytest.mark.parametrize(
    "field",
    [Field("image", (4, 4, 1), "float32"), Field("image", (16,)), Field("image", (4, 4, 2))],
)
def test_what_no_png_can_hold_is_refused(field):
    with pytest.raises(SchemaError, match="'image'"):
        check_exportable(field)


def test_no_two_classes_share_a_folder():
    names = ["a", "a/b", "a%2Fb", "_a", ".a", "%5Fa", "a_b", ".."]
    folders = [folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert not any("/" in folder or folder[0] in "._" for folder in folders)
