"""Turns what a user passes as data into a DataFrame."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from distkeras_grid.dataset.manifest import (
    VERSION_KEY,
    LabelOverride,
    Manifest,
    decode_manifest,
)
from distkeras_grid.dataset.versions import choose, file_of, present_manifest, refuse_incomplete
from distkeras_grid.errors import ConfigurationError, PathNotFoundError, SchemaError
from distkeras_grid.spark.internals import is_classic
from distkeras_grid.spark.session import refuse_connect
from distkeras_grid.spark.storage import Storage, escaped
from distkeras_grid.spark.storage_errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLIT_COLUMN, IMAGE_COLUMN, DIGEST_COLUMN = "split", "image", "source_sha256"
SOURCE_COLUMN, GROUP_COLUMN = "source", "group"

# Rows of files, and joins whose other side is broadcast by a hint: Spark computes the same rows in
# the same order each time.
_data_sets: WeakSet[DataFrame] = WeakSet()


def is_data_set(frame: DataFrame) -> bool:
    """Tell whether these are the rows of a data set as they lie in its files."""
    return frame in _data_sets


def mark_data_set(frame: DataFrame) -> DataFrame:
    """Return a DataFrame after noting that it reads a data set's files, and shuffles nothing."""
    _data_sets.add(frame)
    return frame


def as_dataframe(spark: SparkSession, data: Any, what: str = "data") -> DataFrame:
    """Return `data` as a DataFrame: itself, or the Parquet files under a path."""
    from pyspark.sql import DataFrame

    if isinstance(data, str) or hasattr(data, "__fspath__"):
        return read_parquet(spark, str(data))
    module = type(data).__module__
    remote = module.startswith("pyspark.sql.connect") or not is_classic(spark)
    refuse_connect(f"{what} ({type(data).__name__})", remote=remote)
    if isinstance(data, DataFrame):
        return data
    advice = "Pass a DataFrame, or the path of a Parquet data set."
    if type(data).__name__ in ("RDD", "PipelinedRDD"):
        advice = "Turn the RDD into a DataFrame: spark.createDataFrame(rdd, schema)."
    elif module.startswith(("numpy", "pandas", "tensorflow", "keras", "torch", "jax")):
        advice = "Make a DataFrame of it: spark.createDataFrame(...)."
    raise ConfigurationError(f"{what} must be a DataFrame. Received: {type(data)!r}. {advice}")


def read_parquet(spark: SparkSession, path: str, *, version: int | str | None = None) -> DataFrame:
    """Return the Parquet data set under `path`; the columns keep their metadata.

    If other jobs add tiles to the data set meanwhile, the result still has the tiles of a single
    point in time.
    """
    root = path.rstrip("/")
    manifest = _manifest_of(spark, root, version)
    return mark_data_set(_corrected(_read_files(spark, root, manifest), manifest))


def read_manifest(storage: Storage, path: str, version: int | str | None = None) -> bytes | None:
    """Return the manifest of a version of a data set, None where it has no manifest."""
    present = present_manifest(path, storage.list_names, storage.exists, storage.read_bytes)
    if present is None:
        if version is not None:
            raise SchemaError(
                f"{path!r} is not a data set of tiles, and has no version {version!r}."
            )
        return None
    number, content = present
    if version is None:
        return content
    former = choose(decode_manifest(content, f"{path}/{file_of(number)}"), version, path)
    if former is None:
        return content
    try:
        return storage.read_bytes(f"{path}/{file_of(former.number)}")
    except PathNotFoundError as error:
        raise SchemaError(f"Version {version} of {path!r} is not kept any more.") from error


def _manifest_of(spark: SparkSession, path: str, version: int | str | None) -> Manifest:
    content = read_manifest(Storage(spark), path, version)
    return Manifest() if content is None else decode_manifest(content, path)


