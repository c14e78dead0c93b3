"""Both directions, against servers that lose answers, cut bodies and change files."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.checksums import ChecksumLayout
from distkeras_grid.webhdfs.operations import download, upload
from tests.distkeras_grid.webhdfs import loopback
from tests.distkeras_grid.webhdfs.loopback import Fault, Loopback

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 3000
NAME = "a #%;?ä.tif"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_bytes(CONTENT)
    return tmp_path / NAME


def only_whole(hdfs: Loopback, path: str = f"/raw/{NAME}") -> bool:
    """Nothing but the one file is there, and it has every byte."""
    return hdfs.files == {path: CONTENT}


def test_there_and_back(hdfs: Loopback, local: Path, tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / NAME).write_bytes(CONTENT)
    (tmp_path / "tree" / "empty").touch()
    done = upload(tmp_path / "tree", "/raw", url=hdfs.url)
    assert (done.files, done.size, done.same_files) == (2, len(CONTENT), 0)
    assert hdfs.files == {f"/raw/tree/deep/{NAME}": CONTENT, "/raw/tree/empty": b""}
    assert upload(tmp_path / "tree", "/raw", url=hdfs.url).same_files == 2
    done = download("/raw/tree", tmp_path / "back", url=hdfs.url)
    assert (done.files, done.size, done.same_files) == (2, len(CONTENT), 0)
    assert (tmp_path / "back" / "tree" / "deep" / NAME).read_bytes() == CONTENT
    assert download("/raw/tree", tmp_path / "back", url=hdfs.url).same_files == 2
    assert {query.get("user.name") for query in hdfs.queries} != {None}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("operation", ["CREATE", "CREATE data", "RENAME", "MKDIRS", "LISTSTATUS"])
@pytest.mark.parametrize("kind", ["reset", "lost"])
def test_a_lost_question_or_answer_changes_nothing(
    hdfs: Loopback, local: Path, operation: str, kind: str, overwrite: bool
) -> None:
    if overwrite:
        hdfs.files[f"/raw/{NAME}"] = b"old"
        hdfs.directories.add("/raw")
    hdfs.faults[operation] = Fault(kind, times=2)
    assert upload(local, "/raw/", url=hdfs.url, overwrite=overwrite).files == 1
    assert only_whole(hdfs)


def test_a_rename_whose_answer_is_lost_never_takes_another_file_for_ours(
    hdfs: Loopback, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another run has deleted our hidden file, and put its own file of the same size there.
    def rename(self: loopback.Handler, source: str, target: str, option: str) -> bytes:
        hdfs.files.pop(source, None)
        hdfs.files[target] = CONTENT[::-1]
        raise loopback.RemoteException("FileNotFoundException", "source is not found", 404)

    monkeypatch.setattr(loopback.Handler, "rename", rename)
    with pytest.raises(PathNotFoundError, match="its temporary file"):
        upload(local, "/raw/", url=hdfs.url)
    assert hdfs.files == {f"/raw/{NAME}": CONTENT[::-1]}


@pytest.mark.parametrize("kind", ["reset", "cut"])
def test_a_cut_body_is_fetched_again_and_none_of_it_stays(
    hdfs: Loopback, tmp_path: Path, kind: str
) -> None:
    hdfs.files["/x"] = CONTENT
    hdfs.faults["OPEN data"] = Fault(kind, times=2)
    assert download("/x", tmp_path / "x", url=hdfs.url).files == 1
    assert (tmp_path / "x").read_bytes() == CONTENT
    hdfs.faults["OPEN data"] = Fault(kind, times=-1)
    with pytest.raises(StorageError, match="the DataNode at 127") as raised:
        download("/x", tmp_path / "y", url=hdfs.url)
    assert type(raised.value) is StorageError
    assert sorted(os.listdir(tmp_path)) == ["x"]


def test_every_other_try_leaves_out_the_datanode_that_failed(
    hdfs: Loopback, tmp_path: Path
) -> None:
    hdfs.files["/x"] = CONTENT
    hdfs.faults["OPEN data"] = Fault("reset", times=3)
    download("/x", tmp_path / "x", url=hdfs.url)
    asked = [
        query.get("excludedatanodes")
        for operation, query in zip(hdfs.asked, hdfs.queries, strict=True)
        if operation == "OPEN"
    ]
    assert asked == [None, "127.0.0.1", None, "127.0.0.1"]


@pytest.mark.parametrize("opaque", [False, True])
def test_a_damaged_copy_never_gets_its_name(
    hdfs: Loopback, local: Path, tmp_path: Path, opaque: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs.opaque = opaque
    read = loopback.Handler.read_body
    monkeypatch.setattr(loopback.Handler, "read_body", lambda self: read(self)[::-1])
    with pytest.raises(StorageError, match="another checksum"):
        upload(local, "/raw/", url=hdfs.url)
    assert hdfs.files == {}
    hdfs.files["/x"] = CONTENT
    monkeypatch.setattr(loopback, "checksum", lambda _: CHECKSUM_OF_NOTHING)
    if not opaque:
        with pytest.raises(StorageError, match="another checksum"):
            download("/x", tmp_path / "x", url=hdfs.url)
        assert not (tmp_path / "x").exists()


CHECKSUM_OF_NOTHING = {
    "algorithm": "MD5-of-0MD5-of-512CRC32C",
    "bytes": "00000200" + "00" * 24,
}


def test_a_file_that_shrinks_never_appears(
    hdfs: Loopback, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = loopback.Handler.answer

    def shrink(self: loopback.Handler, operation: str, *rest: object) -> bytes | None:
        if operation == "CREATE":
            local.write_bytes(b"short")
        return answer(self, operation, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loopback.Handler, "answer", shrink)
    with pytest.raises(StorageError, match="768,000 bytes were found and 5 read"):
        upload(local, "/raw/", url=hdfs.url)
    assert hdfs.files == {}


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"algorithm": "COMPOSITE-CRC32C", "bytes": "00" * 4},
        {"algorithm": "MD5-of-0MD5-of-4096CRC32", "layout": ChecksumLayout("CRC32", 4096, 0)},
        None,
    ],
    ids=["default", "unknown algorithm", "another layout", "opaque"],
)
def test_what_differs_is_replaced_on_demand_only(
    hdfs: Loopback,
    local: Path,
    tmp_path: Path,
    told: dict[str, Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever checksum HDFS keeps of it: an unknown one, or none, is replaced by a reading."""
    hdfs.opaque = told is None
    known = {"layout": loopback.LAYOUT, **(told or {})}
    checksum = partial(loopback.checksum, layout=known.pop("layout"))
    monkeypatch.setattr(loopback, "checksum", lambda content: checksum(content) | known)
    hdfs.directories.add("/raw")
    hdfs.files[f"/raw/{NAME}"] = CONTENT[::-1]
    with pytest.raises(OutputExistsError):
        upload(local, "/raw", url=hdfs.url)
    with pytest.raises(OutputExistsError):
        download(f"/raw/{NAME}", tmp_path, url=hdfs.url)
    assert hdfs.files == {f"/raw/{NAME}": CONTENT[::-1]}
    assert local.read_bytes() == CONTENT
    assert upload(local, "/raw", url=hdfs.url, overwrite=True).files == 1
    assert only_whole(hdfs)
    assert upload(local, "/raw", url=hdfs.url).same_files == 1
    local.write_bytes(b"x")
    assert download(f"/raw/{NAME}", tmp_path, url=hdfs.url, overwrite=True).files == 1
    assert local.read_bytes() == CONTENT
    assert download(f"/raw/{NAME}", tmp_path, url=hdfs.url).same_files == 1
    # The checksum of an opaque file is of other bytes than its own.
    assert ("GETFILECHECKSUM" in hdfs.asked) == (told is not None)


