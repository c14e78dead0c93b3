"""What a folder of this machine holds, without Spark."""

from __future__ import annotations

import os
import shutil
from fnmatch import fnmatch

import pytest

from data_prep.dataset.diff import FileInfo
from data_prep.spark.local_listing import list_local
from distkeras_grid.errors import StorageError


def is_png(name):
    return fnmatch(name, "*.png")


def is_image(name):
    return is_png(name) or name.endswith(".zarr")


def test_files_have_size_and_time_and_images_that_are_folders_those_of_all_their_files(tmp_path):
    for name in ("a/0.png", "x.zarr/.zgroup", "x.zarr/0/c", "_old/b/1.png", ".trash/2.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"four")
        os.utime(tmp_path / name, (1, 1))
    os.utime(tmp_path / "x.zarr/0/c", ns=(1, 7_000_999_999))
    for name in ("_1.png", "a/._0.png", "a/._1.png", "note.txt"):
        (tmp_path / name).touch()
    listing = list_local(str(tmp_path), is_image)
    assert listing.files == {
        "a/0.png": FileInfo(f"file:{tmp_path}/a/0.png", 4, 1000),
        "x.zarr": FileInfo(f"file:{tmp_path}/x.zarr", 8, 7000),
    }
    # `._0.png` holds macOS' attributes of `0.png`.
    assert set(listing.unseen) == {"_1.png", "a/._1.png", "_old"}
    assert listing.unseen["_old"].startswith("1 image in this folder, whose name begins with '_'")
    alone = f"file:{tmp_path}/a/0.png"
    assert set(list_local(str(tmp_path / "a" / "0.png"), is_image).files) == {alone}
    assert set(list_local(f"{tmp_path}/x.zarr/", is_image).files) == {f"file:{tmp_path}/x.zarr"}
    assert list_local(str(tmp_path / "note.txt"), is_image).files == {}
    with pytest.raises(StorageError, match="cannot be listed"):
        list_local(str(tmp_path / "note.txt" / "below"), is_image)


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
    found = list_local(str(raw), is_image, tiled=["c/0.png", "a/good.png"])
    assert found.links == {"a/gone.png", "a/gone.txt", "a/circle.png", "b/1.png", "c", "d"}
    assert list(found.files) == ["a/good.png", "b/0.png", "x.zarr"]
    assert set(found.unseen) == {"a/gone.png", "a/circle.png", "b/1.png", "c"}
    assert "a link to nowhere.png" in found.unseen["a/gone.png"]


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
    found = list_local(str(tmp_path), is_png)
    assert list(found.files) == ["b/c/0.png", "y/1.png"]
    assert found.again == {"a": "b", "b/up": "", "b/c/up": "", "z": "y"}


def test_a_hidden_folder_is_looked_into_once(tmp_path):
    """Two links to the folder itself were followed 2 to the power of 40 times."""
    (tmp_path / "0.png").touch()
    for name in ("_a", "_b"):
        (tmp_path / name).symlink_to(".")
    hidden = os.path.join(os.fsencode(tmp_path), b"_K\xf6rnig")
    os.mkdir(hidden)
    open(os.path.join(hidden, b"1.png"), "wb").close()
    found = list_local(str(tmp_path), is_png)
    assert list(found.files) == ["0.png"]
    assert found.unseen.keys() == {"_a", "_b", r"_K\xf6rnig"}
    assert found.unseen[r"_K\xf6rnig"].startswith("1 image in this folder")


def test_a_hidden_link_closes_no_folder(tmp_path):
    """What begins with a dot is left out, whatever it is: pruning was refused for the folder."""
    (tmp_path / "0.png").touch()
    (tmp_path / ".up").symlink_to(".up")
    (tmp_path / "_down").symlink_to("0.png/below")
    found = list_local(str(tmp_path), is_png)
    assert (list(found.files), found.unseen, found.links) == (["0.png"], {}, frozenset())


def test_a_folder_that_goes_while_it_is_listed_ends_nothing(tmp_path, monkeypatch):
    for part in ("x.zarr/0/c", "x.zarr/1/c"):
        (tmp_path / part).parent.mkdir(parents=True)
        (tmp_path / part).write_bytes(b"four")
    walk = os.walk

    def late_walk(top, onerror):
        for folder, folders, names in walk(top, onerror=onerror):
            if b"0" in folders:
                shutil.rmtree(tmp_path / "x.zarr" / "0")
            yield folder, folders, names

    monkeypatch.setattr(os, "walk", late_walk)
    assert list_local(str(tmp_path), is_image).files["x.zarr"].length == 4


def test_names_that_are_not_utf_8_are_told(tmp_path):
    """They vanished without a line."""
    latin = "Körnig".encode("latin-1")
    root = os.fsencode(tmp_path)
    os.mkdir(os.path.join(root, latin))
    for name in (b"0.png", b"1.png", b"note.txt"):
        open(os.path.join(root, latin, name), "wb").close()
    open(os.path.join(root, latin + b".png"), "wb").close()
    (tmp_path / "Körnig.png").write_bytes(b"")
    found = list_local(str(tmp_path), is_png)
    assert list(found.files) == ["Körnig.png"]
    lost = found.unseen
    assert lost.keys() == {r"K\xf6rnig", r"K\xf6rnig.png"}
    assert lost[r"K\xf6rnig"].startswith("2 images in this folder, whose name is not UTF-8")
    assert lost[r"K\xf6rnig.png"].startswith("its name is not UTF-8")


def test_a_folder_is_looked_into_on_each_path_but_for_loops(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "1.png").touch()
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "other").symlink_to(tmp_path / "a" / "b")
    once, each = (list_local(str(tmp_path), is_png, each_path=each) for each in (False, True))
    assert list(once.files) == ["a/b/1.png"]
    assert list(each.files) == ["a/b/1.png", "other/1.png"]
    assert set(each.again) == {"a/b/up", "other/up/b"}