def _read_files(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    """Return the rows of the files that a manifest lists, or of all where it lists none.

    Beside them there may be folders of former versions, and of runs that have not committed.
    """
    from pyspark.errors import AnalysisException

    storage, read = Storage(spark), path
    if not manifest.shards:
        # Of partitions that Java cannot name, Spark would read nothing.
        storage.check_names(path)
        # It may be a pattern of the user's.
        if storage.exists(path):
            read = escaped(path)
            refuse_incomplete(path, storage.list_names(path))
    with translated("read", path):
        try:
            if manifest.shards:
                folders = [f"{path}/{name}" for name in manifest.shards]
                return spark.read.option("basePath", path).parquet(*map(escaped, folders))
            return spark.read.parquet(read)
        except AnalysisException as error:
            raise PathNotFoundError(
                f"No Parquet data set can be read from {path!r}: {str(error).splitlines()[0]} "
                "Check scheme, host and path."
            ) from error


def _corrected(frame: DataFrame, manifest: Manifest) -> DataFrame:
    """Return rows with what their images have now; files keep what was true when they were cut.

    Only images whose files say something else travel to the executors, and groups, which files
    never have.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    spark = frame.sparkSession
    if manifest.image and IMAGE_COLUMN in frame.columns:
        # Later classes have later numbers, so the files' own metadata may lack some.
        frame = frame.withMetadata(IMAGE_COLUMN, manifest.image_metadata())
    if aside := manifest.set_aside():
        gone = spark.createDataFrame(pa.table({DIGEST_COLUMN: pa.array(aside)}))
        frame = frame.join(F.broadcast(gone), DIGEST_COLUMN, "left_anti").select(*frame.columns)
    return with_groups(apply_label_overrides(frame, manifest.corrections()), manifest.groups())


def apply_label_overrides(frame: DataFrame, corrections: Sequence[LabelOverride]) -> DataFrame:
    """Put into the rows of some images what these have now."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    if not corrections:
        return frame
    names = LabelOverride._fields[1:]
    kinds = {"label": pa.int32()}
    arrays = [
        pa.array([getattr(each, name) for each in corrections], kinds.get(name, pa.string()))
        for name in LabelOverride._fields
    ]
    table = pa.table(arrays, [f"now_{name}" for name in LabelOverride._fields])
    now = F.broadcast(frame.sparkSession.createDataFrame(table))
    joined = frame.join(now, F.col(DIGEST_COLUMN) == F.col("now_sha256"), "left")
    return joined.select(
        *(
            F.coalesce(F.col(f"now_{name}"), F.col(name)).alias(
                name, metadata=frame.schema[name].metadata
            )
            if name in names
            else F.col(name)
            for name in frame.columns
        )
    )


def with_groups(frame: DataFrame, groups: Mapping[str, str]) -> DataFrame:
    """Return rows of tiles with the groups of their images, such as specimens, as a column."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    if not groups or SOURCE_COLUMN not in frame.columns or GROUP_COLUMN in frame.columns:
        return frame
    table = pa.table({"_source": list(groups.keys()), GROUP_COLUMN: list(groups.values())})
    known = F.broadcast(frame.sparkSession.createDataFrame(table))
    return frame.join(known, F.col(SOURCE_COLUMN) == F.col("_source"), "left").drop("_source")


def version_of(frame: DataFrame) -> dict[str, Any] | None:
    """Return number and hash of the data set's version that rows are of, or None."""
    versions = (field.metadata.get(VERSION_KEY) for field in frame.schema.fields)
    return next((version for version in versions if version), None)


def read_tiles(
    path: str,
    *,
    splits: tuple[str, ...] = ("train", "test"),
    fold: str | None = None,
    version: int | str | None = None,
) -> list[DataFrame]:
    """Return the splits of a tile data set, one DataFrame each.

    Parameters
    ----------
    path : str
        Output of the tiling job; any Hadoop path.
    splits : tuple of str
        Names of the splits, default ``("train", "test")``.
    fold : str, optional
        Name of a fold, such as ``"fold_0"``: ``validation`` is what it holds out, ``train`` the
        rest, and ``test`` stays ``test``. The column `split` says so, too.
    version : int or str, optional
        A former version of the data set: its number, or at least the first 12 digits of its hash.
        Default: the present one.

    Returns
    -------
    list of DataFrame
        In the order of `splits`. The metadata of the ``image`` column have its shape and scaling.
        If images have groups, such as specimens, the column ``group`` has them.

    Raises
    ------
    PathNotFoundError
        If the path has no data set.
    SchemaError
        If a split, a fold or a version does not exist, or the version is not kept any more.
    DataError
        If images came after the folds were made, or the folds cannot be read.
    SplitLeakError
        If a fold tears apart images that belong together by now, such as after a group was
        corrected.
    """
    from distkeras_grid.spark.session import active_session

    spark, root = active_session(), path.rstrip("/")
    manifest = _manifest_of(spark, root, version)
    frame = _read_files(spark, root, manifest)
    if SPLIT_COLUMN not in frame.columns:
        raise SchemaError(
            f"{path!r} has no column {SPLIT_COLUMN!r}, so it is not a data set of tiles. Received: "
            f"columns {', '.join(frame.columns)}. Read it with spark.read.parquet(path)."
        )
    if fold is not None:
        return _read_fold(frame, root, manifest, splits, fold)
    present = set(manifest.splits().values())
    if not manifest.sources:
        present = {row[0] for row in frame.select(SPLIT_COLUMN).distinct().collect()}
    check_present(splits, present, path)
    return [_read_split(frame, manifest, name) for name in splits]


def check_present(splits: tuple[str, ...], present: Collection[str], what: str) -> None:
    """Refuse a split that a data set does not have."""
    missing = [name for name in splits if name not in present]
    if missing:
        raise SchemaError(
            f"{what!r} has no split {missing[0]!r}. Its splits: {', '.join(sorted(present))}. "
            "Choose from these (--split, in Python read_tiles(path, splits=...))."
        )


def _read_split(frame: DataFrame, manifest: Manifest, split: str) -> DataFrame:
    from pyspark.sql import functions as F

    if stored := sorted(manifest.stored_splits(split)):
        # Spark opens only these folders; behind a join it would open all.
        frame = frame.where(F.col(SPLIT_COLUMN).isin(stored))
    return mark_data_set(_corrected(frame, manifest).where(F.col(SPLIT_COLUMN) == split))


def _read_fold(
    frame: DataFrame, path: str, manifest: Manifest, splits: tuple[str, ...], column: str
) -> list[DataFrame]:
    """Return the splits of one fold, as `read_tiles` does; no tile is stored again for it."""
    from pyspark.sql import functions as F

    spark = frame.sparkSession
    now = manifest.in_fold(column, path)
    check_present(splits, set(now.values()), f"{path}, {column}")
    corrected = _corrected(frame, manifest).drop(SPLIT_COLUMN)
    frames = []
    for name in splits:
        rows = [(source,) for source, split in now.items() if split == name]
        sources = F.broadcast(spark.createDataFrame(rows, "source string"))
        members = corrected.join(sources, "source", "left_semi")
        frames.append(mark_data_set(members.withColumn(SPLIT_COLUMN, F.lit(name))))
    return frames
