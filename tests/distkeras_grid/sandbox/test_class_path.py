from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import class_path
from distkeras_grid.sandbox.class_path import (
    JARS,
    KDC_JARS,
    Jar,
    check_digest,
    daemon_class_path,
    distribution_class_path,
    ivy_command,
    jar_folder,
    kdc_class_path,
)


def test_the_folder_of_fetched_jars_is_in_the_users_cache(tmp_path: Path) -> None:
    assert jar_folder({"XDG_CACHE_HOME": str(tmp_path)}).parent.parent == tmp_path


def test_jars_in_the_cache_are_taken_first_and_nothing_is_fetched(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = jar_folder(environment)
    folder.mkdir(parents=True)
    for jar in JARS:
        (folder / jar.file_name).touch()
    path = daemon_class_path(environment)
    assert path[: len(JARS)] == [str(folder / jar.file_name) for jar in JARS]
    assert any("hadoop-client-api" in entry for entry in path)


def test_the_kdc_is_the_same_beside_a_hadoop_of_the_users(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "HADOOP_HOME": "/opt/hadoop"}
    folder = jar_folder(environment)
    folder.mkdir(parents=True)
    for jar in KDC_JARS:
        (folder / jar.file_name).touch()
    path = kdc_class_path(environment)
    assert path[: len(KDC_JARS)] == [str(folder / jar.file_name) for jar in KDC_JARS]
    assert any("slf4j-api" in entry for entry in path)
    assert not any("/opt/hadoop" in entry for entry in path)


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
    with pytest.raises(
        SandboxError, match=r"a-1.jar must have the SHA-256 .* get it from https://repo1"
    ):
        check_digest(file, Jar("g", "a", "1", hashlib.sha256(b"left").hexdigest()))


def test_what_cannot_be_fetched_is_named_with_its_address_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ivy's own run is in tests/hadoop; here it is a program that ends without a file.
    monkeypatch.setattr(class_path, "ivy_command", lambda _work: ["echo", "SERVER ERROR: no route"])
    with pytest.raises(SandboxError, match=r"SERVER ERROR: no route.*by hand: https://repo1"):
        class_path.fetch(JARS, tmp_path / "jars")
    assert not list((tmp_path / "jars").iterdir())


def test_ivy_comes_with_pyspark(tmp_path: Path) -> None:
    command = ivy_command(tmp_path)
    assert Path(command[2]).name.startswith("ivy-")
    assert str(tmp_path / "ivy.xml") in command
