"""The storage of a local directory without a JVM, which can stop before an operation."""

from __future__ import annotations

import shutil
from pathlib import Path

from distkeras_grid.errors import OutputExistsError, PathNotFoundError


class Stop(Exception):
    """The driver is gone."""


class LocalFiles:
    """What is used of `Storage`.

    `stop_at`: the operation that is not done any more; a file may be written by half.
    """

    def __init__(self, stop_at=None):
        self.done, self._stop_at = [], stop_at

    def _do(self, *what):
        if len(self.done) == self._stop_at:
            raise Stop
        self.done.append(what)

    def exists(self, uri):
        return Path(uri).exists()

    def list_names(self, uri):
        try:
            return sorted(path.name for path in Path(uri).iterdir())
        except FileNotFoundError as error:
            raise PathNotFoundError(uri) from error

    def read_bytes(self, uri):
        try:
            return Path(uri).read_bytes()
        except FileNotFoundError as error:
            raise PathNotFoundError(uri) from error

    def write_bytes(self, uri, content, *, overwrite=False):
        if Path(uri).exists() and not overwrite:
            raise OutputExistsError(uri)
        self._do("write half", uri)
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        Path(uri).write_bytes(content[: len(content) // 2])
        self._do("write", uri)
        Path(uri).write_bytes(content)

    def write_text(self, uri, content, *, overwrite=False):
        self.write_bytes(uri, content.encode(), overwrite=overwrite)

    def resolve(self, uri):
        return uri

    def modified(self, uri):
        return Path(uri).stat().st_mtime

    def read_text(self, uri):
        return self.read_bytes(uri).decode()

    def write_in_place(self, uri, content):
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        Path(uri).write_text(content)

    def delete_empty(self, uri):
        try:
            Path(uri).rmdir()
        except OSError:
            return False
        return True

    def make_dirs(self, uri):
        self._do("make", uri)
        Path(uri).mkdir(parents=True, exist_ok=True)

    def delete(self, uri):
        self._do("delete", uri)
        path = Path(uri)
        if not path.exists():
            return False
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return True

    def rename(self, source, target, *, overwrite=False):
        assert overwrite or not Path(target).exists()
        self._do("rename", source)
        Path(source).rename(target)
