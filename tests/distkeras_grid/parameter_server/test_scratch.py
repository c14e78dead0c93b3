import gc
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.parameter_server.scratch import SMALL, scratch


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("size", [1, SMALL - 1, SMALL, 3 * SMALL + 5])
def test_a_buffer_takes_what_is_written(size):
    before = descriptors()
    buffer = scratch(size)
    assert (buffer.shape, buffer.dtype) == ((size,), np.uint8)
    buffer[:] = 7
    buffer[-1] = 9
    assert int(buffer.sum(dtype=np.int64)) == 7 * (size - 1) + 9
    del buffer
    gc.collect()
    assert descriptors() == before


def test_a_large_buffer_is_a_file_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    buffer = scratch(2 * SMALL)
    assert not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps").read_text()
    assert any(str(tmp_path) in line and "deleted" in line for line in maps.splitlines())
    del buffer


def test_no_room_is_an_error_and_not_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OSError, match=r"\[Errno"):
        scratch(1 << 60)
