"""The export: Spark reads the rows, and its tasks write files of another format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_prep.dataset.hugging_face import CARD, class_label, describe
from data_prep.dataset.schema import schema_of
from data_prep.export.output_target import OutputTarget, choose_place
from data_prep.export.samples import (
    ENCODING,
    LABEL,
    check_exportable,
    extension_of,
    folder_name,
    samples_of,
)
from data_prep.spark.driver import executor_errors
from data_prep.spark.progress import task_progress
from distkeras_grid.errors import ConfigurationError, EmptyDataError, SchemaError, StorageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.atomic_output import Output, OutputKind
from distkeras_grid.spark.columns import map_batches, quoted, resolve_features
from distkeras_grid.spark.dataframes import SPLIT_COLUMN
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors, package_versions
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1
MARKER = "_export.json"
FORMATS = FOLDERS, HUGGING_FACE = "png", "huggingface"
# About 128 MB of 256x256 tiles as PNG.
ROWS_PER_FILE = 1000
# The split that is exported where rows have none.
ALL = "all"
COLUMNS = "_columns"

Batches = Iterator["pa.RecordBatch"]


def export_kind(splits: list[str]) -> OutputKind:
    """Return how an export of these splits is recognized."""
    files = [f"{split}-*" for split in splits]
    return OutputKind("export", marker=MARKER, others=(*splits, *files, CARD, COLUMNS))


@dataclass(frozen=True)
class ExportSettings:
    """What is exported, and in which format.

    Parameters
    ----------
    format : {"png", "huggingface"}
    output : str
        A folder, new or empty.
    image : str, default "image"
        The image column.
    rows_per_file : int, default 1000
        Approximate number of rows in a file of ``huggingface``.
    seed : int, default 0
        Seed of the order of the rows of ``huggingface``.
    overwrite : bool, default False
        Replace the export of the same kind that is there.
    """

    format: str
    output: str
    image: str = "image"
    rows_per_file: int = ROWS_PER_FILE
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"format must be one of {', '.join(FORMATS)}. Received: {self.format!r}."
            )
        if self.rows_per_file < 1:
            raise ConfigurationError(
                f"rows_per_file must be at least 1. Received: {self.rows_per_file}."
            )


def export_tiles(
    rows: DataFrame, settings: ExportSettings, *, inputs: tuple[str, ...] = (), say: Say = print
) -> dict[str, int]:
    """Write rows of images as files for other programs; all files appear, or none.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame
        Rows with an image column and `label`. With a column `split`, each split has its own files.
    settings : ExportSettings
    inputs : tuple of str, optional
        Paths that the rows are read from, which the output must not replace.
    say : callable
        Receives progress lines.

    Returns
    -------
    dict of str to int
        Number of rows by split.

    Raises
    ------
    ConfigurationError
        If tasks cannot write to the output.
    SchemaError
        If there is no image column or no label, no PNG can hold the images, or a split cannot be
        the name of a file.
    EmptyDataError
        If there are no rows.
    OutputExistsError
        If something else is in the output folder.

    Examples
    --------
    >>> from distkeras_grid import read_tiles                             # doctest: +SKIP
    >>> (train,) = read_tiles("tiles", splits=("train",))                 # doctest: +SKIP
    >>> export_tiles(train, ExportSettings("huggingface", "shared"))      # doctest: +SKIP
    {'train': 24568}
    """
    spark = rows.sparkSession
    storage = Storage(spark)
    (field,) = resolve_features(rows, settings.image)
    check_exportable(field)
    if LABEL not in rows.columns:
        raise SchemaError(
            f"The data have no column {LABEL!r}. Columns: {', '.join(rows.columns)}. Name the "
            "number of the class so."
        )
    check_executors(spark, TILING_PACKAGES)
    rows = _as_exported(rows, field)
    counts = _counts(rows)
    output = Output(
        storage, settings.output, export_kind(sorted(counts)), overwrite=settings.overwrite
    )
    output.check(*inputs)
    exporter = _Exporter(spark, storage, settings, field, say)
    with output.writing() as folder:
        for split, count in counts.items():
            exporter.write(_rows_of(rows, split), split, count, folder)
        if settings.format == FOLDERS:
            rows.drop(settings.image).write.parquet(f"{folder}/{COLUMNS}")
        if settings.format == HUGGING_FACE:
            storage.write_text(f"{folder}/{CARD}", exporter.card(rows, list(counts)))
        manifest = exporter.manifest(counts)
        storage.write_text(f"{folder}/{MARKER}", json.dumps(manifest, indent=1) + "\n")
    return counts


def _counts(rows: DataFrame) -> dict[str, int]:
    """Return the number of rows of each split."""
    if SPLIT_COLUMN in rows.columns:
        totals = rows.groupBy(SPLIT_COLUMN).count().collect()
        counts = {str(row[SPLIT_COLUMN]): int(row["count"]) for row in totals}
    else:
        counts = {ALL: rows.count()}
    odd = [split for split in counts if not re.fullmatch(r"\w[\w.-]*", split)]
    if odd:
        raise SchemaError(
            f"Files are named after splits, which are letters, digits, dots and dashes. Received: "
            f"{odd[0]!r} in column {SPLIT_COLUMN!r}. Rename it."
        )
    if not any(counts.values()):
        raise EmptyDataError("There are no rows to export. Check the path and the filter.")
    return dict(sorted(counts.items()))


def _as_exported(rows: DataFrame, field: Field) -> DataFrame:
    """Return rows whose column `encoding` tells how images are stored in the export."""
    from pyspark.sql import functions as F

    if ENCODING not in rows.columns:
        return rows
    own = F.col(ENCODING)
    extension = F.when(own == field.encoding, F.lit(extension_of(field))).otherwise(own)
    return rows.withColumn(ENCODING, extension)


def _rows_of(rows: DataFrame, split: str) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(F.col(SPLIT_COLUMN) == split) if SPLIT_COLUMN in rows.columns else rows


class _Exporter:
    """Writes splits, one after another."""

    def __init__(
        self,
        spark: SparkSession,
        storage: Storage,
        settings: ExportSettings,
        field: Field,
        say: Say,
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._settings = settings
        self._field = field
        self._say = say

    def write(self, rows: DataFrame, split: str, count: int, folder: str) -> None:
        """Write the rows of one split."""
        self._say(f"exporting {count:,} rows of {split} ...")
        errors = executor_errors(self._spark, self._settings.output, "exporting to")
        with errors, task_progress(self._spark, f"exporting {split}", self._say):
            if self._settings.format == HUGGING_FACE:
                files = -(-count // self._settings.rows_per_file)
                map_batches(
                    self._in_order(rows, files),
                    png_encoder(self._field),
                    self._png_schema(rows),
                ).write.parquet(f"{folder}/{split}")
                return
            place = choose_place(self._spark, self._storage.resolve(folder))
            work = folder_writer(self._field, split, place)
            written = map_batches(rows, work, "rows long, bytes long")
            done = [(row["rows"], row["bytes"]) for row in written.collect()]
        self._check(sum(n for n, _ in done), sum(size for _, size in done), split, count, folder)

    def _check(self, rows: int, size: int, split: str, count: int, folder: str) -> None:
        """Refuse missing files: tasks on other hosts may have written to their own folders."""
        if rows != count:
            raise StorageError(
                f"{rows:,} rows of {split} were exported, and {count:,} counted. Nothing was "
                "published. Run it again."
            )
        lies = self._storage.size(folder)
        if lies < size:
            raise StorageError(
                f"Tasks wrote {size:,} bytes of {split}, and {lies:,} are in {folder}. Received: a "
                "folder that not all hosts see. Export to HDFS, or to a mounted folder."
            )

    def _in_order(self, rows: DataFrame, files: int) -> DataFrame:
        """Return the rows in a random order, because such files are read from the front."""
        from pyspark.sql import functions as F

        names = [quoted(name) for name in rows.columns]
        order = F.xxhash64(F.lit(self._settings.seed), *names)
        return rows.repartition(files, order).sortWithinPartitions(order)

    def _png_schema(self, rows: DataFrame) -> Any:
        from dataclasses import replace

        from pyspark.sql import types

        field = replace(self._field, encoding=extension_of(self._field))
        others = [each for each in rows.schema.fields if each.name != field.name]
        return types.StructType([*schema_of(field, ()), *others])

    def card(self, rows: DataFrame, splits: list[str]) -> str:
        """Return what Hugging Face's ``datasets`` reads."""
        field = self._field
        kinds: dict[str, Any] = {field.name: "image"}
        for column in rows.schema.fields:
            if column.name != field.name:
                kinds[column.name] = _hugging_face_type(column.dataType.simpleString())
        if field.classes:
            kinds[LABEL] = class_label(field.classes)
        paths = {split: [f"{split}/*.parquet"] for split in splits}
        return describe(paths, kinds)

    def manifest(self, counts: dict[str, int]) -> dict[str, Any]:
        """Return the content of ``_export.json``."""
        return {
            "version": VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "format": self._settings.format,
            "rows": counts,
            "seed": self._settings.seed,
            "classes": list(self._field.classes),
            "versions": package_versions(("distkeras_grid", "pyspark", *TILING_PACKAGES)),
        }


