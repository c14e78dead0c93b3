"""What a folder of this machine holds, without Spark."""

from __future__ import annotations

import os
from fnmatch import fnmatch

import pytest

from data_prep.spark.broken_links import find_broken_links, walk
from distkeras_grid.errors import StorageError


def is_png(name):
    return fnmatch(name, "*.png")


def test_links_without_a_target_are_told(tmp_path):
    """They were neither tiled nor told."""
    disk = tmp_path / "disk"
    (disk / "b").mkdir(parents=True)
    (disk / "b" / "0.png").write_text("x")
    raw = tmp_path / "raw"
    (raw / "a").mkdir(parents=True)
    (raw / "x.zarr").mkdir()
    for link, target in {
        "a/good.png": disk / "b" / "0.png",
        "a/gone.png": "nowhere.png",
        "a/gone.txt": "nowhere.txt",
        "a/_hidden.png": "nowhere.png",
        "a/circle.png": "circle.png",
        "x.zarr/0": "nowhere",
        "again": raw,
        "b": disk / "b",
        "c": tmp_path / "unmounted",
        "d": tmp_path / "unmounted",
    }.items():
        (raw / link).symlink_to(target)
    (disk / "b" / "1.png").symlink_to("nowhere")
    found = walk(str(raw))
    assert set(found.broken) == {"a/gone.png", "a/gone.txt", "a/circle.png", "b/1.png", "c", "d"}
    assert found.broken["a/gone.png"] == "nowhere.png"
    assert sorted(found.files) == ["a/good.png", "b/0.png", "x.zarr"]
    lost = find_broken_links(found, is_png, ["c/0.png", "a/good.png"])
    assert set(lost) == {"a/gone.png", "a/circle.png", "b/1.png", "c"}
    for path in ("a/good.png", "none"):
        nothing = walk(str(raw / path))
        assert (nothing.files, nothing.broken, nothing.unnamed) == ([], {}, [])


def test_each_real_folder_is_followed_once(tmp_path):
    """A link to a folder above it was followed forty times; three links gave 240 lines."""
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "0.png").write_text("x")
    elsewhere = tmp_path.parent / f"{tmp_path.name}_elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.png").write_text("x")
    links = {"a": "b", "b/up": "..", "b/c/up": "../..", "y": elsewhere, "z": elsewhere}
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    found = walk(str(tmp_path))
    assert sorted(found.files) == ["b/c/0.png", "y/1.png"]
    assert found.again == {"a": "b", "b/up": "", "b/c/up": "", "z": "y"}


def test_names_that_are_not_utf_8_are_told(tmp_path):
    """They vanished without a line."""
    latin = "Körnig".encode("latin-1")
    root = os.fsencode(tmp_path)
    os.mkdir(os.path.join(root, latin))
    for name in (b"0.png", b"1.png", b"note.txt"):
        open(os.path.join(root, latin, name), "wb").close()
    open(os.path.join(root, latin + b".png"), "wb").close()
    (tmp_path / "Körnig.png").write_bytes(b"")
    found = walk(str(tmp_path))
    assert found.files == ["Körnig.png"]
    lost = find_broken_links(found, is_png)
    assert lost.keys() == {r"K\xf6rnig", r"K\xf6rnig.png"}
    assert lost[r"K\xf6rnig"].startswith("2 images in this folder, whose name is not UTF-8")
    assert lost[r"K\xf6rnig.png"].startswith("its name is not UTF-8")


def test_a_listing_that_lacks_a_file_is_refused(tmp_path):
    for name in ("µ.png", "0.png", "note.txt"):
        (tmp_path / name).write_bytes(b"x")
    found = walk(str(tmp_path))
    found.check(["µ.png", "0.png", "later.png"], is_png, "UTF-8")
    with pytest.raises(StorageError, match=r"1 others .*µ\.png.* ANSI_X3"):
        found.check(["0.png"], is_png, "ANSI_X3.4-1968")
    (tmp_path / "µ.png").unlink()
    found.check(["0.png"], is_png, "UTF-8")


def test_a_folder_is_looked_into_on_each_path_but_for_loops(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "1.png").touch()
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "other").symlink_to(tmp_path / "a" / "b")
    once, each = walk(str(tmp_path)), walk(str(tmp_path), each_path=True)
    assert sorted(once.files) == ["a/b/1.png"]
    assert sorted(each.files) == ["a/b/1.png", "other/1.png"]
    assert set(each.again) == {"a/b/up", "other/up/b"}
