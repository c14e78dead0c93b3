"""The table of all tiles of images, and its rows as data that are cut when they are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep.dataset.schema import ARROW_TYPES, SPARK_TYPES
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.update import make_plan
from data_prep.geometry.grid import Positions, RotatedFrame, TileSpec
from data_prep.geometry.regions import Zones
from data_prep.geometry.tile_layout import allowed_positions
from data_prep.geometry.tiler import group_by_base
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.on_the_fly.column import Recipe
from data_prep.spark.driver import cutting_of
from distkeras_grid.errors import (
    ConfigurationError,
    PathNotFoundError,
    SchemaError,
    UnknownArgumentError,
)
from distkeras_grid.feeding.schema import METADATA_KEY, Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import with_groups
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.partitions import partition_key
from distkeras_grid.spark.session import build_session, task_slots
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Columns of an index beside those of its image, with their Spark types.
POSITIONS = (("angle", "double"), ("x", "int"), ("y", "int"))
CENTRES = (("src_cx", "double"), ("src_cy", "double"))
IMAGES = (
    ("uri", "string"),
    ("source", "string"),
    ("source_sha256", "string"),
    ("label", "int"),
    ("label_name", "string"),
    ("split", "string"),
)
# Settings of what is written, and of updates; `keep` measures the pixels of each tile, and an index
# has none. An option that changes pixels belongs to the recipe of `cut`, too.
OTHERS = (
    *("input", "output", "spec", "encoding", "quality", "overwrite", "update", "prune"),
    *("new_classes", "keep_versions", "report_images", "keep"),
)
OPTIONS = tuple(each.name for each in fields(TilingSettings) if each.name not in OTHERS)
# Further columns where values are normalised.
RANGES = (("range_low", "double"), ("range_high", "double"))
# Further column where stains are normalised.
STAINS = (("range_stain", "string"),)
_SIZES = (*((name, "int") for name in ("width", "height", "cut_width", "cut_height", "key")),)


def index_tiles(
    images: str,
    spec: TileSpec | None = None,
    *,
    spark: SparkSession | None = None,
    say: Say = lambda _: None,
    **options: Any,
) -> DataFrame:
    """List the tiles of the images in a folder, without cutting them.

    Images are read, labelled and split as by `tile_images`, so the tiles are the same.

    Parameters
    ----------
    images : str
        Folder of images, with all below it. The workers that cut must be able to read it: a path
        that all hosts see, or HDFS.
    spec : TileSpec, optional
        How images are cut; default ``TileSpec()``.
    spark : SparkSession, optional
        Default: the running session, or a new local one.
    say : callable, optional
        Receives progress lines.
    **options
        Fields of `TilingSettings`: ``labels``, ``group``, ``split``, ``seed``, ``allow_empty``,
        ``near_duplicates``, ``channels``, ``on_error``, ``glob``, ``page``, ``channel``, ``z``,
        ``bits``, ``normalise``, ``zones``, ``bottom_strip``, ``pixel_size``,
        ``source_pixel_size``, ``max_pixels``. ``keep`` is none: it measures the pixels of each
        tile.

    Returns
    -------
    DataFrame
        One row for each tile: ``uri, source, source_sha256, label, label_name, split, angle, x, y,
        src_cx, src_cy``; ``range_low, range_high`` or ``range_stain`` where images are normalised;
        and ``group`` where images have groups. Pass it, or a part of it, to `cut`.

    Raises
    ------
    UnknownArgumentError
        If an option is none of these.
    PathNotFoundError
        If there is no such folder.
    EmptyDataError, ImageError, LabelError, SplitLeakError
        If the images cannot be used.
    """
    if "keep" in options:
        raise ConfigurationError(
            "index_tiles cannot keep tiles by conditions: they are measured on the pixels of each "
            f"tile, and it cuts none. Received: keep={options['keep']!r}. Write the tiles by "
            "tile_images with keep, or leave it out."
        )
    if unknown := set(options) - set(OPTIONS):
        raise UnknownArgumentError.among("index_tiles", unknown, OPTIONS)
    # Nothing is written, so there is no output; but the settings need one.
    settings = TilingSettings(images, images, spec or TileSpec(), **options)
    session = spark or build_session("distkeras_grid tiling")
    check_executors(session, TILING_PACKAGES)
    storage = Storage(session)
    if not storage.exists(images):
        raise PathNotFoundError(f"There is no input folder {images}. Check the path.")
    plan, image = make_plan(session, settings, say)
    cutting = cutting_of(settings, storage)
    field = replace(image, encoding="tile", recipe=Recipe.of(settings.spec, cutting).to_text())
    slots = task_slots(session)
    rows = [
        (
            *(scan.uri, each.source, each.sha256, plan.classes.index(str(each.label)), each.label),
            *(each.split, each.low, each.high, each.stain),
            *(each.width, each.height, scan.cut_width, scan.cut_height),
            partition_key(number % slots),
        )
        for number, (each, scan) in enumerate((each, plan.scan(each)) for each in plan.sources)
    ]
    kinds = ", ".join(" ".join(each) for each in (*IMAGES, *RANGES, *STAINS, *_SIZES))
    sources = session.createDataFrame(rows, kinds)
    say(f"{plan.tiles:,} tiles of {len(plan.sources):,} images are indexed")
    index = (
        sources.repartition(slots, "key")
        .sortWithinPartitions("source")
        .mapInArrow(indexer(cutting), _schema(field, _columns(cutting)))
    )
    return with_groups(
        index, {each.source: each.group for each in plan.sources if each.group is not None}
    )


def cut(index: DataFrame) -> DataFrame:
    """Return rows whose tiles are cut when they are read.

    No tile is written or moved between hosts: the new column takes about 200 bytes a row.
    `Trainer.train`, its validation data and `ModelPredictor` read it like any column of images.

    Parameters
    ----------
    index : DataFrame
        Rows of `index_tiles`, filtered or joined as you like. A table of your own needs the columns
        ``uri``, ``angle``, ``x``, ``y``, and the metadata of ``uri`` in an index.

    Returns
    -------
    DataFrame
        The rows with the column ``image``.

    Raises
    ------
    SchemaError
        If a column is missing, or nothing describes the tiles.

    Examples
    --------
    >>> index = index_tiles("images", TileSpec(128))                     # doctest: +SKIP
    >>> train = cut(index.where("split = 'train'"))                      # doctest: +SKIP
    >>> ADAG(model, ..., features_col="image").train(train)              # doctest: +SKIP
    """
    from pyspark.sql import functions as F

    wanted = ("uri", *(name for name, _ in POSITIONS))
    if missing := [name for name in wanted if name not in index.columns]:
        raise SchemaError(
            f"An index of tiles has the columns {', '.join(wanted)}; {missing[0]!r} is missing. "
            f"Received: {', '.join(index.columns)}."
        )
    known = _noted(index)
    place = [F.col("uri"), *(F.col(name).cast(kind).alias(name) for name, kind in POSITIONS)]
    if "source_sha256" in index.columns:
        place.append(F.col("source_sha256").alias("sha256"))
    place += [
        F.col(name).alias(name.removeprefix("range_"))
        for name, _ in (*RANGES, *STAINS)
        if name in index.columns
    ]
    image = F.to_json(F.struct(*place)).cast("binary")
    return index.withColumn(known.name, image).withMetadata(known.name, known.to_metadata())


def indexer(
    cutting: TilingConfig,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task: it turns images into the index of their tiles.

    The tiles of an image are a batch for each angle, by rows from the top.
    """
    columns, spec = _columns(cutting), cutting.spec

    def index(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for row in (row for batch in batches for row in batch.to_pylist()):
            own, size = (row["width"], row["height"]), (row["cut_width"], row["cut_height"])
            scale = size[0] / own[0], size[1] / own[1]
            zones = cutting.zones.of(row["source"], *own).scaled(*scale)
            for frame, positions in frames_of(spec, *size, zones):
                count = len(positions[0])
                centres = frame.centres(positions, spec.tile)
                values = {
                    **{name: [row[name]] * count for name, _ in columns if name in row},
                    "angle": np.full(count, frame.angle, np.float64),
                    **dict(zip(("x", "y"), positions, strict=True)),
                    "src_cx": centres[0] / scale[0],
                    "src_cy": centres[1] / scale[1],
                }
                yield pa.record_batch(
                    [pa.array(values[name], ARROW_TYPES.get(kind, kind)) for name, kind in columns],
                    names=[name for name, _ in columns],
                )

    return index


def frames_of(
    spec: TileSpec, width: int, height: int, zones: Zones
) -> Iterator[tuple[RotatedFrame, Positions]]:
    """Yield the turned frames in the order of `iter_tiles`, with the positions of their tiles."""
    angles = itertools.chain.from_iterable(each for _, each in group_by_base(spec.angles))
    again = [0.0] if spec.include_original else []
    for angle in (*again, *angles):
        frame = RotatedFrame(width, height, angle)
        positions, _ = allowed_positions(frame, spec, zones)
        yield frame, positions


def _noted(index: DataFrame) -> Field:
    metadata = index.schema["uri"].metadata
    if METADATA_KEY not in metadata:
        raise SchemaError(
            "Nothing tells what the tiles of this index are. Keep the column 'uri' of index_tiles "
            "with its metadata."
        )
    return Field.from_metadata("image", metadata)


def _columns(cutting: TilingConfig) -> tuple[tuple[str, str], ...]:
    """Return names and types of the columns of an index."""
    ranges: tuple[tuple[str, str], ...] = ()
    if cutting.normalising is not None:
        ranges = STAINS if cutting.normalising.is_of_stains else RANGES
    return (*IMAGES, *ranges, *POSITIONS, *CENTRES)


def _schema(field: Field, columns: tuple[tuple[str, str], ...]) -> StructType:
    from pyspark.sql import types

    schema = types.StructType()
    for name, kind in columns:
        metadata = field.to_metadata() if name == "uri" else None
        schema.add(name, SPARK_TYPES.get(kind, kind), False, metadata)
    return schema
