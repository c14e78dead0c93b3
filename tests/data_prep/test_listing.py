"""Which images are in a folder, where a part of it cannot be opened."""

from __future__ import annotations

import json

import pytest

from data_prep.listing import around, check_pruning
from distkeras_grid.errors import StorageError
from distkeras_grid.spark import storage
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

print(json.dumps([list(listed), list(hidden), folders, refused(locked), refused(shut)]))
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
    (raw / "a" / "x.zarr").mkdir()
    (raw / "lost+found").mkdir()
    shut = tmp_path / "shut"
    (shut / "all").mkdir(parents=True)
    locked = [raw / "lost+found", raw / "b" / "locked", shut / "all"]
    given = [str(raw), str(raw / "lost+found"), str(shut)]
    done = run_locked_out(locked, ["-c", LISTS, *given], tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    listed, hidden, folders, refused, empty = json.loads(done.stdout.splitlines()[-1])
    assert listed == ["0 [x].png", "a/2.png", "b/c/3.png"]
    assert sorted(hidden) == ["_1.png", "b/locked", "lost+found"]
    assert folders == [f"file:{raw}/a/x.zarr"]
    assert refused.startswith("StorageError: ")
    assert empty.startswith("EmptyDataError: ")
    assert " all: this folder cannot be opened" in empty
