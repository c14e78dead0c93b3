"""Where an archive is put, once, and who may read it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from distkeras_grid.errors import OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission import upload
from distkeras_grid.submission.archive import (
    Environment,
    digest_beside,
    is_as_packed,
    sha256_line,
)
from distkeras_grid.submission.installed_packages import installed
from distkeras_grid.submission.interpreter import this_interpreter
from distkeras_grid.submission.upload import FOLDER, archive_place, check, check_own, place


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
    digest_beside(made.archive()).write_text(sha256_line(made.archive(), made.name))
    digest_beside(made.archive()).chmod(0o644)
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


def test_one_that_was_changed_here_is_not_as_packed(environment: Environment):
    assert is_as_packed(environment.archive())
    environment.archive().write_bytes(b"another")
    assert not is_as_packed(environment.archive())
    digest_beside(environment.archive()).unlink()
    assert not is_as_packed(environment.archive())


class Noted:
    """A storage with an archive of this user's, and what is noted beside it."""

    def __init__(self, noted: str) -> None:
        self.noted = noted

    def access(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(mode=0o755, owner="me")

    def user(self) -> str:
        return "me"

    def exists(self, _: str) -> bool:
        return True

    def read_text(self, _: str) -> str:
        return self.noted

    def sha256(self, _: str) -> str:
        return "0" * 64


@pytest.mark.parametrize("noted", ["", "\n", "1 archive"])
def test_an_archive_beside_which_nothing_is_noted_is_refused(noted: str):
    """Where there was no room for its SHA-256; it was an IndexError."""
    with pytest.raises(StorageError, match="SHA-256"):
        check("hdfs:///envs/a", Noted(noted))  # type: ignore[arg-type]


def test_one_that_others_may_have_changed_here_is_packed_anew(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
):
    """Both files of a pair may be another user's, or have been written by one."""
    archive = environment.archive()
    for path in (archive, digest_beside(archive), archive.parent):
        former = path.stat().st_mode
        path.chmod(former | 0o020)
        assert not is_as_packed(archive)
        path.chmod(former)
    assert is_as_packed(archive)
    monkeypatch.setattr("os.geteuid", lambda: 999_999)
    assert not is_as_packed(archive)


def test_what_cannot_be_read_here_is_packed_anew(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
):
    """Another user may have written the file for nobody else to read."""
    beside = digest_beside(environment.archive())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "denied")))
        assert not is_as_packed(environment.archive())
    beside.unlink()
    beside.mkdir()
    assert not is_as_packed(environment.archive())


@pytest.mark.spark
def test_what_others_changed_or_may_change_is_refused(
    spark, environment: Environment, tmp_path: Path
):
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
    archive.write_bytes(b"another")
    with pytest.raises(StorageError, match="SHA-256"):
        place(environment, uri, storage, lambda _: None)
    digest_beside(archive).unlink()
    with pytest.raises(StorageError, match="nothing"):
        check(uri, storage)


@pytest.mark.spark
def test_another_submission_may_be_first(
    spark, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Late(Storage):
        """The other one appears between our look and our upload."""

        def make_public_dirs(self, uri: str, levels: int) -> None:
            super().make_public_dirs(uri, levels)
            self.write_bytes(f"{uri}/{environment.name}", theirs.pop(0))

    uri = archive_place(environment, (tmp_path / "envs").as_uri(), None)
    said: list[str] = []
    same = environment.archive().read_bytes()
    theirs = [b"another", same]
    with pytest.raises(StorageError, match="SHA-256"):
        place(environment, uri, Late(spark), said.append)
    # What runs is not what was packed, and it is not overwritten either.
    assert (tmp_path / "envs" / environment.name).read_bytes() == b"another"
    shutil.rmtree(tmp_path / "envs")
    place(environment, uri, Late(spark), said.append)
    assert said[-1] == "another submission was first to upload it"
    assert (tmp_path / "envs" / environment.name).read_bytes() == same
    assert theirs == []


@pytest.mark.spark
def test_an_archive_of_ones_own_is_checked_as_far_as_it_can_be(
    spark, environment: Environment, tmp_path: Path
):
    """Who packed it otherwise need not have noted a SHA-256; one that is noted must be right."""
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    archive = folder / "packed by conda.tar.gz"
    archive.write_bytes(b"archive")
    archive.chmod(0o644)
    storage = Storage(spark)
    for uri in (str(archive), f"file://{archive}"):
        check_own(uri, storage)
        digest_beside(archive).write_text(sha256_line(archive, archive.name))
        check_own(uri, storage)
        digest_beside(archive).write_text("0" * 64)
        with pytest.raises(StorageError, match="SHA-256"):
            check_own(uri, storage)
        digest_beside(archive).unlink()
    folder.chmod(0o777)
    with pytest.raises(StorageError, match="mode"):
        check_own(str(archive), storage)
    with pytest.raises(PathNotFoundError):
        check_own(str(folder / "none.tar.gz"), storage)


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


@pytest.mark.spark
def test_what_is_there_is_neither_packed_nor_uploaded(
    spark, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upload, "build", pytest.fail)
    said: list[str] = []
    place(environment, str(environment.archive()), Storage(spark), said.append)
    assert said == [f"the environment has been uploaded before: {environment.archive()}"]
