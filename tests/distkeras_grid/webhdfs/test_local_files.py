from __future__ import annotations

import os
from pathlib import Path

import pytest

from distkeras_grid.errors import NoSpaceError, StorageError
from distkeras_grid.webhdfs import local_files
from distkeras_grid.webhdfs.connection import FileStatus
from distkeras_grid.webhdfs.local_files import translated
from distkeras_grid.webhdfs.transfer_plan import TransferItem, hidden_name


def test_a_folder_is_scanned_in_order_with_links_and_without_what_is_half_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "b" / "empty").mkdir(parents=True)
    (tmp_path / "b" / "x").write_bytes(b"12")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    Path(hidden_name(str(tmp_path / "b" / "x"), "00000000")).touch()
    found = list(local_files.walk(str(tmp_path), "/raw"))
    assert [(item.target, item.size, item.is_directory) for item in found] == [
        ("/raw", 0, True),
        ("/raw/a", 0, True),
        ("/raw/a/empty", 0, True),
        ("/raw/a/x", 2, False),
        ("/raw/b", 0, True),
        ("/raw/b/empty", 0, True),
        ("/raw/b/x", 2, False),
    ]
    assert list(local_files.walk(f"{tmp_path}/b/x", "/y")) == [
        TransferItem(f"{tmp_path}/b/x", "/y", 2)
    ]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda root: (root / "loop").symlink_to(root), "is a link to a folder that it lies in"),
        (lambda root: os.mkfifo(root / "pipe"), "pipe is neither a file nor a folder"),
        (lambda root: (root / "gone").symlink_to(root / "nothing"), "gone: it does not exist"),
    ],
)
def test_what_cannot_be_sent_is_named(tmp_path: Path, make: object, told: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(StorageError, match=told):
        list(local_files.walk(str(tmp_path), "/raw"))


def test_what_is_here_is_looked_at_one_level_deep(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"123")
    assert local_files.find_existing(
        [str(tmp_path), f"{tmp_path}/file", f"{tmp_path}/nothing"]
    ) == {
        str(tmp_path): FileStatus(str(tmp_path), is_directory=True),
        f"{tmp_path}/folder": FileStatus(f"{tmp_path}/folder", is_directory=True),
        f"{tmp_path}/file": FileStatus(f"{tmp_path}/file", size=3),
    }


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_a_full_disk_is_an_error_of_its_own() -> None:
    with (
        pytest.raises(NoSpaceError, match=r"Cannot write /x: No space left .* Free some"),
        translated("write", "/x"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")
