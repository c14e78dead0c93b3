"""Which images are in a folder: those that Spark lists, and those whose names it hides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from data_prep.changes import Listed
from data_prep.folders import ENDING
from data_prep.job import escaped, executor_errors, relative_to
from data_prep.links import folders_of
from data_prep.plan import counted
from data_prep.settings import TilingSettings
from distkeras_grid.errors import EmptyDataError, GridError, StorageError
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# At most this many hidden names are told in one error.
SHOWN = 5
# macOS keeps the attributes of NAME in a file of this name beside it, on disks of other systems.
ATTRIBUTES = "._"


def list_images(
    spark: SparkSession, storage: Storage, settings: TilingSettings
) -> dict[str, Listed]:
    """Return all images of the input folder, by path; their content is not read.

    Folders that cannot be opened are passed over; `hidden_images` reports them.

    Raises
    ------
    EmptyDataError
        If there is none.
    """
    files = open_files(spark, storage, settings.input, settings.file_glob)
    with executor_errors(spark, settings.input, "listing"):
        found = _listed(spark, files)
    with executor_errors(spark, settings.input):
        found |= _list_folders(spark, storage, settings)
    if not found:
        hidden = hidden_images(spark, storage, settings.input, settings.file_glob, ())
        # An update must not remove all images: more likely a disk is not mounted.
        raise EmptyDataError(
            f"No file below {settings.input} matches {settings.file_glob}. Check the folder, or "
            f"give --glob.{told_of(hidden)}"
        )
    below = relative_to(storage.resolve(settings.input))
    return {below(uri): file for uri, file in sorted(found.items())}


def open_files(spark: SparkSession, storage: Storage, root: str, glob: str) -> DataFrame:
    """Return the files below a folder whose names match, except in folders that cannot be opened.

    Parameters
    ----------
    spark : SparkSession
    storage : Storage
    root : str
        The folder.
    glob : str
        Pattern of the names of files.

    Returns
    -------
    DataFrame
        Spark's ``path, modificationTime, length, content``; no content is read yet.

    Raises
    ------
    GridError
        If the folder cannot be listed, for other reasons than folders in it that are closed.
    """
    reader = _binary_files(spark, glob)
    try:
        with executor_errors(spark, root, "listing"):
            return reader.load(escaped(root))
    except GridError:
        # Spark ends at the first folder that it may not open, such as lost+found.
        closed = storage.find_hidden(root, glob, ()).closed
        if not closed:
            raise
    others = around(storage.resolve(root), closed, storage.list_names)
    with executor_errors(spark, root, "listing"):
        return reader.load([escaped(uri) for uri in others])


def _listed(spark: SparkSession, files: DataFrame) -> dict[str, Listed]:
    """Return files by their whole paths."""
    columns = ("path", "length", "unix_millis(modificationTime) as modified")
    rows = files.selectExpr(*columns).toArrow().to_pylist()
    found = {row["path"]: Listed(row["path"], row["length"], row["modified"]) for row in rows}
    # Spark returns no rows for files of 0 bytes.
    return found | {uri: Listed(uri, 0, 0) for uri in input_files(spark, files) if uri not in found}


def around(root: str, closed: Iterable[str], names_in: Callable[[str], Iterable[str]]) -> list[str]:
    """Return paths that together cover a folder without some folders below it, sorted.

    Parameters
    ----------
    root : str
        The folder.
    closed : iterable of str
        Paths of the folders below it that are left out.
    names_in : callable
        Returns the names in a folder. Those that Spark hides are left out.

    Examples
    --------
    >>> folders = {"/raw": ["a", "b"], "/raw/b": ["c", "d", "_e"]}
    >>> around("/raw", ["/raw/b/d"], folders.__getitem__)
    ['/raw/a', '/raw/b/c']
    """
    left_out = set(closed)
    above = {each[:at] for each in left_out for at, letter in enumerate(each) if letter == "/"}
    found, waiting = [], [root]
    while waiting:
        here = waiting.pop()
        for name in names_in(here):
            path = f"{here.rstrip('/')}/{name}"
            if path in above:
                waiting.append(path)
            elif path not in left_out and name[0] not in "_.":
                found.append(path)
    return sorted(found)


def _list_folders(
    spark: SparkSession, storage: Storage, settings: TilingSettings
) -> dict[str, Listed]:
    """Return the images that are folders, by their whole paths; not those that are closed."""
    if ENDING[1:] not in settings.file_glob:
        return {}
    where = settings.input, settings.file_glob
    folders = storage.find_directories(*where, ENDING)
    if not folders:
        return {}
    # Spark skips names that begin with a dot, such as metadata of version 2 of the format.
    inside = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        with executor_errors(spark, settings.input, "listing"):
            files = inside.load([escaped(uri) for uri in folders])
    except GridError:
        closed = [f"{uri}/" for uri in storage.find_hidden(*where, ()).closed]
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
    return {uri: Listed(uri, *sizes.get(uri, empty)[1:]) for uri in folders}


def input_files(spark: SparkSession, files: DataFrame) -> list[str]:
    """Return the paths of all files of a DataFrame, with one call of the JVM."""
    jvm: Any = spark.sparkContext._jvm
    joined = str(jvm.org.apache.hadoop.util.StringUtils.join("\n", files._jdf.inputFiles()))
    return [_as_path(uri) for uri in joined.split("\n")] if joined else []


def _as_path(uri: str) -> str:
    """Return a path as Hadoop writes it, from a URI in which characters are escaped.

    Examples
    --------
    >>> _as_path("file:///raw%20images/0.png"), _as_path("hdfs://node:8020/raw/0.png")
    ('file:/raw images/0.png', 'hdfs://node:8020/raw/0.png')
    """
    path = unquote(uri)
    return "file:/" + path.removeprefix("file:").lstrip("/") if path[:5] == "file:" else path


def hidden_images(
    spark: SparkSession, storage: Storage, root: str, glob: str, listed: Collection[str]
) -> dict[str, str]:
    """Return why images below a folder are not listed, by path below it.

    Spark hides their names, or their folder cannot be opened. Folders whose names begin with a dot
    are passed over. Of others there is one line for each.

    Parameters
    ----------
    spark : SparkSession
    storage : Storage
    root : str
        The folder.
    glob : str
        Pattern of the names of images.
    listed : collection of str
        Paths of the listed images below the folder.
    """
    whole = storage.resolve(root)
    below = relative_to(whole)
    known = [f"{whole}/{path}" for path in listed]
    files, folders, closed = storage.find_hidden(root, glob, known)
    found = {
        _image_of(below(uri)): "this folder cannot be opened, and what it holds is not known. Let "
        "the user of this Spark session read it, or give a folder without it."
        for uri in closed
    }
    for path in map(below, files):
        folder, _, name = path.rpartition("/")
        twin = f"{folder}/{name.removeprefix(ATTRIBUTES)}".lstrip("/")
        if path not in listed and not (name.startswith(ATTRIBUTES) and twin in listed):
            found[path] = f"its name begins with {name[0]!r}, which hides it from Spark. Rename it."
    for uri in folders:
        path = below(uri)
        reason = _hidden_folder(spark, uri, glob)
        if reason is not None and not any(each.startswith(f"{path}/") for each in listed):
            found[path] = reason
    return found


def _image_of(folder: str) -> str:
    """Return the image of which a folder is a part, or the folder if it is of none.

    Examples
    --------
    >>> _image_of("a/b.zarr/0"), _image_of("a/b")
    ('a/b.zarr', 'a/b')
    """
    inside = (each for each in folders_of(folder) if each.endswith(ENDING))
    return next(inside, folder)


def told_of(reasons: Mapping[str, str]) -> str:
    """Return the first of what `hidden_images` found, to stand after a sentence."""
    return "".join(f" {path}: {reason}" for path, reason in sorted(reasons.items())[:SHOWN])


def check_pruning(tiled: Iterable[str], hidden: Collection[str]) -> None:
    """Refuse to prune images whose folder cannot be opened now: they may still be there.

    An image may be a folder itself.

    Parameters
    ----------
    tiled : iterable of str
        Paths of images that have tiles and are not listed.
    hidden : collection of str
        From `hidden_images`.

    Raises
    ------
    StorageError
        Names the first one.
    """
    for path in tiled:
        if folder := next((each for each in (*folders_of(path), path) if each in hidden), None):
            raise StorageError(
                f"{folder} cannot be opened, and the image {path} has tiles, which --prune would "
                "drop. Let the user of this Spark session read the folder, or run without --prune."
            )


def _hidden_folder(spark: SparkSession, uri: str, glob: str) -> str | None:
    """Return why images in a hidden folder are not listed; None if it has none."""
    name = uri.rpartition("/")[2]
    if name[0] == ".":
        # Programs keep thumbnails and deleted files there, and nobody sees them.
        return None
    try:
        with executor_errors(spark, uri, "looking into"):
            count = len(input_files(spark, _binary_files(spark, glob).load(escaped(uri))))
    except GridError as error:
        return f"it cannot be looked into: {error}"
    hides = f"whose name begins with {name[0]!r}, which hides it from Spark. Rename it."
    return f"{counted(count, 'image')} in this folder, {hides}" if count else None


def _binary_files(spark: SparkSession, glob: str) -> DataFrameReader:
    """Return Spark's reader of the files below folders whose names match."""
    return (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", glob)
        .option("recursiveFileLookup", "true")
    )
