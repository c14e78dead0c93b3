from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from data_prep.images.content_hash import pixel_digest
from data_prep.images.open_image import decode_image


def picture(shape=(20, 30), dtype=np.uint8):
    return np.random.default_rng(3).integers(0, np.iinfo(dtype).max, shape).astype(dtype)


def file_of(pixels, kind):
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("pixels", [picture(), picture((20, 30, 3)), picture(dtype=np.uint16)])
def test_the_same_pixels_in_two_formats_have_one_digest(pixels):
    files = [file_of(pixels, kind) for kind in ("PNG", "TIFF")]
    assert files[0] != files[1]
    assert len({pixel_digest(decode_image(content, "x")) for content in files}) == 1


def test_what_a_model_sees_as_equal_has_one_digest():
    gray = picture()[:, :, np.newaxis]
    wide = gray.astype(np.uint16) * 257
    same = [gray, gray.repeat(3, axis=2), wide, wide.repeat(3, axis=2), wide.astype(">u2")]
    assert len({pixel_digest(each) for each in same}) == 1
    assert pixel_digest(np.asfortranarray(gray)) == pixel_digest(gray)


def test_what_differs_in_one_value_in_shape_or_in_depth_has_another():
    gray = picture()[:, :, np.newaxis]
    other = gray.copy()
    other[-1, -1] ^= 1
    colour = gray.repeat(3, axis=2)
    colour[-1, -1, 2] ^= 1
    deep = gray.astype(np.uint16) * 257
    deep[-1, -1] ^= 1
    shapes = [gray.reshape(30, 20, 1), gray.astype(np.uint16)]
    assert len({pixel_digest(each) for each in [gray, other, colour, deep, *shapes]}) == 6
