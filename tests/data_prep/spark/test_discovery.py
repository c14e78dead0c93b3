"""Which images are in a folder, where a part of it cannot be opened."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import pytest

from data_prep import TilingSettings
from data_prep.spark.broken_links import Walk
from data_prep.spark.discovery import (
    check_absence,
    check_pruning,
    list_except,
    list_images,
    unseen_images,
    walked,
)
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.storage_errors import is_closed
from tests.data_prep.locked_out import needs_no_power, run_locked_out

LISTS = """
import json, sys
from data_prep import TilingSettings
from data_prep.spark.discovery import list_images, unseen_images, walked
from distkeras_grid.errors import GridError
from distkeras_grid.spark.hidden_files import find_directories
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

raw, locked, shut = sys.argv[1:]
spark = build_session("listing", master="local[1]")
storage = Storage(spark)
settings = TilingSettings(raw, raw + ".tiles")
listed = list_images(spark, storage, settings)
hidden = unseen_images(
    spark, storage, raw, settings.file_glob, listed, walked(storage, raw)
)
folders = find_directories(storage, raw, "*.zarr", ".zarr")
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
def test_a_folder_may_have_the_characters_of_a_pattern(spark, tmp_path):
    """Spark looked for other folders, and found none."""
    raw = tmp_path / "plate [3] {a}*?"
    (raw / "a.zarr").mkdir(parents=True)
    for name in ("0.png", "a.zarr/0", "_1.png"):
        (raw / name).write_bytes(b"x")
    storage = Storage(spark)
    settings = TilingSettings(str(raw), str(tmp_path / "tiles"), glob="*.{zarr,png}")
    assert list(list_images(spark, storage, settings)) == ["0.png", "a.zarr"]
    listed, here = ["0.png", "a.zarr"], walked(storage, str(raw))
    hidden = unseen_images(spark, storage, str(raw), settings.file_glob, listed, here)
    assert list(hidden) == ["_1.png"]


@pytest.mark.spark
def test_each_real_folder_is_listed_once(spark, tmp_path):
    """Spark follows a loop of links forty times, and two of them without end."""
    (tmp_path / "b" / "Körnig").mkdir(parents=True)
    for name in ("0 [1].png", "Körnig/µ 🧫.png", "Körnig/_1.png"):
        (tmp_path / "b" / name).write_bytes(b"x")
    for link, target in {"a": "b", "b/up": "..", "b/Körnig/up": "../.."}.items():
        (tmp_path / link).symlink_to(target)
    storage = Storage(spark)
    settings = TilingSettings(str(tmp_path), str(tmp_path / "tiles"), glob="*.{png,zarr}")
    listed = list_images(spark, storage, settings)
    assert list(listed) == ["b/0 [1].png", "b/Körnig/µ 🧫.png"]
    where = str(tmp_path), settings.file_glob
    hidden = unseen_images(spark, storage, *where, listed, walked(storage, str(tmp_path)))
    assert list(hidden) == ["b/Körnig/_1.png"]


@pytest.mark.spark
def test_nothing_is_pruned_on_the_word_of_one_listing(spark, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(b"x")
    where = Storage(spark), str(tmp_path), "*.png"
    check_absence(*where, ["a/1.png", "b/0.png"], Walk())
    with pytest.raises(StorageError, match=r"a/0\.png is in .* not dropped"):
        check_absence(*where, ["b/0.png", "a/0.png"], Walk())
    # Not wanted any more, or listed by another path now.
    check_absence(*where[:2], "*.tif", ["a/0.png"], Walk())
    check_absence(*where, ["a/0.png"], Walk(again={"a": "b"}))


JAVA_OF_THE_USER = """
import sys
from pyspark.sql import SparkSession
from data_prep import TilingSettings
from data_prep.spark.discovery import list_images
from distkeras_grid.errors import GridError
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.storage import Storage

raw, build = sys.argv[1:]
if build == "ours":
    spark = build_session("names", master="local[1]")
else:
    spark = SparkSession.builder.master("local[1]").getOrCreate()

def told(call, *arguments):
    try:
        return len(call(*arguments))
    except GridError as error:
        return type(error).__name__ + ": " + str(error)

storage = Storage(spark)
for folder in (raw, raw + "/Körnig"):
    print(ascii(told(list_images, spark, storage, TilingSettings(folder, raw + ".tiles"))))
print(ascii(told(read_parquet, spark, raw)))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.parametrize("build", ["ours", pytest.param("the user's", marks=pytest.mark.full)])
def test_another_locale_loses_no_file(tmp_path, build):
    """Half of the images were missing, and --prune deleted their tiles."""
    raw = tmp_path / "raw"
    (raw / "Körnig").mkdir(parents=True)
    for name in ("0.png", "µ.png", "Körnig/1.png"):
        (raw / name).write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-c", JAVA_OF_THE_USER, str(raw), build],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    all_, below, rows = map(ast.literal_eval, done.stdout.splitlines())
    if build == "ours":
        assert (all_, below) == (3, 1)
        assert "Could not read footer" in rows
    else:
        assert all_.startswith("StorageError: Spark lists 1 files")
        assert "2 others" in all_
        for refused in (below, rows):
            assert refused.startswith("StorageError: Spark's Java cannot read the name of ")


def test_an_image_that_is_a_closed_folder_is_not_pruned():
    check_pruning(["a/x.zarr"], {"a/x.zar": "", "a/x": ""})
    with pytest.raises(StorageError, match=r"a/x\.zarr"):
        check_pruning(["a/x.zarr"], {"a/x.zarr": ""})


def test_images_in_a_closed_folder_are_not_pruned():
    check_pruning(["a/b/0.png", "c.png"], {"a/bc": "", "a/b/0": ""})
    with pytest.raises(StorageError, match=r"a/b .*a/b/0\.png"):
        check_pruning(["c.png", "a/b/0.png"], {"a/b": ""})


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
