"""What a folder of this machine holds, without Spark."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from data_prep.dataset.diff import FileInfo
from data_prep.spark.local_listing import list_local
from distkeras_grid.errors import StorageError


def is_image(name):
    return name.endswith((".png", ".zarr"))


def test_files_have_size_and_time_and_images_that_are_folders_those_of_all_their_files(tmp_path):
    for name in ("a/0.png", "x.zarr/.zgroup", "x.zarr/0/c", "_old/b/1.png", ".trash/2.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"four")
        os.utime(tmp_path / name, (1, 1))
    os.utime(tmp_path / "x.zarr/0/c", ns=(1, 7_000_999_999))
    for name in ("_1.png", "a/._0.png", "note.txt"):
        (tmp_path / name).touch()
    (tmp_path / "_a").symlink_to(".")
    (tmp_path / ".b").symlink_to("nowhere")
    listing = list_local(str(tmp_path), is_image)
    assert listing.files == {
        "a/0.png": FileInfo(f"file:{tmp_path}/a/0.png", 4, 1000),
        "x.zarr": FileInfo(f"file:{tmp_path}/x.zarr", 8, 7000),
    }
    assert listing.unseen == {}
    alone = f"file:{tmp_path}/a/0.png"
    assert set(list_local(str(tmp_path / "a" / "0.png"), is_image).files) == {alone}
    assert set(list_local(f"{tmp_path}/x.zarr/", is_image).files) == {f"file:{tmp_path}/x.zarr"}
    assert list_local(str(tmp_path / "note.txt"), is_image).files == {}
    with pytest.raises(StorageError, match="cannot be listed"):
        list_local(str(tmp_path / "note.txt" / "below"), is_image)


def test_what_cannot_be_seen_is_told(tmp_path, monkeypatch):
    """Links without a target and names that are not UTF-8 vanished without a line."""
    disk = tmp_path / "disk"
    (disk / "b").mkdir(parents=True)
    (disk / "b" / "0.png").write_text("x")
    raw = tmp_path / "raw"
    (raw / "a").mkdir(parents=True)
    (raw / "x.zarr").mkdir()
    (raw / "lost+found").mkdir()
    for link, target in {
        "a/good.png": disk / "b" / "0.png",
        "a/gone.png": "nowhere.png",
        "a/circle.png": "circle.png",
        "x.zarr/0": "nowhere",
        "b": disk / "b",
        "c": tmp_path / "unmounted",
    }.items():
        (raw / link).symlink_to(target)
    latin = "Körnig".encode("latin-1")
    os.mkdir(os.path.join(os.fsencode(raw), latin))
    open(os.path.join(os.fsencode(raw), latin + b".png"), "wb").close()
    open(os.path.join(os.fsencode(raw), latin + b".txt"), "wb").close()
    scandir = os.scandir

    def locked(path):
        if path.endswith(b"lost+found"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    found = list_local(str(raw), is_image)
    assert list(found.files) == ["a/good.png", "b/0.png", "x.zarr"]
    assert found.unseen.keys() == {
        *("a/gone.png", "a/circle.png", "c", "lost+found", r"K\xf6rnig", r"K\xf6rnig.png")
    }
    assert "a link to nowhere.png" in found.unseen["a/gone.png"]
    assert "Permission denied" in found.unseen["lost+found"]
    assert "not UTF-8" in found.unseen[r"K\xf6rnig"]


def test_a_real_folder_is_followed_once_or_on_each_path_but_for_loops(tmp_path):
    """A link to a folder above it was followed forty times; three links gave 240 lines."""
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "0.png").write_text("x")
    elsewhere = tmp_path.parent / f"{tmp_path.name}_elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.png").write_text("x")
    links = {"a": "b", "b/up": "..", "b/c/up": "../..", "y": elsewhere, "z": elsewhere}
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    once, each = (list_local(str(tmp_path), is_image, each_path=each) for each in (False, True))
    assert list(once.files) == ["b/c/0.png", "y/1.png"]
    assert list(each.files) == ["a/c/0.png", "b/c/0.png", "y/1.png", "z/1.png"]


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
