"""Where an archive is put, once, and who may read it."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from distkeras_grid.errors import OutputExistsError
from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission import archive, upload
from distkeras_grid.submission.archive import Environment
from distkeras_grid.submission.installed_packages import installed
from distkeras_grid.submission.interpreter import this_interpreter
from distkeras_grid.submission.upload import FOLDER, archive_place, place


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """One whose archive is packed already; nothing looks into it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = installed(metadata.distribution("psutil"))
    made = Environment(this_interpreter(), (replace(package, version="0"),))
    made.archive().parent.mkdir(parents=True)
    made.archive().write_bytes(b"archive" * 100)
    return made


def test_the_folder_is_in_the_home_on_the_cluster_or_on_this_machine(environment: Environment):
    on_cluster = f"hdfs://h/user/a/{FOLDER}/{environment.name}"
    assert archive_place(environment, "hdfs://h/user/a") == on_cluster
    assert archive_place(environment, "file:/home/a") == str(environment.archive())


@pytest.mark.parametrize("shared", ["", "hdfs"], ids=["on this machine", "on the cluster"])
def test_an_archive_that_another_user_has_put_here_is_not_shipped(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, shared: str
):
    """It would run in this user's name."""
    local = environment.archive()
    local.parent.chmod(0o777)
    monkeypatch.setattr(archive, "os", SimpleNamespace(getuid=lambda: local.stat().st_uid + 1))
    monkeypatch.setattr(upload, "build", lambda _, target, __: target.write_bytes(b"mine"))
    storage = SimpleNamespace(
        exists=lambda uri: uri == str(local) or not uri.startswith("hdfs:"),
        make_public_dirs=lambda _: None,
        upload=lambda *_: None,
    )
    place(environment, f"{shared}:///user/a/x" if shared else str(local), storage, lambda _: None)
    assert local.read_bytes() == b"mine"
    assert local.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.spark
def test_it_is_uploaded_once_and_open_to_all(spark, environment: Environment, tmp_path: Path):
    (tmp_path / "home").mkdir(mode=0o700)
    uri = f"{(tmp_path / 'home').as_uri()}/{FOLDER}/{environment.name}"
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


@pytest.mark.spark
def test_another_submission_may_be_first(
    spark, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Late(Storage):
        """The other one appears between our look and our upload."""

        def make_public_dirs(self, uri: str) -> None:
            super().make_public_dirs(uri)
            self.write_bytes(f"{uri}/{environment.name}", b"theirs")

    uri = f"{(tmp_path / 'envs').as_uri()}/{environment.name}"
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
