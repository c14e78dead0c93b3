import io
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.arrays import (
    as_model_sees,
    decode_images,
    features_from_arrow,
    numbers_from_arrow,
)
from distkeras_grid.feeding.schema import Field


def raw(values, kind=None):
    return pa.array([value.tobytes() for value in values], kind or pa.binary())


def encoded(pixels, kind):
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, kind, quality=95)
    return stream.getvalue()


def noise(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 250, shape).astype(dtype)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "int64"])
def test_raw_bytes(kind, dtype):
    values = noise(5, 3, 2, dtype=dtype)
    column = raw(values, kind)
    field = Field("image", (3, 2), dtype=dtype)
    assert np.array_equal(features_from_arrow(column, field), values)
    assert features_from_arrow(column, field).dtype == dtype
    assert np.array_equal(features_from_arrow(column[1:4], field), values[1:4])
    assert features_from_arrow(column[:0], field).shape == (0, 3, 2)


def test_raw_bytes_and_lists_of_floats_are_not_copied():
    column = raw(noise(4, 6))
    shared = np.frombuffer(column.buffers()[2], np.uint8)
    assert np.shares_memory(features_from_arrow(column[1:], Field("image", (6,))), shared)
    lists = pa.array([[1, 2], [3, 4]], pa.list_(pa.float32()))
    features = features_from_arrow(lists, Field("x", (2,), dtype="float32"))
    assert np.shares_memory(features, lists.values.to_numpy())


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@pytest.mark.parametrize("channels", [1, 3])
def test_image_files(kind, channels):
    # A smooth ramp, so that JPEG is near; a colour each, so that their order is seen.
    ramp = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8)
    pixels = np.stack([ramp + 60 * c for c in range(channels)], axis=-1)
    column = pa.array([encoded(pixels, kind), encoded(pixels[::-1], kind)])
    field = Field("image", (16, 16, channels), encoding=kind)
    features = features_from_arrow(column, field).astype(int)
    assert features.shape == (2, 16, 16, channels)
    assert abs(features - np.stack([pixels, pixels[::-1]])).max() <= (0 if kind == "png" else 3)


def test_png_of_16_bits():
    pixels = noise(4, 5, 1, dtype=np.uint16) * 257
    field = Field("image", (4, 5, 1), dtype="uint16", encoding="png")
    column = pa.array([encoded(pixels, "png")])
    assert np.array_equal(features_from_arrow(column, field)[0], pixels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"row 1 .* 0 bytes"),
        (b"no image at all", r"row 1 .* begin with b'no image'"),
        (encoded(noise(4, 4, 3), "png"), r"\(4, 4, 1\), .* \(4, 4, 3\)"),
        (encoded(noise(4, 5, 1), "png"), r"shape \(4, 5, 1\)"),
        (encoded(noise(4, 4, 1, dtype=np.uint16), "png"), "uint16"),
    ],
    ids=["empty", "garbage", "colour", "size", "depth"],
)
def test_image_that_does_not_fit_is_refused(content, message):
    good = encoded(noise(4, 4, 1), "png")
    field = Field("image", (4, 4, 1), encoding="png")
    with pytest.raises(SchemaError, match=f"'image'.*{message}"):
        features_from_arrow(pa.array([good, content]), field)


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.int32(), 6)],
    ids=str,
)
def test_lists_of_numbers(kind):
    values = noise(4, 2, 3)
    column = pa.array([v.ravel().tolist() for v in values], kind)
    field = Field("x", (2, 3), dtype="float32")
    features = features_from_arrow(column, field)
    assert np.array_equal(features, values)
    assert features.dtype == (np.int32 if kind.value_type == pa.int32() else np.float32)
    assert np.array_equal(features_from_arrow(column[2:], field), values[2:])


@pytest.mark.parametrize("shape", [(), (1,)])
def test_numbers_as_features(shape):
    column = pa.array([1, 2, 3])
    features = features_from_arrow(column, Field("x", shape, dtype="int64"))
    assert features.shape == (3, *shape)
    assert features.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([b"123456", None]), "null in 1 of 2 .* row 1"),
        (pa.array([b"123456", b"12345"]), r"6 bytes \(\(2, 3\), uint8.* 5 .* row 1"),
        (pa.array([[1] * 6, [1] * 7, None]), "null .* row 2"),
        (pa.array([[1] * 6, [1] * 7]), r"6 numbers \(2, 3\).* 7 .* row 1"),
        (pa.array([[1] * 6, [1, 2, None, 4, 5, 6]]), r"row 1 .*\[1, 2, None, 4, 5, 6\]"),
        (pa.array([["a"] * 6]), "Arrow type string"),
        (pa.array([1, 2]), r"\(2, 3\).* 1 .* row 0"),
        (pa.array(["a"]), "Arrow type string"),
    ],
)
def test_features_that_do_not_fit_are_refused(column, message):
    with pytest.raises(SchemaError, match=f"'x'.*{message}"):
        features_from_arrow(column, Field("x", (2, 3)))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, 1], pa.int64()), np.array([3, 1], np.int64)),
        (pa.array([3, 1], pa.uint8()), np.array([3, 1], np.uint8)),
        (pa.array([0.5, 1.5], pa.float64()), np.array([0.5, 1.5], np.float32)),
        (pa.array([True, False]), np.array([1, 0], np.uint8)),
        (pa.array([[0, 1], [1, 0]], pa.list_(pa.float64())), np.eye(2, dtype=np.float32)[::-1]),
        (pa.array([b"\1\0", b"\0\1"]), np.eye(2, dtype=np.uint8)),
    ],
    ids=["integers", "small integers", "float", "boolean", "one-hot", "mask"],
)
def test_labels_are_read_as_features_are(column, expected):
    labels = features_from_arrow(column, Field("label", expected.shape[1:]))
    assert np.array_equal(labels, expected)
    assert labels.dtype == expected.dtype


def test_no_labels_give_no_rows():
    field = Field("label", (2,))
    assert features_from_arrow(pa.array([], pa.list_(pa.float32())), field).shape == (0, 2)
    assert numbers_from_arrow(pa.array([], pa.int64()), "row").shape == (0,)


def test_values_are_scaled_as_in_training_or_of_the_type_of_the_input():
    field = Field("x", (2,), scale=0.5, offset=-1.0)
    result = as_model_sees(np.array([[0, 255]], np.uint8), field, "int32")
    assert result.dtype == np.float32
    assert result.tolist() == [[-1.0, 126.5]]
    indices, field = np.array([[3]], np.int64), Field("x", (1,), "int64")
    assert as_model_sees(indices, field, "int32").dtype == np.int32
    assert as_model_sees(indices, field).dtype == np.float32


@pytest.mark.parametrize("side", [9, 70_000])
def test_a_header_that_states_more_pixels_than_there_are(side):
    def chunk(kind, content):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with pytest.raises(SchemaError):
        decode_images(
            [memoryview(b"\x89PNG\r\n\x1a\n" + header + pixels)],
            Field("image", (4, 4, 1), encoding="png"),
        )