def test_a_refusal_leaves_nothing_and_has_its_class(hdfs: Loopback, local: Path) -> None:
    hdfs.faults["CREATE data"] = Fault("DSQuotaExceededException")
    with pytest.raises(NoSpaceError, match=f"Cannot write /raw/{NAME[:2]}"):
        upload(local, "/raw/", url=hdfs.url)
    assert hdfs.files == {}
    hdfs.faults["RENAME"] = Fault("AccessControlException")
    with pytest.raises(StorageError, match="AccessControlException"):
        upload(local, "/raw/", url=hdfs.url)
    assert hdfs.files == {}


def test_a_half_file_that_cannot_be_deleted_is_told(hdfs: Loopback, local: Path) -> None:
    hdfs.faults["RENAME"] = Fault("AccessControlException")
    hdfs.faults["DELETE"] = Fault("AccessControlException")
    with pytest.raises(StorageError, match="may stay behind"):
        upload(local, "/raw/", url=hdfs.url)
    # The same again clears it away.
    assert upload(local, "/raw/", url=hdfs.url).files == 1
    assert only_whole(hdfs)


def test_a_new_name_without_a_folder_lies_in_this_one(
    hdfs: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hdfs.files["/x"] = CONTENT
    assert download("/x", "y", url=hdfs.url).files == 1
    assert Path("y").read_bytes() == CONTENT
    Path("y").write_bytes(b"mine")
    with pytest.raises(OutputExistsError):
        download("/x", "y", url=hdfs.url)
    assert Path("y").read_bytes() == b"mine"
