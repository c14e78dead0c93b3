"""Which images are in a folder: those that Spark lists, and those whose names it hides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from data_prep.dataset.diff import FileInfo, precheck_files
from data_prep.dataset.plan import pluralize
from data_prep.images.file_access import SPARK
from data_prep.images.multifile_images import ENDING, refuse_folders
from data_prep.spark.broken_links import Walk, find_broken_links, folders_of, walk
from data_prep.spark.driver import executor_errors, relative_to
from data_prep.spark.scan import Reader
from distkeras_grid.errors import EmptyDataError, GridError, StorageError
from distkeras_grid.spark.hidden_files import find_directories, find_hidden
from distkeras_grid.spark.internals import input_files
from distkeras_grid.spark.storage import Storage, escaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# At most this many hidden names are told in one error.
SHOWN = 5
# macOS keeps the attributes of NAME in a file of this name beside it, on disks of other systems.
ATTRIBUTES = "._"


class InputSettings(Protocol):
    """Which files of a folder are images."""

    @property
    def input(self) -> str: ...  # noqa: D102

    @property
    def file_glob(self) -> str: ...  # noqa: D102


def walked(storage: Storage, root: str, *, each_path: bool = False) -> Walk:
    """Return what this machine sees in a local folder; nothing of other file systems."""
    path = storage.local_path(root)
    return Walk() if path is None else walk(path, each_path=each_path)


def list_images(
    spark: SparkSession, storage: Storage, settings: InputSettings, walk: Walk | None = None
) -> dict[str, FileInfo]:
    """Return all images of the input folder, by path; their content is not read.

    Folders that cannot be opened are passed over; `unseen_images` reports them.
    """
    walk = walk or walked(storage, settings.input)
    files = open_files(spark, storage, settings.input, settings.file_glob, walk)
    with executor_errors(spark, settings.input, "listing"):
        by_uri = _listed(files)
    below = relative_to(storage.resolve(settings.input))
    check_files(storage, settings.file_glob, map(below, by_uri), walk)
    with executor_errors(spark, settings.input, "listing"):
        by_uri |= _list_folders(spark, storage, settings, walk)
    listed = {below(uri): file for uri, file in sorted(by_uri.items())}
    if not by_uri:
        where = settings.input, settings.file_glob
        hidden = unseen_images(spark, storage, *where, (), walk)
        # An update must not remove all images: more likely a disk is not mounted.
        raise EmptyDataError(
            f"No file below {settings.input} matches {settings.file_glob}. Check the folder, and "
            f"--glob or --format.{reported_paths(hidden)}"
        )
    return listed


@dataclass(frozen=True)
class InputFolder:
    """The images of a folder, and how tasks read them."""

    listed: dict[str, FileInfo]  # By path
    hidden: dict[str, str]  # Why others are not listed, see `unseen_images`
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
    walk = walked(storage, settings.input, each_path=each_path)
    listed = list_images(spark, storage, settings, walk)
    where = settings.input, settings.file_glob
    hidden = unseen_images(spark, storage, *where, listed, walk)
    reader = Reader.of(spark, storage.resolve(settings.input))
    if reader.opening.kind == SPARK:
        refuse_folders(file.uri for file in listed.values())
    broken = precheck_files(listed, {}, reader.opening.most_bytes)
    return InputFolder(listed, hidden, broken, reader)


def check_files(storage: Storage, glob: str, listed: Iterable[str], walk: Walk) -> None:
    """Refuse a listing by Spark that lacks files; see `Walk.check`."""
    matches = storage.matcher(glob)
    walk.check(listed, lambda name: matches(name) and not name.endswith(ENDING), storage.encoding)


def open_files(
    spark: SparkSession, storage: Storage, root: str, glob: str, walk: Walk
) -> DataFrame:
    """Return the files below a folder whose names match, except in folders that cannot be opened.

    A folder to which links lead, too, is opened once.
    """
    reader, whole = _binary_files(spark, glob), storage.resolve(root)
    again = walk.again_in(whole)

    def load(left_out: list[str]) -> DataFrame:
        paths = list_except(whole, left_out, storage.list_names) if left_out else [root]
        with executor_errors(spark, root, "listing"):
            return reader.load([escaped(path) for path in paths])

    try:
        return load(again)
    except GridError:
        # Spark ends at the first folder that it may not open, such as lost+found.
        closed = find_hidden(storage, root, glob, (), again).closed
        if not closed:
            raise
    return load([*again, *closed])


def _listed(files: DataFrame) -> dict[str, FileInfo]:
    """Return files by their whole paths."""
    columns = ("path", "length", "unix_millis(modificationTime) as modified")
    rows = files.selectExpr(*columns).toArrow().to_pylist()
    infos = {row["path"]: FileInfo(row["path"], row["length"], row["modified"]) for row in rows}
    # Spark returns no rows for files of 0 bytes.
    return infos | {
        uri: FileInfo(uri, 0, 0) for uri in map(_as_path, input_files(files)) if uri not in infos
    }


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
    spark: SparkSession, storage: Storage, settings: InputSettings, walk: Walk
) -> dict[str, FileInfo]:
    """Return the images that are folders, by their whole paths; not those that are closed."""
    if ENDING[1:] not in settings.file_glob:
        return {}
    where = settings.input, settings.file_glob
    again = walk.again_in(storage.resolve(settings.input))
    folders = find_directories(storage, *where, ENDING, again)
    below, matches = relative_to(storage.resolve(settings.input)), storage.matcher(where[1])
    walk.check(
        map(below, folders), lambda name: matches(name) and name.endswith(ENDING), storage.encoding
    )
    if not folders:
        return {}
    # Spark skips names that begin with a dot, such as metadata of version 2 of the format.
    inside = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        with executor_errors(spark, settings.input, "listing"):
            files = inside.load([escaped(uri) for uri in folders])
    except GridError:
        closed = [f"{uri}/" for uri in find_hidden(storage, *where, (), again).closed]
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


def unseen_images(
    spark: SparkSession,
    storage: Storage,
    root: str,
    glob: str,
    listed: Collection[str],
    walk: Walk,
    tiled: Iterable[str] = (),
) -> dict[str, str]:
    """Return why images below a folder are not listed, by path below it.

    Spark hides their names, their folder cannot be opened, a link leads nowhere, or a name is not
    UTF-8. Folders whose names begin with a dot are passed over. Of others there is one line for
    each.
    """
    whole = storage.resolve(root)
    below = relative_to(whole)
    known = [f"{whole}/{path}" for path in listed]
    again = walk.again_in(whole)
    files, folders, closed = find_hidden(storage, root, glob, known, again)
    reasons = {
        _image_of(below(uri)): "this folder cannot be opened, and what it holds is not known. Let "
        "the user of this Spark session read it, or give a folder without it."
        for uri in closed
    }
    for path in map(below, files):
        folder, _, name = path.rpartition("/")
        twin = f"{folder}/{name.removeprefix(ATTRIBUTES)}".lstrip("/")
        if path not in listed and not (name.startswith(ATTRIBUTES) and twin in listed):
            reasons[path] = (
                f"its name begins with {name[0]!r}, which hides it from Spark. Rename it."
            )
    for uri in folders:
        path = below(uri)
        reason = _hidden_folder(spark, uri, glob)
        if reason is not None and not any(each.startswith(f"{path}/") for each in listed):
            reasons[path] = reason
    return reasons | find_broken_links(walk, storage.matcher(glob), tiled)


def _image_of(folder: str) -> str:
    """Return the image of which a folder is a part, or the folder if it is of none.

    Examples
    --------
    >>> _image_of("a/b.zarr/0"), _image_of("a/b")
    ('a/b.zarr', 'a/b')
    """
    inside = (each for each in folders_of(folder) if each.endswith(ENDING))
    return next(inside, folder)


def reported_paths(reasons: Mapping[str, str]) -> str:
    """Return the first of what `unseen_images` found, to stand after a sentence."""
    return "".join(f" {path}: {reason}" for path, reason in sorted(reasons.items())[:SHOWN])


def check_pruning(tiled: Iterable[str], hidden: Collection[str]) -> None:
    """Refuse to prune images whose folder cannot be opened now: they may still be there.

    An image may be a folder itself.
    """
    for path in tiled:
        if folder := next((each for each in (*folders_of(path), path) if each in hidden), None):
            raise StorageError(
                f"{folder} cannot be opened, and the image {path} has tiles, which --prune would "
                "drop. Let the user of this Spark session read the folder, or run without --prune."
            )


def check_absence(storage: Storage, root: str, glob: str, gone: Iterable[str], walk: Walk) -> None:
    """Refuse to prune images that the file system knows, whatever a listing says."""
    matches = storage.matcher(glob)
    for path in gone:
        again = any(each in walk.again for each in folders_of(path))
        if not again and matches(path.rpartition("/")[2]) and storage.exists(f"{root}/{path}"):
            raise StorageError(
                f"{path} is in {root}, and Spark does not list it, so its tiles are not dropped. "
                "Nothing was written. Run it again, or without --prune."
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
    hides = f"whose name begins with {name[0]!r}, which hides it from Spark. Rename it."
    return f"{pluralize(count, 'image')} in this folder, {hides}" if count else None


def _binary_files(spark: SparkSession, glob: str) -> DataFrameReader:
    """Return Spark's reader of the files below folders whose names match."""
    return (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", glob)
        .option("recursiveFileLookup", "true")
    )
