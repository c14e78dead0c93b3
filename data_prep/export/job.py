"""The export: Spark reads the rows, and its tasks write files of another format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    files_of,
    folders_of,
    names_of,
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
    from pyspark.sql import DataFrame

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
    overwrite : bool, default False
        Replace the export of the same kind that is there.
    """

    format: str
    output: str
    image: str = "image"
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"format must be one of {', '.join(FORMATS)}. Received: {self.format!r}."
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
    with output.writing() as folder:
        for split, count in counts.items():
            say(f"exporting {count:,} rows of {split} ...")
            errors = executor_errors(spark, settings.output, "exporting to")
            with errors, task_progress(spark, f"exporting {split}", say):
                if settings.format == HUGGING_FACE:
                    _write_parquet(_rows_of(rows, split), field, f"{folder}/{split}", count)
                else:
                    _write_folders(_rows_of(rows, split), field, folder, split, storage, count)
        if settings.format == FOLDERS:
            rows.drop(settings.image).write.parquet(f"{folder}/{COLUMNS}")
        if settings.format == HUGGING_FACE:
            storage.write_text(f"{folder}/{CARD}", _card(rows, field, list(counts)))
        manifest = {
            "version": VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "format": settings.format,
            "rows": counts,
            "classes": list(field.classes),
            "versions": package_versions(("distkeras_grid", "pyspark", *TILING_PACKAGES)),
        }
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


def _write_parquet(rows: DataFrame, field: Field, output: str, count: int) -> None:
    """Write rows in a random order, because such files are read from the front."""
    from pyspark.sql import functions as F
    from pyspark.sql import types

    order = F.xxhash64(*(quoted(name) for name in rows.columns))
    files = -(-count // ROWS_PER_FILE)
    rows = rows.repartition(files, order).sortWithinPartitions(order)
    image = schema_of(replace(field, encoding=extension_of(field)), ())
    others = [each for each in rows.schema.fields if each.name != field.name]
    schema = types.StructType([*image, *others])
    map_batches(rows, png_encoder(field), schema).write.parquet(output)


def _write_folders(
    rows: DataFrame, field: Field, folder: str, split: str, storage: Storage, count: int
) -> None:
    """Let tasks write the files of a split; refuse missing ones, which may be on other hosts."""
    place = choose_place(rows.sparkSession, storage.resolve(folder))
    written = map_batches(rows, folder_writer(field, split, place), "rows long, bytes long")
    done = [(row["rows"], row["bytes"]) for row in written.collect()]
    number, size = sum(rows for rows, _ in done), sum(size for _, size in done)
    if number != count:
        raise StorageError(
            f"{number:,} rows of {split} were exported, and {count:,} counted. Nothing was "
            "published. Run it again."
        )
    lies = storage.size(folder)
    if lies < size:
        raise StorageError(
            f"Tasks wrote {size:,} bytes of {split}, and {lies:,} are in {folder}. Received: a "
            "folder that not all hosts see. Export to HDFS, or to a mounted folder."
        )


def _card(rows: DataFrame, field: Field, splits: list[str]) -> str:
    """Return what Hugging Face's ``datasets`` reads."""
    kinds: dict[str, Any] = {field.name: "image"}
    for column in rows.schema.fields:
        if column.name != field.name:
            kinds[column.name] = _hugging_face_type(column.dataType.simpleString())
    if field.classes:
        kinds[LABEL] = class_label(field.classes)
    return describe({split: [f"{split}/*.parquet"] for split in splits}, kinds)


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
        numbers = (f"{number:05d}{row:07d}" for row in range(10**7))
        count = size = 0
        for batch in batches:
            names, folders = names_of(batch, field, numbers), folders_of(batch)
            for image, name, folder in zip(files_of(batch, field), names, folders, strict=True):
                place.put(f"{split}/{folder}/{name}", image)
                count += 1
                size += len(image)
        yield pa.RecordBatch.from_pydict({"rows": [count], "bytes": [size]})

    return work


def png_encoder(field: Field) -> Callable[[Batches], Batches]:
    """Return the function of a task: it encodes images as PNG, in the struct that readers know."""

    def work(batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            files = files_of(batch, field)
            paths = names_of(batch, field, iter(map(str, range(batch.num_rows))))
            images = pa.StructArray.from_arrays(
                [pa.array(files, pa.binary()), pa.array(paths, pa.string())], ["bytes", "path"]
            )
            names = [name for name in batch.schema.names if name != field.name]
            yield pa.RecordBatch.from_arrays(
                [images, *(batch.column(name) for name in names)], [field.name, *names]
            )

    return work
