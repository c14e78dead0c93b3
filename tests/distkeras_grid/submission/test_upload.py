"""Where an archive is put, once, and who may read it."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from distkeras_grid.errors import OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.archive import Environment, is_packed
from distkeras_grid.submission.installed_packages import installed
from distkeras_grid.submission.interpreter import this_interpreter
from distkeras_grid.submission.upload import FOLDER, archive_place, check, place


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """One whose archive is packed already; nothing looks into it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = installed(metadata.distribution("psutil"))
    made = Environment(this_interpreter(), (replace(package, version="0"),))
    made.archive().parent.mkdir(parents=True)
    made.archive().write_bytes(b"archive" * 100)
    made.archive().parent.chmod(0o755)
    made.archive().chmod(0o644)
    return made


def test_the_folder_is_the_users_or_the_home_on_the_cluster_or_this_machine(
    environment: Environment,
):
    name = environment.name
    assert archive_place(environment, "hdfs:///envs/", "hdfs://h/user/a") == f"hdfs:///envs/{name}"
    assert archive_place(environment, None, "hdfs://h/user/a") == f"hdfs://h/user/a/{FOLDER}/{name}"
    assert archive_place(environment, None, None) == str(environment.archive())


@pytest.mark.spark
def test_it_is_uploaded_once_and_open_to_all(spark, environment: Environment, tmp_path: Path):
    (tmp_path / "home").mkdir(mode=0o700)
    uri = archive_place(environment, None, (tmp_path / "home").as_uri())
    said: list[str] = []
    place(environment, uri, Storage(spark), said.append)
    target = tmp_path / "home" / FOLDER / environment.name
    assert target.read_bytes() == environment.archive().read_bytes()
    modes = {path: path.stat().st_mode & 0o777 for path in (target, *target.parents)}
    assert modes[target] == 0o644
    assert modes[target.parent] == modes[target.parent.parent] == 0o755
    assert modes[tmp_path / "home"] == 0o700
    assert said[0].startswith("uploading ")
    environment.archive().write_bytes(b"another")
    place(environment, uri, Storage(spark), said.append)
    assert target.read_bytes() == b"archive" * 100
    assert said[-1] == f"the environment has been uploaded before: {uri}"


def test_one_that_others_may_change_here_is_packed_anew(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
):
    archive = environment.archive()
    for path in (archive, archive.parent):
        former = path.stat().st_mode
        path.chmod(former | 0o020)
        assert not is_packed(archive)
        path.chmod(former)
    assert is_packed(archive)
    monkeypatch.setattr("os.geteuid", lambda: 999_999)
    assert not is_packed(archive)


@pytest.mark.spark
def test_what_others_may_change_is_refused(spark, environment: Environment, tmp_path: Path):
    uri = archive_place(environment, (tmp_path / "envs").as_uri(), None)
    storage = Storage(spark)
    place(environment, uri, storage, lambda _: None)
    archive = tmp_path / "envs" / environment.name
    check(uri, storage)
    # The sticky bit protects what lies in a folder, and means nothing for a file.
    for path, more in ((archive, 0o020), (archive, 0o1022), (archive.parent, 0o020)):
        former = path.stat().st_mode
        path.chmod(former | more)
        with pytest.raises(StorageError, match="mode"):
            check(uri, storage)
        path.chmod(former)
    archive.parent.chmod(0o1777)
    check(uri, storage)
    archive.parent.chmod(0o755)
    # Without a scheme it is a file of this machine.
    check(str(archive), storage)
    with pytest.raises(PathNotFoundError):
        check(str(archive.parent / "none.tar.gz"), storage)


@pytest.mark.spark
def test_another_submission_may_be_first(
    spark, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Late(Storage):
        """The other one appears between our look and our upload."""

        def make_public_dirs(self, uri: str, levels: int) -> None:
            super().make_public_dirs(uri, levels)
            self.write_bytes(f"{uri}/{environment.name}", b"theirs")

    uri = archive_place(environment, (tmp_path / "envs").as_uri(), None)
    said: list[str] = []
    place(environment, uri, Late(spark), said.append)
    assert said[-1] == "another submission was first to upload it"
    assert (tmp_path / "envs" / environment.name).read_bytes() == b"theirs"


@pytest.mark.spark
def test_an_upload_goes_piece_by_piece_and_replaces_nothing(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from distkeras_grid.spark import storage as module

    monkeypatch.setattr(module, "COPY_BYTES", 1000)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(250)) * 10)
    pieces: list[int] = []
    Storage(spark).upload(source, target.as_uri(), pieces.append)
    assert target.read_bytes() == source.read_bytes()
    assert pieces == [1000, 1000, 500]
    with pytest.raises(OutputExistsError, match="exists"):
        Storage(spark).upload(source, target.as_uri(), pieces.append)
