"""Which images are in a folder, as the system and as Spark list it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from data_prep import TilingSettings
from data_prep.dataset.diff import FileInfo
from data_prep.spark.discovery import check_pruning, list_by_spark, list_images
from data_prep.spark.local_listing import FolderListing
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.storage import Storage


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
        assert ours.unseen == theirs.unseen == {}
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


def test_no_image_is_pruned_that_is_still_there():
    """The word of one listing by Spark is not enough."""
    settings = TilingSettings("raw", "tiles", glob="*.png")
    listing = FolderListing({"c.png": FileInfo("raw/c.png", 1, 1)})
    tiled = ["c.png", "a/b/0.png", "0.tif"]
    with pytest.raises(StorageError, match=r"a/b/0\.png is in raw"):
        check_pruning(Known("hdfs", "raw/a/b/0.png"), settings, listing, tiled)
    for known in (Known("hdfs", "raw/c.png", "raw/0.tif"), Known("file", "raw/a/b/0.png")):
        check_pruning(known, settings, listing, tiled)
