import errno
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.parameter_server.spill import SMALL, FileSnapshotStore, scratch
from tests.leaks import open_files


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


def full_disk(code):
    def fallocate(*_):
        raise OSError(code, os.strerror(code))

    return fallocate


def numbers(start, count=5):
    return np.arange(start, start + count, dtype=np.float32)


def test_a_shelf_gives_back_what_was_put_there_from_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before, shelf = open_files(), FileSnapshotStore()
    for number in range(50):
        shelf[number] = numbers(number)
    assert not list(tmp_path.iterdir())
    assert open_files() == before + 1
    for number in range(0, 50, 2):
        del shelf[number]
    # What is dropped leaves its place to others.
    for number in range(50, 75):
        shelf[number] = numbers(number)
    assert os.fstat(shelf._file).st_size == 50 * numbers(0).nbytes
    for number in [*range(1, 50, 2), *range(50, 75)]:
        np.testing.assert_array_equal(shelf[number], numbers(number))
    for number in [*range(1, 50, 2), *range(50, 75)]:
        del shelf[number]
    shelf[0] = numbers(0)
    assert os.fstat(shelf._file).st_size == 50 * numbers(0).nbytes
    shelf.close()
    assert open_files() == before
    shelf[1] = numbers(1)
    np.testing.assert_array_equal(shelf[1], numbers(1))
    assert open_files() == before


def test_a_shelf_writes_and_reads_in_as_many_parts_as_the_system_makes_of_it(monkeypatch):
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:3], at))
    monkeypatch.setattr(os, "preadv", lambda file, into, at: read(file, [into[0][:3]], at))
    with closing(FileSnapshotStore()) as shelf:
        shelf[1] = numbers(1)
        np.testing.assert_array_equal(shelf[1], numbers(1))


@pytest.mark.promise(
    "disk of the driver: full or broken, while snapshots of the center wait for the driver",
    "They are held in memory; a warning says so.",
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_snapshot_without_room_on_disk_is_held_in_memory(monkeypatch, code):
    shelf = FileSnapshotStore()
    shelf[1] = numbers(1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full_disk(code))
        with pytest.warns(RuntimeWarning):
            shelf[2] = numbers(2)
    shelf[3] = numbers(3)
    for number in (1, 2, 3):
        np.testing.assert_array_equal(shelf[number], numbers(number))
        del shelf[number]
    with pytest.raises(KeyError):
        shelf[2]
    assert not shelf
    shelf.close()


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
    before = open_files()
    with pytest.warns(RuntimeWarning, match=str(tmp_path)):
        buffer = scratch(2 * SMALL)
    buffer[:] = 7
    assert int(buffer.sum(dtype=np.int64)) == 7 * 2 * SMALL
    assert open_files() == before


def test_another_error_of_the_disk_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full_disk(errno.EIO))
    with pytest.raises(OSError, match=r"\[Errno"):
        scratch(2 * SMALL)