def _hugging_face_type(name: str) -> str:
    kinds = {"int": "int32", "bigint": "int64", "float": "float32", "double": "float64"}
    kinds |= {"boolean": "bool", "binary": "binary"}
    return kinds.get(name, "string")


def folder_writer(field: Field, split: str, place: OutputTarget) -> Callable[[Batches], Batches]:
    """Return the function of a task: it writes its rows, and returns numbers of rows and bytes."""

    def work(batches: Batches) -> Batches:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        keys = (f"{number:05d}{row:07d}" for row in range(10**7))
        count = size = 0
        for batch in batches:
            for sample in samples_of(batch, field, keys):
                name = f"{sample.key}.{sample.extension}"
                place.put(f"{split}/{folder_name(sample.label_name)}/{name}", sample.image)
                count += 1
                size += len(sample.image)
        yield pa.RecordBatch.from_pydict({"rows": [count], "bytes": [size]})

    return work


def png_encoder(field: Field) -> Callable[[Batches], Batches]:
    """Return the function of a task: it encodes images as PNG, in the struct that readers know."""

    def work(batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            samples = list(samples_of(batch, field, iter(map(str, range(batch.num_rows)))))
            files = [sample.image for sample in samples]
            paths = [f"{sample.key}.{sample.extension}" for sample in samples]
            images = pa.StructArray.from_arrays(
                [pa.array(files, pa.binary()), pa.array(paths, pa.string())], ["bytes", "path"]
            )
            names = [name for name in batch.schema.names if name != field.name]
            yield pa.RecordBatch.from_arrays(
                [images, *(batch.column(name) for name in names)], [field.name, *names]
            )

    return work
