from __future__ import annotations

import os

import pytest

from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError
from distkeras_grid.webhdfs.connection import FileStatus
from distkeras_grid.webhdfs.transfer_plan import (
    TransferItem,
    check,
    check_names,
    hidden_name,
    is_hidden,
    leftovers,
    transfer_root,
)

FOLDER = FileStatus("/raw/x", is_directory=True)


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


def test_two_sources_of_one_target_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a/x and b/x, which would both become /raw/x"):
        check([TransferItem("a/x", "/raw/x"), TransferItem("b/x", "/raw/x")], {})


@pytest.mark.parametrize(
    ("item", "there", "told"),
    [
        (TransferItem("x", "/raw/x"), FOLDER, "/raw/x is a folder, so x cannot become"),
        (
            TransferItem("x", "/raw/x", is_directory=True),
            FileStatus("/raw/x", size=1),
            "/raw/x is a file, so x cannot become",
        ),
    ],
)
def test_a_file_and_a_folder_of_one_name_are_refused(
    item: TransferItem, there: FileStatus, told: str
) -> None:
    with pytest.raises(OutputExistsError, match=told):
        check([item], {"/raw/x": there})
    check([item], {})


def test_nothing_is_put_below_a_file() -> None:
    with pytest.raises(OutputExistsError, match="/raw/x is a file, so y cannot become /raw/x/y"):
        check([TransferItem("y", "/raw/x/y")], {"/raw/x": FileStatus("/raw/x", size=1)})


def test_names_that_hdfs_does_not_take() -> None:
    items = [TransferItem(f"12:{number}.tif", f"/raw/12:{number}.tif") for number in range(7)]
    with pytest.raises(StorageError, match=r"without ':'.*12:4\.tif and 2 more"):
        check_names(items)
    latin = os.fsdecode("/raw/Körnig.tif".encode("latin-1"))
    with pytest.raises(StorageError, match=r"/raw/K\\udcf6rnig\.tif"):
        check_names([TransferItem(latin, latin)])
    check_names([TransferItem("/a:b/c.tif", "/raw/c.tif")])


def test_a_hidden_name_is_short_stands_beside_and_is_known_again() -> None:
    target = "/raw.d/" + "ü" * 120 + ".tif"
    hidden = hidden_name(target, "0badcafe")
    assert hidden.startswith("/raw.d/_")
    assert len(hidden) < 50
    assert is_hidden(hidden)
    assert hidden != hidden_name(target, "0badbeef") != hidden_name("/raw.d/a", "0badbeef")
    assert not any(map(is_hidden, ("/raw/_SUCCESS", "/raw/.a", "_0badcafe.part", target)))


def test_leftovers_are_those_of_the_same_targets() -> None:
    mine = [hidden_name("/raw.d/a", run) for run in ("00000000", "11111111")]
    others = [hidden_name("/raw.d/b", "00000000"), hidden_name("/raw/a", "00000000"), "/raw.d/a"]
    assert leftovers(["/raw.d/a", "/raw.d/c"], [*others, *mine]) == mine
