"""Which images are in a folder: those that Spark lists, and those whose names it hides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from data_prep.dataset.diff import FileInfo, folders_of, precheck_files
from data_prep.dataset.plan import pluralize
from data_prep.images.file_access import SPARK
from data_prep.images.multifile_images import ENDING, refuse_folders
from data_prep.spark.driver import executor_errors, relative_to
from data_prep.spark.local_listing import (
    CLOSED,
    FolderListing,
    hidden_name,
    is_attributes_of,
    list_local,
)
from data_prep.spark.scan import Reader
from distkeras_grid.errors import EmptyDataError, GridError, StorageError
from distkeras_grid.spark.hidden_files import find_directories, find_hidden
from distkeras_grid.spark.internals import input_files
from distkeras_grid.spark.storage import Storage, escaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# At most this many hidden names are told in one error.
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
    tiled: Iterable[str] = (),
    each_path: bool = False,
) -> FolderListing:
    """Return all images of the input folder; their content is not read.

    A folder of this machine is listed by `list_local`, which explains `tiled` and `each_path`.
    """
    local = storage.local_path(settings.input)
    if local is None:
        listing = list_by_spark(spark, storage, settings)
    else:
        matches = storage.matcher(settings.file_glob)
        listing = list_local(local, matches, tiled=tiled, each_path=each_path)
    if not listing.files:
        # An update must not remove all images: more likely a disk is not mounted.
        unseen = sorted(listing.unseen.items())[:SHOWN]
        raise EmptyDataError(
            f"No file below {settings.input} matches {settings.file_glob}. Check the folder, and "
            f"--glob or --format.{''.join(f' {path}: {reason}' for path, reason in unseen)}"
        )
    return listing


def list_by_spark(spark: SparkSession, storage: Storage, settings: InputSettings) -> FolderListing:
    """Return all images of a folder on any path that Hadoop supports."""
    below = relative_to(storage.resolve(settings.input))
    by_uri = _list_files(spark, storage, settings) | _list_folders(spark, storage, settings)
    files = {below(uri): file for uri, file in sorted(by_uri.items())}
    return FolderListing(files, _unseen_images(spark, storage, settings, files))


@dataclass(frozen=True)
class InputFolder:
    """The images of a folder, and how tasks read them."""

    listed: dict[str, FileInfo]  # By path
    hidden: dict[str, str]  # Why others are not listed, by path
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


def _list_files(
    spark: SparkSession, storage: Storage, settings: InputSettings
) -> dict[str, FileInfo]:
    """Return files by their whole paths, but for those in folders that cannot be opened."""
    root, reader = settings.input, _binary_files(spark, settings.file_glob)

    def load(paths: list[str]) -> DataFrame:
        with executor_errors(spark, root, "listing"):
            return reader.load([escaped(path) for path in paths])

    try:
        files = load([root])
    except GridError:
        # Spark ends at the first folder that it may not open, such as lost+found.
        closed = find_hidden(storage, root, settings.file_glob, ()).closed
        if not closed:
            raise
        files = load(list_except(storage.resolve(root), closed, storage.list_names))
    columns = ("path", "length", "unix_millis(modificationTime) as modified")
    with executor_errors(spark, root, "listing"):
        rows = files.selectExpr(*columns).toArrow().to_pylist()
    infos = {row["path"]: FileInfo(row["path"], row["length"], row["modified"]) for row in rows}
    # Spark returns no rows for files of 0 bytes.
    empty = (uri for uri in map(_as_path, input_files(files)) if uri not in infos)
    return infos | {uri: FileInfo(uri, 0, 0) for uri in empty}


def list_except(
    root: str, closed: Iterable[str], names_in: Callable[[str], Iterable[str]]
) -> list[str]:
    """Return paths that together cover a folder without some folders below it, sorted.

    Examples
    --------
    >>> folders = {"/raw": ["a", "b"], "/raw/b": ["c", "d", "_e"]}
    >>> list_except("/raw", ["/raw/b/d"], folders.__getitem__)
    ['/raw/a', '/raw/b/c']
    """
    left_out = set(closed)
    above = {each[:at] for each in left_out for at, letter in enumerate(each) if letter == "/"}
    paths, waiting = [], [root]
    while waiting:
        here = waiting.pop()
        for name in names_in(here):
            path = f"{here.rstrip('/')}/{name}"
            if path in above:
                waiting.append(path)
            elif path not in left_out and name[0] not in "_.":
                paths.append(path)
    return sorted(paths)


def _list_folders(
    spark: SparkSession, storage: Storage, settings: InputSettings
) -> dict[str, FileInfo]:
    """Return the images that are folders, by their whole paths; not those that are closed."""
    if ENDING[1:] not in settings.file_glob:
        return {}
    where = settings.input, settings.file_glob
    folders = find_directories(storage, *where, ENDING)
    if not folders:
        return {}
    # Spark skips names that begin with a dot, such as metadata of version 2 of the format.
    inside = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        with executor_errors(spark, settings.input, "listing"):
            files = inside.load([escaped(uri) for uri in folders])
    except GridError:
        closed = [f"{uri}/" for uri in find_hidden(storage, *where, ()).closed]
        if not closed:
            raise
        folders = [uri for uri in folders if not any(c.startswith(f"{uri}/") for c in closed)]
        files = inside.load([escaped(uri) for uri in folders])
    rows = (
        files.selectExpr(
            f"regexp_extract(path, '^(.*?[.]{ENDING[1:]})/', 1) as path",
            *("length", "unix_millis(modificationTime) as modified"),
        )
        .groupBy("path")
        .agg({"length": "sum", "modified": "max"})
    )
    sizes = {row[0]: row for row in rows.select("path", "sum(length)", "max(modified)").collect()}
    empty = (None, 0, 0)
    return {uri: FileInfo(uri, *sizes.get(uri, empty)[1:]) for uri in folders}


def _as_path(uri: str) -> str:
    """Return a path as Hadoop writes it, from a URI in which characters are escaped.

    Examples
    --------
    >>> _as_path("file:///raw%20images/0.png"), _as_path("hdfs://node:8020/raw/0.png")
    ('file:/raw images/0.png', 'hdfs://node:8020/raw/0.png')
    """
    path = unquote(uri)
    return "file:/" + path.removeprefix("file:").lstrip("/") if path[:5] == "file:" else path


def _unseen_images(
    spark: SparkSession, storage: Storage, settings: InputSettings, listed: Mapping[str, FileInfo]
) -> dict[str, str]:
    """Return why other images are not listed, by path below the folder; one line for a folder."""
    below = relative_to(storage.resolve(settings.input))
    known = [file.uri for file in listed.values()]
    hidden = find_hidden(storage, settings.input, settings.file_glob, known)
    reasons = {_image_of(below(uri)): CLOSED for uri in hidden.closed}
    for path in map(below, hidden.files):
        if path not in listed and not is_attributes_of(path, listed):
            reasons[path] = f"its {hidden_name(path.rpartition('/')[2])}"
    for uri in hidden.directories:
        path, reason = below(uri), _hidden_folder(spark, uri, settings.file_glob)
        if reason is not None and not any(each.startswith(f"{path}/") for each in listed):
            reasons[path] = reason
    return reasons


def _image_of(folder: str) -> str:
    """Return the image of which a folder is a part, or the folder if it is of none.

    Examples
    --------
    >>> _image_of("a/b.zarr/0"), _image_of("a/b")
    ('a/b.zarr', 'a/b')
    """
    inside = (each for each in folders_of(folder) if each.endswith(ENDING))
    return next(inside, folder)


def check_pruning(
    storage: Storage, settings: InputSettings, listing: FolderListing, tiled: Iterable[str]
) -> None:
    """Refuse to prune images that may still be there; what links have led to is kept anyway."""
    closed, matches = listing.unseen.keys() - listing.links, storage.matcher(settings.file_glob)
    is_local = storage.local_path(settings.input) is not None
    for path in tiled:
        if path in listing.files:
            continue
        # An image may be a folder itself.
        if folder := next((each for each in (*folders_of(path), path) if each in closed), None):
            raise StorageError(
                f"{folder} cannot be opened, and the image {path} has tiles, which --prune would "
                "drop. Let the user of this Spark session read the folder, or run without --prune."
            )
        # Whatever a listing by Spark says.
        is_wanted = not is_local and matches(path.rpartition("/")[2])
        if is_wanted and storage.exists(f"{settings.input}/{path}"):
            raise StorageError(
                f"{path} is in {settings.input}, and Spark does not list it, so its tiles are not "
                "dropped. Nothing was written. Run it again, or without --prune."
            )


def _hidden_folder(spark: SparkSession, uri: str, glob: str) -> str | None:
    """Return why images in a hidden folder are not listed; None if it has none."""
    name = uri.rpartition("/")[2]
    if name[0] == ".":
        # Programs keep thumbnails and deleted files there, and nobody sees them.
        return None
    try:
        with executor_errors(spark, uri, "looking into"):
            count = len(input_files(_binary_files(spark, glob).load(escaped(uri))))
    except GridError as error:
        return f"it cannot be looked into: {error}"
    images = pluralize(count, "image")
    return f"{images} in this folder, whose {hidden_name(name)}" if count else None


def _binary_files(spark: SparkSession, glob: str) -> DataFrameReader:
    """Return Spark's reader of the files below folders whose names match."""
    return (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", glob)
        .option("recursiveFileLookup", "true")
    )
