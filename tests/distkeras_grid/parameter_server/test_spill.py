import errno
import os
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.parameter_server.spill import SMALL, scratch, spill
from tests.leaks import open_files

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [1, SMALL - 1, SMALL, 3 * SMALL + 5])
@pytest.mark.full
def test_a_buffer_takes_what_is_written(size):
    before = open_files()
    buffer = scratch(size)
    assert (buffer.shape, buffer.dtype) == ((size,), np.uint8)
    buffer[:] = 7
    buffer[-1] = 9
    assert int(buffer.sum(dtype=np.int64)) == 7 * (size - 1) + 9
    del buffer
    assert open_files() == before


def test_a_large_buffer_is_a_file_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    buffer = scratch(2 * SMALL)
    assert not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps").read_text()
    assert any(str(tmp_path) in line and "deleted" in line for line in maps.splitlines())
    del buffer


def test_a_buffer_is_memory_where_room_cannot_be_had_at_once(tmp_path, monkeypatch):
    """On macOS."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delattr(os, "posix_fallocate")
    scratch(2 * SMALL)[:] = 7
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def full_disk(code):
    def fallocate(*_):
        raise OSError(code, os.strerror(code))

    return fallocate


@pytest.mark.promise(
    "disk of the driver: has no room, or gives an error, when a state of a worker or a snapshot of "
    "the center is put there",
    "They are held in memory; a warning says so.",
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_has_no_room_on_disk_is_held_in_memory_and_a_warning_says_so(
    tmp_path, monkeypatch, code
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full_disk(code))
    before = open_files()
    with pytest.warns(RuntimeWarning, match=str(tmp_path)):
        buffer = scratch(2 * SMALL)
    buffer[:] = 7
    assert int(buffer.sum(dtype=np.int64)) == 7 * 2 * SMALL
    assert open_files() == before


def test_a_copy_of_a_center_lies_there_too(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    center = np.arange(SMALL, dtype=np.float32)
    copy = spill(center)
    center[:] = 0
    np.testing.assert_array_equal(copy, np.arange(SMALL, dtype=np.float32))
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
