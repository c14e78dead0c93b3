from __future__ import annotations

import os

import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    OutputExistsError,
    StorageError,
)
from distkeras_grid.webhdfs.transfer_plan import (
    ExistingEntry,
    TransferItem,
    check,
    check_names,
    missing_directories,
    transfer_root,
)

FOLDER = ExistingEntry(is_directory=True)


@pytest.mark.parametrize(
    ("source", "is_directory", "inside", "may_rename", "root"),
    [
        ("images", True, False, False, "/raw/images"),
        ("images", True, False, True, "/raw/images"),
        ("/home/me/images/", True, True, False, "/raw"),
        ("a.tif", False, False, False, "/raw/a.tif"),
        ("a.tif", False, False, True, "/raw"),
    ],
)
def test_where_things_come_to_lie(
    source: str, is_directory: bool, inside: bool, may_rename: bool, root: str
) -> None:
    found = transfer_root(
        source, "/raw", is_directory=is_directory, inside=inside, may_rename=may_rename
    )
    assert found == root


def test_directories_that_are_missing_are_made_from_below() -> None:
    items = [
        TransferItem("s", "/raw/s", is_directory=True),
        TransferItem("s/a", "/raw/s/a", is_directory=True),
        TransferItem("s/b", "/raw/s/b", is_directory=True),
        TransferItem("x", "/new/deep/x"),
    ]
    assert missing_directories(items, {"/raw": FOLDER, "/raw/s/b": FOLDER}) == [
        "/new/deep",
        "/raw/s/a",
    ]


def test_two_sources_of_one_target_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a/x and b/x, which would both become /raw/x"):
        check([TransferItem("a/x", "/raw/x"), TransferItem("b/x", "/raw/x")], {})


@pytest.mark.parametrize(
    ("item", "there", "told"),
    [
        (TransferItem("x", "/raw/x"), FOLDER, "/raw/x is a folder, and x is a file"),
        (
            TransferItem("x", "/raw/x", is_directory=True),
            ExistingEntry(1),
            "/raw/x is a file, and x is a folder",
        ),
    ],
)
def test_a_file_and_a_folder_of_one_name_are_refused(
    item: TransferItem, there: ExistingEntry, told: str
) -> None:
    with pytest.raises(OutputExistsError, match=told):
        check([item], {"/raw/x": there})
    check([item], {})


def test_nothing_is_put_below_a_file() -> None:
    with pytest.raises(OutputExistsError, match="/raw/x is a file, so y cannot lie below it"):
        check([TransferItem("y", "/raw/x/y")], {"/raw/x": ExistingEntry(1)})


def test_names_that_hdfs_does_not_take() -> None:
    items = [TransferItem(f"12:{number}.tif", f"/raw/12:{number}.tif") for number in range(7)]
    with pytest.raises(StorageError, match=r"without ':'.*12:4\.tif and 2 more"):
        check_names(items)
    latin = os.fsdecode("/raw/Körnig.tif".encode("latin-1"))
    with pytest.raises(StorageError, match=r"/raw/K\\udcf6rnig\.tif"):
        check_names([TransferItem(latin, latin)])
    check_names([TransferItem("/a:b/c.tif", "/raw/c.tif")])
