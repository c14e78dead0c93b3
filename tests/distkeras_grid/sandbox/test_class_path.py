from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from distkeras_grid import fsync
from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import class_path
from distkeras_grid.sandbox.class_path import (
    JARS,
    Jar,
    check_digest,
    daemon_class_path,
    distribution_class_path,
    ivy_command,
    jar_folder,
)


def test_the_folder_of_fetched_jars_is_in_the_users_cache(tmp_path: Path) -> None:
    assert jar_folder({"XDG_CACHE_HOME": str(tmp_path)}).parent.parent == tmp_path


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


def test_what_was_fetched_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = []
    monkeypatch.setattr(
        fsync, "replace", lambda source, target: replaced.append((source.read_bytes(), target))
    )
    jars = [small(jar) for jar in JARS]

    def fetched(work: Path) -> list[str]:
        (work / "lib").mkdir()
        for jar in jars:
            (work / "lib" / jar.file_name).write_bytes(content(jar))
        return ["true"]

    monkeypatch.setattr(class_path, "ivy_command", fetched)
    class_path.fetch(jars, tmp_path)
    assert replaced == [(content(jar), tmp_path / jar.file_name) for jar in jars]


def test_a_hadoop_of_the_users_is_taken_with_its_web_pages(tmp_path: Path) -> None:
    hdfs = tmp_path / "share" / "hadoop" / "hdfs"
    hdfs.mkdir(parents=True)
    (hdfs / "hadoop-hdfs-3.4.1.jar").touch()
    path = daemon_class_path({"HADOOP_HOME": str(tmp_path)})
    assert path == distribution_class_path(tmp_path)
    assert {str(hdfs), f"{hdfs}/*", f"{hdfs}/lib/*"} <= set(path)


def test_a_hadoop_home_without_hadoop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"HADOOP_HOME is .* holds no hadoop-hdfs jar"):
        daemon_class_path({"HADOOP_HOME": str(tmp_path)})


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a-1.jar"
    file.write_bytes(b"right")
    check_digest(file, Jar("g", "a", "1", hashlib.sha256(b"right").hexdigest()))
    with pytest.raises(SandboxError, match=r"a-1.jar must have the SHA-256 .* https://repo1"):
        check_digest(file, Jar("g", "a", "1", hashlib.sha256(b"left").hexdigest()))


def test_what_cannot_be_fetched_is_named_with_its_address_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ivy's own run is in tests/hadoop; here it is a program that ends without a file.
    monkeypatch.setattr(class_path, "ivy_command", lambda _work: ["echo", "SERVER ERROR: no route"])
    with pytest.raises(SandboxError, match=r"SERVER ERROR: no route.*by hand: https://repo1"):
        class_path.fetch(JARS, tmp_path / "jars")
    assert not list((tmp_path / "jars").iterdir())


def test_without_java_nothing_is_fetched_and_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start on a new machine ended with a traceback."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(SandboxError, match=r"none/bin/java is not there\. Install"):
        class_path.fetch(JARS, tmp_path / "jars")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(SandboxError, match=r"Not a directory.*cache/jars"):
        class_path.fetch(JARS, tmp_path / "cache" / "jars")


def test_ivy_comes_with_pyspark(tmp_path: Path) -> None:
    command = ivy_command(tmp_path)
    assert Path(command[2]).name.startswith("ivy-")
    assert str(tmp_path / "ivy.xml") in command
