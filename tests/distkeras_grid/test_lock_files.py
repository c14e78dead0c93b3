"""Locks of files, which others delete while one waits for them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distkeras_grid.errors import StorageError
from distkeras_grid.lock_files import lock_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen once after a file was opened, and before it is locked."""

    def happen(act: Callable[[], object]) -> None:
        def late(file: Any, operation: int) -> None:
            monkeypatch.setattr(fcntl, "flock", lock)
            act()
            lock(file, operation)

        lock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", late)

    return happen


def test_one_at_a_time(path: Path) -> None:
    first = lock_file(path)
    assert first is not None
    assert lock_file(path) is None
    first.close()
    second = lock_file(path)
    assert second is not None
    second.close()


@pytest.mark.parametrize("anew", [False, True])
def test_a_lock_whose_file_was_deleted_is_nobodys(
    path: Path, between: Callable[[Callable[[], object]], None], anew: bool
) -> None:
    """Two processes held it: one the file that had been deleted, the other one the new file."""

    def replaced() -> None:
        path.unlink()
        if anew:
            path.touch()

    between(replaced)
    file = lock_file(path)
    assert file is not None
    with file:
        assert os.path.samestat(os.fstat(file.fileno()), path.stat())
        assert lock_file(path) is None


def test_a_lock_whose_new_file_is_held_is_held(
    path: Path, between: Callable[[Callable[[], object]], None]
) -> None:
    held = []

    def replaced() -> None:
        path.unlink()
        held.append(lock_file(path))

    between(replaced)
    assert lock_file(path) is None
    held[0].close()


def test_a_link_in_place_of_a_deleted_file_is_not_followed(
    path: Path, between: Callable[[Callable[[], object]], None]
) -> None:
    def replaced() -> None:
        path.rename(path.with_name("other"))
        path.symlink_to("other")

    between(replaced)
    with pytest.raises(StorageError, match="link"):
        lock_file(path)


def test_a_file_that_never_stays_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: path.unlink())
    with pytest.raises(StorageError, match=str(path)):
        lock_file(path)


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
