import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.delta_encoding import as_differences, from_differences
from distkeras_grid.feeding.schema import Field

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 7), st.sampled_from([1, 3]))
IMAGES = st.sampled_from([np.uint8, np.uint16]).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


def field_of(images):
    return Field("image", images.shape[1:], images.dtype.name, encoding="difference")


@given(IMAGES)
def test_pixels_come_back_bit_by_bit(images):
    contents = [as_differences(image).astype(f"<u{image.itemsize}").tobytes() for image in images]
    column = pa.array(contents, pa.binary())
    found = features_from_arrow(column, field_of(images))
    assert (found.dtype, found.shape) == (images.dtype, images.shape)
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(features_from_arrow(column[1:], field_of(images)), images[1:])


def test_an_image_stays_as_it_was():
    image = np.arange(12, dtype=np.uint8).reshape(4, 3, 1) ** 2
    before = image.copy()
    as_differences(image)
    np.testing.assert_array_equal(image, before)


def test_neighbouring_rows_take_fewer_bytes(samples):
    """Tiles of a micrograph that do not overlap, in one page."""
    path = sorted(samples.glob("*/*.png"))[0]
    picture = np.asarray(Image.open(io.BytesIO(path.read_bytes())))[:, :, np.newaxis]
    zstd = pa.Codec("zstd", 3)
    raw = len(zstd.compress(picture.tobytes(), asbytes=True))
    assert len(zstd.compress(as_differences(picture).tobytes(), asbytes=True)) < 0.9 * raw


@pytest.mark.parametrize("size", [0, 11, 13, 24])
def test_contents_of_another_size_are_refused(size):
    field = Field("image", (4, 3, 1), encoding="difference")
    with pytest.raises(SchemaError, match=rf"'image'.*12 bytes.*row 1 .* {size} bytes"):
        from_differences([memoryview(bytes(12)), memoryview(bytes(size))], field)
