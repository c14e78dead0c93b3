from __future__ import annotations

import numpy as np
import pytest

from data_prep.ingest.cifar import RECORD, read_cifar
from distkeras_grid.errors import DataError


def test_planes_become_channels():
    red, green, blue = (np.full((32, 32), value, np.uint8) for value in (10, 20, 30))
    red[3, 5] = 11
    content = bytes([9]) + red.tobytes() + green.tobytes() + blue.tobytes()
    images, labels = read_cifar(content + bytes([0]) + bytes(3072), "data_batch_1.bin")
    assert labels.tolist() == [9, 0]
    assert images.shape == (2, 32, 32, 3)
    assert images[0, 3, 5].tolist() == [11, 20, 30]
    assert images[0, 5, 3].tolist() == [10, 20, 30]
    assert not images[1].any()


@pytest.mark.parametrize("length", [0, 1, RECORD - 1, 2 * RECORD + 7])
def test_a_file_of_broken_records(length):
    with pytest.raises(DataError, match=f"x.bin has {length:,} bytes, and records .* 3,073"):
        read_cifar(bytes(length), "x.bin")


def test_a_label_that_cifar_10_does_not_have():
    content = bytes(RECORD) + bytes([10]) + bytes(RECORD - 1)
    with pytest.raises(DataError, match=r"x\.bin: record 1 has the label 10"):
        read_cifar(content, "x.bin")
