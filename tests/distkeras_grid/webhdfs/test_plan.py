from __future__ import annotations

import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    NoSpaceError,
    OutputExistsError,
    StorageError,
)
from distkeras_grid.webhdfs.plan import (
    Item,
    Present,
    check,
    check_names,
    failure,
    hidden_name,
    is_hidden,
    leftovers,
    missing_directories,
    root_of,
)

FOLDER = Present(is_directory=True)


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
    found = root_of(source, "/raw", is_directory=is_directory, inside=inside, may_rename=may_rename)
    assert found == root


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


def test_directories_that_are_missing_are_made_from_below() -> None:
    items = [
        Item("s", "/raw/s", is_directory=True),
        Item("s/a", "/raw/s/a", is_directory=True),
        Item("s/b", "/raw/s/b", is_directory=True),
        Item("x", "/new/deep/x"),
    ]
    assert missing_directories(items, {"/raw": FOLDER, "/raw/s/b": FOLDER}) == [
        "/new/deep",
        "/raw/s/a",
    ]


def test_two_sources_of_one_target_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a/x and b/x would both become /raw/x"):
        check([Item("a/x", "/raw/x"), Item("b/x", "/raw/x")], {})


@pytest.mark.parametrize(
    ("item", "there", "told"),
    [
        (Item("x", "/raw/x"), FOLDER, "/raw/x is a folder, and x is a file"),
        (Item("x", "/raw/x", is_directory=True), Present(1), "/raw/x is a file, and x is a folder"),
    ],
)
def test_a_file_and_a_folder_of_one_name_are_refused(item: Item, there: Present, told: str) -> None:
    with pytest.raises(OutputExistsError, match=told):
        check([item], {"/raw/x": there})
    check([item], {})


def test_nothing_is_put_below_a_file() -> None:
    with pytest.raises(OutputExistsError, match="/raw/x is a file, so y cannot lie below it"):
        check([Item("y", "/raw/x/y")], {"/raw/x": Present(1)})


def test_names_that_hdfs_does_not_take() -> None:
    items = [Item(f"12:{number}.tif", f"/raw/12:{number}.tif") for number in range(7)]
    with pytest.raises(StorageError, match=r"no ':' in a name; .*12:4\.tif and 2 more"):
        check_names(items)
    check_names([Item("/a:b/c.tif", "/raw/c.tif")])


def test_failures_are_one_error_that_tells_each_reason_once() -> None:
    full = [(Item(f"{n}", f"/raw/{n}"), NoSpaceError(f"/raw/{n}: full")) for n in range(3)]
    error = failure(full, files=9, not_tried=4)
    assert type(error) is NoSpaceError
    assert str(error).startswith("3 of 9 files failed, 4 were not tried any more; the same again")
    assert str(error).endswith("/raw/0: full (so did 2 more)")
    other = StorageError("/raw/x: broken")
    other.add_note("a half stays")
    both = failure([*full, (Item("x", "/raw/x"), other)], files=9, not_tried=0)
    assert type(both) is StorageError
    assert str(both).endswith("(so did 2 more) | /raw/x: broken; a half stays")


def test_the_error_of_the_only_file_is_its_own() -> None:
    error = failure([(Item("x", "/raw/x"), OutputExistsError("there"))], files=1, not_tried=0)
    assert (type(error), str(error)) == (OutputExistsError, "there")
