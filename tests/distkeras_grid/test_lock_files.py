"""Locks of files."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from distkeras_grid.errors import StorageError
from distkeras_grid.lock_files import lock_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_one_at_a_time(path: Path) -> None:
    first = lock_file(path)
    assert first is not None
    assert lock_file(path) is None
    first.close()
    second = lock_file(path)
    assert second is not None
    second.close()


def test_a_file_that_was_deleted_before_it_was_locked_is_no_lock(path, monkeypatch) -> None:
    """Whoever deleted it held it, and the next one makes another file."""
    lock = fcntl.flock

    def late_lock(file, operation):
        path.unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late_lock)
    assert lock_file(path) is None


@pytest.mark.parametrize("target", ["precious", "missing"])
def test_a_link_is_not_followed(path: Path, target: str) -> None:
    path.with_name("precious").touch()
    path.symlink_to(target)
    with pytest.raises(StorageError, match="link"):
        lock_file(path)
    assert not path.with_name("missing").exists()


def test_a_pipe_is_no_lock_file(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(StorageError):
        lock_file(path)


def test_a_file_system_without_locks_is_a_storage_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(StorageError):
        lock_file(path)
