"""Which images are in a folder, where a part of it cannot be opened."""

from __future__ import annotations

import json

import pytest

from data_prep import TilingSettings
from data_prep.listing import around, check_pruning, hidden_images, list_images
from distkeras_grid.errors import StorageError
from distkeras_grid.spark import storage
from distkeras_grid.spark.storage import Storage
from tests.data_prep.locked_out import needs_no_power, run_locked_out

LISTS = """
import json, sys
from data_prep import TilingSettings
from data_prep.listing import hidden_images, list_images
from distkeras_grid.errors import GridError
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

raw, locked, shut = sys.argv[1:]
spark = build_session("listing", master="local[1]")
storage = Storage(spark)
settings = TilingSettings(raw, raw + ".tiles")
listed = list_images(spark, storage, settings)
hidden = hidden_images(spark, storage, raw, settings.file_glob, listed)
folders = storage.find_directories(raw, "*.zarr", ".zarr")
assert storage.first_file(locked) is None
def refused(folder):
    try:
        return list(list_images(spark, storage, TilingSettings(folder, raw + ".tiles")))
    except GridError as error:
        return f"{type(error).__name__}: {error}"

zarr = TilingSettings(raw, raw + ".tiles", glob="*.{zarr,png}")
both = list(list_images(spark, storage, zarr))
shown = [list(listed), list(hidden), folders, refused(locked), refused(shut), both]
print(json.dumps(shown))
spark.stop()
"""


def test_what_lies_around_closed_folders():
    folders = {
        "file:/raw": ["a", "b", "c", "_d", ".e", "lost+found"],
        "file:/raw/b": ["f", "g"],
        "file:/raw/b/g": ["h.png", "i"],
        "file:/": ["raw", "proc"],
    }
    names_in = folders.__getitem__
    closed = ["file:/raw/lost+found", "file:/raw/b/g/i"]
    assert around("file:/raw", closed, names_in) == [
        "file:/raw/a",
        "file:/raw/b/f",
        "file:/raw/b/g/h.png",
        "file:/raw/c",
    ]
    assert around("file:/", ["file:/proc"], names_in) == ["file:/raw"]


@pytest.mark.parametrize(
    ("name", "message", "closed"),
    [
        ("AccessControlException", "Permission denied: user=ada, access=READ_EXECUTE", True),
        ("AccessDeniedException", "/raw/lost+found: Permission denied", True),
        ("IOException", "Invalid directory or I/O error occurred for dir: /raw/a", True),
        # Nothing is known of the whole tree then.
        ("ConnectException", "Connection refused", False),
        ("FileNotFoundException", "File /raw/a does not exist", False),
    ],
)
def test_what_closes_a_folder(name, message, closed):
    assert storage._is_closed([(name, message)]) is closed


@pytest.mark.spark
def test_a_folder_may_have_the_characters_of_a_pattern(spark, tmp_path):
    """Spark looked for other folders, and found none."""
    raw = tmp_path / "plate [3] {a}*?"
    (raw / "a.zarr").mkdir(parents=True)
    for name in ("0.png", "a.zarr/0", "_1.png"):
        (raw / name).write_bytes(b"x")
    storage = Storage(spark)
    settings = TilingSettings(str(raw), str(tmp_path / "tiles"), glob="*.{zarr,png}")
    assert list(list_images(spark, storage, settings)) == ["0.png", "a.zarr"]
    hidden = hidden_images(spark, storage, str(raw), settings.file_glob, ["0.png", "a.zarr"])
    assert list(hidden) == ["_1.png"]


def test_an_image_that_is_a_closed_folder_is_not_pruned():
    check_pruning(["a/x.zarr"], {"a/x.zar": "", "a/x": ""})
    with pytest.raises(StorageError, match=r"a/x\.zarr"):
        check_pruning(["a/x.zarr"], {"a/x.zarr": ""})


def test_images_in_a_closed_folder_are_not_pruned():
    check_pruning(["a/b/0.png", "c.png"], {"a/bc": "", "a/b/0": ""})
    with pytest.raises(StorageError, match=r"a/b .*a/b/0\.png"):
        check_pruning(["c.png", "a/b/0.png"], {"a/b": ""})


@pytest.mark.slow
@pytest.mark.spark
@needs_no_power
def test_a_folder_that_may_not_be_opened_is_told_and_the_others_are_listed(tmp_path):
    """It ended every night: lost+found at the root of a disk, for instance."""
    raw = tmp_path / "raw"
    for name in ("0 [x].png", "notes.txt", "_1.png", "a/2.png", "b/c/3.png", "b/locked/4.png"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).write_bytes(b"x")
    for folder in ("a/x.zarr", "a/y.zarr", "a/z.zarr/0", "lost+found"):
        (raw / folder).mkdir(parents=True)
    shut = tmp_path / "shut"
    (shut / "all").mkdir(parents=True)
    names = ("lost+found", "b/locked", "a/y.zarr", "a/z.zarr/0")
    locked = [*(raw / name for name in names), shut / "all"]
    given = [str(raw), str(raw / "lost+found"), str(shut)]
    done = run_locked_out(locked, ["-c", LISTS, *given], tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    listed, hidden, folders, refused, empty, both = json.loads(done.stdout.splitlines()[-1])
    assert listed == ["0 [x].png", "a/2.png", "b/c/3.png"]
    # An image that is a folder is told as such.
    assert sorted(hidden) == ["_1.png", "a/y.zarr", "a/z.zarr", "b/locked", "lost+found"]
    assert folders == [f"file:{raw}/a/{name}.zarr" for name in "xyz"]
    # An image that is a folder is as closed as the folder, or as one in it.
    assert both == ["0 [x].png", "a/2.png", "a/x.zarr", "b/c/3.png"]
    assert refused.startswith("StorageError: ")
    assert empty.startswith("EmptyDataError: ")
    assert " all: this folder cannot be opened" in empty
