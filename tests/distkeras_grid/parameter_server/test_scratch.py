import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.parameter_server.scratch import SMALL, scratch


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("size", [1, SMALL - 1, SMALL, 3 * SMALL + 5])
@pytest.mark.slow
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


def full_disk(code):
    def fallocate(*_):
        raise OSError(code, os.strerror(code))

    return fallocate


@pytest.mark.promise(
    "disk of the driver: full, while workers keep states on the server",
    "They are held in memory; a warning says so.",
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_what_has_no_room_on_disk_is_held_in_memory_and_a_warning_says_so(
    tmp_path, monkeypatch, code
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full_disk(code))
    before = descriptors()
    with pytest.warns(RuntimeWarning, match=str(tmp_path)):
        buffer = scratch(2 * SMALL)
    buffer[:] = 7
    assert int(buffer.sum(dtype=np.int64)) == 7 * 2 * SMALL
    assert descriptors() == before


def test_another_error_of_the_disk_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full_disk(errno.EIO))
    with pytest.raises(OSError, match=r"\[Errno"):
        scratch(2 * SMALL)
