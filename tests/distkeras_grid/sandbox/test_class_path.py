from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distkeras_grid import fsync
from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import class_path
from distkeras_grid.sandbox.class_path import JARS, Jar, daemon_class_path, jar_folder
from tests.http_servers import QuietHandler, serving


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of fetched jars, with small ones in place of all that are pinned."""
    folder = jar_folder({"XDG_CACHE_HOME": str(tmp_path)})
    folder.mkdir(parents=True)
    jars = tuple(small(jar) for jar in JARS)
    monkeypatch.setattr(class_path, "JARS", jars)
    for jar in jars:
        (folder / jar.file_name).write_bytes(content(jar))
    return folder


def content(jar: Jar) -> bytes:
    return f"content of {jar.file_name}".encode()


def small(jar: Jar) -> Jar:
    return replace(jar, sha256=hashlib.sha256(content(jar)).hexdigest())


def test_jars_in_the_cache_are_taken_first_and_nothing_is_fetched(
    tmp_path: Path, cached: Path
) -> None:
    path = daemon_class_path({"XDG_CACHE_HOME": str(tmp_path)})
    assert path[: len(JARS)] == [str(cached / jar.file_name) for jar in JARS]
    assert any("hadoop-client-api" in entry for entry in path)


@pytest.mark.parametrize("jar", JARS, ids=lambda jar: str(jar.artifact))
def test_each_jar_is_hashed_at_each_start_however_it_came(
    tmp_path: Path, cached: Path, jar: Jar
) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    daemon_class_path(environment)
    file = cached / jar.file_name
    before = file.stat()
    # As long and as old as the right one.
    file.write_bytes(content(jar).swapcase())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SandboxError, match=r"must have the SHA-256 .* Received"):
        daemon_class_path(environment)


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Maven Central that has one jar."""

    class Central(QuietHandler):
        def do_GET(self) -> None:
            body = content(JARS[0]) if self.path.endswith(JARS[0].file_name) else b""
            self.reply(200 if body else 404, body)

    with serving(Central) as url:
        monkeypatch.setattr(Jar, "url", property(lambda jar: f"{url}/{jar.file_name}"))
        yield


@pytest.mark.usefixtures("maven")
def test_what_is_fetched_is_checked_and_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jars" / JARS[0].file_name
    with pytest.raises(SandboxError, match="must have the SHA-256"):
        class_path.fetch(JARS[0], file)
    replaced = []
    monkeypatch.setattr(
        fsync, "replace", lambda source, target: replaced.append((source.read_bytes(), target))
    )
    class_path.fetch(small(JARS[0]), file)
    assert replaced == [(content(JARS[0]), file)]
    assert list(file.parent.iterdir()) == []


@pytest.mark.usefixtures("maven")
def test_what_cannot_be_fetched_is_named_with_its_address_and_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"404.*by hand: http"):
        class_path.fetch(JARS[1], tmp_path / "jars" / JARS[1].file_name)
    assert not list((tmp_path / "jars").iterdir())


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(SandboxError, match=r"Not a directory.*cache/jars"):
        class_path.fetch(JARS[0], tmp_path / "cache" / "jars" / "a.jar")
