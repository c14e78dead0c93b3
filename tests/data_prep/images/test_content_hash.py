import numpy as np

from data_prep.images.content_hash import pixel_digest

GRAY = np.random.default_rng(3).integers(0, 255, (20, 30, 1), dtype=np.uint8)


def test_what_a_model_sees_as_equal_has_one_digest():
    wide = GRAY.astype(np.uint16) * 257
    same = [GRAY, GRAY.repeat(3, axis=2), wide, wide.repeat(3, axis=2), wide.astype(">u2")]
    assert len({pixel_digest(each) for each in same}) == 1
    assert pixel_digest(np.asfortranarray(GRAY)) == pixel_digest(GRAY)


def test_what_differs_in_one_value_in_shape_or_in_depth_has_another():
    other = GRAY.copy()
    other[-1, -1] ^= 1
    colour = GRAY.repeat(3, axis=2)
    colour[-1, -1, 2] ^= 1
    deep = GRAY.astype(np.uint16) * 257
    deep[-1, -1] ^= 1
    shapes = [GRAY.reshape(30, 20, 1), GRAY.astype(np.uint16)]
    assert len({pixel_digest(each) for each in [GRAY, other, colour, deep, *shapes]}) == 6
