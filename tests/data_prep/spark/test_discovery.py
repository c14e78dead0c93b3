"""Which images are in a folder, where a part of it cannot be opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from data_prep import TilingSettings
from data_prep.dataset.diff import FileInfo
from data_prep.spark.discovery import check_pruning, list_by_spark, list_except, list_images
from data_prep.spark.local_listing import FolderListing
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.storage_errors import is_closed
from tests.data_prep.locked_out import needs_no_power, run_locked_out

LISTS = """
import json, sys
from data_prep import TilingSettings
from data_prep.spark.discovery import list_by_spark, list_images
from distkeras_grid.errors import GridError
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

raw, locked, shut = sys.argv[1:]
spark = build_session("listing", master="local[1]")
storage = Storage(spark)

def listed(call, folder, glob=None):
    try:
        listing = call(spark, storage, TilingSettings(folder, raw + ".tiles", glob=glob))
    except GridError as error:
        return f"{type(error).__name__}: {error}"
    return [list(listing.files), sorted(listing.unseen)]

assert storage.first_file(locked) is None
both = "*.{zarr,png}"
shown = [listed(call, raw, glob) for glob in (None, both) for call in (list_by_spark, list_images)]
print(json.dumps([*shown, listed(list_images, locked), listed(list_images, shut)]))
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
    assert list_except("file:/raw", closed, names_in) == [
        "file:/raw/a",
        "file:/raw/b/f",
        "file:/raw/b/g/h.png",
        "file:/raw/c",
    ]
    assert list_except("file:/", ["file:/proc"], names_in) == ["file:/raw"]


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
    assert is_closed([(name, message)]) is closed


@pytest.mark.spark
def test_spark_and_the_system_list_the_same(spark, tmp_path):
    """Also in a folder whose name looks like a pattern."""
    raw = tmp_path / "plate [3] {a}*?"
    for name in ("0.png", "empty.png", "a.zarr/0", "_1.png", "b/µ 12:30 🧫.png", "_b/2.png"):
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / name).write_bytes(b"x" * ("empty" not in name))
    storage = Storage(spark)
    for folder in (raw, raw / "0.png"):
        settings = TilingSettings(str(folder), str(tmp_path / "tiles"), glob="*.{zarr,png}")
        ours = list_images(spark, storage, settings)
        theirs = list_by_spark(spark, storage, settings)
        assert ours.unseen == theirs.unseen
        # Spark tells no time of files of 0 bytes.
        timeless = {
            name: replace(f, modified=f.length and f.modified) for name, f in ours.files.items()
        }
        assert timeless == theirs.files
    assert list(list_images(spark, storage, replace(settings, input=str(raw))).files) == [
        *("0.png", "a.zarr", "b/µ 12:30 🧫.png", "empty.png")
    ]


JAVA_OF_THE_USER = """
import sys
from pyspark.sql import SparkSession
from data_prep import TilingSettings
from data_prep.spark.discovery import list_images
from distkeras_grid.errors import GridError
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.storage import Storage

(raw,) = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").getOrCreate()
settings = TilingSettings(raw, raw + ".tiles")
print(len(list_images(spark, Storage(spark), settings).files))
try:
    read_parquet(spark, raw)
except GridError as error:
    print(error)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.full
def test_another_locale_of_java_loses_no_image(tmp_path):
    """Half of the images were missing, and --prune deleted their tiles."""
    raw = tmp_path / "raw"
    (raw / "Körnig").mkdir(parents=True)
    for name in ("0.png", "µ.png", "Körnig/1.png"):
        (raw / name).write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", JAVA_OF_THE_USER, str(raw)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    count, refused = done.stdout.splitlines()
    assert count == "3"
    assert refused.startswith("Spark's Java cannot read the name of ")


class Known:
    """A file system that knows these files."""

    def __init__(self, scheme, *files):
        self.scheme, self.files = scheme, files

    def local_path(self, uri):
        return uri if self.scheme == "file" else None

    def matcher(self, glob):
        return lambda name: fnmatch(name, glob)

    def exists(self, uri):
        return uri in self.files


@pytest.mark.parametrize(
    ("unseen", "links", "known", "refused"),
    [
        # A folder that cannot be opened, which may be the image.
        ({"a/b": ""}, set(), [], r"a/b cannot be opened.* a/b/0\.png"),
        ({"a/b/0.png": ""}, set(), [], r"a/b/0\.png cannot be opened"),
        ({"a/bc": "", "a/b/0": "", "b": ""}, set(), [], None),
        # What links have led to is kept anyway.
        ({"a/b": ""}, {"a/b"}, [], None),
        # The word of one listing by Spark is not enough.
        ({}, set(), ["raw/a/b/0.png"], r"a/b/0\.png is in raw"),
        ({}, set(), ["raw/a/b/1.png", "raw/0.tif"], None),
    ],
)
def test_no_image_is_pruned_that_may_still_be_there(unseen, links, known, refused):
    settings = TilingSettings("raw", "tiles", glob="*.png")
    listing = FolderListing({"c.png": FileInfo("raw/c.png", 1, 1)}, unseen, links=frozenset(links))
    tiled = ["c.png", "a/b/0.png", "0.tif"]
    stop = pytest.raises(StorageError, match=refused) if refused else nullcontext()
    with stop:
        check_pruning(Known("hdfs", *known, "raw/c.png"), settings, listing, tiled)
    if known:
        check_pruning(Known("file", *known), settings, listing, tiled)


@pytest.mark.full
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
    *shown, refused, empty = json.loads(done.stdout.splitlines()[-1])
    hidden = ["_1.png", "a/y.zarr", "a/z.zarr", "b/locked", "lost+found"]
    images = ["0 [x].png", "a/2.png", "b/c/3.png"]
    by_spark, by_system, both_by_spark, both_by_system = shown
    assert by_spark == [images, hidden]
    # An image that is a folder is no folder to open, if it is not wanted.
    assert by_system == [images, ["_1.png", "b/locked", "lost+found"]]
    # An image that is a folder is as closed as the folder, or as one in it.
    assert both_by_spark == both_by_system == [sorted([*images, "a/x.zarr"]), hidden]
    assert refused.startswith("StorageError: ")
    assert empty.startswith("EmptyDataError: ")
    assert " all: this folder cannot be opened" in empty
