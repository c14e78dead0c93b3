from __future__ import annotations

import struct

import pytest

from data_prep.export.tfrecord import example, record

FEATURES = {
    "label": 3,
    "small": -2,
    "large": 2**62,
    "angle": 0.5,
    "name": "körnig",
    "image": bytes(range(256)) * 300,
    "empty": "",
}


def test_a_record_is_length_checksum_data_checksum():
    made = record(b"tile")
    assert struct.unpack("<Q", made[:8]) == (4,)
    assert made[12:16] == b"tile"
    assert len(made) == 20


@pytest.mark.tensorflow
def test_tensorflow_reads_what_is_written(tmp_path):
    import tensorflow as tf

    path = tmp_path / "train-00000.tfrecord"
    path.write_bytes(record(example(FEATURES)) + record(b""))
    # TensorFlow checks the checksums.
    first, second = (data.numpy() for data in tf.data.TFRecordDataset(str(path)))
    assert second == b""
    found = tf.train.Example.FromString(first).features.feature
    assert set(found) == set(FEATURES)
    for name, value in FEATURES.items():
        kind = found[name].WhichOneof("kind")
        (read,) = getattr(found[name], kind).value
        assert read == (value.encode() if isinstance(value, str) else value)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        writer.write(b"tile")
    assert record(b"tile") == (tmp_path / "theirs").read_bytes()
