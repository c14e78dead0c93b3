"""Which images are in a folder.

Names that begin with ``_`` or ``.`` are passed over everywhere, because Spark and Hadoop do so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from data_prep.dataset.diff import FileInfo, precheck_files
from data_prep.images.file_access import SPARK
from data_prep.images.multifile_images import ENDING, refuse_folders
from data_prep.spark.driver import executor_errors, relative_to
from data_prep.spark.local_listing import FolderListing, list_local
from data_prep.spark.scan import Reader
from distkeras_grid.errors import EmptyDataError, StorageError
from distkeras_grid.spark.internals import input_files
from distkeras_grid.spark.storage import Storage, escaped
from distkeras_grid.spark.storage_errors import translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# At most this many reasons are told in one error.
SHOWN = 5


class InputSettings(Protocol):
    """Which files of a folder are images."""

    @property
    def input(self) -> str: ...  # noqa: D102

    @property
    def file_glob(self) -> str: ...  # noqa: D102


def list_images(
    spark: SparkSession,
    storage: Storage,
    settings: InputSettings,
    *,
    each_path: bool = False,
) -> FolderListing:
    """Return all images of the input folder; their content is not read.

    A folder of this machine is listed by `list_local`, which explains `each_path`.
    """
    local = storage.local_path(settings.input)
    if local is None:
        listing = list_by_spark(spark, storage, settings)
    else:
        matches = storage.matcher(settings.file_glob)
        listing = list_local(local, matches, each_path=each_path)
    if not listing.files:
        # An update must not remove all images: more likely a disk is not mounted.
        unseen = sorted(listing.unseen.items())[:SHOWN]
        raise EmptyDataError(
            f"No file below {settings.input} matches {settings.file_glob}. Check the folder, and "
            f"--glob.{''.join(f' {path}: {reason}' for path, reason in unseen)}"
        )
    return listing


def list_by_spark(spark: SparkSession, storage: Storage, settings: InputSettings) -> FolderListing:
    """Return all images of a folder on any path that Hadoop supports."""
    below = relative_to(storage.resolve(settings.input))
    by_uri = _list_files(spark, settings) | _list_folders(spark, storage, settings)
    return FolderListing({below(uri): file for uri, file in sorted(by_uri.items())})


@dataclass(frozen=True)
class InputFolder:
    """The images of a folder, and how tasks read them."""

    listed: dict[str, FileInfo]  # By path
    unseen: dict[str, str]  # Why others are not known, by path
    broken: dict[str, str]  # Why some of those listed cannot be read, by path
    reader: Reader

    @property
    def lengths(self) -> dict[str, int]:
        """Sizes of the files that can be read in bytes, by their whole paths."""
        good = (file for path, file in self.listed.items() if path not in self.broken)
        return {file.uri: file.length for file in good}


def find_images(
    spark: SparkSession, storage: Storage, settings: InputSettings, *, each_path: bool = False
) -> InputFolder:
    """List the images of the input folder, and choose how tasks read them."""
    listing = list_images(spark, storage, settings, each_path=each_path)
    reader = Reader.of(spark, storage.resolve(settings.input))
    if reader.opening.kind == SPARK:
        refuse_folders(file.uri for file in listing.files.values())
    broken = precheck_files(listing.files, {}, reader.opening.most_bytes)
    return InputFolder(listing.files, listing.unseen, broken, reader)


def _list_files(spark: SparkSession, settings: InputSettings) -> dict[str, FileInfo]:
    """Return files by their whole paths."""
    reader = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", settings.file_glob)
        .option("recursiveFileLookup", "true")
    )
    columns = ("path", "length", "unix_millis(modificationTime) as modified")
    with executor_errors(spark, settings.input, "listing"):
        files = reader.load(escaped(settings.input))
        rows = files.selectExpr(*columns).toArrow().to_pylist()
    infos = {row["path"]: FileInfo(row["path"], row["length"], row["modified"]) for row in rows}
    # Spark returns no rows for files of 0 bytes.
    empty = (uri for uri in map(_as_path, input_files(files)) if uri not in infos)
    return infos | {uri: FileInfo(uri, 0, 0) for uri in empty}


def _list_folders(
    spark: SparkSession, storage: Storage, settings: InputSettings
) -> dict[str, FileInfo]:
    """Return the images that are folders, by their whole paths."""
    folders = _find_folders(storage, settings) if ENDING[1:] in settings.file_glob else []
    if not folders:
        return {}
    # Spark skips names that begin with a dot, such as metadata of version 2 of the format.
    inside = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    with executor_errors(spark, settings.input, "listing"):
        rows = (
            inside.load([escaped(uri) for uri in folders])
            .selectExpr(
                f"regexp_extract(path, '^(.*?[.]{ENDING[1:]})/', 1) as path",
                *("length", "unix_millis(modificationTime) as modified"),
            )
            .groupBy("path")
            .agg({"length": "sum", "modified": "max"})
            .select("path", "sum(length)", "max(modified)")
            .collect()
        )
    sizes = {row[0]: row for row in rows}
    empty = (None, 0, 0)
    return {uri: FileInfo(uri, *sizes.get(uri, empty)[1:]) for uri in folders}


def _find_folders(storage: Storage, settings: InputSettings) -> list[str]:
    """Return the whole paths of images that are folders."""
    matches, folders = storage.matcher(settings.file_glob), list[str]()
    with translated("list", settings.input):
        file_system, root = storage.java_path(settings.input)
        waiting = [root]
        while waiting:
            here = waiting.pop()
            name = str(here.getName())
            if not name.endswith(ENDING):
                entries = [each for each in file_system.listStatus(here) if each.isDirectory()]
                paths = [each.getPath() for each in entries]
                waiting += [each for each in paths if str(each.getName())[0] not in "_."]
            elif matches(name):
                folders.append(str(here.toString()))
    return folders


def _as_path(uri: str) -> str:
    """Return a path as Hadoop writes it, from a URI in which characters are escaped.

    Examples
    --------
    >>> _as_path("file:///raw%20images/0.png"), _as_path("hdfs://node:8020/raw/0.png")
    ('file:/raw images/0.png', 'hdfs://node:8020/raw/0.png')
    """
    path = unquote(uri)
    return "file:/" + path.removeprefix("file:").lstrip("/") if path[:5] == "file:" else path


def check_pruning(
    storage: Storage, settings: InputSettings, listing: FolderListing, tiled: Iterable[str]
) -> None:
    """Refuse to prune images that are still there, whatever a listing by Spark says."""
    if storage.local_path(settings.input) is not None:
        return
    matches = storage.matcher(settings.file_glob)
    for path in tiled:
        is_wanted = path not in listing.files and matches(path.rpartition("/")[2])
        if is_wanted and storage.exists(f"{settings.input}/{path}"):
            raise StorageError(
                f"{path} is in {settings.input}, and Spark does not list it, so its tiles are not "
                "dropped. Nothing was written. Run it again, or without --prune."
            )
